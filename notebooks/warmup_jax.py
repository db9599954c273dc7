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
# optimiser follows it, show a network that learns with warm-up and fails without, and
# test two explanations of that on it. You need: the encoder chapter, and the idea of
# gradient descent.
#
# Some trainings fail within their first few updates: the loss falls to the level of
# guessing and stays there, although model, data and loss are right. The Transformer of
# 2017 is prone to this. Its authors let the learning rate rise from almost zero over
# 4,000 updates ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)); without such
# a warm-up the same network hardly learns to translate ([Xiong et al.
# 2020](https://arxiv.org/abs/2002.04745)). This page shows the failure and the remedy
# on a small network, and then looks for the cause.

# %% [markdown] tags=["jax"]
# This page uses **JAX**, with Optax for optimisers. The same page in PyTorch:
# [warmup_torch](warmup_torch.ipynb). Before it comes [the encoder, in
# JAX](encoder_jax.ipynb).

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

# %% tags=["jax"]
from dataclasses import replace
from functools import partial
from math import cos, inf, pi, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from helpers import diagrams, plots
from helpers.model_jax import Predictor, build
from helpers.prose import say, word
from helpers.schedules import check_warmup, factors
from helpers.sequences import reverse_data, shuffled
from helpers.settings import Settings, Warmup
from helpers.shapes import as_numpy
from helpers.train_jax import cross_entropy, fit
from helpers.weights import to_arrays

# %% [markdown] tags=["jax"]
# The two short functions below make JAX arrays of numbers and of indices.

# %% tags=["jax"]
jax.config.update("jax_default_matmul_precision", "highest")
plots.use_style()
floats = partial(jnp.asarray, dtype=jnp.float32)
integers = partial(jnp.asarray, dtype=jnp.int32)
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## The learning rate rises linearly, then falls
#
# The **learning rate** scales each update of the weights. One **update** uses one
# batch; an **epoch** is one pass through all examples. With a high rate a network
# learns fast, but at the start it can throw the weights to where nothing more is
# learned, and at the end it keeps them from settling. So the rate follows a
# **schedule**: a peak rate, times a factor for each update. The rise of this factor at
# the start is the **warm-up**.

# %% [markdown] tags=["shared"]
# Let $t = 1, \dots, T$ count the updates, and let the warm-up take the first $w$ of
# them. Three schedules are common:
#
# $$\begin{aligned}
# \text{rise, then cosine:}\quad & \tfrac{t}{w} \text{ for } t \le w, \text{ then }
# \tfrac12\Big(1+\cos\pi\tfrac{t-w}{T-w+1}\Big) \\
# \text{rise times cosine:}\quad &
# \min\!\big(1, \tfrac{t}{w}\big)\cdot\tfrac12\big(1+\cos\pi\tfrac{t-1}{T}\big) \\
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


def warmup_times_cosine(step, *, warmup, total):
    """Rise and fall multiplied: the cosine falls from the first update on."""
    check_warmup(warmup, total)
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + cos(pi * step / total))


def inverse_square_root(step, *, warmup, total):
    """Linear rise, then a slow fall without end: the schedule of 2017."""
    check_warmup(warmup, total)
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


# %% tags=["shared"]
w, T = 100, 2000
schedules = {
    "rise, then cosine": warmup_cosine,
    "rise times cosine": warmup_times_cosine,
    "inverse square root": inverse_square_root,
}
values = {
    name: np.array([schedule(step, warmup=w, total=T) for step in range(T)])
    for name, schedule in schedules.items()
}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three schedules over 2000 updates. All rise for 100 updates. The first then falls along a cosine from one to almost zero; the second does the same a little lower; the third falls fast at first, and then ever more slowly, and ends highest."}}
t = np.arange(1, T + 1)
panels = {
    "the whole training": {name: (t, y) for name, y in values.items()},
    "the first 300 updates": {n: (t[:300], y[:300]) for n, y in values.items()},
}
fig = plots.curves(panels, x="update t", y="factor", share_y=True, size=(7, 3.2))
fig

