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
# # Attention
#
# By the end you can write attention as a function of four lines, hide parts of its
# input with a mask, split it into heads, and show that it ignores order. You need:
# NumPy, and the chapter *Two frameworks*.
#
# In 2014, one recurrent network read a sentence, word by word, into one vector of fixed
# size, and a second one wrote the translation from it. The longer the sentence, [the
# worse its translation](https://arxiv.org/abs/1409.1259). [Bahdanau et al.
# 2015](https://arxiv.org/abs/1409.0473) let the second network look back at all words
# and learn where to look: this is **attention**. The **Transformer** ([Vaswani et al.
# 2017](https://arxiv.org/abs/1706.03762)) dropped the recurrence, kept the attention,
# and became the model behind [BERT](https://arxiv.org/abs/1810.04805),
# [GPT-3](https://arxiv.org/abs/2005.14165) and much of [computer
# vision](https://arxiv.org/abs/2010.11929).

# %% [markdown] tags=["jax"]
# This page uses **JAX**, with Flax NNX for layers. The same page in PyTorch:
# [attention_torch](attention_torch.ipynb). `tensor` makes an array of NumPy one of JAX.

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

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from helpers import as_numpy, check, reference, to_arrays
from helpers.jax import tensor
from helpers.show import drawing, plots, say, viewer

plots.use_style()
# All digits of float32: JAX's default on recent GPUs is TF32, with 11 significant bits.
jax.config.update("jax_default_matmul_precision", "highest")

# %% [markdown] tags=["shared"]
# ## Attention is a weighted mean
#
# In *the cat drank milk because it was thirsty*, what does *it* stand for? A reader
# looks back and finds the cat. Attention does so with numbers. Each word has a row of
# features, here chosen by hand. Comments name the axes of an array, `s m` for words by
# features:

# %% tags=["shared"]
tokens = ["the", "cat", "drank", "milk", "because", "it", "was", "thirsty"]
features = ["animal", "drink", "action", "state", "pronoun"]
chosen = ["", "animal", "action", "drink", "", "pronoun", "", "state"]  # of each word
words = np.array([[int(name == own) for name in features] for own in chosen])  # s m

# %% [markdown] tags=["shared"]
# A dictionary in Python returns the value of the one key that equals what you ask for.
# Attention is a soft dictionary: it returns a mixture of all values, more of those
# whose keys fit better. A mixture is *differentiable*, so gradient descent can learn
# where to look. A **query** says what a word looks for. Each word has
# a **key** and a **value**. A **score function** $f$ compares the query with each key;
# high scores become large weights, and the output is the weighted mean of *all* values.
# Suppose that the word *it* looks for an animal, and that the features of each word
# serve as its key and as its value:

# %% mystnb={"image": {"alt": "A query of five features, dark at animal, above the keys of eight words. Of all keys only that of cat is dark at animal: its score is 4, those of the others are 0, and the bar of its weight is long, all others are short. Beside the weights stand the values, and below them the output, dark at animal and nearly empty elsewhere."}} tags=["shared", "figure"]
drawing("soft-dictionary")

# %% [markdown] tags=["shared"]
# As a formula, with the key $k_i$ and the value $v_i$ of word $i$, that is
#
# $$\alpha_i = \frac{\exp f(q, k_i)}{\sum_j \exp f(q, k_j)}, \qquad
# \mathrm{out} = \sum_i \alpha_i v_i .$$
#
# The weights $\alpha_i$ are the *softmax* of the scores: they are positive, their sum
# is one, and a score that is higher by 1 gets $e \approx 2.7$ times the weight.
#
# Attention mechanisms differ in what their queries and keys are, and in the score. Here
# $f$ is the dot product. (Bahdanau et al. took a small network, *additive attention*;
# [others](https://arxiv.org/abs/1410.5401) the cosine.)

# %% tags=["shared"]
query = np.array([4, 0, 0, 0, 0])  # looks for an animal
scores = words @ query  # k
weights = np.exp(scores) / np.exp(scores).sum()  # k
out = weights @ words  # m
dict(zip(features, out.round(2).tolist(), strict=True))

# %% tags=["shared", "say"]
cat, drank, milk, it = (tokens.index(w) for w in ("cat", "drank", "milk", "it"))
say(
    f"The cat gets the weight **{weights[cat]:.2f}**, each of the seven other words "
    f"{weights[0]:.3f}. So *it*, which came in as a pronoun, goes out as mostly an "
    "*animal*."
)

# %% [markdown] tags=["shared"]
# If all scores are equal, the output is the plain mean of the values; if one is far
# above all others, nearly a copy of one value. Try a `0`, then a `100` in place of the
# `4`.

# %% [markdown] tags=["shared"]
# ## In self-attention, each word makes its own query, key and value
#
# Where does the query of *it* come from? From the word itself: its features are
# multiplied by a matrix. Two other matrices make its key, *what it is found by*, and
# its value, *what it passes on*. The three can differ: *drank* looks for an animal and
# a drink, but is found as an *action*. With one word per row of $X$,
#
# $$Q = XW^Q, \qquad K = XW^K, \qquad V = XW^V .$$
#
# A model learns these matrices; here they are made by hand.

# %% tags=["shared"]
w_query = np.array(
    [
        [0, 0, 3, 3, 0],  # an animal looks for what it does and how it is
        [0, 0, 3, 0, 0],  # a drink looks for what is done with it
        [3, 3, 0, 0, 0],  # an action looks for who does it, and with what
        [6, 0, 0, 0, 0],  # a state looks for whose state it is
        [4, 0, 0, 0, 0],  # a pronoun looks for an animal
    ]
)
w_key = np.eye(5)  # a word is found by its features
w_value = np.eye(5)[:, :4]  # it passes on all but "pronoun"

