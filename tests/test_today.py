"""The Transformer of today: equal to published models, cached, padded, and strict.

Witnesses: `transformers`, live, and its logits; what must hold of any such model.
"""

from functools import cache
from importlib import import_module
from unittest.mock import MagicMock

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch

import hugging_face as hub
from helpers.data.checkpoints import TINY
from helpers.weights import as_numpy, to_arrays
from sides import (
    assert_close,
    definitions,
    draw,
    draw_mask,
    fill,
    jax_side,
    on_both_sides,
    torch_side,
)

KINDS = pytest.mark.parametrize("kind", hub.CONFIGS)
SIZES = {"n_blocks": 1, "n_heads": 6, "d": 10, "f": 37, "max_length": 43}
M = 31
VARIANTS = {
    "gpt2": {"norm": "layer", "ffn": "mlp", "positions": "learned", "bias": True},
    "llama": {"n_kv_heads": 2, "tied": False},
    "qwen3": {"n_kv_heads": 3, "d": 14, "qk_norm": True, "base": 5e4},
    "mixtral": {"n_kv_heads": 1, "ffn": "experts", "n_experts": 5, "tied": False},
}
ON_VARIANTS = pytest.mark.parametrize("variant", VARIANTS)
FIRST = hub.LEFT.argmax(axis=1).astype(np.int32)  # the columns in which rows begin


@cache
def built(side, variant):
    """A model, each of its parameters with a value of its own; and as a function."""
    model = side.build("ModernLM", hub.N_TOKENS, M, **SIZES | VARIANTS[variant])
    fill(model)
    return model, hub.callable_of(side, model)


@cache
def alone(variant):
    """Logits of each row by itself, by PyTorch without cache and padding."""
    _, call = built(torch_side, variant)
    rows = [row[real] for row, real in zip(hub.SHIFTED, hub.LEFT, strict=True)]
    return [as_numpy(call(torch_side.tensor(row[None])))[0] for row in rows]


def assert_rows_alone(logits, variant):
    """Padded logits ``b s c`` are those of each row by itself, and all are finite."""
    assert np.isfinite(logits).all()
    for row, expected in enumerate(alone(variant)):
        assert_close(logits[row, hub.LEFT[row]], expected, atol=2e-5)


@cache
def left_beside(kind):
    """Tokens and logits of `transformers` that are stored with a tiny checkpoint."""
    found = safetensors.numpy.load_file(TINY / kind / "expected.safetensors")
    return found["tokens"].astype(np.int32), found["logits"]


