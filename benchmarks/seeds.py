"""What the records of other seeds share: cells of a page, arguments, both files."""

import argparse
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "notebooks"))

import pages  # noqa: E402
from benchmarks import measure, run  # noqa: E402

LEFT_OUT = {"setup", "figure", "say", "check", "answer"}


def names_of_page(page, until=None, change=str):
    """What the cells of a page define, changed, up to the first that has ``until``."""
    names = {}
    for cell in pages.read_py(ROOT / "notebooks" / f"{page}.py"):
        if until and until in cell.source:
            return names
        if cell.kind == "code" and not LEFT_OUT & {*cell.tags}:
            exec(change(cell.source), names)
    if until:
        raise ValueError(f"expected a cell with {until} in {page}.py, found none")
    return names


def parser(about):
    """A parser of the arguments that all have."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=form)
    parser.add_argument("--framework", choices=["jax", "torch"], required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results")
    return parser


def together(found):
    """One dictionary of sections for each seed as sections of lists."""
    return {
        section: {name: [float(one[section][name]) for one in found] for name in lines}
        for section, lines in found[0].items()
    }


def rows_of(figures):
    """Rows of a table: a section's name, or a line of figures and their mean."""
    for name, found in figures.items():
        if isinstance(found, dict):
            yield [f"**{name}**"]
            yield from rows_of(found)
        else:
            form = ".2f" if name.startswith("cosine") else ".1%"
            yield [name, *(f"{x:{form}}" for x in (*found, np.mean(found)))]


def report(record, first=""):
    """The record as Markdown; ``first`` is the name of the first column."""
    head = [first, *map(str, record["seeds"]), "mean"]
    rows = [row + [""] * (len(head) - len(row)) for row in rows_of(record["figures"])]
    facts = record["about"] | {"how": record["how"]}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"{run.table(head, rows)}\n\n{facts}\n"


def write(given, task, figures, first="", **more):
    """Write both files of a task, and print their paths."""
    about = run.machine([{"page": {"device": measure.device(given.framework)}}])
    about |= {"framework": given.framework, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": task, "about": about, "seeds": given.seeds, **more}
    record["how"] = f"`python -m benchmarks.{task.replace('-', '_')}`"
    record["figures"] = figures
    to = SimpleNamespace(
        output=given.output.resolve(), task=task, framework=given.framework
    )
    print(*run.write(to, report(record, first), record), sep="\n")
