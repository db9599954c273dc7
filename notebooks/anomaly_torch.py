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
# By the end you can train a Transformer on sets, show that it ignores their order,
# compare it with a baseline, test which of its connections matter, and find out whether
# it has learned the task or only the classes it was shown. You need: the encoder, the
# reverse task and warm-up.
#
# Nine birds and a fox: you see the odd one at once, even if you do not know the names
# of the animals. Among nine foxes, the odd one would be the bird. So whether a picture
# is odd depends on the others of its *set*, and a classifier that judges each picture
# alone cannot tell. Attention *can* compare them; whether it does must be tested. The
# same question arises when one of several measurements may be contaminated.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [anomaly_jax](anomaly_jax.ipynb).
# Before it comes [warm-up, in PyTorch](warmup_torch.ipynb). It trains with the loop of
# [the reverse task](reverse_torch.ipynb). The later chapters do not need it.

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
import itertools
import math
import tempfile
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from helpers.data import sets
from helpers.engine import twin
from helpers.engine.runs import runs_folder
from helpers.engine.shapes import (  # as_numpy(): the way back to NumPy
    as_numpy,
    check_shape,
)
from helpers.engine.weights import save_weights
from helpers.show import plots, viewer
from helpers.show.diagrams import anomaly as diagrams
from helpers.show.prose import power, say, table  # say() prints sentences
from helpers.torch import (
    Predictor,
    attention_maps,
    build,
    evaluate,
    fit,
    full_float32,
)

# %% tags=["torch", "experiment"]
# Experiment: device, style, and the short names floats and booleans
device = "cuda" if torch.cuda.is_available() else "cpu"
plots.use_style()
build = partial(build, device=device)  # models are made on this device
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
booleans = partial(torch.as_tensor, dtype=torch.bool, device=device)
framework, other_framework = "torch", "jax"
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## Split the pictures first, then draw sets
#
# Our pictures are scikit-learn's handwritten digits, or photos that `make data` has
# prepared: CIFAR-100, or yours. We split the *pictures* first: if we split sets
# instead, test sets would contain pictures from the training. Each part has the same
# share of every class.

