"""The built book on a port of localhost, and one browser that shows it."""

import functools
import http.server
import os
import shutil
import threading
from urllib.parse import urlsplit

import pytest
from browsing import HTML, PATIENCE, WIDE, watch
from playwright.sync_api import sync_playwright

import pages

BROWSERS = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"
HOME = urlsplit(pages.config()["html"]["baseurl"]).path
TYPESET = """() => !document.querySelector('.math')
    || (window.MathJax?.startup?.promise && document.querySelector('mjx-container'))"""


class Book(http.server.SimpleHTTPRequestHandler):
    """As its public home: below a folder, and ``404.html`` for what is not there."""

    def translate_path(self, path):
        return super().translate_path(f"/{path.removeprefix(HOME)}")

    def send_error(self, code, message=None, explain=None):
        content = (HTML / "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture(scope="session", autouse=True)
def book():
    """Every test here looks at the built book."""
    assert (HTML / "index.html").exists(), "there is no built book: run `make book`"


@pytest.fixture(scope="session")
def address():
    answer = functools.partial(Book, directory=HTML)
    with http.server.ThreadingHTTPServer(("localhost", 0), answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser():
    """An installed Chromium; without one tests are skipped, and fail in CI."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop(f"needs a browser, one of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield running
        running.close()


@pytest.fixture(scope="session")
def windows(browser):
    """Windows that are kept, one for each set of options: scripts are compiled once."""
    found = {}

    def window(**options):
        key = repr(sorted(options.items()))
        if key not in found:
            found[key] = browser.new_context(**{"viewport": WIDE, **options})
            found[key].set_default_timeout(PATIENCE)
        return found[key]

    yield window
    for context in found.values():
        context.close()


@pytest.fixture
def visit(windows, address):
    """Opens a page for a reader who was never here, with its formulas set."""
    opened = []

    def open_page(name, **options):
        page = watch(windows(**options).new_page())
        opened.append(page)
        page.context.new_cdp_session(page).send(
            "Storage.clearDataForOrigin", {"origin": address, "storageTypes": "all"}
        )
        page.open = lambda name: page.goto(f"{address}/{name}")
        page.open(name)
        if options.get("java_script_enabled", True):
            page.wait_for_function(TYPESET)
            page.evaluate("window.MathJax?.startup?.promise")
        return page

    yield open_page
    for page in opened:
        page.close()
