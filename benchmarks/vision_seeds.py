"""The chapter on vision with other seeds, and the models that it quotes: two files.

    python -m benchmarks.vision_seeds --framework jax
    python -m benchmarks.vision_seeds --framework torch --seeds 0 1

A seed makes the split of the digits, the initial weights, the batches and the
augmentation. The cells of the page run as they are, without figures and text; then come
the other models, made of the classes and functions of the page.
"""

import argparse
import os
import sys
from dataclasses import replace
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
SHUFFLED = "patches shuffled"


def names_of_page(framework, seed):
    """What the cells of the page define, with another seed."""
    names = {}
    for cell in pages.read_py(ROOT / "notebooks" / f"vision_{framework}.py"):
        if cell.kind == "code" and not LEFT_OUT & {*cell.tags}:
            exec(cell.source.replace("Pictures()", f"Pictures(seed={seed})"), names)
    return names


def figures(page, seed):
    """Sections of accuracies and other shares, each by name."""
    s, longer = page["settings"], page["longer"]

    def vit(settings, *more):
        model = page["build"](page["VisionTransformer"], seed=seed, **settings.model)
        return page["trained"](model, settings, *more)

    def conv(settings, *more):
        model = page["build"](page["ConvNet"], 1, s.n_classes, seed=seed)
        return page["trained"](model, settings, *more)

    models = page["rivals"] | {
        "ViT, mean": vit(replace(s, pool="mean")),
        "ViT, as long": vit(longer, page["to_move"]),
        "convolutions": conv(s),
        "convolutions, augmented": conv(
            longer, page["to_move"], page["turn_and_shift"]
        ),
    }

    def on(test):
        return {name: page["accuracy"](model, *test) for name, model in models.items()}

    return {
        "test digits": on((page["x_test"], page["y_test"])),
        "shifted by one pixel": on(page["moved_test"]),
        "positions": dict(of_positions(page, vit)),
        "probability lost": page["lost"],
        "two new classes": dict(of_few(page)),
    }


def of_positions(page, vit):
    """Accuracy by the kind of positions, on whole and on shuffled digits."""
    for kind in ("none", "sinusoidal"):
        model = vit(replace(page["settings"], positions=kind))
        yield kind, page["accuracy"](model, page["x_test"], page["y_test"])
    shuffled = page["x_shuffled"], page["y_test"]
    yield f"learned, {SHUFFLED}", page["accuracy"](page["vit"], *shuffled)
    yield f"sinusoidal, {SHUFFLED}", page["accuracy"](model, *shuffled)
    near, far = page["alike"]["learned"]
    yield "cosine of learned positions, neighbours", float(near)
    yield "cosine of learned positions, others", float(far)


def of_few(page, draws=3):
    """Accuracy on two new classes by the way and the number of pictures of each."""
    for k in (4, 16):
        for way in page["ways"]:
            found = [page["learned"](way, page["few"](k, n), n) for n in range(draws)]
            yield f"{way}, {k} of each", float(np.mean(found))


def report(record):
    """The record as Markdown."""
    rows = []
    for section, lines in record["figures"].items():
        rows.append([f"**{section}**"] + [""] * (len(record["seeds"]) + 1))
        for name, values in lines.items():
            form = ".2f" if name.startswith("cosine") else ".1%"
            rows.append([name, *(f"{x:{form}}" for x in (*values, np.mean(values)))])
    head = ["", *map(str, record["seeds"]), "mean"]
    facts = record["about"] | {"how": record["how"]}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"{run.table(head, rows)}\n\n{facts}\n"


def main():
    """Run the page for each seed, and write both files."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--framework", choices=["jax", "torch"], required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    given = parser.parse_args()
    os.environ.pop("PHOTOS", None)
    found = [figures(names_of_page(given.framework, n), n) for n in given.seeds]
    together = {
        section: {name: [one[section][name] for one in found] for name in lines}
        for section, lines in found[0].items()
    }
    about = run.machine([{"page": {"device": measure.device(given.framework)}}])
    about |= {"framework": given.framework, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": "vision-seeds", "about": about, "seeds": given.seeds}
    record |= {"how": "`python -m benchmarks.vision_seeds`", "figures": together}
    to = SimpleNamespace(
        output=given.output.resolve(), task="vision-seeds", framework=given.framework
    )
    print(*run.write(to, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
