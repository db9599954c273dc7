"""Language model, loss, key-value cache and generation: what the chapter says of them.

All sizes differ, and all are prime but ``m = h·d``: no transposition can hide.
"""

import math
import re
import sys
from functools import cache

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from helpers import reference
from helpers.settings import Settings
from helpers.weights import as_numpy, count_parameters, to_arrays
from sides import (
    NOTEBOOKS,
    assert_close,
    draw,
    fill,
    jax_side,
    on_both_sides,
    torch_side,
)

B, L, H, D, S, F, T, N = 3, 2, 5, 7, 11, 13, 19, 29  # N: max_length
M = H * D
CAUSAL = np.tri(S, dtype=bool)
PADDING = np.arange(S) < np.array([[11], [7], [2]])  # b s: a place that holds something
PROMPTS = [[3], [1, 2, 3, 4, 5, 6, 7], [9, 0, 11]]
KINDS = ["learned", "sinusoidal", "rotary", "none"]


def draw_tokens(*shape, n=T, seed=3, padding=None):
    """Whole numbers below ``n``; -1 where there is padding."""
    tokens = np.random.default_rng(seed).integers(n, size=shape, dtype=np.int32)
    return tokens if padding is None else np.where(padding, tokens, -1).astype(np.int32)


def build_model(side, seed=0, **options):
    """A language model, each of its parameters with a value of its own."""
    m = 2 * M if options.get("positions") == "rotary" else M  # pairs of features
    options = {"n_blocks": L, "n_heads": H, "f": F, "max_length": N, **options}
    model = side.build("LanguageModel", T, m, **options)
    return model, fill(model, seed)


@cache
def in_torch(**options):
    return build_model(torch_side, **options)[0]


@torch.no_grad()
def by_torch(tokens, **options):
    """The logits of PyTorch for the same weights, of shapes that JAX would compile for.

    That both have the same logits is shown below.
    """
    return as_numpy(in_torch(**options)(torch_side.tensor(np.asarray(tokens))))


# The model


@on_both_sides
@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_maps_are_those_of_the_reference(side, tied):
    """Embedding as one-hot vectors times a matrix, causal encoder, tied logits."""
    options = {"norm_first": tied, "tied": tied, "activation": "gelu"}
    model, params = build_model(side, **options)
    tokens = draw_tokens(B, S)
    logits, maps = model(side.tensor(tokens), return_maps=True)
    x = np.eye(T)[tokens] @ params["embed.weight"] + params["positions.table"][:S]
    stack = reference.inside(params, "decoder.")
    x, expected_maps = reference.encoder(
        x, stack, L, H, CAUSAL, activation="gelu", norm_first=tied
    )
    table = params["embed.weight"].T if tied else params["output.weight"]
    assert_close(maps, expected_maps)
    assert_close(logits, x @ table)
    assert_close(model(side.tensor(tokens)), logits)
    assert ("output.weight" in params) != tied and "output.bias" not in params


@pytest.mark.parametrize(
    "options",
    [
        {"norm_first": True},
        {"positions": "rotary", "tied": False, "activation": "gelu"},
        {"positions": "sinusoidal", "causal": False},
        {"positions": "none", "norm_first": True},
    ],
    ids=str,
)
def test_both_frameworks_agree_for_the_same_weights(options):
    """Logits, maps and gradients; padded texts."""
    found, tokens = {}, draw_tokens(B, S, padding=PADDING)
    for side in (jax_side, torch_side):
        model, _ = build_model(side, **options)
        x = side.tensor(tokens)
        grads = side.grads(model, lambda out: (out**2).mean(), x)
        found[side] = {"maps": model(x, return_maps=True)[1], "out": model(x)} | grads
    ours, theirs = found[jax_side], found[torch_side]
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert np.abs(as_numpy(ours[name])).max() > 1e-3, name
        assert_close(ours[name], theirs[name], 3e-5, name)


