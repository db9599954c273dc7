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

from helpers import Settings, as_numpy, check, count_parameters, from_arrays, to_arrays
from helpers.data import byte_pairs, checks, sequences, text
from helpers.jax import Encoder, attention_maps, evaluate, fit, tensor, without_dropout
from helpers.jax.attention import attend, fused_attention, merge_heads
from helpers.jax.positions import POSITIONS, LearnedPositions, RotaryAttention
from helpers.show import download_link, drawing, plots, say, table, viewer

jax.config.update("jax_default_matmul_precision", "highest")
plots.use_style()
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
from collections import Counter
from itertools import pairwise


def learn_merges(string, n_merges):
    """The most frequent pair of neighbours, made a new token, ``n_merges`` times."""
    counts = Counter(byte_pairs.PIECE.findall(string))  # the pieces
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
            split[piece] = byte_pairs.merged(parts, best, merges[-1])
    return merges


merges = learn_merges(texts["train"], 16)
print(merges)

# %% [markdown] tags=["shared"]
# Indents come first. We learn 512 merges, and encode a text by applying them in the
# same order.

# %% tags=["shared"]
pairs = byte_pairs.BytePairs.learn(texts["train"], 97 + 512)  # characters, merges
tokens = {name: pairs.encode(part) for name, part in texts.items()}  # integer arrays
line = "def __init__(self, name):"
print(*pairs.encode(line))
for n_merges in (0, 16, 128, 512):
    fewer = byte_pairs.BytePairs("".join(pairs.numbers), [*pairs.merges][:n_merges])
    parts = [fewer.decode([token]) for token in fewer.encode(line)]
    print(n_merges, "merges:", *[part.replace(" ", "␣") for part in parts])

# %% tags=["shared", "say"]
say(
    f"With {len(pairs.numbers)} characters, the vocabulary has {len(pairs)} tokens. "
    f"The training text becomes {len(tokens['train']):,} tokens, the held-out text "
    f"{len(tokens['test']):,} (in Python {sys.version.split()[0]})."
)

# %% tags=["shared", "check"]
# Checked: the vocabulary begins with our merges, and decoding gives the texts
assert pairs.tokens[len(pairs.numbers) :][: len(merges)] == merges
for name, part in texts.items():
    assert pairs.decode(tokens[name]) == part

# %% [markdown] tags=["shared"]
# A token's number is only a name: token 20 is not twice token 10. So each of the $c$
# tokens gets a learned vector of size $m$: its row of an **embedding** table $E$, or
# its one-hot vector times $E$.


# %% tags=["jax", "export"]
NORMAL = nnx.initializers.variance_scaling(1.0, "fan_out", "normal")


def embedding(n_tokens, m, *, rngs):
    """Table with a vector for each token, ``c m``: normal, standard deviation 1/√m."""
    return nnx.Embed(n_tokens, m, embedding_init=NORMAL, rngs=rngs)


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


# %% tags=["shared"]
sizes = {"n_tokens": 97 + 512, "m": 96, "n_blocks": 2, "n_heads": 4, "f": 384}
sizes["max_length"] = 64


# %% tags=["jax"]
import cloudpickle  # for `generate`, as in `fit`
import optax  # for the loss, below


def new_model(seed=0, **changes):
    """A model of these sizes, or of changed ones; the seed draws its weights."""
    return LanguageModel(**(sizes | changes), rngs=nnx.Rngs(seed))


@nnx.jit
def forward(model, tokens):
    return model(tokens)


# %% [markdown] tags=["shared"]
# To test the whole stack, we change token 40 of 64 and see which logits move.


# %% tags=["shared"]
def logits_of(model, tokens):
    """The logits of a model as a NumPy array: ``b s -> b s c``."""
    return as_numpy(forward(model, tensor(tokens)))


model = new_model(seed=42)
window = tokens["test"][None, :65]  # b s+1
row = window[:, :-1]  # b s
changed = np.where(np.arange(64) == 40, (row + 1) % len(pairs), row)
before, after = logits_of(model, row), logits_of(model, changed)  # b s c
moved = np.abs(after - before).max(axis=(0, 2))  # of each position: s
print(f"{(moved == 0).sum()} positions stay bit-equal; 40 moves by {moved[40]:.1f}")

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


