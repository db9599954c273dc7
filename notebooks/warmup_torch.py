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
# optimiser follows it, name two reasons why the rate has to start small, and show a
# network that learns with warm-up and does not without. You need: the encoder chapter,
# and a first idea of gradient descent.

# %% [markdown] tags=["torch"]
# This page speaks **PyTorch**. The same page in JAX: [warmup_jax](warmup_jax.ipynb).
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

from helpers import plots
from helpers.model_torch import Predictor, build
from helpers.schedules import check_warmup, factors
from helpers.sequences import reverse_data, shuffled
from helpers.settings import Settings, Warmup
from helpers.shapes import as_numpy
from helpers.train_torch import cross_entropy, fit
from helpers.weights import to_arrays

# %% [markdown] tags=["torch"]
# An optimiser is an object in PyTorch that holds the parameters and changes them in
# place. The rate stands in its `param_groups` and is overwritten before each step.

# %% tags=["torch"]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
plots.use_style()
tensor = partial(torch.as_tensor, dtype=torch.float32, device=device)
labels = partial(torch.as_tensor, dtype=torch.int64, device=device)
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## The rate rises in a line, then falls
#
# The **learning rate** says how far one update moves the weights. An update uses one
# batch of examples; an **epoch** goes once through all of them. Early on, a post-norm
# Transformer bears only small steps; later, larger ones save time; at the end, small
# ones let the weights settle. So the rate follows a **schedule**: a factor for each
# update, by which a peak rate is multiplied. The rise at the start is the **warm-up**.

# %% [markdown] tags=["shared"]
# With $t$ updates made so far, $w$ updates of warm-up and $T$ in all, three schedules
# are common:
#
# $$\begin{aligned}
# \text{rise, then cosine:}\quad & \tfrac{t+1}{w} \text{ for } t < w, \text{ then }
# \tfrac12\Big(1+\cos\pi\tfrac{t-w+1}{T-w+1}\Big) \\
# \text{rise times cosine:}\quad &
# \min\!\big(1, \tfrac{t+1}{w}\big)\cdot\tfrac12\big(1+\cos\pi\tfrac{t}{T}\big) \\
# \text{inverse square root:}\quad &
# \min\!\Big(\tfrac{t+1}{w}, \sqrt{\tfrac{w}{t+1}}\Big)
# \end{aligned}$$
#
# The last one is that of 2017 ([Vaswani et al.](https://arxiv.org/abs/1706.03762),
# section 5.3), divided by its peak; the cosine comes from [Loshchilov & Hutter
# 2017](https://arxiv.org/abs/1608.03983).


# %% tags=["shared"]
def warmup_cosine(step, *, warmup, total):
    """Linear rise, then a cosine fall over the rest: a factor in (0, 1]."""
    check_warmup(warmup, total)
    if step < warmup:
        return (step + 1) / warmup
    top = warmup - 1
    return 0.5 * (1 + cos(pi * (step - top) / (total - top)))


def warmup_times_cosine(step, *, warmup, total):
    """Rise and fall multiplied: the cosine falls from the first update on."""
    check_warmup(warmup, total)
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + cos(pi * step / total))


def inverse_square_root(step, *, warmup, total):
    """Linear rise, then a slow fall without end: the schedule of 2017."""
    check_warmup(warmup, total)
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


# %% tags=["shared"] mystnb={"image": {"alt": "Three schedules over 2000 updates. All rise for 100 updates. The first then falls along a cosine from one to zero; the second does the same a little lower; the third falls fast at first, and then ever more slowly."}}
w, T = 100, 2000
schedules = warmup_cosine, warmup_times_cosine, inverse_square_root
drawn = {
    function.__name__.replace("_", " "): np.array(
        [function(t, warmup=w, total=T) for t in range(T)]
    )
    for function in schedules
}
lines = {name: (np.arange(T), y) for name, y in drawn.items()}
start = {name: (np.arange(3 * w), y[: 3 * w]) for name, y in drawn.items()}
panels = {"the whole training": lines, f"the first {3 * w} updates": start}
plots.curves(panels, x="update", y="factor", share_y=True, size=(7, 3.2))

# %% [markdown] tags=["shared"]
# The first and the third reach 1 at the last update of the rise, and only there. The
# product stays below 1, because its cosine has begun to fall by then; for a warm-up
# this short the difference stays below 0.1. No schedule has a factor of zero at any
# update.

