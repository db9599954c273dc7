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
# # The encoder
#
# By the end you can stack attention layers into the encoder of the Transformer, say
# what each of its parts is for, read its attention maps, and tell it the order of the
# words. You need: the attention chapter, and gradients.
#
# *Anna's brother is Ben. Ben lives in Rome.* Where does Anna's brother live? You look
# twice: first for Anna's brother, then for Ben. One attention layer looks only once. A
# model that uses the result of one search for the next one needs two layers.
#
# Stacking layers brings new problems. Attention only averages, so something else has to
# compute with the averages. Averaging again and again makes all words alike. The
# numbers must not grow from layer to layer. And no layer knows the order of the words.
# The **encoder** of [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762) has one
# part for each problem. We build it, and show for each part what happens without it.

# %% [markdown] tags=["jax"]
# This page uses **JAX**, with Flax NNX for layers. The same page in PyTorch:
# [encoder_torch](encoder_torch.ipynb). `floats`, `integers` and `booleans` make arrays
# of these kinds.

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
import tempfile
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from helpers import diagrams, plots, reference, viewer  # drawings; a model in NumPy
from helpers.prose import say  # say() prints a sentence with computed numbers
from helpers.sequences import one_hot, symbols
from helpers.settings import Sequences
from helpers.shapes import as_numpy, check_shape
from helpers.weights import from_arrays, load_weights, save_weights, to_arrays

plots.use_style()

# %% tags=["jax"]
import jax
import jax.numpy as jnp
from flax import nnx

# The model of this page, ready for a first look:
from helpers import model_jax as ready

# Built in the attention chapter:
from helpers.model_jax import MultiHeadAttention, attention, build, check_input, dense

# A training loop, used once near the end:
from helpers.train_jax import cross_entropy, fit

jax.config.update("jax_default_matmul_precision", "highest")
floats = partial(jnp.asarray, dtype=jnp.float32)
integers = partial(jnp.asarray, dtype=jnp.int32)
booleans = partial(jnp.asarray, dtype=jnp.bool_)
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## A few words walk through the model
#
# A text is first cut into **tokens**, words or pieces of words. Each token has an id,
# its number in a fixed *vocabulary*. An **embedding** is a table with one row of $m$
# learned numbers for each token, and the id says which row to take.

# %% tags=["shared"]
vocabulary = ["a", "by", "night", "step", "the"]  # a real one has tens of thousands
tokens = ["step", "by", "step"]
ids = [vocabulary.index(token) for token in tokens]
ids

# %% tags=["jax"]
embedding = build(nnx.Embed, len(vocabulary), 4)  # m = 4
rows = embedding(integers([ids]))  # b s m
rows.shape

# %% [markdown] tags=["shared"]
# *One-hot* vectors (zeros, and a one at the id), multiplied by the table, give the same
# rows. So our model has a linear layer here, which also takes features of pictures.

# %% tags=["shared"]
table = to_arrays(embedding)["weight"]  # i m
x = one_hot(np.array([ids]), len(vocabulary))  # b s i

# %% tags=["shared", "check"]
# Checked: looking up a row is the same as multiplying a one-hot vector by the table
np.testing.assert_allclose(as_numpy(rows), x @ table, atol=1e-6)
assert rows.shape == (1, 3, 4)

# %% [markdown] tags=["shared"]
# Here is the whole path, from ids to scores, through the model that this page builds
# part by part. It is untrained, so its outputs mean nothing yet.

# %% tags=["shared"]
model = build(ready.Predictor, len(vocabulary), 4, 2, n_blocks=2, n_heads=2, f=16)
from_arrays(model, {**to_arrays(model), "embed.weight": table})  # our table
embedded = model.embed(floats(x))  # b s m
placed = model.positions(embedded)  # b s m
encoded = model.encoder(placed)  # b s m
scores = model(floats(x))  # b s c: two scores per token

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The tokens step, by, step with the ids 3, 1, 3 on their way from top to bottom, each with a row of its own: embed gives four numbers per token, positions adds a code, the encoder of two blocks gives four new numbers, output two scores. The two rows of step are equal after embed and differ from then on."}}
stages = [as_numpy(stage)[0] for stage in (embedded, placed, encoded, scores)]
diagrams.walk_through(tokens, ids, *stages)

# %% [markdown] tags=["shared"]
# The two rows of *step* are equal after `embed`, and differ after `positions`, because
# each gets a code for its position. In the encoder, attention moves information between
# rows: after it, each row depends on all three tokens.

# %% tags=["shared", "check"]
# Checked: equal tokens differ once positions are added; encoded rows depend on all
for stage, equal in ((embedded, True), (placed, False), (encoded, False)):
    assert np.allclose(as_numpy(stage)[0, 0], as_numpy(stage)[0, 2]) == equal
other = one_hot(np.array([[3, 2, 3]]), len(vocabulary))  # step night step
replaced = as_numpy(model.encoder(model.positions(model.embed(floats(other)))))
moved = np.abs(replaced - as_numpy(encoded))[0].max(axis=-1)
assert (moved > 1e-3).all()  # loose: more than rounding

# %% [markdown] tags=["shared"]
# ## The second layer can look for what the first one found
#
# Let each position hold one sentence, and write down whom it is *about*, what it
# *says*, and what it *asks*:
#
# | | sentence | about | says | asks |
# |---|---|---|---|---|
# | 0 | Anna's brother is Ben. | Anna | Ben | |
# | 1 | Ben lives in Rome. | Ben | Rome | |
# | 2 | Carl lives in Oslo. | Carl | Oslo | |
# | 3 | Where does Anna's brother live? | | | Anna |
#
# The key of a sentence is what it is about, its value what it says. In the first layer,
# its query is what it asks; in the second, what the first layer *found* for it.

# %% tags=["shared"]
names = ["Anna", "Ben", "Carl", "Rome", "Oslo"]
code = dict(zip([*names, "-"], np.eye(6)[:, :5], strict=True))  # "-": all zeros
about, says, asks = (
    np.array([code[name] for name in column.split()])  # s d
    for column in ("Anna Ben Carl -", "Ben Rome Oslo -", "- - - Anna")
)


def look(queries, keys, values):
    """One head: outputs ``s d`` and weights ``s s``; 12 makes the weights sharp."""
    q, k, v = (floats(rows[None]) for rows in (12 * queries, keys, values))
    out, weights = attention(q, k, v)
    return as_numpy(out)[0], as_numpy(weights)[0]


found, first = look(asks, about, says)
answer, second = look(found, about, says)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The weights of the question in two layers. In layer 1 nearly all of it is on the sentence about Anna, in layer 2 on the sentence about Ben."}}
plots.heatmaps(
    [np.stack([first[3], second[3]])], x="sentence", y="the question in",
    x_ticks=["Anna: Ben", "Ben: Rome", "Carl: Oslo", "question"],
    y_ticks=["layer 1", "layer 2"], size=(6, 2.1),
)  # fmt: skip

# %% tags=["shared", "say"]
say(
    f"In layer 1 the question gives {first[3, 0]:.0%} of its weight to *Anna's brother "
    f"is Ben* and finds **{names[found[3].argmax()]}**. In layer 2 it searches for "
    f"Ben, gives {second[3, 1]:.0%} to *Ben lives in Rome*, and finds "
    f"**{names[answer[3].argmax()]}**. A single layer would have ended with Ben."
)

