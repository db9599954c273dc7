"""Exercises of parts of models, by chapter."""

from helpers.exercises import ROTATION, SCORES, Exercise, log_softmax, np


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


@Exercise("encoder.layer_norm", lambda _, normal: [(words, x, normal(6), normal(6))
    for words, x in (("b s m", 2 + normal((2, 3, 6))), ("equal features",
    np.ones((4, 6))), ("small features", 0.03 * normal((4, 6))))], """
axis=-1 -> axis=0 | you normalise over the batch: that is batch norm
axis=-1 -> axis=-2 | you normalise over the positions, not over the features
+ 1e-5 -> | NaN: without eps, equal features give 0/0
(square + 1e-5) -> (square) + 1e-5 | eps belongs under the root
np.sqrt(square -> (square | you divide by the variance, not by its root
np.mean(x**2 -> 1.2 * np.mean(x**2 | the variance divides by m, not by m - 1
x = x - -> y = x - | the mean is not subtracted; that is nearly RMS norm
* scale -> | `scale` is not used""")  # fmt: skip
def layer_norm(x, scale, bias):
    x = x - np.mean(x, axis=-1, keepdims=True)
    square = np.mean(x**2, axis=-1, keepdims=True)
    return x / (np.sqrt(square + 1e-5)) * scale + bias


@Exercise("encoder.pre_norm", lambda _, normal: [(f"x is {size}", 3 * normal(size),
    lambda x: x * x + x.mean(1)[:, None], lambda x: 0.3 * x**3 - 1, *(lambda x, c=c:
    c * x / (1 + x * x) for c in (1, 2))) for size in ((2, 3, 4), (1, 6, 4))], """
x + attend(norm1(x)) -> norm1(x + attend(x)) & x + ffn(norm2(x)) -> norm2(x + ffn(x)) \
| this is post-norm: normalise what a part reads, not the sum
x + attend -> attend | attention has no residual connection
x + ffn -> ffn | the feed-forward net has no residual connection
x + ffn -> norm2(x) + ffn | the second residual connection adds x without a norm
norm2(x) -> norm1(x) | norm1 is used twice: the feed-forward net has norm2
attend(norm1 -> attend(norm2 & ffn(norm2 -> ffn(norm1 | norm1 and norm2 are exchanged
x = x -> y = x & return x -> return y | the feed-forward net should read the sum, not x
attend(norm1(x)) -> attend(x) | attention reads x without a norm""")  # fmt: skip
def pre_norm(x, attend, ffn, norm1, norm2):
    x = x + attend(norm1(x))
    return x + ffn(norm2(x))


@Exercise("positions.sinusoidal", lambda *_: [(f"length = {length}, m = {m}", length, m)
    for length, m in ((7, 6), (1, 4), (40, 10))], """
i - i % 2 -> i | sine and cosine of a pair turn at one speed: both take the even i
np.arange(length) -> np.arange(1, length + 1) | the first position is 0, not 1
np.sin(angle), np.cos(angle) -> angle, angle | these are angles: take sine and cosine
i - i % 2 -> 2 * i % m & i % 2 == 0 -> 2 * i < m | let sines and cosines take turns
i % 2 == 0 -> i % 2 == 1 | sine and cosine are exchanged: feature 0 is a sine
np.arange(m) -> np.arange(1, m + 1) | features are counted from 0, not from 1
/ m) -> / 2 / m) | the exponent is i / m with i = 0, 2, 4, not 0, 1, 2
10000 ** -> 1000 ** | the base is 10,000, not 1,000""", smooth=False)  # fmt: skip
def sinusoidal(length, m):
    i = np.arange(m)
    angle = np.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle))


