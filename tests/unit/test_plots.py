"""Figures say what they are given, on a fixed scale, and leave the world as it was."""

import io
import re
from functools import cache

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib_inline import backend_inline

from helpers import plots
from sides import draw

CONVERT = {
    "jax": jnp.array,
    "torch": torch.tensor,
    "torch-bfloat16": lambda x: torch.tensor(x).bfloat16(),
    "torch-in-a-graph": lambda x: torch.tensor(x, requires_grad=True) * 1,
    "list": lambda x: x.tolist(),
}
SHARES = np.array([[0.25, 0.5, 0.0], [0.125, 0.0, 0.25]])  # none of them near 1
POINTS = np.array([1.0, 2.0, 4.0, 8.0])


def contrast(one, other):
    """Contrast of two colours, 1 to 21, as the WCAG define it."""
    light = []
    for colour in (one, other):
        r, g, b = (
            v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
            for v in to_rgb(colour)
        )
        light.append(0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05)
    return max(light) / min(light)


def draw_heatmaps(convert):
    return plots.heatmaps([convert(SHARES), convert(SHARES / 2)])


def draw_curves(convert):
    return plots.curves({"panel": {"line": (POINTS, convert(POINTS**2))}}, x="n")


def draw_grid(convert):
    return plots.grid_of_numbers({"K": convert(SHARES)})


def draw_nothing(_):
    return plots.new_figure(3, 2)


FIGURES = [draw_heatmaps, draw_curves, draw_grid]
of_each = pytest.mark.parametrize("figure_of", FIGURES)


def images(fig):
    """The matrices that a figure shows, in the order in which they were drawn."""
    return [ax.images[0] for ax in fig.axes if ax.images and not is_bar(ax)]


def is_bar(ax):
    """Whether these axes are a colour bar."""
    return ax.get_label() == "<colorbar>"


def panels(fig):
    """The axes of a figure that hold something and are no colour bar."""
    return [ax for ax in fig.axes if ax.axison and not is_bar(ax)]


def save(fig):
    """The figure as SVG, as a page saves it."""
    file = io.BytesIO()
    fig.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


# Every figure


@pytest.mark.parametrize("figure_of", [draw_nothing, *FIGURES])
def test_a_figure_comes_back_and_nothing_else_happens(figure_of, monkeypatch):
    """Nothing is shown, pyplot holds no figure, and no setting has changed."""

    def refuse(*_, **__):
        raise AssertionError("a plot must not show itself")

    monkeypatch.setattr(Figure, "show", refuse)
    monkeypatch.setattr(pyplot, "show", refuse)
    before = dict(matplotlib.rcParams)
    fig = figure_of(np.array)
    assert type(fig) is Figure
    assert save(fig).endswith(b"</svg>\n")
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


@of_each
@pytest.mark.parametrize("convert", CONVERT.values(), ids=CONVERT.keys())
def test_arrays_of_any_framework_give_the_same_figure(figure_of, convert):
    """Also in bfloat16 and with a gradient attached: the same bytes as from NumPy."""
    with matplotlib.rc_context({"svg.hashsalt": "any"}):
        assert save(figure_of(convert)) == save_from_numpy(figure_of)


@cache
def save_from_numpy(figure_of):
    """The figure to compare with, drawn once."""
    return save(figure_of(np.array))


@of_each
def test_a_figure_has_the_colours_of_the_book(figure_of):
    """Paper behind, ink on it: also when it is saved, long after it was styled."""
    fig = figure_of(np.array)
    assert to_hex(fig.get_facecolor()) == plots.PAPER
    assert {to_hex(ax.get_facecolor()) for ax in panels(fig)} == {plots.PAPER}
    assert {to_hex(ax.title.get_color()) for ax in panels(fig)} == {plots.INK}
    assert f"fill: {plots.PAPER}".encode() in save(fig)


@of_each
def test_a_page_saves_the_same_bytes_in_every_build(figure_of, monkeypatch):
    """After ``use_style``: no date, and no random names, in the SVG."""
    asked = []
    monkeypatch.setattr(
        backend_inline,
        "set_matplotlib_formats",
        lambda *formats, **options: asked.append((formats, options)),
    )
    with matplotlib.rc_context():
        plots.use_style()
        assert asked == [(("svg",), {"metadata": {"Date": None}})]
        first, second = save(figure_of(np.array)), save(figure_of(np.array))
    assert first == second
    assert b"<dc:date>" not in first


# Colour scales


