"""Sphinx extension: how long each executed page took, and the memory it needed.

While Sphinx reads a page (and executes its cells) a thread looks several times a second
at the processes that the build has started, and keeps the largest sum of their memory.
``{build-costs}`` in a page becomes the table; ``costs.json`` beside the built pages
holds the same numbers. So that they are true, every page trains for real in a build,
whatever runs are kept elsewhere, and shows no progress bar.
"""

import json
import os
import tempfile
import threading
from pathlib import Path

import psutil
from docutils import nodes
from myst_nb.sphinx_ import NbMetadataCollector
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

MIB = 2**20


class Watch(threading.Thread):
    """Keeps the peak memory of the children of a process until it is told to stop."""

    def __init__(self, process=None, *, itself=False):
        super().__init__(daemon=True)
        self.process = process or psutil.Process()
        self.itself = [self.process] if itself else []
        self.peak = 0
        self.done = threading.Event()

    def run(self):
        while not self.done.wait(0.2):
            try:
                family = self.itself + self.process.children(recursive=True)
            except psutil.Error:  # it has ended
                return
            self.peak = max(self.peak, sum(map(resident, family)))

    def stop(self):
        """End the watch and return the peak in bytes."""
        self.done.set()
        self.join()
        return self.peak


def resident(process):
    """Resident memory in bytes; 0 when the process has ended meanwhile."""
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def train_for_real(app):
    """Give the pages an empty folder for their trainings, until the build ends."""
    app.build_costs_runs = tempfile.TemporaryDirectory(prefix="runs-")
    app.build_costs_environment = os.environ.copy()
    os.environ.update(RUNS_FOLDER=app.build_costs_runs.name, TQDM_DISABLE="1")


def forget_runs(app, _error):
    """Remove that folder, and give the environment back as it was."""
    for name in ("RUNS_FOLDER", "TQDM_DISABLE"):
        os.environ.pop(name)
        if name in app.build_costs_environment:
            os.environ[name] = app.build_costs_environment[name]
    app.build_costs_runs.cleanup()


def start_watch(app, docname, _source):
    stop_watch(app)
    app.build_costs_watch = docname, Watch()
    app.build_costs_watch[1].start()


def stop_watch(app, *_):
    docname, watch = getattr(app, "build_costs_watch", (None, None))
    if watch is not None:
        peaks(app.env)[docname] = watch.stop()
        app.build_costs_watch = None, None


def peaks(env):
    """Peak memory in bytes, by page; kept with Sphinx's own notes about the pages."""
    if not hasattr(env, "build_costs_peaks"):
        env.build_costs_peaks = {}
    return env.build_costs_peaks


def costs(env):
    """``{page: (seconds, peak memory in MiB or None)}`` of all executed pages."""
    found = {}
    for docname, data in NbMetadataCollector.get_doc_data(env).items():
        run = data.get("exec_data")
        if run and run["runtime"] is not None:
            peak = peaks(env).get(docname)
            found[docname] = run["runtime"], peak and round(peak / MIB)
    order = list(env.found_docs)
    if hasattr(env.app.config, "external_site_map"):
        order = list(env.app.config.external_site_map)
    return {page: found[page] for page in order if page in found}


class CostsNode(nodes.General, nodes.Element):
    """Stands where the table will be, until every page has been executed."""


class CostsDirective(SphinxDirective):
    def run(self):
        NbMetadataCollector.set_doc_data(
            self.env, self.env.docname, "has_exec_table", True
        )  # has MyST-NB write this page again whenever a page was executed
        return [CostsNode()]


class CostsTable(SphinxPostTransform):
    default_priority = 8

    def run(self, **_):
        for node in list(self.document.findall(CostsNode)):
            node.replace_self(table(costs(self.env), self.env))


def table(rows, env):
    """The table as nodes, with a last line that sums the seconds up."""
    lines = [
        (
            title(page, env),
            page,
            f"{seconds:.1f}",
            "–" if not mib else f"{mib}",
        )
        for page, (seconds, mib) in rows.items()
    ]
    seconds = sum(seconds for seconds, _ in rows.values())
    peak = max((mib or 0 for _, mib in rows.values()), default=0)
    lines.append(("All pages", "sum, largest", f"{seconds:.1f}", f"{peak or '–'}"))
    body = nodes.tbody()
    for line in lines:
        body += nodes.row("", *(entry(text) for text in line))
    names = "Title", "Page", "Seconds", "Peak memory (MiB)"
    head = nodes.thead("", nodes.row("", *(entry(name) for name in names)))
    widths = (nodes.colspec(colwidth=width) for width in (40, 30, 15, 15))
    group = nodes.tgroup("", *widths, head, body, cols=4)
    return nodes.table("", group, classes=["colwidths-auto", "build-costs"])


def title(page, env):
    """The title in the table of contents, which tells twins apart, or on the page."""
    site_map = getattr(env.app.config, "external_site_map", {})
    named = page in site_map and site_map[page].title
    return named or env.titles[page].astext()


def entry(text):
    return nodes.entry("", nodes.paragraph(text=text))


def no_launch_button(app, pagename, *_):
    """Colab opens notebooks only, so pages of another kind get no button for it."""
    if not pagename.startswith("notebooks/"):
        app.env.metadata[pagename].pop("kernelspec", None)


def write_json(app, error):
    stop_watch(app)
    if error is None:
        rows = {
            page: {"seconds": round(seconds, 2), "peak_mib": mib}
            for page, (seconds, mib) in costs(app.env).items()
        }
        path = Path(app.outdir) / "costs.json"
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def setup(app):
    app.add_node(CostsNode)
    app.add_directive("build-costs", CostsDirective)
    app.add_post_transform(CostsTable)
    app.connect("builder-inited", train_for_real)
    app.connect("build-finished", forget_runs)
    app.connect("source-read", start_watch)
    app.connect("doctree-read", stop_watch)
    app.connect("html-page-context", no_launch_button, priority=100)
    app.connect("build-finished", write_json)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
