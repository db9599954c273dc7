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
# # When training fails
#
# By the end you can find out why a model does not learn, choose its learning rate, and
# see it overfit. (In extras: the framework's own layers, less memory, checkpoints, and
# a model for somebody who has none of your code.) You need: *The reverse task* and
# *Your own data*.
#
# Nothing crashes. The loss is a number, it even falls, and the model is bad. Is it the
# data? The mask? The learning rate? If you guess, you start one training after another,
# and lose days. We make nine mistakes on purpose, all of them common, and see which of
# five quick tests finds each. (One passes them all.) The tests are yours to take along.

# %% [markdown] tags=["jax"]
# This page uses **JAX**. The same page in PyTorch:
# [debugging_torch](debugging_torch.ipynb).

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

import jax
import numpy as np
from flax import nnx

from helpers import Settings, as_numpy, check, from_arrays, to_arrays
from helpers.data import lines
from helpers.jax import LanguageModel, SequenceClassifier, activations, fit, from_texts
from helpers.jax.frameworks import cross_entropy, tensor
from helpers.settings import warmup_constant
from helpers.show import plots, power, recorded, say, table

plots.use_style()
# All digits of float32: JAX's default on recent GPUs is TF32, with 11 significant bits.
jax.config.update("jax_default_matmul_precision", "highest")

# %% [markdown] tags=["shared"]
# ## Five tests, of one thing each
#
# A training can fail in many places. Each test looks at one, the cheapest come first,
# and each may assume that those before it have passed:
#
# | test | passes if | finds, for example |
# |---|---|---|
# | 1. loss at the start | the loss is that of **guessing** | huge weights |
# | 2. what must not be seen | changing it changes no prediction | a wrong mask |
# | 3. gradients and steps | each parameter gets a gradient, changes | a layer cut off |
# | 4. one batch by heart | its loss falls close to 0 | a wrong loss |
# | 5. new data | they are predicted better than by guessing | labels of other rows |
#
# The loss of guessing is $\ln c$ for $c$ classes that are equally frequent (else the
# entropy of their shares), and for a forecast the variance of the targets.
#
# Test 0 is yours: look at a few examples with their labels, as they enter the model.
# Does each label fit its example? Are the numbers about 1 in size? Ours are single
# lines in C, JavaScript, Python or English; the label says in which. Each character is
# a one-hot vector, and `real` is True where there is one.

# %% tags=["shared"]
texts, labels, test_texts, test_labels = lines.languages()
x, real = from_texts(texts, 41)  # b s i, b s; lines have up to 40: all have padding
for text, label in zip(texts[:4], labels, strict=False):
    print(lines.LANGUAGES[label], text, sep=": ")
learn = x[:900], real[:900], labels[:900]
held_out = x[900:1220], real[900:1220], labels[900:1220]

# %% [markdown] tags=["shared"]
# The model is that of *Your own data*, in a loop as short as loops can be:

# %% [markdown] tags=["jax"]
# `nnx.jit` compiles the update. A function is no array, so `loss_fn` is *static*: each
# loss has a program of its own. `nnx.cached_partial` takes model and optimiser apart
# once, not in every step. The rate rises from 0 in ten updates.

# %% tags=["jax"]
from functools import partial

import optax

sizes = {"n_inputs": 128, "m": 32, "n_outputs": 4, "max_length": 41}
sizes |= {"n_blocks": 1, "n_heads": 4, "f": 64}
adam = optax.adam(optax.linear_schedule(0.0, 3e-3, transition_steps=10))


def new_model(kind=SequenceClassifier, seed=0, **changes):
    """A model with new weights, of these sizes but for the changes."""
    return kind(**(sizes | changes), rngs=nnx.Rngs(seed))


def class_loss(model, x, real, labels):
    """Mean cross-entropy and accuracy of the classes ``b``."""
    return cross_entropy(lambda x: model(x, real), x, labels)


# %% tags=["jax"]
@partial(nnx.jit, static_argnames="loss_fn")  # a function, not an array
def make_update(model, optimizer, loss_fn, batch):
    """One update, in place."""
    grads, _ = nnx.grad(loss_fn, has_aux=True)(model, *batch)
    optimizer.update(model, grads)


def train_model(model, loss_fn, batches):
    """A loop like yours: a new optimiser, and an update for each batch."""
    optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
    model.train()  # dropout on
    step = nnx.cached_partial(make_update, model, optimizer)
    for batch in batches:
        step(loss_fn, batch)


# %% [markdown] tags=["shared"]
# We train on one batch three times, twice with a mistake: a softmax before the loss, or
# the labels of other rows.


# %% tags=["jax"]
def softmax_twice(model, x, real, labels):
    """Cross-entropy of probabilities, as if they were logits."""
    return class_loss(lambda *given: jax.nn.softmax(model(*given)), x, real, labels)


# %% mystnb={"image": {"alt": "The loss of one batch, divided by that of guessing, over 84 updates. Without a mistake it falls from 1 to almost 0, and with shifted labels likewise. With a softmax before the loss it falls, too, but stays above a dotted line at a half."}} tags=["shared", "figure"]
loop = {"learning_rate": 3e-3, "warmup": 10, "schedule": warmup_constant}
by_heart = Settings(n_train=32, batch_size=32, epochs=84, **loop)
cases = {"no mistake": (class_loss, labels)}
cases["labels shifted"] = class_loss, np.roll(labels, 1)
cases["a softmax before the loss"] = softmax_twice, labels
found = {}
for name, (loss_fn, targets) in cases.items():
    batch = x[:32], real[:32], targets[:32]
    losses = fit(new_model(), loss_fn, batch, by_heart)["loss"]
    found[name] = np.arange(84), losses / np.log(4)
panels = {"loss of one batch / guessing": found}
fig = plots.curves(panels, x="update", size=(4.9, 2.6))
least = np.log(1 + 3 / np.e) / np.log(4)  # with the softmax
fig.axes[0].axhline(least, color=plots.EDGE, ls=":", zorder=0)
fig

# %% [markdown] tags=["shared"]
# **A falling loss proves little**: with shifted labels it falls as without a mistake.
# The softmax shows only at the end: the best logits are then 1 for the right class, 0
# for three: a loss of $\ln(1+3/e)$, 0.54 of guessing, the dotted line.

