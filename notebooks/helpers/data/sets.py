"""Anomaly task: seeded sets with an odd one, from any features and labels, as arrays.

A set is a row of row numbers: first elements of one class, then the odd one of another.
Your own data need two arrays, for ``split``: see the end of the chapter *anomaly*.
"""

import os
from dataclasses import dataclass, replace

import numpy as np

from helpers.data import photos, pictures
from helpers.data.sequences import shuffled
from helpers.engine.checks import check_data, check_sizes, expect
from helpers.engine.set_settings import Anomaly, Cifar100, Digits, check_set_size
from helpers.engine.shapes import check_shape

KNOWN = "digits", "cifar100"  # sources of which the pages assert what comes out
LEAST = 30  # elements of a class, so that each of three parts has two or more


@dataclass(frozen=True)
class Part:
    """One part of the data, all arrays in the same order.

    ``features`` floats ``r i``; ``labels`` integers ``r``; ``images``, for figures only,
    uint8 ``r y x`` or ``r y x 3``.
    """

    features: np.ndarray
    labels: np.ndarray
    images: np.ndarray | None = None

    def __post_init__(self):
        n, labels = check_shape(self.features, "r i")["r"], self.labels
        check_shape(labels, "r", r=n)
        cure = "numpy.unique(labels, return_inverse=True)[1] numbers the classes"
        got = f"{labels.dtype}, such as {labels[:1].tolist()}: {cure}"
        expect(labels.dtype.kind in "iu", "whole numbers as labels", got)
        if self.images is not None:
            check_data((labels, self.images), "labels and images")
        check_data((self.features,), "features")

    def __len__(self):
        return len(self.labels)

    def take(self, rows):
        """The part that has only these rows."""
        images = None if self.images is None else self.images[rows]
        return Part(self.features[rows], self.labels[rows], images)

    def only(self, classes):
        """The part that has only elements of these classes."""
        return self.take(np.flatnonzero(np.isin(self.labels, classes)))


def check_classes(labels, set_size):
    """Raise ValueError unless sets can be drawn from these labels."""
    check_sizes(set_size=set_size)
    check_set_size(set_size)
    classes = np.unique(labels)
    expect(len(classes) >= 2, "at least two classes", classes.tolist())
    check_least(labels, set_size - 1, f"a set of {set_size} needs {set_size - 1}")


def check_least(labels, n, why):
    """Raise ValueError unless every class has ``n`` elements."""
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < n:
        smallest = classes[counts.argmin()]
        raise ValueError(f"class {smallest} has {counts.min()} elements, {why}")


def draw_sets(labels, set_size, odd, rng):
    """Complete odd ones, rows ``b`` of ``labels``, to sets: int32 row numbers ``b s``.

    A set has different elements of one class, drawn uniformly from all but that of the
    odd one, which comes last; ``set_size`` counts it. Classes may differ in size.
    """
    check_classes(labels, set_size)
    classes, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    lots = rng.random((len(odd), len(classes)))
    lots[np.arange(len(odd)), which[odd]] = -1
    same = lots.argmax(axis=1)  # b
    places = distinct(counts[same], set_size - 1, rng)
    first = np.cumsum(counts) - counts  # where each class begins, once sorted
    rows = np.argsort(labels, kind="stable")[first[same][:, None] + places]
    return np.column_stack([rows, odd]).astype(np.int32)


