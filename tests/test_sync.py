"""`make sync` carries an edit to every place where it belongs."""

import shutil
import subprocess
import sys

import nbformat
import pytest

import pages
import sync

PAGE = pages.NOTEBOOKS / "encoder_torch.py"
TWIN = """# %% tags=["shared"]
a = 1

# %% tags=["{side}"]
b = "{side}"

# %% tags=["shared"]
c = 3
"""


@pytest.fixture
def copy(tmp_path):
    """A page and its notebook, in a folder of their own."""
    for path in (PAGE, PAGE.with_suffix(".ipynb")):
        shutil.copy(path, tmp_path)
    return tmp_path / PAGE.name


def jupytext_sync(newer):
    """What ``jupytext --sync`` makes of a pair, when this file is the newer one."""
    newer.touch()
    command = [sys.executable, "-m", "jupytext", "--sync", newer]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("suffix", [".py", ".ipynb"])
def test_jupytext_in_either_direction_loses_nothing(copy, suffix):
    pair = copy, copy.with_suffix(".ipynb")
    before = [path.read_text("utf-8") for path in pair]
    jupytext_sync(copy.with_suffix(suffix))
    assert [path.read_text("utf-8") for path in pair] == before


def test_an_edit_in_a_notebook_arrives_in_the_page(copy):
    path, text = copy.with_suffix(".ipynb"), copy.read_text("utf-8")
    book = nbformat.read(path, as_version=4)
    cell = next(cell for cell in book.cells if cell.source.startswith("## "))
    cell.source = cell.source.replace("## ", "## New: ", 1)
    path.write_text(nbformat.writes(book) + "\n", "utf-8")
    jupytext_sync(path)
    assert copy.read_text("utf-8") == text.replace("# ## ", "# ## New: ", 1)


def test_cells_keep_their_ids_when_others_come_between(copy):
    text = copy.read_text("utf-8")
    before = [cell["id"] for cell in nbformat.read(copy.with_suffix(".ipynb"), 4).cells]
    parts = sync.cells_of(text)
    parts.insert(5, '# %% tags=["torch"]\nnew = 1\n\n')
    after = nbformat.reads(sync.notebook(copy, "".join(parts)), 4).cells
    kept = [cell["id"] for cell in after if cell.source != "new = 1"]
    assert kept == before


@pytest.fixture
def twins(monkeypatch, tmp_path):
    """Two small pages as they were at the last commit, by path."""
    monkeypatch.setattr(pages, "NOTEBOOKS", tmp_path)
    texts = {tmp_path / f"x_{side}.py": TWIN.format(side=side) for side in pages.SIDES}
    monkeypatch.setattr(sync, "in_git", dict(texts).__getitem__)
    return texts


@pytest.mark.parametrize("edited", [0, 1])
def test_a_changed_shared_cell_goes_to_the_twin(twins, edited):
    (one, other) = [*twins][:: -1 if edited else 1]
    new = 'c = 4\n\n# %% tags=["shared"]\nd = 5'
    twins[one] = twins[one].replace("c = 3", new)
    expected = twins[other].replace("c = 3", new)
    sync.carry("x", twins)
    assert twins[other] == expected


def test_a_deleted_shared_cell_is_deleted_in_the_twin(twins):
    one, other = twins
    twins[one] = twins[one].replace('# %% tags=["shared"]\na = 1\n\n', "")
    sync.carry("x", twins)
    assert "a = 1" not in twins[other] and 'b = "torch"' in twins[other]


def test_two_different_edits_are_an_error_that_shows_both(twins):
    for path, new in zip(twins, ("c = 4", "c = 5"), strict=True):
        twins[path] = twins[path].replace("c = 3", new)
    with pytest.raises(SystemExit, match=r"(?s)both twins differ.*c = 4.*c = 5"):
        sync.carry("x", twins)


def test_a_room_imports_what_it_uses_from_where_it_stands():
    cells = """# %% tags=["torch", "setup"]
import math
import torch
from helpers.torch import attention, unused

# %% tags=["torch", "export"]
def f(x):
    return attention(torch.sin(x), math.pi)
"""
    homes = {"attention": "attention"}
    text = sync.room("y", "torch", cells, homes, "export")
    lines = (
        "import math\n\nimport torch\n\nfrom helpers.torch.attention import attention"
    )
    assert lines in text and "unused" not in text
    assert homes["f"] == "y" and '__all__ = "f".split()' in text
