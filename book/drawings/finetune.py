"""Drawings of the chapter *Start from a trained model*."""

from canvas import Box, drawing
from helpers.show.plots import BLUE, EDGE, HIDDEN, ORANGE


@drawing(236)
def lora(canvas):
    """A frozen matrix, and beside it two thin ones that are trained; a sum."""
    left, right = 58, 166
    canvas.text(112, 10, "x", "name")
    canvas.text(122, 10, "... i", "shape", ha="left")
    canvas.line((112, 17), (112, 30), head=False)
    frozen, a, b = Box(10, 52, 96, 96), Box(154, 52, 24, 48), Box(134, 124, 64, 24)
    canvas.line((112, 30), (left, 30), frozen.top)
    canvas.line((112, 30), (right, 30), a.top)
    canvas.frame(frozen, HIDDEN)
    canvas.text(left, 82, "W", "name")
    canvas.text(left, 98, "i o", "shape")
    canvas.text(left, 116, "frozen", size=8.5)
    canvas.line(a.bottom, b.top)
    for box, colour, name, shape, words in (
        (a, ORANGE, "A", "i r", "random"), (b, BLUE, "B", "r o", "zeros"),
    ):  # fmt: skip
        canvas.frame(box, colour, 0.4)
        canvas.text(right, box.middle[1], name, "name")
        canvas.text(202, box.middle[1] - 6, shape, "shape", ha="left")
        canvas.text(202, box.middle[1] + 7, words, size=8.5, ha="left")
    plus = canvas.plus(112, 188)
    canvas.line(frozen.bottom, (left, 188), plus.left)
    canvas.line(b.bottom, (right, 188), plus.right)
    canvas.text(right + 6, 166, "times α / r", size=8.5, ha="left")
    canvas.line(plus.bottom, (112, 218), colour=EDGE)
    canvas.text(112, 228, "... o", "shape")
