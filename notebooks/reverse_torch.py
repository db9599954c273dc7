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
# # The reverse task
#
# By the end you can write the training loop of a Transformer, use it for data of your
# own, and test whether an attention map explains what a model does. You need: the
# chapters up to *Positions and the whole encoder*.
#
# A German sentence may end with its verb, and an English translation needs this verb
# near the beginning. Reversing a sequence is the simplest task of this kind, and a good
# laboratory, because we know where the model has to look. So here we train our first
# whole Transformer, and test whether attention does what we believe it does.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [reverse_jax](reverse_jax.ipynb).
# Before it comes [the whole encoder, in PyTorch](positions_torch.ipynb).

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
import tempfile
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from helpers.data.sequences import one_hot, reverse_data, shuffled
from helpers.engine import twin
from helpers.engine.runs import runs_folder
from helpers.engine.settings import Reverse, Settings
from helpers.engine.shapes import as_numpy  # any array as a NumPy array
from helpers.engine.weights import download_link, from_arrays, save_weights, to_arrays
from helpers.exercises import check  # of what you write
from helpers.show import drawing, plots, viewer
from helpers.show.prose import (  # say() prints a sentence with computed numbers
    say,
    table,
)
from helpers.torch import (
    Predictor,
    attention_maps,
    build,
    cross_entropy,
    dense,
    evaluate,
    fit,
)

# %% tags=["torch", "experiment"]
# Experiment: device, style, and the short names floats, integers and booleans
device = "cuda" if torch.cuda.is_available() else "cpu"
plots.use_style()
build = partial(build, device=device)  # models are made on this device
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)  # from NumPy
integers = partial(torch.as_tensor, dtype=torch.int64, device=device)
booleans = partial(torch.as_tensor, dtype=torch.bool, device=device)
framework, other_framework = "torch", "jax"
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## The first output needs the last input
#
# Sixteen digits go in, and the same digits come out in reverse order, all at once. So
# output 0 is input 15, at the other end.

# %% tags=["shared"]
settings = Reverse()  # all numbers of this task, shown in a table below
data = reverse_data(settings)  # seeded; of each part: inputs b s i, labels b s
x_train, y_train = data["train"]
x_test, y_test = data["test"]
x_few, y_few = x_test[:1000], y_test[:1000]
validation = data["validation"]  # chooses the best epoch
print("in: ", *x_test[0].argmax(-1))
print("out:", *y_test[0])

# %% [markdown] tags=["shared"]
# There are $10^{16}$ such sequences: a model that memorised the 50,000 for training
# would fail the test.

# %% tags=["shared", "check"]
# Checked: labels are the inputs reversed; no test sequence is in the training data
for inputs, targets in data.values():
    np.testing.assert_array_equal(targets, inputs.argmax(-1)[:, ::-1])
trained_on = {row.tobytes() for row in y_train}
assert len(x_test) == 10_000 and len(trained_on) == 50_000
assert not any(row.tobytes() in trained_on for row in y_test)

# %% [markdown] tags=["torch"]
# The model is the `Predictor` of [the chapter on positions](positions_torch.ipynb),
# with one block and one head. Its layer `embed` turns one-hot digits into embeddings.
# Attention can carry each symbol to its output in a single step:

# %% mystnb={"image": {"alt": "The model on one sequence, from top to bottom: sixteen digits; a box with embed and positions; attention, drawn as sixteen lines that cross, one from each input to the output that needs it; a box with ffn and output; the digits in reverse order. The line from the last input to the first output is highlighted."}} tags=["shared", "figure"]
drawing("reversal")

# %% tags=["shared"]
model = build(Predictor, seed=settings.seed, **settings.model)
print(*(f"{name}={value}" for name, value in settings.model.items()), sep=", ")

# %% [markdown] tags=["shared"]
# ## Training a Transformer is one update, repeated
#
# The new model guesses. To train it, we extend the simple loop of the first chapter.
# Long gradients are **clipped**, shortened to norm 1. The learning rate rises first,
# and then falls along a cosine; the next chapter shows why. At the end we keep the
# weights that were best on **validation data**.

# %% mystnb={"image": {"alt": "The training loop as a cycle: inputs go through the model and, with the labels, into the loss function; the gradients of the loss are clipped and go to the optimizer, which takes the learning rate and changes the model. After each epoch the model is validated."}} tags=["shared", "figure"]
drawing("training-loop")

# %% [markdown] tags=["shared"]
# The loss is `cross_entropy` of the first chapter. From a model, inputs and labels
# `b s` it returns the mean loss over all positions, and `{"accuracy": …}`: how often
# the right symbol has the largest **logit**.

# %% tags=["shared", "say"]
first = evaluate(model, cross_entropy, (x_few, y_few))  # the mean over batches
say(
    f"Before training the loss is {first['loss']:.2f}. Equal probabilities would cost "
    f"$\\ln 10$ = {np.log(10):.2f}."
)

# %% [markdown] tags=["torch"]
# The optimiser of most projects is **AdamW**
# ([`torch.optim`](https://docs.pytorch.org/docs/stable/optim.html)): Adam that also
# shrinks weights a little at each update (*weight decay*; [Loshchilov & Hutter
# 2019](https://arxiv.org/abs/1711.05101)); we shrink only the matrices of dense layers
# and embeddings. A *scheduler* sets the learning rate, which rises during the first
# twentieth of all updates.


