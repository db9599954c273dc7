"""The rules of the pages: a test asks one question of all pages, and lists all faults.

A rule yields the faults in the cells of a page, or in both pages of a chapter.
"""

import ast
import builtins
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import zip_longest
from symtable import symtable

import pytest

import pages
import sync

FILES = pages.sources()
KINDS = {"setup", "figure", "say", "check", "experiment", "answer", "your-turn"}
FOLDS = KINDS - {"setup", "your-turn"}  # nothing outside stands on what they define


def report(faults):
    """Fail with all faults, one a line."""
    if faults := [*faults]:
        pytest.fail("\n".join([f"{len(faults)} faults", *faults]), pytrace=False)


def each_page():
    return ([pages.read_py(file)] for file in FILES)


def each_chapter():
    for name in pages.chapters():
        files = (pages.NOTEBOOKS / f"{name}_{side}.py" for side in pages.SIDES)
        yield [pages.read_py(file) for file in files]


def over(cases):
    """Make a test of a rule: no case has a fault."""

    def decorate(rule):
        return lambda: report(fault for case in cases() for fault in rule(*case))

    return decorate


def run(command, folder, **environment):
    """The output of a command, which succeeds."""
    options = {"cwd": folder, "capture_output": True, "encoding": "utf-8"}
    done = subprocess.run(command, env=os.environ | environment, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_python(source, folder, **environment):
    quiet = {"MPLBACKEND": "agg", "TQDM_DISABLE": "1"} | environment
    return run([sys.executable, "-c", source], folder, **quiet)


def kind(cell):
    """``open`` is code that everyone reads, and can carry away."""
    return next((tag for tag in cell.tags if tag in KINDS), "open")


def code(cells, *kinds):
    return [c for c in cells if c.kind == "code" and (not kinds or kind(c) in kinds)]


def markdown(cells, *beside):
    return [c for c in cells if c.kind == "markdown" and not {*beside} & {*c.tags}]


def body(cell):
    return ast.parse(cell.source).body


def calls(cell):
    """Every function that is called, as it is written: ``np.testing.…``."""
    nodes = ast.walk(ast.parse(cell.source))
    return [ast.unparse(n.func) for n in nodes if isinstance(n, ast.Call)]


def is_import(node):
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_definition(node):
    return isinstance(node, ast.ClassDef | ast.FunctionDef)


def is_constant(node):
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper()


@over(each_page)
def test_every_cell_says_whose_it_is_and_of_which_kind(cells):
    """Exactly one of shared, jax, torch; at most one kind; no other tag; some text."""
    for cell in cells:
        known = KINDS | {"shared", cells[0].page[:-3].rpartition("_")[2]}
        if cell.side is None or {*cell.tags} - known - {"questions", "export", "take"}:
            yield f"{cell}: not one of 'shared' and its framework, or more: {cell.tags}"
        if len(KINDS & {*cell.tags}) > 1 or not cell.source.strip():
            yield f"{cell}: two kinds, or empty: {cell.tags}"


@over(each_chapter)
def test_shared_cells_are_identical_and_others_have_a_counterpart(left, right):
    for a, b in zip(left, right, strict=False):
        tags = [{*cell.tags} - {*pages.SIDES} for cell in (a, b)]
        if a.kind != b.kind or tags[0] != tags[1]:
            yield f"{a} and {b}: {a.kind} {a.tags}, but {b.kind} {b.tags}"
        elif a.side == "shared" and (a.source, a.metadata) != (b.source, b.metadata):
            lines = zip_longest(a.source.splitlines(), b.source.splitlines())
            first = [(one, other) for one, other in lines if one != other][:1]
            yield f"{a} and {b} are shared, but differ: {first or 'metadata'}"
    if len(left) != len(right):
        yield f"{left[0].page} has {len(left)} cells, {right[0].page} {len(right)}"


@over(each_chapter)
def test_headings_and_definitions_are_parallel(left, right):
    found = []
    for cells in (left, right):
        text = "\n".join(cell.source for cell in markdown(cells))
        nodes = [node for cell in code(cells) for node in body(cell)]
        names = [node.name for node in nodes if is_definition(node)]
        found.append(re.findall(r"^#{1,6} .*", text, flags=re.MULTILINE) + names)
    for a, b in zip_longest(*found):
        if a != b:
            yield f"{left[0].page}: {a!r}, but {right[0].page}: {b!r}"
            return


@over(each_page)
def test_most_words_are_shared_and_the_twin_is_linked(cells):
    words, (name, _, side) = Counter(), cells[0].page[:-3].rpartition("_")
    for cell in markdown(cells):
        words[cell.side] += len(cell.source.split())
    if words["shared"] < 0.70 * words.total():
        yield f"{cells[0].page}: only {words['shared'] / words.total():.0%} are shared"
    link = f"]({name}_{'torch' if side == 'jax' else 'jax'}.ipynb)"
    if link not in "".join(cell.source for cell in cells[:3]):
        yield f"{cells[0].page}: no {link} in its first three cells"


def test_every_page_names_its_pair():
    both = {path.stem for path in pages.NOTEBOOKS.glob("*.ipynb")}
    faults = [f"{n}: half of a pair" for n in both ^ {file.stem for file in FILES}]
    for file in FILES:
        head = file.read_text("utf-8").partition("# %%")[0]
        if not re.search(r"formats: .*ipynb", head):
            faults.append(f"{file.name} names no pair")
    report(faults)


def test_sync_changes_nothing():
    """Notebooks, shared cells, rooms of the helpers, files to carry away."""
    report(f"{path}: out of date, run `make sync`" for path in sync.changes())


@over(each_page)
def test_export_cells_hold_definitions_and_constants_alone(cells):
    for cell in cells:
        for node in body(cell) if "export" in cell.tags else []:
            short = re.match(r"\w+ = (partial\(|'cuda')", ast.unparse(node))
            fits = is_definition(node) or is_constant(node) or short
            if kind(cell) != "open" or not fits:
                yield f"{cell}: exports {ast.unparse(node).splitlines()[0]!r}"


def parts(cell):
    """Lines of the set-up for Colab, which end with its ``if``, and all that follow."""
    end = next((n.end_lineno for n in body(cell) if isinstance(n, ast.If)), 0)
    return cell.source.splitlines()[:end], cell.source.splitlines()[end:]


@over(each_page)
def test_the_set_up_is_the_only_import_of_helpers(cells):
    """For Colab; then ten lines of imports, uncommented; then device and style."""
    if code(cells, "setup") != code(cells)[:1]:
        yield f"{cells[0].page}: its first code cell, and no other, is the set-up"
    for cell in code(cells):
        nodes = ast.walk(ast.parse(cell.source)) if kind(cell) != "setup" else []
        if any(is_import(n) and "helpers" in ast.unparse(n) for n in nodes):
            yield f"{cell}: imports helpers outside the set-up"
    for cell in code(cells, "setup"):
        rest = ast.parse("\n".join(parts(cell)[1])).body
        ends = [node.end_lineno for node in rest if is_import(node)]
        lines = [*filter(str.strip, parts(cell)[1][: max(ends, default=0)])]
        if len(lines) > 10 or "#" in "".join(lines):
            yield f"{cell}: {len(lines)} lines of imports with comments; ten without"
        if any(map(is_import, rest[len(ends) :])) or any(map(is_definition, rest)):
            yield f"{cell}: not imports first, or a definition"


def names(node):
    """The names that a statement binds on the page, and those that it looks up."""
    tables = [symtable(ast.unparse(node), "page", "exec")]
    bound, used = set(), set()
    for s in tables[0].get_symbols():
        bound |= {s.get_name()} if s.is_assigned() or s.is_imported() else set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for s in table.get_symbols():
            if s.is_referenced() and (s.is_global() or table.get_type() == "module"):
                used.add(s.get_name())
    return bound, used


@over(each_page)
def test_the_open_cells_are_a_program(cells):
    """All that they use, and that readers need to write, stands open before."""
    known = {*dir(builtins), "display"}
    for cell in code(cells, "setup", "open", "your-turn"):
        source = "\n".join(parts(cell)[1]) if kind(cell) == "setup" else cell.source
        found = [(node, *names(node)) for node in ast.parse(source).body]
        cell_binds = set().union(*(bound for _, bound, _ in found))
        missing = set()
        for node, bound, used in found:
            here = set() if isinstance(node, ast.Assign | ast.AugAssign) else bound
            missing |= used - known - (cell_binds if is_definition(node) else here)
            known |= bound
        if missing:
            yield f"{cell}: {', '.join(sorted(missing))} not in an open cell before"


@pytest.mark.slow
@pytest.mark.parametrize("side", pages.SIDES)
@pytest.mark.parametrize("chapter", ["attention", "encoder"])
def test_the_open_cells_of_core_chapters_run(chapter, side):
    file = pages.NOTEBOOKS / f"{chapter}_{side}.py"
    cells = code(pages.read_py(file), "setup", "open")
    run_python("\n\n".join(cell.source for cell in cells), pages.NOTEBOOKS)


@over(each_page)
def test_nothing_stands_on_what_a_fold_defines(cells):
    """No function, class or constant of a check, figure … is used in another kind."""
    home = {}
    for cell in code(cells):
        for node in body(cell):
            bound, used = names(node)
            for name in sorted(used & home.keys()):
                if kind(cell) != kind(home[name]):
                    yield f"{cell}: uses {name}, which {home[name]} defines in a fold"
            defines = is_definition(node) or is_constant(node)
            defines |= bool(re.match(r"\w+ = (partial\(|lambda\b)", ast.unparse(node)))
            for name in bound:
                home.pop(name, None)
                if defines and kind(cell) in FOLDS:
                    home[name] = cell


@over(each_page)
def test_cells_are_few_and_short(cells):
    """And lines: only the markers of cells, which hold alt texts, may be longer."""
    for cell in cells:
        width = max(map(len, cell.source.splitlines())) + 2 * (cell.kind == "markdown")
        if width > 88:
            yield f"{cell}: a line of {width} characters"
    for cell in code(cells, *KINDS - {"setup"}, "open"):
        first, *others = [*body(cell), None]
        limit = 20 if others[1:] or not isinstance(first, ast.ClassDef) else 30
        limit = {"check": 8, "say": 6}.get(kind(cell), limit)
        if "export" in cell.tags and getattr(first, "name", "") == "fit":
            limit = 70
        lines = sum(bool(line.strip()) for line in cell.source.splitlines())
        if lines > limit:
            yield f"{cell}: {lines} lines, {limit} are good ({kind(cell)})"
    checks, folds = len(code(cells, "check")), len(code(cells, "setup", *FOLDS))
    if checks > 8 or folds > 25:
        yield f"{cells[0].page}: {checks} checks (8), {folds} folded code cells (25)"


@over(each_page)
def test_checks_assert_and_open_code_does_not(cells):
    """An ``assert`` with words inside a function is a refusal, and is welcome."""
    for cell in code(cells):
        tree = ast.parse(cell.source)
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        found = [node for node in found if node.msg is None or node in tree.body]
        found += [name for name in calls(cell) if "testing." in name]
        if found and kind(cell) not in ("check", "answer"):
            yield f"{cell}: asserts, but is no check and no answer"
        if kind(cell) == "check" and not found:
            yield f"{cell}: checks nothing"
        begin = {"check": "# Checked: ", "experiment": "# Experiment: "}.get(kind(cell))
        if begin and not re.match(rf"{begin}\S", cell.source):
            yield f"{cell}: does not begin with {begin!r} and what it does"


@over(each_page)
def test_figures_have_alt_texts_and_nothing_else_draws(cells):
    draws = re.compile(r"(plots|plt|diagrams)\.(?!use_style|drawn)\w+|drawing(\.\w+)?")
    if not code(cells, "figure"):
        yield f"{cells[0].page}: draws nothing"
    for cell in code(cells):
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        drawn = any(map(draws.fullmatch, calls(cell)))
        if drawn and kind(cell) not in ("figure", "answer"):
            yield f"{cell}: draws, but is no figure"
        seen = drawn or "viewer." not in cell.source  # the viewer describes itself
        if kind(cell) == "figure" and seen and len(alt.split()) < 5:
            yield f"{cell}: a figure without an alt text"


NOT_SO = {  # what nobody would copy, and how the field writes it
    r"#.*(fmt: skip|noqa|loose:)": "no comment for a tool",
    r"\bpartial\(build\b": "Model(…) itself, with seed and device",
    r"\bplots\.drawn\(": "the array that was plotted",
    r"\.__wrapped__|\bmock\.patch": "a function with the mistake in it",
    r"no_grad\(\)\(": "with torch.no_grad():",
    r"^ *_ = ": "the call alone",
    r"^ *\w+ = lambda": "def",
    r"^ *\w+, \w+ = \([^()]*(\([^()]*\)[^()]*)*\bfor\b": "two lines",
    r"^ *\w[\w, ]* = ([\w.]+, )*\*\w": "brackets around a tuple",
    r"^(watch|heard|everyone|loud|taster|STRANGER|gone|its_map|by_odd) = ": "a name",
    r"^(floats|integers|booleans) = ": "`tensor` of the room",
    r"^fit\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\Z": "a name: a dict would be shown",
}


@over(each_page)
def test_code_is_written_as_the_field_writes_it(cells):
    for cell in code(cells):
        for pattern, instead in NOT_SO.items():
            if found := re.search(pattern, cell.source, flags=re.MULTILINE):
                yield f"{cell}: {found[0].strip()!r}; better: {instead}"
        if kind(cell) == "open" and ":=" in cell.source:
            yield f"{cell}: a walrus"


@over(each_page)
def test_the_page_promises_something_and_has_a_good_size(cells):
    """1,200 to 2,500 words in the open: the text, and what `say` cells say."""
    head = cells[0].source
    if not re.match(r"(?s)# .*By the end you can\s.*You need", head):
        yield f"{cells[0]}: no title, 'By the end you can …' and 'You need …'"
    texts = [cell.source for cell in markdown(cells, "answer", "questions")]
    for cell in code(cells, "say"):
        for node in ast.walk(ast.parse(cell.source)):
            said = node.values if isinstance(node, ast.JoinedStr) else []
            texts += [part.value for part in said if isinstance(part, ast.Constant)]
    if not 1200 <= len(" ".join(texts).split()) <= 2500:
        yield f"{cells[0].page}: {len(' '.join(texts).split())} words in the open"


UNITS = r"(s|sec|seconds?|ms|µs|milliseconds?|minutes?|hours?|[KMG]i?B|times|×|fold)"
MEASURED = [
    r"\b\d+(\.\d+)?\s?(%|per ?cent)",
    rf"\b\d+(\.\d+)?\s?{UNITS}\b(?! \d)",
    r"(accuracy|loss|error|score|norm|speed)\w* (is|was|of|reaches) \d",
    r"\b\d+\.\d{3,}\b",
    r"\b(at least|at most|(more|less|fewer) than|above|below|under|over|within)"
    r" (\d+\.\d+|(a |one )?(half|third|quarter|fifth|tenth|hundredth)|twice)\b",
]
BELITTLING = r"(?i)\b(simply|obviously|just|easy|easily|of course|trivially)\b"
MYST = r"^(`{3,}|:{3,})\{|\{[a-z:-]+\}`|^\([\w-]+\)=\s*$|^\+\+\+|^%|\{\{"


@over(each_page)
def test_no_measured_number_is_typed_and_no_reader_belittled(cells):
    """Numbers and their bounds go stale: `say` computes them, or a link has them."""
    for cell in markdown(cells):
        maths = r"(?s)```.*?```|\$\$.*?\$\$|\$[^$]*\$|`[^`]*`"
        for text in re.split(r"\n\s*\n", re.sub(maths, "…", cell.source)):
            measured = [] if re.search(r"\]\(https?://", text) else MEASURED
            for pattern in [BELITTLING, *measured]:
                if found := re.search(pattern, " ".join(text.split())):
                    yield f"{cell}: {found[0]!r} looks measured, or belittles"


@over(each_page)
def test_pages_are_plain_markdown_and_tables_are_whole(cells):
    """What only MyST understands shows as raw text in Colab and Jupyter."""
    for cell in markdown(cells):
        bars = 0
        for line in cell.source.splitlines():
            if re.search(MYST, line):
                yield f"{cell}: only MyST understands {line!r}"
            if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", line) or not line.strip():
                bars = line.count("|")
            elif bars and len(re.findall(r"(?<!\\)\|", line)) != bars:
                yield f"{cell}: a torn row of a table, {line!r}"


@over(each_page)
def test_formulas_are_referred_to_by_their_numbers(cells):
    text = "\n".join(cell.source for cell in markdown(cells))
    tags = re.findall(r"\\tag\{(\d+)\}", text)
    strange = {*re.findall(r"formula\s+\((\d+)\)", text)} - {*tags}
    loose = re.findall(r"\b[Tt]he (?:formula|equation|figure)\b", text)
    if strange or loose or tags != [str(n) for n in range(1, len(tags) + 1)]:
        yield f"{cells[0].page}: formulas {tags}, but {strange} named; {loose}: which?"


@over(each_page)
def test_the_page_ends_with_five_questions_after_its_exercises(cells):
    """Several answers, each with its reason; the right one cannot be guessed."""
    found = [n for n, cell in enumerate(cells) if "questions" in cell.tags]
    if len(found) != 1 or not cells[found[0] + 1].source.startswith("## Key points\n"):
        yield f"{cells[0].page}: not one cell of questions before its key points"
        return
    cell = cells[found[0]]
    head, *texts = re.split(r"^\*\*(\d)\.\*\* ", cell.source, flags=re.MULTILINE)
    if head[:17] != "## Five questions" or texts[::2] != list("12345"):
        yield f"{cell}: begins '## Five questions', or not 1 to 5: {texts[::2]}"
    form = r"<summary>(.+)</summary>\n\n\*\*(Right|No)\.\*\* ((?:.+\n)+)\n</details>$"
    places, longest = Counter(), 0
    for number, text in enumerate(texts[1::2], start=1):
        answers = re.findall(form, text, flags=re.MULTILINE)
        right = [verdict == "Right" for _, verdict, _ in answers]
        if sum(right) != 1 or len(right) not in (3, 4) or text.count("<d") > len(right):
            yield f"{cell}, {number}: not one '**Right.** …', two or three '**No.** …'"
            continue
        for answer, _, reason in answers:
            if len(reason.split()) < 9 or re.search(r"[$*`]", answer):
                yield f"{cell}, {number}: no reason, or Markdown in {answer!r}"
        places[right.index(True)] += 1
        longest += right[max(range(len(right)), key=lambda i: len(answers[i][0]))]
    if len(places) < 3 or max(places.values()) > 3 or longest > 3:
        yield f"{cell}: guess the place {dict(places)}, or the longest ({longest})"
    if len(cell.source.split()) > 600:
        yield f"{cell}: {len(cell.source.split())} words, at most 600 are good"


@over(each_page)
def test_exercises_can_be_checked_and_have_answers(cells):
    if not code(cells, "answer"):
        yield f"{cells[0].page}: no exercise has an answer that runs"
    answers = "\n".join(cell.source for cell in code(cells, "answer"))
    for cell in code(cells, "your-turn"):
        asked = re.findall(r'^check\("[\w.]+", \w+\)', cell.source, flags=re.MULTILINE)
        if not asked or not all(call in answers for call in asked):
            yield f"{cell}: is not checked, or no answer is"
