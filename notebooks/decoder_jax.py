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
# # A model that writes
#
# By the end you can turn text into tokens, train a language model, compare it with
# models that count, and let it write. An extra makes writing fast, with a key–value
# cache. You need: the chapters on the encoder and on the reverse task.
#
# Labels are expensive, but text is its own label: hide the next word, and let the model
# guess it. To guess well, it must pick up spelling, grammar, style and facts, and then
# it can also write: draw a probable word, append it, and ask again.

# %% [markdown] tags=["jax"]
# This page uses **JAX** with Flax NNX. The same page in PyTorch:
# [decoder_torch](decoder_torch.ipynb). Before it comes [pictures as sequences, in
# JAX](vision_jax.ipynb).

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
import math
import re
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from platform import python_version

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from helpers.data import text
from helpers.data.byte_pairs import PIECE, BytePairs, merged
from helpers.data.ngrams import ngram_bits
from helpers.data.sequences import in_order, one_hot
from helpers.engine.runs import runs_folder
from helpers.engine.settings import Text
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import (
    count_parameters,
    download_link,
    from_arrays,
    to_arrays,
)
from helpers.exercises import check  # of what you write
from helpers.jax import (
    POSITIONS,
    Encoder,
    LearnedPositions,
    attention,
    build,
    check_tokens,
    evaluate,
    fit,
    full_float32,
    fused_attention,
    generate,
    masked_softmax,
    merge_heads,
    new_cache,
    pick,
    unembedding,
)
from helpers.show import drawing, plots, viewer
from helpers.show.prose import say, table, word

# %% tags=["jax", "experiment"]
# Experiment: device, style, and the names floats, integers, booleans, framework
plots.use_style()
# These make JAX arrays out of lists and NumPy arrays.
floats = partial(jnp.asarray, dtype=jnp.float32)
integers = partial(jnp.asarray, dtype=jnp.int32)
booleans = partial(jnp.asarray, dtype=jnp.bool_)
framework = "jax"
f"JAX {jax.__version__} on {jax.devices()[0].platform}"

# %% [markdown] tags=["shared"]
# ## A text is predicted token by token
#
# A text is a sequence of **tokens** $x_0, x_1, \dots, x_s$: characters, words, or
# something between. A **language model** gives the probability of each possible next
# token, and so it can write:

# %% mystnb={"image": {"alt": "The tokens def, add, an opening parenthesis and a go into the model. A softmax of the last logits gives the probabilities of a comma, a closing parenthesis, an equals sign and a colon. One of them is drawn and appended to the tokens."}} tags=["shared", "figure"]
drawing("next-token")

# %% [markdown] tags=["shared"]
# By the chain rule, it also gives the probability of a text after its first token: a
# product with one factor for each token $x_t$, given all tokens $x_{<t}$ before it:
#
# $$p(x_1, \dots, x_s \mid x_0) = \prod_{t=1}^{s} p(x_t \mid x_{<t}).$$
#
# ## Frequent strings become tokens
#
# As a text that every machine has, we take the source of Python's standard library:
# thirty modules to learn from, eight others held out.

# %% tags=["shared"]
settings = Text()  # all numbers of this task, shown in a table below
texts = text.load()  # train and test, each one string
print(texts["test"][:230])

# %% [markdown] tags=["shared"]
# Single *characters* make long sequences; with whole *words*, the vocabulary is huge,
# and a new word has no token. **Byte-pair encoding** ([Sennrich et al.
# 2016](https://arxiv.org/abs/1508.07909)) is a compromise: begin with the characters,
# make the most frequent pair of neighbours a new token, and repeat. So frequent words
# become one token, and rare words can be spelled. No merge crosses the border of a
# *piece*: a word or a run of signs, each with the blank before it, or a line break with
# its indent.


# %% tags=["shared"]
def learn_merges(string, n_merges):
    """The most frequent pair of neighbours, made a new token, ``n_merges`` times."""
    counts = Counter(PIECE.findall(string))  # the pieces
    split = {piece: [*piece] for piece in counts}  # its tokens: characters at first
    merges = []
    for _ in range(n_merges):
        found = Counter()
        for piece, parts in split.items():
            for pair in pairwise(parts):
                found[pair] += counts[piece]
        best = max(found, key=found.get)
        merges.append("".join(best))
        for piece, parts in split.items():  # one token in the place of each such pair
            split[piece] = merged(parts, best, merges[-1])
    return merges


merges = learn_merges(texts["train"], 16)
print(merges)

# %% [markdown] tags=["shared"]
# Indents come first. We learn 512 merges, and encode a text by applying them in the
# same order.

# %% tags=["shared"]
pairs = BytePairs.learn(texts["train"], settings.n_tokens)
tokens = {name: pairs.encode(part) for name, part in texts.items()}  # integer arrays
ids = pairs.encode("def __init__(self, name):")
print(*ids)

# %% tags=["shared", "say"]
n_characters, lines = len(pairs.numbers), []
for n in (0, 16, 128, len(pairs) - n_characters):
    some = BytePairs("".join(pairs.numbers), [*pairs.merges][:n])
    parts = [some.decode([i]) for i in some.encode(pairs.decode(ids))]
    shown = " ".join(f"`{part.replace(' ', '␣')}`" for part in parts)
    lines.append([n, shown, len(parts)])
say(table(["merges", "tokens", "their number"], *lines))
say(
    f"With {n_characters} characters, the vocabulary has {len(pairs)} tokens. The "
    f"training text becomes {len(tokens['train']):,} tokens, the held-out text "
    f"{len(tokens['test']):,} (in Python {python_version()})."
)

# %% [markdown] tags=["shared"]
# A token's number is only a name: token 20 is not twice token 10. So each of the $c$
# tokens gets a learned vector of size $m$: its row of an **embedding** table $E$, or
# its one-hot vector times $E$.


# %% tags=["jax"]
def embedding(n_tokens, m, *, rngs):
    """Table with a vector for each token, ``c m``: normal, standard deviation 1/√m."""
    normal = nnx.initializers.normal(m**-0.5)
    return nnx.Embed(n_tokens, m, embedding_init=normal, rngs=rngs)


# %% tags=["shared", "check"]
# Checked: decoding gives the texts; they share no module; a row is one-hot times E
assert merges == pairs.tokens[n_characters:][: len(merges)] and merges[0].isspace()
for name, part in texts.items():
    assert pairs.decode(tokens[name]) == part
assert tokens["test"].max() < len(pairs) == settings.n_tokens
assert not set(text.HELD_OUT) & set(text.TRAINING)
assert texts["test"][:5000] not in texts["train"]
E = build(embedding, settings.n_tokens, settings.m, seed=settings.seed)
(matrix,) = to_arrays(E).values()  # c m
looked_up = as_numpy(E(integers(ids)))  # s m
np.testing.assert_allclose(one_hot(ids, settings.n_tokens) @ matrix, looked_up)

