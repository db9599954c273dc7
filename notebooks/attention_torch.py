# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] tags=["shared"]
# # Attention
#
# By the end you can write attention in four lines, give the shape of every array in it,
# mask parts of its input, split it into heads, and show that it ignores the order of
# its input. You need: Python, NumPy, matrix products and the softmax.
#
# In 2014, a neural network translated in two steps. One recurrent network read the
# sentence into one vector of fixed size; a second wrote the translation from that
# vector alone. Long sentences did not fit, and their translations
# [got worse](https://arxiv.org/abs/1409.1259).
# [Bahdanau et al. 2015](https://arxiv.org/abs/1409.0473) let the second network look
# back at all words, at every step, and learn where to look: that is **attention**. The
# **Transformer** ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)) dropped the
# recurrence and kept the attention. It became the model behind
# [BERT](https://arxiv.org/abs/1810.04805), [GPT](https://arxiv.org/abs/2005.14165) and,
# with patches of a picture in place of words, much of
# [computer vision](https://arxiv.org/abs/2010.11929).
#
# This page builds its attention layer. The next chapters stack such layers into an
# *encoder*, as in BERT and vision models, and train it. A *decoder*, as in GPT, has the
# same parts and a causal mask; the book shows the mask and trains no decoder.
#
# A folded cell, *✓ Checked*, fails if its claim is wrong. Run the page, then change a
# line and see what breaks.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX:
# [attention_jax](attention_jax.ipynb).

# %% tags=["shared", "setup"]
# In Colab this fetches the helpers of the book; anywhere else it does nothing.
import os
import subprocess
import sys

REPOSITORY = "https://github.com/example/transformers-side-by-side"

if "google.colab" in sys.modules and not os.path.isdir("helpers"):
    folder = REPOSITORY.rsplit("/", 1)[-1]
    if not os.path.isdir(folder):
        clone = ["git", "clone", "--quiet", "--depth", "1", REPOSITORY, folder]
        subprocess.run(clone, check=True)
    os.chdir(os.path.join(folder, "notebooks"))
    sys.path.insert(0, os.getcwd())

# %% tags=["shared"]
import math
from functools import partial
from itertools import combinations

import numpy as np

from helpers import diagrams, plots, reference, viewer
from helpers.prose import say
from helpers.shapes import as_numpy, check_shape
from helpers.weights import from_arrays, to_arrays

plots.use_style()

# %% [markdown] tags=["torch"]
# A PyTorch tensor lives on a device. With a default device set, everything below is
# made there; without a GPU that is the CPU. Random numbers come from one global
# generator, which `torch.manual_seed` sets.

# %% tags=["torch"]
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
booleans = partial(torch.as_tensor, dtype=torch.bool, device=device)
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## Attention is a weighted mean
#
# In *the cat drank milk because it was thirsty*, what does *it* stand for? A reader
# looks back and finds the cat. Attention does the same with numbers. Each word has a
# few features, chosen by hand here, so that you can read them.

# %% tags=["shared"]
tokens = ["the", "cat", "drank", "milk", "because", "it", "was", "thirsty"]
features = ["animal", "drink", "action", "state", "pronoun"]
kinds = ["", "animal", "action", "drink", "", "pronoun", "", "state"]
words = np.array([[kind == name for name in features] for kind in kinds], float)  # s m
words

# %% [markdown] tags=["shared"]
# Attention has four parts. A **query** says what a word looks for. Each word has a
# **key**, to be compared with the query, and a **value**, to be passed on. A **score
# function** compares a query with a key. High scores become large weights, and the
# output is the mean of the values under these weights.

# %% [markdown] tags=["shared"]
# With the query $q$, the keys $k_i$, the values $v_i$ and the score function $f$, the
# weights $\alpha_i$ and the output are
#
# $$\alpha_i = \frac{\exp f(k_i, q)}{\sum_j \exp f(k_j, q)}, \qquad
# \mathrm{out} = \sum_i \alpha_i v_i .$$
#
# Exponential and division are the *softmax*: all weights are positive and sum to one.
# Let *it* look for an animal, let the features of a word be its key and its value, and
# let the score be the dot product:

# %% tags=["shared"]
query = np.array([4, 0, 0, 0, 0])  # looks for an animal
scores = words @ query  # k
weights = np.exp(scores) / np.exp(scores).sum()  # k
out = weights @ words  # m
dict(zip(features, out.round(2).tolist(), strict=True))

# %% tags=["shared", "say"]
cat = tokens.index("cat")
say(
    f"The cat gets the weight **{weights[cat]:.2f}**, each of the seven other words "
    f"{weights[0]:.3f}. *It* came in as a pronoun and nothing else; its output is "
    f"{out[0]:.0%} animal. It means *cat* now, with a trace of every other word."
)

# %% tags=["shared", "check"]
# Checked: the weights are positive, sum to one, and the cat's is the largest
assert (weights > 0).all() and tokens[weights.argmax()] == "cat"
np.testing.assert_allclose(weights.sum(), 1)
np.testing.assert_allclose(out, [np.exp(4) / (np.exp(4) + 7), *[out[1]] * 4])

