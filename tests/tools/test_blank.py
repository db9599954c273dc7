"""Blank notebooks: filled in with the book's own definitions, they are the pages."""

import ast
import re
import subprocess
import sys
from copy import copy, deepcopy
from importlib import import_module
from pathlib import Path

import jax
import nbformat
import numpy as np
import pytest

import blank
import pages
from helpers.engine.mine import names_in, use_mine

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


@every_page
def test_a_file_that_is_there_stays(page, tmp_path, monkeypatch):
    """It may be what somebody wrote; the others are written."""
    monkeypatch.setattr(pages, "toc", lambda: ["book/index", page])
    path = tmp_path / "new" / f"{page.partition('/')[2]}.ipynb"
    blank.write(path.parent)
    assert nbformat.read(path, as_version=4) == blank.blank(page)
    path.write_text("mine")
    blank.write(path.parent)
    assert path.read_text() == "mine"
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    ("folder", "modules"),
    [
        ("mine", ()),
        ("_build/exercises", ()),
        ("notebooks", ()),
        ("", ("google.colab",)),
    ],
)
def test_the_set_up_finds_the_helpers(folder, modules, tmp_path):
    """Below a checkout, beside its pages, and where Colab has cloned it."""
    name = pages.repository().rpartition("/")[2]
    (checkout := tmp_path / name).mkdir()
    (checkout / "notebooks").symlink_to(pages.NOTEBOOKS)
    (cwd := checkout / folder if folder else tmp_path).mkdir(
        parents=True, exist_ok=True
    )
    cells = blank.blank("notebooks/encoder_torch").cells
    (source,) = [cell.source for cell in cells if "setup" in tags(cell)]
    lines = [f"import sys; sys.modules |= dict.fromkeys({modules}, sys)", source]
    lines.append("import os, helpers.engine; print(os.getcwd(), helpers.__path__[0])")
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    where, found = done.stdout.split()
    assert Path(where) == cwd.resolve()
    assert Path(found).resolve() == pages.NOTEBOOKS / "helpers"


@pytest.fixture
def rooms():
    """The helpers of both frameworks, which are the book's again afterwards."""
    rooms = {side: import_module(f"helpers.{side}") for side in pages.SIDES}
    states = [(room, {**vars(room)}, [*room.__path__]) for room in rooms.values()]
    kept = {name: module for name, module in sys.modules.items() if is_inside(name)}
    yield rooms
    for name in filter(is_inside, [*sys.modules]):
        del sys.modules[name]
    sys.modules.update(kept)
    for room, names, path in states:
        vars(room).update(names)
        room.__path__[:] = path


def is_inside(module):
    return module.startswith(("helpers.jax.", "helpers.torch."))


def write_notebook(path, *sources):
    cells = [*map(nbformat.v4.new_code_cell, sources)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


WRITTEN = [  # a notebook as somebody may have written it
    "%matplotlib inline",
    "from fractions import Fraction as Part\nsize = len('abc')",
    "def half(n):\n    return n // 2  # too early: written again below",
    "def merge_heads(values):\n    return half(size), scale(Part(1, 2)), values",
    "def half(n):\n    return Part(n, 2)",
    "size = size + 1",
    "def scale(part):\n    return part * size",
    "def masked_softmax(scores, mask=None):\n    raise OSError('not called')",
    "merge_heads(1)\nraise SystemExit('only definitions are taken')",
]


@both_sides
def test_what_was_written_is_used(side, rooms, tmp_path, capsys):
    """With the imports, functions and values that it needs; then the book's again."""
    write_notebook(tmp_path / f"attention_{side}.ipynb", *WRITTEN)
    theirs = rooms[side].merge_heads
    use_mine(side, {"attention": "merge_heads"}, tmp_path)
    said = f"attention_{side}.ipynb, yours: merge_heads\n"
    assert capsys.readouterr().out == said
    for module in (rooms[side], import_module(f"helpers.{side}.generation")):
        assert module.merge_heads(5) == (2, 2, 5)
    use_mine(side, {}, tmp_path)
    assert capsys.readouterr().out == ""
    found = rooms[side].merge_heads
    assert found.__code__ == theirs.__code__ and found.__module__ == theirs.__module__


@both_sides
def test_later_classes_are_built_on_what_was_written(side, rooms, folder, capsys):
    """As a base, as a default, in a table: no class of the book is left behind."""
    use_mine(side, {"attention": "MultiHeadAttention"}, folder)
    mine, room = rooms[side].MultiHeadAttention, rooms[side]
    assert "mine-" in sys.modules[mine.__module__].__file__
    assert mine in room.RotaryAttention.__mro__
    assert room.EncoderBlock.__init__.__kwdefaults__["attention"] is mine
    assert room.POSITIONS["learned"][1] is mine
    assert "yours: MultiHeadAttention" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["def dense(n, size=nothing): 0"], "NameError: name 'nothing' is not defined"),
        (["class dense(object, object): 0"], "TypeError: duplicate base class object"),
        (
            ['def dense(): raise A("your turn: dense")'],
            "LookupError: dense is still blank",
        ),
        (["def dense(n:"], "LookupError: dense is not defined"),
        (["dense = 1"], "LookupError: dense is not defined"),
        ([], "LookupError: dense is not defined"),
    ],
)
def test_what_cannot_be_used_is_said_and_the_books_is_taken(
    sources, said, rooms, tmp_path, capsys
):
    theirs = rooms["torch"].dense.__code__.co_code
    sources = [*sources, "def merge_heads(values): return 5"]
    write_notebook(tmp_path / "attention_torch.ipynb", *sources)
    use_mine("torch", {"attention": "dense merge_heads"}, tmp_path)
    lines = f"the book's ({said}): dense", "yours: merge_heads"
    expected = "".join(f"attention_torch.ipynb, {line}\n" for line in lines)
    assert capsys.readouterr().out == expected
    assert rooms["torch"].dense.__code__.co_code == theirs
    assert rooms["torch"].merge_heads(1) == 5


