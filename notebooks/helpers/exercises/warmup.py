"""Exercises of the chapter *warmup*."""

import math

import numpy as np

from helpers.exercises import exercise


@exercise("warmup.schedule", lambda rng: [
    (f"t = {t}, warmup = {w}", {"t": t, "peak": 3, "warmup": w, "total": 20})
    for t, w in ((0, 4), (4, 5), (4, 4), (9, 6), (19, 1))], """
(t + 1) / warmup -> t / warmup | the first update has rate 0, and changes nothing
t + 1 -> t | you count from t = 1, as the formula does: here the first t is 0
+ 1 - warmup -> - warmup | two updates have the peak rate: fall right after the first
/ (total + 1 - warmup) -> / total | the fall takes the updates that are left, not all
fall = -> fall = t / total; _ = | it falls from the first update on: begin at the peak
(total + 1 - warmup) -> (total - warmup) | the last update has rate 0: reach 0 after it
(1 + math.cos(math.pi * fall)) / 2 -> (1 - fall) | it falls on a line, not on a cosine
peak * -> | the peak is not used: this is the factor""", smooth=False)  # fmt: skip
def schedule(t, peak, warmup, total):
    fall = max(0, t + 1 - warmup) / (total + 1 - warmup)
    return peak * min(1, (t + 1) / warmup) * (1 + math.cos(math.pi * fall)) / 2


@exercise("warmup.adam", lambda rng: [
    (f"t = {t}, a gradient like {g}", {"gradient": g * rng.normal(size=3) * [0, 1, 1],
     "mean": m * rng.normal(size=3), "square": m * rng.random(3), "learning_rate": 0.5,
     "t": t}) for t, g, m in ((1, 5, 0), (9, 5, 2), (1, 0.0001, 0), (900, 5, 2))], """
/ (1 - 0.9**t) -> & / (1 - 0.999**t) -> | neither average is corrected for its start
/ (1 - 0.999**t) -> | only the mean is corrected for its start at 0
np.sqrt -> | you divide by the mean square: take its root
-learning_rate -> learning_rate | the sign is wrong: go against the gradient
0.999 -> 0.99 & 0.001 -> 0.01 | the second β is 0.999 here, not 0.99
0.999**t)) -> 0.999**t) + 1e-8) | ε is added to the root, not under it
**t -> ** (t + 1) | t counts from 1 already: add nothing
), mean, square -> ), mean / (1 - 0.9**t), square / (1 - 0.999**t) \
| return the averages without their correction""", smooth=False)  # fmt: skip
def adam(gradient, mean, square, t, learning_rate):
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    root = np.sqrt(square / (1 - 0.999**t))
    return -learning_rate * mean / (1 - 0.9**t) / (root + 1e-8), mean, square
