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
# By the end you can build the encoder of the Transformer from attention, name the job
# of every part, read its attention maps, tell it where each word stands, and move its
# weights from one framework to the other. You need: the attention chapter, and the idea
# of a gradient.
#
# An encoder turns a sequence of vectors into a sequence of vectors, each informed by
# all the others. It is a stack of equal blocks; we build one, then ask of each part
# what breaks without it.

# %% [markdown] tags=["torch"]
# This page speaks **PyTorch**. The same page in JAX: [encoder_jax](encoder_jax.ipynb).
# Before it comes [attention, in PyTorch](attention_torch.ipynb).

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

# %% tags=["torch"]
import tempfile
from functools import partial, reduce
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import nn

from helpers import plots, reference, viewer
from helpers.model_torch import MultiHeadAttention, build, check_input, dense
from helpers.shapes import as_numpy, check_shape
from helpers.weights import from_arrays, load_weights, save_weights, to_arrays

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
plots.use_style()
tensor = partial(torch.as_tensor, dtype=torch.float32, device=device)
boolean = partial(torch.as_tensor, dtype=torch.bool, device=device)
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## A block mixes positions, then works on each one alone
#
# Attention moves information between positions, but only averages it. To compute
# something new, a small net of two dense layers follows, the **feed-forward net**,
# which treats every position by itself and all of them alike. Each of the two branches
# is wrapped in the same way: its output is *added* to what came in (a **residual**
# connection), and the sum is brought back to a common scale (a **norm**).

# %% [markdown] tags=["shared"]
# $$\begin{aligned}
# x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{MultiHead}(x)\big) \\
# x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{FFN}(x)\big) \\
# \mathrm{FFN}(x) &= \max(0,\, xW_1 + b_1)\, W_2 + b_2
# \end{aligned}$$
#
# $W_1$ widens $m$ features to $f$, usually two to eight times as many, and $W_2$ brings
# them back ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), section 3). During
# training, **dropout** zeroes a random share of both branches' outputs and of the
# hidden layer, and scales up the rest.

# %% [markdown] tags=["torch"]
# Two defaults differ between the frameworks: PyTorch adds $10^{-5}$ to the variance in
# a layer norm (but not in an RMS norm) and has the exact GELU. Both are what we want;
# the number is written out all the same.

# %% tags=["torch"]
ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}
NORMS = {"layer": partial(nn.LayerNorm, eps=1e-5), "rms": partial(nn.RMSNorm, eps=1e-5)}