# %% tags=["jax", "export"]
def next_token(model, *batch):
    """Mean cross-entropy and accuracy of predicting each token from those before it."""
    *given, tokens = batch  # given: empty here; a source, in translation
    labels = tokens[:, 1:]  # b s
    logits = model(*given, tokens[:, :-1]).astype(jnp.float32)  # b s c
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, jnp.maximum(labels, 0)
    )  # b s
    losses = jnp.where(labels < logits.shape[-1], losses, jnp.nan)  # no such token
    real = labels >= 0
    hits = logits.argmax(-1) == labels  # never where there is padding
    n = jnp.maximum(real.sum(), 1)  # a batch of padding alone: loss 0, counts 0
    loss = jnp.where(real, losses, 0).sum() / n
    return loss, {"accuracy": hits.sum() / n, "count": real.sum()}


# %% [markdown] tags=["shared"]
# How high is the loss before training? Equal probabilities would cost $\ln c$; random
# logits cost more, because they prefer some tokens without a reason.

# %% tags=["shared"]
held_out = text.windows(tokens["test"], 64)  # n s+1
untrained = evaluate(model, next_token, (held_out,), batch_size=len(held_out))["loss"]
print(f"untrained {untrained:.2f} nats, equal probabilities {np.log(len(pairs)):.2f}")

# %% tags=["shared", "check"]
# Checked: one pass equals a pass for each beginning, and its loss is the mean of -ln p
for n in (1, 2, 40, 64):  # beginnings padded at the end: one shape for all
    beginning = np.where(np.arange(64) < n, row, -1)
    last = logits_of(model, beginning)[0, n - 1]
    np.testing.assert_allclose(last, before[0, n - 1], atol=1e-5)
loss = evaluate(model, next_token, (window,))["loss"]
np.testing.assert_allclose(loss, text.nats(before, window).mean(), rtol=1e-5)

# %% [markdown] tags=["shared"]
# What if we forget the mask? Then position $t$ sees its own label, token $t + 1$. We
# train a small model on characters without it, and measure the loss inside new texts,
# and at their end, where a model would write.

# %% tags=["shared"]
alphabet = byte_pairs.BytePairs("".join(pairs.numbers))  # no merges: only characters
characters = {name: alphabet.encode(part[:500_000]) for name, part in texts.items()}
small = Settings(
    n_train=32 * 150, batch_size=32, epochs=1, learning_rate=6e-3, warmup=30
)
unmasked = new_model(seed=1, causal=False, n_tokens=len(alphabet), n_blocks=1)
small_rows = text.random_windows(characters["train"], 16, small)
fit(unmasked, next_token, (small_rows,), small, batches=sequences.in_order(small))

new_rows = text.windows(characters["test"], 8)[:2000]  # b s+1
logits = logits_of(unmasked, new_rows[:, :-1])  # b s c
losses = text.nats(logits, new_rows).mean(axis=0)  # s
inside, at_end = losses[:-1].mean(), losses[-1]
print(f"inside the texts {inside:.2f} nats per character, at their end {at_end:.2f}")
print(f"with equal probabilities {np.log(len(alphabet)):.2f}")

# %% [markdown] tags=["shared"]
# Inside the texts, the model copies. At the end there is nothing to copy, and it does
# worse than blind guessing. So if a loss falls too fast, look for a leak from label to
# input.

# %% tags=["shared", "check"]
# Checked: without the mask, little loss inside the text, much at its end
assert inside < 0.5
assert at_end > np.log(len(alphabet))

# %% [markdown] tags=["shared"]
# ## A short training run is ahead of our n-grams
#
# Now the real model, with the loop of the reverse task and these settings:

# %% [markdown] tags=["shared"]
# | setting | value | why here | try first for another task |
# |---|---|---|---|
# | `n_tokens` | 609 | 97 characters, 512 merges | 10,000 to 100,000 |
# | `max_length` | 64 | little time | 512 to 4,096 |
# | `n_blocks`, `m` | 2, 96 | little time | 6 to 12; 384 to 768 |
# | `n_heads`, `f` | 4, 384 | m/24, 4m | m/64, 4m |
# | `batch_size` | 16 | many updates | 32 to 512 |
# | `n_train` | 16 · 65 | new windows each epoch | all of the text |
# | `epochs` | 10 | 650 updates | until the held-out loss rises |
# | `learning_rate` | 6e-3 | small models bear it | 3e-4 to 1e-3 |
# | `warmup` | 60 | a tenth of all | a twentieth |
# | `dropout` | 0 | few windows come twice | 0.1 if data repeat |

# %% tags=["shared"]
settings = Settings(
    n_train=16 * 65, batch_size=16, epochs=10, learning_rate=6e-3, warmup=60
)
rows = text.random_windows(tokens["train"], 64, settings)  # one a window: n s+1
model = new_model(seed=42)
in_order = sequences.in_order(settings)
history = fit(model, next_token, (rows,), settings, batches=in_order)

