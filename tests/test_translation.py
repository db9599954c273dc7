"""A model that reads and writes: dates, decoder, translator, and its two searches."""

from datetime import date, datetime

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reference_models
from helpers.data import dates
from helpers.weights import as_numpy, from_arrays, to_arrays
from sides import (
    assert_close,
    definitions,
    draw,
    fill,
    jax_side,
    on_both_sides,
    stacked,
    torch_side,
    with_weights,
)

B, L, H, D, S, K, F, T, N = 3, 2, 5, 7, 11, 17, 13, 19, 29  # N: max_length
M = H * D
BEGIN, END = 17, 18
CAUSAL = np.tri(S, dtype=bool)
PADDING = np.arange(S) < np.array([[S], [4], [7]])  # b s: True is real
SOURCE_PADDING = np.arange(K) < np.array([[5], [K], [1]])  # b k
PLACES = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
DAYS = st.dates(dates.FIRST, dates.LAST)
FORMS = st.sampled_from([*dates.FORMS])


def page(side):
    return definitions(f"translation_{side.name}")


def draw_tokens(*shape, padding=True, seed=3):
    tokens = np.random.default_rng(seed).integers(T, size=shape, dtype=np.int32)
    return np.where(padding, tokens, -1).astype(np.int32)


def build_translator(side, seed=0, **options):
    """A translator, each of its parameters with a value of its own."""
    sizes = {"n_blocks": L, "n_heads": H, "f": F, "max_length": N, "norm_first": True}
    model = side.build(page(side).Translator, T, M, **sizes | options)
    fill(model, seed)
    return model


SOURCE, TARGET = draw_tokens(B, K, padding=SOURCE_PADDING), draw_tokens(B, S, seed=5)


def call(side, model, source, target):
    return as_numpy(model(side.tensor(source), side.tensor(target)))


# Dates


def test_every_form_is_written_as_people_write_it():
    day, later = date(1997, 3, 3), date(2004, 12, 25)
    assert {form: dates.write(day, form) for form in dates.FORMS | dates.UNSEEN} == {
        "of": "the 3rd of March 1997",
        "ordinal": "March 3rd, 1997",
        "short": "Mar 3, 1997",
        "weekday": "Monday, 3 March 1997",
        "dashes": "3-Mar-1997",
        "dots": "3.3.97",
        "slashes": "3/3/1997",
        "year first": "1997, March 3",
        "year before day": "March 1997, the 3rd",
    }
    assert dates.write(later, "dots") == "25.12.04"
    found = [dates.fields(date(2000, 1, d))["th"] for d in range(1, 32)]
    special = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
    assert found == [special.get(d, "th") for d in range(1, 32)]


@given(DAYS, FORMS)
def test_parts_spell_the_numbers_and_names_of_a_date(day, form):
    text, parts = dates.write(day, form), page(torch_side).parts(day, form)
    assert len(parts) == len(text)
    pairs = [*zip(text, parts, strict=True)]

    def spelled(name):
        return "".join(c for c, part in pairs if part == name)

    year = "".join(spelled(f"year {n}") for n in (1, 2, 3, 4))
    assert f"{day.year}".endswith(year) and len(year) >= 2
    assert int(spelled("day")) == day.day
    month = dates.MONTHS[day.month - 1]
    assert spelled("month") in (month, month[:3], f"{day.month}")
    assert spelled("weekday") in ("", dates.DAYS[day.weekday()])


@given(DAYS)
def test_python_reads_the_same_day(day):
    patterns = {"short": "%b %d, %Y", "weekday": "%A, %d %B %Y", "dashes": "%d-%b-%Y"}
    for form, pattern in patterns.items():
        assert datetime.strptime(dates.write(day, form), pattern).date() == day


@given(st.lists(st.tuples(DAYS, FORMS), min_size=1, max_size=5))
def test_every_text_can_be_encoded_and_read_back(pairs):
    """Up to its padding, or to its first end."""
    texts = [dates.write(*pair) for pair in pairs]
    assert dates.decode(dates.encode(texts)) == texts
    target = dates.encode(texts, target=True)
    assert dates.decode(target) == texts and (target[:, 0] == dates.BEGIN).all()
    assert target.max() < dates.N_TOKENS and (target == dates.END).sum(1).max() == 1


