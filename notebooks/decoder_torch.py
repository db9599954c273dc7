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
# # A model that writes
#
# By the end you can turn text into tokens, build and train a language model, compare it
# with honest baselines, and let it write: greedily, with a temperature, with top-k and
# top-p, and fast, with a key–value cache. You need: the chapters on the encoder and on
# the reverse task.
#
# Labels are expensive, but text is its own label: hide the next word, and let the model
# guess it. To guess well, the model must pick up spelling, grammar, style and facts.
# Whatever can say how probable each next word is can also write: draw a word, append
# it, and ask again. GPT-3 and the chat assistants after it first learned in this way.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [decoder_jax](decoder_jax.ipynb).
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
import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from helpers import diagrams, plots, text

# %% tags=["torch"]
from helpers.model_torch import (
    NORMS,
    POSITIONS,
    EncoderBlock,
    MultiHeadAttention,
    advance,
    attention,
    build,
    generate,
    masked_softmax,
    new_cache,
    pick,
)
from helpers.prose import say, table, word  # say() prints sentences with numbers
from helpers.runs import runs_folder
from helpers.sequences import in_order, one_hot
from helpers.settings import Text
from helpers.shapes import as_numpy  # any array as a NumPy array
from helpers.train_torch import evaluate, fit
from helpers.weights import download_link, from_arrays, to_arrays

# %% [markdown] tags=["shared"]
# `floats`, `integers` and `booleans` turn NumPy arrays into arrays of the framework.

# %% tags=["torch"]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
plots.use_style()
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
integers = partial(torch.as_tensor, dtype=torch.int64, device=device)
booleans = partial(torch.as_tensor, dtype=torch.bool, device=device)
side = "torch"
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## A text is predicted token by token
#
# A text is a sequence of **tokens** $x_0, x_1, \dots, x_{s-1}$: characters, words, or
# something between. A **language model** gives the probability of each token, given all
# tokens before it, $p(x_t \mid x_{<t})$. Together these give the probability of the
# whole text, because of the chain rule of probability:
#
# $$p(x_0, \dots, x_{s-1}) = \prod_{t=0}^{s-1} p(x_t \mid x_{<t}).$$
#
# So predicting the next token is no preparation for modelling text: it is all of it.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "The tokens def, add, an opening parenthesis and a go into the model. A softmax of the last logits gives the probabilities of a comma, a closing parenthesis, an equals sign and a colon. One of them is drawn and appended to the tokens."}}
diagrams.next_token()

# %% [markdown] tags=["shared"]
# We need a text that every machine has. Python brings one along: the source of its
# standard library. Thirty well-known modules are for training, eight others are held
# out. To use a text of your own, name a file: `text.load("my.txt")`, or set the
# environment variable `TEXT_FILE`.

# %% tags=["shared"]
settings = Text()  # all numbers of this task, shown in a table below
texts = text.load()  # train and test, each one string
print(texts["test"][:400])

# %% tags=["shared", "check"]
# Checked: no module that is held out is among those for training
assert not set(text.HELD_OUT) & set(text.TRAINING)
assert texts["test"][:5000] not in texts["train"]

# %% [markdown] tags=["shared"]
# ## Frequent strings become tokens
#
# Which pieces should be tokens? With single *characters*, sequences are long, and the
# model spends its capacity on spelling. With whole *words*, the vocabulary is huge, and
# a new word has no token at all. **Byte-pair encoding**
# ([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)) lies between: begin with
# the characters, find the most frequent pair of neighbours, make it a new token, and
# repeat. Frequent words end as one token, and rare words can still be spelled.

# %% tags=["shared"]
pairs = text.BytePairs.learn(texts["train"], settings.n_tokens)
tokens = {name: pairs.encode(part) for name, part in texts.items()}  # integer arrays
line = "    def __init__(self, name):\n        self.name = name\n"
ids = pairs.encode(line)
print(*(repr(pairs.decode([i])) for i in ids))
print(*ids)

# %% tags=["shared", "say"]
n_characters = len(pairs.numbers)
first, last = (
    " ".join(f"`{t!r}`" for t in part)
    for part in (pairs.tokens[n_characters:][:10], pairs.tokens[-10:])
)
say(
    f"The vocabulary has {len(pairs)} tokens: {n_characters} characters and "
    f"{len(pairs) - n_characters} merges. The first merges are {first}, mostly "
    f"indentation; the last ones are {last}. A token is "
    f"{len(texts['test']) / len(tokens['test']):.2f} characters long on average. The "
    f"training text has {len(tokens['train']):,} tokens, the held-out text "
    f"{len(tokens['test']):,}."
)

# %% tags=["shared", "check"]
# Checked: decoding gives the text back, also the held-out one
for name, part in texts.items():
    assert pairs.decode(tokens[name]) == part
assert tokens["test"].max() < len(pairs) == settings.n_tokens

# %% [markdown] tags=["shared"]
# The numbers of tokens are names, not amounts. As in the reverse task, each token gets
# a learned vector, its row of an **embedding** table $E$ with $t$ rows, one for each
# token. A row is what a one-hot vector times $E$ gives, but looking a row up needs no
# multiplication. Our rows start with length about 1.


# %% tags=["torch"]
def embedding(n_tokens, m):
    """Table with a vector for each token, ``t m``: normal, standard deviation 1/√m."""
    table = nn.Embedding(n_tokens, m)
    nn.init.normal_(table.weight, std=m**-0.5)
    return table


# %% tags=["shared"]
E = build(embedding, settings.n_tokens, settings.m, seed=settings.seed)
looked_up = as_numpy(E(integers(ids)))  # s m

# %% tags=["shared", "check"]
# Checked: looking up a row equals a one-hot vector times the table
(matrix,) = to_arrays(E).values()  # t m
np.testing.assert_allclose(one_hot(ids, settings.n_tokens) @ matrix, looked_up)

