"""Warm-up and decay: a factor of the peak rate, by the updates made so far, ``step``."""

from math import cos, pi, sqrt

import numpy as np

from helpers.engine.checks import check_sizes, choose, expect


def check_warmup(warmup, total):
    """Raise ValueError unless ``1 <= warmup < total``."""
    check_sizes(warmup=warmup)
    expect(warmup < total, f"a warmup below {total} updates", warmup)


def warmup_constant(step, *, warmup, total):
    """Linear rise, then level: ``min(1, (t + 1) / w)``."""
    check_warmup(warmup, total)
    return min(1.0, (step + 1) / warmup)


def warmup_cosine(step, *, warmup, total):
    """Linear rise, then a cosine fall over the rest of the training.

    A factor in (0, 1]: 1 at ``step = warmup - 1``, at no other if ``warmup > 1``.

    Source: rise from Vaswani et al. 2017, sec. 5.3; fall from Loshchilov & Hutter 2017,
    eq. 5, which ``optax.warmup_cosine_decay_schedule`` joins in the same way.
    """
    check_warmup(warmup, total)
    if step < warmup:
        return (step + 1) / warmup
    top = warmup - 1
    return 0.5 * (1 + cos(pi * (step - top) / (total - top)))


def warmup_times_cosine(step, *, warmup, total):
    """Rise and fall multiplied: ``min(1, (t + 1) / w) · ½ (1 + cos(π t / T))``.

    The cosine falls from the first update on, so the factor stays below 1.
    """
    check_warmup(warmup, total)
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + cos(pi * step / total))


def inverse_square_root(step, *, warmup, total):
    """Linear rise, then ``√(w / (t + 1))``: the schedule of 2017, with a peak of 1.

    Source: Vaswani et al. 2017, eq. 3, divided by its peak ``(m w)^-½``.
    """
    check_warmup(warmup, total)
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


ALL = warmup_constant, warmup_cosine, warmup_times_cosine, inverse_square_root
SCHEDULES = {schedule.__name__: schedule for schedule in ALL}


def factors(name, *, warmup, total):
    """A schedule at every step, by its name: float array ``total``."""
    schedule = choose(name, SCHEDULES, "schedule")
    return np.array([schedule(t, warmup=warmup, total=total) for t in range(total)])
