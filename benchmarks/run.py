"""Compare the book with the usual ways: pairs of measurements, a table, two files.

    python -m benchmarks.run                              everything (`make benchmark`)
    python -m benchmarks.run --task reverse --pairs 1 --updates 50      a trial
    python -m benchmarks.run --task generation --pairs 1 --length 4           another

The two trainings of a pair follow each other, each in a process of its own; all ways to
generate follow each other in one process. The next pair has them in the other order.
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
TASKS = "reverse", "anomaly", "text", "vision", "generation"
FRAMEWORKS = "jax", "torch"
WAYS = "usual", "fit"
PACKAGES = "jax", "flax", "optax", "torch", "numpy"
SHOWN = "seconds", "updates", "loss", "validation_accuracy", "peak_mib"
SPEEDS = "gflops", "matmul_gflops"
COLUMNS = (
    "task", "framework", "updates", "usual s", "fit s", "usual / fit", "(range)",
    "usual ms/update", "fit ms/update", "loss usual", "loss fit",
    "validation accuracy usual", "validation accuracy fit", "usual MiB", "fit MiB",
    "fit GFLOP/s", "matrix product GFLOP/s",
)  # fmt: skip
GENERATION_COLUMNS = (
    "framework", "model, texts", "book ms/token", "book first call s",
    "without cache ms/token", "without cache / book", "(range)",
    "Python loop ms/token", "Python loop / book", "(range)",
)  # fmt: skip


def child(module, *more, **options):
    """Run a module of benchmarks in a fresh interpreter that finds the helpers."""
    paths = [str(ROOT / "notebooks"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", f"benchmarks.{module}"]
    for name, value in options.items():
        command += [] if value is None else [f"--{name}", str(value)]
    command += more
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed; its message is above")
    return done.stdout


def pair(place, **options):
    """One measurement of each way; odd pairs have them in the other order."""
    if options["task"] == "generation":
        print(f"pair {place + 1}: {options} …", file=sys.stderr, flush=True)
        del options["task"]
        return json.loads(child("generation", place=place, **options).splitlines()[-1])
    order = WAYS if place % 2 == 0 else WAYS[::-1]
    found = {}
    for way in order:
        print(f"pair {place + 1}: {options}, {way} …", file=sys.stderr, flush=True)
        found[way] = json.loads(child("measure", way=way, **options).splitlines()[-1])
    return {way: found[way] for way in WAYS}


def row(task, framework, pairs):
    """A line of the table: medians over the pairs; the range is that of the ratios."""
    ratios = [p["usual"]["seconds"] / p["fit"]["seconds"] for p in pairs]
    middle = {
        way: {name: median(p[way][name] for p in pairs) for name in SHOWN}
        for way in WAYS
    }
    usual, fit = middle["usual"], middle["fit"]
    both = [(usual[name], fit[name]) for name in usual]
    seconds, updates, losses, accuracies, memory = both
    rates = [1000 * s / n for s, n in zip(seconds, updates, strict=True)]
    return [
        task, framework, f"{fit['updates']:.0f}", *(f"{x:.2f}" for x in seconds),
        f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}",
        *(f"{x:.2f}" for x in rates), *(f"{x:.4f}" for x in losses),
        *(f"{x:.2%}" for x in accuracies), *(f"{x:.0f}" for x in memory),
        *(f"{median(p['fit'][k] for p in pairs):.1f}" for k in SPEEDS),
    ]  # fmt: skip


def generation_rows(framework, pairs):
    """Lines of the other table, one for each model and number of texts."""
    for case in pairs[0]["book"]["seconds"]:
        book = [p["book"]["seconds"][case] for p in pairs]
        first = median(p["book"]["first"][case] for p in pairs)
        cells = [framework, case, f"{1000 * median(book):.2f}", f"{first:.2f}"]
        for way in ("without cache", "Python loop"):
            if way not in pairs[0]:  # PyTorch has no other loop
                cells += ["–"] * 3
                continue
            usual = [p[way]["seconds"][case] for p in pairs]
            ratios = [x / y for x, y in zip(usual, book, strict=True)]
            cells += [f"{1000 * median(usual):.2f}", f"{median(ratios):.2f}"]
            cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
        yield cells


def table(columns, rows):
    """Rows as a Markdown table."""
    lines = [columns, ["---"] * 2 + ["---:"] * (len(columns) - 2), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def processor():
    """Model and number of cores of the CPU."""
    name = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        text = Path("/proc/cpuinfo").read_text()
        name = (re.findall(r"^model name\s*: (.*)$", text, re.MULTILINE) or [name])[0]
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return f"{name.strip()}, {cores} cores"


def machine(pairs):
    """What the numbers depend on: devices and versions."""
    used = {one["device"] for p in pairs for one in p.values()} - {None}
    return {
        "device": ", ".join(sorted(used)) or processor(),
        "cpu": processor(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def report(measured, began):
    """The text and the record of what has been measured."""
    about = machine([pair for *_, pairs in measured for pair in pairs])
    counts = sorted({len(pairs) for *_, pairs in measured})
    about |= {"date": f"{began:%Y-%m-%d %H:%M}", "pairs": " or ".join(map(str, counts))}
    lines = [f"* {name}: {value}" for name, value in about.items()]
    rows, others = [], []
    for task, *rest in measured:
        if task == "generation":
            others += generation_rows(*rest)
        else:
            rows.append(row(task, *rest))
    both = (COLUMNS, rows), (GENERATION_COLUMNS, others)
    tables = [f"{table(*one)}\n" for one in both if one[1]]
    text = "\n".join([*tables, *lines, ""])
    names = "task", "framework", "pairs"
    raw = [dict(zip(names, line, strict=True)) for line in measured]
    return text, {"about": about, "measured": raw}


def write(given, text, record):
    """Both files, named by device, date and, of a part, what was measured."""
    given.output.mkdir(parents=True, exist_ok=True)
    about = record["about"]
    parts = about["device"], about["date"][:10], given.task, given.framework
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(filter(None, parts)).lower()).strip("-")
    contents = {"json": json.dumps(record, indent=1) + "\n", "md": text}
    for kind, content in contents.items():
        draft = given.output / f"{name}.{kind}.draft"
        draft.write_text(content, "utf-8")
        draft.replace(given.output / f"{name}.{kind}")
    return [given.output / f"{name}.{kind}" for kind in contents]


def positive(text):
    """A whole number of at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return number


def arguments():
    """Of the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--task", choices=TASKS, help="only this one")
    parser.add_argument("--framework", choices=FRAMEWORKS, help="only this one")
    parser.add_argument("--pairs", type=positive, default=5)
    parser.add_argument("--updates", type=int, help="fewer, or whole epochs")
    parser.add_argument("--length", type=positive, help="tokens to generate, fewer")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


def main():
    """Measure and write, then print."""
    given = arguments()
    cases = [
        {"task": task, "framework": framework, size: getattr(given, size)}
        for task in ([given.task] if given.task else TASKS)
        for size in ("length" if task == "generation" else "updates",)
        for framework in ([given.framework] if given.framework else FRAMEWORKS)
    ]
    began, measured = datetime.now(), []
    for case in cases:
        measured.append((case["task"], case["framework"], pairs := []))
        for place in range(given.pairs):
            pairs.append(pair(place, **case))
            text, record = report(measured, began)
            paths = write(given, text, record)  # each pair is kept at once
    print(text, *paths, sep="\n")


if __name__ == "__main__":
    main()