# Published models


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A folder with a model of `transformers`, and what it computes."""

    @cache
    def found(kind):
        folder = tmp_path_factory.mktemp(kind)
        return folder, hub.by_theirs(hub.make(kind, folder))

    return found


@on_both_sides
@KINDS
def test_models_of_transformers_are_ours(side, kind, theirs):
    """With cache, padding left and right: logits to 1e-5, the same twenty tokens."""
    folder, expected = theirs(kind)
    model, tokenizer = side.models.load_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode("Who?").ids) == "Who?"
    found = hub.by_ours(side, model)
    np.testing.assert_array_equal(found.pop("tokens"), expected["tokens"])
    assert len(np.unique(expected["tokens"])) > 2
    for case, logits in found.items():
        assert hub.difference(logits, expected[case]) < 1e-5, case


@on_both_sides
@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_files_in_bfloat16_and_in_shards_are_read(side, kind, tmp_path):
    """Computed in float32; tied where the models above are not, and the reverse."""
    tied = not hub.CONFIGS[kind].get("tie_word_embeddings", True)  # GPT-2's usually are
    options = {"dtype": "bfloat16", "shard": "20KB", "tie_word_embeddings": tied}
    model_of_theirs = hub.make(kind, tmp_path, **options)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.no_grad():
        expected = model_of_theirs(torch.tensor(hub.TOKENS).long()).logits.numpy()
    model, _ = side.models.load_pretrained(tmp_path)
    assert ("output.weight" in to_arrays(model)) != tied
    found = as_numpy(hub.callable_of(side, model)(side.tensor(hub.TOKENS)))
    assert found.dtype == np.float32
    assert hub.difference(found, expected) < 1e-5


@on_both_sides
@KINDS
def test_the_tiny_checkpoints_have_the_logits_that_were_stored(side, kind):
    model, _ = side.models.load_pretrained(TINY / kind)
    tokens, expected = left_beside(kind)
    found = as_numpy(hub.callable_of(side, model)(side.tensor(tokens)))
    assert hub.difference(found, expected) < 1e-5


@on_both_sides
def test_weights_are_kept_in_the_dtype_that_is_asked_for(side):
    """In bfloat16: logits, cache and texts; near to those in float32."""
    dtype = {"torch": torch, "jax": jax.numpy}[side.name].bfloat16
    model, _ = side.models.load_pretrained(TINY / "qwen3", dtype)
    tokens, expected = left_beside("qwen3")
    logits = hub.callable_of(side, model)(side.tensor(tokens))
    kept = side.models.new_cache(model, side.tensor(np.zeros(2, np.int32)), 5)
    assert logits.dtype == kept["blocks"][0][0].dtype == dtype
    assert 1e-4 < hub.difference(as_numpy(logits), expected) < 0.05
    assert side.models.generate(model, [[5, 6, 7]], 4, top_k=1).shape == (1, 4)


# What holds of every such model


@on_both_sides
@ON_VARIANTS
def test_logits_with_a_cache_are_those_without(side, variant):
    """Of rows alone: padded on the left, at once, and in two pieces with room left."""
    model, call = built(side, variant)
    at_once = call(side.tensor(hub.SHIFTED), side.tensor(FIRST))
    assert_rows_alone(as_numpy(at_once), variant)
    tokens = np.pad(hub.SHIFTED, ((0, 0), (1, 0)))  # a column more: 6 + 6
    kept = side.models.new_cache(model, side.tensor(FIRST + 1), hub.S + 4)
    found = []
    for part in np.split(tokens, 2, axis=1):
        logits, kept = call(side.tensor(part), None, kept)
        found.append(as_numpy(logits))
    assert_rows_alone(np.concatenate(found, axis=1)[:, 1:], variant)
    assert int(kept["start"]) == hub.S + 1


@ON_VARIANTS
def test_gradients_under_padding_are_those_of_the_twin(variant):
    """None is zero everywhere but those of keys' biases, which change no weight."""
    found = []
    for side in (torch_side, jax_side):
        model, _ = built(side, variant)
        tokens, first = side.tensor(hub.SHIFTED), side.tensor(FIRST)
        found.append(side.grads(model, lambda x: (x**2).mean(), tokens, first))
    assert found[0].keys() == found[1].keys()
    largest = max(np.abs(grad).max() for grad in found[0].values())
    for name, grad in found[0].items():
        assert np.abs(grad).max() > 1e-6 * largest or name.endswith("k.bias"), name
        assert_close(found[1][name] / largest, grad / largest, what=name)


@on_both_sides
def test_rotary_positions_count_from_each_other(side):
    """Dot products depend on the distance, lengths stay, pairs are half of d apart."""
    q, k = draw(1, 5, 7, 10), draw(1, 5, 7, 10, seed=1)

    def turned(x, start):
        places = side.tensor(np.arange(start, start + 7, dtype=np.int32)[None])
        sin, cos = side.models.rotation(places, 10, 500.0)
        return as_numpy(side.models.rotary_halves(side.tensor(x), sin, cos))

    near, far = (turned(q, n) @ turned(k, n).swapaxes(2, 3) for n in (0, 1000))
    assert_close(near, far, atol=2e-3)
    moved = turned(q, 3) @ turned(k, 0).swapaxes(2, 3)
    assert np.abs(moved - near).max() > 1
    pairs = q[..., :5] + 1j * q[..., 5:]
    angles = np.arange(3, 10)[:, None] * 500.0 ** (-np.arange(5) / 5)  # s d/2
    expected = pairs * np.exp(1j * angles)
    parts = np.concatenate([expected.real, expected.imag], axis=-1)
    assert_close(turned(q, 3), parts)


@on_both_sides
def test_angles_are_computed_once_and_keys_are_not_repeated(side, monkeypatch):
    """Of all blocks; and the function of the framework gets the fewer heads, masked."""
    today = import_module(f"helpers.{side.name}.today")
    room, name = torch.nn.functional, "scaled_dot_product_attention"
    if side is jax_side:
        room, name = jax.nn, "dot_product_attention"
    attend = MagicMock(wraps=getattr(room, name))
    angles = MagicMock(wraps=today.rotation)
    monkeypatch.setattr(room, name, attend)
    monkeypatch.setattr(today, "rotation", angles)
    sizes = SIZES | VARIANTS["llama"] | {"n_blocks": 3}
    side.build("ModernLM", hub.N_TOKENS, M, **sizes)(
        *map(side.tensor, (hub.SHIFTED, FIRST))
    )
    heads = [2 in call.args[1].shape for call in attend.call_args_list]  # not 6
    assert heads == [True] * 3 and angles.call_count == 1