# %% [markdown] tags=["shared"]
# ## The whole stack is causal
#
# To predict the next token, each position may collect what earlier tokens say, but
# nothing from later ones: the answer is among them. So the **causal mask** of the
# chapter on attention hides them in every block. Apart from the mask (and pre-norm),
# the **decoder** of a language model is the encoder of the earlier chapters.
#
# Before it come the embedding and, as in GPT-2, a learned vector for each of the 64
# positions. After it, the logit of a token is the dot product of the output vector with
# the row of that token, so all logits are $x E^\top$. Rows of standard deviation
# $1/\sqrt m$ keep the untrained logits near size 1. One table reads and writes the
# tokens: **tied weights** ([Press & Wolf 2017](https://arxiv.org/abs/1608.05859)). A
# softmax turns the logits of each position into probabilities. In the drawing, the bar
# in full colour is that of the next token.

# %% mystnb={"image": {"alt": "The tokens def, add, an opening parenthesis, a and a comma go through embed, positions and a decoder of two blocks with a triangular causal mask, then logits. Below, each position has a small bar for each of six tokens; the one in full colour belongs to its label. The labels stand in the last row: add, parenthesis, a, comma, b."}} tags=["shared", "figure"]
drawing("language-model")


# %% tags=["jax"]
class LanguageModel(nnx.Module):
    """Logits of the next token at every position: ``b s -> b s c``."""

    def __init__(
        self, n_tokens, m, *, n_blocks, n_heads, f, max_length, causal=True, rngs
    ):
        self.causal = causal
        self.embed = embedding(n_tokens, m, rngs=rngs)
        self.positions = LearnedPositions(m, max_length, rngs=rngs)
        self.decoder = Encoder(n_blocks, m, n_heads, f, norm_first=True, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(jnp.maximum(tokens, 0))  # b s m; padding, -1, has no row
        x = self.decoder(self.positions(x), is_causal=self.causal)
        return self.embed.attend(x)  # x Eᵀ: b s c


# %% [markdown] tags=["shared"]
# To test the whole stack, we change token 40 of 64 and see which logits move.

# %% tags=["shared"]
asked = "n_tokens", "m", "n_blocks", "n_heads", "f", "max_length"  # of `LanguageModel`
sizes = {name: settings.model[name] for name in asked}
model = build(LanguageModel, seed=settings.seed, **sizes)
held_out = text.windows(tokens["test"], settings.length)  # n s+1
in_one = {"batch_size": len(held_out)}  # all windows in one batch

# %% tags=["shared", "say"]
window = tokens["test"][None, :65]  # b s+1
row = window[:, :-1]  # b s
changed = np.where(np.arange(64) == 40, (row + 1) % settings.n_tokens, row)
before, after = (as_numpy(model(integers(each))) for each in (row, changed))  # b s c
moved = np.abs(after - before).max(axis=(0, 2))  # of each position: s
say(
    f"The logits of the {np.sum(moved == 0)} positions before it stay bit-equal; those "
    f"of position 40 move by up to {moved[40]:.1f}."
)

# %% tags=["shared", "check"]
# Checked: earlier logits stay bit-equal, later ones move
np.testing.assert_array_equal(after[:, :40], before[:, :40])
assert (moved[40:] > 0).all()

# %% [markdown] tags=["shared"]
# ## One pass makes a prediction at every position
#
# Causality also makes training cheap. Position $t$ sees only the tokens up to $t$, so
# its logits are those of the text cut off there. One pass over $s + 1$ tokens therefore
# trains $s$ predictions: inputs are all tokens but the last, labels all but the first.
# In this **teacher forcing**, the model always continues the *real* text.
#
# $$\mathrm{loss} = -\frac{1}{s} \sum_{t=1}^{s} \ln p(x_t \mid x_{<t}).$$
#
# The unit of $-\ln p$ is the *nat*. Shorter texts are padded at the end with $-1$,
# which the loss leaves out.


# %% tags=["jax"]
def next_token(model, *batch):
    """Mean cross-entropy and accuracy of predicting each token from those before it."""
    *given, tokens = batch  # given: empty here; a source, in translation
    labels = tokens[:, 1:]  # b s
    logits = model(*given, tokens[:, :-1])  # b s c
    real = labels >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, jnp.maximum(labels, 0)
    )  # b s
    hits = logits.argmax(-1) == labels  # never where there is padding
    loss = jnp.where(real, losses, 0).sum() / real.sum()
    return loss, {"accuracy": hits.sum() / real.sum()}


# %% tags=["shared", "say"]
untrained = evaluate(model, next_token, (held_out,), **in_one)["loss"]
blind = math.log(settings.n_tokens)
say(
    f"Untrained, the loss is **{untrained:.2f}** nats, "
    f"{word('more', untrained, blind)} than the "
    f"$\\ln {settings.n_tokens}$ = {blind:.2f} of equal probabilities, because random "
    "logits prefer some tokens without a reason."
)

# %% tags=["shared", "check"]
# Checked: one pass equals a pass for each beginning; the loss is the mean of -ln p
log_p = before[0].astype(np.float64)  # s c, of one pass
log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
of_label = log_p[np.arange(64), window[0, 1:]]  # s
spread = before.var(axis=-1).mean()  # normal logits add half of it to the loss
assert abs(untrained - blind - spread / 2) < 0.3  # loose: differs between seeds
for n in (1, 2, 40, 64):  # beginnings padded at the end: one shape for all
    beginning = np.where(np.arange(64) < n, row, -1)
    last = as_numpy(model(integers(beginning)))[0, n - 1]
    np.testing.assert_allclose(last, before[0, n - 1], atol=1e-5)
    labels_too = np.where(np.arange(65) <= n, window, -1)
    loss, _ = next_token(model, integers(labels_too))  # padding does not count
    np.testing.assert_allclose(as_numpy(loss), -of_label[:n].mean(), rtol=1e-5)

# %% [markdown] tags=["shared"]
# What if we forget the mask? Then position $t$ sees its own label, token $t + 1$. We
# train a small model on characters without it, and measure the loss inside new texts,
# and at their end, where a model would write.

# %% tags=["shared", "experiment"]
# Experiment: train a small model on characters without the mask, and test it
alphabet = BytePairs("".join(pairs.numbers))  # no merges: characters are tokens
small = replace(
    settings, n_tokens=len(alphabet), length=16, batch_size=32, n_train=32 * 150, m=64,
    epochs=1, n_heads=1, f=128, n_blocks=1, learning_rate=6e-3, warmup=30,
)  # fmt: skip
small_sizes = {name: small.model[name] for name in asked}
characters = {name: alphabet.encode(part[:500_000]) for name, part in texts.items()}
small_rows = text.random_windows(characters["train"], small)
new_rows = text.windows(characters["test"], 8)[:2000]  # b s+1
one = build(LanguageModel, causal=False, seed=1, **small_sizes)
fit(one, next_token, (small_rows,), small, batches=in_order(small))
logits = as_numpy(one(integers(new_rows[:, :-1])))  # b s c
costs = text.nats(logits, new_rows).mean(axis=0)  # s