# %% [markdown] tags=["shared"]
# One product scores all pairs, a row per query and a column per key. The output of each
# word has four numbers, for *animal*, *drink*, *action* and *state*:


# %% tags=["shared"]
def self_attention(x, w_query, w_key, w_value):
    """Self-attention: ``s m -> q e, q k``, with ``e`` features in a value."""
    queries, keys, values = x @ w_query, x @ w_key, x @ w_value
    scores = queries @ keys.T  # q k
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)  # q k
    return weights @ values, weights


outputs, word_map = self_attention(words, w_query, w_key, w_value)  # q e, q k
dict(zip(tokens, outputs.round(1).tolist(), strict=True))

# %% [markdown] tags=["shared"]
# The word *it* goes out as an animal. *Cat* now holds what the cat did, and how it was.
# *Thirsty* has lost its own feature, because the output *replaces* the input. (The
# encoder will add the output to the input.)
#
# This is **self-attention**: queries, keys and values come from the same sequence. In
# **cross-attention**, keys and values come from a second one: in translation, from the
# original sentence.
#
# All weights together form a **map**. Which weights do you expect for *the*, whose
# query is zero? Which row has the sharper peak, *it* (4 in its query) or *thirsty* (6)?
# Predict, then move along the rows.

# %% tags=["shared", "figure"]
viewer.attention(
    word_map[None, None],  # one layer, one head
    tokens,
    about="Where each word of the sentence looks: a map of eight queries by eight keys",
    query=it,
)

# %% tags=["shared", "check"]
# Checked: "the" gets the mean, "it" the cat, and the longer query a sharper peak
row, values = dict(zip(tokens, word_map, strict=True)), words @ w_value  # k e
np.testing.assert_allclose(row["the"] @ values, values.mean(axis=0))
assert tokens[row["it"].argmax()] == tokens[row["thirsty"].argmax()] == "cat"
assert row["thirsty"].max() > row["it"].max() > 0.8
after = dict(zip(tokens, outputs, strict=True))
assert after["it"][0] > 0.8 and after["thirsty"][3] < 0.005
np.testing.assert_allclose(after["cat"][2], after["cat"][3])

# %% [markdown] tags=["shared"]
# ## Attention is two matrix products and a softmax
#
# `self_attention` lacks only one square root. As a formula, attention is
#
# $$\mathrm{Attention}(Q, K, V) =
# \mathrm{softmax}\!\left(\frac{QK^{\mathsf T}}{\sqrt{d}}\right) V \tag{1}$$
#
# with one query, key or value in each row of $Q$, $K$ and $V$, and $d$ features in a
# query ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), equation 1). In the
# drawing, the axis `q` counts the queries, `k` the keys, and `d` the features (the
# arrays have the same letters; a key is a column there, as in $K^{\mathsf T}$). `b` and
# `h`, the sentences of a batch and the heads, come later.

# %% mystnb={"image": {"alt": "Attention as a flow: queries and keys make scores, which are divided by the root of d and put through a softmax; the weights take the mean of the values. One query is framed, and each array has its shape beside it."}} tags=["shared", "figure"]
drawing("attention")

# %% [markdown] tags=["jax"]
# In JAX, the same lines take arrays with more axes in front, such as `b` and `h`: `@`
# multiplies the matrices in the last two axes, and the softmax runs along the last one,
# the keys.


# %% tags=["jax"]
def plain_attention(q, k, v):
    """Attention without a mask: ``... q d, ... k d, ... k e -> ... q e, ... q k``."""
    q = q / math.sqrt(q.shape[-1])  # scaled first: large products overflow in float16
    scores = q @ k.swapaxes(-1, -2)  # ... q k
    weights = jax.nn.softmax(scores, axis=-1)
    return weights @ v, weights


# %% [markdown] tags=["shared"]
# An example that you can check by hand, three words with two features each: the query
# $(1, 0)$ has the dot products $1, 0, 1$ with the keys, so the first and the third key
# get the same weight.

# %% tags=["shared"]
q = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # q d
k = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])  # k d
v = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])  # k d
out, weights = plain_attention(tensor(q), tensor(k), tensor(v))

# %% mystnb={"image": {"alt": "Six small matrices with their numbers written in: Q, K and V as chosen, the scores, the weights and the output."}} tags=["shared", "figure"]
results = {"weights": as_numpy(weights), "output": as_numpy(out)}
plots.grid_of_numbers(
    {"Q": q, "K": k, "V": v, "QKᵀ/√2": q @ k.T / math.sqrt(2), **results}
)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** A fourth word has the query $(-1, 1)$. What are its three
# weights, and what is its output? You need $e^{1.414} \approx 4.11$ and
# $e^{-0.707} \approx 0.49$. Round at the end, to two digits.

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

# %% [markdown] tags=["shared"]
# ## The scale keeps the softmax from saturating
#
# Why the root? A dot product is a sum of $d$ terms. If the entries of $q$ and $k$ are
# independent, with mean 0 and variance $\sigma^2$, each term has variance $\sigma^4$,
# so
#
# $$\mathrm{Var}(q^{\mathsf T} k) = \sigma^4 d, \qquad
# \mathrm{Var}\!\left(\frac{q^{\mathsf T} k}{\sqrt{d}}\right) = \sigma^4 .$$
#
# Without the root, more features make larger scores, until one key gets nearly all the
# weight: the softmax is *saturated*. A small change of such a query hardly changes its
# weights, so almost no gradient flows (see the extra on saturation). With 400 random
# queries and 16 keys each:

