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
# # The encoder block
#
# By the end you can build the block of the Transformer, say for each of its parts what
# happens without it, tell post-norm from pre-norm, and stack blocks into an encoder.
# You need: the attention chapter, and gradients.
#
# *Anna's brother is Ben. Ben lives in Rome.* Where does Anna's brother live? You look
# twice: first for Anna's brother, then for Ben. One attention layer looks only once, so
# a search that needs the result of another needs a second layer.
#
# But attention only averages, so something else has to compute: the *feed-forward net*.
# Averaging again and again makes all words alike: *residual connections* work against
# it. They in turn make the numbers grow: *norms* keep them on one scale. These are the
# parts of the **encoder** of [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762).

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [encoder_jax](encoder_jax.ipynb).
# `MultiHeadAttention`, `attention` and `dense` are those of the attention chapter.

# %% tags=["torch", "setup"]
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

from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from helpers import reference
from helpers.exercises import check
from helpers.show import drawing, plots, say, viewer
from helpers.torch import MultiHeadAttention, attention, dense, device, tensor
from helpers.weights import as_numpy, count_parameters, to_arrays

plots.use_style()

# %% [markdown] tags=["shared"]
# ## The second layer can look for what the first one found
#
# To see the two looks, let each position hold a whole sentence with three features:
# what it is *about*, what it *says* and what it *asks*.
#
# | position | sentence | about | says | asks |
# |---|---|---|---|---|
# | 0 | Anna's brother is Ben. | Anna | Ben | |
# | 1 | Ben lives in Rome. | Ben | Rome | |
# | 2 | Carl lives in Oslo. | Carl | Oslo | |
# | 3 | Where does Anna's brother live? | | | Anna |
#
# The key of a sentence is what it is about, its value what it says, and its query what
# it asks. In the second layer, each sentence asks for what it *found* in the first. (In
# a model, the second layer would also make new keys and values.)

# %% tags=["shared"]
names = ["Anna", "Ben", "Carl", "Rome", "Oslo"]
code = dict(zip(names, np.eye(5), strict=True))
code["-"] = np.zeros(5)
about = np.array([code[name] for name in ["Anna", "Ben", "Carl", "-"]])  # s d
says = np.array([code[name] for name in ["Ben", "Rome", "Oslo", "-"]])
asks = np.array([code[name] for name in ["-", "-", "-", "Anna"]])


# %% tags=["shared"]
def look(queries, keys, values):
    """One head, with sharp weights: outputs ``s d`` and weights ``s s``."""
    q, k, v = (tensor(rows[None]) for rows in (12 * queries, keys, values))  # 12: sharp
    out, weights = attention(q, k, v)
    return as_numpy(out)[0], as_numpy(weights)[0]


found, first = look(asks, about, says)
answer, second = look(found, about, says)

# %% mystnb={"image": {"alt": "The weights of the question in two layers. In the first layer nearly all of it is on the sentence about Anna, in the second on the sentence about Ben."}} tags=["shared", "figure"]
plots.heatmaps(
    [np.stack([first[3], second[3]])],
    x="sentence",
    y="layer",
    x_ticks=["Anna: Ben", "Ben: Rome", "Carl: Oslo", "question"],
    y_ticks=["first", "second"],
    size=(5, 1.9),
)

# %% tags=["shared", "say"]
say(
    f"In the first layer the question gives {first[3, 0]:.0%} of its weight to *Anna's "
    f"brother is Ben*, and finds **{names[found[3].argmax()]}**. In the second it "
    f"gives {second[3, 1]:.0%} to *Ben lives in Rome*, and finds "
    f"**{names[answer[3].argmax()]}**."
)

# %% [markdown] tags=["shared"]
# In a single attention layer, the question cannot know that it should look at *Ben
# lives in Rome*: whatever the matrices, the score between the two depends on these two
# sentences alone, and neither says who Anna's brother is. By the second layer, the
# question's row already holds *Ben*, read from sentence 0.

# %% tags=["shared", "check"]
# Checked: if Ben moves, the first look is the same, the second finds another city
moved = says[[0, 2, 1, 3]]
again, weights = look(asks, about, moved)
np.testing.assert_allclose(weights, first)
assert first[3, 0] > 0.95 and second[3, 1] > 0.95
assert names[found[3].argmax()] == names[again[3].argmax()] == "Ben"
assert names[answer[3].argmax()] == "Rome"
assert names[look(again, about, moved)[0][3].argmax()] == "Oslo"

