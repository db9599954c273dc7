"""Drawings of the chapter *The Transformer of today*."""

import numpy as np
from matplotlib.patches import Arc

from canvas import KINDS, Box, drawing, tint
from helpers.show.plots import BLUE, EDGE, GREEN, HIDDEN, INK, ORANGE, PURPLE

PARTS = {  # from bottom to top: what it is, height, gap below; words of 2019, of today
    "embed": ("dense", 19, 11, "", ""),
    "positions": ("positions", 32, 11, "learned, added", "nothing is added"),
    "norm1": ("norm", 32, 25, "LayerNorm", "RMSNorm"),
    "attention": ("attention", 71, 11, "a key and a value/for each query head/biases",
        "q and k rotated,/normed in some/k and v shared/no biases"),
    "norm2": ("norm", 32, 19, "LayerNorm", "RMSNorm"),
    "ffn": ("dense", 45, 11, "GELU/biases", "SwiGLU or experts/no biases"),
    "norm, output": ("norm", 32, 14, "LayerNorm", "RMSNorm"),
}  # fmt: skip


@drawing(478)
def two_blocks(canvas):
    """GPT-2 beside a model of today, from bottom to top; changes are coloured."""
    for x, title, new in ((60, "GPT-2, 2019", False), (188, "today", True)):
        canvas.text(x, 9, title, weight="bold")
        canvas.frame(Box(x - 58, 79, 116, 299), EDGE, 0.05)
        canvas.text(x - 31, 370, "n_blocks ×", "name", size=8)
        canvas.text(x, 470, "tokens", "name")
        below = x, 462
        for name, (kind, h, gap, *words) in PARTS.items():
            box = Box(x - 50, below[1] - gap - h, 100, h)
            canvas.line(below, box.bottom)
            gone, changed = new and name == "positions", new and words[0] != words[1]
            canvas.frame(box, HIDDEN if gone else KINDS[kind] if changed else EDGE)
            lines = f"{name}/{words[new]}".strip("/").split("/")[gone:]
            for i, line in enumerate(lines):
                y = box.middle[1] + 13 * (i - len(lines) / 2 + 0.5)
                canvas.text(x, y, line, "name" if line == name else "note", size=8.5)
            below = box.top
            if name in ("norm1", "norm2"):
                fork = x, box.bottom[1] + 11
            elif name in ("attention", "ffn"):
                plus = canvas.plus(x, below[1] - 20)
                canvas.line(below, plus.bottom)
                canvas.line(fork, (x + 54, fork[1]), (x + 54, plus.y + 7.5), plus.right)
                below = plus.top
        canvas.line(below, (x, 31))
        canvas.text(x, 25, "logits", "name")


@drawing(166)
def grouped_heads(canvas):
    """Four query heads with keys and values of their own, in pairs, or all together."""
    columns = {"multi-head": 4, "grouped": 2, "multi-query": 1}
    for y, name in ((45, "q"), (100, "k, v"), (138, "cache")):
        canvas.text(4, y, name, "name", size=9, ha="left")
    for x, (name, n) in zip((72, 143, 214), columns.items(), strict=True):
        canvas.text(x, 10, name, size=8.5, weight="bold")
        canvas.text(x, 23, f"{n} for 4", "small")
        for group in np.split(x + 16 * (np.arange(4) - 1.5), n):
            shared = Box(group.mean() - 6.5, 93, 13, 15)
            canvas.frame(shared, ORANGE, 0.4)
            for q in group:
                canvas.frame(Box(q - 6.5, 38, 13, 15), BLUE, 0.4)
                canvas.line((q, 53), shared.top, head=False)
        bar = [ORANGE] * n + [tint(HIDDEN, 0.4)] * (4 - n)
        canvas.cells(x - 31, 131, [bar], 15.5, h=14)
        canvas.text(x, 156, f"{25 * n} %", "small")


def dial(canvas, x, y, r, hands):
    """A circle with an arrow for each angle, counted from the right, by colour."""
    canvas.ax.plot(x, y, "o", ms=2 * r, mfc=tint(PURPLE, 0.1), mec=HIDDEN, zorder=0)
    for colour, t in hands.items():
        canvas.line((x, y), (x + r * np.cos(t), y - r * np.sin(t)), colour=colour)


@drawing(306)
def rotation(canvas):
    """Pairs turn by their position; the angle from k to q depends on their distance."""
    canvas.text(148, 10, "position", "small")
    canvas.texts("small", (6, 48, "fast pair"), (6, 92, "slow pair"), ha="left")
    for i, x in enumerate((82, 126, 170, 214)):
        canvas.text(x, 24, str(i), "small")
        dial(canvas, x, 48, 16, {PURPLE: 0.3 + 0.8 * i})
        dial(canvas, x, 92, 16, {PURPLE: 0.3 + 0.15 * i})
    canvas.text(124, 130, "fast pair: the same distance, the same angle", "small")
    for x, k in ((68, 0), (180, 1)):
        hands = {ORANGE: 0.3 + 0.8 * k, BLUE: 0.9 + 0.8 * (k + 2)}
        dial(canvas, x, 176, 30, hands)
        end, start = -np.rad2deg([*hands.values()])
        canvas.ax.add_patch(Arc((x, 176), 26, 26, theta1=start, theta2=end, ec=INK))
        canvas.text(x - 6, 219, f"k at {k}", "small", colour=ORANGE, ha="right")
        canvas.text(x + 6, 219, f"q at {k + 2}", "small", colour=BLUE, ha="left")
    canvas.text(124, 248, "feature i turns with feature i + d/2 (here d = 8)", "small")
    canvas.text(45, 289, "q, k", "name", ha="right")
    hues = [tint(hue, 0.55) for hue in (BLUE, ORANGE, GREEN, PURPLE)]
    canvas.cells(52, 280, [2 * hues], 18)
    for x, y in ((61, 276), (79, 272), (97, 268), (115, 264)):
        canvas.line((x, 280), (x, y), (x + 72, y), (x + 72, 280), head=False)


@drawing(246)
def experts(canvas):
    """The router chooses two of four experts; their weighted outputs are added."""
    canvas.text(124, 9, "one token", "small")
    words = "router", "top 2 of 4", "attention"
    router = canvas.below((124, 16), 124, 38, 210, 40, *words)
    plus = canvas.plus(124, 198)
    ends = {1: ("times 0.7", plus.left, "left"), 3: ("times 0.3", plus.right, "right")}
    for i, place in enumerate((34, 94, 154, 214)):
        box, (words, end, ha) = Box(place - 27, 104, 54, 40), ends.get(i, ("",) * 3)
        canvas.frame(box, BLUE if words else HIDDEN)
        canvas.text(place, 117, f"expert {i}", size=8)
        canvas.text(place, 131, "computes" if words else "idle", size=8)
        if words:
            canvas.line((place, router.bottom[1]), box.top)
            canvas.line(box.bottom, (place, 198), end)
            canvas.text(place - 6 * i + 12, 168, words, "small", ha=ha)
    canvas.line(plus.bottom, (124, 234))
