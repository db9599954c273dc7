"""Train a vision Transformer on photos for an hour: accuracy by time, in two files.

    python -m benchmarks.photos --framework jax --epochs 24
    python -m benchmarks.photos --photos FOLDER --epochs 20

Photos as `make data` prepares them. Stopped, the same command goes on after the last
whole epoch.
"""

import argparse
import importlib
import json
import sys
import time
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from benchmarks import measure, run, tasks
from helpers.data import pictures
from helpers.data.sequences import shuffled
from helpers.engine.settings import Pictures
from helpers.engine.weights import count_parameters, write_atomically

FRAMEWORKS = "jax", "torch"
COLUMNS = "epoch", "updates", "minutes", "loss", "validation accuracy"


def settings_for(images, names, epochs, **changes):
    """Sizes from the photos, the rest from ``tasks.PHOTOS``."""
    sizes = {"n_train": len(images), "n_classes": len(names), "epochs": epochs}
    sizes = tasks.PHOTOS | sizes | changes
    sizes |= {"image_size": images.shape[1], "n_channels": images.shape[3]}
    sizes["batch_size"] = min(sizes["batch_size"], len(images))
    updates = epochs * (len(images) // sizes["batch_size"])
    return Pictures(**sizes | {"warmup": min(sizes["warmup"], max(1, updates // 10))})


class Clock:
    """CPU seconds of a training, all threads together, also if it was resumed."""

    def __init__(self, file):
        self.file, self.offset = file, -time.process_time()
        found = json.loads(file.read_text()) if file.exists() else {}
        self.known = {int(epoch): seconds for epoch, seconds in found.items()}

    def until(self, epoch):
        """Seconds before this epoch; what an interrupted one used does not count."""
        now = time.process_time()
        if epoch in self.known:
            self.offset = self.known[epoch] - now
        else:
            self.known[epoch] = now + self.offset
            write_atomically(self.file, json.dumps(self.known).encode())
        return self.known[epoch]


def train(framework, data, settings, folder):
    """What came out of a training, with the accuracy on the test part."""
    models = importlib.import_module(f"helpers.{framework}")
    trainer = importlib.import_module(f"helpers.{framework}.training")
    model = models.build(models.VisionTransformer, seed=settings.seed, **settings.model)
    if framework == "torch":
        torch = importlib.import_module("torch")
        model.to("cuda" if torch.cuda.is_available() else "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    clock, order = Clock(folder / "cpu.json"), shuffled(settings)
    history = trainer.fit(
        model, trainer.cross_entropy, data["train"], settings,
        batches=lambda epoch: (clock.until(epoch), order(epoch))[1],
        augment=partial(tasks.in_whole_pixels, move=models.augment, **tasks.MOVES),
        validation=data["validation"], folder=folder,
    )  # fmt: skip
    test = trainer.evaluate(model, trainer.cross_entropy, data["test"])
    return {
        "n_parameters": count_parameters(model),
        "updates": settings.updates,
        "seconds": history["seconds"].sum().item(),
        "cpu_seconds": clock.until(settings.epochs),
        "history": list(by_epoch(history, settings.updates_per_epoch)),
        "test_accuracy": test["accuracy"],
    }


def by_epoch(history, n):
    """What stands in the record for each epoch of ``n`` updates."""
    seconds = history["seconds"].cumsum()
    for place, accuracy in enumerate(history["validation_accuracy"]):
        yield {
            "epoch": place + 1,
            "updates": (place + 1) * n,
            "seconds": seconds[place].item(),
            "loss": history["loss"][place * n : (place + 1) * n].mean().item(),
            "validation_accuracy": accuracy.item(),
        }


def report(record):
    """The record as Markdown."""
    lines = [
        [f"{one['epoch']}", f"{one['updates']}", f"{one['seconds'] / 60:.1f}",
         f"{one['loss']:.4f}", f"{one['validation_accuracy']:.2%}"]
        for one in record["history"]
    ]  # fmt: skip
    about = {
        "test accuracy": f"{record['test_accuracy']:.2%}, with the weights of the "
        "epoch that had the highest validation accuracy",
        "minutes": f"{record['seconds'] / 60:.1f}",
        "CPU minutes": f"{record['cpu_seconds'] / 60:.1f}",
        "parameters": record["n_parameters"],
        "augmentation": record["augmentation"],
        **record["about"],
        **record["settings"],
    }
    facts = "\n".join(f"* {name}: {value}" for name, value in about.items())
    return f"{facts}\n\n{run.table(COLUMNS, lines)}\n"


def arguments():
    """Of the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument(
        "--photos", default=pictures.source(), help="by default $PHOTOS"
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="jax")
    parser.add_argument("--epochs", type=run.positive, default=24)
    parser.add_argument("--name", help="of the photos, in the files; by default theirs")
    parser.add_argument("--shared", action="store_true", help="other work runs, too")
    parser.add_argument("--runs", type=Path, default=run.ROOT / "notebooks/runs/photos")
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    return parser.parse_args()


def main():
    """Train, test, and write both files."""
    given = arguments()
    data, names = pictures.load(given.photos, 0)
    settings = settings_for(data["train"][0], names, given.epochs)
    name = given.name or Path(given.photos).name
    folder = given.runs / f"{name}-{given.framework}-{settings.updates}"
    found = train(given.framework, data, settings, folder)
    about = run.machine([{"fit": {"device": measure.device(given.framework)}}])
    about |= {"framework": given.framework, "shared": given.shared}
    about |= {"date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": name, "about": about, "settings": asdict(settings)}
    record |= {"augmentation": tasks.MOVES, **found}
    given = SimpleNamespace(output=given.output, task=name, framework=None)
    print(*run.write(given, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
