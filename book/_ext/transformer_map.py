"""Sphinx extension: a map of the Transformer whose parts lead to their sections.

``{transformer-map}`` shows ``book/drawings/map.svg`` once for each framework, which
takes the place of ``FRAMEWORK`` in its links; the style sheet shows the chosen one. A
link whose page or section is not there is a warning.
"""

import re
from html import escape

from docutils import nodes
from sphinx.util import logging

from later import add_part
from pages import NAMES, ROOT

logger = logging.getLogger(__name__)
MAP = ROOT / "book" / "drawings" / "map.svg"
LINK = re.compile(r'href="\.\./([\w/]+)\.html#?([^"]*)" aria-label="([^"]*)"')


def draw_map(transform, node):
    """The map in both frameworks."""

    def named(link):
        """A link with the heading of its section in what a screen reader says."""
        page, anchor, part = link.groups()
        headings = {}
        if page in transform.env.found_docs:
            titles = transform.env.get_doctree(page).findall(nodes.title)
            headings = {title.parent["ids"][0]: title.astext() for title in titles}
        heading = headings.get(anchor or next(iter(headings), ""))
        if heading is None:
            logger.warning("the map leads nowhere: %s", link[0], location=node["where"])
        words = f'aria-label="{part}: {escape(heading or "")}"'
        return link[0].replace(f'aria-label="{part}"', words)

    html, drawn = "", MAP.read_text("utf-8")
    for side, name in NAMES.items():
        text = drawn.replace("FRAMEWORK", side).replace("in a framework", f"in {name}")
        html += f'<div class="transformer-map" data-side="{side}">'
        html += f"<p>In {name}</p>{LINK.sub(named, text)}</div>\n"
    return nodes.raw("", html, format="html")


def setup(app):
    add_part(app, "transformer-map", draw_map)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
