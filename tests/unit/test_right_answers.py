"""No false alarm: right answers pass, in whatever style they are written."""

import importlib

import pytest

from helpers import exercises

FRAMEWORKS = ("jax", "torch")
MODULES = {name: importlib.import_module(f"styles_{name}") for name in FRAMEWORKS}


def styles(framework):
    """The functions of a framework's file: ``heads_by_loops`` answers ``….heads``."""
    return {name: f for name, f in vars(MODULES[framework]).items() if "_by_" in name}


@pytest.mark.parametrize(
    ("framework", "style"), [(f, style) for f in FRAMEWORKS for style in styles(f)]
)
def test_a_right_answer_in_another_style_passes(framework, style, capsys):
    for chapter in exercises.CHAPTERS:
        importlib.import_module(f"helpers.exercises.{chapter}")
    short = style.partition("_by_")[0]
    (name,) = (n for n in exercises.KNOWN if n.partition(".")[2] == short)
    assert exercises.check(name, styles(framework)[style]), capsys.readouterr().out


def test_both_frameworks_try_two_styles_of_ten_exercises_or_more():
    assert styles("jax").keys() == styles("torch").keys()
    tried = [style.partition("_by_")[0] for style in styles("jax")]
    assert len({*tried}) >= 10
    assert all(tried.count(short) >= 2 for short in tried)