class FeedForward(nn.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``."""

    def __init__(self, m, f, *, dropout=0.0, activation="relu"):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is not in {list(ACTIVATIONS)}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout {dropout} is not in [0, 1)")
        self.activation = ACTIVATIONS[activation]
        self.linear1 = dense(m, f)
        self.linear2 = dense(f, m)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


# %% [markdown] tags=["shared"]
# The block has a switch, `norm_first`, which a later section needs: the norm may come
# before each branch instead of after each sum. It returns the weights of its attention
# along with its output.


# %% tags=["torch"]
class EncoderBlock(nn.Module):
    """Attention, then feed-forward, each with residual and norm: ``b s m -> b s m``."""

    def __init__(
        self, m, n_heads, f, *, dropout=0.0, activation="relu", norm="layer",
        norm_first=False,
    ):  # fmt: skip
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm {norm!r} is not in {list(NORMS)}")
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(m, n_heads)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation)
        self.norm1 = NORMS[norm](m)
        self.norm2 = NORMS[norm](m)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        if self.norm_first:
            values, weights = self.attention(self.norm1(x), mask)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


# %% [markdown] tags=["shared"]
# Two checks. All variants agree with the NumPy reference; and the feed-forward net
# gives a position the same output whether it stands in its sequence or alone.

# %% tags=["shared"]
b, s, m, n_heads, f = 2, 7, 12, 3, 29
x = np.random.default_rng(0).normal(size=(b, s, m))
for norm_first, activation, norm in product((False, True), ACTIVATIONS, NORMS):
    options = {"norm_first": norm_first, "activation": activation, "norm": norm}
    block = build(EncoderBlock, m, n_heads, f, **options)
    out, weights = block(tensor(x))
    check_shape(out, "b s m", b=b, s=s, m=m)
    check_shape(weights, "b h q k", b=b, h=n_heads, q=s, k=s)
    expected, _ = reference.encoder_block(x, to_arrays(block), n_heads, **options)
    np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)
block = build(EncoderBlock, m, n_heads, f)
alone, together = block.ffn(tensor(x[:, 3:4])), block.ffn(tensor(x))
np.testing.assert_allclose(as_numpy(alone), as_numpy(together)[:, 3:4], atol=1e-6)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** How many numbers does a block of sizes $m$ and $f$ learn?
# Count the matrices and biases of attention and feed-forward net, and two numbers per
# feature for each norm. What comes out for $f = 4m$?

# %% tags=["shared", "answer"]
attention_size, ffn_size, norms_size = 4 * m**2 + 4 * m, 2 * m * f + f + m, 2 * 2 * m
counted = sum(array.size for array in to_arrays(block).values())
assert counted == attention_size + ffn_size + norms_size
wide = sum(array.size for array in to_arrays(build(EncoderBlock, m, 3, 4 * m)).values())
assert wide == 12 * m**2 + 13 * m
counted, wide

# %% [markdown] tags=["shared"]
# ## Without residuals, all positions grow alike
#
# Attention is a mean, and means of means lose what set their parts apart. A residual
# connection lets each position keep what it had; the branch only has to add what is
# missing. [Dong et al. 2021](https://arxiv.org/abs/2103.03404) proved for attention
# alone, with neither residuals nor feed-forward nets, that the outputs approach a state
# in which all positions are equal, at a rate that itself speeds up with depth. Our
# blocks keep their feed-forward nets. Gradients suffer in the same way: if all
# positions look alike, hardly any change of the input can make a difference between
# them.

# %% [markdown] tags=["shared"]
# We measure the mean cosine between the outputs $x_i$, $x_j$ of two positions,
#
# $$\mathrm{similarity} = \frac{1}{s(s-1)} \sum_{i \ne j}
# \frac{x_i \cdot x_j}{\lVert x_i \rVert\, \lVert x_j \rVert},$$
#
# and the gradient, with respect to the input, of what differs between positions: a
# random sum of outputs whose coefficients add up to zero over the positions.


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


# %% [markdown] tags=["torch"]
# PyTorch records operations on a tensor that asks for its gradient, and fills it in.


# %% tags=["torch"]
def input_gradient(function, x, probe):
    """Size of the gradient of ``sum(function(x) * probe)`` with respect to ``x``."""
    x = tensor(x).requires_grad_()
    (function(x) * tensor(probe)).sum().backward()
    return np.linalg.norm(as_numpy(x.grad))


# %% tags=["shared"]
b, s, m, n_heads, f = 4, 16, 64, 4, 128
x, probe = np.random.default_rng(1).normal(size=(2, b, s, m))
probe -= probe.mean(axis=1, keepdims=True)
depths = [1, 2, 3, 4, 6, 8, 12]
blocks = [build(EncoderBlock, m, n_heads, f, seed=i) for i in range(max(depths))]


def stack(step, depth):
    """The first ``depth`` blocks as one function, each applied by ``step``."""
    return lambda y: reduce(lambda y, block: step(block, y), blocks[:depth], y)


alike, steep = {}, {}
for step in (without_residuals, with_residuals):
    name, stacks = step.__name__.replace("_", " "), [stack(step, n) for n in depths]
    alike[name] = [similarity(as_numpy(forward(tensor(x)))) for forward in stacks]
    steep[name] = [input_gradient(forward, x, probe) for forward in stacks]

# %% tags=["shared"] mystnb={"image": {"alt": "Two panels over depth from 1 to 12 blocks. Left: without residuals the similarity of positions is one from the second block on; with residuals it rises slowly. Right: without residuals the gradient drops by a factor of more than a thousand within four blocks; with residuals it stays level for several blocks."}}
panels = {
    "similarity of positions": {name: (depths, y) for name, y in alike.items()},
    "gradient of differences": {name: (depths, y) for name, y in steep.items()},
}
plots.curves(panels, x="blocks", log_y=["gradient of differences"], marks="o")

# %% [markdown] tags=["shared"]
# After three blocks without residuals the positions cannot be told apart: their
# similarity is above 0.999, and less than a hundredth of the gradient is left; further
# down, the curve meets the precision of single-precision numbers. With residuals the
# similarity is still below 0.1, and more than 0.9 of the gradient arrives. Residuals
# slow the decline; they do not abolish it: after twelve blocks the similarity is above
# 0.2 here, too, and less than 0.95 of the gradient is left.
#
# The attention maps tell the same story. Step through the layers, counted from 0: with
# residuals the rows go on asking for different things; without them, once all positions
# are alike, all scores are, too, and each weight is one sixteenth.

# %% tags=["shared"]
without, kept = alike["without residuals"], alike["with residuals"]
assert without[2] > 0.999 and kept[2] < 0.1
start = np.linalg.norm(probe)  # the gradient without any block
assert steep["without residuals"][2] < 0.01 * start
assert steep["with residuals"][2] > 0.9 * start
assert kept[-1] > 0.2 and steep["with residuals"][-1] < 0.95 * start
maps = {}
for step in (with_residuals, without_residuals):
    arrived = [stack(step, n)(tensor(x)) for n in range(6)]  # at each block
    pairs = zip(blocks, arrived, strict=False)
    found = [as_numpy(block.attention(y)[1])[0, :2] for block, y in pairs]
    maps[step.__name__.replace("_", " ")] = np.stack(found)  # l h q k
np.testing.assert_allclose(maps["without residuals"][3:], 1 / 16, atol=0.001)
assert np.ptp(maps["with residuals"], axis=-1).mean(axis=(1, 2)).min() > 0.05
viewer.attention(
    maps, about="Maps of six layers, with and without residuals", high=0.25, layer=2
)

# %% [markdown] tags=["shared"]
# ## Layer norm looks at one position only
#
# A norm brings numbers to mean 0 and variance 1. **Batch norm**, common in vision,
# takes mean and variance of each feature over the whole batch (in training; afterwards
# it uses averages it has kept). The output for one sentence then depends on which
# others happen to share its batch, on their padding, and on every outlier among them.
# **Layer norm** takes them over the features of one position; nothing else enters.

# %% [markdown] tags=["shared"]
# $$\mathrm{LayerNorm}(x) = \gamma\,\frac{x - \mu}{\sqrt{v + \epsilon}} + \beta,$$
#
# with mean $\mu$ and variance $v$ of the $m$ features of one position, a learned scale
# $\gamma$ and shift $\beta$ per feature, and a small $\epsilon$ against division by
# zero ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)). Batch norm has the same
# form, with $\mu$ and $v$ per feature over all positions of the batch.


# %% tags=["shared"]
def normalise(x, axes, epsilon=1e-5):
    """Subtract the mean and divide by the standard deviation over ``axes``."""
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


layer_norm, batch_norm = partial(normalise, axes=-1), partial(normalise, axes=(0, 1))
x = np.random.default_rng(2).normal(1, 3, size=(3, 6, 8))  # b s m
own = as_numpy(build(NORMS["layer"], 8)(tensor(x)))
np.testing.assert_allclose(own, layer_norm(x), atol=1e-5)
padded = x.copy()
padded[2, 4:] = 50  # only the third sequence changes, and only its padding
np.testing.assert_array_equal(layer_norm(padded)[:2], layer_norm(x)[:2])
assert np.abs(batch_norm(padded)[:2] - batch_norm(x)[:2]).max() > 0.5

# %% [markdown] tags=["shared"]
# How much does the output for *one* sequence vary when only its companions in the batch
# are drawn anew? Once with normal features, once with heavy tails (Student's $t$ with
# two degrees of freedom), so that now and then a number is far out.

# %% tags=["shared"] mystnb={"image": {"alt": "Spread of the output for one sequence over the size of the batch. Batch norm varies, most in small batches and more with heavy tails; layer norm does not vary at all."}}
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
            mates = [draw(size=(size - 1, 6, 8)) for _ in range(50)]
            outs = [norm(np.concatenate([one, mate]))[0] for mate in mates]
            rows.append(np.std(outs, axis=0).mean())
panels = {"spread of one output": {name: (sizes, y) for name, y in spread.items()}}
plots.curves(panels, x="batch size b", log_x=2, marks="o", size=(5, 3.2))

# %% [markdown] tags=["shared"]
# Layer norm does not move at all. Batch norm moves with its company, in small batches
# more than twice as much as in large ones, and outliers in other sequences make it
# worse.

# %% tags=["shared"]
for tail in draws:
    np.testing.assert_allclose(spread[f"layer norm, {tail}"], 0, atol=1e-12)
calm, wild = spread["batch norm, normal"], spread["batch norm, heavy tails"]
assert calm[0] > 2 * calm[-1] and wild[0] > 2 * wild[-1]
assert all(w > c for w, c in zip(wild, calm, strict=True))

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** [RMS norm](https://arxiv.org/abs/1910.07467) leaves
# out the mean: it divides by the root of the mean square, and learns no shift. Build a
# block with `norm="rms"`. Which parameters are gone, and how many numbers is that?

# %% tags=["shared", "answer"]
full, rms = (to_arrays(build(EncoderBlock, 12, 3, 29, norm=n)) for n in NORMS)
gone = sorted(set(full) - set(rms))
assert gone == ["norm1.bias", "norm2.bias"]
gone, sum(full[name].size for name in gone)

# %% [markdown] tags=["shared"]
# ## Norm first keeps the last gradients small
#
# In the block of 2017 the norm stands *on* the residual path, after each sum
# (**post-norm**). Each norm rescales the sum, so the last branch is as large a part of
# the output in a deep stack as in a shallow one, and so is its gradient. If the norm
# stands inside the branch (**pre-norm**), the residual path is a plain sum of all
# branches, and each block's share of it, and of the gradient, shrinks as the stack
# deepens. [Xiong et al. 2020](https://arxiv.org/abs/2002.04745) show this and conclude
# that it is why post-norm needs a warm-up of the learning rate and pre-norm does not.

# %% [markdown] tags=["shared"]
# $$\begin{aligned}
# \text{post: } x &\leftarrow \mathrm{LayerNorm}\big(x + \mathrm{branch}(x)\big) \\
# \text{pre: } x &\leftarrow x + \mathrm{branch}\big(\mathrm{LayerNorm}(x)\big)
# \end{aligned}$$
#
# The sum of pre-norm grows with depth, since nothing on its path brings it back to
# scale; so the stack ends with one more norm. The stack also collects the attention
# maps of its blocks, in the same pass that makes the output.

# %% [markdown] tags=["torch"]
# PyTorch finds the parameters in a list only if it is an `nn.ModuleList`.


# %% tags=["torch"]
class Encoder(nn.Module):
    """A stack of blocks: ``b s m -> b s m``, on demand with maps ``l b h s s``."""

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, **options):
        super().__init__()
        if n_blocks < 1:
            raise ValueError(f"expected at least one block, got n_blocks = {n_blocks}")
        options = {"norm_first": norm_first, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nn.ModuleList(blocks)
        make_norm = NORMS[options.get("norm", "layer")]
        self.norm = make_norm(m) if norm_first else None

    def forward(self, x, mask=None, *, return_maps=False):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, torch.stack(maps)) if return_maps else x


# %% [markdown] tags=["torch"]
# `backward` adds to the gradient of every parameter of the model; each parameter holds
# its own.


# %% tags=["torch"]
def layer_gradients(encoder, x, probe):
    """Size of the gradient of each block's last matrix: ``l``."""
    (encoder(tensor(x)) * tensor(probe)).sum().backward()
    last = [block.ffn.linear2.weight.grad for block in encoder.blocks]
    return np.array([np.linalg.norm(as_numpy(matrix)) for matrix in last])


# %% tags=["shared"] mystnb={"image": {"alt": "Gradient norm of each block at initialisation for stacks of 2, 6, 12 and 24 blocks. Post-norm: the last blocks have large gradients in every stack. Pre-norm: the deeper the stack, the smaller the gradients of the last blocks."}}
x, probe = np.random.default_rng(4).normal(size=(2, b, s, m))
gradients = {"post-norm": {}, "pre-norm": {}}
for n_blocks in (2, 6, 12, 24):
    for name, rows in gradients.items():
        sizes = (n_blocks, m, n_heads, f)
        encoder = build(Encoder, *sizes, norm_first=name == "pre-norm")
        rows[n_blocks] = layer_gradients(encoder, x, probe)
panels = {
    name: {f"{n} blocks": (np.arange(1, n + 1), y) for n, y in rows.items()}
    for name, rows in gradients.items()
}
plots.curves(panels, x="block", y="gradient norm", log_y=True, share_y=True, marks=".")

# %% [markdown] tags=["shared"]
# From 2 to 24 blocks the last gradient of pre-norm falls to less than 0.65 of its size;
# that of post-norm keeps more than 0.9 of its own, and at 24 blocks is more than one
# and a half times that of pre-norm. The output of pre-norm, without its last norm, has
# more than 1.7 times the spread of its input.

# %% tags=["shared"]
post, pre = (np.array([y[-1] for y in rows.values()]) for rows in gradients.values())
assert pre[-1] < 0.65 * pre[0] and post[-1] > 0.9 * post[0]
assert post[-1] > 1.5 * pre[-1]
deepest, total = encoder, tensor(x)  # pre-norm, 24 blocks
for block in deepest.blocks:
    total, _ = block(total)
assert as_numpy(total).std() > 1.7 * x.std()
np.testing.assert_allclose(as_numpy(deepest(tensor(x))).std(), 1, atol=0.01)

# %% [markdown] tags=["shared"]
# ## The maps come from the pass that makes the output
#
# To read a model, one draws its attention weights. They are only worth reading if they
# are the ones that made the output: with the mask in force in *every* layer, and with
# dropout off. Code that computes the maps a second time, beside the real forward pass,
# can forget the mask after the first layer. Ours returns both from one pass.

# %% [markdown] tags=["torch"]
# Dropout is switched off in the model itself: `eval()` sets `training` to False in
# every part; each has to be set back to what it was, also when something goes wrong in
# between.


# %% tags=["torch"]
def attention_maps(model, x, mask=None):
    """Outputs and attention maps of one forward pass with dropout off."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return model(x, mask, return_maps=True)
    finally:
        for part, was_training in modes:
            part.training = was_training


# %% [markdown] tags=["shared"]
# The proof: two layers, a second sequence whose last three positions are padding, and
# garbage there. What is visible stays the same, and nothing in any map points at the
# padding. An encoder that forgets the mask after its first layer fails the same test.
# And dropout: two calls in training differ, a number that is not dropped is scaled by
# $1/(1-p)$, and two calls of `attention_maps` agree. The garbage must be finite, and
# stay so in every layer: where a square overflows, above $10^{19}$ in single precision,
# it may arrive as $0 \cdot \mathrm{NaN}$.

# %% tags=["shared"]
encoder = build(Encoder, 2, m, n_heads, f, dropout=0.2)
x = np.random.default_rng(5).normal(size=(2, 9, m))
real = np.arange(9) < np.array([[9], [6]])  # b s
mask = (real[:, None, :] & real[:, :, None])[:, None]  # b 1 q k
garbage = np.where(real[..., None], x, 1e15)
out, maps = map(as_numpy, attention_maps(encoder, tensor(x), boolean(mask)))
dirty, dirty_maps = map(
    as_numpy, attention_maps(encoder, tensor(garbage), boolean(mask))
)
check_shape(maps, "l b h q k", l=2, b=2, h=n_heads, q=9, k=9)
np.testing.assert_array_equal(dirty[real], out[real])
np.testing.assert_array_equal(dirty_maps, maps)
for sentence, _, query, key in np.argwhere(~mask):
    assert (maps[:, sentence, :, query, key] == 0).all()


# %% tags=["shared"]
def forgetful(encoder, x, mask):
    """A forward pass with a mistake: only the first layer sees the mask."""
    for place, block in enumerate(encoder.blocks):
        x, _ = block(x, mask if place == 0 else None)
    return as_numpy(x)


plain = build(Encoder, 2, m, n_heads, f)  # no dropout
leak = [forgetful(plain, tensor(inputs), boolean(mask)) for inputs in (x, garbage)]
assert np.abs(leak[0] - leak[1])[real].max() > 1e-3
same = [as_numpy(encoder(tensor(x), boolean(mask))) for _ in range(2)]
assert np.abs(same[0] - same[1]).max() > 0.1  # dropout is on in training
dropped = as_numpy(encoder.blocks[0].dropout(tensor(np.ones(1000))))
np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - 0.2)])
again, _ = attention_maps(encoder, tensor(x), boolean(mask))
np.testing.assert_array_equal(as_numpy(again), out)

# %% tags=["shared"] mystnb={"image": {"alt": "Four maps of weights for the padded sequence, two layers by two heads. In all of them the last three columns and rows are grey: hidden in every layer."}}
shown = np.where(mask[1], maps[:, 1, :2], np.nan).reshape(-1, 9, 9)  # l·h q k
titles = [f"layer {i}, head {j}" for i in range(2) for j in range(2)]
plots.heatmaps(shown, titles=titles, columns=2, size=(4.8, 4.2))

# %% [markdown] tags=["shared"]
# The grey cells are hidden, in the second layer as in the first.

# %% [markdown] tags=["shared"]
# ## A sum of waves tells each position where it stands
#
# Attention ignores order, and so does the feed-forward net; a stack of both does, too.
# So the position is written into the input: to each vector we add a code that depends
# on its place. The codes of 2017 are waves. Fast ones tell neighbours apart, slow ones
# tell the beginning from the end, much as the digits of a number do.

# %% [markdown] tags=["shared"]
# $$PE_{pos,\,i} = \begin{cases}
# \sin\big(pos \,/\, 10000^{\,i/m}\big) & \text{for even } i \\
# \cos\big(pos \,/\, 10000^{\,(i-1)/m}\big) & \text{for odd } i
# \end{cases}$$
#
# with position $pos$ and feature $i$ of $m$. Each pair of features turns like the hand
# of a clock; one turn takes $2\pi$ positions in the first pair, and longer in each that
# follows, towards $10000 \cdot 2\pi$.

# %% [markdown] tags=["torch"]
# The angle of a far position needs more digits than single precision has, so the table
# is made in `float64`.


# %% tags=["torch"]
def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64."""
    i = torch.arange(m, dtype=torch.float64)
    angle = torch.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)  # s m
    return torch.where(i % 2 == 0, angle.sin(), angle.cos())


