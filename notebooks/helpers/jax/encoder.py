"""Written by `make sync` from notebooks/encoder_jax.py."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.jax.attention import MultiHeadAttention, dense

__all__ = (
    "ACTIVATIONS Encoder EncoderBlock FeedForward attention_maps "
    "layer_norm without_dropout"
).split()


ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}
# Flax's default variance, E[x²] − E[x]², loses digits; epsilon as in PyTorch
layer_norm = partial(nnx.LayerNorm, epsilon=1e-5, use_fast_variance=False)


class FeedForward(nnx.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``."""

    def __init__(self, m, f, *, dropout=0.0, activation="relu", rngs):
        self.activation = ACTIVATIONS[activation]
        self.linear1 = dense(m, f, rngs=rngs)
        self.linear2 = dense(f, m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class EncoderBlock(nnx.Module):
    """Attention, then feed-forward, each with residual and norm: ``b s m -> b s m``."""

    def __init__(
        self,
        m,
        n_heads,
        f,
        *,
        dropout=0.0,  # new
        norm_first=False,  # new
        activation="relu",  # new
        attention=MultiHeadAttention,  # new
        rngs,
    ):
        self.norm_first = norm_first  # new
        self.attention = attention(m, n_heads, rngs=rngs)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation, rngs=rngs)
        self.norm1 = layer_norm(m, rngs=rngs)
        self.norm2 = layer_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)  # new

    def __call__(self, x, mask=None, **options):
        if self.norm_first:  # new
            values, weights = self.attention(self.norm1(x), mask, **options)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask, **options)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


class Encoder(nnx.Module):
    """A stack of blocks: ``b s m -> b s m``, on demand with maps ``l b h s s``."""

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, rngs, **options):
        options = {"norm_first": norm_first, "rngs": rngs, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        self.norm = layer_norm(m, rngs=rngs) if norm_first else None

    def __call__(self, x, mask=None, *, return_maps=False, **options):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask, return_weights=return_maps, **options)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, jnp.stack(maps)) if return_maps else x


def without_dropout(model):
    """A copy of the model with dropout off."""
    quiet = nnx.clone(model)
    quiet.eval()
    return quiet


@nnx.jit
def attention_maps(model, x, mask=None):
    """Outputs, and maps ``l b h q k``, of one forward pass with dropout off."""
    return without_dropout(model)(x, mask, return_maps=True)