# %% tags=["shared"]
sequential, product, root = drawn.values()
assert sequential[w - 1] == root[w - 1] == 1
assert (np.delete(sequential, w - 1) < 1).all() and (np.delete(root, w - 1) < 1).all()
assert product.max() < 1 and np.argmax(product) == w - 1
assert 0 < np.abs(product - sequential).max() < 0.1
assert all((y > 0).all() for y in drawn.values())
for function, y in zip(schedules, drawn.values(), strict=True):
    np.testing.assert_array_equal(y, factors(function.__name__, warmup=w, total=T))

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** The first paper trained with $m = 512$ and $w = 4000$, and
# its rate was $m^{-1/2}\min(n^{-1/2}, n\,w^{-3/2})$ at update $n = t + 1$. What is its
# peak rate, and after how many updates has it fallen to half of that?


# %% tags=["shared", "answer"]
def rate_2017(n, m=512, w=4000):
    return m**-0.5 * min(n**-0.5, n * w**-1.5)


assert np.isclose(rate_2017(4000), 1 / sqrt(512 * 4000))  # the peak: (m w)^-1/2
assert np.isclose(rate_2017(4 * 4000), rate_2017(4000) / 2)  # √(w/n) = 1/2 at n = 4w
f"peak {rate_2017(4000):.2e}"

# %% [markdown] tags=["shared"]
# ## The rates that are drawn are the rates that are used
#
# It is a common slip to draw one schedule and train with another: to count epochs
# instead of updates, or to start at $t/w$, so that the first update has rate zero and
# its batch is wasted. To see what an optimiser really does, give it a task in which the
# answer can be read off. Let a model be a single weight, and its loss the weight
# itself. The gradient is 1 at every update, so Adam's step is the rate, and the loss
# falls by exactly what was used.


# %% tags=["torch"]
class OneWeight(nn.Module):
    """Its value is its only weight, whatever comes in."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.weight * torch.ones_like(x)


def its_value(model, x):
    """The weight as the loss; there is nothing to be right about."""
    return model(x).mean(), {"accuracy": torch.zeros((), device=x.device)}


# %% [markdown] tags=["shared"]
# `fit` of `helpers` is the training loop of this book; the next chapter opens it. It
# takes a model, a function for the loss, the data and settings, and returns what
# happened at every update.

# %% tags=["shared"]
settings = Settings(
    n_train=8 * T, batch_size=8, epochs=1, learning_rate=0.01, warmup=w,
    max_grad_norm=inf,
)  # fmt: skip
model = OneWeight()
history = fit(model, its_value, (np.ones(8 * T, np.float32),), settings, bar=False)
after = [*history["loss"], *to_arrays(model).values()]  # the last update, too
used = -np.diff(np.array(after, dtype=np.float64))
np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)
np.testing.assert_allclose(settings.learning_rates, 0.01 * sequential, rtol=1e-6)
np.testing.assert_allclose(used, settings.learning_rates, atol=0.01 * 1e-3)
f"first update {used[0]:.6f}, peak {used.max():.6f} at update {np.argmax(used) + 1}"

# %% [markdown] tags=["shared"]
# Step by step, what moved the weight is what was drawn, to a thousandth of the peak
# (the loss is a single-precision number, which has no more digits to tell).

# %% [markdown] tags=["torch"]
# PyTorch's scheduler multiplies the rate of an optimiser by a factor that we give it, a
# function of the number of calls of `scheduler.step()`. The first update uses the
# factor at 0, before any call.


# %% tags=["torch"]
def rates_of_the_framework(peak, warmup, total):
    """The schedule in PyTorch's own words: array ``total``."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=peak)
    factor = partial(warmup_cosine, warmup=warmup, total=total)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


# %% tags=["shared"]
theirs = rates_of_the_framework(0.01, w, T)
np.testing.assert_allclose(theirs, settings.learning_rates, atol=1e-8)

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Write `warmup_linear`, which rises in the same way
# and then falls in a straight line, so that the factor after the last update would be
# 0. Assert where its peak is, and that no update has rate zero.


# %% tags=["shared", "answer"]
def warmup_linear(step, *, warmup, total):
    """Linear rise, then linear fall: a factor in (0, 1]."""
    check_warmup(warmup, total)
    return min((step + 1) / warmup, (total - step) / (total - warmup + 1))


linear = np.array([warmup_linear(t, warmup=w, total=T) for t in range(T)])
assert np.argmax(linear) == w - 1 and linear[w - 1] == 1
assert (linear > 0).all() and warmup_linear(T, warmup=w, total=T) == 0
np.testing.assert_allclose(np.diff(linear[w:]), np.diff(linear[w:])[0])

