"""Sphinx extension: each figure twice, for light and for dark pages.

Figures are drawn on white. Beside each SVG of Matplotlib, the build writes a second one
whose colours are mapped: white paper becomes the page, ink becomes light, and each
colour of ``helpers/show/plots.py`` its brighter counterpart; a mixture of a colour and
paper becomes the same mixture of their counterparts. Heat maps get another scale, dark
where they are pale. Other pictures in pixels stay as they are, with all that is drawn
on them. The theme shows one of the two, and browsers fetch only this one; what is not
shown is not read out either.
"""

import re
from base64 import b64decode, b64encode
from functools import cache
from html import unescape
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LinearSegmentedColormap
from PIL import Image

PAPER, PAGE = "#ffffff", "#121212"  # the second is the ground of the theme's dark pages
INK = "#1b1f24"
DARK = {
    INK: "#e6e9ed",
    "#000000": "#e6e9ed",  # of a figure without the book's style
    "#5a6068": "#a7b0ba",  # edges
    "#c9c9c4": "#4d545c",  # hidden
    "#0072b2": "#7cc4f0",  # blue
    "#d55e00": "#f0a06a",  # orange
    "#009e73": "#5fd0a8",  # green
    "#7a3e74": "#cf9fc8",  # purple
    "#8c6a00": "#d6b656",  # brown
}
SCALES = {  # of heat maps, from the lowest to the highest; the dark ones
    "Blues": ["#1c2430", "#2a6490", "#7cc4f0", "#dff1fd"],
    "RdBu": ["#fbd3bf", "#d9694a", "#1c2430", "#4a98cc", "#cfe8f8"],
}
NEAR = 3  # of 255: how far a mixture may be from the line between a colour and paper
COLOUR = re.compile(r"(?<=[ :;])#[0-9a-f]{6}\b")
NAMESPACES = {"": "http://www.w3.org/2000/svg", "xlink": "http://www.w3.org/1999/xlink"}
SVG, LINK = f"{{{NAMESPACES['']}}}", f"{{{NAMESPACES['xlink']}}}href"
PNG = "data:image/png;base64,"
IMAGE = re.compile(r'<img\b[^>]*?\ssrc="([^"]*)\.svg"[^>]*>')


def channels(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def in_the_dark(colour):
    """The counterpart of a colour, or of its mixture with paper.

    Raises
    ------
    ValueError
        If it is no mixture of one of the book's colours with paper.
    """
    found = []
    missing = [255 - c for c in channels(colour)]
    for light, dark in DARK.items():
        whole = [255 - c for c in channels(light)]
        share = sum(a * b for a, b in zip(whole, missing, strict=True))
        share /= sum(a * a for a in whole)
        away = max(abs(b - share * a) for a, b in zip(whole, missing, strict=True))
        found.append((away, share, dark))
    away, share, dark = min(found)
    if away > NEAR or share > 1.02:
        raise ValueError(f"expected a colour of the book or a tint of it, got {colour}")
    share = min(share, 1)
    pairs = zip(channels(dark), channels(PAGE), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def dark_figure(text):
    """An SVG of Matplotlib for dark pages."""
    for prefix, name in NAMESPACES.items():
        ElementTree.register_namespace(prefix, name)
    root = ElementTree.fromstring(text)
    for metadata in root.findall(f"{SVG}metadata"):
        root.remove(metadata)
    recolour(root)
    root.set("style", f"fill: {DARK[INK]}")  # Matplotlib leaves out black
    return ElementTree.tostring(root, encoding="unicode")


def counterpart(match):
    """A colour of the book in the dark; any other as it is (a test finds them)."""
    try:
        return in_the_dark(match[0])
    except ValueError:
        return match[0]


def recolour(node, pixels=False):
    """Map the colours of a part of a figure; ``pixels``: it is drawn over a picture."""
    if pixels and node.get("clip-path"):  # is in the picture, and not around it
        return
    if style := node.get("style"):
        node.set("style", COLOUR.sub(counterpart, style))
    ground = None
    if node.get("id", "").startswith(("figure_", "axes_")):
        ground = ground_of(node)
    if node.get("id", "").startswith("axes_"):
        maps = [recolour_map(image) for image in node.iter(f"{SVG}image")]
        pixels = not all(maps)
    for child in node:
        if child is not ground:
            recolour(child, pixels)
        elif (path := child[0]).get("style") == f"fill: {PAPER}":
            path.set("style", "fill: none")
        elif not pixels:
            recolour(child)


def recolour_map(image):
    """Map the colours of a heat map; False, and no change, of any other picture."""
    data = image.get(LINK).removeprefix(PNG)
    pixels = np.array(Image.open(BytesIO(b64decode(data))).convert("RGBA"))
    colours, places = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    for name in SCALES:
        light, dark = scales(name)
        away = abs(colours[:, None, :3].astype(int) - light).max(axis=-1)
        if (away.min(axis=-1)[colours[:, 3] > 0] <= NEAR).all():
            colours[:, :3] = dark[away.argmin(axis=-1)]
            file = BytesIO()
            Image.fromarray(colours[places].reshape(pixels.shape)).save(
                file, "png", optimize=True
            )
            image.set(LINK, PNG + b64encode(file.getvalue()).decode())
            return True
    return False


@cache
def scales(name):
    """The 256 colours of a scale of heat maps, and those for dark pages."""
    dark = LinearSegmentedColormap.from_list(name, SCALES[name])
    steps = np.arange(256)
    both = [(255 * each(steps)[:, :3]).round() for each in (colormaps[name], dark)]
    return both[0].astype(int), both[1].astype(np.uint8)


def ground_of(part):
    """What is filled below a figure or its axes: their first patch, if there is one."""
    first = next(iter(part), None)
    named = first is not None and first.get("id", "").startswith("patch_")
    return first if named else None


def show_twice(app, _page, _template, context, _doctree):
    """In place of the tag of each figure, one for light and one for dark pages."""
    if not context.get("body") or app.builder.format != "html":
        return
    sources = {name: Path(app.srcdir) / src for src, name in app.builder.images.items()}

    def both(tag):
        name = Path(unquote(urlsplit(unescape(tag[1])).path)).name
        path = sources.get(f"{name}.svg")
        text = path.read_text("utf-8") if path else ""
        if 'id="figure_1"' not in text:
            return tag[0]
        target = Path(app.outdir) / "_images" / f"{name}-dark.svg"
        target.parent.mkdir(exist_ok=True)
        target.write_text(dark_figure(text), encoding="utf-8")
        (width,) = re.findall(r'\swidth="(\d+)"', tag[0])
        light = tag[0].replace("<img", '<img class="only-light" loading="lazy"', 1)
        light = light.replace('style="', f'style="--drawn: {width}px; ', 1)
        dark = light.replace("only-light", "only-dark", 1)
        return light + dark.replace(f"{tag[1]}.svg", f"{tag[1]}-dark.svg", 1)

    context["body"] = IMAGE.sub(both, context["body"])


def setup(app):
    app.connect("html-page-context", show_twice, priority=600)  # sizes are known
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
