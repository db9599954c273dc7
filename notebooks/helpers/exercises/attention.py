"""Exercises of the chapter *attention*."""

from helpers.exercises import Exercise, np


def softmax(scores, axis=-1):
    exp = np.exp(scores - np.max(scores, axis=axis, keepdims=True))
    return exp / np.sum(exp, axis=axis, keepdims=True)


@Exercise("attention.masked", lambda rng: [
    (words, {"q": far * rng.normal(size=(2, 4, 3)), "k": rng.normal(size=(2, 5, 3)),
     "v": rng.normal(size=(2, 5, 2)), "mask": p and rng.random((2, 4, 5)) < p})
    for words, far, p in (("no mask", 1, None), ("a mask", 1, 0.6), ("large scores", 99,
    0.6), ("a query that may look nowhere", 1, [[0.9], [0], [0.5], [1]]))], """
/ q.shape[-1] ** 0.5 -> | the scores are not divided by the root of d
** 0.5 -> | you divide by d, not by its root
/ q.shape[-1] -> / v.shape[-1] | the scale has the size of queries, not of values
-1e30)) -> -1e30), -2) | your softmax runs over the queries: look at its axis
mask, scores, -1e30 -> mask, -1e30, scores | True hides a key: it means *may look*
mask, scores, -1e30 -> mask, -np.inf, scores & * np.any(mask, -1)[..., None] -> \
| True means *may look*: you hide these keys, as PyTorch's layer does
np.where(mask, scores, -1e30) -> scores | hidden keys still get weight: use the mask
* np.any(mask, -1)[..., None] -> | a query that may look nowhere should get zeros
-1e30 -> 0 * scores | a hidden score of 0 still gets weight: go far below the others
-1e30 -> -np.inf | NaN: a query that may look nowhere has only scores of -inf
np.where(mask, scores, -1e30) -> scores & np.any(mask, -1)[..., None] -> mask \
| you hide after the softmax: what is left no longer sums to 1""")  # fmt: skip
def masked(q, k, v, mask):
    mask = np.ones((1, k.shape[-2]), dtype=bool) if mask is None else mask
    scores = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    weights = softmax(np.where(mask, scores, -1e30))
    return weights * np.any(mask, -1)[..., None] @ v


@Exercise("attention.heads", lambda rng: [(f"n_heads = {n}", {
    "x": rng.normal(size=(2, 5, 8)), "qkv": rng.normal(size=(8, 24)),
    "out": rng.normal(size=(8, 8)), "n_heads": n}) for n in (2, 4)], """
, 1, 2) for -> , 1, 1) for | heads attend to heads: swap the axes of positions and heads
s, n_heads, d)), 1, 2 -> n_heads, s, d)), 1, 1 | a reshape to b h s d mixes positions
n_heads, d)), 1 -> d, n_heads)).swapaxes(2, 3), 1 | heads are interleaved: cut blocks
d**0.5 -> m**0.5 | you scale by the root of m: a head has only d = m / h features
/ d**0.5 -> | the scores are not divided by the root of d
values, 1, 2 -> values, 1, 1 | before you merge the heads, swap their axis back
d**0.5) -> d**0.5, -2) | your softmax runs over the queries, not over the keys
x @ qkv -> (x @ qkv).reshape((b, s, -1, 3 * d)) | first q of all heads, then k, then v""")  # fmt: skip
def heads(x, qkv, out, n_heads):
    (b, s, m), d = x.shape, x.shape[-1] // n_heads
    parts = np.split(x @ qkv, 3, axis=-1)
    q, k, v = [np.swapaxes(p.reshape((b, s, n_heads, d)), 1, 2) for p in parts]
    values = softmax(q @ np.swapaxes(k, -1, -2) / d**0.5) @ v
    return np.swapaxes(values, 1, 2).reshape((b, s, m)) @ out
