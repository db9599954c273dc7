"""Settings of all tests."""

import os
import re
from collections import Counter

import hypothesis
import pytest

hypothesis.settings.register_profile("no time is asserted", deadline=None)
hypothesis.settings.load_profile("no time is asserted")


def pytest_collection_modifyitems(items):
    """Workers begin with the files that take long, to end at about one time."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = Counter(i.path for i in items if i.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])


def pytest_terminal_summary(terminalreporter):
    """After the tests of bounds: those that are furthest from what is measured."""
    passed = terminalreporter.getreports("passed")
    if any("book/test_bounds.py" in report.nodeid for report in passed):
        import bounds

        loosest = [entry for entry in bounds.read() if bounds.is_result(entry)][:10]
        terminalreporter.section("the loosest bounds (tools/bounds.py shows all)")
        terminalreporter.write_line(bounds.table(loosest))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker runs all tests of a file that share a framework or a page of the book.

    So what they share is made once. (``--dist loadgroup`` does nothing in pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFileAndPage(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, test = nodeid.partition("::")
            shared = re.search(r"\[.*?\b((book|notebooks)/[\w-]+|jax|torch)\b", test)
            return f"{file} {shared[1]}" if shared else file

    return ByFileAndPage(config, log)
