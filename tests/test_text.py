"""The text, byte pairs and n-grams: nothing is lost, and counts are counts."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.data import text
from helpers.data.byte_pairs import ASCII, PIECE, BytePairs, merged
from helpers.data.sequences import in_order
from helpers.settings import Settings

SAMPLE = "".join(map(text.module, ("queue", "timeit")))
PAIRS = BytePairs.learn(SAMPLE, 97 + 61)


def test_every_python_has_the_text():
    """Enough of it for training, in ASCII, and no module in both parts."""
    parts = text.load()
    assert not set(text.TRAINING) & set(text.HELD_OUT)
    assert 1.5e6 < len(parts["train"]) < 3e6 and 1.2e5 < len(parts["test"]) < 3e5
    assert set(parts["train"] + parts["test"]) <= set(ASCII)
    for name in text.HELD_OUT:
        assert text.module(name) in parts["test"]
        assert text.module(name) not in parts["train"], f"{name} is not held out"


def test_the_last_tenth_of_a_text_of_your_own_is_held_out(tmp_path, monkeypatch):
    """By path, or by the variable; and any characters."""
    own, path = "Äpfel und Öl — 苹果.\n" * 150, tmp_path / "own.txt"
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")  # of a page; its reader stands above
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(own, encoding)
        monkeypatch.setenv("TEXT_FILE", "own.txt")
        for parts in (text.load(path), text.load()):
            assert parts["train"] + parts["test"] == own
            assert len(parts["test"]) == len(own) // 10
    pairs = BytePairs.learn(parts["train"], 113)
    assert pairs.decode(pairs.encode(parts["test"])) == parts["test"]


HAN = "".join(map(chr, range(0x4E00, 0x4E00 + 700)))


@pytest.mark.parametrize(
    "new",
    ["é", "苹果", "Привет, мир", "नमस्ते", "مرحبا", "שלום", "👩🏽‍💻", "e\u0301", HAN,
     "\r\f\0", "\\u{e9}", r"\u{5c}u{", r"\u{ü\ü}", "\U0010ffff", "\u2028b\u00a0c"],
)  # fmt: skip
def test_any_character_has_tokens_and_comes_back(new):
    """Also those that training text, or a published vocabulary, does not have."""
    learned = BytePairs.learn(new + HAN + " to be or not to be" * 9, 150)
    for pairs in (PAIRS, BytePairs(ASCII), learned):
        assert pairs.decode(pairs.encode(f"a {new}.")) == f"a {new}."


@pytest.mark.parametrize("run", ["ACGT" * 25_000, "\n" + " " * 99_999, "=-" * 50_000])
def test_a_run_without_end_becomes_short_pieces(run):
    """They are those of the book's text; one piece of 100,000 would take minutes."""
    pieces = PIECE.findall(run)
    assert "".join(pieces) == run and max(map(len, pieces)) <= 102
    longest = PIECE.findall("\n" + " " * 67 + "_" * 49 + "(" * 80)  # of the book
    assert [*map(len, longest)] == [68, 49, 80]


@settings(max_examples=200)
@given(st.text(alphabet=ASCII))
def test_decoding_undoes_encoding(sample):
    tokens = PAIRS.encode(sample)
    assert tokens.dtype == np.int32
    assert PAIRS.decode([*tokens, -1, -1]) == sample  # -1 is padding
    again = BytePairs.from_metadata(PAIRS.metadata)
    np.testing.assert_array_equal(again.encode(sample), tokens)


def test_the_most_frequent_pair_is_merged_first_and_from_left_to_right():
    """Worked out by hand: "ab" comes four times, then "abc" three times."""
    pairs = BytePairs.learn("abc abc abc ab\n", 8, alphabet="")
    assert pairs.tokens == ["\n", " ", "a", "b", "c", "ab", "abc", " abc"]
    assert [pairs.tokens[t] for t in pairs.encode("ab abc")] == ["ab", " abc"]
    assert merged([1, 1, 1], (1, 1), 9) == [9, 1]


