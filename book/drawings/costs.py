"""Drawings of the chapters *What attention costs* and *More than one device*."""

import numpy as np

from canvas import Box, drawing, shades, tint
from helpers.show.plots import BLUE, EDGE, HIDDEN, ORANGE


@drawing(312)
def paths(canvas):
    """How far it is from the first to the last of seven positions, in three layers."""
    inputs = [(i, 0, i, 1) for i in range(7)]  # column and row, from and to
    recurrent = [(i, 1, i + 1, 1) for i in range(6)]
    near = [(key, i) for i in range(7) for key in range(max(0, i - 2), i + 1)]
    windows = [(key, row, i, row + 1) for row in range(3) for key, i in near]
    shortest = [(2 * row, row, 2 * row + 2, row + 1) for row in range(3)]
    everyone = [(key, 0, i, 1) for i in range(7) for key in range(7)]
    draw_paths(canvas, 48, 30, 2, recurrent, inputs)
    draw_paths(canvas, 124, 27, 4, shortest, windows)
    draw_paths(canvas, 252, 44, 2, [(0, 0, 6, 1)], everyone)
    canvas.text(124, 12, f"recurrent layer: {len(recurrent)} steps")
    canvas.text(124, 105, f"convolutions of width 3: {len(shortest)} layers")
    canvas.text(140, 233, "attention", "name", ha="right")
    canvas.text(142, 233, ": 1 layer", ha="left")
    canvas.texts("note", (34, 33, "first"), (214, 33, "last"), size=8)


def draw_paths(canvas, y, gap, rows, shortest, others):
    """Rows of seven positions; the shortest path from first to last is orange."""
    for links, colour in ((others, HIDDEN), (shortest, ORANGE)):
        for a, row, b, below in links:
            start, end = (34, y) + np.array([[a, row], [b, below]]) * (30, gap)
            way = 5.5 * (end - start) / np.hypot(*(end - start))
            canvas.line(start + way, end - way, colour=colour, head=colour == ORANGE)
    on_path = {end for link in shortest for end in (link[:2], link[2:])}
    for column, row in np.ndindex(7, rows):
        colour = ORANGE if (column, row) in on_path else EDGE
        style = {"ms": 9, "mfc": tint(colour, 0.3), "mec": colour, "zorder": 4}
        canvas.ax.plot(34 + 30 * column, y + gap * row, "o", **style)


@drawing(212)
def six_operations(canvas):
    """What a weight does in a training step: three rows of two operations each."""
    rows = {  # title: last box, arrows between the boxes, and the one that is computed
        "forward: add x · w = 6 to y": ("y", [(0, 1), (1, 2)], 2),
        "backward: add x · dy = 15 to w's gradient": ("dy = 5", [(0, 1), (2, 1)], 1),
        "backward: add w · dy = 10 to x's gradient": ("dy = 5", [(2, 1), (1, 0)], 0),
    }
    for row, (title, (last, arrows, target)) in enumerate(rows.items()):
        y, names = 22 + 64 * row, ("x = 3", "w = 2", last)
        canvas.text(8, y - 11, title, ha="left")
        for i, name in enumerate(names):
            kind = "attention" if i == target else "plain"
            canvas.box(34 + 66 * i, y, 50, 26, name, kind=kind)
        for a, b in arrows:
            start, end = 34 + 66 * a + 25 * (b - a), 34 + 66 * b - 25 * (b - a)
            canvas.line((start, y + 13), (end, y + 13))
        canvas.text(215, y + 13, "+ 2" if row else "2", weight="bold", size=11)
    canvas.text(215, 203, "= 6", weight="bold", size=11)
    canvas.text(8, 203, "floating-point operations", ha="left")


@drawing(264)
def ways_to_share(canvas):
    """Who holds what on four devices: full squares are held, dashed parts are not."""
    rows = [  # what all four hold: parts of the weights, parts of the batch
        ("data parallel", range(4), None, "gradients travel"),
        ("sharded weights", None, None, "gradients and weights travel"),
        ("tensor parallel", None, range(4), "activations travel"),
    ]
    for place, (name, weights, batch, travels) in enumerate(rows):
        y = 12 + 82 * place
        canvas.text(8, y, name, ha="left", weight="bold")
        canvas.text(240, y, travels, ha="right", size=8)
        for device, part in np.ndindex(4, 4):
            x = 10 + 60 * device
            for left, held, colour in ((x, weights, BLUE), (x + 27, batch, ORANGE)):
                mine = part in (held or [device])
                cell = Box(left, y + 12 + 11 * part, 22, 9)
                canvas.frame(cell, colour if mine else HIDDEN)
            if part == 0:
                canvas.text(x + 24, y + 63, f"device {device}", size=8)
    canvas.text(8, 254, "model", "name", size=8.5, colour=BLUE, ha="left")
    canvas.text(40, 254, "with its gradients and averages,", ha="left", size=8)
    canvas.text(176, 254, "batch", "name", size=8.5, colour=ORANGE, ha="left")


@drawing(252)
def ring(canvas):
    """A sum around a ring: the parts of each device before and after every step."""
    summed = np.ones((4, 4), int)  # device, part
    canvas.text(8, 10, "reduce-scatter: add, pass on", ha="left", weight="bold")
    canvas.text(8, 136, "all-gather: pass on", ha="left", weight="bold")
    for step in range(7):
        x, y = 36 + 54 * (step % 4), 50 + 126 * (step // 4)
        canvas.text(x + 22, y - 20, f"step {step}" if step else "before", size=8)
        for i in range(4 if step else 0):  # what comes from the device above
            j, top = (i - step) % 4, y + 20 * i
            summed[i, j] = summed[i - 1, j] + (step < 4)
            middle = x + 11 * j + 5.5
            canvas.line((middle, top - 8.5), (middle, top), colour=ORANGE)
        for i, row in enumerate(summed):
            canvas.cells(x, y + 20 * i, shades([row], BLUE, 0, 8), 11)
            middle = y + 20 * i + 5.5
            for j, count in enumerate(row):
                canvas.text(x + 11 * j + 5.5, middle, count, size=8)
            if step % 4 == 0:
                canvas.text(x - 6, middle, f"dev. {i}", size=8, ha="right")
    canvas.texts("note", (220, 190, "a 3 is the"), (220, 218, "of 3 devices"), size=8)
    canvas.text(220, 204, "sum", "name", size=9)
