"""``make check-gpu``: what it says without a GPU, and what it runs with one."""

import ast
import json
import sys

import jax
import pytest
import torch

import check_gpu

FOLDERS = "scripts", "tools", "tests/unit", "tests/tools", "book/_ext"
OWN = {p.stem: p for f in FOLDERS for p in (check_gpu.ROOT / f).glob("*.py")}
NO_JUPYTER = """import sys
for name in ("IPython", "matplotlib_inline", "ipykernel", "jupytext"):
    sys.modules[name] = None  # importing it fails, as where it is not installed
"""
FINE = """
import numpy as np
from helpers.engine import weights
from helpers.show import plots, viewer

plots.use_style()
plots.heatmaps(np.eye(2)[None])
viewer.attention(np.eye(2)[None, None], about="two words")
"""


def test_without_a_gpu_one_sentence_says_what_each_framework_sees(monkeypatch):
    """At once: nothing has been run, and a GPU for one framework is not enough."""
    seen = {"JAX": "none", "PyTorch": "NVIDIA H200"}
    monkeypatch.setattr(check_gpu, "machine", lambda: seen)
    monkeypatch.setattr(sys, "argv", ["check_gpu.py"])
    monkeypatch.delattr(check_gpu, "run_page")
    with pytest.raises(SystemExit) as stopped:
        check_gpu.main()
    assert stopped.value.code == (
        "no GPU that both frameworks see: JAX sees none, PyTorch sees NVIDIA H200"
    )


def test_all_missing_packages_are_named_in_one_sentence(monkeypatch):
    missing = "jax", "seaborn"
    monkeypatch.setattr(check_gpu, "find_spec", lambda name: name not in missing)
    monkeypatch.setattr(sys, "argv", ["check_gpu.py"])
    with pytest.raises(SystemExit, match="missing packages: jax, seaborn; in "):
        check_gpu.main()


def imported(path):
    """Packages that a module and those beside it ask for; in functions none need be."""
    for node in ast.parse(path.read_text("utf-8")).body:
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        for name in (name.split(".")[0] for name in names):
            yield from imported(OWN[name]) if name in OWN else [name]


def test_the_packages_asked_for_are_those_that_pages_and_tests_import():
    """With their helpers. Tests of Jupyter are left out, or skipped one by one."""
    paths = [*(check_gpu.ROOT / "notebooks").rglob("*.py"), *check_gpu.tests()]
    found = {name for path in paths for name in imported(path)}
    assert found - sys.stdlib_module_names - {"helpers"} <= set(check_gpu.NEEDED)


@pytest.mark.slow
def test_a_page_that_fails_is_named_and_stops_no_other(tmp_path, monkeypatch, capsys):
    """Pages run without Jupyter; one JSON and one Markdown file hold the result.

    Each framework is asked for a GPU in a process of its own.
    """
    pages = [tmp_path / "broken.py", tmp_path / "fine.py"]
    pages[0].write_text("raise ValueError('an axis is too long')\n")
    pages[1].write_text(NO_JUPYTER + FINE)
    out = tmp_path / "results"
    options = ["--allow-cpu", "--output", str(out), *map(str, pages)]
    monkeypatch.setattr(sys, "argv", ["check_gpu.py", *options])
    assert check_gpu.main()
    assert "ValueError: an axis is too long" in capsys.readouterr().out
    (record,), (text,) = (list(out.glob(f"*.{kind}")) for kind in ("json", "md"))
    record = json.loads(record.read_text())
    (broken, fine), about = record["parts"], record["about"]
    assert (about["PyTorch"] == "none") == (not torch.cuda.is_available())
    assert (about["JAX"] == "none") == (jax.default_backend() != "gpu")
    assert (broken["name"], broken["status"]) == ("broken", 1)
    assert (fine["name"], fine["status"]) == ("fine", 0), fine["end"]
    assert fine["seconds"] > 0 and fine["peak_mib"] >= 0
    text = text.read_text("utf-8")
    assert "| broken | 1 |" in text and "| fine | 0 |" in text
    assert "broken failed:" in text and "an axis is too long" in text
    assert f"* torch: {about['torch']}" in text
