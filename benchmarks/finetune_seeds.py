"""The chapter *Start from a trained model* with other seeds and numbers of labels.

    python -m benchmarks.finetune_seeds --framework torch
    python -m benchmarks.finetune_seeds --framework jax --seeds 0 1 --numbers 5 20
    python -m benchmarks.finetune_seeds --framework torch --rates

A seed draws the labelled lines, the initial weights of what is new, and the batches.
``--rates`` prints accuracies of rates of learning on training lines that were not used,
with other seeds, and writes nothing: the page's rates were chosen by them.
"""

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
from benchmarks import run  # noqa: E402
from benchmarks.vision_seeds import LEFT_OUT  # noqa: E402

TRIED = 3e-4, 1e-3, 3e-3, 1e-2, 3e-2


def names_of_page(framework):
    """What the cells of the page define, up to the comparison of all ways."""
    names = {}
    for cell in pages.read_py(ROOT / "notebooks" / f"finetune_{framework}.py"):
        if cell.kind == "code" and not LEFT_OUT & {*cell.tags}:
            if "models = {" in cell.source:
                return SimpleNamespace(**names)
            exec(cell.source, names)
    raise ValueError("expected a cell with models = {, found none")


def scores(page, n, seed):
    """Accuracy on the test lines by way."""
    rows = page.few(n, seed)
    yield "TF-IDF", page.baseline(rows).score(page.test_lines, page.test_labels)
    for way, rate in page.RATES.items():
        model = page.adapt(way, rows, rate, seed)
        yield way, page.evaluate(model, page.cross_entropy, page.test)["accuracy"]


def try_rates(page, numbers, seeds):
    """Accuracies on training lines that were not used, by way and rate."""
    for n in numbers:
        for way in page.RATES:
            found = []
            for rate in TRIED:
                of_rate = []
                for seed in seeds:
                    rows = page.few(n, seed)
                    model = page.adapt(way, rows, rate, seed)
                    rest = np.setdiff1d(np.arange(len(page.labels)), rows)
                    given = page.as_tokens(page.lines[rest]), page.labels[rest]
                    score = page.evaluate(model, page.cross_entropy, given)
                    of_rate.append(score["accuracy"])
                found.append(f"{rate:g}: {np.mean(of_rate):.3f}")
            print(n, way, *found, flush=True)


def report(record):
    """The record as Markdown."""
    rows = [
        [name, *(f"{x:.1%}" for x in (*found, np.mean(found)))]
        for name, found in record["figures"].items()
    ]
    head = ["way, lines a language", *map(str, record["seeds"]), "mean"]
    facts = record["about"] | {"how": record["how"]}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"{run.table(head, rows)}\n\n{facts}\n"


def main():
    """Run the page up to there, train for each number and seed, write both files."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--framework", choices=["jax", "torch"], required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--numbers", type=int, nargs="+", default=[5, 20, 100, 300])
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    given = parser.parse_args()
    page, figures = names_of_page(given.framework), {}
    if given.rates:
        try_rates(page, given.numbers, [seed + 100 for seed in given.seeds])
        return
    for n in given.numbers:
        for seed in given.seeds:
            for way, score in scores(page, n, seed):
                figures.setdefault(f"{way} {n}", []).append(float(score))
    about = run.machine([])
    about |= {"framework": given.framework, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": "finetune-seeds", "about": about, "seeds": given.seeds}
    record |= {"numbers": given.numbers, "how": "`python -m benchmarks.finetune_seeds`"}
    record |= {"figures": figures}
    to = SimpleNamespace(
        output=given.output.resolve(), task="finetune-seeds", framework=given.framework
    )
    print(*run.write(to, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