def test_no_date_is_in_two_parts_and_every_form_is_drawn():
    n = 14_000
    data, days = dates.load(n, n_validation=31, n_test=37), dates.split(42, 31, 37)
    assert [len(days[part]) for part in data] == [36_525 - 68, 31, 37]
    assert len(set().union(*days.values())) == 36_525
    for part, (_, targets) in data.items():
        assert set(dates.decode(targets)) <= {f"{day}" for day in days[part]}
    assert [len(x) for x, _ in data.values()] == [n, 31, 37]
    texts, answers = (dates.decode(x) for x in data["train"])
    for form in dates.FORMS:  # in random order
        is_so = [
            dates.write(date.fromisoformat(day), form) == text
            for text, day in zip(texts, answers, strict=True)
        ]
        assert np.mean(is_so) == pytest.approx(1 / 7, abs=0.02)
    other = dates.load(n, seed=7, n_validation=31, n_test=37)
    assert dates.decode(other["test"][1]) != dates.decode(data["test"][1])


# The model


@on_both_sides
@PLACES
def test_a_block_equals_the_decoder_layer_of_pytorch(side, norm_first):
    """With copied weights, a longer context and padding: outputs, and gradients."""
    options = {"norm_first": norm_first, "activation": "gelu"}
    block = side.build(page(side).DecoderBlock, M, H, F, **options)
    params = fill(block)
    theirs = with_weights(
        nn.TransformerDecoderLayer(M, H, F, 0.0, batch_first=True, **options),
        stacked(params, "cross."),
        *("attention.qkv", "attention.out", "cross.qkv", "cross.out"),
        *("ffn.linear1", "ffn.linear2", "norm1", "cross_norm", "norm2"),
    )
    x, context = draw(B, S, M), draw(B, K, M, seed=1)
    mask, seen = CAUSAL & PADDING[:, None, None], SOURCE_PADDING[:, None, None]
    own = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = theirs(
        own,
        torch.tensor(context, dtype=torch.float64),
        tgt_mask=torch.tensor(~mask.repeat(H, axis=1).reshape(B * H, S, S)),
        memory_key_padding_mask=torch.tensor(~SOURCE_PADDING),
    )
    (expected**2).sum().backward()
    given = side.mask(mask), side.tensor(context), side.mask(seen)
    out, weights, cross = block(side.tensor(x), *given)
    assert weights is None and cross is None, "nobody asked for them"
    assert_close(out, expected)
    grads = side.grads(
        block, lambda found: (found[0] ** 2).sum(), side.tensor(x), *given
    )
    np.testing.assert_allclose(grads["input"], own.grad, rtol=1e-3, atol=1e-3)


@on_both_sides
@PLACES
def test_a_translator_equals_the_reference(side, norm_first):
    """Logits, and the maps of its decoder block by block; no padding."""
    model, source = build_translator(side, norm_first=norm_first), draw_tokens(B, K)
    logits, (_, *maps) = model(
        side.tensor(source), side.tensor(TARGET), return_maps=True
    )
    params = to_arrays(model)
    expected = reference_models.translator(source, TARGET, params, L, H, norm_first)
    for got, want in zip((logits, *maps), expected, strict=True):
        assert_close(got, want)


@on_both_sides
def test_cross_maps_are_those_of_the_context(side):
    """Rows sum to 1 over the visible places; hidden ones get nothing."""
    model, given = build_translator(side), (side.tensor(SOURCE), side.tensor(TARGET))
    logits, (of_source, maps, cross) = model(*given, return_maps=True)
    assert of_source.shape == (L, B, H, K, K) and cross.shape == (L, B, H, S, K)
    assert_close(as_numpy(cross).sum(-1), np.ones((L, B, H, S)))
    hidden = np.broadcast_to(~SOURCE_PADDING[:, None, None], cross.shape)
    assert (as_numpy(cross)[hidden] == 0).all()
    assert (as_numpy(maps)[..., ~CAUSAL] == 0).all()
    assert_close(logits, model(*given))  # by the framework's attention


