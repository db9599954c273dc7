"""Build the book, and say in the last lines which page and which cell went wrong.

    python tools/build_book.py             every page executed, into _build/html
    python tools/build_book.py --if-stale  only if a source changed since the last build
    python tools/build_book.py --draft     into _draft: executes only what changed

The work is done by ``jupyter-book build . --all -W -n --keep-going``.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

import pages

sys.path.insert(0, str(pages.ROOT / "book" / "_ext"))

from costs import Watch

ROOT = pages.ROOT
HTML = ROOT / "_build" / "html"
DRAFT = ROOT / "_draft"
STAMP = ROOT / "_build" / "sources.sha256"
UNREAD = {"__pycache__", ".ruff_cache", ".ipynb_checkpoints", "runs", "data"}
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WARNING = re.compile(
    r"^((?P<path>\S.*?)(:(?P<line>\d+)?)?: )?(WARNING|ERROR|CRITICAL): (?P<what>.*)"
)
FAILED = re.compile(r"ExecutionError: (?P<path>\S+\.(ipynb|md))\s*$")
RULE = "-" * 18
ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt|Warning|Iteration|Exit)\b")


def sources():
    """Every file that the built book depends on."""
    found = [ROOT / name for name in ("_config.yml", "_toc.yml")]
    found += (ROOT / "requirements").glob("lock*.txt")
    found += [ROOT / "CHANGELOG.md", ROOT / "CITATION.cff"]
    for folder in ("book", "notebooks", "tools"):
        found += (path for path in (ROOT / folder).rglob("*") if path.is_file())
    found = [path for path in found if not UNREAD & {*path.relative_to(ROOT).parts}]
    return sorted(found) + photos()


def photos():
    """The files of photos that pages read, where ``make data`` has put them."""
    folder = Path(os.environ.get("DATA_FOLDER") or pages.NOTEBOOKS / "data")
    return sorted(folder.absolute().glob("*.npz"))


def digest(paths):
    """One hash for the names and the contents of some files, and for Python."""
    total = hashlib.sha256(sys.version.encode())
    for path in paths:
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        total.update(name.as_posix().encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def is_fresh():
    """Was the book built from exactly these sources?"""
    built = (HTML / "index.html").exists() and STAMP.exists()
    return built and STAMP.read_text() == digest(sources())


def build():
    """Every page executed, nothing left over from an earlier build."""
    for path in (HTML, ROOT / "_build" / ".doctrees", ROOT / "_build/jupyter_execute"):
        shutil.rmtree(path, ignore_errors=True)
    STAMP.unlink(missing_ok=True)
    before = digest(sources())
    seconds, peak, status = run(ROOT / "_config.yml", ROOT)
    if status == 0:
        STAMP.write_text(before)
        print(
            f"The book is in {HTML.relative_to(ROOT)}/index.html: {seconds:.0f} s, "
            f"at most {peak / 2**20:.0f} MiB for the build and the page it executed."
        )
    return status


def draft():
    """The book in ``_draft``; a page is executed only if something it uses changed."""
    DRAFT.mkdir(exist_ok=True)
    settings = pages.config()
    settings["execute"].update(execute_notebooks="cache", cache=str(DRAFT / "cache"))
    ours = settings["sphinx"]["local_extensions"]
    ours.update({name: str(ROOT / folder) for name, folder in ours.items()})
    config = DRAFT / "_config.yml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    forget_outdated()
    _, _, status = run(config, DRAFT)
    if status == 0:
        print(f"The draft is in {DRAFT.name}/_build/html/index.html")
    return status


def uses(page):
    """The helpers that a page imports, directly or through each other, as files."""
    found, todo = set(), [page]
    while todo:
        for name in helper_imports(todo.pop().read_text(encoding="utf-8")):
            path = pages.NOTEBOOKS / "helpers" / f"{name}.py"
            if path.exists() and path not in found:
                found.add(path)
                todo.append(path)
    return found


def helper_imports(source):
    """Names of the modules of ``helpers`` that the source imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "helpers":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            top, _, rest = node.module.partition(".")
            if top == "helpers":
                yield rest.partition(".")[0]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top, _, rest = alias.name.partition(".")
                if top == "helpers":
                    yield rest.partition(".")[0]


