"""Drawings of the chapters on writing, translating, masked tokens and fine-tuning."""

import numpy as np

from canvas import MONO, Box, drawing, small_attention, tint
from helpers.show.plots import BLUE, EDGE, GREEN, HIDDEN, ORANGE, PURPLE


def tokens(canvas, xs, y, words, colour=BLUE):
    """Tokens in a row, in frames; a question mark is still unknown."""
    for x, word in zip(xs, words, strict=False):
        canvas.frame(Box(x - 15, y, 30, 22), HIDDEN if word == "?" else colour)
        canvas.text(x, y + 11, word, family=MONO)


@drawing(262)
def next_token(canvas):
    """Writing: the model gives probabilities, one token is drawn and appended."""
    x = 112
    canvas.text(22, 24, "tokens", "name", size=9)
    tokens(canvas, range(66, 220, 35), 13, ("def", "add", "(", "a", "?"))
    model = canvas.below((x, 35), x, 55, 124, 40, "model", "b s → b s c")
    canvas.text(x + 7, 109, "logits at the end", "small", ha="left")
    chosen = canvas.below(model.bottom, x, 122, 124, 24, "softmax", kind="attention")
    canvas.line(chosen.bottom, (x, 160))
    for i, (word, p) in enumerate(zip(",)=:", (0.55, 0.25, 0.15, 0.05), strict=True)):
        y = 168 + 17 * i
        canvas.text(x - 42, y, word, family=MONO)
        canvas.bar(x - 30, y - 6, 90 * p, 12, tint(GREEN, 0.4 if i else 1))
        canvas.text(x - 24 + 90 * p, y, f"{p:.2f}", "small", ha="left")
    canvas.line((x + 52, 168), (213, 168), (213, 36))
    canvas.texts("small", (209, 180, "draw one,"), (209, 191, "append it"))
    canvas.text(x, 248, "and again, with one token more", "small")


@drawing(398)
def language_model(canvas):
    """Training: tokens go in; the label at each position is the token after it."""
    x, words, places = 140, ("def", "add", "(", "a", ",", "b"), range(74, 207, 33)
    steps = [
        ("b s", "embed", "a row of E each", "dense", 38),
        ("b s m", "positions", "adds a vector to each", "positions", 38),
        ("b s m", "decoder", "2 blocks", "attention", 62),
        ("b s m", "logits", "products with E", "output", 38),
        ("b s c", "", "", "", 0),
    ]
    box = canvas.column(x, 164, (x, 24), 24, steps)["decoder"]
    seen = canvas.allowed(10, box.y + 6, np.tri(5), 7)
    canvas.line(seen.right, (box.x, seen.middle[1]))
    canvas.text(seen.middle[0] + 2, box.y + 50, "causal", "small")
    for name, y, row in (("tokens", 2, words), ("labels", 370, words[1:])):
        canvas.text(28, y + 11, name, "name", size=9)
        tokens(canvas, places, y, row, BLUE if y == 2 else GREEN)
    canvas.text(28, 344, "softmax", "small")
    for i, p in enumerate(np.random.default_rng(3).dirichlet(np.ones(6), 5)):
        for n, share in enumerate((p + np.eye(6)[i + 1]) / 2):
            colour = tint(GREEN, 1 if n == i + 1 else 0.4)
            canvas.bar(places[i] - 13.5 + 4.5 * n, 362, 4.5, -40 * share, colour)


@drawing(268)
def key_value_cache(canvas):
    """One step with the cache: the new token's query meets all keys that are kept."""
    boxes = []
    for y, name, colour in ((26, "k", ORANGE), (140, "v", GREEN)):
        old = [[tint(colour, 0.3)] * 5 + [tint(colour, 0.9)]] * 3
        canvas.text(76, y + 22.5, name, "name", ha="right")
        canvas.line((200, y + 22.5), (176, y + 22.5))
        canvas.text(222, y + 22.5, "written", "small")
        boxes.append(canvas.cells(84, y, old))
    keys, values = boxes
    query = canvas.cells(16, 98, [[tint(BLUE, 0.9)] * 3])
    canvas.text(38.5, 88, "q", "name")
    row = canvas.cells(84, 98, [[tint(PURPLE, 0.6)] * 6])
    canvas.text(182, 105.5, "weights", "name", ha="left", size=9)
    out = canvas.cells(106.5, 212, [[tint(GREEN, 0.9)] * 3])
    canvas.text(159.5, 219.5, "one output", size=9, ha="left")
    for above, below in ((keys, row), (row, values), (values, out)):
        canvas.line(above.bottom, below.top)
    canvas.line(query.right, row.left)
    notes = [(121.5, 14, "kept"), (180, 14, "new token"), (38.5, 124, "of the new")]
    notes += [(38.5, 135, "token only"), (124, 250, "no old token is computed again")]
    for note in notes:
        canvas.text(*note, "small")


