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
# # Your own data
#
# By the end you can take a table, a signal or a text of your own from its file to the
# prediction for a new row, mark what is missing, and find out whether the model was
# worth the effort. You need: the chapters up to *The reverse task*, whose `fit` trains
# here.
#
# Your data are a spreadsheet, a sensor that sometimes fails, a folder of texts. The
# model hardly changes for them. You decide how the data become vectors, and what you
# compare the result with: each kind of data has a **baseline**, a method that takes a
# few lines and a second.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [data_jax](data_jax.ipynb).
# Before it comes [a model that reads both sides, in PyTorch](masked_torch.ipynb).

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

from helpers.data import lines, sequences, text
from helpers.exercises import check
from helpers.settings import Settings
from helpers.show import drawing, plots, recorded, say, table
from helpers.torch import Encoder, LearnedPositions, Predictor, dense, evaluate, fit
from helpers.torch.frameworks import cross_entropy, device, tensor
from helpers.weights import as_numpy, count_parameters, load_weights, save_weights

plots.use_style()
framework = "torch"

# %% [markdown] tags=["shared"]
# ## What is a token?
#
# A Transformer does not know what a table or a text is. It takes vectors, `b s i`:
# batch, position, entry, one vector for each token.

# %% mystnb={"image": {"alt": "Three kinds of data become boxes: each number of a table row, each frame of a signal, each character of a text; dashed grey boxes are a gap or padding. Below, one sequence goes on as a matrix x, b s i, beside a column real, b s. The encoder turns it into b s m, the mean over the real positions into b m, and the output into b c. Rows that are not real are grey."}} tags=["shared", "figure"]
drawing("three-kinds-of-data")

# %% [markdown] tags=["shared"]
# A token should say something by itself, as a number of a table does. A single value of
# a sound does not, so a signal is cut into pieces, as pictures are into patches. And
# tokens should be few: the cost of attention grows with the square of their number.
#
# All sequences of a batch have one length. Where a shorter one is padded, or a sensor
# was silent, `real` is False: attention and the mean at the end leave such positions
# out. So any data become two arrays:
#
# | data | token | `x` | `real` is False in |
# |---|---|---|---|
# | table | a number in its column | `b s s` | empty cells |
# | signal | a frame: all channels at one time | `b s 2i` | padding, lost frames |
# | text | a character | `b s 128` | padding |
#
# The question decides labels, loss and score:
#
# | answer | labels | loss | score |
# |---|---|---|---|
# | one of $c$ classes | 0 to $c - 1$ | cross-entropy | accuracy |
# | [a rare class](#extra-rare-classes) | 0, 1 | the same, balanced batches | F1 |
# | [a number](#extra-numbers-to-predict) | scaled | mean squared error | the same |


# %% tags=["torch", "export"]
class SequenceClassifier(nn.Module):
    """One output vector per sequence, from the real positions: ``b s i, b s -> b c``.

    ``real`` is boolean, False where a position is padding or missing; numbers there are
    finite and change nothing. Without a real position the output is NaN.
    """

    def __init__(self, n_inputs, m, n_outputs, *, max_length, **options):
        super().__init__()
        options = {"activation": "gelu", "norm_first": True, **options}
        self.embed = dense(n_inputs, m)
        self.positions = LearnedPositions(m, max_length)
        self.encoder = Encoder(m=m, **options)  # n_blocks, n_heads, f, dropout
        self.output = dense(m, n_outputs)

    def encode(self, x, real):
        """One vector per position: ``b s i, b s -> b s m``."""
        x = self.positions(self.embed(x.to(self.embed.weight.dtype)))  # b s m
        return self.encoder(x, real[:, None, None])  # b 1 1 k: True = may look

    def forward(self, x, real):
        encoded = self.encode(x, real) * real[..., None]  # b s m
        return self.output(encoded.sum(1) / real.sum(1)[:, None])


# %% [markdown] tags=["shared"]
# All models of this page have one block and $m = 64$:


# %% tags=["torch"]
def new_model(n_inputs, n_outputs, max_length, *, seed=0, dropout=0.0):
    """A classifier with new weights."""
    torch.manual_seed(seed)
    sizes = {"m": 64, "n_blocks": 1, "n_heads": 4, "f": 128, "max_length": max_length}
    model = SequenceClassifier(n_inputs, n_outputs=n_outputs, **sizes, dropout=dropout)
    return model.to(device)


def outputs(model, x, real):
    """Outputs of a model, with dropout off, as a NumPy array."""
    model.eval()
    with torch.no_grad():
        return as_numpy(model(tensor(x), tensor(real)))


# %% tags=["shared", "check"]
# Checked: numbers that are not real change no output; a sequence of gaps alone is NaN
real = np.arange(13) < np.array([[13], [5], [0]])  # b s
numbers = np.random.default_rng(0).normal(size=(3, 13, 13))
model = new_model(13, 3, max_length=13)
given = numbers, np.where(real[..., None], numbers, 100)
first, second = [outputs(model, x, real) for x in given]
np.testing.assert_array_equal(first, second)
assert np.isfinite(first[:2]).all() and np.isnan(first[2]).all()

# %% [markdown] tags=["shared"]
# `fit` takes a loss function `loss_fn(model, *batch) -> (loss, metrics)`: the number to
# minimise, and a dictionary of others to watch. A batch has the same rows of each array
# that `fit` was given.


# %% tags=["shared"]
def class_loss(model, x, real, labels):
    """Mean cross-entropy and accuracy of the classes ``b``."""
    return cross_entropy(lambda x: model(x, real), x, labels)  # a model of x alone


# %% [markdown] tags=["shared"]
# ## A table: each number is a token
#
# The example is scikit-learn's: 13 numbers for each wine, and one of three varieties of
# grape. This cell makes a CSV file of it. With a CSV of your own, keep the imports,
# write `folder = Path("…")`, and set `path` and `target` below.

# %% tags=["shared"]
import tempfile
from pathlib import Path

from sklearn.datasets import load_wine

folder = Path(tempfile.mkdtemp())
given = load_wine(as_frame=True)
given.frame["target"] = given.target_names[given.target]  # words, as yours may be
given.frame.to_csv(folder / "wine.csv", index=False)

# %% [markdown] tags=["shared"]
# **Fill in four lines:**
#
# * `path`: a column is numbers if all of its cells are numbers or empty. One `1,5`
#   makes it a column of words, which is left out: look at what is printed. ([An
#   extra](#extra-a-strict-reader-of-tables) names the cell instead.)
# * `target`: the column of labels. Rows without a label are dropped.
# * `ids`: columns that only name a row have to go.
# * `categories`: each value becomes a column of 0 and 1; another value is an error.

# %% tags=["shared"]
import pandas as pd

path = folder / "wine.csv"
target = "target"
ids = []  # such as ["id"]
categories = {}  # such as {"colour": ["red", "white"]}


# %% tags=["shared"]
def prepared(table):
    """The columns for the model, as numbers: of training rows, and of new ones."""
    table = table.drop(columns=ids)
    for name, values in categories.items():
        words = table.pop(name)
        given = words.notna()
        for word in words[given & ~words.isin(values)]:
            raise ValueError(f"{name}: expected one of {values}, got {word!r}")
        for value in values:  # an empty cell stays empty
            table[f"{name}_{value}"] = (words == value).astype(float).where(given)
    return table.select_dtypes(["number", "bool"]).astype(float)


# %% tags=["shared"]
wines = pd.read_csv(path).dropna(subset=[target])
grapes, varieties = pd.factorize(wines.pop(target), sort=True)  # n; their c names
numbers = prepared(wines)
wine, columns = numbers.to_numpy(), [*numbers]  # n s, a name for each s
print("columns:", *columns)
print("left out:", *wines.columns.difference([*columns, *categories, *ids]))

