"""Two workers of pytest do not compete for the cores."""

import math
import os
import subprocess
import sys

import pytest

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
COUNT = "import os; print(len(os.sched_getaffinity(0)))"


@pytest.mark.skipif(WORKERS == 1, reason="shows with `-n 2`")
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux only")
def test_a_worker_and_what_it_starts_keep_to_their_share_of_the_cores():
    share = math.ceil(os.cpu_count() / WORKERS)
    assert len(os.sched_getaffinity(0)) <= share
    assert int(subprocess.check_output([sys.executable, "-c", COUNT])) <= share
