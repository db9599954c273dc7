"""Photos as one file, and their ResNet34 features as another.

``$PHOTOS`` says which, for all pages and for ``make data`` (README.md, *With photos*):
``cifar10``, ``cifar100``, or a folder of one's own pictures (``helpers.data.picture_folder``).
``make data`` calls ``prepare``; pages only load. torchvision reads the archives and has
the network, so preparing needs PyTorch, and loading does not. The files are in
``$DATA_FOLDER``, by default ``data`` beside the pages.
"""

import hashlib
import io
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

from helpers.data import picture_folder
from helpers.engine.weights import write_whole

DATA = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}  # names in torchvision.datasets
WEIGHTS = (
    "https://download.pytorch.org/models/resnet34-b627a593.pth",
    "sha256:b627a593bcbe140c234610266fe4f8ae95ea42fc881d091c9b6052e6b1d0590f",
)  # ResNet34_Weights.IMAGENET1K_V1
PARTS = "train", "test"
SIZE = 224  # of a photo as the network gets it
N_FEATURES = 512
BATCH = 64


def data_folder():
    """Where photos and features are kept."""
    default = Path(__file__).parents[2] / "data"
    return Path(os.environ.get("DATA_FOLDER") or default)


def stem(name):
    """The first part of the names of the files: of a folder with where it is."""
    if name in DATA:
        return name
    path = located(name)
    if os.sep not in str(name) and not path.is_dir():
        known = ", ".join(map(repr, DATA))
        raise ValueError(
            f"unknown data set {str(name)!r}: expected {known}, or a folder of pictures"
        )
    return f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def located(name):
    """Where a folder is, seen from here or else from the top of the repository.

    So a relative path means the same to ``make`` and to a page.
    """
    path = Path(name).expanduser()
    return (path if path.is_dir() else Path(__file__).parents[3] / path).resolve()


def images_file(name):
    """The file of the photos, labels and names of classes."""
    return data_folder() / f"{stem(name)}.npz"


def features_file(name):
    """The file of the features; it is written last."""
    return data_folder() / f"{stem(name)}-resnet34.npz"


def prepared(name):
    """Are photos and features there?"""
    return images_file(name).exists() and features_file(name).exists()


def prepare(name):
    """Download, convert and extract features: whatever has not been done yet.

    Parameters
    ----------
    name : str
        ``cifar10``, ``cifar100``, or a folder of pictures. A folder that has changed is
        converted anew.

    Returns
    -------
    path
        Of the features. May be stopped at any point; the next call goes on there.

    Raises
    ------
    ValueError
        If the name is unknown, the folder is not one of pictures, or a file is damaged
        or another than expected.
    OSError
        If a file cannot be downloaded or written.
    """
    prepare_images(name)
    if not features_file(name).exists():
        write_features(name)
    load(name)
    return features_file(name)


def prepare_images(name):
    """The first half of ``prepare``: only the photos.

    Returns
    -------
    list of str
        A line for each file of a folder that could not be read, if it was converted.
    """
    stem(name)  # an unknown name raises an error before a folder is made
    data_folder().mkdir(parents=True, exist_ok=True)
    if name in DATA:
        return [] if images_file(name).exists() else write_images(name)
    path, folder = images_file(name), located(name)
    files, _ = picture_folder.list_pictures(folder)
    if path.exists() and read_npz(path)["fingerprint"] == picture_folder.fingerprint(
        files
    ):
        return []
    parts = path.with_suffix(".parts")
    arrays, bad = picture_folder.convert(folder, parts, write_npz, read_npz)
    features = features_file(name)  # they were of other photos, as their batches
    features.unlink(missing_ok=True)
    shutil.rmtree(features.with_suffix(".parts"), ignore_errors=True)
    write_npz(path, **arrays)
    return bad


def write_images(name):
    """From torchvision's archive to one ``.npz``."""
    import torchvision

    from helpers.data.download import fetch

    kind, folder = getattr(torchvision.datasets, DATA[name]), data_folder()
    fetch(kind.url, f"md5:{kind.tgz_md5}", folder)
    arrays = {}
    for part in PARTS:
        found = kind(folder, train=part == "train", download=True)  # only unpacks
        arrays[f"{part}_images"] = np.ascontiguousarray(found.data)
        arrays[f"{part}_labels"] = np.array(found.targets, np.int32)
    write_npz(images_file(name), classes=np.array(found.classes), **arrays)
    return []


