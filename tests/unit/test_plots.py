"""Figures show what they are given, on a fixed scale, and change nothing else."""

import io
import sys
import types

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from helpers.show import patches, plots

CONVERT = {
    "jax": jnp.array,
    "torch": torch.tensor,
    "torch-bfloat16": lambda x: torch.tensor(x).bfloat16(),
    "torch-in-a-graph": lambda x: torch.tensor(x, requires_grad=True) * 1,
    "list": lambda x: x.tolist(),
}
SHARES = np.array([[0.25, 0.5, 0.0], [0.125, 0.0, 0.25]])  # none of them near 1
POINTS = np.array([1.0, 2.0, 4.0, 8.0])
LINE = {"a": (POINTS, POINTS)}
GREY = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5) * 2
PHOTO = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3) * 3
PHOTOS = np.stack([PHOTO, 255 - PHOTO])
SIX = np.array([[1, 2, 3, 4, 5, 10], [0, 0, 0, 0, 5, 0]])  # of patches of 2 × 2
LEFT = PHOTOS // 2  # as if something were erased
TABLE = np.random.default_rng(0).integers(-4, 5, size=(9, 5)) / 4


def erasing(images=PHOTOS, weights=SIX, after=LEFT, titles="ab", captions="cd"):
    return patches.erasing(images, weights, after, 2, titles=titles, captions=captions)


@pytest.fixture(autouse=True)
def style():
    """The book's theme, for the time of one test."""
    with matplotlib.rc_context():
        plots.use_style()
        yield


DRAW = {
    "heatmaps": lambda convert: plots.heatmaps([convert(SHARES), convert(SHARES / 2)]),
    "curves": lambda convert: plots.curves({"": {"a": 2 * [convert(POINTS)]}}, x="n"),
    "grid": lambda convert: plots.grid_of_numbers({"K": convert(SHARES)}),
    "pictures": lambda convert: plots.pictures(convert(GREY)),
    "sequence": lambda convert: patches.patch_sequence(convert(PHOTO), 2),
    "erasing": lambda convert: erasing(convert(PHOTOS), after=convert(PHOTOS)),
    "positions": lambda convert: patches.position_similarity({"a": convert(TABLE)}),
}  # fmt: skip
of_each = pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW.keys())


def is_bar(ax):
    """Whether these axes are a colour bar."""
    return ax.get_label() == "<colorbar>"


def panels(fig):
    """The axes of a figure, without colour bars."""
    return [ax for ax in fig.axes if not is_bar(ax)]


def values(ax):
    """The matrix that a heat map shows."""
    return ax.collections[0].get_array()


def names_in(legend):
    """The texts of a legend."""
    return [text.get_text() for text in legend.get_texts()]


def save(fig):
    """The figure as SVG, as a page saves it."""
    file = io.BytesIO()
    fig.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


# Every figure


@of_each
def test_drawing_changes_no_setting_and_shows_nothing(draw, monkeypatch):
    """Pyplot holds no figure, and the figure has the colours of the book."""
    before = dict(matplotlib.rcParams)
    monkeypatch.delattr(Figure, "show")
    monkeypatch.delattr(pyplot, "show")
    fig = draw(np.array)
    assert type(fig) is Figure
    assert save(fig).endswith(b"</svg>\n")
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []
    assert to_hex(fig.get_facecolor()) == plots.PAPER
    assert {to_hex(ax.title.get_color()) for ax in fig.axes} == {plots.INK}


@of_each
def test_arrays_of_any_framework_give_the_same_bytes(draw):
    """Also in bfloat16, with a gradient attached, and in every build: no date."""
    expected = save(draw(np.array))
    assert b"<dc:date>" not in expected
    whole = [DRAW[name] for name in ("pictures", "sequence", "erasing")]
    for name, convert in CONVERT.items():
        if draw not in whole or name in ("jax", "torch"):
            assert save(draw(convert)) == expected, name


def test_a_notebook_shows_svg_without_a_date(monkeypatch):
    """A plain script has no Jupyter; ``use_style`` then sets the theme alone."""
    inline = pytest.importorskip("matplotlib_inline.backend_inline")
    asked = []
    monkeypatch.setattr(
        inline, "set_matplotlib_formats", lambda *a, **k: asked.append((a, k))
    )
    for running in (None, "a notebook"):
        ipython = types.SimpleNamespace(get_ipython=lambda running=running: running)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        plots.use_style()
    assert asked == [(("svg",), {"metadata": {"Date": None}})]


