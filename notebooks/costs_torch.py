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
# # What attention costs
#
# By the end you can count the operations, parameters and memory of a Transformer from
# its sizes, estimate before you start how long training takes and whether it fits, and
# explain why the number of operations alone does not predict the time. You need: the
# chapters on attention and the encoder, and some idea of a training loop.
#
# How long would it take to train GPT-2 small, the model of 2019 with 124 million
# parameters, on the computer in front of you: a night, a year? Would it fit
# into the memory? And if the answer is bad, what helps: shorter sequences, half the
# heads, a smaller batch, a different kind of attention? This chapter measures the terms
# of the cost, answers the question, and ends with a table to keep.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [costs_jax](costs_jax.ipynb).

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

import numpy as np

from helpers import diagrams, plots  # drawings and figures
from helpers.prose import say, table  # say() prints a sentence with computed numbers
from helpers.shapes import as_numpy  # an array of the framework as a NumPy array
from helpers.weights import to_arrays  # all parameters of a model

plots.use_style()

# %% tags=["torch"]
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from helpers.model_torch import (
    EncoderBlock,
    MultiHeadAttention,
    Predictor,
    attention,
    build,
)
from helpers.train_torch import cross_entropy

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)  # float32 tensor

# %% [markdown] tags=["shared"]
# ## Self-attention has the shortest paths
#
# What does attention offer that recurrent and convolutional layers do not? Suppose that
# the last word of a sentence depends on the first. How many steps does this information
# have to take?

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three drawings of seven positions with the path from the first to the last in orange. In a recurrent layer it takes six steps, from each position to the next. With convolutions of width three it takes three layers, each two positions further. In attention a single arrow leads from the first position to the last."}}
diagrams.paths()

# %% [markdown] tags=["shared"]
# Three numbers compare the layers. *Operations* are the work. *Sequential steps* cannot
# run at the same time, however many cores there are. The *longest path* is the number
# of steps or layers from the first position to the last. There are $n$ positions of
# size $m$. In a convolution of width $w$, each one sees itself and the $w-1$ before it.
# Constant factors are left out
# ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), table 1). The last column is
# the path for $n=256$ and $w=4$:
#
# | layer | operations | sequential steps | longest path | example |
# |---|---|---|---|---|
# | self-attention | $n^2m$ | $1$ | $1$ | $1$ |
# | recurrent | $nm^2$ | $n$ | $n-1$ | $255$ |
# | convolution | $wnm^2$ | $1$ | $(n-1)/(w-1)$ | $85$ |
# | dilated convolution | $wnm^2$ | $1$ | $\log_wn$ | $4$ |
#
# A convolution gets $w-1$ positions further per layer. If it is *dilated*, its first
# layer looks at adjacent positions, the second at every $w$-th, the third at every
# $w^2$-th, so each layer reaches $w$ times as far.

# %% tags=["shared", "check"]
# Checked: counted layer by layer, the paths have the lengths of the table
n, w = 256, 4
back = np.arange(n)[:, None] - np.arange(n)  # q k: how far back a key is
sees = {
    "self-attention": lambda i: back == back,
    "recurrent": lambda i: (back == 0) | (back == 1),
    "convolution": lambda i: (back >= 0) & (back < w),
    "dilated": lambda i: np.isin(back, w**i * np.arange(w)),
}
paths = {}
for name, mask in sees.items():
    depends, layers = np.arange(n) == n - 1, 0  # on which positions the last depends
    while not depends[0]:
        depends, layers = depends @ mask(layers), layers + 1
    paths[name] = layers
assert [*paths.values()] == [1, 255, 85, 4]
assert paths["convolution"] == (n - 1) / (w - 1) and w ** paths["dilated"] == n

# %% [markdown] tags=["shared"]
# ## Gradients fade along a path
#
# Why does the length of a path matter? Because the gradient travels back along the same
# path, and every step multiplies it by a matrix. If these matrices shrink the gradient,
# it shrinks exponentially
# ([Bengio et al. 1994](https://doi.org/10.1109/72.279181)), and the model cannot learn
# from far away. Take the last output of an untrained attention layer and of an
# untrained GRU, a recurrent layer with gates: how large is its gradient at each
# position of the input?

# %% [markdown] tags=["torch"]
# `backward` leaves the gradient in `x.grad`.


# %% tags=["torch"]
def gradient_norms(layer, x):
    """Norm of the gradient of the last output for each position: ``1 s m -> s``."""
    x = floats(x).requires_grad_()
    layer(x)[0][0, -1].sum().backward()
    return as_numpy(x.grad[0].norm(dim=-1))


# %% tags=["torch"]
n, m = 64, 64
gru, one_head = build(nn.GRU, m, m, batch_first=True), build(MultiHeadAttention, m, 1)
layers = {"attention": one_head, "GRU": gru}
x = np.random.default_rng(0).normal(size=(1, n, m))
norms = {name: gradient_norms(layer, x)[::-1] for name, layer in layers.items()}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Norm of the gradient of the last output, on a logarithmic scale, over the distance to the position of the input. That of the GRU falls in a straight line by many orders of magnitude; that of attention is level."}}
lines = {name: (np.arange(n), norm) for name, norm in norms.items()}
panels = {"gradient of the last output": lines}
fig = plots.curves(panels, x="positions back", y="norm", log_y=True, size=(5.6, 2.8))
fig

