"""While pytest runs, pages and tests print no bars; each worker has its own cores.

With ``-n 2`` each would else compute with a thread for every core, and they wait for
each other (XLA does not know ``OMP_NUM_THREADS``). Of a GPU each takes what it needs.
"""

import os

os.environ["TQDM_DISABLE"] = "1"
if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # gw0, gw1, …
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if hasattr(os, "sched_setaffinity"):
        cores, number = sorted(os.sched_getaffinity(0)), int(worker.removeprefix("gw"))
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, cores[number % len(cores) :: workers])
