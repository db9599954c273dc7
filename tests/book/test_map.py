"""The map of the Transformer on the index: every part leads to its section."""

import re

import pytest
from playwright.sync_api import expect

import pages
import transformer_map
from browsing import NARROW, WIDE
from reading import article

pytestmark = pytest.mark.book
by_side = pytest.mark.parametrize("side", pages.SIDES)
CHAPTERS = pages.chapters()
LINKS = "a.part:visible"
EDGES = """links => links.map(link => [
    link.querySelector('rect, circle'), [...link.querySelectorAll('text')].at(-1),
].map(part => part.getBoundingClientRect()).map(({left, right}) => [left, right]))"""
# What is drawn in a page, as red, green and blue, whatever the colour is called.
CONTRASTS = """links => links.map(link => {
    const paper = document.createElement('canvas').getContext('2d');
    const light = colour => {
        paper.fillStyle = colour;
        paper.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...paper.getImageData(0, 0, 1, 1).data].slice(0, 3).map(
            v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const fill = name => light(getComputedStyle(link.querySelector(name)).fill);
    const [dark, bright] = [fill('text'), fill('rect, circle')].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
})"""


@by_side
def test_every_part_leads_to_its_section(new_reader, side):
    """In the framework that is chosen; a rectangle and a circle are clicked."""
    page = new_reader()
    page.open("book/index.html")
    page.locator(f"button[data-choose={side}]").click()
    links = page.locator(LINKS).evaluate_all(
        "all => all.map(a => [a.ariaLabel, a.getAttribute('href')])"
    )
    built = [part for part in transformer_map.SECTIONS.values() if part[0] in CHAPTERS]
    assert len(links) >= len(built) >= 16
    for name, address in links:
        name_of_page, _, anchor = address.removeprefix("../").partition("#")
        assert re.fullmatch(rf"notebooks/\w+_{side}\.html", name_of_page), address
        content = article(name_of_page.removesuffix(".html"))
        section = content.find(id=anchor) if anchor else content
        heading = " ".join(section.find(["h1", "h2"]).get_text().split())
        assert name.split(": ", 1)[1] in heading, address
    for shape in ("rect", "circle"):
        place = page.locator(f"{LINKS}:has({shape})").last
        address = place.get_attribute("href").removeprefix("..")
        place.locator(shape).first.click()
        page.wait_for_url(f"**{address}")
        _, _, anchor = address.partition("#")
        start = f"[id='{anchor}'] > :is(h1, h2)" if anchor else "article h1"
        expect(page.locator(start).first).to_be_in_viewport()
        page.open("book/index.html")
    assert not page.complaints


@by_side
def test_keyboard_reaches_every_part_in_the_order_of_the_drawing(new_reader, side):
    page = new_reader()
    page.open("book/index.html")
    page.locator(f"button[data-choose={side}]").click()
    expected = page.locator(LINKS).evaluate_all("all => all.map(a => a.ariaLabel)")
    page.locator(LINKS).first.focus()
    reached = []
    for _ in expected:
        reached.append(page.evaluate("document.activeElement.ariaLabel"))
        page.keyboard.press("Tab")
    assert reached == expected
    assert all(re.fullmatch(r"\S.*: \S.*", name) for name in reached)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**_{side}.html*")


def test_one_map_is_shown_and_it_follows_the_switch(new_reader):
    page = new_reader()
    page.open("book/index.html")
    maps = page.locator(".transformer-map")
    assert maps.count() == 2
    for side in ("torch", "jax"):
        page.locator(f"button[data-choose={side}]").click()
        shown = page.locator(".transformer-map:visible")
        expect(shown).to_have_count(1)
        expect(shown).to_have_attribute("data-side", side)


def test_without_scripts_both_maps_are_shown(new_reader):
    page = new_reader(java_script_enabled=False)
    page.open("book/index.html")
    for side, name in pages.NAMES.items():
        shown = page.locator(f".transformer-map[data-side={side}]")
        expect(shown.locator("p")).to_have_text(f"In {name}")
        expect(shown.locator("svg")).to_be_visible()
    links = page.locator(LINKS)
    assert links.count() % 2 == 0
    links.last.locator("rect").click()
    page.wait_for_url("**/notebooks/*_torch.html*")


def test_only_what_the_book_builds_is_a_link(visit):
    """A chapter that is not there leads nowhere; every other part is a link."""
    page = visit("book/index")
    later = page.locator(".transformer-map:visible .part.later")
    missing = [
        part for part, (name, _) in transformer_map.SECTIONS.items()
        if name not in CHAPTERS
    ]  # fmt: skip
    assert later.count() == len(missing)
    assert page.locator(LINKS).count() > len(transformer_map.SECTIONS) - len(missing)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_map_fits_and_is_legible(visit, size):
    page = visit("book/index", size=size)
    width = page.evaluate("document.documentElement.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator(".transformer-map:visible svg").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    scale = box["width"] / transformer_map.WIDTH
    sizes = page.locator(".transformer-map:visible text").evaluate_all(
        "all => all.map(t => parseFloat(getComputedStyle(t).fontSize))"
    )
    assert min(sizes) * scale >= 11.5
    for (left, right), (start, end) in page.locator(LINKS).evaluate_all(EDGES):
        assert left <= start and end <= right


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_of_the_map_stand_out(visit, scheme):
    page = visit("book/index", scheme=scheme)
    ratios = page.locator(LINKS).evaluate_all(CONTRASTS)
    assert min(ratios) >= 4.5
