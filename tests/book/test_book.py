"""The built book, read as files: each rule looks at all pages, and lists all faults."""

import re
from functools import cache
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from browsing import (
    CHAPTERS,
    HTML,
    NOTEBOOKS,
    PAGES,
    article,
    list_all,
    soup,
    whole,
)

import glossary
import pages

pytestmark = pytest.mark.book
HOME = pages.config()["html"]["baseurl"]
MIB = 2**20
LOADS = "script[src], img[src], iframe[src], source[src], embed[src], link[href]"
PASSIVE = {"canonical", "index", "search", "next", "prev", "author", "license"}
IN_STYLES = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)")
IN_SCRIPTS = re.compile(r"(?:https?:)?//[\w-]+\.[\w.-]+[^\s\"'`]*")


@cache
def anchors(path):
    """Every name on a page that a link can end with."""
    nodes = soup(path).select("[id], [name]")
    return {"top"} | {node.get("id") or node["name"] for node in nodes}


@cache
def every_html():
    """All pages a reader can open, search and index among them."""
    return sorted(p for p in HTML.rglob("*.html") if "_static" not in p.parts)


def is_elsewhere(url):
    return bool(urlsplit(url).netloc) or url.startswith("//")


def file_of(page, url):
    """The file that an address on a page leads to."""
    return HTML / unquote(urlsplit(urljoin(f"{page}.html", url)).path)


def test_every_page_has_a_title_of_its_own():
    titles = {page: whole(page).head.title.get_text().strip() for page in PAGES}
    faults = [] if len({*titles.values()}) == len(titles) else [titles]
    for page, title in titles.items():
        name = pages.NAMES.get(pages.side_of(page), "")
        heading = article(page).h1.get_text().strip("#\n ")
        if not heading or name not in title or pages.config()["title"] not in title:
            faults.append(f"{page}: {title!r}, {heading!r}")
    list_all(faults)


def test_no_error_no_warning_and_no_raw_markup_in_a_page():
    faults = []
    for page in PAGES:
        content = article(page)
        bad = content.select(".output.stderr, .output.traceback, .system-message")
        said = " ".join(node.get_text() for node in content.select(".cell_output"))
        words = ["Traceback (most recent call last)", "Warning:", "WARNING"]
        faults += [f"{page}: {node.get_text()[:200]}" for node in bad]
        faults += [f"{page}: {word!r} in an output" for word in words if word in said]
        for node in content.find_all(["p", "li", "td", "h2", "h3"]):
            own = "".join(node.find_all(string=True, recursive=False))
            if raw := re.search(r"\$\$|\]\(|:::|\{[\w-]+\}`|^#+ |\*\*", own):
                faults.append(f"{page}: raw {raw[0]!r} in {own.strip()[:80]!r}")
    list_all(faults)


def test_every_part_of_the_map_names_its_section():
    """Also for a screen reader: ``softmax: Attention is …``."""
    faults = []
    for side in pages.SIDES:
        links = article("book/index").select(f".transformer-map[data-side={side}] a")
        assert len(links) > 50
        for link in links:
            name, _, anchor = link["href"].removeprefix("../").partition("#")
            content = article(name.removesuffix(".html"))
            section = content.find(id=anchor) if anchor else content
            heading = section and section.find(["h1", "h2"]).get_text()
            said = link["aria-label"].split(": ", 1)[-1]
            if not heading or said not in " ".join(heading.split()) or side not in name:
                faults.append(f"{link['href']}: {link['aria-label']}")
    list_all(faults)


def test_pictures_have_alt_texts_and_sizes():
    faults = []
    for page in PAGES:
        for image in article(page).select("img"):
            alt = image.get("alt", "")
            described = len(alt.split()) >= 5 and "_images/" not in alt
            if not (described and image.get("width") and image.get("height")):
                faults.append(f"{page}: {image.get('src')[:80]}, {alt!r}")
    list_all(faults)


def test_no_broken_link_and_no_broken_anchor():
    """Every link between pages, pictures and scripts, and every anchor they name."""
    faults, seen = [], 0
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
                faults.append(f"{path.relative_to(HTML)}: {url}")
            elif anchor and file.suffix == ".html" and anchor not in anchors(file):
                faults.append(f"{path.relative_to(HTML)}: {url} (no such anchor)")
    list_all(faults)
    assert seen > 100, f"expected a book full of links, found {seen}"


def test_nothing_is_loaded_from_another_host():
    """By attributes, scripts and styles of a page, or by any style sheet."""
    faults = []
    for path in every_html():
        found = [
            node.get("src") or node["href"]
            for node in soup(path).select(LOADS)
            if not PASSIVE & {*node.get("rel", [])}
        ]
        for script in soup(path).select("script:not([src])"):
            found += IN_SCRIPTS.findall(script.get_text())
        found += IN_STYLES.findall(path.read_text(encoding="utf-8"))
        faults += [f"{path.relative_to(HTML)}: {u}" for u in found if is_elsewhere(u)]
    for path in HTML.rglob("*.css"):
        found = IN_STYLES.findall(path.read_text(encoding="utf-8"))
        faults += [f"{path.relative_to(HTML)}: {url}" for url in found]
    list_all(faults)


