"""Sphinx extension: a map of the Transformer whose parts lead to their sections.

``{transformer-map}`` draws the parts of the models as SVG, once for each framework;
``book/_static/book.css`` shows the one that is chosen, and without scripts both. A
section is found by its chapter and by words of its heading, which must stand in exactly
one heading of the page; anything else is a warning. A chapter that is not in the book
is drawn without a link.
"""

from functools import cache
from html import escape
from typing import NamedTuple

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from pages import NAMES

logger = logging.getLogger(__name__)

# Where a part leads: chapter, and words of the heading ("" is the top of the page).
SECTIONS = {
    "encoder": ("encoder", "a stack of blocks"),
    "embed": ("positions", "the predictor maps"),
    "positions": ("positions", "sines and cosines"),
    "attention": ("attention", "heads attend"),
    "scores": ("attention", "products and a softmax"),
    "mask": ("attention", "mask"),
    "+": ("encoder", "without residual"),
    "norm1": ("encoder", "layer norm"),
    "norm_first": ("encoder", "can also come first"),
    "ffn": ("encoder", "works on each one alone"),
    "norm2": ("encoder", "layer norm"),
    "output": ("positions", "the predictor maps"),
    "decoder": ("decoder", "whole stack is causal"),
    "decoder embed": ("decoder", "become tokens"),
    "decoder positions": ("positions", "added to the input"),
    "decoder attention": ("decoder", "masked attention"),
    "decoder +": ("encoder", "without residual"),
    "decoder norm1": ("encoder", "layer norm"),
    "decoder norm_first": ("encoder", "can also come first"),
    "decoder cross": ("translation", "cross-attention looks"),
    "decoder cross_norm": ("translation", "are one model"),
    "decoder ffn": ("encoder", "works on each one alone"),
    "decoder norm2": ("encoder", "layer norm"),
    "decoder output": ("decoder", "token by token"),
    "training loop": ("reverse", "training"),
    "warm-up": ("warmup", "rate rises"),
    "clipping": ("warmup", "clipping"),
    "reverse task": ("reverse", "mistake"),
    "odd one out": ("anomaly", "it finds the odd one"),
    "pictures": ("vision", ""),
    "language model": ("decoder", "n-gram"),
    "sampling": ("decoder", "are sampled"),
    "cache": ("decoder", "cache"),
    "translation": ("translation", ""),
    "beam search": ("translation", "beam search"),
    "your own data": ("data", ""),
    "when it fails": ("debugging", ""),
    "two frameworks": ("frameworks", ""),
    "what it costs": ("costs", ""),
    "devices": ("scaling", ""),
    "rotary positions": ("positions", "rotary positions put"),
    "RMSNorm": ("today", "RMSNorm"),
    "SwiGLU": ("today", "SwiGLU"),
    "grouped queries": ("today", "share keys"),
    "FlashAttention": ("costs", "in chunks"),
    "the block": ("today", "part of the block"),
    "experts": ("today", "mixture of experts"),
    "published weights": ("today", "weights load"),
    "pretraining": ("finetune", "pretraining"),
    "fine-tuning": ("finetune", "new last layer"),
    "LoRA": ("finetune", "LoRA trains"),
    "masked tokens": ("masked", "guessed from both sides"),
    "class token": ("masked", "stands for a text"),
    "BERT": ("masked", "loaded by renaming"),
}
# Below the architecture: what surrounds it, in rows of (words, middle, width).
AROUND = {
    "Train it": [
        ("training loop", 88, 72),
        ("warm-up", 156, 52),
        ("clipping", 214, 52),
    ],
    "Use it": [
        ("reverse task", 84, 64),
        ("odd one out", 152, 64),
        ("pictures", 214, 52),
    ],
    "Write": [
        ("language model", 94, 84),
        ("sampling", 166, 52),
        ("cache", 218, 44),
    ],
    "Translate": [("translation", 97.5, 91), ("beam search", 194.5, 91)],
    "Your work": [("your own data", 97.5, 91), ("when it fails", 194.5, 91)],
    "Besides": [
        ("two frameworks", 90, 76),
        ("what it costs", 164, 64),
        ("devices", 220, 40),
    ],
    "Later": [
        ("rotary positions", 90, 76),
        ("RMSNorm", 160, 54),
        ("SwiGLU", 216, 48),
    ],
    "": [("grouped queries", 97.5, 91), ("FlashAttention", 194.5, 91)],
    "Today": [
        ("the block", 76, 48),
        ("experts", 126, 42),
        ("published weights", 196, 88),
    ],
    "Adapt": [
        ("pretraining", 84, 64),
        ("fine-tuning", 152, 64),
        ("LoRA", 214, 52),
    ],
    "Read": [
        ("masked tokens", 88, 72),
        ("class token", 160, 60),
        ("BERT", 218, 44),
    ],
}
WIDTH, HEIGHT, BELOW, ROW = 248, 854, 528, 30
MIDDLE = WIDTH / 2


