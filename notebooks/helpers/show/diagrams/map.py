"""Drawings of the chapter map."""

from typing import NamedTuple

from helpers.show.diagrams.canvas import GREY, KINDS, Box, Canvas


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
