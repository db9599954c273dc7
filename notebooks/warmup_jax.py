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
# network that fails to learn, and find out how high a rate your model bears. You need:
# the chapters up to *The reverse task*.
#
# You train a Transformer for a day, and the loss never leaves the level of guessing,
# although model, data and loss function are right: the first few updates can ruin a
# network. The authors of the Transformer prevented this by a learning rate that rises
# from almost zero over 4,000 updates ([Vaswani et al.
# 2017](https://arxiv.org/abs/1706.03762)). Without such a **warm-up**, a post-norm
# Transformer hardly learned to translate: it reached a translation score (BLEU) of 8
# instead of 34 ([Xiong et al. 2020](https://arxiv.org/abs/2002.04745)).
#
# > **If you only want the recipe**: pre-norm; AdamW with a weight decay of 0.1, only on
# > the matrices of dense layers and embeddings; warm-up over a twentieth of all
# > updates (a quarter of a short run), then a cosine; gradients clipped at norm 1; a
# > peak rate of one thousandth to begin with, then a *sweep* of others. If the loss
# > stays at guessing: a longer warm-up or a lower peak. *With a longer warm-up, higher
# > rates worked* measures both.

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

from functools import partial
from math import cos, inf, pi, sqrt

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from helpers import as_numpy, check
from helpers.data.sequences import reverse_data
from helpers.jax import Predictor, cross_entropy, make_optimizer, tensor
from helpers.show import drawing, plots, recorded, say, table

jax.config.update("jax_default_matmul_precision", "highest")
plots.use_style()
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## The learning rate rises linearly, then falls
#
# A high rate learns fast, but at the start it can ruin the network, and at the end it
# keeps the weights from converging. So the rate follows a **schedule**: a peak rate
# times a factor that first rises (the warm-up), then falls. Of $T$ updates, let the
# first $w$ be warm-up. With $w = 100$, update 0 has 1/100 of the peak and update 99 all
# of it; then half a cosine falls to zero. Update $t = 0, \dots, T-1$ has the factor
#
# $$\begin{aligned}
# \text{rise, then cosine:}\quad & \tfrac{t+1}{w} \text{ for } t<w, \text{ then }
# \tfrac12\Big(1+\cos\pi\tfrac{t+1-w}{T+1-w}\Big) \\
# \text{inverse square root:}\quad &
# \min\!\Big(\tfrac{t+1}{w},\sqrt{\tfrac{w}{t+1}}\Big)
# \end{aligned}$$
#
# The cosine ([Loshchilov & Hutter 2017](https://arxiv.org/abs/1608.03983)) would reach
# zero one update after the last. The other schedule is that of 2017.


# %% tags=["shared"]
def warmup_cosine(t, warmup, total):
    """Linear rise, then a cosine fall over the rest: a factor in (0, 1]."""
    if t < warmup:
        return (t + 1) / warmup
    fall = (t + 1 - warmup) / (total + 1 - warmup)  # 0 at the peak, 1 after the end
    return (1 + cos(pi * fall)) / 2


def inverse_square_root(t, warmup, total):
    """Linear rise, then a slow fall without end: the schedule of 2017."""
    return min((t + 1) / warmup, sqrt(warmup / (t + 1)))


w, T, peak = 100, 2000, 1e-3

# %% mystnb={"image": {"alt": "Two schedules over 2000 updates. Both rise for 100 updates. The first then falls along a cosine from one to almost zero; the second falls fast at first, and then ever more slowly, and ends above zero."}} tags=["shared", "figure"]
t = np.arange(T)
schedules = {
    "rise, then cosine": warmup_cosine,
    "inverse square root": inverse_square_root,
}
lines = {}
for name, schedule in schedules.items():
    lines[name] = t, np.array([schedule(step, w, T) for step in t])
panels = {"Both rise to the peak, and fall in different ways": lines}
fig = plots.curves(panels, x="updates made, t", y="factor", size=(6.5, 3.2))
fig

# %% [markdown] tags=["shared"]
# The cosine ends near zero, so fix the length of the run beforehand; the inverse square
# root goes on falling, ever more slowly.

