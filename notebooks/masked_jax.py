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
# # A model that reads both sides
#
# By the end you can train a Transformer to fill in what is hidden, load a published
# BERT or ALBERT by renaming its weights, and compare an attention map with a known
# answer. You need: the chapters on the model that writes and on starting from a trained
# one.
#
# A model that writes sees only what stands before. To search, sort or tag a text, we
# have all of it, also what stands after each word: in *the bank of the river*, the last
# word says what the bank is. But a model that sees both sides cannot be asked for the
# next word, since it sees that one as well. What else can it be asked?

# %% [markdown] tags=["jax"]
# This page uses **JAX**. The same page in PyTorch: [masked_torch](masked_torch.ipynb).
# Before it comes [start from a trained model, in JAX](finetune_jax.ipynb).

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

from helpers.data import byte_pairs, checkpoints, reactions, text
from helpers.jax import Encoder, LearnedPositions, dense, evaluate, fit, tensor
from helpers.jax.decoder import LanguageModel, embedding, next_token
from helpers.settings import Settings
from helpers.show import drawing, plots, say, table, viewer
from helpers.weights import as_numpy, from_arrays, to_arrays

plots.use_style()
framework = "jax"
f"JAX {jax.__version__} on {jax.devices()[0].device_kind}"

# %% [markdown] tags=["shared"]
# ## A masked token is guessed from both sides
#
# BERT ([Devlin et al. 2019](https://arxiv.org/abs/1810.04805)) hides some tokens, and
# has to say what stood there: **masked language modelling**. Like predicting the next
# token, it needs no labels but the text itself.

# %% mystnb={"image": {"alt": "Above, the next token: after the, bank, of, a question mark; arrows come to it from these three words. Below, a masked token: of the, MASK, of, rivers the second is hidden; arrows come to the question mark above it from all four places, the mask included."}} tags=["shared", "figure"]
drawing("two-questions")

# %% [markdown] tags=["shared"]
# BERT is asked for 15 % of the tokens ([section
# 3.1](https://arxiv.org/abs/1810.04805)). Of these, 80 % become a special token,
# `[MASK]` (which is not the causal mask); 10 % become a random token; and 10 % stay as
# they are. (For larger models, [Wettig et al. 2023](https://arxiv.org/abs/2202.08005)
# found more than 15 % better.)
#
# Why not always the mask? Later, the model will read texts without masks. With masks
# alone, so its authors feared, it might learn to answer at a mask, and nowhere else.
# Now any token may be asked for, and may be wrong: so each vector must use the text
# around it. And since some stay, it must use the token, too.


# %% tags=["shared"]
def mask_tokens(tokens, n_tokens, rng):
    """Inputs and labels of masked language modelling, integers: ``b s -> b s, b s``.

    The mask is the token ``n_tokens``. Labels are -1 where nothing is asked: so it is
    where there is padding, which is negative.
    """
    first, way = rng.random((2, *tokens.shape))
    asked = (first < 0.15) & (tokens >= 0)
    others = rng.integers(n_tokens, size=tokens.shape)
    changed = np.select([way < 0.8, way < 0.9], [n_tokens, others], tokens)
    inputs, labels = np.where(asked, changed, tokens), np.where(asked, tokens, -1)
    return inputs.astype(tokens.dtype), labels.astype(tokens.dtype)


# %% tags=["shared"]
texts = text.load()  # Python's standard library: train and test
pairs = byte_pairs.BytePairs.learn(texts["train"], 97 + 512)
tokens = {name: pairs.encode(part) for name, part in texts.items()}
names = [*pairs.tokens, "[MASK]"]  # the mask is the last token


def hide(tokens, rng):
    """Inputs and labels of masked language modelling: ``b s -> b s, b s``."""
    return mask_tokens(tokens, len(pairs), rng)


# %% tags=["shared"]
sample = "def mean(values):\n    return sum(values) / len(values)\n"
row = np.array(pairs.encode(sample))
inputs, labels = hide(row[None], np.random.default_rng(22))  # all three cases
print("text: ", *(repr(names[i]) for i in row))
print("input:", *(repr(names[i]) for i in inputs[0]))
print("label:", *(repr(names[i]) if i >= 0 else "–" for i in labels[0]))

# %% [markdown] tags=["shared"]
# The loss counts only what is asked for; elsewhere the label is $-1$. (In
# `transformers`, it is $-100$.)


# %% tags=["jax"]
def masked_token(model, inputs, labels):
    """Mean cross-entropy and accuracy of the tokens that are asked for."""
    logits = model(inputs).astype(jnp.float32)  # b s c
    asked = labels >= 0  # b s
    n = jnp.maximum(asked.sum(), 1)  # a batch may ask for nothing
    there = jnp.maximum(labels, 0)[..., None]
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), there, axis=-1)[..., 0]
    hits = (logits.argmax(-1) == labels).sum()
    return -log_p.sum(where=asked) / n, {"accuracy": hits / n, "count": asked.sum()}


