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
# what each of its parts is for, read its attention maps, give it the order of the
# words, and move its weights between frameworks. You need: the attention chapter, and
# the idea of a gradient.
#
# *Anna's brother is Ben. Ben lives in Rome.* Where does Anna's brother live? You look
# twice: first for Anna's brother, then for Ben, and the second search needs the result
# of the first. One attention layer looks only once: it makes all its queries from the
# words as they came in. To look for what was found, a model needs a second layer.
#
# Stacking brings new problems. Layers only average; something must compute with the
# averages. Many averages make all words alike. Gradients must pass through all layers.
# And no layer knows the order of the words. The **encoder** of
# [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762) has one part for each problem.
# We build it, and measure what happens without each part.

# %% [markdown] tags=["jax"]
# This page uses **JAX**, with Flax NNX for layers. The same page in PyTorch:
# [encoder_torch](encoder_torch.ipynb).

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
from functools import partial, reduce
from itertools import product
from pathlib import Path

import numpy as np

from helpers import diagrams, plots, reference, viewer
from helpers.prose import say, word
from helpers.sequences import one_hot, symbols
from helpers.settings import Sequences
from helpers.shapes import as_numpy, check_shape
from helpers.weights import from_arrays, load_weights, save_weights, to_arrays

plots.use_style()

# %% tags=["jax"]
import jax
import jax.numpy as jnp
from flax import nnx

# Built in the attention chapter:
from helpers.model_jax import MultiHeadAttention, build, check_input, dense

# A training loop, used once near the end:
from helpers.train_jax import cross_entropy, fit

jax.config.update("jax_default_matmul_precision", "highest")
floats = partial(jnp.asarray, dtype=jnp.float32)
booleans = partial(jnp.asarray, dtype=jnp.bool_)
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## The second layer can look for what the first one found
#
# In one attention layer the score of two words depends on these two alone. In a second
# layer, queries and keys are made from outputs of the first, which contain parts of the
# whole sentence.
#
# We put two layers in a row, replace the *last* word, and watch how strongly word 0
# prefers word 1 to word 2: the ratio of its two weights.

# %% tags=["shared"]
b, s, m, n_heads = 2, 7, 24, 4
first, second = (build(MultiHeadAttention, m, n_heads, seed=i) for i in range(2))


def preference(x):
    """How much word 0 prefers word 1 to word 2, in layers 0 and 1: each ``b h``."""
    out, weights = first(floats(x))
    layers = as_numpy(weights), as_numpy(second(out)[1])  # each b h q k
    return [w[:, :, 0, 1] / w[:, :, 0, 2] for w in layers]


x = np.random.default_rng(0).normal(scale=4, size=(b, s, m))  # 4: sharper weights
replaced = x.copy()
replaced[:, -1] = np.random.default_rng(1).normal(scale=4, size=(b, m))
pairs = zip(preference(replaced), preference(x), strict=True)
shift = [np.abs(after / before - 1).max() for after, before in pairs]

# %% tags=["shared", "say"]
say(
    f"With another last word, the preference changes by {shift[0]:.0e} in the first "
    f"layer, which is rounding, and by up to **{shift[1]:.0%}** in the second."
)

# %% tags=["shared", "check"]
# Checked: a third word changes a preference in the second layer, not in the first
assert shift[0] < 1e-5
assert shift[1] > 0.1  # loose: other weights in the twin shift it less

# %% [markdown] tags=["shared"]
# ## A block mixes positions, then works on each one alone
#
# Attention moves information between positions, but only averages it. To compute
# something new, a small network of two linear layers follows, the **feed-forward net**,
# applied to every position separately with the same weights. These are the two
# **branches** of a block. The output of each branch is *added* to its input (a
# **residual connection**), and the sum is brought back to a common scale (a **norm**).

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The encoder block as a flow from top to bottom: attention, a plus where the input is added again, norm1; then ffn, which treats each position alone, a plus, norm2. A residual path leads around attention and another around ffn. A mask enters attention, its weights come out."}}
diagrams.encoder_block()

# %% [markdown] tags=["shared"]
# $$\begin{aligned}
# x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{MultiHead}(x)\big) \\
# x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{FFN}(x)\big) \\
# \mathrm{FFN}(x) &= \max(0,\, xW_1 + b_1)\, W_2 + b_2
# \end{aligned}$$
#
# Here $x$ has one row of $m$ features per position. $W_1$ widens them to $f$, usually
# two to eight times as many, and $W_2$ brings them back; $b_1$ and $b_2$ are biases.
# The activation $\max(0, \cdot)$ is the ReLU; GELU is a smooth version. In training,
# **dropout** zeroes a random share of the hidden layer and of both branches' outputs
# and scales up the rest, so that the model does not rely on single features.

