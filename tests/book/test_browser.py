"""The built book in Chromium: pages in both colours, on a phone, printed."""

import re

import pytest
from playwright.sync_api import expect

import pages
from browsing import (
    DRAWN,
    NARROW,
    WIDE,
    by_page,
    release,
    serious_in_both_colours,
)

pytestmark = pytest.mark.book
PAGES = [*pages.toc(), "search", "404"]
# Twins share most of their text: what is looked at for long is one of the two, in turn.
TWINS = [name for name in PAGES if pages.side_of(name)]
SKIPPED = {*TWINS[1::4], *TWINS[2::4]}  # PyTorch of the first, JAX of the second, …
each_page = by_page(PAGES)
each_text = by_page([name for name in PAGES if name not in SKIPPED])


def count_viewers(page_name):
    """How many maps that respond a page shows, by its source."""
    source = pages.ROOT / f"{page_name}.py"
    if not source.exists():
        return int(page_name == "book/playground")
    return source.read_text("utf-8").count("\nviewer.attention(")


SCHEMES = ("light", "dark")

FIGURES = "**/_images/*"
BOXES = """() => [
        ...document.querySelectorAll('article :is(section, .cell_output, img)')]
    .map(node => [node, node.getBoundingClientRect()])
    .map(([node, {x, y, width, height}]) => [x, y, width, height].map(Math.round)
        + ` ${node.id || node.getAttribute('src') || node.textContent.trim()}`
            .slice(0, 99))"""
PICTURES = """async () => {
    const all = [...document.querySelectorAll('article img')];
    all.forEach(image => { image.loading = 'eager'; });
    await Promise.all(all.map(image => image.decode().catch(() => null)));
    return all.filter(image => image.checkVisibility()).map(image => ({
        src: image.getAttribute('src').slice(0, 80),
        loaded: image.naturalWidth > 0,
        filter: getComputedStyle(image).filter,
        sized: image.hasAttribute('width') && image.hasAttribute('height'),
    }));
}"""
FORMULAS = """() => {
    const count = what => document.querySelectorAll(`article ${what}`).length;
    const copy = document.querySelector('article')?.cloneNode(true);
    copy?.querySelectorAll('pre, code, mjx-container').forEach(n => n.remove());
    return [count('.math'), count('.math mjx-container'),
        count('mjx-merror') + count('[data-mml-node=merror]'), copy?.textContent];
}"""
CUT = """() => [...document.querySelectorAll('article div.math mjx-container')].filter(
    n => n.scrollWidth > n.clientWidth).map(n => n.textContent.slice(0, 80))"""
TOO_WIDE = """() => {
    const inBox = n => n.tagName !== 'ARTICLE' && (inBox(n.parentElement)
        || /auto|scroll/.test(getComputedStyle(n.parentElement).overflowX));
    return [document.documentElement.scrollWidth,
        [...document.querySelectorAll('article *')].filter(
            n => n.getBoundingClientRect().right > innerWidth + 1 && !inBox(n))
        .map(n => n.outerHTML.slice(0, 120)).slice(0, 3)];
}"""
SILENT = """() => [...document.querySelectorAll('article *')].filter(
        n => n.scrollWidth > n.clientWidth + 1 && n.clientWidth > 40
        && /auto|scroll/.test(getComputedStyle(n).overflowX) && n.checkVisibility())
    .filter(n => n.tabIndex !== 0 || getComputedStyle(n).maskImage === 'none')
    .map(n => n.outerHTML.slice(0, 120)).slice(0, 3)"""
SIZES = """() => [...document.querySelectorAll('article .cell_output img')]
    .filter(i => i.checkVisibility() && !i.getRootNode().host)
    .map(i => [i.src.split('/').pop(), i.clientWidth, i.clientHeight,
        ...['width', 'height'].map(name => Number(i.getAttribute(name)))])"""
LOUD = """() => [...document.querySelectorAll('.cell:is(.tag_say, .tag_figure)')]
    .filter(cell => {
        const output = cell.querySelector('.cell_output'), range = new Range();
        const walk = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
        const boxes = [...output.querySelectorAll('img, attention-viewer')]
            .filter(n => n.checkVisibility()).map(n => n.getBoundingClientRect());
        while (walk.nextNode()) {
            range.selectNodeContents(walk.currentNode);
            if (walk.currentNode.textContent.trim())
                boxes.push(...range.getClientRects());
        }
        const fold = cell.querySelector('details.hide');
        const {left, right, top, bottom} = fold.querySelector('summary')
            .getBoundingClientRect();
        return fold.getBoundingClientRect().height > 0 || right - left > 80
            || boxes.some(box => box.left < right - 1 && box.right > left + 1
                && box.top < bottom - 2 && box.bottom > top + 2);
    }).map(cell => cell.querySelector('.cell_output').textContent.trim().slice(-60))"""
