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
    if not shutil.which("unshare") or run(*in_a_namespace(mount))[0] != 0:
        pytest.skip("this machine lets nobody mount a small file system")
    return run(*in_a_namespace(f"{mount} && DISK='{disk}' && {script}"))


def in_a_namespace(script):
    """The command that runs a shell script which may mount what nobody else sees."""
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    return [*unshare, "sh", "-c", script]
