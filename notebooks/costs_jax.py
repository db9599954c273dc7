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
# its sizes, estimate how long a training takes before you start it, and say where count
# and clock disagree, and why. You need: the chapters on attention and the encoder, and
# some idea of a training loop.
#
# A model does not fit into memory, or an epoch takes a day. What helps: shorter
# sequences, fewer heads, a smaller batch, another kind of attention? Each changes a
# different term of the cost. This chapter derives the terms one by one, measures each
# on the machine that built the page, and shows which one dominates when.

# %% [markdown] tags=["jax"]
# This page uses **JAX**, with Flax NNX for layers. The same page in PyTorch:
# [costs_torch](costs_torch.ipynb).

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

from helpers import plots
from helpers.prose import say, word
from helpers.shapes import as_numpy
from helpers.weights import to_arrays

plots.use_style()

# %% tags=["jax"]
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from helpers.model_jax import (
    EncoderBlock,
    MultiHeadAttention,
    Predictor,
    attention,
    build,
)
from helpers.train_jax import cross_entropy

jax.config.update("jax_default_matmul_precision", "highest")
floats = partial(jnp.asarray, dtype=jnp.float32)

# %% [markdown] tags=["shared"]
# ## Self-attention has the shortest paths and the most pairs
#
# Before 2017, sequences were read by recurrent or convolutional layers. Compare them by
# three numbers. *Operations* are the work of a layer. *Sequential steps* have to wait
# for one another, however many cores there are. The *longest path* is the number of
# layers or steps between two positions at opposite ends of the sequence: what the last
# word needs to know about the first has to pass through all of them.

# %% [markdown] tags=["shared"]
# For length $n$, size $m$, a convolution of width $w$ and a neighbourhood of $r$
# positions, up to constant factors
# ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), table 1):
#
# | layer | operations | sequential steps | longest path |
# |---|---|---|---|
# | self-attention | $n^2 m$ | $1$ | $1$ |
# | recurrent | $n m^2$ | $n$ | $n$ |
# | convolution | $w n m^2$ | $1$ | $n / w$ |
# | dilated convolution | $w n m^2$ | $1$ | $\log_w n$ |
# | attention to $r$ neighbours | $r n m$ | $1$ | $n / r$ |
#
# The path of a convolution is logarithmic only if it is *dilated*: its layers look at
# every neighbour, then at every $w$-th, then at every $w^2$-th. Count the layers: which
# positions does the last one depend on, and when is the first among them?


# %% tags=["shared"]
def longest_path(sees, n):
    """Layers until the last position depends on the first; ``sees(i)`` is ``q k``."""
    depends, layers = np.arange(n) == n - 1, 0  # k
    while not depends[0]:
        depends = depends @ sees(layers)  # on whatever those positions look at
        layers += 1
    return layers


# %% tags=["shared"]
n, w, r = 256, 4, 16
back = np.arange(n)[:, None] - np.arange(n)  # q k: how far back a key is
paths = {
    "self-attention": longest_path(lambda i: back == back, n),
    "recurrent": longest_path(lambda i: (back == 0) | (back == 1), n),
    "convolution": longest_path(lambda i: (back >= 0) & (back < w), n),
    "dilated convolution": longest_path(
        lambda i: np.isin(back, w**i * np.arange(w)), n
    ),
    "attention to r neighbours": longest_path(lambda i: (back >= 0) & (back <= r), n),
}
paths

# %% tags=["shared", "check"]
# Checked: the paths have the lengths of the table
assert paths["self-attention"] == 1 and paths["recurrent"] == n - 1
assert paths["convolution"] == math.ceil((n - 1) / (w - 1))  # w - 1 further per layer
assert w ** paths["dilated convolution"] == n  # each layer w times as far
assert paths["attention to r neighbours"] == math.ceil((n - 1) / r)

# %% [markdown] tags=["shared"]
# ## Gradients fade along a path
#
# Why does the length of a path matter? Because the gradient goes back along the same
# path, and every step multiplies it by another matrix. If these shrink it, it shrinks
# exponentially ([Bengio et al. 1994](https://doi.org/10.1109/72.279181)): the model
# cannot learn from what is far away. A GRU has gates that can keep a state, but it has
# to learn to use them. Take the last output of an untrained GRU, and of an untrained
# attention layer, and ask how much each position of the input matters to it.

# %% [markdown] tags=["jax"]
# `lax.scan` compiles one step of the GRU and repeats it, carrying the state along;
# `jax.grad` goes back through all steps.


