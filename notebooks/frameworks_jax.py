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
# fifteen lines, and save it; and you know what surprises newcomers. You need: Python
# with NumPy, matrix products, and a first idea of gradient descent.
#
# NumPy can compute every formula of this book, but it cannot train a Transformer. That
# takes the derivatives of one number with respect to all parameters, often millions,
# thousands of times, on a GPU. JAX and PyTorch add both. **JAX** transforms *pure*
# functions, whose result depends on their arguments alone and which change nothing:
# from such a function it makes another that computes the gradient, or runs compiled.
# **PyTorch** works on objects: tensors, its arrays, record how they were computed, and
# a training changes them in place. Later pages build on this one; skim what you know.

# %% [markdown] tags=["jax"]
# This page uses **JAX**, with Flax NNX for layers and Optax for optimisers. The same
# page in PyTorch: [frameworks_torch](frameworks_torch.ipynb).

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
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, serialization
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

from helpers import diagrams, plots
from helpers.prose import say, word
from helpers.shapes import as_numpy, check_shape
from helpers.weights import load_weights, save_weights, to_arrays

# %% tags=["jax"]
jax.config.update("jax_default_matmul_precision", "highest")  # all of float32 on a GPU
plots.use_style()
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## An array has a shape, a dtype and a device
#
# As in NumPy, the *shape* is the size along each axis and the *dtype* the type of the
# numbers. The *device* is new: the memory that holds the array and the processor that
# computes with it, a CPU or a GPU. Arrays that meet in an operation have to be on one
# device. Formulas look as in NumPy: `x @ w` is a matrix product, and shapes broadcast.
# A comment such as `# b i` names the axes: $b$ examples with $i$ inputs each.

# %% [markdown] tags=["jax"]
# `jax.numpy` has NumPy's functions under NumPy's names. New arrays are on the GPU if
# there is one; `jax.device_put` moves them. `partial` fills in an argument in advance.

# %% tags=["jax"]
floats = partial(jnp.asarray, dtype=jnp.float32)
integers = partial(jnp.asarray, dtype=jnp.int32)
x = floats([[1, 2, 3], [4, 5, 6]])  # b i
x.shape, x.dtype, x.device

# %% [markdown] tags=["shared"]
# When two dtypes meet, the result gets a common one: *dtype promotion*. NumPy prefers
# float64. Both frameworks prefer float32, which has seven digits, takes half the memory
# and is much faster on a GPU; bfloat16 halves the memory again, and the digits.

# %% tags=["jax"]
counts = jnp.arange(3, dtype=jnp.int32)
mixed = {
    "int32 array + float32 array": counts + x[0],
    "int32 array / 2": counts / 2,
    "float32 array + 0.5": x + 0.5,
    "bfloat16 array + float32 array": x[0].astype(jnp.bfloat16) + x[0],
    "NumPy's float64, as an array": jnp.asarray(np.ones(3)),
    # try: float16 and bfloat16
}

# %% tags=["shared", "say"]
ints, real = np.arange(3, dtype=np.int32), np.ones(3, dtype=np.float32)
numpys = [ints + real, ints / 2, real + 0.5, None, np.ones(3)]
rows = [
    f"| {what} | {as_numpy(array).dtype} | {getattr(own, 'dtype', '–')} |"
    for (what, array), own in zip(mixed.items(), numpys, strict=True)
]
say("\n".join(["| operation | dtype here | in NumPy |", "|---|---|---|", *rows]))

# %% tags=["shared", "check"]
# Checked: int32 with float32, or halved, gives float32 here and float64 in NumPy
kinds = [str(array.dtype).removeprefix("torch.") for array in mixed.values()]
assert kinds[:4] == ["float32"] * 4
assert [numpys[place].dtype for place in (0, 1)] == ["float64"] * 2

# %% [markdown] tags=["jax"]
# JAX has no float64 unless it is enabled (`jax_enable_x64`): NumPy's becomes float32.

# %% [markdown] tags=["shared"]
# ## JAX arrays never change, PyTorch tensors can
#
# In PyTorch, `x[0, 0] = 7` is an *in-place* update, as in NumPy: it changes `x` itself.
# A slice is a *view* of the same memory, so changing the slice changes the
# array. Methods that work in place end in an underscore: `x.zero_()`. In JAX arrays are
# immutable: `x[0, 0] = 7` is an error, and `x.at[0, 0].set(7)` returns a new array. So
# no function can change an array that it was given, as pure functions must not.

