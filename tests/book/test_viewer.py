"""The attention viewer: what it takes and refuses, and what a reader can do with it."""

import io
import json
import re
from base64 import b64decode

import numpy as np
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from playwright.sync_api import expect

from browsing import DRAWN, NARROW, new_context, serious, watch
from helpers.show import viewer
from sides import jax_side, torch_side

WORDS = ["the", "cat", "slept", "because", "it", "was", "tired"]


def weights(*shape, seed=0):
    """Random rows that sum to one."""
    exp = np.exp(2 * np.random.default_rng(seed).normal(size=shape))
    return exp / exp.sum(axis=-1, keepdims=True)


def random_pictures(*shape):
    return np.random.default_rng(1).integers(256, size=shape, dtype=np.uint8)


def shown(view):
    """What the element says, as the script reads it, and the element."""
    node = BeautifulSoup(viewer.element(view.view), "html.parser").find()
    return json.loads(node["data-view"]), node


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 4, 3, 5, 7), (1, 1, 1, 1)])
def test_maps_of_both_shapes_arrive_unchanged(shape):
    maps = weights(*shape)
    data, _ = shown(viewer.attention(maps, about="maps"))
    layers, b, h, q, k = data["shape"]
    assert (layers, h, q, k) == (shape[0], *shape[-3:]) and b == (
        shape[1] if len(shape) == 5 else 1
    )
    np.testing.assert_allclose(data["maps"][0]["weights"], maps.ravel(), atol=5.1e-5)
    assert data["queries"] == [[str(i) for i in range(q)]] * b
    assert data["keys"] == [[str(i) for i in range(k)]] * b


@pytest.mark.parametrize("side", [jax_side, torch_side], ids=["jax", "torch"])
def test_arrays_of_both_frameworks_are_taken(side):
    maps = weights(1, 2, 3, 3)
    data, _ = shown(viewer.attention(side.tensor(maps), about="maps"))
    np.testing.assert_allclose(data["maps"][0]["weights"], maps.ravel(), atol=6e-5)


def test_sixteen_maps_stay_within_200_kilobytes():
    view = viewer.attention(weights(4, 4, 16, 16), about="maps")
    assert len(view._repr_html_().encode()) <= 200_000
    assert repr(view).startswith("attention maps: 4 layers, 1 sequences, 4 heads")


GOOD, SET = weights(2, 3, 4, 4), np.zeros((4, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"maps": GOOD[0]}, ValueError, "l h q k or l b h q k, got (3, 4, 4)"),
        ({"maps": weights(4)}, ValueError, "got (4,)"),
        ({"maps": GOOD[:0]}, ValueError, "got (0, 3, 4, 4)"),
        ({"maps": {}}, ValueError, "expected at least one array of weights"),
        ({"maps": 5 * GOOD}, ValueError, "rows that sum to 1 or 0"),
        ({"maps": GOOD / 2}, ValueError, "a row that sums to 0.5"),
        ({"maps": -GOOD}, ValueError, "at least 0"),
        ({"maps": GOOD * np.nan}, ValueError, "got nan to nan"),
        ({"maps": GOOD > 0}, TypeError, "to hold numbers, got bool"),
        ({"maps": GOOD.astype(str)}, TypeError, "to hold numbers"),
        (
            {"maps": {"a": GOOD, "b": GOOD[:1]}},
            ValueError,
            "maps of one shape, got [(1",
        ),
        ({"maps": {"a": GOOD, "b": -GOOD}}, ValueError, "the maps 'b' at least 0"),
        (
            {"maps": weights(9, 9, 16, 16)},
            ValueError,
            "at most 20,000 weights, got 20,7",
        ),
        ({"queries": list("abc")}, ValueError, "4 labels of queries in 1 sequences"),
        ({"queries": [list("abcd")] * 2}, ValueError, "in 1 sequences, got [4, 4]"),
        ({"queries": "abcd"}, ValueError, "expected a list of labels"),
        ({"keys": list("abcde")}, ValueError, "4 labels of keys"),
        ({"high": 0}, ValueError, "high to lie in (0, 1], got 0"),
        ({"high": 1.5}, ValueError, "got 1.5"),
        ({"layer": 2}, ValueError, "expected a layer from 0 to 1, got 2"),
        ({"query": -1}, ValueError, "expected a query from 0 to 3, got -1"),
        ({"sequences": ["a", "b"]}, ValueError, "1 names of sequences, got 2"),
        (
            {"pictures": SET[:3]},
            ValueError,
            "of 4 elements in 1 sequences, got uint8 of",
        ),
        ({"pictures": SET / 1.0}, ValueError, "expected uint8 pictures"),
    ],
)
def test_invalid_arguments_raise_a_short_error(arguments, error, says):
    with pytest.raises(error, match=re.escape(says)) as caught:
        viewer.attention(**{"maps": GOOD, "about": "maps", **arguments})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_pictures_need_as_many_queries_as_keys():
    with pytest.raises(ValueError, match="got 3 queries, 4 keys"):
        viewer.attention(GOOD[..., :3, :], about="maps", pictures=SET)


