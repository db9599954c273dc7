"""Prepare photos for the pages, or published weights.

    python tools/data.py [cifar100 | cifar10 | FOLDER]        `make data PHOTOS=…`
    MODEL=openai-community/gpt2 python tools/data.py          `make data MODEL=…`

Photos become two files of ``notebooks/data`` (or ``$DATA_FOLDER``): images uint8
``n 32 32 3``, labels int32 ``n`` and names of classes in ``NAME.npz``, features float32
``n 512`` in ``NAME-resnet34.npz``. Weights go to the cache of ``huggingface_hub``.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import snapshot_download
from PIL import Image
from sklearn.model_selection import train_test_split
from torchvision import datasets, models
from tqdm import tqdm

import pages

Image.MAX_IMAGE_PIXELS = None  # else Pillow takes a large scan for an attack
CIFAR = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}
PARTS = "train", "test"
SIZE = 224  # of a photo as the network gets it
CHECKPOINT = ["config.json", "tokenizer.json", "model*.safetensors", "*.index.json"]


def cifar(name, folder):
    """Download CIFAR-10 or CIFAR-100; the arrays of its ``.npz``."""
    found, arrays = None, {}
    for part in PARTS:
        found = CIFAR[name](folder, train=part == "train", download=True)
        arrays[f"{part}_images"] = found.data
        arrays[f"{part}_labels"] = np.array(found.targets, np.int32)
    return {"classes": np.array(found.classes), **arrays}


def own(folder):
    """The arrays of photos in ``folder/CLASS/``; what is left out is listed.

    If the classes stand in ``train`` and ``test``, that is the split; else a fifth of
    each class is the test part.
    """
    sys.path.append(str(pages.NOTEBOOKS))
    from helpers.data import sets
    from helpers.data.photos import read_folders

    parts, classes, left = read_folders(folder)
    print(*left, sep="\n", file=sys.stderr)
    if len(parts) == 1:
        images, labels = parts[0]
        options = {"test_size": 0.2, "stratify": labels, "random_state": 0}
        rows = train_test_split(range(len(labels)), **options)
        parts = [(images[n], labels[n]) for n in rows]
    arrays = {"classes": np.array(classes), "digest": sets.digest(folder)}
    for part, (images, labels) in zip(PARTS, parts, strict=True):
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    return arrays


@torch.inference_mode()
def features(images):
    """What ResNet-34, trained on ImageNet, computes: uint8 ``n y x 3 -> n 512``."""
    usual = models.ResNet34_Weights.IMAGENET1K_V1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = models.resnet34(weights=usual).eval().to(device)
    net.fc = torch.nn.Identity()  # no classifier: keep the 512 features
    prepare, found = usual.transforms(crop_size=SIZE, resize_size=SIZE), []
    for batch in tqdm(torch.as_tensor(images).split(64)):
        x = prepare(batch.to(device).permute(0, 3, 1, 2) / 255)  # b 3 y x
        found.append(net(x).cpu())
    return torch.cat(found).numpy()


def photos(name, with_features=True):
    """Write the files of a set of photos; CIFAR's only once."""
    folder = Path(os.environ.get("DATA_FOLDER") or pages.NOTEBOOKS / "data")
    source = Path(name).expanduser()
    source = source if source.is_dir() else pages.ROOT / source  # where a page calls it
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source.resolve().name}.npz"
    if name not in CIFAR or not path.exists():
        found = cifar(name, folder) if name in CIFAR else own(source)
        path.with_name(f"{path.stem}-resnet34.npz").unlink(missing_ok=True)
        np.savez(path, **found)
    found = np.load(path)
    sizes = [len(found[f"{part}_labels"]) for part in PARTS]
    print(f"{path}: {sizes[0]} photos for training, {sizes[1]} for the test")
    path = path.with_name(f"{path.stem}-resnet34.npz")
    if with_features and not path.exists():
        np.savez(path, **{part: features(found[f"{part}_images"]) for part in PARTS})
        print(f"{path}: their features")


def model(name):
    """Download a published model: safetensors only, never pickled files."""
    folder = Path(snapshot_download(name, allow_patterns=CHECKPOINT))
    if not any(folder.glob("model*.safetensors")):
        raise ValueError("expected model.safetensors in it; pickles are not read")
    print(f"{folder}: ready")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("photos", nargs="?", default=os.environ.get("PHOTOS"))
    only = "without features, which only the odd-one-out pages need"
    parser.add_argument("--images-only", action="store_true", help=only)
    given, name = parser.parse_args(), os.environ.get("MODEL")
    try:
        if name:
            model(name)
        if given.photos or not name:
            photos(name := given.photos or "cifar100", not given.images_only)
    except (OSError, ValueError) as error:
        sys.exit(f"{name} is not prepared: {error}")
