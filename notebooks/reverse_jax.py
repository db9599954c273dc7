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
# By the end you can train a Transformer to reverse sequences without a mistake, read in
# its attention map how it does so, write the training loop yourself, stop it and go on,
# and name what the model needs and what others lack. You need: the chapters on the
# encoder and on warm-up.

# %% [markdown] tags=["jax"]
# This page speaks **JAX**. The same page in PyTorch:
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

from helpers import plots, twin, viewer
from helpers.model_jax import Predictor, attention_maps, build, dense
from helpers.runs import runs_folder
from helpers.sequences import one_hot, reverse_data, shuffled, symbols
from helpers.settings import Reverse
from helpers.shapes import as_numpy, check_shape
from helpers.train_jax import evaluate, fit
from helpers.weights import download_link, save_weights, to_arrays

# %% [markdown] tags=["jax"]
# An update of the weights is a pure function in JAX: old weights in, new weights out.
# So the updates of a whole epoch can be one compiled loop.

# %% tags=["jax"]
jax.config.update("jax_default_matmul_precision", "highest")
plots.use_style()
tensor = partial(jnp.asarray, dtype=jnp.float32)
labels = partial(jnp.asarray, dtype=jnp.int32)
boolean = partial(jnp.asarray, dtype=jnp.bool_)
side, other_side = "jax", "torch"
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## The first output needs the last input
#
# A sequence of symbols goes in, the same symbols in reverse order are to come out, all
# at once. To fill its first place, the model has to look at the far end; to fill the
# middle, next door. A model that hands information on from neighbour to neighbour has a
# long way to go; attention can look anywhere in one step.

# %% tags=["shared"]
settings = Reverse()
data = reverse_data(settings)
for name, (x, y) in data.items():
    b = {"train": 50_000, "validation": 1_000, "test": 10_000}[name]
    check_shape(x, "b s i", b=b, s=settings.length, i=settings.n_symbols)
    np.testing.assert_array_equal(y, x.argmax(-1)[:, ::-1])
x, y = data["test"]
print("in: ", *x[0].argmax(-1))
print("out:", *y[0])

# %% [markdown] tags=["shared"]
# Sequences are random, from three seeds for training, validation and test. There are
# $10^{16}$ of them, so none of the test is likely to have been seen, and none has.

# %% tags=["shared"]
seen = {row.tobytes() for row in data["train"][1]}
assert not any(row.tobytes() in seen for row in data["test"][1])

# %% [markdown] tags=["shared"]
# ## One-hot times a matrix is a look-up
#
# The model's first layer multiplies each element by a matrix. Symbols have no size, so
# they go in as **one-hot** vectors: all zeros but for a 1 in the symbol's place. The
# product picks a row,
#
# $$e_a\, W = W_a,$$
#
# so the first layer is a table with a learned vector for each symbol: an **embedding**.
# Libraries offer the look-up as a layer of its own; it computes the same.

# %% tags=["shared"]
model = build(Predictor, seed=settings.seed, **settings.model)
table, bias = (to_arrays(model)[f"embed.{kind}"] for kind in ("weight", "bias"))
embedded = as_numpy(model.embed(tensor(x[:5])))  # b s m
np.testing.assert_allclose(embedded, table[x[:5].argmax(-1)] + bias, atol=1e-6)
n = sum(array.size for array in to_arrays(model).values())
f"{n:,} parameters"

# %% [markdown] tags=["shared"]
# ## A training loop fits into twenty lines
#
# The loss is the cross-entropy, averaged over all $s$ places of all $b$ sequences in a
# batch:
#
# $$\mathrm{loss} = -\frac{1}{b\,s} \sum_{i=1}^{b} \sum_{j=1}^{s} \ln p_{ij},$$
#
# where $p_{ij}$ is what the softmax of the model's outputs (the **logits**) gives to
# the right symbol at place $j$ of sequence $i$.
#
# Beside it we keep the **accuracy**, the share of places where the largest output is
# the right one.

# %% [markdown] tags=["jax"]
# `take_along_axis` picks the right one of the ten logarithms.


