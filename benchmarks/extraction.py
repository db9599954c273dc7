"""Features of photos: pictures a second, against the plain forward pass of the network.

    PYTHONPATH=notebooks python -m benchmarks.extraction [--pictures 640] [--pairs 5]

The whole way takes pictures of 32 x 32 from an array and leaves features in files, as
``make data`` does; the plain pass gets batches that are resized already. Weights are
random: speed does not depend on them.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torchvision.models import resnet34

from benchmarks.measure import device, peak_mib
from benchmarks.run import positive, processor
from helpers import photos


def plain(net, n):
    """Seconds of forward passes over ``n`` pictures that are there already."""
    place = next(net.parameters()).device
    x = torch.rand(photos.BATCH, 3, photos.SIZE, photos.SIZE, device=place)
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        net(x[:2])
        began = time.perf_counter()
        for _ in range(n // photos.BATCH):
            net(x).cpu()
    return time.perf_counter() - began


def whole(run, n):
    """Seconds of the way from an array of pictures to the file of their features."""
    draw = np.random.default_rng(0)
    images = draw.integers(256, size=(n, 32, 32, 3), dtype=np.uint8)
    test = photos.BATCH
    arrays = {"train_images": images[test:], "test_images": images[:test]}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DATA_FOLDER"] = folder
        about = photos.inputs(arrays, b"random")
        began = time.perf_counter()
        photos.write_features("cifar100", arrays, run, about, bar=False)
    return time.perf_counter() - began


def main():
    """Measure in pairs, print medians and the range of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=positive, default=10 * photos.BATCH)
    parser.add_argument("--pairs", type=positive, default=5)
    given = parser.parse_args()
    n = given.pictures // photos.BATCH * photos.BATCH
    net = resnet34().eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pth"
        torch.save(net.state_dict(), path)
        run = photos.network(path)
    place = "cuda" if torch.cuda.is_available() else "cpu"
    net = net.to(place, memory_format=torch.channels_last)
    run(np.zeros((2, 32, 32, 3), np.uint8))
    seconds = [(plain(net, n), whole(run, n)) for _ in range(given.pairs)]
    rates = [n / median(column) for column in zip(*seconds, strict=True)]
    shares = [a / b for a, b in seconds]
    print("| plain pictures/s | whole pictures/s | whole / plain | (range) | MiB |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    print(f"| {rates[0]:.1f} | {rates[1]:.1f} | {median(shares):.2f} ", end="")
    print(f"| {min(shares):.2f} to {max(shares):.2f} | {peak_mib():.0f} |\n")
    print(f"* device: {device('torch') or processor()}\n* torch: {torch.__version__}")
    print(f"* pictures: {n}, pairs: {given.pairs}")


if __name__ == "__main__":
    main()
