# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,mystnb,-all
#     formats: ipynb,py:percent
#     notebook_metadata_filter: -jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] tags=["shared"]
# # Positions and the whole encoder
#
# By the end you can give a Transformer the order of its inputs in three ways, mask
# padding in all of its layers, and build the whole model that the next chapters train.
# You need: the chapters on attention and on the encoder block.
#
# *Dog bites man* is no news, *man bites dog* is. Both have the same words, and an
# encoder block cannot tell the two sentences apart. So the model must be told where
# each word is. How we do that decides whether the model also works on texts that are
# longer than those it was trained on.
#
# The first half of the page is about positions, the second builds the whole model.
# Between the two is a good place to stop.

# %% [markdown] tags=["jax"]
# This page uses **JAX**, with Flax NNX for layers. The same page in PyTorch:
# [positions_torch](positions_torch.ipynb). `Encoder`, `MultiHeadAttention` and `dense`
# are those of the last two chapters. Before it comes [the encoder
# block](encoder_jax.ipynb).

# %% tags=["jax", "setup"]
# In Colab this fetches the helpers of the book; anywhere else it does nothing.
import os
import subprocess
import sys

REPOSITORY = "https://github.com/example/transformers-side-by-side"

if "google.colab" in sys.modules and not os.path.isfile("helpers/settings.py"):
    folder = REPOSITORY.rsplit("/", 1)[-1]
    if not os.path.exists(folder):
        clone = ["git", "clone", "--quiet", "--depth", "1", REPOSITORY, folder]
        if subprocess.run(clone, check=False).returncode:
            sys.exit(f"{REPOSITORY} cannot be fetched: a placeholder, or not reached")
    if not os.path.isfile(f"{folder}/notebooks/helpers/settings.py"):
        sys.exit(f"expected a clone of {REPOSITORY} in {folder}: rename what is there")
    os.chdir(os.path.join(folder, "notebooks"))
    sys.path.insert(0, os.getcwd())

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from helpers import Settings, as_numpy, check, to_arrays
from helpers.jax import MultiHeadAttention, cross_entropy, dense, fit, tensor
from helpers.jax.encoder import Encoder, attention_maps, layer_norm
from helpers.show import drawing, plots, say, table

plots.use_style()
# All digits of float32: JAX's default on recent GPUs is TF32, with 11 significant bits.
jax.config.update("jax_default_matmul_precision", "highest")

# %% [markdown] tags=["shared"]
# ## First half: without positions the order is lost
#
# Attention ignores order, as its chapter shows, and the feed-forward net treats each
# position alone. So a whole stack of blocks ignores order, too. We send both sentences
# through a new encoder:

# %% tags=["jax"]
encoder = Encoder(n_blocks=2, m=12, n_heads=3, f=29, rngs=nnx.Rngs(0))

# %% tags=["shared"]
dog, bites, man = np.eye(3, 12)  # each word has a feature of its own
sentences = np.array([[dog, bites, man], [man, bites, dog]])  # b s m
dog_bites, man_bites = as_numpy(encoder(tensor(sentences)))  # s m, s m
same = np.allclose(dog_bites, man_bites[::-1], atol=1e-5)
print("the same outputs, in another order:", same)

# %% [markdown] tags=["shared"]
# The output for *dog* is the same whether it bites or is bitten, and no later layer can
# tell which.

# %% tags=["shared", "check"]
# Checked: each word gets the same output in both sentences
np.testing.assert_allclose(dog_bites, man_bites[::-1], atol=1e-5)
assert np.abs(dog_bites[0] - dog_bites[2]).max() > 1.5

# %% [markdown] tags=["shared"]
# ## Sines and cosines encode the position
#
# The remedy of 2017 adds to each word a vector that depends on its position, the
# **positional encoding**. Its features come in pairs, and each pair is the hand of a
# clock: fast hands tell neighbours apart, slow ones tell the beginning from the end.

# %% mystnb={"image": {"alt": "Three rows of six clocks for the positions 0 to 5. All hands start at the top. In the first row the hand goes nearly once around, in the second it comes to a quarter turn, in the third it has hardly left the top."}} tags=["shared", "figure"]
drawing("clocks")

# %% [markdown] tags=["shared"]
# From each position to the next, the hand of pair $j$ turns by the angle $\omega_j$.
# The pair holds the sine and the cosine of where it stands. Pair 0 turns by one radian.
# Each later pair is slower by the same factor, the last nearly $10000$ times as slow:
# it takes tens of thousands of positions to come round. With $m$ features,
#
# $$\begin{aligned}
# PE_{pos,\,2j} &= \sin(\omega_j\, pos), \qquad \omega_j = 10000^{-2j/m} \\
# PE_{pos,\,2j+1} &= \cos(\omega_j\, pos)
# \end{aligned}$$

# %% [markdown] tags=["jax"]
# A large angle has few digits left in float32, so the table is computed in NumPy's
# float64, once. (`rotary`, below, does with float32, up to ten thousand positions or
# so.)