# %% tags=["torch"]
def usual_optimizer(model, total, peak=1e-3):
    """AdamW, and a scheduler: 5 % warm-up, then a cosine over ``total`` updates."""
    decay, keep = [], []
    for name, param in model.named_parameters():
        is_matrix = name.endswith("weight") and param.ndim > 1
        (decay if is_matrix else keep).append(param)
    groups = [{"params": decay}, {"params": keep, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, weight_decay=0.1, fused=True)
    w = max(1, total // 20)

    def factor(step):
        """The rate after ``step`` updates, as a part of the peak."""
        # rises to 1 in w updates, then falls along a cosine
        fall = max(0, step + 1 - w) / (total + 1 - w)
        return min(1, (step + 1) / w) * (1 + math.cos(math.pi * fall)) / 2

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


# %% [markdown] tags=["torch"]
# An epoch makes one update for each batch:


# %% tags=["torch"]
def train_epoch(model, optimizer, scheduler, loss_fn, data, batches):
    """One update for each row of ``batches`` ``n b``, in place: the losses ``n``."""
    losses = []
    for rows in batches:
        loss, _ = loss_fn(model, *(x[rows] for x in data))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return torch.stack(losses)


# %% tags=["torch"]
def train_model(model, loss_fn, data, validation, epochs, peak=1e-3):
    """Train, and keep the weights that are best on validation data: the losses."""
    optimizer, scheduler = usual_optimizer(model, sum(map(len, epochs)), peak)
    losses, best = [], -1.0
    for batches in epochs:  # row numbers, n b
        model.train()  # dropout on
        losses.append(train_epoch(model, optimizer, scheduler, loss_fn, data, batches))
        model.eval()  # dropout off
        with torch.no_grad():
            accuracy = loss_fn(model, *validation)[1]["accuracy"]  # in one batch
        if accuracy > best:
            best, kept = accuracy, deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return torch.cat(losses)


# %% [markdown] tags=["torch"]
# Line by line:
#
# | line | what it is for |
# |---|---|
# | `groups` | decay for dense layers and embeddings; not norms, biases, positions |
# | `fused=True` | updates all weights in one call |
# | `zero_grad` | clears the gradients, because `backward` *adds* to them |
# | `clip_grad_norm_` | after `backward`; bounds from 0.5 to 10 are common |
# | `detach` | keeps the loss without its graph; `item` would wait for a GPU |
# | `deepcopy` | a copy, because `state_dict` refers to the weights themselves |

# %% [markdown] tags=["shared"]
# For a first try, we make 400 updates at a high rate:

# %% tags=["shared"]
quick = replace(settings, n_train=200 * 128, epochs=2, learning_rate=3e-3)
by_hand = build(Predictor, seed=1, **quick.model)
train_data, validation_data = (
    (floats(inputs), integers(labels))
    for inputs, labels in (data["train"], data["validation"])
)
batches = shuffled(quick)  # batches(epoch): seeded row numbers, n b
epochs = [integers(batches(epoch)) for epoch in range(quick.epochs)]
peak = quick.learning_rate
losses = train_model(by_hand, cross_entropy, train_data, validation_data, epochs, peak)

# %% mystnb={"image": {"alt": "The loss over 400 updates: at first it stays at the level of guessing, marked by a horizontal line; then it falls to about one hundredth."}} tags=["shared", "figure"]
title, updates = "The model learns to reverse", np.arange(quick.updates)
level = np.full(quick.updates, np.log(10))
lines = {"training": (updates, as_numpy(losses)), "guessing, ln 10": (updates, level)}
fig = plots.curves({title: lines}, x="update", y="loss", size=(6.2, 2.8))
fig

# %% tags=["shared"]
written = as_numpy(by_hand(floats(x_test[:1]))).argmax(-1)  # b s
print("in:   ", *x_test[0].argmax(-1))
print("model:", *written[0])

# %% tags=["shared", "say"]
lost = as_numpy(losses)
by_loop = evaluate(by_hand, cross_entropy, validation)["accuracy"]
say(
    f"For {(lost > 2).argmin()} updates the loss stays near guessing, and one might "
    f"give up; then it falls to {lost[-1]:.2f}. Of the validation outputs, "
    f"{by_loop:.1%} are right."
)

# %% [markdown] tags=["torch"]
# From now on `fit` of `helpers` runs this loop, with the settings' warm-up, and without
# weight decay, because nothing here overfits. It also checks that model, data and
# settings match, stops at NaN or infinity, and keeps checkpoints and a history.

# %% tags=["torch", "check"]
# Checked: both loops learn; `train_epoch` with the optimiser of `fit` has its losses
by_fit = build(Predictor, seed=1, **quick.model)
fitted = fit(by_fit, cross_entropy, data["train"], quick, validation=validation)
assert first["loss"] > np.log(10)
np.testing.assert_allclose(first["accuracy"], 1 / 10, atol=0.05)  # loose: chance
_, loss = plots.drawn(fig, title, "training")
assert loss[-1] < 0.1 * loss[0] and loss[:20].min() > 2  # loose: it has learned
assert fitted["loss"][-1] < 0.1 * fitted["loss"][0]  # loose: it has learned
best_of_fit = fitted["validation_accuracy"].max()
np.testing.assert_allclose(by_loop, best_of_fit, atol=0.01)  # loose: rounding tips some
again = build(Predictor, seed=1, **quick.model)
adam = torch.optim.Adam(again.parameters(), lr=1.0)
schedule = torch.optim.lr_scheduler.LambdaLR(adam, quick.learning_rates.__getitem__)
same = train_epoch(again, adam, schedule, cross_entropy, train_data, epochs[0][:50])
np.testing.assert_allclose(as_numpy(same), fitted["loss"][:50], rtol=1e-3)

# %% [markdown] tags=["shared"]
# ## The model learns to reverse without a mistake
#
# To ask how the model does it, we want one that makes no mistakes. So here is a longer
# run: four epochs, all sequences, a lower rate.
#
# Validation data choose the best epoch, so accuracy on them may be a little too good.
# The final number comes from the **test data**, which chose nothing.

# %% tags=["shared"]
folder = runs_folder(f"reverse_{framework}")  # fit keeps the run here
history = fit(
    model, cross_entropy, data["train"], settings, validation=validation, folder=folder
)
on_validation = evaluate(model, cross_entropy, validation)["accuracy"]
on_test = evaluate(model, cross_entropy, data["test"])["accuracy"]

# %% tags=["shared", "say"]
n_parameters = sum(array.size for array in to_arrays(model).values())
say(
    f"**Not one of {y_test.size:,} outputs is wrong.** At the end, validation loss and "
    "training loss are nearly equal: the model has not overfitted.\n\n"
    f"* size of the model: {n_parameters:,} parameters\n"
    f"* updates: {settings.updates:,}; seconds of training: "
    f"{history['seconds'].sum():.1f}\n"
    f"* validation accuracy: {on_validation:.2%}; test accuracy: {on_test:.2%}"
)

# %% tags=["shared", "check"]
# Checked: all validation and test sequences are right; after two epochs above 97 %
assert on_validation == on_test == history["validation_accuracy"].max() == 1
np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)
assert settings.updates == 4 * (50_000 // 128) == 1560
assert round(settings.updates_per_epoch / settings.warmup) == 8  # as the table says
assert history["accuracy"][2 * settings.updates_per_epoch :].min() > 0.97
assert history["validation_accuracy"][1:].min() > 0.97
assert history["loss"][0] > 2 and history["loss"][-1] < 0.02
ends = history["validation_loss"][-1], history["loss"][-100:].mean()
np.testing.assert_allclose(*ends, rtol=0.2)

# %% [markdown] tags=["shared"]
# ## The attention map is an antidiagonal
#
# How does the model do it? With one block and one head there is one attention map, with
# a row for each output. Output $q$ needs the symbol at position $15 - q$, so we expect
# row $q$ to look at key $k = 15 - q$: an antidiagonal.

# %% tags=["shared"]
_, maps = attention_maps(model, floats(x_few))
maps = as_numpy(maps)[0, :, 0]  # b q k
mirror = np.arange(settings.length)[::-1]  # the key that each row should look at

# %% mystnb={"image": {"alt": "A heat map of 16 queries by 16 keys, the mean over 1,000 sequences. The weights lie on the antidiagonal, with some weight beside it."}} tags=["shared", "figure"]
titles = ["Row q looks at key 15 − q"]
plots.heatmaps([maps.mean(axis=0)], titles=titles, size=(4.2, 3.2))

# %% tags=["shared", "say"]
away = abs(np.arange(settings.length) - mirror[:, None])  # how far each key is from it
mean_map = maps.mean(axis=0)  # q k
on, beside, beyond = (
    mean_map[at].sum() / settings.length for at in (away == 0, away == 1, away > 1)
)
say(
    "In each of the 1,000 sequences, every row looks most at its mirror position. On "
    f"average it puts {on:.0%} of its weight there, and {beside:.0%} on the two "
    "neighbours of this position together."
)

# %% tags=["shared", "experiment"]
# Experiment: the maps of four sequences, before and after the training
untrained = build(Predictor, seed=settings.seed, **settings.model)
before = as_numpy(attention_maps(untrained, floats(x_few))[1])[:, :4]  # l b h q k
after = maps[None, :4, None]  # l b h q k

# %% tags=["shared", "figure"]
viewer.attention(
    {"before training": before, "after training": after},
    [[str(digit) for digit in row] for row in x_few[:4].argmax(-1)],
    about="Attention maps of four sequences before and after the training",
)

# %% [markdown] tags=["shared"]
# The neighbours get weight because their position codes are similar (an extra tests
# this). Play with our model: [try the models](../book/playground.md).

# %% tags=["shared", "check"]
# Checked: in every row of every sequence, the mirror position has the largest weight
assert (maps.argmax(axis=-1) == mirror).all()
assert on > beside and beside > 0.2
assert beyond < 0.05  # loose: little
assert before.max() < 0.15 and after.max(axis=-1).mean() > 0.5

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** Let the model rotate the sequence: output $q$ is the symbol
# at position $q + 3$, and the last three outputs are the first three symbols. Draw the
# map that you expect. Then train a model with the settings `quick`.

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
    "The map is a diagonal moved by three; its last three rows look at the first three "
    f"keys. The trained model has an accuracy of {accuracy:.2%}, and {hits:.1%} of its "
    "rows look most at $q + 3$. To a Transformer a rotation is as easy as a reversal: "
    "at the length that it was trained on, any fixed rearrangement takes one look for "
    "each output."
)

# %% [markdown] tags=["shared"]
# ## Without positions the model can only count
#
# The map depends on the position codes. Without them the model sees a multiset: how
# often each symbol occurs, but not where. Each output knows its own symbol, and needs
# one of the other fifteen ($15 - q$ is never $q$). The best guess is the most frequent
# of these. It is right with probability
#
# $$\mathrm{best} = \mathbb{E}\Big[\tfrac{1}{15} \max_a n_a\Big],$$
#
# where $n_a$ is how often symbol $a$ occurs among the fifteen, and $\mathbb{E}$ is the
# mean over positions and sequences.

# %% tags=["shared"]
blind = build(Predictor, seed=settings.seed, **quick.model)
blind.positions.table = 0 * blind.positions.table  # no codes
_ = fit(blind, cross_entropy, data["train"], quick)

# %% tags=["shared", "say"]
counts = x_test.sum(axis=1, keepdims=True) - x_test  # b s i
best_guess = (counts.max(axis=-1) / (settings.length - 1)).mean()
accuracy_blind = evaluate(blind, cross_entropy, data["test"])["accuracy"]
say(
    f"After {quick.updates} updates without positions, {accuracy_blind:.2%} of the "
    f"outputs are right; the best possible guess has {best_guess:.2%} on average. So "
    "this model is not badly trained: it has learned all that it can know."
)

# %% tags=["shared", "check"]
# Checked: without positions the model is no better than the best guess, and close to it
assert best_guess - 0.03 < accuracy_blind < best_guess + 0.005
assert fitted["accuracy"][-10:].min() > 0.99

# %% [markdown] tags=["shared"]
# ## Attention is not explanation until it is tested
#
# The map looks like an explanation. But it shows how much of each value is mixed in,
# not whether the output depends on it. In recurrent text classifiers, [Jain and Wallace
# (2019)](https://arxiv.org/abs/1902.10186) found that very different weights can give
# the same output: "Attention is not explanation". [Wiegreffe and Pinter
# (2019)](https://arxiv.org/abs/1908.04626) replied that it can be tested: do other
# seeds find the same weights? And does the model need them? [Serrano and Smith
# (2019)](https://arxiv.org/abs/1906.03731) erased the largest ones.
#
# To **silence** a key is to hide it from a query by the mask, so that the softmax
# spreads its weight over the others. In every row we silence the *top key*, the one
# with the largest weight:


# %% tags=["shared"]
def looked_at(model):
    """The key with the largest weight in every row: ``b q``."""
    return as_numpy(attention_maps(model, floats(x_few))[1])[0, :, 0].argmax(-1)


def accuracy_without(model, silenced, labels):
    """Accuracy of a model whose query ``q`` does not see ``silenced`` ``b q k``."""
    logits = as_numpy(model(floats(x_few), booleans(~silenced[:, None])))  # b 1 q k
    return (logits.argmax(-1) == labels).mean()


top_key = np.arange(settings.length) == looked_at(model)[..., None]  # b q k

# %% [markdown] tags=["shared"]
# A model trained to **copy** should not need them: the residual connection already
# carries each symbol to its output. In both tasks we silence the top key, its
# neighbours, or another key. We also check whether the quick run of `fit` (in a check
# above, another seed) found the same top keys.

# %% tags=["shared", "experiment"]
# Experiment: a copying model, three ways to silence keys, and two seeds compared
keys = np.arange(settings.length)
copier = build(Predictor, seed=0, **quick.model)
fit(copier, cross_entropy, (x_train, x_train.argmax(-1)), quick)
tasks = {"reverse": (model, y_few), "copy": (copier, x_few.argmax(-1))}
shift = np.random.default_rng(0).integers(1, settings.length, size=y_few.shape)
evidence = {}
for task, (one, labels) in tasks.items():
    top = looked_at(one)
    other = (top + shift) % settings.length
    distance = abs(keys - top[..., None])  # b q k
    # nothing, the top key, its neighbours, a random other key
    choices = [distance < 0, distance == 0, distance == 1, keys == other[..., None]]
    evidence[task] = [accuracy_without(one, hide, labels) for hide in choices]
agree = (looked_at(model) == looked_at(by_fit)).mean()  # a long and a quick run

# %% tags=["shared", "say"]
head = ["accuracy of", "nothing silenced", "top key", "its neighbours", "another key"]
lines = [[task, *(f"{x:.1%}" for x in found)] for task, found in evidence.items()]
say(table(head, *lines))

# %% tags=["shared", "say"]
plain, without_top, without_beside, without_other = evidence["reverse"]
say(
    "The reversing map passes: without the top keys, its model is right only by "
    f"chance, and the quick run has the same in {agree:.0%} of the rows (by chance, "
    f"{1 / 16:.0%} would agree). The model does not need their neighbours, although "
    f"these have {beside:.0%} of the weight. "
    "The copying map fails: hiding the top keys changes nothing. (Silenced rows are "
    "new to a model: this tests what it needs, not what it could learn to do without.)"
)

# %% tags=["shared", "check"]
# Checked: the map explains the reversing model and not the copying one
assert plain == 1 and without_beside > 0.99
assert without_top < 0.15 and without_other > 0.9 and agree > 0.9
assert without_top == accuracy_without(model, top_key, y_few)
logits = floats(model(floats(x_few), booleans(~top_key[:, None])))  # b s c
loss, _ = cross_entropy(lambda _: logits, x_few, integers(y_few))
assert loss > 1.5 * np.log(10)  # loose: sure and wrong, as question 4 says
beside_it = np.clip(looked_at(model) + np.array([-1, 1])[:, None, None], 0, 15)  # 2 b q
symbols = np.take_along_axis(x_few.argmax(-1)[None], beside_it, axis=-1)
assert (as_numpy(logits).argmax(-1) == symbols).any(axis=0).mean() > 0.8  # loose: most
assert min(evidence["copy"]) > 0.99

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** What is the highest accuracy that a model with one
# block and equal attention weights can reach? Find a way to make all attention weights
# of our trained model equal, and measure. `to_arrays(model)` is a dictionary of its
# weights, by names that both frameworks share here, and `from_arrays(model, arrays)`
# puts them back. The queries are the first $m$ columns of
# `"encoder.blocks.0.attention.qkv.weight"` (inputs × outputs), and of the `bias` there.

# %% tags=["shared", "answer"]
equal = to_arrays(model)
for kind in ("weight", "bias"):
    equal[f"encoder.blocks.0.attention.qkv.{kind}"][..., : settings.m] = 0
uniform = build(Predictor, **settings.model)
from_arrays(uniform, equal)
logits, flat_maps = attention_maps(uniform, floats(x_few))
accuracy = (as_numpy(logits).argmax(-1) == y_few).mean()
np.testing.assert_allclose(as_numpy(flat_maps), 1 / settings.length, atol=1e-6)
assert accuracy < best_guess + 0.005
say(
    f"At most {best_guess:.1%}, the best guess of a model without positions: the "
    "values are linear in symbol plus position code, so their plain mean is the same "
    "for every order of the symbols. Zero queries make all scores equal. Our model "
    f"then drops to {accuracy:.1%}, because it was not trained for equal weights. Here "
    "the weights matter."
)

# %% [markdown] tags=["shared"]
# ## In your own code, write the usual loop
#
# The two strands of DNA are read in opposite directions: the second is the first one
# reversed, with A and T exchanged, and C and G (the *reverse complement*). Sequences
# need a **vocabulary**, the list of their symbols:

# %% tags=["shared"]
number = {symbol: i for i, symbol in enumerate("ACGT")}  # the vocabulary
draw = np.random.default_rng(0)  # your sequences; here random ones
strands = ["".join(draw.choice([*"ACGT"], 16)) for _ in range(7000)]


def encoded(strands):
    """Inputs ``b s i`` and labels ``b s`` of strands of one length."""
    ids = np.array([[number[symbol] for symbol in strand] for strand in strands])
    labels = 3 - ids[:, ::-1]  # exchanges A (0) and T (3), C (1) and G (2)
    return floats(np.eye(4)[ids]), integers(labels)


# %% [markdown] tags=["shared"]
# To work without our helpers, copy `usual_optimizer`, `train_epoch` and `train_model`,
# and from earlier chapters `Predictor` with its parts, `build` and `cross_entropy`.

# %% tags=["shared"]
sizes = {"n_inputs": 4, "m": 32, "n_outputs": 4, "n_blocks": 1, "n_heads": 1, "f": 64}
complement = build(Predictor, **sizes, seed=1)
own, held_out = encoded(strands[:6400]), encoded(strands[6400:])
orders = [draw.permutation(6400).reshape(100, 64) for _ in range(4)]  # n b
epochs = [integers(order) for order in orders]
losses = train_model(complement, cross_entropy, own, held_out, epochs, peak=3e-3)

# %% tags=["shared", "say"]
strand = "GATTACAGATTACAGA"
inputs, labels = encoded([strand])
ids = as_numpy(complement(inputs)).argmax(-1)[0]
written = "".join("ACGT"[i] for i in ids)
say(f"For `{strand}`, which is none of these strands, the model writes `{written}`.")

# %% tags=["shared", "check"]
# Checked: labels spell the reverse complement, and the model writes it for new strands
spelled = "".join("ACGT"[i] for i in as_numpy(labels)[0])
assert spelled == written == "TCTGTAATCTGTAATC" and strand not in strands
assert not {*strands[:6400]} & {*strands[6400:]}
assert cross_entropy(complement, *held_out)[1]["accuracy"] > 0.98

# %% [markdown] tags=["torch"]
# This is the loop of most projects, and later chapters refer to it. PyTorch Lightning
# and the `Trainer` of Hugging Face contain it, with checkpoints, logs and several GPUs:
# you write the model and its loss. [Your own data](data_torch.ipynb) adds a loader
# for data that do not fit into memory, [When training fails](debugging_torch.ipynb)
# accumulated gradients, half precision and compilation.

# %% [markdown] tags=["shared"]
# Strands of several lengths need padding (see the extra on any length). These are our
# settings for the digits, and what to try first for a task of your own:

# %% tags=["shared", "say"]
choices = """n_train|too many to memorise|all that you have
batch_size|steady gradients, many updates|32 to 256
epochs|until no mistake is left|while the validation loss falls
learning_rate|cautious|3e-4 to 1e-3
warmup|one eighth of the first epoch|a twentieth of all updates
max_grad_norm|limits the harm of one bad batch|1
n_blocks|each output needs one look|2 to 6
n_heads|one map to read|heads of 64 features
m|enough for ten symbols|128 to 768
f|twice m|four times m
dropout|nothing to memorise|0.1; 0.3 if data are few"""
lines = [line.split("|") for line in choices.splitlines()]
lines = [[f"`{name}`", f"{getattr(settings, name):,}", *why] for name, *why in lines]
say(table(["setting", "value", "why here", "try first for another task"], *lines))

# %% [markdown] tags=["shared"]
# ## Extra: The neighbours get weight because their codes are similar
#
# Why does each row look beside the mirror position, too? Neighbours have similar codes,
# as the chapter on positions showed, so a query that matches position 9 also matches 8
# and 10. If this is the reason, the weight must follow the codes when we shuffle their
# table before training:

# %% tags=["shared"]
half = np.random.default_rng(0).permutation(8)
# position p gets the code that position code[p] had; mirror positions stay mirror
# positions, so the task is as hard as before
code = np.concatenate([half, 15 - half[::-1]])
mixed = build(Predictor, seed=1, **quick.model)
order = np.concatenate([code, np.arange(16, 512)])  # the table has 512 rows
mixed.positions.table = mixed.positions.table[order]
_ = fit(mixed, cross_entropy, data["train"], quick)

# %% tags=["shared", "say"]
mixed_map = as_numpy(attention_maps(mixed, floats(x_few))[1]).mean(axis=1)[0, 0]  # q k
codes_away = abs(code - code[mirror][:, None])  # between key and mirror, in codes
in_sequence = mixed_map[(away == 1) & (codes_away > 1)].mean()
in_code = mixed_map[(codes_away == 1) & (away > 1)].mean()
say(
    f"Now each neighbour in the sequence gets {in_sequence:.1%} of the weight, and "
    f"each position with a neighbouring code {in_code:.0%}."
)

# %% tags=["shared", "check"]
# Checked: the weight beside the mirror position follows the shuffled codes
assert (mixed_map.argmax(axis=-1) == mirror).all()
assert in_code > 0.1 and in_sequence < 0.01  # loose: nearly nothing

# %% [markdown] tags=["shared"]
# ## Extra: To reverse any length, one head must be told the end
#
# Real sequences have many lengths, and our Transformer knows one. A batch is one array,
# so its sequences are **padded**, filled up to the longest. A **padding mask** hides
# the padded keys from every query, and the loss counts real positions only.
#
# Output $q$ of a sequence of length $n$ needs key $n - 1 - q$, but the score of a key
# depends on the two positions and their symbols alone, and not on $n$. Row 1 of `3 7`
# needs key 0, row 1 of `3 7 5` needs key 1. But its scores for these two keys are the
# same in both, so in one of them it looks more at the wrong key, and must guess from a
# mixture. We tell the model how far the end is, by a second one-hot vector (zero with
# `told=False`).


# %% tags=["shared"]
def padded(digits, lengths, *, n_symbols=10, told=True):
    """Inputs ``b s i``, real positions ``b s``, labels ``b s`` of padded sequences."""
    s = digits.shape[1]
    distance = lengths[:, None] - 1 - np.arange(s)  # from the end: b s
    real = distance >= 0
    distance = np.maximum(distance, 0)
    codes = one_hot(digits, n_symbols), told * one_hot(distance, s)
    inputs = np.concatenate(codes, axis=-1) * real[..., None]  # b s i
    return inputs, real, np.take_along_axis(digits, distance, axis=1)


# %% [markdown] tags=["torch"]
# The mask is `b 1 1 k`: one for each sequence, the same for all heads and queries.
# PyTorch's loss leaves out the label -100.


# %% tags=["torch"]
def padded_loss(model, inputs, real, labels):
    """Cross-entropy and accuracy at the real positions ``b s`` of padded sequences."""
    mask = real[:, None, None]  # b 1 1 k
    logits = model(inputs, mask)
    counted = labels.masked_fill(~real, -100)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), counted.flatten())
    hits = (logits.argmax(-1) == labels) & real
    return loss, {"accuracy": hits.sum() / real.sum()}


