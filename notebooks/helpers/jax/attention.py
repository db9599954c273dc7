"""Written by `make sync` from notebooks/attention_jax.py."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.data import checks

__all__ = (
    "MultiHeadAttention UNIFORM attention check_mask dense "
    "framework_attention fused_attention linear_parts masked_softmax "
    "merge_heads with_causal"
).split()


def check_mask(mask, scores):
    """Raise an error unless a mask is boolean, with two axes or as many as the scores.

    Three axes for scores ``b h q k`` are ambiguous: one mask a sequence, or a head?
    """
    if mask.dtype != jnp.bool_:
        raise TypeError("expected a boolean mask, got one of numbers")
    if mask.ndim not in (2, scores.ndim):
        axes = f"2 or {scores.ndim} axes, got {tuple(mask.shape)}"
        raise ValueError(f"expected a mask of {axes}")


def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    check_mask(mask, scores)
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
    check_mask(mask, q)
    seen = mask.any(axis=-1, keepdims=True)  # where a query sees nothing, it sees all
    whole = mask | ~seen | jnp.zeros((q.shape[2], k.shape[2]), bool)  # for cuDNN
    return jnp.where(seen, framework_attention(q, k, v, whole), 0)


def linear_parts(layer, x, parts="qkv"):
    """Of the stacked outputs of a layer only some ``parts``: ``b s m -> b s nm``."""
    if parts == "qkv":
        return layer(x)
    first, m = "qkv".index(parts), layer.in_features
    columns = slice(first * m, (first + len(parts)) * m)
    arrays = (x, layer.kernel[:, columns], layer.bias[columns])
    x, kernel, bias = layer.promote_dtype(arrays, dtype=layer.dtype)  # as it does
    return x @ kernel + bias


class MultiHeadAttention(nnx.Module):
    """Attention in several heads: ``b q m -> b q m, b h q k``.

    Keys and values come from a ``context``, ``b k m``; without one, from ``x``.
    """

    def __init__(self, m, n_heads, *, rngs):
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def project(self, x, parts="qkv", offset=0):  # new
        """Queries, keys and values of every head, or some of them: ``n b h s d``."""
        stacked = linear_parts(self.qkv, x, parts)  # b s nm
        b, s, m = x.shape
        stacked = stacked.reshape(b, s, len(parts), self.n_heads, m // self.n_heads)
        return stacked.transpose(2, 0, 3, 1, 4)

    def __call__(
        self, x, mask=None, context=None, *, is_causal=False, return_weights=False
    ):  # new
        if context is None:
            q, k, v = self.project(x)  # each b h s d
        else:  # new
            (q,), (k, v) = self.project(x, "q"), self.project(context, "kv")
        if return_weights:
            values, weights = attention(q, k, v, mask, is_causal=is_causal)
        else:  # new
            values = fused_attention(q, k, v, mask, is_causal=is_causal)
        return self.out(merge_heads(values)), weights if return_weights else None
