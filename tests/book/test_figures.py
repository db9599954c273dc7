"""Figures for dark pages: the same picture, legible, and fetched only where shown."""

import io
from base64 import b64decode
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import figures
import pages
from figures import DARK, INK, PAGE, SVG, channels, dark_figure, in_the_dark
from helpers.show import plots
from reading import article

NOTEBOOKS = [page for page in pages.toc() if pages.side_of(page)]
TEXT = [*plots.COLOURS, plots.EDGE]


def contrast(one, other):
    """Of two colours, as WCAG 2 defines it."""
    light = []
    for colour in (one, other):
        c = np.array(channels(colour)) / 255
        c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        light.append(c @ [0.2126, 0.7152, 0.0722])
    return (max(light) + 0.05) / (min(light) + 0.05)


def tint(colour, share):
    mixed = [share * c + (1 - share) * 255 for c in channels(colour)]
    return "#" + "".join(f"{round(c):02x}" for c in mixed)


def drawn(fig):
    file = io.StringIO()
    fig.savefig(file, format="svg")
    return file.getvalue()


def styles(text):
    root = ElementTree.fromstring(text)
    return [node.get("style", "") for node in root.iter()]


def test_each_colour_of_the_book_has_a_counterpart():
    black = {"#000000"}
    assert {*DARK} - black == {plots.INK, plots.EDGE, plots.HIDDEN, *plots.COLOURS}


@pytest.mark.parametrize("colour", TEXT)
def test_text_is_legible_on_a_dark_page_and_on_a_tinted_box(colour):
    dark = in_the_dark(colour)
    assert contrast(dark, PAGE) >= 4.5
    for ground in plots.COLOURS:
        assert contrast(DARK[INK], in_the_dark(tint(ground, 0.3))) >= 4.5
        assert contrast(dark, in_the_dark(tint(ground, 0.16))) >= 4.5


@pytest.mark.parametrize("share", [0.06, 0.16, 0.3, 0.9])
@pytest.mark.parametrize("colour", plots.COLOURS)
def test_a_tint_stays_a_tint_of_the_same_colour(colour, share):
    paper, dark = np.array(channels(PAGE)), np.array(channels(DARK[colour]))
    found = channels(in_the_dark(tint(colour, share)))
    np.testing.assert_allclose(found, share * dark + (1 - share) * paper, atol=4)


def test_a_colour_of_no_figure_raises():
    with pytest.raises(ValueError, match="expected a colour of the book"):
        in_the_dark("#ff00ff")


def test_paper_is_left_out_and_pictures_stay_as_they_are():
    """With what is drawn on them; the axes around them become light."""
    fig = Figure(facecolor="#ffffff")
    left, right = fig.subplots(1, 2)
    for ax in (left, right):
        ax.plot([0, 1], [0, 1], color=plots.BLUE)
        ax.set_title("title", color=plots.INK)
    right.imshow(np.eye(2))
    light, axes = drawn(fig), f"{SVG}g[@id='figure_1']/{SVG}g[@id='axes_%d']"
    dark = dark_figure(light)
    picture, same = (
        next(ElementTree.fromstring(text).iter(f"{SVG}image")) for text in (light, dark)
    )
    assert picture.attrib == same.attrib
    root = ElementTree.fromstring(dark)
    text = ElementTree.tostring(root.find(axes % 1), encoding="unicode")
    assert DARK[plots.BLUE] in text and plots.BLUE not in text
    text = ElementTree.tostring(root.find(axes % 2), encoding="unicode")
    assert plots.BLUE in text and DARK[plots.BLUE] not in text and DARK[INK] in text
    assert f"fill: {plots.PAPER}" not in styles(dark)


@pytest.mark.parametrize("low", [0, -1])
def test_heat_maps_are_dark_where_they_were_pale(low):
    """Each value keeps its order on the scale; hidden cells stay grey."""
    values = np.array([[0, 0.25, 0.5], [0.75, 1, np.nan]])
    light = drawn(plots.heatmaps([values], low=low))
    dark = dark_figure(light)
    shown = [next(pixels(text)) for text in (light, dark)]
    bright = [image[..., :3].mean(axis=-1) for image in shown]
    assert (np.argsort(bright[0][0]) == np.argsort(-bright[1][0])).all()
    assert bright[0].max() > 200 and bright[1].min() < 60
    assert (shown[0][..., 3] == shown[1][..., 3]).all()
    assert plots.HIDDEN in light and plots.HIDDEN not in dark
    assert DARK[plots.HIDDEN] in dark


def pixels(text):
    """The pictures in an SVG, each as an array."""
    for image in ElementTree.fromstring(text).iter(f"{SVG}image"):
        data = b64decode(image.get(figures.LINK).removeprefix(figures.PNG))
        yield np.array(Image.open(io.BytesIO(data)).convert("RGBA"))


@pytest.mark.book
@pytest.mark.usefixtures("html")
@pytest.mark.parametrize("page", NOTEBOOKS)
def test_each_figure_stands_on_its_page_twice(html, page):
    """With the same words and size; text of the dark one is legible."""
    images = article(page).select(".cell_output img:not(attention-viewer img)")
    pairs = [*zip(images[::2], images[1::2], strict=True)]
    assert pairs, page
    for light, dark in pairs:
        assert light["src"].replace(".svg", "-dark.svg") == dark["src"]
        assert (light["class"], dark["class"]) == (["only-light"], ["only-dark"])
        for name in ("alt", "width", "height", "loading"):
            assert light[name] == dark[name]
        assert dark["loading"] == "lazy"  # what is not shown is not fetched
        before, text = (
            (html / page / ".." / image["src"]).resolve().read_text("utf-8")
            for image in (light, dark)
        )
        for colour in {*figures.COLOUR.findall(before)} - {plots.PAPER}:
            assert in_the_dark(colour), f"{light['src']} has a colour of its own"
        for node in ElementTree.fromstring(text).iter(f"{SVG}g"):
            if node.get("id", "").startswith("text_"):
                for style in filter(None, (part.get("style") for part in node)):
                    colour = figures.COLOUR.search(style)
                    assert not colour or contrast(colour[0], PAGE) >= 4.5, dark["src"]


@pytest.mark.book
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_only_the_figures_that_are_shown_are_fetched(new_reader, scheme):
    page = new_reader(color_scheme=scheme)
    page.open("notebooks/warmup_torch.html")
    shown = page.locator(f".cell_output img.only-{scheme}").first
    shown.scroll_into_view_if_needed()
    page.wait_for_function("n => n.naturalWidth > 0", arg=shown.element_handle())
    asked = {url.endswith("-dark.svg") for url in page.asked if "/_images/" in url}
    assert asked == {scheme == "dark"}
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    expected = PAGE if scheme == "dark" else plots.PAPER
    assert ground == f"rgb({', '.join(map(str, channels(expected)))})"