def test_weights_are_drawn_from_0_to_1_whatever_they_are():
    """Small weights look small: the scale does not stretch to them."""
    fig = draw_heatmaps(np.array)
    assert images(fig)
    assert {image.get_clim() for image in images(fig)} == {(0, 1)}
    assert {image.cmap.name for image in images(fig)} == {"Blues"}


def test_a_figure_of_weights_has_one_colour_bar():
    """However many maps there are; it is named, and its ends are marked."""
    (bar,) = filter(is_bar, draw_heatmaps(np.array).axes)
    assert bar.get_ylabel() == "weight"
    assert bar.get_yticks().tolist() == [0, 0.5, 1]


def test_another_scale_is_as_asked_for():
    """From -1 to 1 is red to blue, white at 0, with the name that is given."""
    fig = plots.heatmaps([draw(3, 5), draw(3, 5)], low=-1, high=1, bar="cosine")
    assert {image.get_clim() for image in images(fig)} == {(-1, 1)}
    low, middle, high = images(fig)[0].to_rgba(np.array([-1.0, 0.0, 1.0]))[:, :3]
    assert middle.min() > 0.95
    assert low[0] > low[2] + 0.2
    assert high[2] > high[0] + 0.2
    (bar,) = filter(is_bar, fig.axes)
    assert bar.get_ylabel() == "cosine"
    assert bar.get_yticks().tolist() == [-1, 0, 1]


def test_a_hidden_cell_is_grey():
    """NaN has a colour of its own, which is none of the scale."""
    (image,) = images(plots.heatmaps([np.array([[0.0, np.nan, 1.0]])]))
    colours = [to_hex(c) for c in image.to_rgba(image.get_array())[0]]
    assert colours[1] == plots.HIDDEN
    assert plots.HIDDEN not in [to_hex(image.cmap(n)) for n in range(256)]


# Heat maps


def test_maps_stand_left_to_right_then_down():
    """Five maps in two columns: in order, and the sixth place stays empty."""
    maps = [np.full((3, 7), n / 10) for n in range(5)]
    fig = plots.heatmaps(maps, columns=2, titles=list("abcde"))
    assert len(fig.axes) == 6 + 1
    assert [ax.get_title() for ax in panels(fig)] == list("abcde")
    for n, ax in enumerate(panels(fig)):
        np.testing.assert_array_equal(ax.images[0].get_array(), maps[n])
        place = ax.get_subplotspec()
        assert (place.rowspan.start, place.colspan.start) == divmod(n, 2)


def test_the_axes_of_maps_are_named_at_the_edge():
    """Queries down the left, keys along the bottom, with the names that are given."""
    maps = [SHARES] * 5
    first, second, third, fourth, last = panels(plots.heatmaps(maps, columns=2))
    assert [ax.get_ylabel() for ax in (first, third, last)] == ["query q"] * 3
    assert [ax.get_ylabel() for ax in (second, fourth)] == [""] * 2
    assert [ax.get_xlabel() for ax in (fourth, last)] == ["key k"] * 2
    assert [ax.get_xlabel() for ax in (first, second, third)] == [""] * 3
    (only,) = panels(plots.heatmaps([SHARES], x="feature i", y="position s"))
    assert (only.get_xlabel(), only.get_ylabel()) == ("feature i", "position s")


def test_ticks_have_the_labels_that_are_given():
    """One per column and row; long ones stand upright. Otherwise whole numbers."""
    (ax,) = panels(
        plots.heatmaps([SHARES], x_ticks=["the", "cat", "sat"], y_ticks=["a", "b"])
    )
    assert ax.get_xticks().tolist() == [0, 1, 2]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["the", "cat", "sat"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]
    assert {tick.get_rotation() for tick in ax.get_xticklabels()} == {90}
    (ax,) = panels(plots.heatmaps([np.zeros((40, 2))]))
    ticks = [*ax.get_xticks(), *ax.get_yticks()]
    assert all(float(tick).is_integer() for tick in ticks)


# Numbers


def test_numbers_stand_where_they_stand_in_the_matrix():
    """Rounded to two digits, without the zeros at the end."""
    fig = plots.grid_of_numbers(
        {"Q": [[1, 0.5], [-2.25, 10], [0, 0.126]], "K": [[3]]}, columns=1
    )
    first, second = panels(fig)
    assert [ax.get_title() for ax in (first, second)] == ["Q", "K"]
    written = {text.get_position(): text.get_text() for text in first.texts}
    assert written == {
        (0, 0): "1", (1, 0): "0.5",
        (0, 1): "-2.25", (1, 1): "10",
        (0, 2): "0", (1, 2): "0.13",
    }  # fmt: skip
    assert [text.get_text() for text in second.texts] == ["3"]


