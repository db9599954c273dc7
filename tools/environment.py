"""Make the virtual environment of the book, or say in one sentence why it cannot be.

    python tools/environment.py                                    .venv
    python tools/environment.py --folder .venv-colab --lock FILE   another one

An environment that is complete and whose lock files are unchanged is left as it is; one
that was interrupted is made anew. This file is written so that every Python since 2.7
can read it: the reader of an old one deserves a sentence, too.
"""

from __future__ import print_function

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAIN_LOCK = os.path.join("requirements", "lock.txt")
CUDA_LOCK = os.path.join("requirements", "lock-cuda.txt")
STAMP = "complete.sha256"
FULL = re.compile(
    r"no space left on device|os error 28\b|errno 28\b|os error 112\b", re.I
)
OLDEST_DRIVER = 580  # the first one for CUDA 13
GIB = 2.0**30
# Measured after an installation; Linux brings NVIDIA's libraries for PyTorch.
SPACE = 7.0 if sys.platform.startswith("linux") else 2.5
CUDA_SPACE = 1.0
NOTHING = 0.05  # a disk with less is full, whatever the program said


class Problem(Exception):
    """Something that the reader can repair, in one sentence."""


def check_python(versions, found=None):
    """Refuse a Python that the book does not run on."""
    found = found or sys.version_info
    name = "%d.%d" % tuple(found[:2])
    if name not in versions:
        wanted = (
            versions[0]
            if len(versions) == 1
            else " or ".join([", ".join(versions[:-1]), versions[-1]])
        )
        first = tuple(int(part) for part in versions[0].split("."))
        age = "old" if tuple(found[:2]) < first else "new"
        raise Problem(
            "Python %s at %s is too %s: the book needs Python %s; install one of them, "
            "or name one with `make PYTHON=/path/to/python`."
            % (name, sys.executable, age, wanted)
        )


def check_venv():
    """Debian and Ubuntu ship Python without the part that makes environments."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        raise Problem(
            "Python %d.%d at %s cannot make virtual environments: install its venv "
            "package first, on Debian and Ubuntu with "
            "`sudo apt install python%d.%d-venv` (or `python3-venv`)."
            % (
                tuple(sys.version_info[:2])
                + (sys.executable,)
                + tuple(sys.version_info[:2])
            )
        )


def check_disk(folder, needed):
    """Refuse to start when the disk cannot hold the environment (sizes in GiB)."""
    free = shutil.disk_usage(os.path.dirname(folder)).free / GIB
    if free < needed:
        raise Problem(
            "Too little disk space: the environment needs about %.1f GiB, and %.1f GiB "
            "are free in %s." % (needed, free, os.path.dirname(folder))
        )


def has_gpu():
    """Is there an NVIDIA GPU whose driver can run CUDA 13?"""
    if not sys.platform.startswith("linux"):
        return False
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.check_output(query, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return False
    driver = answer.decode().strip().splitlines()[:1]
    major = int(driver[0].split(".")[0]) if driver and driver[0][:1].isdigit() else 0
    if 0 < major < OLDEST_DRIVER:
        print(
            "An NVIDIA GPU is here, but its driver %s is older than %d, which CUDA 13 "
            "needs: the book runs on the CPU." % (driver[0], OLDEST_DRIVER)
        )
    return major >= OLDEST_DRIVER


def digest(locks):
    """What the environment is made from, as one hash."""
    total = hashlib.sha256()
    for lock in locks:
        with open(os.path.join(ROOT, lock), "rb") as file:
            total.update(file.read())
    return total.hexdigest()


def python_of(folder):
    """The interpreter of an environment."""
    inside = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    return os.path.join(folder, *inside)


def is_complete(folder, locks):
    """Was the environment made to its end, from these locks, and does it run?"""
    stamp = os.path.join(folder, STAMP)
    if not os.path.exists(stamp):
        return False
    with open(stamp) as file:
        if file.read() != digest(locks):
            return False
    try:
        return subprocess.call([python_of(folder), "-c", ""]) == 0
    except OSError:
        return False


def run(command, folder, space):
    """Run a command, show what it prints; a full disk becomes a sentence."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        cwd=ROOT,
    )
    printed = []
    with process.stdout:
        for line in process.stdout:
            print(line, end="")
            sys.stdout.flush()
            printed.append(line)
    if process.wait() == 0:
        return True
    candidates = [
        os.path.dirname(folder),
        os.path.expanduser("~"),
        os.environ.get("TMPDIR", "/tmp"),
    ]
    free = [
        (shutil.disk_usage(p).free / GIB, p) for p in candidates if os.path.isdir(p)
    ]
    if FULL.search("".join(printed)) or min(free)[0] < NOTHING:
        raise Problem(
            "The disk ran full during the installation, which needs about %.1f GiB; "
            "free are now %s."
            % (space, ", ".join("%.1f GiB in %s" % pair for pair in free))
        )
    return False


def pinned(name):
    """``name==version`` as the main lock has it."""
    with open(os.path.join(ROOT, MAIN_LOCK)) as file:
        for line in file:
            if line.startswith(name + "=="):
                return line.split()[0]
    raise Problem("%s does not name %s; run `make lock`." % (MAIN_LOCK, name))


def make(folder, locks, space):
    """Make the environment from nothing; the stamp is written last."""
    shutil.rmtree(folder, ignore_errors=True)
    python = python_of(folder)
    steps = [
        [sys.executable, "-m", "venv", folder],
        [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            pinned("uv"),
        ],
    ]
    for step in steps:
        if not run(step, folder, space):
            raise Problem("This command failed, see above: %s" % " ".join(step))
    files = [part for lock in locks for part in ("-r", lock)]
    install = [python, "-m", "uv", "pip", "install", "--python", python] + files
    if not run(install, folder, space):
        print("uv could not install the packages; pip tries now.")
        if not run([python, "-m", "pip", "install", "--quiet"] + files, folder, space):
            raise Problem(
                "The packages could not be installed; the lines above say why."
            )
    unfinished = os.path.join(folder, STAMP + ".part")
    with open(unfinished, "w") as file:
        file.write(digest(locks))
    os.rename(unfinished, os.path.join(folder, STAMP))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", default=".venv")
    parser.add_argument("--lock", default=MAIN_LOCK)
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13"])
    parser.add_argument(
        "--cuda",
        choices=["auto", "yes", "no"],
        default="auto",
        help="JAX's CUDA build as well; auto: if an NVIDIA GPU is found",
    )
    options = parser.parse_args()
    check_python(options.python)
    folder = os.path.join(ROOT, options.folder)
    locks, space = [options.lock], SPACE
    if options.cuda == "yes" or (
        options.cuda == "auto" and options.lock == MAIN_LOCK and has_gpu()
    ):
        locks.append(CUDA_LOCK)
        space += CUDA_SPACE
    if is_complete(folder, locks):
        return
    check_venv()
    check_disk(folder, space)
    print(
        "Making %s from %s; the first time takes some minutes."
        % (options.folder, ", ".join(locks))
    )
    sys.stdout.flush()
    make(folder, locks, space)


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        sys.exit("\n%s" % problem)
