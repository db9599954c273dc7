"""Lay down the two pages of a new chapter, which run and pass the tests as they are.

    make new-chapter NAME=decoder TITLE="The decoder"

The pages come from ``tools/new_chapter_template``; they are named in ``_toc.yml`` after
the last chapter, and in the table of ``book/index.md``.
"""

import os
import re
import sys
from pathlib import Path

import yaml

import pages
import sync
from pages import NAMES

TEMPLATE = Path(__file__).with_name("new_chapter_template")
TOC, INDEX = pages.ROOT / "_toc.yml", pages.ROOT / "book" / "index.md"


def lay_down(name, title):
    """Write both pages; return their paths."""
    paths = [pages.NOTEBOOKS / f"{name}_{side}.py" for side in NAMES]
    for path, side in zip(paths, NAMES, strict=True):
        text = (TEMPLATE / f"{side}.py").read_text(encoding="utf-8")
        text = text.replace("TITLE", title).replace("NAME", name)
        path.write_text(text, encoding="utf-8", newline="\n")
    return paths


def after_the_last(text, pattern, addition):
    """The text with ``addition`` behind the last match of a pattern."""
    end = list(re.finditer(pattern, text, re.MULTILINE))[-1].end()
    return text[:end] + addition + text[end:]


def in_yaml(title):
    """A title as a value in YAML: quoted only where it has to be."""
    return yaml.safe_dump(title, width=1000, allow_unicode=True).split("\n")[0]


def name_in_the_book(name, title):
    """Add the pages to the table of contents and to the map on the index."""
    entries = "".join(
        f"      - file: notebooks/{name}_{side}\n"
        f"        title: {in_yaml(f'{title} in {framework}')}\n"
        for side, framework in NAMES.items()
    )
    toc = TOC.read_text(encoding="utf-8")
    pattern = r"^ +- file: notebooks/\w+\n +title: .*\n"
    TOC.write_text(after_the_last(toc, pattern, entries), "utf-8", newline="\n")
    links = " | ".join(
        f"[{framework}](../notebooks/{name}_{side}.ipynb)"
        for side, framework in NAMES.items()
    )
    index = INDEX.read_text(encoding="utf-8")
    row = f"| {title} | {links} | … |\n"
    pattern = r"^\|.*notebooks/\w+_torch\.ipynb.*\n"
    INDEX.write_text(after_the_last(index, pattern, row), "utf-8", newline="\n")


def main():
    name = os.environ.get("NAME", "")
    if not re.fullmatch(r"[a-z][a-z0-9]*", name):
        sys.exit(
            "say what it is about, in one word of small letters: "
            'make new-chapter NAME=decoder TITLE="The decoder"'
        )
    if name in pages.chapters():
        sys.exit(f"there is a chapter {name} already: notebooks/{name}_jax.py")
    title = os.environ.get("TITLE") or name.capitalize()
    if "|" in title or "\n" in title:
        sys.exit("a title is one line without |, which would end a cell of the map")
    paths = lay_down(name, title)
    name_in_the_book(name, title)
    sync.main([str(path) for path in paths])
    print(f"{title}: edit {' and '.join(path.name for path in paths)} in notebooks/,")
    print("then `make sync`, `make draft` and `make test`")


if __name__ == "__main__":
    main()
