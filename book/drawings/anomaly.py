"""Drawing of the chapter *Finding the odd one out*."""

import numpy as np

from canvas import Box, drawing, tint
from helpers.show.plots import EDGE, GREEN, ORANGE


@drawing(392)
def set_model(canvas):
    """A set through the model: nothing depends on the order of its elements."""
    x, w = 124, 228
    places, odd = x + 46 * (np.arange(5) - 2), 3

    def arrows(above, y, shape):
        for place in places:
            canvas.line((place, above), (place, y))
        canvas.text(x + 23, (above + y) / 2 - 2, shape, "shape")

    for i, place in enumerate(places):
        canvas.frame(Box(place - 15, 6, 30, 30), ORANGE if i == odd else EDGE)
        digit = {"family": "DejaVu Serif", "style": "italic", "size": 17}
        canvas.text(place, 21, "7" if i == odd else "4", **digit)
    arrows(36, 60, "b s i")
    canvas.box(x, 60, w, 24, "embed", kind="dense")
    arrows(84, 108, "b s m")
    canvas.frame(Box(x - w / 2, 108, w, 86), ORANGE)
    canvas.text(x, 121, "encoder", "name")
    for start in places:
        for i, end in enumerate(places):  # the odd one compares: what it sees is orange
            style = (ORANGE, 1.4) if i == odd else (EDGE, 0.6)
            canvas.ax.plot((start, end), (135, 183), color=style[0], lw=style[1])
    arrows(194, 218, "b s m")
    canvas.box(x, 218, w, 24, "output", kind="output")
    arrows(242, 266, "b s 1")
    canvas.box(x, 266, w, 24, "softmax")
    arrows(290, 314, "b s")
    for i, place in enumerate(places):
        p = 0.92 if i == odd else 0.02
        canvas.cells(place - 16, 316, [[tint(GREEN, 0.06 + 0.6 * p)]], 32)
        canvas.text(place, 332, f"{p:.2f}", size=9)
    canvas.text(x, 366, "no positions: permuting the set", size=8.5)
    canvas.text(x, 379, "permutes the probabilities", size=8.5)