# Heat maps


def test_weights_are_drawn_from_0_to_1_with_one_colour_bar():
    """Small weights look small. From -1 to 1 the scale is red to blue, white at 0."""
    fig = plots.heatmaps([SHARES, SHARES / 2])
    meshes = [ax.collections[0] for ax in panels(fig)]
    assert {mesh.get_clim() for mesh in meshes} == {(0, 1)}
    assert {mesh.cmap.name for mesh in meshes} == {"Blues"}
    (bar,) = filter(is_bar, fig.axes)
    assert bar.get_ylabel() == "weight"
    assert bar.get_yticks().tolist() == [0, 0.5, 1]
    fig = plots.heatmaps([SHARES], low=-1, high=1, bar="cosine")
    low, middle, high = panels(fig)[0].collections[0].to_rgba([-1.0, 0.0, 1.0])[:, :3]
    assert middle.min() > 0.95
    assert low[0] > low[2] + 0.2
    assert high[2] > high[0] + 0.2
    (bar,) = filter(is_bar, fig.axes)
    assert (bar.get_ylabel(), bar.get_yticks().tolist()) == ("cosine", [-1, 0, 1])


def test_a_hidden_cell_is_grey():
    """NaN is left out and shows the ground, a colour that is not in the scale."""
    (ax,) = panels(plots.heatmaps([np.array([[0.0, np.nan, 1.0]])]))
    assert np.ma.getmaskarray(values(ax)).ravel().tolist() == [False, True, False]
    assert to_hex(ax.get_facecolor()) == plots.HIDDEN
    cmap = ax.collections[0].cmap
    assert plots.HIDDEN not in [to_hex(cmap(n)) for n in range(256)]


def test_maps_are_laid_out_in_a_row_with_queries_down_the_left():
    maps = [np.full((3, 7), n / 10) for n in range(3)]
    drawn = panels(plots.heatmaps(maps, titles=list("abc")))
    assert [ax.get_title() for ax in drawn] == list("abc")
    for n, ax in enumerate(drawn):
        np.testing.assert_array_equal(values(ax).reshape(3, 7), maps[n])
        place = ax.get_subplotspec()
        assert (place.rowspan.start, place.colspan.start) == (0, n)
    assert [ax.get_ylabel() for ax in drawn] == ["query q", "", ""]
    assert [ax.get_xlabel() for ax in drawn] == ["key k"] * 3
    (only,) = panels(plots.heatmaps([SHARES], x="feature i", y="position s"))
    assert (only.get_xlabel(), only.get_ylabel()) == ("feature i", "position s")


def test_maps_can_stand_in_rows():
    """Queries are named at the left of each row."""
    drawn = panels(plots.heatmaps([SHARES] * 5, columns=2))
    places = [ax.get_subplotspec() for ax in drawn]
    found = [(place.rowspan.start, place.colspan.start) for place in places]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert [bool(ax.get_ylabel()) for ax in drawn] == [True, False] * 2 + [True]


def test_ticks_have_the_given_labels_or_whole_numbers():
    """The first row is the upper one."""
    (ax,) = panels(
        plots.heatmaps([SHARES], x_ticks=["the", "cat", "sat"], y_ticks=["a", "b"])
    )
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["the", "cat", "sat"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]
    assert ax.yaxis_inverted()
    (ax,) = panels(plots.heatmaps([np.zeros((40, 2))]))
    ticks = [tick.get_text() for tick in ax.get_yticklabels()]
    assert ticks == ["0", "7", "14", "21", "28", "35"]


def test_numbers_are_drawn_in_their_cells():
    """Rounded to two digits, without the zeros at the end."""
    q = [[1, 0.5], [-2.25, 10], [0, 0.126]]
    first, second = panels(plots.grid_of_numbers({"Q": q, "K": [[3]]}))
    assert [ax.get_title() for ax in (first, second)] == ["Q", "K"]
    written = {text.get_position(): text.get_text() for text in first.texts}
    assert written == {
        (0.5, 0.5): "1", (1.5, 0.5): "0.5",
        (0.5, 1.5): "-2.25", (1.5, 1.5): "10",
        (0.5, 2.5): "0", (1.5, 2.5): "0.13",
    }  # fmt: skip
    assert [text.get_text() for text in second.texts] == ["3"]


