"""Sphinx extension: definitions of the two pages of a chapter, beside each other.

``{twin-code} attention``, with names of functions and classes as its content, shows
them without docstrings: side by side where there is room, else in two synchronised
tabs. With the option ``:javascript:`` a third tab has those of ``transformer.js``. A
name that is not there is a warning.
"""

import ast
import re
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import pages

logger = logging.getLogger(__name__)
JAVASCRIPT = pages.ROOT / "book" / "_static" / "transformer.js"


class TwinCode(SphinxDirective):
    required_arguments = 1
    option_spec: ClassVar = {"javascript": directives.flag}
    has_content = True

    def run(self):
        text = ["::::{tab-set}", ":sync-group: framework"]
        sources = {
            side: (name, pages.NOTEBOOKS / f"{self.arguments[0]}_{side}.py", in_python)
            for side, name in pages.NAMES.items()
        }
        if "javascript" in self.options:
            sources["javascript"] = "JavaScript", JAVASCRIPT, in_javascript
        else:
            text.append(":class: twin-code")
        for side, (name, path, find) in sources.items():
            self.env.note_dependency(str(path))
            text += ["", f":::{{tab-item}} {name}", f":sync: {side}", ""]
            for word in self.content:
                kind = "javascript" if path == JAVASCRIPT else "python"
                try:
                    text += [f"```{kind}", *find(path, word).splitlines(), "```"]
                except LookupError as error:
                    logger.warning("%s", error, location=self.get_location())
            text.append(":::")
        found = nodes.container()
        lines = StringList([*text, "::::"], source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, found)
        return found.children


def in_python(path, name):
    """The source of a function or class of a page, the last one, without docstrings."""
    lines = pages.definition(path, name).splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            last += lines[last : last + 1] == [""]  # the blank line after it, too
            lines[first:last] = [None] * (last - first)
    return "\n".join(line for line in lines if line is not None)


def in_javascript(path, name):
    """The source of a function or class, whose name is ``likeThis`` in JavaScript."""
    first, *others = name.split("_")
    name = first + "".join(map(str.capitalize, others))
    pattern = rf"^(?:function {name}\(|class {name}\b).*?^}}$"
    match = re.search(pattern, path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if not match:
        raise LookupError(f"{path.name} defines no {name}")
    return match[0]


def setup(app):
    app.add_directive("twin-code", TwinCode)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