# %% [markdown] tags=["shared"]
# **To take along**: the next five cells need nothing else of this page. You give them:
#
# | argument | yours |
# |---|---|
# | `model`, `loss_fn` | `loss_fn(model, *batch)` returns loss *and* metrics (or `{}`) |
# | `train` | `train(model, loss_fn, batches)`: your loop, an update for each |
# | `batches`, `new` | lists of batches, to learn from and to be judged by |
# | `guess` | the loss of guessing |
# | `predict` | `predict(model, *batch)`: the predictions |
# | `changed` | `changed(*batch)`: the batch, with new values where nothing may look |
# | `n` | the updates of test 4 |
#
# The last three tests train the model, each from its first weights. Afterwards make a
# new model. Parameters that you have frozen (`requires_grad` in PyTorch, `wrt` in JAX)
# are left out of test 3.


# %% tags=["jax"]
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

call = nnx.jit(lambda model, f, batch: f(model, *batch), static_argnums=1)  # compiled


def evaluated(model, function, batch):
    """``function(model, *batch)`` with dropout off."""
    model.eval()
    return call(model, function, batch)


def mean_loss(model, loss_fn, batches):
    """The mean loss of batches."""
    return np.mean([float(evaluated(model, loss_fn, batch)[0]) for batch in batches])


def leak(model, predict, batch, changed):
    """The largest change of a prediction by what it must not depend on."""
    new = evaluated(model, predict, changed(*batch))
    return float(jnp.abs(evaluated(model, predict, batch) - new).max())


# %% tags=["jax"]
def trained(model, wrt):
    """The parameters that are not frozen, those that ``wrt`` chooses, by name."""
    pairs = jax.tree.leaves_with_path(nnx.state(model, wrt))
    return {jax.tree_util.keystr(path): param for path, param in pairs}


@partial(nnx.jit, static_argnums=(1, 3))
def gradients_of(model, loss_fn, batch, wrt):
    """The gradient by each of these; zeros where none arrives."""
    gradient = nnx.grad(loss_fn, argnums=nnx.DiffState(0, wrt), has_aux=True)
    return jax.tree.leaves(gradient(model, *batch)[0])


def gradients_and_steps(model, loss_fn, train, batch, wrt):
    """Norms by name: of each gradient, and each parameter's change in two updates."""
    before = trained(model, wrt)
    grads = gradients_of(model, loss_fn, batch, wrt)
    train(model, loss_fn, 2 * [batch])  # two: a warm-up may begin with the rate 0
    norms = {f"gradient of {n}": x for n, x in zip(before, grads, strict=True)}
    for n, param in trained(model, wrt).items():
        norms[f"change of {n}"] = param - before[n]
    return {n: np.linalg.norm(x) for n, x in norms.items()}


# %% tags=["jax"]
def five_tests(
    model, loss_fn, train, batches, new, guess, predict, changed, wrt=nnx.Param, n=84
):
    """Number of each test, and whether it passes; a test runs when it is asked for."""
    batch, start = batches[0], jax.tree.map(jnp.copy, nnx.state(model, nnx.Param))
    loss = mean_loss(model, loss_fn, [batch]) / guess
    yield loss, 0.7 < loss < 1.5  # False for NaN
    change = leak(model, predict, batch, changed)
    yield change, change < 1e-3
    norms = [*gradients_and_steps(model, loss_fn, train, batch, wrt).values()]
    yield np.min(norms), np.isfinite(norms).all() and np.min(norms) > 0
    nnx.update(model, start)
    train(model, loss_fn, n * [batch])
    loss = mean_loss(model, loss_fn, [batch]) / guess
    yield loss, loss < 0.2
    nnx.update(model, start)
    train(model, loss_fn, batches)
    loss = mean_loss(model, loss_fn, new) / guess
    yield loss, loss < 0.8


# %% tags=["shared"]
LOOK_FOR = {  # the usual mistakes, if a test fails
    "loss at the start": "inputs or weights too large; empty sequences; a wrong guess",
    "what must not be seen": "a mask upside down, or none; targets not shifted",
    "gradients and steps": "detach, stop_gradient; an optimiser of other parameters",
    "one batch by heart": "a softmax before the loss; gradients that add up; the rate",
    "new data": "labels of other rows; new data prepared differently; too few data",
}


def run_tests(model, loss_fn, train, **others):
    """Numbers of the tests up to the first that fails, and whether all pass."""
    numbers = []
    for number, passes in five_tests(model, loss_fn, train, **others):
        numbers.append(number)
        if not passes:
            break
    return numbers, passes


# %% tags=["shared"]
def report(numbers, passes):
    """Print what the tests found, and if one has failed, what to look for."""
    for test, (name, number) in enumerate(zip(LOOK_FOR, numbers, strict=False), 1):
        print(f"test {test}, {name}: {number:.2g}")
    print("All pass." if passes else f"This FAILS. Look for: {LOOK_FOR[name]}.")


# %% [markdown] tags=["shared"]
# What we give for our lines (they are in random order, so batches take them as they
# stand), and the report on a model without a mistake:


# %% tags=["shared"]
def predict(model, x, real, labels):
    """The logits, ``b c``."""
    return model(x, real)


def changed(x, real, labels):
    """The batch with other numbers in the padding."""
    return x + 3 * ~real[..., None], real, labels


def in_batches(arrays, size=32, epochs=3):
    """Batches on the device; an incomplete last one is left out."""
    starts = range(0, len(arrays[0]) - size + 1, size)
    return epochs * [[tensor(x[i : i + size]) for x in arrays] for i in starts]


def for_tests(data, new=held_out):
    """What the tests need besides model, loss and loop."""
    parts = {"batches": in_batches(data), "new": in_batches(new, epochs=1)}
    return parts | {"guess": np.log(4), "predict": predict, "changed": changed}


healthy, passes = run_tests(new_model(), class_loss, train_model, **for_tests(learn))
report(healthy, passes)


# %% [markdown] tags=["shared"]
# ## Six mistakes, and the test that finds each
#
# The softmax was a mistake in the loss. Two are in the model:


# %% tags=["jax"]
class UpsideDown(SequenceClassifier):
    """Takes the mask the wrong way round."""

    def encode(self, x, real):
        return super().encode(x, ~real)


class CutOff(SequenceClassifier):
    """Lets no gradient through to the embedding."""

    def encode(self, x, real):
        x = jax.lax.stop_gradient(self.positions(self.embed(x)))
        return self.encoder(x, real[:, None, None])


# %% [markdown] tags=["shared"]
# Three are in the weights or the data:

# %% tags=["shared"]
too_large = new_model()
weights = to_arrays(too_large)
from_arrays(too_large, weights | {"output.weight": 100 * weights["output.weight"]})
x, real, labels = learn
empty = real & (np.arange(900) != 3)[:, None]  # the fourth text
mistakes = {
    "an output layer 100 times too large": (too_large, class_loss, learn),
    "an empty text": (new_model(), class_loss, (x, empty, labels)),
    "the mask upside down": (new_model(UpsideDown), class_loss, learn),
    "an embedding cut off": (new_model(CutOff), class_loss, learn),
    "a softmax before the loss": (new_model(), softmax_twice, learn),
    "labels shifted by a row": (new_model(), class_loss, (x, real, np.roll(labels, 1))),
}


# %% tags=["shared"]
results = {
    name: run_tests(model, loss_fn, train_model, **for_tests(data))
    for name, (model, loss_fn, data) in mistakes.items()
}
report(*results["the mask upside down"])


# %% tags=["shared"]
def rows_of_table(results, healthy):
    """Each mistake, the first test that fails, and its number beside the right one."""
    rows = []
    for name, (numbers, passes) in results.items():
        test = "**none**" if passes else f"**{len(numbers)}**"
        right = healthy[len(numbers) - 1]
        rows.append([name, test, f"{numbers[-1]:.2g}", f"{right:.2g}"])
    return rows


# %% tags=["shared", "say"]
head = ["mistake", "fails", "number", "without it"]
say(table(head, *rows_of_table(results, healthy)))

# %% [markdown] tags=["shared"]
# Each mistake passes the tests before its own. (An empty text has no mean, so the loss
# of its batch is NaN.)

# %% tags=["shared", "check"]
# Checked: each mistake fails the test in its row, and nothing else fails
assert [len(numbers) for numbers, _ in results.values()] == [1, 1, 2, 3, 4, 5]
assert not any(passes for _, passes in results.values()) and len(healthy) == 5
found = {name: numbers for name, (numbers, _) in results.items()}
assert np.isnan(found["an empty text"][0]) and found["an embedding cut off"][2] == 0
least = np.log(1 + 3 / np.e) / np.log(4)
assert found["a softmax before the loss"][3] > least - 1e-5
assert not real[:, -1].any() and not held_out[1][:, -1].any()

# %% [markdown] tags=["shared"]
# ## Mistakes in the loop, and one that no test finds

# %% [markdown] tags=["jax"]
# JAX returns everything new: the optimiser's state (Adam's means, and the count that
# the warm-up needs), and the parameters. One mistake loses the first, the other the
# second:


# %% tags=["jax"]
def train_wrong_state(model, loss_fn, batches):
    """The mistake: the optimiser's state is not kept, so each update is the first."""
    for batch in batches:
        optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
        make_update(model, optimizer, loss_fn, batch)


def train_wrong_layer(model, loss_fn, batches):
    """The mistake: a copy is trained, and ``nnx.update`` does not bring it back."""
    train_model(nnx.clone(model), loss_fn, batches)


# %% tags=["jax"]
loops = {
    "the optimiser's state lost": train_wrong_state,
    "trained parameters not put back": train_wrong_layer,
}
without_positions = new_model()
without_positions.positions = nnx.Dropout(0.0)  # changes nothing


# %% tags=["shared"]
later = {
    name: run_tests(new_model(), class_loss, loop, **for_tests(learn))
    for name, loop in loops.items()
}
parts = without_positions, class_loss, train_model
later["positions forgotten"] = run_tests(*parts, **for_tests(learn))

# %% [markdown] tags=["shared"]
# Forgotten positions may pass all five tests, and often the loss is hardly worse. So
# ask directly: **shuffle the real positions**. If no output changes, no order is seen.

# %% tags=["jax"]
forward = nnx.jit(lambda model, x, real: model(x, real))


def outputs(model, x, real):
    """Outputs of a model, as a NumPy array."""
    return as_numpy(forward(model, tensor(x), tensor(real)))


# %% tags=["shared"]
order = np.arange(41)
order[:8] = order[7::-1]  # the first eight characters backwards; all lines have eight
moved = {
    name: np.abs(
        outputs(model, x[:32][:, order], real[:32]) - outputs(model, x[:32], real[:32])
    ).max()
    for name, model in {"with": new_model(), "without": without_positions}.items()
}

# %% tags=["shared", "say"]
say(table(head, *rows_of_table(later, healthy)))
say(
    f"Eight characters backwards change the outputs by {moved['with']:.2g} with "
    f"positions, and by {power(moved['without'])} without them."
)

# %% tags=["shared", "check"]
# Checked: both of the loop are found; forgotten positions only by the shuffle
found = {name: (len(numbers), ok) for name, (numbers, ok) in later.items()}
assert found.pop("positions forgotten") == (5, True) and passes
assert not any(ok for _, ok in found.values())
assert [n for n, _ in found.values()][1:] == [3]  # the first: 3 in JAX, else 4
assert moved["without"] < 1e-4 < 1e-2 < moved["with"]

# %% [markdown] tags=["shared"]
# ## Which test fails tells what to look for
#
# `report` names the usual mistakes. Some take a sentence more, and each test has its
# **false alarms**:
#
# * **Test 1: 0.7 to 1.5 of guessing.** NaN: a sequence is empty (leave it out), or
#   a logarithm got 0 (use `log_softmax`). Too low: something is known already, or the
#   classes are not equally frequent, and `guess` is wrong. *False alarm*: few
#   classes. A correct model with normally distributed logits exceeds the bound from a
#   standard deviation of 1.35 (two classes), 1.55 (four), or 2.7 (a thousand).
# * **Test 2: $<10^{-3}$.** True in a mask means "may look"; a mean must leave padding
#   out. *False alarm*: in float32, rounding changes logits by about a millionth, a
#   real dependence by hundredths or more; in bfloat16, rounding alone exceeds the
#   bound, so test in float32.
# * **Test 3: not 0.** `gradients_and_steps` names each norm. A layer may not be called
#   at all. *False alarm*: an expert that no token chose, or an output layer that begins
#   with zeros. (With it, test 2 sees nothing: repeat test 2 after test 5.)
# * **Test 4: 0.2 of guessing, in 84 updates.** *False alarm*: a small model, a low
#   rate, or equal inputs with different labels; first try `n=500` and another rate.
# * **Test 5: 0.8 of guessing.** Shuffle inputs and labels in one order; prepare all
#   data by one function. *False alarm*: a hard task; a baseline that learns where the
#   model does not tells the mistake from the task.
# * **All pass, but the result is too good**: a leak. If it is too bad,
#   shuffle the positions (above), and compare with a baseline.

