"""Sphinx extension: sizes of pictures, figures on dark pages, and a list of figures.

Each picture says how large it is, so that no text jumps when it comes. A drawn figure
gets the class ``drawn``, and the style sheet inverts it on dark pages; one that holds
a photo is left as it is. ``{figures} attention`` lists the figures of a chapter.
"""

import re
from base64 import b64decode
from html import unescape
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
from docutils import nodes
from matplotlib import colormaps
from PIL import Image
from sphinx.util import logging

from later import add_part
from navigation import is_cell
from pages import NAMES

logger = logging.getLogger(__name__)
PIXELS = {"": 1, "px": 1, "pt": 4 / 3, "in": 96, "cm": 96 / 2.54, "mm": 96 / 25.4}
PNG = re.compile(r'href="data:image/png;base64,([^"]*)"')
COLOURS = "Blues", "RdBu", "gray"  # of heat maps and grey digits: can be inverted
MAPS = [(255 * colormaps[name](range(256))[:, :3]).round() for name in COLOURS]


def size_of_svg(text):
    """``(width, height)`` in CSS pixels as the root of an SVG says, or None."""
    root = re.search(r"<svg\b[^>]*>", text)[0]
    found = re.findall(r'\s(width|height)="([\d.]+)([a-z]*)"', root)
    sizes = {name: float(n) * PIXELS[u] for name, n, u in found if u in PIXELS}
    known = len(sizes) == 2
    return (round(sizes["width"]), round(sizes["height"])) if known else None


def has_photo(text):
    """Does an SVG hold pixels in colours, other than those of heat maps?"""
    for data in PNG.findall(text):
        picture = np.array(Image.open(BytesIO(b64decode(data))).convert("RGBA"))
        colours = np.unique(picture.reshape(-1, 4), axis=0)
        seen = colours[colours[:, 3] > 0, None, :3]  # n 1 3
        away = [abs(seen - colours).max(axis=-1).min(axis=-1) for colours in MAPS]
        if all((each > 3).any() for each in away):
            return True
    return False


def complete(app, page, _template, context, _doctree):
    """Size and kind of each picture; a fold is called by its own words."""
    sources = {name: Path(app.srcdir) / src for src, name in app.builder.images.items()}

    def with_size(tag):
        address = re.search(r'\ssrc="([^"]*)"', tag[0])[1]
        path = sources.get(Path(unquote(urlsplit(unescape(address)).path)).name)
        if not path or path.suffix != ".svg":
            if not re.search(r'\swidth="', tag[0]):
                logger.warning("%s: the size of %s is unknown", page, address[:80])
            return tag[0]
        text = path.read_text("utf-8")
        if re.search(r'\swidth="', tag[0]) or not (size := size_of_svg(text)):
            return tag[0]
        w, h = size  # the shape, too: what is rounded is no longer exactly its own
        kind = "photo" if has_photo(text) else "drawn"
        style = f"aspect-ratio: {w} / {h}; --drawn: {w}px"
        return (
            f'<img class="{kind} dark-light" loading="lazy" width="{w}" height="{h}" '
            f'style="{style}"{tag[0][4:]}'
        )

    if body := context.get("body"):
        body = body.replace('<summary aria-label="Toggle hidden content">', "<summary>")
        # Else a screen reader expects nothing but items in it.
        body = body.replace('<div role="list" class="citation-list">', "<div>")
        context["body"] = re.sub(r"<img\b[^>]*>", with_size, body)


def list_figures(transform, _node, chapter):
    """Section, alt text, and a link to the SVG of each figure, in both frameworks."""
    env, items = transform.env, []
    twins = [f"notebooks/{chapter}_{side}" for side in NAMES]
    page = transform.app.builder.get_relative_uri(env.docname, twins[0])
    for pair in zip(*(figures(env.get_doctree(twin)) for twin in twins), strict=False):
        section, image = pair[0]
        links = [link(section[0].astext(), f"{page}#{section['ids'][0]}")]
        links.append(nodes.Text(f": {image['alt'].removesuffix('.')}."))
        for name, (_, image) in zip(NAMES.values(), pair, strict=True):
            file = env.images[image["uri"]][1]
            links += [nodes.Text(" "), link(f"SVG from {name}", f"../_images/{file}")]
        items.append(nodes.list_item("", nodes.paragraph("", "", *links)))
    return nodes.bullet_list("", *items)


def figures(doctree):
    """``(section, image)`` of a page, in order."""
    for cell in filter(is_cell, doctree.findall()):
        if "tag_figure" in cell["classes"]:
            for image in cell.findall(nodes.image):
                yield cell.parent, image


def link(words, address):
    return nodes.reference("", words, refuri=address, internal=True)


def empty_the_script_of_icons(app, error):
    """The theme's fonts draw all icons; its script of 1.5 MB would draw them again."""
    script = Path(app.outdir) / "_static" / "scripts" / "fontawesome.js"
    if error is None and script.exists():
        script.write_text("/* fontawesome.css draws all icons. */\n", "utf-8")


def setup(app):
    add_part(app, "figures", list_figures)
    app.connect("html-page-context", complete, priority=600)
    app.connect("build-finished", empty_the_script_of_icons)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
