"""Write every drawing of an architecture as an SVG file.

python book/drawings/draw.py            beside the helpers, where pages find them
python book/drawings/draw.py FOLDER     elsewhere
"""

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parents[1] / "notebooks"
SHOWN = NOTEBOOKS / "helpers" / "show" / "drawings"


def main(folder=SHOWN):
    sys.path[:0] = [str(HERE), str(NOTEBOOKS)]
    for file in HERE.glob("*.py"):
        import_module(file.stem)
    from canvas import DRAWINGS, Canvas
    from helpers.show import plots

    plots.use_style()
    for name, (height, draw) in DRAWINGS.items():
        draw(canvas := Canvas(height))
        file = Path(folder) / f"{name}.svg"
        canvas.fig.savefig(file, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
