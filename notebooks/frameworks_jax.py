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
# # Two frameworks
#
# By the end you can train a model on handwritten digits in twenty lines, judge it on
# new data, and find mistakes that raise no error. You need: Python with NumPy, matrix
# products, and a first idea of gradient descent. If you know arrays and gradients in
# this framework, begin at *A module is a tree of parameters*.
#
# No rules tell a 4 from a 9, but a model learns it from examples: training needs
# gradients with respect to all its parameters, thousands of times. NumPy computes no
# gradients and uses no GPU; JAX and PyTorch do both. **JAX** turns *pure* functions,
# whose result depends on the arguments alone, into other functions, such as their
# gradients. **PyTorch** works with objects: its arrays, called *tensors*, can record
# how they were computed, and training changes parameters in place.

# %% [markdown] tags=["jax"]
# This page uses **JAX**, with Flax NNX for layers and Optax for optimisers. The same
# page in PyTorch: [frameworks_torch](frameworks_torch.ipynb).

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

import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_breast_cancer, load_digits

from helpers.show import drawing, plots, say
from helpers.weights import as_numpy, load_weights, save_weights, to_arrays

jax.config.update("jax_default_matmul_precision", "highest")
plots.use_style()

# %% [markdown] tags=["shared"]
# ## Training repeats one update
#
# The model of this page recognises handwritten digits. It learns in a loop:

# %% mystnb={"image": {"alt": "The training loop: a batch of inputs goes through the model; with the labels it gives the loss. The gradient of the loss goes to the optimiser, which changes the model. Then comes the next batch."}} tags=["shared", "figure"]
drawing("basic-training-loop")

# %% [markdown] tags=["shared"]
# A batch of pictures goes through the **model**, a function with many numbers to be
# learned, its **parameters**. The **loss function** compares the outputs with the
# labels; the *loss* is one number that says how wrong the model is. The **gradient**
# says how the loss changes with each parameter, and the **optimiser** changes all
# parameters a little, to make the loss smaller.
#
# The data are the 1,797 digits of scikit-learn: *training* data, from which the model
# learns, *validation* data, for choosing settings, and *test* data, used once, at the
# end. A comment such as `# b i` names the axes of an array: $b$ examples with $i$
# inputs each.

# %% tags=["shared"]
pixels, classes = load_digits(return_X_y=True)  # b i, b
order = np.random.default_rng(0).permutation(len(pixels))
pixels, classes = pixels[order] / 16, classes[order]  # ink from 0 to 1
train_rows, validation_rows = slice(1197), slice(1197, 1437)
test_rows = slice(1437, None)
training = (pixels[train_rows], classes[train_rows])
validation = (pixels[validation_rows], classes[validation_rows])
test = (pixels[test_rows], classes[test_rows])

# %% mystnb={"image": {"alt": "A row of ten handwritten digits of 8 by 8 pixels, grey and blurred, one of each class; below each its class."}} tags=["shared", "figure"]
shown = [np.flatnonzero(classes[train_rows] == label)[0] for label in range(10)]
images = (255 * pixels[shown]).astype(np.uint8).reshape(1, -1, 8, 8)
captions = [[str(label) for label in classes[shown]]]
plots.pictures(images, captions=captions, titles=["one training digit of each class"])

# %% tags=["shared", "check"]
# Checked: each digit is in one part, and each part has all ten classes
parts = [np.arange(1797)[rows] for rows in (train_rows, validation_rows, test_rows)]
np.testing.assert_array_equal(np.concatenate(parts), np.arange(len(pixels)))
assert all(set(classes[part]) == set(range(10)) for part in parts)

# %% [markdown] tags=["shared"]
# ## An array has a shape, a dtype and a device
#
# Everything in this loop is an array, from the pictures to the parameters. Besides a
# *shape* and a *dtype*, as in NumPy, it has a *device*: the CPU or GPU that computes
# with it. On all pages, `tensor(…)` turns an array of NumPy into one of the framework,
# in float32, not float64: half the memory, and much faster on a GPU.

# %% [markdown] tags=["jax"]
# `jax.numpy` has NumPy's functions under NumPy's names. New arrays are on the GPU or
# TPU if there is one. (In Colab, choose it under *Runtime*, *Change runtime type*; JAX
# is installed there for both.)


# %% tags=["jax", "export"]
def tensor(x):
    """An array of NumPy on the device: float32, int32, uint8 or bool."""
    return jnp.asarray(x)


# %% tags=["jax"]
a = tensor([[1.0, 2, 3], [4, 5, 6]])  # b i
a.shape, a.dtype, a.device

# %% [markdown] tags=["jax"]
# JAX arrays never change: `a[0, 0] = 7` is an error, and `a.at[0, 0].set(7)` returns a
# new array. So a function cannot change the arrays that it is given.