# %% tags=["shared"]
m, length = 48, 96
table = as_numpy(sinusoidal_positions(length, m))
check_shape(sinusoidal_positions(7, 5), "s m", s=7, m=5)  # an odd m ends on a sine
wavelengths = 2 * np.pi * 10000 ** (np.arange(0, m, 2) / m)
angles = np.arctan2(table[1, ::2], table[1, 1::2])  # of one step, per pair
np.testing.assert_allclose(angles, 2 * np.pi / wavelengths)
assert wavelengths[0] == 2 * np.pi and (np.diff(wavelengths) > 0).all()
assert wavelengths[-1] < 10000 * 2 * np.pi
np.testing.assert_allclose(table[5, 6], np.sin(5 / 10000 ** (6 / 48)))
np.testing.assert_allclose(table[5, 7], np.cos(5 / 10000 ** (6 / 48)))

# %% tags=["shared"] mystnb={"image": {"alt": "Heat map of the position codes, 96 positions by 48 features. The first features alternate quickly along the positions, the last ones hardly change."}}
plots.heatmaps(
    [table.T], x="position", y="feature i", low=-1, high=1, bar="code", size=(6, 3.4)
)

# %% [markdown] tags=["shared"]
# The code of a position $t$ steps away is a rotation of the code here, the same
# rotation wherever *here* is. So a layer can learn to look "three to the left" with one
# matrix. We find the rotation of each pair by least squares, and it is one: orthogonal,
# with the angle $t \,/\, 10000^{\,i/m}$.

