"""A training survives a kill at any moment, and no checkpoint is taken for another."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trainee
from helpers import runs, train_jax, train_torch
from helpers.sequences import reverse_data, shuffled
from helpers.settings import Sequences
from helpers.weights import save_weights, to_arrays
from sides import on_both_sides
from warm import ONE_THREAD, Warm

TRAIN = {"jax": train_jax, "torch": train_torch}
N, EPOCHS = trainee.SETTINGS.updates_per_epoch, trainee.SETTINGS.epochs

# Killed, and brought to the end

POINTS = {
    "before the first update": ("batches", 3),
    "between two epochs": ("batches", 6),
    "a piece of the header": ("header", 3),
    "half a draft": ("half", 2),
    "before the file is replaced": ("before replace", 4),
    "after the file is replaced": ("after replace", 3),
    "before the events": ("before events", 2),
    "after the events": ("after events", 5),
    "half the last draft": ("half", EPOCHS),
    "after the last file is replaced": ("after replace", EPOCHS),
}
DELAYS = {f"{1000 * s:.0f} ms after the first epoch": s for s in (0.02, 0.05)}
TWICE = "twice, then a third time"


IMPORTED = {
    "jax": ["jax", "flax.nnx", "optax", "safetensors.numpy"],
    "torch": ["torch", "safetensors.numpy"],
}
FOR_EVENTS = ["tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer"]
PLAIN = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a training in a process of its own, with its framework imported already.

    JAX keeps what it has compiled for the next one. Only these trainings know of that:
    where they are brought to the end, everything is imported and compiled anew.
    """
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",  # each time it would list the processor's features
    }
    with ExitStack() as stack:
        warm = {
            side: stack.enter_context(
                closing(Warm(*modules, *FOR_EVENTS, **PLAIN, **kept))
            )
            for side, modules in IMPORTED.items()
        }
        yield lambda task, side, *arguments: warm[side].start(
            trainee.__file__, task, side, *arguments
        )


def train_until(start, point, side, folder, task="train"):
    """Start a training that is killed at a point; the point must be reached."""
    process = start(task, side, folder, *point)
    said = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, said


def train_for(start, delay, side, folder):
    """Start a training and kill it, some seconds after its first epoch."""
    process = start("train", side, folder)
    assert "begins" in process.stderr.readline()
    time.sleep(random.uniform(0.5, 1) * delay)
    process.kill()
    process.communicate()


def finish(side, folders):
    """Go on in all folders, and once without one; what each came to.

    In a Python that has nothing in common with those that were killed.
    """
    process = subprocess.run(
        [sys.executable, trainee.__file__, "finish", side, *map(str, folders)],
        env=os.environ | PLAIN | ONE_THREAD,
        capture_output=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).glob("*")}


@pytest.fixture(scope="module", params=["jax", "torch"])
def killed(request, start, tmp_path_factory):
    """For each way to be killed: the folder after it, and the end that it came to."""
    side, root = request.param, tmp_path_factory.mktemp(request.param)
    folders = {name: root / f"run {name}" for name in [*POINTS, *DELAYS, TWICE]}

    def kill(name):
        if name in DELAYS:
            train_for(start, DELAYS[name], side, folders[name])
        elif name in POINTS:
            train_until(start, POINTS[name], side, folders[name])
        else:
            for point in [("half", 3), ("before replace", 1), ("after events", 2)]:
                train_until(start, point, side, folders[name])
        return name, files(folders[name])

    with ThreadPoolExecutor(2) as pool:
        left = dict(pool.map(kill, folders))
    found = finish(side, folders.values())
    whole = found.pop("None")
    ends = {name: found[str(folder)] for name, folder in folders.items()}
    return {"left": left, "ends": ends, "folders": folders, "whole": whole}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*POINTS, *DELAYS, TWICE])
def test_a_killed_training_ends_as_if_nothing_had_happened(killed, name):
    """Weights and history to the last bit; one checkpoint, one event file, no draft."""
    end, whole, folder = killed["ends"][name], killed["whole"], killed["folders"][name]
    assert end["history"] == whole["history"]
    assert end["weights"] == whole["weights"]
    kinds = sorted(file.split(".")[0] for file in files(folder))
    assert kinds == ["checkpoint", "events"], sorted(files(folder))
    history = {k: np.array(v) for k, v in whole["history"].items()}
    assert_events_are(folder, history, N)


