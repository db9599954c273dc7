"""Bounds of results stay near what is measured; all pages have noted theirs."""

import pytest

import bounds
import build_book

pytestmark = [pytest.mark.book, pytest.mark.usefixtures("html")]


def test_every_executed_page_has_noted_its_bounds():
    pages = {page.stem for page in build_book.executable()}
    assert {path.stem for path in bounds.FOLDER.glob("*.json")} == pages


def test_no_bound_is_far_from_what_is_measured():
    """Else a result could change by more than three times, and nobody would know."""
    loose = [entry for entry in bounds.read() if bounds.is_loose(entry)]
    assert not loose, (
        f"{len(loose)} bounds are too far from what is measured: tighten them, "
        f"or say why not in a comment `# loose: …`\n{bounds.table(loose)}"
    )
