"""Attention and multi-head attention are what the formulas say, in both frameworks.

All sizes are different primes: no transposition can hide.
"""

import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch
from torch import nn

from helpers import reference
from helpers.weights import as_numpy, to_arrays
from sides import (
    assert_close,
    definitions,
    draw,
    draw_mask,
    fill,
    jax_side,
    on_both_sides,
    stacked,
    torch_side,
    with_weights,
)

B, H, Q, K, D, E = 2, 3, 5, 7, 13, 11
M, S, T = 3 * 5, 7, 11  # size of a model, positions, those of a context
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
PADDING = np.arange(S) < np.array([[S], [4]])  # b k
MASKS = {
    "no mask": None,
    "padding": PADDING[:, None, None],
    "blind rows": draw_mask(S, S, empty_rows=True),
}


def draw_qkv(*lead, q=Q, k=K, d=D, e=E):
    """Queries, keys and values, ``lead`` the axes in front."""
    sizes = [(q, d), (k, d), (k, e)]
    return [draw(*lead, *size, seed=n) for n, size in enumerate(sizes)]


def attend_and_back(side, tensors, mask=None):
    """Outputs, weights, and gradients in q, k, v of a sum of squares of both."""

    def loss(*qkv):
        out, weights = side.models.attention(*qkv, mask)
        return (out * out).sum() + (weights * weights).sum(), (out, weights)

    if side is jax_side:
        grads, pair = jax.grad(loss, (0, 1, 2), has_aux=True)(*tensors)
    else:
        tensors = [x.clone().requires_grad_() for x in tensors]
        total, pair = loss(*tensors)
        grads = torch.autograd.grad(total, tensors)
    return [as_numpy(x) for x in (*pair, *grads)]


@on_both_sides
@pytest.mark.parametrize(
    ("lead", "shape"),
    [
        ((), None), ((B,), (B, 1, K)), ((B, H), (1, H, Q, K)),
        ((17, B, H), (17, 1, H, Q, K)),
    ],
    ids=str,
)  # fmt: skip
def test_attention_equals_the_reference(side, lead, shape):
    """For any number of leading axes and any mask, some rows of which see nothing."""
    arrays = draw_qkv(*lead)
    mask = shape and draw_mask(*shape, empty_rows=shape[-2] > 1)
    out, weights = side.models.attention(*map(side.tensor, arrays), side.mask(mask))
    expected = reference.attention(*arrays, mask)
    assert_close(out, expected[0], what="outputs")
    assert_close(weights, expected[1], what="weights")


@on_both_sides
@pytest.mark.parametrize("shape", [None, (B, H, Q, K)], ids=str)
def test_attention_and_its_gradients_are_those_of_pytorch(side, shape):
    """``scaled_dot_product_attention`` in float64; weights are its outputs for 1s."""
    arrays, mask = draw_qkv(B, H), shape and draw_mask(*shape)
    *leaves, unit = [torch.tensor(x).double() for x in (*arrays, np.eye(K))]
    leaves = [x.requires_grad_() for x in leaves]
    seen = None if mask is None else torch.tensor(mask)
    attend = nn.functional.scaled_dot_product_attention
    q, k, v = leaves
    out = attend(q, k, v, attn_mask=seen)
    weights = attend(q, k, unit.expand(B, H, K, K), attn_mask=seen)
    grads = torch.autograd.grad((out**2).sum() + (weights**2).sum(), leaves)
    found = attend_and_back(side, list(map(side.tensor, arrays)), side.mask(mask))
    for got, expected in zip(found, (out, weights, *grads), strict=True):
        assert_close(got, expected.detach())


