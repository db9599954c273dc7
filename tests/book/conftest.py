"""The built book, and a browser that shows it.

With two workers (``-n 2 --dist loadgroup``), each page is opened by one of them only.
"""

import os
import threading
from pathlib import Path

import pytest

import browser as browsers
import build_book
import serve
from browsing import TYPESET, WIDE, watch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            parameters = getattr(item, "callspec", None) and item.callspec.params
            group = (parameters or {}).get("page_name", item.path.stem)
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def html():
    """Folder of the built book; it must have been built from the present sources."""
    assert build_book.is_fresh(), (
        "the built book is missing or older than its sources: run `make book`"
    )
    return build_book.HTML


@pytest.fixture(scope="session")
def address(html):
    """The book on a port of localhost that was free."""
    with serve.server(html, handler=serve.Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def chromium():
    """The path of a browser, or one sentence why there is none; CI has to have one."""
    try:
        return browsers.find()
    except LookupError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium, args=browsers.OPTIONS, headless=True
        )
        yield running
        running.close()


@pytest.fixture(scope="session")
def tab(browser, address):
    """Shows a page of the book with its formulas set, in a tab that is kept."""
    context = browser.new_context()
    pages = []

    def show(name, size, scheme, fresh):
        if fresh or not pages or pages[-1].name != name:
            while pages:
                pages.pop().close()
            pages.append(watch(context.new_page()))
            pages[-1].set_viewport_size(size)
            pages[-1].emulate_media(color_scheme=scheme)
            pages[-1].goto(f"{address}/{name}.html", wait_until="load")
            pages[-1].wait_for_function(TYPESET)
            pages[-1].evaluate("window.MathJax?.startup?.promise")
            pages[-1].name = name
        return pages[-1]

    yield show
    context.close()


@pytest.fixture
def visit(tab):
    """Open a page of the book; tests in a row share its tab, but no setting."""

    def open_page(name, *, size=WIDE, scheme="light", fresh=False):
        page = tab(name, size, scheme, fresh)
        page.set_viewport_size(size)
        page.emulate_media(
            color_scheme=scheme, media="screen", reduced_motion="no-preference"
        )
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
        return page

    return open_page


@pytest.fixture
def new_reader(browser, address):
    """A reader who was never here: opens pages in a window of their own."""
    opened = []

    def window(**options):
        context = browser.new_context(**{"viewport": WIDE, **options})
        opened.append(context)
        page = watch(context.new_page())
        page.open = lambda name: page.goto(f"{address}/{name}")
        return page

    yield window
    for context in opened:
        context.close()