# %% [markdown] tags=["shared"]
# Attention ignores order, so each position adds a vector of its own. Here this vector
# is **learned**, as in GPT-2: a second table with one row for each of the 64 positions.
#
# ## Masked attention on two tokens, number by number
#
# Before the whole model, here is its core on the smallest example: two tokens $x$ with
# two features each, and three matrices. Follow the seven steps with a pencil.

# %% tags=["shared"]
x = floats([[1, 0], [0, 1]])  # s m: token 0, token 1
w_query, w_key = floats([[1, 0], [1, 1]]), floats([[1, 0], [0, 2]])
w_value = floats([[3, 0], [0, 3]])
q = x @ w_query  # 1. queries: what each token looks for
k = x @ w_key  # 2. keys: what each token offers
v = x @ w_value  # 3. values: what each token hands over
scores = q @ k.T / math.sqrt(2)  # 4. scores, divided by √d
mask = booleans(np.tri(2))  # 5. mask: no token looks at a later one
weights = masked_softmax(scores, mask)  # 6. softmax: each row sums to 1
out = weights @ v  # 7. weighted sum of the values

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Eight small matrices with their numbers: x, q, k, v, the scores, the mask, whose upper right entry is 0, the weights with rows 1, 0 and 0.33, 0.67, and the output with rows 3, 0 and 0.99, 2.01."}}
steps = {"x": x, "1. q": q, "2. k": k, "3. v": v, "4. scores": scores}
steps |= {"5. mask": as_numpy(mask).astype(float), "6. weights": weights, "7. out": out}
plots.grid_of_numbers(steps, columns=4)

# %% [markdown] tags=["shared"]
# Token 0 may look only at itself, so its weight is 1 and its output is its own value.
# That holds for every text of one token, whatever the matrices are. Token 1 looks at
# both. Then the **residual** adds the input, a dense layer gives one logit for each
# token of the vocabulary (here three tokens), and a softmax turns the logits into the
# probabilities of the next token. (The norm and the feed-forward net are left out.)

# %% tags=["shared"]
w_output = floats([[0.5, 0, -0.5], [0, 0.5, 0.5]])  # m t
y = x + out  # residual
logits = y @ w_output  # s t
p = masked_softmax(logits)  # of the next token, after token 0 and after token 1

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Three small matrices with their numbers: x plus out with rows 4, 0 and 0.99, 3.01; the logits with rows 2, 0, minus 2 and 0.5, 1.5, 1.01; the probabilities with rows 0.87, 0.12, 0.02 and 0.18, 0.51, 0.31."}}
plots.grid_of_numbers({"x + out": y, "logits": logits, "p": p})

# %% tags=["shared", "check"]
# Checked: row 0 of the map is (1, 0) and its output is value 0, for random numbers too
np.testing.assert_allclose(as_numpy(weights[0]), [1, 0])
np.testing.assert_allclose(as_numpy(out[0]), as_numpy(v[0]))
rng = np.random.default_rng(0)
random = [floats(rng.normal(size=(7, 5))) for _ in range(3)]
found, its_map = attention(*random, booleans(np.tri(7)))
np.testing.assert_allclose(as_numpy(its_map)[0], np.eye(7)[0])
np.testing.assert_allclose(as_numpy(found)[0], as_numpy(random[2])[0], rtol=1e-6)
np.testing.assert_allclose(as_numpy(p).sum(-1), 1, rtol=1e-6)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** The text is now token 0 twice: both rows of $x$ are $(1, 0)$.
# Which weights, output and probabilities does row 1 get? What does that say about
# positions?

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
# ## The whole stack is causal
#
# The mask must hold in every block: one look ahead anywhere would tell the answer. A
# **decoder block** is the encoder block with this mask. (For the next chapter it can
# also look at a second sequence, with `cross`. We leave it off.)


# %% tags=["torch"]
class DecoderBlock(EncoderBlock):
    """Encoder block that may also look at a context: ``b s m -> b s m, b h s s``."""

    def __init__(self, m, n_heads, f, *, cross=False, **options):
        super().__init__(m, n_heads, f, **options)
        make_norm = NORMS[options.get("norm", "layer")]
        self.cross = MultiHeadAttention(m, n_heads) if cross else None
        self.cross_norm = make_norm(m) if cross else None

    def add(self, x, branch, norm):
        """Residual and norm around a branch; also what the branch returns besides."""
        values, rest = branch(norm(x) if self.norm_first else x)
        x = x + self.dropout(values)
        return (x if self.norm_first else norm(x)), rest

    def forward(self, x, mask=None, context=None, context_mask=None):
        x, weights = self.add(x, partial(self.attention, mask=mask), self.norm1)
        cross_weights = None
        if self.cross:
            look = partial(self.cross, mask=context_mask, context=context)
            x, cross_weights = self.add(x, look, self.cross_norm)
        x, _ = self.add(x, lambda x: (self.ffn(x), None), self.norm2)
        return x, weights, cross_weights


# %% [markdown] tags=["shared"]
# The **decoder** is a stack of such blocks. As in the encoder, pre-norm adds one norm
# at the end.


