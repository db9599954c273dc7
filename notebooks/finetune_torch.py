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
# # Start from a trained model
#
# By the end you can adapt a trained model to your task with a few labelled examples,
# choose between a probe, full fine-tuning and LoRA, write LoRA yourself, and keep what
# it learned in a small file. You need: the chapter on the Transformer of today.
#
# A colleague has twenty labelled examples of each class. A Transformer that starts from
# random weights has to learn at once what a text is and what the labels mean. The first
# needs no labels, and text without labels is cheap. So learn it once, and start there.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [finetune_jax](finetune_jax.ipynb).
# Before it comes [the Transformer of today, in PyTorch](today_torch.ipynb).

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

from helpers.data import byte_pairs, checkpoints, lines, sequences, text
from helpers.settings import Settings
from helpers.show import drawing, plots, recorded, say, table
from helpers.torch import LanguageModel, evaluate, fit, next_token
from helpers.torch.frameworks import cross_entropy, device, tensor
from helpers.torch.today import ModernLM, load_pretrained, projection
from helpers.weights import as_numpy, count_parameters, from_arrays, to_arrays

plots.use_style()
framework = "torch"
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## Pretraining is paid once
#
# **Pretraining** predicts the next token of much text, as in the chapter on the model
# that writes; it needs no labels. The book ships a model of that kind, with the block
# of the last chapter: four of them, and a vocabulary of 2,048 byte pairs. It read
# documentation and source code that the environment of this book contains, for about
# an hour on one core ([model card](../book/model-card.md)).

# %% tags=["shared"]
from copy import deepcopy

import safetensors.numpy

SIZES = {"n_tokens": 2048, "m": 128, "n_blocks": 4, "n_heads": 4, "n_kv_heads": 2}
SIZES |= {"f": 344, "max_length": 128}
LEARNED = safetensors.numpy.load_file(text.PRETRAINED)  # arrays by name
with safetensors.safe_open(text.PRETRAINED, "numpy") as file:
    pairs = byte_pairs.BytePairs.from_metadata(file.metadata())


# %% tags=["torch"]
def new_trunk(seed=0):
    """A model with the sizes of the one that we load, and random weights."""
    torch.manual_seed(seed)
    return ModernLM(**SIZES).to(device)


@torch.no_grad()
def forward(model, tokens):
    return model(tokens)


# %% tags=["shared"]
trunk = new_trunk()
from_arrays(trunk, LEARNED)


def logits_of(model, tokens):
    """The logits of a model as a NumPy array."""
    return as_numpy(forward(model, tensor(tokens)))


# %% [markdown] tags=["shared"]
# What is an hour worth? Beside it stands the smaller model of the chapter that writes,
# trained here with half as many updates, for less than a minute. Both are tested on the
# same 30,000 characters, from modules that neither has read.

# %% tags=["shared"]
texts = text.load()  # Python's standard library: train and test
held_out = texts["test"][:30_000]
minute_pairs = byte_pairs.BytePairs.learn(texts["train"], 97 + 512)
small = {"n_tokens": len(minute_pairs), "m": 96, "n_blocks": 2, "n_heads": 4}
small |= {"f": 384, "max_length": 64, "norm_first": True}
settings = Settings(
    n_train=16 * 65, batch_size=16, epochs=5, learning_rate=6e-3, warmup=60
)


# %% tags=["torch"]
def new_minute():
    """The smaller model, with random weights."""
    torch.manual_seed(42)
    return LanguageModel(**small).to(device)


# %% tags=["shared"]
minute = new_minute()
windows = text.random_windows(minute_pairs.encode(texts["train"]), 64, settings)
in_order = sequences.in_order(settings)  # each window once
fit(minute, next_token, (windows,), settings, batches=in_order)


def bits_of(model, pairs, given, length=64):
    """Bits per character of a text."""
    tokens = pairs.encode(given)
    rows = text.windows(tokens, length)
    loss = evaluate(model, next_token, (rows,), batch_size=len(rows))["loss"]
    return text.bits_per_character(loss, tokens, given)


# %% [markdown] tags=["shared"]
# Both write by sampling, here in NumPy, so that both frameworks draw the same tokens:


# %% tags=["shared"]
def write(model, pairs, prompt, n=48, temperature=0.6, seed=0):
    """A text and ``n`` more tokens."""
    rng, tokens = np.random.default_rng(seed), [*pairs.encode(prompt)]
    for _ in range(n):
        seen = tokens[-64:]
        row = np.array([seen + [-1] * (64 - len(seen))])  # 1 s
        logits = logits_of(model, row)[0, len(seen) - 1].astype(float)
        p = np.exp((logits - logits.max()) / temperature)
        tokens.append(rng.choice(len(p), p=p / p.sum()))
    return pairs.decode(tokens)


# %% tags=["shared"]
readers = {"a minute": (minute, minute_pairs), "an hour": (trunk, pairs)}
prompt = 'def mean(x, axis=None):\n    """Return the'
bits = {}
for name, (model, its_pairs) in readers.items():
    print(f"--- {name}", write(model, its_pairs, prompt), sep="\n")
    bits[name] = bits_of(model, its_pairs, held_out)
saved = bits["a minute"] - bits["an hour"]

# %% tags=["shared", "say"]
shown = []
for name, (model, its_pairs) in readers.items():
    sizes = f"{count_parameters(model):,}", f"{len(its_pairs):,}"
    shown.append([name, *sizes, f"{bits[name]:.2f}"])
