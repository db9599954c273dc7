"""Exercises of the chapter *attention*."""

import math

import numpy as np

from helpers.exercises import exercise


def softmax(scores, axis=-1):
    exp = np.exp(scores - np.max(scores, axis=axis, keepdims=True))
    return exp / np.sum(exp, axis=axis, keepdims=True)


def for_attention(rng):
    q, k, v = (rng.normal(size=size) for size in [(2, 4, 3), (2, 5, 3), (2, 5, 6)])
    mask = rng.random((2, 4, 5)) < 0.6
    mask[..., 0], blind = True, mask.copy()
    blind[:, 1] = False
    yield "no mask", {"q": q, "k": k, "v": v, "mask": None}
    yield "a mask for each example", {"q": q, "k": k, "v": v, "mask": mask}
    yield "large scores", {"q": q * 60, "k": k * 9, "v": v, "mask": mask}
    yield "a query that may look nowhere", {"q": q, "k": k, "v": v, "mask": blind}


@exercise(
    "attention.masked",
    for_attention,
    """
/ math.sqrt(q.shape[-1]) -> | the scores are not divided by the root of d
math.sqrt(q.shape[-1]) -> q.shape[-1] | you divide by d, not by its root
q.shape[-1] -> k.shape[-2] | you scale by the number of keys, not of features
softmax(scores) -> softmax(scores, -2) | your softmax runs over the queries: look at its axis
(mask, scores, -1e30) -> (mask, -1e30, scores) | True hides a key: it means *may look*
scores = np.where(mask, scores, -1e30) -> pass | the mask hides nothing before the softmax
* np.any(mask, axis=-1, keepdims=True) -> | a query that may look nowhere should get zeros
-1e30 -> 0 * scores | a hidden score is 0, which gets weight: take nearly minus infinity
scores = np.where(mask, scores, -1e30) -> pass \
& * np.any(mask, axis=-1, keepdims=True) -> * mask | hide before the softmax: weights must sum to 1
""",
)
def masked(q, k, v, mask):
    mask = np.ones((1, k.shape[-2]), dtype=bool) if mask is None else mask
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    scores = np.where(mask, scores, -1e30)
    weights = softmax(scores)
    weights = weights * np.any(mask, axis=-1, keepdims=True)
    return weights @ v


def for_heads(rng):
    x, qkv, out = (rng.normal(size=size) for size in [(2, 5, 8), (8, 24), (8, 8)])
    for n_heads in (1, 2, 4):
        yield f"{n_heads} heads", {"x": x, "qkv": qkv, "out": out, "n_heads": n_heads}


@exercise(
    "attention.heads",
    for_heads,
    """
np.swapaxes(part, 1, 2) for -> part for | heads attend to heads: swap positions and heads
(b, s, n_heads, d)) -> (b, n_heads, s, d)).swapaxes(1, 2) | a reshape to b h s d mixes rows
(b, s, n_heads, d)) -> (b, s, d, n_heads)).swapaxes(2, 3) | heads are interleaved
math.sqrt(d) -> math.sqrt(m) | you scale by the width m; a head has d = m / h features
/ math.sqrt(d) -> | the scores are not divided by the root of d
np.swapaxes(values, 1, 2) -> values | heads are merged without being swapped back
@ out -> | the last product, with `out`, is missing
q, k, v = -> v, k, q = | queries and values are exchanged: the order is q k v
softmax(scores) -> softmax(scores, 1) | your softmax runs over the heads: look at its axis
softmax(scores) -> softmax(scores, -2) | your softmax runs over the queries
""",
)
def heads(x, qkv, out, n_heads):
    b, s, m = x.shape
    d = m // n_heads
    parts = [part.reshape((b, s, n_heads, d)) for part in np.split(x @ qkv, 3, axis=-1)]
    q, k, v = (np.swapaxes(part, 1, 2) for part in parts)
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(d)
    values = softmax(scores) @ v
    return np.swapaxes(values, 1, 2).reshape((b, s, m)) @ out