@pytest.mark.parametrize("text", [None, "no JSON", "[]", "{}", '{"cells": [1]}'])
def test_what_is_no_notebook_is_said_in_one_line(text, rooms, tmp_path, capsys):
    if text is not None:
        (tmp_path / "attention_torch.ipynb").write_text(text)
    use_mine("torch", {"attention": "dense merge_heads"}, tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    begin, end = "attention_torch.ipynb, the book's (", "): dense, merge_heads"
    assert line.startswith(begin) and line.endswith(end)


TRAINS = {"fit", "train_model", "runs_folder"}  # minutes: left out, with what needs it


class Run:
    """Code of a notebook in this process, without what needs a training or a figure."""

    def __init__(self, names=(), missing=TRAINS):
        self.names, self.missing = {"__name__": "notebook", **dict(names)}, {*missing}

    def copy(self):
        """Another run, from here on."""
        kinds = {list: copy, dict: copy, set: copy, np.random.Generator: deepcopy}
        names = {n: kinds.get(type(x), lambda x: x)(x) for n, x in self.names.items()}
        return Run(names, self.missing)

    def cell(self, cell, forced=()):
        """Run what can be run, and what uses forced names; whether that is all."""
        complete = True
        for node in ast.parse(cell.source).body:
            binds, uses = names_in(node)
            absent = {"figure"} & {*tags(cell)} | uses & self.missing
            if not absent or isinstance(node, blank.DEFINITIONS) or uses & {*forced}:
                exec(compile(ast.Module([node], []), "cell", "exec"), self.names)
            else:
                complete = False
                if uses & self.missing:
                    self.missing |= {n for n in uses if changes(self.names.get(n))}
            self.missing = self.missing | binds if absent else self.missing - binds
            self.missing |= TRAINS
        return complete

    def error(self, cells, name):
        """What the first blank says that cells come to, which use a name."""
        run, forced = self.copy(), {name}
        for cell in cells:
            for node in ast.parse(cell.source).body:
                binds, uses = names_in(node)
                if uses & forced and isinstance(node, blank.DEFINITIONS):
                    forced |= binds
            try:
                run.cell(cell, forced)
            except NotImplementedError as error:
                return str(error)
            except Exception:  # something is missing
                continue
        return None


def changes(value):
    """Whether a training or a figure may change it: a collection, or a model."""
    return isinstance(value, list | dict) or hasattr(value, "train")


@pytest.fixture
def quick():
    """XLA compiles in less time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def code_of(page):
    """The code cells of a notebook that is filled in, which run in this process."""
    cells = [cell for cell in filled(page).cells if cell.cell_type == "code"]
    return [cell for cell in cells if not {"setup", "your-turn"} & {*tags(cell)}]


UNSEEN = {
    "attention_maps",
    "attend_and_keep",
    "RotaryAttention",
}  # used by what is left out


@pytest.mark.slow
@both_sides
def test_filled_in_all_of_it_runs_on_what_was_written(
    side, folder, rooms, quick, monkeypatch
):
    """On what was written before, apart from trainings; every blank left raises.

    In JAX, which compiles for long, to the whole encoder.
    """
    monkeypatch.chdir(folder)
    for chapter in PATH if side == "torch" else PATH[:3]:
        page, run, complete = f"notebooks/{chapter}_{side}", Run(), []
        left = {cell.id: blanks(cell) for cell in blank.blank(page).cells}
        cells = code_of(page)
        for place, cell in enumerate(cells):
            for name in left[cell.id].keys() - UNSEEN:
                first, written = deepcopy(cell), definitions(cell.source)[name]
                first.source = cell.source.replace(written, left[cell.id][name])
                said = run.error([first, *cells[place + 1 :]], name)
                assert re.fullmatch(rf"your turn: {name}(\.\w+)?", f"{said}"), name
            done = run.cell(cell)
            complete += [done] if "check" in tags(cell) else []
        assert sum(complete) >= (len(complete) / 2 if chapter in PATH[:3] else 1), (
            chapter
        )


@both_sides
def test_a_mistake_fails_the_check_that_follows(
    side, folder, rooms, quick, monkeypatch
):
    """Attention that divides by d, not by its root: before anything is built on it."""
    monkeypatch.chdir(folder)
    cells, run = code_of(f"notebooks/attention_{side}"), Run()
    (place,) = [i for i, c in enumerate(cells) if "def attention(" in c.source]
    written = cells[place].source
    cells[place].source = written.replace("math.sqrt(q.shape[-1])", "q.shape[-1]")
    assert cells[place].source != written
    with pytest.raises(AssertionError):
        for cell in cells:
            run.cell(cell)
    assert "check" in tags(cell) and "MultiHeadAttention" not in run.names
