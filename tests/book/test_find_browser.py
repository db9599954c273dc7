"""Without a browser its tests are skipped by name; in CI they fail."""

import pytest

import browser
from browsing import find_browser


def test_installed_browser_is_used(tmp_path, monkeypatch):
    path = tmp_path / browser.NAMES[-1]
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser.find() == str(path)


@pytest.mark.parametrize(("ci", "outcome"), [("", "Skipped"), ("true", "Failed")])
def test_missing_browser_fails_only_in_ci(monkeypatch, ci, outcome):
    def find():
        raise LookupError("no Chromium found: install Chromium")

    monkeypatch.setattr(browser, "find", find)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(BaseException, match="install Chromium") as raised:
        find_browser()
    assert type(raised.value).__name__ == outcome