# %% tags=["torch"]
class Decoder(nn.Module):
    """A stack of decoder blocks: ``b s m -> b s m``."""

    def __init__(
        self, n_blocks, m, n_heads, f, *, cross=False, norm_first=False, **options
    ):
        super().__init__()
        if n_blocks < 1:
            raise ValueError(f"expected at least one block, got n_blocks = {n_blocks}")
        options = {"cross": cross, "norm_first": norm_first, **options}
        blocks = [DecoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nn.ModuleList(blocks)
        make_norm = NORMS[options.get("norm", "layer")]
        self.norm = make_norm(m) if norm_first else None
        self.cross = cross

    def forward(
        self, x, mask=None, context=None, context_mask=None, *, return_maps=False
    ):
        if self.cross != (context is not None):
            found = "none" if context is None else f"shape {tuple(context.shape)}"
            raise ValueError(f"expected a context: {self.cross}, got {found}")
        maps = []
        for block in self.blocks:
            x, *weights = block(x, mask, context, context_mask)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        kinds = list(zip(*maps, strict=True))[: 1 + self.cross]  # own, cross
        return (x, *map(torch.stack, kinds)) if return_maps else x


# %% [markdown] tags=["shared"]
# The **language model** puts the embedding before the stack. After it, the logits are
# products of each output vector with every row of the same table, $x E^\top$: a token
# is probable if its vector points where the output points. These are **tied weights**
# ([Press & Wolf 2017](https://arxiv.org/abs/1608.05859)).

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Flow chart of the language model: tokens b s go through embed, positions and the decoder of four blocks, which takes a causal mask; logits are products with E, b s t."}}
diagrams.language_model(settings.n_blocks)


# %% tags=["torch"]
def unembedding(m, n_tokens):
    """Linear layer without a bias, whose weights start as those of ``embedding``."""
    layer = nn.Linear(m, n_tokens, bias=False)
    nn.init.normal_(layer.weight, std=m**-0.5)
    return layer


def causal_mask(tokens):
    """Each position may look at itself and before: ``b s -> q k``."""
    s = tokens.shape[1]
    return torch.ones(s, s, dtype=torch.bool, device=tokens.device).tril()


# %% tags=["torch"]
def check_tokens(tokens, longest=math.inf):
    """Raise an error unless tokens are an integer array ``b s``, short enough."""
    kinds = torch.int32, torch.int64
    if tokens.ndim != 2 or tokens.dtype not in kinds:
        raise ValueError(
            f"expected tokens b s of whole numbers, got {tokens.dtype} "
            f"{tuple(tokens.shape)}"
        )
    if tokens.shape[1] > longest:
        raise ValueError(f"{tokens.shape[1]} positions, but max_length = {longest}")


# %% tags=["torch"]
class LanguageModel(nn.Module):
    """Logits of the next token at every position: ``b s -> b s t``."""

    def __init__(
        self, n_tokens, m, *, n_blocks, n_heads, f, max_length, positions="learned",
        tied=True, causal=True, **options,
    ):  # fmt: skip
        super().__init__()
        kind = pick(POSITIONS, positions, "positions")
        self.max_length, self.causal = max_length, causal
        self.embed = embedding(n_tokens, m)
        self.positions = kind(m, max_length) if kind else None
        self.decoder = Decoder(n_blocks, m, n_heads, f, **options)
        self.output = None if tied else unembedding(m, n_tokens)

    def logits(self, x):
        return self.output(x) if self.output else x @ self.embed.weight.T

    def forward(self, tokens, mask=None, *context, return_maps=False):
        check_tokens(tokens, self.max_length)
        if self.causal:
            past = causal_mask(tokens)  # q k
            mask = past if mask is None else mask & past
        x = self.embed(tokens.clamp(min=0))  # b s m
        x = self.positions(x) if self.positions else x
        out = self.decoder(x, mask, *context, return_maps=return_maps)
        return (self.logits(out[0]), *out[1:]) if return_maps else self.logits(out)


# %% tags=["shared"]
model = build(LanguageModel, seed=settings.seed, **settings.model)
row = tokens["test"][None, :64]  # b s
changed = row.copy()
changed[:, 40] = (changed[:, 40] + 1) % settings.n_tokens
before, after = (as_numpy(model(integers(each))) for each in (row, changed))  # b s t
moved = np.abs(after - before).max(axis=(0, 2))  # of each position: s

# %% tags=["shared", "say"]
say(
    f"We change token 40 of 64. The logits of the {np.sum(moved == 0)} positions "
    f"before it keep every bit; those of position 40 move by up to {moved[40]:.1f}."
)

# %% tags=["shared", "check"]
# Checked: a changed token leaves all earlier logits bit-equal, and moves all later ones
np.testing.assert_array_equal(after[:, :40], before[:, :40])
assert (moved[40:] > 0).all()

# %% [markdown] tags=["shared"]
# ## One pass makes a prediction at every position
#
# Because position $t$ sees the tokens $0$ to $t$ only, its logits are what the model
# would say if the text ended there. So one pass over $n + 1$ tokens trains $n$
# predictions: the inputs are all tokens but the last, and the labels are all tokens but
# the first. During training the model always continues the *real* text, never its own
# guesses. This is **teacher forcing**. Texts of different lengths are padded at the
# end with $-1$. No real position looks there, and the loss leaves the padding out:
#
# $$\mathrm{loss} = -\frac{1}{n} \sum_{t=1}^{n} \ln p(x_t \mid x_{<t}).$$


# %% tags=["torch"]
def next_token(model, *batch):
    """Mean cross-entropy and accuracy of predicting each token from those before it."""
    *given, tokens = batch
    labels = tokens[:, 1:]  # b s
    logits = model(*given, tokens[:, :-1])  # b s t
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1
    )
    real = labels >= 0
    hits = logits.argmax(-1) == labels  # never where there is padding
    return loss, {"accuracy": hits.sum() / real.sum()}


# %% tags=["shared"]
few = row[:, :4]  # four tokens: three predictions
at_once = as_numpy(model(integers(few[:, :3])))[0]  # s t
one_by_one = [as_numpy(model(integers(few[:, :n])))[0, -1] for n in (1, 2, 3)]

# %% tags=["shared", "check"]
# Checked: one pass gives the same logits as a pass for each beginning of the text
np.testing.assert_allclose(at_once, np.stack(one_by_one), atol=1e-5)

# %% tags=["shared", "check"]
# Checked: the loss is the mean of -ln p, and padding at the end changes nothing
log_p = at_once.astype(np.float64)
log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
of_label = [log_p[t, few[0, t + 1]] for t in range(3)]
padded = np.where(np.arange(4) < 3, few, -1)
for given, n in ((few, 3), (padded, 2)):
    loss, _ = next_token(model, integers(given))
    np.testing.assert_allclose(as_numpy(loss), -np.mean(of_label[:n]), atol=1e-5)


