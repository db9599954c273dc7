"""Pictures with labels in three parts: scikit-learn's digits, or anybody's photos.

``$PHOTOS`` says which, as in ``helpers.data.photos``; without it the digits are taken.
Pictures are arrays ``n y x i``, floats from 0 to 1 or ``uint8``; labels are int32 ``n``.
"""

import os

import numpy as np

from helpers.data import photos


def load(source, seed):
    """Training, validation and test part by name, and the names of the classes.

    A part is a pair ``n y x i``, ``n``; the source ``digits``, or of ``helpers.data.photos``,
    of which a tenth of each class of the training part is for validation.
    """
    if source == "digits":
        return digits(seed), [*"0123456789"]
    parts, names = photos.load_images(source)
    images, labels = parts["train"]
    chosen = held_out(labels, 0.1, 1, seed)
    rows = {"train": ~chosen, "validation": chosen}
    found = {name: (images[r], labels[r]) for name, r in rows.items()}
    return found | {"test": parts["test"]}, names


def digits(seed):
    """The 1,797 digits of scikit-learn in three parts, of 8 × 8 pixels from 0 to 1."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images[..., None] / 16).astype(np.float32)
    labels = found.target.astype(np.int32)
    rest, test = divide(labels, 0.2, seed)
    train, validation = divide(labels, 0.1, seed, rest)
    rows = {"train": train, "validation": validation, "test": test}
    return {name: (images[r], labels[r]) for name, r in rows.items()}


def divide(labels, share, seed, rows=None):
    """Rows in two parts, the second with this share of each class: integer arrays."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels)) if rows is None else rows
    options = {"test_size": share, "stratify": labels[rows], "random_state": seed}
    return train_test_split(rows, **options)


def held_out(labels, share, least, seed):
    """A share of each class, but at least so many, at random: boolean array ``n``."""
    rng, chosen = np.random.default_rng(seed), np.zeros(len(labels), bool)
    for number in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == number))
        chosen[rows[: max(least, round(share * len(rows)))]] = True
    return chosen


def source():
    """Where pictures come from: ``$PHOTOS``, else the digits."""
    name = os.environ.get("PHOTOS") or "digits"
    known = ["digits", *photos.DATA]
    if name not in known and not photos.located(name).is_dir():
        expected = f"{', '.join(known)}, or a folder of pictures"
        raise ValueError(f"PHOTOS = {name!r}: expected {expected}")
    return name


def shifted(images, down, right):
    """Pictures ``n y x i`` moved by whole pixels, negative up or left; black comes in."""
    height, width = images.shape[1:3]
    y, x = abs(down), abs(right)
    padded = np.pad(images, [(0, 0), (y, y), (x, x), (0, 0)])
    return padded[:, y - down :, x - right :][:, :height, :width]
