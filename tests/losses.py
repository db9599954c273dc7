"""Compare the trainings of pages with the losses recorded in ``losses.json``.

    python tests/losses.py reverse_torch vision_jax …

Runs each page with a ``fit`` that keeps its losses. A training is the recorded one if
its first twenty losses are. Those that are new, no more, or end elsewhere are named.
"""

import json
import sys
import tempfile
from pathlib import Path

import nbformat
import numpy as np
from nbclient import NotebookClient

FILE = Path(__file__).with_name("losses.json")
NOTEBOOKS = FILE.parents[1] / "notebooks"
WRAP = """
import json as _json, helpers.{side}, helpers.{side}.reverse as _room
def _kept(*args, _fit=_room.fit, **options):
    history = _fit(*args, **options)
    with open("{path}", "a") as file:
        print(_json.dumps(history["loss"].tolist()), file=file)
    return history
_room.fit = helpers.{side}.fit = fit = _kept
"""


def losses_of(page, path):
    """The losses of every training of a page, run from its notebook."""
    book = nbformat.read(NOTEBOOKS / f"{page}.ipynb", as_version=4)
    cell = nbformat.v4.new_code_cell(WRAP.format(side=page.split("_")[1], path=path))
    for one in book.cells:  # reverse defines the loop itself
        one.source += "\nfit = _kept" if "def fit(" in one.source else ""
    book.cells.insert(1, cell)
    place = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(book, timeout=1800, resources=place).execute()
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare(found, recorded):
    """Sentences about what differs between trainings and their record."""
    left = list(recorded)
    for losses in found:
        like = [one for one in left if one["updates"] == len(losses)]
        same = [o for o in like if np.allclose(o["first"], losses[:20], rtol=1e-3)]
        if not same:
            yield f"a training of {len(losses)} updates begins at {losses[0]:.4f}: new"
            continue
        left.remove(same[0])
        last, then = np.mean(losses[-20:]), same[0]["last"]
        if not np.isclose(last, then, rtol=0.5, atol=0.01):
            yield f"it ends at {last:.4f}, recorded: {then}"
    for one in left:
        yield f"a training of {one['updates']} updates is no more"


if __name__ == "__main__":
    for page in sys.argv[1:]:
        found = losses_of(page, Path(tempfile.mkdtemp(), "losses"))
        differ = list(compare(found, json.loads(FILE.read_text()).get(page, [])))
        print(page, *(differ or ["as recorded"]), sep="\n  ")
