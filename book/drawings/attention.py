"""Drawings of the chapters *Attention* and *The encoder block*."""

import numpy as np

from canvas import MONO, Box, drawing, shades, small_attention, tint
from helpers import reference
from helpers.show.plots import BLUE, EDGE, GREEN, ORANGE, PURPLE


@drawing(292)
def soft_dictionary(canvas):
    """One query: scores with all keys, their softmax, and the mean of the values."""
    tokens = ["the", "cat", "drank", "milk", "because", "it", "was", "thirsty"]
    features = ["animal", "drink", "action", "state", "pronoun"]
    chosen = ["", "animal", "action", "drink", "", "pronoun", "", "state"]
    words = np.array([[int(name == own) for name in features] for own in chosen])
    scores = 4 * words[:, 0]  # of a query that looks for an animal
    weights = reference.softmax(scores)  # k
    left, right, half = 60, 186, 27.5

    def vector(x, y, values, colour, name="", what="note", **options):
        canvas.cells(x, y - 5.5, shades([values], colour, 0, 1), 11)
        canvas.text(x - 6, y, name, what, ha="right", **options)

    for i, feature in enumerate(features):
        for x, y in ((left, 48), (right, 80)):
            place = x + 11 * i + 5.5, y
            canvas.text(*place, feature, size=8, rotation=90, va="bottom")
    heads = {left + half: "keys", 129: "score", 164: "weight", right + half: "values"}
    for x, name in heads.items():
        canvas.text(x, 91, name, weight="bold")
    vector(left, 60, words[1], ORANGE, "query", family=MONO, weight="bold")
    canvas.line((left + half, 68), (left + half, 80))
    for i, word in enumerate(tokens):
        y = 112.5 + 17 * i
        vector(left, y, words[i], BLUE, word, family=MONO)
        canvas.text(129, y, str(scores[i]), family=MONO)
        canvas.bar(148, y - 4, 34 * weights[i], 8, ORANGE, ec=ORANGE)
        vector(right, y, words[i], BLUE)
    canvas.line((right + half, 241), (right + half, 260))
    canvas.text(right + half - 8, 250, "sum of weight × value", "small", ha="right")
    vector(right, 272, weights @ words, GREEN, "out", "name", size=9)


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
    x, cell, rng = 124, 12, np.random.default_rng(1)
    columns = [tint(colour, 0.55) for colour in (GREEN, GREEN, PURPLE, PURPLE)]
    inputs = canvas.cells(100, 6, [[tint(EDGE, 0.3)] * 4] * 3, cell)
    canvas.label(158, 16, "x", "b s m", ha="left")
    box = canvas.below(inputs.bottom, x, 60, 92, 24, "qkv", kind="dense")
    canvas.line(box.bottom, (x, 116), shape="b s 3m")
    starts = {"q": 40, "k": 100, "v": 160}
    for name, start in starts.items():
        canvas.cells(start, 118, [columns] * 3, cell)
        canvas.text(start + 24 - 12 * (name == "k"), 110, name, "name")

    joined = canvas.cells(100, 327, [columns] * 3, cell)
    canvas.label(158, 338, "merge_heads", "b q m", ha="left")
    for i, colour in enumerate((GREEN, PURPLE)):
        at, inside = 65 + 118 * i, (2 * i + 1) * cell
        card = Box(at - 54, 196, 108, 97)
        canvas.frame(card, colour)
        canvas.text(at, 208, "attention", "name", 9)
        q, k = rng.normal(scale=1.3, size=(2, 3, 4))  # three positions, as in x
        canvas.matrix(at - 21, 219, reference.attention(q, k, k)[1], colour, 14, low=0)
        canvas.text(at, 272, f"head {i + 1}", "small")
        canvas.text(at, 284, "b q d", "shape", 8.5)
        for j, start in enumerate(starts.values()):
            canvas.line((start + inside, 156), (at + 14 * (j - 1), 196), colour=colour)
        canvas.line(card.bottom, (100 + inside, 325), colour=colour)
    box = canvas.below(joined.bottom, x, 378, 92, 24, "out", kind="dense")
    canvas.line(box.bottom, (x, 420), shape="b q m")


@drawing(352)
@drawing(352, "pre-norm-block", norm_first=True)
def encoder_block(canvas, norm_first=False):
    """Attention and feed-forward net, each with its residual and its norm."""
    x, w = 130, 122
    canvas.text(x, 12, "x", "name")
    above = x, 22
    for name, note, kind, sizes, norm in (
        ("attention", "several heads", "attention", "", "norm1"),
        ("ffn", "each position alone", "dense", "m → f → m", "norm2"),
    ):
        y = above[1]
        canvas.shape(x, y + 9, "b s m")
        if norm_first:
            above = canvas.below(above, x, y + 34, w, 24, norm, kind="norm").bottom
        top = y + 34 + 40 * norm_first
        box = canvas.below(above, x, top, w, 46, name, note, kind, sizes)
        if name == "attention":
            canvas.mask_and("weights", "b h q k", box)
        plus = canvas.plus(x, top + 68)
        canvas.line(box.bottom, plus.top)
        right, around = x + 88, plus.middle[1]
        canvas.line((x, y + 18), (right, y + 18), (right, around), plus.right)
        style = {"size": 8.5, "rotation": -90, "va": "center"}
        canvas.text(right + 9, (y + 18 + around) / 2, "residual", **style)
        above = plus.bottom
        if not norm_first:
            above = canvas.below(above, x, top + 92, w, 24, norm, kind="norm").bottom
    canvas.line(above, (x, above[1] + 24), shape="b s m")
