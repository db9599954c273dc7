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
# # Warm-up
#
# By the end you can write the learning-rate schedule of the Transformer, check that the
# optimiser follows it, choose a peak rate, look inside a network that fails to learn
# without warm-up, and test two explanations of this failure. You need: the encoder
# chapter, and the idea of gradient descent.
#
# Imagine that you train a Transformer for a day, and the loss never leaves the level of
# guessing, although model, data and loss function are right. The first few updates
# have ruined the network. The Transformer of 2017 is prone to this. Its authors let
# the learning rate rise from almost zero over 4,000 updates ([Vaswani et al.
# 2017](https://arxiv.org/abs/1706.03762)). Without such a **warm-up**, a Transformer of
# this kind hardly learns to translate: in one comparison it reaches a BLEU score of 8
# instead of 34, where BLEU counts phrases shared with a human translation ([Xiong et
# al. 2020](https://arxiv.org/abs/2002.04745)). This page shows failure and remedy on a
# small network, and then looks for the cause.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [warmup_jax](warmup_jax.ipynb).
# Before it comes [the encoder, in PyTorch](encoder_torch.ipynb).

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
from dataclasses import replace
from functools import partial
from math import cos, inf, pi, sqrt

import numpy as np
import torch
from torch import nn

from helpers import plots  # figures of curves
from helpers.model_torch import Predictor, build
from helpers.prose import say, table, word  # sentences with numbers
from helpers.schedules import check_warmup, factors
from helpers.sequences import reverse_data, shuffled
from helpers.settings import Settings, Warmup
from helpers.shapes import as_numpy  # an array of NumPy, from any framework
from helpers.train_torch import cross_entropy, fit
from helpers.weights import to_arrays

# %% [markdown] tags=["torch"]
# `floats` and `integers` make tensors of these two kinds of numbers, on the GPU if
# there is one.

# %% tags=["torch"]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
plots.use_style()
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
integers = partial(torch.as_tensor, dtype=torch.int64, device=device)
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## The learning rate rises linearly, then falls
#
# The **learning rate** scales each update of the weights. One **update** uses one
# batch; an **epoch** is one pass through all examples. With a high rate a network
# learns fast. But at the start a high rate can move the weights to a region where the
# network no longer learns, and at the end it keeps them from converging. So the rate
# follows a **schedule**: a peak rate, times a factor for each update. The rise of this
# factor at the start is the warm-up.

# %% [markdown] tags=["shared"]
# Let $t = 1, \dots, T$ count the updates, and let the warm-up take the first $w$ of
# them. Two schedules are common:
#
# $$\begin{aligned}
# \text{rise, then cosine:}\quad & \tfrac{t}{w} \text{ for } t \le w, \text{ then }
# \tfrac12\Big(1+\cos\pi\tfrac{t-w}{T-w+1}\Big) \\
# \text{inverse square root:}\quad &
# \min\!\Big(\tfrac{t}{w}, \sqrt{\tfrac{w}{t}}\Big)
# \end{aligned}$$
#
# The last one is that of [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762),
# section 5.3, divided by its peak; the cosine comes from [Loshchilov & Hutter
# 2017](https://arxiv.org/abs/1608.03983). In the code, as in most libraries, `step`
# counts the updates already made: `step` $= t - 1$.


# %% tags=["shared"]
def warmup_cosine(step, *, warmup, total):
    """Linear rise, then a cosine fall over the rest: a factor in (0, 1]."""
    check_warmup(warmup, total)
    if step < warmup:
        return (step + 1) / warmup
    top = warmup - 1
    return 0.5 * (1 + cos(pi * (step - top) / (total - top)))


def inverse_square_root(step, *, warmup, total):
    """Linear rise, then a slow fall without end: the schedule of 2017."""
    check_warmup(warmup, total)
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


# %% tags=["shared"]
w, T = 100, 2000
schedules = {
    "rise, then cosine": warmup_cosine,
    "inverse square root": inverse_square_root,
}
values = {
    name: np.array([schedule(step, warmup=w, total=T) for step in range(T)])
    for name, schedule in schedules.items()
}
rates = 0.01 * values["rise, then cosine"]  # the schedule times a peak rate

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two schedules over 2000 updates. Both rise for 100 updates. The first then falls along a cosine from one to almost zero; the second falls fast at first, and then ever more slowly, and ends above zero."}}
t = np.arange(1, T + 1)
panels = {
    "the whole run": {name: (t, y) for name, y in values.items()},
    "the first 300 updates": {n: (t[:300], y[:300]) for n, y in values.items()},
}
fig = plots.curves(panels, x="update t", y="factor", share_y=True, size=(7, 3.2))
fig

# %% tags=["shared", "say"]
root = values["inverse square root"]
say(
    f"Both peak at update {w}. The cosine ends near zero, so fix the length of the run "
    "beforehand. "
    f"The inverse square root is still at {root[-1]:.2f} after {T:,} updates."
)

# %% tags=["shared", "check"]
# Checked: both peak at update w with 1, and no update has rate zero
first, second = (plots.drawn(fig, "the whole run", name)[1] for name in values)
for y, schedule in zip((first, second), schedules.values(), strict=True):
    assert np.argmax(y) == w - 1 and y[w - 1] == 1 and y.min() > 0
    np.testing.assert_array_equal(y, factors(schedule.__name__, warmup=w, total=T))
