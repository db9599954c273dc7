"""Prepare photos for the pages, or published weights.

    python tools/data.py [cifar100 | cifar10 | FOLDER]        `make data PHOTOS=…`
    MODEL=openai-community/gpt2 python tools/data.py          `make data MODEL=…`

Photos are downloaded or converted, and their features extracted; weights of a model are
downloaded from the hub. Without a name $PHOTOS counts; without both $MODEL, and else it
is cifar100. book/how-this-was-built.md tells the rest. May be stopped at any point: the
next call goes on there.
"""

import argparse
import errno
import io
import os
import shutil
import sys
from pathlib import Path

import joblib
import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from helpers.data import checkpoints, photos, pictures, sets
from helpers.data.photos import PARTS, SIDE
from helpers.engine.weights import write_atomically

SPLITS = {*PARTS, "val", "valid", "validation", "dev"}  # names of folders of splits
LEAST = 2  # photos of a class in each part
CHUNK, BATCH = 1_000, 64  # photos, features that are kept together until all are done
RETRIES, TIMEOUT = 2, 60  # of a download; seconds without a byte
WEIGHTS = (
    "https://download.pytorch.org/models/resnet34-b627a593.pth",
    "sha256:b627a593bcbe140c234610266fe4f8ae95ea42fc881d091c9b6052e6b1d0590f",
)  # ResNet34_Weights.IMAGENET1K_V1
SIZE = 224  # of a photo as the network gets it


