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
# By the end you can write the training loop of a Transformer, train a model until it
# makes no mistake, test whether its attention map explains what it does, and
# distinguish what a model can never compute from what it has not learned yet. You need:
# the chapters up to *Positions and the whole encoder*, and *Warm-up*.
#
# An output often depends on an input that is far away. A German sentence may end with
# its verb, and an English translation needs this verb near the beginning. Reversing a
# sequence is the simplest such task, and a good laboratory: we know the right output,
# and where the model has to look for it. So we can see whether attention does what we
# believe it does.

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
from helpers.prose import say, table  # say() prints a sentence with computed numbers
from helpers.runs import runs_folder
from helpers.sequences import one_hot, reverse_data, shuffled
from helpers.settings import Reverse, Settings
from helpers.shapes import as_numpy  # any array as a NumPy array
from helpers.train_jax import evaluate, fit
from helpers.weights import download_link, from_arrays, save_weights, to_arrays

# %% [markdown] tags=["shared"]
# `floats`, `integers` and `booleans` turn NumPy arrays into arrays of the framework.

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
# A sequence of 16 digits goes in. The same digits come out in reverse order, all at
# once. Output 0 is input 15, at the other end; output 7 is input 8, the next position.
# Attention reaches both in one step.

# %% tags=["shared"]
settings = Reverse()  # all numbers of this task, shown in a table below
data = reverse_data(settings)  # seeded; of each part: inputs b s i, labels b s
x_train, y_train = data["train"]
x_test, y_test = data["test"]
print("in: ", *x_test[0].argmax(-1))
print("out:", *y_test[0])

# %% [markdown] tags=["shared"]
# The sequences are random. There are $10^{16}$ of them, so a model that memorised its
# 50,000 training sequences would fail on the test data.

# %% tags=["shared", "check"]
# Checked: labels are the inputs reversed; no test sequence is in the training data
for inputs, targets in data.values():
    np.testing.assert_array_equal(targets, inputs.argmax(-1)[:, ::-1])
trained_on = {row.tobytes() for row in y_train}
assert len(x_test) == 10_000 and len(trained_on) == 50_000
assert not any(row.tobytes() in trained_on for row in y_test)

# %% [markdown] tags=["jax"]
# The model is the `Predictor` of [the chapter on positions](positions_jax.ipynb). Its
# layer `embed` turns each digit, a **one-hot** vector with a 1 at the index of the
# digit, into the row of a learned table: an **embedding**.

# %% tags=["shared"]
model = build(Predictor, seed=settings.seed, **settings.model)
x_few, y_few = x_test[:1000], y_test[:1000]

# %% [markdown] tags=["shared"]
# ## Training repeats one update
#
# The loop of the first chapter has four parts: data, model, loss function and
# optimiser. This page adds three. The gradients are clipped, and each update has its
# own learning rate. After each epoch, the **validation data** show whether the model
# still improves, and the best weights are kept.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The training loop as a cycle: inputs go through the model and, with the labels, into the loss function; the gradients of the loss are clipped and go to the optimizer, which takes the learning rate and changes the model. After each epoch the model is validated."}}
diagrams.training_loop()

# %% [markdown] tags=["shared"]
# The loss is the cross-entropy, averaged over the $s$ positions of the $b$ sequences in
# a batch:
#
# $$\mathrm{loss} = -\frac{1}{b\,s} \sum_{u=0}^{b-1} \sum_{q=0}^{s-1} \ln p_{uq},$$
#
# where $p_{uq}$ is the probability of the right symbol at position $q$ of sequence $u$:
# the softmax of the model's ten outputs there, the **logits**. The **accuracy** is the
# share of positions where the right symbol has the largest logit.

# %% [markdown] tags=["jax"]
# At each position, `take_along_axis` picks the logarithm of the right probability.


