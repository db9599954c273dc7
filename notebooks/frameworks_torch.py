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
# # Two frameworks in twenty minutes
#
# By the end you can put arrays on a device, draw random numbers that repeat,
# differentiate a function, write a model as a module, train it on handwritten digits in
# fifteen lines, and save it. You need: Python with NumPy, matrix products, and a first
# idea of gradient descent. Twenty minutes are enough if you know one of the frameworks;
# take an hour if you know neither.
#
# You could compute every formula of this book in NumPy. But training needs the gradient
# of one number, the loss, with respect to millions of parameters, thousands of times.
# NumPy computes no gradients and uses no GPU. JAX and PyTorch do both:
#
# - **JAX** works with *pure* functions: the result depends on the arguments alone, and
#   nothing else changes. JAX turns such a function into another one, for example one
#   that computes its gradient.
# - **PyTorch** works with objects. Its arrays, called *tensors*, remember how they were
#   computed, and training changes them in place.
#
# A line that begins with "✓ Checked" unfolds to the test of a claim.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX:
# [frameworks_jax](frameworks_jax.ipynb).

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
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers import diagrams, plots  # drawings; curves and pictures
from helpers.prose import say, word  # say() prints a sentence with computed numbers
from helpers.shapes import as_numpy, check_shape  # as_numpy() copies to NumPy
from helpers.weights import load_weights, save_weights, to_arrays

# %% tags=["torch"]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
plots.use_style()
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## An array has a shape, a dtype and a device
#
# As in NumPy, the *shape* is the size along each axis and the *dtype* the type of the
# numbers. The *device* is new: the memory that holds the array and the processor that
# computes with it, a CPU or a GPU. A comment such as `# b i` names the axes: $b$
# examples with $i$ inputs each. On all pages, `floats(…)` makes an array of float32
# numbers and `integers(…)` one of whole numbers.

# %% [markdown] tags=["torch"]
# An axis of a tensor is called a `dim`. New tensors are on the CPU unless another
# default is set, as above; `x.to(device)` moves a tensor, `model.to(device)` a model.
# An operation on tensors of two devices is an error.

# %% tags=["torch"]
# partial: a function with some of its arguments filled in
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
integers = partial(torch.as_tensor, dtype=torch.int64, device=device)
a = floats([[1, 2, 3], [4, 5, 6]])  # b i
a.shape, a.dtype, a.device

# %% [markdown] tags=["shared"]
# The most common error is a shape that does not fit. The message names the sizes:

# %% tags=["shared"]
try:
    a @ a  # (2, 3) @ (2, 3)
except (RuntimeError, TypeError) as error:
    print(error)

# %% [markdown] tags=["shared"]
# When two dtypes meet, the result gets a common one (*dtype promotion*). NumPy prefers
# float64, both frameworks float32 (only a float64 array that comes from NumPy stays so
# in PyTorch). float32 has seven digits, takes half the memory and is much faster on a
# GPU. bfloat16 takes half of that again; it has the range of float32, but only two or
# three digits.

# %% [markdown] tags=["torch"]
# This is why `floats` names the dtype.

# %% tags=["torch", "check"]
# Checked: int32 plus float32, or int32 over 2, is float32 here and float64 in NumPy
counts = torch.arange(3, dtype=torch.int32)
halves = a[0].to(torch.bfloat16)
mixed = [counts + a[0], counts / 2, a + 0.5, halves + a[0]]
assert [array.dtype for array in mixed] == [torch.float32] * 4
assert torch.as_tensor(np.ones(3)).dtype == torch.float64
whole, real = np.arange(3, dtype=np.int32), np.ones(3, dtype=np.float32)
assert [(whole + real).dtype, (whole / 2).dtype] == ["float64"] * 2

# %% [markdown] tags=["shared"]
# ## JAX arrays never change, PyTorch tensors can
#
# - **JAX**: arrays are immutable. `a[0, 0] = 7` is an error; `a.at[0, 0].set(7)`
#   returns a new array. So a function cannot change the arrays that it is given, which
#   is what purity asks for.
# - **PyTorch**: `a[0, 0] = 7` is an *in-place* update, as in NumPy: it changes `a`
#   itself. A slice is a *view* of the same memory, so a change of the slice changes the
#   whole array. Methods that work in place end in an underscore: `a.zero_()`.

# %% tags=["torch"]
changed = a.clone()  # a copy; without it, a would change
changed[0, 0] = 7
row = changed[0]  # a view
row.zero_()  # changes the first row of changed
changed

# %% tags=["torch", "check"]
# Checked: the clone left the original alone, the view did not
np.testing.assert_array_equal(as_numpy(a), [[1, 2, 3], [4, 5, 6]])
np.testing.assert_array_equal(as_numpy(changed), [[0, 0, 0], [4, 5, 6]])
np.testing.assert_array_equal(as_numpy(row), [0, 0, 0])

