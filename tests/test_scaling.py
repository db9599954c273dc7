"""Processes that end with their cell; no tensor on another device than the model."""

import os
import signal
import time

import psutil
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import jobs
from helpers import torch as models
from sides import definitions

B, S, M, C = 3, 7, 12, 5
SIZES = {"n_blocks": 2, "n_heads": 2, "f": 13}


def children():
    """Descendants of this process that call functions."""
    found = psutil.Process().children(recursive=True)
    return [p for p in found if any("helpers.jobs" in word for word in p.cmdline())]


@pytest.mark.parametrize("start", [jobs.together, jobs.torchrun])
def test_an_error_is_told_and_ends_the_others(start, monkeypatch):
    """In any locale, and on Windows, which has no ``killpg``."""
    for name, value in {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONUTF8", "0")
    if start is jobs.together:
        monkeypatch.delattr(os, "killpg")

    def fails(rank=0):
        if rank == 1:
            time.sleep(600)
        raise ValueError("expected 3 – got 4")

    with pytest.raises(
        RuntimeError, match=r"process \d .*\n(.*\n)*.*expected 3 – got 4"
    ):
        start(fails, 2)
    assert children() == []


def test_a_killed_process_ends_the_others():
    def killed(rank):
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    with pytest.raises(RuntimeError, match="process 0 ended with status -9"):
        jobs.together(killed, 2)
    assert children() == []


def test_torchrun_starts_again_and_brings_each_result_back(tmp_path):
    """Each process knows its rank, and the function has what it uses."""
    factor = 7  # goes with the function

    def once(folder, x):
        rank, size = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
        mark = folder / "tried"
        if rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rank, size, factor * x, os.environ["TORCHELASTIC_RESTART_COUNT"]

    found = jobs.torchrun(once, 2, tmp_path, 3, restarts=1)
    assert found == [(0, "2", 21, "1"), (1, "2", 21, "1")]


@pytest.mark.parametrize("start", [jobs.together, jobs.torchrun])
def test_after_the_limit_nothing_is_left(start):
    with pytest.raises(RuntimeError, match="expected the processes to end in 3 s"):
        start(lambda *_: time.sleep(600), 2, limit=3)
    assert children() == []


def test_an_interrupted_cell_leaves_nothing(monkeypatch):
    """A reader stops the cell while it waits."""

    def stop(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs.time, "sleep", stop)
    with pytest.raises(KeyboardInterrupt):
        jobs.together(lambda rank: __import__("time").sleep(600), 2)
    assert children() == []


# No tensor is made on the CPU where the model is on a GPU. Fake tensors have a device,
# but no numbers: an operation on tensors of two devices raises a GPU's error.


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device="cuda")


def on_gpu(model):
    """A model with its parameters and buffers on a GPU, and nothing else of it."""
    for part in model.modules():
        for name, x in part.named_parameters(recurse=False):
            part.register_parameter(name, nn.Parameter(ones(*x.shape)))
        for name, x in part.named_buffers(recurse=False):
            part.register_buffer(name, ones(*x.shape, dtype=x.dtype))
    return model


def test_two_devices_raise_an_error():
    """What the next test relies on."""
    with FakeTensorMode(), pytest.raises(RuntimeError, match="device"):
        ones(B, S) + torch.ones(B, S)


def draw_model(name):
    """A model, and what it is called with."""
    tokens, mask = ones(B, S, dtype=torch.int64), ones(B, 1, S, S, dtype=torch.bool)
    longer = {**SIZES, "max_length": 9}
    if name == "LanguageModel":
        return models.LanguageModel(C, M, **longer), tokens, mask
    if name == "SequenceClassifier":
        real = ones(B, S, dtype=torch.bool)
        return models.SequenceClassifier(M, M, C, **longer), ones(B, S, M), real
    if name == "VisionTransformer":
        kind = definitions("vision_torch").VisionTransformer
        return kind(8, 3, M, C, patch=2, **SIZES), ones(B, 8, 8, 3)
    return models.Predictor(M, M, C, positions=name, **SIZES), ones(B, S, M), mask


NAMES = ["LanguageModel", "SequenceClassifier", "VisionTransformer", "rotary"]


@pytest.mark.parametrize("name", [*NAMES, "sinusoidal"])
def test_a_model_on_a_gpu_computes_there(name):
    with FakeTensorMode(), torch.no_grad():
        model, *given = draw_model(name)
        assert on_gpu(model)(*given).device.type == "cuda"


def test_a_cache_on_a_gpu_stays_there():
    with FakeTensorMode(), torch.no_grad():
        model, tokens = draw_model("LanguageModel")[:2]
        first = ones(B, dtype=torch.int64)
        cache = models.new_cache(on_gpu(model), first, 9)
        assert models.advance(model, tokens, cache)[0].device.type == "cuda"