# %% tags=["shared", "say"]
fades = norms["GRU"][-1] / norms["GRU"][0]
per_step = fades ** (1 / (n - 1))
evens = norms["attention"][1:].min() / norms["attention"][1:].max()
say(
    f"Every step back multiplies the GRU's gradient by about {per_step:.2f} (for these "
    f"initial weights). After {n - 1} steps, only "
    f"$10^{{{round(math.log10(fades))}}}$ of it is left. In attention, from one "
    f"position back on, the smallest gradient is {evens:.0%} of the largest."
)

# %% tags=["shared", "check"]
# Checked: each step leaves less than 0.8 of the GRU's gradient; attention's is even
title = "gradient of the last output"
fading, level = (plots.drawn(fig, title, name)[1] for name in ("GRU", "attention"))
assert (fading[-1] / fading[0]) ** (1 / (n - 1)) < 0.8
assert level[1:].min() / level[1:].max() > 0.11
near, far = level[1 : n // 2].mean(), level[n // 2 :].mean()
assert 0.7 < near / far < 1.4

# %% [markdown] tags=["shared"]
# ## The same number of operations can take different times
#
# The price of the short paths is that all $n^2$ pairs are computed. From which length
# on is attention more expensive than a GRU? A product of `n m` with `m m` takes $nm^2$
# multiplications and as many additions: $2nm^2$ floating-point operations (*FLOPs*).
# One head of size $m$ has four such products, and $2n^2m$ operations each for scores
# and weighted means. A GRU has six such products:
#
# $$\text{attention: } 8nm^2+4n^2m, \qquad \text{GRU: } 12nm^2 .$$
#
# The two are equal at $n = m$. And in seconds?

# %% tags=["shared"]
lengths = 4 ** np.arange(2, 7)  # n = 16, 64, 256, 1024, 4096
counts = {
    "attention": 8 * lengths * m**2 + 4 * lengths**2 * m,
    "GRU": 12 * lengths * m**2,
}
inputs = [floats(np.random.default_rng(6).normal(size=(1, n, m))) for n in lengths]

# %% [markdown] tags=["torch"]
# On a GPU, PyTorch returns before the work is done, so the stopwatch waits with
# `synchronize`. It leaves out the first call, which sets up memory.


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


# %% tags=["shared"]
times = {name: [seconds(f, x) for x in inputs] for name, f in layers.items()}


# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Left, operations of attention and of a GRU over the length n: the lines cross at n equal to m. Right, the measured milliseconds of both. Dotted guides of slope n and n squared."}}
def add_guides(ax):
    """Dotted lines that grow like n and n squared, and plain numbers on the axes."""
    low, high = ax.get_ylim()
    for name, power in (("$n$", 1), ("$n^2$", 2)):
        rise = high * (lengths / lengths[-1]) ** float(power)
        ax.plot(lengths, rise, ":", color=plots.EDGE, lw=1, zorder=0)
        ax.text(lengths[-2], rise[-2], name, color=plots.EDGE, ha="right", va="bottom")
    ax.set(ylim=(low, high), xticks=lengths, xticklabels=lengths)
    ax.yaxis.set_major_formatter("{x:g}")


panels = {
    f"million operations, m = {m}": {k: (lengths, c / 1e6) for k, c in counts.items()},
    "milliseconds": {k: (lengths, 1e3 * np.array(t)) for k, t in times.items()},
}
fig = plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o", size=(7.6, 3))
for ax in fig.axes:
    add_guides(ax)
fig

# %% tags=["shared", "check"]
# Checked: as drawn, attention takes fewer operations exactly where n < m
title = f"million operations, m = {m}"
drawn = {name: plots.drawn(fig, title, name)[1] for name in counts}
np.testing.assert_array_equal(drawn["attention"] < drawn["GRU"], lengths < m)
np.testing.assert_array_equal(drawn["attention"] == drawn["GRU"], lengths == m)
quadratic = 1e6 * drawn["attention"] - 8 * lengths * m**2
np.testing.assert_allclose(quadratic[1:], 16 * quadratic[:-1])

# %% tags=["shared", "say"]
by_clock = lengths[np.array(times["attention"]) > np.array(times["GRU"])].tolist()
rates = {name: counts[name] / np.array(found) / 1e9 for name, found in times.items()}
wins = f"at n = {', '.join(map(str, by_clock))}" if by_clock else "nowhere"
say(
    f"By operations, the GRU wins where n > {m}; by the clock of this machine, {wins}. "
    f"At n = 1,024, attention does {rates['attention'][3]:.0f} billion operations a "
    f"second, and the GRU {rates['GRU'][3]:.0f}."
)

# %% [markdown] tags=["shared"]
# What decides the rate? A processor can only multiply what it has read from memory. A
# product of $n$ rows with a matrix `m m` does $2nm^2$ operations and, for small $n$,
# reads mostly the matrix, $4m^2$ bytes: about $n/2$ operations per byte, its
# *arithmetic intensity*. With a single row, each number of the matrix is read and used
# only once, and the processor waits for the memory. So the rate is limited by a
# **roofline**
# ([Williams et al. 2009](https://doi.org/10.1145/1498765.1498785)): a slope, where
# memory is the limit, and a flat roof, where arithmetic is.

# %% tags=["torch"]
size, rows = 2048, 4 ** np.arange(6)  # 1, 4, 16, …, 1,024 rows
matrix = torch.randn(size, size)  # 16 MiB
products = [seconds(torch.matmul, torch.ones(n, size), matrix) for n in rows.tolist()]

# %% tags=["shared"]
moved = 4 * (size**2 + 2 * rows * size)  # bytes: the matrix, and n rows in and out
intensity = 2 * rows * size**2 / moved  # operations per byte
speed = 2 * rows * size**2 / np.array(products)  # operations per second
limit, bandwidth = speed.max(), moved[0] / products[0]  # per second

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Billions of operations per second of a product over its operations per byte. The measured rate rises with the intensity and levels off at a limit, along a roofline made of a slope and a flat roof."}}
knee = limit / bandwidth  # here memory and arithmetic take the same time
corners = np.array([intensity[0], knee, max(knee, intensity[-1])])
roof = np.minimum(limit, bandwidth * corners) / 1e9
lines = {"measured": (intensity, speed / 1e9), "roofline": (corners, roof)}
panels = {"billion operations per second": lines}
fig = plots.curves(
    panels, x="operations per byte", log_x=4, log_y=True, marks="o", size=(5.6, 2.8)
)
ax = fig.axes[0]
ax.set_yscale("log", base=2)
ax.xaxis.set_major_formatter("{x:g}")
ax.yaxis.set_major_formatter("{x:g}")
fig

# %% tags=["shared", "say"]
say(
    f"With one row this machine does {speed[0] / 1e9:.0f} billion operations a second, "
    f"with many rows {limit / 1e9:.0f} billion, {limit / speed[0]:.1f} times as many. "
    "We take that as its limit: the roofline goes through the first and the highest "
    "point by construction."
)

# %% tags=["shared", "check"]
# Checked: as drawn, many rows reach more than 1.5 times the rate of a single row
found = plots.drawn(fig, "billion operations per second", "measured")[1]
assert found.max() / found[0] > 1.5  # loose: memory and cache differ by machine
np.testing.assert_allclose(intensity[0], 0.5, rtol=0.002)

# %% [markdown] tags=["shared"]
# A step of the GRU multiplies matrices with a single row, and waits for the step
# before. Attention multiplies all $n$ rows at once, but its softmax does only a few
# operations for each of the $n^2$ scores that it reads: far left on the slope.

# %% [markdown] tags=["torch"]
# On a CPU, PyTorch also has to start every operation of every step of the GRU. On an
# NVIDIA GPU, one call of the library cuDNN runs the whole loop.

# %% tags=["shared", "say"]
ratio = rates["GRU"][3] / rates["attention"][3]
if ratio < 1:  # which of the two reasons weighs more depends on the machine
    text = f"{ratio:.0%} of attention's rate: its many small steps hold it back."
else:
    text = (
        f"{ratio:.1f} times attention's rate: its six matrices, "
        f"{6 * 4 * m**2 / 1024:.0f} KiB, can stay in the processor's cache, and "
        "attention has its softmax, which the count leaves out."
    )
cache = 2 * 12 * 1024 * 768 * 4  # l, n, m, bytes
say(
    f"So at n = 1,024, the GRU reaches {text}\n\nA decoder that writes one token at a "
    "time also multiplies all its weights with a single row. And it keeps the keys and "
    f"values of earlier tokens, the *KV cache*: $2lnm$ numbers for $l$ blocks, "
    f"{cache / 2**20:.0f} MiB for 1,024 tokens in GPT-2 small, in float32."
)

# %% [markdown] tags=["shared"]
# ## Computed in chunks, attention never holds all weights
#
# Memory is the other price of the pairs. Our function keeps the whole $n \times n$
# matrix of weights for the backward pass. But a row of outputs needs only its own row
# of weights. So take the queries in chunks, do not keep the weights of a chunk, and
# compute them *again* in the backward pass. The result is exact, and memory grows like
# $n$ (after [Rabe & Staats 2021](https://arxiv.org/abs/2112.05682), who split the keys
# as well). A *fused kernel* does all this in one program, and keeps the scores in the
# processor's fastest memory ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)).

# %% [markdown] tags=["torch"]
# `checkpoint` runs a function without recording it, and again in the backward pass.
# `scaled_dot_product_attention` picks a fused kernel where there is one.


# %% tags=["torch"]
def written_out(q, k, v):
    """Our own attention, for one head: ``b s d -> b s d``."""
    return attention(q, k, v)[0]


def in_chunks(q, k, v, size=64):
    """The same, ``size`` queries at a time, computed again on the way back."""
    chunks = [
        checkpoint(written_out, rows, k, v, use_reentrant=False)
        for rows in q.split(size, dim=1)
    ]
    return torch.cat(chunks, dim=1)


def framework_attention(q, k, v):
    """The framework's own attention, for one head: ``b s d -> b s d``."""
    q, k, v = (x[:, None] for x in (q, k, v))  # b 1 s d
    return nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]