# %% [markdown] tags=["shared"]
# We train two models on lengths from 1 to 16; one is told the distance, one is not.

# %% tags=["shared", "experiment"]
# Experiment: 400 updates on lengths from 1 to 16, not told and told the end
digits, few_digits = x_train[: quick.n_train].argmax(-1), x_few.argmax(-1)
lengths = np.random.default_rng(0).integers(1, 17, size=len(digits))
many = Settings(
    n_train=len(digits), batch_size=128, epochs=2, learning_rate=3e-3, warmup=50
)
of_any_length = {}
for told in (False, True):
    one = build(Predictor, seed=settings.seed, **quick.model | {"n_inputs": 10 + 16})
    fit(one, padded_loss, padded(digits, lengths, told=told), many)
    of_any_length[told] = one

# %% tags=["shared", "experiment"]
# Experiment: the accuracy of the three models at seven lengths
tried = [1, 2, 4, 8, 12, 15, 16]


def by_length(model, n_inputs, told):
    """Accuracy at each of the lengths ``tried``."""
    found = []
    for n in tried:
        inputs, real, labels = padded(few_digits, np.full(1000, n), told=told)
        padded_few = inputs[..., :n_inputs], real, labels
        found.append(evaluate(model, padded_loss, padded_few)["accuracy"])
    return found


