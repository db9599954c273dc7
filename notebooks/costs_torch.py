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
# By the end you can forecast the hours and the memory of your own training with a
# function to copy, choose a remedy from a table, and say where a forecast misleads.
# You need: the chapters on attention and the encoder, and some idea of a training loop.
#
# Before you train a Transformer, you ask three questions. *How long will it take? What
# runs out first, time or memory? And if the answer is bad, what helps?* Trying is
# expensive. But the model's sizes and a stopwatch give the answers before the first
# update. Our example is GPT-2 small, the model of 2019. Does it take a night on the
# computer in front of you, or a year?

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [costs_jax](costs_jax.ipynb).

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

import time

import numpy as np
import torch
from torch import nn
from torch.utils import checkpoint, flop_counter

from helpers.exercises import check
from helpers.show import drawing, plots, recorded, say, table
from helpers.torch import Predictor, device, tensor
from helpers.torch.attention import MultiHeadAttention, attention
from helpers.weights import as_numpy, count_parameters

plots.use_style()
f"PyTorch {torch.__version__} on {device}"

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


# %% [markdown] tags=["shared"]
# A small model, to check such counts, is an encoder between two linear layers:

# %% tags=["shared"]
sizes = {"n_inputs": 32, "m": 128, "n_outputs": 32, "n_blocks": 4, "n_heads": 4}
sizes = {**sizes, "f": 4 * 128, "max_length": 1024}


# %% tags=["torch"]
def new_model(**changes):
    """A model of these sizes, or of changed ones; always drawn with the same seed."""
    torch.manual_seed(0)
    return Predictor(**(sizes | changes)).to(device)


# %% tags=["shared"]
model = new_model()
n_parameters = count_parameters(model)
print(f"{n_parameters:,} parameters")

# %% tags=["shared", "check"]
# Checked: the formula counts the parameters of the model's blocks
m, f = sizes["m"], sizes["f"]
around = (32 * m + m) + (m**2 + m) + 2 * m + (m * 32 + 32)  # input and output nets
assert n_parameters == 4 * block_parameters(m, f) + around

# %% [markdown] tags=["shared"]
# [GPT-2 small](https://github.com/openai/gpt-2) has 12 blocks with $m = 768$, a last
# norm, and two tables, for 50,257 tokens and 1,024 positions:

# %% tags=["shared"]
m, f = 768, 4 * 768
blocks = 12 * block_parameters(m, f) + 2 * m  # and the last norm
token_table, position_table = 50_257 * m, 1_024 * m
gpt2 = blocks + token_table + position_table
print(f"{gpt2:,} parameters, {blocks:,} of them in the blocks")

# %% [markdown] tags=["shared"]
# These are the **124 million** for which GPT-2 small is known.
#
# **Exercise 1, by hand.** The 24 blocks of BERT large ([Devlin et al.
# 2018](https://arxiv.org/abs/1810.04805)) have 302 million parameters, with $f=4m$.
# How large is $m$?

# %% tags=["shared", "answer"]
square = 302e6 / 24 / 12
assert abs(square**0.5 / 1024 - 1) < 0.005
say(
    f"A block has {302 / 24:.1f} million. A twelfth of that, {square / 1e6:.2f} "
    "million, is about $m^2$, so $m$ is about a thousand: 1,024, to be exact. With it, "
    f"24 blocks have {24 * block_parameters(1024, 4096):,} parameters."
)

# %% [markdown] tags=["shared"]
# ## A training step takes about six operations per parameter and token
#
# Follow one weight $w$ of a matrix through a training step, for one token. Forward, $w$
# multiplies an input $x$, and the product is added to an output $y$. Backward, the
# gradient $dy$ of the loss arrives, and takes two products: for the gradients of $w$
# and of $x$.

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
#
# Does a real model agree? Count its operations, for a batch of random numbers:


# %% tags=["shared"]
def batch(b, n):
    """Random inputs ``b n i`` and labels ``b n``, of length ``n``."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(b, n, sizes["n_inputs"]))
    return tensor(x), tensor(rng.integers(32, size=(b, n)))


# %% [markdown] tags=["torch"]
# PyTorch's `FlopCounterMode` counts the operations of all matrix products, here with
# attention written out: a fused kernel (below) computes the scores twice.


# %% tags=["torch"]
def loss_of(logits, labels):
    """Mean cross-entropy of logits ``b n c`` for labels ``b n``."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def loss_with_maps(model, x, labels):
    """The loss, with attention written out, so that its maps are kept."""
    logits, _ = model(x, return_maps=True)
    return loss_of(logits, labels)


# %% tags=["torch"]
def measured_flops(model, x, labels):
    """Operations of one forward and one backward pass."""
    with flop_counter.FlopCounterMode(display=False) as counter:
        loss_with_maps(model, x, labels).backward()
    model.zero_grad()
    return counter.get_total_flops()


per_parameter = measured_flops(model, *batch(1, 16)) / 16 / n_parameters
print(f"{per_parameter:.2f} operations per parameter and token, counted for 16 tokens")

