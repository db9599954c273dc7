"""Each chapter ends with five questions, before its key points.

An answer is a fold of HTML, which Jupyter and Colab show, too: what it says stands in
its first line, and inside whether it is right, and why.
"""

import re
from collections import Counter

import pytest

import pages

QUESTION = re.compile(r"^\*\*(\d)\.\*\* ", re.MULTILINE)
ANSWER = re.compile(
    r"^<details><summary>(.+)</summary>\n\n((?:.+\n)+)\n</details>$", re.MULTILINE
)
VERDICT = re.compile(r"\*\*(Right|No)\.\*\* ")
WORDS = 600
by_page = pytest.mark.parametrize("page", pages.sources(), ids=lambda page: page.stem)


def questions(page):
    """``(text, [(answer, reason), …])`` of each question of a page."""
    text = cell_of(page).source
    _, *parts = QUESTION.split(text)
    assert parts[::2] == list("12345"), f"{page.name}: questions {parts[::2]}"
    return [
        (part.partition("<details>")[0].strip(), ANSWER.findall(part))
        for part in parts[1::2]
    ]


def cell_of(page):
    found = [cell for cell in pages.read_py(page) if "questions" in cell.tags]
    assert len(found) == 1, f"{page.name}: {len(found)} cells of questions"
    return found[0]


@by_page
def test_questions_stand_before_the_key_points(page):
    cells = pages.read_py(page)
    (place,) = (i for i, cell in enumerate(cells) if "questions" in cell.tags)
    assert cells[place].source.startswith("## Five questions\n")
    assert cells[place + 1].source.startswith("## Key points\n")


@by_page
def test_each_question_has_one_right_answer(page):
    """And every answer is written in the form that Jupyter, Colab and the book fold."""
    assert cell_of(page).source.count("<details>") == len(
        [answer for _, answers in questions(page) for answer in answers]
    ), f"{page.name}: an answer of another form"
    for text, answers in questions(page):
        assert text and len(answers) in (3, 4), f"{page.name}: {text!r}"
        verdicts = [VERDICT.match(reason) for _, reason in answers]
        assert all(verdicts), (
            f"{page.name}: {text!r}: **Right.** or **No.** comes first"
        )
        said = Counter(verdict[1] for verdict in verdicts)
        assert said["Right"] == 1, f"{page.name}: {text!r} has {said}"


@by_page
def test_every_answer_gives_a_reason(page):
    for text, answers in questions(page):
        for answer, reason in answers:
            assert len(reason.split()) >= 10, f"{page.name}: {text!r}, {answer!r}"
            assert not re.search(r"[$*`]", answer), f"{answer!r}: only HTML shows here"


@by_page
def test_the_right_answer_cannot_be_guessed(page):
    """By its place, or because it is the longest one."""
    right = [
        [VERDICT.match(reason)[1] for _, reason in answers].index("Right")
        for _, answers in questions(page)
    ]
    assert max(Counter(right).values()) <= 3 and len({*right}) >= 3, right
    longest = [
        max(answers, key=lambda one: len(one[0]))[1].startswith("**Right")
        for _, answers in questions(page)
    ]
    assert sum(longest) <= 3, f"{page.name}: the longest answer is right {longest}"


@by_page
def test_questions_are_short(page):
    n_words = len(cell_of(page).source.split())
    assert n_words <= WORDS, f"{page.name}: {n_words} words, at most {WORDS} are good"