accuracies = {
    "trained on 16": by_length(model, 10, False),
    "1 to 16, not told the end": by_length(of_any_length[False], 26, False),
    "1 to 16, told the end": by_length(of_any_length[True], 26, True),
}

# %% mystnb={"image": {"alt": "Accuracy by length. The model trained on length 16 is right at 16, and mostly wrong from 2 to 15. The model trained on lengths 1 to 16 without knowing the end is right at length 1 and falls to about one third. The model that is told the distance from the end stays at one everywhere."}} tags=["shared", "figure"]
title = "One block reverses every length only if it is told the end"
panels = {title: {name: (tried, found) for name, found in accuracies.items()}}
fig = plots.curves(panels, x="length", y="accuracy", marks="o", size=(6.2, 3.2))
fig.axes[0].set_xticks(tried)
fig

# %% tags=["shared", "say"]
at_16, untold, told = accuracies.values()
say(
    f"The model that is told the end has {min(told):.1%} even at its worst length, the "
    f"other one {untold[-1]:.0%} at length 16. Our first model has {at_16[-2]:.0%} at "
    "length 15: all rows but the first still look at key $15 - q$, but the symbol is "
    "at $14 - q$."
)

# %% tags=["shared", "check"]
# Checked: only the model told the end reverses every length; padding changes no result
lines = "trained on 16", "1 to 16, not told the end", "1 to 16, told the end"
at_16, untold, told = (plots.drawn(fig, title, line)[1] for line in lines)
assert at_16[-1] == 1 and at_16[1:-1].max() < 0.5
assert untold[0] > 0.9 and untold[2:].max() < 0.9
assert told.min() > 0.97
inputs, real, _ = padded(few_digits, np.full(1000, 15))
mask = real[:, None, None]  # b 1 1 k
_, shorter = attention_maps(model, floats(inputs[..., :10]), booleans(mask))
looks = as_numpy(shorter)[0, :, 0, 1:15].argmax(axis=-1)  # b q
assert (looks == 15 - np.arange(1, 15)).mean() > 0.9
inputs, real, labels = padded(few_digits, lengths[:1000])
filled = np.where(real[..., None], inputs, 0.5).astype(np.float32)
other = filled, real, np.where(real, labels, 9 - labels)
expected = evaluate(of_any_length[True], padded_loss, (inputs, real, labels))
assert (filled != inputs).any() and (other[2] != labels).any()
assert evaluate(of_any_length[True], padded_loss, other) == expected

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** Could a model with two blocks find the end without being told?
# How could the first block help the second? Compute the mean of the position codes of
# the first $n$ positions, for each $n$. Then, if you like, train a model with
# `"n_blocks": 2` and `told=False`. (The two experiments above show how to train, and
# how to measure: `by_length`.)

