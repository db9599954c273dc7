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
# # Warm-up
#
# By the end you can write the learning-rate schedule of the Transformer, look inside a
# network that fails to learn, and test why it fails. You need: the chapters up to *The
# reverse task*.
#
# You train a Transformer for a day, and the loss never leaves the level of guessing,
# although model, data and loss function are right: the first few updates have ruined
# the network. The authors of the Transformer prevented this by a learning rate that
# rises from almost zero over 4,000 updates ([Vaswani et al.
# 2017](https://arxiv.org/abs/1706.03762)). Without such a **warm-up**, a post-norm
# Transformer hardly learned to translate: it reached a translation score (BLEU) of 8
# instead of 34 ([Xiong et al. 2020](https://arxiv.org/abs/2002.04745)).
#
# > **If you only want the recipe**: pre-norm; AdamW with a weight decay of 0.1, only on
# > the matrices of dense layers and embeddings; warm-up over a twentieth of all
# > updates, then a cosine; gradients clipped at norm 1; a peak rate of one thousandth
# > to begin with, then a *sweep* of others. The code is `make_optimizer` and
# > `fit` of *The reverse task*.

# %% [markdown] tags=["jax"]
# This page uses **JAX**. The same page in PyTorch: [warmup_torch](warmup_torch.ipynb).
# Before it comes [the reverse task, in JAX](reverse_jax.ipynb).

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

from dataclasses import replace
from math import cos, inf, pi, sqrt

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from helpers import Settings, as_numpy, check
from helpers.data.sequences import reverse_data, shuffled
from helpers.jax import Encoder, Predictor, cross_entropy, tensor, update
from helpers.show import drawing, plots, say

jax.config.update("jax_default_matmul_precision", "highest")
plots.use_style()
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## Without warm-up, this network learns nothing
#
# In the last chapter, a model learned to reverse sequences while its learning rate rose
# for 50 updates. Here the model has six blocks, a higher rate, and only eight digits to
# reverse. If the rate rises for 150 updates, long on purpose, it learns; if the rate is
# high at once, it learns nothing.

# %% tags=["shared"]
settings = Settings(
    n_train=32 * 100,
    batch_size=32,
    epochs=2,
    learning_rate=8e-3,
    warmup=150,
    max_grad_norm=inf,
)
no_warmup = replace(settings, warmup=1)  # the first update has the full rate
sizes = {"n_inputs": 10, "m": 32, "n_outputs": 10, "n_blocks": 6, "n_heads": 4, "f": 64}
data = [tensor(x) for x in reverse_data(settings.n_train, length=8)["train"]]

# %% [markdown] tags=["shared"]
# | setting | value | why here |
# |---|---|---|
# | digits in a sequence | 8 | fast |
# | blocks | 6, post-norm | as in 2017 |
# | $m$, heads, $f$ | 32, 4, 64 | fast |
# | peak rate | `8e-3` | high on purpose |
# | updates | 200, each of 32 sequences | enough to learn |
# | warm-up | 150 updates | long, to be safe at this rate |
# | Adam's $\beta_1, \beta_2$ | 0.9, 0.99 | for a run as short as this |
# | clipping | none | so that only warm-up can help |

# %% [markdown] tags=["jax"]
# Each setting is trained with three seeds, by the update of the last chapter, with
# plain Adam and no clipping. We give it the rates of all updates. (On a CPU, XLA's
# *fusion* would compute the norms of so deep a stack again and again: we leave it out.)


# %% tags=["jax"]
from functools import partial

import optax


def new_model(seed, norm_first=False):
    """An untrained model."""
    return Predictor(**sizes, norm_first=norm_first, rngs=nnx.Rngs(seed))


ON_CPU = jax.default_backend() == "cpu"
WITHOUT_FUSION = {"xla_disable_hlo_passes": "fusion"} if ON_CPU else {}


@partial(jax.jit, static_argnames="graph", compiler_options=WITHOUT_FUSION)
def updates_at(rates, state, data, batches, graph):
    """Updates of the last chapter, one per row of ``batches``: the state, numbers."""

    def step(state, given):
        rate, rows = given
        adam, batch = optax.adam(rate, b2=0.99), [x[rows] for x in data]
        return update(state, batch, adam, graph, cross_entropy, nnx.Param)

    return jax.lax.scan(step, state, (rates, batches))


# %% tags=["jax"]
def train(model, data, batches, rates):
    """Train in place, one update per row of ``batches``: the losses ``t``."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    state, found = (params, rest, optax.adam(0.0, b2=0.99).init(params)), []
    for start in range(0, len(rates), 10):  # compiled once, for ten updates
        ten = slice(start, start + 10)
        state, numbers = updates_at(rates[ten], state, data, batches[ten], graph)
        found.append(numbers)
    nnx.update(model, *state[:2])
    return np.concatenate(found)[:, 0]


# %% tags=["shared"]
def train_seeds(settings, rates=None, norm_first=False, seeds=(0, 1, 2)):
    """One run a seed, at the settings' rates or others: losses ``n t``, models."""
    rates = settings.learning_rates if rates is None else rates
    losses, models = [], []
    for seed in seeds:
        epochs = map(shuffled(replace(settings, seed=seed)), range(4))
        batches = np.concatenate([*epochs])[: len(rates)]  # t b
        model = new_model(seed, norm_first)
        losses.append(train(model, data, batches, rates))
        models.append(model)
    return np.array(losses), models


