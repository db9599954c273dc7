"""While pytest runs, pages train for real: in an empty folder, and without a bar.

Where two processes share the machine (``-n 2``), each keeps to its own cores, with the
kernels and the processes that it starts: else each would compute with a thread for
every core, and they wait for each other (XLA does not know ``OMP_NUM_THREADS``). Of a
GPU each takes what it needs.

After ``UNTIL`` (seconds, as ``date +%s`` counts them) no test begins: what is left is
reported as skipped.
"""

import os
import tempfile
import time

import pytest

if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # gw0, gw1, …
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if hasattr(os, "sched_setaffinity"):
        cores, number = sorted(os.sched_getaffinity(0)), int(worker.removeprefix("gw"))
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, cores[number % len(cores) :: workers])


def pytest_runtest_setup():
    if time.time() > float(os.environ.get("UNTIL", "inf")):
        pytest.skip("its time is up (UNTIL)")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    with (
        tempfile.TemporaryDirectory(prefix="runs-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RUNS_FOLDER", folder)
        patch.setenv("TQDM_DISABLE", "1")
        return (yield)
