"""Exercises from a blank cell: ``check`` runs your function, and names its mistake.

    check("attention.masked", my_attention)

Each file has a chapter's exercises: a reference in NumPy, and its known mistakes as
changes of its source, ``old -> new | what is wrong``. Code that computes the same as a
changed reference made that mistake.
"""

import importlib
import inspect
import sys
import traceback

import numpy as np

from helpers.engine.shapes import as_numpy

CHAPTERS = [
    "attention",
    "encoder",
    "positions",
    "reverse",
    "warmup",
    "anomaly",
    "vision",
    "decoder",
    "translation",
    "costs",
    "data",
    "debugging",
]
KNOWN = {}  # exercises by name, as soon as their chapter's file is loaded


class Exercise:
    """A NumPy function that is right, ways to get it wrong, and cases to try.

    ``cases`` takes a generator of random numbers, and yields words for a case with
    its arguments by name; floats reach the reader's function as float32.
    """

    def __init__(self, reference, cases, mistakes, smooth):
        self.reference, self.cases, self.smooth = reference, cases, smooth
        lines = [line.split(" | ") for line in mistakes.strip().splitlines()]
        self.mistakes = {change.strip(): message for change, message in lines}

    def source(self, change):
        """The source of the reference with a mistake."""
        source = inspect.getsource(self.reference)
        source = source[source.index("def ") :]
        for one in change.split(" & "):
            old, new = one.split(" ->")
            if old not in source:
                raise ValueError(f"no {old!r} in {self.reference.__name__}")
            source = source.replace(old, new.strip())
        return source

    def wrong(self, change, **names):
        """The reference with a mistake, run with other ``names``, such as ``np``."""
        names = self.reference.__globals__ | names
        exec(self.source(change), names)
        return names[self.reference.__name__]


def exercise(name, cases, mistakes, smooth=True):
    """Make the decorated function an exercise; ``smooth`` ones have gradients."""

    def keep(reference):
        KNOWN[name] = Exercise(reference, cases, mistakes, smooth)
        return reference

    return keep


def check(name, yours):
    """Print whether ``yours`` is right, or what is wrong and where; return which."""
    chapter = name.partition(".")[0]
    if chapter in CHAPTERS:
        importlib.import_module(f"helpers.exercises.{chapter}")
    if name not in KNOWN:
        raise KeyError(f"no exercise {name!r}; expected one of {', '.join(KNOWN)}")
    said = verdict(KNOWN[name], yours)
    print(f"{name}: {said}")
    return said.startswith("right")


def verdict(one, yours):
    """What ``check`` prints."""
    framework, tried = framework_of(yours), []
    for seed in range(3):
        for words, given in one.cases(np.random.default_rng(seed)):
            theirs = {key: to(framework, x) for key, x in given.items()}
            try:
                out = yours(**theirs)
            except Exception as error:  # whatever the reader's code raises
                return said_by(error, yours, words)
            if out is None or out is Ellipsis:
                return "not yet written. Your turn."
            changed = [k for k, x in given.items() if not same(theirs[k], x)]
            tried.append((words, given, out, changed))
    said = what_is_wrong(one, tried, framework)
    for words, given, *_ in tried if one.smooth and framework and not said else ():
        if not gradient_gap(one, yours, framework, given) < 1e-2:
            return f"the values are right, but the gradient is not, {words}."
    cases = ", ".join(dict.fromkeys(words for words, *_ in tried))
    return said or f"right, in {len(tried)} cases: {cases}"


def what_is_wrong(one, tried, framework):
    """A known mistake that explains most of what is wrong, or the first difference."""
    off = [case for case in tried if not same(case[2], one.reference(**case[1]))]
    for change, message in one.mistakes.items() if off else ():
        wrong = one.wrong(change)
        explained = [same(out, outputs(wrong, given)) for _, given, out, _ in off]
        if 2 * sum(explained) > len(off):
            return f"not right: {message}."
    for words, given, out, _ in off:
        return first_difference(flat(one.reference(**given)), flat(out), words)
    for words, given, out, changed in tried:
        odd = [
            x.dtype for x in flat(out) if x.dtype.kind == "f" and x.dtype != np.float32
        ]
        if changed:
            return f"the values are right, but your code changed {changed[0]}, {words}."
        if framework and odd and any(x.dtype.kind == "f" for x in flat(given)):
            return f"float32 comes in, {odd[0]} comes out, {words}."
    return ""