def test_twins_agree_with_the_same_weights():
    ours, theirs = build_translator(jax_side), build_translator(torch_side)
    from_arrays(theirs, to_arrays(ours))
    expected = call(jax_side, ours, SOURCE, TARGET)
    assert_close(call(torch_side, theirs, SOURCE, TARGET), expected)
    assert "embed.weight" not in to_arrays(ours), "one table for both sides"


@on_both_sides
def test_later_tokens_change_no_bit_and_padding_changes_no_logits(side):
    model = build_translator(side)
    expected = call(side, model, SOURCE, TARGET)
    later = np.where(np.arange(S) < 5, TARGET, 7)
    found = call(side, model, SOURCE, later)
    np.testing.assert_array_equal(found[:, :5], expected[:, :5])
    assert np.abs(found - expected)[:, 5:].max() > 1e-3
    wider = np.pad(SOURCE, ((0, 0), (0, 3)), constant_values=-1)
    assert_close(call(side, model, wider, TARGET), expected)
    alone = call(side, model, SOURCE[:1, :5], np.where(PADDING, TARGET, -1)[:1])
    assert_close(alone, expected[:1])


# Searches


def search_by_hand(source, length, width):
    """Beam search on one source with lists, without a cache, by PyTorch."""
    model, beams = build_translator(torch_side), [([], 0.0)]
    for _ in range(length):
        grown = []
        for text, total in beams:
            if END in text:
                grown.append(([*text, END], total))
                continue
            logits = call(torch_side, model, source, [[BEGIN, *text]])[0, -1]
            log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum())
            grown += [([*text, token], total + log_p[token]) for token in range(T)]
        beams = sorted(grown, key=lambda beam: -beam[1])[:width]
    return beams[0]


def translate(side, model, source, length, **options):
    options = {"begin": BEGIN, "end": END} | options
    found = page(side).translate(model, side.tensor(source), length, **options)
    return [as_numpy(x) for x in found]


@on_both_sides
@pytest.mark.parametrize("width", [1, 4])
def test_beam_search_finds_what_a_search_by_hand_finds(side, width):
    """Row by row, with padding in the sources: texts and log-probabilities."""
    texts, log_p = translate(side, build_translator(side), SOURCE, 7, width=width)
    assert texts.shape == (B, 7)
    for row in range(B):
        alone = SOURCE[row : row + 1, : SOURCE_PADDING[row].sum()]
        text, total = search_by_hand(alone, 7, width)
        assert texts[row].tolist() == text
        assert log_p[row] == pytest.approx(total, abs=1e-4)


@on_both_sides
def test_log_probabilities_are_those_of_the_texts_that_are_found(side):
    """By one pass without a cache, over many sources whose beams change places."""
    model, source = build_translator(side, seed=4), draw_tokens(61, K)
    texts, log_p = translate(side, model, source, 11, width=5)
    inputs = np.concatenate([np.full((61, 1), BEGIN), texts[:, :-1]], axis=1)
    logits = call(side, model, source, inputs).astype(np.float64)
    each = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = np.take_along_axis(each, texts[..., None], -1).squeeze(-1)
    going = np.cumsum(inputs == END, axis=1) == 0  # up to the first end
    np.testing.assert_allclose(log_p, (each * going).sum(1), atol=1e-4)
    assert log_p.mean() > translate(side, model, source, 11)[1].mean() + 0.1


@on_both_sides
def test_a_finished_translation_keeps_its_probability(side):
    """A model that ends at once, or goes on for ever."""
    model = build_translator(side)
    end = int(translate(side, model, SOURCE, 7)[0][0, 2])
    texts, log_p = translate(side, model, SOURCE, 7, end=end)
    short, log_p_short = translate(side, model, SOURCE, 3, end=end)
    assert (texts[0, 2:] == end).all()
    np.testing.assert_array_equal(texts[0, :3], short[0])
    assert log_p[0] == pytest.approx(log_p_short[0], abs=1e-6)


@on_both_sides
def test_greedy_search_writes_what_beam_search_of_width_1_writes(side):
    model = build_translator(side)
    found = as_numpy(page(side).greedy_search(model, side.tensor(SOURCE), length=7))
    expected, _ = translate(side, model, SOURCE, 7, begin=dates.BEGIN, end=-1)
    np.testing.assert_array_equal(found, expected)
