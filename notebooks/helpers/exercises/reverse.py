"""Exercises of the chapter *reverse*."""

from helpers.exercises import Exercise, np


@Exercise("reverse.cross_entropy", lambda rng: [
    (words, {"logits": scale * rng.normal(size=(*shape, 3)),
     "labels": rng.integers(3, size=shape)}) for words, scale, shape in (
    ("b s c", 2, (2, 5)), ("s = 1", 2, (4, 1)), ("logits of 1,000", 1000, (5, 4)))], """
-np.mean -> np.mean | the sign is wrong: the logarithm of a probability is negative
np.mean( -> np.sum( | you sum over the positions: take the mean
-np.mean( -> -labels.shape[1] * np.mean( | you sum over each sequence: take one mean
axis=-1 -> axis=-2 | your softmax runs over the positions, not over the classes
log_p[ -> np.exp(log_p)[ | you average probabilities: average their logarithms
log_p[ -> np.log(np.exp(log_p))[ | infinite: do not take the log of a rounded softmax
log_p[ -> (log_p + 0 * np.exp(abs(logits)))[ | NaN: exp overflows; subtract the largest
z - np.log(np.sum(np.exp(z) -> (p := np.exp(z) / np.sum(np.exp(z), -1, keepdims=True)) \
- np.log(np.sum(np.exp(p) | softmax twice: the loss takes logits""")  # fmt: skip
def cross_entropy(logits, labels):
    z = logits - np.max(logits, axis=-1, keepdims=True)
    log_p = z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))
    return -np.mean(log_p[labels[..., None] == np.arange(logits.shape[-1])])


@Exercise("reverse.training_step", lambda rng: [
    (f"n, max_norm, size of x = {n, most, far}", {"w": rng.normal(size=(3, 2)),
     "x": far * rng.normal(size=(n, 3)), "y": y * rng.normal(size=(n, 2)),
     "learning_rate": 0.3, "max_norm": most})
    for n, y, most, far in ((7, 20, 0.8, 1), (7, 1, 100.0, 1), (1, 1, 99.0, 1),
    (5, 9, 2.5, 1), (4, 1, 2.5, 0))], """
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