# %% tags=["jax", "export"]
def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    omega = 10000 ** (-np.arange(0, m, 2) / m)  # m/2
    angle = np.arange(length)[:, None] * omega  # s m/2
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)  # s m/2 2
    return pairs.reshape(length, -1)[:, :m]  # s m; an odd m ends on a sine


# %% tags=["shared"]
m, length = 48, 96
codes = as_numpy(sinusoidal_positions(length, m))  # s m

# %% mystnb={"image": {"alt": "Heat map of the positional encoding, 96 positions by 48 features. The first features alternate quickly along the positions; the waves get slower with each pair, and the last features keep one colour throughout. Beside it the products of all pairs of codes, 96 by 96: every diagonal has one colour, and the main diagonal is the darkest."}} tags=["shared", "figure"]
products = codes @ codes.T / (m / 2)  # s s, so that a code has 1 with itself
fig = plots.heatmaps(
    [codes.T, products],
    titles=["fast pairs on top", "dot products: one per distance"],
    x="position",
    y="feature i",
    low=-1,
    bar="value",
    size=(7.2, 3.2),
)
fig.axes[1].set_ylabel("position")
fig.axes[1].tick_params("y", labelleft=True)
fig

# %% [markdown] tags=["shared"]
# In the left panel, each column is the code of one position; the stripes at the bottom
# are slow hands. In the right panel, each diagonal has one colour: the dot product of
# two codes depends on their distance only. It is largest for the same position, and
# falls over the first few steps.
#
# Why clocks? A plain number would grow with the text and drown the word. And a step of
# $t$ positions turns hand $j$ by the angle $\omega_j t$, wherever it stands. Such a
# turn is a matrix, so one fixed matrix turns the code of any position into the code
# three words to its left.

# %% tags=["shared", "check"]
# Checked: a step of t positions turns hand j by omega_j t, wherever it stands
omega = 10000 ** (-np.arange(0, m, 2) / m)  # m/2, one per pair
hands = codes[:, 1::2] + 1j * codes[:, ::2]  # s m/2, as complex numbers
for t in (-3, 1, 10):
    now, then = hands[10:-10], hands[10 + t : length - 10 + t]
    np.testing.assert_allclose(then, now * np.exp(1j * omega * t), atol=1e-9)

# %% tags=["shared", "check"]
# Checked: products depend on the distance alone, and fall over the first few steps
for distance in range(length):
    along = np.diagonal(products, distance)
    np.testing.assert_allclose(along, along[0], atol=1e-9)
assert (np.diff(products[0, :6]) < 0).all()
assert (products[0, 5:] < 0.75).all()
assert (np.diff(products[0, 5:]) > 0).any()  # not monotonic

# %% [markdown] tags=["shared"]
# ## The codes are added to the input, computed or learned
#
# Inside a model, the table of codes is computed once and added to every input.
# (Appended codes would make every layer wider.) The alternative is a table that is
# **learned** like any other parameter; [BERT](https://arxiv.org/abs/1810.04805) has
# one. In our code, both tables end at `max_length`; a longer sequence raises an error.

# %% [markdown] tags=["jax"]
# An array is a parameter only inside an
# [`nnx.Param`](https://flax.readthedocs.io/en/latest/nnx_basics.html). The table of
# sinusoids is a plain `nnx.Variable`, so `nnx.split(model, nnx.Param, ...)` counts it
# among the rest, and training leaves it alone.


# %% tags=["jax", "export"]
def check_length(x, table):
    """Raise an error if a sequence ``b s m`` is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


class SinusoidalPositions(nnx.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs=None):
        table = sinusoidal_positions(max_length, m)  # s m
        self.table = nnx.Variable(jnp.asarray(table, dtype=jnp.float32))

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


# %% tags=["jax", "export"]
class LearnedPositions(nnx.Module):
    """Adds a learned vector to each of ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs):
        table = jax.random.normal(rngs.params(), (max_length, m))  # s m
        self.table = nnx.Param(0.02 * table)  # small, as in BERT

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


# %% [markdown] tags=["shared"]
# ## Rotary positions put the distance into the scores
#
# A word seldom needs *position 17*, and often *the word three places back*. With added
# codes $c$, the score of the words $x$ and $y$ at the positions $p$ and $r$ is
#
# $$(x + c_p)\,W_Q \cdot (y + c_r)\,W_K,$$
#
# a sum of four products. Word · word knows no position, word · code and code · word
# know one. Only code · code knows both. But the learned matrices between the codes
# spoil what depended on the distance alone.
#
# To make only the distance count, let the clocks *rotate* the words instead. **Rotary
# positions** ([Su et al. 2021](https://arxiv.org/abs/2104.09864)) take the features of
# every query and key in pairs, and rotate pair $j$ at position $p$ by the angle
# $\omega_j p$, with $\omega_j = 10000^{-2j/d}$; values stay as they are. With $R_p$ for
# this rotation, the score of a query at $p$ and a key at $r$ is
#
# $$(R_p\, q) \cdot (R_r\, k) = q \cdot (R_{r-p}\, k),$$
#
# because rotating two vectors by the same angle leaves their dot product as it is.
# (Here they are columns.) Turn both back by $R_p$, the query's angle: $q$ is as it was,
# $k$ turned by the difference. So the score depends on the two words and on their
# distance $r - p$, but not on where they are.