loss = evaluate(model, next_token, (held_out,), batch_size=len(held_out))["loss"]
bits = text.bits_per_character(loss, tokens["test"], texts["test"])
print(f"{history['seconds'].sum():.0f} seconds; {loss:.2f} nats per token on new text")

# %% [markdown] tags=["shared"]
# Because longer tokens are harder to guess, we count **bits per character**: the loss
# in nats per token, divided by $\ln 2$ and by the mean number of characters in a token.
# The baselines, **n-grams**, count what followed each context of $n - 1$ characters in
# the training text, and mix in shorter contexts, the more the rarer one is. Witten–Bell
# smooths them; Kneser–Ney would be somewhat better ([Chen & Goodman
# 1996](https://aclanthology.org/P96-1041/)).

# %% tags=["shared"]
counted = text.ngram_bits(texts["train"], texts["test"], 6)  # of the orders 1 to 6
unigram, trigram, five_gram, six_gram = (counted[n - 1] for n in (1, 3, 5, 6))
learning = history["loss"].reshape(-1, 10).mean(axis=1)  # of ten updates
learning = text.bits_per_character(learning, tokens["train"], texts["train"])
print(f"at the end of training {learning[-10:].mean():.2f} bits per character")
print(f"perplexity on new text {np.exp(loss):.0f}")

# %% tags=["shared", "say"]
names = ["unigram", "trigram", "5-gram", "6-gram", "our Transformer"]
values = [unigram, trigram, five_gram, six_gram, bits]
about = ["counted"] * 4 + [f"{count_parameters(model):,} parameters"]
lines = zip(names, about, (f"{value:.2f}" for value in values), strict=True)
say(table(["model", "how", "bits per character, held out"], *lines))

# %% [markdown] tags=["shared"]
# In this run the Transformer needs fewer bits than the best of these n-grams (other
# seeds: see the extra on GPT-2). On the modules it learns from it needs fewer still,
# although this is not one pass over them: other modules have other names. Another form
# of the loss is the **perplexity** $e^{\mathrm{loss}}$: the task is as hard as choosing
# among so many equally probable tokens.

# %% mystnb={"image": {"alt": "Bits per character over the updates. The training curve falls steeply, then slowly, and ends below a short line for the held-out text, which is below the line of the 5-gram."}} tags=["shared", "figure"]
at = 10 * np.arange(1, len(learning) + 1)
lines = {
    "in training": (at, learning),
    "held out, at the end": (at[-10:], np.full(10, bits)),
    "5-gram, held out": (at, np.full(len(at), five_gram)),
}
panels = {"On new text, the model is ahead of the 5-gram": lines}
plots.curves(panels, x="update", y="bits per character", size=(6.2, 3))

# %% tags=["shared", "check"]
# Checked: fewer bits than every n-gram; fewer still in training, before one pass ends
assert bits < five_gram < six_gram < trigram < unigram
assert learning[-10:].mean() < bits < 2.25
assert rows.size < len(tokens["train"])

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
logits = logits_of(model, some[:, :-1])  # b s c
at_position = text.nats(logits, some).mean(axis=0)  # s
spans = {"1": slice(1), "2 to 4": slice(1, 4), "5 to 16": slice(4, 16)}
spans["17 to 64"] = slice(16, 64)
means = [at_position[span].mean() for span in spans.values()]
lines = zip(spans, (f"{mean:.2f}" for mean in means), strict=True)
say(table(["position", "loss, nats per token"], *lines))
assert means[0] - means[2] > means[2] - means[3] and means[0] > means[3]
say(
    "The loss is higher at the first position, and most is gained early: a few tokens "
    "tell which word and which phrase it is. Earlier context helps little more, at "
    "least in a model as small as this one."
)

# %% [markdown] tags=["shared"]
# ## In our model, the first block looks nearer than the second
#
# How far back do the tokens look, and which head looks at line breaks? We average over
# held-out windows.


# %% tags=["shared"]
def maps_of(tokens):
    """Attention maps of the language model: ``b s -> l b h q k``."""
    x = model.positions(model.embed(tensor(tokens)))  # b s m
    causal = np.tril(np.ones((x.shape[1], x.shape[1]), bool))
    return as_numpy(attention_maps(model.decoder, x, tensor(causal))[1])


