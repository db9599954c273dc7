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
# # Your own data
#
# By the end you can turn a table, a signal and a text into sequences, train one model
# on all of them, tell it what is missing, and find out whether it was worth it.
# You need: the chapters up to *The reverse task*, whose `fit` trains here.
#
# So far the book has brought its own data. Yours are a spreadsheet, a sensor that
# sometimes fails, or a folder of texts. The model hardly changes; you decide how the
# data become vectors, and what you compare the result with. So every section below
# begins with a **baseline**: a method that takes a few lines and a second.

# %% [markdown] tags=["jax"]
# This page uses **JAX**. The same page in PyTorch: [data_torch](data_torch.ipynb).
# Before it comes [a model that reads and writes, in JAX](translation_jax.ipynb).

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

# %% tags=["jax", "imports"]
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_wine
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from helpers.data import lines, vowels
from helpers.data.sequences import in_order
from helpers.engine.settings import Settings
from helpers.engine.shapes import as_numpy  # any array as a NumPy array
from helpers.engine.weights import count_parameters
from helpers.jax import (
    Encoder,
    LearnedPositions,
    build,
    check_input,
    dense,
    evaluate,
    fit,
    full_float32,
)
from helpers.show import plots
from helpers.show.diagrams import data as diagrams
from helpers.show.prose import recorded, say, table

# %% tags=["jax", "experiment"]
# Experiment: style, and the short names floats and booleans
plots.use_style()
floats = partial(jnp.asarray, dtype=jnp.float32)
booleans = partial(jnp.asarray, dtype=bool)
framework = "jax"

# %% [markdown] tags=["shared"]
# ## What is a token?
#
# A Transformer does not know what a table or a text is. It takes vectors, `b s i`. So
# there is one question about new data: what is a token?

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three kinds of data become boxes: each number of a table row, each frame of a signal, each character of a text; dashed grey boxes are a gap or padding. Below, one sequence goes on as a matrix x, b s i, beside a column real, b s. The encoder turns it into b s m, the mean over the real positions into b m, and the output into b c. Rows that are not real are grey."}}
diagrams.three_kinds_of_data()

# %% [markdown] tags=["shared"]
# A token should say something by itself, and there should be few of them, because the
# cost of attention grows with the square of their number. A number of a table does; a
# single value of a sound does not, so a signal is cut into pieces, as pictures are into
# patches.
#
# Sequences of a batch have one length. Where a shorter one has nothing left, or where a
# sensor was silent, `real` is False. These positions are hidden from attention, and the
# mean at the end leaves them out. Three parts of earlier chapters and a mean make the
# model:


# %% tags=["jax"]
class SequenceClassifier(nnx.Module):
    """One output vector per sequence, by its real positions: ``b s i, b s -> b c``."""

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, max_length, dropout=0.0,
        rngs,
    ):  # fmt: skip
        self.embed = dense(n_inputs, m, rngs=rngs)
        self.positions = LearnedPositions(m, max_length, rngs=rngs)
        options = {"dropout": dropout, "activation": "gelu", "norm_first": True}
        self.encoder = Encoder(n_blocks, m, n_heads, f, rngs=rngs, **options)
        self.output = dense(m, n_outputs, rngs=rngs)

    def encode(self, x, real):
        """One vector per position: ``b s i, b s -> b s m``."""
        check_input(x, self.embed.in_features)
        x = self.positions(self.embed(x))  # b s m
        return self.encoder(x, real[:, None, None])  # b 1 1 k: True = may look

    def __call__(self, x, real):
        encoded = self.encode(x, real) * real[..., None]  # b s m
        return self.output(encoded.sum(1) / real.sum(1)[:, None])