# %% [markdown] tags=["shared"]
# One layer cannot do both steps, whatever its matrices: the score between the question
# and *Ben lives in Rome* depends on these two sentences alone, and neither of them says
# who Anna's brother is.

# %% tags=["shared", "check"]
# Checked: if Ben lives in Oslo, the first layer finds the same, the second finds Oslo
swapped = says[[0, 2, 1, 3]]
np.testing.assert_allclose(look(asks, about, swapped)[1], first)
again, _ = look(asks, about, swapped)
assert names[again[3].argmax()] == "Ben" and names[answer[3].argmax()] == "Rome"
assert names[look(again, about, swapped)[0][3].argmax()] == "Oslo"
assert first[3, 0] > 0.95 and second[3, 1] > 0.95

# %% tags=["shared", "check"]
# Checked: a third word moves the ratio of two weights in layer 2, but not in layer 1
layers = [build(MultiHeadAttention, 24, 4, seed=i) for i in range(2)]
x = np.random.default_rng(0).normal(scale=4, size=(2, 7, 24))  # 4: sharper weights
replaced = x.copy()
replaced[:, -1] = np.random.default_rng(1).normal(scale=4, size=(2, 24))
ratios = []  # how much word 0 prefers word 1 to word 2
for inputs in (x, replaced):
    out, weights = layers[0](floats(inputs))
    both = as_numpy(weights), as_numpy(layers[1](out)[1])  # each b h q k
    ratios.append([w[:, :, 0, 1] / w[:, :, 0, 2] for w in both])
shift = [np.abs(b / a - 1).max() for a, b in zip(*ratios, strict=True)]
assert shift[0] < 1e-5
assert shift[1] > 0.1  # loose: other weights in the twin shift it less

# %% [markdown] tags=["shared"]
# ## A block mixes positions, then works on each one alone
#
# Attention moves information between positions. To compute something new, a small
# network of two linear layers follows, the **feed-forward net**, with the same weights
# at every position. These are the two **branches** of a block. The output of each is
# *added* to its input (a **residual connection**), and the sum is rescaled (a
# **norm**).

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The encoder block as a flow from top to bottom: attention, a plus where the input is added again, norm1; then ffn, which treats each position alone, a plus, norm2. A residual path leads around attention and another around ffn. A mask enters attention, its weights come out."}}
diagrams.encoder_block()

# %% [markdown] tags=["shared"]
# $$\begin{aligned}
# x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{MultiHead}(x)\big) \\
# x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{FFN}(x)\big) \\
# \mathrm{FFN}(x) &= \max(0,\, xW_1 + b_1)\, W_2 + b_2
# \end{aligned}$$
#
# Here $x$ has one row of $m$ features per position. $W_1$ widens the row to $f$ hidden
# features, and $W_2$ brings it back; $b_1$ and $b_2$ are biases. The activation
# $\max(0, \cdot)$ is the ReLU; GELU is a smooth version. In training, **dropout** sets
# a random share of the hidden features and of both branches' outputs to zero.

# %% [markdown] tags=["jax"]
# We set PyTorch's options for the norms and the GELU. `pick` and `check_rate` only
# refuse wrong options.

# %% tags=["jax"]
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}
EXACT = {"epsilon": 1e-5, "use_fast_variance": False}
NORMS = {"layer": partial(nnx.LayerNorm, **EXACT), "rms": partial(nnx.RMSNorm, **EXACT)}


def pick(options, name, what):
    """The option of this name; an unknown name raises an error with all names."""
    if name not in options:
        raise ValueError(f"{what} {name!r} is not in {list(options)}")
    return options[name]


def check_rate(rate, what):
    """The rate of a dropout, if it is one."""
    if not 0 <= rate < 1:
        raise ValueError(f"{what} {rate} is not in [0, 1)")
    return rate


