"""NumPy in, figure out; never shows a figure by itself.

Functions return a ``matplotlib.figure.Figure``, which a cell shows by naming it in its
last line. For dark pages the book maps colours and tints, which follow Okabe & Ito.
"""

import sys
from itertools import cycle
from math import ceil
from pathlib import Path

import numpy as np
from matplotlib import style as themes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from helpers.weights import as_numpy

PAPER, INK, HIDDEN, EDGE = "#ffffff", "#1b1f24", "#c9c9c4", "#5a6068"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
PURPLE, BROWN = "#7a3e74", "#8c6a00"
COLOURS = [BLUE, ORANGE, GREEN, PURPLE, BROWN, INK]
DASHES = [(None, None), (4, 1.5), (1, 1), (3, 1.2, 1, 1.2), (5, 1, 1, 1, 1, 1), (1, 2)]
STYLES = [{"color": c, "dashes": d} for c, d in zip(COLOURS, DASHES, strict=True)]


def use_style():
    """Set the book's theme; Jupyter shows figures as SVG, sharp at any size."""
    themes.use(Path(__file__).with_name("book.mplstyle"))
    ipython = sys.modules.get("IPython")
    if ipython and ipython.get_ipython():  # not in a plain script
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg", metadata={"Date": None})


def panels_in_rows(n, columns, size, base, each, **options):
    """A figure and the axes of ``n`` panels; ``size`` in inches, or ``base + each``."""
    columns = columns or n
    grid = ceil(n / columns), columns
    size = size or [b + e * k for b, e, k in zip(base, each, grid[::-1], strict=True)]
    # cells and pictures are pixels in the SVG: 200 dots per inch keep their edges sharp
    fig = Figure(figsize=size, layout="constrained", dpi=200)
    axes = fig.subplots(*grid, squeeze=False, **options).flat
    for ax in axes[n:]:
        ax.remove()
    return fig, axes[:n]


def heatmaps(
    maps, *, titles=None, x="key k", y="query q", x_ticks=None, y_ticks=None,
    low=0, high=1, bar="weight", size=None,
):  # fmt: skip
    """Matrices side by side, on one colour scale; NaN is grey: a hidden cell.

    ``x`` and ``y`` name the axes, ``x_ticks`` and ``y_ticks`` the columns and rows,
    ``bar`` the colour bar. With ``low < 0`` the middle of the scale is white: 0 if
    ``low = -high``. ``size`` is in inches.
    """
    maps, titles = [as_numpy(values) for values in maps], titles or [""] * len(maps)
    fig, axes = panels_in_rows(len(maps), None, size, (1.0, 0.5), (1.7, 1.75))
    scale = {"vmin": low, "vmax": high, "cmap": "RdBu" if low < 0 else "Blues"}
    ticks = y_ticks, x_ticks
    for ax, values, title in zip(axes, maps, titles, strict=True):
        ax.pcolormesh(np.ma.masked_invalid(values), rasterized=True, **scale)
        ax.invert_yaxis()  # the first row on top
        for axis, n, at in zip((ax.yaxis, ax.xaxis), values.shape, ticks, strict=True):
            places = np.arange(0, n, 1 if at else ceil(n / 6))  # at most six numbers
            axis.set_ticks(places + 0.5, at or places)
        first = ax is axes[0]
        ax.set(title=title, xlabel=x, ylabel=y if first else "")
        ax.set_facecolor(HIDDEN)  # shows where a value is NaN
        ax.tick_params("y", labelleft=first, rotation=0)
        ax.grid(False)
        ax.spines[:].set_visible(True)
    numbers = [low, (low + high) / 2, high]
    fig.colorbar(axes[0].collections[0], ax=list(axes), label=bar, ticks=numbers)
    return fig


def grid_of_numbers(matrices):
    """Small matrices by name, with numbers of two digits in the cells."""
    fig, axes = panels_in_rows(len(matrices), 3, None, (0, 0), (1.75, 1.75))
    options = {"cmap": ListedColormap([PAPER]), "edgecolors": HIDDEN, "lw": 0.8}
    for ax, (name, values) in zip(axes, matrices.items(), strict=True):
        values = as_numpy(values)
        ax.pcolormesh(0 * values, **options)
        for (row, column), value in np.ndenumerate(values):
            number = f"{value:.2f}".rstrip("0").rstrip(".")
            ax.text(column + 0.5, row + 0.5, number, ha="center", va="center")
        ax.set(title=name, xticks=[], yticks=[])
        ax.invert_yaxis()  # the first row on top
        ax.spines[:].set(visible=True, color=HIDDEN)
    return fig