def final(losses):
    """Mean loss of the last ten updates of each run, sorted: ``n t -> n``."""
    return np.sort(losses[:, -10:].mean(axis=1))


# %% tags=["shared"]
losses, models = {}, {}
losses["warm-up"], models["warm-up"] = train_seeds(settings)
losses["no warm-up"], models["no warm-up"] = train_seeds(no_warmup)


# %% tags=["shared"]
def smooth(rows):
    """The updates at which ten end, and means over these ten."""
    means = [np.convolve(row, np.ones(10) / 10, mode="valid") for row in rows]
    return np.arange(10, 10 + len(means[0])), means


def three(numbers):
    """Three numbers as text."""
    return "{:.2f}, {:.2f} and {:.2f}".format(*numbers)


# %% mystnb={"image": {"alt": "Loss over 200 updates, as bands over three seeds. With warm-up the loss leaves the level of guessing within the first 150 updates and falls to almost zero; on the way the loss of a seed may jump up and come back. Without it the loss stays at the level of guessing. A dotted line marks the update with the highest rate."}} tags=["shared", "figure"]
lines = {name: smooth(rows) for name, rows in losses.items()}
title = "Without warm-up, the loss stays at guessing"
fig = plots.curves({title: lines}, x="update t", y="loss", size=(6.5, 3.2))
fig.axes[0].axvline(settings.warmup, color=plots.INK, ls=":", lw=0.8)  # the peak
fig

# %% tags=["shared", "say"]
learned, stuck = final(losses["warm-up"]), final(losses["no warm-up"])
say(
    f"With warm-up all seeds end at {learned[-1]:.3f} at most; without, at guessing, "
    f"$\\ln 10$ = {np.log(10):.2f}. The mean rate is the same, half of the peak: what "
    "counts is when the rate is high."
)

# %% [markdown] tags=["shared"]
# (Lines: mean of three seeds, smoothed over ten updates; bands: lowest to highest seed;
# dotted: the peak of the warm-up.)

# %% tags=["shared", "check"]
# Checked: without warm-up the loss ends at guessing, with it most seeds learn
means = [one.learning_rates.mean() for one in (settings, no_warmup)]
np.testing.assert_allclose(means, settings.learning_rate / 2, rtol=0.01)
assert abs(losses["no warm-up"][:, 50:].mean() - np.log(10)) < 0.05
assert np.median(learned) < 0.05 and learned.max() < 0.5 and stuck.min() > 2.2
rows = shuffled(replace(settings, seed=1))(0)[0]  # a run has the batches of its seed
first, _ = cross_entropy(new_model(1, False), *(x[rows] for x in data))
np.testing.assert_allclose(losses["warm-up"][1, 0], as_numpy(first), rtol=1e-4)

# %% [markdown] tags=["shared"]
# ## The stuck network no longer sees its input
#
# What has become of the network that guesses? To reverse a sequence, its blocks need
# outputs that differ between positions and between sequences. How different are they?
# We divide the standard deviation of the outputs by their root mean square (rms):
#
# $$d=\frac{\operatorname{mean}_j\,\operatorname{std}_p(x_{pj})}
# {\operatorname{rms}(x)}$$
#
# for feature $j$ of the output $x_p$, where $p$ runs over all positions of 64
# sequences. If all outputs are equal, $d = 0$; if they have no common part, $d$ is
# about 1.


# %% tags=["jax"]
@nnx.jit
def block_outputs(model, x):
    """Output of each block: ``b s i -> l b s m``."""
    x, outputs = model.positions(model.embed(x)), []
    for block in model.encoder.blocks:
        x, _ = block(x)
        outputs.append(x)
    return jnp.stack(outputs)


# %% tags=["shared"]
def differences(model):
    """Deviation over sequences and positions / size, after each block: array ``l``."""
    outputs = as_numpy(block_outputs(model, data[0][:64]))  # l b s m
    size = np.sqrt((outputs**2).mean(axis=(1, 2, 3)))
    return outputs.std(axis=(1, 2)).mean(axis=-1) / size


# %% tags=["shared"]
inside = {  # the first two in the colours of the first figure
    "trained with warm-up": models["warm-up"],
    "trained without warm-up": models["no warm-up"],
    "before training": [new_model(seed) for seed in range(3)],
}
inside = {name: [differences(one) for one in kind] for name, kind in inside.items()}
kept, lost, start = [np.mean(rows, axis=0) for rows in inside.values()]

# %% mystnb={"image": {"alt": "How much the outputs of each of six blocks differ between positions and sequences, relative to their size, logarithmic, as bands over three seeds. Before training and after training with warm-up the lines stay above 0.2 in all blocks. After training without warm-up the line falls by orders of magnitude from block to block."}} tags=["shared", "figure"]
block = np.arange(1, sizes["n_blocks"] + 1)
title = "Without warm-up, all outputs become alike"
lines = {name: (block, np.array(rows)) for name, rows in inside.items()}
lines = {title: lines}
labels = {"x": "block", "y": "difference of outputs"}
fig = plots.curves(lines, **labels, log_y=True, marks="o", size=(6.5, 3.2))
fig

# %% tags=["shared", "say"]
say(
    f"After the last block, the outputs differ by {start[-1]:.2f} of their size before "
    f"training, and by {kept[-1]:.2f} after training with warm-up, in the stuck "
    f"network by **{lost[-1]:.1g}**. It predicts how frequent each symbol is."
)