# %% [markdown] tags=["shared"]
# ## The same seed gives the same random numbers
#
# Random numbers are computed from a *seed*, so an experiment can be repeated. JAX,
# PyTorch and NumPy draw different numbers from the same seed; what both versions of a
# page (its *twins*) share, such as data and batches, therefore comes from NumPy. In
# JAX, every draw is given a *key*, which should be used only once; PyTorch draws from a
# *generator*, whose state changes with every draw.

# %% [markdown] tags=["torch"]
# If you insert one draw, all later ones of the same generator are different.

# %% tags=["torch"]
generator = torch.Generator(device).manual_seed(0)
first = torch.randn(3, generator=generator)
other = torch.randn(3, generator=generator)  # the state has advanced
generator.manual_seed(0)
again = torch.randn(3, generator=generator)
first, again, other

# %% tags=["shared", "check"]
# Checked: the same key or seed repeats the numbers, and the next draw is different
np.testing.assert_array_equal(as_numpy(first), as_numpy(again))
assert (as_numpy(first) != as_numpy(other)).all()

# %% [markdown] tags=["torch"]
# Layers draw their initial weights from PyTorch's default generator (each device has
# one); `torch.manual_seed(0)` seeds them all.

# %% [markdown] tags=["shared"]
# ## Automatic differentiation is exact up to rounding
#
# Training makes a *loss* small, a number that says how wrong the model is, by small
# steps against its gradient. One could change each weight a little and see how the loss
# changes, but that takes one evaluation of the loss per weight. *Automatic
# differentiation* (autograd in PyTorch) instead applies the chain rule to every
# operation, from the loss back to the weights, at the cost of a few evaluations,
# however many weights there are. Here is a neuron with the weight $w = 0.5$, the input
# $x = 2$ and the target $y = 1$:

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "A neuron as a column of three operations: w times x, tanh, squared error. Downwards go the values, 0.5, 1.00, 0.76 and the loss 0.06. Upwards go the derivatives of the loss, from 1 over -0.48 and -0.20 to -0.40; each operation multiplies by its own derivative."}}
diagrams.chain_rule()

# %% [markdown] tags=["shared"]
# Forward, every operation stores what it will need. Backward, it multiplies the
# derivative that arrives by its own. The result, $-0.40$, says: a larger $w$ makes the
# loss smaller. With several weights and $b$ examples, the loss is a mean:
#
# $$L(w) = \frac1b \sum_{(x, y)} \big(\tanh(x \cdot w) - y\big)^2 .$$

# %% tags=["shared"]
rng = np.random.default_rng(0)
inputs, targets = rng.normal(size=(7, 3)), rng.normal(size=7)  # b i, b
start = np.array([0.5, -1.0, 0.25])  # i

# %% [markdown] tags=["torch"]
# `requires_grad_` tells PyTorch to record what is computed from `w`; `backward` goes
# back through the record and adds the derivatives to `w.grad`.

# %% tags=["torch"]
x, y, w = floats(inputs), floats(targets), floats(start).requires_grad_()


def loss_fn(w, x, y):
    """Mean squared error of the neuron: ``i, b i, b -> ``."""
    return ((torch.tanh(x @ w) - y) ** 2).mean()


loss = loss_fn(w, x, y)
loss.backward()
gradient = w.grad.clone()
gradient

# %% [markdown] tags=["shared"]
# The chain rule on paper gives `exact`. How close to it, in float32, are the automatic
# gradient and the difference quotients
# $\big(L(w + \epsilon) - L(w - \epsilon)\big) / 2\epsilon$?


# %% tags=["shared"]
def quotients(step, kind=np.float32):
    """Difference quotients of the loss, one per weight."""
    w, x, y = (array.astype(kind) for array in (start, inputs, targets))
    moves = (step * np.eye(len(w))).astype(kind)

    def loss(w):
        return np.mean((np.tanh(x @ w) - y) ** 2)

    return [(loss(w + move) - loss(w - move)) / (2 * move.max()) for move in moves]


p = np.tanh(inputs @ start)
exact = 2 / 7 * ((p - targets) * (1 - p**2)) @ inputs
steps = 10.0 ** np.arange(-7, 0.5, 0.5)
by_steps = [np.abs(quotients(step) - exact).max() for step in steps]
by_chain_rule = np.abs(as_numpy(gradient) - exact).max()

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Largest error of a gradient against the step, both logarithmic. The difference quotients fall and rise again, and stay above the flat line of automatic differentiation."}}
TITLE = "Error of the gradient"
lines = {
    "difference quotients": (steps, by_steps),
    "automatic differentiation": (steps, np.full(len(steps), by_chain_rule)),
}
fig = plots.curves(
    {TITLE: lines}, x="step ε", y="largest error", log_x=10, log_y=True, size=(5, 2.8)
)
fig