# %% [markdown] tags=["jax"]
# In a loop of your own, `jax.tree.map(jnp.linalg.norm, grads)` shows the norms. If a
# NaN appears later, `jax.config.update("jax_debug_nans", True)` names the operation
# (also where a NaN is intended). An index out of range raises no error: `table[i]`
# takes the last row; `nnx.Embed`, and a label beyond the classes, give NaN.

# %% [markdown] tags=["shared"]
# **Exercise 1, predict, then run.** Somebody's table contains a column that was
# computed from the label. For our lines: the first character is replaced by the label.
# Which of the five tests finds it?


# %% tags=["shared", "answer"]
def told(x, labels):
    """Lines whose first character is the label."""
    return np.concatenate([np.eye(128, dtype=np.float32)[labels][:, None], x[:, 1:]], 1)


x, real, labels = held_out
others = for_tests(
    (told(learn[0], learn[2]), *learn[1:]), (told(x, labels), real, labels)
)
found, passes = run_tests(new_model(), class_loss, train_model, **others)
assert passes and found[4] < 0.3 < healthy[4]
say(
    f"None: all five pass, and the loss on new lines is {found[4]:.2g} of guessing "
    f"(without this column, {healthy[4]:.2g}). A leak shows itself only by a result "
    "that is too good, and by asking what will be known when the model is used."
)

# %% [markdown] tags=["shared"]
# **Exercise 2, predict, then run.** Somebody writes test 2 without `model.eval()`, and
# the model has `dropout=0.1`. What does the test report for a correct model?

# %% tags=["shared", "answer"]
model = new_model(dropout=0.1)
model.train()
few = x[:32], real[:32]
change = np.abs(outputs(model, *few) - outputs(model, *few)).max()
batch = [tensor(array[:32]) for array in (x, real, labels)]
assert change > 1e-3 > leak(model, predict, batch, changed)
say(
    f"A change, here of {change:.2g}, even if the padding stays the same: every pass "
    "draws other activations to drop. Whatever is compared, is compared in evaluation "
    "mode. The function `leak` sees to it."
)

# %% [markdown] tags=["shared"]
# ## First the learning rate
#
# If all tests pass, you can tune. Few settings matter as much as the learning rate. If
# it is too high, the loss jumps or stays at guessing; if too low, it creeps. Try rates
# a factor of about three apart, with 84 updates each. (With many settings, a tuner such
# as [Optuna](https://optuna.org) or [Ray Tune](https://docs.ray.io) chooses what to
# try.)

# %% tags=["shared"]
from dataclasses import replace

brief = Settings(
    n_train=900,
    batch_size=32,
    epochs=3,
    learning_rate=3e-3,
    warmup=10,
    schedule=warmup_constant,
)
rates = 10.0 ** np.linspace(-4, -1, 7)
ends = []
for rate in rates:
    chosen = replace(brief, learning_rate=rate)
    losses = fit(new_model(), class_loss, learn, chosen)["loss"]
    ends.append(losses[-brief.updates_per_epoch :].mean())

# %% mystnb={"image": {"alt": "The training loss in the third epoch over the learning rate, which has a logarithmic axis. It falls from the lowest rate to a minimum, and rises again at the highest rates. A dotted line marks the rate before the minimum."}} tags=["shared", "figure"]
panels = {"training loss, third epoch": {"Adam": (rates, np.array(ends))}}
fig = plots.curves(panels, x="learning rate", log_x=10, marks="o", size=(4.9, 2.6))
best = int(np.argmin(ends))
fig.axes[0].axvline(rates[best - 1], color=plots.EDGE, ls=":", zorder=0)  # begin here
fig

# %% tags=["shared", "say"]
say(
    f"In this run, the lowest loss, {ends[best]:.2f}, was at a rate of "
    f"{rates[best]:.2g}. With another seed, neighbours may change places. So begin "
    f"one step to the left (dotted, {ends[best - 1]:.2f}): a lower rate costs time, "
    "a higher one can ruin a long run in one bad batch."
)

# %% tags=["shared", "check"]
# Checked: the best rate lies inside, and both ends have a higher loss
assert 0 < best < 6 and min(ends[0], ends[-1]) > 1.6 * min(ends)

# %% [markdown] tags=["shared"]
# ## Overfitting shows in the validation loss
#
# When a model **overfits**, the training loss falls, and the validation loss turns and
# rises. So train longer: on 900 lines, and on 300 lines repeated three times, so that
# the updates are as many. Look at both losses.