def curves(
    panels, *, x, y=None, log_x=None, log_y=False, share_y=False, size=None, marks=None
):
    """Panels of lines, with one legend below them.

    ``panels`` has the title of each panel, and in it the name and the points, arrays
    ``x`` and ``y``, of each line. A line of the same name looks the same in every panel.
    If ``y`` has two axes, ``run x``, the line is the mean of the runs, in a band from the
    lowest to the highest.

    ``x`` names the x axis, or those of the panels, ``y`` the y axis where the title does
    not; ``log_x`` is the base of a logarithmic x axis, ``log_y`` makes all y axes
    logarithmic, or those with these titles; ``size`` is in inches without the legend,
    ``marks`` Matplotlib's marker of points.
    """
    x_names = [x] * len(panels) if isinstance(x, str) else x
    place = None, size, (0.6, 0.3), (2.4, 2.3)
    fig, axes = panels_in_rows(len(panels), *place, sharey=share_y)
    names = dict.fromkeys(n for lines in panels.values() for n in lines if n)
    looks = {"": STYLES[0], **dict(zip(names, cycle(STYLES), strict=False))}
    for ax, (title, lines), x_name in zip(axes, panels.items(), x_names, strict=True):
        draw_lines(ax, lines, looks, marker=marks, mec="w", mew=0.75)
        ax.set(title=title, xlabel=x_name)
        ax.set_ylabel((y or "") if ax is axes[0] or not share_y else "")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        if log_x:
            ax.set_xscale("log", base=log_x)
        if log_y is True or (log_y and title in log_y):
            ax.set_yscale("log")
    if names:  # the legend stands below all panels, where it covers no line
        lines = {line.get_label(): line for ax in axes for line in ax.lines}
        n, inches = len(names), 0.6 + 0.08 * max(map(len, names))
        columns = min(n, max(1, int(fig.get_figwidth() / inches)))
        place = {"loc": "outside lower center", "ncols": columns}
        fig.legend([lines[name] for name in names], names, **place)
        fig.set_figheight(fig.get_figheight() + 0.1 + 0.2 * ceil(n / columns))
    return fig


def draw_lines(ax, lines, looks, **options):
    """Lines of one panel, those of several runs with their band; NaN is left out."""
    for name, points in lines.items():
        xs, ys = map(as_numpy, points)
        if ys.ndim == 2:
            colour = looks[name]["color"]
            ax.fill_between(xs, ys.min(axis=0), ys.max(axis=0), color=colour, alpha=0.2)
            ys = ys.mean(axis=0)
        known = ~np.isnan(ys)
        ax.plot(xs[known], ys[known], label=name, **looks[name], **options)


def pictures(sets, *, captions=None, titles=None, odd=None, chosen=None):
    """Sets of small pictures, one set per row: uint8 ``b s y x`` or ``b s y x 3``.

    They are grey (ink on paper) or coloured. ``captions`` stand below each picture,
    ``titles`` above each row. ``odd`` and ``chosen``, integers ``b``, are places that get
    a frame: solid for the odd one, dashed for the chosen one.
    """
    sets = as_numpy(sets)
    b, s = sets.shape[:2]
    frames = {
        "odd one": (odd, {"color": ORANGE, "linestyle": "-", "lw": 2.5}),
        "chosen": (chosen, {"color": BLUE, "linestyle": "--", "lw": 2.5}),
    }
    frames = {name: found for name, found in frames.items() if found[0] is not None}
    height = 0.78 + 0.2 * (captions is not None) + 0.25 * (titles is not None)
    size = 0.74 * s, height * b + 0.35 * bool(frames)
    fig, axes = panels_in_rows(b * s, s, size, None, None)
    for (row, place), ax in zip(np.ndindex(b, s), axes, strict=True):
        ax.imshow(sets[row, place], cmap="Greys", vmin=0, vmax=255)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        if captions:
            ax.set_xlabel(captions[row][place], size=10)
        for number, (places, style) in enumerate(frames.values()):
            if places[row] == place:
                edge = 0.03 + 0.09 * number
                square = (edge, edge), 1 - 2 * edge, 1 - 2 * edge
                style = style | {"fill": False, "transform": ax.transAxes}
                ax.add_patch(Rectangle(*square, **style))
        if titles and place == 0:  # it spans the row, and not only its first picture
            room = ax.set_title(" ", loc="left")  # above the row
            style = {"xycoords": "axes fraction", "textcoords": "offset points"}
            style |= {"size": room.get_size()}
            ax.annotate(titles[row], (0, 1), (0, 6), **style).set_in_layout(False)
    if frames:
        lines = [Line2D([], [], **style) for _, style in frames.values()]
        fig.legend(lines, list(frames), loc="outside lower center", ncols=2)
    return fig