# %% tags=["jax", "export"]
def rotary(x, offset=0):
    """Rotate pairs of features; row 0 has position ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    positions = offset + jnp.arange(s)
    angle = positions[:, None] * 10000.0 ** (-jnp.arange(0, d, 2) / d)  # s d/2
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = [even * cos - odd * sin, even * sin + odd * cos]
    return jnp.stack(pairs, axis=-1).reshape(x.shape).astype(x.dtype)  # ... s d


# %% [markdown] tags=["shared"]
# Every position has the same query and the same key here, and codes are added to them
# without matrices. So what varies on the left is word · code; matrices would add to it:

# %% tags=["shared"]
query, key = np.random.default_rng(3).normal(size=(2, 8))
q, k = np.tile(query, (16, 1)), np.tile(key, (16, 1))  # s d
added_code = as_numpy(sinusoidal_positions(16, 8))  # s d
added = (q + added_code) @ (k + added_code).T  # s s
rotated = as_numpy(rotary(tensor(q))) @ as_numpy(rotary(tensor(k))).T  # s s

# %% mystnb={"image": {"alt": "Two heat maps of scores, 16 queries by 16 keys. Left, with added codes, the colours change along every diagonal. Right, with rotary positions, every diagonal has one colour."}} tags=["shared", "figure"]
high = max(np.abs(added).max(), np.abs(rotated).max())
plots.heatmaps(
    [added, rotated],
    titles=["added codes: scores vary", "rotary: one score per distance"],
    x="position of the key",
    y="position of the query",
    low=-high,
    high=high,
    bar="score",
    size=(6.6, 3.2),
)

# %% tags=["shared", "say"]
spread = max(np.ptp(np.diagonal(added, t)) for t in range(-15, 16))
say(
    "Along a diagonal the distance is the same. With added codes the scores of one "
    f"distance differ by up to {spread:.1f}; with rotary positions, by rounding only."
)

# %% tags=["shared", "check"]
# Checked: with rotary positions the score depends only on the distance
assert spread > 6
for distance in range(-15, 16):
    assert np.ptp(np.diagonal(rotated, distance)) < 1e-4
np.testing.assert_allclose(rotated[0, 0], query @ key, atol=1e-5)
later = as_numpy(rotary(tensor(q), 100)) @ as_numpy(rotary(tensor(k), 100)).T
np.testing.assert_allclose(later, rotated, atol=1e-4)

# %% [markdown] tags=["shared"]
# With `offset=100` the words stand 100 places later, and no score changes. Many
# current models have rotary positions, for example
# [LLaMA](https://arxiv.org/abs/2302.13971).
# ([ALiBi](https://arxiv.org/abs/2108.12409) subtracts a multiple of the distance from
# each score instead.) In our attention layer, only the method `project` changes:


# %% tags=["jax", "export"]
class RotaryAttention(MultiHeadAttention):
    """Attention whose queries and keys are rotated: ``b s m -> b s m, b h s s``."""

    def project(self, x, offset=0):
        q, k, v = super().project(x)  # each b h s d
        return rotary(q, offset), rotary(k, offset), v


# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** A head has $d = 2$ features, so one pair, which turns by one
# radian per position. Query and key are both $(1, 0)$. What is their score, before
# it is divided by $\sqrt{2}$, for the query at position 5 and the key at 3? For 105 and
# 103? At which of the distances 0 to 6 is the score smallest?

# %% tags=["shared", "answer"]
ones = tensor(np.tile([1.0, 0.0], (7, 1)))
hands, later = as_numpy(rotary(ones)), as_numpy(rotary(ones, offset=100))  # s d
near_score, far_score = hands[5] @ hands[3], later[5] @ later[3]
np.testing.assert_allclose([near_score, far_score], np.cos(2), atol=1e-4)
assert (hands[0] @ hands.T).argmin() == 3
say(
    f"Both scores are $\\cos 2$: {near_score:.2f} and {far_score:.2f}. In general the "
    "score is the cosine of the distance. From 0 to 6 it is smallest at 3, the whole "
    "number nearest to $\\pi$. One pair alone is periodic and cannot tell the distance "
    "0 from about 6; slower pairs can."
)

# %% [markdown] tags=["shared"]
# **In your own code** take rotary positions where the distance counts, as in text and
# in most signals; a learned table where the place itself does, as in pictures of one
# size; and none for sets. For irregular times of measurement, make the `angle` in
# `rotary` from these times, of shape `b 1 s 1`, in units of a usual gap, and hand them
# from the model to each block: ours has no such argument.

# %% [markdown] tags=["shared"]
# ## Second half: the predictor gives each element an output
#
# A model needs two ends around the encoder. At the front, words must become vectors.
# First, each token gets an **id**, its number in a fixed *vocabulary*. The shorter
# sequences of a batch are padded, and a second array says which ids are real:

# %% tags=["shared"]
vocabulary = ["a", "by", "night", "step", "the"]  # a real one has tens of thousands
texts = [["step", "by", "step"], ["the", "night"]]
ids = np.zeros((2, 3), dtype=int)  # b s
is_real = np.zeros((2, 3), dtype=bool)  # b s
for row, tokens in enumerate(texts):
    ids[row, : len(tokens)] = [vocabulary.index(token) for token in tokens]
    is_real[row, : len(tokens)] = True
ids, is_real

# %% [markdown] tags=["shared"]
# Ids become vectors by a look-up: an **embedding** is a table with one row of $m$
# learned numbers for each id. They start with a variance of 1, so that no code drowns
# the word. (Vaswani et al. start with less, and multiply the rows by $\sqrt{m}$.)

# %% tags=["jax"]
normal = nnx.initializers.normal(1.0)  # Flax's default is smaller
embedding = nnx.Embed(len(vocabulary), 4, embedding_init=normal, rngs=nnx.Rngs(0))
rows = as_numpy(embedding(tensor(ids)))  # b s m
rows[0].round(1)  # step, by, step

# %% [markdown] tags=["shared"]
# The two rows of *step* are equal. For features, such as those of a picture, a linear
# layer takes the place of the table.
#
# Our model, the `Predictor`, has five stages:
#
# 1. `embed` brings each element of the input to size $m$: ids or features.
# 2. `positions` tells where it is; for a *set*, such as a bag of words, it is left out.
# 3. `encoder` lets the elements exchange information.
# 4. `hidden`, with a norm and a ReLU, computes with each vector alone.
# 5. `output` turns it into what is asked for, such as the scores of $c$ classes.

# %% mystnb={"image": {"alt": "The predictor as a flow from top to bottom: embed, positions, which add a code to each element, the encoder with its stack of blocks, where a mask enters and maps come out, then hidden, hidden_norm, relu and output."}} tags=["shared", "figure"]
drawing("predictor")

# %% [markdown] tags=["shared"]
# Two functions help. `visible` makes a mask of `real`, `b s`, so that no element looks
# at padding. After stage 3, `pooled` makes one vector of a sequence if we want one: the
# mean of the real elements, or the first, if every sequence begins with the same
# **class token** (BERT's `[CLS]`), which only collects.


# %% tags=["jax", "export"]
def visible(mask, real):
    """A mask that also hides the padding, where ``real`` ``b s`` is False."""
    if real is None:
        return mask
    padding = real[:, None, None]  # b 1 1 k
    return padding if mask is None else mask & padding


def pooled(x, real, pool):
    """Every vector, the mean of the real ones, or the first: ``b s m -> b m``."""
    if pool not in (None, "mean", "first"):
        raise ValueError(f"expected pool None, 'mean' or 'first', got {pool!r}")
    if pool == "mean":
        real = jnp.ones_like(x[..., 0]) if real is None else real
        return (x * real[..., None]).sum(1) / real.sum(1, keepdims=True)
    return x[:, 0] if pool == "first" else x


# %% [markdown] tags=["jax"]
# Now the model. `Embedding` has the variance of above. In `__call__`, `# 1` to `# 5`
# mark the stages. `**options` are the encoder's: `n_blocks`, `n_heads` and `f`, and, if
# you like, `dropout`, `activation` and `norm_first`.

# %% tags=["jax", "export"]
Embedding = partial(nnx.Embed, embedding_init=nnx.initializers.normal(1.0))
POSITIONS = {  # the codes that are added, and the attention of every block
    "sinusoidal": (SinusoidalPositions, MultiHeadAttention),
    "learned": (LearnedPositions, MultiHeadAttention),
    "rotary": (None, RotaryAttention),
    "none": (None, MultiHeadAttention),
}


# %% tags=["jax", "export"]
class Predictor(nnx.Module):
    """From ids ``b s`` or features ``b s i`` to ``b s c``, or pooled to ``b c``."""

    def __init__(
        self,
        n_inputs,
        m,
        n_outputs,
        ids=False,
        pool=None,  # or "mean", "first"
        positions="sinusoidal",
        max_length=512,
        *,
        rngs,
        **options,  # of the encoder: n_blocks, n_heads, f
    ):
        added, attention = POSITIONS[positions]
        self.pool = pool
        self.embed = (Embedding if ids else dense)(n_inputs, m, rngs=rngs)
        self.positions = added(m, max_length, rngs=rngs) if added else None
        self.encoder = Encoder(m=m, attention=attention, rngs=rngs, **options)
        self.hidden, self.hidden_norm = dense(m, m, rngs=rngs), layer_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(options.get("dropout", 0.0), rngs=rngs)
        self.output = dense(m, n_outputs, rngs=rngs)

    def __call__(self, x, mask=None, *, real=None, return_maps=False):
        x = self.positions(self.embed(x)) if self.positions else self.embed(x)  # 1, 2
        out = self.encoder(x, visible(mask, real), return_maps=return_maps)  # 3
        x, maps = out if return_maps else (out, None)
        x = self.hidden(pooled(x, real, self.pool))  # 4: b s m, or b m
        x = self.output(self.dropout(jax.nn.relu(self.hidden_norm(x))))  # 5
        return (x, maps) if return_maps else x


# %% [markdown] tags=["shared"]
# ## One class serves words, sentences and signals
#
# Three models for three kinds of data, with random weights: three scores for each word,
# two for each sentence, two for each signal of four channels.

# %% tags=["jax"]
rngs = nnx.Rngs(0)
sizes = {"m": 12, "n_blocks": 2, "n_heads": 3, "f": 24, "rngs": rngs}
of_words = Predictor(5, n_outputs=3, ids=True, **sizes)
of_sentences = Predictor(5, n_outputs=2, ids=True, pool="mean", **sizes)
of_signals = Predictor(4, n_outputs=2, pool="mean", **sizes)

# %% tags=["shared"]
frames = tensor(np.random.default_rng(0).normal(size=(2, 9, 4)))  # b s i
print("for each word:    ", of_words(tensor(ids), real=tensor(is_real)).shape)
print("for each sentence:", of_sentences(tensor(ids), real=tensor(is_real)).shape)
print("for each signal:  ", of_signals(frames).shape)

# %% [markdown] tags=["shared"]
# ## The mask acts in every layer
#
# Hiding the padding in the first layer is not enough: padded positions get outputs,
# too, and the second layer would read them. So every layer gets the mask. It hides
# *keys* only, and its shape is `b 1 1 k`: the same for all heads and queries. It
# combines by `&` with a causal mask, which the decoder needs:

# %% mystnb={"image": {"alt": "Where a mask acts: a padding mask, which hides a column, and a causal mask, which hides the triangle above the diagonal, are joined by and. masked_softmax turns the scores and this mask into weights, zero in every hidden cell."}} tags=["shared", "figure"]
drawing("mask")

# %% [markdown] tags=["shared"]
# As a test, we fill the padding of the second sequence, its last three positions, with
# garbage. We compare the encoder of the first section with one that forgets the mask
# after its first layer.

# %% tags=["shared"]
x = np.random.default_rng(5).normal(size=(2, 9, 12))  # b s m
real = np.arange(9) < np.array([[9], [6]])  # b s
mask = real[:, None, None, :]  # b 1 1 k
garbage = np.where(real[..., None], x, 100.0)  # any number would do


def forgetful(encoder, x, mask):
    """A forward pass with a mistake: only the first layer gets the mask."""
    for i, block in enumerate(encoder.blocks):
        x, _ = block(x, mask if i == 0 else None)
    return as_numpy(x)


# %% tags=["shared"]
out = encoder(tensor(x), tensor(mask))
out_garbage = encoder(tensor(garbage), tensor(mask))
leak = forgetful(encoder, tensor(x), tensor(mask))
leak_garbage = forgetful(encoder, tensor(garbage), tensor(mask))

# %% tags=["shared", "say"]
leaked = np.abs(leak_garbage - leak)[real].max()
say(
    "Garbage in the padding does not change the real outputs at all. If the second "
    f"layer forgets the mask, it changes them by up to **{leaked:.2f}**, although the "
    "norms of the first block have already scaled the garbage down."
)

# %% tags=["shared", "check"]
# Checked: padding changes no bit of the real outputs, unless a layer forgets the mask
np.testing.assert_array_equal(as_numpy(out_garbage)[real], as_numpy(out)[real])
assert leaked > 0.03
answers = []
for last in (0, 1):  # the token in the padding of "the night"
    padded = tensor(np.array([[3, 1, 3], [4, 2, last]]))
    answers.append(as_numpy(of_sentences(padded, real=tensor(is_real))))
np.testing.assert_array_equal(*answers)

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** Now only the *last* layer gets the mask. Does the
# padding reach the real outputs? Predict, then change one line of `forgetful`.


# %% tags=["shared", "answer"]
def too_late(encoder, x, mask):
    """Only the last layer gets the mask."""
    for i, block in enumerate(encoder.blocks):
        x, _ = block(x, mask if i == len(encoder.blocks) - 1 else None)
    return as_numpy(x)


late = too_late(encoder, tensor(x), tensor(mask))
late_garbage = too_late(encoder, tensor(garbage), tensor(mask))
spoilt = np.abs(late_garbage - late)[real].max()
assert spoilt > 2
say(
    f"Yes: the real outputs change by up to {spoilt:.1f}. In the first layer, the real "
    "positions have already read the padding. The last layer hides the padded keys, "
    "but the real keys bring along what they have read. So every layer needs the mask."
)

# %% [markdown] tags=["shared"]
# **In your own code** set `ids=True` if inputs are ids, with the size of the vocabulary
# as `n_inputs`; for features, it is their number. Set `pool="mean"` for one answer to a
# sequence. For more than 512 elements, give `max_length`, or take rotary positions. If
# sequences are padded, pass `real`, and leave the padding out of the loss: there the
# outputs mean nothing. The book's first page has all of this in one file,
# `predictor_jax.py` or `predictor_torch.py`.

# %% [markdown] tags=["shared"]
# ## Extra: Three words on their way through the model
#
# A *one-hot* vector, all zeros but a one at the id, times the table of an embedding
# gives the same row as the look-up. So an embedding is a linear layer; only, such
# vectors are *sparse*, and as long as the vocabulary. (Training brings the rows of
# words that are used alike close together, [Mikolov et al.
# 2013](https://arxiv.org/abs/1301.3781).)
#
# Follow our three words through a small, untrained model:

# %% tags=["jax"]
model = Predictor(5, 4, 2, ids=True, n_blocks=2, n_heads=2, f=16, rngs=nnx.Rngs(0))

# %% tags=["shared"]
embedded = model.embed(tensor(ids[:1]))  # b s m
placed = model.positions(embedded)  # b s m
encoded = model.encoder(placed)  # b s m

# %% mystnb={"image": {"alt": "The tokens step, by, step with the ids 3, 1, 3 on their way from top to bottom, each with a row of its own: embed gives four numbers per token, positions adds a code, the encoder of two blocks gives four new numbers, output two scores. The two rows of step are equal after embed and differ from then on."}} tags=["jax", "figure"]
drawing("walk-through-jax")

# %% [markdown] tags=["shared"]
# The two rows of *step* are equal after `embed`, and differ after `positions`. After
# the encoder, each row depends on all three tokens. (`hidden` is not drawn.)

# %% tags=["shared", "check"]
# Checked: the rows of step are equal after embed only; then each depends on all tokens
one_hot = np.eye(5)[ids]  # b s i
table_rows = one_hot @ to_arrays(embedding)["weight"]
np.testing.assert_allclose(rows, table_rows, atol=1e-6)
for stage, equal in ((embedded, True), (placed, False), (encoded, False)):
    assert np.allclose(as_numpy(stage)[0, 0], as_numpy(stage)[0, 2]) == equal
night = model.encoder(model.positions(model.embed(tensor([[3, 2, 3]]))))
assert (np.abs(as_numpy(night - encoded))[0].max(axis=-1) > 1e-3).all()

# %% [markdown] tags=["shared"]
# ## Extra: On a task about distance, only rotary positions reach new places
#
# Which of the three kinds of positions should the model get? [Vaswani et al.
# 2017](https://arxiv.org/abs/1706.03762) hoped that sinusoids would work beyond the
# trained lengths. We train a model of each kind on a task in which the position alone
# decides where to look: the output is the symbol three places before. (Positions 0 to 2
# have no such symbol; their label is the first one.) Then we test it at twice the
# trained length. (The training loop, `fit`, is built in the next chapter;
# `cross_entropy` is the loss of the first one.)

# %% tags=["shared"]
settings = Settings(
    n_train=6_400,
    batch_size=64,
    epochs=6,  # 600 updates in all
    learning_rate=3e-3,  # high, because the run is short
    warmup=50,
)
length, n_symbols = 16, 10
sizes = {
    "n_inputs": n_symbols,
    "n_outputs": n_symbols,
    "max_length": 2 * length,
    "n_blocks": 1,
    "n_heads": 1,  # each position has to look at one other
    "m": 32,
    "f": 64,  # there is little to remember
}


# %% tags=["shared"]
def shifted(n, length, seed):
    """Random sequences ``b s i``; labels ``b s``: the symbols three places before."""
    rng = np.random.default_rng(seed)
    x = rng.integers(n_symbols, size=(n, length), dtype=np.int32)  # b s
    labels = np.hstack([x[:, :1], x[:, :1], x[:, :1], x[:, :-3]])
    return np.eye(n_symbols)[x], labels


# %% tags=["jax"]
def new_model(positions):
    """A predictor with these positions, and with the same weights otherwise."""
    rngs = nnx.Rngs(settings.seed)
    return Predictor(**sizes, positions=positions, rngs=rngs)


# %% tags=["shared"]
train = shifted(settings.n_train, length, seed=0)
models, near = {}, {}
for kind in ("sinusoidal", "learned", "rotary"):
    models[kind] = new_model(kind)
    history = fit(models[kind], cross_entropy, train, settings)
    near[kind] = history["accuracy"][-10:].mean()  # in the last ten updates

# %% tags=["shared"]
inputs, labels = shifted(1_000, 2 * length, seed=1)
far = {}  # accuracy at each position, in new sequences of 32
for kind, model in models.items():
    logits, _ = attention_maps(model, tensor(inputs))  # b s c
    far[kind] = (as_numpy(logits).argmax(-1) == labels).mean(axis=0)
new = {kind: accuracy[length:].mean() for kind, accuracy in far.items()}

# %% mystnb={"image": {"alt": "Accuracy at each position of sequences of 32, with the 16 trained positions shaded: the learned line is at one over the shaded part and drops at once to one tenth, the level of guessing; the sinusoidal line falls off at the end of the shaded part and stays near this level; the rotary line is at one from position 3 to the end; a dot marks its position 0; how far it drops there depends on the initial weights."}} tags=["shared", "figure"]
title = "Here, past the 16 trained positions (shaded), only rotary works"
lines = {name: (np.arange(32), y) for name, y in far.items()}
fig = plots.curves({title: lines}, x="position", y="accuracy", size=(6.2, 3.2))
fig.axes[0].set_ylim(0, 1.05)
fig.axes[0].axvspan(-0.5, length - 0.5, color=plots.HIDDEN, alpha=0.4, lw=0)
line = fig.axes[0].lines[-1]  # rotary, whose position 0 the text speaks of
fig.axes[0].plot(0, far["rotary"][0], "o", color=line.get_color(), clip_on=False)
fig

# %% tags=["shared", "say"]
rows = {"sequences of 16, in training": near, "sequences of 32, new positions": new}
lines = [[what, *(f"{x:.1%}" for x in row.values())] for what, row in rows.items()]
guess = f"Guessing gives {1 / n_symbols:.0%}."
say(table(["accuracy", *models], *lines) + "\n\n" + guess)

# %% [markdown] tags=["shared"]
# Why? Training never reached the rows 16 to 31 of the learned table: they are still
# random. Sinusoids have values there, and a matrix that means "three places to the
# left" everywhere exists. But training on 16 positions need not find that matrix, and
# probably the slow hands now reach angles that the layers have never seen. With rotary
# positions, this step is built in: it is the same rotation everywhere.
#
# But this is one block, one task and one seed of each kind. And even here, rotary
# positions have a weak point, the first places, which have nothing three places before
# them. Position 0 must look at itself; in training it had 15 keys on its right to look
# past, and now it has 31.

# %% tags=["shared", "say"]
say(
    f"Here, the rotary model is right at position 0 in {far['rotary'][0]:.0%} of the "
    "sequences of 32. Large models with rotary positions do fail beyond their length; "
    "[Chen et al. 2023](https://arxiv.org/abs/2306.15595) squeeze the new positions "
    "into the trained range, and train a little further."
)

# %% tags=["shared", "check"]
# Checked: in this run all kinds learn the trained positions, only rotary new ones
assert (train[1][:, 3:] == train[0].argmax(-1)[:, :-3]).all()
assert min(near.values()) > 0.99
assert far["rotary"][3:].min() > 0.9
for kind in ("sinusoidal", "learned"):
    assert far[kind][:8].mean() > 0.93  # at the end, sinusoids fall off
    assert 0.05 < new[kind] < 0.4

# %% tags=["shared", "check"]
# Checked: training changed the rows 0 to 15 of the learned table, and no other
before = to_arrays(new_model("learned"))["positions.table"]
after = to_arrays(models["learned"])["positions.table"]
np.testing.assert_array_equal(after[16:], before[16:])
assert np.abs(after[:16] - before[:16]).max(axis=1).min() > 0.15

# %% [markdown] tags=["shared"]
# ## Extra: The slow hands say little about short texts
#
# The slower a pair, the longer its waves. Would another base than 10000 suit short
# texts? You can measure it.

# %% mystnb={"image": {"alt": "Waves of four features over the positions 0 to 95. Features 0 and 1, a sine and a cosine, go up and down about fifteen times; features 6 and 7 about five times."}} tags=["shared", "figure"]
places, title = np.arange(len(codes)), "the sine and the cosine of two pairs"
waves = {f"feature {i}": (places, codes[:, i]) for i in (0, 1, 6, 7)}
plots.curves({title: waves}, x="position", y="code", size=(7.2, 2.4))

# %% [markdown] tags=["shared"]
# **Exercise 3, an open question.** In the heat map, the last 14 of the 48 features
# hardly change. Are they wasted? Measure how far apart the closest two codes are with
# all features, without the last 14, with those 14 alone, and with a base below 10000.
# Which base turns the slowest hand about once in 96 positions?


# %% tags=["shared", "answer"]
def closest(codes):
    """Smallest distance between the codes of two positions."""
    distances = np.linalg.norm(codes[:, None] - codes, axis=-1)
    return distances[~np.eye(len(codes), dtype=bool)].min()


fast, slow = codes[:, :-14], codes[:, -14:]
angles = np.arange(96)[:, None] / 16 ** (np.arange(0, m, 2) / m)  # s m/2
shorter = np.hstack([np.sin(angles), np.cos(angles)])
full, without, alone = closest(codes), closest(fast), closest(slow)
other = closest(shorter)
assert without > 0.99 * full
assert alone < 0.005 < 1.3 * full < other
say(
    f"The closest two codes are {full:.2f} apart with all features, {without:.2f} "
    f"without the last 14 and {alone:.4f} with those 14 alone: they say almost nothing "
    "about the position here. They are probably not wasted: because they are nearly "
    "constant, the word vector can use them freely. With base 16 the slowest hand "
    "turns about once in $16 \\cdot 2\\pi \\approx 100$ positions, and the distance "
    f"is {other:.2f}."
)

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Write both kinds of clocks: replace each `...`, and run the cell. Here, mistakes hide:
# a turn the other way, a wrong pair or a start at 1 raise no error, and a model learns
# with them, too. `check` finds and names them.


# %% tags=["shared", "your-turn"]
def my_sinusoidal(length, m):
    """Sinusoidal codes of the positions 0 to ``length - 1``: ``s m``; ``m`` is even.

    Features ``2j`` and ``2j + 1`` are the sine and the cosine of one angle, which grows
    by ``10000 ** (-2j / m)`` per position. In float32.
    """
    ...


check("positions.sinusoidal", my_sinusoidal)


# %% tags=["shared", "your-turn"]
def my_rotary(x, offset):
    """Rotary positions: ``… s d -> … s d``; ``d`` is even, any axes come before ``s``.

    Features ``2j`` and ``2j + 1`` of a row are a point in a plane. At position ``p`` it
    turns by ``p * 10000 ** (-2j / d)``, from the first axis towards the second. The
    first row stands at position ``offset``, an integer.
    """
    ...


check("positions.rotary", my_rotary)


# %% tags=["jax", "answer"]
def my_sinusoidal(length, m):
    angle = jnp.arange(length)[:, None] * 10000.0 ** (-jnp.arange(0, m, 2) / m)
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, m)


def my_rotary(x, offset):
    s, d = x.shape[-2:]
    angle = (offset + jnp.arange(s))[:, None] * 10000.0 ** (-jnp.arange(0, d, 2) / d)
    points = jax.lax.complex(x[..., ::2], x[..., 1::2])
    turned = points * jnp.exp(1j * angle)  # ... s d/2
    return jnp.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


assert check("positions.sinusoidal", my_sinusoidal)
assert check("positions.rotary", my_rotary)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** Two sinusoidal codes have a dot product that depends on their distance alone.
# Added to words, they give scores that do not. Why?
#
# <details><summary>Words and learned matrices come into it.</summary>
#
# **Right.** Query and key are made of sums, word plus code. Their product has mixed
# terms, and a matrix between two codes need not keep the distance.
#
# </details>
# <details><summary>The softmax mixes the positions.</summary>
#
# **No.** It does mix all keys, which makes this tempting. But it comes after the
# scores, which are not functions of the distance before it.
#
# </details>
# <details><summary>The slow hands hardly turn.</summary>
#
# **No.** They do say little about short distances. But the product of the codes
# contains them, too, and keeps to the distance.
#
# </details>
#
# **2.** The same key stands two places before a query, or six. With rotary positions,
# which of the two has the higher score?
#
# <details><summary>The nearer one: the score falls with the distance.</summary>
#
# **No.** ALiBi subtracts more for every step, and one expects the same of *distance in
# the scores*. A rotation has no such direction.
#
# </details>
# <details><summary>Neither: a rotation leaves the dot product as it is.</summary>
#
# **No.** It does if both vectors turn by the same angle. Here they turn by different
# ones, as they stand at different places.
#
# </details>
# <details><summary>It depends on the query and the key.</summary>
#
# **Right.** Each pair of features adds a cosine of the distance, shifted and scaled by
# the two vectors: either may win.
#
# </details>
#
# **3.** Somebody rotates the values, too, as the queries and keys. What is the price?
#
# <details><summary>None, as a rotation loses nothing.</summary>
#
# **No.** Tempting, because it keeps all lengths and could be undone. But the outputs
# are not rotated back.
#
# </details>
# <details><summary>The output depends on where the sentence stands.</summary>
#
# **Right.** The weights do not. But each value would come in turned by its own
# position, so the same words, a hundred places later, have another sum.
#
# </details>
# <details><summary>The weights no longer depend on the distance.</summary>
#
# **No.** They would be as before: values take no part in the scores.
#
# </details>
#
# **4.** A table of learned positions has 32 rows, and all sequences in training had 16
# positions. What is in row 20, if nothing but gradients changes it?
#
# <details><summary>A code like those of its neighbours.</summary>
#
# **No.** After training, neighbouring codes may well resemble each other. But each row
# learns for itself, and nobody has read this one.
#
# </details>
# <details><summary>What it began with.</summary>
#
# **Right.** Only rows that are read get a gradient. A model that meets position 20 adds
# a random vector to the word.
#
# </details>
# <details><summary>Zeros, as it was never used.</summary>
#
# **No.** Weight decay could bring it there, which makes this tempting. A gradient of
# zero leaves it as it is.
#
# </details>
#
# **5.** A mask `b 1 1 k` hides the padding in every layer. What are the encoder's
# outputs *at* the padded positions?
#
# <details><summary>Zeros, as they are hidden.</summary>
#
# **No.** A query that sees nothing gets zeros from attention. But padded queries see
# something here: the mask hides them only as keys.
#
# </details>
# <details><summary>The padding itself, unchanged.</summary>
#
# **No.** Tempting, because nobody looks at them. But they look at the others, and pass
# through every layer.
#
# </details>
# <details><summary>Numbers that nobody should use.</summary>
#
# **Right.** They are computed like all others. So the loss, or a mean over positions,
# has to leave them out.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Without positions an encoder ignores order.
# * Sinusoidal and learned codes are added to the input; rotary positions turn queries
#   and keys, so that the score depends only on the distance.
# * The predictor is embedding, positions, encoder and a small net, with one output for
#   each element, or one for the sequence.
# * A padding mask hides keys, in every layer.

# %% [markdown] tags=["jax"]
# Next comes [the reverse task, in JAX](reverse_jax.ipynb): how to train such a model,
# and what it learns to look at. [When training fails](debugging_jax.ipynb) shows the
# layers that Flax has ready-made, and how weights move between libraries.