# %% [markdown] tags=["shared"]
# It is six and a little. The rest is attention, which multiplies activations by
# activations.

# %% [markdown] tags=["shared"]
# ## Attention's pairs grow with the square of the length
#
# Attention multiplies queries by keys, and weights by values, for all pairs of
# positions. No parameter takes part in these products. Each of the two takes $2nm$
# operations per token forward and $4nm$ backward. Together that is $12nm$ in each of
# $l$ blocks ([Chowdhery et al. 2022](https://arxiv.org/abs/2204.02311), appendix B):
#
# $$C\approx(6N+12\,l\,n\,m)\,D .$$
#
# For each token the pairs grow like $n$, for a sequence of $n$ tokens like $n^2$. (A
# causal mask needs only half of them.) From which length on do they matter?

# %% tags=["shared"]
short = np.array([16, 64, 256, 1024])  # lengths n
pairs = 12 * sizes["n_blocks"] * short * sizes["m"]  # operations per token
formula = 6 * n_parameters + pairs

# %% tags=["torch"]
counts = [measured_flops(model, *batch(1, n)) for n in short.tolist()]
measured = np.array(counts) / short  # operations per token

# %% mystnb={"image": {"alt": "Million operations per token of a training step over the length n. The line 6N is level. The measured count starts on it and rises in a straight line, along 6N plus 12 l n m."}} tags=["shared", "figure"]
lines = {
    "6N + 12 l n m": (short, formula / 1e6),
    "6N": (short, np.full(4, 6 * n_parameters / 1e6)),
    "measured": (short, measured / 1e6),
}
panels = {"million operations per token": lines}
fig = plots.curves(panels, x="length n", marks="o", size=(4.9, 2.8))
fig.axes[0].set_ylim(bottom=0)
for points in (fig.axes[0].lines[2], fig.legends[0].legend_handles[2]):
    points.set_linestyle("none")  # the formula's line shows between them
fig

# %% tags=["shared"]
ratio = measured / formula
equal = n_parameters / (2 * sizes["n_blocks"] * sizes["m"])  # here 12 l n m is 6N
print(f"The measured count is {ratio.min():.2f} to {ratio.max():.2f} of the formula.")
print(f"At n = {equal:.0f}, the pairs cost as much as the parameters.")

of_parameters = 6 * (gpt2 - position_table)  # operations per token of GPT-2 small
of_pairs = 12 * 12 * 1024 * 768  # for 1,024 tokens
print(f"To GPT-2 small, with 1,024 tokens, they add {of_pairs / of_parameters:.0%}.")

# %% [markdown] tags=["shared"]
# The pairs cost as much as the parameters at a length of about $6m$. GPT-2 small is far
# from this point.

# %% tags=["shared", "check"]
# Checked: the count follows 6N + 12 l n m, and leaves 6N behind
np.testing.assert_allclose(ratio, 1, atol=0.03)
assert 0.9 < per_parameter / 6 < 1.1
assert measured[0] < 1.1 * 6 * n_parameters and measured[-1] > 1.8 * 6 * n_parameters

# %% [markdown] tags=["shared"]
# ## Training time is operations divided by speed
#
# The shortest forecast is a stopwatch: the seconds of one update, times the number of
# updates. We time one of our small model, with 8 sequences of 64 tokens:


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


# %% [markdown] tags=["torch"]
# An update in PyTorch: loss, gradients, step.

# %% tags=["torch"]
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


