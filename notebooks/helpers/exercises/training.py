"""Exercises of trainings, by chapter."""

from helpers.exercises import LOSS, Exercise, log_softmax, np


@Exercise("reverse.cross_entropy", lambda rng, normal: [(words, far * normal((*n, 3)),
    rng.integers(3, size=n)) for words, far, n in (("b s c", 2, (2, 5)),
    ("s = 1", 2, (4, 1)), ("logits of 1,000", 1000, (5, 4)))], LOSS + """
np.mean( -> np.sum( | you sum over the positions: take the mean
-np.mean( -> -labels.shape[1] * np.mean( | you sum over each sequence: take one mean
max(logits -> max(logits, -2 | your softmax runs over the positions, not the classes""")  # fmt: skip
def cross_entropy(logits, labels):
    log_p = log_softmax(logits)
    return -np.mean(log_p[labels[..., None] == np.arange(logits.shape[-1])])


@Exercise("reverse.training_step", lambda _, normal: [
    (f"n, max_norm, size of x = {n, most, far}", normal((3, 2)), far * normal((n, 3)),
    y * normal((n, 2)), 0.3, most) for n, y, most, far in ((7, 20, 0.8, 1),
    (7, 1, 100.0, 1), (1, 1, 99.0, 1), (5, 9, 2.5, 1), (4, 1, 2.5, 0))], """
w - -> w + | the loss rises: go against the gradient
/ len(y) / y.shape[1] -> | this gradient is that of the sum: the loss is a mean
/ y.shape[1] -> | the loss is a mean over rows and columns, not over rows alone
.clip(max_norm) -> | short gradients become longer: clipping only shortens
* max_norm / norm.clip(max_norm) -> | the gradient is not clipped
np.sqrt(np.sum(g**2)) -> abs(g) | you clip each entry: shorten the gradient as a whole
g = -> g = learning_rate * & - learning_rate * -> - | clip the gradient, not the change
2 * -> | a square has a derivative with a factor of 2""", smooth=False)  # fmt: skip
def training_step(w, x, y, learning_rate, max_norm):
    g = 2 * x.T @ (x @ w - y) / len(y) / y.shape[1]
    norm = np.sqrt(np.sum(g**2))
    return w - learning_rate * g * max_norm / norm.clip(max_norm)


@Exercise("warmup.schedule", lambda *_: [(f"t = {t}, warmup = {w}", t, 3, w, 20)
    for t, w in ((0, 4), (4, 5), (4, 4), (9, 6), (19, 1))], """
(t + 1) / warmup -> t / warmup | the first update has rate 0, and changes nothing
t + 1 -> t | you count from t = 1, as the formula does: here the first t is 0
+ 1 - warmup -> - warmup | two updates have the peak rate: fall right after the first
fall = -> fall = t / total; _ = | it falls from the first update on: wait for the peak
(total + 1 - warmup) -> (total - warmup) | the last update has rate 0: reach 0 after it
(1 + np.cos(np.pi * fall)) / 2 -> (1 - fall) | it falls on a line, not on a cosine
min(1, (t + 1) / warmup) -> 1 | the warm-up is missing: a line up to the peak
min(1, (t + 1) / warmup) -> (t + 1) / warmup | the warm-up goes on: end it at the peak""", smooth=False)  # fmt: skip
def schedule(t, peak, warmup, total):
    fall = max(0, t + 1 - warmup) / (total + 1 - warmup)
    return float(peak * min(1, (t + 1) / warmup) * (1 + np.cos(np.pi * fall)) / 2)


@Exercise("warmup.adam", lambda rng, normal: [(f"t = {t}, a gradient like {g}",
    g * normal(3) * [0, 1, 1], m * normal(3), m * rng.random(3), t, 0.5)
    for t, g, m in ((1, 5, 0), (9, 5, 2), (1, 0.0001, 0), (900, 5, 2))], """
/ (1 - 0.9**t) -> & / (1 - 0.999**t) -> | neither average is corrected for its start
), mean, square -> ), m, s | return the averages without their correction
/ (1 - 0.999**t) -> | only the mean is corrected for its start at 0
/ (1 - 0.9**t) -> | only the mean square is corrected for its start at 0
0.9 * mean + 0.1 -> 0.1 * mean + 0.9 | the old mean keeps 0.9, the gradient adds 0.1
-learning_rate -> learning_rate | the sign is wrong: go against the gradient
learning_rate * m -> m | the learning rate is not used
np.sqrt(s) + 1e-8 -> np.sqrt(s + 1e-8) | ε is added to the root, not under it
**t -> ** (t + 1) | t counts from 1 already: add nothing""", smooth=False)  # fmt: skip
def adam(gradient, mean, square, t, learning_rate):
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    m, s = mean / (1 - 0.9**t), square / (1 - 0.999**t)
    return -learning_rate * m / (np.sqrt(s) + 1e-8), mean, square


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