# %% tags=["shared", "say"]
times = min(by_steps) / by_chain_rule
larger = word("larger", times, 1)
say(
    "With a large step, the quotient is the slope of a chord, not of the tangent; with "
    "a tiny step, the difference is mostly rounding. Even with the best step, the "
    f"error of the quotients is about **{float(f'{times:.0e}'):,.0f} times** {larger} "
    "than that of automatic differentiation."
)

# %% tags=["shared", "check"]
# Checked: the quotients have more than 10 times the error, whatever the step
steepest = plots.drawn(fig, TITLE, "difference quotients")[1]
flat = plots.drawn(fig, TITLE, "automatic differentiation")[1]
assert (steepest > 10 * flat).all()  # loose: rounding differs between machines
ends = min(steepest[0], steepest[-1])  # falls and rises again
assert ends > 100 * steepest.min()  # loose: rounding, as above
np.testing.assert_allclose(as_numpy(gradient), exact, atol=1e-6)

# %% tags=["torch", "check"]
# Checked: in float64, too, the best quotients have more than 10 times the error
arrays = (torch.as_tensor(array, device=device) for array in (start, inputs, targets))
found = as_numpy(torch.func.grad(loss_fn)(*arrays))
assert found.dtype == np.float64
best = min(np.abs(quotients(step, np.float64) - exact).max() for step in steps)
rounding = np.spacing(np.abs(exact).max()) / 2  # of the exact gradient itself
assert best > 10 * max(np.abs(found - exact).max(), rounding)  # loose: rounding

# %% [markdown] tags=["torch"]
# `backward` *adds* to `w.grad`: called twice, it leaves twice the gradient. So training
# clears `w.grad` before every update; if you forget it, nothing warns you.

# %% tags=["torch", "check"]
# Checked: two gradients add up to twice the first
loss_fn(w, x, y).backward()  # w.grad still holds the first gradient
np.testing.assert_allclose(as_numpy(w.grad), 2 * as_numpy(gradient), rtol=1e-6)
w.grad = None  # cleared

# %% [markdown] tags=["torch"]
# `torch.func` offers JAX's transformations, such as `grad` and `vmap`, which can be
# combined. `vmap` maps a function over the first axis of its arguments (`None` means:
# this argument is the same for all examples), so `vmap` of `grad` is the gradient of
# each example by itself.

# %% tags=["torch"]
each_gradient = torch.func.vmap(torch.func.grad(loss_fn), in_dims=(None, 0, 0))
each = each_gradient(w.detach(), x, y)  # b i
each.shape

# %% tags=["shared", "check"]
# Checked: the mean of the gradients of the examples is the gradient of the mean loss
check_shape(each, "b i", b=7, i=3)
mean = as_numpy(each).mean(axis=0)
np.testing.assert_allclose(mean, as_numpy(gradient), atol=1e-6)

# %% [markdown] tags=["shared"]
# ## Eager code runs at every call, traced code once
#
# - **PyTorch** is *eager*: it executes an operation as soon as Python reaches it.
# - **JAX** is eager, too, unless `jax.jit` compiles a function at its first call. The
#   first call begins with *tracing*: Python runs the function on *tracers*,
#   placeholders with a shape and a dtype but no values. The operations are recorded and
#   compiled into one program. Later calls with the same shapes and dtypes run this
#   program, without Python, which is faster. (PyTorch's counterpart is
#   `torch.compile`.)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two columns. Eager, on the left: in the first and in the second call Python runs the function, operation by operation. Traced, on the right: in the first call Python runs the function on tracers, the operations are recorded and compiled; the second call runs the compiled program, without Python."}}
diagrams.eager_and_traced()

# %% [markdown] tags=["shared"]
# How often does Python run the body of `squares`? Predict it first:

# %% tags=["shared"]
runs = []


def squares(x):
    """Sum of squares: ``n -> ``; notes every run of its body."""
    runs.append(tuple(x.shape))
    return (x**2).sum()


# %% tags=["torch"]
results = [squares(torch.ones(n)) for n in (3, 3, 3, 5)]
n_runs = len(runs)

# %% tags=["shared", "say"]
say(f"Four calls with two shapes: Python ran the body **{n_runs} times**.")

# %% tags=["torch", "check"]
# Checked: Python runs the body at every call, and every call returns its sum
assert n_runs == 4
np.testing.assert_array_equal([float(result) for result in results], [3, 3, 3, 5])

# %% [markdown] tags=["torch"]
# So Python's `print` and `if` work as usual. On a GPU, however, `if x.sum() > 0` makes
# Python wait for the value; `torch.where(x > 0, a, b)` does not. PyTorch also records
# operations, but only those that the gradient needs, and it makes a new record at every
# call. Here are those of `squares`, the last one first:

# %% tags=["torch"]
last = squares(torch.ones(3, requires_grad=True)).grad_fn
last.name(), last.next_functions[0][0].name()

# %% [markdown] tags=["shared"]
# ## Keep values, not graphs or tracers
#
# If you collect the losses of a run in a list, keep their values, and not what the
# framework computes with: graphs in PyTorch, tracers in JAX.