def write_features(name):
    """From photos to features; each batch is kept until all are done."""
    from helpers.data.download import fetch

    arrays = read_npz(images_file(name))
    run = network(fetch(*WEIGHTS, data_folder()))
    folder = features_file(name).with_suffix(".parts")
    folder.mkdir(exist_ok=True)
    found = {}
    for part in PARTS:
        images, rows = arrays[f"{part}_images"], []
        starts = range(0, len(images), BATCH)
        for start in tqdm(starts, f"features, {part}", unit="batch", leave=False):
            path = folder / f"{part}-{start:06d}.npz"
            if not path.exists():
                write_npz(path, features=run(images[start : start + BATCH]))
            rows.append(read_npz(path)["features"])
        found[part] = np.concatenate(rows)
    write_npz(features_file(name), **found)
    shutil.rmtree(folder)


def network(path):
    """ResNet34 up to its average pooling: uint8 photos ``b y x 3`` to ``b 512``."""
    import torch
    from torch.nn import functional
    from torchvision.models import ResNet34_Weights, resnet34

    device = "cuda" if torch.cuda.is_available() else "cpu"
    device = "mps" if torch.backends.mps.is_available() else device
    net = resnet34()
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    net.fc = torch.nn.Identity()
    net = net.eval().to(device, memory_format=torch.channels_last)
    as_trained = ResNet34_Weights.IMAGENET1K_V1.transforms()
    mean, std = (
        torch.tensor(numbers, device=device)[:, None, None]
        for numbers in (as_trained.mean, as_trained.std)
    )

    @torch.inference_mode()
    def run(images):
        x = torch.as_tensor(images, device=device).permute(0, 3, 1, 2) / 255
        x = functional.interpolate(x, size=SIZE, mode="bilinear", antialias=True)
        x = ((x - mean) / std).contiguous(memory_format=torch.channels_last)
        return net(x).cpu().numpy()

    return run


def write_npz(path, **arrays):
    """Write arrays to one file, whole or not at all."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    write_whole(path, file.getvalue())


def read_npz(path):
    """The arrays of a file.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is damaged.
    """
    if not path.exists():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: run `make data`")
    try:
        with path.open("rb") as file, np.load(file) as found:
            return dict(found)
    except (ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged ({error}): remove it and run `make data` again"
        ) from error


def load_images(name):
    """Photos and labels of both parts, and names of the classes.

    Parameters
    ----------
    name : str
        As in ``prepare``.

    Returns
    -------
    dict of str to (uint8 ``n y x 3``, int32 ``n``), list of str

    Raises
    ------
    FileNotFoundError
        If ``make data`` has not prepared them.
    ValueError
        If the name is unknown or the file is damaged.
    """
    arrays = read_npz(images_file(name))
    pairs = {p: (arrays[f"{p}_images"], arrays[f"{p}_labels"]) for p in PARTS}
    return pairs, arrays["classes"].tolist()


def load(name):
    """Features, labels and photos of both parts, and names of the classes.

    Parameters
    ----------
    name : str
        As in ``prepare``.

    Returns
    -------
    dict of str to (float32 ``n 512``, int32 ``n``, uint8 ``n 32 32 3``), list of str

    Raises
    ------
    FileNotFoundError
        If ``make data`` has not prepared them.
    ValueError
        If the name is unknown, or a file is damaged or does not fit the other.
    """
    arrays, features = read_npz(images_file(name)), read_npz(features_file(name))
    parts = {}
    for part in PARTS:
        images, rows = arrays[f"{part}_images"], features.get(part, np.zeros(0))
        expected = len(images), N_FEATURES
        if rows.shape != expected or not np.isfinite(rows).all():
            raise ValueError(
                f"{features_file(name)} is damaged (expected finite {part} features "
                f"{expected}, got {rows.shape}): remove it and run `make data` again"
            )
        parts[part] = rows, arrays[f"{part}_labels"], images
    return parts, arrays["classes"].tolist()
