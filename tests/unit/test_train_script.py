"""``scripts/train.py`` with real processes of both frameworks, over localhost."""

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from helpers import tasks, train_torch
from helpers.jobs import free_port
from helpers.weights import load_weights, to_arrays

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/train.py"
SIZES = {  # small: 50 updates of 16 examples
    "n_train": 16 * 25, "batch_size": 16, "epochs": 2, "warmup": 5, "m": 16, "f": 32,
    "n_blocks": 1, "n_heads": 2,
}  # fmt: skip
QUIET = {**os.environ, "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
QUIET["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see the README
SENTENCE = "train.py: "


def flags(**options):
    """Options of a command line."""
    return [
        word
        for name, value in options.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def torchrun(n, *options):
    """The beginning of a command that starts ``n`` processes of PyTorch."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc-per-node={n}", *options, "--", str(SCRIPT)]


def start(command):
    """Start a process, in a group of its own, so that all its workers can be killed."""
    return subprocess.Popen(
        command, env=QUIET, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(*running, limit=240):
    """What processes say on stderr, when all have ended; none is left over."""
    try:
        return [process.communicate(timeout=limit)[1] for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def jax_processes(options, second=()):
    """Start two processes of JAX that meet; the second one with more options."""
    meeting = flags(coordinator=f"localhost:{free_port()}", processes=2)
    command = [sys.executable, SCRIPT, *options, *meeting]
    each = flags(process=0), [*flags(process=1), *second]
    return [start([*command, *mine]) for mine in each]


def commands(side, task, runs):
    """The same training for both frameworks, as options."""
    given = {"framework": side, "task": task, "runs": runs, "limit": 60, **SIZES}
    return flags(**given, dropout=0.0)


def history(runs):
    """What a run has kept: all arrays of its checkpoint."""
    (file,) = Path(runs).glob("*/checkpoint.safetensors")
    return load_file(file)


def train(side, n, task, runs):
    """Train with ``n`` processes of PyTorch, or on ``n`` devices of JAX."""
    given = commands(side, task, runs)
    if side == "jax":
        command = [sys.executable, SCRIPT, *given, *flags(cpu_devices=n)]
    else:
        command = [*(torchrun(n) if n > 1 else [sys.executable, SCRIPT]), *given]
    process = start(command)
    (error,) = finish(process)
    assert process.returncode == 0, error[:3000]
    return history(runs)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["jax", "torch"])
@pytest.mark.parametrize("task", ["translation", "vision"])
def test_two_and_four_share_the_batches_of_one(side, task, tmp_path):
    """Padded texts, and pictures that are moved by chance: losses and weights agree."""
    alone = train(side, 1, task, tmp_path / "1")
    assert alone["history/loss"].shape == (50,)
    assert alone["history/loss"][-1] < alone["history/loss"][0]
    for n in (2, 4):
        shared = train(side, n, task, tmp_path / f"{n}")
        for name in ("loss", "accuracy", "grad_norm"):
            key = f"history/{name}"
            np.testing.assert_allclose(shared[key], alone[key], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_of_jax_share_the_batches_of_one(tmp_path):
    alone = train("jax", 1, "reverse", tmp_path / "1")
    options = [*commands("jax", "reverse", tmp_path / "2"), *flags(cpu_devices=2)]
    running = jax_processes(options)
    errors = finish(*running)
    assert [process.returncode for process in running] == [0, 0], errors
    shared = history(tmp_path / "2")  # written by one of them
    np.testing.assert_allclose(
        shared["history/loss"], alone["history/loss"], rtol=1e-4, atol=1e-5
    )


def checkpoint_of(runs, process):
    """Wait for the first checkpoint of a run."""
    while not [*Path(runs).glob("*/checkpoint.safetensors")]:
        assert process.poll() is None, process.communicate()[1][-2000:]
        time.sleep(0.05)


def workers(process):
    """Process ids of the children of a process."""
    return [child.pid for child in psutil.Process(process.pid).children()]


@pytest.mark.slow
def test_torchrun_restarts_after_a_worker_was_killed(tmp_path):
    """The run ends with the weights of one that nobody disturbed."""
    given = [*commands("torch", "reverse", tmp_path / "a")[:-2], *flags(dropout=0.1)]
    given[given.index("--epochs") + 1] = "12"
    undisturbed = start([*torchrun(2), *given])
    killed = [str(tmp_path / "b") if x == str(tmp_path / "a") else x for x in given]
    (error,) = finish(undisturbed)
    assert undisturbed.returncode == 0, error[:3000]
    process = start([*torchrun(2, "--max-restarts=1"), *killed])
    checkpoint_of(tmp_path / "b", process)
    os.kill(workers(process)[-1], signal.SIGKILL)
    (error,) = finish(process)
    assert process.returncode == 0, error[:3000]
    assert "exitcode: -9" in error  # one was killed, and torchrun began anew
    both = history(tmp_path / "a"), history(tmp_path / "b")
    assert both[0].keys() == both[1].keys()
    for name in both[0].keys() - {"history/seconds"}:
        np.testing.assert_array_equal(both[1][name], both[0][name], err_msg=name)


@pytest.mark.slow
def test_killed_processes_of_jax_go_on_when_started_again(tmp_path):
    """The run ends with the weights of one that nobody disturbed."""

    def options(name):
        given = commands("jax", "reverse", tmp_path / name)
        given[given.index("--epochs") + 1] = "12"
        return given

    errors = finish(*(undisturbed := jax_processes(options("a"))))
    assert [process.returncode for process in undisturbed] == [0, 0], errors
    running = jax_processes(options("b"))
    checkpoint_of(tmp_path / "b", running[0])
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
    finish(*running)
    done = len(history(tmp_path / "b")["history/seconds"])
    assert 1 <= done < 12
    errors = finish(*(again := jax_processes(options("b"))))
    assert [process.returncode for process in again] == [0, 0], errors
    both = history(tmp_path / "a"), history(tmp_path / "b")
    for name in both[0].keys() - {"history/seconds"}:
        np.testing.assert_array_equal(both[1][name], both[0][name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["jax", "torch"])
def test_an_interrupted_command_says_how_to_go_on(side, tmp_path):
    """Ctrl-C is one sentence, and the next call says where it begins."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else inherited: ignored
    given = commands(side, "reverse", tmp_path)
    given[given.index("--epochs") + 1] = "40"
    process = start(command := [sys.executable, SCRIPT, *given])
    checkpoint_of(tmp_path, process)
    process.send_signal(signal.SIGINT)
    (error,) = finish(process)
    assert process.returncode == 130
    assert error.startswith(f"{SENTENCE}interrupted; the same command goes on"), error
    assert "Traceback" not in error
    done = len(history(tmp_path)["history/seconds"])
    again = subprocess.run(command, env=QUIET, text=True, capture_output=True)
    assert again.returncode == 0, again.stderr
    assert f"goes on after epoch {done} of 40\n" in again.stdout
    assert "test loss" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "told"),
    [
        (["--seed", "3"], "expected the same training in all processes, got"),
        (["--data", "/no/such/text"], "cannot read the text /no/such/text"),
    ],
    ids=["another seed", "no data on one host"],
)
def test_unequal_processes_of_jax_stop_with_one_sentence_each(second, told, tmp_path):
    running = jax_processes(commands("jax", "language", tmp_path), second)
    errors = finish(*running)
    assert [process.returncode for process in running] == [1, 1], errors
    for error in errors:
        (line,) = (line for line in error.splitlines() if line.startswith(SENTENCE))
        assert told in line
        assert "Traceback" not in error
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_of_jax_does_not_wait_for_ever(rank, tmp_path):
    given = commands("jax", "reverse", tmp_path)
    given[given.index("--limit") + 1] = "3"
    meeting = {"coordinator": f"localhost:{free_port()}", "processes": 2}
    command = [sys.executable, SCRIPT, *given, *flags(**meeting, process=rank)]
    (error,) = finish(process := start(command), limit=60)
    assert process.returncode == 1
    assert "expected 2 processes to meet" in error
    assert "within 3 seconds" in error


@pytest.mark.slow
def test_unequal_data_stop_all_processes_of_torch(tmp_path):
    """A worker with another text than the others: each one says so."""
    text = "to be, or not to be, that is the question\n" * 1000
    for rank in range(2):
        (tmp_path / f"{rank}.txt").write_text(text + "x" * rank * 100)
    given = [*commands("torch", "language", tmp_path / "runs"), *flags(n_tokens=110)]
    shell = f'exec "$0" "$@" --data {tmp_path}/$LOCAL_RANK.txt'
    command = [*torchrun(2, "--no-python")[:-1], "bash", "-c", shell, sys.executable]
    process = start([*command, str(SCRIPT), *given])
    (error,) = finish(process)
    assert process.returncode == 1
    lines = [line for line in error.splitlines() if line.startswith(SENTENCE)]
    assert len(lines) == 2
    assert all("got another test data and another train data" in x for x in lines)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch": 3}, "unrecognized arguments: --batch"),
        ({"epochs": "many"}, "invalid int value: 'many'"),
        ({"m": 15}, "m = 15 does not split into 2 heads"),
        ({"data": "x"}, "the task reverse makes its own data, got 'x'"),
        ({"processes": 0}, "expected a whole number above 0, got '0'"),
        ({"norm_first": "perhaps"}, "expected true or false, got 'perhaps'"),
        ({"cpu_devices": 3}, "expected batch_size to be a multiple of 3"),
        ({"coordinator": "localhost:1"}, "expected --processes and --process, too"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_bad_flags_are_one_sentence(changes, told, tmp_path):
    command = [sys.executable, SCRIPT, *commands("jax", "reverse", tmp_path)]
    (error,) = finish(process := start([*command, *flags(**changes)]))
    assert process.returncode in (1, 2)
    assert told in error.splitlines()[-1]
    assert "Traceback" not in error
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["jax", "torch"])
@pytest.mark.parametrize("name", [*tasks.TASKS])
def test_every_task_trains_and_its_weights_load(side, name, tmp_path):
    """With the default data, and on one device."""
    few = {"epochs": 1, "n_train": 200, "batch_size": 20, "warmup": 5}
    given = flags(framework=side, task=name, runs=tmp_path, **few)
    process = start([sys.executable, SCRIPT, *given])
    (error,) = finish(process)
    assert process.returncode == 0, error[:3000]
    model = tasks.load(name, **few).build(side)
    before = to_arrays(model)
    load_weights(model, tmp_path / "weights.safetensors")
    assert any(np.any(before[k] != x) for k, x in to_arrays(model).items())


@pytest.fixture
def call(monkeypatch, capsys):
    """Calls the script in this process, and returns what it prints."""
    main = runpy.run_path(str(SCRIPT))["main"]

    def run(*options):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, options)])
        main()
        return capsys.readouterr().out

    return run


