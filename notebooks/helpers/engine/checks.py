"""Check sizes, settings, data and labels; errors name both values."""

from dataclasses import fields
from math import inf
from numbers import Integral, Real

import numpy as np

TINY, LARGEST = np.finfo(np.float32).tiny.item(), np.finfo(np.float32).max.item()
RULES = {  # by name or else by type: kind, description, least and largest value
    "seed": (Integral, "a whole number >= 0", 0, inf),
    "max_grad_norm": (Real, "a number above 0", TINY, inf),
    "dropout": (Real, "a number in [0, 1)", 0, np.nextafter(1, 0)),
    "accuracy": (Real, "a number in [0, 1]", 0, 1),
    "gain": (Real, "a number in [0, 1]", 0, 1),
    int: (Integral, "a whole number >= 1", 1, inf),
    float: (Real, "a number above 0 and finite", TINY, LARGEST),
    bool: (bool, "True or False", False, True),
    str: (str, "a text", None, None),
}


def check_sizes(**sizes):
    """Raise an error unless every size is a whole number of at least 1.

    Raises
    ------
    ValueError
        Naming the first size that is not, and its value.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise ValueError(f"expected {name} to be a whole number >= 1, got {size!r}")


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


def check_fields(settings):
    """Raise an error unless every field of a data class is valid, by name or type.

    Raises
    ------
    ValueError
        Naming the first invalid field, what was expected, and its value.
    """
    for field in fields(settings):
        name = field.name.removeprefix("input_").removeprefix("least_")
        kind, what, low, high = RULES.get(name) or RULES[field.type]
        value = getattr(settings, field.name)
        truth = isinstance(value, bool) and kind is not bool
        valid = isinstance(value, kind) and not truth
        if not valid or not (kind is str or low <= value <= high):
            raise ValueError(f"expected {field.name} to be {what}, got {value!r}")


def check_fit(model, loss_fn, data, settings, batches, validation):
    """Check that model, data, settings and batches fit each other, before any work.

    Raises
    ------
    ValueError
        Naming the first mismatch, with what was expected and what came.
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
    """Check that arrays are equally long, not empty, and finite.

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
    """Check that labels are classes that the model has outputs for.

    Only for a loss function called ``cross_entropy``, whose data are inputs ``b … i``
    and labels ``b …``, and a model whose last layer is called ``output``; and for one
    called ``next_token``, whose data are texts (``check_texts``).

    Raises
    ------
    ValueError
        If shape or dtype are others, or a label is no class.
    """
    if getattr(loss_fn, "__name__", "") == "next_token":
        rooms = room_for(model)
        if len(data) != len(rooms):
            raise ValueError(f"expected {len(rooms)} arrays of texts, got {len(data)}")
        for texts, (n_tokens, longest) in zip(data, rooms, strict=True):
            check_texts(texts, n_tokens, longest, what)
    c = getattr(getattr(model, "output", None), "out_features", None)
    if getattr(loss_fn, "__name__", "") != "cross_entropy" or not c or len(data) != 2:
        return
    inputs, labels = data
    expected = inputs.shape[: 1 if hasattr(model, "patch") else -1]  # one a picture
    if labels.shape != expected or labels.dtype.kind not in "iu":
        raise ValueError(
            f"expected the labels of the {what} to be whole numbers of shape "
            f"{expected}, got {labels.dtype} {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= c:
        raise ValueError(
            f"expected labels from 0 to {c - 1} for {c} classes, got "
            f"{labels.min()} to {labels.max()} in the {what}"
        )


def room_for(model):
    """Tokens and largest length of each array that trains a model on ``next_token``.

    The last array has one token more: the last token is no input, but a label.
    """
    target = getattr(model, "target", model)
    rooms = [(target.embed.num_embeddings, target.max_length + 1)]
    if target is not model:
        n_source = (model.embed or target.embed).num_embeddings
        rooms.insert(0, (n_source, target.max_length))
    return rooms


def check_texts(texts, n_tokens, longest, what="data"):
    """Check that texts are tokens ``b s`` that a model knows, padded with -1 at the end.

    Raises
    ------
    ValueError
        If shape or dtype are others, a token is unknown, a text too long or too short,
        or padding stands before a token.
    """
    if texts.ndim != 2 or texts.dtype.kind not in "iu" or not texts.shape[1] >= 2:
        raise ValueError(
            f"expected texts b s of whole numbers in the {what}, two or more each, got "
            f"{texts.dtype} {texts.shape}"
        )
    if texts.shape[1] > longest:
        raise ValueError(
            f"expected at most {longest} tokens for this model, got {texts.shape[1]} in "
            f"the {what}"
        )
    if texts.min() < -1 or texts.max() >= n_tokens:
        raise ValueError(
            f"expected tokens from 0 to {n_tokens - 1}, or -1 for padding, got "
            f"{texts.min()} to {texts.max()} in the {what}"
        )
    real = texts >= 0
    valid = real[:, :2].all(axis=1) & (real[:, 1:] <= real[:, :-1]).all(axis=1)
    if not valid.all():
        row = int(np.argmin(valid))
        raise ValueError(
            f"expected two tokens or more and padding only at the end, got "
            f"{texts[row].tolist()} in row {row} of the {what}"
        )


def check_model(model, settings):
    """Check that a model of ``helpers.jax`` and ``helpers.torch`` has the sizes in the settings.

    Raises
    ------
    ValueError
        Naming the first that differs, with both values.
    """
    kinds = "Predictor", "LanguageModel", "Translator", "VisionTransformer"
    if type(model).__name__ not in kinds or not hasattr(settings, "model"):
        return
    found = sizes_of(model)
    for name, expected in settings.model.items():
        got = found.get(name, expected)
        if str(got).lower() != str(expected).lower():
            raise ValueError(
                f"expected a model with {name} = {expected!r}, as the settings say, "
                f"got one with {name} = {got!r}"
            )


def sizes_of(model):
    """Sizes and choices that a model was made with, by the names of its arguments."""
    target = getattr(model, "target", model)
    blocks = (getattr(model, "encoder", None) or target.decoder).blocks
    block, positions = blocks[0], type(model.positions).__name__
    sizes = {
        "m": block.attention.qkv.in_features,
        "n_blocks": len(blocks),
        "n_heads": block.attention.n_heads,
        "f": block.ffn.linear1.out_features,
        "dropout": getattr(block.dropout, "p", getattr(block.dropout, "rate", None)),
        "norm_first": block.norm_first,
        "positions": positions.removesuffix("Positions").replace("NoneType", "none"),
    }
    if type(model).__name__ == "Predictor":
        n_inputs, n_outputs = model.embed.in_features, model.output.out_features
        return sizes | {"n_inputs": n_inputs, "n_outputs": n_outputs}
    if type(model).__name__ == "VisionTransformer":
        return sizes | {
            "image_size": model.shape[0], "n_channels": model.shape[-1],
            "n_outputs": model.output.out_features, "patch": model.patch,
            "pool": "mean" if model.token is None else "token",
        }  # fmt: skip
    n_target = target.embed.num_embeddings
    n_source = (model.embed or target.embed).num_embeddings
    return sizes | {
        "n_tokens": n_target, "n_source": n_source, "n_target": n_target,
        "max_length": target.max_length, "tied": target.output is None,
        "shared": model.embed is None,
    }  # fmt: skip


def check_shares(settings, n):
    """Check that a batch divides evenly among devices or processes.

    Raises
    ------
    ValueError
        With both numbers.
    """
    if settings.batch_size % n:
        raise ValueError(
            f"expected batch_size to be a multiple of {n}, the number of devices or "
            f"processes that share it, got {settings.batch_size}"
        )


def check_batches(index, settings, rows):
    """Check the batches of an epoch against the settings and the number of rows.

    Parameters
    ----------
    index : integer array ``n b …``
        Rows of the data: ``n`` updates of ``b`` examples.
    settings : helpers.engine.settings.Settings
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
