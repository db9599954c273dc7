"""Gather the text that the book's published language model is trained on: one file.

    python tools/pretraining_text.py OUT.txt

English and code that every machine with the book's environment has: docstrings of
packages, sources of Python, headers in C++, JavaScript. For the same versions of Python
and of all packages the file is the same. OUT.json, beside it, says which these were,
with licences and sizes. Files that pages test on are left out. Documents are in the
order of their SHA-256: ``train.py`` holds out the last tenth, so it never learns from
one whose digest begins with f.
"""

import ast
import hashlib
import json
import platform
import sys
import sysconfig
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from helpers.data import lines, text
from helpers.data.byte_pairs import ASCII

DOCSTRINGS = (
    "numpy", "scipy", "sklearn", "torch", "jax", "matplotlib", "pandas", "sympy",
)  # fmt: skip
SOURCES = {  # a package, None for the standard library: its files, most characters
    None: ("*.py", 5_000_000),
    "networkx": ("**/*.py", 5_000_000),
    "torch": ("include/**/*.h", 5_000_000),
    "sphinx": ("**/*.js", 2_000_000),
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SHORTEST = 200  # characters of a document


def folder(package):
    """Where a package is; None is the standard library."""
    if package is None:
        return Path(sysconfig.get_path("stdlib"))
    spec = find_spec(package)
    if spec is None:
        raise ValueError(f"expected the package {package}: `make environment` has it")
    return Path(spec.submodule_search_locations[0])


def tested_on():
    """Files that pages test on, or draw examples from."""
    found = {path for name in lines.LANGUAGES for path in lines.files_of(name)}
    return found | {folder(None) / f"{name}.py" for name in text.HELD_OUT}


def docstrings(package):
    """All docstrings of a package, its tests left out."""
    for path in folder(package).rglob("*.py"):
        if not {"test", "tests"} & {*path.parts}:
            try:
                tree = ast.parse(path.read_bytes())
            except SyntaxError:  # written for a later Python
                continue
            nodes = (node for node in ast.walk(tree) if isinstance(node, DOCUMENTED))
            yield from (found for node in nodes if (found := ast.get_docstring(node)))


def documents(texts, most=sys.maxsize):
    """``{digest: text}`` in ASCII, each text once, the first digests up to a size."""
    kept = ("".join(c for c in each if c in ASCII).strip() for each in texts)
    found = {digest(each): each for each in kept if len(each) >= SHORTEST}
    chosen, size = {}, 0
    for name in sorted(found):
        if (size := size + len(found[name])) > most:
            break
        chosen[name] = found[name]
    return chosen


def digest(document):
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(document.encode()).hexdigest()


def about(package, kind, found):
    """A line of the record."""
    name, licence = f"Python {platform.python_version()}", "PSF-2.0"
    if package:
        distribution = metadata.packages_distributions()[package][0]
        facts = metadata.metadata(distribution)
        name = f"{distribution} {facts['Version']}"
        classes = [c for c in facts.get_all("Classifier") or [] if "License ::" in c]
        licence = facts.get("License-Expression") or facts.get("License") or ""
        if not 0 < len(licence) < 200:  # some give its whole text
            licence = ", ".join(c.rpartition(" :: ")[2] for c in classes)
    sizes = {"documents": len(found), "characters": sum(map(len, found.values()))}
    return {"source": name, "kind": kind, "licence": licence} | sizes


def gather():
    """The text, and the record of its parts."""
    every, record, without = {}, [], tested_on()
    for package in DOCSTRINGS:
        found = documents(docstrings(package))
        record.append(about(package, "docstrings", found))
        every |= found
    for package, (pattern, most) in SOURCES.items():
        paths = {*folder(package).glob(pattern)} - without
        found = documents(map(text.read, sorted(paths)), most)
        record.append(about(package, pattern, found))
        every |= found
    return "\n\n".join(every[name] for name in sorted(every)) + "\n", record


def main():
    """Write both files, the text last and whole."""
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".txt"):
        sys.exit(f"expected OUT.txt, got {sys.argv[1:]}: python {sys.argv[0]} OUT.txt")
    path = Path(sys.argv[1])
    found, record = gather()
    whole = {"sha256": digest(found), "characters": len(found), "parts": record}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    draft = path.with_suffix(".draft")
    draft.write_text(found, encoding="utf-8")
    draft.replace(path)
    print(json.dumps(whole, indent=1))


if __name__ == "__main__":
    main()
