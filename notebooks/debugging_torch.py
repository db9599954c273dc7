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
# # When training fails
#
# By the end you can build the book's models from your framework's own layers, train
# them on your tables, signals and texts, find out why a training does not work, and
# hand a model to somebody who has none of your code.
# You need: the chapters up to *Positions*, and some idea of a training loop.
#
# The classes of this book were made to be read. Your own project begins differently:
# with a file of measurements, and with a library whose layers have defaults that
# nobody has told you about. You put the two together, and the loss does not fall. Is it
# the data? The mask? The learning rate? This page goes the whole way once, makes six
# mistakes on purpose, and finds each of them by a test.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX:
# [debugging_jax](debugging_jax.ipynb).

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
import copy
import json
import math
import tempfile
import warnings
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import sklearn
import torch
from sklearn.datasets import load_wine
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from helpers.engine.shapes import as_numpy  # an array of the framework as a NumPy array
from helpers.show import plots
from helpers.show.diagrams import debugging as diagrams  # drawings and figures
from helpers.show.prose import power, recorded, say, table
from helpers.torch import Encoder, attention, build, full_float32
from helpers.torch.memory import activations

# %% tags=["torch", "experiment"]
# Experiment: style, device, and the short names floats, booleans and whole
plots.use_style()
device = "cuda" if torch.cuda.is_available() else "cpu"
build = partial(build, device=device)  # models are made on this device
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
booleans = partial(torch.as_tensor, dtype=torch.bool, device=device)
whole = partial(torch.as_tensor, dtype=torch.int64, device=device)

# %% [markdown] tags=["shared"]
# ## The framework's layers compute the same
#
# Ready-made layers are tested by thousands. To change something inside, or to look at
# it, write your own around the framework's fused attention: PyTorch's documentation
# calls its `nn.Transformer*` reference implementations. And every default is a
# decision that somebody has made for you.

# %% [markdown] tags=["torch"]
# PyTorch has the whole block. Four of its defaults are not ours:


# %% tags=["torch"]
class Block(nn.TransformerEncoderLayer):
    """PyTorch's block with the choices of ours: ``b s m, b s -> b s m``."""

    def __init__(self, m, n_heads, f, dropout=0.0):
        options = {"activation": "gelu", "norm_first": True, "batch_first": True}
        super().__init__(m, n_heads, f, dropout, **options)


# %% [markdown] tags=["shared"]
# With an embedding in front and a mean over the real positions behind, it becomes the
# model for all data on this page: a sequence in, one vector of outputs out.


# %% tags=["torch"]
class Classifier(nn.Module):
    """One output vector per sequence: ``b s i, b s -> b c``; ``real`` is no padding."""

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, max_length, dropout=0.0
    ):
        super().__init__()
        self.embed = nn.Linear(n_inputs, m)
        self.positions = nn.Parameter(0.02 * torch.randn(max_length, m))
        block, norm = Block(m, n_heads, f, dropout), nn.LayerNorm(m)
        self.encoder = nn.TransformerEncoder(
            block, n_blocks, norm, enable_nested_tensor=False
        )
        self.output = nn.Linear(m, n_outputs)

    def encode(self, x, real):
        x = self.embed(x) + self.positions[: x.shape[1]]  # b s m
        return self.encoder(x, src_key_padding_mask=~real)  # here, True hides

    def forward(self, x, real):
        encoded = self.encode(x, real) * real[..., None]
        return self.output(encoded.sum(1) / real.sum(1)[:, None])


# %% [markdown] tags=["shared"]
# Do these layers compute what ours do? Give them the same weights, under the names that
# the framework uses:


# %% tags=["torch", "experiment"]
# Experiment: our weights under the other names
def renamed(encoder):
    """Weights of our ``Encoder`` under PyTorch's names."""
    names = {"blocks.": "layers.", "attention.qkv.": "self_attn.in_proj_"}
    names |= {"attention.out.": "self_attn.out_proj.", "ffn.": ""}
    state = {}
    for name, array in encoder.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        state[name] = array
    return state


# %% tags=["torch"]
sizes = {"n_blocks": 2, "n_heads": 3, "f": 41}
ours = build(Encoder, 2, 24, 3, 41, norm_first=True, activation="gelu")
own = build(Classifier, 5, 24, 7, **sizes, max_length=11, seed=1)
own.encoder.load_state_dict(renamed(ours))

# %% tags=["torch", "check"]
# Checked: at real positions, both encoders agree to 1e-5
draw = np.random.default_rng(0).normal
x, real = floats(draw(size=(2, 11, 5))), np.arange(11) < np.array([[11], [7]])  # b s
mask = booleans(real)
placed = own.embed(x) + own.positions
expected = as_numpy(ours(placed, mask[:, None, None]))
found = as_numpy(own.encode(x, mask))
np.testing.assert_allclose(found[real], expected[real], atol=1e-5)

