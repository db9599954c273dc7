"""Character n-grams, to compare a language model with."""

import numpy as np

from helpers.engine.checks import check_sizes


def ngram_bits(train, test, order):
    """Bits per character of a character n-gram: interpolated Witten-Bell.

    The probability after ``order - 1`` characters is a mean of what was seen after them
    and of the next shorter context's; the more different characters have followed, the
    more counts the shorter one. ``order = 1`` looks at no context.

    Source: Chen & Goodman 1998, sec. 2.4; Witten & Bell 1991, method C.
    """
    check_sizes(order=order)
    alphabet = sorted(set(train) | set(test))
    numbers = {c: n for n, c in enumerate(alphabet)}
    seen, asked = (np.array([numbers[c] for c in text]) for text in (train, test))
    p = np.full(len(asked), 1 / len(alphabet))
    for n in range(1, order + 1):
        p[n - 1 :] = witten_bell(seen, asked, n, len(alphabet), p[n - 1 :])
    return -np.log2(p).mean()


def witten_bell(seen, asked, n, size, shorter):
    """Probability of each character of ``asked`` after the ``n - 1`` before it."""
    powers = size ** np.arange(n)[::-1]  # an n-gram as one number
    ours, theirs = (
        np.lib.stride_tricks.sliding_window_view(x, n) @ powers for x in (seen, asked)
    )
    grams, counts = np.unique(ours, return_counts=True)
    contexts, first, kinds = np.unique(
        grams // size, return_index=True, return_counts=True
    )
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