# %% tags=["jax"]
changed = x.at[0, 0].set(7)  # a new array; x is as before
row = changed[0]
row = row.at[:].set(0)  # another new array; changed is as before
as_numpy(changed)

# %% tags=["jax", "check"]
# Checked: the original and the sliced array are as before
np.testing.assert_array_equal(as_numpy(x), [[1, 2, 3], [4, 5, 6]])
np.testing.assert_array_equal(as_numpy(changed), [[7, 2, 3], [4, 5, 6]])
np.testing.assert_array_equal(as_numpy(row), [0, 0, 0])

# %% [markdown] tags=["shared"]
# ## The same seed gives the same random numbers
#
# A computer's random numbers are computed from a *seed*, so an experiment can be
# repeated. A PyTorch *generator* has a state that every draw advances: insert one draw,
# and all later ones are different. JAX has no such state. Each function takes a *key*,
# and the same key gives the same numbers; for new numbers, `split` the key. A key used
# twice is a common bug, and no error tells you: two layers, say, start with equal
# weights.

# %% tags=["jax"]
key = jax.random.key(0)
first = jax.random.normal(key, (3,))
again = jax.random.normal(key, (3,))  # the same key
key, subkey = jax.random.split(key)
other = jax.random.normal(subkey, (3,))
first, again, other

# %% tags=["shared", "check"]
# Checked: the same key or seed repeats the numbers, and the next draw is different
np.testing.assert_array_equal(as_numpy(first), as_numpy(again))
assert (as_numpy(first) != as_numpy(other)).all()

# %% [markdown] tags=["jax"]
# Layers of Flax draw their weights with keys from `nnx.Rngs(0)`, which holds a key and
# hands out a new one at every call.

# %% [markdown] tags=["shared"]
# From the same seed, JAX, PyTorch and NumPy draw different numbers. What the twins of
# this book share (data, batches, sometimes initial weights) comes from NumPy.

# %% [markdown] tags=["shared"]
# ## Automatic differentiation is exact up to rounding
#
# Training lowers a *loss*, a number that says how wrong the model is, by small steps
# against its gradient. One could find each derivative by trying: move one weight by $h$
# and look at the loss. That costs two evaluations per weight, and no $h$ is good: a
# large one misses the curvature, a small one drowns in rounding. *Automatic
# differentiation* (autograd in PyTorch) applies the chain rule to every operation, from
# the loss back to the weights: all derivatives for the price of a few evaluations.

# %% [markdown] tags=["shared"]
# Our example is a single neuron with weights $w$. Of $b$ examples, the one with number
# $j$ has the inputs $x_j$ and the target $y_j$:
#
# $$L(w) = \frac1b \sum_{j=1}^b \big(\tanh(x_j \cdot w) - y_j\big)^2 .$$

# %% tags=["shared"]
rng = np.random.default_rng(0)
inputs, targets = rng.normal(size=(7, 3)), rng.normal(size=7)  # b i, b
start = np.array([0.5, -1.0, 0.25])  # i

# %% [markdown] tags=["jax"]
# `jax.grad(f)` is a function that computes the gradient of `f` with respect to its
# first argument; `jax.value_and_grad` returns the loss as well.

# %% tags=["jax"]
x, y, w = floats(inputs), floats(targets), floats(start)


def loss_fn(w):
    """Mean squared error of the neuron: ``i -> ``."""
    return ((jnp.tanh(x @ w) - y) ** 2).mean()


loss, gradient = jax.value_and_grad(loss_fn)(w)
as_numpy(gradient)

# %% [markdown] tags=["shared"]
# Is it right? We compare it with the chain rule on paper,
# $\frac2b \sum_j (p_j - y_j)(1-p_j^2)\, x_j$ with $p_j = \tanh(x_j \cdot w)$, and see
# how close difference quotients come, $\big(L(w + h) - L(w - h)\big) / 2h$ for each
# weight, in float32 and in float64.


# %% tags=["shared"]
def differences(w, h):
    """Difference quotients of the loss, one per weight, in the dtype of ``w``."""

    def loss(w):
        p = np.tanh(inputs.astype(w.dtype) @ w)
        return np.mean((p - targets.astype(w.dtype)) ** 2)

    moves = (h * np.eye(len(w))).astype(w.dtype)
    quotients = [(loss(w + move) - loss(w - move)) / (2 * move.max()) for move in moves]
    return np.array(quotients)


