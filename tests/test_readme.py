"""The README and its picture say what the repository holds."""

import html
import re
import subprocess
import sys

import pytest

import pages

sys.path.insert(0, str(pages.ROOT / "tools"))

import picture

README = (pages.ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("side", pages.SIDES)
def test_the_picture_shows_the_code_of_the_pages(side):
    """Change the function on a page, and ``python tools/picture.py`` is due."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", picture.TARGET.read_text("utf-8"))
    drawn = [html.unescape(text).replace("\u00a0", " ") for text in texts]
    for line in picture.code(side):
        assert line in drawn, f"not in {picture.TARGET.name}: {line!r}"


def test_every_file_that_the_readme_links_exists():
    for target in re.findall(r"\]\(([^)#]+)", README):
        if not target.startswith("http"):
            assert (pages.ROOT / target).exists(), f"README.md links to {target}"


def test_every_command_of_the_readme_is_a_target_of_the_makefile():
    """Each `make …` of the README stands in the list that `make help` prints."""
    listed = subprocess.run(
        ["make", "help"], cwd=pages.ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = set(re.findall(r"^\s+make (\S+)", listed, flags=re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", README))
    assert {"book", "test"} <= named
    assert named <= targets, f"no such targets: {sorted(named - targets)}"
