"""The chapter *The encoder block* builds these: feed-forward net, block and stack."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.jax.attention import MultiHeadAttention, dense

__all__ = [
    "ACTIVATIONS",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "layer_norm",
]

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}
# in float32, with the variance from differences: as PyTorch computes it
layer_norm = partial(nnx.LayerNorm, epsilon=1e-5, use_fast_variance=False)


class FeedForward(nnx.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``.

    The hidden layer has size ``f``. Dropout, in [0, 1), follows the activation, "relu"
    or "gelu".

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(self, m, f, *, dropout=0.0, activation="relu", rngs):
        self.activation = ACTIVATIONS[activation]
        self.linear1 = dense(m, f, rngs=rngs)
        self.linear2 = dense(f, m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class EncoderBlock(nnx.Module):
    """Attention, then feed-forward, each with residual and norm.

    ``b s m -> b s m, b h s s``; options of a call are those of its attention. Dropout,
    in [0, 1), is on both branches and inside the feed-forward net; ``activation`` is
    "relu" or "gelu", ``attention`` a class. With
    ``norm_first`` norms are before each branch (Xiong et al. 2020), not after each sum.

    Source: Vaswani et al. 2017, sec. 3.1.
    """

    def __init__(
        self, m, n_heads, f, *, dropout=0.0, activation="relu",
        norm_first=False, attention=MultiHeadAttention, rngs,
    ):  # fmt: skip
        self.norm_first = norm_first
        self.attention = attention(m, n_heads, rngs=rngs)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation, rngs=rngs)
        self.norm1 = layer_norm(m, rngs=rngs)
        self.norm2 = layer_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x, mask=None, **options):
        if self.norm_first:
            values, weights = self.attention(self.norm1(x), mask, **options)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask, **options)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


class Encoder(nnx.Module):
    """A stack of blocks: ``b s m -> b s m``, with ``return_maps`` also ``l b h s s``.

    ``norm_first`` also puts one more norm at the end of the stack; ``options`` are the
    ``dropout``, ``activation`` and ``attention`` of every block.
    """

    block = EncoderBlock

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, rngs, **options):
        options = {"norm_first": norm_first, "rngs": rngs, **options}
        blocks = [self.block(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        self.norm = layer_norm(m, rngs=rngs) if norm_first else None

    def __call__(self, x, mask=None, *, is_causal=False, return_maps=False):
        """The outputs, or with ``return_maps`` the pair of them and the maps.

        The masks, ``q k`` or ``b h q k`` and the causal one, are in force in every
        block. What they hide changes nothing that is visible, unless a square of it
        overflows on the way: beyond 1e15 in float32 it may arrive as 0 · NaN.
        """
        maps, options = [], {"is_causal": is_causal, "return_weights": return_maps}
        for block in self.blocks:
            x, weights = block(x, mask, **options)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, jnp.stack(maps)) if return_maps else x
