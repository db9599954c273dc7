"""The kinds of cells in the built book: checks are silent, sentences are text."""

import json
import re

import pytest
from sphinx.search.en import SearchEnglish

import pages
from reading import article
from sync import FOLDS

pytestmark = pytest.mark.book
NOTEBOOKS = [page for page in pages.toc() if page.startswith("notebooks/")]
by_notebook = pytest.mark.parametrize("page", NOTEBOOKS)


def cells_of(notebook, kind):
    return [c for c in notebook.cells if kind in c.metadata.get("tags", [])]


def said(notebook):
    """The sentences of a page, in pieces of plain words between markup and numbers."""
    for cell in cells_of(notebook, "say"):
        texts = [o["data"]["text/markdown"] for o in cell.outputs if "data" in o]
        assert texts, f"says nothing: {cell.source[:60]}"
        for text in texts:
            text = re.sub(r"\$[^$]*\$|`[^`]*`|\]\([^)]*\)", "\n", text)
            text = re.sub(r"\w*\d\w*", "\n", text)  # bfloat16
            yield from re.findall(r"[^\W\d_]+(?: [^\W\d_]+)*", text)


@by_notebook
def test_checks_show_nothing(executed, page):
    for cell in cells_of(executed(page), "check"):
        assert not cell.outputs, f"{page} shows something: {cell.source[:60]}"


@by_notebook
def test_figures_show_a_picture(executed, page):
    """A drawing, or what a reader can use: not the name of an object."""
    for cell in cells_of(executed(page), "figure"):
        found = {kind for o in cell.outputs for kind in o.get("data", {})}
        shown = found & {"image/svg+xml", "image/png", "text/html"}
        assert shown, f"{page} shows no picture: {cell.source[:60]}"


@by_notebook
def test_computed_sentences_are_text_of_the_page(executed, page):
    """As one reads it, not as code."""
    outputs = article(page).select(".cell.tag_say .cell_output")
    shown = " ".join(" ".join(node.get_text(" ") for node in outputs).split())
    pieces = [*said(executed(page))]
    missing = [piece for piece in pieces if piece not in shown]
    assert pieces and not missing, f"{page}: {missing}"


@pytest.fixture(scope="module")
def index(html):
    """What the search of the book looks up."""
    text = (html / "searchindex.js").read_text("utf-8")
    return json.loads(text[text.index("{") : text.rindex("}") + 1])


@by_notebook
def test_the_search_finds_computed_sentences(executed, index, page):
    number, stem = index["docnames"].index(page), SearchEnglish({}).stem
    words = {w.lower() for piece in said(executed(page)) for w in piece.split()}
    for word in sorted(word for word in words if len(word) > 5 and word.isascii()):
        found = [index[key].get(stem(word), []) for key in ("terms", "titleterms")]
        assert number in [*map(int, re.findall(r"\d+", str(found)))], f"{page}: {word}"


@by_notebook
@pytest.mark.usefixtures("html")
def test_what_unfolds_a_cell_has_words_of_its_own(page):
    """A screen reader reads out the claim of a check, too."""
    kinds = ", ".join(f".tag_{kind}" for kind in FOLDS if kind != "answer")
    for cell in article(page).select(f".cell:is({kinds})"):
        line = cell.select_one("details.hide > summary")
        assert line and not line.get("aria-label"), f"{page}: {cell.get_text()[:60]}"
        claim = "✓ Checked: " if "tag_check" in cell["class"] else "Show "
        assert line.select_one(".collapsed").get_text().startswith(claim)