# %% tags=["shared", "say"]
inside, at_end = costs[:-1].mean(), costs[-1]
say(
    f"Inside the texts, the loss is **{inside:.2f}** nats per character: the model "
    f"copies. At the end there is nothing to copy, and the loss is **{at_end:.2f}** "
    f"(blind guessing: {np.log(len(alphabet)):.2f}). So if a loss falls too fast, look "
    "for a leak from label to input."
)

# %% tags=["shared", "check"]
# Checked: without the mask, little loss inside the text, much at its end
assert inside < 0.5  # loose: copied
assert at_end > 4  # loose: more than 5 in ten runs of ten

# %% [markdown] tags=["shared"]
# ## A short training run is ahead of our n-grams
#
# Now the real model, with the loop of the reverse task and these settings:

# %% tags=["shared", "say"]
choices = f"""n_tokens|97 characters, 512 merges|10,000 to 100,000
length, n_blocks, m|little time|512 to 4,096; 6 to 12; 384 to 768
n_heads, f|m/24, 4m|m/64, 4m
batch_size|many updates|32 to 512
n_train|new windows each epoch|all of the text
epochs|{settings.updates} updates|until the held-out loss rises
learning_rate|small models bear it|3e-4 to 1e-3
warmup|a tenth of all|a twentieth
dropout|few windows come twice|0.1 if data repeat"""
lines = []
for these, *why in (line.split("|") for line in choices.splitlines()):
    values = [f"{getattr(settings, name)}" for name in these.split(", ")]
    lines.append([f"`{these}`", ", ".join(values), *why])
say(table(["setting", "value", "why here", "try first for another task"], *lines))

# %% tags=["shared"]
model = build(LanguageModel, seed=settings.seed, **sizes)
rows = text.random_windows(tokens["train"], settings)  # a row for each window: n s+1
kept = {"batches": in_order(settings), "folder": runs_folder(f"decoder_{framework}")}
history = fit(model, next_token, (rows,), settings, **kept)
held_out_loss = evaluate(model, next_token, (held_out,), **in_one)["loss"]
bits = text.bits_per_character(held_out_loss, tokens["test"], texts["test"])

# %% [markdown] tags=["shared"]
# Because longer tokens are harder to guess, we count **bits per character**: the loss
# in nats per token, divided by $\ln 2$ and by the mean number of characters in a token.
# The baselines, **n-grams**, count what followed each context of $n - 1$ characters in
# the training text, and mix in shorter contexts, the more the rarer one is. Witten–Bell
# smooths them; Kneser–Ney would be somewhat better ([Chen & Goodman
# 1996](https://aclanthology.org/P96-1041/)).

# %% tags=["shared", "experiment"]
# Experiment: bits per character of n-grams, and of the model while it learns
names = {1: "unigram", 3: "trigram", 5: "5-gram", 6: "6-gram"}
counted = ngram_bits(texts["train"], texts["test"], max(names))
ngrams = {n: counted[n - 1] for n in names}
to_bits = len(tokens["train"]) / len(texts["train"]) / math.log(2)  # from nats a token
learning = to_bits * history["loss"].reshape(-1, 10).mean(axis=1)  # of ten updates
at = 10 * np.arange(1, len(learning) + 1)

# %% tags=["shared", "say"]
lines = [[names[n], "counted", f"{value:.2f}"] for n, value in ngrams.items()]
about = f"{count_parameters(model):,} parameters"
lines += [["our Transformer", about, f"**{bits:.2f}**"]]
say(table(["model", "how", "bits per character, held out"], *lines))
say(
    f"After {history['seconds'].sum():.0f} seconds, the Transformer needs "
    f"{word('fewer', bits, ngrams[5])} bits than the best of these n-grams, in this "
    "run (other seeds: see the extra on GPT-2). On the modules it learns from, it "
    f"reaches {learning[-10:].mean():.2f}, although this is not one pass over "
    "them: other modules have other names. On these, the loss is "
    f"{held_out_loss:.2f} nats, and the **perplexity** $e^{{\\mathrm{{loss}}}}$ is "
    f"{np.exp(held_out_loss):.0f}: as hard as choosing among so many equally probable "
    "tokens."
)

# %% mystnb={"image": {"alt": "Bits per character over the updates. The training curve falls steeply, then slowly, and ends below a short line for the held-out text, which is below the line of the 5-gram."}} tags=["shared", "figure"]
title = "On new text, the model is ahead of the 5-gram"
panels = {title: {
    "in training": (at, learning),
    "held out, at the end": (at[-10:], np.full(10, bits)),
    "5-gram, held out": (at, np.full(len(at), ngrams[5])),
}}  # fmt: skip
fig = plots.curves(panels, x="update", y="bits per character", size=(6.2, 3))
fig

# %% tags=["shared", "check"]
# Checked: fewer bits than every n-gram; training ends below held out, below the 5-gram
assert bits < ngrams[5] < ngrams[6] < ngrams[3] < ngrams[1]
assert bits < 2.25
assert rows.size < len(tokens["train"])  # not one pass
lines = "in training", "held out, at the end", "5-gram, held out"
ends = [plots.drawn(fig, title, line)[1][-10:].mean() for line in lines]
assert ends[0] < ends[1] < ends[2]

# %% [markdown] tags=["shared"]
# The lead is small; rotary positions widen it, in *The Transformer of today*. But
# counting cannot follow: nearly all longer contexts are new. The loss of a Transformer
# falls as a power law, if updates, parameters and text grow together ([Kaplan et al.
# 2020](https://arxiv.org/abs/2001.08361)).
#
# **Exercise 1, predict and measure.** At the first position of a window the model knows
# one token, at the last one 64. The mean loss stands above. Guess it at both ends, then
# measure it on `held_out[::7]`: `text.nats(logits, rows)` gives all losses, `b s`.

# %% tags=["shared", "answer"]
some = held_out[::7]  # b s+1
logits = as_numpy(model(integers(some[:, :-1])))  # b s c
at_position = text.nats(logits, some).mean(axis=0)  # s
spans = {"1": slice(1), "2 to 4": slice(1, 4), "5 to 16": slice(4, 16)}
spans["17 to 64"] = slice(16, 64)
means = [at_position[span].mean() for span in spans.values()]
lines = zip(spans, map("{:.2f}".format, means), strict=True)
say(table(["position", "loss, nats per token"], *lines))
assert means[0] - means[2] > means[2] - means[3]
say(
    f"The loss is {word('higher', means[0], means[3])} at the first position, and most "
    "is gained early: a few tokens tell which word and which phrase it is. Earlier "
    "context helps little more, at least in a model as small as this one."
)