# %% tags=["shared"]
def n_parameters(model):
    """How many numbers a model learns."""
    return sum(array.size for array in to_arrays(model).values())


untied = build(LanguageModel, **settings.model | {"tied": False})
tied_size, untied_size = n_parameters(model), n_parameters(untied)

# %% tags=["shared", "say"]
say(
    f"Tying saves a second table of {settings.n_tokens} × {settings.m} numbers: the "
    f"model has {tied_size:,} parameters, untied it would have {untied_size:,}. And "
    "each update teaches a token as input and as output."
)

# %% tags=["shared", "check"]
# Checked: an untied model has one table in addition, of the size of the embedding
assert untied_size - tied_size == settings.n_tokens * settings.m

# %% [markdown] tags=["shared"]
# ## Without the mask, the model copies the answer
#
# What if we forget the mask? Then position $t$ sees its own label, token $t + 1$, in
# the input. The model needs no language, only a look one step to the right. We train
# two small models on characters, one with the mask and one without.

# %% tags=["shared"]
alphabet = text.BytePairs("".join(pairs.numbers))  # no merges: characters are tokens
small = replace(
    settings, n_tokens=len(alphabet), length=16, batch_size=64, n_train=64 * 400, m=64,
    epochs=1, n_heads=1, f=128, n_blocks=1, positions="sinusoidal", learning_rate=3e-3,
    warmup=30,
)  # fmt: skip
characters = {name: alphabet.encode(part[:500_000]) for name, part in texts.items()}
small_rows = text.random_windows(characters["train"], small)
models, losses = {}, {}
for name, causal in {"with the mask": True, "without the mask": False}.items():
    models[name] = build(LanguageModel, causal=causal, seed=1, **small.model)
    given = {"batches": in_order(small)}
    loop = fit(models[name], next_token, (small_rows,), small, **given)
    losses[name] = loop["loss"]

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Loss over the updates of two small models. Without the mask the loss falls towards zero; with the mask it stays far above."}}
at = np.arange(small.updates) + 1
panels = {"": {name: (at, losses[name]) for name in losses}}
fig = plots.curves(panels, x="update", y="loss, nats per character", size=(5.4, 2.9))
fig

# %% [markdown] tags=["shared"]
# What is left of the loss without the mask comes from the last position of each window,
# where there is nothing to copy. And when a model writes, its text ends at every step:
# the next character is not there yet.


# %% tags=["shared"]
def nats(model, tokens):
    """-ln p of each next token: ``b s+1 -> b s``."""
    p = as_numpy(masked_softmax(model(integers(tokens[:, :-1]))))  # b s t
    return -np.log(np.take_along_axis(p, tokens[:, 1:, None], axis=-1))[..., 0]


# %% tags=["shared"]
new_rows = text.windows(characters["test"], small.length)[:2000]  # b s+1
in_the_text, at_its_end, written = {}, {}, {}
for name, one in models.items():
    in_the_text[name] = nats(one, new_rows)[:, :-1].mean()
    at_its_end[name] = nats(one, new_rows[:, :9])[:, -1].mean()  # after 8 characters
    so_far = [*alphabet.encode("def ")]
    for n in range(len(so_far), small.length):  # greedily
        # one shape for all lengths: a mask q k hides what is not written yet
        padded = integers(np.pad(so_far, (0, small.length - n))[None])
        real = booleans(np.tile(np.arange(small.length) < n, (small.length, 1)))
        so_far.append(as_numpy(one(padded, real))[0, n - 1].argmax())
    written[name] = alphabet.decode(so_far)

# %% tags=["shared", "say"]
lines = []
for name in models:
    numbers = f"{in_the_text[name]:.2f}", f"{at_its_end[name]:.2f}"
    lines.append([name, *numbers, f"`{written[name]!r}`"])
head = ["model", "loss inside the text", "loss at its end", "writes, after `def `"]
say(table(head, *lines))
say(
    f"Inside the text, the model without the mask copies: its loss is "
    f"{in_the_text['without the mask']:.3f} nats. Where the text ends after eight "
    f"characters, its loss is {at_its_end['without the mask']:.1f} nats; giving all "
    f"characters the same probability would cost {np.log(len(alphabet)):.1f}. "
    "What it writes is garbage."
)

# %% tags=["shared", "check"]
# Checked: without the mask, the loss is below 0.03 in the text, above 3.5 at its end
_, without = plots.drawn(fig, "", "without the mask")
_, with_mask = plots.drawn(fig, "", "with the mask")
assert (without[-100:] < with_mask[-100:]).all()
assert in_the_text["without the mask"] < 0.03  # loose: nearly nothing
assert at_its_end["without the mask"] > 3.5
assert in_the_text["with the mask"] > 1.5
assert at_its_end["with the mask"] < 3

# %% [markdown] tags=["shared"]
# So a loss that falls too fast is a warning: look for a way by which the label reaches
# the input.
#
# ## A minute of training is level with good n-grams
#
# Now the real model. Each update takes windows from random places of the training text.

# %% tags=["shared", "say"]
choices = """n_tokens|97 characters and 512 merges|10,000 to 100,000
length|a page of code is too much for one core|512 and more
n_blocks|deep enough to combine what it has found|6 to 12
m|small enough for a minute|384 to 768
n_heads|heads of 24 features|heads of 64 features
f|four times m|four times m
batch_size|many updates in little time|32 to 512
n_train|windows in an epoch: 65 updates|all of the text
epochs|all that a minute allows|until the held-out loss rises
learning_rate|small pre-norm models tolerate a high rate|3e-4 to 1e-3
warmup|a tenth of all updates|a twentieth of all updates
dropout|no window comes twice|0.1 if texts repeat
norm_first|trains safely at a high rate|True
positions|a table, as in GPT-2|learned, or rotary"""
lines = [line.split("|") for line in choices.splitlines()]
lines = [[f"`{name}`", f"{getattr(settings, name)}", *why] for name, *why in lines]
say(table(["setting", "value", "why here", "try first for another task"], *lines))

