"""Sphinx extension: a map of the Transformer whose parts lead to their sections.

``{transformer-map}`` shows ``book/drawings/map.svg`` once for each framework, which
takes the place of ``FRAMEWORK`` in its links; the style sheet shows the chosen one. A
link whose page or section is not there is a warning.
"""

import re
from html import escape

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from pages import NAMES, ROOT

logger = logging.getLogger(__name__)
MAP = ROOT / "book" / "drawings" / "map.svg"
LINK = re.compile(r'href="\.\./([\w/]+)\.html#?([^"]*)" aria-label="([^"]*)"')


class MapNode(nodes.General, nodes.Element):
    """Stands where the map will be, until the headings of all pages are known."""


class TransformerMap(SphinxDirective):
    """``{transformer-map}``, without arguments."""

    def run(self):
        self.env.note_dependency(str(MAP))
        self.env.note_reread()  # a heading of any page may have changed
        return [MapNode(location=self.get_location())]


class MapHtml(SphinxPostTransform):
    default_priority = 8

    def run(self, **_):
        for node in list(self.document.findall(MapNode)):
            self.location = node["location"]
            html, drawn = "", MAP.read_text("utf-8")
            for side, name in NAMES.items():
                text = drawn.replace("FRAMEWORK", side)
                text = text.replace("in a framework", f"in {name}")
                text = LINK.sub(self.named, text)
                html += f'<div class="transformer-map" data-side="{side}">'
                html += f"<p>In {name}</p>{text}</div>\n"
            node.replace_self(nodes.raw("", html, format="html"))

    def named(self, link):
        """A link with the heading of its section in what a screen reader says."""
        page, anchor, part = link.groups()
        headings = {}
        if page in self.env.found_docs:
            titles = self.env.get_doctree(page).findall(nodes.title)
            headings = {title.parent["ids"][0]: title.astext() for title in titles}
        heading = headings.get(anchor or next(iter(headings), ""))
        if heading is None:
            logger.warning("the map leads to no section %s", link[0],
                location=self.location)  # fmt: skip
        words = f'aria-label="{part}: {escape(heading or "")}"'
        return link[0].replace(f'aria-label="{part}"', words)


def setup(app):
    app.add_node(MapNode)
    app.add_directive("transformer-map", TransformerMap)
    app.add_post_transform(MapHtml)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
