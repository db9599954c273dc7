"""The built book, and a browser that shows it."""

import threading
from functools import cache

import browser
import nbformat
import pytest
import serve
from jupyter_cache import get_cache

import build_book
import pages
import playground
from browsing import TYPESET, WIDE, find_browser, new_context, watch
from comparison import JAVASCRIPT
from models_in_javascript import LIBRARY


@pytest.fixture(scope="session")
def html():
    """Folder of the built book; it must have been built from the present sources."""
    assert build_book.is_fresh(), (
        "the built book is missing or older than its sources: run `make book`"
    )
    return build_book.HTML


@pytest.fixture(scope="session")
def executed(html):
    """Reads a page as the build executed it: code cells with their outputs."""
    kept = get_cache(html.parent / "executed")

    @cache
    def read(page):
        notebook = nbformat.read(pages.ROOT / f"{page}.ipynb", as_version=4)
        return kept.merge_match_into_notebook(notebook)[1]

    return read


@pytest.fixture(scope="session")
def address(html):
    """The book on a port of localhost that was free."""
    with serve.server(html, handler=serve.Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session", name="browser")
def running_browser():
    from playwright.sync_api import sync_playwright

    path = find_browser()  # before Playwright starts: it may start one of its own
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path, args=browser.OPTIONS, headless=True
        )
        yield running
        running.close()


@pytest.fixture(scope="session")
def javascript(browser):
    """A page with the models in JavaScript and nothing else."""
    page = new_context(browser).new_page()
    for name in playground.SCRIPTS:
        page.add_script_tag(path=JAVASCRIPT.with_name(name))
    page.add_script_tag(content=LIBRARY)
    yield page
    page.context.close()


@pytest.fixture(scope="session")
def tab(browser, address):
    """Shows a page of the book with its formulas set, in a tab that is kept."""
    context = new_context(browser)
    context.add_init_script("localStorage.setItem('extras', 'open')")  # see all of it
    tabs = []

    def show(name, size, scheme, fresh, hold=None):
        if fresh or not tabs or tabs[-1].name != name:
            while tabs:
                tabs.pop().close()
            page = watch(context.new_page())
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)
            page.held = []
            if hold:
                page.route(hold, lambda asked: page.held.append(asked))
            until = "domcontentloaded" if hold else "load"
            page.goto(f"{address}/{name}.html", wait_until=until)
            page.wait_for_function(TYPESET)
            page.evaluate("window.MathJax?.startup?.promise")
            page.name = name
            tabs.append(page)
        return tabs[-1]

    yield show
    context.close()


@pytest.fixture
def visit(tab):
    """Open a page of the book; tests in a row share its tab, but no setting.

    ``hold``: what a fresh page asks for at these addresses waits for ``release``.
    """

    def open_page(name, *, size=WIDE, scheme="light", fresh=False, hold=None):
        page = tab(name, size, scheme, fresh, hold)
        page.set_viewport_size(size)
        page.emulate_media(
            color_scheme=scheme, media="screen", reduced_motion="no-preference"
        )
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
        page.mouse.move(0, 0)  # nothing is hovered
        return page

    return open_page


@pytest.fixture(scope="session")
def windows(browser):
    """Windows that are kept, one for each set of options: scripts are compiled once."""
    found = {}

    def window(**options):
        key = repr(sorted(options.items()))
        if key not in found:
            found[key] = new_context(browser, **options)
        return found[key]

    yield window
    for context in found.values():
        context.close()


@pytest.fixture
def new_reader(browser, windows, address):
    """A reader who was never here: opens pages in a tab, and nothing is remembered.

    ``own``: in a window of its own, for what changes a window (as its clock).
    """
    opened = []

    def open_tab(own=False, **options):
        context = new_context(browser, **options) if own else windows(**options)
        page = watch(context.new_page())
        page.context.new_cdp_session(page).send(
            "Storage.clearDataForOrigin", {"origin": address, "storageTypes": "all"}
        )
        page.open = lambda name: page.goto(f"{address}/{name}")
        opened.append(context if own else page)
        return page

    yield open_tab
    for each in opened:
        each.close()