# %% tags=["jax"]
class FeedForward(nnx.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``."""

    def __init__(self, m, f, *, dropout=0.0, activation="relu", rngs):
        self.activation = pick(ACTIVATIONS, activation, "activation")
        self.linear1 = dense(m, f, rngs=rngs)
        self.linear2 = dense(f, m, rngs=rngs)
        self.dropout = nnx.Dropout(check_rate(dropout, "dropout"), rngs=rngs)

    def __call__(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


# %% [markdown] tags=["shared"]
# The block also returns its attention weights. (`norm_first` is explained below.)


# %% tags=["jax"]
class EncoderBlock(nnx.Module):
    """Attention, then feed-forward, each with residual and norm: ``b s m -> b s m``."""

    def __init__(
        self, m, n_heads, f, *, dropout=0.0, activation="relu", norm="layer",
        norm_first=False, rngs,
    ):  # fmt: skip
        make_norm = pick(NORMS, norm, "norm")
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(m, n_heads, rngs=rngs)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation, rngs=rngs)
        self.norm1 = make_norm(m, rngs=rngs)
        self.norm2 = make_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x, mask=None):
        if self.norm_first:
            values, weights = self.attention(self.norm1(x), mask)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


# %% [markdown] tags=["shared"]
# Our sizes are small and all different, so that a swapped axis raises an error. For
# your own task start from the ratios of [BERT](https://arxiv.org/abs/1810.04805) and
# the encoder of 2017: $f = 4m$ (a habit, no law) and heads of 64 features.

# %% tags=["shared"]
b, s, m, n_heads, f = 2, 7, 12, 3, 29
block = build(EncoderBlock, m, n_heads, f)
x = np.random.default_rng(2).normal(size=(b, s, m))
out, weights = block(floats(x))  # b s m, b h q k
{name: array.shape for name, array in to_arrays(block).items()}

# %% tags=["shared", "check"]
# Checked: every variant of the block agrees with a NumPy reference in float64
check_shape(out, "b s m", b=b, s=s, m=m)
check_shape(weights, "b h q k", b=b, h=n_heads, q=s, k=s)
for norm_first, activation, norm in product((False, True), ACTIVATIONS, NORMS):
    options = {"norm_first": norm_first, "activation": activation, "norm": norm}
    variant = build(EncoderBlock, m, n_heads, f, **options)
    found, _ = variant(floats(x))
    expected, _ = reference.encoder_block(x, to_arrays(variant), n_heads, **options)
    np.testing.assert_allclose(as_numpy(found), expected, atol=1e-5)

# %% tags=["shared", "check"]
# Checked: the feed-forward net treats a position as if the others were not there
alone, together = block.ffn(floats(x[:, 3:4])), block.ffn(floats(x))
np.testing.assert_allclose(as_numpy(alone), as_numpy(together)[:, 3:4], atol=1e-6)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** How many numbers does a block of sizes $m$ and $f$ learn?
# Attention has $4m^2 + 4m$, each norm two numbers per feature; count the feed-forward
# net. What comes out for $f = 4m$? Which part has most?

# %% tags=["shared", "answer"]
attention_size, ffn_size, norms_size = 4 * m**2 + 4 * m, 2 * m * f + f + m, 2 * 2 * m
counted = sum(array.size for array in to_arrays(block).values())
assert counted == attention_size + ffn_size + norms_size
wide = sum(array.size for array in to_arrays(build(EncoderBlock, m, 3, 4 * m)).values())
assert wide == 12 * m**2 + 13 * m
say(
    "The feed-forward net has $2mf + f + m$ and the two norms $4m$; with attention "
    f"that makes {counted:,} for the sizes above. For $f = 4m$ it is $12m^2 + 13m$, "
    "about two thirds of it in the feed-forward net."
)

# %% [markdown] tags=["shared"]
# ## A mean followed by a linear layer is not enough
#
# A sequence has two bits. Are they different? A head that gives both bits the same
# weight passes on their mean: 0, ½ or 1. The output should be 1 for the mean ½, and 0
# for the means 0 and 1. With these weights fixed, everything else in attention is
# linear, and a straight line cannot go up and down again. A feed-forward net with two
# hidden features can: $\max(0, 2x) - 2\max(0, 2x - 1)$.

# %% tags=["shared"]
bits = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
different = np.array([0.0, 1, 1, 0])
mean = bits.mean(axis=1)  # what attention passes on
slope, start = np.polyfit(mean, different, 1)  # the best straight line

net = build(FeedForward, 1, 2)
first_layer = {"linear1.weight": [[2.0, 2.0]], "linear1.bias": [0.0, -1.0]}
second_layer = {"linear2.weight": [[1.0], [-2.0]], "linear2.bias": [0.0]}
by_hand = {**first_layer, **second_layer}
from_arrays(net, {name: np.array(values) for name, values in by_hand.items()})
said = as_numpy(net(floats(mean[:, None])))[:, 0]
grid = np.linspace(0, 1, 101)
bent = as_numpy(net(floats(grid[:, None])))[:, 0]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Output over the mean of two bits. The feed-forward net rises from zero to one at the mean one half and falls back to zero. The best straight line is flat at one half."}}
lines = {"feed-forward net": (grid, bent), "best line": (grid, slope * grid + start)}
fig = plots.curves(
    {"are the bits different?": lines}, x="mean of the bits", size=(5, 3)
)
fig.axes[0].set_xticks([0, 0.5, 1])
fig

# %% tags=["shared", "say"]
outputs = ", ".join(f"{y:.0f}" for y in said)
say(
    f"For the sequences 00, 01, 10, 11 the net says **{outputs}**. The best line says "
    f"{slope * 0.5 + start:.1f} for all four."
)

# %% tags=["shared", "check"]
# Checked: the net answers all four sequences, the best line says one half to each
np.testing.assert_allclose(said, different, atol=1e-6)
np.testing.assert_allclose(slope * mean + start, 0.5)
_, line = plots.drawn(fig, "are the bits different?", "feed-forward net")
assert line.max() == line[50] and line[0] == line[-1] == 0


# %% [markdown] tags=["shared"]
# [Geva et al. 2021](https://arxiv.org/abs/2012.14913) found that in language models
# many of the $f$ hidden features respond to one kind of text each.

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** Two heads can do it without a feed-forward net: one
# gives both bits the same weight, the other looks sharply at a 1 if there is one.
# Compute both with `attention` (keys and values: the bits, of shape `b k 1`). Which sum
# of multiples of their outputs is right?

# %% tags=["shared", "answer"]
keys = floats(bits[:, :, None])  # b k 1
queries = [floats(np.full((4, 1, 1), number)) for number in (0.0, 12.0)]  # b 1 1
means, tops = (as_numpy(attention(q, keys, keys)[0])[:, 0, 0] for q in queries)
np.testing.assert_allclose(tops, bits.max(axis=1), atol=1e-4)
np.testing.assert_allclose(2 * tops - 2 * means, different, atol=1e-4)
say(
    "With the query 0 both scores are equal, and the head finds the mean. With the "
    "query 12 a one gets nearly all the weight, and the head finds the largest bit: "
    f"{', '.join(f'{y:.0f}' for y in tops)}. Twice the largest bit minus twice the "
    f"mean is {', '.join(f'{abs(y):.0f}' for y in 2 * tops - 2 * means)}. So two heads "
    "can compute it, but it takes sharp weights; a feed-forward net computes it from "
    "the mean alone."
)

# %% [markdown] tags=["shared"]
# ## Without residual connections the positions become indistinguishable
#
# Each time we average, the differences between the words get smaller. With a residual
# connection each position keeps what it had, and the branch only adds to it. For stacks
# of attention alone, [Dong et al. 2021](https://arxiv.org/abs/2103.03404) proved that
# the outputs of all positions become equal, faster with each layer. Gradients vanish,
# too: once all outputs are equal whatever the input, a small change of the input
# changes no difference between them.
#
# The `similarity` is the mean cosine between the outputs of two positions. For the
# gradient we need one number: we weight the outputs with random numbers, the `probe`,
# add them up, and differentiate with respect to the input. At each feature, the probe
# sums to zero over the positions, so that only *differences* between them count.


# %% tags=["shared"]
def similarity(x):
    """Mean cosine between two positions: ``b s m -> number``."""
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = x @ x.swapaxes(-1, -2)  # b s s
    s = x.shape[1]
    return (cosines.sum() / len(x) - s) / (s * (s - 1))


def whole_block(block, x):
    """The block as it is, without its weights."""
    return block(x)[0]


def without_residuals(block, x):
    """The same layers in the same order, with nothing added."""
    x = block.norm1(block.attention(x)[0])
    return block.norm2(block.ffn(x))


# %% tags=["jax"]
def input_gradient(function, x, probe):
    """Norm of the gradient of ``sum(function(x) * probe)`` with respect to ``x``."""
    gradient = jax.grad(lambda x: (function(x) * floats(probe)).sum())
    return np.linalg.norm(gradient(floats(x)))


# %% tags=["shared"]
b, s, m, n_heads, f = 4, 16, 64, 4, 128
x, probe = np.random.default_rng(1).normal(size=(2, b, s, m))
probe -= probe.mean(axis=1, keepdims=True)
depths = [1, 2, 3, 4, 6, 8, 12]
blocks = [build(EncoderBlock, m, n_heads, f, seed=i) for i in range(24)]


def through(step, depth, x):
    """The first ``depth`` blocks, each applied by ``step``: ``b s m -> b s m``."""
    for block in blocks[:depth]:
        x = step(block, x)
    return x


# %% tags=["shared"]
steps = {"without residuals": without_residuals, "with residuals": whole_block}
no_block = np.linalg.norm(probe)  # the gradient without any block
alike, gradient = {}, {}
for name, step in steps.items():
    stacks = [partial(through, step, depth) for depth in depths]
    alike[name] = [similarity(as_numpy(stack(floats(x)))) for stack in stacks]
    gradient[name] = [input_gradient(stack, x, probe) / no_block for stack in stacks]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two panels over depth from 1 to 12 blocks. Left: without residuals the similarity of positions is one from the second block on; with residuals it rises slowly. Right: without residuals the gradient drops by a factor of more than a thousand within three blocks, where the line ends; with residuals it stays level for several blocks."}}
gradient["without residuals"] = gradient["without residuals"][:3]  # then: rounding
panels = {
    "similarity of positions": {name: (depths, y) for name, y in alike.items()},
    "gradient (no block: 1)": {n: (depths[: len(y)], y) for n, y in gradient.items()},
}
fig = plots.curves(panels, x="blocks", log_y=["gradient (no block: 1)"], marks="o")
fig

# %% tags=["shared", "say"]
lost, kept = alike["without residuals"], alike["with residuals"]
faded, flows = map(np.array, gradient.values())
power = int(np.floor(np.log10(1 / faded[2])))
say(
    f"Without residual connections the similarity after three blocks is {lost[2]:.3f}, "
    f"and the gradient has shrunk by a factor of over {10**power:,}; beyond, the line "
    "would show only rounding errors. With residual connections the similarity is "
    f"**{kept[2]:.2f}** and the gradient {flows[2]:.0%} of what it is without any "
    "block. The positions still become alike, only slowly: after twelve blocks the "
    f"similarity is {kept[-1]:.2f} and the gradient {flows[-1]:.0%}."
)

# %% tags=["shared", "check"]
# Checked: residual connections keep positions apart and the gradient alive
panel = "similarity of positions"
_, line = plots.drawn(fig, panel, "without residuals")
assert line[2] > 0.999 and (line[1:] > 0.99).all()
_, line = plots.drawn(fig, panel, "with residuals")
assert line[2] < 0.1 and line[-1] > 0.2 and (np.diff(line) > 0).all()
panel = "gradient (no block: 1)"
_, line = plots.drawn(fig, panel, "without residuals")
assert len(line) == 3 and line[2] < 6e-4  # loose: initial weights differ
assert line[2] < 1e-3 * line[0]  # loose: initial weights differ
_, line = plots.drawn(fig, panel, "with residuals")
assert line[2] > 0.8 and line[-1] < 0.97

# %% [markdown] tags=["shared"]
# Step through the layers: without residual connections each of the 16 keys gets one
# sixteenth.

# %% tags=["shared"]
maps = {}
for name, step in reversed(steps.items()):
    arrived = [through(step, depth, floats(x)) for depth in range(6)]  # at each block
    found = [blocks[i].attention(y)[1] for i, y in enumerate(arrived)]  # each b h q k
    maps[name] = np.stack([as_numpy(weights)[0, :2] for weights in found])  # l h q k

# %% tags=["shared", "figure"]
viewer.attention(
    maps, about="Maps of six layers, with and without residuals", high=0.25, layer=2
)

# %% tags=["shared", "check"]
# Checked: without residual connections the maps become uniform, with them they do not
np.testing.assert_allclose(maps["without residuals"][3:], 1 / 16, atol=0.001)
assert np.ptp(maps["with residuals"], axis=-1).mean(axis=(1, 2)).min() > 0.03

# %% [markdown] tags=["shared"]
# ## Layer norm keeps every position on one scale
#
# Each block adds to the row of a position, so without a norm the numbers grow with
# depth. Scores grow with their square; then the softmax gives nearly all weight to one
# key and lets nearly no gradient through. We take the norms out of a stack of 24
# blocks:


# %% tags=["shared"]
def without_norms(block, x):
    """Both branches are added, and nothing is rescaled."""
    x = x + block.attention(x)[0]
    return x + block.ffn(x)


spread, largest = {}, {}  # at the input of each block
for name, step in {"without norms": without_norms, "with norms": whole_block}.items():
    y, spread[name], largest[name] = floats(x), [], []
    for block in blocks:
        weights = as_numpy(block.attention(y)[1])  # b h q k
        spread[name].append(as_numpy(y).std())
        largest[name].append(weights.max(axis=-1).mean())
        y = step(block, y)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two panels over 24 blocks. Left, the standard deviation of the numbers: without norms it rises steadily, with norms it stays at one. Right, the largest weight of a query: without norms it rises, with norms it stays low."}}
numbers = np.arange(1, len(blocks) + 1)
panels = {
    "standard deviation of x": {name: (numbers, y) for name, y in spread.items()},
    "largest weight of a query": {name: (numbers, y) for name, y in largest.items()},
}
fig = plots.curves(panels, x="block")
fig

# %% tags=["shared", "say"]
wild, calm = (largest[name][-1] for name in ("without norms", "with norms"))
say(
    f"Without norms the standard deviation is {spread['without norms'][-1]:.1f} at "
    f"block 24, and a query gives **{wild:.0%}** of its weight to one of 16 keys. "
    f"With norms the standard deviation stays {spread['with norms'][-1]:.1f}, and the "
    f"largest weight is {calm:.0%}."
)

# %% tags=["shared", "check"]
# Checked: without norms numbers and largest weights grow with depth, with norms not
_, line = plots.drawn(fig, "standard deviation of x", "without norms")
assert line[-1] > 2 and (np.diff(line) > 0).all()
_, line = plots.drawn(fig, "standard deviation of x", "with norms")
np.testing.assert_allclose(line, 1, atol=0.02)
_, line = plots.drawn(fig, "largest weight of a query", "without norms")
assert line[-1] > 0.3 and line[-1] > 2 * line[0]
_, line = plots.drawn(fig, "largest weight of a query", "with norms")
assert line.max() < 0.2

# %% [markdown] tags=["shared"]
# A norm brings numbers to mean 0 and variance 1, then scales and shifts them:
#
# $$\mathrm{LayerNorm}(x) =
# \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta,$$
#
# with the mean $\mu$ and the variance $\sigma^2$ of the $m$ features of one position,
# learned $\gamma$ and $\beta$ per feature, and a small $\epsilon$
# ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)). [RMS
# norm](https://arxiv.org/abs/1910.07467), common today, leaves out $\mu$ and $\beta$.
# **Batch norm**, common in vision, averages over all positions of the batch instead, so
# that an output depends on all other sentences and on their padding.


# %% tags=["shared"]
def normalise(x, axes, epsilon=1e-5):
    """Subtract the mean and divide by the standard deviation over ``axes``."""
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


layer_norm, batch_norm = partial(normalise, axes=-1), partial(normalise, axes=(0, 1))
sentences = np.random.default_rng(2).normal(1, 3, size=(3, 6, 8))  # b s m

# %% tags=["shared", "check"]
# Checked: padding in one sentence changes others through batch norm, not layer norm
padded = sentences.copy()
padded[2, 4:] = 50  # only the third sentence changes, and only its padding
layer_change = np.abs(layer_norm(padded)[:2] - layer_norm(sentences)[:2]).max()
batch_change = np.abs(batch_norm(padded)[:2] - batch_norm(sentences)[:2]).max()
assert layer_change == 0
assert batch_change > 1
own = as_numpy(build(NORMS["layer"], 8)(floats(sentences)))
np.testing.assert_allclose(own, layer_norm(sentences), atol=1e-5)

# %% tags=["shared", "check"]
# Checked: RMS norm divides by the root of the mean square, and has no shift
root = np.sqrt((sentences**2).mean(-1, keepdims=True) + 1e-5)
rms_norm = build(NORMS["rms"], 8)
np.testing.assert_allclose(
    as_numpy(rms_norm(floats(sentences))), sentences / root, 1e-5
)
assert list(to_arrays(rms_norm)) == ["weight"]

# %% [markdown] tags=["shared"]
# ## With pre-norm, late blocks get smaller gradients
#
# In 2017 the norm came after each sum, on the residual path (**post-norm**). In most
# models today it comes first inside each branch (**pre-norm**). The residual path is
# then a plain sum, which grows with depth, so the stack ends with one more norm. It
# divides by the size of the sum: the deeper the stack, the smaller the gradient of its
# last block. Early blocks get larger gradients: all later blocks read their output.
#
# [Xiong et al. 2020](https://arxiv.org/abs/2002.04745) conclude that post-norm needs
# *warm-up*, a learning rate that starts small, and that the smaller gradients of
# pre-norm allow a high rate at once. The next chapter tests it.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The encoder block with pre-norm, from top to bottom: norm1 and attention, a plus; norm2 and ffn, a plus. Each residual path starts before the norm, so it meets nothing but the two sums."}}
diagrams.encoder_block(norm_first=True)

# %% [markdown] tags=["shared"]
# The stack of blocks is the encoder; it also collects their attention weights, the
# *maps*.

# %% [markdown] tags=["jax"]
# `nnx.data` (or `nnx.List`) marks a list that holds layers.


# %% tags=["jax"]
class Encoder(nnx.Module):
    """A stack of blocks: ``b s m -> b s m``, on demand with maps ``l b h s s``."""

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, rngs, **options):
        if n_blocks < 1:
            raise ValueError(f"expected at least one block, got n_blocks = {n_blocks}")
        options = {"norm_first": norm_first, "rngs": rngs, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        make_norm = NORMS[options.get("norm", "layer")]
        self.norm = make_norm(m, rngs=rngs) if norm_first else None

    def __call__(self, x, mask=None, *, return_maps=False):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, jnp.stack(maps)) if return_maps else x


# %% [markdown] tags=["jax"]
# `nnx.grad` differentiates with respect to the parameters of a model and returns a tree
# of arrays (a **pytree**) with the structure of the model.


# %% tags=["jax"]
def layer_gradients(encoder, x, probe):
    """Norm of the gradient of each block's last matrix: ``l``."""
    gradients = nnx.grad(lambda e: (e(floats(x)) * floats(probe)).sum())(encoder)
    numbers = range(len(encoder.blocks))
    last = [gradients["blocks"][i]["ffn"]["linear2"]["kernel"][...] for i in numbers]
    return np.array([np.linalg.norm(as_numpy(matrix)) for matrix in last])


# %% tags=["shared"]
inputs, probe = np.random.default_rng(4).normal(size=(2, b, s, m))
depths = [2, 6, 12, 24]
last = {"post-norm": [], "pre-norm": []}  # gradient norm of the last block
each = {}  # and of each block
for n_blocks, name in product(depths, last):
    sizes = (n_blocks, m, n_heads, f)
    encoder = build(Encoder, *sizes, norm_first=name == "pre-norm")
    each[name] = layer_gradients(encoder, inputs, probe)  # finally: of 24 blocks
    last[name].append(each[name][-1])

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Gradient norms at initialisation, two panels. Left, each of the 24 blocks of one stack: with post-norm the line wavers about one level, with pre-norm it falls from the first to the last block. Right, the last block of stacks of 2, 6, 12 and 24 blocks: with post-norm it stays at about the same level, with pre-norm it falls with every step in depth."}}
panels = {
    "gradient of each of 24 blocks": {n: (numbers, y) for n, y in each.items()},
    "gradient of the last block": {name: (depths, y) for name, y in last.items()},
}
fig = plots.curves(panels, x=["block", "blocks in the stack"], marks="o", share_y=True)
fig.axes[0].set_ylim(bottom=0)
fig

# %% tags=["shared", "say"]
post, pre = map(np.array, last.values())
deepest, total = encoder, floats(inputs)  # pre-norm, 24 blocks
for block in deepest.blocks:
    total, _ = block(total)
growth = as_numpy(total).std() / inputs.std()
falls = {name: y[-1] / y[0] for name, y in each.items()}  # from block 1 to block 24
say(
    "In a stack of 24 blocks the gradient of the last block is "
    f"**{falls['pre-norm']:.2f}** of that of the first with pre-norm, and "
    f"{falls['post-norm']:.2f} with post-norm. From 2 to 24 blocks that of the last "
    f"falls to {pre[-1] / pre[0]:.2f} with pre-norm. Xiong et al. derive one over the "
    f"root of the depth, {np.sqrt(2 / 24):.2f} here, for branches as large as the "
    f"input. Ours are small: the sum of 24 blocks has {growth:.1f} times its spread."
)

# %% tags=["shared", "check"]
# Checked: pre-norm shrinks late gradients; post-norm keeps all above 0.6 of the largest
_, pre = plots.drawn(fig, "gradient of the last block", "pre-norm")
_, post = plots.drawn(fig, "gradient of the last block", "post-norm")
assert (np.diff(pre) < 0).all() and pre[-1] < 0.7 * pre[0]
assert (post > 0.75 * post[0]).all() and post[-1] > 1.4 * pre[-1]
_, pre = plots.drawn(fig, "gradient of each of 24 blocks", "pre-norm")
_, post = plots.drawn(fig, "gradient of each of 24 blocks", "post-norm")
assert pre[-1] < 0.6 * pre[0] and (np.diff(pre.reshape(4, 6).mean(axis=1)) < 0).all()
assert post.min() > 0.6 * post.max()

# %% tags=["shared", "check"]
# Checked: the residual path of pre-norm grows with depth, and the last norm rescales it
assert growth > 1.5
np.testing.assert_allclose(as_numpy(deepest(floats(inputs))).std(), 1, atol=1e-3)

# %% [markdown] tags=["shared"]
# ## The mask acts in every layer, and the maps come from the same pass
#
# Sentences in a batch are padded to one length. Hiding the padding in the first layer
# is not enough: the second layer would read it after all.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Where a mask acts: a padding mask, which hides a column, and a causal mask, which hides the triangle above the diagonal, are joined by and. masked_softmax turns the scores and this mask into weights, zero in every hidden cell."}}
diagrams.mask()

# %% [markdown] tags=["shared"]
# To read a model, one draws its attention weights. They must be those that made the
# output, with the mask in every layer and with dropout off.

# %% [markdown] tags=["jax"]
# Dropout is switched off in a copy, by `eval()`; the model itself stays as it was.


# %% tags=["jax"]
def attention_maps(model, x, mask=None):
    """Outputs and attention maps of one forward pass with dropout off."""
    quiet = nnx.clone(model)
    quiet.eval()
    return quiet(x, mask, return_maps=True)


# %% [markdown] tags=["shared"]
# A test: we fill the last three positions of the second sentence, its padding, with
# garbage. (Padded queries are hidden, too.) The control is an encoder that forgets the
# mask after its first layer.

# %% tags=["shared"]
encoder = build(Encoder, 2, m, n_heads, f, dropout=0.2)
x = np.random.default_rng(5).normal(size=(2, 9, m))
real = np.arange(9) < np.array([[9], [6]])  # b s
mask = (real[:, None, :] & real[:, :, None])[:, None]  # b 1 q k
garbage = np.where(real[..., None], x, 1e15)
out, maps = map(as_numpy, attention_maps(encoder, floats(x), booleans(mask)))
found = attention_maps(encoder, floats(garbage), booleans(mask))
out_garbage, maps_garbage = map(as_numpy, found)


def forgetful(encoder, x, mask):
    """A forward pass with a mistake: only the first layer gets the mask."""
    for i, block in enumerate(encoder.blocks):
        x, _ = block(x, mask if i == 0 else None)
    return as_numpy(x)


plain = build(Encoder, 2, m, n_heads, f)  # no dropout
leak = [forgetful(plain, floats(inputs), booleans(mask)) for inputs in (x, garbage)]

# %% tags=["shared", "say"]
change = np.abs(out_garbage - out)[real].max()
leaked = np.abs(leak[1] - leak[0])[real].max()
say(
    f"Garbage in the padding changes the real outputs by {change:.0f}. If the second "
    f"layer forgets the mask, it changes them by up to **{leaked:.1f}**."
)

# %% tags=["shared", "check"]
# Checked: padding has no effect on outputs and maps, unless a layer forgets the mask
check_shape(maps, "l b h q k", l=2, b=2, h=n_heads, q=9, k=9)
np.testing.assert_array_equal(out_garbage[real], out[real])
np.testing.assert_array_equal(maps_garbage, maps)
for sentence, _, query, key in np.argwhere(~mask):
    assert (maps[:, sentence, :, query, key] == 0).all()
assert leaked > 0.15

# %% tags=["shared", "check"]
# Checked: dropout is on in training, scales what it keeps, and is off in the maps
same = [as_numpy(encoder(floats(x), booleans(mask))) for _ in range(2)]
assert np.abs(same[0] - same[1]).max() > 0.7
dropped = as_numpy(encoder.blocks[0].dropout(floats(np.ones(1000))))
np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - 0.2)])
again, _ = attention_maps(encoder, floats(x), booleans(mask))
np.testing.assert_array_equal(as_numpy(again), out)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Four maps of weights for the padded sequence, two layers by two heads. In all of them the last three columns and rows are grey: hidden in every layer."}}
shown = np.where(mask[1], maps[:, 1, :2], np.nan).reshape(-1, 9, 9)  # l·h q k
titles = [f"layer {i}, head {j}" for i in range(2) for j in range(2)]
plots.heatmaps(shown, titles=titles, columns=2, high=0.5, size=(4.8, 4.2))

