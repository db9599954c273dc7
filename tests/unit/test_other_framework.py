"""The same training in the other framework's own process (``helpers.twin``)."""

from dataclasses import replace

import numpy as np
import pytest

from helpers import sets, train_jax, train_torch, twin
from helpers.sequences import reverse_data
from helpers.settings import Digits, Reverse
from helpers.weights import save_weights
from sides import jax_side, torch_side

SHORT = replace(Reverse(), n_train=20 * 128, epochs=1, warmup=5)
SIDES = {"jax": (jax_side, train_jax), "torch": (torch_side, train_torch)}


@pytest.mark.slow
@pytest.mark.parametrize("here", SIDES)
def test_the_other_framework_trains_from_the_same_weights_and_batches(here, tmp_path):
    """Its losses are those of the framework that asks."""
    there = {"jax": "torch", "torch": "jax"}[here]
    side, training = SIDES[here]
    model = side.build("Predictor", **SHORT.model)
    save_weights(model, tmp_path / "initial.safetensors")
    theirs = twin.losses(there, SHORT, tmp_path / "initial.safetensors")
    data = reverse_data(SHORT)["train"]
    ours = training.fit(model, training.cross_entropy, data, SHORT, bar=False)["loss"]
    assert theirs.shape == ours.shape
    np.testing.assert_allclose(theirs, ours, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("here", SIDES)
def test_so_it_does_with_sets(here, tmp_path):
    """Dropout is off: each framework would draw it in its own way."""
    there = {"jax": "torch", "torch": "jax"}[here]
    side, training = SIDES[here]
    sizes = {"n_train": 10 * 64, "epochs": 2, "warmup": 5, "m": 16, "f": 32}
    few = replace(Digits(), dropout=0.0, input_dropout=0.0, **sizes)
    model = side.build("Predictor", **few.model)
    save_weights(model, tmp_path / "initial.safetensors")
    theirs = twin.losses(there, few, tmp_path / "initial.safetensors")
    part = sets.load(few)[0]["train"]
    options = {"batches": sets.drawn(part.labels, few), "bar": False}
    data = (part.features,)
    ours = training.fit(model, training.odd_one_out, data, few, **options)["loss"]
    assert theirs.shape == ours.shape == (20,)
    np.testing.assert_allclose(theirs[:10], ours[:10], rtol=1e-4)
    np.testing.assert_allclose(theirs, ours, rtol=1e-3)  # training magnifies rounding


@pytest.mark.slow
def test_a_failure_over_there_is_an_error_here(tmp_path):
    """With the words of the other process."""
    with pytest.raises(RuntimeError, match=r"(?s)the run in torch failed.*no weights"):
        twin.losses("torch", SHORT, tmp_path / "missing.safetensors")
