"""Train *Finding the odd one out* in the tutorial's size on all photos of CIFAR-10.

    PYTHONPATH=notebooks python -m benchmarks.odd_one_out features.npz --updates 5616

``benchmarks.photo_features`` writes the features, and says how. The sets, the model and
its loss are those of the page; the record is what its section on more photos reads.
"""

import argparse
import json
import platform
import time
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.cifar10 import pages
from benchmarks.run import ROOT, device
from helpers.data import sets
from helpers.settings import Settings
from helpers.torch import Predictor, attention_maps, evaluate, fit

S, SEED, N_VALIDATION = 10, 42, 5_000
EVERY = 117  # updates for a point of the curves: a sixth of an epoch
SIZES = {"n_inputs": 1280, "n_outputs": 1, "n_blocks": 4, "m": 256, "n_heads": 4}
SIZES |= {"f": 512, "dropout": 0.1}
RATES = {"batch_size": 64, "learning_rate": 5e-4, "warmup": 100, "seed": SEED}
PAGE = "draw_sets fixed_sets sets_of from_the_others rule odd_one_out SetModel isolated"


def from_the_page():
    """The functions and the class that stand on the page, by their names."""
    names = {"torch": torch, "nn": nn, "np": np, "Predictor": Predictor, "s": S}
    for name in PAGE.split():
        exec(pages.definition(pages.NOTEBOOKS / "anomaly_torch.py", name), names)
    return names


def parts(path):
    """Training, validation and test, scaled by the training part."""
    found = np.load(path)
    labels = found["train_labels"]
    rows = sets.divide(labels, N_VALIDATION / len(labels), SEED)
    x = found["train"].astype(np.float32)
    mean = x[rows[0]].mean(axis=0)
    scale = (x[rows[0]] - mean).std()  # one number for all: distances keep their ratios
    train, held_out = [sets.Part((x[r] - mean) / scale, labels[r]) for r in rows]
    test = (found["test"].astype(np.float32) - mean) / scale
    return train, held_out, sets.Part(test, found["test_labels"])


def scores(model, x, mask):
    """Logits of sets ``n s`` under a mask ``q k``, with dropout off."""
    mask = torch.tensor(mask)
    batches = torch.tensor(x).split(500)
    return torch.cat([attention_maps(model, b, mask)[0][..., 0] for b in batches])


def main():
    """Train, test, cut, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("features", type=Path)
    parser.add_argument("--updates", type=int, default=6 * EVERY)
    given, page = parser.parse_args(), from_the_page()
    draw, loss_fn, rule = page["fixed_sets"], page["odd_one_out"], page["rule"]
    train, held_out, test = parts(given.features)
    n, points = EVERY * RATES["batch_size"], given.updates // EVERY
    plan = Settings(n_train=n, epochs=points, **RATES)
    x = {
        "training": draw(train, 2_000, 2)[1],
        "validation": draw(held_out, 2_000, 1)[1],
    }
    x["test"] = draw(test, 10_000, SEED)[1]
    torch.manual_seed(SEED)
    model, clock = page["SetModel"](**SIZES), (time.time(), time.process_time())
    history = fit(
        model,
        loss_fn,
        (train.features,),
        plan,
        batches=page["sets_of"](train, plan),
        validation=(x["validation"],),
        best="accuracy",
    )
    seconds, cpu = time.time() - clock[0], time.process_time() - clock[1]
    everything = np.ones((S, S), dtype=bool)
    masks = {"nothing": everything, "the odd one": page["isolated"](S - 1)}
    masks["one of the nine"] = page["isolated"](0)
    isolated = {}
    for name, mask in masks.items():
        logits = scores(model, x["test"], mask)
        isolated[name] = {
            "accuracy": (logits.argmax(-1) == S - 1).double().mean().item(),
            "odd score": logits[:, -1].mean().item(),
            "normal score": logits[:, 0].mean().item(),
        }
    about = {"device": device(), "python": platform.python_version()}
    about |= {name: version(name) for name in ("torch", "numpy")}
    about |= {"framework": "torch", "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": "odd-one-out", "about": about, "sizes": SIZES, "settings": RATES}
    record["features"] = "1,280 of EfficientNet-Lite0, photos enlarged to 128 pixels"
    record |= {
        "n_train": len(train.labels),
        "n_validation": N_VALIDATION,
        "n_test": 10_000,
    }
    record |= {"every": EVERY, "updates": plan.updates, "set_size": S}
    record |= {"n_parameters": sum(p.numel() for p in model.parameters())}
    record |= {"seconds": round(seconds), "cpu_seconds": round(cpu)}
    for name in ("loss", "accuracy"):
        curve = history[name].reshape(plan.epochs, -1).mean(axis=1)
        record[f"training_{name}"] = curve.round(4).tolist()
        record[f"validation_{name}"] = history[f"validation_{name}"].round(4).tolist()
    record["accuracy"] = {
        k: evaluate(model, loss_fn, (v,))["accuracy"] for k, v in x.items()
    }
    record["baseline"] = {name: float(rule(value)) for name, value in x.items()}
    record["isolated"] = isolated
    machine = device().replace(",", "").replace(" ", "-").lower()
    name = f"{machine}-{datetime.now():%Y-%m-%d}-odd-one-out.json"
    path = ROOT / "benchmarks" / "results" / name
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(path, record["accuracy"], record["baseline"], isolated)


if __name__ == "__main__":
    main()
