"""A folder of pictures, one folder for each class, as one array of small squares.

The convention is that of torchvision's ``ImageFolder``: ``FOLDER/CLASS/any name``. If
the classes stand in ``train`` and ``test``, that is the split; else a fifth of each
class, drawn with a fixed seed, is the test part. Pictures may have any size and any
format that Pillow reads. Those that cannot be read are listed and left out.
"""

import hashlib
import shutil
import warnings
from pathlib import Path

import numpy as np
from tqdm import tqdm

PARTS = "train", "test"
SIDE = 32  # of a square, in pixels
CHUNK = 1_000  # pictures that are kept together until all are done
SEED = 0
LEAST = 2  # pictures of a class in each part
SHOWN = 5  # names of bad files in a message
SPLITS = {
    *PARTS,
    "val",
    "valid",
    "validation",
    "dev",
}  # how folders of splits are named


def list_pictures(folder):
    """Every file of every class, and the names of the classes.

    Parameters
    ----------
    folder : path
        With one folder for each class, or with ``train`` and ``test``, which have them.

    Returns
    -------
    dict of str to list of (path, int), list of str
        For each part the files with the number of their class, in a fixed order; with
        one part, ``all``, if the folder has no split. Hidden files do not count.

    Raises
    ------
    ValueError
        If there is no such folder, or fewer than two classes, a split has other folders
        than ``train`` and ``test``, these have different classes, or a class is empty.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"expected a folder of pictures, got {folder}")
    split = set(names_in(folder)) == set(PARTS)
    if not split and set(names_in(folder)) <= SPLITS and names_in(folder):
        raise ValueError(
            f"expected the folders train and test, or one for each class, in {folder}, "
            f"got {names_in(folder)}"
        )
    roots = {part: folder / part for part in PARTS} if split else {"all": folder}
    names = {part: names_in(root) for part, root in roots.items()}
    first = next(iter(names.values()))
    if len({*map(tuple, names.values())}) > 1:
        odd = sorted({*names["train"]} ^ {*names["test"]})
        raise ValueError(
            f"expected the same classes in train and test, got {odd[0]!r} once"
        )
    if len(first) < 2:
        raise ValueError(
            f"expected two or more classes, one folder each, in {folder}, got {first}"
        )
    found = {}
    for part, root in roots.items():
        found[part] = []
        for number, name in enumerate(first):
            files = [p for p in sorted((root / name).rglob("*")) if counts(p, root)]
            if not files:
                raise ValueError(f"the class {name!r} has no file in {root / name}")
            found[part] += [(file, number) for file in files]
    return found, first


def names_in(folder):
    """The folders in a folder, in order, without hidden ones."""
    found = (path for path in folder.iterdir() if path.is_dir())
    return sorted(path.name for path in found if not path.name.startswith("."))


def counts(path, root):
    """Is this a file, and not hidden?"""
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.is_file() and not hidden


def read_picture(path, side=SIDE):
    """The middle square of a picture: uint8 array ``side side 3``.

    It is turned as the camera says, and what is transparent becomes white. The whole
    picture is decoded, so that one that was cut short is found.

    Raises
    ------
    OSError, ValueError
        If it cannot be read.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as found:
                picture = ImageOps.exif_transpose(found)
                if picture.has_transparency_data:
                    picture = picture.convert("RGBA")
                    white = Image.new("RGBA", picture.size, "white")
                    picture = Image.alpha_composite(white, picture)
                if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
                    picture = from_deep(picture)
                fitted = ImageOps.fit(picture.convert("RGB"), (side, side))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(str(error)) from error
    return np.asarray(fitted)


def from_deep(picture):
    """A picture of more than eight bits a pixel, with its range as 0 to 255."""
    from PIL import Image

    values = np.asarray(picture, np.float64)
    low, high = values.min(), values.max()
    values = (values - low) * (255 / (high - low) if high > low else 0)
    return Image.fromarray(values.round().astype(np.uint8))


def convert(folder, parts_folder, write_npz, read_npz, side=SIDE):
    """The arrays of a folder, and the files that could not be read.

    Parameters
    ----------
    folder : path
    parts_folder : path
        Chunks are kept here until all are done, so that a stopped conversion goes on;
        the folder is removed at the end.
    write_npz, read_npz : functions
        Of ``helpers.data.photos``.
    side : int
        Of the squares, in pixels.

    Returns
    -------
    dict of str to array, list of str
        ``classes``; for each part ``…_images`` uint8 ``n side side 3`` and ``…_labels``
        int32 ``n``; ``fingerprint``. And one line for each file that was left out.

    Raises
    ------
    ValueError
        As ``list_pictures``, or if too few pictures of a class can be read.
    """
    files, classes = list_pictures(folder)
    mark = fingerprint(files, side)
    parts_folder.mkdir(parents=True, exist_ok=True)
    found, bad = {}, []
    for part, listed in files.items():
        chunks = []
        starts = range(0, len(listed), CHUNK)
        for start in tqdm(starts, f"pictures, {part}", unit=f" · {CHUNK}", leave=False):
            path = parts_folder / f"{part}-{mark}-{start:07d}.npz"
            if not path.exists():
                write_npz(path, **read_chunk(listed[start : start + CHUNK], side))
            chunks.append(read_npz(path))
        found[part] = [
            np.concatenate([chunk[name] for chunk in chunks])
            for name in ("images", "labels")
        ]
        bad += [line for chunk in chunks for line in chunk["bad"].tolist()]
    found = found if "all" not in found else split(*found["all"])
    check_counts(found, classes, bad)
    arrays = {"classes": np.array(classes), "fingerprint": np.array(mark)}
    for part, (images, labels) in found.items():
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    shutil.rmtree(parts_folder)
    return arrays, bad


def fingerprint(files, side=SIDE):
    """Twelve letters that change when a file is added, removed or changed."""
    lines = [f"{side}"]
    for part, listed in files.items():
        for path, number in listed:
            known = path.stat()
            lines.append(f"{part} {number} {path} {known.st_size} {known.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def read_chunk(listed, side):
    """Pictures and labels of some files, and a line for each that cannot be read."""
    images, labels, bad = [], [], []
    for path, number in listed:
        try:
            images.append(read_picture(path, side))
            labels.append(number)
        except Exception as error:  # Pillow's readers raise many kinds
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            bad.append(f"{path}: {why}")
    return {
        "images": np.array(images, np.uint8).reshape(-1, side, side, 3),
        "labels": np.array(labels, np.int32), "bad": np.array(bad, np.str_),
    }  # fmt: skip


def split(images, labels):
    """A fifth of each class for the test part, two pictures at least."""
    rng = np.random.default_rng(SEED)
    test = np.zeros(len(labels), bool)
    for number in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == number))
        test[rows[: max(LEAST, round(len(rows) / 5))]] = True
    return {
        "train": (images[~test], labels[~test]),
        "test": (images[test], labels[test]),
    }


def check_counts(found, classes, bad):
    """Check that each class has pictures in each part.

    Raises
    ------
    ValueError
        With the first class that has too few, and the files that could not be read.
    """
    for part, (_, labels) in found.items():
        n = np.bincount(labels, minlength=len(classes))
        if n.min() < LEAST:
            listed = "".join(f"\n  {line}" for line in bad[:SHOWN])
            raise ValueError(
                f"the class {classes[n.argmin()]!r} has {n.min()} pictures in the part "
                f"{part}, expected {LEAST} or more; {len(bad)} files could not be read"
                f"{':' if bad else ''}{listed}"
            )
