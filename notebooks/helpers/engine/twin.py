"""The same training in the other framework, in a process of its own.

A page never loads both frameworks; to compare them it asks another Python.
"""

import os
from importlib import import_module
from pathlib import Path

from helpers.engine.jobs import together


def losses(side, settings, weights):
    """Loss of every update of a training, from given weights: float64 array ``updates``.

    Parameters
    ----------
    side : {"jax", "torch"}
    settings : helpers.engine.settings.Settings
        Of a task that ``helpers.engine.tasks`` knows.
    weights : str or path
        Initial weights, as ``helpers.engine.weights.save_weights`` writes them.

    Raises
    ------
    RuntimeError
        If the other process fails, with the end of what it said.
    """
    return together(train, 1, side, settings, Path(weights).resolve(), limit=1800)[0]


def train(_, side, settings, weights):
    """What the other process does."""
    os.environ["TQDM_DISABLE"] = "1"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"  # as on the pages
    training = import_module(f"helpers.{side}.training")
    if side == "torch":  # as on the pages; JAX finds the GPU by itself
        torch = import_module("torch")
        torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    from helpers.engine import tasks
    from helpers.engine.weights import load_weights

    task = tasks.of(settings)
    model, loss = task.build(side), getattr(training, task.loss)
    load_weights(model, weights)
    options = task.options(side) | {"validation": None}
    return training.fit(model, loss, task.data["train"], settings, **options)["loss"]
