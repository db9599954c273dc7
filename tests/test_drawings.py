"""The drawings: committed as ``book/drawings`` makes them, shown, and described."""

import ast
import re
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import numpy as np

import pages
from helpers.show import DRAWINGS

FILES = {file.name: file for file in DRAWINGS.glob("*.svg")}
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def parts(text):
    """Of an SVG: the drawn words, what is drawn in which style, and all coordinates."""
    words = re.findall(r"<!-- (.*?) -->", text)
    nodes = [*ElementTree.fromstring(text).iter()]
    styles = [(node.tag, node.get("style")) for node in nodes]
    places = (node.get(name, "") for node in nodes for name in ("d", "x", "y"))
    return words, styles, [float(n) for place in places for n in NUMBER.findall(place)]


def test_the_committed_drawings_are_those_of_draw_py(tmp_path):
    """Their names; with the Matplotlib that drew them, also what they show."""
    command = [sys.executable, pages.ROOT / "book/drawings/draw.py", tmp_path]
    subprocess.run(command, check=True)
    assert {file.name for file in tmp_path.iterdir()} == {*FILES}
    for name, file in FILES.items():
        committed = file.read_text("utf-8")
        *shown, places = parts(committed)  # it is well-formed
        if f"Matplotlib v{matplotlib.__version__}," in committed:
            *drawn, new = parts((tmp_path / name).read_text("utf-8"))
            assert drawn == shown, name
            np.testing.assert_allclose(new, places, atol=1e-3, err_msg=name)


def test_each_drawing_is_shown_and_has_an_alt_text():
    """A page shows no other, and shows it in a figure cell."""
    shown = set()
    for page in pages.sources():
        for cell in pages.read_py(page):
            for node in ast.walk(ast.parse(cell.source if cell.kind == "code" else "")):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "drawing":
                    assert "figure" in cell.tags, cell
                    assert cell.metadata["mystnb"]["image"]["alt"], cell
                    shown.add(f"{ast.literal_eval(node.args[0])}.svg")
    assert shown == {*FILES}
