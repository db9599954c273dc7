"""The text of the pages: no loose numbers, plain words, sizes."""

import ast
import re

import pytest

import pages
from said import words_in

PAGES = pages.sources()
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)

# A measured number goes stale, and so does its bound: both stand in a `say` cell, which
# computes them. A paragraph may quote a number if it links the source.
UNITS = r"(s|sec|seconds?|ms|µs|milliseconds?|minutes?|hours?|[KMG]i?B|times|×|fold)"
MEASURED = [
    re.compile(r"\b\d+(\.\d+)?\s?(%|per ?cent)"),
    re.compile(rf"\b\d+(\.\d+)?\s?{UNITS}\b(?! \d)"),
    re.compile(r"(accuracy|loss|error|score|norm|speed)\w* (is|was|of|reaches) \d"),
    re.compile(r"\b\d+\.\d{3,}\b"),
    re.compile(
        r"\b(at least|at most|(more|less|fewer) than|above|below|under|over|within)"
        r" (\d+\.\d+|(a |one )?(half|third|quarter|fifth|tenth|hundredth)|twice)\b"
    ),
]
AVOIDED = ["simply", "obviously", "just", "easy", "easily", "of course", "trivially"]
MYST_ONLY = [
    (re.compile(r"^(`{3,}|:{3,})\{"), "a directive"),
    (re.compile(r"\{[a-z:-]+\}`"), "a role"),
    (re.compile(r"^\([\w-]+\)=\s*$"), "a target"),
    (re.compile(r"^\+\+\+|^%"), "a MyST break or comment"),
    (re.compile(r"\{\{"), "a substitution"),
]
LINE, CELL, CLASS_CELL = 88, 20, 30
PROVEN_ELSEWHERE = {"setup", "imports", "figure", "say", "answer"}
WORDS = range(1200, 2501)


def markdown(page):
    return [cell for cell in pages.read_py(page) if cell.kind == "markdown"]


def code(page):
    return [cell for cell in pages.read_py(page) if cell.kind == "code"]


def without_maths(text):
    """The text with formulas and code taken out: their numbers are not claims."""
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$", " ", text, flags=re.DOTALL)
    return re.sub(r"\$[^$]*\$|`[^`]*`", "…", text)


def loose_numbers(text):
    """Measured numbers, and bounds of them, in paragraphs that name no source."""
    for paragraph in re.split(r"\n\s*\n", without_maths(text)):
        if re.search(r"\]\(https?://", paragraph):
            continue
        line = " ".join(paragraph.split())
        for pattern in MEASURED:
            yield from (match.group() for match in pattern.finditer(line))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The accuracy is 98.3 % here.", True),
        ("It took 12 seconds.", True),
        ("This is 3.5 times faster.", True),
        ("The loss was 0.4 at the end.", True),
        ("It reached 0.9871 on the test set.", True),
        ("The accuracy is above 99 %.", True),
        ("The loss ends below 0.5.", True),
        ("It needs less than half of the updates.", True),
        ("A table of 96 positions and 48 features.", False),
        ("They report [94.3 %](https://example.org/paper).", False),
        ("For $d = 0.12345$ it is `0.12345 s`.", False),
    ],
)
def test_the_search_for_loose_numbers_finds_them(text, found):
    assert bool(list(loose_numbers(text))) == found


@by_page
def test_no_measured_number_in_prose(page):
    for cell in markdown(page):
        for number in loose_numbers(cell.source):
            pytest.fail(
                f"{cell}: {number!r} looks measured: compute it in `say`, or link it"
            )


@by_page
def test_every_page_has_a_figure(page):
    assert any("figure" in cell.tags for cell in code(page)), (
        f"{page.name} draws nothing"
    )


@by_page
def test_words_that_belittle_the_reader_are_avoided(page):
    for cell in markdown(page):
        for word in AVOIDED:
            found = re.search(rf"\b{word}\b", without_maths(cell.source), re.IGNORECASE)
            assert not found, f"{cell} says {word!r}"


@by_page
def test_pages_are_plain_markdown(page):
    """What only MyST understands shows as raw text in Colab and Jupyter."""
    for cell in markdown(page):
        for line in cell.source.splitlines():
            for pattern, name in MYST_ONLY:
                assert not pattern.search(line), f"{cell}: {name} in {line!r}"


