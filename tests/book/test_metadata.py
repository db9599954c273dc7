"""What other programs read of a page: titles, descriptions, previews, how to cite."""

import struct
from urllib.parse import urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

import pages
import serve

PAGES = pages.toc()
CITATION = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text("utf-8"))


@pytest.fixture(scope="module")
def heads(html):
    """The ``<head>`` of every page."""
    return {
        page: BeautifulSoup(
            (html / f"{page}.html").read_text("utf-8"), "html.parser"
        ).head
        for page in PAGES
    }


def meta(head, name):
    node = head.find("meta", attrs={"name": name}) or head.find(
        "meta", attrs={"property": name}
    )
    return node and node["content"]


@pytest.mark.book
def test_titles_tell_all_pages_apart(heads):
    titles = {page: head.title.get_text().strip() for page, head in heads.items()}
    assert len(set(titles.values())) == len(titles), titles
    for page, title in titles.items():
        assert pages.config()["title"] in title, f"{page}: {title!r}"
        for side, name in {"_jax": "JAX", "_torch": "PyTorch"}.items():
            assert not page.endswith(side) or name in title, f"{page}: {title!r}"


@pytest.mark.book
@pytest.mark.parametrize("page", PAGES)
def test_a_link_to_a_page_has_a_preview(html, heads, page):
    """A description in words, and a picture that is there, of the size it says."""
    head = heads[page]
    for name in ("description", "og:description"):
        assert len(meta(head, name)) >= 50, f"{page}: {name} is {meta(head, name)!r}"
    home = pages.config()["html"]["baseurl"]
    assert meta(head, "og:url") == f"{home}{page}.html"
    address = meta(head, "og:image")
    assert address.startswith(home), address
    content = (html / address.removeprefix(home)).read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert (str(width), str(height)) == (
        meta(head, "og:image:width"),
        meta(head, "og:image:height"),
    )
    assert head.find("link", rel="icon") and head.find("link", rel="canonical")


def test_the_home_of_the_book_is_that_of_its_repository():
    home = pages.config()["html"]["baseurl"]
    assert home == f"{pages.addresses(pages.repository())[2]}/"
    assert urlsplit(home).path.endswith("/")


def test_the_citation_names_this_book():
    """Title, address and version are those of the settings and of the changelog."""
    assert CITATION["title"] == pages.config()["title"]
    assert CITATION["repository-code"] == pages.repository()
    assert CITATION["url"] == pages.config()["html"]["baseurl"]
    newest = (pages.ROOT / "CHANGELOG.md").read_text("utf-8").partition("\n## ")[2]
    date = CITATION["date-released"].isoformat()
    assert newest.startswith(f"{CITATION['version']} ({date})"), newest[:40]
    for field in ("cff-version", "message", "authors", "license"):
        assert CITATION[field]


@pytest.mark.book
def test_a_missing_page_gets_the_page_for_that(new_reader):
    """At any depth, in the book's own dress, with a way back; also below a folder."""
    page = new_reader()
    answer = page.open("notebooks/no/such/page.html")
    assert answer.status == 404
    assert page.locator("article h1").inner_text().startswith("There is no such page")
    page.locator("article a").first.click()
    page.wait_for_url("**/book/index.html")
    home = serve.HOME.strip("/")  # as at its public home
    page.open(f"{home}/nowhere/page.html")
    page.wait_for_load_state("networkidle")
    page.locator("article a", has_text="glossary").click()
    page.wait_for_url(f"**/{home}/book/glossary.html")
    page.open("nowhere.html")
    page.wait_for_load_state("networkidle")
    colour = "getComputedStyle(document.querySelector('.framework-switch')).borderStyle"
    assert page.evaluate(colour) == "solid"  # by the book's own style sheet
