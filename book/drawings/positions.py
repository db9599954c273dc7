"""Drawings of the chapter *Positions and the whole encoder*."""

import numpy as np

from canvas import KINDS, Box, drawing, tint
from helpers import reference
from helpers.show.plots import BLUE, INK, ORANGE, PURPLE

NUMBERS = {  # of the page's untrained model: embed (2 rows), encoder (3), output (3)
    "torch": """1.389 1.586 0.946 -0.844  0.599 -1.555 -0.341 1.853
        0.202 1.454 -0.343 -1.314  0.877 -0.308 -1.504 0.935  1.137 0.424 0.028 -1.589
        0.601 0.123  0.531 0.629  0.587 0.337""",
    "jax": """-1.153 0.239 1.745 0.505  -0.871 0.589 0.724 -1.026
        -1.672 0.453 0.253 0.966  -0.124 1.574 -0.246 -1.203  -0.691 -1.259 0.843 1.108
        -0.274 -0.124  -0.357 0.006  -0.191 -0.553""",
}


def position_codes(s, m):
    """The table of sines and cosines: ``s m``."""
    angles = np.arange(s)[:, None] / 10000 ** (np.arange(0, m, 2) / m)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(s, m)


@drawing(226)
def clocks(canvas):
    """Three pairs of features of six position codes as clocks, a row per pair."""
    codes, m, radius = position_codes(6, 48), 48, 13
    canvas.text(124, 11, "positions", "name")
    for row, i in enumerate((0, 6, 16)):
        y, turn = 66 + 62 * row, 2 * np.pi * 10000 ** (i / m)
        words = f"features {i} and {i + 1}: one turn in {turn:.0f} positions"
        canvas.text(14, y - 26, words, ha="left")
        for position, code in enumerate(codes):
            x = 26 + 39.2 * position
            style = {"ms": 2 * radius, "mfc": tint(PURPLE, 0.12), "mec": PURPLE}
            canvas.ax.plot(x, y, "o", mew=1.1, zorder=1, **style)
            end = x + 0.8 * radius * code[i], y - 0.8 * radius * code[i + 1]
            canvas.line((x, y), end, colour=INK)
            if row == 0:
                canvas.text(x, 26, str(position), "small")


@drawing(318)
def mask(canvas):
    """Padding and causal mask together decide which scores reach the softmax."""
    left, right = 58, 178
    key, query = np.arange(5), np.arange(5)[:, None]
    padding, causal = np.broadcast_to(key < 4, (5, 5)), key <= query
    q, k = np.random.default_rng(3).normal(size=(2, 5, 3))
    scores = canvas.matrix(left - 27.5, 38, q @ k.T, PURPLE, 11)
    canvas.label(left, 11, "scores", "b h q k")

    both = canvas.plus(right, 121, "&")
    for x, word, shape, given, end in (
        (144, "padding", "b 1 1 k", padding, both.left),
        (212, "causal", "q k", causal, both.right),
    ):
        canvas.text(x, 11, word)
        canvas.text(x, 24, shape, "shape")
        grid = canvas.allowed(x - 27.5, 38, given, 11)
        canvas.line(grid.bottom, (x, 121), end)
    together = canvas.allowed(right - 27.5, 145.5, padding & causal, 11)
    canvas.line(both.bottom, together.top)
    canvas.label(right, 213, "mask", "b 1 q k")

    box = canvas.below(scores.bottom, left, 160, 104, 26, "masked_softmax")
    canvas.line(together.left, box.right)
    weights = reference.attention(q, k, k, padding & causal)[1]
    shown = np.where(padding & causal, weights, np.nan)
    result = canvas.matrix(left - 27.5, 216, shown, PURPLE, 11, low=0)
    canvas.line(box.bottom, result.top)
    canvas.label(left, 284, "weights", "b h q k")
    canvas.text(104, 250, "grey: hidden, weight 0", "small", ha="left")
    canvas.text(104, 264, "1: shared by all heads", "small", ha="left")


@drawing(464)
def predictor(canvas):
    """From the features of each element to one output each."""
    canvas.text(134, 12, "x", "name")
    steps = [
        ("b s i", "embed", "", "dense", 24),
        ("b s m", "positions", "adds a code to each", "positions", 38),
        ("b s m", "encoder", "n_blocks blocks", "attention", 62),
        ("b s m", "hidden", "", "dense", 24),
        ("", "hidden_norm", "", "norm", 24),
        ("", "relu", "", "plain", 24),
        ("", "output", "", "output", 24),
        ("b s c", "", "", "", 0),
    ]
    box = canvas.column(134, 124, (134, 22), 32, steps)["encoder"]
    canvas.mask_and("maps", "l b h q k", box)


@drawing(455, "walk-through-jax", side="jax")
@drawing(455, "walk-through-torch", side="torch")
def walk_through(canvas, side):
    """Three words on their way through a predictor, with the numbers of every stage."""
    tokens, ids, x = ["step", "by", "step"], [3, 1, 3], 134
    values = np.array(NUMBERS[side].split(), float)
    embedded = values[:8].reshape(2, 4)[[0, 1, 0]]  # s m
    stages = [
        ("embed", "a row of a table", "dense", embedded),
        ("positions", "adds a code", "positions", embedded + position_codes(3, 4)),
        ("encoder", "2 blocks", "attention", values[8:20].reshape(3, 4)),
        ("output", "c scores each", "output", values[20:].reshape(3, 2)),
    ]
    canvas.texts("small", (x - 22, 11, "token"), (x + 28, 11, "id"))
    for i, token in enumerate(tokens):
        canvas.text(x - 22, 31.5 + 15 * i, token)
        canvas.text(x + 28, 31.5 + 15 * i, str(ids[i]), "name", 9)
    canvas.text(222, 46.5, "b s", "shape")
    for stage, (name, note, kind, values) in enumerate(stages):
        y = 69 + 95 * stage
        canvas.line((x, y + 2), (x, y + 12))
        canvas.frame(Box(x - 88, y + 12, 176, 24), KINDS[kind])
        canvas.text(x - 45, y + 24, name, "name")
        canvas.text(x + 40, y + 24, note, "small")
        canvas.line((x, y + 36), (x, y + 48))
        left = x - 33 * len(values[0]) / 2
        for i, row in enumerate(values):  # blue is positive, orange negative
            for j, value in enumerate(row):
                share = 0.5 * np.abs(value) / np.abs(values).max()
                colour = tint(BLUE if value > 0 else ORANGE, share)
                at = left + 33 * j, y + 50 + 15 * i
                words = f"{value:.1f}".replace("-", "−")
                canvas.cells(*at, [[colour]], 33, h=15)
                canvas.text(at[0] + 16.5, at[1] + 7.5, words, "small")
            canvas.text(x - 86, y + 57.5 + 15 * i, tokens[i], "small")
        canvas.text(222, y + 72.5, "b s c" if name == "output" else "b s m", "shape")
