"""Without a browser its tests are skipped by name; in CI they fail."""

import os
import subprocess
import sys

import pytest

import browser
import pages


def test_installed_browser_is_used(tmp_path, monkeypatch):
    path = tmp_path / browser.NAMES[-1]
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser.find() == str(path)


@pytest.mark.parametrize(("ci", "told"), [("", "skipped"), ("true", "error")])
def test_machine_without_a_browser_is_told_how_to_get_one(tmp_path, ci, told):
    """The real fixture, asked in an empty PATH; Playwright's own browser is missing."""
    nowhere = {"PATH": str(tmp_path), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/book/test_viewer.py", "-k", "nasty_labels"],
        cwd=pages.ROOT, env=os.environ | nowhere | {"CI": ci}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert f"1 {told}" in done.stdout and "playwright install chromium" in done.stdout
