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
# # The reverse task
#
# By the end you can write the training loop of a Transformer, train it until it makes
# no mistake, test whether its attention map explains what it does, and tell what a
# model cannot compute from what it has not learned. You need: the chapters on the
# encoder and on warm-up.
#
# Outputs often depend on inputs that are far away. To translate a German sentence, you
# need the verb at its end to write the beginning of the English one. Reversing a
# sequence is the purest case, and a good laboratory: we know the right output and where
# the model must look. So we can see whether attention does what we believe it does.

# %% [markdown] tags=["jax"]
# This page uses **JAX**. The same page in PyTorch:
# [reverse_torch](reverse_torch.ipynb). Before it comes [warm-up, in
# JAX](warmup_jax.ipynb).

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
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from helpers import diagrams, plots, twin, viewer
from helpers.model_jax import Predictor, attention_maps, build, dense
from helpers.prose import say
from helpers.runs import runs_folder
from helpers.sequences import one_hot, reverse_data, shuffled, symbols
from helpers.settings import Reverse, Settings
from helpers.shapes import as_numpy
from helpers.train_jax import evaluate, fit
from helpers.weights import download_link, from_arrays, save_weights, to_arrays

# %% [markdown] tags=["jax"]
# An update is a pure function in JAX: old weights in, new weights out. So all updates
# of an epoch can be one compiled loop.

# %% tags=["jax"]
jax.config.update("jax_default_matmul_precision", "highest")
plots.use_style()
floats = partial(jnp.asarray, dtype=jnp.float32)
integers = partial(jnp.asarray, dtype=jnp.int32)
booleans = partial(jnp.asarray, dtype=jnp.bool_)
side, other_side = "jax", "torch"
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## The first output needs the last input
#
# A sequence of 16 digits goes in. The same digits in reverse order come out, all at
# once. Position 0 of the output needs position 15 of the input; position 7 needs its
# neighbour, position 8. Attention reaches both in one step.

# %% tags=["shared"]
settings = Reverse()
data = reverse_data(settings)  # of each part: inputs b s i, labels b s
x_test, y_test = data["test"]
print("in: ", *x_test[0].argmax(-1))
print("out:", *y_test[0])

# %% [markdown] tags=["shared"]
# The sequences are random. There are $10^{16}$ of them, so a model that memorised its
# training data would fail on the test data.

# %% tags=["shared", "check"]
# Checked: labels are the inputs reversed; no test sequence is in the training data
for inputs, targets in data.values():
    np.testing.assert_array_equal(targets, inputs.argmax(-1)[:, ::-1])
trained_on = {row.tobytes() for row in data["train"][1]}
assert len(x_test) == 10_000 and len(trained_on) == 50_000
assert not any(row.tobytes() in trained_on for row in y_test)

# %% [markdown] tags=["shared"]
# ## One-hot times a matrix is an embedding
#
# The digits are symbols: 8 is not twice 4. So each goes in as a **one-hot** vector,
# zeros with a single 1 at the index of the symbol. The first layer of the model,
# `embed` in the drawing, multiplies it by a matrix $W$ and adds a bias. For symbol $a$
# with one-hot vector $e_a$ the product picks a row,
#
# $$e_a\, W = W_a,$$
#
# so the layer is a table with one learned vector for each symbol: an **embedding**.
# `nn.Embedding` in PyTorch and `nnx.Embed` in Flax look the row up.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Flow chart of the predictor from top to bottom: x, embed, positions, encoder with its mask and its attention maps, hidden, hidden norm, ReLU, output, with the shapes between them."}}
diagrams.predictor()

# %% tags=["shared"]
model = build(Predictor, seed=settings.seed, **settings.model)
parameters = to_arrays(model)  # NumPy arrays by name
table, bias = parameters["embed.weight"], parameters["embed.bias"]  # i m, m
embedded = as_numpy(model.embed(floats(x_test[:5])))  # b s m
looked_up = table[x_test[:5].argmax(-1)] + bias  # b s m

# %% tags=["shared", "check"]
# Checked: the dense layer on one-hot vectors returns rows of its matrix
np.testing.assert_allclose(embedded, looked_up, atol=1e-6)

# %% [markdown] tags=["shared"]
# ## Training repeats one update
#
# Four steps make an update: the model computes its outputs for a batch, a loss function
# compares them with the labels, gradients say how the loss changes with each parameter,
# and an optimizer moves the parameters.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The training loop as a cycle: inputs go through the model and, with the labels, into the loss function; the gradients of the loss are clipped and go to the optimizer, which takes the learning rate and changes the model. After each epoch the model is validated."}}
diagrams.training_loop()

# %% [markdown] tags=["shared"]
# The loss is the cross-entropy, averaged over the $s$ positions of the $b$ sequences in
# a batch:
#
# $$\mathrm{loss} = -\frac{1}{b\,s} \sum_{u=0}^{b-1} \sum_{j=0}^{s-1} \ln p_{uj},$$
#
# where $p_{uj}$ is the probability of the right symbol at position $j$ of sequence $u$:
# the softmax of the model's ten outputs there, the **logits**. Beside it we keep the
# **accuracy**, the share of positions where the largest logit is the right one.

# %% [markdown] tags=["jax"]
# `take_along_axis` picks the logarithm that belongs to the label.


