"""Nothing of the test data chooses a model.

None of it is handed to ``fit``, no branch of the code depends on how large a result on
it is, and nothing is the best one by it.
"""

import ast
import re

import pytest

import pages

TEST = re.compile(r"\btest(ing)?(_\w+)?\b|\w+_test\b")

ORDER = ast.Lt | ast.LtE | ast.Gt | ast.GtE


def chapters():
    return sorted(pages.NOTEBOOKS.glob("*_jax.py")) + sorted(
        pages.NOTEBOOKS.glob("*_torch.py")
    )


def leaks(source):
    """What of the test data reaches ``fit``, or something called ``validation``."""
    tainted, found = set(), []

    def of_test(node):
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return bool(names & tainted) or bool(TEST.search(ast.unparse(node)))

    def assign(target, value):
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=True):
                assign(one, other)
            return
        for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
            (tainted.add if of_test(value) else tainted.discard)(name)

    for node in ast.walk(ast.parse(source)):  # top-level statements come in their order
        if isinstance(node, ast.Assign):
            for target in node.targets:
                assign(target, node.value)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
            pairs = zip(keys, node.values, strict=True)
            found += [v for k, v in pairs if k == "validation" and of_test(v)]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "fit":
            data = [*node.args[2:3], *(k.value for k in node.keywords)]
            found += [value for value in data if of_test(value)]
        if isinstance(node, ast.If | ast.IfExp):
            compares = [n for n in ast.walk(node.test) if isinstance(n, ast.Compare)]
            found += [n for n in compares if isinstance(n.ops[0], ORDER) and of_test(n)]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max"):
            found += [k.value for k in node.keywords if of_test(k.value)]
    return [ast.unparse(value) for value in found]


@pytest.mark.parametrize("page", chapters(), ids=lambda path: path.stem)
def test_no_page_trains_or_chooses_by_test_data(page):
    assert leaks(page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "fit(m, loss, train, s, validation=data['test'])",
        "held = data['test']\nfit(m, loss, train, s, validation=held)",
        "place = {'validation': data['test']}\nfit(m, loss, train, s, **place)",
        "a, b = parts['train'], parts['test']\nfit(m, loss, (b.features,), s)",
        "held = fixed(test.features, 1)\nfit(m, loss, train, s, validation=(held,))",
        "score = accuracy(m, data['test'])\nif score > best:\n    kept = copy(m)",
        "kept = m if accuracy(m, *test) >= best else kept",
        "best = max(models, key=lambda m: accuracy(m, *test))",
    ],
)
def test_a_leak_is_found(line):
    assert leaks(line)
