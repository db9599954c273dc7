"""The built book in a real Chromium: in light and dark, wide and narrow.

The browser is one that is installed (chromium, google-chrome), else Playwright's own.
"""

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest

import pages
from build_book import HTML

pytestmark = pytest.mark.book
PAGES = pages.toc()
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
by_page = pytest.mark.parametrize("page_name", PAGES)


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """A test prints nothing about requests that went well."""


@pytest.fixture(scope="module")
def address(html):
    """The book on a port of localhost that was free."""
    handler = functools.partial(Silent, directory=HTML)
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    """A browser, or one sentence why there is none; under CI there has to be one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        installed = next(filter(None, map(shutil.which, NAMES)), None)
        own = Path(playwright.chromium.executable_path)
        if not installed and not own.exists():
            sentence = "no Chromium: install it, or run `playwright install chromium`"
            if os.environ.get("CI"):
                pytest.fail(sentence)
            pytest.skip(sentence)
        running = playwright.chromium.launch(
            executable_path=installed or own, args=QUIET, headless=True
        )
        yield running
        running.close()


@pytest.fixture(scope="module")
def contexts(browser):
    """One window of the browser for each size and colour scheme, kept for all pages."""
    opened = {}

    def window(size, scheme):
        key = size["width"], scheme
        if key not in opened:
            opened[key] = browser.new_context(viewport=size, color_scheme=scheme)
        return opened[key]

    yield window
    for context in opened.values():
        context.close()


@pytest.fixture
def visit(contexts, address):
    """Open a page of the book; return it with all it complained about and asked for."""
    opened = []

    def open_page(name, *, size=WIDE, scheme="light"):
        page = contexts(size, scheme).new_page()
        opened.append(page)
        page.complaints, page.asked = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                page.complaints.append(f"{message.type}: {message.text}")
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on(
            "response",
            lambda answer: (
                page.complaints.append(f"{answer.status} {answer.url}")
                if answer.status >= 400
                else None
            ),
        )
        page.goto(f"{address}/{name}.html", wait_until="load")
        page.wait_for_function(
            "!document.querySelector('.math')"
            " || (window.MathJax?.startup?.promise"
            " && document.querySelector('mjx-container'))"
        )
        page.evaluate("window.MathJax?.startup?.promise")
        return page

    yield open_page
    for page in opened:
        page.close()


@by_page
def test_the_page_loads_in_peace_from_one_host(visit, address, page_name):
    """No error in the console, no failed request, and no request to another host."""
    page = visit(page_name)
    page.mouse.wheel(0, 10_000)
    page.wait_for_load_state("networkidle")
    assert not page.complaints, f"{page_name}: {page.complaints}"
    away = [
        url for url in page.asked if not url.startswith((address, "data:", "blob:"))
    ]
    assert not away, f"{page_name} asks other hosts: {away}"
    assert len(page.asked) > 5


@by_page
def test_formulas_are_typeset(visit, page_name):
    """Every formula became MathJax's own element, none an error; no `$$` is left."""
    page = visit(page_name)
    formulas, typeset = (
        page.locator(f"article {which}").count()
        for which in (".math", ".math mjx-container")
    )
    assert formulas == typeset, f"{page_name}: {typeset} of {formulas} formulas typeset"
    assert (
        page.locator("article mjx-merror, article [data-mml-node=merror]").count() == 0
    )
    prose = page.evaluate(
        """() => {
            const copy = document.querySelector('article').cloneNode(true);
            copy.querySelectorAll('pre, code, mjx-container').forEach(n => n.remove());
            return copy.textContent;
        }"""
    )
    for sign in ("$$", "\\frac", "\\sum", "\\("):
        assert sign not in prose, f"{page_name}: raw {sign!r} in the text"


def test_the_notation_has_formulas(visit):
    """So that the test above has something to look at on a page that never changes."""
    assert visit("book/notation").locator("article mjx-container").count() >= 2


@by_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_drawn_on_a_light_ground(visit, page_name, scheme):
    """Every picture has loaded, and neither colour scheme dims or inverts it."""
    page = visit(page_name, scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    pictures = page.evaluate(
        """async () => {
            const all = [...document.querySelectorAll('article img')];
            all.forEach(image => { image.loading = 'eager'; });
            await Promise.all(all.map(image => image.decode().catch(() => null)));
            return all.map(image => ({
                src: image.getAttribute('src'),
                width: image.naturalWidth,
                filter: getComputedStyle(image).filter,
                ground: getComputedStyle(image).backgroundColor,
            }));
        }"""
    )
    for picture in pictures:
        assert picture["width"] > 0, f"{page_name}: {picture['src']} did not load"
        assert picture["filter"] == "none", f"{page_name}: {picture}"
    if page_name.startswith("notebooks/"):
        assert pictures, f"{page_name} has no picture"


@by_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(visit, page_name, scheme):
    """At 390 pixels the page scrolls down, never sideways."""
    page = visit(page_name, size=NARROW, scheme=scheme)
    width, wide = page.evaluate(
        """() => [document.documentElement.scrollWidth,
            [...document.querySelectorAll('article *')]
                .filter(n => n.getBoundingClientRect().right > innerWidth + 1
                    && !n.closest('pre, table, mjx-container, .math, .output'))
                .map(n => n.outerHTML.slice(0, 120)).slice(0, 3)]"""
    )
    assert width <= NARROW["width"], f"{page_name} is {width} pixels wide: {wide}"
    assert not wide, f"{page_name}: {wide}"


@by_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit, page_name, scheme):
    """Contrast of the running text and of the code, by WCAG: at least 4.5 to 1."""
    page = visit(page_name, scheme=scheme)
    low = page.evaluate(
        """() => {
            const numbers = text => text.match(/[\\d.]+/g).map(Number);
            const light = ([r, g, b]) => {
                const part = v => (v /= 255) <= 0.03928 ? v / 12.92
                    : ((v + 0.055) / 1.055) ** 2.4;
                return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
            };
            const ground = node => {
                for (; node; node = node.parentElement) {
                    const colour = numbers(getComputedStyle(node).backgroundColor);
                    if (colour.length < 4 || colour[3] === 1) return colour;
                }
                return [255, 255, 255];
            };
            const found = [];
            const texts = ['p', 'pre', 'li', 'h1', 'h2', 'td'].map(n => `article ${n}`);
            for (const node of document.querySelectorAll(texts.join())) {
                if (!node.textContent.trim() || !node.getClientRects().length) continue;
                const ink = numbers(getComputedStyle(node).color);
                const [a, b] = [ink, ground(node)].map(light);
                const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
                if (contrast < 4.5) found.push(`${contrast}: ${node.textContent}`);
            }
            return found;
        }"""
    )
    assert not low, f"{page_name}, {scheme}: {low[:3]}"


@pytest.mark.parametrize(
    "page_name", [name for name in PAGES if name.startswith("notebooks/")]
)
def test_an_answer_opens_from_the_keyboard(visit, page_name):
    """Answers are folded; Enter on their line shows what they printed."""
    page = visit(page_name)
    fold = page.locator("article details.hide").last
    assert fold.count() == 1, f"{page_name} has no folded answer"
    assert not fold.evaluate("node => node.open")
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.evaluate("node => node.open")
