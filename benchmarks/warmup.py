"""The table of *Warm-up* with five seeds: the record that its pages quote.

    python -m benchmarks.warmup jax        (or torch)

Runs the page's open cells up to the table, without the suspects, and writes the losses
at the end of all runs to `benchmarks/results/warmup-seeds-jax.md`.
"""

import os
import platform
import sys
from importlib.metadata import version

import jupytext

from benchmarks.run import ROOT, device, table

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
        name: page["final_losses"](losses) for name, losses in page["losses"].items()
    }
    rows = [[name, *(f"{x:.3f}" for x in numbers)] for name, numbers in ends.items()]
    about = {"command": f"python -m benchmarks.warmup {side}", "device": device()}
    about |= {"python": platform.python_version(), side: version(side)}
    lines = ["Mean loss of the last ten updates of each seed:", ""]
    lines.append(table(["settings", *map(str, range(5))], rows))
    lines += [f"* {name}: {value}" for name, value in about.items()]
    path = ROOT / "benchmarks" / "results" / f"warmup-seeds-{side}.md"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
