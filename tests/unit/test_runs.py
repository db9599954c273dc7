"""Trainings survive a kill at any moment, and no run is confused with another."""

import json
import random
import re
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import trainee
from helpers.data.sequences import reverse_data, shuffled
from helpers.engine import runs
from helpers.engine.fingerprint import code
from helpers.engine.settings import Sequences
from helpers.engine.weights import save_weights, to_arrays
from helpers.jax import training as train_jax
from helpers.torch import training as train_torch
from sides import on_both_sides, run_python

TRAIN = {"jax": train_jax, "torch": train_torch}
N, EPOCHS = trainee.SETTINGS.updates_per_epoch, trainee.SETTINGS.epochs

# Killed and resumed

POINTS = {  # how often each is reached, and the first epoch that is trained again
    "before the first update": ("batches", 3, 0),
    "half a draft": ("half", 2, 1),
    "before the file is replaced": ("before replace", 3, 2),
    "after the events": ("after events", 4, 3),
    "after the last file is replaced": ("after replace", EPOCHS, EPOCHS),
}
TWICE = [("half", 3), ("before replace", 1), ("after events", 2)]
ALL = [*POINTS, "three times", "at a random moment"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The environment of the trainings: one thread, compiled quickly, and only once."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "OMP_NUM_THREADS": "1",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",  # it would list the processor's features
        }.items():
            patch.setenv(name, value)
        yield


def killed_by_itself(side, folder, point, number, *options):
    """Train until a point; the point must be reached."""
    arguments = side, folder, point, number, *options
    process = trainee.start(trainee.train_until, *arguments)
    process.join()
    assert process.exitcode != 0, (
        f"the training ended before it had reached {point!r} {number} times: is the "
        "hook of trainee.set_traps still on its way?"
    )
    assert process.exitcode == -signal.SIGKILL, "the training failed before its kill"


def killed_from_outside(side, folder):
    """Kill a training at any moment after its first epoch."""
    process = trainee.start(trainee.train_until, side, folder, None, 0)
    while process.is_alive() and not list(folder.glob("*/checkpoint.safetensors")):
        time.sleep(0.005)
    time.sleep(random.uniform(0, 0.05))
    process.kill()
    process.join()
    assert process.exitcode in (-signal.SIGKILL, 0), "the training failed by itself"
    assert list(folder.glob("*/checkpoint.safetensors")), "there is nothing to resume"


def finish(side, folders, root):
    """Go on in all folders, and once without one; what each came to."""
    report = root / "report.json"
    process = trainee.start(trainee.finish, side, [str(f) for f in folders], report)
    process.join()
    assert process.exitcode == 0
    return json.loads(report.read_text())


def files(folder):
    """The files of the only run in a folder."""
    found = [path for path in Path(folder).glob("*/*") if path.name != "about.json"]
    assert len({path.parent for path in found}) <= 1
    return {path.name: path.read_bytes() for path in found}


