"""Drawings of the chapter *A model that writes*."""

import numpy as np
from matplotlib.patches import Rectangle

from helpers.show.diagrams.canvas import MONO, Box, Canvas, tint
from helpers.show.plots import BLUE, GREEN, HIDDEN, ORANGE, PAPER, PURPLE


def next_token():
    """Writing: the model gives probabilities, one token is drawn and appended."""
    canvas, x = Canvas(262), 112
    canvas.text(22, 24, "tokens", "name", size=9)
    for i, word in enumerate(("def", "add", "(", "a", "?")):
        drawn = Box(50 + 35 * i, 13, 32, 22)
        canvas.frame(drawn, HIDDEN if word == "?" else BLUE)
        canvas.text(*drawn.middle, word, family=MONO)
    model = canvas.below((x, 35), x, 55, 124, 40, "model", "b s → b s c")
    canvas.text(x + 7, 109, "logits at the end", size=8.5, ha="left")
    chosen = canvas.below(model.bottom, x, 122, 124, 24, "softmax", kind="attention")
    canvas.line(chosen.bottom, (x, 160))
    candidates = ((",", 0.55), (")", 0.25), ("=", 0.15), (":", 0.05))
    for i, (word, p) in enumerate(candidates):
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
    """From tokens to logits of the next token at every position."""
    canvas, x, w = Canvas(330), 134, 124
    canvas.text(x, 12, "tokens", "name")
    steps = [
        ("b s", "embed", "a row of E each", "dense", 38),
        ("b s m", "positions", "adds a vector to each", "positions", 38),
        ("b s m", "decoder", f"{n_blocks} blocks", "attention", 62),
        ("b s m", "logits", "products with E", "output", 38),
        ("b s c", "", "", "", 0),
    ]
    box = canvas.column(x, w, (x, 22), 24, steps)["decoder"]
    seen = canvas.allowed(14, box.y + 6, np.tri(5, dtype=bool), 7)
    canvas.line((seen.right[0], seen.middle[1]), (box.x, seen.middle[1]))
    canvas.text(seen.middle[0] + 4, box.y + 50, "causal", size=8.5)
    return canvas.fig


def key_value_cache():
    """One step with the cache: the new token's query meets all keys that are kept."""
    canvas, cell, n, known = Canvas(268), 15, 3, 5
    left, top, wide = 84, 26, (known + 1) * cell

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
