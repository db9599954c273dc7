"""Drawing of the chapter *Your own data*."""

import numpy as np

from canvas import Box, drawing
from helpers.show.plots import BLUE, GREEN, HIDDEN, ORANGE


@drawing(424)
def three_kinds_of_data(canvas):
    """A row, a signal, a text: tokens, vectors ``b s i``, blocks, mean, output."""
    rng = np.random.default_rng(3)

    def tokens(y, title, words, hidden=()):
        canvas.text(8, y, title, ha="left", weight="bold")
        for i, word in enumerate(words):
            box = Box(8 + 34 * i, y + 26, 30, 20)
            canvas.frame(box, HIDDEN if i in hidden else BLUE)
            canvas.text(*box.middle, word, "name", size=8.5)

    tokens(10, "a table: each number is a token", ("14.2", "1.7", "2.4", "…"))
    for i, name in enumerate(("alcohol", "acid", "ash", "…")):
        canvas.text(23 + 34 * i, 26, name, size=8)
    tokens(72, "a signal: each frame is a token", ("1", "2", "", "4", "5", ""), (2, 5))
    x = np.arange(0, 166, 3)
    for shift in (0, 4):
        y = 85 + shift - 3.5 * np.sin(x / (11 + shift)) + rng.normal(0, 0.3, len(x))
        canvas.line(*zip(8 + x, y, strict=True), colour=ORANGE, head=False)
    tokens(134, "a text: each character is a token", (*"if_x", "", ""), (4, 5))
    canvas.text(8, 150, "dashed: a gap, or padding", ha="left", size=8)

    # One sequence goes on, with a gap and padding.
    real = np.array([1, 1, 0, 1, 1, 0])
    shown = np.where(real[:, None], rng.random((6, 5)), np.nan)
    canvas.matrix(36, 216, shown, BLUE, 11, low=-0.2)
    canvas.line((63.5, 186), (63.5, 214))
    canvas.label(62, 294, "x", "b s i")
    mask = canvas.allowed(98, 216, real[:, None], 11)
    canvas.label(103, 294, "real", "b s")
    blocks = canvas.box(176, 232, 96, 36, "encoder", "n_blocks times", "attention")
    canvas.line((mask.right[0] + 4, 250), blocks.left)
    shown = np.where(real[:, None], rng.random((6, 6)), np.nan)
    made = canvas.matrix(143, 300, shown, ORANGE, 11, low=-0.2)
    canvas.line(blocks.bottom, made.top)
    canvas.shape(209, 332, "b s m")
    mean = canvas.matrix(143, 390, np.nanmean(shown, 0)[None], ORANGE, 11, low=-0.2)
    canvas.line(made.bottom, mean.top)
    canvas.text(184, 378, "mean over real", ha="left", size=8)
    output = canvas.box(50, 383, 72, 24, "output", kind="output")
    canvas.line(mean.left, (output.x + output.w, mean.middle[1]))
    canvas.shape(209, 396, "b m")
    canvas.text(50, 416, "b c", "shape", colour=GREEN)