# %% tags=["shared", "say"]
sequential, product, root = values.values()
gap = np.abs(product - sequential).max()
say(
    "The two cosines differ little when the warm-up is short: the product has begun to "
    f"fall while it still rises, and peaks at {product.max():.3f}, not at 1. At most "
    f"the two are {gap:.3f} apart. The inverse square root is still at "
    f"{root[-1]:.2f} after {T:,} updates: it suits a training whose end is not planned."
)

# %% tags=["shared", "check"]
# Checked: all peak at update w, the product below 1; no update has rate zero
first, second, third = (
    plots.drawn(fig, "the whole training", name)[1] for name in values
)
for y, schedule in zip((first, second, third), schedules.values(), strict=True):
    assert np.argmax(y) == w - 1 and y.min() > 0
    np.testing.assert_array_equal(y, factors(schedule.__name__, warmup=w, total=T))
assert first[w - 1] == third[w - 1] == 1 and 0.99 < second[w - 1] < 1
assert (second[1:] < first[1:]).all() and np.abs(second - first).max() < 0.1
assert first[-1] < 1e-5 and (np.diff(third[w:], 2) > 0).all() and third[-1] > 0.2

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
# A common slip is to draw one schedule and to train with another: to count epochs
# instead of updates, or to begin at $(t-1)/w$, so that the first update has rate zero.
# Its gradient enters Adam's averages, but no weight moves. Here is where the rate
# belongs in a training loop: it goes into the optimiser, a new number for every update.
# (Clipping is the subject of the last section, validation one of the next chapter.)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The training loop as a cycle: inputs go through the model to the loss, gradients flow back through clipping to the optimizer, which changes the model. The learning rate enters at the optimizer."}}
diagrams.training_loop()

# %% [markdown] tags=["jax"]
# An optimiser of Optax is a pair of pure functions: `init` makes its state from the
# parameters, `update` turns gradients and state into steps and a new state. Its
# learning rate is a number, or a function of the updates made so far: a schedule. The
# loop over all batches is a `lax.scan`, and `nnx.jit` compiles it as a whole; its
# static arguments choose the code, so another value of them compiles again.

# %% tags=["jax"]
OPTIMIZERS = {"adam": optax.adam, "radam": optax.radam}


# %% tags=["jax"]
@partial(nnx.jit, static_argnames=("loss_fn", "kind"))
def train(model, loss_fn, data, batches, rates, *, kind="adam", beta2=0.999):
    """Train in place, one update per row of ``batches``: loss, gradient norm ``t``."""
    optimizer = OPTIMIZERS[kind](lambda step: rates[step], b2=beta2)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def update(carry, index):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(objective)(params, [x[index] for x in data])
        steps, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(params, steps)
        return (params, opt_state), (loss, optax.tree.norm(grads))

    def objective(params, batch):
        return loss_fn(nnx.merge(graph, params, rest, copy=True), *batch)[0]

    start = params, optimizer.init(params)
    (params, _), history = jax.lax.scan(update, start, batches)
    nnx.update(model, params)
    return history


# %% [markdown] tags=["shared"]
# To see which rates an optimiser really uses, give it a task with a known answer. Let a
# model be a single weight, and let its loss be the weight itself. The gradient is 1 at
# every update, so each step of Adam is as long as the rate, and the loss falls by
# exactly the rate that was used.


# %% tags=["jax"]
class OneWeight(nnx.Module):
    """Its value is its only weight, whatever comes in."""

    def __init__(self):
        self.weight = nnx.Param(jnp.zeros(()))

    def __call__(self, x):
        return self.weight[...] * jnp.ones_like(x)


def its_value(model, x):
    """The weight as the loss; the accuracy is a placeholder."""
    return model(x).mean(), {"accuracy": jnp.zeros(())}


# %% tags=["shared"]
rates = 0.01 * sequential
ones, batches = np.ones(8 * T, np.float32), np.arange(8 * T).reshape(T, 8)
model = OneWeight()
losses, _ = train(model, its_value, (floats(ones),), integers(batches), floats(rates))
after = np.append(as_numpy(losses)[1:], *to_arrays(model).values())
used = as_numpy(losses) - after  # t

