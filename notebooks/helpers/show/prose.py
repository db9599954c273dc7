"""Sentences with computed numbers, as the output of a cell."""

import json
import sys
from pathlib import Path


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
