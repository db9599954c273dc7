"""The comparison with the usual ways runs, and compares the same trainings."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import pages

sys.path.insert(0, str(pages.ROOT))

from benchmarks import tasks, usual


@pytest.mark.slow
@pytest.mark.parametrize("side", pages.SIDES)
def test_both_ways_do_the_same_training_and_the_table_has_it(side, tmp_path):
    """One pair of three updates: losses agree although the batches are others.

    No time is asserted, so JAX compiles quickly instead of compiling quick code.
    """
    options = {"task": "reverse", "framework": side, "updates": 3, "pairs": 1}
    options = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "benchmarks.run", *options, "--output", tmp_path]
    options = {"cwd": pages.ROOT, "stdout": subprocess.PIPE, "text": True}
    options["env"] = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    printed = subprocess.run(command, check=True, **options).stdout
    (text,), (record,) = (list(tmp_path.glob(f"*.{kind}")) for kind in ("md", "json"))
    text, record = text.read_text("utf-8"), json.loads(record.read_text("utf-8"))
    usual, fit = (record["measured"][0]["pairs"][0][way] for way in ("usual", "fit"))
    assert usual["updates"] == fit["updates"] == 3
    for name in ("loss", "validation_loss"):
        assert usual[name] == pytest.approx(fit[name], rel=0.05)
    assert text in printed
    assert {"device", "python", "jax", "flax", "torch"} <= set(record["about"])
    head, _, row = [line.strip("| ") for line in text.splitlines() if "|" in line]
    row = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert (row["task"], row["framework"]) == ("reverse", side)
    assert 0 < float(row["usual / fit"]) < math.inf


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