# %% [markdown] tags=["jax"]
# In your own code, take that of Optax: a function from $t$ to the rate. Hand it to the
# optimiser in place of a number; that counts the updates itself. (`mask` leaves biases
# and norms without decay; `optax.join_schedules` puts other schedules together.)

# %% tags=["jax"]
import optax

# from peak / w, at t = 0, to the peak, at t = w - 1, there are w - 1 steps
schedule = optax.warmup_cosine_decay_schedule(peak / w, peak, w - 1, T)
adamw = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(
        schedule,
        weight_decay=0.1,
        mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
    ),
)  # then: optimizer = nnx.Optimizer(model, adamw, wrt=nnx.Param)
rates = as_numpy(schedule(np.arange(T)))

# %% tags=["shared"]
for t in (0, 9, 99, 999, 1999):
    ours = peak * warmup_cosine(t, w, T)
    print(f"t = {t}: our rate {ours:.2e}, the framework's {rates[t]:.2e}")

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** The Transformer of 2017 had $m = 512$ and $w = 4000$, and its
# rate at update $t = 1, 2, \dots$ was $m^{-1/2}\min(t^{-1/2}, t\,w^{-3/2})$. What is
# its peak rate, and at which update has it fallen to half of that?


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
# ## Without warm-up, this network learned nothing
#
# In the last chapter, a model learned to reverse sequences while its learning rate rose
# for 50 updates. Here it is harder: six post-norm blocks, as in 2017, and a rate eight
# times as high. A run is short: 200 updates, each of 32 sequences of eight digits. In
# one, the rate rises for 150 updates; in the other, it begins at its peak. Both have
# the same mean rate, half of the peak: they differ in *when* it is high. Each is run
# three times, with other initial weights and other batches. Nothing else may help: no
# clipping, no weight decay.

# %% tags=["shared"]
sizes = {"n_inputs": 10, "m": 32, "n_outputs": 10, "n_blocks": 6, "n_heads": 4, "f": 64}
data = reverse_data(3200, length=8)["train"]  # b s i, b s
SEEDS = range(3)  # runs of each setting

# %% [markdown] tags=["jax"]
# The loop is the usual one. Only its optimiser differs: `make_optimizer`, of the extra
# on `fit` in *The reverse task*, takes the rate with each update, so JAX compiles once
# for all schedules.


# %% tags=["jax"]
def new_model(seed, norm_first=False):
    """An untrained model."""
    return Predictor(**sizes, norm_first=norm_first, rngs=nnx.Rngs(seed))


@nnx.jit
def update(model, optimizer, batch, rate):
    """One update, in place: its loss."""
    compute = nnx.value_and_grad(cross_entropy, has_aux=True)
    (loss, _), grads = compute(model, *batch)
    optimizer.update(model, grads, rate=rate)
    return loss


# %% tags=["jax"]
def train(model, data, batches, schedule, *, peak=8e-3, clip=inf, decay=0.0):
    """Train in place, one update for each row of ``batches``: the losses ``t``."""
    optimizer = nnx.Optimizer(model, make_optimizer(clip, decay), wrt=nnx.Param)
    step = nnx.cached_partial(update, model, optimizer)  # looks them up once
    losses = []
    for t, rows in enumerate(batches):
        batch = [tensor(x[rows]) for x in data]
        losses.append(step(batch, peak * schedule(t)))
    return np.array(losses)


# %% tags=["shared"]
def train_seeds(schedule, *, n_updates=200, norm_first=False, seeds=SEEDS, **options):
    """One run a seed, with other weights and batches: losses ``n t``, models."""
    losses, models = [], []
    for seed in seeds:
        draw = np.random.default_rng(seed)
        batches = draw.integers(len(data[0]), size=(n_updates, 32))  # t b
        model = new_model(seed, norm_first)
        losses.append(train(model, data, batches, schedule, **options))
        models.append(model)
    return np.array(losses), models


def final_losses(losses):
    """Mean loss of the last ten updates of each run: ``n t -> n``."""
    return losses[:, -10:].mean(axis=1)


