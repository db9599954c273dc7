"""What several tests need: the pages, the built book, and a browser that shows it."""

import os
import threading
from collections import Counter

import hypothesis
import pytest

import browser as browsers
import build_book
import serve

hypothesis.settings.register_profile("no time is asserted", deadline=None)
hypothesis.settings.load_profile("no time is asserted")


def pytest_collection_modifyitems(items):
    """Two workers begin with the files that take long, and end at about one time."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = Counter(i.path for i in items if i.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])


WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
TYPESET = """() => !document.querySelector('.math')
    || (window.MathJax?.startup?.promise && document.querySelector('mjx-container'))"""


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


def find_browser():
    """The path of a browser; without one tests are skipped, and fail in CI."""
    try:
        return browsers.find()
    except LookupError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def chromium():
    return find_browser()


@pytest.fixture(scope="session")
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium, args=browsers.OPTIONS, headless=True
        )
        yield running
        running.close()


def watch(page):
    """Keep all that a page complains about and asks for."""
    page.complaints, page.asked = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))

    def hear(message):
        if message.type in ("error", "warning"):
            page.complaints.append(f"{message.type}: {message.text}")

    def look(answer):
        if answer.status >= 400:
            page.complaints.append(f"{answer.status} {answer.url}")

    page.on("console", hear)
    page.on("response", look)
    return page


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


def by_page(names):
    """Run a test on each page; a file's tests all see one page, then the next one."""
    return pytest.mark.parametrize("page_name", names, scope="module")


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