@pytest.mark.slow
def test_the_kills_left_what_they_should(killed):
    """So the test above tests what it says; epochs begin where the kill left them."""
    left, ends = killed["left"], killed["ends"]
    drafts = {
        name: sorted(len(data) for file, data in found.items() if ".draft" in file)
        for name, found in left.items()
    }
    assert drafts["a piece of the header"] == [100]
    whole = len(left["half a draft"]["checkpoint.safetensors"])
    assert len(drafts["half a draft"]) == 1
    assert 0 < drafts["half a draft"][0] < whole
    assert drafts["before the file is replaced"][0] >= whole
    assert "checkpoint.safetensors" not in left["before the first update"]
    again = {name: end["epochs"][2:] for name, end in ends.items()}  # two to look
    firsts = {name: min(epochs, default=EPOCHS) for name, epochs in again.items()}
    expected = dict(zip(POINTS, [0, 3, 2, 1, 3, 3, 1, 4, 7, 8], strict=True))
    expected[TWICE] = 3
    assert {name: firsts[name] for name in expected} == expected
    for name, epochs in again.items():
        assert epochs == list(range(firsts[name], EPOCHS))
        assert name not in DELAYS or firsts[name] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("side", ["jax", "torch"])
def test_a_retraining_that_is_killed_early_leaves_the_old_run(side, start, tmp_path):
    """The old checkpoint is there, whole, until the new one takes its place."""
    folder = tmp_path / "run"
    process = start("train", side, folder)
    assert process.communicate() and process.returncode == 0
    before = files(folder)["checkpoint.safetensors"]
    train_until(start, ("before replace", 1), side, folder, "retrain")
    assert files(folder)["checkpoint.safetensors"] == before
    found = finish(side, [folder])
    loaded, whole = found[str(folder)], found["None"]
    assert loaded["epochs"] == [0, 0], "nothing was left to train"
    assert loaded["weights"] == whole["weights"]
    assert loaded["history"] == whole["history"]


# TensorBoard


def read_events(folder):
    """``{tag: [(step, number)]}`` as TensorBoard itself reads a folder."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    scalars = {tag: reader.Scalars(tag) for tag in reader.Tags()["scalars"]}
    return {tag: [(e.step, e.value) for e in es] for tag, es in scalars.items()}


def assert_events_are(folder, history, n):
    """Every update and every epoch once, with the numbers of the history."""
    assert len(list(Path(folder).glob("events.out.tfevents.*"))) == 1
    found = read_events(folder)
    updates = {f"train/{name}": history[name] for name in runs.UPDATES}
    epochs = {
        f"validation/{k}": history[f"validation_{k}"] for k in ("loss", "accuracy")
    }
    assert {*updates, *epochs} <= set(found) <= {*updates, *epochs, "seconds"}
    for tag, values in updates.items():
        steps, numbers = zip(*found[tag], strict=True)
        assert steps == tuple(range(len(values)))
        np.testing.assert_array_equal(numbers, np.float32(values))
    for tag, values in epochs.items():
        steps, numbers = zip(*found[tag], strict=True)
        assert steps == tuple((e + 1) * n - 1 for e in range(len(values)))
        np.testing.assert_array_equal(numbers, np.float32(values))


# In this process

SETTINGS = Sequences(
    n_train=20, batch_size=4, epochs=3, learning_rate=0.01, warmup=2, n_symbols=3,
    length=2, n_validation=5, n_test=1, m=4, f=6,
)  # fmt: skip
DATA = reverse_data(SETTINGS)
CURE = "move it away, or pass retrain=True to replace it"


def fit(side, folder, settings=SETTINGS, *, seed=0, loss=None, data=None, **options):
    """Train the predictor of the settings; return model and history."""
    model = side.build("Predictor", **SETTINGS.model, seed=seed)
    loss = loss or TRAIN[side.name].cross_entropy
    options = {"validation": DATA["validation"], "bar": False, **options}
    data = data or DATA["train"]
    fit = TRAIN[side.name].fit
    return model, fit(model, loss, data, settings, folder=folder, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The bytes of a finished run's checkpoint, of each side; weights and history."""
    made = {}

    def make(side):
        if side.name not in made:
            folder = tmp_path_factory.mktemp("finished")
            model, history = fit(side, folder)
            data = (folder / "checkpoint.safetensors").read_bytes()
            made[side.name] = data, to_arrays(model), history, folder
        return made[side.name]

    return make


