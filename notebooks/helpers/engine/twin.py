"""The same training in the other framework, in a process of its own.

A page never loads both frameworks; to compare them it asks another Python.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np


def losses(side, settings, weights):
    """Loss of every update of a training, from given weights.

    Parameters
    ----------
    side : {"jax", "torch"}
    settings : helpers.engine.settings.Settings
        Of a task that ``helpers.engine.tasks`` knows.
    weights : str or path
        Initial weights, as ``helpers.engine.weights.save_weights`` writes them.

    Returns
    -------
    float64 array ``updates``

    Raises
    ------
    RuntimeError
        If the other process fails, with the end of what it said.
    """
    task = json.dumps({"task": type(settings).__name__, **asdict(settings)})
    environment = {
        **os.environ,
        "TQDM_DISABLE": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",  # as on the pages
    }
    with TemporaryDirectory() as folder:
        found = Path(folder) / "losses.npy"
        done = subprocess.run(
            [sys.executable, "-m", __name__, side, task, str(Path(weights).resolve()), str(found)],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"the run in {side} failed:\n{done.stderr[-2000:]}")
        return np.load(found)


def main(side, task, weights, found):
    """What the other process does."""
    from helpers.engine import settings as known
    from helpers.engine import tasks
    from helpers.engine.weights import load_weights

    sizes = json.loads(task)
    settings = getattr(known, sizes.pop("task"))(**sizes)
    training = import_module(f"helpers.{side}.training")
    if side == "torch":  # as on the pages; JAX finds the GPU by itself
        torch = import_module("torch")
        torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    task = tasks.of(settings)
    model, loss = task.build(side), getattr(training, task.loss)
    load_weights(model, weights)
    options = task.options(side) | {"validation": None}
    history = training.fit(model, loss, task.data["train"], settings, **options)
    np.save(found, history["loss"])


if __name__ == "__main__":
    main(*sys.argv[1:])
