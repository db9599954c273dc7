"""Blank notebooks: the pages, less what their open functions do."""

import ast
import subprocess
import sys

import nbformat

import blank
import pages

PAGES = [page for page in pages.toc() if pages.side_of(page)]


def code(notebook):
    """The code cells by their ids."""
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def heads(source):
    """Code whose functions, also of classes, end with their docstrings; their ends."""
    tree, ends = ast.parse(source), []
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in inner:
            if isinstance(function, ast.FunctionDef):
                n = int(ast.get_docstring(function) is not None)
                ends.append("\n".join(map(ast.unparse, function.body[n:])))
                function.body = function.body[:n]
    return ast.dump(tree), ends


def test_every_function_in_an_open_cell_is_blank_and_all_else_stays():
    for page in PAGES:
        notebook = blank.blank(page)
        nbformat.validate(notebook)
        own = code(nbformat.read(pages.ROOT / f"{page}.ipynb", as_version=4))
        cells = code(notebook)
        assert cells.keys() - own.keys() == {"find-helpers"}
        for name, cell in own.items():
            tags = {*cell.metadata.get("tags", [])}
            if "answer" in tags:
                assert name not in cells
            elif tags & pages.FOLDS.keys():
                assert cells[name].source == cell.source
            else:
                blanks, ends = heads(cells[name].source)
                assert blanks == heads(cell.source)[0], f"{page}, {name}"
                assert {*ends} <= {"..."}, f"{page}, {name}"


def test_a_blank_notebook_finds_the_helpers_and_keeps_what_a_reader_wrote(tmp_path):
    """From a folder beside ``notebooks``, twice; a file that is there stays."""
    (tmp_path / "notebooks").symlink_to(pages.NOTEBOOKS)
    folder = tmp_path / "exercises"
    folder.mkdir()
    (folder / "attention_jax.ipynb").write_text("mine")
    blank.write(folder)
    assert (folder / "attention_jax.ipynb").read_text() == "mine"
    assert len([*folder.iterdir()]) == len(PAGES)
    find = code(nbformat.read(folder / "encoder_jax.ipynb", 4))["find-helpers"].source
    program = f"{find}\n{find}\nimport helpers.reference\nprint(os.getcwd())"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.stdout.strip() == str(pages.NOTEBOOKS), done.stderr
