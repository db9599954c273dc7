"""Nested lists and dictionaries of arrays: whether they are equal, copies of them."""

import numpy as np

from helpers.weights import as_numpy


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