# %% [markdown] tags=["shared"]
# (`count` says over how many tokens the mean goes: `evaluate` weighs batches by it.)

# %% tags=["shared", "check"]
# Checked: the shares of masks; tokens that are not asked for are as they were
many = np.random.default_rng(0).integers(len(pairs), size=(200, 100))
hidden, asked = hide(many, np.random.default_rng(1))
kinds = hidden[asked >= 0] == len(pairs), hidden[asked >= 0] == many[asked >= 0]
assert abs((asked >= 0).mean() - 0.15) < 0.015
assert abs(kinds[0].mean() - 0.8) < 0.04 and abs(kinds[1].mean() - 0.1) < 0.03
assert (hidden[asked < 0] == many[asked < 0]).all()

# %% [markdown] tags=["shared"]
# ## Masked tokens are learned more slowly
#
# The model is `LanguageModel(causal=False)`: without the causal mask, our decoder is an
# encoder. Beside it we train the causal model for the next token, twice: with every
# label, and with as few labels as there are masked tokens. Initial weights, windows and
# number of updates are equal. (All are small, to save time, and have rotary positions.)
# Each window is read once. If yours are read several times, draw new masks each time,
# as RoBERTa does ([Liu et al. 2019](https://arxiv.org/abs/1907.11692)).
#
# Guess first: a gap has words on both sides, an end on one. If the gap is learned more
# slowly all the same, is it because it has few labels, or because it is a gap?


# %% tags=["jax"]
from functools import partial


def new_model(kind, **sizes):
    """A model with random weights of one seed."""
    return kind(**sizes, rngs=nnx.Rngs(42))


@partial(nnx.jit, static_argnames="return_maps")
def forward(model, tokens, return_maps=False):
    return model(tokens, return_maps=return_maps)


# %% tags=["shared"]
settings = Settings(
    n_train=16 * 65, batch_size=16, epochs=10, learning_rate=6e-3, warmup=60
)
sizes = {"n_tokens": len(names), "m": 64, "n_blocks": 1, "n_heads": 4, "f": 256}
sizes |= {"max_length": 32, "positions": "rotary", "norm_first": True}
rng = np.random.default_rng(0)
rows = text.random_windows(tokens["train"], 32, settings)  # n s+1
drawn = rng.random(rows[:, 1:].shape) < 0.15
few = rows[:, :-1], np.where(drawn, rows[:, 1:], -1)
gaps = hide(rows[:, :-1], rng)
runs = {  # what is asked, the data, causal or not
    "next token": (next_token, (rows,), True),
    "next token, few labels": (masked_token, few, True),
    "masked token": (masked_token, gaps, False),
}


def logits_of(model, tokens):
    """The logits of a model as a NumPy array."""
    return as_numpy(forward(model, tensor(tokens)))


# %% tags=["shared"]
models, histories = {}, {}


def in_order(epoch):
    """Rows of every update of an epoch, so that each window comes once: ``n b``."""
    return np.arange(epoch * 1040, (epoch + 1) * 1040).reshape(65, 16)


for name, (loss_fn, data, causal) in runs.items():
    models[name] = new_model(LanguageModel, causal=causal, **sizes)
    history = fit(models[name], loss_fn, data, settings, batches=in_order)
    histories[name] = history["loss"]

# %% mystnb={"image": {"alt": "The loss in training over 650 updates, in nats per label: three curves that fall. The next token with all labels falls steeply, and is soon far below the others; at the end, the next token with few labels is above it, and masked tokens are highest."}} tags=["shared", "figure"]
panel = {}
for name, losses in histories.items():
    mean = losses.reshape(-1, 25).mean(axis=1)  # of 25 updates each
    panel[name] = 25 * np.arange(1, len(mean) + 1), mean
title = "one network, two questions"
fig = plots.curves(
    {title: panel}, x="update", y="nats per label, in training", size=(6.2, 3)
)
fig

# %% tags=["shared"]
# On new text, the cost of a masked token by what stands in its place
new = text.windows(tokens["test"], 32)  # n s+1
ahead = {}
for name in ("next token", "next token, few labels"):
    ahead[name] = evaluate(models[name], next_token, (new,))
