"""Execute the pages, as many at a time as there are cores, and build the book.

    python tools/build_book.py             every page executed, into _build/html
    python tools/build_book.py --if-stale  only if a source changed since the last build
    python tools/build_book.py --draft     into _draft: executes only what changed

Executed pages go into a jupyter-cache; ``jupyter-book build`` takes them from there
(``book/_ext/execution.py``).
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from modulefinder import ModuleFinder
from multiprocessing import Queue
from pathlib import Path

import nbformat
import psutil
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient
from nbclient.exceptions import (
    CellExecutionError,
    CellTimeoutError,
    DeadKernelError,
)

import pages

ROOT = pages.ROOT
HTML = ROOT / "_build" / "html"
KERNEL = ["--log-level=ERROR", "--IPKernelApp.extra_extensions=bounds"]
STAMP = ROOT / "_build" / "sources.sha256"
UNREAD = {"__pycache__", ".ruff_cache", ".ipynb_checkpoints", "runs"}
GIB_PER_PAGE = 3  # at most; see the budgets of the design
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LINE = re.compile(r"Cell In\[\d+\], line (\d+)")


def sources():
    """Every file that the built book depends on."""
    found = [ROOT / name for name in ("_config.yml", "_toc.yml")]
    found += [ROOT / "CHANGELOG.md", ROOT / "CITATION.cff", *environment()]
    for folder in ("book", "notebooks", "tools"):
        found += (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return sorted(p for p in found if not UNREAD & {*p.relative_to(ROOT).parts})


def environment():
    """The versions of all packages."""
    return sorted((ROOT / "requirements").glob("lock*.txt"))


def photos():
    """The files of photos that pages read, where ``make data`` has put them."""
    folder = Path(os.environ.get("DATA_FOLDER") or pages.NOTEBOOKS / "data")
    return sorted(folder.absolute().glob("*.npz"))


def digest(paths):
    """One hash of names and contents of files, of ``$PHOTOS``, and of the Python."""
    total = hashlib.sha256((sys.version + os.environ.get("PHOTOS", "")).encode())
    for path in paths:
        total.update(path.as_posix().removeprefix(ROOT.as_posix()).encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def is_fresh():
    """Was the book built from exactly these sources?"""
    built = (HTML / "index.html").exists() and STAMP.exists()
    return built and STAMP.read_text() == digest([*sources(), *photos()])


def surroundings(page):
    """Hash of all that the outputs of a page depend on, besides its own cells."""
    finder = ModuleFinder([str(pages.NOTEBOOKS)])
    if page.with_suffix(".py").exists():
        finder.run_script(str(page.with_suffix(".py")))
    imported = [finder.modules[name] for name in sorted(finder.modules)[1:]]
    helpers = [Path(module.__file__) for module in imported if module.__file__]
    return digest([*environment(), *photos(), *helpers])


def executable():
    """The pages that have code cells; the last ones, which train longest, first."""
    for name in reversed(pages.toc()):
        notebook, text = ROOT / f"{name}.ipynb", ROOT / f"{name}.md"
        if notebook.exists():
            yield notebook
        elif text.exists() and "\n```{code-cell}" in text.read_text("utf-8"):
            yield text


def read(page):
    """The page as a notebook, as MyST-NB reads it."""
    if page.suffix == ".md":
        return read_myst_markdown_notebook(page.read_text("utf-8"))
    return nbformat.read(page, as_version=4)


def execute(page):
    """Run a page; return it with its outputs, the seconds, and what is wrong or None.

    Pages are held to what the settings of the book say: no error, nothing on stderr.
    """
    notebook, started, stopped = read(page), time.perf_counter(), None
    variables = {"PYTHONPATH": str(ROOT / "tools"), "PAGE": page.stem}
    try:
        NotebookClient(
            notebook,
            timeout=pages.config()["execute"]["timeout"],
            resources={"metadata": {"path": str(page.parent)}},
            extra_arguments=KERNEL,
            record_timing=False,  # it would change the key in the cache
        ).execute(env=os.environ | variables)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        stopped = error
    return notebook, time.perf_counter() - started, complaint(page, notebook, stopped)


def complaint(page, notebook, stopped):
    """What went wrong, in which cell and line, and the last lines it printed."""
    for number, cell in reversed([*enumerate(notebook.cells, start=1)]):
        for output in cell.get("outputs", []):
            if stopped and output.output_type == "error":
                trace = COLOUR.sub("", "\n".join(output.traceback))
                line = int(LINE.search(trace)[1]) if LINE.search(trace) else 0
                what = f"{output.ename}: {output.evalue}"
                return f"{place(page, number, line)}: {what}{last_lines(trace)}"
            if not stopped and output.get("name") == "stderr":
                what = "writes to stderr, which the book refuses"
                return f"{place(page, number)}: {what}{last_lines(output.text)}"
    return stopped and f"{page.relative_to(ROOT)}: {stopped}"


def place(page, number, line=0):
    """``notebooks/page.py, line 21 (cell 3)``; both are counted from 1."""
    source = page.with_suffix(".py")
    if not source.exists():
        return f"{page.relative_to(ROOT)}, cell {number}"
    line += pages.read_py(source)[number - 1].line
    return f"{source.relative_to(ROOT)}, line {line} (cell {number})"


def last_lines(text, number=12):
    return "".join(f"\n    {line}" for line in text.splitlines()[-number:])


def cores():
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count()))


def workers():
    """How many pages at a time: one for each core, one after the other on a GPU."""
    if shutil.which("nvidia-smi"):
        return 1
    memory = psutil.virtual_memory().total // (GIB_PER_PAGE << 30)
    return max(1, min(len(cores()), memory))


def take_cores(shares):
    """Keep a worker, and so the pages it runs, to its share of the cores (Linux).

    Else each page computes with a thread for every core, and they wait for each other.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, shares.get())


