"""Pictures cut into patches, for the chapter *Pictures as sequences*; NumPy in."""

from math import ceil, isqrt

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.engine.checks import expect
from helpers.show import plots
from helpers.show.plots import EDGE, ORANGE, PAPER, panels_in_rows
from helpers.weights import as_numpy


def patch_sequence(image, patch):
    """A picture ``y x i`` with a grid, and beside it its patches as a sequence.

    It has one channel (ink on paper) or three, in ``uint8`` or floats from 0 to 1;
    ``patch``, in pixels, divides both of its sides, into at most 64 patches.
    """
    colours = as_colours(image, "y x i")
    rows, columns = check_grid(colours.shape, patch)
    expect((n := rows * columns) <= 64, "at most 64 patches to draw as a row", n)
    across = min(n, 2 * columns)  # two rows of the picture are a line
    lines = ceil(n / across)
    height = 0.35 + max(1.5 * rows / columns, 6.3 / across * lines)
    fig = Figure((6, height), layout="constrained", dpi=200)
    left, right = fig.subplots(1, 2, width_ratios=[1.5, 4.5])
    show_picture(left, colours)
    (h, w), thin = colours.shape[:2], min(1.0, 24 / columns)
    for colour, lw in ((PAPER, 1.6), (ORANGE, 0.9)):  # shows on any picture
        style = {"color": colour, "lw": lw * thin}
        left.vlines(np.arange(patch, w, patch) - 0.5, -0.5, h - 0.5, **style)
        left.hlines(np.arange(patch, h, patch) - 0.5, -0.5, w - 0.5, **style)
    left.set(anchor="N", title=f"picture, p = {patch}")
    for number, (row, column) in enumerate(np.ndindex(rows, columns)):
        down, along = divmod(number, across)
        x, y = 1.2 * along, 1.8 * down
        part = colours[row * patch :, column * patch :][:patch, :patch]
        right.imshow(part, extent=(x, x + 1, y + 1, y), interpolation="none")
        right.add_patch(Rectangle((x, y), 1, 1, fill=False, ec=EDGE, lw=0.8))
        place = {"ha": "center", "va": "center", "size": 10 if across <= 8 else 7.5}
        right.text(x + 0.5, y + 1.38, str(number), **place)
    right.set_axis_off()
    right.set(xlim=(-0.1, 1.2 * across - 0.1), ylim=(1.8 * lines, 0))
    right.set(anchor="N", title=f"N = {n} patches, in reading order")
    return fig


def erasing(images, weights, after, patch, *, titles, captions):
    """Pictures, the weights of their patches below them, and what erasing leaves.

    Pictures, ``b y x i`` before and ``after`` erasing, are as in ``patch_sequence``. Weights
    ``b n`` are at least 0, one for each patch in reading order, without the class token.
    ``titles`` stand above, ``captions`` below.
    """
    images, after = (as_colours(x, "b y x i") for x in (images, after))
    weights, b = as_numpy(weights), len(images)
    rows, columns = grid = check_grid(images.shape[1:], patch)
    low, shape = weights.min(initial=1), weights.shape
    many = f"{rows} × {columns} patches of {b} pictures"
    valid = shape == (b, rows * columns) and low >= 0
    expect(valid, f"weights b n of at least 0 for {many}", f"shape {shape}, from {low}")
    for names in (after, titles, captions):
        plots.check_count(names, b, "erased pictures, titles and captions")
    fig, axes = panels_in_rows(3 * b, b, None, (0.9, 0.5), (1.1, 1.1))
    axes = axes.reshape(3, b)
    scale = {"cmap": "Blues", "vmin": 0, "vmax": weights.max() or 1}
    for i, (first, second, third) in enumerate(axes.T):
        show_picture(first, images[i])
        show_picture(second, weights[i].reshape(grid), **scale)
        show_picture(third, after[i])
        first.set_title(titles[i])
        third.set_xlabel(captions[i])
    for ax, name in zip(axes[:, 0], ("picture", "weights", "erased"), strict=True):
        ax.set_ylabel(name)
    fig.colorbar(axes[1, 0].images[0], ax=list(axes[1]), label="weight")
    return fig


def position_similarity(tables):
    """Cosine similarity of each patch's position vector with those of all patches.

    A panel for each of the ``tables`` by name, ``n m``, without the class token's row;
    ``n`` is a square. In it, each patch has a small map of its similarity with all.
    """
    tables = {n: plots.check_matrix(t, f"table {n!r}") for n, t in tables.items()}
    fig, axes = panels_in_rows(len(tables), None, None, (0.8, 0.5), (2.6, 2.6))
    for ax, (name, table) in zip(axes, tables.items(), strict=True):
        side = isqrt(n := len(table))
        what = "of a square number of patches, without the class token"
        expect(side**2 == n, f"table {name!r} {what}", f"{n} rows")
        table = table.astype(float)
        length = np.linalg.norm(table, axis=1, keepdims=True)
        unit = table / np.where(length, length, np.nan)  # zeros have no direction
        maps = np.full((side, side + 1, side, side + 1), np.nan)  # the last are gaps
        maps[:, :-1, :, :-1] = (unit @ unit.T).reshape([side] * 4).swapaxes(1, 2)
        shown = maps.reshape(side * (side + 1), -1)[:-1, :-1]
        options = {"vmin": -1, "vmax": 1, "cmap": "RdBu", "interpolation": "none"}
        picture = ax.imshow(shown, **options)
        places = (side + 1) * np.arange(side) + (side - 1) / 2
        ax.set_xticks(places, range(side))
        ax.set_yticks(places, range(side))
        first = "row of the patch" if ax is axes[0] else ""
        ax.set(title=name, xlabel="column of the patch", ylabel=first)
        ax.grid(False)
        ax.spines[:].set_visible(False)
    bar = {"label": "cosine similarity", "ticks": [-1, 0, 1]}
    fig.colorbar(picture, ax=list(axes), **bar)
    return fig


def as_colours(images, axes):
    """Pictures as floats with three channels; a single channel is ink on paper."""
    images = as_numpy(images)
    valid = images.size and images.ndim == len(axes.split())
    valid = valid and images.shape[-1] in (1, 3)
    expect(valid, f"{axes} with 1 or 3 channels", images.shape)
    whole, low, high = images.dtype == np.uint8, images.min(), images.max()
    valid = whole or (images.dtype.kind == "f" and low >= 0 and high <= 1)
    wanted = "pictures in uint8 or floats from 0 to 1"
    expect(valid, wanted, f"{images.dtype} from {low} to {high}")
    images = images / 255 if whole else images.astype(float)
    return images if images.shape[-1] == 3 else 1 - np.repeat(images, 3, axis=-1)


def check_grid(shape, patch):
    """Rows and columns of patches; a picture ``y x i`` must hold whole ones."""
    height, width = shape[:2]
    valid = patch >= 1 and height % patch == width % patch == 0
    expect(valid, f"a patch that divides {height} and {width} pixels", patch)
    return height // patch, width // patch


def show_picture(ax, colours, **scale):
    """A picture in its own pixels, without ticks."""
    ax.imshow(colours, interpolation="none", **scale)
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set(visible=True, color=EDGE, lw=0.8)
