"""The Transformer of today: equal to published models, cached, padded, and strict.

Three witnesses: `transformers`, live; logits that it left beside the tiny checkpoints;
and what must hold of any such model. The last section plants mistakes in the source.
"""

import json
import shutil
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
from flax import nnx

from helpers.data import published
from helpers.data.checkpoints import TINY
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import to_arrays
from hugging_face import (
    CONFIGS,
    LEFT,
    N_TOKENS,
    SHIFTED,
    TOKENS,
    B,
    S,
    by_ours,
    by_theirs,
    callable_of,
    difference,
    make,
    tokens_of,
)
from sides import draw, draw_mask, fill, jax_side, on_both_sides, torch_side

CASES = ["forward", "cache", "left padding", "right padding", "tokens"]
KINDS = pytest.mark.parametrize("kind", CONFIGS)
SIZES = {"n_blocks": 1, "n_heads": 6, "d": 10, "f": 37, "max_length": 43}
M = 31
VARIANTS = {
    "gpt2": {"norm": "layer", "ffn": "mlp", "positions": "learned", "bias": True},
    "llama": {"n_kv_heads": 2, "tied": False},
    "qwen3": {"n_kv_heads": 3, "d": 14, "qk_norm": True, "base": 5e4},
    "mixtral": {"n_kv_heads": 1, "ffn": "experts", "n_experts": 5, "tied": False},
}
ON_VARIANTS = pytest.mark.parametrize("variant", VARIANTS)


@cache
def built(side, variant):
    """A model, each of its parameters with a value of its own; and as a function."""
    model = side.build("ModernLM", N_TOKENS, M, **SIZES | VARIANTS[variant])
    fill(model)
    return model, callable_of(side, model)


@cache
def alone(variant):
    """Logits of each row by itself, by PyTorch without cache and padding."""
    _, call = built(torch_side, variant)
    rows = [row[real] for row, real in zip(SHIFTED, LEFT, strict=True)]
    return [as_numpy(call(tokens_of(torch_side, [row])))[0] for row in rows]


def starts(side):
    """The columns in which rows begin."""
    return tokens_of(side, LEFT.argmax(axis=1).astype(np.int32))


def assert_rows_alone(logits, variant):
    """Padded logits ``b s c`` are those of each row by itself, and all are finite."""
    assert np.isfinite(logits).all()
    for row, expected in enumerate(alone(variant)):
        np.testing.assert_allclose(logits[row, LEFT[row]], expected, atol=2e-5)


