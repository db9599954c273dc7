"""Exercises of the chapter *warmup*."""

from helpers.exercises import Exercise, np


@Exercise("warmup.schedule", lambda *_: [(f"t = {t}, warmup = {w}", t, 3, w, 20)
    for t, w in ((0, 4), (4, 5), (4, 4), (9, 6), (19, 1))], """
(t + 1) / warmup -> t / warmup | the first update has rate 0, and changes nothing
t + 1 -> t | you count from t = 1, as the formula does: here the first t is 0
+ 1 - warmup -> - warmup | two updates have the peak rate: fall right after the first
fall = -> fall = t / total; _ = | it falls from the first update on: wait for the peak
(total + 1 - warmup) -> (total - warmup) | the last update has rate 0: reach 0 after it
(1 + np.cos(np.pi * fall)) / 2 -> (1 - fall) | it falls on a line, not on a cosine
min(1, (t + 1) / warmup) -> 1 | the warm-up is missing: a line up to the peak
min(1, (t + 1) / warmup) -> (t + 1) / warmup | the warm-up goes on: end it at the peak""", smooth=False)  # fmt: skip
def schedule(t, peak, warmup, total):
    fall = max(0, t + 1 - warmup) / (total + 1 - warmup)
    return float(peak * min(1, (t + 1) / warmup) * (1 + np.cos(np.pi * fall)) / 2)


@Exercise("warmup.adam", lambda rng, normal: [(f"t = {t}, a gradient like {g}",
    g * normal(3) * [0, 1, 1], m * normal(3), m * rng.random(3), t, 0.5)
    for t, g, m in ((1, 5, 0), (9, 5, 2), (1, 0.0001, 0), (900, 5, 2))], """
/ (1 - 0.9**t) -> & / (1 - 0.999**t) -> | neither average is corrected for its start
), mean, square -> ), m, s | return the averages without their correction
/ (1 - 0.999**t) -> | only the mean is corrected for its start at 0
/ (1 - 0.9**t) -> | only the mean square is corrected for its start at 0
0.9 * mean + 0.1 -> 0.1 * mean + 0.9 | the old mean keeps 0.9, the gradient adds 0.1
-learning_rate -> learning_rate | the sign is wrong: go against the gradient
learning_rate * m -> m | the learning rate is not used
np.sqrt(s) + 1e-8 -> np.sqrt(s + 1e-8) | ε is added to the root, not under it
**t -> ** (t + 1) | t counts from 1 already: add nothing""", smooth=False)  # fmt: skip
def adam(gradient, mean, square, t, learning_rate):
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    m, s = mean / (1 - 0.9**t), square / (1 - 0.999**t)
    return -learning_rate * m / (np.sqrt(s) + 1e-8), mean, square
