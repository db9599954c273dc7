"""``model_jax.py`` and ``model_torch.py``: alone in a folder they train and write."""

import ast
import importlib.util
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import one_file
import pages
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays, to_arrays

FRAMEWORK = {"jax": {"jax", "flax", "optax", "numpy"}, "torch": {"torch"}}
PUBLIC = {"LanguageModel", "attention", "build", "generate", "next_token_probabilities"}
SIZES = {"n_blocks": 1, "n_heads": 3, "f": 7, "max_length": 5, "norm_first": True}
by_side = pytest.mark.parametrize("side", pages.SIDES)


@pytest.fixture
def made(tmp_path):
    """The files of both frameworks in a folder where nothing else is."""
    for side in pages.SIDES:
        (tmp_path / f"model_{side}.py").write_text(one_file.one_file(side), "utf-8")
    return tmp_path


def load(folder, side):
    """The file of a framework as a module."""
    spec = importlib.util.spec_from_file_location(side, folder / f"model_{side}.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


@by_side
def test_it_imports_its_framework_and_the_standard_library(side):
    nodes = [*ast.walk(tree := ast.parse(one_file.one_file(side)))]
    found = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    found |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
    assert packages == FRAMEWORK[side]
    assert {name for node in tree.body for name in one_file.defined(node)} >= PUBLIC


@by_side
def test_definitions_stand_as_in_the_helpers(side):
    """Whole and in order, with their comments, below the chapter that builds them."""
    text, at = one_file.one_file(side), 0
    for path, chapter in one_file.sources(side).items():
        assert not chapter or f": notebooks/{chapter}_{side}.ipynb\n" in text
        for node, lines in one_file.statements(path).items():
            if isinstance(node, ast.ClassDef) and node.name != "Predictor":
                assert at < (at := text.index(lines)), node.name
    assert "helpers" not in text and pages.repository() in text
    assert "# One object for all layers" in text or side == "torch"


def test_ruff_finds_nothing_in_them(made):
    """No unused import, no unknown name, sorted and formatted."""
    settings = ["--config", pages.ROOT / "pyproject.toml", "--no-cache", made]
    for task in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *task, *settings]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
@by_side
def test_alone_it_trains_for_100_updates_and_writes(side, made):
    """Its first loss is that of guessing; it finds no helpers, and warns of nothing."""
    name = f"model_{side}.py"
    command = [sys.executable, "-I", "-W", "error", name]
    variables = {n: x for n, x in os.environ.items() if n != "PYTHONPATH"}
    options = {"capture_output": True, "cwd": made, "env": variables, "text": True}
    done = subprocess.run(command, **options, check=False)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"^update +(\d+): loss ([\d.]+)$", done.stdout, re.MULTILINE)
    assert [int(n) for n, _ in losses] == [1, *range(10, 101, 10)]
    text = (made / name).read_text("utf-8")
    guessing = math.log(len(set(text)))
    assert abs(float(losses[0][1]) - guessing) < 0.5
    assert float(losses[-1][1]) < guessing - 1
    written = done.stdout.partition(f"loss {losses[-1][1]}\n")[2].removesuffix("\n")
    assert written.startswith(text[:16]) and len(written) == 128
    assert set(written) <= set(text)


def test_a_short_text_is_refused_with_a_sentence(made):
    (made / "short.txt").write_text("to be")
    with pytest.raises(SystemExit, match="expected a text of more than 128 characters"):
        load(made, "torch").main(made / "short.txt")


def test_both_have_the_same_logits_and_write_the_same(made):
    """From the same weights, with a cache and greedy."""
    tokens, found, arrays = np.arange(10).reshape(2, 5) % 7, [], None
    for side in pages.SIDES:
        module = load(made, side)
        model = module.build(module.LanguageModel, 7, 12, positions="rotary", **SIZES)
        arrays = arrays or to_arrays(model)
        from_arrays(model, arrays)
        array = module.np.asarray if side == "jax" else module.torch.as_tensor
        logits = as_numpy(model(array(tokens)))
        written = as_numpy(module.generate(model, [[1], [2, 3]], 3, top_k=1))
        found.append((logits, written))
    np.testing.assert_allclose(*[logits for logits, _ in found], atol=1e-5)
    np.testing.assert_array_equal(*[written for _, written in found])


def test_a_name_from_a_file_that_is_not_searched_is_an_error(monkeypatch):
    """Not a file that fails where a reader runs it."""
    files = {name: c for name, c in one_file.FILES.items() if "positions" not in name}
    monkeypatch.setattr(one_file, "FILES", files)
    with pytest.raises(LookupError, match=r"POSITIONS of helpers\.jax\.positions"):
        one_file.one_file("jax")