# %% [markdown] tags=["shared"]
# ## Sines and cosines encode the position
#
# Attention and the feed-forward net ignore order. So we add a vector to each word that
# depends on its position, the **positional encoding**. That of 2017 consists of pairs
# of features, and each pair is the hand of a clock. Fast hands tell neighbours apart,
# slow ones tell the beginning from the end.

# %% [markdown] tags=["shared"]
# $$PE_{pos,\,i} = \begin{cases}
# \sin\big(pos \,/\, 10000^{\,i/m}\big) & \text{for even } i \\
# \cos\big(pos \,/\, 10000^{\,(i-1)/m}\big) & \text{for odd } i
# \end{cases}$$
#
# with position $pos$ and feature $i$ of $m$. One turn takes $2\pi \approx 6.3$
# positions in the first pair and, for large $m$, up to $10000 \cdot 2\pi$ in the last.

# %% [markdown] tags=["jax"]
# At large positions the angle is large, and float32 has too few digits for its sine; so
# the table is made in NumPy's float64.


# %% tags=["jax"]
def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64."""
    i = np.arange(m)
    angle = np.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)  # s m
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle))


# %% tags=["shared"]
m, length = 48, 96
table = as_numpy(sinusoidal_positions(length, m))  # s m
wavelengths = 2 * np.pi * 10000 ** (np.arange(0, m, 2) / m)  # one per pair

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three rows of six clocks for the positions 0 to 5. All hands start at the top. In the first row the hand goes nearly once around, in the second it comes to a quarter turn, in the third it has hardly left the top."}}
pairs = {i: f"one turn in {wavelengths[i // 2]:.0f} positions" for i in (0, 6, 16)}
diagrams.clocks(table[:6], pairs)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Heat map of the positional encoding, 96 positions by 48 features. The first features alternate quickly along the positions; the waves get slower with each pair, and the last features keep one colour throughout."}}
plots.heatmaps(
    [table.T], x="position", y="feature i", low=-1, high=1, bar="code", size=(6, 3.4)
)

# %% tags=["shared", "check"]
# Checked: the table holds the values and wavelengths of its formula, for odd m, too
check_shape(sinusoidal_positions(7, 5), "s m", s=7, m=5)  # an odd m ends on a sine
angles = np.arctan2(table[1, ::2], table[1, 1::2])  # of one step, per pair
np.testing.assert_allclose(angles, 2 * np.pi / wavelengths)
assert wavelengths[0] == 2 * np.pi and (np.diff(wavelengths) > 0).all()
assert wavelengths[-1] < 10000 * 2 * np.pi
np.testing.assert_allclose(table[5, 6], np.sin(5 / 10000 ** (6 / 48)))
np.testing.assert_allclose(table[5, 7], np.cos(5 / 10000 ** (6 / 48)))

# %% tags=["shared", "check"]
# Checked: over 96 positions each of the last 14 features moves by less than 0.15
moves = np.ptp(table, axis=0)
assert (moves[-14:] < 0.15).all()
assert (moves[:-14].reshape(-1, 2).max(axis=1) > 0.15).all()

# %% [markdown] tags=["shared"]
# The code of position $p + t$ is the code of position $p$, rotated: in the pair of the
# features $i$ and $i + 1$ by the angle $t \,/\, 10000^{\,i/m}$ ($i$ even), for every
# $p$. So one matrix can mean "three words to the left" anywhere, and the dot product of
# two codes depends on their distance only.

# %% tags=["shared", "check"]
# Checked: a step of t positions is the same rotation everywhere
pairs = table.reshape(length, m // 2, 2)  # s i 2
for t, (pair, wavelength) in product((-3, 1, 10), enumerate(wavelengths)):
    now, then = pairs[10:-10, pair], pairs[10 + t : length - 10 + t, pair]
    turn = np.linalg.lstsq(now, then, rcond=None)[0]  # 2 2
    angle = 2 * np.pi * t / wavelength
    expected = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    np.testing.assert_allclose(now @ turn, then, atol=1e-9)
    np.testing.assert_allclose(turn, expected, atol=1e-6)
    np.testing.assert_allclose(turn @ turn.T, np.eye(2), atol=1e-6)

# %% tags=["shared", "check"]
# Checked: the product of two codes depends on the distance alone, and falls at first
products = table @ table.T / (m / 2)  # s s
for distance in range(length):
    along = np.diagonal(products, distance)
    np.testing.assert_allclose(along, along[0], atol=1e-9)
np.testing.assert_allclose(products[0, 0], 1)
assert (np.diff(products[0, :6]) < 0).all() and (products[0, 5:] < 0.75).all()
assert (np.diff(products[0, 5:]) > 0).any()  # not monotonic

# %% [markdown] tags=["shared"]
# The table is computed once and added to the input (in 2017 to $\sqrt{m}$ times the
# embedding). The alternative is a table that is **learned** like any other parameter;
# BERT has one. Such a table has a last row: a longer sequence raises an error.

# %% [markdown] tags=["jax"]
# An array is a parameter only inside an `nnx.Param`.


# %% tags=["jax"]
def check_length(x, table):
    """Raise an error if a sequence is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