visible = [token.replace(" ", "␣").replace("\n", "⏎") for token in pairs.tokens]
few = held_out[::7, :-1]  # b s, of all modules
many = maps_of(few)  # l b h q k
back = np.arange(64)[:, None] - np.arange(64)  # q k: how far a key is behind its query
distance = (many * np.tril(back)).sum(axis=-1)[..., 32:]  # second half: l b h q
near, far = distance.mean(axis=(1, 2, 3))  # of each block
breaks = np.char.startswith(np.array(visible), "⏎")[few]  # b s
on_breaks = (many[1] * breaks[:, None, None]).sum(axis=-1)[..., 8:]  # b h q
on_breaks = on_breaks.mean(axis=(0, 2))  # of each head in the second block
head = int(on_breaks.argmax())

# %% tags=["shared", "say"]
say(
    f"In the second half of a window, the first block looks **{near:.0f} tokens** back "
    f"on average, the second **{far:.0f}**; equal weights would give 24. The second "
    f"block's head {head} puts {on_breaks[head]:.0%} of its weight on line breaks with "
    f"their indents, which are {breaks.mean():.0%} of the tokens."
)

# %% tags=["shared", "check"]
# Checked: the first block looks nearer; a head of the second looks at line breaks
assert near < 0.8 * far
assert on_breaks[head] > 1.5 * breaks.mean()

# %% [markdown] tags=["shared"]
# Choose a layer (a block), a head and a token; `⏎` is a line break, `␣` a space.

# %% tags=["shared"]
code = "class Stack:\n    def push(self, item):\n        self.items.append(item)\n"
ids = pairs.encode(code)
maps = maps_of(ids[None])[:, 0]  # l h q k

# %% tags=["shared", "figure"]
labels = [visible[i] for i in ids]
at_breaks = maps[1, head][:, [label.startswith("⏎") for label in labels]].sum(axis=-1)
viewer.attention(
    maps,
    labels,
    layer=1,
    head=head,
    query=int(at_breaks.argmax()),  # a token that looks at line breaks
    about="Attention maps of the trained language model: rows are the tokens that look",
)

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


# %% tags=["jax", "export"]
def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """Probabilities that the next token is drawn with: ``... c -> ... c``."""
    logits = logits.astype(jnp.float32)
    highest = logits.max(axis=-1, keepdims=True)  # subtracted: a tiny τ is safe
    p = jax.nn.softmax((logits - highest) / temperature, axis=-1)
    if top_k is None and top_p is None:
        return p
    order = jnp.argsort(-p, axis=-1, stable=True)  # the most probable first
    p = jnp.take_along_axis(p, order, axis=-1)
    if top_k is not None:
        p = jnp.where(jnp.arange(p.shape[-1]) < top_k, p, 0)
        p = p / p.sum(axis=-1, keepdims=True)
    if top_p is not None:
        before = jnp.cumsum(p, axis=-1) - p  # what the more probable ones have
        p = jnp.where((before < top_p) | (top_p >= 1), p, 0)
        p = p / p.sum(axis=-1, keepdims=True)
    return jnp.put_along_axis(jnp.zeros_like(p), order, p, axis=-1, inplace=False)


# %% tags=["shared"]
def logits_after(string):
    """Logits of the token after a string, which is padded to a window: ``c``."""
    ids = pairs.encode(string)
    padded = np.pad(ids, (0, 64 - len(ids)), constant_values=-1)
    return tensor(logits_of(model, padded[None])[0, len(ids) - 1])


method = "    def close(self):\n        if self."
last = logits_after(method)
knobs = {
    "temperature 1": {},
    "temperature 0.5": {"temperature": 0.5},
    "top_k=5": {"top_k": 5},
    "top_p=0.3": {"top_p": 0.3},
}
probabilities = {}
for name, knob in knobs.items():
    probabilities[name] = as_numpy(next_token_probabilities(last, **knob))  # c
order = np.argsort(-probabilities["temperature 1"])[:10]  # the most probable first
for name, p in probabilities.items():
    best = f"{pairs.tokens[order[0]]} has {p[order[0]]:.0%}"
    print(f"{name}: after `if self.`, {best}, and {np.sum(p > 0)} tokens are possible")

# %% mystnb={"image": {"alt": "Four panels of bars, the probabilities of the ten most probable tokens after 'if self.': with temperature 1, with temperature 0.5, with top-k of five, where the bars after the fifth are gone, and with top-p of 0.3, where only the first few are left."}} tags=["shared", "figure"]
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