@on_both_sides
def test_hidden_keys_change_no_bit(side):
    """1e4 in a key and its value: neither in rows that hide it, nor in gradients."""
    (q, k, v), mask = draw_qkv(B, H), draw_mask(B, H, Q, K, empty_rows=True)
    mask[..., 2] = False  # of key 2 not even the gradient sees anything
    clean = attend_and_back(side, list(map(side.tensor, (q, k, v))), side.mask(mask))
    assert (clean[1][~mask] == 0).all() and (clean[1] >= 0).all()
    for j in range(K):
        bad_k, bad_v = k.copy(), v.copy()
        bad_k[:, :, j], bad_v[:, :, j] = 1e4, -1e4
        tensors = [side.tensor(x) for x in (q, bad_k, bad_v)]
        dirty = attend_and_back(side, tensors, side.mask(mask))
        rows = ~mask[..., j]
        for a, b in zip(clean[:2], dirty[:2], strict=True):
            np.testing.assert_array_equal(b[rows], a[rows])
            assert rows.all() or not np.allclose(b[~rows], a[~rows]), "in sight"
        if rows.all():
            for a, b in zip(clean, dirty, strict=True):
                np.testing.assert_array_equal(b, a)


@on_both_sides
@pytest.mark.parametrize("dtype", EPSILON)
def test_blind_queries_get_zeros_and_nothing_overflows(side, dtype):
    """With finite gradients, 0 in such a query; 30² · 128 = 115,200 is no float16."""
    mask = draw_mask(B, 1, Q, K, empty_rows=True)
    tensors = [side.tensor(x, dtype) for x in draw_qkv(B, H)]
    out, weights, *grads = attend_and_back(side, tensors, side.mask(mask))
    assert (out[:, :, 0] == 0).all() and (weights[:, :, 0] == 0).all()
    assert all(np.isfinite(x).all() and x.any() for x in grads)
    assert (grads[0][:, :, 0] == 0).all()
    seen = np.arange(K) % 3 == 0
    q, k = np.full((Q, 128), 30.0), np.where(seen[:, None], 30.0, -30.0).repeat(128, 1)
    tensors = [side.tensor(x, dtype) for x in (q, k, draw(K, E))]
    out, weights, *grads = attend_and_back(side, tensors)
    assert (weights[:, ~seen] == 0).all() and (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=4 * EPSILON[dtype])
    assert_close(out, weights @ as_numpy(tensors[2]), 8 * EPSILON[dtype])
    assert all(np.isfinite(x).all() for x in grads)


@on_both_sides
@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e6), ("float16", 150)])
def test_very_low_scores_still_outweigh_hidden_ones(side, dtype, size):
    """Scores of ``-size²`` share the whole weight; what is hidden gets none."""
    q, k, seen = np.full((1, 1), -size), np.full((K, 1), size), np.arange(K) % 2 == 0
    tensors = [side.tensor(x, dtype) for x in (q, k, k)]
    _, weights = side.models.attention(*tensors, side.mask(seen[None]))
    expected = seen / seen.sum()
    np.testing.assert_allclose(as_numpy(weights)[0], expected, rtol=2 * EPSILON[dtype])


@on_both_sides
def test_equal_scores_give_the_mean_of_all_values(side):
    q, k, v = draw_qkv(B)
    out, _ = side.models.attention(*map(side.tensor, (0 * q, k, v)))
    assert_close(out, np.broadcast_to(v.mean(1, keepdims=True), (B, Q, E)))
    plain = definitions(f"attention_{side.name}").plain_attention
    whole = side.models.attention(*map(side.tensor, (q, k, v)))
    for a, b in zip(plain(*map(side.tensor, (q, k, v))), whole, strict=True):
        assert_close(a, b)


# Several heads


def draw_heads(side, context=None):
    """A layer with a value of its own in every parameter, these values, the inputs."""
    given = [draw(B, S, M, seed=1)] + ([] if context is None else [context])
    model = side.build(["MultiHeadAttention", "CrossAttention"][len(given) - 1], M, H)
    return model, fill(model), given