# %% tags=["jax"]
def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of a model that returns logits."""
    logits = model(inputs)
    log_p = jax.nn.log_softmax(logits)
    right = jnp.take_along_axis(log_p, labels[..., None], axis=-1)
    return -right.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


# %% tags=["shared"]
first = evaluate(model, cross_entropy, (x_few, y_few))  # the mean over batches

# %% tags=["shared", "say"]
say(
    f"Before training the loss is {first['loss']:.2f}. Giving each of the ten "
    f"symbols the probability 1/10 would cost $\\ln 10$ = {np.log(10):.2f}."
)

# %% tags=["shared", "check"]
# Checked: the loss is the mean of -ln p; an untrained model is no better than guessing
log_p = as_numpy(model(floats(x_few))).astype(np.float64)
log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
of_label = [log_p[u, q, y_few[u, q]] for u, q in np.ndindex(y_few.shape)]
np.testing.assert_allclose(first["loss"], -np.mean(of_label), atol=1e-5)
assert first["loss"] > np.log(10)
np.testing.assert_allclose(first["accuracy"], 1 / 10, atol=0.05)  # loose: chance

# %% [markdown] tags=["jax"]
# `chain` clips the gradients before Adam gets them. Adam counts its updates, and looks
# up the learning rate by this count. `nnx.jit` compiles the gradient, and the update
# that changes model and optimiser in place.


# %% tags=["jax"]
def train_by_hand(model, loss_fn, data, validation, epochs, rates, max_grad_norm=1.0):
    """One update per learning rate; the model ends with its best weights: losses."""
    clip = optax.clip_by_global_norm(max_grad_norm)
    adam = optax.chain(clip, optax.adam(lambda count: rates[count]))
    optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
    gradient = nnx.jit(nnx.value_and_grad(loss_fn, has_aux=True))
    apply = nnx.jit(nnx.Optimizer.update)
    losses, best = [], -1.0
    for batches in epochs:  # row numbers, n b
        model.train()  # dropout on
        for rows in batches:
            (loss, _), grads = gradient(model, *(x[rows] for x in data))
            apply(optimizer, model, grads)
            losses.append(loss)
        model.eval()  # dropout off
        accuracy = loss_fn(model, *validation)[1]["accuracy"]
        if accuracy > best:
            best, kept = accuracy, nnx.clone(model)
    nnx.update(model, nnx.state(kept, nnx.Param))
    return jnp.stack(losses)


# %% [markdown] tags=["shared"]
# The rest of the book trains with `fit` of `helpers`, which contains such a loop. To be
# sure, we train two models from the same initial weights, one with the loop above and
# one with `fit`. A quick run of 400 updates tolerates a higher learning rate.

# %% tags=["shared"]
quick = replace(
    settings, n_train=200 * settings.batch_size, epochs=2, learning_rate=3e-3
)
by_hand, by_fit = (build(Predictor, seed=1, **quick.model) for _ in range(2))
initial = Path(tempfile.mkdtemp()) / "initial.safetensors"
save_weights(by_hand, initial)
rows, held_back = (
    (floats(inputs), integers(labels))
    for inputs, labels in (data["train"], data["validation"])
)
# the seeded batches of each epoch, rows of the data: n b
epochs = [integers(shuffled(quick)(epoch)) for epoch in range(quick.epochs)]
rates = floats(quick.learning_rates)
losses = train_by_hand(by_hand, cross_entropy, rows, held_back, epochs, rates)
checked = {"validation": data["validation"]}
fitted = fit(by_fit, cross_entropy, data["train"], quick, **checked)

# %% tags=["shared", "say"]
say(f"Both losses fall from {fitted['loss'][0]:.2f} to about {fitted['loss'][-1]:.2f}.")

# %% tags=["shared", "check"]
# Checked: the loop on this page and fit compute the same losses and accuracy
assert fitted["loss"][-1] < 0.1 * fitted["loss"][0]  # loose: it has learned
np.testing.assert_allclose(  # later, rounding may have grown
    as_numpy(losses)[:50], fitted["loss"][:50], rtol=1e-3
)
best = evaluate(by_hand, cross_entropy, data["validation"])["accuracy"]
best_of_fit = fitted["validation_accuracy"].max()
np.testing.assert_allclose(best, best_of_fit, atol=0.01)  # loose: rounding tips a few

# %% [markdown] tags=["jax"]
# `fit` runs a whole epoch without Python, as one `lax.scan`, so its update is a pure
# function. Its *carry*, a nested tuple of arrays (a pytree), holds all that changes:
# parameters, Adam's averages, and the rest, for example the random state of dropout.
# The structure of the model does not change and stays outside. `nnx.split` takes a
# model apart into structure and arrays; `nnx.merge` puts them together again.

# %% [markdown] tags=["shared"]
# `fit` also checks that model, data and settings match. It stops if a loss or a
# gradient is NaN or infinite, and writes checkpoints and a history for TensorBoard.

# %% [markdown] tags=["shared"]
# ## The model learns to reverse without a mistake
#
# Now the long run. An epoch goes through the training sequences once, in batches of
# 128, and leaves out what does not fill the last batch.

# %% tags=["shared", "say"]
choices = """n_train|too many to memorise|all that you have
batch_size|steady gradients, many updates|32 to 256
epochs|two would do; ten make the map sharper|while the validation loss falls
learning_rate|safe; quick runs tolerate six times as much|3e-4 to 1e-3
warmup|one eighth of the first epoch|a twentieth of all updates
max_grad_norm|bounds rare large steps|1
n_blocks|each output needs one look|2 to 6
n_heads|one map to read|heads of 64 features
m|enough for ten symbols and 16 positions|128 to 768, small for few examples
dropout|too many sequences to memorise|0.1; 0.3 if data are few"""
lines = [line.split("|") for line in choices.splitlines()]
lines = [[f"`{name}`", f"{getattr(settings, name):,}", *why] for name, *why in lines]
say(table(["setting", "value", "why here", "try first for another task"], *lines))

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** How many updates does this run make? In which update is the
# learning rate highest, and in which is it half of that for the first time? (The
# schedule is that of the warm-up chapter.)

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
# `fit` keeps the run in a folder; `tensorboard --logdir runs` draws it while it trains.
# The validation data choose the best epoch, so accuracy on them may be a little too
# good. The final number comes from the **test data**, which have chosen nothing.

# %% tags=["shared"]
folder = runs_folder(f"reverse_{side}")
kept = {"validation": data["validation"], "folder": folder}
history = fit(model, cross_entropy, data["train"], settings, **kept)
on_validation = evaluate(model, cross_entropy, data["validation"])["accuracy"]
on_test = evaluate(model, cross_entropy, data["test"])["accuracy"]

# %% tags=["shared", "say"]
n_parameters = sum(array.size for array in to_arrays(model).values())
say(
    f"The model has {n_parameters:,} parameters. "
    f"Validation accuracy: {on_validation:.2%}, test accuracy: {on_test:.2%} (of "
    f"{len(y_test):,} sequences, {y_test.size:,} outputs), seconds of training: "
    f"{history['seconds'].sum():.1f} on this machine."
)

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

# %% tags=["shared", "say"]
say(
    f"After two epochs {history['validation_accuracy'][1]:.1%} of the outputs are "
    f"right, and the loss falls on to {history['validation_loss'][-1]:.4f}. Validation "
    "loss and training loss stay nearly equal: the model has not overfitted."
)

# %% tags=["shared", "check"]
# Checked: all validation and test sequences are right; after two epochs above 97 %
assert on_validation == on_test == history["validation_accuracy"].max() == 1
np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)
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
ends = history["validation_loss"][-1], history["loss"][-100:].mean()
np.testing.assert_allclose(*ends, rtol=0.2)

# %% [markdown] tags=["shared"]
# ## The attention map is an antidiagonal
#
# **Play first**: [try the models](../book/playground.md) in your browser. At which key
# does each output look? Move the slider that sharpens the softmax: is the output still
# right when nearly all weight is on one key?
#
# With one block and one head there is one attention map: weights `q k`, a row for each
# output. Output $q$ needs the symbol at position $15 - q$. So we expect row $q$ to look
# at key $k = 15 - q$: an antidiagonal.

# %% tags=["shared"]
_, maps = attention_maps(model, floats(x_few))
maps = as_numpy(maps)[0, :, 0]  # b q k
mirror = np.arange(settings.length)[::-1]  # the key that each row should look at
away = abs(np.arange(settings.length) - mirror[:, None])  # how far each key is from it

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two heat maps of 16 queries by 16 keys, for one sequence and as the mean over 1,000. In both the weights lie on the antidiagonal, with some weight beside it."}}
titles = ["one sequence", "mean of 1,000"]
plots.heatmaps([maps[0], maps.mean(axis=0)], titles=titles, size=(6.6, 3.2))

# %% tags=["shared", "say"]
mean_map = maps.mean(axis=0)  # q k
on, beside, beyond = (
    mean_map[at].sum() / settings.length for at in (away == 0, away == 1, away > 1)
)
say(
    "In each of the 1,000 sequences, every row looks most at its mirror position. On "
    f"average it puts {on:.0%} of its weight there, {beside:.0%} on the neighbours of "
    f"this position, and {beyond:.1%} on all other keys together."
)

# %% [markdown] tags=["shared"]
# Choose a sequence and a row.

# %% tags=["shared"]
untrained = build(Predictor, seed=settings.seed, **settings.model)
before = as_numpy(attention_maps(untrained, floats(x_few))[1])[:, :4]  # l b h q k
after = maps[None, :4, None]  # l b h q k

# %% tags=["shared", "figure"]
viewer.attention(
    {"before training": before, "after training": after},
    [[str(digit) for digit in row] for row in x_few[:4].argmax(-1)],
    about="Attention maps of four sequences before and after the training",
)

# %% tags=["shared", "say"]
say(
    f"Before training no weight exceeds {before.max():.2f}. After it the largest "
    f"weight of a row is {after.max(-1).mean():.2f} on average."
)

# %% tags=["shared", "check"]
# Checked: after training, every row has its largest weight on the antidiagonal
assert (maps.argmax(axis=-1) == mirror).all()
assert on > beside and beside > 0.2
assert beyond < 0.05  # loose: little
assert before.max() < 0.15 and after.max(axis=-1).mean() > 0.5

# %% [markdown] tags=["shared"]
# **Why do the neighbours get weight?** Neighbouring positions have similar codes, as
# the chapter on positions showed, so a query that matches position 9 also matches 8 and
# 10. If this is the reason, the weight must follow the codes. To test this, we shuffle
# the table of codes and train again. (Positions $p$ and $15 - p$ stay partners, so the
# task is as hard as before.)

# %% tags=["shared"]
half = np.random.default_rng(0).permutation(8)
code = np.concatenate([half, 15 - half[::-1]])  # position p gets the code of code[p]
mixed = build(Predictor, seed=1, **quick.model)
order = np.concatenate([code, np.arange(16, 512)])  # the table has 512 rows
mixed.positions.table = mixed.positions.table[order]
fit(mixed, cross_entropy, data["train"], quick)
mixed_map = as_numpy(attention_maps(mixed, floats(x_few))[1]).mean(axis=1)[0, 0]  # q k
codes_away = abs(code - code[mirror][:, None])  # between key and mirror, in codes
in_sequence = mixed_map[(away == 1) & (codes_away > 1)].mean()
in_code = mixed_map[(codes_away == 1) & (away > 1)].mean()

# %% tags=["shared", "say"]
say(
    f"With the shuffled table, a neighbour in the sequence gets {in_sequence:.1%} of "
    f"the weight, and a position with a neighbouring code {in_code:.0%}. So similar "
    "codes are the reason."
)

# %% tags=["shared", "check"]
# Checked: with shuffled codes the weight follows the codes and not the sequence
assert (mixed_map.argmax(axis=-1) == mirror).all()
assert in_code > 0.1 and in_sequence < 0.01  # loose: nearly nothing

# %% tags=["shared"]
# All that the model has learned fits into one small file
download_link(model, f"reverse_{side}.safetensors")

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Let the model rotate the sequence: output $q$ is the
# symbol at position $q + 3$, and the last three outputs are the first three symbols.
# Predict accuracy and map, then train with the settings `quick`.

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
    "Transformer a rotation is as easy as a reversal: at the length that it was "
    "trained on, any fixed rearrangement takes one look for each output. The map is a "
    "diagonal moved by three; its last three rows look at the first three keys."
)

# %% [markdown] tags=["shared"]
# ## Attention is not explanation until it is tested
#
# The map looks like an explanation. But it shows how much of each value is mixed in,
# not whether the output depends on it. In text classifiers, [Jain and Wallace
# (2019)](https://arxiv.org/abs/1902.10186) found that very different attention weights
# can give the same output: "Attention is not explanation". [Wiegreffe and Pinter
# (2019)](https://arxiv.org/abs/1908.04626) replied that this depends on what one calls
# an explanation, and can be tested: do other seeds find the same weights? Is the model
# still right without these weights?
#
# For contrast we train a second task, to **copy** the sequence. There the residual
# connection already carries each symbol to its own output.

# %% tags=["shared"]
right = {"reverse": y_few, "copy": x_few.argmax(-1)}  # b q
pairs = {"reverse": [model, by_fit], "copy": []}  # a long and a quick run, other seeds
for seed in (0, 1):
    copier = build(Predictor, seed=seed, **quick.model)
    fit(copier, cross_entropy, (x_train, x_train.argmax(-1)), quick)
    pairs["copy"].append(copier)

# %% [markdown] tags=["shared"]
# To **silence** a key is to hide it from one query by the mask; the softmax spreads the
# weight over the remaining keys. In every row we silence the key with the largest
# weight (the *top key*), or its neighbours, or a random other key.


# %% tags=["shared"]
def looked_at(model):
    """The key with the largest weight in every row: ``b q``."""
    return as_numpy(attention_maps(model, floats(x_few))[1])[0, :, 0].argmax(-1)


def accuracy_without(model, silenced, labels):
    """Accuracy of a model whose query ``q`` does not see ``silenced`` ``b q k``."""
    logits = as_numpy(model(floats(x_few), booleans(~silenced[:, None])))
    return (logits.argmax(-1) == labels).mean()


# %% tags=["shared"]
shift = np.random.default_rng(0).integers(1, settings.length, size=y_few.shape)
keys = np.arange(settings.length)
evidence = {}
for task, (one, other_seed) in pairs.items():
    top = looked_at(one)
    other = (top + shift) % settings.length
    distance = abs(keys - top[..., None])  # b q k
    # nothing, the top key, its neighbours, a random other key
    choices = [distance < 0, distance == 0, distance == 1, keys == other[..., None]]
    evidence[task] = [accuracy_without(one, hide, right[task]) for hide in choices]
    evidence[task].append((top == looked_at(other_seed)).mean())

# %% tags=["shared", "say"]
head = ["model", "nothing silenced", "top key", "its neighbours", "a random other key"]
lines = [[task, *(f"{x:.1%}" for x in found)] for task, found in evidence.items()]
say(
    'The columns show the accuracy. The last one, "seeds agree", is the share of '
    "rows in which two models from different seeds look most at the same key (by "
    f"chance about {1 / 16:.0%})."
)
say(table([*head, "seeds agree"], *lines))

# %% tags=["shared", "say"]
plain, without_top, without_beside, without_other, agree = evidence["reverse"]
say(
    "The reversing model passes: other seeds find the same keys (its second seed is "
    "the quick run), and without its top key it guesses. So the output needs this key. "
    f"Without the neighbours, which have {beside:.0%} of the weight, it stays right: "
    "it does not need them. So the map shows from where each output takes its symbol. "
    "(To look *most* at the right key is not enough, the weight must be large: flatten "
    "the softmax on [Try the models](../book/playground.md), and outputs become "
    "wrong.) The copying model fails: hiding its top key changes nothing, and other "
    "seeds look elsewhere."
)

# %% tags=["shared", "check"]
# Checked: the map explains the reversing model and not the copying one
assert plain == without_beside == 1
assert without_top < 0.15 and without_other > 0.9 and agree > 0.9
*copied, agree = evidence["copy"]
assert min(copied) > 0.99
assert agree < 0.5  # loose: chance, other for each pair of seeds

# %% [markdown] tags=["shared"]
# ## Without positions the model can only count
#
# Without the position codes the model sees a set. Each position knows its own symbol,
# and which symbols the sequence contains, but not where they are. The best possible
# guess is the most frequent of the other fifteen symbols. It is right with probability
#
# $$\mathrm{best} = \mathbb{E}\Big[\tfrac{1}{15} \max_a n_a\Big],$$
#
# where $n_a$ counts symbol $a$ at the other positions, and $\mathbb{E}$ averages over
# all sequences and positions.

# %% tags=["shared"]
counts = x_test.sum(axis=1, keepdims=True) - x_test  # b s i
best_guess = (counts.max(axis=-1) / (settings.length - 1)).mean()
blind = build(Predictor, seed=settings.seed, **quick.model)
blind.positions.table = 0 * blind.positions.table  # no codes
fit(blind, cross_entropy, data["train"], quick)
accuracy_blind = evaluate(blind, cross_entropy, data["test"])["accuracy"]

# %% tags=["shared", "say"]
say(
    f"After {quick.updates} updates without positions, {accuracy_blind:.2%} of the "
    f"outputs are right. The best possible guess is right in {best_guess:.2%} on "
    "average; a difference of a tenth of a point may be chance. With positions, after "
    f"as many updates, {fitted['accuracy'][-10:].mean():.0%} are right."
)

# %% tags=["shared", "check"]
# Checked: without positions the model is no better than the best guess, and close to it
assert best_guess - 0.03 < accuracy_blind < best_guess + 0.005
assert fitted["accuracy"][-10:].min() > 0.99

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** A different test of a map replaces all its weights by equal
# ones. How accurate can a model with equal weights be at most, however long it trains?
# Find a way to make all attention weights of our trained model equal, and measure. (The
# queries are the first $m$ outputs of the layer `qkv`.)

# %% tags=["shared", "answer"]
# Values are linear in symbol + position code, so their plain mean is the same for every
# order of the symbols: the model can only count, as without positions. To make all
# weights equal, make all scores equal: set the queries to zero.
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
# ## A one-way GRU cannot know what comes later
#
# A GRU ([gated recurrent unit](https://arxiv.org/abs/1406.1078)) reads symbol by symbol
# and keeps what it has read in a **state** of fixed size. If it reads from left to
# right, it is **causal**: its state at position $q$ depends on the symbols $0$ to $q$
# only. In the first half of the output, where symbol $s - 1 - q$ still lies ahead, no
# training can change that. In the second half the symbol has been read, and the
# question is whether the state has kept it.
#
# So a mistake can have two reasons: the symbol has not been read yet, or it has been
# forgotten. To separate them, we train on short and on long sequences. And we add a GRU
# that reads from right to left and concatenate the states: a **bidirectional** GRU.

# %% [markdown] tags=["jax"]
# Flax's cell makes one step. `lax.scan` carries the state along the positions, which
# have to be the first axis; with `reverse` it begins at the last one. In your
# own code, `nnx.RNN` and `nnx.Bidirectional` do this.


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
        states = [  # a cell can be scanned, because it changes nothing of its own
            jax.lax.scan(cell, start, steps, reverse=backwards)[1]  # s b m
            for cell, backwards in zip(self.cells, (False, True), strict=False)
        ]
        return self.output(jnp.concatenate(states, axis=-1).swapaxes(0, 1))


# %% [markdown] tags=["shared"]
# All models make 400 updates. For the GRUs we tried five learning rates and took the
# best, which is not the highest. The Transformer for 16 symbols is `by_fit`. Its rate
# was not tuned, so do not compare speeds.


# %% tags=["shared"]
def by_position(model, inputs, labels):
    """Share of right outputs at each position: ``s``."""
    return (as_numpy(model(floats(inputs))).argmax(-1) == labels).mean(axis=0)


kinds = {(6, "GRU"): False, (6, "bidirectional GRU"): True, (16, "GRU"): False}
contestants, tests, right_at = {}, {}, {}
for (length, name), both in kinds.items():
    own = replace(quick, length=length, learning_rate=0.06)  # of .003 .01 .03 .06 .1
    parts = reverse_data(own)
    tests[length] = parts["test"]
    contestants[length, name] = build(Recurrent, 10, 64, 10, both=both, seed=1)
    fit(contestants[length, name], cross_entropy, parts["train"], own)
contestants[16, "Transformer"] = by_fit
for (length, name), one in contestants.items():
    right_at[length, name] = by_position(one, *tests[length])

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Accuracy by position for sequences of 6 and of 16 symbols. The GRU from left to right is at one in ten in the first half of both; in the second half it is nearly right for 6 symbols, but not for 16. The bidirectional GRU is nearly right everywhere for 6 symbols. The Transformer is right everywhere for 16."}}
panels = {"6 symbols": {}, "16 symbols": {}}
for (length, name), share in right_at.items():
    panels[f"{length} symbols"][name] = np.arange(length), share
fig = plots.curves(
    panels, x="position q of the output", y="accuracy", marks="o", share_y=True,
    size=(7, 2.9),
)  # fmt: skip
fig

# %% tags=["shared", "say"]
gru, both = right_at[6, "GRU"], right_at[6, "bidirectional GRU"]
say(
    f"**6 symbols.** In the first half, the one-way GRU is right in "
    f"{gru[:3].mean():.0%} of the cases, as by guessing; in the second half, in "
    f"{gru[3:].mean():.0%}. "
    "So it keeps what it has read, and fails only where it cannot know. The "
    f"bidirectional GRU reaches {both.mean():.0%}."
)
say(
    "**16 symbols.** In the second half, the one-way GRU reaches only "
    f"{right_at[16, 'GRU'][8:].mean():.0%}: in 400 updates it has not learned to keep "
    "so many symbols. The Transformer reaches "
    f"{right_at[16, 'Transformer'].mean():.1%}."
)

# %% tags=["shared", "check"]
# Checked: the one-way GRU guesses the first half; no later symbol changes its outputs
gru, both = (plots.drawn(fig, "6 symbols", n)[1] for n in ("GRU", "bidirectional GRU"))
assert abs(gru[:3] - 0.1).max() < 0.012  # loose: four standard deviations of chance
assert gru[3:].min() > 0.9 and both.min() > 0.9
_, gru = plots.drawn(fig, "16 symbols", "GRU")
assert abs(gru[:8] - 0.1).max() < 0.02  # loose: chance
assert gru[8:].mean() < 0.8  # loose: differs between machines
_, transformer = plots.drawn(fig, "16 symbols", "Transformer")
assert transformer.min() > 0.98
for (length, name), one in contestants.items():
    inputs = tests[length][0]
    changed = inputs.copy()
    changed[:, -1] = np.roll(changed[:, -1], 1, axis=-1)
    old, new = (as_numpy(one(floats(x)))[:, :-1] for x in (inputs, changed))
    assert np.allclose(old, new, atol=1e-5) == (name == "GRU")

# %% [markdown] tags=["shared"]
# ## To reverse any length, one block must be told the end
#
# Sequences have different lengths, but a batch is one array. So they are **padded**,
# filled up to the longest. A **padding mask** hides the padded keys from every query
# (ours also hides padded queries), and loss and accuracy count real
# positions only.
#
# Is this enough? Output $q$ of a sequence of length $n$ needs key $n - 1 - q$. So the
# model has to know how far position $q$ is from the end. One block cannot find out: its
# queries and keys are made before any position has seen another. So we tell the model,
# by a second one-hot vector beside the first. With `told=False` this vector is zero.


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
# We train a model that is told the distance and one that is not, on lengths from 1 to
# 16.

# %% tags=["shared"]
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

# %% tags=["shared"]
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

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Accuracy by length. The model trained on length 16 is right at 16 only. The model trained on lengths 1 to 16 without knowing the end is right at length 1 and falls to about one third. The model that is told the distance from the end stays at one everywhere."}}
title = "One block reverses every length only if it is told the end"
panels = {title: {name: (tried, found) for name, found in accuracies.items()}}
fig = plots.curves(panels, x="length", y="accuracy", marks="o", size=(6.2, 3.2))
fig.axes[0].set_xticks(tried)
fig

# %% tags=["shared", "say"]
at_16, untold, told = accuracies.values()
say(
    f"The model trained on length 16 has {at_16[-1]:.0%} at length 16, but only "
    f"{at_16[-2]:.0%} at length 15. The model that is not told the end has "
    f"{untold[0]:.0%} at length 1, where there is nothing to reverse, and "
    f"{untold[-1]:.0%} at length 16. The model that is told the end has "
    f"{min(told):.1%} even at its worst length."
)

# %% tags=["shared", "check"]
# Checked: only the model that is told the distance from the end reverses every length
lines = "trained on 16", "1 to 16, not told the end", "1 to 16, told the end"
at_16, untold, told = (plots.drawn(fig, title, line)[1] for line in lines)
assert at_16[-1] == 1 and at_16[1:-1].max() < 0.5
assert untold[0] > 0.9 and untold[2:].max() < 0.9
assert told.min() > 0.97

# %% tags=["shared", "check"]
# Checked: at length 15 the rows still look at key 15 - q; padding changes no result
inputs, real, _ = padded(few_digits, np.full(1000, 15))
mask = real[:, None, :, None] & real[:, None, None, :]  # b 1 q k
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
# Why does the first model fail at length 15? Its rows still look at key $15 - q$, but
# the symbol is at $14 - q$.
#
# **Exercise 4, open.** Could a model with two blocks find the end by itself, without
# being told? Look for a way in which the first block could help the second one. Then
# train a model with `"n_blocks": 2` on the inputs of `told=False`.

# %% tags=["shared", "answer"]
sizes = quick.model | {"n_inputs": 10 + 16, "n_blocks": 2}
deeper = build(Predictor, seed=settings.seed, **sizes)
fit(deeper, padded_loss, padded(digits, lengths, told=False), many)
by_itself = by_length(deeper, 26, False)
assert min(by_itself) > 0.95
say(
    "Yes. The mask shows each query only the real keys. So with equal weights the "
    "first block can compute the mean of their position codes, and this mean tells the "
    f"length. The queries of the second block are made from it. After {many.updates} "
    f"updates such a model is right in {min(by_itself):.1%} even at its worst length; "
    f"one block, at its own worst length, in {min(untold):.0%}. Whether the deeper "
    "model finds the length in this way, only a test of its maps could tell."
)

# %% [markdown] tags=["shared"]
# **In your own code.** DNA has two strands. Read in its own direction (5′ to 3′), the
# second strand is the **reverse complement** of the first: the reversed sequence, with
# A and T exchanged, and C and G. Your own sequences need a **vocabulary**, which is a
# list of their symbols, padded ids, and a label for each position:

# %% tags=["shared"]
strands = ["GATTACA", "CCGTA"]  # your sequences
vocabulary = sorted(set("".join(strands)))  # A C G T
number = {symbol: i for i, symbol in enumerate(vocabulary)}
own_lengths = np.array([len(strand) for strand in strands])
filled = [strand.ljust(own_lengths.max(), vocabulary[0]) for strand in strands]
ids = np.array([[number[symbol] for symbol in strand] for strand in filled])  # b s
inputs, real, labels = padded(ids, own_lengths, n_symbols=len(vocabulary))
labels = 3 - labels  # exchanges A (0) and T (3), C (1) and G (2)

# %% tags=["shared", "check"]
# Checked: the labels at the real positions spell the reverse complement
pairs_of_rows = zip(labels, real, strict=True)
second = ["".join(vocabulary[i] for i in row[at]) for row, at in pairs_of_rows]
assert second == ["TGTAATC", "TACGG"]

# %% [markdown] tags=["shared"]
# Then train a `Predictor` with `inputs.shape[-1]` inputs and an output for each symbol,
# using `padded_loss`.

# %% [markdown] tags=["shared"]
# ## Runs can be kept, resumed and repeated
#
# With the same `folder`, `fit` **reloads** a finished run (`retrain=True` trains again)
# and **resumes** an interrupted one after its last finished epoch. From the same
# weights and on the same batches, the other framework **repeats** a run, up to
# rounding.

# %% tags=["shared"]
here = fitted["loss"]
there = twin.losses(other_side, quick, initial)  # trains in a process of its own
halved = int(np.argmax(here < here[0] / 2))  # the first update with half of the loss
gap = abs(here / there - 1)[:halved].max()

# %% tags=["shared", "say"]
say(
    f"The loss of the quick run halves in {halved} updates. Until then, the losses of "
    f"the two frameworks differ by at most {gap:.1%}. Later the gap grows, because "
    "each update builds on the rounding errors of all updates before."
)

# %% tags=["shared", "check"]
# Checked: JAX and PyTorch compute the same losses, to 5 %, while the loss halves
assert halved > 60  # the loss falls while they are compared
np.testing.assert_allclose(here[:halved], there[:halved], rtol=5e-2)
apart = abs(here / there - 1)
assert apart[:50].max() < apart[halved:].max()

# %% tags=["shared", "check"]
# Checked: a finished run is reloaded, weights and history
import contextlib

reloaded = build(Predictor, seed=settings.seed, **settings.model)
with contextlib.redirect_stdout(None):  # `fit` says that the run is finished
    same_history = fit(reloaded, cross_entropy, data["train"], settings, **kept)
np.testing.assert_array_equal(same_history["seconds"], history["seconds"])
for name, array in to_arrays(reloaded).items():
    np.testing.assert_array_equal(array, to_arrays(model)[name])
assert list(folder.glob("*/events.out.tfevents.*")), "nothing for TensorBoard"


# %% tags=["shared", "check"]
# Checked: an interrupted and resumed run ends with the weights of an uninterrupted one
def stopped(epoch):  # Ctrl-C before the second epoch
    if epoch == 1:
        raise KeyboardInterrupt
    return shuffled(quick)(epoch)


with tempfile.TemporaryDirectory() as elsewhere:
    run = {"folder": elsewhere}
    try:
        again = build(Predictor, seed=1, **quick.model)
        fit(again, cross_entropy, data["train"], quick, batches=stopped, **run)
    except KeyboardInterrupt:
        again = build(Predictor, seed=1, **quick.model)
    resumed = fit(again, cross_entropy, data["train"], quick, **run)
np.testing.assert_allclose(resumed["loss"], fitted["loss"], rtol=1e-3)
for name, array in to_arrays(by_fit).items():
    np.testing.assert_allclose(array, to_arrays(again)[name], atol=1e-6)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Training repeats one update: batch, loss, gradient, clipped step. Validation selects
#   the weights.
# * One block with one head reverses sequences without a mistake. Its map is an
#   antidiagonal.
# * A map explains only what a test confirms: silencing keys breaks the reversing model,
#   not the copying one.
# * Without positions the model can only count. A one-way GRU cannot know what comes
#   later.
# * Several lengths need a padding mask and a loss without the padding. One block must
#   also be told where the end is.

# %% [markdown] tags=["jax"]
# Next comes [finding the odd one out, in JAX](anomaly_jax.ipynb): the same parts,
# without positions, compare the elements of a set.
