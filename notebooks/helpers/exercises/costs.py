"""Exercises of the chapter *costs*."""

from helpers.exercises import Exercise


@Exercise("costs.n_parameters", lambda *_: [(f"m = {m}, f = {f}", m, f, *more) for m, f,
    *more in ((3, 7, 2, 13, 11), (16, 5, 3, 97, 29), (8, 32, 9, 5, 1),
    (768, 3072, 12, 50257, 1024))], """
4 * m * m -> 3 * m * m | attention has four matrices: queries, keys, values, output
+ 4 * m -> | in a block 4m are missing: the biases of attention, or both norms
2 * m * f -> m * f | the feed-forward net has two matrices
+ f + m -> | the biases of the feed-forward net are missing
2 * 2 * m -> 2 * m | a block has two norms, each with a scale and a bias
+ 2 * m + tables -> + tables | the norm after the last block is missing
n_tokens * m -> 2 * n_tokens * m | tied: one table reads and writes the tokens
+ max_length * m -> | the table of positions is missing""", smooth=False)  # fmt: skip
def n_parameters(m, f, n_blocks, n_tokens, max_length):
    attention, ffn = 4 * m * m + 4 * m, 2 * m * f + f + m
    tables = n_tokens * m + max_length * m
    return n_blocks * (attention + ffn + 2 * 2 * m) + 2 * m + tables


@Exercise("costs.cache_bytes", lambda *_: [(f"{x[5]} of {x[4]} heads have keys", *x) for
    x in ((3, 7, 5, 30, 6, 2, 4), (1, 6, 3, 48, 12, 1, 2), (6, 9, 9, 72, 8, 8, 4))], """
return 2 * -> return | a token has both a key and a value
n_texts * -> | each text has a cache of its own
n_blocks * -> | each block has a cache of its own
n_kv_heads * (m // n_heads) -> m | you keep keys of all heads, but some share theirs
(m // n_heads) -> m | a head has only m / n_heads features
n_kv_heads * -> (n_heads // n_kv_heads) * | multiply by n_kv_heads, divide by n_heads
* n_bytes -> | this counts numbers, not yet bytes
* n_bytes -> * 4 | a number need not take four bytes""", smooth=False)  # fmt: skip
def cache_bytes(n_texts, length, n_blocks, m, n_heads, n_kv_heads, n_bytes):
    return 2 * n_texts * length * n_blocks * n_kv_heads * (m // n_heads) * n_bytes
