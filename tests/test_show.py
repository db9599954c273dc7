"""Figures, sentences and the viewer show what they are given."""

import json
import re
from base64 import b64decode
from html import unescape

import numpy as np
import pytest
from matplotlib.colors import to_hex
from safetensors.numpy import load

from helpers.show import download_link, plots, power, recorded, say, table, viewer
from helpers.weights import to_arrays
from sides import on_both_sides

LINES = {
    "loss": {"a": ([0, 1, 2], [3.0, 2.0, 1.0]), "b": ([0, 1, 2], [1.0, 5.0, 2.0])},
    "rate": {"b": ([0, 3], [0.5, 0.25])},
}


def test_weights_are_drawn_on_one_scale_and_hidden_cells_are_grey():
    one, two = np.arange(15.0).reshape(3, 5) / 15, np.full((3, 5), np.nan)
    fig = plots.heatmaps([one, two], titles=["one", "two"])
    first, second, bar = fig.axes
    np.testing.assert_allclose(first.collections[0].get_array().reshape(3, 5), one)
    assert first.collections[0].get_clim() == second.collections[0].get_clim() == (0, 1)
    assert second.collections[0].get_array().mask.all()
    assert to_hex(second.get_facecolor()) == plots.HIDDEN
    assert [first.get_title(), second.get_title()] == ["one", "two"]
    assert bar.get_ylabel() == "weight"


def test_lines_go_through_their_points_and_look_alike_in_every_panel():
    fig = plots.curves(LINES, x=["update", "epoch"], marks="o")
    loss, rate = fig.axes
    np.testing.assert_array_equal(loss.lines[1].get_xydata(), [[0, 1], [1, 5], [2, 2]])
    assert loss.lines[1].get_color() == rate.lines[0].get_color()
    assert loss.lines[0].get_color() != loss.lines[1].get_color()
    assert [ax.get_xlabel() for ax in fig.axes] == ["update", "epoch"]
    assert [text.get_text() for text in fig.legends[0].texts] == ["a", "b"]


def test_several_runs_are_a_mean_in_a_band():
    runs = np.array([[1.0, 4.0], [3.0, 0.0]])  # run x
    (ax,) = plots.curves({"t": {"a": ([0, 1], runs)}}, x="x").axes
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [2, 2])
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0, 4)


def test_only_the_named_panel_is_logarithmic():
    fig = plots.curves(LINES, x="x", log_y=["rate"], log_x=2)
    assert [ax.get_yscale() for ax in fig.axes] == ["linear", "log"]
    assert fig.axes[0].get_xscale() == "log"


def test_pictures_are_ink_on_paper_with_frames_and_captions():
    sets = np.arange(2 * 3 * 5 * 7, dtype=np.uint8).reshape(2, 3, 5, 7)
    words = [["a", "b", "c"], ["d", "e", "f"]]
    fig = plots.pictures(sets, captions=words, odd=[2, 0], chosen=[2, 1])
    np.testing.assert_array_equal(fig.axes[4].images[0].get_array(), sets[1, 1])
    assert fig.axes[0].images[0].get_clim() == (0, 255)
    assert [len(ax.patches) for ax in fig.axes] == [0, 0, 2, 1, 1, 0]
    assert fig.axes[5].get_xlabel() == "f"


def test_numbers_are_written_in_their_cells():
    fig = plots.grid_of_numbers({"W": np.array([[0.5, 2.0]])})
    assert [text.get_text() for text in fig.axes[0].texts] == ["0.5", "2"]
    assert fig.axes[0].get_title() == "W"


def test_a_script_prints_what_is_said(capsys):
    say("**Half**: 0.5")
    assert capsys.readouterr().out == "**Half**: 0.5\n"


def test_tables_and_powers_are_markdown():
    assert table(["a", "b"], [1, 2]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert power(5.2e-5) == "$5 \\cdot 10^{-5}$"


def test_measurements_are_read_as_they_were_kept():
    assert all("device" in json.dumps(found) for found in recorded("cifar10"))
    assert recorded("of nothing") == []


@on_both_sides
def test_a_link_contains_the_whole_model(side):
    model = side.build("FeedForward", 3, 5)
    html = download_link(model, "a.safetensors").data
    arrays = load(b64decode(re.search(r"base64,([^\"]*)", html)[1]))
    expected = to_arrays(model)
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)


def view_of(shown):
    """The data that a viewer hands to its script."""
    found = re.search(r'data-view="([^"]*)"', shown._repr_html_())
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 4, 3, 5, 7)])
def test_maps_arrive_unchanged(shape):
    maps = np.random.default_rng(0).dirichlet(np.ones(7), size=shape[:-1])
    view = view_of(viewer.attention(maps, about="maps"))
    assert view["shape"] == [shape[0], shape[1] if len(shape) == 5 else 1, 3, 5, 7]
    np.testing.assert_allclose(view["maps"][0]["weights"], maps.ravel(), atol=1e-4)


def test_labels_stay_in_their_attribute():
    nasty = ['"><script>alert(1)</script>', "</attention-viewer>"]
    shown = viewer.attention(np.eye(2)[None, None], nasty, about="a <b> & c")
    assert view_of(shown)["queries"] == [nasty]
    assert "<script>alert" not in shown._repr_html_()