# %% [markdown] tags=["torch"]
# A loss refers to its *graph*, the record of the operations behind it, with their
# intermediate results. `backward()` frees these results. If you never call it, as in
# validation, they stay in memory as long as the loss exists. `loss.detach()` is the
# number without the graph, and under `torch.no_grad()` nothing is recorded.

# %% tags=["torch"]
kept = []


def noted_loss(w):
    """Return the loss without its graph; keep it with the graph, by mistake."""
    loss = loss_fn(w, x, y)
    kept.append(loss)
    return loss.detach()


values = [noted_loss(w) for _ in range(3)]
print("kept:    ", kept)
print("returned:", values)

# %% tags=["torch", "check"]
# Checked: kept losses hold graphs until backward() frees them; detached ones have none
assert all(loss.grad_fn is not None for loss in kept)
assert all(value.grad_fn is None for value in values)
np.testing.assert_allclose(torch.stack(values).cpu(), as_numpy(loss), rtol=1e-6)
kept[0].backward()
try:
    kept[0].backward()
except RuntimeError as error_of_graph:
    message = str(error_of_graph)
assert "second time" in message and "freed" in message

# %% [markdown] tags=["shared"]
# ## A long loop is a scan in JAX, a Python loop in PyTorch
#
# Training is a loop: each turn takes a state and a batch and makes the next state. JAX
# can compile the whole loop as one operation, a *scan* (`jax.lax.scan`); in PyTorch the
# loop is Python's. Our example is the running average that optimisers use, with $\beta$
# a little below 1:
#
# $$\mu_t = \beta\, \mu_{t-1} + (1-\beta)\, v_t, \qquad \mu_0 = 0$$

# %% [markdown] tags=["torch"]
# The state can change in place.


# %% tags=["torch"]
def running_average(values, beta):
    """Exponential moving average after each value: ``n -> n``."""
    mean, means = torch.zeros(()), []
    for value in values:
        mean.mul_(beta).add_((1 - beta) * value)  # in place
        means.append(mean.clone())  # without clone(): n times the same tensor
    return torch.stack(means)


# %% tags=["shared"]
stream = np.random.default_rng(2).normal(loc=1.0, size=1000)
averages = as_numpy(running_average(floats(stream), 0.99))
averages[[9, 99, 999]]  # from 0 towards the mean of the values, 1

