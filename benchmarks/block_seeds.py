"""From GPT-2's block to that of today, one change at a time, with several seeds.

    python -m benchmarks.block_seeds --framework torch
    python -m benchmarks.block_seeds --framework jax --seeds 0 1 --updates 65

Four blocks on the text, tokens and batches of the chapter *A model that writes*. A seed
makes the initial weights and the batches. Runs that ended are kept in ``--folder``.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from benchmarks import measure, run
from benchmarks.tasks import shortened
from helpers.data import text
from helpers.data.byte_pairs import BytePairs
from helpers.data.sequences import in_order
from helpers.engine.settings import Text
from helpers.engine.weights import count_parameters

SETTINGS = replace(Text(), n_blocks=4)
STEPS = {  # each adds to those before it
    "GPT-2's block": {"norm": "layer", "ffn": "mlp", "f": 384, "bias": True,
                      "positions": "learned"},
    "rotary positions": {"positions": "rotary"},
    "RMSNorm": {"norm": "rms"},
    "SwiGLU": {"ffn": "swiglu", "f": 256},
    "no biases, two key-value heads": {"bias": False, "n_kv_heads": 2},
    "norm of queries and keys": {"qk_norm": True},
}  # fmt: skip


def sizes(step):
    """Arguments of ``ModernLM`` after a step."""
    found = {"n_tokens": SETTINGS.n_tokens, "max_length": SETTINGS.length}
    found |= {name: getattr(SETTINGS, name) for name in ("m", "n_blocks", "n_heads")}
    for name, change in STEPS.items():
        found |= change
        if name == step:
            return found
    raise ValueError(f"expected a step of {[*STEPS]}, got {step!r}")


def trained(framework, seed, step, updates=None):
    """Bits per character, parameters, and numbers of the cache for a token."""
    side = import_module(f"helpers.{framework}")
    if framework == "torch":
        side.build.__globals__["torch"].set_num_threads(1)
    settings = shortened(replace(SETTINGS, seed=seed), updates)
    texts = text.load()
    pairs = BytePairs.learn(texts["train"], settings.n_tokens)
    tokens = {name: pairs.encode(part) for name, part in texts.items()}
    rows = text.random_windows(tokens["train"], settings)
    held_out = text.windows(tokens["test"], settings.length)
    given = sizes(step)
    model = side.build(side.ModernLM, seed=seed, **given)
    quiet = {"batches": in_order(settings), "report": lambda history: None}
    side.fit(model, side.next_token, (rows,), settings, **quiet)
    loss = side.evaluate(model, side.next_token, (held_out,), batch_size=256)["loss"]
    d, heads = given["m"] // given["n_heads"], given.get("n_kv_heads", given["n_heads"])
    return {
        "bits": text.bits_per_character(loss, tokens["test"], texts["test"]),
        "parameters": count_parameters(model),
        "numbers of the cache, a token": 2 * given["n_blocks"] * heads * d,
    }


def kept(folder, *key):
    """What ``trained`` returns, from a file if it was there."""
    file = folder / f"{'-'.join(map(str, key))}.json"
    if not file.exists():
        file.write_text(json.dumps(trained(*key)), encoding="utf-8")
        print(file, file.read_text(encoding="utf-8"), file=sys.stderr, flush=True)
    return json.loads(file.read_text(encoding="utf-8"))


def report(record):
    """The record as Markdown."""
    head = (
        "with",
        "parameters",
        "cache, numbers a token",
        "bits: mean",
        "least",
        "largest",
    )
    rows = [
        [name, f"{one['parameters']:,}", f"{one['numbers of the cache, a token']:,}",
         *(f"{way(one['bits']):.3f}" for way in (np.mean, min, max))]
        for name, one in record["figures"].items()
    ]  # fmt: skip
    facts = record["about"] | {"seeds": record["seeds"], "how": record["how"]}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    about = "Bits per character, held out; each line adds a change to those above it."
    return f"{about}\n\n{run.table(head, rows)}\n\n{facts}\n"


def main():
    """Train all steps with all seeds, two at a time, and write both files."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--framework", choices=["jax", "torch"], required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--updates", type=int)
    parser.add_argument("--folder", type=Path, default=run.ROOT / "_build/block_seeds")
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    keys = list(product([given.framework], given.seeds, STEPS, [given.updates]))
    with ProcessPoolExecutor(2) as pool:
        ends = pool.map(partial(kept, given.folder), *zip(*keys, strict=True))
        found = dict(zip(keys, ends, strict=True))
    figures = {}
    for step in STEPS:
        ones = [one for key, one in found.items() if key[2] == step]
        figures[step] = ones[0] | {"bits": [one["bits"] for one in ones]}
    about = run.machine([{"page": {"device": measure.device(given.framework)}}])
    about |= {"framework": given.framework, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": "block-seeds", "about": about, "seeds": given.seeds}
    record |= {"how": "`python -m benchmarks.block_seeds`", "figures": figures}
    to = SimpleNamespace(
        output=given.output.resolve(), task="block-seeds", framework=given.framework
    )
    print(*run.write(to, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
