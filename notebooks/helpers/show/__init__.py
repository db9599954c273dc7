"""Sentences, figures, drawings and attention maps to touch; NumPy arrays in."""

from pathlib import Path

from helpers.show.prose import recorded, say, table

DRAWINGS = Path(__file__).parent / "drawings"


def drawing(name):
    """An architecture, drawn once: an SVG by its name, for the last line of a cell."""
    from IPython.display import SVG

    names = sorted(file.stem for file in DRAWINGS.glob("*.svg"))
    if name not in names:
        raise ValueError(f"expected one of {', '.join(names)}; got {name!r}")
    return SVG((DRAWINGS / f"{name}.svg").read_text(encoding="utf-8"))