# %% [markdown] tags=["torch"]
# What does a forward pass keep for the backward pass? `saved_tensors_hooks` calls our
# function `keep` with every tensor that autograd saves.


# %% tags=["torch"]
def kept_arrays(function, *args):
    """What the forward pass keeps for the backward pass, by address."""
    kept = {}

    def keep(x):
        kept.setdefault(x.data_ptr(), x)  # the same memory counts once
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        function(*args)
    return kept


def work_memory(function, x):
    """Bytes that are kept for the gradient of q, k and v, and q, k, v themselves."""
    inputs = [x.clone().requires_grad_() for _ in range(3)]
    kept = kept_arrays(function, *inputs) | {x.data_ptr(): x for x in inputs}
    return sum(x.nbytes for x in kept.values())


# %% tags=["torch"]
kinds = {
    "written out": written_out,
    "in chunks": in_chunks,
    "framework's own": framework_attention,
}
memory = {k: np.array([work_memory(f, x) for x in inputs]) for k, f in kinds.items()}
times = {k: np.array([seconds(f, x, x, x) for x in inputs]) for k, f in kinds.items()}
outputs = {name: as_numpy(f(*[inputs[2]] * 3)) for name, f in kinds.items()}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Left, MiB needed for the gradient over the length n: written out they follow the guide n squared, in chunks the guide n; the framework's own call is drawn beside them. Right, the milliseconds of all three."}}
panels = {
    "MiB for the gradient": {k: (lengths, size / 2**20) for k, size in memory.items()},
    "milliseconds, forward": {k: (lengths, 1e3 * t) for k, t in times.items()},
}
fig = plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o", size=(7.6, 3))
for ax in fig.axes:
    add_guides(ax)
