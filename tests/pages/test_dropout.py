"""The loops on the pages draw a new dropout mask in every update.

The same batch again and again at a learning rate of 0: only the masks differ. Under
``jit``, a random key whose count is not handed on gives the same mask each time.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.utils.checkpoint import checkpoint

import pages
from helpers.engine.shapes import as_numpy
from sides import on_both_sides

OF_FRAMEWORK = {
    "jax": {"jax": jax, "jnp": jnp, "nnx": nnx, "optax": optax, "partial": partial},
    "torch": {
        "torch": torch, "nn": torch.nn, "checkpoint": checkpoint, "partial": partial,
        "device": "cpu",
    },
}  # fmt: skip
OPTIMIZER = {  # as the pages write it
    "jax": "optax.inject_hyperparams(optax.adamw)(3e-3, weight_decay=0.01)",
    "torch": "partial(torch.optim.AdamW, weight_decay=0.01)",
}


def copied(side, chapter, *names):
    """Definitions of a page, as a reader copies them: by name."""
    found = {"np": np, "as_numpy": as_numpy, **OF_FRAMEWORK[side.name]}
    found["cross_entropy"] = side.models.cross_entropy
    for name in names:
        path = pages.NOTEBOOKS / f"{chapter}_{side.name}.py"
        exec(pages.definition(path, name), found)
    return found


@on_both_sides
@pytest.mark.parametrize("loss", ["class_loss", "half_loss"])
@pytest.mark.parametrize("kind", ["Classifier", "Recomputed"])
def test_the_loop_of_debugging_draws_new_masks(side, kind, loss):
    """Also with recomputation, and with products in half precision."""
    names = "Block Classifier Recomputed class_loss half_loss one_update updates train"
    page = copied(side, "debugging", *names.split())
    page["ADAMW"] = eval(OPTIMIZER[side.name], page)
    sizes = {"n_blocks": 1, "n_heads": 2, "f": 11, "max_length": 5, "dropout": 0.5}
    model = side.models.build(page[kind], 3, 8, 7, **sizes)
    model.train()
    data = (
        side.tensor(np.random.default_rng(0).normal(size=(4, 5, 3))),
        side.mask(np.ones((4, 5), bool)),
        side.tensor(np.arange(4), "int32" if side.name == "jax" else "int64"),
    )
    with torch.random.fork_rng(devices=[]):
        same = np.tile(np.arange(4), (20, 1))
        losses = page["train"](model, page[loss], data, same, rate=0.0)
    assert len(set(losses.tolist())) == 20, "the same masks in several updates"


@on_both_sides
def test_the_loop_of_warmup_draws_new_masks(side):
    """In one call, and from call to call."""
    train = copied(side, "warmup", "train")["train"]
    sizes = {"n_blocks": 1, "n_heads": 2, "f": 11, "dropout": 0.5}
    model = side.build("Predictor", 3, 8, 7, **sizes)
    model.train()
    x = side.tensor(np.random.default_rng(0).normal(size=(4, 5, 3)))
    labels = side.tensor(np.ones((4, 5)), "int32" if side.name == "jax" else "int64")
    rates, losses = side.tensor(np.zeros(6)), []
    rows = side.tensor(np.tile(np.arange(4), (6, 1)), "int64")
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):
            found = train(model, (x, labels), rows, rates)
            losses += as_numpy(found).tolist()
    assert all(map(math.isfinite, losses))
    assert len(set(losses)) == 12, "the same masks in several updates"
