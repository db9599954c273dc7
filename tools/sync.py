"""Carry what was edited to every place where it stands too.

    python tools/sync.py          writes what has changed
    python tools/sync.py --check  only names it

From a page to its twin go the shared cells: from the one that has changed since the
last commit. From the pages to ``notebooks/helpers/jax`` and ``torch`` go the cells that
are tagged ``export``, a file a chapter. From every ``.py`` goes its ``.ipynb``, as
``jupytext --sync`` would write it, with the metadata that folds cells in Jupyter and
Colab.
"""

import ast
import builtins
import difflib
import re
import subprocess
import sys
from symtable import symtable
from textwrap import wrap

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs

import pages

HELPERS = pages.NOTEBOOKS / "helpers"
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}


def in_git(path):
    """The text of a file at the last commit, or nothing."""
    command = ["git", "show", f"HEAD:./{path.name}"]
    return subprocess.run(command, capture_output=True, cwd=path.parent).stdout.decode()


def cells_of(text):
    """The text of a page in pieces: its head, and a piece for each cell."""
    return re.split(r"(?m)^(?=# %%)", text)


def shared(text):
    """Places and sources of the shared cells among the pieces of a page."""
    pieces = [(i, cell.rstrip()) for i, cell in enumerate(cells_of(text))]
    return [(i, cell) for i, cell in pieces if '"shared"' in cell.partition("\n")[0]]


def carry(chapter, texts):
    """Bring the shared cells of one twin to the other, in ``texts`` by path."""
    paths = [pages.NOTEBOOKS / f"{chapter}_{side}.py" for side in pages.SIDES]
    now = [[cell for _, cell in shared(texts[path])] for path in paths]
    if now[0] == now[1]:
        return
    before = [[cell for _, cell in shared(in_git(path))] for path in paths]
    changed = [side for side in (0, 1) if now[side] != before[side]]
    if len(changed) != 1:
        lines = ["\n".join(cells).splitlines() for cells in now]
        differ = difflib.unified_diff(*lines, *pages.SIDES, n=0, lineterm="")
        raise SystemExit(f"{chapter}: both twins differ:\n" + "\n".join(differ))
    (source,) = changed
    target = paths[1 - source]
    pieces, places = cells_of(texts[target]), shared(texts[target])
    matcher = difflib.SequenceMatcher(None, now[1 - source], now[source], False)
    for kind, a, b, c, d in reversed(matcher.get_opcodes()):
        if kind == "equal":
            continue
        new, old = now[source][c:d], [i for i, _ in places[a:b]]
        for n, i in enumerate(old):  # cells of a framework between them stay
            pieces[i] = new[n] + "\n\n" if n < len(new) else ""
        at = old[-1] if old else (places[a - 1][0] if a else 0)
        pieces[at] += "".join(cell + "\n\n" for cell in new[len(old) :])
    texts[target] = "".join(pieces).rstrip() + "\n"


def canonical(text):
    """The text of a page as jupytext writes it."""
    page = jupytext.reads(text, fmt="py:percent")
    for cell in page.cells:  # as in the notebook, whose keys nbformat sorts
        cell.metadata = nbformat.from_dict(dict(sorted(cell.metadata.items())))
    return jupytext.writes(page, fmt="py:percent")


def notebook(path, text):
    """The text of the ``.ipynb``, with the ids of the present one."""
    new, present = jupytext.reads(text, fmt="py:percent"), path.with_suffix(".ipynb")
    if present.exists():
        old = nbformat.read(present, as_version=4)
        new = combine_inputs_with_outputs(new, old, fmt={"extension": ".py"})
    for cell in new.cells:
        for name in FOLDED:
            cell.metadata.pop(name, None)
        if set(cell.metadata.get("tags", [])) & pages.FOLDS.keys():
            cell.metadata.update(FOLDED)
    new.metadata["language_info"] = {"name": "python"}
    nbformat.validate(new)
    return nbformat.writes(new) + "\n"


