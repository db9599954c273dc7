"""The reference itself is right: by hand, and against PyTorch in double precision."""

import math

import numpy as np
import torch
from torch import nn

from helpers import reference
from sides import draw, draw_mask

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
    out, weights = reference.attention(q, k, v, np.array([[True, False]]))
    np.testing.assert_array_equal(weights, [[1.0, 0.0]])
    np.testing.assert_array_equal(out, [[4.0, 0.0]])


def test_a_fully_masked_query_gets_zeros():
    """Its row of weights and its output are 0; the others are as without it."""
    q, k, v = draw(B, Q, D), draw(B, K, D, seed=1), draw(B, K, E, seed=2)
    mask = draw_mask(Q, K, empty_rows=True)
    out, weights = reference.attention(q, k, v, mask)
    assert (out[:, 0] == 0).all() and (weights[:, 0] == 0).all()
    rest = reference.attention(q[:, 1:], k, v, mask[1:])
    np.testing.assert_array_equal(out[:, 1:], rest[0])
    np.testing.assert_array_equal(weights[:, 1:], rest[1])


def test_large_scores_do_not_overflow():
    """Scores of 1000 and 998 differ by 2, and that is all that counts."""
    expected = np.array([math.e**2, 1]) / (math.e**2 + 1)
    scores = np.array([1e3, 998])
    np.testing.assert_allclose(reference.softmax(scores), expected, **EXACT)
    np.testing.assert_allclose(reference.softmax(scores - 2e3), expected, **EXACT)


def test_rms_norm_equals_pytorch_in_double_precision():
    """``F.rms_norm``; layer norm is in the blocks."""
    x = 3 * draw(B, Q, M).astype(np.float64) + 5
    weight = draw(M, seed=1).astype(np.float64)
    own = nn.functional.rms_norm(torch.tensor(x), (M,), torch.tensor(weight), 1e-5)
    found = reference.normalise(x, {"n.weight": weight}, "n", "rms")
    np.testing.assert_allclose(found, own, **EXACT)


def test_norms_by_hand():
    """1 and 3 have mean 2 and variance 1, so they become -1 and 1 (for epsilon 0)."""
    params = {"n.weight": np.array([10.0, 10.0]), "n.bias": np.array([0.5, 0.5])}
    layer = reference.normalise(np.array([1.0, 3.0]), params, "n", epsilon=0)
    np.testing.assert_allclose(layer, [-9.5, 10.5], **EXACT)
    del params["n.bias"]
    rms = reference.normalise(np.array([1.0, 7.0]), params, "n", "rms", epsilon=0)
    np.testing.assert_allclose(rms, [2.0, 14.0], **EXACT)
