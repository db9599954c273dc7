"""Sets with an odd one: seeded, from any features and labels, as NumPy arrays.

A set is a row of row numbers: first elements of one class, then the odd one of another.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from helpers.data.sequences import shuffled

PARTS = "train", "validation", "test"


class Part(NamedTuple):
    """One part of the data, all arrays in the same order.

    ``features`` float32 ``r i``; ``labels`` integers ``r``; ``images``, for figures only,
    uint8 ``r y x`` or ``r y x 3``.
    """

    features: np.ndarray
    labels: np.ndarray
    images: np.ndarray | None = None

    def take(self, rows):
        """The part that has only these rows."""
        images = None if self.images is None else self.images[rows]
        return Part(self.features[rows], self.labels[rows], images)

    def only(self, classes):
        """The part that has only elements of these classes."""
        return self.take(np.flatnonzero(np.isin(self.labels, classes)))


def draw_sets(labels, set_size, odd, rng):
    """Complete odd ones, rows ``b`` of ``labels``, to sets: int32 row numbers ``b s``.

    A set has different elements of one class, drawn uniformly from all but that of the
    odd one, which comes last; ``set_size`` counts it. Classes may differ in size.
    """
    classes, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2 or counts.min() < set_size - 1:
        raise ValueError(
            f"sets of {set_size} need two classes or more, each with {set_size - 1} "
            f"elements; got {len(classes)}, the smallest with {counts.min()}"
        )
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


def drawn(labels, set_size, settings):
    """New sets for every epoch: from the epoch to an int32 array ``n b s``.

    Each of the ``n_train`` labels is the odd one of one set of the epoch, but for those
    that fill no batch. The sets depend on seed and epoch alone.
    """
    order = shuffled(settings)

    def batches(epoch):
        odd = order(epoch)  # n b
        rng = np.random.default_rng([settings.seed, epoch, 1])
        rows = draw_sets(labels, set_size, odd.reshape(-1), rng)
        return rows.reshape(*odd.shape, set_size)

    return batches


def fixed(labels, set_size, n, seed):
    """Fixed sets, each element in turn odd: int32 ``n s``."""
    rng = np.random.default_rng(seed)
    turns = -(-n // len(labels))
    odd = np.concatenate([rng.permutation(len(labels)) for _ in range(turns)])[:n]
    return draw_sets(labels, set_size, odd, rng)


def digits(seed):
    """The 1,797 digits of scikit-learn, divided as in *vision*: pixels are features.

    Source: Alpaydin & Kaynak 1998, Optical Recognition of Handwritten Digits (UCI).
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    labels = found.target.astype(np.int32)
    images = np.round(255 / 16 * found.images).astype(np.uint8)
    whole = Part((found.data / 16).astype(np.float32), labels, images)
    rest, test = divide(labels, 0.2, seed)
    train, validation = divide(labels, 0.1, seed, rest)
    rows = zip(PARTS, (train, validation, test), strict=True)
    return {name: whole.take(chosen) for name, chosen in rows}, [*"0123456789"]


def features_file(source):
    """Where ``make data`` writes the features of photos; ``source`` as ``$PHOTOS``."""
    folder = os.environ.get("DATA_FOLDER") or Path(__file__).parents[2] / "data"
    return Path(folder) / f"{Path(source).expanduser().resolve().name}-resnet34.npz"


def photos(source, seed):
    """Photos that ``make data`` has prepared, in three parts, as ``digits``.

    Features are those of a ResNet34, less the mean of each and divided by one standard
    deviation, both of the training part; a tenth of it becomes the validation part.
    """
    path = features_file(source)
    found = np.load(path.with_name(path.name.replace("-resnet34", "")))
    for folder in (Path(source).expanduser(), Path("..", source)):
        if folder.is_dir() and digest(folder) != str(found.get("digest")):
            raise ValueError(f"{source} has changed: make data PHOTOS={source}")
    x, whole = np.load(path), {}
    for part in ("train", "test"):
        whole[part] = Part(x[part], found[f"{part}_labels"], found[f"{part}_images"])
    train, validation = divide(whole["train"].labels, 0.1, seed)
    parts = [whole["train"].take(train), whole["train"].take(validation), whole["test"]]
    mean = parts[0].features.mean(axis=0)
    size = (parts[0].features - mean).std()
    scaled = [part._replace(features=(part.features - mean) / size) for part in parts]
    return dict(zip(PARTS, scaled, strict=True)), found["classes"].tolist()


def digest(folder):
    """What changes with the files of a folder: their places, sizes and times."""
    found = sorted(folder.resolve().rglob("[!.]*"))
    stats = [(str(path), path.stat()) for path in found if path.is_file()]
    return repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def divide(labels, share, seed, rows=None):
    """Rows in two parts, the second with this share of each class: integer arrays."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels)) if rows is None else rows
    options = {"test_size": share, "stratify": labels[rows], "random_state": seed}
    return train_test_split(rows, **options)