# %% tags=["torch", "check"]
# Checked: the defaults are those of the table; in fused attention, True may look
default = nn.TransformerEncoderLayer(12, 3, 7)
stack = partial(nn.TransformerEncoder, enable_nested_tensor=False)
assert not default.norm_first and not default.self_attn.batch_first
assert default.dropout.p == default.self_attn.dropout == 0.1
assert default.activation is nn.functional.relu
first, second = build(stack, default, 2).layers
assert torch.equal(first.linear1.weight, second.linear1.weight)
own_way = nn.functional.scaled_dot_product_attention
q = floats(draw(size=(1, 1, 3, 4)))
keys = booleans([[True, True, False]])
np.testing.assert_allclose(
    as_numpy(own_way(q, q, q, attn_mask=keys)), as_numpy(attention(q, q, q, keys)[0]),
    atol=1e-5,
)  # fmt: skip

# %% tags=["torch", "check"]
# Checked: nested tensors make padded outputs 0; weights come as the mean of the heads
post_norm = nn.TransformerEncoderLayer(12, 2, 7, batch_first=True)
hidden = torch.tensor([[False, False, False], [False, True, True]])
with torch.no_grad(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    stacked = nn.TransformerEncoder(post_norm, 1).eval()
    padded = stacked(torch.randn(2, 3, 12), src_key_padding_mask=hidden)
assert padded[1, 1:].abs().max() == 0 and padded[1, 0].abs().max() > 0
weights = build(nn.MultiheadAttention, 12, 2)(*3 * [floats(draw(size=(3, 1, 12)))])[1]
assert weights.shape == (1, 3, 3)  # b q k: no axis of heads

# %% [markdown] tags=["torch"]
# | PyTorch's layers | ours |
# |---|---|
# | `src_key_padding_mask`, `attn_mask`: True **hides** | True may look[^sdpa] |
# | `batch_first=False`: inputs `s b m` | `b s m` |
# | `norm_first=False`, `activation="relu"`, `dropout=0.1` | a choice |
# | `dropout` is also for attention weights | is not |
# | the blocks of a stack begin with equal weights | with different ones |
# | `eval()` with post-norm and nested tensors: padded outputs are 0 | are computed |
# | `MultiheadAttention` returns the *mean* of the heads' weights | one map a head |
#
# [^sdpa]: As in `scaled_dot_product_attention`: PyTorch itself has both meanings.

# %% [markdown] tags=["shared"]
# ## Your data become a sequence of vectors
#
# A Transformer does not know what a table or a text is. It takes vectors, `b s i`. So
# the one question about new data is: *what is a token?*

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three kinds of data become sequences of boxes. Of a table row with the columns alcohol, acid and ash, each number becomes a token. Of a curve, each piece of four weeks becomes a token. Of a line of text, each character becomes a token, and dashed grey boxes at the end are padding."}}
diagrams.three_kinds_of_data()

# %% [markdown] tags=["shared"]
# **A table.** Each number is a token. A number alone does not say which column it comes
# from, so each column gets an embedding of its own, multiplied by the number
# ([Gorishniy et al. 2021](https://arxiv.org/abs/2106.11959)). In code, a token is zero
# everywhere but in its column's place, where the number stands.


# %% tags=["shared"]
def from_table(rows):
    """Each number in the place of its column: ``b s -> b s s``."""
    return rows[:, :, None] * np.eye(rows.shape[1])


# %% [markdown] tags=["shared"]
# **A signal.** A single measurement says little, so a token is a piece of it, as
# patches are in pictures. What counts is the change since the last known value.


# %% tags=["shared"]
def from_signal(series, length, ahead, patch):
    """Windows as patches ``b s i``, and what comes after each: ``b c``.

    ``length`` known values, ``ahead`` unknown ones, all less the last known value.
    """
    windows = np.lib.stride_tricks.sliding_window_view(series, length + ahead)
    windows = windows - windows[:, length - 1 : length]
    past, future = windows[:, :length], windows[:, length:]
    return past.reshape(len(past), -1, patch), future


# %% [markdown] tags=["shared"]
# **Texts.** Their lengths differ. Each character is a token, and `real` marks the
# positions that hold text. At least one position stays empty in every row, so that a
# test below has padding to change.


# %% tags=["shared"]
def from_texts(texts, length):
    """ASCII characters as one-hot vectors ``b s 128``, and which are real: ``b s``."""
    x = np.zeros((len(texts), length, 128), np.float32)
    for row, text in enumerate(texts):
        codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8)[: length - 1]
        x[row, np.arange(len(codes)), codes] = 1
    return x, x.any(axis=-1)


# %% [markdown] tags=["shared"]
# Now files. The table is scikit-learn's: 13 measurements of 178 wines, of three
# sorts of grape. Scale each column by the mean and standard deviation *of the training
# rows*.

# %% tags=["shared"]
wine, sorts = load_wine(return_X_y=True)  # n 13, n
order = np.random.default_rng(0).permutation(len(wine))
rows, test_rows = order[:118], order[118:]
scaled = (wine - wine[rows].mean(0)) / wine[rows].std(0)

# %% [markdown] tags=["shared"]
# The signal is the concentration of carbon dioxide on Mauna Loa, week by week
# ([Keeling and Whorf](https://www.statsmodels.org/stable/datasets/generated/co2.html));
# some weeks are missing. How will it go on for half a year? The test years come
# *after* the training years.

