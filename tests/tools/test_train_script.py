"""``scripts/train.py``: what it refuses in this process; what it trains, in real ones.

Processes of JAX compile quickly instead of compiling quick code, as ``sides`` does.
"""

import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

import paused
import tasks
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import load_weights, to_arrays
from helpers.torch import training as train_torch
from sides import jax_side, on_both_sides, torch_side

SCRIPT = paused.SCRIPT
SIZES = {  # small: 20 updates of 16 examples
    "n_train": 16 * 10, "batch_size": 16, "epochs": 2, "warmup": 5, "m": 16, "f": 32,
    "n_blocks": 1, "n_heads": 2, "learning_rate": 1e-3, "dropout": 0.0,
}  # fmt: skip
ONLY = {  # least; and one epoch, since the whole test text is measured after each
    "anomaly": {"n_train": 16 * 13},
    "language": {"n_tokens": 110, "n_train": 16 * 20, "epochs": 1},
}
QUIET = {**os.environ, "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
QUIET["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
QUIET["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see the page on devices
SENTENCE = "train.py: "


def flags(**options):
    """Options of a command line."""
    return [
        word
        for name, value in options.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def sizes_of(task):
    """Settings of a small training."""
    return SIZES | ONLY.get(task, {})


def options_of(side, task, runs, **changes):
    """The same as options."""
    given = {"framework": side, "task": task, "runs": runs, **sizes_of(task)}
    return flags(**given | changes)


# In this process


def call(options):
    """Call the script with options; return its exit status."""
    spec = importlib.util.spec_from_file_location("train_script", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "argv", [str(SCRIPT), *options])
        patch.setenv("TQDM_DISABLE", "1")
        spec.loader.exec_module(script)
        try:
            script.main()
        except SystemExit as stopped:
            return stopped.code
    return 0


BAD = [
    ({"batch": 3}, "unrecognized arguments: --batch"),
    ({"epochs": "many"}, "invalid int value: 'many'"),
    ({"m": 15}, "m = 15 does not split into 2 heads"),
    ({"data": "x"}, "the task reverse makes its own data, got 'x'"),
    ({"processes": 0}, "expected a whole number above 0, got '0'"),
    ({"block": "today"}, "unrecognized arguments: --block today"),
    ({"norm_first": "perhaps"}, "expected true or false, got 'perhaps'"),
    ({"weights": "/nope/w"}, "expected --weights in a folder to write in, got /nope/w"),
]
MEETING = {"coordinator": "localhost:1", "processes": 2}
BAD_MEETINGS = [
    ("jax", {"coordinator": "localhost:1"}, "expected --processes and --process, too"),
    ("jax", {**MEETING, "process": 2}, "expected --process from 0 to 1 with"),
    ("jax", {**MEETING, "coordinator": "node"}, "expected --coordinator HOST:PORT, or"),
    ("jax", {"process": 0}, "expected --coordinator HOST:PORT with --processes"),
    ("torch", {**MEETING, "process": 0}, "torchrun starts processes of PyTorch"),
]


@pytest.mark.parametrize(
    ("side", "changes", "told"),
    [(side, *bad) for bad in BAD for side in ("jax", "torch")] + BAD_MEETINGS,
    ids=lambda x: str(x)[:15],
)
def test_bad_flags_are_one_sentence(side, changes, told, tmp_path, capsys):
    """The last line on stderr, before any work."""
    assert call(options_of(side, "reverse", tmp_path, **changes)) in (1, 2)
    out, error = capsys.readouterr()
    (line,) = error.splitlines()
    assert told in line
    assert not out and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("options", [[], ["--help"], ["--help", "--framework", "jax"]])
def test_help_needs_no_task_and_explains_all_settings(options, capsys):
    assert call(options) == 0
    out = " ".join(capsys.readouterr().out.split())
    for kind in [kind for kind, _ in tasks.TASKS.values()] + [*tasks.BLOCKS.values()]:
        for one in fields(kind):
            if one.name != "source":
                assert f"{one.name.upper()} {tasks.MEANINGS[one.name][:20]}" in out


def test_help_of_a_task_has_its_defaults(capsys):
    assert call(["--task", "language", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--length LENGTH" in out and "in tokens (default: 64)" in out
    assert "--patch" not in out and "--n-kv-heads" not in out
    assert call(["--task", "language", "--block", "today", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--f F hidden size of the feed-forward net (default: 288)" in out
    assert "divide the attention heads (default: 2)" in out


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Where the small training of a task is kept; it is made once."""

    @cache
    def alone(side, task):
        runs = tmp_path_factory.mktemp(f"{side}-{task}")
        assert call(options_of(side, task, runs)) == 0
        return runs

    return alone


def weights_in(runs):
    """The only file of weights of a folder."""
    (path,) = Path(runs).glob("weights_*.safetensors")
    return path


@on_both_sides
@pytest.mark.parametrize("name", [*tasks.TASKS])
def test_every_task_trains_and_its_weights_load(side, name, alone):
    """On one device, with the data of the chapter."""
    model = tasks.load(name, **sizes_of(name)).build(side.name)
    before = to_arrays(model)
    load_weights(model, weights_in(alone(side.name, name)))
    assert all(np.any(before[k] != x) for k, x in to_arrays(model).items())


def test_only_retrain_trains_a_finished_run_again(tmp_path, capsys):
    """Trained, then reloaded, then trained from the start."""
    reloaded, seconds = [], []
    for more in ([], [], ["--retrain"]):
        assert call([*options_of("torch", "reverse", tmp_path), *more]) == 0
        reloaded.append("is finished and reloaded" in capsys.readouterr().out)
        seconds.append(history(tmp_path)["history/seconds"])
    assert reloaded == [False, True, False]
    assert (seconds[0] == seconds[1]).all()
    assert (seconds[1] != seconds[2]).any(), "--retrain has left the old checkpoint"


@on_both_sides
def test_weights_are_kept_before_the_test_data_are_measured(
    side, alone, tmp_path, monkeypatch, capsys
):
    """In batches of the size of the training, as memory may end there.

    Also where the test data take the place of validation after each epoch.
    """
    sizes, training = [], import_module(f"helpers.{side.name}.training")

    def evaluate(*_, batch_size=1000):
        sizes.append(batch_size)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(training, "evaluate", evaluate)
    path = tmp_path / "w"
    given = options_of(side.name, "reverse", alone(side.name, "reverse"), weights=path)
    assert call(given) == 1
    assert capsys.readouterr().err == f"{SENTENCE}out of memory\n"
    assert path.exists() and sizes == [16]
    given = options_of(side.name, "language", tmp_path / "runs")  # a single epoch
    assert call(given) == 1
    assert weights_in(tmp_path / "runs").exists() and sizes == [16, 16]


def test_each_run_has_its_weights_and_says_the_test_loss_of_each_epoch(
    tmp_path, capsys
):
    """Another seed is another file; the same command has the same one."""
    text, runs, paths = tmp_path / "own.txt", tmp_path / "runs", []
    text.write_text("to be, or not to be, that is the question\n" * 600)
    for seed in (1, 2, 1):
        given = {"data": text, "n_train": 32, "warmup": 1, "epochs": 2, "seed": seed}
        assert call(options_of("torch", "language", runs, **given)) == 0
        *lines, total, path = capsys.readouterr().out.splitlines()
        paths.append(path)
        if len(paths) < 3:
            (line,) = lines
            each = re.compile(r"test loss (\d+\.\d+), accuracy .*%$")
            assert line.startswith("epoch 1 of 2: loss ") and each.search(line)
            assert float(each.search(total)[1]) != float(each.search(line)[1])
    assert "is finished and reloaded" in lines[0]
    assert paths[0] == paths[2] != paths[1]
    assert {*paths} == {*map(str, runs.glob("weights_*.safetensors"))}


@on_both_sides
def test_the_lines_of_the_page_write_with_a_trained_model(
    side, alone, tmp_path, monkeypatch, capsys
):
    """Those of the chapter *More than one device*, with the file of a run."""
    pytest.importorskip("jupytext")
    from pages import NOTEBOOKS, read_py

    cells = read_py(NOTEBOOKS / f"scaling_{side.name}.py")
    (text,) = [c.source for c in cells if "load_language_model" in c.source]
    (lines,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(list(filter(None, lines.splitlines()))) == 3
    shutil.copy(weights_in(alone(side.name, "language")), tmp_path / "my.safetensors")
    monkeypatch.chdir(tmp_path)
    exec(lines, space := {})
    assert len(capsys.readouterr().out) > 30
    task = tasks.load("language", **sizes_of("language"))
    assert space["tokens"].metadata.items() < task.notes.items()
    model = load_file(weights_in(alone(side.name, "language")))
    assert (to_arrays(space["model"])["embed.weight"] == model["embed.weight"]).all()


@on_both_sides
def test_the_block_of_today_trains_goes_on_and_writes(
    side, tmp_path, monkeypatch, capsys
):
    """Interrupted after its first epoch, it ends as if it had not been."""
    text, training = (
        tmp_path / "own.txt",
        import_module(f"helpers.{side.name}.training"),
    )
    text.write_text("to be, or not to be, that is the question\n" * 600)
    sizes = {"block": "today", "data": text, "n_train": 32, "epochs": 2, "warmup": 1}
    options = {"n_kv_heads": 1, "qk_norm": "true"}
    whole, parts = (
        options_of(side.name, "language", tmp_path / name, **sizes, **options)
        for name in ("whole", "parts")
    )
    assert call(whole) == 0

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "evaluate", stop)
        assert call(parts) == 130
    capsys.readouterr()
    assert call(parts) == 0
    assert "goes on after epoch 1 of 2" in capsys.readouterr().out
    assert_same_run(history(tmp_path / "parts"), history(tmp_path / "whole"))
    path = weights_in(tmp_path / "parts")
    model, tokens = side.models.load_language_model(path)
    assert type(model) is side.models.ModernLM
    kept, ours = load_file(path), to_arrays(model)
    assert "blocks.0.attention.q_norm.weight" in kept and kept.keys() == ours.keys()
    assert all((kept[name] == ours[name]).all() for name in ours)
    (found,) = side.models.generate_greedily(
        model, [tokens.encode("to be")], 7
    ).tolist()
    assert len(tokens.decode(found)) >= 7


def test_the_test_data_are_measured_with_the_weights_that_are_kept(tmp_path, capsys):
    """In the file that was asked for."""
    path = tmp_path / "mine.safetensors"
    given = options_of("torch", "reverse", tmp_path / "runs", weights=path)
    assert call(given) == 0
    said = capsys.readouterr().out
    task = tasks.load("reverse", **sizes_of("reverse"))
    load_weights(model := task.build("torch"), path)
    found = {
        name: train_torch.evaluate(model, train_torch.cross_entropy, data)
        for name, data in task.data.items()
    }
    assert f"test loss {found['test']['loss']:.4f}, " in said
    assert found["test"]["loss"] != pytest.approx(found["train"]["loss"], abs=1e-4)
    assert found["test"]["loss"] != pytest.approx(found["validation"]["loss"], abs=1e-4)
    assert said.splitlines()[-1] == str(path)
    assert "epoch 2 of 2: loss " in said and ", validation loss " in said


# From a trained model


def small(name, tmp_path, **more):
    """Options of a language model of today on a text of its own."""
    path = tmp_path / f"{name}.txt"
    if not path.exists():
        path.write_text("to be, or not to be, that is the question\n" * 600)
    return {"data": path, "n_train": 32, "epochs": 2, "warmup": 1} | more


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights of a language model with the block of today, and of GPT-2; made once."""
    folder, found = tmp_path_factory.mktemp("trained"), {}
    for block, more in {"today": {"n_kv_heads": 1, "length": 13}, "gpt2": {}}.items():
        found[block] = folder / f"{block}.safetensors"
        given = small("own", folder, block=block, **more)
        given |= {"weights": found[block], "epochs": 10, "learning_rate": 0.01}
        assert call(options_of("torch", "language", folder / block, **given)) == 0
    return found


def options_from(side, path, runs, **changes):
    """Options of a training that starts from weights; their sizes are left out."""
    given = small("own", path.parent, **changes)
    fixed = {"framework": side, "task": "language", "runs": runs, "from": path}
    return flags(**fixed | {"batch_size": 16, "learning_rate": 1e-3} | given)


@pytest.mark.parametrize(
    ("side", "block"),
    [(torch_side, "today"), (torch_side, "gpt2"), (jax_side, "today")],
    ids=lambda x: getattr(x, "name", x),
)
def test_training_starts_from_weights(side, block, trained, tmp_path, capsys):
    """All of them are trained, with the vocabulary and the sizes of the file."""
    before, pairs = side.models.load_language_model(trained[block])
    assert call(options_from(side.name, trained[block], tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    found, theirs = side.models.load_language_model(weights_in(tmp_path))
    assert type(found) is type(before) and theirs.metadata == pairs.metadata
    old, new = to_arrays(before), to_arrays(found)
    assert old.keys() == new.keys() and all((old[k] != new[k]).any() for k in old)
    assert max(np.abs(old[k] - new[k]).max() for k in old) < 0.01  # 4 steps of 1e-3
    first = float(re.search(r"epoch 1 of 2: loss (\S+),", lines[0])[1])
    assert first < np.log(len(pairs)) - 0.1  # not as if untrained


@on_both_sides
def test_adapters_are_trained_and_saved_alone(side, trained, tmp_path, capsys):
    """Interrupted after an epoch, as if not; both frameworks load the file."""
    training = import_module(f"helpers.{side.name}.training")
    more = {"adapter_rank": 3, "adapter_alpha": 5, "adapter_layers": "q,v,up"}
    whole, parts = (
        options_from(side.name, trained["today"], tmp_path / name, **more)
        for name in ("whole", "parts")
    )
    assert call(whole) == 0
    *_, said, path = capsys.readouterr().out.splitlines()

    def stop(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "evaluate", stop)
        assert call(parts) == 130
    capsys.readouterr()
    assert call(parts) == 0
    assert "goes on after epoch 1 of 2" in capsys.readouterr().out
    assert_same_run(history(tmp_path / "parts"), history(tmp_path / "whole"))
    (file,) = tmp_path.glob("whole/adapter_*.safetensors")
    assert str(file) == path and not [*tmp_path.glob("whole/weights_*")]
    kept, m, d, f = load_file(file), 16, 8, 32
    assert {name.rpartition(".")[2] for name in kept} == {"lora_a", "lora_b"}
    assert all(np.any(x) for x in kept.values()), "B was not trained"
    n = sum(x.size for x in kept.values())
    assert n == 3 * ((m + 2 * d) + (m + d) + (m + f))  # of q, of v, of up
    assert said.startswith(f"{n:,} of ")
    tokens, found = np.arange(26).reshape(2, 13), []
    for one in (jax_side, torch_side):
        model, _ = one.models.load_language_model(trained["today"])
        one.models.load_adapter(model, file)
        found.append(as_numpy(model(one.tensor(tokens, "int32"))))
    np.testing.assert_allclose(*found, atol=1e-5)
    before, _ = side.models.load_language_model(trained["today"])
    assert (
        np.abs(found[0] - as_numpy(before(side.tensor(tokens, "int32")))).max() > 1e-4
    )


def test_alpha_and_layers_make_another_run(trained, tmp_path):
    """Of adapters, each with its own file; the same command has the same one."""
    for more in (
        {},
        {"adapter_alpha": 4},
        {"adapter_alpha": 3},
        {"adapter_layers": "k"},
    ):
        given = {"adapter_rank": 2, "epochs": 1} | more
        assert call(options_from("torch", trained["today"], tmp_path, **given)) == 0
    assert len([*tmp_path.glob("adapter_*")]) == 3  # alpha is 4 by default


@on_both_sides
def test_weights_are_saved_in_half_precision(side, trained, tmp_path, capsys):
    """Half as large, loaded with their vocabulary, and a start like others."""
    given = {"epochs": 1, "data": trained["today"].parent / "own.txt"}
    assert call([*options_from(side.name, trained["today"], tmp_path, **given)]) == 0
    whole = load_file(weights_in(tmp_path))
    file = tmp_path / "half.safetensors"
    options = options_from(side.name, trained["today"], tmp_path, weights=file, **given)
    assert call([*options, "--half"]) == 0
    half = load_file(file)
    for name, x in half.items():
        assert x.dtype == np.float16
        np.testing.assert_array_equal(x, whole[name].astype(np.float16))
    model, pairs = side.models.load_language_model(file)
    assert pairs.decode(pairs.encode("to be")) == "to be"
    assert all((x == half[name]).all() for name, x in to_arrays(model).items())
    capsys.readouterr()
    assert call(options_from(side.name, file, tmp_path, **given)) == 0


BAD_STARTS = [  # options, what is in place of the file, and the words of the sentence
    ({"block": "gpt2"}, "expected block = today, as PATH says, got gpt2"),
    ({"m": 24}, "expected m = 16, as PATH says, got 24"),
    ({"length": 14}, "expected length = 13, as PATH says, got 14"),
    ({"n_tokens": 111}, "expected n_tokens = 110, as PATH says, got 111"),
    ({"n_kv_heads": 2}, "expected n_kv_heads = 1, as PATH says, got 2"),
    ({"weights": "PATH"}, "expected --weights other than --from, got PATH for both"),
    ({"from": "/nope/w"}, "No such file or directory: /nope/w"),
    (
        {"from": "TEXT"},
        "expected TEXT to be a language model that scripts/train.py has",
    ),
    ({"adapter_rank": 0}, "expected a whole number above 0, got '0'"),
    ({"adapter_alpha": 3}, "expected --adapter-rank, too, with --adapter-alpha"),
    ({"adapter_rank": 2, "adapter_alpha": "nan"}, "a number above 0, got 'nan'"),
    ({"adapter_rank": 2, "adapter_layers": "q,qkv"}, "'up', 'v'], got ['qkv']"),
    ({"data": "GREEK"}, "unknown character 'α' (U+03B1): expected one of 97"),
]


@on_both_sides
@pytest.mark.parametrize(("changes", "told"), BAD_STARTS, ids=lambda x: str(x)[:20])
def test_bad_starts_are_one_sentence(side, changes, told, trained, tmp_path, capsys):
    """Before any work, with both values."""
    path, folder = trained["today"], trained["today"].parent
    (folder / "greek.txt").write_text("αβγ" * 9000, encoding="utf-8")
    places = {"PATH": path, "TEXT": folder / "own.txt", "GREEK": folder / "greek.txt"}
    changes = {name: places.get(x, x) for name, x in changes.items()}
    assert call(options_from(side.name, path, tmp_path) + flags(**changes)) in (1, 2)
    out, error = capsys.readouterr()
    (line,) = error.splitlines()
    for name, place in places.items():
        told = told.replace(name, str(place))
    assert told in line
    assert not out and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [
        ("vision", {"from": "x"}, "expected --task language with --from, got vision"),
        ("language", {"adapter_rank": 2}, "expected --from FILE with --adapter-rank"),
        (
            "vision",
            {"adapter_layers": "q"},
            "expected --from FILE with --adapter-layers",
        ),
    ],
)
def test_adapters_need_weights_of_a_language_model(
    task, options, told, tmp_path, capsys
):
    assert call(options_of("torch", task, tmp_path, **options)) == 2
    assert told in capsys.readouterr().err
    path = tmp_path / "x"
    given = options_of("torch", "language", tmp_path, adapter_rank=2, adapter_alpha=1)
    assert call(given) == 2 and not path.exists()


@pytest.mark.slow
@on_both_sides
def test_processes_train_adapters_together(side, trained, tmp_path):
    """Two of them: the same numbers as one, and one file."""
    given = {"adapter_rank": 2}
    alone = options_from(side.name, trained["today"], tmp_path / "alone", **given)
    assert call(alone) == 0
    options = options_from(side.name, trained["today"], tmp_path / "two", **given)
    if side is jax_side:
        succeed(*jax_processes(options))
    else:
        succeed(start([*torchrun(2), *options]))
    ours, theirs = (history(tmp_path / name) for name in ("two", "alone"))
    for name in ("history/loss", "history/grad_norm"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, err_msg=name)
    files = [load_file(*tmp_path.glob(f"{n}/adapter_*")) for n in ("two", "alone")]
    assert files[0].keys() == files[1].keys()
    for name in files[0]:
        np.testing.assert_allclose(files[0][name], files[1][name], atol=2e-4)


# In processes of its own


def torchrun(n, *options, script=SCRIPT):
    """The beginning of a command that starts ``n`` processes of PyTorch."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc-per-node={n}", *options, "--", str(script)]


def start(command):
    """Start a process, in a group of its own, so that all its workers can be killed."""
    return subprocess.Popen(
        command, env=QUIET, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(*running):
    """What processes say on stderr, when all have ended; none is left over."""
    try:
        return [process.communicate(timeout=600)[1] for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def succeed(*running):
    """Wait for processes that must not fail."""
    errors = finish(*running)
    assert {process.returncode for process in running} == {0}, errors[0][:3000]


def free_port():
    """A port that nobody uses, and that no other program is given in the meantime.

    Those that the system gives away begin at 32768 on Linux, and higher elsewhere.
    """
    for port in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.socket() as one:
            one.bind(("localhost", port))
            return port
    raise RuntimeError("expected a free port among 100")


def jax_processes(options, second=(), script=SCRIPT):
    """Start two processes of JAX that meet; the second one with more options."""
    meeting = flags(coordinator=f"localhost:{free_port()}", processes=2)
    command = [sys.executable, script, *options, *meeting]
    each = flags(process=0), [*flags(process=1), *second]
    return [start([*command, *mine]) for mine in each]


def history(runs):
    """What a run has kept: all arrays of its checkpoint."""
    (file,) = Path(runs).glob("*/checkpoint.safetensors")
    return load_file(file)


def assert_same_numbers(shared, alone):
    """Losses, accuracies and gradient norms of every update; and the loss falls."""
    losses = alone["history/loss"]
    assert len(losses) == 20 and losses[10:].mean() < losses[:10].mean()
    for name in ("loss", "accuracy", "grad_norm"):
        key = f"history/{name}"
        np.testing.assert_allclose(shared[key], alone[key], rtol=1e-4, err_msg=name)


def assert_same_run(ours, theirs):
    """Everything but the seconds, to the last bit."""
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"history/seconds"}:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["jax", "torch"])
@pytest.mark.parametrize(("task", "n"), [("translation", 2), ("vision", 4)])
def test_devices_share_the_batches_of_one(side, task, n, alone, tmp_path):
    """Padded texts, and pictures that are moved by chance: the same numbers."""
    given = options_of(side, task, tmp_path)
    if side == "jax":
        command = [sys.executable, SCRIPT, *given, *flags(cpu_devices=n)]
    else:
        command = [*torchrun(n), *given]
    succeed(start(command))
    assert_same_numbers(history(tmp_path), history(alone(side, task)))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Two processes of JAX, with two devices each: where their run is, made once."""
    runs = tmp_path_factory.mktemp("undisturbed")
    succeed(*jax_processes(options_of("jax", "reverse", runs, cpu_devices=2)))
    return runs


@pytest.mark.slow
def test_processes_of_jax_share_the_batches_of_one(undisturbed, alone):
    assert_same_numbers(history(undisturbed), history(alone("jax", "reverse")))


def wait_for_checkpoint(runs, *running):
    """Wait until a run has been kept."""
    while not [*Path(runs).glob("*/checkpoint.safetensors")]:
        for process in running:
            assert process.poll() is None, process.communicate()[1][-2000:]
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_processes_of_jax_go_on_when_started_again(undisturbed, tmp_path):
    """The run ends with the weights of one that nobody disturbed."""
    given = options_of("jax", "reverse", tmp_path, cpu_devices=2)
    running = jax_processes(given, script=paused.__file__)
    wait_for_checkpoint(tmp_path, *running)
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
    finish(*running)
    assert len(history(tmp_path)["history/seconds"]) == 1
    succeed(*jax_processes(given))
    assert_same_run(history(tmp_path), history(undisturbed))


@pytest.mark.slow
def test_torchrun_restarts_after_a_worker_was_killed(tmp_path):
    """The run ends with the weights of one that nobody disturbed."""
    ours, theirs = (
        options_of("torch", "reverse", tmp_path / name, dropout=0.1) for name in "ab"
    )
    succeed(start([*torchrun(2), *theirs]))
    restarting = torchrun(2, "--max-restarts=1", script=paused.__file__)
    process = start([*restarting, *ours])
    wait_for_checkpoint(tmp_path / "a", process)
    workers = psutil.Process(process.pid).children()
    os.kill(workers[-1].pid, signal.SIGKILL)
    (error,) = finish(process)
    assert process.returncode == 0, error[:3000]
    assert "exitcode: -9" in error  # one was killed, and torchrun began anew
    assert_same_run(history(tmp_path / "a"), history(tmp_path / "b"))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["jax", "torch"])
def test_an_interrupted_command_says_how_to_go_on(side, tmp_path):
    """Ctrl-C is one sentence, and the next call says where it begins."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else inherited: ignored
    given = options_of(side, "reverse", tmp_path)
    process = start([sys.executable, paused.__file__, *given])
    wait_for_checkpoint(tmp_path, process)
    process.send_signal(signal.SIGINT)
    (error,) = finish(process)
    assert process.returncode == 130
    assert error.startswith(f"{SENTENCE}interrupted; the same command goes on"), error
    assert "Traceback" not in error
    command = [sys.executable, SCRIPT, *given]
    again = subprocess.run(command, env=QUIET, text=True, capture_output=True)
    assert again.returncode == 0, again.stderr
    assert "goes on after epoch 1 of 2\n" in again.stdout
    assert "test loss" in again.stdout


def assert_one_sentence(process, error, told):
    """Status 1, and among the lines on stderr one of the script."""
    assert process.returncode == 1, error
    (line,) = (line for line in error.splitlines() if line.startswith(SENTENCE))
    assert told in line
    assert "Traceback" not in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cpu_devices": 3}, "expected batch_size to be a multiple of 3"),
        ({"coordinator": "auto"}, "expected SLURM, Kubernetes or Open MPI to have"),
    ],
)
def test_an_error_ends_the_command_with_one_sentence(changes, told, tmp_path):
    """At once, not when the time to wait for others is over."""
    given = options_of("jax", "reverse", tmp_path, limit=3600, **changes)
    (error,) = finish(process := start([sys.executable, SCRIPT, *given]))
    assert_one_sentence(process, error, told)
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.mark.slow
def test_without_data_on_one_host_all_processes_of_jax_stop(tmp_path):
    """Each with a sentence that names the cause."""
    second = ["--data", "/no/such/text"]
    running = jax_processes(options_of("jax", "language", tmp_path), second)
    errors = finish(*running)
    for process, error in zip(running, errors, strict=True):
        assert_one_sentence(process, error, "cannot read the text /no/such/text")
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.mark.slow
def test_unequal_data_stop_all_processes_of_torch(tmp_path):
    """A worker with another text than the others; torchrun says so once, at its end."""
    text = "to be, or not to be, that is the question\n" * 1000
    for rank in range(2):
        (tmp_path / f"{rank}.txt").write_text(text + "x" * rank * 100)
    given = options_of("torch", "language", tmp_path / "runs")
    shell = f'exec "$0" "$@" --data {tmp_path}/$LOCAL_RANK.txt'
    command = [*torchrun(2, "--no-python")[:-1], "bash", "-c", shell, sys.executable]
    process = start([*command, str(SCRIPT), *given])
    (error,) = finish(process)
    assert process.returncode == 1
    assert error.count(SENTENCE) == 1
    *_, summary = error.split("Root Cause (first observed failure):")
    assert f"traceback : {SENTENCE}expected the same training" in summary
    assert "got another test data and another train data" in summary


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_of_jax_does_not_wait_for_ever(rank, tmp_path):
    given = options_of("jax", "reverse", tmp_path, limit=3, processes=2, process=rank)
    meeting = flags(coordinator=f"localhost:{free_port()}")
    (error,) = finish(process := start([sys.executable, SCRIPT, *given, *meeting]))
    told = f"expected 2 processes to meet at {meeting[-1]} within 3 seconds"
    assert_one_sentence(process, error, told)


@pytest.mark.slow
def test_a_process_of_jax_that_waits_can_be_interrupted(tmp_path):
    """Ctrl-C is one sentence at once, not when the time to wait is over."""
    with socket.create_server(("localhost", free_port())) as first:  # never answers
        meeting = {"coordinator": f"localhost:{first.getsockname()[1]}", "processes": 2}
        given = options_of("jax", "reverse", tmp_path, limit=3600, process=1, **meeting)
        process = start([sys.executable, SCRIPT, *given])
        first.settimeout(120)
        first.accept()[0].close()  # it begins to wait
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        (error,) = finish(process)
    assert process.returncode == 130, error
    assert [x for x in error.splitlines() if x.startswith(SENTENCE)] == [
        f"{SENTENCE}interrupted while it waited for other processes"
    ]
    assert "Traceback" not in error