# %% tags=["shared", "say"]
say(
    f"The first update moved the weight by {used[0]:.4f}, a hundredth of the peak rate "
    f"of 0.01; the longest step, {used.max():.4f}, is that of update "
    f"{np.argmax(used) + 1}. Every step is the rate that was drawn, to a thousandth of "
    "the peak. (The loss is in single precision, which limits the comparison.)"
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
after = np.append(history["loss"][1:], *to_arrays(model).values())
np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)
np.testing.assert_allclose(settings.learning_rates, rates, rtol=1e-6)
np.testing.assert_allclose(history["loss"] - after, rates, atol=0.01 * 1e-3)

# %% [markdown] tags=["jax"]
# Optax has this schedule built in. It rises from `init_value` in `warmup_steps` steps,
# so our rise from $1/w$ takes $w - 1$ of them.


# %% tags=["jax"]
def rates_of_the_framework(peak, warmup, total):
    """The schedule of Optax at every update: array ``t``."""
    schedule = optax.warmup_cosine_decay_schedule(
        peak / warmup, peak, warmup_steps=warmup - 1, decay_steps=total
    )
    return np.array(jax.vmap(schedule)(jnp.arange(total)))


# %% tags=["shared", "check"]
# Checked: the schedule of the framework gives the same rate at every update
theirs = rates_of_the_framework(0.01, w, T)
np.testing.assert_allclose(theirs, rates, atol=1e-8)

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Write `warmup_linear`, which rises in the same way
# and then falls in a straight line, so that the factor after the last update would be
# 0. Where is its peak, and what is its last factor?


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
# Now the experiment. The task is to reverse a sequence of 16 symbols: the model reads
# all of them and predicts, at every position, the symbol that belongs there in the
# reversed sequence. The loss is $-\ln p$, where $p$ is the probability of the right
# symbol; guessing among ten costs $\ln 10 \approx 2.3$. The network is a post-norm
# stack, as in 2017, and small, so that we can train it many times.

# %% tags=["shared"]
settings = Warmup()
data = reverse_data(settings)["train"]
data = floats(data[0]), integers(data[1])  # b s i, b s

# %% tags=["shared", "say"]
one = settings
rows = [
    f"blocks | {one.n_blocks}, post-norm | as in the encoder of 2017",
    f"$m$, heads, $f$ | {one.m}, {one.n_heads}, {one.f} | a training takes seconds",
    f"updates | {one.updates}, of {one.batch_size} sequences | enough for the task",
    f"peak rate | {one.learning_rate:g} | high on purpose; elsewhere try 1e-3 first",
    f"warm-up | {one.warmup} updates | long, as the training is short; elsewhere "
    "try 2,000, or a twentieth of the training",
    "after the warm-up | cosine | the first schedule above",
    "Adam's $\\beta_1$, $\\beta_2$ | 0.9, 0.999 | the defaults of the framework",
    "clipping, dropout | none | so that nothing else makes the difference",
]
say(
    "\n".join(
        ["| setting | value | reason |", "|---|---|---|"] + [f"| {r} |" for r in rows]
    )
)

# %% [markdown] tags=["shared"]
# Each variant is trained from three seeds, which set initial weights and batches. All
# variants see the same data.

# %% tags=["shared"]
SEEDS = 0, 1, 2


def trainings(settings, *, kind="adam", beta2=0.999, waiting=0):
    """One training per seed, the first updates at rate 0: loss and norm ``n t``."""
    options = {"kind": kind, "beta2": beta2}
    runs = []
    for seed in SEEDS:
        chosen = replace(settings, seed=seed)
        batches = np.concatenate([shuffled(chosen)(e) for e in range(chosen.epochs)])
        rates = np.append(np.zeros(waiting), chosen.learning_rates)[: len(batches)]
        batches, rates = integers(batches), floats(rates)
        model = build(Predictor, seed=seed, **chosen.model)
        run = train(model, cross_entropy, data, batches, rates, **options)
        runs.append([as_numpy(x)[waiting:] for x in run])
    return np.swapaxes(runs, 0, 1)


# %% [markdown] tags=["shared"]
# There is a control, too: perhaps the rate is too high, and half of it does as well
# without any warm-up.

