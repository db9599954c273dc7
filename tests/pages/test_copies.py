"""The models on the pages can be carried away: copied, they run without the helpers.

What belongs to a framework on all pages of a side, in the order of the book, goes into
one empty file: constants in capitals, classes and functions, and all imports but those
of helpers. With them go the functions that a page imports from the helpers of its own
model for what it defines, such as checks of arguments. The file runs where no helper is
found.
"""

import ast
import builtins
import os
import subprocess
import sys

import pytest
import yaml

import pages

OWN = {
    "jax": {"jax", "flax", "optax", "numpy", "math", "functools"},
    "torch": {"torch", "math", "functools", "contextlib"},
}
BESIDE = {"load_pretrained", "generate_greedily"}  # read files, check prompts: helpers
FORWARD = """
sizes = {"n_blocks": 2, "n_heads": 3, "f": 7}
model = build(Predictor, 5, 12, 3, **sizes)
x, mask = ones((2, 7, 5)), ones((7, 7)) > 0
assert model(x, mask).shape == (2, 7, 3)
out, maps = attention_maps(model, x, mask)
assert maps.shape == (2, 2, 3, 7, 7)
heads = build(MultiHeadAttention, 5, 1)
found = heads(x, context=x[:, :4])
asked = heads(x, context=x[:, :4], return_weights=True)
assert found[1] is None and asked[1].shape == (2, 1, 7, 4)
assert abs(found[0] - asked[0]).max() < 1e-6
for options in ({"positions": "learned", "norm_first": True}, {"norm": "rms"}):
    assert build(Predictor, 5, 12, 3, **sizes, **options)(x).shape == (2, 7, 3)
right, wrong = whole([[0, 1]] * 9), whole([[2, 3]] * 99)  # rows of the data
held_back = x, whole([[0] * 7] * 2)
data = x[whole([0, 1, 0, 1])], whole([[0] * 7] * 2 + [[1] * 7] * 2)


def losses(model, epochs, peak):
    return train_model(model, cross_entropy, data, held_back, epochs, peak)


learned = losses(model, [right], 0.01)
assert learned[-1] < learned[0]
model = build(Predictor, 5, 12, 3, **sizes)
assert losses(model, [right, wrong], 0.01)[-1] < 0.7  # the second epoch unlearns
assert cross_entropy(model, *held_back)[1]["accuracy"] == 1, "not the best epoch"
dropping = losses(build(Predictor, 5, 12, 3, **sizes, dropout=0.5), [right], 0.0)
assert len({float(loss) for loss in dropping}) == 9, "the same dropout in each update"
"""
START = {
    "jax": "ones, whole = jnp.ones, jnp.array\n",
    "torch": "ones, whole = torch.ones, torch.tensor\n",
}


def in_order(side):
    """The pages of a side in the order of the book."""
    toc = yaml.safe_load((pages.ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    return [pages.ROOT / f"{f}.py" for f in files if pages.side_of(f) == side]


def carried(side):
    """``(node, source)`` of all that a reader copies, page after page."""
    lent, needed = lent_functions(side), set()
    cells = [cell for page in in_order(side) for cell in pages.read_py(page)]
    for cell in cells:
        for node in ast.parse(cell.source).body if cell.kind == "code" else []:
            if is_carried(node, cell.side == side):
                yield node, source_of(node, cell.source)
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    needed |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    yield from (lent[name] for name in sorted(needed & lent.keys()))


def lent_functions(side):
    """Functions that pages import from the helpers of their model and none defines."""
    imported, defined = set(), set()
    for page in in_order(side):
        for node in ast.parse(page.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module == f"helpers.{side}":
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                defined.add(node.name)
    return {
        node.name: (node, source_of(node, source))
        for source in helpers_of(side)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in imported - defined
    }


def helpers_of(side):
    """The source of each file of a framework's helpers."""
    folder = pages.NOTEBOOKS / "helpers" / side
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]


def source_of(node, source):
    """The lines of a definition, with its decorators."""
    first = [node, *getattr(node, "decorator_list", [])]
    start = min(part.lineno for part in first) - 1
    return "\n".join(source.splitlines()[start : node.end_lineno])


def is_carried(node, own):
    """An import of anything but helpers; a definition or constant of the framework."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return top_module(node) != "helpers"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return own and node.targets[0].id.isupper()
    named = isinstance(node, ast.ClassDef | ast.FunctionDef)
    return own and named and node.name not in BESIDE


def top_module(node):
    """The package that is imported."""
    name = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
    return name.partition(".")[0]


def provided(nodes, side):
    """Names that the copied code may use: its framework's, and its own."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if top_module(node) in OWN[side]:
                yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield node.targets[0].id
        else:
            yield node.name


def strange_names(node, known):
    """Names that a definition looks up and nobody provides."""
    inner = list(ast.walk(node))
    own = {n.arg for n in inner if isinstance(n, ast.arg)}
    own |= {n.name for n in inner if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    names = [n for n in inner if isinstance(n, ast.Name)]
    own |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return {n.id for n in names} - own - set(known) - set(vars(builtins))


def names_in_helpers(side):
    """The model and the losses that later pages take from the helpers."""
    for source in helpers_of(side):
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield node.name


@pytest.mark.parametrize("side", pages.SIDES)
def test_models_and_losses_use_nothing_but_their_framework(side):
    """Every line of them, also those that only an error reaches."""
    nodes = [node for node, _ in carried(side)]
    known, kept = set(provided(nodes, side)), set(names_in_helpers(side))
    checked = [
        node
        for node in nodes
        if isinstance(node, ast.ClassDef)
        or (isinstance(node, ast.FunctionDef) and node.name in kept)
    ]
    assert {"Predictor", "attention", "cross_entropy"} <= {n.name for n in checked}
    for node in checked:
        strange = strange_names(node, known)
        assert not strange, f"{side}: {node.name} uses {sorted(strange)}"


@pytest.mark.parametrize("side", pages.SIDES)
def test_copied_definitions_run_without_the_helpers(side, tmp_path):
    """A forward pass, maps, cross-attention, kinds of models, and a training loop."""
    copy = tmp_path / "copied.py"
    sources = [source for _, source in carried(side)]
    copy.write_text("\n\n".join([*sources, START[side] + FORWARD]), encoding="utf-8")
    command = [sys.executable, "-W", "error", "-I", copy]  # -I: finds no helpers
    quick = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    options = {"capture_output": True, "text": True, "cwd": tmp_path, "env": quick}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