# %% tags=["shared"]
source = sets.source()
known = source in sets.KNOWN  # else results are reported, but nothing is asserted
settings = sets.settings_for(source, device)
parts, names = sets.load(settings)
train, validation, test = parts["train"], parts["validation"], parts["test"]
s = settings.set_size
test_sets = sets.fixed(test.labels, s, settings.n_test, seed=settings.seed)  # n s

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Four rows of ten small pictures. In each row nine show the same kind of thing; the tenth, in a frame, shows another."}}
kinds = test.labels[test_sets[:4]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
plots.pictures(test.images[test_sets[:4]], titles=titles, odd=np.full(4, s - 1))

# %% [markdown] tags=["shared"]
# A set is stored as row numbers: nine different pictures of one class (fewer if yours
# are few) and, last, one picture of another.


# %% tags=["shared"]
def draw_set(labels, odd, rng, size=s):
    """Row numbers of a set: others of one class, then the odd one at the end."""
    other_classes = np.setdiff1d(labels, labels[odd])
    same_class = np.flatnonzero(labels == rng.choice(other_classes))
    return np.append(rng.choice(same_class, size - 1, replace=False), odd)


one_set = draw_set(train.labels, 0, np.random.default_rng(0))
[names[label] for label in train.labels[one_set]]

# %% [markdown] tags=["shared"]
# The odd one is always the last, in training as well; we shall see why this gives
# nothing away. `sets.drawn` draws new sets for each epoch, in which nearly every
# picture is the odd one once. Sets for validation and test are drawn only once.

# %% tags=["shared"]
batches = sets.drawn(train.labels, settings)  # a function of the epoch
first, second = batches(0), batches(1)  # row numbers, n b s
per_epoch = settings.updates_per_epoch * settings.batch_size

# %% tags=["shared", "say"]
rows = table(
    ["part", "pictures", f"sets of {s}"],
    ["training", f"{len(train):,}", f"{per_epoch:,} × {settings.epochs} epochs"],
    ["validation", f"{len(validation):,}", f"{settings.n_validation:,}"],
    ["test", f"{len(test):,}", f"{settings.n_test:,}"],
)
text = f"This run uses **{Path(source).name}**, {len(names)} classes."
if not known:
    kind = "ResNet34" if train.features.shape[1] == 512 else "mean colours only"
    text += (
        f" Features: {kind}. What the text of this page says is checked on digits; "
        "with other pictures, read the numbers."
    )
say(f"{text}\n\n{rows}")

# %% tags=["shared", "check"]
# Checked: nine of one class, the last of another, none twice; each epoch has new sets
check_shape(first, "n b s", n=settings.updates_per_epoch, b=settings.batch_size, s=s)
rng = np.random.default_rng(0)
by_hand = np.stack([draw_set(train.labels, odd, rng) for odd in range(len(train))])
np.testing.assert_array_equal(by_hand[0], one_set)
both = (test, test_sets), (train, by_hand), (train, first.reshape(-1, s))
for from_part, drawn in both:
    kinds = from_part.labels[drawn]  # n s
    assert (kinds[:, :-1] == kinds[:, :1]).all()
    assert (kinds[:, -1] != kinds[:, 0]).all()
    assert (np.diff(np.sort(drawn, axis=1)) > 0).all() and (s == 10 or not known)
assert len(np.unique(first[..., -1])) == per_epoch  # each picture is odd at most once
again = set(map(bytes, np.sort(first).reshape(-1, s)))
assert not again & set(map(bytes, np.sort(second).reshape(-1, s)))
counts = np.bincount(validation.labels)  # c
shares = counts / (counts + np.bincount(train.labels))
assert np.abs(shares - 0.1).max() < 0.008 or source != "digits"

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** Roughly how many sets of ten can be made of the training
# pictures, and what share of them does the model see? Count the choices for the odd
# one, for the class of the others, and for nine pictures of it.

# %% tags=["shared", "answer"]
in_class = len(train) // len(names)
possible = len(train) * (len(names) - 1) * math.comb(in_class, s - 1)
n_shown = settings.epochs * per_epoch
assert possible > 2e12 * n_shown or not known
say(
    f"There are {len(train):,} choices for the odd one, {len(names) - 1} for the class "
    f"of the others, and with {in_class} pictures in a class "
    f"$\\binom{{{in_class}}}{{{s - 1}}}$ for them: about **{power(possible)}** sets. "
    f"In training the model sees {n_shown:,}, a share of {power(n_shown / possible)}. "
    "It cannot memorise the sets, but it can memorise the pictures."
)

# %% [markdown] tags=["shared"]
# ## A baseline needs no training
#
# How hard is the task? To find out, try a rule that learns nothing. All it needs is
# numbers that describe a picture, its **features**: for a digit, its 64 grey values,
# divided by 16. (For photos, see the extra *Features of photos from a ResNet*.)

# %% tags=["shared", "say"]
within, between = sets.mean_distances(train.features, train.labels)
say(
    "Good features bring a class together: here the mean distance within a class is "
    f"{within / between:.2f} times that between classes."
)

# %% [markdown] tags=["shared"]
# For each element $x_i$ of a set of $s$, the rule takes the mean of the others, and
# chooses the element that is farthest from it:
#
# $$\hat\imath = \arg\max_i \Big\| x_i - \frac{1}{s-1} \sum_{j \neq i} x_j \Big\|.$$


# %% tags=["shared"]
def farthest(x):
    """The element farthest from the mean of the others: ``b s i -> b``."""
    others = (x.sum(axis=1, keepdims=True) - x) / (x.shape[1] - 1)
    return np.linalg.norm(x - others, axis=-1).argmax(axis=-1)


x_test = test.features[test_sets]  # n s i
chosen = farthest(x_test)
baseline = (chosen == s - 1).mean()

# %% tags=["shared", "say"]
say(
    f"The baseline finds the odd one in **{baseline:.1%}** of the test sets; guessing "
    f"finds it in {1 / s:.0%}. A model that does not beat it is not worth its training."
)

# %% tags=["shared", "check"]
# Checked: features of one class are closer; the rule is the formula and beats guessing
in_pixels = sets.mean_distances(train.images, train.labels)
step = np.roll(train.images[:1000] / 1.0, 1, axis=2) - train.images[:1000]  # b y x …
shift = np.sqrt((step**2).reshape(len(step), -1).sum(axis=1)).mean() / in_pixels[0]
assert within / between < (0.85 if source == "digits" else 1) or not known
assert within / between < in_pixels[0] / in_pixels[1] + 0.01 or not known
assert shift > 1.3 or source != "digits"
others = [np.delete(x_test[0], i, axis=0).mean(axis=0) for i in range(s)]
distance = [np.linalg.norm(x - mean) for x, mean in zip(x_test[0], others, strict=True)]
assert chosen[0] == np.argmax(distance)
assert baseline > (0.7 if source == "digits" else 2 / s) or not known

# %% [markdown] tags=["shared"]
# ## A set has no order
#
# Can a model find more? One doubt first: as the odd one is always the last, could the
# model learn "choose the last"? It cannot if shuffling the pictures of a set permutes
# the outputs in the same way and changes nothing else. A function $F$ with this
# property,
#
# $$F(PX) = P\,F(X) \quad \text{for every permutation } P \text{ of the rows of } X,$$
#
# is **equivariant** under permutations ([Zaheer et al.
# 2017](https://arxiv.org/abs/1703.06114)); [Lee et al.
# 2019](https://arxiv.org/abs/1810.00825) build such functions from attention. Our model
# is the `Predictor` of the positions chapter, without positions, with one output per
# element:

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "From top to bottom: a set of five pictures, four of them a 4 and one a 7; a dense layer for each element; the encoder, in which every element is connected with every other; one output per element; a softmax over the set, which gives the 7 a probability of 0.92 and the others 0.02 each."}}
diagrams.set_model()

# %% [markdown] tags=["shared"]
# A softmax over the set turns the logits $z_1 \dots z_s$ into probabilities of being
# the odd one. The loss is the cross-entropy of the last element:
#
# $$\mathrm{loss} = -\ln \frac{e^{z_s}}{\sum_{i=1}^{s} e^{z_i}}.$$


