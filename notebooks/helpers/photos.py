"""CIFAR-10 and CIFAR-100 as one file each, and their ResNet34 features as another.

``make data`` calls ``prepare``; pages only ``load``. torchvision reads the archives and
has the network, so this module needs PyTorch, but only to prepare. Two settings: the
folder ``$DATA_FOLDER``, by default ``data`` beside the pages, and ``$DATA_MIRRORS``,
addresses of folders that hold the same files, apart by blanks.
"""

import io
import json
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

from helpers.checks import choose
from helpers.download import copy, fetch, space
from helpers.runs import digest
from helpers.weights import write_whole

DATA = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}  # names in torchvision.datasets
PARTS = "train", "test"
SIZE = 224  # of a picture as the network gets it
N_FEATURES = 512
BATCH = 64
CURE = "remove it and run `make data` again"


def data_folder():
    """Where photos and features are kept."""
    default = Path(__file__).parents[1] / "data"
    return Path(os.environ.get("DATA_FOLDER") or default)


def images_file(name):
    """The file of the pictures."""
    return data_folder() / f"{name}.npz"


def features_file(name):
    """The file of the features; it is written last."""
    return data_folder() / f"{name}-resnet34.npz"


def batches_folder(name):
    """Where features stand while they are extracted."""
    return features_file(name).with_suffix(".parts")


def prepared(name):
    """Are pictures and features there?"""
    return images_file(name).exists() and features_file(name).exists()


def addresses(url):
    """Where a file may be found: the mirrors, then its home."""
    file = url.rsplit("/", 1)[-1]
    mirrors = os.environ.get("DATA_MIRRORS", "").split()
    return [*(f"{mirror.rstrip('/')}/{file}" for mirror in mirrors), url]


def prepare(name, *, bar=True):
    """Download, check, convert, extract: whatever is not there yet.

    Parameters
    ----------
    name : {"cifar10", "cifar100"}
    bar : bool
        Show progress bars.

    Returns
    -------
    path
        Of the features. May be stopped at any point; called again, it goes on there.

    Raises
    ------
    ValueError
        If the name is unknown, or a file that is there is not what it should be.
    OSError
        If a file cannot be had, or there is no space left.
    """
    choose(name, DATA, "data set")
    if not images_file(name).exists():
        write_images(name, bar=bar)
    arrays = read_images(name)
    if features_file(name).exists():
        read_features(name, arrays)
        shutil.rmtree(batches_folder(name), ignore_errors=True)
        return features_file(name)
    weights = network_weights(bar=bar)
    about = inputs(arrays, weights.read_bytes())
    return write_features(name, arrays, network(weights), about, bar=bar)


def write_images(name, *, bar=True):
    """From the archive to one ``.npz`` of pictures, labels and names of classes."""
    import torchvision

    kind = getattr(torchvision.datasets, DATA[name])
    folder = data_folder()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        sets = both_parts(kind, folder)
    except RuntimeError:  # not unpacked there, or not as it should be
        urls, checksum = addresses(kind.url), f"md5:{kind.tgz_md5}"
        sets = unpack(kind, fetch(folder / kind.filename, urls, checksum, bar=bar))
    arrays = {"classes": np.array(sets[0].classes)}
    for part, found in zip(PARTS, sets, strict=True):
        arrays[f"{part}_images"] = np.ascontiguousarray(found.data)
        arrays[f"{part}_labels"] = np.array(found.targets, np.int32)
    write_npz(images_file(name), arrays)


def both_parts(kind, folder, **options):
    """Training and test data as torchvision reads them."""
    return [kind(folder, train=part == "train", **options) for part in PARTS]


def unpack(kind, archive):
    """Read an archive through torchvision; what it unpacks does not stay."""
    for old in archive.parent.glob("unpacked-*"):
        shutil.rmtree(old)  # of a process that was killed
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="unpacked-") as folder:
        try:
            os.link(archive, Path(folder) / archive.name)
        except OSError:  # a file system without links
            copy(archive, Path(folder) / archive.name)
        with tarfile.open(archive) as files:
            size = sum(member.size for member in files)
        with space(folder, size):
            return both_parts(kind, folder, download=True)


