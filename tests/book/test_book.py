"""The built book, read as files: complete, sound, and content with its own host."""

import re
import struct
from functools import cache
from urllib.parse import unquote, urljoin, urlsplit

import nbformat
import one_file
import pytest
import yaml

import blank
import glossary
import pages
from build_book import HTML
from reading import article, soup, whole

pytestmark = [pytest.mark.book, pytest.mark.usefixtures("html")]
PAGES = pages.toc()
NOTEBOOKS = [page for page in PAGES if page.startswith("notebooks/")]
HOME = pages.config()["html"]["baseurl"]
MIB = 2**20
by_page = pytest.mark.parametrize("page", PAGES)
by_notebook = pytest.mark.parametrize("page", NOTEBOOKS)


@cache
def anchors(path):
    """Every name on a page that a link can end with."""
    nodes = soup(path).select("[id], [name]")
    return {"top"} | {node.get("id") or node["name"] for node in nodes}


def every_html():
    """All pages a reader can open, search and index among them."""
    return sorted(p for p in HTML.rglob("*.html") if "_static" not in p.parts)


def test_toc_lists_every_page_and_twins_as_neighbours():
    """A page that is on the disk but not in ``_toc.yml`` would never be read."""
    found = [f"notebooks/{path.stem}" for path in pages.sources()]
    found += [f"book/{path.stem}" for path in (pages.ROOT / "book").glob("*.md")]
    assert sorted(found) == sorted(PAGES)
    for chapter in pages.chapters():
        first = PAGES.index(f"notebooks/{chapter}_jax")
        assert PAGES[first + 1] == f"notebooks/{chapter}_torch"


def test_every_page_is_built_with_a_title_of_its_own():
    titles = {page: whole(page).head.title.get_text().strip() for page in PAGES}
    assert len(set(titles.values())) == len(titles), titles
    for page, title in titles.items():
        assert article(page).h1.get_text().strip("#\n "), f"{page} has no heading"
        assert pages.config()["title"] in title, f"{page}: {title!r}"
        for side, name in {"_jax": "JAX", "_torch": "PyTorch"}.items():
            assert not page.endswith(side) or name in title, f"{page}: {title!r}"


def test_index_shows_every_chapter():
    links = {a["href"] for a in article("book/index").select("table a[href]")}
    for page in NOTEBOOKS:
        assert f"../{page}.html" in links, f"the map of book/index does not show {page}"


@pytest.mark.parametrize("side", pages.SIDES)
def test_the_first_page_offers_the_model_in_one_file(side):
    """As a download, made from the present sources."""
    links = [a["href"] for a in article("book/index").select("a[download]")]
    (link,) = [link for link in links if link.endswith(f"/model_{side}.py")]
    file = (HTML / "book" / link).resolve()
    assert file.read_text("utf-8") == one_file.one_file(side)


@by_notebook
def test_every_output_is_shown_and_none_is_an_error(executed, page):
    """In the notebook as the build executed it, and on the built page."""
    cells = [cell for cell in executed(page).cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells), f"{page} was not executed"
    shown = article(page).select("div.cell")
    assert len(shown) == len(cells), f"{page} shows {len(shown)} of {len(cells)} cells"
    for number, (cell, node) in enumerate(zip(cells, shown, strict=True), start=1):
        for output in cell.outputs:
            kind = output.output_type, output.get("name")
            assert kind[0] != "error" and kind[1] != "stderr", f"{page}, cell {number}"
        if cell.outputs:
            output = node.select_one(".cell_output")
            filled = output and (
                output.get_text().strip() or output.select("img, svg, iframe")
            )
            assert filled, f"{page}, cell {number}: its output is not in the book"


@by_page
def test_no_traceback_and_no_warning_in_a_page(page):
    content = article(page)
    assert not content.select(".output.stderr, .output.traceback, .system-message")
    for output in content.select(".cell_output"):
        text = output.get_text()
        for word in ("Traceback (most recent call last)", "Warning:", "WARNING"):
            assert word not in text, f"{page}: {word!r} in an output: {text[:300]}"


@by_page
def test_pictures_have_alt_texts(page):
    for image in article(page).select("img"):
        alt = image.get("alt", "")
        described = len(alt.split()) >= 5 and "_images/" not in alt
        assert described, f"{page}: {image.get('src')} has the alt text {alt!r}"


