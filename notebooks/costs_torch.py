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
# # What attention costs
#
# By the end you can tell beforehand how long a training will take and what runs out
# first, choose a remedy from a table, and say where such an estimate misleads.
# You need: the chapters on attention and the encoder, and some idea of a training loop.
#
# Before you train a Transformer, you ask three questions. *How long will it take? What
# runs out first, time or memory? And if the answer is bad, what helps?* Trying is
# expensive. But the model's sizes and a stopwatch give the answers before the first
# update. Our example is GPT-2 small, the model of 2019. Does it take a night on the
# computer in front of you, or a year?

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
        if subprocess.run(clone, check=False).returncode:
            sys.exit(f"{REPOSITORY} cannot be fetched: a placeholder, or not reached")
    os.chdir(os.path.join(folder, "notebooks"))
    sys.path.insert(0, os.getcwd())

# %% tags=["torch", "imports"]
import math
import time
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from helpers.engine.shapes import as_numpy  # an array of the framework as a NumPy array
from helpers.engine.weights import to_arrays  # all parameters of a model
from helpers.exercises import check  # of what you write
from helpers.show import drawing, plots
from helpers.show.prose import (  # say() prints a sentence with computed numbers
    say,
    table,
)
from helpers.torch import (
    EncoderBlock,
    MultiHeadAttention,
    Predictor,
    attention,
    build,
    cross_entropy,
    full_float32,
    fused_attention,
)
from helpers.torch.memory import activations, kept_bytes

# %% tags=["torch", "experiment"]
# Experiment: style, device, and the short name floats, which makes a tensor
plots.use_style()
device = "cuda" if torch.cuda.is_available() else "cpu"
build = partial(build, device=device)  # models are made on this device
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)  # float32 tensor

# %% [markdown] tags=["shared"]
# ## The parameters follow from the sizes
#
# Time and memory both begin with the number of parameters. Attention has four matrices
# `m m`, the feed-forward net two matrices between $m$ and $f$, all with biases. Then
# there are two norms with $2m$ parameters each. So a block has
#
# $$N_\mathrm{block}=(4m^2+4m)+(2mf+f+m)+4m .$$
#
# With the usual $f = 4m$ that is about $12m^2$, for any number of heads.


# %% tags=["shared"]
def block_parameters(m, f):
    """Attention, feed-forward net and two norms."""
    return (4 * m**2 + 4 * m) + (2 * m * f + f + m) + 4 * m


# %% tags=["shared"]
# A small model, to check such counts: an encoder between two linear layers
sizes = {"n_inputs": 32, "m": 128, "n_outputs": 32}
options = {"n_blocks": 4, "n_heads": 4, "f": 4 * 128, "max_length": 1024}
model = build(Predictor, *sizes.values(), **options)
n_parameters = sum(array.size for array in to_arrays(model).values())
print(f"{n_parameters:,} parameters")

# %% tags=["shared", "check"]
# Checked: the formula counts the parameters of the built model, and of a wider one
for m, f, built in ((128, 512, model), (48, 7, None)):
    built = built or build(Predictor, 32, m, 32, **options | {"f": f})
    around = (32 * m + m) + (m**2 + m) + 2 * m + (m * 32 + 32)  # input, output net
    counted = sum(array.size for array in to_arrays(built).values())
    assert counted == 4 * block_parameters(m, f) + around

# %% [markdown] tags=["shared"]
# [GPT-2 small](https://github.com/openai/gpt-2) has 12 blocks with $m = 768$, a last
# norm, and two tables, for 50,257 tokens and 1,024 positions:

# %% tags=["shared"]
m, f = 768, 4 * 768
blocks = 12 * block_parameters(m, f) + 2 * m  # and the last norm
token_table, position_table = 50_257 * m, 1_024 * m
gpt2 = blocks + token_table + position_table

