"""Digests of arrays and of code, which identify a run."""

import sys
from functools import partial
from inspect import unwrap
from types import CodeType, FunctionType, ModuleType

import joblib
import numpy as np

from helpers.engine.shapes import as_numpy

PLAIN = int, float, complex, str, bytes, type(None), type(...)  # bool is an int
MODES = "training", "deterministic", "use_running_average"


def digest(things):
    """Digest of a dictionary of arrays and texts: names, shapes, dtypes and contents."""
    return joblib.hash({
        name: x if isinstance(x, str) else np.asarray(x, order="C")
        for name, x in things.items()
    })  # fmt: skip


def code(*things):
    """Digest of the code of functions, classes and objects, and of all that it uses.

    Names are followed into other functions and classes, but not into libraries. Byte
    code counts: what Python runs, whatever the file says since. Of an object (a layer,
    say) count its class, and attributes that are plain values or functions, but not
    whether it is in training mode.
    """
    seen = set()
    return joblib.hash([text(thing, seen) for thing in things])


def text(thing, seen):
    """What something is made of, in words; each function and class only once."""
    if isinstance(thing, PLAIN):
        return repr(thing)
    if isinstance(thing, list | tuple | set | frozenset):
        parts = [text(x, seen) for x in thing]  # sets have no order that lasts
        parts = sorted(parts) if isinstance(thing, set | frozenset) else parts
        return f"[{', '.join(parts)}]"
    if isinstance(thing, dict):
        return f"{{{', '.join(f'{k}: {text(x, seen)}' for k, x in thing.items())}}}"
    if isinstance(thing, CodeType):
        names = thing.co_names, thing.co_varnames, thing.co_freevars
        return text([thing.co_code, names, thing.co_consts], seen)
    if isinstance(thing, partial):
        return text([thing.func, thing.args, thing.keywords], seen)
    if isinstance(thing, property):
        return text([thing.fget, thing.fset], seen)
    if isinstance(thing, ModuleType):
        return thing.__name__
    if isinstance(thing, type) or (callable(thing) and hasattr(thing, "__qualname__")):
        return definition(unwrap(thing), seen)
    if hasattr(thing, "__array__"):
        return joblib.hash(as_numpy(thing))
    kept = {
        k: x
        for k, x in sorted(getattr(thing, "__dict__", {}).items())
        if isinstance(x, (*PLAIN, tuple, partial)) or hasattr(x, "__qualname__")
        if k not in MODES and not k.startswith("_")
    }
    return text([type(thing), kept], seen)


def definition(thing, seen):
    """A function or class: its name and, unless it is a library's, its parts."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    if id(thing) in seen or is_of_library(thing):
        return name
    seen.add(id(thing))
    parts = []
    if isinstance(thing, type):
        kinds = FunctionType, staticmethod, classmethod, property
        own = {
            k: getattr(x, "__func__", x)
            for k, x in vars(thing).items()
            if isinstance(x, kinds) or (isinstance(x, PLAIN) and not k.startswith("_"))
        }
        parts = [thing.__bases__, own]
    elif isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        names = names_in(thing.__code__) & thing.__globals__.keys()
        used = {name: thing.__globals__[name] for name in sorted(names)}
        parts = [thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells, used]
    return name + text(parts, seen)


def names_in(code):
    """Names that a function uses, in it and in the functions within it."""
    inner = (x for x in code.co_consts if isinstance(x, CodeType))
    return set(code.co_names).union(*map(names_in, inner))


def is_of_library(thing):
    """Whether it comes with Python, or was installed; what was typed in was not."""
    path = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    top = f"{thing.__module__}".partition(".")[0]
    installed = "site-packages" in path or "dist-packages" in path
    return top != "__main__" and (installed or top in sys.stdlib_module_names)
