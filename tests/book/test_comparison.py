"""The page that compares both frameworks says what the chapters say."""

import re

import nbformat
import pytest
from bs4 import BeautifulSoup

import pages

SOURCE = (pages.ROOT / "book" / "comparison.md").read_text("utf-8")
DICTIONARY = SOURCE.partition("## Dictionary")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (`.*?) \| (.*?) \| .* \|$", DICTIONARY, flags=re.MULTILINE)


def names(cell):
    """Names in a cell of the dictionary, without their arguments."""
    return [re.sub(r"\(.*\)", "", name) for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_dictionary_has_words_of_the_chapters(row):
    """Each name stands in the code of a chapter or helper of its side."""
    for side, cell in zip(pages.SIDES, row, strict=True):
        found = [*pages.NOTEBOOKS.glob(f"*_{side}.py")]
        found += (pages.NOTEBOOKS / "helpers").glob(f"*_{side}.py")
        text = "\n".join(path.read_text("utf-8") for path in found)
        for name in names(cell):
            assert name in text, f"{name} is not on any page in {side}"


def test_the_dictionary_is_not_empty():
    assert len(ROWS) > 15


def test_definitions_are_cut_whole():
    path = pages.NOTEBOOKS / "attention_torch.py"
    code = pages.definition(path, "attention")
    assert code.startswith("def attention(") and code.rstrip().endswith(", weights")
    assert code in path.read_text("utf-8")
    with pytest.raises(LookupError, match="defines no nonsense"):
        pages.definition(path, "nonsense")


@pytest.mark.book
def test_both_tabs_hold_the_code_of_the_pages(html):
    """As often as the page asks for it, letter by letter."""
    text = (html / "book/comparison.html").read_text("utf-8")
    soup = BeautifulSoup(text, "html.parser")
    tabs = [node.get_text().strip() for node in soup.select(".sd-tab-content")]
    asked = re.findall(r"```\{twin-code\} (\w+)\n(.*?)```", SOURCE, flags=re.DOTALL)
    assert len(tabs) == 2 * len(asked) > 10
    for place, (chapter, body) in enumerate(asked):
        for offset, side in enumerate(pages.SIDES):
            path = pages.NOTEBOOKS / f"{chapter}_{side}.py"
            parts = [pages.definition(path, name) for name in body.split()]
            assert tabs[2 * place + offset] == "\n\n\n".join(parts).strip()


@pytest.mark.book
def test_the_figures_are_those_that_the_pages_printed(html):
    """Every row has a number for both frameworks, and one is looked up by hand."""
    text = (html / "book/comparison.html").read_text("utf-8")
    rows = [
        [cell.get_text().strip() for cell in line.select("td")]
        for line in BeautifulSoup(text, "html.parser").select("table.measured tbody tr")
    ]
    assert len(rows) > 10
    for what, *values in rows:
        assert all(re.match(r"\d", value) for value in values), f"{what}: {values}"
    found = {row[0]: row[1:] for row in rows}
    for place, side in enumerate(pages.SIDES):
        page = html.parent / "jupyter_execute/notebooks" / f"anomaly_{side}.ipynb"
        cells = nbformat.read(page, as_version=4).cells
        outputs = [out for cell in cells for out in cell.get("outputs", [])]
        lines = "".join(out.get("text", "") for out in outputs).splitlines()
        shown = found["The odd one out: accuracy on the test data"][place]
        assert f"test accuracy: {shown}" in lines
