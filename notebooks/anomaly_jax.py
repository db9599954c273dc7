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

# %% [markdown] tags=["jax"]
# This page uses **JAX**. The same page in PyTorch:
# [anomaly_torch](anomaly_torch.ipynb). Before it comes [warm-up, in
# JAX](warmup_jax.ipynb). Later chapters do not need this one.

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

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from helpers.data import sets
from helpers.exercises import check
from helpers.jax import Predictor, attention_maps, evaluate, fit, tensor
from helpers.settings import Settings
from helpers.show import drawing, plots, power, recorded, say, table, viewer
from helpers.weights import as_numpy, from_arrays, to_arrays

plots.use_style()
# All digits of float32: JAX's default on recent GPUs is TF32, with 11 significant bits.
jax.config.update("jax_default_matmul_precision", "highest")

# %% [markdown] tags=["shared"]
# ## Split the pictures first, then draw sets
#
# The task is from a tutorial of the [University of
# Amsterdam](https://uvadlc-notebooks.readthedocs.io). Our pictures are scikit-learn's
# handwritten digits (for photos, see the extras). We split the *pictures*, not the
# sets; otherwise test sets would contain training pictures. So 1,293 pictures are for
# training, 144 for validation and 360 for the test. All parts have the same thirteen
# writers: the test says nothing about new ones.

# %% tags=["shared"]
s, n_validation, n_test = 10, 1_000, 2_000  # elements of a set; sets
parts, names = sets.digits(seed=42)
train, validation, test = parts["train"], parts["validation"], parts["test"]
test_sets = sets.fixed(test.labels, s, n_test, seed=42)  # n s

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


settings = Settings(
    n_train=1_293,  # in every epoch, each picture is once the odd one
    batch_size=64,
    epochs=32,  # 640 updates in all
    learning_rate=1e-3,
    warmup=100,
)
# sets.drawn does this for whole batches; batches(epoch) are row numbers n b s
batches = sets.drawn(train.labels, s, settings)

# %% [markdown] tags=["shared"]
# Each epoch draws 1,280 new sets of the training pictures, in 20 batches of 64; the
# 1,000 validation sets and the 2,000 test sets are drawn once.

# %% tags=["shared", "check"]
# Checked: nine are of one class, the last one of another, and none comes twice
rng = np.random.default_rng(0)
by_hand = np.stack([draw_set(train.labels, odd, rng) for odd in range(1_293)])
for labels, rows in ((test.labels, test_sets), (train.labels, by_hand)):
    kinds = labels[rows]  # n s
    assert (kinds[:, :-1] == kinds[:, :1]).all()
    assert (kinds[:, -1] != kinds[:, 0]).all()
    assert (np.diff(np.sort(rows, axis=1)) > 0).all()

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** Roughly how many sets of ten can be made of the training
# pictures: choices for the odd one, the class of the others, and nine pictures of it?

# %% tags=["shared", "answer"]
from math import comb

