"""Written by `make sync` from notebooks/positions_torch.py."""

import torch
from torch import nn

from helpers.torch.attention import MultiHeadAttention, dense
from helpers.torch.encoder import Encoder

__all__ = (
    "LearnedPositions POSITIONS Predictor RotaryAttention "
    "SinusoidalPositions check_length pooled rotary sinusoidal_positions "
    "visible"
).split()


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    omega = 10000 ** (-torch.arange(0, m, 2, dtype=torch.float64) / m)  # m/2
    angle = torch.arange(length)[:, None] * omega  # s m/2
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # s m/2 2
    return pairs.flatten(1)[:, :m]  # s m; an odd m ends on a sine


def check_length(x, table):
    """Raise an error if a sequence ``b s m`` is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


class SinusoidalPositions(nn.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``."""

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
        self.table = nn.Parameter(0.02 * table)  # small, as in BERT

    def forward(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].to(x.dtype)


def rotary(x, offset=0):
    """Rotate pairs of features; row 0 has position ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    i = torch.arange(0, d, 2, dtype=torch.float32, device=x.device)
    positions = offset + torch.arange(s, dtype=torch.float32, device=x.device)
    angle = positions[:, None] * 10000.0 ** (-i / d)  # s d/2
    sin, cos = angle.sin(), angle.cos()
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = [even * cos - odd * sin, even * sin + odd * cos]
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)  # ... s d


class RotaryAttention(MultiHeadAttention):
    """Attention whose queries and keys are rotated: ``b s m -> b s m, b h s s``."""

    def project(self, x, offset=0):
        q, k, v = super().project(x)  # each b h s d
        return rotary(q, offset), rotary(k, offset), v


def visible(mask, real):
    """A mask that also hides the padding, where ``real`` ``b s`` is False."""
    if real is None:
        return mask
    padding = real[:, None, None]  # b 1 1 k
    return padding if mask is None else mask & padding


def pooled(x, real, pool):
    """Every vector, the mean of the real ones, or the first: ``b s m -> b m``."""
    if pool not in (None, "mean", "first"):
        raise ValueError(f"expected pool None, 'mean' or 'first', got {pool!r}")
    if pool == "mean":
        real = torch.ones_like(x[..., 0]) if real is None else real
        return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    return x[:, 0] if pool == "first" else x


POSITIONS = {  # the codes that are added, and the attention of every block
    "sinusoidal": (SinusoidalPositions, MultiHeadAttention),
    "learned": (LearnedPositions, MultiHeadAttention),
    "rotary": (None, RotaryAttention),
    "none": (None, MultiHeadAttention),
}


class Predictor(nn.Module):
    """From ids ``b s`` or features ``b s i`` to ``b s c``, or pooled to ``b c``."""

    def __init__(
        self,
        n_inputs,
        m,
        n_outputs,
        ids=False,
        pool=None,  # or "mean", "first"
        positions="sinusoidal",
        max_length=512,
        **options,  # of the encoder: n_blocks, n_heads, f
    ):
        super().__init__()
        added, attention = POSITIONS[positions]
        self.ids, self.pool = ids, pool
        self.embed = nn.Embedding(n_inputs, m) if ids else dense(n_inputs, m)
        self.positions = added(m, max_length) if added else nn.Identity()
        self.encoder = Encoder(m=m, attention=attention, **options)
        self.hidden, self.hidden_norm = dense(m, m), nn.LayerNorm(m)
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        self.output = dense(m, n_outputs)

    def forward(self, x, mask=None, *, real=None, return_maps=False):
        x = self.embed(x if self.ids else x.to(self.embed.weight.dtype))  # 1: b s m
        x = self.positions(x)  # 2
        out = self.encoder(x, visible(mask, real), return_maps=return_maps)  # 3
        x, maps = out if return_maps else (out, None)
        x = self.hidden(pooled(x, real, self.pool))  # 4: b s m, or b m
        x = self.output(self.dropout(torch.relu(self.hidden_norm(x))))  # 5
        return (x, maps) if return_maps else x
