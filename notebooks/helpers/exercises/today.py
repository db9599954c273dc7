"""Exercises of the chapter *The Transformer of today*."""

from helpers.exercises import ROTATION, SCORES, Exercise, log_softmax, np


@Exercise("today.rotary_offset", lambda _, normal: [(f"rows from positions {start}",
    normal((2, 3, s, d)), np.array(start)[:, None] + np.arange(s), base)
    for start, s, d, base in (((0, 0), 5, 6, 100.0), ((7, 7), 1, 8, 50.0),
    ((2, 9), 5, 6, 20.0))], ROTATION + """
positions[:, None, :, None] -> np.arange(x.shape[2])[:, None] | `positions` is ignored
positions[:, -> positions[:1, | each row of the batch has positions of its own
(-np -> (np | the exponent is negative: later pairs turn more slowly
base ** -> 10000.0 ** | `base` is not used
:half], x[..., half:] -> ::2], x[..., 1::2] | you cut neighbours, but put back halves
:half], x[..., half:] -> ::2], x[..., 1::2] & concatenate -> stack & cos], -1) -> \
cos], -1).reshape(x.shape) | feature i turns with i + d/2, not with its neighbour""")  # fmt: skip
def rotary_offset(x, positions, base):
    half = x.shape[-1] // 2
    angle = positions[:, None, :, None] * base ** (-np.arange(half) / half)
    a, b, cos, sin = x[..., :half], x[..., half:], np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


@Exercise("today.grouped", lambda _, normal: [(f"{h} query heads, {g} of keys", far *
    normal((2, h, 3, 5)), normal((2, g, 4, 5)), normal((2, g, 4, 5))) for h, g, far in (
    (6, 3, 1), (3, 1, 1), (6, 3, 99))], SCORES + """
g, -1, -> -1, g, & :, None] -> None] | repeat each key head for neighbours: do not tile
k[:, :, -> k[:, :1, & v[:, :, -> v[:, :1, | each group has its own keys and values
k[:, -> (0 * k + k.mean(1)[:, None])[:, | a group has its own keys: no mean over groups
scores) -> 0 * scores + scores.mean(2)[:, :, None]) | do not average a group's queries
scores) -> scores, 2) | your softmax runs over the heads of a group, not over the keys
values). -> values).swapaxes(1, 2). | keep the order of the heads
q.reshape -> q.swapaxes(1, 2).reshape | q is b h s d: split the heads, not positions
q.shape[-1] ** 0.5 -> (h * d) ** 0.5 | a head has d features: its scale is not that of m""")  # fmt: skip
def grouped(q, k, v):
    (b, h, s, d), g, keys, values = q.shape, k.shape[1], k[:, :, None], v[:, :, None]
    q = q.reshape((b, g, -1, s, d))
    scores = q @ np.swapaxes(keys, -1, -2) / q.shape[-1] ** 0.5
    return (np.exp(log_softmax(scores)) @ values).reshape((b, h, s, d))