inputs, labels = hide(new[:, :-1], rng)
logits = logits_of(models["masked token"], inputs).astype(np.float64)
log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)  # b s c
nats = -np.take_along_axis(log_p, labels.clip(0)[..., None], axis=-1)[..., 0]
hidden, same, found = inputs == len(pairs), inputs == labels, {}
kinds = {"the mask": hidden, "another token": ~hidden & ~same, "the token": same}
for kind, chosen in kinds.items():
    chosen = chosen & (labels >= 0)
    hits = logits.argmax(axis=-1)[chosen] == labels[chosen]
    found[kind] = chosen.sum() / (labels >= 0).sum(), nats[chosen].mean(), hits.mean()

# %% tags=["shared"]
# What guessing by frequency costs, and how many labels a window has
counts = np.bincount(tokens["train"], minlength=len(pairs)) + 1
by_frequency = -np.log(counts / counts.sum())[tokens["test"]].mean()
per_window = (gaps[1] >= 0).sum(axis=1).mean()
costs = {kind: x for kind, (_, x, _) in found.items()}
cost = costs["the mask"]
low = ahead["next token"]["loss"]
middle = ahead["next token, few labels"]["loss"]
way = (middle - low) / (cost - low)

# %% tags=["shared", "say"]
lines = []
for kind, (n, x, y) in found.items():
    lines.append([f"masked: there stands *{kind}*", f"{n:.0%}", f"{x:.2f}", f"{y:.0%}"])
for name, score in ahead.items():
    lines.append([name, "", f"{score['loss']:.2f}", f"{score['accuracy']:.0%}"])
say(table(["question", "share", "nats, new text", "right"], *lines))

# %% tags=["shared", "say"]
say(f"""A window of 32 tokens has 32 labels for the next token, {per_window:.1f} for
masked ones. After {settings.updates} updates a masked token costs {cost:.2f} nats, more
than a next one ({low:.2f}). With as few labels, a next token costs {middle:.2f}, which
is {way:.0%} of the way to a masked one. Guessing by frequency costs
{by_frequency:.2f}.""")

# %% tags=["shared", "check"]
# Checked: few labels cost something, masks more; both less than blind guesses
assert low + 0.2 < middle < cost - 0.2 < by_frequency - 0.4
assert costs["the token"] < 2 < cost < costs["another token"]
ends = [losses[-200:].mean() for losses in histories.values()]
assert ends[0] + 0.2 < ends[1] < ends[2] - 0.05
assert found["the token"][2] > 0.8 > 0.3 > found["the mask"][2]
assert found["another token"][2] < 0.2 and abs(32 / per_window - 7) < 1
assert counts.sum() == len(tokens["train"]) + len(pairs)

# %% [markdown] tags=["shared"]
# Few labels are one reason. The other, probably: the causal model has the token before
# at each place, while a mask is empty, the model must look around, and some of what
# stands there is hidden, too. So these few updates are not enough, and the model is not
# far ahead of frequencies. (BERT's smaller model took [four days on 16 TPU
# chips](https://arxiv.org/abs/1810.04805).) *The token* is nearly always right,
# *another token* hardly ever: it mostly copies, though it is not sure (exercise 2). So
# score the masks alone.
#
# Something is learned. We mask one token at a time:

# %% tags=["shared"]
row, best = np.array(pairs.encode("def close(self):")), {}
for place in range(1, len(row)):
    given = np.where(np.arange(len(row)) == place, len(pairs), row)
    logits = logits_of(models["masked token"], given[None])[0, place]
    p = np.exp(logits - np.logaddexp.reduce(logits))
    best[place] = [(names[i], p[i]) for i in p.argsort()[:-6:-1]]  # the five best

# %% tags=["shared", "say"]
lines = []
for place, fillings in best.items():
    given = "".join("[MASK]" if n == place else names[i] for n, i in enumerate(row))
    shown = ", ".join(f"`{token!r}` {p:.0%}" for token, p in fillings)
    lines.append([f"`{given}`", f"`{names[row[place]]!r}`", shown])
say(table(["text", "token", "five best fillings"], *lines))

# %% [markdown] tags=["shared"]
# It ranks `self` first and `(` among the first two where they belong, but misses the
# name.

# %% tags=["shared", "check"]
# Checked: self comes first, the bracket is one of the first two, the name none of five
there = {names[row[place]]: [t for t, _ in five] for place, five in best.items()}
assert "(" in there["("][:2] and there["self"][0] == "self"
assert "lose" not in there["lose"]

# %% [markdown] tags=["shared"]
# ## One vector stands for a text
#
# To classify a text, one vector must stand for all of it. In a causal model the first
# token sees only itself; the *last* has seen all, and we took that one in the chapter
# before. Where every token sees both sides, any can be used. BERT puts a token `[CLS]`
# before each text, the **class token**: a layer on its output is fine-tuned, as on the
# class token of the chapter on pictures. (BERT also trained it by a second question: do
# two texts, its *segments*, follow each other? Later models dropped or replaced that.)
# Until a model is fine-tuned for it, the class token is a poor summary, and the mean
# over all tokens, the usual choice, a weak one. To search, [Reimers and Gurevych
# 2019](https://arxiv.org/abs/1908.10084) train the model further, until similar texts
# have similar vectors.
#
# Change the last token of a text, and see in which model the logits of the first token
# change:

# %% tags=["shared"]
rows = np.stack([tokens["test"][:32]] * 2)  # one text, twice
rows[1, -1] = (rows[1, -1] + 1) % len(pairs)  # with another last token
noticed = {}
for name in ("next token", "masked token"):
    logits = logits_of(models[name], rows)  # b s c
    noticed[name] = np.abs(logits[0, 0] - logits[1, 0]).max()  # of the first token
    print(f"{name}: the first token's logits change by {noticed[name]:.3f}")

# %% tags=["shared", "check"]
# Checked: without the causal mask, the first token sees the last
assert noticed["next token"] < 1e-5 < 1e-3 < noticed["masked token"]

# %% [markdown] tags=["shared"]
# ## Somebody else's encoder is loaded by renaming
#
# `MaskedLM` of this book is BERT: learned positions, *segments* (first or second text),
# a norm after the embeddings, post-norm blocks with GELU, and before the output another
# layer with a norm. **ALBERT** ([Lan et al. 2020](https://arxiv.org/abs/1909.11942))
# has smaller embeddings, which a layer widens, and one block that is applied many
# times.


# %% tags=["jax"]
class BertEncoder(nnx.Module):
    """Embeddings and encoder of BERT, or of ALBERT: ``n_embed``, and ``shared``."""

    def __init__(
        self,
        n_tokens,
        m,
        *,
        n_blocks,
        max_length,
        n_segments=2,
        n_embed=None,
        shared=False,
        eps=1e-12,
        rngs,
        **options,
    ):
        e, self.max_length = n_embed or m, max_length
        self.embed = embedding(n_tokens, e, rngs=rngs)
        self.positions = LearnedPositions(e, max_length, rngs=rngs)
        self.segments = embedding(n_segments, e, rngs=rngs)
        self.embed_norm = nnx.LayerNorm(
            e, epsilon=eps, use_fast_variance=False, rngs=rngs
        )
        self.widen = dense(e, m, rngs=rngs) if n_embed else None
        n = 1 if shared else n_blocks
        self.encoder = Encoder(n, m, activation="gelu", rngs=rngs, **options)
        for block in self.encoder.blocks:
            block.norm1.epsilon = block.norm2.epsilon = eps
        if shared:  # the same object in every place of the stack
            self.encoder.blocks = nnx.data([*self.encoder.blocks] * n_blocks)


# %% tags=["jax"]
class MaskedLM(BertEncoder):
    """Logits of the token at every position, which sees all of them: ``b s -> b s c``.

    Nobody looks where ``real`` is False, by default at -1; ``segments``: ``b s``.
    """

    def __init__(self, n_tokens, m, *, n_embed=None, eps=1e-12, rngs, **options):
        super().__init__(n_tokens, m, n_embed=n_embed, eps=eps, rngs=rngs, **options)
        e = n_embed or m
        self.hidden = dense(m, e, rngs=rngs)
        self.hidden_norm = nnx.LayerNorm(
            e, epsilon=eps, use_fast_variance=False, rngs=rngs
        )
        self.bias = nnx.Param(jnp.zeros(n_tokens))

    def encode(self, tokens, real=None, segments=None, *, return_maps=False):
        real = tokens >= 0 if real is None else real
        segments = jnp.zeros_like(tokens) if segments is None else segments
        x = self.positions(self.embed(jnp.maximum(tokens, 0)))  # b s e
        x = self.embed_norm(x + self.segments(segments))
        x = self.widen(x) if self.widen else x  # b s m
        return self.encoder(x, real[:, None, None], return_maps=return_maps)

    def logits(self, x):
        x = self.hidden_norm(jax.nn.gelu(self.hidden(x), approximate=False))  # b s e
        return self.embed.attend(x) + self.bias

    def __call__(self, tokens, real=None, segments=None, *, return_maps=False):
        out = self.encode(tokens, real, segments, return_maps=return_maps)
        return (self.logits(out[0]), out[1]) if return_maps else self.logits(out)