# %% tags=["shared", "say"]
say(
    f"These {gpt2:,} are the **{gpt2 / 1e6:.0f} million** for which GPT-2 small is "
    f"known; {blocks / 1e6:.0f} million of them are in its blocks."
)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** The 24 blocks of BERT large ([Devlin et al.
# 2018](https://arxiv.org/abs/1810.04805)) have 302 million parameters, with $f=4m$.
# How large is $m$?

# %% tags=["shared", "answer"]
square = 302e6 / 24 / 12
assert abs(math.sqrt(square) / 1024 - 1) < 0.005
say(
    f"A block has {302 / 24:.1f} million. A twelfth of that, {square / 1e6:.2f} "
    "million, is about $m^2$, so $m$ is about a thousand: 1,024, to be exact. With it, "
    f"24 blocks have {24 * block_parameters(1024, 4096):,} parameters."
)

# %% [markdown] tags=["shared"]
# ## A training step takes six operations per parameter and token
#
# Follow one weight $w$ of a matrix through a training step, for one token. Forward, $w$
# multiplies an input $x$, and the product is added to an output $y$. Backward, the
# gradient $dy$ of the loss arrives. The step computes two products with it, for the
# gradients of $w$ and of $x$.

# %% mystnb={"image": {"alt": "Three rows of boxes for the input x = 3, the weight w = 2 and the output. Forward, arrows lead from x through w to the output y, which grows by 3 times 2. Backward for the weight, arrows lead from x and from dy = 5 to w, whose gradient grows by 3 times 5. Backward for the input, arrows lead from dy through w to x, whose gradient grows by 2 times 5. Each row is two operations, together six."}} tags=["shared", "figure"]
drawing("six-operations")

# %% [markdown] tags=["shared"]
# Each row is two floating-point operations (*FLOPs*; their rate is *FLOPS* or FLOP/s):
# a multiplication, and an addition, because the products are summed, over weights or
# over tokens. So for each token, a weight takes two operations forward and four
# backward. With $N$ parameters and $D$ tokens, training takes ([Kaplan et al.
# 2020](https://arxiv.org/abs/2001.08361))
#
# $$C\approx 6\,N\,D .$$
#
# Looking up a row of a table costs no operations, so GPT-2's table of positions does
# not count. Its table of tokens does, because the model multiplies by it to get logits.

# %% [markdown] tags=["torch"]
# PyTorch's `FlopCounterMode` counts the operations of all matrix products, here with
# attention written out: a fused kernel (below) computes the scores twice.


# %% tags=["torch"]
def batch(b, n):
    """Random inputs ``b n i`` and labels ``b n``, of length ``n``."""
    draw = np.random.default_rng(1)
    x = floats(draw.normal(size=(b, n, sizes["n_inputs"])))
    return x, torch.as_tensor(draw.integers(32, size=(b, n)), device=device)


def loss_of(model, x, labels):
    """Mean cross-entropy of a batch."""
    return cross_entropy(model, x, labels)[0]


def loss_with_maps(model, x, labels):
    """The loss, with attention written out, so that its maps are kept."""
    # a function in place of the model: cross_entropy only calls it
    return loss_of(lambda x: model(x, return_maps=True)[0], x, labels)


# %% tags=["torch"]
def measured_flops(model, x, labels):
    """Operations of one forward and one backward pass."""
    with FlopCounterMode(display=False) as counter:
        loss_with_maps(model, x, labels).backward()
    model.zero_grad()
    return counter.get_total_flops()


per_parameter = measured_flops(model, *batch(1, 16)) / 16 / n_parameters

# %% tags=["shared", "say"]
say(
    f"Counted for 16 tokens: **{per_parameter:.2f}** operations per parameter and "
    "token. The rest is attention, which multiplies activations by activations."
)

# %% tags=["torch", "check"]
# Checked: autograd finds the gradients of the drawing, and the count is about six
x, w = (torch.tensor(value, requires_grad=True) for value in (3.0, 2.0))
(x * w).backward(torch.tensor(5.0))
assert (float(w.grad), float(x.grad)) == (15, 10)
assert 0.9 * 6 < per_parameter < 1.1 * 6

# %% [markdown] tags=["shared"]
# ## Training time is operations divided by speed
#
# To turn operations into time, we need the speed of the machine. Its **limit** is the
# rate of a large product of matrices. (Why large? See the first extra.)


# %% tags=["torch"]
def seconds(function, *args, repeats=3):
    """Shortest of several runs, after one that warms up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    runs = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        with torch.no_grad():
            function(*args)
        wait()  # a GPU still works when the call returns (benchmark.Timer waits, too)
        runs.append(time.perf_counter() - start)
    return min(runs[1:])


# %% tags=["torch"]
width, ones = 8192, partial(torch.ones, device=device)
matrix = ones(width, width)  # 256 MiB
product = seconds(torch.matmul, ones(256, width), matrix)
limit = 2 * 256 * width**2 / product  # operations per second

# %% tags=["shared", "say"]
say(f"The limit here, in float32: **{limit / 1e9:.0f} billion** operations a second.")

# %% [markdown] tags=["shared"]
# A training step is slower than that, because it also has small products, norms and an
# update. The share of the limit that it reaches is its **utilisation** (MFU, *model
# FLOPs utilisation*). We time a step of our small model.

# %% [markdown] tags=["torch"]
# A step in PyTorch is loss, gradients, update.

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
work = 6 * n_parameters * 8 * 64
utilisation = work / took / limit
say(
    f"The $6ND$ = {work / 1e9:.1f} billion operations of a step take "
    f"{1e3 * took:.0f} ms: a utilisation of **{utilisation:.0%}**."
)

# %% [markdown] tags=["shared"]
# How many tokens are enough? For a given amount of computation, the loss is lowest with
# about 20 per parameter ([Hoffmann et al. 2022](https://arxiv.org/abs/2203.15556)). We
# also take a large GPU: [Narayanan et al. 2021](https://arxiv.org/abs/2104.04473)
# report $502\cdot10^{15}$ operations a second on 3,072 A100s in half precision (16
# bits). A quarter of these repeat the forward pass to save memory (*recomputing*,
# below); three quarters are useful.

# %% tags=["shared"]
per_token = 6 * (gpt2 - position_table)  # operations
operations = 20 * gpt2 * per_token
days = operations / (limit * utilisation) / 86_400  # limit cancels
sheet = 312e12  # an A100's limit: https://www.nvidia.com/en-us/data-center/a100/
a100 = 3 / 4 * 502e15 / 3072  # useful operations a second of one A100
hours = operations / a100 / 3600

# %% tags=["shared", "say"]
published = 8 * 1.5  # hours of a GPU
estimate = 10e9 * per_token / a100 / 3600
run = "[Karpathy 2024](https://github.com/karpathy/llm.c/discussions/481)"
tokens = f"{20 * gpt2 / 1e9:.1f} billion"
ours = f"{float(f'{days:.2g}'):,.0f}"
there = f"{a100 / sheet:.0%}"
rows = [
    ["this machine, like our small step", f"{utilisation:.0%}", tokens, f"{ours} days"],
    ["one A100", there, tokens, f"{hours:.1f} hours"],
    ["one A100", there, "10 billion", f"{estimate:.0f} hours"],
    [f"published: {run}", "", "10 billion", f"{published:.0f} hours of an A100"],
]
say(
    f"{table(['GPT-2 small on', 'utilisation', 'tokens', 'time'], *rows)}\n\n"
    f"Our estimate is {estimate / published:.1f} times as long as the published run "
    "(eight A100s for 90 minutes), good enough for a plan."
)

# %% tags=["torch", "check"]
# Checked: the published run took less than the estimate; the timed step lowers the loss
assert 1 < estimate / published < 2 and 0.35 < a100 / sheet < 0.45
assert float(step(*data).detach()) < math.log(32)

# %% [markdown] tags=["shared"]
# ## Attention's pairs grow with the square of the length
#
# The estimate leaves something out. Attention multiplies queries by keys, and weights
# by values, for all pairs of positions. No parameter takes part in these products. Each
# of the two takes $2nm$ operations per token forward and $4nm$ backward. Together that
# is $12nm$ in each of $l$ blocks ([Chowdhery et al.
# 2022](https://arxiv.org/abs/2204.02311), appendix B):
#
# $$C\approx(6N+12\,l\,n\,m)\,D .$$
#
# For each token the pairs grow like $n$, for a sequence of $n$ tokens like $n^2$. (A
# causal mask needs only half of them.) From which length on do they matter?

# %% tags=["shared"]
short = np.array([16, 64, 256, 1024])  # lengths n
pairs = 12 * options["n_blocks"] * short * sizes["m"]  # operations per token
formula = 6 * n_parameters + pairs

# %% tags=["torch"]
measured = [measured_flops(model, *batch(1, n)) / n for n in short.tolist()]

# %% mystnb={"image": {"alt": "Million operations per token of a training step over the length n. The line 6N is level. The measured count starts on it and rises in a straight line, along 6N plus 12 l n m."}} tags=["shared", "figure"]
lines = {
    "6N + 12 l n m": (short, formula / 1e6),
    "6N": (short, np.full(4, 6 * n_parameters / 1e6)),
    "measured": (short, np.array(measured) / 1e6),
}
panels = {"million operations per token": lines}
fig = plots.curves(panels, x="length n", marks="o", size=(5.6, 2.8))
fig.axes[0].set_ylim(bottom=0)
for points in (fig.axes[0].lines[2], fig.legends[0].legend_handles[2]):
    points.set_linestyle("none")  # the formula's line shows between them
fig

# %% tags=["shared", "say"]
ratio = np.array(measured) / formula
equal = n_parameters / (2 * options["n_blocks"] * sizes["m"])
share = 12 * 12 * 1024 * 768 / per_token
reached = estimate * (1 + share) / published * a100  # operations a second
here = f"{float(f'{days * (1 + share):.2g}'):,.0f} days"
say(
    f"The measured count is {ratio.min():.2f} to {ratio.max():.2f} of the formula. "
    f"At n = {equal:.0f}, about $6m$, the pairs cost as much as the parameters. "
    "GPT-2 small is far from this point: with 1,024 tokens the pairs add "
    f"{share:.0%}. That moves our estimate away from the published run, which reached "
    f"{reached / sheet:.0%} of its GPUs' limit. Our {a100 / sheet:.0%} are those of a "
    "huge model on 3,072 GPUs.\n\nA night, or a year? With the pairs, it takes about "
    f"**{hours * (1 + share):.0f} hours** on one A100 and **{here}** on this machine, "
    "and we know it before the first update."
)

# %% tags=["shared", "check"]
# Checked: as drawn, the count follows 6N + 12 l n m, and leaves 6N behind
title = "million operations per token"
line, level, found = (plots.drawn(fig, title, name)[1] for name in lines)
np.testing.assert_allclose(found / line, 1, atol=0.03)
assert 0.9 < found[0] / level[0] < 1.1 and found[-1] > 1.8 * level[-1]
assert 1 < (1 + share) * estimate / published < 2 and a100 < reached < sheet

# %% [markdown] tags=["shared"]
# ## Activations grow with the length and fill the memory
#
# *What runs out first?* For each parameter, a step holds four numbers: the **weight**,
# its **gradient** and **Adam's two averages**, 16 bytes in float32. It also holds
# **activations**, the intermediate results that the backward pass needs. They grow with
# the batch and the length; only the attention maps, `b h n n` in every block, grow with
# the square of the length.

# %% [markdown] tags=["torch"]
# Weights and averages are held once, because the step updates them in place.
# `activations` lists the arrays, other than parameters, that autograd keeps in a
# forward pass: here for four sequences, with attention written out.


# %% tags=["shared"]
def total_bytes(arrays):
    """Bytes of arrays of four-byte numbers."""
    return sum(4 * math.prod(a.shape) for a in arrays)


kept, maps = {}, {}  # bytes of all activations, and of the attention maps
for n in short.tolist():
    arrays = activations(model, loss_with_maps, *batch(4, n))
    kept[n] = total_bytes(arrays)
    maps[n] = total_bytes(a for a in arrays if a.shape[-2:] == (n, n))

# %% mystnb={"image": {"alt": "Stacked bars of the memory of a training step in percent, for four lengths n and a batch of 4, with the MiB above each bar. At n = 16, weights, gradients and Adam's averages fill most of the bar. With the length, the other activations and then the attention maps take over; at n = 1,024, the maps fill most of the bar."}} tags=["shared", "figure"]
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
copies = maps[256] / (4 * 4 * 4 * 256**2 * options["n_blocks"])  # bytes, b, h, n n
say(
    f"Activations are {filled[16]:.0%} of the memory at n = 16, and {filled[1024]:.0%} "
    "at n = 1,024, where most of them are maps.\n\nAt n = 256, the activations are "
    f"{kept[256] / 2**20:.0f} MiB, {maps[256] / 2**20:.0f} of them maps "
    f"({copies:.0f} × `b h n n` in every block)."
)

# %% tags=["torch", "check"]
# Checked: averages are twice the weights; activations grow with b; maps take over
before = [p.data_ptr() for p in model.parameters()]
step(*data)
state = [a for part in optimizer.state.values() for a in part.values() if a.ndim]
assert sum(a.nbytes for a in state) == 2 * 4 * n_parameters
assert [p.data_ptr() for p in model.parameters()] == before
doubled = total_bytes(activations(model, loss_with_maps, *batch(8, 64))) / kept[64]
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
found = total_bytes(activations(eight, loss_with_maps, *batch(4, 256))) / kept[256]
predicted = 1 + maps[256] / kept[256]
assert sum(array.size for array in to_arrays(eight).values()) == n_parameters
assert abs(found / predicted - 1) < 0.02  # loose: devices keep a little more
say(
    "Only the activations grow: there are twice as many maps, and each head has half "
    f"the size, so everything else is as before. Twice the maps make {predicted:.2f} "
    f"times the activations; measured: {found:.2f}."
)

# %% [markdown] tags=["shared"]
# ## Computed in chunks, attention never holds a whole map
#
# *What helps?* First of all, do we need whole maps? Our function keeps them for the
# backward pass. But an output needs only its own row. So we take the queries in chunks,
# forget the rows of each chunk, and compute them *again* in the backward pass. The
# result is exact. Memory grows like $n$, operations still like $n^2$ (after [Rabe &
# Staats 2021](https://arxiv.org/abs/2112.05682)).

# %% [markdown] tags=["torch"]
# `checkpoint` runs a function without recording it, and again in the backward pass.


# %% tags=["torch"]
def written_out(q, k, v):
    """Our own attention, for one head: ``b n d -> b n d``."""
    return attention(q, k, v)[0]


def in_chunks(q, k, v, size=64):
    """The same, ``size`` queries at a time, computed again on the way back."""
    chunks = [
        checkpoint(written_out, rows, k, v, use_reentrant=False)
        for rows in q.split(size, dim=1)
    ]
    return torch.cat(chunks, dim=1)


# %% [markdown] tags=["shared"]
# **FlashAttention** ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)) does this in
# one GPU program, a *fused kernel*. It takes the keys in pieces, too, so it never holds
# a whole row of weights. The original kernel needs half precision, and takes only some
# masks.

# %% [markdown] tags=["torch"]
# PyTorch's own `scaled_dot_product_attention` picks a kernel for the device and the
# arguments; one of them takes float32 and any mask. Our models call it by
# `fused_attention`, unless they are asked for the maps.


# %% tags=["torch"]
def by_framework(q, k, v):
    """The framework's own attention, for one head: ``b n d -> b n d``."""
    return fused_attention(q[:, None], k[:, None], v[:, None])[:, 0]


# %% tags=["torch", "experiment"]
# Experiment: memory and time of the three, for four lengths
lengths = 4 ** np.arange(3, 7)  # n = 64, 256, 1024, 4096
inputs = [floats(np.random.default_rng(6).normal(size=(1, n, 64))) for n in lengths]
kinds = {
    "written out": written_out,
    "in chunks": in_chunks,
    "framework's own": by_framework,
}
memory = {k: np.array([kept_bytes(f, x) for x in inputs]) for k, f in kinds.items()}
times = {k: np.array([seconds(f, x, x, x) for x in inputs]) for k, f in kinds.items()}
with full_float32():
    outputs = {name: as_numpy(f(*[inputs[1]] * 3)) for name, f in kinds.items()}


# %% mystnb={"image": {"alt": "Left, MiB kept for the backward pass over the length n: written out they follow the guide n squared, in chunks the guide n; the framework's own call is drawn beside them. Right, the milliseconds of all three."}} tags=["shared", "figure"]
def add_guides(ax):
    """Dotted lines that grow like n and n squared, and plain numbers on the axes."""
    low, high = ax.get_ylim()
    for name, power in (("like $n$", 1), ("like $n^2$", 2)):
        rise = high * (lengths / lengths[-1]) ** float(power)
        ax.plot(lengths, rise, ":", color=plots.EDGE, lw=1.4, zorder=0)
        ax.text(lengths[-2], rise[-2], name, color=plots.EDGE, ha="right", va="bottom")
    ax.set(ylim=(low, high), xticks=lengths, xticklabels=lengths)
    ax.yaxis.set_major_formatter("{x:g}")


panels = {
    "MiB kept for backward": {k: (lengths, size / 2**20) for k, size in memory.items()},
    "milliseconds, forward": {k: (lengths, 1e3 * t) for k, t in times.items()},
}
fig = plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o", size=(7.6, 3))
for ax in fig.axes:
    ax.lines[2].set_markersize(3)  # so that a line below it shows
    add_guides(ax)
fig

# %% tags=["shared", "say"]
steep, flat = (memory[k][-1] / memory[k][-2] for k in ("written out", "in chunks"))
say(
    "When $n$ goes from 1,024 to 4,096, what the written-out function keeps grows "
    f"{steep:.1f} times, what the chunks keep {flat:.1f} times. At 4,096, they keep "
    f"{memory['in chunks'][-1] / memory['written out'][-1]:.0%} as much. The rows of "
    "one chunk come on top, and the time to compute them again in the backward pass."
)

# %% tags=["torch", "say"]
needs, takes = (
    found["framework's own"][-1] / found["written out"][-1] for found in (memory, times)
)
say(
    f"PyTorch's own kernel is fused: at n = 4,096 it keeps {needs:.1%} of what our "
    f"function keeps, and takes {takes:.0%} of the time."
)

# %% tags=["torch", "check"]
# Checked: chunks give the same output; their memory and the kernel's grow like n
np.testing.assert_allclose(outputs["in chunks"], outputs["written out"], atol=1e-5)
np.testing.assert_allclose(
    outputs["framework's own"], outputs["written out"], atol=1e-5
)
square, linear = (
    plots.drawn(fig, "MiB kept for backward", name)[1]
    for name in ("written out", "in chunks")
)
assert square[-1] > 10 * square[-2] and linear[-1] < 5 * linear[-2]
assert linear[-1] < square[-1] / 12
assert memory["framework's own"][-1] < 5 * memory["framework's own"][-2]

# %% [markdown] tags=["shared"]
# ## Each remedy has its price
#
# The third column of these tables is what a remedy leaves of our model's activations
# (measured for the halves, else calculated), or of its operations per token, at 1,024
# tokens.

# %% tags=["shared", "experiment"]
# Experiment: what half the length, heads or batch leave of the activations
whole = kept[1024]


def left(n=1024, b=4, **changed):
    """Activations of a changed model or batch, as a share of those above."""
    other = build(Predictor, *sizes.values(), **options | changed)
    return total_bytes(activations(other, loss_with_maps, *batch(b, n))) / whole


halved = {"length": left(512), "heads": left(n_heads=2), "batch": left(b=2)}

# %% tags=["shared", "say"]
h, fused = halved, 1 - maps[1024] / whole  # no maps
starts = options["n_blocks"] * 4 * 4 * 1024 * sizes["m"]  # bytes of their inputs
again = starts / whole + 1 / 4  # and of one block
rows = [
    ["two half batches", "all × ½", h["batch"], "speed, if halves are small"],
    ["half the length", "maps × ¼, rest × ½", h["length"], "half the context"],
    ["half the heads", "maps × ½", h["heads"], "fewer patterns at a time"],
    ["fused kernel, or chunks", "no maps", fused, "of chunks: scores twice"],
    ["recompute each block", "one block kept", again, "⅓ more operations"],
]
rows = [[*row[:2], f"{row[2]:.2f}", row[3]] for row in rows]
say(table(["**short of memory?**", "change", "activations left", "price"], *rows))

# %% tags=["shared", "say"]
windowed = 6 * n_parameters + pairs[0]  # 16 neighbours
fewer = np.array([6 * n_parameters + pairs[-1] / 2, windowed]) / formula[-1]
smaller = (6 * n_parameters / 4 + pairs[-1] / 2) / formula[-1]
rows = [
    ["half the length", "pairs × ½", fewer[0], "half the context"],
    ["16 neighbours", "pairs × $16/n$", fewer[1], "far ones need more blocks"],
    ["half of $m$ and $f$", "blocks × ¼, pairs × ½", smaller, "often quality"],
    ["half precision", f"an A100's limit × {sheet / 19.5e12:.0f}", 1, "digits"],
    ["a larger batch", "utilisation", 1, "activations"],
]
rows = [[*row[:2], f"{row[2]:.2f}", row[3]] for row in rows]
head = ["**short of time?**", "change", "operations per token left", "price"]
say(table(head, *rows))

# %% tags=["shared", "check"]
# Checked: half of the batch, length or heads leaves what the sizes of the maps predict
share = maps[1024] / whole
expected = {"length": (1 - share) / 2 + share / 4, "heads": 1 - share / 2, "batch": 0.5}
for name, found in halved.items():
    np.testing.assert_allclose(found, expected[name], rtol=0.02)  # loose: likewise

# %% [markdown] tags=["shared"]
# Begin with what keeps the result: a fused kernel, half batches, recomputing. The
# gradients of the half batches are averaged: *gradient accumulation*. Recomputing
# ([Chen et al. 2016](https://arxiv.org/abs/1604.06174)) does for blocks what the chunks
# did for queries. *Half precision* ([Micikevicius et al.
# 2018](https://arxiv.org/abs/1710.03740)) saves bytes and time; it keeps only two to
# four digits, so weights and averages stay in float32.

# %% [markdown] tags=["torch"]
# In your own code:

# %% tags=["torch"]
with torch.autocast(device, torch.bfloat16):  # half precision
    loss = loss_of(model, *data)
if device == "cuda":  # the peak memory of a step
    torch.cuda.reset_peak_memory_stats()
    step(*data)
    print(torch.cuda.max_memory_allocated() / 2**30, "GiB")

# %% [markdown] tags=["shared"]
# **Exercise 3, an estimate.** You want to train GPT-2 small in float32 on a GPU with
# $24$ GiB, on sequences of 1,024 tokens. How many sequences fit into a batch, and what
# would you change first? Fill in `around`, the bytes of a sequence's logits, their
# softmax and their gradient.
#
# ```python
# block = build(EncoderBlock, 768, 12, 3072, activation="gelu", norm_first=True)
# x = floats(np.zeros((1, 1024, 768)))
# arrays = activations(block, lambda block, x: block(x, return_weights=True)[0], x)
# around = ...  # bytes
# (24 * 2**30 - 16 * gpt2) // (12 * total_bytes(arrays) + around)
# ```

# %% tags=["shared", "answer"]
block = build(EncoderBlock, 768, 12, 3072, activation="gelu", norm_first=True)
x = floats(np.random.default_rng(2).normal(size=(1, 1024, 768)))
arrays = activations(block, lambda block, x: block(x, return_weights=True)[0], x)
of_blocks = 12 * total_bytes(arrays)
of_maps = 12 * total_bytes(a for a in arrays if a.shape[-2:] == (1024, 1024))
logits = 3 * 4 * 1024 * 50_257  # they, their softmax, and their gradient
room = 24 * 2**30 - 16 * gpt2
fits, fits_fused = (room // (of_blocks + logits - saved) for saved in (0, of_maps))
assert 1 <= fits < fits_fused
say(
    f"Weights, gradients and averages take {16 * gpt2 / 2**30:.1f} GiB. A sequence "
    f"takes {of_blocks / 2**30:.1f} GiB in the blocks and {logits / 2**30:.1f} GiB for "
    f"the logits, their softmax and gradient, so at most {fits:.0f} sequences fit. "
    "First drop the maps, by chunks or by a fused kernel for float32: the results stay "
    f"the same, and at most {fits_fused:.0f} fit. Next take half precision, then "
    "recomputation."
)

# %% [markdown] tags=["shared"]
# ## Extra: Speed is limited by memory or by arithmetic
#
# Why does a large model write so slowly, even on a fast machine? A processor can only
# multiply what it has read from memory. Take $n$ rows, one for each token, and multiply
# them by a matrix `m m`. That takes $2nm^2$ operations. If $n$ is small, most of what
# is read is the matrix, $4m^2$ bytes. So there are about $n/2$ operations per byte, the
# *arithmetic intensity*. With a single row, each weight is read for one multiplication,
# and the processor waits for the memory. The rate is bounded by a **roofline**
# ([Williams et al. 2009](https://doi.org/10.1145/1498765.1498785)): a slope, then a
# flat roof. Our large matrix shows both, because it does not fit into the processor's
# cache.


# %% tags=["torch"]
rows = 4 ** np.arange(5)  # 1, 4, 16, 64 and 256 rows
few = [seconds(torch.matmul, ones(n, width), matrix) for n in rows[:4].tolist()]
products = np.array([*few, product])  # seconds

# %% tags=["shared"]
moved = 4 * (width**2 + 2 * rows * width)  # bytes: the matrix, and n rows in and out
intensity = 2 * rows * width**2 / moved  # operations per byte
speed = 2 * rows * width**2 / products  # operations per second
fastest, bandwidth = speed.max(), (moved / products).max()  # the best of each

# %% mystnb={"image": {"alt": "Billions of operations per second of a product over its operations per byte. Measured points and a roofline of a slope, where the processor waits for memory, and a flat roof, where it waits for arithmetic. The measured rate is higher with many rows than with one. Two points touch the roofline, the others are below it."}} tags=["shared", "figure"]
knee = fastest / bandwidth  # here memory and arithmetic take the same time
corners = np.array([intensity[0], knee, max(knee, intensity[-1])])
roof = np.minimum(fastest, bandwidth * corners) / 1e9
lines = {"measured": (intensity, speed / 1e9), "roofline": (corners, roof)}
panels = {"billion operations per second": lines}
fig = plots.curves(
    panels, x="operations per byte", log_x=4, log_y=True, marks="o", size=(5.6, 2.8)
)
ax = fig.axes[0]
ax.set_yscale("log", base=2)
for points, line in (ax.lines[:2], fig.legends[0].legend_handles):
    points.set_linestyle("none")
    line.set_marker("none")
ax.text(0.02, 0.95, "waits for\nmemory", va="top", transform=ax.transAxes)
ax.text(0.98, 0.7, "waits for arithmetic", ha="right", transform=ax.transAxes)
ax.xaxis.set_major_formatter("{x:g}")
ax.yaxis.set_major_formatter("{x:g}")
fig

# %% tags=["shared", "say"]
reach = speed / np.minimum(fastest, bandwidth * intensity)
low = reach.argmin()
say(
    f"With one row this machine does {speed[0] / 1e9:.0f} billion operations a second, "
    f"with many rows {fastest / 1e9:.0f} billion. The roofline touches the best point "
    "for memory and the best for arithmetic. It is a bound, not a prediction: with "
    f"{rows[low]} rows, only {reach[low]:.0%} of it is reached.\n\n"
    "The slope is where a model *writes*: one token at a time multiplies all weights "
    f"with a single row. At {bandwidth / 1e9:.0f} billion bytes a second, GPT-2 small "
    f"in float32 writes at most **{bandwidth / (4 * gpt2):.0f} tokens a second** here."
)

# %% tags=["shared", "check"]
# Checked: as drawn, all measured rates are below the roofline; one row starts at 1/2
found = plots.drawn(fig, "billion operations per second", "measured")[1]
assert (found < 1.001 * np.minimum(fastest, bandwidth * intensity) / 1e9).all()
np.testing.assert_allclose(intensity[0], 0.5, rtol=0.002)

# %% [markdown] tags=["shared"]
# A decoder that writes also reads its keys and values, the *KV cache*: $2lnm$ numbers
# for each text. If four heads share theirs ([Ainslie et al.
# 2023](https://arxiv.org/abs/2305.13245)), a quarter of it is left.

# %% [markdown] tags=["shared"]
# ## Extra: Cheaper attention gives something up
#
# If your sequences are very long, you want to get rid of $n^2$ itself. Windows of 16
# neighbours do this. What do they give up? Suppose that the last word of a sentence
# depends on the first. How many steps does this information take?

# %% mystnb={"image": {"alt": "Three drawings of seven positions with the path from the first to the last in orange. In a recurrent layer it takes six steps, from each position to the next. With one-sided convolutions of width three it takes three layers, each two positions further. In attention a single arrow leads from the first position to the last."}} tags=["shared", "figure"]
drawing("paths")

# %% [markdown] tags=["shared"]
# In attention it takes one. (The convolution sees a position and the two before it.)
# Each cheaper layer gives something up ([Vaswani et al.
# 2017](https://arxiv.org/abs/1706.03762), table 1; [Tay et al.
# 2020](https://arxiv.org/abs/2009.06732); without constant factors):
#
# | layer | operations | sequential steps | longest path | gives up |
# |---|---|---|---|---|
# | self-attention | $n^2m$ | $1$ | $1$ | |
# | windows of $r$ neighbours | $nrm$ | $1$ | $n/r$ | direct paths |
# | convolution of width $w$ | $wnm^2$ | $1$ | $n/w$ | direct paths |
# | dilated (growing gaps) | $wnm^2$ | $1$ | $\log_wn$ | direct paths |
# | recurrent | $nm^2$ | $n$ | $n$ | parallel work, direct paths |
# | $n$ keys mixed into $r$ | $nrm$ | $1$ | $1$ | single keys, other lengths |
# | linear attention | $ndm$ | $1$ | $1$ | sharp weights (often) |
#
# Examples are [Longformer](https://arxiv.org/abs/2004.05150),
# [Linformer](https://arxiv.org/abs/2006.04768), [Katharopoulos et al.
# 2020](https://arxiv.org/abs/2006.16236).

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
assert [*paths.values()] == [1, n - 1, (n - 1) / (w - 1), 4] and w**4 == n

# %% [markdown] tags=["shared"]
# **Direct paths** matter in training. The gradient travels back along the path, and
# every step multiplies it by a matrix, so it can shrink exponentially ([Bengio et al.
# 1994](https://doi.org/10.1109/72.279181)). Here is the gradient of the last output,
# for untrained attention and an untrained GRU:


# %% tags=["torch"]
def gradient_norms(layer, x):
    """Norm of the gradient of the last output for each position: ``1 n m -> n``."""
    x = floats(x).requires_grad_()
    layer(x)[0][0, -1].sum().backward()
    return as_numpy(x.grad[0].norm(dim=-1))


# %% tags=["torch", "experiment"]
# Experiment: these norms for one head of attention and for a GRU, both untrained
n, m = 64, 64
gru, one_head = build(nn.GRU, m, m, batch_first=True), build(MultiHeadAttention, m, 1)
layers = {"attention": one_head, "GRU": gru}
x = np.random.default_rng(0).normal(size=(1, n, m))
norms = {name: gradient_norms(layer, x)[::-1] for name, layer in layers.items()}

# %% mystnb={"image": {"alt": "Norm of the gradient of the last output, on a logarithmic scale, over the distance to the position of the input. That of the GRU falls in a straight line by many orders of magnitude; that of attention is level."}} tags=["shared", "figure"]
lines = {name: (np.arange(n), norm) for name, norm in norms.items()}
panels = {"gradient of the last output": lines}
fig = plots.curves(panels, x="positions back", y="norm", log_y=True, size=(5.6, 2.8))
fig

# %% tags=["shared", "say"]
fades = norms["GRU"][-1] / norms["GRU"][0]
evens = norms["attention"][1:].max() / norms["attention"][1:].min()
say(
    f"After {n - 1} steps back, $10^{{{round(math.log10(fades))}}}$ of the GRU's "
    "gradient is left (for these initial weights). In attention, all earlier positions "
    f"are within a factor of {evens:.1f} of each other."
)

# %% [markdown] tags=["shared"]
# **Parallel work** is why counts of operations do not give times. Each step of a GRU
# waits for the step before, and multiplies with a single row, the left end of the
# roofline.

# %% tags=["shared", "check"]
# Checked: the GRU's gradient fades, attention's is even
title = "gradient of the last output"
fading, level = (plots.drawn(fig, title, name)[1] for name in ("GRU", "attention"))
assert (fading[-1] / fading[0]) ** (1 / (n - 1)) < 0.8
assert level[1:].min() / level[1:].max() > 0.11
near, far = level[1 : n // 2].mean(), level[n // 2 :].mean()
assert 0.7 < near / far < 1.4

# %% [markdown] tags=["shared"]
# ## Extra: Linear attention with elu + 1 is not sharp
#
# Can attention be linear in $n$ with all paths direct? Yes, without the exponential of
# the softmax, which makes weights sharp. Linear attention puts
# $\varphi(q)\cdot\varphi(k)$ in its place, with positive features $\varphi$. Then the
# brackets can move,
#
# $$(\varphi(Q)\,\varphi(K)^{\mathsf T})\,V=\varphi(Q)\,(\varphi(K)^{\mathsf T}V) ,$$
#
# and the matrix in brackets on the right is only `d d`, however long the sequence.


# %% tags=["torch"]
def linear_attention(q, k, v):
    """Weights in proportion to φ(q)·φ(k), φ(x) = elu(x) + 1: ``... n d -> ... n d``."""
    q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1  # positive
    summary = k.transpose(-1, -2) @ v  # ... d d
    total = k.sum(dim=-2, keepdim=True).transpose(-1, -2)  # ... d 1
    return q @ summary / (q @ total)


# %% tags=["shared", "experiment"]
# Experiment: the weights of both, for queries that point along their own keys, q = 4k
k = np.random.default_rng(3).normal(size=(1, 64, 64))  # b n d
identity = floats(np.eye(64)[None])  # as values: then the output is the weights
with full_float32():
    exact = as_numpy(attention(floats(4 * k), floats(k), identity)[0])[0]  # q k
    flat = as_numpy(linear_attention(floats(4 * k), floats(k), identity))[0]  # q k

# %% tags=["shared", "say"]
sharp, pale = exact.diagonal().mean(), flat.diagonal().mean()
say(
    "If each of 64 queries points along its own key, softmax gives this key "
    f"**{sharp:.1%}** of the weight, linear attention **{pale:.1%}**: products of "
    "positive features are large for every key."
)

# %% tags=["shared", "check"]
# Checked: linear weights are those of φ(q)·φ(k), sum to one, and are not sharp here
phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(x))[0] for x in (4 * k, k))
products = phi_q @ phi_k.T  # q k
np.testing.assert_allclose(flat, products / products.sum(1, keepdims=True), atol=1e-5)
np.testing.assert_allclose(flat.sum(axis=1), 1, atol=1e-5)
assert sharp > 0.99 and pale < 0.05

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Write two counts yourself: replace the `...`, and run the cell. `check` tries several
# sizes, also those of GPT-2 small, and says what is wrong.


# %% tags=["shared", "your-turn"]
def my_n_parameters(m, f, n_blocks, n_tokens, max_length):
    """Parameters of a language model like GPT-2, an integer.

    Pre-norm blocks as on this page, and a last norm. One table reads the ``n_tokens``
    tokens and makes the logits, without a bias; a second one has the positions.
    """
    ...


check("costs.n_parameters", my_n_parameters)


# %% tags=["shared", "your-turn"]
def my_cache_bytes(n_texts, length, n_blocks, m, n_heads, n_kv_heads, n_bytes):
    """Bytes of a decoder's KV cache for ``n_texts`` texts of ``length`` tokens.

    The ``n_heads`` heads of queries divide ``m``. They share the keys and values of
    ``n_kv_heads`` heads of the same size. A number takes ``n_bytes`` bytes.
    """
    ...


check("costs.cache_bytes", my_cache_bytes)


# %% tags=["shared", "answer"]
def my_n_parameters(m, f, n_blocks, n_tokens, max_length):
    blocks = n_blocks * block_parameters(m, f) + 2 * m  # and the last norm
    return blocks + (n_tokens + max_length) * m


def my_cache_bytes(n_texts, length, n_blocks, m, n_heads, n_kv_heads, n_bytes):
    width = n_kv_heads * (m // n_heads)  # features of a token's keys in one block
    return 2 * n_texts * length * n_blocks * width * n_bytes  # 2: values, too


assert check("costs.n_parameters", my_n_parameters)
assert check("costs.cache_bytes", my_cache_bytes)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** All weights are frozen but those of the *first* of many blocks. Which of a
# step's operations are saved?
#
# <details><summary>Almost all: only the forward pass is left.</summary>
#
# **No.** Tempting, because frozen weights need no gradient. But the gradient reaches
# the first block through all others.
#
# </details>
# <details><summary>About a third: one of three products.</summary>
#
# **Right.** Of the six operations of a frozen weight, two are for its own gradient. The
# forward pass, and the gradient for the input, remain.
#
# </details>
# <details><summary>None: every block still takes part.</summary>
#
# **No.** They do, but nobody asks for the gradients of frozen weights: one of three
# products is left out.
#
# </details>
#
# **2.** The float32 weights of a model fill a quarter of a GPU's memory. Can you train
# it there with Adam, in float32?
#
# <details><summary>Yes: three quarters are left for the activations.</summary>
#
# **No.** Tempting, because that is how it looks when the model runs. But training also
# holds gradients and two averages, each as large as the weights.
#
# </details>
# <details><summary>Yes, with a batch of one.</summary>
#
# **No.** A small batch helps, but only against activations. Weights, gradients and
# averages do not depend on it.
#
# </details>
# <details><summary>No: nothing is left for the activations.</summary>
#
# **Right.** Weights, gradients and two averages are four quarters, before the first
# sequence comes.
#
# </details>
#
# **3.** FlashAttention is faster than attention written out. What does it save?
#
# <details><summary>Traffic to and from the GPU's memory.</summary>
#
# **Right.** The maps are made and used piece by piece on the chip. Writing them to
# memory and reading them again took longer than computing them.
#
# </details>
# <details><summary>Operations: it skips weights near 0.</summary>
#
# **No.** Sparse methods do that. FlashAttention computes every pair, in training even
# twice, so it needs more operations.
#
# </details>
# <details><summary>Digits: it approximates the softmax piece by piece.</summary>
#
# **No.** Tempting, because a softmax needs its whole row. But a running maximum and a
# running sum give the exact result, up to rounding.
#
# </details>
#
# **4.** The number of tokens in a batch stays, but sequences are twice as long: 1,024
# tokens in place of 512. What happens to the operations of GPT-2 small?
#
# <details><summary>They grow by what the pairs add at 1,024 tokens.</summary>
#
# **No.** Tempting. But a half of that was there at 512 tokens: for each token, the
# pairs grow like $n$.
#
# </details>
# <details><summary>They stay: there are as many tokens as before.</summary>
#
# **No.** Tempting, because $6ND$ counts tokens only. But every token now has twice as
# many others to look at.
#
# </details>
# <details><summary>They grow by half of what the pairs add then.</summary>
#
# **Right.** Only the pairs double. As $n$ is far below $6m$, that is a few percent of
# all operations.
#
# </details>
#
# **5.** A language model writes one text, token by token. A new GPU does twice the
# operations a second, and reads its memory as fast as the old one. How fast does the
# model write?
#
# <details><summary>Twice as fast.</summary>
#
# **No.** The data sheet suggests it, and in training it is so. But for a single token
# each weight is read for one multiplication, and reading takes longer.
#
# </details>
# <details><summary>Hardly faster.</summary>
#
# **Right.** It waits for the memory, from which all weights come anew for each token.
# Many texts at a time would use the new speed.
#
# </details>
# <details><summary>Twice as fast, if the text is long.</summary>
#
# **No.** Tempting, because a long text is more work. But it is more steps of the same
# kind, each with a single row, and more keys and values to read.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * **How long?** $(6N+12\,l\,n\,m)D$ operations, divided by the machine's limit times
#   the utilisation; a block has about $12m^2$ parameters.
# * **What runs out first?** Weights, gradients and averages take 16 bytes per parameter
#   in float32; in long sequences, activations take most.
# * **What helps?** First what keeps the result: fused kernels, recomputing, accumulated
#   gradients. Cheaper attention gives up direct paths, parallel work or sharp weights.

# %% [markdown] tags=["torch"]
# Next come [more devices than one, in PyTorch](scaling_torch.ipynb): for data or models
# that one device cannot take.
