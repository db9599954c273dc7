"""Written by `make sync` from notebooks/data_jax.py."""

import numpy as np
from flax import nnx

from helpers.jax.attention import dense
from helpers.jax.encoder import Encoder
from helpers.jax.positions import LearnedPositions

__all__ = "SequenceClassifier from_texts".split()


class SequenceClassifier(nnx.Module):
    """One output vector per sequence, from the real positions: ``b s i, b s -> b c``.

    ``real`` is boolean, False where a position is padding or missing; numbers there are
    finite and change nothing. Without a real position the output is NaN.
    """

    def __init__(self, n_inputs, m, n_outputs, *, max_length, rngs, **options):
        options = {"activation": "gelu", "norm_first": True, **options}
        self.embed = dense(n_inputs, m, rngs=rngs)
        self.positions = LearnedPositions(m, max_length, rngs=rngs)
        self.encoder = Encoder(m=m, rngs=rngs, **options)  # n_blocks, n_heads, f
        self.output = dense(m, n_outputs, rngs=rngs)

    def encode(self, x, real):
        """One vector per position: ``b s i, b s -> b s m``."""
        x = self.positions(self.embed(x))  # b s m
        return self.encoder(x, real[:, None, None])  # b 1 1 k: True = may look

    def __call__(self, x, real):
        encoded = self.encode(x, real) * real[..., None]  # b s m
        return self.output(encoded.sum(1) / real.sum(1)[:, None])


def from_texts(texts, length):
    """ASCII characters as one-hot vectors ``b s 128``, and which are real: ``b s``."""
    x = np.zeros((len(texts), length, 128), np.float32)
    for row, line in enumerate(texts):
        codes = np.frombuffer(line.encode("ascii", "replace"), np.uint8)[:length]
        x[row, np.arange(len(codes)), codes] = 1
    return x, x.any(axis=-1)
