"""Execute the pages, as many at a time as there are cores, and build the book.

    python tools/build_book.py            every page, then _build/html
    python tools/build_book.py --changed  only what has changed: pages, then the book

Executed pages lie in a jupyter-cache, from which ``jupyter-book build`` takes them.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import distributions
from multiprocessing import Queue
from pathlib import Path

import nbformat
import psutil
import yaml
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

import pages

ROOT = pages.ROOT
BUILD = ROOT / "_build"
HTML, EXECUTED, STAMP = BUILD / "html", BUILD / "executed", BUILD / "sources.sha256"
SOURCES = ["book", "notebooks", "scripts", "tools", "benchmarks/results"]
SOURCES += ["_config.yml", "_toc.yml", "CHANGELOG.md", "CITATION.cff"]
UNREAD = {"__pycache__", ".ipynb_checkpoints", ".ruff_cache", "runs"}
VARIABLES = "PHOTOS", "MODEL", "TEXT_FILE", "DATA_FOLDER"  # what readers may set
COMPILED = "JAX_COMPILATION_CACHE_DIR"
KERNEL = {"TQDM_DISABLE": "1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
KERNEL["TF_CPP_MIN_LOG_LEVEL"] = "3"  # else XLA complains of each program it loads


@cache
def environment():
    """Python, every installed version, the reader's variables, paths whole; data."""
    paths = {n: Path(os.environ.get(n) or "none").expanduser() for n in VARIABLES}
    os.environ.update({n: f"{p.resolve()}" for n, p in paths.items() if p.exists()})
    given = [f"{name}={os.environ.get(name)}" for name in VARIABLES]
    installed = sorted(f"{p.name} {p.version}" for p in distributions())
    data = Path(os.environ.get("DATA_FOLDER") or pages.NOTEBOOKS / "data")
    own = [*data.glob("*.npz"), *paths.values(), *paths["PHOTOS"].rglob("*")]
    own = sorted(f"{p} {p.stat().st_mtime_ns}" for p in own if p.is_file())
    return "\n".join([sys.version, *installed, *given, *own])


def files(*names):
    """All files of some folders that somebody wrote, in order."""
    found = [p for name in names for p in [ROOT / name, *(ROOT / name).rglob("*")]]
    unread = {pages.NOTEBOOKS / "data", *(p for p in found if p.name in UNREAD)}
    return sorted(p for p in found if p.is_file() and not unread & {*p.parents})


