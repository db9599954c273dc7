"""Train the odd one out at its published size on photos: accuracies, in two files.

    python -m benchmarks.photo_sets --photos FOLDER --epochs 12

Photos as ``benchmarks.photos`` takes them. Nothing is downloaded: instead of a trained
ResNet34, k-means on small windows of the training photos gives the features. Stopped,
the same command goes on after the last whole epoch.

Source: Coates, Ng & Lee 2011 (the features).
"""

import argparse
import importlib
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import safetensors.numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from benchmarks import measure, photos, run
from helpers.data import pictures, sets
from helpers.engine.set_settings import Cifar100
from helpers.engine.weights import count_parameters, write_atomically

WINDOW, CENTRES, SAMPLE = 6, 400, 200_000  # pixels, of k-means, windows it learns from
FEATURES = (
    "{} centres of k-means on whitened windows of {} by {} pixels, "
    "summed in quarters of a photo, and reduced by principal components"
)


def windows(images):
    """Windows of uint8 images, without brightness, contrast: ``b y x c -> b y x i``."""
    size = (WINDOW, WINDOW)
    found = np.lib.stride_tricks.sliding_window_view(images, size, axis=(1, 2))
    found = found.reshape(*found.shape[:3], -1).astype(np.float32)
    found -= found.mean(-1, keepdims=True)
    return found / np.sqrt(found.var(-1, keepdims=True) + 10)


class Dictionary:
    """Features of photos, learned from the training photos without their classes."""

    def __init__(self, images, n_features, seed=0):
        from sklearn.cluster import MiniBatchKMeans
        from sklearn.decomposition import PCA

        rng = np.random.default_rng(seed)
        some = windows(images[rng.permutation(len(images))[:2_000]])
        some = some.reshape(-1, some.shape[-1])
        some = some[rng.permutation(len(some))[:SAMPLE]]
        self.white = PCA(0.998, whiten=True, random_state=seed).fit(some)
        k_means = MiniBatchKMeans(CENTRES, batch_size=4096, n_init=3, random_state=seed)
        self.centres = k_means.fit(self.white.transform(some)).cluster_centers_
        pooled = self.pooled(images)
        self.shrink = PCA(n_features, random_state=seed).fit(pooled)
        self.training = self.shrink.transform(pooled)

    def pooled(self, images):
        """How near each quarter's windows are to the centres: ``b y x c -> b i``."""
        return np.concatenate([
            self.of_some(images[first : first + 100])
            for first in range(0, len(images), 100)
        ])  # fmt: skip

    def of_some(self, images):
        parts = windows(images)
        b, y, x, i = parts.shape
        white = self.white.transform(parts.reshape(-1, i)).astype(np.float32)
        centres = self.centres.astype(np.float32)
        squares = (white**2).sum(1)[:, None] + (centres**2).sum(1)
        away = np.sqrt(np.maximum(squares - 2 * white @ centres.T, 0))
        near = np.maximum(away.mean(1, keepdims=True) - away, 0).reshape(b, y, x, -1)
        half = y // 2
        quarters = [
            near[:, rows, columns].sum(axis=(1, 2))
            for rows in (slice(half), slice(half, None))
            for columns in (slice(half), slice(half, None))
        ]
        return np.concatenate(quarters, axis=1)

    def __call__(self, images):
        return self.shrink.transform(self.pooled(images))


def parts_of(data, n_features, file):
    """The parts of the photos as parts of sets; their features are kept in a file."""
    if not file.exists():
        learned = Dictionary(data["train"][0], n_features)
        found = {"train": learned.training}
        found |= {name: learned(data[name][0]) for name in ("validation", "test")}
        centre, scale = found["train"].mean(axis=0), found["train"].std()
        found = {
            name: ((x - centre) / scale).astype(np.float32) for name, x in found.items()
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, safetensors.numpy.save(found))
    found = safetensors.numpy.load_file(file)
    return {name: sets.Part(found[name], labels) for name, (_, labels) in data.items()}


def from_the_others(x):
    """Share of sets whose last element is farthest from the mean of the others."""
    others = (x.sum(axis=1, keepdims=True) - x) / (x.shape[1] - 1)
    return (np.linalg.norm(x - others, axis=-1).argmax(-1) == x.shape[1] - 1).mean()


def linear(parts):
    """Share of test photos whose class logistic regression on the features finds."""
    from sklearn.linear_model import LogisticRegression

    train, test = parts["train"], parts["test"]
    learner = LogisticRegression(C=0.01, max_iter=1_000)
    learner.fit(train.features, train.labels)
    return learner.score(test.features, test.labels)


