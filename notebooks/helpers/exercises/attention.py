"""Exercises of the chapter *attention*."""

from helpers.exercises import SCORES, Exercise, log_softmax, np


@Exercise("attention.masked", lambda rng, normal: [(words, far * normal((2, 4, 3)),
    normal((2, 5, 3)), normal((2, 5, 2)), p and rng.random((2, 4, 5)) < p)
    for words, far, p in (("no mask", 1, None), ("a mask", 1, 0.6), ("large scores", 99,
    0.6), ("a query that may look nowhere", 1, [[0.9], [0], [0.5], [1]]))], SCORES + """
/ q.shape[-1] -> / v.shape[-1] | the scale has the size of queries, not of values
mask, scores, -1e30 -> mask, -1e30, scores | True hides a key: it means *may look*
mask, scores, -1e30 -> mask, -np.inf, scores & * np.any(mask, -1)[..., None] -> \
| True means *may look*: you hide these keys, as PyTorch's layer does
np.where(mask, scores, -1e30) -> scores | hidden keys still get weight: use the mask
* np.any(mask, -1)[..., None] -> | a query that may look nowhere should get zeros
-1e30 -> 0 * scores | a hidden score of 0 still gets weight: go far below the others
-1e30 -> -np.inf | NaN: a query that may look nowhere has only scores of -inf
scores = np -> _ = np & np.any(mask, -1)[..., None] -> mask | hide before the softmax""")  # fmt: skip
def masked(q, k, v, mask):
    mask = np.ones((1, k.shape[-2]), dtype=bool) if mask is None else mask
    scores = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    scores = np.where(mask, scores, -1e30)
    return np.exp(log_softmax(scores)) * np.any(mask, -1)[..., None] @ v


@Exercise("attention.heads", lambda _, normal: [(f"n_heads = {n}, {far} x", far *
    normal((2, 5, 8)), normal((8, 24)), normal((8, 8)), n) for n, far in (
    (2, 1), (4, 1), (2, 4))], SCORES + """
, 1, 2) for -> , 1, 1) for | heads attend to heads: swap the axes of positions and heads
s, n_heads, d)), 1, 2 -> n_heads, s, d)), 1, 1 | a reshape to b h s d mixes positions
n_heads, d)), 1 -> d, n_heads)).swapaxes(2, 3), 1 | heads are interleaved: cut blocks
q.shape[-1] ** 0.5 -> m**0.5 | this is the root of m: a head has d = m / h features
@ v, 1, 2 -> @ v, 1, 1 | before you merge the heads, swap their axis back
x @ qkv -> (x @ qkv).reshape((b, s, -1, 3 * d)) | first q of all heads, then k, then v""")  # fmt: skip
def heads(x, qkv, out, n_heads):
    (b, s, m), d = x.shape, x.shape[-1] // n_heads
    parts = np.split(x @ qkv, 3, axis=-1)
    q, k, v = [np.swapaxes(p.reshape((b, s, n_heads, d)), 1, 2) for p in parts]
    scores = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    return np.swapaxes(np.exp(log_softmax(scores)) @ v, 1, 2).reshape((b, s, m)) @ out