# %% tags=["shared", "check"]
# Checked: numbers that are not real change no output; a sequence of gaps alone is NaN
draw = np.random.default_rng(0).normal
real = np.arange(7) < np.array([[7], [5], [0]])  # b s
real[0, 2] = False
some = draw(size=(3, 7, 5))
tried = build(SequenceClassifier, 5, 12, 4, n_blocks=2, n_heads=3, f=17, max_length=11)
other = np.where(real[..., None], some, 100)
pair = [as_numpy(tried(floats(given), booleans(real))) for given in (some, other)]
np.testing.assert_array_equal(*pair)
assert np.isfinite(pair[0][:2]).all() and np.isnan(pair[0][2]).all()

# %% [markdown] tags=["shared"]
# (A sequence without a real position has no mean: 0/0 is NaN. Leave it out, or begin
# each sequence with a token that is always there.)
#
# `fit` wants a loss, and the accuracy beside it:


# %% tags=["jax"]
def class_loss(model, x, real, labels):
    """Mean cross-entropy and accuracy of the classes ``b``."""
    logits = model(x, real)  # b c
    hits = logits.argmax(-1) == labels
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), {"accuracy": hits.mean()}


# %% [markdown] tags=["shared"]
# For measurements to be predicted, take as many outputs as numbers, and the mean
# squared error.
#
# ## A table: each number is a token
#
# The table is scikit-learn's: 13 measurements of 178 wines, of three sorts of grape.
# Scale each column by mean and deviation *of the training rows*; the test rows are data
# that you do not have yet.

# %% tags=["shared"]
wine, sorts = load_wine(return_X_y=True)  # n 13, n
order = np.random.default_rng(0).permutation(len(wine))
rows, test_rows = order[:118], order[118:]
scaled = (wine - wine[rows].mean(0)) / wine[rows].std(0)
wine_baseline = LogisticRegression().fit(scaled[rows], sorts[rows])
wine_score = wine_baseline.score(scaled[test_rows], sorts[test_rows])

# %% [markdown] tags=["shared"]
# A number alone does not say which column it comes from, so each column gets an
# embedding of its own, multiplied by the number
# ([Gorishniy et al. 2021](https://arxiv.org/abs/2106.11959)). In code, a token is zero
# everywhere but in its column's place, where the number stands.


# %% tags=["shared"]
def from_table(rows):
    """Each number in the place of its column: ``b s -> b s s``."""
    return rows[:, :, None] * np.eye(rows.shape[1])


everywhere = np.ones(scaled.shape, bool)  # b s: no gaps
cells = from_table(scaled), everywhere, sorts
small = {"n_blocks": 1, "n_heads": 4, "f": 128}  # the model of all data on this page
steps = Settings(n_train=118, batch_size=59, epochs=50, learning_rate=3e-3, warmup=10)
grapes = build(SequenceClassifier, 13, 64, 3, **small, max_length=13)
fit(grapes, class_loss, [a[rows] for a in cells], steps, bar=False)
test_cells = [a[test_rows] for a in cells]
wine_accuracy = evaluate(grapes, class_loss, test_cells)["accuracy"]

# %% tags=["shared", "say"]
apart = round(abs(wine_accuracy - wine_score) * len(test_rows))
say(
    f"The Transformer is right in {wine_accuracy:.0%} of {len(test_rows)} test wines, "
    f"logistic regression in {wine_score:.0%}: a difference of {apart}. So small a "
    "test cannot tell them apart, and the baseline took a moment."
)

# %% tags=["shared", "check"]
# Checked: both have learned the wines; a token holds its number and its column
assert min(wine_accuracy, wine_score) > 0.8
token = from_table(scaled)[:, 4]
np.testing.assert_array_equal(token.sum(-1), scaled[:, 4])
assert not np.delete(token, 4, axis=-1).any()

# %% [markdown] tags=["shared"]
# ## A signal of many channels: each frame is a token
#
# Nine men say the same two vowels, and we want to know who speaks (*Japanese Vowels*,
# [Kudo et al. 1999](https://doi.org/10.24432/C5NS47), licence CC BY 4.0). Every few
# milliseconds, twelve numbers describe the sound: twelve channels. That is a **frame**,
# and our token. An utterance has 7 to 29. The test was recorded on other occasions.

