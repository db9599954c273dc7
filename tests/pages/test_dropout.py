"""Training draws a new dropout mask in every update, with what the pages build, too.

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
from helpers.engine.settings import Settings
from helpers.engine.shapes import as_numpy
from sides import on_both_sides

OF_FRAMEWORK = {
    "jax": {"jax": jax, "jnp": jnp, "nnx": nnx, "optax": optax, "partial": partial},
    "torch": {
        "torch": torch, "nn": torch.nn, "checkpoint": checkpoint, "partial": partial,
    },
}  # fmt: skip


def copied(side, chapter, *names, **given):
    """Definitions of a page, as a reader copies them: by name."""
    found = {"np": np, "as_numpy": as_numpy, **OF_FRAMEWORK[side.name], **given}
    found["cross_entropy"] = side.models.cross_entropy
    for name in names:
        path = pages.NOTEBOOKS / f"{chapter}_{side.name}.py"
        exec(pages.definition(path, name), found)
    return found


@on_both_sides
@pytest.mark.parametrize("loss", ["class_loss", "half_loss"])
@pytest.mark.parametrize("kind", ["SequenceClassifier", "Recomputed"])
def test_fit_draws_new_masks_on_the_page_about_debugging(side, kind, loss):
    """Also with recomputation, and with products in half precision."""
    given = {"SequenceClassifier": side.models.SequenceClassifier}
    page = copied(side, "debugging", "Recomputed", "class_loss", "half_loss", **given)
    sizes = {"n_blocks": 1, "n_heads": 2, "f": 11, "max_length": 5, "dropout": 0.5}
    model = side.models.build(page[kind], 3, 8, 7, **sizes)
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    data = x, np.ones((4, 5), bool), np.arange(4)
    hardly = {"learning_rate": 1e-30, "schedule": "warmup_constant", "warmup": 1}
    settings = Settings(n_train=80, batch_size=4, epochs=1, **hardly)
    same = np.tile(np.arange(4), (20, 1))
    options = {"batches": lambda epoch: same, "bar": False}
    losses = side.models.fit(model, page[loss], data, settings, **options)["loss"]
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
