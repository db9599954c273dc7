"""Sphinx extension: each figure of the chapters as an SVG file, for slides.

``_downloads/figures/attention_torch/attention-ignores-order.svg`` is the first figure
of the section with this anchor, ``attention-ignores-order-2.svg`` the second, so no
name changes with another section. Of a map that responds, what it opens with is drawn.

``{figure-file}`attention/attention-ignores-order` `` links to one of them, and
``{figure-file}`attention` ``, a paragraph of its own, lists those of a chapter, once
where both frameworks draw the same.
"""

import io
import json
import re
import shutil
import sys
from collections import Counter
from functools import cache
from html import unescape
from pathlib import Path

import matplotlib
import numpy as np
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

import pages
from navigation import is_cell

logger = logging.getLogger(__name__)
FOLDER = "_downloads/figures"
VIEW = re.compile(r'<attention-viewer data-view="([^"]*)"')


class FigureFile(nodes.Inline, nodes.Element):
    """Stands where links will be, until all pages are read."""


class FigureFileRole(SphinxRole):
    def run(self):
        self.env.note_reread()  # any page may have changed
        return [FigureFile(name=self.text, location=self.get_location())], []


@cache
def figures_of(env, page):
    """``{name: (section, alt text, SVG)}`` of a page, in order."""
    found, seen = {}, Counter()
    for cell in filter(is_cell, env.get_doctree(page).findall(nodes.container)):
        parts = cell.findall(nodes.Element) if "tag_figure" in cell["classes"] else ()
        for drawn in filter(None, (drawing(env, part) for part in parts)):
            slug = cell.parent["ids"][0]
            seen[slug] += 1
            name = f"{slug}-{seen[slug]}" if seen[slug] > 1 else slug
            found[name] = cell.parent, *drawn
    return found


def drawing(env, node):
    """Alt text and SVG of a picture or of a map that responds, else None."""
    if isinstance(node, nodes.image):
        return node["alt"], (Path(env.srcdir) / node["uri"]).read_text("utf-8")
    view = isinstance(node, nodes.raw) and VIEW.search(node.astext())
    return drawn(json.loads(unescape(view[1]))) if view else None


def drawn(view):
    """What a viewer of attention maps is about, and an SVG of what it opens with."""
    from helpers.show import plots

    chosen, keys, queries = view["chosen"], view["keys"][0], view["queries"][0]
    at = chosen["layer"], 0, chosen["head"]  # of the first sequence
    maps = [np.reshape(one["weights"], view["shape"])[at] for one in view["maps"]]
    width, height = (max(1.7, 0.2 * len(labels)) for labels in (keys, queries))
    options = {"x_ticks": keys, "y_ticks": queries, "high": view["high"]}
    with matplotlib.rc_context():
        plots.use_style()
        options["titles"] = [one["name"] for one in view["maps"]]
        options["size"] = 1.5 + len(maps) * width, 0.8 + height
        plots.heatmaps(maps, **options).savefig(
            file := io.StringIO(), format="svg", metadata={"Date": None}
        )
    return view["about"], file.getvalue()


class Fill(SphinxPostTransform):
    """Put in the links."""

    default_priority = 8

    def run(self, **_):
        for node in list(self.document.findall(FigureFile)):
            chapter, _, name = node["name"].partition("/")
            found = figures_of(self.env, f"notebooks/{chapter}_torch")
            if name in found:
                words = found[name][0][0].astext()
                node.replace_self(self.link(chapter, "torch", name, words))
            elif not name:
                items = [self.item(chapter, name) for name in found]
                node.parent.replace_self(nodes.bullet_list("", *items))
            else:
                logger.warning("no figure %r in %s", name, [*found],
                    location=node["location"])  # fmt: skip
                node.replace_self(nodes.Text(name))

    def item(self, chapter, name):
        """Section, alt text, and the file, or one file of each framework."""
        twins = [f"notebooks/{chapter}_{side}" for side in pages.SIDES]
        (*_, jax), (section, alt, torch) = (
            figures_of(self.env, page)[name] for page in twins
        )
        address = self.app.builder.get_relative_uri(self.env.docname, twins[1])
        address += f"#{section['ids'][0]}"
        words = section[0].astext()
        links = [nodes.reference("", words, refuri=address, internal=True)]
        links.append(nodes.Text(f": {alt.removesuffix('.')}."))
        files = {"torch": "SVG"} if jax == torch else pages.NAMES
        for side, words in files.items():
            words = f"SVG from {words}" if jax != torch else words
            links += [nodes.Text(" "), self.link(chapter, side, name, words)]
        return nodes.list_item("", nodes.paragraph("", "", *links))

    def link(self, chapter, side, name, words):
        up = "../" * self.env.docname.count("/")
        address = f"{up}{FOLDER}/{chapter}_{side}/{name}.svg"
        return nodes.reference("", words, refuri=address, internal=True)


def write_files(app, error):
    if error is None and app.builder.format == "html":
        folder = Path(app.outdir) / FOLDER
        for page in filter(pages.side_of, app.env.found_docs):
            target = folder / page.removeprefix("notebooks/")
            target.mkdir(parents=True, exist_ok=True)
            for name, (_, _, text) in figures_of(app.env, page).items():
                (target / f"{name}.svg").write_text(text, encoding="utf-8")
        shutil.make_archive(folder, "zip", folder)


def setup(app):
    if (folder := str(pages.NOTEBOOKS)) not in sys.path:
        sys.path.insert(0, folder)
    app.add_node(FigureFile)
    app.add_role("figure-file", FigureFileRole())
    app.add_post_transform(Fill)
    app.connect("build-finished", write_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