@on_both_sides
def test_bfloat16_knows_late_positions(side):
    """Position 3,001 is not 3,008."""
    x, place = draw(1, 1, 1, 10), side.tensor(np.array([[3001]], np.int32))
    turn = side.models.rotation(place, 10)
    half, whole = (
        as_numpy(side.models.rotary_halves(side.tensor(x, dtype), *turn))
        for dtype in ("bfloat16", "float32")
    )
    assert_close(half, whole, atol=0.03)


@on_both_sides
@pytest.mark.parametrize("mask", [None, draw_mask(1, 1, 7, 7)], ids=["causal", "mask"])
def test_grouped_heads_are_heads_with_repeated_keys(side, mask):
    """Neighbouring query heads share keys and values."""
    q, k, v = draw(3, 6, 7, 10), draw(3, 2, 7, 10, seed=1), draw(3, 2, 7, 10, seed=2)
    found = side.models.fused(*map(side.tensor, (q, k, v)), side.mask(mask))
    seen = side.mask(np.tri(7, dtype=bool) if mask is None else mask)
    repeated = [side.tensor(np.repeat(x, 3, axis=1)) for x in (k, v)]
    expected, _ = side.models.attention(side.tensor(q), *repeated, seen)
    assert_close(found, expected)


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
@pytest.mark.parametrize("n_active", [2, 5])
def test_a_mixture_is_the_weighted_sum_of_the_chosen_experts(side, n_active):
    """Two or all of five; the balancing loss by hand, and 1 if the router is even."""
    layer = side.build("MixtureOfExperts", 13, 11, 5, n_active)
    params, x = fill(layer), draw(3, 7, 13)
    expected = mixture(x.reshape(-1, 13), params, n_active).reshape(x.shape)
    assert_close(layer(side.tensor(x)), expected)
    weights, chosen, p = (as_numpy(part) for part in layer.route(side.tensor(x)))
    assert weights.shape == chosen.shape == (3, 7, n_active)
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-5)
    balancing_loss = definitions(f"today_{side.name}").balancing_loss
    share = np.bincount(chosen.ravel(), minlength=5) / chosen.size
    assert_close(balancing_loss(layer, side.tensor(x)), 5 * p.mean((0, 1)) @ share)
    equal = balancing_loss(layer, side.tensor(np.zeros((7, 13), np.float32)))
    np.testing.assert_allclose(as_numpy(equal), 1, rtol=1e-5)


@on_both_sides
@pytest.mark.parametrize("size", [1, 1e-3])
def test_the_norm_of_the_page_is_that_of_the_framework(side, size):
    """Also of inputs as small as the root of epsilon."""
    layer, x = side.build("make_norm", 13), side.tensor(size * draw(7, 13))
    scale = side.tensor(fill(layer)["weight"])
    assert_close(definitions(f"today_{side.name}").rms_norm(x, scale), layer(x))


@on_both_sides
def test_maps_are_those_with_which_the_block_attends(side):
    """Query heads in a group share keys: the maps times their values are its output."""
    page, (model, _) = definitions(f"today_{side.name}"), built(side, "llama")
    layer, (positions, _) = (
        model.blocks[0].attention,
        page.placed(side.tensor(hub.TOKENS)),
    )
    x = page.embedded(model, side.tensor(hub.TOKENS), positions)
    turn = page.rotation(positions, layer.d, layer.base)
    expected, _ = layer(model.blocks[0].norm1(x), turn)
    v = as_numpy(page.project(layer, model.blocks[0].norm1(x), turn)[2])
    maps = as_numpy(page.maps_of(model, side.tensor(hub.TOKENS)))[0]
    found = (maps @ np.repeat(v, 3, axis=1)).swapaxes(1, 2).reshape(hub.B, hub.S, -1)
    assert_close(found @ to_arrays(layer.out)["weight"], expected)


@on_both_sides
def test_new_weights_are_drawn_as_documented(side):
    """Within ±1/√n_in, biases zero; embeddings with the given deviation."""
    layer = to_arrays(side.build("projection", 97, 89, True))
    assert 0.95 * 97**-0.5 < np.abs(layer["weight"]).max() <= 97**-0.5
    assert abs(layer["weight"].std() * 3**0.5 - 97**-0.5) < 0.03 * 97**-0.5
    assert not layer["bias"].any()
    (array,) = to_arrays(side.build("lookup", 97, 89, 0.2)).values()
    assert abs(array.std() - 0.2) < 0.01
