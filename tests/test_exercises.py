"""A known mistake gets its own message, in both frameworks; what is right passes."""

import importlib
import inspect
import linecache
import math
import sys
from types import SimpleNamespace

import jax  # noqa: F401
import jax.numpy as jnp
import pytest
import torch

from helpers import exercises

for file in exercises.FILES:
    importlib.import_module(f"helpers.exercises.{file}")

TORCH = "any arange exp log mean ones sin sqrt stack sum swapaxes zeros"
TORCH += " argsort cumsum isnan nan_to_num nanmean nansum roll"
NUMPY_OF = {  # the references are written in names that all three have, or nearly
    "jax": jnp,
    "torch": SimpleNamespace(
        inf=math.inf,
        pi=math.pi,
        cos=lambda x: torch.cos(torch.as_tensor(x)),
        max=torch.amax,
        min=torch.amin,
        split=lambda x, n, axis: torch.tensor_split(x, n, dim=axis),
        concatenate=torch.cat,
        array_split=torch.tensor_split,
        where=lambda c, *x: torch.where(torch.as_tensor(c), *x),
        take_along_axis=torch.take_along_dim,
        **{name: getattr(torch, name) for name in TORCH.split()},
    ),
}
on_both = pytest.mark.parametrize("framework", NUMPY_OF)


def in_framework(framework, one, source):
    """A function of a framework's arrays out of the source of a reference."""
    names = one.reference.__globals__ | {"np": NUMPY_OF[framework]}
    names[framework] = sys.modules[framework]
    for value in [*one.reference.__globals__.values()]:
        if inspect.isfunction(value):
            exec(source_of(value), names)  # what the reference calls
    exec(source, names)
    return names[one.reference.__name__]


def source_of(function):
    source = inspect.getsource(function)
    return source[source.index("def ") :]


def told(capsys, name, yours):
    """What ``check`` prints, in one line, without the exercise's name."""
    exercises.check(name, yours)
    return " ".join(capsys.readouterr().out.split()).removeprefix(f"{name}: ")


@on_both
@pytest.mark.parametrize("name", exercises.KNOWN)
def test_what_is_right_passes_and_each_mistake_gets_its_own_message(
    name, framework, capsys
):
    one, faults = exercises.KNOWN[name], []
    yours = in_framework(framework, one, source_of(one.reference))
    assert told(capsys, name, yours).startswith("right")
    for change, message in one.mistakes.items():
        said = told(capsys, name, in_framework(framework, one, one.source(change)))
        if said != f"not right: {message}.":
            faults.append(f"{change}: {said}")
    assert not faults, "\n".join(faults)
    assert len({*one.mistakes.values()}) == len(one.mistakes) >= 8


# What else a reader may hand in, for ``encoder.layer_norm``, and what ``check`` says.
RIGHT = """
def norm(x, scale, bias):
    x = x - x.mean(-1)[..., None]
    return x / xp.sqrt((x * x).mean(-1)[..., None] + 1e-5) * scale + bias
"""
PAGE = {
    "jax": "import jax.numpy as xp\nimport numpy as np\nfrom jax import jit, lax\n",
    "torch": "import torch as xp\nimport numpy as np\n",
}
PARAMETERS = "expected a function of (x, scale, bias), got"
ANSWERS = [
    ('"""Words."""\n    ...', "not yet written. Your turn."),
    ("return ...", "not yet written. Your turn."),
    ("return x, ...", "not yet all written. Your turn."),
    ("y = x * scale + bias", "your function returns None: is its `return` missing?"),
    ("return x, x", "not right: expected 1 outputs, got 2, b s m."),
    ("return x[0]", "not right: expected shape (2, 3, 6), got (3, 6), b s m."),
    ("return 7 + 0 * x", "not right: at [0, 0, 0] expected 1.546, got 7, b s m; 100%"),
    ("return 0 * x / (0 * x)", "NaN comes from 0/0"),
    ("return x * next(count)", "two equal calls give two answers: is dropout on"),
    ("return x @ scale @ bias", "`return x @ scale @ bias`"),
    ("return x @ scale @ bias", "Shapes: x (2, 3, 6), scale (6,), bias (6,)"),
    ("return 'a word'", "throughout, got str."),
    ("return 1.5", "throughout, got float."),
    ("return np.ones((2, 3, 6))", "throughout, got ndarray: NumPy ends the gradient."),
]
WRAPPED = [  # what stands around a right function
    ("def f(x, scale):\n    return norm(x, scale, 0)", f"{PARAMETERS} f(x, scale)."),
    ("class Norm:\n    pass", f"{PARAMETERS} <class"),
    ("class Norm:\n    pass\nnorm = Norm()", f"{PARAMETERS} <"),
    (
        "def f(x, scale, bias):\n    print(7)\n    return norm(x, scale, bias)",
        "last: 7",
    ),
]
ONLY = {  # what one framework alone can do
    "jax": [
        ("f = jit(norm)", "right, in 9 cases: b s m; equal features"),
        (
            "f = lambda x, scale, bias: norm(x, scale, bias).astype('bfloat16')",
            "float32",
        ),
        (
            "f = lambda x, scale, bias: norm(x, lax.stop_gradient(scale), bias)",
            "the values are right, but not the gradient: slope",
        ),
        (
            "f = lambda x, scale, bias: norm(xp.array(np.array(x)), scale, bias)",
            "the values are right, but the gradient raised Tracer",
        ),
    ],
    "torch": [
        ("f = lambda x, scale, bias: norm(x, scale, bias).double()", "float32, got"),
        ("f = lambda x, scale, bias: norm(x, scale, bias).bfloat16()", "float32, got"),
        (
            "f = lambda x, scale, bias: norm(x, scale, bias).detach()",
            "slope 0 instead of 101.7, b s m: is it detached?",
        ),
        (
            "f = lambda x, scale, bias: norm(x.sub_(x.mean(-1, True)), scale, bias)",
            "the values are right, but your code changed x, b s m.",
        ),
    ],
}