# %% [markdown] tags=["shared"]
# ## In our model, the first block looks nearer than the second
#
# Choose a layer (a block), a head and a token; `⏎` is a line break, `␣` a space.


# %% tags=["shared"]
def maps_of(tokens):
    """Attention maps of the language model: ``b s -> l b h q k``."""
    x = model.positions(model.embed(integers(tokens)))  # b s m
    x, maps = model.decoder(x, is_causal=True, return_maps=True)
    return as_numpy(maps)


code = "class Stack:\n    def push(self, item):\n        self.items.append(item)\n"
ids = pairs.encode(code)
maps = maps_of(ids[None])

# %% tags=["shared", "figure"]
visible = [token.replace(" ", "␣").replace("\n", "⏎") for token in pairs.tokens]
few = held_out[::7]  # b s+1, of all modules
many = maps_of(few[:, :-1])
breaks = np.char.startswith(np.array(visible), "⏎")[few[:, :-1]]  # b s
on_breaks = (many * breaks[:, None, None]).sum(axis=-1)[..., 8:].mean(axis=(1, 3))
head = int(on_breaks[1].argmax())  # of the second block
on_own = (maps[1, 0, head] * [visible[i].startswith("⏎") for i in ids]).sum(axis=-1)
query = int(on_own.argmax())  # a token that looks at line breaks
viewer.attention(
    maps[:, 0], [visible[i] for i in ids], layer=1, head=head, query=query,
    about="Attention maps of the trained language model: rows are the tokens that look",
)  # fmt: skip

# %% tags=["shared", "say"]
back = np.arange(64)[:, None] - np.arange(64)  # q k: how far a key is behind its query
distance = (many * np.tril(back)).sum(axis=-1)[..., 32:].mean(axis=(1, 3))  # l h
near, far = distance.mean(axis=-1)
say(
    "In the second half of held-out windows, the first block looks "
    f"**{near:.0f} tokens** back on average, the second **{far:.0f}**; equal weights "
    f"would give {np.arange(32, 64).mean() / 2:.0f}. The second block's head {head} "
    f"puts {on_breaks[1, head]:.0%} of its weight on line breaks with their indents, "
    f"which are {breaks.mean():.0%} of the tokens."
)

# %% tags=["shared", "check"]
# Checked: the first block looks nearer; a head of the second looks at line breaks
np.testing.assert_allclose(many.sum(axis=-1), 1, atol=1e-5)
assert (np.triu(np.ones((64, 64)), 1) * many == 0).all()
assert near < 0.8 * far  # loose: differs between seeds
assert on_breaks[1, head] > 1.5 * breaks.mean()  # loose: differs between seeds

# %% [markdown] tags=["shared"]
# ## Greedy text runs in circles, so texts are sampled, by top-k or top-p
#
# **Greedy** takes the most probable token, **sampling** draws one, and three settings
# make improbable tokens rarer, or exclude them:
#
# * **Temperature** $\tau > 0$ divides the logits: 1 changes nothing, near 0 only the
#   most probable token is left.
# * **Top-k** ([Fan et al. 2018](https://arxiv.org/abs/1805.04833)) keeps the $k$ most
#   probable tokens; $k = 1$ is greedy. But a fixed $k$ is too large where only one
#   token is possible, and too small where many are.
# * **Top-p** ([Holtzman et al. 2020](https://arxiv.org/abs/1904.09751)) keeps the
#   fewest tokens that together reach the probability $p$: sometimes one, often many.


# %% tags=["jax"]
def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """Probabilities that the next token is drawn with: ``... c -> ... c``."""
    highest = logits.max(axis=-1, keepdims=True)  # subtracted: a tiny τ is safe
    p = jax.nn.softmax((logits - highest).astype(jnp.float32) / temperature, axis=-1)
    if top_k is None and top_p is None:
        return p
    order = jnp.argsort(-p, axis=-1, stable=True)  # the most probable first
    p = jnp.take_along_axis(p, order, axis=-1)
    if top_k is not None:
        p = jnp.where(jnp.arange(p.shape[-1]) < top_k, p, 0)
        p = p / p.sum(axis=-1, keepdims=True)
    if top_p is not None:
        before = jnp.cumsum(p, axis=-1) - p  # what the more probable ones have
        p = jnp.where(before < top_p, p, 0)
        p = p / p.sum(axis=-1, keepdims=True)
    return jnp.take_along_axis(p, jnp.argsort(order, axis=-1), axis=-1)


# %% tags=["shared"]
method = "    def close(self):\n        if self."
last = model(integers(pairs.encode(method)[None]))[0, -1]  # c

# %% mystnb={"image": {"alt": "Four panels of bars, the probabilities of the ten most probable tokens after 'if self.': with temperature 1, with temperature 0.5, with top-k of five, where the bars after the fifth are gone, and with top-p of 0.3, where only the first few are left."}} tags=["shared", "figure"]
knobs = {"temperature 1": {}, "temperature 0.5": {"temperature": 0.5}}
knobs |= {"top_k=5": {"top_k": 5}, "top_p=0.3": {"top_p": 0.3}}
probabilities = {
    name: as_numpy(next_token_probabilities(last, **knob))
    for name, knob in knobs.items()
}
order = np.argsort(-probabilities["temperature 1"])[:10]  # the most probable first
fig, axes = plots.panels_in_rows(4, 2, (6.4, 4.8), 0, 0, sharex=True, sharey=True)
shown = [repr(visible[i]) for i in order]  # `_` alone would look low
for ax, (name, p) in zip(axes, probabilities.items(), strict=True):
    ax.barh(shown, p[order])
    ax.set_title(name)
axes[0].invert_yaxis()
for ax in axes[::2]:
    ax.set_ylabel("next token")
for ax in axes[2:]:
    ax.set_xlabel("probability")
fig

# %% tags=["shared", "say"]
left = {name: int((p > 0).sum()) for name, p in probabilities.items()}
say(
    f"After `if self.`, the token `{pairs.tokens[order[0]]}` has "
    f"{probabilities['temperature 1'].max():.0%} at temperature 1, and "
    f"{probabilities['temperature 0.5'].max():.0%} at 0.5. Top-p with $p = 0.3$ keeps "
    f"{left['top_p=0.3']} of {left['temperature 1']} tokens."
)

# %% [markdown] tags=["jax"]
# In JAX the loop is compiled, as a `lax.scan`. Each draw has a key of its own, and the
# array has its full length from the start, because a compiled program has fixed shapes.


