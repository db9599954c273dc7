"""What several tests need: the pages, and the built book."""

import hypothesis
import pytest

import build_book

hypothesis.settings.register_profile("no time is asserted", deadline=None)
hypothesis.settings.load_profile("no time is asserted")


@pytest.fixture(scope="session")
def html():
    """Folder of the built book; it must have been built from the present sources."""
    assert build_book.is_fresh(), (
        "the built book is missing or older than its sources: run `make book`"
    )
    return build_book.HTML
