"""Drawings of the chapter *A model that reads and writes*."""

import numpy as np

from canvas import Box, drawing, small_attention
from helpers.show.plots import BLUE, EDGE, GREEN, ORANGE, PURPLE


@drawing(350)
def cross_attention(canvas):
    """Queries from the target, keys and values from the source: a rectangular map."""
    (q, k, v, mask, _, weights, out) = small_attention()
    rng = np.random.default_rng(8)
    x = canvas.matrix(20, 34, rng.normal(size=(4, 4)), BLUE, 13)
    context = canvas.matrix(150, 34, rng.normal(size=(5, 4)), ORANGE, 13)
    canvas.label(46, 11, "x", "b q m", "target")
    canvas.label(176, 11, "context", "b k m", "source")
    queries = canvas.matrix(26.5, 130, q, BLUE, 13)
    canvas.label(72, 136, "q", "b h q d", ha="left")
    canvas.line(x.bottom, queries.top)
    for name, values, left in (("k", k, 140), ("v", v, 196)):
        made = canvas.matrix(left, 130, values, ORANGE, 13)
        canvas.line(context.bottom, made.top)
        canvas.label(made.middle[0], 206, name, "b h k d")
    shown = np.where(mask, weights, np.nan)
    mixing = canvas.matrix(26.5, 246, shown, PURPLE, 13, low=0)
    canvas.line((46, 182), (46, 246))
    canvas.line((140, 166), (78, 166), (78, 246))
    canvas.label(59, 312, "weights", "b h q k")
    result = canvas.matrix(192, 246, out, GREEN, 13)
    canvas.line(mixing.right, result.left)
    canvas.line((211.5, 228), result.top)
    canvas.label(211.5, 312, "weights @ v", "b h q d")
    canvas.text(72, 341, "grey: padding of the source", size=8)


@drawing(398)
def translator(canvas):
    """The encoder reads the source; every decoder block looks at what it has read."""
    left, right, w = 64, 184, 96
    note = "hides padding", "attention"
    canvas.frame(Box(right - 58, 138, 116, 178), EDGE, 0.05)
    for x, name, shape in ((left, "source", "b k"), (right, "target", "b s")):
        canvas.text(x, 12, name, "name")
        canvas.shape(x, 32, shape)
        box = canvas.below((x, 22), x, 44, w, 22, "embed", kind="dense")
        canvas.shape(x, 78, f"{shape} m")
        box = canvas.below(box.bottom, x, 90, w, 22, "positions", kind="positions")
        if name == "source":
            encoder = canvas.below(box.bottom, x, 148, w, 42, "encoder", *note)
    own = "attention", "causal", "attention"
    box = canvas.below(box.bottom, right, 148, w, 42, *own)
    cross = canvas.below(box.bottom, right, 206, w, 42, "cross", *note)
    ffn = canvas.below(cross.bottom, right, 264, w, 22, "ffn", kind="dense")
    canvas.text(right, 302, "n_blocks times", size=8.5)
    canvas.line(encoder.bottom, (left, cross.middle[1]), cross.left)
    canvas.shape(left, 212, "b k m")
    canvas.line(ffn.bottom, (right, 294), head=False)
    box = canvas.below((right, 310), right, 336, w, 22, "logits", kind="output")
    canvas.shape(right, 370, "b s c")
    canvas.line(box.bottom, (right, 390))
