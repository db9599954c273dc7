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
# # Finding the odd one out
#
# By the end you can train a Transformer on sets, show that it does not know their
# order, beat a baseline that needs no training, read the attention maps and the
# mistakes, and say how far it carries beyond what it was trained for. You need: the
# chapters on the encoder and on the reverse task.

# %% [markdown] tags=["torch"]
# This page speaks **PyTorch**. The same page in JAX: [anomaly_jax](anomaly_jax.ipynb).
# Before it comes [the reverse task, in PyTorch](reverse_torch.ipynb).

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
import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from helpers import plots, sets, twin, viewer
from helpers import settings as tasks
from helpers.model_torch import Predictor, attention_maps, build
from helpers.runs import runs_folder
from helpers.shapes import as_numpy, check_shape
from helpers.train_torch import evaluate, fit
from helpers.weights import save_weights

# %% [markdown] tags=["torch"]
# Python runs the loop here, and what it does for an image it does for every element of
# every set. So the sets of an epoch will be drawn beforehand, as one array of row
# numbers.

# %% tags=["torch"]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
plots.use_style()
tensor = partial(torch.as_tensor, dtype=torch.float32, device=device)
boolean = partial(torch.as_tensor, dtype=torch.bool, device=device)
side, other_side = "torch", "jax"
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## A set has no order, so the answer must not depend on one
#
# Ten pictures: nine show things of one kind, one shows something else. Which one?
# Whoever shuffles the pictures shuffles the answer along; nothing else may change. A
# function that behaves like this is **equivariant** under permutations, and the chapter
# on attention has shown one: attention without positions. Networks for sets were built
# around this property ([Vinyals et al. 2015](https://arxiv.org/abs/1511.06391), [Zaheer
# et al. 2017](https://arxiv.org/abs/1703.06114), [Lee et al.
# 2019](https://arxiv.org/abs/1810.00825)).
#
# The page has two sources of pictures. Small handwritten digits come with scikit-learn
# and need no download. If `make data` has prepared the photos of CIFAR-100, the page
# takes these: each photo then goes in as 512 numbers, its **features**, which a network
# trained on another, much larger collection of photos (ResNet34 on ImageNet) has
# computed once for all. None of them is negative, so the mean of the training photos is
# subtracted: what all photos share tells nothing about the odd one. A digit's features
# are its grey values; all digits, those of the test too, come from the same thirteen
# writers. On a CPU the photos are gone through only twice, and less is promised.

# %% tags=["shared"]
source = sets.source()
settings = tasks.anomaly(source, device)
parts, names = sets.load(settings)
for part in parts.values():
    check_shape(part.features, "r i", r=len(part), i=settings.n_features)
sizes = {name: len(part) for name, part in parts.items()}
print(
    f"source: {source}, {len(names)} classes, {settings.epochs} epochs; images: {sizes}"
)