# %% tags=["shared"]
pairs = table.reshape(length, m // 2, 2)  # s i 2
for t, (place, wavelength) in product((-3, 1, 10), enumerate(wavelengths)):
    now, then = pairs[10:-10, place], pairs[10 + t : length - 10 + t, place]
    turn = np.linalg.lstsq(now, then, rcond=None)[0]  # 2 2
    angle = 2 * np.pi * t / wavelength
    expected = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    np.testing.assert_allclose(now @ turn, then, atol=1e-9)
    np.testing.assert_allclose(turn, expected, atol=1e-6)
    np.testing.assert_allclose(turn @ turn.T, np.eye(2), atol=1e-6)

# %% tags=["shared"] mystnb={"image": {"alt": "Four panels. Features 0 and 1 over 25 positions, a sine and a cosine; features 2 and 3, the same but slower; the wavelength of each pair, rising evenly on a logarithmic scale; the product of two codes over their distance, one at distance zero, then falling with small waves."}}
products = table @ table.T / (m / 2)  # s s
near, pair_numbers = np.arange(25), np.arange(0, m, 2)
panels = {
    "features 0 and 1": {f"i = {i}": (near, table[near, i]) for i in (0, 1)},
    "features 2 and 3": {f"i = {i}": (near, table[near, i]) for i in (2, 3)},
    "wavelength of feature i": {"": (pair_numbers, wavelengths)},
    "product of two codes": {"": (np.arange(length), products[0])},
}
x_names = ["position", "position", "feature i", "distance"]
plots.curves(panels, x=x_names, log_y=["wavelength of feature i"], columns=2)

# %% [markdown] tags=["shared"]
# The product of two codes depends on their distance alone. It is one at distance zero,
# falls over the first five steps, and stays below 0.75 beyond: near positions look more
# alike than far ones.

# %% tags=["shared"]
for distance in range(length):
    along = np.diagonal(products, distance)
    np.testing.assert_allclose(along, along[0], atol=1e-9)
np.testing.assert_allclose(products[0, 0], 1)
assert (np.diff(products[0, :6]) < 0).all() and (products[0, 5:] < 0.75).all()

# %% [markdown] tags=["shared"]
# In a model, the table is computed once and added to its input. The alternative is a
# table that is *learned* like any other parameter. Either ends somewhere: a longer
# sequence is refused.

# %% [markdown] tags=["torch"]
# A buffer moves with the model to its device but is not a parameter; `nn.Parameter`
# makes one. The learned table starts small, so as not to drown the input.


# %% tags=["torch"]
class SinusoidalPositions(nn.Module):
    """Adds the sine and cosine code of each position: ``b s m -> b s m``."""

    def __init__(self, m, max_length):
        super().__init__()
        table = sinusoidal_positions(max_length, m).float()  # s m
        self.register_buffer("table", table, persistent=False)

    def forward(self, x):
        s, longest = x.shape[1], self.table.shape[0]
        if s > longest:
            raise ValueError(f"{s} positions, but the table has max_length = {longest}")
        return x + self.table[:s].to(x.dtype)


# %% tags=["torch"]
class LearnedPositions(nn.Module):
    """Adds a learned vector for each position: ``b s m -> b s m``."""

    def __init__(self, m, max_length):
        super().__init__()
        table = torch.randn(max_length, m)  # s m
        self.table = nn.Parameter(0.02 * table)

    def forward(self, x):
        s, longest = x.shape[1], self.table.shape[0]
        if s > longest:
            raise ValueError(f"{s} positions, but the table has max_length = {longest}")
        return x + self.table[:s]


POSITIONS = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "none": None,
}


