"""Features of photos from a ResNet34, as a second file beside ``helpers.data.photos``.

Extracting them needs PyTorch and its weights, which are downloaded; loading does not.
"""

import shutil

import joblib
import numpy as np

from helpers.data.photos import (
    PARTS,
    features_file,
    fetch,
    images_file,
    in_chunks,
    load_images,
    prepare_images,
    read_npz,
    write_npz,
)

WEIGHTS = (
    "https://download.pytorch.org/models/resnet34-b627a593.pth",
    "sha256:b627a593bcbe140c234610266fe4f8ae95ea42fc881d091c9b6052e6b1d0590f",
)  # ResNet34_Weights.IMAGENET1K_V1
SIZE = 224  # of a photo as the network gets it
N_FEATURES = 512
BATCH = 64  # photos that are kept together until all are done


def prepared(name):
    """Are photos and features there?"""
    return images_file(name).exists() and features_file(name).exists()


def prepare(name):
    """Photos and their features, unless they are there; the path of the features.

    Arguments and errors as ``photos.prepare_images``.
    """
    prepare_images(name)
    if not features_file(name).exists():
        write_features(name)
    load(name)
    return features_file(name)


def write_features(name):
    """From photos to features."""
    arrays, found = read_npz(images_file(name)), {}
    run = network(fetch(*WEIGHTS))
    folder = features_file(name).with_suffix(".parts")
    for part in PARTS:
        images = arrays[f"{part}_images"]
        mark = f"{part}-{joblib.hash(images)}"
        found[part] = in_chunks(
            folder, mark, images, BATCH, lambda x: {"features": run(x)}
        )["features"]
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


def load(name):
    """Features, labels and photos of both parts, and names of the classes.

    Raises FileNotFoundError if ``make data`` has not prepared them, and ValueError if
    the name is unknown, or a file is damaged or does not fit the other.

    Returns
    -------
    dict of str to (float32 ``n 512``, int32 ``n``, uint8 ``n 32 32 3``), list of str
    """
    (pairs, classes), features = load_images(name), read_npz(features_file(name))
    parts = {}
    for part, (images, labels) in pairs.items():
        rows, expected = features.get(part, np.zeros(0)), (len(images), N_FEATURES)
        if rows.shape != expected or not np.isfinite(rows).all():
            raise ValueError(
                f"{features_file(name)} is damaged (expected finite {part} features "
                f"{expected}, got {rows.shape}): remove it and run `make data` again"
            )
        parts[part] = rows, labels, images
    return parts, classes
