"""A page's functions in processes of their own, which end with the cell that began them.

A function goes to the processes by value (cloudpickle), with all that it uses of the
page; what it returns comes back the same way.
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

LAST_LINES = 12
PRELOADED = ["helpers.torch", "torch._dynamo", "torch.distributed.fsdp"]


def torchrun(function, n, *args, restarts=0, limit=300):
    """Call ``function(*args)`` in ``n`` processes, as ``torchrun`` does.

    Parameters
    ----------
    function : callable
        It may call ``torch.distributed.init_process_group()`` without arguments.
    n : int
        Processes.
    *args
        Of the function, the same for all.
    restarts : int
        How often all processes may be started again after one has failed.
    limit : float
        Seconds, after which all are killed.

    Returns
    -------
    list
        What the function returned in each process.

    Raises
    ------
    RuntimeError
        If the processes fail, with what they said last, or after the limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(folder, function, args)
        launcher = ["-m", "helpers.engine.jobs", folder, f"{n}", f"{restarts}"]
        finish_all([launcher], folder, limit)
        return [read(folder, rank) for rank in range(n)]


def together(function, n, *args, limit=300):
    """Call ``function(rank, *args)`` in ``n`` processes, which find each other.

    Returns
    -------
    list
        What the function returned in each process.

    Raises
    ------
    RuntimeError
        If a process fails or is killed, with what it said last, or after the limit. The
        other processes are killed then.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(folder, function, args)
        commands = [
            ["-m", "helpers.engine.jobs", folder, str(rank)] for rank in range(n)
        ]
        finish_all(commands, folder, limit)
        return [read(folder, rank) for rank in range(n)]


def free_port():
    """A port of this machine that nobody uses."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def write(folder, function, args):
    """What is to be called."""
    Path(folder, "job").write_bytes(cloudpickle.dumps((function, args)))


def read(folder, rank):
    """What a process has returned."""
    return cloudpickle.loads(Path(folder, f"result-{rank}").read_bytes())


def finish(commands, folder, limit):
    """Exit status and stderr of Python processes: all end soon after one has failed.

    None is left, whatever happens.
    """
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    changes = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    changes |= {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    said = [Path(folder, f"said-{i}") for i in range(len(commands))]
    running, late = [], time.monotonic() + limit
    try:
        for command, file in zip(commands, said, strict=True):
            with file.open("w") as stderr:
                running.append(
                    subprocess.Popen(
                        [sys.executable, *command], env=os.environ | changes,
                        stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
                    )
                )  # fmt: skip
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
    return [
        (status, file.read_text()) for status, file in zip(found, said, strict=True)
    ]


def finish_all(commands, folder, limit):
    """Run Python processes to their end; stop if one fails."""
    for rank, (status, said) in enumerate(finish(commands, folder, limit)):
        if status:
            errors = [file.read_text() for file in sorted(Path(folder).glob("error-*"))]
            last = "\n".join((errors or [said])[0].splitlines()[-LAST_LINES:])
            raise RuntimeError(f"process {rank} ended with status {status}\n{last}")


def main(folder, rank=None):
    """Call the function of a folder, and keep what it returns or what it raises."""
    function, args = cloudpickle.loads(Path(folder, "job").read_bytes())
    place = os.environ["RANK"] if rank is None else rank
    try:
        result = function(*args) if rank is None else function(rank, *args)
    except Exception:
        Path(folder, f"error-{place}").write_text(traceback.format_exc())
        raise
    draft = Path(folder, f"draft-{place}")
    draft.write_bytes(cloudpickle.dumps(result))
    draft.replace(Path(folder, f"result-{place}"))


def launch(folder, n, restarts):
    """Call the function as ``torchrun --standalone`` does, in forks of one process.

    That process imports torch once for all of them, and has a single thread.
    """
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    multiprocessing.set_forkserver_preload(PRELOADED)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=n, run_id=uuid.uuid4().hex,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=restarts, start_method="forkserver",
    )  # fmt: skip
    elastic_launch(config, main)(folder)


if __name__ == "__main__":
    folder, *numbers = sys.argv[1:]
    start = main if len(numbers) == 1 else launch
    start(folder, *map(int, numbers))