@drawing(350)
def cross_attention(canvas):
    """Queries from the target, keys and values from the source: a rectangular map."""
    (q, k, v, mask, _, weights, out), rng = small_attention(), np.random.default_rng(8)
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


@drawing(398)
def translator(canvas):
    """The encoder reads the source; every decoder block looks at what it has read."""
    left, right, w, pad = 64, 184, 96, ("hides padding", "attention")
    canvas.frame(Box(right - 58, 138, 116, 178), EDGE, 0.05)
    for x, name, shape in ((left, "source", "b k"), (right, "target", "b s")):
        canvas.text(x, 12, name, "name")
        box = canvas.below((x, 22), x, 44, w, 22, "embed", "", "dense", carries=shape)
        words = "positions", "", "positions"
        box = canvas.below(box.bottom, x, 90, w, 22, *words, carries=f"{shape} m")
        words = ("encoder", *pad) if x == left else ("attention", "causal", "attention")
        box = canvas.below(box.bottom, x, 148, w, 42, *words)
    cross = canvas.below(box.bottom, right, 206, w, 42, "cross", *pad)
    ffn = canvas.below(cross.bottom, right, 264, w, 22, "ffn", kind="dense")
    canvas.text(right, 302, "n_blocks times", "small")
    canvas.line((left, 190), (left, 227), cross.left, shape="b k m")
    canvas.line(ffn.bottom, (right, 294), head=False)
    box = canvas.below((right, 310), right, 336, w, 22, "logits", kind="output")
    canvas.line(box.bottom, (right, 390), shape="b s c")


@drawing(200)
def two_questions(canvas):
    """The next token is guessed from the left, a masked one from both sides."""
    places = 34, 94, 154, 214
    for top, title, words, asked in (
        (0, "next_token", ("the", "bank", "of"), 3),
        (104, "masked_token", ("the", "[MASK]", "of", "rivers"), 1),
    ):
        canvas.text(6, top + 8, title, "name", ha="left")
        answer = canvas.box(places[asked], top + 22, 52, 22, "", "?", "attention")
        for i, word in enumerate(words):
            box = canvas.box(places[i], top + 68, 52, 22, "", word)
            end = answer.at(0.5 + 0.14 * (i - asked), 1)
            canvas.line(box.top, end, colour=ORANGE if i == asked else BLUE)


@drawing(236)
def lora(canvas):
    """A frozen matrix, and beside it two thin ones that are trained; a sum."""
    left, right = 58, 166
    canvas.texts("name", (112, 10, "x"), (left, 82, "W"))
    canvas.text(122, 10, "... i", "shape", ha="left")
    canvas.line((112, 17), (112, 30), head=False)
    canvas.line((112, 30), (left, 30), (left, 52))
    canvas.line((112, 30), (right, 30), (right, 52))
    canvas.frame(Box(10, 52, 96, 96), HIDDEN)
    canvas.texts("shape", (left, 98, "i o"), (112, 228, "... o"))
    canvas.text(left, 116, "frozen", "small")
    canvas.line((right, 100), (right, 124))
    for box, colour, name, shape, words in (
        (Box(154, 52, 24, 48), ORANGE, "A", "i r", "random"),
        (Box(134, 124, 64, 24), BLUE, "B", "r o", "zeros"),
    ):
        canvas.frame(box, colour, 0.4)
        canvas.text(right, box.middle[1], name, "name")
        canvas.text(202, box.middle[1] - 6, shape, "shape", ha="left")
        canvas.text(202, box.middle[1] + 7, words, "small", ha="left")
    plus = canvas.plus(112, 188)
    canvas.line((left, 148), (left, 188), plus.left)
    canvas.line((right, 148), (right, 188), plus.right)
    canvas.text(right + 6, 166, "times α / r", "small", ha="left")
    canvas.line(plus.bottom, (112, 218))
