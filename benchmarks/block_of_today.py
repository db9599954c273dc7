"""Time of the block of today against that of GPT-2: an update, and a token with cache.

    python -m benchmarks.block_of_today --framework torch

Both are an untrained ``ModernLM`` of four blocks, sized as in *A model that writes*.
The next pair has them in the other order.
"""

import argparse
import os
import sys
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from benchmarks import block_seeds, generation, measure, run
from helpers.data.sequences import in_order

SETTINGS = replace(block_seeds.SETTINGS, n_train=16 * 20, epochs=3, warmup=1)
STEP = "no biases, two key-value heads"
BLOCKS = {
    "GPT-2": block_seeds.sizes("GPT-2's block"),
    "today": block_seeds.sizes(STEP) | {"f": 288},  # about as many parameters
}
PROMPT = NEW = SETTINGS.length // 2


def seconds(framework, order, least=2):
    """Of each block: seconds of an update, and of a token, with the prompt's pass.

    An update is that of the quickest epoch, a token that of the quickest call; calls of
    both blocks alternate for ``least`` seconds, so that other work slows both.
    """
    side, s = import_module(f"helpers.{framework}"), SETTINGS
    models = {
        one: side.build(side.ModernLM, seed=s.seed, **BLOCKS[one]) for one in order
    }
    if framework == "torch" and measure.device(framework):
        models = {block: model.to("cuda") for block, model in models.items()}
    draw, found = np.random.default_rng(s.seed), {block: {} for block in order}
    for n in (1, 16):
        prompts = draw.integers(s.n_tokens, size=(n, PROMPT)).tolist()
        spent = {block: [] for block in order}
        for model in models.values():
            side.generate_greedily(model, prompts, NEW)  # compiles
        while sum(map(sum, spent.values())) < least:
            for block, model in models.items():
                call = side.generate_greedily, model, prompts, NEW
                spent[block].append(generation.timed(*call)[0])
        for block in order:
            found[block][f"token, {n}"] = min(spent[block]) / NEW
    size = s.n_train * s.epochs, s.window  # an epoch has rows of its own
    rows = draw.integers(s.n_tokens, size=size, dtype=np.int32)
    options = {"batches": in_order(s), "bar": False}
    for block, model in models.items():
        history = side.fit(model, side.next_token, (rows,), s, **options)
        found[block]["update"] = min(history["seconds"]) / s.updates_per_epoch
    return found


def report(record):
    """The record as Markdown."""
    rows = []
    for what in record["pairs"][0]["today"]:
        old, new = ([p[block][what] for p in record["pairs"]] for block in BLOCKS)
        ratios = [y / x for x, y in zip(old, new, strict=True)]
        cells = *(1000 * median(x) for x in (old, new)), median(ratios)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        rows.append([what, *(f"{x:.2f}" for x in cells), spread])
    head = ["time of", "GPT-2 ms", "today ms", "today / GPT-2", "(range)"]
    facts = record["about"] | {"pairs": len(record["pairs"]), "how": record["how"]}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"{run.table(head, rows)}\n\n{facts}\n"


def main():
    """Measure the pairs, and write both files."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--framework", choices=run.FRAMEWORKS, required=True)
    parser.add_argument("--pairs", type=run.positive, default=5)
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    given = parser.parse_args()
    pairs = []
    for place in range(given.pairs):
        order = [*BLOCKS][:: 1 if place % 2 == 0 else -1]
        pairs.append(seconds(given.framework, order))
    about = run.machine([{"pair": {"device": measure.device(given.framework)}}])
    about |= {"framework": given.framework, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    about["load average"] = f"{os.getloadavg()[0]:.1f}"  # others slow both blocks
    about["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "not set")
    record = {"task": "block-of-today", "about": about, "pairs": pairs}
    record |= {"how": "`python -m benchmarks.block_of_today`"}
    to = SimpleNamespace(
        output=given.output.resolve(), task=record["task"], framework=given.framework
    )
    print(*run.write(to, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