# %% tags=["shared"]
parts = vowels.load()
x, real, speakers = parts["train"]  # b s i, b s, b
test_x, test_real, test_speakers = parts["test"]
mean, deviation = x[real].mean(0), x[real].std(0)  # of the frames for training
x, test_x = (x - mean) / deviation, (test_x - mean) / deviation

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Heat maps of two utterances, with a row for each of the twelve channels and a column for each of the 29 frames. Where an utterance has ended, the cells are grey: padding."}}
shown = [np.where(real[b], x[b].T, np.nan) for b in (0, 90)]
titles = [f"speaker {speakers[b] + 1}" for b in (0, 90)]
scale = {"low": -3, "high": 3, "bar": "deviations from the mean", "size": (6.6, 2.4)}
plots.heatmaps(shown, titles=titles, x="frame s", y="channel i", **scale)

# %% [markdown] tags=["shared"]
# First the baselines. They want as many numbers of every utterance: the mean of each
# channel; mean and deviation; or the values at ten even times, between which we
# interpolate. `known`, `b s i`, says which values there are; for now, all real ones.


# %% tags=["shared"]
def moments(x, known):
    """Mean and deviation of each channel over its known values: ``b s i -> b 2i``."""
    n = np.maximum(known.sum(1), 1)  # b i
    mean = (x * known).sum(1) / n
    variance = ((x - mean[:, None]) ** 2 * known).sum(1) / n
    return np.concatenate([mean, np.sqrt(variance)], axis=1)


def resampled(x, known, n=10):
    """Each channel at ``n`` even times, and whether it has values: ``b s i -> b c``."""
    found = np.zeros((len(x), x.shape[2], n))  # a channel without values stays 0
    for b, i in np.argwhere(known.any(1)):
        last = np.flatnonzero(known[b].any(-1))[-1]
        times = np.flatnonzero(known[b, :, i])
        found[b, i] = np.interp(np.linspace(0, last, n), times, x[b, times, i])
    return np.concatenate([found.reshape(len(x), -1), known.any(1)], axis=1)


# %% tags=["shared"]
def whole(real):
    """All channels of the real frames are known: ``b s -> b s i``."""
    return np.repeat(real[..., None], 12, axis=2)


