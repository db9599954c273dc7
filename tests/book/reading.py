"""The files of the built book, each parsed once."""

from functools import cache

from bs4 import BeautifulSoup

from build_book import HTML


@cache
def soup(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def whole(page):
    return soup(HTML / f"{page}.html")


def article(page):
    """The content of a page, without navigation."""
    return whole(page).select_one("article")
