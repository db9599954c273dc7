"""Written by `make sync` from notebooks/data_torch.py."""

import numpy as np
from torch import nn

from helpers.torch.attention import dense
from helpers.torch.encoder import Encoder
from helpers.torch.positions import LearnedPositions

__all__ = "SequenceClassifier from_texts".split()


class SequenceClassifier(nn.Module):
    """One output vector per sequence, from the real positions: ``b s i, b s -> b c``.

    ``real`` is boolean, False where a position is padding or missing; numbers there are
    finite and change nothing. Without a real position the output is NaN.
    """

    def __init__(self, n_inputs, m, n_outputs, *, max_length, **options):
        super().__init__()
        options = {"activation": "gelu", "norm_first": True, **options}
        self.embed = dense(n_inputs, m)
        self.positions = LearnedPositions(m, max_length)
        self.encoder = Encoder(m=m, **options)  # n_blocks, n_heads, f, dropout
        self.output = dense(m, n_outputs)

    def encode(self, x, real):
        """One vector per position: ``b s i, b s -> b s m``."""
        x = self.positions(self.embed(x.to(self.embed.weight.dtype)))  # b s m
        return self.encoder(x, real[:, None, None])  # b 1 1 k: True = may look

    def forward(self, x, real):
        encoded = self.encode(x, real) * real[..., None]  # b s m
        return self.output(encoded.sum(1) / real.sum(1)[:, None])


def from_texts(texts, length):
    """ASCII characters as one-hot vectors ``b s 128``, and which are real: ``b s``."""
    x = np.zeros((len(texts), length, 128), np.float32)
    for row, line in enumerate(texts):
        codes = np.frombuffer(line.encode("ascii", "replace"), np.uint8)[:length]
        x[row, np.arange(len(codes)), codes] = 1
    return x, x.any(axis=-1)
