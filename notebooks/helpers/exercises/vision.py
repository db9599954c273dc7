"""Exercises of the chapter *vision*."""

from helpers.exercises import Exercise, np


@Exercise("vision.patches", lambda _, normal: [(f"{size}, patch = {p}", normal(size), p)
    for size, p in (((2, 4, 6, 3), 2), ((1, 9, 6, 2), 3), ((2, 8, 8, 1), 4))], """
b, y, x, c) -> b, x, y, c) | the axes are b y x c: the height comes before the width
np.swapaxes(cut, 2, 3) -> cut | a reshape alone mixes patches: swap axes in between
(cut, 2, 3) -> (cut, 2, 3).swapaxes(1, 2) | patches come by columns: go row by row
(cut, 2, 3) -> (cut, 2, 3).swapaxes(3, 4) | pixels come by columns: go row by row
y // p, p, x // p, p -> p, y // p, p, x // p | split a side into patches, then pixels
p * p * c)) -> p * p, c)).swapaxes(2, 3).reshape((b, -1, p * p * c)) \
| within a patch the channels come last: those of a pixel stand together
(b, -1, -> (-1, | the patches of all pictures are merged: keep b
(b, -1, -> (b, y // p, x // p, | patches have one axis, n""")  # fmt: skip
def patches(images, patch):
    (b, y, x, c), p = images.shape, patch
    cut = images.reshape((b, y // p, p, x // p, p, c))
    return np.swapaxes(cut, 2, 3).reshape((b, -1, p * p * c))


@Exercise("vision.tokens", lambda _, normal: [(f"b n i = {b, n, i}", normal((b, n, i)),
    normal((i, 5)), normal(5), normal((n + 1, 5)))
    for b, n, i in ((2, 4, 3), (3, 1, 6), (1, 6, 5))], """
class_token + -> 0 * class_token + | the class token is not used
+ table -> | the positions are not added
+ table -> * table | positions are added, not multiplied
+ table -> + table[:1] | each element has its own position: use all rows of the table
@ w -> @ w + table[1:] & ) + table -> ) | the class token has a position, too
@ w -> @ w + table[:-1] & ) + table -> ) | the table's first row is the class token's
@ w -> @ w * w.shape[1] ** 0.5 | a ViT does not multiply by the root of m
[first, x] -> [x, first] | the class token comes first""")  # fmt: skip
def tokens(patches, w, class_token, table):
    x = patches @ w
    first = class_token + np.zeros((len(x), 1, 1))
    return np.concatenate([first, x], axis=1) + table
