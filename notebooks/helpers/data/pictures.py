"""Pictures with labels in three parts: scikit-learn's digits, or anybody's photos.

``$PHOTOS`` says which, as in ``helpers.data.photos``; without it the digits are taken.
Pictures are arrays ``n y x i``, floats from 0 to 1 or ``uint8``; labels are int32 ``n``.
"""

import os

import numpy as np

from helpers.data import sets


def load(source, seed):
    """Training, validation and test part, and the names of the classes.

    Parameters
    ----------
    source : str
        ``digits``, or what ``helpers.data.photos.prepare`` knows.
    seed : int
        Of the split: a tenth of each class of the training part is for validation.

    Returns
    -------
    dict of str to (array ``n y x i``, int32 array ``n``), list of str

    Raises
    ------
    FileNotFoundError
        If ``make data`` has not prepared the photos.
    ValueError
        If the source is unknown, or the file is damaged.
    """
    if source == "digits":
        parts, names = sets.digits(seed)
        pairs = {
            name: (part.features.reshape(-1, 8, 8, 1), part.labels.astype(np.int32))
            for name, part in parts.items()
        }
        return pairs, names
    from helpers.data import photos

    parts, names = photos.load_images(source)
    images, labels = parts["train"]
    held_out = photos.held_out(labels, 0.1, 1, seed)
    return {
        "train": (images[~held_out], labels[~held_out]),
        "validation": (images[held_out], labels[held_out]),
        "test": parts["test"],
    }, names


def source():
    """Where pictures come from: ``$PHOTOS``, else the digits."""
    return os.environ.get("PHOTOS") or "digits"


def shifted(images, down, right):
    """Pictures moved by whole pixels; black comes in: ``n y x i -> n y x i``.

    Parameters
    ----------
    images : array ``n y x i``
    down, right : int
        Less than the picture is wide; negative is up, or left.
    """
    moved = np.zeros_like(images)
    height, width = images.shape[1:3]
    into, out = [
        (slice(max(0, by), size + min(0, by)), slice(max(0, -by), size - max(0, by)))
        for by, size in ((down, height), (right, width))
    ]
    moved[:, into[0], out[0]] = images[:, into[1], out[1]]
    return moved