# %% tags=["shared"]
no_warmup = replace(settings, warmup=1)  # the first update has the full rate
half_rate = replace(no_warmup, learning_rate=settings.learning_rate / 2)
runs = {
    "warm-up": trainings(settings),
    "no warm-up": trainings(no_warmup),
    "no warm-up, half the rate": trainings(half_rate),
}


# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Loss and gradient norm over 200 updates, as bands over three seeds. With warm-up the loss leaves the level of guessing within the first 100 updates and falls to almost zero. Without it the loss stays at the level of guessing, and the gradient norm falls and stays low. At half the rate the loss leaves that level later and ends above that with warm-up."}}
def smooth(rows):
    """Means over ten updates, and the updates at which they end."""
    means = [np.convolve(row, np.ones(10) / 10, mode="valid") for row in rows]
    return np.arange(10, 10 + len(means[0])), means


panels = {"loss": {}, "gradient norm": {}}
for name, histories in runs.items():
    for panel, rows in zip(panels.values(), histories, strict=True):
        panel[name] = smooth(rows)
fig = plots.curves(panels, x="update t", log_y=["gradient norm"], size=(7.2, 3.6))
fig

# %% tags=["shared", "say"]
guessing = np.log(settings.n_symbols)
ends = {name: losses[:, -10:].mean(axis=1) for name, (losses, _) in runs.items()}
learned, stuck, half = (np.sort(end) for end in ends.values())
three = "{:.2f}, {:.2f} and {:.2f}".format
say(
    f"With warm-up, the loss ends at {learned[0]:.3f}, {learned[1]:.3f} and "
    f"{learned[2]:.3f} for the three seeds. Without it, at {three(*stuck)}: the model "
    f"still guesses ({guessing:.2f}). Half the rate learns without warm-up, but it is "
    f"slow and ends at {three(*half)}. So on this network, warm-up makes a "
    f"{word('higher', settings.learning_rate, half_rate.learning_rate)} rate usable, "
    f"and after the same {settings.updates} updates the loss is "
    f"{word('lower', learned.max(), half.min())}."
)

# %% tags=["shared", "check"]
# Checked: without warm-up the loss ends above 2.2, with it below 0.011
assert stuck.min() > 2.2 and learned.max() < 0.011
assert half.min() > 0.2
assert half.max() < 2.2  # loose: seeds differ in when they begin to learn
for losses, norms in zip(*runs["no warm-up"], strict=True):
    assert abs(losses[50:100].mean() - guessing) < 1e-2  # loose: it equals guessing
    assert norms[50:].mean() < norms[:5].mean() / 2
x, gone = plots.drawn(fig, "loss", "warm-up")
_, slow = plots.drawn(fig, "loss", "no warm-up, half the rate")
assert gone[x == 100] < 1.5 and (gone[x >= 100] < slow[x >= 100]).all()
assert plots.drawn(fig, "loss", "no warm-up")[1].min() > 2.2
_, low = plots.drawn(fig, "gradient norm", "no warm-up")
assert low[0] > 2 * low[x > 60].mean()

# %% [markdown] tags=["shared"]
# Try it: how short may the warm-up be? `trainings(replace(settings, warmup=20))`.

# %% [markdown] tags=["shared"]
# ## First explanation: Adam divides by an estimate from few gradients
#
# Adam gives each weight a step size of its own: it divides by the typical size of that
# weight's gradients, estimated from those it has seen. At the start these are one, two,
# three. A weight whose first gradients happen to be small gets far too large a factor,
# another one too small a factor. [Liu et al. 2019](https://arxiv.org/abs/1908.03265)
# blame this spread: warm-up helps because the rate is low until the estimates are good.

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
# g_1^2$: every weight moves by $\pm\eta_1$, except where the gradient is 0 or not much
# larger than $\epsilon$, as for the biases of the keys, which the softmax cancels.


# %% tags=["shared"]
def adam_averages(grads, beta1=0.9, beta2=0.999):
    """Adam's μ̂ and ν̂ after every gradient: ``t n -> t n, t n``."""
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
# all of them the factor $1/\sqrt{\hat\nu} = 1$. (We look at this factor and not at the
# whole step, because $\hat\mu$ shortens the steps within ten updates for a reason of
# its own: noise averages out.)

