"""Exercises of the chapter *translation*."""

from helpers.exercises import Exercise, np


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
