"""One frozen dataclass per task: sizes, steps, seed, bounds; the twins share it.

Steps are optimiser updates. Everything is checked when a dataclass is made: invalid
settings raise an error before any work. ``dataclasses.replace`` makes variants.
"""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from helpers.data import sets
from helpers.data.dates import CHARACTERS
from helpers.engine.checks import check_fields, choose
from helpers.schedules import SCHEDULES, check_warmup, learning_rates

POSITIONS = dict.fromkeys(("sinusoidal", "learned", "none"))
MAX_LENGTH = 512  # positions of a predictor's table


def check_heads(m, n_heads):
    """Raise an error unless ``m`` features split evenly into ``n_heads`` heads."""
    if m % n_heads:
        raise ValueError(
            f"m = {m} does not split into {n_heads} heads ({m} % {n_heads} = "
            f"{m % n_heads})"
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every training has; a task adds its own numbers.

    Parameters
    ----------
    n_train : int
        Examples in an epoch; those that do not fill a batch are left out, others in
        each epoch.
    batch_size : int
        Examples in an update.
    epochs : int
        Passes through the examples.
    learning_rate : float
        Peak learning rate of Adam.
    warmup : int
        Updates over which the rate rises, ``1 <= warmup < updates``; 1 is no rise.
    schedule : str
        A name of ``helpers.schedules.SCHEDULES``.
    max_grad_norm : float
        Largest global norm of the gradient; ``math.inf`` clips nothing.
    seed : int
        Of the initial weights, the order of the batches, and dropout.

    Raises
    ------
    ValueError
        If a field is invalid, or contradicts another; the message has both values.
    """

    n_train: int
    batch_size: int
    epochs: int
    learning_rate: float
    warmup: int
    schedule: str = "warmup_cosine"
    max_grad_norm: float = 1.0
    seed: int = 42

    def __post_init__(self):
        check_fields(self)
        if self.batch_size > self.n_train:
            raise ValueError(
                f"expected batch_size to be at most n_train = {self.n_train}, got "
                f"{self.batch_size}"
            )
        choose(self.schedule, SCHEDULES, "schedule")
        check_warmup(self.warmup, self.updates)

    def check_data(self, data):
        """Check training data against the sizes of the task, if it has any."""

    @property
    def updates_per_epoch(self):
        """Whole batches in an epoch."""
        return self.n_train // self.batch_size

    @property
    def updates(self):
        """Updates of the whole training."""
        return self.epochs * self.updates_per_epoch

    @property
    def learning_rates(self):
        """Learning rate of every update: float array ``updates``."""
        return learning_rates(self)


@dataclass(frozen=True, kw_only=True)
class Sequences(Settings):
    """A predictor on sequences of symbols, as ``helpers.jax`` and ``helpers.torch`` builds it.

    Lengths in symbols; ``m``, ``n_heads``, ``f``, ``n_blocks``, ``dropout`` as in
    ``Predictor``; ``n_validation`` and ``n_test`` in sequences.
    """

    n_symbols: int = 10
    length: int = 16
    n_validation: int = 1_000
    n_test: int = 10_000
    n_blocks: int = 1
    m: int = 32
    n_heads: int = 1
    f: int = 64
    dropout: float = 0.0
    norm_first: bool = False
    positions: str = "sinusoidal"

    def __post_init__(self):
        super().__post_init__()
        check_heads(self.m, self.n_heads)
        choose(self.positions, POSITIONS, "kind of positions")
        if self.positions != "none" and self.length > MAX_LENGTH:
            raise ValueError(
                f"expected length to be at most {MAX_LENGTH}, the length of the table "
                f"of positions, got {self.length}"
            )

    def check_data(self, data):
        """Check that inputs have the length and the number of symbols of the settings.

        Raises
        ------
        ValueError
            With both shapes.
        """
        expected = self.length, self.n_symbols
        if data[0].shape[1:] != expected:
            raise ValueError(
                f"expected sequences of shape (length, n_symbols) = {expected}, as the "
                f"settings say, got {data[0].shape[1:]}"
            )

    @property
    def model(self):
        """Arguments of ``Predictor`` by name."""
        names = "n_blocks", "n_heads", "f", "dropout", "norm_first", "positions"
        sizes = {"n_inputs": self.n_symbols, "m": self.m, "n_outputs": self.n_symbols}
        return sizes | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Warmup(Sequences):
    """Chapter *warm-up*: a post-norm stack that does not learn at its peak rate at once."""

    length: int = 8
    n_train: int = 32 * 100
    batch_size: int = 32
    epochs: int = 2
    learning_rate: float = 8e-3
    warmup: int = 100
    max_grad_norm: float = inf  # what warm-up does is to show without other help
    n_blocks: int = 6
    n_heads: int = 4


@dataclass(frozen=True, kw_only=True)
class Reverse(Sequences):
    """Chapter *reverse*: one block with one head learns to turn sequences round."""

    n_train: int = 50_000
    batch_size: int = 128
    epochs: int = 4
    learning_rate: float = 1e-3
    warmup: int = 50


@dataclass(frozen=True, kw_only=True)
class Text(Settings):
    """Chapter *decoder*: a language model on the source of Python's standard library.

    ``n_tokens`` in the vocabulary, ``length`` of a window in tokens; the rest as in
    ``LanguageModel``. An epoch has ``n_train`` windows of its own, at random places.
    """

    n_train: int = 16 * 65
    batch_size: int = 16
    epochs: int = 10
    learning_rate: float = 6e-3
    warmup: int = 60
    n_tokens: int = 97 + 512  # characters of ASCII, and merges
    length: int = 64
    n_blocks: int = 4
    m: int = 96
    n_heads: int = 4
    f: int = 384
    dropout: float = 0.0
    norm_first: bool = True
    tied: bool = True
    positions: str = "learned"

    def __post_init__(self):
        super().__post_init__()
        check_heads(self.m, self.n_heads)
        choose(self.positions, POSITIONS, "kind of positions")

    def check_data(self, data):
        """Check that the rows are as long as a window and one token more.

        Raises
        ------
        ValueError
            With both shapes.
        """
        if data[0].shape[1:] != (self.length + 1,):
            raise ValueError(
                f"expected rows of length + 1 = {self.length + 1} tokens, as the "
                f"settings say, got data of shape {data[0].shape}"
            )

    @property
    def model(self):
        """Arguments of ``LanguageModel`` by name."""
        names = (
            "n_tokens", "m", "n_blocks", "n_heads", "f", "dropout", "norm_first",
            "positions", "tied",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {
            "max_length": self.length
        }


@dataclass(frozen=True, kw_only=True)
class Dates(Settings):
    """Chapter *translation*: dates in seven written forms, to be written as ISO does.

    ``n_validation`` and ``n_test`` in days, which occur in no other part;
    ``n_characters`` in the vocabulary, with the tokens for begin and end; the rest as
    in ``Translator``. Each epoch has ``n_train`` examples of its own.
    """

    n_train: int = 128 * 45
    batch_size: int = 128
    epochs: int = 10
    learning_rate: float = 3e-3
    warmup: int = 100
    n_validation: int = 1_000
    n_test: int = 2_000
    n_characters: int = 2 + len(CHARACTERS)
    max_length: int = 32
    n_blocks: int = 2
    m: int = 64
    n_heads: int = 4
    f: int = 256
    dropout: float = 0.0
    norm_first: bool = True
    tied: bool = True
    shared: bool = True
    positions: str = "sinusoidal"

    def __post_init__(self):
        super().__post_init__()
        check_heads(self.m, self.n_heads)
        choose(self.positions, POSITIONS, "kind of positions")

    @property
    def model(self):
        """Arguments of ``Translator`` by name: one vocabulary for both sides."""
        names = (
            "m", "n_blocks", "n_heads", "f", "dropout", "norm_first", "max_length",
            "positions", "tied", "shared",
        )  # fmt: skip
        sizes = {"n_source": self.n_characters, "n_target": self.n_characters}
        return sizes | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Pictures(Settings):
    """Chapter *vision*: a vision Transformer on pictures, by default scikit-learn's digits.

    ``image_size`` and ``patch`` in pixels; ``n_channels`` of a pixel; the rest as in
    ``VisionTransformer``.
    """

    n_train: int = 1_293
    batch_size: int = 64
    epochs: int = 20
    learning_rate: float = 3e-3
    warmup: int = 50
    n_classes: int = 10
    image_size: int = 8
    n_channels: int = 1
    patch: int = 2
    n_blocks: int = 2
    m: int = 48
    n_heads: int = 4
    f: int = 96
    dropout: float = 0.0
    norm_first: bool = True
    positions: str = "learned"
    pool: str = "token"

    def __post_init__(self):
        super().__post_init__()
        check_heads(self.m, self.n_heads)
        choose(self.positions, POSITIONS, "kind of positions")
        if self.image_size % self.patch:
            raise ValueError(
                f"image_size = {self.image_size} is not divisible by patch = {self.patch}"
            )

    @classmethod
    def for_data(cls, parts, updates=640, **changes):
        """Settings for your own pictures, with sizes taken from them.

        The model is larger than that for digits, and patches are as small as an eighth
        of the picture's side.

        Parameters
        ----------
        parts : dict of str to (array ``n y x i``, integer array ``n``)
            As ``helpers.data.pictures.load`` returns it.
        updates : int
            About as many as epochs are chosen for, 100 at most.
        **changes
            Any other setting.
        """
        images, labels = parts["train"]
        side = images.shape[1]
        fitting = [p for p in range(1, side + 1) if side % p == 0 and p >= side / 8]
        sizes = {
            "n_train": len(labels), "batch_size": min(64, -(-len(labels) // 8)),
            "image_size": side, "n_channels": images.shape[3], "patch": fitting[0],
            "n_classes": 1 + max(labels.max().item() for _, labels in parts.values()),
            "n_blocks": 4, "m": 96, "f": 192, "dropout": 0.1, "learning_rate": 1e-3,
        } | changes  # fmt: skip
        per_epoch = max(1, sizes["n_train"] // sizes["batch_size"])
        sizes = {"epochs": min(100, -(-updates // per_epoch))} | sizes
        warmup = max(1, min(50, sizes["epochs"] * per_epoch // 10))
        return cls(**{"warmup": warmup} | sizes)

    def check_data(self, data):
        """Check the size of the pictures.

        Raises
        ------
        ValueError
            With both shapes.
        """
        expected = self.image_size, self.image_size, self.n_channels
        if data[0].shape[1:] != expected:
            raise ValueError(
                f"expected pictures of shape {expected}, as the settings say, got "
                f"{data[0].shape[1:]}"
            )

    @property
    def model(self):
        """Arguments of ``VisionTransformer`` by name."""
        names = (
            "image_size", "n_channels", "m", "patch", "n_blocks", "n_heads", "f",
            "dropout", "norm_first", "positions", "pool",
        )  # fmt: skip
        sizes = {name: getattr(self, name) for name in names}
        return sizes | {"n_outputs": self.n_classes}


@dataclass(frozen=True, kw_only=True)
class Sets(Settings):
    """A predictor on sets with an odd one, as ``helpers.jax`` and ``helpers.torch`` builds it.

    ``n_train`` in elements, each the odd one of one set per epoch; ``set_size`` in
    elements, the odd one included; ``n_validation`` and ``n_test`` in sets.
    """

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

    def __post_init__(self):
        super().__post_init__()
        check_heads(self.m, self.n_heads)
        if self.set_size < 3:
            raise ValueError(
                f"expected a set to have at least 3 elements, two of them alike, got "
                f"set_size = {self.set_size}"
            )

    @classmethod
    def for_data(cls, parts, **changes):
        """Settings for your own data, with sizes taken from them.

        A set has ten elements, or as many as the smallest class allows; epochs are as
        many as give about 640 updates.

        Parameters
        ----------
        parts : dict of str to helpers.data.sets.Part
            As ``helpers.data.sets.split`` returns it.
        **changes
            Any other setting.
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

    def check_data(self, data):
        """Check the number of features.

        Raises
        ------
        ValueError
            With both numbers.
        """
        if data[0].shape[-1] != self.n_features:
            raise ValueError(
                f"expected n_features = {self.n_features}, as the settings say, got "
                f"data of shape {data[0].shape}"
            )

    @property
    def model(self):
        """Arguments of ``Predictor`` by name: one output per element, no positions."""
        names = "n_blocks", "m", "n_heads", "f", "dropout", "input_dropout"
        sizes = {"n_inputs": self.n_features, "n_outputs": 1, "positions": "none"}
        return sizes | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Anomaly(Sets):
    """A source of ``helpers.data.sets``, and what the chapter promises on it.

    ``n_unseen`` in classes; ``least_accuracy`` and ``least_gain`` over the baseline as
    shares.
    """

    source: str
    n_unseen: int
    least_accuracy: float
    least_gain: float

    def __post_init__(self):
        super().__post_init__()
        if min(self.n_unseen, self.n_classes - self.n_unseen) < 2:
            raise ValueError(
                f"expected two classes or more on each side, got n_unseen = "
                f"{self.n_unseen} of n_classes = {self.n_classes}"
            )


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


def anomaly(source, device):
    """Settings of the chapter *anomaly* for a source of images and a device.

    On a CPU, training on the photos takes two epochs instead of a hundred, minutes
    instead of hours, and the promised accuracy is lower.

    Parameters
    ----------
    source : str
        One of ``sets.KNOWN``, or what ``helpers.data.photos.prepare`` knows: then all sizes
        follow from the photos, and nothing is promised.
    device : str
        ``"cpu"``, or the name of a faster one.

    Raises
    ------
    ValueError
        If the source is unknown, or has too few classes or photos.
    """
    if source not in sets.KNOWN:
        return for_photos(source)
    settings = {"digits": Digits, "cifar100": Cifar100}[source]()
    if source == "cifar100" and device == "cpu":
        return replace(settings, epochs=2, least_accuracy=0.5)
    return settings


def for_photos(source):
    """``Sets.for_data`` of photos; sets of ten, or smaller if a class is.

    Half of a class's test photos, and all its validation photos, fill a set.
    """
    parts, names = sets.from_source(source, Settings.seed)
    n = {name: np.bincount(part.labels).min().item() for name, part in parts.items()}
    set_size = min(10, n["validation"], n["test"] // 2)
    if len(names) < 4 or set_size < 3:
        raise ValueError(
            "sets of seen and of unseen classes need four classes or more, each with "
            f"three photos for validation and six for the test, got {len(names)} "
            f"classes, the smallest with {n['validation']} and {n['test']}: {source}"
        )
    changes = {"source": source, "n_unseen": max(2, 3 * len(names) // 10)}
    changes |= {"set_size": set_size, "least_accuracy": 0.0, "least_gain": 0.0}
    settings = Anomaly.for_data(parts, **changes)
    return replace(settings, epochs=max(2, settings.epochs))
