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
# # Finding the odd one out
#
# By the end you can train a Transformer on sets, compare it with a baseline, find out
# how it decides, test it on classes that it was never shown, and use it on data of your
# own. You need: the encoder, the reverse task and warm-up. In a hurry? A program for
# your data stands in [Your own
# data](#your-own-data-features-and-classes-are-enough), with a list of what it needs.
#
# Nine ships and a dog: you see the odd one at once. But a dog among nine dogs is not
# odd. Whether a photo is odd depends on the others of its *set*, so a classifier that
# judges each photo alone cannot know. (One that names all ten, and then counts, can: it
# will be a rival.) One contaminated sample among ten is the same problem. Attention
# *can* compare the elements of a set; whether it does must be tested.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [anomaly_jax](anomaly_jax.ipynb).
# Before it comes [warm-up, in PyTorch](warmup_torch.ipynb). Later chapters do not need
# this one.

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

from helpers.data import sets
from helpers.exercises import check
from helpers.settings import Settings
from helpers.show import drawing, plots, power, recorded, say, table, viewer
from helpers.torch import Predictor, attention_maps, device, evaluate, fit, tensor
from helpers.weights import as_numpy, from_arrays, to_arrays

plots.use_style()

# %% [markdown] tags=["shared"]
# ## Split the photos first, then draw sets
#
# The task is from a tutorial of the [University of
# Amsterdam](https://uvadlc-notebooks.readthedocs.io). Our photos are from CIFAR-10
# ([Krizhevsky 2009](https://www.cs.toronto.edu/~kriz/cifar.html)): ten classes, 32 × 32
# pixels. Two photos of dogs agree in hardly any pixel, so a model that compares needs
# something better than pixels: numbers that describe a photo, its **features**.
# EfficientNet-Lite0 ([Tan & Le 2019](https://arxiv.org/abs/1905.11946)), a network
# trained on the million photos of ImageNet, turned each photo into 1,280 of them. Our
# file keeps the first 64 principal components, the directions in which the training
# photos differ most. (To train this network along with our model might be best, but
# would take hours.)
#
# We split the photos, not the sets; otherwise test sets would contain training photos.
# `stratify` gives the validation part equally many photos of each class. A `Part` holds
# features and labels, a row for each photo; that of the test also has the photos
# themselves, for the figures.

# %% tags=["shared"]
from sklearn.model_selection import train_test_split

s = 10  # elements of a set
found = np.load("helpers/data/photos.npz")  # by benchmarks/photo_features.py
names = found["classes"].tolist()
features, labels = found["train"].astype(np.float32), found["train_labels"]  # n i, n
rows, held = train_test_split(
    np.arange(len(labels)), test_size=500, stratify=labels, random_state=42
)
train = sets.Part(features[rows], labels[rows])
validation = sets.Part(features[held], labels[held])

# %% tags=["shared"]
from io import BytesIO

from PIL import Image

files = np.split(found["photos"], found["ends"][:-1])  # JPEGs of the test photos
images = np.stack([np.array(Image.open(BytesIO(file))) for file in files])
test = sets.Part(found["test"].astype(np.float32), found["test_labels"], images)
f"{len(rows):,} photos to train, {len(held)} to validate, {len(images):,} to test"

# %% [markdown] tags=["shared"]
# A set is stored as row numbers: nine photos of one class and, last, one of another.
# The odd one is always the last, also in training (so accuracy is: how often is the
# last chosen?); the section *A set has no order* shows why the model cannot use this.


# %% tags=["shared"]
def draw_sets(labels, odd, rng, s=10):
    """Sets ``n s``: s - 1 rows of one class, then a row of ``odd``, of another."""
    classes = np.unique(labels)
    members = {c: np.flatnonzero(labels == c) for c in classes}
    drawn = []
    for last in odd:
        c = rng.choice(classes[classes != labels[last]])  # the class of the others
        others = rng.choice(members[c], s - 1, replace=False)
        drawn.append(np.append(others, last))
    return np.stack(drawn)


def fixed_sets(part, n, seed):
    """The same sets for a seed, to measure on: rows ``n s``, features ``n s i``."""
    rng = np.random.default_rng(seed)
    odd = np.resize(rng.permutation(len(part.labels)), n)  # each row in turn
    drawn = draw_sets(part.labels, odd, rng)
    return drawn, part.features[drawn]


n_validation, n_test = 1_000, 2_000
test_sets, x_test = fixed_sets(test, n_test, seed=42)