# %% tags=["shared", "answer"]
codes = as_numpy(model.positions.table)[:16]  # s m
means = codes.cumsum(axis=0) / np.arange(1, 17)[:, None]  # of the first n positions
apart = np.linalg.norm(means[:, None] - means, axis=-1)[~np.eye(16, dtype=bool)]
assert apart.min() > 0.05
say(
    "Yes, it could. The mask shows each query only the real keys. So with equal "
    "weights the first block can compute the mean of their position codes, and this "
    f"mean tells the length: those of two lengths are at least {apart.min():.2f} "
    f"apart, when one code has the size {np.linalg.norm(codes[0]):.0f}. The queries of "
    "the second block are made from it. Whether a trained model finds the length in "
    "this way, only a test of its maps could tell."
)

# %% [markdown] tags=["shared"]
# ## Extra: A one-way GRU cannot know what comes later
#
# What would a model do that reads in order, as was usual before the Transformer? A
# **GRU** ([gated recurrent unit](https://arxiv.org/abs/1406.1078)) reads symbol by
# symbol and keeps what it has read in a **state** of fixed size. From left to right it
# is **causal**: in the first half of the output, symbol $s - 1 - q$ still lies ahead,
# and no training can change that. In the second half the symbol has been read, and must
# be found in the state. (A *bidirectional* GRU has a second cell, which reads from
# right to left, so that at every position one of its states has read the symbol.)