# %% tags=["shared", "check"]
# Checked: in the stuck network the last difference is below a hundredth of the first
assert start.min() > 0.2 and kept.min() > 0.7
assert lost[-1] < 0.01 * start[-1] and (np.diff(lost) < 0).all()

# %% [markdown] tags=["shared"]
# How can a network lose its input? Suppose that after large steps a layer adds nearly
# the same long vector to every output, as in the drawing. The norm scales the sums back
# to their old length, and so shrinks their differences; in post-norm, this happens in
# every block. If your own loss stays at guessing, compute $d$ for your blocks.

# %% mystnb={"image": {"alt": "Three arrows in different directions are three outputs. After the same long vector has been added to each, they are long and nearly parallel. After the norm they have their old length and are still nearly parallel: the differences have shrunk."}} tags=["shared", "figure"]
drawing("shared-vector")

# %% [markdown] tags=["shared"]
# ## Small first steps help, filled averages do not
#
# What keeps this network from learning? There are four suspects, and each gets a test
# without warm-up:
#
# * **Too little time**: we train for twice as long.
# * **Adam's first averages**. Adam divides the step of each weight by the typical size
#   of its gradients, which at the start it estimates from a few ([Liu et al.
#   2019](https://arxiv.org/abs/1908.03265)). *Averages filled first*: 50 updates at
#   rate 0 fill the averages and leave the weights alone; then the run without warm-up.
#   If bad averages are all that does harm, this network learns.
# * **The size of the first steps** ([Ma & Yarats
#   2021](https://arxiv.org/abs/1910.04209)). *Small steps first*: a tenth of the peak
#   rate for 50 updates, a simple kind of warm-up; then likewise.
# * **Post-norm**, which shrinks the differences in every block. *Pre-norm*: the same
#   rates.

# %% tags=["shared"]
longer = replace(no_warmup, epochs=4)
slower = replace(longer, learning_rate=settings.learning_rate / 4)
still_stuck = final(train_seeds(longer, seeds=[0])[0]).item()
slow = final(train_seeds(slower, seeds=[0])[0]).item()

# %% tags=["shared"]
full = no_warmup.learning_rates
zeros = np.append(np.zeros(50), full)[: len(full)]  # averages filled first
tenths = np.append(np.full(50, full[0] / 10), full)[: len(full)]  # small first
filled, small = "averages filled first", "small steps first"
pre = "pre-norm, no warm-up"
losses[filled], _ = train_seeds(no_warmup, zeros.astype("float32"))
losses[small], _ = train_seeds(no_warmup, tenths.astype("float32"))
losses[pre], _ = train_seeds(no_warmup, norm_first=True)
ends = {name: final(losses[name]) for name in (filled, small, pre)}
for name, end in ends.items():
    print(f"{name:21} loss at the end: {three(end)}")
print(f"{longer.updates} updates, one seed: {still_stuck:.2f}")
print(f"{slower.updates} updates at a quarter of the rate: {slow:.2f}")

# %% mystnb={"image": {"alt": "Loss of four variants over 200 updates, as bands over three seeds. With averages filled first the loss stays at the level of guessing. With pre-norm it falls below it, and with small steps first, and with warm-up, it falls far below it. A dotted line marks the jump to the peak rate, after 50 updates."}} tags=["shared", "figure"]
title = "Filled averages do not help, small first steps do"
lines = {name: smooth(losses[name]) for name in ("warm-up", small, pre, filled)}
fig = plots.curves({title: lines}, x="update t", y="loss", size=(6.5, 3.2))
fig.axes[0].axvline(50, color=plots.INK, ls=":", lw=0.8)  # the jump to the peak rate
fig

# %% [markdown] tags=["shared"]
# | suspect | test, without warm-up | verdict |
# |---|---|---|
# | too little time | twice as many updates | not for this seed: it still guesses |
# | Adam's first averages | averages filled first | not alone: it still guesses |
# | size of the first steps | small steps first | in part: most seeds bear the jump |
# | post-norm | pre-norm | in part: most seeds learn |
#
# A quarter of the rate divides all steps by four, the first ones too: with it, a
# network **learned without warm-up** (one seed). Warm-up makes a high rate usable.

# %% tags=["shared", "check"]
# Checked: stuck for longer, or with filled averages; most seeds of the others learn
assert still_stuck > 2.2 and slow < 0.25
assert ends[filled].min() > 2.2
assert np.median(ends[small]) < 1 and ends[small].mean() < ends[filled].mean() - 0.5
assert np.median(ends[pre]) < 1

# %% [markdown] tags=["shared"]
# At this rate **large first steps** ruin the network, and post-norm makes it more
# sensitive. After small first steps it can bear the high rate. (The averages were
# filled with the weights at rest: this rules out too few gradients, not gradients that
# change.) This is one network and one task, but [Kalra & Barkeshli
# 2024](https://arxiv.org/abs/2406.09405) find the same in many, also with SGD: warm-up
# leads to where the loss is less curved and larger steps do no harm. How much Adam and
# post-norm add is debated (see the extras). Most large models use pre-norm, $\beta_2 =
# 0.95$ and a short warm-up: [GPT-3](https://arxiv.org/abs/2005.14165) used 375 million
# of 300 billion tokens.