# %% mystnb={"image": {"alt": "Three rows of ten small photos. In each row nine show the same kind of thing; the tenth, in a frame, shows another."}} tags=["shared", "figure"]
kinds = test.labels[test_sets[:3]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
plots.pictures(test.images[test_sets[:3]], titles=titles, odd=np.full(3, s - 1))

# %% [markdown] tags=["shared"]
# In training, every epoch draws new sets, and each photo is the odd one at most once.
# So 5,000 photos give 78 batches of 64 sets.

# %% tags=["shared"]
rates = {"batch_size": 64, "learning_rate": 1e-3, "warmup": 50}
settings = Settings(n_train=len(train.labels), epochs=8, **rates)  # 8 · 78 updates


def sets_of(part, plan):
    """A function from the epoch to its batches of sets, as row numbers ``n b s``."""

    def batches(epoch):
        rng = np.random.default_rng([plan.seed, epoch])
        n = plan.updates_per_epoch * plan.batch_size  # whole batches alone
        odd = rng.permutation(len(part.labels))[:n]
        drawn = draw_sets(part.labels, odd, rng)  # (n b) s
        return drawn.reshape(-1, plan.batch_size, drawn.shape[1])

    return batches


# %% tags=["shared", "check"]
# Checked: nine are of one class, the last one of another, and none comes twice
in_training = sets_of(train, settings)(0).reshape(-1, s)
for part, drawn in ((test, test_sets), (train, in_training)):
    kinds = part.labels[drawn]  # n s
    assert (kinds[:, :-1] == kinds[:, :1]).all()
    assert (kinds[:, -1] != kinds[:, 0]).all()
    assert (np.diff(np.sort(drawn, axis=1)) > 0).all()
assert len(np.unique(in_training[:, -1])) == len(in_training)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** Roughly how many sets of ten can be made of the 5,000
# training photos: choices for the odd one, the class of the others, and nine photos of
# it?

# %% tags=["shared", "answer"]
from math import comb

possible = 5_000 * 9 * comb(500, s - 1)
n_shown = settings.updates * settings.batch_size
assert possible > 2e12 * n_shown
say(
    "$5000 \\cdot 9 \\cdot \\binom{500}{9}$, with 500 photos in a class: about "
    f"**{power(possible)}**. In training the model sees {n_shown:,}. It cannot "
    "memorise the sets, but it can memorise the photos."
)

# %% [markdown] tags=["shared"]
# ## A baseline needs no training
#
# How hard is the task? A rule without learning chooses the element $x_i$ of a set of
# $s$ whose features are farthest from the mean of the others:
#
# $$\hat\imath = \arg\max_i \Big\| x_i - \frac{1}{s-1} \sum_{j \neq i} x_j \Big\|.$$


# %% tags=["shared"]
def from_the_others(x):
    """Distance of each element from the mean of the others: ``b s i -> b s``."""
    others = (x.sum(axis=1, keepdims=True) - x) / (x.shape[1] - 1)
    return np.linalg.norm(x - others, axis=-1)


def rule(x):
    """Accuracy of the baseline on sets ``n s i``, the odd one last."""
    return (from_the_others(x).argmax(axis=-1) == x.shape[1] - 1).mean()


baseline = rule(x_test)
f"baseline {baseline:.1%}, guessing {1 / s:.0%}"

# %% tags=["shared", "check"]
# Checked: the rule is the formula, and beats guessing by far
others = [np.delete(x_test[0], i, axis=0).mean(axis=0) for i in range(s)]
distance = np.linalg.norm(x_test[0] - np.stack(others), axis=-1)
np.testing.assert_allclose(from_the_others(x_test[:1])[0], distance, rtol=1e-4)
assert baseline > 0.2

# %% [markdown] tags=["shared"]
# ## A set has no order
#
# The odd one is always the last. Could a model learn "choose the last"? Only if it knew
# the order. We leave the positions out, so that it sees a set: if you shuffle (ship,
# ship, dog) to (dog, ship, ship), its three outputs are shuffled in the same way, and
# nothing else changes. A function $F$ with this property,
#
# $$F(PX) = P\,F(X) \quad \text{for every permutation } P \text{ of the rows of } X,$$
#
# is **equivariant** under permutations ([Zaheer et al.
# 2017](https://arxiv.org/abs/1703.06114)); [Lee et al.
# 2019](https://arxiv.org/abs/1810.00825) build such functions from attention. (A
# recurrent network reads its inputs in an order. For a set it must assume one, and the
# order matters: [Vinyals et al. 2015](https://arxiv.org/abs/1511.06391).)
#
# Our model is the `Predictor` of the positions chapter, without positions and with one
# output per element:

# %% mystnb={"image": {"alt": "From top to bottom: a set of five photos, four of a ship and one of a dog; a dense layer for each element; the encoder, in which every element is connected with every other; one output per element; a softmax over the set, which gives the dog a probability of 0.92 and the ships 0.02 each."}} tags=["shared", "figure"]
drawing("set-model")

# %% [markdown] tags=["shared"]
# A softmax over the set turns the logits $z_1 \dots z_s$ into probabilities of being
# the odd one. The loss is $-\ln p_s$, since the odd one is the last:


# %% tags=["torch"]
def odd_one_out(model, x):
    """Cross-entropy and accuracy of finding the odd one, the last of its set."""
    logits = model(x).squeeze(-1)  # b s
    log_p = torch.log_softmax(logits.float(), dim=-1)  # logits may be of half precision
    last = x.shape[1] - 1
    # a tie counts as wrong: argmax takes the first
    accuracy = (logits.argmax(-1) == last).float().mean()
    return -log_p[:, last].mean(), {"accuracy": accuracy}


# %% [markdown] tags=["shared"]
# This model is equivariant, whatever its weights are: attention without positions is,
# and all other layers treat each element alone. Our class adds only dropout on the
# input. It hides some features at each visit, so that the model cannot know a photo by
# a few of them.

# %% tags=["shared"]
sizes = {"n_inputs": 64, "n_outputs": 1, "n_blocks": 2, "m": 64, "n_heads": 4}
sizes |= {"f": 128, "dropout": 0.1}


# %% tags=["torch"]
class SetModel(Predictor):
    """A predictor without positions, with dropout on its inputs, too: ``b s i``."""

    def __init__(self, *, input_dropout=0.1, **sizes):
        super().__init__(positions="none", **sizes)
        self.input_dropout = nn.Dropout(input_dropout)

    def forward(self, x, mask=None, **options):
        return super().forward(self.input_dropout(x), mask, **options)


def new_model(**changes):
    """A predictor of these sizes, or with changes; always with the same seed."""
    torch.manual_seed(42)
    return SetModel(**sizes | changes).to(device)


# %% [markdown] tags=["shared"]
# We shuffle sets to see it. `attention_maps`, of the encoder chapter, runs a model with
# dropout off, and returns its outputs and its maps.


# %% tags=["shared"]
def probabilities(model, x):
    """Softmax over the set, with dropout off: ``b s i -> b s``."""
    logits = as_numpy(attention_maps(model, tensor(x))[0])[..., 0]  # b s
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def change_by_order(model, x, order):
    """The largest change of a probability if sets ``b s i`` are put in an order."""
    p, shuffled = probabilities(model, x), probabilities(model, x[:, order])
    return np.abs(shuffled - p[:, order]).max()


# %% tags=["shared"]
model = new_model()
sample, order = x_test[:1000], np.random.default_rng(0).permutation(s)
untrained_gap = change_by_order(model, sample, order)
loss = evaluate(model, odd_one_out, (sample,))["loss"]
f"largest change {untrained_gap:.0e}; loss {loss:.2f}, ln {s} = {np.log(s):.2f}"

# %% [markdown] tags=["shared"]
# The change is rounding: the order has no effect. Before training the loss is close to
# $\ln 10$, the loss of guessing.

# %% tags=["shared", "check"]
# Checked: shuffling a set permutes its probabilities; the loss is -ln p of the odd one
assert untrained_gap < 1e-5
assert order[-1] != s - 1
p_odd = probabilities(model, sample)[:, -1]
np.testing.assert_allclose(loss, -np.log(p_odd).mean(), rtol=1e-5)
assert abs(loss - np.log(s)) < 0.1

# %% [markdown] tags=["shared"]
# ## It finds the odd one
#
# `fit`, of the reverse chapter, asks `batches` for the row numbers of an epoch, trains
# on the features of these rows, and in the end keeps the weights with the best
# validation accuracy.


# %% tags=["shared"]
def train_on(part, held_out, model, plan):
    """Train a model in place on sets of a part, try it on others: its history."""
    given = {"batches": sets_of(part, plan), "validation": (held_out,)}
    return fit(model, odd_one_out, (part.features,), plan, best="accuracy", **given)


_, held_out = fixed_sets(validation, n_validation, seed=1)
history = train_on(train, held_out, model, settings)

# %% [markdown] tags=["shared"]
# A second rival cannot compare photos, but has learned the names of their classes. It
# is a logistic regression on single photos; $p_j(c)$ is its probability that photo
# $x_j$ is of class $c$. In a set, it chooses the photo $i$ for which one other class is
# likely, and for all others the same $c$: it maximises, over $i$ and $c$,
#
# $$\max_{k \neq c} \ln p_i(k) + \sum_{j \neq i} \ln p_j(c).$$


# %% tags=["shared"]
from sklearn.linear_model import LogisticRegression


def named(classifier, x):
    """Accuracy on sets ``n s i`` of choosing the element whose class occurs once."""
    log_p = classifier.predict_log_proba(x.reshape(-1, x.shape[-1]))  # (n s) c
    log_p = log_p.reshape(*x.shape[:2], -1)  # n s c
    others = log_p.sum(axis=1, keepdims=True) - log_p  # n s c: all others are of c
    same = np.eye(log_p.shape[-1], dtype=bool)  # c k
    another = np.where(same, -np.inf, log_p[:, :, None]).max(axis=-1)  # n s c
    chosen = (another + others).max(axis=-1).argmax(axis=-1)  # n
    return (chosen == x.shape[1] - 1).mean()


classifier = LogisticRegression(C=0.01, max_iter=1000)  # small C: small weights
classifier = classifier.fit(train.features, train.labels)

# %% tags=["shared"]
_, on_train = fixed_sets(train, n_test, seed=2)
measured = {"training": on_train, "validation": held_out, "test": x_test}
accuracy, rules, by_name = {}, {}, {}
for name, x in measured.items():
    accuracy[name] = evaluate(model, odd_one_out, (x,))["accuracy"]
    rules[name], by_name[name] = rule(x), named(classifier, x)
trained_gap = change_by_order(model, sample, order)
f"shuffling sets changes a probability by up to {trained_gap:.0e}"

# %% tags=["shared", "say"]
shown = {"**this page**": accuracy, "baseline": rules}
shown["logistic regression, then the class that occurs once"] = by_name
rows = [[what, *(f"{x:.1%}" for x in row.values())] for what, row in shown.items()]
error = np.sqrt(accuracy["test"] * (1 - accuracy["test"]) / n_test)
say(table(["accuracy", *measured], *rows))
say(f"Standard error, if all sets were independent: {100 * error:.1f} points.")

# %% [markdown] tags=["shared"]
# (Test sets share photos, so the true error is larger.) The rule without learning is
# far behind. The regression is not: in our runs it was ahead of the model, with both
# frameworks. If your classes have labels, and no others will come, naming them is the
# simpler way. Our model is never told a class: labels only draw its sets.

# %% mystnb={"image": {"alt": "Two panels over the epochs. Left: the loss falls in training and in validation. Right: both accuracies rise; the baseline is a level line."}} tags=["shared", "figure"]
ends = np.arange(settings.epochs) + 1
by_epoch = {
    name: history[name].reshape(settings.epochs, -1).mean(axis=1)
    for name in ("loss", "accuracy")
}
panels = {
    "loss": {
        "training": (ends, by_epoch["loss"]),
        "validation": (ends, history["validation_loss"]),
    },
    "accuracy": {
        "training": (ends, by_epoch["accuracy"]),
        "validation": (ends, history["validation_accuracy"]),
        "baseline on test": (ends, np.full(len(ends), baseline)),
    },
}
plots.curves(panels, x="epoch", size=(7, 2.8))

# %% tags=["shared", "check"]
# Checked: both beat the baseline, the model also at the end of both curves
assert accuracy["test"] > 2 * baseline
assert by_name["test"] > baseline + 0.2
assert trained_gap < 1e-5
assert min(by_epoch["accuracy"][-1], history["validation_accuracy"][-1]) > baseline
assert by_epoch["accuracy"][-1] > by_epoch["accuracy"][0]
assert by_epoch["loss"][-1] < by_epoch["loss"][0]
assert history["validation_loss"][-1] < history["validation_loss"][0]

# %% [markdown] tags=["shared"]
# In the curves, validation looks better than training, which has dropout on. In the
# table dropout is off for all.
#
# Where is the model wrong? Three of its mistakes, with different photos chosen, of
# which it is most certain:

# %% tags=["shared"]
p = np.concatenate([probabilities(model, x) for x in np.split(x_test, 2)])  # n s
guess, sure = p.argmax(axis=1), p.max(axis=1)  # the choice, and its probability
is_wrong = guess != s - 1
wrong = np.flatnonzero(is_wrong)
wrong = wrong[np.argsort(-sure[wrong])]  # the most certain mistakes first
mistaken = test_sets[wrong, guess[wrong]]  # the photos chosen in them
_, first = np.unique(mistaken, return_index=True)
worst = wrong[np.sort(first)[:3]]  # no photo twice
misnamed = classifier.predict(test.features) != test.labels
ends = np.sort(test.labels[test_sets[wrong]][:, [0, -1]])  # n 2: the two classes
pairs, n = np.unique(ends, axis=0, return_counts=True)

# %% mystnb={"image": {"alt": "Rows of ten photos with a percentage below each. A solid frame marks the odd one, a dashed frame the one that the model chose instead."}} tags=["shared", "figure"]
from matplotlib.patheffects import withStroke

captions = [[f"{value:.0%}" for value in row] for row in p[worst]]
kinds = test.labels[test_sets[worst]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
options = {"odd": np.full(3, s - 1), "chosen": guess[worst]}
photos = test.images[test_sets[worst]]
fig = plots.pictures(photos, captions=captions, titles=titles, **options)
for frame in [frame for ax in fig.axes for frame in ax.patches]:
    frame.set_path_effects([withStroke(linewidth=5, foreground="white")])
fig

# %% tags=["shared", "say"]
most = [" and ".join(names[c] for c in pairs[i]) for i in np.argsort(-n)[:2]]
say(f"""It is wrong in **{is_wrong.sum()}** of {n_test:,} test sets. Most often confused
are {", and ".join(most)}: in {np.sort(n)[-2:].sum() / n.sum():.0%} of its mistakes. The
regression misnames {misnamed[mistaken].mean():.0%} of the photos chosen in mistakes,
and {misnamed.mean():.0%} of all.""")

# %% [markdown] tags=["shared"]
# So some mistakes are between classes that look alike. In the first set above, with
# both frameworks, it was another kind: a bird before a blue sky, unlike the other
# eight, is taken for the odd one. With all photos and a larger model there are fewer
# mistakes (an extra shows it).
#
# ## Cutting connections shows which ones matter
#
# How does the model find the odd one? The first idea is that all look at it. So how
# much of their attention do the nine give to it? Equal weights would be a tenth.

# %% tags=["shared"]
_, maps = attention_maps(model, tensor(sample))
maps = as_numpy(maps)  # l b h q k
to_odd = maps[..., :-1, -1].mean(axis=(1, 3))  # l h
f"on average the nine give the odd one {to_odd.min():.0%} to {to_odd.max():.0%}"

# %% [markdown] tags=["shared"]
# A head with equal weights can still help: it gives each element the mean of the set,
# to compare itself with. So the maps alone, here of three sets, do not answer our
# question.

# %% tags=["shared", "figure"]
three_sets = test_sets[:3]  # b s
viewer.attention(
    maps[:, :3],
    [[names[kind] for kind in row] for row in test.labels[three_sets]],
    pictures=test.images[three_sets],
    sequences=["first set", "second set", "third set"],
    about="Attention maps of three sets of ten photos, the last one odd",
    high=0.5,
    layer=1,
    query=0,
)

# %% [markdown] tags=["shared"]
# A map shows where information may flow, not whether it matters. To see that, we cut
# connections by a mask, and count the mistakes:
#
# * Must the nine see the odd one? Cut: none of them sees it.
# * Must the odd one see the nine? Cut: it sees only itself.
# * **Control**: or does isolation confuse the model? Cut: one of the nine sees only
#   itself.


# %% tags=["shared"]
def scores_under(mask):
    """Logits of the sample if a mask ``q k`` cuts connections: ``b s``."""
    logits, _ = attention_maps(model, tensor(sample), tensor(mask))  # b s 1
    return as_numpy(logits)[..., 0]


def isolated(place):
    """A mask ``q k`` (True = may look) under which one element sees only itself."""
    mask = np.ones((s, s), dtype=bool)
    mask[place] = np.arange(s) == place
    return mask


# %% tags=["shared"]
everything = np.ones((s, s), dtype=bool)  # q k
odd_hidden = everything.copy()
odd_hidden[:-1, -1] = False  # none of the nine sees the odd one
cuts = {
    "nothing": everything,
    "the nine do not see the odd one": odd_hidden,
    "the odd one sees only itself": isolated(s - 1),
    "the first of the nine sees only itself (control)": isolated(0),
}
right, means = {}, {}
for name, mask in cuts.items():
    scores = scores_under(mask)
    right[name] = (scores.argmax(axis=1) == s - 1).mean()
    means[name] = scores[:, -1].mean(), scores[:, 0].mean()  # odd, first of the nine

# %% tags=["shared", "say"]
head = "what is cut", "accuracy", "score of the odd one", "of the first"
numbers = {name: [f"{z:.1f}" for z in pair] for name, pair in means.items()}
say(table(head, *([name, f"{x:.1%}", *numbers[name]] for name, x in right.items())))

# %% [markdown] tags=["shared"]
# Only isolating the odd one does harm. The scores (logits, here their means over the
# sets) show why. Alone, the odd one gets the score of a normal element: it sees nothing
# that differs from it. One of the nine, alone, keeps its low score: isolation makes no
# element look odd. So each element finds out for itself whether it differs, by looking
# at the others.

# %% tags=["shared", "check"]
# Checked: only isolating the odd one does harm; isolated, odd and normal score alike
full, nine, odd_alone, first_alone = right.values()
assert odd_alone < 0.5 * min(full, nine, first_alone)
assert min(nine, first_alone) > full - 0.05
(odd, first), _, (odd_cut, _), (_, first_cut) = means.values()
assert abs(odd_cut - first_cut) < 0.2 * (odd - first)

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Give `scores_under` a mask in which *each* element
# sees only itself. Under this mask no model can compare. How often could the best one
# be right, if all classes are equally frequent?

# %% tags=["shared", "answer"]
alone = scores_under(np.eye(s, dtype=bool))
blind = (alone.argmax(axis=1) == s - 1).mean()
say(
    f"The accuracy falls to **{blind:.1%}** (guessing: {1 / s:.0%}, baseline: "
    f"{baseline:.1%}). Now each element gets its score without any comparison. If an A "
    "has a higher score than a B, the model is at best right for an A among nine Bs, "
    "and wrong for a B among nine As. Both are equally frequent: at most **one half**."
)
assert blind < min(0.5, accuracy["test"])

# %% [markdown] tags=["shared"]
# ## Unseen classes are the real test
#
# A model, too, can **recognise**: learn what each class looks like, and choose the one
# that occurs once. For new classes one should have to compare. Can ours? We train it
# again without three of the classes, with as many updates, and test it on sets of these
# three alone. The regression gets the same photos: it will name each new one as one of
# its seven classes. Predict: which of them still beats the baseline?

# %% tags=["shared"]
unseen = np.array([7, 8, 9])
seen = np.setdiff1d(np.arange(10), unseen)
train_seen = train.only(seen)  # the part that has only these classes
fewer = Settings(n_train=52 * 64, epochs=12, **rates)  # as many updates as above
_, held_back = fixed_sets(validation.only(seen), n_validation, seed=1)
net = new_model()
train_on(train_seen, held_back, net, fewer)
names_seven = LogisticRegression(C=0.01, max_iter=1000)
names_seven = names_seven.fit(train_seen.features, train_seen.labels)

# %% tags=["shared"]
found_in, rule_in, named_in = {}, {}, {}
for name, classes in {"seen": seen, "unseen": unseen}.items():
    _, x = fixed_sets(test.only(classes), n_test, seed=4)
    found_in[name] = evaluate(net, odd_one_out, (x,))["accuracy"]
    rule_in[name], named_in[name] = rule(x), named(names_seven, x)
_, x = fixed_sets(test.only(unseen), n_test, seed=4)
all_seen = evaluate(model, odd_one_out, (x,))["accuracy"]

# %% tags=["shared", "say"]
rows = [["trained without them", *(f"{x:.1%}" for x in found_in.values())]]
rows.append(["baseline", *(f"{x:.1%}" for x in rule_in.values())])
rows.append(["regression without them", *(f"{x:.1%}" for x in named_in.values())])
rows.append(["trained on all ten classes", "", f"{all_seen:.1%}"])
unseen_names = ", ".join(names[c] for c in unseen)
say(table(["accuracy on sets of", "the seven", unseen_names], *rows))

# %% [markdown] tags=["shared"]
# The baseline, and the model of all ten classes, show how hard these sets are. On
# classes that it has never seen, the model still beats the baseline. But so does the
# regression, which cannot compare: if most trucks look to it like the same one of its
# seven classes, a wrong name will do. So success on new classes does not prove that
# they are compared. The model that has seen them is better, and the gap is what not
# having seen them costs. It differs with split and seed. If new classes will come up in
# your work, keep some out, and measure the gap, of the simplest rival too.

# %% tags=["shared", "check"]
# Checked: the model beats the baseline in unseen classes, but not the one that saw them
assert found_in["seen"] > rule_in["seen"] and named_in["unseen"] > rule_in["unseen"]
assert all_seen - 0.05 > found_in["unseen"] > rule_in["unseen"] + 0.05
assert fewer.updates == settings.updates

# %% [markdown] tags=["shared"]
# ## Your own data: features and classes are enough
#
# Nothing above is special to photos. You need a row of features for each element, and
# its class, as a whole number. Here they are 13 chemical measurements of wines, of
# three kinds of grape: which wine is not of the kind of the other nine? Put your arrays
# in place of those of `load_wine`:

# %% tags=["shared"]
from sklearn.datasets import load_wine

my_features, my_labels = load_wine(return_X_y=True)  # yours: floats n i, integers n
rows, held = train_test_split(
    np.arange(len(my_labels)), test_size=0.3, stratify=my_labels, random_state=1
)
mean, deviation = my_features[rows].mean(axis=0), my_features[rows].std(axis=0)
x = ((my_features - mean) / deviation).astype(np.float32)  # n i
my_train = sets.Part(x[rows], my_labels[rows])
my_test = sets.Part(x[held], my_labels[held])

# %% [markdown] tags=["shared"]
# Each feature is standardised, as yours may have different units, by the training part
# alone: test data must not take part in anything that is learned. In each part, a class
# needs `s - 1` elements. Few rows make small epochs, so we take more.

# %% tags=["shared"]
plan = Settings(
    n_train=len(rows), epochs=60, batch_size=32, learning_rate=1e-3, warmup=20
)
my_model = new_model(n_inputs=x.shape[1])
my_batches = sets_of(my_train, plan)
fit(my_model, odd_one_out, (my_train.features,), plan, batches=my_batches)
_, my_sets = fixed_sets(my_test, 1_000, seed=0)  # b s i
mine = evaluate(my_model, odd_one_out, (my_sets,))["accuracy"]
f"{mine:.1%} of the test sets, baseline {rule(my_sets):.1%}"

# %% [markdown] tags=["shared"]
# And a new set, whose odd one nobody knows? Standardise its features in the same way.
# (In the set below, place 9 would be right.)


# %% tags=["shared"]
def find_odd(model, x):
    """Place of the odd element in one set ``s i``, and its probability."""
    p = probabilities(model, x[None])[0]  # s
    return int(p.argmax()), float(p.max())


find_odd(my_model, my_sets[0])

# %% tags=["shared", "check"]
# Checked: on wines, too, the model beats the baseline
assert mine > rule(my_sets)

# %% [markdown] tags=["shared"]
# * Try the baseline first. It needs no classes and no training; if it is good enough,
#   stop. Then, if no new classes will come, a regression with `named`.
# * No classes? Make a class of everything that belongs together, such as all
#   measurements of one sample. A class may also be a mix of attributes: of faces, those
#   with glasses and a beard.
# * Photos? Take features of a trained network; `extract`, in an extra, does it.
# * Other sizes? Sets need not have ten elements, because nothing in the model depends
#   on their number. Change `s = 10` above, and the `s=10` of `draw_sets`.
# * For a program of your own, copy the folder `helpers`, the folded set-up, `s`,
#   `sizes` and the import of `train_test_split`; the functions `draw_sets`,
#   `fixed_sets`, `sets_of`, `from_the_others`, `rule`, `odd_one_out`, `new_model` and
#   `probabilities`; the class `SetModel`; and the cells of this section.

# %% [markdown] tags=["shared"]
# **Exercise 3, an open question.** A softmax over the set always points to some
# element, also in a set without an odd one. How could you use the trained `model` of
# the photos to say "there is none"? Try it on sets of ten photos of one class.

# %% tags=["shared", "answer"]
rng = np.random.default_rng(6)
same = np.stack(
    [rng.choice(100, s, replace=False) + 100 * (n % 10) for n in range(1000)]
)
assert (test.labels[same] == test.labels[same[:, :1]]).all()  # 100 photos a class
without_odd = probabilities(model, test.features[same]).max(axis=1)
with_odd = probabilities(model, sample).max(axis=1)
higher = (with_odd[:, None] > without_odd).mean()
say(f"""Say "none" if even the largest probability is low. Of a set with an odd one and
one without, the first has the larger one in **{higher:.0%}** of all pairs (guessing:
50%). But the model never saw a set without. Better give the softmax an eleventh logit,
the constant 0, for "none", and train on sets of both kinds.""")

# %% [markdown] tags=["shared"]
# ## Extra: No single head does it
#
# Which heads compare? First the mean of each head's map over 1,000 sets:

# %% mystnb={"image": {"alt": "Eight maps of ten by ten weights, one for each head of both layers, averaged over 1,000 sets."}} tags=["shared", "figure"]
means = maps.mean(axis=1).reshape(-1, s, s)  # l h as one axis
fig, axes = plots.panels_in_rows(8, 4, (7, 4.2), None, None)
for n, ax in enumerate(axes):
    drawn = ax.imshow(means[n], vmin=0, vmax=0.3, cmap="Blues")
    ax.set(title=f"layer {n // 4}, head {n % 4}", xticks=[0, 9], yticks=[0, 9])
    ax.grid(visible=False)
axes[4].set(xlabel="key k", ylabel="query q")
fig.colorbar(drawn, ax=list(axes), label="weight")
fig

# %% [markdown] tags=["shared"]
# No map says whether it matters. We remove the attention of a head, or of a layer with
# all its heads, by zeros in the rows of $W^O$ that belong to it:


# %% tags=["shared"]
def without(*heads):
    """Accuracy on the sample without some heads ``(layer, head)``: zeros in W^O."""
    arrays, d = to_arrays(model), 16  # m / n_heads
    for layer, head in heads:
        rows = slice(head * d, (head + 1) * d)
        arrays[f"encoder.blocks.{layer}.attention.out.weight"][rows] = 0
    other = new_model()
    from_arrays(other, arrays)
    return evaluate(other, odd_one_out, (sample,))["accuracy"]


layers = [without(*((i, j) for j in range(4))) for i in range(2)]
single = np.array([[without((i, j)) for j in range(4)] for i in range(2)])  # l h
cut = {"nothing": right["nothing"], "the head that matters most": single.min()}
cut["all attention of layer 0"], cut["all attention of layer 1"] = layers

# %% tags=["shared", "say"]
rows = [[name, f"{value:.1%}"] for name, value in cut.items()]
say(table(["what is removed", "accuracy"], *rows))

# %% [markdown] tags=["shared"]
# Without any one head the others of its layer still compare; without all of them, in
# the second layer, none does. Which of them the model needs differs with the seed.

# %% [markdown] tags=["shared"]
# ## Extra: With all photos it makes fewer mistakes
#
# What does the tutorial's size reach? We trained it once, in PyTorch, on two cores: on
# all 60,000 photos of CIFAR-10 (45,000 to train), with all 1,280 features of each. But
# for features and number of updates, its settings are those in the right column.
# [Program and record](../book/how-this-was-built.md).
#
# | setting | this page | the tutorial's, for CIFAR-100 |
# |---|---|---|
# | features | 64 of EfficientNet-Lite0 | 512 of ResNet34 |
# | size | 2 blocks, 4 heads, `m` 64, `f` 128 | 4 blocks, 4 heads, `m` 256, `f` 512 |
# | dropout | 0.1, also on the input | the same |
# | batch size, clipping | 64, 1 | the same |
# | peak rate, warm-up | `1e-3`, 50 updates | `5e-4`, 100 updates |
# | epochs | 8 of 78 updates | 100 of 703 updates |

# %% tags=["shared"]
run = recorded("odd-one-out")[-1]
isolated = {name: round(x["accuracy"], 3) for name, x in run["isolated"].items()}
print(f"{run['n_train']:,} photos to train, {run['updates']:,} updates")
print("accuracy if this is isolated:", isolated)

# %% mystnb={"image": {"alt": "Two panels over the updates of the recorded training. Left, the loss falls in training and in validation. Right, both accuracies rise, far above the level line of the baseline."}} tags=["shared", "figure"]
steps = run["every"] * (np.arange(run["updates"] // run["every"]) + 1)
large = {}
for what in ("loss", "accuracy"):
    large[what] = {
        "training": (steps, np.array(run[f"training_{what}"])),
        "validation": (steps, np.array(run[f"validation_{what}"])),
    }
level = np.full(len(steps), run["baseline"]["test"])
large["accuracy"]["baseline on test"] = (steps, level)
plots.curves(large, x="updates", size=(7, 2.8))

# %% tags=["shared", "say"]
shown = {"this page": accuracy, "**all photos**": run["accuracy"]}
shown["baseline, all photos"] = run["baseline"]
rows = [[what, *(f"{x:.1%}" for x in row.values())] for what, row in shown.items()]
rows.append(["the tutorial, CIFAR-100, JAX", "98.37%", "94.50%", "94.66%"])
rows.append(["the tutorial, CIFAR-100, PyTorch", "97.77%", "94.38%", "94.30%"])
say(table(["accuracy", *measured], *rows))

# %% [markdown] tags=["shared"]
# The last two rows are for other photos and features and for more epochs, so they show
# what the method reaches, not which model is better.

# %% [markdown] tags=["shared"]
# ## Extra: CIFAR-100 with ResNet34, as in the tutorial
#
# The tutorial does not take CIFAR-10, but CIFAR-100: a hundred classes teach more about
# what makes classes differ than ten, but need more photos than we want to ship. A
# ResNet34 ([He et al. 2016](https://arxiv.org/abs/1512.03385)), trained on ImageNet,
# turns each photo into 512 features, in PyTorch for both twins:


# %% tags=["torch"]
def extract(photos, weights=None):
    """Features of photos from a ResNet34: uint8 ``b y x 3 -> b 512``."""
    import torch
    from torchvision.models import ResNet34_Weights, resnet34

    net = resnet34(weights=weights).eval()  # None: random weights
    net.fc = torch.nn.Identity()  # no classifier: keep the 512 features
    usual = ResNet34_Weights.IMAGENET1K_V1
    prepare = usual.transforms(crop_size=224, resize_size=224)
    found = []
    with torch.inference_mode():
        for batch in torch.as_tensor(photos).split(100):
            x = batch.permute(0, 3, 1, 2) / 255  # b 3 y x
            found.append(net(prepare(x)))
    return torch.cat(found).numpy()


from sklearn.datasets import load_sample_images

extract(np.stack(load_sample_images().images)).shape  # two photos: b 512

# %% [markdown] tags=["torch"]
# Here its weights are random.

# %% [markdown] tags=["shared"]
# With a network connection, torchvision downloads the photos and the trained weights.
# 60,000 photos take a while on two cores, and much less on a GPU:
#
# ```python
# from torchvision.datasets import CIFAR100
#
# found = {}
# for part, is_training in {"train": True, "test": False}.items():
#     photos = CIFAR100("data", train=is_training, download=True)
#     x = extract(photos.data, "IMAGENET1K_V1")  # n 512
#     found[part] = sets.Part(x, np.array(photos.targets), photos.data)
# ```
#
# Then the mean of the training photos is subtracted, and all features are divided by
# the same number, their standard deviation. `make data PHOTOS=cifar100` does all this
# once and keeps the result. If the environment variable `PHOTOS` names photos that it
# has prepared, such as `cifar100` or a folder of yours, the tutorial's model learns
# them here. Two epochs of CIFAR-100 take minutes on a CPU; the tutorial trains for 100.


# %% tags=["shared"]
def learn_photos(source, updates=640):
    """Test accuracy of a model that is trained on photos, and of the baseline."""
    parts, _ = sets.photos(source, seed=42)
    n = len(parts["train"].labels)
    slow = {"batch_size": 64, "learning_rate": 5e-4, "warmup": 100}
    plan = Settings(n_train=n, epochs=max(2, updates * 64 // n), **slow)
    _, held_out = fixed_sets(parts["validation"], n_test, seed=42)
    _, measured = fixed_sets(parts["test"], n_test, seed=42)
    net = new_model(n_inputs=512, n_blocks=4, m=256, f=512)
    train_on(parts["train"], held_out, net, plan)
    return evaluate(net, odd_one_out, (measured,))["accuracy"], rule(measured)


# %% tags=["shared"]
import os

source = os.environ.get("PHOTOS", "")
if source and sets.features_file(source).exists():
    ours, theirs = learn_photos(source)
    print(f"{source}: {ours:.1%} of the test sets, baseline {theirs:.1%}")
elif source:
    print(f"{source} is not prepared: run make data PHOTOS={source}")

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Write the loss of this page, and its baseline, here with arrays of the framework, so
# that it has gradients. `check` tries each on random arrays, and says what is wrong.


# %% tags=["shared", "your-turn"]
def my_loss(logits):
    """Cross-entropy of finding the odd one, the last of each set: ``b s ->`` a number.

    The mean over the sets, as a 0-d array. Logits may be 1,000 and more.
    """
    ...


check("anomaly.loss", my_loss)


# %% tags=["shared", "your-turn"]
def my_from_the_others(x):
    """Distance of each element from the mean of the others: ``b s i -> b s``."""
    ...


check("anomaly.from_the_others", my_from_the_others)


# %% tags=["torch", "answer"]
def my_loss(logits):
    return -logits.log_softmax(dim=-1)[:, -1].mean()


def my_from_the_others(x):
    others = (x.sum(dim=1, keepdim=True) - x) / (x.shape[1] - 1)
    return (x - others).norm(dim=-1)


assert check("anomaly.loss", my_loss)
assert check("anomaly.from_the_others", my_from_the_others)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** From 5,000 photos one can draw far more sets than a training ever shows. Can
# the model overfit?
#
# <details><summary>No: it never meets the same set twice.</summary>
#
# **No.** New sets in every epoch look like endless data. But they are made of the same
# photos, again and again.
#
# </details>
# <details><summary>Only if the sets repeat, after many epochs.</summary>
#
# **No.** Repeated examples are the usual danger, so this sounds careful. Here it is the
# photos that repeat, and they do so from the first epoch on.
#
# </details>
# <details><summary>Yes, to the photos and their classes.</summary>
#
# **Right.** It can learn by heart which photo belongs to which class. This works for
# no new photo, and for no new class.
#
# </details>
#
# **2.** A model with dropout has a lower loss on validation data than in training. What
# do you think of first?
#
# <details><summary>Validation data have leaked into the training.</summary>
#
# **No.** Worth a look, but dropout alone already explains this order, and it is on in
# every such training.
#
# </details>
# <details><summary>Dropout is off in validation.</summary>
#
# **Right.** In training, parts of the model are missing. And its loss is often a mean
# over an epoch, in which the model has still been improving.
#
# </details>
# <details><summary>The model is too small.</summary>
#
# **No.** A small model underfits, and then both losses are high, and about equal. That
# is no reason for this order.
#
# </details>
#
# **3.** In every set, all weights of a head are equal. Can this head help to find the
# odd one?
#
# <details><summary>Yes: it gives each element the mean of the set.</summary>
#
# **Right.** Something to compare with is what an element needs. Later layers see it
# beside the element itself, which the residual connection carries.
#
# </details>
# <details><summary>No: it prefers nothing, so it tells nothing.</summary>
#
# **No.** We look for bright cells in a map, so a flat one seems empty. But even a plain
# mean brings information about the others.
#
# </details>
# <details><summary>No: all outputs of the head are the same.</summary>
#
# **No.** They are, and so seem to tell nothing apart. But the elements differ, and so
# do their distances to this mean.
#
# </details>
#
# **4.** Removing any single head of a layer costs next to nothing, removing the whole
# layer most of the accuracy. How do you find out which heads do the work?
#
# <details><summary>Take the head with the brightest map.</summary>
#
# **No.** A map shows where information may flow, not whether it matters. And you have
# removed this head, too.
#
# </details>
# <details><summary>Remove them in pairs, then in larger groups.</summary>
#
# **Right.** Any one can be spared while another does its work. What they share shows
# when both are gone.
#
# </details>
# <details><summary>Train again with a single head in this layer.</summary>
#
# **No.** Worth trying, to make the model smaller. But it is another model, and says
# nothing about the heads of this one.
#
# </details>
#
# **5.** On sets of classes that it was not shown, a model often fails. How do you see
# whether these sets are hard in themselves?
#
# <details><summary>By its accuracy on sets of the classes it was shown.</summary>
#
# **No.** A high one does show that the model has learned something. But those are other
# sets, and perhaps easier ones.
#
# </details>
# <details><summary>By training it again with another seed.</summary>
#
# **No.** That tells luck from rule, a good habit. A second model would fail on hard
# sets and on new classes alike.
#
# </details>
# <details><summary>By a baseline, on the same sets.</summary>
#
# **Right.** A rule that was shown no class, or a model that was shown all of them: if
# they succeed, the sets can be solved.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Split first, then draw sets. Measure a baseline before the model, and if there are
#   labels, a rival that recognises.
# * Without positions an encoder is equivariant: it cannot use the order.
# * Attention can compare; whether it does must be tested: cut connections, look at the
#   mistakes.
# * Accuracy on the classes of the training says little about new ones: keep some out of
#   training, and measure.

# %% [markdown] tags=["torch"]
# Next comes [pictures as sequences, in PyTorch](vision_torch.ipynb). On the way to a
# language model you can go on with [a model that writes](decoder_torch.ipynb).