# Curves


def test_lines_go_through_the_points_that_are_given():
    """Under their names, each with a colour and a dash of its own."""
    lines = {f"line {n}": (POINTS, POINTS**n) for n in range(6)}
    fig = plots.curves({"growth": lines}, x="length n", y="seconds")
    (ax,) = panels(fig)
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == (
        "growth", "length n", "seconds"
    )  # fmt: skip
    for line, (name, (x, y)) in zip(ax.lines, lines.items(), strict=True):
        assert line.get_label() == name
        np.testing.assert_array_equal(line.get_xydata(), np.stack([x, y], axis=1))
    assert len({line.get_color() for line in ax.lines}) == 6
    dashes = set(re.findall(rb"stroke-dasharray: ([^;\"]+)", save(fig)))
    assert len(dashes) == 5, "five ways to dash, and a solid line"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(lines)


def test_four_arrays_are_a_line_in_its_band():
    """One entry in the legend, one colour, and the band between low and high."""
    lines = {"runs": ([1, 2], [5, 6], [4, 4], [7, 9])}
    fig = plots.curves({"": lines}, x="update")
    (ax,) = fig.axes
    (line,), (band,) = ax.lines, ax.collections
    np.testing.assert_array_equal(line.get_ydata(), [5, 6])
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert {(1.0, 4.0), (2.0, 4.0), (1.0, 7.0), (2.0, 9.0)} <= corners
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["runs"]
    assert to_hex(line.get_color()) == to_hex(band.get_facecolor()[0, :3])


def test_three_arrays_are_a_band():
    """From the lower to the upper one, in the legend too."""
    (ax,) = panels(
        plots.curves({"loss": {"seeds": (POINTS, POINTS - 1, POINTS + 1)}}, x="step")
    )
    assert ax.lines[:] == []
    (band,) = ax.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(x, x + y) for x in POINTS for y in (-1, 1)}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["seeds"]


def test_each_panel_has_the_axes_it_is_given():
    """Names of x, logarithmic x and y, and nothing in the place that is left over."""
    given = {name: {"": (POINTS, POINTS)} for name in ("a", "b", "c")}
    fig = plots.curves(given, x=["n", "d", "s"], log_x=2, log_y=["b"], columns=2)
    assert [ax.get_xlabel() for ax in panels(fig)] == ["n", "d", "s"]
    assert [ax.get_title() for ax in panels(fig)] == ["a", "b", "c"]
    assert [ax.get_xscale() for ax in panels(fig)] == ["log"] * 3
    assert [ax.get_yscale() for ax in panels(fig)] == ["linear", "log", "linear"]
    fig = plots.curves(given, x="n", y="loss", log_y=True, share_y=True)
    assert [ax.get_yscale() for ax in panels(fig)] == ["log"] * 3
    assert [ax.get_xscale() for ax in panels(fig)] == ["linear"] * 3
    assert [ax.get_ylabel() for ax in panels(fig)] == ["loss", "", ""]
    with pytest.raises(ValueError, match="zip"):
        plots.curves(given, x=["n", "d"])


@pytest.mark.parametrize("n", [2, 200])
def test_a_legend_that_would_cover_a_line_stands_below_its_panel(n):
    """A line that fills the panel leaves no room; a low one leaves the top free."""
    x = np.linspace(0, 1, n)
    wave = np.where(np.arange(n) % 2, 1.0, 0.0) if n > 2 else x
    crossed = {"a": (x, wave), "b": (x, 1 - wave), "c": (x, 0 * x + 0.5)}
    crossed |= {f"line {k}": (x, 0 * x + k / 10) for k in range(10)}
    free = {"a": (x, 0 * x), "top": (x[:1], np.ones(1))}
    fig = plots.curves({"crossed": crossed, "free": free}, x="x")
    fig.draw_without_rendering()
    for ax, below in zip(panels(fig), [True, False], strict=True):
        legend, panel = ax.get_legend().get_window_extent(), ax.get_window_extent()
        assert (legend.y1 < panel.y0) == below, ax.get_title()
        assert legend.y0 >= 0, "the legend is cut off"
        names = ax.xaxis.label.get_window_extent()
        assert not legend.overlaps(names), "the legend lies on the name of the axis"
        assert not any(plots.line_enters(legend, line) for line in ax.lines)