# %% tags=["shared"]
p = np.tanh(inputs @ start)
exact = 2 / 7 * ((p - targets) * (1 - p**2)) @ inputs
sizes = 10.0 ** np.arange(-9, 0.5, 0.5)
errors = {
    kind: [np.abs(differences(start.astype(kind), h) - exact).max() for h in sizes]
    for kind in ("float64", "float32")
}
error = np.abs(as_numpy(gradient) - exact).max()

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Error of a gradient against the step h, both logarithmic. The difference quotients fall and rise again, the one in float32 with its lowest point far above that of float64; automatic differentiation in float32 is a flat line below all of float32."}}
lines = {f"differences, {kind}": (sizes, values) for kind, values in errors.items()}
lines["automatic, float32"] = sizes, np.full(len(sizes), error)
panels = {"Every step is too large or too small": lines}
fig = plots.curves(
    panels, x="step h", y="largest error", log_x=10, log_y=True, size=(5.5, 3)
)
fig

# %% tags=["shared", "say"]
best = min(errors["float32"])
say(
    f"With the best step, float32 quotients are off by {best:.0e}; automatic "
    f"differentiation, in the same float32, by {error:.0e}: **{best / error:.0f} times "
    f"{word('less', error, best)}**."
)

# %% tags=["shared", "check"]
# Checked: the automatic gradient is more than 10 times closer than float32 quotients
title = "Every step is too large or too small"
flat = plots.drawn(fig, title, "automatic, float32")[1]
single = plots.drawn(fig, title, "differences, float32")[1]
double = plots.drawn(fig, title, "differences, float64")[1]
assert (single > 10 * flat).all()  # loose: rounding differs between machines
assert single.min() > 1000 * double.min()  # loose: rounding, as above
ends = min(single[0], single[-1])  # falls and rises again
assert ends > 100 * single.min()  # loose: rounding, as above

# %% [markdown] tags=["jax"]
# The gradient is the result of a function: nothing is stored, so nothing has to be
# cleared.

# %% tags=["jax"]
twice = gradient + jax.grad(loss_fn)(w)  # to sum, add

# %% tags=["shared", "check"]
# Checked: two gradients add up to twice the first
np.testing.assert_allclose(as_numpy(twice), 2 * as_numpy(gradient), rtol=1e-6)

# %% [markdown] tags=["shared"]
# ## Eager code runs at every call, traced code once
#
# PyTorch executes an operation as soon as Python reaches it: it is *eager*. So is JAX,
# unless `jax.jit` compiles the function (*jit*: when it is first called). Then the
# first call begins with *tracing*: Python runs the body on *tracers*, placeholders that
# have a shape and a dtype but no values. The operations are recorded and compiled into
# one program. Later calls with the same shapes and dtypes run this program, without
# Python, which is faster. (PyTorch's counterpart is `torch.compile`; this book does not
# need it.) How often does Python run the body of this function?

# %% tags=["shared"]
runs = []


def squares(x):
    """Sum of squares: ``n -> ``; notes every run of its body."""
    runs.append(tuple(x.shape))
    return (x**2).sum()


# %% tags=["jax"]
compiled = jax.jit(squares)
results = [compiled(jnp.ones(n)) for n in (3, 3, 3, 5)]
n_runs = len(runs)

# %% tags=["shared", "say"]
say(f"Four calls, two shapes: Python ran the body **{n_runs} times**.")

# %% tags=["jax", "check"]
# Checked: Python runs the body once per shape, and every call returns its sum
assert n_runs == 2
np.testing.assert_array_equal([float(result) for result in results], [3, 3, 3, 5])

# %% [markdown] tags=["jax"]
# So whatever Python does besides (printing, counting, appending to a list) happens
# while tracing only. A value is unknown then, and `if x > 0` an error;
# `jnp.where(x > 0, a, b)` selects number by number. An argument that Python needs to
# know, such as a size or a function, is named in `static_argnames`. What was recorded:


# %% tags=["jax"]
def operations(function, x):
    """Names of the operations that JAX records when it traces a function."""
    return [step.primitive.name for step in jax.make_jaxpr(function)(x).eqns]