NASTY = ["</script>", "<b>", '"', "'", "&amp;", "<!--", "]]>", "\u2028", "$x^", "é🙂"]


@given(st.lists(st.text(st.characters()), min_size=4, max_size=4))
def test_labels_arrive_whatever_they_contain(labels):
    """And nothing of them becomes an element or an attribute."""
    view = viewer.attention(GOOD, labels, about="".join(labels))
    data, node = shown(view)
    plain = [label.encode("utf-8", "replace").decode() for label in labels]
    assert data["queries"] == data["keys"] == [plain]
    inside = {part.name for part in node.find_all()}
    assert inside <= {"p", "span", "div", "figure", "img", "figcaption"}
    assert set(node.attrs) == {"data-view"}
    view._repr_html_().encode()  # a lone surrogate would fail here


def test_nasty_labels_stay_in_their_attribute():
    for label in NASTY:
        _, node = shown(viewer.attention(GOOD, [label] * 4, about=label))
        assert node.p.get_text().startswith(f"{label}. Queries")
        assert len(node.find_all("img")) == 6


def test_viewer_requests_no_other_host():
    text = viewer.attention(GOOD, about="maps")._repr_html_()
    assert not re.search(r"https?:|@import|url\(|fetch\(|import\(|XMLHttpRequest", text)


def pixels(address):
    kind, _, data = address.partition(";base64,")
    assert kind == "data:image/png"
    return imread(io.BytesIO(b64decode(data)))


def test_without_scripts_every_map_is_a_picture():
    """Of the first sequence, each with its name, darkest where it looks most."""
    maps = {"before": weights(2, 3, 2, 5, 5, seed=1), "after": weights(2, 3, 2, 5, 5)}
    _, node = shown(viewer.attention(maps, about="maps"))
    titles = [caption.get_text() for caption in node.select("figcaption")]
    images = [pixels(image["src"]) for image in node.select("figure img")]
    assert titles[:2] == ["before, layer 0, head 0", "before, layer 0, head 1"]
    assert titles[2] == "after, layer 0, head 0"
    assert titles[-1] == "after, layer 1, head 1"
    drawn = [maps[name][i, 0, j] for i in range(2) for name in maps for j in range(2)]
    for image, expected in zip(images, drawn, strict=True):
        assert image.shape[:2] == (5, 5)
        assert image[..., :3].sum(-1).argmin() == expected.argmax()


def test_pictures_arrive_as_they_are():
    colours = random_pictures(2, 4, 8, 8, 3)
    maps = weights(1, 2, 1, 4, 4)
    data, node = shown(viewer.attention(maps, about="sets", pictures=colours))
    for row, pictures in zip(data["pictures"], colours, strict=True):
        for address, picture in zip(row, pictures, strict=True):
            got = np.round(255 * pixels(address)[..., :3])
            np.testing.assert_array_equal(got, picture)
    assert len(node.select("p img")) == 4
    grey, _ = shown(viewer.attention(maps, about="sets", pictures=colours[..., 0]))
    assert len(grey["pictures"]) == 2
    one, _ = shown(viewer.attention(maps, about="sets", pictures=colours[0]))
    assert one["pictures"][0] == one["pictures"][1] == data["pictures"][0]