# %% tags=["shared"]
draw, d = np.random.default_rng(1).normal, 1024
queries, keys = draw(size=(400, d)), draw(size=(400, 16, d))  # n d, n k d
products = np.einsum("nd,nkd->nk", queries, keys)  # 400 times 16 dot products
for scores in (products, products / math.sqrt(d)):
    largest = reference.softmax(scores).max(axis=1)  # n
    print(f"variance {scores.var():.1f}, largest weight {largest.mean():.2f}")

# %% [markdown] tags=["shared"]
# The same for other $d$. A query is *saturated* if its largest weight exceeds 0.99:

# %% mystnb={"image": {"alt": "Three panels over the number of features d from 1 to 1024. Without the scale the variance of the scores rises in proportion to d, the mean of the largest weight goes to one, and the share of saturated queries rises from zero to three quarters; with the scale all three stay level."}} tags=["shared", "figure"]
sizes = 2 ** np.arange(11)  # d = 1, 2, ..., 1024
states = {"without the scale": [], "with the scale": []}
for d in sizes:
    drawn, others = draw(size=(400, d)), draw(size=(400, 16, d))  # n d, n k d
    sums = np.einsum("nd,nkd->nk", drawn, others)
    for name, scores in zip(states, (sums, sums / math.sqrt(d)), strict=True):
        largest = reference.softmax(scores).max(axis=1)  # n
        states[name].append([scores.var(), largest.mean(), (largest > 0.99).mean()])
titles = ["variance of the scores", "largest weight", "share of saturated queries"]
panels = {
    title: {name: (sizes, np.array(line)[:, i]) for name, line in states.items()}
    for i, title in enumerate(titles)
}
fig = plots.curves(panels, x="number of features d", log_x=2, log_y=titles[:1])
fig

# %% tags=["shared", "say"]
saturated = states["without the scale"][-1][2]
say(
    f"At $d = 1024$, without the scale, **{saturated:.0%}** of the queries are "
    "saturated (in this draw); with it, none is."
)

# %% tags=["shared", "check"]
# Checked: with the scale all curves are level; without it the softmax saturates
variance, largest, share = np.array([*states.values()]).transpose(2, 0, 1)  # way, d
np.testing.assert_allclose(variance, [sizes, np.ones(11)], rtol=0.2)
assert largest[0, -1] > 0.9 and 0.5 < share[0, -1] < 0.9
assert np.ptp(largest[1, 2:]) < 0.15 * largest[1, 2:].mean()
assert largest[1].max() < 0.45 and (share[1] == 0).all()

# %% [markdown] tags=["shared"]
# ## Masked positions have no effect
#
# Not every word may look at every other. Short sentences of a batch are filled up with
# *padding*, which no word should see, and a model that learns to predict the next word
# must not see that word. A **mask** says which keys a query may look at: a boolean
# array, where **True means "may look"** (in PyTorch's `nn.MultiheadAttention`, True
# hides). A **causal mask** lets a position see itself and what comes before.
#
# With a hidden score of $-\infty$, the weight would be zero. But for a query that sees
# nothing, formula (1) would then give the weights $0/0$, which is NaN, and spreads to
# every parameter. So `masked_softmax` replaces hidden scores by the lowest finite
# number instead, and then sets their weights to zero:


# %% tags=["jax", "export"]
def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)


# %% tags=["jax"]
def attention(q, k, v, mask=None):
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2)  # ... q k
    weights = masked_softmax(scores, mask)
    return weights @ v, weights


# %% [markdown] tags=["shared"]
# A **padding mask** hides the padded keys, from all queries alike. It needs only the
# lengths of the sentences; `&` joins it to the causal mask:

# %% tags=["shared"]
b, s, d = 2, 6, 5
q, k, v = np.random.default_rng(2).normal(size=(3, b, s, d))
lengths = np.array([6, 4])  # the second sentence: four words and two of padding
real = np.arange(s) < lengths[:, None]  # b s: True for a word, False for padding
padding = real[:, None, :]  # b 1 k: no query sees padding
causal = np.tril(np.ones((s, s), bool))  # q k: no query sees a later word
out, weights = attention(tensor(q), tensor(k), tensor(v), tensor(padding & causal))
as_numpy(weights)[1].round(2)  # q k, of the second sentence

# %% mystnb={"image": {"alt": "Three maps of weights for the second sentence: with the causal mask only the lower triangle is filled, the rest is grey; with the padding mask the last two columns are grey; with both, what either hides is grey."}} tags=["shared", "figure"]
masks = {"causal": causal, "padding": padding, "both": padding & causal}
maps = {}
for name, mask in masks.items():
    _, weights = attention(tensor(q), tensor(k), tensor(v), tensor(mask))
    maps[name] = as_numpy(weights)  # b q k
second = {name: np.where(masks[name], maps[name], np.nan)[1] for name in masks}
plots.heatmaps(list(second.values()), titles=list(second))

# %% [markdown] tags=["shared"]
# Grey is hidden. Put garbage (finite numbers) into the padded keys and values, and not
# one bit of the output changes. (NaN in a value would spread: 0 · NaN is NaN.)

