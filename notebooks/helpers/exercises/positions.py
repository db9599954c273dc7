"""Exercises of the chapter *positions*."""

from helpers.exercises import ROTATION, Exercise, np


@Exercise("positions.sinusoidal", lambda *_: [(f"length = {length}, m = {m}", length, m)
    for length, m in ((7, 6), (1, 4), (40, 10))], """
i - i % 2 -> i | sine and cosine of a pair turn at one speed: both take the even i
np.arange(length) -> np.arange(1, length + 1) | the first position is 0, not 1
np.sin(angle), np.cos(angle) -> angle, angle | these are angles: take sine and cosine
i - i % 2 -> 2 * i % m & i % 2 == 0 -> 2 * i < m | let sines and cosines take turns
i % 2 == 0 -> i % 2 == 1 | sine and cosine are exchanged: feature 0 is a sine
np.arange(m) -> np.arange(1, m + 1) | features are counted from 0, not from 1
/ m) -> / 2 / m) | the exponent is i / m with i = 0, 2, 4, not 0, 1, 2
10000 ** -> 1000 ** | the base is 10,000, not 1,000""", smooth=False)  # fmt: skip
def sinusoidal(length, m):
    i = np.arange(m)
    angle = np.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle))


@Exercise("positions.rotary", lambda _, normal: [(f"offset = {n}", normal(size), n)
    for n, size in ((0, (2, 3, 5, 6)), (3, (2, 4, 8)), (7, (1, 1, 4)))], ROTATION + """
offset + -> | the offset is ignored: a new token is rotated as position 0
::2], x[..., 1::2] -> :half], x[..., half:] & pairs, axis=-1 -> pairs, axis=-2 \
| a pair is two neighbours, not one feature of each half
pairs, axis=-1 -> pairs, axis=-2 | put each pair back side by side, in the old order""")  # fmt: skip
def rotary(x, offset):
    half, s = x.shape[-1] // 2, x.shape[-2]
    angle = (offset + np.arange(s))[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b, cos, sin = x[..., ::2], x[..., 1::2], np.cos(angle), np.sin(angle)
    pairs = a * cos - b * sin, a * sin + b * cos
    return np.stack(pairs, axis=-1).reshape(x.shape)
