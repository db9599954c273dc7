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
# By the end you can write attention in four lines, name the shape of every array in it,
# hide part of its input, split it into heads, and show that it does not know the order
# of what it reads. You need: Python, matrix products and the softmax.
#
# Every claim that code can check is followed by a cell that fails if the claim is
# wrong. Run the page from top to bottom, then change a line and see what breaks.

# %% [markdown] tags=["torch"]
# This page speaks **PyTorch**. The same page in JAX:
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
import time
from functools import partial
from itertools import combinations

import numpy as np

from helpers import plots, reference, viewer
from helpers.shapes import as_numpy, check_shape
from helpers.weights import from_arrays, to_arrays

plots.use_style()

# %% [markdown] tags=["torch"]
# PyTorch tensors live on a device, and random numbers come from one global state,
# seeded once. With a default device set, everything below is made there; without a GPU
# that is the CPU.

# %% tags=["torch"]
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
tensor = partial(torch.as_tensor, dtype=torch.float32, device=device)
boolean = partial(torch.as_tensor, dtype=torch.bool, device=device)
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## Attention is a weighted mean
#
# A reader who meets the word *it* looks back for what it stands for. Attention does
# this with numbers. It has four parts: a **query** says what I look for, each word
# offers a **key** that says what it has, and a **value** that says what it gives; a
# **score function** compares the query with a key. High scores become large weights,
# and the answer is the mean of the values under those weights. Nothing is picked;
# everything is mixed, in proportions computed from the data.

# %% [markdown] tags=["shared"]
# With the query $q$, the keys $k_i$, the values $v_i$ and the score function $f$, the
# weights $\alpha_i$ and the output are
#
# $$\alpha_i = \frac{\exp f(k_i, q)}{\sum_j \exp f(k_j, q)}, \qquad
# \mathrm{out} = \sum_i \alpha_i v_i .$$
#
# The exponential makes every weight positive, the division makes them sum to one. The
# score here is the dot product. The two features of each key (*is a creature*, *is a
# state*) and the queries are chosen by hand; a trained model finds its own. *The*,
# *because* and *tired* look for nothing: their queries are zero.

# %% tags=["shared"]
tokens = ["the", "cat", "slept", "because", "it", "was", "tired"]
keys = np.array([[0, 0], [1, 0], [0, 0.7], [0, 0], [0.3, 0], [0, 0.2], [0, 1]])  # k d
looks_for = {"cat": [0, 3], "slept": [3, 0], "it": [5, 0], "was": [0, 5]}
queries = np.array([looks_for.get(token, [0, 0]) for token in tokens])  # q d


def weights_of(query):
    """Softmax of the dot products with every key: ``d -> k``."""
    exp = np.exp(keys @ query)
    return exp / exp.sum()


weights = np.stack([weights_of(query) for query in queries])  # q k

# %% [markdown] tags=["shared"]
# A row of weights for each query makes a **map**. The check: weights are positive, rows
# sum to one, and the right word wins. Two limits are worth keeping in mind. If all
# scores are equal, the output is the plain mean of the values; if one score towers
# above the others, the output is a copy of one value.

# %% tags=["shared"]
assert (weights > 0).all()
np.testing.assert_allclose(weights.sum(axis=1), 1)
row = dict(zip(tokens, weights, strict=True))
winners = {token: tokens[row[token].argmax()] for token in looks_for}
assert winners == {"cat": "tired", "slept": "cat", "it": "cat", "was": "tired"}
assert row["it"].max() > row["slept"].max()  # the longer query
values = np.arange(len(tokens))[:, None]  # k 1
np.testing.assert_allclose(row["the"] @ values, values.mean())
np.testing.assert_allclose(weights_of(np.array([100, 0])) @ values, values[1])

# %% [markdown] tags=["shared"]
# What do the weights of *the* look like? Whose are sharper, those of *slept* or of
# *it*? Predict, then move along the rows with the mouse, a finger or the arrow keys.

# %% tags=["shared"]
viewer.attention(
    weights[None, None],  # one layer, one head
    tokens,
    about="Where each word of the sentence looks: a map of seven queries by seven keys",
    query=tokens.index("it"),
)