assert first[-1] < 1e-5 and (np.diff(second[w:], 2) > 0).all() and second[-1] > 0.2

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** The Transformer of 2017 had $m = 512$ and $w = 4000$, and its
# rate at update $t$ was $m^{-1/2}\min(t^{-1/2}, t\,w^{-3/2})$. What is its peak rate,
# and at which update has it fallen to half of that?


# %% tags=["shared", "answer"]
def rate_2017(t, m=512, w=4000):
    return m**-0.5 * min(t**-0.5, t * w**-1.5)


# Both terms of the minimum are equal at t = w: there the rate peaks, at 1 / √(m w).
# After it, the rate falls as 1 / √t: half of the peak needs four times as many updates.
say(
    f"The peak is {rate_2017(4_000):.1e}, which is 1 / √(512 · 4000) = "
    f"{1 / sqrt(512 * 4_000):.1e}. At t = 4 w = 16,000 the rate is "
    f"{rate_2017(16_000):.1e}, one half of it."
)

# %% [markdown] tags=["shared"]
# ## The schedule enters the loop at the optimiser
#
# A common mistake is that the schedule in the plot is not the one in the training: the
# code counts epochs instead of updates, or takes `step` for $t$, so that the first
# update has the rate 0 and changes no weight. The rate belongs to the optimiser, as a
# new number for every update.

# %% [markdown] tags=["torch"]
# An optimiser in PyTorch is an object: it holds the parameters, changes them in place,
# and keeps its learning rate in `param_groups`, where the loop overwrites it before
# each step. (`fused` makes the step faster and changes nothing else.)


