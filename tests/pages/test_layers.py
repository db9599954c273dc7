"""Imports run one way: pages, then a framework's room, then the rest, then NumPy."""

import ast
import subprocess
import sys

import pytest

import pages

HELPERS = pages.NOTEBOOKS / "helpers"
FILES = sorted(HELPERS.rglob("*.py"))
FRAMEWORKS = {
    "jax": {"jax", "jaxlib", "flax", "optax"},
    "torch": {"torch", "torchvision"},
}
FOREIGN = set.union(*FRAMEWORKS.values())
# What may import a framework inside a function, beside the framework's own room.
LAZY = {"helpers.engine.weights": FOREIGN}
LAZY |= {f"helpers.{x}": FRAMEWORKS["torch"] for x in ("engine.jobs", "data.reactions")}
# From which rooms a room may import; "" is the folder itself.
BELOW = {"jax": {"jax", "data", "engine", ""}, "torch": {"torch", "data", "engine", ""}}
BELOW |= {room: {"data", "engine", ""} for room in ("data", "engine")}
BELOW |= {"": {"engine", ""}, "show": {"show", "engine", ""}}
BELOW |= {"exercises": {"exercises", "engine", ""}}


def name_of(path):
    """``helpers.jax.attention``; a package has the name of its folder."""
    parts = path.relative_to(pages.NOTEBOOKS).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def room(module):
    """The folder, such as ``jax`` or ``engine``; "" is the folder of helpers itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (HELPERS / parts[1]).is_dir() else ""


def imports(source, *, lazy=True):
    """``(module, line)`` of every import; without ``lazy`` only those at the top."""
    tree = ast.parse(source)
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            inner = [name for name in names if name in MODULES]
            yield from ((name, node.lineno) for name in inner or [node.module])


def read(module):
    return MODULES[module].read_text(encoding="utf-8")


def handed_on(side):
    """The table of a framework's room: in which file a name stands."""
    tables = [
        ast.literal_eval(node.value)
        for node in ast.parse(read(f"helpers.{side}")).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "NAMES"
    ]
    return {name: file for file, names in tables[0].items() for name in names.split()}


ROOMS = {f"helpers.{side}": handed_on(side) for side in pages.SIDES}


@pytest.mark.parametrize("name", MODULES)
def test_a_helper_imports_only_from_below(name):
    for module, line in imports(read(name)):
        if module.partition(".")[0] == "helpers":
            assert room(module) in BELOW[room(name)], (
                f"{name}, line {line}: imports {module} from above"
            )


def test_helpers_do_not_import_in_circles():
    below = {
        name: {m for m, _ in imports(read(name), lazy=False) if m in MODULES} - {name}
        for name in MODULES
    }
    done = set()
    while ready := {name for name in below if name not in done and below[name] <= done}:
        done |= ready
    assert done == set(MODULES), f"in a circle: {sorted(set(MODULES) - done)}"


@pytest.mark.parametrize("name", MODULES)
def test_a_helper_knows_at_most_its_own_framework(name):
    """``weights`` may know both, each lazily; ``jobs`` and ``reactions`` PyTorch."""
    allowed = FRAMEWORKS.get(room(name), set())
    for lazy, permitted in ((False, allowed), (True, LAZY.get(name, allowed))):
        for module, line in imports(read(name), lazy=lazy):
            top = module.partition(".")[0]
            assert top not in FOREIGN - permitted, (
                f"{name}, line {line}: must not import {module}"
            )


def test_the_two_rooms_of_the_frameworks_have_the_same_files():
    jax, torch = (
        {p.name for p in (HELPERS / side).glob("*.py")} for side in pages.SIDES
    )
    assert jax == torch


@pytest.mark.parametrize("file", sorted(p.stem for p in (HELPERS / "jax").glob("*.py")))
def test_files_of_the_two_rooms_import_the_same_helpers(file):
    """Both take the same from below."""
    below = []
    for side in pages.SIDES:
        name = name_of(HELPERS / side / f"{file}.py")
        found = {module for module, _ in imports(read(name)) if module in MODULES}
        below.append({module for module in found if room(module) != side})
    assert below[0] - {"helpers.engine.shapes"} == below[1] - {"helpers.engine.shapes"}


