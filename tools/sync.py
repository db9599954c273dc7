"""Write the ``.ipynb`` of every page from its ``.py``: the same cells, no outputs.

    python tools/sync.py            every page of notebooks/
    python tools/sync.py FILE.py …  these pages

A cell keeps the id that it has in the present ``.ipynb``, also when it is moved or
edited or when cells are inserted around it. A new cell gets an id made from its text,
so the same ``.py`` gives the same ``.ipynb`` on every machine.

In the ``.py`` one tag says what kind of code a cell holds; what the book, Jupyter and
Colab need to fold it is added here.
"""

import hashlib
import sys
from pathlib import Path

import jupytext
import nbformat
from jupytext.combine import map_outputs_to_inputs

ROOT = Path(__file__).resolve().parent.parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

NAMED = {"check": "# Checked: ", "experiment": "# Experiment: "}  # their first lines
FOLDS = {  # kind of cell: the tag that folds it, the line that unfolds it
    "setup": ("hide-input", "the set-up for Colab"),
    "imports": ("hide-input", "the imports"),
    "check": ("hide-input", None),  # its first line says what is checked
    "experiment": ("hide-input", "the code: {}"),
    "figure": ("hide-input", "the code of this figure"),
    "say": ("hide-input", "how these numbers are computed"),
    "answer": ("hide-cell", "the answer"),
}


def folded(metadata, source):
    """Metadata of a cell, with what folds it if one of its tags is in ``FOLDS``.

    Raises
    ------
    ValueError
        If a check does not begin with what it checks, an experiment with what it does.
    """
    found = [tag for tag in metadata.get("tags", []) if tag in FOLDS]
    if not found:
        return metadata
    kind = found[0]
    fold, what = FOLDS[kind]
    begin = NAMED.get(kind, "")
    if not source.startswith(begin):
        first = source.partition("\n")[0]
        raise ValueError(f"expected {kind} to begin with {begin!r}, got {first!r}")
    claim = source.partition("\n")[0].removeprefix(begin)
    if what is None:
        prompts = (f"✓ Checked: {claim}",) * 2
    else:
        prompts = f"Show {what.format(claim)}", f"Hide {what.format(claim)}"
    names = "code_prompt_show", "code_prompt_hide"
    mystnb = dict(zip(names, prompts, strict=True))
    return {
        **metadata,
        "tags": [*metadata["tags"], fold],
        "mystnb": {**metadata.get("mystnb", {}), **mystnb},
        "jupyter": {"source_hidden": True},
        "cellView": "form",
    }


def pages(folder=ROOT / "notebooks"):
    """The ``.py`` of every page, by name."""
    return sorted(Path(folder).glob("*.py"))


def new_id(cell, taken):
    """An id from the text of the cell; a counter tells equal texts apart."""
    for count in range(len(taken) + 1):
        text = f"{cell.cell_type}\n{cell.source}\n{count}"
        candidate = hashlib.sha256(text.encode()).hexdigest()[:8]
        if candidate not in taken:
            return candidate
    raise AssertionError("unreachable: fewer ids are taken than were tried")


def notebook(page):
    """The notebook that belongs to the ``.py``, with the ids of the present one."""
    page = Path(page)
    fresh = jupytext.read(page, fmt="py:percent")
    present = page.with_suffix(".ipynb")
    before = nbformat.read(present, as_version=4).cells if present.exists() else []
    kept = map_outputs_to_inputs(fresh.cells, before)
    ids = [None if old is None else before[old].get("id") for old in kept]
    taken = {cell_id for cell_id in ids if cell_id}
    cells = []
    for cell, cell_id in zip(fresh.cells, ids, strict=True):
        if cell_id is None:
            cell_id = new_id(cell, taken)
            taken.add(cell_id)
        make = {
            "code": nbformat.v4.new_code_cell,
            "markdown": nbformat.v4.new_markdown_cell,
            "raw": nbformat.v4.new_raw_cell,
        }[cell.cell_type]
        cell.metadata.pop("lines_to_next_cell", None)  # only for the way back
        metadata = folded(cell.metadata, cell.source)
        cells.append(make(cell.source, id=cell_id, metadata=metadata))
    result = nbformat.v4.new_notebook(cells=cells, metadata=METADATA)
    nbformat.validate(result)
    return result


def text(page):
    """The content of the page's ``.ipynb``, to the byte."""
    return nbformat.writes(notebook(page)) + "\n"


def main(arguments):
    for page in [Path(name) for name in arguments] or pages():
        target, wanted = page.with_suffix(".ipynb"), text(page)
        if target.exists() and target.read_text(encoding="utf-8") == wanted:
            continue
        target.write_text(wanted, encoding="utf-8", newline="\n")
        print(f"{target.name}: written")


if __name__ == "__main__":
    main(sys.argv[1:])