# %% [markdown] tags=["shared"]
# There are two limits. If all scores are equal, the output is the plain mean of the
# values. If one score towers above the others, the output is a copy of one value. Try a
# `0`, then a `100` in place of the `4`.

# %% tags=["shared", "check"]
# Checked: equal scores give the mean of all values, one towering score a copy
equal, towering = (reference.softmax(words @ (c * query)) @ words for c in (0, 25))
np.testing.assert_allclose(equal, words.mean(axis=0))
np.testing.assert_allclose(towering, words[cat], atol=1e-9)

# %% [markdown] tags=["shared"]
# ## In self-attention, each word makes its own query, key and value
#
# Where does the query of *it* come from? From the word itself, by a matrix. So do its
# key and its value, by two others. With one word per row of $X$,
#
# $$Q = XW^Q, \qquad K = XW^K, \qquad V = XW^V .$$
#
# A model learns these matrices by gradient descent; nobody tells it to look for
# animals. Here is a set made by hand. A row of `w_query` says what a word with that
# feature looks for.

# %% tags=["shared"]
w_query = np.array([
    [0, 0, 3, 3, 0],  # an animal looks for what it does and how it is
    [0, 0, 3, 0, 0],  # a drink looks for what is done with it
    [3, 3, 0, 0, 0],  # an action looks for who does it, and with what
    [6, 0, 0, 0, 0],  # a state looks for whose state it is
    [4, 0, 0, 0, 0],  # a pronoun looks for an animal
])  # fmt: skip
w_key = np.eye(5)  # a word offers its features
w_value = np.eye(5)[:, :4]  # and passes on all of them but "pronoun"
queries, keys, values = words @ w_query, words @ w_key, words @ w_value
scores = queries @ keys.T  # q k
weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)  # q k
outputs = weights @ values  # q e

# %% [markdown] tags=["shared"]
# One product scores all pairs: a row for each query, a column for each key. This is
# **self-attention**: queries, keys and values are projections of the same sequence. In
# **cross-attention**, keys and values come from another one, as in translation.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two matrices, words by features. Left, the values: one dark cell each for cat, drank, milk and thirsty; all other rows, it among them, are empty. Right, the outputs: the rows of it and thirsty are dark at animal, the row of cat is shared by action and state, and the rows of the, because and was are evenly pale."}}
plots.heatmaps(
    [values, outputs], titles=["values: before", "outputs: after"], x="", y="",
    x_ticks=features[:4], y_ticks=tokens, bar="feature", size=(5.6, 3.2),
)  # fmt: skip

# %% [markdown] tags=["shared"]
# The row of *it* was empty and is now that of an animal. The cat has what it did and
# how it was. *Thirsty* has become an animal and lost its own feature: the output
# *replaces* the input. The encoder will add the two.
#
# All weights together make a **map**. Which weights do you expect for *the*, whose
# query is zero? Whose are sharper, those of *it* or of *thirsty*? Predict, then move
# along the rows with the mouse, a finger or the arrow keys.

# %% tags=["shared", "figure"]
viewer.attention(
    weights[None, None],  # one layer, one head
    tokens,
    about="Where each word of the sentence looks: a map of eight queries by eight keys",
    query=tokens.index("it"),
)

# %% tags=["shared", "check"]
# Checked: "the" gets the mean, "it" the cat, and the longer query sharper weights
row = dict(zip(tokens, weights, strict=True))
np.testing.assert_allclose(weights.sum(axis=1), 1)
np.testing.assert_allclose(row["the"] @ values, values.mean(axis=0))
assert tokens[row["it"].argmax()] == tokens[row["thirsty"].argmax()] == "cat"
assert row["thirsty"].max() > row["it"].max() > 0.8
after = dict(zip(tokens, outputs, strict=True))
assert after["it"][0] > 0.8 and after["thirsty"][3] < 0.005
np.testing.assert_allclose(after["cat"][2], after["cat"][3])

# %% [markdown] tags=["shared"]
# There are other score functions. *Additive attention*
# ([Bahdanau et al. 2015](https://arxiv.org/abs/1409.0473)) puts query and key through a
# small network with one hidden layer. The *cosine* of the angle between them ignores
# their lengths; [Graves et al. 2014](https://arxiv.org/abs/1410.5401) multiply it by a
# learned sharpness. [Luong et al. 2015](https://arxiv.org/abs/1508.04025) compare
# several. The dot product is the cheapest: one matrix product scores all pairs.

# %% [markdown] tags=["shared"]
# ## A small example can be checked by hand
#
# Three words with two features each are few enough to compute with a pencil. The scores
# are divided by $\sqrt{2}$, the root of the number of features; a later section says
# why.

# %% tags=["shared"]
q = np.array([[1, 0], [0, 1], [1, 1]])  # q d
k = np.array([[1, 0], [0, 2], [1, 1]])  # k d
v = np.array([[1, 0], [0, 1], [2, 2]])  # k d
scores = q @ k.T / math.sqrt(2)  # q k
weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)  # q k
out = weights @ v  # q d

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Six small matrices with their numbers written in: Q, K and V as chosen, the scores, the weights and the output."}}
plots.grid_of_numbers(
    {"Q": q, "K": k, "V": v, "QKᵀ/√2": scores, "weights": weights, "output": out}
)

