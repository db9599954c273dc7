"""Without the weights, attention is the framework's, and says the same."""

from importlib import import_module
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from helpers.engine.shapes import as_numpy
from helpers.torch.memory import kept_arrays
from sides import draw, draw_mask, fill, jax_side, on_both_sides, torch_side

B, H, D, Q, K, F, L, T = 2, 3, 5, 7, 11, 13, 2, 17
M = H * D
PADDING = np.arange(Q) < np.array([[7], [4]])  # b k
MASKS = {
    "no mask": None,
    "padding": PADDING[:, None, None],
    "per head": draw_mask(B, H, Q, Q),
    "blind rows": draw_mask(Q, Q, empty_rows=True),
}
DTYPES = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
SIZES = {"n_blocks": L, "n_heads": H, "f": F}
EVERY_MODEL = {  # kind, sizes, options, shapes of the inputs: floats, or ("of", tokens)
    "Encoder": ((L, M, H, F), {}, [(B, Q, M)]),
    "Predictor": ((4, M, 3), SIZES, [(B, Q, 4)]),
    "LanguageModel": ((T, M), SIZES | {"max_length": 19}, ["b q"]),
    "Translator": ((T, T, M), SIZES | {"max_length": 19}, ["b k", "b q"]),
    "VisionTransformer": ((6, 3, M, 4), SIZES | {"patch": 2}, [(B, 6, 6, 3)]),
}


def draw_given(side, shapes):
    """Inputs of these shapes: normal numbers, or tokens ``b q``, ``b k``."""
    tokens = np.random.default_rng(3).integers(T, size=(B, K)).astype(np.int32)
    known = {"b k": tokens, "b q": tokens[:, :Q]}
    return [
        side.tensor(known[shape], "int32")
        if shape in known
        else side.tensor(draw(*shape))
        for shape in shapes
    ]


def spy_on(monkeypatch, side):
    """The arguments of every call of the framework's function from now on."""
    file = import_module(f"{side.models.__name__}.attention")
    calls, own = [], file.framework_attention

    def watched(q, k, v, mask=None, *, is_causal=False):
        calls.append((mask, is_causal))
        return own(q, k, v, mask, is_causal=is_causal)

    monkeypatch.setattr(file, "framework_attention", watched)
    return calls


@on_both_sides
@pytest.mark.parametrize("name", EVERY_MODEL)
def test_outputs_do_not_depend_on_who_computes_them(side, name):
    """The framework's function, or our own with all weights: equal outputs."""
    sizes, options, shapes = EVERY_MODEL[name]
    model = side.build(name, *sizes, **options)
    fill(model)
    given = draw_given(side, shapes)
    out, *maps = model(*given, return_maps=True)
    assert maps
    np.testing.assert_allclose(as_numpy(model(*given)), as_numpy(out), atol=1e-5)