# Curves


def test_lines_go_through_their_points_and_look_different():
    lines = {f"line {n}": (POINTS, POINTS**n) for n in range(6)}
    fig = plots.curves({"growth": lines}, x="length n", y="seconds")
    (ax,) = panels(fig)
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == (
        "growth", "length n", "seconds"
    )  # fmt: skip
    drawn = [line for line in ax.lines if len(line.get_xdata())]
    for line, points in zip(drawn, lines.values(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), np.transpose(points))
    assert len({line.get_color() for line in drawn}) == 6
    assert len({str(line._dash_pattern) for line in drawn}) == 6
    assert names_in(fig.legends[0]) == list(lines)


def test_several_runs_are_drawn_as_mean_and_range():
    runs = np.array([[5, 7], [1, 2], [0, 6]])  # run x
    fig = plots.curves({"": {"a": ([3, 4], runs)}}, x="update")
    (ax,) = panels(fig)
    (line,) = (line for line in ax.lines if len(line.get_xdata()))
    np.testing.assert_allclose(line.get_xydata(), [[3, 2], [4, 5]])
    (band,) = ax.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(3, 0), (3, 5), (4, 2), (4, 7)}
    assert to_hex(line.get_color()) == to_hex(band.get_facecolor()[0, :3])


def test_each_panel_has_the_axes_it_is_given():
    given = {name: {"": (POINTS, POINTS)} for name in ("a", "b", "c")}
    fig = plots.curves(given, x=["n", "d", "s"], log_x=2, log_y=["b"])
    assert [ax.get_xlabel() for ax in fig.axes] == ["n", "d", "s"]
    assert [ax.get_title() for ax in fig.axes] == ["a", "b", "c"]
    assert [ax.get_xscale() for ax in fig.axes] == ["log"] * 3
    assert [ax.get_yscale() for ax in fig.axes] == ["linear", "log", "linear"]
    assert fig.legends == [], "lines without a name need no legend"


def test_a_shared_y_axis_is_one_axis():
    given = {"low": LINE, "high": {"a": (POINTS, 10 * POINTS)}}
    for share in (True, False):
        fig = plots.curves(given, x="n", y="loss", log_y=True, share_y=share)
        low, high = fig.axes
        assert (low.get_ylim() == high.get_ylim()) == share
        assert [ax.get_ylabel() for ax in fig.axes] == ["loss", "" if share else "loss"]
        assert [ax.get_yscale() for ax in fig.axes] == ["log"] * 2


def test_the_legend_is_below_the_panels():
    """Many long names make the figure taller; the panels keep their height."""
    heights = []
    for n in (2, 13):
        lines = {f"a line with a long name, number {k}": LINE["a"] for k in range(n)}
        fig = plots.curves({"left": lines, "right": LINE}, x="x", size=(5, 3))
        fig.draw_without_rendering()
        legend = fig.legends[0].get_window_extent()
        assert names_in(fig.legends[0]) == [*lines, "a"]
        assert legend.y0 >= 0 and legend.x0 >= 0 and legend.x1 <= fig.bbox.width
        for ax in panels(fig):
            assert legend.y1 < ax.xaxis.label.get_window_extent().y0
        heights.append(fig.axes[0].get_window_extent().height)
    assert heights[1] == pytest.approx(heights[0], rel=0.1)


def test_a_line_looks_the_same_in_every_panel():
    left = {"a": LINE["a"], "b": LINE["a"]}
    fig = plots.curves({"left": left, "right": {"b": LINE["a"]}}, x="n", marks="o")
    (_, b), (b_again,) = (
        [line for line in ax.lines if len(line.get_xdata())] for ax in fig.axes
    )
    for look in ("get_color", "_dash_pattern", "get_marker"):
        one, other = (getattr(line, look) for line in (b, b_again))
        assert one == other if look.startswith("_") else one() == other()


# Curves as they are drawn


def two_panels():
    """Two lines, one of them in both panels, and there of three runs."""
    runs = POINTS * [[1], [2], [6]]
    left = {"a": (POINTS, POINTS), "b": (POINTS, 2 * POINTS)}
    return {"left": left, "right": {"b": (POINTS, runs)}}


