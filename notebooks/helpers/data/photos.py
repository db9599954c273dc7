"""Photos as one file: CIFAR, or a folder of one's own pictures.

``$PHOTOS`` says which, for all pages and for ``make data`` (README.md, *With photos*):
``cifar10``, ``cifar100``, or a folder, ``FOLDER/CLASS/any name`` as for torchvision's
``ImageFolder``. If the classes stand in ``train`` and ``test``, that is the split; else
a fifth of each class is the test part. Pages only load what ``make data`` prepares in
``$DATA_FOLDER``, by default ``data`` beside the pages.
"""

import errno
import hashlib
import io
import os
import shutil
import warnings
import zipfile
from pathlib import Path

import joblib
import numpy as np
from tqdm import tqdm

from helpers.engine.weights import write_atomically

DATA = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}  # names in torchvision.datasets
PARTS = "train", "test"
SPLITS = {*PARTS, "val", "valid", "validation", "dev"}  # names of folders of splits
SIDE = 32  # of a photo as it is kept, in pixels
CHUNK = 1_000  # photos that are kept together until all are done
LEAST = 2  # photos of a class in each part
RETRIES, TIMEOUT = 2, 60  # of a download; seconds without a byte


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
    """Where a folder is: relative to here, or else to the top of the repository."""
    path = Path(name).expanduser()
    return (path if path.is_dir() else Path(__file__).parents[3] / path).resolve()


def images_file(name):
    """The file of the photos, labels and names of classes."""
    return data_folder() / f"{stem(name)}.npz"


def features_file(name):
    """The file of the features (``helpers.data.features``), which fit these photos."""
    return data_folder() / f"{stem(name)}-resnet34.npz"


def prepare_images(name):
    """Download or convert photos, unless that has been done already.

    Parameters
    ----------
    name : str
        ``cifar10``, ``cifar100``, or a folder of pictures. A folder that has changed is
        converted anew. May be stopped at any point; the next call goes on there.

    Returns
    -------
    list of str
        A line for each file of a folder that could not be read, if it was converted.

    Raises
    ------
    ValueError
        If the name is unknown, the folder is not one of pictures, or a file is damaged
        or another than expected.
    OSError
        If a file cannot be downloaded or written.
    """
    path = images_file(name)  # an unknown name raises an error before a folder is made
    data_folder().mkdir(parents=True, exist_ok=True)
    if name not in DATA:
        return convert(located(name), path, features_file(name))
    if not path.exists():
        unpack(name, path)
    return []


def unpack(name, path):
    """From torchvision's archive to one ``.npz``."""
    import torchvision

    kind, arrays = getattr(torchvision.datasets, DATA[name]), {}
    fetch(kind.url, f"md5:{kind.tgz_md5}")
    for part in PARTS:
        found = kind(data_folder(), train=part == "train", download=True)  # unpacks
        arrays[f"{part}_images"] = np.ascontiguousarray(found.data)
        arrays[f"{part}_labels"] = np.array(found.targets, np.int32)
    write_npz(path, classes=np.array(found.classes), **arrays)


def fetch(url, known_hash):
    """Path of a file in ``data_folder()``; downloaded and checked if it is not there.

    ``pooch`` retries, compares the hash, and moves only the right file into place. The
    same file name at each address in ``$DATA_MIRRORS`` is tried before ``url``. Another
    file at the path is left alone: a ValueError. If no address gives the file, the
    OSError has the reason for each.
    """
    import pooch

    name, failures = url.rsplit("/", 1)[-1], []
    path = data_folder() / name
    if path.exists() and not pooch.hashes.hash_matches(path, known_hash):
        raise ValueError(
            f"{path} is another file: expected {known_hash}: move it away and try again"
        )
    mirrors = os.environ.get("DATA_MIRRORS", "").split()
    for address in [*(f"{mirror.rstrip('/')}/{name}" for mirror in mirrors), url]:
        get = pooch.create(
            data_folder(), "", registry={name: known_hash}, urls={name: address},
            retry_if_failed=RETRIES,
        )  # fmt: skip
        try:
            get.fetch(name, downloader=pooch.HTTPDownloader(True, timeout=TIMEOUT))
            return path
        except (OSError, ValueError) as error:  # those of requests are OSErrors
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise
            failures.append(f"{address} failed ({str(error).splitlines()[0][:300]})")
    raise OSError(
        f"could not download {name}: {'; '.join(failures)}: try again, name a mirror "
        f"in DATA_MIRRORS, or put the file ({known_hash}) into {path.parent}"
    )


