"""Generation: the cache changes no logits, a batch changes no row.

What stands for "without a cache" is one model for both frameworks, in PyTorch, which
compiles nothing for each length; that both have its logits, ``test_decoder`` shows.
"""

import math
import re
from contextlib import nullcontext
from functools import cache

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays
from sides import draw, fill, jax_side, on_both_sides, torch_side

B, L, H, D, S, K, F, T, U, N = 3, 2, 5, 7, 11, 17, 13, 19, 23, 29  # N: max_length
M = H * D
BEGIN, END = 17, 18
SIZES = {"n_blocks": L, "n_heads": H, "f": F, "max_length": N, "norm_first": True}
PROMPTS = [[3], [1, 2, 3, 4, 5, 6, 7], [9, 0, 11]]
KINDS = ["learned", "sinusoidal", "rotary", "none"]
POSITIONS = pytest.mark.parametrize("positions", KINDS)
PLACES = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])


def build_model(side, seed=0, scale=1.0, **options):
    """A language model, each of its parameters with a value of its own."""
    options = {"tied": False} | options  # tied and new, it would repeat itself
    m = 2 * M if options.get("positions") == "rotary" else M  # pairs of features
    model = side.build("LanguageModel", T, m, **SIZES | options)
    arrays = fill(model, seed)
    scaled = {n: x * (scale if n == "embed.weight" else 1) for n, x in arrays.items()}
    from_arrays(model, scaled)
    return model


def build_translator(side, seed=0, **options):
    """A translator, each of its parameters with a value of its own."""
    m = 2 * M if options.get("positions") == "rotary" else M  # pairs of features
    model = side.build("Translator", U, T, m, **SIZES | options)
    fill(model, seed)
    return model


@cache
def built(build, **options):
    """A model of PyTorch that is built once, with the weights of either side's."""
    return build(torch_side, **options)


@torch.no_grad()
def by_torch(build, *given, **options):
    """The logits that it gives, without a cache."""
    model = built(build, **options)
    return as_numpy(model(*(whole(torch_side, as_numpy(x)) for x in given)))


def draw_tokens(*shape, n=T, seed=3):
    return np.random.default_rng(seed).integers(n, size=shape, dtype=np.int32)


def draw_source():
    """Sources of different lengths, padded with -1."""
    real = np.arange(K) < np.array([5, 17, 1])[:, None]
    return np.where(real, draw_tokens(B, K, n=U), -1).astype(np.int32)


def whole(side, x):
    """Tokens as a side takes them."""
    return side.tensor(np.asarray(x), {"jax": "int32", "torch": "int64"}[side.name])


def assert_close(got, expected, atol=1e-5):
    np.testing.assert_allclose(as_numpy(got), as_numpy(expected), atol=atol, rtol=0)


# The cache


@on_both_sides
@POSITIONS
@pytest.mark.parametrize("steps", [[1] * S, [S], [5, 1, 5]], ids=str)
def test_logits_with_a_cache_are_those_without(side, positions, steps):
    """One token at a time, all at once, or in pieces; with room left in the cache."""
    model, tokens = build_model(side, positions=positions), draw_tokens(B, S)
    cache = side.models.new_cache(model, whole(side, np.zeros(B)), N)
    found, done = [], 0
    for n in steps:
        new = whole(side, tokens[:, done : done + n])
        logits, cache = side.models.advance(model, new, cache)
        assert tuple(logits.shape) == (B, n, T)
        found.append(as_numpy(logits))
        done += n
    expected = by_torch(build_model, tokens, positions=positions)
    assert_close(np.concatenate(found, axis=1), expected)
    assert cache["start"] == S