say(table(["trained for", "parameters", "vocabulary", "bits per character"], *shown))

# %% tags=["shared", "say"]
say(
    f"The hour saves {saved:.2f} bits of {bits['a minute']:.2f}, with windows of 64 "
    "tokens; size, vocabulary, block and text differ, too. What it writes has "
    "the form of documentation, and little sense: a million parameters are few."
)

# %% tags=["shared", "check"]
# Checked: the hour is worth 0.3 bits and more; bits and text follow from the logits
assert saved > 0.3
tokens = pairs.encode(held_out)
nats = len(tokens) * evaluate(trunk, next_token, (text.windows(tokens, 64),))["loss"]
assert abs(nats / len(held_out) / np.log(2) - bits["an hour"]) < 1e-4
likely = logits_of(trunk, np.array([pairs.encode(prompt)]))[0, -1].argmax()
coldest = write(trunk, pairs, prompt, n=1, temperature=1e-4)
assert coldest == prompt + pairs.decode([likely])

# %% [markdown] tags=["shared"]
# ## A task is a new last layer
#
# The task, which the chapter on your own data takes up: is a line Python, C, JavaScript
# or English? The lines are cut to 40 characters, and the test has lines of other files.
# We pretend that only 20 lines of each language have labels. (None of these files was
# in the text of pretraining, but text of the same kinds was: with a trunk that knows
# yours less, expect less.)

# %% tags=["shared"]
train_lines, labels, test_lines, test_labels = lines.languages()


def few(n, seed=0):
    """Rows of ``n`` labelled lines of each language."""
    rng = np.random.default_rng(seed)
    each = [np.flatnonzero(labels == language) for language in range(4)]
    return np.concatenate([rng.permutation(rows)[:n] for rows in each])


def as_tokens(texts, length=32):
    """Tokens of texts, padded with -1 at the end: ``b s``."""
    rows = np.full((len(texts), length), -1)
    for row, one in zip(rows, texts, strict=True):
        tokens = pairs.encode(f"{one}\n")[:length]
        row[: len(tokens)] = tokens
    return rows


test = as_tokens(test_lines), test_labels

# %% [markdown] tags=["shared"]
# All of the model but its last layer, the **trunk**, turns tokens into vectors. The
# last layer turns vectors into logits of the next token: replace it by one with four
# outputs. Which vector does it read? A token sees itself and what came before it, so
# only the **last** one, mostly the line break, has seen the whole line. (In code, the
# new layer is `trunk.output`, so `trunk` returns logits of classes.)


# %% tags=["torch"]
class TextClassifier(nn.Module):
    """A language model with another output layer: texts ``b s`` to classes ``b c``."""

    def __init__(self, trunk, n_classes):
        super().__init__()
        self.trunk = trunk = deepcopy(trunk)  # the one that is given stays as it is
        output = projection(trunk.embed.embedding_dim, n_classes, bias=True)
        trunk.output = output.to(trunk.embed.weight)  # its dtype and device

    def forward(self, tokens):
        last = (tokens >= 0).sum(dim=1) - 1  # b
        return self.trunk(tokens)[torch.arange(len(tokens)), last]  # b c


# %% tags=["shared", "check"]
# Checked: no line of the test is one to learn from; 20 labels of each language
assert not {*train_lines} & {*test_lines}
assert [*np.bincount(labels[few(20)])] == [20] * 4

# %% [markdown] tags=["shared"]
# Which weights are trained? In a **probe**, only the new layer; in **full
# fine-tuning**, everything.

# %% [markdown] tags=["torch"]
# In PyTorch, a parameter is frozen by `requires_grad`; Adam leaves out what has no
# gradient.


# %% tags=["torch"]
def train_only(model, *names):
    """Freeze what has none of these names in its path: options for ``fit``."""
    paths = {path: {*path.split(".")} for path, _ in model.named_parameters()}
    known = sorted(set().union(*paths.values()))
    missing = sorted({*names}.difference(known))
    if missing:
        raise ValueError(f"expected names among {known}, got {missing}")
    for path, param in model.named_parameters():
        param.requires_grad_(not paths[path].isdisjoint(names))
    return {}  # no options: in PyTorch, the model itself says it


# %% [markdown] tags=["shared"]
# ## LoRA trains two thin matrices beside a frozen one
#
# Full fine-tuning needs a gradient and two averages of Adam for each weight, and the
# result is as large as the model. **LoRA** ([Hu et al.
# 2021](https://arxiv.org/abs/2106.09685)) freezes each weight matrix $W$, and adds a
# product of two thin ones that are trained, $A$ with $r$ columns and $B$ with $r$ rows:
#
# $$x W + \frac{\alpha}{r}\, x A B, \qquad W: i \times o, \quad A: i \times r, \quad
# B: r \times o.$$

# %% mystnb={"image": {"alt": "An input x, b s i, goes two ways. On the left through the wide frozen matrix W, i o. On the right through the thin matrix A, i r, then through B, r o, which begins as zeros, times alpha over r. Both results are added: b s o."}} tags=["shared", "figure"]
drawing("lora")

# %% [markdown] tags=["shared"]
# The *rank* $r$ says how much can change, $\alpha$ how strongly. $B$ begins as zeros,
# so the first outputs are those of the trained model; $A$ is random. Both stay in
# float32, also beside a $W$ in bfloat16.