@torch.enable_grad()  # the stopwatch switches it off
def step(x, labels):
    """One update of the model in place."""
    loss = loss_of(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


# %% tags=["torch"]
data = batch(8, 64)
took = seconds(step, *data)

# %% tags=["shared"]
minutes = 10_000 * took / 60
print(f"{1e3 * took:.0f} ms for an update, {minutes:.1f} minutes for 10,000 of them")

# %% [markdown] tags=["shared"]
# For a model that you have not built, or a machine that you do not have, count the
# operations, and divide by a speed. A machine's **limit** is the rate of a large
# product of matrices (an extra says why it must be large). A data sheet gives it for
# each format of numbers, at the highest clock rate. We measure it:

# %% tags=["torch"]
width = 8192
matrix = torch.ones(width, width, device=device)  # 256 MiB
product = seconds(torch.matmul, torch.ones(256, width, device=device), matrix)
limit = 2 * 256 * width**2 / product  # operations per second
print(f"{limit / 1e9:.0f} billion operations a second, in float32")

# %% [markdown] tags=["shared"]
# An update is slower than that, because it also has small products, norms and Adam. The
# share of the limit that it reaches is its **utilisation** (MFU, *model FLOPs
# utilisation*):

# %% tags=["shared"]
work = 6 * n_parameters * 8 * 64
limit = max(limit, work / took)  # it may have been measured in a slow moment
utilisation = work / took / limit
print(f"{work / 1e9:.1f} billion operations (6ND) in an update")
print(f"utilisation: {utilisation:.0%}")

# %% [markdown] tags=["shared"]
# Now the forecast for GPT-2 small. How many tokens are enough? For a given amount of
# computation, the loss is lowest with about 20 per parameter ([Hoffmann et al.
# 2022](https://arxiv.org/abs/2203.15556)). The speed of a large GPU is from [Narayanan
# et al. 2021](https://arxiv.org/abs/2104.04473): $502\cdot10^{15}$ operations a second
# on 3,072 A100s, in half precision (16 bits). But this counts a second forward pass
# (*recomputing*, below), a quarter; three quarters are useful.

# %% tags=["shared"]
sheet = 312e12  # an A100's limit: https://www.nvidia.com/en-us/data-center/a100/
a100 = 3 / 4 * 502e15 / 3072  # useful operations a second, in a huge training
here = limit * utilisation  # on this machine, in our small training


def hours(tokens, speed):
    """Time to train GPT-2 small, with ``speed`` useful operations a second."""
    return tokens * (of_parameters + of_pairs) / speed / 3600


tokens = 20 * gpt2
print(f"{tokens / 1e9:.1f} billion tokens with GPT-2 small take")
print(f"{hours(tokens, here) / 24 / 365:,.1f} years on this machine,")
print(
    f"{hours(tokens, a100):.1f} hours on one A100, at {a100 / sheet:.0%} of its limit"
)

# %% [markdown] tags=["shared"]
# A night, or a year? The last two lines say it, before any update. Are they right?
# [Karpathy 2024](https://github.com/karpathy/llm.c/discussions/481) trained GPT-2 small
# on 10 billion tokens. That took eight A100s 90 minutes.

# %% tags=["shared"]
published = 8 * 1.5  # hours of an A100
estimate = hours(10e9, a100)
reached = hours(10e9, sheet) / published  # its utilisation
print(f"estimated: {estimate:.0f} hours of an A100; published: {published:.0f}")
print(f"utilisation, estimated: {a100 / sheet:.0%}; published: {reached:.0%}")

# %% [markdown] tags=["shared"]
# This is good enough for a plan. It is off because the huge training, from which we
# took the utilisation, used its GPUs less well than this one. A small model errs more:
# it leaves a large GPU nearly idle. We recorded eight trainings of this book on an
# NVIDIA H200. Its limit is the rate of a product of two matrices of 2,048 rows and
# columns, measured beside them:

# %% tags=["shared", "say"]
parts = recorded("h200-2026-11-27")[-1]["parts"]
runs = [one["pairs"][0]["fit"] for one in parts[-1]["record"]["measured"][:8]]
shares = [run["gflops"] / run["matmul_gflops"] for run in runs]
say(f"They reached **{min(shares):.1%} to {max(shares):.1%}** of it. So time your own.")

# %% tags=["shared", "check"]
# Checked: with or without the pairs, the estimate is within twice the published time
plain = estimate * of_parameters / (of_parameters + of_pairs)
assert 1 < plain / published < estimate / published < 2
assert a100 < reached * sheet < sheet
assert 1 < 8 * short[1] * measured[1] / work < 1.3  # an update of 8 rows of 64

# %% [markdown] tags=["shared"]
# ## Activations grow with the length, weights do not
#
# *What runs out first?* For each parameter, a step holds four numbers: the **weight**,
# its **gradient** and **Adam's two averages**, 16 bytes in float32. It also holds
# **activations**, the intermediate results that the backward pass needs. They grow with
# the batch and the length; only the attention maps, `b h n n` in every block, grow with
# the square of the length.

# %% [markdown] tags=["torch"]
# Weights and averages are held once, because the step updates them in place. Which
# tensors does the forward pass keep? Autograd hands each one to a hook. `activations`
# lists them, except the parameters.


# %% tags=["torch", "export"]
def kept_arrays(function, *args):
    """What the forward pass of ``function(*args)`` keeps, by address."""
    kept = {}

    def keep(x):
        kept.setdefault(x.data_ptr(), x)  # the same memory counts once
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        function(*args)
    return kept


# %% tags=["torch", "export"]
def activations(model, function, *args):
    """Tensors that ``function(model, *args)`` keeps, except the parameters."""
    parameters = {p.data_ptr() for p in model.parameters()}
    kept = kept_arrays(function, model, *args)
    return [a for address, a in kept.items() if address not in parameters]


# %% [markdown] tags=["shared"]
# We count for four sequences, with attention written out. Divided by the sizes, the
# counts serve for other models, too:


# %% tags=["shared"]
def total_bytes(arrays):
    """Bytes of arrays of four-byte numbers."""
    return sum(4 * np.prod(a.shape, dtype=int) for a in arrays)


def block_counts(model, loss, data, m, n_blocks, n_heads):
    """Bytes of activations and of their maps; ``vectors`` and ``copies`` of a block."""
    arrays, (b, n) = activations(model, loss, *data), data[0].shape[:2]
    every = total_bytes(arrays)
    own = total_bytes(a for a in arrays if a.shape[-2:] == (n, n))
    unit = 4 * b * n * n_blocks  # bytes
    return every, own, (every - own) / (unit * m), own / (unit * n_heads * n)


# %% tags=["shared"]
counts = {
    n: block_counts(model, loss_with_maps, batch(4, n), m=128, n_blocks=4, n_heads=4)
    for n in short.tolist()
}
kept = {n: every for n, (every, *_) in counts.items()}  # bytes of all activations
maps = {n: own for n, (_, own, *_) in counts.items()}  # and of the attention maps
vectors, copies = counts[256][2:]
print(f"Every block keeps {vectors:.0f} × b n m and {copies:.0f} × b h n n.")
print(f"At n = 256 they keep {kept[256] / 2**20:.0f} MiB in all,", end=" ")
print(f"{maps[256] / 2**20:.0f} of them attention maps.")

# %% mystnb={"image": {"alt": "Stacked bars of the memory of a training step in percent, for four lengths n and a batch of 4, with the MiB above each bar. At n = 16, weights, gradients and Adam's averages fill most of the bar. With the length, the other activations and then the attention maps take over; at n = 1,024, the maps fill most of the bar."}} tags=["shared", "figure"]
every = np.array([*kept.values()])
own = np.array([*maps.values()])
parts = {"weights": 4 * n_parameters, "gradients": 4 * n_parameters}
parts |= {"Adam's averages": 8 * n_parameters}
parts |= {"other activations": every - own, "attention maps": own}
total = sum(parts.values())
fig, (ax,) = plots.panels_in_rows(1, None, (5, 4), None, None)
top = np.zeros(4)
for colour, (name, size) in zip(plots.COLOURS, parts.items(), strict=False):
    names = [f"{n:,}" for n in kept]
    ax.bar(names, 100 * size / total, bottom=top, color=colour, label=name)
    top = top + 100 * size / total
for place, size in enumerate(total):
    ax.text(place, 101, f"{size / 2**20:.0f} MiB", ha="center", va="bottom")
ax.set(xlabel="length n", ylabel="% of the memory", ylim=(0, 112))
fig.legend(loc="outside lower center", ncols=2)
fig

# %% [markdown] tags=["shared"]
# At $n=16$, weights, gradients and averages take most of the memory. At $n=1024$, the
# maps take most, and the weights hardly show.

# %% tags=["shared", "check"]
# Checked: maps grow with the square of n and take over, the rest grows more slowly
assert [maps[4 * n] / maps[n] for n in (16, 64, 256)] == [16] * 3
grown = [kept[4 * n] / kept[n] for n in (16, 64, 256)]
assert 3.9 < grown[0] < grown[1] < grown[2] < 16
assert kept[16] < (kept[16] + 16 * n_parameters) / 3
assert maps[1024] > (kept[1024] + 16 * n_parameters) / 2

# %% [markdown] tags=["shared"]
# **Exercise 2, change the code.** What grows with eight heads instead of four, and by
# which factor at $n = 256$? Predict it from the numbers above, then measure a second
# model, `new_model(n_heads=8)`.

# %% tags=["shared", "answer"]
eight = new_model(n_heads=8)
found = total_bytes(activations(eight, loss_with_maps, *batch(4, 256))) / kept[256]
predicted = 1 + maps[256] / kept[256]
assert count_parameters(eight) == n_parameters
assert abs(found / predicted - 1) < 0.02
say(
    "Only the activations grow: there are twice as many maps, and each head has half "
    f"the size, so everything else is as before. Twice the maps make {predicted:.2f} "
    f"times the activations; measured: {found:.2f}."
)

# %% [markdown] tags=["shared"]
# ## Each remedy has its price
#
# *What helps?* First of all, do we need whole maps? Our function keeps them for the
# backward pass. But an output needs only its own row. So take the queries in chunks,
# forget the rows of each chunk, and compute them *again* in the backward pass (the
# first extra does it). The result is exact. Memory grows like $n$, operations still
# like $n^2$ (after [Rabe & Staats 2021](https://arxiv.org/abs/2112.05682)).
# **FlashAttention** ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)) does this in
# one GPU program, a *fused kernel*. It takes the keys in pieces, too, so it never holds
# a whole row of weights.
#
# Other remedies are a change of the model or of the batch. What does each leave of our
# model's activations (*memory*), and of its operations, at 1,024 tokens? Activations
# are counted where the model can be changed, the rest is calculated:


# %% tags=["shared"]
def left(n=1024, b=4, **changes):
    """Activations of a changed model or batch, as a share of those above."""
    arrays = activations(new_model(**changes), loss_with_maps, *batch(b, n))
    return total_bytes(arrays) / kept[1024]


of_maps = maps[1024] / kept[1024]  # share of the activations
starts = 4 * 4 * 1024 * sizes["m"] * sizes["n_blocks"] / kept[1024]  # blocks' inputs
paired = pairs[-1] / formula[-1]  # share of the operations

# %% tags=["shared"]
again = paired / 6  # the scores once more: 2 n m of the pairs' 12 n m
one_block = 1 / 4  # kept while it is computed again: one of four
smaller = (1 - paired) / 4 + paired / 2  # 6N falls with m f, the pairs with m
few = 1 - 16 / 1024  # what windows of 16 leave out
remedies = {  # activations and operations that are left, and the price
    "fused kernel, or chunks": (1 - of_maps, 1 + again, "scores computed twice"),
    "two half batches": (left(b=2), 1, "speed, if halves are small"),
    "recompute each block": (starts + one_block, 4 / 3, "a second forward pass"),
    "half the heads": (left(n_heads=2), 1, "fewer patterns at a time"),
    "half the length": (left(n=512), 1 - paired / 2, "half the context"),
    "16 neighbours": (1 - of_maps * few, 1 - paired * few, "blocks, to see far"),
    "half of m and f": (left(m=64, f=256), smaller, "often quality"),
}

# %% tags=["shared", "say"]
head = ["remedy", "memory", "operations", "price"]
rows = [[name, f"{a:.2f}", f"{o:.2f}", how] for name, (a, o, how) in remedies.items()]
say(table(head, *rows))

# %% [markdown] tags=["shared"]
# Begin with those that keep the result, in this order: a fused kernel or chunks; half
# batches, whose gradients are averaged (*gradient accumulation*); recomputing, which
# does for blocks what chunks do for queries ([Chen et al.
# 2016](https://arxiv.org/abs/1604.06174)). The others change the model.
#
# Two remedies for time leave the operations, and raise the speed: a **larger batch**,
# for more activations, and **half precision** ([Micikevicius et al.
# 2018](https://arxiv.org/abs/1710.03740)). On an A100, its limit is 16 times that of
# float32 (PyTorch's default for products), and twice that of TF32 (JAX's). But it keeps
# only two or three digits, so weights and averages stay in float32.

# %% [markdown] tags=["torch"]
# In your own code, `nn.functional.scaled_dot_product_attention` picks a fused kernel,
# and `checkpoint.checkpoint(block, x, use_reentrant=False)` recomputes a block. Half
# precision, and the peak memory of an update:

# %% tags=["torch"]
with torch.autocast(device, torch.bfloat16):  # old GPUs: float16, and a GradScaler
    loss = loss_of(model(data[0]), data[1])
if device == "cuda":  # the peak memory of a step
    torch.cuda.reset_peak_memory_stats()
    step(*data)
    print(torch.cuda.max_memory_allocated() / 2**30, "GiB")

# %% [markdown] tags=["shared"]
# ## A forecast of your own training
#
# Here is the chapter in one function, to copy. (The last term: the logits, their
# softmax and their gradient have a number for each token and each entry of the
# vocabulary.)


# %% tags=["shared"]
def forecast(m, n_blocks, n_heads, vocabulary, n, b, tokens, speed, vectors, copies):
    """Hours, and GiB, of a training with Adam in float32, for ``f = 4m``.

    ``b`` sequences of length ``n`` are a batch; ``tokens`` are seen in all, those of
    the training set times the epochs; ``speed``: useful operations a second. A block
    keeps ``vectors`` × ``b n m`` and ``copies`` × ``b h n n``, as ``block_counts``
    finds (no copies if attention is in chunks or fused).
    """
    multiplied = 12 * n_blocks * m**2 + vocabulary * m  # N, without positions
    operations = (6 * multiplied + 12 * n_blocks * n * m) * tokens
    of_blocks = n_blocks * b * n * (vectors * m + copies * n_heads * n)
    numbers = 4 * (multiplied + n * m) + of_blocks + 3 * b * n * vocabulary
    return operations / speed / 3600, 4 * numbers / 2**30


# %% [markdown] tags=["shared"]
# Say your texts have 20 million tokens, which a model of 8 blocks with $m=512$ and a
# vocabulary of 10,000 sees ten times, on a T4, a GPU that Colab lends. Its utilisation
# is a guess until you time an update. A fifth of the memory stays free for buffers,
# which are not counted.

# %% tags=["shared"]
T4 = 8.1e12  # in float32: https://www.nvidia.com/en-us/data-center/tesla-t4/
room = 15  # GiB that are free on it
mine = {"m": 512, "n_blocks": 8, "n_heads": 8, "vocabulary": 10_000, "n": 512}
mine |= {"tokens": 10 * 20e6, "speed": 0.3 * T4, "vectors": vectors}
print(f"{forecast(**mine, b=64, copies=copies)[0]:.1f} hours")
cases = [("written out", 64, copies), ("in chunks", 64, 0), ("in chunks", 16, 0)]
for kernel, b, kept_maps in cases:
    gib = forecast(**mine, b=b, copies=kept_maps)[1]
    fits = "fits" if gib < 0.8 * room else "too much"
    print(f"attention {kernel:11} b = {b}: {gib:4.1f} GiB, {fits}")

# %% tags=["shared", "check"]
# Checked: the forecast is the memory counted, for our model and for blocks of GPT-2
for n, size in kept.items():
    gib = forecast(128, 4, 4, 32, n, 4, 0, 1, vectors, copies)[1]
    assert abs(2**30 * gib / (size + 16 * n_parameters) - 1) < 0.1
other = new_model(m=768, f=3072, n_heads=12, norm_first=True, activation="gelu")
size = total_bytes(activations(other, loss_with_maps, *batch(1, 1024)))
gib = forecast(768, 4, 12, 32, 1024, 1, 0, 1, vectors, copies)[1]
assert abs((2**30 * gib - 16 * count_parameters(other)) / size - 1) < 0.2

# %% [markdown] tags=["shared"]
# What to do with the numbers? If memory is short, take the first of the remedies that
# keep the result; if time is, half precision or a smaller model. Then time an update of
# the real thing with `seconds`, and multiply by the number of updates,
# `tokens / (b * n)`: trust this. For blocks unlike ours, call `block_counts`.

# %% [markdown] tags=["shared"]
# **Exercise 3, an estimate.** You want to train GPT-2 small in float32 on a GPU with
# $24$ GiB, on sequences of 1,024 tokens, with attention written out. How many sequences
# fit into a batch? What would you change first?

# %% tags=["shared", "answer"]
small = {"m": 768, "n_blocks": 12, "n_heads": 12, "vocabulary": 50_257, "n": 1024}
small |= {"tokens": 0, "speed": 1, "vectors": vectors}
empty = forecast(**small, b=0, copies=0)[1]
each = forecast(**small, b=1, copies=copies)[1] - empty
fused = forecast(**small, b=1, copies=0)[1] - empty
fits, fits_fused = (24 - empty) // each, (24 - empty) // fused
assert 1 <= fits < fits_fused
say(
    f"Weights, gradients and averages take {empty:.1f} GiB, a sequence {each:.1f} GiB. "
    f"So at most {fits:.0f} fit. First drop the maps, by chunks or by a fused kernel "
    f"for float32: the results stay the same, and at most {fits_fused:.0f} fit. "
    "Next take smaller batches and add up their gradients, then recomputation."
)

# %% [markdown] tags=["shared"]
# ## Extra: Computed in chunks, attention never holds a whole map
#
# Here are the chunks in code, beside attention written out and the framework's own:

# %% [markdown] tags=["torch"]
# `checkpoint.checkpoint` runs a function without recording it, and again in the
# backward pass.


# %% tags=["torch"]
def written_out(q, k, v):
    """Our own attention, for one head: ``b n d -> b n d``."""
    return attention(q, k, v)[0]


def in_chunks(q, k, v, size=64):
    """The same, ``size`` queries at a time, computed again on the way back.

    While a chunk is computed, its own rows need room, too.
    """
    chunks = [
        checkpoint.checkpoint(written_out, rows, k, v, use_reentrant=False)
        for rows in q.split(size, dim=1)
    ]
    return torch.cat(chunks, dim=1)


# %% [markdown] tags=["torch"]
# PyTorch's own `scaled_dot_product_attention` picks a kernel for the device and the
# arguments; one of them takes float32 and any mask. Our models call it by
# `fused_attention`, unless they are asked for the maps.


# %% tags=["torch"]
def by_framework(q, k, v):
    """The framework's own attention, for one head: ``b n d -> b n d``."""
    q, k, v = q[:, None], k[:, None], v[:, None]  # b h n d
    return nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]