# %% [markdown] tags=["shared"]
# The first query, $(1, 0)$, has the dot products $1$, $0$ and $1$ with the keys: the
# first and the third get the same weight, the second gets less.
#
# **Exercise 1, by hand.** A fourth word has the query $(-1, 1)$. What are its three
# weights, and what is its output? You need $e^{1.414} \approx 4.11$ and
# $e^{-0.707} \approx 0.49$. Write them down to two digits, then open the answer.

# %% tags=["shared", "answer"]
# The dot products are -1, 2 and 0, the scores -0.707, 1.414 and 0.
exps = np.array([0.49, 4.11, 1])  # their exponentials
by_hand = exps / exps.sum()  # divided by their sum, 5.6
np.testing.assert_allclose(
    by_hand, reference.softmax(np.array([-1, 1]) @ k.T / math.sqrt(2)), atol=1e-3
)
say(
    f"The weights are {by_hand[0]:.2f}, {by_hand[1]:.2f} and {by_hand[2]:.2f}, the "
    f"output is ({(by_hand @ v)[0]:.2f}, {(by_hand @ v)[1]:.2f}): mostly the second "
    "value, (0, 1), and some of the third, (2, 2)."
)

# %% tags=["shared", "check"]
# Checked: rows of weights sum to one, and equal scores get equal weights
np.testing.assert_allclose(weights.sum(axis=1), 1)
assert weights[0, 0] == weights[0, 2] > weights[0, 1]

# %% [markdown] tags=["shared"]
# ## Attention is two matrix products and a softmax
#
# Nothing in the example depended on three words or two features. Let the last two axes
# be the matrices. All axes before them count sentences, heads, anything: each slice
# attends separately.

# %% [markdown] tags=["shared"]
# $$\mathrm{Attention}(Q, K, V) =
# \mathrm{softmax}\!\left(\frac{QK^{\mathsf T}}{\sqrt{d}}\right) V \tag{1}$$
#
# $Q$ holds one query per row, $K$ one key and $V$ one value per row; $d$ is the number
# of features of a query and a key
# ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), equation 1). In shapes, `q`
# and `k` are also the names of axes: query position and key position.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Attention as a flow: queries and keys make scores, which are divided by the root of d, masked and put through a softmax; the weights take the mean of the values. One query is framed, and each array has its shape beside it."}}
diagrams.attention()

# %% [markdown] tags=["torch"]
# `@` multiplies the matrices in the last two axes, for every index of the leading axes,
# and `transpose` exchanges the axes of the keys. The softmax runs along the keys, the
# last axis; PyTorch calls an axis `dim`.