def of_a_page(framework, source):
    """The last definition of a source, in a cell of a page that has its framework."""
    source = f"{PAGE[framework]}import itertools\ncount = itertools.count()\n{source}"
    path, names = f"<cell {len(linecache.cache)}>", {}
    linecache.cache[path] = len(source), None, source.splitlines(True), path
    exec(compile(source, path, "exec"), names)
    return [*names.values()][-1]


BODIES = [(f"def f(x, scale, bias):\n    {body}", said) for body, said in ANSWERS]
AFTER = {
    f: [(f"{RIGHT}\n{more}", said) for more, said in WRAPPED + ONLY[f]] for f in ONLY
}


@pytest.mark.parametrize(
    ("framework", "source", "said"),
    [(f, *row) for f in ONLY for row in BODIES + AFTER[f]],
)
def test_what_is_no_right_answer_gets_a_sentence(framework, source, said, capsys):
    yours = of_a_page(framework, source)
    assert said in told(capsys, "encoder.layer_norm", yours)


REFUSED = [  # slips in an exercise's reference, and what is said about them
    ("costs.n_parameters", "+ tables -> + tables + (m == 768)", "got 124,439,809, m"),
    ("debugging.best_epoch", "losses[epoch] < -> losses[epoch] + 0.1 <", "expected"),
    ("decoder.top_p", "before < top_p -> before <= top_p", "top_p = 0.75; "),
    ("encoder.layer_norm", "square + 1e-5 -> square.clip(1e-5)", "small features; "),
    ("reverse.training_step", "/ norm.clip(max_norm) -> / norm", "not right"),
    (
        "warmup.schedule",
        "fall = -> fall = t / total; _ = & min(1, (t + 1) / warmup) -> 1",
        "not right: it falls from the first update on: wait for the peak; and the warm",
    ),
]


@on_both
@pytest.mark.parametrize(("name", "change", "said"), REFUSED)
def test_another_slip_is_found_and_gets_no_false_name(
    name, change, said, framework, capsys
):
    one = exercises.KNOWN[name]
    yours = in_framework(framework, one, one.source(change))
    assert said in told(capsys, name, yours)


@on_both
def test_an_error_is_shown_with_the_line_of_the_reader(framework, capsys):
    source = "def inner(x):\n    return x.none\n\n"
    source += "def f(losses, patience):\n    return inner(losses)"
    losses = [100.45, 100.25, 100.3, 100.35, 100.4, 100.45]
    assert told(capsys, "debugging.best_epoch", of_a_page(framework, source)) == (
        f"your code raised AttributeError, losses {losses}, patience 1, in line "
        f"{PAGE[framework].count(chr(10)) + 4}: `return x.none` 'list' object has no "
        f"attribute 'none' Shapes: losses {losses}, patience 1"
    )


@on_both
def test_a_slow_function_is_tried_with_one_seed(framework, capsys, monkeypatch):
    monkeypatch.setattr(exercises, "perf_counter", iter((0, 99)).__next__)
    said = told(capsys, "encoder.layer_norm", of_a_page(framework, RIGHT))
    assert said.startswith("right, in 3 cases of one seed (it is slow): b s m; equal")