@on_both_sides
@pytest.mark.parametrize(
    ("lead", "keys"), [(None, None), ((B, H, S), None), ((S,), T)], ids=str
)
def test_multi_head_attention_equals_the_reference(side, lead, keys):
    """Outputs and the weights of every head; some rows see nothing."""
    context = keys and draw(B, keys, M, seed=5)
    model, params, given = draw_heads(side, context)
    mask = lead and draw_mask(*lead, keys or S, empty_rows=True)
    call = (*map(side.tensor, given), side.mask(mask))
    found = model(*call, return_weights=True)
    expected = reference.multi_head_attention(given[0], params, H, mask, context)
    for got, right in zip(found, expected, strict=True):
        assert_close(got, right)


@on_both_sides
@pytest.mark.parametrize("keys", [None, T], ids=["self", "cross"])
def test_outputs_and_gradients_are_those_of_pytorchs_layer(side, keys):
    """``nn.MultiheadAttention`` in float64; in its masks, True hides a key."""
    model, params, given = draw_heads(side, keys and draw(B, keys, M, seed=5))
    mask = draw_mask(S, keys or S)
    own = nn.MultiheadAttention(M, H, batch_first=True)
    own = with_weights(own, stacked(params), "qkv", "out")
    x, *context = [torch.tensor(y).double().requires_grad_() for y in given]
    there = context[0] if keys else x
    expected, _ = own(x, there, there, attn_mask=torch.tensor(~mask))
    (expected**2).mean().backward()
    call = (*map(side.tensor, given), side.mask(mask))
    assert_close(model(*call)[0], expected.detach())
    grads = side.grads(model, lambda pair: (pair[0] ** 2).mean(), *call)
    assert_close(grads["input"], x.grad, 1e-6)
    theirs = [as_numpy(part.grad).T for part in own.parameters()]
    names = "qkv.weight", "qkv.bias", "out.weight", "out.bias"
    for name, expected in zip(names, theirs, strict=True):
        assert_close(stacked(grads)[name], expected, 1e-6, name)


@on_both_sides
def test_a_new_layer_attends_almost_evenly(side):
    """Uniform weights within 1/√n_in, biases of 0: scores have a variance of 1/9."""
    model = side.build("MultiHeadAttention", 256, 4)
    arrays = to_arrays(model)
    for name in ("qkv", "out"):
        weight, bound = arrays[f"{name}.weight"], 1 / 16
        assert 0.95 * bound < np.abs(weight).max() <= bound
        assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert not arrays[f"{name}.bias"].any()
    q, k, _ = map(as_numpy, model.project(side.tensor(draw(4, 64, 256))))
    scores = q @ k.swapaxes(-1, -2) / 8
    assert scores.var() == pytest.approx(1 / 9, rel=0.1)


# The framework's function


@on_both_sides
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("mask", ["no mask", "padding", "blind rows"])
def test_outputs_and_gradients_do_not_depend_on_who_computes_them(
    side, mask, is_causal
):
    """The framework's function, or our own with all weights; blind rows get zeros."""
    model, _, (x,) = draw_heads(side)
    call = (side.tensor(x), MASKS[mask])
    found = []
    for asked in (False, True):
        options = {"is_causal": is_causal, "return_weights": asked}
        grads = side.grads(model, lambda pair: (pair[0] ** 2).mean(), *call, **options)
        found.append({**grads, "out": as_numpy(model(*call, **options)[0])})
    for name, value in found[0].items():
        assert_close(value, found[1][name], what=name)


