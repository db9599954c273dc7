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
    "output": GREEN, "plain": GREY, "later": HIDDEN,
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
        self.frame(Box(x - w / 2, y, w, h), colour)
        lines = [("name", name, 10), ("note", note, 8.5), ("shape", shape, 8.5)]
        lines = [line for line in lines if line[1]]
        for i, (what, words, size) in enumerate(lines):
            self.text(
                x, y + h / 2 + 13 * (i - len(lines) / 2 + 0.5), words, what, size=size
            )
        return Box(x - w / 2, y, w, h)

    def frame(self, box, colour, share=0.16):
        """The edge and the ground of a box; a pale one is dashed."""
        style = {"fc": tint(colour, share), "ec": colour, "lw": 1.1}
        style |= {"linestyle": (0, (3, 2)) if colour == HIDDEN else "-"}
        form = "round,pad=0,rounding_size=5"
        self.ax.add_patch(FancyBboxPatch(box[:2], box.w, box.h, boxstyle=form, **style))

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

    def plus(self, x, y, sign="+"):
        """A circle in which two arrows meet."""
        self.ax.plot(x, y, "o", ms=15, mfc=PAPER, mec=EDGE, mew=1.1, zorder=2)
        if sign == "+":
            self.ax.plot(x, y, "+", ms=8, mec=INK, mew=1.2, zorder=3)
        else:
            self.text(x, y, sign, "name", zorder=3)
        return Box(x - 7.5, y - 7.5, 15, 15)

    def residual(self, fork, plus):
        """A way around a branch, on its right."""
        right = fork[0] + 88
        self.line(fork, (right, fork[1]), (right, plus.middle[1]), plus.right)
        place = right + 9, (fork[1] + plus.middle[1]) / 2
        self.text(*place, "residual", size=8.5, rotation=-90, va="center")

    def mask_and(self, name, shape, box):
        """On the left of a box: the mask that it takes, the weights that it returns."""
        x, y = 28, box.middle[1]
        self.text(x, y - 10, "mask", "name", size=9)
        self.line((x + 15, y - 10), (box.x, y - 10))
        self.text(x, y + 8, name, "name", size=9)
        self.text(x, y + 20, shape, "shape", size=8)
        self.line((box.x, y + 8), (x + 6 + 2.3 * len(name), y + 8))

    def cells(self, x, y, colours, cell=15, frame=None):
        """A matrix as coloured cells, ``row column rgb``; ``frame`` marks a row."""
        for (i, j), _ in np.ndenumerate(np.empty((len(colours), len(colours[0])))):
            place = x + j * cell, y + i * cell
            style = {"fc": colours[i][j], "ec": PAPER, "lw": 1.2}
            self.ax.add_patch(Rectangle(place, cell, cell, **style))
        box = Box(x, y, len(colours[0]) * cell, len(colours) * cell)
        if frame is not None:
            place = x, y + frame * cell
            style = {"fill": False, "ec": INK, "lw": 1.6, "zorder": 4}
            self.ax.add_patch(Rectangle(place, box.w, cell, **style))
        return box

    def matrix(self, x, y, values, colour, cell=15, frame=None, low=None):
        """Numbers as cells, from pale (the lowest, or ``low``) to dark; NaN is grey."""
        low = np.nanmin(values) if low is None else low
        shown = shades(values, colour, low, np.nanmax(values))
        return self.cells(x, y, shown, cell, frame)

    def vector(self, x, y, values, colour, name="", what="note", **options):
        """Numbers from 0 to 1 as small cells to the right of a name."""
        self.cells(x, y - 5.5, shades([values], colour, 0, 1), 11)
        self.text(x - 6, y, name, what, ha="right", **options)

    def allowed(self, x, y, mask, cell):
        """A mask as cells: grey is hidden."""
        colours = {True: tint(PURPLE, 0.3), False: HIDDEN}
        return self.cells(x, y, [[colours[bool(see)] for see in r] for r in mask], cell)


def shades(values, colour, low, high):
    """Each number as a mixture of paper and colour; NaN is grey: hidden."""
    share = (np.asarray(values, float) - low) / (high - low)
    return [
        [HIDDEN if np.isnan(s) else tint(colour, 0.06 + 0.84 * s) for s in row]
        for row in share
    ]


def soft_dictionary(tokens, words, query, features):
    """One query: its scores with all keys, their softmax, and the mean of the values.

    Parameters
    ----------
    tokens : sequence of str
        ``k`` words.
    words : array ``k m``
        The features of each word, from 0 to 1: its key, and also its value.
    query : array ``m``
    features : sequence of str
        Names of the ``m`` features.
    """
    scores = words @ query  # k
    weights = reference.softmax(scores)  # k
    left, right, top, row = 60, 186, 104, 17
    bottom, half = top + len(tokens) * row, 11 * len(features) / 2
    canvas = Canvas(bottom + 52)
    for x, y in ((left, 48), (right, 80)):
        for i, feature in enumerate(features):
            place = x + 11 * i + 5.5, y
            canvas.text(*place, feature, size=8, rotation=90, va="bottom")
    heads = {left + half: "keys", 129: "score", 164: "weight", right + half: "values"}
    for x, name in heads.items():
        canvas.text(x, top - 13, name, weight="bold")
    canvas.vector(
        left, 60, query / max(query), ORANGE, "query", family=MONO, weight="bold"
    )
    canvas.line((left + half, 68), (left + half, 80))
    for i, word in enumerate(tokens):
        y = top + (i + 0.5) * row
        canvas.vector(left, y, words[i], BLUE, word, family=MONO)
        canvas.text(129, y, f"{scores[i]:.0f}", family=MONO)
        bar = Rectangle((148, y - 4), 34 * weights[i], 8, fc=ORANGE, ec=ORANGE)
        canvas.ax.add_patch(bar)
        canvas.vector(right, y, words[i], BLUE)
    canvas.line((right + half, bottom + 1), (right + half, bottom + 20))
    note = "sum of weight × value"
    canvas.text(right + half - 8, bottom + 10, note, size=8.5, ha="right")
    out = weights @ words  # m
    canvas.vector(right, bottom + 32, out, GREEN, "out", "name", size=9)
    return canvas.fig