def is_elsewhere(url):
    return bool(urlsplit(url).netloc) or url.startswith("//")


def test_no_broken_link_and_no_broken_anchor():
    """Every link between pages, pictures and scripts, and every anchor they name."""
    broken, seen = [], 0
    for path in every_html():
        for node in soup(path).select("[href], [src]"):
            url = node.get("href") or node.get("src") or ""
            if is_elsewhere(url) or urlsplit(url).scheme or not url:
                continue
            seen += 1
            target, _, anchor = unquote(url).partition("#")
            target = target.partition("?")[0]
            if target.startswith("/"):  # of 404.html, which answers at any depth
                file = HTML / target.removeprefix(urlsplit(HOME).path)
            else:
                file = (path.parent / target).resolve() if target else path
            if not file.exists():
                broken.append(f"{path.relative_to(HTML)}: {url}")
            elif anchor and file.suffix == ".html" and anchor not in anchors(file):
                broken.append(f"{path.relative_to(HTML)}: {url} (no such anchor)")
    assert not broken, "\n".join(broken)
    assert seen > 100, f"expected a book full of links, found {seen}"


LOADS = "script[src], img[src], iframe[src], source[src], embed[src], link[href]"
PASSIVE = {"canonical", "index", "search", "next", "prev", "author", "license"}
IN_STYLES = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)")
IN_SCRIPTS = re.compile(r"(?:https?:)?//[\w-]+\.[\w.-]+[^\s\"'`]*")


def test_nothing_is_loaded_from_another_host():
    """By attributes, scripts and styles of a page, or by any style sheet."""
    foreign = []
    for path in every_html():
        page = soup(path)
        found = [
            node.get("src") or node["href"]
            for node in page.select(LOADS)
            if not PASSIVE & {*node.get("rel", [])}
        ]
        for script in page.select("script:not([src])"):
            found += IN_SCRIPTS.findall(script.get_text())
        found += IN_STYLES.findall(path.read_text(encoding="utf-8"))
        foreign += [f"{path.relative_to(HTML)}: {u}" for u in found if is_elsewhere(u)]
    for path in HTML.rglob("*.css"):
        for url in IN_STYLES.findall(path.read_text(encoding="utf-8")):
            foreign.append(f"{path.relative_to(HTML)}: {url}")
    assert not foreign, "\n".join(foreign)


@by_page
def test_page_is_at_most_one_mebibyte(page):
    """With the pictures of either colour scheme: nobody fetches both."""
    file = HTML / f"{page}.html"
    for hidden in ("only-dark", "only-light"):
        images = {
            HTML / urlsplit(urljoin(f"{page}.html", image["src"])).path
            for image in article(page).select(f"img[src]:not(.{hidden})")
            if not image["src"].startswith("data:")
        }
        size = file.stat().st_size + sum(image.stat().st_size for image in images)
        assert size <= MIB, f"{page}: {size / MIB:.2f} MiB with {len(images)} pictures"


def test_book_says_how_it_was_built():
    """Every executed page stands in the table, and the versions are listed."""
    page = article("book/how-this-was-built")
    rows = {
        line.a["href"]: [cell.get_text().strip() for cell in line.select("td")]
        for line in page.select("table tbody tr:has(a):has(td:nth-child(5))")
    }
    for name in NOTEBOOKS:
        row = rows[f"../{name}.html"]
        assert pages.NAMES[pages.side_of(name)] in row[0], "no title of a chapter"
        assert float(row[3]) > 0 and row[4] == "✅"
    text = page.get_text()
    for name in ("jax", "torch", "numpy", "python"):
        version = re.search(rf"^{name}\s+\d+\.\d+", text, re.MULTILINE)
        assert version, f"{name}: no version"


def meta(head, name):
    """The content of ``<meta name=…>`` or ``<meta property=…>``."""
    return head.select_one(f"meta[name='{name}'], meta[property='{name}']")["content"]


@by_page
def test_link_to_a_page_has_a_preview(page):
    """A description in words, and a picture that is there, of the size it says."""
    head = whole(page).head
    for name in ("description", "og:description"):
        assert len(meta(head, name)) >= 50, f"{page}: {name} is {meta(head, name)!r}"
    assert meta(head, "og:url") == f"{HOME}{page}.html"
    address = meta(head, "og:image")
    assert address.startswith(HOME), address
    content = (HTML / address.removeprefix(HOME)).read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    size = struct.unpack(">II", content[16:24])
    said = meta(head, "og:image:width"), meta(head, "og:image:height")
    assert tuple(map(str, size)) == said
    assert head.find("link", rel="icon") and head.find("link", rel="canonical")