# %% tags=["jax"]
def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of a model that returns logits."""
    logits = model(inputs)
    log_p = jax.nn.log_softmax(logits)
    right = jnp.take_along_axis(log_p, labels[..., None], axis=-1)
    return -right.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


# %% tags=["shared"]
first_loss, metrics = cross_entropy(model, floats(x_test[:500]), integers(y_test[:500]))

# %% tags=["shared", "say"]
say(
    f"Before training the loss is {as_numpy(first_loss):.2f}. Giving each of the ten "
    f"symbols the probability 1/10 would cost $\\ln 10$ = {np.log(10):.2f}."
)

# %% tags=["shared", "check"]
# Checked: the loss is the mean of -ln p; an untrained model is no better than guessing
log_p = as_numpy(model(floats(x_test[:500]))).astype(np.float64)
log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
of_label = [log_p[u, j, y_test[u, j]] for u, j in np.ndindex(500, 16)]
np.testing.assert_allclose(as_numpy(first_loss), -np.mean(of_label), atol=1e-5)
assert as_numpy(first_loss) > np.log(10)
np.testing.assert_allclose(
    as_numpy(metrics["accuracy"]), 1 / 10, atol=0.05
)  # loose: chance

# %% [markdown] tags=["jax"]
# **The optimizer.** An optimizer of Optax is a pair of pure functions: `init` makes its
# state, `update` turns gradients and state into steps and a new state. `chain` puts
# clipping in front of Adam, which looks up the learning rate of the update it counts.


# %% tags=["jax"]
def make_optimizer(learning_rates, max_grad_norm):
    """Clip by the global norm, then Adam with the learning rate of each update."""
    clip = optax.clip_by_global_norm(max_grad_norm)
    return optax.chain(clip, optax.adam(lambda count: learning_rates[count]))


# %% [markdown] tags=["jax"]
# **One update.** Everything that changes travels in the `carry`: the parameters, Adam's
# averages, and the `rest` of the model's state, such as the random state of dropout.
# Each is a **pytree**, nested dictionaries and tuples with arrays as leaves. `merge`
# builds the model from its structure, `graph`, and these arrays; `split` takes it apart
# into parameters and all the rest (`...`). `copy=True` keeps the caller's random state
# as it is: the new one is returned beside the loss (`has_aux`), so that every update
# draws other dropout masks.


# %% tags=["jax"]
def update(carry, batch, *, optimizer, graph, loss_fn):
    """One update: new weights, new state of Adam, new state of dropout."""
    params, opt_state, rest = carry

    def objective(params):
        model = nnx.merge(graph, params, rest, copy=True)
        loss, metrics = loss_fn(model, *batch)
        return loss, (metrics, nnx.split(model, nnx.Param, ...)[2])

    loss_and_grads = jax.value_and_grad(objective, has_aux=True)
    (loss, (metrics, rest)), grads = loss_and_grads(params)
    steps, opt_state = optimizer.update(grads, opt_state)
    params = optax.apply_updates(params, steps)
    history = {"loss": loss, "accuracy": metrics["accuracy"]}
    history["grad_norm"] = optax.tree.norm(grads)
    return (params, opt_state, rest), history


# %% [markdown] tags=["jax"]
# **An epoch.** The data lie on the device from the start; a batch is a list of row
# numbers. `lax.scan` repeats `step`, hands the carry from one update to the next, and
# stacks what each returns. `jit` compiles the whole loop once, and no Python runs
# between two updates. Arguments named in `static_argnames` are part of the program, not
# arrays: for another `loss_fn` it is compiled again.


# %% tags=["jax"]
@partial(jax.jit, static_argnames=("graph", "loss_fn", "max_grad_norm"))
def run_epoch(carry, data, batches, learning_rates, *, graph, loss_fn, max_grad_norm):
    """All updates of an epoch as one ``scan``: no Python, no copies in between."""
    optimizer = make_optimizer(learning_rates, max_grad_norm)
    fixed = {"optimizer": optimizer, "graph": graph, "loss_fn": loss_fn}

    def step(carry, index):
        return update(carry, [x[index] for x in data], **fixed)

    return jax.lax.scan(step, carry, batches)


# %% [markdown] tags=["jax"]
# Before the loop the model is taken apart; after it, the new arrays are written back.


# %% tags=["jax"]
def train_by_hand(model, loss_fn, data, batches, learning_rates, max_grad_norm=1.0):
    """All updates of ``batches`` ``n b``; changes the model, returns the history."""
    model.train()  # dropout on
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = make_optimizer(learning_rates, max_grad_norm)
    carry = params, optimizer.init(params), rest
    fixed = {"graph": graph, "loss_fn": loss_fn, "max_grad_norm": max_grad_norm}
    carry, history = run_epoch(carry, data, batches, learning_rates, **fixed)
    nnx.update(model, carry[0], carry[2])
    return history


# %% [markdown] tags=["shared"]
# We train two models with the same initial weights for 200 updates: one with this loop,
# one with `fit` of `helpers`. Short trainings like these take a high learning rate.

# %% tags=["shared"]
quick = replace(settings, learning_rate=3e-3, epochs=1)
short = replace(quick, n_train=200 * settings.batch_size)
initial = Path(tempfile.mkdtemp()) / "initial.safetensors"
by_hand, by_fit = (
    build(Predictor, seed=settings.seed, **settings.model) for _ in range(2)
)
save_weights(by_hand, initial)
rows = floats(data["train"][0]), integers(data["train"][1])
batches, rates = integers(shuffled(short)(0)), floats(short.learning_rates)  # n b, n
loop = train_by_hand(by_hand, cross_entropy, rows, batches, rates)
fitted = fit(by_fit, cross_entropy, data["train"], short)

# %% tags=["shared", "say"]
say(
    f"Both fall from {fitted['loss'][0]:.2f} to {fitted['loss'][-1]:.2f}; the largest "
    f"difference of the two losses is "
    f"{np.abs(as_numpy(loop['loss']) - fitted['loss']).max():.1e}."
)

# %% tags=["shared", "check"]
# Checked: the loop on this page and `fit` compute the same losses and gradient norms
assert fitted["loss"][-1] < 0.6 * fitted["loss"][0]
for name in ("loss", "grad_norm"):  # later, rounding may have grown
    np.testing.assert_allclose(as_numpy(loop[name])[:50], fitted[name][:50], rtol=1e-3)

# %% [markdown] tags=["shared"]
# That is no accident: `fit` calls `run_epoch`, the same function, for every epoch. What
# it adds stands around it:
#
# * **before**, it checks that model, data, batches and settings fit each other, and
#   moves the data to the model's device;
# * **after every epoch**, it stops if a loss or gradient was NaN or infinite, computes
#   loss and accuracy on the validation data, keeps the best weights so far, writes a
#   checkpoint and the history for TensorBoard, and moves a progress bar;
# * **at the end**, it gives the model its best weights and returns the history.

# %% [markdown] tags=["jax"]
# It also trains a copy of the model whose dense layers make one axis of batch and
# position: the same products up to rounding, whose gradients XLA computes faster on
# CPUs.

# %% [markdown] tags=["shared"]
# ## The model learns to reverse without a mistake
#
# Now the whole training. These are its settings.

# %% tags=["shared", "say"]
choices = """n_train | too many to memorise | all that you have
batch_size | smooth gradients, still many updates | 32 to 256
epochs | two would do; the rest lowers the loss | until validation stops rising
learning_rate | safe; our short trainings take six times as much | 3e-4 to 1e-3
warmup | one eighth of the first epoch | 1 to 10 % of all updates
max_grad_norm | bounds rare large steps | 1
n_blocks | one look is enough | 2 to 6
n_heads | one map to read | m / n_heads from 16 to 64
m | ten symbols and 16 positions fit | 64 to 512
dropout | too many sequences to memorise | 0.1; 0.3 if data are few"""
lines = ["setting | value | why here | try first for another task", "---|---|---|---"]
for line in choices.splitlines():
    name, rest = line.split(" | ", 1)
    lines.append(f"`{name}` | {getattr(settings, name):,} | {rest}")
say("\n".join(f"| {line} |" for line in lines))

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** How many updates does this training make? In which update is
# the learning rate highest, and in which is it half of that for the first time?

# %% tags=["shared", "answer"]
assert settings.updates == 10 * (50_000 // 128) == 3900  # 80 sequences left out of each
highest = np.argmax(settings.learning_rates)  # counted from 0
half = np.argmax(settings.learning_rates >= settings.learning_rate / 2)
assert highest == settings.warmup - 1 == 49 and half == 24
say(
    f"An epoch has 390 whole batches, so there are {settings.updates:,} updates. The "
    f"rate rises by 1/50 of its peak in each of the first 50, so it is highest in "
    f"update {highest + 1} and half as high in update {half + 1}."
)

# %% [markdown] tags=["shared"]
# The run is kept in a folder: `tensorboard --logdir runs` draws it while it trains.

# %% tags=["shared"]
folder = runs_folder(f"reverse_{side}")
history = fit(
    model, cross_entropy, data["train"], settings,
    validation=data["validation"], folder=folder,
)  # fmt: skip
on_validation = evaluate(model, cross_entropy, data["validation"])["accuracy"]
on_test = evaluate(model, cross_entropy, data["test"])["accuracy"]

# %% tags=["shared", "say"]
n_parameters = sum(array.size for array in to_arrays(model).values())
site = "https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks"
theirs = "tutorial6/Transformers_and_MHAttention.html"
say(
    f"The model has {n_parameters:,} parameters. "
    f"Validation accuracy: {on_validation:.2%}, test accuracy: {on_test:.2%}, "
    f"seconds of training: {history['seconds'].sum():.1f}. For scale: others trained "
    "this model in 2022 on an RTX 3090, in 26 seconds "
    f"[with PyTorch]({site}/{theirs}) and in 7 [with JAX]({site}/JAX/{theirs})."
)

# %% tags=["shared", "check"]
# Checked: every position of all validation and test sequences is right
assert on_validation == on_test == 1
assert on_validation == history["validation_accuracy"].max()
np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three panels over ten epochs: training and validation loss fall from above two to almost nothing; both accuracies reach one within two epochs; the learning rate rises steeply at the start and falls along a cosine."}}
at_update = (np.arange(settings.updates) + 1) / settings.updates_per_epoch
at_epoch = np.arange(settings.epochs) + 1
panels = {
    "loss": {
        "training": (at_update, history["loss"]),
        "validation": (at_epoch, history["validation_loss"]),
    },
    "accuracy": {
        "training": (at_update, history["accuracy"]),
        "validation": (at_epoch, history["validation_accuracy"]),
    },
    "learning rate": {"training": (at_update, history["learning_rate"])},
}
fig = plots.curves(panels, x="epoch", log_y=["loss"], size=(7.2, 2.6))
fig

# %% tags=["shared", "check"]
# Checked: after two epochs accuracy stays above 97 %; the loss ends below 0.004
for line in ("training", "validation"):
    epoch, accuracy = plots.drawn(fig, "accuracy", line)
    assert accuracy[epoch >= 2].min() > 0.97
    epoch, loss = plots.drawn(fig, "loss", line)
    assert loss[-1] < 0.004 and (line == "validation" or loss[0] > 2)
epoch, rate = plots.drawn(fig, "learning rate", "training")
assert round(1 / epoch[rate.argmax()]) == 8  # the peak: one eighth of an epoch
assert (np.diff(rate[epoch < 0.12]) > 0).all() and (
    np.diff(rate[epoch > 0.13]) < 0
).all()

# %% [markdown] tags=["shared"]
# **Finished runs are reloaded.** Given the same folder, a new model gets the trained
# weights and the history at once; `retrain=True` would train again. Other settings,
# other data, or a model whose code has changed make another run, in a folder beside it.

# %% tags=["shared"]
reloaded = build(Predictor, seed=settings.seed, **settings.model)
kept = {"folder": folder, "validation": data["validation"]}
same_history = fit(reloaded, cross_entropy, data["train"], settings, **kept)

# %% tags=["shared", "check"]
# Checked: the reloaded model has the weights and the history of the finished run
np.testing.assert_array_equal(same_history["seconds"], history["seconds"])
for name, array in to_arrays(reloaded).items():
    np.testing.assert_array_equal(array, to_arrays(model)[name])
assert list(folder.glob("*/events.out.tfevents.*")), "nothing for TensorBoard"

# %% [markdown] tags=["shared"]
# **Interrupted runs resume** after their last finished epoch. We stop a small training
# as its third epoch begins, as Ctrl-C would, and start it again.

# %% tags=["shared"]
small = replace(settings, n_train=20 * settings.batch_size, epochs=4)


def stopped(epoch):
    """Batches as usual, but somebody presses Ctrl-C before the third epoch."""
    if epoch == 2:
        raise KeyboardInterrupt
    return shuffled(small)(epoch)


def train_small(**options):
    """Weights of a new model after the small training."""
    model = build(Predictor, seed=1, **small.model)
    fit(model, cross_entropy, data["train"], small, **options)
    return to_arrays(model)


# %% tags=["shared"]
uninterrupted = train_small()
with tempfile.TemporaryDirectory() as elsewhere:
    try:
        train_small(folder=elsewhere, batches=stopped)
    except KeyboardInterrupt:
        print("interrupted")
    resumed = train_small(folder=elsewhere)

# %% tags=["shared", "check"]
# Checked: an interrupted and resumed run ends with the weights of an uninterrupted one
for name, array in uninterrupted.items():
    np.testing.assert_allclose(array, resumed[name], atol=1e-6)

# %% [markdown] tags=["shared"]
# ## Both frameworks follow the same curve
#
# From the same initial weights and on the same batches, JAX and PyTorch compute the
# same training, up to rounding in the last digit, which training amplifies; so we take
# the low learning rate. We train for 200 updates here, and in the other framework in a
# process of its own.

# %% tags=["shared"]
paired = replace(short, learning_rate=settings.learning_rate)
again = build(Predictor, seed=settings.seed, **settings.model)  # as saved in `initial`
here = fit(again, cross_entropy, data["train"], paired)["loss"]
there = twin.losses(other_side, paired, initial)
gap = np.abs(here / there - 1)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Left: the loss of both frameworks over 200 updates; the two lines lie on each other. Right: their relative gap on a logarithmic axis; it grows, and stays below one in a thousand."}}
steps = np.arange(len(gap)) + 1
panels = {
    "loss": {side: (steps, here), other_side: (steps, there)},
    "relative gap": {"gap": (steps, gap), "0.001": (steps, 0 * gap + 1e-3)},
}
fig = plots.curves(panels, x="update", log_y=["relative gap"], size=(7, 2.8))
fig

# %% tags=["shared", "say"]
say(
    f"The largest relative gap over {paired.updates} updates: {gap.max():.1e}, from "
    "rounding alone."
)

# %% tags=["shared", "check"]
# Checked: the two losses differ by less than a thousandth; the gap grows
_, ours = plots.drawn(fig, "loss", side)
_, theirs = plots.drawn(fig, "loss", other_side)
np.testing.assert_allclose(ours, theirs, rtol=1e-3)
_, drawn_gap = plots.drawn(fig, "relative gap", "gap")
assert len(drawn_gap) == 200 and drawn_gap[150:].max() > drawn_gap[:20].max()

# %% [markdown] tags=["shared"]
# ## The attention map is an antidiagonal
#
# How does the model do it? With one block and one head there is one attention map:
# weights `q k`, a row for each output. Output $q$ needs the symbol at position
# $15 - q$. So we expect row $q$ to look at key $k = 15 - q$: an antidiagonal.

# %% tags=["shared"]
x_few, y_few = x_test[:1000], y_test[:1000]
logits, maps = attention_maps(model, floats(x_few))
maps = as_numpy(maps)[0, :, 0]  # b q k
mirror = np.arange(settings.length)[::-1]  # the key that each row should look at

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two heat maps of 16 queries by 16 keys, for one sequence and as the mean over 1,000. In both the weights lie on the antidiagonal, with some weight beside it."}}
titles = ["one sequence", "mean of 1,000"]
plots.heatmaps([maps[0], maps.mean(axis=0)], titles=titles, size=(6.6, 3.2))

# %% tags=["shared", "say"]
rows_of, keys_of = np.indices(maps.shape[1:])
away = abs(keys_of - mirror[rows_of])  # how far a key is from the mirror position
on, beside, beyond = (
    maps.mean(0)[at].mean() for at in (away == 0, away == 1, away > 1)
)
say(
    "In each of the 1,000 sequences every row looks most at its mirror position. It "
    f"puts {on:.0%} of its weight there on average, {beside:.0%} on each neighbour, "
    f"and {beyond:.1%} on each other key."
)

# %% [markdown] tags=["shared"]
# Why the neighbours? Neighbouring positions have similar codes, as the encoder chapter
# showed. A query that asks for position 9 matches 8 and 10 a little, too.

# %% tags=["shared", "check"]
# Checked: every row of every map has its largest weight on the antidiagonal
assert (maps.argmax(axis=-1) == mirror).all()
assert on > 2 * beside and beside > 0.1
assert beyond < 0.01  # loose: nearly nothing

# %% [markdown] tags=["shared"]
# Here are four sequences before and after training. Choose a row and follow its lines.

# %% tags=["shared"]
untrained = build(Predictor, seed=settings.seed, **settings.model)
before, after = (
    as_numpy(attention_maps(one, floats(x_test[:4]))[1]) for one in (untrained, model)
)

# %% tags=["shared", "figure"]
viewer.attention(
    {"before training": before, "after training": after},
    [[str(digit) for digit in row] for row in x_test[:4].argmax(-1)],
    about="Attention maps of four sequences before and after the training",
)

# %% tags=["shared", "say"]
say(
    f"Before training no weight exceeds {before.max():.2f}: every row looks a little "
    "at every key. After it the largest weight of a row is "
    f"{after.max(-1).mean():.2f} on average."
)

# %% tags=["shared", "check"]
# Checked: training turns maps without a clear maximum into maps with one
assert before.max() < 0.15 and after.max(axis=-1).mean() > 0.5

# %% [markdown] tags=["shared"]
# All that the model has learned fits into one small file. [Try the
# model](../book/playground.md) runs it in your browser.

# %% tags=["shared"]
download_link(model, f"reverse_{side}.safetensors")

# %% [markdown] tags=["shared"]
# ## Attention is not explanation until it is tested
#
# The map looks like an explanation. But it shows how much of each value is mixed in,
# not whether the output depends on it. In text classifiers, [Jain and Wallace
# (2019)](https://arxiv.org/abs/1902.10186) found attention weights that disagree with
# other measures of importance, and very different weights with the same output:
# "Attention is not explanation". [Wiegreffe and Pinter
# (2019)](https://arxiv.org/abs/1908.04626) replied that it depends on what explanation
# means, and that it can be tested for each model: do other seeds find the same weights?
# Does the model do as well without them?
#
# We ask both. For contrast we train a second task, to **copy** the sequence. There the
# residual connection already carries each symbol to its own output.

# %% tags=["shared"]
x_train, y_train = data["train"]
tasks = {  # settings and labels of each
    "reverse": (quick, y_train),
    "copy": (short, x_train.argmax(-1)),
}


def trained(task, seed):
    """A new model, trained quickly for a task."""
    chosen, targets = tasks[task]
    new = build(Predictor, seed=seed, **chosen.model)
    fit(new, cross_entropy, (x_train, targets), chosen)
    return new


pairs = {
    "reverse": [model, trained("reverse", 1)],
    "copy": [trained("copy", 0), trained("copy", 1)],
}

# %% [markdown] tags=["shared"]
# To **silence** a key is to hide it from one query by the mask: the other weights of
# the row grow to sum to 1 again. We silence in every row the key with the largest
# weight, or another one at random.


# %% tags=["shared"]
def looked_at(model):
    """The key with the largest weight in every row: ``b q``."""
    return as_numpy(attention_maps(model, floats(x_few))[1])[0, :, 0].argmax(-1)


def silenced(model, keys):
    """Predictions ``b q`` of a model whose query ``q`` does not see ``keys[b, q]``."""
    allowed = np.arange(settings.length) != keys[..., None]  # b q k
    return as_numpy(model(floats(x_few), booleans(allowed[:, None]))).argmax(-1)


# %% tags=["shared"]
shift = np.random.default_rng(0).integers(1, settings.length, size=y_few.shape)
right = {"reverse": y_few, "copy": x_few.argmax(-1)}
evidence = {}
for task, (one, other_seed) in pairs.items():
    top = looked_at(one)
    random_other = (top + shift) % settings.length
    nothing = np.full_like(top, -1)  # -1 is no key
    accuracies = (
        (silenced(one, keys) == right[task]).mean()
        for keys in (nothing, top, random_other)
    )
    evidence[task] = *accuracies, (top == looked_at(other_seed)).mean()

# %% tags=["shared", "say"]
head = (
    "| model | accuracy | top key silenced | random other key silenced | seeds agree |"
)
lines = (
    f"| {task} | " + " | ".join(f"{share:.1%}" for share in shares) + " |"
    for task, shares in evidence.items()
)
say("\n".join([head, "|---|---|---|---|---|", *lines]))

# %% [markdown] tags=["shared"]
# "Seeds agree" is the share of rows in which two models from different seeds look most
# at the same key. The reversing model passes both tests: without its top key it
# guesses, without another key it stays right, and another seed finds the same map. Here
# the map explains. The copying model fails both: its maps have a largest weight in
# every row, too, but the output does not depend on them.

# %% tags=["shared", "check"]
# Checked: the map explains the reversing model and not the copying one
plain, without_top, without_other, agree = evidence["reverse"]
assert plain == 1 and without_top < 0.15 and without_other > 0.9 and agree > 0.9
plain, without_top, without_other, agree = evidence["copy"]
assert min(plain, without_top, without_other) > 0.99
assert agree < 0.5  # loose: chance, other for each pair of seeds

# %% [markdown] tags=["shared"]
# ## Without positions the model can only count
#
# Take the position codes away, and the model sees a set. Each position knows its own
# symbol and which others there are, but not where. The best it can do is to guess the
# most frequent symbol among the other fifteen, which is right with probability
#
# $$\mathrm{best} = \mathbb{E}\Big[\tfrac{1}{15} \max_a n_a\Big],$$
#
# where $n_a$ counts how often symbol $a$ occurs at the other positions, and
# $\mathbb{E}$ averages over all sequences and positions.

# %% tags=["shared"]
counts = x_test.sum(axis=1, keepdims=True) - x_test  # b s i
best_guess = (counts.max(axis=-1) / (settings.length - 1)).mean()
without = replace(short, positions="none")
blind = build(Predictor, seed=settings.seed, **without.model)
fit(blind, cross_entropy, data["train"], without)
accuracy_blind = evaluate(blind, cross_entropy, data["test"])["accuracy"]

# %% tags=["shared", "say"]
say(
    f"Trained for {without.updates} updates without positions: {accuracy_blind:.2%}, "
    f"the best possible guess: {best_guess:.2%}. With positions, "
    f"after as many updates: {fitted['accuracy'][-10:].mean():.0%}."
)

# %% tags=["shared", "check"]
# Checked: without positions the model is no better than the best guess, and close to it
assert best_guess - 0.03 < accuracy_blind < best_guess + 0.005

# %% [markdown] tags=["shared"]
# ## A GRU fails from causality, not from memory
#
# A GRU ([gated recurrent unit](https://arxiv.org/abs/1406.1078)) reads symbol by symbol
# and keeps what it has read in a **state** of fixed size. From left to right, its state
# at position $q$ depends on symbols $0$ to $q$ only: it is **causal**. In the first
# half of the output, the symbol $s - 1 - q$ still lies ahead, and no training can
# change that. In the second half it has been read; there the question is whether the
# state remembers it.
#
# To separate the two, we add a second GRU that reads from right to left and concatenate
# the states: a **bidirectional** GRU.

# %% [markdown] tags=["jax"]
# Flax's cell makes one step. `lax.scan` carries its state along the positions, which
# have to be the first axis for that; with `reverse` it begins at the last one.


# %% tags=["jax"]
class Recurrent(nnx.Module):
    """A GRU from left to right, or one each way: ``b s i -> b s c``."""

    def __init__(self, n_inputs, m, n_outputs, *, both=False, rngs):
        cells = [nnx.GRUCell(n_inputs, m, rngs=rngs) for _ in range(1 + both)]
        self.cells, self.m = nnx.data(cells), m
        self.output = dense(m * len(cells), n_outputs, rngs=rngs)

    def __call__(self, x):
        steps = x.swapaxes(0, 1)  # s b i
        start = jnp.zeros((len(x), self.m))
        states = [
            jax.lax.scan(cell, start, steps, reverse=backwards)[1]  # s b m
            for cell, backwards in zip(self.cells, (False, True), strict=False)
        ]
        return self.output(jnp.concatenate(states, axis=-1).swapaxes(0, 1))


# %% [markdown] tags=["shared"]
# All three models get the same batches and equally many updates, each at a learning
# rate that suits it. We shorten the sequences to 6 symbols, few enough to remember.

# %% tags=["shared"]
six = replace(quick, length=6)
x_six, y_six = (parts := reverse_data(six))["test"]
one_way, both_ways = (
    build(Recurrent, 10, 64, 10, both=both, seed=1) for both in (False, True)
)
ours = build(Predictor, seed=1, **six.model)
contestants = {
    "Transformer": (ours, quick.learning_rate),
    "GRU": (one_way, 1e-2),
    "bidirectional GRU": (both_ways, 1e-2),
}
outputs, by_position = {}, {}
for name, (contestant, rate) in contestants.items():
    own = replace(six, learning_rate=rate)
    fit(contestant, cross_entropy, parts["train"], own)
    outputs[name] = as_numpy(contestant(floats(x_six)))  # b s c
    by_position[name] = (outputs[name].argmax(-1) == y_six).mean(axis=0)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Accuracy by position. The Transformer is right at all positions, and so is, nearly, the bidirectional GRU. The GRU from left to right is at one in ten in the first half and nearly right in the second."}}
positions = np.arange(six.length)
panels = {"": {name: (positions, shares) for name, shares in by_position.items()}}
fig = plots.curves(panels, x="position", y="accuracy", marks="o", size=(5.2, 2.9))
fig

# %% tags=["shared", "say"]
first, second = slice(0, 3), slice(3, 6)
transformer, gru, both = by_position.values()
say(
    f"After {six.updates} updates the GRU from left to right is right at "
    f"{gru[first].mean():.0%} of the positions in the first half, where guessing gives "
    f"10 %, and at {gru[second].mean():.0%} in the second. So it remembers what it has "
    f"read. The bidirectional GRU is right at {both[first].mean():.0%} and "
    f"{both[second].mean():.0%}, the Transformer at {transformer.mean():.1%}."
)

# %% tags=["shared", "check"]
# Checked: the GRU guesses the first half only; a second direction mends that
_, gru = plots.drawn(fig, "", "GRU")
_, both = plots.drawn(fig, "", "bidirectional GRU")
_, transformer = plots.drawn(fig, "", "Transformer")
assert abs(gru[:3] - 0.1).max() < 0.012  # loose: four standard deviations of chance
assert gru[3:].min() > 0.9
assert both.min() > 0.9 and transformer.min() > 0.99

# %% tags=["shared", "check"]
# Checked: another last symbol changes no earlier output of the GRU, but of the others
changed = x_six.copy()
changed[:, -1] = np.roll(changed[:, -1], 1, axis=-1)
for name, (contestant, _) in contestants.items():
    before_it, now = outputs[name][:, :-1], as_numpy(contestant(floats(changed)))
    same = np.allclose(before_it, now[:, :-1], atol=1e-5)
    assert same == (name == "GRU")

# %% [markdown] tags=["shared"]
# ## A padding mask lets one model learn every length
#
# Our model was trained on 16 symbols. With more or fewer it fails: it has learned which
# position belongs to which.


# %% tags=["shared"]
def of_length(length, n=500):
    """Sequences of one length and their labels: ``b s i``, ``b s``."""
    digits = symbols(n, length, settings.n_symbols, seed=45)
    return one_hot(digits, settings.n_symbols), np.ascontiguousarray(digits[:, ::-1])


tried = [8, 12, 15, 16, 17, 24]
fixed = [evaluate(model, cross_entropy, of_length(n))["accuracy"] for n in tried]
_, long_maps = attention_maps(model, floats(of_length(24)[0]))
looks = as_numpy(long_maps)[0, :, 0, :16].argmax(axis=-1)  # b q
at_old, at_new = ((looks == n - 1 - np.arange(16)).mean() for n in (16, 24))

# %% tags=["shared", "say"]
score = dict(zip(tried, fixed, strict=True))
say(
    f"Right at length 16: {score[16]:.0%}, at 15: {score[15]:.0%}, "
    f"at 17: {score[17]:.0%}. In sequences of 24, {at_old:.0%} of the first 16 rows "
    f"look at $15 - q$, as in training, and {at_new:.0%} at $23 - q$, where the "
    "symbol is."
)

# %% tags=["shared", "check"]
# Checked: other lengths than the trained one fail, since rows look at the trained place
assert score[16] == 1 and max(score[n] for n in tried if n != 16) < 0.4
assert at_old > 0.8 and at_old > at_new

# %% [markdown] tags=["shared"]
# A batch is one array, so sequences of several lengths are **padded** to the longest.
# Three things are needed:
#
# * a **padding mask** hides the padded keys from every query;
# * the loss and the accuracy count real positions only;
# * the model must be able to know the length. Output $q$ of a sequence of length $n$
#   needs key $n - 1 - q$, the distance of $q$ from the end. So each symbol gets a
#   second one-hot vector beside the first: its distance from the end.

# %% tags=["shared"]
longest = settings.length


def padded(lengths, seed):
    """Inputs ``b s i``, real positions ``b s`` and labels ``b s``, padded to 16."""
    digits = symbols(len(lengths), longest, settings.n_symbols, seed)  # b s
    distance = lengths[:, None] - 1 - np.arange(longest)  # from the end: b s
    real = distance >= 0
    distance = np.maximum(distance, 0)
    codes = one_hot(digits, settings.n_symbols), one_hot(distance, longest)
    inputs = np.concatenate(codes, axis=-1) * real[..., None]  # b s i
    return inputs, real, np.take_along_axis(digits, distance, axis=1)


# %% [markdown] tags=["jax"]
# The mask is `b 1 q k`: one for each sequence, the same for all heads. The mean divides
# by the number of real positions in the batch.


# %% tags=["jax"]
def padded_loss(model, inputs, real, labels):
    """Cross-entropy and accuracy at the real positions ``b s`` of padded sequences."""
    mask = real[:, None, :, None] & real[:, None, None, :]  # b 1 q k
    log_p = jax.nn.log_softmax(model(inputs, mask))
    right = jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]  # b s
    hits = (log_p.argmax(-1) == labels) & real
    n_real = real.sum()
    return -(right * real).sum() / n_real, {"accuracy": hits.sum() / n_real}


# %% [markdown] tags=["shared"]
# We draw lengths from 1 to 16 for the training sequences and train for one epoch.

# %% tags=["shared"]
train_lengths = np.random.default_rng(0).integers(1, longest + 1, size=settings.n_train)
many = Settings(
    n_train=len(train_lengths), batch_size=128, epochs=1, learning_rate=3e-3, warmup=50
)
sizes = settings.model | {"n_inputs": settings.n_symbols + longest}
flexible = build(Predictor, seed=settings.seed, **sizes)
flexible_history = fit(flexible, padded_loss, padded(train_lengths, seed=42), many)

# %% tags=["shared"]
short_lengths = [1, 2, 4, 8, 12, 15, 16]
any_length = [
    evaluate(flexible, padded_loss, padded(np.full(500, n), seed=45))["accuracy"]
    for n in short_lengths
]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Accuracy by length of the sequence. The model trained on 16 symbols is right at 16 only and falls steeply on both sides; the model trained on lengths from 1 to 16 with a padding mask stays near one at all of them."}}
panels = {
    "": {
        "trained on length 16": (tried, fixed),
        "trained on lengths 1 to 16": (short_lengths, any_length),
    }
}
fig = plots.curves(panels, x="length", y="accuracy", marks="o", size=(5.2, 2.9))
fig

# %% tags=["shared", "say"]
say(
    f"Trained for {many.updates} updates on all lengths together, the model is right "
    f"at {min(any_length):.1%} of the positions in the worst of the lengths drawn here."
)

# %% tags=["shared", "check"]
# Checked: one model is right at every length; the one for 16 symbols at 16 only
at, shares = plots.drawn(fig, "", "trained on lengths 1 to 16")
assert at.max() == 16 and shares.min() > 0.97
at, shares = plots.drawn(fig, "", "trained on length 16")
assert shares[at == 16] == 1 and shares[at != 16].max() < 0.4

# %% tags=["shared", "check"]
# Checked: what stands in the padding changes neither loss nor accuracy
inputs, real, targets = padded(train_lengths[:200], seed=46)
other = np.where(real[..., None], inputs, 0.5).astype(np.float32), real, 9 - targets
other[2][real] = targets[real]
expected = evaluate(flexible, padded_loss, (inputs, real, targets))
assert (other[0] != inputs).any() and evaluate(flexible, padded_loss, other) == expected

# %% [markdown] tags=["shared"]
# Try it: leave `real` out of the mask, or let the lengths begin at 9.
#
# **Exercise 2, a change of code.** Let the model rotate the sequence by three positions
# instead of reversing it: output $q$ is the symbol at position $q + 3$, and the last
# three outputs are the first three symbols. Predict accuracy and map, then train it
# with the settings `quick`.

# %% tags=["shared", "answer"]
rotator = build(Predictor, seed=settings.seed, **quick.model)
fit(rotator, cross_entropy, (x_train, np.roll(x_train.argmax(-1), -3, axis=1)), quick)
rotated = np.roll(x_test.argmax(-1), -3, axis=1)
accuracy = evaluate(rotator, cross_entropy, (x_test, rotated))["accuracy"]
_, rotator_maps = attention_maps(rotator, floats(x_few))
source = (np.arange(settings.length) + 3) % settings.length
hits = (as_numpy(rotator_maps)[0, :, 0].argmax(-1) == source).mean()
assert accuracy > 0.99 and hits > 0.95
say(
    f"Accuracy {accuracy:.2%}; {hits:.1%} of the rows look most at $q + 3$. To a "
    "Transformer a rotation is as easy as a reversal: any fixed rearrangement is one "
    "look per output. The map is a diagonal moved by three; its last three rows look "
    "at the first three keys."
)

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** Silencing a key is one test of a map. Another compares with a
# model whose attention weights are all equal. How accurate can such a model be at most
# here, however long it trains? Find a way to give our trained model equal weights, and
# measure.

# %% tags=["shared", "answer"]
# Values are linear in symbol + position code, so their plain mean is the same for every
# order of the symbols: the model can only count, as without positions. To make all
# weights equal, make all scores equal: set the queries to zero.
equal = to_arrays(model)
for kind in ("weight", "bias"):
    equal[f"encoder.blocks.0.attention.qkv.{kind}"][..., : settings.m] = 0
uniform = build(Predictor, **settings.model)
from_arrays(uniform, equal)
accuracy = evaluate(uniform, cross_entropy, data["test"])["accuracy"]
_, flat_maps = attention_maps(uniform, floats(x_few))
np.testing.assert_allclose(as_numpy(flat_maps), 1 / settings.length, atol=1e-6)
assert accuracy < best_guess + 0.005
say(
    f"At most {best_guess:.1%}, the best guess of a model without positions. Ours "
    f"drops to {accuracy:.1%}: it was not trained for equal weights. Here the weights "
    "matter."
)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * A training repeats one update: batch, loss, gradient, clipped step. Validation, best
#   weights and checkpoints stand around this loop.
# * One block with one head reverses sequences without a mistake. Its map is an
#   antidiagonal, and silencing shows that the output depends on it.
# * A map explains only what a test confirms: a model that copies has maps, too, and its
#   output does not depend on them.
# * Without positions the model can only count. A causal GRU cannot know what comes
#   later, however good its memory.
# * Other lengths must be trained: with a padding mask, a loss without the padding, and
#   an input from which the length can be known.

# %% [markdown] tags=["jax"]
# Next comes [finding the odd one out, in JAX](anomaly_jax.ipynb): the same model
# on sets, where there is no order at all.