def small_attention(masked=True):
    """Queries, keys, values, mask, scores, weights and outputs of one head."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=(n, 3)) for n in (4, 5, 5))
    mask = np.broadcast_to(np.arange(5) < (4 if masked else 5), (4, 5))
    out, weights = reference.attention(q, k, v, mask)
    return q, k, v, mask, q @ k.T, weights, out


def attention(mask=True):
    """One head: a score stands where the row of a query meets the column of a key.

    Parameters
    ----------
    mask : bool
        Draw the step of the mask, and hide the last key.
    """
    q, k, v, allowed, scores, weights, out = small_attention(mask)
    canvas = Canvas(358 if mask else 323)
    keys = canvas.matrix(84, 12, k.T, ORANGE)
    canvas.label(167, 27, "k", "b h k d", "keys", ha="left")
    canvas.text(167, 53, "a column each", size=8, ha="left")
    canvas.matrix(14, 81, q, BLUE, frame=1)
    canvas.label(36.5, 52, "q", "b h q d", "queries")
    crossing = canvas.matrix(84, 81, scores, PURPLE, frame=1)
    canvas.label(167, 104 if mask else 78, "scores", "b h q k", ha="left")
    canvas.line(keys.bottom, crossing.top)
    canvas.line((59, 103.5), (84, 103.5))

    above, y = crossing, 159
    for step in ("/ √d", "mask", "softmax") if mask else ("/ √d", "softmax"):
        above = canvas.below(above.bottom, 121.5, y, 64, 21, step)
        if step == "mask":
            small = canvas.allowed(19, y - 3.5, allowed, 7)
            canvas.line(small.right, above.left)
            canvas.text(36.5, y + 33.5, "b h q k", "shape")
        y += 35
    shown = np.where(allowed, weights, np.nan)
    mixing = canvas.matrix(84, y, shown, PURPLE, frame=1, low=0)
    canvas.line(above.bottom, mixing.top)
    canvas.label(42, y + 18, "weights", "b h q k")
    canvas.text(42, y + 46, "rows sum to 1", size=8)

    values = canvas.matrix(189, y - 89, v, GREEN)
    canvas.label(211.5, y - 109, "v", "b h k d", "values")
    result = canvas.matrix(189, y, out, GREEN, frame=1)
    canvas.label(211.5, y + 71, "weights @ v", "b h q d")
    canvas.line((159, y + 22.5), (189, y + 22.5))
    canvas.line(values.bottom, result.top)
    canvas.text(121.5, y + 73, "framed: one query", size=8)
    if mask:
        canvas.text(121.5, y + 84, "grey: hidden", size=8)
    return canvas.fig


def encoder_block(norm_first=False):
    """Attention and feed-forward net, each with its residual and its norm.

    Parameters
    ----------
    norm_first : bool
        Norm before each branch instead of after each sum.
    """
    canvas, x, w = Canvas(352), 130, 122
    canvas.text(x, 12, "x", "name")
    above = x, 22
    for name, note, kind, sizes, norm in (
        ("attention", "several heads", "attention", "", "norm1"),
        ("ffn", "each position alone", "dense", "m → f → m", "norm2"),
    ):
        y = above[1]
        canvas.text(x + 7, y + 9, "b s m", "shape", ha="left")
        fork = x, y + 18
        if norm_first:
            above = canvas.below(above, x, y + 34, w, 24, norm, kind="norm").bottom
            y += 40
        box = canvas.below(above, x, y + 34, w, 46, name, note, kind, sizes)
        if name == "attention":
            canvas.mask_and("weights", "b h q k", box)
        plus = canvas.plus(x, y + 102)
        canvas.line(box.bottom, plus.top)
        canvas.residual(fork, plus)
        above = plus.bottom
        if not norm_first:
            above = canvas.below(above, x, y + 126, w, 24, norm, kind="norm").bottom
    canvas.text(x + 7, above[1] + 9, "b s m", "shape", ha="left")
    canvas.line(above, (x, above[1] + 24))
    return canvas.fig


def heads(n_heads=2):
    """One product makes q, k and v of all heads; each head attends by itself.

    Parameters
    ----------
    n_heads : int
        From 1 to 4.
    """
    if not 1 <= n_heads <= 4:
        raise ValueError(f"expected 1 to 4 heads to draw, got n_heads = {n_heads}")
    canvas, x, d = Canvas(424), 124, 2
    m, cell = n_heads * d, min(12, 208 / (3 * n_heads * d + 2))
    colours = [GREEN, PURPLE, ORANGE, BROWN][:n_heads]
    columns = [tint(colour, 0.55) for colour in colours for _ in range(d)]
    left = x - m * cell / 2  # of a matrix with m columns in the middle
    inputs = canvas.cells(left, 6, [[tint(GREY, 0.3)] * m] * 3, cell)
    canvas.label(inputs.right[0] + 10, 16, "x", "b s m", ha="left")
    box = canvas.below(inputs.bottom, x, 60, 92, 24, "qkv", kind="dense")
    canvas.line(box.bottom, (x, 116))
    canvas.text(x + 7, 96, "b s 3m", "shape", ha="left")
    starts = [left + (m + 1) * cell * i for i in (-1, 0, 1)]
    for name, start in zip("qkv", starts, strict=True):
        group = canvas.cells(start, 118, [columns] * 3, cell)
        canvas.text(group.top[0] - 12 * (name == "k"), 110, name, "name")

    joined = canvas.cells(left, 327, [columns] * 3, cell)
    canvas.label(joined.right[0] + 10, 338, "joined", "b q m", ha="left")
    room, rng = 236 / n_heads, np.random.default_rng(1)
    for i, colour in enumerate(colours):
        at, inside = x + room * (i - (n_heads - 1) / 2), (i + 0.5) * d * cell
        card = one_head(canvas, at, room, i + 1, colour, rng)
        for j, start in enumerate(starts):
            begin = start + inside, 120 + 3 * cell
            canvas.line(begin, (at + 14 * (j - 1), card.y), colour=colour)
        canvas.line(card.bottom, (left + inside, 325), colour=colour)
    box = canvas.below(joined.bottom, x, 378, 92, 24, "out", kind="dense")
    canvas.line(box.bottom, (x, 420))
    canvas.text(x + 7, 411, "b q m", "shape", ha="left")
    return canvas.fig


def one_head(canvas, x, room, number, colour, rng):
    """A card around ``x`` with the weights of one head."""
    card = Box(x - room / 2 + 5, 196, room - 10, 97)
    canvas.frame(card, colour)
    canvas.text(x, 208, "attention", "name", size=7.5 if room < 70 else 9)
    q, k = rng.normal(scale=1.3, size=(2, 3, 4))  # three positions, as in x
    canvas.matrix(x - 21, 219, reference.attention(q, k, k)[1], colour, 14, low=0)
    canvas.text(x, 272, f"head {number}", size=8.5)
    canvas.text(x, 284, "b q d", "shape", size=8.5)
    return card


def predictor():
    """From the features of each element to one output each."""
    canvas, x, w = Canvas(464), 134, 124
    canvas.text(x, 12, "x", "name")
    steps = [
        ("b s i", "embed", "", "dense", 24),
        ("b s m", "positions", "adds a code to each", "positions", 38),
        ("b s m", "encoder", "n_blocks blocks", "attention", 62),
        ("b s m", "hidden", "", "dense", 24),
        ("", "hidden_norm", "", "norm", 24),
        ("", "relu", "", "plain", 24),
        ("", "output", "", "output", 24),
    ]
    above = x, 22
    for shape, name, note, kind, h in steps:
        if shape:
            canvas.text(x + 7, above[1] + 14, shape, "shape", ha="left")
        stack = 8 * (name == "encoder")
        y = above[1] + (32 if shape else 16)
        for shift in range(stack, 0, -4):
            canvas.frame(Box(x - w / 2 + shift, y + stack - shift, w, h), ORANGE)
        canvas.line(above, (x, y))
        box = canvas.box(x, y + stack, w, h, name, note, kind)
        above = box.bottom
        if stack:
            canvas.mask_and("maps", "l b h q k", box)
    canvas.text(x + 7, above[1] + 14, "b s c", "shape", ha="left")
    canvas.line(above, (x, above[1] + 30))
    return canvas.fig


def vision_transformer():
    """Beside the predictor: new are the picture's patches, the token, and its way out."""
    canvas, x, w, cell = Canvas(474), 178, 88, 10
    boxes = predictor_column(canvas)
    for y, h in ((22, 103), (170, 28), (326, 46)):
        canvas.frame(Box(88, y, 156, h), GREY, 0.14)
        style = {"weight": "bold", "rotation": -90, "va": "center"}
        canvas.text(235, y + h / 2, "new", **style)
    canvas.text(x - 4, 10, "vision Transformer", weight="bold")
    seven = [tint(GREY, 0.9 if ink else 0.03) for ink in (1, 1, 1, 0, 0, 1, 0, 1, 0)]
    picture = canvas.cells(x - 18, 28, [seven[i : i + 3] for i in (0, 3, 6)], 12)
    canvas.label(x - 56, 38, "images", "b y x i")
    box = canvas.below(picture.bottom, x, 76, w, 22, "cut_patches")
    row = canvas.cells(x - 45, 110, [seven], cell)  # the patches as a sequence
    canvas.line(box.bottom, row.top)
    canvas.text(x + 7, 133, "b n (p p i)", "shape", size=8, ha="left")

    twins = {"embed": canvas.below(row.bottom, x, 142, w, 22, "embed", kind="dense")}
    row = canvas.cells(x - 45, 179, [[tint(BLUE, 0.5)] * 9], cell)
    canvas.line(twins["embed"].bottom, row.top)
    token = canvas.cells(x - 55, 179, [[ORANGE]], cell)
    canvas.text(token.x - 4, 184, "token", "name", size=9, ha="right")
    above = row.bottom
    for name, note, y, h, kind in (
        ("positions", "learned", 214, 36, "positions"),
        ("encoder", "pre-norm, GELU", 270, 42, "attention"),
    ):
        canvas.text(x + 7, y - 8, "b s m", "shape", size=8, ha="left")
        twins[name] = canvas.below(above, x, y, w, h, name, note, kind)
        above = twins[name].bottom
    rest = canvas.cells(x - 45, 335, [[tint(GREY, 0.1)] * 9], cell)
    canvas.line(above, rest.top)
    first = canvas.cells(x - 55, 335, [[ORANGE]], cell)
    canvas.text(first.bottom[0] + 6, 361, "x[:, 0]", "name", size=9, ha="left")
    turn = (first.bottom[0], 384), (x, 384)
    twins["output"] = canvas.box(x, 422, w, 22, "output", kind="output")
    canvas.line(first.bottom, *turn, twins["output"].top)
    canvas.text(x + 7, 402, "b m", "shape", size=8, ha="left")
    canvas.line(twins["output"].bottom, (x, 462))
    canvas.text(x + 7, 454, "b c", "shape", size=8, ha="left")
    for name, twin in twins.items():
        canvas.line(boxes[name].right, twin.left, head=False, dashed=True)
    return canvas.fig