@on_both_sides
def test_logits_before_a_changed_token_keep_their_bits(side):
    """Through all blocks; without the causal mask, every position sees all."""
    model, _ = build_model(side, norm_first=True)
    tokens = draw_tokens(B, S)
    before = as_numpy(model(side.tensor(tokens)))
    for changed in range(S):
        other = tokens.copy()
        other[:, changed] = (other[:, changed] + 1) % T
        after = as_numpy(model(side.tensor(other)))
        np.testing.assert_array_equal(after[:, :changed], before[:, :changed])
        assert (np.abs(after - before)[:, changed:].max(axis=(0, 2)) > 1e-3).all()
    free, _ = build_model(side, causal=False)
    assert (as_numpy(free(side.tensor(tokens), return_maps=True)[1]) > 0).all()


@on_both_sides
def test_a_mask_works_besides_the_causal_one(side):
    """What it hides has no effect on the rest, and the future has none either."""
    model, _ = build_model(side)
    tokens, hidden = draw_tokens(B, S), np.arange(S) != 4
    other = tokens.copy()
    other[:, 4] = (other[:, 4] + 1) % T
    mask = side.mask(np.broadcast_to(hidden, (S, S)))
    before, after = (as_numpy(model(side.tensor(x), mask)) for x in (tokens, other))
    np.testing.assert_array_equal(after[:, hidden], before[:, hidden])
    _, maps = model(side.tensor(tokens), mask, return_maps=True)
    assert (as_numpy(maps)[..., ~(CAUSAL & hidden)] == 0).all()


@on_both_sides
def test_padding_changes_no_logits_of_real_positions(side):
    """Rows alone, without padding: the same logits."""
    model, _ = build_model(side)
    tokens = draw_tokens(B, S, padding=PADDING)
    logits = as_numpy(model(side.tensor(tokens)))
    for row in range(B):
        alone = by_torch(tokens[row : row + 1, PADDING[row]])
        assert_close(logits[row, PADDING[row]], alone[0])


@on_both_sides
@pytest.mark.parametrize("tied", [True, False])
def test_a_new_model_is_not_much_worse_than_guessing(side, tied):
    """Its loss is ``ln c`` and about 1/2: its logits have a standard deviation of 1."""
    options = {"n_blocks": 2, "n_heads": 4, "f": 64, "max_length": 61, "tied": tied}
    model = side.build("LanguageModel", 211, 64, norm_first=True, **options)
    tokens = side.tensor(draw_tokens(7, 61, n=211))
    loss = as_numpy(side.models.next_token(model, tokens)[0])
    assert math.log(211) < loss < math.log(211) + 1
    assert as_numpy(model(tokens)).std() == pytest.approx(1, rel=0.2)
    for name in ["embed.weight"] + ["output.weight"] * (not tied):
        assert np.std(to_arrays(model)[name]) == pytest.approx(1 / 8, rel=0.05)


@on_both_sides
def test_dropout_reaches_every_block_in_training_alone(side):
    model, _ = build_model(side, dropout=0.3)
    assert set(side.rates(model).values()) == {0.3}
    tokens = side.tensor(draw_tokens(B, S))
    model.train()
    first, second = as_numpy(model(tokens)), as_numpy(model(tokens))
    assert np.abs(first - second).max() > 0.1
    quiet, _ = side.models.attention_maps(model, tokens)
    assert_close(quiet, by_torch(draw_tokens(B, S)))


@on_both_sides
def test_the_page_names_every_array_and_counts_gpt_2_right(side):
    """Its table of GPT-2's names has each of ours; 124 million parameters."""
    model, params = build_model(side, norm_first=True)
    page = (NOTEBOOKS / f"decoder_{side.name}.py").read_text("utf-8")
    head, rows = page.split("| ours | GPT-2's |")
    named = {*re.findall(r"^# \| `([\w.]+)` \| `", rows, flags=re.MULTILINE)}
    found = {re.sub(r"^decoder\.blocks\.\d+\.", "", name) for name in params}
    assert named == {re.sub(r"\.(weight|bias)$", "", name) for name in found}

    def counted(n_tokens, m, n_blocks, f, max_length):
        block = 4 * (m * m + m) + (2 * m * f + f + m) + 2 * 2 * m
        return n_tokens * m + max_length * m + n_blocks * block + 2 * m

    assert count_parameters(model) == counted(T, M, L, F, N)
    assert "124 million parameters" in head
    assert round(counted(50_257, 768, 12, 4 * 768, 1024) / 1e6) == 124


