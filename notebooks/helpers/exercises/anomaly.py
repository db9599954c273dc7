"""Exercises of the chapter *anomaly*."""

from helpers.exercises import Exercise, np


@Exercise("anomaly.loss", lambda rng: [
    (words, {"logits": scale * rng.normal(size=size)}) for words, scale, size in (
    ("b s", 1, (3, 5)), ("one set", 2, (1, 6)), ("logits of 1,000", 1000, (6, 4)))], """
-np.mean -> np.mean | the sign is wrong: the logarithm of a probability is negative
[:, -1] -> | only the probability of the odd one counts, not those of all elements
np.mean -> np.sum | you sum over the sets: take the mean
axis=-1 -> axis=0 | your softmax runs over the batch, not over the elements of a set
log_p[ -> np.log(np.exp(log_p))[ | infinite: do not take the log of a rounded softmax
log_p[ -> (log_p + 0 * np.exp(abs(logits)))[ | NaN: exp overflows; subtract the largest
z - np.log(np.sum(np.exp(z) -> (p := np.exp(z) / np.sum(np.exp(z), -1, keepdims=True)) \
- np.log(np.sum(np.exp(p) | softmax twice: the loss takes logits
-1]) -> 0]) | the odd one stands last, not first""")  # fmt: skip
def loss(logits):
    z = logits - np.max(logits, axis=-1, keepdims=True)
    log_p = z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))
    return -np.mean(log_p[:, -1])


@Exercise("anomaly.from_the_others", lambda rng: [
    (f"x is {size}", {"x": far + rng.normal(size=size)}) for far, size in (
    (0, (2, 5, 3)), (9, (3, 6, 4)), (0, (4, 2, 3)), (0, (2, 3, 1)))], """
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