def predictor_column(canvas):
    """The predictor in a narrow column; its boxes by their names."""
    x, boxes = 42, {}
    canvas.text(x, 10, "predictor", weight="bold")
    canvas.text(x, 118, "x", "name")
    canvas.text(x + 7, 133, "b s i", "shape", size=8, ha="left")
    above = x, 126
    for name, y, h, kind in (
        ("embed", 142, 22, "dense"),
        ("positions", 214, 36, "positions"),
        ("encoder", 270, 42, "attention"),
        ("hidden", 326, 22, "dense"),
        ("hidden_norm", 358, 22, "norm"),
        ("relu", 390, 22, "plain"),
        ("output", 422, 22, "output"),
    ):
        boxes[name] = canvas.below(above, x, y, 78, h, name, kind=kind)
        above = boxes[name].bottom
    canvas.text(x + 7, 454, "b s c", "shape", size=8, ha="left")
    canvas.line(above, (x, 462))
    return boxes


def mask():
    """Padding and causal mask together decide which scores reach the softmax."""
    canvas, left, right = Canvas(318), 58, 178
    key, query = np.arange(5), np.arange(5)[:, None]
    padding, causal = np.broadcast_to(key < 4, (5, 5)), key <= query
    q, k = np.random.default_rng(3).normal(size=(2, 5, 3))
    scores = canvas.matrix(left - 27.5, 38, q @ k.T, PURPLE, 11)
    canvas.label(left, 11, "scores", "b h q k")

    both = canvas.plus(right, 121, "&")
    for x, word, shape, given, end in (
        (144, "padding", "b 1 1 k", padding, both.left),
        (212, "causal", "q k", causal, both.right),
    ):
        canvas.text(x, 11, word)
        canvas.text(x, 24, shape, "shape")
        grid = canvas.allowed(x - 27.5, 38, given, 11)
        canvas.line(grid.bottom, (x, 121), end)
    together = canvas.allowed(right - 27.5, 145.5, padding & causal, 11)
    canvas.line(both.bottom, together.top)
    canvas.label(right, 213, "mask", "b 1 q k")

    box = canvas.below(scores.bottom, left, 160, 104, 26, "masked_softmax")
    canvas.line(together.left, box.right)
    weights = reference.attention(q, k, k, padding & causal)[1]
    shown = np.where(padding & causal, weights, np.nan)
    result = canvas.matrix(left - 27.5, 216, shown, PURPLE, 11, low=0)
    canvas.line(box.bottom, result.top)
    canvas.label(left, 284, "weights", "b h q k")
    canvas.text(104, 250, "grey: hidden, weight 0", size=8.5, ha="left")
    canvas.text(104, 264, "1: shared by all heads", size=8.5, ha="left")
    return canvas.fig


