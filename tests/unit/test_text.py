"""The text, byte pairs and n-grams: nothing is lost, and counts are counts."""

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.data import text
from helpers.data.byte_pairs import PIECE, BytePairs, merged
from helpers.data.ngrams import ngram_bits
from helpers.data.sequences import in_order
from helpers.engine.settings import Text
from sides import run_python

SAMPLE = "".join(map(text.module, ("queue", "timeit")))


@pytest.fixture(scope="module")
def vocabulary():
    return BytePairs.learn(SAMPLE, 97 + 61)


# The corpus


def test_every_python_has_the_text():
    """Enough of it for training, in ASCII, and none of it twice."""
    assert len(text.TRAINING) == 30
    assert len(text.HELD_OUT) == 8
    assert not set(text.TRAINING) & set(text.HELD_OUT)
    parts = text.load()
    assert set(parts) == {"train", "test"}
    assert 1.5e6 < len(parts["train"]) < 3e6
    assert 1.2e5 < len(parts["test"]) < 3e5
    for part in parts.values():
        assert set(part) <= set(text.ASCII)
        assert "\ndef " in part
    for name in text.HELD_OUT:
        assert text.module(name) in parts["test"]
        assert text.module(name) not in parts["train"], f"{name} is not held out"


def write(folder, content, encoding="utf-8"):
    path = folder / "own.txt"
    path.write_bytes(content.encode(encoding))
    return path


def test_the_last_tenth_of_a_text_of_your_own_is_held_out(tmp_path, monkeypatch):
    """By path, or by the variable; and any characters."""
    own = "Äpfel und Öl — 苹果.\n" * 1_500
    path = write(tmp_path, own)
    for given_path in (path, str(path), None):
        monkeypatch.setenv("TEXT_FILE", "nowhere" if given_path else str(path))
        parts = text.load(given_path)
        assert parts["train"] + parts["test"] == own
        assert len(parts["test"]) == len(own) // 10
    pairs = BytePairs.learn(parts["train"], 113)
    assert pairs.decode(pairs.encode(parts["test"])) == parts["test"]


def test_a_file_that_is_no_text_raises_an_error(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"cannot read .*no\.txt: No such file"):
        text.load(tmp_path / "no.txt")
    monkeypatch.setenv("TEXT_FILE", str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot read the text .*: Is a directory"):
        text.load()
    path = write(tmp_path, "x" * 19_999)
    message = "at least 20,000 characters, got 19,999 in .*own.txt"
    with pytest.raises(ValueError, match=message):
        text.load(path)
    path = write(tmp_path, "x" * 20_000 + "ä", "latin-1")
    message = "to be text in UTF-8, got byte 0xe4 at place 20,000"
    with pytest.raises(ValueError, match=message):
        text.load(path)


# Byte pairs


@settings(max_examples=200)
@given(sample=st.text(alphabet=text.ASCII))
def test_decoding_undoes_encoding(vocabulary, sample):
    tokens = vocabulary.encode(sample)
    assert tokens.dtype == np.int32
    assert vocabulary.decode(tokens) == sample


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=30), st.integers(0, 9))
def test_any_text_can_be_learned_and_read_back(sample, merges):
    """Of any characters: as far as pairs come twice."""
    n_tokens = len(set(sample) | set(text.ASCII)) + merges
    try:
        pairs = BytePairs.learn(sample + sample, n_tokens)
    except ValueError as error:
        assert "frequent pairs" in str(error)
        return
    assert len(pairs) == n_tokens
    assert pairs.decode(pairs.encode(sample)) == sample


def test_the_most_frequent_pair_is_merged_first():
    """Worked out by hand: "ab" comes four times, then "abc" three times."""
    pairs = BytePairs.learn("abc abc abc ab\n", 8, alphabet="")
    assert pairs.tokens[:5] == ["\n", " ", "a", "b", "c"]
    assert pairs.tokens[5:] == ["ab", "abc", " abc"]
    assert [pairs.tokens[t] for t in pairs.encode("ab abc")] == ["ab", " abc"]


def test_merges_are_those_of_counting_anew(vocabulary):
    """Each by counting all neighbours of the text, as it then stands."""
    pieces = Counter(PIECE.findall(SAMPLE))
    words = {piece: [vocabulary.numbers[c] for c in piece] for piece in pieces}
    for new, merge in enumerate(vocabulary.merges, start=97):
        totals = Counter()
        for piece, word in words.items():
            for n in range(len(word) - 1):
                totals[word[n], word[n + 1]] += pieces[piece]
        assert totals[merge] == max(totals.values())
        words = {p: merged(word, merge, new) for p, word in words.items()}
    encoded = vocabulary.encode(SAMPLE)
    assert encoded.tolist() == [t for p in PIECE.findall(SAMPLE) for t in words[p]]
    assert len(SAMPLE) / len(encoded) > 1.7


def test_merging_goes_from_left_to_right():
    assert merged([1, 1, 1], (1, 1), 9) == [9, 1]
    assert merged([1, 2, 1, 2, 1], (1, 2), 9) == [9, 9, 1]


def test_an_unknown_character_is_named(vocabulary):
    with pytest.raises(ValueError, match=re.escape("unknown character 'é' (U+00E9)")):
        vocabulary.encode("a café")
    with pytest.raises(ValueError, match="expected tokens below 158, got 158"):
        vocabulary.decode([0, 158])
    assert vocabulary.decode([vocabulary.numbers["x"], -1, -1]) == "x"