# %% tags=["shared", "check"]
# Checked: the loop agrees with the sum that it stands for, in NumPy
powers = 0.01 * 0.99 ** np.arange(1000)
wanted = [powers[: t + 1][::-1] @ stream[: t + 1] for t in range(1000)]
np.testing.assert_allclose(averages, wanted, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## A module is a tree of parameters
#
# A *module* holds the arrays that training changes, its *parameters*, and other
# modules: a model is a tree with parameters as leaves. This one has two dense layers,
# $y = xW + b$, and between them a ReLU, which keeps positive numbers and sets others to
# zero. It turns the $i = 64$ pixels of a picture into $f = 64$ hidden features, and
# these into $c = 10$ *logits*, one per digit: the larger a logit, the more likely its
# digit. `build` makes a model from a seed, here and on all later pages.


# %% tags=["torch"]
class Classifier(nn.Module):
    """Two dense layers: pixels to logits, ``b i -> b c``."""

    def __init__(self, i, f, c):
        super().__init__()
        self.hidden = nn.Linear(i, f)
        self.output = nn.Linear(f, c)

    def forward(self, x):
        return self.output(torch.relu(self.hidden(x)))


# %% tags=["torch"]
def build(kind, *sizes, seed=0, **options):
    """Make a layer whose random numbers come from ``seed``."""
    torch.manual_seed(seed)
    with torch.device("cpu"):  # the same numbers on every device
        layer = kind(*sizes, **options)
    return layer.to(torch.get_default_device())


model = build(Classifier, 64, 64, 10)

# %% [markdown] tags=["torch"]
# `parameters()` lists what an optimiser changes. The *state dict* maps the path of each
# parameter to its tensor; `load_state_dict` copies such a dict into a model. An array
# of the model that is not trained is registered as a *buffer* (`register_buffer`): it
# is in the state dict, too, and moves to the GPU with the model.

# %% tags=["torch"]
state = model.state_dict()
{path: tuple(array.shape) for path, array in state.items()}

# %% [markdown] tags=["shared"]
# Flax stores a dense matrix in × out, as in $xW$, PyTorch out × in; `to_arrays` of this
# book copies the parameters to NumPy, in × out on both sides. A list of modules has to
# be wrapped: `nnx.data([…])` (or `nnx.List` in newer Flax), `nn.ModuleList([…])`.

# %% tags=["torch", "check"]
# Checked: a dict with halved parameters, once loaded, halves those of the model
before = to_arrays(model)
check_shape(before["hidden.weight"], "i f", i=64, f=64)
check_shape(before["output.weight"], "f c", f=64, c=10)
model.load_state_dict({path: array / 2 for path, array in state.items()})
for name, array in to_arrays(model).items():
    np.testing.assert_array_equal(array, before[name] / 2)

# %% [markdown] tags=["shared"]
# ## train() and eval() switch dropout
#
# *Dropout* sets each number to zero with probability $p$ and multiplies the others by
# $1/(1-p)$, which keeps the mean; but only in training. `train()` and `eval()` set the
# mode of a module and of all modules inside. Without `eval()` a trained model gives
# different outputs at every call, and no error tells you.

# %% tags=["torch"]
ones = torch.ones(1000)
dropout = nn.Dropout(0.5)  # try 0.9
dropout.train()
noisy, noisy_again = dropout(ones), dropout(ones)
dropout.eval()
unchanged = dropout(ones)
as_numpy(noisy)[:9], as_numpy(unchanged)[:9]

# %% tags=["shared", "check"]
# Checked: in training half the ones become 0 and the others 2; after eval() all stay
noisy, noisy_again, unchanged = map(as_numpy, (noisy, noisy_again, unchanged))
assert set(noisy.tolist()) == {0, 2} and 0.4 < (noisy == 0).mean() < 0.6
assert (noisy != noisy_again).any()
np.testing.assert_array_equal(unchanged, 1)

# %% [markdown] tags=["shared"]
# ## An overflow becomes NaN, and NaN spreads
#
# The loss of a classifier is the *cross-entropy*: minus the logarithm of the
# probability that the model gives to the right class, averaged over the batch. A
# *softmax* makes probabilities of the logits: for an example with logits $z_1, …, z_c$
# and class $y$,
#
# $$p_y = \frac{e^{z_y}}{e^{z_1} + … + e^{z_c}}, \qquad \mathrm{loss} = -\ln p_y .$$
#
# In float32, $e^{89}$ is already infinite, and infinity over infinity is *NaN*, "not a
# number". Nearly everything that is computed from NaN is NaN: one NaN in the loss, and
# all parameters are NaN after the next update. So compute the loss from the logits,
# with a function of the framework that cannot overflow.

# %% [markdown] tags=["torch"]
# `nn.functional.cross_entropy` expects logits with two axes, `b c`; so `flatten` makes
# all axes before the last into one.


# %% tags=["torch"]
def probabilities(logits):
    """Softmax as its formula says: ``… c -> … c``."""
    exp = torch.exp(logits)
    return exp / exp.sum(dim=-1, keepdim=True)


def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of a model that returns logits."""
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    return loss, {"accuracy": (logits.argmax(-1) == labels).float().mean()}


[as_numpy(probabilities(floats([logit, 0.0]))) for logit in (2, 1000)]

# %% tags=["shared", "check"]
# Checked: a logit of 1000 makes the formula NaN, and leaves the cross-entropy finite
assert np.isnan(as_numpy(probabilities(floats([1000.0, 0.0])))).any()
large, right = floats([[1000.0, 0.0], [2.0, 0.0]]), integers([1, 0])
found = cross_entropy(lambda logits: logits, large, right)[0]
np.testing.assert_allclose(float(found), (1000 + np.log(1 + np.exp(-2))) / 2, rtol=1e-6)

# %% [markdown] tags=["shared"]
# **Exercise 1, a change of code.** Subtract the same number from all logits, and their
# softmax stays as it is. (Why?) Choose this number so that `probabilities` never gives
# NaN. Try $(1000, 0)$ and $(-1000, -1001)$.


# %% tags=["torch", "answer"]
def probabilities(logits):
    """Softmax that cannot overflow: ``… c -> … c``."""
    exp = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    return exp / exp.sum(dim=-1, keepdim=True)


large, small = (as_numpy(probabilities(floats(z))) for z in ([1000, 0], [-1000, -1001]))
np.testing.assert_array_equal(large, [1, 0])
np.testing.assert_allclose(small, [1 / (1 + np.exp(-1)), 1 / (1 + np.e)], rtol=1e-5)
say(
    "Subtracting $a$ divides all exponentials by $e^a$, which cancels in the fraction. "
    "Choose $a$ as the largest logit: then the largest exponent is 0, no exponential "
    "exceeds 1, and their sum is at least 1, so it cannot be zero either. The "
    f"probabilities of $(-1000, -1001)$ are {small[0]:.2f} and {small[1]:.2f}."
)

# %% [markdown] tags=["shared"]
# ## An optimiser turns gradients into steps
#
# Gradient descent subtracts the gradient times a *learning rate* $\eta$; on random
# batches it is called SGD. *Adam* divides a running average of the gradient by the root
# of a running average of its square, so that all parameters move at a similar pace.

# %% [markdown] tags=["torch"]
# An optimiser is an object that holds the parameters and its state, such as Adam's
# averages; `step()` changes both in place.

# %% tags=["torch"]
weights = floats(start).requires_grad_()
optimizer = torch.optim.SGD([weights], lr=0.1)
optimizer.zero_grad()
loss_fn(weights, x, y).backward()
optimizer.step()  # changes weights
weights

# %% tags=["shared", "check"]
# Checked: the step is minus the learning rate times the gradient
wanted = start - 0.1 * as_numpy(gradient)
np.testing.assert_allclose(as_numpy(weights), wanted, atol=1e-6)

# %% [markdown] tags=["shared"]
# **Exercise 2, by hand.** How many parameters has `build(Classifier, 64, 64, 10)`? With
# Adam, training stores four float32 numbers for each: the parameter, its gradient, two
# averages. How many bytes is that? Does a model with a billion parameters fit on a GPU
# with $16$ GB?

# %% tags=["shared", "answer"]
n_params = sum(array.size for array in to_arrays(model).values())
assert n_params == (64 * 64 + 64) + (64 * 10 + 10)
say(
    f"Each layer has a matrix and a bias: $64 \\cdot 64 + 64 + 64 \\cdot 10 + 10 = "
    f"{n_params:,}$ parameters. Four numbers of four bytes each make 16 bytes per "
    f"parameter, so {16 * n_params:,} bytes. With a billion parameters, these numbers "
    "alone fill the 16 GB, and nothing is left for data and intermediate results."
)

# %% [markdown] tags=["shared"]
# ## Fifteen lines train a classifier
#
# Take a batch, compute the loss, compute the gradient, make a step, and repeat:

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The training loop: a batch of inputs goes through the model; with the labels it gives the loss. The gradient of the loss goes to the optimiser, which changes the model. Then comes the next batch."}}
diagrams.training_loop(basic=True)

# %% [markdown] tags=["shared"]
# The data are the 1,797 handwritten digits of scikit-learn, of 8 × 8 pixels; a fifth is
# set aside as test data. An *epoch* is one pass through the training data, in a new
# order each time. A row of `batches` is one batch: the row numbers of its digits. An
# incomplete last batch is left out.

# %% tags=["shared"]
pixels, classes = load_digits(return_X_y=True)  # b i, b
order = np.random.default_rng(0).permutation(len(pixels))
pixels, classes = pixels[order] / 16, classes[order]  # ink from 0 to 1
n_train, batch_size, epochs, learning_rate = 1437, 64, 20, 0.003

rng = np.random.default_rng(1)
n_batches = n_train // batch_size  # in an epoch
orders = [rng.permutation(n_train)[: n_batches * batch_size] for _ in range(epochs)]
batches = np.concatenate(orders).reshape(-1, batch_size)  # n b

# %% [markdown] tags=["shared"]
# Initial weights are random (exercise 3 asks why): uniform within $\pm 1/\sqrt{n}$ for
# a layer with $n$ inputs. Both twins read them from one file.

# %% tags=["shared"]
initial = {
    "hidden.weight": rng.uniform(-1, 1, size=(64, 64)) / 64**0.5,  # i f
    "hidden.bias": np.zeros(64),
    "output.weight": rng.uniform(-1, 1, size=(64, 10)) / 64**0.5,  # f c
    "output.bias": np.zeros(10),
}
initial = {name: array.astype(np.float32) for name, array in initial.items()}
folder = Path(tempfile.mkdtemp())
save_file(initial, folder / "initial.safetensors")

# %% [markdown] tags=["shared"]
# 64 examples make a steady gradient, and 20 epochs take seconds. Adam's usual rate is
# $0.001$; a model as small as this one tolerates three times that. For data of
# your own, replace `pixels`, `classes` and the sizes 64 and 10, and try the rates
# $0.001$, $0.003$ and $0.0003$.

# %% [markdown] tags=["torch"]
# The loop is Python's, and the model changes in place.


# %% tags=["torch"]
def train(model, x, y, batches, learning_rate):
    """Adam on the rows ``batches`` ``n b``; changes the model, returns the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses = []
    model.train()
    for rows in batches:
        loss, _ = cross_entropy(model, x[rows], y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


# %% tags=["torch"]
@torch.no_grad()
def predict(model, x):
    """Logits of the model in use: ``b i -> b c``."""
    model.eval()
    return as_numpy(model(floats(x)))


# %% tags=["shared"]
def accuracy(model, rows):
    """Fraction of the digits ``rows`` that are classified correctly."""
    return (predict(model, pixels[rows]).argmax(-1) == classes[rows]).mean()


load_weights(model, folder / "initial.safetensors")
x_train, y_train = floats(pixels[:n_train]), integers(classes[:n_train])
losses = as_numpy(train(model, x_train, y_train, integers(batches), learning_rate))
for_training, for_test = slice(n_train), slice(n_train, None)
on_train, on_test = accuracy(model, for_training), accuracy(model, for_test)

# %% tags=["shared", "say"]
say(
    f"After {len(batches)} updates the model classifies **{on_test:.1%}** of the test "
    f"digits correctly, and {on_train:.1%} of those it was trained on. The loss began "
    f"at {losses[0]:.2f}, close to $\\ln 10 = {np.log(10):.2f}$, the loss of a model "
    "that gives each digit the probability 1/10; in the last epoch it was "
    f"{losses[-n_batches:].mean():.2f} on average."
)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The loss of every update, on a logarithmic axis: a steep fall at first, then a gentle one to the end."}}
panels = {"Loss of every update": {"": (np.arange(len(losses)), losses)}}
plots.curves(panels, x="update", y="cross-entropy", log_y=True, size=(5, 2.6))

# %% tags=["shared", "check"]
# Checked: more than 96 of 100 test digits are right, and more of the training digits
assert on_train > on_test > 0.96
assert losses[0] > 2 and losses[-n_batches:].mean() < 0.15

# %% [markdown] tags=["shared"]
# These are the misclassified test digits. First come those whose true class got the
# lowest probability:

# %% tags=["shared"]
truth, test_logits = classes[n_train:], predict(model, pixels[n_train:])  # b, b c
log_p = test_logits - np.log(np.exp(test_logits).sum(axis=1, keepdims=True))
wrong = np.flatnonzero(test_logits.argmax(axis=1) != truth)
hardest = wrong[log_p[wrong, truth[wrong]].argsort()][:8]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "A row of blurred digits of 8 by 8 pixels, all classified wrongly; below each its class and the class that the model chose."}}
images = (255 * pixels[n_train:][hardest]).astype(np.uint8).reshape(1, -1, 8, 8)
captions = [[f"{truth[n]} → {test_logits[n].argmax()}" for n in hardest]]
plots.pictures(images, captions=captions, titles=["class → what the model chose"])