# %% tags=["jax"]
def gradient_norms(layer, x):
    """Norm of the gradient of the last output for each position: ``1 s m -> s``."""
    gradient = jax.grad(lambda x: layer(x)[0, -1].sum())(floats(x))
    return as_numpy(jnp.linalg.norm(gradient[0], axis=-1))


# %% tags=["jax"]
n, m = 64, 64
cell, one_head = build(nnx.GRUCell, m, m), build(MultiHeadAttention, m, 1)
start = jnp.zeros((1, m))
gru = jax.jit(lambda x: jax.lax.scan(cell, start, x.swapaxes(0, 1))[1].swapaxes(0, 1))
layers = {"attention": jax.jit(lambda x: one_head(x)[0]), "GRU": gru}
x = np.random.default_rng(0).normal(size=(1, n, m))
norms = {name: gradient_norms(layer, x)[::-1] for name, layer in layers.items()}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Norm of the gradient of the last output, on a logarithmic scale, over the distance to the position of the input. That of the GRU falls in a straight line by many orders of magnitude; that of attention is level."}}
lines = {name: (np.arange(n), norm) for name, norm in norms.items()}
panels = {"gradient of the last output": lines}
fig = plots.curves(panels, x="positions back", y="norm", log_y=True, size=(5, 2.6))
fig

# %% tags=["shared", "say"]
fades = norms["GRU"][-1] / norms["GRU"][0]
per_step = fades ** (1 / (n - 1))
evens = norms["attention"][1:].min() / norms["attention"][1:].max()
say(
    f"The GRU's gradient shrinks to {per_step:.2f} with every step back (checked: "
    f"{word('below', per_step, 0.8)} 0.8), over {n - 1} steps to {fades:.0e}. In "
    f"attention, the smallest gradient of all earlier positions is {evens:.2f} of the "
    f"largest (checked: {word('above', evens, 0.1)} 0.1), however far back it is."
)

