"""Warm-up and decay as functions of the step, framework-free.

Each returns a factor without unit; the peak rate of the settings is multiplied by it.
Steps are optimiser updates made so far: 0 for the first.
"""

from math import cos, pi, sqrt

import numpy as np

from helpers.engine.checks import check_sizes, choose


def check_warmup(warmup, total):
    """Raise an error unless ``1 <= warmup < total``.

    Raises
    ------
    ValueError
        With both numbers.
    """
    check_sizes(warmup=warmup)
    if not warmup < total:
        raise ValueError(
            f"expected a warm-up shorter than the training, got warmup = {warmup} "
            f"and {total} updates in all"
        )


def warmup_constant(step, *, warmup, total):
    """Linear rise, then level: ``min(1, (t + 1) / w)``."""
    check_warmup(warmup, total)
    return min(1.0, (step + 1) / warmup)


def warmup_cosine(step, *, warmup, total):
    """Linear rise, then a cosine fall over the rest of the training.

    Parameters
    ----------
    step : int
        Updates made so far, ``0 <= step < total``.
    warmup, total : int
        In updates; ``1 <= warmup < total``.

    Returns
    -------
    float
        Factor in (0, 1]: 1 at ``step = warmup - 1``, and at no other step if
        ``warmup > 1``.

    Raises
    ------
    ValueError
        If ``warmup`` does not lie between 1 and ``total``.

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


SCHEDULES = {
    schedule.__name__: schedule
    for schedule in (
        warmup_constant,
        warmup_cosine,
        warmup_times_cosine,
        inverse_square_root,
    )
}


def factors(name, *, warmup, total):
    """A schedule at every step: float array ``total``.

    Raises
    ------
    ValueError
        If there is no schedule of that name, or ``warmup`` does not fit ``total``.
    """
    schedule = choose(name, SCHEDULES, "schedule")
    return np.array([schedule(t, warmup=warmup, total=total) for t in range(total)])


def learning_rates(settings):
    """Learning rate of every update of a training: float32 array ``updates``."""
    name, sizes = settings.schedule, (settings.warmup, settings.updates)
    shape = factors(name, warmup=sizes[0], total=sizes[1])
    return (settings.learning_rate * shape).astype(np.float32)
