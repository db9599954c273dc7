"""Written by `make sync` from notebooks/positions_jax.py."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from helpers.data import checks
from helpers.jax.attention import MultiHeadAttention, dense
from helpers.jax.encoder import Encoder, layer_norm

__all__ = (
    "LearnedPositions POSITIONS Predictor RotaryAttention "
    "SinusoidalPositions rotary sinusoidal_positions"
).split()


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    i = np.arange(m)
    angle = np.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)  # s m
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle))


class SinusoidalPositions(nnx.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs=None):
        table = sinusoidal_positions(max_length, m)  # s m
        self.table = nnx.Variable(jnp.asarray(table, dtype=jnp.float32))

    def __call__(self, x):
        checks.check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


class LearnedPositions(nnx.Module):
    """Adds a learned vector to each of ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs):
        table = jax.random.normal(rngs.params(), (max_length, m))  # s m
        self.table = nnx.Param(0.02 * table)  # small, as in BERT

    def __call__(self, x):
        checks.check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


def rotary(x, offset=0):
    """Rotate pairs of features by position, counted from ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    i, positions = jnp.arange(0, d, 2, dtype=jnp.float32), offset + jnp.arange(s)
    # In float32, the angles of our short sequences are off by less than 1e-4.
    angle = positions[:, None] * 10000.0 ** (-i / d)  # s d/2
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = even * cos - odd * sin, even * sin + odd * cos
    return jnp.stack(pairs, axis=-1).reshape(x.shape).astype(x.dtype)  # ... s d


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


class Predictor(nnx.Module):
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
        rngs,
        **options,  # n_blocks, n_heads, f, dropout, activation, norm_first
    ):
        kind, attention = POSITIONS[positions]
        self.input_dropout = nnx.Dropout(input_dropout, rngs=rngs)
        self.embed = dense(n_inputs, m, rngs=rngs)  # 1
        self.positions = kind(m, max_length, rngs=rngs) if kind else None  # 2
        self.encoder = Encoder(m=m, attention=attention, rngs=rngs, **options)  # 3
        self.hidden = dense(m, m, rngs=rngs)  # 4
        self.hidden_norm = layer_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(options.get("dropout", 0.0), rngs=rngs)
        self.output = dense(m, n_outputs, rngs=rngs)  # 5

    def __call__(self, x, mask=None, *, return_maps=False):
        x = self.embed(self.input_dropout(x))  # b s m
        x = self.positions(x) if self.positions else x
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = self.dropout(jax.nn.relu(self.hidden_norm(self.hidden(x))))
        return (self.output(x), maps) if return_maps else self.output(x)  # b s c