# %% tags=["torch"]
def train(model, loss_fn, data, batches, rates, *, beta2=0.999):
    """Train in place, one update per row of ``batches``: loss, gradient norm ``t``."""
    params = list(model.parameters())
    optimizer = torch.optim.Adam(params, betas=(0.9, beta2), fused=True)
    history = []
    for index, rate in zip(batches, rates.tolist(), strict=True):
        loss, _ = loss_fn(model, *(x[index] for x in data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        norm = nn.utils.get_total_norm([p.grad for p in params])
        history.append(torch.stack([loss.detach(), norm]))
    return torch.stack(history).T


# %% [markdown] tags=["shared"]
# To see which rates an optimiser really uses, take as model a single weight, which is
# also the loss. The gradient is 1 at every update, so each step of Adam is as long as
# the rate, and the loss falls by exactly the rate that was used.


# %% tags=["torch"]
class OneWeight(nn.Module):
    """A model that ignores its input and returns its single weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.weight * torch.ones_like(x)


def its_value(model, x):
    """The weight as the loss; the accuracy is a placeholder."""
    return model(x).mean(), {"accuracy": torch.zeros((), device=x.device)}


# %% tags=["shared"]
ones, batches = np.ones(8 * T, np.float32), np.arange(8 * T).reshape(T, 8)
model = OneWeight()
losses, _ = train(model, its_value, (floats(ones),), integers(batches), floats(rates))
[last] = to_arrays(model).values()  # the weight after the last update
used = -np.diff(np.append(as_numpy(losses), last))  # t

# %% tags=["shared", "say"]
say(
    f"The first update moved the weight by {used[0]:.4f}, a hundredth of the peak rate "
    f"of 0.01; the longest step, {used.max():.4f}, is that of update "
    f"{np.argmax(used) + 1}. Every step equals the rate in the figure, up to a "
    "thousandth of the peak rate, because the loss is rounded to single precision."
)

# %% tags=["shared", "check"]
# Checked: each step equals the rate drawn, here and in the fit of later pages
np.testing.assert_allclose(used, rates, atol=0.01 * 1e-3)
settings = Settings(
    n_train=8 * T, batch_size=8, epochs=1, learning_rate=0.01, warmup=w,
    max_grad_norm=inf,
)  # fmt: skip
model = OneWeight()
history = fit(model, its_value, (ones,), settings, bar=False)
[last] = to_arrays(model).values()
after = np.append(history["loss"][1:], last)
np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)
np.testing.assert_allclose(settings.learning_rates, rates, rtol=1e-6)
np.testing.assert_allclose(history["loss"] - after, rates, atol=0.01 * 1e-3)

# %% [markdown] tags=["torch"]
# PyTorch's `LambdaLR` multiplies the learning rate by a factor that you give as a
# function of the number of calls of `scheduler.step()`. The first update uses the
# factor at 0, before any call.


# %% tags=["torch"]
def rates_of_the_framework(peak, warmup, total):
    """The schedule in a scheduler of PyTorch at every update: array ``t``."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=peak)
    factor = partial(warmup_cosine, warmup=warmup, total=total)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


# %% tags=["shared", "check"]
# Checked: the schedule of the framework gives the same rate at every update
theirs = rates_of_the_framework(0.01, w, T)
np.testing.assert_allclose(theirs, rates, atol=1e-8)

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Write `warmup_linear`, which rises in the same way
# and then falls in a straight line that would reach 0 one update after the last. Where
# is its peak, and what is its last factor?


# %% tags=["shared", "answer"]
def warmup_linear(step, *, warmup, total):
    """Linear rise, then linear fall: a factor in (0, 1]."""
    check_warmup(warmup, total)
    return min((step + 1) / warmup, (total - step) / (total - warmup + 1))


# The fall is a line through 1 at step = w - 1 and 0 at step = T; the smaller of rise
# and fall is the schedule.
linear = np.array([warmup_linear(step, warmup=w, total=T) for step in range(T)])
say(
    f"The peak is {linear.max():.0f}, at update {np.argmax(linear) + 1}; the last "
    f"factor is 1 / (T - w + 1) = 1 / {T - w + 1} = {linear[-1]:.5f}, not 0."
)

# %% [markdown] tags=["shared"]
# ## With warm-up this network learns, without it does not
#
# The task is to reverse a sequence of 16 symbols: the model reads all of them and
# predicts, at every position, the symbol of the reversed sequence. The loss is
# $-\ln p$, where $p$ is the probability of the right symbol; guessing among ten costs
# $\ln 10 \approx 2.3$. The network is a post-norm stack, as in 2017, and small, so that
# we can train it many times.

# %% tags=["shared"]
settings = Warmup()
data = reverse_data(settings)["train"]
data = floats(data[0]), integers(data[1])  # b s i, b s

# %% tags=["shared", "say"]
one = settings
say(
    table(
        ["setting", "here", "why", "for a first try elsewhere"],
        ["blocks", f"{one.n_blocks}, post-norm", "as in 2017", "pre-norm"],
        ["$m$, heads, $f$", f"{one.m}, {one.n_heads}, {one.f}", "fast", "$f = 4m$"],
        ["peak rate", f"{one.learning_rate:g}", "high on purpose", "1e-3, then the "
         "sweep below"],
        ["updates", f"{one.updates}, of {one.batch_size} sequences", "enough here",
         "until the held-out loss stays level"],
        ["warm-up", f"{one.warmup} updates", "long, to be seen", "5 % of the updates"],
        ["Adam's $\\beta_1, \\beta_2$ (see below)", "0.9, 0.99", "$\\beta_2$ averages "
         "over 1 / (1 − 0.99) = 100 gradients, half of this run", "0.9, 0.999"],
        ["clipping (see below)", "none", "so that only warm-up can help", "norm 1"],
    )
)  # fmt: skip

# %% [markdown] tags=["torch"]
# A new model for every run, because training changes the weights in place.


# %% tags=["torch"]
def new_model(settings):
    """An untrained model; its weights come from the seed of the settings."""
    return build(Predictor, seed=settings.seed, **settings.model)


# %% [markdown] tags=["shared"]
# Each variant is trained from three seeds, which set initial weights and batches.


# %% tags=["shared"]
def all_batches(settings):
    """The rows of every update of a run: integer array ``t b``."""
    epochs = range(settings.epochs)
    return np.concatenate([shuffled(settings)(epoch) for epoch in epochs])


# %% tags=["shared"]
def train_seeds(settings, seeds=(0, 1, 2), rates=None):
    """One run per seed, at the rates of the settings or others: losses, models."""
    rates = settings.learning_rates if rates is None else rates
    losses, models = [], []
    for seed in seeds:
        chosen = replace(settings, seed=seed)
        model, batches = new_model(chosen), integers(all_batches(chosen))
        run = train(model, cross_entropy, data, batches, floats(rates), beta2=0.99)
        losses.append(as_numpy(run[0]))  # t
        models.append(model)
    return np.array(losses), models  # n t


# %% tags=["shared"]
no_warmup = replace(settings, warmup=1)  # the first update has the full rate
losses, models = {}, {}
losses["warm-up"], models["warm-up"] = train_seeds(settings)
losses["no warm-up"], models["no warm-up"] = train_seeds(no_warmup)


# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Loss over 200 updates, as bands over three seeds. With warm-up the loss leaves the level of guessing within the first 150 updates and falls to almost zero. Without it the loss stays at the level of guessing."}}
def smooth(rows):
    """Means over ten updates, and the updates at which they end."""
    means = [np.convolve(row, np.ones(10) / 10, mode="valid") for row in rows]
    return np.arange(10, 10 + len(means[0])), means


lines = {name: smooth(rows) for name, rows in losses.items()}
title = "Without warm-up, the loss stays at guessing"
fig = plots.curves({title: lines}, x="update t", y="loss", size=(6.5, 3.2))
fig

# %% tags=["shared", "say"]
guessing = np.log(settings.n_symbols)
learned, stuck = (np.sort(rows[:, -10:].mean(axis=1)) for rows in losses.values())
three = "{:.2f}, {:.2f} and {:.2f}".format
say(
    "Lines are means of three seeds and of ten updates, bands reach from the lowest "
    f"seed to the highest. With warm-up, the loss ends at {learned[0]:.3f}, "
    f"{learned[1]:.3f} and {learned[2]:.3f}. Without it, at {three(*stuck)}: the model "
    f"still guesses ({guessing:.2f})."
)

# %% tags=["shared", "check"]
# Checked: without warm-up the loss ends above 2.2, with it below 0.05
assert stuck.min() > 2.2
assert learned.max() < 0.05  # loose: seeds differ in when they begin to learn
assert abs(losses["no warm-up"][:, 50:].mean() - guessing) < 1e-2  # loose: it guesses
x, falls = plots.drawn(fig, title, "warm-up")
_, stays = plots.drawn(fig, title, "no warm-up")
assert stays.min() > 2.2
assert falls[x == 150] < 0.6 and falls[-1] < 0.05  # loose: likewise

# %% [markdown] tags=["shared"]
# Is the rate perhaps too high? To find a peak rate in practice, one trains briefly at
# several rates and compares the final losses: a **sweep**. Here is one, for one seed.
# Each rate is four times the last.

# %% tags=["shared"]
peaks = np.array([0.375e-3, 1.5e-3, 6e-3, 24e-3])
sweep = {"warm-up": [], "no warm-up": []}
for name, options in {"warm-up": settings, "no warm-up": no_warmup}.items():
    for peak in peaks:
        if peak == settings.learning_rate:
            rows = losses[name][:1]  # seed 0 again
        else:
            chosen = replace(options, learning_rate=float(peak))
            rows, _ = train_seeds(chosen, seeds=[0])
        sweep[name].append(rows[0, -10:].mean())

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Loss after 200 updates over the peak rate, logarithmic, four rates from 0.000375 to 0.024. With warm-up the line falls almost to zero at the third rate, and is at the level of guessing at the fourth. Without warm-up the line stays above 1 at all four, and is at the level of guessing at the last two."}}
title = "One of these rates succeeds, and only with warm-up"
lines = {name: (peaks, np.array(y)) for name, y in sweep.items()}
fig = plots.curves(
    {title: lines}, x="peak rate", y="final loss", log_x=4, marks="o", size=(6.5, 3.2),
)  # fmt: skip
fig.axes[0].set_xticks(peaks, [f"{peak:g}" for peak in peaks])
fig

# %% tags=["shared", "say"]
with_it, without = (np.array(y) for y in sweep.values())
say(
    "The two small rates are too slow for 200 updates, with and without warm-up. At "
    f"0.006 the loss is {with_it[2]:.3f} with warm-up, "
    f"{word('lower', with_it[2], without.min())} than at any of these rates without it "
    f"({without.min():.2f} at best). The rate 0.024 fails even with warm-up."
)

# %% tags=["shared", "check"]
# Checked: at 0.006 the loss is below 0.05 with warm-up; without, above 1 at every rate
_, u = plots.drawn(fig, title, "warm-up")
_, v = plots.drawn(fig, title, "no warm-up")
assert u[2] < 0.05  # loose: seeds differ in when they begin to learn
assert v.min() > 1 and (v[2:] > 2.2).all() and u[3] > 2.2 and u[:2].min() > 0.8
assert v[0] > v[1]  # even slower rates would not be the best ones

# %% [markdown] tags=["shared"]
# Try it: how short may the warm-up be? `train_seeds(replace(settings, warmup=20))`. And
# does a small rate need no warm-up, only time? Take `replace(no_warmup,
# learning_rate=1.5e-3, epochs=6)`.

# %% [markdown] tags=["shared"]
# ## The stuck network no longer sees its input
#
# What does such a network do? To reverse a sequence, the blocks need outputs that
# differ from position to position and from sequence to sequence. So measure how much
# they differ: the standard deviation over all positions of 64 sequences, averaged over
# the features, as a share of the root mean square.


# %% tags=["torch"]
@torch.no_grad()
def block_outputs(model, x):
    """Output of each block: ``b s i -> l b s m``."""
    x, outputs = model.positions(model.embed(x)), []
    for block in model.encoder.blocks:
        x, _ = block(x)
        outputs.append(x)
    return torch.stack(outputs)


# %% tags=["shared"]
few = data[0][:64]


def differences(model):
    """Deviation over sequences and positions / size, after each block: array ``l``."""
    outputs = as_numpy(block_outputs(model, few))  # l b s m
    size = np.sqrt((outputs**2).mean(axis=(1, 2, 3)))
    return outputs.std(axis=(1, 2)).mean(axis=-1) / size


fresh = [replace(settings, seed=seed) for seed in range(3)]
inside = {
    "before training": [differences(new_model(chosen)) for chosen in fresh],
    "trained with warm-up": [differences(model) for model in models["warm-up"]],
    "trained without": [differences(model) for model in models["no warm-up"]],
}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "How much the outputs of each of six blocks differ between positions and sequences, relative to their size, logarithmic, as bands over three seeds. Before training and after training with warm-up the lines stay above 0.2 in all blocks. After training without warm-up the line falls by orders of magnitude from block to block."}}
block = np.arange(1, settings.n_blocks + 1)
title = "Without warm-up, all outputs become alike"
lines = {name: (block, np.array(rows)) for name, rows in inside.items()}
fig = plots.curves(
    {title: lines}, x="block", y="difference of outputs", log_y=True, marks="o",
    size=(6.5, 3.2),
)  # fmt: skip
fig

