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


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """What a short run of the real command printed and wrote.

    No time is asserted, so JAX compiles quickly instead of compiling quick code.
    """
    folder = tmp_path_factory.mktemp("results")
    options = "--task", "reverse", "--updates", "3", "--pairs", "1"
    command = [sys.executable, "-m", "benchmarks.run", *options, "--output", folder]
    options = {"cwd": pages.ROOT, "stdout": subprocess.PIPE, "text": True}
    options["env"] = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    printed = subprocess.run(command, check=True, **options).stdout
    (text,), (record,) = (list(folder.glob(f"*.{kind}")) for kind in ("md", "json"))
    return printed, text.read_text("utf-8"), json.loads(record.read_text("utf-8"))


@pytest.mark.slow
def test_both_ways_do_the_same_training(result):
    """As many updates, and losses that agree although the batches are others."""
    for line in result[2]["measured"]:
        (pair,) = line["pairs"]
        usual, fit = pair["usual"], pair["fit"]
        assert usual["updates"] == fit["updates"] == 3
        for name in ("loss", "validation_loss"):
            assert usual[name] == pytest.approx(fit[name], rel=0.05), line["framework"]


@pytest.mark.slow
def test_the_table_has_a_row_with_numbers_for_each_framework(result):
    """Ratios are finite and positive, and the file holds what was printed."""
    printed, text, record = result
    assert text in printed
    head, _, *rows = [line.strip("| ") for line in text.splitlines() if "|" in line]
    place = head.split(" | ").index("usual / fit")
    rows = [row.split(" | ") for row in rows]
    assert [row[:2] for row in rows] == [["reverse", "jax"], ["reverse", "torch"]]
    ratios = [float(row[place]) for row in rows]
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios), ratios
    assert {"device", "python", "jax", "flax", "torch"} <= set(record["about"])


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
