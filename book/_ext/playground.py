"""Sphinx extension: the model of the reverse task, live on a page.

``{playground}`` stands for the weights that both pages of the chapter wrote while this
book was built, the attention viewer, and the scripts that run the model. For readers
without scripts it says what the model answers to one example, and shows its map; these
come from the NumPy reference.
"""

import json
import re
import sys
from base64 import b64decode
from html import escape

import safetensors.numpy
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import pages
from pages import NAMES

logger = logging.getLogger(__name__)
CHAPTER = "reverse"
SCRIPTS = ["transformer.js", "playground.js"]  # in book/_static
ABOUT = "The attention map of the trained model, one row for each output"


class PlaygroundNode(nodes.General, nodes.Element):
    """Stands where the model will be, until every page has been executed."""


class Playground(SphinxDirective):
    """``{playground}``, without arguments."""

    def run(self):
        for path in (pages.NOTEBOOKS / "helpers").glob("*.*"):
            self.env.note_dependency(str(path))
        return [PlaygroundNode(location=self.get_location())]


class PlaygroundHtml(SphinxPostTransform):
    default_priority = 8

    def run(self, **_):
        for node in list(self.document.findall(PlaygroundNode)):
            weights = {side: trained(self.env, side) for side in NAMES}
            if missing := [NAMES[side] for side in NAMES if weights[side] is None]:
                logger.warning(
                    "the chapter %s shows no weights in %s",
                    CHAPTER, ", ".join(missing), location=node["location"],
                )  # fmt: skip
                node.parent.remove(node)
                continue
            up = "../" * self.env.docname.count("/")
            node.replace_self(nodes.raw("", html(weights, up), format="html"))


def trained(env, side):
    """The weights that a page of the chapter offers, in base64, or None."""
    page = f"notebooks/{CHAPTER}_{side}"
    link = rf'download="{CHAPTER}_{side}\.safetensors" href="data:[^,]*,([^"]*)"'
    if page in env.found_docs:
        for node in env.get_doctree(page).findall(nodes.raw):
            if match := re.search(link, node.astext()):
                return match[1]
    return None


def html(weights, up):
    """The playground; ``up`` leads from its page to the root of the book."""
    sizes, digits, answer, view = example(next(iter(weights.values())))
    if answer != digits[::-1]:
        logger.warning("the model of %s makes a mistake in its example", CHAPTER)
    return "\n".join(
        [
            f'<link rel="stylesheet" href="{up}_static/playground.css">',
            *(f'<script src="{up}_static/{name}"></script>' for name in SCRIPTS),
            *(
                f'<script type="text/plain" data-weights="{side}">{data}</script>'
                for side, data in weights.items()
            ),
            f'<div class="playground" data-settings="{escape(json.dumps(sizes))}">',
            '<p class="without-scripts">Without JavaScript nothing can be typed here, '
            f"and nothing chosen. For {' '.join(digits)} the model that was trained in "
            f"{next(iter(NAMES.values()))} puts out {' '.join(answer)}; below is its "
            f"attention map.</p>{view}",
            "<script>playground(document.currentScript.parentNode)</script></div>",
        ]
    )


def example(data):
    """The sizes of the model, digits, what it puts out for them, and its map."""
    sys.path.insert(0, str(pages.NOTEBOOKS))
    from helpers import reference, sequences, settings, viewer

    s = settings.Reverse()
    digits = sequences.symbols(1, s.length, s.n_symbols, seed=0)
    params = safetensors.numpy.load(b64decode(data))
    x = sequences.one_hot(digits, s.n_symbols)
    logits, maps = reference.predictor(x, params, s.n_blocks, s.n_heads)
    names = [str(digit) for digit in digits[0]]
    answer = [str(digit) for digit in logits[0].argmax(-1)]
    view = viewer.attention(maps[:, 0], names, about=ABOUT).view
    sizes = {"nBlocks": s.n_blocks, "nHeads": s.n_heads, "nSymbols": s.n_symbols}
    sizes |= {"length": s.length, "digits": "".join(names), "about": ABOUT}
    shown = f"{viewer.element(view)}\n<script>{viewer.script()}</script>"
    return sizes, names, answer, shown


def setup(app):
    app.add_node(PlaygroundNode)
    app.add_directive("playground", Playground)
    app.add_post_transform(PlaygroundHtml)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