# %% tags=["shared", "say"]
start, kept, lost = (np.mean(rows, axis=0) for rows in inside.values())
say(
    f"After the last block, the outputs differ by {start[-1]:.2f} of their size before "
    f"training, and by {kept[-1]:.2f} after training with warm-up. In the stuck "
    "network only "
    f"**{lost[-1]:.1g}** is left: at every position of every sequence the output is "
    "nearly the same, so the network can only predict how frequent each symbol is."
)

# %% tags=["shared", "check"]
# Checked: in the stuck network the last difference is below a hundredth of the first
y = {name: plots.drawn(fig, title, name)[1] for name in inside}
assert y["before training"].min() > 0.2 and y["trained with warm-up"].min() > 0.7
least = 0.006 * y["before training"][-1]
assert y["trained without"][-1] < least  # loose: frameworks differ twofold
assert (np.diff(y["trained without"]) < 0).all()

# %% [markdown] tags=["shared"]
# Something in the first updates did this. There are two published explanations.

# %% [markdown] tags=["shared"]
# ## First explanation: Adam divides by an estimate from few gradients
#
# Adam gives each weight a step size of its own: it divides by the typical size of that
# weight's gradients, estimated from those it has seen. At the start these are few. A
# weight whose first gradients happen to be small gets a step size that is far too
# large. [Liu et al. 2019](https://arxiv.org/abs/1908.03265) blame this spread: warm-up
# helps because the rate is low until the estimates are good.

