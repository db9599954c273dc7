"""Exercises of the chapter *data*."""

from helpers.exercises import Exercise, np


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
