"""Execute the pages, as many at a time as there are cores, and build the book.

    python tools/build_book.py             every page executed, into _build/html
    python tools/build_book.py --if-stale  only what changed: the pages, then the book
    python tools/build_book.py --draft     only what changed, into _draft/_build/html

Executed pages go into a jupyter-cache; ``jupyter-book build`` takes them from there
(``book/_ext/execution.py``). A page is executed again when its code cells have changed
or its ``dependency_digest``.
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
from functools import cache
from importlib.metadata import distributions
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
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pages

ROOT = pages.ROOT
HTML = ROOT / "_build" / "html"
KERNEL = ["--log-level=ERROR", "--IPKernelApp.extra_extensions=bounds"]
EXECUTED = ROOT / "_build" / "executed"
BOUNDS = ROOT / "_build" / "bounds"
RESULTS = ROOT / "benchmarks" / "results"
TOOLS = ROOT / "tools"
STAMP = ROOT / "_build" / "sources.sha256"
UNREAD = {"__pycache__", ".ruff_cache", ".ipynb_checkpoints", "runs"}
GIB_PER_PAGE = 3  # at most; see the budgets of the design
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LINE = re.compile(r"Cell In\[\d+\], line (\d+)")
FRAMEWORKS = re.compile(
    r"(ATEN|CUDA|JAX|MKL|NVIDIA|OMP|PYTORCH|TORCH|XLA)_"
)  # variables
BY_NAME = re.compile(r"import_module\(|__import__\(|lazy_loader|^def __getattr__", re.M)
QUOTES = re.compile(r"(?<!def )\brecorded\(")  # reads from benchmarks/results


def sources():
    """Every file that the built book depends on."""
    found = [ROOT / name for name in ("_config.yml", "_toc.yml")]
    found += [ROOT / "CHANGELOG.md", ROOT / "CITATION.cff", *own_data()]
    for folder in (ROOT / "book", ROOT / "notebooks", TOOLS, RESULTS):
        found += files(folder)
    return found


def files(folder):
    """All files of a folder that somebody wrote, in order."""
    data = pages.NOTEBOOKS / "data"  # written by ``make data``
    found = (p for p in folder.rglob("*") if p.is_file() and data not in p.parents)
    return sorted(p for p in found if not UNREAD & {*p.relative_to(folder).parts})


def own_data():
    """The reader's own: photos where ``make data`` has put them, and ``$TEXT_FILE``."""
    folder = Path(os.environ.get("DATA_FOLDER") or pages.NOTEBOOKS / "data")
    found = sorted(folder.absolute().glob("*.npz"))
    if text := os.environ.get("TEXT_FILE"):
        found += [Path(text).absolute()] * Path(text).is_file()
    return found


@cache
def versions():
    """Of Python, of the packages of ``requirements.txt`` and of all that they need.

    Others, such as an author's own tools, change no page.
    """
    installed = {canonicalize_name(p.name): p for p in reversed([*distributions()])}
    text = re.sub("#.*", "", (ROOT / "requirements.txt").read_text("utf-8"))
    todo = [Requirement(line) for line in text.splitlines() if line.strip()]
    found = {name for name in installed if name.startswith(("jax-cuda", "nvidia-"))}
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        here = one.marker is None or one.marker.evaluate({"extra": ""})
        if here and name in installed and name not in found:
            found.add(name)
            todo += map(Requirement, installed[name].requires or ())
    return [sys.version, *(f"{n} {installed[n].version}" for n in sorted(found))]


