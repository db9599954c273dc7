"""Character n-grams, to compare a language model with."""

import numpy as np


def ngram_bits(train, test, order):
    """Bits per character of the n-grams of 1 to ``order``: interpolated Witten-Bell.

    The probability after n - 1 characters is a mean of what was seen after them and of
    the next shorter context's, which counts more, the more characters have followed.

    Source: Chen & Goodman 1998, sec. 2.4; Witten & Bell 1991, method C.
    """
    alphabet = sorted(set(train) | set(test))
    numbers = {c: n for n, c in enumerate(alphabet)}
    seen, asked = (np.array([numbers[c] for c in text]) for text in (train, test))
    p = np.full(len(asked), 1 / len(alphabet))
    ours, theirs, size, bits = seen, asked, len(alphabet), []
    for n in range(order):
        if n:  # numbered anew, so that none becomes too large for int64
            numbers = np.unique(np.append(ours, theirs), return_inverse=True)[1]
            ours, theirs = numbers[: len(ours)], numbers[len(ours) :]
            ours, theirs = ours[:-1] * size + seen[n:], theirs[:-1] * size + asked[n:]
        p[n:] = witten_bell(ours, theirs, size, p[n:])
        bits.append(-np.log2(p).mean())
    return bits


def witten_bell(ours, theirs, size, shorter):
    """Probability of the last character of n-grams: context · size + character."""
    grams, counts = np.unique(ours, return_counts=True)
    before = grams // size
    contexts, first, kinds = np.unique(before, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first)
    count = looked_up(theirs, grams, counts)
    total, kind = (looked_up(theirs // size, contexts, x) for x in (totals, kinds))
    known = total > 0
    mixed = (count + kind * shorter) / np.where(known, total + kind, 1)
    return np.where(known, mixed, shorter)


def looked_up(keys, known, values):
    """The value of each key, 0 if it is not known; ``known`` is sorted."""
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[place] == keys, values[place], 0)