# %% tags=["jax"]
changed = a.at[0, 0].set(7)  # a new array; a is as before
row = changed[0]
row = row.at[:].set(0)  # a new array, too; changed is as before
changed

# %% tags=["jax", "check"]
# Checked: float64 becomes float32; set() leaves the arrays as they were
assert tensor(np.ones(3)).dtype == jnp.float32
np.testing.assert_array_equal(a, [[1, 2, 3], [4, 5, 6]])
np.testing.assert_array_equal(changed, [[7, 2, 3], [4, 5, 6]])
np.testing.assert_array_equal(row, [0, 0, 0])

# %% [markdown] tags=["shared"]
# ## Automatic differentiation is exact up to rounding
#
# How do we get the gradient? One way: change each parameter a little, and see how the
# loss changes. This takes one evaluation of the loss per parameter, and is never exact.
# *Automatic differentiation* (autograd in PyTorch) instead applies the chain rule to
# one operation after the other, from the loss back to the parameters, at the cost of a
# few evaluations in all. Here is a neuron with the weight $w = 0.5$, the input $x = 2$
# and the target $y = 1$:

# %% mystnb={"image": {"alt": "A neuron as a column of three operations: w times x, tanh, squared error. Downwards go the values, 0.5, 1.00, 0.76 and the loss 0.06. Upwards go the derivatives of the loss, from 1 over -0.48 and -0.20 to -0.40; each operation multiplies by its own derivative."}} tags=["shared", "figure"]
drawing("chain-rule")

# %% [markdown] tags=["shared"]
# On the way back, every operation multiplies the derivative that it receives by its
# own, and passes the product on. The result, $-0.40$, says: a larger $w$ makes the loss
# smaller. With three weights and seven examples, the loss is a mean:
#
# $$L(w) = \frac1b \sum_{(x, y)} \big(\tanh(x \cdot w) - y\big)^2 .$$

# %% tags=["shared"]
rng = np.random.default_rng(0)
inputs, targets = rng.normal(size=(7, 3)), rng.normal(size=7)  # b i, b
start = np.array([0.5, -1.0, 0.25])  # i

# %% [markdown] tags=["jax"]
# `jax.grad(f)` is a function that computes the gradient of `f` with respect to its
# first argument; `jax.value_and_grad(f)` returns the value of `f` as well. (On
# recent GPUs of NVIDIA, JAX multiplies with 11 significant bits, in TF32; the set-up of
# this page asks for the 24 of float32.)

# %% tags=["jax"]
x, y, w = tensor(inputs), tensor(targets), tensor(start)


def loss_fn(w, x, y):
    """Mean squared error of the neuron: ``i, b i, b -> ``."""
    return ((jnp.tanh(x @ w) - y) ** 2).mean()


loss, gradient = jax.value_and_grad(loss_fn)(w, x, y)
gradient

# %% tags=["shared", "say"]
moved = start - 2 * as_numpy(gradient)
before = np.mean((np.tanh(inputs @ start) - targets) ** 2)
after = np.mean((np.tanh(inputs @ moved) - targets) ** 2)
say(f"""One step against the gradient, `w - 2 * gradient`, lowers the loss from
{before:.2f} to {after:.2f}.""")

# %% tags=["shared", "check"]
# Checked: the gradient is that of the chain rule on paper, and of finite differences
p = np.tanh(inputs @ start)
on_paper = 2 / 7 * ((p - targets) * (1 - p**2)) @ inputs
np.testing.assert_allclose(as_numpy(gradient), on_paper, atol=1e-6)
moves = 1e-4 * np.eye(3)  # of one weight at a time, in float64
up = np.mean((np.tanh(inputs @ (start + moves).T) - targets[:, None]) ** 2, axis=0)
down = np.mean((np.tanh(inputs @ (start - moves).T) - targets[:, None]) ** 2, axis=0)
np.testing.assert_allclose(as_numpy(gradient), (up - down) / 2e-4, atol=1e-6)

# %% [markdown] tags=["shared"]
# ## A module is a tree of parameters
#
# A model has many arrays of parameters. A *module* holds such arrays and other modules:
# a model is a tree with parameters as leaves. This one has two dense layers,
# $y = xW + b$, and between them a ReLU, which sets negative numbers to zero. (Flax
# stores $W$, inputs × outputs; PyTorch stores its transpose.) The model turns $i = 64$
# pixels into $f = 64$ hidden features, and these into $c = 10$ *logits*: the larger a
# logit, the more likely its digit.


