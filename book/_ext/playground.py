"""Sphinx extension: trained models, live on a page.

``{playground} reverse`` is a place for a model that both pages of a chapter trained
while this book was built, ``{playground} pretrained`` for the published one. A page
offers its weights as a link that contains them, ``download="reverse_jax.safetensors"``;
they become files of ``_static/weights``, which are loaded when a reader opens a model,
and links of large ones lead there. ``playground.json`` has the settings of each model
that its weights do not tell.
"""

import json
import re
from base64 import b64decode, b64encode
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from later import add_part
from pages import NAMES, NOTEBOOKS

logger = logging.getLogger(__name__)
SETTINGS = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
PRETRAINED = NOTEBOOKS / "helpers" / "data" / "pretrained.safetensors"
VIEWER = NOTEBOOKS / "helpers" / "show" / "viewer"
MODELS = ["reversing", "writing", "translating", "seeing"]
SCRIPTS = ["viewer", "transformer", "playground", *MODELS]
LINK = re.compile(r'(download="([\w.]+)") href="data:[^,"]*,([^"]*)"')
LARGE = 2**16  # letters of base64; weights above are files of their own


def model(transform, node, chapter):
    """The place for a model; before the first one of a page what all of them need."""
    env, app = transform.env, transform.app
    if chapter == "pretrained":  # published weights are the same for both
        data = b64encode(PRETRAINED.read_bytes()).decode("ascii")
        weights = dict.fromkeys(NAMES, (PRETRAINED.name, data))
    else:
        weights = {side: trained(env, f"{chapter}_{side}") for side in NAMES}
    if missing := [NAMES[side] for side in NAMES if not weights[side]]:
        what = f"the chapter {chapter} offers no weights in {', '.join(missing)}"
        logger.warning(what, location=node["where"])
        return []
    for name, data in weights.values():  # as scripts: also a file may load them
        text = f'(window.trainedWeights ??= {{}})["{name}"] = "{data}";\n'
        write(app, f"{name}.js", text.encode("ascii"))
    up, before = "../" * env.docname.count("/"), ""
    if not transform.document.get("has_model"):
        transform.document["has_model"] = True
        style = json.dumps((VIEWER / "viewer.css").read_text("utf-8"))
        code = (VIEWER / "viewer.js").read_text("utf-8")
        code = code.replace('"viewer.css"', style, 1)
        (static(app) / "viewer.js").write_text(code, encoding="utf-8")
        before = f'<link rel="stylesheet" href="{up}_static/playground.css">\n'
        for name in SCRIPTS:
            before += f'<script src="{up}_static/{name}.js"></script>\n'
    return nodes.raw("", before + place(chapter, weights, up), format="html")


def trained(env, page):
    """The weights that an executed page offers: ``(file, base64)``."""
    if f"notebooks/{page}" in env.found_docs:
        for node in env.get_doctree(f"notebooks/{page}").findall(nodes.raw):
            for _, name, data in LINK.findall(node.astext()):
                if name == f"{page}.safetensors":
                    return name, data
    return None


class WeightsAsFiles(SphinxPostTransform):
    """Large weights of a page become files, and its link leads there."""

    default_priority = 8

    def run(self, **_):
        up = "../" * self.env.docname.count("/")

        def moved(link):
            attribute, name, data = link.groups()
            if len(data) <= LARGE:
                return link[0]
            write(self.app, name, b64decode(data))
            return f'{attribute} href="{up}_static/weights/{name}"'

        for node in self.document.findall(nodes.raw):
            if LINK.search(text := node.astext()):
                node[:] = [nodes.Text(LINK.sub(moved, text))]


def place(chapter, weights, up):
    """Where a script puts the model, with its settings."""
    offered = {}
    for side, (name, data) in weights.items():
        about = f"weights trained in {NAMES[side]}"
        about = "published weights" if chapter == "pretrained" else about
        address = f"{up}_static/weights/{name}.js"
        offered[side] = {"name": name, "about": about, "address": address}
        offered[side]["bytes"] = len(b64decode(data))
    settings = SETTINGS[chapter] | {"weights": offered}
    function = settings["function"]
    return (
        f'<div class="playground {function}" '
        f'data-settings="{escape(json.dumps(settings))}">'
        '<p class="without-scripts">This model runs in JavaScript, which is switched '
        f"off here.</p><script>{function}(document.currentScript.parentNode)</script>"
        "</div>"
    )


def write(app, name, content):
    """A file of the built book that has weights."""
    (static(app, "weights") / name).write_bytes(content)


def static(app, *names):
    """A folder of the built book."""
    folder = Path(app.outdir, "_static", *names)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def setup(app):
    add_part(app, "playground", model)
    app.add_post_transform(WeightsAsFiles)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
