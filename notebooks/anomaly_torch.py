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
# By the end you can train a Transformer on sets, show that it ignores their order,
# compare it with a baseline, test which of its connections matter, and tell whether it
# has learned the task or only the classes that it was shown. You need: the encoder, the
# reverse task and warm-up.
#
# Nine birds and a fox: you see the odd one at once. Whether a picture is odd depends on
# the others of its *set*; a classifier that judges each picture alone is right in half
# of the sets at best. Attention *can* compare them; whether it does must be tested. One
# contaminated measurement among ten is the same problem.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [anomaly_jax](anomaly_jax.ipynb).
# Before it comes [warm-up, in PyTorch](warmup_torch.ipynb). Later chapters do not need
# this one.

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
from sklearn.datasets import load_sample_images

from helpers.data import sets
from helpers.engine import twin
from helpers.engine.runs import runs_folder
from helpers.engine.shapes import (  # as_numpy(): the way back to NumPy
    as_numpy,
    check_shape,
)
from helpers.engine.weights import from_arrays, save_weights, to_arrays
from helpers.exercises import check  # of what you write
from helpers.show import drawing, plots, viewer
from helpers.show.prose import power, recorded, say, table  # say() prints sentences
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
# The task is from a tutorial of the [University of
# Amsterdam](https://uvadlc-notebooks.readthedocs.io). Our pictures are scikit-learn's
# handwritten digits (for photos, see the extras). We split the *pictures*, not the
# sets; otherwise test sets would contain training pictures. All parts have the same
# thirteen writers: the test says nothing about new ones.

# %% tags=["shared", "experiment"]
# Experiment: pictures in three parts, and test sets of them
source = sets.source()
known = source in sets.KNOWN  # else results are reported, but nothing is asserted
settings = sets.settings_for(source, device)
parts, names = sets.load(settings)
train, validation, test = parts["train"], parts["validation"], parts["test"]
s = settings.set_size
test_sets = sets.fixed(test.labels, s, settings.n_test, seed=settings.seed)  # n s