@by_page
def test_lines_are_short_enough(page):
    """88 characters; the markers of cells may be longer, they hold the alt texts."""
    lines = enumerate(page.read_text("utf-8").splitlines(), start=1)
    long = [
        f"{page.name}, line {number}: {len(line)} characters"
        for number, line in lines
        if len(line) > LINE and not line.startswith("# %%")
    ]
    assert not long, "\n".join(long)


@by_page
def test_code_cells_are_short(page):
    """At most 20 lines; a cell that holds one class may have 30."""
    for cell in code(page):
        body = ast.parse(cell.source).body
        whole = len(body) == 1 and isinstance(body[0], ast.ClassDef)
        limit = CLASS_CELL if whole else CELL
        limit = float("inf") if "imports" in cell.tags else limit
        lines = len(cell.source.splitlines())
        assert lines <= limit, f"{cell}: {lines} lines, at most {limit} are good"


@by_page
def test_the_page_has_a_good_size(page):
    """Words in the open: the text, and the sentences that are computed.

    The five questions are counted apart, most of them are folded (test_questions). A
    page that calls itself a draft may be shorter, and is named as skipped.
    """
    if pages.is_draft(f"notebooks/{page.stem}"):
        pytest.skip(f"{page.name} is a draft")
    beside = {"answer", "questions"}
    texts = [cell.source for cell in markdown(page) if not beside & {*cell.tags}]
    texts += [words_in(cell) for cell in code(page) if "say" in cell.tags]
    words = len(" ".join(texts).split())
    assert words in WORDS, f"{page.name}: {words} words, 1,200 to 2,500 are good"


def torn_rows(text):
    """Rows of Markdown tables with more or fewer cells than the head of the table."""
    torn, bars = [], 0
    for line in text.splitlines():
        if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", line):
            bars = line.count("|")
        elif not line.strip():
            bars = 0
        elif bars and len(re.findall(r"(?<!\\)\|", line)) != bars:
            torn.append(line)
    return torn


@by_page
def test_no_row_of_a_table_is_torn(page):
    """A row that goes on in the next line would be two rows."""
    for cell in markdown(page):
        assert not torn_rows(cell.source), cell


def test_a_torn_row_is_found():
    head = "| a | b |\n|---|---:|\n"
    assert torn_rows(f"{head}| one | two |\n\nno table | here") == []
    assert torn_rows(f"{head}| one |\n| two |\n") == ["| one |", "| two |"]
    assert torn_rows(f"{head}| one | two |\nthree | four |") == ["three | four |"]


@by_page
def test_every_section_checks_its_claim(page):
    """A section with code to learn has a check, or an answer that is checked.

    What the reader writes, a cell ``your-turn``, needs one as well.
    """
    section, holds_code, holds_check = None, False, True
    for cell in [*pages.read_py(page), None]:
        begins = cell is None or (cell.kind == "markdown" and "## " in cell.source)
        if begins and (cell is None or re.search(r"^## ", cell.source, re.MULTILINE)):
            assert section is None or not holds_code or holds_check, (
                f"{section}: this section checks nothing"
            )
            section, holds_code, holds_check = cell, False, False
        elif cell.kind == "code":
            holds_code = holds_code or not {*cell.tags} & PROVEN_ELSEWHERE
            checked = "answer" in cell.tags and "check(" in cell.source
            holds_check = holds_check or checked or "check" in cell.tags


@by_page
def test_the_page_begins_with_a_promise(page):
    """A title, what the reader can do at the end, and what is needed for it."""
    head = pages.read_py(page)[0]
    assert head.kind == "markdown" and head.source.startswith("# "), f"{head}: no title"
    assert "By the end you can" in head.source, f"{head}: promises nothing"
    assert "You need" in head.source, f"{head}: does not say what is needed"


@by_page
def test_a_formula_that_is_referred_to_has_its_number(page):
    """``formula (2)`` needs a ``\\tag{2}`` on the page, and no number comes twice."""
    text = "\n".join(cell.source for cell in markdown(page))
    numbers = re.findall(r"\\tag\{(\d+)\}", text)
    assert numbers == [str(n) for n in range(1, len(numbers) + 1)], f"{page}: {numbers}"
    named = set(re.findall(r"formula\s+\((\d+)\)", text))
    assert named <= set(numbers), f"{page.name} names {named}, but has {numbers}"
    loose = re.search(r"\b[Tt]he (formula|equation|figure)\b", text)
    assert not loose, f"{page.name} says {loose[0]!r}: which one? Say its number"
