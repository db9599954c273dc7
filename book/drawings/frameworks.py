"""Drawings of the chapter *Two frameworks*."""

import numpy as np

from canvas import MONO, Box, drawing
from helpers.show.plots import BLUE, EDGE, ORANGE


@drawing(298)
@drawing(218, "basic-training-loop", basic=True)
def training_loop(canvas, basic=False):
    """Forward and backward for each batch; ``basic``: no schedule, clip, validation."""
    left, right = 94, 200
    canvas.text(left, 12, "inputs", "name")
    canvas.shape(left, 34, "b i" if basic else "b s i")
    model = canvas.below((left, 22), left, 52, 76, 40, "model", "forward", "attention")
    canvas.shape(left, 108, "b c" if basic else "b s c")
    loss_fn = canvas.below(model.bottom, left, 130, 76, 40, "loss_fn", "", "output")
    canvas.text(21, 150, "labels", "name", size=9)
    canvas.text(21, 162, "b" if basic else "b s", "shape", size=8)
    canvas.line((40, 150), loss_fn.left)
    canvas.line(loss_fn.bottom, (left, 200))
    canvas.text(left, 209, "loss", "name")
    adam = "Adam" if basic else "AdamW"
    above = step = canvas.box(right, 52, 88, 40, "optimizer", adam, "dense")
    canvas.line(step.left, model.right)
    if not basic:
        above = canvas.box(right, 130, 88, 40, "max_grad_norm", "clip", "plain")
        canvas.line(above.top, step.bottom)
        canvas.text(right, 12, "learning_rates", "name", size=9)
        canvas.line((right, 22), step.top)
        canvas.line((left, 219), (left, 252), dashed=True)
        canvas.text(left + 7, 234, "each epoch", size=8.5, ha="left")
        canvas.box(left, 252, 150, 40, "validation", "keep the best weights")
    canvas.line((left + 17, 209), (right, 209), above.bottom)
    canvas.text(right + 6, 190, "gradient", size=8.5, ha="left")
    canvas.text(148, 199, "each batch", size=8.5)


@drawing(314)
def chain_rule(canvas):
    """A neuron: forward, value by value, and backward, derivative by derivative."""
    x = 124
    weight, given, target = 0.5, 2.0, 1.0
    product = weight * given
    p = np.tanh(product)
    values = weight, product, p, (p - target) ** 2
    own = given, 1 - p**2, 2 * (p - target)  # the derivative of each operation
    arriving = np.cumprod([1.0, *own[::-1]])[::-1]
    canvas.text(57, 14, "forward: values", colour=BLUE)
    canvas.text(184, 14, "backward: derivatives", colour=ORANGE)
    canvas.text(x, 35, "w", family=MONO, weight="bold", size=10)
    above = 44
    for i, operation in enumerate(("times 2", "tanh", "squared distance to 1", "")):
        below = above + 32
        canvas.line((x - 18, above), (x - 18, below), colour=BLUE)
        canvas.line((x + 18, below), (x + 18, above), colour=ORANGE)
        y = (above + below) / 2
        canvas.text(x - 26, y, f"{values[i]:.2f}", ha="right", colour=BLUE)
        canvas.text(x + 26, y, minus(arriving[i]), ha="left", colour=ORANGE)
        if operation:
            canvas.frame(Box(x - 70, below, 140, 40), EDGE)
            canvas.text(x, below + 13, operation)
            canvas.text(x, below + 28, f"derivative {minus(own[i])}", colour=ORANGE)
            above = below + 40
    canvas.text(x, below + 10, "loss", "name")


def minus(number):
    """Two digits, with a minus sign as in formulas."""
    return f"{number:.2f}".replace("-", "−")