@pytest.mark.parametrize("marks", [None, "o"])
def test_a_drawn_line_is_found_by_its_panel_and_its_name(marks):
    """Of several runs, the mean."""
    fig = plots.curves(two_panels(), x="n", log_y=True, marks=marks)
    for (panel, line), factor in {
        ("left", "a"): 1, ("left", "b"): 2, ("right", "b"): 3
    }.items():  # fmt: skip
        x, y = plots.drawn(fig, panel, line)
        np.testing.assert_array_equal(x, POINTS)
        np.testing.assert_allclose(y, factor * POINTS)


@pytest.mark.parametrize("n", [2, 6])
def test_lines_that_are_swapped_are_drawn_swapped(n):
    """Under their names in the data, or under the legend of the finished figure."""
    lines = {f"line {k}": (POINTS, k * POINTS) for k in range(n)}
    fig = plots.curves({"": lines}, x="n")
    for k in range(n):
        np.testing.assert_array_equal(
            plots.drawn(fig, "", f"line {k}")[1], k * POINTS, strict=True
        )
    swapped = lines | {"line 0": lines["line 1"], "line 1": lines["line 0"]}
    other = plots.curves({"": swapped}, x="n")
    first, second, *_ = fig.legends[0].texts
    first.set_text("line 1")
    second.set_text("line 0")
    for figure in (fig, other):
        for name, factor in {"line 0": 1, "line 1": 0}.items():
            np.testing.assert_array_equal(
                plots.drawn(figure, "", name)[1], factor * POINTS
            )


def test_a_line_without_a_legend_has_no_name():
    fig = plots.curves({"growth": {"": (POINTS, POINTS)}}, x="n")
    np.testing.assert_array_equal(plots.drawn(fig, "growth", ""), [POINTS, POINTS])


# Pictures


def test_pictures_are_in_rows_on_a_fixed_scale():
    """Each set in its row, each element in its place; 255 is full ink."""
    captions = [["a", "b", "c"], ["d", "e", "f"]]
    fig = plots.pictures(GREY, captions=captions, titles=["first", "second"])
    for ax, picture in zip(fig.axes, GREY.reshape(6, 4, 5), strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), picture)
        assert ax.images[0].get_clim() == (0, 255)
    assert [ax.get_xlabel() for ax in fig.axes] == list("abcdef")
    titles = [[text.get_text() for text in ax.texts] for ax in fig.axes]
    assert titles == [["first"], [], [], ["second"], [], []]
    assert fig.legends == []
    colours = np.stack([GREY, GREY + 1, GREY + 2], axis=-1)
    shown = [ax.images[0].get_array() for ax in plots.pictures(colours).axes]
    np.testing.assert_array_equal(shown, colours.reshape(6, 4, 5, 3))


def test_a_long_title_moves_no_picture():
    """It spans its row; the columns stay where a short one leaves them."""
    places = []
    for title in ("3", "aquarium_fish, odd: pickup_truck"):
        fig = plots.pictures(GREY, titles=[title, title])
        fig.draw_without_rendering()
        places.append([ax.get_position().bounds for ax in fig.axes])
    np.testing.assert_allclose(*places, atol=1e-3)


def test_the_odd_one_and_the_chosen_one_have_different_frames():
    """In colour, line and size, so that both can stand on one picture."""
    fig = plots.pictures(GREY, odd=np.array([2, 0]), chosen=np.array([2, 1]))
    found = [
        [(to_hex(p.get_edgecolor()), p.get_linestyle()) for p in ax.patches]
        for ax in fig.axes
    ]
    odd, chosen = (plots.COLOURS[1], "-"), (plots.COLOURS[0], "--")
    assert found == [[], [], [odd, chosen], [odd], [chosen], []]
    outer, inner = (patch.get_width() for patch in fig.axes[2].patches)
    assert outer > inner
    assert names_in(fig.legends[0]) == ["odd one", "chosen"]


# Patches


def grid_lines(ax):
    """Where the edges of patches are drawn, down and across, in pixels."""
    ends = [np.array(part.get_segments()) for part in ax.collections]
    columns, rows = ends[-2], ends[-1]  # over those that are wider and white
    return columns[:, 0, 0].tolist(), rows[:, 0, 1].tolist()