@Exercise("positions.rotary", lambda _, normal: [(f"offset = {n}", normal(size), n)
    for n, size in ((0, (2, 3, 5, 6)), (3, (2, 4, 8)), (7, (1, 1, 4)))], ROTATION + """
offset + -> | the offset is ignored: a new token is rotated as position 0
::2], x[..., 1::2] -> :half], x[..., half:] & pairs, axis=-1 -> pairs, axis=-2 \
| a pair is two neighbours, not one feature of each half
pairs, axis=-1 -> pairs, axis=-2 | put each pair back side by side, in the old order""")  # fmt: skip
def rotary(x, offset):
    half, s = x.shape[-1] // 2, x.shape[-2]
    angle = (offset + np.arange(s))[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b, cos, sin = x[..., ::2], x[..., 1::2], np.cos(angle), np.sin(angle)
    pairs = a * cos - b * sin, a * sin + b * cos
    return np.stack(pairs, axis=-1).reshape(x.shape)


@Exercise("vision.patches", lambda _, normal: [(f"{size}, patch = {p}", normal(size), p)
    for size, p in (((2, 4, 6, 3), 2), ((1, 9, 6, 2), 3), ((2, 8, 8, 1), 4))], """
b, y, x, c) -> b, x, y, c) | the axes are b y x c: the height comes before the width
np.swapaxes(cut, 2, 3) -> cut | a reshape alone mixes patches: swap axes in between
(cut, 2, 3) -> (cut, 2, 3).swapaxes(1, 2) | patches come by columns: go row by row
(cut, 2, 3) -> (cut, 2, 3).swapaxes(3, 4) | pixels come by columns: go row by row
y // p, p, x // p, p -> p, y // p, p, x // p | split a side into patches, then pixels
p * p * c)) -> p * p, c)).swapaxes(2, 3).reshape((b, -1, p * p * c)) \
| within a patch the channels come last: those of a pixel stand together
(b, -1, -> (-1, | the patches of all pictures are merged: keep b
(b, -1, -> (b, y // p, x // p, | patches have one axis, n""")  # fmt: skip
def patches(images, patch):
    (b, y, x, c), p = images.shape, patch
    cut = images.reshape((b, y // p, p, x // p, p, c))
    return np.swapaxes(cut, 2, 3).reshape((b, -1, p * p * c))


@Exercise("vision.tokens", lambda _, normal: [(f"b n i = {b, n, i}", normal((b, n, i)),
    normal((i, 5)), normal(5), normal((n + 1, 5)))
    for b, n, i in ((2, 4, 3), (3, 1, 6), (1, 6, 5))], """
class_token + -> 0 * class_token + | the class token is not used
+ table -> | the positions are not added
+ table -> * table | positions are added, not multiplied
+ table -> + table[:1] | each element has its own position: use all rows of the table
@ w -> @ w + table[1:] & ) + table -> ) | the class token has a position, too
@ w -> @ w + table[:-1] & ) + table -> ) | the table's first row is the class token's
@ w -> @ w * w.shape[1] ** 0.5 | a ViT does not multiply by the root of m
[first, x] -> [x, first] | the class token comes first""")  # fmt: skip
def tokens(patches, w, class_token, table):
    x = patches @ w
    first = class_token + np.zeros((len(x), 1, 1))
    return np.concatenate([first, x], axis=1) + table


@Exercise("today.rotary_offset", lambda _, normal: [(f"rows from positions {start}",
    normal((2, 3, s, d)), np.array(start)[:, None] + np.arange(s), base)
    for start, s, d, base in (((0, 0), 5, 6, 100.0), ((7, 7), 1, 8, 50.0),
    ((2, 9), 5, 6, 20.0))], ROTATION + """
positions[:, None, :, None] -> np.arange(x.shape[2])[:, None] | `positions` is ignored
positions[:, -> positions[:1, | each row of the batch has positions of its own
(-np -> (np | the exponent is negative: later pairs turn more slowly
base ** -> 10000.0 ** | `base` is not used
:half], x[..., half:] -> ::2], x[..., 1::2] | you cut neighbours, but put back halves
:half], x[..., half:] -> ::2], x[..., 1::2] & concatenate -> stack & cos], -1) -> \
cos], -1).reshape(x.shape) | feature i turns with i + d/2, not with its neighbour""")  # fmt: skip
def rotary_offset(x, positions, base):
    half = x.shape[-1] // 2
    angle = positions[:, None, :, None] * base ** (-np.arange(half) / half)
    a, b, cos, sin = x[..., :half], x[..., half:], np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


@Exercise("today.grouped", lambda _, normal: [(f"{h} query heads, {g} of keys", far *
    normal((2, h, 3, 5)), normal((2, g, 4, 5)), normal((2, g, 4, 5))) for h, g, far in (
    (6, 3, 1), (3, 1, 1), (6, 3, 99))], SCORES + """
g, -1, -> -1, g, & :, None] -> None] | repeat each key head for neighbours: do not tile
k[:, :, -> k[:, :1, & v[:, :, -> v[:, :1, | each group has its own keys and values
k[:, -> (0 * k + k.mean(1)[:, None])[:, | a group has its own keys: no mean over groups
scores) -> 0 * scores + scores.mean(2)[:, :, None]) | do not average a group's queries
scores) -> scores, 2) | your softmax runs over the heads of a group, not over the keys
values). -> values).swapaxes(1, 2). | keep the order of the heads
q.reshape -> q.swapaxes(1, 2).reshape | q is b h s d: split the heads, not positions
q.shape[-1] ** 0.5 -> (h * d) ** 0.5 | a head has d features: its scale is not that of m""")  # fmt: skip
def grouped(q, k, v):
    (b, h, s, d), g, keys, values = q.shape, k.shape[1], k[:, :, None], v[:, :, None]
    q = q.reshape((b, g, -1, s, d))
    scores = q @ np.swapaxes(keys, -1, -2) / q.shape[-1] ** 0.5
    return (np.exp(log_softmax(scores)) @ values).reshape((b, h, s, d))
