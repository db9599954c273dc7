"""Commands, and a file system of a few kilobytes that runs full for real."""

import os
import shutil
import subprocess

import pytest

import pages


def run(*command, **options):
    """Run a command; return its exit status and all that it printed."""
    options = {"cwd": pages.ROOT, "encoding": "utf-8", **options}
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        **options,
    )
    return done.returncode, done.stdout


def small_disk(folder, script, kilobytes=16 << 10):
    """Run a shell script with a small file system at ``$DISK``, ``folder/disk``."""
    disk = folder / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size={kilobytes}k tmpfs '{disk}'"
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if not shutil.which("unshare") or run(*unshare, "sh", "-c", mount)[0] != 0:
        pytest.skip("this machine lets nobody mount a small file system")
    return run(*unshare, "sh", "-c", f"{mount} && DISK='{disk}' && {script}")