def surroundings():
    """What each executed page depends on besides its own cells, as one hash."""
    always = [*(ROOT / "requirements").glob("lock*.txt")]
    found = {
        str(page.with_suffix(".ipynb")): digest(
            sorted([*always, *photos(), *uses(page)])
        )
        for page in pages.sources()
    }
    for name in pages.toc():
        page = ROOT / f"{name}.md"
        if page.exists():
            found[str(page)] = digest(sorted(always))
    return found


def forget_outdated():
    """Drop from the cache the pages whose helpers, data or versions changed."""
    from jupyter_cache import get_cache

    notes = DRAFT / "surroundings.json"
    before = json.loads(notes.read_text()) if notes.exists() else {}
    now = surroundings()
    cache = get_cache(str(DRAFT / "cache"))
    for record in cache.list_cache_records():
        if now.get(record.uri) != before.get(record.uri) or record.uri not in now:
            cache.remove_cache(record.pk)
    notes.write_text(json.dumps(now, indent=1))


def run(config, output):
    """Run Jupyter Book; return seconds, peak memory in bytes, and its exit status."""
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(ROOT), "--all"]
    command += ["-W", "-n", "--keep-going", "--config", str(config)]
    command += ["--path-output", str(output)]
    environment = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONIOENCODING="utf-8")
    started, log = time.perf_counter(), []
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    watch = Watch(psutil.Process(process.pid), itself=True)
    watch.start()
    for line in process.stdout:
        print(line, end="", flush=True)
        log.append(COLOUR.sub("", line).rstrip())
    status = process.wait()
    peak = watch.stop()
    if status != 0:
        print("\nThe book was not built:", flush=True)
        for complaint in complaints(log) or ["see the lines above"]:
            print(f"  {complaint}")
    return time.perf_counter() - started, peak, status


def complaints(log):
    """One line for each warning and each failed cell: the page, the cell, the cause."""
    found = []
    for line in log:
        if match := WARNING.match(line):
            where = place(match["path"], match["line"]) if match["path"] else "settings"
            found.append(f"{where}: {match['what']}")
        elif match := FAILED.search(line):
            found.append(failed_cell(log, Path(match["path"])))
    return list(dict.fromkeys(found))


def place(path, line):
    """Name a place; MyST-NB counts 10,000 lines for each cell of a notebook."""
    path = Path(path)
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    if line is None:
        return str(shown)
    if path.suffix == ".ipynb":
        return name_cell(shown, int(line) // 10_000)
    return f"{shown}, line {line}"


def name_cell(path, number):
    """``notebooks/page.ipynb, cell 3 (page.py, line 21)``; cells are counted from 1."""
    source = ROOT / path.with_suffix(".py")
    if source.exists():
        cells = pages.read_py(source)
        if 1 <= number <= len(cells):
            return (
                f"{path}, cell {number} ({source.name}, line {cells[number - 1].line})"
            )
    return f"{path}, cell {number}"


def failed_cell(log, path):
    """Name the failed cell by the text that nbclient quotes between two rules."""
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    rules = [number for number, line in enumerate(log) if line == RULE]
    if len(rules) < 2:
        return f"{shown}: a cell failed"
    start, end = rules[:2]
    quoted = "\n".join(log[start + 1 : end]).strip()
    cause = f": {error}" if (error := last_error(log[end + 1 :])) else ""
    if path.suffix == ".ipynb":
        for cell in pages.read_ipynb(path):
            same = "\n".join(line.rstrip() for line in cell.source.splitlines()).strip()
            if cell.kind == "code" and same == quoted:
                return f"{name_cell(shown, cell.number)} failed{cause}"
    return f"{shown}, the cell that begins with {quoted.splitlines()[:1]} failed{cause}"


def last_error(log):
    """The line that ends the traceback, with the first words of its message."""
    end = next((i for i, line in enumerate(log) if line.startswith("The above")), None)
    lines = [line for line in log[:end] if line.strip()]
    for number in reversed(range(len(lines))):
        line = lines[number]
        if ERROR.match(line) and "Traceback (most" not in line:
            said = line.rstrip(": ") != line.partition(":")[0]
            return line if said else " ".join(lines[number : number + 2])
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--if-stale", action="store_true")
    parser.add_argument("--draft", action="store_true")
    options = parser.parse_args()
    if options.draft:
        return draft()
    if options.if_stale and is_fresh():
        print("The book is up to date with its sources.")
        return 0
    return build()


if __name__ == "__main__":
    sys.exit(main())