# %% tags=["shared", "check"]
# Checked: garbage in the padding changes no bit; who sees nothing gets zeros
clean, _ = attention(tensor(q), tensor(k), tensor(v), tensor(padding))
k_garbage, v_garbage = np.where(real[..., None], [k, v], 1e4)
garbage = (tensor(k_garbage), tensor(v_garbage))
dirty, _ = attention(tensor(q), *garbage, tensor(padding))
np.testing.assert_array_equal(as_numpy(dirty), as_numpy(clean))
blind, _ = attention(tensor(q), tensor(k), tensor(v), tensor(np.zeros((s, s), bool)))
np.testing.assert_array_equal(as_numpy(blind), 0)

# %% [markdown] tags=["shared"]
# ## Heads attend independently of each other
#
# *Drank* looks for two things: who drank, and what. But the weights of one softmax sum
# to 1, so *cat* and *milk* have to share them, and the output mixes both. In
# **multi-head attention**, each head has its own queries, keys and values and attends
# by itself; their outputs are concatenated.
#
# Here are two heads by hand, *who* and *what*. Each keeps some columns of `w_query`,
# and the others become zero. We stack the two matrices on a new axis `h`, and call
# `self_attention` as before: `@` treats each head by itself. To keep it short, both
# share keys and values (as in *multi-query attention*):

# %% tags=["shared"]
who = [1, 0, 0, 0, 0]  # looks for an animal
what = [0, 1, 1, 1, 1]  # looks for a drink, an action, a state, a pronoun
w_heads = np.array([w_query * kept for kept in (who, what)])  # h m m
head_outputs, head_weights = self_attention(words, w_heads, w_key, w_value)
joined = np.concatenate(list(head_outputs), axis=1)  # q (h e): side by side
joined[tokens.index("drank")].round(1)  # four columns of "who", four of "what"

# %% tags=["shared", "figure"]
viewer.attention(
    {"head who": head_weights[:1][None], "head what": head_weights[1:][None]},
    tokens,
    about="Two heads by hand: for drank, head who looks at cat, head what at milk",
    query=drank,
)

# %% tags=["shared", "say"]
say(
    f"With one head, *drank* gives *cat* and *milk* {word_map[drank, cat]:.2f} each. "
    f"With two, *who* gives *cat* {head_weights[0, drank, cat]:.2f}, and *what* gives "
    f"*milk* {head_weights[1, drank, milk]:.2f}. In the output of *drank*, the columns "
    "of *who* are mostly *animal*, those of *what* mostly *drink*."
)

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** In the head *what*, *cat* still shares its weight
# between what it did (*drank*) and how it was (*thirsty*). Write three heads that
# separate the two. Which weight does *cat* give to *drank* before and after? Predict
# with $e^3 \approx 20$, then compute.

# %% tags=["shared", "answer"]
deed = [0, 1, 1, 0, 0]  # head "what", without the states
how = [0, 0, 0, 1, 1]
w_three = np.array([w_query * kept for kept in (who, deed, how)])  # h m m
_, apart = self_attention(words, w_three, w_key, w_value)
thirsty = tokens.index("thirsty")
np.testing.assert_allclose(apart[1, cat, drank], apart[2, cat, thirsty])
say(
    f"Before, two keys share the weight: 20 / (20 + 20 + 6) = 0.43, computed "
    f"{head_weights[1, cat, drank]:.2f}. After, one key is alone against seven: "
    f"20 / (20 + 7) = 0.74, computed {apart[1, cat, drank]:.2f}."
)

# %% [markdown] tags=["shared"]
# ## One projection makes the queries, keys and values of all heads
#
# A model learns its heads: each head projects the $m$ features to $d = m/h$ new ones.

# %% mystnb={"image": {"alt": "Multi-head attention as a flow for two heads: one stacked projection makes queries, keys and values, of which each head takes its half; each attends by itself; their outputs are concatenated and go through a last projection. Each array has its shape beside it."}} tags=["shared", "figure"]
drawing("heads")

# %% [markdown] tags=["shared"]
# $$\mathrm{head}_i = \mathrm{Attention}(X W^Q_i,\, X W^K_i,\, X W^V_i)$$
#
# $$\mathrm{MultiHead}(X) =
# \left[\mathrm{head}_1 \ldots \mathrm{head}_h\right] W^O \tag{2}$$
#
# $W^O$ mixes what the heads have found. Each head is $h$ times narrower, so all heads
# together cost about as much as one of size $m$. For speed, all matrices $W^Q_i$,
# $W^K_i$, $W^V_i$ are stored side by side in one, of shape `m 3m` (PyTorch stores the
# transpose). Each matrix comes with a bias, which some models leave out.
#
# A new layer should attend almost evenly, so its scores have to start small. `dense`
# draws weights within $\pm 1/\sqrt{n}$ for $n$ inputs; for inputs of variance 1, the
# scores then have a variance of about 1/9. ([Xavier
# initialisation](https://proceedings.mlr.press/v9/glorot10a.html) does as well.)
# `split_heads` and `merge_heads` move between features and heads.