# %% tags=["jax"]
def load_bert(folder_or_name):
    """A ``MaskedLM`` with published weights of BERT or ALBERT, and its tokenizer.

    From a folder in Hugging Face's format, or a name on the hub; without dropout.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    model = MaskedLM(**checkpoints.arguments_of_bert(config), rngs=nnx.Rngs(0))
    tokenizer = checkpoints.read_tokenizer(folder, config["vocab_size"])
    from_arrays(
        model, checkpoints.our_names_of_bert(checkpoints.read_tensors(folder, "np"))
    )
    return model, tokenizer


# %% [markdown] tags=["shared"]
# Their published weights have other names than ours, and a matrix is stored as
# `out in`, in this book's files as `in out`. `load_bert` renames and transposes (if the
# model uses the exact GELU, as BERT and the first version of ALBERT do); this book's
# tests compare both, and the model below, with `transformers`:
#
# ```python
# model, tokenizer = load_bert("google-bert/bert-base-uncased")
# ```
#
# We load a smaller one, from chemistry. RXNMapper ([Schwaller et al.
# 2021](https://doi.org/10.1126/sciadv.abe4166)) is an ALBERT that was trained by masked
# tokens on chemical reactions. Its package, 3 MB on PyPI, contains the weights. It is
# fetched once, compared with a checksum, and not installed.

# %% tags=["shared"]
try:
    wheel = reactions.fetch_wheel()  # from the data folder, or with pip
except ValueError as error:
    wheel = None
    say(f"**RXNMapper is not at hand**, so all that follows stays empty: {error}.")

if wheel:
    config, vocabulary, tensors, mapped = reactions.read_wheel(wheel)
    mapper = new_model(MaskedLM, **checkpoints.arguments_of_bert(config))
    renamed = checkpoints.our_names_of_bert(tensors)
    from_arrays(mapper, renamed)  # ours, with their weights

# %% tags=["shared"]
if wheel:
    for name in (
        "albert.embeddings.word_embeddings.weight",
        "albert.encoder.embedding_hidden_mapping_in.weight",
        "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight",
        "predictions.dense.weight",
    ):
        ((ours, x),) = checkpoints.our_names_of_bert({name: tensors[name]}).items()
        print(f"{name}, {tuple(tensors[name].shape)}\n    {ours}, {x.shape}")

# %% tags=["shared", "say"]
if wheel:
    say(
        f"{len(renamed)} arrays, {sum(x.size for x in renamed.values()):,} numbers; "
        f"one block, used {len(mapper.encoder.blocks)} times."
    )

# %% [markdown] tags=["shared"]
# Reactions are text, in the notation **SMILES**. `C`, `N` or `Cl` is an atom, lower
# case in an aromatic ring; atoms side by side are bonded; `=` is a double bond,
# parentheses hold a branch, a digit opens a ring and closes it, a dot separates
# molecules, and `>>` is the arrow. Hydrogen is mostly left out: `CCO` is ethanol.
# Brackets hold an atom with its charge or its hydrogens; equal numbers after a colon
# mark one atom, before and after.
#
# We take three reactions from the package's tests; their numbers are RXNMapper's own
# answers. Does the model fill in what is hidden in them? (It may have seen them in
# training; and many tokens, such as the digit that closes a ring, follow from others.)


# %% tags=["shared"]
def encode(tokens):
    """Tokens of a reaction as the model takes them, padded with -1: ``s``."""
    return reactions.encode(tokens, vocabulary, 104)


if wheel:
    read = [reactions.read_reaction(smiles) for smiles in mapped[:3]]
    ids = np.stack([encode(tokens) for tokens, _ in read])  # b s
    print("".join(read[0][0]))

# %% tags=["shared"]
if wheel:
    mask = vocabulary.index("[MASK]")  # tokens of reactions come after it
    turn = np.arange(ids.shape[1]) % 7 == np.arange(7)[:, None, None]  # 7 1 s
    hidden = turn & (ids > mask)  # 7 b s: every seventh token, then the next ones
    given = np.where(hidden, mask, ids).reshape(-1, ids.shape[1])
    filled = logits_of(mapper, given).argmax(axis=-1).reshape(hidden.shape)
    truth = np.broadcast_to(ids, hidden.shape)[hidden]
    n_filled = int((filled[hidden] == truth).sum())
    most = np.bincount(truth).max()

# %% tags=["shared", "say"]
if wheel:
    say(f"""Each token was hidden once, a seventh of them at a time. It fills in
