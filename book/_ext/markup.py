"""Sphinx extension: what the pages that others write for us leave out.

Each picture says how large it is, so that no text jumps when it comes: browsers keep
the room free. The bibliography is no list to a screen reader: it would have to hold
nothing but list items, and holds entries with links back. What unfolds a cell is called
by its own words ("✓ Checked: …"), not all alike. The theme's icons are drawn
by fonts; the script of 1.5 MB that would draw them again, as SVG, is emptied.
"""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.util import logging

logger = logging.getLogger(__name__)
FOLD = '<summary aria-label="Toggle hidden content">'
CITATIONS = '<div class="citation-list">'
PIXELS = {"": 1, "px": 1, "pt": 4 / 3, "in": 96, "cm": 96 / 2.54, "mm": 96 / 25.4}


def size_of_svg(text):
    """``(width, height)`` in CSS pixels as the root of an SVG says, or None."""
    root = re.search(r"<svg\b[^>]*>", text)
    found = []
    for name in ("width", "height"):
        pattern = rf'\s{name}="([\d.]+)([a-z]*)"'
        match = re.search(pattern, root[0]) if root else None
        if not match or match[2] not in PIXELS:
            return None
        found.append(round(float(match[1]) * PIXELS[match[2]]))
    return tuple(found)


def complete_page(app, page, _template, context, _doctree):
    body = context.get("body")
    if body:
        body = body.replace('<div role="list" class="citation-list">', CITATIONS)
        body = body.replace(FOLD, "<summary>")
        sources = {
            name: Path(app.srcdir) / src for src, name in app.builder.images.items()
        }

        def complete(tag):
            if re.search(r'\s(width|height)="', tag[0]):
                return tag[0]
            address = re.search(r'\ssrc="([^"]*)"', tag[0])
            path = sources.get(Path(unquote(urlsplit(unescape(address[1])).path)).name)
            size = (
                path and path.suffix == ".svg" and size_of_svg(path.read_text("utf-8"))
            )
            if not size:
                logger.warning("%s: the size of %s is unknown", page, address[1])
                return tag[0]
            w, h = size  # the shape, too: what is rounded is no longer exactly its own
            shape = f'width="{w}" height="{h}" style="aspect-ratio: {w} / {h}"'
            return f"<img {shape}{tag[0][4:]}"

        context["body"] = re.sub(r"<img\b[^>]*>", complete, body)


def empty_the_script_of_icons(app, error):
    script = Path(app.outdir) / "_static" / "scripts" / "fontawesome.js"
    if error is None and app.builder.format == "html":
        if not script.exists():
            logger.warning("the theme has no %s any more", script.name)
            return
        script.write_text("/* The fonts of fontawesome.css draw all icons. */\n")


def setup(app):
    app.connect("build-finished", empty_the_script_of_icons)
    app.connect("html-page-context", complete_page)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