# %% tags=["torch"]
class LoRALinear(nn.Module):
    """A linear layer and one of low rank beside it: ``... i -> ... o``."""

    def __init__(self, base, rank, alpha):
        super().__init__()
        if rank < 1:
            raise ValueError(f"expected a rank of at least 1, got {rank}")
        n_out, n_in = base.weight.shape
        self.base, self.alpha, self.scale = base, alpha, alpha / rank
        self.lora_a = nn.Parameter(torch.empty(n_in, rank))
        self.lora_b = nn.Parameter(torch.zeros(rank, n_out))
        nn.init.uniform_(self.lora_a, -(n_in**-0.5), n_in**-0.5)

    def forward(self, x):
        change = x.float() @ self.lora_a @ self.lora_b
        return self.base(x) + (self.scale * change).to(x.dtype)

    @property
    def weight(self):
        """The matrix with the adapter added: some layers read parts of it."""
        weight, change = self.base.weight, (self.lora_a @ self.lora_b).T
        return (weight + self.scale * change).to(weight.dtype)

    bias = property(lambda self: self.base.bias)
    in_features = property(lambda self: self.base.in_features)

    def merge(self):
        """The linear layer with the adapter added to its weights."""
        with torch.no_grad():
            self.base.weight.copy_(self.weight)
            self.lora_b.zero_()  # merged again, it adds nothing
        return self.base


# %% tags=["torch"]
def find_layers(model, kind):
    """Pairs of a module and the name of a layer of this kind in it."""
    found = []
    for path, layer in model.named_modules(remove_duplicate=False):
        if path and isinstance(layer, kind):
            parent, _, name = path.rpartition(".")
            found.append((model.get_submodule(parent), name))
    return list(dict.fromkeys(found))  # each place once


# %% tags=["torch"]
def add_lora(model, rank, alpha, names=("q", "v")):
    """Give the linear layers of these names an adapter each, in place: the model."""
    found = find_layers(model, nn.Linear)
    known = sorted({name for _, name in found})
    missing = sorted({*names}.difference(known))
    if missing:
        raise ValueError(f"expected layers among {known}, got {missing}")
    made = {}  # a layer that stands in two places gets one adapter
    for module, name in found:
        layer = getattr(module, name)
        if name in names:
            if layer not in made:
                made[layer] = LoRALinear(layer, rank, alpha)
            setattr(module, name, made[layer])
    return model


# %% [markdown] tags=["shared"]
# `add_lora` freezes nothing; `train_only` does. Which layers? Hu et al. adapted the
# projections of queries and values. We give one to every matrix of the blocks, as
# [Dettmers et al. 2023](https://arxiv.org/abs/2305.14314) do, but our rank is small:
# $r = 8$, with $\alpha = 16$.

# %% tags=["shared"]
EVERY = ("q", "k", "v", "out", "gate", "up", "down")
RANK = 8
ALPHA = 16


# %% tags=["torch"]
def classifier(arrays=None, seed=0, lora=False):
    """A classifier whose trunk has these weights, or random ones, and adapters."""
    trunk = new_trunk(seed)
    if arrays:
        from_arrays(trunk, arrays)
    model = TextClassifier(trunk, 4)  # its draws go on where the trunk's ended
    if lora:
        add_lora(model.trunk, RANK, ALPHA, EVERY)
    return model.to(device)


# %% tags=["shared"]
adapted = classifier(LEARNED, lora=True)
first = logits_of(classifier(LEARNED), test[0])
second = logits_of(adapted, test[0])
print(f"LoRA changes the first logits by {np.abs(first - second).max():.0f}")


def n_trained_of(model, *names):
    """How many numbers have one of these names in their path."""
    arrays = to_arrays(model).items()
    return sum(x.size for path, x in arrays if {*names} & {*path.split(".")})


sizes = {
    "probe": n_trained_of(adapted, "output"),
    "LoRA": n_trained_of(adapted, "lora_a", "lora_b", "output"),
    "full fine-tuning": count_parameters(classifier(LEARNED)),
}

# %% tags=["shared", "say"]
head = ["way", "numbers trained", "their gradients and averages", "file of the task"]
shown = []
for way, n in sizes.items():
    shown.append([way, f"{n:,}", *(f"{k * n / 1024:,.0f} KiB" for k in (12, 4))])
part = sizes["LoRA"] / sizes["full fine-tuning"]
say(f"{table(head, *shown)}\n\nLoRA trains {part:.0%} of the numbers.")

# %% tags=["shared", "check"]
# Checked: LoRA changes no first output, and trains as many numbers as by the formula
np.testing.assert_allclose(first, second, atol=1e-5)
shapes = [(128, 128), (128, 64), (128, 64), (128, 128)]  # q, k, v, out
shapes += [(128, 344), (128, 344), (344, 128)]  # gate, up, down
assert sizes["LoRA"] == 4 * 8 * sum(map(sum, shapes)) + sizes["probe"]

# %% [markdown] tags=["shared"]
# ## From 5 to 300 labels a class, fine-tuning beats counting characters
#
# Guess first: does a probe keep up with fine-tuning, with 5 labels of each language,
# and with 300?
#
# Fine-tuning gets 100 updates with 20 lines each. Peak rates, and the settings of probe
# and baseline, were chosen on training lines that are not used here. (With 20 labels
# you do not have these: take usual values. A choice by the test would flatter every
# way.) *From scratch*, recorded and not run here, is the same training of a model with
# random weights; the baseline counts strings of one to three characters (TF-IDF), for a
# logistic regression.


