"""Compare the book with the usual ways: pairs of measurements, tables, two files.

    python -m benchmarks.run                              everything (`make benchmark`)
    python -m benchmarks.run --task reverse --pairs 1 --updates 50      a trial
    python -m benchmarks.run --task generation --pairs 1 --length 4     another

The two trainings of a pair follow each other, each in a process of its own; the next
pair has them in the other order.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
TASKS = "reverse", "language", "generation"
FRAMEWORKS = "jax", "torch"
WAYS = "usual", "fit"
TRAINING = (
    "task", "framework", "updates", "usual s", "fit s", "usual / fit", "(range)",
    "loss usual", "loss fit", "accuracy usual", "accuracy fit", "usual MiB", "fit MiB",
)  # fmt: skip
GENERATION = (
    "framework", "model, texts", "book ms/token", "book first call s",
    "without cache ms/token", "without cache / book", "(range)",
)  # fmt: skip


def child(module, **options):
    """What a module of benchmarks prints, in a fresh interpreter with the helpers."""
    paths = os.pathsep.join([str(ROOT / "notebooks"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", f"benchmarks.{module}"]
    for name, value in options.items():
        command += [] if value is None else [f"--{name}", str(value)]
    print(" ".join(command[2:]), file=sys.stderr, flush=True)
    settings = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": paths}, "text": True}
    done = subprocess.run(command, **settings, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def pair(place, task, framework, updates, length):
    """One measurement of each way; odd pairs have them in the other order."""
    if task == "generation":
        return child("generation", framework=framework, length=length)
    given = {"task": task, "framework": framework, "updates": updates}
    order = WAYS if place % 2 == 0 else WAYS[::-1]
    return {way: child("training", way=way, **given) for way in order}


def training_row(task, framework, pairs):
    """A line of the table: medians over the pairs; the range is that of the ratios."""
    ratios = [p["usual"]["seconds"] / p["fit"]["seconds"] for p in pairs]

    def middle(name, form):
        return [f"{median(p[way][name] for p in pairs):{form}}" for way in WAYS]

    return [
        task, framework, str(pairs[0]["fit"]["updates"]), *middle("seconds", ".2f"),
        f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}",
        *middle("loss", ".4f"), *middle("validation_accuracy", ".2%"),
        *middle("peak_mib", ".0f"),
    ]  # fmt: skip


def generation_rows(framework, pairs):
    """Lines of the other table, one for each model and number of texts."""
    for case in pairs[0]["book"]:
        book, slow = ([p[way][case] for p in pairs] for way in pairs[0])
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(slow, book, strict=True)]
        yield [
            framework, case, f"{1000 * median(one['seconds'] for one in book):.2f}",
            f"{median(one['first'] for one in book):.2f}",
            f"{1000 * median(one['seconds'] for one in slow):.2f}",
            f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}",
        ]  # fmt: skip


def table(columns, rows):
    """Rows as a Markdown table, or nothing."""
    lines = [columns, ["---"] * 2 + ["---:"] * (len(columns) - 2), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n" if rows else ""


def device():
    """Name of the GPU, or model and cores of the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    text = info.read_text("utf-8") if info.exists() else ""
    found = re.findall(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return f"{(found or [name])[0].strip()}, {os.cpu_count()} cores"


def main():
    """Measure, write both files after each pair, then print."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--task", choices=TASKS, help="only this one")
    parser.add_argument("--framework", choices=FRAMEWORKS, help="only this one")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--updates", type=int, help="of a trial")
    parser.add_argument("--length", type=int, help="of a trial: tokens to generate")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    given = parser.parse_args()
    packages = "jax", "flax", "optax", "torch", "numpy"
    about = {"device": device(), "python": platform.python_version()}
    about |= {name: version(name) for name in packages}
    about |= {"date": f"{datetime.now():%Y-%m-%d %H:%M}", "pairs": given.pairs}
    measured, parts = [], (about["device"], about["date"][:10], given.task)
    name = " ".join(filter(None, (*parts, given.framework))).lower()
    path = given.output / re.sub(r"[^a-z0-9]+", "-", name).strip("-")
    for task in [given.task] if given.task else TASKS:
        for framework in [given.framework] if given.framework else FRAMEWORKS:
            pairs = []
            measured.append({"task": task, "framework": framework, "pairs": pairs})
            for place in range(given.pairs):
                sizes = given.updates, given.length
                pairs.append(pair(place, task, framework, *sizes))
                text = write(path, about, measured)
    print(text)


def write(path, about, measured):
    """Write the record and the tables made from it; the text of the tables."""
    rows, others = [], []
    for one in measured:
        if one["task"] == "generation":
            others += generation_rows(one["framework"], one["pairs"])
        else:
            rows.append(training_row(**one))
    lines = "\n".join(f"* {name}: {value}" for name, value in about.items())
    tables = [table(TRAINING, rows), table(GENERATION, others)]
    text = "\n".join([part for part in tables if part] + [lines, ""])
    path.parent.mkdir(parents=True, exist_ok=True)
    record = json.dumps({"about": about, "measured": measured}, indent=1)
    path.with_name(f"{path.name}.json").write_text(record + "\n", "utf-8")
    path.with_name(f"{path.name}.md").write_text(text, "utf-8")
    return text


if __name__ == "__main__":
    main()