ENDS = """all => all.map(line => [line.x1, line.x2].map(
    x => x.baseVal.value / line.ownerSVGElement.viewBox.baseVal.width))"""
PIXELS = """n => Object.values(
    n.getContext('2d').getImageData(0, 0, n.width, n.height).data)"""
FOCUS = """ask => {
    const node = document.querySelector('attention-viewer').shadowRoot.activeElement;
    if (ask === 'place')
        return [node.parentNode.dataset.query, node.dataset.key].map(Number);
    return ask === 'outline' ? getComputedStyle(node).outlineStyle : node.role;
}"""
TOY, LARGE = weights(1, 1, 7, 7), weights(3, 2, 4, 6, 6, seed=2)
VIEWS = {
    "toy": lambda: viewer.attention(TOY, WORDS, about="a toy sentence", query=4),
    "large": lambda: viewer.attention(
        {"before": LARGE, "after": LARGE[::-1]},
        [list("abcdef"), list("ghijkl")],
        sequences=["first", "second"], about="two maps", high=0.5,
    ),
    "one of many": lambda: viewer.attention(LARGE[:, 0], about="numbers"),
    "nasty": lambda: viewer.attention(
        weights(1, 1, 10, 10),
        [f"{text}<img src=x onerror='alert(1)'>" for text in NASTY],
        about="<img src=x onerror='alert(1)'>",
    ),
    "pictures": lambda: viewer.attention(
        weights(1, 2, 1, 3, 3), ["cat", "dog", "<i>"], about="pictures",
        pictures=random_pictures(2, 3, 8, 8),
    ),
    "many": lambda: viewer.attention(weights(1, 1, 16, 16), about="sixteen keys"),
    "blind": lambda: viewer.attention(
        np.tril(np.ones((1, 1, 3, 3)), -1) / [[[[1], [1], [2]]]], about="blind"
    ),
}  # fmt: skip


def document(names, style=""):
    """A page with nothing but viewers, each as Jupyter would put it there."""
    body = "".join(f"<h2>{n}</h2>{VIEWS[n]()._repr_html_()}" for n in names)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Viewers</title>"
        f"<meta name=viewport content='width=device-width'>"
        f"<body style='font-family: sans-serif; {style}'><main><h1>Viewers</h1>{body}"
    )


@pytest.fixture
def page_of(windows):
    """A new page that holds the named viewers."""
    opened = []

    def make(*names, style="", **options):
        page = watch(windows(**options).new_page())
        opened.append(page)
        page.set_content(document(names, style))
        if options.get("java_script_enabled", True):
            page.evaluate(DRAWN)
        return page

    yield make
    for page in opened:
        page.close()


def chosen_row(page, viewer_number=0, panel=0):
    """The labels of the row that is lit, and where its thickest line goes."""
    node = page.locator("attention-viewer").nth(viewer_number)
    box = node.locator(".panel").nth(panel)
    row = box.locator("[role=row][aria-selected=true]")
    assert row.count() == 1
    widths = box.locator("line").evaluate_all(
        "all => all.map(n => Number(n.getAttribute('stroke-width')))"
    )
    ends = box.locator("line").evaluate_all(ENDS)
    return {
        "query": int(row.get_attribute("data-query")),
        "values": [
            float(cell.get_attribute("aria-label"))
            for cell in row.locator("[role=gridcell]").all()
        ],
        "thickest": int(np.argmax(widths)),
        "ends": np.array(ends),
        "said": box.locator(".readout").inner_text(),
    }


