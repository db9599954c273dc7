"""Check the shape of an array of any framework; copy it to NumPy."""

import numpy as np


def as_numpy(x):
    """Copy an array of any framework, or a nested list, to NumPy; bfloat16 as float32."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    x = np.asarray(x).copy()
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def check_shape(x, axes, **sizes):
    """Check the shape of ``x`` against named axes and return the size of each.

    ``axes`` has one name per axis, in order: ``"b h q k"``. A name used twice means that
    both axes are equally long; ``sizes`` are those that are known: ``h=4``.
    """
    names, shape = axes.split(), tuple(x.shape)
    if unknown := sorted(set(sizes) - set(names)):
        raise ValueError(f"no axis {unknown[0]!r} in {axes!r}")
    if len(names) != len(shape):
        raise ValueError(f"expected axes {axes}, got shape {shape}")
    found = dict(sizes)
    for place, (name, size) in enumerate(zip(names, shape, strict=True)):
        if found.setdefault(name, size) != size:
            raise ValueError(
                f"axis {name!r} (number {place} of {axes!r}): "
                f"expected {found[name]}, got {size}; shape {shape}"
            )
    return found


def with_integers(x, dtype):
    """An array whose integers, of whatever dtype, get this one; not of pictures."""
    return x.astype(dtype) if x.dtype.kind in "iu" and x.ndim < 4 else x
