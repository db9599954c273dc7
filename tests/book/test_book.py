"""The built book, read as files: complete, sound, and content with its own host."""

import ast
import re
from functools import cache
from urllib.parse import unquote, urljoin, urlsplit

import nbformat
import pytest
import tinycss2
from bs4 import BeautifulSoup

import pages
from build_book import HTML

pytestmark = pytest.mark.book
PAGES = pages.toc()
NOTEBOOKS = [page for page in PAGES if page.startswith("notebooks/")]
MIB = 2**20
by_page = pytest.mark.parametrize("page", PAGES)
by_notebook = pytest.mark.parametrize("page", NOTEBOOKS)


@cache
def soup(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def article(page):
    """The content of a page, without navigation."""
    return soup(HTML / f"{page}.html").select_one("article")


def every_html():
    """All pages a reader can open, search and index among them."""
    return sorted(p for p in HTML.rglob("*.html") if "_static" not in p.parts)


def test_the_toc_holds_every_page():
    """A page that is on the disk but not in ``_toc.yml`` would never be read."""
    found = {f"notebooks/{path.stem}" for path in pages.sources()}
    found |= {f"book/{path.stem}" for path in (pages.ROOT / "book").glob("*.md")}
    assert found == set(PAGES)
    assert len(PAGES) == len(set(PAGES))


def test_twins_are_neighbours_in_the_toc():
    for chapter in pages.chapters():
        first = PAGES.index(f"notebooks/{chapter}_jax")
        assert PAGES[first + 1] == f"notebooks/{chapter}_torch"


@by_page
def test_every_page_is_there(html, page):
    assert (html / f"{page}.html").exists(), f"{page} is in _toc.yml, but was not built"
    heading = article(page).h1.get_text().strip("#\n ")
    assert heading, f"{page} has no heading"


def test_the_index_shows_every_chapter(html):
    links = {a["href"] for a in article("book/index").select("table a[href]")}
    for page in NOTEBOOKS:
        assert f"../{page}.html" in links, f"the map of book/index does not show {page}"


def shows_something(source):
    """Does a cell print, or end with an expression that has a value?"""
    body = ast.parse(source).body
    for node in ast.walk(ast.Module(body, [])):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if called and node.func.id in ("print", "display") and not inside(node, body):
            return True
    last = body[-1] if body else None
    return (
        isinstance(last, ast.Expr)
        and not source.rstrip().endswith(";")
        and (not isinstance(last.value, ast.Call) or not returns_nothing(last.value))
    )


def inside(node, body):
    """Does the node stand in a function or class, so that it does not run by itself?"""
    return any(
        isinstance(top, ast.FunctionDef | ast.ClassDef) and node in ast.walk(top)
        for top in body
    )


def returns_nothing(call):
    """Calls at the end of a cell that return None or are made for what they do."""
    name = ast.unparse(call.func)
    return name.startswith("np.testing.") or name.rpartition(".")[2] in {
        "print", "display", "use_style", "check_shape", "append", "update",
        "eval", "train",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", False),
        ("x = 1\nx", True),
        ("x;", False),
        ("print('a')", True),
        ("for i in range(3):\n    print(i)", True),
        ("def f():\n    print(1)", False),
        ("plots.heatmaps(w)", True),
        ("np.testing.assert_allclose(a, b)", False),
        ("assert x", False),
        ("f'{x:.2%}'", True),
    ],
)
def test_what_counts_as_showing_something(source, expected):
    assert shows_something(source) == expected


@by_notebook
def test_every_cell_that_should_has_an_output(html, page):
    """As many cells as the notebook has, and outputs where the code shows something."""
    cells = [
        c for c in pages.read_ipynb(pages.ROOT / f"{page}.ipynb") if c.kind == "code"
    ]
    built = article(page).select("div.cell")
    assert len(built) == len(cells), f"{page}: {len(built)} of {len(cells)} code cells"
    for cell, node in zip(cells, built, strict=True):
        output = node.select_one(".cell_output")
        filled = output and (
            output.get_text().strip() or output.select("img, svg, iframe")
        )
        if shows_something(cell.source):
            assert filled, f"{cell} shows something, but has no output in the book"


@by_notebook
def test_the_executed_notebook_has_no_errors_and_no_stderr(html, page):
    """The notebook as the build executed it, every cell of it in order."""
    executed = nbformat.read(
        html.parent / "jupyter_execute" / f"{page}.ipynb", as_version=4
    )
    counts = []
    for number, cell in enumerate(executed.cells, start=1):
        for output in cell.get("outputs", []):
            kind = output.output_type, output.get("name")
            assert kind[0] != "error" and kind[1] != "stderr", f"{page}, cell {number}"
        if cell.cell_type == "code":
            counts.append(cell.execution_count)
    assert counts == list(range(1, len(counts) + 1)), (
        f"{page} was not executed in order"
    )


@by_page
def test_no_traceback_and_no_warning_in_a_page(html, page):
    content = article(page)
    assert not content.select(".output.stderr, .output.traceback, .system-message")
    for output in content.select(".cell_output"):
        text = output.get_text()
        for word in ("Traceback (most recent call last)", "Warning:", "WARNING"):
            assert word not in text, f"{page}: {word!r} in an output: {text[:300]}"