# %% tags=["torch"]
def odd_one_out(model, x):
    """Cross-entropy and accuracy of finding the odd one, the last of its set."""
    logits = model(x).squeeze(-1)  # b s
    log_p = torch.log_softmax(logits.float(), dim=-1)  # logits may be of half precision
    last = x.shape[1] - 1  # a tie counts as wrong: argmax takes the first
    accuracy = (logits.argmax(-1) == last).float().mean()
    return -log_p[:, last].mean(), {"accuracy": accuracy}


# %% [markdown] tags=["shared"]
# This model is equivariant, whatever its weights are: attention without positions is,
# and all other layers treat each element alone. We shuffle sets to see it:

# %% tags=["shared"]
model = build(Predictor, seed=settings.seed, **settings.model)


def probabilities(model, x):
    """Softmax over the set, with dropout off: ``b s i -> b s``."""
    chunks = [x[start : start + 1000] for start in range(0, len(x), 1000)]
    outputs = [as_numpy(attention_maps(model, floats(some))[0]) for some in chunks]
    logits = np.concatenate(outputs)[..., 0]
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


# %% tags=["shared"]
def reordering_gap(model, x, seed=0):
    """Largest change of an element's probability when each set is shuffled."""
    rng = np.random.default_rng(seed)
    orders = np.argsort(rng.random(x.shape[:2]), axis=1)  # b s
    after = probabilities(model, np.take_along_axis(x, orders[..., None], axis=1))
    before = np.take_along_axis(probabilities(model, x), orders, axis=1)
    return np.abs(after - before).max()


sample = x_test[:1000]  # b s i
with full_float32():
    untrained_gap = reordering_gap(model, sample)

# %% tags=["shared", "say"]
with full_float32():
    p = probabilities(model, sample)
    loss = evaluate(model, odd_one_out, (sample,))["loss"]
say(
    f"The largest change of a probability is **{power(untrained_gap)}**, which is "
    f"rounding. Before training the loss is {loss:.2f}; guessing costs $\\ln {s}$ = "
    f"{np.log(s):.2f}."
)

# %% tags=["shared", "check"]
# Checked: shuffling permutes the probabilities; the loss is -ln p, and ignores places
assert untrained_gap < 1e-5
np.testing.assert_allclose(loss, -np.log(p[:, -1]).mean(), rtol=1e-5)
assert abs(loss - np.log(s)) < (0.1 if source == "digits" else 0.5)
order = np.random.default_rng(0).permutation(s)
now_at = int(np.flatnonzero(order == s - 1)[0])  # where the odd one is now
assert now_at != s - 1
with full_float32():
    moved_loss = -np.log(probabilities(model, sample[:, order])[:, now_at]).mean()
np.testing.assert_allclose(moved_loss, loss, rtol=1e-5)

# %% [markdown] tags=["shared"]
# ## It finds the odd one
#
# So the place gives nothing away, and we can train, with `fit` of the reverse chapter,
# which keeps the weights with the best validation accuracy.

# %% tags=["shared", "say"]
sizes = f"{settings.n_blocks} blocks, {settings.n_heads} heads, "
sizes += f"`m` {settings.m}, `f` {settings.f}"
rows = [
    ["size", sizes, "quick on a CPU"],
    ["dropout", f"{settings.dropout}, also on the input", "few pictures"],
    ["batch size", settings.batch_size, "a smooth gradient"],
    ["peak rate", settings.learning_rate, "a small model"],
    ["warm-up", settings.warmup, "for high rates"],
    ["epochs", settings.epochs, "the validation accuracy hardly rises any more"],
]
for row in rows if source == "cifar100" else []:
    row[2] = "as published"
say(table(["setting", "value", "why"], *rows))


# %% tags=["shared"]
def fixed_sets(part, n, seed, set_size=s):
    """Features of sets to measure on: ``n s i``."""
    return part.features[sets.fixed(part.labels, set_size, n, seed)]


held_out = (fixed_sets(validation, settings.n_validation, seed=1),)
folder = runs_folder(f"anomaly_{Path(source).name}_{framework}")
history = fit(
    model, odd_one_out, (train.features,), settings,
    batches=batches, validation=held_out, folder=folder,
)  # fmt: skip

# %% tags=["shared", "experiment"]
# Experiment: the accuracy on sets of all three parts, and the mistakes in test sets
on_train = fixed_sets(train, settings.n_test, seed=2)
measured = {"training": on_train, "validation": held_out[0], "test": x_test}
accuracy = {
    name: evaluate(model, odd_one_out, (x,))["accuracy"] for name, x in measured.items()
}
p = probabilities(model, x_test)  # n s
guess, sure = p.argmax(axis=1), p.max(axis=1)  # the choice, and its probability
wrong, right = np.flatnonzero(guess != s - 1), np.flatnonzero(guess == s - 1)