def write_npz(path, arrays):
    """Write arrays to one file, whole or not at all."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    with space(path.parent, file.tell()):
        write_whole(path, file.getvalue())


def read_npz(path, names):
    """The arrays of a file.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is damaged or has other arrays.
    """
    if not path.exists():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: run `make data`")
    try:
        with path.open("rb") as file, np.load(file) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno:  # not the file's fault
            raise
        raise ValueError(f"{path} is damaged ({error}): {CURE}") from error
    if set(arrays) != set(names):
        raise ValueError(
            f"{path} holds {sorted(arrays)}, expected {sorted(names)}: {CURE}"
        )
    return arrays


def read_images(name):
    """Pictures, labels and names of classes, by name."""
    path = images_file(name)
    names = [f"{part}_{kind}" for part in PARTS for kind in ("images", "labels")]
    arrays = read_npz(path, ["classes", *names])
    for part in PARTS:
        images, labels = (arrays[f"{part}_{kind}"] for kind in ("images", "labels"))
        good = images.dtype == np.uint8 and images.shape == (len(labels), 32, 32, 3)
        if not good or labels.min() < 0 or labels.max() >= len(arrays["classes"]):
            raise ValueError(
                f"{path}: expected uint8 pictures n 32 32 3 and a label for each, got "
                f"{images.dtype} {images.shape} and {len(labels)} labels: {CURE}"
            )
    return arrays


def network_weights(*, bar=True):
    """The file of weights ``ResNet34_Weights.IMAGENET1K_V1``."""
    import torch

    url = weights_url()
    checksum = re.search(r"-([0-9a-f]{8,})\.pth$", url)[1]  # as torch.hub checks it
    nearby = [Path(torch.hub.get_dir()) / "checkpoints"]
    path = data_folder() / url.rsplit("/", 1)[-1]
    return fetch(path, addresses(url), f"sha256:{checksum}", look_in=nearby, bar=bar)


def weights_url():
    """Home of the weights; the beginning of their sha256 is in the name."""
    from torchvision.models import ResNet34_Weights

    return ResNet34_Weights.IMAGENET1K_V1.url


def network(path):
    """ResNet34 up to its average pooling: uint8 pictures ``b y x 3`` to ``b 512``."""
    import torch
    from torch.nn import functional
    from torchvision.models import ResNet34_Weights, resnet34

    found = "cuda" if torch.cuda.is_available() else "cpu"
    found = "mps" if torch.backends.mps.is_available() else found
    net = resnet34()
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    net.fc = torch.nn.Identity()
    net = net.eval().to(found, memory_format=torch.channels_last)
    as_trained = ResNet34_Weights.IMAGENET1K_V1.transforms()
    mean, std = (
        torch.tensor(numbers, device=found)[:, None, None]
        for numbers in (as_trained.mean, as_trained.std)
    )

    @torch.inference_mode()
    def run(images):
        x = torch.as_tensor(images, device=found).permute(0, 3, 1, 2) / 255
        x = functional.interpolate(x, size=SIZE, mode="bilinear", antialias=True)
        x = ((x - mean) / std).contiguous(memory_format=torch.channels_last)
        return net(x).cpu().numpy()

    return run


def inputs(arrays, weights):
    """What features depend on, as short texts."""
    images = {part: arrays[f"{part}_images"] for part in PARTS}
    return {
        "pictures": digest(images),
        "weights": digest({"file": np.frombuffer(weights, np.uint8)}),
        "size": str(SIZE),
    }


def write_features(name, arrays, run, about, *, bar=True):
    """Features of all pictures, a batch at a time; each batch is kept at once."""
    parts = batches_folder(name)
    note = parts / "inputs.json"
    if note.exists() and json.loads(note.read_text() or "{}") != about:
        shutil.rmtree(parts)  # of other pictures or weights
    parts.mkdir(exist_ok=True)
    write_whole(note, json.dumps(about).encode())
    total = sum(len(arrays[f"{part}_images"]) for part in PARTS)
    found = {}
    options = {"unit": " pictures", "desc": f"features of {name}", "leave": False}
    options |= {} if bar else {"disable": True}
    with (
        space(data_folder(), 2 * total * N_FEATURES * 4 - size_of(parts)),
        tqdm(total=total, **options) as shown,
    ):
        for part in PARTS:
            images = arrays[f"{part}_images"]
            rows = []
            for start in range(0, len(images), BATCH):
                batch = images[start : start + BATCH]
                rows.append(kept(parts / f"{part}-{start:06d}.npy", batch, run))
                shown.update(len(batch))
            found[part] = np.concatenate(rows)
        note = np.array(json.dumps(about))
        write_npz(features_file(name), {**found, "inputs": note})
    read_features(name, arrays)
    shutil.rmtree(parts)
    return features_file(name)


def size_of(folder):
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def kept(path, images, run):
    """Features of a batch: from its file if there is a good one, else made and kept."""
    expected = len(images), N_FEATURES
    if path.exists():
        try:
            rows = np.load(path)
            good = rows.shape == expected and rows.dtype == np.float32
            if good and np.isfinite(rows).all():
                return rows
        except (OSError, ValueError, EOFError):
            pass  # damaged: made again
    rows = run(images)
    if rows.shape != expected or not np.isfinite(rows).all():
        raise ValueError(f"expected finite features {expected}, got {rows.shape}")
    file = io.BytesIO()
    np.save(file, rows.astype(np.float32))
    write_whole(path, file.getvalue())
    return rows


def read_features(name, arrays):
    """Features by part, held to the pictures that they should be of.

    Raises
    ------
    ValueError
        If shape, dtype or numbers are not right, or they are of other pictures.
    """
    path = features_file(name)
    found = read_npz(path, [*PARTS, "inputs"])
    about = json.loads(str(found.pop("inputs")))
    for part, rows in found.items():
        expected = len(arrays[f"{part}_images"]), N_FEATURES
        if rows.shape != expected or rows.dtype != np.float32:
            raise ValueError(
                f"{path}: expected float32 {expected}, got {rows.dtype} {rows.shape}: "
                f"{CURE}"
            )
        if not np.isfinite(rows).all():
            raise ValueError(f"{path}: some features are not finite: {CURE}")
    images = {part: arrays[f"{part}_images"] for part in PARTS}
    if about.get("pictures") != digest(images):
        raise ValueError(
            f"{path} is of other pictures than {images_file(name)}: {CURE}"
        )
    return found


def load(name):
    """Features, labels and pictures of both parts, and names of the classes.

    Parameters
    ----------
    name : {"cifar10", "cifar100"}

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
    choose(name, DATA, "data set")
    arrays = read_images(name)
    features = read_features(name, arrays)
    parts = {
        part: (features[part], arrays[f"{part}_labels"], arrays[f"{part}_images"])
        for part in PARTS
    }
    return parts, arrays["classes"].tolist()
