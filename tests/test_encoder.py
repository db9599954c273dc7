"""Blocks and stacks are what the formulas say, in both frameworks.

All sizes differ, and all are prime but ``m = h·d``: no transposition can hide.
"""

import numpy as np
import pytest
import torch
from torch import nn

from helpers import reference
from helpers.weights import as_numpy, from_arrays, to_arrays
from sides import (
    assert_close,
    definitions,
    draw,
    draw_mask,
    fill,
    on_both_sides,
    with_weights,
)

B, L, H, D, S, F = 3, 2, 5, 7, 11, 13
M = H * D
LENGTHS = np.array([11, 7, 2])
PADDING = np.arange(S) < LENGTHS[:, None]  # b s: a place that holds something
OPTIONS = [
    {"norm_first": norm_first, "activation": activation}
    for norm_first in (False, True)
    for activation in ("relu", "gelu")
]
X = draw(B, S, M, seed=9)
SIZES = {"FeedForward": (M, F), "EncoderBlock": (M, H, F), "Encoder": (L, M, H, F)}
pre_and_post = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
of_options = pytest.mark.parametrize(
    "options", OPTIONS, ids=["post-relu", "post-gelu", "pre-relu", "pre-gelu"]
)


def build(side, kind, **options):
    """A module of the chapter, and its parameters, each with a value of its own."""
    model = side.build(kind, *SIZES[kind], **options)
    return model, fill(model)


@on_both_sides
@of_options
def test_a_block_equals_the_reference(side, options):
    """Norm after or before, ReLU or GELU; outputs and weights, some rows blind."""
    model, params = build(side, "EncoderBlock", **options)
    mask = draw_mask(B, H, S, S, empty_rows=True)
    found = model(side.tensor(X), side.mask(mask), return_weights=True)
    expected = reference.encoder_block(X, params, H, mask, **options)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)


@on_both_sides
@pre_and_post
def test_a_stack_equals_the_reference(side, norm_first):
    """Each block on the output of the one before; pre-norm ends with one more norm."""
    model, params = build(side, "Encoder", norm_first=norm_first)
    mask = draw_mask(B, 1, S, S)
    found = model(side.tensor(X), side.mask(mask), return_maps=True)
    expected = reference.encoder(X, params, L, H, mask, norm_first=norm_first)
    assert ("norm.weight" in params) == norm_first
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)
    assert_close(model(side.tensor(X), side.mask(mask)), expected[0])


@on_both_sides
@of_options
def test_outputs_and_gradients_are_those_of_pytorchs_layer(side, options):
    """``nn.TransformerEncoderLayer`` in float64, with dropout off."""
    model, params = build(side, "EncoderBlock", **options)
    own = nn.TransformerEncoderLayer(M, H, F, 0.3, batch_first=True, **options)
    names = ["attention.qkv", "attention.out", "ffn.linear1", "ffn.linear2"]
    own = with_weights(own, params, *names, "norm1", "norm2")
    given, mask = torch.tensor(X).double().requires_grad_(), draw_mask(S, S)
    expected = own(given, src_mask=torch.tensor(~mask))
    (expected**2).mean().backward()
    call = (side.tensor(X), side.mask(mask))
    assert_close(model(*call)[0], expected.detach())
    grads = side.grads(model, lambda pair: (pair[0] ** 2).mean(), *call)
    assert_close(grads["input"], given.grad, 1e-6)
    assert_close(grads["ffn.linear1.weight"], own.linear1.weight.grad.T, 1e-6)
    assert_close(grads["norm2.bias"], own.norm2.bias.grad, 1e-6)


@on_both_sides
@pre_and_post
@pytest.mark.parametrize("size", [1e4, -1e15])
def test_padded_positions_have_no_effect_in_any_layer(side, norm_first, size):
    """What stands in the padding reaches no visible output and no visible map."""
    model, _ = build(side, "Encoder", norm_first=norm_first)
    mask, dirty = side.mask(PADDING[:, None, None]), X.copy()
    dirty[~PADDING] = size
    out, maps = map(as_numpy, model(side.tensor(X), mask, return_maps=True))
    found = model(side.tensor(dirty), mask, return_maps=True)
    out_dirty, maps_dirty = map(as_numpy, found)
    assert_close(out_dirty[PADDING], out[PADDING], 1e-6)
    for b, length in enumerate(LENGTHS):
        assert_close(maps_dirty[:, b, :, :length], maps[:, b, :, :length], 1e-6)
        assert (maps_dirty[:, b, :, :, length:] == 0).all()
    unmasked = as_numpy(model(side.tensor(dirty)))
    assert np.abs(unmasked - out)[PADDING].max() > 0.1, "no mask, no shelter"


