"""Exercises of the chapter *anomaly*."""

from helpers.exercises import LOSS, Exercise, log_softmax, np


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
