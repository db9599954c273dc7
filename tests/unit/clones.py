"""Copies of the repository's text, for tests of the tools that change it."""

import os
import shutil
import subprocess
import sys

import pages


def copy_of_the_repository(root):
    """What git would keep, in a folder of its own, which is a repository, too."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=pages.ROOT, check=True, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (pages.ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pages.ROOT / name, root / name)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return root


def run(root, *command, **environment):
    """Run a Python command in such a copy."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=root,
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
    )