@on_both_sides
@PLACES
def test_cross_attention_is_cached_too(side, norm_first):
    """The logits of a translator, from keys and values made once."""
    model = build_translator(side, norm_first=norm_first)
    source, target = whole(side, draw_source()), whole(side, draw_tokens(B, S))
    context, mask, maps = model.read(source)
    assert maps is None
    first = whole(side, np.zeros(B))
    cache = side.models.new_cache(model.target, first, S, context, mask)
    found = []
    for place in range(S):
        new = target[:, place : place + 1]
        logits, cache = side.models.advance(model.target, new, cache)
        found.append(as_numpy(logits))
    expected = by_torch(build_translator, source, target, norm_first=norm_first)
    assert_close(np.concatenate(found, axis=1), expected)


@on_both_sides
def test_the_cache_holds_two_numbers_per_block_position_and_feature(side):
    """For each row: ``2 · l · s · m`` numbers."""
    cache = side.models.new_cache(build_model(side), whole(side, np.zeros(B)), S)
    sizes = [math.prod(x.shape) for pair in cache["blocks"] for x in pair]
    assert sum(sizes) == B * 2 * L * S * M
    assert {tuple(x.shape) for pair in cache["blocks"] for x in pair} == {(B, H, S, D)}


@on_both_sides
@pytest.mark.parametrize(
    "options",
    [
        *({"positions": kind} for kind in KINDS), {"norm_first": False},
    ],
    ids=[*KINDS, "post"],
)  # fmt: skip
def test_rows_of_different_lengths_have_the_logits_of_rows_alone(side, options):
    """Shorter prompts are padded on the left, and no padding is looked at."""
    model, longest = build_model(side, **options), max(map(len, PROMPTS))
    first = np.array([longest - len(row) for row in PROMPTS])
    padded = np.array([[8] * n + row for n, row in zip(first, PROMPTS, strict=True)])
    cache = side.models.new_cache(model, whole(side, first), N)
    logits, cache = side.models.advance(model, whole(side, padded), cache)
    more = draw_tokens(B, 5)
    later, _ = side.models.advance(model, whole(side, more), cache)
    for row, prompt in enumerate(PROMPTS):
        alone = by_torch(build_model, [[*prompt, *more[row]]], **options)[0]
        assert_close(logits[row, first[row] :], alone[: len(prompt)])
        assert_close(later[row], alone[len(prompt) :])


# Generation


def greedy(prompt, length, **options):
    """The most probable token again and again, without a cache."""
    text = list(prompt)
    for _ in range(length):
        text.append(int(by_torch(build_model, [text], **options)[0, -1].argmax()))
    return text[len(prompt) :]


@on_both_sides
@POSITIONS
def test_greedy_rows_are_those_of_a_loop_without_cache(side, positions):
    """Each row of a batch alone; up to the last position of the model."""
    model, length = build_model(side, positions=positions), N - max(map(len, PROMPTS))
    found = as_numpy(side.models.generate(model, PROMPTS, length, top_k=1))
    assert found.shape == (B, length)
    assert len(np.unique(found)) > 1
    for row, prompt in enumerate(PROMPTS):
        expected = greedy(prompt, length, positions=positions)
        np.testing.assert_array_equal(found[row], expected)


NO_FLOAT16 = pytest.mark.xfail(
    jax.default_backend() == "gpu",
    raises=jax.errors.JaxRuntimeError,
    reason="XLA (jaxlib 0.11.2) compiles no attention of one float16 query for a GPU",
)


@on_both_sides
@POSITIONS
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("way", ["weights", "computation"])
def test_in_half_precision_greedy_texts_are_those_without_a_cache(
    side, positions, dtype, way, request
):
    """With weights in half precision, or float32 weights and only products in it.

    Up to rounding: a token that is chosen has nearly the highest logit without a cache.
    """
    model = build_model(side, positions=positions)
    prompts, length, precise = [PROMPTS[1], PROMPTS[1][::-1]], 5, nullcontext()
    if way == "weights":
        model = side.in_dtype(model, dtype)
    else:
        precise = side.computing_in(model, dtype)
        if side is jax_side and dtype == "float16":
            request.applymarker(NO_FLOAT16)
    with precise:
        found = as_numpy(side.models.generate(model, prompts, length, top_k=1))
        texts = np.concatenate([np.array(prompts), found], axis=1)
        logits = as_numpy(model(whole(side, texts))).astype(np.float32)
    steps = logits[:, len(prompts[0]) - 1 : -1]  # b length c
    chosen = np.take_along_axis(steps, found[..., None], -1)[..., 0]
    lost = steps.max(-1) - chosen
    assert (lost <= 0.02 * np.ptp(steps, axis=-1)).all()