def execute_all(folder):
    """Execute what the cache in a folder lacks; return what is wrong with the pages."""
    cache, wrong, todo = get_cache(folder), [], []
    for page in executable():
        try:
            cache.match_cache_notebook(read(page))
        except KeyError:
            todo.append(page)
    number, shares = workers(), Queue()
    for first in range(number):
        shares.put(cores()[first::number])
    threads = str(len(cores()) // number)
    bounds = folder.with_name("bounds")
    bounds.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="runs-") as runs:
        os.environ.update(RUNS_FOLDER=runs, TQDM_DISABLE="1")
        os.environ["BOUNDS_FOLDER"] = str(bounds)
        os.environ.setdefault("OMP_NUM_THREADS", threads)
        start = {"initializer": take_cores, "initargs": (shares,)}
        with ProcessPoolExecutor(number, **start) as pool:
            for page, result in zip(todo, pool.map(execute, todo), strict=True):
                notebook, seconds, complaint = result
                print(f"{page.relative_to(ROOT)}: {seconds:.1f} s", flush=True)
                if complaint:
                    wrong.append(complaint)
                    continue
                data = {"execution_seconds": seconds, "from": surroundings(page)}
                bundle = CacheBundleIn(notebook, str(page), data=data)
                cache.cache_notebook_bundle(bundle, check_validity=False)
    return wrong


def forget_outdated(folder):
    """Drop pages from the cache whose helpers, data or versions have changed."""
    cache = get_cache(folder)
    for record in cache.list_cache_records():
        page = Path(record.uri)
        if not page.exists() or record.data.get("from") != surroundings(page):
            cache.remove_cache(record.pk)


def build(output):
    """The book in ``output/_build/html``; return an exit status."""
    started, folder = time.perf_counter(), output / "_build" / "executed"
    if wrong := execute_all(folder):
        print("\nThe book was not built:", *wrong, sep="\n\n")
        return 1
    program = Path(sys.executable).with_name("jupyter-book")
    command = [program, "build", ROOT, "--all", "-W", "-n", "--keep-going"]
    command += ["--path-output", output]
    variables = {**os.environ, "PAGES_CACHE": str(folder), "PYTHONIOENCODING": "utf-8"}
    if status := subprocess.run(command, cwd=ROOT, env=variables).returncode:
        print("\nThe book was not built. In a notebook, line 30001 means cell 3.")
        return status
    where = (output / "_build/html/index.html").relative_to(ROOT)
    print(f"The book is in {where}: {time.perf_counter() - started:.0f} s")
    return 0


def build_anew():
    """Every page executed, nothing left over from an earlier build."""
    STAMP.unlink(missing_ok=True)
    for name in ("html", ".doctrees", "jupyter_execute", "executed", "bounds"):
        shutil.rmtree(ROOT / "_build" / name, ignore_errors=True)
    before = digest([*sources(), *photos()])
    status = build(ROOT)
    if status == 0:
        STAMP.write_text(before)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--if-stale", action="store_true")
    parser.add_argument("--draft", action="store_true")
    options = parser.parse_args()
    if options.draft:
        forget_outdated(ROOT / "_draft" / "_build" / "executed")
        return build(ROOT / "_draft")
    if options.if_stale and is_fresh():
        print("The book is up to date with its sources.")
        return 0
    return build_anew()


if __name__ == "__main__":
    sys.exit(main())