# %% [markdown] tags=["shared"]
# **RAdam**, the optimiser of Liu et al., makes up for the spread: it multiplies each
# step of Adam by the standard deviation that the factor has in the long run, divided by
# the one that it has at update $t$. For normally distributed gradients, they
# approximate this ratio by
#
# $$r_t = \sqrt{\frac{(\rho_t-4)(\rho_t-2)\,\rho_\infty}
# {(\rho_\infty-4)(\rho_\infty-2)\,\rho_t}},
# \qquad \rho_t = \rho_\infty - \frac{2t\beta_2^t}{1-\beta_2^t},
# \qquad \rho_\infty = \frac{2}{1-\beta_2} - 1.$$
#
# Here $\rho_t$ is roughly the number of gradients that $\hat\nu_t$ averages over, and
# $\rho_\infty$ its limit. In the first five updates, while $\rho_t \le 5$, RAdam leaves
# the division out and moves by $\hat\mu_t$ alone.


# %% tags=["shared"]
def rectification(t, beta2=0.999):
    """RAdam's factor ``r_t`` at update ``t``, from 6 on."""
    end = 2 / (1 - beta2) - 1
    rho = end - 2 * t * beta2**t / (1 - beta2**t)
    return np.sqrt((rho - 4) * (rho - 2) * end / ((end - 4) * (end - 2) * rho))


noise = np.random.default_rng(0).normal(size=(1000, 2000))  # t n
factor = 1 / np.sqrt(adam_averages(noise)[1])  # t n
bounds = np.quantile(factor, [0.99, 0.5, 0.01], axis=1)
end = 2 / (1 - 0.999) - 1
long_run = np.sqrt(end / (2 * (end - 2) * (end - 4)))  # deviation, by Liu et al.
measured = long_run / factor.std(axis=1)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Left: Adam's factor of 2000 weights over 1000 updates, both axes logarithmic. At the first update the largest hundredth lies above sixty and the smallest below one half; the two limits approach one, fast at first. Right: RAdam's factor r rises from below 0.1 to about two thirds, and the measured ratio of standard deviations lies on it."}}
t = np.arange(1, 1001)
names = "largest hundredth", "median", "smallest hundredth"
panels = {
    "factor 1/√ν̂ of 2,000 weights": dict(
        zip(names, ((t, y) for y in bounds), strict=True)
    ),
    "RAdam's $r_t$": {
        "formula": (t[5:], rectification(t[5:])),
        "measured": (t[5:], measured[5:]),
    },
}
log_y = [*panels][:1]
fig = plots.curves(panels, x="update t", log_x=10, log_y=log_y, size=(7.2, 3.2))
fig

# %% tags=["shared", "say"]
spread = bounds[0] / bounds[2]
say(
    "All factors should be 1. After the first update, the limit of the largest "
    f"hundredth is **{spread[0]:.0f} times** that of the smallest; after ten updates "
    f"{spread[9]:.1f} times, and after $1/(1-\\beta_2) = 1000$ still {spread[-1]:.2f} "
    "times. RAdam measures this by the long run and is slow to trust the average: "
    f"$r_t$ is {rectification(10):.2f} at update 10, {rectification(100):.2f} at "
    f"update 100 and {rectification(1000):.2f} at update 1,000."
)

# %% tags=["shared", "check"]
# Checked: the spread falls from above 100 to below 1.2, and r_t is the measured ratio
upper, middle, lower = (
    plots.drawn(fig, "factor 1/√ν̂ of 2,000 weights", name)[1] for name in names
)
assert (upper > middle).all() and (middle > lower).all()
assert upper[0] / lower[0] > 100 and upper[-1] / lower[-1] < 1.2
assert upper[9] / lower[9] < 4 and upper[0] > 50 and lower[0] < 0.5
formula, ratio = (
    plots.drawn(fig, "RAdam's $r_t$", name)[1] for name in ("formula", "measured")
)
assert formula[0] < 0.05 and 0.6 < formula[-1] < 0.7 and (np.diff(formula) > 0).all()
np.testing.assert_allclose(ratio[14:], formula[14:], rtol=0.1)  # from update 20 on
np.testing.assert_allclose(ratio[:14], formula[:14], rtol=0.6)