# %% [markdown] tags=["shared"]
# What if we train on the first 50 digits only?

# %% tags=["shared"]
few = build(Classifier, 64, 64, 10)
load_weights(few, folder / "initial.safetensors")
train(few, x_train, y_train, integers(batches % 50), learning_rate)
few_known, few_new = accuracy(few, slice(50)), accuracy(few, for_test)

# %% tags=["shared", "say"]
say(
    f"It classifies {few_known:.0%} of these 50 digits correctly, but only "
    f"{few_new:.1%} of the test digits: it has *overfitted*."
)

# %% tags=["shared", "check"]
# Checked: all of the 50 digits are right, and fewer test digits than before
assert few_known == 1
assert few_new < on_test and few_new < 0.93

# %% [markdown] tags=["shared"]
# Two folded checks compute the gradient by hand, in NumPy, and find the same losses.


# %% tags=["shared", "check"]
# Checked: the gradient written by hand is what difference quotients say
def loss_and_gradient(w, x, y):
    """Cross-entropy of the classifier, and its gradient by the chain rule."""
    hidden = np.maximum(x @ w["hidden.weight"] + w["hidden.bias"], 0)  # b f
    logits = hidden @ w["output.weight"] + w["output.bias"]  # b c
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    by_logits = (p - np.eye(10)[y]) / len(y)  # b c
    by_hidden = by_logits @ w["output.weight"].T * (hidden > 0)  # b f
    grads = x.T @ by_hidden, by_hidden.sum(0), hidden.T @ by_logits, by_logits.sum(0)
    return -np.log(p[np.arange(len(y)), y]).mean(), dict(zip(w, grads, strict=True))