# %% tags=["shared"]
rows = text.random_windows(tokens["train"], settings)  # a row for each window: n s+1
held_out = text.windows(tokens["test"], settings.length)
folder = runs_folder(f"decoder_{side}")
kept = {"batches": in_order(settings), "folder": folder}
history = fit(model, next_token, (rows,), settings, **kept)
held_out_loss = evaluate(model, next_token, (held_out,))["loss"]

# %% [markdown] tags=["shared"]
# Losses per token cannot be compared between vocabularies: longer tokens are harder.
# So we count **bits per character**: the loss in nats per token, divided by $\ln 2$ and
# by the mean number of characters in a token. It is also a size: a good compressor
# could store the text with that many bits for each character.
#
# The baselines are **n-grams** of characters. They count what followed the last
# $n - 1$ characters in the training text, and mix in the counts of shorter contexts
# where they have seen too little
# (Witten–Bell smoothing, [Chen & Goodman 1996](https://aclanthology.org/P96-1041/)).

# %% tags=["shared"]
bits = text.bits_per_character(held_out_loss, tokens["test"], texts["test"])
names = {1: "unigram", 3: "trigram", 5: "5-gram"}
ngrams = {n: text.ngram_bits(texts["train"], texts["test"], n) for n in names}

# %% tags=["shared", "say"]
lines = [[names[n], "counted", f"{value:.2f}"] for n, value in ngrams.items()]
about = f"{n_parameters(model):,} parameters"
lines += [["our Transformer", about, f"**{bits:.2f}**"]]
say(table(["model", "how", "bits per character, held out"], *lines))
share = settings.updates * settings.batch_size * settings.length / len(tokens["train"])
say(
    f"The Transformer needs {word('fewer', bits, ngrams[5])} bits than the 5-gram, by "
    f"{ngrams[5] - bits:.2f}, after {history['seconds'].sum():.0f} seconds and "
    f"{settings.updates} updates. In them it has read windows with {share:.0%} of the "
    "tokens of the training text."
)

# %% tags=["shared"]
to_bits = len(tokens["train"]) / len(texts["train"]) / math.log(2)  # from nats a token
learning = to_bits * history["loss"].reshape(-1, 10).mean(axis=1)  # of ten updates
at = 10 * np.arange(1, len(learning) + 1)

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Bits per character over the updates. The training curve falls steeply, then slowly, and ends below the line of the held-out text, which is below the line of the 5-gram."}}
panels = {"": {
    "in training": (at, learning),
    "held out, at the end": (at, np.full(len(at), bits)),
    "5-gram, held out": (at, np.full(len(at), ngrams[5])),
}}  # fmt: skip
fig = plots.curves(panels, x="update", y="bits per character", size=(6.2, 3))
fig

# %% tags=["shared", "say"]
say(
    "The training curve (means of ten updates) ends at "
    f"{learning[-10:].mean():.2f} bits, the held-out text costs {bits:.2f}. The "
    "training windows come from modules of which the model has read other parts, so "
    "it knows their names. The held-out modules are new to it, as they are to the "
    "n-grams. So only the held-out text counts."
)

# %% tags=["shared", "check"]
# Checked: the lines end in this order: in training below held out, below the 5-gram
lines = "in training", "held out, at the end", "5-gram, held out"
ends = [plots.drawn(fig, "", line)[1][-10:].mean() for line in lines]
assert ends[0] < ends[1] < ends[2]

# %% tags=["shared", "check"]
# Checked: fewer bits per character than the trigram and the 5-gram
assert bits < ngrams[5] < ngrams[3] < ngrams[1]
assert bits < 2.25

# %% [markdown] tags=["shared"]
# The lead is modest: counting is hard to beat on a small budget, and Kneser–Ney
# smoothing, which is not measured here, makes n-grams stronger still (same source).
# What changes the picture is scale. Counts of long contexts are nearly all zero,
# however much text there is, while a Transformer improves steadily with more updates,
# more parameters and more text
# ([Kaplan et al. 2020](https://arxiv.org/abs/2001.08361)). Try `epochs=40` in the
# settings when you have time, or a GPU.

# %% tags=["shared"]
start = pairs.encode("def ")
untrained = build(LanguageModel, seed=settings.seed, **settings.model)
for when, one in {"before": untrained, "after": model}.items():
    new = as_numpy(generate(one, [start], 60, seed=1))[0]
    print(f"--- {when} training\ndef {pairs.decode(new)}")

# %% [markdown] tags=["shared"]
# Before training, tokens are drawn at random. After it, the text has the look of
# Python: names, brackets, indentation. It means nothing.

# %% tags=["shared", "check"]
# Checked: the trained stack is causal, too, bit for bit
before, after = (as_numpy(model(integers(each))) for each in (row, changed))  # b s t
np.testing.assert_array_equal(after[:, :40], before[:, :40])
assert (np.abs(after - before).max(axis=(0, 2))[40:] > 0).all()

# %% [markdown] tags=["shared"]
# ## Temperature, top-k and top-p choose the next token
#
# The model gives probabilities; how to choose is up to us. **Greedy** takes the most
# probable token, every time.

# %% [markdown] tags=["torch"]
# In PyTorch, this is a Python loop, and the text grows by `cat`.


# %% tags=["torch"]
@torch.no_grad()
def write_greedily(model, prompt, length):
    """The most probable next token, ``length`` times: ``s -> length``."""
    tokens = prompt[None]  # 1 s
    for _ in range(length):
        best = model(tokens)[:, -1:].argmax(-1)  # 1 1
        tokens = torch.cat([tokens, best], dim=1)
    return tokens[0, len(prompt) :]