# %% tags=["shared"]
def train(model, names, rows, rate, seed=0, updates=100):
    """Train what has one of these names in its path, by batches of 20 lines."""
    n = 20 * updates
    steps = Settings(
        n_train=n, batch_size=20, epochs=1, learning_rate=rate, warmup=10, seed=seed
    )
    rng = np.random.default_rng(seed)
    often = range(1 + n // len(rows))
    drawn = np.concatenate([rng.permutation(rows) for _ in often])[:n]
    data = as_tokens(train_lines[drawn]), labels[drawn]
    frozen, in_order = train_only(model, *names), sequences.in_order(steps)
    fit(model, cross_entropy, data, steps, batches=in_order, **frozen)
    return model


# %% tags=["shared"]
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

RATES = {"from scratch": 1e-3, "full": 1e-3, "LoRA": 3e-3}
LORA = ("lora_a", "lora_b", "output")  # what is trained, by its path


def adapt(way, rows, rate, seed=0):
    """A classifier, trained on these labelled lines in one of the ways."""
    arrays = None if way == "from scratch" else LEARNED
    model = classifier(arrays, seed, lora=way == "LoRA")
    return train(model, LORA if way == "LoRA" else ["trunk"], rows, rate, seed)


def baseline(rows):
    """Counts of one to three characters (TF-IDF), with logistic regression."""
    counts = TfidfVectorizer(analyzer="char", ngram_range=(1, 3))
    last = LogisticRegression(C=100, max_iter=500)
    return make_pipeline(counts, last).fit(train_lines[rows], labels[rows])


# %% [markdown] tags=["shared"]
# In a probe the trunk is frozen, so each line's vector is computed once, and the last
# layer is a logistic regression that is run to its end. An output layer that changes
# nothing shows the vectors:

# %% tags=["torch"]
bare = TextClassifier(new_trunk(), 128).to(device)

# %% tags=["shared"]
arrays = {f"trunk.{name}": x for name, x in LEARNED.items()}
arrays |= {"trunk.output.weight": np.eye(128), "trunk.output.bias": np.zeros(128)}
from_arrays(bare, arrays)


def vectors(tokens):
    """What the last layer reads in the trained model: ``b s -> b m``."""
    return logits_of(bare, tokens).astype(np.float64)


def probe(seen, labels, C=0.1):
    """Vectors of the frozen trunk, scaled, with logistic regression."""
    last = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=5000))
    return last.fit(seen, labels)


def accuracy_of(model):
    """The share of the test's lines that a classifier names rightly."""
    return np.mean(logits_of(model, test[0]).argmax(axis=1) == test_labels)


# %% tags=["shared"]
rows = few(20)
models = {way: adapt(way, rows, RATES[way]) for way in ("full", "LoRA")}
scores = {way: accuracy_of(model) for way, model in models.items()}
seen = vectors(np.concatenate([as_tokens(train_lines[rows]), test[0]]))
seen, seen_test = seen[: len(rows)], seen[len(rows) :]
scores["probe"] = probe(seen, labels[rows]).score(seen_test, test_labels)
scores["TF-IDF"] = baseline(rows).score(test_lines, test_labels)

# %% mystnb={"image": {"alt": "Test accuracy over the number of labelled lines of each language, from 5 to 300 on a logarithmic axis, for five ways; each line is the mean of five seeds in a band from the lowest to the highest. All lines rise. Full fine-tuning and LoRA run together above all others; the probe begins close below them and stays above TF-IDF; the model from scratch is lowest."}} tags=["shared", "figure"]
(record,) = recorded(f"finetune-seeds-{framework}")
figures, numbers = record["figures"], record["numbers"]
ways = [*RATES, "probe", "TF-IDF"]
curves = {
    way: (np.array(numbers), np.transpose([figures[f"{way} {n}"] for n in numbers]))
    for way in ways
}
title = "test accuracy, five seeds"
fig = plots.curves(
    {title: curves},
    x="labelled lines of each language",
    size=(5.6, 3.4),
    marks="o",
    log_x=10,
)
fig.axes[0].set_xticks(numbers, numbers)
fig

# %% tags=["shared", "say"]
shown = []
for way in ways:
    means = [f"{x:.0%}" for x in curves[way][1].mean(axis=0)]
    here = f"{scores[way]:.0%}" if way in scores else "–"
    shown.append([way, here, *means])
say(table(["way", "20, this run", *(f"{n}, five seeds" for n in numbers)], *shown))

# %% [markdown] tags=["shared"]
# In the five seeds, full fine-tuning and LoRA beat TF-IDF with every number of labels;
# between the two, no steady winner. (In a single run TF-IDF may win: with 20 labels,
# much depends on which lines have them.) On average, the same model from scratch scores
# lower than TF-IDF: with so few updates, pretraining decides. The **probe** scores
# higher than TF-IDF with every number, and lower than LoRA: it only weighs what the
# trunk offers.

# %% tags=["shared", "experiment"]
# Experiment: means of the five seeds
means = {way: found.mean(axis=0) for way, (_, found) in curves.items()}
gap = 100 * np.abs(means["full"] - means["LoRA"]).max()
behind = [f"{x:.0f}" for x in 100 * (means["LoRA"] - means["probe"])]
like = [means[way][1] for way in ("full", "LoRA")]  # with 20 labels
error = np.sqrt(scores["LoRA"] * (1 - scores["LoRA"]) / len(test_lines))

