"""A sheet to draw on: boxes, arrows, matrices and their names."""

from collections import namedtuple
from functools import partial

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from helpers.show import plots
from helpers.show.plots import BLUE, EDGE, HIDDEN, INK, ORANGE, PAPER, PURPLE

# What a box does has a colour, the same in all drawings.
KINDS = {"attention": ORANGE, "dense": BLUE, "norm": plots.BROWN, "positions": PURPLE}
KINDS |= {"output": plots.GREEN, "plain": EDGE}
SANS, MONO = "DejaVu Sans", "DejaVu Sans Mono"  # they come with matplotlib
WIDTH = 248
DRAWINGS = {}  # by the name of the file: height, and what draws on the canvas


def drawing(height, name=None, **options):
    """Give the function below a canvas of this height, and its drawing a name."""

    def register(draw):
        own = name or draw.__name__.replace("_", "-")
        DRAWINGS[own] = height, partial(draw, **options)
        return draw

    return register


def tint(colour, share=0.16):
    """A colour mixed into the paper."""
    mixed = share * np.array(to_rgb(colour)) + (1 - share) * np.array(to_rgb(PAPER))
    return tuple(mixed)


def shades(values, colour, low, high):
    """Each number as a mixture of paper and colour; NaN is grey: hidden."""
    share = 0.06 + 0.84 * (np.asarray(values, float) - low) / (high - low)
    return [[HIDDEN if np.isnan(s) else tint(colour, s) for s in row] for row in share]


class Box(namedtuple("Box", "x y w h")):
    """Where a box is; arrows start and end on its edges."""

    def at(self, across, down):
        """A point in the box: ``0, 0`` is its first corner, ``1, 1`` its last."""
        return self.x + across * self.w, self.y + down * self.h

    middle = property(lambda self: self.at(0.5, 0.5))
    top = property(lambda self: self.at(0.5, 0))
    bottom = property(lambda self: self.at(0.5, 1))
    left = property(lambda self: self.at(0, 0.5))
    right = property(lambda self: self.at(1, 0.5))


