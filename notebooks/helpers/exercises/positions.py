"""Exercises of the chapter *positions*."""

import numpy as np

from helpers.exercises import exercise


def for_codes(rng):
    for length, m in ((7, 6), (1, 4), (40, 10)):
        yield f"length = {length}, m = {m}", {"length": length, "m": m}


@exercise(
    "positions.sinusoidal",
    for_codes,
    """
i - i % 2 -> i | sine and cosine of a pair turn at different speeds: both take the even i
np.arange(length) -> np.arange(1, length + 1) | the first position is 0, not 1
10000 ** -> 1000 ** | the base is 1,000, not 10,000
i % 2 == 0 -> i < m / 2 | all sines come before all cosines: they take turns
i % 2 == 0 -> i % 2 == 1 | sine and cosine are exchanged: feature 0 is a sine
np.arange(m) -> np.arange(1, m + 1) | features are counted from 0, not from 1
/ m) -> / (m - 1)) | the exponent is divided by m - 1, not by m
(i - i % 2) / m -> (i - i % 2) / 2 / m | the exponent is i / m with i = 0, 2, 4, not 0, 1, 2
np.sin(angle), np.cos(angle) -> angle, angle | these are the angles: sine, cosine are missing
""",
    smooth=False,
)
def sinusoidal(length, m):
    i = np.arange(m)
    angle = np.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle))


def for_rotary(rng):
    for shape, offset in (((2, 3, 5, 6), 0), ((2, 4, 8), 3), ((1, 1, 4), 7)):
        yield f"offset = {offset}", {"x": rng.normal(size=shape), "offset": offset}


@exercise(
    "positions.rotary",
    for_rotary,
    """
offset + -> | the offset is ignored: a new token is rotated as position 0
offset + -> offset + 1 + | positions start at 1: the first is the offset itself
* cos - odd -> * cos + odd & odd * cos -> odd * cos - 2 * even * sin | it turns backwards
even * cos - odd * sin -> even * cos + odd * sin | a sign is wrong: the lengths change
(-count / d) -> (count / d) | later pairs turn faster: the exponent is negative
(-count / d) -> (-count / 2 / d) | the exponent is -i / d with i = 0, 2, 4, not 0, 1, 2
x[..., 0::2], x[..., 1::2] -> x[..., : d // 2], x[..., d // 2 :] | a pair is two neighbours
np.stack(pairs, axis=-1) -> np.stack(pairs, axis=-2) | the pairs are not put back in order
np.arange(x.shape[-2]) -> np.zeros(x.shape[-2]) | all positions are rotated like the first
""",
)
def rotary(x, offset):
    d = x.shape[-1]
    count = np.arange(0, d, 2)
    angle = (offset + np.arange(x.shape[-2]))[:, None] * 10000.0 ** (-count / d)
    even, odd, cos, sin = x[..., 0::2], x[..., 1::2], np.cos(angle), np.sin(angle)
    pairs = even * cos - odd * sin, even * sin + odd * cos
    return np.stack(pairs, axis=-1).reshape(x.shape)
