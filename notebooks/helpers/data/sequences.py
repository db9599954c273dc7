"""Reverse task: seeded NumPy data and batches, the same for both frameworks."""

import numpy as np

from helpers.engine.checks import check_sizes


def symbols(n, length, n_symbols, seed):
    """``n`` random sequences: int32 array ``b s`` with numbers below ``n_symbols``."""
    check_sizes(n=n, length=length, n_symbols=n_symbols)
    draw = np.random.default_rng(seed)
    return draw.integers(n_symbols, size=(n, length), dtype=np.int32)


def one_hot(x, n_symbols):
    """Each number as a row with a single 1: ``b s -> b s i``, float32."""
    return np.eye(n_symbols, dtype=np.float32)[x]


def reverse_data(settings):
    """By part, one-hot sequences float32 ``b s i`` and their reverse int32 ``b s``."""
    data = {}
    for place, name in enumerate(("train", "validation", "test")):
        n, seed = getattr(settings, f"n_{name}"), settings.seed + place
        x = symbols(n, settings.length, settings.n_symbols, seed)
        data[name] = one_hot(x, settings.n_symbols), np.ascontiguousarray(x[:, ::-1])
    return data


def shuffled(settings):
    """Batches of an epoch: a function from the epoch to an int32 array ``n b``.

    The order depends only on seed and epoch: a resumed training sees the same batches.
    """

    def batches(epoch):
        rng = np.random.default_rng([settings.seed, epoch])
        order = rng.permutation(settings.n_train).astype(np.int32)
        n = settings.updates_per_epoch
        return order[: n * settings.batch_size].reshape(n, settings.batch_size)

    return batches


def draw_uniforms(settings, epoch, batches):
    """Eight numbers in [0, 1) for each example, by seed and epoch: float32 ``n b 8``."""
    rng = np.random.default_rng([settings.seed, epoch, 8])
    return rng.random((*np.shape(batches)[:2], 8), dtype=np.float32)


def in_order(settings):
    """Batches of an epoch, each row of the data once in the whole training.

    For data with ``epochs·n_train`` rows that are in random order already: a function
    from the epoch to an int32 array ``n b``, as ``shuffled``.
    """
    shape = settings.updates_per_epoch, settings.batch_size
    first = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    return lambda epoch: first + np.int32(epoch * settings.n_train)


def count_tokens(*batch):
    """How many tokens of each text are labels: what ``next_token`` is a mean over."""
    return (batch[-1][:, 1:] >= 0).sum(1)