# %% tags=["jax"]
class SinusoidalPositions(nnx.Module):
    """Adds the sine and cosine code of each position: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs=None):
        table = sinusoidal_positions(max_length, m)  # s m
        self.table = jnp.asarray(table, dtype=jnp.float32)

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


# %% tags=["jax"]
class LearnedPositions(nnx.Module):
    """Adds a learned vector for each position: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs):
        table = jax.random.normal(rngs.params(), (max_length, m))  # s m
        self.table = nnx.Param(0.02 * table)

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]]


POSITIONS = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "none": None,
}

# %% tags=["shared", "check"]
# Checked: only a learned table has parameters; too long a sequence raises an error
waves, learned = SinusoidalPositions(m, length), build(LearnedPositions, m, length)
zeros = floats(np.zeros((1, length, m)))
np.testing.assert_allclose(as_numpy(waves(zeros))[0], table, atol=1e-6)
assert to_arrays(waves) == {} and to_arrays(learned)["table"].shape == (length, m)
for positions in (waves, learned):
    try:
        positions(floats(np.zeros((1, length + 1, m))))
    except ValueError as error:
        assert str(error) == "97 positions, but the table has max_length = 96"
    else:
        raise AssertionError("a sequence longer than the table raised no error")

# %% [markdown] tags=["shared"]
# **Exercise 3, an open question.** In the heat map, the last 14 of the 48 features
# hardly change. Are these features wasted? Measure how far apart the closest codes are
#
# * with all features, without the last 14, and with those alone;
# * with a base below 10000. (Which one turns the slowest hand about once in 96
#   positions?)