# %% [markdown] tags=["torch"]
# PyTorch's [`nn.GRU`](https://docs.pytorch.org/docs/stable/generated/torch.nn.GRU.html)
# contains the loop over the positions. `batch_first` makes it take `b s i`.


# %% tags=["torch"]
class Recurrent(nn.Module):
    """A GRU from left to right: ``b s i -> b s c``."""

    def __init__(self, n_inputs, m, n_outputs):
        super().__init__()
        self.cell = nn.GRU(n_inputs, m, batch_first=True)
        self.output = dense(m, n_outputs)

    def forward(self, x):
        states, _ = self.cell(x)  # b s m
        return self.output(states)


# %% [markdown] tags=["shared"]
# We train it on sequences of 6 symbols, with 400 updates. Its state has 64 features,
# its learning rate is 0.06.

# %% tags=["shared", "experiment"]
# Experiment: a GRU, and its accuracy at each position
short = replace(quick, length=6, m=64, learning_rate=0.06)
parts = reverse_data(short)
inputs, labels = parts["test"]
recurrent = build(Recurrent, 10, short.m, 10, seed=1)
fit(recurrent, cross_entropy, parts["train"], short)
outputs = as_numpy(recurrent(floats(inputs)))  # b s c
right_at = (outputs.argmax(-1) == labels).mean(axis=0)