# %% tags=["jax"]
def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of a model that puts out logits."""
    logits = model(inputs)
    log_p = jax.nn.log_softmax(logits)
    right = jnp.take_along_axis(log_p, labels[..., None], axis=-1)
    return -right.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


# %% tags=["shared"]
loss, metrics = cross_entropy(model, tensor(x[:500]), labels(y[:500]))
log_p = as_numpy(model(tensor(x[:500]))).astype(np.float64)
log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
by_hand = -np.mean([log_p[b, s, y[b, s]] for b, s in np.ndindex(500, 16)])
np.testing.assert_allclose(as_numpy(loss), by_hand, atol=1e-5)
assert abs(as_numpy(metrics["accuracy"]) - 0.1) < 0.1  # untrained: about guessing
f"loss {by_hand:.3f}, guessing {np.log(10):.3f}"

# %% [markdown] tags=["shared"]
# One update: pick the rows of a batch, compute loss and gradient, clip the gradient,
# let Adam move the weights at the rate of the schedule. The data lie on the device from
# the start, and a batch is a list of row numbers.

# %% [markdown] tags=["jax"]
# `lax.scan` repeats `update`, carries weights and Adam's averages along and collects
# the losses. It is compiled once, and no Python runs between two updates. The chain
# clips, then Adam takes the learning rate of the update that it counts.


# %% tags=["jax"]
def train_by_hand(model, data, batches, learning_rates):
    """All updates of ``batches`` ``n b``; changes the model, returns losses ``n``."""
    clip = optax.clip_by_global_norm(settings.max_grad_norm)
    optimizer = optax.chain(clip, optax.adam(lambda step: learning_rates[step]))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def update(carry, index):
        params, opt_state = carry
        batch = [x[index] for x in data]
        loss, grads = jax.value_and_grad(
            lambda params: cross_entropy(nnx.merge(graph, params, rest), *batch)[0]
        )(params)
        steps, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, steps), opt_state), loss

    carry, losses = jax.lax.scan(update, (params, optimizer.init(params)), batches)
    nnx.update(model, carry[0])
    return losses


# %% tags=["shared"]
epoch = replace(settings, epochs=1)
initial = Path(tempfile.mkdtemp()) / "initial.safetensors"
ours = build(Predictor, seed=settings.seed, **settings.model)
save_weights(ours, initial)
rows = tensor(data["train"][0]), labels(data["train"][1])
by_hand = train_by_hand(
    ours, rows, labels(shuffled(epoch)(0)), tensor(epoch.learning_rates)
)
theirs = build(Predictor, seed=settings.seed, **settings.model)
by_fit = fit(theirs, cross_entropy, data["train"], epoch)["loss"]
np.testing.assert_allclose(as_numpy(by_hand)[:200], by_fit[:200], rtol=1e-3)
f"loss after {epoch.updates} updates: {by_fit[-1]:.3f}"

# %% [markdown] tags=["shared"]
# `fit` of `helpers` does the same updates. What it adds is care: it shows a bar, writes
# loss, accuracy, rate and gradient norm of every update for TensorBoard, measures loss
# and accuracy on the validation data after every epoch, keeps the weights that were
# best there, stops with a sentence if the loss is no longer a number, and saves all it
# needs to go on after every epoch.
#
# **Exercise 1, by hand.** How many updates does the training make, with 50,000
# sequences, a batch of 128 and ten epochs? At which of them is the rate highest?

# %% tags=["shared", "answer"]
assert settings.updates == 10 * (50_000 // 128) == 3900  # 80 left out of each
assert np.argmax(settings.learning_rates) == settings.warmup - 1 == 49  # the 50th
settings.updates

# %% [markdown] tags=["shared"]
# ## It learns to make no mistake
#
# Now the whole training. The run is kept in a folder: `tensorboard --logdir runs` draws
# it, and running the page again loads it (`retrain=True` would repeat it).

# %% tags=["shared"]
folder = runs_folder(f"reverse_{side}")
history = fit(
    model, cross_entropy, data["train"], settings,
    validation=data["validation"], folder=folder,
)  # fmt: skip
on_validation = evaluate(model, cross_entropy, data["validation"])["accuracy"]
on_test = evaluate(model, cross_entropy, data["test"])["accuracy"]
print(f"validation accuracy: {on_validation:.2%}")
print(f"test accuracy: {on_test:.2%}")
print(f"seconds of training: {history['seconds'].sum():.1f}")

# %% [markdown] tags=["shared"]
# Every place of every sequence is right, on data that the training never saw. (The
# seconds include compiling, if there was any, and the validation.)

# %% tags=["shared"]
assert on_validation == on_test == 1
assert on_validation == history["validation_accuracy"].max()
np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)

# %% tags=["shared"] mystnb={"image": {"alt": "Three panels over ten epochs: the loss falls from above two to almost nothing; accuracy reaches one within three epochs; the rate rises steeply at the start and falls along a cosine."}}
updates = (np.arange(settings.updates) + 1) / settings.updates_per_epoch
ends = np.arange(settings.epochs) + 1
panels = {
    "loss": {
        "training": (updates, history["loss"]),
        "validation": (ends, history["validation_loss"]),
    },
    "accuracy": {
        "training": (updates, history["accuracy"]),
        "validation": (ends, history["validation_accuracy"]),
    },
    "learning rate": {"": (updates, history["learning_rate"])},
}
plots.curves(panels, x="epoch", log_y=["loss"], size=(7.2, 2.6))

# %% [markdown] tags=["shared"]
# **Finished runs are reloaded.** A new model, given the same folder, gets the trained
# weights and the history at once. Another learning rate, other data, or a model whose
# code has changed make another run, which is trained, in a folder beside it.

# %% tags=["shared"]
again = build(Predictor, seed=settings.seed, **settings.model)
place = {"folder": folder, "validation": data["validation"]}
found = fit(again, cross_entropy, data["train"], settings, **place)
np.testing.assert_array_equal(found["seconds"], history["seconds"])
for name, array in to_arrays(again).items():
    np.testing.assert_array_equal(array, to_arrays(model)[name])
assert list(folder.glob("*/events.out.tfevents.*")), "nothing for TensorBoard"

# %% [markdown] tags=["shared"]
# **An interrupted run goes on.** We stop a small training as its third epoch begins, as
# Ctrl-C would, and start it again: it ends with the weights of one that was left alone.
# What was done after the last checkpoint is done again.

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
whole = train_small()
with tempfile.TemporaryDirectory() as place:
    try:
        train_small(folder=place, batches=stopped)
    except KeyboardInterrupt:
        print("interrupted")
    resumed = train_small(folder=place)
for name, array in whole.items():
    np.testing.assert_allclose(array, resumed[name], atol=1e-6)

# %% [markdown] tags=["shared"]
# ## Both frameworks follow the same curve
#
# From the same initial weights, read from one file, and with the same batches, JAX and
# PyTorch compute the same training. They round differently in the last digit, and
# training magnifies such differences. We compare the epoch from above with the same
# epoch in the other framework, in a process of its own.

# %% tags=["shared"]
here, there = by_fit, twin.losses(other_side, epoch, initial)
gap = np.abs(here / there - 1)
assert gap[:200].max() < 1e-3 and gap[150:200].max() > gap[:20].max()
f"largest relative gap over 200 updates: {gap[:200].max():.1e}"

# %% tags=["shared"] mystnb={"image": {"alt": "Left: the loss of both frameworks over one epoch; the two lines lie on each other. Right: their relative gap, which stays far below one in a thousand over the first 200 updates."}}
updates = np.arange(len(here))
panels = {
    "loss": {side: (updates, here), other_side: (updates, there)},
    "relative gap": {"gap": (updates, gap), "0.001": (updates, 0 * gap + 1e-3)},
}
plots.curves(panels, x="update", log_y=["relative gap"], size=(7, 2.8))

# %% [markdown] tags=["shared"]
# ## The attention map is the antidiagonal
#
# How does it do it? With one block and one head there is one map to look at. Place $i$
# of the output needs the symbol at place $15 - i$, so that is where row $i$ should
# look: the map should be an antidiagonal.

# %% tags=["shared"] mystnb={"image": {"alt": "Two heat maps of 16 queries by 16 keys, for one sequence and as the mean over 1000. In both the weights lie on the antidiagonal, with some weight beside it."}}
x, y = data["test"]
logits, maps = attention_maps(model, tensor(x[:1000]))
maps = as_numpy(maps)[0, :, 0]  # b q k
titles = ["one sequence", "mean of 1,000"]
plots.heatmaps([maps[0], maps.mean(axis=0)], titles=titles, size=(6.6, 3.2))

# %% [markdown] tags=["shared"]
# So it is: in every one of the thousand sequences each row looks most at its mirror
# image. Some weight falls on the neighbours, further away almost none: neighbouring
# places have similar codes, as the encoder chapter saw, so a query that asks for place
# 9 also finds 8 and 10 a little like it.

# %% tags=["shared"]
mirror = np.arange(settings.length)[::-1]
assert (maps.argmax(axis=-1) == mirror).all()
q, k = np.indices(maps.shape[1:])
by_distance = np.array(
    [maps.mean(0)[abs(k - mirror[q]) == n].mean() for n in range(16)]
)
assert by_distance[0] > 2 * by_distance[1]
assert by_distance[1] > 0.05 > by_distance[2:].max()
by_distance[:5].round(3)

# %% [markdown] tags=["shared"]
# Here are the maps of four sequences, before the training and after it. Choose a row
# and follow its lines. At first no weight is above one fifth: every row looks a little
# at everything. After the training the largest weight of a row is above one half, on
# average.

# %% tags=["shared"]
untrained = build(Predictor, seed=settings.seed, **settings.model)
before, after = (
    as_numpy(attention_maps(m, tensor(x[:4]))[1]) for m in (untrained, model)
)
viewer.attention(
    {"before training": before, "after training": after},
    [[str(digit) for digit in row] for row in x[:4].argmax(-1)],
    about="Attention maps of four sequences before and after the training",
)

# %% [markdown] tags=["shared"]
# All that the model has learned is one small file. Save it if you like; the page
# [Try the model](../book/playground.md) of this book runs it in your browser, where you
# can type digits, switch off the positions, and silence a key.

# %% tags=["shared"]
assert before.max() < 1 / 5 and after.max(axis=-1).mean() > 1 / 2
download_link(model, f"reverse_{side}.safetensors")

# %% [markdown] tags=["shared"]
# ## What the model needs, and what others lack
#
# **Without positions.** Take the codes of the places away, and the model sees a set: it
# knows which symbols there are, and which one stands at a place, not where the others
# are. The best it can do is to guess the symbol that is most frequent among the others.
# Its score can be counted without any model:
#
# $$\mathrm{best} = \mathbb{E}\Big[\tfrac{1}{15} \max_a n_a\Big],$$
#
# with $n_a$ the number of times that $a$ occurs at the fifteen other places.

# %% tags=["shared"]
counts = x.sum(axis=1, keepdims=True) - x  # b s i: all others, seen from each place
best_blind = (counts.max(axis=-1) / (settings.length - 1)).mean()
blind = replace(settings, positions="none", epochs=1)
model_blind = build(Predictor, seed=settings.seed, **blind.model)
fit(model_blind, cross_entropy, data["train"], blind)
accuracy_blind = evaluate(model_blind, cross_entropy, data["test"])["accuracy"]
assert accuracy_blind < best_blind + 0.005
print(f"without positions: {accuracy_blind:.2%}, best possible: {best_blind:.2%}")

# %% [markdown] tags=["shared"]
# **Reading left to right.** A recurrent network, here a GRU (gated recurrent unit),
# hands a state from place to place. When it has to fill the first half of the output,
# it has not yet seen the symbols it needs; there it cannot do better than guess one of
# ten. (One more GRU from right to left would see the rest.)

# %% [markdown] tags=["jax"]
# Flax's cell takes one step. `lax.scan` carries its state along the positions, which
# have to be the first axis for that.


# %% tags=["jax"]
class Recurrent(nnx.Module):
    """A GRU that reads left to right: ``b s i -> b s c``."""

    def __init__(self, n_inputs, m, n_outputs, *, rngs):
        self.cell = nnx.GRUCell(n_inputs, m, rngs=rngs)
        self.output = dense(m, n_outputs, rngs=rngs)
        self.m = m

    def __call__(self, x):
        start = jnp.zeros((len(x), self.m))
        _, states = jax.lax.scan(self.cell, start, x.swapaxes(0, 1))
        return self.output(states.swapaxes(0, 1))


# %% tags=["shared"]
n = settings.n_symbols
reader = build(Recurrent, n, 64, n, seed=settings.seed)
fast = replace(settings, epochs=2, learning_rate=5e-3)
fit(reader, cross_entropy, data["train"], fast)
guess = as_numpy(reader(tensor(x))).argmax(-1)
by_place = (guess == y).mean(axis=0)
half = settings.length // 2
assert by_place[:half].max() < 0.12 and by_place[half:].mean() > 0.2
by_place.round(2)

# %% [markdown] tags=["shared"]
# **Longer sequences.** The model has learned sixteen places; what does it do with more?

# %% tags=["shared"] mystnb={"image": {"alt": "Left: accuracy at each of the sixteen places. The Transformer is right everywhere, the recurrent network guesses in the first half and does better in the second. Right: accuracy of the Transformer by length of the sequence; it is perfect at 16 and falls steeply beyond."}}
lengths, scores = [16, 17, 20, 24], []
for length in lengths:
    long = symbols(1000, length, settings.n_symbols, seed=45)
    pair = one_hot(long, settings.n_symbols), long[:, ::-1].copy()
    scores.append(evaluate(model, cross_entropy, pair)["accuracy"])
exact = (as_numpy(logits).argmax(-1) == y[:1000]).mean(axis=0)
places = np.arange(settings.length)
panels = {
    "by place": {"Transformer": (places, exact), "GRU": (places, by_place)},
    "by length": {"Transformer": (lengths, scores)},
}
plots.curves(panels, x=["place", "length"], y="accuracy", marks="o", size=(7, 2.9))

# %% [markdown] tags=["shared"]
# One symbol more, and less than a third is right. It has not learned to reverse: it has
# learned which place belongs to which, for sixteen places. In a sequence of 24, the
# first sixteen rows look at $15 - i$ far more often than at $23 - i$.

# %% tags=["shared"]
assert scores[0] == 1 and max(scores[1:]) < 1 / 3
print({length: round(score, 3) for length, score in zip(lengths, scores, strict=True)})
long = one_hot(symbols(500, 24, settings.n_symbols, seed=45), settings.n_symbols)
_, maps = attention_maps(model, tensor(long))
looks = as_numpy(maps)[0, :, 0, :16].argmax(axis=-1)  # b q
old, new = ((looks == n - 1 - np.arange(16)).mean() for n in (16, 24))
assert old > 5 * new
f"{old:.0%} of the rows look at 15 - i, {new:.0%} at 23 - i"

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Let the model copy the sequence instead: train it on
# its own inputs as labels, for two epochs. Predict its accuracy, and whether the map
# must become a diagonal.

# %% tags=["shared", "answer"]
copying = replace(settings, epochs=2)
copier = build(Predictor, seed=settings.seed, **settings.model)
pair = data["train"][0], data["train"][0].argmax(-1)
fit(copier, cross_entropy, pair, copying)
right = evaluate(copier, cross_entropy, (x, x.argmax(-1)))["accuracy"]
assert right > 0.99
# It copies; but the residual connection carries each symbol to its own place already,
# so that nothing forces the map to be a diagonal:
_, copies = attention_maps(copier, tensor(x[:1000]))
own = as_numpy(copies)[0, :, 0].argmax(-1) == np.arange(settings.length)
f"accuracy {right:.2%}; {own.mean():.0%} of the rows look most at themselves"

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** How would you change the model, or its training, so that it
# reverses sequences of any length up to 32?

# %% tags=["shared", "answer"]
real = np.arange(32) < np.array([[20], [32]])  # b s: a short and a long sequence
mask = (real[:, :, None] & real[:, None, :])[:, None]  # b 1 q k
mixed = one_hot(symbols(2, 32, settings.n_symbols, seed=46), settings.n_symbols)
other_padding = np.where(real[..., None], mixed, 0.5)
outs = [as_numpy(model(tensor(z), boolean(mask))) for z in (mixed, other_padding)]
np.testing.assert_array_equal(outs[0][real], outs[1][real])
# Train on all lengths up to 32, padded and masked as here, where the padding changes
# nothing; leave the padded places out of the loss; and since the right place depends on
# the length, add a second code that counts places from the end.
f"{mask.sum()} of {mask.size} pairs may look at each other"

# %% [markdown] tags=["shared"]
# ## How long it took
#
# The seconds of training stand above, below the accuracy. For scale: other authors
# trained this very model in 2022 on an RTX 3090 in 26 s with PyTorch and in 7 s with
# JAX ([tutorial 6, University of Amsterdam](https://uvadlc-notebooks.readthedocs.io/)).
#
# ## What to take along
#
# * A training is a short loop; what makes it safe (best weights, checkpoints, a check
#   for numbers that are none) stands around it.
# * One block with one head reverses sequences without a mistake, by looking at the
#   mirror place.
# * Without positions it cannot; a reader from left to right cannot; and lengths that
#   were not trained are not learned.

# %% [markdown] tags=["jax"]
# Next comes [finding the odd one out, in JAX](anomaly_jax.ipynb): the same model
# on sets, where there is no order at all.