def test_one_channel_is_ink_on_paper():
    ink = PHOTO[..., :1]
    for image in (ink, ink / 255):
        ax, _ = patches.patch_sequence(image, 2).axes
        np.testing.assert_allclose(ax.images[0].get_array(), 1 - np.tile(ink / 255, 3))


def test_patches_are_numbered_as_the_model_cuts_them():
    """Each number stands below its patch; two rows of the picture make a line."""
    from helpers.torch import cut_patches

    cut = cut_patches(torch.tensor(PHOTO[None] / 255), 2)[0].reshape(6, 2, 2, 3)
    left, right = patches.patch_sequence(PHOTO, 2).axes
    assert grid_lines(left) == ([1.5], [1.5, 3.5])
    assert right.get_title().startswith("N = 6 patches")
    assert len(right.images) == len(right.texts) == 6
    for i, (image, text) in enumerate(zip(right.images, right.texts, strict=True)):
        np.testing.assert_allclose(image.get_array(), cut[i])
        x0, x1, y1, y0 = image.get_extent()
        x, y = text.get_position()
        assert text.get_text() == str(i) and x0 < x < x1 and y0 < y1 < y
        assert (x0 > right.images[i - 1].get_extent()[0]) == (i not in (0, 4))


def test_weights_stand_below_their_picture_and_above_what_erasing_leaves():
    """On one scale from 0, in the order in which the patches are read."""
    fig = erasing()
    shown = np.reshape(panels(fig), (3, 2))
    for column, weights in enumerate(SIX):
        above, middle, below = (ax.images[0] for ax in shown[:, column])
        np.testing.assert_allclose(above.get_array(), PHOTOS[column] / 255)
        np.testing.assert_array_equal(middle.get_array().ravel(), weights)
        assert middle.get_array().shape == (3, 2) and middle.get_clim() == (0, 10)
        np.testing.assert_allclose(below.get_array(), LEFT[column] / 255)
    assert [ax.get_title() for ax in shown[0]] == ["a", "b"]
    assert [ax.get_xlabel() for ax in shown[2]] == ["c", "d"]
    (bar,) = filter(is_bar, fig.axes)
    assert bar.get_ylabel() == "weight"


def test_weights_of_zero_are_drawn_too():
    (_, middle, _) = panels(erasing(PHOTOS[:1], 0 * SIX[:1], LEFT[:1], "a", "c"))
    assert middle.images[0].get_clim() == (0, 1)