# %% [markdown] tags=["shared"]
# Half of the rows train, a quarter choose the epoch (**validation**), a quarter are the
# test. The baseline is a regression:

# %% tags=["shared"]
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def regression():
    """Logistic regression on scaled features; empty cells get the mean."""
    last = LogisticRegression(max_iter=1000)
    return make_pipeline(SimpleImputer(), StandardScaler(), last)


order, n = np.random.default_rng(0).permutation(len(wine)), len(wine) // 4
rows, validation_rows, test_rows = np.split(order, [-2 * n, -n])
wine_baseline = regression().fit(wine[rows], grapes[rows])
wine_score = wine_baseline.score(wine[test_rows], grapes[test_rows])

# %% [markdown] tags=["shared"]
# A number alone does not say which column it comes from. So each column has its own
# embedding vector, which is multiplied by the number, and its own bias:
# `LearnedPositions` adds a learned vector for each column, which is that bias
# ([Gorishniy et al. 2021](https://arxiv.org/abs/2106.11959)). In code, the token of
# column 3 is zero but at place 3, where the number stands. Times the embedding's
# matrix, it gives that number times row 3, the vector of its column. Numbers are scaled
# by mean and standard deviation *of the training rows*; all other rows stand for data
# that you do not have yet. A row of three columns, the second one empty:


# %% tags=["shared"]
def from_table(rows, mean, deviation):
    """Numbers in the place of their column, and which are known: ``b s s, b s``."""
    known = ~np.isnan(rows)  # b s
    deviation = np.where(deviation > 0, deviation, 1)  # of a constant column
    scaled = np.where(known, (rows - mean) / deviation, 0)
    return scaled[:, :, None] * np.eye(rows.shape[1]), known


row = np.array([[1.5, np.nan, 2.0]])
print(*from_table(row, mean=np.zeros(3), deviation=np.ones(3)), sep="\n")


# %% tags=["shared"]
scale = {"mean": np.nanmean(wine[rows], 0), "deviation": np.nanstd(wine[rows], 0)}
tokens, known = from_table(wine, **scale)
training, validation, test = [
    (tokens[part], known[part], grapes[part])
    for part in (rows, validation_rows, test_rows)
]
batch_size = min(45, len(rows))  # with many rows: larger batches and fewer epochs
usual = {"batch_size": batch_size, "epochs": 20, "learning_rate": 3e-3, "warmup": 10}
settings = Settings(n_train=len(rows), **usual)
wine_model = new_model(len(columns), len(varieties), max_length=len(columns))
fit(wine_model, class_loss, training, settings, validation=validation, best="accuracy")
wine_accuracy = evaluate(wine_model, class_loss, test)["accuracy"]
print(f"test: Transformer {wine_accuracy:.0%}, regression {wine_score:.0%}")

# %% [markdown] tags=["shared"]
# **Save** the weights, and what turns a row into tokens: the scale, the names of the
# columns in their order, and those of the classes.

# %% tags=["shared"]
save_weights(wine_model, folder / "wine.safetensors")
kept = {"columns": columns, "varieties": varieties.tolist(), **scale}
np.savez(folder / "wine.npz", **kept)
wines.iloc[test_rows[:3]].to_csv(folder / "new.csv", index=False)  # without labels

# %% [markdown] tags=["shared"]
# **Predict**: another program needs the same functions, `ids` and `categories`; all
# else comes from the files. A column that is missing raises an error; an empty cell is
# hidden.

# %% tags=["shared"]
from scipy.special import softmax

saved = dict(np.load(folder / "wine.npz"))
columns, names = saved.pop("columns"), saved.pop("varieties")
loaded = new_model(len(columns), len(names), max_length=len(columns))
load_weights(loaded, folder / "wine.safetensors")
new = prepared(pd.read_csv(folder / "new.csv"))[[*columns]].to_numpy()  # n s
chances = softmax(outputs(loaded, *from_table(new, **saved)), axis=1)  # n c
print("predicted:", names[chances.argmax(1)], "with", chances.max(1).round(2))

# %% tags=["shared", "say"]
say(
    f"The labels of these rows were {varieties[grapes[test_rows[:3]]].tolist()}. "
    f"{len(test_rows)} test wines are too few to tell which method to take."
)

# %% [markdown] tags=["shared"]
# For a program of your own, copy the set-up and all open cells up to here, and put the
# book's folder `helpers` beside it.

# %% tags=["shared", "check"]
# Checked: both know the grapes; an empty cell becomes zeros that are hidden
assert min(wine_accuracy, wine_score) > 0.8
np.testing.assert_allclose(training[0].sum(-1).mean(0), 0, atol=1e-6)
np.testing.assert_allclose(training[0].sum(-1).std(0), 1, atol=1e-6)
emptied = np.where(np.arange(13) == 4, np.nan, wine[:1])
numbers, known = from_table(emptied, **scale)
assert np.isfinite(numbers).all() and not numbers[0, 4].any()
assert not known[0, 4] and known.sum() == 12

# %% [markdown] tags=["shared"]
# ## A signal of many channels: each frame is a token
#
# Nine men say the same two vowels, and we want to know who speaks (*Japanese Vowels*,
# [Kudo et al. 1999](https://doi.org/10.24432/C5NS47), licence CC BY 4.0). Every few
# milliseconds, twelve numbers describe the sound, one per channel: a **frame**, our
# token. An utterance has 7 to 29 frames; the rest is padding, grey in the picture. The
# test was recorded on other occasions. For signals of your own, `padded` takes a list
# of arrays, one for each recording:


# %% tags=["shared"]
def padded(signals):
    """Signals ``s i`` in one array, and which positions are real: ``b s i, b s``."""
    lengths = np.array([len(signal) for signal in signals])
    real = np.arange(lengths.max()) < lengths[:, None]  # b s
    x = np.zeros((*real.shape, signals[0].shape[1]), np.float32)
    x[real] = np.concatenate(signals)
    return x, real


def load_vowels(file, n_train=270):
    """Training and test part: frames ``n s i``, which are real ``n s``, speakers."""
    with np.load(file) as found:  # all frames one after the other, times 10,000
        ends = np.cumsum(found["lengths"])[:-1]
        frames, real = padded(np.split(found["frames"] / 1e4, ends))
        arrays = frames, real, found["speakers"].astype(np.int32)
    parts = {"train": slice(n_train), "test": slice(n_train, None)}
    return {name: [x[rows] for x in arrays] for name, rows in parts.items()}


# %% tags=["shared"]
parts = load_vowels("helpers/data/japanese_vowels.npz")
x, real, speakers = parts["train"]  # b s i, b s, b
test_x, test_real, test_speakers = parts["test"]
longest, n_channels = x.shape[1:]
n_speakers = len(np.unique(speakers))
mean, deviation = x[real].mean(0), x[real].std(0)  # of the frames for training
x, test_x = (x - mean) / deviation, (test_x - mean) / deviation

# %% mystnb={"image": {"alt": "Heat maps of two utterances, with a row for each of the twelve channels and a column for each of the 29 frames. Where an utterance has ended, the cells are grey: padding."}} tags=["shared", "figure"]
shown = [np.where(real[b], x[b].T, np.nan) for b in (0, 90)]
titles = [f"speaker {speakers[b] + 1}" for b in (0, 90)]
look = {"low": -3, "high": 3, "bar": "deviations from the mean", "size": (4.9, 2.3)}
plots.heatmaps(shown, titles=titles, x="frame s", y="channel i", **look)

