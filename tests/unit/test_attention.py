"""Attention and multi-head attention are what the formulas say, in both frameworks."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from helpers import reference
from helpers.engine.shapes import as_numpy, check_shape
from sides import (
    draw,
    draw_mask,
    fill,
    four_axes,
    jax_attention,
    jax_side,
    loss_of_attention,
    nnx_multi_head_attention,
    on_both_sides,
    torch_attention,
    torch_multi_head_attention,
    torch_side,
)

B, H, Q, K, D, E = 2, 3, 5, 7, 13, 11
MASKS = [
    (Q, K), (Q, 1), (1, K), (1, 1), (B, H, Q, K), (B, 1, Q, K), (1, H, Q, K),
    (B, H, 1, K), (B, H, Q, 1), (B, 1, 1, K), (B, 1, Q, 1), (1, 1, 1, 1),
]  # fmt: skip
DTYPES = ["float32", "bfloat16", "float16"]
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def draw_qkv(*lead, q=Q, k=K, d=D, e=E, seed=0):
    """Queries, keys and values in float32, ``lead`` the axes in front."""
    sizes = (q, d), (k, d), (k, e)
    return [
        draw(*lead, *size, seed=seed + n).astype(np.float32)
        for n, size in enumerate(sizes)
    ]


def assert_pair_equal(got, expected, atol=1e-5):
    """Outputs and weights agree; a framework that shows no weights gives None."""
    assert_close(got[0], expected[0], atol, "outputs")
    if expected[1] is not None:
        assert_close(got[1], expected[1], atol, "weights")


def assert_close(got, expected, atol, what):
    """Equal up to ``atol``; the failure says what of."""
    np.testing.assert_allclose(as_numpy(got), expected, atol=atol, rtol=0, err_msg=what)


@on_both_sides
@pytest.mark.parametrize(
    ("lead", "shape"),
    [
        ((), None), ((), (Q, K)), ((), (Q, 1)),
        ((B,), None), ((B,), (Q, K)), ((B,), (B, Q, K)), ((B,), (B, 1, K)),
        *(((B, H), shape) for shape in [None, *MASKS]),
        ((17, B, H), None), ((17, B, H), (17, 1, H, Q, K)),
    ],
    ids=str,
)  # fmt: skip
def test_attention_equals_the_reference(side, lead, shape):
    """For any number of leading axes and any mask, some rows of which see nothing."""
    q, k, v = draw_qkv(*lead)
    mask = shape and draw_mask(*shape, empty_rows=True)
    got = side.attend(*map(side.tensor, (q, k, v)), side.mask(mask))
    assert tuple(got[0].shape) == (*lead, Q, E)
    assert tuple(got[1].shape) == (*lead, Q, K)
    assert_pair_equal(got, reference.attention(q, k, v, mask))


@on_both_sides
@pytest.mark.parametrize("own", [torch_attention, jax_attention], ids=["torch", "jax"])
@pytest.mark.parametrize(
    "shape", [None, (Q, K), (1, K), (B, 1, Q, K), (B, 1, 1, K), (B, H, Q, K)], ids=str
)
def test_attention_equals_that_of_the_frameworks(side, own, shape):
    """``F.scaled_dot_product_attention`` and ``jax.nn.dot_product_attention``.

    Every row sees a key here. For one that sees none ours gives zeros, JAX's the mean
    of all values, and PyTorch's has given NaN or zeros, by version and kernel.
    """
    q, k, v = draw_qkv(B, H)
    mask = shape and draw_mask(*shape)
    got = side.attend(*map(side.tensor, (q, k, v)), side.mask(mask))
    assert_pair_equal(got, own(q, k, v, mask))


@on_both_sides
def test_masked_keys_change_no_bit_of_the_rows_that_mask_them(side):
    """Key by key: 1e4 in one key and its value leaves the rows that hide it alone."""
    q, k, v = draw_qkv(B, H)
    mask = draw_mask(B, H, Q, K, empty_rows=True)
    assert (~mask).any(axis=2).all(), "every key should be hidden from some query"
    pair = side.attend(*map(side.tensor, (q, k, v)), side.mask(mask))
    out, weights = map(as_numpy, pair)
    for j in range(K):
        k_bad, v_bad = k.copy(), v.copy()
        k_bad[:, :, j], v_bad[:, :, j] = 1e4, -1e4
        tensors = map(side.tensor, (q, k_bad, v_bad))
        out_bad, weights_bad = map(as_numpy, side.attend(*tensors, side.mask(mask)))
        rows = ~mask[..., j]
        np.testing.assert_array_equal(out_bad[rows], out[rows])
        np.testing.assert_array_equal(weights_bad[rows], weights[rows])
        assert not np.allclose(out_bad[~rows], out[~rows]), "garbage in sight must show"


@on_both_sides
@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 1e6), ("bfloat16", 1e6), ("float16", 150)]
)
def test_very_low_scores_still_outweigh_masked_ones(side, dtype, size):
    """Scores of ``-size²`` still share the whole weight; what is hidden gets none."""
    q, k = np.full((1, 1), -size), np.full((K, 1), size)
    seen = np.arange(K) % 2 == 0
    tensors = [side.tensor(x, dtype) for x in (q, k, k)]
    _, weights = side.attend(*tensors, side.mask(seen[None]))
    expected = seen / seen.sum()
    np.testing.assert_allclose(as_numpy(weights)[0], expected, rtol=2 * EPSILON[dtype])


@on_both_sides
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_dot_products_do_not_overflow(side, dtype):
    """Entries of ±30 and d = 128: 115,200 fits no float16, the score 10,182 does."""
    v = draw_qkv(d=128)[2]
    seen = np.arange(K) % 3 == 0
    q, k = np.full((Q, 128), 30.0), np.where(seen[:, None], 30.0, -30.0).repeat(128, 1)
    out, weights, *grads = side.attend_and_back(
        *(side.tensor(x, dtype) for x in (q, k, v))
    )
    weights, out = as_numpy(weights), as_numpy(out)
    assert (weights[:, ~seen] == 0).all() and (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=4 * EPSILON[dtype])
    assert_close(out, weights @ v, 8 * EPSILON[dtype], "outputs")
    assert all(np.isfinite(as_numpy(x)).all() for x in grads)


@on_both_sides
def test_no_intermediate_value_is_nan(side):
    """Not even one that a later step would hide: those stop a search for the others."""
    tensors = map(side.tensor, draw_qkv(B, H))
    mask = side.mask(draw_mask(Q, K, empty_rows=True))
    with side.no_nan():
        out, *_ = side.attend_and_back(*tensors, mask)
    assert (as_numpy(out)[:, :, 0] == 0).all()


# Properties: masks, dtypes, lengths and heads drawn by hypothesis


@dataclass(frozen=True)
class Case:
    """Sizes of one call of ``attention``, the shape of its mask, and a seed."""

    b: int
    h: int
    q: int
    k: int
    d: int
    e: int
    mask_shape: tuple
    density: float
    dtype: str
    seed: int

    def make(self, side):
        """Tensors of the side, and the mask as a NumPy array."""
        arrays = draw_qkv(
            self.b, self.h, q=self.q, k=self.k, d=self.d, e=self.e, seed=self.seed
        )
        mask = np.random.default_rng(self.seed).random(self.mask_shape) < self.density
        return [side.tensor(x, self.dtype) for x in arrays], mask

    def spread(self, mask):
        """The mask on all axes of the weights."""
        return np.broadcast_to(four_axes(mask), (self.b, self.h, self.q, self.k))


@st.composite
def cases(draw):
    """Lengths 1 to 40, 1 to 5 heads, masks of 2 or 4 axes, some of them of size 1."""
    b, h = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    q, k = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    axes = draw(st.sampled_from([(q, k), (b, h, q, k)]))
    shape = tuple(n if draw(st.booleans()) else 1 for n in axes)
    return Case(
        b, h, q, k, draw(st.integers(1, 16)), draw(st.integers(1, 16)), shape,
        draw(st.sampled_from([0.05, 0.5, 0.95])), draw(st.sampled_from(DTYPES)),
        draw(st.integers(0, 999)),
    )  # fmt: skip


def every_length():
    """Twenty cases in which every length from 1 to 40 occurs once.

    Every dtype meets masks of 2 and of 4 axes, some of them with an axis of size 1.
    """
    rng = np.random.default_rng(0)
    for n, (q, k) in enumerate((rng.permutation(40).reshape(20, 2) + 1).tolist()):
        b, h = 2, n % 5 + 1
        axes = [(q, k), (b, 1, q, k), (b, h, q, k)][n // 3 % 3]
        narrow = rng.integers(len(axes)) if n % 2 else None
        shape = tuple(1 if axis == narrow else n for axis, n in enumerate(axes))
        yield Case(b, h, q, k, 7, 11, shape, 0.5, DTYPES[n % 3], seed=n)


def on_many_cases(test):
    """Run a test on ``every_length``, then on cases that hypothesis draws.

    One seed for all, so that every test meets the same cases: JAX compiles each once.
    """
    for case in every_length():
        test = example(case)(test)
    test = settings(max_examples=15, deadline=None, database=None)(test)
    return seed(1)(given(case=cases())(test))


@on_both_sides
@on_many_cases
def test_weights_are_a_distribution_over_the_visible_keys(side, case):
    """Rows sum to 1, or to 0 where nothing is seen; what is hidden weighs exactly 0.

    No weight is negative, and outputs and weights have the dtype of the input.
    """
    tensors, mask = case.make(side)
    pair = side.attend_and_back(*tensors, side.mask(mask))[:2]
    assert {str(x.dtype).removeprefix("torch.") for x in pair} == {case.dtype}
    weights, seen = as_numpy(pair[1]).astype(np.float64), case.spread(mask)
    check_shape(weights, "b h q k", b=case.b, h=case.h, q=case.q, k=case.k)
    assert (weights >= 0).all()
    assert (weights[~seen] == 0).all()
    expected = seen.any(axis=-1).astype(float)
    tolerance = 4 * EPSILON[case.dtype]
    np.testing.assert_allclose(weights.sum(axis=-1), expected, atol=tolerance, rtol=0)
    assert (weights.sum(axis=-1)[expected == 0] == 0).all()


@on_both_sides
@on_many_cases
def test_attention_equals_the_reference_within_the_precision_of_the_dtype(side, case):
    """The inputs are rounded to the dtype first, so that only the arithmetic differs.

    A score that is off by ``δ`` moves a weight by a share of at most about ``δ``, hence
    the largest score in the bound.
    """
    tensors, mask = case.make(side)
    out, weights, *_ = side.attend_and_back(*tensors, side.mask(mask))
    q, k, v = (as_numpy(x).astype(np.float64) for x in tensors)
    right_out, right_weights = reference.attention(q, k, v, mask)
    score = np.abs(np.einsum("bhqd,bhkd->bhqk", q, k)).max() / math.sqrt(case.d)
    tolerance = 4 * EPSILON[case.dtype] * (1 + score)
    assert_close(weights, right_weights, tolerance, "weights")
    assert_close(out, right_out, tolerance * np.abs(v).max(), "outputs")


@on_both_sides
@on_many_cases
def test_a_fully_masked_query_gets_zeros_and_finite_gradients(side, case):
    """Exact zeros, and no NaN on the way back: in the gradient of q, k and v.

    The gradient in such a query is 0, for nothing depends on it.
    """
    tensors, mask = case.make(side)
    mask[..., mask.shape[-2] // 2, :] = False
    blind = ~case.spread(mask).any(axis=-1)
    assert blind.any()
    out, weights, *grads = map(
        as_numpy, side.attend_and_back(*tensors, side.mask(mask))
    )
    assert (out[blind] == 0).all()
    assert (weights[blind] == 0).all()
    assert np.isfinite(out).all()
    assert [g.shape for g in grads] == [tuple(x.shape) for x in tensors]
    assert all(np.isfinite(g).all() for g in grads)
    assert (grads[0][blind] == 0).all()


@on_both_sides
@on_many_cases
def test_masked_keys_affect_neither_outputs_nor_gradients(side, case):
    """Huge keys and values that all queries of a sequence hide: nothing changes.

    Not one bit of the outputs, the weights and the gradients of what can be seen.
    """
    (q, k, v), mask = case.make(side)
    mask[..., : mask.shape[-1] // 2] = False
    garbage = ~case.spread(mask).any(axis=(1, 2))[:, None, :, None]  # b 1 k 1
    bad = [
        side.tensor(np.where(garbage, size, as_numpy(x)), case.dtype)
        for x, size in [(k, 1e4), (v, -1e4)]
    ]
    mask = side.mask(mask)
    clean = map(as_numpy, side.attend_and_back(q, k, v, mask))
    dirty = map(as_numpy, side.attend_and_back(q, *bad, mask))
    names = "outputs", "weights", "gradient in q", "gradient in k", "gradient in v"
    for name, a, b in zip(names, clean, dirty, strict=True):
        assert np.isfinite(b).all(), name
        np.testing.assert_array_equal(b, a, err_msg=name)


# Multi-head attention

S, T, M_D = 7, 11, 5  # positions, those of a context, size of a head


def draw_heads(side, n_heads, seed=0):
    """A module with a value of its own in every parameter, its parameters, an input."""
    model = side.build("MultiHeadAttention", n_heads * M_D, n_heads)
    x = draw(B, S, n_heads * M_D, seed=seed + 1).astype(np.float32)
    return model, fill(model, seed), x


@on_both_sides
@pytest.mark.parametrize(
    "own",
    [
        reference.multi_head_attention,
        torch_multi_head_attention,
        nnx_multi_head_attention,
    ],
    ids=["reference", "nn.MultiheadAttention", "nnx.MultiHeadAttention"],
)
@pytest.mark.parametrize("keys", [None, T], ids=["self", "cross"])
@pytest.mark.parametrize("lead", [None, (S,), (B, 1, 1), (B, H, S)], ids=str)
def test_multi_head_attention_equals_reference_and_frameworks(side, own, keys, lead):
    """Outputs and the weights of every head, with copied weights.

    Keys and values come from the input or from a context of another length. Every row
    sees a key. For one that sees none ``nn.MultiheadAttention`` gives NaN, and
    ``nnx.MultiHeadAttention`` the mean of all values.
    """
    model, params, x = draw_heads(side, H)
    context = keys and draw(B, keys, H * M_D, seed=5).astype(np.float32)
    mask = None if lead is None else draw_mask(*lead, keys or S)
    there = None if context is None else side.tensor(context)
    asked = {"context": there, "return_weights": True}
    got = model(side.tensor(x), side.mask(mask), **asked)
    check_shape(got[0], "b s m", b=B, s=S, m=H * M_D)
    check_shape(got[1], "b h q k", b=B, h=H, q=S, k=keys or S)
    assert_pair_equal(got, own(x, params, H, mask, context))


def test_cross_attention_is_the_same_in_both_frameworks():
    """Outputs and maps, and gradients in every parameter and the queries' input."""
    context, mask = draw(B, T, H * M_D, seed=5), draw_mask(S, T, empty_rows=True)
    results = []
    for side in (jax_side, torch_side):
        model, _, x = draw_heads(side, H)
        call = side.tensor(x), side.mask(mask), side.tensor(context)
        asked = {"return_weights": True}
        grads, in_x = side.model_grads(
            model, lambda pair: loss_of_attention(*pair), *call, **asked
        )
        out, weights = map(as_numpy, model(*call, **asked))
        results.append(grads | {"x": in_x, "out": out, "weights": weights})
    for name, value in results[0].items():
        assert np.abs(value).max() > 0.01, name
        size = max(1, np.abs(value).max())
        assert_close(results[1][name] / size, value / size, 1e-5, name)


@on_both_sides
@pytest.mark.parametrize("n_heads", [1, 2, 5])
def test_heads_split_the_features_in_order(side, n_heads):
    """Head ``n`` works on features ``n·d`` to ``(n + 1)·d``, in empty rows, too."""
    model, params, x = draw_heads(side, n_heads, seed=n_heads)
    mask = draw_mask(S, S, empty_rows=True)
    got = model(side.tensor(x), side.mask(mask), return_weights=True)
    assert_pair_equal(got, reference.multi_head_attention(x, params, n_heads, mask))