# %% tags=["shared", "say"]
say(
    f"The GRU has {right_at[3:].mean():.0%} right in the second half and "
    f"{right_at[:3].mean():.0%} in the first, where it cannot know. And what it has "
    "read must fit into a state of fixed size. The Transformer need not keep the "
    "symbols: it looks."
)

# %% tags=["shared", "check"]
# Checked: the one-way GRU guesses the first half; no later symbol changes its outputs
assert abs(right_at[:3] - 0.1).max() < 0.02  # loose: six standard deviations of chance
assert right_at[3:].min() > 0.9
for one, x, causal in ((recurrent, inputs, True), (by_fit, x_few, False)):
    changed = x.copy()
    changed[:, -1] = np.roll(changed[:, -1], 1, axis=-1)
    old, new = (as_numpy(one(floats(some)))[:, :-1] for some in (x, changed))
    assert np.allclose(old, new, atol=1e-5) == causal

# %% [markdown] tags=["shared"]
# ## Extra: Runs can be kept, resumed and repeated
#
# Long runs get interrupted, and a result should not depend on the framework. With a
# `folder`, `fit` **resumes** them after their last finished epoch, and **reloads**
# finished ones. It also writes events for TensorBoard: `tensorboard --logdir runs`,
# called beside this notebook, draws all runs, also while they train. From the same
# weights, on the same batches, the other framework **repeats** a run, up to rounding.

# %% tags=["shared"]
# All that the model has learned fits into one small file
download_link(model, f"reverse_{framework}.safetensors")

# %% tags=["shared", "experiment"]
# Experiment: a brief run on four digits, here and in a process of the other framework
brief = replace(quick, length=4, n_train=100 * 128, warmup=10)
four = reverse_data(brief)["train"]
initial = Path(tempfile.mkdtemp()) / "initial.safetensors"
whole = build(Predictor, seed=1, **brief.model)
save_weights(whole, initial)
here = fit(whole, cross_entropy, four, brief)["loss"]
there = twin.losses(other_framework, Predictor, cross_entropy, four, brief, initial)
halved = int(np.argmax(here < here[0] / 2))  # the first update with half of the loss
gap = abs(here / there - 1)[:halved].max()

# %% tags=["shared", "say"]
say(
    f"In a brief run on four digits, the loss has halved after {halved} updates. Until "
    f"then the losses of the two frameworks differ by at most {gap:.2%}. Over "
    "many updates the two drift apart, because each update builds on the rounding "
    "errors of those before."
)

# %% tags=["shared", "check"]
# Checked: the frameworks agree to 5 % while the loss halves; finished runs are reloaded
import contextlib

assert halved > 30  # the loss falls while they are compared
np.testing.assert_allclose(  # loose: rounding, other on each machine
    here[:halved], there[:halved], rtol=5e-2
)

reloaded = build(Predictor, seed=settings.seed, **settings.model)
with contextlib.redirect_stdout(None):  # `fit` says that the run is finished
    saved = {"validation": validation, "folder": folder}
    same_history = fit(reloaded, cross_entropy, data["train"], settings, **saved)
np.testing.assert_array_equal(same_history["seconds"], history["seconds"])
for name, array in to_arrays(reloaded).items():
    np.testing.assert_array_equal(array, to_arrays(model)[name])
assert list(folder.glob("*/events.out.tfevents.*")), "nothing for TensorBoard"


# %% tags=["shared", "check"]
# Checked: an interrupted and resumed run ends with the weights of an uninterrupted one
def stopped(epoch):  # Ctrl-C before the second epoch
    if epoch == 1:
        raise KeyboardInterrupt
    return shuffled(brief)(epoch)


with tempfile.TemporaryDirectory() as elsewhere:
    run = {"folder": elsewhere}
    try:
        again = build(Predictor, seed=1, **brief.model)
        fit(again, cross_entropy, four, brief, batches=stopped, **run)
    except KeyboardInterrupt:
        again = build(Predictor, seed=1, **brief.model)
    with contextlib.redirect_stdout(None):  # `fit` says where it goes on
        resumed = fit(again, cross_entropy, four, brief, **run)
