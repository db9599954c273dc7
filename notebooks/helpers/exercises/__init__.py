"""Exercises from a blank cell: ``check("attention.heads", my_heads)`` names mistakes.

An exercise has cases, a reference in NumPy, and known mistakes as changes of its
source, ``old -> new | what is wrong``. Equal outputs, equal mistakes.
"""

import contextlib
import importlib
import inspect
import io
import textwrap
import traceback
from functools import partial
from itertools import combinations
from time import perf_counter

import numpy as np

from helpers.weights import as_numpy

FILES = "parts", "tasks", "training"
KNOWN = {}  # exercises by name
BLANK = len((lambda: None).__code__.co_code) + 4  # bytes of what is not yet written
NAN = ": NaN comes from 0/0, inf - inf or a root of 0 or less"
STAY = "NumPy, `.data` and changes in place end it: stay in torch or jax.numpy."
KINDS = {"b": "bool", "i": "int", "f": "float32"}  # what should come out
# Mistakes in all scores, all losses of a softmax, all rotary positions
SCORES = """/ q.shape[-1] ** 0.5 -> | the scores are not divided by the root of d
** 0.5 -> | you divide by d, not by its root
scores) -> scores, -2) | your softmax runs over the queries: look at its axis
scores) -> scores + 0 * np.exp(scores)) | NaN: exp overflows; subtract the largest"""
LOSS = """log_p[ -> np.exp(log_p)[ | you average probabilities: average their logarithms
-np.mean -> np.mean | the sign is wrong: the logarithm of a probability is negative
log_p[ -> np.log(np.exp(log_p))[ | infinite: do not take the log of a rounded softmax
log_p[ -> (log_p + 0 * np.exp(abs(logits)))[ | NaN: exp overflows; subtract the largest
max(logits -> max(np.exp(log_softmax(logits)) | softmax twice: the loss takes logits"""
ROTATION = """angle = -> angle = - | it turns backwards: a sign is wrong
cos, sin = -> sin, cos = | sine and cosine are exchanged: position 0 does not turn
a * cos - b * sin -> a * cos + b * sin | a sign is wrong: the lengths change
(-np -> (0 * np | all pairs turn at one speed: each has its own
/ half) -> / half / 2) | the exponent is -i / (d/2): count d/2 pairs, not d features"""


def log_softmax(x, axis=-1):
    x = x - np.max(x, axis=axis, keepdims=True)
    return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))


class Exercise:
    """Decorator of a NumPy function that is right: cases to try, known mistakes."""

    def __init__(self, name, cases, mistakes, smooth=True):  # cases of a generator
        KNOWN[name], self.cases, self.smooth = self, cases, smooth
        lines = [line.split(" | ") for line in mistakes.strip().splitlines()]
        self.mistakes = {change.strip(): message for change, message in lines}

    def __call__(self, reference):
        self.reference = reference
        return reference

    def source(self, change):
        """The source of the reference with a mistake."""
        source = "def " + inspect.getsource(self.reference).partition("def ")[2]
        for old, new in (one.split(" ->") for one in change.split(" & ")):
            source = source.replace(old, new.strip())
        return source

    def outputs(self, change, cases):
        """What the reference with a mistake returns; () where it raises an error."""
        names = {**self.reference.__globals__}
        with contextlib.suppress(SyntaxError):  # of two that do not fit together
            exec(self.source(change), names)
        for _, given, *_ in cases:
            out = ()
            with np.errstate(all="ignore"), contextlib.suppress(Exception):
                out = names[self.reference.__name__](**copied(given, np))
            yield out


def check(name, yours):
    """Print whether ``yours`` (gradient, too) is right, or what is not; True if right."""
    for file in FILES:
        importlib.import_module(f"helpers.exercises.{file}")
    if name not in KNOWN:
        raise ValueError(f"no exercise {name!r}; expected one of {', '.join(KNOWN)}")
    own = inspect.unwrap(getattr(yours, "func", yours))  # what jit or partial wraps
    seen = filter(inspect.ismodule, getattr(own, "__globals__", {}).values())
    tops = {module.__name__.partition(".")[0] for module in seen} & {"torch", "jax"}
    framework = importlib.import_module(max(tops, default="numpy"))
    exactly = getattr(framework, "default_matmul_precision", contextlib.nullcontext)
    with contextlib.redirect_stdout(io.StringIO()) as printed, exactly("highest"):
        said = verdict(KNOWN[name], yours, own, framework)
    for line in f"{name}: {said}".splitlines():
        print(textwrap.fill(line, 88))
    if lines := printed.getvalue().splitlines():
        print("What your code printed last:", *lines[-5:], sep="\n")
    return said.startswith("right") or None  # which shows nothing below a cell