# The loss


@on_both_sides
def test_the_loss_is_the_mean_over_real_tokens(side):
    """Worked out token by token; padding counts in neither loss nor accuracy."""
    model, _ = build_model(side)
    texts = draw_tokens(B, S, padding=PADDING)
    logits = as_numpy(model(side.tensor(texts[:, :-1]))).astype(np.float64)
    log_p, hits = [], []
    for row, place in np.argwhere(texts[:, 1:] >= 0):
        scores, label = logits[row, place], texts[row, place + 1]
        log_p.append(scores[label] - np.log(np.exp(scores).sum()))
        hits.append(scores.argmax() == label)
    loss, metrics = side.models.next_token(model, side.tensor(texts))
    assert as_numpy(loss) == pytest.approx(-np.mean(log_p), abs=1e-5)
    assert as_numpy(metrics["accuracy"]) == pytest.approx(np.mean(hits), abs=1e-6)
    assert as_numpy(metrics["count"]) == len(hits) == 10 + 6 + 1
    loss, metrics = side.models.next_token(model, side.tensor([[3, -1, -1]]))
    assert [as_numpy(x) for x in (loss, *metrics.values())] == [0, 0, 0], "no weight"


def test_an_unknown_token_has_no_loss():
    """JAX would clamp it in silence: the loss is NaN, at which ``fit`` stops."""
    model, _ = build_model(jax_side)
    texts = draw_tokens(B, S)
    texts[1, -1] = T  # a label, not an input
    assert np.isnan(jax_side.models.next_token(model, jax_side.tensor(texts))[0])


def test_both_frameworks_train_to_the_same_losses():
    """By ``fit``: the same weights and batches of padded texts, clipping and decay."""
    lengths = np.random.default_rng(1).integers(2, S + 1, size=(23, 1))
    texts = (draw_tokens(23, S, padding=np.arange(S) < lengths),)
    settings = Settings(
        n_train=23, batch_size=5, epochs=3, learning_rate=0.01, warmup=2,
        weight_decay=0.1, max_grad_norm=0.3,
    )  # fmt: skip
    ours, theirs = (
        side.models.fit(
            build_model(side, norm_first=True)[0],
            side.models.next_token,
            texts,
            settings,
            validation=(texts[0][:7],),
        )
        for side in (jax_side, torch_side)
    )
    for name in ("loss", "accuracy", "grad_norm", "validation_loss"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, err_msg=name)
    assert ours["loss"][-1] < ours["loss"][0]


# The cache

GENERATING = {"norm_first": True, "tied": False}  # tied and new, it would repeat itself


@on_both_sides
@pytest.mark.parametrize(
    ("steps", "positions"),
    [*(([5, 1, 5], kind) for kind in KINDS), ([1] * S, "rotary")],
    ids=str,
)
def test_logits_with_a_cache_are_those_without(side, steps, positions):
    """One token at a time, all at once, or in pieces; with room left in the cache."""
    options, tokens = GENERATING | {"positions": positions}, draw_tokens(B, S)
    model, _ = build_model(side, **options)
    cache = side.models.new_cache(model, side.tensor(np.zeros(B, int)), N)
    found, done = [], 0
    for n in steps:
        new = side.tensor(tokens[:, done : done + n])
        logits, cache = side.models.advance(model, new, cache)
        assert tuple(logits.shape) == (B, n, T)
        found.append(as_numpy(logits))
        done += n
    assert_close(np.concatenate(found, axis=1), by_torch(tokens, **options))
    assert cache["start"] == S


@on_both_sides
@pytest.mark.parametrize(
    "options",
    [{"positions": "learned"}, {"positions": "rotary"}, {"norm_first": False}],
    ids=["learned", "rotary", "post"],
)
def test_rows_of_different_lengths_have_the_logits_of_rows_alone(side, options):
    """Shorter prompts are padded on the left, and no padding is looked at."""
    options, longest = GENERATING | options, max(map(len, PROMPTS))
    model, _ = build_model(side, **options)
    first = np.array([longest - len(row) for row in PROMPTS])
    padded = np.array([[8] * n + row for n, row in zip(first, PROMPTS, strict=True)])
    cache = side.models.new_cache(model, side.tensor(first), N)
    logits, cache = side.models.advance(model, side.tensor(padded), cache)
    more = draw_tokens(B, 5)
    later, _ = side.models.advance(model, side.tensor(more), cache)
    for row, prompt in enumerate(PROMPTS):
        alone = by_torch([[*prompt, *more[row]]], **options)[0]
        assert_close(logits[row, first[row] :], alone[: len(prompt)])
        assert_close(later[row], alone[len(prompt) :])