@on_both_sides
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_texts_are_drawn_and_beams_are_searched(side, dtype):
    """Log-probabilities are sums in float32 of those that the model gives."""
    model = side.in_dtype(build_model(side, tied=True), dtype)
    drawn = as_numpy(side.models.generate(model, PROMPTS, 5, top_k=3, top_p=0.9))
    assert len(np.unique(drawn)) > 1
    model = side.in_dtype(build_translator(side), dtype)
    source, options = whole(side, draw_source()), {"begin": BEGIN, "end": END}
    texts, log_p = map(
        as_numpy, side.models.translate(model, source, 5, width=3, **options)
    )
    assert log_p.dtype == np.float32
    inputs = np.concatenate([np.full((B, 1), BEGIN), texts[:, :-1]], axis=1)
    logits = as_numpy(model(source, whole(side, inputs))).astype(np.float64)
    each = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = np.take_along_axis(each, texts[..., None], -1).squeeze(-1)
    going = np.cumsum(inputs == END, axis=1) == 0  # up to the first end
    np.testing.assert_allclose(log_p, (each * going).sum(1), atol=0.3)


def test_both_frameworks_write_the_same_greedy_text():
    ours, theirs = (
        as_numpy(side.models.generate(build_model(side), PROMPTS, 13, top_k=1))
        for side in (jax_side, torch_side)
    )
    np.testing.assert_array_equal(ours, theirs)


@on_both_sides
def test_greedy_is_the_limit_of_low_temperature_and_of_small_top_p(side):
    model = build_model(side)
    texts = [
        as_numpy(side.models.generate(model, PROMPTS, 13, seed=5, **options))
        for options in ({"top_k": 1}, {"temperature": 1e-6}, {"top_p": 1e-6})
    ]
    np.testing.assert_array_equal(texts[0], texts[1])
    np.testing.assert_array_equal(texts[0], texts[2])


@on_both_sides
@pytest.mark.parametrize(
    "options", [{"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8, "top_k": 7}], ids=str
)
def test_tokens_are_drawn_with_their_probabilities(side, options):
    """Of many texts with the same prompt; first and second token."""
    model, n = build_model(side), 4_000
    found = as_numpy(side.models.generate(model, [PROMPTS[2]] * n, 2, **options))
    logits = model(whole(side, [PROMPTS[2]]))[:, -1]
    p = as_numpy(side.models.next_token_probabilities(logits, **options))[0]
    assert p.max() < 0.9
    share = np.bincount(found[:, 0], minlength=T) / n
    assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-9).all()
    common = int(found[:, 0][0])
    after = model(whole(side, [[*PROMPTS[2], common]]))[:, -1]
    p = as_numpy(side.models.next_token_probabilities(after, **options))[0]
    second = found[found[:, 0] == common, 1]
    share = np.bincount(second, minlength=T) / len(second)
    assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / len(second)) + 1e-9).all()