def test_a_vocabulary_that_cannot_be_learned_raises_an_error():
    with pytest.raises(ValueError, match=r"at least 97, as many as .* got 96"):
        BytePairs.learn("abc", 96)
    with pytest.raises(ValueError, match="frequent pairs for 98 tokens, not for n_tok"):
        BytePairs.learn("ab ab", 99)


# Windows


@given(st.integers(2, 200), st.integers(1, 30))
def test_windows_predict_every_token_once(n, length):
    """But the first, and those that do not fill a window."""
    tokens = np.arange(n, dtype=np.int32)
    if n <= length:
        with pytest.raises(ValueError, match=f"at least {length + 1} tokens, got"):
            text.windows(tokens, length)
        return
    rows = text.windows(tokens, length)
    assert rows.shape[1] == length + 1
    labels = rows[:, 1:].ravel()
    np.testing.assert_array_equal(labels, np.arange(1, len(labels) + 1))
    assert n - 1 - len(labels) < length


def test_random_windows_are_pieces_of_the_text():
    """As many as the training has examples, from everywhere, by the seed alone."""
    small = replace(Text(), n_train=48, epochs=20, warmup=3, length=7)
    tokens = np.arange(101, dtype=np.int32) * 2
    rows = text.random_windows(tokens, small)
    assert rows.shape == (960, 8)
    assert (np.diff(rows, axis=1) == 2).all()
    assert set(rows[:, 0]) == set(tokens[:-7])
    np.testing.assert_array_equal(rows, text.random_windows(tokens, small))
    assert (rows != text.random_windows(tokens, replace(small, seed=1))).any()
    with pytest.raises(ValueError, match=r"tokens beyond a window to be .* got 0"):
        text.random_windows(tokens[:7], small)
    seen = np.concatenate([in_order(small)(epoch).ravel() for epoch in range(20)])
    np.testing.assert_array_equal(seen, np.arange(960))
    assert in_order(small)(0).shape == (3, 16)


# Bits


def test_bits_per_character_of_a_uniform_guess():
    """Of two characters per token out of 64: three bits per character."""
    assert text.bits_per_character(math.log(64), [0] * 5, "x" * 10) == pytest.approx(3)


def test_nats_are_the_losses_of_the_next_tokens():
    """Worked out one by one; large logits do not overflow."""
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=300, size=(2, 5, 7)).astype(np.float32)
    tokens = rng.integers(7, size=(2, 6))
    found = text.nats(logits, tokens)
    for row, place in np.ndindex(2, 5):
        scores = [float(z) for z in logits[row, place]]
        top = max(scores)
        total = top + math.log(sum(math.exp(z - top) for z in scores))
        expected = total - scores[tokens[row, place + 1]]
        assert found[row, place] == pytest.approx(expected, abs=1e-4)
    assert found.shape == (2, 5)


def by_hand(train, test, order):
    """Interpolated Witten-Bell with dictionaries, one character at a time."""
    alphabet, bits = set(train) | set(test), 0
    for place, character in enumerate(test):
        p = 1 / len(alphabet)
        for n in range(min(order, place + 1)):
            context = test[place - n : place]
            after = Counter(
                train[i + n]
                for i in range(len(train) - n)
                if train[i : i + n] == context
            )
            if after:
                p = (after[character] + len(after) * p) / (after.total() + len(after))
        bits -= math.log2(p)
    return bits / len(test)


@settings(max_examples=50, deadline=None)
@given(
    st.text(alphabet="abcé", min_size=6, max_size=60),
    st.text(alphabet="abcd", min_size=6, max_size=20),
    st.integers(1, 5),
)
def test_ngrams_are_those_of_counting_by_hand(train, test, order):
    expected = by_hand(train, test, order)
    assert ngram_bits(train, test, order)[-1] == pytest.approx(expected, abs=1e-9)


def test_long_ngrams_of_a_large_alphabet_are_counted_right():
    """Eight characters out of 300 are more than int64 can number: 300⁸ > 2⁶³."""
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    train = letters + letters[:40] * 3 + letters[20:50] * 2
    test = letters[10:45] + letters[:15] + letters[25:45]
    expected = by_hand(train, test, 8)
    assert ngram_bits(train, test, 8)[-1] == pytest.approx(expected, abs=1e-9)
    with pytest.raises(
        ValueError, match="texts, less 8, to be a whole number >= 1, got 0"
    ):
        ngram_bits("ab" * 4, "ab" * 15, 9)


def test_longer_contexts_help_until_they_are_too_rare():
    """And a text that repeats itself is predicted almost surely."""
    bits = ngram_bits(SAMPLE[:9_000], SAMPLE[9_000:], 3)
    assert bits[0] > bits[1] > bits[2] > 1
    assert ngram_bits("abcd" * 500, "abcd" * 50, 3)[-1] < 0.2
    with pytest.raises(ValueError, match="order to be a whole number >= 1, got 0"):
        ngram_bits("ab", "ab", 0)


def test_the_text_follows_from_the_version_of_python():
    """Another process learns the same vocabulary, whatever its seed for hashes."""
    code = (
        "from helpers.data import byte_pairs, text\n"
        "sample = ''.join(map(text.module, ('queue', 'timeit')))\n"
        "print(byte_pairs.BytePairs.learn(sample, 130).tokens)"
    )
    assert run_python(code) == str(BytePairs.learn(SAMPLE, 130).tokens)