# %% tags=["shared"]
longer = replace(brief, epochs=9)
readers, training, validation = {}, {}, {}
for n in (300, 900):
    readers[n] = new_model()
    some = [np.tile(array[:n], (900 // n, *[1] * (array.ndim - 1))) for array in learn]
    history = fit(readers[n], class_loss, some, longer, validation=held_out)
    updates = longer.updates_per_epoch * (1 + np.arange(longer.epochs))
    by_epoch = history["loss"].reshape(longer.epochs, -1).mean(axis=1)
    training[f"{n} lines"] = updates, by_epoch
    validation[f"{n} lines"] = updates, history["validation_loss"]

# %% mystnb={"image": {"alt": "Two panels over the updates. Both training losses fall. The validation loss with 300 lines falls, turns and rises; with 900 lines it ends below that. Dotted lines mark the lowest point of each."}} tags=["shared", "figure"]
panels = {"training loss": training, "validation loss": validation}
fig = plots.curves(panels, x="update", size=(4.9, 2.6))
ax = fig.axes[1]
for line, (updates, losses) in zip([*ax.lines], validation.values(), strict=True):
    ax.axvline(updates[losses.argmin()], color=line.get_color(), ls=":", zorder=0)
fig

# %% tags=["shared", "say"]
few, more = [losses for _, losses in validation.values()]
say(
    f"With 300 lines, the lowest validation loss is {few.min():.2f} (dotted), and the "
    f"last {few[-1]:.2f}. With three times the data, the lowest is {more.min():.2f}, "
    f"and the last {more[-1]:.2f}."
)

# %% tags=["shared", "check"]
# Checked: 300 lines overfit; 900 lines end below them
assert few[-1] > 1.2 * few.min()
assert more[-1] < 0.8 * few[-1] and more.min() < few.min()
assert all(losses[-1] < 0.3 * losses[0] for _, losses in training.values())

# %% [markdown] tags=["shared"]
# **Early stopping** keeps the weights of the best epoch, and stops when none has been
# better for some epochs (the *patience*). `fit` runs to the end, and keeps the weights
# of the best epoch. Against overfitting, more data help, as here; so do dropout and
# weight decay, which AdamW applies beside the gradient ([Loshchilov & Hutter
# 2019](https://arxiv.org/abs/1711.05101)).

# %% [markdown] tags=["jax"]
# **TensorBoard** shows such curves while a training runs: log numbers in the loop, and
# look with `tensorboard --logdir runs` (`pip install tensorboard`).
#
# ```python
# from tensorboard.summary import Writer  # needs neither framework
#
# writer = Writer("runs/first")
# writer.add_scalar("loss", float(loss), step)
# ```
#
# **The same run twice**: on a GPU, a seed alone does not give the same numbers, because
# sums can be made in any order. Set the variable
# `XLA_FLAGS=--xla_gpu_deterministic_ops=true` before JAX is imported. It costs speed,
# and operations that have no such version raise an error.

# %% [markdown] tags=["shared"]
# **Exercise 3, from a blank cell.** Write early stopping: replace the `...`, and run
# the cell. `check` says whether it is right, or what is wrong.


# %% tags=["shared", "your-turn"]
def my_best_epoch(losses, patience):
    """The epoch whose weights are kept, and the last one that is run, both from 0.

    ``losses``: the validation loss after each epoch, a list of numbers. Training stops
    when ``patience`` epochs in a row have not beaten the best (an equal loss has not),
    or at the end of the list.
    """
    ...


check("debugging.best_epoch", my_best_epoch)


# %% tags=["shared", "answer"]
def my_best_epoch(losses, patience):
    best = 0
    for epoch, loss in enumerate(losses):
        if loss < losses[best]:
            best = epoch
        if epoch - best == patience:
            break
    return best, epoch


assert check("debugging.best_epoch", my_best_epoch)

# %% [markdown] tags=["shared"]
# ## Extra: Two mistakes of language models
#
# Targets that are **not shifted** ask for a token that the model sees; without the
# **causal mask**, it sees the rest of the text, too. So for test 2, `changed` replaces
# the second half of each text, and no prediction of the first half may change.


# %% tags=["jax"]
def new_language_model(**changes):
    """A model of characters with new weights."""
    shape = {"n_tokens": 128, "m": 64, "max_length": 24, "tied": False}
    shape |= {"n_blocks": 1, "n_heads": 4, "f": 128, "norm_first": True}
    return LanguageModel(**(shape | changes), rngs=nnx.Rngs(0))


# %% tags=["shared"]
def shifted(model, tokens):
    """Logits of each token but the first, from those before it."""
    return model(tokens[:, :-1])


def unshifted(model, tokens):
    """The mistake: logits of each token, from a text that ends with it."""
    return model(tokens[:, 1:])


def shifted_loss(model, tokens):
    """Mean cross-entropy and accuracy of the tokens ``b s``."""
    return cross_entropy(lambda x: shifted(model, x), tokens, tokens[:, 1:])


def unshifted_loss(model, tokens):
    """The same with the mistake."""
    return cross_entropy(lambda x: unshifted(model, x), tokens, tokens[:, 1:])


# %% tags=["shared"]
def first_half(predict):
    """A function that returns the predictions of the first half of a text."""
    return lambda model, tokens: predict(model, tokens)[:, :12]


def other_half(tokens):
    """The batch with other tokens in the second half, of 24."""
    return (tokens * tensor(np.arange(24) < 12),)


x, real, _ = learn
tokens = x[real[:, 23]][:, :24].argmax(-1)  # the first 24 characters of longer lines
text_batches, new_texts = in_batches([tokens[:-64]]), in_batches([tokens[-64:]])[:2]
cases = {  # options of the model, its loss, what it predicts
    "no mistake": ({}, shifted_loss, shifted),
    "targets not shifted": ({}, unshifted_loss, unshifted),
    "no causal mask": ({"causal": False}, shifted_loss, shifted),
}

# %% tags=["shared"]
guess, outcomes, final = np.log(128), {}, {}
for name, (options, loss_fn, rule) in cases.items():
    others = {"batches": text_batches, "new": new_texts, "guess": guess}
    others |= {"predict": first_half(rule), "changed": other_half}
    model = new_language_model(**options)
    outcomes[name] = run_tests(model, loss_fn, train_model, **others)
    model = new_language_model(**options)
    train_model(model, loss_fn, text_batches)
    final[name] = mean_loss(model, loss_fn, new_texts) / guess

# %% [markdown] tags=["shared"]
# **Predict, then run.** Which test finds each? And how do their losses on new texts
# compare with that of the right model?

# %% tags=["shared", "answer"]
for name in cases:
    print(name)
    report(*outcomes[name])
right, unshifted_final, unmasked_final = final.values()
assert [len(numbers) for numbers, _ in outcomes.values()] == [5, 2, 2]
assert [passes for _, passes in outcomes.values()] == [True, False, False]
assert unshifted_final < 0.1 < 0.3 < right
say(
    f"Test 2 finds both. The loss on new texts, divided by guessing, is {right:.3f} "
    f"without a mistake, {unshifted_final:.3f} if targets are not shifted, "
    f"{unmasked_final:.3f} without a mask. **Too good** is a symptom, too."
)

# %% [markdown] tags=["shared"]
# ## Extra: An exported model needs none of your classes
#
# Somebody who has your classes needs only your weights, as *safetensors*: nothing but
# arrays, so that a file from a stranger cannot run code. For somebody *without* your
# classes, export the computation, in evaluation mode and for any batch size. Another
# process runs it, without our classes:

# %% tags=["jax"]
import tempfile
from pathlib import Path

from jax import export

folder = Path(tempfile.mkdtemp())
reader = readers[900]
reader.eval()  # else dropout becomes part of the program
test_x, test_real = from_texts(test_texts, 41)

# %% tags=["jax"]
(any_size,) = export.symbolic_shape("b")  # the first axis may have any size
shapes = [(any_size, 41, 128), np.float32], [(any_size, 41), np.bool_]
function = jax.jit(lambda x, real: reader(x, real))
given = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
program = export.export(function, platforms=["cpu", "cuda"])(*given)
(folder / "reader.jax").write_bytes(program.serialize())

script = """
import os, sys, numpy as np
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # a GPU is its parent's, too
from jax import export
model = export.deserialize(open("reader.jax", "rb").read())
np.save("logits.npy", model.call(*np.load("lines.npz").values()))
print(sum(name.startswith(("helpers", "flax")) for name in sys.modules))
"""

# %% tags=["shared"]
import subprocess
import sys

np.savez(folder / "lines.npz", test_x[:32], test_real[:32])
command = [sys.executable, "-I", "-c", script]
alone = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
logits = np.load(folder / "logits.npy")

# %% tags=["shared", "say"]
right = (logits.argmax(1) == test_labels[:32]).sum()
say(
    "The other process has loaded none of our modules. It takes the first line for "
    f"{lines.LANGUAGES[logits[0].argmax()]}; {right} of its 32 answers are right."
)

# %% [markdown] tags=["shared"]
# How lines become arrays, and which number means which language, has to be delivered
# with the program.

# %% tags=["shared", "check"]
# Checked: the exported program gives the model's own outputs
expected = outputs(reader, test_x[:32], test_real[:32])
np.testing.assert_allclose(logits, expected, atol=1e-5)
assert alone.stdout.strip() == "0" and logits.shape == (32, 4)

# %% [markdown] tags=["jax"]
# The file contains StableHLO, a program that other projects' compilers read as well,
# with the weights as constants: new weights need a new file. JAX [promises to read
# it](https://docs.jax.dev/en/latest/export/export.html#compatibility-guarantees) for
# six months; for longer, keep weights and code.

# %% [markdown] tags=["shared"]
# ## Extra: The framework's layers compute the same
#
# The classes of this book were made to be read. Ready-made layers have been tested by
# thousands, but each default is somebody's decision.

# %% [markdown] tags=["jax"]
# Flax has attention, norms and linear layers; the block is yours. Two defaults would
# change our outputs a little: the $\varepsilon$ of the norm, and a tanh in the GELU.


# %% tags=["jax"]
class Block(nnx.Module):
    """A pre-norm block of Flax's own layers: ``b s m, b s -> b s m``."""

    def __init__(self, m, n_heads, f, dropout=0.0, *, rngs):
        self.norm1 = nnx.LayerNorm(m, epsilon=1e-5, rngs=rngs)
        self.norm2 = nnx.LayerNorm(m, epsilon=1e-5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(n_heads, m, decode=False, rngs=rngs)
        self.linear1 = nnx.Linear(m, f, rngs=rngs)
        self.linear2 = nnx.Linear(f, m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x, real):
        mask = real[:, None, None, :]  # b 1 1 k: True = may look
        x = x + self.dropout(self.attention(self.norm1(x), mask=mask))
        hidden = jax.nn.gelu(self.linear1(self.norm2(x)), approximate=False)
        return x + self.dropout(self.linear2(self.dropout(hidden)))


# %% [markdown] tags=["shared"]
# With our weights under its names, it gives our outputs (see the Extra *Weights move*).
# Positions are not in it: add them to the input of the first block. Rotary positions
# turn queries and keys, so they need attention of your own, as in *Positions*. The
# decoder's ready-made block is in *A model that reads and writes*.

# %% [markdown] tags=["jax"]
# | Flax's layers | ours |
# |---|---|
# | mask: True may look | the same |
# | `LayerNorm(epsilon=1e-6)` | 1e-5, as in PyTorch |
# | `jax.nn.gelu` with a tanh | exact: `approximate=False` |
# | `MultiHeadAttention` needs `decode`, and returns no weights | outputs and weights |
# | first weights: standard deviation $1/\sqrt n$ | $1/\sqrt{3n}$ |
# | kernels `m h d`; `dot_product_attention` takes `b s h d` | `m 3m`; `b h s d` |

# %% [markdown] tags=["shared"]
# ## Extra: Less memory, and (almost) the same gradient
#
# A model grows, and no longer fits. Before you buy a machine: three ways give
# the same gradient from less memory, or almost the same.
#
# * **Gradient accumulation**: the mean of the gradients of four equal parts of a batch
#   is that of the batch, if its loss is a mean over examples.
# * **Recomputation**: keep only the input of each block, and compute its inside again.
# * **Half precision**: multiply in bfloat16, but keep the weights in float32, or small
#   updates would be rounded away. `fit` takes `half_loss` below as any other loss.


# %% tags=["jax"]
@partial(nnx.jit, static_argnums=0)  # the loss is a function, not an array
def gradients(loss_fn, model, batch):
    """Gradient of each parameter, by name."""
    found, _ = nnx.grad(loss_fn, has_aux=True)(model, *batch)
    flat = nnx.to_flat_state(found)  # pairs of a path and a gradient
    return {".".join(map(str, path)): gradient[...] for path, gradient in flat}


# %% tags=["shared"]
def in_parts(loss_fn, model, batch, n=4):
    """The gradient as the mean over ``n`` equal parts of a batch."""
    total = {}
    for part in zip(*(np.split(array, n) for array in batch), strict=True):
        for name, gradient in gradients(loss_fn, model, part).items():
            total[name] = total.get(name, 0) + as_numpy(gradient) / n
    return total


# %% tags=["jax"]
class Recomputed(SequenceClassifier):
    """Keeps only the input of each block."""

    def encode(self, x, real):
        x, mask = self.positions(self.embed(x)), real[:, None, None]
        run = nnx.remat(lambda block, x, mask: block(x, mask)[0])
        for block in self.encoder.blocks:
            x = run(block, x, mask)
        return self.encoder.norm(x)


# %% tags=["jax"]
import jax.numpy as jnp


def half_loss(model, *batch):
    """The loss with matrix products in bfloat16, but for the last one."""
    half = nnx.clone(model)
    for _, layer in nnx.iter_graph(half):
        if isinstance(layer, nnx.Linear) and layer is not half.output:
            layer.dtype = jnp.bfloat16  # the weights stay float32
    found = class_loss(half, *batch)
    nnx.update(model, nnx.state(half, nnx.RngState))  # new masks in the next update
    return found


# %% tags=["shared", "experiment"]
# Experiment: MiB kept by a larger model, and the distance of its gradients
large = {"m": 128, "n_blocks": 2, "f": 512, "max_length": 128}
plain, thrifty = new_model(**large), new_model(Recomputed, **large)
rng = np.random.default_rng(0)
long = np.eye(128, dtype=np.float32)[rng.integers(128, size=(16, 128))]
batch = long, np.ones((16, 128), bool), rng.integers(4, size=16)
ways = {  # what computes the gradient, its loss, model, and texts at one time
    "plain": (gradients, class_loss, plain, 16),
    "four quarters": (in_parts, class_loss, plain, 4),
    "recomputation": (gradients, class_loss, thrifty, 16),
    "half precision": (gradients, half_loss, plain, 16),
}
cost, flat = {}, {}
for name, (way, loss_fn, model, n) in ways.items():
    kept = activations(model, loss_fn, *(tensor(array[:n]) for array in batch))
    found = way(loss_fn, model, batch).values()
    flat[name] = np.concatenate([as_numpy(gradient).ravel() for gradient in found])
    away = np.linalg.norm(flat[name] - flat["plain"]) / np.linalg.norm(flat["plain"])
    cost[name] = sum(np.prod(a.shape) * a.dtype.itemsize for a in kept) / 2**20, away

# %% tags=["shared", "say"]
rows = [[name, f"{kept:.0f}", power(away)] for name, (kept, away) in cost.items()]
head = ["gradient of 16 texts", "MiB kept for backward", "distance from the first"]
say(table(head, *rows))

# %% [markdown] tags=["shared"]
# The distance is relative to the length of the whole gradient. bfloat16 keeps eight
# significant bits (float32: 24), so its gradient differs. Recomputation costs a second
# forward pass. bfloat16 is also fast on NVIDIA GPUs from Ampere (2020) on; a T4 is
# older.

# %% tags=["shared", "check"]
# Checked: quarters keep a quarter, recomputation less, and the gradients agree
base = cost["plain"][0]
assert 0.2 < cost["four quarters"][0] / base < 0.3
assert cost["recomputation"][0] < 0.2 * base and cost["half precision"][0] < 0.9 * base
assert cost["four quarters"][1] < 1e-5 and cost["recomputation"][1] < 1e-5
assert 1e-4 < cost["half precision"][1] < 0.1

# %% [markdown] tags=["jax"]
# In a loop of your own, `optax.MultiSteps` adds the parts up. `jax.jit` has fused
# operations all along: it compiles the whole gradient, once for each new shape. Without
# it, every operation is compiled and called by itself. (JAX chooses the device: a GPU
# or TPU if its build for one is installed, else the CPU.) The times
# were recorded once, for a model of this size:

# %% tags=["jax", "say"]
rows = [
    [run["about"]["device"], way, f"{one['first_s']:.1f}", f"{one['later_ms']:.0f}"]
    for run in recorded("compilation-jax")
    for way, one in run["ways"].items()
]
say(table(["device", "gradient", "first call (s)", "later calls (ms)"], *rows))

# %% [markdown] tags=["shared"]
# ## Extra: A training goes on from a checkpoint
#
# Long trainings are interrupted, by a full disk, or when a machine is needed by others.
# To go on as if nothing had happened takes more than the weights: Adam's means of each
# gradient and of its square, the place in the schedule, and how many epochs are done. A
# **checkpoint** keeps all of that. The order of the batches follows from the number of
# the epoch.


# %% tags=["shared"]
def rows_of(epoch):
    """Rows of 28 batches: they follow from the number of the epoch."""
    return np.random.default_rng(epoch).permutation(900)[:896].reshape(28, 32)


# %% [markdown] tags=["jax"]
# [Orbax](https://github.com/google/orbax) keeps any tree of arrays, on any number of
# devices, and a folder gets its name when it is complete. Optax has the place in the
# schedule in the optimiser's state, beside Adam's means.


# %% tags=["jax"]
from orbax.checkpoint import CheckpointManager, args

optimizer = optax.adam(optax.linear_schedule(3e-4, 3e-3, transition_steps=28))


@partial(jax.jit, static_argnames="graph")
def one_epoch(kept, rest, graph, rows):
    """An update for each row of ``rows``, ``n b``."""

    def loss_of(params, batch):
        return class_loss(nnx.merge(graph, params, rest), *batch)[0]

    def update(kept, batch):
        grads = jax.grad(loss_of)(kept["params"], batch)
        steps, opt_state = optimizer.update(grads, kept["opt_state"])
        params = optax.apply_updates(kept["params"], steps)
        return {"params": params, "opt_state": opt_state}, None

    batches = [jnp.asarray(array)[rows] for array in learn]
    return jax.lax.scan(update, kept, batches)[0]


# %% tags=["jax"]
def train(path, epochs):
    """Train for so many epochs; those in the checkpoint are not repeated."""
    model = new_model()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    kept = {"params": params, "opt_state": optimizer.init(params)}
    with CheckpointManager(path) as manager:
        done = manager.latest_step() or 0
        if done:
            kept = manager.restore(done, args=args.StandardRestore(kept))
            kept = jax.tree.map(np.asarray, kept)  # tied to no device: as it was saved
        for epoch in range(done, epochs):
            kept = one_epoch(kept, rest, graph, rows_of(epoch))
            manager.save(epoch + 1, args=args.StandardSave(kept))
            manager.wait_until_finished()
    nnx.update(model, kept["params"])
    return model


# %% tags=["shared"]
train(folder / "interrupted", epochs=2)  # and then the machine is needed
resumed = train(folder / "interrupted", epochs=3)
at_once = train(folder / "at_once", epochs=3)

# %% tags=["jax", "check"]
# Checked: weights as without interruption; the last checkpoint is of epoch 3
expected = to_arrays(at_once)
for name, array in to_arrays(resumed).items():
    np.testing.assert_allclose(array, expected[name], atol=1e-4, err_msg=name)
with CheckpointManager(folder / "at_once") as manager:
    assert manager.latest_step() == 3

# %% [markdown] tags=["shared"]
# With dropout, its random numbers belong to the checkpoint, too, or, as in `fit` for
# PyTorch, each epoch begins with a seed of its own.
#
# ## Extra: Weights move between libraries
#
# JAX and PyTorch read the same file of our weights, by `save_weights` and
# `load_weights`. Other libraries have other names. Here is a whole encoder of
# ready-made blocks, and our encoder's weights get the names that it uses:


# %% tags=["jax"]
class ReadyMade(nnx.Module):
    """A pre-norm encoder of Flax's own layers: ``b s m, b s -> b s m``."""

    def __init__(self, n_blocks, m, n_heads, f, dropout=0.0, *, rngs):
        blocks = [Block(m, n_heads, f, dropout, rngs=rngs) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        self.norm = nnx.LayerNorm(m, epsilon=1e-5, rngs=rngs)

    def __call__(self, x, real):
        for block in self.blocks:
            x = block(x, real)
        return self.norm(x)


# %% tags=["jax"]
def renamed(encoder):
    """Weights of our ``Encoder`` under Flax's paths; queries, keys, values by head."""
    n_heads, state = encoder.blocks[0].attention.n_heads, {}
    for path, param in nnx.to_flat_state(nnx.state(encoder, nnx.Param)):
        array, path = param[...], tuple(key for key in path if key != "ffn")
        if "qkv" in path:  # m 3m, or 3m
            parts = jnp.split(array, 3, axis=-1)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                by_head = part.reshape(*part.shape[:-1], n_heads, -1)  # m h d, or h d
                state[*path[:-2], name, path[-1]] = by_head
        elif path[-2:] == ("out", "kernel"):
            state[path] = array.reshape(n_heads, -1, array.shape[1])  # h d m
        else:
            state[path] = array
    return state


# %% tags=["jax"]
own = ReadyMade(1, 32, 4, 64, rngs=nnx.Rngs(1))
weights = renamed(reader.encoder)
for path, param in nnx.to_flat_state(nnx.state(own, nnx.Param)):
    param[...] = weights[path]

# %% tags=["shared", "check"]
# Checked: at real positions, both encoders agree to 1e-5
x = np.random.default_rng(0).normal(size=(2, 7, 32))
real = np.arange(7) < np.array([[7], [4]])  # b s
expected = outputs(reader.encoder, x, real[:, None, None])
np.testing.assert_allclose(outputs(own, x, real)[real], expected[real], atol=1e-5)

# %% [markdown] tags=["shared"]
# Mind the order of features, too: in rotary positions, Meta's code for LLaMA pairs $2i$
# with $2i + 1$, as ours does, and Hugging Face's pairs $i$ with $i + d/2$, with the
# weights reordered to match.

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Accumulate gradients yourself: replace the `...`, and run the cell. `check` tries your
# function, also with numbers that do not divide evenly, and says whether it is right,
# or what is wrong. In real loops, this goes wrong silently.


# %% tags=["shared", "your-turn"]
def my_accumulate(gradient, x, y, n):
    """Gradient of the mean loss over all rows, ``b i, b -> i``, from ``n`` parts.

    ``gradient(x, y)`` is that of the mean over the rows it gets. It returns inf for
    parts that are too large (more than six rows) or too small (fewer than ``b // n``).
    ``n`` need not divide ``b``.
    """
    ...


check("debugging.accumulate", my_accumulate)


# %% tags=["jax", "answer"]
def my_accumulate(gradient, x, y, n):
    parts = zip(jnp.array_split(x, n), jnp.array_split(y, n), strict=True)
    return sum(gradient(*part) * len(part[0]) for part in parts) / len(x)


assert check("debugging.accumulate", my_accumulate)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** A model learns one batch by heart: its loss falls to almost 0. Which mistake
# can still be there?
#
# <details><summary>A softmax before the loss.</summary>
#
# **No.** Tempting, because the predicted classes stay the same. But probabilities taken
# for logits differ by 1 at most, and such a loss cannot come near 0.
#
# </details>
# <details><summary>An empty text in this batch.</summary>
#
# **No.** It is only one of 32. But it has no mean, so the loss of the whole batch is
# NaN, and does not fall.
#
# </details>
# <details><summary>Labels that belong to other rows.</summary>
#
# **Right.** A model with enough weights memorises any pairs. Whether there was
# something to learn shows only on data that it has not seen.
#
# </details>
#
# **2.** The validation loss rises, and the validation accuracy rises, too. How can that
# be?
#
# <details><summary>A few wrong answers are getting very sure.</summary>
#
# **Right.** The loss counts how sure an answer is, without a limit; the accuracy only
# whether it is right. So they may choose different epochs.
#
# </details>
# <details><summary>It cannot: one of the two is computed wrongly.</summary>
#
# **No.** Tempting, because both judge the same outputs. But they ask different things
# of them.
#
# </details>
# <details><summary>Validation data have leaked into training.</summary>
#
# **No.** That would explain the accuracy. But then the model would learn these answers,
# and their loss would fall.
#
# </details>
#
# **3.** One text of a batch is empty, so its mean over positions is 0/0. The loss is
# the mean over the batch. What happens if nothing stops the training?
#
# <details><summary>The model learns from the other texts.</summary>
#
# **No.** It seems so, since each text is computed by itself. But loss and gradients are
# sums over all of them, and a sum with a NaN is NaN.
#
# </details>
# <details><summary>One update is lost, and the next repairs it.</summary>
#
# **No.** Each update does have a gradient of its own. But it is added to weights that
# are NaN by now.
#
# </details>
# <details><summary>All weights become NaN, and stay so.</summary>
#
# **Right.** The text's NaN is in the gradient of each weight it passes through, and an
# update adds it. So a good loop stops before the update.
#
# </details>
#
# **4.** A batch is cut into four equal parts. The gradients of their mean losses are
# *added*, and then comes one update. What is wrong?
#
# <details><summary>Nothing: the parts add up to the batch.</summary>
#
# **No.** For sums they would. But each mean has divided by a quarter of the rows, so it
# counts four times as much as its share.
#
# </details>
# <details><summary>The gradient is four times too large.</summary>
#
# **Right.** Their mean is the gradient of the batch. Adam hides the factor, because it
# divides by the gradient's size; plain gradient descent and clipping do not.
#
# </details>
# <details><summary>The gradient is noisier than that of the batch.</summary>
#
# **No.** That is true of each part. But the mean of the four is the batch's gradient,
# to rounding.
#
# </details>
#
# **5.** The loss of a new model for ten classes starts at 9, far above $\ln 10 = 2.3$.
# What follows?
#
# <details><summary>The learning rate is too high.</summary>
#
# **No.** Later that would raise the loss, too. But before the first update no rate has
# been used.
#
# </details>
# <details><summary>The first outputs are too large.</summary>
#
# **Right.** Large logits mean sure answers, and they are mostly wrong. Look at the
# scale of the inputs and of the last layer.
#
# </details>
# <details><summary>The labels are in the wrong order.</summary>
#
# **No.** A common mistake, but it does not show here: a new model fits no order of
# labels better than another.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * If training fails, test in order: loss at the start, what must not be seen,
#   gradients and steps, one batch, new data. A falling loss proves little.
# * A result that is too good is a symptom, too: of a leak.
# * Then choose the learning rate; then more data, early stopping, dropout.
# * Weights need your classes, an exported program does not. To go on with a training,
#   keep the optimiser's state, too.

# %% [markdown] tags=["jax"]
# Next comes [what attention costs, in JAX](costs_jax.ipynb): the memory and the time
# that a model needs, before it is trained.