# %% tags=["shared", "answer"]
def closest(codes):
    """Smallest distance between the codes of two positions."""
    distances = np.linalg.norm(codes[:, None] - codes, axis=-1)
    return distances[~np.eye(len(codes), dtype=bool)].min()


fast, slow = table[:, :-14], table[:, -14:]
angles = np.arange(length)[:, None] / 16 ** (np.arange(0, m, 2) / m)  # s m/2
shorter = np.hstack([np.sin(angles), np.cos(angles)])
full, without, alone, other = map(closest, (table, fast, slow, shorter))
assert without > 0.99 * full and alone < 0.005 and other > 1.3 * full
say(
    f"The closest two codes are {full:.2f} apart with all features, {without:.2f} "
    f"without the last 14 and {alone:.4f} with those alone, which say almost nothing "
    "about the position here. They are not wasted: they are nearly constant, so the "
    "word vector can use these features freely. With base 16 the slowest hand turns "
    "about once in $16 \\cdot 2\\pi \\approx 100$ positions, and the distance is "
    f"{other:.2f}."
)

# %% [markdown] tags=["shared"]
# ## The predictor maps each element to an output
#
# In front of the encoder, a linear layer brings each element to size $m$: the embedding
# of our first section. Behind it, a small network turns each vector into what is asked
# for, such as the scores of $c$ classes. Positions are optional: a *set* has none.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The predictor as a flow from top to bottom: embed, positions, which add a code to each element, the encoder with its stack of blocks, where a mask enters and maps come out, then hidden, hidden_norm, relu and output."}}
diagrams.predictor()


