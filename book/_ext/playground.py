"""Sphinx extension: trained models, live on a page.

``{playground} chapter`` stands for a model that both pages of a chapter trained while
this book was built, and ``{playground} pretrained`` for the published language model.
The one of the reverse task is small: its weights are on the page, with the attention
viewer. Those of the others are loaded when a reader opens them, from files of
``_static/weights``. For readers without scripts there is an example of what each model
puts out, by the NumPy reference.

A page offers its weights as a link that contains them. Large ones are taken out of the
built page into such files, too.
"""

import json
import re
import sys
from base64 import b64decode, b64encode
from html import escape
from importlib import import_module

import numpy as np
import safetensors.numpy
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import pages
from pages import NAMES

logger = logging.getLogger(__name__)
SCRIPTS = [
    "transformer.js", "playground.js", "playground_decoders.js", "playground_vision.js",
]  # fmt: skip
ABOUT = "The attention map of the trained model, one row for each output"
PROMPT = "    def close(self):\n        if self."
LINK = re.compile(r'(download="([\w.]+)") href="data:[^,"]*,([^"]*)"')
LARGE = 2**16  # letters of base64; weights above are files of their own
# The digits are counts of pixels in blocks of a bitmap, where NIST's programs stretch a
# digit to a box (Alpaydin & Kaynak 1998; Garris et al. 1994, NISTIR 5469).
BLOCK, BOX = 4, (20, 32)
EXAMPLES = 2  # test digits of each class


class PlaygroundNode(nodes.General, nodes.Element):
    """Stands where the model will be, until every page has been executed."""


class Playground(SphinxDirective):
    """``{playground} chapter``, with the name of one of ``KINDS``."""

    required_arguments = 1

    def run(self):
        for path in (pages.NOTEBOOKS / "helpers").rglob("*.*"):
            self.env.note_dependency(str(path))
        here = self.get_location()
        return [PlaygroundNode(chapter=self.arguments[0], location=here)]


class PlaygroundHtml(SphinxPostTransform):
    default_priority = 8

    def run(self, **_):
        up = "../" * self.env.docname.count("/")
        before = head(up)
        for node in list(self.document.findall(PlaygroundNode)):
            chapter = node["chapter"]
            weights = weights_of(self.env, chapter)
            if missing := [NAMES[side] for side in NAMES if weights[side] is None]:
                logger.warning(
                    "the chapter %s shows no weights in %s",
                    chapter, ", ".join(missing), location=node["location"],
                )  # fmt: skip
                node.parent.remove(node)
                continue
            for side, data in weights.items() if chapter in FUNCTIONS else ():
                name = file_name(chapter, side)
                script_path = weights_folder(self.app) / f"{name}.js"
                script_path.write_text(script(name, data), encoding="ascii")
            text = before + KINDS[chapter](weights, up)
            node.replace_self(nodes.raw("", text, format="html"))
            before = ""


class WeightsAsFiles(SphinxPostTransform):
    """Large weights of a page become files, and its link leads there."""

    default_priority = 8

    def run(self, **_):
        up = "../" * self.env.docname.count("/")

        def moved(link):
            attribute, name, data = link.groups()
            if len(data) <= LARGE:
                return link[0]
            (weights_folder(self.app) / name).write_bytes(b64decode(data))
            return f'{attribute} href="{up}_static/weights/{name}"'

        for node in self.document.findall(nodes.raw):
            if LINK.search(text := node.astext()):
                node[:] = [nodes.Text(LINK.sub(moved, text))]


def weights_folder(app):
    """Where the built book has files of weights."""
    folder = app.outdir / "_static" / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def script(name, data):
    """Weights as a script: a page may load one from a file, too, without a server."""
    return f'(window.trainedWeights ??= {{}})["{name}"] = "{data}";\n'


def file_name(chapter, side):
    """Of the weights: published ones are the same for both sides."""
    own = "" if chapter == "pretrained" else f"_{side}"
    return f"{chapter}{own}.safetensors"


def weights_of(env, chapter):
    """The weights of each side in base64, or None where a page offers none."""
    if chapter == "pretrained":
        (text,) = helpers("data.text")
        data = b64encode(text.PRETRAINED.read_bytes()).decode("ascii")
        return dict.fromkeys(NAMES, data)
    return {side: trained(env, chapter, side) for side in NAMES}


def trained(env, chapter, side):
    """The weights that a page of the chapter offers, in base64, or None."""
    page = f"notebooks/{chapter}_{side}"
    if page in env.found_docs:
        for node in env.get_doctree(page).findall(nodes.raw):
            for _, name, data in LINK.findall(node.astext()):
                if name == f"{chapter}_{side}.safetensors":
                    return data
    return None