def regression():
    """Logistic regression on scaled features."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


by_times = regression()
baselines = {
    "mean, logistic regression": (lambda *given: moments(*given)[:, :12], regression()),
    "mean and deviation, SVM": (moments, make_pipeline(StandardScaler(), SVC(C=10))),
    "ten times, logistic regression": (resampled, by_times),
}
scores = {}
for name, (features, method) in baselines.items():
    method.fit(features(x, whole(real)), speakers)
    scores[name] = method.score(features(test_x, whole(test_real)), test_speakers)

# %% [markdown] tags=["shared"]
# For the Transformer, a frame is 24 numbers: the twelve values, 0 where one is missing,
# and twelve flags that say which are known. Otherwise a missing value would look like
# an average one. A frame without any known value is not real.


# %% tags=["shared"]
def inputs(x, known):
    """Values beside what is known: ``b s 2i``; real frames: ``b s``."""
    both = np.concatenate([np.where(known, x, 0), known], axis=-1)
    return both.astype(np.float32), known.any(-1)


def train(rows, gaps=whole, seed=0, updates=594):
    """A model, trained on these utterances, each time with other ``gaps``."""
    batch_size = min(30, len(rows))
    steps = Settings(
        n_train=len(rows), batch_size=batch_size, seed=seed, learning_rate=2e-3,
        epochs=updates // (len(rows) // batch_size), warmup=50,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([rng.permutation(rows) for _ in range(steps.epochs)])
    data = *inputs(x[drawn], gaps(real[drawn])), speakers[drawn]
    sizes = {**small, "max_length": 29, "dropout": 0.2}
    model = build(SequenceClassifier, 24, 64, 9, **sizes, seed=seed)
    fit(model, class_loss, data, steps, batches=in_order(steps), bar=False)
    return model


# %% tags=["shared"]
everyone = np.arange(270)
plain = train(everyone)
heard = *inputs(test_x, whole(test_real)), test_speakers
plain_accuracy = evaluate(plain, class_loss, heard)["accuracy"]

# %% tags=["shared", "say"]
seeds = recorded(f"data-seeds-{framework}")[-1]["figures"]  # of a model: five numbers
found = seeds["whole utterances"]["Transformer"]
rows_said = [[name, f"{score:.1%}"] for name, score in scores.items()]
rows_said.append(["Transformer, this run", f"{plain_accuracy:.1%}"])
rows_said.append(["Transformer, mean of five seeds", f"{np.mean(found):.1%}"])
best_baseline = max(scores.values())
say(
    f"{table(['speaker', 'test utterances right'], *rows_said)}\n\nOf {len(test_x)} "
    f"utterances, the best baseline gets {round((1 - best_baseline) * 370)} wrong, the "
    f"Transformer {round((1 - max(found)) * 370)} to {round((1 - min(found)) * 370)}, "
    "by the seed. One seed cannot tell a model from its luck: **report several**. "
    "(These were recorded once, with `benchmarks/data_seeds.py`.)"
)

# %% tags=["shared", "check"]
# Checked: all have learned who speaks, here and with five seeds
assert min(*scores.values(), plain_accuracy) > 0.93
assert len(found) == 5 and min(found) > 0.93

# %% [markdown] tags=["shared"]
# **Exercise 1, predict, then run.** Play the test utterances backwards: the real frames
# in opposite order, padding still at the end. What happens to the SVM, to the
# regression on ten times, to the Transformer?

# %% tags=["shared", "answer"]
backwards, known = test_x.copy(), whole(test_real)
for row, n in enumerate(test_real.sum(1)):
    backwards[row, :n] = test_x[row, :n][::-1]
same = moments(test_x, known)
np.testing.assert_allclose(moments(backwards, known), same, atol=1e-5)
linear = by_times.score(resampled(backwards, known), test_speakers)
given = *inputs(backwards, known), test_speakers
by_frames = evaluate(plain, class_loss, given)["accuracy"]
assert linear < by_frames - 0.2
say(
    "Nothing happens to the SVM: mean and deviation know no order. The regression goes "
    f"from {best_baseline:.0%} to {linear:.0%}, because each of its numbers has a "
    "place in time. The Transformer goes from "
    f"{plain_accuracy:.1%} to {by_frames:.1%}. "
    "Attention and mean do not depend on the order, only the learned positions do: "
    "the difference says how much the model has made of them."
)

# %% [markdown] tags=["shared"]
# ## Gaps: a mask helps if the training had gaps, too
#
# Now the microphone fails. A share of the *frames* is lost, or a share of the
# *channels* for a whole utterance. The baselines fill a gap by interpolation; a channel
# that is lost altogether gets the mean, which is 0. The Transformer is told by its
# flags and by `real`.


# %% tags=["shared"]
def lose(real, share, rng, what):
    """What is still known, ``b s -> b s i``; one frame or channel always stays."""
    frames = what == "frames"
    shape = (*real.shape, 1) if frames else (len(real), 1, 12)
    luck = rng.random(shape) * (real[..., None] if frames else 1)
    most = luck.max(axis=(1, 2), keepdims=True)
    return whole(real) & (luck >= np.minimum(share, most))


def draw_gaps(real, seed=0):
    """Frames or channels lost, for each utterance another share: ``b s -> b s i``."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(0, 0.9, (len(real), 1, 1))
    kinds = [lose(real, share, rng, what) for what in ("frames", "channels")]
    return np.where(rng.random(share.shape) < 0.5, *kinds)


# %% [markdown] tags=["shared"]
# A second Transformer meets gaps in training, each time others. To be fair, the best
# baseline gets gaps, too: 20 copies of each utterance.

# %% tags=["shared"]
prepared = train(everyone, draw_gaps)
copies = np.tile(everyone, 20)
gaps = draw_gaps(real[copies])
filled = regression().fit(resampled(x[copies], gaps), speakers[copies])