def first_difference(expected, found, words):
    """In words, where two lists of arrays that are not the same differ first."""
    if len(expected) != len(found):
        return f"expected {len(expected)} output, got {len(found)}, {words}."
    pairs = zip(expected, found, strict=True)
    x, y = next((x, y) for x, y in pairs if not same(x, y))
    if x.shape != y.shape:
        return f"expected shape {x.shape}, got {y.shape}, {words}."
    away = ~np.isclose(x, y, rtol=1e-4, atol=1e-4)
    place = tuple(int(i) for i in np.argwhere(away)[0])
    return (
        f"not right, {words}: at {list(place)} expected {x[place]:.4g}, got "
        f"{y[place]:.4g}; {away.mean():.0%} of the entries differ."
    )


def outputs(function, given):
    """The outputs of a reference with a mistake, which may not fit a case."""
    with np.errstate(all="ignore"):
        try:
            return function(**given)
        except Exception:  # then it explains nothing
            return []


def flat(out):
    """All arrays of nested lists and dictionaries, in order; functions are left out."""
    if isinstance(out, dict):
        out = [*out.values()]
    if isinstance(out, list | tuple):
        return [array for one in out for array in flat(one)]
    return [] if callable(out) or out is None else [as_numpy(out)]


def same(one, other):
    """Whether all arrays are equal but for rounding; NaN is NaN."""
    one, other = flat(one), flat(other)
    return len(one) == len(other) and all(
        x.shape == y.shape and np.allclose(x, y, rtol=1e-4, atol=1e-4, equal_nan=True)
        for x, y in zip(one, other, strict=True)
    )


def framework_of(yours):
    """``torch`` or ``jax``, by the names that the reader's code can see, or None."""
    names = getattr(yours, "__globals__", {})
    found = [name for name in ("torch", "jax") if name in names and name in sys.modules]
    return found[0] if found else None


def to(framework, x):
    """NumPy's arrays, also in lists, as those of a framework."""
    if isinstance(x, list | tuple):
        return type(x)(to(framework, one) for one in x)
    if not isinstance(x, np.ndarray):
        return x
    x = x.astype(np.float32) if x.dtype.kind == "f" else x.copy()
    if framework == "torch":
        return sys.modules["torch"].from_numpy(x)
    return sys.modules["jax"].numpy.asarray(x) if framework == "jax" else x


def gradient_gap(one, yours, framework, given, step=1e-6):
    """Relative gap of a derivative to that of the reference, in a random direction."""
    rng = np.random.default_rng(0)
    floats = {k: x for k, x in given.items() if getattr(x, "dtype", None) == np.float64}
    ways = {key: rng.normal(size=x.shape) for key, x in floats.items()}
    heights = [rng.normal(size=x.shape) for x in flat(one.reference(**given))]

    def total(step):
        moved = {key: x + step * ways[key] for key, x in floats.items()}
        out = flat(one.reference(**given | moved))
        return sum((x * height).sum() for x, height in zip(out, heights, strict=True))

    def arrays(moved):
        out = yours(**{key: to(framework, x) for key, x in given.items()} | moved)
        return tuple(out) if isinstance(out, list | tuple) else (out,)

    module = sys.modules[framework]
    vjp = module.func.vjp if framework == "torch" else module.vjp
    _, pull = vjp(arrays, {key: to(framework, x) for key, x in floats.items()})
    (found,) = pull(tuple(to(framework, height) for height in heights))
    found = sum((as_numpy(found[key]) * way).sum() for key, way in ways.items())
    wanted = (total(step) - total(-step)) / (2 * step)
    return abs(found - wanted) / max(abs(wanted), 1)


def said_by(error, yours, words):
    """An error of the reader's code, with its line."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(yours, "__code__", None)
    own = [frame for frame in frames if code and frame.filename == code.co_filename]
    line = (own or frames)[-1]
    said = (str(error).splitlines() or [""])[0]
    return (
        f"your code raised {type(error).__name__}, {words}, in line {line.lineno}: "
        f"`{line.line}`\n{said}"
    )
