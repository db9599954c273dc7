"""Drawings of the chapter *Positions and the whole encoder*."""

import numpy as np

from canvas import KINDS, WIDTH, Box, drawing, tint
from helpers import reference
from helpers.show.plots import BLUE, INK, ORANGE, PURPLE


@drawing(464)
def predictor(canvas):
    """From the features of each element to one output each."""
    x, w = 134, 124
    canvas.text(x, 12, "x", "name")
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
    box = canvas.column(x, w, (x, 22), 32, steps)["encoder"]
    canvas.mask_and("maps", "l b h q k", box)


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
    canvas.text(104, 250, "grey: hidden, weight 0", size=8.5, ha="left")
    canvas.text(104, 264, "1: shared by all heads", size=8.5, ha="left")


# Of the page's untrained model in each framework, by stages: a row for each token.
STEP = {
    "torch": [[1.389, 1.586, 0.946, -0.844], [0.599, -1.555, -0.341, 1.853]],
    "jax": [[-0.577, 0.120, 0.872, 0.253], [-0.436, 0.294, 0.362, -0.513]],
}
ENCODED = {
    "torch": [[0.483, 1.407, -0.976, -0.914], [0.529, -0.601, -1.260, 1.331],
        [1.687, -0.216, -0.844, -0.627]],
    "jax": [[-1.636, 0.960, 0.633, 0.044], [-1.020, 1.505, 0.294, -0.779],
        [-0.373, -1.412, 1.263, 0.521]],
}  # fmt: skip
SCORES = {
    "torch": [[0.795, 0.723], [0.681, 0.739], [0.818, 0.735]],
    "jax": [[-0.485, -0.088], [-0.385, -0.360], [-0.324, 0.463]],
}


@drawing(455, "walk-through-jax", side="jax")
@drawing(455, "walk-through-torch", side="torch")
def walk_through(canvas, side):
    """Three words on their way through a predictor, with the numbers of every stage."""
    tokens, ids = ["step", "by", "step"], [3, 1, 3]
    embedded = np.array(STEP[side])[[0, 1, 0]]  # s m
    placed = embedded + position_codes(3, 4)
    encoded, scores = np.array(ENCODED[side]), np.array(SCORES[side])  # s m, s c
    row, gap, s = 15, 50, len(tokens)
    stages = [
        ("embed", "a row of a table", "dense", embedded, "b s m"),
        ("positions", "adds a code", "positions", placed, "b s m"),
        ("encoder", "2 blocks", "attention", encoded, "b s m"),
        ("output", "c scores each", "output", scores, "b s c"),
    ]
    x, y = WIDTH / 2 + 10, 24
    canvas.text(x - 22, 11, "token", size=8.5)
    canvas.text(x + 28, 11, "id", size=8.5)
    for i, (token, number) in enumerate(zip(tokens, ids, strict=True)):
        middle = y + (i + 0.5) * row
        canvas.text(x - 22, middle, token)
        canvas.text(x + 28, middle, str(number), "name", size=9)
    canvas.text(WIDTH - 26, y + s * row / 2, "b s", "shape")
    for name, note, kind, values, shape in stages:
        y += s * row
        canvas.line((x, y + 2), (x, y + 12))
        canvas.frame(Box(x - 88, y + 12, 176, 24), KINDS[kind])
        canvas.text(x - 45, y + 24, name, "name")
        canvas.text(x + 40, y + 24, note, size=8.5)
        canvas.line((x, y + 36), (x, y + gap - 2))
        y += gap
        w = 33 * values.shape[1]
        numbers(canvas, x - w / 2, y, values)
        for i, token in enumerate(tokens):
            canvas.text(x - 86, y + (i + 0.5) * row, token, size=8.5)
        canvas.text(WIDTH - 26, y + s * row / 2, shape, "shape")


def position_codes(s, m):
    """The table of sines and cosines: ``s m``."""
    angles = np.arange(s)[:, None] / 10000 ** (np.arange(0, m, 2) / m)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(s, m)


@drawing(226)
def clocks(canvas):
    """Three pairs of features of six position codes as clocks, a row per pair."""
    table, m = position_codes(6, 48), 48
    turns = {i: 2 * np.pi * 10000 ** (i / m) for i in (0, 6, 16)}
    pairs = {i: f"one turn in {turn:.0f} positions" for i, turn in turns.items()}
    row, radius = 62, 13
    left = 20 + radius
    step = (WIDTH - 2 * left + 14) / (len(table) - 1)
    for j, (i, note) in enumerate(pairs.items()):
        y = 66 + row * j
        canvas.text(14, y - 26, f"features {i} and {i + 1}: {note}", ha="left")
        for position, code in enumerate(table):
            x = left - 7 + step * position
            style = {"ms": 2 * radius, "mfc": tint(PURPLE, 0.12), "mec": PURPLE}
            canvas.ax.plot(x, y, "o", mew=1.1, zorder=1, **style)
            end = x + 0.8 * radius * code[i], y - 0.8 * radius * code[i + 1]
            canvas.line((x, y), end, colour=INK)
    for position in range(len(table)):
        canvas.text(left - 7 + step * position, 26, str(position), size=8.5)
    canvas.text(WIDTH / 2, 11, "positions", "name")


def numbers(canvas, x, y, values, w=33, h=15):
    """A matrix with its numbers, one decimal each; blue: positive, orange: negative."""
    shares = 0.5 * np.abs(values) / (np.abs(values).max() or 1)
    signs = np.where(values > 0, BLUE, ORANGE)
    pairs = [zip(*row, strict=True) for row in zip(signs, shares, strict=True)]
    canvas.cells(x, y, [[tint(*pair) for pair in row] for row in pairs], w, h=h)
    for (i, j), value in np.ndenumerate(values):
        text = f"{value + 0.0:.1f}".replace("-", "−")
        canvas.text(x + (j + 0.5) * w, y + (i + 0.5) * h, text, size=8.5)