@pytest.mark.parametrize("side", pages.SIDES)
def test_a_room_hands_on_what_stands_in_its_files(side):
    """The table of names in ``__init__.py`` names nothing that is not there."""
    for path in (HELPERS / side).glob("[a-z]*.py"):
        tree = ast.parse(path.read_text("utf-8")).body
        defined = {getattr(node, "name", None) for node in tree}
        targets = [t for n in tree if isinstance(n, ast.Assign) for t in n.targets]
        defined |= {t.id for t in targets if isinstance(t, ast.Name)}
        table = ROOMS[f"helpers.{side}"]
        listed = {name for name, file in table.items() if file == path.stem}
        assert listed <= defined, f"{path.name}: no {sorted(listed - defined)}"


def test_the_package_imports_nothing():
    assert not list(imports(read("helpers")))


def test_the_table_of_contents_is_complete():
    contents = ast.get_docstring(ast.parse(read("helpers")))
    for name in MODULES:
        word = name.rpartition(".")[2]
        assert word in contents, f"helpers/__init__.py does not name {name}"


@pytest.mark.parametrize("page", pages.sources(), ids=lambda page: page.stem)
def test_a_page_reads_only_helpers_of_its_side(page):
    """A JAX page takes nothing from ``helpers.torch``, and the other way round."""
    other = "torch" if page.stem.endswith("_jax") else "jax"
    for cell in pages.read_py(page):
        if cell.kind == "code":
            for module, _ in imports(cell.source):
                assert not module.startswith(f"helpers.{other}"), f"{cell}: {module}"


def test_importing_a_helper_loads_no_other_framework():
    """Asked of Python itself: helpers that know no framework load none."""
    names = [name for name in MODULES if room(name) not in FRAMEWORKS]
    question = "".join(f"import {name}\n" for name in names)
    question += f"import sys; print(*{FOREIGN!r} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", question],
        cwd=pages.NOTEBOOKS,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def files_of(module, names):
    """Modules that ``from module import names`` reads: a room hands on by name."""
    if module in ROOMS:
        yield from (
            f"{module}.{ROOMS[module].get(name, 'attention')}" for name in names
        )
    yield from (f"{module}.{n}" for n in names if f"{module}.{n}" in MODULES)
    yield module


def loaded(source):
    """Helpers that some source reads, and what these read in turn; no exercises."""
    found, new = set(), set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("helpers"):
            new |= {*files_of(node.module, [alias.name for alias in node.names])}
    while new := {name for name in new if room(name) != "exercises"}:
        found |= new
        below = {m for name in new for m, _ in imports(read(name), lazy=False)}
        packages = {name.rpartition(".")[0] for name in new} - {""}
        new = ((below & MODULES.keys()) | packages) - found
    return found


@pytest.mark.parametrize("page", pages.sources(), ids=lambda page: page.stem)
def test_a_page_reads_a_small_part_of_the_helpers(page):
    """At most 4,000 lines: a reader who follows the imports comes to an end.

    Exercises have a limit of their own.
    """
    cells = [cell.source for cell in pages.read_py(page) if cell.kind == "code"]
    lines = {name: read(name).count("\n") for name in loaded("\n".join(cells))}
    assert sum(lines.values()) <= 4_000, sorted(lines.items(), key=lambda x: -x[1])


def test_the_helpers_are_small():
    """7,500 lines for thirteen chapters, 400 for each more; 700 of exercises."""
    later = max(0, len(pages.sources()) // 2 - 13)
    lines = {name: read(name).count("\n") for name in MODULES}
    exercises = sum(n for name, n in lines.items() if room(name) == "exercises")
    assert 0 < exercises <= 700
    assert sum(lines.values()) - exercises <= 7_500 + 400 * later, lines


def test_nobody_sets_a_default_device():
    """It taxes every call, and breaks loaders that shuffle: pass devices instead."""
    files = [*pages.NOTEBOOKS.glob("*_torch.py"), *FILES]
    files += [*(pages.ROOT / "scripts").glob("*.py")]
    found = [f.name for f in files if "default_device" in f.read_text("utf-8")]
    assert not found