def train(framework, parts, settings, folder):
    """What came out of a training: accuracies on fixed sets of all parts."""
    models = importlib.import_module(f"helpers.{framework}")
    trainer = importlib.import_module(f"helpers.{framework}.training")
    model = models.build(models.Predictor, seed=settings.seed, **settings.model)
    if framework == "torch":
        torch = importlib.import_module("torch")
        model.to("cuda" if torch.cuda.is_available() else "cpu")
    fixed = {}
    for seed, (name, part) in enumerate(parts.items()):
        n = settings.n_validation if name == "validation" else settings.n_test
        rows = sets.fixed(part.labels, settings.set_size, n, seed)
        fixed[name] = part.features[rows]
    folder.mkdir(parents=True, exist_ok=True)
    clock = photos.Clock(folder / "cpu.json")
    drawn = sets.drawn(parts["train"].labels, settings)
    history = trainer.fit(
        model, trainer.odd_one_out, (parts["train"].features,), settings,
        batches=lambda epoch: (clock.until(epoch), drawn(epoch))[1],
        validation=(fixed["validation"],), folder=folder,
    )  # fmt: skip
    return {
        "n_parameters": count_parameters(model),
        "updates": settings.updates,
        "seconds": history["seconds"].sum().item(),
        "cpu_seconds": clock.until(settings.epochs),
        "history": list(photos.by_epoch(history, settings.updates_per_epoch)),
        "accuracy": {
            name: trainer.evaluate(model, trainer.odd_one_out, (x,))["accuracy"]
            for name, x in fixed.items()
        },
        "baseline": {name: from_the_others(x).item() for name, x in fixed.items()},
    }


def report(record):
    """The record as Markdown."""
    lines = [
        [f"{one['epoch']}", f"{one['updates']}", f"{one['seconds'] / 60:.1f}",
         f"{one['loss']:.4f}", f"{one['validation_accuracy']:.2%}"]
        for one in record["history"]
    ]  # fmt: skip
    rows = [
        [name, *(f"{share:.2%}" for share in record[name].values())]
        for name in ("accuracy", "baseline")
    ]
    about = {
        "minutes": f"{record['seconds'] / 60:.1f}",
        "CPU minutes": f"{record['cpu_seconds'] / 60:.1f}",
        "parameters": record["n_parameters"],
        "a linear classifier of single photos, on test": f"{record['linear']:.2%}",
        "features": record["features"],
        **record["about"],
        **record["settings"],
    }
    facts = "\n".join(f"* {name}: {value}" for name, value in about.items())
    tables = run.table(["sets of", *record["accuracy"]], rows)
    return f"{facts}\n\n{tables}\n\n{run.table(photos.COLUMNS, lines)}\n"


def arguments():
    """Of the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument(
        "--photos", default=pictures.source(), help="by default $PHOTOS"
    )
    parser.add_argument("--framework", choices=photos.FRAMEWORKS, default="torch")
    parser.add_argument("--epochs", type=run.positive, default=12)
    parser.add_argument("--name", help="of the photos, in the files; by default theirs")
    parser.add_argument("--shared", action="store_true", help="other work runs, too")
    parser.add_argument("--runs", type=Path, default=run.ROOT / "notebooks/runs/photos")
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    return parser.parse_args()


def main():
    """Features, training, test, and both files."""
    given = arguments()
    name = given.name or Path(given.photos).name
    data, names = pictures.load(given.photos, 0)
    sizes = {"n_train": len(data["train"][1]), "n_classes": len(names)}
    sizes |= {"source": name, "n_unseen": 2, "epochs": given.epochs}
    settings = Cifar100(**sizes)
    parts = parts_of(data, settings.n_features, given.runs / f"{name}-features")
    folder = given.runs / f"{name}-sets-{given.framework}-{settings.updates}"
    found = train(given.framework, parts, settings, folder)
    about = run.machine([{"fit": {"device": measure.device(given.framework)}}])
    about |= {"framework": given.framework, "shared": given.shared}
    about |= {"date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": f"{name}-sets", "about": about, "settings": asdict(settings)}
    record |= {
        "features": FEATURES.format(CENTRES, WINDOW, WINDOW),
        "linear": linear(parts),
        **found,
    }
    given = SimpleNamespace(output=given.output, task=record["task"], framework=None)
    print(*run.write(given, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