def used(source):
    """Names that a piece of code looks up, but those of its arguments and variables."""
    found, tables = set(), [symtable(source, "room", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        symbols = [s for s in table.get_symbols() if s.is_referenced()]
        everywhere = table.get_type() == "module"
        found |= {s.get_name() for s in symbols if everywhere or s.is_global()}
    return found


def defined(node):
    """Names that a definition or an assignment gives a meaning to."""
    if isinstance(node, ast.If):
        return set()
    if isinstance(node, ast.Assign):
        found = [n for target in node.targets for n in ast.walk(target)]
        return {n.id for n in found if isinstance(n, ast.Name)}
    return {node.name}


def imported(tree):
    """``{name: the statement that imports it}`` of a page or a room."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = f"{start}import {ast.unparse(alias)}"
    return found


def room(chapter, side, text, homes, tag):
    """The file of a chapter's cells with a tag, or None; ``homes`` gets its names."""
    cells = [c for c in pages.parse(f"{chapter}_{side}.py", text) if c.kind == "code"]
    exported = [c.source for c in cells if tag in c.tags]
    if not exported:
        return None
    body = "\n\n\n".join(exported)
    trees, own = ast.parse(body), set()
    for node in trees.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign):
            where = f"{chapter}_{side}.py: expected definitions in cells tagged {tag}"
            raise SystemExit(f"{where}, got {ast.unparse(node)[:60]}")
        own |= defined(node)
    known = imported(ast.parse("\n".join(c.source for c in cells)))
    needed = {}
    for name in sorted(used(body) - own - set(vars(builtins))):
        if name in homes:
            needed[name] = f"from helpers.{side}.{homes[name]} import {name}"
        elif name in known:
            needed[name] = known[name]
    homes.update(dict.fromkeys(own, chapter))
    rows = wrap(" ".join(sorted(own)), 68)
    rows = [f'"{row} "' for row in rows[:-1]] + [f'"{rows[-1]}"']
    listed = f"({chr(10).join(rows)})" if rows[1:] else rows[0]
    listed = f"__all__ = {listed}.split()"
    first = f'"""Written by `make sync` from notebooks/{chapter}_{side}.py."""'
    parts = first, "\n".join(needed.values()), listed, f"\n{body}\n"
    return formatted("\n\n".join(parts))


def rooms(side, texts, tag="export"):
    """The room of a framework, or what it gives to take along: ``{chapter: text}``."""
    homes, files = {}, {}
    for chapter in pages.chapters():
        text = texts[pages.NOTEBOOKS / f"{chapter}_{side}.py"]
        if found := room(chapter, side, text, homes, tag):
            files[chapter] = found
    return files


HEAD = """{about}
Needs {needs}. From a book that builds it:
{url}

Shapes: b batch, s position, q and k position of a query and of a key, h head, d size
of one head, m size of the model, f hidden size of the feed-forward net, c tokens.
In a mask, True means "may look".

{rights}
SPDX-License-Identifier: MIT
"""


def to_take_along(ending, side, files, texts):
    """A file of its own: an ending, after what it needs of the rooms and pages."""
    ending = (pages.ROOT / "tools" / ending).read_text("utf-8")
    below = "data/checks.py", "data/sequences.py", "redefined.py", "settings.py"
    parts = [("the shared part", (HELPERS / f).read_text("utf-8")) for f in below]
    for taken in files, rooms(side, texts, "take"):
        parts += [(f"notebooks/{name}_{side}.ipynb", x) for name, x in taken.items()]
    parts = [(name, x.replace("checks.", "")) for name, x in parts]
    call = (pages.ROOT / "tools" / "ending_model.py").read_text("utf-8")
    nodes, known = [], {}
    for chapter, text in [*parts, ("a call", call), (None, ending)]:
        tree, lines = ast.parse(text), text.splitlines()
        known |= imported(tree)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.If):
                first = [node, *getattr(node, "decorator_list", [])]
                source = lines[min(n.lineno for n in first) - 1 : node.end_lineno]
                nodes.append((node, "\n".join(source), chapter))
    wanted = [node for node, _, chapter in nodes if chapter is None]
    own = set().union(*map(defined, wanted))
    while True:
        names = used("\n".join(ast.unparse(node) for node in wanted)) - own
        new = [n for n, _, _ in nodes if n not in wanted and defined(n) & names]
        if not new:
            break
        wanted += new
    needed = [x for name, x in known.items() if name in names and "helpers" not in x]
    packages = {re.split(r"[ .]", x)[1] for x in needed} - sys.stdlib_module_names
    rights = (pages.ROOT / "LICENSE").read_text("utf-8").partition("\n")[0]
    about = ast.get_docstring(ast.parse(ending)).replace("SIDE", side)
    given = {"needs": ", ".join(sorted(packages)), "url": pages.repository()}
    head = HEAD.format(about=about, rights=rights, **given)
    text, before = "\n".join([f'"""{head}"""\n', *needed]), ""
    for node, source, chapter in nodes:
        if node in wanted:
            if chapter != before:
                text += f"\n\n# ---- {chapter or 'training'} ----\n"
            text, before = f"{text}\n\n{source}\n", chapter
    return formatted(text)


def formatted(text):
    """Code as ruff formats it, with its imports in order."""
    for options in ["check --select I --fix-only --quiet", "format"]:
        command = [sys.executable, "-m", "ruff", *options.split(), "-"]
        given = {"input": text, "capture_output": True, "text": True, "check": True}
        text = subprocess.run(command, cwd=pages.ROOT, **given).stdout
    return text


def changes():
    """``{path: text}`` of every file that does not yet say what it should."""
    texts = {path: path.read_text("utf-8") for path in pages.sources()}
    for chapter in pages.chapters():
        carry(chapter, texts)
    texts = {path: canonical(text) for path, text in texts.items()}
    wanted = dict(texts)
    for path, text in texts.items():
        wanted[path.with_suffix(".ipynb")] = notebook(path, text)
    for side in pages.SIDES:
        files = rooms(side, texts)
        for name in ("model", "predictor"):
            ending = f"ending_{side}.py" if name == "model" else "ending_predictor.py"
            found = to_take_along(ending, side, files, texts)
            wanted[pages.ROOT / f"scripts/{name}_{side}.py"] = found
        lines = "".join(f"from .{chapter} import *\n" for chapter in sorted(files))
        first = '"""What the pages build, one file a chapter."""'
        files["__init__"] = f"{first}\n\n{lines}"
        wanted |= {HELPERS / side / f"{name}.py": files[name] for name in files}
    there = {path: path.read_text("utf-8") for path in wanted if path.exists()}
    return {path: text for path, text in wanted.items() if there.get(path) != text}


def main(check):
    found = changes()
    for path, text in found.items():
        print(f"{path.relative_to(pages.ROOT)}: {'differs' if check else 'written'}")
        if not check:
            path.write_text(text, encoding="utf-8", newline="\n")
    return bool(found) and check


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