# %% tags=["shared", "experiment"]
# Experiment: accuracy of models and other methods with the same gaps
PERCENT = np.array([0, 20, 40, 60, 80])
SHARES = PERCENT / 100
LOST = [("frames", 0.6), ("channels", 0.6), ("frames", 0.8), ("channels", 0.8)]
models = {"Transformer, trained whole": plain, "Transformer, with gaps": prepared}
methods = {"regression, trained whole": by_times, "regression, with gaps": filled}


def on_gaps(what, share, models, methods, seed=0):
    """Accuracy on the test utterances with gaps, by name."""
    known = lose(test_real, share, np.random.default_rng(seed), what)
    given = *inputs(test_x, known), test_speakers
    for name, model in models.items():
        yield name, evaluate(model, class_loss, given)["accuracy"]
    features = resampled(test_x, known)
    for name, method in methods.items():
        yield name, method.score(features, test_speakers)


# %% tags=["shared", "experiment"]
# Experiment: all four, with ever larger gaps
here = {
    what: [dict(on_gaps(what, share, models, methods)) for share in SHARES]
    for what in ("frames", "channels")
}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Accuracy over the share that is lost, in two panels. All four lines fall. Lost frames: the four lines are near each other and part at the end. Lost channels: the two models that were trained on whole utterances fall steeply, and at 60 % both lines of models that were trained with gaps are above them."}}
panels = {
    f"lost {what}": {
        name: (PERCENT, np.array([one[name] for one in found])) for name in found[0]
    }
    for what, found in here.items()
}
fig = plots.curves(panels, x="% lost", y="accuracy", share_y=True, size=(6.6, 2.9))
fig

# %% tags=["shared", "say"]
five = {
    name: [np.mean(seeds[f"{what} lost: {share}"][name]) for what, share in LOST]
    for name in (*models, *methods)
}
cells_said = [[name, *(f"{x:.0%}" for x in found)] for name, found in five.items()]
head = ["mean of five seeds", *(f"{share:.0%} of {what}" for what, share in LOST)]
whole_t, gaps_t, whole_r, gaps_r = (found[1] for found in five.values())
say(
    f"{table(head, *cells_said)}\n\n**A mask does not help by itself.** A model that "
    "has never met a flag of 0 does not know what it means: with lost channels, the "
    f"Transformer trained whole falls to {whole_t:.0%}, as the regression does "
    f"({whole_r:.0%}). Trained with gaps, it reaches {gaps_t:.0%}, and the regression "
    f"gains, too ({gaps_r:.0%}): what counts is what you show in training. The "
    "Transformer spares you the interpolation, because a gap is a flag."
)

# %% tags=["shared", "check"]
# Checked: with 60 % of the channels lost, both gain from gaps in training, as drawn
lost = {name: plots.drawn(fig, "lost channels", name)[1] for name in five}
for kind in ("Transformer", "regression"):
    assert lost[f"{kind}, with gaps"][3] > lost[f"{kind}, trained whole"][3] + 0.1
    assert lost[f"{kind}, with gaps"][0] > 0.9
    assert min(five[f"{kind}, with gaps"]) > min(five[f"{kind}, trained whole"])

# %% [markdown] tags=["shared"]
# ## A learning curve says whether more data would help
#
# Transformers pay off with many examples: so it is said. For your data, measure it.
# Train on parts of the examples, with several seeds, and draw the accuracy over their
# number. If a curve still rises at its end, collect data. If two curves cross, it
# depends on how much you have which model to take.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Learning curves: test accuracy over the number of training utterances, from 18 to 270 on a logarithmic axis, for the Transformer and for logistic regression on ten times. Each line is a mean of five seeds in a band from the lowest to the highest. Both rise steeply and then flatten."}}
curve = seeds["learning curve"]
numbers = sorted({int(name.split()[-1]) for name in curve})
learned = {
    name: (np.array(numbers), np.transpose([curve[f"{name} {n}"] for n in numbers]))
    for name in ("Transformer", "regression")
}
title = "test accuracy, five seeds"
size = {"size": (5.4, 2.9), "marks": "o", "log_x": 2}
fig = plots.curves({title: learned}, x="utterances for training", **size)
fig.axes[0].set_xticks(numbers, numbers)
fig

