"""The comparison with the usual ways runs, and compares the same trainings."""

import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import pages

sys.path.insert(0, str(pages.ROOT))

from benchmarks import (
    generation,
    generation_torch,
    losses_torch,
    measure,
    tasks,
    usual,
)

from helpers import model_torch, text


def run(folder, **options):
    """The command with one pair: record and rows of the table, as it wrote them.

    No time is asserted, so JAX compiles quickly instead of compiling quick code.
    """
    options = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "benchmarks.run", "--pairs=1", *options]
    options = {"cwd": pages.ROOT, "stdout": subprocess.PIPE, "text": True}
    options["env"] = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command += ["--output", folder]
    printed = subprocess.run(command, check=True, **options).stdout
    (text,), (record,) = (list(folder.glob(f"*.{kind}")) for kind in ("md", "json"))
    text, record = text.read_text("utf-8"), json.loads(record.read_text("utf-8"))
    assert text in printed
    lines = [line.strip("| ") for line in text.splitlines() if "|" in line]
    head, _, *rows = [line.split(" | ") for line in lines]
    return record, [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reverse", "text"])
@pytest.mark.parametrize("side", pages.SIDES)
def test_both_ways_do_the_same_training_and_the_table_has_it(side, task, tmp_path):
    """One pair of three updates: losses agree although the batches are others."""
    record, (row,) = run(tmp_path, task=task, framework=side, updates=3)
    usual, fit = (record["measured"][0]["pairs"][0][way] for way in ("usual", "fit"))
    assert usual["updates"] == fit["updates"] == 3
    for name in ("loss", "validation_loss"):
        assert usual[name] == pytest.approx(fit[name], rel=0.05)
    assert {"device", "python", "jax", "flax", "torch"} <= set(record["about"])
    assert (row["task"], row["framework"]) == (task, side)
    assert 0 < float(row["usual / fit"]) < math.inf


@pytest.mark.slow
@pytest.mark.parametrize("side", pages.SIDES)
def test_every_way_to_generate_is_in_the_table(side, tmp_path):
    """Real models; two tokens after two. Ratios are those of the seconds recorded."""
    record, rows = run(tmp_path, task="generation", framework=side, length=2)
    cases = ["chapter, 1", "chapter, 16", "larger, 1", "larger, 16"]
    assert [row["model, texts"] for row in rows] == cases
    (pair,) = record["measured"][0]["pairs"]
    usual = {"without cache", "Python loop"} if side == "jax" else {"without cache"}
    assert set(pair) == {"book", *usual}
    for row, way in itertools.product(rows, ("without cache", "Python loop")):
        if way not in usual:
            assert row[f"{way} / book"] == "–"
            continue
        theirs, ours = (pair[w]["seconds"][row["model, texts"]] for w in (way, "book"))
        assert float(row[f"{way} / book"]) == pytest.approx(theirs / ours, abs=0.01)
        assert float(row["book ms/token"]) == pytest.approx(1000 * ours, abs=0.01)


@pytest.fixture
def small(monkeypatch):
    """A small model generates: the ways, and their names in the order of the calls."""
    sizes = {"n_blocks": 1, "m": 8, "n_heads": 2, "f": 16, "length": 13}
    case = replace(generation.CHAPTER, **sizes), 3, 0, 0
    monkeypatch.setattr(generation, "CASES", {"small, 3": case})
    calls = []

    def way(name, generate):
        return lambda *args: (calls.append(name), generate(*args))[1]

    ways = {name: way(name, each) for name, each in generation_torch.WAYS.items()}
    monkeypatch.setattr(generation_torch, "WAYS", ways)
    return ways, calls


def test_ways_are_timed_in_turn_after_their_texts_were_compared(small, monkeypatch):
    """A call that takes 20 seconds for five new tokens takes 4 for each."""
    _, calls = small

    def shortest(_, way, *args):
        way(*args)
        return 20

    monkeypatch.setattr(generation, "shortest", shortest)
    found = [generation.measure("torch", place, length=5) for place in (0, 1)]
    order = ["book", "without cache"]
    assert calls == [*order, *order, *order, *order[::-1]]
    for way in order:
        assert all(pair[way]["seconds"] == {"small, 3": 4} for pair in found)


def test_a_way_that_generates_other_tokens_is_refused(small):
    """Here one that forgets all but the last three tokens."""
    ways, calls = small
    usual = generation_torch.without_cache
    ways["without cache"] = lambda model, x, n: usual(model, x[:, -3:], n)
    with pytest.raises(AssertionError, match="small, 3: without cache"):
        generation.measure("torch", length=5)
    assert calls == ["book"], "nothing may be timed before"


@pytest.mark.parametrize("tied", [True, False])
def test_the_formula_counts_the_operations_that_pytorch_counts(tied):
    """Of forward and backward pass of the language model, exactly."""
    settings = replace(tasks.TASKS["text"], tied=tied, batch_size=3, length=7)
    model = model_torch.build(model_torch.LanguageModel, **settings.model)
    rows = torch.zeros(settings.batch_size, settings.length + 1, dtype=torch.int32)
    with FlopCounterMode(display=False) as counted:
        losses_torch.text(model, rows)[0].backward()
    case = SimpleNamespace(settings=settings, model=model)
    assert measure.flops(case) == counted.get_total_flops()


def test_the_windows_of_both_ways_are_those_of_the_chapter():
    """Single windows at any place of the text; for validation, one after the other."""
    settings = replace(tasks.TASKS["text"], length=7, n_train=640)
    train, validation = np.arange(40), np.arange(3 * 7 + 1)
    loaders = usual.loaders("text", settings, (train, validation))
    drawn, given = ([rows for (rows,) in loader] for loader in loaders)
    assert len(drawn) == settings.updates_per_epoch == 40
    drawn, given = np.concatenate(drawn), np.concatenate(given)
    np.testing.assert_array_equal(given, text.windows(validation, settings.length))
    assert drawn.shape == (640, settings.length + 1)
    assert (np.diff(drawn) == 1).all()
    assert {drawn.min(), drawn.max()} == {0, 39}, "a window is never drawn"


def test_the_sets_of_both_ways_are_of_the_size_of_cifar_100():
    """Nine of a class and an odd one, drawn at once for ``fit``, else one by one."""
    settings = tasks.TASKS["anomaly"]
    assert (settings.n_train, settings.batch_size, settings.epochs) == (45_000, 64, 1)
    assert tasks.shortened(settings, 70_300).epochs == 100
    short = tasks.shortened(settings, 20)
    train, validation = tasks.features(short)
    assert train.shape == (20 * 64, 512)
    one_by_one = usual.Sets(train, short)
    drawn = tasks.batches_of_sets(short)(0).reshape(-1, 10)
    rows = [np.append(one_by_one.draw(odd), odd) for odd in range(300)]
    for sets in (drawn, rows, tasks.validation_sets(short)):
        kinds = tasks.classes(len(validation), short)[np.array(sets)]
        assert (kinds[:, :-1] == kinds[:, :1]).all()
        assert (kinds[:, -1] != kinds[:, 0]).all()