NOT_PRINTED = """
    .bd-sidebar-primary, .bd-sidebar-secondary, .bd-header-article, .prev-next-footer,
    .take-along, button.copybtn"""
FOCUSED = """() => {
    const wanted = 'a[href], button, summary, input';
    window.visited = new Map();
    document.addEventListener('focusin', ({target}) => {
        if (!target.matches(wanted) || visited.has(target)) return;
        const style = getComputedStyle(target);
        const cut = getComputedStyle(target.parentElement).overflow === 'hidden'
            && parseFloat(style.outlineOffset) > -parseFloat(style.outlineWidth);
        visited.set(target, style.boxShadow !== 'none'
            || style.outlineStyle !== 'none' && !cut);
    });
    return [...document.querySelectorAll(wanted)].filter(n => n.tabIndex >= 0
        && n.checkVisibility({visibilityProperty: true}) && !n.disabled
        && !n.closest('dialog')).length;
}"""


@each_page
def test_page_loads_without_errors_and_pictures_move_nothing(visit, page_name):
    """Nothing in the console, no failed request, and room kept free for pictures.

    They are held back until formulas are set; when they come, no box changes.
    """
    page = visit(page_name, fresh=True, hold=FIGURES)
    page.evaluate(DRAWN)
    before = page.evaluate(BOXES)
    release(page)
    pictures = page.evaluate(PICTURES)
    page.evaluate(DRAWN)
    moved = {*before} ^ {*page.evaluate(BOXES)}
    assert not moved, f"{page_name}: pictures move {sorted(moved)[:6]}"
    assert pictures or not page_name.startswith("notebooks/"), page_name
    assert not page.complaints, f"{page_name}: {page.complaints}"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_colours_are_chosen_before_anything_is_drawn(new_reader, scheme):
    """So that of two pictures, one for each, never both are shown."""
    page = new_reader(color_scheme=scheme)
    page.add_init_script(
        """document.addEventListener('DOMContentLoaded',
            () => { window.early = document.documentElement.dataset.theme; })"""
    )
    page.open("notebooks/warmup_torch.html")
    assert page.evaluate("early") == scheme


@each_page
def test_pictures_load_and_no_request_leaves_the_host(visit, address, page_name):
    """Every picture loads, and neither colour scheme dims or inverts it."""
    for scheme in SCHEMES:
        page = visit(page_name, scheme=scheme)
        pictures = page.evaluate(PICTURES)
        for picture in pictures:
            assert picture["loaded"], f"{page_name}: {picture['src']} did not load"
            assert picture["sized"], f"{page_name}: {picture['src']} has no size"
            assert picture["filter"] == "none", f"{page_name}, {scheme}: {picture}"
        assert pictures or not page_name.startswith("notebooks/"), page_name
    here = (address, "data:", "blob:")
    away = [url for url in page.asked if not url.startswith(here)]
    assert not away, f"{page_name} asks other hosts: {away}"
    assert len(page.asked) > 5


@each_page
def test_formulas_are_typeset(visit, page_name):
    formulas, typeset, errors, prose = visit(page_name).evaluate(FORMULAS)
    assert formulas == typeset, f"{page_name}: {typeset} of {formulas} formulas typeset"
    assert errors == 0, f"{page_name}: {errors} formulas with an error"
    assert formulas >= 2 or page_name != "book/notation"
    for sign in ("$$", "\\frac", "\\sum", "\\("):
        assert sign not in (prose or ""), f"{page_name}: raw {sign!r} in the text"


@each_page
def test_formulas_fit_a_wide_screen(visit, page_name):
    """On a phone they scroll; here nothing would tell that they go on."""
    cut = visit(page_name).evaluate(CUT)
    assert not cut, f"{page_name}: formulas are cut {cut}"