fig

# %% tags=["shared", "say"]
steps = [memory["written out"][i + 1] / memory["written out"][i] for i in (1, 2, 3)]
parts = memory["in chunks"][-1] / memory["in chunks"][-2]
say(
    f"Each time $n$ grows fourfold, the written-out function needs {steps[0]:.1f}, "
    f"{steps[1]:.1f}, {steps[2]:.1f} times the memory: the factor approaches 16. In "
    f"chunks, the last factor is {parts:.1f}, and 4,096 positions need "
    f"{memory['in chunks'][-1] / memory['written out'][-1]:.0%} of the memory."
)

# %% tags=["shared", "check"]
# Checked: chunks give the same output, and as drawn their memory is linear in n
np.testing.assert_allclose(outputs["in chunks"], outputs["written out"], atol=1e-5)
np.testing.assert_allclose(
    outputs["framework's own"], outputs["written out"], atol=1e-5
)
square, linear = (
    plots.drawn(fig, "MiB for the gradient", name)[1]
    for name in ("written out", "in chunks")
)
assert square[-1] > 10 * square[-2] and linear[-1] < 5 * linear[-2]
assert linear[-1] < square[-1] / 12

# %% tags=["torch", "say"]
needs, takes = (
    found["framework's own"][-1] / found["written out"][-1] for found in (memory, times)
)
say(
    f"PyTorch's own kernel is fused: at n = 4,096 it needs {needs:.1%} of the memory "
    f"of our function, and {takes:.0%} of the time."
)

# %% tags=["torch", "check"]
# Checked: the memory of the framework's own kernel is linear in n
assert memory["framework's own"][-1] < 5 * memory["framework's own"][-2]

# %% [markdown] tags=["shared"]
# ## The parameters follow from the sizes
#
# A block has four matrices `m m` in attention, two matrices between
# $m$ and $f$ in the feed-forward net, their biases, and two norms of $2m$:
#
# $$N_\mathrm{block}=(4m^2+4m)+(2mf+f+m)+4m .$$
#
# With the usual $f = 4m$ that is about $12m^2$, for any length and number of heads.


# %% tags=["shared"]
def block_parameters(m, f):
    """Attention, feed-forward net and two norms."""
    return (4 * m**2 + 4 * m) + (2 * m * f + f + m) + 4 * m


# %% tags=["shared"]
sizes = {"n_inputs": 32, "m": 128, "n_outputs": 32}  # small: a step takes milliseconds
options = {"n_blocks": 4, "n_heads": 4, "f": 4 * 128, "max_length": 1024}
model = build(Predictor, *sizes.values(), **options)
n_parameters = sum(array.size for array in to_arrays(model).values())
n_parameters

# %% tags=["shared", "check"]
# Checked: the formula counts the parameters of the built model, and of a wider one
for m, f, built in ((128, 512, model), (48, 7, None)):
    built = built or build(Predictor, 32, m, 32, **options | {"f": f})
    around = (32 * m + m) + (m**2 + m) + 2 * m + (m * 32 + 32)  # input, output net
    counted = sum(array.size for array in to_arrays(built).values())
    assert counted == 4 * block_parameters(m, f) + around

# %% [markdown] tags=["shared"]
# [GPT-2 small](https://github.com/openai/gpt-2) has 12 blocks with $m = 768$, a last
# norm, and a row for each of 50,257 tokens and 1,024 positions in two tables:

# %% tags=["shared"]
m, f = 768, 4 * 768
blocks = 12 * block_parameters(m, f) + 2 * m  # and the last norm
token_table, position_table = 50_257 * m, 1_024 * m
gpt2 = blocks + token_table + position_table
blocks, token_table, gpt2