# %% [markdown] tags=["shared"]
# Values can be missing: `known`, `b s i`, is True where there is one. Here, that is
# everywhere in the real frames (`whole`). Each method reads both in its own way:
#
# * **The Transformer** gets 24 numbers a frame: twelve values, 0 where one is missing,
#   and twelve **flags**, 1 where it is known. Without flags, a missing value would look
#   like an average one. A frame without any known value is not real.
# * **The regression**, our baseline, needs equally many numbers for every utterance:
#   each channel at ten even times, interpolated, and a flag for each channel.


# %% tags=["shared"]
def whole(real):
    """All channels of the real frames are known: ``b s -> b s i``."""
    return np.repeat(real[..., None], n_channels, axis=2)


def inputs(x, known):
    """Values beside what is known: ``b s 2i``; real frames: ``b s``."""
    both = np.concatenate([np.where(known, x, 0), known], axis=-1)
    return both.astype(np.float32), known.any(-1)


def resampled(x, known, n=10):
    """Each channel at ``n`` even times, and whether it has values: ``b s i -> b c``."""
    found = np.zeros((len(x), x.shape[2], n))  # a channel without values stays 0
    for b, i in np.argwhere(known.any(1)):
        last = np.flatnonzero(known[b].any(-1))[-1]
        times = np.flatnonzero(known[b, :, i])
        found[b, i] = np.interp(np.linspace(0, last, n), times, x[b, times, i])
    return np.concatenate([found.reshape(len(x), -1), known.any(1)], axis=1)


# %% tags=["shared"]
by_times = regression().fit(resampled(x, whole(real)), speakers)
by_times_score = by_times.score(resampled(test_x, whole(test_real)), test_speakers)

# %% [markdown] tags=["shared"]
# **A flag does not help by itself.** A model that has never met a flag of 0 does not
# know what it means, so train with the gaps that will come in use: [an
# extra](#extra-train-with-the-gaps-that-will-come) takes frames and channels away.
#
# For the learning curve below, `train` makes about as many updates with few rows as
# with all:


# %% tags=["shared"]
def train(rows, seed=0, updates=594, learning_rate=2e-3):
    """A model, trained on these utterances."""
    data = (*inputs(x[rows], whole(real[rows])), speakers[rows])
    batch_size = min(30, len(rows))
    epochs = updates // (len(rows) // batch_size)
    sizes = {"n_train": len(rows), "batch_size": batch_size, "epochs": epochs}
    rate = {"learning_rate": learning_rate, "warmup": 50}
    model = new_model(2 * n_channels, n_speakers, longest, seed=seed, dropout=0.2)
    fit(model, class_loss, data, Settings(**sizes, **rate, seed=seed))
    return model


# %% [markdown] tags=["shared"]
# **The test must not choose** among settings. A fifth of the training utterances does,
# for **validation**; then we train on all:

# %% tags=["shared"]
held = np.arange(len(x)) % 5 == 0  # for validation: six utterances of each speaker
held_data = (*inputs(x[held], whole(real[held])), speakers[held])
for rate in (5e-4, 2e-3, 8e-3):  # with a third of the updates, to save time
    tried = train(np.flatnonzero(~held), updates=198, learning_rate=rate)
    loss = evaluate(tried, class_loss, held_data)["loss"]
    print(f"rate {rate}: validation loss {loss:.2f}")

# %% [markdown] tags=["shared"]
# A small difference is luck with so few utterances. So we keep the usual rate, the one
# in the middle, and train on all.

# %% tags=["shared"]
all_rows = np.arange(len(x))
plain = train(all_rows)
test_data = (*inputs(test_x, whole(test_real)), test_speakers)
plain_accuracy = evaluate(plain, class_loss, test_data)["accuracy"]
print(f"test: Transformer {plain_accuracy:.1%}, regression {by_times_score:.1%}")

# %% tags=["shared", "say"]
seeds = recorded(f"data-seeds-{framework}")[-1]["figures"]  # of a model: five numbers
found = seeds["whole utterances"]["Transformer"]
rounded = sorted(f"{x:.1%}" for x in found)
say(f"With five seeds, recorded, the Transformer had {', '.join(rounded)} right.")

# %% [markdown] tags=["shared"]
# The Transformer's errors depend on the seed: a little with all training data, much
# with few (see the learning curve). So **report several seeds**.

# %% tags=["shared", "check"]
# Checked: real frames are scaled; all have learned who speaks, also with five seeds
np.testing.assert_allclose([x[real].mean(0), x[real].std(0) - 1], 0, atol=1e-4)
assert min(by_times_score, plain_accuracy) > 0.93
assert len(found) == 5 and min(found) > 0.93

# %% [markdown] tags=["shared"]
# **Exercise 1, predict, then run.** Play the test utterances backwards: the real frames
# in opposite order, padding still at the end. What happens to the regression on ten
# times, to the Transformer, and to an SVM that is given the mean and standard deviation
# of each channel?

# %% mystnb={"code_prompt_show": "Show the SVM"} tags=["shared", "answer"]
from sklearn.svm import SVC


def moments(x, known):
    """Mean and deviation of each channel over its known values: ``b s i -> b 2i``."""
    n = np.maximum(known.sum(1), 1)  # b i
    mean = (x * known).sum(1) / n
    variance = ((x - mean[:, None]) ** 2 * known).sum(1) / n
    return np.concatenate([mean, np.sqrt(variance)], axis=1)


svm = make_pipeline(StandardScaler(), SVC(C=10))
svm.fit(moments(x, whole(real)), speakers)
svm_score = svm.score(moments(test_x, whole(test_real)), test_speakers)
n, (first,) = test_real[0].sum(), moments(test_x[:1], test_real[:1, :, None])
expected = test_x[0, :n].mean(0), test_x[0, :n].std(0)
np.testing.assert_allclose(first, np.concatenate(expected), atol=1e-5)
assert svm_score > 0.93

# %% tags=["shared", "answer"]
backwards, known = test_x.copy(), whole(test_real)
for row, n in enumerate(test_real.sum(1)):
    backwards[row, :n] = test_x[row, :n][::-1]
same = moments(test_x, known)
np.testing.assert_allclose(moments(backwards, known), same, atol=1e-5)
linear = by_times.score(resampled(backwards, known), test_speakers)
given = (*inputs(backwards, known), test_speakers)
by_frames = evaluate(plain, class_loss, given)["accuracy"]
assert linear < by_frames - 0.2
say(
    f"The regression goes from {by_times_score:.0%} to {linear:.0%}, because each of "
    f"its numbers has a place in time. The Transformer goes from {plain_accuracy:.1%} "
    f"to {by_frames:.1%}. Attention and mean do not depend on the order, only the "
    "learned positions do. The less it loses, the less it has used the order. The SVM "
    f"stays at {svm_score:.1%}: mean and standard deviation know no order, and do well "
    "without it."
)

# %% [markdown] tags=["shared"]
# ## A learning curve says whether more data would help
#
# Transformers are said to need many examples. Measure it: train on parts of your data,
# with several seeds. As you will choose by it, it is of validation data:
#
# ```python
# data = resampled(x, whole(real))
# for n in (18, 36, 72, 135, 216):
#     for seed in range(5):
#         some = np.random.default_rng(seed).permutation(all_rows[~held])[:n]
#         scores = evaluate(train(some, seed=seed), class_loss, held_data)
#         linear = regression().fit(data[some], speakers[some])
#         print(n, seed, scores["accuracy"], linear.score(data[held], speakers[held]))
# ```
#
# If a curve still rises at its end, collect more data. If two curves cross, choose by
# how many examples you have. Ours shows the test: we choose nothing by it any more.

