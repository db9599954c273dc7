"""The bounds of assertions are noted, and the assertions do what they did before."""

import json

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import bounds


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a cell in a shell that notes bounds: its error, and what is noted."""
    monkeypatch.setenv("BOUNDS_FOLDER", str(tmp_path))
    monkeypatch.setenv("PAGE", "page")
    monkeypatch.setattr(bounds, "FOLDER", tmp_path)
    shell = InteractiveShell()
    shell.run_cell("import numpy as np")
    bounds.load_ipython_extension(shell)

    def execute(source):
        result = shell.run_cell(source)
        found = json.loads((tmp_path / "page.json").read_text("utf-8"))
        return result.error_in_exec, found

    return execute


@pytest.mark.parametrize(
    ("source", "pairs"),
    [
        ("assert 0.2 < 0.25 + x", [(0.25, 0.2)]),
        ("assert 0.1 < 0.25 + x <= 0.5", [(0.25, 0.1), (0.25, 0.5)]),
        ("assert y + 1.5 > 0.7 * y and y < 4", [(3.5, 1.4), (2.0, 4.0)]),
        ("assert (np.array([1.5, 2.5, -1]) < 3).all()", [(2.5, 3.0)]),
        ("assert np.all(np.array([1.5, 2.5]) > 1)", [(1.5, 1.0)]),
        ("assert all(n / 2 < 3 for n in range(1, 6))", [(2.5, 3.0)]),
        ("for n in (0.1, 0.9, 0.3):\n    assert n < 2", [(0.9, 2.0)]),
        ("limit = 3.5\nassert y < limit", [(2.0, 3.5)]),
        ("assert np.isclose(y, 2.1, rtol=0.1)", [(0.1, 0.21)]),
        ("np.testing.assert_allclose(y, [1.9, 2.1], atol=0.5)", [(0.1, 0.5)]),
        ("assert x < y and y**2 > x and len('ab') == 2", []),
        ("assert y < 4 or x", []),
        ("assert 1 / y < y + 1", [(0.5, 3.0)]),
        ("assert 1 / y < y and y > 1 / 2", [(2.0, 0.5)]),
        ("np.testing.assert_allclose(y, 2 + 1e-6, rtol=1e-5)", []),
        ("assert 'a' < 'b' and x is not None", []),
        ("if y < 4:\n    pass", []),
    ],
)
def test_what_is_compared_with_a_number_is_noted(run, source, pairs):
    """Of arrays and loops the element nearest to its bound."""
    error, found = run(f"x, y = 0, 2.0\n{source}")
    assert error is None
    noted = [(entry["measured"], entry["bound"]) for entry in found]
    np.testing.assert_allclose(noted, pairs or np.empty(0), rtol=1e-6)


def test_a_small_lower_bound_is_none_of_rounding(run):
    run("y = 0.2\nassert y > 1e-3")
    assert [entry["slack"] for entry in bounds.read() if bounds.is_loose(entry)] == [
        200
    ]


@pytest.mark.parametrize(
    ("measured", "bound", "loose"),
    [(0.99, 0.97, False), (0.99, 0.4, True), (0.6, 0.4, False), (0.99, 0.72, False)],
)
def test_the_bound_of_a_share_is_judged_by_what_the_share_lacks(
    run, measured, bound, loose
):
    """Forty of a hundred sets are no bound for a model that finds 99."""
    run(f"assert np.array({measured}) > {bound}")
    assert [bounds.is_loose(entry) for entry in bounds.read()] == [loose]


@pytest.mark.parametrize(
    ("line", "loose"),
    [
        ("assert abs(y - 2.1) < 0.6", False),
        ("assert abs(y - 2.1) < 2", True),
        ("np.testing.assert_allclose(y, 2.1, atol=0.6)", False),
        ("np.testing.assert_allclose(y, 2.1, atol=2)", True),
        ("assert abs(y - 2.1) > 0.02", True),
    ],
)
def test_a_difference_that_happens_to_be_small_has_more_room(run, line, loose):
    run(f"y = 2.0\n{line}")
    assert [bounds.is_loose(entry) for entry in bounds.read()] == [loose]


def test_an_assertion_fails_as_before(run):
    error, found = run("# Checked: two is less than one\nassert 2 / 1 < 1, 'it is not'")
    assert isinstance(error, AssertionError) and str(error) == "it is not"
    (entry,) = found
    assert entry["claim"] == "two is less than one"
    assert entry["assertion"] == "2 / 1 < 1"


def test_a_bound_that_was_loosened_is_found(run):
    """0.35 was near; 3.5 no longer notices a result that has tripled."""
    source = "# Checked: the loss falls\nassert loss < 0.35"
    for change, found in ({}, []), ({"0.35": "3.5"}, ["loss < 3.5"]):
        for old, new in change.items():
            source = source.replace(old, new)
        run(f"{source.replace('loss', '(0.1 + 0.2)')}")
        loose = [e["assertion"] for e in bounds.read() if bounds.is_loose(e)]
        assert loose == [text.replace("loss", "0.1 + 0.2") for text in found]


@pytest.mark.parametrize(
    "line",
    [
        "assert y > 0",
        "assert abs(y - 2.00001) < 1e-3",
        "assert len('abc') < 40",
        "assert y < 400  # loose: the limit of the theory",
    ],
)
def test_signs_rounding_counts_and_what_has_a_reason_are_no_loose_bounds(run, line):
    run(f"y = 2.0\n{line}")
    assert not [entry for entry in bounds.read() if bounds.is_loose(entry)]


def test_the_table_has_a_line_for_each_bound(run):
    run("# Checked: y is small\ny = 2.0\nassert y < 4")
    assert bounds.table(bounds.read()).splitlines()[2:] == [
        "| page | y is small | `y < 4` | 2 | 4 | 2 |"
    ]