# %% tags=["shared", "say"]
say(
    f"GPT-2 small has {blocks / 1e6:.0f} million parameters in its blocks and "
    f"{token_table / 1e6:.0f} million in its table of tokens: with embeddings "
    f"**{gpt2 / 1e6:.0f} million**, without them {blocks / 1e6:.0f}."
)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** The encoder of
# [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762) has six blocks with $m=512$
# and $f=2048$. How many millions of parameters is that, without embeddings?

# %% tags=["shared", "answer"]
by_hand, exact = 6 * 12 * 512**2, 6 * block_parameters(512, 2048)
assert abs(by_hand / exact - 1) < 0.005
say(
    f"$512^2$ is about 0.26 million, times 12 is 3.1, times six {by_hand / 1e6:.0f} "
    f"million. The exact number is {exact:,}: biases and norms are "
    f"{1 - by_hand / exact:.1%} of it."
)

# %% [markdown] tags=["shared"]
# ## A training step takes six operations per parameter and token
#
# In the forward pass, each parameter of a matrix is multiplied with one number of every
# token, and the product is added to a sum: two operations. The backward pass does this
# twice, for the gradient of the matrix and for that of its input. With $N$ parameters
# and $D$ tokens
# ([Kaplan et al. 2020](https://arxiv.org/abs/2001.08361)),
#
# $$C\approx 6\,N\,D .$$
#
# Kaplan et al. leave embeddings out of $N$: a table is looked up, not multiplied. But
# GPT-2 also uses its table of tokens as the matrix of its output, so we leave out only
# its table of positions.
#
# Not counted yet are products of two *activations*, the intermediate results: scores
# and weighted means take $4nm$ operations per token and block, with the backward pass
# $12nm$. For $l$ blocks
# ([Chowdhery et al. 2022](https://arxiv.org/abs/2204.02311), appendix B),
#
# $$C\approx(6N+12\,l\,n\,m)\,D .$$

# %% [markdown] tags=["torch"]
# `FlopCounterMode` counts the operations of all matrix products inside its `with`
# statement.


# %% tags=["torch"]
def batch(b, s):
    """Random inputs ``b s i`` and labels ``b s``."""
    draw = np.random.default_rng(1)
    x = floats(draw.normal(size=(b, s, sizes["n_inputs"])))
    return x, torch.as_tensor(draw.integers(32, size=(b, s)), device=device)


def loss_of(model, x, labels):
    """Mean cross-entropy of a batch."""
    return cross_entropy(model, x, labels)[0]


# %% tags=["torch"]
def measured_flops(model, x, labels):
    """Operations of one forward and one backward pass."""
    with FlopCounterMode(display=False) as counter:
        loss_of(model, x, labels).backward()
    model.zero_grad()
    return counter.get_total_flops()


measured = [measured_flops(model, *batch(1, n)) / n for n in lengths[:4].tolist()]

# %% tags=["shared"]
short = lengths[:4]  # 16 to 1,024
pairs = 12 * options["n_blocks"] * short * sizes["m"]  # operations per token
formula = 6 * n_parameters + pairs

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Million operations per token of a training step over the length n. The line 6N is level. The measured count starts on it and rises in a straight line, along 6N plus 12 l n m."}}
lines = {
    "6N + 12 l n m": (short, formula / 1e6),
    "6N": (short, np.full(4, 6 * n_parameters / 1e6)),
    "measured": (short, np.array(measured) / 1e6),
}
panels = {"million operations per token": lines}
fig = plots.curves(panels, x="length n", marks="o", size=(5.6, 2.8))
fig.axes[0].set_ylim(bottom=0)
fig

# %% tags=["shared", "say"]
ratio = np.array(measured) / formula
equal = n_parameters / (2 * options["n_blocks"] * sizes["m"])
share = 12 * 12 * 1024 * 768 / (6 * (gpt2 - position_table))
say(
    f"At all four lengths the measured count is {ratio.min():.2f} to {ratio.max():.2f} "
    f"of the formula. At n = {equal:.0f}, about $6m$, the pairs cost as much as the "
    f"parameters. In GPT-2 small with 1,024 tokens, the pairs add {share:.0%} to $6ND$."
)

# %% tags=["shared", "check"]
# Checked: as drawn, the count follows 6N + 12 l n m, and leaves 6N behind
title = "million operations per token"
line, level, found = (plots.drawn(fig, title, name)[1] for name in lines)
np.testing.assert_allclose(found / line, 1, atol=0.03)
assert 0.9 < found[0] / level[0] < 1.1 and found[-1] > 1.8 * level[-1]

# %% [markdown] tags=["shared"]
# ## Training time is operations divided by speed
#
# Training takes at least its operations divided by the limit of the machine. A real
# step reaches only a part of this limit, its **utilisation**.

# %% [markdown] tags=["torch"]
# A step in PyTorch: loss, gradients, update.


# %% tags=["torch"]
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