# %% tags=["shared", "say"]
say(
    f"Full fine-tuning and LoRA differ by up to {gap:.1f} points. With 20 lines a "
    f"language, they are right in {like[0]:.0%} and {like[1]:.0%}, nearly what TF-IDF "
    f"gets with 100 ({means['TF-IDF'][2]:.0%}). The probe is {', '.join(behind)} "
    f"points behind LoRA. ({len(test_lines)} lines: a standard error of {error:.0%}.)"
)

# %% tags=["shared", "check"]
# Checked: who beats whom in the recorded seeds; in this run, up to the luck of a draw
# of lines, two standard errors of a difference
assert min(scores["full"], scores["LoRA"]) > scores["TF-IDF"] - 2 * np.sqrt(2) * error
for way in ("full", "LoRA"):
    assert (curves[way][1] > curves["TF-IDF"][1]).all()  # in each seed
ladder = [means[way] for way in ("from scratch", "TF-IDF", "probe", "LoRA")]
assert (np.diff(ladder, axis=0) > 0).all()
assert gap < 4 and abs(np.mean(like) - means["TF-IDF"][2]) < 0.02

# %% [markdown] tags=["shared"]
# ## Fine-tuning forgets, but an adapter can be taken off
#
# Has the trunk lost what it knew? Take it as a language model again, and measure the
# bits per character of the same text.


# %% tags=["shared"]
def merge_lora(model):
    """Add all adapters to the weights beside them, in place: the model as it was."""
    for module, name in find_layers(model, LoRALinear):
        setattr(module, name, getattr(module, name).merge())
    return model


# %% tags=["shared", "experiment"]
# Experiment: the trunk of a classifier as a language model again
def trunk_of(model, lora=True):
    """The trunk of a classifier, with its adapter merged or taken off."""
    copied = deepcopy(model.trunk)
    arrays = to_arrays(copied)
    if not lora:  # taken off: A and B are zero
        arrays |= {name: 0 * x for name, x in arrays.items() if "lora" in name}
    from_arrays(copied, arrays)
    arrays = to_arrays(merge_lora(copied))
    found = new_trunk()
    from_arrays(found, {n: x for n, x in arrays.items() if "output" not in n})
    return found


after = {
    "full fine-tuning": trunk_of(models["full"]),
    "LoRA": trunk_of(models["LoRA"]),
    "LoRA, adapter taken off": trunk_of(models["LoRA"], lora=False),
}
knows = {name: bits_of(model, pairs, held_out) for name, model in after.items()}
lost = {name: each - bits["an hour"] for name, each in knows.items()}

# %% tags=["shared", "say"]
shown = [["pretrained", f"{bits['an hour']:.2f}"]]
shown += [[name, f"{each:.2f}"] for name, each in knows.items()]
say(table(["trunk", "bits per character, held out"], *shown))

# %% tags=["shared", "say"]
say(
    f"Full fine-tuning on a few lines costs {lost['full fine-tuning']:.2f} bits per "
    f"character, LoRA {lost['LoRA']:.2f} while it is on. But an adapter can be taken "
    "off, and then all is as before: the frozen weights have not changed."
)

# %% tags=["shared", "check"]
# Checked: full fine-tuning forgets; without its adapter the trunk is as it was
assert lost["full fine-tuning"] > 0.02
for name, x in to_arrays(after["LoRA, adapter taken off"]).items():
    np.testing.assert_array_equal(x, LEARNED[name])

# %% [markdown] tags=["shared"]
# Only what was trained is saved, here in the form of
# [PEFT](https://huggingface.co/docs/peft), the usual library for adapters: two files, a
# configuration and the arrays. PyTorch keeps matrices as `out in`, so they are
# transposed.

# %% tags=["shared"]
import json

PEFT_NAMES = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight"}


def rank_and_alpha(model):
    """Rank and alpha of the adapters of a model: the same of all."""
    layers = [getattr(module, name) for module, name in find_layers(model, LoRALinear)]
    found = sorted({(layer.lora_a.shape[1], layer.alpha) for layer in layers})
    if len(found) != 1:
        raise ValueError(f"expected adapters of one rank and one alpha, got {found}")
    return dict(zip(("r", "lora_alpha"), found[0], strict=True))


# %% tags=["shared"]
def save_adapter(model, folder, others=()):
    """Write the adapters of a model, and layers of other names, as PEFT does."""
    arrays, adapted = {}, set()
    for name, x in to_arrays(model).items():
        *path, layer, last = name.split(".")
        adapted |= {".".join([*path, layer])} if last in PEFT_NAMES else set()
        if last in PEFT_NAMES or layer in others:
            parts = ["base_model.model", *path, layer, PEFT_NAMES.get(last, last)]
            arrays[".".join(parts)] = np.ascontiguousarray(x.T)
    config = {"peft_type": "LORA"} | rank_and_alpha(model)
    config |= {"target_modules": sorted(adapted), "modules_to_save": [*others]}
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    safetensors.numpy.save_file(arrays, folder / "adapter_model.safetensors")


