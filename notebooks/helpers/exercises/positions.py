"""Exercises of the chapter *positions*."""

from helpers.exercises import Exercise, np


@Exercise("positions.sinusoidal", lambda _: [
    (f"length = {length}, m = {m}", {"length": length, "m": m})
    for length, m in ((7, 6), (1, 4), (40, 10))], """
i - i % 2 -> i | sine and cosine of a pair turn at one speed: both take the even i
np.arange(length) -> np.arange(1, length + 1) | the first position is 0, not 1
np.sin(angle), np.cos(angle) -> angle, angle | these are angles: take sine and cosine
(i - i % 2) -> (2 * (i % (m // 2))) & i % 2 == 0 -> i < m // 2 \
| sines and cosines take turns: here all sines come first
i % 2 == 0 -> i % 2 == 1 | sine and cosine are exchanged: feature 0 is a sine
np.arange(m) -> np.arange(1, m + 1) | features are counted from 0, not from 1
/ m) -> / 2 / m) | the exponent is i / m with i = 0, 2, 4, not 0, 1, 2
10000 ** -> 1000 ** | the base is 10,000, not 1,000""", smooth=False)  # fmt: skip
def sinusoidal(length, m):
    i = np.arange(m)
    angle = np.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle))


@Exercise("positions.rotary", lambda rng: [
    (f"offset = {offset}", {"x": rng.normal(size=shape), "offset": offset})
    for shape, offset in (((2, 3, 5, 6), 0), ((2, 4, 8), 3), ((1, 1, 4), 7))], """
offset + -> | the offset is ignored: a new token is rotated as position 0
even * cos - odd * sin -> even * cos + odd * sin | a sign is wrong: the lengths change
cos, sin = -> sin, cos = | sine and cosine are exchanged: position 0 does not turn
10000.0 ** -> 1.0 ** | all pairs turn at one speed: each has its own
(-i / d) -> (-i / 2 / d) | the exponent is -i / d with i = 0, 2, 4, not 0, 1, 2
0::2], x[..., 1::2] -> : d // 2], x[..., d // 2 :] & pairs, axis=-1 -> pairs, axis=-2 \
| a pair is two neighbours, not one feature of each half
pairs, axis=-1 -> pairs, axis=-2 | put each pair back side by side, in the old order
(offset -> -(offset | it turns backwards: a sign is wrong""")  # fmt: skip
def rotary(x, offset):
    d, i = x.shape[-1], np.arange(0, x.shape[-1], 2)
    angle = (offset + np.arange(x.shape[-2]))[:, None] * 10000.0 ** (-i / d)
    even, odd, cos, sin = x[..., 0::2], x[..., 1::2], np.cos(angle), np.sin(angle)
    pairs = even * cos - odd * sin, even * sin + odd * cos
    return np.stack(pairs, axis=-1).reshape(x.shape)
