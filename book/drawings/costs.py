"""Drawings of the chapter *What attention costs*."""

import numpy as np

from canvas import drawing, tint
from helpers.show.plots import EDGE, HIDDEN, ORANGE


@drawing(312)
def paths(canvas):
    """How far it is from the first to the last of seven positions, in three layers."""
    recurrent = [(i, 1, i + 1, 1) for i in range(6)]  # column and row, from and to
    inputs = [(i, 0, i, 1) for i in range(7)]
    draw_paths(canvas, 48, 30, 2, recurrent, inputs)
    near = [(key, i) for i in range(7) for key in range(max(0, i - 2), i + 1)]
    windows = [(key, row, i, row + 1) for row in range(3) for key, i in near]
    shortest = [(2 * row, row, 2 * row + 2, row + 1) for row in range(3)]
    draw_paths(canvas, 124, 27, 4, shortest, windows)
    everyone = [(key, 0, i, 1) for i in range(7) for key in range(7)]
    draw_paths(canvas, 252, 44, 2, [(0, 0, 6, 1)], everyone)
    canvas.text(124, 12, f"recurrent layer: {len(recurrent)} steps")
    canvas.text(124, 105, f"convolutions of width 3: {len(shortest)} layers")
    canvas.text(140, 233, "attention", "name", ha="right")
    canvas.text(142, 233, ": 1 layer", ha="left")
    canvas.text(34, 33, "first", size=8)
    canvas.text(214, 33, "last", size=8)


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


@drawing(212)
def six_operations(canvas):
    """What a weight does in a training step: three rows of two operations each."""
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
            start, end = ("right", "left") if a < b else ("left", "right")
            canvas.line(getattr(boxes[a], start), getattr(boxes[b], end))
        canvas.text(215, y + 13, "+ 2" if row else "2", weight="bold", size=11)
    canvas.text(215, 203, "= 6", weight="bold", size=11)
    canvas.text(8, 203, "floating-point operations", ha="left")