# %% tags=["shared"]
prompt = "    def __init__(self"
greedy = as_numpy(write_greedily(model, integers(pairs.encode(prompt)), 40))
print(prompt + pairs.decode(greedy))

# %% [markdown] tags=["shared"]
# Greedy text is safe and dull, and it tends to run in circles: once a phrase is there
# twice, a third time becomes even more probable. So texts are mostly **sampled**, and
# three knobs keep rare nonsense away:
#
# * **Temperature** $\tau$ divides the logits. Near 0 only the most probable token is
#   left, 1 changes nothing, and a high temperature makes all tokens alike.
# * **Top-k** ([Fan et al. 2018](https://arxiv.org/abs/1805.04833)) keeps the $k$ most
#   probable tokens and scales them up to 1. But $k$ is too many where only one token is
#   possible, and too few where many are.
# * **Top-p**, or nucleus sampling
#   ([Holtzman et al. 2020](https://arxiv.org/abs/1904.09751)), keeps the fewest tokens
#   that together have the probability $p$. Their number adapts to the text.


# %% tags=["torch"]
def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """Probabilities that the next token is drawn with: ``... t -> ... t``."""
    highest = logits.amax(dim=-1, keepdim=True)
    p = torch.softmax((logits - highest) / temperature, dim=-1)
    if top_k is None and top_p is None:
        return p
    p, order = p.sort(dim=-1, descending=True, stable=True)  # the most probable first
    if top_k is not None:
        ranks = torch.arange(p.shape[-1], device=p.device)
        p = torch.where(ranks < top_k, p, 0)
        p = p / p.sum(dim=-1, keepdim=True)
    if top_p is not None:
        before = p.cumsum(dim=-1) - p  # what the more probable ones have
        p = torch.where(before < top_p, p, 0)
        p = p / p.sum(dim=-1, keepdim=True)
    return p.gather(-1, order.argsort(dim=-1))


# %% tags=["shared"]
def logits_after(prompt):
    """Logits of the token after a prompt: ``t``. Padding gives all the same shape."""
    ids = pairs.encode(prompt)
    padded = np.pad(ids, (0, settings.length - len(ids)), constant_values=-1)
    return model(integers(padded[None]))[0, len(ids) - 1]


last = logits_after("    def close(self):\n        if self.")
knobs = {
    "temperature 1": {},
    "temperature 0.5": {"temperature": 0.5},
    "top_k=5": {"top_k": 5},
    "top_p=0.5": {"top_p": 0.5},
}
probabilities = {
    name: as_numpy(next_token_probabilities(last, **knob))
    for name, knob in knobs.items()
}
order = np.argsort(-probabilities["temperature 1"])[:10]  # the most probable first

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Probabilities of the ten most probable tokens after 'if self.', a row each for temperature 1, temperature 0.5, top-k with k = 5 and top-p with p = 0.5. The row of top-k is zero after its fifth token."}}
maps = [np.stack([p[order] for p in probabilities.values()])]
names_of_tokens = [repr(pairs.tokens[i]) for i in order]
plots.heatmaps(
    maps, x="next token", y="", x_ticks=names_of_tokens, y_ticks=list(knobs),
    high=math.ceil(10 * maps[0].max()) / 10, bar="probability", size=(7.2, 2.6),
)  # fmt: skip

# %% tags=["shared", "say"]
left = {name: int((p > 0).sum()) for name, p in probabilities.items()}
say(
    f"After `if self.` the model finds `{pairs.tokens[order[0]]}` most probable, with "
    f"{probabilities['temperature 1'].max():.0%}. Temperature 0.5 raises that to "
    f"{probabilities['temperature 0.5'].max():.0%}. Of {left['temperature 1']} tokens, "
    f"top-k keeps {left['top_k=5']}, and top-p {left['top_p=0.5']}."
)

# %% tags=["shared", "check"]
# Checked: top-p keeps the first tokens that have p together; temperature 0.5 sharpens
p = np.sort(probabilities["temperature 1"])[::-1]
assert left["top_k=5"] == 5 and left["top_p=0.5"] == np.argmax(p.cumsum() >= 0.5) + 1
assert probabilities["temperature 0.5"].max() > p.max()
for each in probabilities.values():
    np.testing.assert_allclose(each.sum(), 1, rtol=1e-5)

# %% [markdown] tags=["shared"]
# `generate` of `helpers` does all this for a batch of prompts of different lengths. The
# shorter prompts are padded on the *left*, with a mask, so that all texts grow at the
# same place. A text stops at a token that you name as the **end**. Here it is `"\n"`, a
# line break that no indentation follows.

# %% tags=["shared"]
prompts = ["import ", prompt, "class Queue:\n    def put(self"]
encoded = [pairs.encode(each) for each in prompts]
(end,) = pairs.encode("\n")
options = {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "end": end, "seed": 3}
batch = as_numpy(generate(model, encoded, 40, **options))
for each, new in zip(prompts, batch, strict=True):
    print("---", each + pairs.decode(new).rstrip("\n"), sep="\n")

# %% tags=["shared", "check"]
# Checked: a batch gives each text that its prompt gives alone; after the end only ends
together = as_numpy(generate(model, encoded, 40, **options | {"top_k": 1, "end": None}))
np.testing.assert_array_equal(together[1], greedy)
assert len(encoded[1]) < len(encoded[2])  # it was padded
for new in batch:
    stop = np.argmax(new == end) if end in new else len(new)
    assert (new[stop:] == end).all()

# %% [markdown] tags=["shared"]
# All that the model has learned, in half precision and with its vocabulary, for your
# own programs. [In your browser](../book/playground.md) it writes with these weights.

