"""Exercises of the chapter *encoder*."""

import numpy as np

from helpers.exercises import exercise


def for_norm(rng):
    x, scale, bias = (rng.normal(size=size) for size in [(2, 3, 6), 6, 6])
    yield "b s m", {"x": x, "scale": scale, "bias": bias}
    yield "b m", {"x": 4 + 0.1 * x[0], "scale": scale, "bias": bias}
    yield "equal features", {"x": 0 * x + 2, "scale": scale, "bias": bias}


@exercise(
    "encoder.layer_norm",
    for_norm,
    """
axis=-1 -> axis=0 | you normalise over the batch: that is batch norm
axis=-1 -> axis=-2 | you normalise over the positions, not over the features
axis=-1 -> axis=(*range(x.ndim),) | each position has a mean and a variance of its own
+ 1e-5 -> | without eps, equal features give 0/0
np.sqrt(square + 1e-5) -> (np.sqrt(square) + 1e-5) | eps belongs under the root
np.sqrt(square + 1e-5) -> (square + 1e-5) | you divide by the variance, not by its root
np.mean(x**2 -> x.shape[-1] / (x.shape[-1] - 1) * np.mean(x**2 | variance over m, not m - 1
x = x - -> y = x - | the mean is not subtracted; that is nearly RMS norm
* scale -> | `scale` is not used
+ bias -> | `bias` is not used
""",
)
def layer_norm(x, scale, bias):
    x = x - np.mean(x, axis=-1, keepdims=True)
    square = np.mean(x**2, axis=-1, keepdims=True)
    return x / np.sqrt(square + 1e-5) * scale + bias


def for_block(rng):
    def norm(x):
        return x / (1 + x * x)

    given = {"attend": lambda x: 0.5 * x * x + x.mean(1)[:, None]}
    given |= {
        "ffn": lambda x: 0.3 * x**3 - 1,
        "norm1": norm,
        "norm2": lambda x: 2 * norm(x),
    }
    yield "small x", {"x": rng.normal(size=(2, 3, 4)), **given}
    yield "large x", {"x": 5 * rng.normal(size=(1, 6, 4)), **given}


@exercise(
    "encoder.pre_norm",
    for_block,
    """
x + attend(norm1(x)) -> norm1(x + attend(x)) & x + ffn(norm2(x)) -> norm2(x + ffn(x)) \
| this is post-norm
x + attend -> attend | attention has no residual connection
x + ffn -> ffn | the feed-forward net has no residual connection
x + attend -> norm1(x) + attend | attention's residual connection adds x as it came
x + ffn -> norm2(x) + ffn | the second residual connection adds x without a norm
norm2(x) -> norm1(x) | norm1 is used twice
attend(norm1(x)) -> attend(x) | attention reads x without a norm
ffn(norm2(x)) -> ffn(x) | the feed-forward net reads x without a norm
x = x + attend(norm1(x)) -> first = attend(norm1(x)) & x + ffn -> x + first + ffn \
| the second part reads the first x, not what attention made of it
return x + ffn(norm2(x)) -> return norm2(x + ffn(norm2(x))) | no norm comes after the sum
""",
)
def pre_norm(x, attend, ffn, norm1, norm2):
    x = x + attend(norm1(x))
    return x + ffn(norm2(x))
