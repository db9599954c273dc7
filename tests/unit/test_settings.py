"""Settings are refused when they are made, with the numbers that do not fit."""

import re
from dataclasses import FrozenInstanceError, replace
from math import inf, nan

import numpy as np
import pytest

from helpers.settings import Reverse, Sequences, Settings, Warmup
from helpers.weights import to_arrays
from sides import on_both_sides

GOOD = {"n_train": 50, "batch_size": 8, "epochs": 3, "learning_rate": 0.01, "warmup": 4}
SIZE = "expected {} to be a whole number >= 1, got {!r}"
TYPE = "expected {} to be {}, got {!r}"
ABOVE = "expected {} to be above 0 and finite, got {!r}"
BAD = [
    ({name: value}, SIZE.format(name, value))
    for name in ("n_train", "batch_size", "epochs", "warmup")
    for value in (0, -2)
]
BAD += [
    ({name: value}, TYPE.format(name, "a whole number", value))
    for name in ("n_train", "batch_size", "epochs", "warmup", "seed")
    for value in (1.5, "8", None, True)
]
BAD += [
    ({name: value}, TYPE.format(name, "a number", value))
    for name in ("learning_rate", "max_grad_norm")
    for value in (None, "1e-3", True)
]
BAD += [
    ({"schedule": None}, TYPE.format("schedule", "a text", None)),
    ({"seed": -1}, "expected seed to be at least 0, got -1"),
]
BAD += [
    ({"learning_rate": rate}, ABOVE.format("learning_rate", rate))
    for rate in (0, -1e-3, nan, inf, 1e300)
]
BAD += [
    ({"max_grad_norm": clip}, ABOVE.format("max_grad_norm", clip))
    for clip in (0.0, -1.0, nan, -inf)
]
BAD += [
    ({"batch_size": 51}, "expected batch_size to be at most n_train = 50, got 51"),
    (
        {"schedule": "constant"},
        "unknown schedule 'constant': expected one of 'warmup_constant', "
        "'warmup_cosine', 'warmup_times_cosine', 'inverse_square_root'",
    ),
    (
        {"warmup": 18},
        "expected a warm-up shorter than the training, got warmup = 18 and 18 updates "
        "in all",
    ),
    (
        {"batch_size": 50, "epochs": 1},
        "expected a warm-up shorter than the training, got warmup = 4 and 1 updates "
        "in all",
    ),
]
BAD_SEQUENCES = [
    ({name: value}, SIZE.format(name, value))
    for name in (
        "n_symbols", "length", "n_validation", "n_test", "n_blocks", "m", "n_heads", "f"
    )
    for value in (0, -1)
] + [
    ({"f": 2.0}, TYPE.format("f", "a whole number", 2.0)),
    ({"dropout": "0.1"}, TYPE.format("dropout", "a number", "0.1")),
    ({"norm_first": "False"}, TYPE.format("norm_first", "True or False", "False")),
    (
        {"positions": "rotary"},
        "unknown kind of positions 'rotary': expected one of 'sinusoidal', 'learned', "
        "'none'",
    ),
    (
        {"length": 513},
        "the sequence has 513 positions, the table only 512: build the model with a "
        "larger max_length",
    ),
    ({"n_heads": 5}, "m = 32 does not split into 5 heads (32 % 5 = 2)"),
    ({"dropout": 1.0}, "expected a dropout rate in [0, 1), got 1.0"),
    ({"dropout": -0.1}, "expected a dropout rate in [0, 1), got -0.1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [(kind, *bad) for kind in (Settings, Sequences) for bad in BAD]
    + [(Sequences, *bad) for bad in BAD_SEQUENCES],
    ids=str,
)
def test_bad_settings_are_refused_with_the_numbers(kind, change, message):
    """When they are made, and when they are changed."""
    for make in (
        lambda: kind(**{**GOOD, **change}),
        lambda: replace(kind(**GOOD), **change),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            make()


def test_the_neighbours_of_bad_settings_are_taken():
    for change in (
        {"batch_size": 50},
        {"warmup": 17},
        {"max_grad_norm": inf},
        {"warmup": 1},
    ):
        Settings(**{**GOOD, "epochs": 18, **change})


def test_updates_are_whole_batches():
    """Of 50 examples in batches of 8, two are left over in each epoch."""
    settings = Settings(**GOOD)
    assert (settings.updates_per_epoch, settings.updates) == (6, 18)
    assert settings.learning_rates.shape == (18,)
    assert (
        settings.learning_rates[3] == np.float32(0.01) == settings.learning_rates.max()
    )


def test_settings_cannot_be_changed_in_place():
    """And every number has a name: places could be mixed up."""
    with pytest.raises(FrozenInstanceError):
        Settings(**GOOD).learning_rate = 1
    with pytest.raises(TypeError):
        Settings(50, 8, 3, 0.01, 4)


@on_both_sides
@pytest.mark.parametrize("kind", [Warmup, Reverse])
def test_the_tasks_build_their_models(side, kind):
    """Same names and shapes in both frameworks, from the same settings."""
    settings = kind()
    params = to_arrays(side.build("Predictor", **settings.model))
    assert params["embed.weight"].shape == (settings.n_symbols, settings.m)
    assert params["output.weight"].shape == (settings.m, settings.n_symbols)
    blocks = {name.split(".")[2] for name in params if ".blocks." in name}
    assert blocks == set(map(str, range(settings.n_blocks)))
    assert params["encoder.blocks.0.ffn.linear1.bias"].shape == (settings.f,)


@on_both_sides
def test_every_choice_reaches_the_model(side):
    settings = replace(
        Reverse(), n_blocks=2, dropout=0.3, norm_first=True, positions="learned"
    )
    model = side.build("Predictor", **settings.model)
    params = to_arrays(model)
    assert "positions.table" in params
    assert "encoder.norm.weight" in params
    assert "encoder.blocks.1.norm1.weight" in params
    drops = [part.rate if side.name == "jax" else part.p for part in dropouts(model)]
    assert 0.3 in drops
    assert set(drops) <= {0, 0.3}


def dropouts(model):
    """The dropout layers of a model of either framework."""
    if hasattr(model, "modules"):
        return [part for part in model.modules() if type(part).__name__ == "Dropout"]
    from flax import nnx

    return [part for _, part in nnx.iter_graph(model) if isinstance(part, nnx.Dropout)]
