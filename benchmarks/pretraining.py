"""Record how the book's published language model was trained: two files.

    python tools/pretraining_text.py text.txt
    python scripts/train.py … --data text.txt --runs RUNS --weights FILE
    python -m benchmarks.pretraining text.txt --runs RUNS --weights FILE

What it read, the curve, the seconds, and its loss on the last tenth of the text.
"""

import argparse
import json
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import safetensors

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from benchmarks import run
from helpers.data import text
from helpers.engine.runs import part
from helpers.engine.weights import count_parameters
from helpers.torch import evaluate, load_language_model, next_token

EVERY = 100  # updates to a point of the curve


def history(folder):
    """The history of the only run in a folder."""
    (path,) = Path(folder).glob("*/checkpoint.safetensors")
    with safetensors.safe_open(path, "numpy") as file:
        return part({name: file.get_tensor(name) for name in file.keys()}, "history")  # noqa: SIM118


def figures(given):
    """What was trained on, how long, and how good it is."""
    found, parts = history(given.runs), text.load(given.text)
    model, pairs = load_language_model(given.weights)
    tokens = pairs.encode(parts["test"])
    rows = text.windows(tokens, model.max_length)
    loss = evaluate(model, next_token, (rows,), batch_size=256)["loss"]
    losses = found["loss"][: len(found["loss"]) // EVERY * EVERY].reshape(-1, EVERY)
    return {
        "parameters": count_parameters(model),
        "updates": len(found["loss"]),
        "seconds": float(found["seconds"].sum()),
        "held-out loss": loss,
        "held-out bits per character": text.bits_per_character(
            loss, tokens, parts["test"]
        ),
        "curve": [round(float(x), 4) for x in losses.mean(axis=1)],
    }


def report(record):
    """The record as Markdown."""
    found = record["figures"] | {"curve": f"one point for {EVERY} updates"}
    rows = [
        [name, f"{x:,.4g}" if isinstance(x, float) else x] for name, x in found.items()
    ]
    losses = record["figures"]["curve"]
    rows += [[f"loss, updates until {EVERY * (i + 1):,}", losses[i]]
             for i in np.linspace(0, len(losses) - 1, 10).astype(int)]  # fmt: skip
    parts = [[*one.values()] for one in record["text"]["parts"]]
    parts = [[source, f"`{kind}`", *rest] for source, kind, *rest in parts]
    head = [*record["text"]["parts"][0]]
    facts = record["about"] | {"command": f"`{record['command']}`"}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    tables = (
        run.table(head, [[*map(str, line)] for line in lines])
        for head, lines in ((["what", "figure"], rows), (head, parts))
    )
    return "\n\n".join([*tables, f"{facts}\n"])


def main():
    """Measure, and write both files."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("text", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--command", default="scripts/train.py")
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    given = parser.parse_args()
    about = run.machine([])
    about |= {"framework": "torch", "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": "pretraining", "about": about, "command": given.command}
    record |= {"figures": figures(given)}
    record["text"] = json.loads(given.text.with_suffix(".json").read_text("utf-8"))
    to = SimpleNamespace(
        output=given.output.resolve(), task="pretraining", framework="torch"
    )
    print(*run.write(to, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