def digest(paths, text=""):
    """One hash of names and contents of files, of the environment and of a text."""
    total = hashlib.sha256(f"{environment()}\n{text}".encode())
    for path in paths:
        total.update(f"\0{path.relative_to(ROOT).as_posix()}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def page_digest(page):
    """Of its code, and of what it may import or read.

    That is every helper but those of the other framework, ``benchmarks/results``, and
    each file of ``tools`` and ``scripts`` that it names.
    """
    cells = nbformat.read(page, as_version=4).cells
    code = "\n\n".join(cell.source for cell in cells if cell.cell_type == "code")
    other = {*pages.SIDES} - {pages.side_of(f"notebooks/{page.stem}")}
    paths = [p for p in files("notebooks/helpers") if p.parent.name not in other]
    paths += [p for p in files("tools", "scripts") if p.name in code]
    return digest([*paths, *files("benchmarks/results")], f"{page.name}\n{code}")


def outdated():
    """The pages to execute, ``{page: digest}``."""
    records = get_cache(EXECUTED).list_cache_records()
    kept = {record.data.get("from") for record in records}
    found = [ROOT / f"{name}.ipynb" for name in pages.toc()]
    todo = {page: page_digest(page) for page in found if page.exists()}
    return {page: key for page, key in todo.items() if key not in kept}


def is_fresh():
    """Was the book built from exactly these sources?"""
    built = (HTML / "index.html").exists() and STAMP.exists()
    return built and STAMP.read_text("utf-8") == digest(files(*SOURCES))


def execute(page):
    """Run a page: the notebook with its outputs, its seconds, what is wrong or None."""
    notebook, began, wrong = nbformat.read(page, as_version=4), time.monotonic(), None
    compiled = BUILD / "jax" / page.stem  # by JAX: kept, unless the page fails
    client = NotebookClient(
        notebook,
        timeout=pages.config()["execute"]["timeout"],
        resources={"metadata": {"path": str(page.parent)}},
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,  # it would change the key in the cache
    )
    try:
        client.execute(env=os.environ | KERNEL | {COMPILED: str(compiled)})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        ran = [n for n, c in enumerate(notebook.cells, 1) if c.get("execution_count")]
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without its colours
        wrong = f"{page.relative_to(ROOT)}, cell {max(ran, default=1)}: {text}"
        shutil.rmtree(compiled, ignore_errors=True)
    return notebook, time.monotonic() - began, wrong


def pin_to_cores(shares):
    """Keep a worker, and so its pages, to a share of the cores: else all use each."""
    if hasattr(os, "sched_setaffinity"):  # on Linux
        os.sched_setaffinity(0, share := shares.get())
        os.environ.setdefault("OMP_NUM_THREADS", str(len(share)))


def execute_all(todo):
    """Execute pages, ``{page: digest}``, into the cache; return what is wrong.

    JAX's take longest and come first; on a GPU one runs after the other.
    """
    began, seconds, wrong, shares = time.monotonic(), 0, [], Queue()
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))
    cores = sorted(affinity(0))
    memory = psutil.virtual_memory().total // (3 << 30)  # a page has 3 GiB at most
    workers = 1 if shutil.which("nvidia-smi") else max(1, min(len(cores), memory))
    for first in range(workers):
        shares.put(cores[first::workers])
    order = sorted(todo, key=lambda page: not page.stem.endswith("_jax"))
    with ProcessPoolExecutor(workers, None, pin_to_cores, (shares,)) as pool:
        for page, result in zip(order, pool.map(execute, order), strict=True):
            notebook, took, problem = result
            seconds += took
            print(f"{page.relative_to(ROOT)}: {took:.1f} s", flush=True)
            if problem:
                wrong.append(problem)
                continue
            data = {"execution_seconds": took, "from": todo[page]}
            bundle = CacheBundleIn(notebook, str(page), data=data)
            options = {"check_validity": False, "overwrite": True}
            get_cache(EXECUTED).cache_notebook_bundle(bundle, **options)
    took = f"{time.monotonic() - began:.0f} s for {len(order)} of them"
    print(f"pages: {took}, the sum of all {seconds:.0f} s", flush=True)
    return wrong


def build():
    """The book from the executed pages; exit if Sphinx warns.

    It executes ``book/how-this-was-built.md`` itself, which shows the versions.
    """
    began, executed = time.monotonic(), get_cache(EXECUTED)
    for record in executed.list_cache_records():
        if "from" not in record.data:
            executed.remove_cache(record.pk)
    shutil.rmtree(HTML, ignore_errors=True)
    settings = pages.config()
    settings["execute"] |= {"execute_notebooks": "cache", "cache": str(EXECUTED)}
    local = settings["sphinx"].get("local_extensions", {})  # from the config's folder
    local.update({name: str(ROOT / folder) for name, folder in local.items()})
    config = BUILD / "config.yml"
    config.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    program = Path(sys.executable).with_name("jupyter-book")
    command = [program, "build", ROOT, "--all", "-W", "-n", "--keep-going"]
    command += ["--config", config]
    utf8 = os.environ | {"PYTHONIOENCODING": "utf-8"}  # also in a Windows console
    if subprocess.run(command, cwd=ROOT, env=utf8).returncode:
        sys.exit("The book was not built. In a notebook, line 30001 means cell 3.")
    print(f"Sphinx: {time.monotonic() - began:.0f} s; see {HTML / 'index.html'}")


def main(arguments):
    if "--changed" not in arguments:
        shutil.rmtree(EXECUTED, ignore_errors=True)
    before, todo = digest(files(*SOURCES)), outdated()
    if not todo and is_fresh():
        print("The book is up to date with its sources.")
        return
    STAMP.unlink(missing_ok=True)
    if wrong := execute_all(todo):
        sys.exit("\n\n".join(["The book was not built.", *wrong]))
    build()
    STAMP.write_text(before, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
