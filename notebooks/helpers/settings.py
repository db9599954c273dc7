"""One frozen dataclass per task: sizes, steps, seed, bounds; the twins share it.

Steps are optimiser updates. Everything is checked when a dataclass is made, so that bad
settings are refused before any work; ``dataclasses.replace`` makes variants.
"""

from dataclasses import dataclass
from math import inf

from helpers.checks import check_dropout, check_sizes, choose, head_size
from helpers.schedules import SCHEDULES, check_warmup, rates


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every training has; a task adds its own numbers.

    Parameters
    ----------
    n_train : int
        Examples that one epoch goes through; those that do not fill a batch are left
        out, others in each epoch.
    batch : int
        Examples in an update.
    epochs : int
        Passes through the examples.
    rate : float
        Peak learning rate of Adam.
    warmup : int
        Updates over which the rate rises, ``1 <= warmup < updates``; 1 is no rise.
    schedule : str
        A name of ``helpers.schedules.SCHEDULES``.
    clip : float
        Largest global norm of the gradient; ``math.inf`` clips nothing.
    seed : int
        Of the initial weights, the order of the batches, and dropout.

    Raises
    ------
    ValueError
        If a number makes no sense, alone or beside another one; the message has both.
    """

    n_train: int
    batch: int
    epochs: int
    rate: float
    warmup: int
    schedule: str = "warmup_cosine"
    clip: float = 1.0
    seed: int = 42

    def __post_init__(self):
        check_sizes(n_train=self.n_train, batch=self.batch, epochs=self.epochs)
        if self.batch > self.n_train:
            raise ValueError(
                f"a batch of {self.batch} does not fit into {self.n_train} examples"
            )
        for name, number in {"rate": self.rate, "clip": self.clip}.items():
            if not number > 0 or (name == "rate" and number == inf):
                raise ValueError(f"expected {name} to be above 0, got {number!r}")
        choose(self.schedule, SCHEDULES, "schedule")
        check_warmup(self.warmup, self.updates)

    @property
    def updates_per_epoch(self):
        """Whole batches in an epoch."""
        return self.n_train // self.batch

    @property
    def updates(self):
        """Updates of the whole training."""
        return self.epochs * self.updates_per_epoch

    @property
    def rates(self):
        """Learning rate of every update: float array ``updates``."""
        return rates(self)


@dataclass(frozen=True, kw_only=True)
class Sequences(Settings):
    """A predictor on sequences of symbols, as ``helpers.model_*`` builds it.

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
        check_sizes(
            n_symbols=self.n_symbols, length=self.length, n_validation=self.n_validation,
            n_test=self.n_test, n_blocks=self.n_blocks, f=self.f,
        )  # fmt: skip
        head_size(self.m, self.n_heads)
        check_dropout(self.dropout)

    @property
    def model(self):
        """Arguments of ``Predictor`` by name."""
        names = "n_blocks", "n_heads", "f", "dropout", "norm_first", "positions"
        sizes = {"n_inputs": self.n_symbols, "m": self.m, "n_outputs": self.n_symbols}
        return sizes | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Warmup(Sequences):
    """Chapter *warm-up*: a post-norm stack deep enough that it needs a slow start."""

    n_train: int = 64 * 100
    batch: int = 64
    epochs: int = 3
    rate: float = 3e-3
    warmup: int = 100
    clip: float = inf  # what warm-up does is to show without other help
    n_blocks: int = 6
    n_heads: int = 4


@dataclass(frozen=True, kw_only=True)
class Reverse(Sequences):
    """Chapter *reverse*: one block with one head learns to turn sequences round."""

    n_train: int = 50_000
    batch: int = 128
    epochs: int = 10
    rate: float = 5e-4
    warmup: int = 50