# %% tags=["shared"]
waves, learned = SinusoidalPositions(m, length), build(LearnedPositions, m, length)
zeros = tensor(np.zeros((1, length, m)))
np.testing.assert_allclose(as_numpy(waves(zeros))[0], table, atol=1e-6)
assert to_arrays(waves) == {} and to_arrays(learned)["table"].shape == (length, m)
try:
    waves(tensor(np.zeros((1, length + 1, m))))
except ValueError as error:
    print(error)
else:
    raise AssertionError("a sequence longer than the table went through")

# %% [markdown] tags=["shared"]
# **Exercise 3, an open question.** In the heat map, the features from 24 on hardly
# change over 96 positions. Are they wasted? How would you find out, and what would you
# change if no sequence were ever longer than 96? One way to look at it is in the
# answer: how far apart are the two closest positions, with all features, with either
# half, and with a smaller number in place of 10000?


# %% tags=["shared", "answer"]
def closest(codes):
    """Smallest distance between the codes of two positions."""
    distances = np.linalg.norm(codes[:, None] - codes, axis=-1)
    return distances[~np.eye(len(codes), dtype=bool)].min()


fast, slow = table[:, : m // 2], table[:, m // 2 :]
short_waves = np.arange(length)[:, None] / 16 ** (np.arange(0, m, 2) / m)  # s m/2
shorter = np.concatenate([np.sin(short_waves), np.cos(short_waves)], axis=1)
found = {"all": table, "fast half": fast, "slow half": slow, "16 for 10000": shorter}
found = {name: closest(codes) for name, codes in found.items()}
assert found["fast half"] > 0.99 * found["all"] and found["slow half"] < 0.05
assert found["16 for 10000"] > 1.3 * found["all"]
{name: float(distance.round(2)) for name, distance in found.items()}

# %% [markdown] tags=["shared"]
# ## The predictor maps each element to an output
#
# For a task, the encoder needs two ends: a dense layer that brings the features of an
# element to size $m$, and an output net that turns each vector into what is asked, such
# as the scores of $c$ classes. The output net is a dense layer, a norm, a ReLU and a
# second dense layer. Positions are optional: a *set* has none. Dropout may also act on
# the input.


# %% tags=["torch"]
class Predictor(nn.Module):
    """One output vector per element: ``b s i -> b s c``."""

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, input_dropout=0.0,
        positions="sinusoidal", max_length=512, **options,
    ):  # fmt: skip
        super().__init__()
        if positions not in POSITIONS:
            raise ValueError(f"positions {positions!r} is not in {list(POSITIONS)}")
        if not 0 <= input_dropout < 1:
            raise ValueError(f"input_dropout {input_dropout} is not in [0, 1)")
        kind = POSITIONS[positions]
        self.input_dropout = nn.Dropout(input_dropout)
        self.embed = dense(n_inputs, m)
        self.positions = kind(m, max_length) if kind else None
        self.encoder = Encoder(n_blocks, m, n_heads, f, **options)
        self.hidden = dense(m, m)
        self.hidden_norm = NORMS["layer"](m)
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        self.output = dense(m, n_outputs)

    def forward(self, x, mask=None, *, return_maps=False):
        check_input(x, self.embed.in_features)
        x = self.embed(self.input_dropout(x))  # b s m
        x = self.positions(x) if self.positions else x
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = self.dropout(torch.relu(self.hidden_norm(self.hidden(x))))
        return (self.output(x), maps) if return_maps else self.output(x)  # b s c