# %% [markdown] tags=["shared"]
# The same words, other queries, other weights: this is what "computed from the data"
# means. A query of zeros gets the plain mean, and the longer of two queries that point
# the same way has the sharper weights.

# %% [markdown] tags=["shared"]
# ## A small example can be checked by hand
#
# Three words with two features each are enough to see all of attention, and few enough
# to check by hand. There are three queries now, one per word; stacking them as the rows
# of a matrix scores all pairs in one product.

# %% tags=["shared"]
q = np.array([[1, 0], [0, 1], [1, 1]])  # q d
k = np.array([[1, 0], [0, 2], [1, 1]])  # k d
v = np.array([[1, 0], [0, 1], [2, 2]])  # k d
scores = q @ k.T / math.sqrt(2)  # q k
scores.round(2)

# %% [markdown] tags=["shared"]
# A softmax along the keys, the last axis, turns each row of scores into weights; a
# product with the values mixes them.

# %% tags=["shared"]
weights = reference.softmax(scores)  # q k
out = weights @ v  # q d
np.testing.assert_allclose(weights.sum(axis=1), 1)
assert weights[0, 0] == weights[0, 2] > weights[0, 1]
out.round(2)

# %% tags=["shared"] mystnb={"image": {"alt": "Six small matrices with their numbers written in: Q, K and V as chosen, the scores, the weights and the output."}}
plots.grid_of_numbers(
    {"Q": q, "K": k, "V": v, "QKᵀ/√2": scores, "weights": weights, "out": out}
)

# %% [markdown] tags=["shared"]
# Read one row: the first query $(1, 0)$ scores $(1, 0, 1)$ before the scale. Keys one
# and three tie, so they get the same weight, and the second gets less.
#
# **Exercise 1, by hand.** What are the three weights of the *second* query? You need
# $e^{1.414} \approx 4.11$ and $e^{0.707} \approx 2.03$. Write them down to two digits,
# then open the answer.

# %% tags=["shared", "answer"]
by_hand = np.array([1, 4.11, 2.03])
by_hand /= by_hand.sum()
np.testing.assert_allclose(weights[1], by_hand, atol=5e-3)
by_hand.round(2)

# %% [markdown] tags=["shared"]
# ## Two products and a softmax are all of it
#
# Nothing in the example depended on three or on two, nor on there being a single
# sentence. If the last two axes are the matrix, all axes before them can count
# sentences, heads, anything: each slice attends by itself. One function serves them
# all.

# %% [markdown] tags=["shared"]
# $$\mathrm{Attention}(Q, K, V) =
# \mathrm{softmax}\!\left(\frac{QK^{\mathsf T}}{\sqrt{d}}\right) V \tag{1}$$
#
# $Q$ holds one query per row, $K$ one key and $V$ one value per row, $d$ is the number
# of features of a query ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762),
# equation 1). In the code `q` and `k` are also the names of axes: query position and
# key position.

# %% [markdown] tags=["torch"]
# `@` multiplies the matrices in the last two axes, one for each place in the leading
# axes, and `transpose` turns the keys. The softmax runs along the keys; PyTorch calls
# that `dim`.