# %% tags=["jax"]
class Predictor(nnx.Module):
    """One output vector per element: ``b s i -> b s c``."""

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, input_dropout=0.0,
        positions="sinusoidal", max_length=512, rngs, **options,  # of the blocks
    ):  # fmt: skip
        kind = pick(POSITIONS, positions, "positions")
        input_dropout = check_rate(input_dropout, "input_dropout")
        self.input_dropout = nnx.Dropout(input_dropout, rngs=rngs)
        self.embed = dense(n_inputs, m, rngs=rngs)
        self.positions = kind(m, max_length, rngs=rngs) if kind else None
        self.encoder = Encoder(n_blocks, m, n_heads, f, rngs=rngs, **options)
        self.hidden = dense(m, m, rngs=rngs)
        self.hidden_norm = NORMS["layer"](m, rngs=rngs)
        self.dropout = nnx.Dropout(options.get("dropout", 0.0), rngs=rngs)
        self.output = dense(m, n_outputs, rngs=rngs)

    def __call__(self, x, mask=None, *, return_maps=False):
        check_input(x, self.embed.in_features)
        x = self.embed(self.input_dropout(x))  # b s m
        x = self.positions(x) if self.positions else x
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = self.dropout(jax.nn.relu(self.hidden_norm(self.hidden(x))))
        return (self.output(x), maps) if return_maps else self.output(x)  # b s c


# %% [markdown] tags=["shared"]
# Without positions the predictor is equivariant, as attention is: shuffled inputs give
# the same outputs in shuffled order.

# %% tags=["shared", "check"]
# Checked: the predictor is equivariant without positions, and only without them
x = np.random.default_rng(6).normal(size=(2, 7, 5))  # b s i
order = np.random.default_rng(7).permutation(7)
sizes = {"n_blocks": 2, "n_heads": 3, "f": 29}
moved = {}
for positions in ("none", "sinusoidal", "learned"):
    model = build(Predictor, 5, 12, 3, positions=positions, **sizes)
    out, _ = attention_maps(model, floats(x))
    shuffled, _ = attention_maps(model, floats(x[:, order]))
    check_shape(out, "b s c", b=2, s=7, c=3)
    moved[positions] = np.abs(as_numpy(shuffled) - as_numpy(out)[:, order]).max()
assert moved["none"] < 1e-5
assert min(moved["sinusoidal"], moved["learned"]) > 0.03

# %% [markdown] tags=["shared"]
# ## Both kinds of positions work within the trained length, and neither beyond
#
# [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762) hoped that sinusoids would
# work for sequences beyond the trained lengths. We try both kinds on a task that
# position alone can solve: the output at each position is the symbol three positions
# earlier.

# %% tags=["shared"]
settings = Sequences(
    length=16, n_symbols=10,  # the test goes to twice this length
    n_blocks=1, n_heads=1, m=32, f=64,  # each position has to look at one other
    n_train=6_400, batch_size=64, epochs=6,  # 600 updates: enough for both kinds
    learning_rate=3e-3, warmup=50,  # a high rate, so it rises slowly (next chapter)
)  # fmt: skip


def shifted(n, length, seed):
    """Random sequences ``b s i``; labels ``b s``: the symbols three places before."""
    x = symbols(n, length, settings.n_symbols, seed)
    before = np.maximum(np.arange(length) - 3, 0)
    return one_hot(x, settings.n_symbols), np.ascontiguousarray(x[:, before])


train = shifted(settings.n_train, settings.length, seed=0)
inputs, labels = shifted(1_000, 2 * settings.length, seed=1)