# %% tags=["jax"]
@partial(nnx.jit, static_argnames="length")
def write(model, prompts, length, seed=0, **knobs):
    """Draw the next token and append it, ``length`` times: ``b s -> b length``."""

    def step(tokens, at):
        place, key = at
        # all positions are computed again, see the extra on the cache
        p = next_token_probabilities(model(tokens)[:, place - 1], **knobs)  # b c
        drawn = jax.random.categorical(key, jnp.log(p))  # b
        return tokens.at[:, place].set(drawn), None

    s = prompts.shape[1]
    tokens = jnp.pad(prompts, ((0, 0), (0, length)))  # b s+length
    keys = jax.random.split(jax.random.key(seed), length)
    return jax.lax.scan(step, tokens, (s + jnp.arange(length), keys))[0][:, s:]


# %% tags=["shared"]
prompt, real = "def read(", held_out[:: len(held_out) // 16]  # b s+1: of all modules
n = len(pairs.encode(prompt))
starts = integers(np.vstack([pairs.encode(prompt), real[:, :n]]))  # b+1 n
model.eval()  # no dropout, where there is any
ways = {"greedy": {"top_k": 1}, "temperature 0.5": {"temperature": 0.5}}
ways["temperature 1"] = {"temperature": 1.0}
written = {way: as_numpy(write(model, starts, 55, **ways[way])) for way in ways}
for way, new in written.items():
    print(f"--- {way}", f"{prompt}│{pairs.decode(new[0])}".replace(" ", "␣"), sep="\n")

# %% [markdown] tags=["shared"]
# The model wrote what follows the bar. It looks like Python, but has no meaning yet.
# Does it repeat itself? We count the fours of tokens that occurred before in the same
# text.

# %% tags=["shared", "say"]
rows_of = {way: new[1:] for way, new in written.items()} | {"real": real[:, n : n + 55]}
repeats = {}
for way, several in rows_of.items():
    fours = [{(*new[i : i + 4].tolist(),) for i in range(52)} for new in several]
    repeats[way] = 1 - np.mean([len(each) for each in fours]) / 52
say(
    f"The share of repeated fours, after {len(real)} beginnings from held-out text: "
    f"**{repeats['greedy']:.0%}** in greedy texts, {repeats['temperature 0.5']:.0%} at "
    f"temperature 0.5, {repeats['temperature 1']:.0%} at temperature 1, "
    f"{repeats['real']:.0%} in the real text. Greedy text runs in circles, because "
    "repetition raises the probability of a phrase (Holtzman, figure 4)."
)

# %% [markdown] tags=["shared"]
# Take the model and its vocabulary with you, in half precision. Move the three settings
# [in your browser](../book/playground.md), with a model that has learned for longer.

# %% tags=["shared"]
name = f"decoder_{framework}.safetensors"
download_link(model, name, half=True, metadata=pairs.metadata)

# %% tags=["shared", "check"]
# Checked: greedy text repeats more; top-p keeps the first tokens; float16 is enough
assert repeats["greedy"] > 0.2 + repeats["real"]  # loose: differs between seeds
assert repeats["greedy"] > 0.2 + repeats["temperature 1"]  # loose: as above
p = np.sort(probabilities["temperature 1"])[::-1]
assert left["top_k=5"] == 5 and left["top_p=0.3"] == np.argmax(p.cumsum() >= 0.3) + 1
assert probabilities["temperature 0.5"].max() > p.max()
for each in probabilities.values():
    np.testing.assert_allclose(each.sum(), 1, rtol=1e-5)
rounded = build(LanguageModel, **sizes)
halves = {name: array.astype(np.float16) for name, array in to_arrays(model).items()}
from_arrays(rounded, halves)
pair = [as_numpy(one(integers(row))) for one in (model, rounded)]  # each b s c
losses_of_both = np.array([text.nats(logits, window) for logits in pair])
assert np.abs(np.diff(losses_of_both, axis=0)).mean() < 0.02  # loose: rounding

# %% [markdown] tags=["shared"]
# **Exercise 2, one change of code.** *Min-p* ([Nguyen et al.
# 2024](https://arxiv.org/abs/2407.01082)) keeps all tokens that have at least a share,
# say 0.1, of the largest probability. Write it as a function of the logits. How many
# tokens do min-p and top-p with $p = 0.9$ keep after `if self.` and after
# `    def __init__(`?


# %% tags=["shared", "answer"]
def min_p_probabilities(logits, share):
    """Probabilities of the tokens that have ``share`` of the largest one: ``c``."""
    p = as_numpy(next_token_probabilities(logits))
    p = np.where(p >= share * p.max(), p, 0)
    return p / p.sum()


for beginning in (method, "    def __init__("):
    its = model(integers(pairs.encode(beginning)[None]))[0, -1]  # c
    by_min_p = (min_p_probabilities(its, 0.1) > 0).sum()
    by_top_p = (as_numpy(next_token_probabilities(its, top_p=0.9)) > 0).sum()
    name = beginning.splitlines()[-1].strip()
    say(f"`{name}`: min-p keeps {by_min_p}, top-p with 0.9 {by_top_p}.")
say(
    "Two lines do it: `p = where(p >= share * p.max(), p, 0)` and `p = p / p.sum()`. "
    "Top-p adds tokens until their sum is reached, however improbable each of them is. "
    "Min-p compares each with the largest, so one sure token excludes the long tail."
)

# %% [markdown] tags=["shared"]
# ## In your own code
#
# To learn from your own text, replace `text.load()` by `text.load("my.txt")`; some
# folded checks may then fail. The model, with its generation, is also [one file to take
# along](../book/index.md#one-file-to-take-along).

# %% [markdown] tags=["jax"]
# As in [the reverse task](reverse_jax.ipynb), copy the loop. A row of $s + 1$ tokens
# has $s$ losses, so a small batch is enough.

# %% [markdown] tags=["shared"]
# ## Extra: Masked attention on two tokens, number by number
#
# The whole way from two tokens to the probabilities of the next, with two features each
# and a vocabulary of three:

# %% tags=["shared"]
x = floats([[1, 0], [0, 1]])  # s m: token 0, token 1
w_query, w_key = floats([[1, 0], [1, 1]]), floats([[1, 0], [0, 2]])
w_value, w_output = floats([[3, 0], [0, 3]]), floats([[0.5, 0, -0.5], [0, 0.5, 0.5]])
q = x @ w_query  # 1. queries: what each token looks for
k = x @ w_key  # 2. keys: what each token can be found by
v = x @ w_value  # 3. values: what each token hands over
scores = q @ k.T / math.sqrt(2)  # 4. scores, divided by √d
mask = booleans(np.tri(2))  # 5. mask: no token looks at a later one
weights = masked_softmax(scores, mask)  # 6. softmax: each row sums to 1
out = weights @ v  # 7. weighted sum of the values
y = x + out  # the residual
logits = y @ w_output  # s c
p = masked_softmax(logits)  # of the next token, after token 0 and after token 1

# %% tags=["shared", "say"]
steps = {"x": x, "1. q": q, "2. k": k, "3. v": v, "4. scores": scores}
steps |= {"5. mask": as_numpy(mask).astype(int), "6. weights": weights, "7. out": out}
steps |= {"y = x + out": y, "logits": logits, "p": p}
lines = [
    [name, *(", ".join(f"{z + 0:.3g}" for z in line.round(2)) for line in as_numpy(a))]
    for name, a in steps.items()
]
say(table(["step", "row of token 0", "row of token 1"], *lines))

# %% [markdown] tags=["shared"]
# Token 0 may look only at itself, so its weight is 1 and its output is its own value,
# whatever the matrices are, while token 1 mixes both values. Norm and feed-forward net
# are left out.

# %% tags=["shared", "check"]
# Checked: row 0 of the map is (1, 0) and its output is value 0, for random numbers too
np.testing.assert_allclose(as_numpy(weights[0]), [1, 0])
np.testing.assert_allclose(as_numpy(out[0]), as_numpy(v[0]))
rng = np.random.default_rng(0)
random = [floats(rng.normal(size=(7, 5))) for _ in range(3)]
with full_float32():
    found, its_map = attention(*random, booleans(np.tri(7)))
np.testing.assert_allclose(as_numpy(its_map)[0], np.eye(7)[0])
np.testing.assert_allclose(as_numpy(found)[0], as_numpy(random[2])[0], rtol=1e-6)
np.testing.assert_allclose(as_numpy(p).sum(-1), 1, rtol=1e-6)

# %% [markdown] tags=["shared"]
# **Exercise 3, by hand.** The text is now token 0 twice: both rows of $x$ are $(1, 0)$.
# Which weights, output and probabilities does row 1 get? What does that say
# about positions?

# %% tags=["shared", "answer"]
twice = floats([[1, 0], [1, 0]])
projected = (twice @ w for w in (w_query, w_key, w_value))
out_twice, weights_twice = attention(*projected, mask)
np.testing.assert_allclose(as_numpy(weights_twice)[1], [0.5, 0.5])
np.testing.assert_allclose(as_numpy(out_twice)[1], as_numpy(out)[0])
say(
    "Both keys are equal, so both scores are equal and the weights are ½ and ½. The "
    "values are equal, too, so the output is (3, 0), as for one token alone, and the "
    f"probabilities are {', '.join(f'{z:.2f}' for z in as_numpy(p)[0])} again. Without "
    "positions the model cannot tell a token from the same token twice."
)

# %% [markdown] tags=["shared"]
# ## Extra: The same model with options
#
# The next chapter and `generate` of `helpers` need more of the class: weights that are
# not tied, other positions, another stack with a context, and maps. The arrays keep
# their names, so the trained weights fit.


# %% tags=["jax"]
class LanguageModel(nnx.Module):
    """Logits of the next token at every position: ``b s -> b s c``."""

    def __init__(
        self, n_tokens, m, *, n_blocks, n_heads, f, max_length, positions="learned",
        tied=True, causal=True, stack=Encoder, rngs, **options,
    ):  # fmt: skip
        if max_length < 1:
            raise ValueError(f"expected max_length of at least 1, got {max_length}")
        kind, options["attention"] = pick(POSITIONS, positions, "positions")
        self.max_length, self.causal = max_length, causal
        self.embed = embedding(n_tokens, m, rngs=rngs)
        self.positions = kind(m, max_length, rngs=rngs) if kind else None
        self.decoder = stack(n_blocks, m, n_heads, f, rngs=rngs, **options)
        self.output = None if tied else unembedding(m, n_tokens, rngs=rngs)

    def logits(self, x):
        return self.output(x) if self.output else self.embed.attend(x)

    def __call__(self, tokens, mask=None, *context, return_maps=False):
        check_tokens(tokens, self.max_length)
        x = self.embed(jnp.maximum(tokens, 0))  # b s m; padding, -1, has no row
        x = self.positions(x) if self.positions else x
        options = {"is_causal": self.causal, "return_maps": return_maps}
        out = self.decoder(x, mask, *context, **options)
        return (self.logits(out[0]), *out[1:]) if return_maps else self.logits(out)


# %% tags=["shared"]
trained = to_arrays(model)
model = build(LanguageModel, **settings.model)
from_arrays(model, trained)

# %% tags=["shared", "check"]
# Checked: with options, the trained model gives the same logits
np.testing.assert_allclose(as_numpy(model(integers(row))), pair[0], atol=1e-4)

# %% [markdown] tags=["shared"]
# ## Extra: A key–value cache computes each token once
#
# `write` passes the whole text through the model for each new token. Nearly all of this
# has been done before: because of the mask, old positions never change, and later
# tokens need only their keys and values. We keep these in the **key–value cache**.

# %% mystnb={"image": {"alt": "Keys and values of five old tokens are kept; those of the new token are written beside them. The query of the new token alone meets all keys, and its weights mix all values into one output."}} tags=["shared", "figure"]
drawing("key-value-cache")

# %% [markdown] tags=["jax"]
# A block's cache is a pair of arrays `b h s d`. Again they have their full length from
# the start. `dynamic_update_slice_in_dim` writes at a place known only at run time; in
# a compiled loop, it does so in place.


# %% tags=["jax"]
def attend_and_keep(layer, x, cache, start, mask):
    """Attention to all positions so far: ``b n m``, and the cache with the new ones."""
    q, *new = layer.project(x, offset=start)  # b h n d; rotary positions need start
    write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=2)
    cache = tuple(write(old, part) for old, part in zip(cache, new, strict=True))
    return layer.out(merge_heads(fused_attention(q, *cache, mask))), cache