# %% mystnb={"image": {"alt": "Learning curves: test accuracy over the number of training utterances, from 18 to 270 on a logarithmic axis, for the Transformer and for logistic regression on ten times. Each line is a mean of five seeds in a band from the lowest to the highest. Both rise steeply and then flatten."}} tags=["shared", "figure"]
curve = seeds["learning curve"]
numbers = sorted({int(name.split()[-1]) for name in curve})
learned = {
    name: (np.array(numbers), np.transpose([curve[f"{name} {n}"] for n in numbers]))
    for name in ("Transformer", "regression")
}
title = "test accuracy, five seeds"
size = {"size": (3.7, 2.7), "marks": "o", "log_x": 2}
fig = plots.curves({title: learned}, x="utterances for training", **size)
fig.axes[0].set_xticks(numbers, numbers)
ours, theirs = [found.mean(axis=0) for _, found in learned.values()]
leads = np.subtract(*(found for _, found in learned.values()))  # seed n
limits = 2.8 * leads.std(0, ddof=1) / np.sqrt(len(leads))  # 95 %
behind = np.array(numbers)[leads.mean(0) < -limits].astype(str)
fig

# %% tags=["shared", "say"]
say(
    f"With more data, the Transformer rises from {ours[0]:.0%} to {ours[-1]:.1%}, "
    f"the regression from {theirs[0]:.0%} to {theirs[-1]:.1%}. By a t-test, the first "
    f"is nowhere ahead, and behind with {', '.join(behind) or 'no'} utterances. "
    f"And it has {count_parameters(plain):,} weights, not {by_times[-1].coef_.size:,}."
)

# %% tags=["shared", "check"]
# Checked: both curves rise and end near each other; the Transformer is nowhere ahead
assert (leads.mean(0) <= limits).all()
for accuracy in (ours, theirs):
    assert accuracy[-1] > accuracy[0] + 0.03
assert abs(ours[-1] - theirs[-1]) < 0.03

# %% [markdown] tags=["shared"]
# ## A text: each character is a token
#
# The texts are lines, cut to 40 characters, of files that come with Python and its
# packages: is a line Python, C, JavaScript or English?

# %% tags=["shared"]
texts, labels, test_texts, test_labels = lines.languages(n_train=400, n_test=150)
for label, language in enumerate(lines.LANGUAGES):
    print(language, texts[labels == label][0], sep=": ")

# %% [markdown] tags=["shared"]
# **Split by file, not by line**: lines of one file share names and habits, so a test on
# known files looks too good. So it is with patients, machines or days: split by what
# will be new in use. Our test lines come from other files already. We split the
# remaining files again: one part trains, the other (validation) chooses the
# regression's strength and the model's epoch.

# %% tags=["shared"]
from sklearn.model_selection import StratifiedGroupKFold

file_of = {}  # the file of each line, or one of its files
for language in lines.LANGUAGES:
    for file in lines.files_of(language):
        file_of |= dict.fromkeys(lines.lines_of([file]), str(file))
files = np.array([file_of[line] for line in texts])

splits = StratifiedGroupKFold(n_splits=5).split(texts, labels, files)
splits = [parts for parts in splits if len({*labels[parts[1]]}) == 4]  # all languages
learn_rows, held = max(splits, key=lambda parts: len(parts[0]))
print(len(learn_rows), "lines for training,", len(held), "for validation")

# %% tags=["shared"]
from sklearn.feature_extraction.text import TfidfVectorizer

pairs = TfidfVectorizer(analyzer="char", ngram_range=(1, 2))  # characters, and pairs
best = 0
for strength in (1, 10, 100):
    last = LogisticRegression(C=strength, max_iter=500)
    method = make_pipeline(pairs, last).fit(texts[learn_rows], labels[learn_rows])
    right = method.score(texts[held], labels[held])
    if right > best:
        best, text_baseline = right, method
text_score = text_baseline.score(test_texts, test_labels)

# %% [markdown] tags=["shared"]
# Each character becomes a vector with a single 1. (For other alphabets, take the 256
# bytes of UTF-8; for long texts, the byte pairs of *A model that writes*.)


# %% tags=["shared", "export"]
def from_texts(texts, length):
    """ASCII characters as one-hot vectors ``b s 128``, and which are real: ``b s``."""
    x = np.zeros((len(texts), length, 128), np.float32)
    for row, line in enumerate(texts):
        codes = np.frombuffer(line.encode("ascii", "replace"), np.uint8)[:length]
        x[row, np.arange(len(codes)), codes] = 1
    return x, x.any(axis=-1)


# %% tags=["shared"]
length = 40  # characters; the end of a longer line would be cut off
training = (*from_texts(texts[learn_rows], length), labels[learn_rows])
validation = (*from_texts(texts[held], length), labels[held])
test = (*from_texts(test_texts, length), test_labels)
sizes = {"n_train": len(learn_rows), "batch_size": 32, "epochs": 6}
settings = Settings(**sizes, learning_rate=2e-3, warmup=50)
n_languages = len(lines.LANGUAGES)
text_model = new_model(128, n_languages, max_length=length, dropout=0.2)
fit(text_model, class_loss, training, settings, validation=validation, best="accuracy")
text_accuracy = evaluate(text_model, class_loss, test)["accuracy"]
print(f"test: Transformer {text_accuracy:.0%}, regression {text_score:.0%}")

# %% [markdown] tags=["shared"]
# So **one model and one loss** serve all three. With a few hundred examples, expect
# Transformers near a good baseline. They pay off with many thousands, where no good
# features are known, or if the encoder is pretrained: see *Pictures as sequences* and
# *Start from a trained model*.

# %% tags=["shared", "check"]
# Checked: both have learned; no test line, and no file of validation, was in training
assert min(text_score, text_accuracy) > 0.5
assert not set(texts) & set(test_texts)
assert not {*files[learn_rows]} & {*files[held]}

# %% [markdown] tags=["shared"]
# **Exercise 2, predict, then run.** Mix all lines and split them at random instead.
# What happens to the score of the baseline?

# %% tags=["shared", "answer"]
both, whose = np.append(texts, test_texts), np.append(labels, test_labels)
mixed = np.random.default_rng(0).permutation(len(both))
seen, new = mixed[: len(texts)], mixed[len(texts) :]
by_line = text_baseline.fit(both[seen], whose[seen]).score(both[new], whose[new])
assert by_line > text_score + 0.03
say(
    f"It rises from {text_score:.0%} to {by_line:.0%}, with the same method. "
    "Nothing has become easier but the test: it now asks for files that are "
    "known. In use, the first number is the true one."
)

# %% [markdown] tags=["shared"]
# **Exercise 3.** A bracelet measures acceleration along three axes, at 50 Hz,
# for ten minutes; falls are to be found, which last about two seconds. What is a token,
# and how many does a sequence have?

# %% tags=["shared", "answer"]
numbers_in_piece, pieces = 25 * 3, 10 * 60 * 2  # half a second; ten minutes
say(
    "One value of three axes says little, and there are 30,000 of them. Cut pieces "
    f"shorter than a fall: half a second is {numbers_in_piece} numbers, and a fall has "
    f"four tokens. Ten minutes would be {pieces:,} tokens, but a fall does not depend "
    "on what came minutes before: sequences of ten seconds have 20. And split by "
    "person."
)

# %% [markdown] tags=["shared"]
# ## Extra: Train with the gaps that will come
#
# The microphone fails: an utterance loses a share of its *frames*, or of its *channels*
# throughout. The regression interpolates lost frames; of a lost channel it gets 0,
# which is the mean, and a flag. For the Transformer, `real` hides lost frames.


# %% tags=["shared"]
def lose(real, share, rng, what):
    """What is still known, ``b s -> b s i``; one frame or channel always stays."""
    frames = what == "frames"
    shape = (*real.shape, 1) if frames else (len(real), 1, n_channels)
    luck = rng.random(shape) * (real[..., None] if frames else 1)
    most = luck.max(axis=(1, 2), keepdims=True)
    return whole(real) & (luck >= np.minimum(share, most))