@torch.enable_grad()  # the stopwatch switches it off
def step(x, labels):
    """One update of the model in place."""
    loss = loss_of(model, x, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


# %% tags=["torch"]
data = batch(8, 64)
took = seconds(step, *data)

# %% tags=["shared", "say"]
work = (6 * n_parameters + 12 * options["n_blocks"] * 64 * sizes["m"]) * 8 * 64
utilisation = work / took / limit
say(
    f"A step on 8 sequences of 64 tokens takes {1e3 * took:.0f} ms for "
    f"{work / 1e9:.1f} billion operations: a utilisation of **{utilisation:.0%}**. The "
    "rest of the time probably goes into norms, softmax, activation functions and the "
    "update, all on the slope of the roofline, and into small products."
)

# %% [markdown] tags=["shared"]
# And GPT-2 small? About 20 tokens per parameter make the best use of a given number of
# operations ([Hoffmann et al. 2022](https://arxiv.org/abs/2203.15556)).

# %% tags=["shared"]
tokens = 20 * gpt2
operations = (6 * (gpt2 - position_table) + 12 * 12 * 1024 * 768) * tokens
days = operations / limit / 86_400
a100 = 502e15 / 3072  # operations a second, by Narayanan et al., see below
hours_a100 = operations / (3 / 4 * a100) / 3600


# %% tags=["shared", "say"]
def rounded(x):
    """Two digits are enough for an estimate."""
    return f"{float(f'{x:.2g}'):,.0f}"


say(
    f"That makes ${operations / 1e18:.1f} \\cdot 10^{{18}}$ operations. **This machine "
    f"needs at least {rounded(days)} days**, and {rounded(days / utilisation)} at the "
    "utilisation of our small model. "
    "[Narayanan et al. 2021](https://arxiv.org/abs/2104.04473) report "
    f"${a100 / 1e12:.0f} \\cdot 10^{{12}}$ operations a second per A100 GPU in half "
    "precision, a quarter of them for a second forward pass, which our formula leaves "
    f"out. With the rest, one GPU takes about **{hours_a100:.1f} hours**: a rough "
    "guide, since their model has $10^{12}$ parameters."
)

# %% tags=["torch", "check"]
# Checked: the step that was timed lowers the loss
assert float(step(*data).detach()) < math.log(32)

# %% [markdown] tags=["shared"]
# ## Activations, not weights, fill the memory
#
# Does it fit? A training step holds the **weights**; their **gradients**, as many
# again; **Adam's averages**, two for each weight; and the **activations** that the
# forward pass keeps for the backward pass. The first three are four numbers of 4 bytes:
# 16 bytes per parameter. The activations grow with batch and length, and the attention
# maps, `b h n n` in every block, with the square of the length.

# %% [markdown] tags=["torch"]
# The 16 bytes are enough because `optimizer.step()` works in place: to keep the
# old weights and averages beside the new ones would take 28. `activations` lists all
# that is kept except the parameters.


# %% tags=["torch"]
def activations(model, function, *args):
    """Arrays that ``function(model, *args)`` keeps for its backward pass."""
    parameters = {p.data_ptr() for p in model.parameters()}
    kept = kept_arrays(function, model, *args)
    return [a for address, a in kept.items() if address not in parameters]


# %% tags=["shared"]
def total_bytes(arrays):
    """Bytes of arrays of four-byte numbers."""
    return sum(4 * math.prod(a.shape) for a in arrays)


kept, maps = {}, {}  # bytes for each length
for n in short.tolist():
    arrays = activations(model, loss_of, *batch(4, n))
    kept[n] = total_bytes(arrays)
    maps[n] = total_bytes(a for a in arrays if a.shape[-2:] == (n, n))

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Stacked bars of the memory of a training step in percent, for four lengths n and a batch of 4, with the MiB above each bar. At n = 16, weights, gradients and Adam's averages fill most of the bar. With the length, the other activations and then the attention maps take over; at n = 1,024, the maps fill most of the bar."}}
every, own = (np.array([*found.values()]) for found in (kept, maps))
parts = {"weights": 4 * n_parameters, "gradients": 4 * n_parameters}
parts |= {"Adam's averages": 8 * n_parameters}
parts |= {"other activations": every - own, "attention maps": own}
total = sum(parts.values())
fig, (ax,) = plots.panels_in_rows(1, None, (7, 3), None, None)
top = np.zeros(4)
for colour, (name, size) in zip(plots.COLOURS, parts.items(), strict=False):
    names = [f"{n:,}" for n in kept]
    ax.bar(names, 100 * size / total, bottom=top, color=colour, label=name)
    top = top + 100 * size / total
for place, size in enumerate(total):
    ax.text(place, 101, f"{size / 2**20:.0f} MiB", ha="center", va="bottom")
ax.set(xlabel="length n", ylabel="% of the memory", ylim=(0, 112))
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
fig

# %% tags=["shared", "say"]
filled = {n: size / (size + 16 * n_parameters) for n, size in kept.items()}
say(
    f"Weights, gradients and averages take {16 * n_parameters / 2**20:.1f} MiB at "
    f"every length, and {16 * gpt2 / 2**30:.1f} GiB for GPT-2 small. Activations are "
    f"{filled[16]:.0%} of the whole at n = 16, and {filled[1024]:.0%} at n = 1,024, "
    f"mostly attention maps. At n = 256, the maps are {maps[256] / 2**20:.0f} of "
    f"{kept[256] / 2**20:.0f} MiB of activations."
)

# %% tags=["torch", "check"]
# Checked: Adam's averages are twice the weights, and a step keeps all in its place
before = [p.data_ptr() for p in model.parameters()]
step(*data)
state = [a for part in optimizer.state.values() for a in part.values() if a.ndim]
assert sum(a.nbytes for a in state) == 2 * 4 * n_parameters
assert [p.data_ptr() for p in model.parameters()] == before

# %% tags=["shared", "check"]
# Checked: activations grow with b, and faster with n; as drawn, the maps take over
doubled = total_bytes(activations(model, loss_of, *batch(8, 64))) / kept[64]
np.testing.assert_allclose(doubled, 2, rtol=1e-3)
grown = np.array([kept[4 * n] / kept[n] for n in (16, 64, 256)])
assert 3.9 < grown[0] < grown[1] < grown[2] < 16 and grown[2] > 8
assert [maps[4 * n] / maps[n] for n in (16, 64, 256)] == [16] * 3
heights = np.array([[bar.get_height() for bar in c] for c in fig.axes[0].containers])
np.testing.assert_allclose(heights.sum(0), 100)
assert heights[3:, 0].sum() < 33 and heights[4, -1] > 50
assert (heights[4, :-1] < heights[4, 1:]).all()

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** What grows with eight heads instead of four, and by
# which factor at $n = 256$? Predict it from the numbers above, then measure a second
# model with `options | {"n_heads": 8}`.

# %% tags=["shared", "answer"]
eight = build(Predictor, *sizes.values(), **options | {"n_heads": 8})
found = total_bytes(activations(eight, loss_of, *batch(4, 256))) / kept[256]
predicted = 1 + maps[256] / kept[256]
assert sum(array.size for array in to_arrays(eight).values()) == n_parameters
assert abs(found / predicted - 1) < 0.02  # loose: devices keep a little more
say(
    "Only the activations grow: there are twice as many maps, and each head has half "
    f"the size, so everything else is as before. Twice the maps make {predicted:.2f} "
    f"times the activations; measured: {found:.2f}."
)

# %% [markdown] tags=["shared"]
# ## Cheaper attention gives something up
#
# To save the $n^2$ operations themselves, attention has to be replaced
# ([Tay et al. 2020](https://arxiv.org/abs/2009.06732)):
#
# | way | operations | gives up |
# |---|---|---|
# | windows of $r$ neighbours | $nrm$ | direct paths |
# | $n$ keys mixed into $r$ | $nrm$ | single keys, a free length |
# | linear attention | $ndm$ | sharp weights (often) |
#
# Sources, row by row: [Longformer](https://arxiv.org/abs/2004.05150),
# [Linformer](https://arxiv.org/abs/2006.04768),
# [Katharopoulos et al. 2020](https://arxiv.org/abs/2006.16236).
#
# Linear attention replaces $\exp(q\cdot k)$ by $\varphi(q)\cdot\varphi(k)$, where
# $\varphi$ is a function that makes positive features. Without an exponential between
# the two products, the brackets can move:
#
# $$(\varphi(Q)\,\varphi(K)^{\mathsf T})\,V=\varphi(Q)\,(\varphi(K)^{\mathsf T}V) ,$$
#
# and the matrix in brackets on the right is `d d`, however long the sequence.


# %% tags=["torch"]
def linear_attention(q, k, v):
    """Weights in proportion to φ(q)·φ(k), φ(x) = elu(x) + 1: ``... s d -> ... s d``."""
    q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1  # positive
    summary = k.transpose(-1, -2) @ v  # ... d d
    total = k.sum(dim=-2, keepdim=True).transpose(-1, -2)  # ... d 1
    return q @ summary / (q @ total)


# %% [markdown] tags=["shared"]
# What is given up? Choose queries that point in the direction of their own keys,
# $q=4k$. With the identity matrix as values, the output *is* the matrix of weights.

# %% tags=["shared"]
k = np.random.default_rng(3).normal(size=(1, 64, 64))  # b s d
identity = floats(np.eye(64)[None])
exact = as_numpy(attention(floats(4 * k), floats(k), identity)[0])[0]  # q k
flat = as_numpy(linear_attention(floats(4 * k), floats(k), identity))[0]  # q k

# %% tags=["shared", "say"]
sharp, pale = exact.diagonal().mean(), flat.diagonal().mean()
say(
    f"Softmax attention gives its own key **{sharp:.1%}** of the weight, linear "
    f"attention with this $\\varphi$ **{pale:.1%}**; an even share would be "
    f"{1 / 64:.1%}."
)

# %% tags=["shared", "check"]
# Checked: linear weights are those of φ(q)·φ(k), sum to one, and are not sharp here
phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(x))[0] for x in (4 * k, k))
products = phi_q @ phi_k.T  # q k
np.testing.assert_allclose(flat, products / products.sum(1, keepdims=True), atol=1e-5)
np.testing.assert_allclose(flat.sum(axis=1), 1, atol=1e-5)
assert sharp > 0.99 and pale < 0.05