@Exercise("debugging.accumulate", lambda _, normal: [(f"{b} rows, n = {n}",
    lambda x, y, few=b // n: (x.sum(1) - y) @ x / len(x) / (few <= len(x) < 7),
    normal((b, 3)), normal(b), n) for b, n in ((8, 2), (7, 2), (11, 3), (5, 1))], """
(x, n) -> (x, 1) & (y, n) -> (y, 1) | only six rows fit into memory at once: use parts
(x, n) -> (x, len(x)) & (y, n) -> (y, len(x)) | make `n` parts, not one of each row
* len(part[0]) -> & / len(x) -> | the gradients of the parts are added, not averaged
* len(part[0]) -> & len(x) -> n | parts of unequal size need unequal weights
* len(part[0]) -> | a part's gradient is a mean: weigh it by its rows
/ len(x) -> / n | divide by the number of rows, not of parts
parts = -> m = len(x) // n * n; x, y = x[:m], y[:m]; parts = | the last rows are missing
/ len(x) -> | divide by the number of all rows""", smooth=False)  # fmt: skip
def accumulate(gradient, x, y, n):
    parts = zip(np.array_split(x, n), np.array_split(y, n), strict=True)
    return sum(gradient(*part) * len(part[0]) for part in parts) / len(x)


@Exercise("debugging.best_epoch", lambda *_: [(f"losses {x}, patience {n}", x, n) for
    digits, n in (("956789", 1), ("98765", 2), ("9567894", 3), ("966785", 2),
    ("8574639781", 2), ("56", 1)) for x in [[100 + int(x) / 20 for x in digits]]], """
< losses[best[-1]] -> < losses[epoch - 1] | compare with the best so far, not the last
< losses[ -> <= losses[ | an equal loss has not beaten the best
epoch - best[-1] -> epoch - len(best) + 1 | a new best restarts the count
< patience -> <= patience | you stop an epoch too late
< patience -> < 1 | you stop at the first epoch without a new best: wait for `patience`
best[-1], epoch -> losses.index(min(losses)), epoch | losses after the stop are unknown
return best[-1] -> return epoch | the best weights are kept, not the last
best[-1] < -> best[-1] + (len(best) < 2) < | the first epoch is no failure: it is best""", smooth=False)  # fmt: skip
def best_epoch(losses, patience):
    best, epoch = [0], 0
    while epoch - best[-1] < patience and epoch < len(losses) - 1:
        epoch += 1
        best += [epoch] if losses[epoch] < losses[best[-1]] else []
    return best[-1], epoch


@Exercise("scaling.ring_step", lambda _, normal: [(f"n = {n}, step {step}",
    normal((n, n, 2)), step) for n, step in
    ((3, 0), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3), (4, 5), (2, 1))], """
- 1 - step -> - step | this part leaves the device: it receives what its neighbour sends
- 1 - step -> - 1 + step | the parts run the other way: a device sends part i - step
- 1 - step -> - 1 | each step moves another part
% len(parts) -> | a number below 0 is counted around the ring, too
1, 0) -> -1, 0) | the ring turns the other way: a device receives from device i - 1
comes[..., None] -> True | all parts move: a device sends one part in a step
< len(parts) - 1 -> <= len(parts) - 1 | you add in one step too many
< len(parts) - 1 -> < len(parts) - 2 | you add in one step too few
+ parts if step < len(parts) - 1 else arrived -> | the first n - 1 steps add
if step < len(parts) - 1 else arrived -> | only the first n - 1 steps add""", smooth=False)  # fmt: skip
def ring_step(parts, step):
    device = np.arange(len(parts))
    comes = (device[:, None] - 1 - step) % len(parts) == device  # device part
    arrived = np.roll(parts, 1, 0)
    arrived = arrived + parts if step < len(parts) - 1 else arrived
    return np.where(comes[..., None], arrived, parts)