# Generation


def generate(side, model, *args, **options):
    return as_numpy(side.models.generate(model, *args, **options))


@on_both_sides
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_greedy_rows_are_those_of_a_loop_without_cache(side, positions):
    """Each row of a batch alone; up to the last position of the model."""
    options, length = GENERATING | {"positions": positions}, N - max(map(len, PROMPTS))
    found = generate(side, build_model(side, **options)[0], PROMPTS, length, top_k=1)
    assert found.shape == (B, length)
    assert len(np.unique(found)) > 1
    for row, prompt in zip(found, PROMPTS, strict=True):
        text = list(prompt)
        for _ in range(length):
            text.append(int(by_torch([text], **options)[0, -1].argmax()))
        assert row.tolist() == text[len(prompt) :]


@on_both_sides
def test_in_half_precision_greedy_texts_are_those_without_a_cache(side):
    """Up to rounding: a chosen token has nearly the highest logit without a cache."""
    model, _ = build_model(side, **GENERATING)
    if side is torch_side:
        model.to(torch.bfloat16)
    else:
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda x: x.astype("bfloat16"), params))
    prompts = [PROMPTS[1], PROMPTS[1][::-1]]
    found = generate(side, model, prompts, 5, top_k=1)
    texts = np.concatenate([np.array(prompts), found], axis=1)
    steps = as_numpy(model(side.tensor(texts)))[:, 6:-1]  # b length c
    chosen = np.take_along_axis(steps, found[..., None], -1)[..., 0]
    assert (steps.max(-1) - chosen <= 0.02 * np.ptp(steps, axis=-1)).all()


@on_both_sides
def test_greedy_is_the_limit_of_low_temperature_and_of_small_top_p(side):
    """And the same text in both frameworks."""
    expected = generate(
        torch_side, in_torch(**GENERATING), PROMPTS, 13, top_k=1, seed=4
    )
    model, _ = build_model(side, **GENERATING)
    for knobs in ({"top_k": 1}, {"temperature": 1e-6}, {"top_p": 1e-6}):
        found = generate(side, model, PROMPTS, 13, seed=5, **knobs)
        np.testing.assert_array_equal(found, expected)


@on_both_sides
@pytest.mark.parametrize(
    "knobs", [{"temperature": 0.7}, {"top_p": 0.8, "top_k": 7}], ids=str
)
def test_tokens_are_drawn_with_their_probabilities(side, knobs):
    """Of many texts with the same prompt; first and second token."""
    model, n = build_model(side, **GENERATING)[0], 4_000
    found = generate(side, model, [PROMPTS[2]] * n, 2, **knobs)
    common = found[0, 0]
    second = found[found[:, 0] == common, 1]
    cases = (PROMPTS[2], found[:, 0]), ([*PROMPTS[2], common], second)
    for prompt, drawn in cases:
        logits = model(side.tensor([prompt]))[:, -1]
        p = as_numpy(side.models.next_token_probabilities(logits, **knobs))[0]
        assert p.max() < 0.9
        error = np.bincount(drawn, minlength=T) / len(drawn) - p
        assert (np.abs(error) < 5 * np.sqrt(p * (1 - p) / len(drawn)) + 1e-9).all()