# %% [markdown] tags=["shared"]
# Without positions a shuffled input gives shuffled outputs; with either kind it no
# longer does.

# %% tags=["shared"]
x = np.random.default_rng(6).normal(size=(2, 7, 5))  # b s i
order = np.random.default_rng(7).permutation(7)
sizes = {"n_blocks": 2, "n_heads": 3, "f": 29}
moved = {}
for positions in ("none", "sinusoidal", "learned"):
    model = build(Predictor, 5, 12, 3, positions=positions, **sizes)
    out, _ = attention_maps(model, tensor(x))
    shuffled, _ = attention_maps(model, tensor(x[:, order]))
    check_shape(out, "b s c", b=2, s=7, c=3)
    moved[positions] = np.abs(as_numpy(shuffled) - as_numpy(out)[:, order]).max()
assert moved["none"] < 1e-5 and min(moved["sinusoidal"], moved["learned"]) > 1e-3

# %% [markdown] tags=["shared"]
# Where *one* answer per sequence is wanted, one puts an extra element in front, often
# called `[CLS]`: a vector of its own, learned in training; only its output is read.
# Without positions, that answer does not change when the other elements are shuffled,
# so it is invariant, and it depends on every one of them.

# %% tags=["shared"]
encoder = build(Encoder, 2, 12, 3, 29)
x = np.random.default_rng(8).normal(size=(2, 7, 12))  # b s m
cls = np.random.default_rng(9).normal(size=(1, 1, 12)).repeat(2, axis=0)