# %% tags=["shared", "check"]
# Checked: as drawn, the GRU's gradient fades with distance and attention's does not
title = "gradient of the last output"
fading, level = (plots.drawn(fig, title, name)[1] for name in ("GRU", "attention"))
assert (fading[-1] / fading[0]) ** (1 / (n - 1)) < 0.8
assert level[1:].min() / level[1:].max() > 0.11
near, far = level[1 : n // 2].mean(), level[n // 2 :].mean()
assert 0.7 < near / far < 1.4

# %% [markdown] tags=["shared"]
# ## Count and clock disagree
#
# Attention pays for short paths with $n^2$ pairs. Where does it become more expensive
# than a recurrent layer? Count all multiplications. One head of size $m$ has four
# products of `n m` with `m m`, then $n^2 m$ for the scores and $n^2 m$ for the means. A
# GRU has six products of `n m` with `m m`. They are equal at $n = m$.

# %% tags=["shared"]
lengths = 4 ** np.arange(2, 6)  # n = 16, 64, 256, 1024
counts = {
    "attention": 4 * lengths * m**2 + 2 * lengths**2 * m,
    "GRU": 6 * lengths * m**2,
    "16 neighbours": 4 * lengths * m**2 + 2 * 16 * lengths * m,
}
inputs = [floats(np.random.default_rng(6).normal(size=(1, n, m))) for n in lengths]

# %% [markdown] tags=["jax"]
# The clock counts differently. JAX returns before the work is done, and compiles at the
# first call. So the stopwatch runs the function once unwatched, and waits for each
# result with `block_until_ready`.


# %% tags=["jax"]
def seconds(function, *args, repeats=3):
    """Shortest of several runs, after one that compiles."""
    jax.block_until_ready(function(*args))
    runs = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        runs.append(time.perf_counter() - start)
    return min(runs)


# %% tags=["jax"]
times = {name: [seconds(f, x) for x in inputs] for name, f in layers.items()}
matrix = jax.random.normal(jax.random.key(0), (m, 3 * m))
matmul = jax.jit(jnp.matmul)
product_times = [seconds(matmul, x[0], matrix, repeats=20) for x in inputs]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Left, multiplications of attention, of a GRU and of attention restricted to 16 neighbours over the length n: the first two cross at n equal to m. In the middle, measured milliseconds of attention and of a GRU. Right, the billions of multiplications per second that attention, the GRU and a single product of n rows reach."}}
rates = {name: counts[name] / np.array(found) for name, found in times.items()}
rates["one product of n rows"] = 3 * lengths * m**2 / np.array(product_times)
panels = {
    f"multiplications, m = {m}": {name: (lengths, c) for name, c in counts.items()},
    "milliseconds": {name: (lengths, 1e3 * np.array(t)) for name, t in times.items()},
    "billions per second": {name: (lengths, r / 1e9) for name, r in rates.items()},
}
fig = plots.curves(
    panels, x="length n", log_x=2, log_y=True, marks="o", size=(7.6, 2.6)
)
fig

# %% tags=["shared", "check"]
# Checked: as drawn, attention takes fewer multiplications exactly where n < m
drawn = {
    name: plots.drawn(fig, f"multiplications, m = {m}", name)[1] for name in counts
}
np.testing.assert_array_equal(drawn["attention"] < drawn["GRU"], lengths < m)
np.testing.assert_array_equal(drawn["attention"] == drawn["GRU"], lengths == m)
growth = drawn["16 neighbours"][1:] / drawn["16 neighbours"][:-1]
np.testing.assert_array_equal(growth, 4)  # linear in n
quadratic = drawn["attention"] - 4 * lengths * m**2
np.testing.assert_array_equal(quadratic[1:], 16 * quadratic[:-1])

# %% tags=["shared", "say"]
won = lengths[np.array(times["attention"]) < np.array(times["GRU"])]
step_time = times["GRU"][-1] / lengths[-1]
ideal = 6 * m**2 / rates["one product of n rows"][-1]
reached = ", ".join(f"{name} {rate[-1] / 1e9:.1f}" for name, rate in rates.items())
say(
    f"By count, the two cross at n = {m}. By the clock of this machine, attention won "
    f"at n = {', '.join(map(str, won)) or 'none of these'}. Billions of "
    f"multiplications per second at n = {lengths[-1]:,}: {reached}. A step of the GRU "
    f"took {1e6 * step_time:.1f} µs; at the rate of the large product, its "
    f"{6 * m**2:,} multiplications would take {1e6 * ideal:.2f} µs."
)

# %% [markdown] tags=["shared"]
# Attention is a few large products, which fill the machine. The GRU's steps wait for
# each other, however many cores are idle: each starts several small operations, and
# reads its matrices to use every number once, for a single row. (A larger batch gives
# it more rows.) So the count says how the work grows, and not how long it takes.

# %% [markdown] tags=["jax"]
# `scan` compiles the loop, so that a step takes little to start on a CPU; PyTorch's GRU
# starts every operation of every step by itself. On a GPU, so does XLA.

# %% [markdown] tags=["shared"]
# ## A fused kernel never holds all weights
#
# Memory is the other price of the pairs. Our function keeps the whole $n \times n$
# matrix of weights, and the backward pass needs it again. But nobody needs all rows at
# the same time. Take the queries in blocks, and compute the weights of a block *again*
# in the backward pass instead of keeping them: the result is exact, and the memory is
# linear in $n$ ([Rabe & Staats 2021](https://arxiv.org/abs/2112.05682)).

# %% [markdown] tags=["jax"]
# `jax.checkpoint` marks a function to be run again in the backward pass; `lax.map` does
# one block after another. A *fused kernel* goes further: it takes the keys in blocks as
# well, and keeps the scores in the processor's fastest memory
# ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)). In JAX that is
# `implementation="cudnn"`, for NVIDIA GPUs and half precision; `"xla"` runs everywhere
# and does the same operations as our function.


# %% tags=["jax"]
def written_out(q, k, v):
    """Our own attention, for one head: ``b s d -> b s d``."""
    return attention(q, k, v)[0]


def in_blocks(q, k, v, size=64):
    """The same, ``size`` queries at a time, computed again on the way back."""
    b, s, d = q.shape
    blocks = q.reshape(b, -1, min(size, s), d).swapaxes(0, 1)  # block b size d
    attend = jax.checkpoint(written_out)
    blocks = jax.lax.map(lambda rows: attend(rows, k, v), blocks)
    return blocks.swapaxes(0, 1).reshape(b, s, d)


def framework_attention(q, k, v):
    """The framework's own attention, for one head: ``b s d -> b s d``."""
    q, k, v = (x[:, :, None] for x in (q, k, v))  # b s 1 d
    return jax.nn.dot_product_attention(q, k, v, implementation="xla")[:, :, 0]


# %% [markdown] tags=["jax"]
# How many bytes does a forward pass keep for the backward pass? `jax.vjp` returns the
# backward pass as a *pytree*, a nested structure of arrays, which contains all it
# keeps. `eval_shape` *traces* it: Python runs once, with shapes in place of numbers.


# %% tags=["jax"]
def kept_arrays(function, *args):
    """What the forward pass keeps for the backward pass, besides its arguments."""
    kept = {}

    def forward(args):
        _, backward = jax.vjp(function, *args)
        given = {id(a) for a in jax.tree.leaves(args)}
        arrays = {id(a): a for a in jax.tree.leaves(backward)}
        kept.update({i: a for i, a in arrays.items() if i not in given})
        return 0

    jax.eval_shape(forward, args)
    return kept


def work_memory(function, x):
    """Bytes that are kept for the gradient of q, k and v, and these themselves."""
    kept = kept_arrays(function, x, x, x)
    return 3 * x.nbytes + sum(a.size * a.dtype.itemsize for a in kept.values())


# %% tags=["jax"]
kinds = {
    "written out": jax.jit(written_out),
    "in blocks": jax.jit(in_blocks),
    "framework's own": jax.jit(framework_attention),
}
memory = {name: [work_memory(f, x) for x in inputs] for name, f in kinds.items()}
times = {name: [seconds(f, x, x, x) for x in inputs] for name, f in kinds.items()}
outputs = {name: as_numpy(f(*[inputs[2]] * 3)) for name, f in kinds.items()}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Left, bytes needed for the gradient over the length n: written out they grow with the square of n, in blocks of queries in proportion to n; the framework's own call is drawn beside them. Right, the milliseconds of all three."}}
panels = {
    "bytes for the gradient": {name: (lengths, size) for name, size in memory.items()},
    "milliseconds, forward": {
        name: (lengths, 1e3 * np.array(t)) for name, t in times.items()
    },
}
fig = plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o")
fig

# %% tags=["shared", "say"]
whole, parts, own = (found[-1] / found[-2] for found in memory.values())
say(
    f"From n = {lengths[-2]} to {lengths[-1]:,}, four times the length, the "
    f"written-out function needs {whole:.1f} times the memory (checked: "
    f"{word('more', whole, 10)} than 10), in blocks {parts:.1f} times (checked: "
    f"{word('less', parts, 5)} than 5), and the framework's own {own:.1f} times."
)

# %% tags=["shared", "check"]
# Checked: blocks give the same output, and as drawn their memory is linear in n
np.testing.assert_allclose(outputs["in blocks"], outputs["written out"], atol=1e-5)
np.testing.assert_allclose(
    outputs["framework's own"], outputs["written out"], atol=1e-5
)
square, linear = (
    plots.drawn(fig, "bytes for the gradient", name)[1]
    for name in ("written out", "in blocks")
)
assert square[-1] > 10 * square[-2] and linear[-1] < 5 * linear[-2]
assert linear[-1] < square[-1] / 4

# %% [markdown] tags=["jax"]
# With `"xla"`, JAX's own call needs as much as the function written out.

# %% tags=["jax", "check"]
# Checked: so it is in the working memory of XLA, and "xla" needs as much as ours
assert 0.75 < memory["framework's own"][-1] / memory["written out"][-1] < 1.4
cpu, used = jax.devices("cpu")[0], {}  # a GPU's libraries add buffers of a fixed size
for name in ("written out", "in blocks"):
    gradient = jax.grad(lambda *qkv, f=kinds[name]: f(*qkv).sum(), argnums=(0, 1, 2))
    for x in inputs[-2:]:
        compiled = jax.jit(gradient).lower(*[jax.device_put(x, cpu)] * 3).compile()
        used[name, x.shape[1]] = compiled.memory_analysis().temp_size_in_bytes
assert used["written out", 1024] > 8 * used["written out", 256]
assert used["in blocks", 1024] < 6 * used["in blocks", 256]

# %% [markdown] tags=["shared"]
# ## The parameters follow from the sizes
#
# Now a whole model. A block has four matrices `m m` and their biases in attention, two
# matrices between $m$ and $f$ and their biases in the feed-forward net, and two norms
# of $2m$:
#
# $$N_\mathrm{block} = (4m^2 + 4m) + (2mf + f + m) + 4m .$$
#
# With the usual $f = 4m$ that is about $12m^2$; the length of the sequence and the
# number of heads do not occur. Around the blocks, the predictor of this book has an
# input layer and a small net for the outputs.


# %% tags=["shared"]
def block_parameters(m, f):
    """Attention, feed-forward net and two norms."""
    return (4 * m**2 + 4 * m) + (2 * m * f + f + m) + 4 * m


# %% tags=["shared"]
sizes = {"n_inputs": 32, "m": 128, "n_outputs": 32}  # m: a product takes milliseconds
options = {
    "n_blocks": 4,
    "n_heads": 4,
    "f": 512,
    "max_length": 1024,
}  # f = 4m, as usual
model = build(Predictor, *sizes.values(), **options)
n_parameters = sum(array.size for array in to_arrays(model).values())
n_parameters

# %% tags=["shared", "check"]
# Checked: the formula counts the parameters of the built model, and of a wider one
for m, f, built in ((128, 512, model), (48, 7, None)):
    built = built or build(Predictor, 32, m, 32, **options | {"f": f})
    around = (
        (32 * m + m) + (m**2 + m) + 2 * m + (m * 32 + 32)
    )  # input layer, output net
    counted = sum(array.size for array in to_arrays(built).values())
    assert counted == 4 * block_parameters(m, f) + around

# %% tags=["shared", "say"]
m, f, vocabulary, context = 768, 4 * 768, 50_257, 1_024  # GPT-2 small
stack = 12 * block_parameters(m, f)
gpt2 = stack + vocabulary * m + context * m + 2 * m  # tables, last norm
say(
    f"Our model has {n_parameters:,} parameters. The same formula with $m = 768$ and "
    f"12 blocks gives {stack:,}; with the tables of {vocabulary:,} tokens and "
    f"{context:,} positions and a last norm that makes {gpt2:,}: "
    "[GPT-2 small](https://github.com/openai/gpt-2), known as 124M."
)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** The encoder of
# [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762) has six blocks with $m = 512$
# and $f = 2048$. How many millions of parameters is that, without the embeddings? Use
# $12m^2$ and compute to two digits.

# %% tags=["shared", "answer"]
by_hand, exact = 6 * 12 * 512**2, 6 * block_parameters(512, 2048)
assert abs(by_hand / exact - 1) < 0.005
say(
    f"$512^2$ is about 0.26 million, times 12 is 3.1, times six {by_hand / 1e6:.0f} "
    f"million. With all biases and norms it is {exact:,}: they are "
    f"{1 - by_hand / exact:.1%} of it."
)

# %% [markdown] tags=["shared"]
# ## A training step takes six operations per parameter and token
#
# In the forward pass, each number of a matrix is multiplied with a number of every
# token, and the product is added to a sum: two operations per parameter and token. The
# backward pass does this twice, once for the gradient of the matrix and once for that
# of its input. With $N$ parameters and $D$ tokens
# ([Kaplan et al. 2020](https://arxiv.org/abs/2001.08361)),
#
# $$C \approx 6\,N\,D .$$
#
# These are floating-point operations, *FLOPs*. What is missing are the products of
# activations with activations: scores and weighted means take $4nm$ operations per
# token and block, and with the backward pass $12nm$. For $l$ blocks
# ([Chowdhery et al. 2022](https://arxiv.org/abs/2204.02311), appendix B),
#
# $$C \approx (6N + 12\,l\,n\,m)\,D .$$

# %% [markdown] tags=["jax"]
# XLA knows the operations of a function that it has compiled: `cost_analysis` tells.
# `nnx.split` separates the parameters, a pytree, from the structure of the model, so
# that the loss is a function of the parameters.


# %% tags=["jax"]
def batch(b, s):
    """Random inputs ``b s i`` and labels ``b s``."""
    draw = np.random.default_rng(1)
    x = floats(draw.normal(size=(b, s, sizes["n_inputs"])))
    return x, jnp.asarray(draw.integers(32, size=(b, s)))


structure, params, rest = nnx.split(model, nnx.Param, ...)


def loss_of(params, x, labels):
    """Mean cross-entropy of a batch, as a function of the parameters."""
    return cross_entropy(nnx.merge(structure, params, rest), x, labels)[0]


def measured_flops(params, x, labels):
    """Operations of one forward and one backward pass."""
    arguments = jax.device_put((params, x, labels), jax.devices("cpu")[0])
    compiled = jax.jit(jax.grad(loss_of)).lower(*arguments).compile()
    return compiled.cost_analysis()["flops"]


# %% tags=["jax"]
per_token = {"measured": [], "6N": [], "6N + 12 l n m": []}
for n in lengths.tolist():
    pairs = 12 * options["n_blocks"] * n * sizes["m"]
    per_token["measured"].append(measured_flops(params, *batch(1, n)) / n)
    per_token["6N"].append(6 * n_parameters)
    per_token["6N + 12 l n m"].append(6 * n_parameters + pairs)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Operations per token of a training step over the length n. The line 6N is level; the measured count lies on it for short sequences and rises with n, along the line 6N plus 12 l n m."}}
panels = {
    "operations per token": {name: (lengths, line) for name, line in per_token.items()}
}
fig = plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o", size=(5, 2.6))
fig

# %% tags=["shared", "say"]
ratio = np.array(per_token["measured"]) / per_token["6N"]
closer = np.array(per_token["measured"]) / per_token["6N + 12 l n m"]
equal = n_parameters / (2 * options["n_blocks"] * sizes["m"])
say(
    f"At n = {lengths[0]} the measured count is {ratio[0]:.2f} of $6ND$, at "
    f"n = {lengths[-1]:,} it is {ratio[-1]:.2f}. With the term for the pairs, it is "
    f"{closer.min():.2f} to {closer.max():.2f} of the formula at all lengths (checked: "
    f"0.97 to 1.03). The pairs take as much as the parameters at n = {equal:.0f}, "
    "about $6m$: for short sequences, attention is a small part of the work."
)

# %% tags=["shared", "check"]
# Checked: as drawn, the count follows 6N + 12 l n m, and leaves 6N behind
title = "operations per token"
found, level, line = (plots.drawn(fig, title, name)[1] for name in per_token)
np.testing.assert_allclose(found / line, 1, atol=0.03)
assert 0.9 < found[0] / level[0] < 1.1 and found[-1] > 1.8 * level[-1]

# %% [markdown] tags=["shared"]
# ## Matrix products set the limit of the machine
#
# How long does a training take? At least its operations divided by the operations that
# the machine does in a second. The limit is measured with the one thing it does best, a
# large matrix product. The share of this limit that a training reaches is its
# *utilisation*.

# %% [markdown] tags=["jax"]
# One training step: forward, backward, an update by Adam, compiled as one function. The
# update is a few operations per parameter, whatever the number of tokens.


# %% tags=["jax"]
optimiser = optax.adam(1e-3)


@jax.jit
def step(params, opt_state, x, labels):
    """New parameters and a new state of the optimiser."""
    loss, gradient = jax.value_and_grad(loss_of)(params, x, labels)
    change, opt_state = optimiser.update(gradient, opt_state)
    return optax.apply_updates(params, change), opt_state, loss


# %% tags=["jax"]
big = jax.random.normal(jax.random.key(1), (2048, 2048))
limit = 2 * 2048**3 / seconds(matmul, big, big)  # operations per second
took = seconds(step, params, optimiser.init(params), *batch(8, 64))

# %% tags=["shared", "say"]
work = (6 * n_parameters + 12 * options["n_blocks"] * 64 * sizes["m"]) * 8 * 64
days = 6 * gpt2 * 20 * gpt2 / limit / 86_400
say(
    f"This machine multiplies matrices at {limit / 1e9:,.0f} billion operations a "
    f"second. A step on 8 sequences of 64 tokens takes {1e3 * took:.1f} ms for "
    f"{work / 1e9:.1f} billion operations: a utilisation of {work / took / limit:.0%}. "
    "Training GPT-2 small on 20 tokens per parameter, the best use of a budget "
    "according to [Hoffmann et al. 2022](https://arxiv.org/abs/2203.15556), would take "
    f"it at least {days:,.1f} days."
)

# %% [markdown] tags=["shared"]
# What is below the limit went into norms, softmax and activation functions, which move
# much memory for little arithmetic, into products too small to fill the machine, and
# into starting operations one by one.

# %% tags=["jax", "check"]
# Checked: the step that was timed lowers the loss
fresh, after = params, optimiser.init(params)
for _ in range(8):
    fresh, after, loss = step(fresh, after, *batch(8, 64))
assert loss < loss_of(params, *batch(8, 64))

# %% [markdown] tags=["shared"]
# ## Activations, not weights, fill the memory
#
# A training step holds four kinds of numbers: the **weights**; their **gradients**, as
# many again; **Adam's averages**, two for each weight; and the **activations**, all
# that the forward pass keeps for the backward pass. The first three follow from $N$:
# four numbers of 4 bytes are 16 bytes per parameter. The activations grow with the
# batch and the length, and the attention maps, `b h n n` in every block, with its
# square.

# %% [markdown] tags=["jax"]
# `kept_arrays` from above counts all but its argument, the parameters. (A compiled step
# may keep less: XLA computes cheap things again.)


# %% tags=["jax"]
def activation_bytes(params, x, labels):
    """Bytes that the forward pass keeps for the backward pass."""
    kept = kept_arrays(lambda params: loss_of(params, x, labels), params)
    return sum(a.size * a.dtype.itemsize for a in kept.values())


# %% tags=["jax"]
kept = {n: activation_bytes(params, *batch(4, n)) for n in lengths.tolist()}
doubled = activation_bytes(params, *batch(8, 64)) / kept[64]
moments = [a for a in jax.tree.leaves(optimiser.init(params)) if a.ndim]
adam_bytes = sum(a.nbytes for a in moments)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "MiB of a training step over the length n, for a batch of 4, each line on top of the one before: weights, gradients, Adam's averages, activations. The first three are level; the activations are above them everywhere and rise, at the end with the square of n."}}
fixed = {"weights": 1, "+ gradients": 2, "+ Adam's averages": 4}
lines = {name: (lengths, [4 * k * n_parameters] * 4) for name, k in fixed.items()}
lines["+ activations"] = lengths, 16 * n_parameters + np.array([*kept.values()])
mib = {name: (n, np.array(size) / 2**20) for name, (n, size) in lines.items()}
panels = {"MiB of a training step": mib}
fig = plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o", size=(5, 2.6))
fig

