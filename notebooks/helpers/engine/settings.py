"""One frozen dataclass per task: sizes, updates, seed, bounds; the twins share it.

Everything is checked when one is made. ``dataclasses.replace`` makes variants.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from helpers.engine.checks import check_fields, choose, expect
from helpers.schedules import SCHEDULES, check_warmup, factors

POSITIONS = {"sinusoidal": 512, "learned": 512, "rotary": inf, "none": inf}  # longest
PRECISIONS = {"float32": 24, "bfloat16": 8}  # significant bits


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every training has; a task adds its own numbers.

    An invalid field, or one that contradicts another, is a ValueError with both values.
    """

    EXAMPLE = ()  # fields that are the sizes of an example's last axes
    n_train: int  # examples in an epoch; those that do not fill a batch are left out
    batch_size: int  # examples in an update
    epochs: int  # passes through the examples
    learning_rate: float  # peak learning rate of Adam
    warmup: int  # updates over which the rate rises, at least 1: no rise
    schedule: str = "warmup_cosine"  # a name of helpers.schedules.SCHEDULES
    max_grad_norm: float = 1.0  # largest norm of the gradient; inf clips nothing
    precision: str = "float32"  # or "bfloat16": of the products in an update
    seed: int = 42  # of the initial weights, the order of the batches, and dropout

    def __post_init__(self):
        check_fields(self)
        wanted = f"batch_size to be at most n_train = {self.n_train}"
        expect(self.batch_size <= self.n_train, wanted, self.batch_size)
        choose(self.schedule, SCHEDULES, "schedule")
        choose(self.precision, PRECISIONS, "precision")
        check_warmup(self.warmup, self.updates)

    def check_data(self, data):
        """Raise ValueError unless training data have the sizes of the task."""
        shape = tuple(getattr(self, name) for name in self.EXAMPLE)
        found = data[0].shape[1:]
        valid = not shape or found[-len(shape) :] == shape
        expect(valid, f"examples of shape {shape}, as the settings say", found)

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
        """Learning rate of every update: float32 array ``updates``."""
        shape = factors(self.schedule, warmup=self.warmup, total=self.updates)
        return (self.learning_rate * shape).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Adds the sizes and choices that all models have, named as their arguments."""

    n_blocks: int = 1
    m: int = 32
    n_heads: int = 1
    f: int = 64
    dropout: float = 0.0
    norm_first: bool = False
    positions: str = "sinusoidal"

    def __post_init__(self):
        super().__post_init__()
        choose(self.positions, POSITIONS, "kind of positions")
        m, h = self.m, self.n_heads
        if rest := m % h:
            why = f"({m} % {h} = {rest})"
            raise ValueError(f"m = {m} does not split into {h} heads {why}")

    def arguments(self, names="", **sizes):
        """Arguments of the model by name: the common ones, others of that name, sizes."""
        names = f"n_blocks m n_heads f dropout norm_first positions {names}".split()
        return {name: getattr(self, name) for name in names} | sizes


@dataclass(frozen=True, kw_only=True)
class Sequences(ModelSettings):
    """A ``Predictor`` on sequences of ``length`` symbols; parts count sequences."""

    EXAMPLE = "length", "n_symbols"  # one-hot, s i
    n_symbols: int = 10
    length: int = 16
    n_validation: int = 1_000
    n_test: int = 10_000

    def __post_init__(self):
        super().__post_init__()
        longest = POSITIONS[self.positions]
        wanted = f"length to be at most {longest}, the length of the table of positions"
        expect(self.length <= longest, wanted, self.length)

    @property
    def model(self):
        """Arguments of ``Predictor`` by name."""
        return self.arguments(n_inputs=self.n_symbols, n_outputs=self.n_symbols)


@dataclass(frozen=True, kw_only=True)
class Warmup(Sequences):
    """Chapter *warm-up*: a post-norm stack that does not learn at its peak rate at once."""

    length: int = 8
    n_train: int = 32 * 100
    batch_size: int = 32
    epochs: int = 2
    learning_rate: float = 8e-3
    warmup: int = 150
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
class Text(ModelSettings):
    """Chapter *decoder*: a language model on the source of Python's standard library.

    ``n_tokens`` in the vocabulary; an epoch has ``n_train`` windows of its own, at random
    places, of ``length`` tokens.
    """

    n_train: int = 16 * 65
    batch_size: int = 16
    epochs: int = 10
    learning_rate: float = 6e-3
    warmup: int = 60
    n_tokens: int = 97 + 512  # characters of ASCII, and merges
    length: int = 64
    n_blocks: int = 2
    m: int = 96
    n_heads: int = 4
    f: int = 384
    norm_first: bool = True
    tied: bool = True
    positions: str = "learned"

    EXAMPLE = ("window",)

    @property
    def window(self):
        """Tokens of an example: of the input, and one more."""
        return self.length + 1

    @property
    def model(self):
        """Arguments of ``LanguageModel`` by name."""
        return self.arguments("n_tokens tied", max_length=self.length)


@dataclass(frozen=True, kw_only=True)
class Dates(ModelSettings):
    """Chapter *translation*: dates in seven written forms, to be written as ISO does.

    ``n_validation`` and ``n_test`` in days, which occur in no other part; each epoch has
    ``n_train`` examples of its own.
    """

    n_train: int = 64 * 45
    batch_size: int = 64
    epochs: int = 16
    learning_rate: float = 3e-3
    warmup: int = 100
    n_validation: int = 500
    n_test: int = 2_000
    n_characters: int = 2 + 45  # with the tokens for begin and end
    max_length: int = 32
    n_blocks: int = 1
    m: int = 64
    n_heads: int = 4
    f: int = 256
    norm_first: bool = True
    tied: bool = True
    shared: bool = True

    @property
    def model(self):
        """Arguments of ``Translator`` by name: one vocabulary for both sides."""
        n = self.n_characters
        return self.arguments("max_length tied shared", n_source=n, n_target=n)


@dataclass(frozen=True, kw_only=True)
class Pictures(ModelSettings):
    """Chapter *vision*: a vision Transformer on pictures, by default scikit-learn's digits.

    ``image_size`` and ``patch`` in pixels; the rest as in ``VisionTransformer``.
    """

    EXAMPLE = "image_size", "image_size", "n_channels"  # y x i
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
    norm_first: bool = True
    positions: str = "learned"
    pool: str = "token"

    def __post_init__(self):
        super().__post_init__()
        if (size := self.image_size) % self.patch:
            what = f"is not divisible by patch = {self.patch}"
            raise ValueError(f"image_size = {size} {what}")

    @classmethod
    def for_data(cls, parts, updates=640, **changes):
        """Settings for your own pictures, ``parts`` of ``helpers.data.pictures.load``.

        The model is larger than that for digits, patches are an eighth of the side or
        more. Epochs, 100 at most, are for about ``updates``; ``changes`` are settings.
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

    @property
    def model(self):
        """Arguments of ``VisionTransformer`` by name."""
        names = "image_size n_channels patch pool"
        return self.arguments(names, n_outputs=self.n_classes)