def main(arguments=None):
    """Prepare, and say where it is or in one sentence why not."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("name", nargs="?", default=os.environ.get("PHOTOS"))
    only = "without the features, which only the odd-one-out pages need"
    parser.add_argument("--images-only", action="store_true", help=only)
    given, folder, images = parser.parse_args(arguments), photos.data_folder(), None
    model, name = os.environ.get("MODEL"), given.name or "cifar100"
    if model:
        prepare_model(model)
    if model and not given.name:
        return
    print(f"preparing {name} in {folder}", flush=True)
    try:
        report(prepare_images(name))
        images, names = photos.load_images(name)
        found = f"{count(images)} photos of {len(names)} classes"
        print(f"{photos.images_file(name)}: {found}", flush=True)
        if not given.images_only:
            prepare_features(name)
            photos.load_features(name, images)
            print(f"{photos.features_file(name)}: their features")
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            error = (
                f"no space left in {folder}, which needs about 1 GB: make room there, "
                "or name another folder in DATA_FOLDER"
            )
        if images is None or name in sets.KNOWN:
            raise SystemExit(f"{name} is not prepared: {error}") from None
        print(
            "Their ResNet34 features are missing; the odd-one-out pages then take mean "
            f"colours, all else is ready: {error}",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        raise SystemExit("stopped; call it again to go on") from None


def prepare_model(name):
    """Download published weights, unless they are there, and say where they are."""
    try:
        folder = checkpoints.find_folder(name, progress=True)
        files = checkpoints.weight_files(folder)[0]
    except (OSError, ValueError) as error:
        raise SystemExit(f"{name} is not prepared: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; call it again to go on") from None
    size = sum((folder / file).stat().st_size for file in files)
    print(f"{folder}: {size / 1e6:,.1f} MB of weights")


def count(parts):
    """How many there are in each part, in words."""
    return ", ".join(f"{len(rows)} {part}" for part, (rows, *_) in parts.items())


def report(bad):
    """List the files that could not be read."""
    if bad:
        print(f"{len(bad)} files could not be read and are left out:")
        print(*(f"  {line}" for line in bad), sep="\n")


def prepare_images(name):
    """Download or convert photos, unless they are there: a line for each bad file.

    A folder that has changed is converted anew. Raises ValueError if the name is
    unknown, the folder is not one of pictures, or a file is damaged or another than
    expected; OSError if a file cannot be downloaded or written.
    """
    path = photos.images_file(name)  # an unknown name raises before a folder is made
    photos.data_folder().mkdir(parents=True, exist_ok=True)
    if name not in photos.DATA:
        return convert(photos.located(name), path, photos.features_file(name))
    if not path.exists():
        unpack(name, path)
    return []


def unpack(name, path):
    """From torchvision's archive to one ``.npz``."""
    import torchvision

    kind, arrays = getattr(torchvision.datasets, photos.DATA[name]), {}
    folder = fetch(kind.url, f"md5:{kind.tgz_md5}").parent
    for part in PARTS:
        found = kind(folder, train=part == "train", download=True)  # unpacks
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
    path = photos.data_folder() / name
    if path.exists() and not pooch.hashes.hash_matches(path, known_hash):
        raise ValueError(
            f"{path} is another file: expected {known_hash}: move it away and try again"
        )
    mirrors = os.environ.get("DATA_MIRRORS", "").split()
    for address in [*(f"{mirror.rstrip('/')}/{name}" for mirror in mirrors), url]:
        get = pooch.create(
            path.parent, "", registry={name: known_hash}, urls={name: address},
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
    """Write the photos of a folder to one file, unless they are there already.

    If the classes stand in ``train`` and ``test``, that is the split; else a fifth of
    each class is the test part.
    """
    files, classes = list_pictures(folder)
    stats = [file.stat() for listed in files.values() for file, _ in listed]
    mark = joblib.hash([SIDE, files, [(x.st_size, x.st_mtime_ns) for x in stats]])
    if path.exists() and photos.read_npz(path)["fingerprint"] == mark:
        return []
    parts = path.with_suffix(".parts")
    found = {
        part: in_chunks(parts, f"{part}-{mark}", listed, CHUNK, read_chunk)
        for part, listed in files.items()
    }
    bad = [line for chunk in found.values() for line in chunk.pop("bad").tolist()]
    if "all" in found:
        test = pictures.held_out(found["all"]["labels"], 0.2, LEAST, seed=0)
        rows = {"train": ~test, "test": test}
        found = {p: {k: x[rows[p]] for k, x in found["all"].items()} for p in PARTS}
    try:
        check_counts(found, classes, bad)
    except ValueError:
        shutil.rmtree(parts)
        raise
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
    names, roots = names_in(folder), {"all": folder}
    if set(names) == set(PARTS):
        roots = {part: folder / part for part in PARTS}
        names, others = map(names_in, roots.values())
        if odd := sorted({*names} ^ {*others}):
            raise ValueError(
                f"expected the same classes in train and test, got {odd[0]!r} once"
            )
    elif names and set(names) <= SPLITS:
        raise ValueError(
            f"expected the folders train and test, or one for each class, in {folder}, "
            f"got {names}"
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


def read_chunk(listed):
    """Pictures and labels of some files, and a line for each that cannot be read."""
    images, labels, bad = [], [], []
    for path, number in listed:
        try:
            images.append(photos.read_picture(path))
            labels.append(number)
        except Exception as error:  # Pillow's readers raise many kinds
            bad.append(f"{path}: {f'{error}' or type(error).__name__}".splitlines()[0])
    return {
        "images": np.array(images, np.uint8).reshape(-1, SIDE, SIDE, 3),
        "labels": np.array(labels, np.int32), "bad": np.array(bad, np.str_),
    }  # fmt: skip


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


def prepare_features(name):
    """From photos to their features, unless these are there."""
    path = photos.features_file(name)
    if path.exists():
        return
    arrays, found = photos.read_npz(photos.images_file(name)), {}
    run, folder = network(fetch(*WEIGHTS)), path.with_suffix(".parts")
    for part in PARTS:
        images = arrays[f"{part}_images"]
        mark = f"{part}-{joblib.hash(images)}"
        found[part] = in_chunks(
            folder, mark, images, BATCH, lambda x: {"features": run(x)}
        )["features"]
    write_npz(path, **found)
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
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as on a CPU
            return net(x).cpu().numpy()

    return run


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
        chunks.append(photos.read_npz(path))
    return {k: np.concatenate([chunk[k] for chunk in chunks]) for k in chunks[0]}


def write_npz(path, **arrays):
    """Write arrays to one file, whole or not at all."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    write_atomically(path, file.getvalue())


if __name__ == "__main__":
    main()