def test_rows_follow_the_mouse(page_of):
    """The row of the map, the lines and the sentence tell the same, row by row."""
    page = page_of("toy")
    assert chosen_row(page)["query"] == 4  # what was asked for at first
    key = page.locator(".cell.chosen").get_attribute("data-key")
    assert int(key) == TOY[0, 0, 4].argmax()
    for query in (0, 6, 3):
        page.locator(f"[role=row][data-query='{query}'] [data-key='2']").hover()
        found = chosen_row(page)
        assert found["query"] == query
        row = TOY[0, 0, query]
        np.testing.assert_allclose(found["values"], row, atol=0.0051)
        assert found["thickest"] == row.argmax()
        np.testing.assert_allclose(found["ends"][:, 0], (query + 0.5) / 7, atol=0.01)
        np.testing.assert_allclose(
            found["ends"][:, 1], (np.arange(7) + 0.5) / 7, atol=0.01
        )
        best = f"key {row.argmax()}, “{WORDS[row.argmax()]}” ({row.max():.2f})"
        assert (
            f"Query {query}, “{WORDS[query]}”: most weight on {best}" in found["said"]
        )
    page.locator(".top .label").nth(5).hover()  # above the lines, too
    assert chosen_row(page)["query"] == 5
    page.mouse.move(1, 1)  # a mouse that only passed by changes nothing
    assert chosen_row(page)["query"] == 4
    page.locator("[role=row][data-query='1'] [data-key='2']").click()
    page.locator("[role=row][data-query='3'] [data-key='2']").hover()
    page.mouse.move(1, 1)
    assert chosen_row(page)["query"] == 1
    assert page.complaints == []


def test_tap_chooses_a_row(page_of):
    page = page_of("toy", viewport=NARROW, has_touch=True, is_mobile=True)
    page.locator("[role=row][data-query='1'] [role=rowheader]").tap()
    assert chosen_row(page)["query"] == 1
    page.locator("[role=row][data-query='2'] [data-key='6']").tap()
    assert chosen_row(page)["query"] == 2


def test_every_choice_works_by_keyboard(page_of):
    """Tab to a chooser or to the map; arrows inside; the map is a single stop."""
    page = page_of("large")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("radio", name="second").is_checked()
    stops = []
    for _ in range(4):  # map, layer, head of the first panel, then its cells
        page.keyboard.press("Tab")
        stops.append(page.evaluate(FOCUS, "role"))
    assert stops == [None, None, None, "gridcell"]  # three are inputs
    for key, query, column in [
        ("Home", 0, 0), ("ArrowDown", 1, 0), ("ArrowDown", 2, 0), ("ArrowRight", 2, 1),
        ("End", 2, 5), ("ArrowRight", 2, 5), ("ArrowUp", 1, 5), ("Home", 1, 0),
        ("ArrowLeft", 1, 0),
    ]:  # fmt: skip
        page.keyboard.press(key)
        focus = page.evaluate(FOCUS, "place")
        assert focus == [query, column]
        for panel in (0, 1):
            assert chosen_row(page, panel=panel)["query"] == query
    assert page.evaluate(FOCUS, "outline") != "none"


def test_layers_heads_maps_and_sequences_are_chosen(page_of):
    """Every chooser leads to the array that it names."""
    page = page_of("large")
    left, right = page.locator(".panel").all()
    page.locator("label", has_text="second").click()
    left.locator("fieldset", has_text="layer").locator("label", has_text="2").click()
    left.locator("fieldset", has_text="head").locator("label", has_text="3").click()
    right.locator("fieldset", has_text="map").locator(
        "label", has_text="before"
    ).click()
    page.locator("[role=row][data-query='5'] [data-key='0']").first.hover()
    found = [chosen_row(page, panel=panel) for panel in (0, 1)]
    np.testing.assert_allclose(found[0]["values"], LARGE[2, 1, 3, 5], atol=0.0051)
    np.testing.assert_allclose(found[1]["values"], LARGE[0, 1, 0, 5], atol=0.0051)
    assert found[0]["said"].startswith("before, layer 2, head 3. Query 5, “l”")
    assert found[1]["said"].startswith("before, layer 0, head 0. Query 5, “l”")
    assert (
        left.get_by_role("grid").get_attribute("aria-label")
        == "before, layer 2, head 3"
    )


