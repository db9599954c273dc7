"""An interactive view of attention maps as the output of a cell.

NumPy in, HTML out: an element that needs no kernel, no widget and no other host, with
``viewer.js`` and ``viewer.css`` written into it. Where scripts do not run, a picture of
the maps stands there instead.
"""

import json
from base64 import b64encode
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.image import imsave

from helpers.weights import as_numpy

LARGEST = 20_000  # weights in a view; each takes about seven bytes


def attention(
    maps, queries=None, keys=None, *, about, pictures=None, sequences=None,
    high=1, layer=0, head=0, query=0,
):  # fmt: skip
    """Attention maps in which the reader chooses layer, head and query: a ``View``.

    ``maps``, ``l h q k`` or ``l b h q k``, are weights of any framework, as
    ``attention_maps`` returns them; a dict by name has several of one shape, which stand
    side by side. ``about`` says in a sentence what there is to see, for those who do not
    see it; ``sequences`` names those of a batch. ``queries`` and ``keys`` are labels, a
    list or one per sequence, by default numbers; keys have those of the queries, unless
    they are other elements. ``pictures``, uint8 ``s y x`` or ``s y x 3``, maybe with
    ``b`` in front, are shown in place of the labels, which become what they are called.

    ``high`` in (0, 1] is the weight with the strongest colour. ``layer``, ``head`` and
    ``query`` are chosen at first.
    """
    named = maps if isinstance(maps, dict) else {"": maps}
    arrays = {str(name): checked(array, name) for name, array in named.items()}
    layers, b, heads, q, k = shape = next(iter(arrays.values())).shape
    if {array.shape for array in arrays.values()} != {shape}:
        raise ValueError(f"expected maps of one shape, {shape}")
    if len(arrays) * np.prod(shape) > LARGEST:
        raise ValueError(f"expected at most {LARGEST:,} weights, got shape {shape}")
    if not (layer < layers and head < heads and query < q):
        raise ValueError(f"no layer {layer}, head {head}, query {query} in {shape}")
    keys = queries if keys is None and q == k else keys
    names = [f"{i}" for i in range(b)] if sequences is None else list(sequences)
    return View(
        {
            "about": plain(about),
            "shape": shape,
            "maps": [
                {"name": plain(name), "weights": [round(float(w), 4) for w in x.flat]}
                for name, x in arrays.items()
            ],
            "queries": labels(queries, b, q, "queries"),
            "keys": labels(keys, b, k, "keys"),
            "pictures": None if pictures is None else small(pictures, b, q),
            "sequences": [plain(name) for name in names],
            "high": float(high),
            "chosen": {"layer": layer, "head": head, "query": query},
        }
    )


class View:
    """What ``attention`` returns; Jupyter shows its HTML."""

    def __init__(self, view):
        self.view = view

    def __repr__(self):
        what = "attention maps: {} layers, {} sequences, {} heads, {} queries, {} keys"
        return what.format(*self.view["shape"])

    def _repr_html_(self):
        return f"{element(self.view)}\n<script>{script()}</script>"


def checked(array, name):
    """Weights as float64 ``l b h q k``, or one sentence about what else they are."""
    what = f"the maps {name!r}" if name else "the maps"
    array = as_numpy(array)
    if array.ndim not in (4, 5) or 0 in array.shape:
        raise ValueError(f"expected {what} as l h q k or l b h q k, got {array.shape}")
    sums = array.sum(axis=-1, dtype=np.float64)
    if not (np.minimum(abs(sums), abs(sums - 1)) < 0.01).all() or array.min() < 0:
        raise ValueError(f"expected {what} with rows that sum to 1 or 0; got others")
    return array if array.ndim == 5 else array[:, None]


def labels(given, b, n, what):
    """A list of ``n`` labels for each of ``b`` sequences."""
    rows = list(range(n) if given is None else given)
    if all(np.ndim(row) == 0 for row in rows):
        rows = [rows] * b
    rows = [[plain(label) for label in row] for row in rows]
    if (sizes := [len(row) for row in rows]) != [n] * b:
        raise ValueError(f"expected {n} labels of {what} in {b} sequences, got {sizes}")
    return rows


def plain(text):
    """Text that can be written to a file: half a character becomes a question mark."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def small(pictures, b, n):
    """Pictures as PNG in data addresses, ``b`` lists of ``n``."""
    pictures = as_numpy(pictures)
    colours = pictures.ndim > 3 and pictures.shape[-1] == 3
    if pictures.ndim == 3 + colours:
        pictures = np.broadcast_to(pictures, (b, *pictures.shape))
    if pictures.dtype != np.uint8 or pictures.shape[:2] != (b, n):
        got = f"{pictures.dtype} {pictures.shape}"
        raise ValueError(f"expected uint8 pictures b s y x, {b} {n} y x, got {got}")
    return [[png(picture, "Greys") for picture in row] for row in pictures]


def png(pixels, colours):
    """A data address of uint8 pixels; ``colours`` is for those that are grey."""
    file = BytesIO()
    imsave(file, pixels, format="png", cmap=colours, vmin=0, vmax=255)
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


@cache
def script():
    """What makes the elements live, with its style written into it."""
    folder = Path(__file__).parent
    style = (folder / "viewer.css").read_text("utf-8")
    code = (folder / "viewer.js").read_text("utf-8")
    return code.replace('"viewer.css"', json.dumps(style), 1)


def element(view):
    """The element alone: the view in an attribute; in it, what is seen without scripts."""
    data = escape(json.dumps(view, separators=(",", ":"), ensure_ascii=False))
    b = view["shape"][1]
    words = f"Queries from top to bottom, keys from left to right: {keys_of(view)}"
    many = f" (the first of {b} sequences)" if b > 1 else ""
    return (
        f'<attention-viewer data-view="{data}"><p>{escape(view["about"])}{many}. {words}'
        '</p><div style="display: flex; flex-wrap: wrap; gap: 14px">'
        f"{drawn_maps(view)}</div></attention-viewer>"
    )


def keys_of(view):
    """The keys of the first sequence in a line, as labels or as pictures."""
    names = [escape(name) for name in view["keys"][0]]
    if not view["pictures"]:
        return " · ".join(f"<span>{name}</span>" for name in names)
    what = 'alt="key {}, a picture of {}" width="32" height="32"'
    pairs = enumerate(zip(view["pictures"][0], names, strict=True))
    return "".join(f'<img src="{x}" {what.format(i, name)}> ' for i, (x, name) in pairs)


def drawn_maps(view):
    """Every map of the first sequence as a picture with a caption."""
    layers, b, heads, q, k = view["shape"]
    maps = np.array([m["weights"] for m in view["maps"]])
    maps = maps.reshape(-1, layers, b, heads, q, k)[:, :, 0]  # n l h q k
    side = 230 if maps[..., 0, 0].size <= 2 else 140
    about = escape(view["about"])
    size = f'width="{side}" height="{round(side * q / k)}"'
    drawn = []
    for layer, name, head in np.ndindex(layers, len(maps), heads):
        words = [view["maps"][name]["name"]]
        words += [f"layer {layer}"] * (layers > 1) + [f"head {head}"] * (heads > 1)
        title = escape(", ".join(filter(None, words)) or "weights")
        shares = np.minimum(1, maps[name, layer, head] / view["high"])  # q k
        source = png((255 * shares).astype(np.uint8), "Blues")
        drawn.append(
            f'<figure style="margin: 0; width: {side}px"><img src="{source}" {size} '
            f'alt="{about}: {title}" style="image-rendering: pixelated">'
            f"<figcaption>{title}</figcaption></figure>"
        )
    return "".join(drawn)
