"""Each kind of cell does its part: code teaches, checks prove, figures and text show.

Every rule is a function of the cells of a page that yields what is wrong. It is tried
on small pages, good and bad ones, and then on every page.
"""

import ast
import re
from itertools import pairwise

import pytest

import pages
from helpers.show.prose import COMPARES, LESS
from said import literals

LESS = {*LESS.split(), "at most", "no more"}
FREE = {"falls", "drops", "shrinks", "rises", "grows", "exceeds"}  # say it by numbers
FREE |= {"at most", "at least", "earlier", "later", "closer", "nearer", "further"}
WORD = re.compile(rf"\b({'|'.join(sorted(COMPARES, key=len, reverse=True))})\b")
UNCLEAR = re.compile(r"\b(better|worse)\b")
THAN = re.compile(rf"{WORD.pattern}[^.]*\bthan\b", re.DOTALL)
LIMIT = re.compile(rf"{WORD.pattern} (?:than )?(\d[\d,]*(?:\.\d+)?)( ?%)?")
WAY = {word: "less" if word in LESS else "more" for word in COMPARES}
OTHER = {"less": "more", "more": "less"}
SIGNS = {ast.Lt: "less", ast.LtE: "less", ast.Gt: "more", ast.GtE: "more"}
FOLDS, MOST_FOLDS = {"check", "experiment", "answer", "imports", "setup"}, 25
DRAWS = re.compile(r"drawing|(plots|plt)\.(?!use_style|drawn)\w+")


def page_of(*cells):
    """A page from ``(kind, source)`` or ``(kind, source, alt)``."""
    made = []
    for kind, source, *alt in cells:
        tags = ["shared", kind] if kind not in ("open", "markdown") else ["shared"]
        metadata = {"tags": tags}
        if alt:
            metadata["mystnb"] = {"image": {"alt": alt[0]}}
        what = "markdown" if kind == "markdown" else "code"
        made.append(pages.Cell("page.py", len(made) + 1, what, source, metadata))
    return made


def calls(cell):
    """Every function that a code cell calls, as it is written: ``np.testing.…``."""
    nodes = ast.walk(ast.parse(cell.source)) if cell.kind == "code" else []
    return [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]


def checks(cell):
    """Does a code cell state something that can turn out to be false?"""
    nodes = ast.walk(ast.parse(cell.source)) if cell.kind == "code" else []
    return any(isinstance(node, ast.Assert) for node in nodes) or any(
        name.startswith("np.testing.") or name.rpartition(".")[2] == "check_shape"
        for name in calls(cell)
    )


def draws(cell):
    return any(DRAWS.fullmatch(name) for name in calls(cell))


def alt(cell):
    return cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")


def sentences(cell):
    """The strings with numbers in them, and those that are said as they are."""
    for node in ast.walk(ast.parse(cell.source)):
        if isinstance(node, ast.JoinedStr):
            yield from literals(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "say":
            plain = (part for part in node.args if isinstance(part, ast.Constant))
            yield from (str(part.value) for part in plain)


# The rules


def too_many_folds(cells):
    """Lines that unfold something; those of figures and sentences take no line."""
    found = [cell for cell in cells if FOLDS & {*cell.tags}]
    if len(found) > MOST_FOLDS:
        yield f"{cells[0].page}: {len(found)} folds"


def assertions_outside_checks(cells):
    for cell in cells:
        if checks(cell) and not {"check", "answer"} & {*cell.tags}:
            yield f"{cell}: asserts, but is no cell of the kind 'check' or 'answer'"


def checks_that_are_none(cells):
    for cell in cells:
        if "check" in cell.tags:
            if not re.match(r"# Checked: \S", cell.source):
                yield f"{cell}: a check begins '# Checked: …'"
            if not checks(cell):
                yield f"{cell}: checks nothing"
            last = ast.parse(cell.source).body[-1:]
            shown = [n.value for n in last if isinstance(n, ast.Expr)]
            if shown and not ast.unparse(shown[0]).startswith("np.testing."):
                yield f"{cell}: shows its last line, {ast.unparse(shown[0])}"


def cells_that_do_something_else(cells):
    """A line that unfolds a cell says truly what is in it."""
    for cell in cells:
        if "experiment" in cell.tags and not re.match(r"# Experiment: \S", cell.source):
            yield f"{cell}: an experiment begins '# Experiment: …'"
        if "imports" in cell.tags:
            nodes = ast.parse(cell.source).body
            if not all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes):
                yield f"{cell}: more than imports"