def test_one_head_stands_beside_another(page_of):
    page = page_of("one of many")
    expect(page.locator(".panel")).to_have_count(1)
    page.get_by_label("two maps").check()
    expect(page.locator(".panel")).to_have_count(2)
    said = [chosen_row(page, panel=i)["said"].partition(".")[0] for i in (0, 1)]
    assert said == ["layer 0, head 0", "layer 0, head 1"]
    page.get_by_label("two maps").uncheck()
    expect(page.locator(".panel")).to_have_count(1)


def test_colours_follow_the_weights(page_of):
    page = page_of("large")
    pixels = page.locator("canvas").first.evaluate(PIXELS)
    shares = np.array(pixels).reshape(6, 8, 6, 8, 4)[..., 3] / 255  # each 8 pixels wide
    assert (shares == shares[:, :1, :, :1]).all()
    shares = shares[:, 0, :, 0].ravel()
    expected = np.minimum(1, LARGE[0, 0, 0] / 0.5).ravel()
    np.testing.assert_allclose(shares, expected, atol=0.003)


def test_viewers_of_one_page_are_independent(page_of):
    page = page_of("one of many", "large", "one of many", "blind", "pictures")
    first, _, third = (page.locator("attention-viewer").nth(i) for i in range(3))
    third.locator("fieldset", has_text="layer").locator("label", has_text="2").click()
    third.locator("[role=row][data-query='4'] [data-key='1']").hover()
    assert chosen_row(page, 2)["query"] == 4
    assert chosen_row(page, 0)["query"] == 0
    assert first.get_by_role("radio", name="0").first.is_checked()
    assert page.evaluate("[...document.querySelectorAll('style')].length") == 0
    assert page.complaints == []


def test_nasty_labels_are_text(page_of):
    page = page_of("nasty")
    labels = page.locator("[role=rowheader]").all_inner_texts()
    assert labels[1].startswith("<b><img src=x")
    assert page.locator("attention-viewer .frame img").count() == 0
    assert not [url for url in page.asked if url.endswith("/x")]
    assert page.complaints == []


def test_pictures_have_names(page_of):
    page = page_of("pictures")
    expect(page.get_by_role("rowheader", name="cat")).to_have_count(1)
    expect(page.get_by_role("columnheader", name="<i>")).to_have_count(1)
    before = page.locator("[role=rowheader] img").first.get_attribute("src")
    page.locator("fieldset", has_text="sequence").locator("label", has_text="1").click()
    assert page.locator("[role=rowheader] img").first.get_attribute("src") != before


def test_row_is_described_in_words(page_of):
    """Places, with labels that say more than a number; what is even is called so."""
    page = page_of("one of many", "toy")
    row = LARGE[0, 0, 0, 0]
    best = np.argsort(-row)[:3]
    said = ", ".join(f"key {k} ({row[k]:.2f})" for k in best)
    assert chosen_row(page)["said"].startswith(
        f"layer 0, head 0. Query 0: most weight on {said}."
    )
    least = int(TOY[0, 0, 4].argmin())
    page.locator(f"[role=row][data-query='4'] [data-key='{least}']").last.hover()
    said = chosen_row(page, 1)["said"]
    assert said.endswith(f"On key {least}, “{WORDS[least]}”: {TOY[0, 0, 4].min():.2f}.")
    even = np.full((1, 1, 4, 4), 0.25).ravel().tolist()
    page.locator("attention-viewer").last.evaluate(
        """(n, weights) => n.view = {...n.view, shape: [1, 1, 1, 4, 4],
            maps: [{name: '', weights}], queries: [['0', '1', '5', '3']],
            keys: [['0', '1', '2', '3']]}""",
        even,
    )
    assert "the same weight on every key (0.25)" in chosen_row(page, 1)["said"]


