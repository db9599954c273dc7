"""The same training in the other framework's own process (``helpers.twin``)."""

from dataclasses import replace

import numpy as np
import pytest

from helpers import sets, train_jax, train_torch, twin
from helpers.sequences import reverse_data
from helpers.settings import Dates, Digits, Reverse, Text
from helpers.weights import save_weights
from sides import jax_side, torch_side

SHORT = replace(Reverse(), n_train=20 * 128, epochs=1, warmup=5)
# Without dropout, for which each framework draws masks of its own
SETS = replace(
    Digits(), dropout=0.0, input_dropout=0.0, n_train=10 * 64, epochs=2, warmup=5, m=16,
    f=32,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "training", "there", "settings"),
    [(jax_side, train_jax, "torch", SHORT), (torch_side, train_torch, "jax", SETS)],
    ids=["sequences in PyTorch", "sets in JAX"],
)
def test_the_other_framework_trains_from_the_same_weights_and_batches(
    side, training, there, settings, tmp_path
):
    """Its losses are those of the framework that asks."""
    model = side.build("Predictor", **settings.model)
    save_weights(model, tmp_path / "initial.safetensors")
    theirs = twin.losses(there, settings, tmp_path / "initial.safetensors")
    options = {"bar": False}
    if settings is SETS:
        part = sets.load(settings)[0]["train"]
        loss_fn, data = training.odd_one_out, (part.features,)
        options["batches"] = sets.drawn(part.labels, settings)
    else:
        loss_fn, data = training.cross_entropy, reverse_data(settings)["train"]
    ours = training.fit(model, loss_fn, data, settings, **options)["loss"]
    assert theirs.shape == ours.shape == (20,)
    np.testing.assert_allclose(theirs[:10], ours[:10], rtol=1e-4)
    np.testing.assert_allclose(theirs, ours, rtol=1e-3)  # training magnifies rounding


TEXT = replace(
    Text(), n_train=16 * 10, epochs=2, warmup=5, n_blocks=1, m=16, n_heads=2, f=32
)
DATES = replace(
    Dates(), n_train=16 * 10, batch_size=16, epochs=2, warmup=5, n_blocks=1, m=16, f=32
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "training", "there", "settings"),
    [(jax_side, train_jax, "torch", TEXT), (torch_side, train_torch, "jax", DATES)],
    ids=["text in PyTorch", "dates in JAX"],
)
def test_the_other_framework_trains_on_the_same_tokens(
    side, training, there, settings, tmp_path
):
    """Windows of a text and dates, made there anew."""
    kind = "LanguageModel" if settings is TEXT else "Translator"
    model = side.build(kind, **settings.model)
    save_weights(model, tmp_path / "initial.safetensors")
    theirs = twin.losses(there, settings, tmp_path / "initial.safetensors")
    loss_fn, data, options = twin.training_of(settings, training)
    ours = training.fit(model, loss_fn, data, settings, bar=False, **options)["loss"]
    assert theirs.shape == ours.shape == (20,)
    np.testing.assert_allclose(theirs[:10], ours[:10], rtol=1e-4)
    np.testing.assert_allclose(theirs, ours, rtol=1e-3)


@pytest.mark.slow
def test_a_failure_of_the_other_process_raises_an_error(tmp_path):
    """With the words of the other process."""
    with pytest.raises(RuntimeError, match=r"(?s)the run in torch failed.*no weights"):
        twin.losses("torch", SHORT, tmp_path / "missing.safetensors")