@on_both_sides
@pytest.mark.parametrize("mean, scale, atol", [(1000, 1, 0.01), (0, 0.001, 1e-5)])
def test_a_layer_norm_is_exact_far_from_zero_and_near_it(side, mean, scale, atol):
    """Its variance is not the difference of two large squares; epsilon is 1e-5."""
    model, params = build(side, "EncoderBlock")
    x = mean + scale * draw(B, S, M)
    expected = reference.normalise(x.astype(np.float64), params, "norm1")
    assert_close(model.norm1(side.tensor(x)), expected, atol)


# Dropout


@on_both_sides
@pre_and_post
@pytest.mark.parametrize("kind", ["EncoderBlock", "DecoderBlock"])
def test_dropout_is_in_each_branch_and_not_on_the_sum(side, kind, norm_first):
    """Of one branch, two calls differ in training; of none, training is evaluation."""
    given = [side.tensor(X), None, side.tensor(X)][: 1 if kind == "EncoderBlock" else 3]
    kind = getattr(definitions(f"translation_{side.name}"), kind, kind)
    model = side.build(kind, M, H, F, norm_first=norm_first, dropout=0.5)
    arrays, outs = fill(model), {}
    branches = {
        n[:-6] for n in arrays if n.endswith((".out.weight", ".linear2.weight"))
    }
    for heard in (*branches, "none"):
        silent = (*branches - {heard}, "ffn.linear2.weight")  # not what is in the net
        quiet = {n: 0 * x for n, x in arrays.items() if n.startswith(silent)}
        from_arrays(model, arrays | quiet)
        for mode in ("train", "train", "eval", "eval"):
            getattr(model, mode)()
            outs.setdefault(heard + mode, []).append(as_numpy(model(*given)[0]))
        gap = np.abs(np.subtract(*outs[f"{heard}train"])).max()
        assert gap > 0.1 if heard != "none" else gap == 0, heard
        np.testing.assert_array_equal(*outs[f"{heard}eval"])
    np.testing.assert_array_equal(outs["nonetrain"], outs["noneeval"])


@on_both_sides
def test_every_dropout_has_its_rate(side):
    model, _ = build(side, "Encoder", dropout=0.3)
    places = [f"blocks.{n}.{x}dropout" for n in range(L) for x in ("", "ffn.")]
    assert side.rates(model) == dict.fromkeys(places, 0.3)


@on_both_sides
def test_dropout_in_the_net_is_between_activation_and_second_layer(side):
    """Each activation is dropped or doubled; every place has a mask of its own."""
    model = side.build("FeedForward", M, M, dropout=0.5, activation="gelu")
    arrays = fill(model) | {"linear2.weight": np.eye(M, dtype=np.float32)}
    from_arrays(model, arrays)
    x, bias = side.tensor(np.tile(X[0, 0], (B, S, 1))), arrays["linear2.bias"]
    model.eval()
    hidden = as_numpy(model(x)) - bias
    model.train()
    found = as_numpy(model(x)) - bias
    dropped = np.abs(found) < 1e-5
    assert_close(found, np.where(dropped, 0, 2 * hidden))
    assert 0.3 < dropped[np.abs(hidden) > 0.01].mean() < 0.7
    assert len(np.unique(dropped.reshape(-1, M), axis=0)) == B * S, "a mask is shared"


@on_both_sides
def test_the_maps_are_those_of_a_model_without_dropout(side):
    """In training mode, twice; the model, in any mode, stays as it was."""
    model, params = build(side, "Encoder", dropout=0.5)
    still, _ = build(side, "Encoder")
    x, mask = side.tensor(X), side.mask(PADDING[:, None, None])
    model.train()
    model.blocks[0].eval()  # dropout of the second block stays on
    expected = still(x, mask, return_maps=True)
    for _ in range(2):
        for a, b in zip(
            side.models.attention_maps(model, x, mask), expected, strict=True
        ):
            assert_close(as_numpy(a), as_numpy(b))
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        side.models.attention_maps(model, x, side.mask(draw_mask(S, S + 1)))
    first, second = (as_numpy(model.blocks[0](x)[0]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (as_numpy(model(x)) != as_numpy(model(x))).any()
    for name, value in to_arrays(model).items():
        np.testing.assert_array_equal(value, params[name], err_msg=name)
