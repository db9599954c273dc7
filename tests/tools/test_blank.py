"""Blank notebooks: filled in with the book's own definitions, they are the pages."""

import ast
import re

import nbformat
import pytest

import blank
import pages
from helpers.engine.mine import names_in

PAGES = [page for page in pages.toc() if pages.side_of(page)]
PATH = ["attention", "encoder", "positions", "reverse", "decoder", "translation"]
GIVEN = "mask = with_causal(mask, q, k) if is_causal else mask"  # also in a fold
every_page = pytest.mark.parametrize("page", PAGES)
both_sides = pytest.mark.parametrize("side", pages.SIDES)


def tags(cell):
    return cell.metadata.get("tags", [])


def definitions(source):
    """``{name: its lines}`` of the functions and classes of a cell."""
    nodes = [n for n in ast.parse(source).body if isinstance(n, blank.DEFINITIONS)]
    return {node.name: blank.lines(node, source) for node in nodes}


def blanks(cell):
    """``{name: its lines}`` of the definitions of a cell that are blank."""
    found = definitions(cell.source) if "blank" in tags(cell) else {}
    return {name: text for name, text in found.items() if "your turn: " in text}


def filled(page):
    """The blank notebook of a page, with the definitions of the page."""
    notebook = blank.blank(page)
    own = {cell.id: cell.source for cell in blank.read(page)}
    for cell in notebook.cells:
        for name, text in blanks(cell).items():
            written = definitions(own[cell.id.removesuffix("-yours")])[name]
            cell.source = cell.source.replace(text, written)
    return notebook


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All notebooks, filled in."""
    folder = tmp_path_factory.mktemp("filled")
    for page in PAGES:
        nbformat.write(filled(page), folder / f"{page.partition('/')[2]}.ipynb")
    return folder


@every_page
def test_filled_in_it_is_the_page(page):
    """Cell by cell, but for the switch, the set-up, and answers that are checked."""
    own = [c for c in blank.read(page) if not is_checked_answer(c)]
    cells = [c for c in filled(page).cells if c.id not in ("how-it-works", "mine")]
    found = []
    for cell in cells:
        if found and found[-1][0] == f"{cell.id}-yours":
            found[-1] = cell.id, f"{found[-1][1]}\n\n\n{cell.source}"
        else:
            found.append((cell.id, cell.source))
    expected = [
        (c.id, blank.setup(c.source) if "setup" in tags(c) else c.source) for c in own
    ]
    assert found == expected
    switches = [c for c in blank.blank(page).cells if "MINE = True" in c.source]
    assert len(switches) == (
        f"from helpers.{pages.side_of(page)}" in "".join(c.source for c in own)
    )


def is_checked_answer(cell):
    return "answer" in tags(cell) and "check(" in cell.source


@every_page
def test_no_line_of_what_is_blank_stands_elsewhere(page):
    """Neither in code nor in text; what is shorter may be anything."""
    cells, own = blank.blank(page).cells, {c.id: c.source for c in blank.read(page)}
    rows = {bare(row) for cell in cells for row in cell.source.splitlines()}
    for cell in cells:
        for name in blanks(cell):
            source = own[cell.id.removesuffix("-yours")]
            body = [row for row in body_rows(source, name) if len(row) >= 24]
            given = {*body} & rows - {GIVEN}
            assert given < {*body} if cell.id.endswith("-yours") else not given, name


def bare(row):
    """A line without its comment."""
    return re.sub(r"\s+# .*", "", row).strip()


def body_rows(source, name):
    """The lines of what the functions of a definition do."""
    (node,) = ast.parse(definitions(source)[name]).body
    rows = definitions(source)[name].splitlines()
    for function in ast.walk(node):
        if isinstance(function, ast.FunctionDef):
            documented = ast.get_docstring(function) is not None
            for part in function.body[documented:]:
                yield from map(bare, rows[part.lineno - 1 : part.end_lineno])


@every_page
def test_each_blank_is_checked(page):
    """By an assertion, or an exercise's check, further down on what it computes."""
    cells = [c for c in filled(page).cells if c.cell_type == "code"]
    names = [(i, n) for i, c in enumerate(blank_code(page)) for n in blanks(c)]
    for start, name in names:
        known, checked = {name}, False
        for cell in cells[start:]:
            for node in ast.parse(cell.source).body:
                binds, uses = names_in(node)
                if uses & known:
                    known |= binds
                    checked |= bool(
                        re.search("assert|raise|testing", ast.unparse(node))
                    ) and not definitions(ast.unparse(node))
        assert checked, name


def blank_code(page):
    return [c for c in blank.blank(page).cells if c.cell_type == "code"]
