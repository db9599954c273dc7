"""A page's functions in processes of their own, which end with the cell that began them.

Functions, with all that they use of the page, and results go by value (cloudpickle).
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from pathlib import Path

import cloudpickle

PRELOADED = ["helpers.torch", "torch._dynamo", "torch.distributed.fsdp"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
ENVIRONMENT |= {"USE_LIBUV": "0"} if os.name == "nt" else {}  # none in torch there
ENVIRONMENT["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # of a GPU that many share


def torchrun(function, n, *args, restarts=0, limit=300):
    """What ``function(*args)`` returns in each of ``n`` processes, as with ``torchrun``.

    It may call ``torch.distributed.init_process_group()``, and need not destroy it. All
    are started again, at most ``restarts`` times, if one fails or is killed; after that,
    or after ``limit`` seconds, all are killed: RuntimeError, with what it said last.
    """
    return results([["launch", n, restarts]], function, n, args, limit)


def together(function, n, *args, limit=300):
    """What ``function(rank, *args)`` returns in each of ``n``; errors as ``torchrun``."""
    return results([["call", rank] for rank in range(n)], function, n, args, limit)


def free_port():
    """A port of this machine that nobody uses."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def results(starts, function, n, args, limit):
    """What it returned in each process; none of them is left, whatever happens."""
    running, late = [], time.monotonic() + limit
    path = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ".")]
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path)}
    options = {"env": env, "stdout": subprocess.DEVNULL, "start_new_session": True}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job").write_bytes(cloudpickle.dumps((function, args)))
        try:
            for i, (what, *numbers) in enumerate(starts):
                command = [sys.executable, "-m", __name__, what, name]
                command += map(str, numbers)
                with (folder / f"said-{i}").open("w", encoding="utf-8") as stderr:
                    running.append(subprocess.Popen(command, stderr=stderr, **options))
            while None in (found := [process.poll() for process in running]):
                if any(found):  # the others would wait for it
                    break
                if time.monotonic() > late:
                    raise RuntimeError(f"expected the processes to end in {limit} s")
                time.sleep(0.05)
        finally:
            for process in running:
                if process.poll() is None:
                    if hasattr(os, "killpg"):  # not on Windows
                        os.killpg(process.pid, signal.SIGKILL)
                    process.kill()
                    process.wait()
        for i, status in enumerate(found):
            if status:
                said = [*sorted(folder.glob("error-*")), folder / f"said-{i}"][0]
                last = "\n".join(said.read_text("utf-8", "replace").splitlines()[-12:])
                raise RuntimeError(f"process {i} ended with status {status}\n{last}")
        files = [folder / f"result-{rank}" for rank in range(n)]
        return [cloudpickle.loads(file.read_bytes()) for file in files]


def call(folder, *rank):
    """Call the function of a folder, and keep what it returns or what it raises."""
    function, args = cloudpickle.loads(Path(folder, "job").read_bytes())
    (place,) = rank or (os.environ["RANK"],)
    try:
        result = function(*rank, *args)
    except Exception:
        Path(folder, f"error-{place}").write_text(traceback.format_exc(), "utf-8")
        raise
    finally:
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_initialized():
            distributed.destroy_process_group()
    Path(folder, f"result-{place}").write_bytes(cloudpickle.dumps(result))


def launch(folder, n, restarts):
    """As ``torchrun --standalone``: forks of a process that imports torch once for all."""
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    forks = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
    multiprocessing.set_forkserver_preload(PRELOADED)
    options = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    options |= {"start_method": "forkserver" if forks else "spawn"}
    options |= {"max_restarts": restarts, "run_id": uuid.uuid4().hex}
    elastic_launch(LaunchConfig(1, 1, n, **options), call)(folder)


if __name__ == "__main__":
    what, folder, *numbers = sys.argv[1:]
    {"call": call, "launch": launch}[what](folder, *map(int, numbers))
