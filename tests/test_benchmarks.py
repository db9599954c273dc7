"""The comparison with the usual ways runs, and compares the same trainings."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import pages
from helpers.data.sequences import one_hot, reverse_data
from helpers.settings import Settings

sys.path.insert(0, str(pages.ROOT))

from benchmarks import training


@pytest.mark.parametrize("side", pages.SIDES)
def test_both_ways_do_the_same_updates(side, monkeypatch):
    """From the same weights and on the same batches, every update has the same loss."""
    settings = Settings(
        n_train=20, batch_size=20, epochs=3, learning_rate=1e-3, warmup=2
    )
    (x, y), _, _ = reverse_data(20, 5).values()
    model, loss_fn = training.model_of("reverse", side)
    usual = {"jax": training.usual_jax, "torch": training.usual_torch}[side]
    update = usual(model, loss_fn, settings)
    found = [update((x, y)) for _ in range(3)]
    model, _ = training.model_of("reverse", side)
    room = __import__(f"helpers.{side}", fromlist=["fit"])
    history = room.fit(model, loss_fn, (x, y), settings)
    names = "loss", "accuracy", "learning_rate", "grad_norm"
    for name, column in zip(names, zip(*found, strict=True), strict=True):
        np.testing.assert_allclose(column, history[name], rtol=1e-4, err_msg=name)


def test_the_usual_data_are_those_of_fit():
    (inputs, labels), _, _, usual = training.data_of("reverse", training.REVERSE)
    x, y = usual[7]
    np.testing.assert_array_equal(x, inputs[7])
    np.testing.assert_array_equal(y, labels[7])
    np.testing.assert_array_equal(x, one_hot(y[::-1], 10))


@pytest.mark.slow
def test_the_command_writes_tables_of_what_it_measured(tmp_path):
    """One pair of three updates, and two tokens after two."""
    command = [sys.executable, "-m", "benchmarks.run", "--pairs=1", "--updates=3"]
    command += ["--framework=torch", "--length=2", f"--output={tmp_path}"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    for task in ("reverse", "generation"):
        run = [*command, f"--task={task}"]
        subprocess.run(run, check=True, cwd=pages.ROOT, env=env, capture_output=True)
    (path,) = tmp_path.glob("*reverse*.json")
    (one,) = json.loads(path.read_text("utf-8"))["measured"]
    usual, fit = (one["pairs"][0][way] for way in ("usual", "fit"))
    assert usual["updates"] == fit["updates"] == 3
    row = path.with_suffix(".md").read_text("utf-8").splitlines()[2].split(" | ")
    ratio = usual["seconds"] / fit["seconds"]
    assert float(row[5]) == pytest.approx(ratio, abs=0.006)
    (path,) = tmp_path.glob("*generation*.md")
    assert path.read_text("utf-8").count("\n| torch |") == 4
