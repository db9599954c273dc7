"""One training, in a process of its own so that compilation counts; prints JSON.

python -m benchmarks.measure --task reverse --framework jax --way fit
"""

import argparse
import importlib
import json
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

# Loaded on first use by both ways; imports are not timed, in neither.
import tensorboard.summary  # noqa: F401

from benchmarks import tasks
from helpers.data import text
from helpers.data.sequences import in_order
from helpers.engine.settings import Pictures
from helpers.engine.weights import to_arrays

FRAMEWORKS = "jax", "torch"
WAYS = "usual", "fit"


class Case:
    """A task in a framework: settings, data, model and losses, ready to train."""

    def __init__(self, task, framework, updates=None):
        self.task, self.framework = task, framework
        self.settings = tasks.shortened(tasks.TASKS[task], updates)
        self.losses = importlib.import_module(f"benchmarks.losses_{framework}")
        self.trainer = importlib.import_module(f"helpers.{framework}.training")
        models = importlib.import_module(f"helpers.{framework}")
        options = self.settings.model
        kinds = {"text": models.LanguageModel, "vision": models.VisionTransformer}
        kind = kinds.get(task, models.Predictor)
        self.model = models.build(kind, seed=self.settings.seed, **options)
        if framework == "torch":
            torch = importlib.import_module("torch")
            importlib.import_module("torch._dynamo")  # the first optimizer loads it
            self.model.to("cuda" if torch.cuda.is_available() else "cpu")
        if task == "vision":
            self.files = tempfile.TemporaryDirectory()  # removed with this case
            make = partial(tasks.photos, folder=Path(self.files.name))
            self.augment = partial(
                tasks.in_whole_pixels, move=models.augment, **tasks.MOVES
            )
        else:
            make = {"reverse": tasks.sequences, "anomaly": tasks.features}
            make = (make | {"text": tasks.tokens})[task]
        self.data = make(self.settings)

    def usual(self, folder):
        """The usual training, as a function that makes it."""
        usual = importlib.import_module(f"benchmarks.usual_{self.framework}")
        loss = getattr(self.losses, self.task)
        data = Path(self.files.name) if self.task == "vision" else self.data
        args = self.task, self.model, loss, data, self.settings, folder
        return lambda: usual.Training(*args)

    def arguments(self):
        """Loss, data and options of ``fit``; making them is part of its time."""
        train, validation = self.data
        if self.task == "reverse":
            n = self.settings.n_symbols
            options = {"validation": tasks.reversal(validation, n)}
            return self.trainer.cross_entropy, tasks.reversal(train, n), options
        if self.task == "vision":
            options = {"validation": validation, "augment": self.augment}
            return self.trainer.cross_entropy, train, options
        if self.task == "text":
            rows = text.random_windows(train, self.settings)
            options = {"validation": (text.windows(validation, self.settings.length),)}
            options["batches"] = in_order(self.settings)
            return self.trainer.next_token, (rows,), options
        tests = validation[tasks.validation_sets(self.settings)]
        options = {"batches": tasks.batches_of_sets(self.settings)}
        return self.trainer.odd_one_out, (train,), {**options, "validation": (tests,)}

    def train(self, way, folder):
        """A training, as a function that does it and returns its history."""
        if way == "usual":
            make = self.usual(folder)
            return lambda: make().fit()

        def fit():
            loss, data, options = self.arguments()
            options |= {"folder": folder, "bar": False}
            return self.trainer.fit(self.model, loss, data, self.settings, **options)

        return fit


def measure(case, way):
    """Seconds of a training, and what came out of it."""
    with tempfile.TemporaryDirectory() as folder:
        train = case.train(way, folder)
        began = time.perf_counter()
        history = train()
        seconds = time.perf_counter() - began
    last = history["loss"][-100:]
    record = {"seconds": seconds, "updates": len(history["loss"])}
    record["loss"] = float(sum(last) / len(last))
    for name in ("validation_loss", "validation_accuracy"):
        record[name] = float(history[name][-1])
    record |= {"peak_mib": peak_mib(), "device": device(case.framework)}
    if way == "fit":
        quickest = min(history["seconds"]) / case.settings.updates_per_epoch
        record["gflops"] = flops(case) / quickest / 1e9
        record["matmul_gflops"] = matmul_flops(case.framework) / 1e9
    return record


def flops(case):
    """Operations of an update, by formula: two per product and sum, back twice forth.

    ``6 · N · tokens`` for the ``N`` numbers of all matrices, and for scores and means
    of ``l`` blocks ``12 · l · b · s² · m``. Tables that rows are only taken from do not
    count: positions, and an embedding that the logits are not tied to. With photos, the
    first matrix needs no gradient of its input, and the last one has one row a photo.
    """
    settings, looked_up = case.settings, {"positions.table"}
    looked_up |= set() if getattr(settings, "tied", True) else {"embed.weight"}
    arrays = to_arrays(case.model).items()
    n = {name: x.size for name, x in arrays if x.ndim == 2 and name not in looked_up}
    if isinstance(settings, Pictures):
        patches = (settings.image_size // settings.patch) ** 2
        s = patches + (settings.pool == "token")
        ends = 4 * n.pop("embed.weight") * patches + 6 * n.pop("output.weight")
    else:
        s, ends = getattr(settings, "length", 0) or settings.set_size, 0
    attention = 12 * settings.n_blocks * s**2 * settings.m
    return settings.batch_size * (ends + 6 * sum(n.values()) * s + attention)


def matmul_flops(framework, n=2048, repeats=5):
    """Operations a second of a large float32 matrix product: what is possible here."""
    if framework == "torch":
        import torch

        x = torch.ones(n, n, device="cuda" if torch.cuda.is_available() else "cpu")
        product = lambda: (x @ x)[0, 0].item()  # noqa: E731
    else:
        import jax

        x, multiply = jax.numpy.ones((n, n)), jax.jit(jax.numpy.matmul)
        product = lambda: multiply(x, x).block_until_ready()  # noqa: E731
    product()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - began)
    return 2 * n**3 / min(seconds)


def peak_mib():
    """Most memory that this process has held, in MiB."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def device(framework):
    """Name of the GPU that is used, or None."""
    if framework == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else None
    import jax

    return None if jax.default_backend() == "cpu" else jax.devices()[0].device_kind


def arguments():
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=tasks.TASKS, required=True)
    parser.add_argument("--framework", choices=FRAMEWORKS, required=True)
    parser.add_argument("--way", choices=WAYS, default="fit")
    parser.add_argument("--updates", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    case = Case(given.task, given.framework, given.updates)
    print(json.dumps(measure(case, given.way)))