# %% tags=["shared"]
warmup = partial(warmup_cosine, warmup=150, total=200)
no_warmup = partial(warmup_cosine, warmup=1, total=200)  # at once at the peak
losses, models = {}, {}
losses["warm-up"], models["warm-up"] = train_seeds(warmup)
losses["no warm-up"], models["no warm-up"] = train_seeds(no_warmup)
learned, stuck = final_losses(losses["warm-up"]), final_losses(losses["no warm-up"])
print("loss at the end with warm-up:", *(f"{x:.3f}" for x in learned))
print(f"without: {stuck.round(3)}; guessing, ln 10: {np.log(10):.3f}")


# %% mystnb={"image": {"alt": "Loss over 200 updates, three lines each with and without warm-up. With warm-up the loss leaves the level of guessing, and falls to almost zero, within the first 150 updates. Without it the loss stays at the level of guessing. A dotted line marks the update with the highest rate."}} tags=["shared", "figure"]
def draw_losses(title, names, end):
    """A line a seed, the mean of ten updates; dotted where the first phase ends."""
    t, lines = np.arange(10, 201), {}
    for name in names:
        lines[name] = [np.convolve(x, np.ones(10) / 10, "valid") for x in losses[name]]
    first = {name: (t, rows[0]) for name, rows in lines.items()}
    fig = plots.curves({title: first}, x="update", y="loss", size=(6.5, 3.2))
    for look, rows in zip(plots.STYLES, lines.values(), strict=False):
        fig.axes[0].plot(t, np.transpose(rows[1:]), **look)
    for line in fig.axes[0].lines:
        line.set_linewidth(1.0)
    fig.axes[0].axvline(end, color=plots.INK, ls=":", lw=0.8)
    return fig


draw_losses("Without warm-up, the loss stayed at guessing", [*losses], 150)

# %% [markdown] tags=["shared"]
# (One line a run, smoothed over ten updates; dotted: the peak of the warm-up.) With the
# full rate at once, all three runs end where they began, at guessing. The high rate
# itself did no harm: the other runs reach it, too, but later.

# %% tags=["shared", "check"]
# Checked: without warm-up the loss ends at guessing, with it most seeds learn
means = [np.mean([rate(t) for t in range(200)]) for rate in (warmup, no_warmup)]
np.testing.assert_allclose(means, 1 / 2, rtol=0.01)
assert abs(losses["no warm-up"][:, 50:].mean() - np.log(10)) < 0.05
assert np.median(learned) < 0.05 and learned.max() < 0.5 and stuck.min() > 2.2
rows = np.random.default_rng(1).integers(3200, size=32)  # a run has its own batches
first, _ = cross_entropy(new_model(1), *[tensor(x[rows]) for x in data])
np.testing.assert_allclose(losses["warm-up"][1, 0], as_numpy(first), rtol=1e-4)

# %% [markdown] tags=["shared"]
# ## The stuck network no longer sees its input
#
# How can a few large steps ruin a network? Here is a suspicion. After them, a layer
# adds nearly the same long vector to every output. The norm then scales the sums back
# to their old length, and so shrinks their differences. In post-norm, this happens in
# every block, until all positions of all sequences look alike:

# %% mystnb={"image": {"alt": "Three arrows in different directions are three outputs. After the same long vector has been added to each, they are long and nearly parallel. After the norm they have their old length and are still nearly parallel: the differences have shrunk."}} tags=["shared", "figure"]
drawing("shared-vector")

# %% [markdown] tags=["shared"]
# So we measure how different the outputs $x_p$ of a block are, over all positions $p$
# of 64 sequences. For each feature $j$ we take the standard deviation over $p$, then
# the mean over $j$, and divide it by the size of the outputs, their root mean square
# (rms):
#
# $$\delta=\frac{\operatorname{mean}_j\,\operatorname{std}_p(x_{pj})}
# {\operatorname{rms}(x)}$$
#
# If all outputs are equal, $\delta = 0$; if they have no common part, it is about 1.


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
    outputs = as_numpy(block_outputs(model, tensor(data[0][:64])))  # l b s m
    size = np.sqrt((outputs**2).mean(axis=(1, 2, 3)))
    return outputs.std(axis=(1, 2)).mean(axis=-1) / size