# %% tags=["jax"]
class Classifier(nnx.Module):
    """Two dense layers: pixels to logits, ``b i -> b c``."""

    def __init__(self, i, f, c, *, rngs):
        self.hidden = nnx.Linear(i, f, rngs=rngs)
        self.output = nnx.Linear(f, c, rngs=rngs)

    def __call__(self, x):
        return self.output(jax.nn.relu(self.hidden(x)))


# %% [markdown] tags=["shared"]
# The initial parameters are random (exercise 1 asks why), and are drawn from a *seed*,
# so that an experiment can be repeated.

# %% [markdown] tags=["jax"]
# In JAX, every draw is given a *key*, and the same key gives the same numbers: two
# layers with the same key start alike, and nothing warns you. So make a new key
# *before* each draw, by `key, subkey = jax.random.split(key)`: draw with `subkey`, and
# keep `key` for the next split. Flax does this for you: of `rngs = nnx.Rngs(0)`, each
# call `rngs()` returns a new key.


# %% tags=["jax"]
def new_model(i=64, f=64, c=10, seed=0):
    """A classifier whose random parameters come from a seed."""
    return Classifier(i, f, c, rngs=nnx.Rngs(seed))


model = new_model()

# %% [markdown] tags=["jax"]
# `nnx.state(model, nnx.Param)` returns the parameters as a *pytree*: nested dicts,
# lists and tuples with arrays as leaves. `jax.tree.map` applies a function to every
# leaf, and `nnx.update(model, params)` copies such a tree into a model.

# %% tags=["jax"]
params = nnx.state(model, nnx.Param)
{".".join(path): array.shape for path, array in nnx.to_flat_state(params)}

# %% [markdown] tags=["shared"]
# ## Twenty lines train a classifier
#
# A loss and an optimiser are still missing. The model gives ten logits, but training
# needs one number: the *cross-entropy*, minus the logarithm of the probability of the
# right class $y$, averaged over the batch. A *softmax* makes probabilities of the
# logits $z_1$ to $z_c$:
#
# $$p_y = \frac{e^{z_y}}{e^{z_1} + … + e^{z_c}}, \qquad \mathrm{loss} = -\ln p_y .$$
#
# Large logits would overflow in this formula, so leave softmax and logarithm to the
# framework's function, which takes the logits and cannot overflow. The *accuracy*, the
# fraction of correct answers, is for us to read.

# %% [markdown] tags=["jax"]
# Optax's function expects the axis of the classes, `c`, in last place, and returns a
# loss for each label.