in_class = 1_293 // 10
possible = 1_293 * 9 * comb(in_class, s - 1)
n_shown = settings.updates * settings.batch_size
assert possible > 2e12 * n_shown
say(
    f"$1293 \\cdot 9 \\cdot \\binom{{{in_class}}}{{9}}$, with {in_class} pictures in a "
    f"class: about **{power(possible)}**. In training the model sees {n_shown:,}. It "
    "cannot memorise the sets, but it can memorise the pictures."
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
f"baseline {baseline:.1%}, guessing {1 / s:.0%}"

# %% tags=["shared", "check"]
# Checked: the rule is the formula, and beats guessing by far
others = [np.delete(x_test[0], i, axis=0).mean(axis=0) for i in range(s)]
distance = np.linalg.norm(x_test[0] - np.stack(others), axis=-1)
np.testing.assert_allclose(from_the_others(x_test[:1])[0], distance, rtol=1e-4)
assert baseline > 0.7

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


# %% tags=["jax"]
def odd_one_out(model, x):
    """Cross-entropy and accuracy of finding the odd one, the last of its set."""
    logits = model(x).squeeze(-1)  # b s
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    last = x.shape[1] - 1
    # a tie counts as wrong: argmax takes the first
    return -log_p[:, last].mean(), {"accuracy": (logits.argmax(-1) == last).mean()}


# %% [markdown] tags=["shared"]
# This model is equivariant, whatever its weights are: attention without positions is,
# and all other layers treat each element alone. We shuffle sets to see it:

# %% tags=["shared"]
sizes = {"n_inputs": 64, "n_outputs": 1, "n_blocks": 2, "m": 64, "n_heads": 4, "f": 128}
sizes |= {"positions": "none", "dropout": 0.1, "input_dropout": 0.1}


# %% tags=["jax"]
def new_model(**changes):
    """A predictor of these sizes, or with changes; always with the same seed."""
    return Predictor(**sizes | changes, rngs=nnx.Rngs(42))


# %% tags=["shared"]
def fixed_sets(part, n, seed):
    """Features of sets to measure on: ``n s i``."""
    return part.features[sets.fixed(part.labels, s, n, seed)]


def probabilities(model, x):
    """Softmax over the set, with dropout off: ``b s i -> b s``."""
    logits = as_numpy(attention_maps(model, tensor(x))[0])[..., 0]
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


# %% tags=["shared"]
model = new_model()
sample, order = x_test[:1000], np.random.default_rng(0).permutation(s)
p, moved = probabilities(model, sample), probabilities(model, sample[:, order])
untrained_gap = np.abs(moved - p[:, order]).max()
loss = evaluate(model, odd_one_out, (sample,))["loss"]
f"largest change {untrained_gap:.0e}; loss {loss:.2f}, ln {s} = {np.log(s):.2f}"

# %% [markdown] tags=["shared"]
# The largest change of a probability is rounding. Before training the loss is close to
# $\ln 10$, which guessing costs.

# %% tags=["shared", "check"]
# Checked: shuffling a set permutes its probabilities; the loss is -ln p of the odd one
assert untrained_gap < 1e-5
assert order[-1] != s - 1
np.testing.assert_allclose(loss, -np.log(p[:, -1]).mean(), rtol=1e-5)
assert abs(loss - np.log(s)) < 0.1

# %% [markdown] tags=["shared"]
# ## It finds the odd one
#
# `fit`, of the reverse chapter, keeps the weights with the best validation accuracy.
#
# | setting | here | the tutorial's, for photos |
# |---|---|---|
# | size | 2 blocks, 4 heads, `m` 64, `f` 128 | 4 blocks, 4 heads, `m` 256, `f` 512 |
# | dropout | 0.1, also on the input | the same |
# | batch size | 64 | 64 |
# | peak rate, warm-up | `1e-3`, 100 updates | `5e-4`, 100 updates |
# | clipping | 1 | 1 |
# | epochs | 32 of 20 updates | 100 of 703 updates |

# %% tags=["shared"]
held_out = fixed_sets(validation, n_validation, seed=1)
history = fit(  # batches are row numbers b s, for which it takes features b s i
    model,
    odd_one_out,
    (train.features,),
    settings,
    batches=batches,
    validation=(held_out,),
)
f"trained in {history['seconds'].sum():.0f} seconds"

# %% tags=["shared"]
on_train = fixed_sets(train, n_test, seed=2)
measured = {"training": on_train, "validation": held_out, "test": x_test}
accuracy, rule = {}, {}
for name, x in measured.items():
    accuracy[name] = evaluate(model, odd_one_out, (x,))["accuracy"]
    rule[name] = (from_the_others(x).argmax(axis=-1) == s - 1).mean()
p, moved = probabilities(model, sample), probabilities(model, sample[:, order])
trained_gap = np.abs(moved - p[:, order]).max()
f"shuffling sets changes a probability by up to {trained_gap:.0e}"

# %% tags=["shared", "say"]
shown = {"**this page**": accuracy, "baseline": rule}
rows = [[what, *(f"{x:.1%}" for x in row.values())] for what, row in shown.items()]
margin = 100 * np.sqrt(accuracy["test"] * (1 - accuracy["test"]) / n_test)
error = f"The standard error of the test accuracy is at least {margin:.1f} points."
say(table(["accuracy", *measured], *rows) + "\n\n" + error)

# %% [markdown] tags=["shared"]
# It is larger than that of independent sets, because the test sets share pictures. In
# the next figure, dropout raises the training loss; it is off in validation.

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
# Checked: the model beats the baseline, on test sets and at the end of both curves
assert accuracy["test"] > max(0.97, baseline + 0.10)
assert trained_gap < 1e-5
assert min(by_epoch["accuracy"][-1], history["validation_accuracy"][-1]) > baseline
assert by_epoch["accuracy"][-1] > by_epoch["accuracy"][0]
assert by_epoch["loss"][-1] < by_epoch["loss"][0]
assert history["validation_loss"][-1] < history["validation_loss"][0]
assert history["validation_loss"][-1] < by_epoch["loss"][-1]

# %% [markdown] tags=["shared"]
# Where is the model wrong? Three of the mistakes, those of which it is most certain:

# %% tags=["shared"]
p = np.concatenate([probabilities(model, x) for x in np.split(x_test, 2)])  # n s
guess, sure = p.argmax(axis=1), p.max(axis=1)  # the choice, and its probability
is_wrong = guess != s - 1
wrong = np.flatnonzero(is_wrong)
worst = wrong[np.argsort(-sure[wrong])][:3]

# %% mystnb={"image": {"alt": "Rows of ten pictures with a percentage below each. A solid frame marks the odd one, a dashed frame the one that the model chose instead."}} tags=["shared", "figure"]
captions = [[f"{value:.0%}" for value in row] for row in p[worst]]
kinds = test.labels[test_sets[worst]]
titles = [f"{names[row[0]]}, odd: {names[row[-1]]}" for row in kinds]
plots.pictures(
    test.images[test_sets[worst]],
    captions=captions,
    titles=titles,
    odd=np.full(len(worst), s - 1),
    chosen=guess[worst],
)

# %% tags=["shared", "say"]
say(f"The model is wrong in **{is_wrong.sum()}** of {n_test:,} test sets.")

# %% [markdown] tags=["shared"]
# ## Cutting connections shows which ones matter
#
# How does the model find the odd one? If the others attend to it, the last column of
# the maps is bright.

# %% tags=["shared"]
_, maps = attention_maps(model, tensor(sample))
maps = as_numpy(maps)  # l b h q k
to_odd = maps[..., :-1, -1].mean(axis=(1, 3))  # l h
f"on average the nine give the odd one {to_odd.min():.0%} to {to_odd.max():.0%}"

# %% [markdown] tags=["shared"]
# Equal weights would be a tenth. So no head points to the odd one, whatever the maps of
# single sets look like:

# %% tags=["shared", "figure"]
three_sets = test_sets[:3]  # b s
viewer.attention(
    maps[:, :3],
    [[names[kind] for kind in row] for row in test.labels[three_sets]],
    pictures=test.images[three_sets],
    sequences=["first set", "second set", "third set"],
    about="Attention maps of three sets of ten pictures, the last one odd",
    high=0.5,
    layer=1,
    query=s - 1,
)

# %% [markdown] tags=["shared"]
# A map shows where information may flow, not whether it matters. So we cut: single
# connections by a mask, the attention of a layer by zeros in its $W^O$. Which does more
# harm, hiding the odd one from the nine, or the nine from the odd one?


# %% tags=["shared"]
def accuracy_under(mask):
    """Accuracy on the sample if a mask ``q k`` cuts connections."""
    logits, _ = attention_maps(model, tensor(sample), tensor(mask))  # b s 1
    return (as_numpy(logits)[..., 0].argmax(axis=-1) == s - 1).mean()


def isolated(place):
    """A mask ``q k`` (True = may look) under which one element sees only itself."""
    mask = np.ones((s, s), dtype=bool)
    mask[place] = np.arange(s) == place
    return mask


odd_hidden = np.ones((s, s), dtype=bool)
odd_hidden[:-1, -1] = False  # none of the nine sees the odd one
two_seen = isolated(s - 1)
two_seen[-1, :2] = True  # the odd one sees two of the nine
full = accuracy_under(np.ones((s, s), dtype=bool))
by_odd, by_nine = accuracy_under(isolated(s - 1)), accuracy_under(odd_hidden)
by_normal, by_two = accuracy_under(isolated(0)), accuracy_under(two_seen)


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
cut = {"nothing": full, "the nine do not see the odd one": by_nine}
cut["the odd one does not see the nine"] = by_odd
cut["one of the nine does not see the others (control)"] = by_normal
cut["the odd one sees only two of the nine"] = by_two
cut["all attention of layer 0"], cut["all attention of layer 1"] = layers
cut["the head that matters most"] = single.min()

# %% tags=["shared", "say"]
rows = [[name, f"{value:.1%}"] for name, value in cut.items()]
say(table(["what is cut", "accuracy"], *rows))

# %% [markdown] tags=["shared"]
# Whether the nine look at the odd one matters little. To isolate the odd one costs
# most, and not because the model cannot bear an isolated element: to isolate one of the
# nine costs little. So the odd one itself finds out that it differs, by looking at the
# nine: with two of them in sight, most of the accuracy is back. In this model the last
# layer does most of the work, and no single head does.

# %% tags=["shared", "check"]
# Checked: isolating the odd one costs most, and two of the nine restore most of it
assert by_odd < min(0.5, by_nine, by_two, by_normal - 0.3)
assert by_nine > 0.8
assert by_two > 0.7
assert layers[1] < layers[0] - 0.1
assert single.min() > layers[1] + 0.1
assert maps.mean(axis=1).max() < 0.3  # three times as much as equal weights

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
assert blind < min(0.5, baseline)

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


# %% tags=["shared"]
classes = np.arange(10)
splits = [np.array([7, 8, 9]), np.array([4, 5, 6]), np.array([1, 2, 3])]  # unseen
small = {"m": 32, "f": 64, "dropout": 0.0, "input_dropout": 0.0}
brief = Settings(n_train=5_120, batch_size=64, epochs=2, learning_rate=1e-3, warmup=100)


def trained_on(view, unseen, part=train):
    """A small model of ``view(features)``, trained on sets of the other classes."""
    # copies of class c may have the labels c + 10, c + 20, …
    seen = part.take(np.flatnonzero(~np.isin(part.labels % 10, unseen)))
    x = view(fixed_sets(seen, brief.n_train, seed=6))
    others = validation.only(np.setdiff1d(classes, unseen))
    held_back = view(fixed_sets(others, n_validation, seed=3))
    net = new_model(n_inputs=x.shape[-1], **small)
    fit(net, odd_one_out, (x,), brief, validation=(held_back,))
    return net


# %% tags=["shared"]
def distances(x):
    """Sorted distances to the others, relative to their mean: ``b s i -> b s s-1``."""
    d = [np.linalg.norm(x - x[:, [i]], axis=-1) for i in range(x.shape[1])]  # s b s
    others = np.sort(np.stack(d, axis=-1), axis=-1)[..., 1:]  # without the 0 to itself
    return others / others.mean(axis=(1, 2), keepdims=True) - 1


def filled(x):
    """With zeros up to the 64 features of a picture, so that all nets are alike."""
    return np.pad(x, [(0, 0), (0, 0), (0, 64 - x.shape[-1])])


views = {"features": filled, "distances only": lambda x: filled(distances(x))}
nets = {name: [trained_on(views[name], u) for u in splits] for name in views}

# %% tags=["shared"]
shown = [*views, "baseline"]
found = {name: np.empty((3, 2)) for name in shown}  # split, seen or unseen
for i, unseen in enumerate(splits):
    for j, kinds in enumerate([np.setdiff1d(classes, unseen), unseen]):
        x = fixed_sets(test.only(kinds), n_test // 2, seed=4)
        for name, view in views.items():
            scores = evaluate(nets[name][i], odd_one_out, (view(x),))
            found[name][i, j] = scores["accuracy"]
        found["baseline"][i, j] = (from_the_others(x).argmax(axis=-1) == s - 1).mean()
mean = {name: x.mean(axis=0) for name, x in found.items()}  # seen, unseen
gains = 100 * (found["distances only"] - found["baseline"])[:, 1]


# %% mystnb={"image": {"alt": "Bars of the accuracy, for sets of unseen classes in each split and for the mean over sets of seen classes; at each place one bar for the small model with features, one for the same model with distances only, one for the baseline."}} tags=["shared", "figure"]
def bars(groups, labels, **names):
    """Bars side by side at each label, one colour for each group."""
    fig, (ax,) = plots.panels_in_rows(1, None, (7, 3.2), (0, 0), (0, 0))
    places, width = np.arange(len(labels)), 0.8 / len(groups)
    for place, (name, heights) in enumerate(groups.items()):
        left = width * (place - (len(groups) - 1) / 2)
        group = ax.bar(places + left, heights, width, label=name)
        ax.bar_label(group, [f"{height:.0%}" for height in heights], size=8)
    ax.set(xticks=places, xticklabels=labels, ylim=(0, 1.08), **names)
    ax.grid(visible=False, axis="x")
    fig.legend(loc="outside lower center", ncols=len(groups))
    return fig


labels = [f"unseen: {names[u[0]]} to {names[u[-1]]}" for u in splits] + ["seen (mean)"]
heights = {name: [*found[name][:, 1], mean[name][0]] for name in shown}
bars(heights, labels, xlabel="classes in the sets", ylabel="accuracy")

# %% tags=["shared", "say"]
features, ours, rule = [f"{mean[name][1]:.0%}" for name in shown]
each = ", ".join(f"{gain:.0f}" for gain in gains)
say(f"""Distances do, on average: in sets of unseen classes they find **{ours}** of the
odd ones, the baseline {rule} (gain per split: {each} points, one seed each). Features
find **{features}**.""")

# %% [markdown] tags=["shared"]
# The baseline shows that these sets are not too hard: a model of features depends on
# the classes that it was shown.

# %% tags=["shared", "check"]
# Checked: on unseen classes distances beat the baseline on average, features do not
(seen_plain, plain), (_, now), (seen_rule, rule) = mean.values()
assert seen_plain - plain > seen_rule - rule
assert seen_plain > seen_rule
assert plain < 0.8 * rule
assert now > rule + 0.02  # mean of 3,000 sets
assert now > 1.3 * plain
assert now > 0.65

# %% [markdown] tags=["shared"]
# ## Extra: More classes from the same pictures
#
# **Exercise 3, open.** Permute the features, by one order for all pictures: each class
# becomes a new one. Fill the gap, and train with `trained_on`, on features minus the
# mean of their set:
#
# ```python
# def more_classes(part, n=8):
#     """Every class with its features in ``n`` orders: new classes."""
#     rng, size = np.random.default_rng(0), part.features.shape[1]
#     x, labels = [part.features], [part.labels]
#     for i in range(1, n):
#         ...  # append the features, shuffled, and part.labels + 10 * i
#     return sets.Part(np.concatenate(x), np.concatenate(labels))
#
#
# def from_mean(x):
#     return x - x.mean(axis=1, keepdims=True)
#
#
# net = trained_on(from_mean, splits[0], more_classes(train))
# x = from_mean(fixed_sets(test.only(splits[0]), 1000, seed=4))
# evaluate(net, odd_one_out, (x,))["accuracy"]
# ```
#
# Does it reach the baseline? Why would it be a trap to turn the pictures?


# %% tags=["shared", "answer"]
def more_classes(part, n=8):
    """Every class with its features in ``n`` orders: new classes."""
    rng, size = np.random.default_rng(0), part.features.shape[1]
    x, labels = [part.features], [part.labels]
    for i in range(1, n):
        x.append(part.features[:, rng.permutation(size)])
        labels.append(part.labels + 10 * i)
    return sets.Part(np.concatenate(x), np.concatenate(labels))


def from_mean(x):
    return x - x.mean(axis=1, keepdims=True)


x = from_mean(fixed_sets(test.only(splits[0]), 1000, seed=4))
copies = trained_on(from_mean, splits[0], more_classes(train))
both = evaluate(copies, odd_one_out, (x,))["accuracy"]
plain = evaluate(trained_on(from_mean, splits[0]), odd_one_out, (x,))["accuracy"]
rule = found["baseline"][0, 1]
assert both < rule
say(f"""No: it finds **{both:.1%}** with the copies, {plain:.1%} without, the baseline
{rule:.1%} (one seed). So such classes are not enough. The trap: turned by half a turn,
a 6 is a 9, and an unseen class would be shown.""")

# %% [markdown] tags=["shared"]
# ## Extra: In most of its mistakes the model is unsure
#
# Before you rely on a model you want to know whether it notices its mistakes. So
# compare its largest probability in the sets in which it is wrong and in the others.

# %% tags=["shared"]
edges = [0, 0.5, 0.9, 1]
groups = {"right": sure[~is_wrong], "wrong": sure[is_wrong]}
share = {k: np.histogram(x, edges)[0] / len(x) for k, x in groups.items()}
caught = is_wrong[sure < 0.9].sum()
second = (np.argsort(-p[is_wrong], axis=1)[:, 1] == s - 1).sum()
kinds = np.sort(test.labels[test_sets[is_wrong]][:, -2:])  # n 2, the two classes
pairs, counts = np.unique(kinds, axis=0, return_counts=True)
one, other = pairs[counts.argmax()]  # most often confused

# %% mystnb={"image": {"alt": "Share of the sets over the largest probability, as bars in three bins: to 50, to 90 and to 100 percent. Of the sets in which the model is right, nearly all are in the last bin; those in which it is wrong are spread over the bins."}} tags=["shared", "figure"]
labelled = {f"{len(groups[k]):,} sets: the model is {k}": x for k, x in share.items()}
names_of_axes = {"xlabel": "largest probability, in percent", "ylabel": "share of sets"}
bars(labelled, ["0 to 50", "50 to 90", "90 to 100"], **names_of_axes)

# %% tags=["shared", "say"]
unsure, n = (sure < 0.9).mean(), is_wrong.sum()
say(f"""A person who looks at the {unsure:.1%} of all sets in which the largest
probability is under 90% sees **{caught} of the {n}** mistakes. In {second} mistakes the
odd one comes second (by chance, one in {s - 1} would). Most often confused are
{one} and {other}.""")

# %% tags=["shared", "check"]
# Checked: the model is surer where it is right; its second choice beats chance
assert share["right"][-1] > share["wrong"][-1]
assert sure[is_wrong].mean() < sure[~is_wrong].mean()
assert second / is_wrong.sum() > 1 / (s - 1)

# %% [markdown] tags=["shared"]
# ## Extra: Both frameworks train alike
#
# Forty updates of a small model at a low rate, from weights that NumPy draws, the same
# for both frameworks, and without dropout, whose random numbers differ. Compare the
# losses with those of the other page: they agree to a thousandth. (The tests of this
# book train both, and compare every loss.)

# %% tags=["shared"]
alike = new_model(**small)
rng, arrays = np.random.default_rng(0), to_arrays(alike)
for name in sorted(arrays):
    if arrays[name].ndim == 2:  # norms and biases are equal already
        bound = 1 / np.sqrt(len(arrays[name]))
        arrays[name] = rng.uniform(-bound, bound, arrays[name].shape)
from_arrays(alike, arrays)
plan = Settings(n_train=1_280, batch_size=64, epochs=2, learning_rate=5e-5, warmup=10)
order = sets.drawn(train.labels[:1_280], s, plan)
losses = fit(alike, odd_one_out, (train.features[:1_280],), plan, batches=order)["loss"]
", ".join(f"{x:.4f}" for x in losses[[0, 13, 26, 39]])

# %% [markdown] tags=["shared"]
# ## Extra: Photos need better features than pixels
#
# If you have photos, grey values will not do, because two photos of foxes agree in
# hardly any pixel. A ResNet34 ([He et al. 2016](https://arxiv.org/abs/1512.03385)),
# trained on ImageNet, turns each photo into 512 features. `make data PHOTOS=cifar100`
# downloads CIFAR-100 by `torchvision.datasets` and does this once, in PyTorch, for both
# twins:


# %% tags=["jax"]
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


# %% [markdown] tags=["jax"]
# A JAX page loads no torch; the page in PyTorch tries this with random weights.

# %% [markdown] tags=["shared"]
# `extract(photos, "IMAGENET1K_V1")` downloads the trained weights. Then the mean of the
# training photos is subtracted, and all features are divided by the same number, their
# standard deviation. If the environment variable `PHOTOS` names photos that `make data`
# has prepared, such as `cifar100` or a folder of yours, the tutorial's model learns
# them here. Two epochs of CIFAR-100 take minutes on a CPU; the tutorial trains for 100.


# %% tags=["shared"]
rates = {"learning_rate": 5e-4, "warmup": 100}


def learn_photos(source, epochs=None):
    """Test accuracy of a model that is trained on photos, and of the baseline."""
    parts, _ = sets.photos(source, seed=42)
    x, labels, _ = parts["train"]
    epochs = epochs or max(2, 640 * 64 // len(x))  # 640 updates or more
    plan = Settings(n_train=len(x), batch_size=64, epochs=epochs, **rates)
    smallest = min(np.bincount(part.labels).min() for part in parts.values())
    size = min(s, 1 + smallest)  # elements of a set
    held_out, measured = [
        part.features[sets.fixed(part.labels, size, n_test, seed=42)]
        for part in (parts["validation"], parts["test"])
    ]
    net = new_model(n_inputs=512, n_blocks=4, m=256, f=512)
    order = sets.drawn(labels, size, plan)
    fit(net, odd_one_out, (x,), plan, batches=order, validation=(held_out,))
    rule = (from_the_others(measured).argmax(axis=-1) == size - 1).mean()
    return evaluate(net, odd_one_out, (measured,))["accuracy"], rule


# %% tags=["shared"]
import os

source = os.environ.get("PHOTOS", "digits")
if sets.features_file(source).exists():
    ours, rule = learn_photos(source)
    print(f"{source}: {ours:.1%} of the test sets, baseline {rule:.1%}")
elif source != "digits":
    print(f"{source} is not prepared: run make data PHOTOS={source}")

# %% [markdown] tags=["shared"]
# How far does a model of the tutorial's size get on photos? Here is a run on CIFAR-10,
# with 512 features from k-means on small windows of the training photos ([Coates et al.
# 2011](https://proceedings.mlr.press/v15/coates11a.html)).

# %% tags=["shared", "say"]
run = recorded("cifar10-sets")[-1]
rows = [[x, *(f"{y:.1%}" for y in run[x].values())] for x in ("accuracy", "baseline")]
say(f"""{table(["sets of", *run["accuracy"]], *rows)}

Recorded in PyTorch on {run["about"]["device"]}, {run["about"]["date"][:10]}:
{run["settings"]["epochs"]} epochs in {run["seconds"] / 60:.0f} minutes.""")

# %% [markdown] tags=["shared"]
# Distances hardly show the odd one here; the model finds it in most sets, but has
# learned much of its training photos by heart. On CIFAR-100, with features from a
# network that saw a million photos, the
# [tutorial](https://uvadlc-notebooks.readthedocs.io) reports 94.66% of the test sets
# in JAX and 94.30% in PyTorch.

# %% [markdown] tags=["shared"]
# ## Extra: Your own data
#
# Nothing above is special to pictures. To use it on your own data you need features, a
# row for each element, and classes, as whole numbers. If there are no classes, use the
# baseline, or make a class of everything that belongs together, such as all
# measurements of one sample.
#
# ```python
# from sklearn.model_selection import train_test_split
#
# rows, test_rows = train_test_split(range(len(labels)), test_size=0.2, stratify=labels)
# mean, deviation = features[rows].mean(axis=0), features[rows].std(axis=0)
# x, y = (features[rows] - mean) / deviation, labels[rows]
# n = len(x)
# own = Settings(n_train=n, batch_size=64, epochs=30, learning_rate=1e-3, warmup=20)
# net = new_model(n_inputs=x.shape[1])
# fit(net, odd_one_out, (x,), own, batches=sets.drawn(y, s, own))
# ```
#
# Each feature is standardised, as yours may have different units, by the training part
# alone, because test data must not take part in anything that is learned. Sets need not
# have ten elements, because nothing in the model depends on their number.

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


# %% tags=["jax", "answer"]
def my_loss(logits):
    return -jax.nn.log_softmax(logits)[:, -1].mean()


def my_from_the_others(x):
    others = (x.sum(axis=1, keepdims=True) - x) / (x.shape[1] - 1)
    return jnp.linalg.norm(x - others, axis=-1)


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

# %% [markdown] tags=["jax"]
# Next comes [pictures as sequences, in JAX](vision_jax.ipynb). On the way to a language
# model you can go on with [a model that writes](decoder_jax.ipynb).