# %% tags=["shared"]
trained = {
    "trained with warm-up": models["warm-up"],
    "trained without warm-up": models["no warm-up"],
    "before training": [new_model(seed) for seed in SEEDS],
}
inside = {}  # n l
for name, found in trained.items():
    inside[name] = np.array([differences(model) for model in found])
kept, lost, start = [rows.mean(axis=0) for rows in inside.values()]

# %% mystnb={"image": {"alt": "How much the outputs of each of six blocks differ between positions and sequences, relative to their size, logarithmic, as bands over three seeds. Before training and after training with warm-up the lines stay above 0.2 in all blocks. After training without warm-up the line falls by orders of magnitude from block to block."}} tags=["shared", "figure"]
block = np.arange(1, sizes["n_blocks"] + 1)
title = "Without warm-up, all outputs became alike"
lines = {name: (block, rows) for name, rows in inside.items()}
lines = {title: lines}
labels = {"x": "block", "y": "difference of outputs"}
fig = plots.curves(lines, **labels, log_y=True, marks="o", size=(6.5, 3.2))
fig

# %% tags=["shared", "say"]
say(
    f"After the last block, the outputs differ by {start[-1]:.2f} of their size before "
    f"training, and by {kept[-1]:.2f} after training with warm-up, in the stuck "
    f"network by **{lost[-1]:.1g}**. So every position gets nearly the same prediction."
)

# %% tags=["shared", "check"]
# Checked: in the stuck network the last difference is below a hundredth of the first
assert start.min() > 0.2 and kept.min() > 0.7
assert lost[-1] < 0.01 * start[-1] and (np.diff(lost) < 0).all()

# %% [markdown] tags=["shared"]
# So the suspicion fits (the second extra returns to this). This is a test for your own
# model, too: if its loss stays at guessing, compute $\delta$ after the last block, with
# dropout off, before the training and now. Has it fallen to a hundredth? Then take
# smaller first steps. If not, look for another cause, such as a bug.

# %% [markdown] tags=["shared"]
# ## Small first steps helped, filled averages did not
#
# What kept this network from learning? There are three suspects. Each run, without
# warm-up, removes one of them. If the network learns now, this one did harm.
#
# * **Adam's averages** ([Liu et al. 2019](https://arxiv.org/abs/1908.03265)). Adam
#   divides a step by the root of the averaged $g^2$, which at the start is an average
#   of few gradients. *Averages filled first*: 50 updates at rate 0 fill the averages,
#   and leave the weights alone; 150 updates without warm-up follow.
# * **The size of the first steps** ([Ma & Yarats
#   2021](https://arxiv.org/abs/1910.04209)). *Small steps first*: 50 updates at a tenth
#   of the peak, a simple kind of warm-up; then the same 150.
# * **Post-norm**, which shrinks the differences in every block. *Pre-norm*: the norm
#   comes first, the rates stay.


# %% tags=["shared"]
def after_50(t, first):
    """The factor ``first`` for 50 updates, then a run of 150 without warm-up."""
    return first if t < 50 else warmup_cosine(t - 50, 1, 150)


filled, small = "averages filled first", "small steps first"
pre = "pre-norm, no warm-up"
losses[filled], _ = train_seeds(partial(after_50, first=0.0))
losses[small], _ = train_seeds(partial(after_50, first=0.1))
losses[pre], _ = train_seeds(no_warmup, norm_first=True)
ends = {name: final_losses(losses[name]) for name in (filled, small, pre)}
for name, numbers in ends.items():
    print(f"{name:22} loss at the end, each seed:", *(f"{x:.2f}" for x in numbers))

# %% mystnb={"image": {"alt": "Loss of four variants over 200 updates, three lines each. With averages filled first all lines stay at the level of guessing. With pre-norm they fall below it, and with small steps first, and with warm-up, most fall far below it. A dotted line marks the jump to the peak rate, after 50 updates."}} tags=["shared", "figure"]
title = "Small first steps helped, filled averages did not"
draw_losses(title, ["warm-up", small, pre, filled], 50)

