"""Refuse sizes, rates and names that make no sense, with one sentence."""

from numbers import Integral


def check_sizes(**sizes):
    """Hold every size to a whole number of at least 1.

    Raises
    ------
    ValueError
        Naming the first size that is not, and its value.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise ValueError(f"expected {name} to be a whole number >= 1, got {size!r}")


def head_size(m, n_heads):
    """Size ``d`` of one head when ``m`` features are split into ``n_heads``.

    Raises
    ------
    ValueError
        If ``m`` or ``n_heads`` is not a positive whole number, or ``m`` does not split.
    """
    check_sizes(m=m, n_heads=n_heads)
    if m % n_heads:
        raise ValueError(
            f"m = {m} does not split into {n_heads} heads "
            f"({m} % {n_heads} = {m % n_heads})"
        )
    return m // n_heads


def check_dropout(rate):
    """Return ``rate`` if it lies in [0, 1).

    Raises
    ------
    ValueError
        If it does not: at 1 nothing would be left.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"expected a dropout rate in [0, 1), got {rate!r}")
    return rate


def check_length(length, max_length):
    """Hold a sequence to the number of positions that a table has.

    Raises
    ------
    ValueError
        If the sequence is longer than the table.
    """
    if length > max_length:
        raise ValueError(
            f"the sequence has {length} positions, the table only {max_length}: "
            "build the model with a larger max_length"
        )


def choose(name, options, what):
    """Look ``name`` up in a dictionary of options.

    Raises
    ------
    ValueError
        If there is no such option; the message lists those there are.
    """
    if name not in options:
        known = ", ".join(map(repr, options))
        raise ValueError(f"unknown {what} {name!r}: expected one of {known}")
    return options[name]


def check_data(data, what="data"):
    """Hold arrays to one common, positive number of examples, and return it.

    Raises
    ------
    ValueError
        If there is no array or no example, or the arrays are of different length.
    """
    lengths = [len(array) for array in data]
    if not lengths or not lengths[0] or len(set(lengths)) > 1:
        raise ValueError(
            f"expected the arrays of the {what} to be equally long and not empty, "
            f"got {lengths} examples"
        )
    return lengths[0]


def check_batches(index, settings, rows):
    """Hold the batches of an epoch to the settings and to the rows that there are.

    Parameters
    ----------
    index : integer array ``n b …``
        Rows of the data: ``n`` updates of ``b`` examples.
    settings : helpers.settings.Settings
    rows : int
        Rows of the data.

    Raises
    ------
    ValueError
        If the shape is another, or a row does not exist.
    """
    expected = settings.updates_per_epoch, settings.batch_size
    if index.shape[:2] != expected or index.dtype.kind not in "iu":
        raise ValueError(
            f"expected batches n b … of whole numbers with n, b = {expected}, "
            f"got {index.dtype} {index.shape}"
        )
    if index.min() < 0 or index.max() >= rows:
        raise ValueError(
            f"expected rows from 0 to {rows - 1}, got {index.min()} to {index.max()}"
        )
    return index