# %% tags=["torch"]
def plain_attention(q, k, v):
    """Attention without a mask: ``... q d, ... k d, ... k e -> ... q e, ... q k``."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # ... q k
    weights = torch.softmax(scores, dim=-1)
    return weights @ v, weights


out, weights = plain_attention(floats(q), floats(k), floats(v))
as_numpy(out).round(2)


# %% [markdown] tags=["shared"]
# These are the numbers of the grid above. The check compares with a reference in NumPy
# that takes one query at a time. Each axis has another prime as its size, so that no
# swapped axis can hide.

# %% tags=["shared", "check"]
# Checked: with any leading axes it agrees with a reference, one query at a time
draw = np.random.default_rng(0).normal
arrays = draw(size=(2, 3, 5, 11)), draw(size=(2, 3, 7, 11)), draw(size=(2, 3, 7, 13))
out, weights = plain_attention(*map(floats, arrays))
check_shape(out, "b h q e", b=2, h=3, q=5, e=13)
check_shape(weights, "b h q k", q=5, k=7)
expected, expected_weights = reference.attention(*arrays)
np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)
np.testing.assert_allclose(as_numpy(weights), expected_weights, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## The scale keeps the softmax from saturating
#
# Why divide by $\sqrt{d}$? A dot product is a sum of $d$ terms, so its spread grows
# with $d$. A softmax over widely spread scores *saturates*: nearly all weight goes to
# one key, and almost no gradient flows back to queries and keys.

# %% [markdown] tags=["shared"]
# If the entries of $q$ and $k$ are independent with mean 0 and variance $\sigma^2$,
# each term has variance $\sigma^4$, and the sum of $d$ of them
#
# $$\mathrm{Var}(q^{\mathsf T} k) = \sigma^4 d, \qquad
# \mathrm{Var}\!\left(\frac{q^{\mathsf T} k}{\sqrt{d}}\right) = \sigma^4 .$$
#
# The derivatives of the weights $\alpha$ with respect to the scores form the matrix
# $\mathrm{diag}(\alpha) - \alpha \alpha^{\mathsf T}$; its norm measures how sensitive
# the weights still are.


# %% tags=["shared"]
def softmax_state(scores):
    """Largest weight, entropy, norm of the gradient; each a mean over the rows."""
    weights = reference.softmax(scores)  # n k
    logs = np.log(np.maximum(weights, 1e-300))  # 0 log 0 counts as 0
    entropy = -(weights * logs).sum(axis=1)
    diagonal = weights[:, :, None] * np.eye(weights.shape[1])
    gradient = diagonal - weights[:, :, None] * weights[:, None, :]  # n k k
    norm = np.linalg.norm(gradient, axis=(1, 2))
    return weights.max(axis=1).mean(), entropy.mean(), norm.mean()


# %% tags=["shared"]
n_rows, n_keys, sizes = 400, 16, 2 ** np.arange(11)  # d = 1, 2, ..., 1024
draw = np.random.default_rng(1).normal
states = {"without the scale": [], "with the scale": []}
for d in sizes.tolist():
    rows, columns = draw(size=(n_rows, d)), draw(size=(n_rows, n_keys, d))
    dots = np.einsum("nd,nkd->nk", rows, columns)  # one query, 16 keys in each row
    for name, scores in zip(states, (dots, dots / math.sqrt(d)), strict=True):
        states[name].append((scores.var(), *softmax_state(scores)))
unscaled, scaled = (np.array(found).T for found in states.values())  # 4 d

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Four panels over the size of the head d from 1 to 1024. Without the scale the variance of the scores rises in proportion to d, the largest weight goes to one, and entropy and gradient fall towards zero; with the scale all four stay level."}}
titles = ["variance of the scores", "largest weight", "entropy", "norm of the gradient"]
panels = {
    title: {name: (sizes, line) for name, line in zip(states, pair, strict=True)}
    for title, pair in zip(titles, zip(unscaled, scaled, strict=True), strict=True)
}
fig = plots.curves(panels, x="size of a head d", log_x=2, log_y=titles[:1], columns=2)
fig

# %% tags=["shared", "say"]
say(
    f"At $d = 1024$, without the scale, the scores have a variance of "
    f"{unscaled[0, -1]:,.0f}, one of 16 keys gets {unscaled[1, -1]:.0%} of the weight, "
    f"and the gradient has {unscaled[3, -1] / scaled[3, -1]:.0%} of the norm that it "
    f"has with the scale. With it, the variance is {scaled[0, -1]:.2f}, and the "
    f"largest weight {scaled[1, -1]:.0%}."
)

# %% tags=["shared", "check"]
# Checked: as drawn, the scale keeps level what without it grows or vanishes
rising, falling = ([plots.drawn(fig, t, n)[1] for t in titles] for n in states)
np.testing.assert_allclose(rising[0], sizes, rtol=0.2)
np.testing.assert_allclose(falling[0], 1, rtol=0.2)
assert rising[1][-1] > 0.9 and falling[1].max() < 0.45
assert rising[2][-1] < 0.2 and rising[3][-1] < 0.25 * falling[3][-1]
for level in falling[1:]:
    assert np.ptp(level[2:]) < 0.15 * level[2:].mean()

# %% tags=["shared", "check"]
# Checked: the variance of a dot product grows with the fourth power of sigma
for sigma in (0.5, 2.0):
    pairs = draw(0, sigma, (2, 5000, 64))
    np.testing.assert_allclose(pairs.prod(0).sum(1).var(), sigma**4 * 64, rtol=0.05)

# %% [markdown] tags=["shared"]
# ## Masked positions have no effect
#
# Sentences of a batch differ in length, and the *padding* of the shorter ones should
# not be read. A model that predicts the next word must not see it. A **mask** says
# which keys a query may look at: a boolean array, where **True means "may look"**. A
# hidden score becomes $-\infty$, so that its weight is zero. That is one more line:


# %% tags=["torch"]
def masked_attention(q, k, v, mask):
    """Attention to visible keys only; not yet safe, see below."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # ... q k
    scores = torch.where(mask, scores, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    return weights @ v, weights


visible = booleans([[0, 0, 0], [1, 1, 0], [1, 1, 1]])  # the first query sees nothing
_, weights = masked_attention(floats(q), floats(k), floats(v), visible)
as_numpy(weights).round(2)


# %% [markdown] tags=["shared"]
# The first row has nothing to normalise, and $0/0$ is NaN, "not a number". One NaN in
# an output makes the loss NaN, then the gradient, then every weight of the model. So
# the version to keep hides scores with the lowest finite number, and sets hidden
# weights to zero afterwards: a query that may look nowhere gets zeros.
#
# It also raises an error for masks that could be misread: integers and floats, whose
# zeros and ones mean the opposite elsewhere, and three axes for weights `b h q k`,
# which could mean a mask per sentence or per head.


# %% tags=["torch"]
def check_mask(mask, shape):
    """Raise an error unless a mask is boolean and fits the weights ``... q k``."""
    dtype = getattr(mask, "dtype", type(mask).__name__)
    if dtype != torch.bool:
        raise TypeError(f"expected a mask of dtype torch.bool, got {dtype}")
    sizes = zip(mask.shape[::-1], shape[::-1], strict=False)  # from the last axis on
    fits = all(size in (1, full) for size, full in sizes)
    if mask.ndim not in (2, len(shape)) or not fits:
        raise ValueError(
            f"expected a mask of 2 or {len(shape)} axes that broadcasts to the weights "
            f"{tuple(shape)}, got {tuple(mask.shape)}"
        )


# %% tags=["torch"]
def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return torch.softmax(scores, dim=-1)
    check_mask(mask, scores.shape)
    scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    return torch.where(mask, torch.softmax(scores, dim=-1), 0)


def attention(q, k, v, mask=None):
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``."""
    d = q.shape[-1]
    if d == 0 or d != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"expected ... q d, ... k d, ... k e, got {shapes}")
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)  # ... q k
    weights = masked_softmax(scores, mask)
    return weights @ v, weights


# %% [markdown] tags=["shared"]
# Two masks are in daily use. Under the *causal mask*, a position sees itself and what
# comes before. Under a *padding mask*, nobody sees the padding. Of the two sentences
# below, the second has four words and two padded positions. These see nothing either,
# since nobody will read their outputs.

# %% tags=["shared"]
b, s, d = 2, 6, 5
q, k, v = np.random.default_rng(2).normal(size=(3, b, s, d))
real = np.arange(s) < np.array([[6], [4]])  # b s
causal = np.tril(np.ones((s, s), bool))  # q k
padding = real[:, :, None] & real[:, None, :]  # b q k
masks = {"none": np.ones_like(causal), "causal": causal, "padding": padding}
maps = {}
for name, mask in masks.items():
    out, weights = attention(floats(q), floats(k), floats(v), booleans(mask))
    maps[name] = as_numpy(weights)  # b q k

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three maps of weights for the second sentence: without a mask all cells are filled; with the causal mask only the lower triangle, the rest is grey; with the padding mask the last two columns and the last two rows are grey."}}
second = {name: np.where(masks[name], maps[name], np.nan)[1] for name in masks}
plots.heatmaps(list(second.values()), titles=list(second))

# %% tags=["shared", "check"]
# Checked: rows sum to one, or to zero where nothing is visible; a reference agrees
for name, mask in masks.items():
    sees = np.broadcast_to(mask, (b, s, s)).any(axis=-1)  # b q
    np.testing.assert_allclose(maps[name].sum(axis=-1), sees, atol=1e-6)
    expected, expected_weights = reference.attention(q, k, v, mask)
    np.testing.assert_allclose(maps[name], expected_weights, atol=1e-5)

# %% [markdown] tags=["shared"]
# Grey is hidden. Put garbage into the padded keys and values, and no output changes by
# a single bit. (The garbage has to be finite: zero times NaN is NaN.)

# %% tags=["shared"]
k_garbage, v_garbage = k.copy(), v.copy()
k_garbage[~real] = 1e4
v_garbage[~real] = -1e4
clean, _ = attention(floats(q), floats(k), floats(v), booleans(padding))
dirty, _ = attention(floats(q), floats(k_garbage), floats(v_garbage), booleans(padding))
np.array_equal(as_numpy(clean), as_numpy(dirty))

# %% tags=["shared", "check"]
# Checked: hidden keys and values change no output by a single bit
np.testing.assert_array_equal(as_numpy(clean), as_numpy(dirty))
np.testing.assert_array_equal(as_numpy(clean)[~real], 0)

# %% tags=["shared", "check"]
# Checked: a mask of numbers raises an error that names both types
try:
    attention(floats(q), floats(k), floats(v), floats(padding))
except TypeError as error:
    assert "bool" in str(error) and "float32" in str(error)
else:
    raise AssertionError("a mask of numbers was accepted")

# %% [markdown] tags=["torch"]
# The gradient of a query that sees nothing must be finite as well. PyTorch's *autograd*
# records the operations on every tensor with `requires_grad_`; `backward` goes through
# the record in reverse and fills in `grad`. Half precision has the least room:
# `bfloat16` has fewer digits, `float16` also a smaller range.


# %% tags=["torch"]
def total(q, k, v):
    """Sum of all outputs, one number to differentiate; in single precision."""
    return attention(q, k, v, booleans(padding))[0].float().sum()


gradients = {}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    inputs = [floats(x).to(dtype).requires_grad_() for x in (q, k, v)]
    total(*inputs).backward()
    gradients[dtype] = [as_numpy(x.grad) for x in inputs]


# %% tags=["torch", "check"]
# Checked: a query that sees nothing gets zeros and finite gradients, in every dtype
for dtype, found in gradients.items():
    assert all(np.isfinite(x).all() and x.any() for x in found[1:])
    np.testing.assert_array_equal(found[0][~real], 0)
    inputs = [floats(x).to(dtype) for x in (q, k, v)]
    out, weights = attention(*inputs, booleans(padding))
    assert out.dtype == weights.dtype == dtype
    assert (as_numpy(out)[~real] == 0).all()

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** Make a mask under which every position sees itself
# and at most two positions on either side, and count the weights in each row that are
# not zero.

# %% tags=["shared", "answer"]
position = np.arange(s)
window = np.abs(position[:, None] - position) <= 2  # q k
_, weights = attention(floats(q), floats(k), floats(v), booleans(window))
per_row = (as_numpy(weights) > 0).sum(axis=-1)  # b q
assert per_row.max() == 5 and per_row[0, 0] == 3
say(
    f"Weights per row: {', '.join(map(str, per_row[0]))}. A row in the middle has "
    "five, the first and the last have three, because two neighbours are missing there."
)

# %% [markdown] tags=["shared"]
# ## Heads attend independently of each other
#
# *Drank* looks for two things, who drank and what. One softmax has to mix them: its
# output is half cat, half milk. **Multi-head attention** gives each word several
# smaller queries, keys and values. Each head attends by itself, and their outputs are
# concatenated, so that they stay apart.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Multi-head attention as a flow for two heads: one stacked projection makes queries, keys and values, of which each head takes its half; each attends by itself; their outputs are concatenated and go through a last projection. Each array has its shape beside it."}}
diagrams.heads()

# %% [markdown] tags=["shared"]
# $$\mathrm{head}_i = \mathrm{Attention}(X W^Q_i,\, X W^K_i,\, X W^V_i)$$
#
# $$\mathrm{MultiHead}(X) =
# \left[\mathrm{head}_1 \ldots \mathrm{head}_h\right] W^O \tag{2}$$
#
# $X$ is `s m`, one word per row. A head has the size $d = m/h$, so $h$ heads take as
# many multiplications as one head of size $m$. The matrices $W^Q_i$, $W^K_i$, $W^V_i$
# of all heads stand side by side in one matrix `m 3m`; $W^O$ mixes the heads' outputs.
# (In the code, each product also adds a bias.)

# %% [markdown] tags=["shared"]
# How many heads? Common models choose $d = 64$ or $128$ and let $h$ grow with $m$:
#
# | model | $m$ | heads | $d$ |
# |---|---|---|---|
# | [Transformer](https://arxiv.org/abs/1706.03762) | 512, 1024 | 8, 16 | 64 |
# | [BERT](https://arxiv.org/abs/1810.04805) | 768, 1024 | 12, 16 | 64 |
# | [GPT-2](https://github.com/openai/gpt-2), small | 768 | 12 | 64 |
# | [GPT-3](https://arxiv.org/abs/2005.14165), largest | 12,288 | 96 | 128 |
#
# With $m$ fixed, more heads are smaller heads: more things to look for, each described
# by fewer numbers. In translation, one head scored 0.9 BLEU less than the best choice,
# and 32 heads less than 8 or 16
# ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), table 3). After training,
# many heads [can be removed](https://arxiv.org/abs/1905.10650) at little cost.

# %% [markdown] tags=["shared"]
# Entries start evenly between $-1/\sqrt{n}$ and $1/\sqrt{n}$, with $n$ the
# number of inputs, as in `torch.nn.Linear`; biases start at zero. Their variance is
# $1/(3n)$, so a layer passes on a third of the variance of its input.
# [Xavier-uniform](https://proceedings.mlr.press/v9/glorot10a.html), a common
# alternative with the bound $\sqrt{6/(n_\mathrm{in}+n_\mathrm{out})}$, keeps it in a
# square matrix, but halves it in the stacked one. With
# [each of five seeds](../book/how-this-was-built.md) the smaller start trained better.

# %% [markdown] tags=["torch"]
# PyTorch keeps the matrix of a dense layer as `out in` and computes
# $xW^{\mathsf T} + b$. Initial weights come from the global generator, which `build`
# seeds before it makes a layer.


# %% tags=["torch"]
def build(kind, *sizes, seed=0, **options):
    """Make a layer whose random numbers come from ``seed``."""
    torch.manual_seed(seed)
    with torch.device("cpu"):  # the same numbers on every device
        layer = kind(*sizes, **options)
    return layer.to(torch.get_default_device())


def dense(n_in, n_out):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases."""
    layer, bound = nn.Linear(n_in, n_out), 1 / math.sqrt(n_in)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer


def check_input(x, size):
    """Raise an error unless an input is ``b s size``."""
    if x.ndim != 3 or x.shape[-1] != size:
        raise ValueError(f"expected an input b s {size}, got shape {tuple(x.shape)}")


# %% [markdown] tags=["shared"]
# `project` makes queries, keys and values of all heads in one product, splits the axis
# `3m` into `3 h d`, and moves `3` and `h` to the front. After attention, `h` moves back
# beside `d`, and flattening `h d` to `m` concatenates the heads.


# %% tags=["torch"]
class MultiHeadAttention(nn.Module):
    """Attention in several heads: ``b q m -> b q m, b h q k``."""

    def __init__(self, m, n_heads):
        super().__init__()
        if n_heads < 1 or m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m)
        self.out = dense(m, m)

    def project(self, x):
        """Queries, keys and values of every head: ``b s m -> 3 b h s d``."""
        check_input(x, self.qkv.in_features)
        b, s, m = x.shape
        stacked = self.qkv(x).reshape(b, s, 3, self.n_heads, m // self.n_heads)
        return stacked.permute(2, 0, 3, 1, 4)

    def forward(self, x, mask=None, context=None):
        q, k, v = self.project(x)  # each b h s d
        if context is not None:
            _, k, v = self.project(context)  # b h k d
        values, weights = attention(q, k, v, mask)
        joined = values.transpose(1, 2).reshape(x.shape)  # b q m
        return self.out(joined), weights


# %% [markdown] tags=["shared"]
# Two sentences of seven words, random numbers in place of words, four heads:

# %% tags=["shared"]
b, s, m, n_heads = 2, 7, 24, 4
model = build(MultiHeadAttention, m, n_heads)
x = np.random.default_rng(3).normal(size=(b, s, m))
out, weights = model(floats(x))
params = to_arrays(model)  # copied to NumPy, under names of neither framework
{name: array.shape for name, array in params.items()}

# %% tags=["shared", "check"]
# Checked: shapes, 4m² + 4m parameters, and the numbers of a reference
check_shape(out, "b s m", b=b, s=s, m=m)
check_shape(weights, "b h q k", b=b, h=n_heads, q=s, k=s)
assert sum(array.size for array in params.values()) == 4 * m**2 + 4 * m
expected, _ = reference.multi_head_attention(x, params, n_heads)
np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Eight maps of weights, one row per sentence and one column per head. Each head spreads its weights differently, although nothing has been trained yet."}}
titles = [f"b = {i}, h = {j}" for i in range(b) for j in range(n_heads)]
grid = as_numpy(weights).reshape(-1, s, s)  # b·h q k
plots.heatmaps(grid, titles=titles, columns=n_heads, size=(6.4, 3.6), high=0.5)

# %% [markdown] tags=["shared"]
# No two heads have the same weights: their matrices start from different random
# numbers. Nor does one disturb another: making the first head causal, with a mask
# `b h q k`, leaves the others as they were.

# %% tags=["shared", "check"]
# Checked: all heads differ, and masking one leaves the others unchanged
maps = as_numpy(weights)  # b h q k
for i, j in combinations(range(n_heads), 2):
    assert np.abs(maps[:, i] - maps[:, j]).max() > 0.1
causal = np.tril(np.ones((s, s), bool))
per_head = np.ones((b, n_heads, s, s), bool)
per_head[:, 0] = causal
masked = as_numpy(model(floats(x), booleans(per_head))[1])
assert (masked[:, 0, ~causal] == 0).all()
np.testing.assert_array_equal(masked[:, 1:], maps[:, 1:])

# %% [markdown] tags=["shared"]
# What does this do to the variance? A wider layer shows it:

# %% tags=["shared"]
wide = build(MultiHeadAttention, 256, 4)
unit = floats(np.random.default_rng(8).normal(size=(4, 64, 256)))  # variance 1
projected = as_numpy(wide.project(unit))  # 3 b h s d
q_wide, k_wide, _ = projected
scores = q_wide @ k_wide.swapaxes(-1, -2) / math.sqrt(64)  # b h q k

# %% tags=["shared", "say"]
say(
    f"Inputs of variance 1 become queries, keys and values of variance "
    f"{projected.var():.2f}, and scaled scores of variance {scores.var():.2f}: close "
    "to ⅓ and its square. So the attention of an untrained layer is nearly even. With "
    "Xavier-uniform, these two would be ½ and ¼."
)

# %% tags=["shared", "check"]
# Checked: queries, keys and values get a third of the variance, scaled scores a ninth
np.testing.assert_allclose(projected.var(axis=(1, 2, 3, 4)), 1 / 3, rtol=0.05)
np.testing.assert_allclose(scores.var(), 1 / 9, rtol=0.1)  # loose: by the draw
larger = np.sqrt(6 / (256 + 3 * 256)) * np.sqrt(256)  # Xavier's bound over this one
np.testing.assert_allclose([larger**2 / 3, larger**4 / 9], [1 / 2, 1 / 4])
for name in ("qkv", "out"):
    matrix, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    bound = 1 / math.sqrt(m)
    assert 0.9 * bound < np.abs(matrix).max() <= bound and not bias.any()

# %% [markdown] tags=["shared"]
# With a second input, the `context`, the same layer does cross-attention: queries come
# from `x`, keys and values from the context. Its maps need not be square.

# %% tags=["shared"]
context = np.random.default_rng(7).normal(size=(b, 11, m))  # b k m
out, weights = model(floats(x), context=floats(context))
tuple(weights.shape)

# %% tags=["shared", "check"]
# Checked: in cross-attention keys and values come from the context, as in a reference
check_shape(weights, "b h q k", b=b, h=n_heads, q=s, k=11)
expected, _ = reference.multi_head_attention(x, params, n_heads, context=context)
np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Attention ignores order
#
# Nothing in formula (2) says which word came first. Shuffle the words, and every word
# gets the same output as before, at its new position.

# %% [markdown] tags=["shared"]
# For every permutation matrix $P$ and the layer $F$,
#
# $$F(PX) = P\,F(X), \qquad
# \text{and the weights } A \text{ become } P A P^{\mathsf T} .$$
#
# A layer with this property is **equivariant**. It is not *invariant*, which would be
# $F(PX) = F(X)$: the rows do move.

# %% tags=["shared"]
order = np.random.default_rng(4).permutation(s)
out, weights = map(as_numpy, model(floats(x)))
shuffled, shuffled_weights = map(as_numpy, model(floats(x[:, order])))
back = shuffled[:, np.argsort(order)]  # the words in their first order again

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three matrices of outputs, positions by features: as given, after shuffling the words, and shuffled back. The first and the last are the same; the one between has the same rows in another order."}}
results = {"F(X)": out[0], "F(PX)": shuffled[0], "PᵀF(PX)": back[0]}
style = {"x": "feature", "y": "position", "low": -2, "high": 2, "bar": "output"}
plots.heatmaps(list(results.values()), titles=list(results), size=(5.8, 2.9), **style)

# %% [markdown] tags=["shared"]
# The middle map has the rows of the first in another order.

# %% tags=["shared", "check"]
# Checked: shuffling the words shuffles outputs and weights in the same way
np.testing.assert_allclose(shuffled, out[:, order], atol=1e-6)
np.testing.assert_allclose(back, out, atol=1e-6)
np.testing.assert_allclose(
    shuffled_weights, weights[:, :, order][..., order], atol=1e-6
)
assert np.abs(shuffled - out).max() > 0.12

# %% [markdown] tags=["shared"]
# **Exercise 3, an open question.** To attention, *dog bites man* and *man bites dog*
# are the same set of words. What would you add to the input so that it can tell them
# apart? Try your idea before you open the answer.

# %% tags=["shared", "answer"]
ramp = 0.3 * np.arange(s)[:, None]  # s 1: a multiple of the position, in all features
given = as_numpy(model(floats(x + ramp))[0])
moved = as_numpy(model(floats(x[:, order] + ramp))[0])
gap = np.abs(moved - given[:, order]).max()
assert gap > 0.1, "the order should matter now"
say(
    "Here, each word is shifted by a multiple of its position, so that a word at "
    f"another position is another input. Outputs now differ by up to {gap:.2f} when "
    "the words are shuffled. A ramp grows without bound in long sentences; sines and "
    "cosines do not."
)

# %% [markdown] tags=["shared"]
# ## The frameworks' own attention gives the same numbers
#
# Our function is there to be read. The framework's is faster, and gives the same
# numbers wherever a query sees something. For a query that sees nothing, libraries
# return zeros, the mean of all values, or NaN: see the first row below. Ours is zero.

# %% [markdown] tags=["torch"]
# `nn.functional.scaled_dot_product_attention` wants `b h s d`, like ours, and a mask
# where True means *may look*.

# %% tags=["torch"]
b, s, h, d = 2, 7, 3, 5
q, k, v = (floats(a) for a in np.random.default_rng(5).normal(size=(3, b, h, s, d)))
before = np.tril(np.ones((s, s), bool), k=-1)  # q k: the first query sees nothing
ours = as_numpy(attention(q, k, v, booleans(before))[0])
own_attention = nn.functional.scaled_dot_product_attention
theirs = as_numpy(own_attention(q, k, v, attn_mask=booleans(before)))
theirs[0, 0, :2].round(2)

# %% tags=["shared", "check"]
# Checked: ours and the framework's agree where a query sees something; else ours is 0
np.testing.assert_allclose(ours[:, :, 1:], theirs[:, :, 1:], atol=1e-5)
np.testing.assert_array_equal(ours[:, :, 0], 0)

# %% [markdown] tags=["shared"]
# The same holds across frameworks: with weights from a NumPy generator, the twin of
# this page prints the same numbers.

# %% tags=["shared"]
draw = np.random.default_rng(6).normal
chosen = {name: draw(0, 0.2, array.shape) for name, array in sorted(params.items())}
from_arrays(model, chosen)
out = as_numpy(model(floats(x))[0])
out[0, 0, :4].round(4)

# %% tags=["shared", "check"]
# Checked: with weights from NumPy the layer gives the numbers of the reference
expected, _ = reference.multi_head_attention(x, chosen, n_heads)
np.testing.assert_allclose(out, expected, atol=1e-5)

# %% [markdown] tags=["torch"]
# `nn.MultiheadAttention` keeps the same stacked matrix as we do, but its boolean mask
# means the opposite: True *hides*.

# %% tags=["torch"]
own = nn.MultiheadAttention(m, n_heads, batch_first=True)
stacked = {f"in_proj_{n}": array for n, array in model.qkv.state_dict().items()}
last = {f"out_proj.{n}": array for n, array in model.out.state_dict().items()}
own.load_state_dict(stacked | last)
x_in, hidden = floats(x), ~booleans(causal)
theirs, their_weights = own(
    x_in, x_in, x_in, attn_mask=hidden, average_attn_weights=False
)

# %% tags=["torch", "check"]
# Checked: our layer and the framework's agree under a causal mask
ours, weights = model(x_in, booleans(causal))
np.testing.assert_allclose(as_numpy(ours), as_numpy(theirs), atol=1e-5)
np.testing.assert_allclose(as_numpy(weights), as_numpy(their_weights), atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Attention is a weighted mean of values; the weights come from comparing a query with
#   every key.
# * In self-attention, queries, keys and values are learned projections of the same
#   sequence; in cross-attention, keys and values come from another one.
# * The scale $1/\sqrt{d}$ keeps the variance of the scores independent of $d$.
# * A mask is boolean, True means "may look"; a query that sees nothing gets zeros.
# * Heads are one more leading axis: project, split, attend, concatenate, project.
# * The layer is equivariant: it ignores order, so an encoder adds positions.

# %% [markdown] tags=["torch"]
# Next comes [the encoder, in PyTorch](encoder_torch.ipynb). The last chapter measures
# [what attention costs](costs_torch.ipynb).
