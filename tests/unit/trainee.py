"""A small training in a process of its own, which may end itself at a chosen point.

    python tests/unit/trainee.py train jax FOLDER [POINT NUMBER]
    python tests/unit/trainee.py retrain jax FOLDER [POINT NUMBER]
    python tests/unit/trainee.py finish jax FOLDER...

``train`` says "begins" on stderr with the second epoch. At a point, for the NUMBER-th
time, the process sends itself the signal that cannot be caught. ``finish`` brings the
runs in all folders to their end, trains once more without a folder, and prints as JSON
what each run came to.
"""

import hashlib
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "notebooks"))

from helpers import runs, sequences, weights
from helpers.settings import Sequences

SETTINGS = Sequences(
    n_train=56, batch_size=8, epochs=8, learning_rate=0.01, warmup=5, n_symbols=5,
    length=3, n_validation=20, n_test=1, m=4, f=6, dropout=0.3,
)  # fmt: skip


class Trap:
    """Counts how often a point is reached, and ends the process at the chosen time."""

    def __init__(self, point=None, number=0):
        self.point, self.left = point, int(number)

    def __call__(self, point):
        self.left -= point == self.point
        if point == self.point and not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


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
        for point, size in {"empty": 0, "header": 100, "half": len(data) // 2}.items():
            self.file.truncate(0)
            self.file.seek(0)
            self.file.write(data[:size])
            self.file.flush()
            self.trap(point)
        self.file.write(data[size:])


def set_traps(trap):
    """Put the trap at every point of a training."""
    replace, write = os.replace, runs.Events.write

    def trapped_replace(*arguments):
        trap("before replace")
        replace(*arguments)
        trap("after replace")

    def trapped_write(*arguments):
        trap("before events")
        write(*arguments)
        trap("after events")

    weights.open = lambda *arguments: Draft(trap, *arguments)
    os.replace, runs.Events.write = trapped_replace, trapped_write


def train(side, folder, trap=None, epochs_seen=None, **options):
    """Train in a folder; return model and history."""
    trap = trap or Trap()
    model_of = import_module(f"helpers.model_{side}")
    train_of = import_module(f"helpers.train_{side}")
    data = sequences.reverse_data(SETTINGS)
    batches_of = sequences.shuffled(SETTINGS)

    def batches(epoch):
        trap("batches")
        if epochs_seen is not None:
            epochs_seen.append(epoch)
        if epoch == 1:
            print("begins", file=sys.stderr, flush=True)
        return batches_of(epoch)

    model = model_of.build(model_of.Predictor, **SETTINGS.model)
    options = {"validation": data["validation"], "bar": False, **options}
    return model, train_of.fit(
        model,
        train_of.cross_entropy,
        data["train"],
        SETTINGS,
        batches=batches,
        folder=folder,
        **options,
    )


def result(model, history):
    """What a training came to, bit for bit; its history can be read."""
    arrays = weights.to_arrays(model)
    kept = {name: x for name, x in history.items() if name != "seconds"}
    return {
        "weights": {name: digest(x) for name, x in sorted(arrays.items())},
        "history": {name: x.tolist() for name, x in kept.items()},
    }


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()[:16]


def main():
    task, side, *rest = sys.argv[1:]
    if task != "finish":
        folder, *plan = rest
        trap = Trap(*plan)
        set_traps(trap)
        train(side, folder, trap, retrain=task == "retrain")
        return
    found = {}
    for folder in [*rest, None]:
        seen = []
        found[str(folder)] = result(*train(side, folder, epochs_seen=seen))
        found[str(folder)]["epochs"] = seen
    print(json.dumps(found))


if __name__ == "__main__":
    main()
