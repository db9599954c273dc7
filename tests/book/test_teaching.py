"""For those who teach: plans that fit the chapters, and each figure as a file."""

import importlib
import math
import re
import zipfile
from collections import Counter
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import pages
from figures import SVG
from helpers import exercises
from markup import size_of_svg
from reading import article, whole

for chapter in exercises.CHAPTERS:
    importlib.import_module(f"helpers.exercises.{chapter}")

PAGES = [page for page in pages.toc() if pages.side_of(page)]
CHAPTERS = [page[len("notebooks/") : -len("_jax")] for page in PAGES[::2]]
FOLDER = "_downloads/figures"
TEACHING = (pages.ROOT / "book/teaching.md").read_text("utf-8")
each_page = pytest.mark.parametrize("page", PAGES)
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS)


def figures_of(page):
    """``{name: node}`` of the light figures and the maps on a built page."""
    found, seen = {}, Counter()
    for node in article(page).select(
        ".tag_figure :is(img.only-light, attention-viewer)"
    ):
        slug = node.find_parent("section")["id"]
        seen[slug] += 1
        found[slug + (f"-{seen[slug]}" if seen[slug] > 1 else "")] = node
    return found


def rows_of(heading):
    """Of the table below a heading of the page: cells of each row."""
    section = article("book/teaching").find(id=heading)
    return [row.find_all("td") for row in section.table.tbody.find_all("tr")]


def chapters_in(cell):
    """The chapters whose titles stand in a cell of a table, in italics."""
    titles = {
        article(f"notebooks/{name}_jax").h1.contents[0].strip(): name
        for name in CHAPTERS
    }
    return [titles[name.get_text()] for name in cell.select("em")]


def exercises_in(cell):
    return [name.get_text() for name in cell.select("code")]


def assert_minutes(cell, chapters):
    """They are those of the pages, the mean of the twins, to rounding."""
    said = 0
    for page in (
        f"notebooks/{name}_{side}" for name in chapters for side in pages.SIDES
    ):
        line = whole(page).select_one(".take-along .minutes").text
        said += int(re.search(r"\d+", line)[0]) / 2
    assert abs(int(cell.get_text()) - said) <= (len(chapters) + 1) / 2, chapters


@pytest.mark.book
@each_page
def test_each_figure_is_a_file_with_the_name_of_its_section(html, page):
    """The light one, to the letter; of a map that responds, a drawing of its own."""
    folder = html / FOLDER / page.removeprefix("notebooks/")
    cells = article(page).select(".tag_figure")
    found = figures_of(page)
    assert len(found) >= len(cells) > 0
    assert {*found} == {path.stem for path in folder.iterdir()}
    for name, node in found.items():
        text = (folder / f"{name}.svg").read_text("utf-8")
        assert ElementTree.fromstring(text).tag == f"{SVG}svg"
        assert min(size_of_svg(text)) > 50, f"{name}: {size_of_svg(text)}"
        if node.name == "img":
            source = html / "notebooks" / node["src"]
            assert text == source.read_text("utf-8"), name
        else:
            assert "<!-- weight -->" in text and f"{SVG}image" not in text, name


@pytest.mark.book
@each_chapter
def test_each_figure_is_listed_with_its_alt_text(html, chapter):
    """Once if both frameworks draw the same, to the letter, else one of each."""
    listed, here = {}, (html / "book").resolve()
    for link in article("book/figures").select(f"li a[href*='/{chapter}_'][href$=svg]"):
        path = (here / link["href"]).resolve()
        words = listed.setdefault(path.stem, ([], link.find_parent("li").get_text()))
        words[0].append(path)
    twins = [figures_of(f"notebooks/{chapter}_{side}") for side in pages.SIDES]
    assert [*listed] == [*twins[0]] == [*twins[1]]
    for name, (paths, words) in listed.items():
        texts = {
            (html / FOLDER / f"{chapter}_{side}/{name}.svg").read_bytes()
            for side in pages.SIDES
        }
        assert len(paths) == len(texts) == len({path.read_bytes() for path in paths})
        alt = twins[1][name].get("alt")
        assert alt is None or alt.removesuffix(".") in words


@pytest.mark.book
def test_the_archive_holds_all_of_them(html):
    names = zipfile.ZipFile(html / f"{FOLDER}.zip").namelist()
    files = {path.relative_to(html / FOLDER) for path in (html / FOLDER).rglob("*.svg")}
    assert {name for name in names if name.endswith("svg")} == {*map(str, files)}
    links = article("book/figures").select("a[download]")
    assert [link["href"] for link in links] == [f"../{FOLDER}.zip"]


@pytest.mark.book
@pytest.mark.usefixtures("html")
def test_the_weeks_take_every_chapter_and_every_exercise_once():
    """An exercise in the week of its chapter, with a figure of one of its chapters."""
    chapters, names = [], []
    for week, cell, minutes, blank, figure in rows_of("eight-weeks"):
        own = chapters_in(cell)
        assert_minutes(minutes, own)
        found = exercises_in(blank)
        assert {name.partition(".")[0] for name in found} <= {*own}, week.get_text()
        (link,) = figure.select("a")
        assert link["href"].split("/")[-2].removesuffix("_torch") in own
        chapters += own
        names += found
    assert sorted(chapters) == sorted(CHAPTERS)
    assert sorted(names) == sorted(exercises.KNOWN)


@pytest.mark.book
@pytest.mark.usefixtures("html")
def test_the_workshop_has_one_exercise_of_each_chapter():
    *slots, (*_, nothing) = rows_of("two-days")
    for _, cell, minutes, blank in slots:
        (own,), (name,) = chapters_in(cell), exercises_in(blank)
        assert_minutes(minutes, [own])
        assert name in exercises.KNOWN and name.partition(".")[0] == own
    assert len(slots) == 7 and not nothing.get_text()


def test_quoted_messages_are_those_of_the_check():
    """On the page, and in the rules for tutors."""
    agents = " ".join((pages.ROOT / "AGENTS.md").read_text("utf-8").split())
    quoted = re.findall(r"^([\w.]+): not right: (.*)\.$", TEACHING, re.MULTILINE)
    quoted += [("attention.masked", *re.findall(r"\*not right: ([^*]*)\.\*", agents))]
    assert len(quoted) == 3
    for name, message in quoted:
        assert message in exercises.KNOWN[name].mistakes.values(), message


def test_the_code_for_pairs_compares_the_twins(tmp_path, monkeypatch):
    """The answers of the pages agree; with one head, instead of two, they do not."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEACHING, re.DOTALL)
    in_torch, compare = code.split("\n\n")
    in_jax = in_torch.replace("torch.from_numpy", "jnp.asarray")
    in_jax = in_jax.replace('save("heads_torch', 'save("heads_jax')
    names = {"np": np, "math": math, "torch": torch, "jnp": jnp, "nnx": nnx}
    for side, part in {"torch": in_torch, "jax": in_jax}.items():
        answer = pages.NOTEBOOKS / f"attention_{side}.py"
        exec(pages.definition(answer, "my_heads"), names)
        exec(part, names)
    exec(compare, names)
    exec(in_jax.replace("n_heads=2", "n_heads=1"), names)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        exec(compare, names)