@on_both_sides
def test_texts_follow_from_the_seed(side):
    """And rows with the same prompt are different texts."""
    model = build_model(side)
    first, again, other = (
        as_numpy(side.models.generate(model, [[1, 2]] * 5, 13, seed=seed))
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()
    assert len({row.tobytes() for row in first}) == 5


@on_both_sides
def test_after_its_end_a_text_has_only_ends(side):
    """Others go on; until then each is what it would be without an end."""
    model = build_model(side)
    free = as_numpy(side.models.generate(model, PROMPTS, 20, top_k=1))
    end = int(free[0, 4])
    found = as_numpy(side.models.generate(model, PROMPTS, 20, top_k=1, end=end))
    places = [[*row, end].index(end) for row in free]
    assert min(places) < max(places)
    for row, place in enumerate(places):
        np.testing.assert_array_equal(found[row, :place], free[row, :place])
        assert (found[row, place:] == end).all()


@on_both_sides
def test_generation_leaves_the_model_as_it_was(side):
    """It draws without dropout, and the model stays in training mode."""
    model, still = build_model(side, dropout=0.5), build_model(side)
    model.train()
    modes = side.modes(model)
    assert modes == [True] * 2 * L
    texts = [as_numpy(side.models.generate(m, PROMPTS, 9)) for m in (model, still)]
    np.testing.assert_array_equal(*texts)
    assert side.modes(model) == modes


def test_generation_keeps_the_global_random_state():
    """In PyTorch, where drawing from it would change what a reader draws next."""
    model, expected = build_model(torch_side), torch.manual_seed(5).get_state()
    torch_side.models.generate(model, PROMPTS, 3)
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_generation_is_compiled_once_for_its_shapes():
    """Other numbers, another prompt, and trained weights need no compilation."""
    model = build_model(jax_side)
    count = jax_side.models.continue_texts._cache_size
    jax_side.models.generate(model, PROMPTS, 9, temperature=0.7, top_k=3, seed=1)
    before = count()
    jax_side.models.generate(model, PROMPTS, 9, temperature=0.9, top_k=5, seed=2)
    jax_side.models.generate(build_model(jax_side, 5), PROMPTS, 9, top_k=2)
    assert count() == before


# The distribution


def probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """As in the papers: sort, cut, renormalise, one row at a time, in float64."""
    out = np.zeros_like(logits)
    for place in np.ndindex(logits.shape[:-1]):
        row = logits[place] / temperature
        p = np.exp(row - row.max())
        p /= p.sum()
        order = sorted(range(len(p)), key=lambda token: (-p[token], token))
        order = order[:top_k]
        if top_p is not None:
            share = p[order] / p[order].sum()
            n = next(n for n in range(1, len(order) + 1) if share[:n].sum() >= top_p)
            order = order[:n]
        out[place][order] = p[order] / p[order].sum()
    return out


@on_both_sides
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 4, T, T + 5])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.93])
def test_probabilities_are_those_of_the_papers(side, temperature, top_k, top_p):
    logits, options = draw(B, 5, T, scale=2), (temperature, top_k, top_p)
    expected = probabilities(logits, *options)
    found = side.models.next_token_probabilities(side.tensor(logits), *options)
    assert_close(found, expected, atol=1e-6)
    assert_close(as_numpy(found).sum(-1), np.ones((B, 5)), atol=1e-6)
    np.testing.assert_array_equal(as_numpy(found) > 0, expected > 0)


@settings(deadline=None, max_examples=50)
@given(
    # equal or clearly apart: what rounding makes of nearly equal ones may differ
    hnp.arrays(
        np.float32, (2, 7), elements=st.integers(-400, 400).map(lambda n: n / 8)
    ),
    st.floats(0.125, 8, width=32),
    st.sampled_from([None, 1, 3, 7]),
    st.sampled_from([None, 0.25, 0.75, 1.0]),
)
def test_probabilities_are_the_same_in_both_frameworks(
    logits, temperature, top_k, top_p
):
    """Also with ties; they sum to 1, and what is left out is no more probable."""
    ours, theirs = (
        as_numpy(
            side.models.next_token_probabilities(
                side.tensor(logits), temperature, top_k, top_p
            )
        )
        for side in (jax_side, torch_side)
    )
    np.testing.assert_allclose(ours.sum(-1), 1, atol=1e-6)
    assert ((ours > 0).sum(-1) <= (top_k or 7)).all()
    lowest = np.where(ours > 0, logits, np.inf).min(-1)
    assert (np.where(ours > 0, -np.inf, logits).max(-1) <= lowest + 1e-4).all()
    if (
        top_p is None or top_p == 1
    ):  # elsewhere rounding may move the last of the nucleus
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@on_both_sides
def test_among_equals_the_lower_numbers_are_kept(side):
    equal = side.tensor(np.zeros((1, 8)))
    for options in ({"top_k": 2}, {"top_p": 0.25}):
        found = side.models.next_token_probabilities(equal, **options)
        assert_close(found, [[0.5, 0.5, 0, 0, 0, 0, 0, 0]], atol=1e-7)


