"""While pytest runs, pages and tests print no bars; each worker has its own cores.

With ``-n 2`` each would else compute with a thread for every core, and they wait for
each other (XLA does not know ``OMP_NUM_THREADS``). Of a GPU each takes what it needs.
What JAX compiles is kept, in a folder of each worker: nobody else writes there.
"""

import os
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # gw0, gw1, …
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    compiled = str(Path(__file__).parent / "_build/jax" / worker)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else XLA complains
    if hasattr(os, "sched_setaffinity"):
        cores, number = sorted(os.sched_getaffinity(0)), int(worker.removeprefix("gw"))
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, cores[number % len(cores) :: workers])
