"""NumPy in, figure out; never shows, never computes.

Every function returns a ``matplotlib.figure.Figure`` that a cell shows by naming it in its
last line. Figures have a light background of their own, so that they read the same in a
light and in a dark book; colours are those of Okabe & Ito, told apart by line style too.
"""

from itertools import cycle

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from helpers.shapes import as_numpy

PAPER, INK, HIDDEN = "#fdfdfb", "#1b1f24", "#c9c9c4"
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#7a3e74", "#8c6a00", "#1b1f24"]
DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2))]
STYLE = {
    "font.size": 11,
    "axes.titlesize": 11,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": "#5a6068",
}


def use_style():
    """Have Jupyter show figures as SVG, which stays sharp at any size."""
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg", metadata={"Date": None})
    matplotlib.rcParams["svg.hashsalt"] = "a fixed salt gives the same file every time"


def new_figure(width, height):
    """An empty figure in the style of the book; sizes in inches."""
    with matplotlib.rc_context(STYLE):
        return Figure(figsize=(width, height), layout="constrained")


def heatmaps(
    maps, *, titles=None, columns=None, x="key k", y="query q", x_ticks=None,
    y_ticks=None, low=0, high=1, bar="weight", size=None,
):  # fmt: skip
    """A grid of matrices on one colour scale, with one colour bar.

    Parameters
    ----------
    maps : sequence of arrays ``row column``
        Drawn left to right, then down. NaN is drawn grey: a hidden cell.
    titles : list of str, optional
    columns : int, optional
        Maps in a row; all of them by default.
    x, y : str
        Names of the axes.
    x_ticks, y_ticks : list of str, optional
        One label per column or row of the matrix.
    low, high : float
        Ends of the colour scale; with ``low < 0`` its middle is white, so that
        ``low = -high`` puts white at 0.
    bar : str
        Name of the colour bar.
    size : (float, float), optional
        Inches.

    Returns
    -------
    matplotlib.figure.Figure
    """
    maps = [as_numpy(values) for values in maps]
    columns = columns or len(maps)
    rows = -(-len(maps) // columns)
    with matplotlib.rc_context(STYLE):
        fig = new_figure(*(size or (1.0 + 1.7 * columns, 0.5 + 1.75 * rows)))
        axes = fig.subplots(rows, columns, squeeze=False)
        for place, ax in enumerate(axes.flat):
            if place >= len(maps):
                ax.axis("off")
                continue
            colours = matplotlib.colormaps["RdBu" if low < 0 else "Blues"]
            image = ax.imshow(
                maps[place], cmap=colours.with_extremes(bad=HIDDEN), vmin=low, vmax=high, aspect="auto",
                interpolation="nearest",
            )  # fmt: skip
            ax.set_title(titles[place] if titles else "")
            label_ticks(ax, x_ticks, y_ticks)
            last_row, first_column = place + columns >= len(maps), place % columns == 0
            ax.set_xlabel(x if last_row else "")
            ax.set_ylabel(y if first_column else "")
            ax.tick_params(labelbottom=last_row, labelleft=first_column)
        fig.colorbar(image, ax=axes, label=bar, ticks=[low, (low + high) / 2, high])
        return fig


def label_ticks(ax, x_ticks, y_ticks):
    """Write one label per column and row, or leave whole numbers."""
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    if x_ticks is not None:
        turned = 90 if max(map(len, x_ticks)) > 2 else 0
        ax.set_xticks(range(len(x_ticks)), x_ticks, rotation=turned)
    if y_ticks is not None:
        ax.set_yticks(range(len(y_ticks)), y_ticks)


def curves(
    panels, *, x, y=None, log_x=None, log_y=False, share_y=False, columns=None,
    size=None, marks=None,
):  # fmt: skip
    """Panels of lines over a common x axis.

    Parameters
    ----------
    panels : dict of str to (dict of str to (array ``x``, array ``y``))
        Title of each panel, and in it the name and the points of each line. Three
        arrays, ``(x, low, high)``, are drawn as a band, four, ``(x, y, low, high)``, as
        a line in its band. Panels that all have the same lines share one legend, below
        them.
    x : str or list of str
        Name of the x axis, or one per panel.
    y : str, optional
        Name of the y axis, where the title of the panel does not say it.
    log_x : int, optional
        Base of a logarithmic x axis.
    log_y : bool or list of str
        Logarithmic y axis in all panels, or in those with these titles.
    share_y : bool
        The same y axis for all panels.
    columns : int, optional
        Panels in a row; all of them by default.
    size : (float, float), optional
        Inches.
    marks : str, optional
        Matplotlib's marker for the points.

    Returns
    -------
    matplotlib.figure.Figure
    """
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    names = {tuple(lines) for lines in panels.values()}
    alike = len(panels) > 1 and len(names) == 1 and any(*names)
    with matplotlib.rc_context(STYLE):
        fig = new_figure(
            *(size or (0.6 + 2.4 * columns, 0.3 + 2.3 * rows + 0.4 * alike))
        )
        axes = fig.subplots(rows, columns, squeeze=False, sharey=share_y)
        x_names = [x] * len(panels) if isinstance(x, str) else x
        used = axes.flat[: len(panels)]
        for ax, (title, lines), x_name in zip(
            used, panels.items(), x_names, strict=True
        ):
            styles = zip(lines.items(), cycle(COLOURS), cycle(DASHES), strict=False)
            for (name, points), colour, dash in styles:
                points = [as_numpy(p) for p in points]
                if len(points) > 2:
                    band = ax.fill_between(
                        points[0], *points[-2:], color=colour, alpha=0.25
                    )
                if len(points) == 3:
                    band.set_label(name)
                    continue
                ax.plot(
                    *points[:2], color=colour, linestyle=dash, label=name, marker=marks
                )
            ax.set_title(title)
            ax.set_xlabel(x_name)
            ax.set_ylabel((y or "") if ax is axes[0, 0] or not share_y else "")
            ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            if log_x:
                ax.set_xscale("log", base=log_x)
            if log_y is True or (log_y and title in log_y):
                ax.set_yscale("log")
            ax.grid(color="#d8dbdf", linewidth=0.6)
            if any(lines) and not alike:
                ax.legend(fontsize=10, framealpha=0.9)
        move_legends_off_lines(fig, used)
        if alike:
            handles = axes[0, 0].get_legend_handles_labels()
            fig.legend(*handles, fontsize=10, loc="outside lower center", ncols=2)
        for ax in axes.flat[len(panels) :]:
            ax.axis("off")
        return fig


def move_legends_off_lines(fig, axes):
    """Put a legend that would cover a piece of a line below its panel."""
    fig.draw_without_rendering()
    taller = 0
    for ax in axes:
        legend = ax.get_legend()
        box = legend and legend.get_window_extent()
        if box and any(line_enters(box, line) for line in ax.lines):
            below = ScaledTranslation(0, -0.5, fig.dpi_scale_trans)
            legend.set_loc("upper center")
            legend.set_bbox_to_anchor((0.5, 0), ax.transAxes + below)
            taller = max(taller, box.height / fig.dpi)
    fig.set_figheight(fig.get_figheight() + taller)


def line_enters(box, line):
    """Does a line, or one of its points, lie in a box of the figure?"""
    path = line.get_transform().transform_path(line.get_path())
    return box.padded(4).count_contains(path.interpolated(20).vertices) > 0


def grid_of_numbers(matrices, *, columns=3):
    """Small matrices with their numbers written in the cells, for work by hand.

    Parameters
    ----------
    matrices : dict of str to array ``row column``
        Name and numbers, rounded to two digits.
    columns : int
        Matrices in a row.

    Returns
    -------
    matplotlib.figure.Figure
    """
    rows = -(-len(matrices) // columns)
    with matplotlib.rc_context(STYLE):
        fig = new_figure(1.75 * columns, 1.75 * rows)
        axes = fig.subplots(rows, columns, squeeze=False).flat
        used = axes[: len(matrices)]
        for ax, (name, values) in zip(used, matrices.items(), strict=True):
            values = as_numpy(values)
            ax.imshow(
                np.zeros(values.shape), cmap="Greys", vmin=0, vmax=1, aspect="auto"
            )
            for place in np.ndindex(values.shape):
                text = f"{values[place]:.2f}".rstrip("0").rstrip(".")
                ax.text(*place[::-1], text, ha="center", va="center")
            ax.set_title(name)
            ax.set_xticks(np.arange(values.shape[1] + 1) - 0.5, labels=[])
            ax.set_yticks(np.arange(values.shape[0] + 1) - 0.5, labels=[])
            ax.grid(color="#b9bec5")
            ax.tick_params(length=0)
        for ax in axes[len(matrices) :]:
            ax.axis("off")
        return fig


def pictures(sets, *, captions=None, titles=None, odd=None, chosen=None):
    """Sets of small pictures, one set per row.

    Parameters
    ----------
    sets : uint8 array ``b s y x`` or ``b s y x 3``
        Grey (ink on paper) or coloured.
    captions : list of list of str, optional
        Written below each picture.
    titles : list of str, optional
        Written above each row.
    odd, chosen : integer arrays ``b``, optional
        Places that get a frame: solid for the odd one, dashed for the chosen one.

    Returns
    -------
    matplotlib.figure.Figure
    """
    sets = as_numpy(sets)
    b, s = sets.shape[:2]
    frames = {"odd one": (odd, COLOURS[1], "-"), "chosen": (chosen, COLOURS[0], "--")}
    frames = {name: frame for name, frame in frames.items() if frame[0] is not None}
    with matplotlib.rc_context(STYLE):
        height = 0.78 + 0.2 * (captions is not None) + 0.25 * (titles is not None)
        fig = new_figure(0.74 * s, height * b + 0.35 * bool(frames))
        axes = fig.subplots(b, s, squeeze=False)
        for row, place in np.ndindex(b, s):
            ax = axes[row, place]
            ax.imshow(sets[row, place], cmap="Greys", vmin=0, vmax=255)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
            if captions:
                ax.set_xlabel(captions[row][place], size=10)
            for inset, (places, colour, dash) in enumerate(frames.values()):
                if places[row] == place:
                    add_frame(ax, 0.03 + 0.09 * inset, colour, dash)
        for row, title in enumerate(titles or []):
            axes[row, 0].set_title(" ", loc="left")  # keeps the room above the row
            heading = axes[row, 0].annotate(
                title, (0, 1), (0, 6), "axes fraction", "offset points", va="baseline",
                size=STYLE.get("axes.titlesize", "large"),
            )  # fmt: skip
            heading.set_in_layout(False)  # it spans the row, not its first picture
        lines = [
            Line2D([], [], color=c, linestyle=d, lw=2.5) for _, c, d in frames.values()
        ]
        if frames:
            fig.legend(
                lines, list(frames), fontsize=10, loc="outside lower center", ncols=2
            )
        return fig


def add_frame(ax, inset, colour, dash):
    """Frame a picture, ``inset`` (a share of its width) inside its edge."""
    side = 1 - 2 * inset
    options = {"transform": ax.transAxes, "fill": False, "lw": 2.5}
    ax.add_patch(
        Rectangle((inset, inset), side, side, color=colour, linestyle=dash, **options)
    )