def test_map_of_each_position_stands_where_its_patch_stands():
    """Its own patch is 1 in it; gaps between the maps are empty."""
    fig = patches.position_similarity({"a": TABLE, "b": 3 * TABLE})
    unit = TABLE / np.linalg.norm(TABLE, axis=1, keepdims=True)
    for ax in panels(fig):
        (image,) = ax.images
        shown = image.get_array()
        assert shown.shape == (11, 11) and image.get_clim() == (-1, 1)
        assert np.ma.getmaskarray(shown)[3::4].all()
        for patch in range(9):
            row, column = 4 * (patch // 3), 4 * (patch % 3)
            small = shown[row : row + 3, column : column + 3]
            np.testing.assert_allclose(small.ravel(), unit @ unit[patch], atol=1e-12)
            assert small.ravel()[patch] == pytest.approx(1)
    assert [ax.get_title() for ax in panels(fig)] == ["a", "b"]
    (bar,) = filter(is_bar, fig.axes)
    assert bar.get_ylabel() == "cosine similarity"


def test_position_of_zeros_is_like_no_other():
    (ax,) = panels(patches.position_similarity({"none": np.zeros((4, 3))}))
    assert np.ma.getmaskarray(ax.images[0].get_array()).all()


# Errors: one sentence with both values


def drawn(*names):
    """A line of the figure with two panels."""
    return plots.drawn(plots.curves(two_panels(), x="n"), *names)


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: plots.heatmaps([]), "at least one panel to draw, got none"),
        (lambda: plots.curves({"a": {}}, x="n"), "at least one line in panel 'a'"),
        (lambda: plots.heatmaps([SHARES, GREY[0]]), r"map 1 .* \(3, 4, 5\)"),
        (lambda: plots.heatmaps(SHARES), r"map 0 as row column, got shape \(3,\)"),
        (lambda: plots.grid_of_numbers({"K": POINTS}), r"'K' .* got shape \(4,\)"),
        (lambda: plots.heatmaps([SHARES], titles="ab"), "1 titles, one per map, got 2"),
        (lambda: plots.heatmaps([SHARES], x_ticks="ab"), "3 x_ticks, .* got 2"),
        (lambda: plots.curves({"": LINE}, x=["n", "d"]), "1 names of x axes, .* got 2"),
        (lambda: plots.curves({"": LINE}, x="n", log_y=["b"]), r"\[''\], got \['b'\]"),
        (lambda: plots.curves({"": {"a": (POINTS, [1])}}, x=""), r"\(4,\) .*\(1,\)"),
        (lambda: drawn("up", "a"), r"\['left', 'right'\], got 'up'"),
        (lambda: drawn("right", "a"), r"a line from \['b'\], got 'a'"),
        (lambda: plots.pictures(GREY[0]), r"b s y x or .* \(3, 4, 5\)"),
        (lambda: plots.pictures(GREY[:0]), r"got shape \(0, 3, 4, 5\)"),
        (lambda: plots.pictures(GREY, odd=[1]), "2 odd, one per set, got 1"),
        (lambda: plots.pictures(GREY, captions=["abc", "ab"]), "3 captions, .* got 2"),
        (lambda: patches.patch_sequence(PHOTO, 4), "divides 6 and 4 pixels, got 4"),
        (lambda: patches.patch_sequence(PHOTO, 0), "divides 6 and 4 pixels, got 0"),
        (lambda: patches.patch_sequence(PHOTO[..., 0], 2), r"y x i .*, got \(6, 4\)"),
        (lambda: patches.patch_sequence(PHOTO[..., :2], 2), r"channels.* \(6, 4, 2\)"),
        (lambda: patches.patch_sequence(PHOTO[:0], 2), r"got \(0, 4, 3\)"),
        (lambda: patches.patch_sequence(PHOTO / 1.0, 2), "float64 from 0.0 to 213.0"),
        (lambda: patches.patch_sequence(PHOTO * np.nan, 2), "float64 from nan to nan"),
        (lambda: patches.patch_sequence(PHOTO > 9, 2), "floats from 0 to 1, got bool"),
        (lambda: patches.patch_sequence(np.tile(PHOTO, (4, 6, 1)), 1), "64 .* got 576"),
        (lambda: erasing(PHOTO), r"b y x i .*, got \(6, 4, 3\)"),
        (lambda: erasing(weights=SIX[:1]), r"2 pictures, .* \(1, 6\)"),
        (lambda: erasing(weights=SIX[:, :5]), r"3 × 2 .* shape \(2, 5\)"),
        (lambda: erasing(weights=SIX[0]), r"b n of .* shape \(6,\)"),
        (lambda: erasing(weights=SIX[:, :0]), r"b n .* shape \(2, 0\)"),
        (lambda: erasing(weights=-SIX), "at least 0 .* from -10"),
        (lambda: erasing(weights=SIX * np.nan), "at least 0 .* from nan"),
        (lambda: erasing(titles="abc"), "2 erased .* titles and captions, got 3"),
        (lambda: erasing(after=LEFT[:1]), "2 erased .* got 1"),
        (lambda: patches.position_similarity({}), "at least one panel .* got none"),
        (lambda: patches.position_similarity({"a": TABLE[:8]}), "'a' .* got 8 rows"),
        (lambda: patches.position_similarity({"a": POINTS}), r"'a' .* shape \(4,\)"),
    ],
)  # fmt: skip
def test_invalid_input_raises_an_error_with_both_values(draw, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw()


# Contrast, by the WCAG: 4.5 for letters, 3 for lines


def contrast(*colours):
    """Contrast of two colours, 1 to 21, as the WCAG define it."""
    light = []
    for colour in colours:
        r, g, b = (
            v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
            for v in to_rgb(colour)
        )
        light.append(0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05)
    return max(light) / min(light)


def test_colours_have_enough_contrast():
    """Figures keep their paper in a dark book."""
    assert contrast("black", "white") == pytest.approx(21)
    assert contrast("#777777", "white") == pytest.approx(4.48, abs=0.005)
    assert min(contrast(c, plots.PAPER) for c in [*plots.COLOURS, plots.EDGE]) >= 3
    assert contrast(plots.INK, plots.PAPER) >= 4.5