# %% [markdown] tags=["jax"]
# Optax has both optimisers. Its steps on the same gradients:


# %% tags=["jax"]
def framework_steps(kind, grads):
    """Steps of an optimiser of Optax at rate 1: ``t n -> t n``."""
    optimizer = OPTIMIZERS[kind](1.0)

    def update(opt_state, grad):
        step, opt_state = optimizer.update(grad, opt_state)
        return opt_state, -step

    return jax.lax.scan(update, optimizer.init(grads[0]), grads)[1]


# %% tags=["shared", "check"]
# Checked: the framework's Adam makes our steps; its RAdam the same times r_t
ours, few = adam_steps(noise[:100]), floats(noise[:100])
np.testing.assert_allclose(as_numpy(framework_steps("adam", few)), ours, atol=1e-3)
rectified = rectification(np.arange(6, 101))[:, None] * ours[5:]
radam = as_numpy(framework_steps("radam", few))[5:]
np.testing.assert_allclose(
    radam, rectified, rtol=0.02, atol=1e-3
)  # loose: Optax computes ρ in single precision
np.testing.assert_allclose(np.abs(ours[0]), 1, atol=1e-3)  # the first step is the rate

# %% [markdown] tags=["shared"]
# Does RAdam train our network without warm-up? Its factor rises over some
# $1/(1-\beta_2)$ updates. That would be 1,000 with the default, and our training has
# 200; so here $\beta_2 = 0.99$.

# %% tags=["shared"]
runs["RAdam"] = trainings(no_warmup, kind="radam", beta2=0.99)

# %% [markdown] tags=["shared"]
# That alone would not prove the explanation. $r_t$ depends on $t$ and on nothing else,
# so RAdam is Adam with a schedule that rises slowly. ([Ma & Yarats
# 2019](https://arxiv.org/abs/1910.04209) blame the size of the first steps instead, and
# recommend a linear rise over $2/(1-\beta_2)$ updates.) So let us take the spread away
# and leave the rate high. For 100 updates the rate is 0: Adam's averages fill, while
# the weights stay where they are. Then the rate jumps to its peak. If the spread does
# the harm, the network must learn now. (Liu et al. made a test of this kind on a
# translation model, and there it helped.)

# %% tags=["shared"]
runs["averages filled first"] = trainings(no_warmup, waiting=100, beta2=0.99)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Loss of three variants without warm-up, as bands over three seeds. Adam stays at the level of guessing, over 100 updates also with its averages filled first. RAdam falls below it and goes on falling."}}
names = "no warm-up", "averages filled first", "RAdam"
lines = {name: smooth(runs[name][0]) for name in names}
fig = plots.curves({"": lines}, x="update t", y="loss", size=(6, 3))
fig

# %% tags=["shared", "say"]
filled, radam = (np.sort(runs[name][0][:, -10:].mean(axis=1)) for name in names[1:])
t = settings.updates
say(
    f"RAdam does not get stuck: the three seeds end at {three(*radam)}. Its factor is "
    f"{rectification(t, 0.99):.2f} at update {t}; with the default it would be "
    f"{rectification(t):.2f}, and the training slow. But **filled averages do not help "
    f"here**: the loss stays at {three(*filled)}, at guessing. So in this network, at "
    "this rate, the harm is not done by the spread of the factors, which leaves the "
    "size of the steps."
)