# %% tags=["shared"]
rounded = build(LanguageModel, **settings.model)
halves = {name: array.astype(np.float16) for name, array in to_arrays(model).items()}
from_arrays(rounded, halves)
loss_in_half = evaluate(rounded, next_token, (held_out,))["loss"]
bits_in_half = text.bits_per_character(loss_in_half, tokens["test"], texts["test"])
name = f"decoder_{side}.safetensors"
download_link(model, name, half=True, metadata=pairs.metadata)

# %% tags=["shared", "say"]
say(
    f"Rounded to half precision, the model needs {bits_in_half:.4f} bits per character "
    f"for the held-out text, and {bits:.4f} as it was trained."
)

# %% tags=["shared", "check"]
# Checked: half precision changes the bits per character by less than 0.001
assert abs(bits_in_half - bits) < 0.001  # loose: no more than rounding

# %% [markdown] tags=["shared"]
# **Exercise 2, one change of code.** *Min-p*
# ([Nguyen et al. 2024](https://arxiv.org/abs/2407.01082)) keeps all tokens that have at
# least a share, say 0.1, of the largest probability. Change `next_token_probabilities`
# so that it can do that. How many tokens does it keep after `if self.`, and how many
# after `    def __init__(`? Compare with top-p.


# %% tags=["shared", "answer"]
def min_p_probabilities(logits, share):
    """Probabilities of the tokens that have ``share`` of the largest one: ``t``."""
    p = as_numpy(next_token_probabilities(logits))
    p = np.where(p >= share * p.max(), p, 0)
    return p / p.sum()


for beginning in ("        if self.", "    def __init__("):
    its = logits_after(beginning)
    by_min_p = (min_p_probabilities(its, 0.1) > 0).sum()
    by_top_p = (as_numpy(next_token_probabilities(its, top_p=0.9)) > 0).sum()
    say(f"`{beginning.strip()}`: min-p keeps {by_min_p}, top-p with 0.9 {by_top_p}.")
say(
    "Two lines do it: `p = where(p >= share * p.max(), p, 0)` and `p = p / p.sum()`. "
    "Top-p adds tokens until their sum is reached, however improbable each of them is. "
    "Min-p looks at each token alone, so a single sure token excludes the long tail."
)

# %% [markdown] tags=["shared"]
# ## A key–value cache computes each token once
#
# Our greedy loop passes the whole text through the model for each new token. Nearly all
# of that work has been done before: because of the mask, old positions never change.
# Only their keys and values are needed again, by the queries of later tokens. So we
# keep them, in the **key–value cache**.

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Keys and values of five old tokens are kept; those of the new token are written beside them. The query of the new token alone meets all keys, and its weights mix all values into one output."}}
diagrams.key_value_cache()

# %% [markdown] tags=["torch"]
# The cache of each block has all its places from the start; new keys and values are
# written in place.


# %% tags=["torch"]
def attend(layer, q, k, v, mask=None):
    """Outputs of a ``MultiHeadAttention`` for given ``q``, ``k``, ``v``: ``b q m``."""
    values, _ = attention(q, k, v, mask)  # b h q d
    joined = values.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)  # b q m
    return layer.out(joined)


def attend_and_keep(layer, x, cache, start, mask):
    """Attention to all positions so far: ``b n m``, and the cache with the new ones."""
    q, *new = layer.project(x)  # b h n d
    stop = start + x.shape[1]
    for kept, part in zip(cache, new, strict=True):
        kept[:, :, start:stop] = part  # in place: nothing is copied
    k, v = (kept[:, :, :stop] for kept in cache)
    return attend(layer, q, k, v, mask), cache


# %% [markdown] tags=["shared"]
# `advance` of `helpers` passes new tokens through all blocks in this way and returns
# their logits and the cache. First the prompt goes in, at once, then token after token.
# `generate` does the same; without its batch and its sampling, it would be this:


# %% tags=["torch"]
@torch.no_grad()
def write_with_cache(model, prompt, length):
    """As ``write_greedily``, but each token is computed once: ``s -> length``."""
    cache = new_cache(model, integers([0]), len(prompt) + length)
    logits, cache = advance(model, prompt[None], cache)
    new = []
    for _ in range(length):
        new.append(logits[:, -1:].argmax(-1))  # 1 1
        logits, cache = advance(model, new[-1], cache)
    return torch.cat(new, dim=1)[0]


# %% tags=["shared"]
faster = as_numpy(write_with_cache(model, integers(pairs.encode(prompt)), 40))
cache = new_cache(model, integers([0]), settings.length)
first_half, cache = advance(model, integers(row[:, :32]), cache)
second_half, cache = advance(model, integers(row[:, 32:]), cache)
in_parts = [as_numpy(half) for half in (first_half, second_half)]
without_cache = as_numpy(model(integers(row)))  # b s t

# %% tags=["shared", "check"]
# Checked: with the cache the logits are the same, and so is the greedy text
np.testing.assert_allclose(np.concatenate(in_parts, 1), without_cache, atol=1e-4)
np.testing.assert_array_equal(faster, greedy)

# %% [markdown] tags=["shared"]
# How much does it save? We measure one more token for 16 texts, at three lengths, once
# with the whole text through the model and once with the cache. (Model and cache are
# new: the time does not depend on what is in them.)


# %% tags=["torch"]
@torch.no_grad()
def all_again(model, tokens):
    """Logits of the next token, from the whole text: ``b s -> b t``."""
    return model(tokens)[:, -1]


@torch.no_grad()
def only_new(model, tokens, cache):
    """The same from the last tokens ``b 1`` and the cache of those before."""
    return advance(model, tokens, cache)[0][:, -1]