def test_only_retrain_trains_a_finished_run_again(tmp_path, call):
    """Trained, then reloaded, then trained from the start."""
    reloaded, seconds = [], []
    for more in ([], [], ["--retrain"]):
        said = call(*commands("torch", "reverse", tmp_path), *more)
        reloaded.append("is finished and reloaded" in said)
        seconds.append(history(tmp_path)["history/seconds"])
    assert reloaded == [False, True, False]
    assert (seconds[0] == seconds[1]).all()
    assert (seconds[1] != seconds[2]).any(), "--retrain has left the old checkpoint"


def test_the_test_data_are_measured_with_the_weights_that_are_kept(tmp_path, call):
    """In the file that was asked for."""
    options = commands("torch", "reverse", tmp_path / "runs")
    path = tmp_path / "mine.safetensors"
    said = call(*options, *flags(weights=path))
    task = tasks.load("reverse", **SIZES)
    load_weights(model := task.build("torch"), path)
    found = {
        name: train_torch.evaluate(model, train_torch.cross_entropy, data)
        for name, data in task.data.items()
    }
    assert f"test loss {found['test']['loss']:.4f}, " in said
    assert found["test"]["loss"] != pytest.approx(found["train"]["loss"], abs=1e-4)
    assert found["test"]["loss"] != pytest.approx(found["validation"]["loss"], abs=1e-4)
    assert said.splitlines()[-1] == str(path)
