"""The numbers of a training, which both frameworks share."""

from dataclasses import dataclass
from math import cos, pi, sqrt

import numpy as np


def warmup_constant(step, warmup, total):
    """Linear rise, then level: ``min(1, (t + 1) / w)``."""
    return min(1.0, (step + 1) / warmup)


def warmup_cosine(step, warmup, total):
    """Linear rise to 1 at ``step = warmup - 1``, then half a cosine down to 0.

    Source: rise from Vaswani et al. 2017, sec. 5.3; fall from Loshchilov & Hutter 2017,
    eq. 5, which ``optax.warmup_cosine_decay_schedule`` joins in the same way.
    """
    top = warmup - 1
    fall = max(0, step - top) / (total - top)
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + cos(pi * fall))


def inverse_square_root(step, warmup, total):
    """Linear rise, then ``√(w / (t + 1))``.

    Source: Vaswani et al. 2017, eq. 3, divided by its peak ``(m w)^-½``.
    """
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of ``fit``; ``dataclasses.replace`` makes variants."""

    n_train: int  # examples in an epoch; an incomplete last batch is left out
    batch_size: int
    epochs: int
    learning_rate: float  # the peak
    warmup: int = 1  # updates over which the rate rises
    schedule: object = warmup_cosine  # (step, warmup, total) -> part of the peak
    weight_decay: float = 0.0  # of matrices
    max_grad_norm: float = 1.0  # longer gradients are shortened to it
    seed: int = 42  # of the order of the batches, and of dropout

    def __post_init__(self):
        if self.batch_size > self.n_train:
            most = f"at most n_train = {self.n_train}"
            raise ValueError(f"expected a batch_size of {most}, got {self.batch_size}")
        if not 1 <= self.warmup < max(2, self.updates):
            most = f"{self.updates - 1} updates"
            raise ValueError(f"expected a warmup of 1 to {most}, got {self.warmup}")

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
        steps, given = range(self.updates), (self.warmup, self.updates)
        parts = np.array([self.schedule(step, *given) for step in steps])
        return (self.learning_rate * parts).astype(np.float32)

    def seed_of(self, epoch):
        """A seed for what an epoch draws by chance, whatever came before it."""
        return int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
