"""Drawing of the chapter *Warm-up*."""

import numpy as np

from canvas import drawing
from helpers.show.plots import BLUE, GREEN, ORANGE


@drawing(138)
def shared_vector(canvas):
    """Three outputs to which one long vector is added, then the norm of the sums."""
    outputs = np.array([(-0.9, 0.45), (0.1, 1.0), (0.95, 0.3)])  # of length 1, nearly
    sums = outputs + np.array([0.5, 3.6])
    normed = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    for x, rows, words in (
        (42, outputs, "three outputs"),
        (120, sums, "+ one long vector"),
        (206, normed, "after the norm"),
    ):
        for (right, up), colour in zip(rows, (BLUE, ORANGE, GREEN), strict=True):
            canvas.line((x, 112), (x + 21 * right, 112 - 21 * up), colour=colour)
        canvas.text(x, 128, words, size=8.5)
    canvas.text(80, 84, "+", "name")
    canvas.text(170, 84, "norm1", "name")
    for x in (72, 162):
        canvas.line((x, 92), (x + 16, 92))