# %% tags=["jax"]
def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy: ``b i, b -> ``."""
    logits = model(inputs)  # b c
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)  # b
    accuracy = (logits.argmax(-1) == labels).mean()
    return losses.mean(), {"accuracy": accuracy}


# %% [markdown] tags=["shared"]
# Gradient descent subtracts $\eta\, g$ from each parameter: its gradient $g$ times a
# *learning rate*. (With random batches, it is *stochastic* gradient descent, SGD.)
# *Adam* keeps a running average of $g$ and one of $g^2$ for each parameter $w$. With
# $\overline{g}$ and $\overline{g^2}$ for these averages, a step is
#
# $$w \leftarrow w - \eta\, \overline{g} \Big/ \sqrt{\overline{g^2}} ,$$
#
# so a parameter with small gradients moves about as fast as one with large gradients.
# (Both averages start at zero; a *bias correction* makes up for it. A small number is
# added to the root, so that nothing is divided by zero.)
#
# An *epoch* is one pass through the training data, in a new order. We draw all batches
# in advance: each row of `batches` lists the digits of one.

# %% tags=["shared"]
batch_size, epochs, learning_rate = 64, 10, 0.03
rng, n_train = np.random.default_rng(1), len(pixels[train_rows])
n_batches = n_train // batch_size  # in an epoch; the digits left over are left out
orders = np.array([rng.permutation(n_train) for _ in range(epochs)])
batches = orders[:, : n_batches * batch_size].reshape(-1, batch_size)  # n b

# %% [markdown] tags=["jax"]
# * `optax.adam` is a rule for steps; `nnx.Optimizer` keeps its state, such as Adam's
#   averages, and its `update` changes the model in place.
# * `nnx.value_and_grad` takes the gradient with respect to the parameters of the model;
#   `has_aux=True` says that the loss comes with metrics.
# * `nnx.jit` (for functions of arrays: `jax.jit`) *compiles* a function: at the first
#   call, Python runs it and JAX records its operations; later calls run these as one
#   fast program. (Each `train` makes a new optimiser, and so compiles `update` anew.)


# %% tags=["jax"]
@nnx.jit
def update(model, optimizer, x, y):
    """One step of the optimiser: changes both, returns the loss."""
    compute = nnx.value_and_grad(cross_entropy, has_aux=True)
    (loss, _), gradient = compute(model, x, y)
    optimizer.update(model, gradient)
    return loss


def train(model, x, y, batches, learning_rate):
    """Adam on the rows ``batches`` ``n b``; changes the model, returns the losses."""
    optimizer = nnx.Optimizer(model, optax.adam(learning_rate), wrt=nnx.Param)
    model.train()
    losses = []
    for rows in batches:
        losses.append(update(model, optimizer, x[rows], y[rows]))
    return jnp.stack(losses)


# %% tags=["shared"]
x_train, y_train = tensor(training[0]), tensor(training[1])
model = new_model()
losses = as_numpy(train(model, x_train, y_train, batches, learning_rate))

# %% mystnb={"image": {"alt": "The loss of every update, on a logarithmic axis: from the dotted line of guessing, a steep fall at first, then a gentle one to the end."}} tags=["shared", "figure"]
panels = {"Loss of every update": {"": (np.arange(len(losses)), losses)}}
fig = plots.curves(panels, x="update", y="cross-entropy", log_y=True, size=(5, 2.6))
fig.axes[0].axhline(np.log(10), color=plots.INK, ls=":", lw=0.8)
fig

# %% tags=["shared", "say"]
say(
    f"The loss began at {losses[0]:.2f}; a model that gives each digit the probability "
    f"1/10 has $\\ln 10 = {np.log(10):.2f}$ (dotted). Averaged over the last of the "
    f"{epochs} epochs, it was {losses[-n_batches:].mean():.2f}."
)

# %% [markdown] tags=["shared"]
# That is the whole training, in twenty lines: loss, update and loop.

# %% [markdown] tags=["shared"]
# ## Validation data choose, test data judge
#
# A model may have learned the training digits by heart; what counts is how it does on
# new ones. The validation digits are for choices, here of the learning rate: ours, a
# tenth of it, or ten times as much. With a low rate, ten epochs may not be enough; with
# a high one, the steps jump over the minimum. (If the lowest or the highest were best,
# we would try rates beyond it.) Then come the test digits, once: on average, a model
# looks better on the data that chose it than on new ones.
#
# Some layers behave differently in training. *Dropout*, for example, then sets each
# number to zero with probability $p$, and multiplies the others by $1/(1-p)$ to keep
# the mean. `train()` and `eval()` set the mode. (Our model has no such layer.)

# %% [markdown] tags=["jax"]
# So `predict`, below, begins with `eval()`, and no error tells you if you forget it.
# Nothing else is needed: JAX computes gradients only where `grad` asks for them.


# %% tags=["jax"]
def predict(model, x):
    """Logits of the model in use: ``b i -> b c``."""
    model.eval()
    return as_numpy(model(tensor(x)))


def accuracy(model, x, y):
    """Fraction of the rows that are classified correctly: ``b i, b -> ``."""
    return (predict(model, x).argmax(-1) == y).mean()


# %% tags=["shared"]
models = {learning_rate: model}  # trained above
for rate in (0.003, 0.3):
    models[rate] = new_model()
    train(models[rate], x_train, y_train, batches, rate)
for rate in sorted(models):
    print(f"rate {rate}: validation {accuracy(models[rate], *validation):.1%}")

# %% tags=["shared"]
best = max(models, key=lambda rate: accuracy(models[rate], *validation))
model = models[best]
on_train, on_validation = accuracy(model, *training), accuracy(model, *validation)
on_test, n_test = accuracy(model, *test), len(classes[test_rows])
standard_error = np.sqrt(on_test * (1 - on_test) / n_test)

# %% tags=["shared", "say"]
say(f"""The rate {best} is best. Its model classifies {on_train:.1%} of the training
digits correctly, {on_validation:.1%} of the validation digits, and **{on_test:.1%}** of
the {n_test} test digits. The standard error, {100 * standard_error:.1f} points, says
how far this number typically moves with other test digits. Of the mistakes, the most
confident (class → choice):""")

# %% mystnb={"image": {"alt": "A row of blurred digits of 8 by 8 pixels, all classified wrongly; below each its class and the class that the model chose."}} tags=["shared", "figure"]
labels, logits = classes[test_rows], predict(model, pixels[test_rows])  # b, b c
behind = logits.max(axis=1) - logits[np.arange(len(labels)), labels]  # 0: correct
wrong = behind.argsort()[::-1][: min(8, (behind > 0).sum())]
images = (255 * pixels[test_rows][wrong]).astype(np.uint8).reshape(1, -1, 8, 8)
captions = [[f"{labels[n]} → {logits[n].argmax()}" for n in wrong]]
plots.pictures(images, captions=captions)

# %% [markdown] tags=["shared"]
# What if there are only 50 training digits? We keep the best rate, and draw as many
# batches as before from these 50:

# %% tags=["shared"]
few = new_model()
first_50 = rng.integers(50, size=batches.shape)  # rows: n b
few_losses = as_numpy(train(few, x_train, y_train, first_50, best))
few_known = accuracy(few, pixels[:50], classes[:50])
few_new = accuracy(few, *validation)

# %% tags=["shared", "say"]
say(
    f"The model classifies {few_known:.0%} of these 50 digits correctly, but only "
    f"{few_new:.1%} of the validation digits. A large gap between training and new "
    "data is called *overfitting*."
)

# %% tags=["shared", "check"]
# Checked: loss below 0.15, test above 94 %; 50 digits are learned, new ones suffer
assert losses[0] > 2 and losses[-n_batches:].mean() < 0.15
assert on_test > 0.94 and on_validation > accuracy(models[0.003], *validation)
hits = predict(model, pixels[test_rows]).argmax(-1) == classes[test_rows]
np.testing.assert_allclose(standard_error, hits.std() / len(hits) ** 0.5, atol=1e-6)
assert few_known == 1 and few_losses[-1] < 0.015
assert few_new < on_validation and few_new < 0.93

# %% [markdown] tags=["shared"]
# ## Your own table goes through the same functions
#
# `train`, `predict` and `accuracy` know nothing of digits. For a table of your own,
# change the loading, the split and the sizes: they need numbers, `b i`, and a class for
# each row, counted from 0. *Standardise* columns of different units: subtract the mean
# and divide by the standard deviation, both of the training rows alone. Here are 569
# tumours, malignant (0) or benign (1), with 30 measurements of their cells. No setting
# is chosen, so two parts are enough:

# %% tags=["shared"]
table, kinds = load_breast_cancer(return_X_y=True)  # b i, b
# Yours: table = np.genfromtxt("mine.csv", delimiter=",", skip_header=1), then
# table, kinds = table[:, :-1], table[:, -1].astype(int)
order = np.random.default_rng(0).permutation(len(table))
table, kinds = table[order], kinds[order]  # the first 400 rows are for training
mean, deviation = table[:400].mean(axis=0), table[:400].std(axis=0)  # i
table = (table - mean) / deviation
table_batches = np.random.default_rng(1).integers(400, size=(100, 32))  # rows: n b
table_model = new_model(i=30, c=2)
train(table_model, tensor(table[:400]), tensor(kinds[:400]), table_batches, 0.01)
print(f"new rows: {accuracy(table_model, table[400:], kinds[400:]):.1%}")

# %% [markdown] tags=["shared"]
# Without the line that standardises, the large columns rule: the first loss is far
# above $\ln 2$. Try it. The softmax of the logits gives the probability of each class,
# here for the three new rows of which the model is least certain:

# %% tags=["jax"]
logits = tensor(predict(table_model, table[400:]))  # b c
p = as_numpy(jax.nn.softmax(logits, axis=-1))  # b c
p[p.max(axis=1).argsort()[:3]].round(2)

# %% tags=["shared", "check"]
# Checked: of the tumours that were not in the training, most are classified correctly
assert accuracy(table_model, table[400:], kinds[400:]) > 0.93

# %% [markdown] tags=["shared"]
# **Exercise 1, predict, then run.** Why are initial weights random? Set all parameters
# of a new model to $0.05$, and train it at the rate $0.003$. How will the 64 hidden
# features differ, and how many validation digits will be right? Begin with:

# %% tags=["jax"]
alike = new_model()
params = nnx.state(alike, nnx.Param)
nnx.update(alike, jax.tree.map(lambda x: jnp.full_like(x, 0.05), params))

# %% tags=["shared", "answer"]
train(alike, x_train, y_train, batches, 0.003)
columns = to_arrays(alike)["hidden.weight"]  # i f
same_right = accuracy(alike, *validation)
assert np.ptp(columns, axis=1).max() < 0.001 * np.ptp(columns)  # equal, to rounding
assert same_right < 0.4
named = len(set(predict(alike, pixels[validation_rows]).argmax(axis=1)))
assert named < len(set(classes))
say(
    "All hidden features compute the same number, get the same gradient, and stay the "
    "same: the model works as if it had one hidden feature instead of 64. This one "
    "number puts all digits on a line, where the classes overlap, and the output layer "
    f"cuts the line into intervals: {named} of the ten classes get one. So only "
    f"{same_right:.0%} of the digits are right. Random numbers make the features "
    "different from the start, so that they can learn different things."
)

# %% [markdown] tags=["shared"]
# **Exercise 2, by thought alone.** Some mistakes raise no error. Three copies of this
# page each lack one line of `update` or `predict`. Which one, do the symptoms say?

# %% tags=["jax", "experiment"]
# Experiment: what the three copies do
stuck = new_model()
two_epochs = np.concatenate([batches[:n_batches], batches[-n_batches:]])
flat = as_numpy(train(stuck, x_train, y_train, two_epochs, 0.0))  # no step is made
dropping = nnx.Sequential(model, nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
dropping.train()
twice = [as_numpy(dropping(tensor(pixels[validation_rows]))) for _ in range(2)]
optimizer = nnx.Optimizer(stuck, optax.adam(0.0), wrt=nnx.Param)
compute = nnx.value_and_grad(cross_entropy, has_aux=True)
batch = x_train[:batch_size], y_train[:batch_size]
update(stuck, optimizer, *batch)  # compiles
optimizer.update(stuck, compute(stuck, *batch)[1])  # each operation, too
clock = [time.perf_counter()]
for _ in range(20):
    update(stuck, optimizer, *batch)
clock.append(time.perf_counter())
for _ in range(20):
    _, gradient_now = compute(stuck, *batch)
    optimizer.update(stuck, gradient_now)
clock.append(time.perf_counter())

# %% tags=["jax", "say"]
differ, ends = np.abs(twice[0] - twice[1]).max(), (flat[:n_batches], flat[-n_batches:])
say(f"""- *Copy A*: the mean loss is {ends[0].mean():.2f} at first, and
  {ends[1].mean():.2f} at the end.