def test_panels_with_the_same_lines_share_a_legend():
    """Where one panel has another line, each panel says what it shows."""
    a, b = ({name: (POINTS, POINTS)} for name in "ab")
    fig = plots.curves({"left": a, "right": a}, x="n")
    (legend,) = fig.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a"]
    assert [ax.get_legend() for ax in panels(fig)] == [None, None]
    fig = plots.curves({"left": a, "right": b}, x="n")
    assert fig.legends == []
    assert None not in [ax.get_legend() for ax in panels(fig)]


def test_a_shared_y_axis_is_one_axis():
    """The panel with the larger numbers stretches the other."""
    given = {"low": {"a": (POINTS, POINTS)}, "high": {"a": (POINTS, 10 * POINTS)}}
    low, high = panels(plots.curves(given, x="n", share_y=True))
    assert low.get_ylim() == high.get_ylim()
    assert low.get_ylim()[1] >= 80
    low, high = panels(plots.curves(given, x="n"))
    assert low.get_ylim()[1] < 10 < 80 <= high.get_ylim()[1]


# Pictures


GREY = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5) * 2
FRAMES = {"odd": np.array([2, 0]), "chosen": np.array([2, 1])}


def test_pictures_stand_in_rows_on_a_fixed_scale():
    """Each set in its row, each element in its place; 255 is full ink."""
    fig = plots.pictures(GREY)
    shown = [ax.images[0] for ax in fig.axes]
    for image, picture in zip(shown, GREY.reshape(6, 4, 5), strict=True):
        np.testing.assert_array_equal(image.get_array(), picture)
        assert image.get_clim() == (0, 255)
    assert fig.legends == []
    assert save(fig).endswith(b"</svg>\n")


def test_coloured_pictures_keep_their_colours():
    colours = np.stack([GREY, GREY + 1, GREY + 2], axis=-1)
    shown = [ax.images[0].get_array() for ax in plots.pictures(colours).axes]
    np.testing.assert_array_equal(shown, colours.reshape(6, 4, 5, 3))


def test_captions_and_titles_stand_at_their_pictures():
    captions = [["a", "b", "c"], ["d", "e", "f"]]
    fig = plots.pictures(GREY, captions=captions, titles=["first", "second"])
    assert [ax.get_xlabel() for ax in fig.axes] == list("abcdef")
    titles = [[text.get_text() for text in ax.texts] for ax in fig.axes]
    assert titles == [["first"], [], [], ["second"], [], []]


def test_a_long_title_moves_no_picture():
    """It spans its row; the columns stay where a short one leaves them."""
    places = []
    for title in ("3", "aquarium_fish, odd: pickup_truck"):
        fig = plots.pictures(GREY, titles=[title, title])
        fig.draw_without_rendering()
        places.append([ax.get_position().bounds for ax in fig.axes])
    np.testing.assert_allclose(*places, atol=1e-3)


def test_the_odd_one_and_the_chosen_one_have_frames_of_their_own():
    """Told apart by colour, line and size, so that both can stand on one picture."""
    fig = plots.pictures(GREY, **FRAMES)
    found = {
        divmod(place, 3): [
            (to_hex(p.get_edgecolor()), p.get_linestyle()) for p in ax.patches
        ]
        for place, ax in enumerate(fig.axes)
    }
    odd, chosen = (plots.COLOURS[1], "-"), (plots.COLOURS[0], "--")
    assert {place: frames for place, frames in found.items() if frames} == {
        (0, 2): [odd, chosen], (1, 0): [odd], (1, 1): [chosen],
    }  # fmt: skip
    outer, inner = (patch.get_width() for patch in fig.axes[2].patches)
    assert outer > inner
    (legend,) = fig.legends
    assert [text.get_text() for text in legend.get_texts()] == ["odd one", "chosen"]
    (legend,) = plots.pictures(GREY, odd=FRAMES["odd"]).legends
    assert [text.get_text() for text in legend.get_texts()] == ["odd one"]


# Contrast, by the WCAG: 4.5 for letters, 3 for lines


def test_contrast_is_that_of_the_wcag():
    assert contrast("black", "white") == pytest.approx(21)
    assert contrast("#777777", "white") == pytest.approx(4.48, abs=0.005)
    assert contrast("white", "#777777") == contrast("#777777", "white")


@pytest.mark.parametrize("colour", plots.COLOURS)
def test_lines_and_frames_stand_out_from_the_paper(colour):
    assert contrast(colour, plots.PAPER) >= 3


def test_letters_stand_out_from_the_paper():
    assert contrast(plots.INK, plots.PAPER) >= 4.5