# %% [markdown] tags=["shared"]
# **Exercise 1, by thought alone.** Your own post-norm network has had a warm-up over a
# twentieth of 40,000 updates, and its loss stays at the level of guessing. Name three
# changes that may help, and what each costs. And is a twentieth enough on this page?

# %% tags=["shared", "answer"]
shorter = final(train_seeds(replace(settings, warmup=10))[0])
say(
    "*A longer warm-up*: fewer updates at the full rate. *A lower peak*: each update "
    "learns less, so you need more of them. *Pre-norm*: another model, so you cannot "
    "go on from published post-norm weights. But a loss at the level of guessing has "
    "other causes, too: first see, as above, if all outputs are alike.\n\n"
    f"Here, a warm-up of 10 updates leads to {three(shorter)} (not learned: "
    f"{(shorter > 1).sum()} of 3 seeds). The recipe's twentieth is meant for pre-norm "
    "and the rate 0.001."
)

# %% [markdown] tags=["shared"]
# ## The learning rate rises linearly, then falls
#
# A high rate learns fast, but at the start it can ruin the network, and at the end it
# keeps the weights from converging. So the rate follows a **schedule**: a peak rate
# times a factor that first rises (the warm-up), then falls. For updates $t = 1, \dots,
# T$, of which the first $w$ are warm-up, two schedules are common:
#
# $$\begin{aligned}
# \text{rise, then cosine:}\quad & \tfrac{t}{w} \text{ for } t\le w, \text{ then }
# \tfrac12\Big(1+\cos\pi\tfrac{t-w}{T-w+1}\Big) \\
# \text{inverse square root:}\quad & \min\!\Big(\tfrac{t}{w},\sqrt{\tfrac{w}{t}}\Big)
# \end{aligned}$$
#
# The second is the schedule of 2017. Because of the $+1$, the cosine ([Loshchilov &
# Hutter 2017](https://arxiv.org/abs/1608.03983)) would reach zero one update after the
# last. In the code, `step` $=t-1$ counts the updates already made. (Both stand in
# `helpers/settings.py`, too, for `Settings`.)


# %% tags=["shared"]
def warmup_cosine(step, warmup, total):
    """Linear rise, then a cosine fall over the rest: a factor in (0, 1]."""
    if step < warmup:
        return (step + 1) / warmup
    top = warmup - 1
    return 0.5 * (1 + cos(pi * (step - top) / (total - top)))


def inverse_square_root(step, warmup, total):
    """Linear rise, then a slow fall without end: the schedule of 2017."""
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


# %% mystnb={"image": {"alt": "Two schedules over 2000 updates. Both rise for 100 updates. The first then falls along a cosine from one to almost zero; the second falls fast at first, and then ever more slowly, and ends above zero."}} tags=["shared", "figure"]
w, T = 100, 2000
schedules = {
    "rise, then cosine": warmup_cosine,
    "inverse square root": inverse_square_root,
}
values = {
    name: np.array([schedule(step, w, T) for step in range(T)])
    for name, schedule in schedules.items()
}
t = np.arange(1, T + 1)
title = "Both rise to the peak, and fall in different ways"
panels = {title: {name: (t, y) for name, y in values.items()}}
fig = plots.curves(panels, x="update t", y="factor", size=(6.5, 3.2))
fig

# %% [markdown] tags=["shared"]
# The cosine ends near zero, so fix the length of the run beforehand; the inverse square
# root goes on falling, ever more slowly.

# %% [markdown] tags=["jax"]
# The schedule enters the training loop at the optimiser: `optax.adam(schedule)` takes a
# function of the updates made so far. `optax.warmup_cosine_decay_schedule` gives the
# same rates if its `warmup_steps` is $w - 1$: from $1/w$ at update 1 to the peak at
# update $w$ there are $w - 1$ steps.

# %% [markdown] tags=["shared"]
# **Exercise 2, by hand.** The Transformer of 2017 had $m = 512$ and $w = 4000$, and its
# rate at update $t$ was $m^{-1/2}\min(t^{-1/2}, t\,w^{-3/2})$. What is its peak rate,
# and at which update has it fallen to half of that?


# %% tags=["shared", "answer"]
def rate_2017(t, m=512, w=4000):
    return m**-0.5 * min(t**-0.5, t * w**-1.5)


# Both terms of the minimum are equal at t = w: there the rate peaks, at 1 / √(m w).
# After it, the rate falls as 1 / √t: half of the peak needs four times as many updates.
say(
    f"The peak is {rate_2017(4_000):.5f}, which is 1 / √(512 · 4000) = "
    f"{1 / sqrt(512 * 4_000):.5f}. At t = 4 w = 16,000 the rate is "
    f"{rate_2017(16_000):.5f}, one half of it."
)

# %% [markdown] tags=["shared"]
# ## Extra: First explanation: Adam divides by an estimate from few gradients
#
# At the start, Adam estimates the size of each weight's gradients from a few, so by
# chance it scales some weights far more than others. Liu et al. 2019 blame this spread:
# warm-up keeps the rate low until the estimates are good.
#
# For the gradients $g_t$ of a weight $\theta$ and the rates $\eta_t$, Adam averages the
# gradients ($\mu$) and their squares ($\nu$), and corrects both averages for their
# start at 0. A tiny $\epsilon = 10^{-8}$ keeps the denominator from 0:
#
# $$\begin{aligned}
# \mu_t &= \beta_1\mu_{t-1}+(1-\beta_1)g_t & \hat\mu_t &= \mu_t/(1-\beta_1^t) \\
# \nu_t &= \beta_2\nu_{t-1}+(1-\beta_2)g_t^2 & \hat\nu_t &= \nu_t/(1-\beta_2^t) \\
# \theta_t &= \theta_{t-1}-\eta_t\,\hat\mu_t/(\sqrt{\hat\nu_t}+\epsilon)
# \end{aligned}$$


