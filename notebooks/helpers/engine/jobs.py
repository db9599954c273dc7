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


def torchrun(function, n, *args, restarts=0, limit=300):
    """What ``function(*args)`` returns in each of ``n`` processes, as with ``torchrun``.

    It may call ``torch.distributed.init_process_group()``, and need not destroy it. All
    are started again, at most ``restarts`` times, if one fails or is killed; after that,
    or after ``limit`` seconds, all are killed: RuntimeError, with what it said last.
    """
    return results([[n, restarts]], function, n, args, limit)


def together(function, n, *args, limit=300):
    """What ``function(rank, *args)`` returns in each of ``n``; errors as ``torchrun``."""
    return results([[rank] for rank in range(n)], function, n, args, limit)


def results(starts, function, n, args, limit):
    """What it returned in each process; ``starts``: numbers to call this file with."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job").write_bytes(cloudpickle.dumps((function, args)))
        commands = [["-m", __name__, folder, *map(str, start)] for start in starts]
        found = finish(commands, n, folder, limit)
        for rank, (status, said) in enumerate(found):
            if status:
                errors = map(Path.read_text, sorted(Path(folder).glob("error-*")))
                last = "\n".join(next(errors, said).splitlines()[-12:])
                raise RuntimeError(f"process {rank} ended with status {status}\n{last}")
        files = [Path(folder, f"result-{rank}") for rank in range(n)]
        return [cloudpickle.loads(file.read_bytes()) for file in files]


def free_port():
    """A port of this machine that nobody uses."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def finish(commands, n, folder, limit):
    """Exit status and stderr of Python processes; none is left, whatever happens."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    changes = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    changes |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    changes |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # of a GPU that many share
    changes |= {"OMP_NUM_THREADS": "1"} if n > 1 else {}
    said = [Path(folder, f"said-{i}") for i in range(len(commands))]
    options = {"env": os.environ | changes, "stdout": subprocess.DEVNULL}
    running, late = [], time.monotonic() + limit
    try:
        for command, file in zip(commands, said, strict=True):
            with file.open("w") as stderr:
                options |= {"stderr": stderr, "start_new_session": True}
                running.append(subprocess.Popen([sys.executable, *command], **options))
        while None in (found := [process.poll() for process in running]):
            if any(found):  # the others would wait for it
                break
            if time.monotonic() > late:
                raise RuntimeError(f"expected the processes to end within {limit} s")
            time.sleep(0.05)
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return [*zip(found, map(Path.read_text, said), strict=True)]


def main(folder, rank=None):
    """Call the function of a folder, and keep what it returns or what it raises."""
    function, args = cloudpickle.loads(Path(folder, "job").read_bytes())
    place = os.environ["RANK"] if rank is None else rank
    try:
        result = function(*args) if rank is None else function(rank, *args)
    except Exception:
        Path(folder, f"error-{place}").write_text(traceback.format_exc())
        raise
    finally:
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_initialized():
            distributed.destroy_process_group()
    draft = Path(folder, f"draft-{place}")
    draft.write_bytes(cloudpickle.dumps(result))
    draft.replace(Path(folder, f"result-{place}"))


def launch(folder, n, restarts):
    """As ``torchrun --standalone``: forks of a process that imports torch once for all."""
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    forks = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
    multiprocessing.set_forkserver_preload(PRELOADED)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=n, run_id=uuid.uuid4().hex,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=restarts, start_method="forkserver" if forks else "spawn",
    )  # fmt: skip
    elastic_launch(config, main)(folder)


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    start = main if len(numbers) == 1 else launch
    start(folder, *map(int, numbers))