def training_loop(basic=False):
    """Forward on the left, backward on the right, once for every batch.

    Parameters
    ----------
    basic : bool
        Only the batch, the model, the loss and the optimiser: no schedule of the
        learning rate, no clipping, no validation; one prediction per example.
    """
    canvas, left, right = Canvas(218 if basic else 298), 94, 200
    canvas.text(left, 12, "inputs", "name")
    canvas.text(left + 7, 34, "b i" if basic else "b s i", "shape", ha="left")
    model = canvas.below((left, 22), left, 52, 76, 40, "model", "forward", "attention")
    canvas.text(left + 7, 108, "b c" if basic else "b s c", "shape", ha="left")
    loss_fn = canvas.below(model.bottom, left, 130, 76, 40, "loss_fn", "", "output")
    canvas.text(21, 150, "labels", "name", size=9)
    canvas.text(21, 162, "b" if basic else "b s", "shape", size=8)
    canvas.line((40, 150), loss_fn.left)
    canvas.line(loss_fn.bottom, (left, 200))
    canvas.text(left, 209, "loss", "name")
    step = canvas.box(right, 52, 88, 40, "optimizer", "Adam", "dense")
    canvas.line(step.left, model.right)
    above = step
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
    return canvas.fig


def set_model():
    """A set through the model: nothing depends on the order of its elements."""
    canvas, x, w = Canvas(392), 124, 228
    places, odd = x + 46 * (np.arange(5) - 2), 3

    def arrows(above, y, shape):
        for place in places:
            canvas.line((place, above), (place, y))
        canvas.text(x + 23, (above + y) / 2 - 2, shape, "shape")

    for i, place in enumerate(places):
        canvas.frame(Box(place - 15, 6, 30, 30), ORANGE if i == odd else GREY)
        digit = {"family": "DejaVu Serif", "style": "italic", "size": 17}
        canvas.text(place, 21, "7" if i == odd else "4", **digit)
    arrows(36, 60, "b s i")
    canvas.box(x, 60, w, 24, "embed", kind="dense")
    arrows(84, 108, "b s m")
    canvas.frame(Box(x - w / 2, 108, w, 86), ORANGE)
    canvas.text(x, 121, "encoder", "name")
    for start in places:
        for i, end in enumerate(places):  # the odd one compares: what it sees is orange
            style = (ORANGE, 1.4) if i == odd else (GREY, 0.6)
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
    return canvas.fig