# %% [markdown] tags=["shared"]
# ## A block mixes positions, then works on each one alone
#
# So we stack layers; the unit of the stack is the **block**. Its input has a row of
# $m$ features for each **token** of a text, a word or a piece of a word. The block has
# two **branches**, one after the other:
#
# * attention moves information between the rows;
# * the **feed-forward net**, `ffn`, computes something new from each row, with the same
#   weights at every position.
#
# The output of a branch is *added* to its input, a **residual connection**. Then a
# **norm** brings each row of the sum to mean 0 and variance 1.

# %% mystnb={"image": {"alt": "The encoder block as a flow from top to bottom: attention, a plus where the input is added again, norm1; then ffn, which treats each position alone, a plus, norm2. A residual path leads around attention and another around ffn. A mask enters attention, its weights come out."}} tags=["shared", "figure"]
drawing("encoder-block")

# %% [markdown] tags=["shared"]
# $$\begin{aligned}
# x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{MultiHead}(x)\big) \\
# x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{FFN}(x)\big) \\
# \mathrm{FFN}(x) &= \max(0,\, xW_1 + b_1)\, W_2 + b_2
# \end{aligned}$$
#
# Here $x$ is the input. $W_1$ widens each row to $f$ hidden features, usually $2m$ to
# $8m$, all computed in parallel, and $W_2$ brings it back to $m$; $b_1$ and $b_2$ are
# biases. The activation $\max(0, \cdot)$ is the ReLU; GELU is a smooth form of it.
#
# In training, **dropout** ([Srivastava et al.
# 2014](https://jmlr.org/papers/v15/srivastava14a.html)) sets a random share of the
# hidden features to zero, so that the model cannot rely on any one of them. It scales
# up the others, so that the mean stays the same. Its rate and the activation are
# options of the net; our first block leaves them as they are, so dropout is off.

# %% tags=["torch", "export"]
ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}


