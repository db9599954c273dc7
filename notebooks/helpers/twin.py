"""The same training in the other framework, in a process of its own.

A page never loads both frameworks; to compare them it asks another Python.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from helpers import dates, sets, text
from helpers import settings as tasks
from helpers.sequences import in_order, reverse_data
from helpers.weights import load_weights


def losses(side, settings, weights):
    """Loss of every update of a training, from given weights.

    Parameters
    ----------
    side : {"jax", "torch"}
    settings : helpers.settings.Sequences, Sets, Text or Dates
        The reverse task, sets with an odd one, next tokens of a text, or dates.
    weights : str or path
        Initial weights, as ``helpers.weights.save_weights`` writes them.

    Returns
    -------
    float64 array ``updates``

    Raises
    ------
    RuntimeError
        If the other process fails, with the end of what it said.
    """
    task = json.dumps({"task": type(settings).__name__, **asdict(settings)})
    environment = {
        **os.environ,
        "TQDM_DISABLE": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",  # as on the pages
    }
    with TemporaryDirectory() as folder:
        found = Path(folder) / "losses.npy"
        done = subprocess.run(
            [sys.executable, "-m", __name__, side, task, str(Path(weights).resolve()), str(found)],
            cwd=Path(__file__).parents[1],
            env=environment,
            capture_output=True,
            text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"the run in {side} failed:\n{done.stderr[-2000:]}")
        return np.load(found)


def main(side, task, weights, found):
    """What the other process does."""
    sizes = json.loads(task)
    settings = getattr(tasks, sizes.pop("task"))(**sizes)
    models, training = (
        import_module(f"helpers.{kind}_{side}") for kind in ("model", "train")
    )
    if side == "torch":  # as on the pages; JAX finds the GPU by itself
        torch = import_module("torch")
        torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    kinds = {tasks.Text: models.LanguageModel, tasks.Dates: models.Translator}
    model = models.build(kinds.get(type(settings), models.Predictor), **settings.model)
    load_weights(model, weights)
    loss, data, options = training_of(settings, training)
    np.save(found, training.fit(model, loss, data, settings, **options)["loss"])


def training_of(settings, training):
    """Loss function, data and batches of a task."""
    if isinstance(settings, tasks.Sets):
        part = sets.load(settings)[0]["train"]
        options = {"batches": sets.drawn(part.labels, settings)}
        return training.odd_one_out, (part.features,), options
    if isinstance(settings, tasks.Text | tasks.Dates):
        is_text = isinstance(settings, tasks.Text)
        data = windows_of(settings) if is_text else dates.load(settings)["train"]
        return training.next_token, data, {"batches": in_order(settings)}
    return training.cross_entropy, reverse_data(settings)["train"], {}


def windows_of(settings):
    """The training data of a language model: its text, in byte pairs, in windows."""
    part = text.load()["train"]
    pairs = text.BytePairs.learn(part, settings.n_tokens)
    return (text.random_windows(pairs.encode(part), settings),)


if __name__ == "__main__":
    main(*sys.argv[1:])
