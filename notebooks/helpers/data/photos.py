"""Photos as one file, and their features as another: what ``make data`` prepares.

``$PHOTOS`` says which, for all pages and for ``make data`` (book/how-this-was-built.md):
``cifar10``, ``cifar100``, or a folder, ``FOLDER/CLASS/any name`` as for torchvision's
``ImageFolder``. The files are in ``$DATA_FOLDER``, by default ``data`` beside the pages.
"""

import os
import warnings
import zipfile
from pathlib import Path

import numpy as np

DATA = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}  # names in torchvision.datasets
PARTS = "train", "test"
SIDE = 32  # of a photo as it is kept, in pixels
N_FEATURES = 512


def data_folder():
    """Where photos and features are kept."""
    return Path(os.environ.get("DATA_FOLDER") or Path(__file__).parents[2] / "data")


def stem(name):
    """The first part of the names of the files: of a folder its own name."""
    if name in DATA:
        return name
    path = located(name)
    if os.sep not in str(name) and not path.is_dir():
        known = f"{', '.join(map(repr, DATA))}, or a folder of pictures"
        raise ValueError(f"unknown data set {str(name)!r}: expected {known}")
    return path.name


def located(name):
    """Where a folder is: relative to here, or else to the top of the repository."""
    path = Path(name).expanduser()
    return (path if path.is_dir() else Path(__file__).parents[3] / path).resolve()


def images_file(name):
    """The file of the photos, labels and names of classes."""
    return data_folder() / f"{stem(name)}.npz"


def features_file(name):
    """The file of the features, which fit these photos."""
    return data_folder() / f"{stem(name)}-resnet34.npz"


def prepared(name):
    """Are photos and features there?"""
    return images_file(name).exists() and features_file(name).exists()


def read_npz(path):
    """The arrays of a file; FileNotFoundError or, if it is damaged, ValueError."""
    if not path.exists():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: run `make data`")
    try:
        with path.open("rb") as file, np.load(file) as found:
            return dict(found)
    except (ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise damaged(path, error) from error


def damaged(path, why):
    """The error for a file that cannot be used."""
    return ValueError(f"{path} is damaged ({why}): remove it and run `make data` again")


def load_images(name):
    """By part, photos uint8 ``n 32 32 3`` and labels int32 ``n``; class names.

    FileNotFoundError if ``make data`` must run, ValueError if name or file is wrong.
    """
    arrays = read_npz(images_file(name))
    pairs = {p: (arrays[f"{p}_images"], arrays[f"{p}_labels"]) for p in PARTS}
    return pairs, arrays["classes"].tolist()


def load_features(name, photos):
    """By part, features float32 ``n 512`` of the photos of ``load_images``; its errors."""
    path = features_file(name)
    found = read_npz(path)
    for part, (images, _) in photos.items():
        rows, shape = found.get(part, np.zeros(0)), (len(images), N_FEATURES)
        if rows.shape != shape or not np.isfinite(rows).all():
            expected = f"expected finite {part} features {shape}, got {rows.shape}"
            raise damaged(path, expected)
    return found


def read_picture(path, side=SIDE):
    """The middle square of a picture: uint8 array ``side side 3``.

    It is turned as the camera says; what is transparent becomes white; more than eight
    bits become 0 to 255, their range. A picture that was cut short raises an error.
    """
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path) as found:
            picture = ImageOps.exif_transpose(found)
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    if picture.mode[0] in "IF":
        values = np.asarray(picture, np.float64)
        values = (values - values.min()) * (255 / (np.ptp(values) or 1))
        picture = Image.fromarray(values.round().astype(np.uint8))
    return np.asarray(ImageOps.fit(picture.convert("RGB"), (side, side)))