# %% [markdown] tags=["shared"]
# ## Each remedy changes one term
#
# "Left here" is what a change leaves of the activations (memory) or of the operations
# per token (time) of our model at 1,024 tokens.

# %% tags=["shared"]
whole = kept[1024]


def left(n=1024, b=4, **changed):
    """Activations of a changed model or batch, as a share of those above."""
    other = build(Predictor, *sizes.values(), **options | changed)
    return total_bytes(activations(other, loss_of, *batch(b, n))) / whole


halved = {"length": left(512), "heads": left(n_heads=2), "batch": left(b=2)}
unfused = 1 - maps[1024] / whole
again = 4 * 4 * 1024 * sizes["m"] / whole + 1 / 4  # inputs of 4 blocks; one block
windowed = 6 * n_parameters + pairs[0]  # 16 neighbours
fewer = np.array([6 * n_parameters + pairs[-1] / 2, windowed]) / formula[-1]
smaller = (6 * n_parameters / 4 + pairs[-1] / 2) / formula[-1]

# %% tags=["shared", "say"]
h = halved
rows = [
    ["memory", "two half batches, added up", "½", h["batch"], "small products"],
    ["memory", "half the length", "maps ¼, rest ½", h["length"], "half the context"],
    ["memory", "half the heads", "maps ½", h["heads"], "half the patterns"],
    ["memory", "a fused kernel", "no maps", unfused, "no maps to look at (1)"],
    ["memory", "recompute each block", "one block", again, "⅓ of operations again"],
    ["memory", "half precision", "½ at best", None, "about three digits"],
    ["time", "twice the batch", "utilisation", None, "twice the activations"],
    ["time", "half the length", "pairs ½", fewer[0], "half the context"],
    ["time", "16 neighbours", "pairs $16/n$", fewer[1], "no direct paths"],
    ["time", "half of $m$", "blocks ¼", smaller, "often quality"],
]
rows = [[*row[:3], f"{row[3]:.2f}" if row[3] else "–", row[4]] for row in rows]
shown = table(["too little", "change", "factor", "left here", "price"], *rows)
say(f"{shown}\n\n(1) JAX: only half precision, on NVIDIA.")