@pytest.fixture(scope="module", params=["jax", "torch"])
def killed(request, quick, tmp_path_factory):
    """For each way to be killed: the folder after it, and the end that it came to."""
    side, root = request.param, tmp_path_factory.mktemp(request.param)
    folders = {name: root / name for name in ALL}
    for name, (point, number, _) in POINTS.items():
        killed_by_itself(side, folders[name], point, number)
    for point in TWICE:
        killed_by_itself(side, folders["three times"], *point)
    killed_from_outside(side, folders["at a random moment"])
    found = finish(side, folders.values(), root)
    ends = {name: found[str(folder)] for name, folder in folders.items()}
    return {"side": side, "ends": ends, "folders": folders, "whole": found["None"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_killed_training_resumes_exactly(killed, name):
    """Weights and history to the last bit; one checkpoint, one event file, no draft."""
    end, whole, folder = killed["ends"][name], killed["whole"], killed["folders"][name]
    assert end["history"] == whole["history"]
    assert end["weights"] == whole["weights"]
    kinds = sorted(file.split(".")[0] for file in files(folder))
    assert kinds == ["checkpoint", "events"], sorted(files(folder))
    history = {k: np.array(v) for k, v in whole["history"].items()}
    assert_events_are(folder, history, N)


@pytest.mark.slow
def test_no_finished_epoch_is_trained_again(killed):
    """Trainings go on with the first epoch that the checkpoint lacks."""
    for name, end in killed["ends"].items():
        again = end["epochs"][2:]  # two to look
        first = POINTS[name][2] if name in POINTS else min(again, default=EPOCHS)
        assert again == list(range(first, EPOCHS)), name


@pytest.mark.slow
def test_a_retraining_that_is_killed_early_leaves_the_old_run(killed, tmp_path):
    """The old checkpoint is there, whole, until the new one takes its place."""
    folder = tmp_path / "run"
    shutil.copytree(killed["folders"]["half a draft"], folder)
    before = files(folder)["checkpoint.safetensors"]
    killed_by_itself(killed["side"], folder, "before replace", 1, True)
    assert files(folder)["checkpoint.safetensors"] == before


# TensorBoard


def read_events(folder):
    """``{tag: [(step, number)]}`` as TensorBoard itself reads a folder."""
    reader = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    reader.Reload()
    found = {tag: reader.Tensors(tag) for tag in reader.Tags()["tensors"]}
    return {
        tag: [(e.step, make_ndarray(e.tensor_proto).item()) for e in events]
        for tag, events in found.items()
    }


def assert_events_are(folder, history, n):
    """Every update and every epoch once, with the numbers of the history."""
    (path,) = Path(folder).glob("*/events.out.tfevents.*")
    found = read_events(path.parent)
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


def predictor(side, seed=0):
    return side.build("Predictor", **SETTINGS.model, seed=seed)


def fit(side, folder, settings=SETTINGS, *, model=None, **options):
    """Train the predictor of the settings; return model and history."""
    model = model or predictor(side)
    options = {"validation": DATA["validation"], "bar": False, **options}
    train = TRAIN[side.name]
    args = model, train.cross_entropy, DATA["train"], settings
    return model, train.fit(*args, folder=folder, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of each side: its checkpoint's path, weights and history."""
    made = {}

    def make(side):
        if side.name not in made:
            folder = tmp_path_factory.mktemp("finished")
            model, history = fit(side, folder)
            (path,) = folder.glob("*/checkpoint.safetensors")
            made[side.name] = path, to_arrays(model), history
        return made[side.name]

    return make


@pytest.fixture
def damaged(finished, tmp_path):
    """Puts other bytes in the place of a finished run's checkpoint; their path."""

    def make(side, change):
        path = finished(side)[0]
        wrong = tmp_path / path.parent.name / path.name
        wrong.parent.mkdir()
        wrong.write_bytes(change(path.read_bytes()))
        return wrong

    return make


def assert_same(model, history, weights, expected):
    """The same weights and the same history, seconds included."""
    arrays = to_arrays(model)
    assert set(arrays) == set(weights)
    assert set(history) == set(expected)
    for name, x in [*weights.items(), *expected.items()]:
        np.testing.assert_array_equal((arrays | history)[name], x, err_msg=name)


def must_not_train(side, patch):
    trainer = TRAIN[side.name].Trainer
    patch.setattr(trainer, "epoch", lambda *_: pytest.fail("an epoch was trained"))


@on_both_sides
def test_a_finished_run_is_reloaded(side, finished, monkeypatch, capsys):
    """Nothing is trained or written; the same weights and history, and one line."""
    path, weights, history = finished(side)
    before = {p: p.stat().st_mtime_ns for p in path.parent.glob("*")}
    assert len(before) == 3
    must_not_train(side, monkeypatch)
    assert_same(*fit(side, path.parents[1]), weights, history)
    said = capsys.readouterr().out
    name = re.escape(f"{path.parents[1].name}/{path.parent.name}")
    assert re.fullmatch(rf"run {name} of [-\d]+ [:\d]+ is finished .*\n", said)
    assert {p: p.stat().st_mtime_ns for p in path.parent.glob("*")} == before
    assert_events_are(path.parents[1], history, SETTINGS.updates_per_epoch)


@on_both_sides
def test_retrain_repeats_the_run(side, tmp_path, capsys):
    """Also when the run has been reloaded."""
    model, history = fit(side, tmp_path)
    weights = to_arrays(model)
    for options in ({"retrain": True}, {}, {"retrain": True}):
        model, again = fit(side, tmp_path, **options)
        assert (again["seconds"] != history["seconds"]).any() == ("retrain" in options)
        assert_same(model, again | {"seconds": history["seconds"]}, weights, history)
        history = again
    assert len(list(tmp_path.iterdir())) == 1
    assert capsys.readouterr().out.count("\n") == 1


@on_both_sides
def test_an_interrupted_model_resumes_its_run(side, finished, tmp_path, capsys):
    """Ctrl-C, then the same cell again: the very model goes on, and says so."""

    def stopped(epoch):
        if epoch == 1:
            raise KeyboardInterrupt
        return shuffled(SETTINGS)(epoch)

    model, (_, weights, history) = predictor(side), finished(side)
    with pytest.raises(KeyboardInterrupt):
        fit(side, tmp_path, model=model, batches=stopped)
    _, again = fit(side, tmp_path, model=model)
    assert " goes on after epoch 1 of " in capsys.readouterr().out
    again["seconds"] = history["seconds"]
    assert_same(model, again, weights, history)
    assert len(list(tmp_path.iterdir())) == 1


@on_both_sides
def test_changed_weights_start_another_run(side, tmp_path):
    """A model that is trained on, with weights from elsewhere, or another seed."""
    model, _ = fit(side, tmp_path)
    fit(side, tmp_path, replace(SETTINGS, learning_rate=0.02), model=model)
    fit(side, tmp_path, model=predictor(side, seed=1))
    assert len(list(tmp_path.iterdir())) == 3


@on_both_sides
def test_another_learning_rate_trains_another_run(side, finished, tmp_path):
    """And leaves the first one alone."""
    path, weights, history = finished(side)
    kept = tmp_path / path.parent.name / path.name
    kept.parent.mkdir()
    kept.write_bytes(path.read_bytes())
    model, _ = fit(side, tmp_path, replace(SETTINGS, learning_rate=0.02))
    assert any((to_arrays(model)[name] != x).any() for name, x in weights.items())
    assert len(list(tmp_path.iterdir())) == 2
    assert_same(*fit(side, tmp_path), weights, history)


@on_both_sides
def test_keeping_a_run_changes_no_number(side, finished, tmp_path):
    """Nor does its being deep, or a string; without one nothing is written."""
    _, weights, history = finished(side)
    for folder in (None, str(tmp_path / "some" / "folders")):
        model, again = fit(side, folder)
        assert_same(model, again | {"seconds": history["seconds"]}, weights, history)
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


def test_files_of_others_are_left_alone(tmp_path):
    """Event files and drafts beside the runs are not deleted."""
    from sides import torch_side

    theirs = [tmp_path / name for name in ("events.out.tfevents.1", "x.draft")]
    for path in theirs:
        path.write_text("")
    fit(torch_side, tmp_path)
    assert all(path.exists() for path in theirs)


def test_runs_are_below_one_folder(monkeypatch):
    monkeypatch.delenv("RUNS_FOLDER", raising=False)
    assert runs.runs_folder("reverse_jax") == Path("runs/reverse_jax")
    monkeypatch.setenv("RUNS_FOLDER", "/elsewhere")
    assert runs.runs_folder("reverse_jax") == Path("/elsewhere/reverse_jax")


# What makes a run


def about(**changes):
    """What is known of a run, with something changed."""
    given = {
        "modules": [predictor.__class__],
        "loss_fn": train_torch.cross_entropy,
        "settings": SETTINGS,
        "data": DATA["train"],
        "validation": DATA["validation"],
        "batches": shuffled(SETTINGS),
    }
    return runs.describe(**given | changes)


def changed(**changes):
    """Names of what is another after a change."""
    new, old = about(**changes), about()
    return [name for name in old if new[name] != old[name]]


OTHERS = {
    "learning_rate": 0.02, "epochs": 4, "batch_size": 5, "warmup": 3, "seed": 43,
    "schedule": "warmup_constant", "max_grad_norm": 0.5, "dropout": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_every_setting_changes_the_description(name):
    assert changed(settings=replace(SETTINGS, **{name: OTHERS[name]})) == [name]


def test_a_run_in_float32_is_described_as_before_there_was_a_choice():
    assert "precision" not in about()
    half = about(settings=replace(SETTINGS, precision="bfloat16"))
    assert half == about() | {"precision": "'bfloat16'"}


def test_loss_data_and_batches_change_the_description():
    x, y = DATA["train"]
    assert changed(loss_fn=train_torch.odd_one_out) == ["loss function"]
    assert changed(data=(x, y[::-1])) == ["data"]
    assert changed(data=(x, y.reshape(len(y), -1, 1))) == ["data"]  # the same bytes
    assert changed(validation=DATA["test"]) == ["validation data"]
    assert changed(validation=None) == ["validation data"]
    assert changed(batches=lambda n: shuffled(SETTINGS)(n + 1)) == ["batches"]


CELL = """
SCALE = {scale}
def helper(x, shift={shift}):
    return [x {sign} shift for _ in range(3)]
class Base:
    kind = "{kind}"
class Model(Base):
    def __init__(self, heads={heads}):
        self.heads, self.training = heads, True
    def __call__(self, x):  {comment}
        inner = lambda y: helper(y) in {{"a", "b", "c"}}
        return inner(x * SCALE{power})
"""
PLAIN = {
    "scale": 2, "shift": 1, "sign": "+", "kind": "a", "heads": 1, "comment": "",
    "power": "",
}  # fmt: skip


def cell(name="__main__", **changes):
    """The class of a notebook's cell, typed in with some changes."""
    space = {"__name__": name}
    exec(CELL.format(**PLAIN | changes), space)
    return space


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 3}, {"shift": 2}, {"sign": "-"}, {"kind": "b"}, {"heads": 2},
        {"power": " ** 2"},
    ],
    ids=["constant", "default", "helper", "base", "attribute", "call"],
)  # fmt: skip
def test_an_edited_model_has_another_digest(change):
    """Its methods, functions it calls, base class, attributes, constants."""
    assert code(cell()["Model"]()) != code(cell(**change)["Model"]())


def with_keyword_default(n):
    def shifted(x, *, shift=n):
        return x + shift

    return shifted


@pytest.mark.parametrize(
    "make",
    [
        with_keyword_default,
        lambda n: lambda x: x + n,
        lambda n: partial(max, default=n),
        lambda n: {"kind": n},
    ],
    ids=["keyword default", "closure", "partial", "table"],
)
def test_what_a_function_carries_counts(make):
    """As in a table of norms that differ in nothing but their epsilon."""
    assert code(make(1)) == code(make(1)) != code(make(2))


def test_comments_modes_and_processes_keep_the_digest():
    model = cell(comment="# as always")["Model"]()
    model.training = False
    assert code(model) == code(cell()["Model"]())
    text = CELL.format(**PLAIN)
    script = (
        f"{text}\nfrom helpers.engine.fingerprint import code; print(code(Model()))"
    )
    assert {run_python(script), run_python(script)} == {code(cell()["Model"]())}


@on_both_sides
def test_an_edited_model_trains_another_run(side, finished, tmp_path, monkeypatch):
    """One function of the helpers is enough; the old run is not served."""
    path = finished(side)[0]
    (tmp_path / path.parent.name).mkdir()
    block = side.models.EncoderBlock
    monkeypatch.setattr(block, "extra", lambda self: 1, raising=False)
    fit(side, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@on_both_sides
def test_hyperparameters_change_the_digest(side):
    """Two heads instead of one, with the same weights, are another model."""
    parts = {}
    for n_heads in (1, 2):
        model = side.build("Predictor", **SETTINGS.model | {"n_heads": n_heads})
        parts[n_heads] = code(model.encoder.blocks[0].attention)
    assert parts[1] != parts[2]


# Damaged, or in a place that cannot be used


def error_of(side, folder, **options):
    """The error that a call raises, in one line; nothing is written."""
    before = files(folder) if folder and Path(folder).is_dir() else None
    with pytest.raises(ValueError) as caught:
        fit(side, folder, **options)
    assert "\n" not in str(caught.value)
    assert before is None or files(folder) == before
    return str(caught.value)


def assert_raises(side, path, expected):
    """One sentence with the file's name; ``retrain`` replaces it."""
    sentence = error_of(side, path.parents[1])
    expected = rf"{re.escape(str(path))} {expected}: {re.escape(runs.CURE)}"
    assert re.fullmatch(expected, sentence), sentence


@on_both_sides
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:0],
        lambda data: data[:7],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\0" * len(data),
        lambda data: b"Not a checkpoint but a letter.\n" * 100,
        lambda data: data.replace(b"0.01", b"0.02"),
    ],
    ids=["0", "7", "half", "-1", "longer", "zeros", "a letter", "another rate"],
)
def test_a_damaged_checkpoint_raises_an_error(side, damaged, change):
    assert_raises(side, damaged(side, change), r"is damaged \(.+\)")