# %% [markdown] tags=["jax"]
# In JAX the loop is compiled, as a `lax.scan`. Each draw has a key of its own, and the
# array has its full length from the start, because a compiled program has fixed shapes.


# %% tags=["jax"]
@nnx.jit(static_argnames="length")
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
prompt = "def read("
n = len(pairs.encode(prompt))
real = held_out[:: len(held_out) // 16]  # b s+1: of all modules
starts = tensor(np.vstack([pairs.encode(prompt), real[:, :n]]))  # b+1 n
model.eval()  # no dropout, where there is any
ways = {"greedy": 1e-6, "temperature 0.5": 0.5, "temperature 1": 1.0}  # near 0: greedy
written = {}
for name, temperature in ways.items():
    new = write(model, starts, 55, temperature=temperature)  # b+1 length
    written[name] = as_numpy(new)
    first = f"{prompt}│{pairs.decode(written[name][0])}".replace(" ", "␣")
    print(f"--- {name}", first, sep="\n")

# %% [markdown] tags=["shared"]
# The model wrote what follows the bar. It looks like Python, but has no meaning yet.
# Does it repeat itself? We count the fours of tokens that occurred before in the same
# text.


# %% tags=["shared"]
def repeated(texts):
    """Share of the fours of tokens that occurred before in their text, ``b s``."""
    n_fours = texts.shape[1] - 3
    shares = []
    for row in texts:
        fours = {tuple(row[i : i + 4].tolist()) for i in range(n_fours)}
        shares.append(1 - len(fours) / n_fours)
    return np.mean(shares)


repeats = {name: repeated(new[1:]) for name, new in written.items()}
repeats["real text"] = repeated(real[:, n : n + 55])
for name, share in repeats.items():
    print(f"{name}: {share:.0%} of the fours are repeated, in {len(real)} texts")

# %% [markdown] tags=["shared"]
# Greedy text runs in circles, because repetition raises the probability of a phrase
# (Holtzman, figure 4).

# %% tags=["shared", "check"]
# Checked: greedy text repeats itself more than real text, and than sampled text
assert repeats["greedy"] > 0.2 + repeats["real text"]
assert repeats["greedy"] > 0.2 + repeats["temperature 1"]

# %% [markdown] tags=["shared"]
# Take the model and its vocabulary with you, in half precision. Move the three settings
# [in your browser](../book/playground.md), with a model that has learned for longer.

# %% tags=["shared"]
name = f"decoder_{framework}.safetensors"
download_link(model, name, half=True, metadata=pairs.metadata)

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
    its = logits_after(beginning)
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
def softmax(scores):
    """Exponentials divided by their sum: each row sums to 1."""
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


x = np.array([[1, 0], [0, 1]])  # s m: token 0, token 1
w_query, w_key = np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 2]])
w_value, w_output = 3 * np.eye(2), np.array([[0.5, 0, -0.5], [0, 0.5, 0.5]])
q = x @ w_query  # 1. queries: what each token looks for
k = x @ w_key  # 2. keys: what each token can be found by
v = x @ w_value  # 3. values: what each token hands over
scores = q @ k.T / np.sqrt(2)  # 4. scores, divided by √d
masked = np.where(np.tri(2), scores, -np.inf)  # 5. mask: nothing later is seen
weights = softmax(masked)  # 6. softmax: each row sums to 1
out = weights @ v  # 7. weighted sum of the values
y = x + out  # the residual
logits = y @ w_output  # s c
p = softmax(logits)  # of the next token, after token 0 and after token 1

# %% tags=["shared"]
steps = {"x": x, "1. q": q, "2. k": k, "3. v": v, "4. scores": scores}
steps |= {"5. mask": masked, "6. weights": weights, "7. out": out}
steps |= {"y = x + out": y, "logits": logits, "p": p}
for name, rows_of_both in steps.items():
    print(f"{name:12}", *rows_of_both.round(2).tolist())

# %% [markdown] tags=["shared"]
# Token 0 may look only at itself, so its weight is 1 and its output is its own value,
# whatever the matrices are, while token 1 mixes both values. Norm and feed-forward net
# are left out.

# %% [markdown] tags=["shared"]
# **Exercise 3, by hand.** The text is now token 0 twice: both rows of $x$ are $(1, 0)$.
# Which weights, output and probabilities does row 1 get? What does that say
# about positions?

