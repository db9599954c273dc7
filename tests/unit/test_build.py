"""Building fails when it should, and its last lines name the page and the cell.

Each test builds a tiny book of its own, with the tools and the settings of this one.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

import pages

pytestmark = pytest.mark.slow
INDEX = """# Tiny

A [page](../notebooks/tiny_jax.ipynb).

```{build-costs}
```

```{measured}
twice | tiny | twice two is ([0-9])
time | tiny | seconds
```
"""
TOC = "format: jb-book\nroot: book/index\nparts:\n  - chapters:\n"
PAGE = """# %% [markdown] tags=["shared"]
# # Tiny
#
# Some words.

# %% tags=["shared"]
from helpers import double

# %% tags=["shared"]
x = double.double(2)
print("twice two is", x)
"""


@pytest.fixture
def tiny(tmp_path):
    """A book of two notebooks and an index; returns its folder."""
    root = tmp_path / "tiny"
    helpers = root / "notebooks" / "helpers"
    helpers.mkdir(parents=True)
    (root / "book").mkdir()
    shutil.copytree(pages.ROOT / "tools", root / "tools")
    shutil.copytree(pages.ROOT / "book/_ext", root / "book/_ext")
    shutil.copytree(pages.ROOT / "requirements", root / "requirements")
    for name in ("_static", "_templates"):
        shutil.copytree(pages.ROOT / "book" / name, root / "book" / name)
    for name in ("_config.yml", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(pages.ROOT / name, root)
    (root / "book" / "references.bib").write_text("")
    (root / "book" / "index.md").write_text(INDEX)
    toc = TOC + "".join(f"    - file: notebooks/tiny_{s}\n" for s in pages.SIDES)
    (root / "_toc.yml").write_text(toc)
    (helpers / "__init__.py").write_text("")
    (helpers / "double.py").write_text("def double(x):\n    return 2 * x\n")
    (root / "notebooks" / "tiny_jax.py").write_text(PAGE)
    (root / "notebooks" / "tiny_torch.py").write_text(
        "# %% [markdown]\n# # T\n\n# %%\n1\n\n# %%\n'twice two is 4'\n"
    )
    return root


def tool(root, name, *arguments):
    """Run one of the tools; return its exit status and the lines it printed."""
    done = subprocess.run(
        [sys.executable, str(root / "tools" / name), *arguments],
        cwd=root,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def build(root, *arguments):
    """Write the notebooks and build; return the status and what was printed."""
    assert tool(root, "sync.py")[0] == 0
    return tool(root, "build_book.py", *arguments)


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def complaints(lines):
    """What stands after the announcement at the end."""
    assert "The book was not built:" in lines, "\n".join(lines[-30:])
    return "\n".join(lines[lines.index("The book was not built:") + 1 :])


def test_a_sound_book_is_built_and_then_up_to_date(tiny):
    """Also a second time, and again when anything changed."""
    status, lines = build(tiny)
    assert status == 0, "\n".join(lines)
    assert "The book is in _build/html/index.html" in lines[-1]
    built = (tiny / "_build/html/notebooks/tiny_jax.html").read_text()
    assert "twice two is 4" in built
    costs = json.loads((tiny / "_build/html/costs.json").read_text())
    assert list(costs) == ["notebooks/tiny_jax", "notebooks/tiny_torch"]
    assert all(
        0 < c["seconds"] < 60 and 10 < c["peak_mib"] < 999 for c in costs.values()
    )
    assert "Tiny" in (tiny / "_build/html/book/index.html").read_text()
    status, lines = build(tiny, "--if-stale")
    assert (status, lines) == (0, ["The book is up to date with its sources."])
    change(tiny / "notebooks/helpers/double.py", "2 * x", "3 * x")
    status, lines = build(tiny, "--if-stale")
    assert status == 0
    assert (
        "twice two is 6" in (tiny / "_build/html/notebooks/tiny_jax.html").read_text()
    )


def test_a_cell_that_fails_is_named(tiny):
    """Here through a broken helper: page, cell, line of the ``.py``, and the error."""
    change(tiny / "notebooks/helpers/double.py", "2 * x", "x / 0")
    status, lines = build(tiny)
    assert status != 0
    said = complaints(lines)
    assert "notebooks/tiny_jax.ipynb, cell 3 (tiny_jax.py, line 9) failed" in said
    assert "ZeroDivisionError: division by zero" in said
    assert not (tiny / "_build" / "sources.sha256").exists()


def test_a_cell_that_warns_is_named(tiny):
    warn = "import warnings; warnings.warn('?')\nx = "
    change(tiny / "notebooks/tiny_jax.py", "x = ", warn)
    status, lines = build(tiny)
    assert status != 0
    assert "notebooks/tiny_jax.ipynb, cell 3 (tiny_jax.py, line 9)" in complaints(lines)
    assert "stderr" in complaints(lines)


def test_a_broken_link_is_named(tiny):
    change(tiny / "notebooks/tiny_jax.py", "Some words.", "See [it](nowhere.ipynb).")
    status, lines = build(tiny)
    assert status != 0
    said = complaints(lines)
    assert "notebooks/tiny_jax.ipynb, cell 1 (tiny_jax.py, line 1)" in said
    assert "nowhere.ipynb" in said


def test_a_page_that_is_missing_is_named(tiny):
    change(tiny / "_toc.yml", "tiny_torch", "tiny_other")
    status, lines = build(tiny)
    assert status != 0 and "notebooks/tiny_other" in complaints(lines)


def test_a_draft_executes_only_what_changed(tiny):
    """A page runs again for its own cells and helpers, not for another page's."""

    def executed():
        status, lines = build(tiny, "--draft")
        assert status == 0, "\n".join(lines[-30:])
        return {
            line.partition("notebooks/")[2].partition(".ipynb")[0]
            for line in lines
            if "Executing notebook" in line
        }

    index = tiny / "_draft/_build/html/book/index.html"
    assert executed() == {"tiny_jax", "tiny_torch"}
    assert executed() == set()
    row = "<td><p>twice</p></td>\n<td><p>4</p></td>\n<td><p>4</p></td>"
    assert row in index.read_text(), "what cached pages printed is still in the table"
    change(tiny / "notebooks/helpers/double.py", "2 * x", "x + x + 1")
    assert executed() == {"tiny_jax"}
    draft = tiny / "_draft/_build/html/notebooks/tiny_jax.html"
    assert "twice two is 5" in draft.read_text()
    assert row.replace("4", "5", 1) in index.read_text()
    change(tiny / "notebooks/tiny_torch.py", "\n1\n", "\n1 + 1\n")
    assert executed() == {"tiny_torch"}
    change(tiny / "notebooks/tiny_jax.py", "Some words.", "Other words.")
    assert executed() == set(), "text alone executes nothing"
    assert "Other words." in draft.read_text()
    lock = tiny / "requirements" / "lock.txt"
    lock.write_text(lock.read_text() + "# newer\n")
    assert executed() == {"tiny_jax", "tiny_torch"}
