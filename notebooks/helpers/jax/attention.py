"""Written by `make sync` from notebooks/attention_jax.py."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.data import checks

__all__ = (
    "CrossAttention MultiHeadAttention UNIFORM attend attention dense "
    "framework_attention fused_attention masked_softmax merge_heads "
    "split_heads with_causal"
).split()


def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    checks.check_mask(mask, scores)
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)


def with_causal(mask, q, k):
    """A mask under which positions also see only themselves and what comes before."""
    checks.check_causal(q, k)
    past = jnp.tri(q.shape[-2], k.shape[-2], dtype=bool)
    return past if mask is None else mask & past  # ... q k


def attention(q, k, v, mask=None, *, is_causal=False):
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``.

    A boolean mask, ``q k`` or with all axes of the weights, is True where a query may
    look. Hidden keys and values must be finite: 0 · NaN is NaN.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2)  # ... q k
    mask = with_causal(mask, q, k) if is_causal else mask
    weights = masked_softmax(scores, mask)
    return weights @ v, weights


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


def framework_attention(q, k, v, mask=None, *, is_causal=False):
    """JAX's function, with the kernel that fits: ``b h q d, …, … -> b h q d``."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # b s h d
    half = q.dtype in (jnp.bfloat16, jnp.float16) and q.shape[3] in range(8, 129, 8)
    even = q.shape[1] % 2 == k.shape[1] % 2 == 0
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    ampere = capability[:1].isdigit() and float(capability) >= 8  # AMD's: "gfx942"
    kernel, dtype = "cudnn" if half and even and ampere else "xla", q.dtype
    if jax.default_backend() == "cpu":  # where XLA lacks some products of halves
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    options = {"mask": mask, "is_causal": is_causal, "implementation": kernel}
    out = jax.nn.dot_product_attention(q, k, v, **options)
    return out.swapaxes(1, 2).astype(dtype)


def fused_attention(q, k, v, mask=None, *, is_causal=False):
    """The outputs of ``attention``, from arrays with four axes, here ``b h s d``."""
    if q.dtype == jnp.float64:  # JAX's function takes the softmax in float32
        return attention(q, k, v, mask, is_causal=is_causal)[0]
    if mask is None:  # the causal mask as a flag: kernels then skip what it hides
        if is_causal:
            checks.check_causal(q, k)
        return framework_attention(q, k, v, is_causal=is_causal)
    mask = with_causal(mask, q, k) if is_causal else mask
    checks.check_mask(mask, q)
    seen = mask.any(axis=-1, keepdims=True)  # where a query sees nothing, it sees all
    whole = mask | ~seen | jnp.zeros((q.shape[2], k.shape[2]), bool)  # for cuDNN
    return jnp.where(seen, framework_attention(q, k, v, whole), 0)


def attend(layer, q, k, v, mask=None, *, is_causal=False, return_weights=False):
    """Output of a layer, and its weights if they are asked for, else None."""
    if return_weights:
        values, weights = attention(q, k, v, mask, is_causal=is_causal)
    else:
        values, weights = fused_attention(q, k, v, mask, is_causal=is_causal), None
    return layer.out(merge_heads(values)), weights


class MultiHeadAttention(nnx.Module):
    """Attention in several heads: ``b s m -> b s m, b h s s``."""

    def __init__(self, m, n_heads, *, rngs):
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def project(self, x):  # new
        """Queries, keys and values of every head: each ``b h s d``."""
        d = x.shape[-1] // self.n_heads
        return [split_heads(part, d) for part in jnp.split(self.qkv(x), 3, axis=-1)]

    def __call__(self, x, mask=None, **options):  # those of `attend`
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
        return [
            split_heads(part, d) for part in jnp.split(self.kv(context), 2, axis=-1)
        ]

    def __call__(self, x, context, mask=None, **options):
        q, (k, v) = self.queries(x), self.keys_values(context)
        return attend(self, q, k, v, mask, **options)
