"""Blank notebooks: the pages without the definitions that they teach, to write oneself.

    python tools/blank.py FOLDER   CHAPTER_FRAMEWORK.ipynb of every page

A definition that stands open on a page, and under the same name in the framework's
helpers, keeps its signature and docstring; so does one in an answer that checks it.
Check cells stay, unfolded. ``helpers.engine.mine`` hands what was written to later
chapters.
"""

import ast
import re
import sys
from copy import deepcopy
from functools import cache
from itertools import takewhile
from pathlib import Path
from textwrap import wrap

import nbformat

import pages
import sync

ALSO = {"plain_attention", "train_epoch", "train_model"}  # taught, but in no helper
LONG = 24  # characters of a line that gives a definition away
DEFINITIONS = ast.FunctionDef, ast.ClassDef
YOUR_TURN = 'raise NotImplementedError("your turn: {}")'
HEAD = """\
**In this notebook you write the code yourself.** Where a cell says `your turn`, name,
arguments, shapes and attributes are given, and you write the rest. The cells below it
use and check what you wrote. Run the notebook from the top: it stops at what is blank
or wrong. The book's own code is in `{page}.ipynb`.

Keep these notebooks in one folder, under their names: later ones use what you wrote,
or, with `MINE = False`, the book's code. A folder in the book's repository will do; in
Colab, upload them to the files at the left. The way to a model that translates is
attention, encoder, positions, reverse, decoder, translation."""
SWITCH = """\
# In place of the book's definitions, yours: from your notebooks in this folder.
MINE = True  # False takes the book's

from helpers.engine.mine import use_mine

yours = {{
{names}
}}
use_mine("{side}", yours if MINE else {{}})"""
SETUP = {  # what the cell for Colab has, and has here
    "anywhere else it does nothing": "elsewhere it finds them",
    """    os.chdir(os.path.join(folder, "notebooks"))
    sys.path.insert(0, os.getcwd())""": """\
    sys.path.append(os.path.abspath(f"{folder}/notebooks"))
sys.path += map(os.path.abspath, ["notebooks", "../notebooks", "../../notebooks"])""",
}


@cache
def helpers(side):
    """``{name: its source}`` of all that a framework's helpers define."""
    found = {}
    for path in sorted((pages.NOTEBOOKS / "helpers" / side).glob("*.py")):
        text = path.read_text("utf-8")
        nodes = [n for n in ast.parse(text).body if isinstance(n, DEFINITIONS)]
        found |= {node.name: lines(node, text) for node in nodes}
    return found


def lines(node, source):
    """The lines of a definition, with its decorators."""
    first = min(part.lineno for part in [node, *node.decorator_list])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


@cache
def meaning(source):
    """The syntax of a definition, but for docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def taught(cell, side):
    """Definitions in a cell that a reader is to write: ``{name: source}``."""
    tags = {*cell.metadata.get("tags", [])}
    if cell.cell_type != "code" or tags & sync.FOLDS.keys() - {"answer"}:
        return {}
    body = ast.parse(cell.source).body
    if "answer" in tags:  # what it begins with, if the rest checks that
        found = [*takewhile(lambda node: isinstance(node, DEFINITIONS), body)]
        rest = "\n".join(map(ast.unparse, body[len(found) :]))
        found = found if re.search(r"^assert |\btesting\.", rest, re.M) else []
    else:
        names = ALSO | helpers(side).keys()
        found = [n for n in body if isinstance(n, DEFINITIONS) and n.name in names]
    return {node.name: lines(node, cell.source) for node in found}


def blanked(source):
    """A definition without what its functions do.

    Attributes that ``__init__`` sets are named, because checks and later chapters use
    them.
    """
    (node,), rows = ast.parse(source).body, source.splitlines()
    is_class = isinstance(node, ast.ClassDef)
    inner = [n for n in node.body if isinstance(n, ast.FunctionDef)]
    for function in reversed(inner if is_class else [node]):
        documented = ast.get_docstring(function) is not None
        first = (
            function.body[0].end_lineno if documented else function.body[0].lineno - 1
        )
        while rows[first - 1].lstrip().startswith("#"):
            first -= 1
        name = f"{node.name}.{function.name}" if is_class else node.name
        body = [YOUR_TURN.format(name)]
        names = ", ".join(f"self.{name}" for name in attributes(function))
        body = [*wrap(f"# sets {names}", 78, subsequent_indent="# "), *body][
            not names :
        ]
        indent = " " * (function.col_offset + 4)
        rows[first : function.end_lineno] = [indent + row for row in body]
    return "\n".join(rows)


def attributes(function):
    """Names that a method gives ``self``."""
    names = []
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.attr)
        elif isinstance(node, ast.Call) and "register_buffer" in ast.unparse(node.func):
            names.append(node.args[0].value)
    return [*dict.fromkeys(names)]


def shown(source, side):
    """A definition as a blank, with the docstrings of the helpers, which say more."""
    full = helpers(side).get(ast.parse(source).body[0].name, source)
    return blanked(full if meaning(full) == meaning(source) else source)


def telling_lines(source):
    """What stands in a definition, and not in its blank, in long lines."""
    rows = {re.sub(r"\s+# .*", "", row).strip() for row in source.splitlines()}
    rows -= {row.strip() for row in blanked(source).splitlines()}
    return {row for row in rows if len(row) >= LONG}


@cache
def read(page):
    """The cells of a page."""
    return nbformat.read(pages.ROOT / f"{page}.ipynb", as_version=4).cells


@cache
def carried(page):
    """Names of blanks that later pages import: of those that equal the helpers'."""
    side, found = pages.side_of(page), {}
    for cell in read(page):
        if "answer" not in cell.metadata.get("tags", []):
            found |= taught(cell, side)
    own = helpers(side)
    return [n for n in found if n in own and meaning(found[n]) == meaning(own[n])]


