"""Draw the picture of the README: one function twice, and the weights both compute.

    python tools/picture.py

The code is cut from the two attention pages, the weights come from the reference.
tests/pages/test_readme.py holds the picture to the pages.
"""

import sys

import matplotlib
import numpy as np

import pages

sys.path.insert(0, str(pages.NOTEBOOKS))

from helpers import reference
from helpers.show import plots

TARGET = pages.ROOT / "book" / "figures" / "side-by-side.svg"
NAMES = {"jax": "JAX", "torch": "PyTorch"}


def code(side, name="plain_attention"):
    """The lines of a function as they stand on the attention page of one side."""
    source = pages.definition(pages.NOTEBOOKS / f"attention_{side}.py", name)
    return [line for line in source.splitlines() if '"""' not in line]


def maps():
    """Weights of one head without a mask, with a causal one, and with padding."""
    n = 8
    q, k, v = np.random.default_rng(0).normal(size=(3, n, 4))
    real = np.arange(n) < 5
    masks = [
        np.ones((n, n), bool),
        np.tril(np.ones((n, n), bool)),
        real & real[:, None],
    ]
    return [
        np.where(mask, reference.attention(q, k, v, mask)[1], np.nan) for mask in masks
    ]


def draw():
    """The whole picture."""
    fig = matplotlib.figure.Figure(figsize=(11.4, 3.9), dpi=200)
    for place, (side, name) in enumerate(NAMES.items()):
        left = 0.015 + 0.495 * place
        fig.text(left, 0.9, name, size=13, weight="bold")
        for row, line in enumerate(code(side)):
            fig.text(
                left, 0.81 - 0.062 * row, line.replace(" ", "\u00a0"),
                family="monospace", size=7.9,
            )  # fmt: skip
    titles = ["every word sees every word", "a causal mask", "a padding mask"]
    for place, (weights, title) in enumerate(zip(maps(), titles, strict=True)):
        ax = fig.add_axes((0.09 + 0.31 * place, 0.04, 0.2, 0.4))
        plots.draw_map(weights, ax, xticklabels=False, yticklabels=False, square=True)
        ax.set_title(title)
    return fig


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    plots.use_style()
    matplotlib.rcParams["svg.fonttype"] = "none"  # letters stay text
    draw().savefig(TARGET, metadata={"Date": None})
    print(f"{TARGET.relative_to(pages.ROOT)}: written")
