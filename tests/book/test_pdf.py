"""The PDF has the pages of one framework in order, its outline and its links."""

import io
from unicodedata import normalize

import pdf
import pytest
from pypdf import PdfReader

import pages
from reading import article

pytestmark = pytest.mark.book
NAMES = ["book/index", "notebooks/warmup_torch", "book/glossary"]


def test_each_pdf_has_the_chapters_of_its_framework():
    for side in pages.SIDES:
        names = pdf.chosen(side)
        chapters = [name for name in names if name.startswith("notebooks/")]
        assert [name.rpartition("_")[2] for name in chapters] == [side] * len(chapters)
        assert names == [name for name in pages.toc() if name in names]
        assert len(names) == len(pages.toc()) - len(chapters)


@pytest.fixture(scope="module")
def book(address, browser):
    content = io.BytesIO()
    pdf.joined(pdf.printed(browser, NAMES, address), address).write(content)
    return PdfReader(content)


def letters(text):
    """Without blanks; a font may have a letter of its own for "fi"."""
    return "".join(normalize("NFKC", text).split())


@pytest.fixture(scope="module")
def printed(book):
    return letters("".join(page.extract_text() for page in book.pages))


def test_the_outline_has_pages_and_sections(book):
    titles = [item.title for item in book.outline if not isinstance(item, list)]
    assert titles == ["Transformers, side by side", "Warm-up in PyTorch", "Glossary"]
    sections = [item.title for item in book.outline[3]]
    assert "The learning rate rises linearly, then falls" in sections
    assert sections[-1] == "Key points"


def test_answers_are_printed(printed):
    """They are folded on the screen, but on paper nothing can be unfolded."""
    answer = (pages.NOTEBOOKS / "warmup_torch.py").read_text("utf-8")
    answer = answer.partition('"answer"]')[2].split("\n", 1)[1].partition("\n")[0]
    assert letters(answer) in printed
    assert "Showtheanswer" not in printed


def test_a_check_is_printed_as_its_claim(printed):
    """Neither its code, nor what unfolds the code of figures and sentences."""
    checks = [
        cell.source
        for cell in pages.read_py(pages.NOTEBOOKS / "warmup_torch.py")
        if "check" in cell.tags
    ]
    for source in checks:
        claim = source.partition("\n")[0].removeprefix("# ")
        assert letters(claim) in printed
        assert letters(source) not in printed
    assert checks and "Showthecode" not in printed and "Showhow" not in printed


def test_links_stay_in_the_pdf_or_lead_to_the_public_book(book, address):
    actions = [
        note.get_object()
        for page in book.pages
        for note in page.get("/Annots", [])
        if note.get_object().get("/Subtype") == "/Link"
    ]
    inside = [note for note in actions if "/Dest" in note]
    urls = [note["/A"]["/URI"] for note in actions if "/URI" in note.get("/A", {})]
    assert len(inside) > 20
    assert not [url for url in urls if "localhost" in url]
    home = pages.config()["html"]["baseurl"]
    assert f"{home}notebooks/warmup_jax.html" in urls  # the twin is in the other PDF
    path = {a["href"] for a in article("book/index").select("#ways-through-the-book a")}
    path = {f"{home}{href.removeprefix('../')}" for href in path}
    others = [url for url in urls if "html#" in url and url not in path]
    sides = {url.partition("_")[2].partition("#")[0] for url in others}
    assert "torch.html" in sides and "jax.html" not in sides, "the map on the index"
