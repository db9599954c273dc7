"""Sphinx extension: how long chapters take, and paths through parts of them.

``{minutes}`decoder` `` is the time of a chapter without its extras, ``{minutes}`data
costs` `` that of two chapters, ``{minutes}`all` `` that of the book in one framework.
``{path}`` is a table of steps, one a line:

    attention | weighted mean | heads attend | Attention, up to several heads

From the section whose heading has the first words to the one with the second, in both
frameworks, with the minutes of each step and of all. As in the map, words must stand in
exactly one heading of the page; anything else is a warning.
"""

from functools import cache

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

import pages
from navigation import minutes, times

logger = logging.getLogger(__name__)
HEAD = "step", "in JAX", "in PyTorch", "minutes"


class Minutes(nodes.Inline, nodes.Element):
    """Stands where minutes will be, until all pages are read."""


class Path(nodes.General, nodes.Element):
    """Stands where a path will be, until all pages are read."""


class MinutesRole(SphinxRole):
    def run(self):
        self.env.note_reread()  # any page may have changed
        location = self.get_location()
        return [Minutes(chapters=self.text, location=location)], []


class PathDirective(SphinxDirective):
    has_content = True

    def run(self):
        self.env.note_reread()
        steps = [[word.strip() for word in line.split("|")] for line in self.content]
        return [Path(steps=steps, location=self.get_location())]


class Fill(SphinxPostTransform):
    """Put in the minutes and the links."""

    default_priority = 8

    def run(self, **_):
        for node in list(self.document.findall(Minutes)):
            node.replace_self(nodes.Text(self.time(node["chapters"])))
        for node in list(self.document.findall(Path)):
            node.replace_self(self.path(node["steps"], node["location"]))

    def time(self, chapters):
        """Minutes of chapters without extras, or hours of all; mean of the twins."""
        names = pages.chapters() if chapters == "all" else chapters.split()
        both = sum(self.core(name, side) for name in names for side in pages.SIDES)
        return f"{both / 120:.0f} hours" if chapters == "all" else f"{both / 2:.0f}"

    def path(self, steps, location):
        """A table of the steps, and how long they take."""
        rows, total = [], 0.0
        for chapter, first, last, words in steps:
            links, time = [], 0.0
            for side in pages.SIDES:
                sections = self.sections(chapter, side, first, last, location)
                links.append(self.link(chapter, side, sections))
                time += sum(map(minutes, sections)) / 2
            rows.append([words, *links, f"{time:.0f}"])
            total += time
        return table(HEAD, [*rows, ["together", "", "", f"{total:.0f}"]])

    @cache  # noqa: B019, lives for one page
    def top(self, chapter, side):
        """The sections of a chapter on a side."""
        title = next(self.env.get_doctree(name(chapter, side)).findall(nodes.title))
        return [n for n in title.parent.children if isinstance(n, nodes.section)]

    def core(self, chapter, side):
        """Minutes of a page without its extras and questions."""
        return times(self.env.get_doctree(name(chapter, side)))[0]

    def sections(self, chapter, side, first, last, location):
        """From the section with some words in its heading to that with others."""
        found = self.top(chapter, side)
        headings = [section[0].astext() for section in found]
        ends = []
        for words in (first, last):
            at = [i for i, h in enumerate(headings) if words.lower() in h.lower()]
            if len(at) != 1:
                logger.warning(
                    "the path needs one heading of %s with %r; its headings are %s",
                    name(chapter, side), words, headings, location=location,
                )  # fmt: skip
                return []
            ends += at
        return found[ends[0] : ends[1] + 1]

    def link(self, chapter, side, sections):
        anchor = f"#{sections[0]['ids'][0]}" if sections else ""
        here, page = self.env.docname, name(chapter, side)
        address = self.app.builder.get_relative_uri(here, page) + anchor
        return nodes.reference("", pages.NAMES[side], refuri=address, internal=True)


def name(chapter, side):
    return f"notebooks/{chapter}_{side}"


def table(head, rows):
    """A table of nodes or words."""
    group = nodes.tgroup("", cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += [nodes.thead("", row(head)), nodes.tbody("", *map(row, rows))]
    return nodes.table("", group, classes=["colwidths-auto"])


def row(cells):
    cells = [nodes.Text(cell) if isinstance(cell, str) else cell for cell in cells]
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", c)) for c in cells))


def setup(app):
    for node in (Minutes, Path):
        app.add_node(node)
    app.add_role("minutes", MinutesRole())
    app.add_directive("path", PathDirective)
    app.add_post_transform(Fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
