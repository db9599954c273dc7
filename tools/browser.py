"""Find a Chromium for the tests and tools that look at the built book.

One that is installed is taken as it is; else Playwright downloads its own; else, where
that does not work and Debian's packages may be installed, ``apt-get`` brings one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SENTENCE = (
    "no Chromium could be found, downloaded or installed: install Chromium or Chrome, "
    "or run `python -m playwright install chromium` where the network allows it"
)


def installed():
    """The path of a Chromium or Chrome on this machine, or None."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or downloaded()


def downloaded():
    """The path of Playwright's own, if it is there."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def by_playwright():
    """Let Playwright download its own; the path, or None if it can't."""
    run([sys.executable, "-m", "playwright", "install", "chromium"])
    return downloaded()


def by_apt():
    """Install Debian's package, where that is allowed; the path, or None."""
    if not shutil.which("apt-get") or os.name != "posix" or os.geteuid() != 0:
        return None
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], environment)
    run(["apt-get", "install", "-y", "-qq", "chromium"], environment)
    return shutil.which("chromium")


def run(command, environment=None):
    """Run a command that may fail, and may take minutes; its output is an error's."""
    print(" ".join(command[-3:]), "…", file=sys.stderr, flush=True)
    subprocess.run(command, env=environment, stdout=sys.stderr, check=False)


def find():
    """The path of a Chromium, downloaded or installed if there is none yet.

    Raises
    ------
    LookupError
        If there is none to be had; the message says how to get one.
    """
    for way in (installed, by_playwright, by_apt):
        if found := way():
            return found
    raise LookupError(SENTENCE)


if __name__ == "__main__":
    print(find())
