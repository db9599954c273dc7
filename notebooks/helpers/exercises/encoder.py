"""Exercises of the chapter *encoder*."""

from helpers.exercises import Exercise, np


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
