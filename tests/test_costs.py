"""What a forward pass keeps, attention in chunks, linear attention, paths of layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from helpers.weights import as_numpy
from sides import assert_close, definitions, draw, on_both_sides

LIBRARY = {"jax": jnp, "torch": torch}


@on_both_sides
def test_the_bytes_are_those_of_the_inputs_and_of_one_result(side):
    """The exponential is kept for its own gradient: a fourth array of this size."""
    x, exp = side.tensor(draw(2, 3, 5)), LIBRARY[side.name].exp
    page = definitions(f"costs_{side.name}")
    assert page.kept_bytes(lambda q, k, v: exp(q), x) == 4 * 30 * 4


@on_both_sides
def test_parameters_are_no_activations(side):
    x, exp = side.tensor(draw(7, 3)), LIBRARY[side.name].exp
    layer = side.build(side.models.dense, 3, 5)
    kept = side.models.activations(layer, lambda layer, x: exp(layer(x)), x)
    shapes = {tuple(a.shape) for a in kept}
    assert (7, 5) in shapes and not shapes & {(3, 5), (5, 3)}


def outputs_and_gradients(side, function, *arrays):
    """Of queries, keys and values, as NumPy arrays."""
    direction = draw(*arrays[0].shape, seed=1)
    if side.name == "jax":
        out, backward = jax.vjp(function, *map(jnp.asarray, arrays))
        return [as_numpy(x) for x in (out, *backward(jnp.asarray(direction)))]
    given = [side.tensor(x).requires_grad_() for x in arrays]
    out = function(*given)
    out.backward(side.tensor(direction))
    return [as_numpy(x) for x in (out, *(x.grad for x in given))]


@on_both_sides
@pytest.mark.parametrize("size", [5, 99])
def test_chunks_change_neither_outputs_nor_gradients(side, size):
    page, qkv = definitions(f"costs_{side.name}"), draw(3, 2, 10, 7)
    expected = outputs_and_gradients(side, page.written_out, *qkv)
    found = outputs_and_gradients(side, lambda *x: page.in_chunks(*x, size=size), *qkv)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


@on_both_sides
def test_linear_attention_weighs_by_products_of_positive_features(side):
    q, k, v = draw(3, 2, 11, 7)
    found = definitions(f"costs_{side.name}").linear_attention(
        *map(side.tensor, (q, k, v))
    )
    features_q, features_k = (np.where(x > 0, x + 1, np.exp(x)) for x in (q, k))
    products = features_q @ features_k.swapaxes(1, 2)  # b q k
    assert_close(found, products @ v / products.sum(axis=2, keepdims=True))


@pytest.mark.parametrize(
    ("sees", "longest"),
    [
        (lambda back, layer: back == back, 1),  # self-attention
        (lambda back, layer: (back == 0) | (back == 1), 255),  # recurrent
        (lambda back, layer: (back >= 0) & (back < 4), 85),  # a convolution of width 4
        (lambda back, layer: np.isin(back, 4**layer * np.arange(4)), 4),  # dilated
    ],
)
def test_paths_have_the_lengths_of_the_table(sees, longest):
    """Layers until the last of 256 positions depends on the first."""
    back = np.arange(256)[:, None] - np.arange(256)  # q k: how far back a key is
    depends, layers = np.arange(256) == 255, 0  # positions the last one depends on
    while not depends[0]:
        depends, layers = depends @ sees(back, layers), layers + 1
    assert layers == longest