- *Copy B*: with a dropout layer, logits of two calls differ by up to {differ:.0f}.
- *Copy C*: all numbers are right, after {np.divide(*np.diff(clock)[::-1]):.0f} times
  the time.""")

# %% tags=["jax", "answer"]
assert np.abs(twice[0] - twice[1]).max() > 3
np.testing.assert_allclose(flat[:n_batches].mean(), flat[-n_batches:].mean(), rtol=1e-3)
say(
    "*A*: `optimizer.update(model, gradient)`. The gradient is computed, and nobody "
    "takes a step. *B*: `model.eval()`. Dropout goes on, as in training. *C*: "
    "`@nnx.jit`. Python starts every operation by itself, and the operations are small."
)

# %% [markdown] tags=["shared"]
# ## Extra: An overflow becomes NaN, and NaN spreads
#
# Why not compute the softmax by its formula? In float32, already $e^{89}$ *overflows*
# to infinity, and infinity over infinity is *NaN*, "not a number". One NaN in the loss,
# and all parameters are NaN after the next update:


# %% tags=["jax"]
def probabilities(logits):
    """Softmax as its formula says: ``… c -> … c``."""
    exp = jnp.exp(logits)
    return exp / exp.sum(axis=-1, keepdims=True)


[as_numpy(probabilities(tensor([logit, 0.0]))) for logit in (2, 1000)]

# %% [markdown] tags=["jax"]
# Mistakes in labels should be found as well. A label that is no class raises no error
# in JAX. So later chapters use the following `cross_entropy`: it refuses labels of a
# wrong kind or shape, makes the loss NaN where a label is no class, and computes in
# float32. Its logits may have more axes, such as `b s c`.


# %% tags=["jax", "export"]
def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of logits ``… c`` for labels ``…``."""
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"expected whole numbers as labels, got {labels.dtype}")
    logits = model(inputs).astype(jnp.float32)
    if labels.shape != logits.shape[:-1]:
        got = f"labels {(*labels.shape,)} for logits {(*logits.shape,)}"
        raise ValueError(f"expected one label for each row of logits, got {got}")
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    known = (labels >= 0) & (labels < logits.shape[-1])
    loss = jnp.where(known, losses, jnp.nan).mean()
    return loss, {"accuracy": (logits.argmax(-1) == labels).mean()}


