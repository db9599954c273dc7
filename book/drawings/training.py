"""Drawings of the chapters *Two frameworks*, *The reverse task* and *Warm-up*."""

import numpy as np

from canvas import MONO, Box, drawing
from helpers.show.plots import BLUE, EDGE, GREEN, ORANGE

DIGITS = "6182640951980113"  # the first sequence of the test data


@drawing(298)
@drawing(218, "basic-training-loop", basic=True)
def training_loop(canvas, basic=False):
    """Forward and backward for each batch; ``basic``: no schedule, clip, validation."""
    left, right, s = 94, 200, "" if basic else " s"
    canvas.texts("name", (left, 12, "inputs"), (left, 209, "loss"))
    model = canvas.box(left, 52, 76, 40, "model", "forward", "attention")
    canvas.line((left, 22), model.top, shape=f"b{s} i")
    loss_fn = canvas.box(left, 130, 76, 40, "loss_fn", "", "output")
    canvas.line(model.bottom, loss_fn.top, shape=f"b{s} c")
    canvas.text(21, 150, "labels", "name", 9)
    canvas.text(21, 162, f"b{s}", "shape", 8)
    canvas.line((40, 150), loss_fn.left)
    canvas.line(loss_fn.bottom, (left, 200))
    adam = "Adam" if basic else "AdamW"
    above = step = canvas.box(right, 52, 88, 40, "optimizer", adam, "dense")
    canvas.line(step.left, model.right)
    if not basic:
        above = canvas.box(right, 130, 88, 40, "max_grad_norm", "clip", "plain")
        canvas.line(above.top, step.bottom)
        canvas.text(right, 12, "learning_rates", "name", 9)
        canvas.line((right, 22), step.top)
        canvas.line((left, 219), (left, 252), dashed=True)
        canvas.text(left + 7, 234, "each epoch", "small", ha="left")
        canvas.box(left, 252, 150, 40, "validation", "keep the best weights")
    canvas.line((left + 17, 209), (right, 209), above.bottom)
    canvas.text(right + 6, 190, "gradient", "small", ha="left")
    canvas.text(148, 199, "each batch", "small")


@drawing(314)
def chain_rule(canvas):
    """A neuron: forward, value by value, and backward, derivative by derivative."""
    x, weight, given, target = 124, 0.5, 2.0, 1.0
    p = np.tanh(weight * given)
    values = weight, weight * given, p, (p - target) ** 2
    own = given, 1 - p**2, 2 * (p - target)  # the derivative of each operation
    arriving = np.cumprod([1.0, *own[::-1]])[::-1]
    canvas.text(57, 14, "forward: values", colour=BLUE)
    canvas.text(184, 14, "backward: derivatives", colour=ORANGE)
    canvas.text(x, 35, "w", family=MONO, weight="bold", size=10)
    for i, operation in enumerate(("times 2", "tanh", "squared distance to 1", "")):
        above, below = 44 + 72 * i, 76 + 72 * i
        canvas.line((x - 18, above), (x - 18, below), colour=BLUE)
        canvas.line((x + 18, below), (x + 18, above), colour=ORANGE)
        canvas.text(x - 26, above + 16, f"{values[i]:.2f}", ha="right", colour=BLUE)
        words = f"{arriving[i]:.2f}".replace("-", "−")
        canvas.text(x + 26, above + 16, words, ha="left", colour=ORANGE)
        if operation:
            canvas.frame(Box(x - 70, below, 140, 40), EDGE)
            canvas.text(x, below + 13, operation)
            words = f"derivative {own[i]:.2f}".replace("-", "−")
            canvas.text(x, below + 28, words, colour=ORANGE)
    canvas.text(x, 302, "loss", "name")


@drawing(206)
def reversal(canvas):
    """Sixteen digits, and a line of attention from each to the output that needs it."""
    place = [11.5 + 15 * i for i in range(16)]
    for x, digit, label in zip(place, DIGITS, reversed(DIGITS), strict=True):
        canvas.text(x, 9, digit, "name")
        canvas.text(x, 198, label, "name")
    canvas.box(124, 20, 240, 24, "embed, positions", kind="dense")
    for q in reversed(range(16)):  # output 0 last, on top
        colour = EDGE if q else ORANGE
        canvas.line((place[15 - q], 47), (place[q], 157), colour=colour)
    canvas.text(42, 102, "attention", "name", colour=ORANGE)
    canvas.box(124, 160, 240, 24, "ffn, output", kind="output")


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
        canvas.text(x, 128, words, "small")
    for x, words in ((80, "+"), (170, "norm1")):
        canvas.text(x, 84, words, "name")
        canvas.line((x - 8, 92), (x + 8, 92))
