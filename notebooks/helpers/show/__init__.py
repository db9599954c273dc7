"""Sentences, figures, drawings and attention maps to touch; NumPy arrays in."""

from base64 import b64encode
from pathlib import Path

import safetensors.numpy

from helpers.show import plots, viewer
from helpers.show.prose import power, recorded, say, table
from helpers.weights import to_arrays

DRAWINGS = Path(__file__).parent / "drawings"


def drawing(name):
    """An architecture, drawn once: an SVG by its name, for the last line of a cell."""
    from IPython.display import SVG

    names = sorted(file.stem for file in DRAWINGS.glob("*.svg"))
    if name not in names:
        raise ValueError(f"expected one of {', '.join(names)}; got {name!r}")
    return SVG((DRAWINGS / f"{name}.svg").read_text(encoding="utf-8"))


def download_link(model, name, *, half=False, metadata=None):
    """A link to a safetensors file of a model, which it contains; ``half``: float16."""
    from IPython.display import HTML

    arrays, dtype = to_arrays(model), "float16" if half else "float32"
    arrays = {key: array.astype(dtype) for key, array in arrays.items()}
    data = safetensors.numpy.save(arrays, metadata)
    address = f"data:application/octet-stream;base64,{b64encode(data).decode()}"
    size = f"{len(data) / 1024:.0f} KiB"
    return HTML(f'<a download="{name}" href="{address}">{name}</a> ({size})')
