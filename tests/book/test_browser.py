"""Sample pages of the built book in Chromium: in both colours, on a phone, printed."""

import pytest
from browsing import NARROW, WIDE, list_all, serious_in_both_colours
from playwright.sync_api import expect

pytestmark = pytest.mark.book
SAMPLE = [
    "book/index", "notebooks/attention_torch", "notebooks/anomaly_jax",
    "notebooks/warmup_torch", "book/comparison", "book/glossary", "search", "404",
]  # fmt: skip
each_page = pytest.mark.parametrize("name", SAMPLE)
PICTURES = """async () => {
    const all = [...document.querySelectorAll('article img')];
    all.forEach(image => { image.loading = 'eager'; });
    await Promise.all(all.map(image => image.decode().catch(() => null)));
    return all.filter(i => i.checkVisibility() && !i.naturalWidth).map(i => i.src);
}"""
FORMULAS = """() => {
    const count = what => document.querySelectorAll(`article ${what}`).length;
    return ['.math', '.math mjx-container', 'mjx-merror'].map(count);
}"""
BOXES = """() => {
    const all = document.querySelectorAll('article :is(section, .cell_output, img)');
    return [...all].map(node => [node, node.getBoundingClientRect()])
        .map(([node, {x, y, width, height}]) => [x, y, width, height].map(Math.round)
            + ` ${node.id || node.getAttribute('src') || ''}`.slice(0, 99));
}"""
TOO_WIDE = """() => {
    const inBox = n => n.tagName !== 'ARTICLE' && (inBox(n.parentElement)
        || /auto|scroll/.test(getComputedStyle(n.parentElement).overflowX));
    return [...document.querySelectorAll('article *')].filter(
        n => n.getBoundingClientRect().right > innerWidth + 1 && !inBox(n))
        .map(n => n.outerHTML.slice(0, 120));
}"""
UNREACHABLE = """() => [...document.querySelectorAll('article *')].filter(
        n => n.scrollWidth > n.clientWidth + 1 && n.clientWidth > 40
        && /auto|scroll/.test(getComputedStyle(n).overflowX) && n.checkVisibility()
        && n.tabIndex !== 0).map(n => n.outerHTML.slice(0, 120))"""
NOT_PRINTED = """
    .bd-sidebar-primary, .bd-sidebar-secondary, .bd-header-article, .prev-next-footer,
    .take-along, button.copybtn"""
FOCUSED = """() => {
    const wanted = 'a[href], button, summary, input';
    window.visited = new Map();
    document.addEventListener('focusin', ({target}) => {
        if (!target.matches(wanted) || visited.has(target)) return;
        const {boxShadow, outlineStyle} = getComputedStyle(target);
        visited.set(target, boxShadow !== 'none' || outlineStyle !== 'none');
    });
    return [...document.querySelectorAll(wanted)].filter(n => n.tabIndex >= 0
        && n.checkVisibility({visibilityProperty: true}) && !n.disabled
        && !n.closest('dialog')).length;
}"""


@each_page
def test_page_is_complete_in_both_colours(visit, address, name):
    """Nothing in the console, pictures and formulas there, no request to elsewhere.

    Pictures move nothing when they come, and maps that respond follow the colours.
    """
    page = visit(f"{name}.html")
    before = page.evaluate(BOXES)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
        assert page.evaluate(PICTURES) == []
        viewers = page.locator("attention-viewer")
        dark = page.locator("attention-viewer .frame.dark")
        expect(dark).to_have_count(viewers.count() * (scheme == "dark"))
    assert not {*before} ^ {*page.evaluate(BOXES)}
    formulas, typeset, errors = page.evaluate(FORMULAS)
    assert formulas == typeset and errors == 0
    away = [u for u in page.asked if not u.startswith((address, "data:", "blob:"))]
    assert not away and not page.complaints


@each_page
def test_page_fits_a_phone(visit, name):
    """Only boxes scroll sideways, and the keyboard reaches these."""
    page = visit(f"{name}.html", viewport=NARROW)
    list_all(page.evaluate(TOO_WIDE))
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    page.wait_for_function(f"({UNREACHABLE})().length === 0")


@each_page
def test_axe_finds_nothing_serious(visit, name):
    """In both colours, with every answer and every extra open."""
    page = visit(f"{name}.html")
    page.evaluate("document.querySelectorAll('.show-extras').forEach(n => n.click())")
    page.evaluate("document.querySelectorAll('details').forEach(n => n.open = true)")
    list_all(serious_in_both_colours(page))


def test_dark_figures_are_inverted_and_photos_are_not(visit):
    """The page shows its own ground where paper was."""
    page = visit("notebooks/attention_torch.html", color_scheme="dark")
    figure = page.locator(".tag_figure img.dark-light").first
    expect(figure).to_have_css("filter", "invert(1) hue-rotate(180deg)")
    expect(figure).to_have_css("mix-blend-mode", "screen")
    page.emulate_media(color_scheme="light")
    expect(figure).to_have_css("filter", "none")
    page.emulate_media(color_scheme="dark")
    figure.evaluate("n => n.classList.replace('drawn', 'photo')")
    expect(figure).to_have_css("filter", "none")


def test_print_shows_the_article_only_and_is_light(visit):
    page = visit("book/playground.html", color_scheme="dark")
    page.evaluate(
        """() => addEventListener('beforeprint', () => {
            window.printed = [document.documentElement.dataset.theme,
                getComputedStyle(document.body).backgroundColor];
        })"""
    )
    page.pdf()
    assert page.evaluate("printed") == ["light", "rgb(255, 255, 255)"]
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.emulate_media(media="print")
    expect(page.locator(NOT_PRINTED).filter(visible=True)).to_have_count(0)
    assert page.locator("article").bounding_box()["width"] > 0.75 * WIDE["width"]


@pytest.mark.parametrize("name", ["notebooks/warmup_torch", "book/glossary"])
def test_tab_reaches_every_control_and_shows_the_focus(visit, name):
    page = visit(f"{name}.html")
    reachable = page.evaluate(FOCUSED)
    for _ in range(reachable + 150):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
    visited = page.evaluate(
        "[...visited].map(([n, seen]) => [seen, n.outerHTML.slice(0, 120)])"
    )
    list_all(html for seen, html in visited if not seen)
    assert len(visited) >= reachable
