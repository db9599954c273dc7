"""The chapter *Positions and the whole encoder* builds these, with the `Predictor`."""

from functools import partial

import torch
from torch import nn

from helpers.torch.attention import MultiHeadAttention, dense
from helpers.torch.encoder import Encoder

__all__ = [
    "POSITIONS",
    "LearnedPositions",
    "Predictor",
    "RotaryAttention",
    "SinusoidalPositions",
    "check_length",
    "rotary",
    "sinusoidal_positions",
]


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    i = torch.arange(m, dtype=torch.float64)
    angle = torch.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)  # s m
    return torch.where(i % 2 == 0, angle.sin(), angle.cos())


def check_length(x, table):
    """Raise an error if a sequence is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


class SinusoidalPositions(nn.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``.

    Source: Vaswani et al. 2017, sec. 3.5.
    """

    def __init__(self, m, max_length):
        super().__init__()
        table = sinusoidal_positions(max_length, m).float()  # s m
        self.register_buffer("table", table, persistent=False)

    def forward(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].to(x.dtype)


class LearnedPositions(nn.Module):
    """Adds a learned vector to each of ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length):
        super().__init__()
        table = torch.randn(max_length, m)  # s m
        self.table = nn.Parameter(0.02 * table)

    def forward(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].to(x.dtype)


def rotary(x, offset=0):
    """Rotate pairs of features by position, counted from ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    count = partial(torch.arange, dtype=torch.float32, device=x.device)
    frequencies = 10000.0 ** (-count(0, d, 2) / d)
    angle = (offset + count(s))[:, None] * frequencies  # s d/2
    sin, cos = angle.sin(), angle.cos()
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = even * cos - odd * sin, even * sin + odd * cos
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)  # ... s d


class RotaryAttention(MultiHeadAttention):
    """Attention whose queries and keys are rotated: ``b s m -> b s m, b h s s``."""

    def project(self, x, parts="qkv", offset=0):
        found = zip(parts, super().project(x, parts), strict=True)  # each b h s d
        return [x if part == "v" else rotary(x, offset) for part, x in found]


POSITIONS = {  # the codes that are added, and the attention of every block
    "sinusoidal": (SinusoidalPositions, MultiHeadAttention),
    "learned": (LearnedPositions, MultiHeadAttention),
    "rotary": (None, RotaryAttention),
    "none": (None, MultiHeadAttention),
}


class Predictor(nn.Module):
    """One output vector per element: ``b s i -> b s c``.

    ``n_inputs`` are the features of an element, with ``input_dropout`` on them.
    Positions are "sinusoidal", "learned" (``max_length`` at most), "rotary" or "none".
    ``n_blocks``, ``n_heads``, ``f`` and ``options`` are those of ``Encoder``.
    """

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, input_dropout=0.0,
        positions="sinusoidal", max_length=512, **options,
    ):  # fmt: skip
        super().__init__()
        kind, options["attention"] = POSITIONS[positions]
        self.input_dropout = nn.Dropout(input_dropout)
        self.embed = dense(n_inputs, m)
        self.positions = kind(m, max_length) if kind else None
        self.encoder = Encoder(n_blocks, m, n_heads, f, **options)
        self.hidden = dense(m, m)
        self.hidden_norm = nn.LayerNorm(m)
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        self.output = dense(m, n_outputs)

    def forward(self, x, mask=None, *, return_maps=False):
        """Outputs ``b s c``; with ``return_maps`` also the maps ``l b h s s``."""
        x = self.embed(self.input_dropout(x))  # b s m
        x = self.positions(x) if self.positions else x
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = self.dropout(torch.relu(self.hidden_norm(self.hidden(x))))
        return (self.output(x), maps) if return_maps else self.output(x)  # b s c