@by_page
def test_pictures_have_alt_texts(html, page):
    for image in article(page).select("img"):
        alt = image.get("alt", "")
        assert len(alt.split()) >= 5, (
            f"{page}: {image.get('src')} has the alt text {alt!r}"
        )
        assert not alt.startswith(("../_images", "_images")), f"{page}: no alt text"


def is_elsewhere(url):
    return bool(urlsplit(url).netloc) or url.startswith("//")


def test_no_broken_link_and_no_broken_anchor(html):
    """Every link between pages, pictures and scripts, and every anchor they name."""
    broken, seen = [], 0
    for path in every_html():
        for node in soup(path).select("[href]:not(base), [src]"):
            url = node.get("href") or node.get("src") or ""
            if is_elsewhere(url) or urlsplit(url).scheme or not url:
                continue
            seen += 1
            target, _, anchor = unquote(url).partition("#")
            file = (
                (path.parent / target.partition("?")[0]).resolve() if target else path
            )
            if not file.exists():
                broken.append(f"{path.relative_to(html)}: {url}")
            elif anchor and file.suffix == ".html" and not has_anchor(file, anchor):
                broken.append(f"{path.relative_to(html)}: {url} (no such anchor)")
    assert not broken, "\n".join(broken)
    assert seen > 100, (
        "the book is full of links, so this test looked at the wrong place"
    )


def has_anchor(file, anchor):
    names = soup(file).find(id=anchor) or soup(file).find(attrs={"name": anchor})
    return anchor == "top" or names is not None


LOADS = [  # what makes a browser fetch something; an ordinary link does not
    ("script", "src"), ("img", "src"), ("img", "srcset"), ("iframe", "src"),
    ("source", "src"), ("source", "srcset"), ("video", "src"), ("audio", "src"),
    ("embed", "src"), ("object", "data"), ("form", "action"),
]  # fmt: skip
PASSIVE = {"canonical", "index", "search", "next", "prev", "author", "license"}


def test_no_page_loads_anything_from_another_host(html):
    """Attributes that load, style sheets, and addresses inside scripts of the page."""
    foreign = []
    for path in every_html():
        page = soup(path)
        found = [node.get(name, "") for tag, name in LOADS for node in page.select(tag)]
        for link in page.select("link[href]"):
            if not PASSIVE & {*link.get("rel", [])}:
                found.append(link["href"])
        for script in page.select("script:not([src])"):
            found += re.findall(
                r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", script.get_text()
            )
        for node in page.select("style"):
            found += css_addresses(node.get_text())
        for node in page.select("[style]"):
            found += css_addresses(f"x {{ {node['style']} }}")
        foreign += [
            f"{path.relative_to(html)}: {url}" for url in found if is_elsewhere(url)
        ]
    for path in html.rglob("*.css"):
        for url in css_addresses(path.read_text(encoding="utf-8")):
            if is_elsewhere(url):
                foreign.append(f"{path.relative_to(html)}: {url}")
    assert not foreign, "\n".join(foreign)


def css_addresses(text):
    """Every ``url(…)`` and ``@import`` of a style sheet."""
    todo = tinycss2.parse_stylesheet(text, skip_comments=True, skip_whitespace=True)
    imports = False
    while todo:
        token = todo.pop(0)
        if token.type == "url":
            yield token.value
        elif token.type == "function" and token.lower_name == "url":
            yield from (part.value for part in token.arguments if part.type == "string")
        elif token.type == "at-rule":
            imports = token.lower_at_keyword == "import"
            if imports:
                yield from (
                    part.value for part in token.prelude if part.type == "string"
                )
        for name in ("prelude", "content", "arguments"):
            todo += getattr(token, name, None) or []


def test_the_search_for_other_hosts_finds_them():
    css = "@import 'https://a.example/x.css'; b { background: url(//c.example/y.png) }"
    assert [url for url in css_addresses(css) if is_elsewhere(url)] == [
        "https://a.example/x.css",
        "//c.example/y.png",
    ]


@by_page
def test_a_page_is_at_most_one_mebibyte(html, page):
    """With its pictures."""
    file = html / f"{page}.html"
    images = {
        html / urlsplit(urljoin(f"{page}.html", image["src"])).path
        for image in article(page).select("img[src]")
        if not image["src"].startswith("data:")
    }
    size = file.stat().st_size + sum(image.stat().st_size for image in images)
    assert size <= MIB, f"{page}: {size / MIB:.2f} MiB with {len(images)} pictures"


def test_the_book_says_how_it_was_built(html):
    """Every executed page stands in the table, with the seconds and memory it took."""
    page = article("book/how-this-was-built")
    rows = {
        row[1]: row
        for line in page.select("table.build-costs tbody tr")
        if (row := [cell.get_text().strip() for cell in line.select("td")])
    }
    for name in NOTEBOOKS:
        assert name in rows, f"{name} is not in the table of how-this-was-built"
        assert float(rows[name][2]) > 0 and int(rows[name][3]) > 0
    text = page.get_text()
    for name in ("jax", "torch", "numpy", "python"):
        assert re.search(rf"^{name}\s+\d+\.\d+", text, re.MULTILINE), (
            f"{name}: no version"
        )
