"""``make fork`` changes every copy of the repository's address, in all its forms."""

import pytest
import yaml

import pages
from clones import copy_of_the_repository, run

HOME = "https://github.com/Somebody/a-book"


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    root = copy_of_the_repository(tmp_path_factory.mktemp("fork"))
    done = run(root, "tools/fork.py", f"{HOME}.git")
    assert done.returncode == 0, done.stderr
    return root


def texts(root):
    for path in root.rglob("*.*"):
        if path.suffix in {".py", ".md", ".yml", ".ipynb", ".txt", ".cff"}:
            yield path, path.read_text("utf-8")


def test_no_old_address_is_left(fork):
    """Neither that of the repository, nor Colab's, nor the public home of the book."""
    for path, text in texts(fork):
        for address in pages.addresses(pages.repository()):
            assert address not in text, f"{path.relative_to(fork)} names {address}"


def test_each_form_of_the_new_address_is_there(fork):
    settings = yaml.safe_load((fork / "_config.yml").read_text("utf-8"))
    assert settings["repository"]["url"] == HOME
    assert settings["html"]["baseurl"] == "https://somebody.github.io/a-book/"
    colab = "https://colab.research.google.com/github/Somebody/a-book/blob/main/"
    readme = (fork / "README.md").read_text("utf-8")
    for page in pages.sources():
        assert f"{colab}notebooks/{page.stem}.ipynb" in readme
        for path in (page.name, f"{page.stem}.ipynb"):
            assert HOME in (fork / "notebooks" / path).read_text("utf-8")


def test_the_pages_are_still_pairs(fork):
    done = run(fork, "-m", "pytest", "-q", "-p", "no:xdist", "tests/test_pairs.py")
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    "address", ["", "a-book", "http://github.com/x/y", "https://x"]
)
def test_what_is_no_address_is_refused(fork, address):
    before = dict(texts(fork))
    done = run(fork, "tools/fork.py", *([address] if address else []))
    assert done.returncode == 1
    assert "make fork REPOSITORY=https://github.com/you/your-fork" in done.stderr
    assert dict(texts(fork)) == before
