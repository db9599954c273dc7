"""Masked language modelling: what is hidden, and what the loss asks for."""

import jax
import numpy as np
import pytest
import torch

from helpers import jax as in_jax
from helpers import torch as in_torch
from helpers.data.masking import check_masked, count_asked, mask_tokens
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays, to_arrays

N, MASK = 607, 607
SIZES = {"n_blocks": 1, "n_heads": 2, "f": 11, "max_length": 7}


def drawn(seed=0, share=0.15):
    tokens = np.random.default_rng(5).integers(N, size=(997, 101), dtype=np.int32)
    return tokens, *mask_tokens(tokens, N, MASK, np.random.default_rng(seed), share)


def close(found, share, n):
    """Whether a share of ``n`` draws is within five standard errors."""
    return abs(found - share) < 5 * (share * (1 - share) / n) ** 0.5


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_the_share_is_asked_for_and_of_it_80_10_10(share):
    tokens, inputs, labels = drawn(share=share)
    asked = labels >= 0
    n, hidden = asked.sum(), inputs == MASK
    assert close(asked.mean(), share, asked.size)
    assert close(hidden.sum() / n, 0.8, n)
    same = asked & (inputs == tokens)
    assert close(same.sum() / n, 0.1 + 0.1 / N, n)  # a random one can be the same
    others = inputs[asked & ~hidden & ~same]
    assert close(len(others) / n, 0.1 - 0.1 / N, n)


def test_a_random_token_can_be_any_token_but_not_the_mask():
    inputs, _ = mask_tokens(np.full((97, 101), 3), 7, 9, np.random.default_rng(0), 1)
    assert set(inputs.flat) == {*range(7), 9}


def test_who_is_asked_and_what_becomes_of_it_are_independent():
    _, inputs, labels = drawn()
    asked, hidden = (labels >= 0).mean(axis=0), (inputs == MASK).mean(axis=0)  # s
    assert all(close(share, 0.15, 997) for share in asked)
    assert all(close(share, 0.12, 997) for share in hidden)
    pairs = (labels[:, 1:] >= 0) & (labels[:, :-1] >= 0)  # of neighbours
    assert close(pairs.mean(), 0.15**2, pairs.size)


def test_labels_are_the_tokens_and_nothing_else_changes():
    tokens, inputs, labels = drawn()
    asked = labels >= 0
    np.testing.assert_array_equal(labels[asked], tokens[asked])
    assert (labels[~asked] == -1).all()
    np.testing.assert_array_equal(inputs[~asked], tokens[~asked])
    assert inputs.dtype == labels.dtype == tokens.dtype == np.int32


def test_padding_is_neither_hidden_nor_asked_for():
    tokens, *_ = drawn()
    padded = np.where(np.arange(101) < 61, tokens, -1)
    inputs, labels = mask_tokens(padded, N, MASK, np.random.default_rng(0), 1.0)
    assert (inputs[:, 61:] == -1).all() and (labels[:, 61:] == -1).all()
    assert (labels[:, :61] == tokens[:, :61]).all()
    np.testing.assert_array_equal(count_asked(inputs, labels), 61)


def test_special_tokens_are_never_asked_for_and_the_mask_may_be_one_of_them():
    tokens, *_ = drawn()
    rng = np.random.default_rng(0)
    inputs, labels = mask_tokens(tokens, N, 0, rng, 1.0, special=(0, 2))
    stay = np.isin(tokens, (0, 2))
    assert stay.any() and (labels[stay] == -1).all()
    np.testing.assert_array_equal(inputs[stay], tokens[stay])
    np.testing.assert_array_equal(labels[~stay], tokens[~stay])


def test_equal_seeds_hide_equal_tokens():
    first, second, other = drawn(3), drawn(3), drawn(4)
    np.testing.assert_array_equal(first, second)
    assert (first[1] != other[1]).any() and (first[2] != other[2]).any()
    tokens = first[0].copy()
    mask_tokens(tokens, N, MASK, np.random.default_rng(0))
    np.testing.assert_array_equal(tokens, first[0])  # those given stay


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": [[0.5]]}, "expected tokens as whole numbers, got float64"),
        ({"share": 0}, r"expected a share in \(0, 1\], got 0"),
        ({"share": 15}, r"expected a share in \(0, 1\], got 15"),
        ({"tokens": [[9]]}, "expected tokens below n_tokens = 9, got 9"),
        ({"mask_token": -1}, "expected mask_token >= 0: -1 is padding, got -1"),
    ],
)
def test_bad_input_is_one_sentence(given, message):
    given = {"tokens": [[0, 8]], "n_tokens": 9, "mask_token": 9} | given
    with pytest.raises(ValueError, match=message):
        mask_tokens(rng=np.random.default_rng(0), **given)


ROWS = np.array([[3, 9, 1, 4, -1], [9, 2, 6, 5, 3], [0, 1, 2, -1, -1]])
ASKED = np.array([[-1, 7, -1, 4, -1], [2, -1, -1, -1, -1], [-1, -1, -1, -1, -1]])


def models():
    """The same masked model in both frameworks."""
    torch_model = in_torch.build(in_torch.MaskedLM, 10, 6, seed=1, **SIZES)
    jax_model = in_jax.build(in_jax.MaskedLM, 10, 6, seed=2, **SIZES)
    from_arrays(jax_model, to_arrays(torch_model))
    return (in_torch, torch_model, torch.tensor), (in_jax, jax_model, jax.numpy.asarray)


def test_the_loss_is_the_mean_of_minus_ln_p_where_asked():
    for side, model, array in models():
        rows, labels = array(ROWS), array(ASKED)
        logits = as_numpy(model(rows)).astype(np.float64)  # b s c
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        places = [(0, 1), (0, 3), (1, 0)]
        wanted = -np.mean([log_p[at][ASKED[at]] for at in places])
        hits = np.mean([logits[at].argmax() == ASKED[at] for at in places])
        loss, metrics = side.masked_token(model, rows, labels)
        np.testing.assert_allclose(as_numpy(loss), wanted, rtol=1e-5)
        np.testing.assert_allclose(as_numpy(metrics["accuracy"]), hits, rtol=1e-6)


def test_a_row_counts_by_its_labels_in_evaluate():
    for side, model, array in models():
        whole = as_numpy(side.masked_token(model, array(ROWS), array(ASKED))[0])
        for size in (2, 3):
            found = side.evaluate(
                model, side.masked_token, (ROWS, ASKED), batch_size=size
            )
            np.testing.assert_allclose(found["loss"], whole, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (ROWS, ASKED[:, 1:], r"expected inputs and labels b s .*\(3, 5\).*\(3, 4\)"),
        (ROWS, ASKED / 2, "expected inputs and labels b s of whole numbers.*float64"),
        (ROWS + 1, ASKED, "expected data below 10, or -1, got -1 to 10"),
        (ROWS - 1, ASKED, "expected data below 10, or -1, got -2 to 8"),
        (ROWS, ROWS * 0 - 1, "expected labels in the .*, got 0, 0 of them"),
        (
            ROWS,
            ROWS * 0 + 1,
            "expected labels .*none at padding, got 15, 3 of them",
        ),
    ],
)
def test_bad_labels_are_one_sentence(rows, labels, message):
    for side, model, _ in models():
        with pytest.raises(ValueError, match=message):
            side.evaluate(model, side.masked_token, (rows, labels))
    assert in_jax.masked_token.check_labels is check_masked
