"""The map of the Transformer on the index: every part leads to its section."""

import pytest
from browsing import NARROW, WIDE
from playwright.sync_api import expect

import pages

pytestmark = pytest.mark.book
INDEX = "book/index.html"
LINKS = "a.part:visible"
LEGIBLE = """links => links.flatMap(link => {
    const [box, words] = [link.querySelector('rect, circle'),
        [...link.querySelectorAll('text')].at(-1)];
    const [{left, right}, text] = [box, words].map(n => n.getBoundingClientRect());
    const scale = link.ownerSVGElement.getScreenCTM().a;
    const fits = left <= text.left && text.right <= right && left >= 0
        && right <= document.documentElement.clientWidth
        && scale * parseFloat(getComputedStyle(words).fontSize) >= 11.5;
    return fits ? [] : [link.ariaLabel];
})"""


def test_the_map_follows_the_switch_and_a_part_leads_on(visit):
    """By the mouse and by the keyboard."""
    page = visit(INDEX)
    for side in pages.SIDES:
        page.locator(f"button[data-choose={side}]").click()
        shown = page.locator(".transformer-map:visible")
        expect(shown).to_have_attribute("data-side", side)
    part = page.locator(f"{LINKS}:has(rect)").last
    goal = part.get_attribute("href").removeprefix("..")
    part.locator("rect").click()
    page.wait_for_url(f"**{goal}")
    page.open(INDEX)
    page.locator(LINKS).nth(1).focus()
    page.keyboard.press("Shift+Tab")
    expect(page.locator(LINKS).first).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/notebooks/*_torch.html*")
    assert not page.complaints


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "phone"])
def test_the_map_fits_and_is_legible(visit, size):
    page = visit(INDEX, viewport=size)
    assert page.locator(LINKS).evaluate_all(LEGIBLE) == []
