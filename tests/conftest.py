"""Settings of all tests."""

import os
from collections import Counter

import hypothesis

hypothesis.settings.register_profile("no time is asserted", deadline=None)
hypothesis.settings.load_profile("no time is asserted")


def pytest_collection_modifyitems(items):
    """Two workers begin with the files that take long, and end at about one time."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = Counter(i.path for i in items if i.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])