operations(squares, jnp.ones(3))

# %% [markdown] tags=["shared"]
# ## Keep values, not graphs or tracers
#
# A training collects its losses. In PyTorch a loss refers to its *graph*, the record of
# how it was computed, and the graph holds the intermediate results: a list of losses
# fills the memory. `loss.detach()` is the same number without the graph, and under
# `torch.no_grad()` nothing is recorded. In JAX a function that appends to a list while
# it is traced keeps a tracer, which has no value; to use it later is an error. What you
# want to keep, return.

# %% tags=["jax"]
kept = []


@jax.jit
def noted_loss(w):
    """The loss; keeps it in a list, too, which is the mistake."""
    loss = loss_fn(w)
    kept.append(loss)
    return loss


values = [noted_loss(w) for _ in range(3)]
print("kept:    ", kept)
print("returned:", values)

# %% tags=["jax", "check"]
# Checked: using the tracer that was kept is an error, the returned losses have values
try:
    kept[0] + 1
except jax.errors.UnexpectedTracerError:
    error_raised = True
assert error_raised and len(kept) == 1
np.testing.assert_allclose(values, as_numpy(loss), rtol=1e-6)

# %% [markdown] tags=["shared"]
# ## A long loop is a scan in JAX, a Python loop in PyTorch
#
# A training is a loop: from a state and a batch to the next state. In a compiled
# function a Python loop is *unrolled*: traced turn by turn, so that a thousand turns
# make a program a thousand times as long. A scan, `jax.lax.scan(step, state, inputs)`,
# traces `step` once and repeats it on the device: `step` takes the state and one input,
# and returns the next state, of the same shape and dtype, and an output; the outputs
# come back stacked. In PyTorch Python runs the loop, and the state can change in place.
# Our example is a running average of values $v_t$, with a $\beta$ a little below 1:
#
# $$\mu_t = \beta\, \mu_{t-1} + (1-\beta)\, v_t, \qquad \mu_0 = 0.$$


# %% tags=["jax"]
@jax.jit
def running_average(values, beta):
    """Exponential moving average after each value: ``n -> n``."""

    def step(mean, value):
        mean = beta * mean + (1 - beta) * value
        return mean, mean  # the next state, an output

    return jax.lax.scan(step, jnp.zeros(()), values)[1]


# %% tags=["shared"]
stream = np.random.default_rng(2).normal(loc=1.0, size=1000)
averages = as_numpy(running_average(floats(stream), 0.99))

# %% tags=["shared", "say"]
after = ", ".join(f"{averages[n - 1]:.2f} after {n:,}" for n in (10, 100, 1000))
say(
    f"The average begins at 0 and approaches the mean of the stream, 1: it is {after} "
    "values. (Adam divides by $1 - \\beta^t$ to correct for this start.)"
)

# %% tags=["shared", "check"]
# Checked: the loop agrees with the sum that it stands for, in NumPy
powers = 0.01 * 0.99 ** np.arange(1000)
wanted = [powers[: t + 1][::-1] @ stream[: t + 1] for t in range(1000)]
np.testing.assert_allclose(averages, wanted, atol=1e-5)

# %% [markdown] tags=["jax"]
# (`jax.vmap(f)` maps `f` over the first axis, all at once.)

# %% [markdown] tags=["shared"]
# ## A module is a tree of parameters
#
# The arrays that training changes are called *parameters*. A *module* holds them as
# attributes; modules contain modules, so a model is a tree with parameters as leaves.
# This one has two dense layers, $y = xW + b$, and between them a ReLU, which keeps
# positive numbers and sets others to zero. From the $i = 64$ pixels of a picture it
# makes $f$ hidden features, and from these $c = 10$ *logits*, one per digit: the
# larger, the more likely. `build` makes a model from a seed, here and on all later
# pages.


# %% tags=["jax"]
class Classifier(nnx.Module):
    """Two dense layers: pixels to logits, ``b i -> b c``."""

    def __init__(self, i, f, c, *, rngs):
        self.hidden = nnx.Linear(i, f, rngs=rngs)
        self.output = nnx.Linear(f, c, rngs=rngs)

    def __call__(self, x):
        return self.output(jax.nn.relu(self.hidden(x)))


