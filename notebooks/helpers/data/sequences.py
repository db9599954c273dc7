"""Reverse task: seeded NumPy data and batches, the same for both frameworks."""

import numpy as np


def one_hot(x, n_symbols):
    """Each number as a row with a single 1: ``b s -> b s i``, float32."""
    return np.eye(n_symbols, dtype=np.float32)[x]


def reverse_data(
    n_train, length, *, n_symbols=10, seed=42, n_validation=1000, n_test=10_000
):
    """By part, one-hot sequences float32 ``b s i`` and their reverse int32 ``b s``."""
    sizes, data = {"train": n_train, "validation": n_validation, "test": n_test}, {}
    for place, (name, n) in enumerate(sizes.items()):
        rng = np.random.default_rng(seed + place)
        x = rng.integers(n_symbols, size=(n, length), dtype=np.int32)
        data[name] = one_hot(x, n_symbols), np.ascontiguousarray(x[:, ::-1])
    return data


def shuffled(settings):
    """Batches of an epoch: a function from the epoch to an int32 array ``n b``.

    The order depends only on the settings' seed and the epoch.
    """

    def batches(epoch):
        rng = np.random.default_rng([settings.seed, epoch])
        order = rng.permutation(settings.n_train).astype(np.int32)
        n = settings.updates_per_epoch
        return order[: n * settings.batch_size].reshape(n, settings.batch_size)

    return batches


def draw_uniforms(settings, epoch, batches):
    """Eight numbers in [0, 1) an example, by seed and epoch: float32 ``n b 8``."""
    rng = np.random.default_rng([settings.seed, epoch, 8])
    return rng.random((*np.shape(batches)[:2], 8), dtype=np.float32)


def batches_of(epoch, arrays, settings, tensor, batches=None, augment=None):
    """The batches of an epoch, one after the other, as a framework's arrays.

    ``batches(epoch)`` gives the rows of every update, ``n b``: without it, all in a new
    order. ``augment(uniforms, *batch)`` changes a batch by chance: ``uniforms`` are
    eight random numbers from 0 to 1 for each example, ``b 8``.
    """
    index = (batches or shuffled(settings))(epoch)  # n b
    uniforms = draw_uniforms(settings, epoch, index)  # n b 8
    for rows, numbers in zip(index, uniforms, strict=True):
        batch = [tensor(x[rows]) for x in arrays]
        yield augment(tensor(numbers), *batch) if augment else batch


def in_order(settings):
    """As ``shuffled``, for ``epochs·n_train`` rows in random order: each comes once."""
    shape = settings.updates_per_epoch, settings.batch_size
    first = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    return lambda epoch: first + np.int32(epoch * settings.n_train)