# %% tags=["shared"]
def seconds(function, *args, repeats=5):
    """Shortest time of a call, after a first one that may compile."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        as_numpy(function(*args))  # waits for the result
        times.append(time.perf_counter() - start)
    return min(times[1:])


lengths, b = (64, 128, 256), 16
longer = build(LanguageModel, **settings.model | {"max_length": max(lengths)})
again, cached, sizes = [], [], []
for s in lengths:
    many = integers(tokens["test"][: b * s].reshape(b, s))
    filled = new_cache(longer, integers(np.zeros(b)), s)
    filled["start"] += s - 1  # as if it held all tokens but the last
    again.append(seconds(all_again, longer, many))
    cached.append(seconds(only_new, longer, many[:, -1:], filled))
    sizes.append(sum(part.nbytes for kv in filled["blocks"] for part in kv))

# %% tags=["shared", "figure"] mystnb={"image": {"alt": "Milliseconds for one token of 16 texts over the length of the text, with marks at 64, 128 and 256 tokens: one line for the whole text again, one for the cache."}}
panels = {"": {
    "the whole text again": (lengths, 1000 * np.array(again)),
    "with the cache": (lengths, 1000 * np.array(cached)),
}}  # fmt: skip
plots.curves(panels, x="length s", y="ms for one token", marks="o", size=(5.4, 2.9))

# %% tags=["shared", "say"]
lines = [
    [s, f"{1000 * a:.1f} ms", f"{1000 * c:.1f} ms", f"{a / c:.1f}", f"{size:,}"]
    for s, a, c, size in zip(lengths, again, cached, sizes, strict=True)
]
head = ["length", "whole text", "with the cache", "ratio", "bytes of the cache"]
say(table(head, *lines))

# %% [markdown] tags=["shared"]
# The price is memory. For each of the $l$ blocks, $b$ texts and $s$ positions, the
# cache has a key and a value of $m$ numbers, so in float32 it takes
# $2 \cdot 4 \cdot l\, b\, s\, m$ bytes. With large models and long texts it is often
# the cache, not the weights, that fills the memory.

# %% tags=["shared", "check"]
# Checked: the cache has as many bytes as the formula says
for s, size in zip(lengths, sizes, strict=True):
    assert size == 2 * 4 * settings.n_blocks * b * s * settings.m

# %% [markdown] tags=["shared"]
# **Exercise 3, open.** Give the model a text of your own (`TEXT_FILE`), or change one
# setting, for example `n_tokens=97` (characters only), `length`, or `epochs`. Predict
# first: do the bits per character of the model and of the 5-gram rise or fall, and
# which of them changes by a larger amount? (The bounds in the folded checks are those
# of our text and settings.)

# %% tags=["shared", "answer"]
say(
    "What we would expect: with characters only, a window of 64 tokens covers 64 "
    f"characters in place of {64 * len(texts['test']) / len(tokens['test']):.0f}, so "
    "the model sees few words at once and needs many updates to learn to spell; the "
    "5-gram does not change, because it counts characters anyway. Doubling `epochs` "
    "helps the model and not the 5-gram. On a short text of yours, counting "
    "wins, and the held-out loss rises again while the training loss falls: the model "
    "overfits, and dropout becomes useful."
)

# %% [markdown] tags=["shared"]
# ## In your own code
#
# You need not write the mask, because the framework's attention has a flag for it. The
# embedding is a layer of the framework anyway.

# %% [markdown] tags=["torch"]
# It is `nn.Embedding(n_tokens, m)`. `nn.functional.scaled_dot_product_attention` takes
# `b h s d`:

# %% tags=["torch"]
q, k, v = (floats(rng.normal(size=(2, 3, 11, 5))) for _ in range(3))  # b h s d
theirs = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
ours, _ = attention(q, k, v, booleans(np.tri(11)))

# %% tags=["shared", "check"]
# Checked: the framework's causal flag gives the same outputs as our mask
np.testing.assert_allclose(as_numpy(ours), as_numpy(theirs), atol=1e-5)

# %% [markdown] tags=["shared"]
# And what separates this model from GPT-2
# ([Radford et al. 2019](https://openai.com/index/better-language-models/))?
# The blocks are the same: pre-norm, learned positions, tied weights. GPT-2 has GELU in
# place of ReLU and dropout (`activation="gelu"`, `dropout=0.1` of our model), and it is
# larger: in its smallest version 12 blocks, 12 heads, $m = 768$, 1,024 positions and
# 50,257 tokens.


# %% tags=["shared"]
def counted(n_tokens, m, n_blocks, f, max_length):
    """Parameters of a tied pre-norm language model."""
    block = 4 * (m * m + m) + (2 * m * f + f + m) + 2 * 2 * m  # attention, ffn, norms
    return n_tokens * m + max_length * m + n_blocks * block + 2 * m


names = "n_tokens", "m", "n_blocks", "f", "max_length"
own_count = counted(*(settings.model[name] for name in names))
gpt2 = counted(50_257, 768, 12, 4 * 768, 1024)

# %% tags=["shared", "say"]
say(
    f"Counted by hand, our model has {own_count:,} parameters and the smallest GPT-2 "
    f"{gpt2 / 1e6:.0f} million, {gpt2 / own_count:.0f} times as many."
)

# %% tags=["shared", "check"]
# Checked: counted by hand, our model has as many parameters as it really has
assert own_count == n_parameters(model)

# %% [markdown] tags=["shared"]
# ## Key points
#
# * A language model predicts each token from those before it. Text is its own label.
# * With the causal mask, one pass over a text trains all its predictions. Without
#   the mask the model copies its label.
# * Byte pairs make sequences short; bits per character compare any two vocabularies.
# * Compare with n-grams: they are cheap, and strong on small budgets.
# * Greedy text runs in circles. Temperature, top-k and top-p trade safety for variety.
# * The key–value cache computes each token once, for $2\,l\,b\,s\,m$ numbers of memory.

# %% [markdown] tags=["torch"]
# Next comes [a model that reads and writes, in PyTorch](translation_torch.ipynb): the
# decoder looks at a second sequence and translates it. For sets, where there is no
# order at all, go on to [finding the odd one out](anomaly_torch.ipynb).