def digest(paths, *variables):
    """One hash of names and contents of files, of versions, and of variables."""
    given = (
        f"{name}={os.environ.get(name)}" for name in ("PHOTOS", "MODEL", *variables)
    )
    total = hashlib.sha256("\n".join([*versions(), *given]).encode())
    for path in paths:
        total.update(path.as_posix().removeprefix(ROOT.as_posix()).encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def is_fresh():
    """Was the book built from exactly these sources?"""
    built = (HTML / "index.html").exists() and STAMP.exists()
    return built and STAMP.read_text() == digest(sources())


def dependency_digest(page):
    """Hash of all that the outputs of a page depend on, besides its own cells."""
    variables = sorted(filter(FRAMEWORKS.match, os.environ))
    paths = [Path(__file__), *own_data(), *dependencies(page)]
    return digest(paths, "TEXT_FILE", "DATA_FOLDER", *variables)


def dependencies(page):
    """The files of this repository that a page reads or imports when it is executed.

    Of data that is shipped with the helpers: what is in the folder of a module that it
    imports, or what is named. Of ``benchmarks/results``: all, if any of it is quoted.
    Of ``tools``: those that the page calls.
    """
    source, helpers = page.with_suffix(".py"), pages.NOTEBOOKS / "helpers"
    if not source.exists():
        return []
    texts = {path: path.read_text("utf-8") for path in [source, *imported(source)]}
    folders = {path.parent for path in texts if path != source}
    found = {*texts} - {source}
    for path in files(helpers):
        near = next(folder for folder in path.parents if any(folder.glob("*.py")))
        if path.suffix != ".py" and (
            near in folders or any(path.name in text for text in texts.values())
        ):
            found.add(path)
    if "benchmarks" in texts[source] or any(map(QUOTES.search, texts.values())):
        found |= {*files(RESULTS)}
    found |= {p for p in TOOLS.glob("*.py") if f"tools/{p.name}" in texts[source]}
    return sorted(found)


def imported(source):
    """The helpers that a page imports, also inside functions, and what they import.

    If one imports by a name that is known only when it runs, this is every helper; if
    it is the ``__init__`` of a package that loads lazily, every module of the package.
    """
    finder, found = ModuleFinder([str(pages.NOTEBOOKS)]), set()
    finder.run_script(str(source))
    while (
        new := {Path(m.__file__) for m in finder.modules.values() if m.__file__} - found
    ):
        found |= new
        for path in new:
            if BY_NAME.search(path.read_text("utf-8")):
                lazy = path.name == "__init__.py"
                folder = path.parent if lazy else pages.NOTEBOOKS / "helpers"
                for other in folder.rglob("*.py"):
                    name = other.relative_to(pages.NOTEBOOKS).with_suffix("")
                    finder.import_hook(".".join(name.parts))
    return found - {source}


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


def pin_to_cores(shares):
    """Keep a worker, and so the pages it runs, to its share of the cores (Linux).

    Else each page computes with a thread for every core, and they wait for each other.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, shares.get())


def outdated():
    """The pages that the cache lacks, ``{page: digest}``; it drops what is too old."""
    executed, todo = get_cache(EXECUTED), {}
    for page in executable():
        now = dependency_digest(page)
        try:
            record = executed.match_cache_notebook(read(page))
        except KeyError:
            todo[page] = now
            continue
        if record.data.get("from") != now:
            executed.remove_cache(record.pk)
            todo[page] = now
    return todo


def execute_all(todo):
    """Execute pages, ``{page: digest}``, into the cache; return what is wrong."""
    executed, wrong, total = get_cache(EXECUTED), [], 0
    number, shares = workers(), Queue()
    for first in range(number):
        shares.put(cores()[first::number])
    threads = str(len(cores()) // number)
    BOUNDS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="runs-") as runs:
        os.environ.update(RUNS_FOLDER=runs, TQDM_DISABLE="1")
        os.environ["BOUNDS_FOLDER"] = str(BOUNDS)
        os.environ.setdefault("OMP_NUM_THREADS", threads)
        start = {"initializer": pin_to_cores, "initargs": (shares,)}
        with ProcessPoolExecutor(number, **start) as pool:
            for page, result in zip(todo, pool.map(execute, todo), strict=True):
                notebook, seconds, complaint = result
                total += seconds
                print(f"{page.relative_to(ROOT)}: {seconds:.1f} s", flush=True)
                if complaint:
                    wrong.append(complaint)
                    continue
                data = {"execution_seconds": seconds, "from": todo[page]}
                bundle = CacheBundleIn(notebook, str(page), data=data)
                executed.cache_notebook_bundle(bundle, check_validity=False)
    print(f"{len(todo)} pages executed in {total:.0f} page-seconds", flush=True)
    return wrong


def build(output, todo, times):
    """The book in ``output/_build/html``; return an exit status."""
    started = time.perf_counter()
    wrong = execute_all(todo)
    times["pages"] = time.perf_counter() - started
    if wrong:
        print("\nThe book was not built:", *wrong, sep="\n\n")
        return 1
    for name in ("html", ".doctrees", "jupyter_execute"):
        shutil.rmtree(output / "_build" / name, ignore_errors=True)
    program = Path(sys.executable).with_name("jupyter-book")
    command = [program, "build", ROOT, "--all", "-W", "-n", "--keep-going"]
    command += ["--path-output", output]
    variables = {"PAGES_CACHE": str(EXECUTED), "PYTHONIOENCODING": "utf-8"}
    status = subprocess.run(command, cwd=ROOT, env=os.environ | variables).returncode
    times["Sphinx"] = time.perf_counter() - started - times["pages"]
    if status:
        print("\nThe book was not built. In a notebook, line 30001 means cell 3.")
        return status
    where = (output / "_build/html/index.html").relative_to(ROOT)
    print(f"The book is in {where}: {time.perf_counter() - started:.0f} s")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--if-stale", action="store_true")
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--times", type=Path, help="adds its seconds to this file")
    options = parser.parse_args()
    times = {"pages": 0, "Sphinx": 0}
    if not (options.if_stale or options.draft):
        shutil.rmtree(EXECUTED, ignore_errors=True)
        shutil.rmtree(BOUNDS, ignore_errors=True)
    before, todo = digest(sources()), outdated()
    if options.draft:
        status = build(ROOT / "_draft", todo, times)
    elif options.if_stale and not todo and is_fresh():
        print("The book is up to date with its sources.")
        status = 0
    else:
        STAMP.unlink(missing_ok=True)
        status = build(ROOT, todo, times)
        if status == 0:
            STAMP.write_text(before)
    if options.times:
        with options.times.open("a") as file:
            file.writelines(f"{what} {s:.0f} s\n" for what, s in times.items())
    return status


if __name__ == "__main__":
    sys.exit(main())