# %% tags=["shared", "say"]
share = {n: size / (size + 16 * n_parameters) for n, size in kept.items()}
all_heads = 4 * options["n_blocks"] * options["n_heads"]  # b l h
maps = 4 * all_heads * 1024**2  # four bytes for each weight
say(
    f"Weights, gradients and averages take {16 * n_parameters / 2**20:.1f} MiB at "
    f"every length. Activations are {share[16]:.0%} of the whole at n = 16 and "
    f"{share[1024]:.1%} at n = 1,024, where they take {kept[1024] / 2**20:.0f} MiB; a "
    f"single copy of all attention maps is {maps / 2**20:.0f} MiB."
)

# %% tags=["shared", "check"]
# Checked: Adam's averages are twice the weights; activations grow with b, faster with n
assert adam_bytes == 2 * 4 * n_parameters
np.testing.assert_allclose(doubled, 2, rtol=1e-3)
title = "MiB of a training step"
total, states = (plots.drawn(fig, title, name)[1] for name in list(lines)[:1:-1])
grown = (total - states)[1:] / (total - states)[:-1]  # n times four
assert (total > states).all() and 3.9 < grown[0] < grown[1] < grown[2] < 16
assert grown[2] > 8

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** Which part grows when the model gets eight heads
# instead of four, and by how much at $n = 256$? Predict, then build a second model with
# `options | {"n_heads": 8}` and compare.