def draw_gaps(real, seed=0):
    """Frames or channels lost, for each utterance another share: ``b s -> b s i``."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(0, 0.9, (len(real), 1, 1))
    kinds = [lose(real, share, rng, what) for what in ("frames", "channels")]
    return np.where(rng.random(share.shape) < 0.5, *kinds)


# %% mystnb={"image": {"alt": "The first utterance twice, as heat maps of channels over frames. Left, most columns are grey: lost frames. Right, most rows are grey: lost channels. The padding at the end is grey in both."}} tags=["shared", "figure"]
rng = np.random.default_rng(0)
holes = [lose(real[:1], 0.6, rng, what)[0] for what in ("frames", "channels")]
shown = [np.where(known, x[0], np.nan).T for known in holes]
titles = ["lost frames", "lost channels"]
plots.heatmaps(shown, titles=titles, x="frame s", y="channel i", **look)

# %% [markdown] tags=["shared"]
# A second Transformer is trained with other gaps on each visit of an utterance: we draw
# the rows of all epochs beforehand, each with its gaps, and `in_order` takes batches as
# they stand. To be fair, a second regression gets 20 copies of each utterance.

# %% tags=["shared"]
sizes = {"n_train": len(x), "batch_size": 30, "epochs": 66}
settings = Settings(**sizes, learning_rate=2e-3, warmup=50, seed=0)
rng = np.random.default_rng(0)
drawn = np.concatenate([rng.permutation(all_rows) for _ in range(settings.epochs)])
data = (*inputs(x[drawn], draw_gaps(real[drawn])), speakers[drawn])
gap_model = new_model(2 * n_channels, n_speakers, longest, dropout=0.2)
order = sequences.in_order(settings)
history = fit(gap_model, class_loss, data, settings, batches=order)

# %% tags=["shared"]
copies = np.tile(all_rows, 20)
gaps = draw_gaps(real[copies])
filled = regression().fit(resampled(x[copies], gaps), speakers[copies])

# %% tags=["shared", "experiment"]
# Experiment: accuracy of all four on the test with the same gaps
models = {"Transformer, trained whole": plain, "Transformer, with gaps": gap_model}
methods = {"regression, trained whole": by_times, "regression, with gaps": filled}


def on_gaps(what, share, models, methods, seed=0):
    """Accuracy on the test utterances with gaps, by name."""
    known = lose(test_real, share, np.random.default_rng(seed), what)
    given = (*inputs(test_x, known), test_speakers)
    for name, model in models.items():
        yield name, evaluate(model, class_loss, given)["accuracy"]
    features = resampled(test_x, known)
    for name, method in methods.items():
        yield name, method.score(features, test_speakers)


this_run = dict(on_gaps("channels", 0.6, models, methods))

# %% mystnb={"image": {"alt": "Accuracy over the share that is lost, in two panels; each line is the mean of five seeds in a band from the lowest to the highest. All four lines fall. Lost frames: they are near each other and part at the end. Lost channels: the two that were trained on whole utterances fall steeply, and at 60 % both that were trained with gaps are far above them."}} tags=["shared", "figure"]
shares = 0.0, 0.2, 0.4, 0.6, 0.8
percent = 100 * np.array(shares)
panels = {}
for what in ("frames", "channels"):
    found = [seeds[f"{what} lost: {share}"] for share in shares]
    panels[f"lost {what}, five seeds"] = {
        name: (percent, np.transpose([one[name] for one in found])) for name in found[0]
    }
fig = plots.curves(panels, x="% lost", y="accuracy", share_y=True, size=(4.9, 2.9))
for ax in fig.axes:
    ax.set_xticks(percent)
fig

# %% tags=["shared", "say"]
figures = [seeds[f"{what} lost: 0.6"] for what in ("frames", "channels")]
rows_said = [
    [name, *(f"{np.mean(one[name]):.0%}" for one in figures), f"{this_run[name]:.0%}"]
    for name in this_run
]
say(table(["60 % are lost", "frames", "channels", "channels, this run"], *rows_said))

# %% [markdown] tags=["shared"]
# A few lost frames matter little. With lost channels, the Transformer trained whole
# falls lower than the regression. Trained with gaps, both gain, but are a little worse
# where nothing is lost: what counts is what training shows.

# %% tags=["shared", "check"]
# Checked: both gain from gaps in training, in this run and with five seeds
for kind in ("Transformer", "regression"):
    trained = f"{kind}, with gaps", f"{kind}, trained whole"
    assert this_run[trained[0]] > this_run[trained[1]] + 0.1
    for panel, least in zip(panels.values(), (0, 0.1), strict=True):
        with_gaps, without = [panel[name][1].mean(axis=0) for name in trained]
        assert 0.9 < with_gaps[0] < without[0]
        assert (with_gaps - without)[3:].min() > least

# %% [markdown] tags=["shared"]
# ## Extra: Numbers to predict
#
# **Regression**: one output for each number, scaled as the inputs are, and the mean
# squared error. Here the first column, alcohol, is predicted from the others.


# %% tags=["shared", "take"]
def number_loss(model, x, real, y):
    """Mean squared error of one number for each sequence, ``b``."""
    return ((model(x, real=real)[:, 0] - y.reshape(-1)) ** 2).mean(), {}


# %% tags=["shared"]
from sklearn.linear_model import Ridge

y = (wine[:, 0] - scale["mean"][0]) / scale["deviation"][0]
rest = from_table(wine[:, 1:], scale["mean"][1:], scale["deviation"][1:])
parts = [
    (*(x[part] for x in rest), y[part].astype(np.float32))
    for part in (rows, validation_rows, test_rows)
]
alcohol_model = new_model(rest[1].shape[1], 1, max_length=rest[1].shape[1])
task = Settings(n_train=len(rows), **usual)
fit(alcohol_model, number_loss, parts[0], task, validation=parts[1])
error = evaluate(alcohol_model, number_loss, parts[2])["loss"]
ridge = make_pipeline(SimpleImputer(), StandardScaler(), Ridge())
guesses = ridge.fit(wine[rows, 1:], y[rows]).predict(wine[test_rows, 1:])
linear = np.mean((guesses - y[test_rows]) ** 2)
print(f"error / variance: Transformer {error:.0%}, regression {linear:.0%}")

# %% [markdown] tags=["shared"]
# **Several labels at once** (a photo with a dog *and* a cat): an output for each label,
# with a sigmoid instead of the softmax. **A forecast**: causal attention, and the next
# value as the target (*A model that writes*).
#
# ## Extra: Rare classes
#
# Three of a hundred lines are JavaScript, and we look for these. Whoever always says
# "no" is nearly always right, so the **accuracy misleads**. Two shares tell more: how
# many of the rare lines are found (*recall*), and how many of the lines found are rare
# (*precision*). *F1* is their harmonic mean; the *balanced accuracy* is the mean, over
# the classes, of the share that is found.
#
# In training, let the classes be equally likely in each batch, so that they count
# equally in the loss. (Weights $1/\text{frequency}$ in the loss do the same:
# `class_weight="balanced"` in scikit-learn.)


# %% tags=["shared"]
def balanced(labels, settings):
    """Batches with equally likely classes: from the epoch to rows ``n b``."""
    p = 1 / np.bincount(labels)[labels]
    shape = settings.updates_per_epoch, settings.batch_size

    def batches(epoch):
        rng = np.random.default_rng([settings.seed, epoch])
        return rng.choice(len(labels), shape, p=p / p.sum())

    return batches


def with_few(texts, labels, n):
    """Lines with only ``n`` in JavaScript, and which these are, 0 or 1."""
    script = labels == lines.LANGUAGES.index("JavaScript")
    kept = ~script | (np.cumsum(script) <= n)
    return texts[kept], script[kept].astype(int)


# %% tags=["shared"]
few, is_rare = with_few(texts, labels, 36)
few_test, truth = with_few(test_texts, test_labels, 15)
task = Settings(n_train=len(few), batch_size=32, epochs=6, learning_rate=2e-3)
data = (*from_texts(few, length), is_rare)
model = new_model(128, 2, max_length=length, dropout=0.2)
fit(model, class_loss, data, task, batches=balanced(is_rare, task))
logits = outputs(model, *from_texts(few_test, length))
rare = {  # of each test line, the probability
    "always no": np.zeros(len(truth)),
    "Transformer, balanced": softmax(logits, axis=1)[:, 1],
}
for name, weight in {"as it comes": None, "balanced": "balanced"}.items():
    last = LogisticRegression(C=10, max_iter=500, class_weight=weight)
    method = make_pipeline(pairs, last).fit(few, is_rare)
    rare[f"regression, {name}"] = method.predict_proba(few_test)[:, 1]

# %% tags=["shared"]
from sklearn.metrics import balanced_accuracy_score, f1_score


def judged(truth, p, threshold=0.5):
    """Scores of the answer "rare" where the probability exceeds the threshold."""
    found = p > threshold
    return {
        "accuracy": np.mean(found == truth),
        "balanced accuracy": balanced_accuracy_score(truth, found),
        "F1": f1_score(truth, found, zero_division=0),
        "found": (found * truth).sum(),
        "false alarms": (found * (1 - truth)).sum(),
    }


pd.DataFrame([judged(truth, p) for p in rare.values()], index=[*rare]).round(2)

# %% [markdown] tags=["shared"]
# Which error is worse, a missed line or a false alarm, only you can say: it sets the
# **threshold** of the probability. A lower one finds more, with more false alarms, as
# balancing does. (Choose it by validation data; here the test shows the effect. With so
# few rare lines in it, small differences are luck.)

# %% tags=["shared"]
p = rare["regression, as it comes"]
thresholds = pd.Index([0.5, 0.1, 0.05, 0.02], name="threshold")
pd.DataFrame([judged(truth, p, t) for t in thresholds], thresholds).round(2)

# %% [markdown] tags=["shared"]
# ## Extra: A strict reader of tables
#
# A wrong number is worse than an error. So here pandas reads every cell as text, and we
# convert it. An empty cell, `?` or `n/a` becomes NaN. A column in which half of the
# cells or more are words is left out, with a sentence. `1,5`, `12 %`, `$3` and
# `2024-03-05` could mean several things: an error names row and column. Then drop the
# column (`cells.pop("date")`), or repair it
# (`cells["ash"] = cells["ash"].str.replace(",", ".")`).

# %% tags=["shared"]
import io
import re

import pandas as pd


def read_csv(path):
    """The cells of a table in UTF-8 as text; row 1 has the names."""
    lines = re.sub(r"(?i)^sep=.*\n", "", text.read(path))  # a line of Excel's
    separator = max(",;\t|", key=lines.partition("\n")[0].count)
    options = {"dtype": str, "keep_default_na": False, "skip_blank_lines": False}
    cells = pd.read_csv(io.StringIO(lines), sep=separator, **options)
    if not isinstance(cells.index, pd.RangeIndex):  # more cells than names
        raise ValueError(f"expected a name for each column of {path}, got fewer")
    cells.columns = [name.strip() for name in cells]
    cells.index += 2  # as a spreadsheet counts
    cells = cells.fillna("").map(str.strip)
    cells = cells[(cells != "").any(axis=1)]
    if cells.empty:
        raise ValueError(f"expected rows below the names in {path}, got none")
    return cells


# %% tags=["shared"]
GAPS = ["", "?", "???", "-", "--", "---", "–", "—", ".", "..", "...", "na", "n/a"]
GAPS += ["#na", "#n/a", "<na>", "nan", "none", "null"]  # add yours, such as "-999"
NUMBER_FIRST = re.compile(r"([^\W\d]{3}\W+)?\W*\d|\W?inf$")  # $3, 5 kg, Jan 5


def to_numbers(cells):
    """A column of text as numbers, NaN in gaps, or None if it has words."""
    given = cells.str.lower().replace({"true": "1", "false": "0"})
    values = pd.to_numeric(given, errors="coerce").astype(float)
    known = ~given.isin(GAPS)
    odd = cells[known & ~np.isfinite(values)]
    words = [cell for cell in odd if not NUMBER_FIRST.match(cell)]
    if 2 * len(words) >= known.sum():
        return None
    if len(odd):
        place = f"row {odd.index[0]}, column {cells.name!r}"
        raise ValueError(f"{place}: expected a number, got {odd.iloc[0]!r}")
    return values.where(known)


# %% tags=["shared"]
def numeric(table):
    """The columns of a table that have numbers; others are listed and left out."""
    kept = {name: to_numbers(table[name]) for name in table}
    for name in table:
        if kept[name] is None or name.startswith("Unnamed"):  # the numbers of the rows
            print(f"left out: column {name!r}, as {table[name].iloc[0]!r}")
            del kept[name]
    return pd.DataFrame(kept)


# %% [markdown] tags=["shared"]
# Labels may be words, 1 to 3, -1 and 1, or True and False; only an empty cell is no
# label. A model needs 0 to $c - 1$:


# %% tags=["shared"]
def class_numbers(labels):
    """Labels of any kind as 0 to c - 1, and the names of the classes, sorted."""
    labels = pd.Series(labels).astype(object)
    labels = labels.where(labels != "", None)
    numbers = pd.to_numeric(labels, errors="coerce")
    if numbers.notna().all():
        labels = numbers  # 9 before 10
    codes, names = pd.factorize(labels, sort=True)
    if (codes < 0).any():
        row = labels.index[codes < 0][0]
        raise ValueError(f"row {row}: expected a label, got none")
    if len(names) < 2:
        raise ValueError(f"expected two classes or more, got {[*names]}")
    return codes, [*names]


# %% [markdown] tags=["shared"]
# This replaces the reading of the table, also of new rows:

# %% tags=["shared"]
(folder / "own.csv").write_text("ash;alcohol;grape\n2.4;14.2;red\n1,9;?;white\n")
cells = read_csv(folder / "own.csv")
codes, names = class_numbers(cells.pop("grape"))
try:
    print(numeric(cells))
except ValueError as error:
    print(error)
cells["ash"] = cells["ash"].str.replace(",", ".")
print(numeric(cells).to_numpy(), codes, names)

# %% [markdown] tags=["shared"]
# ## Extra: Files become arrays
#
# Often each recording is a file, and each class a folder. Here we write some, and read
# them.


# %% tags=["shared"]
for b in (0, 1, 30, 90):
    place = folder / "speakers" / f"{speakers[b]}"
    place.mkdir(parents=True, exist_ok=True)
    np.savetxt(place / f"{b}.csv", x[b, real[b]], delimiter=",")

# %% tags=["shared"]
files = sorted((folder / "speakers").glob("*/*.csv"))
names, classes = np.unique([file.parent.name for file in files], return_inverse=True)
options = {"header": None, "skip_blank_lines": False}  # a line without numbers counts
signals = [pd.read_csv(file, **options).to_numpy(float) for file in files]
frames, is_real = padded(signals)
there = is_real[..., None] & ~np.isnan(frames)  # known, b s i: empty cells are not
print(frames.shape, names, classes)

# %% [markdown] tags=["shared"]
# Scale by `np.nanmean` and `np.nanstd`, and set what is not there to 0
# (`frames[~there] = 0`). Go on as in the section on signals: `frames`, `is_real` and
# `classes` are its `x`, `real` and `speakers`, and `there` replaces `whole(real)`.

# %% tags=["shared", "check"]
# Checked: what was written comes back, and padding is not known
same = [0, 1, 30, 90]
longest = is_real.shape[1]
np.testing.assert_array_equal(is_real, real[same, :longest])
np.testing.assert_allclose(frames, np.where(is_real[..., None], x[same, :longest], 0))
np.testing.assert_array_equal(there, whole(is_real))
assert [*names[classes]] == [str(speakers[b]) for b in same]

# %% [markdown] tags=["shared"]
# ## Extra: A loader is for data that do not fit
#
# For arrays, no loader was needed. You need one when the data do not fit, or when every
# example takes work, such as decoding a photo: other processes then prepare the next
# batches. A data set is anything with a length and an index (here a list of pairs), and
# a `collate` function makes a batch of examples. The loader is endless, and each epoch
# has a new order.

# %% [markdown] tags=["torch"]
# Ours pads to the longest text *of the batch*, which saves work, and drops an
# incomplete last batch. With `num_workers=2`, two processes do this (`collate` then
# stands in a module). `pin_memory` puts batches where a GPU can fetch them while it
# computes, if your loop moves them with `x.to(device, non_blocking=True)`.

# %% tags=["torch"]
from torch.utils.data import DataLoader


def collate(examples):
    """A batch, padded to its longest text: ``b s i, b s, b``."""
    texts, labels = zip(*examples, strict=True)
    x, real = from_texts(texts, max(map(len, texts)))
    return torch.from_numpy(x), torch.from_numpy(real), torch.tensor(labels)


def loader(dataset, batch_size, seed=0):
    """Batches without end, each epoch in a new order."""
    options = {"shuffle": True, "drop_last": True, "pin_memory": device == "cuda"}
    order = torch.Generator().manual_seed(seed)
    batches = DataLoader(
        dataset, batch_size, collate_fn=collate, generator=order, **options
    )
    while True:
        yield from batches


# %% tags=["shared"]
from itertools import islice

dataset = list(zip(texts, labels, strict=True))
first_batches = list(islice(loader(dataset, 32), 3))
print([tuple(x.shape) for x, _, _ in first_batches])

# %% tags=["shared", "check"]
# Checked: batches differ, and less padding changes no output
short, known, whose = map(as_numpy, first_batches[0])
longer = np.pad(short, [(0, 0), (0, 40 - short.shape[1]), (0, 0)])
pair = (short, known), (longer, longer.any(-1))
np.testing.assert_allclose(*[outputs(text_model, *x) for x in pair], atol=1e-5)
assert (whose != as_numpy(first_batches[1][2])).any() and len(whose) == 32

# %% [markdown] tags=["torch"]
# A loop of your own takes its batches from it: `for batch in islice(loader(dataset,
# 32), 400)`.

# %% [markdown] tags=["shared"]
# ## Extra: Sequences of your own, in one file
#
# A file has a sequence a line: a target, a tab, symbols (words, letters, events). The
# target is one label, one number, or a label for each symbol. The `Predictor` of
# *Positions and the whole encoder* takes all three. Number 0 is kept for the padding,
# and for symbols that training has not seen (their vector is not trained):


# %% tags=["shared", "take"]
def read_rows(path, kind):
    """Targets and symbols of each line, ``targets TAB symbols``: lists of lists."""
    targets, rows = [], []
    for line in Path(path).read_text("utf-8-sig").splitlines():
        parts = [part.split() for part in line.split("\t")]
        n = len(parts[-1]) if kind == "labels" else 1
        if len(parts) != 2 or not len(parts[0]) == n >= 1 or not parts[1]:
            what = "a label for each symbol" if kind == "labels" else f"a {kind}"
            got = f"symbols, got {line[:60]!r}"
            raise ValueError(f"{path}: expected lines of {what}, a tab, and {got}")
        targets.append(parts[0])
        rows.append(parts[1])
    return targets, rows


def numbered(rows, numbers, other=0):
    """The number of each entry ``b s``, ``other`` at the padding; what is real."""
    real = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
    ids = np.full(real.shape, other, np.int32)
    ids[real] = [numbers.get(x, other) for row in rows for x in row]
    return ids, real


# %% [markdown] tags=["shared"]
# Beside the weights we keep what the numbers mean; symbols and scale come from the
# training lines alone:


# %% tags=["shared", "take"]
def to_keep(targets, rows, kind, n_train):
    """What a model needs beside its weights: its kind, symbols, labels and scale."""
    known = rows[:n_train], targets  # which labels there are is part of the question
    symbols, labels = [sorted({x for row in y for x in row}) for y in known]
    kept = {"kind": kind, "symbols": {x: n for n, x in enumerate(symbols, 1)}}
    if kind == "number":
        y = np.array(targets[:n_train], float)
        return kept | {"mean": y.mean().item(), "deviation": y.std().item()}
    return kept | {"labels": {x: n for n, x in enumerate(labels)}}


def as_batch(targets, rows, kept):
    """Arrays for the loss: ids and what is real ``b s``, targets ``b`` or ``b s``."""
    batch = numbered(rows, kept["symbols"])
    if kept["kind"] == "number":
        y = (np.array(targets, float)[:, 0] - kept["mean"]) / kept["deviation"]
        return *batch, y.astype(np.float32)
    y, _ = numbered(targets, kept["labels"], other=-1)
    return *batch, y if kept["kind"] == "labels" else y[:, 0]


# %% [markdown] tags=["shared"]
# Labels at the padding are -1, and the loss leaves them out:


# %% tags=["torch", "take"]
def label_loss(model, ids, real, labels):
    """Cross-entropy and accuracy of labels ``b``, or ``b s`` with -1 at the padding."""
    logits, labels = model(ids, real=real).flatten(0, -2), labels.flatten()
    hits = (logits.argmax(-1) == labels)[labels >= 0].float()
    loss = nn.functional.cross_entropy(logits, labels, ignore_index=-1)
    return loss, {"accuracy": hits.mean(), "count": len(hits)}


def new_predictor(kept):
    """An untrained model for a kind of target; choose your own sizes here."""
    torch.manual_seed(0)
    options = {"n_blocks": 2, "n_heads": 4, "f": 256, "dropout": 0.1, "ids": True}
    options |= {"positions": "rotary", "norm_first": True, "activation": "gelu"}
    options |= {"pool": None if kept["kind"] == "labels" else "mean"}
    n_symbols, n_outputs = 1 + len(kept["symbols"]), len(kept.get("labels", [0]))
    return Predictor(n_symbols, 64, n_outputs, **options).to(device)


# %% tags=["torch", "take"]
def save(path, model, kept):
    """Write a model, whole or not at all: the old file stays until then."""
    draft = Path(f"{path}.draft")
    torch.save({"kept": kept, "weights": model.state_dict()}, draft)
    draft.replace(path)


def load(path):
    """The model of a file, and what was kept with it."""
    found = torch.load(path, map_location=device, weights_only=True)
    model = new_predictor(found["kept"])
    model.load_state_dict(found["weights"])
    return model.eval(), found["kept"]


# %% tags=["torch", "take"]
@torch.inference_mode()
def predict(model, kept, rows):
    """For each row of symbols a number, a label, or its labels."""
    ids, real = numbered(rows, kept["symbols"])
    outputs = model(tensor(ids), real=tensor(real)).cpu().numpy()
    if kept["kind"] == "number":
        return (kept["mean"] + kept["deviation"] * outputs[:, 0]).tolist()
    labels = np.array([*kept["labels"]])[outputs.argmax(-1)]
    if kept["kind"] == "label":
        return labels.tolist()
    return [" ".join(row[there]) for row, there in zip(labels, real, strict=True)]


# %% [markdown] tags=["shared"]
# A tenth of the lines is for validation:


# %% tags=["shared", "take"]
def learn(path, kind, *, batch_size, epochs, learning_rate):
    """Train on a file: the model, what to keep with it, its scores in validation."""
    lines = [*zip(*read_rows(path, kind), strict=True)]
    n_train = len(lines) - max(1, len(lines) // 10)
    order = np.random.default_rng(0).permutation(len(lines))
    targets, rows = zip(*(lines[i] for i in order), strict=True)
    kept = to_keep(targets, rows, kind, n_train)
    parts = slice(n_train), slice(n_train, None)
    batch = as_batch(targets, rows, kept)
    train, validation = [[x[part] for x in batch] for part in parts]
    sizes = {"n_train": n_train, "batch_size": batch_size, "epochs": epochs}
    warmup = max(1, epochs * (n_train // batch_size) // 20)
    options = {"learning_rate": learning_rate, "warmup": warmup, "weight_decay": 0.1}
    model = new_predictor(kept)
    loss_fn, best = label_loss, "accuracy"
    if kind == "number":
        loss_fn, best = number_loss, "loss"
    settings = Settings(**sizes, **options)
    fit(model, loss_fn, train, settings, validation=validation, best=best)
    return model, kept, evaluate(model, loss_fn, validation)


# %% [markdown] tags=["shared"]
# An example: which letters of a strand belong to TATA, the signal of *The reverse
# task*?

# %% tags=["shared"]
draw, rows = np.random.default_rng(0), []
for _ in range(1600):
    strand = "".join(draw.choice([*"ACGT"], draw.integers(8, 25)))
    at = draw.integers(len(strand) - 3)
    strand = strand[:at] + "TATA" + strand[at + 4 :]
    marks = ["out"] * len(strand)
    for found in re.finditer("(?=TATA)", strand):  # two of them may share letters
        marks[found.start() : found.start() + 4] = ["in"] * 4
    rows.append(f"{' '.join(marks)}\t{' '.join(strand)}\n")
(folder / "strands.txt").write_text("".join(rows), "utf-8")

given = {"batch_size": 32, "epochs": 8, "learning_rate": 3e-3}
marker, kept, scores = learn(folder / "strands.txt", "labels", **given)
save(folder / "marker", marker, kept)
print(*(f"{name} {score:.3f}" for name, score in scores.items()))
predict(*load(folder / "marker"), [[*"GATTATACAG"], [*"TATAGG"]])

# %% [markdown] tags=["shared"]
# All this is one file [to take along](../book/index.md), which needs nothing of this
# book: `python predictor_torch.py my.txt --target labels` trains (or
# `predictor_jax.py`), `new.txt --predict` answers.

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Replace the `...`, and run the cell. `check` tries your function on arrays with gaps,
# and says what is wrong. Gaps must have no effect.


# %% tags=["shared", "your-turn"]
def my_masked_mean(x, real):
    """Mean over the real positions of each sequence: ``b s i, b s -> b i``.

    ``real`` is True where a position counts, at least once in each row; gaps may be
    anywhere, and ``x`` has other finite numbers there.
    """
    ...


check("data.masked_mean", my_masked_mean)


# %% tags=["shared", "your-turn"]
def my_standardise(train, other):
    """Both tables scaled by the columns of ``train``: ``n s, k s -> (n s, k s)``.

    Subtract the mean, divide by the standard deviation (the root of a mean, as NumPy
    has it). NaN is a missing value: it does not count, and becomes 0 in the end.
    """
    ...


check("data.standardise", my_standardise)


# %% tags=["torch", "answer"]
def my_masked_mean(x, real):
    kept = x.masked_fill(~real[..., None], 0)  # b s i
    return kept.sum(dim=1) / real.sum(dim=1, keepdim=True)


def my_standardise(train, other):
    mean = train.nanmean(dim=0)
    deviation = ((train - mean) ** 2).nanmean(dim=0).sqrt()
    return [((x - mean) / deviation).nan_to_num() for x in (train, other)]


assert check("data.masked_mean", my_masked_mean)
assert check("data.standardise", my_standardise)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** Two models get 57 and 59 of 60 test rows right. Which one do you take?
#
# <details><summary>The second one, which makes a third of the errors.</summary>
#
# **No.** It does on these rows. But two rows of 60 are within the luck of the draw, and
# the next 60 may say the opposite.
#
# </details>
# <details><summary>Either one: both are equally good.</summary>
#
# **No.** Tempting, because the difference tells nothing. But that a small test finds no
# difference does not mean that there is none.
#
# </details>
# <details><summary>The cheaper one, or you test on more rows.</summary>
#
# **Right.** Even models that differ by several errors in a hundred can change places on
# so small a test.
#
# </details>
#
# **2.** Every value has a flag that says whether it is known. The training data are
# complete; in use, values are missing, and the model fails. Why did the flags not help?
#
# <details><summary>In training, all of them were 1.</summary>
#
# **Right.** An input that never changes acts like a bias. Nothing has told the model
# what to do when it is 0.
#
# </details>
# <details><summary>They are too few to matter beside the values.</summary>
#
# **No.** There are as many flags as values, and the embedding reads both in the same
# way.
#
# </details>
# <details><summary>Attention's mask should have hidden the missing values.</summary>
#
# **No.** That is the way for a whole position. If a frame has other values that are
# known, hiding it would lose them, too.
#
# </details>
#
# **3.** Attention hides padding, but the mean at the end is over *all* positions. What
# happens?
#
# <details><summary>Nothing: hidden positions are zeros.</summary>
#
# **No.** A natural thought, but the mask only keeps others from looking at them. They
# still get vectors, from biases, positions and attention of their own.
#
# </details>
# <details><summary>A sequence's answer depends on how much padding it gets.</summary>
#
# **Right.** The vectors of padding join the mean, and its divisor is the padded length.
# Beside a longer neighbour, the same sequence gets another output.
#
# </details>
# <details><summary>The mean gets smaller, and the output layer undoes that.</summary>
#
# **No.** It could undo a fixed factor. But this one is different for each sequence, and
# padding adds vectors of its own.
#
# </details>
#
# **4.** What carries knowledge of the test rows into training?
#
# <details><summary>Filling gaps of test rows with means of the training rows.</summary>
#
# **No.** Tempting, because a number passes between the two parts. But it passes from
# training to test, as it will when the model is used.
#
# </details>
# <details><summary>Padding all sequences to the longest one of both parts.</summary>
#
# **No.** The length does come from the test. But padding that is hidden changes no
# output, so the model learns nothing from it.
#
# </details>
# <details><summary>Scaling by mean and standard deviation of all rows.</summary>
#
# **Right.** Then each training row has been shifted by what the test rows are like.
# Often it matters little, but the test is no longer new.
#
# </details>
#
# **5.** You train twenty variants, and report the one with the highest test accuracy.
# Each has been trained on the training rows alone. What is wrong with the number?
#
# <details><summary>Nothing: no weight has been fitted to the test.</summary>
#
# **No.** No weight has, but the choice has. With twenty tries, one will suit these rows
# by chance.
#
# </details>
# <details><summary>It is too high.</summary>
#
# **Right.** The highest of twenty is in part the luckiest. Let validation data choose,
# and use the test once.
#
# </details>
# <details><summary>It is too low: the best variant has overfitted.</summary>
#
# **No.** Overfitting does lower the accuracy on a test. But the test shows that truly;
# it is the choice that makes the number too good.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * One question about new data: what is a token? A number, a frame, a character.
# * Padding and lost frames are hidden by a mask; a single missing value gets a flag.
# * Train every model with the gaps that will come in use.
# * A baseline first; then several seeds, and a learning curve.
# * Choose by validation data, and split by what will be new in use: file, person, day.
# * Save the scale with the weights.

# %% [markdown] tags=["torch"]
# Next comes [when training fails, in PyTorch](debugging_torch.ipynb): tests that find
# the mistake in model, loss or data.