@each_text
def test_page_fits_a_phone(visit, page_name):
    """Only boxes scroll sideways; pictures keep their shape and stay readable."""
    for width in (NARROW["width"], 320):
        page = visit(page_name, size={"width": width, "height": 844})
        found, wide = page.evaluate(TOO_WIDE)
        assert found <= width, f"{page_name} is {found} pixels wide: {wide}"
        assert not wide, f"{page_name} at {width} pixels: {wide}"
        for name, shown, height, drawn_width, drawn_height in page.evaluate(SIZES):
            wanted, least = shown * drawn_height / drawn_width, 0.74 * drawn_width
            assert abs(height - wanted) <= 2, f"{page_name}, {name}: {shown} x {height}"
            assert shown >= min(least, 440), f"{page_name}, {name}: {shown} wide"
        page.evaluate(DRAWN)
        silent = page.evaluate(SILENT)
        assert not silent, (
            f"{page_name} at {width} pixels is cut without a hint: {silent}"
        )


@each_text
def test_code_of_figures_and_sentences_unfolds_from_a_corner(visit, page_name):
    """What unfolds it takes no line of its own, and covers neither text nor picture."""
    for size in (WIDE, NARROW):
        page = visit(page_name, size=size)
        page.evaluate(DRAWN)
        assert not page.evaluate(LOUD), f"{page_name} at {size['width']} pixels"


def test_a_formula_that_is_a_little_too_wide_is_set_smaller(visit):
    """Equation (1), with its number, fits a phone."""
    page = visit("notebooks/attention_torch", size=NARROW, fresh=True)
    box = page.locator("article div.math", has_text="Attention").first
    page.evaluate(DRAWN)
    assert box.evaluate("n => n.scrollWidth <= n.clientWidth + 1")
    small = box.locator("mjx-container").evaluate("n => n.style.fontSize")
    page.set_viewport_size(WIDE)
    page.evaluate(DRAWN)
    assert box.locator("mjx-container").evaluate("n => n.style.fontSize") != small


def test_on_a_phone_only_the_dictionary_names_the_framework_of_an_entry(visit):
    """Its entries stand below each other there; tables of cells have other columns."""
    named = """() => [...document.querySelectorAll('article td')].filter(cell =>
        /JAX|PyTorch/.test(getComputedStyle(cell, '::before').content)).length"""
    assert visit("book/comparison", size=NARROW).evaluate(named)
    assert not visit("notebooks/masked_jax", size=NARROW).evaluate(named)


def test_what_scrolls_fades_where_there_is_more(visit):
    """At the right, at both edges, at the left; the keyboard can reach it."""
    page = visit("notebooks/attention_torch", size=NARROW, fresh=True)
    box = page.locator("article pre[tabindex='0']").first
    expect(box).to_have_class(re.compile("more-right"))
    box.evaluate("node => node.scrollTo({left: 30, behavior: 'instant'})")
    expect(box).to_have_class(re.compile("(?=.*more-left).*more-right"))
    box.evaluate("node => node.scrollTo({left: 1e4, behavior: 'instant'})")
    expect(box).not_to_have_class(re.compile("more-right"))
    expect(box).to_have_class(re.compile("more-left"))


@each_page
def test_viewers_respond(visit, page_name):
    """In both colour schemes, on a wide screen and on a phone, within their column."""
    for size, scheme in ((WIDE, "light"), (NARROW, "dark")):
        page = visit(page_name, size=size, scheme=scheme)
        expect(page.locator("attention-viewer")).to_have_count(count_viewers(page_name))
        for viewer in page.locator("attention-viewer").all():
            expect(viewer.locator(".frame.dark")).to_have_count(int(scheme == "dark"))
            viewer.locator("[role=row][data-query='2'] [data-key='1']").first.click()
            page.keyboard.press("ArrowDown")
            row = viewer.locator("[role=row][aria-selected=true]").first
            expect(row).to_have_attribute("data-query", "3")
            edge, *panels = viewer.evaluate(
                """n => [n, ...n.shadowRoot.querySelectorAll('.panel')].map(
                    part => part.getBoundingClientRect().right)"""
            )
            assert max(panels) <= edge + 1
    assert not page.complaints, f"{page_name}: {page.complaints}"