# %% tags=["jax", "answer"]
eight = build(Predictor, *sizes.values(), **options | {"n_heads": 8})
structure, params_of_eight, rest = nnx.split(eight, nnx.Param, ...)  # for loss_of
more = activation_bytes(params_of_eight, *batch(4, 256)) / kept[256]
assert sum(array.size for array in to_arrays(eight).values()) == n_parameters
assert 1.2 < more < 2
say(
    f"Only the activations grow, to {more:.2f} times as much: there are twice as many "
    "maps, and everything else, the parameters too, is as before."
)

# %% [markdown] tags=["shared"]
# So what helps when memory runs out? Half the batch is half the activations; add up the
# gradients of two half batches for the same update. Keep the input of each block only
# and compute the rest again, for about a third more operations
# ([Chen et al. 2016](https://arxiv.org/abs/1604.06174)). Use a fused kernel, which
# keeps no maps. Compute in half precision, for half the bytes
# ([Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740)).

# %% [markdown] tags=["shared"]
# ## Cheaper attention gives something up
#
# Fused kernels save memory and time, and compute exactly the same. To save the $n^2$
# operations themselves, attention has to be replaced by something else.
# [Tay et al. 2020](https://arxiv.org/abs/2009.06732) survey many ways:
#
# | way | operations | gives up |
# |---|---|---|
# | windows of $r$ neighbours | $r n m$ | direct paths |
# | sparse patterns | $n \sqrt{n}\, m$ | most direct paths |
# | $r$ mixtures in place of $n$ keys | $r n m$ | single keys, a free length |
# | linear attention | $n m d$ | sharp weights |
#
# The sources, row by row: Longformer
# ([Beltagy et al. 2020](https://arxiv.org/abs/2004.05150));
# [Child et al. 2019](https://arxiv.org/abs/1904.10509); Linformer
# ([Wang et al. 2020](https://arxiv.org/abs/2006.04768));
# [Katharopoulos et al. 2020](https://arxiv.org/abs/2006.16236) and Performer
# ([Choromanski et al. 2021](https://arxiv.org/abs/2009.14794)).
#
# Linear attention replaces $\exp(q \cdot k)$ by $\varphi(q) \cdot \varphi(k)$. Without
# an exponential between the two products, the brackets can move:
#
# $$(\varphi(Q)\,\varphi(K)^{\mathsf T})\,V = \varphi(Q)\,(\varphi(K)^{\mathsf T} V) ,$$
#
# and the matrix on the right is `d d`, however long the sequence. Performer chooses
# random features $\varphi$ so that the product approximates the exponential.