class Part(NamedTuple):
    """A part of the architecture: its term, its name in the code, its kind, its place.

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
        return self.name if self.x < MIDDLE else f"decoder {self.name}"

    @property
    def top(self):
        return self.x, self.y

    @property
    def bottom(self):
        return self.x, self.y + self.h


ENCODER, DECODER = (6, 102, 112, 260), (130, 102, 112, 338)  # left, top, width, height
FIRST = "norm", "norm_first", "option"  # where the norm stands in pre-norm
PARTS = [  # from top to bottom, the encoder and then the decoder
    Part("embedding", "embed", "dense", 66, 42, 92, 20),
    Part("positions", "positions", "positions", 66, 74, 92, 20),
    Part(*FIRST, 66, 113, 62, 13),
    Part("attention", "attention", "attention", 66, 134, 92, 54),
    Part("softmax", "scores", "plain", 44, 156, 41, 24),
    Part("mask", "mask", "plain", 89, 156, 37, 24),
    Part("residual", "+", "plain", 66, 197, 16, 16),
    Part("norm", "norm1", "norm", 66, 222, 92, 18),
    Part(*FIRST, 66, 259, 62, 13),
    Part("feed-forward", "ffn", "dense", 66, 280, 92, 20),
    Part("residual", "+", "plain", 66, 309, 16, 16),
    Part("norm", "norm2", "norm", 66, 334, 92, 18),
    Part("output", "output", "output", 66, 462, 92, 20),
    Part("embedding", "embed", "dense", 184, 42, 92, 20),
    Part("positions", "positions", "positions", 184, 74, 92, 20),
    Part(*FIRST, 184, 113, 62, 13),
    Part("causal attention", "attention", "attention", 184, 134, 92, 20),
    Part("residual", "+", "plain", 184, 163, 16, 16),
    Part("norm", "norm1", "norm", 184, 188, 92, 18),
    Part(*FIRST, 184, 225, 62, 13),
    Part("cross-attention", "cross", "attention", 184, 246, 92, 20),
    Part("residual", "+", "plain", 184, 275, 16, 16),
    Part("norm", "cross_norm", "norm", 184, 300, 92, 18),
    Part(*FIRST, 184, 337, 62, 13),
    Part("feed-forward", "ffn", "dense", 184, 358, 92, 20),
    Part("residual", "+", "plain", 184, 387, 16, 16),
    Part("norm", "norm2", "norm", 184, 412, 92, 18),
    Part("output", "output", "output", 184, 462, 92, 20),
]


def map_lines():
    """The arrows of the map, each as its points."""
    lines = [[(66, 372), (124, 372), (124, 256), (138, 256)]]  # encoder to decoder
    for x in (66, 184):
        own = [part for part in PARTS if part.x == x]
        ends = [
            (x, 32),
            *(p for part in own for p in (part.top, part.bottom)),
            (x, 498),
        ]
        lines += [ends[i : i + 2] for i in range(0, len(ends), 2)]
    for fork, y in ((107, 205), (250, 317)):
        lines.append([(66, fork), (14, fork), (14, y), (58, y)])
    for fork, y in ((107, 171), (216, 283), (328, 395)):
        lines.append([(184, fork), (236, fork), (236, y), (192, y)])
    return lines


class MapNode(nodes.General, nodes.Element):
    """Stands where the map will be, until the headings of all pages are known."""


class TransformerMap(SphinxDirective):
    """``{transformer-map}``, without arguments."""

    def run(self):
        self.env.note_reread()  # a heading of any page may have changed
        return [MapNode(location=self.get_location())]


class MapHtml(SphinxPostTransform):
    default_priority = 8

    def run(self, **_):
        for node in list(self.document.findall(MapNode)):
            maps = [
                svg(side, Targets(self.app, side, node["location"])) for side in NAMES
            ]
            node.replace_self(nodes.raw("", "\n".join(maps), format="html"))


class Targets:
    """Where the parts lead in one framework."""

    def __init__(self, app, side, location):
        self.app, self.side, self.location = app, side, location

    @cache  # noqa: B019, a page has hundreds of nodes, and this lives for one map
    def headings(self, page):
        """``{anchor: heading}`` of a page."""
        titles = self.app.env.get_doctree(page).findall(nodes.title)
        return {title.parent["ids"][0]: title.astext() for title in titles}

    def __getitem__(self, part):
        """``(address, heading)`` of the section that builds a part, or None."""
        chapter, words = SECTIONS[part]
        page = f"notebooks/{chapter}_{self.side}"
        if page not in self.app.env.found_docs:
            return None
        headings = self.headings(page)
        found = [(i, h) for i, h in headings.items() if words.lower() in h.lower()]
        if words and len(found) != 1:
            logger.warning(
                "the part %r needs one heading of %s with %r; found it in %s of %s",
                part, page, words, [h for _, h in found], [*headings.values()],
                location=self.location,
            )  # fmt: skip
            return None
        address = self.app.builder.get_relative_uri(self.app.env.docname, page)
        anchor, heading = found[0]
        return (f"{address}#{anchor}" if words else address), heading


def svg(side, targets):
    """The map for one framework."""
    lines = "".join(arrow(points) for points in map_lines())
    titles = "".join(
        link(
            name,
            name,
            targets,
            box(x, 2, 72, 17, name, 14, kind="ground", size="title"),
        )
        for x, name in ((66, "encoder"), (184, "decoder"))
    )
    drawn = "".join(architecture(part, targets) for part in PARTS)
    return (
        f'<div class="transformer-map" data-side="{side}"><p>In {NAMES[side]}</p>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
        f'aria-label="Map of the Transformer: links to the sections in {NAMES[side]}">'
        f'<g aria-hidden="true">{frame(*ENCODER, "block")}'
        f"{frame(*DECODER, 'block')}{lines}</g>"
        f"{titles}{text(66, 29, 'inputs')}{text(184, 29, 'outputs so far')}"
        f"{drawn}{text(33, 374, 'several times', 'small')}"
        f"{text(153, 452, 'several times', 'small')}"
        f"{text(66, 511, 'one per element')}{text(184, 511, 'next token')}"
        f"{around(targets)}</svg></div>"
    )


def architecture(part, targets):
    """A part of the Transformer."""
    x, y = part.x, part.y + part.h / 2
    if part.name == "+":
        drawn = f'<circle cx="{x:g}" cy="{y:g}" r="8"/>{text(x, y + 3.4, "+")}'
        return link(part.key, "residual connection", targets, drawn)
    y -= 16 * (part.key == "attention")  # the rest is inside of it
    size = "small" if part.w < 70 else ""
    drawn = box(part.x, part.y, part.w, part.h, part.term, y + 3.2, size=size)
    return link(part.key, part.term, targets, drawn, part.kind)


def around(targets):
    """The rows below the architecture."""
    drawn = []
    for row, (words, parts) in enumerate(AROUND.items()):
        y = BELOW + ROW * row
        drawn.append(text(6, y + 15, words, "row"))
        for name, x, w in parts:
            shape = box(x, y, w, 22, name, y + 14.2, size="small")
            drawn.append(link(name, name, targets, shape))
    return "".join(drawn)


def link(part, words, targets, drawn, kind="plain"):
    """A part as a link with the name of its section, or pale where there is none."""
    target = targets[part]
    if target is None:
        return f'<g class="part later">{drawn}</g>'
    address, heading = map(escape, target)
    return (
        f'<a class="part {kind}" href="{address}" aria-label="{words}: {heading}">'
        f"{drawn}</a>"
    )


def box(x, y, w, h, words, line, *, kind="", size=""):
    """A frame around ``x``, from ``y`` down, with its words on a line."""
    return frame(x - w / 2, y, w, h, kind) + text(x, line, words, size)


def frame(x, y, w, h, kind=""):
    place = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"'
    return f'<rect class="{kind}" {place} rx="5"/>'


def text(x, y, words, kind=""):
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def arrow(points):
    """A line through the points, with a head at the end."""
    (x0, y0), (x, y) = points[-2:]
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    across = 2.8 * dy, 2.8 * dx
    corners = [(x, y)] + [
        (x - 5 * dx + sign * across[0], y - 5 * dy + sign * across[1])
        for sign in (1, -1)
    ]
    way = [*points[:-1], (x - 4 * dx, y - 4 * dy)]
    line, head = (" ".join(f"{a:g},{b:g}" for a, b in p) for p in (way, corners))
    return (
        f'<polyline class="line" points="{line}"/>'
        f'<polygon class="line" points="{head}"/>'
    )


def setup(app):
    app.add_node(MapNode)
    app.add_directive("transformer-map", TransformerMap)
    app.add_post_transform(MapHtml)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
