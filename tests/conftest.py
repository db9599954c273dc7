"""Settings of all tests."""

import os
import re
from collections import Counter

import hypothesis
import pytest

# Tests compile thousands of small programs in JAX, and most run once: no optimisation
# halves what each takes to compile. Pages are compiled as readers compile them. On
# *warm-up* these flags would be wrong: jaxlib 0.10.1 computes something else where the
# second one meets that page's option to leave fusion out, and no model there learns.
COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", COMPILE_FAST)

hypothesis.settings.register_profile("no time is asserted", deadline=None)
hypothesis.settings.load_profile("no time is asserted")


def pytest_collection_modifyitems(items):
    """Workers begin with the files that take long, to end at about one time."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = Counter(i.path for i in items if i.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])


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