# %% tags=["torch"]
def kept_bytes(function, x):
    """Bytes kept for the gradient of ``function(q, k, v)``, with three copies of x."""
    inputs = [x.clone().requires_grad_() for _ in range(3)]
    kept = kept_arrays(function, *inputs) | {x.data_ptr(): x for x in inputs}
    return sum(x.nbytes for x in kept.values())


# %% tags=["torch"]
kinds = {
    "written out": written_out,
    "in chunks": in_chunks,
    "framework's own": by_framework,
}

# %% tags=["shared"]
lengths = 4 ** np.arange(3, 7)  # n = 64, 256, 1024, 4096
inputs = [tensor(np.random.default_rng(6).normal(size=(1, n, 64))) for n in lengths]
memory, times, outputs = {}, {}, {}
print("kept at n = 1,024 and n = 4,096, and the time at n = 4,096:")
for name, function in kinds.items():
    memory[name] = np.array([kept_bytes(function, x) for x in inputs])
    times[name] = np.array([seconds(function, x, x, x) for x in inputs])
    x = inputs[1]
    outputs[name] = as_numpy(function(x, x, x))
    mib, ms = memory[name] / 2**20, 1e3 * times[name]
    print(f"{name:16}{mib[2]:5.1f} MiB {mib[3]:6.1f} MiB {ms[3]:7.1f} ms")