# %% tags=["jax"]
def build(kind, *sizes, seed=0, **options):
    """Make a layer whose random numbers come from ``seed``."""
    return kind(*sizes, rngs=nnx.Rngs(seed), **options)


model = build(Classifier, 64, 64, 10)

# %% [markdown] tags=["jax"]
# `nnx.split` takes a module apart: its structure, its parameters (`nnx.Param`), and the
# rest, such as the keys of dropout. The parameters are a *pytree*: dicts, lists and
# tuples, nested as you like, with arrays as leaves. All of JAX accepts pytrees:
# `jax.grad` returns one of the same form, `jax.tree.map` applies a function to each
# leaf. `nnx.merge` is the way back, `nnx.update` writes into the module.

# %% tags=["jax"]
kernel = model.hidden.kernel[...]  # the array of a parameter
graph, params, rest = nnx.split(model, nnx.Param, ...)  # ... is all the rest
halved = jax.tree.map(lambda leaf: leaf / 2, params)
before = to_arrays(model)
nnx.update(model, halved)
leaves = nnx.to_flat_state(params)
{".".join(path): leaf.shape for path, leaf in leaves}

# %% [markdown] tags=["shared"]
# Flax stores a dense matrix in × out, as in $xW$; PyTorch stores out × in, and
# multiplies by its transpose. `to_arrays` of this book's helpers copies the parameters
# to NumPy, in × out on both sides. A list of modules has to be wrapped: `nnx.data([…])`
# or `nn.ModuleList([…])`.

# %% tags=["shared", "check"]
# Checked: every parameter was halved
check_shape(before["hidden.weight"], "i f", i=64, f=64)
check_shape(before["output.weight"], "f c", f=64, c=10)
for name, array in to_arrays(model).items():
    np.testing.assert_array_equal(array, before[name] / 2)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** How many parameters does this model have? A training with the
# optimiser Adam stores, besides each of them, its gradient and two averages. How many
# bytes are these four numbers per parameter, in float32?

# %% tags=["shared", "answer"]
n_params = sum(array.size for array in to_arrays(model).values())
assert n_params == (64 * 64 + 64) + (64 * 10 + 10)
say(
    f"Each layer has a matrix and a bias: $64 \\cdot 64 + 64 + 64 \\cdot 10 + 10 = "
    f"{n_params:,}$ parameters. With gradient and averages that is four times as many "
    f"numbers, of four bytes each: {4 * 4 * n_params:,} bytes."
)

# %% [markdown] tags=["shared"]
# ## train() and eval() switch dropout
#
# Some layers behave differently in training and in use. *Dropout* sets each number to
# zero with probability $p$ and multiplies the others by $1/(1-p)$, which keeps the
# mean; in use it does nothing. The methods `train()` and `eval()` set the mode of a
# module and of all modules inside. Without `eval()` a trained model gives other outputs
# at every call, and no error tells you.

# %% tags=["jax"]
ones = jnp.ones(1000)
dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))  # try 0.9
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
# The loss of a classifier is the *cross-entropy*, minus the logarithm of the
# probability that a *softmax* gives to the right class, averaged over the batch. With
# the logits $z_{jk}$ of example $j$ and class $k$, and the right class $y_j$,
#
# $$p_{jk} = \frac{e^{z_{jk}}}{\sum_l e^{z_{jl}}}, \qquad
# \mathrm{loss} = -\frac1b \sum_{j=1}^b \ln p_{j y_j}.$$
#
# In float32, $e^{89}$ is already infinite, and infinity over infinity is *NaN*, "not a
# number". Whatever is computed from NaN is NaN: one in the loss, and after the next
# update all parameters are. So the frameworks' log-softmax subtracts the largest logit
# first.

# %% [markdown] tags=["jax"]
# `take_along_axis` picks what belongs to the labels. (Optax has this loss, too.)


# %% tags=["jax"]
def probabilities(logits):
    """Softmax as its formula says: ``… c -> … c``."""
    exp = jnp.exp(logits)
    return exp / exp.sum(axis=-1, keepdims=True)


