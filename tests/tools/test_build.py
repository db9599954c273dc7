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
STATE = """import sys; sys.path.append("tools")
import build_book
print(build_book.is_fresh(), [page.stem for page in build_book.outdated()])
"""
OTHER = """# %% [markdown]
# # Other

# %%
import os
print("twice two is 4;", "runs:", os.listdir(os.environ["RUNS_FOLDER"]))
print("no bar:", os.environ["TQDM_DISABLE"])
"""


@pytest.fixture
def tiny(tmp_path):
    """A book of two notebooks and an index; returns its folder."""
    root = tmp_path / "tiny"
    ignore = shutil.ignore_patterns("*.md", "__pycache__", "figures")
    for name in ("tools", "book"):
        shutil.copytree(pages.ROOT / name, root / name, ignore=ignore)
    for name in ("_config.yml", "CHANGELOG.md", "CITATION.cff", "requirements.txt"):
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


def test_a_book_is_built_once_and_later_only_what_changed(tiny):
    """Every page finds an empty folder for runs; a fresh book is left as it is."""
    status, text = run(tiny, "tools/build_book.py")
    assert status == 0, text
    assert "Executing notebook" not in text, "Sphinx finds every page in the cache"
    assert "2 pages executed in " in text
    built = tiny / "_build/html"
    index = (built / "book/index.html").read_text()
    assert "<td><p>twice</p></td>\n<td><p>4</p></td>\n<td><p>4</p></td>" in index
    assert index.count("<td><p>✅</p></td>") == 2, (
        "MyST-NB's own table names both pages"
    )
    other = (built / "notebooks/tiny_torch.html").read_text()
    assert "runs: []\nno bar: 1" in other
    status, text = run(tiny, "tools/build_book.py", "--if-stale", "--times", "times")
    assert (status, text) == (0, "The book is up to date with its sources.\n")
    assert (tiny / "times").read_text() == "pages 0 s\nSphinx 0 s\n"
    (tiny / "book/_static/book.css").write_text("/* another style */")
    change(tiny / "notebooks/tiny_torch.py", "# Other", "# Another")
    assert run(tiny, "-c", STATE) == (0, "False []\n")
    change(tiny / "notebooks/helpers/double.py", "2 * x", "x + x + 1")
    assert run(tiny, "-c", STATE) == (0, "False ['tiny_jax']\n")


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


SHARED = {  # helpers that read files and import by name
    "__init__": "",
    "alone": "import numpy",
    "jax/__init__": "def __getattr__(name):\n    return import_module('…')",
    "jax/vision": "from helpers.data import sets",
    "data/__init__": "",
    "data/sets": "",
    "data/text": "",
    "show/__init__": "",
    "show/prose": "def recorded(kind):\n    return 'benchmarks', 'results'",
    "show/viewer/__init__": "",
    "twin": "import_module(f'helpers.{side}.vision')",
}
SHIPPED = (
    "show/viewer/viewer.js show/viewer/viewer.css data/files/words.txt data/co2.csv"
)
SHOW = {"show/__init__.py", "show/prose.py"}
DATA = {"data/__init__.py", "data/co2.csv", "data/files/words.txt"}
VIEWER = {"show/__init__.py"} | {
    f"show/viewer/{name}" for name in ("__init__.py", "viewer.js", "viewer.css")
}
RESULTS = {"results/cifar10.json", "results/tied.md"}
TOOLS = {"tools/data.py", "tools/sync.py"}
DEPENDENCIES = {
    "import json": set(),
    "from helpers import alone": {"alone.py"},
    "def later():\n    from helpers import alone": {"alone.py"},
    "from helpers.jax import Vision": DATA | {
        "jax/__init__.py", "jax/vision.py", "data/sets.py"
    },  # loaded lazily
    "from helpers import twin": {f"{n}.py" for n in SHARED} | {*SHIPPED.split()},
    "from helpers.show import viewer": VIEWER,
    "np.genfromtxt('helpers/data/co2.csv')": {"data/co2.csv"},
    "from helpers.data import text": DATA | {"data/text.py"},
    "from helpers.show import prose": SHOW,
    "from helpers.show.prose import recorded\nrecorded('cifar10')": SHOW | RESULTS,
    "open('../benchmarks/results/tied.md')": RESULTS,
    "run('../tools/data.py')": {"tools/data.py"},
}  # fmt: skip


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page without code, beside helpers that read files."""
    monkeypatch.setattr(pages, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(build_book, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(build_book, "TOOLS", tmp_path / "tools")
    files = {f"helpers/{name}.py": text for name, text in SHARED.items()}
    files |= dict.fromkeys(f"helpers/{name}" for name in SHIPPED.split())
    for name, text in (files | dict.fromkeys(RESULTS | TOOLS)).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text or "")
    (tmp_path / "page_jax.py").write_text("")
    return tmp_path / "page_jax.ipynb"


@pytest.mark.parametrize("code", DEPENDENCIES)
def test_a_page_depends_on_what_it_imports_and_reads(page, code):
    page.with_suffix(".py").write_text(code)
    found = {p.relative_to(page.parent) for p in build_book.dependencies(page)}
    found = {path.as_posix().removeprefix("helpers/") for path in found}
    always = {"__init__.py"} if "import" in code and "helpers" in code else set()
    assert found == DEPENDENCIES[code] | always


def test_a_page_depends_on_data_variables_and_versions(page, monkeypatch):
    """Not only on names: also on the contents of what they name."""
    seen = {build_book.dependency_digest(page)}

    def is_new():
        before = len(seen)
        seen.add(build_book.dependency_digest(page))
        return len(seen) > before

    assert not is_new()
    text = page.with_name("my.txt")
    text.write_text("short")
    variables = {"PHOTOS": "cifar10", "TEXT_FILE": str(text), "OMP_NUM_THREADS": "7"}
    for name, value in (variables | {"XLA_FLAGS": "--xla_one"}).items():
        monkeypatch.setenv(name, value)
        assert is_new(), name
    text.write_text("longer")
    assert is_new()
    monkeypatch.setenv("DATA_FOLDER", str(page.parent))
    assert is_new()
    page.with_name("cifar10.npz").write_bytes(b"photos")
    assert is_new()
    monkeypatch.setattr(build_book, "versions", lambda: ["jax 0.0"])
    assert is_new()


def test_a_page_does_not_depend_on_packages_that_none_needs(
    page, tmp_path, monkeypatch
):
    """A tool that an author installs executes no page; another NumPy executes all."""
    monkeypatch.setattr(build_book, "versions", build_book.versions.__wrapped__)
    before = build_book.dependency_digest(page)
    for name, is_needed in {"authors-tool": False, "numpy": True}.items():
        about = tmp_path / name / f"{name}-0.0.dist-info" / "METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0\n")
        monkeypatch.syspath_prepend(tmp_path / name)
        assert (build_book.dependency_digest(page) != before) == is_needed, name


def test_the_cached_page_of_myst_markdown_is_the_one_that_the_build_looks_for():
    """Else Sphinx would execute ``book/how-this-was-built.md`` once more."""
    found = [p for p in build_book.executable() if p.suffix == ".md"]
    assert [p.stem for p in found] == ["how-this-was-built"]
    nbformat.validate(build_book.read(found[0]))