@on_both_sides
@pytest.mark.parametrize(("dtype", "atol"), [("bfloat16", 8e-2), ("float16", 8e-3)])
def test_fused_attention_keeps_the_dtype(side, dtype, atol):
    """Close to float32, zeros where a query sees nothing, finite when it is large."""
    arrays = draw_qkv(B, H, e=D)
    mask = side.mask(draw_mask(Q, K, empty_rows=True))
    attend = side.models.fused_attention
    attend = jax.jit(attend) if side is jax_side else attend  # as XLA compiles it
    out = attend(*[side.tensor(x, dtype) for x in arrays], mask)
    assert str(out.dtype).endswith(dtype)
    expected, _ = side.models.attention(*map(side.tensor, arrays), mask)
    assert_close(out, expected, atol)
    assert (as_numpy(out)[:, :, 0] == 0).all()
    large = attend(*[side.tensor(np.full((1, 1, 2, 128), 30.0), dtype)] * 3)
    np.testing.assert_allclose(as_numpy(large), 30, rtol=0.01)


@pytest.mark.parametrize("mask", [None, np.tri(K, dtype=bool)], ids=["all", "causal"])
def test_jax_computes_in_float64(mask):
    """To 1e-12, as PyTorch does, where JAX is told to."""
    q, k, v = (x.astype(np.float64) for x in draw_qkv(B, H, q=K, e=D))
    with jax.enable_x64(True):
        given, flag = map(jax.numpy.asarray, (q, k, v)), mask is not None
        found = as_numpy(jax_side.models.fused_attention(*given, is_causal=flag))
    assert_close(found, reference.attention(q, k, v, mask)[0], atol=1e-12)


@on_both_sides
def test_the_causal_mask_alone_is_a_flag(side, monkeypatch):
    """With another mask both become one; whoever wants the maps computes them."""
    room, name, calls = nn.functional, "scaled_dot_product_attention", []
    if side is jax_side:
        room, name = jax.nn, "dot_product_attention"

    def watched(q, k, v, mask=None, *, is_causal=False):
        calls.append((None if mask is None else as_numpy(mask), is_causal))
        return q

    monkeypatch.setattr(room, name, watched)
    model, _, (x,) = draw_heads(side)
    model(side.tensor(x), is_causal=True)
    model(side.tensor(x), side.mask(PADDING[:, None, None]), is_causal=True)
    model(side.tensor(x), is_causal=True, return_weights=True)
    assert [flag for _, flag in calls] == [True, False] and calls[0][0] is None
    expected = PADDING[:, None, None] & np.tri(S, dtype=bool)
    np.testing.assert_array_equal(
        np.broadcast_to(calls[1][0], expected.shape), expected
    )


def test_a_training_step_keeps_no_weights():
    """PyTorch's forward pass keeps nothing of the shape of a map, unless asked."""
    model, _, (x,) = draw_heads(torch_side)
    for asked in (False, True):
        shapes = []

        def keep(array, shapes=shapes):
            shapes.append(tuple(array.shape))
            return array

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda array: array):
            model(torch_side.tensor(x), return_weights=asked)
        assert any(shape[-2:] == (S, S) for shape in shapes) == asked


def test_jax_takes_cudnn_where_it_can(monkeypatch):
    """In half precision, from Ampere on, for even lengths and d a multiple of 8."""
    chosen = []

    def watched(q, k, v, mask, is_causal, implementation):
        chosen.append(implementation)
        return q

    monkeypatch.setattr(jax.nn, "dot_product_attention", watched)
    cases = [
        ("bfloat16", 64, 8, "9.0", "cudnn"), ("float16", 128, 8, "10.0", "cudnn"),
        ("float32", 64, 8, "9.0", "xla"), ("bfloat16", 64, 8, "7.5", "xla"),
        ("bfloat16", 12, 8, "9.0", "xla"), ("bfloat16", 256, 8, "9.0", "xla"),
        ("bfloat16", 64, 7, "9.0", "xla"), ("bfloat16", 64, 8, "gfx942", "xla"),
    ]  # fmt: skip
    for dtype, d, length, capability, _ in cases:
        gpu = SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr(jax, "local_devices", lambda gpu=gpu: [gpu])
        x = jax_side.tensor(np.zeros((1, 1, length, d)), dtype)
        jax_side.models.fused(x, x, x)
    assert chosen == [case[-1] for case in cases]