# %% tags=["shared"]
def load_adapter(model, folder):
    """Put what ``save_adapter`` wrote in place of what a model with adapters has."""
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    usual = {"peft_type": "LORA", "use_rslora": False, "alpha_pattern": {}}
    for name, expected in (rank_and_alpha(model) | usual).items():
        if config.get(name, expected) != expected:
            raise ValueError(f"expected {name} = {expected}, got {config[name]}")
    arrays = {name: x * ("lora" not in name) for name, x in to_arrays(model).items()}
    file = folder / "adapter_model.safetensors"
    for name, x in safetensors.numpy.load_file(file).items():
        name = name.removeprefix("base_model.model.")
        for ours, theirs in PEFT_NAMES.items():
            name = name.replace(theirs, ours)
        arrays[name] = x.T
    from_arrays(model, arrays)


# %% [markdown] tags=["shared"]
# Beside other weights, an adapter is a wrong correction, and no error says so:

# %% tags=["shared"]
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp()) / "languages"
save_adapter(models["LoRA"], folder, ["output"])
size = (folder / "adapter_model.safetensors").stat().st_size
print(f"{size / 1024:.0f} KiB")

again = classifier(LEARNED, seed=1, lora=True)
wrong = classifier(seed=1, lora=True)  # random weights of the same sizes
for name, model in {"the pretrained trunk": again, "random weights": wrong}.items():
    load_adapter(model, folder)
    print(f"accuracy with {name}: {accuracy_of(model):.1%}")

# %% [markdown] tags=["shared"]
# So write down which weights an adapter belongs to; PEFT has `base_model_name_or_path`
# for it. To use an adapter at no extra cost, **merge** it: $W + \frac{\alpha}{r} A B$
# is a matrix of the shape of $W$ (`merge_lora` above calls `merge` of each layer).
# Unmerged, one trunk in memory serves many tasks, each with its file: `load_adapter`
# again puts another in its place.

# %% tags=["shared"]
unmerged = logits_of(again, test[0])
merge_lora(again)
merged_logits = logits_of(again, test[0])
print(f"merged, logits differ by {np.abs(merged_logits - unmerged).max():.0e}")

