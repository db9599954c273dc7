"""Sphinx extension: where the outputs of the pages come from.

``make book`` executes the pages beforehand and names their jupyter-cache in
``$PAGES_CACHE``. The plain ``jupyter-book build .`` executes them itself, with an empty
folder for their runs, whatever runs are kept elsewhere.
"""

import os
import tempfile

RUNS = tempfile.TemporaryDirectory(prefix="runs-")


def use_cache(_app, config):
    if cache := os.environ.get("PAGES_CACHE"):
        config.nb_execution_mode = "cache"
        config.nb_execution_cache_path = cache


def setup(app):
    os.environ.update(RUNS_FOLDER=RUNS.name, TQDM_DISABLE="1")
    app.connect("config-inited", use_cache)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
