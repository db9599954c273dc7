"""The two pages of a chapter are one text; only the framework speaks differently."""

import ast
import re
from itertools import zip_longest

import pytest

import pages

CHAPTERS = pages.chapters()
SHARED_WORDS = 0.70


def twin(chapter, side):
    """The cells of a page."""
    return pages.read_py(pages.NOTEBOOKS / f"{chapter}_{side}.py")


def first_difference(left, right):
    """The first lines that are not equal, with their numbers."""
    pairs = zip_longest(left.splitlines(), right.splitlines(), fillvalue="(no line)")
    for number, (a, b) in enumerate(pairs, start=1):
        if a != b:
            return f"line {number} of the cell\n  here:  {a}\n  there: {b}"
    return "only its metadata"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_chapter_has_both_pages(chapter):
    for side in pages.SIDES:
        assert (pages.NOTEBOOKS / f"{chapter}_{side}.py").exists(), (
            f"notebooks/{chapter}_{side}.py is missing: every page has a twin"
        )


@pytest.mark.parametrize("chapter", CHAPTERS)
@pytest.mark.parametrize("side", pages.SIDES)
def test_every_cell_says_whose_it_is(chapter, side):
    """Exactly one of the tags ``shared`` and the name of the page's own side."""
    for cell in twin(chapter, side):
        assert cell.side in ("shared", side), (
            f"{cell}: exactly one of the tags 'shared' and '{side}', not {cell.tags}"
        )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_twins_go_cell_by_cell(chapter):
    """A shared cell is the same to the letter; the others have a counterpart."""
    left, right = (twin(chapter, side) for side in pages.SIDES)
    for a, b in zip(left, right, strict=False):
        pair = f"{a} and {b}"
        assert (a.side == "shared") == (b.side == "shared"), (
            f"{pair}: one is shared, the other is not"
        )
        assert a.kind == b.kind, f"{pair}: one is {a.kind}, the other {b.kind}"
        if a.side == "shared":
            same = a.source == b.source and a.metadata == b.metadata
            assert same, (
                f"{pair} are shared, but: {first_difference(a.source, b.source)}"
            )
        else:
            others = [[tag for tag in cell.tags if tag != cell.side] for cell in (a, b)]
            assert others[0] == others[1], f"{pair}: other tags differ: {others}"
    assert len(left) == len(right), (
        f"{left[0].page} has {len(left)} cells, {right[0].page} has {len(right)}"
    )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_headings_are_the_same(chapter):
    left, right = (
        [
            (line, cell)
            for cell in twin(chapter, side)
            if cell.kind == "markdown"
            for line in cell.source.splitlines()
            if re.match(r"#{1,6} ", line)
        ]
        for side in pages.SIDES
    )
    for (a, cell), (b, other) in zip(left, right, strict=False):
        assert a == b, f"{cell}: {a!r}, but {other}: {b!r}"
    assert len(left) == len(right)
    assert left[0][0].startswith("# ") and sum(a.startswith("# ") for a, _ in left) == 1


def definitions(cells):
    """Names of all classes and functions of a page, in order, with their cells."""
    return [
        (node.name, type(node).__name__, cell)
        for cell in cells
        if cell.kind == "code"
        for node in ast.parse(cell.source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_definitions_stand_in_the_same_order(chapter):
    left, right = (definitions(twin(chapter, side)) for side in pages.SIDES)
    for a, b in zip(left, right, strict=False):
        assert a[:2] == b[:2], f"{a[2]} defines {a[0]}, but {b[2]} defines {b[0]}"
    assert len(left) == len(right), (
        f"{chapter}: {len(left)} definitions in JAX, {len(right)} in PyTorch"
    )
    assert left, f"{chapter} defines nothing"


@pytest.mark.parametrize("chapter", CHAPTERS)
@pytest.mark.parametrize("side", pages.SIDES)
def test_most_words_are_shared(chapter, side):
    """At least 70 % of the words of a page stand in both twins."""
    words = {"shared": 0, side: 0}
    for cell in twin(chapter, side):
        if cell.kind == "markdown":
            words[cell.side or side] += len(cell.source.split())
    share = words["shared"] / sum(words.values())
    assert share >= SHARED_WORDS, (
        f"{chapter}_{side}: only {share:.0%} of the words shared"
    )


@pytest.mark.parametrize("chapter", CHAPTERS)
@pytest.mark.parametrize("side", pages.SIDES)
def test_twins_link_to_each_other(chapter, side):
    """By name, within the first three cells."""
    other = f"{chapter}_{'torch' if side == 'jax' else 'jax'}"
    head = "\n".join(cell.source for cell in twin(chapter, side)[:3])
    assert f"]({other}.ipynb)" in head, (
        f"{chapter}_{side}.py does not link to {other}.ipynb in its first three cells"
    )


def without_docstrings(node):
    """The definition without its docstrings, as comparable text."""
    node = ast.parse(ast.unparse(node)).body[0]
    for inner in ast.walk(node):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            inner
        ):
            inner.body = inner.body[1:] or [ast.Pass()]
    return node


def module_definitions(path):
    """Classes and functions of a module by name."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {n.name: n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.parametrize("chapter", CHAPTERS)
@pytest.mark.parametrize("side", pages.SIDES)
def test_classes_are_those_that_later_pages_use(chapter, side):
    """What a page builds and the helpers hold is one and the same.

    If a page builds a thing twice, the last one is meant.
    """
    model = {}
    helpers = pages.NOTEBOOKS / "helpers"
    files = sorted((helpers / side).glob("*.py"))
    for path in (*files, helpers / "schedules.py", helpers / "data" / "sets.py"):
        found = module_definitions(path)
        found.pop("__getattr__", None)
        assert not set(found) & set(model), f"defined twice: {set(found) & set(model)}"
        model |= found
    on_page = {}
    for cell in twin(chapter, side):
        if cell.kind == "code":
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    on_page[node.name] = node, cell
    both = sorted(set(on_page) & set(model))
    draft = pages.is_draft(f"notebooks/{chapter}_{side}")
    applies = chapter in (
        "costs",
        "debugging",
        "reverse",  # its loop is a short ``fit``, of another name
        "scaling",
    )  # what earlier chapters have built
    assert both or draft or applies, (
        f"{chapter}_{side} builds nothing that the helpers hold"
    )
    for name in both:
        node, cell = on_page[name]
        a, b = without_docstrings(node), without_docstrings(model[name])
        assert ast.dump(a) == ast.dump(b), (
            f"{cell}: {name} is not the one of the helpers: "
            f"{first_difference(ast.unparse(a), ast.unparse(b))}"
        )
