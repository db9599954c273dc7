"""Programs that start as a copy of a process which has imported what they need.

Importing a framework takes seconds, and some tests start a dozen programs that import
the same one. So one process imports it, and forks for each program: it has computed
nothing by then, and has a single thread. What comes out is a process like any other,
with its own number, environment, output and memory, and can be killed like one.

    python tests/unit/warm.py MODULE...

imports the modules and waits for programs on a socket, which is its standard input.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path

CAN_FORK = sys.platform.startswith("linux")  # elsewhere frameworks may not bear it
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Warm:
    """A Python with modules in it, ready to become a program.

    Parameters
    ----------
    modules : str
        What to import.
    environment : str
        Variables that differ from here; some are read only when a module is imported.
    """

    def __init__(self, *modules, **environment):
        self.environment = ONE_THREAD | environment
        if CAN_FORK:
            self.socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, __file__, *modules],
                    env=os.environ | self.environment,
                    stdin=theirs,
                )

    def start(self, script, *arguments):
        """A program, as ``subprocess.Popen`` would give it, with both its outputs."""
        words = [str(word) for word in (script, *arguments)]
        environment = os.environ | self.environment
        if not CAN_FORK:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            command = [sys.executable, *words]
            return subprocess.Popen(command, env=environment, encoding="utf-8", **pipes)
        reading, writing = zip(*(os.pipe() for _ in range(3)), strict=True)
        request = json.dumps([words, environment]).encode()
        socket.send_fds(self.socket, [request], writing)
        for end in writing:
            os.close(end)
        return Program(*(os.fdopen(end, encoding="utf-8") for end in reading))

    def run(self, script, *arguments):
        """The same, waited for: ``subprocess.CompletedProcess``."""
        program = self.start(script, *arguments)
        outputs = program.communicate()
        return subprocess.CompletedProcess([script], program.returncode, *outputs)

    def close(self):
        """End the process; programs that run go on."""
        if CAN_FORK:
            self.socket.close()
            self.process.wait()


class Program:
    """A program that runs: of ``subprocess.Popen`` what the tests use."""

    def __init__(self, stdout, stderr, report):
        self.stdout, self.stderr, self.report = stdout, stderr, report
        self.pid = int(report.readline())
        self.returncode = None

    def kill(self):
        """End it by the signal that cannot be caught, if it has not ended already."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self):
        """Wait for its end; the rest of what it said on both outputs."""
        files = self.stdout, self.stderr
        with ThreadPoolExecutor(2) as pool:
            said = tuple(pool.map(lambda file: file.read(), files))
        self.returncode = int(self.report.readline())
        for file in (*files, self.report):
            file.close()
        return said


# In the process that forks


def next_program():
    """Wait for programs; come back in a fork for each, with its name, or at the end."""
    n = len([*Path("/proc/self/task").iterdir()])
    assert n == 1, f"a fork copies one thread, but there are {n}"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the attendants
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            request, files, *_ = socket.recv_fds(requests, 1 << 20, 3)
            if not request:
                return None
            if os.fork() == 0:
                break
            for file in files:
                os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    attend(*files)
    words, environment = json.loads(request)
    sys.argv[:] = words
    os.environ.clear()
    os.environ.update(environment)
    return words[0]


def attend(stdout, stderr, report):
    """Fork a program, and tell its number and how it ended; come back only in it."""
    number = os.fork()
    if number:
        os.close(stdout)
        os.close(stderr)
        os.write(report, b"%d\n" % number)
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        os.write(report, b"%d\n" % status)
        os._exit(0)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for file, place in ((stdout, 1), (stderr, 2)):
        os.dup2(file, place)
        os.close(file)
    os.close(report)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        import_module(name)
    if (program := next_program()) is not None:
        runpy.run_path(program, run_name="__main__")
