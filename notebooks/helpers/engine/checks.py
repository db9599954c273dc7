"""Check sizes, settings, data and labels: a ValueError says what was expected and came.

A loss function says how its data are checked: ``loss.check_labels`` is one of
``check_classes`` and ``check_texts``, or another function like them.
"""

from dataclasses import fields
from math import inf
from numbers import Integral, Real

import numpy as np

from helpers.engine.arguments import expect

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
        whole = isinstance(size, Integral) and not isinstance(size, bool)
        expect(whole and size >= 1, f"{name} to be a whole number >= 1", repr(size))


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
        valid = valid and (kind is str or low <= value <= high)
        expect(valid, f"{field.name} to be {what}", repr(value))


def check_fit(model, modules, loss_fn, data, settings, batches, validation):
    """Check that model, data, settings and batches fit each other, before any work."""
    for module in modules:  # they keep arguments of the model, such as ``n_heads``
        for name, expected in getattr(settings, "model", {}).items():
            found = getattr(module, name, expected)
            found = getattr(found, "rate", getattr(found, "p", found))
            agrees = not isinstance(found, int | float) or found == expected
            wanted = f"a model with {name} = {expected!r}, as the settings say"
            expect(agrees, wanted, f"one with {name} = {found!r}")
    check_examples(model, loss_fn, data)
    settings.check_data(data)
    check_batches(batches(0), settings, len(data[0]))
    if validation is not None:
        check_examples(model, loss_fn, validation, "validation data")


def check_data(data, what="data"):
    """Check that data are NumPy arrays in a tuple, equally long, not empty, finite."""
    kinds = [*map(type, data)] if isinstance(data, tuple | list) else type(data)
    valid = isinstance(kinds, list) and all(issubclass(k, np.ndarray) for k in kinds)
    expect(valid, f"the {what} as tuple of NumPy arrays", kinds)
    lengths = [len(array) for array in data]
    valid = lengths and lengths[0] and len(set(lengths)) == 1
    expect(valid, f"equally long arrays of {what}, not empty", f"{lengths} examples")
    for place, array in enumerate(data):
        if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            row = int(np.argwhere(~finite)[0][0])
            got = f"{array[~finite][0]} in example {row} of array {place}"
            raise ValueError(f"expected the {what} to be finite, got {got}")


def check_examples(model, loss_fn, data, what="data"):
    """Check data, and their labels as the loss function says, if it does."""
    check_data(data, what)
    if check := getattr(loss_fn, "check_labels", None):
        check(model, data, what)


def check_classes(model, data, what):
    """Check that labels are classes that the model's last layer has outputs for."""
    expect(len(data) == 2, f"inputs and labels as {what}", len(data))
    inputs, labels = data
    shape = inputs.shape[: 1 if inputs.ndim == 4 else -1]  # one a picture
    valid = labels.shape == shape and labels.dtype.kind in "iu"
    wanted = f"the labels of the {what} to be whole numbers of shape {shape}"
    expect(valid, wanted, f"{labels.dtype} {labels.shape}")
    if trunk := getattr(model, "trunk", None):  # of a classifier of texts
        check_texts(trunk, (inputs,), what, least=1)
    low, high = labels.min(), labels.max()
    c = getattr(getattr(trunk or model, "output", None), "out_features", high + 1)
    wanted = f"labels from 0 to {c - 1} for {c} classes"
    expect(low >= 0 and high < c, wanted, f"{low} to {high} in the {what}")


def check_texts(model, data, what, least=2):
    """Check that texts are tokens ``b s`` that a model knows, padded with -1 at the end."""
    target = getattr(model, "target", model)
    known = [(target.embed.num_embeddings, target.max_length + least - 1)]
    if target is not model:
        source = model.embed or target.embed
        known.insert(0, (source.num_embeddings, target.max_length))
    expect(len(data) == len(known), f"{len(known)} arrays of texts", len(data))
    few = ("one", "two")[least - 1]
    for texts, (n_tokens, longest) in zip(data, known, strict=True):
        valid = texts.ndim == 2 and texts.dtype.kind in "iu" and texts.shape[1] >= least
        wanted = f"texts b s of whole numbers in the {what}, {few} or more each"
        expect(valid, wanted, f"{texts.dtype} {texts.shape}")
        n, low, high = texts.shape[1], texts.min(), texts.max()
        wanted = f"at most {longest} tokens for this model"
        expect(n <= longest, wanted, f"{n} in the {what}")
        wanted = f"tokens from 0 to {n_tokens - 1}, or -1 for padding"
        valid = low >= -1 and high < n_tokens
        expect(valid, wanted, f"{low} to {high} in the {what}")
        real = texts >= 0
        valid = real[:, :least].all(axis=1) & (real[:, 1:] <= real[:, :-1]).all(axis=1)
        row = int(np.argmin(valid))
        wanted = f"{few} token{'s'[: least - 1]} or more and padding only at the end"
        expect(valid.all(), wanted, f"{texts[row].tolist()} in row {row} of the {what}")


def check_shares(settings, n):
    """Check that a batch divides evenly among devices or processes."""
    wanted = f"a multiple of {n}, the number of devices or processes that share it"
    size = settings.batch_size
    expect(size % n == 0, f"batch_size to be {wanted}", size)


def check_batches(index, settings, rows):
    """Check the batches of an epoch, rows ``n b …`` of the data, and return them."""
    sizes = settings.updates_per_epoch, settings.batch_size
    valid = index.shape[:2] == sizes and index.dtype.kind in "iu"
    wanted = f"batches n b … of whole numbers with n, b = {sizes}"
    expect(valid, wanted, f"{index.dtype} {index.shape}")
    low, high = index.min(), index.max()
    expect(low >= 0 and high < rows, f"rows from 0 to {rows - 1}", f"{low} to {high}")
    return index