def yours(page):
    """What earlier pages of its side carry: ``{chapter: names}``."""
    order = [p for p in pages.toc() if pages.side_of(p) == pages.side_of(page)]
    found = {chapter(p): " ".join(carried(p)) for p in order[: order.index(page)]}
    return {name: names for name, names in found.items() if names}


def chapter(page):
    """The name of the chapter of a page."""
    return page.rpartition("/")[2].rpartition("_")[0]


def blank(page):
    """The blank notebook of a page, such as ``notebooks/attention_jax``."""
    side = pages.side_of(page)
    known = [text for cell in read(page) for text in taught(cell, side).values()]
    secret = set().union(*map(telling_lines, known))
    head = HEAD.format(page=page)
    cells = [nbformat.v4.new_markdown_cell(head, id="how-it-works")]
    for cell in deepcopy(read(page)):
        tags = cell.metadata.get("tags", [])
        cells += with_blanks(cell, side, secret)
        if "setup" in tags:
            cell.source = setup(cell.source)
            cells += switch(page)
    return nbformat.v4.new_notebook(cells=cells, metadata=sync.METADATA)


def with_blanks(cell, side, secret):
    """What becomes of a cell: itself, with blanks, two cells, or nothing."""
    found, tags = taught(cell, side), cell.metadata.get("tags", [])
    if "check" in tags:
        unfold(cell)
    if "answer" not in tags:
        for text in found.values():
            cell.source = cell.source.replace(text, shown(text, side))
        cell.metadata.update({"tags": [*tags, "blank"]} if found else {})
        return [cell]
    rest = cell.source
    for text in found.values():
        rest = rest.replace(text, "").lstrip("\n")
    if re.search(r"\bcheck\(", rest) or any(row in rest for row in secret):
        return []
    if not found:
        return [cell]
    cell.source = rest
    source = "\n\n\n".join(shown(text, side) for text in found.values())
    metadata = {"tags": [*{"shared", *pages.SIDES} & {*tags}, "blank"]}
    mine = nbformat.v4.new_code_cell(source, id=f"{cell.id}-yours", metadata=metadata)
    return [mine, cell]


def unfold(cell):
    """Show the code of a cell that the page folds."""
    for name in ("mystnb", "jupyter", "cellView"):
        cell.metadata.pop(name, None)
    cell.metadata.tags.remove("hide-input")


def setup(source):
    """The cell for Colab, which leaves notebooks where they are, and finds helpers."""
    for old, new in SETUP.items():
        if old not in source:
            raise LookupError(f"expected {old!r} in the set-up")
        source = source.replace(old, new)
    return source


def switch(page):
    """The cell that takes what the reader wrote, if there may be something."""
    side, names = pages.side_of(page), yours(page)
    imports = f"from helpers.{side}"
    if not names or not any(imports in cell.source for cell in read(page)):
        return []
    rows = [f'    "{name}": "{text}",' for name, text in names.items()]
    for i, row in enumerate(rows):
        if len(row) > 88:
            rows[i] = re.sub("(.{60,80}) ", '\\g<1> "\n    "', row, count=1)
    source = SWITCH.format(side=side, names="\n".join(rows))
    return [nbformat.v4.new_code_cell(source, id="mine", metadata={"tags": ["mine"]})]


def write(folder):
    """Write the blank notebook of every page; a file that is there stays."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for page in filter(pages.side_of, pages.toc()):
        path = folder / f"{page.rpartition('/')[2]}.ipynb"
        if not path.exists():
            path.write_text(nbformat.writes(blank(page)) + "\n", "utf-8", newline="\n")


if __name__ == "__main__":
    write(sys.argv[1])
    print(f"{sys.argv[1]}: a blank notebook of every page; a file that was there stays")