# %% tags=["torch"]
def plain_attention(q, k, v):
    """Attention without a mask: ``... q d, ... k d, ... k e -> ... q e, ... q k``."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # ... q k
    weights = torch.softmax(scores, dim=-1)
    return weights @ v, weights


# %% [markdown] tags=["shared"]
# The check uses a different prime for every size, so that no swapped axis can hide, and
# compares with a reference in NumPy that does one query at a time in double precision.

# %% tags=["shared"]
b, h, n_queries, n_keys, d = 2, 3, 5, 7, 11
draw = np.random.default_rng(0).normal
q = tensor(draw(size=(b, h, n_queries, d)))
k = tensor(draw(size=(b, h, n_keys, d)))
v = tensor(draw(size=(b, h, n_keys, d)))
out, weights = plain_attention(q, k, v)
check_shape(out, "b h q d", b=b, h=h, q=n_queries, d=d)
check_shape(weights, "b h q k", q=n_queries, k=n_keys)
expected, expected_weights = reference.attention(*map(as_numpy, (q, k, v)))
np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)
np.testing.assert_allclose(as_numpy(weights), expected_weights, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## The scale keeps the softmax from saturating
#
# Why divide by $\sqrt{d}$? A dot product adds up $d$ terms, so its spread grows with
# $d$. A softmax over widely spread scores puts nearly all weight on one key, and where
# the weights hardly move any more, no gradient comes back.

# %% [markdown] tags=["shared"]
# If the entries of $q$ and $k$ are independent with mean 0 and variance $\sigma^2$,
# each product has variance $\sigma^4$, and the sum of $d$ of them
#
# $$\mathrm{Var}(q^{\mathsf T} k) = \sigma^4 d, \qquad
# \mathrm{Var}\!\left(\frac{q^{\mathsf T} k}{\sqrt{d}}\right) = \sigma^4 .$$
#
# The derivatives of the weights $w$ with respect to the scores form the matrix
# $\mathrm{diag}(w) - w w^{\mathsf T}$; its size tells how much the weights still
# respond.


# %% tags=["shared"]
def softmax_state(scores):
    """Largest weight, entropy, size of the gradient; each a mean over the rows."""
    w = reference.softmax(scores)  # n k
    logs = np.log(np.maximum(w, 1e-300))  # 0 log 0 counts as 0
    gradient = w[:, :, None] * (np.eye(w.shape[1]) - w[:, None, :])  # n k k
    size = np.linalg.norm(gradient, axis=(1, 2))
    return w.max(axis=1).mean(), -(w * logs).sum(axis=1).mean(), size.mean()


# %% tags=["shared"]
sigma, n_rows, n_keys = 1.0, 400, 16
sizes = 2 ** np.arange(11)  # d = 1, 2, ..., 1024
draw = np.random.default_rng(1).normal
measured = {"without the scale": [], "with the scale": []}
for d in map(int, sizes):
    q, k = draw(0, sigma, (n_rows, d)), draw(0, sigma, (n_rows, n_keys, d))
    dots = np.einsum("nd,nkd->nk", q, k)
    for name, scores in zip(measured, (dots, dots / math.sqrt(d)), strict=True):
        measured[name].append((scores.var(), *softmax_state(scores)))
plain, scaled = (np.array(rows).T for rows in measured.values())  # 4 d
np.testing.assert_allclose(plain[0], sigma**4 * sizes, rtol=0.2)
np.testing.assert_allclose(scaled[0], sigma**4, rtol=0.2)
for wider in (0.5, 2.0):
    q, k = draw(0, wider, (2, 5000, 64))
    np.testing.assert_allclose((q * k).sum(axis=1).var(), wider**4 * 64, rtol=0.1)
assert plain[1, -1] > 0.9 and scaled[1].max() < 0.5
assert plain[3, -1] < 0.2 * scaled[3, -1]
assert (np.ptp(scaled[:, 2:], axis=1) < 0.2 * scaled[:, 2:].mean(axis=1)).all()

# %% tags=["shared"] mystnb={"image": {"alt": "Four panels over the size of the head d from 1 to 1024. Without the scale the variance rises in proportion to d, the largest weight goes to one, entropy and gradient go to zero; with the scale all four stay level."}}
titles = ["variance of the scores", "largest weight", "entropy", "size of the gradient"]
panels = {
    title: {name: (sizes, rows) for name, rows in zip(measured, pair, strict=True)}
    for title, pair in zip(titles, zip(plain, scaled, strict=True), strict=True)
}
plots.curves(panels, x="size of a head d", log_x=2, log_y=titles[:1], columns=2)

# %% [markdown] tags=["shared"]
# With the scale, all four curves are level from $d = 4$ on: the softmax behaves alike
# for every size. Without it, at $d = 1024$ one key takes more than 0.9 of the weight on
# average, and the gradient is less than a fifth of what it is with the scale.

# %% [markdown] tags=["shared"]
# ## What a mask hides changes nothing
#
# Sentences in a batch have different lengths and are padded; a model that writes must
# not read the words it has yet to write. In both cases some keys must not be seen. A
# **mask** is a boolean array in which True means *may look*. A hidden key gets the
# lowest score there is before the softmax, and exactly zero afterwards. The lowest
# *finite* score: with $-\infty$, a query that sees nothing would compute 0/0.

# %% [markdown] tags=["shared"]
# $$w_{ij} = \frac{M_{ij} \exp z_{ij}}{\sum_l M_{il} \exp z_{il}}, \qquad
# w_{ij} = 0 \;\text{ if } M_{il} = 0 \text{ for all } l,$$
#
# where $z_{ij}$ is the score of query $i$ for key $j$, and $M_{ij}$ is 1 if $i$ may
# look at $j$, else 0. The second rule is for a query that may look nowhere. A mask is
# `q k`, one for all, or has the axes of the weights, where an axis of size 1 serves all
# its places. Three axes for weights `b h q k` raise an error: is it one mask per
# sentence, or one per head? So does a mask of numbers, since a 1 could mean *look* to
# one reader and *hide* to another.


# %% tags=["torch"]
def check_mask(mask, shape):
    """Raise an error unless a mask is boolean and fits the attention weights."""
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
# Two masks in daily use, for two sentences of six words. With a *causal mask* position
# $i$ sees itself and what came before. With a *padding mask* nobody looks at what only
# fills up the second sentence, which has four words; its two padded positions, as
# queries, see nothing at all, since nobody will read their outputs.

# %% tags=["shared"]
b, s, d = 2, 6, 5
q, k, v = np.random.default_rng(2).normal(size=(3, b, s, d))
real = np.arange(s) < np.array([[6], [4]])  # b s
causal = np.tril(np.ones((s, s), bool))  # q k
padding = real[:, :, None] & real[:, None, :]  # b q k
masks = {"none": np.ones_like(causal), "causal": causal, "padding": padding}
maps = {}
for name, mask in masks.items():
    out, weights = attention(tensor(q), tensor(k), tensor(v), boolean(mask))
    maps[name] = as_numpy(weights)
    sees = np.broadcast_to(mask, (b, s, s)).any(axis=-1)  # b q
    np.testing.assert_allclose(maps[name].sum(axis=-1), sees, atol=1e-6)
    expected, _ = reference.attention(q, k, v, mask)
    np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)

# %% tags=["shared"] mystnb={"image": {"alt": "Three maps of weights for the second sentence: without a mask all cells are filled; with the causal mask only the lower triangle, the rest is grey; with the padding mask the last two columns and the last two rows are grey."}}
second = {name: np.where(masks[name], maps[name], np.nan)[1] for name in masks}
plots.heatmaps(list(second.values()), titles=list(second))

# %% [markdown] tags=["shared"]
# Grey is hidden. Now the promise of the heading. We put garbage behind the mask, in the
# keys and in the values of the padded positions, and nothing that is visible may move,
# not by a single bit. The garbage has to be finite: zero times NaN is NaN. Last, a mask
# of numbers raises an error, which says what was expected and what came.

# %% tags=["shared"]
k_garbage, v_garbage = k.copy(), v.copy()
k_garbage[~real] = 1e4
v_garbage[~real] = -1e4
clean, _ = attention(tensor(q), tensor(k), tensor(v), boolean(padding))
dirty, _ = attention(tensor(q), tensor(k_garbage), tensor(v_garbage), boolean(padding))
np.testing.assert_array_equal(as_numpy(clean), as_numpy(dirty))
np.testing.assert_array_equal(as_numpy(clean)[~real], 0)
try:
    attention(tensor(q), tensor(k), tensor(v), tensor(padding))
except TypeError as error:
    print(error)
else:
    raise AssertionError("a mask of numbers went through")

# %% [markdown] tags=["torch"]
# A query that sees nothing gets zeros, and its gradient must be finite as well: a
# single NaN would spoil every weight of a model. PyTorch records what happens to
# *tensors* that ask for a gradient; `backward` then fills in their `grad`.


# %% tags=["torch"]
def total(q, k, v):
    """Sum of all outputs, in single precision, to have one number to differentiate."""
    return attention(q, k, v, boolean(padding))[0].float().sum()


for dtype in (torch.float32, torch.bfloat16, torch.float16):
    inputs = [tensor(x).to(dtype).requires_grad_() for x in (q, k, v)]
    out, weights = attention(*inputs, boolean(padding))
    total(*inputs).backward()
    assert out.dtype == weights.dtype == dtype
    assert (as_numpy(out)[~real] == 0).all()
    assert all(np.isfinite(as_numpy(x.grad)).all() for x in inputs)

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** Make a mask under which every position sees itself
# and at most two positions on either side, and show that no row of the weights has more
# than five entries. The cost of such a *restricted* attention is in the table at the
# end of this page.

# %% tags=["shared", "answer"]
place = np.arange(s)
window = np.abs(place[:, None] - place) <= 2  # q k
_, weights = attention(tensor(q), tensor(k), tensor(v), boolean(window))
per_row = (as_numpy(weights) > 0).sum(axis=-1)  # b q
assert per_row.max() == 5 and per_row[0, 0] == 3
per_row

# %% [markdown] tags=["shared"]
# ## Heads attend independently of each other
#
# One query can look for one thing. **Multi-head attention** makes several smaller
# queries from each word, lets each attend by itself, and joins the answers. The scores
# of $h$ heads of size $d = m/h$ take as many multiplications as those of one head of
# size $m$.

# %% [markdown] tags=["shared"]
# $$\begin{aligned}
# \mathrm{head}_i &= \mathrm{Attention}(X W^Q_i,\, X W^K_i,\, X W^V_i) \\
# \mathrm{MultiHead}(X) &= \left[\mathrm{head}_1 \ldots \mathrm{head}_h\right] W^O
# \end{aligned}$$
#
# $X$ is `s m`: one row per position. The matrices $W^Q_i$, $W^K_i$, $W^V_i$ of all
# heads stand side by side in a single `m 3m` matrix, so that one product makes them all
# (the biases are left out here, not in the code).
#
# **Initial weights** lie evenly between $-1/\sqrt{n}$ and $1/\sqrt{n}$, with $n$ the
# number of inputs, as in `torch.nn.Linear`; biases start at zero. So $Q$, $K$ and $V$
# have a third of the variance of $X$, and every head starts close to a plain mean.
# [Xavier-uniform](https://proceedings.mlr.press/v9/glorot10a.html) takes the `m 3m`
# matrix as one, which makes it a half. The smaller start
# [gave the lower loss](../book/how-this-was-built.md) with each of five seeds.

# %% [markdown] tags=["torch"]
# PyTorch keeps the matrix of a dense layer as `out in` and computes
# $xW^{\mathsf T} + b$. Initial weights come from the global state and are overwritten
# in place; `build` seeds that state before it makes a layer. It hides this difference,
# so that most cells read the same in both frameworks.


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
# Four matrices of size $m \times m$ and four biases of size $m$ make $4m^2 + 4m$
# numbers to learn. `to_arrays` copies them to NumPy under names that neither framework
# owns.

# %% tags=["shared"]
b, s, m, n_heads = 2, 7, 24, 4
model = build(MultiHeadAttention, m, n_heads)
x = np.random.default_rng(3).normal(size=(b, s, m))
out, weights = model(tensor(x))
check_shape(out, "b s m", b=b, s=s, m=m)
check_shape(weights, "b h q k", b=b, h=n_heads, q=s, k=s)
params = to_arrays(model)
assert sum(array.size for array in params.values()) == 4 * m**2 + 4 * m
expected, _ = reference.multi_head_attention(x, params, n_heads)
np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)
for name in ("qkv", "out"):
    matrix, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    bound = 1 / math.sqrt(m)
    assert 0.9 * bound < np.abs(matrix).max() <= bound and not bias.any()
{name: array.shape for name, array in params.items()}

# %% tags=["shared"] mystnb={"image": {"alt": "Eight maps of weights, one row per sentence and one column per head. Each head spreads its weights differently, although nothing has been trained yet."}}
titles = [f"b = {i}, h = {j}" for i in range(b) for j in range(n_heads)]
grid = as_numpy(weights).reshape(-1, s, s)  # b·h q k
plots.heatmaps(grid, titles=titles, columns=n_heads, size=(6.4, 3.6))

# %% [markdown] tags=["shared"]
# No two heads agree: their matrices start from different random numbers. Nor does one
# disturb another: a mask of shape `b h q k` that makes the first head causal leaves the
# others as they were.
#
# With a second input, the `context`, queries come from $X$, keys and values from the
# context: **cross-attention**, by which one sequence reads another. Its maps need not
# be square.

# %% tags=["shared"]
maps = as_numpy(weights)  # b h q k
for i, j in combinations(range(n_heads), 2):
    assert np.abs(maps[:, i] - maps[:, j]).max() > 0.05
causal = np.tril(np.ones((s, s), bool))
per_head = np.ones((b, n_heads, s, s), bool)
per_head[:, 0] = causal
masked = as_numpy(model(tensor(x), boolean(per_head))[1])
assert (masked[:, 0, ~causal] == 0).all()
np.testing.assert_array_equal(masked[:, 1:], maps[:, 1:])
context = np.random.default_rng(7).normal(size=(b, 11, m))
out, weights = model(tensor(x), context=tensor(context))
check_shape(weights, "b h q k", b=b, h=n_heads, q=s, k=11)
expected, _ = reference.multi_head_attention(x, params, n_heads, context=context)
np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Attention ignores order
#
# Nothing in formula (1) says which word came first. Shuffle the words, and every word
# gets the same answer as before, at its new place.

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
out, weights = map(as_numpy, model(tensor(x)))
shuffled, shuffled_weights = map(as_numpy, model(tensor(x[:, order])))
np.testing.assert_allclose(shuffled, out[:, order], atol=1e-6)
np.testing.assert_allclose(
    shuffled_weights, weights[:, :, order][..., order], atol=1e-6
)
assert np.abs(shuffled - out).max() > 0.1

# %% tags=["shared"] mystnb={"image": {"alt": "Three matrices of outputs, positions by features: as given, after shuffling the words, and shuffled back. The first and the last are the same; the one between has the same rows in another order."}}
back = shuffled[:, np.argsort(order)]
drawn = {"F(X)": out[0], "F(PX)": shuffled[0], "PᵀF(PX)": back[0]}
style = {"x": "feature", "y": "position", "low": -2, "high": 2, "bar": "output"}
plots.heatmaps(list(drawn.values()), titles=list(drawn), size=(5.8, 2.9), **style)

# %% [markdown] tags=["shared"]
# The middle map has the rows of the first in another order; shuffled back, they match.
#
# **Exercise 3, an open question.** To attention, *dog bites man* and *man bites dog*
# are the same set of words. What would you add to the input so that it can tell them
# apart? Try your idea before you open the answer, which adds to each row a multiple of
# its position. The encoder chapter has a better one.

# %% tags=["shared", "answer"]
ramp = 0.3 * np.arange(s)[:, None]  # s 1
placed = as_numpy(model(tensor(x + ramp))[0])
placed_shuffled = as_numpy(model(tensor(x[:, order] + ramp))[0])
gap = np.abs(placed_shuffled - placed[:, order]).max()
assert gap > 0.01, "the order should matter now"
f"largest difference with positions: {gap:.2f}"

# %% [markdown] tags=["shared"]
# ## The frameworks' own attention gives the same numbers
#
# Our function is there to be read. For speed you would call the framework's, which
# takes the same arrays in its own layout. Wherever a query sees something, it must give
# the same answer. For a query that sees nothing there is no agreement: libraries answer
# with zeros, with a mean of all values, or with NaN. The first row below shows what
# this version does; ours is zero.

# %% [markdown] tags=["torch"]
# `nn.functional.scaled_dot_product_attention` wants `b h s d`, like ours, and a mask
# where True means *may look*.

# %% tags=["torch"]
b, s, h, d = 2, 7, 3, 5
q, k, v = (tensor(a) for a in np.random.default_rng(5).normal(size=(3, b, h, s, d)))
some = np.tril(np.ones((s, s), bool), k=-1)  # the first query sees nothing
ours = as_numpy(attention(q, k, v, boolean(some))[0])
own_attention = nn.functional.scaled_dot_product_attention
theirs = as_numpy(own_attention(q, k, v, attn_mask=boolean(some)))
np.testing.assert_allclose(ours[:, :, 1:], theirs[:, :, 1:], atol=1e-5)
np.testing.assert_array_equal(ours[:, :, 0], 0)
theirs[0, 0, :2].round(2)

# %% [markdown] tags=["shared"]
# The same holds across frameworks: arrays under neutral names go into a model of
# either. Here they come from a NumPy generator, so the twin of this page prints the
# same numbers.

# %% tags=["shared"]
draw = np.random.default_rng(6).normal
drawn = {name: draw(0, 0.2, array.shape) for name, array in sorted(params.items())}
from_arrays(model, drawn)
out = as_numpy(model(tensor(x))[0])
expected, _ = reference.multi_head_attention(x, drawn, n_heads)
np.testing.assert_allclose(out, expected, atol=1e-5)
out[0, 0, :4].round(4)

# %% [markdown] tags=["torch"]
# `nn.MultiheadAttention` keeps the same stacked matrix as we do, but its boolean mask
# means the opposite: True *hides*.

# %% tags=["torch"]
own = nn.MultiheadAttention(m, n_heads, batch_first=True)
stacked = {f"in_proj_{n}": values for n, values in model.qkv.state_dict().items()}
joined = {f"out_proj.{n}": values for n, values in model.out.state_dict().items()}
own.load_state_dict(stacked | joined)
x_in, hidden = tensor(x), ~boolean(causal)
ours, weights = model(x_in, boolean(causal))
theirs, their_weights = own(
    x_in, x_in, x_in, attn_mask=hidden, average_attn_weights=False
)
np.testing.assert_allclose(as_numpy(ours), as_numpy(theirs), atol=1e-5)
np.testing.assert_allclose(as_numpy(weights), as_numpy(their_weights), atol=1e-5)

# %% [markdown] tags=["shared"]
# ## The cost grows with the square of the length
#
# Every position looks at every other, so doubling the length makes four times as many
# pairs. In return, any two positions are one step apart, and no step waits for another.
# Per layer, up to a constant factor, for length $n$ and size $d$, with a convolution of
# width $w$ and a neighbourhood of $r$
# ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), table 1):
#
# | layer | operations | steps in sequence | longest path |
# |---|---|---|---|
# | self-attention | $n^2 d$ | $1$ | $1$ |
# | recurrent | $n d^2$ | $n$ | $n$ |
# | convolution | $w n d^2$ | $1$ | $\log_w n$ |
# | restricted attention | $r n d$ | $1$ | $n / r$ |
#
# Where do attention and a recurrent layer cross? Count all multiplications of one head
# of size $d$ and of a GRU: attention has four products of $n \times d$ with $d \times
# d$, then $n^2 d$ for the scores and $n^2 d$ for the means; a GRU has six of the
# former. They are equal at $n = d$.

# %% tags=["shared"]
d, r, lengths = 64, 16, 2 ** np.arange(4, 11)  # n = 16, 32, ..., 1024
projections, pairs = 4 * lengths * d**2, lengths**2
counts = {
    "attention": projections + 2 * pairs * d,
    "GRU": 6 * lengths * d**2,
    "16 neighbours": projections + 2 * r * lengths * d,
}
np.testing.assert_array_equal(counts["attention"] < counts["GRU"], lengths < d)
np.testing.assert_array_equal(counts["attention"] == counts["GRU"], lengths == d)
np.testing.assert_array_equal(pairs[1:], 4 * pairs[:-1])

# %% [markdown] tags=["shared"]
# Counted in multiplications, attention is the cheaper one exactly while $n < d$. The
# clock counts differently: attention is a few large products, a recurrent layer many
# small ones that wait for each other. Here are both on this machine, our layer with one
# head and the framework's GRU.

# %% [markdown] tags=["torch"]
# PyTorch returns before the GPU is done: the stopwatch waits for it with `synchronize`.
# The first run, which sets up memory, is not counted.


# %% tags=["torch"]
def seconds(function, *args, repeats=3):
    """Shortest of several runs, after one that warms up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    runs = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        with torch.no_grad():
            function(*args)
        wait()
        runs.append(time.perf_counter() - start)
    return min(runs[1:])