# %% tags=["shared"]
co2 = np.genfromtxt("helpers/data/co2.csv", delimiter=",", skip_header=2, usecols=1)
known = np.flatnonzero(~np.isnan(co2))  # ppm, or NaN
co2 = np.interp(np.arange(len(co2)), known, co2[known])  # gaps become straight lines
cut = len(co2) * 4 // 5
past, future = from_signal(co2[:cut], length=104, ahead=26, patch=4)
test_past, test_future = from_signal(co2[cut:], length=104, ahead=26, patch=4)

# %% [markdown] tags=["shared"]
# The texts are files that lie on this machine: which of four languages is a line
# written in? We split by *file*, or the model would only recognise its file.

# %% tags=["shared", "experiment"]
# Experiment: lines of files in four languages, split by file
python, packages = Path(json.__file__).parents[1], Path(sklearn.__file__).parents[1]
files = {
    "Python": sorted(python.glob("email/*.py")),
    "C": sorted(Path(np.get_include()).rglob("*.h")),
    "JavaScript": sorted(Path(matplotlib.__file__).parent.rglob("*.js")),
    "English": sorted(packages.glob("sklearn/datasets/descr/*.rst")),
}


def lines_of(paths):
    """Different lines of these files: ASCII, from 8 to 40 characters."""
    found = (line.strip() for p in paths for line in p.read_text("utf-8").splitlines())
    return sorted({x[:40] for x in found if len(x) >= 8 and x.isascii()})


# %% tags=["shared", "experiment"]
# Experiment: at most 400 lines of each language to learn from, 150 for the test
def labelled_lines(files, n):
    """At most ``n`` lines of each language, shuffled, and their languages: 0 to 3."""
    draw = np.random.default_rng(0)
    drawn = [draw.permutation(lines_of(paths))[:n] for paths in files.values()]
    labels = np.repeat(np.arange(len(drawn)), [len(lines) for lines in drawn])
    order = draw.permutation(len(labels))
    return np.concatenate(drawn)[order], labels[order]


