"""Warm-up and decay: what their definitions promise, and what frameworks do with it."""

import re

import numpy as np
import optax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import schedules
from helpers.schedules import SCHEDULES, factors, warmup_times_cosine
from helpers.settings import Settings

MOST = 400
sizes = st.integers(2, MOST).flatmap(
    lambda total: st.tuples(st.integers(1, total - 1), st.just(total))
)
in_every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def test_there_are_four_schedules():
    """Each under the name of its function."""
    assert list(SCHEDULES) == [
        "warmup_constant", "warmup_cosine", "warmup_times_cosine", "inverse_square_root"
    ]  # fmt: skip
    assert all(getattr(schedules, name) is f for name, f in SCHEDULES.items())


@in_every_schedule
@given(sizes)
def test_factors_lie_above_zero_and_up_to_one(name, sizes):
    """From the first update, which would be lost at zero, to the last."""
    warmup, total = sizes
    found = factors(name, warmup=warmup, total=total)
    assert found.shape == (total,)
    assert (found > 0).all()
    assert (found <= 1).all()


@in_every_schedule
@given(sizes)
def test_the_peak_ends_the_rise(name, sizes):
    """Update ``warmup - 1`` has the whole rate; the product of both falls below it."""
    warmup, total = sizes
    found = factors(name, warmup=warmup, total=total)
    rise, rest = found[:warmup], found[warmup:]
    assert (np.diff(rest) <= 0).all()
    if name == "warmup_times_cosine":
        assert (found[1:] < 1).all()
        assert (found[0] == 1) == (warmup == 1)
    else:
        np.testing.assert_allclose(rise, np.arange(1, warmup + 1) / warmup, rtol=1e-15)
        assert rise[-1] == 1
    if name in ("warmup_cosine", "inverse_square_root"):
        assert (rest < 1).all()
    if name == "warmup_constant":
        assert (rest == 1).all()


def test_small_schedules_are_those_worked_out_by_hand():
    """Two updates of rise in six."""
    falls = [(1 + np.cos(np.pi * t / 5)) / 2 for t in range(1, 5)]
    lower, upper = (2 - 3**0.5) / 4, (2 + 3**0.5) / 4
    expected = {
        "warmup_constant": [0.5, 1, 1, 1, 1, 1],
        "warmup_cosine": [0.5, 1, *falls],
        "warmup_times_cosine": [0.5, upper, 0.75, 0.5, 0.25, lower],
        "inverse_square_root": [0.5, 1, *(np.sqrt(2 / t) for t in range(3, 7))],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(factors(name, warmup=2, total=6), values, rtol=1e-12)
    assert warmup_times_cosine(0, warmup=1, total=6) == 1


@settings(deadline=None)  # its first call compiles
@given(sizes)
def test_warmup_cosine_is_that_of_optax(sizes):
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
def test_torch_follows_the_same_function(name):
    """``LambdaLR`` with a schedule of ours sets the rates of the settings."""
    training = Settings(
        n_train=40, batch_size=4, epochs=3, learning_rate=0.02, warmup=7, schedule=name
    )
    schedule, sizes = SCHEDULES[name], {"warmup": 7, "total": 30}
    optimiser = torch.optim.SGD(
        [torch.nn.Parameter(torch.zeros(1))], lr=training.learning_rate
    )
    theirs = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: schedule(step, **sizes) if step < 30 else 0
    )
    found = []
    for _ in range(training.updates):
        found += theirs.get_last_lr()
        optimiser.step()
        theirs.step()
    np.testing.assert_allclose(training.learning_rates, found, rtol=1e-7)


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


@in_every_schedule
@pytest.mark.parametrize(("warmup", "total"), [(5, 5), (6, 5), (1, 1), (500, 30)])
def test_a_warmup_that_never_ends_is_refused(name, warmup, total):
    """With both numbers, by the schedule itself and for all of its steps."""
    message = (
        f"expected a warm-up shorter than the training, got warmup = {warmup} "
        f"and {total} updates in all"
    )
    for call in (
        lambda: SCHEDULES[name](0, warmup=warmup, total=total),
        lambda: factors(name, warmup=warmup, total=total),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            call()


@in_every_schedule
@pytest.mark.parametrize("warmup", [0, -1, 2.5, None, True])
def test_a_warmup_must_be_a_positive_whole_number(name, warmup):
    message = f"expected warmup to be a whole number >= 1, got {warmup!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        factors(name, warmup=warmup, total=9)


def test_an_unknown_schedule_is_refused():
    """With the names there are."""
    message = "unknown schedule 'linear': expected one of 'warmup_constant', "
    with pytest.raises(ValueError, match=f"^{message}.*'inverse_square_root'$"):
        factors("linear", warmup=1, total=2)