# %% [markdown] tags=["shared"]
# ## Adam's first steps are too large
#
# Adam divides each gradient by the size that this weight's gradients have had so far, a
# moving average. At the first update the average holds one number, the gradient itself:
# divided by its own size, it becomes plus or minus 1, however small it was and however
# little it says. Every weight moves by the full rate, at once and in a direction that
# one batch has drawn. Warm-up keeps these steps short until the averages mean something
# ([Liu et al. 2019](https://arxiv.org/abs/1908.03265)).

# %% [markdown] tags=["shared"]
# $$\begin{aligned}
# \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t & \hat\mu_t &= \mu_t / (1-\beta_1^t) \\
# \nu_t &= \beta_2 \nu_{t-1} + (1-\beta_2)\, g_t^2 &
# \hat\nu_t &= \nu_t / (1-\beta_2^t) \\
# \theta_t &= \theta_{t-1} - \eta_t\, \hat\mu_t / (\sqrt{\hat\nu_t} + \epsilon)
# \end{aligned}$$
#
# Here $g_t$ is the gradient at update $t = 1, 2, \dots$, $\eta_t$ the rate, $\beta_1 =
# 0.9$, $\beta_2 = 0.999$ and $\epsilon = 10^{-8}$. **RAdam** multiplies the step by
#
# $$r_t = \sqrt{\frac{(\rho_t-4)(\rho_t-2)\,\rho_\infty}
# {(\rho_\infty-4)(\rho_\infty-2)\,\rho_t}},
# \qquad \rho_t = \rho_\infty - \frac{2t\beta_2^t}{1-\beta_2^t},
# \qquad \rho_\infty = \frac{2}{1-\beta_2} - 1,$$
#
# which grows from near 0 towards 1, as $\hat\nu_t$ rests on more and more gradients. In
# the first few updates, where $r_t$ is undefined or of no use, it leaves the division
# out and moves by the mean $\hat\mu_t$ alone.


