"""A known mistake gets its own message, in both frameworks; what is right passes."""

import importlib
import inspect
import sys
from types import SimpleNamespace

import jax  # noqa: F401
import jax.numpy as jnp
import pytest
import torch

from helpers import exercises

for chapter in exercises.CHAPTERS:
    importlib.import_module(f"helpers.exercises.{chapter}")

TORCH = "any arange cos exp log mean ones sin sqrt stack sum swapaxes where zeros"
TORCH += " argsort cumsum isnan nan_to_num nanmean nansum"
NUMPY_OF = {  # the references are written in names that all three have, or nearly
    "jax": jnp,
    "torch": SimpleNamespace(
        max=torch.amax,
        min=torch.amin,
        split=lambda x, n, axis: torch.tensor_split(x, n, dim=axis),
        concatenate=torch.cat,
        array_split=torch.tensor_split,
        take_along_axis=torch.take_along_dim,
        **{name: getattr(torch, name) for name in TORCH.split()},
    ),
}
PLANTED = [
    (name, change, message)
    for name, one in exercises.KNOWN.items()
    for change, message in one.mistakes.items()
]
on_both = pytest.mark.parametrize("framework", NUMPY_OF)


def in_framework(framework, one, source):
    """A function of a framework's arrays out of the source of a reference."""
    names = one.reference.__globals__ | {"np": NUMPY_OF[framework]}
    names[framework] = sys.modules[framework]
    for value in [*one.reference.__globals__.values()]:
        if getattr(value, "__module__", "") == one.reference.__module__:
            exec(source_of(value), names)  # what the reference calls
    exec(source, names)
    return names[one.reference.__name__]


def source_of(function):
    source = inspect.getsource(function)
    return source[source.index("def ") :]


@on_both
@pytest.mark.parametrize("name", exercises.KNOWN)
def test_the_reference_passes_in_both_frameworks(name, framework):
    one = exercises.KNOWN[name]
    yours = in_framework(framework, one, source_of(one.reference))
    assert exercises.verdict(one, yours).startswith("right")


@on_both
@pytest.mark.parametrize(("name", "change", "message"), PLANTED)
def test_a_mistake_gets_its_own_message(name, change, message, framework):
    one = exercises.KNOWN[name]
    yours = in_framework(framework, one, one.source(change))
    assert exercises.verdict(one, yours) == f"not right: {message}."


@pytest.mark.parametrize("name", exercises.KNOWN)
def test_an_exercise_knows_eight_mistakes(name):
    messages = [*exercises.KNOWN[name].mistakes.values()]
    assert len({*messages}) == len(messages) >= 8