class Part(NamedTuple):
    """A part of the map: what it is, its name in the code, its kind, and its place.

    The place is the middle and the top, then width and height.
    """

    term: str
    name: str
    kind: str
    x: float
    y: float
    w: float
    h: float

    @property
    def key(self):
        """Its name, and that of its half if it is the decoder."""
        return self.name if self.x < DECODER.x else f"decoder {self.name}"

    @property
    def box(self):
        return Box(self.x - self.w / 2, self.y, self.w, self.h)


ENCODER, DECODER = Box(6, 102, 112, 220), Box(130, 102, 112, 278)
PARTS = [  # the index of the book draws them, too, with links
    Part("embedding", "embed", "dense", 66, 42, 92, 20),
    Part("positions", "positions", "positions", 66, 74, 92, 20),
    Part("attention", "attention", "attention", 66, 114, 92, 54),
    Part("softmax", "scores", "plain", 44, 136, 41, 24),
    Part("mask", "mask", "plain", 89, 136, 37, 24),
    Part("residual", "+", "plain", 66, 177, 16, 16),
    Part("norm", "norm1", "norm", 66, 202, 92, 18),
    Part("feed-forward", "ffn", "dense", 66, 240, 92, 20),
    Part("residual", "+", "plain", 66, 269, 16, 16),
    Part("norm", "norm2", "norm", 66, 294, 92, 18),
    Part("output", "output", "output", 66, 402, 92, 20),
    Part("embedding", "embed", "dense", 184, 42, 92, 20),
    Part("positions", "positions", "positions", 184, 74, 92, 20),
    Part("causal attention", "attention", "attention", 184, 114, 92, 20),
    Part("residual", "+", "plain", 184, 143, 16, 16),
    Part("norm", "norm1", "norm", 184, 168, 92, 18),
    Part("cross-attention", "cross", "attention", 184, 206, 92, 20),
    Part("residual", "+", "plain", 184, 235, 16, 16),
    Part("norm", "cross_norm", "norm", 184, 260, 92, 18),
    Part("feed-forward", "ffn", "dense", 184, 298, 92, 20),
    Part("residual", "+", "plain", 184, 327, 16, 16),
    Part("norm", "norm2", "norm", 184, 352, 92, 18),
    Part("output", "output", "output", 184, 402, 92, 20),
]


def map_lines():
    """The arrows of the map, each as its points."""
    lines = [[(66, 332), (124, 332), (124, 216), (138, 216)]]  # encoder to decoder
    for x in (66, 184):
        boxes = [part.box for part in PARTS if part.x == x]
        ends = [(x, 32), *(p for box in boxes for p in (box.top, box.bottom)), (x, 438)]
        lines += [ends[i : i + 2] for i in range(0, len(ends), 2)]
    for fork, y in ((107, 185), (230, 277)):
        lines.append([(66, fork), (14, fork), (14, y), (58, y)])
    for fork, y in ((107, 151), (196, 243), (288, 335)):
        lines.append([(184, fork), (236, fork), (236, y), (192, y)])
    return lines


def transformer():
    """The whole Transformer: the encoder on the left, the decoder on the right."""
    canvas = Canvas(456)
    canvas.frame(ENCODER, GREY, 0.05)
    canvas.frame(DECODER, GREY, 0.05)
    for x, name, first, last in (
        (66, "encoder", "inputs", "one per element"),
        (184, "decoder", "outputs so far", "next token"),
    ):
        canvas.text(x, 10, name, "name")
        canvas.text(x, 25, first)
        canvas.text(x, 447, last)
    for x, y in ((33, 331), (153, 389)):
        canvas.text(x, y, "n_blocks times", size=7.5)
    for points in map_lines():
        canvas.line(*points)
    for part in PARTS:
        x, y = part.box.middle
        if part.name == "+":
            canvas.plus(x, y)
            continue
        canvas.frame(part.box, KINDS[part.kind])
        y -= 16 * (part.key == "attention")  # the rest is inside of it
        canvas.text(x, y, part.name, "name", size=9 if part.w < 50 else 10)
    return canvas.fig


def numbers(canvas, x, y, values, w=33, h=15):
    """A matrix with its numbers, one decimal each; blue is positive, orange negative."""
    top = np.abs(values).max() or 1
    for (i, j), value in np.ndenumerate(values):
        colour = tint(BLUE if value > 0 else ORANGE, 0.5 * abs(value) / top)
        place = x + j * w, y + i * h
        style = {"fc": colour, "ec": PAPER, "lw": 1.2}
        canvas.ax.add_patch(Rectangle(place, w, h, **style))
        text = f"{value + 0.0:.1f}".replace("-", "−")
        canvas.text(place[0] + w / 2, place[1] + h / 2, text, size=8.5)
    return Box(x, y, w * values.shape[1], h * len(values))