# %% tags=["shared", "check"]
# Checked: the file gives equal logits, also after another one; merging changes none
np.testing.assert_allclose(merged_logits, unmerged, atol=3e-4)
np.testing.assert_allclose(logits_of(models["LoRA"], test[0]), unmerged, atol=1e-5)
save_adapter(adapted, folder.with_name("untrained"), ["output"])
load_adapter(adapted, folder)
np.testing.assert_allclose(logits_of(adapted, test[0]), unmerged, atol=1e-5)
load_adapter(adapted, folder.with_name("untrained"))
np.testing.assert_allclose(logits_of(adapted, test[0]), first, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## At seven billion parameters, memory decides
#
# By the formulas of the chapter on costs, training in float32 needs sixteen bytes a
# parameter: the weight, its gradient, two averages of Adam. With LoRA the weights are
# frozen and may be in bfloat16, two bytes each; only the adapters need sixteen. For a
# Llama with 32 blocks, $m = 4{,}096$ and $f = 11{,}008$, and rank 8 for each matrix:

# %% tags=["shared"]
m, f, r = 4096, 11008, 8
tables = 2 * 32_000 * m  # embedding and output stay in bfloat16
weights = 32 * (4 * m * m + 3 * m * f) + tables
adapters = 32 * r * (4 * (m + m) + 3 * (m + f))
full_gib = 16 * weights / 2**30
lora_gib = (2 * weights + 16 * adapters) / 2**30
four_bits = ((weights - tables) / 2 + 2 * tables + 16 * adapters) / 2**30
print(f"the file of a task has {4 * adapters / 2**20:.0f} MiB")

# %% tags=["shared", "say"]
full, thin = f"{weights / 1e9:.2f} billion", f"{adapters / 1e6:.1f} million"
one = ["full fine-tuning", full, f"{full_gib:.0f} GiB"]
two = ["full fine-tuning, all in bfloat16", full, f"{full_gib / 2:.0f} GiB"]
three = ["LoRA", thin, f"{lora_gib:.1f} GiB"]
four = ["LoRA, blocks in four bits", thin, f"{four_bits:.1f} GiB"]
say(table(["way", "trained", "weights, gradients, averages"], one, two, three, four))

# %% [markdown] tags=["shared"]
# Activations come on top, in both ways. So with small batches LoRA fits one GPU with
# 24 GB; full fine-tuning in float32 does not fit one with 80, and all in bfloat16 it
# rounds small updates away. [QLoRA, Dettmers et al.
# 2023](https://arxiv.org/abs/2305.14314), keeps the frozen matrices of blocks in four
# bits.

# %% tags=["shared", "check"]
# Checked: the count is that of Llama 2 7B; LoRA fits where full fine-tuning does not
assert abs(weights - 6_738_415_616) < 1e6  # without the norms
assert lora_gib < 20e9 / 2**30 < 80e9 / 2**30 < full_gib

# %% [markdown] tags=["shared"]
# ## In your own code
#
# The same cells fine-tune a published model. Name one in `MODEL`, as in the chapter
# before (on a GPU, say `HuggingFaceTB/SmolLM2-135M`, or `openai-community/gpt2`), and
# put your text in place of ours; without it, a tiny Llama with random weights shows
# that the cells run. Larger models mostly need smaller steps. First values: 2e-4 for
# LoRA, as in QLoRA up to 13 billion parameters (there $\alpha / r$ is a quarter: with a
# larger one, try less, too), and 2e-5 for full fine-tuning, the smallest rate that
# [Devlin et al. 2019](https://arxiv.org/abs/1810.04805) try for BERT. Change the rate
# first, then rank and layers.

# %% tags=["torch"]
published, tokenizer = load_pretrained(checkpoints.chosen("llama"))
torch.manual_seed(0)
published = add_lora(published, RANK, ALPHA, ("q", "v")).to(device)

# %% tags=["shared"]
ids = np.array(tokenizer.encode(texts["train"][:40_000]).ids)  # or your text
windows = text.windows(ids, min(64, published.max_length))  # n s+1
learn, watch = (windows[:32],), (windows[32:64],)
steps = Settings(n_train=32, batch_size=4, epochs=2, learning_rate=2e-4, warmup=2)
losses = [evaluate(published, next_token, watch)["loss"]]
frozen = train_only(published, "lora_a", "lora_b")
fit(published, next_token, learn, steps, **frozen)
losses.append(evaluate(published, next_token, watch)["loss"])
save_adapter(published, folder.with_name("text"))
print(f"held-out loss {losses[0]:.3f} before, {losses[1]:.3f} after")

# %% tags=["shared", "check"]
# Checked: what was published is as it was, and all adapters have learned
fresh, _ = load_pretrained(checkpoints.chosen("llama"))
new = to_arrays(published)
for name, x in to_arrays(fresh).items():
    kept = name if name in new else name.replace(".weight", ".base.weight")
    np.testing.assert_array_equal(x, new[kept])
assert all(np.abs(x).max() > 0 for name, x in new.items() if "lora" in name)

# %% [markdown] tags=["shared"]
# Merge first (`merge_lora(published)`), and `generate` writes at full speed.

# %% [markdown] tags=["torch"]
# For models of `transformers`, PEFT does it, and its files have the form of ours:
#
# ```python
# from peft import LoraConfig, PeftModel, get_peft_model
#
# config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
# model = get_peft_model(base, config)  # base itself gets adapters, and is frozen
# model.save_pretrained("adapter")  # after training as usual
# merged = model.merge_and_unload()
# model = PeftModel.from_pretrained(base_loaded_anew, "adapter")  # another day
# ```
#
# For a classifier, add `task_type="SEQ_CLS"`: else its new last layer is not trained
# itself, nor saved.

# %% [markdown] tags=["shared"]
# **Exercise 1, two functions.** Write `merged(w, a, b, alpha)`, the matrix that
# `merge_lora` makes, with `w` of shape $i \times o$, as `to_arrays` gives it, and
# `n_trained(shapes, rank)`: how many numbers the adapters beside matrices of these
# shapes have. Compare both with the page's own: in `to_arrays(models["LoRA"].trunk)`,
# names end in `q.base.weight`, `q.lora_a`, `q.lora_b`; `again.trunk` is merged by now;
# the table counts the last layer, too. From which rank on does an adapter of a square
# matrix, $m \times m$, have more numbers than the matrix, and what does rank $m$ reach
# that a smaller one cannot?


# %% tags=["shared", "answer"]
def merged(w, a, b, alpha):
    return w + alpha / a.shape[1] * a @ b


def n_trained(shapes, rank):
    return sum(rank * (n_in + n_out) for n_in, n_out in shapes)


of_blocks = [x.shape for n, x in LEARNED.items() if {*EVERY} & {*n.split(".")}]
assert n_trained(of_blocks, 8) == sizes["LoRA"] - sizes["probe"]
beside, place = to_arrays(models["LoRA"].trunk), "blocks.0.attention.q"
three = (beside[f"{place}.{part}"] for part in ("base.weight", "lora_a", "lora_b"))
found = to_arrays(again.trunk)[f"{place}.weight"]  # again was merged
np.testing.assert_allclose(merged(*three, alpha=16), found, atol=1e-5)
say(
    "From $r > m/2$ on, because then $2mr > m^2$. $AB$ has at most rank $r$, so only "
    "with $r = m$ can it be any change. LoRA bets that a change of low rank is enough."
)
assert n_trained([(40, 40)], 21) > 40**2 >= n_trained([(40, 40)], 20)

# %% [markdown] tags=["shared"]
# **Exercise 2, one change of code.** $B$ begins as zeros. Set $A$ to zero as well, in
# `classifier(LEARNED, lora=True)`, train as above, with 30 updates, and look at the
# adapters. What happens, and which way is left?

# %% tags=["shared", "answer"]
zeros = classifier(LEARNED, lora=True)
arrays = {n: x * ("lora" not in n) for n, x in to_arrays(zeros).items()}
from_arrays(zeros, arrays)
train(zeros, LORA, rows, RATES["LoRA"], updates=30)
moved = [np.abs(x).max() for n, x in to_arrays(zeros).items() if "lora" in n]
say(
    f"The adapters stay zero ({max(moved):.0f}), and the accuracy is "
    f"{accuracy_of(zeros):.0%}: only the last layer learns, as in a probe, but in 30 "
    f"updates. (The page's probe: {scores['probe']:.0%}.) The gradient of $A$ has the "
    "factor $B$, that of $B$ the factor $xA$: both are zero."
)
assert max(moved) == 0

# %% [markdown] tags=["shared"]
# ## Extra: Text that a model has read before
#
# **Exercise 3, find the leak.** Say that `mine` are lines of your task, and `others`
# lines like them that are newer than both models. You are offered a model that is said
# to be good at such lines, `offered` below; of ours, `minute`, you know what it has
# read. Which numbers of `bits_of(model, minute_pairs, text)` tell whether the other has
# read `mine`?

# %% tags=["shared", "experiment"]
# Experiment: where the offered model comes from
spare = train_lines[np.setdiff1d(np.arange(len(train_lines)), rows)]
mine, others = "\n".join(spare[:300]), "\n".join(spare[300:600])
offered = new_minute()
from_arrays(offered, to_arrays(minute))
read = text.windows(minute_pairs.encode(mine), 64)[:80]  # no labels
steps = Settings(n_train=80, batch_size=16, epochs=8, learning_rate=2e-3, warmup=10)
reading = fit(offered, next_token, (read,), steps)

# %% tags=["shared", "answer"]
leak = {
    name: [bits_of(one, minute_pairs, each) for each in (mine, others)]
    for name, one in (("ours", minute), ("offered", offered))
}
shown = [[name, *(f"{each:.2f}" for each in both)] for name, both in leak.items()]
gains = np.subtract(*leak.values())  # of the offered model: on mine, on others
say(
    table(["model", "`mine`", "`others`"], *shown)
    + "\n\nBits per character, on your lines and on lines like them. The offered one "
    f"is {gains[0]:.2f} better on `mine`, and on `others` by {gains[1]:.2f}, which is "
    "less: it has read `mine`, or near copies, for which no label was needed. An equal "
    "gain on both would be no sign of it."
)
assert gains[0] > gains[1] + 0.2

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** Why does $B$ begin as zeros?
#
# <details><summary>So that fewer numbers are trained.</summary>
#
# **No.** All of $B$ is trained, from the first update on. Its start saves nothing.
#
# </details>
# <details><summary>So that training begins with the trained model's outputs.</summary>
#
# **Right.** $xAB = 0$, so the adapter changes nothing until $B$ has moved. With random
# $B$, it would add noise to every layer at once.
#
# </details>
# <details><summary>So that the adapter stays small, as with weight decay.</summary>
#
# **No.** Nothing holds them there: Adam moves $B$ by about the learning rate in each of
# the first updates.
#
# </details>
#
# **2.** You load an adapter of rank 8 onto a trunk of the same sizes that has been
# fine-tuned since. What would its outputs be, if nothing checked?
#
# <details><summary>Those of the trained adapter: all shapes fit.</summary>
#
# **No.** Shapes fit, but $AB$ was trained as a correction of other weights.
#
# </details>
# <details><summary>Those of the trunk: an unknown adapter is ignored.</summary>
#
# **No.** It is added all the same. Numbers do not know where they belong.
#
# </details>
# <details><summary>Wrong ones, without an error.</summary>
#
# **Right.** So keep beside the file which weights it was trained on.
#
# </details>
#
# **3.** In the model of seven billion, LoRA trains one number of three hundred. By how
# much does the memory for activations shrink?
#
# <details><summary>Hardly at all.</summary>
#
# **Right.** Gradients pass through every layer on their way to the adapters, and $A$
# needs the inputs of its layer, as $W$ would. (A probe needs none of the trunk's.)
#
# </details>
# <details><summary>As much as the memory of the optimizer.</summary>
#
# **No.** Gradients and Adam's averages shrink with what is trained. Activations depend
# on batch, length and layers.
#
# </details>
# <details><summary>To half: the backward pass goes through adapters only.</summary>
#
# **No.** To reach the adapter of the first block, it goes through all others, frozen
# matrices included.
#
# </details>
#
# **4.** An adapter was merged into weights in bfloat16. Can you take it off again?
#
# <details><summary>Yes, exactly: subtract what was added.</summary>
#
# **No.** The sum was rounded to eight significant bits, and so is the difference: what
# was lost does not come back.
#
# </details>
# <details><summary>No, because both matrices are gone.</summary>
#
# **No.** They are gone from the model, but the file of the adapter still has them.
#
# </details>
# <details><summary>Yes, but only nearly.</summary>
#
# **Right.** Subtracting undoes it up to rounding. So keep the trunk's own file, and
# load it again.
#
# </details>
#
# **5.** The lines of the test, without their labels, were in the text of pretraining.
# Is the comparison with TF-IDF fair?
#
# <details><summary>Yes, because nothing can leak without labels.</summary>
#
# **No.** Exercise 3 shows how well a model knows text it has read, and what it knows of
# a line helps to classify it.
#
# </details>
# <details><summary>No, because the trunk has read them, and TF-IDF has not.</summary>
#
# **Right.** In use, lines will be new to both. Leave the test out of everything that is
# trained, with labels or without.
#
# </details>
# <details><summary>No, because the labelled lines were lines of the test.</summary>
#
# **No.** The labelled lines are others, of other files. It is the trunk that has seen
# the test.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Pretraining needs no labels, is paid once, and serves every task that follows.
# * A classifier is the model with another last layer. Try the cheapest way first: a
#   probe; then LoRA, which did about as well here as full fine-tuning. Keep a baseline
#   beside them.
# * LoRA adds $\frac{\alpha}{r} AB$ to frozen matrices. $B = 0$ at the start; merged, it
#   costs nothing; a task is a small file.
# * Once the adapter is off, nothing is forgotten.
# * The text of pretraining must not contain the test.

# %% [markdown] tags=["torch"]
# Next comes [a model that reads both sides, in PyTorch](masked_torch.ipynb): masked
# tokens, published encoders, and a map of atoms.