# Published models


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Cases of a model of `transformers` and of ours with its weights."""
    pytest.importorskip("transformers")

    @cache
    def theirs(kind):
        folder = tmp_path_factory.mktemp(kind)
        return folder, by_theirs(make(kind, folder))

    @cache
    def both(side, kind):
        folder, expected = theirs(kind)
        model, tokenizer = side.models.load_pretrained(folder)
        assert tokenizer.decode(tokenizer.encode("Who?").ids) == "Who?"
        return by_ours(side, model), expected

    return both


@on_both_sides
@KINDS
@pytest.mark.parametrize("case", CASES)
def test_models_of_transformers_are_ours(side, kind, case, live):
    """Logits to 1e-5 of the largest, and the same twenty tokens."""
    found, expected = (cases[case] for cases in live(side, kind))
    assert found.shape == expected.shape
    if case == "tokens":
        np.testing.assert_array_equal(found, expected)
        assert len(np.unique(expected)) > 2
    else:
        assert difference(found, expected) < 1e-5


@on_both_sides
@KINDS
def test_files_in_bfloat16_and_in_shards_are_read(side, kind, tmp_path):
    """Computed in float32; tied where the models above are not, and the reverse."""
    pytest.importorskip("transformers")
    tied = not CONFIGS[kind].get("tie_word_embeddings", True)  # GPT-2's usually are
    options = {"dtype": "bfloat16", "shard": "20KB", "tie_word_embeddings": tied}
    theirs = make(kind, tmp_path, **options)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.no_grad():
        expected = theirs(tokens_of(torch_side, TOKENS)).logits.numpy()
    model, _ = side.models.load_pretrained(tmp_path)
    assert ("output.weight" in to_arrays(model)) != tied
    found = as_numpy(callable_of(side, model)(tokens_of(side, TOKENS)))
    assert found.dtype == np.float32
    assert difference(found, expected) < 1e-5


@on_both_sides
def test_weights_are_kept_in_the_dtype_that_is_asked_for(side):
    """In bfloat16: logits, cache and texts; near to those in float32."""
    dtype = {"torch": torch, "jax": jax.numpy}[side.name].bfloat16
    model, _ = side.models.load_pretrained(TINY / "qwen3", dtype)
    tokens, expected = left_beside("qwen3")
    logits = callable_of(side, model)(tokens_of(side, tokens))
    kept = side.models.empty_cache(model, tokens_of(side, np.zeros(2, np.int32)), 5)
    assert logits.dtype == kept["blocks"][0][0].dtype == dtype
    assert 1e-4 < difference(as_numpy(logits), expected) < 0.05
    assert side.models.generate_greedily(model, [[5, 6, 7]], 4).shape == (1, 4)


# What holds of every such model


@on_both_sides
@ON_VARIANTS
def test_padding_on_the_left_changes_nothing(side, variant):
    """Each row has the logits that it has alone, in both frameworks."""
    _, call = built(side, variant)
    assert_rows_alone(as_numpy(call(tokens_of(side, SHIFTED), starts(side))), variant)


@on_both_sides
@ON_VARIANTS
def test_logits_with_a_cache_are_those_without(side, variant):
    """In two pieces, with padding on the left and room left."""
    model, call = built(side, variant)
    tokens = np.pad(SHIFTED, ((0, 0), (1, 0)))  # a column more: 6 + 6
    kept, found = side.models.empty_cache(model, starts(side) + 1, S + 4), []
    for part in np.split(tokens, 2, axis=1):
        logits, kept = call(tokens_of(side, part), None, kept)
        found.append(as_numpy(logits))
    assert_rows_alone(np.concatenate(found, axis=1)[:, 1:], variant)
    assert int(kept["start"]) == S + 1


@on_both_sides
@ON_VARIANTS
def test_what_comes_later_changes_nothing_before(side, variant):
    """The model is causal."""
    _, call = built(side, variant)
    other = np.where(np.arange(S) < 7, TOKENS, (TOKENS + 1) % N_TOKENS)
    one, two = (as_numpy(call(tokens_of(side, x))) for x in (TOKENS, other))
    np.testing.assert_allclose(one[:, :7], two[:, :7], atol=1e-6)
    assert np.abs(one[:, 7:] - two[:, 7:]).min(axis=-1).max() > 1e-4


@on_both_sides
@pytest.mark.parametrize("variant", ["gpt2", "mixtral"])
def test_gradients_are_finite_under_padding(side, variant):
    """Of all logits, those at the padding too; and none is zero everywhere."""
    model, _ = built(side, variant)
    tokens, first = tokens_of(side, SHIFTED), starts(side)
    if side is jax_side:
        graph, state = nnx.split(model)

        def loss(state):
            return (nnx.merge(graph, state)(tokens, first) ** 2).sum()

        grads = [as_numpy(x) for x in jax.tree.leaves(jax.jit(jax.grad(loss))(state))]
    else:
        loss = (model(tokens, first) ** 2).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        grads = [as_numpy(x) for x in grads]
    assert all(np.isfinite(x).all() and np.abs(x).max() > 0 for x in grads)


@on_both_sides
def test_rotary_positions_count_from_each_other(side):
    """Dot products depend on the distance, lengths stay, pairs are half of d apart."""
    q, k = draw(1, 5, 7, 10), draw(1, 5, 7, 10, seed=1)

    def turned(x, start):
        places = tokens_of(side, np.arange(start, start + 7, dtype=np.int32)[None])
        return as_numpy(side.models.rotary_halves(side.tensor(x), places, 500.0))

    near, far = (turned(q, n) @ turned(k, n).swapaxes(2, 3) for n in (0, 1000))
    np.testing.assert_allclose(near, far, atol=2e-3)
    moved = turned(q, 3) @ turned(k, 0).swapaxes(2, 3)
    assert np.abs(moved - near).max() > 1
    sizes = np.linalg.norm(turned(q, 1000), axis=-1), np.linalg.norm(q, axis=-1)
    np.testing.assert_allclose(*sizes, rtol=1e-5)
    pairs = q[..., :5] + 1j * q[..., 5:]
    angles = np.arange(3, 10)[:, None] * 500.0 ** (-np.arange(5) / 5)  # s d/2
    expected = pairs * np.exp(1j * angles)
    parts = np.concatenate([expected.real, expected.imag], axis=-1)
    np.testing.assert_allclose(turned(q, 3), parts, atol=1e-5)


@on_both_sides
@pytest.mark.parametrize("mask", [None, draw_mask(1, 1, 7, 7)], ids=["causal", "mask"])
def test_grouped_heads_are_heads_with_repeated_keys(side, mask):
    """Neighbouring query heads share keys and values."""
    q, k, v = draw(3, 6, 7, 10), draw(3, 2, 7, 10, seed=1), draw(3, 2, 7, 10, seed=2)
    found = side.models.fused(*map(side.tensor, (q, k, v)), side.mask(mask))
    repeated = (np.repeat(x, 3, axis=1) for x in (k, v))
    seen = side.mask(np.tri(7, dtype=bool) if mask is None else mask)
    arrays = [side.tensor(x) for x in (q, *repeated)]
    expected, _ = side.models.attention(*arrays, seen)
    np.testing.assert_allclose(as_numpy(found), as_numpy(expected), atol=1e-5)


def mixture(x, params, n_active):
    """Mixture of experts in NumPy float64: ``n m -> n m``, token by token."""
    logits, out = x @ params["router.weight"], np.zeros_like(x)
    for row, token in enumerate(x):
        chosen = np.argsort(-logits[row])[:n_active]
        weights = np.exp(logits[row, chosen])
        for e, weight in zip(chosen, weights / weights.sum(), strict=True):
            gate, up, down = (
                params[f"experts.{e}.{part}.weight"] for part in ("gate", "up", "down")
            )
            hidden = token @ gate
            hidden = hidden / (1 + np.exp(-hidden)) * (token @ up)
            out[row] += weight * (hidden @ down)
    return out


@on_both_sides
@pytest.mark.parametrize("n_active", [1, 2, 5])
def test_a_mixture_is_the_weighted_sum_of_the_chosen_experts(side, n_active):
    """One, two or all of five; also of a token alone."""
    layer = side.build("MixtureOfExperts", 13, 11, 5, n_active)
    params, x = fill(layer), draw(3, 7, 13)
    expected = mixture(x.reshape(-1, 13), params, n_active).reshape(x.shape)
    np.testing.assert_allclose(as_numpy(layer(side.tensor(x))), expected, atol=1e-5)
    weights, chosen, p = (as_numpy(part) for part in layer.route(side.tensor(x)))
    assert weights.shape == chosen.shape == (3, 7, n_active)
    assert p.shape == (3, 7, 5)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-5)


@on_both_sides
def test_bfloat16_knows_late_positions(side):
    """At position 3,000, logits are as near to those of float32 as at position 0."""
    model = side.build("ModernLM", N_TOKENS, M, **SIZES | VARIANTS["llama"])
    fill(model)
    tokens, gaps = tokens_of(side, TOKENS), []
    places = [tokens_of(side, np.full(B, -n, np.int32)) for n in (0, 3000)]
    call = callable_of(side, model)
    exact = [as_numpy(call(tokens, first)) for first in places]
    np.testing.assert_allclose(*exact, atol=5e-3)
    half = side.in_dtype(model, "bfloat16")
    with side.computing_in(half, "bfloat16") if side is jax_side else nullcontext():
        call = callable_of(side, half)
        for first, expected in zip(places, exact, strict=True):
            logits = call(tokens, first)
            assert str(logits.dtype).removeprefix("torch.") == "bfloat16"
            gaps.append(difference(as_numpy(logits), expected))
    assert max(gaps) < 0.05


@on_both_sides
def test_new_weights_are_drawn_as_documented(side):
    """Within ±1/√n_in, biases zero; embeddings with the given deviation."""
    layer = to_arrays(side.build("projection", 97, 89, True))
    assert 0.95 * 97**-0.5 < np.abs(layer["weight"]).max() <= 97**-0.5
    assert abs(layer["weight"].std() * 3**0.5 - 97**-0.5) < 0.03 * 97**-0.5
    assert not layer["bias"].any()
    (array,) = to_arrays(side.build("embedding_table", 97, 89, 0.2)).values()
    assert abs(array.std() - 0.2) < 0.01
    arrays = to_arrays(built(side, "mixtral")[0])
    assert arrays.keys() == to_arrays(built(torch_side, "mixtral")[0]).keys()


@on_both_sides
def test_the_cache_is_as_small_as_promised(side):
    """``2 · n_blocks · g · d`` numbers for each row and column."""
    options = SIZES | VARIANTS["llama"] | {"n_blocks": 3}
    model = side.build("ModernLM", N_TOKENS, M, **options)
    kept = side.models.empty_cache(model, starts(side), 17)
    assert {tuple(x.shape) for pair in kept["blocks"] for x in pair} == {(B, 2, 17, 10)}
    assert len(kept["blocks"]) == 3


# Bad input


def spoiled(kind, folder, config=None, tensors=None, cut=0):
    """A copy of a tiny checkpoint; settings that are None now are left out."""
    shutil.copytree(TINY / kind, folder, dirs_exist_ok=True)
    place, file = folder / "config.json", folder / "model.safetensors"
    found = json.loads(place.read_text("utf-8")) | (config or {})
    found = {name: value for name, value in found.items() if value is not None}
    place.write_text(json.dumps(found), encoding="utf-8")
    if tensors:
        arrays = safetensors.numpy.load_file(file)
        tensors(arrays)
        safetensors.numpy.save_file(arrays, file)
    if cut:
        file.write_bytes(file.read_bytes()[:-cut])
    return folder


def shorten(arrays):
    """Take tokens from the embedding, and the copy that is the output."""
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        arrays[name] = arrays[name][:89].copy()


def widen(arrays):
    name = "model.layers.1.mlp.up_proj.weight"
    arrays[name] = np.concatenate([arrays[name], arrays[name][:1]])


BAD = {
    "heads": ("qwen3", {"config": {"num_key_value_heads": 3}}, ["4 ", " 3 "]),
    "kind": ("qwen3", {"config": {"model_type": "bert"}}, ["qwen3", "'bert'"]),
    "missing": (
        "qwen3", {"tensors": lambda x: x.pop("model.layers.1.mlp.up_proj.weight")},
        ["blocks.1.ffn.up.weight", "40", "24"],
    ),
    "extra": (
        "gpt2", {"tensors": lambda x: x.update({"h.2.ln_1.bias": np.zeros(24)})},
        ["blocks.2.norm1.bias", "24"],
    ),
    "shape": ("qwen3", {"tensors": widen}, ["blocks.1.ffn.up.weight", "40", "41"]),
    "vocabulary": (
        "qwen3", {"config": {"vocab_size": 89}, "tensors": shorten}, ["89", "97"]
    ),
    "truncated": ("qwen3", {"cut": 100}, ["model.safetensors is damaged"]),
    "rotary": (
        "llama", {"config": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}},
        ["'default'", "'llama3'"],
    ),
    "rotary of old": (
        "llama", {"config": {"rope_scaling": {"type": "linear", "factor": 2.0}}},
        ["'default'", "'linear'"],
    ),
    "activation": ("gpt2", {"config": {"activation_function": "relu"}}, ["'gelu_new'"]),
    "setting": ("llama", {"config": {"hidden_size": None}}, ["hidden_size", "config"]),
    "window": ("mixtral", {"config": {"sliding_window": 7}}, ["None", "7"]),
}  # fmt: skip


@on_both_sides
@pytest.mark.parametrize("name", BAD)
def test_a_checkpoint_that_does_not_fit_is_refused(side, name, tmp_path, monkeypatch):
    """One sentence with what was expected and what came, and nothing is loaded."""
    kind, options, words = BAD[name]
    folder = spoiled(kind, tmp_path / "spoiled", **options)

    def refuse(*_):
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", refuse)
    with pytest.raises(ValueError) as caught:
        side.models.load_pretrained(folder)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@on_both_sides
def test_sizes_that_do_not_fit_are_refused(side):
    """With both values, before any work."""
    for expected, sizes in {
        "31 does not split into 6": {"d": None},
        "6 does not split into 4": {"n_kv_heads": 4},
        "11 does not split into 2": {"d": 11},
        "5 of 4 experts cannot be active": {"ffn": "experts", "n_active": 5},
    }.items():
        with pytest.raises(ValueError, match=expected):
            side.build("ModernLM", N_TOKENS, M, **SIZES | sizes)
    model, _ = built(side, "llama")
    before = to_arrays(model)
    with pytest.raises(ValueError, match=r"40 tokens .* 44 .* max_length = 43"):
        side.models.generate_greedily(model, [[1] * 40], 4)
    with pytest.raises(ValueError, match="44 positions, but max_length = 43"):
        model(tokens_of(side, np.zeros((1, 44), np.int32)))
    with pytest.raises(ValueError, match="from 0 to 100, got 101"):
        side.models.generate_greedily(model, [[101]], 4)
    for name, array in to_arrays(model).items():
        np.testing.assert_array_equal(array, before[name])


# Planted mistakes: each is found by one of a few fast checks

EACH = "rotary_halves(part, positions, self.base) for part in"
NORMED = "        q, k = (self.q_norm(q), self.k_norm(k)) if self.q_norm else (q, k)\n"
ROTATED = f"        if self.base:\n            q, k = ({EACH} (q, k))\n"
MISTAKES = {  # what: old and new in both sources, or in PyTorch's and in JAX's
    "neighbouring features are pairs": (
        "x.float().chunk(2, dim=-1)", "(x.float()[..., ::2], x.float()[..., 1::2])",
        "jnp.split(x.astype(jnp.float32), 2, axis=-1)", "(x[..., ::2], x[..., 1::2])",
    ),
    "rotation the other way": ("base**-steps", "-(base**-steps)"),
    "base inverted": ("base**-steps", "base**steps"),
    "exponent with d, not d/2": ("/ half", "/ (2 * half)"),
    "sine and cosine swapped": ("sin, cos =", "cos, sin ="),
    "base ignored": ("positions, self.base)", "positions)"),
    "values rotated too": (ROTATED, ROTATED.replace("q, k", "q, k, v")),
    "only queries rotated": (ROTATED, ROTATED.replace("q, k = (", "q, _ = (")),
    "no rotation": (ROTATED, ""),
    "angles in the dtype of x": (
        "[:, None, :, None] * base**-steps",
        "[:, None, :, None].to(x.dtype) * base**-steps",
        "[:, None, :, None] * base**-steps",
        "[:, None, :, None].astype(x.dtype) * base**-steps",
    ),
    "q-k norm after the rotation": (NORMED + ROTATED, ROTATED + NORMED),
    "one norm for queries and keys": ("self.k_norm(k)", "self.q_norm(k)"),
    "no q-k norm": (NORMED, ""),
    "groups tiled": (
        "x.repeat_interleave(n, dim=1)", "x.repeat(1, n, 1, 1)",
        "framework_attention(q, k, v,",
        "framework_attention(q, *(jnp.tile(x, (1, q.shape[1] // k.shape[1], 1, 1))"
        " for x in (k, v)),",
    ),
    "heads cut the other way": (
        "x.unflatten(-1, (-1, d)).transpose(1, 2)",
        "x.unflatten(-1, (d, -1)).permute(0, 3, 1, 2)",
        "reshape(*x.shape[:2], -1, d).swapaxes(1, 2)",
        "reshape(*x.shape[:2], d, -1).transpose(0, 3, 1, 2)",
    ),
    "scaled by m, not d": ("fused(q, k, v, mask)))", "fused(q / 2, k, v, mask)))"),
    "not causal": (
        "is_causal=True", "is_causal=False", "is_causal=mask is None", "is_causal=False"
    ),
    "the next token is seen": ("<= new[:, None])", "<= new[:, None] + 1)"),
    "padding is seen": ("(seen >= first[..., None])", "(seen >= 0 * first[..., None])"),
    "padding counts as positions": ("(new - first)", "(new + 0 * first)",
                                    "new - first", "new + 0 * first"),
    "offset forgotten": (
        "start + count(n)", "count(n)", "start + jnp.arange(n)", "jnp.arange(n)"
    ),
    "start stays": (
        '"start": start + tokens.shape[1]', '"start": start + 0 * tokens.shape[1]'
    ),
    "cache written at the beginning": (
        "kept[:, :, start:stop] = new", "kept[:, :, : stop - start] = new",
        "start_index=start", "start_index=0",
    ),
    "keys kept as values": ("zip(cache, (k, v)", "zip(cache, (k, k)"),
    "every row begins in column 0": ('"first": first', '"first": 0 * first'),
    "gate and up swapped": (
        "silu(self.gate(x)) * self.up(x)", "silu(self.up(x)) * self.gate(x)"
    ),
    "gate without an activation": (
        "silu(self.gate(x))", "self.gate(x)",
        "jax.nn.silu(self.gate(x))", "self.gate(x)",
    ),
    "exact GELU": (
        'approximate="tanh"', 'approximate="none"', "approximate=True",
        "approximate=False",
    ),
    "router without renormalisation": (
        "return weights / weights.sum(dim=-1, keepdim=True),", "return weights,",
        "return weights / weights.sum(axis=-1, keepdims=True),", "return weights,",
    ),
    "only the best expert": (
        "p.topk(self.n_active,", "p.topk(1,", "top_k(p, self.n_active)", "top_k(p, 1)"
    ),
    "experts in the wrong order": (
        "enumerate(self.experts)", "enumerate([*self.experts][::-1])"
    ),
    "norm after the sum": (
        "x + self.ffn(self.norm2(x))", "self.norm2(x + self.ffn(x))"
    ),
    "attention without a norm": ("self.attention(self.norm1(x),", "self.attention(x,"),
    "no residual": ("x = x + values", "x = values"),
    "no last norm": ("        x = self.norm(x)\n", ""),
    "ε ignored": ("(m, eps=eps)", "(m)", "epsilon=eps, ", ""),
    "ε of the q-k norm ignored": (
        "nn.RMSNorm(d, eps=eps)", "nn.RMSNorm(d)", "make_norm(d, eps=eps,",
        "make_norm(d,",
    ),
    "tied when it should not be": (
        "self.output(x) if self.output else linear", "linear",
        "self.output(x) if self.output else self", "self",
    ),
    "embedding scaled by √m": ("# b n m\n", "* 24**0.5\n"),
    "no learned positions": ("x + self.positions(positions) if", "x if"),
    "prompts padded on the right": (
        "[0] * (longest - len(row)) + row", "row + [0] * (longest - len(row))"
    ),
    "text goes on after the first token": (
        "logits[:, -1:].argmax", "logits[:, :1].argmax",
        "start = logits[:, -1]", "start = logits[:, 0]",
    ),
}  # fmt: skip
NAMED_WRONG = {  # in the names of published weights
    "names of gate and up swapped": ('"w1.": "gate.", "w3.": "up."',
                                     '"w1.": "up.", "w3.": "gate."'),
    "square matrices not transposed": (
        "x.T if linear and", "x.T if linear and len(x) != len(x.T) and"
    ),
    "queries and keys swapped": ('enumerate("qkv")', 'enumerate("kqv")'),
    "base of the configuration ignored": (
        'rope.get("rope_theta") or config.get("rope_theta") or', ""
    ),
    "ε of the configuration ignored": ('config["rms_norm_eps"]', "1e-6"),
    "old place of the base ignored": ('or config.get("rope_theta") or', "or"),
    "norms swapped": (
        '"input_layernorm": "norm1", "post_attention_layernorm": "norm2"',
        '"input_layernorm": "norm2", "post_attention_layernorm": "norm1"',
    ),
}  # fmt: skip


ALL = [*MISTAKES, *NAMED_WRONG]


def executed(path, name, old="", new=""):
    """A module from the source of another, in which ``old`` is replaced."""
    source = Path(path).read_text("utf-8")
    assert old in source, f"{old!r} is not in {path}"
    module = ModuleType(name)
    exec(compile(source.replace(old, new), path, "exec"), module.__dict__)
    return module


def with_mistake(side, what=None):
    """The names of ``helpers.{side}.today``, with a mistake in the source."""
    path, name = f"{Path(side.models.__file__).parent}/today.py", f"today_{side.name}"
    if what in NAMED_WRONG:
        theirs = executed(published.__file__, "published", *NAMED_WRONG[what])
        module = executed(path, name)
        module.published = theirs
        return module
    change = MISTAKES[what] if what else ("", "")
    return executed(path, name, *(change[-2:] if side is jax_side else change[:2]))


@cache
def left_beside(kind):
    """Tokens and logits of `transformers` that are stored with a tiny checkpoint."""
    found = safetensors.numpy.load_file(TINY / kind / "expected.safetensors")
    return found["tokens"].astype(np.int32), found["logits"]


def check_logits(side, models, kind):
    """Logits of a tiny checkpoint."""
    tokens, expected = left_beside(kind)
    found = as_numpy(models[kind](tokens_of(side, tokens)))
    assert difference(found, expected) < 1e-5


def moved(kind):
    """The tokens, the first row three columns later, and where rows begin."""
    tokens, _ = left_beside(kind)
    return np.stack([np.roll(tokens[0], 3), tokens[1]]), np.array([3, 0], np.int32)


def check_padded(kind, logits):
    """Logits of moved tokens are those of rows alone."""
    (_, expected), n = left_beside(kind), logits.shape[1]
    assert difference(logits[0, 3:], expected[0, : n - 3]) < 1e-5
    assert difference(logits[1], expected[1, :n]) < 1e-5


def check_padding(side, models, kind):
    """Padding on the left changes no logits."""
    given = (tokens_of(side, x) for x in moved(kind))
    check_padded(kind, as_numpy(models[kind](*given)))


def check_cache(side, models, kind):
    """Nor does a cache, one token at a time."""
    tokens, first = moved(kind)
    kept = models.module.empty_cache(models[kind], tokens_of(side, first), 13)
    found = []
    for column in np.split(tokens[:, :7], 7, axis=1):
        logits, kept = models[kind](tokens_of(side, column), cache=kept)
        found.append(as_numpy(logits))
    check_padded(kind, np.concatenate(found, axis=1))


@cache
def text_after(kind, prompt):
    """Three greedy tokens of a tiny checkpoint, by PyTorch without a cache."""
    model, _ = torch_side.models.load_pretrained(TINY / kind)
    text = list(prompt)
    for _ in range(3):
        logits = model(tokens_of(torch_side, [text]))
        text.append(int(logits[0, -1].argmax()))
    return text[len(prompt) :]


def check_texts(side, models, kind):
    """Greedy texts of prompts of different lengths are those without a cache."""
    prompts = (5, 6, 7, 8), (9, 10)
    found = as_numpy(models.module.generate_greedily(models[kind], prompts, 3))
    assert found.tolist() == [text_after(kind, prompt) for prompt in prompts]


def check_late(side, models, _):
    """In bfloat16, position 3,001 is not 3,008."""
    x, place = draw(1, 1, 1, 10), tokens_of(side, np.array([[3001]], np.int32))
    half, whole = (
        as_numpy(models.module.rotary_halves(side.tensor(x, dtype), place))
        for dtype in ("bfloat16", "float32")
    )
    np.testing.assert_allclose(half, whole, atol=0.03)


CHECKS = {f"logits, {kind}": (check_logits, kind) for kind in CONFIGS} | {
    "padding, gpt2": (check_padding, "gpt2"),
    "padding, llama": (check_padding, "llama"),
    "cache, llama": (check_cache, "llama"),
    "late position": (check_late, None),
    "texts, llama": (check_texts, "llama"),
}


class Loaded(dict):
    """Tiny checkpoints, each loaded when first asked for."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def __missing__(self, kind):
        self[kind], _ = self.module.load_pretrained(TINY / kind)
        return self[kind]


def found_by(side, what=None):
    """The first check that fails, or None; a mistake may also be refused."""
    models = Loaded(with_mistake(side, what))
    with torch.no_grad():
        for name, (check, kind) in CHECKS.items():
            try:
                check(side, models, kind)
            except (AssertionError, ValueError):
                return name
    return None


@on_both_sides
def test_without_a_mistake_all_checks_pass(side):
    assert found_by(side) is None


@on_both_sides
@pytest.mark.parametrize("what", ALL)
def test_a_planted_mistake_is_found(side, what):
    """Each in the source of the helper, or in the names of published weights."""
    assert found_by(side, what), f"nothing finds: {what}"