def test_citation_names_this_book():
    """Title, address and version are those of the settings and of the changelog."""
    citation = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["title"] == pages.config()["title"]
    assert citation["repository-code"] == pages.repository()
    assert citation["url"] == HOME == f"{pages.addresses(pages.repository())[2]}/"
    newest = (pages.ROOT / "CHANGELOG.md").read_text("utf-8").partition("\n## ")[2]
    date = citation["date-released"].isoformat()
    assert newest.startswith(f"{citation['version']} ({date})"), newest[:40]
    for field in ("cff-version", "message", "authors", "license"):
        assert citation[field]


@by_notebook
def test_page_can_be_downloaded_and_opened_in_colab(page):
    """The repository's notebook and script, at the address in the settings."""
    links = {a.get_text(): a for a in article(page).select(".take-along a")}
    where = pages.repository().removeprefix("https://github.com/")
    assert links["Open in Colab"]["href"] == (
        f"https://colab.research.google.com/github/{where}/blob/main/{page}.ipynb"
    )
    for ending in (".py", ".ipynb"):
        link = links[f"Download {ending}"]
        file = (HTML / f"{page}.html").parent / link["href"]
        assert link.has_attr("download")
        assert file.read_bytes() == (pages.ROOT / f"{page}{ending}").read_bytes()
    to_fill = (HTML / f"{page}.html").parent / links["Blank .ipynb"]["href"]
    assert nbformat.read(to_fill, as_version=4) == blank.blank(page)


def test_twins_have_the_same_sections():
    """So that the anchor of one page exists on the other."""
    for chapter in pages.chapters():
        found = [
            [section["id"] for section in article(page).select("section[id]")]
            for page in (f"notebooks/{chapter}_jax", f"notebooks/{chapter}_torch")
        ]
        assert found[0] == found[1] and len(found[0]) > 5


@pytest.mark.parametrize("side", pages.SIDES)
def test_next_and_previous_stay_in_one_framework(side):
    """Also without JavaScript: each chapter has one link either way."""
    names = [page for page in NOTEBOOKS if page.endswith(side)]
    for kind, others in {"left-prev": names[:-1], "right-next": names[1:]}.items():
        here = names[1:] if kind == "left-prev" else names[:-1]
        for page, other in zip(here, others, strict=True):
            links = whole(page).select(f"a.{kind}")
            found = [urljoin(f"{page}.html", link["href"]) for link in links]
            assert found == [f"{other}.html"]


def test_first_use_of_a_glossary_term_links_to_it():
    """No page links a term twice, every chapter has some, and no term is unused.

    Ordinary words are no links.
    """
    used = set()
    for page in PAGES:
        links = article(page).select("a.term")
        terms = [link["href"].partition("#")[2] for link in links]
        assert all(len(link["title"]) > 15 for link in links), f"{page}: no meaning"
        assert len(terms) == len(set(terms)), f"{page} links a term twice"
        used |= set(terms)
        if page in NOTEBOOKS and not pages.is_draft(page):
            assert len(terms) >= 5, f"{page}: only {terms}"
    known = {term["id"]: term for term in article("book/glossary").select("dl dt[id]")}
    assert {name.removeprefix("term-") for name in known} >= glossary.ORDINARY
    known = {
        name
        for name, term in known.items()
        if not re.search(r"\)\W*$", term.get_text())
        and name.removeprefix("term-") not in glossary.ORDINARY
    }
    assert used == known, f"never used: {known - used}"


@pytest.mark.parametrize(
    ("text", "form", "term"),
    [
        ("a head", "head", "head"),
        ("Heads", "Heads", "head"),
        ("the queries", "queries", "query"),
        ("losses", "losses", "loss"),
        ("a causal mask hides", "causal mask", "causal mask"),
        ("headings, overhead, multi-head, head-on", None, None),
    ],
)
def test_glossary_terms_are_found_in_the_plural_and_as_whole_words(text, form, term):
    names = ["causal mask", "query", "head", "loss", "mask"]
    match = glossary.pattern(names).search(text)
    assert (match and match[0]) == form
    assert (match and names[match.lastindex - 1]) == term