def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of a model that returns logits."""
    logits = model(inputs)
    log_p = jax.nn.log_softmax(logits)
    right = jnp.take_along_axis(log_p, labels[..., None], axis=-1)
    return -right.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


[as_numpy(probabilities(floats([logit, 0.0]))) for logit in (2, 1000)]

# %% tags=["shared", "check"]
# Checked: a logit of 1000 makes the formula NaN, and leaves the cross-entropy finite
assert np.isnan(as_numpy(probabilities(floats([1000.0, 0.0])))).any()
large, right = floats([[1000.0, 0.0], [2.0, 0.0]]), integers([1, 0])
found = cross_entropy(lambda logits: logits, large, right)[0]
np.testing.assert_allclose(float(found), (1000 + np.log(1 + np.exp(-2))) / 2, rtol=1e-6)

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Softmax stays the same if one number is subtracted
# from all logits. Change `probabilities` so that logits of 1000 do no harm.


# %% tags=["jax", "answer"]
def probabilities(logits):
    """Softmax that cannot overflow: ``… c -> … c``."""
    exp = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


# The largest exponent is 0 now: no exponential exceeds 1, and their sum is at least 1.
np.testing.assert_array_equal(as_numpy(probabilities(floats([1000.0, 0.0]))), [1, 0])

# %% [markdown] tags=["shared"]
# ## An optimiser turns gradients into steps
#
# Gradient descent subtracts the gradient times a *learning rate* $\eta$; on random
# batches it is called SGD. *Adam* divides a running average of the gradient by the root
# of a running average of its square, so that all parameters move at a similar pace.
# These averages are the optimiser's state. In Optax an optimiser is a pair of pure
# functions: `init` makes the state, `update` turns gradients and state into steps and
# the next state. In PyTorch it is an object that holds the parameters and the state:
# `step()` changes both in place. One step of gradient descent with $\eta = 0.1$:

# %% tags=["jax"]
optimizer = optax.sgd(0.1)
opt_state = optimizer.init(w)
steps, opt_state = optimizer.update(jax.grad(loss_fn)(w), opt_state)
moved = optax.apply_updates(w, steps)
as_numpy(moved)

# %% tags=["shared", "check"]
# Checked: the step is minus the learning rate times the gradient
wanted = start - 0.1 * as_numpy(gradient)
np.testing.assert_allclose(as_numpy(moved), wanted, atol=1e-6)

# %% [markdown] tags=["shared"]
# ## Fifteen lines train a classifier
#
# Batch, loss, gradient, step: repeated, this is a training. (Clipping, a schedule for
# the learning rate and validation data come in later chapters.)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "A batch of inputs goes through the model; with the labels it gives the loss. The gradient goes back up, through clipping, to the optimiser, which changes the model: once for each batch. After each epoch, validation keeps the best weights."}}
diagrams.training_loop()

# %% [markdown] tags=["shared"]
# The data are the 1,797 handwritten digits of scikit-learn, of 8 × 8 pixels. A fifth is
# set aside as test data. An *epoch* goes once through the training data, in a new order
# each time. Data that fit into memory need no loader (such as PyTorch's `DataLoader`):
# a batch is a row of `batches`, which holds row numbers of the data.

# %% tags=["shared"]
pixels, classes = load_digits(return_X_y=True)  # b i, b
order = np.random.default_rng(0).permutation(len(pixels))
pixels, classes = pixels[order] / 16, classes[order]  # ink from 0 to 1
n_train, batch_size, epochs, learning_rate = 1437, 64, 20, 0.003
truth = classes[n_train:]

rng = np.random.default_rng(1)
n_batches = n_train // batch_size
orders = [rng.permutation(n_train)[: n_batches * batch_size] for _ in range(epochs)]
batches = np.concatenate(orders).reshape(-1, batch_size)  # n b
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
# Why these settings? 64 examples make a gradient that is steady enough; after 20 epochs
# there is little left to gain. Adam's usual rate is $0.001$; a model this small bears
# three times as much. Initial weights are random, because equal features would stay
# equal: uniform within $\pm 1/\sqrt{n}$ for a layer with $n$ inputs, as in the rest of
# this book. For a table of your own, replace `pixels`, `classes` and the sizes 64 and
# 10, and try the rate $0.001$ first, then three times more and less.

# %% [markdown] tags=["jax"]
# The state of the scan is the pair of parameters and optimiser state. `objective` is a
# function of the parameters, so that JAX can differentiate with respect to them; with
# `has_aux` it may return more than the loss. (`nnx.Optimizer` and `nnx.jit` would split
# and merge for you, at every call.)


# %% tags=["jax"]
def train(model, x, y, batches, learning_rate):
    """Adam on the rows ``batches`` ``n b``; changes the model, returns the losses."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adam(learning_rate)

    def update(state, rows):
        params, opt_state = state

        def objective(params):
            return cross_entropy(nnx.merge(graph, params, rest), x[rows], y[rows])

        (loss, _), grads = jax.value_and_grad(objective, has_aux=True)(params)
        steps, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, steps), opt_state), loss

    state = params, optimizer.init(params)
    (params, _), losses = jax.lax.scan(update, state, batches)
    nnx.update(model, params)
    return losses