# %% tags=["shared", "check"]
# Checked: filled averages leave the network stuck; small steps and pre-norm help
assert ends[filled].min() > 2.2
assert ends[small].mean() < ends[filled].mean() - 0.5
assert np.median(ends[pre]) < 1

# %% [markdown] tags=["shared"]
# At this rate **large first steps** ruined the network, and post-norm made it more
# sensitive. After small first steps, most runs bore the high rate. (A seed may still
# fail: a slow rise is safer than a jump.) Small steps fill the averages, too; but
# filling alone did not help. That averages filled while the weights stood still go
# wrong again once they move, this test does not exclude.
#
# This is one network and one task. But [Kalra & Barkeshli
# 2024](https://arxiv.org/abs/2406.09405) find that small first steps matter in many,
# also with SGD: warm-up leads to where the loss is less curved and larger steps do no
# harm. How much Adam and post-norm add is debated (see the extras).

# %% [markdown] tags=["shared"]
# **Exercise 2, by hand.** With warm-up, the rate of this section rises to `8e-3` within
# 150 updates. How many of them have a rate below the `1e-3` of the recipe? How many
# would it be if the warm-up took a twentieth of the 200 updates? If a post-norm network
# of your own stays at guessing after such a warm-up, name three changes that may help.

# %% tags=["shared", "answer"]
rates = {w: [8e-3 * warmup_cosine(t, w, 200) for t in range(w)] for w in (150, 10)}
below = {w: sum(rate < 1e-3 for rate in values) for w, values in rates.items()}
say(
    f"The rate is below 1e-3 while (t + 1) / 150 < 1 / 8: for {below[150]} updates. "
    f"With a warm-up of 10 updates: for {below[10]}. To help, try *a longer warm-up* "
    "(fewer updates at the full rate), *a lower peak* (each update learns less, so you "
    "need more of them) or *pre-norm* (another model, so you cannot go on from "
    "published post-norm weights). But a loss at the level of guessing has other "
    "causes, too: first see, as above, if all outputs are alike."
)

# %% [markdown] tags=["shared"]
# ## With a longer warm-up, higher rates worked
#
# So much for harsh settings. What does warm-up do for the recipe of this page:
# pre-norm, weight decay, clipping? We **sweep** the peak rate, with three lengths of
# warm-up. For a model of your own, do the same: the best rate differs from task to
# task, and a sweep of short runs finds it.

# %% tags=["shared"]
recipe = {"norm_first": True, "clip": 1.0, "decay": 0.1}
peaks = np.array([1e-3, 3e-3, 1e-2, 3e-2])
lengths = {"no warm-up": 1, "a twentieth": 10, "a quarter": 50}  # of 200 updates
swept = {}  # loss at the end, for each peak
for name, w in lengths.items():
    schedule, swept[name] = partial(warmup_cosine, warmup=w, total=200), []
    for peak in peaks:
        found, _ = train_seeds(schedule, peak=peak, seeds=SEEDS[:1], **recipe)
        swept[name].append(final_losses(found).item())
    print(f"{name:11}", *(f"{x:6.3f}" for x in swept[name]))

# %% mystnb={"image": {"alt": "Loss at the end of a run over the peak rate, both logarithmic, a line for each length of warm-up. At the lowest rate the three are alike. Without warm-up the loss is lowest at a middle rate, and high at the highest. With a warm-up over a quarter of the updates it is far lower at the two highest rates."}} tags=["shared", "figure"]
title = "The longer the warm-up, the higher the rates that worked"
lines = {name: (peaks, np.array(found)) for name, found in swept.items()}
axes = {"x": "peak rate", "y": "loss at the end", "log_x": 10, "log_y": True}
plots.curves({title: lines}, **axes, marks="o", size=(6.5, 3.2))

