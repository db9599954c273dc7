"""Write every drawing of an architecture as an SVG file.

python book/drawings/draw.py            beside the helpers, where pages find them
python book/drawings/draw.py FOLDER     elsewhere
"""

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent  # where Python looks first
sys.path.insert(1, str(HERE.parents[1] / "notebooks"))


def main(folder=HERE.parents[1] / "notebooks/helpers/show/drawings"):
    for file in HERE.glob("[a-z]*.py"):
        import_module(file.stem)
    canvas, plots = import_module("canvas"), import_module("helpers.show.plots")
    plots.use_style()
    for name, (height, draw) in canvas.DRAWINGS.items():
        draw(sheet := canvas.Canvas(height))
        file = Path(folder) / f"{name}.svg"
        sheet.fig.savefig(file, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