np.testing.assert_allclose(resumed["loss"], here, rtol=1e-3)
for name, array in to_arrays(whole).items():
    np.testing.assert_allclose(array, to_arrays(again)[name], atol=1e-6)

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Two parts of every training: the loss, and one update with clipping. `check` tries
# each on random arrays, and says whether it is right, or what is wrong. Some of the
# logits are in the thousands, as half-trained models can have them.


# %% tags=["shared", "your-turn"]
def my_cross_entropy(logits, labels):
    """Mean cross-entropy over all positions: ``b s c, b s ->`` one number.

    ``labels`` has the number of the right class; logits may be 1,000 and more. The
    result is a 0-d array, not a float.
    """
    ...


check("reverse.cross_entropy", my_cross_entropy)


# %% tags=["shared", "your-turn"]
def my_training_step(w, x, y, learning_rate, max_norm):
    """One step of gradient descent, clipped: ``i o, n i, n o -> i o``, the new ``w``.

    The model is ``x @ w``; its loss is the mean of the squared differences from ``y``,
    over all rows and columns. A gradient with a norm above ``max_norm`` is shortened to
    it; a shorter one stays. ``w`` itself is not changed.
    """
    ...


check("reverse.training_step", my_training_step)


# %% tags=["torch", "answer"]
def my_cross_entropy(logits, labels):
    log_p = logits.log_softmax(dim=-1)  # b s c
    return -log_p.gather(-1, labels[..., None]).mean()


def my_training_step(w, x, y, learning_rate, max_norm):
    w = w.clone().requires_grad_()
    nn.functional.mse_loss(x @ w, y).backward()
    nn.utils.clip_grad_norm_(w, max_norm)
    return w.detach() - learning_rate * w.grad


assert check("reverse.cross_entropy", my_cross_entropy)
assert check("reverse.training_step", my_training_step)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** The loss of a new model has stayed at the level of guessing for a hundred
# updates. What do you do?
#
# <details><summary>Stop the run, and look for the bug.</summary>
#
# **No.** Tempting, because most losses fall at once. But correct code can stay on a
# plateau, too: here, until queries match keys, values are of no use.
#
# </details>
# <details><summary>Wait: it will fall later, as ours did.</summary>
#
# **No.** It may. But with shuffled labels it would stay there for ever.
#
# </details>
# <details><summary>Let it learn one small batch by heart.</summary>
#
# **Right.** A bug and a plateau look alike. If it stays at guessing even there, look
# for a bug; else wait.
#
# </details>
#
# **2.** One key has nearly all of a query's weight. You hide it, and the output stays
# right. How can that be?
#
# <details><summary>What the output needs reaches it by another way, too.</summary>
#
# **Right.** By the residual connection, for instance, or from other keys, which have
# the weight now. A weight says what is mixed in, not what is used.
#
# </details>
# <details><summary>The mask hides the key, but its value is still added.</summary>
#
# **No.** It sounds plausible, since a mask acts on scores. But it makes the weight 0,
# and with it the value's share.
#
# </details>
# <details><summary>The map must have been computed wrongly.</summary>
#
# **No.** Whoever reads weights as importance will suspect an error. But later layers
# need not use what attention brings.
#
# </details>
#
# **3.** You keep the weights of the epoch with the best validation accuracy, and report
# this accuracy. On average, it is …
#
# <details><summary>… fair: the model was not trained on these data.</summary>
#
# **No.** A common mistake: its weights were not, but the epoch was chosen on them, and
# the best of several noisy numbers is biased.
#
# </details>
# <details><summary>… a little too high.</summary>
#
# **Right.** The epoch that wins owes a part of it to chance. Test data that chose
# nothing have no such bias.
#
# </details>
# <details><summary>… too low: the model has never seen these data.</summary>
#
# **No.** Accuracy in training may be higher. But unseen data are what you ask about, so
# this is no bias.
#
# </details>
#
# **4.** Without the top key of every row, one output in ten is right, as by chance.
# Where is the loss of our model then?
#
# <details><summary>Above that of equal probabilities.</summary>
#
# **Right.** The softmax gives the weight to the neighbours, and the model is as sure of
# their symbols as ever. Sure and wrong costs more than a guess.
#
# </details>
# <details><summary>At that of equal probabilities: it guesses.</summary>
#
# **No.** Guessing is right as often. But accuracy does not say how sure a model is; the
# loss does.
#
# </details>
# <details><summary>Between that and 0: other keys help a little.</summary>
#
# **No.** It gets their values, but in training these never stood for the missing one.
#
# </details>
#
# **5.** (From the extra on any length.) Our model, trained on 16 symbols only, gets 15
# and a masked padding. Where do its rows look?
#
# <details><summary>At the mirrored symbols, as a program would.</summary>
#
# **No.** That is the rule we have in mind. But nothing in training rewarded it for
# other lengths.
#
# </details>
# <details><summary>At all keys alike, as in a new model.</summary>
#
# **No.** The length is new to it. But scores come from positions and symbols, and it
# has met all of these.
#
# </details>
# <details><summary>All but the first where they always looked.</summary>
#
# **Right.** Row q has learned to match position 15 − q, and no query knows the end. Of
# 15 symbols, the right one is at 14 − q. Only the first row's key is hidden.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Training repeats one update: batch, loss, gradient, clipped step. The loop of this
#   chapter is the one to copy.
# * One block with one head reverses without a mistake; its map is an antidiagonal. Any
#   rearrangement at a fixed length takes one look for each output.
# * A map explains only what a test confirms: silence its keys.
# * Without positions the model can only count.

# %% [markdown] tags=["torch"]
# Next comes [warm-up, in PyTorch](warmup_torch.ipynb): why the learning rate rises
# first, and what happens to a deeper model if it does not.
