"""Sphinx extension: pages that Sphinx executes show no bars, which go to stderr."""

import os


def setup(_app):
    os.environ["TQDM_DISABLE"] = "1"
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