# %% tags=["shared", "check"]
# Checked: Adam stays above 2.2, also with averages filled; RAdam ends below that
stays = [plots.drawn(fig, "", name)[1] for name in names[:2]]
assert all(y.min() > 2.2 for y in stays) and filled.min() > 2.2
_, falls = plots.drawn(fig, "", "RAdam")
assert falls[-1] < 1.8  # loose: likewise
assert radam.max() < 2.2  # loose: seeds differ in when they begin to learn
assert falls[-1] < falls[len(falls) // 2]

# %% [markdown] tags=["shared"]
# ## Second explanation: post-norm keeps large gradients near the output
#
# The second explanation lies in the network. With the norm after each sum (post-norm),
# the last blocks receive large gradients in a stack of any depth; with the norm first
# (pre-norm), these gradients shrink as the stack deepens ([Xiong et al.
# 2020](https://arxiv.org/abs/2002.04745), and the encoder chapter). Adam takes the size
# of the gradient out of its step, but the gradient still says how much the loss changes
# with a weight: where it is large, a step of full length changes the output a lot. Here
# is the gradient of each block's last matrix before training, on our task.


# %% tags=["jax"]
@nnx.jit
def block_gradients(model, inputs, targets):
    """Norm of the gradient of each block's last matrix: array ``l``."""
    grads = nnx.grad(lambda m: cross_entropy(m, inputs, targets)[0])(model)
    blocks = grads["encoder"]["blocks"]
    matrices = [blocks[i]["ffn"]["linear2"]["kernel"][...] for i in sorted(blocks)]
    return jnp.stack([jnp.linalg.norm(matrix) for matrix in matrices])


# %% tags=["shared"]
batch = tuple(x[:64] for x in data)
shares = {}
for name, norm_first in {"post-norm": False, "pre-norm": True}.items():
    options = settings.model | {"norm_first": norm_first}
    models = [build(Predictor, seed=seed, **options) for seed in range(5)]
    norms = np.array([as_numpy(block_gradients(model, *batch)) for model in models])
    shares[name] = norms / norms[:, :1]  # seed l

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Gradient of each of the six blocks before training, divided by that of the first block, as bands over five seeds. On average, post-norm stays close to one in all blocks; pre-norm lies below it and falls towards the last block."}}
block = np.arange(1, settings.n_blocks + 1)
lines = {name: (block, share) for name, share in shares.items()}
fig = plots.curves({"": lines}, x="block", y="gradient / first block's", size=(5.5, 3))
fig

# %% tags=["shared", "say"]
post, pre = (share[:, -1].mean() for share in shares.values())
say(
    f"On average over five seeds, the last block's gradient is {post:.2f} times that "
    f"of the first block with post-norm, and {pre:.2f} times with pre-norm. (Single "
    "seeds differ, and their bands overlap.)"
)

# %% tags=["shared", "check"]
# Checked: the last gradient is above 0.85 of the first, with pre-norm below post-norm's
post, pre = (plots.drawn(fig, "", name)[1] for name in shares)
assert post[-1] > 0.85 and pre[-1] < 0.9 and pre[-1] < 0.8 * post[-1]
assert (pre[1:] < post[1:]).all()

# %% [markdown] tags=["shared"]
# The test is a training of the pre-norm stack without warm-up. Data, optimiser, peak
# rate and batches are the same.

# %% tags=["shared"]
runs["pre-norm, no warm-up"] = trainings(replace(no_warmup, norm_first=True))

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Loss and gradient norm over 200 updates, as bands over three seeds. Without warm-up, post-norm stays at the level of guessing, while pre-norm falls below it. The gradient norm of both drops within the first updates; that of pre-norm then rises above its start."}}
names = {
    "post-norm, warm-up": "warm-up",
    "post-norm, no warm-up": "no warm-up",
    "pre-norm, no warm-up": "pre-norm, no warm-up",
}
panels = {
    panel: {name: smooth(runs[run][i]) for name, run in names.items()}
    for i, panel in enumerate(["loss", "gradient norm"])
}
fig = plots.curves(panels, x="update t", log_y=["gradient norm"], size=(7.2, 3.4))
fig

# %% tags=["shared", "say"]
pre_norm = np.sort(runs["pre-norm, no warm-up"][0][:, -10:].mean(axis=1))
say(
    f"Without warm-up, pre-norm learns: its loss ends at {three(*pre_norm)}, where "
    f"post-norm guesses ({guessing:.2f}). This agrees with the second explanation. It "
    "is one depth and one rate; Xiong et al. saw the same in translation. The gradient "
    "norm drops at first in both, so a low gradient norm alone does not say that a "
    "training is lost."
)

# %% tags=["shared", "check"]
# Checked: without warm-up pre-norm ends below 1, post-norm above 2.2
assert pre_norm.max() < 1  # loose: seeds differ by a factor of four
lost, found = (plots.drawn(fig, "loss", name)[1] for name in [*names][1:])
assert lost.min() > 2.2 and found[-1] < 0.6
lost, found = (plots.drawn(fig, "gradient norm", name)[1] for name in [*names][1:])
assert lost[50] < lost[0] / 1.5 and found[:60].min() < found[0] / 1.5
assert found.max() > 1.2 * found[0]

# %% [markdown] tags=["shared"]
# ## Clipping limits the damage of one bad batch
#
# A batch can be unlucky: a gradient a hundred times as long as its neighbours. Plain
# gradient descent would throw the weights far off. Adam divides such a spike by its own
# size, but remembers it twice. The mean $\mu$ forgets it within some ten updates: until
# then the steps are too long, and all point where the spike did. The average of squares
# $\nu$ forgets it within about a thousand: from then on the steps are too short.
# **Clipping by the global norm** shortens a gradient that is longer than $c$, and keeps
# its direction:
#
# $$g \leftarrow g \cdot \min\!\big(1,\ c / \lVert g \rVert\big),$$
#
# with the norm taken over all weights together. Common values of $c$ lie between 0.5
# and 10; 1 is the one to try first.


# %% tags=["shared"]
def clip_by_global_norm(grads, largest):
    """Shorten a list of arrays to a common norm of at most ``largest``."""
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    return [g * min(1, largest / norm) for g in grads]


long = [10 * np.ones((2, 3)), -20 * np.ones(4)]
short = clip_by_global_norm(long, 1.0)

# %% [markdown] tags=["jax"]
# In Optax, clipping is the first link of a chain that ends with Adam:
# `optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))`.

# %% tags=["jax"]
theirs, _ = optax.clip_by_global_norm(1.0).update([floats(g) for g in long], None)

# %% tags=["shared", "check"]
# Checked: the norm becomes 1, directions and short gradients stay, as in the framework
np.testing.assert_allclose(np.sqrt(sum((g**2).sum() for g in short)), 1)
np.testing.assert_allclose(short[1][0] / short[0][0, 0], -2)  # the same direction
np.testing.assert_array_equal(clip_by_global_norm([long[0] / 100], 1.0)[0], 0.1)
for a, b in zip(theirs, short, strict=True):
    np.testing.assert_allclose(as_numpy(a), b, rtol=1e-5)

# %% [markdown] tags=["shared"]
# Now a spike: 400 weights with random gradients, at update 50 a hundred times as long.
# The limit $c$ is the largest norm of the others.

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
    f"{(spoilt[79:] / kept[79:]).max():.2f} of the length. The clipped steps go on as "
    "before."
)