# %% [markdown] tags=["shared"]
# Everything else in a block treats each token by itself and needs no change. So we can
# run all blocks of our model; `generate` of `helpers` does it for all kinds of models.


# %% tags=["jax"]
@nnx.jit
def logits_with_cache(model, tokens, caches, start):
    """Logits after new tokens, ``b n -> b n c``, and the caches: for pre-norm only."""
    places = start + jnp.arange(tokens.shape[1])  # n
    mask = jnp.arange(caches[0][0].shape[2]) <= places[:, None]  # n s
    x = model.embed(tokens) + model.positions.table[places]  # b n m
    new = []
    for block, cache in zip(model.decoder.blocks, caches, strict=True):
        normed = block.norm1(x)
        values, cache = attend_and_keep(block.attention, normed, cache, start, mask)
        x = x + values
        x = x + block.ffn(block.norm2(x))
        new.append(cache)
    return model.logits(model.decoder.norm(x)), new


# %% [markdown] tags=["shared"]
# We time one new token of 16 texts. Because our model ends at 64 positions, an
# untrained one with 256 is timed; the time does not depend on what the weights have
# learned.


# %% tags=["jax", "experiment"]
# Experiment: how a call is timed, and the way without a cache
@nnx.jit
def all_again(model, tokens):
    """Logits of the next token, from the whole text: ``b s -> b c``."""
    return model(tokens)[:, -1]