# Beam search


def search_by_hand(source, length, width):
    """Beam search on one source with lists, without a cache."""
    beams = [([], 0.0)]
    for _ in range(length):
        grown = []
        for text, total in beams:
            if END in text:
                grown.append(([*text, END], total))
                continue
            logits = by_torch(build_translator, source, [[BEGIN, *text]])[0, -1]
            log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum())
            grown += [([*text, token], total + log_p[token]) for token in range(T)]
        beams = sorted(grown, key=lambda beam: -beam[1])[:width]
    return beams[0]


@on_both_sides
@pytest.mark.parametrize("width", [1, 4])
def test_beam_search_finds_what_a_search_by_hand_finds(side, width):
    """Row by row, with padding in the sources: texts and log-probabilities."""
    model, length = build_translator(side), 7
    source = draw_source()
    options = {"begin": BEGIN, "end": END, "width": width}
    texts, log_p = side.models.translate(model, whole(side, source), length, **options)
    assert tuple(texts.shape) == (B, length)
    for row in range(B):
        alone = source[row : row + 1, : (source[row] >= 0).sum()]
        text, total = search_by_hand(alone, length, width)
        assert as_numpy(texts)[row].tolist() == text
        assert as_numpy(log_p)[row] == pytest.approx(total, abs=1e-4)


@on_both_sides
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_log_probabilities_are_those_of_the_texts_that_are_found(side, positions):
    """By one pass without a cache, over many sources whose beams change places."""
    model = build_translator(side, seed=2, positions=positions)
    source = whole(side, draw_tokens(61, K, n=U))
    options = {"begin": BEGIN, "end": END, "width": 5}
    found = side.models.translate(model, source, 11, **options)
    texts, log_p = map(as_numpy, found)
    inputs = np.concatenate([np.full((61, 1), BEGIN), texts[:, :-1]], axis=1)
    logits = by_torch(
        build_translator, source, inputs, seed=2, positions=positions
    ).astype(np.float64)
    each = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = np.take_along_axis(each, texts[..., None], -1).squeeze(-1)
    going = np.cumsum(inputs == END, axis=1) == 0  # up to the first end
    np.testing.assert_allclose(log_p, (each * going).sum(1), atol=1e-4)


def test_a_wider_search_finds_more_probable_texts_in_both_frameworks():
    """On average over many sources; and the same texts in both."""
    found = {}
    for side in (jax_side, torch_side):
        model, source = build_translator(side), whole(side, draw_tokens(31, K, n=U))
        options = {"begin": BEGIN, "end": END}
        for width in (1, 4):
            pair = side.models.translate(model, source, 7, width=width, **options)
            found[side, width] = [as_numpy(x) for x in pair]
    for width in (1, 4):
        ours, theirs = found[jax_side, width], found[torch_side, width]
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_allclose(ours[1], theirs[1], atol=1e-4)
    assert found[jax_side, 4][1].mean() > found[jax_side, 1][1].mean() + 0.1


