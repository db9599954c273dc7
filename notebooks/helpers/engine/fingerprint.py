"""Digests of arrays and of code, which identify a run."""

import hashlib
import sys
import types
from functools import partial
from inspect import unwrap

import numpy as np

from helpers.engine.shapes import as_numpy

PLAIN = int, float, complex, str, bytes, type(None), type(...)  # bool is an int
MODES = "training", "deterministic", "use_running_average"


def digest(arrays):
    """Hash of names, shapes, dtypes and contents of some arrays."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.shape} {array.dtype}".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def in_bytes(texts):
    """Texts by name as arrays, for ``digest``."""
    return {k: np.frombuffer(v.encode(), np.uint8) for k, v in texts.items()}


def code(*things):
    """Hash of the code of functions, classes and objects, and of all that it uses.

    Names are followed into other functions and classes, but not into libraries. Byte
    code is hashed: unlike source text it exists also for what was typed into a notebook
    or a shell, and comments do not change it.

    Parameters
    ----------
    *things : functions, classes, objects
        Of an object (a layer, say) count its class, and those attributes that are plain
        values or functions, but not whether it is in training mode.
    """
    seen = set()
    return digest(in_bytes({"code": "\n".join(text(thing, seen) for thing in things)}))


def text(thing, seen):
    """What something is made of, in words; each function and class only once."""
    match thing:
        case _ if isinstance(thing, PLAIN):
            return repr(thing)
        case list() | tuple():
            return f"[{', '.join(text(x, seen) for x in thing)}]"
        case set() | frozenset():  # in no order that lasts
            return f"{{{', '.join(sorted(text(x, seen) for x in thing))}}}"
        case dict():
            return f"{{{', '.join(f'{k}: {text(x, seen)}' for k, x in thing.items())}}}"
        case types.CodeType():
            names = thing.co_names, thing.co_varnames, thing.co_freevars
            return f"{thing.co_code.hex()} {names} {text(thing.co_consts, seen)}"
        case partial():
            return text([thing.func, thing.args, thing.keywords], seen)
        case staticmethod() | classmethod():
            return text(thing.__func__, seen)
        case property():
            return text([thing.fget, thing.fset], seen)
        case types.ModuleType():
            return thing.__name__
        case type():
            return of_definition(thing, seen)
    if is_function(thing):
        return of_definition(unwrap(thing), seen)
    if hasattr(thing, "__array__"):
        return digest({"": as_numpy(thing)})
    return of_object(thing, seen)


def is_function(thing):
    """Whether it is a function, also one that a library has wrapped."""
    return callable(thing) and hasattr(thing, "__qualname__")


def of_definition(thing, seen):
    """A function or class: its name and, unless it is a library's, its parts."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    if id(thing) in seen or is_of_library(thing):
        return name
    seen.add(id(thing))
    if isinstance(thing, type):
        kinds = types.FunctionType, staticmethod, classmethod, property
        own = {k: x for k, x in vars(thing).items() if isinstance(x, kinds)}
        plain = {k: x for k, x in vars(thing).items() if isinstance(x, PLAIN)}
        plain = {k: x for k, x in plain.items() if not k.startswith("_")}
        return f"{name} {text([thing.__bases__, own, plain], seen)}"
    if not isinstance(thing, types.FunctionType):
        return name
    cells = [cell.cell_contents for cell in thing.__closure__ or ()]
    used = {k: thing.__globals__[k] for k in names_in(thing.__code__, thing)}
    parts = [thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells, used]
    return f"{name} {text(parts, seen)}"


def names_in(code, function):
    """Global names that a function uses, in it and in the functions within it."""
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    names = {name for name in code.co_names if name in function.__globals__}
    return sorted(names.union(*(names_in(x, function) for x in inner)))


def of_object(thing, seen):
    """An object: its class, and its attributes that are plain values or functions."""
    kept = {
        k: x
        for k, x in sorted(getattr(thing, "__dict__", {}).items())
        if isinstance(x, (*PLAIN, tuple, partial)) or is_function(x)
        if k not in MODES and not k.startswith("_")
    }
    return f"{of_definition(type(thing), seen)} {text(kept, seen)}"


def is_of_library(thing):
    """Whether it comes with Python, or was installed; what was typed in was not."""
    if thing.__module__ == "__main__":
        return False
    path = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    installed = "site-packages" in path or "dist-packages" in path
    return installed or thing.__module__.split(".")[0] in sys.stdlib_module_names
