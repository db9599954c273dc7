"""Sentences with computed numbers, as the output of a cell."""

import sys


def say(text):
    """Show a sentence as Markdown: text in Jupyter, Colab and the book, not code.

    Parameters
    ----------
    text : str
        Markdown, mostly an f-string: ``say(f"**{accuracy:.1%}** of the sets")``. A
        plain script prints it.

    Raises
    ------
    TypeError
        If it is no string.
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
    """A table in Markdown, for ``say``.

    Parameters
    ----------
    head : list of str
        Names of the columns.
    *rows : list
        Cells; as many as there are columns.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If a row has another number of cells.
    """
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"expected {len(head)} cells in a row, got {len(row)}")
    lines = head, ["---"] * len(head), *rows
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
