"""Architectures as drawings: boxes with the names of the code, shapes on the arrows.

Every function returns a ``matplotlib.figure.Figure`` that a cell shows by naming it in
its last line. Drawings are read from top to bottom, like the code, and are narrow
enough for a phone. The paper is light, as in ``helpers.plots``. Lengths are points.
"""

from typing import NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.textpath import TextPath

from helpers import reference
from helpers.plots import COLOURS, EDGE, HIDDEN, INK, PAPER

BLUE, ORANGE, GREEN, PURPLE, BROWN, _ = COLOURS
GREY = EDGE
# What a box does has a colour, the same in all drawings.
KINDS = {
    "attention": ORANGE, "dense": BLUE, "norm": BROWN, "positions": PURPLE,
    "output": GREEN, "plain": GREY,
}  # fmt: skip
SANS, MONO = "DejaVu Sans", "DejaVu Sans Mono"  # they come with matplotlib
WIDTH = 248


def tint(colour, share=0.16):
    """A colour mixed into the paper."""
    mixed = share * np.array(to_rgb(colour)) + (1 - share) * np.array(to_rgb(PAPER))
    return tuple(mixed)


def width(words, family, size):
    """How wide a line of text is."""
    path = TextPath((0, 0), words, size=size, prop=FontProperties(family=family))
    return path.get_extents().width


class Box(NamedTuple):
    """Where a box is; arrows start and end on its edges."""

    x: float
    y: float
    w: float
    h: float

    @property
    def middle(self):
        return self.x + self.w / 2, self.y + self.h / 2

    @property
    def top(self):
        return self.middle[0], self.y

    @property
    def bottom(self):
        return self.middle[0], self.y + self.h

    @property
    def left(self):
        return self.x, self.middle[1]

    @property
    def right(self):
        return self.x + self.w, self.middle[1]


class Canvas:
    """A sheet of paper, in points, with y growing downwards."""

    def __init__(self, height, width=WIDTH):
        self.fig = Figure(figsize=(width / 72, height / 72), dpi=200, facecolor=PAPER)
        self.ax = self.fig.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self.ax.set_axis_off()

    def text(self, x, y, words, what="note", *, size=None, colour=None, **options):
        """Words of a kind: the ``name`` of code, a ``shape``, or a ``note``."""
        style = {
            "name": {"family": MONO, "weight": "bold", "size": 10, "color": INK},
            "shape": {"family": MONO, "size": 9, "color": BLUE},
            "note": {"family": SANS, "size": 9, "color": INK},
        }[what]
        style |= {"ha": "center", "va": "center_baseline", "label": what, **options}
        style |= {"size": size or style["size"], "color": colour or style["color"]}
        return self.ax.text(x, y, words, **style)

    def box(self, x, y, w, h, name, note="", kind="plain", shape=""):
        """A named box around ``x``, from ``y`` down; below the name a note, a shape."""
        colour = KINDS[kind]
        style = {"fc": tint(colour), "ec": colour, "lw": 1.1}
        form = "round,pad=0,rounding_size=5"
        self.ax.add_patch(FancyBboxPatch((x - w / 2, y), w, h, boxstyle=form, **style))
        lines = [("name", name, 10), ("note", note, 8.5), ("shape", shape, 8.5)]
        lines = [line for line in lines if line[1]]
        for i, (what, words, size) in enumerate(lines):
            self.text(
                x, y + h / 2 + 13 * (i - len(lines) / 2 + 0.5), words, what, size=size
            )
        return Box(x - w / 2, y, w, h)

    def below(self, above, *place, **options):
        """A box with an arrow from the point above it."""
        box = self.box(*place, **options)
        self.line(above, box.top)
        return box

    def label(self, x, y, name, shape, note="", **options):
        """Beside a matrix: its name, maybe with a word for it, and below its shape."""
        first = self.text(x, y, name, "name", **options)
        if note:
            gap, w = 5, width(note, SANS, 9)
            first.set_x(x - (w + gap) / 2 * (first.get_ha() == "center"))
            after = width(name, MONO, 10) / (1 if first.get_ha() == "left" else 2)
            self.text(first.get_position()[0] + after + gap, y, note, ha="left")
        self.text(x, y + 13, shape, "shape", **options)

    def line(self, *points, colour=EDGE, head=True, dashed=False):
        """Straight pieces through the points, with an arrow's head at the end."""
        xs, ys = zip(*points, strict=True)
        style = {"color": colour, "lw": 1.2, "solid_capstyle": "butt"}
        style |= {"linestyle": (0, (3, 2)) if dashed else "-"}
        if head:
            start, end = np.array(points[-2], float), np.array(points[-1], float)
            way = (end - start) / np.hypot(*(end - start))
            across = np.array([-way[1], way[0]])
            base = end - 5 * way
            corners = np.array([end, base + 2.8 * across, base - 2.8 * across])
            self.ax.fill(*corners.T, color=colour, lw=0, zorder=3)
            xs, ys = (*xs[:-1], base[0] + way[0]), (*ys[:-1], base[1] + way[1])
        self.ax.plot(xs, ys, zorder=1, solid_joinstyle="round", **style)

    def plus(self, x, y):
        """A circle in which two arrows are added."""
        self.ax.plot(x, y, "o", ms=15, mfc=PAPER, mec=EDGE, mew=1.1, zorder=2)
        self.ax.plot(x, y, "+", ms=8, mec=INK, mew=1.2, zorder=3)
        return Box(x - 7.5, y - 7.5, 15, 15)

    def cells(self, x, y, colours, cell=15, frame=None):
        """A matrix as coloured cells, ``row column rgb``; ``frame`` marks a row."""
        rows, columns = len(colours), len(colours[0])
        for i, row in enumerate(colours):
            for j, colour in enumerate(row):
                at = x + j * cell, y + i * cell
                self.ax.add_patch(
                    Rectangle(at, cell, cell, fc=colour, ec=PAPER, lw=1.2)
                )
        if frame is not None:
            self.ax.add_patch(
                Rectangle(
                    (x, y + frame * cell), columns * cell, cell, fill=False, ec=INK,
                    lw=1.6, zorder=4,
                )
            )  # fmt: skip
        return Box(x, y, columns * cell, rows * cell)


