"""The book for everyone: axe-core, the keyboard, small screens, paper."""

import pytest
from axe_playwright_python.sync_playwright import Axe

import pages
from conftest import WIDE, by_page

pytestmark = pytest.mark.book
PAGES = [*pages.toc(), "search", "404"]
OF_COLOURS = ["color-contrast", "link-in-text-block"]
each_page = by_page(PAGES)

# A word of code looks as every other of its kind does: one of each is enough.
KEEP_ONE_OF_EACH = """() => {
    const seen = new Set();
    for (const word of document.querySelectorAll('pre span')) {
        const path = [];
        for (let n = word; n && n.tagName !== 'DIV'; n = n.parentElement)
            path.push(n.tagName + '.' + n.className);
        const kind = path.join() + word.closest('.cell_output, .cell_input')?.className;
        word.hidden = seen.has(kind);
        if (word.textContent.trim().length > 1) seen.add(kind);  // axe skips one letter
    }
}"""


def axe(page, rules=None):
    """What axe-core calls serious or critical, as lines of text."""
    only = {"runOnly": {"type": "rule", "values": rules}} if rules else {}
    found = Axe().run(
        page,
        options={"resultTypes": ["violations"], **only},
    )
    return [
        f"{v['id']} ({v['impact']}): {v['nodes'][0]['html'][:150]} and "
        f"{len(v['nodes']) - 1} more; {v['nodes'][0]['failureSummary'][:200]}"
        for v in found.response["violations"]
        if v["impact"] in ("serious", "critical")
    ]


@each_page
def test_axe_finds_nothing_serious(visit, page_name):
    """No finding that axe-core calls serious or critical, with every answer open."""
    page = visit(page_name)
    page.emulate_media(reduced_motion="reduce")  # else what is fading in looks pale
    page.evaluate(KEEP_ONE_OF_EACH)
    folded = page.locator("details:not([open])").element_handles()
    for answer in folded:
        answer.evaluate("node => node.open = true")
    found = {"light": axe(page)}
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    found["dark"] = axe(page, OF_COLOURS)
    page.evaluate(
        "document.querySelectorAll('pre span').forEach(n => n.hidden = false)"
    )
    for answer in folded:
        answer.evaluate("node => node.open = false")
    assert found == {"light": [], "dark": []}, f"{page_name}: {found}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("color-contrast", "<p style='color: #999; background: #aaa'>pale</p>"),
        (
            "color-contrast",
            "<pre><span style='color: #888; background: #999'>pale</pre>",
        ),
        ("image-alt", "<img src='x.png'>"),
        ("link-name", "<a href='x.html'></a>"),
    ],
)
def test_axe_finds_what_is_put_there(visit, scheme, kind, fault):
    """So that the test above can fail; structure needs no second look in the dark."""
    page = visit("book/notation", scheme=scheme, fresh=True)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    place = "document.querySelector('article h1').insertAdjacentHTML('afterend', fault)"
    page.evaluate(f"fault => {place}", fault)
    page.evaluate(KEEP_ONE_OF_EACH)
    found = axe(page, OF_COLOURS if kind in OF_COLOURS else None)
    assert [line.partition(" ")[0] for line in found] == [kind]


@each_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 320])
def test_the_text_fits_a_small_screen(visit, page_name, width, scheme):
    """Only what has a box of its own, code, tables, formulas, may be wider."""
    page = visit(page_name, size={"width": width, "height": 844}, scheme=scheme)
    found, wide = page.evaluate(
        """() => {
            const inBox = n => n.tagName !== 'ARTICLE' && (inBox(n.parentElement)
                || /auto|scroll/.test(getComputedStyle(n.parentElement).overflowX));
            return [document.documentElement.scrollWidth,
            [...document.querySelectorAll('article *')]
                .filter(n => n.getBoundingClientRect().right > innerWidth + 1
                    && !inBox(n))
                .map(n => n.outerHTML.slice(0, 120)).slice(0, 3)];
        }"""
    )
    assert found <= width, f"{page_name} is {found} pixels wide: {wide}"
    assert not wide, f"{page_name}: {wide}"


