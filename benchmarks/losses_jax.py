"""What the trainings minimise, in JAX: ``(model, *batch) -> (loss, metrics)``."""

import jax

from helpers.jax import cross_entropy, next_token

N_SYMBOLS = 10


def reverse(model, x, labels):
    """Sequences as integers ``b s``, made one-hot for each batch."""
    return cross_entropy(model, jax.nn.one_hot(x, N_SYMBOLS), labels)


def anomaly(model, features, labels):
    """Features ``b s i``, and the place of the odd one: ``b``."""
    return cross_entropy(lambda x: model(x).squeeze(-1), features, labels)


def text(model, rows):
    """Windows and one token more as integers ``b s + 1``."""
    return next_token(model, rows)


def vision(model, images, labels):
    """Photos ``b y x 3``, and their classes: ``b``."""
    return cross_entropy(model, images, labels)
