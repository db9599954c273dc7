"""What the trainings minimise, in PyTorch: ``(model, *batch) -> (loss, metrics)``."""

from torch import nn

from helpers.torch import cross_entropy, next_token

N_SYMBOLS = 10


def reverse(model, x, labels):
    """Sequences as integers ``b s``, made one-hot for each batch."""
    inputs = nn.functional.one_hot(x.long(), N_SYMBOLS).float()
    return cross_entropy(model, inputs, labels.long())


def anomaly(model, features, labels):
    """Features ``b s i``, and the place of the odd one: ``b``."""
    return cross_entropy(lambda x: model(x).squeeze(-1), features, labels)


def text(model, rows):
    """Windows and one token more as integers ``b s + 1``."""
    return next_token(model, rows.long())


def vision(model, images, labels):
    """Photos with channels first ``b 3 y x``, and their classes: ``b``."""
    return cross_entropy(model, images.permute(0, 2, 3, 1), labels)
