"""Drawings of the chapter *A model that writes*."""

import numpy as np
from matplotlib.patches import Rectangle

from canvas import MONO, Box, drawing, tint
from helpers.show.plots import BLUE, GREEN, HIDDEN, ORANGE, PAPER, PURPLE


def tokens(canvas, xs, y, words, colour=BLUE):
    """Tokens in a row, in frames; a question mark is still unknown."""
    for x, word in zip(xs, words, strict=False):
        drawn = Box(x - 15, y, 30, 22)
        canvas.frame(drawn, HIDDEN if word == "?" else colour)
        canvas.text(*drawn.middle, word, family=MONO)


@drawing(262)
def next_token(canvas):
    """Writing: the model gives probabilities, one token is drawn and appended."""
    x = 112
    canvas.text(22, 24, "tokens", "name", size=9)
    tokens(canvas, range(66, 220, 35), 13, ("def", "add", "(", "a", "?"))
    model = canvas.below((x, 35), x, 55, 124, 40, "model", "b s → b s c")
    canvas.text(x + 7, 109, "logits at the end", size=8.5, ha="left")
    chosen = canvas.below(model.bottom, x, 122, 124, 24, "softmax", kind="attention")
    canvas.line(chosen.bottom, (x, 160))
    for i, (word, p) in enumerate(zip(",)=:", (0.55, 0.25, 0.15, 0.05), strict=True)):
        y = 168 + 17 * i
        canvas.text(x - 42, y, word, family=MONO)
        bar = {"fc": GREEN if i == 0 else tint(GREEN, 0.4), "ec": PAPER}
        canvas.ax.add_patch(Rectangle((x - 30, y - 6), 90 * p, 12, **bar))
        canvas.text(x - 24 + 90 * p, y, f"{p:.2f}", size=8.5, ha="left")
    canvas.line((x + 52, 168), (213, 168), (213, 36))
    canvas.text(209, 180, "draw one,", size=8.5)
    canvas.text(209, 191, "append it", size=8.5)
    canvas.text(x, 248, "and again, with one token more", size=8.5)


@drawing(398)
def language_model(canvas):
    """Training: tokens go in; the label at each position is the token after it."""
    x, words = 140, ("def", "add", "(", "a", ",", "b")
    places = range(x - 66, x + 67, 33)
    steps = [
        ("b s", "embed", "a row of E each", "dense", 38),
        ("b s m", "positions", "adds a vector to each", "positions", 38),
        ("b s m", "decoder", "2 blocks", "attention", 62),
        ("b s m", "logits", "products with E", "output", 38),
        ("b s c", "", "", "", 0),
    ]
    box = canvas.column(x, 164, (x, 24), 24, steps)["decoder"]
    seen = canvas.allowed(10, box.y + 6, np.tri(5, dtype=bool), 7)
    canvas.line((seen.right[0], seen.middle[1]), (box.x, seen.middle[1]))
    canvas.text(seen.middle[0] + 2, box.y + 50, "causal", size=8.5)
    for name, y, row in (("tokens", 2, words), ("labels", 370, words[1:])):
        canvas.text(28, y + 11, name, "name", size=9)
        tokens(canvas, places, y, row, BLUE if y == 2 else GREEN)
    canvas.text(28, 344, "softmax", size=8.5)
    for i, p in enumerate(np.random.default_rng(3).dirichlet(np.ones(6), 5)):
        for n, share in enumerate((p + np.eye(6)[i + 1]) / 2):
            bar = {"fc": GREEN if n == i + 1 else tint(GREEN, 0.4), "ec": PAPER}
            at = places[i] - 13.5 + 4.5 * n, 362
            canvas.ax.add_patch(Rectangle(at, 4.5, -40 * share, **bar))


@drawing(268)
def key_value_cache(canvas):
    """One step with the cache: the new token's query meets all keys that are kept."""
    cell, left, right = 15, 84, 174

    def kept(y, name, colour):
        old = [[tint(colour, 0.3)] * 5 + [tint(colour, 0.9)]] * 3
        canvas.text(left - 8, y + 22.5, name, "name", ha="right")
        canvas.line((right + 26, y + 22.5), (right + 2, y + 22.5))
        canvas.text(right + 48, y + 22.5, "written", size=8.5)
        return canvas.cells(left, y, old, cell)

    keys, values = kept(26, "k", ORANGE), kept(140, "v", GREEN)
    query = canvas.cells(16, 98, [[tint(BLUE, 0.9)] * 3], cell)
    canvas.text(query.middle[0], 88, "q", "name")
    row = canvas.cells(left, 98, [[tint(PURPLE, 0.6)] * 6], cell)
    canvas.text(right + 8, 105.5, "weights", "name", ha="left", size=9)
    out = canvas.cells(values.middle[0] - 22.5, 212, [[tint(GREEN, 0.9)] * 3], cell)
    canvas.text(out.right[0] + 8, 219.5, "one output", size=9, ha="left")
    for ends in ((keys, row), (row, values), (values, out)):
        canvas.line(ends[0].bottom, ends[1].top)
    canvas.line(query.right, row.left)
    notes = [(121.5, 14, "kept"), (180, 14, "new token"), (38.5, 124, "of the new")]
    notes += [(38.5, 135, "token only"), (124, 250, "no old token is computed again")]
    for x, y, words in notes:
        canvas.text(x, y, words, size=8.5)