# %% mystnb={"image": {"alt": "Three rows of ten small pictures. In each row nine show the same kind of thing; the tenth, in a frame, shows another."}} tags=["shared", "figure"]
kinds = test.labels[test_sets[:3]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
plots.pictures(test.images[test_sets[:3]], titles=titles, odd=np.full(3, s - 1))

# %% [markdown] tags=["shared"]
# A set is stored as row numbers: nine pictures of one class and, last, one of another.
# The odd one is always the last, also in training; two sections on we see why the model
# cannot use this.


# %% tags=["shared"]
def draw_set(labels, odd, rng):
    """Row numbers of a set: others of one class, then the odd one at the end."""
    other_classes = np.setdiff1d(labels, labels[odd])
    same_class = np.flatnonzero(labels == rng.choice(other_classes))
    return np.append(rng.choice(same_class, s - 1, replace=False), odd)


# sets.drawn does this for whole batches; batches(epoch) are row numbers n b s
batches = sets.drawn(train.labels, settings)

# %% tags=["shared", "say"]
per_epoch = settings.updates_per_epoch * settings.batch_size
text = f"This run uses **{Path(source).name}**, {len(names)} classes."
if source != "digits":
    kind = "ResNet34" if train.features.shape[1] == 512 else "mean colours only"
    text += (
        f" Features: {kind}. What the text of this page says is checked on digits; "
        "with other pictures, read the numbers."
    )
say(
    f"{text} Each epoch draws {per_epoch:,} new sets from {len(train):,} training "
    f"pictures. The {settings.n_validation:,} validation sets (of {len(validation):,} "
    f"other pictures) and {settings.n_test:,} test sets (of {len(test):,}) are drawn "
    "once."
)

# %% tags=["shared", "check"]
# Checked: nine of one class, the last of another, none twice; each epoch has new sets
first, second = batches(0), batches(1)  # row numbers, n b s
check_shape(first, "n b s", n=settings.updates_per_epoch, b=settings.batch_size, s=s)
rng = np.random.default_rng(0)
by_hand = np.stack([draw_set(train.labels, odd, rng) for odd in range(len(train))])
both = (test, test_sets), (train, by_hand), (train, first.reshape(-1, s))
for from_part, drawn in both:
    kinds = from_part.labels[drawn]  # n s
    assert (kinds[:, :-1] == kinds[:, :1]).all()
    assert (kinds[:, -1] != kinds[:, 0]).all()
    assert (np.diff(np.sort(drawn, axis=1)) > 0).all() and (s == 10 or not known)
assert len(np.unique(first[..., -1])) == per_epoch  # each picture is odd at most once
again = set(map(bytes, np.sort(first).reshape(-1, s)))
assert not again & set(map(bytes, np.sort(second).reshape(-1, s)))

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** Roughly how many sets of ten can be made of the training
# pictures: choices for the odd one, the class of the others, and nine pictures of it?

# %% tags=["shared", "answer"]
in_class = len(train) // len(names)
possible = len(train) * (len(names) - 1) * math.comb(in_class, s - 1)
n_shown = settings.epochs * per_epoch
assert possible > 2e12 * n_shown or not known
say(
    f"${len(train)} \\cdot {len(names) - 1} \\cdot "
    f"\\binom{{{in_class}}}{{{s - 1}}}$, with {in_class} pictures in a class: about "
    f"**{power(possible)}**. In training the model sees {n_shown:,}. It cannot "
    "memorise the sets, but it can memorise the pictures."
)

# %% [markdown] tags=["shared"]
# ## A baseline needs no training
#
# How hard is the task? Describe each picture by numbers, its **features**: here its 64
# grey values, divided by 16. A rule without learning chooses the element $x_i$ of a set
# of $s$ that is farthest from the mean of the others:
#
# $$\hat\imath = \arg\max_i \Big\| x_i - \frac{1}{s-1} \sum_{j \neq i} x_j \Big\|.$$


# %% tags=["shared"]
def from_the_others(x):
    """Distance of each element from the mean of the others: ``b s i -> b s``."""
    others = (x.sum(axis=1, keepdims=True) - x) / (x.shape[1] - 1)
    return np.linalg.norm(x - others, axis=-1)


x_test = test.features[test_sets]  # n s i
baseline = (from_the_others(x_test).argmax(axis=-1) == s - 1).mean()

# %% tags=["shared", "say"]
say(
    f"The baseline finds the odd one in **{baseline:.1%}** of the test sets; guessing "
    f"finds it in {1 / s:.0%}."
)

# %% tags=["shared", "check"]
# Checked: the rule is the formula and beats guessing
others = [np.delete(x_test[0], i, axis=0).mean(axis=0) for i in range(s)]
distance = [np.linalg.norm(x - mean) for x, mean in zip(x_test[0], others, strict=True)]
np.testing.assert_allclose(from_the_others(x_test[:1])[0], distance, rtol=1e-4)
assert baseline > (0.7 if source == "digits" else 2 / s) or not known

# %% [markdown] tags=["shared"]
# ## A set has no order
#
# As the odd one is always the last, could a model learn "choose the last"? Not if
# shuffling the set permutes its outputs in the same way, and does no more. A function
# $F$ with this property,
#
# $$F(PX) = P\,F(X) \quad \text{for every permutation } P \text{ of the rows of } X,$$
#
# is **equivariant** under permutations ([Zaheer et al.
# 2017](https://arxiv.org/abs/1703.06114)); [Lee et al.
# 2019](https://arxiv.org/abs/1810.00825) build such functions from attention. Our model
# is the `Predictor` of the positions chapter, without positions and with one output per
# element:

# %% mystnb={"image": {"alt": "From top to bottom: a set of five pictures, four of them a 4 and one a 7; a dense layer for each element; the encoder, in which every element is connected with every other; one output per element; a softmax over the set, which gives the 7 a probability of 0.92 and the others 0.02 each."}} tags=["shared", "figure"]
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
# and all other layers treat each element alone. We shuffle sets to see it:


# %% tags=["shared", "experiment"]
# Experiment: the functions fixed_sets, and probabilities, a softmax over a set
def fixed_sets(part, n, seed):
    """Features of sets to measure on: ``n s i``."""
    return part.features[sets.fixed(part.labels, s, n, seed)]


def probabilities(model, x):
    """Softmax over the set, with dropout off: ``b s i -> b s``."""
    logits = as_numpy(attention_maps(model, floats(x))[0])[..., 0]
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


# %% tags=["shared"]
model = build(Predictor, seed=settings.seed, **settings.model)
sample, order = x_test[:1000], np.random.default_rng(0).permutation(s)
with full_float32():  # else a GPU rounds products to TF32
    p, moved = probabilities(model, sample), probabilities(model, sample[:, order])
untrained_gap = np.abs(moved - p[:, order]).max()

# %% tags=["shared", "say"]
with full_float32():
    loss = evaluate(model, odd_one_out, (sample,))["loss"]
say(
    f"The largest change of a probability is **{power(untrained_gap)}**, which is "
    f"rounding. Before training the loss is {loss:.2f}; guessing costs $\\ln {s}$ = "
    f"{np.log(s):.2f}."
)

# %% tags=["shared", "check"]
# Checked: shuffling permutes the probabilities; the loss is -ln p of the odd one
assert untrained_gap < 1e-5 and order[-1] != s - 1
np.testing.assert_allclose(loss, -np.log(p[:, -1]).mean(), rtol=1e-5)
assert abs(loss - np.log(s)) < (0.1 if source == "digits" else 0.5)

# %% [markdown] tags=["shared"]
# ## It finds the odd one
#
# `fit`, of the reverse chapter, keeps the weights with the best validation accuracy.

# %% tags=["shared", "say"]
one = settings
what = "size", "dropout", "batch size", "peak rate", "warm-up", "clipping", "epochs"
values = [
    f"{one.n_blocks} blocks, {one.n_heads} heads, `m` {one.m}, `f` {one.f}",
    f"{one.dropout}, also on the input", one.batch_size, one.learning_rate,
    f"{one.warmup} updates", one.max_grad_norm, one.epochs,
]  # fmt: skip
say(table(["setting", "here"], *zip(what, values, strict=True)))

# %% tags=["shared"]
held_out = (fixed_sets(validation, settings.n_validation, seed=1),)
folder = runs_folder(f"anomaly_{Path(source).name}_{framework}")
history = fit(  # batches are row numbers b s, for which it takes features b s i
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
worst = np.argsort(np.where(guess != s - 1, -sure, sure))[:3]  # mistakes first


def swapped(place):
    """Accuracy in the first of these, with others of its class at one place."""
    rows = test_sets[worst[0]]
    alike = np.flatnonzero(test.labels == test.labels[rows[place]])
    changed = np.tile(rows, (len(alike := np.setdiff1d(alike, rows)), 1))  # n s
    changed[:, place] = alike
    return evaluate(model, odd_one_out, (test.features[changed],))["accuracy"]


# %% tags=["shared", "say"]
ours = [f"**{value:.1%}**" for value in accuracy.values()]
plain = [from_the_others(x).argmax(axis=-1) == s - 1 for x in measured.values()]
rows = table(
    ["accuracy", *measured, "time"],
    ["**this page**", *ours, f"{history['seconds'].sum():.0f} s, {device}"],
    ["baseline", *(f"{found.mean():.1%}" for found in plain), ""],
)
margin = 100 * np.sqrt(accuracy["test"] * (1 - accuracy["test"]) / settings.n_test)
say(
    f"{rows}\n\nThe test sets share pictures, so the standard error of the test "
    f"accuracy is at least {margin:.1f} points. In the next figure, dropout raises the "
    "training loss; it is off in validation."
)

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
fig = plots.curves(panels, x="epoch", size=(7, 2.8))
fig

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

# %% mystnb={"image": {"alt": "Rows of ten pictures with a percentage below each. A solid frame marks the odd one, a dashed frame the one that the model chose instead."}} tags=["shared", "figure"]
captions = [[f"{value:.0%}" for value in row] for row in p[worst]]
kinds = test.labels[test_sets[worst]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
plots.pictures(
    test.images[test_sets[worst]], captions=captions, titles=titles,
    odd=np.full(len(worst), s - 1), chosen=guess[worst],
)  # fmt: skip

# %% tags=["shared", "say"]
one = worst[0]
kind, other = (names[test.labels[test_sets[one, place]]] for place in (0, -1))
with_kind, with_other = swapped(guess[one]), swapped(-1)
repaired = with_kind, with_other, 0.5  # in most cases, or neither
why = f"this {kind}", f"this {other}", "neither of them alone: the other eight count"
say(
    f"The model is wrong in **{len(wrong)}** of {len(p):,} test sets; these are the "
    f"ones in which it was most certain. The first: with another {kind} in place of "
    f"the chosen one, the model is right in {with_kind:.0%} of the cases; with another "
    f"odd {other}, in {with_other:.0%}. So what misled it is "
    f"**{why[np.argmax(repaired)]}**."
)

# %% [markdown] tags=["shared"]
# ## Cutting connections shows which ones matter
#
# How does the model find the odd one? If the others attend to it, the last column of
# the maps is bright.

# %% tags=["shared", "experiment"]
# Experiment: mean maps; what the odd one gets from the nine; ablation
_, maps = attention_maps(model, floats(sample))
maps = as_numpy(maps)  # l b h q k
mean_map = maps.mean(axis=1)  # l h q k
to_odd = mean_map[..., :-1, -1].mean(axis=-1)  # l h


def without(*heads):
    """Accuracy on the sample without some heads ``(layer, head)``: zeros in W^O."""
    arrays, d = to_arrays(model), settings.m // settings.n_heads
    for layer, head in heads:
        rows = slice(head * d, (head + 1) * d)
        arrays[f"encoder.blocks.{layer}.attention.out.weight"][rows] = 0
    other = build(Predictor, seed=settings.seed, **settings.model)
    from_arrays(other, arrays)
    return evaluate(other, odd_one_out, (sample,))["accuracy"]


# %% tags=["shared", "say"]
say(
    f"Equal weights would be {1 / s:.0%}. On average over {len(sample):,} sets, the "
    f"nine give the odd one {to_odd.min():.0%} to {to_odd.max():.0%} of their weight: "
    f"no head points to it. (Single sets have weights of up to {maps.max():.0%}.)"
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
    layer=settings.n_blocks - 1,
    query=s - 1,
)

# %% [markdown] tags=["shared"]
# A map shows where information may flow, not whether it matters. So we cut: single
# connections by a mask, the attention of a layer by zeros in its $W^O$. Which does more
# harm, hiding the odd one from the nine, or the nine from the odd one?


# %% tags=["shared"]
def accuracy_under(mask):
    """Accuracy on the sample if a mask ``q k`` (True = may look) cuts connections."""
    logits, _ = attention_maps(model, floats(sample), booleans(mask))  # b s 1
    return (as_numpy(logits)[..., 0].argmax(axis=-1) == s - 1).mean()


odd_alone = np.ones((s, s), dtype=bool)  # q k
odd_alone[-1, :-1] = False  # the odd one sees none of the nine
by_odd = accuracy_under(odd_alone)

# %% tags=["shared", "experiment"]
# Experiment: the other direction, a control, and the attention of whole layers off
nothing, odd_hidden, two_seen = np.ones((3, s, s), dtype=bool)
odd_hidden[:-1, -1] = False  # none of the nine sees the odd one
two_seen[-1, 2:-1] = False  # control: the odd one sees two of the nine
full, by_nine, by_two = map(accuracy_under, (nothing, odd_hidden, two_seen))
heads = [[(i, j) for j in range(settings.n_heads)] for i in range(settings.n_blocks)]
layers = [without(*row) for row in heads]
single = np.array([[without(head) for head in row] for row in heads])  # l h

# %% tags=["shared", "say"]
cut = {
    "nothing": full,
    "the nine do not see the odd one": by_nine,
    "the odd one does not see the nine": by_odd,
    "the odd one sees only two of the nine (control)": by_two,
}
cut |= {f"all attention of layer {i}": value for i, value in enumerate(layers)}
rows = [[name, f"{value:.1%}"] for name, value in cut.items()]
work = "The last layer does most of the work. No single head does: "
say(
    f"{table(['what is cut', 'accuracy'], *rows)}\n\nWhether the nine look at the odd "
    "one matters little. The odd one itself finds out that it differs, by looking at "
    "the nine: with two of them in sight, most of the accuracy is back. "
    f"{work if source == 'digits' else ''}Removing the head that matters most costs "
    f"{100 * (full - single.min()):.1f} points."
)

# %% tags=["shared", "check"]
# Checked: isolating the odd one costs most, two of the nine restore most of it
assert min(by_nine, by_two) > by_odd or not known
if source == "digits":
    assert mean_map.max() < 0.3  # three times as much as equal weights
    assert by_nine > 0.8 and by_two > 0.7 and by_odd < 0.5
    assert layers[-1] < layers[0] - 0.1 and single.min() > layers[-1] + 0.1

# %% [markdown] tags=["shared"]
# **Exercise 2, a change of code.** Give `accuracy_under` a mask in which *each* element
# sees only itself. What is the most that any model could reach under this mask, if all
# classes are equally frequent?

# %% tags=["shared", "answer"]
blind = accuracy_under(np.eye(s, dtype=bool))
say(
    f"The accuracy falls to **{blind:.1%}** (guessing: {1 / s:.0%}, baseline: "
    f"{baseline:.1%}). Now each element gets its score without any comparison. If an A "
    "has a higher score than a B, the model is at best right for an A among nine Bs, "
    "and wrong for a B among nine As. Both are equally frequent: at most **one half**."
)
assert (blind < 0.5 and blind < baseline) or not known

# %% [markdown] tags=["shared"]
# ## Unseen classes are the real test
#
# So the odd one compares itself with the others. But a model can also **recognise**:
# learn what each class looks like, and choose the class that occurs once. Does that
# work for new classes? We train small models (`m` 32, `f` 64, no dropout, two epochs of
# 5,120 sets) without some classes, and test them on sets of these alone. One sees
# **features**: what an element looks like. The other sees only its sorted **distances**
# to the others, divided by the mean distance in the set. Predict: which beats the
# baseline on unseen classes?


# %% tags=["shared", "experiment"]
# Experiment: trained_on(view, unseen), without some classes, and splits of the classes
classes, n_unseen = np.arange(len(names)), settings.n_unseen
n_splits = 3 if source == "digits" else 1
splits = [np.roll(classes, i * n_unseen)[-n_unseen:] for i in range(n_splits)]


def trained_on(view, unseen, part=train, n=5_120):
    """A small model of ``view(features)``, trained on ``n`` sets of other classes."""
    # copies of class c may have the labels c + len(names), …
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
def distances(x):
    """Sorted distances to the others, relative to their mean: ``b s i -> b s s-1``."""
    d = [np.linalg.norm(x - x[:, [i]], axis=-1) for i in range(x.shape[1])]  # s b s
    others = np.sort(np.stack(d, axis=-1), axis=-1)[..., 1:]  # without the 0 to itself
    return others / others.mean(axis=(1, 2), keepdims=True) - 1


views = {"features": lambda x: x, "distances only": distances}
nets = {name: [trained_on(views[name], u) for u in splits] for name in views}

# %% tags=["shared", "experiment"]
# Experiment: test each model on sets of seen and on sets of unseen classes
by_rule = "baseline"
shown = [*views, by_rule]
found = {name: np.empty((n_splits, 2)) for name in shown}
for i, unseen in enumerate(splits):
    for j, kinds in enumerate([np.setdiff1d(classes, unseen), unseen]):
        x = fixed_sets(test.only(kinds), settings.n_test // 2, seed=4)
        for name, view in views.items():
            tested = evaluate(nets[name][i], odd_one_out, (view(x),))
            found[name][i, j] = tested["accuracy"]
        found[by_rule][i, j] = np.mean(from_the_others(x).argmax(axis=-1) == s - 1)
places_of_bars = [f"unseen: {names[u[0]]} to {names[u[-1]]}" for u in splits]
places_of_bars.append("seen (mean)")
heights = {name: [*found[name][:, 1], found[name][:, 0].mean()] for name in shown}


# %% mystnb={"image": {"alt": "Bars of the accuracy, for sets of unseen classes in each split and for the mean over sets of seen classes; at each place one bar for the small model with features, one for the same model with distances only, one for the baseline."}} tags=["shared", "figure"]
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
(seen_plain, plain), (_, now), (seen_rule, rule) = (
    found[name].mean(axis=0) for name in shown
)
gains = 100 * (found["distances only"] - found[by_rule])[:, 1]
say(
    f"Distances do, on average: in sets of unseen classes they find **{now:.0%}** of "
    f"the odd ones, the baseline {rule:.0%} (gain per split: "
    f"{', '.join(f'{gain:.0f}' for gain in gains)} points, one seed each). Features "
    f"find **{plain:.0%}**. The baseline shows that these sets are not too hard: a "
    "model of features depends on the classes that it was shown."
)

# %% tags=["shared", "check"]
# Checked: on unseen classes distances beat the baseline on average, features do not
drawn = [[bar.get_height() for bar in group] for group in fig.axes[0].containers]
np.testing.assert_allclose(drawn, list(heights.values()))
assert not known or (seen_plain - plain > seen_rule - rule and now > plain)
if source == "digits":
    assert plain < 0.8 * rule and now > rule + 0.02  # mean of 3,000 sets
    assert seen_plain > seen_rule and now > 1.3 * plain and now > 0.65

# %% [markdown] tags=["shared"]
# ## Extra: More classes from the same pictures
#
# **Exercise 3, open.** Permute the features, by one order for all pictures: each class
# becomes a new one. Fill the gap, and train with `trained_on`, on features minus the
# mean of their set:
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
# view = lambda x: x - x.mean(axis=1, keepdims=True)
# net = trained_on(view, splits[0], more_classes(train))
# x = view(fixed_sets(test.only(splits[0]), 1000, seed=4))
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


view = views["minus the mean"] = lambda x: x - x.mean(axis=1, keepdims=True)
pair = [trained_on(view, splits[0], part) for part in (more_classes(train), train)]
x = view(fixed_sets(test.only(splits[0]), 1000, seed=4))
both, plain = (evaluate(one, odd_one_out, (x,))["accuracy"] for one in pair)
assert source != "digits" or both < found[by_rule][0, 1]
say(
    f"No: it finds **{both:.1%}** with the copies, {plain:.1%} without, the baseline "
    f"{found[by_rule][0, 1]:.1%} (one seed). So such classes are not enough. The trap: "
    "turned by half a turn, a 6 is a 9, and an unseen class would be shown."
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

# %% mystnb={"image": {"alt": "Share of the sets over the largest probability, as bars in three bins: to 50, to 90 and to 100 percent. Of the sets in which the model is right, nearly all are in the last bin; those in which it is wrong are spread over the bins."}} tags=["shared", "figure"]
bins = [f"{100 * a:.0f} to {100 * b:.0f}" for a, b in itertools.pairwise(edges)]
labelled = {f"{len(groups[k]):,} sets: the model is {k}": x for k, x in share.items()}
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
# ## Extra: Both frameworks train alike
#
# For forty updates at a low rate, the same training runs in the other framework, from
# the same weights and without dropout, whose random numbers differ.

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
    p, moved = probabilities(model, sample), probabilities(model, sample[:, order])
np.testing.assert_allclose(moved, p[:, order], atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Extra: Photos need better features than pixels
#
# If you have photos, grey values will not do, because two photos of foxes agree in
# hardly any pixel. A ResNet34 ([He et al. 2016](https://arxiv.org/abs/1512.03385)),
# trained on ImageNet, turns each photo into 512 features. `make data` does this once,
# in PyTorch, for both twins:


# %% tags=["shared"]
def extract(photos, weights=None):
    """Features of photos from a ResNet34: uint8 ``b y x 3 -> b 512``."""
    import torch
    from torchvision.models import ResNet34_Weights, resnet34

    net = resnet34(weights=weights).eval()  # None: random weights
    net.fc = torch.nn.Identity()  # no classifier: keep the 512 features
    usual = ResNet34_Weights.IMAGENET1K_V1
    prepare = usual.transforms(crop_size=224, resize_size=224)
    with torch.inference_mode():
        x = torch.as_tensor(photos).permute(0, 3, 1, 2) / 255  # b 3 y x
        return net(prepare(x)).numpy()


two_photos = np.stack(load_sample_images().images)  # b y x 3
extract(two_photos).shape

# %% [markdown] tags=["shared"]
# Here its weights are random; `extract(photos, "IMAGENET1K_V1")` downloads the trained
# ones. Then the mean of the training photos is subtracted, and all features are divided
# by the same number, their standard deviation.

# %% [markdown] tags=["shared"]
# How far does a model of the tutorial's size get on photos? Here is a run on CIFAR-10,
# with 512 features from k-means on small windows of the training photos ([Coates et al.
# 2011](https://proceedings.mlr.press/v15/coates11a.html)).

# %% tags=["shared", "say"]
site = "https://uvadlc-notebooks.readthedocs.io/en/latest/tutorial_notebooks/"
page = "tutorial6/Transformers_and_MHAttention.html"
run = recorded("cifar10-sets")[-1]
rows = [
    [name, *(f"{value:.1%}" for value in run[name].values())]
    for name in ("accuracy", "baseline")
]
say(
    f"{table(['sets of', *run['accuracy']], *rows)}\n\n"
    f"Recorded in PyTorch on {run['about']['device']}, {run['about']['date'][:10]}: "
    f"{run['settings']['epochs']} epochs in {run['seconds'] / 60:.0f} minutes. "
    "Distances hardly show the odd one here; the model finds it in most sets, but has "
    "learned much of its training photos by heart. On CIFAR-100, with features from a "
    f"network that saw a million photos, others report [94.66%]({site}JAX/{page}) and "
    f"[94.30%]({site}{page})."
)

# %% tags=["shared", "check"]
# Checked: photos become 512 numbers, not negative; attention finds what distance cannot
features = extract(two_photos)
check_shape(features, "b i", b=2, i=512)
assert features.min() >= 0 and np.ptp(features) > 0
assert run["accuracy"]["test"] > 0.7 and run["baseline"]["test"] < 0.2
assert run["accuracy"]["train"] > run["accuracy"]["test"] + 0.1

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
# `split` standardises each feature, as yours may have different units, by the training
# part alone, because test data must not take part in anything that is learned. Sets
# need not have ten elements, because nothing in the model depends on their number.

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
# **1.** From a few hundred pictures one can draw far more sets than a training ever
# shows. Can the model overfit?
#
# <details><summary>No: it never meets the same set twice.</summary>
#
# **No.** New sets in every epoch look like endless data. But they are made of the same
# few pictures, again and again.
#
# </details>
# <details><summary>Only if the sets repeat, after many epochs.</summary>
#
# **No.** Repeated examples are the usual danger, so this sounds careful. Here it is the
# pictures that repeat, and they do so from the first epoch on.
#
# </details>
# <details><summary>Yes, to the pictures and their classes.</summary>
#
# **Right.** It can learn by heart which picture belongs to which class. This works for
# no new picture, and for no new class.
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
# * Split first, then draw sets. Measure a baseline before the model.
# * Without positions an encoder is equivariant: it cannot use the order.
# * Attention can compare; whether it does must be tested: cut connections, look at the
#   mistakes.
# * High accuracy on seen classes promises nothing for new ones: keep some out of
#   training.

# %% [markdown] tags=["torch"]
# Next comes [pictures as sequences, in PyTorch](vision_torch.ipynb). On the way to a
# language model you can go on with [a model that writes](decoder_torch.ipynb).