# %% tags=["shared", "say"]
ours, theirs = (found.mean(0) for _, found in learned.values())
leads = np.subtract(*(found for _, found in learned.values()))  # seed n
sure = leads.mean(0) > 2 * leads.std(0, ddof=1) / np.sqrt(len(leads))
ahead = ", ".join(f"{n}" for n, yes in zip(numbers, sure, strict=True) if yes)
where = f"at {ahead} utterances" if ahead else "nowhere: there is no crossing"
say(
    f"With {numbers[0]} utterances, the regression reaches {theirs[0]:.1%} and the "
    f"Transformer {ours[0]:.1%} (means of five seeds), with {numbers[-1]} it is "
    f"{theirs[-1]:.1%} and {ours[-1]:.1%}. By two standard errors, the Transformer is "
    f"ahead {where}. It has {count_parameters(plain):,} weights to learn, the "
    f"regression {by_times[-1].coef_.size:,}. So here the answer is: take the "
    "regression, and look again when there are thousands of utterances."
)

# %% tags=["shared", "check"]
# Checked: as drawn, both curves end higher than they begin, near each other
drawn = [plots.drawn(fig, title, name)[1] for name in learned]
for accuracy in drawn:
    assert accuracy[-1] > accuracy[0] + 0.03
assert abs(drawn[0][-1] - drawn[1][-1]) < 0.03

# %% [markdown] tags=["shared"]
# ## A text: each character is a token, and files are not split
#
# The texts are lines of files that lie on this machine: which of four languages is a
# line written in? We split by *file*: lines of one file share names and habits, and a
# model that knows the file looks too good. With patients, machines or days it is the
# same: split by what will be new in use.

# %% tags=["shared"]
texts, labels, test_texts, test_labels = lines.languages(n_train=400, n_test=150)
for text, label in zip(texts[:4], labels, strict=False):
    print(lines.LANGUAGES[label], text, sep=": ")

# %% tags=["shared"]
pairs = TfidfVectorizer(analyzer="char", ngram_range=(1, 2))  # characters, and pairs
text_baseline = make_pipeline(pairs, LogisticRegression(C=10, max_iter=500))
text_score = text_baseline.fit(texts, labels).score(test_texts, test_labels)

# %% [markdown] tags=["shared"]
# Each character becomes a vector with a single 1; `real` marks where there is one.


# %% tags=["shared"]
def from_texts(texts, length):
    """ASCII characters as one-hot vectors ``b s 128``, and which are real: ``b s``."""
    x = np.zeros((len(texts), length, 128), np.float32)
    for row, text in enumerate(texts):
        codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8)[:length]
        x[row, np.arange(len(codes)), codes] = 1
    return x, x.any(axis=-1)


steps = Settings(
    n_train=len(texts), batch_size=32, epochs=8, learning_rate=2e-3, warmup=50
)
reader = build(SequenceClassifier, 128, 64, 4, **small, max_length=40, dropout=0.2)
fit(reader, class_loss, (*from_texts(texts, 40), labels), steps, bar=False)
written = *from_texts(test_texts, 40), test_labels
text_accuracy = evaluate(reader, class_loss, written)["accuracy"]

# %% tags=["shared", "say"]
found = seeds["lines"]["Transformer"]
say(
    f"The Transformer is right in {text_accuracy:.0%} of {len(test_texts)} test lines "
    f"(five seeds: {min(found):.0%} to {max(found):.0%}), and counts of characters and "
    f"pairs with logistic regression in {text_score:.0%}. A table, a signal, a text: "
    "**one model and one loss for all three**. On a few hundred examples, expect it "
    "near a good baseline. It pays off with many thousands, with a trunk that others "
    "have trained (*Pictures as sequences*), or where nobody knows good features."
)

