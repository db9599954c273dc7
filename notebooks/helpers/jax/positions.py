"""Written by `make sync` from notebooks/positions_jax.py."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from helpers.jax.attention import MultiHeadAttention, dense
from helpers.jax.encoder import Encoder, layer_norm

__all__ = (
    "Embedding LearnedPositions POSITIONS Predictor RotaryAttention "
    "SinusoidalPositions check_length pooled rotary sinusoidal_positions "
    "visible"
).split()


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    omega = 10000 ** (-np.arange(0, m, 2) / m)  # m/2
    angle = np.arange(length)[:, None] * omega  # s m/2
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)  # s m/2 2
    return pairs.reshape(length, -1)[:, :m]  # s m; an odd m ends on a sine


def check_length(x, table):
    """Raise an error if a sequence ``b s m`` is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


class SinusoidalPositions(nnx.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs=None):
        table = sinusoidal_positions(max_length, m)  # s m
        self.table = nnx.Variable(jnp.asarray(table, dtype=jnp.float32))

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


class LearnedPositions(nnx.Module):
    """Adds a learned vector to each of ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs):
        table = jax.random.normal(rngs.params(), (max_length, m))  # s m
        self.table = nnx.Param(0.02 * table)  # small, as in BERT

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


def rotary(x, offset=0):
    """Rotate pairs of features; row 0 has position ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    positions = offset + jnp.arange(s)
    angle = positions[:, None] * 10000.0 ** (-jnp.arange(0, d, 2) / d)  # s d/2
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = [even * cos - odd * sin, even * sin + odd * cos]
    return jnp.stack(pairs, axis=-1).reshape(x.shape).astype(x.dtype)  # ... s d


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
        real = jnp.ones_like(x[..., 0]) if real is None else real
        return (x * real[..., None]).sum(1) / real.sum(1, keepdims=True)
    return x[:, 0] if pool == "first" else x


Embedding = partial(nnx.Embed, embedding_init=nnx.initializers.normal(1.0))
POSITIONS = {  # the codes that are added, and the attention of every block
    "sinusoidal": (SinusoidalPositions, MultiHeadAttention),
    "learned": (LearnedPositions, MultiHeadAttention),
    "rotary": (None, RotaryAttention),
    "none": (None, MultiHeadAttention),
}


class Predictor(nnx.Module):
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
        *,
        rngs,
        **options,  # of the encoder: n_blocks, n_heads, f
    ):
        added, attention = POSITIONS[positions]
        self.pool = pool
        self.embed = (Embedding if ids else dense)(n_inputs, m, rngs=rngs)
        self.positions = added(m, max_length, rngs=rngs) if added else None
        self.encoder = Encoder(m=m, attention=attention, rngs=rngs, **options)
        self.hidden, self.hidden_norm = dense(m, m, rngs=rngs), layer_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(options.get("dropout", 0.0), rngs=rngs)
        self.output = dense(m, n_outputs, rngs=rngs)

    def __call__(self, x, mask=None, *, real=None, return_maps=False):
        x = self.positions(self.embed(x)) if self.positions else self.embed(x)  # 1, 2
        out = self.encoder(x, visible(mask, real), return_maps=return_maps)  # 3
        x, maps = out if return_maps else (out, None)
        x = self.hidden(pooled(x, real, self.pool))  # 4: b s m, or b m
        x = self.output(self.dropout(jax.nn.relu(self.hidden_norm(x))))  # 5
        return (x, maps) if return_maps else x