def head(up):
    """What all models of a page need; ``up`` leads to the root of the book."""
    return "\n".join(
        [
            f'<link rel="stylesheet" href="{up}_static/playground.css">',
            *(f'<script src="{up}_static/{name}"></script>' for name in SCRIPTS),
            "",
        ]
    )


def reverse_demo(weights, _up):
    """The model of the reverse task, with its weights."""
    sizes, digits, answer, view = example(next(iter(weights.values())))
    if answer != digits[::-1]:
        logger.warning("the model of reverse makes a mistake in its example")
    return "\n".join(
        [
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
    sequences, settings, viewer = helpers(
        "data.sequences", "engine.settings", "show.viewer"
    )
    import reference_models as models

    s = settings.Reverse()
    digits = sequences.symbols(1, s.length, s.n_symbols, seed=0)
    params = safetensors.numpy.load(b64decode(data))
    x = sequences.one_hot(digits, s.n_symbols)
    logits, maps = models.predictor(x, params, s.n_blocks, s.n_heads)
    names = [str(digit) for digit in digits[0]]
    answer = [str(digit) for digit in logits[0].argmax(-1)]
    view = viewer.attention(maps[:, 0], names, about=ABOUT).view
    sizes = {"nBlocks": s.n_blocks, "nHeads": s.n_heads, "nSymbols": s.n_symbols}
    sizes |= {"length": s.length, "digits": "".join(names), "about": ABOUT}
    shown = f"{viewer.element(view)}\n<script>{viewer.script()}</script>"
    return sizes, names, answer, shown


def language_demo(weights, up):
    """The published language model: what it finds probable after a beginning."""
    reference, byte_pairs = helpers("reference", "data.byte_pairs")
    import reference_models as models

    data = b64decode(next(iter(weights.values())))
    pairs = byte_pairs.BytePairs.from_metadata(metadata(data))
    sizes, params = published_sizes(data), safetensors.numpy.load(data)
    counts = sizes["nBlocks"], sizes["nHeads"]
    logits, _ = models.modern_lm(pairs.encode(PROMPT)[None], params, *counts)
    p = reference.softmax(logits[0, -1])
    best = [
        f"<code>{escape(pairs.tokens[i].replace(' ', '␣'))}</code> with {p[i]:.0%}"
        for i in np.argsort(-p)[:3]
    ]
    return opened_model(
        "pretrained", weights, up, sizes | {"prompt": PROMPT},
        f"After <code>{escape(PROMPT.split()[-1])}</code> the model finds "
        f"{', '.join(best)} most probable.",
    )  # fmt: skip


def translation_demo(weights, up):
    """A translator of dates, and what it writes for one of them."""
    dates, settings = helpers("data.dates", "engine.settings")
    import reference_models as models

    s, data = settings.Dates(), b64decode(next(iter(weights.values())))
    params, options = safetensors.numpy.load(data), {"norm_first": s.norm_first}
    day = dates.split(s)["test"][0]
    examples = [dates.write(day, form) for form in dates.FORMS]
    source, longest = dates.encode(examples[:1]), len(day.isoformat()) + 1
    target = [dates.BEGIN]
    for _ in range(longest):
        logits, *_ = models.translator(
            source, np.array([target]), params, s.n_blocks, s.n_heads, **options
        )
        target.append(int(logits[0, -1].argmax()))
    (answer,) = dates.decode([target])
    if answer != day.isoformat():
        logger.warning("the model of translation makes a mistake in its example")
    more = {"alphabet": "".join(dates.CHARACTERS), "begin": dates.BEGIN}
    more |= {"end": dates.END, "longest": longest, "examples": examples}
    return opened_model(
        "translation", weights, up, sizes(s, s.max_length) | more,
        f"For “{examples[0]}” the model that was trained in "
        f"{next(iter(NAMES.values()))} writes {answer}.",
    )  # fmt: skip


def vision_demo(weights, up):
    """A vision Transformer, and what it sees in a test digit."""
    import reference_models as models

    reference, settings = helpers("reference", "engine.settings")
    s, data = settings.Pictures(), b64decode(next(iter(weights.values())))
    params, data = safetensors.numpy.load(data), digits(s)
    image = np.array(data["examples"][0]["picture"]) / BLOCK**2
    logits, maps = models.vision_transformer(
        image[None, :, :, None], params, s.patch, s.n_blocks, s.n_heads,
        norm_first=s.norm_first, return_maps=True,
    )  # fmt: skip
    p = reference.softmax(logits[0])
    looks = maps[-1, 0].mean(axis=0)[0, 1:]  # of the token, the mean of the last heads
    more = {"imageSize": s.image_size, "patch": s.patch} | data
    return opened_model(
        "vision", weights, up, sizes(s, looks.size + 1) | more,
        f"This is a test digit. The model that was trained in "
        f"{next(iter(NAMES.values()))} sees a {data['classes'][p.argmax()]}, with a "
        f"probability of {p.max():.2f}; the colour shows where its class token looks "
        f"in the last layer. {drawn(image, looks / looks.max(), s.patch)}",
        verb="drawn",
    )  # fmt: skip


def digits(s):
    """Test digits of each class as counts, and what drawings must be normalised to."""
    (pictures,) = helpers("data.pictures")
    parts, names = pictures.load("digits", s.seed)
    counts = {
        name: np.rint(images[..., 0] * BLOCK**2).astype(int)
        for name, (images, _) in parts.items()
    }
    labels = parts["test"][1]
    rows = [
        row for c in range(len(names)) for row in np.flatnonzero(labels == c)[:EXAMPLES]
    ]
    examples = [
        {"label": names[labels[row]], "picture": counts["test"][row].tolist()}
        for row in rows
    ]
    ink = round(counts["train"].sum(axis=(1, 2)).mean())  # pixels of a bitmap
    return {
        "examples": examples, "classes": names, "block": BLOCK, "box": BOX, "ink": ink,
    }  # fmt: skip


def drawn(image, looks, patch):
    """A picture with its patches in colour, as SVG."""
    n = len(image)
    squares = [
        f'<rect x="{x}" y="{y}" width="1" height="1" fill-opacity="{image[y, x]:.2f}"/>'
        for y, x in np.argwhere(image)
    ] + [
        f'<rect class="patch" x="{i * patch % n}" y="{i * patch // n * patch}" '
        f'width="{patch}" height="{patch}" fill-opacity="{0.7 * share:.2f}"/>'
        for i, share in enumerate(looks)
    ]
    return (
        f'<svg viewBox="0 0 {n} {n}" role="img" aria-label="The test digit, coloured">'
        f"{''.join(squares)}</svg>"
    )


def opened_model(chapter, weights, up, sizes, words, verb="typed"):
    """A place for a model whose weights come when a reader opens it."""
    function = FUNCTIONS[chapter]
    published = chapter == "pretrained"
    sizes["weights"] = {
        side: {
            "name": file_name(chapter, side),
            "about": "published weights" if published
            else f"weights trained in {NAMES[side]}",
            "address": f"{up}_static/weights/{file_name(chapter, side)}.js",
            "bytes": len(b64decode(data)),
        }
        for side, data in weights.items()
    }  # fmt: skip
    return (
        f'<div class="playground opens {function}" '
        f'data-settings="{escape(json.dumps(sizes))}">'
        f'<p class="without-scripts">Without JavaScript nothing can be {verb} here. '
        f"{words}</p><script>{function}(document.currentScript.parentNode)</script></div>"
    )


def sizes(s, max_length):
    """The sizes of a model with learned positions, by their names in JavaScript."""
    return {
        "nBlocks": s.n_blocks, "nHeads": s.n_heads, "m": s.m, "maxLength": max_length,
        "normFirst": s.norm_first,
    }  # fmt: skip


def published_sizes(data):
    """The sizes that a file of a ``ModernLM`` says, by their names in JavaScript."""
    said = json.loads(metadata(data)["model"])
    names = {"nBlocks": "n_blocks", "nHeads": "n_heads", "maxLength": "max_length"}
    return {name: said[ours] for name, ours in names.items()}


def metadata(data):
    """What a safetensors file says besides its arrays."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size])["__metadata__"]


def helpers(*names):
    """Modules of the pages."""
    if (folder := str(pages.NOTEBOOKS)) not in sys.path:
        sys.path.insert(0, folder)
    return [import_module(f"helpers.{name}") for name in names]


KINDS = {
    "reverse": reverse_demo, "pretrained": language_demo,
    "translation": translation_demo, "vision": vision_demo,
}  # fmt: skip
# What brings an opened model to life, in the scripts
FUNCTIONS = {"pretrained": "writing", "translation": "translating", "vision": "seeing"}


def setup(app):
    app.add_node(PlaygroundNode)
    app.add_directive("playground", Playground)
    app.add_post_transform(PlaygroundHtml)
    app.add_post_transform(WeightsAsFiles)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