def test_row_of_zeros_is_named(page_of):
    page = page_of("blind")
    found = chosen_row(page)
    assert found["values"] == [0, 0, 0] and "looks at nothing" in found["said"]


def test_screen_readers_get_roles_names_and_values(page_of):
    """Roles, names and values as a screen reader gets them."""
    tree = page_of("toy").locator("attention-viewer").aria_snapshot()
    assert '- group "a toy sentence":' in tree
    assert '- grid "weights":' in tree
    for word in WORDS:
        assert f'- columnheader "{word}"' in tree and f'rowheader "{word}"' in tree
    assert len(re.findall(r'gridcell "0\.\d\d"', tree)) == 49
    assert "- status: " in tree


def test_rows_are_marked_as_queries_and_columns_as_keys(page_of):
    """Each word stands where its labels begin: keys beside it, queries below it."""
    for name in ("toy", "many", "pictures"):  # turned labels, numbers, pictures
        page = page_of(name)
        words = page.locator(".head .corner span")
        assert words.all_inner_texts() == ["key →", "query ↓"]
        keys, queries = (word.bounding_box() for word in words.all())
        first = page.get_by_role("rowheader").first.bounding_box()
        column = page.locator(".head .label").first.bounding_box()
        assert keys["y"] + keys["height"] <= queries["y"] + 1
        assert queries["y"] + queries["height"] <= first["y"] + 1
        assert column["y"] - 1 <= keys["y"] <= column["y"] + column["height"]
        assert keys["x"] + keys["width"] <= column["x"] + 1


@pytest.mark.parametrize("style", ["", "background: #14181e; color: #ddd"])
def test_axe_finds_nothing_serious(page_of, style):
    page = page_of(*VIEWS, style=style)
    dark = page.locator(".frame.dark").count()
    assert dark == (len(VIEWS) if style else 0)
    assert serious(page) == []


def test_viewer_turns_dark_with_its_page(page_of):
    page = page_of("toy")
    expect(page.locator(".frame.dark")).to_have_count(0)
    light = page.locator("canvas").evaluate(PIXELS)
    page.evaluate("document.body.style.color = 'white'")
    expect(page.locator(".frame.dark")).to_have_count(1)
    dark = page.locator("canvas").evaluate(PIXELS)
    darkest = np.argmax(light[3::4])  # the cell of the largest weight
    assert light[4 * darkest + 1] < 120 < dark[4 * darkest + 1]  # its green
    assert light[3::4] == dark[3::4]


