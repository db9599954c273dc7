"""Exercises of the chapter *decoder*."""

from helpers.exercises import SCORES, Exercise, log_softmax, np


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