# %% tags=["shared"]
near, far, tables = {}, {}, []  # accuracy at each position, in sequences of 16 and 32
for positions in ("sinusoidal", "learned"):
    chosen = replace(settings, positions=positions)
    sizes = {**chosen.model, "max_length": 2 * settings.length}  # of the Predictor
    model = build(Predictor, seed=settings.seed, **sizes)
    tables.append(to_arrays(model).get("positions.table"))  # before training
    fit(model, cross_entropy, train, chosen, bar=False)  # with Adam: reverse chapter
    tables.append(to_arrays(model).get("positions.table"))  # and after
    for found, n in ((near, settings.length), (far, 2 * settings.length)):
        logits, _ = attention_maps(model, floats(inputs[:, :n]))  # b s c
        right = as_numpy(logits).argmax(-1) == labels[:, :n]  # b s
        found[positions] = right.mean(axis=0)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Accuracy at each position. Left, in sequences of 16: both lines are at one. Right, in sequences of 32, with the 16 trained positions shaded: the learned line is at one over the shaded part and drops at once to one tenth, the level of guessing; the sinusoidal line falls off over the last few shaded positions and then wanders between one and five tenths."}}
panels = {
    f"sequences of {n}": {name: (np.arange(n), y) for name, y in found.items()}
    for n, found in ((16, near), (32, far))
}
fig = plots.curves(panels, x="position", y="accuracy", share_y=True)
for ax in fig.axes:
    ax.set_ylim(0, 1.05)
    ax.axvspan(-0.5, settings.length - 0.5, color=plots.HIDDEN, alpha=0.4, lw=0)
fig

# %% tags=["shared", "say"]
beyond = {name: rows[settings.length :] for name, rows in far.items()}
say(
    "In sequences of 16 the accuracy is "
    f"**{near['sinusoidal'].mean():.1%}** with sinusoids and "
    f"**{near['learned'].mean():.1%}** with learned positions. In sequences of 32 it "
    f"is **{beyond['sinusoidal'].mean():.0%}** and **{beyond['learned'].mean():.0%}** "
    f"at the new positions; guessing gives {1 / settings.n_symbols:.0%}. With "
    f"sinusoids the old position 15 has {far['sinusoidal'][15]:.0%}. It sees the same "
    "16 symbols as before, so what it loses goes to the 16 new keys on its right."
)

# %% [markdown] tags=["shared"]
# Training never reached the last 16 rows of the learned table: they are still random.
# Sinusoids have values there, but their slow hands reach angles that the layers have
# never seen. Many models for long texts put the *distance* of two positions into the
# scores instead: [RoPE](https://arxiv.org/abs/2104.09864), for example in
# [LLaMA](https://arxiv.org/abs/2302.13971), or
# [ALiBi](https://arxiv.org/abs/2108.12409).

# %% tags=["shared", "check"]
# Checked: both kinds of positions work within the trained length, and neither beyond
for name in near:
    assert near[name].mean() > 0.995
    _, line = plots.drawn(fig, "sequences of 16", name)
    assert line.min() > 0.95
    _, line = plots.drawn(fig, "sequences of 32", name)
    assert line[:16].mean() > 0.93
    assert 0.05 < line[16:].mean() < 0.4

# %% tags=["shared", "check"]
# Checked: training leaves the rows of positions that it never reached as they were
_, _, before, after = tables
np.testing.assert_array_equal(after[16:], before[16:])
assert np.abs(after[:16] - before[:16]).max(axis=1).min() > 0.15

# %% [markdown] tags=["shared"]
# ## Your framework has these parts, too
#
# In your own code, start from ready-made parts. Here is pre-norm for sentences with
# padding: `real`, of shape `b s`, is True at real positions.

# %% [markdown] tags=["jax"]
# Flax has attention, norms and linear layers; the block is yours to write, as on this
# page. Its mask has the same meaning as ours: True may look.

# %% tags=["jax"]
rngs = nnx.Rngs(0)
attend = nnx.MultiHeadAttention(num_heads=3, in_features=12, decode=False, rngs=rngs)
norm1, norm2 = nnx.LayerNorm(12, rngs=rngs), nnx.LayerNorm(12, rngs=rngs)
widen, narrow = nnx.Linear(12, 48, rngs=rngs), nnx.Linear(48, 12, rngs=rngs)


def ready_made(x, real):
    """One pre-norm block, without the norm at the end: ``b s m -> b s m``."""
    x = x + attend(norm1(x), mask=real[:, None, None, :])  # b 1 1 k
    return x + narrow(jax.nn.gelu(widen(norm2(x))))


# %% tags=["shared", "check"]
# Checked: in the framework's own encoder, too, padding does not change real positions
x = np.random.default_rng(5).normal(size=(2, 9, 12))  # b s m
real = np.arange(9) < np.array([[9], [6]])  # b s
garbage = np.where(real[..., None], x, 100)
outs = [as_numpy(ready_made(floats(y), booleans(real))) for y in (x, garbage)]
np.testing.assert_allclose(outs[0][real], outs[1][real], atol=1e-5)
unmasked = as_numpy(ready_made(floats(garbage), booleans(np.ones((2, 9), bool))))
assert np.abs(unmasked - outs[0])[real].max() > 0.18

# %% [markdown] tags=["jax"]
# Both frameworks read the same file of weights.

# %% tags=["shared", "check"]
# Checked: weights from a file give the outputs of the NumPy reference, as in the twin
draw = np.random.default_rng(10).normal
encoder = build(Encoder, 2, 12, 3, 29, norm_first=True)
x = np.random.default_rng(8).normal(size=(2, 7, 12))  # b s m
drawn = {n: draw(0, 0.3, a.shape) for n, a in sorted(to_arrays(encoder).items())}
from_arrays(encoder, drawn)
out = as_numpy(attention_maps(encoder, floats(x))[0])
expected, _ = reference.encoder(x, drawn, 2, 3, norm_first=True)
np.testing.assert_allclose(out, expected, atol=1e-5)
folder = Path(tempfile.mkdtemp())
save_weights(encoder, folder / "encoder.safetensors")
copy = build(Encoder, 2, 12, 3, 29, norm_first=True, seed=1)
load_weights(copy, folder / "encoder.safetensors")
np.testing.assert_array_equal(as_numpy(attention_maps(copy, floats(x))[0]), out)

# %% tags=["jax", "check"]
# Checked: both blocks agree with the NumPy reference under a causal mask
causal = np.tril(np.ones((7, 7), bool))
for norm_first in (False, True):
    options = {"norm_first": norm_first, "activation": "gelu"}
    block = build(EncoderBlock, 12, 3, 29, **options)
    params = {name: draw(0, 0.3, a.shape) for name, a in to_arrays(block).items()}
    from_arrays(block, params)
    ours, _ = block(floats(x), booleans(causal))
    theirs, _ = reference.encoder_block(x, params, 3, causal, **options)
    np.testing.assert_allclose(as_numpy(ours), theirs, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * A second layer can look for what the first found.
# * Attention mixes positions; the feed-forward net computes something new at each one.
# * Residual connections keep positions distinct and gradients alive for longer; norms
#   keep the numbers on one scale.
# * With pre-norm, late blocks get smaller gradients, which makes a high learning rate
#   less dangerous at the start.
# * The mask acts in every layer.
# * Positions are added; neither kind is reliable beyond the trained lengths.

# %% [markdown] tags=["jax"]
# Next comes [warm-up, in JAX](warmup_jax.ipynb): how to train such a stack.
