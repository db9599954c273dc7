"""Blank notebooks: the pages without what their functions do, to write it oneself.

    python tools/blank.py FOLDER   CHAPTER_FRAMEWORK.ipynb of every page

In open cells each function, also that of a class, keeps its name, arguments and
docstring. Folded cells stay, checks unfolded; the code of answers does not.
"""

import ast
import sys
from pathlib import Path

import nbformat

import pages

HEAD = """\
**In this notebook you write the code yourself.** Where a cell says `your turn`, name,
arguments and shapes are given, and you write the rest. The cells below it use and check
what you wrote. Run the notebook from the top: it stops at what is blank or wrong. The
book's own code is in `{page}.ipynb`."""
FIND = """\
# The helpers of the book are found from here; in Colab the set-up fetches them.
import os
import sys

for folder in ("notebooks", "../notebooks", "../../notebooks"):
    if os.path.isdir(f"{folder}/helpers"):
        os.chdir(folder)
        sys.path.insert(0, os.getcwd())
        break"""


def blanked(source):
    """Code whose functions have lost what follows their docstrings."""
    rows, functions = source.splitlines(), []
    for node in ast.parse(source).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        functions += [n for n in inner if isinstance(n, ast.FunctionDef)]
    for function in reversed(functions):
        first = function.body[0]
        documented = ast.get_docstring(function) is not None
        start = first.end_lineno if documented else first.lineno - 1
        indent = " " * first.col_offset
        rows[start : function.end_lineno] = [f"{indent}...  # your turn"]
    return "\n".join(rows)


def blank(page):
    """The blank notebook of a page, such as ``notebooks/attention_jax``."""
    notebook = nbformat.read(pages.ROOT / f"{page}.ipynb", as_version=4)
    cells = [nbformat.v4.new_markdown_cell(HEAD.format(page=page), id="how-it-works")]
    cells.append(nbformat.v4.new_code_cell(FIND, id="find-helpers"))
    for cell in notebook.cells:
        tags = {*cell.metadata.get("tags", [])}
        if cell.cell_type == "code" and "answer" in tags:
            continue
        if cell.cell_type == "code" and not tags & pages.FOLDS.keys():
            cell.source = blanked(cell.source)
        if "check" in tags:
            cell.metadata = {"tags": ["check"]}
        cells.append(cell)
    notebook.metadata.pop("jupytext", None)  # it has no .py
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


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