@each_page
def test_pictures_keep_their_shape_and_size_on_a_phone(visit, page_name):
    """Not squeezed, not much smaller than drawn: too wide ones scroll in their box.

    All that are seen, but for those in a viewer, which are as large as its cells.
    """
    page = visit(page_name, size={"width": 390, "height": 844})
    pictures = page.locator("article .cell_output img").evaluate_all(
        """all => all.filter(i => i.checkVisibility() && !i.getRootNode().host)
            .map(i => [i.src.split('/').pop(), i.clientWidth, i.clientHeight,
            ...['width', 'height'].map(name => Number(i.getAttribute(name)))])"""
    )
    for name, width, height, drawn_width, drawn_height in pictures:
        wanted = width * drawn_height / drawn_width
        assert abs(height - wanted) <= 2, f"{page_name}, {name}: {width} x {height}"
        assert width >= min(drawn_width, 440), f"{page_name}, {name}: {width} wide"


def test_the_icon_of_the_search_stands_beside_the_text(visit):
    page = visit("search")
    icon = page.locator(
        "article form i, .bd-main form.bd-search i"
    ).first.bounding_box()
    field = page.locator(".bd-main form.bd-search input").first
    indent = field.evaluate("n => parseFloat(getComputedStyle(n).paddingLeft)")
    assert icon["x"] + icon["width"] <= field.bounding_box()["x"] + indent


@each_page
def test_paper_gets_the_text_alone(visit, page_name):
    """In print there is no side bar, no header and no button; the article is there."""
    page = visit(page_name)
    page.emulate_media(media="print")
    hidden = [
        ".bd-sidebar-primary", ".bd-sidebar-secondary", ".bd-header-article",
        ".prev-next-footer", ".take-along", "button.copybtn",
    ]  # fmt: skip
    for selector in hidden:
        for node in page.locator(selector).all():
            assert not node.is_visible(), f"{page_name} prints {selector}"
    if page_name == "search":
        return  # its results are no article
    box = page.locator("article").bounding_box()
    assert box["width"] > 0.75 * WIDE["width"], f"{page_name}: a column of {box}"


def test_a_dark_page_is_printed_light(visit):
    """By the browser's own printing; afterwards the screen is as dark as before."""
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


@each_page
def test_no_late_picture_moves_the_text(visit, page_name):
    """Every picture keeps its room free, and nothing jumps because of one."""
    page = visit(page_name, fresh=True)
    jumps = page.evaluate(
        """() => new Promise(resolve => {
            const found = [];
            new PerformanceObserver(list => {
                for (const entry of list.getEntries())
                    for (const {node} of entry.sources ?? [])
                        if (node?.closest?.('article') && [...node.querySelectorAll(
                            'img')].some(image => image.checkVisibility()))
                            found.push(node.outerHTML.slice(0, 99));
            }).observe({type: 'layout-shift', buffered: true});
            setTimeout(() => resolve(found), 100);
        })"""
    )
    unsized = page.locator("article img:not([width][height])").count()
    assert unsized == 0, f"{page_name}: {unsized} pictures without a size"
    assert not jumps, f"{page_name}: {jumps}"


@by_page(["notebooks/attention_jax", "book/glossary"])
def test_everything_is_reached_by_keyboard(visit, page_name):
    """Tab visits every visible link and button once, and shows where it is."""
    page = visit(page_name)
    reachable = page.evaluate(
        """() => [...document.querySelectorAll('a[href], button, summary, input')]
            .filter(n => n.checkVisibility({visibilityProperty: true})
                && n.tabIndex >= 0 && !n.disabled && !n.closest('dialog')).length"""
    )
    visited = set()
    for _ in range(reachable + 150):
        page.keyboard.press("Tab")
        state = page.evaluate(
            """() => {
                const node = document.activeElement;
                window.seen ??= new Map();
                if (!seen.has(node)) seen.set(node, seen.size);
                const style = getComputedStyle(node);
                const reachable = node.matches('a[href], button, summary, input');
                const [width, offset] = [style.outlineWidth, style.outlineOffset];
                const cut = node.parentElement
                    && getComputedStyle(node.parentElement).overflow === 'hidden'
                    && parseFloat(offset) > -parseFloat(width);
                const outlined = style.outlineStyle !== 'none' && !cut;
                return [seen.get(node), node.tagName, reachable,
                    outlined || style.boxShadow !== 'none'];
            }"""
        )
        if state[1] == "BODY":
            break
        if state[2]:
            visited.add(state[0])
            assert state[3], f"{page_name}: the focus on {state[1]} cannot be seen"
    assert len(visited) >= reachable, f"{page_name}: {len(visited)} of {reachable}"
