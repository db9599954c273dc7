"""How pytest runs: workers keep to their cores, and no test begins after ``UNTIL``."""

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
COUNT = "import os; print(len(os.sched_getaffinity(0)))"


@pytest.mark.skipif(WORKERS == 1, reason="shows with `-n 2`")
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_a_worker_and_what_it_starts_keep_to_their_share_of_the_cores():
    share = math.ceil(os.cpu_count() / WORKERS)
    assert len(os.sched_getaffinity(0)) <= share
    assert int(subprocess.check_output([sys.executable, "-c", COUNT])) <= share


@pytest.mark.parametrize(
    ("offset", "said"), [(-1, "3 skipped"), (3600, "2 failed, 1 passed")]
)
def test_after_the_given_time_no_test_and_no_page_begins(offset, said, tmp_path):
    """What is left is reported as skipped, with the reason."""
    shutil.copy(Path(__file__).parents[2] / "conftest.py", tmp_path)
    (tmp_path / "test_two.py").write_text("def test_a(): 1 / 0\ndef test_b(): pass\n")
    page = new_notebook(cells=[new_code_cell("1 / 0")])
    nbformat.write(page, tmp_path / "page.ipynb")
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider"]
    command += ["--nbmake", "test_two.py", "page.ipynb"]
    given = {**os.environ, "UNTIL": str(time.time() + offset)}
    options = {"cwd": tmp_path, "env": given, "stdout": subprocess.PIPE, "text": True}
    told = subprocess.run(command, **options).stdout
    assert said in told
    assert ("its time is up (UNTIL)" in told) == (offset < 0)
