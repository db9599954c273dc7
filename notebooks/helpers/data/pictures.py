"""The 1,797 digits of scikit-learn: floats from 0 to 1 ``n y x i``, labels int32 ``n``."""

import numpy as np


def digits(seed):
    """Training, validation and test part by name, as the chapter *vision* makes them."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images[..., None] / 16).astype(np.float32)
    labels = found.target.astype(np.int32)
    rest, test = divide(labels, 0.2, seed)
    train, validation = divide(labels, 0.1, seed, rest)
    rows = {"train": train, "validation": validation, "test": test}
    return {name: (images[r], labels[r]) for name, r in rows.items()}


def divide(labels, share, seed, rows=None):
    """Rows in two parts, the second with this share of each class: integer arrays."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels)) if rows is None else rows
    options = {"test_size": share, "stratify": labels[rows], "random_state": seed}
    return train_test_split(rows, **options)