# %% tags=["shared", "answer"]
twice = np.array([[1, 0], [1, 0]])
scores = twice @ w_query @ (twice @ w_key).T / np.sqrt(2)
weights_twice = softmax(np.where(np.tri(2), scores, -np.inf))
out_twice = weights_twice @ twice @ w_value
np.testing.assert_allclose(weights_twice[1], [0.5, 0.5])
np.testing.assert_allclose(out_twice[1], out[0])
say(
    "Both keys are equal, so both scores are equal and the weights are ½ and ½. The "
    "values are equal, too, so the output is (3, 0), as for one token alone, and the "
    f"probabilities are {', '.join(f'{z:.2f}' for z in p[0])} again. Without positions "
    "the model cannot tell a token from the same token twice."
)

# %% [markdown] tags=["shared"]
# ## Extra: The same model with options
#
# Later chapters and `generate`, below, need more of the class: weights that are not
# tied, other positions, another stack with a context, and maps. The `options` are the
# sizes and the options of that stack. The arrays keep their names, so the trained
# weights fit.


# %% tags=["jax", "export"]
FROM_INPUTS = nnx.initializers.variance_scaling(1.0, "fan_in", "normal")


def unembedding(m, n_tokens, *, rngs):
    """Linear layer without a bias, whose weights start as those of ``embedding``."""
    options = {"use_bias": False, "kernel_init": FROM_INPUTS}
    return nnx.Linear(m, n_tokens, **options, rngs=rngs)


def check_tokens(tokens, longest=float("inf")):
    """Raise an error unless tokens are an integer array ``b s``, short enough."""
    whole = jnp.issubdtype(tokens.dtype, jnp.integer)
    if tokens.ndim != 2 or not whole:
        got = f"{tuple(tokens.shape)} of {'whole' if whole else 'other'} ones"
        raise ValueError(f"expected tokens b s of whole numbers, got {got}")
    if tokens.shape[1] > longest:
        raise ValueError(f"{tokens.shape[1]} positions, but max_length = {longest}")


# %% tags=["jax", "export"]
class LanguageModel(nnx.Module):
    """Logits of the next token at every position: ``b s -> b s c``."""

    def __init__(
        self,
        n_tokens,
        m,
        *,
        max_length,
        positions="learned",
        tied=True,
        causal=True,
        stack=Encoder,
        rngs,
        **options,
    ):
        kind, attention = POSITIONS[positions]
        self.max_length, self.causal = max_length, causal
        self.embed = embedding(n_tokens, m, rngs=rngs)
        self.positions = kind(m, max_length, rngs=rngs) if kind else None
        self.decoder = stack(m=m, attention=attention, rngs=rngs, **options)
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
sizes["norm_first"] = True  # an option now
model = new_model()
from_arrays(model, trained)

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


# %% tags=["jax", "export"]
def attend_and_keep(layer, x, cache, start, mask):
    """Attention to all positions so far: ``b n m``, and the cache with the new ones."""
    rotates = isinstance(layer, RotaryAttention)  # and needs to know where x begins
    q, k, v = layer.project(x, start) if rotates else layer.project(x)  # b h n d
    keys, values = cache  # b h s d
    write = jax.lax.dynamic_update_slice_in_dim
    k = jnp.where(start + x.shape[1] <= keys.shape[2], k, jnp.nan)  # does it fit?
    keys, values = write(keys, k, start, axis=2), write(values, v, start, axis=2)
    out = fused_attention(q, keys, values, mask)
    return layer.out(merge_heads(out)), (keys, values)


# %% [markdown] tags=["shared"]
# The rest of a block treats each token by itself, and computes what it always does,
# with its norms before each branch or after each sum. In the next chapter, blocks also
# look at a `context`, whose keys and values never change.


# %% tags=["jax", "export"]
def advance_block(block, x, cache, start, mask, context):
    """A block on new positions: ``b n m``, and its cache with them in it."""

    def before(norm, x):
        return norm(x) if block.norm_first else x

    def after(norm, x):
        return x if block.norm_first else norm(x)

    normed = before(block.norm1, x)
    found, cache = attend_and_keep(block.attention, normed, cache, start, mask)
    x = after(block.norm1, x + found)
    if context:  # keys, values and their mask
        q = block.cross.queries(before(block.cross_norm, x))  # b h n d
        found, _ = attend(block.cross, q, *context)
        x = after(block.cross_norm, x + found)
    return after(block.norm2, x + block.ffn(before(block.norm2, x))), cache


# %% [markdown] tags=["shared"]
# Now the whole model. The cache knows the column in which each text begins, because the
# next extra pads shorter texts on the left: no position looks there. Models of other
# classes can have caches, too: `singledispatch` lets later chapters register theirs.

# %% tags=["shared"]
from functools import singledispatch