@on_both_sides
def test_a_finished_translation_keeps_its_probability(side):
    """A model that ends at once, or goes on for ever."""
    model = build_translator(side)
    source = whole(side, draw_source())
    free, _ = side.models.translate(model, source, 7, begin=BEGIN, end=END)
    end = int(as_numpy(free)[0, 2])
    texts, log_p = side.models.translate(model, source, 7, begin=BEGIN, end=end)
    short, log_p_short = side.models.translate(model, source, 3, begin=BEGIN, end=end)
    assert (as_numpy(texts)[0, 2:] == end).all()
    np.testing.assert_array_equal(as_numpy(texts)[0, :3], as_numpy(short)[0])
    assert as_numpy(log_p)[0] == pytest.approx(as_numpy(log_p_short)[0], abs=1e-6)


# Bad input

BAD = [
    ({"prompts": []}, "at least one token and length >= 1, got prompts of [] tokens"),
    ({"prompts": [[1], []]}, "got prompts of [1, 0] tokens and length = 5"),
    ({"length": 0}, "got prompts of [1, 7, 3] tokens and length = 0"),
    (
        {"length": 23},
        "a prompt of 7 tokens and length = 23 need 30 positions, but max_length = 29",
    ),
    ({"prompts": [[1, T]]}, "expected tokens from 0 to 18, got 19"),
    ({"prompts": [[-1, 1]]}, "expected tokens from 0 to 18, got -1"),
    ({"end": T}, "expected end from 0 to 18, got 19"),
    ({"temperature": 0.0}, "expected temperature above 0, got 0.0"),
    ({"temperature": -1.0}, "expected temperature above 0, got -1.0"),
    ({"temperature": math.nan}, "expected temperature above 0, got nan"),
    ({"top_k": 0}, "expected top_k of at least 1, got 0"),
    ({"top_p": 0.0}, "expected top_p in (0, 1], got 0.0"),
    ({"top_p": 1.5}, "expected top_p in (0, 1], got 1.5"),
    ({"top_p": math.nan}, "expected top_p in (0, 1], got nan"),
]


@on_both_sides
@pytest.mark.parametrize(("change", "message"), BAD, ids=str)
def test_what_cannot_be_generated_raises_an_error_before_any_work(
    side, change, message, monkeypatch
):
    model = build_model(side)
    monkeypatch.setattr(side.models, "continue_texts", None)
    options = {"prompts": PROMPTS, "length": 5} | change
    with pytest.raises(ValueError, match=re.escape(message)):
        side.models.generate(model, **options)


BAD_SEARCHES = [
    ({"length": 0}, "got length = 0, width = 2 and a source of shape (3, 17)"),
    ({"length": 30}, "at most max_length = 29 positions, got length = 30"),
    ({"width": 0}, "got length = 5, width = 0"),
    ({"source": np.ones((B, 30))}, "and a source of shape (3, 30)"),
    (
        {"source": np.full((B, 2), U)},
        "source tokens below 23, or -1 for padding, one or more in",
    ),
    ({"source": -np.ones((B, 2))}, "one or more in each row, got -1 to -1"),
    ({"source": [[2, 3], [4, -7]]}, "one or more in each row, got -7 to 4"),
    ({"begin": END}, "expected begin ≠ end below 19, got 18, 18"),
    ({"end": T}, "expected begin ≠ end below 19, got 17, 19"),
    ({"begin": -1}, "expected begin ≠ end below 19, got -1, 18"),
]


@on_both_sides
@pytest.mark.parametrize(("change", "message"), BAD_SEARCHES, ids=str)
def test_what_cannot_be_translated_raises_an_error_before_any_work(
    side, change, message, monkeypatch
):
    model = build_translator(side)
    monkeypatch.setattr(side.models, "search_beams", None)
    options = {"source": draw_source(), "length": 5, "begin": BEGIN, "end": END}
    options = options | {"width": 2} | change
    options["source"] = whole(side, options["source"])
    with pytest.raises(ValueError, match=re.escape(message)):
        side.models.translate(model, **options)