# %% [markdown] tags=["jax"]
# NNX's own defaults are $10^{-6}$ in a norm and an approximate GELU. We set $10^{-5}$
# and the exact one, as in PyTorch, and a more precise variance.

# %% tags=["jax"]
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}
EXACT = {"epsilon": 1e-5, "use_fast_variance": False}
NORMS = {"layer": partial(nnx.LayerNorm, **EXACT), "rms": partial(nnx.RMSNorm, **EXACT)}


# %% tags=["jax"]
class FeedForward(nnx.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``."""

    def __init__(self, m, f, *, dropout=0.0, activation="relu", rngs):
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is not in {list(ACTIVATIONS)}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout {dropout} is not in [0, 1)")
        self.activation = ACTIVATIONS[activation]
        self.linear1 = dense(m, f, rngs=rngs)
        self.linear2 = dense(f, m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


# %% [markdown] tags=["shared"]
# The block also returns its attention weights. `norm_first=True` puts the norm before
# each branch, for a later section.


# %% tags=["jax"]
class EncoderBlock(nnx.Module):
    """Attention, then feed-forward, each with residual and norm: ``b s m -> b s m``."""

    def __init__(
        self, m, n_heads, f, *, dropout=0.0, activation="relu", norm="layer",
        norm_first=False, rngs,
    ):  # fmt: skip
        if norm not in NORMS:
            raise ValueError(f"norm {norm!r} is not in {list(NORMS)}")
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(m, n_heads, rngs=rngs)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation, rngs=rngs)
        self.norm1 = NORMS[norm](m, rngs=rngs)
        self.norm2 = NORMS[norm](m, rngs=rngs)
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
# Our sizes are small and all different, so that a swapped axis raises an error. The
# encoder of 2017 has 6 blocks, $m = 512$, 8 heads, $f = 2048$;
# [BERT-base](https://arxiv.org/abs/1810.04805) has 12 blocks, $m = 768$, 12 heads,
# $f = 3072$. Both have $f = 4m$ and heads of 64 features: try these ratios first, with
# two to four blocks.

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
# Checked: the feed-forward net gives a position the same output alone or in company
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
# ## Without residual connections the positions become indistinguishable
#
# Attention is a mean, and the mean of means loses what set its parts apart. A residual
# connection lets each position keep what it had; the branch only adds what is missing.
# [Dong et al. 2021](https://arxiv.org/abs/2103.03404) proved for stacks of attention
# alone that the outputs of all positions become equal, faster with each layer.
# Gradients suffer, too: if all positions look alike, almost no change of an input makes
# a difference between them.

# %% [markdown] tags=["shared"]
# We measure two numbers. The first is the mean cosine between the outputs $x_i$, $x_j$
# of two of the $s$ positions,
#
# $$\mathrm{similarity} = \frac{1}{s(s-1)} \sum_{i \ne j}
# \frac{x_i \cdot x_j}{\lVert x_i \rVert\, \lVert x_j \rVert}.$$
#
# It is one if all outputs point the same way. The second is a gradient norm: we add up
# the outputs with random coefficients, the `probe`, that sum to zero over the
# positions, and differentiate with respect to the input.


# %% tags=["shared"]
def similarity(x):
    """Mean cosine between two positions: ``b s m -> number``."""
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = x @ x.swapaxes(-1, -2)  # b s s
    s = x.shape[1]
    return (cosines.sum() / len(x) - s) / (s * (s - 1))


def without_residuals(block, x):
    """The same layers in the same order, with nothing added."""
    x = block.norm1(block.attention(x)[0])
    return block.norm2(block.ffn(x))


def with_residuals(block, x):
    """The block as it is, without its weights."""
    return block(x)[0]


# %% [markdown] tags=["jax"]
# `jax.grad` makes a new function that computes the gradient with respect to the first
# argument.


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
blocks = [build(EncoderBlock, m, n_heads, f, seed=i) for i in range(max(depths))]


def stack(step, depth):
    """The first ``depth`` blocks as one function, each applied by ``step``."""
    return lambda y: reduce(lambda y, block: step(block, y), blocks[:depth], y)


alike, gradient = {}, {}
for step in (without_residuals, with_residuals):
    name, stacks = step.__name__.replace("_", " "), [stack(step, n) for n in depths]
    alike[name] = [similarity(as_numpy(forward(floats(x)))) for forward in stacks]
    gradient[name] = [input_gradient(forward, x, probe) for forward in stacks]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two panels over depth from 1 to 12 blocks. Left: without residuals the similarity of positions is one from the second block on; with residuals it rises slowly. Right: without residuals the gradient drops by a factor of more than a thousand within four blocks; with residuals it stays level for several blocks."}}
panels = {
    "similarity of positions": {name: (depths, y) for name, y in alike.items()},
    "gradient of differences": {name: (depths, y) for name, y in gradient.items()},
}
fig = plots.curves(panels, x="blocks", log_y=["gradient of differences"], marks="o")
fig

# %% tags=["shared", "say"]
start = np.linalg.norm(probe)  # the gradient without any block
lost, kept = alike["without residuals"], alike["with residuals"]
faded, flows = (np.array(rows) / start for rows in gradient.values())
say(
    f"After three blocks without residual connections the similarity is {lost[2]:.3f} "
    f"and one part in {1 / faded[2]:,.0f} of the gradient is left; with them it is "
    f"**{kept[2]:.2f}** and {flows[2]:.0%}. They slow the decline but do not stop it: "
    f"after twelve blocks it is {kept[-1]:.2f} and {flows[-1]:.0%}."
)

# %% tags=["shared", "check"]
# Checked: residual connections keep positions apart and the gradient alive
panel = "similarity of positions"
_, line = plots.drawn(fig, panel, "without residuals")
assert line[2] > 0.999 and (line[1:] > 0.99).all()
_, line = plots.drawn(fig, panel, "with residuals")
assert line[2] < 0.1 and line[-1] > 0.2 and (np.diff(line) > 0).all()
panel = "gradient of differences"
_, line = plots.drawn(fig, panel, "without residuals")
assert line[2] < 6e-4 * start  # loose: initial weights differ
assert line[3] < 1e-3 * line[0]  # loose: what is left is rounding
_, line = plots.drawn(fig, panel, "with residuals")
assert line[2] > 0.8 * start and line[-1] < 0.97 * start

# %% [markdown] tags=["shared"]
# The attention maps show the same. Step through the layers: with residual connections
# the rows differ; without them each of the 16 keys gets one sixteenth.

# %% tags=["shared"]
maps = {}
for step in (with_residuals, without_residuals):
    arrived = [stack(step, n)(floats(x)) for n in range(6)]  # at each block
    pairs = zip(blocks, arrived, strict=False)
    found = [as_numpy(block.attention(y)[1])[0, :2] for block, y in pairs]
    maps[step.__name__.replace("_", " ")] = np.stack(found)  # l h q k

# %% tags=["shared", "figure"]
viewer.attention(
    maps, about="Maps of six layers, with and without residuals", high=0.25, layer=2
)

# %% tags=["shared", "check"]
# Checked: without residual connections the maps become uniform, with them they do not
np.testing.assert_allclose(maps["without residuals"][3:], 1 / 16, atol=0.001)
assert np.ptp(maps["with residuals"], axis=-1).mean(axis=(1, 2)).min() > 0.03

# %% [markdown] tags=["shared"]
# ## Layer norm looks at one position only
#
# A norm brings numbers to mean 0 and variance 1. **Batch norm**, common in vision,
# takes both from each feature over the whole batch, in training. The output for one
# sentence then depends on the padding and the outliers of all others. **Layer norm**
# takes both over the features of one position; nothing else enters.

# %% [markdown] tags=["shared"]
# $$\mathrm{LayerNorm}(x) =
# \gamma\,\frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta,$$
#
# with the mean $\mu$ and the variance $\sigma^2$ of the $m$ features of one position, a
# learned scale $\gamma$ and shift $\beta$ per feature, and a small $\epsilon$ against
# division by zero ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).


# %% tags=["shared"]
def normalise(x, axes, epsilon=1e-5):
    """Subtract the mean and divide by the standard deviation over ``axes``."""
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


layer_norm, batch_norm = partial(normalise, axes=-1), partial(normalise, axes=(0, 1))
x = np.random.default_rng(2).normal(1, 3, size=(3, 6, 8))  # b s m
padded = x.copy()
padded[2, 4:] = 50  # only the third sequence changes, and only its padding
layer_change = np.abs(layer_norm(padded)[:2] - layer_norm(x)[:2]).max()
batch_change = np.abs(batch_norm(padded)[:2] - batch_norm(x)[:2]).max()

# %% tags=["shared", "say"]
say(
    f"The first two outputs change by up to **{batch_change:.1f}** with batch norm, "
    f"and by {layer_change:.0f} with layer norm."
)

# %% tags=["shared", "check"]
# Checked: padding in one sequence changes others through batch norm, not layer norm
assert layer_change == 0
assert batch_change > 1
own = as_numpy(build(NORMS["layer"], 8)(floats(x)))
np.testing.assert_allclose(own, layer_norm(x), atol=1e-5)

# %% [markdown] tags=["shared"]
# How much does the output for *one* sequence vary when the others in its batch are
# drawn again, with normal or with heavy tails (Student's $t$, two degrees of freedom)?

# %% tags=["shared"]
rng = np.random.default_rng(3)
draws = {
    "normal": rng.standard_normal,
    "heavy tails": lambda size: rng.standard_t(2, size),
}
sizes, one = [2, 4, 8, 16, 32, 64], rng.standard_normal((1, 6, 8))
spread = {}
for tail, draw in draws.items():
    for kind, norm in {"batch": batch_norm, "layer": layer_norm}.items():
        rows = spread[f"{kind} norm, {tail}"] = []
        for size in sizes:
            others = [draw(size=(size - 1, 6, 8)) for _ in range(50)]
            outs = [norm(np.concatenate([one, other]))[0] for other in others]
            rows.append(np.std(outs, axis=0).mean())
calm, wild = (np.array(spread[f"batch norm, {tail}"]) for tail in draws)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Spread of the output for one sequence over the size of the batch. Batch norm varies, most in small batches and more with heavy tails; layer norm does not vary at all."}}
panels = {"spread of one output": {name: (sizes, y) for name, y in spread.items()}}
fig = plots.curves(panels, x="batch size b", log_x=2, marks="o", size=(5, 3.2))
fig

# %% tags=["shared", "say"]
say(
    "With layer norm the output does not vary at all. With batch norm it does, in "
    f"batches of two **{calm[0] / calm[-1]:.1f} times** as much as in batches of 64. "
    f"With heavy tails the spread is {word('larger', wild, calm)} at every size."
)

# %% tags=["shared", "check"]
# Checked: batch norm varies, more in small batches and with heavy tails; layer norm not
for tail in draws:
    _, line = plots.drawn(fig, "spread of one output", f"layer norm, {tail}")
    np.testing.assert_allclose(line, 0, atol=1e-12)
_, calm = plots.drawn(fig, "spread of one output", "batch norm, normal")
_, wild = plots.drawn(fig, "spread of one output", "batch norm, heavy tails")
assert calm[0] > 2 * calm[-1] and wild[0] > 2 * wild[-1]
assert calm[0] == calm.max() and wild[0] == wild.max() and (wild > calm).all()

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** [RMS norm](https://arxiv.org/abs/1910.07467) has
# neither mean nor shift: it divides by the root of the mean square. Which parameters
# does a block with RMS norm lack, and how many numbers is that for $m = 12$? Predict,
# then add `norm="rms"` where the first block was built.

# %% tags=["shared", "answer"]
full, rms = (to_arrays(build(EncoderBlock, 12, 3, 29, norm=n)) for n in NORMS)
gone = sorted(set(full) - set(rms))
assert gone == ["norm1.bias", "norm2.bias"]
say(
    f"The two shifts are gone, {' and '.join(f'`{name}`' for name in gone)}: one "
    f"number per feature in each, {sum(full[name].size for name in gone)} in all."
)

# %% [markdown] tags=["shared"]
# ## Pre-norm keeps the gradients of the last blocks small
#
# In 2017 the norm stood *on* the residual path, after each sum (**post-norm**). It
# rescales every sum, so the last branch is as large a part of the output in a deep
# stack as in a shallow one, and so is its gradient. In most models today the norm
# stands *inside* the branch (**pre-norm**). The residual path is then a plain sum, and
# the share of each block shrinks with depth.
# [Xiong et al. 2020](https://arxiv.org/abs/2002.04745) conclude that this is why
# post-norm needs a warm-up of the learning rate and pre-norm does not.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The encoder block with pre-norm, from top to bottom: norm1 and attention, a plus; norm2 and ffn, a plus. Each residual path starts before the norm, so it meets nothing but the two sums."}}
diagrams.encoder_block(norm_first=True)

# %% [markdown] tags=["shared"]
# $$\begin{aligned}
# \text{post: } x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{branch}(x)\big) \\
# \text{pre: } x &\leftarrow x + \mathrm{branch}\big(\mathrm{LayerNorm}(x)\big)
# \end{aligned}$$
#
# With pre-norm nothing rescales the sum, which grows with depth; so the stack ends with
# one more norm. The stack of blocks is the encoder. It also collects the maps of its
# blocks.

# %% [markdown] tags=["jax"]
# A module finds the layers among its attributes, but not those in a plain list: Flax
# raises an error there since version 0.12. `nnx.data` marks the list as one that holds
# layers.


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
x, probe = np.random.default_rng(4).normal(size=(2, b, s, m))
gradients = {"post-norm": {}, "pre-norm": {}}
for n_blocks in (2, 6, 12, 24):
    for name, rows in gradients.items():
        sizes = (n_blocks, m, n_heads, f)
        encoder = build(Encoder, *sizes, norm_first=name == "pre-norm")
        rows[n_blocks] = layer_gradients(encoder, x, probe)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Gradient norm of each block at initialisation for stacks of 2, 6, 12 and 24 blocks. Post-norm: the last blocks have large gradients in every stack. Pre-norm: the deeper the stack, the smaller the gradients of the last blocks."}}
panels = {
    name: {f"{n} blocks": (np.arange(1, n + 1), y) for n, y in rows.items()}
    for name, rows in gradients.items()
}
options = {"log_y": True, "share_y": True, "marks": "."}
fig = plots.curves(panels, x="block", y="gradient norm", **options)
fig

# %% tags=["shared", "say"]
post, pre = (np.array([y[-1] for y in rows.values()]) for rows in gradients.values())
deepest, total = encoder, floats(x)  # pre-norm, 24 blocks
for block in deepest.blocks:
    total, _ = block(total)
growth = as_numpy(total).std() / x.std()
say(
    f"From 2 to 24 blocks the last gradient changes by a factor of "
    f"**{pre[-1] / pre[0]:.2f}** with pre-norm and of {post[-1] / post[0]:.2f} with "
    f"post-norm, where it is then **{post[-1] / pre[-1]:.1f} times** as large. The sum "
    f"on the residual path of pre-norm has {growth:.1f} times the spread of its input."
)

# %% tags=["shared", "check"]
# Checked: with depth, the last gradient shrinks with pre-norm, not with post-norm
ends = {name: [] for name in gradients}
for name, n in product(gradients, (2, 6, 12, 24)):
    _, line = plots.drawn(fig, name, f"{n} blocks")
    ends[name].append(line[-1])
post, pre = map(np.array, ends.values())
assert (np.diff(pre) < 0).all() and pre[-1] < 0.7 * pre[0]
assert (post > 0.75 * post[0]).all() and post[-1] > 1.4 * pre[-1]

# %% tags=["shared", "check"]
# Checked: the residual path of pre-norm grows with depth, and the last norm rescales it
assert growth > 1.5
np.testing.assert_allclose(as_numpy(deepest(floats(x))).std(), 1, atol=1e-3)

# %% [markdown] tags=["shared"]
# ## The mask acts in every layer, and the maps come from the same pass
#
# Sentences in a batch are padded to one length. Hiding the padding in the first layer
# is not enough: the second layer would read it after all.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Where a mask acts: a padding mask, which hides a column, and a causal mask, which hides the triangle above the diagonal, are joined by and. masked_softmax turns the scores and this mask into weights, zero in every hidden cell."}}
diagrams.mask()

# %% [markdown] tags=["shared"]
# To read a model, one draws its attention weights. They must be those that made the
# output: with the mask in every layer and with dropout off. Our encoder returns both
# from one pass.

# %% [markdown] tags=["jax"]
# Dropout is switched off in a copy: `eval()` sets `deterministic` in every layer of it
# that has dropout. The model itself stays as it was.


# %% tags=["jax"]
def attention_maps(model, x, mask=None):
    """Outputs and attention maps of one forward pass with dropout off."""
    quiet = nnx.clone(model)
    quiet.eval()
    return quiet(x, mask, return_maps=True)


# %% [markdown] tags=["shared"]
# The test: garbage in the last three positions of the second sequence, which are
# padding. The outputs of the real positions must stay the same to the last bit. The
# control is an encoder that forgets the mask after its first layer.

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
# Grey cells are hidden, in the second layer as in the first. What a mask hides must
# stay finite, though: above $10^{19}$ a square overflows in float32, and
# $0 \cdot \mathrm{NaN}$ is NaN.

# %% [markdown] tags=["shared"]
# ## Sines and cosines encode the position
#
# Attention ignores order, and so does a feed-forward net. So we add to the vector of
# each word one that depends on where it stands, its **positional encoding**. That of
# 2017 consists of waves: fast ones tell neighbours apart, slow ones tell the beginning
# from the end, like the last and the first digits of a number.

# %% [markdown] tags=["shared"]
# $$PE_{pos,\,i} = \begin{cases}
# \sin\big(pos \,/\, 10000^{\,i/m}\big) & \text{for even } i \\
# \cos\big(pos \,/\, 10000^{\,(i-1)/m}\big) & \text{for odd } i
# \end{cases}$$
#
# with position $pos$ and feature $i$ of $m$. Each pair of features is the hand of a
# clock. One turn takes $2\pi \approx 6.3$ positions in the first pair and almost
# $10000 \cdot 2\pi$ in the last.

# %% [markdown] tags=["jax"]
# JAX computes in float32, too coarse for the angle of a far position. So the table is
# made once, in NumPy's float64.


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
# Why waves? One step turns every hand by a fixed angle, so the code $t$ positions on is
# a rotation of the code here, by $t \,/\, 10000^{\,i/m}$ in each pair, wherever *here*
# is. One matrix can mean "three words to the left" anywhere in a sentence. And the dot
# product of two codes depends only on their distance. We divide it by $m/2$, the number
# of pairs: since $\sin^2 + \cos^2 = 1$ in each, a code's product with itself is then
# one.

# %% tags=["shared", "check"]
# Checked: a step of t is the same rotation everywhere, found by least squares
pairs = table.reshape(length, m // 2, 2)  # s i 2
for t, (pair, wavelength) in product((-3, 1, 10), enumerate(wavelengths)):
    now, then = pairs[10:-10, pair], pairs[10 + t : length - 10 + t, pair]
    turn = np.linalg.lstsq(now, then, rcond=None)[0]  # 2 2
    angle = 2 * np.pi * t / wavelength
    expected = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    np.testing.assert_allclose(now @ turn, then, atol=1e-9)
    np.testing.assert_allclose(turn, expected, atol=1e-6)
    np.testing.assert_allclose(turn @ turn.T, np.eye(2), atol=1e-6)

# %% tags=["shared"]
products = table @ table.T / (m / 2)  # s s

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Four panels. Features 0 and 1 over 25 positions, a sine and a cosine; features 2 and 3, the same waves stretched out; the wavelength of each pair, rising evenly on a logarithmic scale; the product of two codes over their distance, one at distance zero, then falling with small waves."}}
near, pair_numbers = np.arange(25), np.arange(0, m, 2)
panels = {
    "features 0 and 1": {f"i = {i}": (near, table[near, i]) for i in (0, 1)},
    "features 2 and 3": {f"i = {i}": (near, table[near, i]) for i in (2, 3)},
    "wavelength of feature i": {"": (pair_numbers, wavelengths)},
    "product of two codes": {"": (np.arange(length), products[0])},
}
x_names = ["position", "position", "feature i", "distance"]
plots.curves(panels, x=x_names, log_y=["wavelength of feature i"], columns=2)

# %% tags=["shared", "say"]
say(
    "The product is one at distance zero, falls over the first five steps "
    f"to {products[0, 5]:.2f}, and is at most {products[0, 6:].max():.2f} beyond: near "
    f"positions are {word('more', products[0, :5].min(), products[0, 6:].max())} alike "
    "than far ones."
)

# %% tags=["shared", "check"]
# Checked: the product of two codes depends on their distance alone, and falls with it
for distance in range(length):
    along = np.diagonal(products, distance)
    np.testing.assert_allclose(along, along[0], atol=1e-9)
np.testing.assert_allclose(products[0, 0], 1)
assert (np.diff(products[0, :6]) < 0).all() and (products[0, 5:] < 0.75).all()

# %% [markdown] tags=["shared"]
# A model computes the table once and adds it to the input. The alternative is a table
# that is **learned** like any other parameter; BERT has one. Sinusoids have a value for
# every position; a learned table ends. A sequence longer than the table raises an
# error.

# %% [markdown] tags=["jax"]
# An array is a parameter only inside an `nnx.Param`. The learned table starts with
# small numbers, so as not to drown the input.


# %% tags=["jax"]
class SinusoidalPositions(nnx.Module):
    """Adds the sine and cosine code of each position: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs=None):
        table = sinusoidal_positions(max_length, m)  # s m
        self.table = jnp.asarray(table, dtype=jnp.float32)

    def __call__(self, x):
        s, longest = x.shape[1], self.table.shape[0]
        if s > longest:
            raise ValueError(f"{s} positions, but the table has max_length = {longest}")
        return x + self.table[:s].astype(x.dtype)