# %% mystnb={"image": {"alt": "MiB kept for the backward pass over the length n, on logarithmic axes. Written out, they rise as steeply as the guide n squared, in chunks as the guide n; the framework's own call is drawn beside them."}} tags=["shared", "figure"]
lines = {name: (lengths, size / 2**20) for name, size in memory.items()}
panels = {"MiB kept for the backward pass": lines}
fig = plots.curves(panels, x="length n", log_x=2, log_y=True, marks="o", size=(4.9, 3))
(ax,) = fig.axes
ax.lines[2].set_markersize(3)  # so that a line below it shows
guides = ("in chunks", 1, 0.4, "top"), ("written out", 2, 2.5, "bottom")
for kind, power, aside, va in guides:
    guide = aside * lines[kind][1][0] * (lengths / lengths[0]) ** float(power)
    ax.plot(lengths, guide, ":", color=plots.EDGE, lw=1.4, zorder=0)
    name = "like $n$" if power == 1 else "like $n^2$"
    ha = "left" if power == 1 else "right"
    ax.text(lengths[-2], guide[-2], name, color=plots.EDGE, ha=ha, va=va)
ax.set(xticks=lengths, xticklabels=lengths)
ax.yaxis.set_major_formatter("{x:g}")
fig

# %% [markdown] tags=["shared"]
# Four times the length keeps four times the memory in chunks, and written out nearly
# sixteen times. The milliseconds are those of this processor. On a GPU the order is
# often another: there, a fused kernel saves most of the traffic to the memory.