# %% tags=["shared", "check"]
# Checked: both have learned the languages; no line of the test was in training
assert min(text_accuracy, text_score, *found) > 0.5
assert not set(texts) & set(test_texts)
np.testing.assert_array_equal(written[0], lines.from_texts(test_texts, 40)[0])

# %% [markdown] tags=["shared"]
# **Exercise 2, predict, then run.** Mix all lines and split them at random instead.
# What happens to the score of the baseline?

# %% tags=["shared", "answer"]
both, whose = np.append(texts, test_texts), np.append(labels, test_labels)
mixed = np.random.default_rng(0).permutation(len(both))
learn, rest = mixed[: len(texts)], mixed[len(texts) :]
by_line = text_baseline.fit(both[learn], whose[learn]).score(both[rest], whose[rest])
assert by_line > text_score + 0.03
say(
    f"It rises from {text_score:.0%} to {by_line:.0%}, with the same method and lines. "
    "Nothing has become easier but the test: it now asks for files that are "
    "known. In use, the first number is the true one."
)

# %% [markdown] tags=["shared"]
# **Exercise 3.** A bracelet measures acceleration along three axes, at 50 Hz,
# for ten minutes; falls are to be found, which last about two seconds. What is a token,
# and how many does a sequence have?

# %% [markdown] tags=["shared", "answer"]
# One value of three axes says little, and there are 30,000 of them. Cut pieces that are
# shorter than what is to be found: half a second is $25 \cdot 3 = 75$ numbers, four
# tokens a fall. Ten minutes would be 1,200 tokens, but a fall does not depend on what
# came minutes before: sequences of ten seconds have 20 tokens. And split by person.

# %% [markdown] tags=["shared"]
# ## Extra: A loader is for data that do not fit
#
# We have indexed arrays in memory, and no loader was needed. You need one when the data
# do not fit, or when every example takes work, such as decoding a photo: then other
# processes prepare the next batches. A data set is anything with a length and an index
# (here a list of pairs), and a `collate` function makes a batch of examples.

# %% [markdown] tags=["jax"]
# JAX compiles anew for every new shape, so ours pads to multiples of 8: few shapes,
# little padding. For workers in other processes, take
# [Grain](https://github.com/google/grain), or PyTorch's `DataLoader`.


# %% tags=["jax"]
def collate(examples):
    """A batch, padded to a multiple of 8: ``b s i, b s, b``."""
    texts, labels = zip(*examples, strict=True)
    return *from_texts(texts, 8 * -(-max(map(len, texts)) // 8)), np.array(labels)


def loader(dataset, batches):
    """Batches in the order of ``batches``, rows ``n b``."""
    return (collate([dataset[i] for i in rows]) for rows in batches)


# %% tags=["shared"]
dataset = list(zip(texts, labels, strict=True))
some = np.random.default_rng(0).integers(len(dataset), size=(3, 2))  # n b
print([x.shape for x, _, _ in loader(dataset, some)])

# %% tags=["shared", "check"]
# Checked: the loader keeps the order of the batches, and less padding changes no output
for rows, (short, known, whose) in zip(some, loader(dataset, some), strict=True):
    np.testing.assert_array_equal(whose, labels[rows])
    pair = (short, known), from_texts(texts[rows], 40)
    with full_float32():
        found = [as_numpy(reader(floats(a), booleans(b))) for a, b in pair]
    np.testing.assert_allclose(*found, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * One question about new data: what is a token? A number, a frame, a character.
# * What is padding or missing is marked, and hidden from attention and from the mean.
# * Gaps that will come in use belong into the training, for every model.
# * A baseline first; then several seeds, and a learning curve.
# * Split by what will be new in use: by file, by person, by day.

# %% [markdown] tags=["jax"]
# Next comes [when training fails, in JAX](debugging_jax.ipynb): tests that find the
# mistake in model, loss or data.