# %% tags=["shared"] mystnb={"image": {"alt": "Four rows of ten small pictures. In each row nine show the same kind of thing; the tenth, in a frame, shows another."}}
train, test = parts["train"], parts["test"]
s = settings.set_size
test_sets = sets.fixed(test.labels, s, settings.n_test, seed=settings.seed)  # n s
kinds = test.labels[test_sets[:4]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
plots.pictures(test.images[test_sets[:4]], titles=titles, odd=np.full(4, s - 1))

# %% [markdown] tags=["shared"]
# The odd one always stands last. That looks like giving the answer away; a later
# section proves that the model cannot use it.

# %% tags=["shared"]
kinds = test.labels[test_sets]  # n s
assert (kinds[:, :-1] == kinds[:, :1]).all()
assert (kinds[:, -1] != kinds[:, 0]).all()
assert (np.diff(np.sort(test_sets, axis=1)) > 0).all()  # no picture twice

# %% [markdown] tags=["shared"]
# ## Every visit draws new sets
#
# How many examples are there? The pictures are few, the sets made of them are many. So
# each epoch draws new ones. A picture is the odd one of at most one set of an epoch;
# for each odd one another class is drawn, and then nine different pictures of that
# class. Validation and test sets are drawn once, from fixed seeds, so that all measure
# the same.
#
# A set is a row of row numbers. The sets of an epoch are one array with axes update,
# set of the batch, element.

# %% tags=["shared"]
batches = sets.drawn(train.labels, settings)
first, second = batches(0), batches(1)  # n b s
n, b = settings.updates_per_epoch, settings.batch_size
check_shape(first, "n b s", n=n, b=b, s=s)
assert len(np.unique(first[..., -1])) == n * b  # each is the odd one once
both = set(map(bytes, np.sort(first).reshape(-1, s)))
both &= set(map(bytes, np.sort(second).reshape(-1, s)))
assert not both  # no set came back
f"{n * b:,} sets in an epoch, of {len(train):,} pictures"

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** There are $c$ classes of $r$ pictures each. How many
# different sets of ten are there? Compare with the number of sets that the training
# shows.

# %% tags=["shared", "answer"]
r = len(train) // len(names)
possible = len(train) * (len(names) - 1) * math.comb(r, s - 1)
shown = settings.epochs * n * b
assert possible > 1e9 * shown
f"about {possible:.0e} sets, {shown:,} of them shown"

# %% [markdown] tags=["shared"]
# ## A baseline needs no training
#
# Before we train anything: how far does one get without? The odd one should lie far
# from the rest. So for each element $x_i$ of a set of $s$ take the mean of the others,
# and choose the one that is farthest from it:
#
# $$\hat\imath = \arg\max_i \Big\| x_i - \frac{1}{s-1} \sum_{j \neq i} x_j \Big\|.$$
#
# A model that is not better than this has learned nothing worth its training.


# %% tags=["shared"]
def farthest(x):
    """The element farthest from the mean of the others: ``b s i -> b``."""
    others = (x.sum(axis=1, keepdims=True) - x) / (x.shape[1] - 1)
    return np.linalg.norm(x - others, axis=-1).argmax(axis=-1)


# %% tags=["shared"]
chosen = farthest(test.features[test_sets])
one = test.features[test_sets[0]]
others = [np.delete(one, i, axis=0).mean(axis=0) for i in range(s)]
distance = [np.linalg.norm(x - mean) for x, mean in zip(one, others, strict=True)]
assert chosen[0] == np.argmax(distance)
baseline = (chosen == s - 1).mean()
assert baseline > 2 / s  # guessing finds one in s
print(f"baseline accuracy: {baseline:.2%}")

# %% [markdown] tags=["shared"]
# ## One logit per element, and no positions
#
# The model is the predictor of the encoder chapter, without positions and with one
# output per element. A softmax over the set turns these logits $z_1 \dots z_s$ into
# probabilities of being the odd one, and the loss is the cross-entropy of the last
# place, averaged over the sets:
#
# $$\mathrm{loss} = -\ln \frac{e^{z_s}}{\sum_{i=1}^{s} e^{z_i}}.$$


# %% tags=["torch"]
def odd_one_out(model, x):
    """Cross-entropy and accuracy of finding the odd one, which stands last."""
    logits = model(x).squeeze(-1)  # b s
    log_p = torch.log_softmax(logits, dim=-1)
    last = x.shape[1] - 1
    accuracy = (logits.argmax(-1) == last).float().mean()
    return -log_p[:, last].mean(), {"accuracy": accuracy}


# %% tags=["shared"]
model = build(Predictor, seed=settings.seed, **settings.model)
sample = test.features[test_sets[:200]]  # b s i


def probabilities(model, x):
    """What the model gives to each element, with dropout off: ``b s i -> b s``."""
    logits = as_numpy(attention_maps(model, tensor(x))[0])[..., 0]
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


p = probabilities(model, sample)
loss = evaluate(model, odd_one_out, (sample,))["loss"]
np.testing.assert_allclose(loss, -np.log(p[:, -1]).mean(), rtol=1e-5)
assert abs(loss - np.log(s)) < 0.5  # untrained: not far from guessing
f"loss {loss:.3f}, guessing {np.log(s):.3f}"

# %% [markdown] tags=["shared"]
# **The last place gives nothing away.** Write $P$ for a permutation of the elements.
# Attention without positions obeys $F(PX) = P\,F(X)$, as its chapter showed; embedding,
# norms, feed-forward net and output treat each element alone, so they do, too; and so
# does one such function after another, whatever the weights. Dropout draws its zeros
# alike for all places. So a set with the odd one at its end and the same set in any
# other order are one and the same example, and there is nothing to learn from the
# place.

# %% tags=["shared"]
order = np.random.default_rng(0).permutation(s)
moved = probabilities(model, sample[:, order])
np.testing.assert_allclose(moved, p[:, order], atol=1e-5)
place = int(np.flatnonzero(order == s - 1)[0])  # where the odd one is now
np.testing.assert_allclose(-np.log(moved[:, place]).mean(), loss, rtol=1e-5)
assert place != s - 1
f"the odd one is at place {place} now; the loss is the same"

# %% [markdown] tags=["shared"]
# ## It finds the odd one
#
# Training is `fit` of the chapter on the reverse task: the features lie on the device,
# a batch is an array of row numbers, and the best weights are kept by validation
# accuracy. Dropout is on, also on the features: there are few pictures, and the model
# could learn each by heart.


# %% tags=["shared"]
def fixed_sets(part, n, seed, set_size=s):
    """Features of sets to measure on: ``n s i``."""
    return part.features[sets.fixed(part.labels, set_size, n, seed)]


validation = (fixed_sets(parts["validation"], settings.n_validation, seed=1),)
folder = runs_folder(f"anomaly_{source}_{side}")
history = fit(
    model, odd_one_out, (train.features,), settings,
    batches=batches, validation=validation, folder=folder,
)  # fmt: skip
sets_of_train = (fixed_sets(train, settings.n_test, seed=2),)
on_train = evaluate(model, odd_one_out, sets_of_train)["accuracy"]
on_validation = evaluate(model, odd_one_out, validation)["accuracy"]
on_test = evaluate(model, odd_one_out, (test.features[test_sets],))["accuracy"]

# %% tags=["shared"]
print(f"train accuracy: {on_train:.2%}")
print(f"validation accuracy: {on_validation:.2%}")
print(f"test accuracy: {on_test:.2%}")
print(f"baseline accuracy: {baseline:.2%}")
print(f"seconds of training: {history['seconds'].sum():.1f}")
assert on_test > settings.least_accuracy
assert on_test > baseline + settings.least_gain

# %% [markdown] tags=["shared"]
# On pictures that it has never seen the model beats the baseline. Where it is better on
# the training sets than on those of the test, it goes by what does not carry over to
# new pictures.
#
# For scale, the University of Amsterdam published, for the test sets of CIFAR-100 after
# 100 epochs (tutorial 6),
# [94.66 % with JAX](https://uvadlc-notebooks.readthedocs.io/) and
# [94.30 % with PyTorch](https://uvadlc-notebooks.readthedocs.io/).

# %% tags=["shared"] mystnb={"image": {"alt": "Two panels over the epochs. Left: the loss in training, with dropout, and in validation. Right: both accuracies, and the baseline as a level line."}}
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

# %% [markdown] tags=["shared"]
# **The trained model does not know the order either**, to rounding: each set in an
# order of its own, the answers move along.

# %% tags=["shared"]
rng = np.random.default_rng(1)
orders = np.argsort(rng.random((len(sample), s)), axis=1)  # b s
p = probabilities(model, sample)
moved = probabilities(model, np.take_along_axis(sample, orders[:, :, None], axis=1))
gap = np.abs(moved - np.take_along_axis(p, orders, axis=1)).max()
assert gap < 1e-5
f"largest difference: {gap:.1e}"

# %% [markdown] tags=["shared"]
# ## Who looks at whom
#
# In every layer and head each element spreads a weight of 1 over the set. Here are the
# maps of three sets, on a scale up to one half; the odd one is the last column and the
# last row. Choose a picture, and see whom it looks at; then another layer and head.

# %% tags=["shared"]
_, maps = attention_maps(model, tensor(sample))
maps = as_numpy(maps)  # l b h q k
shown = test_sets[:3]  # b s
viewer.attention(
    maps[:, :3],
    [[names[kind] for kind in row] for row in test.labels[shown]],
    pictures=test.images[shown],
    sequences=["first set", "second set", "third set"],
    about="Attention maps of three sets of ten pictures, the last of which is odd",
    high=0.5,
    layer=len(maps) - 1,
    query=s - 1,
)

# %% [markdown] tags=["shared"]
# Does the odd one get more than its share? Compare like with like: what it gets from
# the others with what one of the nine gets from another of them, and what it gives to
# itself with what one of the nine gives to itself. A ratio of 1 means that a head makes
# no difference.

# %% tags=["shared"]
m = maps.mean(axis=1)  # l h q k
own = np.eye(s - 1, dtype=bool)
alike = m[..., :-1, :-1]
from_others = m[..., :-1, -1].mean(axis=-1) / alike[..., ~own].mean(axis=-1)  # l h
from_itself = m[..., -1, -1] / alike[..., own].mean(axis=-1)
for name, ratios in {"others": from_others, "itself": from_itself}.items():
    for layer, row in enumerate(ratios):
        print(f"{name}, layer {layer}:", *(f"{ratio:.2f}" for ratio in row))
assert np.abs(np.log2(from_others)).max() > np.log2(1.1)

# %% [markdown] tags=["shared"]
# At least one head tells the odd one from the others: on average over two hundred sets
# it gives it more than a tenth more than each of them, or a twelfth less. Such a head
# has found it, or collects what the others have in common; the maps alone do not say which.
#
# **Exercise 2, a change of code.** What is left if no element may look at another? Hand
# the model a mask in which each sees only itself, and predict its accuracy. What is the
# most that any model could reach under this mask?

# %% tags=["shared", "answer"]
alone = np.eye(s, dtype=bool)  # q k
logits, _ = attention_maps(
    model, tensor(test.features[test_sets[:1000]]), boolean(alone)
)
blind = (as_numpy(logits)[..., 0].argmax(axis=-1) == s - 1).mean()
# Each element then has a score of its own, and only the scores are compared. A score
# that ranks the classes is right when the odd one's class stands higher, and wrong when
# the two change places: one half is the most, whatever the model.
assert blind < baseline
f"accuracy without looking at others: {blind:.1%}, guessing: {1 / s:.1%}"

# %% [markdown] tags=["shared"]
# ## Where it is wrong
#
# The mistakes on the test sets, those first in which the model was surest. The numbers
# are its probabilities in percent.

# %% tags=["shared"] mystnb={"image": {"alt": "Rows of ten pictures with a percentage below each. A solid frame marks the odd one, a dashed frame the one that the model chose instead."}}
p = probabilities(model, test.features[test_sets])
guess = p.argmax(axis=1)
wrong = np.flatnonzero(guess != s - 1)
worst = wrong[np.argsort(-p[wrong, guess[wrong]])][:4]
captions = [[f"{value:.0%}" for value in row] for row in p[worst]]
kinds = test.labels[test_sets[worst]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
plots.pictures(
    test.images[test_sets[worst]], captions=captions, titles=titles,
    odd=np.full(len(worst), s - 1), chosen=guess[worst],
)  # fmt: skip

# %% [markdown] tags=["shared"]
# What do they have in common? On average the model is less sure where it is wrong than
# where it is right. And where it is wrong, the true one comes second at least twice as
# often as chance would put it there.

# %% tags=["shared"]
sure = p.max(axis=1)
right = np.setdiff1d(np.arange(len(p)), wrong)
second_choice = np.argsort(-p[wrong], axis=1)[:, 1] == s - 1
assert sure[wrong].mean() < sure[right].mean()
assert second_choice.mean() > 2 / (s - 1)
print(f"{len(wrong)} of {len(p)} sets are answered wrongly")
print(
    f"sure: {sure[right].mean():.0%} where right, {sure[wrong].mean():.0%} where wrong"
)
print(f"the true one came second in {second_choice.mean():.0%} of the mistakes")

# %% [markdown] tags=["shared"]
# ## Beyond what it was trained for
#
# **Classes it has never seen.** Has the model learned to compare, or to tell the
# classes apart by name? Train a second model on some of the classes only, for half the
# epochs, and test it on the others, of which training shows it not a single picture.
# (The mean that is subtracted from photos is that of all classes.) The model from
# above, which knows all classes, answers the same sets. Predict: will the second one
# beat the baseline there?

# %% tags=["shared"]
n_seen = len(names) - settings.n_unseen
known, unknown = np.arange(n_seen), np.arange(n_seen, len(names))
few = train.only(known)
fewer = replace(settings, n_train=len(few), epochs=-(-settings.epochs // 2))
model_few = build(Predictor, seed=settings.seed, **fewer.model)
held = parts["validation"].only(known)
fit(
    model_few, odd_one_out, (few.features,), fewer,
    batches=sets.drawn(few.labels, fewer),
    validation=(fixed_sets(held, settings.n_validation, seed=3),),
)  # fmt: skip
found = {}
for name, classes in {"seen": known, "unseen": unknown}.items():
    x = fixed_sets(test.only(classes), settings.n_test // 2, seed=4)
    found[name] = evaluate(model_few, odd_one_out, (x,))["accuracy"]
    found[f"{name}, all known"] = evaluate(model, odd_one_out, (x,))["accuracy"]
    found[f"{name}, baseline"] = (farthest(x) == s - 1).mean()

# %% tags=["shared"]
for name, accuracy in found.items():
    print(f"{name:>17}: {accuracy:.1%}")
lost = {kind: found[f"{kind}, all known"] - found[kind] for kind in ("seen", "unseen")}
print(f"lost: {lost['seen']:.1%} on seen classes, {lost['unseen']:.1%} on unseen ones")
assert found["seen"] > found["seen, baseline"]
assert lost["unseen"] > max(lost["seen"], 0)
assert found["unseen"] > 1 / s

# %% [markdown] tags=["shared"]
# The first model knows all classes and answers the same sets. What the second one loses
# against it is therefore no matter of how hard these sets are, and it loses more where
# the classes are new. So part of what is learned belongs to the classes, not to the
# task. How large that part is, the lines say. With few classes in training it is enough
# to tell these apart.
#
# **Larger and smaller sets.** Nothing in the model depends on the number of elements.
# It was trained on sets of ten; here are sets of other sizes.

# %% tags=["shared"] mystnb={"image": {"alt": "Accuracy over the size of the set, from three to twenty, for the model, the baseline and guessing."}}
lengths, by_length = [3, 5, 10, 15, 20], {"model": [], "baseline": [], "guessing": []}
for length in lengths:
    x = fixed_sets(test, settings.n_test // 2, seed=5, set_size=length)
    by_length["model"].append(evaluate(model, odd_one_out, (x,))["accuracy"])
    by_length["baseline"].append((farthest(x) == length - 1).mean())
    by_length["guessing"].append(1 / length)
lines = {name: (lengths, values) for name, values in by_length.items()}
plots.curves({"": lines}, x="elements in the set", y="accuracy", marks="o", size=(5, 3))

# %% tags=["shared"]
at = {length: place for place, length in enumerate(lengths)}
model_at, baseline_at = by_length["model"], by_length["baseline"]
for length in (5, 20):
    assert model_at[at[length]] > baseline_at[at[length]]
print({n: f"{value:.1%}" for n, value in zip(lengths, model_at, strict=True)})

# %% [markdown] tags=["shared"]
# In sets of five and of twenty it still beats the baseline.
#
# **Two odd ones.** The softmax was trained to give all its weight to one element. What
# if there are two? We ask for the two largest probabilities, once with two odd ones of
# the same class, and once of two classes.


# %% tags=["shared"]
def with_two(same, n=1000):
    """Sets of ``s`` that end with two odd ones, of one class or of two: ``n s i``."""
    rng = np.random.default_rng(6)
    pairs = rng.integers(len(test), size=(200 * n, 2))
    kinds = test.labels[pairs]
    fits = (kinds[:, 0] == kinds[:, 1]) == same
    pairs = pairs[fits & (pairs[:, 0] != pairs[:, 1])][:n]
    assert len(pairs) == n
    return test.features[sets.draw_sets(test.labels, s, pairs, rng)]


both_found = {}
for name, same in {"of one class": True, "of two classes": False}.items():
    top = np.argsort(probabilities(model, with_two(same)), axis=1)[:, -2:]
    both_found[name] = (top >= s - 2).all(axis=1).mean()
by_chance = 1 / math.comb(s, 2)
assert min(both_found.values()) > 5 * by_chance
print({name: f"{share:.1%}" for name, share in both_found.items()}, f"{by_chance:.1%}")

# %% [markdown] tags=["shared"]
# Both are found more than five times as often as by chance (the last number), though
# the model has never seen such a set.
#
# **Exercise 3, open.** A set may have no odd one at all. What does the model say then,
# and how would you change model or training so that it can answer "none"?

# %% tags=["shared", "answer"]
rng = np.random.default_rng(7)
kinds = rng.choice(test.labels, 300)
alike = [rng.choice(np.flatnonzero(test.labels == kind), s, False) for kind in kinds]
unsure = probabilities(model, test.features[np.array(alike)]).max(axis=1)
# It is less sure than where there is an odd one, but it points at somebody. One way
# out: one more logit, learned, that stands for "none", and such sets in the training.
assert 1 / s < unsure.mean() < sure.mean()
f"largest probability: {unsure.mean():.0%}, with an odd one {sure.mean():.0%}"

# %% [markdown] tags=["shared"]
# ## Both frameworks follow the same curve
#
# From the same initial weights and with the same sets JAX and PyTorch compute the same
# training. Dropout, which each draws in its own way, has to be off. And training
# magnifies rounding: where the loss falls steeply, a difference in the last digit is
# soon one in the second. So the comparison takes larger batches and a lower rate than
# the training above. Two hundred updates, the other framework in a process of its own.

# %% tags=["shared"]
n = min(settings.n_train // 128, 50)  # updates in an epoch, of 200 in all
gentle = {
    "batch_size": 128,
    "learning_rate": 5e-5,
    "warmup": 50,
    "dropout": 0.0,
    "input_dropout": 0.0,
}
same = replace(settings, n_train=128 * n, epochs=200 // n, **gentle)
initial = Path(tempfile.mkdtemp()) / "initial.safetensors"
ours = build(Predictor, seed=settings.seed, **same.model)
save_weights(ours, initial)
rows = train.take(np.arange(same.n_train))
drawn = sets.drawn(rows.labels, same)
here = fit(ours, odd_one_out, (rows.features,), same, batches=drawn)["loss"]
there = twin.losses(other_side, same, initial)
gap = np.abs(here / there - 1)
assert len(gap) == 200 and 0 < gap.max() < 1e-3
assert here[-20:].mean() < 0.9 * here[0]  # it has begun to learn
f"largest relative gap over {len(gap)} updates: {gap.max():.1e}"

# %% [markdown] tags=["shared"]
# ## What to take along
#
# * Without positions an encoder is a function on sets: it cannot know the order,
#   whatever its weights.
# * Draw new sets at each visit; keep those fixed on which you measure.
# * Compare with what needs no training, and look at the mistakes.
# * What a model has learned may carry over to sets of another size or with two odd
#   ones, and fail on classes it has not seen: measure it.
