"""The Chromium or Chrome of this machine, for tests and tools that open the book."""

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium-headless-shell",)  # without windows to draw: the quickest
NAMES += ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find():
    """The path of an installed browser, or of Playwright's own.

    Raises
    ------
    LookupError
        If there is none; the message says how to get one.
    """
    if installed := next(filter(None, map(shutil.which, NAMES)), None):
        return installed
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    if Path(path).exists():
        return path
    raise LookupError(
        "no Chromium found: install Chromium or Chrome, or run "
        "`.venv/bin/python -m playwright install chromium`"
    )
