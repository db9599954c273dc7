"""The same training in the other framework's own process (``helpers.engine.twin``)."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.engine import tasks, twin
from helpers.engine.settings import Dates, Digits, Pictures, Reverse, Settings, Text
from helpers.engine.weights import save_weights
from helpers.jax import training as train_jax
from helpers.torch import training as train_torch
from sides import jax_side, torch_side

SHORT = replace(Reverse(), n_train=20 * 128, epochs=1, warmup=5)
# Without dropout, for which each framework draws masks of its own
SETS = replace(
    Digits(), dropout=0.0, input_dropout=0.0, n_train=10 * 64, epochs=2, warmup=5, m=16,
    f=32,
)  # fmt: skip


TEXT = replace(
    Text(), n_train=16 * 10, epochs=2, warmup=5, n_blocks=1, m=16, n_heads=2, f=32
)
DATES = replace(
    Dates(), n_train=16 * 10, batch_size=16, epochs=2, warmup=5, n_blocks=1, m=16, f=32
)
DRAWN = Pictures(
    n_train=16 * 10, batch_size=16, epochs=2, warmup=5, n_blocks=1, m=16, f=32
)


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
    side, training, there, settings, tmp_path
):
    """Its losses are those of the framework that asks."""
    task = tasks.of(settings)
    model = side.build(task.model, **settings.model)
    save_weights(model, tmp_path / "initial.safetensors")
    theirs = twin.losses(there, settings, tmp_path / "initial.safetensors")
    options = task.options(training.__name__.split(".")[1])
    ours = training.fit(
        model, getattr(training, task.loss), task.data["train"], settings, bar=False,
        **options,
    )["loss"]  # fmt: skip
    assert theirs.shape == ours.shape == (20,)
    np.testing.assert_allclose(theirs[:10], ours[:10], rtol=1e-4)
    np.testing.assert_allclose(theirs, ours, rtol=1e-3)  # training magnifies rounding


@pytest.mark.slow
def test_a_failure_of_the_other_process_raises_an_error(tmp_path):
    """With the words of the other process."""
    with pytest.raises(
        RuntimeError, match=r"(?s)process 0 ended with status 1.*no weights"
    ):
        twin.losses("torch", SHORT, tmp_path / "missing.safetensors")