**{n_filled} of {len(truth)}** as they were; always the most frequent token would be
right {most} times.""")

# %% tags=["shared", "check"]
# Checked: it fills nearly all; all arrays were loaded; the block is one object
if wheel:
    assert n_filled > 0.9 * len(truth) > 2 * most
    assert {*map(id, mapper.encoder.blocks)} == {id(mapper.encoder.blocks[0])}
    assert all((to_arrays(mapper)[name] == x).all() for name, x in renamed.items())

# %% [markdown] tags=["shared"]
# ## One head shows which atom becomes which
#
# In the chapters on the reverse task and on the odd one out, attention maps were a
# doubtful explanation: there was nothing to compare them with. Here there is.
#
# In a reaction no atom appears from nowhere: each atom of the product was one of the
# reactants. Which one? Chemists call the answer the **atom map**. It is needed to learn
# rules of reactions from records, and finding it by hand is tedious. (Not every
# reactant atom has a partner: records mostly leave by-products out, and name solvents
# and bases among the reactants.) Nobody told this model about maps; it only filled in
# tokens. But to fill in an atom of the product, it helps to know where it came from.
#
# RXNMapper's program, *the tool* below, reads the map off one head, number 5 in pass 10
# through the block, both counted from 0; its authors chose it after training. Each
# product atom goes to the reactant atom that it looks at most.


# %% tags=["shared"]
def follow(smiles):
    """Who is right, ``l h p``; places of the atoms, ``l h p, p``; maps ``l h s s``."""
    tokens, numbers = reactions.read_reaction(smiles)
    row = tensor(encode(tokens)[None])
    maps = as_numpy(forward(mapper, row, return_maps=True)[1])[:, 0]
    old, new = reactions.atom_map(maps, tokens)
    return numbers[old] == numbers[new], old, new, maps


if wheel:
    followed = [follow(smiles) for smiles in mapped[:3]]
    right = np.concatenate([found[0] for found in followed], axis=-1)  # l h p
    share = right.mean(axis=-1)  # l h

# %% tags=["shared", "experiment"]
# Experiment: is the element kept, also of what is not carbon?
if wheel:
    kept, rare, chance = [], [], []
    for (atoms, _), (_, old, new, _) in zip(read, followed, strict=True):
        kind = reactions.elements(atoms)  # of each token
        kept.extend(kind[old[10, 5]] == kind[new])
        rare.extend(kind[new] != "C")
        before = kind[: new[0]][kind[: new[0]] != ""]
        chance.extend((before == each).mean() for each in kind[new])
    kept, rare, n_best = np.array(kept), np.array(rare), int(right[10, 5].sum())

# %% tags=["shared", "say"]
if wheel:
    say(f"""This head alone maps **{n_best} of {right.shape[-1]}** atoms as the tool
