"""The bounds that the pages assert, with what was measured when they were built.

    python tools/bounds.py    the table of all, the loosest first

For authors, after ``make draft`` or ``make book``. A bound so far from what is measured
that it no longer notices a changed result is an error, unless a comment on its line
says why: ``# loose: the norm has no upper limit``. (No test, because another machine
measures other numbers.)

The kernel of a page that ``build_book.py`` executes loads this as an extension: of each
``assert`` with a comparison, and of each ``allclose``, it notes both sides, and they
come to ``_build/bounds``, one file for each page.
"""

import ast
import builtins
import json
import operator
import os
import re
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent.parent / "_build" / "bounds"
LIMIT = 3  # times; the room that other machines get
CLOSE_LIMIT = 10  # of a difference, which may happen to be small
DIFFERENCE = re.compile(r"(np\.)?(abs\(|allclose|isclose|testing)")
ROUNDING = 1e-3  # what stays below such a bound is the error of rounding
LACKING = 0.1  # of a share: nearer to the whole, all bounds above 0.7 are near enough
CLAIM = re.compile(r"\A# Checked: (.*)")
LOOSE = re.compile(r"# loose: (.+)")
COMPARES = {name: getattr(operator, name.lower()) for name in ("Lt", "Gt")}
COMPARES |= {"LtE": operator.le, "GtE": operator.ge}
CLOSE = {  # and the relative tolerance that it has by default
    "np.allclose": 1e-5, "np.isclose": 1e-5, "np.testing.assert_allclose": 1e-7,
}  # fmt: skip


# In the kernel


def load_ipython_extension(shell):
    """Note the bounds of every cell, for ``$PAGE`` in ``$BOUNDS_FOLDER``."""
    if "BOUNDS_FOLDER" not in os.environ:
        return
    file = Path(os.environ["BOUNDS_FOLDER"], os.environ["PAGE"]).with_suffix(".json")
    found, source = {}, [""]
    shell.ast_transformers.append(Noting(source, partial(note, found)))

    def before(info):
        source[0] = info.raw_cell or ""

    def after(_):
        file.write_text(json.dumps([*found.values()], indent=1), encoding="utf-8")

    shell.events.register("pre_run_cell", before)
    shell.events.register("post_run_cell", after)


class Noting(ast.NodeTransformer):
    """Lets the assertions of a cell hand what they compare to ``note``, too."""

    def __init__(self, source, note):
        self.source, self.note = source, note

    def visit_Module(self, node):
        assigned = [n for n in ast.walk(node) if isinstance(n, ast.Assign)]
        self.numbers = {
            ast.unparse(n.targets[0]) for n in assigned if is_number(n.value)
        }
        return ast.fix_missing_locations(self.generic_visit(node))

    def visit_Assert(self, node):
        node.test = self.noting(node.test, node)
        return node

    def visit_Expr(self, node):
        if name_of(node.value) in CLOSE:
            node.value = self.noting(node.value, node)
        return node

    def noting(self, node, line):
        """The same term; where it compares, it notes what."""
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            node.values = [self.noting(value, line) for value in node.values]
        elif isinstance(node, ast.GeneratorExp | ast.ListComp):
            node.elt = self.noting(node.elt, line)
        elif name_of(node) in ("all", "np.all"):
            node.args[0] = self.noting(node.args[0], line)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "all":
            node.func.value = self.noting(node.func.value, line)  # (…).all()
        elif name_of(node) in CLOSE:
            call = self.caller(close, node, line, CLOSE[name_of(node)])
            return ast.Call(call, [node.func, *node.args], node.keywords)
        elif isinstance(node, ast.Compare):
            names = [type(op).__name__ for op in node.ops]
            terms = [node.left, *node.comparators]
            if {*names} <= {*COMPARES}:
                bounds = [self.is_bound(term) + is_number(term) for term in terms]
                return ast.Call(
                    self.caller(compare, node, line, names, bounds), terms, []
                )
        return node

    def is_bound(self, node):
        """Does a term hold a number that somebody chose, as in ``0.7 * post``?"""
        if isinstance(node, ast.BinOp):
            left, right = self.is_bound(node.left), self.is_bound(node.right)
            if isinstance(node.op, ast.Pow):
                return left
            chance = isinstance(node.op, ast.Div) and ast.unparse(node.left) == "1"
            return right or (left and not chance)  # as 1 / n
        return is_number(node) or ast.unparse(node) in self.numbers

    def caller(self, function, node, line, *more):
        """A name of its own for a function that knows the claim and the term."""
        lines = self.source[0].splitlines()[line.lineno - 1 : line.end_lineno]
        about = {
            "claim": "".join(CLAIM.findall(self.source[0])),
            "assertion": ast.unparse(node),
            "loose": "".join(LOOSE.findall("\n".join(lines))),
        }
        name = f"__bound_{id(about)}__"
        setattr(builtins, name, partial(function, partial(self.note, about), *more))
        return ast.Name(name, ast.Load())