@on_both_sides
@pytest.mark.parametrize("is_causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_do_not_depend_on_who_computes_them(side, mask, is_causal):
    """In every parameter and the input; a query that sees nothing gets zeros."""
    model = side.build("MultiHeadAttention", M, H)
    fill(model)
    call = side.tensor(draw(B, Q, M)), side.mask(MASKS[mask])
    found = [
        side.model_grads(
            model, lambda pair: (pair[0] ** 2).sum(), *call,
            is_causal=is_causal, return_weights=asked,
        )
        for asked in (False, True)
    ]  # fmt: skip
    (fused, in_x), (written, expected) = found
    for name, value in (fused | {"x": in_x}).items():
        right = (written | {"x": expected})[name]
        size = max(1, np.abs(right).max())
        np.testing.assert_allclose(value / size, right / size, atol=1e-5, err_msg=name)


@on_both_sides
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_every_dtype_gets_its_own_back(side, mask, dtype):
    """Finite, zeros where a query sees nothing, close to float64, also when large."""
    arrays = [draw(B, H, Q, D, seed=n) for n in range(3)]
    given = [side.tensor(x, dtype) for x in arrays]
    hidden = side.mask(MASKS[mask])
    fused = side.models.fused_attention
    fused = jax.jit(fused) if side is jax_side else fused  # as XLA compiles it
    out = fused(*given, hidden)
    expected, weights = side.models.attention(*map(side.tensor, arrays), hidden)
    assert out.dtype == given[0].dtype
    error = np.abs(as_numpy(out).astype(np.float64) - as_numpy(expected))
    assert error.max() < DTYPES[dtype] * 4
    blind = as_numpy(weights).sum(axis=-1) == 0  # b h q
    assert blind.any() == (mask == "blind rows")
    assert (as_numpy(out)[blind] == 0).all()
    large = [side.tensor(np.full((1, 1, 2, 128), 30.0), dtype)] * 3
    found = as_numpy(fused(*large)).astype(np.float64)
    np.testing.assert_allclose(found, 30, rtol=0.01)


@on_both_sides
def test_the_causal_mask_alone_is_a_flag(side, monkeypatch):
    """In a language model; with another mask both become one mask."""
    calls = spy_on(monkeypatch, side)
    model = side.build("LanguageModel", T, M, **SIZES, max_length=19)
    (tokens,) = draw_given(side, ["b q"])
    model(tokens)
    assert calls == [(None, True)] * L
    calls.clear()
    model(tokens, side.mask(PADDING[:, None, None]))
    assert [flag for _, flag in calls] == [False] * L
    seen = PADDING[:, None, None] & np.tri(Q, dtype=bool)
    blind = ~seen.any(axis=-1, keepdims=True)
    np.testing.assert_array_equal(as_numpy(calls[0][0]), seen | blind)
    calls.clear()
    model(tokens, return_maps=True)
    assert not calls, "whoever wants the maps gets them from attention written out"


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_a_training_step_keeps_no_weights(name):
    """PyTorch's forward pass keeps nothing of the shape of a map, unless asked."""
    sizes, options, shapes = EVERY_MODEL[name]
    model = torch_side.build(name, *sizes, **options)
    given = draw_given(torch_side, shapes)
    ends = {(n, n) for n in (Q, K, 10)} | {(Q, K)}  # 10: nine patches and a token

    def maps(**asked):
        kept = kept_arrays(lambda *x: model(*x, **asked), *given).values()
        return [x.shape for x in kept if x.ndim == 4 and tuple(x.shape[-2:]) in ends]

    assert not maps()
    assert maps(return_maps=True)


def operations(side, function, *given):
    """Operations of the matrix products of ``function(*given)``."""
    if side is torch_side:
        with FlopCounterMode(display=False) as counter:
            function(*given)
        return counter.get_total_flops()
    jaxpr = jax.make_jaxpr(function)(*given)
    return sum(products(jaxpr.jaxpr))


def products(jaxpr):
    """Operations of every product in a jaxpr, and in those inside it."""
    for step in jaxpr.eqns:
        if step.primitive.name == "dot_general":
            left = step.invars[0].aval.shape
            over = step.params["dimension_numbers"][0][0]
            depth = np.prod([left[axis] for axis in over])
            yield 2 * depth * np.prod(step.outvars[0].aval.shape)
        for value in step.params.values():
            if hasattr(value, "jaxpr"):
                yield from products(value.jaxpr)


@on_both_sides
def test_cross_attention_projects_only_what_it_needs(side):
    """Queries of the target, keys and values of the source, one product at the end."""
    layer = side.build("MultiHeadAttention", M, H)
    x, context = side.tensor(draw(B, Q, M)), side.tensor(draw(B, K, M, seed=1))

    def cross(x, context):
        return layer(x, context=context, return_weights=True)[0]

    pairs = 2 * 2 * B * Q * K * M
    needed = 2 * B * M * M * (Q + 2 * K + Q)
    assert operations(side, cross, x, context) == needed + pairs


@pytest.mark.parametrize(
    ("dtype", "d", "length", "capability", "kernel"),
    [
        ("bfloat16", 64, 8, "9.0", "cudnn"),
        ("float16", 128, 8, "10.0", "cudnn"),
        ("float32", 64, 8, "9.0", "xla"),  # half precision only
        ("bfloat16", 64, 8, "7.5", "xla"),  # since Ampere
        ("bfloat16", 12, 8, "9.0", "xla"),  # multiples of 8
        ("bfloat16", 256, 8, "9.0", "xla"),  # up to 128
        ("bfloat16", 64, 7, "9.0", "xla"),  # even lengths
    ],
)
def test_cudnn_computes_what_it_can(monkeypatch, dtype, d, length, capability, kernel):
    """Under the conditions of ``jax.nn.dot_product_attention``; elsewhere XLA does."""
    chosen = []

    def watched(q, k, v, mask, is_causal, implementation):
        chosen.append(implementation)
        return q

    gpu = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    monkeypatch.setattr(jax.nn, "dot_product_attention", watched)
    x = jax_side.tensor(np.zeros((1, 1, length, d)), dtype)
    jax_side.models.fused_attention(x, x, x)
    assert chosen == [kernel]


def test_cudnn_is_given_a_mask_of_every_pair(monkeypatch):
    """It repeats one for texts and heads, but not for queries or keys."""
    given = []

    def watched(q, k, v, mask, is_causal, implementation):
        given.append(mask.shape)
        return q

    monkeypatch.setattr(jax.nn, "dot_product_attention", watched)
    q, k = (jax_side.tensor(draw(B, H, n, D)) for n in (Q, K))
    for shape in ((B, 1, 1, K), (B, H, Q, 1), (1, K), (Q, K)):
        mask = jax_side.mask(np.ones(shape, bool))
        jax_side.models.fused_attention(q, k, k, mask)
        assert given.pop() == (*shape[:-2], Q, K)


@pytest.mark.parametrize("shape", [(B, 1, 1, 8), (1, H, 8, 8), (8, 8)])
def test_the_kernel_of_a_gpu_gives_the_same(shape):
    """Outputs and gradients in bfloat16, by cuDNN where JAX computes on a GPU."""
    arrays = [jax_side.tensor(draw(B, H, 8, 16, seed=n)) for n in range(4)]
    mask = jax_side.mask(draw_mask(*shape))

    def both(attend, dtype):
        *given, out = (x.astype(dtype) for x in arrays)
        found, back = jax.vjp(lambda q, k, v: attend(q, k, v, mask), *given)
        return found, *back(out)

    half = both(jax_side.models.fused_attention, "bfloat16")
    whole = both(lambda *given: jax_side.models.attention(*given)[0], "float32")
    for found, expected in zip(half, whole, strict=True):
        np.testing.assert_allclose(as_numpy(found), as_numpy(expected), atol=0.1)


@on_both_sides
def test_rotary_layers_rotate_the_parts_they_are_asked_for(side):
    """Queries and keys, each alone as among all three; never the values."""
    layer = side.build("RotaryAttention", 12, 3)
    x = side.tensor(draw(B, Q, 12))
    whole = dict(zip("qkv", layer.project(x, offset=5), strict=True))
    plain = dict(
        zip("qkv", side.build("MultiHeadAttention", 12, 3).project(x), strict=True)
    )
    for parts in ("q", "k", "kv"):
        found = layer.project(x, parts, offset=5)
        for name, part in zip(parts, found, strict=True):
            np.testing.assert_allclose(as_numpy(part), as_numpy(whole[name]), atol=1e-6)
    np.testing.assert_array_equal(as_numpy(whole["v"]), as_numpy(plain["v"]))
    assert np.abs(as_numpy(whole["q"]) - as_numpy(plain["q"])).max() > 0.1