def seconds(function, *args, repeats):
    """Shortest time of a call, after a first one that may compile."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        as_numpy(function(*args)[0])  # waits for the result
        times.append(time.perf_counter() - start)
    return min(times[1:])


# %% tags=["shared", "experiment"]
# Experiment: time for one new token, with and without the cache, at two lengths
lengths, b = (64, 256), 16
longer = build(LanguageModel, **settings.model | {"max_length": max(lengths)})
again, cached, sizes = [], [], []
for s in lengths:
    many = integers(tokens["test"][: b * s].reshape(b, s))
    caches = new_cache(longer, integers(np.zeros(b)), s)["blocks"]
    again.append(seconds(all_again, longer, many, repeats=4))
    one_more = longer, many[:, -1:], caches, s - 1
    cached.append(seconds(logits_with_cache, *one_more, repeats=10))
    sizes.append(sum(part.nbytes for kv in caches for part in kv))

# %% tags=["shared", "say"]
lines = [
    [s, f"{1000 * a:.1f} ms", f"{1000 * c:.1f} ms", f"{a / c:.1f}", f"{size:,}"]
    for s, a, c, size in zip(lengths, again, cached, sizes, strict=True)
]
head = ["length", "whole text", "with the cache", "ratio", "bytes of the cache"]
say(table(head, *lines))
say(
    f"From {lengths[0]} tokens to {lengths[1]}, the time for a new one grows to "
    f"{again[1] / again[0]:.1f} times without the cache, to "
    f"{cached[1] / cached[0]:.1f} times with it."
)

# %% [markdown] tags=["shared"]
# The price is memory: for each of $l$ blocks, $b$ texts and $s$ positions, a key and a
# value of $m$ numbers, in float32 $2 \cdot 4 \cdot l\, b\, s\, m$ bytes. And a text
# still ends where the positions end: one more raises an error.

# %% tags=["shared", "check"]
# Checked: with the cache, the trained model gives the same logits; bytes as calculated
caches = new_cache(model, integers([0]), settings.length)["blocks"]  # empty
with full_float32():
    whole = as_numpy(model(integers(row)))  # 1 s c
    first_half, caches = logits_with_cache(model, integers(row[:, :32]), caches, 0)
    second_half, caches = logits_with_cache(model, integers(row[:, 32:]), caches, 32)
in_parts = [as_numpy(half) for half in (first_half, second_half)]
np.testing.assert_allclose(np.concatenate(in_parts, 1), whole, rtol=1e-4, atol=1e-4)
for s, size in zip(lengths, sizes, strict=True):
    assert size == 2 * 4 * settings.n_blocks * b * s * settings.m

# %% [markdown] tags=["shared"]
# ## Extra: Many prompts are continued at once
#
# Prompts differ in length. `generate` of `helpers` pads them on the *left*, so that all
# end at the same place. A text stops at a token that you name as the **end**, here a
# line break without blanks after it. Up to rounding, greedy texts are the same alone or
# in a batch; sampled ones are not, because the batch shares one random generator.

# %% tags=["shared"]
prompts = ["import", prompt, "class Queue:\n    def put(self"]
encoded = [pairs.encode(each) for each in prompts]
end = int(pairs.encode("\n")[0])
options = {"temperature": 0.5, "top_k": 50, "top_p": 0.9, "end": end, "seed": 3}
batch = as_numpy(generate(model, encoded, 40, **options))
for each, new in zip(prompts, batch, strict=True):
    continued = f"{each}│{pairs.decode(new)}".rstrip("\n")
    print("---", continued.replace(" ", "␣"), sep="\n")

# %% tags=["shared", "check"]
# Checked: a batch gives the greedy text of a prompt alone; after the end only ends
greedy_too = options | {"temperature": 1e-6, "end": None}
together = as_numpy(generate(model, encoded, 40, **greedy_too))
np.testing.assert_array_equal(together[1], written["greedy"][0, :40])
assert len(encoded[1]) < len(encoded[2])  # it was padded
for new in batch:
    stop = np.argmax(new == end) if end in new else len(new)
    assert (new[stop:] == end).all()

# %% [markdown] tags=["shared"]
# ## Extra: From this model to GPT-2
#
# What differs in GPT-2 ([Radford et al.
# 2019](https://openai.com/index/better-language-models/))? It has GELU in place of ReLU
# (`activation="gelu"`). Its published code has no dropout;
# reimplementations take 0.1 after each branch (`dropout=0.1`), on the embedded input
# and on the attention weights. The last layer of each branch starts smaller, and its
# byte pairs begin with bytes, not characters. One more token, `<|endoftext|>`, ends
# each text; the next text begins right after it, so writing from nothing begins with
# it, too. Its smallest version has 12 blocks, 12 heads, $m = 768$, 1,024 positions and
# 50,257 tokens: 124 million parameters. *The Transformer of today* loads its published
# weights. Our arrays have counterparts in [its code](https://github.com/openai/gpt-2),
# which stores a weight as inputs × outputs, as our saved files do:

# %% tags=["shared", "say"]
counterparts = {
    "embed": "wte", "positions.table": "wpe", "norm1": "ln_1",
    "attention.qkv": "attn/c_attn", "attention.out": "attn/c_proj", "norm2": "ln_2",
    "ffn.linear1": "mlp/c_fc", "ffn.linear2": "mlp/c_proj", "decoder.norm": "ln_f",
}  # fmt: skip
lines = [(f"`{ours}`", f"`{name}`") for ours, name in counterparts.items()]
say(table(["ours", "GPT-2's"], *lines))

# %% [markdown] tags=["shared"]
# Like ours, GPT-2's weights are tied. What does that buy?

# %% tags=["shared", "say"]
file = Path(text.__file__).parents[3] / "benchmarks" / "results" / "tied.md"
table_of = file.read_text("utf-8").splitlines()
three = [line.split("|")[3:6] for line in table_of if "tied: " in line]
seeds, untied_seeds = np.array(three, float)
untied = build(LanguageModel, **settings.model | {"tied": False})
tied_size, untied_size = count_parameters(model), count_parameters(untied)
both = ("tied", tied_size, seeds), ("not tied", untied_size, untied_seeds)
lines = [
    [name, f"{size:,}", f"{bits_of.min():.2f} to {bits_of.max():.2f}"]
    for name, size, bits_of in both
]
say(table(["weights", "parameters", "bits per character, three seeds"], *lines))
say(
    f"Tying saves {1 - tied_size / untied_size:.0%} of the parameters. In these short "
    f"runs, the tied model needs {word('more', seeds.mean(), untied_seeds.mean())} "
    f"bits, by {abs(np.mean(seeds - untied_seeds)):.3f} on average. (Measured in "
    "PyTorch, in `benchmarks/results/tied.md`.) The 5-gram needs "
    f"{word('more', ngrams[5], max(seeds.max(), untied_seeds.max()))} bits than each "
    "of these runs."
)


# %% tags=["shared", "check"]
# Checked: the formula counts all parameters, the table names all arrays
def counted(n_tokens, m, n_blocks, f, max_length):
    """Parameters of a tied pre-norm language model."""
    block = 4 * (m * m + m) + (2 * m * f + f + m) + 2 * 2 * m  # attention, ffn, norms
    return n_tokens * m + max_length * m + n_blocks * block + 2 * m


names = "n_tokens", "m", "n_blocks", "f", "max_length"
assert counted(*(settings.model[name] for name in names)) == tied_size
assert round(counted(50_257, 768, 12, 4 * 768, 1024) / 1e6) == 124
named = {re.sub(r"^decoder\.blocks\.\d+\.", "", name) for name in to_arrays(model)}
assert {re.sub(r"\.(weight|bias)$", "", name) for name in named} == {*counterparts}
assert untied_size - tied_size == settings.n_tokens * settings.m
assert (seeds < ngrams[5]).all() and (untied_seeds < ngrams[5]).all()

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Two functions of a model that writes: top-p, and one step with a cache. `check` tries
# each on random arrays, and says whether it is right, or what is wrong. The cache of
# the first step is empty.


# %% tags=["shared", "your-turn"]
def my_top_p(p, top_p):
    """Top-p: probabilities before and after, each at its place, ``b c -> b c``.

    Keeps the fewest tokens that together reach ``top_p``, a number, and at least one.
    Others get 0; those that are kept sum to 1 again. Of equal tokens any may stay.
    """
    ...


check("decoder.top_p", my_top_p)


# %% tags=["shared", "your-turn"]
def my_cached_step(q, k, v, keys, values):
    """Attention of one new token: ``b h 1 d`` three times, ``b h n d`` twice.

    ``q``, ``k`` and ``v`` belong to the new token, ``keys`` and ``values`` to the ``n``
    tokens before it; ``n`` may be 0. Returns the output, ``b h 1 d``, and the keys and
    the values for the next step, ``b h n+1 d``.
    """
    ...


check("decoder.cached_step", my_cached_step)


# %% tags=["jax", "answer"]
def my_top_p(p, top_p):
    order = jnp.argsort(p, axis=-1, descending=True)  # b c
    ranked = jnp.take_along_axis(p, order, axis=-1)
    before = jnp.cumsum(ranked, axis=-1) - ranked  # what the more probable ones have
    kept = jnp.where(before < top_p, ranked, 0)
    kept = kept / kept.sum(axis=-1, keepdims=True)
    return jnp.put_along_axis(p, order, kept, axis=-1, inplace=False)  # to their places


def my_cached_step(q, k, v, keys, values):
    keys, values = jnp.concat([keys, k], axis=2), jnp.concat([values, v], axis=2)
    weights = nnx.softmax(q @ keys.mT / math.sqrt(q.shape[-1]))  # b h 1 n+1, no mask
    return weights @ values, keys, values


assert check("decoder.top_p", my_top_p)
assert check("decoder.cached_step", my_cached_step)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** Model A pays 2 nats for a token, and its tokens are four characters long on
# average. Model B predicts the same text by characters, and pays 1 nat for each. Which
# one predicts it better?
#
# <details><summary>B: its loss is half as large.</summary>
#
# **No.** Tempting, because with one vocabulary the lower loss does win. But one token
# of A stands for four characters.
#
# </details>
# <details><summary>A: it pays less for a character.</summary>
#
# **Right.** It pays half a nat, B a whole one. So A gives the whole text the higher
# probability.
#
# </details>
# <details><summary>Nobody can tell, because their vocabularies differ.</summary>
#
# **No.** True of losses per token. But both models give the same text a probability,
# and its logarithm, divided by the number of characters, compares them.
#
# </details>
#
# **2.** Somebody forgets the causal mask in training. What does *not* give it away?
#
# <details><summary>A training loss that falls too fast.</summary>
#
# **No.** It does. One expects a bug to make training fail, but here each label is also
# an input, one position later.
#
# </details>
# <details><summary>The gap between training and held-out loss.</summary>
#
# **Right.** It uncovers overfitting, but not this: the labels of held-out text are
# among its inputs as well, and both losses are too low.
#
# </details>
# <details><summary>The texts that the model writes.</summary>
#
# **No.** They do: at the end of a text there is no next token to copy, and the model
# has learned little else.
#
# </details>
#
# **3.** At temperature 1, one token is four times as probable as another. And at
# temperature 0.5?
#
# <details><summary>Sixteen times.</summary>
#
# **Right.** The difference of the logits doubles. The ratio of the probabilities is the
# exponential of this difference, so it is squared.
#
# </details>
# <details><summary>Eight times.</summary>
#
# **No.** Tempting, because dividing by 0.5 doubles the logits. But a difference of
# logits is in an exponent: if it doubles, the ratio is squared.
#
# </details>
# <details><summary>Twice.</summary>
#
# **No.** An exponent of 0.5 would take the root. But the exponent is $1/\tau$: a
# temperature of 2 takes the root, a low one sharpens.
#
# </details>
#
# **4.** A training pass predicts at all positions of a window. Why can one pass not
# write as many new tokens?
#
# <details><summary>Each position sees only what is before it.</summary>
#
# **No.** True in training, too: there the mask is what makes one pass enough for all
# predictions.
#
# </details>
# <details><summary>A pass ends with one softmax, which gives one token.</summary>
#
# **No.** True for one position. But a pass has a softmax at each of them.
#
# </details>
# <details><summary>Each new token is an input of the next prediction.</summary>
#
# **Right.** In training, the real text gives all inputs beforehand. Here, the next one
# has yet to be chosen.
#
# </details>
#
# **5.** (From the extra on the cache.) Without a cache, all tokens are computed again
# at each step. Does a key–value cache change the logits of the new token?
#
# <details><summary>A little: old keys and values are out of date.</summary>
#
# **No.** Tempting, because in an encoder each new token would change all others. Behind
# a causal mask, no old token sees the new one.
#
# </details>
# <details><summary>Not at all, but for rounding.</summary>
#
# **Right.** In no block do the keys and values of old tokens depend on later ones. So
# they would come out the same again.
#
# </details>
# <details><summary>Only with several blocks, where the tokens are mixed.</summary>
#
# **No.** Deeper blocks do get mixtures. But those of old tokens do not contain the new
# one.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * A language model is an encoder with a causal mask, and text is its own label.
# * One pass trains all predictions of a text. Without the mask, the model copies.
# * Bits per character compare models of any vocabulary.
# * Greedy text runs in circles. Temperature, top-k and top-p trade variety for safety.

# %% [markdown] tags=["jax"]
# Next comes [a model that reads and writes, in JAX](translation_jax.ipynb): the decoder
# looks at a second sequence and translates it.
