"""Exercises of data, texts and sets, by chapter."""

from helpers.exercises import LOSS, SCORES, Exercise, log_softmax, np


@Exercise("data.masked_mean", lambda rng, normal: [(f"{s = }", normal((2, s, 3)),
    rng.random((2, s)).argsort() <= [[s], [s // 2]]) for s in (7, 4, 1)], """
np.where(real[..., None], x, 0) -> x & / n -> / x.shape[1] | padding counts in this mean
np.where(real[..., None], x, 0) -> x | only real positions belong in the sum
/ n -> / x.shape[1] | divide by the number of real positions, not of all
/ n -> | this is the sum: divide it by the number of real positions
(real[..., None] -> ((np.arange(x.shape[1]) < n)[..., None] | padding may stand anywhere
(real, -> (~real, & (real[ -> (~real[ | True means real, not padding
n = np.sum(real, axis=1)[:, None] -> n = np.sum(real) / len(x) | count row by row
/ n -> / (n + 1) | you divide by one too many""")  # fmt: skip
def masked_mean(x, real):
    n = np.sum(real, axis=1)[:, None]
    return np.sum(np.where(real[..., None], x, 0), axis=1) / n


@Exercise("data.standardise", lambda rng, _: [(f"{n} other rows", *(np.where(
    rng.random((k, 3)) < (n - 1) / 20, np.nan, rng.normal(k, [1, 2, 3], (k, 3)))
    for k in (9, n))) for n in (6, 5, 3, 1)], """
(other, train) -> (other, other) | scale `other` by mean and deviation of `train`
n, mean = -> of = np.concatenate([train, other]); n, mean = | `other` leaks: use `train`
n, mean = -> x, of = np.nan_to_num(x), np.nan_to_num(of); n, mean = | fill the gaps last
/ n) -> / len(of)) | filled with the mean, gaps make the deviation too small
np.where(np.isnan(x), 0, z) -> z | gaps are still NaN: they should become 0, the mean
, axis=0 -> | each feature has its own mean and deviation
/ n) -> / (n - 1)) | the variance is a mean: divide by n, not by n - 1
** 0.5 -> | you divide by the variance: take its root""", smooth=False)  # fmt: skip
def standardise(train, other):
    out = []
    for x, of in ((train, train), (other, train)):
        n, mean = np.sum(~np.isnan(of), axis=0), np.nanmean(of, axis=0)
        z = (x - mean) / (np.nansum((of - mean) ** 2, axis=0) / n) ** 0.5
        out += [np.where(np.isnan(x), 0, z)]
    return out


@Exercise("anomaly.loss", lambda _, normal: [("b s", normal((3, 5))), ("one set",
    2 * normal((1, 6))), ("logits of 1,000", 1000 * normal((3, 5)))], LOSS + """
[:, -1] -> | only the probability of the odd one counts, not those of all elements
np.mean -> np.sum | you sum over the sets: take the mean
max(logits -> max(logits, 0 | your softmax runs over the batch, not over each set
-1]) -> 0]) | the odd one stands last, not first""")  # fmt: skip
def loss(logits):
    log_p = log_softmax(logits)
    return -np.mean(log_p[:, -1])


@Exercise("anomaly.from_the_others", lambda _, normal: [(f"x is {n}", far + normal(n))
    for far, n in ((0, (2, 5, 3)), (9, (2, 5, 3)), (0, (4, 2, 3)), (0, (2, 3, 1)))], """
- x) / (x.shape[1] - 1) -> ) / x.shape[1] | this mean includes the element itself
- x) / -> ) / | the sum still includes the element itself
(x.shape[1] - 1) -> x.shape[1] | you divide by s, but the others are only s - 1
axis=1 -> axis=0 & x.shape[1] -> x.shape[0] | the others are those of the same set
np.sqrt -> | these are squares of distances: the root is missing
np.sqrt(np.sum((x - others) ** 2, -> (np.sum(abs(x - others), | add squares, not sizes
np.sqrt(np.sum -> np.sqrt(np.mean | you average over the features: add their squares
axis=-1 -> axis=1 | a distance is a sum over the features, not over the set""")  # fmt: skip
def from_the_others(x):
    others = (np.sum(x, axis=1, keepdims=True) - x) / (x.shape[1] - 1)
    return np.sqrt(np.sum((x - others) ** 2, axis=-1))


@Exercise("decoder.top_p", lambda rng, _: [(f"top_p = {n}", p, n) for n, p in (
    *((limit, rng.dirichlet(np.ones(7), 3)) for limit in (0.8, 0.6, 0.05, 1.0)),
    (0.75, rng.permuted([[32, 16, 6, 4, 3, 2, 1]] * 3, axis=1) / 64))], """
before < top_p -> before + ranked <= top_p | the token that reaches top_p stays, too
before < top_p -> ranked >= top_p | compare top_p with the sum so far, not with each
np.argsort(order), -> order, | undo the sorting by its inverse, not by the same order
np.argsort(order), -> np.argsort(-ranked), | what you return is still sorted: undo that
p / -> (p := np.exp(p)) / | what is cut must stay 0: divide by the sum, no softmax
np.sum(p, axis=-1, keepdims=True) -> top_p | divide by the sum of what is kept
/ np.sum(p, axis=-1, keepdims=True) -> | what is kept must sum to 1 again
np.argsort(-p) -> np.argsort(0 * p) | sort first: the sum runs over the most probable
np.argsort(-p) -> np.argsort(p) | you keep the unlikely""", smooth=False)  # fmt: skip
def top_p(p, top_p):
    order = np.argsort(-p)
    ranked = np.take_along_axis(p, order, -1)
    before = np.cumsum(ranked, -1) - ranked
    p = np.take_along_axis(np.where(before < top_p, ranked, 0), np.argsort(order), -1)
    return p / np.sum(p, axis=-1, keepdims=True)


@Exercise("decoder.cached_step", lambda _, normal: [(x, far * normal((2, 3, 1, 5)),
    *(normal((2, 3, i, 5)) for i in (1, 1, n, n))) for x, n, far in (("n = 4", 4, 1),
    ("n = 1", 1, 1), ("n = 0", 0, 1), ("large scores", 4, 999))], SCORES + """
[keys, k] -> [k, keys] & [values, v] -> [v, values] | the new token belongs at the end
[keys, k] -> [k, keys] | keys and values stand in different orders
@ new[1] -> @ (0 * new[1] + new[1][:, :, :1]) | your mask hides all keys but the first
@ new[1] -> @ (0 * new[1] + v) | the new token sees only itself, not the cache
*new -> keys, values | return the cache with the new token in it
/ q.sh -> - 1e9 * ~np.any(new[0] != k, -1)[:, :, None] / q.sh | the new token is not seen""")  # fmt: skip
def cached_step(q, k, v, keys, values):
    new = np.concatenate([keys, k], 2), np.concatenate([values, v], 2)
    scores = q @ np.swapaxes(new[0], -1, -2) / q.shape[-1] ** 0.5
    return np.exp(log_softmax(scores)) @ new[1], *new


@Exercise("translation.masks", lambda rng, _: [(f"k = {k}, s = {s}, pad = {p}", *(
    np.where(np.arange(n) < [[n], [n // 2 + 1]], rng.integers(1, 9, (2, n)), p) for n in
    (k, s)), p) for k, s, p in ((7, 5, -1), (5, 7, 0), (4, 1, -1), (5, 5, 9))], """
<= place[:, None] -> >= place[:, None] | your triangle is upside down: it looks ahead
<= place[:, None] -> >= 0 * place[:, None] | hide what comes later: it looks ahead
<= place[:, None] -> < place[:, None] | a position may also look at itself
real[:, None, None] -> (real == real)[:, None, None] | the padding of the target is not hidden
real[:, None, None] -> real[:, None, :, None] | hide padding as keys, not as queries
!= -> == | True means *may look*: it must not stand at padding
own, ( -> ~own, ~( | True means *may look*, not *hidden*
!= pad -> >= 0 | padding is `pad`, not always negative""", smooth=False)  # fmt: skip
def masks(source, target, pad):
    place, real = np.arange(target.shape[1]), target != pad
    own = (place <= place[:, None]) & real[:, None, None]
    return own, (source != pad)[:, None, None]


@Exercise("translation.beam_step", lambda rng, _: [(f"w = {w}, width = {width}",
    np.where(np.arange(w) < live, -rng.random((2, w)), -np.inf),
    np.log(rng.dirichlet(np.ones(5), (2, w))), width)
    for w, width, live in ((3, 3, 3), (3, 3, 1), (1, 4, 1), (4, 2, 4), (2, 1, 2))], """
scores[..., None] + -> | the scores of the beams so far are not added
+ log_p -> * log_p | logarithms are added, not multiplied
+ log_p -> + np.exp(log_p) | add log-probabilities, not probabilities
np.argsort(-total) -> np.argsort(total) | you keep the worst: the largest score is best
(-total)[:, :width] -> (total)[:, -width:] | the best belong first
log_p.shape[-1] -> log_p.shape[1] | divide by the number of tokens, not of beams
best // c, best % c -> best % c, best // c | beam and token are exchanged
best % c -> best | a token counts from 0 in each beam""", smooth=False)  # fmt: skip
def beam_step(scores, log_p, width):
    c, total = log_p.shape[-1], (scores[..., None] + log_p).reshape((len(scores), -1))
    best = np.argsort(-total)[:, :width]
    return np.take_along_axis(total, best, -1), best // c, best % c