def verdict(one, yours, own, framework):
    """What ``check`` prints; ``own`` is the reader's function without wrappers."""
    if misfit := not_a_function_of(one.reference, yours, own):
        return misfit
    tried, start, smooth = [], perf_counter(), one.smooth and framework != np
    names = inspect.signature(one.reference).parameters
    for seed in range(3):
        rng = np.random.default_rng(seed)
        for words, *values in one.cases(rng, rng.standard_normal):
            given = dict(zip(names, values, strict=True))
            theirs, expected = copied(given, framework), one.reference(**given)
            try:
                out = yours(**theirs)
            except Exception as error:  # whatever the reader's code raises
                return f"your code raised {said_by(error, own, words, given)}"
            if odd := not_an_answer(out, expected, own, framework):
                return odd
            changed = [key for key, x in given.items() if not same(theirs[key], x)]
            tried.append((words, given, expected, out, changed))
        if perf_counter() - start > 5:  # a slow function is tried with one seed
            break
    if off := [case for case in tried if not same(case[2], case[3])]:
        if same(off[0][3], yours(**copied(off[0][1], framework))):
            return f"not right: {what_is_wrong(one, off)}."
        return "two equal calls give two answers: is dropout on, or a seed missing?"
    for words, given, *_, changed in tried[: len(tried) // (seed + 1)]:
        but = f"your code changed {changed[0]}, {words}." if changed else ""
        but = but or (smooth and wrong_slope(one, yours, own, framework, words, given))
        if but:
            return f"the values are right, but {but}"
    slow = "" if seed == 2 else " of one seed (it is slow)"
    cases = "; ".join(dict.fromkeys(words for words, *_ in tried))
    return f"right, in {len(tried)} cases{slow}: {cases}."


def not_a_function_of(reference, yours, own):
    """What ``yours`` is instead of a function of these parameters, in words, or ""."""
    names = [*inspect.signature(reference).parameters]
    got = textwrap.shorten(repr(own), 60, placeholder=" …")
    with contextlib.suppress(TypeError, ValueError):
        if inspect.isroutine(own):
            got = f"{own.__name__}{inspect.signature(yours)}"
            inspect.signature(yours).bind(**dict.fromkeys(names))
            return ""
    return f"expected a function of ({', '.join(names)}), got {got}."


def not_an_answer(out, expected, own, framework):
    """Why what comes out cannot be compared, in words, or ""."""
    if out is None and len(own.__code__.co_code) > BLANK:
        return "your function returns None: is its `return` missing?"
    if any(x is None or x is ... for x in leaves(out)):
        return f"not yet{' all' * isinstance(out, tuple | list)} written. Your turn."
    array = {"torch": "Tensor", "jax": "Array"}.get(framework.__name__, "ndarray")
    for x, wanted in zip(leaves(out), leaves(expected), strict=False):
        exact = framework != np and isinstance(wanted, np.ndarray | np.generic)
        others = () if exact else (int, float, np.ndarray, np.generic)
        if not isinstance(x, (getattr(framework, array), *others)):
            kind = f"{framework.__name__}.{array} throughout" if exact else "numbers"
            why = ": NumPy ends the gradient" * isinstance(x, np.ndarray | np.generic)
            return f"expected {kind}, got {type(x).__name__}{why}."
        if exact and KINDS[wanted.dtype.kind] not in str(x.dtype):
            return f"expected {KINDS[wanted.dtype.kind]}, got {x.dtype}."
    return ""


def what_is_wrong(one, off):
    """One or two known mistakes that explain what is wrong, or the first difference."""
    answers = [case[3] for case in off]
    known = [k for k, x in one.mistakes.items() if "NaN" not in x or has_nan(answers)]
    fits = {change: [*map(same, answers, one.outputs(change, off))] for change in known}
    best = max(known, key=lambda change: sum(fits[change]))
    if fits[best][0] and 2 * sum(fits[best]) > len(off):  # not all: ties may differ
        return one.mistakes[best]
    for two in combinations(known, 2):
        if all(map(same, answers, one.outputs(" & ".join(two), off))):
            return "; and ".join(one.mistakes[change] for change in two)
    words, given, expected, found, _ = off[0]
    expected, found = flat(expected), flat(found)
    if len(expected) != len(found):
        return f"expected {len(expected)} outputs, got {len(found)}, {words}"
    pairs = enumerate(zip(expected, found, strict=True))
    n, (x, y) = next((n, pair) for n, pair in pairs if not same(*pair))
    words = f"output {n + 1} of {len(found)}, {words}" if len(found) > 1 else words
    if x.shape != y.shape:
        return f"expected shape {x.shape}, got {y.shape}, {words}"
    far = ~near(x, y)
    place = tuple(int(i) for i in np.argwhere(far)[0])
    at, share = (f"at {[*place]} ", f"; {far.mean():.0%} differ") if place else ("", "")
    why = ": a NaN of the input has come through" if has_nan(given) else NAN
    x, y = float(x[place]) + 0, float(y[place]) + 0  # not -0
    x, y = (f"{z:,.0f}" if abs(z) < 1e15 and z % 1 == 0 else f"{z:.4g}" for z in (x, y))
    return f"{at}expected {x}, got {y}, {words}{share}{why * (y == 'nan')}"


def wrong_slope(one, yours, own, framework, words, given):
    """What is wrong with the derivative in a random direction, in words, or ""."""

    def along(function, given, ways, t):  # one number for all outputs
        out = function(**given | {k: given[k] + t * way for k, way in ways.items()})
        return sum((x * x + x).sum() for x in leaves(out))

    new, step = np.random.default_rng(0).standard_normal, 1e-6
    ways = {k: new(x.shape) for k, x in given.items() if getattr(x, "dtype", 0) == "f8"}
    low, high = (along(one.reference, given, ways, t) for t in (-step, step))
    wanted, found = (high - low) / (2 * step), None
    line = partial(along, yours, copied(given, framework), copied(ways, framework))
    slope = getattr(framework, "func", framework).grad(line)
    zero = getattr(framework, "numpy", framework).zeros(())
    try:
        with contextlib.suppress(Exception):  # compiled, if no branch hangs on a value
            found = framework.jit(slope)(zero) if framework.__name__ == "jax" else None
        found = float(slope(zero) if found is None else found)
    except Exception as error:  # such as NumPy in JAX
        return f"the gradient raised {said_by(error, own, words, given)}\n{STAY}"
    if abs(found - wanted) < 1e-2 * max(abs(wanted), 1):
        return ""
    why = ": is it detached?" if found == 0 else NAN if np.isnan(found) else ""
    return f"not the gradient: slope {found:.4g} instead of {wanted:.4g}, {words}{why}"


def said_by(error, own, words, given):
    """An error of the reader's code: its line, its text, and what went in."""
    names, walk = getattr(own, "__globals__", None), traceback.walk_tb
    steps = [at for at in walk(error.__traceback__) if at[0].f_globals is names]
    lines = traceback.StackSummary.extract(iter(steps))
    line = f", in line {lines[-1].lineno}: `{lines[-1].line}`" if lines else ""
    shapes = {key: getattr(x, "shape", x) for key, x in given.items()}
    shown = [f"{k} {'(a function)' if callable(x) else x}" for k, x in shapes.items()]
    said = textwrap.shorten(str(error), 200, placeholder=" …")
    return f"{type(error).__name__}, {words}{line}\n{said}\nShapes: {', '.join(shown)}"


def leaves(x):
    """All that nested lists and dictionaries hold, in order."""
    x = [*x.values()] if isinstance(x, dict) else x
    if isinstance(x, list | tuple):
        return [leaf for part in x for leaf in leaves(part)]
    return [x]


def flat(x):
    """All arrays in ``x``, of any framework, as NumPy's; functions, None are left out."""
    return [as_numpy(one) for one in leaves(x) if one is not None and not callable(one)]


def has_nan(x):
    """Whether any array in ``x`` has NaN."""
    return any(np.isnan(one).any() for one in flat(x))


def near(x, y):
    """Where two NumPy arrays are equal but for rounding, integers exactly; NaN is NaN."""
    rounded = 1e-4 * ("f" in x.dtype.kind + y.dtype.kind)
    return np.isclose(x, y, rtol=rounded, atol=rounded, equal_nan=True)


def same(one, other):
    """Whether all arrays have equal shapes, and are ``near``."""
    one, other = flat(one), flat(other)
    return len(one) == len(other) and all(
        x.shape == y.shape and near(x, y).all() for x, y in zip(one, other, strict=True)
    )


def copied(x, framework):
    """A copy of ``x`` in which NumPy's arrays are the framework's, and float32."""
    if isinstance(x, dict):
        return {key: copied(one, framework) for key, one in x.items()}
    if not isinstance(x, np.ndarray):
        return [*x] if isinstance(x, list) else x
    x = x.astype(np.float32 if x.dtype.kind == "f" else x.dtype)
    return getattr(framework, "numpy", framework).asarray(x)
