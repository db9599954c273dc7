"""Check the shape of an array of any framework; fit a mask to the weights."""

import numpy as np


def as_numpy(x):
    """Copy an array of any framework to NumPy, from any device and without gradient.

    Parameters
    ----------
    x : array of NumPy, JAX or PyTorch, or a nested list of numbers
        Any shape, any dtype; bfloat16, which NumPy lacks, arrives as float32.

    Returns
    -------
    numpy.ndarray
        Of the same shape.
    """
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    x = np.asarray(x).copy()
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def check_shape(x, axes, **sizes):
    """Hold the shape of ``x`` to named axes and return the size of each.

    Parameters
    ----------
    x : array of any framework
        Anything with a ``shape``.
    axes : str
        One name per axis, in order: ``"b h q k"``. A name used twice means that both
        axes are equally long.
    **sizes : int
        The sizes that are known: ``h=4``.

    Returns
    -------
    dict of str to int
        The size of every named axis.

    Raises
    ------
    ValueError
        If the number of axes or the size of one differs; the message names the axis
        and both sizes. Also if a size is given for an axis that ``axes`` lacks.
    """
    names, shape = axes.split(), tuple(x.shape)
    unknown = sorted(set(sizes) - set(names))
    if unknown:
        raise ValueError(f"no axis {unknown[0]!r} in {axes!r}")
    if len(names) != len(shape):
        raise ValueError(
            f"expected {len(names)} axes ({axes}), got {len(shape)}: shape {shape}"
        )
    found = dict(sizes)
    for place, (name, size) in enumerate(zip(names, shape, strict=True)):
        if found.setdefault(name, size) != size:
            raise ValueError(
                f"axis {name!r} (number {place} of {axes!r}): "
                f"expected {found[name]}, got {size}; shape {shape}"
            )
    return found


def expand_mask(mask, shape):
    """Give a mask the number of axes it needs to broadcast against the weights.

    Parameters
    ----------
    mask : boolean array of any framework
        Shape ``q k``, ``b q k`` or ``b h q k``; True means "may look". An axis of
        size 1 stretches.
    shape : tuple of int
        Shape of the weights, ``... q k``.

    Returns
    -------
    boolean array of the same framework
        A mask ``b q k`` for weights ``b h q k`` becomes ``b 1 q k``; others come back
        as they are.

    Raises
    ------
    TypeError
        If the mask is not boolean; a number could mean "look" or "add", so it is not
        guessed.
    ValueError
        If the mask does not fit the weights.
    """
    no_array = f"a Python {type(mask).__name__}"
    dtype = str(getattr(mask, "dtype", no_array)).removeprefix("torch.")
    if dtype != "bool":
        raise TypeError(
            f"expected a mask of dtype bool where True means 'may look', got {dtype}: "
            "if 1 means 'may look', pass mask == 1; if -inf means 'hidden', mask == 0"
        )
    shape, given = tuple(shape), tuple(mask.shape)
    if len(given) == 3 and len(shape) == 4:
        mask = mask[:, None]  # b 1 q k
    padded = (1,) * (len(shape) - len(mask.shape)) + tuple(mask.shape)
    fits = len(padded) == len(shape) and len(given) >= 2
    if not fits or any(a not in (1, n) for a, n in zip(padded, shape, strict=True)):
        raise ValueError(
            f"expected a mask q k, b q k or b h q k that fits weights of shape {shape}, "
            f"got a mask of shape {given}"
        )
    return mask


def flat_product(x, w, *_, **__):
    """Product with a matrix: ``... i, i o -> ... o``, as a product of two matrices.

    All axes of ``x`` but the last become one. XLA's code for CPUs is fastest in this
    form, forwards and backwards; further arguments, as ``jax.lax.dot_general`` has them,
    are ignored.
    """
    return (x.reshape(-1, x.shape[-1]) @ w).reshape(*x.shape[:-1], w.shape[-1])
