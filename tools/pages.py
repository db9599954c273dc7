"""The pages as the tools and the tests see them: their cells, and where each stands."""

import ast
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jupytext
import yaml

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
NAMES = {"jax": "JAX", "torch": "PyTorch"}
SIDES = tuple(NAMES)
FOLDS = {  # kind of cell: what is folded, the line that unfolds it
    "setup": ("input", "Show the set-up"),
    "check": ("input", "✓ {}"),  # the cell's first line says what is checked
    "experiment": ("input", "Show the code: {}"),
    "figure": ("input", "Show the code of this figure"),
    "say": ("input", "Show how these numbers are computed"),
    "answer": ("all", "Show the answer"),
}


@dataclass(frozen=True)
class Cell:
    """One cell of a page; ``number`` counts all cells of the page from 1."""

    page: str
    number: int
    kind: str
    source: str
    metadata: dict = field(hash=False)
    line: int = 0
    id: str = ""

    @property
    def tags(self):
        return self.metadata.get("tags", [])

    @property
    def side(self):
        """``shared``, ``jax`` or ``torch``."""
        found = [tag for tag in self.tags if tag in ("shared", *SIDES)]
        return found[0] if len(found) == 1 else None

    def __str__(self):
        line = f" (line {self.line})" if self.line else ""
        return f"{self.page}, cell {self.number}{line}"


def config():
    """The settings of the book."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def repository():
    """The address of the repository, from the one place where it is written."""
    return config()["repository"]["url"]


def addresses(url):
    """Every form in which pages name the repository: itself, in Colab, its own site.

    Only GitHub has the last two; elsewhere all three are the repository itself.
    """
    if not url.startswith("https://github.com/"):
        return url, url, url
    where = url.removeprefix("https://github.com/")
    owner, _, project = where.partition("/")
    colab = f"https://colab.research.google.com/github/{where}"
    return url, colab, f"https://{owner.lower()}.github.io/{project}"


def sources():
    """The ``.py`` of every page."""
    return sorted(NOTEBOOKS.glob("*.py"))


def read_py(path):
    """Cells of a page in the percent format, each with its line in the file."""
    return [*parse(path.name, path.read_text("utf-8"))]


@cache
def parse(name, text):
    """The cells in the text of a page."""
    found = jupytext.reads(text, fmt="py:percent").cells
    lines = enumerate(text.splitlines(), start=1)
    markers = [number for number, line in lines if line.startswith("# %%")]
    cells = []
    for number, cell in enumerate(found, start=1):
        cell.metadata.pop("lines_to_next_cell", None)
        line = markers[number - 1] if len(markers) == len(found) else 0
        place = name, number, cell.cell_type
        cells.append(Cell(*place, cell.source, cell.metadata, line))
    return cells


def side_of(page):
    """``"jax"`` or ``"torch"`` for a page of a chapter, else None."""
    side = page.rpartition("_")[2]
    return side if page.startswith("notebooks/") and side in NAMES else None


def definition(path, name):
    """The source of a function or class of a page, the last one; or LookupError."""
    found = None
    for cell in read_py(path):
        for node in ast.parse(cell.source).body if cell.kind == "code" else []:
            if getattr(node, "name", None) == name:
                lines = cell.source.splitlines()
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                found = "\n".join(lines[first - 1 : node.end_lineno])
    if found is None:
        raise LookupError(f"notebooks/{path.name} defines no {name}")
    return found


def chapters():
    """Names of the chapters that have pages, in the order of the book."""
    files = [page for page in toc() if side_of(page) == "jax"]
    return [page.removeprefix("notebooks/").removesuffix("_jax") for page in files]


def toc():
    """Every page of ``_toc.yml``, in order, without its ending."""
    content = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found = [content["root"]]
    for part in content["parts"]:
        found += [chapter["file"] for chapter in part["chapters"]]
    return found


def setup(_app):
    """Named among the extensions in ``_config.yml``, so that those can import it.

    Pages that Sphinx itself executes show no bars, which go to stderr.
    """
    os.environ["TQDM_DISABLE"] = "1"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
