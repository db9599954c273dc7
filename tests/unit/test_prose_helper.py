"""``helpers.show.prose``: a sentence is Markdown in a notebook, text in a script."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.show.prose import COMPARES, power, recorded, say, word

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SENTENCE = "It finds **98.5 %**."


def test_a_script_prints_the_sentence():
    """Without IPython, which a plain script need not have."""
    code = (
        f"from helpers.show.prose import say; import sys; say({SENTENCE!r});"
        "assert 'IPython' not in sys.modules"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=NOTEBOOKS, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (SENTENCE, "")


def test_a_table_is_markdown_with_a_line_for_each_row():
    from helpers.show.prose import table

    assert table(["a", "b"], [1, "**2**"], ["", 3]) == (
        "| a | b |\n| --- | --- |\n| 1 | **2** |\n|  | 3 |"
    )


def test_a_row_with_too_few_cells_raises_an_error():
    from helpers.show.prose import table

    with pytest.raises(ValueError, match="expected 2 cells in a row, got 1"):
        table(["a", "b"], [1])


def test_a_notebook_shows_the_sentence_as_markdown():
    """One output, of the kind that Jupyter, Colab and the book typeset."""
    nbclient = pytest.importorskip("nbclient")
    make = pytest.importorskip("nbformat.v4")
    code = f"from helpers.show.prose import say\nsay({SENTENCE!r})"
    notebook = make.new_notebook(cells=[make.new_code_cell(code)])
    client = nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(NOTEBOOKS)}}
    )
    (output,) = client.execute().cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/markdown"] == SENTENCE


def test_anything_but_a_string_raises_an_error():
    with pytest.raises(TypeError, match=r"expected a sentence \(str\), got float"):
        say(0.5)


@pytest.mark.parametrize("comparing", COMPARES)
def test_a_comparing_word_raises_an_error_where_it_is_false(comparing):
    """Exactly one of the two directions is true; NaN is true in neither."""
    true = [pair for pair in ((1, 2), (2, 1)) if COMPARES[comparing](*pair)]
    (false,) = {(1, 2), (2, 1)} - {*true}
    assert word(comparing, *true[0]) == comparing
    for a, b in (false, (np.nan, 1)):
        with pytest.raises(
            ValueError, match=f"{comparing!r}, but compares {a} with 1|2"
        ):
            word(comparing, a, b)


def test_a_comparing_word_holds_for_all_numbers_of_an_array():
    assert word("fewer", np.array([1, 2]), 3) == "fewer"
    with pytest.raises(ValueError, match="'fewer'"):
        word("fewer", np.array([1, 3]), 3)


@pytest.mark.parametrize(
    ("comparing", "equal"), [("at least", True), ("at most", True), ("more", False)]
)
def test_equal_numbers_are_at_least_and_at_most_but_not_more(comparing, equal):
    if equal:
        assert word(comparing, 3, 3) == comparing
    else:
        with pytest.raises(ValueError, match="'more'"):
            word(comparing, 3, 3)


def test_a_word_without_a_direction_raises_an_error():
    """Whether better means more or less depends on what is measured."""
    with pytest.raises(ValueError, match=r"expected one of less, .* got 'better'"):
        word("better", 1, 2)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (5e-5, "$5 \\cdot 10^{-5}$"),
        (-2.4e17, "$-2 \\cdot 10^{17}$"),
        (9.6e-8, "$1 \\cdot 10^{-7}$"),
        (0.0, "0"),
    ],
)
def test_a_power_of_ten_is_a_formula_with_one_digit(x, text):
    assert power(x) == text


def test_measurements_are_read_as_they_were_kept():
    for run in recorded("cifar10"):
        assert run["task"] == "cifar10" and 0 < run["test_accuracy"] < 1
        assert {"device", "framework"} <= set(run["about"])
        assert min(run["updates"], run["seconds"], run["n_parameters"]) > 0
    for framework in ("jax", "torch"):
        for run in recorded(f"compilation-{framework}"):
            assert run["about"]["framework"] == framework
            for one in run["ways"].values():
                assert min(one["first_s"], one["later_ms"]) > 0
        for run in recorded(f"scaling-{framework}"):
            assert run["about"]["framework"] == framework
            assert {one["processes"] for one in run["rows"]} == {1, 2, 3, 4}
            assert min(one["milliseconds"] for one in run["rows"]) > 0
        seeds = (f"{kind}-seeds-{framework}" for kind in ("vision", "data"))
        for run in (one for kind in seeds for one in recorded(kind)):
            assert run["about"]["framework"] == framework
            for figures in run["figures"].values():
                assert all(len(x) == len(run["seeds"]) for x in figures.values())
    assert recorded("nothing-of-this-name") == []