@each_text
def test_print_shows_the_article_only(visit, page_name):
    page = visit(page_name)
    page.emulate_media(media="print")
    printed = page.evaluate(
        """selector => [...document.querySelectorAll(selector)]
            .filter(n => n.checkVisibility({visibilityProperty: true})
                && n.getBoundingClientRect().width > 0).map(n => n.className)""",
        NOT_PRINTED,
    )
    assert not printed, f"{page_name} prints {printed}"
    if page_name != "search":  # its results are no article
        width = page.locator("article").bounding_box()["width"]
        assert width > 0.75 * WIDE["width"], f"{page_name}: {width} pixels wide"


@each_text
def test_axe_finds_nothing_serious(visit, page_name):
    """In both colours, with every answer open. It comes last: it changes the page."""
    page = visit(page_name)
    page.evaluate("document.querySelectorAll('details').forEach(n => n.open = true)")
    assert serious_in_both_colours(page) == {"light": [], "dark": []}, page_name


def test_axe_would_find_faults(visit):
    """Pale text, also in code, and a picture without alt text, in what axe is shown."""
    page = visit("book/notation", fresh=True)
    page.locator("article h1").evaluate(
        """n => n.insertAdjacentHTML('afterend', `<img src=logo.png>
            <p style='color: #999; background: #aaa'>pale</p>
            <pre><span style='color: #888; background: #999'>pale</span></pre>`)"""
    )
    found = serious_in_both_colours(page)
    assert [line.partition(" ")[0] for line in found["light"]] == [
        "color-contrast",
        "image-alt",
    ]
    assert "and 1 more" in found["light"][0] and len(found["dark"]) == 1


def test_search_icon_does_not_cover_the_text(visit):
    page = visit("search")
    icon = page.locator(
        "article form i, .bd-main form.bd-search i"
    ).first.bounding_box()
    field = page.locator(".bd-main form.bd-search input").first
    indent = field.evaluate("n => parseFloat(getComputedStyle(n).paddingLeft)")
    assert icon["x"] + icon["width"] <= field.bounding_box()["x"] + indent


def test_dark_pages_are_printed_light(visit):
    """By the browser and by the theme's button; afterwards the screen is dark again."""
    page = visit("book/playground", scheme="dark", fresh=True)
    page.evaluate(
        """() => addEventListener('beforeprint', () => {
            const viewer = document.querySelector('attention-viewer').shadowRoot;
            window.printed = [document.documentElement.dataset.theme,
                getComputedStyle(document.body).backgroundColor,
                viewer.querySelector('.frame').classList.contains('dark')];
        })"""
    )
    page.pdf()
    assert page.evaluate("printed") == ["light", "rgb(255, 255, 255)", False]
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    # The theme's button prints from a script, so that nothing comes in between; a
    # browser without a printer never says that it is done.
    page.evaluate("() => { printed = null; print(); }")
    assert page.evaluate("printed") == ["light", "rgb(255, 255, 255)", False]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@by_page(["notebooks/warmup_torch", "book/glossary"])
def test_tab_reaches_every_control_and_shows_the_focus(visit, page_name):
    page = visit(page_name, fresh=True)
    reachable = page.evaluate(FOCUSED)
    for _ in range(reachable + 150):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
    visited = page.evaluate(
        "[...visited].map(([n, seen]) => [seen, n.outerHTML.slice(0, 120)])"
    )
    invisible = [html for seen, html in visited if not seen]
    assert not invisible, f"{page_name}: the focus cannot be seen on {invisible[:3]}"
    assert len(visited) >= reachable, f"{page_name}: {len(visited)} of {reachable}"


def test_answers_open_from_the_keyboard(visit):
    page = visit("notebooks/attention_jax", fresh=True)
    answer = page.locator("article details.hide").last
    assert not answer.evaluate("node => node.open")
    answer.locator("summary").focus()
    page.keyboard.press("Enter")
    assert answer.evaluate("node => node.open")


def test_all_checks_unfold_at_once_and_stay_so(new_reader):
    """The button says how many there are; the choice holds on the next page, too."""
    page = new_reader()
    page.open("notebooks/attention_jax.html")
    checks = page.locator("article .tag_check details")
    button = page.locator("button.unfold-checks")
    expect(button).to_have_text(f"Unfold all {checks.count()} checks")
    for chapter, opened in (("attention_torch", True), ("encoder_jax", False)):
        button.focus()
        page.keyboard.press("Enter")
        page.open(f"notebooks/{chapter}.html")
        found = checks.evaluate_all("all => all.map(node => node.open)")
        assert found and {*found} == {opened}
        expect(button).to_have_text(
            re.compile("^Fold all" if opened else "^Unfold all")
        )