@on_both_sides
def test_texts_follow_from_the_seed(side):
    """And rows with the same prompt are different texts."""
    model, _ = build_model(side, **GENERATING)
    first, again, other = (
        generate(side, model, [[1, 2]] * 5, 13, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()
    assert len({row.tobytes() for row in first}) == 5


@on_both_sides
def test_after_its_end_a_text_has_only_ends(side):
    """Others go on; until then each is what it would be without an end."""
    model, _ = build_model(side, **GENERATING)
    free = generate(side, model, PROMPTS, 20, top_k=1)
    end = int(free[0, 4])
    found = generate(side, model, PROMPTS, 20, top_k=1, end=end)
    places = [[*row, end].index(end) for row in free]
    assert min(places) < max(places)
    for row, place in enumerate(places):
        np.testing.assert_array_equal(found[row, :place], free[row, :place])
        assert (found[row, place:] == end).all()


@on_both_sides
def test_a_token_takes_one_pass_and_nothing_runs_after_the_end(side, monkeypatch):
    (model, _), passes = build_model(side, **GENERATING), []
    module = sys.modules[f"helpers.{side.name}.decoder"]

    def counted(model, tokens, cache, advance=module.advance):
        note = {"jax": jax.debug.callback, "torch": lambda note: note()}[side.name]
        note(lambda: passes.append(tokens.shape[1]))
        return advance(model, tokens, cache)

    monkeypatch.setattr(module, "advance", counted)
    end = int(generate(side, model, PROMPTS[2:], 1, top_k=1)[0, 0])
    assert passes == [3]
    assert (generate(side, model, PROMPTS[2:], 11, top_k=1, end=end) == end).all()
    assert passes == [3, 3], "the first token is the end"


@on_both_sides
def test_generation_leaves_the_model_as_it_was(side):
    """It draws without dropout, and the model stays in training mode."""
    model, still = (build_model(side, **GENERATING, dropout=p)[0] for p in (0.5, 0))
    model.train()
    first, second = (generate(side, one, PROMPTS, 9) for one in (model, still))
    np.testing.assert_array_equal(first, second)
    x = side.tensor(draw_tokens(B, S))
    assert np.abs(as_numpy(model(x)) - as_numpy(model(x))).max() > 0.1


def test_generation_keeps_the_global_random_state():
    """In PyTorch, where drawing from it would change what a reader draws next."""
    model, expected = in_torch(**GENERATING), torch.manual_seed(5).get_state()
    generate(torch_side, model, PROMPTS, 3)
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_generation_is_compiled_once_for_its_shapes():
    """Other numbers, another prompt, and other weights need no compilation."""
    models, compiled = [build_model(jax_side, n, **GENERATING)[0] for n in (0, 5)], []
    generate(jax_side, models[0], PROMPTS, 9, temperature=0.7, top_k=3, seed=1)

    def listen(event, *_, **__):
        compiled.extend([event] * event.endswith("backend_compile_duration"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    generate(jax_side, models[1], PROMPTS, 9, temperature=0.9, top_k=5, seed=2)
    assert not compiled
    generate(jax_side, models[1], PROMPTS, 8, temperature=0.9, top_k=5)
    assert compiled, "it listens"


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
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (2.5, None, None), (1.0, 4, None), (1.0, None, 0.5), (1.0, 1, None),
        (2.5, T + 5, 0.93), (0.3, 4, 0.05),
    ],
)  # fmt: skip
def test_probabilities_are_those_of_the_papers(side, temperature, top_k, top_p):
    logits, options = draw(B, 5, T, scale=2), (temperature, top_k, top_p)
    expected = probabilities(logits.astype(np.float64), *options)
    found = side.models.next_token_probabilities(side.tensor(logits), *options)
    assert_close(found, expected, 1e-6)
    np.testing.assert_array_equal(as_numpy(found) > 0, expected > 0)
    half = side.tensor(200 + logits, "bfloat16")  # subtracted in float32
    same = as_numpy(half).astype(np.float64)
    found = side.models.next_token_probabilities(half, *options)
    assert_close(found, probabilities(same, *options), 1e-6)


@on_both_sides
def test_among_equals_the_lower_numbers_are_kept(side):
    equal = side.tensor(np.zeros((1, 8), np.float32))
    for options in ({"top_k": 2}, {"top_p": 0.25}):
        found = side.models.next_token_probabilities(equal, **options)
        assert_close(found, [[0.5, 0.5, 0, 0, 0, 0, 0, 0]], 1e-7)
    sure = side.tensor(np.array([[30.0, 0.0]], np.float32))
    whole = side.models.next_token_probabilities(sure, top_p=1)
    assert (as_numpy(whole) > 0).all(), "a top_p of 1 cuts nothing off"