def test_page_is_at_most_one_mebibyte():
    """With its pictures."""
    faults = []
    for page in PAGES:
        images = {
            i["src"] for i in article(page).select("img[src]:not([src^='data:'])")
        }
        files = [HTML / f"{page}.html", *(file_of(page, src) for src in images)]
        size = sum(file.stat().st_size for file in files)
        if size > MIB:
            faults.append(f"{page}: {size / MIB:.2f} MiB, {len(images)} pictures")
    list_all(faults)


def test_each_cell_is_shown_as_its_kind():
    """Checks are silent, figures are pictures, computed sentences are text."""
    faults = []
    for page in NOTEBOOKS:
        cells = [
            c for c in pages.read_py(pages.ROOT / f"{page}.py") if c.kind == "code"
        ]
        shown = article(page).select("div.cell")
        if len(shown) != len(cells):
            faults.append(f"{page} shows {len(shown)} of {len(cells)} cells")
        for node in shown:
            kinds, out = {*node["class"]}, node.select_one(".cell_output")
            right = {
                "tag_check": not out,
                "tag_figure": out and out.select("img, attention-viewer, svg"),
                "tag_say": out and out.select("p, li, td") and not out.select("pre"),
            }
            bad = [kind for kind, fine in right.items() if kind in kinds and not fine]
            line = node.select_one("details.hide > summary")
            if "tag_check" in kinds and "✓ Checked: " not in line.get_text():
                bad.append("a check without a claim")
            if line and line.get("aria-label"):
                bad.append("a fold without words of its own")
            text = " ".join(node.get_text().split())[:80]
            faults += [f"{page}: {what}, {text}" for what in bad]
    list_all(faults)


def test_page_can_be_downloaded_and_opened_in_colab():
    """The repository's notebook and script, at the address in the settings."""
    where, faults = pages.repository().removeprefix("https://github.com/"), []
    for page in NOTEBOOKS:
        links = {a.get_text(): a["href"] for a in article(page).select(".take-along a")}
        colab = f"https://colab.research.google.com/github/{where}/blob/main"
        if links["Open in Colab"] != f"{colab}/{page}.ipynb":
            faults.append(f"{page}: {links['Open in Colab']}")
        for ending in (".py", ".ipynb"):
            file = file_of(page, links[f"Download {ending}"])
            if not file.exists():
                faults.append(f"{page}: no {file}")
        if not file_of(page, links["Blank .ipynb"]).exists():
            faults.append(f"{page}: no blank notebook")
    list_all(faults)


def test_every_figure_is_listed_with_its_files():
    """On the page of figures, with the alt texts of the chapters."""
    faults = []
    for chapter in CHAPTERS:
        page = article(f"notebooks/{chapter}_torch")
        images = page.select(".tag_figure img.dark-light")
        links = article("book/figures").select(f"li:has(a[href*='/{chapter}_jax'])")
        text = " ".join(node.get_text() for node in links)
        files = {a["href"] for node in links for a in node.select("a[href$=svg]")}
        for image in images:
            if image["alt"].removesuffix(".") not in text or image["src"] not in files:
                faults.append(f"{chapter}: {image['alt']}")
    list_all(faults)


def test_first_use_of_a_glossary_term_links_to_it():
    """No page links a term twice, every chapter has some, and no term is unused."""
    used, faults = set(), []
    for page in PAGES:
        links = article(page).select("a.term")
        terms = [link["href"].partition("#")[2] for link in links]
        if len(terms) != len({*terms}) or (page in NOTEBOOKS and len(terms) < 5):
            faults.append(f"{page}: {terms}")
        used |= {*terms}
    for term in article("book/glossary").select("dl dt[id]"):
        ordinary = term["id"].removeprefix("term-") in glossary.ORDINARY
        linked = not ordinary and not re.search(r"\)\W*$", term.get_text())
        if linked != (term["id"] in used):
            faults.append(f"{term['id']}: is linked: {term['id'] in used}")
    list_all(faults)


def test_comparison_shows_the_code_of_the_pages():
    """Line by line, but for the docstrings."""
    source, faults = (pages.ROOT / "book/comparison.md").read_text("utf-8"), []
    boxes = re.findall(r"```\{twin-code\} (\w+)", source)
    sets = article("book/comparison").select(".sd-tab-set")
    for chapter, tabs in zip(boxes, sets, strict=True):
        found = zip(pages.SIDES, tabs.select(".sd-tab-content"), strict=False)
        for side, tab in found:
            page = pages.NOTEBOOKS / f"{chapter}_{side}.py"
            lines = {*page.read_text("utf-8").splitlines()}
            code = "\n".join(node.get_text().strip("\n") for node in tab.select("pre"))
            if not code or '"""' in code or not {*code.splitlines()} <= lines:
                faults.append(f"{page.name}: {code[:80]}")
    list_all(faults)
