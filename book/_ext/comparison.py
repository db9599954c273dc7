"""Sphinx extension: what the page that compares both takes from the chapters.

``{twin-code}`` shows a definition in two synchronised tabs, cut from the two pages of
a chapter, and on demand in a third, cut from the model in JavaScript. ``{measured}`` is
a table of figures which the pages printed while this book was built. A name or a figure
that is not there is a warning, and so fails the build.
"""

import re
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import pages
from costs import costs, entry
from pages import NAMES

logger = logging.getLogger(__name__)
SECONDS = "seconds"
JAVASCRIPT = pages.ROOT / "book" / "_static" / "transformer.js"
TAB = """
:::{{tab-item}} {name}
:sync: {side}

```{language}
{code}
```
:::
"""


class TwinCode(SphinxDirective):
    """``{twin-code} chapter``, with names of functions and classes as its content."""

    required_arguments = 1
    option_spec: ClassVar = {"javascript": directives.flag}
    has_content = True

    def run(self):
        text = ["::::{tab-set}", ":sync-group: framework"]
        tabs = [
            (name, side, "python", pages.NOTEBOOKS / f"{self.arguments[0]}_{side}.py")
            for side, name in NAMES.items()
        ]
        if "javascript" in self.options:
            tabs.append(("JavaScript", "javascript", "javascript", JAVASCRIPT))
        for name, side, language, path in tabs:
            self.env.note_dependency(str(path))
            cut = javascript if language == "javascript" else pages.definition
            try:
                parts = [cut(path, word) for word in self.content]
            except LookupError as error:
                logger.warning(str(error), location=self.get_location())
                return []
            code = ("\n\n" if language == "javascript" else "\n\n\n").join(parts)
            tab = TAB.format(name=name, side=side, language=language, code=code)
            text += tab.splitlines()
        found = nodes.container()
        lines = StringList([*text, "::::"], source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, found)
        return found.children


def javascript(path, name):
    """The source of a function or class, whose name is ``likeThis`` in JavaScript.

    Raises
    ------
    LookupError
        If the file defines no such thing at its outermost level.
    """
    first, *others = name.split("_")
    name = first + "".join(map(str.capitalize, others))
    pattern = rf"^(?:function {name}\(|class {name}\b).*?^}}$"
    match = re.search(pattern, path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if not match:
        raise LookupError(f"{path.name} defines no {name}")
    return match[0]


class MeasuredNode(nodes.General, nodes.Element):
    """Stands where the figures will be, until every page has been executed."""


class Measured(SphinxDirective):
    """Lines ``what | chapter | pattern``; the pattern's group is the figure.

    A pattern is looked for in what the cells of a page put out, from the top. The word
    ``seconds`` in its place stands for how long the page took.
    """

    has_content = True

    def run(self):
        rows = [[part.strip() for part in line.split("|")] for line in self.content]
        here = self.get_location()
        return [MeasuredNode(rows=[row for row in rows if row != [""]], location=here)]


class MeasuredTable(SphinxPostTransform):
    default_priority = 8

    def run(self, **_):
        for node in list(self.document.findall(MeasuredNode)):
            rows = [
                [what, *(figure(self.env, f"{chapter}_{s}", pattern) for s in NAMES)]
                for what, chapter, pattern in node["rows"]
            ]
            for (what, _, _), row in zip(node["rows"], rows, strict=True):
                if None in row:
                    logger.warning(
                        "no page printed %r", what, location=node["location"]
                    )
            node.replace_self(table(rows))


def figure(env, page, pattern):
    """What a page printed, or how long it took; None if it did not."""
    if pattern == SECONDS:
        found = costs(env).get(f"notebooks/{page}")
        return found and f"{found[0]:.0f} s"
    for text in printed(env, f"notebooks/{page}"):
        if match := re.search(pattern, text):
            return match[1]
    return None


def printed(env, page):
    """What each output of an executed page says, in order; also of a cached page."""
    if page in env.found_docs:
        for node in env.get_doctree(page).findall(nodes.container):
            if node.get("nb_element") == "cell_code_output":
                yield from (text.astext() for text in node.findall(nodes.literal_block))


def table(rows):
    body = nodes.tbody()
    for row in rows:
        body += nodes.row("", *(entry(text or "–") for text in row))
    names = nodes.row("", *(entry(name) for name in ["", *NAMES.values()]))
    widths = (nodes.colspec(colwidth=width) for width in (60, 20, 20))
    group = nodes.tgroup("", *widths, nodes.thead("", names), body, cols=3)
    return nodes.table("", group, classes=["colwidths-auto", "measured"])


def setup(app):
    app.add_node(MeasuredNode)
    app.add_directive("twin-code", TwinCode)
    app.add_directive("measured", Measured)
    app.add_post_transform(MeasuredTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