def drawings_outside_figures(cells):
    for cell in cells:
        if draws(cell) and not {"figure", "answer"} & {*cell.tags}:
            yield f"{cell}: draws, but is no cell of the kind 'figure'"
        if "figure" in cell.tags and draws(cell) and len(alt(cell).split()) < 5:
            yield f"{cell}: draws a figure without an alt text"


def up_to(cells, kind):
    """The first cells, up to one of a kind."""
    for cell in cells:
        if kind in cell.tags:
            return
        yield cell


def comparing_figures_without_a_check(cells):
    """The alt text of curves compares, and no check looks at the lines as drawn."""
    for place, cell in enumerate(cells):
        text = alt(cell)
        if (
            "plots.curves" in calls(cell)
            and WORD.search(text)
            and "figure" in cell.tags
        ):
            after = [*up_to(cells[place + 1 :], "figure")]
            found = [
                c for c in after if "check" in c.tags and "plots.drawn" in calls(c)
            ]
            if not found:
                yield f"{cell}: no check of the lines drawn (`plots.drawn`) follows"
            elif against(text, "\n".join(c.source for c in found)):
                yield f"{cell}: {against(text, found[0].source)}"


def against(text, source):
    """What a text says, if all that is asserted points the other way.

    A number that the text compares with ("less than 0.15", "97 %") is looked up among
    what is asserted of this number.
    """
    asserted = {"": set()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            terms = [node.left, *node.comparators]
            for op, pair in zip(node.ops, pairwise(terms), strict=True):
                if type(op) in SIGNS:
                    sign = SIGNS[type(op)]
                    asserted[""].add(sign)
                    for term, own in zip(pair, (OTHER[sign], sign), strict=True):
                        value = getattr(term, "value", None)
                        asserted.setdefault(value, set()).add(own)
        if isinstance(node, ast.Attribute) and node.attr == "assert_array_less":
            asserted[""].add("less")
    claims = {"": {WAY[found] for found in WORD.findall(text)}}
    for found, number, percent in LIMIT.findall(text):
        value = float(number.replace(",", "")) / (100 if percent else 1)
        claims[value] = {WAY[found]}
    for value, said in claims.items():
        if said and asserted.get(value) and not said & asserted[value]:
            return f"says {said} {value}, but asserts only {asserted[value]}"
    return None


def claims_against_their_assertions(cells):
    for cell in cells:
        if "check" in cell.tags:
            wrong = against(cell.source.partition("\n")[0], cell.source)
            yield from [f"{cell}: {wrong}"] if wrong else []


def comparing_words_that_nothing_checks(cells):
    """In sentences with numbers, and in plain text before the check of its claim."""
    for cell in cells:
        for text in sentences(cell) if "say" in cell.tags else []:
            for found in {*WORD.findall(text), *UNCLEAR.findall(text)} - FREE:
                yield f"{cell}: {found!r} comes from `word({found!r}, a, b)`"
    for cell, after in pairwise(cells):
        if cell.kind == "markdown" and "check" in after.tags:
            for found in THAN.findall(re.sub(r"\$[^$]*\$|`[^`]*`", "", cell.source)):
                yield f"{cell}: compares ({found!r}): what is checked stands in `say`"


SUM = "x = 1 + 1"
CHECK = "# Checked: one is less than two\nassert 1 < 2"
CURVES = "fig = plots.curves({}, x='n')\nfig"
A_ABOVE_B = "The curve A is above the curve B."
DRAWN = (
    "# Checked: A is above B\n"
    "assert (plots.drawn(fig, '', 'A')[1] > plots.drawn(fig, '', 'B')[1]).all()"
)
RULES = {
    too_many_folds: (
        [[("check", CHECK)] * 25, [("check", CHECK)] * 25 + [("figure", CURVES)]],
        [[("check", CHECK)] * 26, [("check", CHECK)] * 25 + [("answer", SUM)]],
    ),
    assertions_outside_checks: (
        [[("check", CHECK)], [("answer", "assert 1 < 2")], [("open", SUM)]],
        [
            [("open", "assert x")],
            [("figure", "assert x")],
            [("open", "np.testing.assert_allclose(x, y)")],
            [("say", "check_shape(x, 'b s')")],
            [("open", "def f(x):\n    assert x")],
        ],
    ),
    checks_that_are_none: (
        [[("check", CHECK)], [("open", SUM)]],
        [
            [("check", "assert 1 < 2")],
            [("check", "# Checked: \nassert 1 < 2")],
            [("check", f"# Checked: a sum\n{SUM}")],
            [("check", "# Checked: it has two axes\ncheck_shape(x, 'b s')")],
        ],
    ),
    cells_that_do_something_else: (
        [[("experiment", f"# Experiment: a sum\n{SUM}")], [("imports", "import re")]],
        [
            [("experiment", SUM)],
            [("experiment", f"# Experiment: \n{SUM}")],
            [("imports", f"import re\n{SUM}")],
        ],
    ),
    drawings_outside_figures: (
        [
            [("figure", CURVES, A_ABOVE_B)],
            [("answer", CURVES)],
            [("open", "plots.use_style()")],
            [("check", DRAWN)],
        ],
        [
            [("open", CURVES)],
            [("check", "drawing('attention')")],
            [("figure", CURVES)],
            [("figure", CURVES, "A curve.")],
        ],
    ),
    comparing_figures_without_a_check: (
        [
            [("figure", CURVES, A_ABOVE_B), ("say", ""), ("check", DRAWN)],
            [("figure", CURVES, "Two curves rise and fall."), ("open", SUM)],
            [("figure", "drawing('mask')", "One mask above the other.")],
        ],
        [
            [("figure", CURVES, A_ABOVE_B), ("check", CHECK)],
            [("figure", CURVES, A_ABOVE_B), ("figure", CURVES, ""), ("check", DRAWN)],
            [("figure", CURVES, "A is below B everywhere."), ("check", DRAWN)],
        ],
    ),
    claims_against_their_assertions: (
        [
            [("check", CHECK)],
            [("check", "# Checked: A needs more than B\nassert a > b and c < d")],
            [("check", "# Checked: a wider model is no more work\nassert a <= b")],
            [("check", "# Checked: the order is kept\nassert a < b")],
            [("check", "# Checked: more than 97 %, below 1\nassert 0.97 < x < 1")],
        ],
        [
            [("check", CHECK.replace("less", "more"))],
            [("check", "# Checked: at most one\nassert x >= 1")],
            [("check", "# Checked: at least one\nassert all(x < 1 for x in xs)")],
            [("check", "# Checked: A is more\nnp.testing.assert_array_less(a, b)")],
            [("check", "# Checked: more than 0.15\nassert (x < 0.15).all() and a > b")],
            [("check", "# Checked: loss above 0.5\nassert a > b and 0.5 > loss")],
            [("check", "# Checked: below 97 %\nassert 0.97 < x < y < 1")],
        ],
    ),
    comparing_words_that_nothing_checks: (
        [
            [("say", "say(f\"It needs {word('fewer', a, b)} updates than {n}.\")")],
            [("say", "say(f\"Without: {last['no more']:.2f}. Moreover, it fell.\")")],
            [("say", "reasons = {'m': 'a lower loss'}\nsay(table(reasons))")],
            [("say", "say(f'It needs at most {n} updates, and falls to {x}.')")],
            [("markdown", "What is less than half?"), ("open", SUM)],
            [("markdown", "The rate $t$ below 1. Then $a$ is less."), ("check", CHECK)],
        ],
        [
            [("say", 'say(f"It needs fewer updates than {n}.")')],
            [("say", 'say("It needs " "no more " f"than {n} updates.")')],
            [("say", 'say("It needs fewer updates.")')],
            [("say", 'say(f"The mean is better: {n}.")')],
            [("say", "say(', '.join(f'{n} is higher' for n in ns))")],
            [("markdown", "It needs\nfewer updates\nthan B."), ("check", CHECK)],
        ],
    ),
}
CASES = [
    pytest.param(rule, page_of(*page), bad, id=f"{rule.__name__}-{bad}-{number}")
    for rule, both in RULES.items()
    for bad, sources in enumerate(both)
    for number, page in enumerate(sources)
]


@pytest.mark.parametrize(("rule", "cells", "bad"), CASES)
def test_a_rule_finds_bad_pages_and_no_good_ones(rule, cells, bad):
    assert bool([*rule(cells)]) == bool(bad)


@pytest.mark.parametrize("page", pages.sources(), ids=lambda page: page.stem)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_page_has(rule, page):
    wrong = [*rule(pages.read_py(page))]
    assert not wrong, "\n".join(wrong)