# %% tags=["jax"]
def linear_attention(q, k, v):
    """Weights in proportion to φ(q)·φ(k), φ(x) = elu(x) + 1: ``... s d -> ... s d``."""
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1  # positive
    summary = k.swapaxes(-1, -2) @ v  # ... d d
    total = k.sum(axis=-2, keepdims=True).swapaxes(-1, -2)  # ... d 1
    return q @ summary / (q @ total)


# %% [markdown] tags=["shared"]
# What is given up? Let every query look for one key: `q` is four times `k`. With the
# identity as values, the output *is* the matrix of weights.

# %% tags=["shared"]
k = np.random.default_rng(3).normal(size=(1, 64, 64))  # b s d
identity = floats(np.eye(64)[None])
exact = as_numpy(attention(floats(4 * k), floats(k), identity)[0])[0]  # q k
flat = as_numpy(linear_attention(floats(4 * k), floats(k), identity))[0]  # q k

# %% tags=["shared", "say"]
sharp, pale = exact.diagonal().mean(), flat.diagonal().mean()
say(
    f"Softmax attention gives its own key **{sharp:.3f}** of the weight (checked: "
    f"{word('more', sharp, 0.99)} than 0.99), linear attention **{pale:.3f}** "
    f"(checked: {word('less', pale, 0.05)} than 0.05); an even share would be "
    f"{1 / 64:.3f}."
)

