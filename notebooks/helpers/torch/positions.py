"""Written by `make sync` from notebooks/positions_torch.py."""

import torch
from torch import nn

from helpers.data import checks
from helpers.torch.attention import MultiHeadAttention, dense
from helpers.torch.encoder import Encoder

__all__ = (
    "LearnedPositions POSITIONS Predictor RotaryAttention "
    "SinusoidalPositions rotary sinusoidal_positions"
).split()


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    i = torch.arange(m, dtype=torch.float64)
    angle = torch.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)  # s m
    return torch.where(i % 2 == 0, angle.sin(), angle.cos())


class SinusoidalPositions(nn.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length):
        super().__init__()
        table = sinusoidal_positions(max_length, m).float()  # s m
        self.register_buffer("table", table, persistent=False)

    def forward(self, x):
        checks.check_length(x, self.table)
        return x + self.table[: x.shape[1]].to(x.dtype)


class LearnedPositions(nn.Module):
    """Adds a learned vector to each of ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length):
        super().__init__()
        table = torch.randn(max_length, m)  # s m
        self.table = nn.Parameter(0.02 * table)  # small, as in BERT

    def forward(self, x):
        checks.check_length(x, self.table)
        return x + self.table[: x.shape[1]].to(x.dtype)


def rotary(x, offset=0):
    """Rotate pairs of features by position, counted from ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    i = torch.arange(0, d, 2, dtype=torch.float32, device=x.device)
    positions = offset + torch.arange(s, dtype=torch.float32, device=x.device)
    # In float32, the angles of our short sequences are off by less than 1e-4.
    angle = positions[:, None] * 10000.0 ** (-i / d)  # s d/2
    sin, cos = angle.sin(), angle.cos()
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = even * cos - odd * sin, even * sin + odd * cos
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)  # ... s d


class RotaryAttention(MultiHeadAttention):
    """Attention whose queries and keys are rotated: ``b s m -> b s m, b h s s``."""

    def project(self, x, offset=0):
        q, k, v = super().project(x)  # each b h s d
        return rotary(q, offset), rotary(k, offset), v


POSITIONS = {  # the codes that are added, and the attention of every block
    "sinusoidal": (SinusoidalPositions, MultiHeadAttention),
    "learned": (LearnedPositions, MultiHeadAttention),
    "rotary": (None, RotaryAttention),
    "none": (None, MultiHeadAttention),
}


class Predictor(nn.Module):
    """One output vector per element: ``b s i -> b s c``; options as of ``Encoder``."""

    def __init__(
        self,
        n_inputs,
        m,
        n_outputs,
        *,
        input_dropout=0.0,
        positions="sinusoidal",
        max_length=512,
        **options,  # n_blocks, n_heads, f, dropout, activation, norm_first
    ):
        super().__init__()
        kind, attention = POSITIONS[positions]
        self.input_dropout = nn.Dropout(input_dropout)
        self.embed = dense(n_inputs, m)  # 1
        self.positions = kind(m, max_length) if kind else None  # 2
        self.encoder = Encoder(m=m, attention=attention, **options)  # 3
        self.hidden = dense(m, m)  # 4
        self.hidden_norm = nn.LayerNorm(m)
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        self.output = dense(m, n_outputs)  # 5

    def forward(self, x, mask=None, *, return_maps=False):
        x = self.embed(self.input_dropout(x.to(self.embed.weight.dtype)))  # b s m
        x = self.positions(x) if self.positions else x
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = self.dropout(torch.relu(self.hidden_norm(self.hidden(x))))
        return (self.output(x), maps) if return_maps else self.output(x)  # b s c