@on_both_sides
def test_retrain_replaces_a_damaged_checkpoint(side, damaged, finished):
    path, (_, weights, history) = damaged(side, lambda data: data[:100]), finished(side)
    model, again = fit(side, path.parents[1], retrain=True)
    assert_same(model, again | {"seconds": history["seconds"]}, weights, history)
    assert_same(*fit(side, path.parents[1]), weights, again)


@on_both_sides
def test_any_flipped_bit_is_detected(side, damaged):
    """In the header or in the data; or else nothing has changed."""
    path = damaged(side, lambda data: data)
    data, arrays = path.read_bytes(), load_file(path)
    said = about_of(path)
    wrong, rng = bytearray(data), random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    places = [*range(20), *rng.sample(range(20, header), 150)]
    for place in [*places, *rng.sample(range(header, len(data)), 80)]:
        wrong[place] ^= 1 << rng.randrange(8)
        path.write_bytes(wrong)
        try:
            found = runs.read_checkpoint(path, said)
        except ValueError as error:
            assert str(error).startswith(f"{path} is "), place
            assert str(error).endswith(runs.CURE), place
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
def test_other_files_are_not_accepted_as_a_checkpoint(
    side, damaged, tmp_path, tmp_path_factory
):
    """Weights of ``save_weights``, the checkpoint of another run, a folder."""
    path = damaged(side, lambda data: data)
    save_weights(predictor(side), path)
    assert_raises(side, path, "is not a training of helpers.engine.runs")
    folder = tmp_path_factory.mktemp("other")
    fit(side, folder, replace(SETTINGS, learning_rate=0.02))
    (other,) = folder.glob("*/checkpoint.safetensors")
    path.write_bytes(other.read_bytes())
    assert_raises(side, path, "is of another run")
    path.unlink()
    path.mkdir()
    sentence = f"{path} is a folder, expected a file: {runs.CURE}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        fit(side, tmp_path)


@on_both_sides
def test_an_unusable_folder_raises_an_error_before_any_work(
    side, tmp_path, monkeypatch
):
    must_not_train(side, monkeypatch)
    assert error_of(side, "") == "expected folder to be the path of a folder, got ''"
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert error_of(side, folder).startswith(f"cannot keep a run in {folder}: ")