# %% tags=["shared", "check"]
# Checked: unclipped steps are twice as long after the spike, later less than half
assert (np.linalg.norm(clipped, axis=1) <= c * (1 + 1e-9)).all()
spoilt, kept = (plots.drawn(fig, "", name)[1] for name in step_size)
assert (spoilt[49:54] > 2 * kept[49:54]).all()
assert (spoilt[79:] < kept[79:] / 2).all()
assert np.allclose(kept[49:], kept[39:49].mean(), rtol=0.2)

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** A training was interrupted after 50 updates; its weights were
# saved, Adam's $\mu$ and $\nu$ were not. It goes on with the rate it had. How long is
# the first step, compared with a training that was never interrupted, and what would
# you do about it? Try `adam_steps` on the first 50 gradients of `clipped`.

# %% tags=["shared", "answer"]
before = clipped[:49]  # the updates before the spike
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
# * A schedule is a factor per update. Its first value is $1/w$, not 0, and a model with
#   a single weight shows which rates the optimiser really used.
# * Our post-norm network (six blocks, rate 6e-3) got stuck at guessing without warm-up
#   and learned with it. Half the rate did not get stuck, but was slow.
# * First explanation: Adam's factors vary widely while they rest on few gradients (Liu
#   et al.). RAdam makes up for it, with a warm-up of its own. Filling the averages
#   beforehand did not help our network, so there the length of the steps matters.
# * Second explanation: post-norm passes large gradients to the last blocks (Xiong et
#   al.). With pre-norm, the same network learned without warm-up.
# * Clipping by the global norm protects Adam's averages from single spikes.

# %% [markdown] tags=["jax"]
# Next comes [the reverse task, in JAX](reverse_jax.ipynb): one training from its data
# to its attention map.
