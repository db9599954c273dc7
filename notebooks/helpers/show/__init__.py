"""Sentences, figures, drawings and attention maps to touch; NumPy arrays in."""

import json
import sys
from base64 import b64encode
from pathlib import Path

import safetensors.numpy

from helpers.show import plots, viewer
from helpers.weights import to_arrays

DRAWINGS = Path(__file__).parent / "drawings"


def drawing(name):
    """An architecture, drawn once: an SVG by its name, for the last line of a cell."""
    from IPython.display import SVG

    names = sorted(file.stem for file in DRAWINGS.glob("*.svg"))
    if name not in names:
        raise ValueError(f"expected one of {', '.join(names)}; got {name!r}")
    return SVG((DRAWINGS / f"{name}.svg").read_text(encoding="utf-8"))


def download_link(model, name, *, half=False, metadata=None):
    """A link to a safetensors file of a model, which it contains; ``half``: float16."""
    from IPython.display import HTML

    arrays, dtype = to_arrays(model), "float16" if half else "float32"
    arrays = {key: array.astype(dtype) for key, array in arrays.items()}
    data = safetensors.numpy.save(arrays, metadata)
    address = f"data:application/octet-stream;base64,{b64encode(data).decode()}"
    size = f"{len(data) / 1024:.0f} KiB"
    return HTML(f'<a download="{name}" href="{address}">{name}</a> ({size})')


def say(text):
    """Show a sentence as Markdown: text in Jupyter, Colab and the book, not code.

    Mostly an f-string: ``say(f"**{accuracy:.1%}** of the sets")``. A script prints it.
    """
    ipython = sys.modules.get("IPython")
    if ipython and ipython.get_ipython():
        from IPython.display import Markdown, display

        display(Markdown(text))
    else:
        print(text)


def table(head, *rows):
    """A table in Markdown, for ``say``: the names of the columns, then the rows."""
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"expected {len(head)} cells in a row, got {len(row)}")
    lines = head, ["---"] * len(head), *rows
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def power(x):
    """A number with one digit and a power of ten, as a formula: 5e-05 is 5 · 10^-5."""
    digit, exponent = f"{x:.0e}".split("e")
    return f"${digit} \\cdot 10^{{{int(exponent)}}}$" if float(digit) else "0"


def recorded(kind):
    """Measurements in ``benchmarks/results``, if the folder is there: list of dict.

    ``kind`` is the end of the files' names: ``"cifar10"``, ``"compilation-jax"``.
    """
    folder = Path(__file__).parents[3] / "benchmarks" / "results"
    files = sorted(folder.glob(f"*-{kind}.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
