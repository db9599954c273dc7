"""The attention viewer: what it shows, and what a reader can do with it."""

import numpy as np
import pytest
from browsing import list_all, serious, watch
from playwright.sync_api import expect

from helpers.show import viewer

pytestmark = pytest.mark.book
WORDS = ["the", "cat", "slept", "because", "it", "was", "tired"]
NASTY = ["</script>", "<b>", '"', "'", "&amp;", "<!--", "]]>", "$x^", "é🙂"]


def weights(*shape, seed=0):
    """Random rows that sum to one."""
    exp = np.exp(2 * np.random.default_rng(seed).normal(size=shape))
    return exp / exp.sum(axis=-1, keepdims=True)


TOY, LARGE = weights(1, 1, 7, 7), weights(3, 2, 4, 6, 6, seed=2)
PICTURES = np.random.default_rng(1).integers(256, size=(2, 3, 8, 8), dtype=np.uint8)
VIEWS = {
    "toy": lambda: viewer.attention(TOY, WORDS, about="a toy sentence", query=4),
    "large": lambda: viewer.attention(
        {"before": LARGE, "after": LARGE[::-1]}, [list("abcdef"), list("ghijkl")],
        sequences=["first", "second"], about="two maps", high=0.5,
    ),
    "one of many": lambda: viewer.attention(LARGE[:, 0], about="numbers"),
    "nasty": lambda: viewer.attention(
        weights(1, 1, 9, 9), [f"{x}<img src=x onerror='alert(1)'>" for x in NASTY],
        about="<img src=x onerror='alert(1)'>",
    ),
    "pictures": lambda: viewer.attention(
        weights(1, 2, 1, 3, 3), ["cat", "dog", "<i>"], about="pictures",
        pictures=PICTURES,
    ),
    "blind": lambda: viewer.attention(
        np.tril(np.ones((1, 1, 3, 3)), -1) / [[[[1], [1], [2]]]], about="blind"
    ),
}  # fmt: skip
PLACE = """() => {
    const node = document.querySelector('attention-viewer').shadowRoot.activeElement;
    return [node.parentNode.dataset.query, node.dataset.key].map(Number);
}"""
PIXELS = """n => Object.values(
    n.getContext('2d').getImageData(0, 0, n.width, n.height).data)"""


@pytest.fixture
def page_of(windows):
    """A new page that holds the named viewers, each as Jupyter would put it there."""
    opened = []

    def make(*names, style="", **options):
        page = watch(windows(**options).new_page())
        opened.append(page)
        body = "".join(f"<h2>{n}</h2>{VIEWS[n]()._repr_html_()}" for n in names)
        page.set_content(
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Viewers</title>"
            f"<meta name=viewport content='width=device-width'>"
            f"<body style='font-family: sans-serif; {style}'><main><h1>V</h1>{body}"
        )
        return page

    yield make
    for page in opened:
        page.close()


def chosen_row(page, number=0, panel=0):
    """The row that is lit, its weights, where its thickest line goes, and the words."""
    box = page.locator("attention-viewer").nth(number).locator(".panel").nth(panel)
    row = box.locator("[role=row][aria-selected=true]")
    labels = "all => all.map(n => Number(n.ariaLabel))"
    widths = "all => all.map(n => Number(n.getAttribute('stroke-width')))"
    return {
        "query": int(row.get_attribute("data-query")),
        "weights": row.locator("[role=gridcell]").evaluate_all(labels),
        "thickest": int(np.argmax(box.locator("line").evaluate_all(widths))),
        "said": box.locator(".readout").inner_text(),
    }


def choose(panel, what, name):
    panel.locator("fieldset", has_text=what).locator("label", has_text=name).click()


def test_rows_follow_the_mouse(page_of):
    """The row of the map, the lines and the sentence tell the same, row by row."""
    page = page_of("toy")
    assert chosen_row(page)["query"] == 4  # what was asked for at first
    for query in (0, 6, 3):
        page.locator(f"[role=row][data-query='{query}'] [data-key='2']").hover()
        found, row = chosen_row(page), TOY[0, 0, query]
        assert found["query"] == query and found["thickest"] == row.argmax()
        np.testing.assert_allclose(found["weights"], row, atol=0.0051)
        best = f"key {row.argmax()}, “{WORDS[row.argmax()]}” ({row.max():.2f})"
        assert (
            f"Query {query}, “{WORDS[query]}”: most weight on {best}" in found["said"]
        )
    page.mouse.move(1, 1)  # a mouse that only passed by changes nothing
    assert chosen_row(page)["query"] == 4
    page.locator("[role=row][data-query='1'] [data-key='2']").click()
    page.mouse.move(1, 1)
    assert chosen_row(page)["query"] == 1
    assert page.complaints == []