class FeedForward(nn.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``."""

    def __init__(self, m, f, *, dropout=0.0, activation="relu"):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.linear1 = dense(m, f)
        self.linear2 = dense(f, m)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


# %% [markdown] tags=["torch"]
# The block passes `options` on to its attention layer, which returns its weights only
# if it gets `return_weights=True`.


# %% tags=["torch"]
class EncoderBlock(nn.Module):
    """Attention, then feed-forward, each with residual and norm: ``b s m -> b s m``."""

    def __init__(self, m, n_heads, f):
        super().__init__()
        self.attention = MultiHeadAttention(m, n_heads)
        self.ffn = FeedForward(m, f)
        self.norm1 = nn.LayerNorm(m)
        self.norm2 = nn.LayerNorm(m)

    def forward(self, x, mask=None, **options):
        values, weights = self.attention(x, mask, **options)
        x = self.norm1(x + values)
        return self.norm2(x + self.ffn(x)), weights


def new_block(*sizes, seed=0):
    """A block of these sizes, whose weights follow from the seed."""
    torch.manual_seed(seed)
    return EncoderBlock(*sizes).to(device)


# %% [markdown] tags=["shared"]
# All sizes differ, so that swapped axes would raise an error:

# %% tags=["shared"]
b, s, m, n_heads, f = 2, 7, 12, 3, 29
block = new_block(m, n_heads, f)
x = np.random.default_rng(2).normal(size=(b, s, m))
out, weights = block(tensor(x), return_weights=True)  # b s m, b h q k
{name: array.shape for name, array in to_arrays(block).items()}  # inputs × outputs

# %% mystnb={"image": {"alt": "Heat maps of a block's input and output, seven positions by twelve features, for one sequence. The colours of the output resemble those of the input, as the residual connections keep them, but every row is on one scale."}} tags=["shared", "figure"]
titles, axes = ["input x", "output of the block"], {"x": "feature", "y": "position"}
pair, scale = [x[0], as_numpy(out)[0]], {"low": -3, "high": 3, "bar": "value"}
plots.heatmaps(pair, titles=titles, size=(6.4, 2.6), **axes, **scale)

# %% [markdown] tags=["shared"]
# The branches only add to the input, so the output still resembles it; and the norm has
# brought every row to one scale.

# %% tags=["shared", "check"]
# Checked: the block agrees with NumPy in float64; its net treats each position alone
expected, _ = reference.encoder_block(x, to_arrays(block), n_heads)
np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)
alone, together = block.ffn(tensor(x[:, 3:4])), block.ffn(tensor(x))
np.testing.assert_allclose(as_numpy(alone), as_numpy(together)[:, 3:4], atol=1e-6)
assert np.corrcoef(x.ravel(), as_numpy(out).ravel())[0, 1] > 0.8

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** How many numbers does a block of sizes $m$ and $f$ learn?
# Attention has $4m^2 + 4m$, each norm two numbers per feature; count the feed-forward
# net. What is the total for $f = 4m$, and which part has the largest share?

# %% tags=["shared", "answer"]
attention_size, ffn_size, norms_size = 4 * m**2 + 4 * m, 2 * m * f + f + m, 2 * 2 * m
counted = count_parameters(block)
assert counted == attention_size + ffn_size + norms_size
assert count_parameters(new_block(m, 3, 4 * m)) == 12 * m**2 + 13 * m
say(
    "The feed-forward net has $2mf + f + m$ and the two norms $4m$; with attention "
    f"that makes {counted:,} for the sizes above. For $f = 4m$ it is $12m^2 + 13m$, "
    "about two thirds of it in the feed-forward net."
)

# %% [markdown] tags=["shared"]
# ## A mean followed by a linear layer is not enough
#
# What can the net do that a mean cannot? Take a sequence of two bits, and ask whether
# they are different. A head that weights both bits equally passes on their mean: 0, ½
# or 1. The output should be 0, 1, 0. What follows this head in the attention layer, the
# matrix $W_O$, is linear, and no straight line goes up and down again: the best one is
# ½ everywhere. A net with two hidden features can do it, by
# $\max(0, 2x) - 2\max(0, 2x - 1)$:

# %% tags=["shared"]
bits = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)
different = np.array([0, 1, 1, 0])
mean = bits.mean(axis=1)  # what attention passes on
slope, start = np.polyfit(mean, different, deg=1)  # of the best line
hidden = (np.maximum(0, 2 * mean), np.maximum(0, 2 * mean - 1))
{"line": (slope * mean + start).round(2), "net": hidden[0] - 2 * hidden[1]}

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** Two heads see more than the mean, and can do it
# without a feed-forward net: one gives both bits the same weight, the other looks
# sharply at a 1 if there is one. Compute both with `attention` (keys and values are the
# bits; one feature, so their shape is `b k 1`). Which linear combination of the two is
# right?

# %% tags=["shared", "answer"]
keys = tensor(bits[:, :, None])  # b k 1
queries = [tensor(np.full((4, 1, 1), number)) for number in (0.0, 12.0)]  # b 1 1
means = as_numpy(attention(queries[0], keys, keys)[0])[:, 0, 0]
tops = as_numpy(attention(queries[1], keys, keys)[0])[:, 0, 0]
np.testing.assert_allclose(tops, bits.max(axis=1), atol=1e-4)
np.testing.assert_allclose(2 * tops - 2 * means, different, atol=1e-4)
say(
    "With the query 0 both scores are equal, and the head finds the mean. With the "
    "query 12 a one gets nearly all the weight, and the head finds the largest bit: "
    f"{', '.join(f'{y:.0f}' for y in tops)}. Twice the largest bit minus twice the "
    f"mean is {', '.join(f'{abs(y):.0f}' for y in 2 * tops - 2 * means)}. But it takes "
    "sharp weights; a feed-forward net needs only the mean."
)

# %% [markdown] tags=["shared"]
# ## In a new model without residual connections, positions become indistinguishable
#
# A stack of attention layers takes averages of averages. In stacks of attention alone,
# the outputs of all positions approach each other, faster and faster ([Dong et al.
# 2021](https://arxiv.org/abs/2103.03404)); feed-forward nets slow this down. A head
# could look only at its own position, but it has to learn that: with our initial
# weights it looks at all positions almost evenly.
#
# With a residual connection, each position keeps what it had, and the branch only adds
# to it. As a test, we take the residual connections out. The norms stay: they rescale
# each row, but cannot make equal rows different.


# %% tags=["shared"]
def whole_block(block, x):
    """Outputs of the block as it is."""
    return block(x)[0]


def without_residuals(block, x):
    """The same layers in the same order, with nothing added."""
    x = block.norm1(block.attention(x)[0])
    return block.norm2(block.ffn(x))


# %% tags=["shared"]
b, s, m, n_heads, f = 4, 16, 64, 4, 128
x = np.random.default_rng(1).normal(size=(b, s, m))
blocks = [new_block(m, n_heads, f, seed=i) for i in range(24)]

# %% [markdown] tags=["shared"]
# How alike are the outputs of two positions, after more and more blocks? We measure
# their mean cosine:


# %% tags=["shared"]
def similarity(x):
    """Mean cosine between two positions: ``b s m -> number``."""
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = x @ x.swapaxes(-1, -2)  # b s s
    n = x.shape[1]
    return (cosines.sum() / len(x) - n) / (n * (n - 1))


# %% tags=["shared"]
steps = {"with residuals": whole_block, "without residuals": without_residuals}
alike, maps = {}, {}
for name, step in steps.items():
    y, alike[name], found = tensor(x), [], []
    for block in blocks[:12]:
        found.append(as_numpy(block.attention(y, return_weights=True)[1]))  # b h q k
        y = step(block, y)
        alike[name].append(similarity(as_numpy(y)))
    maps[name] = np.stack(found)[:6, 0, :2]  # l h q k: of one sequence, two heads

# %% mystnb={"image": {"alt": "Similarity of positions over depth from 1 to 12 blocks. Without residuals it is one from the second block on; with residuals it rises slowly."}} tags=["shared", "figure"]
depths = np.arange(1, 13)
lines = {name: (depths, alike[name]) for name in reversed(steps)}
fig = plots.curves(
    {"similarity of positions": lines}, x="blocks", marks="o", size=(4.6, 3)
)
fig

# %% tags=["shared", "say"]
say(
    "Before any training, after three blocks without residual connections, the "
    f"similarity of the outputs is {alike['without residuals'][2]:.3f}. With them it "
    f"is **{alike['with residuals'][2]:.2f}**, and after twelve blocks "
    f"{alike['with residuals'][-1]:.2f} (in this draw of the weights)."
)

# %% [markdown] tags=["shared"]
# So without residual connections, all positions soon have nearly the same output. With
# them the positions still become alike, only slowly, as each branch adds something
# similar to all of them.
#
# Could training bring the differences back? We change the input of one position a
# little, and subtract from the changes of all outputs what they share. How much of the
# change is left?

# %% tags=["shared", "experiment"]
# Experiment: how much of a small change at one position sets its output apart
nudge = np.zeros_like(x)
nudge[:, 0] = 0.1 * np.random.default_rng(3).normal(size=(b, m))
apart = {}
for name, step in steps.items():
    y, z = tensor(x), tensor(x + nudge)
    for block in blocks[:2]:
        y, z = step(block, y), step(block, z)
    change = as_numpy(z) - as_numpy(y)  # b s m
    change -= change.mean(axis=1, keepdims=True)  # what it shares with the others
    apart[name] = np.linalg.norm(change[:, 0]) / np.linalg.norm(nudge)

# %% tags=["shared", "say"]
say(
    "After two blocks, what sets the output apart is "
    f"{apart['with residuals']:.2f} times the change with residual connections, and "
    f"**{apart['without residuals']:.3f}** times without them."
)

# %% tags=["shared", "check"]
# Checked: without residual connections positions and maps become uniform, with them not
similar = np.array(alike["without residuals"])  # each depth
assert similar[2] > 0.999 and (similar[1:] > 0.99).all()
np.testing.assert_allclose(maps["without residuals"][3:], 1 / 16, atol=0.001)
distinct = np.array(alike["with residuals"])
assert distinct[2] < 0.1 and distinct[-1] > 0.2 and (np.diff(distinct) > 0).all()
assert np.ptp(maps["with residuals"], axis=-1).mean(axis=(1, 2)).min() > 0.03
assert apart["with residuals"] > 20 * apart["without residuals"]

# %% [markdown] tags=["shared"]
# Without them, the output hardly depends on what sets the positions apart, and less
# with each block: training has little to begin with.
#
# Step through the layers of the attention maps: once all positions are equal, each of
# the 16 keys gets one sixteenth.

# %% tags=["shared", "figure"]
viewer.attention(
    maps, about="Maps of six layers, with and without residuals", high=0.25, layer=2
)

# %% [markdown] tags=["shared"]
# ## Layer norm keeps every position on one scale
#
# But residual connections have a price: each block adds to the row of a position, so
# the numbers grow with depth. The scores, products of a query and a key, grow even
# faster, and the softmax gives more and more of the weight to one key. (And a saturated
# softmax passes hardly any gradient: an extra of *Attention*. Few blocks may still
# train.)
#
# **Layer norm** ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)) prevents this. It
# brings the features of each position to mean 0 and variance 1, then scales and shifts
# them:
#
# $$\mathrm{LayerNorm}(x) =
# \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$
#
# Here $\mu$ and $\sigma^2$ are the mean and the variance of the $m$ features of one
# position; $\gamma$ and $\beta$ are learned, one per feature; and $\epsilon$ is small.
# [RMS norm](https://arxiv.org/abs/1910.07467), common today, leaves out $\mu$ and
# $\beta$: it divides by the root of the mean square. (Batch norm would mix the
# sentences of a batch: see the extra.)
#
# We take the norms out:


# %% tags=["shared"]
def without_norms(block, x):
    """Both branches are added, and nothing is rescaled."""
    x = x + block.attention(x)[0]
    return x + block.ffn(x)


# %% [markdown] tags=["shared"]
# At the input of each of the 24 blocks we measure the spread of the numbers, and the
# largest of the 16 weights of a query:


# %% tags=["shared"]
def measure(step):
    """Spread of ``x`` and largest weights at the input of each block: two arrays."""
    y, spread, largest = tensor(x), [], []
    for block in blocks:
        _, weights = block.attention(y, return_weights=True)  # b h q k
        spread.append(as_numpy(y).std())
        largest.append(as_numpy(weights).max(axis=-1).mean())
        y = step(block, y)
    return np.array(spread), np.array(largest)


wild, calm = measure(without_norms), measure(whole_block)

# %% mystnb={"image": {"alt": "Two panels over the blocks 0 to 23. Left, the standard deviation of the numbers: without norms it rises steadily, with norms it stays at one. Right, the largest weight of a query: without norms it rises, with norms it stays low, near the dotted line of equal weights."}} tags=["shared", "figure"]
numbers = np.arange(len(blocks))
titles = "standard deviation of x", "largest weight of a query"
panels = {
    title: {"without norms": (numbers, wild[i]), "with norms": (numbers, calm[i])}
    for i, title in enumerate(titles)
}
fig = plots.curves(panels, x="block")
fig.axes[1].axhline(1 / 16, color=plots.INK, ls=":", lw=0.8)
fig.axes[1].set_ylim(0)
fig

# %% tags=["shared", "say"]
say(
    "In this draw, before any training: without norms, the numbers before the last "
    f"block have a standard deviation of {wild[0][-1]:.1f}, and a query gives one of "
    f"16 keys **{wild[1][-1]:.0%}** of its weight (dotted: all equal). With norms: "
    f"{calm[0][-1]:.1f} by construction, and {calm[1][-1]:.0%}."
)

# %% tags=["shared", "check"]
# Checked: without norms numbers and largest weights grow with depth, with norms not
spread, largest = wild
assert spread[-1] > 2 and (np.diff(spread) > 0).all()
assert largest[-1] > 0.3 and largest[-1] > 2 * largest[0]
spread, largest = calm
np.testing.assert_allclose(spread, 1, atol=0.02)
assert largest.max() < 0.2

# %% [markdown] tags=["shared"]
# ## The norm can also come first, inside each branch
#
# Where should the norm go? In 2017 it came after each sum, on the residual path
# (**post-norm**). In most models today it comes first inside each branch
# (**pre-norm**), as in [T5](https://arxiv.org/abs/1910.10683):
#
# $$\begin{aligned}
# x &\leftarrow x + \mathrm{MultiHead}\big(\mathrm{LayerNorm}(x)\big) \\
# x &\leftarrow x + \mathrm{FFN}\big(\mathrm{LayerNorm}(x)\big)
# \end{aligned}$$
#
# The residual path is then a plain sum: the input plus all branches. It hands the
# gradient on to every block as it is, so a deep stack trains with less warm-up ([Xiong
# et al. 2020](https://arxiv.org/abs/2002.04745); *Warm-up* compares both). The price:
# the sum grows with depth, and the share of each new block in it shrinks. So one more
# norm, at the end of the stack, has to scale it.

# %% mystnb={"image": {"alt": "The encoder block with pre-norm, from top to bottom: norm1 and attention, a plus; norm2 and ffn, a plus. Each residual path starts before the norm, so it meets nothing but the two sums."}} tags=["shared", "figure"]
drawing("pre-norm-block")

# %% [markdown] tags=["shared"]
# In code, the parts stay, and only the order changes:


# %% tags=["torch"]
class PreNormBlock(EncoderBlock):
    """The same parts, but each norm comes first in its branch."""

    def forward(self, x, mask=None, **options):
        values, weights = self.attention(self.norm1(x), mask, **options)
        x = x + values
        return x + self.ffn(self.norm2(x)), weights


# %% [markdown] tags=["shared"]
# ## The encoder is a stack of blocks
#
# The encoder is only a loop, which hands the mask to every block. It also collects the
# attention weights of all blocks, the *maps*.

# %% [markdown] tags=["torch"]
# PyTorch does not register layers in a plain Python list, and gives no warning: their
# parameters would not be trained. `nn.ModuleList` is a list whose layers are found.


# %% tags=["torch"]
class Encoder(nn.Module):
    """A stack of blocks: ``b s m -> b s m``, and its maps ``l b h s s``."""

    def __init__(self, n_blocks, m, n_heads, f):
        super().__init__()
        blocks = [EncoderBlock(m, n_heads, f) for _ in range(n_blocks)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x, mask=None):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask, return_weights=True)  # b s m, b h s s
            maps.append(weights)
        return x, torch.stack(maps)


# %% tags=["torch"]
torch.manual_seed(0)
encoder = Encoder(2, m, n_heads, f).to(device)

# %% tags=["shared"]
lengths = np.array([16, 16, 11, 5])  # of the four sequences; the rest is padding
real = np.arange(s) < lengths[:, None]  # b s
mask = tensor(real[:, None, None])  # b 1 1 k
out, maps = encoder(tensor(x), mask)
out.shape, maps.shape  # b s m, l b h s s

# %% tags=["shared", "check"]
# Checked: both blocks get the mask, and the encoder is one block after the other
assert not as_numpy(maps)[:, ~real.all(axis=1), :, :, -5:].any()
y = tensor(x)
for block in encoder.blocks:
    y, _ = block(y, mask)
np.testing.assert_allclose(as_numpy(y), as_numpy(out), atol=1e-5)

# %% [markdown] tags=["shared"]
# **In your own code**, begin with 4 blocks, $m = 128$, two heads of 64 features, $f =
# 4m$ and dropout 0.1: by exercise 1, that is about 800,000 numbers to learn. Go down to
# 2 blocks or up to 6 as the validation loss tells you. The encoder of 2017 had 6 with
# $m = 512$, [BERT](https://arxiv.org/abs/1810.04805) 12 with 768, and far more text
# than most of us have. For a new model, try pre-norm, RMS norm, and
# [SwiGLU](https://arxiv.org/abs/2002.05202), in which a second linear layer gates the
# hidden features; *The Transformer of today* builds them.

# %% [markdown] tags=["torch"]
# ```python
# encoder = Encoder(4, 128, 2, 512, norm_first=True, dropout=0.1).to(device)
# y = encoder(x, mask)  # x, y: b s m; mask: b 1 1 s, True = real
# ```
#
# For this, copy `ACTIVATIONS`, `FeedForward`, `EncoderBlock` and `Encoder` of the next
# extra; from the attention chapter `MultiHeadAttention`, `attention` and `dense`. Or
# take [one file](../book/index.md#one-file-to-take-along) with all of it,
# `predictor_torch.py`.

# %% [markdown] tags=["shared"]
# ## Extra: The block and the encoder with options
#
# Later chapters import this block. Its options are marked as new: `norm_first`;
# `dropout`, on the output of each branch as well; `activation`; and another class of
# `attention`.


# %% tags=["torch", "export"]
class EncoderBlock(nn.Module):
    """Attention, then feed-forward, each with residual and norm: ``b s m -> b s m``."""

    def __init__(
        self,
        m,
        n_heads,
        f,
        *,
        dropout=0.0,  # new
        norm_first=False,  # new
        activation="relu",  # new
        attention=MultiHeadAttention,  # new
    ):
        super().__init__()
        self.norm_first = norm_first  # new
        self.attention = attention(m, n_heads)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation)
        self.norm1 = nn.LayerNorm(m)
        self.norm2 = nn.LayerNorm(m)
        self.dropout = nn.Dropout(dropout)  # new

    def forward(self, x, mask=None, **options):
        if self.norm_first:  # new
            values, weights = self.attention(self.norm1(x), mask, **options)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask, **options)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


# %% [markdown] tags=["shared"]
# The encoder passes them on, and collects the maps only on demand. With pre-norm it
# ends with the norm that scales the sum:


# %% tags=["torch", "export"]
class Encoder(nn.Module):
    """A stack of blocks: ``b s m -> b s m``, on demand with maps ``l b h s s``."""

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, **options):
        super().__init__()
        options = {"norm_first": norm_first, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(m) if norm_first else None

    def forward(self, x, mask=None, *, return_maps=False, **options):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask, return_weights=return_maps, **options)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, torch.stack(maps)) if return_maps else x


# %% [markdown] tags=["torch"]
# To see where a model looks, run it with dropout off: `without_dropout` calls `eval()`,
# and after the `with` block each module gets its old mode back. `no_grad` turns
# autograd off.


# %% tags=["torch", "export"]
@contextmanager
def without_dropout(model):
    """The model with dropout off; then each module gets its old mode back."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def attention_maps(model, x, mask=None):
    """Outputs, and maps ``l b h q k``, of one forward pass with dropout off."""
    with without_dropout(model), torch.no_grad():
        return model(x, mask, return_maps=True)


# %% tags=["torch"]
torch.manual_seed(0)
encoder = Encoder(2, m, n_heads, f, dropout=0.2).to(device)

# %% tags=["shared", "check"]
# Checked: dropout is on in training, scales what it keeps, and is off in the maps
first_out, second_out = as_numpy(encoder(tensor(x))), as_numpy(encoder(tensor(x)))
assert np.abs(first_out - second_out).max() > 0.7
dropped = as_numpy(encoder.blocks[0].dropout(tensor(np.ones(1000))))
np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - 0.2)])
out, maps = attention_maps(encoder, tensor(x), mask)
again, _ = attention_maps(encoder, tensor(x), mask)
np.testing.assert_array_equal(as_numpy(again), as_numpy(out))