def test_merges_are_those_of_counting_anew():
    """Each by counting all neighbours of the text, as it then stands."""
    pieces = Counter(PIECE.findall(SAMPLE))
    words = {piece: [PAIRS.numbers[c] for c in piece] for piece in pieces}
    for new, merge in enumerate(PAIRS.merges, start=97):
        totals = Counter()
        for piece, word in words.items():
            for n in range(len(word) - 1):
                totals[word[n], word[n + 1]] += pieces[piece]
        assert totals[merge] == max(totals.values())
        words = {p: merged(word, merge, new) for p, word in words.items()}
    encoded = PAIRS.encode(SAMPLE)
    assert encoded.tolist() == [t for p in PIECE.findall(SAMPLE) for t in words[p]]
    assert len(SAMPLE) / len(encoded) > 1.7


@given(st.integers(2, 200), st.integers(1, 30))
def test_windows_predict_every_token_once(n, length):
    """But the first, and those that do not fill a window."""
    rows = text.windows(np.arange(max(n, length + 1), dtype=np.int32), length)
    labels = rows[:, 1:].ravel()
    np.testing.assert_array_equal(rows[:, :-1].ravel() + 1, labels)
    np.testing.assert_array_equal(labels, np.arange(1, len(labels) + 1))
    assert n - 1 - len(labels) < length


def test_random_windows_are_pieces_of_the_text():
    """As many as the training has examples, from everywhere, by the seed alone."""
    small = Settings(n_train=48, batch_size=16, epochs=20, learning_rate=1)
    tokens = np.arange(101, dtype=np.int32) * 2
    rows = text.random_windows(tokens, 7, small)
    assert rows.shape == (960, 8) and (np.diff(rows, axis=1) == 2).all()
    assert set(rows[:, 0]) == set(tokens[:-7])
    np.testing.assert_array_equal(rows, text.random_windows(tokens, 7, small))
    assert (rows != text.random_windows(tokens, 7, replace(small, seed=1))).any()
    seen = np.concatenate([in_order(small)(epoch).ravel() for epoch in range(20)])
    np.testing.assert_array_equal(seen, np.arange(960))


def test_nats_are_the_losses_of_the_next_tokens_and_become_bits():
    """Worked out one by one; large logits do not overflow."""
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=300, size=(2, 5, 7)).astype(np.float32)
    tokens = rng.integers(7, size=(2, 6))
    found = text.nats(logits, tokens)
    for row, place in np.ndindex(2, 5):
        scores = logits[row, place].astype(float)
        total = scores.max() + math.log(np.exp(scores - scores.max()).sum())
        expected = total - scores[tokens[row, place + 1]]
        assert found[row, place] == pytest.approx(expected, abs=1e-4)
    assert text.bits_per_character(math.log(64), [0] * 5, "x" * 10) == pytest.approx(3)


def by_hand(train, test, order):
    """Interpolated Witten-Bell with dictionaries, one character at a time."""
    alphabet, bits = set(train) | set(test), 0
    for place, character in enumerate(test):
        p = 1 / len(alphabet)
        for n in range(min(order, place + 1)):
            context = test[place - n : place]
            starts = range(len(train) - n)
            after = Counter(train[i + n] for i in starts if train[i : i + n] == context)
            if after:
                p = (after[character] + len(after) * p) / (after.total() + len(after))
        bits -= math.log2(p)
    return bits / len(test)


def test_ngrams_are_those_of_counting_by_hand():
    """Also eight characters out of 300, more than int64 can number: 300⁸ > 2⁶³."""
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    train = letters + letters[:40] * 3 + letters[20:50] * 2
    test = letters[10:45] + letters[:15] + letters[25:45]
    assert text.ngram_bits(train, test, 8)[-1] == pytest.approx(by_hand(train, test, 8))
    for n in (1, 2, 5):
        pair = SAMPLE[:900], SAMPLE[900:1000] + "é"
        assert text.ngram_bits(*pair, 5)[n - 1] == pytest.approx(by_hand(*pair, n))