# %% tags=["shared", "check"]
# Checked: a logit of 1000 makes the formula NaN, and leaves the cross-entropy finite
assert np.isnan(as_numpy(probabilities(tensor([1000.0, 0.0])))).any()
large, right = tensor([[1000.0, 0.0], [2.0, 0.0]]), tensor([1, 0])
found = cross_entropy(lambda logits: logits, large, right)[0]
np.testing.assert_allclose(float(found), (1000 + np.log(1 + np.exp(-2))) / 2, rtol=1e-6)

# %% [markdown] tags=["shared"]
# **Exercise 3, a change of code.** The softmax stays as it is if you subtract the same
# number from all logits. (Why?) Choose this number so that `probabilities` never gives
# NaN. Try $(1000, 0)$ and $(-1000, -1001)$.


# %% tags=["jax", "answer"]
def probabilities(logits):
    """Softmax that cannot overflow: ``… c -> … c``."""
    exp = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


large, small = (as_numpy(probabilities(tensor(z))) for z in ([1000, 0], [-1000, -1001]))
np.testing.assert_array_equal(large, [1, 0])
np.testing.assert_allclose(small, [1 / (1 + np.exp(-1)), 1 / (1 + np.e)], rtol=1e-5)
say(
    "Subtracting $a$ divides all exponentials by $e^a$, which cancels in the fraction. "
    "Choose $a$ as the largest logit: then the largest exponent is 0, no exponential "
    "exceeds 1, and their sum is at least 1, so it cannot be zero either. The "
    f"probabilities of $(-1000, -1001)$ are {small[0]:.2f} and {small[1]:.2f}."
)