def is_number(node):
    """A number that is written down, with or without a sign."""
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def name_of(node):
    """``np.all`` for ``np.all(x)``; nothing for what is no call."""
    return isinstance(node, ast.Call) and ast.unparse(node.func)


def compare(note, names, bounds, *terms):
    """What ``a < b``, or ``a < b < c``, gives; the pairs with a bound are noted."""
    result = True
    for i, (name, pair) in enumerate(zip(names, pairwise(terms), strict=True)):
        kinds = bounds[i : i + 2]
        if any(kinds):  # the number itself rather than a term with one
            note(i, *pair[:: -1 if kinds[0] > kinds[1] else 1], max(kinds) == 2)
        result = result and COMPARES[name](*pair)
    return result


def close(note, default, function, *terms, **options):
    """What ``allclose(a, b, …)`` gives; a tolerance beyond rounding is noted."""
    result = function(*terms, **options)
    rtol, atol = options.get("rtol", default), options.get("atol", 0)
    if max(rtol, atol) > ROUNDING:
        a, b = (np.asarray(term, dtype=float) for term in terms[:2])
        note(0, np.abs(a - b), atol + rtol * np.abs(b))
    return result


def note(found, about, place, measured, bound, is_number=False):
    """Keep what is nearest to its bound: of an array, and of all rounds of a loop.

    The slack is how many times one is the other; of a share above a number, as 0.97 of
    all sets, it is that of what the share lacks, too, which counts as at least 0.1.
    """
    try:
        pair = np.broadcast_arrays(*(np.asarray(x) for x in (measured, bound)))
        size = np.sort(np.abs(np.array(pair, dtype=float)).reshape(2, -1), axis=0)
    except (TypeError, ValueError, RuntimeError):  # no numbers, or not yet
        return
    sides = [np.ravel(side).astype(float) for side in pair]
    with np.errstate(divide="ignore", invalid="ignore"):
        slack = np.where(sides[0] * sides[1] > 0, size[1] / size[0], np.inf)
        share = is_number & (sides[1] > 0) & (sides[1] < sides[0]) & (sides[0] <= 1)
        lacks = (1 - sides[1]) / np.maximum(1 - sides[0], LACKING)
        slack = np.where(share, np.maximum(slack, lacks), slack)
    if not slack.size:
        return
    at = int(slack.argmin())
    before = found.get((id(about), place), {"slack": np.inf})
    if slack[at] <= before["slack"]:
        counts = all(side.dtype.kind in "iub" for side in pair)
        values = {"measured": float(sides[0][at]), "bound": float(sides[1][at])}
        found[id(about), place] = {
            **about, **values, "slack": float(slack[at]), "counts": counts
        }  # fmt: skip


# Outside of it


def read():
    """All that was noted, with its page, the loosest first."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            found.append({"page": path.stem, **entry})
    return sorted(found, key=lambda entry: -entry["slack"])


def is_result(entry):
    """Is it the bound of a result: no sign, no count, no tolerance of rounding?"""
    size, bound = abs(entry["measured"]), abs(entry["bound"])
    return not entry["counts"] and bound > (ROUNDING if size <= bound else 0)


def is_loose(entry):
    """Is the bound of a result far from what is measured, without a reason?"""
    below = entry["measured"] <= entry["bound"]
    limit = CLOSE_LIMIT if below and DIFFERENCE.match(entry["assertion"]) else LIMIT
    return is_result(entry) and not entry["loose"] and entry["slack"] > limit + 1e-6


def table(entries):
    """Markdown, one line for each entry."""
    lines = [
        "| page | claim | assertion | measured | bound | times |",
        "|---" * 6 + "|",
    ]
    for e in entries:
        cells = e["page"], e["claim"], f"`{e['assertion']}`"
        numbers = (f"{e[name]:.3g}" for name in ("measured", "bound", "slack"))
        lines.append(f"| {' | '.join([*cells, *numbers])} |")
    return "\n".join(lines)


def main():
    found = read()
    print(table(filter(is_result, found)))
    if loose := [entry for entry in found if is_loose(entry)]:
        print(
            f"\n{len(loose)} bounds are too far from what is measured: tighten them, or"
        )
        print("say why not in a comment `# loose: …`\n", table(loose), sep="\n")
    return bool(loose)


if __name__ == "__main__":
    sys.exit(main())
