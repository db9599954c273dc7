"""The page that compares both frameworks says what the chapters say."""

import ast
import re

import pytest

import pages
from comparison import in_percent, without_docstrings
from reading import whole

SOURCE = (pages.ROOT / "book" / "comparison.md").read_text("utf-8")
DICTIONARY = SOURCE.partition("## Dictionary")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (`.*?) \| (.*?) \| .* \|$", DICTIONARY, flags=re.MULTILINE)


SAMPLE = '''def a():
    """Old."""


@cache
def a(x):
    """One.

    Two.
    """
    return x  # x


class B:
    """Three."""

    y = """no"""

    def c(self):
        """Four."""
        return self
'''


def names(cell):
    """Names in a cell of the dictionary, without their arguments."""
    return [re.sub(r"\(.*\)", "", name) for name in re.findall(r"`([^`]+)`", cell)]


def test_dictionary_has_words_of_the_chapters():
    """Each name stands in the code of a chapter or helper of its side."""
    assert len(ROWS) > 15
    for place, side in enumerate(pages.SIDES):
        found = [*pages.NOTEBOOKS.glob(f"*_{side}.py")]
        found += (pages.NOTEBOOKS / "helpers" / side).glob("*.py")
        text = "\n".join(path.read_text("utf-8") for path in found)
        for name in [name for row in ROWS for name in names(row[place])]:
            assert name in text, f"{name} is not on any page in {side}"


def defines(node, name):
    """Is this node the definition of a name?"""
    return getattr(node, "name", None) == name


def same_code(source):
    """What code does: its syntax tree, without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


def test_docstrings_are_left_out_and_nothing_else(tmp_path):
    """Comments, decorators and blank lines between methods stay."""
    path = tmp_path / "page.py"
    path.write_text(SAMPLE, encoding="utf-8")
    assert without_docstrings(path, "a") == [
        "@cache",
        "def a(x):",
        "    return x  # x",
    ]
    assert without_docstrings(path, "B") == [
        "class B:",
        '    y = """no"""',
        "",
        "    def c(self):",
        "        return self",
    ]
    with pytest.raises(LookupError, match=r"page\.py defines no d"):
        without_docstrings(path, "d")


def test_small_numbers_are_shown_in_percent():
    assert [in_percent(x) for x in ("8.9e-03", "98.7%", "12", "0.5")] == [
        "0.9%",
        "98.7%",
        "12",
        "0.5",
    ]


@pytest.mark.book
@pytest.mark.usefixtures("html")
def test_tabs_hold_the_code_of_the_pages():
    """As often as the page asks for it, line by line but for the docstrings."""
    tabs = whole("book/comparison").select(".sd-tab-content")
    pattern = r"```\{twin-code\} (\w+)\n(:javascript:\n)?(.*?)```"
    wanted = [
        (chapter, body, side)
        for chapter, third, body in re.findall(pattern, SOURCE, flags=re.DOTALL)
        for side in (*pages.SIDES, *["javascript"] * bool(third))
    ]
    assert len(wanted) > 20
    for tab, (chapter, body, side) in zip(tabs, wanted, strict=True):
        if side == "javascript":  # see ``test_page_shows_the_code_that_runs``
            continue
        code = (pages.NOTEBOOKS / f"{chapter}_{side}.py").read_text("utf-8")
        shown = [node.get_text().strip() for node in tab.select("pre")]
        assert len(shown) == len(body.split())
        for name, part in zip(body.split(), shown, strict=True):
            assert re.search(rf"^(def|class) {name}\b", part, re.MULTILINE), part[:80]
            found = [node for node in ast.parse(code).body if defines(node, name)]
            assert same_code(part) == same_code(ast.unparse(found[-1]))
            assert {*part.splitlines()} <= {*code.splitlines()}


@pytest.mark.book
def test_measured_figures_are_those_that_the_pages_printed(executed):
    """Every row has a number for both frameworks, and one is looked up by hand."""
    rows = {
        what.get_text(): [value.get_text().strip() for value in values]
        for line in whole("book/comparison").select("table.measured tbody tr")
        for what, *values in [line.select("td")]
    }
    assert len(rows) > 10
    for what, values in rows.items():
        assert all(re.match(r"\d", value) for value in values), f"{what}: {values}"
    for place, side in enumerate(pages.SIDES):
        cells = executed(f"notebooks/anomaly_{side}").cells
        outputs = [out for cell in cells for out in cell.get("outputs", [])]
        said = [out.get("data", {}).get("text/markdown", "") for out in outputs]
        shown = rows["The odd one out: accuracy on the test data"][place]
        row = rf"^\| \*\*this page\*\*.*\| \*\*{re.escape(shown)}\*\* \| \d"
        assert any(re.search(row, text, re.MULTILINE) for text in said), shown
