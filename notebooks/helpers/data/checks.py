"""What is asked of data, prompts, caches and sizes: one sentence for both frameworks."""

import numpy as np


def checked(model, data):
    """The arrays of NumPy in ``data``, in the form that both frameworks take.

    Whole numbers in the last one are labels or tokens: the model knows how many.
    """
    arrays = [np.asarray(x) for x in data]
    sizes, kinds = {x.shape[:1] for x in arrays}, {x.dtype.kind for x in arrays}
    masked = any(map(np.ma.isMaskedArray, data))
    if masked or len(sizes) > 1 or sizes & {(), (0,)} or kinds - {*"biuf"}:
        pairs = zip(data, arrays, strict=True)
        got = ", ".join(f"{type(x).__name__} {y.dtype} {y.shape}" for x, y in pairs)
        raise ValueError(f"expected arrays of numbers with as many rows, got {got}")
    model, y = getattr(model, "target", getattr(model, "trunk", model)), arrays[-1]
    layer = getattr(model, "output", None) or getattr(model, "embed", None)
    n = getattr(layer, "out_features", getattr(layer, "num_embeddings", 1))
    if y.dtype.kind in "iu" and n > 1 and not -1 <= y.min() <= y.max() < n:
        at = tuple(np.argwhere((y < -1) | (y >= n))[0])
        raise ValueError(f"expected labels below {n}, got {y[at]} in row {at[0]}")
    whole = [*arrays[:-1], y.astype(np.int32) if y.dtype.kind in "iu" else y]
    return [np.ascontiguousarray(x, x.dtype.newbyteorder("=")) for x in whole]


def suspect(arrays):
    """What in these arrays may have made a loss that is not finite, in words."""
    for n, x in enumerate(arrays):
        values = x.reshape(len(x), -1)
        finite = np.isfinite(values).all(axis=1)
        empty = ~values.any(axis=1) & (x.dtype == bool) & (x.ndim > 1)
        if not finite.all():
            return f"row {finite.argmin()} of array {n} is not finite"
        if empty.any():
            return f"row {empty.argmax()} of array {n} has nothing that is real"
    return "do labels count from 0? A lower rate, a longer warm-up or clipping help"


def check_finite(numbers, first, arrays, place="update"):
    """Stop at the first update, or batch, that has a number which is not finite."""
    for at, row in enumerate(zip(*numbers.values(), strict=True)):
        for name, x in zip(numbers, row, strict=True):
            if not np.isfinite(x):
                where = f"at {place} {first + at} the {name} is {x:.4g}"
                raise FloatingPointError(f"{where}: {suspect(arrays)}")


def as_columns(rows):
    """A float64 array for each name, the loss first; a row has numbers by name."""
    names = sorted(rows[0], key=lambda name: "loss" not in name)
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


def checked_prompts(model, prompts, length, temperature=1.0, top_k=None, top_p=None):
    """Prompts as lists of tokens, if the model knows them and has room to go on."""
    if not getattr(model, "causal", True):
        raise ValueError("expected a causal model, got one that sees what comes after")
    rows = [[int(token) for token in prompt] for prompt in prompts]
    lengths, n_tokens = [len(row) for row in rows], model.embed.num_embeddings
    if length < 1 or min(lengths) < 1 or max(lengths) + length > model.max_length:
        raise ValueError(
            f"expected prompts of 1 to {model.max_length - length} tokens, since "
            f"max_length = {model.max_length} and length = {length}, got {lengths}"
        )
    if not all(0 <= token < n_tokens for row in rows for token in row):
        raise ValueError(f"expected tokens from 0 to {n_tokens - 1}, got {rows}")
    whole = top_k is None or (hasattr(top_k, "__index__") and top_k >= 1)
    if not (temperature >= 1e-6 and whole and (top_p is None or 0 < top_p <= 1)):
        raise ValueError(
            "expected a temperature of 1e-6 or more, a whole top_k of 1 or more, and "
            f"0 < top_p <= 1, got {temperature}, {top_k}, {top_p}; top_k=1 is greedy"
        )
    return rows


def check_room(cache, n):
    """Raise an error if ``n`` more positions do not fit; compiled, they become NaN."""
    start, length = cache["start"], cache["blocks"][0][0].shape[2]
    if isinstance(start, int) and start + n > length:
        raise ValueError(f"expected a cache of {start + n} columns, got {length}")


def part_size(m, n_parts):
    """Size of each of ``n_parts`` equal parts of ``m`` features or heads."""
    if n_parts < 1 or m % n_parts:
        raise ValueError(f"{m} does not split into {n_parts} equal parts")
    return m // n_parts
