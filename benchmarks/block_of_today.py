"""Time of the block of today against that of GPT-2: an update, and a token with cache.

    python -m benchmarks.block_of_today --framework torch

Both are a ``Today`` of four blocks, sizes as in *A model that writes*, untrained. In a
pair they are measured one after the other, in the other order in the next pair.
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

from benchmarks import generation, measure, run
from helpers.data.sequences import in_order
from helpers.engine.settings import Text

SETTINGS = replace(Text(), n_blocks=4, n_train=16 * 20, epochs=3, warmup=1)
BLOCKS = {
    "GPT-2": {"norm": "layer", "ffn": "mlp", "f": 384, "bias": True,
              "positions": "learned"},
    "today": {"f": 288, "n_kv_heads": 2},  # about as many parameters
}  # fmt: skip
PROMPT = NEW = SETTINGS.length // 2


def seconds(framework, block, least=generation.LEAST):
    """Seconds of an update, in the quickest epoch, and of a token with its prompt."""
    side, s = import_module(f"helpers.{framework}"), SETTINGS
    sizes = {"m": s.m, "n_heads": s.n_heads, "n_blocks": s.n_blocks}
    sizes |= {"n_tokens": s.n_tokens, "max_length": s.length} | BLOCKS[block]
    model = side.build(side.Today, seed=s.seed, **sizes)
    if framework == "torch" and measure.device(framework):
        model.to("cuda")
    draw = np.random.default_rng(s.seed)
    found = {}
    for n in (1, 16):
        prompts = draw.integers(s.n_tokens, size=(n, PROMPT)).tolist()
        call = side.generate_greedily, model, prompts, NEW
        generation.timed(*call)  # compiled
        found[f"token, {n}"] = generation.shortest(least, *call) / NEW
    size = s.n_train * s.epochs, s.window  # an epoch has rows of its own
    rows = draw.integers(s.n_tokens, size=size, dtype=np.int32)
    options = {"batches": in_order(s), "bar": False}
    history = side.fit(model, side.next_token, (rows,), s, **options)
    return {"update": min(history["seconds"]) / s.updates_per_epoch} | found


def report(record):
    """The record as Markdown."""
    rows = []
    for what in record["pairs"][0]["today"]:
        old, new = ([p[block][what] for p in record["pairs"]] for block in BLOCKS)
        ratios = [y / x for x, y in zip(old, new, strict=True)]
        cells = *(1000 * median(x) for x in (old, new)), median(ratios)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        rows.append([what, *(f"{x:.2f}" for x in cells), spread])
    head = ["", "GPT-2 ms", "today ms", "today / GPT-2", "(range)"]
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
        pairs.append({block: seconds(given.framework, block) for block in order})
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
