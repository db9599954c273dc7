"""What tests of the built book share: its files, and a page that is watched."""

import gc
import os
from functools import cache
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from playwright.sync_api import expect

import pages

HTML = Path(os.environ.get("BOOK_HTML") or pages.ROOT / "_build" / "html")
PAGES = pages.toc()
NOTEBOOKS = [page for page in PAGES if pages.side_of(page)]
CHAPTERS = [page[len("notebooks/") : -len("_jax")] for page in NOTEBOOKS[::2]]
PATIENCE = 60_000  # milliseconds: a busy machine is slow, and nothing is wrong with it
expect.set_options(timeout=PATIENCE)
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

AXE = """async rules => (await axe.run({
    resultTypes: ['violations'],
    ...(rules && {runOnly: {type: 'rule', values: rules}}),
})).violations.filter(v => ['serious', 'critical'].includes(v.impact)).map(
    ({id, nodes}) => `${id}: ${nodes[0].html.slice(0, 150)} and ${nodes.length - 1}`
        + ` more; ${nodes[0].failureSummary.slice(0, 200)}`)"""
# A word of code looks like every other of its kind: one of each is enough
# (of more than one letter: axe skips single ones).
KEEP_ONE_OF_EACH = """() => {
    const seen = new Set();
    for (const word of document.querySelectorAll('pre span')) {
        const path = [];
        for (let n = word; n && n.tagName !== 'DIV'; n = n.parentElement)
            path.push(n.tagName + '.' + n.className);
        const kind = path.join() + word.closest('.cell_output, .cell_input')?.className;
        if (seen.has(kind)) word.remove();
        else if (word.textContent.trim().length > 1) seen.add(kind);
    }
}"""
REACHABLE = """() => [...document.querySelectorAll('pre')].every(
    n => n.scrollWidth <= n.clientWidth || n.tabIndex === 0)"""
COLOURS = ["color-contrast", "link-in-text-block"]


@cache
def soup(path):
    parsed = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    gc.freeze()  # it stays: nobody looks through its 100,000 objects for garbage
    return parsed


def whole(page):
    """A page of the built book, parsed once."""
    return soup(HTML / f"{page}.html")


def article(page):
    """The content of a page, without navigation."""
    return whole(page).select_one("article")


def list_all(faults):
    """Fails with all faults of a rule, one a line."""
    faults = [str(fault) for fault in faults]
    assert not faults, "\n".join(["", *faults])


def watch(page):
    """Keep all that a page complains about and asks for."""
    page.complaints, page.asked = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))

    def hear(message):
        if message.type in ("error", "warning"):
            page.complaints.append(f"{message.type}: {message.text}")

    page.on("console", hear)
    return page


def serious(page, rules=None):
    """What axe-core calls serious or critical, as lines of text."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    return page.evaluate(AXE, rules)


def serious_in_both_colours(page):
    """The same in both colours; structure needs no second look in the dark.

    The page is changed: repeated words of code are taken out of it.
    """
    page.evaluate(KEEP_ONE_OF_EACH)
    found = []
    for scheme, rules in {"light": None, "dark": COLOURS}.items():
        # With motion, what is fading in would look pale.
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        page.wait_for_function(REACHABLE)
        found += [f"{scheme}: {line}" for line in serious(page, rules)]
    return found
