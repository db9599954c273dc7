"""While pytest runs, pages train for real: in an empty folder, and without a bar.

Where two processes share the machine (``-n 2``), each computes with one thread, which
is faster than two that wait for each other, and takes of a GPU what it needs.
"""

import os
import tempfile

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    with (
        tempfile.TemporaryDirectory(prefix="runs-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RUNS_FOLDER", folder)
        patch.setenv("TQDM_DISABLE", "1")
        return (yield)
