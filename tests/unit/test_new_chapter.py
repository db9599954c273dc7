"""``make new-chapter`` lays down two pages that run and pass the tests as they are."""

import pytest
import yaml

import new_chapter
import pages
from clones import copy_of_the_repository, run


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the repository's text, with a new chapter in it."""
    root = copy_of_the_repository(tmp_path_factory.mktemp("clone"))
    done = lay_down(root, NAME="trial", TITLE="A first & last 'trial'")
    assert done.returncode == 0, done.stderr
    assert "trial_jax.py and trial_torch.py" in done.stdout
    return root


def lay_down(root, **variables):
    """As ``make new-chapter`` does, which hands its variables on."""
    return run(root, "tools/new_chapter.py", **variables)


def test_the_tests_accept_the_pages(clone):
    """Pairs, twins, text, Colab's cell; the sizes of a draft are not asked for."""
    tests = ["pairs", "twins", "prose", "colab_cell"]
    files = [f"tests/pages/test_{name}.py" for name in tests]
    chosen = "trial and not test_each_page_runs_in_colab"  # they run once, below
    done = run(clone, "-m", "pytest", "-q", "-p", "no:xdist", "-k", chosen, *files)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 skipped" in done.stdout and "is a draft" in done.stdout


def test_the_code_is_clean(clone):
    done = run(clone, "-m", "ruff", "check", "notebooks")
    assert done.returncode == 0, done.stdout
    done = run(clone, "-m", "ruff", "format", "--check", "notebooks")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("side", pages.SIDES)
def test_the_pages_run(clone, side):
    page = f"notebooks/trial_{side}.ipynb"
    done = run(clone, "-m", "pytest", "-q", "-p", "no:xdist", "--nbmake", page)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_book_knows_the_pages(clone):
    """They stand behind the last chapter, in the table of contents and in the map."""
    toc = (clone / "_toc.yml").read_text("utf-8")
    entries = (
        "      - file: notebooks/anomaly_torch\n"
        "        title: Finding the odd one out in PyTorch\n"
        "      - file: notebooks/trial_jax\n"
        "        title: A first & last 'trial' in JAX\n"
        "      - file: notebooks/trial_torch\n"
        "        title: A first & last 'trial' in PyTorch\n"
    )
    assert entries in toc
    index = (clone / "book/index.md").read_text("utf-8")
    row = "[JAX](../notebooks/trial_jax.ipynb) | [PyTorch](../notebooks/trial_torch."
    assert f"| A first & last 'trial' | {row}" in index


@pytest.mark.parametrize(
    "title", ["Plain", "A colon: what then?", 'A "quote" # here', "1"]
)
def test_a_title_is_the_same_in_the_table_of_contents(title):
    assert yaml.safe_load(f"title: {new_chapter.in_yaml(title)}") == {"title": title}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "say what it is about, in one word of small letters"),
        ("The Decoder", "say what it is about, in one word of small letters"),
        ("trial", "there is a chapter trial already"),
        ("table", "a title is one line without |, which would end a cell of the map"),
    ],
)
def test_bad_names_are_refused_and_nothing_is_changed(clone, name, sentence):
    def state():
        return {p: p.read_bytes() for p in clone.rglob("*.*") if p.is_file()}

    before = state()
    done = lay_down(clone, NAME=name, TITLE="With a | in it" if name == "table" else "")
    assert done.returncode == 1 and sentence in done.stderr
    assert {p: c for p, c in state().items() if p.suffix != ".pyc"} == {
        p: c for p, c in before.items() if p.suffix != ".pyc"
    }
