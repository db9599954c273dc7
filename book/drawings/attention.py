"""Drawings of the chapter *Attention*."""

import numpy as np
from matplotlib.patches import Rectangle

from canvas import MONO, Box, drawing, small_attention, tint
from helpers import reference
from helpers.show.plots import BLUE, EDGE, GREEN, ORANGE, PURPLE


@drawing(292)
def soft_dictionary(canvas):
    """One query: scores with all keys, their softmax, and the mean of the values."""
    tokens = ["the", "cat", "drank", "milk", "because", "it", "was", "thirsty"]
    features = ["animal", "drink", "action", "state", "pronoun"]
    chosen = ["", "animal", "action", "drink", "", "pronoun", "", "state"]
    words = np.array([[int(name == own) for name in features] for own in chosen])
    query = np.array([4, 0, 0, 0, 0])  # it looks for an animal
    scores = words @ query  # k
    weights = reference.softmax(scores)  # k
    left, right, top, row = 60, 186, 104, 17
    bottom, half = top + len(tokens) * row, 11 * len(features) / 2
    for i, feature in enumerate(features):
        for x, y in ((left, 48), (right, 80)):
            place = x + 11 * i + 5.5, y
            canvas.text(*place, feature, size=8, rotation=90, va="bottom")
    heads = {left + half: "keys", 129: "score", 164: "weight", right + half: "values"}
    for x, name in heads.items():
        canvas.text(x, top - 13, name, weight="bold")
    bold = {"family": MONO, "weight": "bold"}
    canvas.vector(left, 60, query / max(query), ORANGE, "query", **bold)
    canvas.line((left + half, 68), (left + half, 80))
    for i, word in enumerate(tokens):
        y = top + (i + 0.5) * row
        canvas.vector(left, y, words[i], BLUE, word, family=MONO)
        canvas.text(129, y, f"{scores[i]:.0f}", family=MONO)
        canvas.ax.add_patch(Rectangle((148, y - 4), 34 * weights[i], 8, color=ORANGE))
        canvas.vector(right, y, words[i], BLUE)
    canvas.line((right + half, bottom + 1), (right + half, bottom + 20))
    note = "sum of weight × value"
    canvas.text(right + half - 8, bottom + 10, note, size=8.5, ha="right")
    out = weights @ words  # m
    canvas.vector(right, bottom + 32, out, GREEN, "out", "name", size=9)


@drawing(323)
def attention(canvas):
    """One head: a score stands where the row of a query meets the column of a key."""
    q, k, v, _, scores, weights, out = small_attention(masked=False)
    keys = canvas.matrix(84, 12, k.T, ORANGE)
    canvas.label(167, 27, "k", "b h k d", "keys", ha="left")
    canvas.text(167, 53, "a column each", size=8, ha="left")
    canvas.matrix(14, 81, q, BLUE, frame=1)
    canvas.label(36.5, 52, "q", "b h q d", "queries")
    crossing = canvas.matrix(84, 81, scores, PURPLE, frame=1)
    canvas.label(167, 78, "scores", "b h q k", ha="left")
    canvas.line(keys.bottom, crossing.top)
    canvas.line((59, 103.5), (84, 103.5))

    scaled = canvas.below(crossing.bottom, 121.5, 159, 64, 21, "/ √d")
    above = canvas.below(scaled.bottom, 121.5, 194, 64, 21, "softmax")
    mixing = canvas.matrix(84, 229, weights, PURPLE, frame=1, low=0)
    canvas.line(above.bottom, mixing.top)
    canvas.label(42, 247, "weights", "b h q k")
    canvas.text(42, 275, "rows sum to 1", size=8)

    values = canvas.matrix(189, 140, v, GREEN)
    canvas.label(211.5, 120, "v", "b h k d", "values")
    result = canvas.matrix(189, 229, out, GREEN, frame=1)
    canvas.label(211.5, 300, "weights @ v", "b h q d")
    canvas.line((159, 251.5), (189, 251.5))
    canvas.line(values.bottom, result.top)
    canvas.text(121.5, 302, "framed: one query", size=8)


@drawing(424)
def heads(canvas):
    """One product makes q, k and v of both heads; each head attends by itself."""
    x, cell = 124, 12
    colours, m, rng = (GREEN, PURPLE), 4, np.random.default_rng(1)
    columns = [tint(colour, 0.55) for colour in colours for _ in range(2)]
    left = x - m * cell / 2  # of a matrix with m columns in the middle
    inputs = canvas.cells(left, 6, [[tint(EDGE, 0.3)] * m] * 3, cell)
    canvas.label(inputs.right[0] + 10, 16, "x", "b s m", ha="left")
    box = canvas.below(inputs.bottom, x, 60, 92, 24, "qkv", kind="dense")
    canvas.line(box.bottom, (x, 116))
    canvas.shape(x, 96, "b s 3m")
    starts = [left + (m + 1) * cell * i for i in (-1, 0, 1)]
    for name, start in zip("qkv", starts, strict=True):
        group = canvas.cells(start, 118, [columns] * 3, cell)
        canvas.text(group.top[0] - 12 * (name == "k"), 110, name, "name")

    joined = canvas.cells(left, 327, [columns] * 3, cell)
    canvas.label(joined.right[0] + 10, 338, "merge_heads", "b q m", ha="left")
    for i, colour in enumerate(colours):
        at, inside = x + 118 * (i - 0.5), (2 * i + 1) * cell
        card = one_head(canvas, at, i + 1, colour, rng)
        for j, start in enumerate(starts):
            begin, end = (start + inside, 156), (at + 14 * (j - 1), card.y)
            canvas.line(begin, end, colour=colour)
        canvas.line(card.bottom, (left + inside, 325), colour=colour)
    box = canvas.below(joined.bottom, x, 378, 92, 24, "out", kind="dense")
    canvas.line(box.bottom, (x, 420))
    canvas.shape(x, 411, "b q m")


def one_head(canvas, x, number, colour, rng):
    """A card around ``x`` with the weights of one head."""
    card = Box(x - 54, 196, 108, 97)
    canvas.frame(card, colour)
    canvas.text(x, 208, "attention", "name", size=9)
    q, k = rng.normal(scale=1.3, size=(2, 3, 4))  # three positions, as in x
    canvas.matrix(x - 21, 219, reference.attention(q, k, k)[1], colour, 14, low=0)
    canvas.text(x, 272, f"head {number}", size=8.5)
    canvas.text(x, 284, "b q d", "shape", size=8.5)
    return card