def assert_same(model, history, weights, expected):
    """The same weights and the same history, seconds included."""
    arrays = to_arrays(model)
    assert set(arrays) == set(weights)
    assert set(history) == set(expected)
    for name, x in [*weights.items(), *expected.items()]:
        np.testing.assert_array_equal((arrays | history)[name], x, err_msg=name)


@on_both_sides
def test_a_finished_run_is_loaded(side, finished, monkeypatch):
    """No update, no epoch, nothing written; the same weights and history come back."""
    _, weights, history, folder = finished(side)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*")}
    assert len(before) == 2
    asked = []

    def batches(epoch):
        asked.append(epoch)
        return shuffled(SETTINGS)(epoch)

    trainer = TRAIN[side.name].Trainer
    monkeypatch.setattr(
        trainer, "epoch", lambda *_: pytest.fail("an epoch was trained")
    )
    assert_same(*fit(side, folder, batches=batches), weights, history)
    assert set(asked) == {0}, "only the first epoch's are looked at, to tell runs apart"
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*")} == before
    assert_events_are(folder, history, SETTINGS.updates_per_epoch)


@on_both_sides
def test_retrain_replaces_a_finished_run(side, finished, tmp_path):
    """Also one of other settings; afterwards the new one is the one that is loaded."""
    data, weights, *_ = finished(side)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(data)
    other = replace(SETTINGS, learning_rate=0.02, epochs=2)
    model, history = fit(side, tmp_path, other, retrain=True)
    assert any((to_arrays(model)[name] != x).any() for name, x in weights.items())
    assert len(history["loss"]) == other.updates
    assert_same(*fit(side, tmp_path, other), to_arrays(model), history)
    assert_events_are(tmp_path, history, other.updates_per_epoch)


@on_both_sides
def test_a_folder_changes_no_number(side, finished, tmp_path):
    """Nor does its being deep, or a string; without one nothing is written."""
    _, weights, history, _ = finished(side)
    del history["seconds"]
    for folder in (None, str(tmp_path / "some" / "folders")):
        model, again = fit(side, folder)
        del again["seconds"]
        assert_same(model, again, weights, history)
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


def test_runs_stand_below_one_folder(monkeypatch):
    monkeypatch.delenv("RUNS_FOLDER", raising=False)
    assert runs.runs_folder("reverse_jax") == Path("runs/reverse_jax")
    monkeypatch.setenv("RUNS_FOLDER", "/elsewhere")
    assert runs.runs_folder("reverse_jax") == Path("/elsewhere/reverse_jax")


# Damaged, or of another run


def refusal(call):
    """The one sentence that a call is refused with."""
    with pytest.raises(ValueError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(f": {CURE}")
    return sentence


def assert_refused(side, path, expected, **options):
    """In one sentence with the file's name; nothing is written until ``retrain``."""
    before = files(path.parent)
    sentence = refusal(lambda: fit(side, path.parent, **options))
    assert re.fullmatch(f"{re.escape(str(path))} {expected}: {CURE}", sentence), (
        sentence
    )
    assert files(path.parent) == before
    model, history = fit(side, path.parent, retrain=True, **options)
    assert_same(*fit(side, path.parent, **options), to_arrays(model), history)


@on_both_sides
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, 0.3, 0.6, 0.99, -1])
def test_a_truncated_checkpoint_is_refused(side, finished, tmp_path, size):
    data = finished(side)[0]
    size = int(size * len(data)) if 0 < size < 1 else size
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(data[:size])
    assert_refused(side, path, r"is damaged \(.+\)")


