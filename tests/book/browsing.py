"""What tests do with a page in the browser: listen to it, and let axe-core check it."""

import os

import browser
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

PATIENCE = 60_000  # milliseconds: a busy machine is slow, and nothing is wrong with it
expect.set_options(timeout=PATIENCE)

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
# Two frames: the layout is done, and what observes sizes has been told.
DRAWN = """() => new Promise(
    done => requestAnimationFrame(() => requestAnimationFrame(done)))"""
TYPESET = """() => !document.querySelector('.math')
    || (window.MathJax?.startup?.promise && document.querySelector('mjx-container'))"""

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
AXE = """async rules => (await axe.run({
    resultTypes: ['violations'],
    ...(rules && {runOnly: {type: 'rule', values: rules}}),
})).violations.filter(v => ['serious', 'critical'].includes(v.impact)).map(
    ({id, impact, nodes}) => `${id} (${impact}): ${nodes[0].html.slice(0, 150)} and `
        + `${nodes.length - 1} more; ${nodes[0].failureSummary.slice(0, 200)}`)"""
# The theme makes what scrolls focusable a moment after the window or the page changes.
REACHABLE = """() => [...document.querySelectorAll('pre')].every(
    n => n.scrollWidth <= n.clientWidth || n.tabIndex === 0)"""
COLOURS = ["color-contrast", "link-in-text-block"]


def find_browser():
    """The path of a browser; without one tests are skipped, and fail in CI."""
    try:
        return browser.find()
    except LookupError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


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


def release(page):
    """Let go what ``visit(…, hold=…)`` has held back, and wait until all is there."""
    while page.held:
        page.held.pop().continue_()
    page.unroute_all()
    page.wait_for_load_state("load")


def new_context(browser, **options):
    """A window that remembers nothing, and waits long before it gives up."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    context.set_default_timeout(PATIENCE)
    return context


def by_page(names):
    """Run a test on each page; a file's tests all see one page, then the next one."""
    return pytest.mark.parametrize("page_name", names, scope="module")


def serious(page, rules=None):
    """What axe-core calls serious or critical, as lines of text."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    return page.evaluate(AXE, rules)


def serious_in_both_colours(page):
    """``{"light": …, "dark": …}``; structure needs no second look in the dark.

    The page is changed: repeated words of code are taken out of it.
    """
    page.evaluate(KEEP_ONE_OF_EACH)
    found = {}
    for scheme, rules in {"light": None, "dark": COLOURS}.items():
        # With motion, what is fading in would look pale.
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        page.wait_for_function(REACHABLE)
        found[scheme] = serious(page, rules)
    return found
