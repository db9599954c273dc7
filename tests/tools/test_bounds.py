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
        ("assert 0.1 < 0.25 + x <= 0.5", [(0.25, 0.1), (0.25, 0.5)]),
        ("assert y + 1.5 > 0.7 * y and y < 4", [(3.5, 1.4), (2.0, 4.0)]),
        ("assert (np.array([1.5, 2.5, -1]) < 3).all()", [(2.5, 3.0)]),
        ("assert all(n / 2 < 3 for n in range(1, 6))", [(2.5, 3.0)]),
        ("for n in (0.1, 0.9, 0.3):\n    assert n < 2", [(0.9, 2.0)]),
        ("np.testing.assert_allclose(y, [1.9, 2.1], atol=0.5)", [(0.1, 0.5)]),
        ("assert x < y and y**2 > x and len('ab') == 2", []),
    ],
)
def test_what_is_compared_with_a_number_is_noted(run, source, pairs):
    """Of arrays and loops the element nearest to its bound."""
    error, found = run(f"x, y = 0, 2.0\n{source}")
    assert error is None
    noted = [(entry["measured"], entry["bound"]) for entry in found]
    np.testing.assert_allclose(noted, pairs or np.empty(0), rtol=1e-6)


def test_an_assertion_fails_as_before(run):
    error, (entry,) = run("# Checked: two is small\nassert 2 / 1 < 1, 'it is not'")
    assert isinstance(error, AssertionError) and str(error) == "it is not"
    assert (entry["claim"], entry["assertion"]) == ("two is small", "2 / 1 < 1")


@pytest.mark.parametrize(
    ("line", "loose"),
    [
        ("assert y < 5.9", False),
        ("assert y < 6.1", True),
        ("assert y < 400  # loose: the limit of the theory", False),
        ("assert abs(y - 2.1) < 0.6", False),  # a difference may happen to be small
        ("assert abs(y - 2.1) < 2", True),
        ("assert abs(y - 2.00001) < 1e-3", False),  # rounding
        ("assert y / 10 > 1e-3", True),  # no rounding
        ("assert len('abc') < 40", False),  # a count
        ("assert np.array(0.99) > 0.72", False),  # a share
        ("assert np.array(0.99) > 0.4", True),
    ],
)
def test_a_loose_bound_of_a_result_is_an_error(run, capsys, line, loose):
    run(f"y = 2.0\n{line}")
    assert bounds.main() == loose
    assert ("1 bounds are too far" in capsys.readouterr().out) == loose