@on_both_sides
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + b"\0",
        lambda data: b"\0" * len(data),
        lambda data: b"Not a checkpoint but a letter.\n" * 100,
        lambda data: data[8:],
        lambda data: data.replace(
            b'\\"learning_rate\\": \\"0.01\\"', b'\\"learning_rate\\": \\"0.02\\"'
        ),
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
    ids=["longer", "zeros", "a letter", "no size", "another rate", "the last bit"],
)
def test_a_changed_checkpoint_is_refused(side, finished, tmp_path, change):
    data = finished(side)[0]
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(change(data))
    assert path.read_bytes() != data
    assert_refused(side, path, r"is damaged \(.+\)")


@on_both_sides
def test_any_flipped_bit_is_noticed(side, finished, tmp_path):
    """In every byte of the file, header or data; or else nothing has changed."""
    data = finished(side)[0]
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(data)
    about, arrays = about_of(path), load_file(path)
    wrong, rng = bytearray(data), random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    places = [*range(header), *rng.sample(range(header, len(data)), 500)]
    for place in places:
        wrong[place] ^= 1 << rng.randrange(8)
        path.write_bytes(wrong)
        try:
            found = runs.read_checkpoint(path, about)
        except ValueError as error:
            assert str(error).startswith(f"{path} is "), place
            assert str(error).endswith(CURE), place
            assert "\n" not in str(error), place
        else:
            assert set(found) == set(arrays), place
            assert all((found[k] == arrays[k]).all() for k in arrays), place
        wrong[place] = data[place]


def about_of(path):
    """What a checkpoint says it is."""
    import safetensors

    with safetensors.safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["about"])


@on_both_sides
def test_other_weights_are_no_checkpoint(side, tmp_path):
    """A file of ``save_weights`` under the name of a checkpoint."""
    path = tmp_path / "checkpoint.safetensors"
    save_weights(side.build("Predictor", **SETTINGS.model), path)
    assert_refused(side, path, "is not a training of helpers.runs")


@on_both_sides
@pytest.mark.parametrize(
    ("name", "value", "old", "new"),
    [
        ("learning_rate", 0.02, "0.01", "0.02"),
        ("epochs", 4, "3", "4"),
        ("batch_size", 5, "4", "5"),
        ("warmup", 3, "2", "3"),
        ("schedule", "warmup_constant", "'warmup_cosine'", "'warmup_constant'"),
        ("max_grad_norm", 0.5, "1.0", "0.5"),
        ("seed", 43, "42", "43"),
        ("dropout", 0.5, "0.0", "0.5"),
    ],
)
def test_a_run_of_other_settings_is_refused(
    side, finished, tmp_path, name, value, old, new
):
    """With both values."""
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(finished(side)[0])
    settings = replace(SETTINGS, **{name: value})
    sentence = f"is of another run: its {name} is {old}, here it is {new}"
    assert_refused(side, path, re.escape(sentence), settings=settings)


def other_loss(cross_entropy):
    def half(model, *batch):
        loss, metrics = cross_entropy(model, *batch)
        return loss / 2, metrics

    return half


@on_both_sides
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("initial weights", lambda side: {"seed": 1}),
        (
            "loss function",
            lambda side: {"loss": other_loss(TRAIN[side.name].cross_entropy)},
        ),
        ("data", lambda side: {"data": (DATA["train"][0], DATA["train"][1][::-1])}),
        ("validation data", lambda side: {"validation": DATA["test"]}),
        ("validation data", lambda side: {"validation": None}),
        ("batches", lambda side: {"batches": lambda n: shuffled(SETTINGS)(n + 1)}),
    ],
    ids=["weights", "loss", "data", "validation", "no validation", "batches"],
)
def test_a_run_of_something_else_is_refused(side, finished, tmp_path, name, change):
    """Told apart by digests; the sentence says what differs."""
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(finished(side)[0])
    sentence = f"is of another run: its {name} is [0-9a-f]{{32}}, here it is .{{32}}"
    assert_refused(side, path, sentence, **change(side))


@on_both_sides
def test_a_run_of_the_other_framework_is_refused(side, finished, tmp_path):
    from sides import jax_side, torch_side

    other = {"jax": torch_side, "torch": jax_side}[side.name]
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(finished(other)[0])
    sentence = (
        f"is of another run: its framework is {other.name}, here it is {side.name}"
    )
    assert_refused(side, path, sentence)