train_files = {name: paths[: len(paths) * 4 // 5] for name, paths in files.items()}
test_files = {name: paths[len(paths) * 4 // 5 :] for name, paths in files.items()}
texts, languages = labelled_lines(train_files, 400)
test_texts, test_languages = labelled_lines(test_files, 150)
fresh = ~np.isin(test_texts, texts)  # a line can stand in several files
test_texts, test_languages = test_texts[fresh], test_languages[fresh]
for text, label in zip(texts[:4], languages, strict=False):
    print([*files][label], text, sep=": ")

# %% [markdown] tags=["shared"]
# The training loop is the usual one, with AdamW. Its losses are cross-entropy for
# classes and the mean squared error for a forecast.


# %% tags=["torch"]
def class_loss(model, x, real, labels):
    """Mean cross-entropy of the classes ``b``."""
    return nn.functional.cross_entropy(model(x, real), labels)


def forecast_loss(model, x, real, values):
    """Mean squared error of the values ``b c``."""
    return ((model(x, real) - values) ** 2).mean()


# %% tags=["torch"]
ADAMW = partial(torch.optim.AdamW, weight_decay=0.01)


# %% tags=["torch"]
def one_update(loss_fn, model, optimizer, *batch):
    """One update of the model; returns the loss before it."""
    loss = loss_fn(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def updates(loss_fn, model, optimizer, batches):
    """One update for each batch: the losses ``n``."""
    batches = zip(*batches, strict=True)
    losses = [one_update(loss_fn, model, optimizer, *batch) for batch in batches]
    return torch.stack(losses)


# %% tags=["torch"]
def train(model, loss_fn, data, batches, rate=3e-3, see=lambda model: None):
    """Train by AdamW on batches of rows ``n b``: losses ``n``; ``see`` every 20."""
    optimizer = ADAMW(model.parameters(), lr=rate)
    losses = []
    for rows in np.split(batches, len(batches) // 20):
        some = [x[torch.as_tensor(rows, device=x.device)] for x in data]  # 20 b …
        losses.append(as_numpy(updates(loss_fn, model, optimizer, some)))
        see(model)
    return np.concatenate(losses)


# %% tags=["shared", "experiment"]
# Experiment: rows of each batch, and no padding at all
def draw_batches(rows, updates, size=32, seed=0):
    """Rows of each batch, drawn with repetition: ``n b``."""
    return np.random.default_rng(seed).integers(rows, size=(updates, size))


def everywhere(x):
    """No padding: True for each position, ``b s i -> b s``."""
    return booleans(np.ones(x.shape[:2]))


# %% tags=["torch", "experiment"]
# Experiment: outputs without dropout
def predictions(model, x, real):
    """Outputs ``b c`` without dropout, as a NumPy array."""
    model.eval()
    with torch.no_grad():
        outputs = as_numpy(model(x, real))
    model.train()
    return outputs


# %% tags=["shared", "experiment"]
# Experiment: the same small model on all three kinds of data
small = {"n_blocks": 1, "n_heads": 4, "f": 64}
x, test_x = floats(from_table(scaled[rows])), floats(from_table(scaled[test_rows]))
grapes = build(Classifier, 13, 32, 3, **small, max_length=13)
data = x, everywhere(x), whole(sorts[rows])
train(grapes, class_loss, data, draw_batches(len(x), 200))
by_wine = predictions(grapes, test_x, everywhere(test_x)).argmax(1) == sorts[test_rows]

x, test_x = floats(past), floats(test_past)
forecast = build(Classifier, 4, 32, 26, **small, max_length=26)
data = x, everywhere(x), floats(future)
train(forecast, forecast_loss, data, draw_batches(len(x), 600))
by_signal = predictions(forecast, test_x, everywhere(test_x)) - test_future

# %% tags=["shared", "experiment"]
# Experiment: and on the lines of four languages
x, real = from_texts(texts, 41)
test_x, test_real = from_texts(test_texts, 41)
data = floats(x), booleans(real), whole(languages)
reader = build(Classifier, 128, 32, 4, **small, max_length=41)
train(reader, class_loss, data, draw_batches(len(data[0]), 300))
written = floats(test_x), booleans(test_real)
by_text = predictions(reader, *written).argmax(1) == test_languages

# %% [markdown] tags=["shared"]
# And before you are proud of a Transformer: what does a **baseline** reach? These
# linear ones take a few lines and a second.

# %% tags=["shared"]
scale = make_pipeline(StandardScaler(), LogisticRegression())
wine_baseline = scale.fit(wine[rows], sorts[rows])
linear = Ridge().fit(past.reshape(len(past), -1), future)
pairs = TfidfVectorizer(analyzer="char", ngram_range=(1, 2))
text_baseline = make_pipeline(pairs, LogisticRegression(C=10, max_iter=500))
text_baseline = text_baseline.fit(texts, languages)

# %% tags=["shared", "experiment"]
# Experiment: the baselines on the test parts; for the signal also last year's course
wine_score = wine_baseline.score(wine[test_rows], sorts[test_rows])
text_score = text_baseline.score(test_texts, test_languages)
flat = test_past.reshape(len(test_past), -1)
rmse = {
    "linear": np.sqrt(((linear.predict(flat) - test_future) ** 2).mean()),
    "last year": np.sqrt(((flat[:, 52:78] - flat[:, 51:52] - test_future) ** 2).mean()),
    "Transformer": np.sqrt((by_signal**2).mean()),
    "no change": np.sqrt((test_future**2).mean()),
}

# %% tags=["shared", "say"]
rows_said = [
    ["wines: right", "a number", "logistic regression", f"{wine_score:.0%}"],
    ["CO₂: error in ppm", "four weeks", "ridge regression", f"{rmse['linear']:.2f}"],
    ["lines: right", "a character", "characters, pairs", f"{text_score:.0%}"],
]
ours = f"{by_wine.mean():.0%}", f"{rmse['Transformer']:.2f}", f"{by_text.mean():.0%}"
rows_said = [[*row, score] for row, score in zip(rows_said, ours, strict=True)]
head = ["test data", "token", "baseline", "reaches", "Transformer"]
behind = by_wine.mean() <= wine_score, rmse["Transformer"] >= rmse["linear"]
n_behind = sum(behind) + (by_text.mean() <= text_score)
apart = round(abs(by_wine.mean() - wine_score) * len(by_wine))
n_files = len(test_files["JavaScript"])
say(
    f"{table(head, *rows_said)}\n\n(The error is the root mean square; repeating last "
    f"year's course gives {rmse['last year']:.2f}.) One architecture handles all. But "
    f"with so few examples, it does not beat the baseline in {n_behind} of 3. (The "
    f"wines differ by {apart} of {len(by_wine)}, test files for JavaScript: {n_files}.)"
    " Transformers pay off with many examples, or with a trunk that others have "
    "trained on many (see *Pictures as sequences*). **Always run a baseline first.**"
)

# %% tags=["shared", "check"]
# Checked: all three are learned, far better than by chance or without a change
assert by_wine.mean() > 0.7 and by_text.mean() > 0.4
assert rmse["Transformer"] < 0.7 * rmse["no change"]
assert rmse["linear"] < rmse["last year"] < rmse["no change"]
assert not real[:, -1].any() and not test_real[:, -1].any()

# %% [markdown] tags=["shared"]
# ## Six mistakes, and the test that finds each
#
# Nothing crashes, the loss is a number, and the model is bad. Guessing costs days. The
# following tests take seconds, each looks at one thing, and the cheapest come first:
#
# 1. **The loss at the start** is about $\ln c$ for $c$ classes, since nothing is known
#    yet. (For a forecast it is about the mean square of the values.)
# 2. **Padding changes nothing**: put other numbers there, and compare.
# 3. **Every weight has a gradient**, finite and not zero.
# 4. **One batch**, trained again and again, is learned by heart.
# 5. **Validation data** are predicted well above chance. (Ours are lines of the same
#    files, enough to find mistakes. To report a result, take other files.)


# %% tags=["shared"]
def leak(model, x, real, *_):
    """How much the outputs change if the padding contains other numbers."""
    other = floats(np.where(as_numpy(real)[..., None], as_numpy(x), 3))
    return np.abs(predictions(model, other, real) - predictions(model, x, real)).max()


# %% tags=["torch"]
def gradients(loss_fn, model, batch):
    """Gradient of each parameter, by name; zeros where none arrives."""
    names, params = zip(*model.named_parameters(), strict=True)
    loss = loss_fn(model, *batch)
    found = torch.autograd.grad(loss, params, materialize_grads=True)
    return dict(zip(names, found, strict=True))


# %% tags=["shared"]
def gradient_norms(loss_fn, model, data):
    """Norm of the gradient of each weight; biases may have none, as the keys' has."""
    found = gradients(loss_fn, model, [x[:32] for x in data])
    norms = {name: np.linalg.norm(as_numpy(g)) for name, g in found.items()}
    return {name: norm for name, norm in norms.items() if not name.endswith("bias")}


# %% tags=["torch"]
def one_batch(loss_fn, model, data):
    """Loss after 100 updates on the same 32 examples."""
    model = copy.deepcopy(model)
    return train(model, loss_fn, data, np.tile(np.arange(32), (100, 1)))[-1]


# %% [markdown] tags=["shared"]
# Now the mistakes. Each is one line in somebody's code. Three are in the model or the
# loss:

# %% tags=["torch"]
new = partial(build, m=32, n_inputs=128, n_outputs=4, **small, max_length=41)


class UpsideDown(Classifier):
    """Takes the mask the wrong way round."""

    def encode(self, x, real):
        return super().encode(x, ~real)


class Frozen(Classifier):
    """Lets no gradient through to the embedding."""

    def encode(self, x, real):
        x = (self.embed(x) + self.positions[: x.shape[1]]).detach()
        return self.encoder(x, src_key_padding_mask=~real)


# %% tags=["torch"]
def softmax_twice(model, x, real, labels):
    """Cross-entropy of probabilities, as if they were logits."""
    return nn.functional.cross_entropy(model(x, real).softmax(-1), labels)


# %% [markdown] tags=["shared"]
# Three are in the weights or the data:

# %% tags=["torch"]
loud = new(Classifier)
with torch.no_grad():
    loud.output.weight *= 100

# %% tags=["shared"]
learn, watch = ([x[part] for x in data] for part in (slice(900), slice(900, 1200)))
x, real, labels = learn
empty = as_numpy(real) & (np.arange(len(real)) != 3)[:, None]  # the fourth text
shifted = whole(np.roll(as_numpy(labels), 1))
mistakes = {
    "none": (new(Classifier), class_loss, learn),
    "an output layer 100 times too large": (loud, class_loss, learn),
    "an empty text": (new(Classifier), class_loss, (x, booleans(empty), labels)),
    "the mask upside down": (new(UpsideDown), class_loss, learn),
    "a frozen embedding": (new(Frozen), class_loss, learn),
    "a softmax before the loss": (new(Classifier), softmax_twice, learn),
    "labels shifted by a row": (new(Classifier), class_loss, (x, real, shifted)),
}


# %% tags=["shared"]
def five_tests(model, loss_fn, data, validation):
    """The number of each test, one after the other; the last two train the model."""
    first = loss_fn(model, *(x[:32] for x in data))
    yield float(as_numpy(first)) / math.log(len(files))
    yield leak(model, *(x[:300] for x in data))
    norms = np.array([*gradient_norms(loss_fn, model, data).values()])
    yield norms.min() if np.isfinite(norms).all() else math.nan
    yield one_batch(loss_fn, model, data)
    train(model, loss_fn, data, draw_batches(len(data[0]), 100))
    *lines, labels = validation
    yield (predictions(model, *lines).argmax(1) == as_numpy(labels)).mean()


# %% tags=["shared"]
def run_tests(*parts):
    """Numbers of the tests up to the first that fails, and whether all pass."""
    found = []
    for test, number in enumerate(five_tests(*parts)):
        found.append(float(number))  # below, a comparison with NaN is False
        passed = 0.7 < number < 1.5, number < 1e-3, number > 0, number < 0.2
        if not (*passed, number > 0.5)[test]:
            return found, False
    return found, True


# %% tags=["shared", "experiment"]
# Experiment: the tests on each mistake
results = {name: run_tests(*parts, watch) for name, parts in mistakes.items()}
found = {name: numbers for name, (numbers, _) in results.items()}

# %% tags=["shared", "experiment"]
# Experiment: the numbers as text; the one that fails is bold
rows_said = []
for name, (numbers, passes) in results.items():
    cells = [f"{x:.2g}".replace("nan", "NaN") for x in numbers]
    cells = cells if passes else [*cells[:-1], f"**{cells[-1]}**"]
    rows_said.append([name, *cells, *[""] * (5 - len(cells))])

# %% tags=["shared", "say"]
head = ["mistake", "loss at the start ÷ ln 4", "change by padding"]
head += ["smallest gradient norm", "one batch", "validation accuracy"]
learned = [found[name][3] for name in ("labels shifted by a row", "none")]
say(
    f"{table(head, *rows_said)}\n\nBold: the test that fails; the later ones did not "
    "run. Without a mistake all pass. Each test is the first to find something, and "
    "**a falling loss proves little**: with shifted labels, one batch is learned by "
    f"heart ({learned[0]:.2g}) as it is without a mistake ({learned[1]:.2g}). (A text "
    "without a position has no mean, so its batch, here the first, is NaN: leave it "
    "out, or begin each with a token.)"
)

# %% tags=["shared", "check"]
# Checked: the healthy model passes all tests; each mistake fails the test in its row
assert [len(found[name]) for name in mistakes if name != "none"] == [1, 1, 2, 3, 4, 5]
assert [name for name, (_, passes) in results.items() if passes] == ["none"]
assert math.isnan(found["an empty text"][0])
assert found["a softmax before the loss"][3] > math.log(1 + 3 / math.e) - 1e-5
assert found["a frozen embedding"][2] == 0

# %% [markdown] tags=["torch"]
# If a NaN appears later, `torch.autograd.set_detect_anomaly(True)` names the operation
# whose gradient it was.

# %% [markdown] tags=["shared"]
# **Exercise 1, predict, then run.** Somebody's table contains a column that was
# computed from the label. For our lines: the first character is replaced by the label.
# Which of the five tests finds it?

# %% tags=["shared", "answer"]
given = []
for x, real, labels in (learn, watch):
    told = as_numpy(x).copy()
    told[:, 0] = np.eye(128)[as_numpy(labels)]
    given.append((floats(told), real, labels))
measured, passes = run_tests(new(Classifier), class_loss, *given)
assert passes and measured[4] > 0.95 > found["none"][4]
say(
    f"None: everything passes, and {measured[4]:.0%} of the validation lines are right "
    f"(without it, {found['none'][4]:.0%}). A leak shows itself only by a result that "
    "is too good, and by asking what will be known when the model is used."
)

# %% [markdown] tags=["shared"]
# ## First the learning rate, then more data
#
# If all tests pass, you can tune. Few things matter as much as the learning rate, so
# try it in steps of a factor of about three, for a few updates each:

# %% tags=["shared", "experiment"]
# Experiment: the mean loss of updates 41 to 60, at seven learning rates
rates = 10.0 ** np.linspace(-4, -1, 7)
batches = draw_batches(900, 60)
runs = [train(new(Classifier), class_loss, learn, batches, rate) for rate in rates]
ends = [losses[40:].mean() for losses in runs]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The training loss near update 60 over the learning rate, which has a logarithmic axis. It falls from the lowest rate to a minimum, and rises again at the highest rates."}}
panels = {"training loss, updates 41 to 60": {"AdamW": (rates, np.array(ends))}}
fig = plots.curves(panels, x="learning rate", log_x=10, marks="o", size=(5.6, 2.6))
fig

# %% tags=["shared", "say"]
best = int(np.argmin(ends))
say(
    f"The lowest loss is at a rate of {power(rates[best])}. For a long training, begin "
    "with the next one to the left, because it also has to survive its worst batch. "
    "Warm-up and decay help then (see *Warm-up*)."
)

# %% tags=["shared", "check"]
# Checked: as drawn, the best rate lies inside, and both ends have a higher loss
drawn = plots.drawn(fig, "training loss, updates 41 to 60", "AdamW")[1]
assert 0 < best < 6 and min(drawn[0], drawn[-1]) > 1.6 * drawn.min()

# %% [markdown] tags=["shared"]
# Next comes overfitting: the training loss falls, the validation loss turns and rises.
# **Early stopping** needs no second run: stop when the validation loss rises, and keep
# the best weights. Then come more data, then dropout, which sets random activations to
# zero, and weight decay, which AdamW applies beside the gradient ([Loshchilov & Hutter
# 2019](https://arxiv.org/abs/1711.05101)). Here is the same training on 300 lines and
# on 900:


# %% tags=["shared", "experiment"]
# Experiment: 300 lines and 900 lines, and the validation loss after every 20 updates
def validation_loss(model):
    """Mean cross-entropy of the validation lines."""
    x, real, labels = watch
    logits = predictions(model, x, real).astype(float)
    logits -= logits.max(1, keepdims=True)
    right = logits[np.arange(len(logits)), as_numpy(labels)]
    return (np.log(np.exp(logits).sum(1)) - right).mean()


curves = {}
for n in (300, 900):
    few, losses = [x[:n] for x in learn], []
    seen = partial(lambda losses, model: losses.append(validation_loss(model)), losses)
    train(new(Classifier), class_loss, few, draw_batches(n, 400), see=seen)
    curves[f"{n} lines"] = 20 * (1 + np.arange(20)), np.array(losses)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Validation loss over the updates. With 300 lines it falls, turns and rises. With 900 lines it ends below that."}}
fig = plots.curves({"validation loss": curves}, x="update", size=(5.6, 2.8))
fig

# %% tags=["shared", "say"]
few, more = (losses for _, losses in curves.values())
say(
    f"With 300 lines, the validation loss is lowest at update "
    f"{curves['300 lines'][0][few.argmin()]} ({few.min():.2f}) and ends at "
    f"{few[-1]:.2f}. With three times the data it ends at {more[-1]:.2f} (lowest: "
    f"{more.min():.2f})."
)

# %% tags=["shared", "check"]
# Checked: as drawn, 300 lines overfit; 900 lines end below them
ends = [plots.drawn(fig, "validation loss", name)[1] for name in curves]
assert ends[0][-1] > 1.2 * ends[0].min()
assert ends[1][-1] < 0.8 * ends[0][-1] and ends[1].min() < ends[0].min()

# %% [markdown] tags=["shared"]
# ## An exported model needs none of your classes
#
# To share a model with somebody who has your classes, share its weights: *safetensors*
# contains nothing but arrays, so that a file from a stranger cannot run code
# (`save_weights` in *Two frameworks*).

# %% [markdown] tags=["torch"]
# PyTorch's own files keep any tensors, also an optimiser's. Such a file can contain
# code; `weights_only`, by now the default, does not run it.

# %% tags=["torch"]
folder = Path(tempfile.mkdtemp())
torch.save(reader.state_dict(), folder / "reader.pt")
again = new(Classifier, seed=1)
again.load_state_dict(torch.load(folder / "reader.pt", weights_only=True))

# %% [markdown] tags=["shared"]
# For somebody *without* your classes, export the computation itself, here for any size
# of batch. A process that knows nothing of our classes runs it:

# %% tags=["torch"]
quiet = copy.deepcopy(reader).cpu().eval()
inputs = torch.from_numpy(test_x[:6]), torch.from_numpy(test_real[:6])
sizes = [{0: torch.export.Dim("b")}] * 2  # the first axis may have any size
program = torch.export.export(quiet, inputs, dynamic_shapes=sizes)
torch.export.save(program, folder / "reader.pt2")

# %% tags=["torch"]
STRANGER = """
import sys, numpy as np, torch
model = torch.export.load("reader.pt2").module()
x, real = (torch.from_numpy(a) for a in np.load("lines.npz").values())
np.save("logits.npy", model(x, real).detach().numpy())
print(sum(name.startswith("helpers") for name in sys.modules))
"""

# %% tags=["shared"]
np.savez(folder / "lines.npz", test_x[:10], test_real[:10])  # ten lines
command = [sys.executable, "-I", "-c", STRANGER]
alone = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
logits = np.load(folder / "logits.npy")

# %% tags=["shared", "say"]
given = np.array([*files])[logits.argmax(1)]
right = (logits.argmax(1) == test_languages[:10]).sum()
say(
    f"The other process, with {alone.stdout.strip()} of our modules, calls the first "
    f"line {given[0]}; {right} of its ten answers are right. How lines become arrays, "
    "and which number means which language, has to be delivered with the program."
)

# %% tags=["shared", "check"]
# Checked: restored weights and the exported program give the model's own outputs
with full_float32():
    expected, found = (predictions(model, *written) for model in (reader, again))
np.testing.assert_array_equal(found, expected)
np.testing.assert_allclose(logits, expected[:10], atol=1e-5)
assert alone.stdout.strip() == "0" and logits.shape == (10, 4)

# %% [markdown] tags=["torch"]
# Somebody without PyTorch can run it, too: as an ONNX file, in ONNX Runtime, from many
# languages. With the packages `onnx` and `onnxscript` that takes a line:
#
# ```python
# torch.onnx.export(program).save("reader.onnx")
# ```

# %% [markdown] tags=["shared"]
# **Exercise 2, your own file.** Put two folders of texts of yours in place of `files`,
# such as your mails and somebody else's. Before you train: what does the baseline
# reach, and which accuracy would make you suspect a leak?

# %% tags=["shared", "answer"]
baseline = make_pipeline(pairs, LogisticRegression(C=10, max_iter=500))
two, test_two = np.isin(languages, [0, 2]), np.isin(test_languages, [0, 2])
baseline.fit(texts[two], languages[two])
score = baseline.score(test_texts[test_two], test_languages[test_two])
assert score > 0.8
say(
    "That depends on your texts. With Python and JavaScript alone the baseline "
    f"is right in {score:.0%} of the test lines. A Transformer that is far above it "
    "on a few hundred texts deserves suspicion: is a file on both sides of the "
    "split?"
)

# %% [markdown] tags=["shared"]
# ## Extra: A loader is for data that do not fit
#
# We have indexed arrays in memory, and no loader was needed. You need one when the data
# do not fit, or when every example takes work, such as decoding a photo: then other
# processes prepare the next batches. A data set is anything with a length and an index
# (here a list of pairs), and a `collate` function makes a batch of examples.

# %% [markdown] tags=["torch"]
# Ours pads to the longest text *of the batch*, which saves work. With `num_workers=2`,
# two other processes do this; your loop then puts the arrays on the device.


# %% tags=["torch"]
def collate(examples):
    """A batch, padded to its longest text: ``b s i, b s, b``."""
    lines, labels = zip(*examples, strict=True)
    x, real = from_texts(lines, 1 + max(map(len, lines)))
    return x, real, np.array(labels)


def loader(dataset, batches):
    """Batches in the order of ``batches``, rows ``n b``."""
    return DataLoader(dataset, batch_sampler=batches.tolist(), collate_fn=collate)


# %% tags=["shared"]
short = np.char.str_len(texts) <= 30
dataset = list(zip(texts[short], languages[short], strict=True))
some = draw_batches(len(dataset), 3, size=2)
shapes = [tuple(x.shape) for x, _, _ in loader(dataset, some)]
print(shapes)

# %% tags=["shared", "check"]
# Checked: the loader keeps the order of the batches, and less padding changes no output
for rows, (x, real, labels) in zip(some, loader(dataset, some), strict=True):
    np.testing.assert_array_equal(labels, [dataset[i][1] for i in rows])
    longer = from_texts([dataset[i][0] for i in rows], 41)
    with full_float32():
        expected = predictions(reader, floats(longer[0]), booleans(longer[1]))
        found = predictions(reader, floats(x), booleans(real))
    np.testing.assert_allclose(found, expected, atol=1e-5)

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
#   updates would be rounded away. In the settings of `fit`: `precision="bfloat16"`.


# %% tags=["torch"]
def in_parts(loss_fn, model, batch, n=4):
    """The same gradient, from ``n`` equal parts, as ``backward`` adds it up."""
    total = {}
    for part in zip(*(x.chunk(n) for x in batch), strict=True):
        for name, gradient in gradients(loss_fn, model, part).items():
            total[name] = total.get(name, 0) + gradient / n
    return total


def half_loss(model, *batch):
    """The loss with matrix products in bfloat16."""
    with torch.autocast(device, torch.bfloat16):
        return class_loss(model, *batch)


# %% tags=["torch"]
class Recomputed(Classifier):
    """Keeps only the input of each block."""

    def encode(self, x, real):
        x = self.embed(x) + self.positions[: x.shape[1]]
        for block in self.encoder.layers:
            x = checkpoint(block, x, None, ~real, use_reentrant=False)
        return self.encoder.norm(x)


# %% tags=["shared", "experiment"]
# Experiment: a larger model, 16 texts of 128 characters, four ways to the gradient
large = {"m": 128, "n_inputs": 128, "n_outputs": 4, "n_blocks": 2, "n_heads": 4}
large |= {"f": 512, "max_length": 128}
plain, thrifty = (build(kind, **large) for kind in (Classifier, Recomputed))
draw = np.random.default_rng(0)
x = floats(np.eye(128)[draw.integers(128, size=(16, 128))])
batch = x, everywhere(x), whole(draw.integers(4, size=16))
quarter = [x[:4] for x in batch]
ways = {  # what computes the gradient, its loss and model, and the data at one time
    "plain": (gradients, class_loss, plain, batch),
    "four quarters": (in_parts, class_loss, plain, quarter),
    "recomputation": (gradients, class_loss, thrifty, batch),
    "half precision": (gradients, half_loss, plain, batch),
}

# %% tags=["shared", "experiment"]
# Experiment: MiB kept for the backward pass, and the distance of the gradients
with full_float32():
    cost, expected = {}, gradients(class_loss, plain, batch)
length = math.sqrt(sum((as_numpy(g) ** 2).sum() for g in expected.values()))
for name, (way, loss_fn, model, data_at_once) in ways.items():
    kept = sum(
        math.prod(a.shape) * a.dtype.itemsize
        for a in activations(model, loss_fn, *data_at_once)
    )
    with full_float32():
        found = way(loss_fn, model, batch)
    gaps = (as_numpy(found[n]) - as_numpy(g) for n, g in expected.items())
    away = sum((gap**2).sum() for gap in gaps)
    cost[name] = kept / 2**20, math.sqrt(away) / length

# %% tags=["shared", "say"]
rows_said = [
    [name, f"{kept:.0f}", power(away) if away else "0"]
    for name, (kept, away) in cost.items()
]
head = ["gradient of 16 texts", "MiB kept for backward", "distance from the first"]
say(
    f"{table(head, *rows_said)}\n\nThe distance is relative to the length of the whole "
    "gradient. bfloat16 keeps eight significant bits (float32: 24), so its gradient "
    "differs. Recomputation pays with a second forward pass. Whether bfloat16 is also "
    "fast depends on the machine; on GPUs it usually is."
)

# %% tags=["shared", "check"]
# Checked: quarters keep a quarter, recomputation less, and the gradients agree
base = cost["plain"][0]
assert 0.2 < cost["four quarters"][0] / base < 0.3
assert cost["recomputation"][0] < 0.2 * base and cost["half precision"][0] < 0.9 * base
assert cost["four quarters"][1] < 1e-5 and cost["recomputation"][1] < 1e-5
assert 1e-4 < cost["half precision"][1] < 0.1  # loose: processors round differently

# %% [markdown] tags=["torch"]
# `torch.compile(model)` fuses operations. It costs a long first call, and pays off
# where many small operations wait for memory, above all on GPUs:

# %% tags=["torch", "say"]
rows_said = [
    [run["about"]["device"], way, f"{one['first_s']:.1f}", f"{one['later_ms']:.0f}"]
    for run in recorded("compilation-torch")
    for way, one in run["ways"].items()
]
head = ["device", "gradient", "seconds of the first call", "milliseconds later"]
say(f"{table(head, *rows_said)}\n\n(Recorded once, for a model of this size.)")

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Ready-made layers compute what ours do, once the defaults are known: the mask's
#   meaning, the order of axes, the activation, dropout, the first weights.
# * A new kind of data needs one decision: what is a token? Then comes a baseline.
# * If training fails, test in order: loss at the start, padding, gradients, one batch,
#   validation. Then the learning rate, more data, dropout.
# * Accumulation and recomputation keep the gradient, half precision nearly.
# * Weights need your classes, an exported program does not.

# %% [markdown] tags=["torch"]
# Next comes [what attention costs, in PyTorch](costs_torch.ipynb): the memory and the
# time that a model needs, before it is trained.