# %% [markdown] tags=["shared"]
# Each point is one run; [five recorded seeds](../book/how-this-was-built.md) say the
# same, in both frameworks:
#
# * At the lowest rate, warm-up changed little. (Whoever never tries a higher one may
#   think that it does nothing; an extra shows this for three longer runs.)
# * At the two highest, the longest warm-up ended far lower than none. So sweep *with*
#   warm-up. Where the highest rates fail, lengthen it, then sweep once more.
# * A twentieth of a short run is a few updates. What a network needs is a number of
#   updates, not a share. So in long runs the share is small:
#   [GPT-3](https://arxiv.org/abs/2005.14165), with pre-norm and $\beta_2 = 0.95$, used
#   375 million of 300 billion tokens.
#
# With `fit` of *The reverse task*, a run of the sweep reads
#
# ```python
# model = Predictor(..., norm_first=True)
# settings = Settings(..., learning_rate=peak, warmup=w, weight_decay=0.1)
# history = fit(model, loss_fn, data, settings)  # with a cosine, clipped at norm 1
# ```

# %% tags=["shared", "check"]
# Checked: at the two highest rates a long warm-up ends far lower than none, at the
# lowest it changes little, here and in five recorded seeds of both frameworks
records = [recorded(f"warmup-seeds-{side}")[-1] for side in ("jax", "torch")]
for runs in (swept, *(record["swept"] for record in records)):
    bare, twentieth, quarter = [np.array(runs[name]) for name in lengths]
    assert (quarter[2:] < bare[2:] / 2).all() and quarter[2:].max() < 0.2
    low = np.array([bare[0], twentieth[0], quarter[0]])
    assert (low.max(axis=0) < 3 * low.min(axis=0)).all() and low.min() > 0.3

# %% [markdown] tags=["shared"]
# ## Extra: At a low rate, runs with and without warm-up ended alike
#
# The recipe begins with a peak of one thousandth. Here it gets 400 updates; a twentieth
# of these are warm-up, or none.

# %% tags=["shared"]
low = {"n_updates": 400, "peak": 1e-3}
for name, w in (("recipe, warm-up", 20), ("recipe, no warm-up", 1)):
    schedule = partial(warmup_cosine, warmup=w, total=400)
    losses[name], _ = train_seeds(schedule, **low, **recipe)
runs = "no warm-up", "warm-up"
live = {name: final_losses(found) for name, found in losses.items()}
records = [recorded(f"warmup-seeds-{side}")[-1] for side in ("jax", "torch")]

# %% tags=["shared", "say"]
rows = []
for name in ("no warm-up", "warm-up", "recipe, no warm-up", "recipe, warm-up"):
    ends = [np.array(x[name]) for x in (live, *(y["losses"] for y in records))]
    texts = [f"{np.median(x):.3f} ({sum(x < 1)} of {len(x)})" for x in ends]
    rows.append([name, *texts])
say(table(["settings", "here", "recorded, JAX", "recorded, PyTorch"], *rows))

# %% [markdown] tags=["shared"]
# (Median of the last losses; in brackets, how many runs learned, with a loss below 1.
# The first two rows are the harsh settings of before; five runs each [were
# recorded](../book/how-this-was-built.md).) At a low rate the first steps are small
# without any warm-up. The recipe keeps it all the same: it costs little, and a sweep
# will try higher rates.

# %% tags=["shared", "check"]
# Checked: with and without warm-up the recipe learns; the harsh settings only with it
gentle = [final_losses(losses["recipe, " + run]) for run in runs]
assert max(map(max, gentle)) < 0.5
assert abs(np.median(gentle[0]) - np.median(gentle[1])) < 0.1

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
# Take 2,000 weights whose gradients are random numbers with standard deviation 1. Each
# scaling $1/\sqrt{\hat\nu}$ should be 1. Do some weights move too far?

# %% tags=["shared"]
noise = np.random.default_rng(0).normal(size=(200, 2000))  # t n
scaling = 1 / np.sqrt(adam_averages(noise)[1])  # t n
high, low = np.quantile(scaling, [0.99, 0.01], axis=1)
spread = high / low  # t
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
# test of suspects separates them: with filled averages the spread is small from the
# first step on, and the network still guesses. So **the spread alone does not explain
# this failure**.