# %% tags=["shared", "check"]
# Checked: linear weights are those of φ(q)·φ(k), sum to one, and cannot be sharp
phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(x))[0] for x in (4 * k, k))
products = phi_q @ phi_k.T  # q k
np.testing.assert_allclose(flat, products / products.sum(1, keepdims=True), atol=1e-5)
np.testing.assert_allclose(flat.sum(axis=1), 1, atol=1e-5)
assert sharp > 0.99 and pale < 0.05

# %% [markdown] tags=["shared"]
# **Exercise 3, an open question.** You want to train GPT-2 small on sequences of 1,024
# tokens, on a GPU with $24$ GiB, in single precision. How many sequences fit into a
# batch, and what would you change first? Measure the activations of one block with
# $m = 768$, and do not forget the logits over 50,257 tokens.

# %% tags=["jax", "answer"]
block = build(EncoderBlock, 768, 12, 3072, activation="gelu", norm_first=True)
inner, own_params, others = nnx.split(block, nnx.Param, ...)
x = jax.ShapeDtypeStruct((1, 1024, 768), jnp.float32)  # a shape is enough to trace
of_block = kept_arrays(lambda p, x: nnx.merge(inner, p, others)(x)[0], own_params, x)
one_block = sum(a.size * a.dtype.itemsize for a in of_block.values())

