"""The build fails when it should, and names the page, the cell and the line.

A tiny book, with the tools and the settings of this one, stands in for the real one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import build_book
import pages

pytestmark = pytest.mark.slow
INDEX = """# Tiny

A [page](../notebooks/tiny_jax.ipynb).

```{nb-exec-table}
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
OTHER = """# %% [markdown]
# # Other

# %%
import os
print("twice two is 4;", "runs:", os.listdir(os.environ["RUNS_FOLDER"]))
print("no bar:", os.environ["TQDM_DISABLE"])
"""


def test_with_other_photos_every_page_is_executed_again(monkeypatch):
    """``$PHOTOS`` belongs to what a page was built from."""
    monkeypatch.delenv("PHOTOS", raising=False)
    before = build_book.digest([])
    assert build_book.digest([]) == before
    monkeypatch.setenv("PHOTOS", "cifar10")
    assert build_book.digest([]) != before


@pytest.fixture
def tiny(tmp_path):
    """A book of two notebooks and an index; returns its folder."""
    root = tmp_path / "tiny"
    ignore = shutil.ignore_patterns("*.md", "__pycache__", "figures")
    for name in ("tools", "requirements", "book"):
        shutil.copytree(pages.ROOT / name, root / name, ignore=ignore)
    for name in ("_config.yml", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(pages.ROOT / name, root)
    helpers = root / "notebooks" / "helpers"
    helpers.mkdir(parents=True)
    (root / "book" / "references.bib").write_text("")
    (root / "book" / "index.md").write_text(INDEX)
    toc = TOC + "".join(f"    - file: notebooks/tiny_{s}\n" for s in pages.SIDES)
    (root / "_toc.yml").write_text(toc)
    (helpers / "__init__.py").write_text("")
    (helpers / "double.py").write_text("def double(x):\n    return 2 * x\n")
    (root / "notebooks" / "tiny_jax.py").write_text(PAGE)
    (root / "notebooks" / "tiny_torch.py").write_text(OTHER)
    return root


def run(root, *command):
    """Write the notebooks and run a command; return its status and what it printed."""
    for step in (["tools/sync.py"], command):
        done = subprocess.run(
            [sys.executable, *step],
            cwd=root,
            env={**os.environ, "NO_COLOR": "1", "RUNS_FOLDER": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
    return done.returncode, done.stdout


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_book_is_built_once_and_a_draft_executes_only_what_changed(tiny):
    """Every page finds an empty folder for runs; a fresh book is left as it is."""
    status, text = run(tiny, "tools/build_book.py")
    assert status == 0, text
    assert "Executing notebook" not in text, "Sphinx finds every page in the cache"
    built = tiny / "_build/html"
    index = (built / "book/index.html").read_text()
    assert "<td><p>twice</p></td>\n<td><p>4</p></td>\n<td><p>4</p></td>" in index
    assert index.count("<td><p>✅</p></td>") == 2, (
        "MyST-NB's own table names both pages"
    )
    other = (built / "notebooks/tiny_torch.html").read_text()
    assert "runs: []\nno bar: 1" in other
    status, text = run(tiny, "tools/build_book.py", "--if-stale")
    assert (status, text) == (0, "The book is up to date with its sources.\n")
    (tiny / "_draft").mkdir()
    shutil.copytree(tiny / "_build", tiny / "_draft" / "_build")
    change(tiny / "notebooks/helpers/double.py", "2 * x", "x + x + 1")
    change(tiny / "notebooks/tiny_torch.py", "# Other", "# Another")
    status, text = run(tiny, "tools/build_book.py", "--draft")
    assert status == 0, text
    draft = tiny / "_draft/_build/html/notebooks"
    assert "twice two is 5" in (draft / "tiny_jax.html").read_text()
    assert "Another" in (draft / "tiny_torch.html").read_text()
    executed = [line for line in text.splitlines() if line.startswith("notebooks/")]
    assert len(executed) == 1 and "tiny_jax" in executed[0]


def test_jupyter_book_alone_executes_the_pages_and_names_a_broken_link(tiny):
    change(tiny / "notebooks/tiny_jax.py", "Some words.", "See [it](nowhere.ipynb).")
    program = str(Path(sys.executable).with_name("jupyter-book"))
    status, text = run(tiny, program, "build", ".", "-W", "--keep-going")
    assert status != 0
    assert "notebooks/tiny_jax.ipynb:10004: WARNING" in text and "nowhere" in text, text
    other = (tiny / "_build/html/notebooks/tiny_torch.html").read_text()
    assert "runs: []\nno bar: 1" in other


FAILURES = {
    "fails": (
        "1\ndouble.double('a') / 2\nx = ",
        "tiny_jax.py, line 11 (cell 3): TypeError: unsupported operand",
        "----> 2 double.double('a') / 2",
    ),
    "writes to stderr": (
        "import warnings; warnings.warn('careful')\nx = ",
        "tiny_jax.py, line 9 (cell 3): writes to stderr",
        "UserWarning: careful",
    ),
    "kills the kernel": (
        "import os; os._exit(9)\nx = ", "tiny_jax.ipynb: Kernel died", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES)
def test_a_cell_that_fails_is_named(tiny, monkeypatch, case):
    """Its file, line and number; the error; the last lines of the traceback."""
    code, first, last = FAILURES[case]
    monkeypatch.setattr(build_book, "ROOT", tiny)
    change(tiny / "notebooks/tiny_jax.py", "x = ", code)
    run(tiny, "-c", "")
    complaint = build_book.execute(tiny / "notebooks/tiny_jax.ipynb")[2]
    assert complaint.startswith(f"notebooks/{first}")
    assert last in complaint


def test_a_page_depends_on_the_helpers_that_it_imports(tiny, monkeypatch):
    monkeypatch.setattr(pages, "NOTEBOOKS", tiny / "notebooks")
    page, other = (tiny / f"notebooks/tiny_{side}.ipynb" for side in pages.SIDES)
    before = build_book.surroundings(page), build_book.surroundings(other)
    change(tiny / "notebooks/helpers/double.py", "2 * x", "x + x")
    assert build_book.surroundings(page) != before[0]
    assert build_book.surroundings(other) == before[1]


def test_the_cached_page_of_myst_markdown_is_the_one_that_the_build_looks_for():
    """Else Sphinx would execute ``book/how-this-was-built.md`` once more."""
    found = [p for p in build_book.executable() if p.suffix == ".md"]
    assert [p.stem for p in found] == ["how-this-was-built"]
    nbformat.validate(build_book.read(found[0]))