# %% [markdown] tags=["torch"]
# PyTorch's own kernel is fused: what it keeps grows like $n$, too.

# %% tags=["torch", "check"]
# Checked: chunks give the same output, and what they keep grows like n; the kernel too
for name in ("in chunks", "framework's own"):
    np.testing.assert_allclose(outputs[name], outputs["written out"], atol=1e-5)
square, linear = memory["written out"], memory["in chunks"]
assert square[-1] > 10 * square[-2] and linear[-1] < 5 * linear[-2]
assert linear[-1] < square[-1] / 12
assert memory["framework's own"][-1] < 5 * memory["framework's own"][-2]

# %% [markdown] tags=["shared"]
# ## Extra: Speed is limited by memory or by arithmetic
#
# Why does a large model write so slowly, even on a fast machine? A processor can only
# multiply what it has read from memory. To multiply $n$ rows, one for each token, by a
# matrix `m m` takes $2nm^2$ operations. If $n$ is small, most of what is read is the
# matrix, $4m^2$ bytes. So there are about $n/2$ operations per byte, the *arithmetic
# intensity*; with a single row, the processor waits. The rate is below a **roofline**
# ([Williams et al. 2009](https://doi.org/10.1145/1498765.1498785)): a slope, then a
# flat roof. Our large matrix shows both, because it does not fit into the processor's
# cache.

