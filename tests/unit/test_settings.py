"""Invalid settings raise an error when they are made, with the numbers."""

import re
from dataclasses import FrozenInstanceError, fields, replace
from math import inf, nan

import numpy as np
import pytest

from helpers.engine.set_settings import Digits
from helpers.engine.settings import Reverse, Sequences, Settings, Text
from helpers.engine.weights import count_parameters, to_arrays
from sides import on_both_sides
from tasks import Modern

GOOD = {"n_train": 50, "batch_size": 8, "epochs": 3, "learning_rate": 0.01, "warmup": 4}
KINDS = {  # a field of each kind, what is expected of it, and invalid values
    "batch_size": ("a whole number >= 1", (0, -2, 1.5, "8", None, True)),
    "seed": ("a whole number >= 0", (-1, 1.5, None)),
    "learning_rate": (
        "a number above 0 and finite", (0, -1e-3, nan, inf, 1e300, "1e-3", True)
    ),
    "max_grad_norm": ("a number above 0", (0.0, nan, -inf, None)),
    "schedule": ("a text", (None,)),
    "dropout": ("a number in [0, 1)", (1.0, -0.1, nan, "0.1")),
    "norm_first": ("True or False", ("False", 1)),
}  # fmt: skip
BAD = [
    ({name: value}, f"expected {name} to be {what}, got {value!r}")
    for name, (what, values) in KINDS.items()
    for value in values
]
WARMUP = "expected a warmup below {1} updates, got {0}"
BAD += [
    ({"batch_size": 51}, "expected batch_size to be at most n_train = 50, got 51"),
    (
        {"schedule": "constant"},
        "unknown schedule 'constant': expected one of 'warmup_constant', "
        "'warmup_cosine', 'warmup_times_cosine', 'inverse_square_root'",
    ),
    (
        {"precision": "float16"},
        "unknown precision 'float16': expected one of 'float32', 'bfloat16'",
    ),
    ({"warmup": 18}, WARMUP.format(18, 18)),
    ({"batch_size": 50, "epochs": 1}, WARMUP.format(4, 1)),
    (
        {"positions": "relative"},
        "unknown kind of positions 'relative': expected one of 'sinusoidal', "
        "'learned', 'rotary', 'none'",
    ),
    (
        {"length": 513},
        "expected length to be at most 512, the length of the table of positions, got "
        "513",
    ),
    ({"n_heads": 5}, "m = 32 does not split into 5 heads (32 % 5 = 2)"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=str)
def test_invalid_settings_raise_an_error_with_the_numbers(change, message):
    """When they are made, and when they are changed."""
    for make in (
        lambda: Sequences(**{**GOOD, **change}),
        lambda: replace(Sequences(**GOOD), **change),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            make()


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [("positions", "none", "['rotary', 'learned']"), ("n_kv_heads", 3, "[1, 2, 4]"),
     ("dropout", 0.1, "[0]"), ("norm_first", False, "[True]")],
)  # fmt: skip
def test_the_block_of_today_refuses_what_it_does_not_have(name, value, known):
    what = f"expected {name} to be one of {known} in the block of today, got {value!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(what)}$"):
        replace(Modern(), **{name: value})


@on_both_sides
def test_both_blocks_have_about_as_many_parameters(side):
    """With another f, but not with other positions alone."""
    old, new = side.build("LanguageModel", **Text().model), Modern().model
    ratio = count_parameters(side.build("ModernLM", **new)) / count_parameters(old)
    assert 0.95 < ratio < 1
    new = replace(Modern(), positions="learned", qk_norm=True, tied=False, n_kv_heads=1)
    found = to_arrays(side.build("ModernLM", **new.model))
    assert {"positions.weight", "output.weight"} < found.keys()
    assert found["blocks.1.attention.k.weight"].shape == (96, 24)
    assert found["blocks.1.attention.q_norm.weight"].shape == (24,)
    assert found["blocks.1.ffn.gate.weight"].shape == (96, 288)


@pytest.mark.parametrize("field", fields(Digits()), ids=lambda field: field.name)
def test_every_field_is_checked(field):
    """Of the largest dataclass: None is no valid value of any field."""
    with pytest.raises(ValueError, match=f"^expected {field.name} to be .*, got None$"):
        replace(Digits(), **{field.name: None})


def test_boundary_values_are_accepted():
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
def test_every_choice_reaches_the_model(side):
    settings = replace(
        Reverse(), n_blocks=2, dropout=0.3, norm_first=True, positions="learned"
    )
    model = side.build("Predictor", **settings.model)
    params = to_arrays(model)
    assert "positions.table" in params
    assert "encoder.norm.weight" in params
    assert "encoder.blocks.1.norm1.weight" in params
    assert set(side.rates(model).values()) == {0, 0.3}
