"""``helpers.prose``: a sentence is Markdown for a notebook and text for a script."""

import subprocess
import sys
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from helpers.prose import say

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SENTENCE = "It finds **98.5 %**."


def test_a_script_prints_the_sentence():
    """Without IPython, which a plain script need not have."""
    code = (
        f"from helpers.prose import say; import sys; say({SENTENCE!r});"
        "assert 'IPython' not in sys.modules"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=NOTEBOOKS, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (SENTENCE, "")


def test_a_table_is_markdown_with_a_line_for_each_row():
    from helpers.prose import table

    assert table(["a", "b"], [1, "**2**"], ["", 3]) == (
        "| a | b |\n| --- | --- |\n| 1 | **2** |\n|  | 3 |"
    )


def test_a_row_with_too_few_cells_raises_an_error():
    from helpers.prose import table

    with pytest.raises(ValueError, match="expected 2 cells in a row, got 1"):
        table(["a", "b"], [1])


def test_a_notebook_shows_the_sentence_as_markdown():
    """One output, of the kind that Jupyter, Colab and the book typeset."""
    code = f"from helpers.prose import say\nsay({SENTENCE!r})"
    notebook = new_notebook(cells=[new_code_cell(code)])
    client = NotebookClient(notebook, resources={"metadata": {"path": str(NOTEBOOKS)}})
    (output,) = client.execute().cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/markdown"] == SENTENCE


def test_anything_but_a_string_raises_an_error():
    with pytest.raises(TypeError, match=r"expected a sentence \(str\), got float"):
        say(0.5)