# %% tags=["shared", "say"]
site = "https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/"
page = "tutorial6/Transformers_and_MHAttention.html"
ours = [f"**{value:.1%}**" for value in accuracy.values()]
plain = [f"{np.mean(farthest(x) == s - 1):.1%}" for x in measured.values()]
rows = table(
    ["accuracy", *measured, "time"],
    ["**this page**", *ours, f"{history['seconds'].sum():.0f} s, {device}"],
    ["baseline", *plain, ""],
)
margin = 100 * np.sqrt(accuracy["test"] * (1 - accuracy["test"]) / settings.n_test)
text = f"{rows}\n\nThe sets share pictures and are not independent, so the standard "
text += f"error of the test accuracy is at least {margin:.1f} points."
if source == "cifar100":
    text += (
        f" With 100 epochs, others report 94.66% in [JAX]({site}JAX/{page}) and 94.30% "
        f"in [PyTorch]({site}{page})."
    )
say(text)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Two panels over the epochs. Left: the loss falls in training and in validation. Right: both accuracies rise; the baseline is a level line."}}
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
fig = plots.curves(panels, x="epoch", size=(7, 2.8))
fig

# %% [markdown] tags=["shared"]
# Dropout is on in training only, which raises the loss there.

# %% tags=["shared", "check"]
# Checked: the model beats the baseline on test sets; as drawn, both accuracies rise
assert accuracy["test"] > settings.least_accuracy
assert accuracy["test"] > baseline + settings.least_gain or not known
losses = {name: plots.drawn(fig, "loss", name)[1] for name in panels["loss"]}
rates = {name: plots.drawn(fig, "accuracy", name)[1] for name in panels["accuracy"]}
level = rates.pop("baseline on test")
np.testing.assert_allclose(level, baseline)
for name in ("training", "validation") if known else []:
    assert losses[name][-1] < losses[name][0] and rates[name][-1] > rates[name][0]
if source == "digits":
    assert min(rates["training"][-1], rates["validation"][-1]) > level[0]
    assert losses["validation"][-1] < losses["training"][-1]