# %% [markdown] tags=["shared"]
# ## Extra: Smaller initial weights instead of norms
#
# **Exercise 3, an open question.** Could smaller initial weights replace the norms?
# GPT-2 scales the last weights of each branch by $1/\sqrt{N}$, for $N$ branches (see
# [nanoGPT](https://github.com/karpathy/nanoGPT/blob/master/model.py)). Multiply each
# branch of `without_norms` by $1/\sqrt{48}$, and predict both panels of its figure.
# Then compute them: `spread, largest = measure(step)`. A hint: at the start the
# branches are nearly independent, so their variances add up. What could go wrong in
# training?


# %% tags=["shared", "answer"]
def scaled(block, x):
    """Both branches are added, each times 1/√48."""
    x = x + block.attention(x)[0] / np.sqrt(48)
    return x + block.ffn(x) / np.sqrt(48)


spread, largest = measure(scaled)
assert spread[-1] < 1.15 and largest[-1] < 0.2
say(
    f"At the start, yes: the standard deviation rises to {spread[-1]:.2f} only, and "
    f"the largest weight is {largest[-1]:.0%}, with norms {calm[1][-1]:.0%}. The "
    "variances of 48 nearly independent branches add up, and the factor makes their "
    "sum as large as one branch. But it is a start, and nothing holds it: training can "
    "make the weights of any branch larger. A norm rescales whatever the weights "
    "become. GPT-2 has both."
)

