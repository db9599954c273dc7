"""Imports run one way: pages, then models and training, then the rest, then NumPy."""

import ast
import subprocess
import sys

import pytest

import pages

HELPERS = pages.NOTEBOOKS / "helpers"
MODULES = sorted(path.stem for path in HELPERS.glob("*.py"))
FRAMEWORKS = {
    "jax": {"jax", "jaxlib", "flax", "optax"},
    "torch": {"torch", "torchvision"},
}
FOREIGN = set.union(*FRAMEWORKS.values())


def imports(source, *, lazy=True):
    """``(module, line)`` of every import; without ``lazy`` only those at the top."""
    tree = ast.parse(source)
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            if node.module == "helpers":
                yield from (
                    (f"helpers.{alias.name}", node.lineno) for alias in node.names
                )
            else:
                yield node.module, node.lineno


def level(name):
    """0 is the bottom; a module imports only from below, or beside if on the bottom."""
    return 1 if name.startswith(("model_", "train_")) else 0


def read(name):
    return (HELPERS / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MODULES)
def test_a_helper_imports_only_from_below(name):
    for module, line in imports(read(name)):
        top, _, rest = module.partition(".")
        if top == "helpers":
            assert level(rest) <= level(name) and (level(name) or not level(rest)), (
                f"helpers/{name}.py, line {line}: imports {module} from above"
            )


def test_helpers_do_not_import_in_circles():
    below = {
        name: {
            module.partition(".")[2]
            for module, _ in imports(read(name))
            if module.startswith("helpers.")
        }
        for name in MODULES
    }
    done = set()
    while ready := {name for name in below if name not in done and below[name] <= done}:
        done |= ready
    assert done == set(MODULES), f"in a circle: {sorted(set(MODULES) - done)}"


@pytest.mark.parametrize("name", MODULES)
def test_a_helper_knows_at_most_its_own_framework(name):
    """``weights`` may know both, each lazily, ``photos`` PyTorch; the rest neither."""
    side = name.rpartition("_")[2] if level(name) else None
    allowed = FRAMEWORKS.get(side, set())
    lazily = {"weights": FOREIGN, "photos": FRAMEWORKS["torch"]}.get(name, allowed)
    for lazy, permitted in ((False, allowed), (True, lazily)):
        for module, line in imports(read(name), lazy=lazy):
            top = module.partition(".")[0]
            assert top not in FOREIGN - permitted, (
                f"helpers/{name}.py, line {line}: must not import {module}"
            )


@pytest.mark.parametrize(
    "name", ["checks", "download", "runs", "schedules", "sequences", "sets", "settings"]
)
def test_what_surrounds_a_training_knows_no_framework(name):
    """Not even lazily, nor through a module of ``train_*`` or ``model_*``."""
    for module, line in imports(read(name)):
        top, _, rest = module.partition(".")
        assert top not in FOREIGN, f"helpers/{name}.py, line {line}: {module}"
        assert top != "helpers" or not level(rest), f"line {line}: {module}"


@pytest.mark.parametrize("kind", ["model", "train"])
def test_modules_of_the_two_sides_import_the_same_helpers(kind):
    """Each knows its framework, and both take the same from below."""
    below = {}
    for side in pages.SIDES:
        known = {module for module, _ in imports(read(f"{kind}_{side}"))}
        assert {module.partition(".")[0] for module in known} & FRAMEWORKS[side]
        below[side] = {module for module in known if module.startswith("helpers.")}
    assert below["jax"] - {"helpers.shapes"} == below["torch"] - {"helpers.shapes"}


def test_the_package_imports_nothing():
    assert not list(imports(read("__init__")))


@pytest.mark.parametrize("page", pages.sources(), ids=lambda page: page.stem)
def test_a_page_reads_only_helpers_of_its_side(page):
    """A JAX page takes nothing from ``model_torch``, and the other way round."""
    other = "torch" if page.stem.endswith("_jax") else "jax"
    for cell in pages.read_py(page):
        if cell.kind == "code":
            for module, _ in imports(cell.source):
                assert not module.endswith(f"_{other}"), f"{cell} imports {module}"


@pytest.mark.parametrize(
    ("name", "stranger"),
    [(f"{kind}_jax", "torch") for kind in ("model", "train")]
    + [(f"{kind}_torch", "jax") for kind in ("model", "train")]
    + [
        (name, both) for name in MODULES if not level(name) for both in ("jax", "torch")
    ],
)
def test_importing_a_helper_does_not_load_the_other_framework(name, stranger):
    """Asked of Python itself, in a process of its own."""
    module = "helpers" if name == "__init__" else f"helpers.{name}"
    question = f"import {module}, sys; sys.exit({stranger!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", question], cwd=pages.NOTEBOOKS)
    assert done.returncode == 0, f"import {module} loads {stranger}"