does, **{share[10, 5]:.0%}**; the median over all {share.size} passes and heads is
{np.median(share):.0%}. It sends **{kept.sum()} of {kept.size}** atoms to one of the
same element (by chance, {np.mean(chance):.0%} would be), {kept[rare].sum()} of the
{rare.sum()} that are not carbon, too, though nothing here makes it do so.""")

# %% tags=["shared", "check"]
# Checked: one head is the tool's map, and elements are conserved
if wheel:
    assert share[10, 5] > 0.9 > 0.2 > np.median(share)
    assert kept.all() and rare.sum() > 10 and np.mean(chance) < 0.7

# %% [markdown] tags=["shared"]
# ## Where the map is wrong
#
# Agreement with a tool that uses this very head shows nothing about chemistry. (And a
# map that can be read off a head need not be one that the model uses.) Equal elements
# are necessary, but not sufficient; better is a map from elsewhere. The reaction below,
# [reported by a
# user](https://github.com/rxn4chemistry/rxnmapper/issues/12), is a Suzuki coupling: the
# first ring loses chlorine (`Cl`), the second boron (`B`), and the two carbons that
# held them are bonded. Its map follows from that (up to the mirror image of the first
# ring), and is written in the code.
#
# We name an atom by the place of its token, counted from 0. `C15` held boron, so it
# becomes `C28`, which is bonded to the first ring. The tool maps `C28` to `C18`, the
# neighbour of `C15`, and its author confirmed the mistake. See for yourself: `C28` is
# chosen below.

# %% tags=["shared"]
COUPLING = (  # numbers after a colon: the right map
    "Cl[c:3]1[cH:4][cH:5][cH:6][cH:7][cH:8]1."
    "OB(O)[C:1]1=[CH:2][CH2:9][CH2:10][CH2:11][CH2:12]1"
    ">>[CH:2]1=[C:1]([c:3]2[cH:4][cH:5][cH:6][cH:7][cH:8]2)"
    "[CH2:12][CH2:11][CH2:10][CH2:9]1"
)
if wheel:
    correct, old, new, maps = follow(COUPLING)
    atoms = np.array(reactions.read_reaction(COUPLING)[0])
    before = np.flatnonzero(reactions.elements(atoms[: new[0]]) != "")
    weights = maps[..., new[:, None] + 1, before + 1]  # l h p r; + 1: after [CLS]
    weights = weights / weights.sum(axis=-1, keepdims=True)
    print("".join(atoms))

# %% tags=["shared", "figure"]
shown = None
if wheel:
    shown = viewer.attention(
        weights,
        [f"{atoms[i]}{i}" for i in new],
        [f"{atoms[i]}{i}" for i in before],
        about="Of product atoms, to reactant atoms: attention as shares of one",
        layer=10,
        head=5,
        query=1,
    )
shown

# %% tags=["shared"]
if wheel:
    chosen, ring = correct[10, 5], np.r_[0:2, 8:12]  # atoms of the ring that held boron
    to_18 = weights[10, 5, 1, before == 18].item()
    to_15 = weights[10, 5, 1, before == 15].item()

# %% tags=["shared", "say"]
if wheel:
    say(f"""Of its weight on the reactants, `C28` gives `C18` **{to_18:.0%}**, `C15`
{to_15:.0%}. In the first ring the head maps **{chosen[2:8].sum()} of 6** atoms
correctly, in the one that held boron **{chosen[ring].sum()} of 6**.""")

# %% tags=["shared", "check"]
# Checked: where the author says that the tool fails, so does its head
if wheel:
    assert chosen[2:8].all() and chosen[ring].sum() < 3
    assert [*atoms[[11, 15, 18, 28]]] == ["B", "C", "C", "C"] and new[1] == 28
    assert old[10, 5, 1] == 18  # not 15

# %% [markdown] tags=["shared"]
# An attention map can be trusted as an answer only where it can be checked. Here the
# check has also found where it fails.
#
# **Exercise 1, a function.** Write `my_masks(tokens, first, way, others, mask_token)`,
# which returns inputs and labels `b s`. A token is asked for where `first < 0.15`,
# unless it is padding ($-1$). Where `way < 0.8` it becomes the mask, else where `way <
# 0.9` the token in `others`, and else it stays. Then hold it against `hide`, which
# draws `first, way = rng.random((2, b, s))`, then `others = rng.integers(len(pairs),
# size=(b, s))`.


# %% tags=["jax", "answer"]
def my_masks(tokens, first, way, others, mask_token):
    asked = (first < 0.15) & (tokens >= 0)
    inputs = jnp.where(asked & (way < 0.8), mask_token, tokens)
    replaced = asked & (way >= 0.8) & (way < 0.9)
    return jnp.where(replaced, others, inputs), jnp.where(asked, tokens, -1)


padded = np.where(np.arange(100) < 90, many, -1)
rng = np.random.default_rng(1)
first, way = rng.random((2, *padded.shape))
others = rng.integers(len(pairs), size=padded.shape)
mine = my_masks(padded, first, way, others, len(pairs))
for x, y in zip(mine, hide(padded, np.random.default_rng(1)), strict=True):
    np.testing.assert_array_equal(as_numpy(x), y)

# %% [markdown] tags=["shared"]
# **Exercise 2, by formula.** In the table, a token that stays is right nearly always,
# and still costs much more than nothing. What would a model pay in the rows *the token*
# and *another token*, if it took both cases as equally likely, knew the frequencies,
# and nothing else?

# %% tags=["shared", "answer"]
say(
    "A token that is asked for and is no mask was left as it is in half of the cases. "
    f"Giving it one half costs $\\ln 2$ = {np.log(2):.2f} nats where it is right "
    f"(found: {costs['the token']:.2f}). The other half goes to all tokens by their "
    f"frequency: where another stands, that costs {by_frequency:.2f} + "
    f"{np.log(2):.2f} = {by_frequency + np.log(2):.2f} (found: "
    f"{costs['another token']:.2f}). A model that also weighs how common the token is, "
    "or reads the text around it, can do better."
)
assert abs(costs["the token"] - np.log(2)) < 0.5
assert abs(costs["another token"] - by_frequency - np.log(2)) < 0.8

# %% [markdown] tags=["shared"]
# **Exercise 3, one head or more.** Is it one head, or would others do? List the
# five maps that agree most with the tool, with their pass and head. Why can the same
# head number be good in one pass, and useless in another, if all passes share their
# weights?

# %% tags=["shared", "answer"]
if wheel:
    order = [np.unravel_index(i, share.shape) for i in share.ravel().argsort()[::-1]]
    lines = [[f"{p}", f"{h}", f"{share[p, h]:.0%}"] for p, h in order[:5]]
    fifth = share[:, 5]
    say(table(["pass", "head", "as the tool"], *lines))
    say(
        "One head, but several passes would do, and on these three reactions some "
        "agree as well as the one that the tool uses, or better. "
        f"Head 5 agrees for {fifth.min():.0%} to {fifth.max():.0%}, depending on the "
        "pass: the weights are the same, but the vectors that reach them are not."
    )
    assert fifth.max() - fifth.min() > 0.4 and {h for _, h in order[:5]} == {5}
    assert fifth.max() > share[10, 5]

# %% [markdown] tags=["shared"]
# ## Extra: One head is not the whole tool
#
# The tests of the package have smaller reactions as well, made up to try the code.
# Follow the same head there.

# %% tags=["shared"]
if wheel:
    small_ones = []
    for smiles in mapped[3:]:
        if {*reactions.read_reaction(smiles)[0]} <= {*vocabulary}:  # knows all tokens
            small_ones.append(follow(smiles)[0][10, 5])
    agree = np.concatenate(small_ones)

# %% tags=["shared", "say"]
if wheel:
    say(f"""In {len(small_ones)} small reactions the head agrees with the tool on
