"""Drawings of the chapter *More than one device*."""

import numpy as np

from canvas import Box, drawing, shades
from helpers.show.plots import BLUE, HIDDEN, ORANGE


@drawing(264)
def ways_to_share(canvas):
    """Who holds what on four devices: full squares are held, dashed parts are not."""
    rows = [  # what all four hold: parts of the weights, parts of the batch
        ("data parallel", range(4), None, "gradients travel"),
        ("sharded weights", None, None, "gradients and weights travel"),
        ("tensor parallel", None, range(4), "activations travel"),
    ]
    for place, (name, weights, batch, travels) in enumerate(rows):
        y = 12 + 82 * place
        canvas.text(8, y, name, ha="left", weight="bold")
        canvas.text(240, y, travels, ha="right", size=8)
        for device in range(4):
            x = 10 + 60 * device
            for left, held, colour in ((0, weights, BLUE), (27, batch, ORANGE)):
                for part in range(4):
                    mine = part in (held or [device])
                    cell = Box(x + left, y + 12 + 11 * part, 22, 9)
                    canvas.frame(cell, colour if mine else HIDDEN)
            canvas.text(x + 24, y + 63, f"device {device}", size=8)
    canvas.text(8, 254, "model", "name", size=8.5, colour=BLUE, ha="left")
    canvas.text(40, 254, "with its gradients and averages,", ha="left", size=8)
    canvas.text(176, 254, "batch", "name", size=8.5, colour=ORANGE, ha="left")


@drawing(252)
def ring(canvas, n=4):
    """A sum around a ring: the parts of each device before and after every step."""
    summed = np.ones((n, n), int)  # device, part
    titles = "reduce-scatter: add, pass on", "all-gather: pass on"
    for row, words in enumerate(titles):
        canvas.text(8, 10 + 126 * row, words, ha="left", weight="bold")
    for step in range(2 * n - 1):
        row, column = divmod(step, n)
        x, y = 36 + 54 * column, 50 + 126 * row
        canvas.text(x + 22, y - 20, f"step {step}" if step else "before", size=8)
        for i in range(n):  # what comes from the device above
            j, top = (i - step) % n, y + 20 * i
            if step:
                summed[i, j] = summed[i - 1, j] + (step < n)
                middle = x + 11 * j + 5.5
                canvas.line((middle, top - 8.5), (middle, top), colour=ORANGE)
        for i in range(n):
            canvas.cells(x, y + 20 * i, shades(summed[[i]], BLUE, 0, 2 * n), 11)
            for j, count in enumerate(summed[i]):
                canvas.text(x + 11 * j + 5.5, y + 20 * i + 5.5, count, size=8)
            if not column:
                canvas.text(x - 6, y + 20 * i + 5.5, f"dev. {i}", size=8, ha="right")
    canvas.text(220, 190, "a 3 is the", size=8)
    canvas.text(220, 204, "sum", "name", size=9)
    canvas.text(220, 218, "of 3 devices", size=8)