# %% tags=["shared", "say"]
say(
    f"The model is wrong in **{len(wrong)}** of {len(p):,} test sets. Here are the "
    "four in which it was most certain:"
)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Rows of ten pictures with a percentage below each. A solid frame marks the odd one, a dashed frame the one that the model chose instead."}}
worst = np.argsort(np.where(guess != s - 1, -sure, sure))[:4]  # mistakes first
captions = [[f"{value:.0%}" for value in row] for row in p[worst]]
kinds = test.labels[test_sets[worst]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
plots.pictures(
    test.images[test_sets[worst]], captions=captions, titles=titles,
    odd=np.full(len(worst), s - 1), chosen=guess[worst],
)  # fmt: skip

# %% [markdown] tags=["shared"]
# Does the framework matter? For forty updates at a low rate, the same training runs in
# the other one, from the same weights and without dropout, whose random numbers differ.

# %% tags=["shared", "experiment"]
# Experiment: the same training in the other framework
in_epoch = min(settings.updates_per_epoch, 40)
brief = {"dropout": 0.0, "input_dropout": 0.0, "learning_rate": 5e-5, "warmup": 10}
brief |= {"n_train": in_epoch * settings.batch_size, "epochs": 40 // in_epoch}
brief = replace(settings, **brief)
initial = Path(tempfile.mkdtemp()) / "initial.safetensors"
ours = build(Predictor, seed=settings.seed, **brief.model)
save_weights(ours, initial)
first_ones = train.take(np.arange(brief.n_train))
drawn_sets = sets.drawn(first_ones.labels, brief)
given = (first_ones.features,), brief
here = fit(ours, odd_one_out, *given, batches=drawn_sets)["loss"]
there = twin.losses(
    other_framework, Predictor, odd_one_out, *given, initial, drawn_sets
)
gap = np.abs(here / there - 1)

# %% tags=["shared", "say"]
alike_for = int(np.argmax([*(gap > 1e-3), True]))  # updates
say(
    "Both frameworks have the same loss to a thousandth for "
    f"{alike_for} updates; the largest relative difference is {power(gap.max())}."
)

# %% tags=["shared", "check"]
# Checked: both frameworks have the same losses; the model is still equivariant
assert len(gap) == brief.updates and gap.max() < 1e-3
with full_float32():
    assert reordering_gap(model, sample, seed=1) < 1e-5

# %% [markdown] tags=["shared"]
# ## Cutting connections shows which ones matter
#
# How does the model find the odd one? Perhaps by attending to it. So for each layer and
# head we divide the mean weight that the nine give to the odd one by the mean weight
# that they give to each other:

# %% tags=["shared"]
_, maps = attention_maps(model, floats(sample))
maps = as_numpy(maps)  # l b h q k
mean_map = maps.mean(axis=1)  # l h q k
to_odd = mean_map[..., :-1, -1].mean(axis=-1)  # l h
among = mean_map[..., :-1, :-1][..., ~np.eye(s - 1, dtype=bool)].mean(axis=-1)
ratios = to_odd / among  # l h

# %% tags=["shared", "say"]
layer, head = np.unravel_index(np.abs(np.log(ratios)).argmax(), ratios.shape)
say(
    f"**No head looks mostly at the odd one**: the nine give it {to_odd.max():.0%} of "
    f"their weight at most; equal weights would be {1 / s:.0%}. Over all heads the "
    f"ratio is between {ratios.min():.2f} and {ratios.max():.2f}. Here is the head "
    "where it is farthest from 1; the odd one is the last row and the last column."
)

# %% tags=["shared", "figure"]
three_sets = test_sets[:3]  # b s
viewer.attention(
    maps[:, :3],
    [[names[kind] for kind in row] for row in test.labels[three_sets]],
    pictures=test.images[three_sets],
    sequences=["first set", "second set", "third set"],
    about="Attention maps of three sets of ten pictures, the last one odd",
    high=0.5,
    layer=int(layer),
    head=int(head),
    query=0,
)

# %% [markdown] tags=["shared"]
# But a map shows where information may flow, not whether it matters. So cut a
# connection with a mask. Predict: which does more harm, hiding the odd one from the
# nine, or the nine from the odd one?


# %% tags=["shared"]
def accuracy_under(mask):
    """Accuracy on the sample if a mask ``q k`` (True = may look) cuts connections."""
    logits, _ = attention_maps(model, floats(sample), booleans(mask))
    return (as_numpy(logits)[..., 0].argmax(axis=-1) == s - 1).mean()


odd_alone = np.ones((s, s), dtype=bool)  # q k
odd_alone[-1, :-1] = False  # the odd one sees none of the nine
by_odd = accuracy_under(odd_alone)

# %% tags=["shared", "experiment"]
# Experiment: the other direction, and a control
nothing, odd_hidden, other_alone = np.ones((3, s, s), dtype=bool)
odd_hidden[:-1, -1] = False  # none of the nine sees the odd one
other_alone[0, 1:] = False  # control: the first of the nine sees only itself
full, by_nine, by_other = map(accuracy_under, (nothing, odd_hidden, other_alone))

# %% tags=["shared", "say"]
cut = {
    "nothing": full,
    "the nine do not see the odd one": by_nine,
    "the odd one does not see the nine": by_odd,
    "one of the nine sees only itself (control)": by_other,
}
rows = [[name, f"{value:.1%}"] for name, value in cut.items()]
say(
    f"{table(['what is cut', 'accuracy'], *rows)}\n\nSo the odd one itself finds out "
    "that it differs, by looking at the others; whether they look at it matters "
    "little. Isolation as such does no harm, as the control shows."
)

# %% tags=["shared", "check"]
# Checked: no head looks mostly at the odd one; isolating it costs more than other cuts
assert min(by_nine, by_other) > by_odd or not known
if source == "digits":
    assert to_odd.max() < 0.5
    assert min(by_nine, by_other) > 0.8 and by_odd < 0.5

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Give `accuracy_under` a mask in which *each* element
# sees only itself. Predict the accuracy. What is the most that any model could reach
# under this mask, if all classes are equally frequent?

# %% tags=["shared", "answer"]
blind = accuracy_under(np.eye(s, dtype=bool))
say(
    f"The accuracy falls to **{blind:.1%}** (guessing: {1 / s:.0%}, baseline: "
    f"{baseline:.1%}). Now each element gets its score without any comparison. Suppose "
    "that an A has a higher score than a B. Then the model is right for an A among "
    "nine Bs, and wrong for a B among nine As. Both kinds of sets are equally "
    "frequent, so **one half** is the most, for any model. Where some classes are more "
    "frequent, a model can gain a little by preferring those as the odd one."
)
assert (blind < 0.5 and blind < baseline) or not known

# %% [markdown] tags=["shared"]
# ## Unseen classes are the real test
#
# So the odd one compares itself with the others. But by what? The test had new
# *pictures*, yet of classes that training had shown. There a model can
#
# * **compare**: find what differs, whatever it is;
#
# * **recognise**: learn what each class looks like, and choose the class that occurs
#   once;
#
# * compare only those features that separate the trained classes.
#
# We cannot tell all these ways apart, but we can ask what matters in use: does it work
# for new classes? So we train without some classes, and test on sets of these alone. A
# small model is enough for this. Predict: will it beat the baseline?


# %% tags=["shared", "experiment"]
# Experiment: trained_on(view, unseen), a small model that some classes are hidden from
def trained_on(view, unseen, part=train, n=5_120):
    """A small model, trained on a view of ``n`` sets without the unseen classes."""
    # copies of class c may have the labels c + len(names), c + 2 * len(names), …
    seen = part.take(np.flatnonzero(~np.isin(part.labels % len(names), unseen)))
    given = view(fixed_sets(seen, n, seed=6))
    held_back = validation.only(np.setdiff1d(classes, unseen))
    held_back = view(fixed_sets(held_back, settings.n_validation, seed=3))
    changes = {"n_features": given.shape[-1], "n_train": n, "epochs": 2}
    changes |= {"m": 32, "f": 64, "dropout": 0.0, "input_dropout": 0.0}
    changed = replace(settings, **changes)
    net = build(Predictor, seed=settings.seed, **changed.model)
    fit(net, odd_one_out, (given,), changed, validation=(held_back,), bar=False)
    return net


# %% tags=["shared"]
def as_they_are(x):
    """Features as they are: ``b s i -> b s i``."""
    return x


classes, n_unseen = np.arange(len(names)), settings.n_unseen
n_splits = 3 if source == "digits" else 1
splits = [np.roll(classes, i * n_unseen)[-n_unseen:] for i in range(n_splits)]
nets = [trained_on(as_they_are, unseen) for unseen in splits]

# %% tags=["shared", "experiment"]
# Experiment: test each model on sets of seen and on sets of unseen classes
shape = n_splits, 2  # seen classes, unseen classes
found_without, found_with_all, found_by_rule = (np.empty(shape) for _ in range(3))
for i, unseen in enumerate(splits):
    for j, kinds in enumerate([np.setdiff1d(classes, unseen), unseen]):
        x = fixed_sets(test.only(kinds), settings.n_test // 2, seed=4)
        found_without[i, j] = evaluate(nets[i], odd_one_out, (x,))["accuracy"]
        found_with_all[i, j] = evaluate(model, odd_one_out, (x,))["accuracy"]
        found_by_rule[i, j] = np.mean(farthest(x) == s - 1)
places_of_bars = [f"unseen: {names[u[0]]} to {names[u[-1]]}" for u in splits]
places_of_bars.append("seen (mean)")
found = {
    "trained without the unseen": found_without,
    "trained with all (larger)": found_with_all,
    "baseline": found_by_rule,
}
heights = {name: [*x[:, 1], x[:, 0].mean()] for name, x in found.items()}


# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Bars of the accuracy, for sets of unseen classes in each split and for the mean over sets of seen classes; at each place one bar for the model trained without the unseen classes, one for the model trained with all, one for the baseline. Only in the sets of seen classes is the first bar about as high as the second."}}
def bars(groups, labels, **names):
    """Bars side by side at each label, one colour for each group."""
    fig, (ax,) = plots.panels_in_rows(1, None, (7, 3.2), (0, 0), (0, 0))
    places, width = np.arange(len(labels)), 0.8 / len(groups)
    for place, (name, heights) in enumerate(groups.items()):
        left = width * (place - (len(groups) - 1) / 2)
        drawn = ax.bar(places + left, heights, width, label=name)
        ax.bar_label(drawn, [f"{height:.0%}" for height in heights], size=8)
    ax.set(xticks=places, xticklabels=labels, ylim=(0, 1.08), **names)
    ax.grid(visible=False, axis="x")
    fig.legend(loc="outside lower center", ncols=len(groups))
    return fig


fig = bars(heights, places_of_bars, xlabel="classes in the sets", ylabel="accuracy")
fig

# %% tags=["shared", "say"]
mean, rule_mean = found_without[:, 1].mean(), found_by_rule[:, 1].mean()
say(
    f"In sets of unseen classes, **{mean:.0%}** of the odd ones are found on average; "
    f"the baseline, which has seen no class, finds {rule_mean:.0%}. The sets are not "
    "too hard, as the model of this page shows, which was trained with all classes. So "
    "the new models depend on the classes they were shown; a test on these alone would "
    f"have hidden it, for there they find {found_without[:, 0].mean():.0%}, and the "
    f"baseline {found_by_rule[:, 0].mean():.0%}."
)

# %% tags=["shared", "check"]
# Checked: on unseen classes it loses far more; with digits it falls below the baseline
drawn = [[bar.get_height() for bar in group] for group in fig.axes[0].containers]
np.testing.assert_allclose(drawn, list(heights.values()))
lost = (found_with_all - found_without).mean(axis=0)  # seen, unseen
assert not known or lost[1] > max(lost[0], 0)
if source == "digits":
    assert mean < 0.8 * rule_mean and found_with_all[:, 1].mean() > 0.9
    assert found_without[:, 0].mean() > found_by_rule[:, 0].mean()

# %% [markdown] tags=["shared"]
# ## A model that sees only distances has to compare
#
# A model can depend on classes because features say what an element looks like. So take
# that away. The first remedy subtracts from each element the mean of its set. In the
# second, each element gets only its sorted **distances** to the others, divided by the
# mean distance in the set. Distances can only be compared.


# %% tags=["shared"]
def differences(x):
    """Features minus the mean of the set: ``b s i -> b s i``."""
    return x - x.mean(axis=1, keepdims=True)


def distances(x):
    """Sorted distances to the others, relative to their mean: ``b s i -> b s s-1``."""
    d = [np.linalg.norm(x - x[:, [i]], axis=-1) for i in range(x.shape[1])]  # s b s
    others = np.sort(np.stack(d, axis=-1), axis=-1)[..., 1:]  # without the 0 to itself
    return others / others.mean(axis=(1, 2), keepdims=True) - 1


# %% [markdown] tags=["shared"]
# The control is the model of the section before, which is trained in the same way on
# plain features. To choose the remedy on the test sets would make the winner look too
# good; so *validation* pictures of the unseen classes choose, and only the winner is
# tested, beside the control.

# %% tags=["shared"]
views = {
    "features": as_they_are,  # the control
    "features minus the mean": differences,
    "distances only": distances,
}
small = {"features": nets}
for name in list(views)[1:]:
    small[name] = [trained_on(views[name], unseen) for unseen in splits]


# %% tags=["shared", "experiment"]
# Experiment: validation chooses a remedy, which is tested beside the control
def accuracy_on(part, net, view, n, seed):
    x = view(fixed_sets(part, n, seed))
    return evaluate(net, odd_one_out, (x,))["accuracy"]


on_validation = {}  # of each view
for name, view in views.items():
    pairs = zip(splits, small[name], strict=True)
    found = [accuracy_on(validation.only(u), n, view, 1000, seed=7) for u, n in pairs]
    on_validation[name] = np.mean(found)
control, *remedies = views
best = max(remedies, key=on_validation.get)
tested = {name: np.empty(shape) for name in (control, best)}  # split, seen or unseen
for name, (i, unseen) in itertools.product(tested, enumerate(splits)):
    for j, kinds in enumerate([np.setdiff1d(classes, unseen), unseen]):
        asked = test.only(kinds), small[name][i], views[name], settings.n_test // 2
        tested[name][i, j] = accuracy_on(*asked, seed=4)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Bars of the accuracy, for sets of unseen classes in each split and for the mean over sets of seen classes; at each place one bar for the small model with the features, one for the same model with the chosen remedy, one for the baseline."}}
beside = tested | {"baseline": found_by_rule}
heights = {name: [*x[:, 1], x[:, 0].mean()] for name, x in beside.items()}
fig = bars(heights, places_of_bars, xlabel="classes in the sets", ylabel="accuracy")
fig

# %% tags=["shared", "say"]
seen_now, unseen_now = tested[best].mean(axis=0)
seen_control, unseen_control = tested[control].mean(axis=0)
lead = 100 * (tested[best] - found_by_rule)[:, 1]  # points
p_odd = tested[best][lead.argmin(), 1]  # the accuracy with the smallest lead
error = 100 * np.sqrt(p_odd * (1 - p_odd) / (settings.n_test // 2))
validated = " and ".join(f"{on_validation[name]:.0%} with {name}" for name in remedies)
say(
    f"In validation sets of unseen classes the models find {validated}. So we test "
    f"*{best}*: it finds **{unseen_now:.0%}** on average, the control "
    f"{unseen_control:.0%}. Only the view has changed."
)
say(
    f"The lead over the baseline is {lead.min():.1f} to {lead.max():.1f} points; the "
    f"standard error of the smallest is at least {error:.1f}. "
    "Distances also hide something: in sets of seen classes they give "
    f"{seen_now:.0%}, features {seen_control:.0%}."
)

# %% tags=["shared", "check"]
# Checked: from distances it finds far more unseen ones than from features
drawn = [[bar.get_height() for bar in group] for group in fig.axes[0].containers]
np.testing.assert_allclose(drawn, list(heights.values()))
assert unseen_now > unseen_control or not known
if source == "digits":
    assert best == "distances only" and unseen_now > 1.3 * unseen_control
    assert unseen_now > 0.65

# %% [markdown] tags=["shared"]
# **In your own code.** Split before you draw sets, and measure a rule without training
# before the model. If new classes will come, keep some out of training, because only
# these show what to expect.
#
# **Exercise 3, open.** More *classes* help, too ([Vinyals et al.
# 2016](https://arxiv.org/abs/1606.04080)). Shuffle the features in the same way in all
# pictures, and each class becomes a new one. Fill the gap, and train with `trained_on`
# (in the section before) on sets minus their mean:
#
# ```python
# def more_classes(part, n=8):  # for photos, 2 are enough
#     """Every class with its features in ``n`` orders: new classes."""
#     rng, size = np.random.default_rng(0), part.features.shape[1]
#     x, labels = [part.features], [part.labels]
#     for i in range(1, n):
#         ...  # append the features, shuffled, and part.labels + i * len(names)
#     return sets.Part(np.concatenate(x), np.concatenate(labels))
#
#
# net = trained_on(differences, splits[0], more_classes(train))
# x = differences(fixed_sets(test.only(splits[0]), 1000, seed=4))
# evaluate(net, odd_one_out, (x,))["accuracy"]
# ```
#
# Does it reach the baseline? Why would it be a trap to turn the pictures?


# %% tags=["shared", "answer"]
def more_classes(part, n=8 if source == "digits" else 2):
    """Every class with its features in ``n`` orders: new classes."""
    rng, size = np.random.default_rng(0), part.features.shape[1]
    x, labels = [part.features], [part.labels]
    for i in range(1, n):
        x.append(part.features[:, rng.permutation(size)])
        labels.append(part.labels + i * len(names))
    return sets.Part(np.concatenate(x), np.concatenate(labels))


net = trained_on(differences, splits[0], more_classes(train))
x = differences(fixed_sets(test.only(splits[0]), 1000, seed=4))
pair = net, small["features minus the mean"][0]
both, plain = (evaluate(one, odd_one_out, (x,))["accuracy"] for one in pair)
say(
    "Turned by half a turn, a 6 is a 9: an unseen class would be shown. A shuffle has "
    f"no such leak. With the copies it finds **{both:.1%}**, without them {plain:.1%}, "
    f"the baseline {found_by_rule[0, 1]:.1%}."
)

# %% [markdown] tags=["shared"]
# ## Extra: In most of its mistakes the model is unsure
#
# Before you rely on a model you want to know whether it notices its mistakes. So
# compare its largest probability in the sets in which it is wrong and in the others.

# %% tags=["shared", "experiment"]
# Experiment: shares of right and wrong sets by the largest probability
edges = np.array([0, 0.5, 0.9, 1])
groups = {"right": sure[right], "wrong": sure[wrong]}
share = {k: np.histogram(x, edges)[0] / max(len(x), 1) for k, x in groups.items()}

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Share of the sets over the largest probability, as bars in three bins: to 50, to 90 and to 100 percent. Of the sets in which the model is right, nearly all are in the last bin; those in which it is wrong are spread over the bins."}}
bins = [f"{100 * a:.0f} to {100 * b:.0f}" for a, b in itertools.pairwise(edges)]
labelled = {f"sets in which the model is {name}": x for name, x in share.items()}
names_of_axes = {"xlabel": "largest probability, in percent", "ylabel": "share of sets"}
fig = bars(labelled, bins, **names_of_axes)
fig

# %% tags=["shared", "say"]
unsure = sure < 0.9
caught = (guess[unsure] != s - 1).sum()
second_place = np.argsort(-p[wrong], axis=1)[:, 1] == s - 1
kinds = np.sort(test.labels[test_sets[wrong]][:, -2:])  # n 2, the two classes
pairs = Counter((names[a], names[b]) for a, b in kinds.tolist())
(one, other), _ = [*pairs.most_common(1), (("none", "none"), 0)][0]
say(
    f"A person who looks at the {unsure.mean():.1%} of all sets in which the largest "
    f"probability is under 90% sees **{caught} of the {len(wrong)}** mistakes. In "
    f"{second_place.sum()} mistakes the odd one comes second (by chance, one in "
    f"{s - 1} would). Most often confused are {one} and {other}."
)

# %% tags=["shared", "check"]
# Checked: as drawn, right sets are in the last bin more often than wrong ones
heights = [[bar.get_height() for bar in group] for group in fig.axes[0].containers]
np.testing.assert_allclose(heights, list(share.values()))
assert source != "digits" or heights[0][-1] > heights[1][-1]
if known and len(wrong):
    assert sure[wrong].mean() < sure[right].mean()
    assert second_place.mean() > 1 / (s - 1)

# %% [markdown] tags=["shared"]
# ## Extra: Features of photos from a ResNet
#
# If you have photos, grey values will not do, because two photos of foxes agree in
# hardly any pixel. A ResNet34 ([He et al. 2016](https://arxiv.org/abs/1512.03385)),
# trained on ImageNet, turns each photo into 512 features. On both pages this is done in
# PyTorch, once, by `make data`; the lines that matter are
#
# ```python
# import torch
# from torchvision.models import ResNet34_Weights, resnet34
#
# weights = ResNet34_Weights.IMAGENET1K_V1
# net = resnet34(weights=weights).eval()
# net.fc = torch.nn.Identity()  # no classifier: keep the 512 features
# prepare = weights.transforms(crop_size=224, resize_size=224)
#
# @torch.inference_mode()
# def extract(photos):  # uint8 b y x 3 -> b 512
#     x = torch.as_tensor(photos).permute(0, 3, 1, 2) / 255  # b 3 y x
#     return net(prepare(x)).cpu().numpy()
# ```
#
# Then the mean of the training photos is subtracted, and all features are divided by
# the same number, their standard deviation.

# %% [markdown] tags=["shared"]
# ## Extra: Your own data
#
# Nothing above is special to pictures. To use it on your own data you need features, a
# row for each element, and classes, as whole numbers. If there are no classes, use the
# baseline, or make a class of everything that belongs together, such as all
# measurements of one sample.
#
# ```python
# parts = sets.split(features, labels)  # train, validation, test
# own = Sets.for_data(parts)  # of helpers.engine.set_settings; any size can be given
# x, labels = parts["train"].features, parts["train"].labels
# net = build(Predictor, seed=own.seed, **own.model)
# fit(net, odd_one_out, (x,), own, batches=sets.drawn(labels, own))
# ```
#
# `split` standardises each feature by the training part alone, because test data must
# not take part in anything that is learned. Sets need not have ten elements, because
# nothing in the model depends on their number. And if a set may hold
# no odd one at all, a **threshold** on the largest probability can decide; choose it on
# validation sets without an odd one, of many pictures.

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Split first. Draw new sets for training, fixed sets for validation and test.
# * Without positions an encoder is equivariant: it cannot use the order.
# * Attention can compare; whether it does must be tested: measure a baseline, cut
#   connections, look at the mistakes.
# * High accuracy on seen classes promises nothing for new ones. A model that gets only
#   distances has to compare.

# %% [markdown] tags=["torch"]
# Next comes [pictures as sequences, in PyTorch](vision_torch.ipynb). On the way to a
# language model you can go on with [a model that writes](decoder_torch.ipynb).