**{agree.sum()} of {agree.size}** atoms, {agree.mean():.0%}: a lower share than
before.""")

# %% [markdown] tags=["shared"]
# The tool adds rules to the head: attention in both directions, equal elements only,
# each atom once, and a preference for neighbours of atoms that are mapped already. So
# its maps are not attention alone.

# %% tags=["shared", "check"]
# Checked: in small reactions, one head is not enough
if wheel:
    assert agree.mean() < share[10, 5] - 0.1

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** Why is an encoder not trained to predict the next token?
#
# <details><summary>It has no output layer for tokens.</summary>
#
# **No.** It can have one, as on this page. The layer is the same in both cases.
#
# </details>
# <details><summary>It sees that token among its inputs.</summary>
#
# **Right.** Without a causal mask, the answer stands one position further. Copying it
# would bring the loss to zero, and nothing would be learned about the text.
#
# </details>
# <details><summary>It would need more labels than a text has.</summary>
#
# **No.** Every token but the first is a label of that kind: a text has many of them.
#
# </details>
#
# **2.** Someone takes the loss over all tokens, not only over those asked for. What
# will they see?
#
# <details><summary>A lower loss, because most labels can be copied.</summary>
#
# **Right.** Most tokens stand in the input as they are. Copying them takes no skill,
# and hides how well the gaps are filled.
#
# </details>
# <details><summary>A higher loss, because there are more labels.</summary>
#
# **No.** The loss is a mean. More labels do not raise it; labels to copy lower it.
#
# </details>
# <details><summary>The same loss: the other labels cancel in the mean.</summary>
#
# **No.** Nothing cancels: they count with the loss that they have, which is low.
#
# </details>
#
# **3.** What are the random tokens for?
#
# <details><summary>They teach it tokens that are rare in the text.</summary>
#
# **No.** They stand where they do not belong, which is a poor lesson about them.
#
# </details>
# <details><summary>They make training as hard as it is with a causal mask.</summary>
#
# **No.** The causal mask hides one side. A random token hides nothing but itself.
#
# </details>
# <details><summary>They keep the model from trusting what stands at a place.</summary>
#
# **Right.** A token that is no mask may be wrong, so its vector has to say what fits
# the text around it, also in texts that have no masks.
#
# </details>
#
# **4.** Weights of a published encoder load without an error, but the logits are far
# from those of its authors. What fits?
#
# <details><summary>The vocabulary has another size.</summary>
#
# **No.** Then a table would have another shape, and loading would have stopped.
#
# </details>
# <details><summary>A square matrix was not transposed.</summary>
#
# **Right.** It has the same shape either way, so nothing stops. Only the outputs can
# tell, so compare them with those of the authors.
#
# </details>
# <details><summary>The file stores its numbers in half precision.</summary>
#
# **No.** That rounds each weight to three digits, and the logits change a little.
#
# </details>
#
# **5.** A head agrees with a program for 57 of 59 atoms. The program reads its answer
# off this head. What does that show about chemistry?
#
# <details><summary>Nothing: both read the same head.</summary>
#
# **Right.** To learn more, compare it with a map that comes from elsewhere.
#
# </details>
# <details><summary>That the head has learned what chemists know.</summary>
#
# **No.** The program would agree with its own head as well if both were wrong.
#
# </details>
# <details><summary>That the program is right for 57 of 59 atoms.</summary>
#
# **No.** To say how often a program is right, you need maps that were not made by it.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * Masked language modelling asks for hidden tokens, so a model may see both sides.
# * Few tokens have a label, and a mask says nothing: here, after as many updates, a
#   masked token cost more than a next one.
# * An encoder reads a text that is there as a whole; a decoder can also write.
# * Published weights are arrays with other names. Rename them, and compare the outputs
#   with those of the authors' code.
# * Trust an attention map as an answer only where you can check it.

# %% [markdown] tags=["jax"]
# Next comes [your own data, in JAX](data_jax.ipynb): tables, signals and texts as
# sequences, and baselines to beat.