# %% [markdown] tags=["shared"]
# ## Extra: Second explanation: the place of the norm
#
# Why does the place of the norm matter here? There are three accounts. [Xiong et al.
# 2020](https://arxiv.org/abs/2002.04745): in post-norm, the last blocks receive larger
# gradients at the start, too large for high rates; in pre-norm, the last norm divides
# the gradient by the size of the sum, which grows with depth. [Liu et al.
# 2020](https://arxiv.org/abs/2004.08249): Adam's steps do not depend on the size of the
# gradient; but in post-norm small changes of a block's weights add up to a large change
# of the output. Our drawing: each norm after a sum shrinks the differences, and in
# pre-norm the sum is normalised only once, after the last block. All three predict that
# pre-norm tolerates high rates from the first update on. This we can test; which of
# them is right, we cannot.

# %% tags=["shared"]
losses["pre-norm, warm-up"], _ = train_seeds(warmup, norm_first=True)
early = {}  # after ten updates without warm-up: n l
for name, norm_first in (("post-norm", False), ("pre-norm", True)):
    _, found = train_seeds(no_warmup, n_updates=10, norm_first=norm_first)
    early[name] = np.array([differences(model) for model in found])
post_end, pre_end = [rows[:, -1].mean() for rows in early.values()]
free, helped = [final_losses(losses[x]).max() for x in (pre, "pre-norm, warm-up")]
print(f"worst run of pre-norm: {free:.2f} without warm-up, {helped:.3f} with it")
print(f"δ at the last block: {post_end:.1g} in post-norm, {pre_end:.2f} in pre-norm")

# %% mystnb={"image": {"alt": "Loss over 200 updates at the harsh rate, three lines each. Without warm-up, post-norm stays at the level of guessing and pre-norm falls below it; pre-norm with warm-up falls to almost zero."}} tags=["shared", "figure"]
title = "At a high rate pre-norm, too, gained from warm-up"
draw_losses(title, ["no warm-up", pre, "pre-norm, warm-up"], 150)

# %% [markdown] tags=["shared"]
# So here pre-norm was **sturdier, but not immune**. And the drawing fits: early on, all
# outputs share one large vector, and in post-norm less of their differences is left.

# %% tags=["shared", "check"]
# Checked: with warm-up all seeds of pre-norm learn; all outputs have a vector in common
assert helped < 0.25 and helped < free
assert pre_end > 4 * post_end
largest = max(rows[:, -1].max() for rows in early.values())
assert largest < 0.3  # 1 without a common vector

# %% [markdown] tags=["shared"]
# ## Extra: Clipping limits the damage of one bad batch
#
# Why does the recipe clip? One gradient a hundred times as long as usual disturbs Adam
# for the rest of our 200 updates. Both averages remember it: $\mu$ makes some ten steps
# too long, then $\nu$ makes hundreds too short. **Clipping by the
# global norm** shortens a gradient longer than $c$, and keeps its direction:
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
late = ratio[79:].max()
print(f"at the spike {ratio[49]:.1f} times as long, later at most {late:.2f} times")

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
# resumes at the old rate, without Adam's $\mu$ and $\nu$. Use the same 49 gradients
# before and after the interruption. Predict the mean size of the first step, in units
# of the rate, after the interruption and without it.

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
# * The rate is a peak times a schedule; the loop sets it once per update.
# * Without warm-up, a high rate ruined post-norm: all outputs became nearly the same.
#   $\delta$ shows it.
# * Small first steps helped; filled averages of Adam did not. At a high
#   rate pre-norm was sturdier, and still gained from warm-up.
# * At a low rate warm-up changed little; the highest needed a long one. So sweep the
#   peak *with* warm-up.

# %% [markdown] tags=["jax"]
# Next comes [finding the odd one out, in JAX](anomaly_jax.ipynb): a task on sets, with
# real images. [When training fails](debugging_jax.ipynb) finds a peak rate by a sweep.