# %% tags=["torch"]
rows = 4 ** np.arange(5)  # 1, 4, 16, 64 and 256 rows
few = [torch.ones(n, width, device=device) for n in rows[:4].tolist()]
products = np.array([*(seconds(torch.matmul, x, matrix) for x in few), product])

# %% tags=["shared"]
moved = 4 * (width**2 + 2 * rows * width)  # bytes: the matrix, and n rows in and out
intensity = 2 * rows * width**2 / moved  # operations per byte
speed = 2 * rows * width**2 / products  # operations per second
fastest, bandwidth = speed.max(), (moved / products).max()  # the best of each
slow, fast = speed[0] / 1e9, fastest / 1e9
print(f"one row: {slow:.0f} billion operations a second; many: {fast:.0f} billion")

# %% mystnb={"image": {"alt": "Billions of operations per second of a product over its operations per byte. Measured points and a roofline of a slope, where the processor waits for memory, and a flat roof, where it waits for arithmetic. The measured rate is higher with many rows than with one. Two points touch the roofline, the others are below it."}} tags=["shared", "figure"]
knee = fastest / bandwidth  # here memory and arithmetic take the same time
corners = np.array([intensity[0], knee, max(knee, intensity[-1])])
roof = np.minimum(fastest, bandwidth * corners) / 1e9
lines = {"measured": (intensity, speed / 1e9), "roofline": (corners, roof)}
panels = {"billion operations per second": lines}
fig = plots.curves(
    panels, x="operations per byte", log_x=4, log_y=True, marks="o", size=(4.9, 2.8)
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

# %% [markdown] tags=["shared"]
# The roofline touches the best point for memory and the best for arithmetic. How near
# the others come depends on the library's routine for each shape, and on the moment.
# The slope is where a model *writes*: one token multiplies all weights with a single
# row.

# %% tags=["shared", "say"]
reach = speed / np.minimum(fastest, bandwidth * intensity)
say(
    f"The least, {reach.min():.0%}, was reached with {rows[reach.argmin()]} rows. "
    f"At {bandwidth / 1e9:.0f} billion bytes a second, GPT-2 small in float32 writes "
    f"at most **{bandwidth / (4 * gpt2):.0f} tokens a second** here."
)

# %% [markdown] tags=["shared"]
# A decoder that writes also reads its keys and values, the *KV cache*: $2lnm$ numbers
# for each text. If four heads share theirs ([Ainslie et al.
# 2023](https://arxiv.org/abs/2305.13245)), a quarter of it is left.

# %% [markdown] tags=["shared"]
# ## Extra: Cheaper attention gives something up
#
# For very long sequences, you want to get rid of $n^2$ itself. Windows of neighbours do
# this. What do they give up? Suppose that the last word of a sentence depends on the
# first. How many steps does this information take?

# %% mystnb={"image": {"alt": "Three drawings of seven positions with the path from the first to the last in orange. In a recurrent layer it takes six steps, from each position to the next. With one-sided convolutions of width three it takes three layers, each two positions further. In attention a single arrow leads from the first position to the last."}} tags=["shared", "figure"]
drawing("paths")

# %% [markdown] tags=["shared"]
# In attention it takes one. Each cheaper layer gives something up ([Vaswani et al.
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

# %% [markdown] tags=["shared"]
# **Direct paths** matter in training. The gradient travels back along the path, and
# every step multiplies it by a matrix, so it can shrink exponentially ([Bengio et al.
# 1994](https://doi.org/10.1109/72.279181)). Here is the gradient of the last output,
# for untrained attention and an untrained GRU:


# %% tags=["torch"]
def gradient_norms(layer, x):
    """Norm of the gradient of the last output for each position: ``1 n m -> n``."""
    x = tensor(x).requires_grad_()
    layer(x)[0][0, -1].sum().backward()
    return as_numpy(x.grad[0].norm(dim=-1))


# %% tags=["torch"]
n, m = 64, 64
torch.manual_seed(0)
gru = nn.GRU(m, m, batch_first=True).to(device)
torch.manual_seed(0)
one_head = MultiHeadAttention(m, 1).to(device)
layers = {"attention": one_head, "GRU": gru}
x = np.random.default_rng(0).normal(size=(1, n, m))
norms = {name: gradient_norms(layer, x)[::-1] for name, layer in layers.items()}

# %% mystnb={"image": {"alt": "Norm of the gradient of the last output, on a logarithmic scale, over the distance to the position of the input. That of the GRU falls in a straight line by many orders of magnitude; that of attention is level."}} tags=["shared", "figure"]
lines = {name: (np.arange(n), norm) for name, norm in norms.items()}
panels = {"gradient of the last output": lines}
fig = plots.curves(panels, x="positions back", y="norm", log_y=True, size=(4.9, 2.8))
fig

# %% tags=["shared", "say"]
fades, level = norms["GRU"][-1] / norms["GRU"][0], norms["attention"][1:]
say(
    f"After {n - 1} steps back, $10^{{{round(np.log10(fades))}}}$ of the GRU's "
    "gradient is left (for these initial weights). In attention, all earlier positions "
    f"are within a factor of {level.max() / level.min():.1f} of each other."
)

# %% [markdown] tags=["shared"]
# **Parallel work** is why counts of operations do not give times. Each step of a GRU
# waits for the one before, and multiplies with a single row.

# %% tags=["shared", "check"]
# Checked: the GRU's gradient fades, attention's is even
assert fades ** (1 / (n - 1)) < 0.8
assert level.min() / level.max() > 0.11
assert 0.7 < level[:31].mean() / level[31:].mean() < 1.4

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


# %% [markdown] tags=["shared"]
# As an example, queries point along their own keys, $q = 4k$:

# %% tags=["shared"]
k = np.random.default_rng(3).normal(size=(1, 64, 64))  # b n d
identity = tensor(np.eye(64)[None])  # as values: then the output is the weights
exact = as_numpy(attention(tensor(4 * k), tensor(k), identity)[0])[0]  # q k
flat = as_numpy(linear_attention(tensor(4 * k), tensor(k), identity))[0]  # q k

# %% tags=["shared", "say"]
sharp, pale = exact.diagonal().mean(), flat.diagonal().mean()
say(
    "If each of 64 queries points along its own key, softmax gives this key "
    f"**{sharp:.1%}** of the weight, linear attention **{pale:.1%}**: products of "
    "positive features are large for every key."
)

# %% tags=["shared", "check"]
# Checked: linear weights sum to one, and are not sharp here
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
#   the utilisation of a step like yours; a block has about $12m^2$ parameters.
# * **What runs out first?** Weights, gradients and averages take 16 bytes per parameter
#   in float32; in long sequences, activations take most.
# * **What helps?** First what keeps the result: fused kernels, accumulated gradients,
#   recomputing. Cheaper attention gives up direct paths, parallel work or sharp
#   weights.

# %% [markdown] tags=["torch"]
# Next come [more devices than one, in PyTorch](scaling_torch.ipynb): for data or models
# that one device cannot take.
