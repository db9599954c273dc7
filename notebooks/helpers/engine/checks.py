"""Check sizes, settings, data and labels.

Each check raises ValueError before any work, and names what was expected and what came.
A loss function says how its data are checked: ``loss.check_labels`` is one of
``check_classes`` and ``check_texts``, or another function like them.
"""

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
    """Raise an error unless every size is a whole number of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise ValueError(f"expected {name} to be a whole number >= 1, got {size!r}")


def choose(name, options, what):
    """Look ``name`` up in a dictionary of options."""
    if name not in options:
        known = ", ".join(map(repr, options))
        raise ValueError(f"unknown {what} {name!r}: expected one of {known}")
    return options[name]


def check_fields(settings):
    """Raise an error unless every field of a data class is valid, by name or type."""
    for field in fields(settings):
        name = field.name.removeprefix("input_").removeprefix("least_")
        kind, what, low, high = RULES.get(name) or RULES[field.type]
        value = getattr(settings, field.name)
        truth = isinstance(value, bool) and kind is not bool
        valid = isinstance(value, kind) and not truth
        if not valid or not (kind is str or low <= value <= high):
            raise ValueError(f"expected {field.name} to be {what}, got {value!r}")


def check_fit(model, modules, loss_fn, data, settings, batches, validation):
    """Check that model, data, settings and batches fit each other, before any work."""
    check_model(modules, settings)
    check_examples(model, loss_fn, data)
    settings.check_data(data)
    check_batches(batches(0), settings, len(data[0]))
    if validation is not None:
        check_examples(model, loss_fn, validation, "validation data")


def check_model(modules, settings):
    """Check that no module contradicts the settings.

    Compared is what a module keeps under the name of an argument of the model, such as
    ``n_heads``; of dropout its rate.
    """
    for module in modules:
        for name, expected in getattr(settings, "model", {}).items():
            found = getattr(module, name, expected)
            found = getattr(found, "rate", getattr(found, "p", found))
            if isinstance(found, int | float) and found != expected:
                raise ValueError(
                    f"expected a model with {name} = {expected!r}, as the settings say, "
                    f"got one with {name} = {found!r}"
                )


def check_data(data, what="data"):
    """Check that data are NumPy arrays in a tuple, equally long, not empty, finite."""
    kinds = [*map(type, data)] if isinstance(data, tuple | list) else type(data)
    if isinstance(kinds, type) or not all(issubclass(k, np.ndarray) for k in kinds):
        raise ValueError(f"expected the {what} as tuple of NumPy arrays, got {kinds}")
    lengths = [len(array) for array in data]
    if not lengths or not lengths[0] or len(set(lengths)) > 1:
        raise ValueError(
            f"expected equally long arrays of {what}, not empty, got {lengths} examples"
        )
    for place, array in enumerate(data):
        if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            row = int(np.argwhere(~finite)[0][0])
            raise ValueError(
                f"expected the {what} to be finite, got {array[~finite][0]} in "
                f"example {row} of array {place}"
            )


def check_examples(model, loss_fn, data, what="data"):
    """Check data, and their labels as the loss function says, if it does."""
    check_data(data, what)
    if check := getattr(loss_fn, "check_labels", None):
        check(model, data, what)


def check_classes(model, data, what):
    """Check that labels are classes that the model's last layer has outputs for."""
    if len(data) != 2:
        raise ValueError(f"expected inputs and labels as {what}, got {len(data)}")
    inputs, labels = data
    expected = inputs.shape[: 1 if inputs.ndim == 4 else -1]  # one a picture
    if labels.shape != expected or labels.dtype.kind not in "iu":
        raise ValueError(
            f"expected the labels of the {what} to be whole numbers of shape "
            f"{expected}, got {labels.dtype} {labels.shape}"
        )
    c = getattr(getattr(model, "output", None), "out_features", labels.max() + 1)
    if labels.min() < 0 or labels.max() >= c:
        raise ValueError(
            f"expected labels from 0 to {c - 1} for {c} classes, got "
            f"{labels.min()} to {labels.max()} in the {what}"
        )


def check_texts(model, data, what):
    """Check that texts are tokens ``b s`` that a model knows, padded with -1 at the end."""
    target = getattr(model, "target", model)
    known = [(target.embed.num_embeddings, target.max_length + 1)]  # the last: a label
    if target is not model:
        source = model.embed or target.embed
        known.insert(0, (source.num_embeddings, target.max_length))
    if len(data) != len(known):
        raise ValueError(f"expected {len(known)} arrays of texts, got {len(data)}")
    for texts, (n_tokens, longest) in zip(data, known, strict=True):
        if texts.ndim != 2 or texts.dtype.kind not in "iu" or texts.shape[1] < 2:
            raise ValueError(
                f"expected texts b s of whole numbers in the {what}, two or more each, "
                f"got {texts.dtype} {texts.shape}"
            )
        if texts.shape[1] > longest:
            raise ValueError(
                f"expected at most {longest} tokens for this model, got "
                f"{texts.shape[1]} in the {what}"
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


def check_shares(settings, n):
    """Check that a batch divides evenly among devices or processes."""
    if settings.batch_size % n:
        raise ValueError(
            f"expected batch_size to be a multiple of {n}, the number of devices or "
            f"processes that share it, got {settings.batch_size}"
        )


def check_batches(index, settings, rows):
    """Check the batches of an epoch, rows ``n b …`` of the data, and return them."""
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
