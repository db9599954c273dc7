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

import numpy as np
import torch
from torch import nn

from helpers import Settings, as_numpy, check, from_arrays, to_arrays
from helpers.data import checks
from helpers.data.sequences import batches_of, one_hot, reverse_data, shuffled
from helpers.show import download_link, drawing, plots, say, viewer
from helpers.torch import Predictor, cross_entropy, dense, device, evaluate, fit, tensor
from helpers.torch.encoder import attention_maps, without_dropout

plots.use_style()
framework = "torch"
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## The first output needs the last input
#
# Sixteen digits go in, and the same digits come out in reverse order, all at once. So
# output 0 is input 15, at the other end. The inputs are one-hot, because here 0 is no
# nearer to 1 than to 9.

# %% tags=["shared"]
length = 16


def digits_and_reverse(n, seed):
    """Random digits, one-hot ``b s i``, and the same in reverse order ``b s``."""
    digits = np.random.default_rng(seed).integers(10, size=(n, length))  # b s
    return one_hot(digits, 10), digits[:, ::-1].copy()


data = {
    "train": digits_and_reverse(50_000, seed=42),
    "validation": digits_and_reverse(1_000, seed=43),
    "test": digits_and_reverse(10_000, seed=44),
}
x_train, y_train = data["train"]
validation = data["validation"]  # chooses the best epoch
x_test, y_test = data["test"]
x_few, y_few = x_test[:1000], y_test[:1000]  # where fewer will do
print("in: ", *x_test[0].argmax(-1))
print("out:", *y_test[0])

# %% [markdown] tags=["shared"]
# There are $10^{16}$ such sequences: a model that memorised the 50,000 for training
# would fail the test.

# %% [markdown] tags=["torch"]
# The model is `Predictor` of [the chapter on positions](positions_torch.ipynb), with
# one block and one head: each output needs one look. Its layer `embed` turns one-hot
# digits into embeddings. Attention can carry each symbol to its output in one step:

# %% mystnb={"image": {"alt": "The model on one sequence, from top to bottom: sixteen digits; a box with embed and positions; attention, drawn as sixteen lines that cross, one from each input to the output that needs it; a box with ffn and output; the digits in reverse order. The line from the last input to the first output is highlighted."}} tags=["shared", "figure"]
drawing("reversal")

# %% tags=["shared"]
sizes = {"n_inputs": 10, "m": 32, "n_outputs": 10, "n_blocks": 1, "n_heads": 1, "f": 64}


# %% tags=["torch"]
def new_model(seed=42, **changes):
    """An untrained `Predictor` of these sizes, or of others."""
    torch.manual_seed(seed)
    return Predictor(**sizes | changes).to(device)


# %% tags=["shared"]
model = new_model()

# %% [markdown] tags=["shared"]
# ## Training a Transformer is one update, repeated
#
# The new model guesses. To train it, we extend the simple loop of the first chapter.
# Long gradients are **clipped**, shortened to norm 1. The learning rate rises first,
# then falls along a cosine; the next chapter shows why. In the end we keep the weights
# that were best on **validation data**.

# %% mystnb={"image": {"alt": "The training loop as a cycle: inputs go through the model and, with the labels, into the loss function; the gradients of the loss are clipped and go to the optimizer, which takes the learning rate and changes the model. After each epoch the model is validated."}} tags=["shared", "figure"]
drawing("training-loop")

# %% [markdown] tags=["shared"]
# The loss is `cross_entropy` of the first chapter. From a model, inputs and labels
# `b s` it returns the mean loss over all positions, and a dictionary of **metrics**,
# here `{"accuracy": …}`, how often the right symbol has the largest **logit**. Any
# function that returns both will do: it is what you change for another task.

# %% [markdown] tags=["torch"]
# The optimiser of most projects is **AdamW**
# ([`torch.optim`](https://docs.pytorch.org/docs/stable/optim.html)): Adam that also
# shrinks all weights a little at each update (*weight decay*; [Loshchilov & Hutter
# 2019](https://arxiv.org/abs/1711.05101)). A *scheduler* sets the learning rate of each
# update. `detach` gives the number alone, so that the graph can be freed.

# %% tags=["torch"]
from torch.optim.lr_scheduler import OneCycleLR


# %% tags=["torch"]
def train_step(model, optimizer, scheduler, loss_fn, batch):
    """One update, in place: the loss and its metrics."""
    loss, metrics = loss_fn(model, *batch)
    optimizer.zero_grad()  # because `backward` adds to the gradients
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    return loss.detach(), metrics