# %% tags=["shared"]
def adam_steps(grads, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """What Adam makes of a stream of gradients, per unit of rate."""
    mean, square, steps = 0.0, 0.0, []
    for t, g in enumerate(grads, start=1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g**2
        unbiased = mean / (1 - beta1**t), square / (1 - beta2**t)
        steps.append(unbiased[0] / (np.sqrt(unbiased[1]) + epsilon))
    return np.array(steps)


# %% [markdown] tags=["shared"]
# First on paper: streams of random gradients that point nowhere, so that every step is
# noise. How large are Adam's steps, on average?

# %% [markdown] tags=["torch"]
# PyTorch's own Adam, on the same stream, gives the same steps.


# %% tags=["torch"]
def framework_steps(name, grads):
    """Steps of an optimiser of PyTorch at rate 1: ``t n -> t n``."""
    weight = nn.Parameter(torch.zeros(grads.shape[1], dtype=torch.float64))
    kind = {"adam": torch.optim.Adam, "radam": torch.optim.RAdam}[name]
    optimizer, places = kind([weight], lr=1.0), [weight.detach().clone()]
    for grad in grads:
        weight.grad = torch.as_tensor(grad, device=weight.device)
        optimizer.step()
        places.append(weight.detach().clone())
    return optimizer, -torch.diff(torch.stack(places), dim=0)


# %% tags=["shared"]
noise = np.random.default_rng(0).normal(size=(100, 4000))  # t n
ours = adam_steps(noise)
_, adam = framework_steps("adam", noise)
np.testing.assert_allclose(as_numpy(adam), ours, atol=1e-3)
_, radam = framework_steps("radam", noise)
t = np.arange(1, 101)
rho_end = 2 / (1 - 0.999) - 1
rho = rho_end - 2 * t * 0.999**t / (1 - 0.999**t)
r = (rho - 4) * (rho - 2) * rho_end / ((rho_end - 4) * (rho_end - 2) * rho)
r = np.sqrt(r[5:, None])  # from the sixth update on
np.testing.assert_allclose(as_numpy(radam)[5:], r * ours[5:], rtol=0.02, atol=1e-3)

# %% tags=["shared"] mystnb={"image": {"alt": "Mean size of a step over the first 100 updates on random gradients. Adam begins at one and falls below a third within about ten updates; RAdam begins at the sixth update below a hundredth and rises slowly."}}
sizes = {"Adam": np.abs(ours).mean(axis=1)}
sizes["RAdam"] = np.abs(as_numpy(radam)).mean(axis=1)
count = np.arange(1, 101)
panels = {"": {name: (count[5:], y[5:]) for name, y in sizes.items()}}
panels[""]["Adam"] = (count, sizes["Adam"])
plots.curves(
    panels, x="update", y="mean size of a step / rate", log_y=True, size=(6, 3)
)

# %% [markdown] tags=["shared"]
# Adam's first step has size 1, no later one is as long on average, and for several
# updates the steps are more than twice as long as at the end. RAdam starts with plain
# means of gradients (outside the picture); from then on its factor keeps the steps
# below a tenth here, and lets them grow: a warm-up that the optimiser brings along. On
# a real network, trained at the full rate from the start, the picture is similar (two
# of the six blocks of the experiment below, to keep it quick).

# %% tags=["shared"]
np.testing.assert_allclose(sizes["Adam"][0], 1, atol=1e-6)
assert (sizes["Adam"][:4] > 2 * sizes["Adam"][-1]).all()
assert sizes["Adam"][1:].max() < 1
assert (sizes["RAdam"][5:] < 0.1).all() and sizes["RAdam"][-1] > 2 * sizes["RAdam"][5]
settings = Warmup()
data = reverse_data(settings)["train"]
batches = shuffled(settings)(0)  # n b
f"{settings.n_blocks} blocks, m = {settings.m}, peak rate {settings.learning_rate}"


# %% tags=["torch"]
def network_steps(name, model, rate):
    """Mean size of each step on the network, per unit of rate: array ``n``."""
    kind = {"adam": torch.optim.Adam, "radam": torch.optim.RAdam}[name]
    params = list(model.parameters())
    optimizer = kind(params, lr=rate)
    inputs, targets = tensor(data[0]), labels(data[1])
    as_vector = nn.utils.parameters_to_vector
    sizes = []
    for index in labels(batches):
        before = as_vector(params).detach().clone()
        optimizer.zero_grad()
        cross_entropy(model, inputs[index], targets[index])[0].backward()
        optimizer.step()
        sizes.append((as_vector(params).detach() - before).abs().mean() / rate)
    return torch.stack(sizes)


# %% tags=["shared"] mystnb={"image": {"alt": "Mean size of a step of the network over the first 100 updates. Adam begins near one and falls; RAdam stays far below it and rises slowly."}}
real = {}
for name in ("adam", "radam"):
    model = build(Predictor, seed=settings.seed, **settings.model | {"n_blocks": 2})
    real[name] = as_numpy(network_steps(name, model, settings.learning_rate))
names = {"adam": "Adam", "radam": "RAdam"}
panels = {"": {names[name]: (count[: len(y)], y) for name, y in real.items()}}
plots.curves(
    panels, x="update", y="mean size of a step / rate", log_y=True, size=(6, 3)
)

# %% tags=["shared"]
assert real["adam"][0] > 0.8 and real["adam"][10] < real["adam"][0] / 2
assert (real["radam"][:10] < 0.7 * real["adam"][:10]).all()
{name: sizes[[0, 5, 10]].round(3) for name, sizes in real.items()}

# %% [markdown] tags=["shared"]
# ## Post-norm keeps large gradients near the output
#
# The second reason lies in the network. The encoder chapter found that with the norm
# after each sum, the last blocks receive large gradients in a stack of any depth, while
# with the norm first they shrink as the stack deepens ([Xiong et al.
# 2020](https://arxiv.org/abs/2002.04745)). Adam takes the size out of its step, but the
# gradient still says how much the loss changes with a weight: where it is large, a
# full-sized step changes the output a lot. Here are the gradients of the loss of our
# task, at the start.


# %% tags=["torch"]
def block_gradients(model, inputs, targets):
    """Norm of the gradient of each block's last matrix: array ``l``."""
    model.zero_grad()
    cross_entropy(model, inputs, targets)[0].backward()
    matrices = [block.ffn.linear2.weight.grad for block in model.encoder.blocks]
    return torch.stack([torch.linalg.norm(matrix) for matrix in matrices])


# %% tags=["shared"] mystnb={"image": {"alt": "Gradient of each of the six blocks at the start, divided by that of the first block, as bands over five seeds. Post-norm stays at or above one on average; pre-norm falls to about half."}}
batch = tensor(data[0][:64]), labels(data[1][:64])
shares = {}
for name, norm_first in {"post-norm": False, "pre-norm": True}.items():
    options = settings.model | {"norm_first": norm_first}
    models = [build(Predictor, seed=seed, **options) for seed in range(5)]
    norms = np.array([as_numpy(block_gradients(model, *batch)) for model in models])
    shares[name] = norms / norms[:, :1]  # seed l
block = np.arange(1, settings.n_blocks + 1)
bands = {name: (block, share) for name, share in shares.items()}
y = "gradient / that of block 1"
plots.curves({"": bands}, x="block", y=y, size=(5.5, 3))

# %% [markdown] tags=["shared"]
# The bands span five seeds. On average, post-norm gives the last block at least 0.85 of
# the gradient of the first; pre-norm less than 0.9, and less than 0.8 of the share
# that post-norm gives.

# %% tags=["shared"]
post, pre = (share[:, -1].mean() for share in shares.values())
assert post > 0.85 and pre < 0.9 and pre < 0.8 * post

# %% [markdown] tags=["shared"]
# ## Without warm-up, this network does not learn
#
# Now the experiment. The task is to reverse a sequence of 16 symbols, and the loss is
# $-\ln p$, with $p$ the probability that the model gives to the right symbol: guessing
# among ten costs $\ln 10 \approx 2.3$. The network is a post-norm stack, trained three
# times with warm-up and three times without, from three seeds; and a pre-norm stack
# without warm-up, three times as well. Data, optimiser and peak rate are the same; the
# cosine begins where the rise ends.

# %% tags=["shared"]
seeds = 0, 1, 2
variants = {
    "post-norm, warm-up": {},
    "post-norm, no warm-up": {"warmup": 1},
    "pre-norm, no warm-up": {"warmup": 1, "norm_first": True},
}
histories = {}
for name, changes in variants.items():
    histories[name] = []
    for seed in seeds:
        chosen = replace(settings, seed=seed, **changes)
        model = build(Predictor, seed=seed, **chosen.model)
        histories[name].append(fit(model, cross_entropy, data, chosen))
last = {n: [h["loss"][-20:].mean() for h in runs] for n, runs in histories.items()}
for name, losses in last.items():
    print(f"{name:22}", *(f"{loss:.3f}" for loss in losses))


# %% tags=["shared"] mystnb={"image": {"alt": "Loss and gradient norm over 300 updates, as bands over three seeds. With warm-up, and with pre-norm, the loss leaves the level of guessing after about 100 updates and falls to almost zero; without warm-up it stays near there, and its gradient norm drops early and stays low."}}
window = np.ones(10) / 10  # means over ten updates
panels = {"loss": {}, "gradient norm": {}}
for name, runs in histories.items():
    for title, key in {"loss": "loss", "gradient norm": "grad_norm"}.items():
        rows = [np.convolve(run[key], window, mode="valid") for run in runs]  # run t
        panels[title][name] = np.arange(len(rows[0])) + 10, rows
plots.curves(panels, x="update", log_y=["gradient norm"], size=(7.2, 3.6))

# %% [markdown] tags=["shared"]
# Without warm-up the loss comes down to $\ln 10$, where guessing is, and hardly further
# in 300 updates: for each seed it ends above 2. With warm-up, or with the norm first,
# it ends below 0.5. The gradient norm without warm-up drops in the first updates, and
# its later mean is less than half of what it was. Pre-norm passes through such a
# valley, too, and leaves it; so the norm alone does not tell who gets out.

# %% tags=["shared"]
guessing = np.log(settings.n_symbols)
assert all(loss > 2 for loss in last["post-norm, no warm-up"])
assert all(loss < 0.5 for loss in last["post-norm, warm-up"])
assert all(loss < 0.5 for loss in last["pre-norm, no warm-up"])
for run in histories["post-norm, no warm-up"]:
    assert abs(run["loss"][50:100].mean() - guessing) < 0.05
    assert run["grad_norm"][50:].mean() < run["grad_norm"][:5].mean() / 2
for name, changes in variants.items():
    expected = replace(settings, **changes).learning_rates
    assert all((run["learning_rate"] == expected).all() for run in histories[name])

# %% [markdown] tags=["shared"]
# ## Clipping keeps one bad batch from spoiling many steps
#
# A batch can be unlucky: a gradient a hundred times as long as its neighbours. With
# plain gradient descent it throws the weights far off. Adam divides the spike by its
# own size, but remembers it twice. The mean $\mu$ forgets within some ten updates:
# until then the steps are too long, and all point where the spike did. The average of
# squares $\nu$ forgets within about a thousand: from then on the steps are too short.
# **Clipping by the global norm** shortens a gradient that is longer than $c$, and
# leaves its direction:
#
# $$g \leftarrow g \cdot \min\!\big(1,\ c / \lVert g \rVert\big),$$
#
# with the norm taken over all weights together. Common values of $c$ lie between 0.5
# and 10.


# %% tags=["shared"]
def clip_by_global_norm(grads, largest):
    """Shorten a list of arrays to a common norm of at most ``largest``."""
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    return [g * min(1, largest / norm) for g in grads]


long = [10 * np.ones((2, 3)), -20 * np.ones(4)]
short = clip_by_global_norm(long, 1.0)
np.testing.assert_allclose(np.sqrt(sum((g**2).sum() for g in short)), 1)
np.testing.assert_allclose(short[1][0] / short[0][0, 0], -2)  # the same direction
np.testing.assert_array_equal(clip_by_global_norm([long[0] / 100], 1.0)[0], 0.1)

# %% [markdown] tags=["torch"]
# PyTorch clips the gradients that stand in the parameters, between `backward` and
# `step`, and returns the norm they had.

# %% tags=["torch"]
params = [nn.Parameter(tensor(np.zeros(g.shape))) for g in long]
for param, g in zip(params, long, strict=True):
    param.grad = tensor(g)
nn.utils.clip_grad_norm_(params, 1.0)
for param, b in zip(params, short, strict=True):
    np.testing.assert_allclose(as_numpy(param.grad), b, rtol=1e-5)

# %% tags=["shared"] mystnb={"image": {"alt": "Mean size of Adam's steps over 200 updates, with a spike in the gradient at update 50. Without clipping the steps jump up at the spike, and from about 15 updates later are much shorter; with clipping they go on as before."}}
stream = np.random.default_rng(1).normal(size=(200, 400))  # t n
length = np.linalg.norm(stream, axis=1).max()
stream[50] *= 100
tame = np.array([clip_by_global_norm([g], length)[0] for g in stream])
assert (np.linalg.norm(tame, axis=1) <= length * (1 + 1e-9)).all()
size = {
    name: np.abs(adam_steps(grads)).mean(axis=1)
    for name, grads in {"not clipped": stream, "clipped": tame}.items()
}
panels = {"": {name: (np.arange(200), y) for name, y in size.items()}}
plots.curves(
    panels, x="update", y="mean size of a step / rate", log_y=True, size=(6, 3)
)

# %% [markdown] tags=["shared"]
# Right after the spike, the steps of the first run are more than twice those of the
# second; thirty updates later and to the end they are less than half of them. The
# second took no notice.

# %% tags=["shared"]
spoilt, kept = size["not clipped"], size["clipped"]
assert (spoilt[50:55] > 2 * kept[50:55]).all()
assert (spoilt[80:] < kept[80:] / 2).all()
assert np.allclose(kept[50:], kept[40:50].mean(), rtol=0.2)

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** A training was interrupted; its weights were saved, Adam's $\mu$
# and $\nu$ were not. It goes on with the rate it had. What happens in the first
# updates, and what would you do about it?

# %% tags=["shared", "answer"]
fresh = adam_steps(stream[:50])  # as if begun anew: the first step has size 1
going_on = adam_steps(np.concatenate([stream[:50], stream[:50]]))[50:]
assert np.abs(fresh[0]).mean() > 3 * np.abs(going_on[0]).mean()
first = [np.abs(steps[0]).mean() for steps in (fresh, going_on)]
# So: save the optimiser's state with the weights, as `fit` does, or warm up again.
f"first step: {first[0]:.2f} instead of {first[1]:.2f}"

# %% [markdown] tags=["shared"]
# ## What to take along
#
# * A schedule is a factor per update; its first value is $1/w$, not 0, and a weight
#   whose loss is its value shows what an optimiser used.
# * Adam's first step has the full size of the rate, whatever the gradient says.
# * A post-norm stack passes large gradients to its last blocks; started at the full
#   rate, ours got stuck, and with warm-up it learned. Pre-norm learned without.
# * Clipping by the global norm protects Adam's memory from single spikes.

# %% [markdown] tags=["torch"]
# Next comes [the reverse task, in PyTorch](reverse_torch.ipynb): one training from its
# data to its attention map.
