"""Drawings of *Finding the odd one out*, *Pictures as sequences*, *Your own data*."""

import numpy as np

from canvas import Box, drawing, tint
from helpers.show.plots import BLUE, EDGE, GREEN, HIDDEN, ORANGE


@drawing(392)
def set_model(canvas):
    """A set through the model: nothing depends on the order of its elements."""
    x, odd, places = 124, 3, range(32, 217, 46)
    for i, place in enumerate(places):
        canvas.frame(Box(place - 19, 8, 38, 28), ORANGE if i == odd else EDGE)
        weight = "bold" if i == odd else "normal"
        canvas.text(place, 22, "dog" if i == odd else "ship", size=10, weight=weight)
        for y in (36, 84, 194, 242, 290):
            canvas.line((place, y), (place, y + 24))
        p = 0.92 if i == odd else 0.02
        canvas.cells(place - 16, 316, [[tint(GREEN, 0.06 + 0.6 * p)]], 32)
        canvas.text(place, 332, f"{p:.2f}", size=9)
    shapes = (46, "b s i"), (94, "b s m"), (204, "b s m"), (252, "b s 1"), (300, "b s")
    canvas.texts("shape", *((x + 23, *shape) for shape in shapes))
    canvas.box(x, 60, 228, 24, "embed", kind="dense")
    canvas.frame(Box(10, 108, 228, 86), ORANGE)
    canvas.text(x, 121, "encoder", "name")
    for start in places:
        for i, end in enumerate(places):  # the odd one compares: what it sees is orange
            colour, width = (ORANGE, 1.4) if i == odd else (EDGE, 0.6)
            canvas.ax.plot((start, end), (135, 183), color=colour, lw=width)
    canvas.box(x, 218, 228, 24, "output", kind="output")
    canvas.box(x, 266, 228, 24, "softmax")
    canvas.text(x, 366, "no positions: permuting the set", "small")
    canvas.text(x, 379, "permutes the probabilities", "small")


@drawing(474)
def vision_transformer(canvas):
    """Beside the predictor; new are the patches, the token, and its way out."""
    x, cell, boxes, above = 178, 10, {}, (42, 126)
    for y, h, name, kind in (
        (142, 22, "embed", "dense"),
        (214, 36, "positions", "positions"),
        (270, 42, "encoder", "attention"),
        (326, 22, "hidden", "dense"),
        (358, 22, "hidden_norm", "norm"),
        (390, 22, "relu", "plain"),
        (422, 22, "output", "output"),
    ):
        boxes[name] = canvas.below(above, 42, y, 78, h, name, kind=kind)
        above = boxes[name].bottom
    canvas.line(above, (42, 462))
    canvas.text(42, 118, "x", "name")
    for y, h in ((22, 103), (170, 28), (326, 46)):
        canvas.frame(Box(88, y, 156, h), EDGE, 0.14)
        canvas.text(235, y + h / 2, "new", weight="bold", rotation=-90, va="center")
    canvas.text(42, 10, "predictor", weight="bold")
    canvas.text(x - 4, 10, "vision Transformer", weight="bold")
    for left, y, shape in (
        (42, 133, "b s i"), (42, 454, "b s c"), (x, 133, "b n (p p i)"),
        (x, 206, "b s m"), (x, 262, "b s m"), (x, 402, "b m"), (x, 454, "b c"),
    ):  # fmt: skip
        canvas.shape(left, y, shape, size=8)

    seven = [tint(EDGE, 0.9 if ink else 0.03) for ink in (1, 1, 1, 0, 0, 1, 0, 1, 0)]
    picture = canvas.cells(x - 18, 28, [seven[i : i + 3] for i in (0, 3, 6)], 12)
    canvas.label(x - 56, 38, "images", "b y x i")
    box = canvas.below(picture.bottom, x, 76, 88, 22, "cut_patches")
    row = canvas.cells(x - 45, 110, [seven], cell)  # the patches as a sequence
    canvas.line(box.bottom, row.top)
    embed = canvas.below(row.bottom, x, 142, 88, 22, "embed", kind="dense")
    row = canvas.cells(x - 45, 179, [[tint(BLUE, 0.5)] * 9], cell)
    canvas.line(embed.bottom, row.top)
    token = canvas.cells(x - 55, 179, [[ORANGE]], cell)
    canvas.text(token.x - 4, 184, "token", "name", size=9, ha="right")
    words = "positions", "learned", "positions"
    positions = canvas.below(row.bottom, x, 214, 88, 36, *words)
    words = "encoder", "pre-norm, GELU", "attention"
    encoder = canvas.below(positions.bottom, x, 270, 88, 42, *words)
    rest = canvas.cells(x - 45, 335, [[tint(EDGE, 0.1)] * 9], cell)
    canvas.line(encoder.bottom, rest.top)
    first = canvas.cells(x - 55, 335, [[ORANGE]], cell).bottom
    canvas.text(first[0] + 6, 361, "x[:, 0]", "name", size=9, ha="left")
    output = canvas.box(x, 422, 88, 22, "output", kind="output")
    canvas.line(first, (first[0], 384), (x, 384), output.top)
    canvas.line(output.bottom, (x, 462))
    names = "embed", "positions", "encoder", "output"
    for name, twin in zip(names, (embed, positions, encoder, output), strict=True):
        canvas.line(boxes[name].right, twin.left, head=False, dashed=True)


@drawing(424)
def three_kinds_of_data(canvas):
    """A row, a signal, a text: tokens, vectors ``b s i``, blocks, mean, output."""
    rng = np.random.default_rng(3)
    for y, title, words, hidden in (
        (10, "a table: each number is a token", ("14.2", "1.7", "2.4", "…"), ()),
        (72, "a signal: each frame is a token", ("1", "2", "", "4", "5", ""), (2, 5)),
        (134, "a text: each character is a token", (*"if_x", "", ""), (4, 5)),
    ):
        canvas.text(8, y, title, ha="left", weight="bold")
        for i, word in enumerate(words):
            box = Box(8 + 34 * i, y + 26, 30, 20)
            canvas.frame(box, HIDDEN if i in hidden else BLUE)
            canvas.text(*box.middle, word, "name", size=8.5)
    for i, name in enumerate(("alcohol", "acid", "ash", "…")):
        canvas.text(23 + 34 * i, 26, name, size=8)
    x = np.arange(0, 166, 3)
    for shift in (0, 4):
        y = 85 + shift - 3.5 * np.sin(x / (11 + shift)) + rng.normal(0, 0.3, len(x))
        canvas.line(*zip(8 + x, y, strict=True), colour=ORANGE, head=False)
    canvas.text(8, 150, "dashed: a gap, or padding", ha="left", size=8)

    # One sequence goes on, with a gap and padding.
    real = np.array([1, 1, 0, 1, 1, 0])[:, None]
    shown = np.where(real, rng.random((6, 5)), np.nan)
    canvas.matrix(36, 216, shown, BLUE, 11, low=-0.2)
    canvas.line((63.5, 186), (63.5, 214))
    canvas.label(62, 294, "x", "b s i")
    mask = canvas.allowed(98, 216, real, 11)
    canvas.label(103, 294, "real", "b s")
    blocks = canvas.box(176, 232, 96, 36, "encoder", "n_blocks times", "attention")
    canvas.line((mask.right[0] + 4, 250), blocks.left)
    shown = np.where(real, rng.random((6, 6)), np.nan)
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
