"""Small trainings in processes of their own, which may end themselves at a point.

They are forked from a process that has imported the frameworks (``multiprocessing``'s
forkserver), so that each costs little more than its training.
"""

import json
import multiprocessing
import os
import signal
from importlib import import_module
from pathlib import Path

from helpers.data import sequences
from helpers.engine import fingerprint, runs, weights
from helpers.engine.settings import Sequences

SETTINGS = Sequences(
    n_train=56, batch_size=8, epochs=5, learning_rate=0.01, warmup=5, n_symbols=5,
    length=3, n_validation=20, n_test=1, m=4, f=6, dropout=0.3,
)  # fmt: skip
IMPORTED = (
    "jax", "flax.nnx", "optax", "torch", "torch._dynamo", "tensorboard.summary",
    "pytest",
)  # fmt: skip


def start(function, *arguments):
    """A process that calls a function of this module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


class Trap:
    """Counts how often a point is reached, and ends the process at the chosen time."""

    def __init__(self, point=None, number=0):
        self.point, self.left = point, int(number)

    def __call__(self, point):
        self.left -= point == self.point
        if point == self.point and not self.left:
            os.kill(os.getpid(), signal.SIGKILL)  # cannot be caught


class Draft:
    """A file that may be cut short while it is written."""

    def __init__(self, trap, path, mode):
        self.trap, self.file = trap, Path(path).open(mode)  # noqa: SIM115

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.trap("half")
        self.file.write(data[len(data) // 2 :])


def set_traps(trap):
    """Put the trap at every point of a training."""
    replace, write = os.replace, runs.Run.write_events

    def open_checkpoint(path, mode):
        if "checkpoint" in Path(path).name:
            return Draft(trap, path, mode)
        return Path(path).open(mode)

    def trapped_replace(source, target):
        at_checkpoint = "checkpoint" in Path(target).name
        at_checkpoint and trap("before replace")
        replace(source, target)
        at_checkpoint and trap("after replace")

    def trapped_write(*arguments):
        write(*arguments)
        trap("after events")

    weights.open = open_checkpoint
    os.replace, runs.Run.write_events = trapped_replace, trapped_write


def train(side, folder, trap=None, epochs_seen=None, **options):
    """Train in a folder; return model and history."""
    model_of = import_module(f"helpers.{side}")
    train_of = import_module(f"helpers.{side}.training")
    data = sequences.reverse_data(SETTINGS)
    batches_of = sequences.shuffled(SETTINGS)

    def batches(epoch):
        if trap is not None:
            trap("batches")
        if epochs_seen is not None:
            epochs_seen.append(epoch)
        return batches_of(epoch)

    model = model_of.build(model_of.Predictor, **SETTINGS.model)
    options = {"validation": data["validation"], "bar": False, **options}
    args = model, train_of.cross_entropy, data["train"], SETTINGS
    return model, train_of.fit(*args, batches=batches, folder=folder, **options)


def train_until(side, folder, point, number, retrain=False):
    """Train, and end the process when a point is reached for the NUMBER-th time."""
    trap = Trap(point, number)
    set_traps(trap)
    train(side, folder, trap, retrain=retrain)


def finish(side, folders, report):
    """Resume the runs in all folders, and train once without a folder.

    What each came to goes to the file ``report``, as JSON.
    """
    found = {}
    for folder in [*folders, None]:
        seen = []
        found[str(folder)] = result(*train(side, folder, epochs_seen=seen))
        found[str(folder)]["epochs"] = seen
    Path(report).write_text(json.dumps(found))


def result(model, history):
    """What a training came to, bit for bit; its history can be read."""
    kept = {name: x for name, x in history.items() if name != "seconds"}
    return {
        "weights": fingerprint.digest(weights.to_arrays(model)),
        "history": {name: x.tolist() for name, x in kept.items()},
    }
