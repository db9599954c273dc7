"""Planted mistakes in the code that readers copy, and the test that finds each.

    python tests/mistakes.py [rotary fit]  # all, or rows with one of these words

Each is made in a copy of the book, where its test must fail; without it, all must pass.
A row: what is wrong, the framework ("both": code without one), the definition (in the
framework's helpers, in others, then on the pages; it may have several names), one place
in it and what replaces it, and the test, or the page whose own claims fail.
"""

import ast
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from itertools import chain
from pathlib import Path

import jupytext
import pytest
from nbclient import execute

TABLE = Path(__file__).with_name("mistakes.json")
MISTAKES = [tuple(row.values()) for row in json.loads(TABLE.read_text("utf-8"))]

ROOT = Path(__file__).parents[1]
FOLDERS = "notebooks", "tests", "tools", "scripts", "book/_ext", "benchmarks"
FILES = "pyproject.toml", "conftest.py", "_toc.yml", "_config.yml"
HELPERS = "helpers/data/*.py", "helpers/*.py"  # no framework


def spans(text, names, old):
    """First and last line of each definition of these names that has the code once."""
    for node in ast.walk(ast.parse(text)) if old in text else ():
        targets = [getattr(x, "id", None) for x in getattr(node, "targets", ())]
        if {getattr(node, "name", None), *targets} & {*names}:
            first, last = node.lineno - 1, node.end_lineno
            if "\n".join(text.split("\n")[first:last]).count(old) == 1:
                yield first, last


def plant(tree, side, names, old, new):
    """Make a mistake in the tree: the files changed, and their texts as they were."""
    sides = ("jax", "torch") if side == "both" else (side,)
    own = [f"helpers/{side}/*.py"] if side != "both" else []
    for patterns in [*own, *HELPERS, " ".join(f"*_{name}.py" for name in sides)]:
        before = {}
        for path in chain(*map((tree / "notebooks").glob, patterns.split())):
            text = path.read_text("utf-8")
            for first, last in spans(text, names.split(), old):
                lines = before.setdefault(path, text).split("\n")
                lines[first:last] = ["\n".join(lines[first:last]).replace(old, new)]
                path.write_text("\n".join(lines), "utf-8")
        if before:
            return before
    return {}


def run(tree, tests, log):
    """Run tests in this process, and end it with pytest's exit code; or run a page."""
    os.chdir(tree)
    sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
    with log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        if "::" not in tests[0]:
            return execute(jupytext.read(Path("notebooks", tests[0])), cwd="notebooks")
        paths = [f"tests/{test}" for test in tests]
        sys.exit(int(pytest.main(["-q", "-p", "no:cacheprovider", *paths])))


def main(words):
    """Plant the mistakes one by one; exit code 1 unless each is caught."""
    rows = [row for row in MISTAKES if not words or any(w in str(row) for w in words)]
    process = multiprocessing.get_context("forkserver")  # frameworks are imported once
    process.set_forkserver_preload(["jax", "flax.nnx", "optax", "torch", "pytest"])
    started, caught = time.time(), 0
    with tempfile.TemporaryDirectory(prefix="mistakes-") as folder:
        tree, log = Path(folder), Path(folder, "log")
        for name in FOLDERS:
            shutil.copytree(ROOT / name, tree / name)
        for name in FILES:
            shutil.copy(ROOT / name, tree / name)
        ids = list(dict.fromkeys(row[-1] for row in rows))
        parts = [[x for x in ids if "::" in x], *([x] for x in ids if "::" not in x)]
        none = [("no mistake", "both", tests) for tests in parts if tests]
        for what, side, *change, tests in [*none, *rows]:
            before = plant(tree, side, *change) if change else {}
            said = "CODE NOT FOUND"
            if before or not change:
                args = tree, [tests] if change else tests, log
                job = process.Process(target=run, args=args)
                job.start()
                job.join()
                codes = ("NOT CAUGHT", "caught") if change else ("passes", "FAILS")
                said = dict(enumerate(codes)).get(job.exitcode, "NO SUCH TEST")
            caught += said == "caught"
            print(f"{time.time() - started:4.0f} s  {side:5}  {what}: {said}", flush=1)
            if said in ("FAILS", "NO SUCH TEST"):
                print(log.read_text("utf-8"))
            for path, text in before.items():
                path.write_text(text, "utf-8")
    print(f"{caught} of {len(rows)} caught")
    sys.exit(caught < len(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
