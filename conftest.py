"""While pytest runs, pages train for real: in an empty folder, and without a bar."""

import tempfile

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    with (
        tempfile.TemporaryDirectory(prefix="runs-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RUNS_FOLDER", folder)
        patch.setenv("TQDM_DISABLE", "1")
        return (yield)