def walk_through(tokens, ids, embedded, placed, encoded, scores, n_blocks=2):
    """A few words on their way through a predictor, with the numbers of every stage.

    Parameters
    ----------
    tokens : list of str
        Up to four.
    ids : list of int
        Their numbers in the vocabulary.
    embedded, placed, encoded : arrays ``s m``
        The rows of the embedding, with positions added, and after the encoder; up to
        five features.
    scores : array ``s c``
    n_blocks : int
    """
    row, gap, s = 15, 50, len(tokens)
    stages = [
        ("embed", "a row of a table", "dense", embedded, "b s m"),
        ("positions", "adds a code", "positions", placed, "b s m"),
        ("encoder", f"{n_blocks} blocks", "attention", encoded, "b s m"),
        ("output", "c scores each", "output", scores, "b s c"),
    ]
    canvas = Canvas(30 + s * row + len(stages) * (gap + s * row))
    x, y = WIDTH / 2 + 10, 24
    canvas.text(x - 22, 11, "token", size=8.5)
    canvas.text(x + 28, 11, "id", size=8.5)
    for i, (token, number) in enumerate(zip(tokens, ids, strict=True)):
        middle = y + (i + 0.5) * row
        canvas.text(x - 22, middle, token)
        canvas.text(x + 28, middle, str(number), "name", size=9)
    canvas.text(WIDTH - 26, y + s * row / 2, "b s", "shape")
    for name, note, kind, values, shape in stages:
        y += s * row
        canvas.line((x, y + 2), (x, y + 12))
        canvas.frame(Box(x - 88, y + 12, 176, 24), KINDS[kind])
        canvas.text(x - 45, y + 24, name, "name")
        canvas.text(x + 40, y + 24, note, size=8.5)
        canvas.line((x, y + 36), (x, y + gap - 2))
        y += gap
        w = 33 * values.shape[1]
        numbers(canvas, x - w / 2, y, values)
        for i, token in enumerate(tokens):
            canvas.text(x - 86, y + (i + 0.5) * row, token, size=8.5)
        canvas.text(WIDTH - 26, y + s * row / 2, shape, "shape")
    return canvas.fig


def clocks(table, pairs):
    """Pairs of features of a position code as clocks, a row per pair.

    Parameters
    ----------
    table : array ``s m``
        Codes of the positions 0, 1, …, up to six; sines even, cosines odd.
    pairs : dict of int to str
        First feature of each pair, and a note that says how fast it turns.
    """
    row, radius = 62, 13
    canvas = Canvas(40 + row * len(pairs))
    left = 20 + radius
    step = (WIDTH - 2 * left + 14) / (len(table) - 1)
    for j, (i, note) in enumerate(pairs.items()):
        y = 66 + row * j
        canvas.text(14, y - 26, f"features {i} and {i + 1}: {note}", ha="left")
        for position, code in enumerate(table):
            x = left - 7 + step * position
            style = {"ms": 2 * radius, "mfc": tint(PURPLE, 0.12), "mec": PURPLE}
            canvas.ax.plot(x, y, "o", mew=1.1, zorder=1, **style)
            end = x + 0.8 * radius * code[i], y - 0.8 * radius * code[i + 1]
            canvas.line((x, y), end, colour=INK)
    for position in range(len(table)):
        canvas.text(left - 7 + step * position, 26, str(position), size=8.5)
    canvas.text(WIDTH / 2, 11, "positions", "name")
    return canvas.fig


def paths():
    """How far it is from the first to the last of seven positions, in three layers."""
    canvas = Canvas(312)
    recurrent = [(i, 1, i + 1, 1) for i in range(6)]  # column and row, from and to
    inputs = [(i, 0, i, 1) for i in range(7)]
    draw_paths(canvas, 48, 30, 2, recurrent, inputs)
    windows = [
        (key, row, i, row + 1)
        for row in range(3)
        for i in range(7)
        for key in range(max(0, i - 2), i + 1)
    ]
    shortest = [(2 * row, row, 2 * row + 2, row + 1) for row in range(3)]
    draw_paths(canvas, 124, 27, 4, shortest, windows)
    everyone = [(key, 0, i, 1) for i in range(7) for key in range(7)]
    draw_paths(canvas, 252, 44, 2, [(0, 0, 6, 1)], everyone)
    for y, words in (
        (12, f"recurrent layer: {len(recurrent)} steps"),
        (105, f"convolutions of width 3: {len(shortest)} layers"),
    ):
        canvas.text(124, y, words)
    canvas.text(140, 233, "attention", "name", ha="right")
    canvas.text(142, 233, ": 1 layer", ha="left")
    for x, words in ((34, "first"), (214, "last")):
        canvas.text(x, 33, words, size=8)
    return canvas.fig


def draw_paths(canvas, y, gap, rows, shortest, others):
    """Rows of seven positions; the shortest path from first to last is orange."""

    def place(column, row):
        return np.array([34 + 30 * column, y + gap * row])

    for links, colour in ((others, HIDDEN), (shortest, ORANGE)):
        for link in links:
            start, end = place(*link[:2]), place(*link[2:])
            way = (end - start) / np.hypot(*(end - start))
            ends = tuple(start + 5.5 * way), tuple(end - 5.5 * way)
            canvas.line(*ends, colour=colour, head=colour == ORANGE)
    on_path = {end for link in shortest for end in (link[:2], link[2:])}
    for column, row in np.ndindex(7, rows):
        colour = ORANGE if (column, row) in on_path else EDGE
        style = {"ms": 9, "mfc": tint(colour, 0.3), "mec": colour, "zorder": 4}
        canvas.ax.plot(*place(column, row), "o", **style)


