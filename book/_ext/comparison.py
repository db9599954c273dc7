"""Sphinx extension: what the page that compares both takes from the chapters.

``{twin-code}`` shows definitions of the two pages of a chapter: side by side where
there is room, without docstrings, else in two synchronised tabs; on demand there is a
third tab, with the model in JavaScript. ``{measured}`` is
a table of figures which the pages printed while this book was built. A name or a figure
that is not there is a warning, and so fails the build.
"""

import ast
import re
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import pages
from pages import NAMES

logger = logging.getLogger(__name__)
SECONDS = "seconds"
JAVASCRIPT = pages.ROOT / "book" / "_static" / "transformer.js"


class TwinCode(SphinxDirective):
    """``{twin-code} chapter``, with names of functions and classes as its content."""

    required_arguments = 1
    option_spec: ClassVar = {"javascript": directives.flag}
    has_content = True

    def run(self):
        side_by_side = "javascript" not in self.options
        columns = [":class: twin-code"] if side_by_side else []
        text = ["::::{tab-set}", ":sync-group: framework", *columns, ""]
        for side, name in NAMES.items():
            text += [f":::{{tab-item}} {name}", f":sync: {side}", ""]
            file = f"/notebooks/{self.arguments[0]}_{side}.py"
            for word in self.content:
                if side_by_side:
                    path = pages.ROOT / file[1:]
                    self.env.note_dependency(str(path))
                    text += ["```python", *without_docstrings(path, word), "```"]
                else:
                    include = f"```{{literalinclude}} {file}"
                    text += [include, f":pyobject: {word}", "```"]
            text.append(":::")
        if "javascript" in self.options:
            self.env.note_dependency(str(JAVASCRIPT))
            text += [":::{tab-item} JavaScript", ":sync: javascript", ""]
            for word in self.content:
                code = javascript(JAVASCRIPT, word).splitlines()
                text += ["```javascript", *code, "```"]
            text.append(":::")
        found = nodes.container()
        lines = StringList([*text, "::::"], source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, found)
        return found.children


def without_docstrings(path: Path, name: str) -> list[str]:
    """The lines of a function or class, the last of that name, without docstrings.

    Raises
    ------
    LookupError
        If the file defines no such thing at its outermost level.
    """
    source = path.read_text("utf-8")
    kinds = ast.FunctionDef | ast.ClassDef
    found = [n for n in ast.parse(source).body if isinstance(n, kinds)]
    found = [node for node in found if node.name == name]
    if not found:
        raise LookupError(f"{path.name} defines no {name}")
    lines = source.splitlines()
    for node in ast.walk(found[-1]):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            last += lines[last : last + 1] == [""]  # the blank line after it, too
            lines[first:last] = [None] * (last - first)
    start = min(n.lineno for n in (found[-1], *found[-1].decorator_list)) - 1
    return [x for x in lines[start : found[-1].end_lineno] if x is not None]


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
        run = NbMetadataCollector.get_doc_data(env)[f"notebooks/{page}"].get(
            "exec_data"
        )
        return run and f"{run['runtime']:.0f} s"
    for text in printed(env, f"notebooks/{page}"):
        if match := re.search(pattern, text):
            return in_percent(match[1])
    return None


def in_percent(number):
    """A number as a page printed it, but ``8.9e-03`` as ``0.9%``."""
    return f"{float(number):.1%}" if re.fullmatch(r"[\d.]+e-\d+", number) else number


def printed(env, page):
    """What each output of an executed page says, in order; also of a cached page."""
    if page in env.found_docs:
        for node in env.get_doctree(page).findall(nodes.container):
            if node.get("nb_element") == "cell_code_output":
                kinds = nodes.literal_block, nodes.paragraph, nodes.row  # print, say
                yield from (
                    text.astext() for kind in kinds for text in node.findall(kind)
                )


def entry(text):
    return nodes.entry("", nodes.paragraph(text=text))


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