gru, one_head = nn.GRU(d, d, batch_first=True), MultiHeadAttention(d, 1)
layers = {"attention": one_head, "GRU": gru}

# %% tags=["shared"] mystnb={"image": {"alt": "Left, the multiplications of attention, of a GRU and of attention restricted to 16 neighbours over the length; the first two cross at n equal to d. Right, measured milliseconds of attention and of a GRU over the same lengths."}}
inputs = [tensor(np.random.default_rng(6).normal(size=(1, n, d))) for n in lengths]
times = {name: [1e3 * seconds(f, x) for x in inputs] for name, f in layers.items()}
panels = {
    f"multiplications, d = {d}": {name: (lengths, c) for name, c in counts.items()},
    "milliseconds": {name: (lengths, t) for name, t in times.items()},
}
faster = lengths[np.array(times["attention"]) < np.array(times["GRU"])]
print(f"multiplications: attention needs fewer below n = {d}")
print(f"the clock: attention was faster at n = {', '.join(map(str, faster)) or 'none'}")
plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o")

# %% [markdown] tags=["shared"]
# Memory is the other price: the written-out function keeps the whole $n \times n$
# matrix of weights, and training needs it again on the way back. A **fused** kernel
# works through the keys, a few at a time, and never holds the matrix.

# %% [markdown] tags=["torch"]
# `nn.functional.scaled_dot_product_attention` picks a fused kernel on the CPU and on
# the GPU. For the way back it keeps inputs, outputs and a few numbers per query, and
# computes the weights again. A hook tells what a forward pass saves for the backward
# pass:


# %% tags=["torch"]
def written_out(q, k, v):
    """Our own attention, for one head: ``b s d -> b s d``."""
    return attention(q, k, v)[0]


def framework_attention(q, k, v):
    """The framework's own attention, for one head: ``b s d -> b s d``."""
    return nn.functional.scaled_dot_product_attention(q, k, v)


def work_memory(function, x):
    """Bytes that the forward pass keeps for the gradient with respect to q, k and v."""
    q, k, v = (x[:, None].clone().requires_grad_() for _ in range(3))  # b 1 s d
    kept = {}
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        function(q, k, v)
    return sum(t.nbytes for t in kept.values())


# %% tags=["shared"] mystnb={"image": {"alt": "Left, bytes needed for the gradient over the length, for written-out attention and for the framework's own call. Right, the milliseconds of both."}}
kinds = {"written out": written_out, "framework's own": framework_attention}
memory = {name: [work_memory(f, x) for x in inputs] for name, f in kinds.items()}
speed = {name: [1e3 * seconds(f, x, x, x) for x in inputs] for name, f in kinds.items()}
panels = {
    "bytes for the gradient": {n: (lengths, rows) for n, rows in memory.items()},
    "milliseconds, forward": {n: (lengths, rows) for n, rows in speed.items()},
}
plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o")

# %% [markdown] tags=["torch"]
# From $n = 512$ to $1024$ the memory of the written-out function grows by more than
# three times; that of the fused kernel only doubles.

# %% tags=["torch"]
growth = {name: rows[-1] / rows[-2] for name, rows in memory.items()}
assert growth["written out"] > 3 and growth["framework's own"] < 2.2
growth

# %% [markdown] tags=["shared"]
# ## What to take along
#
# * Attention is a mean of values; the weights come from comparing a query with every
#   key.
# * The scale $1/\sqrt{d}$ keeps the variance of the scores from growing with the size
#   of a head.
# * A mask is boolean, True means *may look*; a query that sees nothing gets zeros.
# * Heads are one more leading axis: split, attend, join, project.
# * The layer is equivariant: it cannot know the order, which is why an encoder adds
#   positions.
# * Its cost grows with $n^2 d$, but it takes only one step in sequence.

# %% [markdown] tags=["torch"]
# Next comes [the encoder, in PyTorch](encoder_torch.ipynb).