values = {name: array.astype(np.float64) for name, array in initial.items()}
batch = pixels[batches[0]], classes[batches[0]]
grads = loss_and_gradient(values, *batch)[1]
up, down = ({k: values[k] + step * grads[k] for k in grads} for step in (1e-6, -1e-6))
slope = (loss_and_gradient(up, *batch)[0] - loss_and_gradient(down, *batch)[0]) / 2e-6
np.testing.assert_allclose(slope, sum((g**2).sum() for g in grads.values()), rtol=1e-4)

# %% tags=["shared", "check"]
# Checked: 100 updates in NumPy, with Adam written out, have the same losses to 0.1 %
mean = {name: 0 * array for name, array in values.items()}
square = {name: 0 * array for name, array in values.items()}
for t, rows in enumerate(batches[:100], start=1):
    loss, grads = loss_and_gradient(values, pixels[rows], classes[rows])
    np.testing.assert_allclose(losses[t - 1], loss, rtol=1e-3)
    for name, g in grads.items():
        mean[name] += 0.1 * (g - mean[name])
        square[name] += 0.001 * (g**2 - square[name])
        root = np.sqrt(square[name] / (1 - 0.999**t)) + 1e-8
        values[name] -= learning_rate * mean[name] / (1 - 0.9**t) / root

# %% [markdown] tags=["shared"]
# **In your own code.** Most projects write the loop as in the next cell. AdamW, the
# usual optimiser of Transformers, also [shrinks the weights a little in each
# step](https://arxiv.org/abs/1711.05101).

