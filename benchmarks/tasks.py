"""The two tasks of the comparison: settings, data and batches, all in NumPy."""

from dataclasses import dataclass, replace

import numpy as np

from helpers.sequences import one_hot, shuffled, symbols
from helpers.settings import Reverse, Settings


@dataclass(frozen=True, kw_only=True)
class Anomaly(Settings):
    """Find the odd one in a set of features: one epoch of the size of CIFAR-100.

    A set has ``set_size - 1`` rows of one class and, as its last, one of another class.
    Every row is the odd one of one set of the epoch, so ``n_train`` counts both.
    """

    n_train: int = 45_000
    batch: int = 64
    epochs: int = 1
    rate: float = 5e-4
    warmup: int = 100
    n_validation: int = 1_000
    validation_rows: int = 5_000
    n_classes: int = 100
    per_class: int = 450
    n_features: int = 512
    set_size: int = 10
    noise: float = 5.0  # around means of size 1

    @property
    def model(self):
        """Arguments of ``Predictor`` by name."""
        sizes = {"n_inputs": self.n_features, "m": 256, "n_outputs": 1}
        sizes |= {"n_blocks": 4, "n_heads": 4, "f": 512}
        return sizes | {"dropout": 0.1, "input_dropout": 0.1, "positions": "none"}


TASKS = {"reverse": Reverse(), "anomaly": Anomaly()}


def shortened(settings, updates=None):
    """The same settings with fewer updates: a shorter epoch, or fewer of them.

    Raises
    ------
    ValueError
        If there would be fewer than 2 updates, more than there are, or a part of an
        epoch after a whole one.
    """
    n = settings.updates_per_epoch
    if updates is None:
        return settings
    whole = updates % n == 0 and updates <= settings.updates
    if updates < 2 or not (updates < n or whole):
        raise ValueError(
            f"expected 2 to {n} updates, or whole epochs of {n} up to "
            f"{settings.updates}, got {updates}"
        )
    shorter = {"epochs": updates // n} if whole else {"epochs": 1}
    if not whole:
        shorter["n_train"] = updates * settings.batch
    return replace(settings, warmup=min(settings.warmup, updates - 1), **shorter)


def sequences(settings):
    """Integer arrays ``b s`` for training and validation, as a tutorial has them."""
    parts = settings.n_train, settings.n_validation
    sizes = settings.length, settings.n_symbols
    return [symbols(n, *sizes, settings.seed + place) for place, n in enumerate(parts)]


def reversal(x, n_symbols):
    """What ``fit`` gets: one-hot sequences, and labels from their end."""
    return one_hot(x, n_symbols), np.ascontiguousarray(x[:, ::-1])


def features(settings):
    """Rows around class means for training and validation; row ``r`` has class
    ``r % n_classes``.

    Returns
    -------
    list of two float32 arrays ``r i``
    """
    draw = np.random.default_rng(settings.seed)
    size = settings.n_classes, settings.n_features
    means = draw.standard_normal(size, dtype=np.float32)
    parts = []
    for n in (settings.n_classes * settings.per_class, settings.validation_rows):
        noise = draw.standard_normal((n, settings.n_features), dtype=np.float32)
        parts.append(means[np.arange(n) % settings.n_classes] + settings.noise * noise)
    return parts


def rows_of_sets(odd, n_rows, settings, rng):
    """Sets that end with the rows ``odd``, no row twice: integer array ``b s``."""
    n_classes, n = settings.n_classes, settings.set_size - 1
    other = rng.integers(n_classes - 1, size=len(odd))
    other += other >= odd % n_classes  # any class but that of the odd one
    places = rng.integers(n_rows // n_classes, size=(len(odd), n))
    while (twice := repeated(places)).any():
        places[twice] = rng.integers(n_rows // n_classes, size=(twice.sum(), n))
    same = other[:, None] + n_classes * places
    return np.concatenate([same, odd[:, None]], axis=1, dtype=np.int32)


def repeated(places):
    """Does a row hold a number twice? Boolean array ``b``."""
    return (np.diff(np.sort(places, axis=1)) == 0).any(axis=1)


def batches_of_sets(settings):
    """Sets of an epoch: a function from the epoch to an int32 array ``n b s``."""
    n_rows = settings.n_classes * settings.per_class
    order = shuffled(settings)

    def batches(epoch):
        odd = order(epoch)
        rng = np.random.default_rng([settings.seed, epoch, 1])
        rows = rows_of_sets(odd.reshape(-1), n_rows, settings, rng)
        return rows.reshape(*odd.shape, settings.set_size)

    return batches


def validation_sets(settings):
    """The sets to validate on, the same for all: integer array ``b s``."""
    odd, rng = np.arange(settings.n_validation), np.random.default_rng(settings.seed)
    return rows_of_sets(odd, settings.validation_rows, settings, rng)