def shades(values, colour, low, high):
    """Each number as a mixture of paper and colour; NaN is grey: hidden."""
    share = (np.asarray(values, float) - low) / (high - low)
    return [
        [HIDDEN if np.isnan(s) else tint(colour, 0.06 + 0.84 * s) for s in row]
        for row in share
    ]


def small_attention():
    """Queries, keys, values, mask, scaled scores, weights and outputs of one head."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=(n, 3)) for n in (4, 5, 5))
    mask = np.broadcast_to(np.arange(5) < 4, (4, 5))
    out, weights = reference.attention(q, k, v, mask)
    return q, k, v, mask, q @ k.T / np.sqrt(3), weights, out


def attention():
    """One head: a score stands where the row of a query meets the column of a key.

    Returns
    -------
    matplotlib.figure.Figure
    """
    q, k, v, mask, scores, weights, out = small_attention()
    canvas = Canvas(358)

    def matrix(x, y, values, colour, frame=None):
        low, high = np.nanmin(values), np.nanmax(values)
        return canvas.cells(x, y, shades(values, colour, low, high), frame=frame)

    keys = matrix(84, 12, k.T, ORANGE)
    canvas.label(167, 27, "k", "b h k d", "keys", ha="left")
    canvas.text(167, 53, "a column each", size=8, ha="left")
    matrix(14, 81, q, BLUE, frame=1)
    canvas.label(36.5, 52, "q", "b h q d", "queries")
    crossing = matrix(84, 81, scores, PURPLE, frame=1)
    canvas.label(167, 104, "scores", "b h q k", ha="left")
    canvas.line(keys.bottom, crossing.top)
    canvas.line((59, 103.5), (84, 103.5))

    above = crossing
    for y, step in zip((159, 194, 229), ("/ √d", "mask", "softmax"), strict=True):
        above = box = canvas.below(above.bottom, 121.5, y, 64, 21, step)
        if step == "mask":
            allowed = [
                [tint(PURPLE, 0.3) if see else HIDDEN for see in r] for r in mask
            ]
            small = canvas.cells(19, box.middle[1] - 14, allowed, 7)
            canvas.line(small.right, box.left)
            canvas.text(36.5, small.y + 37, "b h q k", "shape")
    shown = np.where(mask, weights, np.nan)
    mixing = canvas.cells(84, 264, shades(shown, PURPLE, 0, weights.max()), frame=1)
    canvas.line(above.bottom, mixing.top)
    canvas.label(42, 282, "weights", "b h q k")
    canvas.text(42, 310, "rows sum to 1", size=8)

    values = matrix(189, 170, v, GREEN)
    canvas.label(211.5, 140, "v", "b h k d", "values")
    result = matrix(189, 264, out, GREEN, frame=1)
    canvas.label(211.5, 335, "weights @ v", "b h q d")
    canvas.line((159, 286.5), (189, 286.5))
    canvas.line(values.bottom, result.top)
    canvas.text(121.5, 337, "framed: one query", size=8)
    canvas.text(121.5, 348, "grey: hidden", size=8)
    return canvas.fig


def encoder_block(norm_first=False):
    """Attention and feed-forward net, each with its residual and its norm.

    Parameters
    ----------
    norm_first : bool
        Norm before each branch instead of after each sum.

    Returns
    -------
    matplotlib.figure.Figure
    """
    canvas = Canvas(352)
    x, w, y = 130, 122, 22
    canvas.text(x, 12, "x", "name")
    above = (x, y)
    branches = [
        ("attention", "several heads", "", "norm1"),
        ("ffn", "each position alone", "m → f → m", "norm2"),
    ]
    for name, note, sizes, norm in branches:
        canvas.text(x + 7, y + 9, "b s m", "shape", ha="left")
        fork = (x, y + 18)
        y += 34
        if norm_first:
            above = canvas.below(above, x, y, w, 24, norm, kind="norm").bottom
            y += 40
        kind = "attention" if name == "attention" else "dense"
        box = canvas.below(above, x, y, w, 46, name, note, kind, sizes)
        if name == "attention":
            canvas.text(28, y + 13, "mask", "name", size=9)
            canvas.line((43, y + 13), (box.x, y + 13))
            canvas.text(28, y + 31, "weights", "name", size=9)
            canvas.text(28, y + 43, "b h q k", "shape", size=8)
            canvas.line((box.x, y + 31), (50, y + 31))
        plus = canvas.plus(x, y + 68)
        canvas.line(box.bottom, plus.top)
        canvas.line(fork, (x + 88, fork[1]), (x + 88, y + 68), plus.right)
        beside = (fork[1] + y + 68) / 2
        canvas.text(x + 97, beside, "residual", size=8.5, rotation=-90, va="center")
        above, y = plus.bottom, y + 76
        if not norm_first:
            above = canvas.below(above, x, y + 16, w, 24, norm, kind="norm").bottom
            y += 40
    canvas.text(x + 7, y + 9, "b s m", "shape", ha="left")
    canvas.line(above, (x, y + 24))
    return canvas.fig
