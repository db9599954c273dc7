"""The first use of a word of the glossary is a link to it; each word is used."""

import re

import pytest
from bs4 import BeautifulSoup

import glossary
import pages

pytestmark = pytest.mark.book


@pytest.mark.parametrize(
    ("found", "term"),
    [
        ("head", "head"),
        ("Heads", "head"),
        ("queries", "query"),
        ("query", "query"),
        ("losses", "loss"),
        ("layer norms", "layer norm"),
        ("headings", None),
        ("overhead", None),
        ("multi-head", None),
        ("head-on", None),
    ],
)
def test_forms_of_a_word(found, term):
    names = ["head", "query", "loss", "layer norm"]
    match = glossary.pattern(names).search(f"the {found} of it")
    assert (match and glossary.term_of(match[0], names)) == term


def test_the_longest_term_is_taken():
    match = glossary.pattern(["mask", "causal mask"]).search("A causal mask hides")
    assert match[0] == "causal mask"


def articles(html):
    for page in pages.toc():
        text = (html / f"{page}.html").read_text("utf-8")
        yield page, BeautifulSoup(text, "html.parser").select_one("article")


def test_each_word_is_linked_once_on_a_page_where_it_is_first_used(html):
    """No text before the link holds the word; no page links a word twice."""
    used = set()
    for page, article in articles(html):
        links = article.select("a.term")
        anchors = [link["href"].partition("#")[2] for link in links]
        assert all(len(link["title"]) > 15 for link in links), f"{page}: no meaning"
        assert len(anchors) == len(set(anchors)), f"{page} links a word twice"
        used |= set(anchors)
        if page.startswith("notebooks/") and not pages.is_draft(page):
            assert len(anchors) >= 5, f"{page}: only {anchors}"
    known = {
        term["id"]
        for term in BeautifulSoup(
            (html / "book/glossary.html").read_text("utf-8"), "html.parser"
        ).select("dl.glossary dt")
        if not re.search(r"\)\W*$", term.get_text())
    }
    assert used == known, f"never used: {known - used}"
