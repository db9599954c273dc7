"""Sentences with computed numbers, as the output of a cell.

A sentence that compares takes its comparing word from ``word``, which raises an error
if the comparison is false: ``say(f"It needs {word('fewer', a, b)} updates.")``.
"""

import json
import sys
from pathlib import Path

import numpy as np

LESS = (
    "less fewer lower smaller shorter narrower weaker cheaper closer nearer below"
    " earlier sooner faster falls drops shrinks"
)
MORE = (
    "more higher larger greater bigger longer wider stronger dearer further above"
    " later slower rises grows exceeds"
)
COMPARES = {
    **dict.fromkeys(LESS.split(), np.less),
    **dict.fromkeys(MORE.split(), np.greater),
    **dict.fromkeys(["at most", "no more"], np.less_equal),
    **dict.fromkeys(["at least", "no less"], np.greater_equal),
}


def word(comparing, a, b):
    """The comparing word itself, one of ``COMPARES``, if ``a`` compares with ``b`` so.

    Of arrays, all pairs must. Of two times or counts of steps, the smaller is faster.
    An unknown word and a false comparison are a ValueError.
    """
    if comparing not in COMPARES:
        raise ValueError(f"expected one of {', '.join(COMPARES)}; got {comparing!r}")
    if not np.all(COMPARES[comparing](a, b)):
        raise ValueError(f"the sentence says {comparing!r}, but compares {a} with {b}")
    return comparing


def say(text):
    """Show a sentence as Markdown: text in Jupyter, Colab and the book, not code.

    Mostly an f-string: ``say(f"**{accuracy:.1%}** of the sets")``. A script prints it.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected a sentence (str), got {type(text).__name__}")
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
