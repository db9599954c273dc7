"""Exercises of the chapter *debugging*."""

from helpers.exercises import Exercise, np


@Exercise("debugging.accumulate", lambda _, normal: [(f"{b} rows, n = {n}",
    lambda x, y, few=b // n: (x.sum(1) - y) @ x / len(x) / (few <= len(x) < 7),
    normal((b, 3)), normal(b), n) for b, n in ((8, 2), (7, 2), (11, 3), (5, 1))], """
(x, n) -> (x, 1) & (y, n) -> (y, 1) | only six rows fit into memory at once: use parts
(x, n) -> (x, len(x)) & (y, n) -> (y, len(x)) | make `n` parts, not one of each row
* len(part[0]) -> & / len(x) -> | the gradients of the parts are added, not averaged
* len(part[0]) -> & len(x) -> n | parts of unequal size need unequal weights
* len(part[0]) -> | a part's gradient is a mean: weigh it by its rows
/ len(x) -> / n | divide by the number of rows, not of parts
parts = -> m = len(x) // n * n; x, y = x[:m], y[:m]; parts = | the last rows are missing
/ len(x) -> | divide by the number of all rows""", smooth=False)  # fmt: skip
def accumulate(gradient, x, y, n):
    parts = zip(np.array_split(x, n), np.array_split(y, n), strict=True)
    return sum(gradient(*part) * len(part[0]) for part in parts) / len(x)


@Exercise("debugging.best_epoch", lambda *_: [(f"losses {x}, patience {n}", x, n) for
    digits, n in (("956789", 1), ("98765", 2), ("9567894", 3), ("966785", 2),
    ("8574639781", 2), ("56", 1)) for x in [[100 + int(x) / 20 for x in digits]]], """
< losses[best[-1]] -> < losses[epoch - 1] | compare with the best so far, not the last
< losses[ -> <= losses[ | an equal loss has not beaten the best
epoch - best[-1] -> epoch - len(best) + 1 | a new best restarts the count
< patience -> <= patience | you stop an epoch too late
< patience -> < 1 | you stop at the first epoch without a new best: wait for `patience`
best[-1], epoch -> losses.index(min(losses)), epoch | losses after the stop are unknown
return best[-1] -> return epoch | the best weights are kept, not the last
best[-1] < -> best[-1] + (len(best) < 2) < | the first epoch is no failure: it is best""", smooth=False)  # fmt: skip
def best_epoch(losses, patience):
    best, epoch = [0], 0
    while epoch - best[-1] < patience and epoch < len(losses) - 1:
        epoch += 1
        best += [epoch] if losses[epoch] < losses[best[-1]] else []
    return best[-1], epoch
