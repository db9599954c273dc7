"""One file to take along: the language model of the chapters, and all that it needs.

    python tools/one_file.py torch > model_torch.py

The file ends with a short training, ``one_file_torch.py`` or its twin. What this uses
of the helpers, and what that needs in turn, is found by name and copied as it stands.
"""

import ast
import re
import sys
from collections import Counter
from textwrap import fill

import pages

FILES = {  # where definitions are looked for, in their order; the chapter of each
    "notebooks/helpers/{}/attention.py": "attention",
    "notebooks/helpers/{}/encoder.py": "encoder",
    "notebooks/helpers/{}/positions.py": "positions",
    "notebooks/helpers/{}/decoder.py": "decoder",
    "notebooks/helpers/{}/generation.py": "decoder",
    "notebooks/helpers/engine/arguments.py": None,
    "tools/one_file_{}.py": None,
}
HEAD = '''"""A language model in one file, from a book that builds it: {title}.

Attention, blocks, positions, the model, sampling with a key-value cache, and a short
training. The chapters, named below, explain and test each part:
{url}

    python model_{side}.py          trains on this file for 100 updates, and writes
    python model_{side}.py my.txt   the same with a text of your own, in UTF-8

{needs}

Shapes: b batch, s position, q and k position of a query and of a key, h head, d size
of one head, m size of the model, f hidden size of the feed-forward net, c tokens,
l blocks. In a mask, True means "may look".

{copyright}
MIT License: {url}/blob/{branch}/LICENSE
SPDX-License-Identifier: MIT
"""'''


def sources(side):
    """The files that a framework's file is made of: ``{path: chapter}``."""
    return {pages.ROOT / name.format(side): FILES[name] for name in FILES}


def statements(path):
    """``{statement: its lines, with the comments right above it}`` of a file."""
    lines, end, found = path.read_text("utf-8").splitlines(), 0, {}
    for node in ast.parse("\n".join(lines)).body:
        first = [node, *getattr(node, "decorator_list", [])]
        start = min(part.lineno for part in first) - 1
        while start > end and lines[start - 1].startswith("#"):
            start -= 1
        end = node.end_lineno
        found[node] = "\n".join(lines[start:end])
    return found


def defined(node):
    """Names that a definition or an assignment gives a meaning to."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = {n.id for target in targets for n in ast.walk(target) if hasattr(n, "id")}
    return names | {node.name} if hasattr(node, "name") else names


def used(node):
    """Names that a statement looks up, here or in a function that it defines."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def needed(nodes, ending):
    """The statements that an ending needs, itself included, and all names in them."""
    apart = ast.Expr | ast.Import | ast.ImportFrom
    copied = [node for node in ending if not isinstance(node, apart)]
    while True:
        names = set().union(*map(used, copied))
        more = [n for n in nodes if n not in copied and defined(n) & names]
        if not more:
            break
        copied += more
    counts = Counter(name for node in copied for name in defined(node))
    if twice := [name for name in counts if counts[name] > 1]:
        raise ValueError(f"expected one definition of each name, got more of {twice}")
    return copied, names


def imports(nodes, copied, names):
    """``{line: package}`` for names that are used; those of helpers must be copied."""
    found, members, ours = {}, {}, set().union(*map(defined, copied))
    for node in nodes:
        module = getattr(node, "module", None) or ""
        for alias in (
            node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        ):
            if (alias.asname or alias.name).partition(".")[0] not in names:
                continue
            if module.startswith("helpers."):
                if alias.asname or alias.name not in ours:
                    raise LookupError(f"expected {alias.name} of {module} in FILES")
            elif module:
                members.setdefault(module, set()).add(ast.unparse(alias))
            else:
                found[f"import {ast.unparse(alias)}"] = alias.name.partition(".")[0]
    found = dict(sorted(found.items()))
    for module, parts in sorted(members.items()):
        line = f"from {module} import {', '.join(sorted(parts))}"
        found[line] = module.partition(".")[0]
    return found


def title(page):
    """The heading of a page."""
    return pages.read_py(pages.ROOT / f"{page}.py")[0].source.partition("\n")[0][2:]


def head(side, packages):
    """The docstring of the file."""
    config = pages.config()
    needs = (pages.ROOT / "requirements.txt").read_text("utf-8")
    needs = re.findall(rf"^(?:{'|'.join(packages)})\b[^\s#]*", needs, re.MULTILINE)
    with (pages.ROOT / "LICENSE").open(encoding="utf-8") as file:
        rights = file.readline().strip()
    return HEAD.format(
        title=config["title"], side=side, copyright=rights, **config["repository"],
        needs=fill(f"Needs Python 3.11 or later, {', '.join(needs)}.", 88),
    )  # fmt: skip


def section(path, side, chapter):
    """The comment above a part of the file: its chapter, or what it holds."""
    if chapter:
        page = f"notebooks/{chapter}_{side}"
        text = f"{title(page)}: {page}.ipynb"
    else:
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))).partition("\n")[0]
    return f"# {'-' * 86}\n# {text}"


def one_file(side):
    """The text of the file of a framework."""
    found = {path: statements(path) for path in sources(side)}
    nodes = [node for parts in found.values() for node in parts]
    *_, ending = found.values()
    copied, names = needed(nodes, ending)
    lines = imports(nodes, copied, names)
    own = [line for line in lines if lines[line] in sys.stdlib_module_names]
    others = [line for line in lines if line not in own]
    text = head(side, {lines[line] for line in others})
    text += "\n\n{}\n\n{}".format("\n".join(own), "\n".join(others))
    for path, chapter in sources(side).items():
        comment, before = section(path, side, chapter), None
        if comment not in text:
            text += f"\n\n{comment}\n"
        for node in [node for node in found[path] if node in copied]:
            constants = isinstance(before, ast.Assign) and isinstance(node, ast.Assign)
            text += "" if constants else "\n\n"
            text += f"{found[path][node]}\n"
            before = node
    return text


if __name__ == "__main__":
    print(one_file(sys.argv[1]), end="")
