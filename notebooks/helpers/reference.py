"""Attention, norms, positions, blocks and stacks of them in NumPy float64.

Written to be checked against the formulas by eye, not to be fast: one query at a time,
and a hidden key is left out of the sum instead of being given a low score. Parameters
are as ``weights.to_arrays`` makes them; a dense layer is ``x @ weight + bias``.
"""

import math

import numpy as np


def softmax(scores):
    """``exp(s_i) / sum_j exp(s_j)`` over the last axis."""
    exp = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def attention(q, k, v, mask=None):
    """Weighted mean of ``v``, one query at a time: ``... q e, ... q k``.

    ``q``, ``k``, ``v`` are ``... q d``, ``... k d``, ``... k e``; the mask is boolean,
    ``q k`` or with as many axes as the weights, and True means "may look". Outputs and
    weights are zero for a query that may look nowhere.

    Source: Vaswani et al. 2017, eq. 1.
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    shape = (*q.shape[:-1], k.shape[-2])  # ... q k
    seen = np.ones(shape, bool)
    if mask is not None:
        assert mask.dtype == bool and mask.ndim in (2, len(shape)), "not a mask"
        seen = np.broadcast_to(mask, shape)
    weights = np.zeros(shape)
    out = np.zeros((*q.shape[:-1], v.shape[-1]))  # ... q e
    for place in np.ndindex(shape[:-1]):
        keys, lead = seen[place], place[:-1]
        if keys.any():
            scores = k[lead][keys] @ q[place] / math.sqrt(q.shape[-1])
            weights[place][keys] = softmax(scores)
            out[place] = weights[place][keys] @ v[lead][keys]
    return out, weights


def dense(x, params, name):
    """``x W + b`` with the parameters called ``name``."""
    return x @ params[f"{name}.weight"] + params[f"{name}.bias"]


def multi_head_attention(x, params, n_heads, mask=None, context=None):
    """Attention in ``n_heads`` heads: ``b q m -> b q m, b h q k``.

    Keys and values come from ``context`` ``b k m``, or without it from ``x``.

    Source: Vaswani et al. 2017, sec. 3.2.2.
    """

    def heads(x, name, n):
        projected = np.split(dense(x, params, name), n, axis=-1)  # each b s m
        return [y.reshape(*x.shape[:2], n_heads, -1).swapaxes(1, 2) for y in projected]

    if context is None:
        q, k, v = heads(x, "qkv", 3)  # each b h s d
    else:
        (q,), (k, v) = heads(x, "q", 1), heads(context, "kv", 2)
    values, weights = attention(q, k, v, mask)
    joined = values.swapaxes(1, 2).reshape(x.shape)  # b q m
    return dense(joined, params, "out"), weights


def normalise(x, params, name, norm="layer", epsilon=1e-5):
    """Layer norm (Ba et al. 2016) or RMS norm (Zhang & Sennrich 2019), last axis."""
    if norm == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)
    return x * params[f"{name}.weight"] + params.get(f"{name}.bias", 0.0)


def relu(x):
    """``max(0, x)``."""
    return np.maximum(0, x)


def gelu(x):
    """``x`` times the normal distribution function of ``x`` (Hendrycks & Gimpel 2016)."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def encoder_block(
    x, params, n_heads, mask=None, activation="relu", norm="layer", norm_first=False,
    context=None,
):  # fmt: skip
    """One block without dropout: ``b s m -> b s m, b h s s``.

    With a ``context`` ``b k m`` it is a decoder's, and returns cross weights ``b h s k``.

    Source: post-norm from Vaswani et al. 2017, sec. 3.1; pre-norm from Xiong et al. 2020.
    """
    act = {"relu": relu, "gelu": gelu}[activation]

    def add(x, branch, name):
        values, weights = branch(normalise(x, params, name, norm) if norm_first else x)
        x = x + values
        return x if norm_first else normalise(x, params, name, norm), weights

    def attend(x):
        return multi_head_attention(x, inside(params, "attention."), n_heads, mask)

    def look(x):
        inner = inside(params, "cross.")
        return multi_head_attention(x, inner, n_heads, context=context)

    def feed_forward(x):
        return dense(act(dense(x, params, "ffn.linear1")), params, "ffn.linear2"), None

    x, *maps = add(np.asarray(x, dtype=np.float64), attend, "norm1")
    if context is not None:
        x, cross = add(x, look, "cross_norm")
        maps.append(cross)
    return add(x, feed_forward, "norm2")[0], *maps


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``.

    Feature pair ``(i, i + 1)``, ``i`` even, turns with angle ``pos / 10000^(i/m)``.
    Any ``m`` works; an odd one ends on a sine.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    i = np.arange(m)
    angle = np.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)  # s m
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle))


def inside(params, path):
    """The parameters of a part of a model, under the names they have in it."""
    return {n.removeprefix(path): a for n, a in params.items() if n.startswith(path)}


def encoder(x, params, n_blocks, n_heads, mask=None, **options):
    """A stack of blocks, without dropout: ``b s m -> b s m, l b h s s``.

    ``options`` are those of ``encoder_block``; pre-norm ends with one more norm.
    """
    maps = []
    for block in range(n_blocks):
        own = inside(params, f"blocks.{block}.")
        x, weights = encoder_block(x, own, n_heads, mask, **options)
        maps.append(weights)
    if options.get("norm_first"):
        x = normalise(x, params, "norm", options.get("norm", "layer"))
    return x, np.stack(maps)