def answer(x):
    """Output of the extra element: ``b s m -> b m``."""
    with_cls = tensor(np.concatenate([cls, x], axis=1))  # b 1+s m
    return as_numpy(attention_maps(encoder, with_cls)[0])[:, 0]


np.testing.assert_allclose(answer(x[:, order]), answer(x), atol=1e-5)
erased = [np.where(np.arange(7)[:, None] == place, 0, x) for place in range(7)]
assert min(np.abs(answer(y) - answer(x)).max() for y in erased) > 1e-3

# %% [markdown] tags=["shared"]
# ## The same weights give the same numbers everywhere
#
# With the classes given, a model is its parameters. Written to a file under neutral
# names, they can be read by a model of either framework. As in the attention chapter,
# the numbers below come from a NumPy generator, so the twin page prints the same ones.

# %% tags=["shared"]
encoder = build(Encoder, 2, 12, 3, 29, norm_first=True)
draw = np.random.default_rng(10).normal
shapes = {name: array.shape for name, array in sorted(to_arrays(encoder).items())}
drawn = {name: draw(0, 0.3, shape) for name, shape in shapes.items()}
from_arrays(encoder, drawn)
out, maps = map(as_numpy, attention_maps(encoder, tensor(x)))
expected = x
for i in range(2):
    start = f"blocks.{i}."
    params = {n.removeprefix(start): a for n, a in drawn.items() if n.startswith(start)}
    expected, _ = reference.encoder_block(expected, params, 3, norm_first=True)