class Canvas:
    """A sheet of paper, in points, with y growing downwards."""

    def __init__(self, height):
        self.fig = Figure(figsize=(WIDTH / 72, height / 72), dpi=200, facecolor=PAPER)
        self.ax = self.fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
        self.ax.set_axis_off()

    def text(self, x, y, words, what="note", size=None, colour=None, **options):
        """Words of a kind: the ``name`` of code, a ``shape``, a ``note``."""
        style = {
            "name": {"family": MONO, "weight": "bold", "size": 10, "color": INK},
            "shape": {"family": MONO, "size": 9, "color": BLUE},
            "note": {"family": SANS, "size": 9, "color": INK},
            "small": {"family": SANS, "size": 8.5, "color": INK},
        }[what]
        style |= {"size": size or style["size"], "color": colour or style["color"]}
        style |= {"ha": "center", "va": "center_baseline", **options}
        self.ax.text(x, y, words, **style)

    def texts(self, what, *places, **options):
        """Words of the same kind, each as ``x, y, words``."""
        for place in places:
            self.text(*place, what, **options)

    def shape(self, x, y, words, size=None):
        """The shape of what an arrow carries, on its right."""
        self.text(x + 7, y, words, "shape", size, ha="left")

    def label(self, x, y, name, shape, note="", ha="center"):
        """Beside a matrix: its name, maybe with a word for it, and below its shape."""
        wide = 3 if ha == "center" else 6  # a letter of the name; one of the note is 5
        first = x - 2.5 * (len(note) + 1) * (wide == 3 and note > "")
        self.text(first, y, name, "name", ha=ha)
        self.text(first + wide * len(name) + 5, y, note, ha="left")
        self.text(x, y + 13, shape, "shape", ha=ha)

    def line(self, *points, colour=EDGE, head=True, dashed=False, shape=""):
        """Straight pieces through the points, an arrow's head, the shape it carries."""
        xs, ys = zip(*points, strict=True)
        self.shape(xs[0], (ys[0] + ys[1]) / 2 - 2, shape)
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

    def frame(self, box, colour, share=0.16):
        """The edge and the ground of a box; a pale one is dashed."""
        style = {"fc": tint(colour, share), "ec": colour, "lw": 1.1}
        style |= {"linestyle": (0, (3, 2)) if colour == HIDDEN else "-"}
        form = "round,pad=0,rounding_size=5"
        self.ax.add_patch(FancyBboxPatch(box[:2], box.w, box.h, boxstyle=form, **style))

    def box(self, x, y, w, h, name, note="", kind="plain", shape=""):
        """A named box around ``x``, from ``y`` down; below the name a note, a shape."""
        box = Box(x - w / 2, y, w, h)
        self.frame(box, KINDS[kind])
        lines = [("name", name, 10), ("small", note, 8.5), ("shape", shape, 8.5)]
        lines = [line for line in lines if line[1]]
        for i, (what, words, size) in enumerate(lines):
            self.text(x, y + h / 2 + 13 * (i - len(lines) / 2 + 0.5), words, what, size)
        return box

    def below(self, above, *place, carries="", **options):
        """A box with an arrow from the point above it, and the shape it carries."""
        box = self.box(*place, **options)
        self.line(above, box.top, shape=carries)
        return box

    def column(self, x, w, above, gap, steps):
        """Boxes below each other, by name; each has its shape beside the arrow to it.

        A stack of blocks is drawn as one. The last step is a shape alone: the output.
        """
        boxes = {}
        for shape, name, note, kind, h in steps:
            y = above[1] + (gap if shape else 16)
            stack = 8 * (kind == "attention")
            for shift in range(stack, 0, -4):
                self.frame(Box(x - w / 2 + shift, y + stack - shift, w, h), ORANGE)
            self.line(above, (x, y), shape=shape)
            if name:
                boxes[name] = self.box(x, y + stack, w, h, name, note, kind)
                above = boxes[name].bottom
        return boxes

    def plus(self, x, y, sign="+"):
        """A circle in which two arrows meet."""
        self.ax.plot(x, y, "o", ms=15, mfc=PAPER, mec=EDGE, mew=1.1, zorder=2)
        self.text(x, y, sign, "name", 12, zorder=3)
        return Box(x - 7.5, y - 7.5, 15, 15)

    def mask_and(self, name, shape, box):
        """On the left of a box: the mask that it takes, the weights that it returns."""
        x, y = 28, box.middle[1]
        self.text(x, y - 10, "mask", "name", 9)
        self.line((x + 15, y - 10), (box.x, y - 10))
        self.text(x, y + 8, name, "name", 9)
        self.text(x, y + 20, shape, "shape", 8)
        self.line((box.x, y + 8), (x + 6 + 2.3 * len(name), y + 8))

    def cells(self, x, y, colours, cell=15, frame=None, h=None):
        """A matrix of coloured cells, ``cell`` by ``h``; ``frame`` marks a row."""
        h = h or cell
        for i, j in np.ndindex(len(colours), len(colours[0])):
            self.bar(x + j * cell, y + i * h, cell, h, colours[i][j], lw=1.2)
        box = Box(x, y, cell * len(colours[0]), h * len(colours))
        if frame is not None:
            self.bar(x, y + frame * h, box.w, h, "none", ec=INK, lw=1.6, zorder=4)
        return box

    def bar(self, x, y, w, h, colour, **options):
        """A rectangle of one colour with an edge of paper."""
        style = {"fc": colour, "ec": PAPER, **options}
        self.ax.add_patch(Rectangle((x, y), w, h, **style))

    def matrix(self, x, y, values, colour, cell=15, frame=None, low=None):
        """Numbers as cells, from pale (the lowest, or ``low``) to dark; NaN is grey."""
        low = np.nanmin(values) if low is None else low
        shown = shades(values, colour, low, np.nanmax(values))
        return self.cells(x, y, shown, cell, frame)

    def allowed(self, x, y, mask, cell):
        """A mask as cells: grey is hidden."""
        colours = HIDDEN, tint(PURPLE, 0.3)
        shown = [[colours[int(see)] for see in row] for row in mask]
        return self.cells(x, y, shown, cell)


def small_attention(masked=True):
    """Queries, keys, values, mask, scores, weights and outputs of one head."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=(n, 3)) for n in (4, 5, 5))
    mask = np.broadcast_to(np.arange(5) < (4 if masked else 5), (4, 5))
    weights = np.where(mask, np.exp(q @ k.T / np.sqrt(3)), 0)
    weights /= weights.sum(axis=-1, keepdims=True)
    return q, k, v, mask, q @ k.T, weights, weights @ v