def test_choice_is_visible_in_forced_colours(page_of):
    """Where shadows and colours of borders are the reader's, not the page's."""
    page = page_of("toy", forced_colors="active")
    look = """n => [getComputedStyle(n).borderTopWidth,
        getComputedStyle(n).outlineStyle]"""
    row = page.locator("[aria-selected=true]")
    assert row.locator(".cell.chosen").evaluate(look) == ["3px", "solid"]
    assert row.locator(".cell:not(.chosen)").first.evaluate(look) == ["3px", "none"]
    assert page.locator(".cell").first.evaluate(look) == ["1px", "none"]


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_viewer_fits_its_container(page_of, width):
    """What is too wide scrolls in its own box; nothing else does."""
    page = page_of(*VIEWS, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for stack in page.locator(".stack").all():  # the painted cells lie below the cells
        ends = stack.locator(".cell").first, stack.locator(".cell").last
        first, last = (cell.bounding_box() for cell in ends)
        picture = stack.locator("canvas").bounding_box()
        assert abs(picture["x"] - first["x"]) + abs(picture["y"] - first["y"]) < 0.5
        right, bottom = last["x"] + last["width"], last["y"] + last["height"]
        assert abs(picture["x"] + picture["width"] - right) < 0.5
        assert abs(picture["y"] + picture["height"] - bottom) < 0.5
    if width >= 390:
        for box in page.locator(".box").all():
            assert box.evaluate("n => n.scrollWidth - n.clientWidth") <= 1
        sizes = page.locator(".cell").evaluate_all("all => all.map(n => n.clientWidth)")
        assert min(sizes) >= 12


def test_new_view_keeps_the_chosen_row(page_of):
    """Neither the one that was clicked nor that under the mouse, while they last."""
    page = page_of("toy")
    page.locator("[role=row][data-query='2'] [data-key='1']").click()
    page.locator("[role=row][data-query='5'] [data-key='1']").hover()
    node = page.locator("attention-viewer")
    node.evaluate("n => n.view = {...n.view}")
    assert chosen_row(page)["query"] == 5
    page.mouse.move(1, 1)
    assert chosen_row(page)["query"] == 2
    node.evaluate(
        """n => n.view = {...n.view, shape: [1, 1, 1, 2, 2],
            maps: [{name: '', weights: [1, 0, 0, 1]}]}"""
    )
    assert chosen_row(page)["query"] == 1


def test_viewer_survives_being_moved(page_of):
    """Jupyter takes outputs away while they are out of sight, and puts them back."""
    page = page_of("toy")
    page.locator("[role=row][data-query='2'] [data-key='1']").click()
    page.evaluate(
        """() => { const node = document.querySelector('attention-viewer');
            const place = node.parentNode; node.remove();
            node.view = {...node.view, about: 'new words'}; place.prepend(node); }"""
    )
    page.mouse.move(0, 0)
    assert chosen_row(page)["query"] == 2
    expect(page.get_by_role("group", name="new words")).to_be_visible()
    assert max(page.locator("canvas").evaluate(PIXELS)) > 200
    page.locator("[role=row][data-query='6'] [data-key='1']").hover()
    assert chosen_row(page)["query"] == 6


def test_without_scripts_there_are_the_pictures(page_of):
    page = page_of("large", "pictures", java_script_enabled=False)
    assert page.locator("figure img").count() == 2 * 3 * 4 + 1
    for picture in page.locator("figure img").all():
        expect(picture).to_be_visible()
        assert picture.evaluate("n => n.clientWidth") >= 140
    said = page.locator("attention-viewer p").first.inner_text()
    assert said.startswith("two maps (the first of 2 sequences). Queries")
    assert said.endswith("a · b · c · d · e · f")


@pytest.mark.book
def test_book_without_scripts_shows_the_maps_as_pictures(new_reader):
    page = new_reader(java_script_enabled=False)
    page.open("notebooks/anomaly_jax.html")
    for picture in page.locator("attention-viewer figure img").all():
        expect(picture).to_be_visible()
        assert picture.evaluate("n => n.clientWidth") >= 120
    about = page.locator("attention-viewer p").first.inner_text().partition(".")[0]
    assert len(about.split()) >= 5


@pytest.mark.book
@pytest.mark.parametrize(
    "page_name", ["notebooks/encoder_jax", "notebooks/anomaly_torch"]
)
def test_plain_jupyter_shows_the_same(executed, browser, visit, page_name, tmp_path):
    """The executed notebook, written by nbconvert, and the book: letter by letter."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(require_js_url="", jquery_url="", mathjax_url="")
    exporter.mermaid_js_url = ""
    path = tmp_path / "page.html"
    path.write_text(
        exporter.from_notebook_node(executed(page_name))[0], encoding="utf-8"
    )
    context = new_context(browser)
    context.route(re.compile("^https?:"), lambda route: route.abort())
    plain = context.new_page()
    plain.goto(path.as_uri(), wait_until="domcontentloaded")
    trees = []
    for page in (plain, visit(page_name, fresh=True)):
        page.locator("[role=row][data-query='1'] [data-key='2']").first.click()
        page.keyboard.press("ArrowDown")
        tree = page.locator("attention-viewer").first.aria_snapshot()
        trees.append((tree, chosen_row(page)["said"], chosen_row(page)["thickest"]))
    context.close()
    assert trees[0] == trees[1] and "gridcell" in trees[0][0]