# %% tags=["torch"]
def train(model, loss_fn, arrays, n_updates, *, peak=1e-3, batch_size=128):
    """Train on random batches of NumPy arrays, in place, and print five times."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.1)
    scheduler = OneCycleLR(
        optimizer,
        peak,
        total_steps=n_updates + 1,  # so that the last update has a rate, too
        pct_start=0.05,  # the rate rises for a twentieth of the updates
        cycle_momentum=False,
    )
    draw = np.random.default_rng(0)
    model.train()  # dropout on
    for n in range(1, n_updates + 1):
        rows = draw.integers(len(arrays[0]), size=batch_size)
        batch = [tensor(x[rows]) for x in arrays]
        loss, metrics = train_step(model, optimizer, scheduler, loss_fn, batch)
        if n % max(1, n_updates // 5) == 0:
            found = "".join(f", {name} {x:.3f}" for name, x in metrics.items())
            print(f"update {n}: loss {loss:.3f}{found}")
    model.eval()  # dropout off


# %% [markdown] tags=["shared"]
# Here is a whole training, on random batches of 128 sequences:

# %% tags=["shared"]
pupil = new_model()
train(pupil, cross_entropy, data["train"], n_updates=400, peak=3e-3)

# %% [markdown] tags=["shared"]
# In such a run the loss stays near guessing, $\ln 10$, at first; then it falls. A bug
# looks like the beginning. To tell, let a new model learn one small batch by heart:
# `[x[:8] for x in data["train"]]` in place of the data. If it still guesses, the bug is
# in model, loss or loop. If it learns, look at some inputs and labels; then wait.

# %% [markdown] tags=["shared"]
# ## The model learns to reverse without a mistake
#
# `fit`, of the helpers, trains in all chapters from here on. It is the same loop, and
# does four things besides:
#
# * In each **epoch** it takes every example once, in a new order.
# * Then `evaluate` measures loss and metrics on the validation data, with dropout off.
#   The weights of the best epoch are kept.
# * It returns all numbers by name, as arrays, and stops at NaN.
# * Only matrices decay, not biases and norms.
#
# The first extra shows its code. The settings:

# %% tags=["shared"]
settings = Settings(
    n_train=50_000,  # too many to memorise: no dropout, no weight decay
    batch_size=128,  # steady gradients, and many updates
    epochs=4,  # until no mistake is left
    learning_rate=1e-3,
    warmup=50,  # one eighth of the first epoch
)

# %% [markdown] tags=["shared"]
# Validation data choose the best epoch, so accuracy on them may be a little too good.
# The final number comes from the **test data**, which chose nothing.

# %% tags=["shared"]
history = fit(model, cross_entropy, data["train"], settings, validation=validation)
on_validation = evaluate(model, cross_entropy, validation)["accuracy"]
on_test = evaluate(model, cross_entropy, data["test"])["accuracy"]
print(f"{settings.updates:,} updates in {history['seconds'].sum():.1f} seconds")
written = as_numpy(model(tensor(x_test[:1]))).argmax(-1)  # b s
print("in:   ", *x_test[0].argmax(-1))
print("model:", *written[0])

# %% mystnb={"image": {"alt": "The loss of every update, on a logarithmic axis: at first it stays at the level of guessing, marked by a horizontal line; then it falls to less than one hundredth."}} tags=["shared", "figure"]
title, updates = "The model learns to reverse", np.arange(settings.updates)
level = np.full(settings.updates, np.log(10))
lines = {"training": (updates, history["loss"]), "guessing, ln 10": (updates, level)}
fig = plots.curves({title: lines}, x="update", y="loss", log_y=True, size=(6.2, 2.8))
fig

# %% tags=["shared", "say"]
stays = (history["loss"] > 2).argmin()
say(
    f"For {stays} updates the loss stays near guessing; then it falls. "
    f"**Not one of {y_test.size:,} test outputs is wrong**: accuracy "
    f"{on_test:.2%}, on validation data {on_validation:.2%}."
)

# %% tags=["shared", "check"]
# Checked: all validation and test outputs are right, and the model has not overfitted
assert on_validation == on_test == 1
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
_, maps = attention_maps(model, tensor(x_few))
maps = as_numpy(maps)[0, :, 0]  # b q k
mirror = np.arange(length)[::-1]  # the key that each row should look at
mean_map = maps.mean(axis=0)  # q k
away = abs(np.arange(length) - mirror[:, None])  # how far each key is from it: q k

# %% mystnb={"image": {"alt": "A heat map of 16 queries by 16 keys, the mean over 1,000 sequences. The weights lie on the antidiagonal, with some weight beside it."}} tags=["shared", "figure"]
import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(4.2, 3.2))
image = ax.imshow(mean_map, vmin=0, vmax=1, cmap="Blues")
fig.colorbar(image, label="weight")
ax.set(title="Row q looks at key 15 − q", xlabel="key k", ylabel="query q")
ax.grid(False)

# %% tags=["shared", "say"]
on = mean_map[away == 0].sum() / length
beside = mean_map[away == 1].sum() / length
say(
    "In each of the 1,000 sequences, every row looks most at its mirror position. On "
    f"average it puts {on:.0%} of its weight there, {beside:.0%} on both neighbours."
)

# %% tags=["shared", "figure"]
before = as_numpy(attention_maps(new_model(), tensor(x_few[:4]))[1])  # l b h q k
after = maps[None, :4, None]  # l b h q k
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
assert on > beside > 0.2 and mean_map[away > 1].sum() / length < 0.05
assert before.max() < 0.15 and after.max(axis=-1).mean() > 0.5

# %% [markdown] tags=["shared"]
# ## Attention is not explanation until it is tested
#
# The map looks like an explanation. But it shows how much of each value is mixed in,
# not whether the output depends on it. In recurrent text classifiers, [Jain and Wallace
# (2019)](https://arxiv.org/abs/1902.10186) found that very different weights can give
# the same output: "Attention is not explanation". [Wiegreffe and Pinter
# (2019)](https://arxiv.org/abs/1908.04626) replied that this can be tested. Call the
# key with the largest weight of a row its *top key*. A map passes if
#
# 1. the model fails without its top keys ([Serrano and Smith
#    2019](https://arxiv.org/abs/1906.03731)), but works when other keys are hidden;
# 2. a model from another seed has the same top keys.
#
# To **silence** a key is to hide it from a query by the mask, so that the softmax
# spreads its weight over the others.


# %% tags=["shared"]
def looked_at(model):
    """The key with the largest weight in every row: ``b q``."""
    return as_numpy(attention_maps(model, tensor(x_few))[1])[0, :, 0].argmax(-1)


def accuracy_without(model, silenced, labels):
    """Accuracy of a model whose query ``q`` does not see ``silenced`` ``b q k``."""
    mask = tensor(~silenced[:, None])  # b 1 q k
    logits, _ = attention_maps(model, tensor(x_few), mask)
    return (as_numpy(logits).argmax(-1) == labels).mean()


# %% [markdown] tags=["shared"]
# The map of a model trained to **copy** should fail: the residual connection already
# carries each symbol to its output. A short training at a higher rate will do for the
# copier, and for a second model that reverses:

# %% tags=["shared"]
quick = Settings(
    n_train=200 * 128, batch_size=128, epochs=2, learning_rate=3e-3, warmup=50
)
second, copier = new_model(seed=1), new_model(seed=0)
tried = fit(second, cross_entropy, data["train"], quick, validation=validation)
copied = fit(copier, cross_entropy, (x_train, x_train.argmax(-1)), quick)
print(f"accuracy at the end: {tried['accuracy'][-1]:.1%}, {copied['accuracy'][-1]:.1%}")


# %% tags=["shared"]
def evidence(model, labels):
    """Accuracy by what each query does not see."""
    keys, top = np.arange(length), looked_at(model)[..., None]  # k; b q 1
    shift = np.random.default_rng(0).integers(1, length, size=top.shape)  # b q 1
    silenced = {
        "nothing": np.zeros_like(keys == top),  # b q k
        "the top key": keys == top,
        "its neighbours": abs(keys - top) == 1,
        "another key": keys == (top + shift) % length,
    }
    return {name: accuracy_without(model, x, labels) for name, x in silenced.items()}


reversing, copying = evidence(model, y_few), evidence(copier, x_few.argmax(-1))
agree = (looked_at(model) == looked_at(second)).mean()
print("accuracy without    reversing   copying")
for name in reversing:
    print(f"{name:16} {reversing[name]:12.1%} {copying[name]:9.1%}")

# %% tags=["shared", "say"]
say(
    "**The reversing map passes**: without the top keys, the model is right only by "
    f"chance, and the second model has the same in {agree:.0%} of the rows (by chance, "
    f"{1 / 16:.0%}). **The copying map fails**: its model does not need the top keys."
)

# %% [markdown] tags=["shared"]
# So large weights may be of no use; only a test tells. (This shows
# what the model needs, not what it could do without.)

# %% tags=["shared", "check"]
# Checked: the map explains the reversing model and not the copying one
plain, without_top, without_beside, without_other = reversing.values()
assert plain == 1 and without_beside > 0.99 and without_other > 0.9
assert without_top < 0.15 and agree > 0.9 and min(copying.values()) > 0.99
top_key = np.arange(length) == looked_at(model)[..., None]  # b q k
logits, _ = attention_maps(model, tensor(x_few), tensor(~top_key[:, None]))  # b s c
loss, _ = cross_entropy(lambda _: logits, x_few, tensor(y_few))
assert as_numpy(loss) > 1.5 * np.log(10)  # sure and wrong, as question 4 says

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** Let the model rotate the sequence: output $q$ is the symbol
# at position $q + 3$, and the last three outputs are the first three symbols. Draw the
# map that you expect. Then train a model with the settings `quick`.

# %% tags=["shared", "answer"]
rotator = new_model()
fit(rotator, cross_entropy, (x_train, np.roll(x_train.argmax(-1), -3, axis=1)), quick)
rotated = np.roll(x_test.argmax(-1), -3, axis=1)
accuracy = evaluate(rotator, cross_entropy, (x_test, rotated))["accuracy"]
_, rotator_maps = attention_maps(rotator, tensor(x_few))
source = (np.arange(length) + 3) % length
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
# ## In your own code, change the data and the loss
#
# Most data differ from our digits: sequences have several lengths, and one label each.
# Before many genes, DNA has the letters TATA (a *TATA box*). Does a strand contain
# them? Our strands are random. For your own, change the two lines marked
# `yours`: a list of sequences, and an array of labels, such as two columns of a table
# that pandas has read, `[*rows["strand"]]` and `rows["label"].to_numpy()`.


# %% tags=["shared"]
def draw_strands(n, draw):
    """A list of random strands, and for each 1 if it contains TATA, else 0: ``b``."""
    strands = ["".join(draw.choice([*"ACGT"], draw.integers(8, 25))) for _ in range(n)]
    for i in range(0, n, 2):  # every second one gets the letters somewhere
        at = draw.integers(len(strands[i]) - 3)
        strands[i] = strands[i][:at] + "TATA" + strands[i][at + 4 :]
    return strands, np.array(["TATA" in strand for strand in strands]).astype(int)


draw = np.random.default_rng(0)
sequences, labels = draw_strands(7400, draw)  # yours, in random order; labels from 0
n_train, n_labels = 6400, 2  # yours: rows for training (else: test), how many labels

# %% [markdown] tags=["shared"]
# A **vocabulary** lists the symbols that occur, and `?` for all others; shorter
# sequences are padded:


# %% tags=["shared"]
known = set().union(*sequences[:n_train])  # symbols, or words if they are lists
vocabulary = ["?", *sorted(known)]
number = {symbol: i for i, symbol in enumerate(vocabulary)}


def as_arrays(sequences):
    """Ids ``b s``, zero at the padding, and which are real ``b s``."""
    lengths = np.array([len(sequence) for sequence in sequences])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(real.shape, dtype=int)
    ids[real] = [number.get(symbol, 0) for each in sequences for symbol in each]
    return ids, real


own = [*as_arrays(sequences), labels]
own_train, own_test = [x[:n_train] for x in own], [x[n_train:] for x in own]

# %% [markdown] tags=["shared"]
# The loss for one label a sequence. The loop is that of before:


# %% tags=["torch"]
def label_loss(model, ids, real, labels):
    """Cross-entropy and accuracy of one label for each sequence: ``b s, b s, b``."""
    logits = model(ids, real=real)  # b c
    accuracy = (logits.argmax(-1) == labels).float().mean()
    return nn.functional.cross_entropy(logits, labels), {"accuracy": accuracy}


# %% tags=["shared"]
own_sizes = {"n_blocks": 2, "n_heads": 4, "f": 64, "norm_first": True}
own_sizes["positions"] = "rotary"
own_sizes["ids"] = True  # the inputs are ids, not vectors
own_sizes["pool"] = "mean"  # one answer for a sequence

# %% tags=["torch"]
torch.manual_seed(1)
finder = Predictor(len(vocabulary), 32, n_labels, **own_sizes).to(device)
train(finder, label_loss, own_train, n_updates=800, peak=3e-3, batch_size=64)
by_model = evaluate(finder, label_loss, own_test)["accuracy"]

# %% [markdown] tags=["shared"]
# What can a method without a Transformer do? This logistic regression knows how often
# each letter occurs:

# %% tags=["shared"]
from sklearn.linear_model import LogisticRegression

counts = np.array([[x.count(symbol) for symbol in vocabulary] for x in sequences])
simple = LogisticRegression(max_iter=1000).fit(counts[:n_train], labels[:n_train])
by_counts = simple.score(counts[n_train:], labels[n_train:])
print(f"of the test strands: model {by_model:.1%}, letter counts {by_counts:.1%}")

# %% [markdown] tags=["shared"]
# And this is the model at work, on new strands:

# %% tags=["shared"]
strands = ["GATTATACAG", "GATTACAGATTACAGATT"]
ids, real = map(tensor, as_arrays(strands))
found = finder(ids, real=real).argmax(-1)  # b
for strand, label in zip(strands, found, strict=True):
    print(strand, "contains TATA" if label else "does not")

# %% tags=["shared", "check"]
# Checked: the model finds the letters, also in strands of two lengths in a batch
assert by_model > 0.9 > 0.8 > by_counts
np.testing.assert_array_equal(as_numpy(found), [1, 0])

# %% [markdown] tags=["torch"]
# To take it along, put [one file](../book/index.md#one-file-to-take-along) beside your
# notebook. `from predictor_torch import Predictor, Settings, device, evaluate, fit,
# tensor` replaces the helpers; copy `train_step`, `train` and this section. To keep the
# best epoch, too, call `fit(finder, label_loss, own_train, Settings(…), validation=…)`.
# [Your own data](data_torch.ipynb) adds files and a loader, [When training
# fails](debugging_torch.ipynb) accumulated gradients and half precision.

# %% [markdown] tags=["shared"]
# What to try first for a task of your own, the most important settings first:
#
# | setting | try first |
# |---|---|
# | `batch_size` | 32 to 256 |
# | `learning_rate` | 3e-4 to 1e-3; small models bear more |
# | `warmup` | a twentieth of all updates |
# | `max_grad_norm` | 1 |
# | `epochs` | while the validation loss falls |
# | `n_blocks`, `m` | 2 to 6, 128 to 768 |
# | `n_heads`, `f` | heads of 64 features, four times m |
# | `dropout` | 0.1; 0.3 if data are few |
# | `weight_decay` | 0.1 |

# %% [markdown] tags=["shared"]
# ## Extra: The loop of all later chapters, line by line

# %% [markdown] tags=["torch"]
# `fit` makes its optimiser by this function: two groups of parameters, because only
# matrices decay. `fused=True` updates all weights in one call. The scheduler multiplies
# the peak rate by a function of the number of updates.

# %% tags=["torch"]
import math
import time
from copy import deepcopy

from tqdm import tqdm


# %% tags=["torch", "export"]
def make_optimizer(model, settings):
    """AdamW, which decays matrices only, and the scheduler of its learning rate."""
    matrices = [param for param in model.parameters() if param.ndim > 1]
    others = [param for param in model.parameters() if param.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)

    def part_of_peak(step):
        return settings.schedule(step, settings.warmup, settings.updates)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, part_of_peak)


# %% [markdown] tags=["torch"]
# An **update** is our `train_step`, and returns the norm of the gradient, too. All
# numbers stay on the device; `item` would wait for it in every update.


# %% tags=["torch", "export"]
def update(model, optimizer, scheduler, loss_fn, batch, max_grad_norm):
    """One update, in place: the loss, its metrics and the norm of the gradient."""
    loss, metrics = loss_fn(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    scheduler.step()
    numbers = {"loss": loss, **metrics, "grad_norm": norm}
    return {name: torch.as_tensor(x).detach() for name, x in numbers.items()}


# %% [markdown] tags=["shared"]
# `evaluate` goes through the data in batches; a smaller batch counts less. (`checks`, a
# helper, looks at the data, makes arrays of the numbers, and stops at NaN.)


# %% tags=["torch", "export"]
@torch.inference_mode()
def score(model, loss_fn, batch):
    """Loss and metrics of a batch; ``"count"``: over how many terms they are means."""
    loss, metrics = loss_fn(model, *batch)
    return {"loss": loss, "count": len(batch[0]), **metrics}


# %% tags=["torch", "export"]
def evaluate(model, loss_fn, data, batch_size=1000):
    """Mean loss and metrics on arrays of NumPy, with dropout off: by name, a number.

    A batch counts by its examples, or by a ``"count"`` among the metrics of the loss.
    """
    arrays, rows = checks.checked(model, data), []
    n_batches = math.ceil(len(arrays[0]) / batch_size)
    with without_dropout(model):
        for part in np.array_split(np.arange(len(arrays[0])), n_batches):
            batch = [tensor(x[part]) for x in arrays]
            rows.append(score(model, loss_fn, batch))
    means = checks.as_columns(rows)
    count = means.pop("count")
    checks.check_finite(means, 0, arrays, "batch")
    return {name: np.average(x, weights=count).item() for name, x in means.items()}


# %% [markdown] tags=["shared"]
# The best epoch has the lowest validation loss, or the highest value of the metric
# named as `best`.


# %% tags=["torch", "export"]
@torch.random.fork_rng(range(torch.cuda.is_available()))
def fit(
    model,
    loss_fn,
    data,
    settings,
    *,
    validation=None,
    best="loss",
    batches=None,
    augment=None,
):
    """Train a model in place, and keep its best weights; return what was measured.

    ``data`` and ``validation`` are tuples of NumPy arrays. The best epoch is that with
    the lowest validation loss, or the highest metric ``best``. For later chapters:
    ``batches`` and ``augment``, see ``batches_of``.
    Returned are arrays by name: of updates ``loss``, metrics, ``grad_norm`` (before
    clipping) and ``learning_rate``; of epochs ``validation_loss`` …, and ``seconds``.
    """
    arrays = checks.checked(model, data)
    checks.checked(model, validation or data)
    source = arrays, settings, tensor, batches, augment
    rates = settings.learning_rates.reshape(settings.epochs, -1)  # for the history
    optimizer, scheduler = make_optimizer(model, settings)
    clip = settings.max_grad_norm
    model.train()  # dropout on
    updates, epochs, top, kept = [], [], (), None
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, found = time.perf_counter(), []
        torch.manual_seed(settings.seed_of(epoch))  # of dropout
        for batch, rate in zip(batches_of(epoch, *source), rates[epoch], strict=True):
            numbers = update(model, optimizer, scheduler, loss_fn, batch, clip)
            found.append(numbers | {"learning_rate": rate})
        checks.check_finite(checks.as_columns(found), len(updates), arrays)
        updates += found
        scores = {}
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            higher = scores | {"loss": -scores["loss"]}  # the higher, the better
            rank = (higher[best], higher["loss"])  # of equal metrics, the lower loss
            if rank > top:
                top, kept = rank, deepcopy(model.state_dict())
        scores = {f"validation_{name}": x for name, x in scores.items()}
        epochs.append(scores | {"seconds": time.perf_counter() - start})
    if kept:
        model.load_state_dict(kept)
    model.eval()
    return checks.as_columns(updates) | checks.as_columns(epochs)


# %% [markdown] tags=["torch"]
# The lines that are not obvious:
#
# | line | what it is for |
# |---|---|
# | `fork_rng` | dropout draws random numbers in `fit`; yours, outside, stay the same |
# | `manual_seed` | the dropout of an epoch can be repeated, whatever was drawn before |
# | `rank` | epochs often have the same accuracy; then the lower loss decides |
# | `deepcopy` | a copy, because `state_dict` refers to the weights themselves |

# %% [markdown] tags=["shared"]
# ## Extra: Without positions the model can only count
#
# Without position codes the model sees a multiset: how often each symbol occurs, but
# not where. An output knows which symbol is its own, and that it needs one of the other
# fifteen (since $15 - q$ is never $q$). So the best guess is the most frequent of
# these, right with probability
#
# $$\mathrm{best} = \mathbb{E}\Big[\tfrac{1}{15} \max_a n_a\Big],$$
#
# where $n_a$ is how often symbol $a$ occurs among the fifteen, and $\mathbb{E}$ is the
# mean over positions and sequences.

# %% tags=["shared"]
blind = new_model(positions="none")
fit(blind, cross_entropy, data["train"], quick)
accuracy_blind = evaluate(blind, cross_entropy, data["test"])["accuracy"]
counts = x_test.sum(axis=1, keepdims=True) - x_test  # of the other symbols: b s i
best_guess = (counts.max(axis=-1) / (length - 1)).mean()

# %% tags=["shared", "say"]
say(
    f"After {quick.updates} updates without positions, {accuracy_blind:.2%} of the "
    f"outputs are right; the best possible guess has {best_guess:.2%} on average. So "
    "this model is not badly trained: it has learned all that it can know."
)

# %% tags=["shared", "check"]
# Checked: without positions the model is no better than the best guess, and close to it
assert best_guess - 0.03 < accuracy_blind < best_guess + 0.005
assert tried["accuracy"][-10:].min() > 0.99

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** What is the highest accuracy that a model with one
# block and equal attention weights can reach? Find a way to make all attention weights
# of our trained model equal, and measure. `to_arrays(model)` is a dictionary of its
# weights, and `from_arrays(model, arrays)` puts them back. The queries are the first
# $m$ columns of `"encoder.blocks.0.attention.qkv.weight"` (inputs × outputs), and of
# the `bias` there.

# %% tags=["shared", "answer"]
equal = to_arrays(model)
for kind in ("weight", "bias"):
    equal[f"encoder.blocks.0.attention.qkv.{kind}"][..., : sizes["m"]] = 0
uniform = new_model()
from_arrays(uniform, equal)
logits, flat_maps = attention_maps(uniform, tensor(x_few))
accuracy = (as_numpy(logits).argmax(-1) == y_few).mean()
np.testing.assert_allclose(as_numpy(flat_maps), 1 / length, atol=1e-6)
assert accuracy < best_guess + 0.005
say(
    f"At most {best_guess:.1%}, the best guess of a model without positions: the "
    "values are linear in symbol plus position code, so their plain mean is the same "
    "for every order of the symbols. Zero queries make all scores equal. Our model "
    f"then drops to {accuracy:.1%}, because it was not trained for equal weights. Here "
    "the weights matter."
)

# %% [markdown] tags=["shared"]
# ## Extra: The neighbours get weight because their codes are similar
#
# Neighbours have similar codes, as the chapter on positions showed, so a query that
# matches position 9 also matches 8 and 10. If this is why each row looks beside its
# mirror position, the weight must follow the codes when we shuffle their table before
# training:

# %% tags=["shared"]
half = np.random.default_rng(0).permutation(8)
# position p gets the code that position code[p] had; mirror positions stay mirror
# positions, so the task is as hard as before
code = np.concatenate([half, 15 - half[::-1]])
order = np.concatenate([code, np.arange(16, 512)])  # the table has 512 rows
mixed = new_model(seed=1)
mixed.positions.table[...] = mixed.positions.table[order]
fit(mixed, cross_entropy, data["train"], quick)
mixed_map = as_numpy(attention_maps(mixed, tensor(x_few))[1]).mean(axis=1)[0, 0]  # q k

codes_away = abs(code - code[mirror][:, None])  # between key and mirror, in codes
in_sequence = mixed_map[(away == 1) & (codes_away > 1)].mean()
in_code = mixed_map[(codes_away == 1) & (away > 1)].mean()
print(f"a neighbour gets in the sequence {in_sequence:.1%}, in the codes {in_code:.0%}")

# %% [markdown] tags=["shared"]
# Now the weight goes to the positions with neighbouring codes.

# %% tags=["shared", "check"]
# Checked: the weight beside the mirror position follows the shuffled codes
assert (mixed_map.argmax(axis=-1) == mirror).all()
assert in_code > 0.1 and in_sequence < 0.01

# %% [markdown] tags=["shared"]
# ## Extra: To reverse any length, one head must be told the end
#
# Real sequences have many lengths, and our Transformer knows one. Those of a batch are
# **padded** to the longest; a **padding mask** hides the padded keys from every query,
# and the loss counts real positions only.
#
# Output $q$ of a sequence of length $n$ needs key $n - 1 - q$, but the score of a key
# depends on the two positions and their symbols alone, and not on $n$. Row 1 of `3 7`
# needs key 0, row 1 of `3 7 5` needs key 1. But its scores for these two keys are the
# same in both, so in one of them it looks more at the wrong key, and must guess from a
# mixture. So we tell the model how far the end is, by a second one-hot vector (zero
# with `told=False`).


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
    logits = model(inputs, mask).float()
    known = (labels >= 0) & (labels < logits.shape[-1])
    counted = labels.where(known & real, -100).flatten()
    total = nn.functional.cross_entropy(logits.flatten(0, -2), counted, reduction="sum")
    total = total.where((known | ~real).all(), torch.nan)
    hits = (logits.argmax(-1) == labels) & real
    n_real = real.sum().clamp(min=1)
    return total / n_real, {"accuracy": hits.sum() / n_real, "count": real.sum()}


# %% [markdown] tags=["shared"]
# We train two models on lengths from 1 to 16; one is told the distance, one is not.
# `"count"` tells `evaluate` over how many positions the loss of a batch is a mean.

# %% tags=["shared"]
digits, few_digits = x_train[: quick.n_train].argmax(-1), x_few.argmax(-1)
lengths = np.random.default_rng(0).integers(1, 17, size=len(digits))
of_any_length = {}
for told in (False, True):
    told_model = new_model(n_inputs=10 + 16)
    fit(told_model, padded_loss, padded(digits, lengths, told=told), quick)
    of_any_length[told] = told_model

# %% tags=["shared"]
n_tried = [1, 2, 4, 8, 12, 15, 16]


def by_length(model, n_inputs, told):
    """Accuracy at each of the lengths ``n_tried``."""
    found = []
    for n in n_tried:
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
panels = {title: {name: (n_tried, found) for name, found in accuracies.items()}}
fig = plots.curves(panels, x="length", y="accuracy", marks="o", size=(6.2, 3.2))
fig.axes[0].set_xticks(n_tried)
fig

# %% tags=["shared", "say"]
at_16, untold, told = accuracies.values()
say(
    f"The model that is told the end has {min(told):.1%} even at its worst length, the "
    f"other one {untold[-1]:.0%} at length 16. Our model has {at_16[-2]:.0%} at length "
    "15: all rows but the first still look at key $15 - q$; the symbol is at $14 - q$."
)

# %% tags=["shared", "check"]
# Checked: only the model told the end reverses every length
assert at_16[-1] == 1 and max(at_16[1:-1]) < 0.5
assert untold[0] > 0.9 and max(untold[2:]) < 0.9 and min(told) > 0.97
inputs, real, _ = padded(few_digits, np.full(1000, 15))
mask = tensor(real[:, None, None])  # b 1 1 k
_, shorter = attention_maps(model, tensor(inputs[..., :10]), mask)
looks = as_numpy(shorter)[0, :, 0, 1:15].argmax(axis=-1)  # b q
assert (looks == 15 - np.arange(1, 15)).mean() > 0.9

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** Could a model with two blocks find the end without being told?
# Compute the mean of the position codes of the first $n$ positions, for each $n$. How
# could it help the second block? If you like, train a model with `n_blocks=2` and
# `told=False`, and measure it by `by_length`.

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
# A **GRU** ([gated recurrent unit](https://arxiv.org/abs/1406.1078)) reads symbol by
# symbol and keeps what it has read in a **state** of fixed size. From left to right it
# is **causal**: in the first half of the output, symbol $s - 1 - q$ still lies ahead,
# and no training can change that. In the second half the symbol has been read, and must
# be found in the state. (A *bidirectional* GRU has a second cell, which reads from
# right to left.)

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


def new_recurrent(seed):
    """An untrained GRU with 64 features of state."""
    torch.manual_seed(seed)
    return Recurrent(10, 64, 10).to(device)


# %% [markdown] tags=["shared"]
# We train it on sequences of 6 symbols:

# %% tags=["shared"]
short = Settings(
    n_train=200 * 128, batch_size=128, epochs=2, learning_rate=0.06, warmup=50
)
parts = reverse_data(short.n_train, length=6)
inputs, labels = parts["test"]
recurrent = new_recurrent(seed=1)
fit(recurrent, cross_entropy, parts["train"], short)
outputs = as_numpy(recurrent(tensor(inputs)))  # b s c
right_at = (outputs.argmax(-1) == labels).mean(axis=0)
print("right at each position:", *(f"{accuracy:.0%}" for accuracy in right_at))

# %% [markdown] tags=["shared"]
# The GRU guesses in the first half, where it cannot know. And what it has read must fit
# into its state. The Transformer need not keep the symbols: it looks.

# %% [markdown] tags=["shared"]
# ## Extra: A run can be watched, kept and repeated
#
# TensorBoard draws curves of all runs in a folder: `tensorboard --logdir runs`, called
# beside this notebook. `add_scalar` writes a number.

# %% tags=["shared"]
from tensorboard.summary import Writer

brief = Settings(
    n_train=100 * 128, batch_size=128, epochs=2, learning_rate=3e-3, warmup=10
)
watched = fit(new_model(seed=1), cross_entropy, data["train"], brief)
writer = Writer("runs/brief")
for name, values in watched.items():
    for n, value in enumerate(values.tolist()):
        writer.add_scalar(name, value, n + 1)
writer.flush()

# %% [markdown] tags=["torch"]
# All that the model has learned fits into one small file, which both frameworks read.
# (To *resume* an interrupted run, keep the optimiser's state, too: [When training
# fails](debugging_torch.ipynb) does it.)

# %% tags=["shared"]
download_link(model, f"reverse_{framework}.safetensors")

# %% [markdown] tags=["shared"]
# Data, batches and initial weights follow from seeds, so a second run gives the same
# losses, up to rounding; so does the other framework, from the same weights. Over many
# updates two such runs drift apart, because each builds on its rounding errors.

# %% tags=["shared"]
repeated = fit(new_model(seed=1), cross_entropy, data["train"], brief)
gap = abs(repeated["loss"] - watched["loss"]).max()
print(f"loss at the end: {watched['loss'][-1]:.2f}; largest difference: {gap:g}")

# %% [markdown] tags=["shared"]
# ## Extra: The same training, by another loop

# %% [markdown] tags=["torch"]
# [PyTorch Lightning](https://lightning.ai/docs/pytorch/stable/) contains the loop, with
# checkpoints, logs and several GPUs: you write what a *step* is. Here it trains our
# model on the same batches (where `lightning` is installed: `pip install lightning`).
# `interval` makes it step the schedule after every update, not every epoch.

# %% tags=["torch"]
import logging
import warnings
from importlib.util import find_spec

from torch.utils.data import DataLoader, TensorDataset

if find_spec("lightning"):
    warnings.simplefilter("ignore")  # of Lightning, about other packages
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Batches(lightning.LightningDataModule):
        def train_dataloader(self):
            rows = shuffled(brief)(self.trainer.current_epoch)
            examples = TensorDataset(*map(tensor, data["train"]))
            return DataLoader(examples, batch_sampler=rows.tolist())

        def val_dataloader(self):
            return DataLoader(TensorDataset(*map(tensor, validation)), batch_size=100)


# %% tags=["torch"]
if find_spec("lightning"):

    class Reversing(lightning.LightningModule):
        def __init__(self, model, settings):
            super().__init__()
            self.save_hyperparameters(ignore=["model"])  # as self.hparams
            self.model, self.losses = model, []

        def training_step(self, batch, _):
            loss, _ = cross_entropy(self.model, *batch)
            self.log("loss", loss)
            self.losses.append(loss.detach())
            return loss

        def validation_step(self, batch, _, part="validation"):
            _, metrics = cross_entropy(self.model, *batch)
            self.log(f"{part}_accuracy", metrics["accuracy"])

        def test_step(self, batch, n):
            self.validation_step(batch, n, part="test")

        def configure_optimizers(self):
            steps = make_optimizer(self.model, self.hparams.settings)
            return [steps[0]], [{"scheduler": steps[1], "interval": "step"}]


# %% tags=["torch"]
def another_loop(model, settings):
    """The losses of a training by Lightning, or without it those of `fit`."""
    if not find_spec("lightning"):
        print("Lightning is not installed here: this is `fit` once more.")
        return fit(model, cross_entropy, data["train"], settings)["loss"]
    from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint

    best = ModelCheckpoint(monitor="validation_accuracy", mode="max")
    trainer = lightning.Trainer(
        max_epochs=settings.epochs,
        gradient_clip_val=settings.max_grad_norm,
        reload_dataloaders_every_n_epochs=1,  # other batches in each epoch
        callbacks=[best, LearningRateMonitor("step")],
        default_root_dir="runs",
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    training = Reversing(model, settings)
    trainer.fit(training, datamodule=Batches())
    return as_numpy(torch.stack(training.losses))


# %% tags=["shared"]
others = another_loop(new_model(seed=1), brief)
apart = abs(others - watched["loss"])[:50].max()
print(f"losses of the first 50 updates differ by at most {apart:.0e}")

# %% tags=["shared", "check"]
# Checked: the other loop makes the same updates
np.testing.assert_allclose(others[:50], watched["loss"][:50], rtol=1e-3)
assert len(others) == brief.updates and others[-1] < 0.9 * others[0]

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Two parts of every training: the loss, and one update with clipping. `check` tries
# each on random arrays, and says what is wrong.


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
# **Right.** If it stays at guessing even there, the bug is in model, loss or loop. Else
# compare inputs and labels; then wait.
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
# * Training repeats one update: batch, loss, gradient, clipped step. `train_step` and
#   `train` are the loop to copy; for another task, change the data and the loss.
# * One block with one head reverses without a mistake; its map is an antidiagonal. Any
#   rearrangement at a fixed length takes one look for each output.
# * A map explains only what a test confirms: silence its keys.
# * Without positions the model can only count.

# %% [markdown] tags=["torch"]
# Next comes [warm-up, in PyTorch](warmup_torch.ipynb): why the learning rate rises
# first, and what happens to a deeper model if it does not.
