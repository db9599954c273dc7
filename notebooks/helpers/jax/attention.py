"""Written by `make sync` from notebooks/attention_jax.py."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = (
    "CrossAttention MultiHeadAttention UNIFORM attend attention "
    "check_causal dense full_mask fused_attention masked_softmax "
    "merge_heads split_heads"
).split()


def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)


# One object for all layers: models of the same sizes are then compiled only once.
UNIFORM = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def dense(n_in, n_out, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: entries within ±1/√n_in, zero biases."""
    return nnx.Linear(n_in, n_out, kernel_init=UNIFORM, rngs=rngs)


def merge_heads(values):
    """The outputs of all heads side by side: ``b h q d -> b q m``."""
    b, h, q, d = values.shape
    return values.swapaxes(1, 2).reshape(b, q, h * d)


def split_heads(x, d):
    """Heads of ``d`` features each: ``b s hd -> b h s d``."""
    return x.reshape(*x.shape[:2], -1, d).swapaxes(1, 2)


def check_causal(q, k):
    """The number of queries, which is that of the keys: else, who would see whom?"""
    n, n_keys = q.shape[-2], k.shape[-2]
    if n != n_keys:
        what = "as many queries as keys under a causal mask"
        raise ValueError(f"expected {what}, got {n} and {n_keys}; give a mask instead")
    return n


def full_mask(mask, q, k, is_causal):
    """The mask to use, or None: the given one and, if asked for, the causal one."""
    if mask is not None and (mask.dtype != bool or mask.ndim not in (2, q.ndim)):
        what = f"2 or {q.ndim} axes, got {tuple(mask.shape)}"
        raise ValueError(f"expected a boolean mask of {what}")
    if not is_causal:
        return mask
    n = check_causal(q, k)  # as many keys as queries
    past = jnp.tri(n, dtype=bool)  # q k: the lower triangle
    return past if mask is None else past & mask


def attention(q, k, v, mask=None, *, is_causal=False):  # new
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``.

    A boolean mask, ``q k`` or with all axes of the weights, is True where a query may
    look. Hidden keys and values must be finite: 0 · NaN is NaN.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2)  # ... q k
    weights = masked_softmax(scores, full_mask(mask, q, k, is_causal))  # new
    return weights @ v, weights


def fused_attention(q, k, v, mask=None, *, is_causal=False):
    """The outputs of ``attention``, from arrays with four axes, here ``b h s d``."""
    if q.dtype not in (jnp.float32, jnp.bfloat16):  # JAX's function is made for these
        return attention(q, k, v, mask, is_causal=is_causal)[0]
    arrays = [x.swapaxes(1, 2) for x in (q, k, v)]  # b s h d
    function = jax.nn.dot_product_attention
    if mask is None and (not is_causal or q.shape[2] == k.shape[2]):
        return function(*arrays, is_causal=is_causal).swapaxes(1, 2)
    mask = full_mask(mask, q, k, is_causal)
    seen = mask.any(axis=-1, keepdims=True)
    out = function(*arrays, mask=mask | ~seen)  # a row that hides all would be wrong
    return jnp.where(seen, out.swapaxes(1, 2), 0)


def attend(layer, q, k, v, mask=None, *, is_causal=False, return_weights=False):
    """Output of a layer, and its weights if they are asked for, else None."""
    if not return_weights:
        values = fused_attention(q, k, v, mask, is_causal=is_causal)
        return layer.out(merge_heads(values)), None
    values, weights = attention(q, k, v, mask, is_causal=is_causal)
    return layer.out(merge_heads(values)), weights


class MultiHeadAttention(nnx.Module):
    """Attention in several heads: ``b s m -> b s m, b h s s``."""

    def __init__(self, m, n_heads, *, rngs):
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def project(self, x):
        """Queries, keys and values of every head: each ``b h s d``."""
        d = x.shape[-1] // self.n_heads
        return [split_heads(part, d) for part in jnp.split(self.qkv(x), 3, axis=-1)]

    def __call__(self, x, mask=None, **options):  # new: those of `attend`
        return attend(self, *self.project(x), mask, **options)  # new


class CrossAttention(nnx.Module):
    """Attention to a context: ``b q m, b k m -> b q m, b h q k``."""

    def __init__(self, m, n_heads, *, rngs):
        self.n_heads = n_heads
        self.q, self.kv = dense(m, m, rngs=rngs), dense(m, 2 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def queries(self, x):
        """Of every head: ``b q m -> b h q d``."""
        return split_heads(self.q(x), x.shape[-1] // self.n_heads)

    def keys_values(self, context):
        """Of every head: ``b k m``, each to ``b h k d``."""
        d = context.shape[-1] // self.n_heads
        parts = jnp.split(self.kv(context), 2, axis=-1)
        return [split_heads(part, d) for part in parts]

    def __call__(self, x, context, mask=None, **options):
        q = self.queries(x)
        k, v = self.keys_values(context)
        return attend(self, q, k, v, mask, **options)