# %% [markdown] tags=["shared"]
# With the gradient $g_t$ of a weight $\theta$ at update $t$ and the rate $\eta_t$, Adam
# keeps two moving averages, of the gradients ($\mu$) and of their squares ($\nu$):
#
# $$\begin{aligned}
# \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t & \hat\mu_t &= \mu_t / (1-\beta_1^t) \\
# \nu_t &= \beta_2 \nu_{t-1} + (1-\beta_2)\, g_t^2 &
# \hat\nu_t &= \nu_t / (1-\beta_2^t) \\
# \theta_t &= \theta_{t-1} - \eta_t\, \hat\mu_t / (\sqrt{\hat\nu_t} + \epsilon)
# \end{aligned}$$
#
# Both begin at 0; dividing by $1-\beta^t$ makes up for that, and $\epsilon = 10^{-8}$
# keeps the denominator from 0. At the first update $\hat\mu_1 = g_1$ and $\hat\nu_1 =
# g_1^2$, so every weight moves by $\pm\eta_1$, however small its gradient is (if it is
# well above $\epsilon$).


# %% tags=["shared"]
def adam_averages(grads, beta1=0.9, beta2=0.999):
    """Adam's averages, corrected for their start at 0: ``t n -> t n, t n``."""
    mean, square, averages = 0.0, 0.0, []
    for t, g in enumerate(grads, start=1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g**2
        averages.append((mean / (1 - beta1**t), square / (1 - beta2**t)))
    return np.swapaxes(averages, 0, 1)


def adam_steps(grads, epsilon=1e-8):
    """Adam's steps per unit of rate: ``t n -> t n``."""
    mean, square = adam_averages(grads)
    return mean / (np.sqrt(square) + epsilon)


# %% [markdown] tags=["shared"]
# To see the spread alone, take 2,000 weights whose gradients are random numbers of one
# and the same distribution, with standard deviation 1. A perfect estimate would give
# all of them the same scaling, $1/\sqrt{\hat\nu} = 1$.

# %% tags=["shared"]
noise = np.random.default_rng(0).normal(size=(1000, 2000))  # t n
scaling = 1 / np.sqrt(adam_averages(noise, beta2=0.99)[1])  # t n
quantiles = np.quantile(scaling, [0.99, 0.5, 0.01], axis=1)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Adam's scaling of 2000 weights over 200 updates, both axes logarithmic. At the first update the 99 % quantile is above sixty and the 1 % quantile below one half; both approach one, fast at first. The median is between them."}}
t = np.arange(1, 201)
names = "99 % quantile", "median", "1 % quantile"
title = "The first scalings are far too large or too small"
lines = {name: (t, y[:200]) for name, y in zip(names, quantiles, strict=True)}
fig = plots.curves(
    {title: lines}, x="update t", y="scaling 1/√ν̂", log_x=10, log_y=True,
    size=(6.5, 3.2),
)  # fmt: skip
fig

# %% tags=["shared", "say"]
spread = quantiles[0] / quantiles[2]
say(
    "After the first update, the 99 % quantile is "
    f"**{spread[0]:.0f} times** the 1 % quantile; after ten updates {spread[9]:.1f} "
    f"times, after fifty {spread[49]:.1f} times, and in the end {spread[-1]:.1f} times."
)

# %% tags=["shared", "check"]
# Checked: the spread falls from above 100 to below 2 within fifty updates
upper, middle, lower = (plots.drawn(fig, title, name)[1] for name in names)
assert (upper > middle).all() and (middle > lower).all()
assert upper[0] / lower[0] > 100 and upper[49] / lower[49] < 2
assert upper[9] / lower[9] < 4 and upper[0] > 50 and lower[0] < 0.5

# %% [markdown] tags=["shared"]
# **RAdam**, the optimiser of Liu et al., makes up for the spread. It multiplies each
# step of Adam by a number $r_t < 1$, the standard deviation of the scaling over the
# weights in the end, divided by that at update $t$:
#
# $$r_t = \mathrm{sd}\big(1/\sqrt{\hat\nu_\infty}\big) \big/\,
# \mathrm{sd}\big(1/\sqrt{\hat\nu_t}\big)$$
#
# For random gradients it follows from $t$ and $\beta_2$. (For the first five updates it
# is not defined. There the libraries do not divide by $\sqrt{\hat\nu}$; we skip these.)


# %% tags=["shared"]
def rectification(t, beta2):
    """RAdam's factor ``r_t`` at update ``t``, from 6 on (Liu et al., algorithm 2)."""
    end = 2 / (1 - beta2) - 1
    rho = end - 2 * t * beta2**t / (1 - beta2**t)  # about the number of gradients
    return np.sqrt((rho - 4) * (rho - 2) * end / ((end - 4) * (end - 2) * rho))


# %% tags=["shared", "check"]
# Checked: r_t is the measured ratio of the two standard deviations
end = 2 / (1 - 0.999) - 1
long_run = np.sqrt(end / (2 * (end - 2) * (end - 4)))  # deviation, by Liu et al.
deviation = (1 / np.sqrt(adam_averages(noise)[1])).std(axis=1)
formula = rectification(np.arange(6, 1001), 0.999)
measured = long_run / deviation[5:]
assert formula[0] < 0.05 and 0.6 < formula[-1] < 0.7 and (np.diff(formula) > 0).all()
np.testing.assert_allclose(measured[14:], formula[14:], rtol=0.1)  # from update 20 on
np.testing.assert_allclose(measured[:14], formula[:14], rtol=0.6)

# %% [markdown] tags=["torch"]
# PyTorch has both optimisers. The steps they take on the same gradients:


# %% tags=["torch"]
OPTIMIZERS = {"adam": torch.optim.Adam, "radam": torch.optim.RAdam}


def framework_steps(kind, grads):
    """Steps of an optimiser of PyTorch at rate 1: ``t n -> t n``."""
    weight = nn.Parameter(torch.zeros_like(grads[0]))
    optimizer, steps = OPTIMIZERS[kind]([weight], lr=1.0), []
    for grad in grads:
        before = weight.detach().clone()
        weight.grad = grad.clone()
        optimizer.step()
        steps.append(before - weight.detach())
    return torch.stack(steps)


# %% tags=["shared", "check"]
# Checked: the framework's Adam takes our steps; its RAdam r_t times these
ours, short = adam_steps(noise[:100]), floats(noise[:100])
np.testing.assert_allclose(as_numpy(framework_steps("adam", short)), ours, atol=1e-3)
rectified = rectification(np.arange(6, 101), 0.999)[:, None] * ours[5:]
radam = as_numpy(framework_steps("radam", short))[5:]
np.testing.assert_allclose(
    radam, rectified, rtol=0.02, atol=1e-3
)  # loose: Optax computes ρ in single precision
np.testing.assert_allclose(np.abs(ours[0]), 1, atol=1e-3)  # the first step is the rate

# %% [markdown] tags=["shared"]
# Does our network learn with RAdam and without warm-up? Success alone would prove
# little: $r_t$ rises slowly with $t$ whatever the gradients are, so RAdam is Adam with
# a warm-up of its own, at the rates $\eta_t\,r_t$, and we run it as such. ([Ma & Yarats
# 2019](https://arxiv.org/abs/1910.04209) blame the size of the first steps instead.)
#
# So let us also remove the spread, but keep the high rate. For 50 updates the rate is
# 0: Adam's averages fill, while the weights stay where they are. Then the rate jumps to
# its peak. If the spread does the harm, the network must learn now. (Liu et al. made a
# test of this kind on a translation model, and there it helped.)

# %% tags=["shared"]
full = no_warmup.learning_rates
r = np.append(np.zeros(5), rectification(np.arange(6, len(full) + 1), 0.99))
losses["RAdam"], _ = train_seeds(no_warmup, rates=full * r)
filled = "averages filled first"
late = np.append(np.zeros(50), full)[: len(full)]
losses[filled], _ = train_seeds(no_warmup, seeds=(0, 1), rates=late)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Loss of three variants over 200 updates, as bands over the seeds. With filled averages the loss stays at the level of guessing. RAdam falls below it and goes on falling; Adam with warm-up falls to almost zero."}}
title = "Filled averages do not help, a slow start does"
names = "warm-up", filled, "RAdam"
lines = {name: smooth(losses[name]) for name in names}
fig = plots.curves({title: lines}, x="update t", y="loss", size=(6.5, 3.2))
fig

# %% tags=["shared", "say"]
ends = {name: np.sort(losses[name][:, -10:].mean(axis=1)) for name in names}
t = settings.updates
say(
    "With RAdam the network begins to learn, some seeds slowly: they end at "
    f"{three(*ends['RAdam'])}. But **filled averages do not help here**: {t - 50} "
    f"updates after the jump, the loss is {ends[filled][0]:.2f} and "
    f"{ends[filled][1]:.2f} (two seeds). So the spread alone does not explain this "
    "failure. The next suspect is the size of the first steps: those of RAdam are "
    "short."
)

# %% tags=["shared", "check"]
# Checked: Adam with averages filled stays above 2.2; RAdam ends below 1.8 on average
_, stays = plots.drawn(fig, title, filled)
assert stays.min() > 2.2 and ends[filled].min() > 2.2
_, falls = plots.drawn(fig, title, "RAdam")
assert falls[-1] < 1.8  # loose: seeds differ in when they begin to learn
assert ends["RAdam"][0] < 1.3  # loose: likewise
assert falls[-1] < falls[len(falls) // 2]
assert plots.drawn(fig, title, "warm-up")[1][-1] < 0.05  # loose: likewise

# %% [markdown] tags=["shared"]
# ## Second explanation: post-norm cannot undo the damage of large steps
#
# The second explanation looks at the network. With the norm after each sum (post-norm),
# the last blocks receive larger gradients at the start than with the norm first
# (pre-norm), and [Xiong et al. 2020](https://arxiv.org/abs/2002.04745) conclude that a
# high rate is dangerous there. [Liu et al. 2020](https://arxiv.org/abs/2004.08249)
# object that Adam's steps do not depend on the size of the gradient. They blame the
# sum: a post-norm block depends more on its own layers, so small changes of their
# weights add up to a large change of the output.
#
# Both predict that pre-norm needs no warm-up. So train the pre-norm stack without, and
# look inside both stacks after the first ten updates.

# %% tags=["shared"]
pre_norm = replace(no_warmup, norm_first=True)
losses["pre-norm, no warm-up"], _ = train_seeds(pre_norm)
ten = np.where(np.arange(len(full)) < 10, full, 0)  # all later updates have rate 0
early = {}
for name, options in {"post-norm": no_warmup, "pre-norm": pre_norm}.items():
    _, [model] = train_seeds(options, seeds=[0], rates=ten)
    early[name] = differences(model)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two panels. Left: loss over 200 updates without warm-up, as bands over three seeds; post-norm stays at the level of guessing, pre-norm falls below it. Right: how much the outputs of each of six blocks differ, relative to their size, after ten updates; the line of post-norm falls from block to block, and at the last block it is below that of pre-norm."}}
pair = {"post-norm": "no warm-up", "pre-norm": "pre-norm, no warm-up"}
titles = "loss without warm-up", "differences after ten updates"
panels = {
    titles[0]: {name: smooth(losses[run]) for name, run in pair.items()},
    titles[1]: {name: (block, early[name]) for name in pair},
}
fig = plots.curves(panels, x=["update t", "block"], log_y=[titles[1]], size=(7.6, 3.4))
fig

# %% tags=["shared", "say"]
free = np.sort(losses["pre-norm, no warm-up"][:, -10:].mean(axis=1))
post, pre = early.values()
say(
    "Without warm-up, pre-norm begins to learn, some seeds only a little: they end at "
    f"{three(*free)}. The right panel suggests why (seed 0). After ten updates, all "
    "outputs share one large vector, in both stacks. What differs after the last block "
    f"is {pre[-1]:.2f} of the size of the outputs with pre-norm, but {post[-1]:.2g} "
    "with post-norm. Pre-norm adds the shared vector to a sum which still contains the "
    "input. Post-norm divides each sum by its standard deviation, and the differences "
    "with it, block by block."
)

# %% tags=["shared", "check"]
# Checked: without warm-up, pre-norm ends below 2.2; in its outputs more differs
lost, found = (plots.drawn(fig, titles[0], name)[1] for name in pair)
assert lost.min() > 2.2 and found[-1] < 1.8  # loose: seeds differ in when they begin
assert free.max() < 2.2  # loose: likewise
post, pre = (plots.drawn(fig, titles[1], name)[1] for name in pair)
assert pre[-1] > 4 * post[-1] and (np.diff(post) < 0).all()
assert max(pre[-1], post[-1]) < 0.15  # all outputs have one vector in common

# %% [markdown] tags=["shared"]
# This is one network and one task. But it agrees with practice: large models use
# pre-norm, and a short warm-up all the same, because it costs almost nothing
# ([GPT-3](https://arxiv.org/abs/2005.14165): 375 million of 300 billion tokens).

# %% [markdown] tags=["shared"]
# ## Clipping limits the damage of one bad batch
#
# A batch can be unlucky: its gradient is a hundred times as long as those before. With
# plain gradient descent, this spike would move the weights far away. Adam divides the
# spike by its own size, so its next step is bounded, but both averages remember the
# spike. The mean $\mu$ forgets it within some ten updates: until then the steps are too
# long and point along the spike. The average of squares $\nu$ forgets it within about a
# thousand: for so long the steps are too short. **Clipping by the global norm**
# shortens a gradient that is longer than $c$, and keeps its direction:
#
# $$g \leftarrow g \cdot \min\!\big(1,\ c / \lVert g \rVert\big),$$
#
# with the norm taken over all weights together ([Pascanu et al.
# 2012](https://arxiv.org/abs/1211.5063)). Try $c = 1$ first, the value of
# [GPT-3](https://arxiv.org/abs/2005.14165).


# %% tags=["shared"]
def clip_by_global_norm(grads, largest):
    """Shorten a list of arrays to a common norm of at most ``largest``."""
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    return [g * (largest / norm) if norm > largest else g for g in grads]


long = [10 * np.ones((2, 3)), -20 * np.ones(4)]
short = clip_by_global_norm(long, 1.0)

# %% [markdown] tags=["torch"]
# PyTorch clips the gradients stored in the parameters (`.grad`), in place, between
# `backward` and `step`, and returns the norm before clipping.

# %% tags=["torch"]
params = [nn.Parameter(floats(np.zeros(g.shape))) for g in long]
for param, g in zip(params, long, strict=True):
    param.grad = floats(g)
nn.utils.clip_grad_norm_(params, 1.0)
theirs = [param.grad for param in params]

# %% tags=["shared", "check"]
# Checked: the norm becomes 1, directions and short gradients stay, as in the framework
np.testing.assert_allclose(np.sqrt(sum((g**2).sum() for g in short)), 1)
np.testing.assert_allclose(short[1][0] / short[0][0, 0], -2)  # the same direction
np.testing.assert_array_equal(clip_by_global_norm([long[0] / 100], 1.0)[0], 0.1)
for a, b in zip(theirs, short, strict=True):
    np.testing.assert_allclose(as_numpy(a), b, rtol=1e-5)

# %% [markdown] tags=["shared"]
# Here are 400 weights with random gradients, at update 50 a hundred times as long. The
# limit $c$ is the largest norm of the others.

# %% tags=["shared"]
stream = np.random.default_rng(1).normal(size=(200, 400))  # t n
c = np.linalg.norm(stream, axis=1).max()
stream[49] *= 100  # update 50
clipped = np.array([clip_by_global_norm([g], c)[0] for g in stream])
step_size = {
    name: np.abs(adam_steps(grads)).mean(axis=1)
    for name, grads in {"not clipped": stream, "clipped": clipped}.items()
}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Mean size of Adam's steps over 200 updates, with a spike in the gradient at update 50. Without clipping the steps jump up at the spike, and from about 15 updates later are much shorter; with clipping they go on as before."}}
lines = {name: (np.arange(1, 201), y) for name, y in step_size.items()}
fig = plots.curves(
    {"": lines}, x="update t", y="mean size of a step / rate", log_y=True, size=(6, 3)
)
fig

# %% tags=["shared", "say"]
spoilt, kept = step_size.values()
say(
    f"At the spike the steps become {spoilt[49] / kept[49]:.1f} times as long as with "
    f"clipping; from update 80 to the end they are at most "
    f"{(spoilt[79:] / kept[79:]).max():.2f} times as long."
)

# %% tags=["shared", "check"]
# Checked: unclipped steps are twice as long after the spike, later less than half
assert (np.linalg.norm(clipped, axis=1) <= c * (1 + 1e-9)).all()
spoilt, kept = (plots.drawn(fig, "", name)[1] for name in step_size)
assert (spoilt[49:54] > 2 * kept[49:54]).all()
assert (spoilt[79:] < kept[79:] / 2).all()
assert np.allclose(kept[49:], kept[39:49].mean(), rtol=0.2)

# %% [markdown] tags=["torch"]
# In your own code: **AdamW** is Adam which also shrinks every weight a little at each
# update (*weight decay*); almost all Transformers are trained with it ([Loshchilov &
# Hutter 2019](https://arxiv.org/abs/1711.05101)). To leave norms and biases out, as is
# usual, give them a parameter group of their own. In the loop, between `backward` and
# `zero_grad`: `clip_grad_norm_(params, 1.0)`, `optimizer.step()`, `scheduler.step()`.


# %% tags=["torch"]
def usual_optimizer(params, total, peak=1e-3):
    """AdamW with 5 % warm-up and a cosine over ``total`` updates: and its scheduler."""
    optimizer = torch.optim.AdamW(params, lr=peak, weight_decay=0.1)
    factor = partial(warmup_cosine, warmup=total // 20, total=total)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


optimizer, scheduler = usual_optimizer(model.parameters(), total=2000)


# %% [markdown] tags=["shared"]
# **Exercise 3, open.** A run was interrupted after 49 updates; its weights were saved,
# Adam's $\mu$ and $\nu$ were not. It goes on with the rate it had. How long is the
# first step, compared with a run that was never interrupted, and what would you do
# about it? With `g = clipped[:49]`, the interrupted run takes `adam_steps(g)`, from
# empty averages; the other one takes the last 49 steps of
# `adam_steps(np.concatenate([g, g]))`.

# %% tags=["shared", "answer"]
before = clipped[:49]
fresh = adam_steps(before)  # averages begin anew: the first step has size 1
going_on = adam_steps(np.concatenate([before, before]))[49:]
first = [np.abs(steps[0]).mean() for steps in (fresh, going_on)]
# Save the optimiser's state with the weights, as `fit` does, or warm up again.
say(
    f"The first step has the size {first[0]:.2f} instead of {first[1]:.2f}: with empty "
    "averages, Adam starts at the full rate, in the direction of a single batch, and "
    "with the spread of the first updates. Save the optimiser's state with the "
    "weights, as the next chapter does; without it, warm up again."
)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * A schedule is a factor per update. Find the peak rate by a sweep.
# * At a high rate, our post-norm network got stuck without warm-up; low rates were
#   slow. Warm-up made a rate usable that fails without it.
# * In the stuck network all outputs are nearly the same: it no longer sees its input.
# * First explanation: Adam's scalings vary widely while they rest on few gradients.
#   RAdam makes up for this, with a warm-up of its own. Filling the averages beforehand
#   did not help our network.
# * Second explanation: the post-norm stack itself. With pre-norm, more differences were
#   left, and the network began to learn without warm-up, some seeds only a little.
# * To start with: pre-norm, AdamW, a warm-up of a twentieth of the updates, cosine,
#   clipping at norm 1.
# * Clipping by the global norm protects Adam's averages from single spikes.

# %% [markdown] tags=["torch"]
# Next comes [the reverse task, in PyTorch](reverse_torch.ipynb): one training run from
# its data to its attention map.
