"""The tables of *Warm-up* with five seeds: the record that its pages quote.

    python -m benchmarks.warmup jax        (or torch)

Runs the page's open cells up to the last table, without the suspects, then its sweep
of peak rates, and writes the losses at the end of all runs to `warmup-seeds-jax.json`.
"""

import json
import os
import platform
import sys
from datetime import date
from functools import partial
from importlib.metadata import version

import jupytext
import numpy as np

from benchmarks.run import ROOT, device

FOLDED = {"figure", "say", "check", "answer", "experiment", "your-turn"}


def main(side):
    """Run the page with five seeds instead of three, then write the record."""
    os.chdir(ROOT / "notebooks")
    sys.path.insert(0, str(ROOT / "notebooks"))
    page = {}
    for cell in jupytext.read(f"warmup_{side}.py").cells:
        hidden = cell.cell_type != "code" or FOLDED & {*cell.metadata["tags"]}
        if not hidden and "losses[filled]" not in cell.source:
            exec(cell.source.replace("SEEDS = range(3)", "SEEDS = range(5)"), page)
        if "recipe, no warm-up" in page.get("losses", ()):
            break
    ends = {
        name: page["final_losses"](np.float64(x)) for name, x in page["losses"].items()
    }
    about = {"device": device(), "python": platform.python_version()}
    about |= {"framework": side, side: version(side), "date": f"{date.today()}"}
    command = f"python -m benchmarks.warmup {side}"
    record = {"task": "warmup-seeds", "about": about, "command": command}
    record["losses"] = {name: x.round(3).tolist() for name, x in ends.items()}
    record["swept"] = {}  # for each length of warm-up: a list of seeds for each peak
    for name, w in page["lengths"].items():
        schedule, rows = partial(page["warmup_cosine"], warmup=w, total=200), []
        for peak in page["peaks"]:
            runs, _ = page["train_seeds"](
                schedule, peak=peak, seeds=range(5), **page["recipe"]
            )
            rows.append(page["final_losses"](np.float64(runs)).round(3).tolist())
        record["swept"][name] = rows
    path = ROOT / f"warmup-seeds-{side}.json"
    path.write_text(json.dumps(record) + "\n", "utf-8")
    print(path, record)


if __name__ == "__main__":
    main(sys.argv[1])
