"""The map of the Transformer: a part whose section is not found is a warning."""

import re
from types import SimpleNamespace

import pytest
from docutils import nodes

import pages
import transformer_map
from transformer_map import PARTS, SECTIONS, Targets

HEADINGS = ["Attention", "Heads attend independently", "Masked positions", "Key points"]


@pytest.fixture
def app():
    """A book of one page, ``attention_jax``, with a few headings."""
    page = nodes.section(ids=["attention"])
    page += nodes.title(text=HEADINGS[0])
    for heading in HEADINGS[1:]:
        section = nodes.section(ids=[heading.lower().replace(" ", "-")])
        section += nodes.title(text=heading)
        page += section
    document = nodes.document("", "")
    document += page
    found = {"notebooks/attention_jax": document}
    env = SimpleNamespace(
        docname="book/index", found_docs=found, get_doctree=found.__getitem__
    )
    to = SimpleNamespace(get_relative_uri=lambda here, there: f"../{there}.html")
    return SimpleNamespace(env=env, builder=to)


def look_up(app, monkeypatch, words, side="jax"):
    """Where a part leads that is looked for by some words."""
    monkeypatch.setitem(SECTIONS, "mask", ("attention", words))
    return Targets(app, side, "book/index")["mask"]


def test_section_is_found_by_words_of_its_heading(app, monkeypatch, caplog):
    found = look_up(app, monkeypatch, "masked")
    address = "../notebooks/attention_jax.html"
    assert found == (f"{address}#masked-positions", "Masked positions")
    assert look_up(app, monkeypatch, "") == (address, "Attention")
    assert not caplog.records


@pytest.mark.parametrize("words", ["masks of padding", "positions in", "t"])
def test_no_section_or_several_are_a_warning(app, monkeypatch, caplog, words):
    """With what was looked for, and the headings there are."""
    assert look_up(app, monkeypatch, words) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    said = record.getMessage()
    assert repr(words) in said and "notebooks/attention_jax" in said
    assert all(heading in said for heading in HEADINGS)


def test_chapter_that_is_not_in_the_book_has_no_link(app, monkeypatch, caplog):
    assert look_up(app, monkeypatch, "masked", side="torch") is None
    assert not caplog.records


def test_every_part_of_the_code_and_every_neighbour_has_a_section():
    around = [name for row in transformer_map.AROUND.values() for name, _, _ in row]
    parts = [part.key for part in PARTS]
    assert {"encoder", "decoder", *parts, *around} == set(SECTIONS)


@pytest.mark.parametrize("side", pages.SIDES)
def test_parts_have_the_names_of_the_code(side):
    folder = pages.NOTEBOOKS / "helpers" / side
    code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    known = set(re.findall(r"\w+", code))
    assert {part.name for part in PARTS} - {"+"} <= known


def test_map_names_every_part_of_both_halves():
    terms = {part.term for part in PARTS}
    assert {"attention", "causal attention", "cross-attention"} <= terms
    keys = [part.key for part in PARTS]
    twice = {key for key in keys if keys.count(key) > 1}
    again = {"+", "norm_first"}  # a sum and a norm stand at each part of a block
    assert twice == again | {f"decoder {name}" for name in again}


def test_lines_of_the_map_end_at_its_parts():
    edges = {edge for part in PARTS for edge in (part.top, part.bottom)}
    for p in PARTS:
        middle = p.y + p.h / 2
        edges |= {(p.x - p.w / 2, middle), (p.x + p.w / 2, middle)}
    for points in transformer_map.map_lines():
        assert points[-1] in edges or points[-1][1] == 498, "the way out"
