"""A page's functions in processes of their own, which end with the cell that began them.

A function goes to the processes by value (cloudpickle), with all that it uses of the
page; what it returns comes back the same way.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import cloudpickle

LAST_LINES = 12


def torchrun(function, n, *args, restarts=0, limit=300):
    """Call ``function(*args)`` in ``n`` processes that ``torchrun`` starts.

    Parameters
    ----------
    function : callable
        It may call ``torch.distributed.init_process_group()`` without arguments.
    n : int
        Processes.
    *args
        Of the function, the same for all.
    restarts : int
        How often ``torchrun`` may start all processes again after one has failed.
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
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
    launcher += [f"--max-restarts={restarts}", "-m", "helpers.jobs"]
    with tempfile.TemporaryDirectory() as folder:
        write(folder, function, args)
        (ended,) = finish([[*launcher, folder]], limit)
        check(*ended)
        return [read(folder, rank) for rank in range(n)]


def together(function, n, *args, limit=300):
    """Call ``function(rank, *args)`` in ``n`` processes, which find each other.

    Returns
    -------
    list
        For each process what the function returned, or None if the process was killed.

    Raises
    ------
    RuntimeError
        If a process fails by itself, with what it said last, or after the limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        write(folder, function, args)
        commands = [["-m", "helpers.jobs", folder, str(rank)] for rank in range(n)]
        ended = finish(commands, limit)
        killed = any(status < 0 for status, _ in ended)
        for status, said in ended:
            if not killed:
                check(status, said)
        return [read(folder, rank) for rank in range(n)]


def write(folder, function, args):
    """What is to be called."""
    Path(folder, "job").write_bytes(cloudpickle.dumps((function, args)))


def read(folder, rank):
    """What a process has returned, or None."""
    file = Path(folder, f"result-{rank}")
    return cloudpickle.loads(file.read_bytes()) if file.exists() else None


def finish(commands, limit):
    """Exit status and stderr of Python processes; none is left, whatever happens."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    changes = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    changes |= {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    running, ended = [], []
    try:
        for command in commands:
            running.append(
                subprocess.Popen(
                    [sys.executable, *command], env=os.environ | changes, text=True,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            )  # fmt: skip
        for process in running:
            _, said = process.communicate(timeout=limit)
            ended.append((process.returncode, said))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"expected the processes to end in {limit} s") from None
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return ended


def check(status, said):
    """Stop if a process has failed."""
    if status:
        last = "\n".join(said.splitlines()[-LAST_LINES:])
        raise RuntimeError(f"a process ended with status {status}:\n{last}")


def main(folder, rank=None):
    """Call the function of a folder, and keep what it returns."""
    function, args = cloudpickle.loads(Path(folder, "job").read_bytes())
    result = function(*args) if rank is None else function(int(rank), *args)
    place = rank or os.environ["RANK"]
    draft = Path(folder, f"draft-{place}")
    draft.write_bytes(cloudpickle.dumps(result))
    draft.replace(Path(folder, f"result-{place}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