expected = reference.normalise(expected, drawn, "norm")
np.testing.assert_allclose(out, expected, atol=1e-5)
out[0, 0, :4].round(4)

# %% [markdown] tags=["shared"]
# A file that is cut off, or belongs to another model, is refused before anything
# changes.

# %% tags=["shared"]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "encoder.safetensors")
    save_weights(encoder, path)
    copy = build(Encoder, 2, 12, 3, 29, norm_first=True, seed=1)
    load_weights(copy, path)
    np.testing.assert_array_equal(as_numpy(attention_maps(copy, tensor(x))[0]), out)
    other, cut = Path(folder, "other.safetensors"), Path(folder, "cut.safetensors")
    save_weights(build(Encoder, 3, 12, 3, 29), other)
    cut.write_bytes(path.read_bytes()[:-1])
    for wrong in (other, cut):
        try:
            load_weights(copy, wrong)
        except ValueError as error:
            print(str(error).replace(str(wrong), wrong.name))
        else:
            raise AssertionError(f"{wrong.name} went through")
    np.testing.assert_array_equal(as_numpy(attention_maps(copy, tensor(x))[0]), out)

# %% [markdown] tags=["torch"]
# PyTorch ships a whole encoder layer, `nn.TransformerEncoderLayer`. With copied
# weights, drawn far from their initial values, it must agree with our block. Its mask
# means the opposite of ours: True *hides*.

# %% tags=["torch"]
names = {
    "attention.qkv.": "self_attn.in_proj_",
    "attention.out.": "self_attn.out_proj.",
    "ffn.": "",
}
for norm_first in (False, True):
    options = {"norm_first": norm_first, "activation": "gelu"}
    block = build(EncoderBlock, 12, 3, 29, **options).eval()
    from_arrays(block, {n: draw(0, 0.3, a.shape) for n, a in to_arrays(block).items()})
    own = nn.TransformerEncoderLayer(12, 3, 29, batch_first=True, **options).eval()
    state = block.state_dict()
    for old, new in names.items():
        state = {name.replace(old, new): values for name, values in state.items()}
    own.load_state_dict(state)
    causal = boolean(np.tril(np.ones((7, 7), bool)))
    ours, _ = block(tensor(x), causal)
    theirs = own(tensor(x), src_mask=~causal)
    np.testing.assert_allclose(as_numpy(ours), as_numpy(theirs), atol=1e-5)

# %% [markdown] tags=["shared"]
# ## What to take along
#
# * A block is attention, which mixes positions, and a feed-forward net, which treats
#   each alone.
# * Residuals slow down how positions grow alike and how gradients fade.
# * Layer norm sees one position; nothing else in the batch can disturb it.
# * Post-norm has large gradients near the output at the start; pre-norm trades them for
#   one more norm at the end.
# * Maps are collected in the pass that makes the output, mask in force, dropout off.
# * Positions are added as waves, or learned; without them the encoder is equivariant.

# %% [markdown] tags=["torch"]
# Next comes [warm-up, in PyTorch](warmup_torch.ipynb): how such a stack is brought to
# learn at all.