def distinct(sizes, n, rng):
    """Different numbers below each size, every choice equally likely: ``b -> b n``.

    Source: R. Floyd's method (Bentley & Floyd 1987, A sample of brilliance).
    """
    chosen = np.empty((len(sizes), n), np.int64)
    for place in range(n):
        last = sizes - n + place
        draw = rng.integers(last + 1)
        taken = (chosen[:, :place] == draw[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, last, draw)
    return chosen


def drawn(labels, settings):
    """New sets for every epoch: from the epoch to an int32 array ``n b s``.

    Each of the ``n_train`` labels, else a ValueError, is the odd one of one set of the
    epoch, but for those that fill no batch. The sets depend on seed and epoch alone.
    """
    expect(len(labels) == (n := settings.n_train), f"n_train = {n} labels", len(labels))
    check_classes(labels, settings.set_size)
    order = shuffled(settings)

    def batches(epoch):
        odd = order(epoch)  # n b
        rng = np.random.default_rng([settings.seed, epoch, 1])
        rows = draw_sets(labels, settings.set_size, odd.reshape(-1), rng)
        return rows.reshape(*odd.shape, settings.set_size)

    return batches


def fixed(labels, set_size, n, seed):
    """Fixed sets, each element in turn odd: int32 ``n s``; errors as ``draw_sets``."""
    check_sizes(n=n)
    rng = np.random.default_rng(seed)
    turns = -(-n // max(len(labels), 1))
    odd = np.concatenate([rng.permutation(len(labels)) for _ in range(turns)])[:n]
    return draw_sets(labels, set_size, odd, rng)


def split(features, labels, images=None, *, seed=42):
    """Your own data in three parts: ``train``, ``validation``, ``test``, as ``Part``.

    A fifth of each class is for the test, a tenth of the rest for validation, in random
    order; each feature is standardised by its mean and deviation in the training part.
    """
    labels = np.asarray(labels)
    with np.errstate(over="ignore"):  # an infinite feature is named by Part
        features = np.asarray(features).astype(np.float32)
    whole = Part(features, labels, images)
    check_least(labels, LEAST, f"three parts need at least {LEAST}")
    rest, test = divided(whole, 0.2, seed)
    train, validation = divided(rest, 0.1, seed)
    return centred({"train": train, "validation": validation, "test": test}, axis=0)


def divided(part, share, seed):
    """A part in two; the second one gets this share of each class."""
    return [part.take(rows) for rows in pictures.divide(part.labels, share, seed)]


def digits(seed):
    """The 1,797 digits of scikit-learn: ``Part`` by name of three parts, class names.

    Features are the 64 grey values, divided by 16, in all parts of the same 13 writers.
    Source: Alpaydin & Kaynak 1998, Optical Recognition of Handwritten Digits (UCI).
    """
    found, names = pictures.digits(seed), [*"0123456789"]
    return {
        name: Part(x.reshape(len(x), -1), y, np.round(255 * x[..., 0]).astype(np.uint8))
        for name, (x, y) in found.items()
    }, names


def of_photos(name, seed):
    """Photos with their features in three parts, and the names of the classes.

    The features are those of ResNet34, or if ``make data`` made none ``mean_colours``, and
    centred. Validation takes a tenth of each class of the training part; of classes with
    fewer than a hundred photos, a fifth. Returns as ``digits``, raises as ``photos``.
    """
    found, names = photos.load_images(name)
    if photos.prepared(name) or name in KNOWN:
        features = photos.load_features(name, found)
    else:
        features = {part: mean_colours(images) for part, (images, _) in found.items()}
    whole = {part: Part(features[part], y, x) for part, (x, y) in found.items()}
    few = np.bincount(whole["train"].labels).min() < 100
    rest, validation = divided(whole["train"], 0.2 if few else 0.1, seed)
    parts = {"train": rest, "validation": validation, "test": whole["test"]}
    return centred(parts), names


def mean_colours(images, n=8):
    """Mean red, green and blue in ``n × n`` squares: ``r y x 3 -> r i`` from 0 to 1."""
    r, y, x, i = images.shape
    squares = images.reshape(r, n, y // n, n, x // n, i)
    return squares.mean(axis=(2, 4), dtype=np.float32).reshape(r, -1) / 255


def centred(parts, axis=None):
    """The same parts with centred features of standard deviation 1.

    The mean of each feature and one standard deviation for all of them, or with
    ``axis=0`` for each, are those of ``parts["train"]``.
    """
    train = parts["train"].features
    mean = train.mean(axis=0, dtype=np.float64).astype(np.float32)
    size = (train - mean).std(axis, dtype=np.float64).astype(np.float32)
    size = np.where(size > 0, size, 1)
    return {
        name: replace(part, features=(part.features - mean) / size)
        for name, part in parts.items()
    }


def load(settings):
    """Images as ``Part`` by name: ``train``, ``validation``, ``test``; class names.

    The first ``n_train`` images are taken. ValueError if the source is unknown, or its
    sizes differ from the settings.
    """
    is_digits, seed = settings.source == "digits", settings.seed
    parts, names = digits(seed) if is_digits else of_photos(settings.source, seed)
    n_train, n_features = parts["train"].features.shape
    n, i, c = settings.n_train, settings.n_features, settings.n_classes
    expect(
        (n_features, len(names)) == (i, c) and n_train >= n,
        f"{settings.source} to have {n} images for training, {i} features and {c} classes",
        f"{n_train}, {n_features} and {len(names)}",
    )
    parts["train"] = parts["train"].take(np.arange(settings.n_train))
    return parts, names


def settings_for(source, device):
    """Settings of the chapter *anomaly* for a source of images and a device.

    On a CPU, training on photos takes two epochs and promises less. Of photos that are
    not ``KNOWN`` all sizes follow, and nothing is promised: a set has ten, or what half of
    a class's test photos, and all its validation photos, fill; else a ValueError.
    """
    if source == "cifar100" and device == "cpu":
        return Cifar100(epochs=2, least_accuracy=0.5)
    if source in KNOWN:
        return Digits() if source == "digits" else Cifar100()
    parts, names = of_photos(source, Anomaly.seed)
    n = {name: np.bincount(part.labels).min().item() for name, part in parts.items()}
    set_size = min(10, n["validation"], n["test"] // 2)
    if len(names) < 4 or set_size < 3:
        raise ValueError(
            "sets of seen and of unseen classes need four classes or more, each with "
            f"three photos for validation and six for the test, got {len(names)} "
            f"classes, the smallest with {n['validation']} and {n['test']}: {source}"
        )
    settings = Anomaly.for_data(
        parts, source=source, n_unseen=max(2, 3 * len(names) // 10), set_size=set_size,
        least_accuracy=0.0, least_gain=0.0,
    )  # fmt: skip
    return replace(settings, epochs=max(2, settings.epochs))


def source():
    """Where images come from: ``$PHOTOS``, else CIFAR-100 if it is prepared."""
    default = "cifar100" if photos.prepared("cifar100") else "digits"
    return os.environ.get("PHOTOS") or default
