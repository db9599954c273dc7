"""``helpers.engine.jobs``: functions in processes, which never outlive a cell."""

import os
import signal
import time

import psutil
import pytest

from helpers.engine import jobs


def test_processes_know_their_rank():
    assert jobs.together(lambda rank, x: (rank, x), 2, "a") == [(0, "a"), (1, "a")]


def test_an_error_is_told_and_ends_the_others():
    def fails(rank):
        if rank == 1:
            raise ValueError("expected 3, got 4")
        time.sleep(600)

    with pytest.raises(RuntimeError, match=r"process 1 .*\n(.*\n)*.*expected 3, got 4"):
        jobs.together(fails, 2)
    assert children() == []


def test_torchrun_tells_an_error_too():
    def fails():
        raise ValueError("expected 3, got 4")

    with pytest.raises(RuntimeError, match="expected 3, got 4"):
        jobs.torchrun(fails, 2)


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


@pytest.mark.parametrize(("start", "limit"), [(jobs.torchrun, 8), (jobs.together, 3)])
def test_after_the_limit_nothing_is_left(start, limit):
    expected = f"expected the processes to end within {limit} s"
    with pytest.raises(RuntimeError, match=expected):
        start(lambda *_: time.sleep(600), 2, limit=limit)
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


def children():
    """Descendants of this process that call functions."""
    found = psutil.Process().children(recursive=True)
    return [
        p for p in found if any("helpers.engine.jobs" in word for word in p.cmdline())
    ]
