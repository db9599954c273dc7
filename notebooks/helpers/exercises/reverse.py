"""Exercises of the chapter *reverse*."""

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