# %% tags=["shared"]
def accuracy(model, rows):
    """Share of the digits in ``rows`` whose largest logit is that of their class."""
    logits = as_numpy(model(floats(pixels[rows])))
    return (logits.argmax(-1) == classes[rows]).mean()


load_weights(model, folder / "initial.safetensors")
x, y = floats(pixels[:n_train]), integers(classes[:n_train])
losses = as_numpy(train(model, x, y, integers(batches), learning_rate))
on_train, on_test = (
    accuracy(model, rows) for rows in (slice(n_train), slice(n_train, None))
)

# %% tags=["shared", "say"]
say(
    f"After {len(batches)} updates the model gets **{on_test:.1%}** of the "
    f"{len(truth)} test digits right, and {on_train:.1%} of those it was trained on. "
    f"The loss began at {losses[0]:.2f}, near the {np.log(10):.2f} of a guess "
    f"($\\ln 10$), and ended at {losses[-n_batches:].mean():.2f}."
)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The loss of every update, on a logarithmic axis: a steep fall at first, then a gentle one to the end."}}
panels = {"Loss of every update": {"training": (np.arange(len(losses)), losses)}}
plots.curves(panels, x="update", y="cross-entropy", log_y=True, size=(5, 2.6))

# %% tags=["shared", "check"]
# Checked: more than 96 of 100 test digits are right, and more of the training digits
assert on_train > on_test > 0.96
assert losses[0] > 2 and losses[-n_batches:].mean() < 0.15

# %% [markdown] tags=["shared"]
# What would it take in NumPy? The gradient by hand, rewritten for every new model:


# %% tags=["shared"]
def loss_and_gradient(w, x, y):
    """Cross-entropy of the classifier, and its gradient by the chain rule."""
    hidden = np.maximum(x @ w["hidden.weight"] + w["hidden.bias"], 0)  # b f
    logits = hidden @ w["output.weight"] + w["output.bias"]  # b c
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    by_logits = (p - np.eye(10)[y]) / len(y)  # b c
    by_hidden = by_logits @ w["output.weight"].T * (hidden > 0)  # b f
    return -np.log(p[np.arange(len(y)), y]).mean(), {
        "hidden.weight": x.T @ by_hidden,
        "hidden.bias": by_hidden.sum(axis=0),
        "output.weight": hidden.T @ by_logits,
        "output.bias": by_logits.sum(axis=0),
    }


# %% [markdown] tags=["shared"]
# With it, the training can be repeated in float64. Both twins read the same weights
# file, take the same batches, and follow these losses; so they agree with each other.

# %% tags=["shared", "check"]
# Checked: 100 updates in NumPy, with Adam written out, have the same losses to 0.1 %
values = {name: array.astype(np.float64) for name, array in initial.items()}
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
# The test digits whose class got the lowest probability, and what the model chose:

# %% tags=["shared"]
logits = as_numpy(model(floats(pixels[n_train:]))).astype(np.float64)  # b c
log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
hardest = log_p[np.arange(len(truth)), truth].argsort()[:8]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Eight blurred digits of 8 by 8 pixels in a row; below each its class and the class that the model chose."}}
images = (255 * pixels[n_train:][hardest]).astype(np.uint8).reshape(1, 8, 8, 8)
captions = [[f"{truth[i]} → {logits[i].argmax()}" for i in hardest]]
plots.pictures(images, captions=captions, titles=["class → guess"])

# %% tags=["shared", "check"]
# Checked: the first four of them are mistakes
assert (logits[hardest].argmax(axis=1) != truth[hardest])[:4].all()

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** Train on the first 50 digits only, then on 200, with as many
# updates. What happens to the accuracy on these digits, and on the test digits? (A gap
# between the two is called *overfitting*.)