# %% [markdown] tags=["shared"]
# ## Extra: Save the parameters, not the object
#
# A trained model should outlive the program. But a saved Python object could run any
# code when it is opened, so save its parameters only. `save_weights` of this book
# writes named arrays (*safetensors*), which the pages of both frameworks read:

# %% tags=["shared"]
path = tempfile.mkdtemp() + "/model.safetensors"
save_weights(model, path)
copy = new_model(seed=1)
load_weights(copy, path)

# %% [markdown] tags=["jax"]
# Flax's own ways are `flax.serialization` and Orbax. To resume training, save the
# optimiser's state, too.

# %% [markdown] tags=["jax"]
# ## Extra: Eager code runs at every call, traced code once
#
# Why did `update` need `nnx.jit`? Without it, JAX is *eager*: an operation runs as soon
# as Python reaches it. `jax.jit(f)` makes a faster function by *tracing*. At the first
# call, Python runs `f` on *tracers*, placeholders with a shape and a dtype but no
# values, and the operations are recorded and compiled into one program. Later calls
# with the same shapes run this program, without Python.

# %% [markdown] tags=["shared"]
# The next function appends to a list. What does the list hold after four calls with two
# shapes? Predict first:

# %% tags=["jax"]
kept = []


@jax.jit
def noted_loss(w, x, y):
    """Return the loss; keep it in a list as well, by mistake."""
    loss = loss_fn(w, x, y)
    kept.append(loss)
    return loss


returned = [noted_loss(w, x[:n], y[:n]) for n in (7, 7, 7, 5)]
kept

# %% [markdown] tags=["jax"]
# Python ran the body once for each shape, only to trace it. So the list holds tracers,
# and using one later is an error: return what you want to keep. `print`, too, prints
# only while JAX traces, and `if x > 0` is an error, because the value is unknown: use
# `jnp.where`. An argument whose value Python needs, such as a size, is named in
# `static_argnames`.

# %% [markdown] tags=["jax"]
# Nor does a compiled function notice when something that it calls or reads is changed
# later: it keeps what it found when it was compiled. So hand over as arguments what may
# change. Here the second call should multiply by 3:


# %% tags=["jax"]
def factor():
    return 2.0


@jax.jit
def scaled(x):
    return factor() * x


before = scaled(1.0)


def factor():  # changed, as in a cell that you edit
    return 3.0


before, scaled(1.0)

# %% tags=["jax", "check"]
# Checked: one run per shape; tracers in the list, losses returned; the old factor stays
assert len(kept) == 2 and all(isinstance(loss, jax.core.Tracer) for loss in kept)
wanted = [loss_fn(w, x[:n], y[:n]) for n in (7, 7, 7, 5)]
np.testing.assert_allclose(returned, wanted, rtol=1e-6)
assert scaled(1.0) == before == 2 and factor() == 3

# %% [markdown] tags=["shared"]
# To be fast, a framework does not wait. On a GPU, and in JAX on a CPU, too, it is
# *asynchronous*: a call returns once its work is queued, and `print(loss)` waits for
# it. So do not print every loss, and before you stop a clock, call
# `torch.cuda.synchronize()` or `jax.block_until_ready(result)`.

# %% [markdown] tags=["jax"]
# Much of our training is Python's work between short programs. `jax.lax.scan` compiles
# the loop itself: it runs `one` for each row of `batches`, hands the state on, and
# stacks the losses. Only arrays can be handed on. So `nnx.split` takes modules apart
# into a structure, `graph`, and a pytree of all arrays; `nnx.merge` makes modules of
# them again; `nnx.update` copies the arrays back in the end. (The seconds below include
# the compilation, once for each function.)


# %% tags=["jax"]
def train_faster(model, x, y, batches, learning_rate):
    """The updates of ``train``, in one compiled program."""
    optimizer = nnx.Optimizer(model, optax.adam(learning_rate), wrt=nnx.Param)
    model.train()
    graph, state = nnx.split((model, optimizer))

    def one(state, rows):
        model, optimizer = nnx.merge(graph, state)
        loss = update(model, optimizer, x[rows], y[rows])
        return nnx.state((model, optimizer)), loss

    state, losses = jax.lax.scan(one, state, batches)
    nnx.update((model, optimizer), state)
    return losses


