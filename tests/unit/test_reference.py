"""The reference itself is right: by hand, and against PyTorch in double precision."""

import math

import numpy as np
import pytest
import torch

from helpers import reference
from sides import (
    draw,
    draw_mask,
    fill,
    torch_attention,
    torch_encoder_layer,
    torch_multi_head_attention,
    torch_side,
)

B, H, Q, K, D, E, F = 2, 3, 5, 7, 13, 11, 17
M = H * D
EXACT = {"atol": 1e-12, "rtol": 0}


def test_attention_by_hand():
    """Scores 0 and ``ln 3`` give weights 1/4 and 3/4; a mask on the second gives 1."""
    q, k = [[2.0, 0, 0, 0]], [[0.0, 5, 0, 0], [math.log(3), 0, 7, 0]]
    v = [[4.0, 0.0], [8.0, 4.0]]
    out, weights = reference.attention(q, k, v)
    np.testing.assert_allclose(weights, [[0.25, 0.75]], **EXACT)
    np.testing.assert_allclose(out, [[7.0, 3.0]], **EXACT)
    out, weights = reference.attention(q, k, v, np.array(True) == [[True, False]])
    np.testing.assert_array_equal(weights, [[1.0, 0.0]])
    np.testing.assert_array_equal(out, [[4.0, 0.0]])


def test_a_fully_masked_query_gets_zeros():
    """Its row of weights and its output are 0; the others are as without it."""
    q, k, v = draw(B, Q, D), draw(B, K, D, seed=1), draw(B, K, E, seed=2)
    mask = draw_mask(Q, K, empty_rows=True)
    out, weights = reference.attention(q, k, v, mask)
    assert (out[:, 0] == 0).all()
    assert (weights[:, 0] == 0).all()
    rest = reference.attention(q[:, 1:], k, v, mask[1:])
    np.testing.assert_array_equal(out[:, 1:], rest[0])
    np.testing.assert_array_equal(weights[:, 1:], rest[1])


@pytest.mark.parametrize("shape", [None, (Q, K), (B, 1, 1, K), (B, H, Q, K)], ids=str)
def test_attention_equals_pytorch_in_double_precision(shape):
    """``F.scaled_dot_product_attention`` in float64, to 1e-12."""
    q, k, v = draw(B, H, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, E, seed=2)
    mask = shape and draw_mask(*shape)
    found = reference.attention(q, k, v, mask)
    for a, b in zip(found, torch_attention(q, k, v, mask), strict=True):
        assert a.dtype == b.dtype == np.float64
        np.testing.assert_allclose(a, b, **EXACT)


def test_large_scores_do_not_overflow():
    """Scores of 1000 and 998 differ by 2, and that is all that counts."""
    expected = np.array([math.e**2, 1]) / (math.e**2 + 1)
    np.testing.assert_allclose(
        reference.softmax(np.array([1e3, 998])), expected, **EXACT
    )
    np.testing.assert_allclose(
        reference.softmax(-np.array([998, 1e3])), expected, **EXACT
    )


def block_of():
    """Parameters of a block in float64, each with a value of its own; an input."""
    block = torch_side.build("EncoderBlock", M, H, F)
    params = {name: x.astype(np.float64) for name, x in fill(block).items()}
    return params, draw(B, Q, M, seed=3)


@pytest.mark.parametrize("shape", [None, (Q, Q), (B, 1, Q, Q), (B, H, Q, Q)], ids=str)
def test_multi_head_attention_equals_pytorch_in_double_precision(shape):
    """``nn.MultiheadAttention`` in float64, outputs and weights, to 1e-12."""
    params, x = block_of()
    start = "attention."
    inner = {n.removeprefix(start): v for n, v in params.items() if n.startswith(start)}
    mask = shape and draw_mask(*shape)
    found = reference.multi_head_attention(x, inner, H, mask)
    own = torch_multi_head_attention(x, inner, H, mask, dtype="float64")
    for a, b in zip(found, own, strict=True):
        assert a.dtype == b.dtype == np.float64
        np.testing.assert_allclose(a, b, **EXACT)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_block_equals_pytorch_in_double_precision(norm_first, activation):
    """``nn.TransformerEncoderLayer`` in float64, to 1e-12."""
    params, x = block_of()
    mask = draw_mask(B, H, Q, Q)
    options = {"activation": activation, "norm_first": norm_first}
    out, _ = reference.encoder_block(x, params, H, mask, **options)
    own = torch_encoder_layer(x, params, H, mask, dtype="float64", **options)
    assert out.dtype == own.dtype == np.float64
    np.testing.assert_allclose(out, own, **EXACT)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_equal_pytorch_in_double_precision(norm):
    """``F.layer_norm`` and ``F.rms_norm``, features far from mean 0, variance 1."""
    x = draw(B, Q, M, scale=3.0) + 5
    params = {"n.weight": draw(M, seed=1), "n.bias": draw(M, seed=2)}
    weight, bias = map(torch.tensor, params.values())
    if norm == "layer":
        own = torch.nn.functional.layer_norm(torch.tensor(x), (M,), weight, bias, 1e-5)
    else:
        del params["n.bias"]
        own = torch.nn.functional.rms_norm(torch.tensor(x), (M,), weight, 1e-5)
    found = reference.normalise(x, params, "n", norm)
    np.testing.assert_allclose(found, own.numpy(), **EXACT)


def test_layer_norm_by_hand():
    """1 and 3 have mean 2 and variance 1, so they become -1 and 1 (for epsilon 0)."""
    params = {"n.weight": np.array([10.0, 10.0]), "n.bias": np.array([0.5, 0.5])}
    layer = reference.normalise(np.array([1.0, 3.0]), params, "n", epsilon=0)
    np.testing.assert_allclose(layer, [-9.5, 10.5], **EXACT)
    del params["n.bias"]
    rms = reference.normalise(np.array([1.0, 7.0]), params, "n", "rms", epsilon=0)
    np.testing.assert_allclose(rms, [2.0, 14.0], **EXACT)


def test_gelu_equals_pytorch_and_relu_cuts_at_zero():
    """The exact GELU, not its tanh approximation: that is off by up to 5e-4."""
    x = np.linspace(-6, 6, 101)
    own = torch.nn.functional.gelu(torch.tensor(x)).numpy()
    np.testing.assert_allclose(reference.gelu(x), own, **EXACT)
    np.testing.assert_array_equal(reference.relu(np.array([-2.0, 0.0, 3.0])), [0, 0, 3])
