"""The chapter *Your own data* builds this: a classifier of padded sequences."""

from flax import nnx

from helpers.jax.attention import dense
from helpers.jax.encoder import Encoder
from helpers.jax.positions import LearnedPositions

__all__ = [
    "SequenceClassifier",
]


class SequenceClassifier(nnx.Module):
    """One output vector per sequence: ``b s i, b s -> b c``.

    ``real`` is boolean, False where a position is padding or missing; numbers there are
    finite and change nothing. The output is made of the mean over the real positions, NaN
    if there are none. Options are those of ``Encoder``, with pre-norm and "gelu".
    """

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, max_length, dropout=0.0,
        rngs,
    ):  # fmt: skip
        self.embed = dense(n_inputs, m, rngs=rngs)
        self.positions = LearnedPositions(m, max_length, rngs=rngs)
        options = {"dropout": dropout, "activation": "gelu", "norm_first": True}
        self.encoder = Encoder(n_blocks, m, n_heads, f, rngs=rngs, **options)
        self.output = dense(m, n_outputs, rngs=rngs)

    def encode(self, x, real):
        """One vector per position: ``b s i, b s -> b s m``."""
        x = self.positions(self.embed(x))  # b s m
        return self.encoder(x, real[:, None, None])  # b 1 1 k: True = may look

    def __call__(self, x, real):
        encoded = self.encode(x, real) * real[..., None]  # b s m
        return self.output(encoded.sum(1) / real.sum(1)[:, None])