def minus(number):
    """Two digits, with a minus sign as in formulas."""
    return f"{number:.2f}".replace("-", "−")


def chain_rule():
    """A neuron: forward, value by value, and backward, derivative by derivative."""
    canvas, x = Canvas(314), 124
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
            canvas.frame(Box(x - 70, below, 140, 40), GREY)
            canvas.text(x, below + 13, operation)
            canvas.text(x, below + 28, f"derivative {minus(own[i])}", colour=ORANGE)
            above = below + 40
    canvas.text(x, below + 10, "loss", "name")
    return canvas.fig


def next_token(words=("def", " add", "(", "a"), candidates=None):
    """Writing: the model gives probabilities, one token is drawn and appended.

    Parameters
    ----------
    words : sequence of str
        The tokens so far, up to five.
    candidates : dict of str to float, optional
        Next tokens and their probabilities, up to four; the first one is drawn.
    """
    candidates = candidates or {",": 0.55, ")": 0.25, "=": 0.15, ":": 0.05}
    canvas, x = Canvas(262), 112
    canvas.text(22, 24, "tokens", "name", size=9)
    w = 32
    for i, word in enumerate([*words, "?"]):
        box = Box(50 + i * (w + 3), 13, w, 22)
        canvas.frame(box, HIDDEN if word == "?" else BLUE)
        canvas.text(*box.middle, word.strip(), family=MONO)
    drawn = box
    model = canvas.below((x, 35), x, 55, 124, 40, "model", "b s → b s c")
    canvas.text(x + 7, 109, "logits at the end", size=8.5, ha="left")
    chosen = canvas.below(model.bottom, x, 122, 124, 24, "softmax", kind="attention")
    canvas.line(chosen.bottom, (x, 160))
    for i, (word, p) in enumerate(candidates.items()):
        y = 168 + 17 * i
        canvas.text(x - 42, y, word, family=MONO)
        bar = {"fc": GREEN if i == 0 else tint(GREEN, 0.4), "ec": PAPER}
        canvas.ax.add_patch(Rectangle((x - 30, y - 6), 90 * p, 12, **bar))
        canvas.text(x - 24 + 90 * p, y, f"{p:.2f}", size=8.5, ha="left")
    right = drawn.middle[0] + 7
    canvas.line((x + 52, 168), (right, 168), (right, 36))
    canvas.text(right - 4, 180, "draw one,", size=8.5)
    canvas.text(right - 4, 191, "append it", size=8.5)
    canvas.text(x, 248, "and again, with one token more", size=8.5)
    return canvas.fig


def language_model(n_blocks=4):
    """From tokens to logits of the next token at every position.

    Parameters
    ----------
    n_blocks : int
    """
    canvas, x, w = Canvas(330), 134, 124
    canvas.text(x, 12, "tokens", "name")
    steps = [
        ("b s", "embed", "a row of E each", "dense", 38),
        ("b s m", "positions", "adds a vector to each", "positions", 38),
        ("b s m", "decoder", f"{n_blocks} blocks", "attention", 62),
        ("b s m", "logits", "products with E", "output", 38),
    ]
    above = x, 22
    for shape, name, note, kind, h in steps:
        canvas.text(x + 7, above[1] + 10, shape, "shape", ha="left")
        stack = 8 * (name == "decoder")
        y = above[1] + 24
        for shift in range(stack, 0, -4):
            canvas.frame(Box(x - w / 2 + shift, y + stack - shift, w, h), ORANGE)
        canvas.line(above, (x, y))
        box = canvas.box(x, y + stack, w, h, name, note, kind)
        above = box.bottom
        if stack:
            seen = canvas.allowed(14, box.y + 6, np.tri(5, dtype=bool), 7)
            canvas.line((seen.right[0], seen.middle[1]), (box.x, seen.middle[1]))
            canvas.text(seen.middle[0] + 4, box.y + 50, "causal", size=8.5)
    canvas.text(x + 7, above[1] + 12, "b s c", "shape", ha="left")
    canvas.line(above, (x, above[1] + 26))
    return canvas.fig


def key_value_cache(known=5):
    """One step with the cache: the new token's query meets all keys that are kept.

    Parameters
    ----------
    known : int
        Positions in the cache before the step.
    """
    canvas, cell, n = Canvas(268), 15, 3
    left, top = 84, 26
    wide = (known + 1) * cell

    def kept(y, name, colour):
        old = [[tint(colour, 0.3)] * known + [tint(colour, 0.9)]] * n
        box = canvas.cells(left, y, old, cell)
        canvas.text(left - 8, y + n * cell / 2, name, "name", ha="right")
        canvas.line((left + wide + 26, y + 22.5), (left + wide + 2, y + 22.5))
        canvas.text(left + wide + 48, y + 22.5, "written", size=8.5)
        return box

    canvas.text(left + known * cell / 2, top - 12, "kept", size=8.5)
    canvas.text(left + wide + 6, top - 12, "new token", size=8.5)
    keys = kept(top, "k", ORANGE)
    shown = [[tint(BLUE, 0.9)] * n]
    query = canvas.cells(16, 98, shown, cell)
    canvas.text(query.middle[0], 88, "q", "name")
    canvas.text(query.middle[0], 124, "of the new", size=8.5)
    canvas.text(query.middle[0], 135, "token only", size=8.5)
    row = canvas.cells(left, 98, [[tint(PURPLE, 0.6)] * (known + 1)], cell)
    canvas.line(keys.bottom, row.top)
    canvas.line(query.right, row.left)
    canvas.text(left + wide + 8, 105.5, "weights", "name", ha="left", size=9)
    values = kept(140, "v", GREEN)
    canvas.line(row.bottom, values.top)
    out = canvas.cells(values.middle[0] - 22.5, 212, [[tint(GREEN, 0.9)] * n], cell)
    canvas.line(values.bottom, out.top)
    canvas.text(out.right[0] + 8, 219.5, "one output", size=9, ha="left")
    canvas.text(124, 250, "no old token is computed again", size=8.5)
    return canvas.fig


