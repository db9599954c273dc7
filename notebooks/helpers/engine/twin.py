"""The same training in the other framework: a page never loads both, but asks Python."""

import os
from importlib import import_module
from pathlib import Path

from helpers.engine.weights import load_weights
from helpers.jobs import together


def losses(framework, kind, loss_fn, data, settings, weights, batches=None):
    """Loss of every update of a training in "jax" or "torch": float64 array ``updates``.

    The framework takes its own class of the model and loss function, by the names of
    ``kind`` and ``loss_fn``; ``data``, ``settings`` and ``batches`` are as for ``fit``,
    ``weights`` a file of ``helpers.engine.weights.save_weights`` to begin with.

    Raises RuntimeError if the other process fails, with the end of what it said.
    """
    names = framework, kind.__name__, loss_fn.__name__
    given = data, settings, Path(weights).resolve(), batches
    return together(train, 1, *names, *given, limit=1800)[0]


def train(_, framework, kind, loss_fn, data, settings, weights, batches):
    """What the other process does."""
    os.environ["TQDM_DISABLE"] = "1"
    room = import_module(f"helpers.{framework}")
    model = room.build(getattr(room, kind), **settings.model)
    if framework == "torch" and import_module("torch").cuda.is_available():
        model.cuda()  # as on the pages; JAX finds the GPU by itself
    load_weights(model, weights)
    loss_fn = getattr(room, loss_fn)
    return room.fit(model, loss_fn, data, settings, batches=batches)["loss"]