# %% tags=["shared"]
seconds, results = [], []
for function in (train, train_faster):
    start = time.perf_counter()
    result = function(new_model(), x_train, y_train, batches, learning_rate)
    results.append(as_numpy(result))  # waits for the numbers
    seconds.append(time.perf_counter() - start)
print(f"train: {seconds[0]:.2f} s, train_faster: {seconds[1]:.2f} s,")
print(f"{seconds[0] / seconds[1]:.1f} times as fast")

# %% tags=["shared", "check"]
# Checked: the losses of the first epochs are the same
np.testing.assert_allclose(*[found[: 2 * n_batches] for found in results], rtol=1e-3)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** A new model for 100 classes has the loss $4.6$ before its first update. What do
# you conclude?
#
# <details><summary>The learning rate is too high.</summary>
#
# **No.** Tempting, as a high rate does make losses large. But no update has been made
# yet.
#
# </details>
# <details><summary>It guesses, as it should.</summary>
#
# **Right.** Equal probabilities have the cross-entropy $\ln 100 \approx 4.6$. A loss
# far above it would be the bad sign: a new model that is sure of wrong answers.
#
# </details>
# <details><summary>The number is meaningless as long as nothing is trained.</summary>
#
# **No.** It is worth a look: it says whether logits, labels and loss fit together.
#
# </details>
#
# **2.** Somebody puts a softmax at the end of the model, and then takes the framework's
# cross-entropy from logits. What happens?
#
# <details><summary>An error, as probabilities are no logits.</summary>
#
# **No.** One would wish for it. But both are arrays of the same shape, and nothing can
# tell them apart.
#
# </details>
# <details><summary>Nothing: the softmax of a softmax is the same.</summary>
#
# **No.** Tempting, because probabilities already sum to 1. But the exponentials of
# numbers between 0 and 1 are nearly equal.
#
# </details>
# <details><summary>It learns, but its loss stays far from 0.</summary>
#
# **Right.** Read as logits, probabilities differ by 1 at most. So even a model that is
# certain seems to hesitate, and small gradients slow it down.
#
# </details>
#
# **3.** Equal initial weights keep hidden features equal for ever. Why may all biases
# start at zero nevertheless?
#
# <details><summary>The random matrices already make the features differ.</summary>
#
# **Right.** Each feature sees the inputs through weights of its own, and gets its own
# gradient. One difference is enough.
#
# </details>
# <details><summary>Each bias gets a gradient of its own, so they drift apart.</summary>
#
# **No.** They do here. But between features with equal weights, the gradients of the
# biases would be equal, too.
#
# </details>
# <details><summary>Zero is neutral: only other equal numbers do harm.</summary>
#
# **No.** Tempting, because a bias of zero changes no sum. But zeros are equal numbers:
# in the matrices they would keep all features alike.
#
# </details>
#
# **4.** The gradients of one parameter are always ten times as large as those of
# another. How do the steps compare that Adam makes?
#
# <details><summary>They are ten times as large.</summary>
#
# **No.** True of gradient descent. Adam divides by the root of the average square,
# which is ten times as large, too.
#
# </details>
# <details><summary>They are about the same.</summary>
#
# **Right.** The factor stands in the numerator and in the denominator, and cancels.
#
# </details>
# <details><summary>They are a tenth.</summary>
#
# **No.** It sounds right, as squares stand below the line. But there is a root around
# them.
#
# </details>
#
# **5.** Neither the validation data nor the test data have been used. A model does
# slightly better on the test data. What does it show?
#
# <details><summary>Test data have got into the training.</summary>
#
# **No.** Worth a check, always. But a small difference needs no leak: one of the two
# has to come out better.
#
# </details>
# <details><summary>The model will do better on data like the test data.</summary>
#
# **No.** It did, on these examples. With others of the same kind, the order may be
# reversed.
#
# </details>
# <details><summary>Nothing, unless the gap is over two standard errors.</summary>
#
# **Right.** Both are samples, and either may come out better. The standard error of the
# gap is the root of the sum of both squares.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Choose by the validation data; use the test data once.
# * Call `eval()` before use, and compute the loss from logits.

# %% [markdown] tags=["jax"]
# * Arrays are immutable, keys are used once; `grad` and `jit` make new functions, and a
#   compiled one does not notice what changes later.
#
# [JAX and PyTorch compared](../book/comparison.md) lists the names and the defaults
# that differ; documentation: [JAX](https://docs.jax.dev),
# [Flax](https://flax.readthedocs.io), [Optax](https://optax.readthedocs.io). A loop for
# longer trainings, to copy, is in [The reverse task](reverse_jax.ipynb), help in [When
# training fails](debugging_jax.ipynb). Next comes [attention, in
# JAX](attention_jax.ipynb).