def cross_attention():
    """Queries from the target, keys and values from the source: a rectangular map."""
    canvas, (q, k, v, mask, _, weights, out) = Canvas(350), small_attention()
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
    return canvas.fig


def translator():
    """The encoder reads the source; every decoder block looks at what it has read."""
    canvas, left, right, w = Canvas(398), 64, 184, 96
    canvas.frame(Box(right - 58, 138, 116, 178), GREY, 0.05)
    for x, name, shape in ((left, "source", "b k"), (right, "target", "b s")):
        canvas.text(x, 12, name, "name")
        canvas.text(x + 7, 32, shape, "shape", ha="left")
        box = canvas.below((x, 22), x, 44, w, 22, "embed", kind="dense")
        canvas.text(x + 7, 78, f"{shape} m", "shape", ha="left")
        box = canvas.below(box.bottom, x, 90, w, 22, "positions", kind="positions")
        if name == "source":
            note = "hides padding", "attention"
            encoder = canvas.below(box.bottom, x, 148, w, 42, "encoder", *note)
    box = canvas.below(
        box.bottom, right, 148, w, 42, "attention", "causal", "attention"
    )
    note = "hides padding", "attention"
    cross = canvas.below(box.bottom, right, 206, w, 42, "cross", *note)
    ffn = canvas.below(cross.bottom, right, 264, w, 22, "ffn", kind="dense")
    canvas.text(right, 302, "n_blocks times", size=8.5)
    canvas.line(encoder.bottom, (left, cross.middle[1]), cross.left)
    canvas.text(left + 7, 212, "b k m", "shape", ha="left")
    canvas.line(ffn.bottom, (right, 294), head=False)
    box = canvas.below((right, 310), right, 336, w, 22, "logits", kind="output")
    canvas.text(right + 7, 370, "b s c", "shape", ha="left")
    canvas.line(box.bottom, (right, 390))
    return canvas.fig


def shared_vector():
    """Three outputs to which one long vector is added, and then the norm of the sums."""
    canvas = Canvas(138)
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
    return canvas.fig


def six_operations():
    """What a weight does in a training step: three rows of two operations each."""
    canvas = Canvas(212)
    rows = {  # title: last box, arrows between the boxes, and the one that is computed
        "forward: add x · w = 6 to y": ("y", [(0, 1), (1, 2)], 2),
        "backward: add x · dy = 15 to w's gradient": ("dy = 5", [(0, 1), (2, 1)], 1),
        "backward: add w · dy = 10 to x's gradient": ("dy = 5", [(2, 1), (1, 0)], 0),
    }
    for row, (title, (last, arrows, target)) in enumerate(rows.items()):
        y = 22 + 64 * row
        canvas.text(8, y - 11, title, ha="left")
        kinds = ["attention" if i == target else "plain" for i in range(3)]
        boxes = [
            canvas.box(34 + 66 * i, y, 50, 26, name, kind=kinds[i])
            for i, name in enumerate(("x = 3", "w = 2", last))
        ]
        for a, b in arrows:
            ends = (boxes[a].right, boxes[b].left)
            canvas.line(*(ends if a < b else (boxes[a].left, boxes[b].right)))
        canvas.text(215, y + 13, "+ 2" if row else "2", weight="bold", size=11)
    canvas.text(215, 203, "= 6", weight="bold", size=11)
    canvas.text(8, 203, "floating-point operations", ha="left")
    return canvas.fig


def three_kinds_of_data():
    """A table's row, a signal and a text, each cut into tokens; padding is dashed."""
    canvas = Canvas(216)
    rng = np.random.default_rng(3)

    def tokens(y, words, hidden=0):
        for i, word in enumerate(words):
            box = Box(8 + 34 * i, y, 30, 22)
            canvas.frame(box, HIDDEN if i >= len(words) - hidden else BLUE)
            canvas.text(*box.middle, word, "name", size=8.5)

    canvas.text(8, 12, "a table: one number is a token", ha="left", weight="bold")
    for i, name in enumerate(("alcohol", "acid", "ash", "…")):
        canvas.text(23 + 34 * i, 26, name, size=8)
    tokens(34, ("14.2", "1.7", "2.4", "…"))

    canvas.text(8, 76, "a signal: four weeks are a token", ha="left", weight="bold")
    x = np.linspace(0, 166, 60)
    y = 104 - x / 14 - 7 * np.sin(x / 11) + rng.normal(0, 0.7, 60)
    canvas.line(*zip(8 + x, y, strict=True), colour=ORANGE, head=False)
    tokens(118, ("1–4", "5–8", "9–12", "13–16", "…"))

    canvas.text(8, 160, "a text: a character is a token", ha="left", weight="bold")
    canvas.text(8, 174, "the last two are padding", ha="left", size=8)
    tokens(182, ("i", "f", "_", "x", ":", "", ""), hidden=2)
    return canvas.fig


def ways_to_share():
    """Who holds what on four devices: full squares are held, dashed parts are not."""
    canvas = Canvas(264)
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
    return canvas.fig
