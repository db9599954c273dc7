"""Refuse sizes, rates and names that make no sense, with one sentence."""

from dataclasses import fields
from numbers import Integral, Real

import numpy as np


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


def check_types(settings):
    """Hold every field of a data class to its type: int, float, bool or str.

    Whole numbers pass as floats; a truth value passes as neither.

    Raises
    ------
    ValueError
        Naming the first field that is of another type, and its value.
    """
    kinds = {int: Integral, float: Real, bool: bool, str: str}
    names = {
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        str: "a text",
    }
    for field in fields(settings):
        if field.type not in kinds:
            continue
        value = getattr(settings, field.name)
        truth = isinstance(value, bool) and field.type is not bool
        if truth or not isinstance(value, kinds[field.type]):
            raise ValueError(
                f"expected {field.name} to be {names[field.type]}, got {value!r}"
            )


def check_fit(model, loss_fn, data, settings, batches, validation):
    """Hold all that a training is made of to each other, before any work.

    Raises
    ------
    ValueError
        Naming what does not fit, with what was expected and what came.
    """
    check_model(model, settings)
    check_data(data)
    settings.check_data(data)
    check_labels(model, loss_fn, data)
    check_batches(batches(0), settings, len(data[0]))
    if validation is not None:
        check_data(validation, "validation data")
        check_labels(model, loss_fn, validation, "validation data")


def check_data(data, what="data"):
    """Hold arrays to one common, positive number of examples, and to finite numbers.

    Raises
    ------
    ValueError
        If there is no array or no example, the arrays are of different length, or a
        number is NaN or infinite.
    """
    lengths = [len(array) for array in data]
    if not lengths or not lengths[0] or len(set(lengths)) > 1:
        raise ValueError(
            f"expected the arrays of the {what} to be equally long and not empty, "
            f"got {lengths} examples"
        )
    for place, array in enumerate(data):
        if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            row = int(np.argwhere(~finite)[0][0])
            raise ValueError(
                f"expected the {what} to be finite, got {array[~finite][0]} in "
                f"example {row} of array {place}"
            )


def check_labels(model, loss_fn, data, what="data"):
    """Hold labels to the classes that a model puts out.

    Only for a loss function called ``cross_entropy``, whose data are inputs ``b … i``
    and labels ``b …``, and a model whose last layer is called ``output``.

    Raises
    ------
    ValueError
        If shape or dtype are others, or a label is no class.
    """
    c = getattr(getattr(model, "output", None), "out_features", None)
    if getattr(loss_fn, "__name__", "") != "cross_entropy" or not c or len(data) != 2:
        return
    inputs, labels = data
    if labels.shape != inputs.shape[:-1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"expected the labels of the {what} to be whole numbers of shape "
            f"{inputs.shape[:-1]}, got {labels.dtype} {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= c:
        raise ValueError(
            f"expected labels from 0 to {c - 1} for {c} classes, got "
            f"{labels.min()} to {labels.max()} in the {what}"
        )


def check_model(model, settings):
    """Hold a ``Predictor`` to the sizes in the settings it is trained with.

    Raises
    ------
    ValueError
        Naming the first that differs, with both values.
    """
    if type(model).__name__ != "Predictor" or not hasattr(settings, "model"):
        return
    block, positions = model.encoder.blocks[0], type(model.positions).__name__
    found = {
        "n_inputs": model.embed.in_features,
        "m": model.embed.out_features,
        "n_outputs": model.output.out_features,
        "n_blocks": len(model.encoder.blocks),
        "n_heads": block.attention.n_heads,
        "f": block.ffn.linear1.out_features,
        "dropout": getattr(block.dropout, "p", getattr(block.dropout, "rate", None)),
        "norm_first": block.norm_first,
        "positions": positions.removesuffix("Positions").replace("NoneType", "none"),
    }
    for name, expected in settings.model.items():
        got = found.get(name, expected)
        if str(got).lower() != str(expected).lower():
            raise ValueError(
                f"expected a model with {name} = {expected!r}, as the settings say, "
                f"got one with {name} = {got!r}"
            )


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
