"""The README, its picture and the page on the build say what the repository holds."""

import html
import re
import subprocess
import sys

import pytest

import pages

sys.path.insert(0, str(pages.ROOT / "tools"))

import picture

README = (pages.ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (pages.ROOT / "CONTRIBUTING.md").read_text("utf-8")
BUILT = (pages.ROOT / "book" / "how-this-was-built.md").read_text("utf-8")
FILES = pages.addresses(pages.config()["repository"]["url"])[0]


@pytest.mark.parametrize("side", pages.SIDES)
def test_the_picture_shows_the_code_of_the_pages(side):
    """Change the function on a page, and ``python tools/picture.py`` is due."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", picture.TARGET.read_text("utf-8"))
    drawn = [html.unescape(text).replace("\u00a0", " ") for text in texts]
    for line in picture.code(side):
        assert line in drawn, f"not in {picture.TARGET.name}: {line!r}"


def test_every_file_that_the_readme_links_exists():
    for target in re.findall(r"\]\(([^)#]+)", README + CONTRIBUTING):
        if not target.startswith("http"):
            assert (pages.ROOT / target).exists(), f"README.md links to {target}"


FINISHED = [
    page for page in pages.toc()
    if page.startswith("notebooks/") and not pages.is_draft(page)
]  # fmt: skip


@pytest.mark.parametrize("page", FINISHED)
def test_a_finished_page_is_where_readers_look_for_it(page):
    """In both tables, in the map of the index, and linked by the page before it."""
    assert f"]({page}.ipynb)" in README, "README.md has no link to the page"
    assert f"/blob/main/{page}.ipynb" in BUILT, "the table of Colab has no such link"
    index = (pages.ROOT / "book/index.md").read_text("utf-8")
    (row,) = [line for line in index.splitlines() if f"../{page}.ipynb" in line]
    promise = row.rsplit("|", 2)[1].strip()
    assert len(promise) > 20, f"book/index.md says {promise!r} of {page}"
    place = FINISHED.index(page)
    if place >= len(pages.SIDES):
        before = pages.ROOT / f"{FINISHED[place - len(pages.SIDES)]}.py"
        end = pages.read_py(before)[-1].source
        name = page.removeprefix("notebooks/")
        assert f"]({name}.ipynb)" in end, f"the last cell of {before.name}: no {name}"


def test_every_command_of_the_readme_is_a_target_of_the_makefile():
    """Each `make …` stands in the list that `make help` prints."""
    listed = subprocess.run(
        ["make", "help"], cwd=pages.ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = set(re.findall(r"^\s+make (\S+)", listed, flags=re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", README + CONTRIBUTING + BUILT))
    assert {"book", "test"} <= named
    assert named <= targets, f"no such targets: {sorted(named - targets)}"


def test_every_measured_figure_stands_in_the_file_that_is_linked_beside_it():
    """Ratios and ranges are copied from ``benchmarks/results``."""
    seen = 0
    for row in re.findall(r"^\|.*\|$", BUILT, flags=re.MULTILINE):
        targets = re.findall(rf"\]\({FILES}/blob/main/(benchmarks/results/[^)]+)", row)
        text = "\n".join((pages.ROOT / target).read_text("utf-8") for target in targets)
        for figure in re.findall(r"\b\d+\.\d+\b", row.partition("](")[0]):
            seen += bool(targets)
            assert f" {figure} " in text or not targets, f"{figure} is not in {targets}"
    assert seen >= 10


def test_every_file_that_is_said_to_hold_a_promise_is_there():
    table = BUILT.partition("| | tested in |")[2].partition("\n\n")[0]
    named = re.findall(r"`((?:tests|notebooks)/[^`]+)`", table)
    assert len(named) >= 5
    for name in named:
        assert [*pages.ROOT.glob(name)], f"how-this-was-built.md names {name}"


def test_the_readme_is_read_in_a_few_minutes():
    assert len(README.split()) <= 1_000