# %% tags=["shared", "check"]
# Checked: half of the batch, length or heads leaves what the sizes of the maps predict
share = maps[1024] / whole
expected = {"length": (1 - share) / 2 + share / 4, "heads": 1 - share / 2, "batch": 0.5}
for name, found in halved.items():
    np.testing.assert_allclose(found, expected[name], rtol=0.02)  # loose: likewise

# %% [markdown] tags=["shared"]
# Recomputing takes one more forward pass
# ([Chen et al. 2016](https://arxiv.org/abs/1604.06174)). Half precision
# ([Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740)) helps where activations
# are kept in it: under PyTorch's `autocast` on a GPU, the softmax stays in float32, so
# there it needs a fused kernel. Weights and Adam's averages stay in float32, so that
# small updates are not lost. In your own code:


# %% tags=["torch"]
def fused_attention(q, k, v):
    """Fused, or an error where no fused kernel can run: ``b h s d -> b h s d``."""
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


# mixed precision; blocks again: checkpoint(block, x, use_reentrant=False)
with torch.autocast(device, torch.bfloat16):
    loss = loss_of(model, *data)

if device == "cuda":  # the peak memory of your own step
    torch.cuda.reset_peak_memory_stats()
    step(*data)
    print(torch.cuda.max_memory_allocated() / 2**30, "GiB")

# %% [markdown] tags=["shared"]
# **Exercise 3, an open question.** You want to train GPT-2 small on sequences of 1,024
# tokens in float32 on a GPU with $24$ GiB. How many sequences fit into a batch, and
# what would you change first? Hints: a block is
# `build(EncoderBlock, 768, 12, 3072, activation="gelu", norm_first=True)`; measure it
# with `activations(block, lambda block, x: block(x)[0], x)`. Add the logits over 50,257
# tokens, their softmax, and the 16 bytes.

# %% tags=["shared", "answer"]
block = build(EncoderBlock, 768, 12, 3072, activation="gelu", norm_first=True)
x = floats(np.random.default_rng(2).normal(size=(1, 1024, 768)))
arrays = activations(block, lambda block, x: block(x)[0], x)
of_blocks = 12 * total_bytes(arrays)
of_maps = 12 * total_bytes(a for a in arrays if a.shape[-2:] == (1024, 1024))
logits = 2 * 4 * 1024 * 50_257  # they and their softmax
room = 24 * 2**30 - 16 * gpt2
fits, unfused = (room // (of_blocks + logits - saved) for saved in (0, of_maps))
assert 1 <= fits < unfused
say(
    f"Weights, gradients and averages take {16 * gpt2 / 2**30:.1f} GiB. A sequence "
    f"takes {of_blocks / 2**30:.1f} GiB in the blocks and {logits / 2**30:.1f} GiB for "
    f"the logits, so {fits:.0f} sequences fit. First do without the maps, since the "
    f"results stay the same: then {unfused:.0f} sequences fit. In PyTorch a fused "
    "kernel does it; JAX has none in float32, so compute attention in chunks there. "
    "Then half precision (and in JAX a fused kernel), then recomputation."
)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Self-attention has paths of length one, for $n^2m$ operations and, written out,
#   $n^2$ weights to keep.
# * Operations tell how the work grows; operations per byte tell how fast it can be
#   done: the roofline.
# * A block has about $12m^2$ parameters; a training step takes $(6N+12\,l\,n\,m)D$
#   operations. Divide by speed and utilisation for the time.
# * Weights, gradients and Adam's averages take 16 bytes per parameter in float32;
#   activations usually take most of the memory. A fused kernel keeps no maps.
# * Cheaper attention gives up direct paths, single keys, or sharp weights.

# %% [markdown] tags=["torch"]
# This is the last chapter. What differs between the frameworks is collected on the page
# [JAX and PyTorch compared](../book/comparison.md).
