"""Train the ViT of *Pictures as sequences* on CIFAR-10; a record for the page.

    make data PHOTOS=cifar10 ARGS=--images-only
    PYTHONPATH=notebooks python -m benchmarks.cifar10 notebooks/data/cifar10.npz

An interrupted run goes on after its last checkpoint, which is in ``--folder``.
"""

import argparse
import io
import json
import platform
import sys
import time
from base64 import b64encode
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from benchmarks.run import ROOT, device
from helpers.settings import warmup_cosine
from helpers.torch import Encoder, LearnedPositions, attention_maps, dense

sys.path.append(str(ROOT / "tools"))
import pages

SIZES = {"image_size": 32, "n_channels": 3, "m": 96, "n_outputs": 10, "patch": 4}
SIZES |= {"n_blocks": 4, "n_heads": 4, "f": 192}
SETTINGS = {"batch_size": 64, "learning_rate": 2e-3, "warmup": 500, "seed": 42}
SETTINGS |= {"weight_decay": 0.05, "max_grad_norm": 1.0, "n_validation": 5_000}
EVERY = 100  # updates for a point of the curve, and for a checkpoint


def new_model():
    """The class that stands on the page, untrained."""
    names = {"torch": torch, "nn": nn, "dense": dense, "Encoder": Encoder}
    names["LearnedPositions"] = LearnedPositions
    for name in ("cut_patches", "VisionTransformer"):
        exec(pages.definition(pages.NOTEBOOKS / "vision_torch.py", name), names)
    torch.manual_seed(SETTINGS["seed"])
    return names["VisionTransformer"](**SIZES)


def flip_and_crop(images, rng):
    """Half of them mirrored, each shifted by up to four pixels: ``b y x i``."""
    mirrored = rng.random(len(images)) < 0.5
    images = np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
    padded = np.pad(images, [(0, 0), (4, 4), (4, 4), (0, 0)])
    pairs = zip(padded, rng.integers(9, size=(len(images), 2)), strict=True)
    return np.stack(
        [x[row : row + 32, column : column + 32] for x, (row, column) in pairs]
    )


def predict(model, images):
    """Probabilities, and the class token's map in the last block, mean of its heads."""
    parts = []
    for part in np.array_split(images, -(-len(images) // 500)):
        x = model.eval().tokens(torch.tensor(part / np.float32(255)))
        encoded, maps = attention_maps(model.encoder, x)
        p = model.output(encoded[:, 0]).softmax(-1).detach().numpy()
        parts.append((p, maps[-1].mean(1)[:, 0, 1:].numpy()))
    return [np.concatenate(x) for x in zip(*parts, strict=True)]


def accuracy(model, images, labels):
    return float((predict(model, images)[0].argmax(-1) == labels).mean())


def train(images, labels, held_out, updates, folder):
    """The model and its curves, from the last checkpoint on."""
    model, s, path = new_model(), SETTINGS, folder / "checkpoint.pt"
    options = {"weight_decay": s["weight_decay"], "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=s["learning_rate"], **options)
    curves = {"loss": [], "validation_accuracy": [], "seconds": 0.0, "cpu_seconds": 0.0}
    start, losses, clocks = 0, [], (time.time(), time.process_time())
    if path.exists():
        start, weights, state, curves = torch.load(path)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    per_epoch = len(images) // s["batch_size"]
    for step in range(start, updates):
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([s["seed"], epoch]).permutation(len(images))
        rows = order[place * s["batch_size"] :][: s["batch_size"]]
        x = flip_and_crop(images[rows], np.random.default_rng([epoch, place]))
        factor = warmup_cosine(step, s["warmup"], updates)
        optimizer.param_groups[0]["lr"] = s["learning_rate"] * factor
        logits = model.train()(torch.tensor(x / np.float32(255)))
        loss = nn.functional.cross_entropy(logits, torch.tensor(labels[rows]).long())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), s["max_grad_norm"])
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % per_epoch == 0 or step + 1 == updates:
            curves["validation_accuracy"].append([step + 1, accuracy(model, *held_out)])
        if (step + 1) % EVERY == 0:
            curves["loss"].append(round(float(np.mean(losses)), 4))
            now = time.time(), time.process_time()
            curves["seconds"] += now[0] - clocks[0]
            curves["cpu_seconds"] += now[1] - clocks[1]
            losses, clocks = [], now
            state = step + 1, model.state_dict(), optimizer.state_dict(), curves
            torch.save(state, folder / "new.pt")
            (folder / "new.pt").replace(path)
            print(step + 1, curves["loss"][-1], flush=True)
    return model, curves


def examples(model, images, labels):
    """The first test photo of each class: PNG, probabilities, and map."""
    images = images[[int((labels == c).argmax()) for c in range(SIZES["n_outputs"])]]
    for image, p, weights in zip(images, *predict(model, images), strict=True):
        Image.fromarray(image).save(file := io.BytesIO(), "PNG")
        yield {"photo": b64encode(file.getvalue()).decode()} | {
            "probabilities": p.astype(float).round(4).tolist(),
            "map": weights.astype(float).round(4).tolist(),
        }


def main():
    """Train, test, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--updates", type=int, default=12_000)
    given, s = parser.parse_args(), SETTINGS
    found = np.load(given.photos)
    images, labels = found["train_images"], found["train_labels"]
    order = np.random.default_rng(s["seed"]).permutation(len(images))
    rows, rest = order[s["n_validation"] :], order[: s["n_validation"]]
    held_out = images[rest], labels[rest]
    run = train(images[rows], labels[rows], held_out, given.updates, given.folder)
    model, test = run[0], (found["test_images"], found["test_labels"])
    about = {"device": device(), "python": platform.python_version()}
    about |= {name: version(name) for name in ("torch", "numpy")}
    about |= {"framework": "torch", "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": "cifar10", "about": about, "settings": s, "sizes": SIZES}
    record |= {"augmentation": "mirrored half of the time, shifted by up to 4 pixels"}
    record |= {"n_parameters": sum(p.numel() for p in model.parameters())}
    record |= {"updates": given.updates, "test_accuracy": accuracy(model, *test)}
    record |= {"every": EVERY, **run[1], "classes": found["classes"].tolist()}
    record |= {"examples": list(examples(model, *test))}
    path = given.folder / "cifar10.json"
    path.write_text(json.dumps(record) + "\n", "utf-8")
    print(f"{path}: {record['test_accuracy']:.2%} of the test")


if __name__ == "__main__":
    main()