def convert(folder, path, features):
    """Write the photos of a folder to one file, unless they are there already."""
    files, classes = list_pictures(folder)
    stats = [file.stat() for listed in files.values() for file, _ in listed]
    mark = joblib.hash([SIDE, files, [(x.st_size, x.st_mtime_ns) for x in stats]])
    if path.exists() and read_npz(path)["fingerprint"] == mark:
        return []
    parts = path.with_suffix(".parts")
    found = {
        part: in_chunks(parts, f"{part}-{mark}", listed, CHUNK, read_chunk)
        for part, listed in files.items()
    }
    bad = [line for chunk in found.values() for line in chunk.pop("bad").tolist()]
    if "all" in found:
        test = held_out(found["all"]["labels"], 0.2, LEAST, seed=0)
        rows = {"train": ~test, "test": test}
        found = {p: {k: x[rows[p]] for k, x in found["all"].items()} for p in PARTS}
    check_counts(found, classes, bad)
    features.unlink(missing_ok=True)  # they were of other photos, as their chunks
    shutil.rmtree(features.with_suffix(".parts"), ignore_errors=True)
    arrays = {f"{part}_{k}": x for part in PARTS for k, x in found[part].items()}
    write_npz(path, classes=np.array(classes), fingerprint=np.array(mark), **arrays)
    shutil.rmtree(parts)
    return bad


def list_pictures(folder):
    """Every file of every class, without hidden ones, and the names of the classes.

    Written out because torchvision's ``ImageFolder`` takes files by their ending, and
    loads PyTorch.

    Returns
    -------
    dict of str to list of (path, int), list of str
        For each part the files with the number of their class, in a fixed order; with
        one part, ``all``, if the folder has no split.
    """
    if not folder.is_dir():
        raise ValueError(f"expected a folder of pictures, got {folder}")
    names = names_in(folder)
    if names and set(names) <= SPLITS and set(names) != set(PARTS):
        raise ValueError(
            f"expected the folders train and test, or one for each class, in {folder}, "
            f"got {names}"
        )
    roots = {"all": folder}
    if set(names) == set(PARTS):
        roots = {part: folder / part for part in PARTS}
        names, others = map(names_in, roots.values())
        if odd := sorted({*names} ^ {*others}):
            raise ValueError(
                f"expected the same classes in train and test, got {odd[0]!r} once"
            )
    if len(names) < 2:
        raise ValueError(
            f"expected two or more classes, one folder each, in {folder}, got {names}"
        )
    return {
        part: [
            (path, number)
            for number, name in enumerate(names)
            for path in sorted((root / name).rglob("*"))
            if path.is_file() and "/." not in path.relative_to(folder).as_posix()
        ]
        for part, root in roots.items()
    }, names


def names_in(folder):
    """The folders in a folder, in order, without hidden ones."""
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    return [name for name in found if not name.startswith(".")]


def in_chunks(folder, name, items, size, work):
    """Arrays by name that ``work`` makes of some items, ``size`` at a time.

    Each chunk is kept in ``folder`` under ``name``, so that a stopped call goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chunks = []
    for start in tqdm(range(0, max(1, len(items)), size), name[:12], leave=False):
        path = folder / f"{name}-{start:07d}.npz"
        if not path.exists():
            write_npz(path, **work(items[start : start + size]))
        chunks.append(read_npz(path))
    return {k: np.concatenate([chunk[k] for chunk in chunks]) for k in chunks[0]}


def read_chunk(listed, side=None):
    """Pictures and labels of some files, and a line for each that cannot be read."""
    side, images, labels, bad = side or SIDE, [], [], []
    for path, number in listed:
        try:
            images.append(read_picture(path, side))
            labels.append(number)
        except Exception as error:  # Pillow's readers raise many kinds
            bad.append(f"{path}: {f'{error}' or type(error).__name__}".splitlines()[0])
    return {
        "images": np.array(images, np.uint8).reshape(-1, side, side, 3),
        "labels": np.array(labels, np.int32), "bad": np.array(bad, np.str_),
    }  # fmt: skip


def read_picture(path, side=SIDE):
    """The middle square of a picture: uint8 array ``side side 3``.

    It is turned as the camera says; what is transparent becomes white; if a pixel has
    more than eight bits, the range of the picture becomes 0 to 255. The whole picture
    is decoded, so that one that was cut short raises an error.
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


def held_out(labels, share, least, seed):
    """A share of each class, drawn at random: boolean array ``n``."""
    rng, chosen = np.random.default_rng(seed), np.zeros(len(labels), bool)
    for number in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == number))
        chosen[rows[: max(least, round(share * len(rows)))]] = True
    return chosen


def check_counts(found, classes, bad):
    """Check that each class has photos in each part; the error lists some bad files."""
    for part, arrays in found.items():
        n = np.bincount(arrays["labels"], minlength=len(classes))
        if n.min() < LEAST:
            listed = "".join(f"\n  {line}" for line in bad[:5])
            raise ValueError(
                f"the class {classes[n.argmin()]!r} has {n.min()} pictures in the part "
                f"{part}, expected {LEAST} or more; {len(bad)} files could not be read"
                f"{':' if bad else ''}{listed}"
            )


def write_npz(path, **arrays):
    """Write arrays to one file, whole or not at all."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    write_atomically(path, file.getvalue())


def read_npz(path):
    """The arrays of a file; FileNotFoundError or, if it is damaged, ValueError."""
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

    Raises FileNotFoundError if ``make data`` has not prepared them, and ValueError if
    the name is unknown or the file is damaged.

    Returns
    -------
    dict of str to (uint8 ``n 32 32 3``, int32 ``n``), list of str
    """
    arrays = read_npz(images_file(name))
    pairs = {p: (arrays[f"{p}_images"], arrays[f"{p}_labels"]) for p in PARTS}
    return pairs, arrays["classes"].tolist()