# %% [markdown] tags=["shared"]
# ## Extra: Batch norm would mix the sentences
#
# Why do Transformers not use the **batch norm** of vision? It takes mean and variance
# over all positions of the batch. In training, an output would depend on the other
# sentences and their padding. It also needs large batches, for which a Transformer has
# often no memory. In text, the means also differ more from batch to batch than in
# pictures, probably because a rare word comes up in few batches. Other norms are meant
# to help: *Power Normalization* ([Shen et al. 2020](https://arxiv.org/abs/2003.07845))
# and *Adaptive Normalization* ([Xu et al. 2019](https://arxiv.org/abs/1911.07013)).
# (The authors of layer norm also report faster training, and it is said to regularise a
# little; we test neither here.) In the code of layer norm and batch norm, only the axes
# differ:


# %% tags=["shared"]
def normalise(x, axes, epsilon=1e-5):
    """Subtract the mean and divide by the standard deviation over ``axes``."""
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


sentences = np.random.default_rng(2).normal(1, 3, size=(3, 6, m))  # b s m
by_layer = normalise(sentences, axes=-1)
by_batch = normalise(sentences, axes=(0, 1))

# %% tags=["shared", "check"]
# Checked: padding in one sentence changes others through batch norm, not layer norm
padded = sentences.copy()
padded[2, 4:] = 50  # only the third sentence changes, and only its padding
np.testing.assert_array_equal(normalise(padded, -1)[:2], by_layer[:2])
assert np.abs(normalise(padded, (0, 1))[:2] - by_batch[:2]).max() > 1
own = as_numpy(blocks[0].norm1(tensor(sentences)))
np.testing.assert_allclose(own, by_layer, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Write a norm, and the block with its norms first: replace each `...`, and run the
# cell. `check` says whether your function is right, or what is wrong with it. The
# second function gets all its parts ready-made, as functions; only what reads what is
# yours to write.


# %% tags=["shared", "your-turn"]
def my_layer_norm(x, scale, bias):
    """Layer norm: ``… m, m, m -> … m``, with one or two axes before the features.

    The variance is divided by ``m``; epsilon is ``1e-5``, and is added to the variance.
    """
    ...


check("encoder.layer_norm", my_layer_norm)


# %% tags=["shared", "your-turn"]
def my_pre_norm(x, attend, ffn, norm1, norm2):
    """A block with pre-norm: ``b s m -> b s m``.

    ``attend`` and ``ffn`` are its two branches, each without a residual connection;
    ``norm1`` belongs to the first, ``norm2`` to the second. All four map ``b s m`` to
    ``b s m``.
    """
    ...


check("encoder.pre_norm", my_pre_norm)


# %% tags=["torch", "answer"]
def my_layer_norm(x, scale, bias):
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * scale + bias


def my_pre_norm(x, attend, ffn, norm1, norm2):
    x = x + attend(norm1(x))
    return x + ffn(norm2(x))


assert check("encoder.layer_norm", my_layer_norm)
assert check("encoder.pre_norm", my_pre_norm)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** *Eve's cat is Tom. Tom sleeps. How is Eve's cat?* Could one layer with two
# heads find out: one head for Eve, the other for Tom?
#
# <details><summary>Yes, as each head has a query of its own.</summary>
#
# **No.** Tempting, because heads do look for different things. But both queries are
# made from the question, which does not name Tom.
#
# </details>
# <details><summary>Yes, if the heads are large enough.</summary>
#
# **No.** It sounds like a matter of size. But a score depends on the two rows alone,
# however many features they have, and neither says who the cat is.
#
# </details>
# <details><summary>No, both heads look at the same time.</summary>
#
# **Right.** Heads of one layer work side by side. What one of them finds can only be
# asked for in a later layer.
#
# </details>
#
# **2.** The sequences become twice as long. How many parameters does the feed-forward
# net need now?
#
# <details><summary>As many as before.</summary>
#
# **Right.** The same two linear layers work on every row: more rows are more work, not
# more weights.
#
# </details>
# <details><summary>Twice as many.</summary>
#
# **No.** Tempting, because the net works on each position alone. It does so with the
# same weights: no matrix has an axis for the positions.
#
# </details>
# <details><summary>Four times as many.</summary>
#
# **No.** The attention map does get four times as many entries, hence the idea. But
# they are computed, not learned, and the net sees no pairs.
#
# </details>
#
# **3.** All features of one word become ten times as large. What changes in the output
# of a layer norm?
#
# <details><summary>That word: it is ten times as large.</summary>
#
# **No.** One expects it, as nothing else was touched. But the norm divides by the
# standard deviation of this very word, which has grown as much.
#
# </details>
# <details><summary>The other words: they become smaller.</summary>
#
# **No.** It would be so if the norm took its mean and variance over the sentence. It
# takes them over the features of each position.
#
# </details>
# <details><summary>Hardly anything, neither that word nor the others.</summary>
#
# **Right.** Its mean and its standard deviation grow with it, and cancel, up to
# $\epsilon$. The other words have their own.
#
# </details>
#
# **4.** A deep stack with pre-norm loses the norm at its end. What happens?
#
# <details><summary>Little: each branch has had its norm.</summary>
#
# **No.** Tempting, because no block is without one. But these norms scale what the
# branches *read*; what comes out is the sum, which no norm has scaled.
#
# </details>
# <details><summary>The numbers in the output grow with the depth.</summary>
#
# **Right.** Each block adds to the residual path, and nothing on it rescales the sum.
#
# </details>
# <details><summary>Hardly any gradient reaches the first blocks.</summary>
#
# **No.** Norms do help training, so one may fear for the gradient. But the residual
# path is a plain sum, which hands the gradient on unchanged.
#
# </details>
#
# **5.** Two positions have exactly the same row. There is no mask and no dropout. Which
# part of a block can make them different?
#
# <details><summary>Attention: each of them sees the other one.</summary>
#
# **No.** Tempting, because their surroundings differ. But both see the same set of
# rows, themselves included, and ask with the same query: they get the same mean.
#
# </details>
# <details><summary>None.</summary>
#
# **Right.** Each part does the same to both. Only something that depends on the
# position itself can tell them apart: that is the next chapter.
#
# </details>
# <details><summary>The residual connections: each keeps its own row.</summary>
#
# **No.** They do keep what is there. What is there is the same in both.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * A second layer can look for what the first found.
# * Attention mixes positions; the feed-forward net computes something new at each one.
# * In a new model, residual connections keep positions distinct for longer, and norms
#   keep the numbers on one scale.
# * Post-norm rescales every sum; pre-norm leaves the residual path alone.

# %% [markdown] tags=["torch"]
# The block still ignores the order of the words. Next come [positions and the whole
# encoder, in PyTorch](positions_torch.ipynb). [When training
# fails](debugging_torch.ipynb) shows which of these parts PyTorch has ready-made.