# %% tags=["shared", "answer"]
found = {}
for n in (50, 200):
    reader = build(Classifier, 64, 64, 10)
    load_weights(reader, folder / "initial.safetensors")
    train(reader, x, y, integers(rng.integers(n, size=batches.shape)), learning_rate)
    found[n] = accuracy(reader, slice(n)), accuracy(reader, slice(n_train, None))
assert found[50][0] == found[200][0] == 1 and found[50][1] < found[200][1] < on_test
assert found[50][1] < 0.93
few, some = found[50], found[200]
say(
    f"With 50 digits the model gets {few[0]:.0%} of them right, but only {few[1]:.1%} "
    f"of the test digits; with 200 it gets {some[1]:.1%} of these, with all "
    f"{on_test:.1%}. It has overfitted: it fits the few digits in ways that do not "
    "carry over to others. The best remedy is more data."
)

# %% [markdown] tags=["shared"]
# ## Time the result, not the call
#
# A GPU is *asynchronous*: a call returns once its work is queued, while the GPU goes on
# computing. JAX does the same on a CPU. A clock that does not wait measures the
# queueing. `jax.block_until_ready(result)` and `torch.cuda.synchronize()` wait; so does
# whatever needs the value, such as `print(loss)`, which is why a training does not
# print every loss. And the first call of a compiled function contains its compilation.


# %% tags=["jax"]
@jax.jit
def product(x):
    """A product that takes a while: ``n n -> n n``."""
    return x @ x


def clock(function, x):
    """Seconds until the call returns, and until its result is there."""
    start = time.perf_counter()
    result = function(x)
    returned = time.perf_counter() - start
    jax.block_until_ready(result)
    return returned, time.perf_counter() - start


big = jnp.ones((2000, 2000))  # try 200
first_call, later_call = clock(product, big), clock(product, big)

# %% tags=["shared", "say"]
(returned, done), first_done = 1e3 * np.array(later_call), 1e3 * first_call[1]
say(
    f"The call returned after {returned:.2f} ms, its result was there after "
    f"{done:.0f} ms (in the first call after {first_done:.0f} ms)."
)

# %% tags=["jax", "check"]
# Checked: a call returns before its result is there; the first one also compiles
assert later_call[0] < later_call[1] and later_call[0] < first_call[0]

# %% [markdown] tags=["shared"]
# ## A file keeps names and numbers
#
# Save the parameters of a model, not the Python object: code changes, and a pickled
# object can run any code when it is opened. *safetensors* files hold named arrays and
# nothing else. `save_weights` of our helpers writes them with names and layouts that
# belong to neither framework, so the twin page can load them. To resume a training,
# save the optimiser's state as well.

# %% [markdown] tags=["jax"]
# Flax turns a pytree into bytes; for large models, Orbax writes checkpoints.

# %% tags=["jax"]
state = nnx.state(model, nnx.Param)
data = serialization.msgpack_serialize(nnx.to_pure_dict(state))
(folder / "trained.msgpack").write_bytes(data)

copy = build(Classifier, 64, 64, 10, seed=1)
state = nnx.state(copy, nnx.Param)
data = (folder / "trained.msgpack").read_bytes()
nnx.replace_by_pure_dict(state, serialization.msgpack_restore(data))
nnx.update(copy, state)

# %% tags=["shared"]
save_weights(model, folder / "trained.safetensors")
twin = build(Classifier, 64, 64, 10, seed=2)
load_weights(twin, folder / "trained.safetensors")

# %% tags=["shared", "check"]
# Checked: both copies compute the logits of the trained model, to the last bit
for loaded in (copy, twin):
    np.testing.assert_array_equal(as_numpy(loaded(x)), as_numpy(model(x)))

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Name the dtype. JAX arrays are immutable; PyTorch tensors share memory with their
#   views and can change in place.
# * A JAX key is used once, then split; a PyTorch generator advances at every draw.
# * JAX: `jax.grad` and `jax.jit` make new functions, traced once per shape; `lax.scan`
#   is the loop.
# * PyTorch: `backward` adds to `grad`; clear it, and detach what you keep.
# * Call `eval()` before use, log-softmax instead of the logarithm of a softmax, and
#   wait for the result before you read the clock.

# %% [markdown] tags=["jax"]
# Next comes [attention, in JAX](attention_jax.ipynb): the operation that the
# Transformer is built of.
