"""Settings of the odd one out: of any sets, and of the chapter *anomaly*."""

from dataclasses import dataclass

import numpy as np

from helpers.engine.checks import expect
from helpers.engine.settings import ModelSettings


def check_set_size(n):
    """Raise ValueError unless a set has two elements that are alike, and an odd one."""
    expect(n >= 3, "set_size of at least 3, two of them alike", n)


@dataclass(frozen=True, kw_only=True)
class Sets(ModelSettings):
    """A ``Predictor`` on sets with an odd one: one output per element, no positions.

    ``n_train`` in elements, each the odd one of one set per epoch; ``set_size`` in
    elements, the odd one included; ``n_validation`` and ``n_test`` in sets.
    """

    EXAMPLE = ("n_features",)
    n_classes: int
    n_features: int
    learning_rate: float = 1e-3
    warmup: int = 100
    n_validation: int = 1_000
    n_test: int = 2_000
    n_blocks: int = 2
    m: int = 64
    n_heads: int = 4
    f: int = 128
    set_size: int = 10
    dropout: float = 0.1
    input_dropout: float = 0.1
    positions: str = "none"

    def __post_init__(self):
        super().__post_init__()
        check_set_size(self.set_size)

    @classmethod
    def for_data(cls, parts, **changes):
        """Settings for your own data, with sizes taken from them.

        ``parts`` are those of ``helpers.data.sets.split``. A set has ten elements, or as
        many as the smallest class allows; epochs give about 640 updates.
        """
        features, labels = parts["train"].features, parts["train"].labels
        counts = (np.unique(p.labels, return_counts=True)[1] for p in parts.values())
        sizes = {
            "n_train": len(labels), "batch_size": min(64, -(-len(labels) // 8)),
            "n_features": features.shape[1], "n_classes": len(np.unique(labels)),
            "set_size": min(10, 1 + min(n.min() for n in counts).item()),
        } | changes  # fmt: skip
        updates = max(1, sizes["n_train"] // sizes["batch_size"])  # in an epoch
        return cls(**{"epochs": -(-640 // updates)} | sizes)

    @property
    def model(self):
        """Arguments of ``Predictor`` by name."""
        return self.arguments("input_dropout", n_inputs=self.n_features, n_outputs=1)


@dataclass(frozen=True, kw_only=True)
class Anomaly(Sets):
    """A source of ``helpers.data.sets``, and what the chapter promises on it.

    ``n_unseen`` in classes; ``least_accuracy``, ``least_gain`` over the baseline: shares.
    """

    source: str
    n_unseen: int
    least_accuracy: float
    least_gain: float

    def __post_init__(self):
        super().__post_init__()
        valid = 2 <= self.n_unseen <= self.n_classes - 2
        got = f"n_unseen = {self.n_unseen} of n_classes = {self.n_classes}"
        expect(valid, "two classes or more on each side", got)


@dataclass(frozen=True, kw_only=True)
class Digits(Anomaly):
    """Chapter *anomaly* on scikit-learn's digits: trained within a minute on two cores."""

    n_train: int = 1_293
    batch_size: int = 64
    epochs: int = 32
    source: str = "digits"
    n_classes: int = 10
    n_features: int = 64
    n_unseen: int = 3
    least_accuracy: float = 0.97
    least_gain: float = 0.10


@dataclass(frozen=True, kw_only=True)
class Cifar100(Anomaly):
    """Chapter *anomaly* on ResNet34 features of CIFAR-100, in the published sizes."""

    n_train: int = 45_000
    batch_size: int = 64
    epochs: int = 100
    learning_rate: float = 5e-4
    source: str = "cifar100"
    n_classes: int = 100
    n_features: int = 512
    n_unseen: int = 20
    n_validation: int = 5_000
    n_test: int = 10_000
    least_accuracy: float = 0.93
    least_gain: float = 0.0
    n_blocks: int = 4
    m: int = 256
    f: int = 512