# %% tags=["jax", "export"]
@singledispatch
def new_cache(model, first, length, context=None, context_mask=None):
    """Empty key-value cache of ``length`` columns; row ``b`` begins in ``first[b]``."""
    if length > model.max_length:
        raise ValueError(f"{length} positions, but max_length = {model.max_length}")
    blocks, table = model.decoder.blocks, model.embed.embedding
    n_heads = blocks[0].attention.n_heads
    shape = (len(first), n_heads, length, table.shape[1] // n_heads)  # b h s d
    empty = jnp.zeros(shape, model.embed(first[:1]).dtype)  # of its computations
    contexts = [None] * len(blocks)
    if context is not None:
        contexts = [(*b.cross.keys_values(context), context_mask) for b in blocks]
    kept = [(empty, empty)] * len(blocks)
    return {"start": 0, "first": first, "blocks": kept, "contexts": contexts}


# %% tags=["jax", "export"]
@singledispatch
def advance(model, tokens, cache):
    """Logits after new tokens, ``b n -> b n c``, and the cache with them in it."""
    checks.check_room(cache, tokens.shape[1])
    start, stop = cache["start"], cache["start"] + tokens.shape[1]
    columns = start + jnp.arange(tokens.shape[1])  # n
    seen, first = jnp.arange(cache["blocks"][0][0].shape[2]), cache["first"][:, None]
    mask = (seen >= first[..., None]) & (seen <= columns[:, None])  # b n s
    x = model.embed(jnp.maximum(tokens, 0))  # b n m
    if model.positions:  # counted from the first token of the row
        x = x + model.positions.table[jnp.maximum(columns - first, 0)].astype(x.dtype)
    kept = []
    for n, block in enumerate(model.decoder.blocks):
        x, new = advance_block(
            block, x, cache["blocks"][n], start, mask[:, None], cache["contexts"][n]
        )
        kept.append(new)
    x = model.decoder.norm(x) if model.decoder.norm else x
    return model.logits(x), cache | {"start": stop, "blocks": kept}


# %% [markdown] tags=["shared"]
# We time one new token of 16 texts. Because our model ends at 64 positions, an
# untrained one with 256 is timed; the time does not depend on what the weights have
# learned.


# %% tags=["jax"]
@nnx.jit
def with_cache(model, tokens, cache):
    """``advance``, compiled."""
    return advance(model, tokens, cache)


@nnx.jit
def all_again(model, tokens):
    """Logits of the next token, from the whole text: ``b s -> 1 b c``."""
    return model(tokens)[None, :, -1]


# %% tags=["shared"]
import time


def seconds(function, *args):
    """Shortest time of six calls, after a first one, which may compile."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        as_numpy(function(*args)[0])  # waits for the result
        times.append(time.perf_counter() - start)
    return min(times[1:])


longer, measured = new_model(max_length=256), []
for s in (64, 256):
    many = tensor(tokens["test"][: 16 * s].reshape(16, s))
    cache = new_cache(longer, tensor(np.zeros(16, int)), s) | {"start": s - 1}
    size = sum(x.nbytes for keys_values in cache["blocks"] for x in keys_values)
    again = seconds(all_again, longer, many)
    cached = seconds(with_cache, longer, many[:, -1:], cache)
    measured.append((s, again, cached, size))

# %% tags=["shared", "say"]
lines = []
for s, again, cached, size in measured:
    lines.append([s, f"{1000 * again:.1f} ms", f"{1000 * cached:.1f} ms", f"{size:,}"])
say(table(["length", "whole text", "with the cache", "bytes of the cache"], *lines))

# %% [markdown] tags=["shared"]
# The price is memory: for each of $l$ blocks, $b$ texts and $s$ positions, a key and a
# value of $m$ numbers, in float32 $2 \cdot 4 \cdot l\, b\, s\, m$ bytes. And a text
# still ends where the positions end: one more raises an error.

# %% tags=["shared", "check"]
# Checked: with the cache, the trained model gives the same logits; bytes as calculated
empty = new_cache(model, tensor([0]), 64)
first_half, cache = with_cache(model, tensor(row[:, :32]), empty)
second_half, _ = with_cache(model, tensor(row[:, 32:]), cache)
in_parts = np.concatenate([as_numpy(first_half), as_numpy(second_half)], axis=1)
np.testing.assert_allclose(in_parts, logits_of(model, row), rtol=1e-4, atol=1e-4)
assert all(size == 2 * 4 * 2 * 16 * s * 96 for s, _, _, size in measured)

# %% [markdown] tags=["shared"]
# ## Extra: Many prompts are continued at once
#
# Prompts differ in length. `generate` pads them on the *left*, so that all end at the
# same place. A text stops at a token that you name as the **end**. Up to rounding,
# greedy texts are the same alone or in a batch; sampled ones are not, because the batch
# shares one random generator.


# %% tags=["jax", "export"]
@nnx.jit(static_argnames=("length", "code"))
def continue_texts(model, tokens, first, length, end, seed, code, **knobs):
    """The prompts in one pass, then a token at a time: ``b s -> b length``."""
    cache = new_cache(model, first, tokens.shape[1] + length)
    logits, cache = advance(model, tokens, cache)
    keys = jax.random.split(jax.random.key(seed), length)

    def draw(n, logits, done, texts):
        p = next_token_probabilities(logits[:, -1], **knobs)  # b c
        drawn = jax.random.categorical(keys[n], jnp.log(p))  # b
        new = jnp.where(done, end, drawn)
        return new, done | (new == end), texts.at[:, n].set(new)

    def step(carry):
        n, new, done, texts, cache = carry
        logits, cache = advance(model, new[:, None], cache)
        return n + 1, *draw(n, logits, done, texts), cache

    def goes_on(carry):
        return (carry[0] < length) & ~carry[2].all()  # until all have ended

    none, texts = jnp.zeros(len(tokens), bool), jnp.full((len(tokens), length), end)
    drawn = draw(0, logits, none, texts)
    return jax.lax.while_loop(goes_on, step, (1, *drawn, cache))[3]


# %% tags=["jax", "export"]
def generate(model, prompts, length, *, end=-1, seed=0, **knobs):
    """Continue each prompt, a list of tokens, by ``length`` tokens: ``b length``.

    The ``knobs`` are those of ``next_token_probabilities``: ``top_k=1`` is greedy. Once
    ``end`` is drawn, only ``end`` follows. A model in training mode stays so.
    """
    rows = checks.checked_prompts(model, prompts, length, **knobs)
    longest = max(map(len, rows))
    first = tensor([longest - len(row) for row in rows])  # b
    tokens = tensor([[0] * (longest - len(row)) + row for row in rows])  # b s
    quiet = without_dropout(model)
    code = cloudpickle.dumps(nnx.graphdef(model))
    return continue_texts(quiet, tokens, first, length, end, seed, code, **knobs)


# %% [markdown] tags=["shared"]
# Here the end is a line break without blanks after it.

# %% tags=["shared"]
prompts = ["import", prompt, "class Queue:\n    def put(self"]
encoded = [pairs.encode(each) for each in prompts]
end = int(pairs.encode("\n")[0])
sampling = {"temperature": 0.5, "top_k": 50, "top_p": 0.9}
batch = as_numpy(generate(model, encoded, 40, end=end, seed=3, **sampling))  # b length
for each, new in zip(prompts, batch, strict=True):
    continued = f"{each}│{pairs.decode(new)}".rstrip("\n")
    print("---", continued.replace(" ", "␣"), sep="\n")

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

# %% [markdown] tags=["shared"]
# | ours | GPT-2's |
# |---|---|
# | `embed` | `wte` |
# | `positions.table` | `wpe` |
# | `norm1` | `ln_1` |
# | `attention.qkv` | `attn/c_attn` |
# | `attention.out` | `attn/c_proj` |
# | `norm2` | `ln_2` |
# | `ffn.linear1` | `mlp/c_fc` |
# | `ffn.linear2` | `mlp/c_proj` |
# | `decoder.norm` | `ln_f` |
#
# Like ours, GPT-2's weights are tied. What does that buy? `benchmarks/results/tied.md`
# has short runs with three seeds, measured in PyTorch, in bits per character:

# %% tags=["shared", "say"]
from pathlib import Path

file = Path(text.__file__).parents[3] / "benchmarks" / "results" / "tied.md"
found = [line for line in file.read_text("utf-8").splitlines() if "tied: " in line]
lines = [line.replace("**", "").split("|")[1:6] for line in found]
say(table(["logits", "parameters", "seed 0", "seed 1", "seed 2"], *lines))

# %% [markdown] tags=["shared"]
# Tying saves parameters, a sixth of them here. It saves no bits in runs as short as
# these: each seed ends a little lower without it. All of them are ahead of the 5-gram
# above.

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
    weights = nnx.softmax(q @ keys.mT / q.shape[-1] ** 0.5)  # b h 1 n+1, no mask
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