# %% [markdown] tags=["torch"]
# A `DataLoader` draws the batches. On a GPU, try `model = torch.compile(model)` and,
# around the loss, `with torch.autocast("cuda", torch.bfloat16):`.


# %% tags=["torch"]
def step(model, optimizer, x, y):
    """One update; returns the loss."""
    loss, _ = cross_entropy(model, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


usual = build(Classifier, 64, 64, 10).train()
optimizer = torch.optim.AdamW(usual.parameters(), lr=0.003)
generator = torch.Generator(device).manual_seed(0)
dataset = TensorDataset(x_train, y_train)
data = DataLoader(dataset, batch_size, shuffle=True, generator=generator)
for images, labels in data:  # one epoch
    loss = step(usual, optimizer, images, labels)

# %% tags=["shared", "check"]
# Checked: after one epoch more than half of the test digits are right
assert accuracy(usual, for_test) > 0.5  # loose: one epoch only

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** Why are initial weights random? Set all numbers in both matrices
# of `initial` to $0.05$, save them in another file, load it, and train. Predict first:
# how will the 64 hidden features differ, and how many test digits will be right?

# %% tags=["shared", "answer"]
same = {name: np.full_like(array, 0.05) for name, array in initial.items()}
save_file(same, folder / "same.safetensors")
alike = build(Classifier, 64, 64, 10)
load_weights(alike, folder / "same.safetensors")
train(alike, x_train, y_train, integers(batches), learning_rate)
columns, same_right = to_arrays(alike)["hidden.weight"], accuracy(alike, for_test)
between = 0.001 * np.ptp(columns)
assert np.ptp(columns, axis=1).max() < between  # loose: equal but for rounding
assert same_right < 0.4
say(
    "All hidden features compute the same number, get the same gradient, and stay the "
    "same: the model works as if it had one hidden feature instead of 64. It gets "
    f"{same_right:.0%} of the test digits right. Random numbers make the features "
    "different from the start, so that they can learn different things."
)

# %% [markdown] tags=["shared"]
# ## Time the result, not the call
#
# A GPU is *asynchronous*: a call returns once its work is queued. JAX does the same on
# a CPU. `jax.block_until_ready(result)` and `torch.cuda.synchronize()` wait, and so
# does `print(loss)`; so a training loop does not print every loss.


# %% tags=["torch"]
def product(x):
    """A product that takes a while: ``n n -> n n``."""
    return x @ x


def clock(function, x):
    """Milliseconds until the call returns, and until its result is there."""
    start = time.perf_counter()
    result = function(x)
    returned = time.perf_counter() - start
    if result.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * returned, 1e3 * (time.perf_counter() - start)


big = torch.ones(1500, 1500)  # try 200
first_call, *later_calls = (clock(product, big) for _ in range(8))
returned, done = np.median(later_calls, axis=0)

# %% tags=["torch", "say"]
where = "On this GPU" if device == "cuda" else "On a CPU, PyTorch waits"
say(
    f"{where}: the call returned after {returned:.1f} ms, and its result was there "
    f"after {done:.1f} ms (medians of {len(later_calls)} calls)."
)

# %% tags=["torch", "check"]
# Checked: on a CPU the call returns with its result, on a GPU before
assert returned <= done
assert device == "cuda" or returned > 0.9 * done

# %% [markdown] tags=["shared"]
# ## A file keeps names and numbers
#
# Save the parameters of a model, not the Python object: code changes, and a pickled
# object can run any code when it is opened. *safetensors* files hold named arrays only;
# with `save_weights` of this book, both twins can read them. To resume training, save
# the optimiser's state as well.

# %% [markdown] tags=["torch"]
# PyTorch's own way is `torch.save(model.state_dict(), path)` and, back,
# `torch.load(path, weights_only=True)`, which refuses anything but data.

# %% tags=["shared"]
save_weights(model, folder / "trained.safetensors")
copy = build(Classifier, 64, 64, 10, seed=1)
load_weights(copy, folder / "trained.safetensors")

# %% tags=["torch", "check"]
# Checked: the copy computes the logits of the model to the last bit; so does PyTorch's
torch.save(model.state_dict(), folder / "trained.pt")
other = build(Classifier, 64, 64, 10, seed=2)
other.load_state_dict(torch.load(folder / "trained.pt", weights_only=True))
for loaded in (copy, other):
    np.testing.assert_array_equal(predict(loaded, pixels), predict(model, pixels))

# %% [markdown] tags=["shared"]
# ## Key points
#
# * JAX: arrays are immutable, keys are used once; `grad`, `vmap` and `jit` make new
#   functions; `lax.scan` is the loop.
# * PyTorch: tensors change in place, and views with them; `backward` adds to `grad`, so
#   clear it; detach what you keep.
# * Call `eval()` before use, compute the loss from logits, and wait for the result
#   before you stop the clock.

# %% [markdown] tags=["torch"]
# Next comes [attention, in PyTorch](attention_torch.ipynb): the operation that the
# Transformer is built of.