# %% tags=["shared", "answer"]
logits = 2 * 4 * 1024 * 50_257  # they and their softmax
sequence = 12 * one_block + logits
fits = (24 * 2**30 - 16 * gpt2) // sequence
without_maps = 12 * (one_block - 4 * 12 * 1024**2) + logits
assert 1 <= fits < (24 * 2**30 - 16 * gpt2) // without_maps
say(
    f"Weights, gradients and averages take {16 * gpt2 / 2**30:.1f} GiB, a sequence "
    f"takes {12 * one_block / 2**30:.1f} GiB in the blocks and {logits / 2**30:.1f} "
    f"GiB for the logits: {fits} sequences fit. A fused kernel comes first, since it "
    f"costs nothing: one map of {12 * 1024**2 * 4 / 2**20:.0f} MiB less per block, and "
    "more if the map is kept twice. Then half precision, then recomputation."
)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Self-attention has paths of length one and one sequential step, for $n^2 m$
#   operations and, written out, $n^2$ weights to keep.
# * Counts say what grows; the clock also depends on how well the products fill the
#   machine. Many rows at once are faster than one row after another.
# * Computing blocks of weights again makes memory linear in $n$, with exact results.
# * A block has about $12m^2$ parameters; a training step takes $6ND$ operations, and
#   $12\,l\,n\,m$ more per token for the pairs.
# * Weights, gradients and Adam's averages take 16 bytes per parameter in float32;
#   activations usually take most of the memory.
# * Windows, low rank and linear attention save operations, and give up direct paths,
#   single keys or sharp weights.

# %% [markdown] tags=["jax"]
# This is the last chapter. What differs between the frameworks is collected on the page
# [JAX and PyTorch compared](../book/comparison.md).