# %% tags=["jax"]
class LearnedPositions(nnx.Module):
    """Adds a learned vector for each position: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs):
        table = jax.random.normal(rngs.params(), (max_length, m))  # s m
        self.table = nnx.Param(0.02 * table)

    def __call__(self, x):
        s, longest = x.shape[1], self.table.shape[0]
        if s > longest:
            raise ValueError(f"{s} positions, but the table has max_length = {longest}")
        return x + self.table[:s]


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
# hardly change. Are they wasted? What would you change if no sequence were longer than
# 96? Try this: how far apart are the two closest codes, with all features, without the
# last 14, with those alone, and with a smaller number in place of 10000?


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
    "about the position here. They are not wasted: what the word adds to these "
    f"features stays undisturbed. With 16 in place of 10000 it is {other:.2f}."
)

# %% [markdown] tags=["shared"]
# ## The predictor maps each element to an output
#
# For a task, the encoder needs two ends: a linear layer that brings each element to
# size $m$, and a small network that turns each vector into what is asked for, such as
# the scores of $c$ classes. Positions are optional: a *set* has none.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The predictor as a flow from top to bottom: embed, positions, which add a code to each element, the encoder with its stack of blocks, where a mask enters and maps come out, then hidden, hidden_norm, relu and output."}}
diagrams.predictor()


# %% tags=["jax"]
class Predictor(nnx.Module):
    """One output vector per element: ``b s i -> b s c``."""

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, input_dropout=0.0,
        positions="sinusoidal", max_length=512, rngs, **options,
    ):  # fmt: skip
        if positions not in POSITIONS:
            raise ValueError(f"positions {positions!r} is not in {list(POSITIONS)}")
        if not 0 <= input_dropout < 1:
            raise ValueError(f"input_dropout {input_dropout} is not in [0, 1)")
        kind = POSITIONS[positions]
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
# the same outputs in shuffled order. With positions of either kind it is not.

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
# For *one* output per sequence, put an extra element in front, often called `[CLS]`,
# with a learned vector of its own, and read only its output. Without positions this
# output is *invariant*: it depends on every other element, but not on their order.

# %% tags=["shared"]
encoder = build(Encoder, 2, 12, 3, 29)
x = np.random.default_rng(8).normal(size=(2, 7, 12))  # b s m
cls = np.random.default_rng(9).normal(size=(1, 1, 12)).repeat(2, axis=0)  # b 1 m


def read_cls(x):
    """Output of the extra element: ``b s m -> b m``."""
    with_cls = floats(np.concatenate([cls, x], axis=1))  # b 1+s m
    return as_numpy(attention_maps(encoder, with_cls)[0])[:, 0]


# %% tags=["shared", "check"]
# Checked: the output of [CLS] ignores the order of the others, and needs each of them
np.testing.assert_allclose(read_cls(x[:, order]), read_cls(x), atol=1e-5)
erased = [np.where(np.arange(7)[:, None] == i, 0, x) for i in range(7)]
changes = [np.abs(read_cls(y) - read_cls(x)).max() for y in erased]
assert min(changes) > 0.03  # loose: other weights in the twin

# %% [markdown] tags=["shared"]
# ## Both kinds of positions work within the trained length, and neither beyond
#
# [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762) got nearly the same results
# with both kinds, and chose sinusoids in the hope that a model could read longer
# sequences than in its training. We try both on a small task in which only the position
# helps: every place names the symbol three places before it (the first three name the
# first symbol). Training sequences have 16 symbols, test sequences 16 or 32.

# %% tags=["shared"]
settings = Sequences(
    length=16, n_symbols=10,  # the test goes to twice this length
    n_blocks=1, n_heads=1, m=32, f=64,  # one look-up per place: one block, one head
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

# %% [markdown] tags=["shared"]
# `fit` minimises the cross-entropy with Adam (the reverse chapter opens it up). The
# learned table has 32 rows, of which the training reaches 16.

# %% tags=["shared"]
near, far = {}, {}  # accuracy at each position, in sequences of 16 and of 32
for positions in ("sinusoidal", "learned"):
    chosen = replace(settings, positions=positions)
    sizes = {**chosen.model, "max_length": 2 * settings.length}
    model = build(Predictor, seed=settings.seed, **sizes)
    fit(model, cross_entropy, train, chosen, bar=False)
    for found, n in ((near, settings.length), (far, 2 * settings.length)):
        logits, _ = attention_maps(model, floats(inputs[:, :n]))  # b s c
        right = as_numpy(logits).argmax(-1) == labels[:, :n]  # b s
        found[positions] = right.mean(axis=0)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Accuracy at each of 32 positions. Over the 16 trained positions, which are shaded, both lines are at one, the sinusoidal one except for the last three. Beyond, the learned line drops at once to one tenth, the level of guessing, and stays there; the sinusoidal line drops, too, and wanders between one and five tenths."}}
places = np.arange(2 * settings.length)
panels = {
    "accuracy at each position": {name: (places, rows) for name, rows in far.items()}
}
fig = plots.curves(panels, x="position (trained: shaded)", size=(5.4, 3))
fig.axes[0].axvspan(-0.5, settings.length - 0.5, color=plots.HIDDEN, alpha=0.4, lw=0)
fig

# %% tags=["shared", "say"]
beyond = {name: rows[settings.length :] for name, rows in far.items()}
say(
    f"Within the trained length the accuracy is {near['sinusoidal'].mean():.1%} with "
    f"sinusoids and {near['learned'].mean():.1%} with learned positions. At the 16 "
    f"positions beyond, it is **{beyond['sinusoidal'].mean():.0%}** and "
    f"**{beyond['learned'].mean():.0%}**; guessing gives {1 / settings.n_symbols:.0%}."
)

# %% [markdown] tags=["shared"]
# That was measured for this model and this task. The reasons are general, though. Rows
# of a learned table that no training example reached are still random. Sinusoids have a
# value everywhere, but their slow waves reach angles there that the layers have never
# seen. Models for long texts mostly put the *distance* into the scores instead, such as
# [RoPE](https://arxiv.org/abs/2104.09864) and
# [ALiBi](https://arxiv.org/abs/2108.12409).

# %% tags=["shared", "check"]
# Checked: both kinds of positions work within the trained length, and neither beyond
for name in near:
    assert near[name].mean() > 0.995
    _, line = plots.drawn(fig, "accuracy at each position", name)
    assert line[:16].mean() > 0.93
    assert 0.05 < line[16:].mean() < 0.4

# %% [markdown] tags=["shared"]
# ## The same weights give the same outputs in both frameworks
#
# `save_weights` writes the parameters to a file under names that belong to neither
# framework; a model of either can load it. The weights below come from a NumPy
# generator, so the twin of this page prints the same numbers.

# %% tags=["shared"]
encoder = build(Encoder, 2, 12, 3, 29, norm_first=True)
x = np.random.default_rng(8).normal(size=(2, 7, 12))  # b s m
draw = np.random.default_rng(10).normal
shapes = {name: array.shape for name, array in sorted(to_arrays(encoder).items())}
drawn = {name: draw(0, 0.3, shape) for name, shape in shapes.items()}
from_arrays(encoder, drawn)
out = as_numpy(attention_maps(encoder, floats(x))[0])
out[0, 0, :4].round(4)

# %% tags=["shared", "check"]
# Checked: the outputs agree with the NumPy reference
expected, _ = reference.encoder(x, drawn, 2, 3, norm_first=True)
np.testing.assert_allclose(out, expected, atol=1e-5)

# %% tags=["shared"]
folder = Path(tempfile.mkdtemp())
save_weights(encoder, folder / "encoder.safetensors")
copy = build(Encoder, 2, 12, 3, 29, norm_first=True, seed=1)
load_weights(copy, folder / "encoder.safetensors")

# %% tags=["shared", "check"]
# Checked: a saved encoder loads; a damaged or foreign file raises and changes nothing
other, cut = folder / "other.safetensors", folder / "cut.safetensors"
save_weights(build(Encoder, 3, 12, 3, 29), other)
cut.write_bytes((folder / "encoder.safetensors").read_bytes()[:-1])
for wrong in (None, other, cut):
    if wrong:
        try:
            load_weights(copy, wrong)
        except ValueError as error:
            assert wrong.name in str(error)
        else:
            raise AssertionError(f"{wrong.name} raised no error")
    np.testing.assert_array_equal(as_numpy(attention_maps(copy, floats(x))[0]), out)

# %% [markdown] tags=["jax"]
# PyTorch has a whole encoder layer, with which the PyTorch page compares its block.
# This page compares with the reference, under a causal mask and with weights far from
# their initial values.

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
# * A second layer can look for what the first one found.
# * In a block, attention mixes positions; the feed-forward net treats each alone.
# * Residual connections slow down how positions become alike and gradients fade.
# * Layer norm uses one position and nothing else of the batch.
# * At the start, the last blocks get large gradients with post-norm, small ones with
#   pre-norm.
# * The mask acts in every layer; the maps come from the pass that makes the output.
# * Positions are added, as sinusoids or learned; neither is reliable beyond the trained
#   lengths. Without them the encoder is equivariant.

# %% [markdown] tags=["jax"]
# Next comes [warm-up, in JAX](warmup_jax.ipynb): how to train such a stack.
