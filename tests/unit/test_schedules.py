"""Warm-up and decay: what their definitions promise, and what frameworks do with it."""

import re

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.settings import Settings
from helpers.schedules import SCHEDULES, factors, warmup_times_cosine

MOST = 400
sizes = st.integers(2, MOST).flatmap(
    lambda total: st.tuples(st.integers(1, total - 1), st.just(total))
)
in_every_schedule = pytest.mark.parametrize("name", SCHEDULES)


@in_every_schedule
@given(sizes)
def test_factors_are_above_0_and_at_most_1(name, sizes):
    """From the first update, which would be lost at zero, to the last."""
    warmup, total = sizes
    found = factors(name, warmup=warmup, total=total)
    assert found.shape == (total,)
    assert (found > 0).all()
    assert (found <= 1).all()


def test_schedules_equal_values_computed_by_hand():
    """Two updates of rise in six. There are four schedules, by the names of these."""
    falls = [(1 + np.cos(np.pi * t / 5)) / 2 for t in range(1, 5)]
    lower, upper = (2 - 3**0.5) / 4, (2 + 3**0.5) / 4
    expected = {
        "warmup_constant": [0.5, 1, 1, 1, 1, 1],
        "warmup_cosine": [0.5, 1, *falls],
        "warmup_times_cosine": [0.5, upper, 0.75, 0.5, 0.25, lower],
        "inverse_square_root": [0.5, 1, *(np.sqrt(2 / t) for t in range(3, 7))],
    }
    assert list(SCHEDULES) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(factors(name, warmup=2, total=6), values, rtol=1e-12)
    assert warmup_times_cosine(0, warmup=1, total=6) == 1


@settings(deadline=None)  # its first call compiles
@given(sizes)
def test_warmup_cosine_equals_that_of_optax(sizes):
    """``optax.warmup_cosine_decay_schedule`` at every update, in its float32."""
    warmup, total = sizes
    theirs = optax.warmup_cosine_decay_schedule(
        init_value=1 / warmup,
        peak_value=1,
        warmup_steps=warmup - 1,
        decay_steps=total,
    )
    ours = factors("warmup_cosine", warmup=warmup, total=total)
    rates = theirs(np.arange(MOST))[:total]  # one length, so that it compiles once
    np.testing.assert_allclose(ours, rates, atol=1e-6)


@in_every_schedule
@given(sizes, st.floats(1e-5, 1))
def test_rates_are_the_factors_times_the_peak(name, sizes, rate):
    """float32, one for each update, none of them zero."""
    warmup, total = sizes
    training = Settings(
        n_train=3,
        batch_size=3,
        epochs=total,
        learning_rate=rate,
        warmup=warmup,
        schedule=name,
    )
    assert training.learning_rates.dtype == np.float32
    expected = rate * factors(name, warmup=warmup, total=total)
    np.testing.assert_allclose(training.learning_rates, expected, rtol=1e-7)
    assert (training.learning_rates > 0).all()


LONG = "a warmup below {1} updates, got {0}"
WHOLE = "warmup to be a whole number >= 1, got {}"


@in_every_schedule
@pytest.mark.parametrize(
    ("warmup", "total", "message"),
    [(5, 5, LONG), (500, 30, LONG), (0, 9, WHOLE), (2.5, 9, WHOLE), (True, 9, WHOLE)],
)
def test_an_invalid_warmup_raises_an_error_with_the_numbers(
    name, warmup, total, message
):
    message = f"^{re.escape('expected ' + message.format(warmup, total))}$"
    for step in (SCHEDULES[name], lambda _, **sizes: factors(name, **sizes)):
        with pytest.raises(ValueError, match=message):
            step(0, warmup=warmup, total=total)
