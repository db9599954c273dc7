"""The same training in the other framework's own process (``helpers.engine.twin``)."""

from dataclasses import replace

import numpy as np
import pytest

import tasks
from helpers.engine import jobs, twin
from helpers.engine.set_settings import Digits
from helpers.engine.settings import Dates, Pictures, Reverse, Text
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


CASES = {  # who asks, and who trains in the other process
    "Reverse": (jax_side, train_jax, "torch", SHORT),
    "Digits": (torch_side, train_torch, "jax", SETS),
    "Text": (torch_side, train_torch, "jax", TEXT),
    "Dates": (torch_side, train_torch, "jax", DATES),
    "Pictures": (torch_side, train_torch, "jax", DRAWN),
}


def ask(name, folder):
    """What ``losses`` is given in a case, and the model that it is about."""
    side, training, there, settings = CASES[name]
    task = tasks.of(settings)
    model, initial = side.build(task.model, **settings.model), folder / name
    save_weights(model, initial)
    loss_fn, data = getattr(training, task.loss), task.data["train"]
    given = there, type(model), loss_fn, data, settings, initial, task.batches
    return model, given


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Losses of each case; one process trains all for which JAX is the other one."""
    folder, calls = tmp_path_factory.mktemp("initial"), {}

    def call_later(function, n, *arguments, limit):
        assert (function, n) == (twin.train, 1)
        calls[name] = arguments
        return [None]

    def train_all(rank, calls):  # goes to the process by value, as it stands here
        return [twin.train(rank, *arguments) for arguments in calls]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compile quickly
        found = {"Reverse": twin.losses(*ask("Reverse", folder)[1])}
        patch.setattr(twin, "together", call_later)
        for name in [name for name in CASES if name not in found]:
            twin.losses(*ask(name, folder)[1])
        (each,) = jobs.together(train_all, 1, [*calls.values()])
    return found | dict(zip(calls, each, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_other_framework_trains_from_the_same_weights_and_batches(
    name, theirs, tmp_path
):
    """Its losses are those of the framework that asks."""
    model, (_, _, loss_fn, data, settings, _, batches) = ask(name, tmp_path)
    training = CASES[name][1]
    ours = training.fit(model, loss_fn, data, settings, batches=batches, bar=False)
    assert theirs[name].shape == ours["loss"].shape == (settings.updates,)
    np.testing.assert_allclose(theirs[name], ours["loss"], rtol=1e-4)


@pytest.mark.slow
def test_a_failure_of_the_other_process_raises_an_error(tmp_path):
    """With the words of the other process."""
    with pytest.raises(
        RuntimeError, match=r"(?s)process 0 ended with status 1.*no weights"
    ):
        data = tasks.of(SHORT).data["train"]
        kinds = jax_side.models.Predictor, train_jax.cross_entropy
        twin.losses("torch", *kinds, data, SHORT, tmp_path / "missing.safetensors")