def test_every_choice_works_by_keyboard(page_of):
    """Tab to a chooser or to the map; arrows inside; the map is a single stop."""
    page = page_of("large")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("radio", name="second").is_checked()
    for _ in range(4):  # map, layer, head of the first panel, then its cells
        page.keyboard.press("Tab")
    for key, place in [
        ("Home", [0, 0]), ("ArrowDown", [1, 0]), ("ArrowRight", [1, 1]),
        ("End", [1, 5]), ("ArrowRight", [1, 5]), ("ArrowUp", [0, 5]),
    ]:  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate(PLACE) == place
        assert {chosen_row(page, panel=i)["query"] for i in (0, 1)} == {place[0]}


def test_layers_heads_maps_and_sequences_are_chosen(page_of):
    """Every chooser leads to the array that it names; colours are the weights."""
    page = page_of("large")
    left, right = page.locator(".panel").all()
    page.locator("label", has_text="second").click()
    choose(left, "layer", "2")
    choose(left, "head", "3")
    choose(right, "map", "before")
    page.locator("[role=row][data-query='5'] [data-key='0']").first.hover()
    found = [chosen_row(page, panel=i) for i in (0, 1)]
    np.testing.assert_allclose(found[0]["weights"], LARGE[2, 1, 3, 5], atol=0.0051)
    np.testing.assert_allclose(found[1]["weights"], LARGE[0, 1, 0, 5], atol=0.0051)
    assert found[0]["said"].startswith("before, layer 2, head 3. Query 5, “l”")
    pixels = np.array(page.locator("canvas").first.evaluate(PIXELS))
    shares = pixels.reshape(6, 8, 6, 8, 4)[:, 0, :, 0, 3] / 255  # 8 pixels a cell
    np.testing.assert_allclose(shares, np.minimum(1, LARGE[2, 1, 3] / 0.5), atol=0.003)


def test_nasty_labels_are_text(page_of):
    page = page_of("nasty")
    labels = page.locator("[role=rowheader]").all_inner_texts()
    assert labels[1].startswith("<b><img src=x")
    assert page.locator("attention-viewer .frame img").count() == 0
    assert page.complaints == []


def test_screen_readers_get_roles_names_and_values(page_of):
    page = page_of("toy", "blind")
    tree = page.locator("attention-viewer").first.aria_snapshot()
    for part in ('- group "a toy sentence":', '- grid "weights":', "- status: "):
        assert part in tree
    for word in WORDS:
        assert f'- columnheader "{word}"' in tree and f'rowheader "{word}"' in tree
    assert tree.count('gridcell "0.') == 49
    assert "looks at nothing" in chosen_row(page, 1)["said"]


@pytest.mark.parametrize("style", ["", "background: #14181e; color: #ddd"])
def test_axe_finds_nothing_serious_in_both_colours(page_of, style):
    page = page_of(*VIEWS, style=style)
    dark = page.locator(".frame.dark")
    expect(dark).to_have_count(len(VIEWS) if style else 0)
    list_all(serious(page))
    page.evaluate(f"document.body.style.color = '{'black' if style else 'white'}'")
    expect(dark).to_have_count(0 if style else len(VIEWS))


def test_a_new_view_keeps_the_chosen_row(page_of):
    """Within what there is; also where Jupyter has moved the element."""
    page = page_of("toy")
    page.locator("[role=row][data-query='2'] [data-key='1']").click()
    node = page.locator("attention-viewer")
    node.evaluate(
        """n => { const place = n.parentNode; n.remove();
            n.view = {...n.view, about: 'new words'}; place.prepend(n); }"""
    )
    page.mouse.move(1, 1)
    assert chosen_row(page)["query"] == 2
    expect(page.get_by_role("group", name="new words")).to_be_visible()
    node.evaluate(
        """n => n.view = {...n.view, shape: [1, 1, 1, 2, 2],
            maps: [{name: '', weights: [1, 0, 0, 1]}]}"""
    )
    assert chosen_row(page)["query"] == 1


def test_without_scripts_every_map_is_a_picture(page_of):
    page = page_of("large", "pictures", java_script_enabled=False)
    pictures = page.locator("figure img").all()
    assert len(pictures) == 2 * 3 * 4 + 1
    for picture in pictures:
        assert picture.evaluate("n => n.clientWidth") >= 140
    said = page.locator("attention-viewer p").first.inner_text()
    assert said.startswith("two maps (the first of 2 sequences). Queries")
