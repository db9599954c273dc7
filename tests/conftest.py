"""Settings of all tests."""

import os

import hypothesis

# Tests compile thousands of small programs in JAX, and most run once: no optimisation
# halves what each takes to compile. Pages are compiled as readers compile them. On
# *warm-up* these flags would be wrong: jaxlib 0.10.1 computes something else where the
# second one meets that page's option to leave fusion out, and no model there learns.
COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", COMPILE_FAST)

hypothesis.settings.register_profile("no time is asserted", deadline=None)
hypothesis.settings.load_profile("no time is asserted")
