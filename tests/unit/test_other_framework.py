"""The same training in the other framework's own process (``helpers.engine.twin``)."""

from dataclasses import replace

import numpy as np
import pytest

import tasks
from helpers.engine import twin
from helpers.engine.settings import Dates, Digits, Pictures, Reverse, Settings, Text
from helpers.engine.weights import save_weights
from helpers.jax import training as train_jax
from helpers.torch import training as train_torch
from sides import jax_side, torch_side

# Ten updates at a low rate, for training magnifies rounding; without dropout, for which
# each framework draws masks of its own
FEW = {"batch_size": 16, "n_train": 16 * 5, "epochs": 2, "warmup": 5}
FEW |= {"learning_rate": 1e-3, "m": 16, "f": 32, "n_heads": 2, "n_blocks": 1}
SHORT = replace(Reverse(), **FEW)
SETS = replace(Digits(), **FEW | {"n_train": 16 * 13, "epochs": 1}, dropout=0.0)
SETS = replace(SETS, input_dropout=0.0)
TEXT = replace(Text(), **FEW, n_tokens=110)
DATES = replace(Dates(), **FEW)
DRAWN = Pictures(**FEW)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "training", "there", "settings"),
    [
        (jax_side, train_jax, "torch", SHORT),
        (torch_side, train_torch, "jax", SETS),
        (jax_side, train_jax, "torch", TEXT),
        (torch_side, train_torch, "jax", DATES),
        (torch_side, train_torch, "jax", DRAWN),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Settings) else "",
)
def test_the_other_framework_trains_from_the_same_weights_and_batches(
    side, training, there, settings, tmp_path, monkeypatch
):
    """Its losses are those of the framework that asks."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compile quickly
    task = tasks.of(settings)
    model = side.build(task.model, **settings.model)
    save_weights(model, tmp_path / "initial.safetensors")
    loss_fn, given = getattr(training, task.loss), (task.data["train"], settings)
    initial = tmp_path / "initial.safetensors"
    theirs = twin.losses(there, type(model), loss_fn, *given, initial, task.batches)
    ours = training.fit(model, loss_fn, *given, batches=task.batches, bar=False)["loss"]
    assert theirs.shape == ours.shape == (settings.updates,)
    np.testing.assert_allclose(theirs, ours, rtol=1e-4)


@pytest.mark.slow
def test_a_failure_of_the_other_process_raises_an_error(tmp_path):
    """With the words of the other process."""
    with pytest.raises(
        RuntimeError, match=r"(?s)process 0 ended with status 1.*no weights"
    ):
        data = tasks.of(SHORT).data["train"]
        kinds = jax_side.models.Predictor, train_jax.cross_entropy
        twin.losses("torch", *kinds, data, SHORT, tmp_path / "missing.safetensors")
