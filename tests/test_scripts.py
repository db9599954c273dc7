"""The files to take along train, resume, write and predict, alone."""

import ast
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

import pages
from helpers.weights import as_numpy, from_arrays, to_arrays

NEEDED = {"cloudpickle", "flax", "jax", "numpy", "optax", "orbax"}
FRAMEWORK = {"jax": NEEDED, "torch": {"torch"}}
ENV = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
by_side = pytest.mark.parametrize("side", pages.SIDES)


def copied(side, folder, name="model"):
    """The file of a framework, in a folder where nothing else is."""
    return shutil.copy(pages.ROOT / f"scripts/{name}_{side}.py", folder)


def loaded(path):
    """The file as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def started(command, folder):
    """A process of Python in a folder, for which a warning is an error."""
    command = [sys.executable, "-W", "error", *map(str, command)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=ENV, **pipes)


def losses(process):
    """Losses by update that a process prints, once it has ended well."""
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    return dict(re.findall(r"^update +(\d+): loss ([\d.]+)$", out, re.MULTILINE)), out


@pytest.fixture(scope="module", params=pages.SIDES)
def whole(request, tmp_path_factory):
    """Side, folder, and what an uninterrupted training of 20 updates prints."""
    folder = tmp_path_factory.mktemp(request.param)
    file = copied(request.param, folder)
    command = ["-I", file, "--updates", 20, "--folder", "whole"]
    return request.param, folder, *losses(started(command, folder))


def untrained_loss(side, folder, text):
    """In float64, of the first batch, from the logits of the model as it is made."""
    module, letters = loaded(folder / f"model_{side}.py"), sorted(set(text))
    tokens = np.array([letters.index(letter) for letter in text], np.int32)
    sizes, given = {**module.SIZES}, (module.SIZES["max_length"], 8, 1)
    if side == "jax":
        model = module.LanguageModel(len(letters), 64, **sizes, rngs=module.nnx.Rngs(0))
        batch = module.batch_of(tokens, *given, module.jax.devices()[0])
    else:
        module.torch.manual_seed(0)
        model = module.LanguageModel(len(letters), 64, **sizes)
        batch = module.batch_of(module.torch.tensor(tokens).long(), *given, 0, 1)
    logits, labels = as_numpy(model(batch[:, :-1])), as_numpy(batch[:, 1:])
    right = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return (logsumexp(np.float64(logits), axis=-1) - right).mean()


def test_it_learns_and_writes_without_the_helpers(whole):
    side, folder, found, out = whole
    text = (folder / f"model_{side}.py").read_text("utf-8")
    assert abs(float(found["1"]) - untrained_loss(side, folder, text)) < 2e-3
    assert float(found["20"]) < np.log(len(set(text))) - 1
    written = out.partition(f"loss {found['20']}\n")[2].removesuffix("\n")
    assert len(written) == 116 and written.startswith(text[:16])


def test_an_interrupted_training_goes_on_as_if_it_were_not(whole):
    side, folder, found, _ = whole
    file = folder / f"model_{side}.py"
    for updates in (10, 20):
        command = ["-I", file, "--updates", updates, "--folder", "parts"]
        parts, out = losses(started(command, folder))
    assert "goes on after update 10" in out
    assert parts == {"20": found["20"]}


def test_a_folder_of_another_text_is_refused(whole):
    side, folder, *_ = whole
    (folder / "other.txt").write_text("to be or not to be " * 20)
    (folder / "latin.txt").write_bytes("café ".encode("latin-1") * 99)
    (folder / "short.txt").write_text("to be")
    found = {"other": "is of another text", "latin": "text in UTF-8"}
    for name, said in {**found, "short": "more than 128 characters"}.items():
        command = [f"model_{side}.py", f"{name}.txt", "--folder", "whole"]
        process = started(["-I", *command], folder)
        assert said in process.communicate()[1].splitlines()[-1] and process.returncode


def test_two_trainings_in_one_folder_both_end(whole):
    side, folder, found, _ = whole
    if side == "torch":
        command = ["-I", f"model_{side}.py", "--updates", 20, "--folder", "both"]
        both = [started(command, folder) for _ in range(2)]
        assert all(losses(process)[0] == found for process in both)


def test_two_processes_have_the_losses_of_one(whole):
    side, folder, found, _ = whole
    file, options = folder / f"model_{side}.py", ["--updates", 20, "--folder", "two"]
    if side == "torch":
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
        processes = [started([*run, file, *options], folder)]
    else:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        where = ["--coordinator", address, "--processes", 2, "--process"]
        commands = [[file, *options, *where, rank] for rank in range(2)]
        processes = [started(command, folder) for command in commands]
    two, *_ = (losses(process)[0] for process in processes)
    for update, loss in found.items():
        np.testing.assert_allclose(float(two[update]), float(loss), atol=2e-3)


@pytest.mark.slow
@by_side
@pytest.mark.parametrize("kind", ["labels", "label", "number"])
def test_the_predictor_learns_each_kind_of_target(side, kind, tmp_path):
    """Sequences of several lengths: which letters are A, is there one, how many?"""
    rng, lines = np.random.default_rng(0), []
    for n in rng.integers(2, 8, size=700):
        x = rng.choice([*"ABCDE"], n)
        y = {"label": "yn"[all(x != "A")], "number": f"{100 + sum(x == 'A')}"}
        y["labels"] = " ".join("yn"[letter != "A"] for letter in x)
        lines.append(f"{y[kind]}\t{' '.join(x)}\n")
    (tmp_path / "my.txt").write_text("".join(lines))
    (tmp_path / "new.txt").write_text("A B A\nE D C B\n")
    file = copied(side, tmp_path, "predictor")
    learning = ["my.txt", "--target", kind, "--epochs", 12, "--learning-rate", 3e-3]
    for given in (learning, ["new.txt", "--predict"]):
        out = losses(started(["-I", file, *given], tmp_path))[1].splitlines()
    out = [round(float(x)) for x in out] if kind == "number" else out
    expected = {"labels": ["y n y", "n n n n"], "label": ["y", "n"]}
    assert out == expected.get(kind, [102, 100])


@by_side
def test_it_imports_its_framework_and_the_standard_library(side):
    text = (pages.ROOT / f"scripts/model_{side}.py").read_text("utf-8")
    nodes = [*ast.walk(ast.parse(text))]
    found = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    found |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
    assert packages == FRAMEWORK[side]
    assert "helpers" not in text and pages.repository() in text


def test_both_have_the_same_logits_and_write_the_same(tmp_path):
    """From the same weights, with a cache and greedy."""
    sizes = {"n_blocks": 1, "n_heads": 3, "f": 7, "max_length": 5, "norm_first": True}
    tokens, found, arrays = np.arange(10).reshape(2, 5) % 7, [], None
    for side in pages.SIDES:
        module = loaded(copied(side, tmp_path))
        keys = {"rngs": module.nnx.Rngs(0)} if side == "jax" else {}
        model = module.LanguageModel(7, 12, positions="rotary", **sizes, **keys)
        arrays = arrays or to_arrays(model)
        from_arrays(model, arrays)
        array = module.np.asarray if side == "jax" else module.torch.as_tensor
        logits = as_numpy(model(array(tokens)))
        written = as_numpy(module.generate(model, [[1], [2, 3]], 3, top_k=1))
        found.append((logits, written))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-5)
    np.testing.assert_array_equal(found[0][1], found[1][1])
