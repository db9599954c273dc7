"""The trainings of the comparison: settings, data and batches, all in NumPy."""

from dataclasses import replace

import numpy as np
from PIL import Image

from helpers.data import sets, text
from helpers.data.byte_pairs import BytePairs
from helpers.data.photos import read_picture
from helpers.data.sequences import one_hot, symbols
from helpers.engine.set_settings import Cifar100
from helpers.engine.settings import Pictures, Reverse, Text

VALIDATION_ROWS = 5_000
VALIDATION_WINDOWS = 100
VALIDATION_PHOTOS = 1_000
PARTS = "train", "validation"
PHOTOS = {
    "image_size": 32, "n_channels": 3, "patch": 4, "n_blocks": 4, "m": 128,
    "n_heads": 4, "f": 256, "pool": "mean", "batch_size": 64, "learning_rate": 1e-3,
    "warmup": 500,
}  # fmt: skip
MOVES = {"pixels": 4, "flip": True}
SIGNAL, SPREAD = 20, 1.5  # axes in which class means differ, and by how much
STRANGE = 0.012  # share of rows that look like another class

TASKS = {
    "reverse": Reverse(),
    "anomaly": replace(Cifar100(), epochs=1, n_validation=1_000),
    "text": replace(Text(), n_blocks=4),  # twice as deep as on the page
    "vision": Pictures(**PHOTOS | {"n_train": 64 * 80, "epochs": 3, "warmup": 100}),
}


def shortened(settings, updates=None):
    """The same settings with another number of updates: part of an epoch, or epochs.

    Raises
    ------
    ValueError
        If there would be fewer than 2 updates, or a part of an epoch after a whole one.
    """
    n = settings.updates_per_epoch
    if updates is None:
        return settings
    whole = updates % n == 0
    if updates < 2 or not (updates < n or whole):
        raise ValueError(
            f"expected 2 to {n} updates, or whole epochs of {n}, got {updates}"
        )
    shorter = {"epochs": updates // n} if whole else {"epochs": 1}
    if not whole:
        shorter["n_train"] = updates * settings.batch_size
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
    """Made-up features for training and validation: class means plus noise.

    The means differ in the first ``SIGNAL`` axes only, as far as ``SPREAD`` says; noise
    has size 1 in all axes. Because of the strange rows about 94 % of the sets can be
    answered, as with the photos.

    Returns
    -------
    list of two float32 arrays ``r i``
    """
    draw = np.random.default_rng(settings.seed)
    means = np.zeros((settings.n_classes, settings.n_features), np.float32)
    means[:, :SIGNAL] = draw.normal(0, SPREAD, size=(settings.n_classes, SIGNAL))
    parts = []
    for n in (settings.n_train, VALIDATION_ROWS):
        noise = draw.standard_normal((n, settings.n_features), dtype=np.float32)
        looks = classes(n, settings)
        strange = draw.random(n) < STRANGE
        looks[strange] = draw.integers(settings.n_classes, size=strange.sum())
        parts.append(means[looks] + noise)
    return parts


def classes(n, settings):
    """Classes of the rows, in turn: integer array ``n``."""
    return np.arange(n) % settings.n_classes


def batches_of_sets(settings):
    """Sets of an epoch: a function from the epoch to an int32 array ``n b s``."""
    return sets.drawn(classes(settings.n_train, settings), settings)


def validation_sets(settings):
    """The sets to validate on, the same for all: int32 array ``b s``."""
    labels = classes(VALIDATION_ROWS, settings)
    sizes = settings.set_size, settings.n_validation
    return sets.fixed(labels, *sizes, settings.seed)


def tokens(settings):
    """Tokens for training, and as many for validation as fill some windows."""
    texts = text.load()
    pairs = BytePairs.learn(texts["train"], settings.n_tokens)
    train, test = (pairs.encode(texts[part]) for part in ("train", "test"))
    return [train, test[: VALIDATION_WINDOWS * settings.length + 1]]


def photos(settings, folder):
    """Made-up photos as JPEG files, ``folder/part/class/…``, and as arrays.

    Each is a few colours of its class with noise, made large. They are read back, so
    that both ways have the same pixels.

    Returns
    -------
    list of two pairs of uint8 ``n y x 3``, int32 ``n``
    """
    draw, pairs = np.random.default_rng(settings.seed), []
    colours = draw.uniform(64, 192, size=(settings.n_classes, 4, 4, 3))
    size = (settings.image_size,) * 2
    for part, n in zip(PARTS, (settings.n_train, VALIDATION_PHOTOS), strict=True):
        images, labels = [], classes(n, settings).astype(np.int32)
        for row, label in enumerate(labels):
            path = folder / part / f"{label:02d}" / f"{row:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            small = colours[label] + draw.normal(0, 40, size=(4, 4, 3))
            small = Image.fromarray(small.clip(0, 255).astype(np.uint8))
            small.resize(size, Image.Resampling.BICUBIC).save(path, quality=90)
            images.append(read_picture(path, settings.image_size))
        pairs.append((np.array(images), labels))
    return pairs


def in_whole_pixels(uniforms, images, labels, *, move, pixels, flip):
    """Shift by whole pixels only, as a crop does, so that nothing is blurred."""
    steps = 2 * pixels + 1  # the largest shift each way, and none
    uniforms = uniforms * steps // 1 / (steps - 1)
    return move(uniforms, images, labels, pixels=pixels, flip=flip)
