"""The browser comes by itself, or one sentence says how to get one."""

import http.server
import io
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

import browser
import pages

TRIAL = """
import pytest
from conftest import chromium

def test_there_is_a_browser(chromium):
    assert chromium
"""


def environment(tmp_path, **changes):
    """No browser in it, no ``apt-get``, and nobody who has one for Playwright."""
    empty = tmp_path / "bin"
    empty.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    return (
        kept
        | {
            "PATH": str(empty),
            "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "browsers"),
            "PLAYWRIGHT_DOWNLOAD_HOST": "http://localhost:9",
            "PYTHONPATH": os.pathsep.join(
                str(pages.ROOT / name) for name in ("notebooks", "tools", "tests")
            ),
        }
        | changes
    )


def find(environment):
    return subprocess.run(
        [sys.executable, browser.__file__],
        env=environment, capture_output=True, encoding="utf-8",
    )  # fmt: skip


@pytest.mark.parametrize("name", browser.NAMES)
def test_an_installed_one_is_taken(tmp_path, name):
    values = environment(tmp_path)
    path = tmp_path / "bin" / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    done = find(values)
    assert (done.returncode, done.stdout.strip()) == (0, str(path)), done.stderr


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_without_one_tests_are_skipped_by_name_or_fail(tmp_path, ci, outcome):
    """Fail where ``CI`` is set; either way one sentence says how to get a browser."""
    test = tmp_path / "test_trial.py"
    test.write_text(TRIAL)
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "--rootdir", str(tmp_path), str(test)]
    done = subprocess.run(
        command, env=environment(tmp_path, CI=ci), cwd=tmp_path,
        capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert outcome in done.stdout, done.stdout
    assert browser.SENTENCE in " ".join(done.stdout.split()), done.stdout
    assert bool(done.returncode) == bool(ci)


class Downloads(http.server.BaseHTTPRequestHandler):
    """Gives any archive that Playwright asks for, with every file it may look for."""

    def do_GET(self):
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for path in self.server.wanted:
                about = zipfile.ZipInfo(path)
                about.external_attr = 0o755 << 16
                archive.writestr(about, "#!/bin/sh\n")
        self.send_response(200)
        self.send_header("Content-Length", str(len(content.getvalue())))
        self.end_headers()
        self.wfile.write(content.getvalue())

    def log_message(self, *_):
        """Says nothing."""


def test_playwrights_own_is_downloaded(tmp_path):
    """By its real installer, from a server that has what it asks for."""
    values = environment(tmp_path)
    code = (
        "from playwright.sync_api import sync_playwright\n"
        "with sync_playwright() as p: print(p.chromium.executable_path)"
    )
    path = subprocess.run(
        [sys.executable, "-c", code], env=values, capture_output=True, text=True
    ).stdout.strip()
    inside = Path(path).relative_to(tmp_path / "browsers").parts[1:]
    with http.server.ThreadingHTTPServer(("localhost", 0), Downloads) as server:
        server.wanted = ["/".join(inside)]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        values["PLAYWRIGHT_DOWNLOAD_HOST"] = f"http://localhost:{server.server_port}"
        done = find(values)
        server.shutdown()
    assert (done.returncode, done.stdout.strip()) == (0, path), done.stderr


def test_debians_package_is_installed_where_it_may_be(tmp_path):
    """A stand-in for apt-get: the real one would change this machine."""
    if os.geteuid() != 0:
        pytest.skip("apt-get is asked by root only")
    values = environment(tmp_path)
    apt = tmp_path / "bin" / "apt-get"
    chromium = tmp_path / "bin" / "chromium"
    apt.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *"install"*chromium*) printf "#!/bin/sh\\n" > {chromium}; '
        f"/bin/chmod +x {chromium};; esac\n"
    )
    apt.chmod(0o755)
    done = find(values)
    assert (done.returncode, done.stdout.strip()) == (0, str(chromium)), done.stderr