# %% tags=["jax", "export"]
# One object for all layers: models of the same sizes are then compiled only once.
UNIFORM = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def dense(n_in, n_out, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: entries within ±1/√n_in, zero biases."""
    return nnx.Linear(n_in, n_out, kernel_init=UNIFORM, rngs=rngs)


def merge_heads(values):
    """The outputs of all heads side by side: ``b h q d -> b q m``."""
    b, h, q, d = values.shape
    return values.swapaxes(1, 2).reshape(b, q, h * d)


def split_heads(x, d):
    """Heads of ``d`` features each: ``b s hd -> b h s d``."""
    return x.reshape(*x.shape[:2], -1, d).swapaxes(1, 2)


# %% [markdown] tags=["shared"]
# The layer puts all of it together:


# %% tags=["jax"]
class MultiHeadAttention(nnx.Module):
    """Attention in several heads: ``b s m -> b s m, b h s s``."""

    def __init__(self, m, n_heads, *, rngs):
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def project(self, x):
        """Queries, keys and values of every head: each ``b h s d``."""
        d = x.shape[-1] // self.n_heads
        return [split_heads(part, d) for part in jnp.split(self.qkv(x), 3, axis=-1)]

    def __call__(self, x, mask=None):
        q, k, v = self.project(x)
        values, weights = attention(q, k, v, mask)  # b h q d, b h q k
        return self.out(merge_heads(values)), weights


# %% tags=["jax"]
b, s, m, n_heads = 2, 7, 24, 4  # two sentences of seven words, random for now
model = MultiHeadAttention(m, n_heads, rngs=nnx.Rngs(0))

# %% tags=["shared"]
x = np.random.default_rng(3).normal(size=(b, s, m))
out, weights = model(tensor(x))
params = to_arrays(model)  # as NumPy arrays, matrices as inputs × outputs
{name: array.shape for name, array in params.items()}

# %% tags=["shared", "check"]
# Checked: the layer has 4m² + 4m parameters, and a reference finds the same outputs
assert sum(array.size for array in params.values()) == 4 * m**2 + 4 * m
expected, expected_weights = reference.multi_head_attention(x, params, n_heads)
np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)
np.testing.assert_allclose(as_numpy(weights), expected_weights, atol=1e-5)

# %% [markdown] tags=["shared"]
# A mask for the layer has an axis for the heads, of length 1: all heads get the same.

# %% tags=["shared"]
real = np.arange(s) < np.array([7, 5])[:, None]  # b s: the second has five words
padding = real[:, None, None, :]  # b 1 1 k
mask = tensor(padding & np.tri(s, dtype=bool))  # b 1 q k
_, masked_weights = model(tensor(x), mask)
tuple(masked_weights.shape)  # b h q k

# %% [markdown] tags=["shared"]
# ## The framework's function computes the same outputs
#
# A model needs only the outputs, and both frameworks have a function for them. In your
# own code, take it, with the same mask. (Where a query sees nothing, it gives zeros, a
# mean or NaN, by framework and version; an extra mends that.)

# %% [markdown] tags=["jax"]
# `jax.nn.dot_product_attention` wants the heads *behind* the positions, `b s h d`. A
# boolean `mask` is as ours: True means "may look". For a causal mask, the flag
# `is_causal=True` does, also together with a `mask`.

# %% tags=["jax"]
q, k, v = model.project(tensor(x))  # each b h s d
ours, _ = attention(q, k, v, mask)
arrays = [heads.swapaxes(1, 2) for heads in (q, k, v)]  # each b s h d
theirs = jax.nn.dot_product_attention(*arrays, mask=mask).swapaxes(1, 2)
np.allclose(as_numpy(theirs), as_numpy(ours), atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Attention ignores order
#
# Nothing in formulas (1) and (2) says which word came first. Shuffle the words $X$ by a
# permutation matrix $P$, and the layer $F$ gives every word the same output as before,
# at its new position:

# %% tags=["shared"]
order = np.array([4, 5, 6, 7, 0, 1, 2, 3])
shuffled, shuffled_map = self_attention(words[order], w_query, w_key, w_value)
" ".join(tokens[i] for i in order)

# %% mystnb={"image": {"alt": "Two matrices of outputs, words by features, for the sentence as given and with its words shuffled. Each word has the same row in both: it and thirsty are dark at animal, cat is shared by action and state, wherever they come in the sentence."}} tags=["shared", "figure"]
fig = plots.heatmaps(
    [outputs, shuffled],
    titles=["F(X): as given", "F(PX): shuffled"],
    x="",
    y="",
    x_ticks=features[:4],
    y_ticks=tokens,
    bar="output",
    size=(6.4, 3.2),
)
fig.axes[1].tick_params("y", labelleft=True)
fig.axes[1].set(yticklabels=[tokens[i] for i in order])
for label in (label for ax in fig.axes[:2] for label in ax.get_yticklabels()):
    if label.get_text() in ("cat", "it"):
        label.set(color=plots.COLOURS[1], weight="bold")
fig

# %% [markdown] tags=["shared"]
# The rows have moved together with their words: *it* still gets the animal, although
# *cat* now comes later. For every $P$, and without a mask,
#
# $$F(PX) = P\,F(X) .$$
#
# Such a layer is **equivariant**. Inside, queries and keys have moved, and so have the
# rows and the columns of the map $A$: it has become $P A P^{\mathsf T}$.

# %% tags=["shared", "check"]
# Checked: shuffling the words shuffles outputs and weights in the same way
np.testing.assert_allclose(shuffled, outputs[order])
np.testing.assert_allclose(shuffled_map, word_map[np.ix_(order, order)])
assert np.abs(shuffled - outputs).max() > 0.75
seven = np.random.default_rng(4).permutation(s)  # and the layer of several heads:
moved, _ = model(tensor(x[:, seven]))
np.testing.assert_allclose(as_numpy(moved), as_numpy(out)[:, seven], atol=1e-6)
assert np.abs(as_numpy(moved) - as_numpy(out)).max() > 0.12

# %% [markdown] tags=["shared"]
# ## Extra: To tell orders apart, something must be added
#
# **Exercise 3, an open question.** To attention, *dog bites man* and *man bites dog*
# are the same set of words. What would you add to the input so that it can tell them
# apart? Try it with `model` and three random words, `x[:, :3]`. If you add the position
# itself to all features, what happens to the weights at the positions 1000 to 1002?

# %% tags=["shared", "answer"]
dog_bites_man = x[:, :3]
man_bites_dog = dog_bites_man[:, ::-1]
ramp = np.arange(3)[:, None]  # s 1: the position itself, added to all features
drawn = np.random.default_rng(9).normal(size=(3, m))  # s m: a vector per position
gaps, peaks = [], []
for added in (0, ramp, drawn, 1000 + ramp):
    one, weights = model(tensor(dog_bites_man + added))
    two = as_numpy(model(tensor(man_bites_dog + added))[0])[:, ::-1]
    gaps.append(np.abs(as_numpy(one) - two).max())  # per word, between the sentences
    peaks.append(as_numpy(weights).max(axis=-1).mean())
assert gaps[0] < 1e-5 and gaps[1] > 0.25 and gaps[2] > 0.25
assert peaks[1] < 0.6 and peaks[3] > 0.9
say(
    "Without any addition, each word gets the same output in both sentences. With its "
    f"position added, the outputs differ by up to {gaps[1]:.2f}; with a random vector "
    f"for each position, by {gaps[2]:.2f}. But positions grow: from 1000 on, the "
    f"largest weight is {peaks[3]:.0%} on average (from 0 on, {peaks[1]:.0%}), so the "
    "softmax is saturated. The encoder adds vectors that do not grow."
)

# %% [markdown] tags=["shared"]
# ## Extra: A saturated softmax passes hardly any gradient
#
# Why does saturation hinder the training? The query learns only through the derivatives
# of the weights with respect to the scores,
#
# $$\frac{\partial \alpha_i}{\partial s_j} = \alpha_i (\delta_{ij} - \alpha_j) ,$$
#
# with $\delta_{ij} = 1$ for $i = j$ and 0 otherwise. If every weight is 0 or 1, all of
# them are zero. How far do the weights move per unit of change in the query? For the
# 400 queries of $d = 1024$, we take the norm of $\partial\alpha/\partial q$:


# %% tags=["shared"]
def slopes(scale):
    """Derivative of the weights of each query with respect to the query: ``n k d``."""
    weights = reference.softmax(scale * products)  # n k
    diagonal = weights[:, :, None] * np.eye(16)
    by_scores = diagonal - weights[:, :, None] * weights[:, None, :]  # n k k
    return scale * by_scores @ keys


by_query = [slopes(1), slopes(1 / math.sqrt(1024))]
without, level = [np.linalg.norm(slope, axis=(1, 2)) for slope in by_query]  # n

# %% tags=["shared", "say"]
say(
    f"Without the scale, the median of the norms is {np.median(without):.4f}, and the "
    f"largest is {without.max():.0f}. With the scale, the norm is between "
    f"{level.min():.2f} and {level.max():.2f} for every query."
)

# %% tags=["shared", "check"]
# Checked: the derivative foretells what a query that is longer by a millionth changes
small = products / 32
change = 1e6 * (reference.softmax(1.000001 * small) - reference.softmax(small))
np.testing.assert_allclose(
    np.einsum("nkd,nd->nk", by_query[1], queries), change, atol=1e-4
)

# %% [markdown] tags=["shared"]
# ## Extra: The layer that later chapters import
#
# Later chapters ask more of these functions. A mask of numbers would be used without a
# complaint, and wrongly, and one of three axes could mean `b q k` or `h q k`.
# `full_mask` refuses both, and adds the causal mask if it is asked for:


# %% tags=["jax", "export"]
def check_causal(q, k):
    """The number of queries, which is that of the keys: else, who would see whom?"""
    n, n_keys = q.shape[-2], k.shape[-2]
    if n != n_keys:
        what = "as many queries as keys under a causal mask"
        raise ValueError(f"expected {what}, got {n} and {n_keys}; give a mask instead")
    return n


# %% tags=["jax", "export"]
def full_mask(mask, q, k, is_causal):
    """The mask to use, or None: the given one and, if asked for, the causal one."""
    if mask is not None and (mask.dtype != bool or mask.ndim not in (2, q.ndim)):
        what = f"2 or {q.ndim} axes, got {tuple(mask.shape)}"
        raise ValueError(f"expected a boolean mask of {what}")
    if not is_causal:
        return mask
    n = check_causal(q, k)  # as many keys as queries
    past = jnp.tri(n, dtype=bool)  # q k: the lower triangle
    return past if mask is None else past & mask


# %% [markdown] tags=["shared"]
# `attention` gets this flag. `fused_attention` computes the outputs alone, by the
# framework's function. That can run as a single program, a **fused kernel**, which
# never holds all weights at once: memory then grows with the length, not with its
# square (see *What attention costs*). A query that sees nothing gets zeros, as in
# `attention`. A causal mask alone is passed on as a flag, so that kernels skip what it
# hides.


# %% tags=["jax", "export"]
def attention(q, k, v, mask=None, *, is_causal=False):  # new
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``.

    A boolean mask, ``q k`` or with all axes of the weights, is True where a query may
    look. Hidden keys and values must be finite: 0 · NaN is NaN.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2)  # ... q k
    weights = masked_softmax(scores, full_mask(mask, q, k, is_causal))  # new
    return weights @ v, weights


# %% tags=["jax", "export"]
def fused_attention(q, k, v, mask=None, *, is_causal=False):
    """The outputs of ``attention``, from arrays with four axes, here ``b h s d``."""
    if q.dtype not in (jnp.float32, jnp.bfloat16):  # JAX's function is made for these
        return attention(q, k, v, mask, is_causal=is_causal)[0]
    arrays = [x.swapaxes(1, 2) for x in (q, k, v)]  # b s h d
    function = jax.nn.dot_product_attention
    if mask is None and (not is_causal or q.shape[2] == k.shape[2]):
        return function(*arrays, is_causal=is_causal).swapaxes(1, 2)
    mask = full_mask(mask, q, k, is_causal)
    seen = mask.any(axis=-1, keepdims=True)
    out = function(*arrays, mask=mask | ~seen)  # a row that hides all would be wrong
    return jnp.where(seen, out.swapaxes(1, 2), 0)


# %% [markdown] tags=["shared"]
# The last step of a layer, `attend`, returns weights only if they are asked for, and
# otherwise takes the fused kernel. The layer passes its options on:


# %% tags=["jax", "export"]
def attend(layer, q, k, v, mask=None, *, is_causal=False, return_weights=False):
    """Output of a layer, and its weights if they are asked for, else None."""
    if not return_weights:
        values = fused_attention(q, k, v, mask, is_causal=is_causal)
        return layer.out(merge_heads(values)), None
    values, weights = attention(q, k, v, mask, is_causal=is_causal)
    return layer.out(merge_heads(values)), weights


# %% tags=["jax", "export"]
class MultiHeadAttention(nnx.Module):
    """Attention in several heads: ``b s m -> b s m, b h s s``."""

    def __init__(self, m, n_heads, *, rngs):
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def project(self, x):
        """Queries, keys and values of every head: each ``b h s d``."""
        d = x.shape[-1] // self.n_heads
        return [split_heads(part, d) for part in jnp.split(self.qkv(x), 3, axis=-1)]

    def __call__(self, x, mask=None, **options):  # new: those of `attend`
        return attend(self, *self.project(x), mask, **options)  # new


# %% tags=["jax"]
layer = MultiHeadAttention(m, n_heads, rngs=nnx.Rngs(0))

# %% tags=["shared"]
outputs_alone, no_weights = layer(tensor(x))
np.allclose(as_numpy(outputs_alone), as_numpy(out), atol=1e-5), no_weights

# %% [markdown] tags=["shared"]
# With weights, and with the last two words of the second sentence hidden:

# %% tags=["shared"]
_, hidden_weights = layer(tensor(x), tensor(padding), return_weights=True)

# %% mystnb={"image": {"alt": "A grid of maps, a column per head; the seven queries of the full sentence stand above those of the padded one. In a new layer all weights are of a similar colour; in the second sentence the last two keys are grey in every head: no query sees the padding."}} tags=["shared", "figure"]
grid = np.where(padding, as_numpy(hidden_weights), np.nan)  # b h q k
columns = np.concatenate(list(grid), axis=1)  # h (b q) k: one sentence below the other
names = [f"head {head}" for head in range(n_heads)]
plots.heatmaps(columns, titles=names, y="queries of both", high=0.4, size=(6, 3.4))

# %% [markdown] tags=["shared"]
# How many heads? Common models take $d = 64$ or $128$ and let $h$ grow with $m$. In
# this layer, $h$ has to divide $m$: with $m = 4$ there can be 1, 2
# or 4 heads, of $d = 4$, 2 or 1 features.
# [T5](https://arxiv.org/abs/1910.10683) chooses $d$ freely. The
# [Transformer](https://arxiv.org/abs/1706.03762) has 8 heads for $m = 512$, the largest
# [GPT-3](https://arxiv.org/abs/2005.14165) 96 for 12,288. In translation, 8 and 16
# heads did better than 32, and one head did worst (Vaswani et al., table 3).

# %% [markdown] tags=["shared"]
# ## Extra: With a context, the map need not be square
#
# A translator looks from the sentence that it writes into the one that it reads, the
# *context*: queries come from the first, keys and values from the second. The two have
# different lengths, and so the map gets a row per word of the first, a column per word
# of the second:


# %% tags=["jax", "export"]
class CrossAttention(nnx.Module):
    """Attention to a context: ``b q m, b k m -> b q m, b h q k``."""

    def __init__(self, m, n_heads, *, rngs):
        self.n_heads = n_heads
        self.q, self.kv = dense(m, m, rngs=rngs), dense(m, 2 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def queries(self, x):
        """Of every head: ``b q m -> b h q d``."""
        return split_heads(self.q(x), x.shape[-1] // self.n_heads)

    def keys_values(self, context):
        """Of every head: ``b k m``, each to ``b h k d``."""
        d = context.shape[-1] // self.n_heads
        parts = jnp.split(self.kv(context), 2, axis=-1)
        return [split_heads(part, d) for part in parts]

    def __call__(self, x, context, mask=None, **options):
        q = self.queries(x)
        k, v = self.keys_values(context)
        return attend(self, q, k, v, mask, **options)


# %% tags=["jax"]
cross = CrossAttention(m, n_heads, rngs=nnx.Rngs(0))

# %% tags=["shared"]
context = np.random.default_rng(7).normal(size=(b, 11, m))  # b k m
crossed, cross_weights = cross(tensor(x), tensor(context), return_weights=True)
tuple(cross_weights.shape)

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Write two functions yourself: replace the `...`, and run the cell. `check` tries your
# function on random arrays, and says whether it is right, or what is wrong; gradients
# are checked, too. Any way to compute it will do, also a loop.


# %% tags=["shared", "your-turn"]
def my_attention(q, k, v, mask):
    """Masked attention: ``b q d, b k d, b k e, b q k -> b q e``.

    The mask is True where a query may look, or None; a query that may look nowhere gets
    zeros. ``e`` may differ from ``d``.
    """
    ...


check("attention.masked", my_attention)


# %% tags=["shared", "your-turn"]
def my_heads(x, qkv, out, n_heads):
    """Self-attention without biases: ``b s m, m 3m, m m -> b s m``.

    The columns of ``qkv`` make all queries, then all keys, then all values.
    """
    ...


check("attention.heads", my_heads)


# %% tags=["jax", "answer"]
def my_attention(q, k, v, mask):
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # b q k
    if mask is None:
        return nnx.softmax(scores) @ v
    weights = nnx.softmax(jnp.where(mask, scores, -1e30))
    return weights * mask.any(axis=-1, keepdims=True) @ v


def my_heads(x, qkv, out, n_heads):
    b, s, m = x.shape
    parts = (x @ qkv).reshape(b, s, 3, n_heads, m // n_heads)
    q, k, v = parts.transpose(2, 0, 3, 1, 4)  # b h s d
    weights = nnx.softmax(q @ k.mT / math.sqrt(m // n_heads))
    return (weights @ v).swapaxes(1, 2).reshape(b, s, m) @ out


assert check("attention.masked", my_attention)
assert check("attention.heads", my_heads)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** The same vector is added to all keys. What happens to the weights of a query?
#
# <details><summary>They move to the words whose keys resemble that vector.</summary>
#
# **No.** Tempting, because each key does come closer to it. But the query is multiplied
# with that vector for every key: all scores change by the same number.
#
# </details>
# <details><summary>They all become equal.</summary>
#
# **No.** Tempting, because the keys look more alike. But what they differ by is still
# there, and only differences of scores count.
#
# </details>
# <details><summary>They stay as they are.</summary>
#
# **Right.** All scores change by the same number, and the softmax does not see it:
# numerator and denominator get the same factor.
#
# </details>
#
# **2.** In self-attention, *it* gives nearly all its weight to *cat*. How much does
# *cat* give to *it*?
#
# <details><summary>Nearly all: a dot product is symmetric.</summary>
#
# **No.** A dot product is symmetric, but these are products of different vectors: the
# query of *it* with the key of *cat*, and the query of *cat* with the key of *it*.
#
# </details>
# <details><summary>It may be any share.</summary>
#
# **Right.** What *cat* looks for and what *it* is found by come from other matrices,
# and training can make them anything.
#
# </details>
# <details><summary>Hardly any: weights sum to 1.</summary>
#
# **No.** Tempting, but it is the weights of one query that sum to 1. Those that *cat*
# gives are another row of the map.
#
# </details>
#
# **3.** Somebody hides words by setting their weights to 0 *after* the softmax. What is
# wrong?
#
# <details><summary>The weights that remain do not sum to 1.</summary>
#
# **Right.** The hidden keys have already taken their share in the denominator, so the
# larger their scores, the smaller the output.
#
# </details>
# <details><summary>Nothing: a word with weight 0 has no effect.</summary>
#
# **No.** Tempting, because its value has none. But its key still has one, through the
# denominator.
#
# </details>
# <details><summary>The hidden words get no gradient.</summary>
#
# **No.** Tempting, because a weight of 0 passes nothing on. That is as it should be for
# their values; their keys do get a gradient here, and should not.
#
# </details>
#
# **4.** Entries of queries and keys are independent, with mean 0 and variance 1.
# Without the scale, $d$ grows from 16 to 256. What do the scores do?
#
# <details><summary>They come closer to 0, as in any mean of many numbers.</summary>
#
# **No.** Tempting, because positive and negative products cancel. But a score is a sum,
# not a mean: it spreads with every term.
#
# </details>
# <details><summary>They spread four times as wide.</summary>
#
# **Right.** The variance grows with $d$, sixteenfold; the standard deviation by its
# root.
#
# </details>
# <details><summary>They spread sixteen times as wide.</summary>
#
# **No.** Tempting, because there are so many more terms. That holds for the
# variance; the scale is a root for this reason.
#
# </details>
#
# **5.** In cross-attention, the words of the *context* are shuffled, the queries are
# not. What do the outputs do?
#
# <details><summary>They are shuffled in the same way.</summary>
#
# **No.** Tempting, because this page has shown it for self-attention. There the queries
# moved, too, and the outputs follow the queries.
#
# </details>
# <details><summary>They change: other positions now have the large weights.</summary>
#
# **No.** Tempting, because the columns of the map do move. But each weight moves
# together with its value.
#
# </details>
# <details><summary>They stay the same.</summary>
#
# **Right.** Each output is a sum over all keys, and a sum does not depend on the order
# of its terms.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Attention is a weighted mean of values; each weight comes from a query and a key.
# * In self-attention, all three are projections of one sequence.
# * The scale $1/\sqrt{d}$ keeps the softmax from starting out saturated.
# * In this book a mask is boolean, True means "may look", and a query that sees nothing
#   gets zeros.
# * Without a mask, shuffling the words shuffles the outputs in the same way.

# %% [markdown] tags=["jax"]
# Next comes [the encoder block, in JAX](encoder_jax.ipynb). [The reverse
# task](reverse_jax.ipynb) shows learned maps. Flax's ready-made layer stands in [When
# training fails](debugging_jax.ipynb).
