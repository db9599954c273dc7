"""Drawing of the chapter *When training fails*."""

import numpy as np

from helpers.show.diagrams.canvas import Box, Canvas
from helpers.show.plots import BLUE, HIDDEN, ORANGE


def three_kinds_of_data():
    """A table's row, a signal and a text, each cut into tokens; padding is dashed."""
    canvas = Canvas(216)
    rng = np.random.default_rng(3)

    def tokens(y, words, hidden=0):
        for i, word in enumerate(words):
            box = Box(8 + 34 * i, y, 30, 22)
            canvas.frame(box, HIDDEN if i >= len(words) - hidden else BLUE)
            canvas.text(*box.middle, word, "name", size=8.5)

    canvas.text(8, 12, "a table: one number is a token", ha="left", weight="bold")
    for i, name in enumerate(("alcohol", "acid", "ash", "…")):
        canvas.text(23 + 34 * i, 26, name, size=8)
    tokens(34, ("14.2", "1.7", "2.4", "…"))

    canvas.text(8, 76, "a signal: four weeks are a token", ha="left", weight="bold")
    x = np.linspace(0, 166, 60)
    y = 104 - x / 14 - 7 * np.sin(x / 11) + rng.normal(0, 0.7, 60)
    canvas.line(*zip(8 + x, y, strict=True), colour=ORANGE, head=False)
    tokens(118, ("1–4", "5–8", "9–12", "13–16", "…"))

    canvas.text(8, 160, "a text: a character is a token", ha="left", weight="bold")
    canvas.text(8, 174, "the last two are padding", ha="left", size=8)
    tokens(182, ("i", "f", "_", "x", ":", "", ""), hidden=2)
    return canvas.fig
