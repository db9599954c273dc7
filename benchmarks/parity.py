"""Published models, and ours with their weights: differences, and planted mistakes.

    python -m benchmarks.parity         writes benchmarks/results/parity.md

Tiny random models of `transformers`, as in ``tests/unit/test_today.py``; no download.
"""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("notebooks", "tests/unit")]

import hugging_face as hf  # noqa: E402
import test_today as planted  # noqa: E402
from sides import jax_side, torch_side  # noqa: E402

SIDES, PACKAGES = (torch_side, jax_side), ("transformers", "torch", "jax", "flax")
CASES = "forward", "cache", "left padding", "right padding"
TEXT = """# Published models, and ours with their weights

Largest difference of a logit to `transformers`, divided by the largest logit. Tiny random models, computed in float32 on a CPU; {}.
Greedy: {} tokens after each of {} prompts of different lengths.

{}
## Planted mistakes, and the first check that finds them

{}"""  # noqa: E501


def measured(side, kind):
    """A line of the table: a model in a framework."""
    pairs = []
    for options in ({}, {"dtype": "bfloat16", "shard": "20KB"}):
        with tempfile.TemporaryDirectory() as folder:
            theirs = hf.by_theirs(hf.make(kind, folder, **options))
            model, _ = side.models.load_pretrained(folder)
        pairs.append((hf.by_ours(side, model), theirs))
    gaps = [hf.difference(*(side[case] for side in pairs[0])) for case in CASES]
    gaps.append(hf.difference(*(side["forward"] for side in pairs[1])))
    ours, theirs = (cases["tokens"] for cases in pairs[0])
    equal = f"{(ours == theirs).sum()} of {theirs.size} equal"
    return kind, side.name, *(f"{gap:.1e}" for gap in gaps), equal


def table(*rows):
    """Rows in Markdown; the first names the columns."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    names = "model", "framework", *CASES, "file in bfloat16", "greedy"
    rows = [measured(side, kind) for kind in hf.CONFIGS for side in SIDES]
    mistakes = [[m, *(str(planted.found_by(s, m)) for s in SIDES)] for m in planted.ALL]
    used = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    second = table(("mistake", "PyTorch", "JAX"), *mistakes)
    text = TEXT.format(used, hf.LENGTH, hf.B, table(names, *rows), second)
    (ROOT / "benchmarks/results/parity.md").write_text(text, "utf-8")
