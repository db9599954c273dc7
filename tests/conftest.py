"""Settings of all tests."""

import os
from collections import Counter

import hypothesis
import pytest

hypothesis.settings.register_profile("no time is asserted", deadline=None)
hypothesis.settings.load_profile("no time is asserted")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Of two workers, one runs all tests of a file, or of a page in the browser.

    They begin with the files that take long, and end at about one time.
    """
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        group = parameters.get("page_name", str(item.path))
        item.add_marker(pytest.mark.xdist_group(group))
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = Counter(i.path for i in items if i.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])