# %% tags=["shared"]
def adam_averages(grads, beta1=0.9, beta2=0.99):
    """Adam's averages, corrected for their start at 0: ``t n -> t n, t n``."""
    mean, square, averages = 0.0, 0.0, []
    for t, g in enumerate(grads, start=1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g**2
        averages.append((mean / (1 - beta1**t), square / (1 - beta2**t)))
    return np.swapaxes(averages, 0, 1)


def adam_steps(grads, beta2=0.99, epsilon=1e-8):
    """Adam's steps per unit of rate: ``t n -> t n``."""
    mean, square = adam_averages(grads, beta2=beta2)
    return mean / (np.sqrt(square) + epsilon)


# %% [markdown] tags=["shared"]
# Take 2,000 weights whose gradients are random numbers with standard deviation 1. Each
# scaling $1/\sqrt{\hat\nu}$ should be 1. Do some weights move too far?

# %% tags=["shared"]
noise = np.random.default_rng(0).normal(size=(200, 2000))  # t n
scaling = 1 / np.sqrt(adam_averages(noise)[1])  # t n
spread = np.divide(*np.quantile(scaling, [0.99, 0.01], axis=1))  # t
steps = np.abs(adam_steps(noise))  # t n
lengths = np.quantile(steps, 0.99, axis=1), steps.mean(axis=1)
print(f"99 % by 1 % quantile of the scalings after the second update: {spread[1]:.0f}")
print(f"after fifty: {spread[49]:.1f}; mean step then: {lengths[1][49]:.2f} rates")

# %% mystnb={"image": {"alt": "Size of Adam's steps for 2000 weights over 200 updates, in units of the rate, the updates on a logarithmic axis. The 99 % quantile is about one rate in the first four updates, then falls to below two thirds. The mean step falls from one rate at the first update to about a fifth within fifty updates."}} tags=["shared", "figure"]
t = np.arange(1, 201)
names = "99 % quantile", "mean"
title = "The first steps are the longest"
lines = {name: (t, y) for name, y in zip(names, lengths, strict=True)}
fig = plots.curves(
    {title: lines}, x="update t", y="step / rate", log_x=10, size=(6.5, 3.2)
)
fig

# %% [markdown] tags=["shared"]
# At first, some scalings are many times as large as others. But no weight moves too
# far: a large scaling meets small gradients. At $t = 1$ they cancel, so every weight
# moves by $\pm\eta_1$; later the gradients' signs differ, and the mean step becomes
# shorter.

# %% tags=["shared", "check"]
# Checked: the spread falls from above 10 to below 2; all steps are below 1.1 rates
upper, mean = lengths
assert spread[1] > 10 and spread[9] < 4 and spread[49] < 2
assert steps.max() < 1.1 and upper[49:].max() < 0.75
np.testing.assert_allclose([upper[0], mean[0]], 1, atol=1e-3)
assert (np.diff(mean[:10]) < 0).all() and mean[49:].max() < 0.2

# %% [markdown] tags=["shared"]
# **RAdam**, the optimiser of Liu et al., leaves out the division at first, and then has
# a warm-up of its own. It changes both the spread and the size of the first steps. Our
# table of suspects separates them: with filled averages the spread is small from the
# first step on, and the network still guesses. So **the spread alone does not explain
# this failure**.

# %% [markdown] tags=["jax"]
# Optax's Adam takes the same steps:


# %% tags=["jax"]
def framework_steps(grads):
    """Steps of Optax's Adam at rate 1: ``t n -> t n``."""
    optimizer = optax.adam(1.0, b2=0.99)

    def update(opt_state, grad):
        step, opt_state = optimizer.update(grad, opt_state)
        return opt_state, -step

    return jax.lax.scan(update, optimizer.init(grads[0]), grads)[1]


# %% tags=["shared"]
theirs = as_numpy(framework_steps(tensor(noise[:100].astype("float32"))))
print(
    f"largest difference from ours: {abs(theirs - adam_steps(noise[:100])).max():.0e}"
)

# %% [markdown] tags=["shared"]
# ## Extra: Second explanation: post-norm shrinks the differences after large steps
#
# Why does the place of the norm matter here? There are three accounts:
#
# * [Xiong et al. 2020](https://arxiv.org/abs/2002.04745): in post-norm, the last blocks
#   receive larger gradients at the start, too large for high rates.
# * [Liu et al. 2020](https://arxiv.org/abs/2004.08249) object that Adam's steps do not
#   depend on the size of the gradient. In post-norm more of the residual sum comes from
#   the block's own layers, so small changes of their weights add up to a large change
#   of the output.
# * Our drawing: each norm after a sum shrinks the differences. In pre-norm the sum is
#   normalised only once, after the last block.

# %% [markdown] tags=["shared"]
# We test the first account before any training. In pre-norm, the last norm divides by
# the size of the sum, and divides the gradient by it, too: the deeper the stack, the
# smaller the gradient of its last block. Bands span three seeds.


# %% tags=["jax"]
@nnx.jit
def run_block(block, x):
    """The outputs of a block, compiled once for all of them."""
    return block(x)[0]


def layer_gradients(encoder, x, probe):
    """Norm of the gradient of each block's last matrix: ``l``."""

    def total(encoder, y):
        for block in encoder.blocks:
            y = run_block(block, y)
        y = encoder.norm(y) if encoder.norm else y
        return (y * tensor(probe)).sum()

    # With the gradient of x, too, the first block runs the same program as all others.
    gradients, _ = nnx.grad(total, argnums=(0, 1))(encoder, tensor(x))
    numbers = range(len(encoder.blocks))
    last = [gradients["blocks"][i]["ffn"]["linear2"]["kernel"][...] for i in numbers]
    return np.array([np.linalg.norm(as_numpy(matrix)) for matrix in last])


def new_encoder(seed, n_blocks, norm_first):
    """An untrained encoder."""
    options = {"norm_first": norm_first, "rngs": nnx.Rngs(seed)}
    return Encoder(n_blocks, 64, 4, 128, **options)


# %% tags=["shared"]
inputs, probe = np.random.default_rng(4).normal(size=(2, 4, 16, 64)).astype("float32")
depths = [2, 6, 24]
last = {name: np.zeros((3, 3)) for name in ("post-norm", "pre-norm")}  # seed depth
each = {name: np.zeros((3, 24)) for name in last}  # seed block, of 24 blocks
for seed in range(3):
    for place, n_blocks in enumerate(depths):
        for name in last:
            encoder = new_encoder(seed, n_blocks, norm_first=name == "pre-norm")
            gradients = layer_gradients(encoder, inputs, probe)
            last[name][seed, place] = gradients[-1]
            if n_blocks == 24:
                each[name][seed] = gradients

total = tensor(inputs)
for layer in encoder.blocks:  # pre-norm, 24 blocks
    total = run_block(layer, total)
growth = as_numpy(total).std() / inputs.std()

# %% mystnb={"image": {"alt": "Gradient norms at initialisation, two panels, means of three seeds with bands. Left, each of the 24 blocks of one stack: with post-norm the line wavers and keeps most of its height, with pre-norm it falls from the first to the last block. Right, the last block of stacks of 2, 6 and 24 blocks: with post-norm it stays at about the same level, with pre-norm it falls with every step in depth."}} tags=["shared", "figure"]
panels = {
    "each block of a stack of 24": {n: (np.arange(24) + 1, y) for n, y in each.items()},
    "last block of each stack": {name: (depths, y) for name, y in last.items()},
}
labels = {"x": ["block", "blocks in the stack"], "y": "norm of the gradient"}
fig = plots.curves(panels, **labels, marks="o", share_y=True)
fig.axes[0].set_ylim(bottom=0)
fig

# %% tags=["shared", "say"]
falls = {name: (y[:, -1] / y[:, 0]).mean() for name, y in each.items()}  # block 1 to 24
say(
    f"The gradient of the last of 24 blocks is **{falls['pre-norm']:.2f}** times that "
    f"of the first with pre-norm, and {falls['post-norm']:.2f} times with post-norm."
)

# %% [markdown] tags=["shared"]
# As predicted, with pre-norm the gradient of the last block falls with depth. But it
# falls less than Xiong et al. derive, $\sqrt{2/24}$ from 2 to 24 blocks.

# %% tags=["shared", "check"]
# Checked: late gradients shrink with pre-norm only, less than derived; its sum grows
pre_last, post_last = last["pre-norm"].mean(axis=0), last["post-norm"].mean(axis=0)
assert (np.diff(pre_last) < 0).all() and growth > 1.5
assert 1.5 * np.sqrt(2 / 24) < pre_last[-1] / pre_last[0] < 0.7
assert (post_last > 0.75 * post_last[0]).all() and post_last[-1] > 1.4 * pre_last[-1]
pre_each, post_each = each["pre-norm"].mean(axis=0), each["post-norm"].mean(axis=0)
assert pre_each[-1] < 0.6 * pre_each[0] and post_each.min() > 0.6 * post_each.max()

# %% [markdown] tags=["shared"]
# All three accounts predict that pre-norm tolerates high rates from the first update
# on. This we can test; which of them is right, we cannot.

# %% tags=["shared"]
losses["pre-norm, warm-up"], _ = train_seeds(settings, norm_first=True)
early = {}
for name in ("post-norm", "pre-norm"):  # ten updates without warm-up
    _, after_ten = train_seeds(no_warmup, full[:10], norm_first=name == "pre-norm")
    early[name] = [differences(model) for model in after_ten]

# %% mystnb={"image": {"alt": "Two panels, with bands over three seeds. Left: loss over 200 updates. Without warm-up, post-norm stays at the level of guessing and pre-norm falls below it; pre-norm with warm-up falls to almost zero. Right: how much the outputs of each of six blocks differ, relative to their size, after ten updates without warm-up; the line of post-norm falls from block to block, and at the last block it is below that of pre-norm."}} tags=["shared", "figure"]
runs = {
    "post-norm": "no warm-up",
    "pre-norm": pre,
    "pre-norm, warm-up": "pre-norm, warm-up",
}
titles = "loss: pre-norm, too, gains from warm-up", "differences after ten updates"
panels = {
    titles[0]: {name: smooth(losses[run]) for name, run in runs.items()},
    titles[1]: {name: (block, np.array(rows)) for name, rows in early.items()},
}
fig = plots.curves(panels, x=["update t", "block"], log_y=[titles[1]], size=(7.6, 3.4))
fig

# %% tags=["shared", "say"]
free, helped = final(losses[pre]), final(losses["pre-norm, warm-up"])
post_early, pre_early = [np.mean(rows, axis=0) for rows in early.values()]
say(
    f"Without warm-up, the seeds of pre-norm end at {three(free)}, with it at "
    f"{helped[-1]:.3f} at most: here pre-norm is **sturdier, but not immune**."
)

# %% [markdown] tags=["shared"]
# The right panel fits the drawing: all outputs share one large vector, and after the
# last block less of their differences is left in post-norm than in pre-norm.

# %% tags=["shared", "check"]
# Checked: without warm-up most seeds of pre-norm begin to learn; with it, all do
assert np.median(free) < 1 and helped.max() < 0.25
assert helped.mean() < free.mean() / 2
assert pre_early[-1] > 4 * post_early[-1] and (np.diff(post_early) < 0).all()
assert (
    max(pre_early[-1], post_early[-1]) < 0.15
)  # all outputs have one vector in common

# %% [markdown] tags=["shared"]
# ## Extra: Clipping limits the damage of one bad batch
#
# Why does the recipe clip? A batch whose gradient is a hundred times as long as usual
# does harm for hundreds of updates. Adam divides by a size that contains the spike. But
# both averages remember it: $\mu$ makes some ten steps too long, then $\nu$ (with
# $\beta_2 = 0.99$) makes hundreds too short. **Clipping by the global norm** shortens a
# gradient longer than $c$, and keeps its direction:
#
# $$g \leftarrow g\cdot\min\!\big(1,\ c/\lVert g\rVert\big),$$
#
# with the norm over all weights together ([Pascanu et al.
# 2013](https://arxiv.org/abs/1211.5063)). Try $c = 1$ first, the value of GPT-3; values
# from 0.5 to 10 are common.


# %% tags=["shared"]
def clip_by_global_norm(grads, largest):
    """Shorten a list of arrays to a common norm of at most ``largest``."""
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    return [g * (largest / norm) if norm > largest else g for g in grads]


# %% [markdown] tags=["jax"]
# In Optax, clipping is a link of a chain, before Adam:
# `optax.clip_by_global_norm(1.0)`. To see what clipping does to Adam, here are 200
# random gradients, number 50 a hundred times as long.

# %% tags=["shared"]
stream = np.random.default_rng(1).normal(size=(200, 400))  # t n
c = np.linalg.norm(stream, axis=1).max()  # clips nothing but the spike
stream[49] *= 100  # update 50
clipped = np.array([clip_by_global_norm([g], c)[0] for g in stream])
spoilt = np.abs(adam_steps(stream)).mean(axis=1)
kept = np.abs(adam_steps(clipped)).mean(axis=1)
step_size = {"not clipped": spoilt, "clipped": kept}
ratio = spoilt / kept
print(f"at the spike {ratio[49]:.1f} times as long as with clipping, ", end="")
print(f"from update 80 on at most {ratio[79:].max():.2f} times")

# %% mystnb={"image": {"alt": "Mean size of Adam's steps over 200 updates, with a spike in the gradient at update 50. Without clipping the steps jump up at the spike, and from about 15 updates later are much shorter; with clipping they go on as before."}} tags=["shared", "figure"]
lines = {name: (np.arange(1, 201), y) for name, y in step_size.items()}
title = "After a spike, unclipped steps are too long, then too short"
fig = plots.curves(
    {title: lines}, x="update t", y="mean step / rate", log_y=True, size=(6.5, 3.2)
)
fig

# %% tags=["shared", "check"]
# Checked: after a spike unclipped steps are twice as long, later less than half
assert (np.linalg.norm(clipped, axis=1) <= c * (1 + 1e-9)).all()
assert (ratio[49:54] > 2).all() and (ratio[79:] < 1 / 2).all()
np.testing.assert_allclose(kept[49:], kept[39:49].mean(), rtol=0.2)

# %% [markdown] tags=["shared"]
# **Exercise 3, predict and measure.** A run was interrupted after 49 updates. It
# resumes at the old rate, without Adam's $\mu$ and $\nu$. Take `clipped[:49]`, the
# first gradients of the last figure, both before and after. Predict the mean size of
# the first step, in units of the rate, after the interruption and without it.

# %% tags=["shared"]
before = clipped[:49]  # the gradients of 49 updates: t n
interrupted = adam_steps(before)  # goes on with empty averages
uninterrupted = adam_steps(np.concatenate([before, before]))[49:]

# %% tags=["shared", "answer"]
first = [np.abs(steps[0]).mean() for steps in (interrupted, uninterrupted)]
say(
    f"After the interruption the first step has the size {first[0]:.2f}, without it "
    f"{first[1]:.2f}. With empty averages, Adam starts at the full rate, in the "
    "direction of a single batch. Save the optimiser's state with the weights; "
    "without it, warm up again."
)

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Two numbers of every update: the rate, and Adam's step. `check` tries each function,
# and says whether it is right, or what is wrong. As in most code, `t` counts from 0 in
# a schedule, and from 1 in Adam.


# %% tags=["shared", "your-turn"]
def my_schedule(t, peak, warmup, total):
    """The rate of update ``t`` = 0, …, ``total`` - 1: a number.

    A line over the first ``warmup`` updates, of which the last has the rate ``peak``;
    a cosine starts at this peak, and would reach 0 one update after the last one.
    """
    ...


check("warmup.schedule", my_schedule)


# %% tags=["shared", "your-turn"]
def my_adam(gradient, mean, square, t, learning_rate):
    """One step of Adam: three arrays ``n``, the change, and both averages, updated.

    ``mean`` and ``square`` are the averages before this update, ``t`` = 1, 2, … is its
    number. β₁ is 0.9, β₂ is 0.999, and ε = 1e-8 is added to the root. The change is
    added to the weights; the averages are returned as they are kept, not corrected.
    """
    ...


check("warmup.adam", my_adam)


# %% tags=["shared", "answer"]
def my_schedule(t, peak, warmup, total):
    if t < warmup:
        return peak * (t + 1) / warmup
    fall = (t + 1 - warmup) / (total + 1 - warmup)  # 0 at the peak, 1 after the end
    return peak * (1 + cos(pi * fall)) / 2


def my_adam(gradient, mean, square, t, learning_rate):
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient**2
    corrected = mean / (1 - 0.9**t), square / (1 - 0.999**t)
    change = -learning_rate * corrected[0] / (corrected[1] ** 0.5 + 1e-8)
    return change, mean, square


assert check("warmup.schedule", my_schedule)
assert check("warmup.adam", my_adam)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** A network puts nearly all probability on one class, at random. Ten classes are
# equally frequent. What is its cross-entropy?
#
# <details><summary>The logarithm of ten, the loss of guessing.</summary>
#
# **No.** "Guessing" suggests it. But that is the loss of equal probabilities, the best
# for those who know nothing.
#
# </details>
# <details><summary>More than that of equal probabilities.</summary>
#
# **Right.** A confident mistake costs more than a lucky hit saves. So a loss that stays
# at guessing points to outputs that ignore the input, not to wild ones.
#
# </details>
# <details><summary>Less: one answer in ten is right by chance.</summary>
#
# **No.** These few cost almost nothing, true. But the others are wrong, and confident.
#
# </details>
#
# **2.** A warm-up over a twentieth of all updates: when is it most likely to be too
# short?
#
# <details><summary>Never: a share grows with the run.</summary>
#
# **No.** Tempting, because it makes a recipe for every length. But how long a network
# needs before it bears a rate does not depend on when the run ends.
#
# </details>
# <details><summary>In a long run: there is more to learn.</summary>
#
# **No.** There a twentieth is many updates, and the start is as hard as in a short run:
# some large models have warmed up over far less.
#
# </details>
# <details><summary>In a short run with a high rate.</summary>
#
# **Right.** The share is then a few updates. The network needs a number of them, and
# the more the higher the peak.
#
# </details>
#
# **3.** The same long vector, of some random direction, is added to all outputs of a
# layer; then comes layer norm. What happens to the differences between the outputs?
#
# <details><summary>They shrink.</summary>
#
# **Right.** The sums are longer by the common part. Scaled back to the usual length,
# each has a smaller share of what is its own.
#
# </details>
# <details><summary>They stay: all get the same.</summary>
#
# **No.** The addition alone does leave them as they are. But the norm divides by the
# size of the sum.
#
# </details>
# <details><summary>They grow: a norm brings out what differs.</summary>
#
# **No.** Batch norm may come to mind: it subtracts a mean over examples. Layer norm
# sees one output at a time, and cannot know what all have in common.
#
# </details>
#
# **4.** A post-norm network stays at the level of guessing. Which run tells whether
# Adam's first averages *alone* are to blame?
#
# <details><summary>One with warm-up: it gives the averages time.</summary>
#
# **No.** Tempting, because it will learn. But warm-up also makes the first steps small,
# so two suspects change at once.
#
# </details>
# <details><summary>One that fills them before the first step.</summary>
#
# **Right.** Nothing else changes, neither the rate nor the norms. If it still guesses,
# the averages alone are not to blame.
#
# </details>
# <details><summary>One with pre-norm.</summary>
#
# **No.** It tests another suspect. If it learns, it does so with averages that are as
# bad as before.
#
# </details>
#
# **5.** (From the extra on clipping.) A run goes on from its saved weights, at its old
# rate, but with a new Adam. What are the first steps like?
#
# <details><summary>As before: the weights are what was learned.</summary>
#
# **No.** They are all that the model needs to predict. But the steps come from the
# averages, too, and these are gone.
#
# </details>
# <details><summary>Far too short: new averages begin at 0.</summary>
#
# **No.** So it would be without the correction. Adam divides by $1-\beta^t$, and makes
# up for the start.
#
# </details>
# <details><summary>Too long, and in the direction of single batches.</summary>
#
# **Right.** The first moves every weight by the full rate, whatever the size of its
# gradient. Usually noise cancels in the mean, and steps are shorter.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Warm-up made a high rate usable. A smaller rate learned without it.
# * The usual twentieth of all updates is meant for pre-norm and moderate rates.
# * In the stuck network all outputs are nearly the same.
# * Small first steps helped; filled averages of Adam helped no seed.
# * Pre-norm was sturdier than post-norm, and still learned more with warm-up.

# %% [markdown] tags=["jax"]
# Next comes [finding the odd one out, in JAX](anomaly_jax.ipynb): a task on sets, with
# real images. [When training fails](debugging_jax.ipynb) finds a peak rate by a sweep.
