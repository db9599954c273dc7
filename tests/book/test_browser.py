"""The built book in a real Chromium: formulas, pictures and text, in light and dark."""

import pytest

import pages
from conftest import by_page

pytestmark = pytest.mark.book
PAGES = pages.toc()
each_page = by_page(PAGES)


@each_page
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


@each_page
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


@each_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_drawn_on_a_light_ground(visit, page_name, scheme):
    """Every picture has loaded, and neither colour scheme dims or inverts it."""
    page = visit(page_name, scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    pictures = page.evaluate(
        """async () => {
            const all = [...document.querySelectorAll('article img')]
                    .filter(image => image.checkVisibility());
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


@each_page
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


@by_page([name for name in PAGES if name.startswith("notebooks/")])
def test_an_answer_opens_from_the_keyboard(visit, page_name):
    """Answers are folded; Enter on their line shows what they printed."""
    page = visit(page_name)
    fold = page.locator("article details.hide").last
    assert fold.count() == 1, f"{page_name} has no folded answer"
    assert not fold.evaluate("node => node.open")
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.evaluate("node => node.open")
