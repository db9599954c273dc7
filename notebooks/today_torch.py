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
# # The Transformer of today
#
# By the end you can read the code of Llama, Qwen3 or Mixtral, build their block with
# its cache, load published weights into your own code, and say what each change since
# 2019 buys. You need: the chapters on positions and on the model that writes.
#
# A colleague asks why the cache of Llama is four times smaller than that of your model.
# You open the code: no biases, no table of positions, three matrices where the
# feed-forward net had two, fewer heads for keys than for queries. None of it is in the
# paper of 2017. Each part is a few lines, and has its reason.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [today_jax](today_jax.ipynb). Before
# it comes [a model that reads and writes, in PyTorch](translation_torch.ipynb).

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
from functools import partial
from itertools import pairwise, product

import numpy as np
import safetensors.numpy
import torch
from torch import nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention, silu

from helpers.data import checkpoints, published, text
from helpers.data.byte_pairs import BytePairs
from helpers.data.ngrams import ngram_bits
from helpers.data.sequences import in_order
from helpers.engine.arguments import check_prompts
from helpers.engine.runs import runs_folder
from helpers.engine.settings import Text
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import count_parameters, from_arrays, to_arrays
from helpers.exercises import check  # of what you write
from helpers.show import drawing, plots, viewer
from helpers.show.prose import recorded, say, table, word
from helpers.torch import (
    MLP,
    MixtureOfExperts,
    attention,
    build,
    check_tokens,
    embedding_table,
    empty_cache,
    evaluate,
    fit,
    full_float32,
    generate_greedily,
    make_norm,
    merge_heads,
    next_token,
    part_size,
    placed,
    projection,
    split_heads,
)

# %% tags=["torch", "experiment"]
# Experiment: device, style, and the names floats, integers, framework, forward
device = "cuda" if torch.cuda.is_available() else "cpu"
plots.use_style()
# These make tensors out of lists and NumPy arrays.
build = partial(build, device=device)  # models are made on this device
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
integers = partial(torch.as_tensor, dtype=torch.int64, device=device)
framework = "torch"
forward = torch.no_grad()(lambda model, *args, **named: model(*args, **named))
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## Since 2019, every part of the block has changed
#
# The order of the parts is the same: norm, attention, sum, norm, feed-forward net, sum.
# (Gemma 3 also norms after attention and net.) What stands in each box has changed.

# %% mystnb={"image": {"alt": "Two blocks side by side, read from the tokens at the bottom to the top. GPT-2 of 2019: embed, learned positions that are added, then n_blocks times LayerNorm, attention with a key and a value for each query head and biases, a residual, LayerNorm, GELU with biases, a residual. ModernLM, with the differences in colour: nothing is added after embed; RMSNorm, attention with rotated, in some models normed queries and keys, shared keys and values and no biases, RMSNorm, SwiGLU or experts without biases."}} tags=["shared", "figure"]
drawing("two-blocks")

# %% [markdown] tags=["shared"]
# Who uses what:
#
# | | GPT-2 | Llama 3 8B | Qwen3 0.6B | Gemma 3 4B | Mixtral 8x7B |
# |---|---|---|---|---|---|
# | year | 2019 | 2024 | 2025 | 2025 | 2023 |
# | blocks, $m$ | 12, 768 | 32, 4,096 | 28, 1,024 | 34, 2,560 | 32, 4,096 |
# | head size $d$ | 64 | 128 | 128 | 256 | 128 |
# | norm | LayerNorm | RMSNorm | RMSNorm | RMSNorm | RMSNorm |
# | positions | learned | rotary | rotary | rotary | rotary |
# | heads: q; k, v | 12; 12 | 32; 8 | 16; 8 | 8; 4 | 32; 8 |
# | norm of q, k | no | no | yes | yes | no |
# | feed-forward | GELU | SwiGLU | SwiGLU | GeGLU | 8 SwiGLU |
# | $f$ | 3,072 | 14,336 | 3,072 | 10,240 | 14,336 |
# | biases | yes | no | no | no | no |
# | windows | no | no | no | 5 of 6 blocks | no |
#
# (GeGLU is SwiGLU with GELU for silu. From the `config.json` and the code of
# [GPT-2](https://huggingface.co/openai-community/gpt2), [Llama
# 3](https://huggingface.co/meta-llama/Meta-Llama-3-8B),
# [Qwen3](https://huggingface.co/Qwen/Qwen3-0.6B), [Gemma
# 3](https://huggingface.co/google/gemma-3-4b-pt),
# [Mixtral](https://huggingface.co/mistralai/Mixtral-8x7B-v0.1).)
#
# We take the changes one by one, and then build, train and load the whole.
#
# ## RMSNorm does not subtract the mean
#
# A layer norm subtracts the mean of the features, divides by their standard deviation,
# then scales and shifts. **RMSNorm** ([Zhang & Sennrich
# 2019](https://arxiv.org/abs/1910.07467)) only divides, by the root of the mean square:
#
# $$\mathrm{RMSNorm}(x)_i = \frac{x_i}{\sqrt{\frac1m \sum_j x_j^2 + \epsilon}}\; g_i.$$


# %% tags=["torch"]
def rms_norm(x, scale, eps=1e-6):
    """Divide by the root of the mean square of the features: ``... m -> ... m``."""
    wide = x.float()  # squares in 16 bits lose digits
    mean_square = wide.square().mean(dim=-1, keepdim=True)
    return (wide / (mean_square + eps).sqrt()).to(x.dtype) * scale


# %% tags=["shared"]
x = floats([1, 5, 7])  # the mean square is (1 + 25 + 49) / 3 = 25, its root 5
print(as_numpy(rms_norm(x, 1.0)).round(3))

# %% [markdown] tags=["shared"]
# What is gained? No mean to compute, and half of the parameters of a norm, with similar
# results in the paper. As before, only the direction of a vector counts,
# not its size. The model takes the framework's own layer (`make_norm`, in an extra).

# %% tags=["shared", "check"]
# Checked: three numbers by hand; the framework's norm; the size of a vector is lost
np.testing.assert_allclose(as_numpy(rms_norm(x, 1.0)), [0.2, 1, 1.4], rtol=1e-6)
rng = np.random.default_rng(0)
rows, scale = rng.normal(size=(5, 7)), rng.normal(size=7)
layer = build(make_norm, 7)
from_arrays(layer, {"weight": scale})
found = as_numpy(rms_norm(floats(rows), floats(scale)))
np.testing.assert_allclose(found, as_numpy(layer(floats(rows))), rtol=1e-5)
larger = as_numpy(rms_norm(floats(1000 * rows), floats(scale)))
np.testing.assert_allclose(larger, found, rtol=1e-4)

# %% [markdown] tags=["shared"]
# ## Rotary positions turn queries and keys
#
# GPT-2 adds a learned vector to each token, one for each of 1,024 positions; position
# 1,024 has none. **Rotary positions** ([Su et al.
# 2021](https://arxiv.org/abs/2104.09864)) add nothing. They take the features of a
# query and of a key in pairs, and turn each pair by an angle that grows with the
# position. A query at position $i$ and a key at $j$ then have a dot product in which
# positions count only as $i - j$.

# %% mystnb={"image": {"alt": "Top: a fast and a slow pair of features as arrows in circles; from position 0 to 3 the fast one turns much further. Middle: a key at 0 and a query at 2, then a key at 1 and a query at 3: both arrows have turned, and the angle between them is the same. Bottom: a row of eight cells in which feature i is joined to feature i + 4, its partner."}} tags=["shared", "figure"]
drawing("rotation")

# %% [markdown] tags=["shared"]
# Pair $p$, from 0 on, turns by $\text{position} \cdot B^{-2p/d}$: the first pair by one
# radian a token, the last by nearly nothing. The *base* $B$ was 10,000 in 2021; Llama 3
# takes 500,000, so that fewer pairs come round within a long text. The chapter on
# positions paired neighbours, as the paper does. The weights that we load pair feature
# $p$ with $p + d/2$, and with the wrong pairs, they compute nonsense.


# %% tags=["torch"]
def rotary_halves(x, positions, base=10000.0):
    """Rotate feature i together with i + d/2, by position: ``b h s d``."""
    half = part_size(x.shape[-1], 2)
    steps = torch.arange(half, dtype=torch.float32, device=x.device) / half
    angle = positions[:, None, :, None] * base**-steps  # b 1 s d/2, in float32
    sin, cos = angle.sin(), angle.cos()
    first, second = x.float().chunk(2, dim=-1)  # b h s d/2
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, dim=-1).to(x.dtype)  # b h s d


# %% tags=["shared", "say"]
q, k = (floats(each) for each in rng.normal(size=(2, 1, 1, 1, 8)))  # b h s d
at = {
    (i, j): float(
        (rotary_halves(q, integers([[i]])) * rotary_halves(k, integers([[j]]))).sum()
    )
    for i, j in ((7, 4), (1007, 1004), (7, 5))
}
lines = [[i, j, i - j, f"{dot:.4f}"] for (i, j), dot in at.items()]
say(table(["position of q", "position of k", "distance", "dot product"], *lines))

# %% [markdown] tags=["shared"]
# The angles are computed in float32, whatever the model computes in. A bfloat16 has
# eight significant bits: position 1,001 would be rounded to 1,000, and its fastest
# pair be off by a radian.

# %% tags=["shared", "check"]
# Checked: only the distance counts; lengths stay; halves pair up; 1,001 becomes 1,000
assert abs(at[7, 4] - at[1007, 1004]) < 1e-3 < abs(at[7, 4] - at[7, 5])
turned = as_numpy(rotary_halves(q, integers([[5]])))
np.testing.assert_allclose(np.square(turned).sum(), np.square(as_numpy(q)).sum(), 1e-5)
pair = as_numpy(q)[..., [1, 5]] @ [1, 1j]  # features 1 and 1 + d/2 as one number
expected = (pair * np.exp(5j * 10000 ** (-2 / 8))).item()
np.testing.assert_allclose(turned[..., [1, 5]] @ [1, 1j], expected, rtol=1e-5)
assert 4 * round(1001 / 4) == 1000  # of eight bits, 512 to 1,024: in steps of 4

# %% [markdown] tags=["shared"]
# ## SwiGLU multiplies two projections
#
# The old net has one nonlinearity between two matrices. **SwiGLU** ([Shazeer
# 2020](https://arxiv.org/abs/2002.05202)) has a third matrix: one projection, after
# $\mathrm{silu}(z) = z / (1 + e^{-z})$, is the *gate* that multiplies the other,
# feature by feature:
#
# $$\mathrm{SwiGLU}(x) = \bigl(\mathrm{silu}(x W_\text{gate}) \odot x W_\text{up}\bigr)
# W_\text{down}.$$
#
# At −2, 0 and 3, silu gives −0.24, 0 and 2.86: nearly shut, shut, open. Since
# $3mf$ parameters should be as many as the $8m^2$ of before, Shazeer takes $f = \frac83
# m$ in place of $4m$; the models in the table spend more. Why it helps? Shazeer: "We
# offer no explanation". Biases go as well: they are few, and most models drop them.


# %% tags=["torch"]
class SwiGLU(nn.Module):
    """Gated feed-forward net: ``... m -> ... m``."""

    def __init__(self, m, f):
        super().__init__()
        self.gate, self.up = projection(m, f), projection(m, f)
        self.down = projection(f, m)

    def forward(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))


# %% tags=["shared", "check"]
# Checked: the formula, in NumPy; with f = 8m/3, as many parameters as before
net = build(SwiGLU, 6, 16, seed=0)
assert count_parameters(net) == 3 * 6 * 16 == 2 * 6 * 24
x = rng.normal(size=(5, 6)).astype(np.float32)
gate, up, down = (to_arrays(net)[f"{name}.weight"] for name in ("gate", "up", "down"))
z = x @ gate
by_hand = (z / (1 + np.exp(-z)) * (x @ up)) @ down
with full_float32():
    found = as_numpy(net(floats(x)))
np.testing.assert_allclose(found, by_hand, rtol=1e-4, atol=1e-6)
z = np.array([-2, 0, 3])
np.testing.assert_allclose(z / (1 + np.exp(-z)), [-0.24, 0, 2.86], atol=5e-3)

# %% [markdown] tags=["shared"]
# **Exercise 1, equal parameters.** GPT-2 has $m = 768$ and $f = 3072$. Which $f$ gives
# a `SwiGLU` as many parameters, biases aside? Count them with `count_parameters`.

# %% tags=["shared", "answer"]
f = 2 * 3072 // 3
gated, plain = build(SwiGLU, 768, f), build(MLP, 768, 3072)
say(
    f"{f:,}: {count_parameters(gated):,} parameters in three matrices, instead of "
    f"{count_parameters(plain) - 768 - 3072:,} in two."
)
assert count_parameters(gated) == count_parameters(plain) - 768 - 3072

# %% [markdown] tags=["shared"]
# ## Query heads share keys and values, and the cache shrinks
#
# When a model writes, it keeps the keys and values of all tokens so far, for each
# block. With many long texts, this cache outgrows the weights (exercise 2). So
# **grouped queries** (GQA, [Ainslie et al. 2023](https://arxiv.org/abs/2305.13245)) let
# several query heads look through the same keys and values: $g$ key–value heads for $h$
# query heads.

# %% mystnb={"image": {"alt": "Four query heads three times. Multi-head: each has its own head of keys and values, and the cache is full, 100 %. Grouped: two neighbours share one, and the cache has half the size. Multi-query: all four share one, and it has a quarter."}} tags=["shared", "figure"]
drawing("grouped-heads")

# %% [markdown] tags=["torch"]
# PyTorch's function takes fewer heads of keys and values with `enable_gqa`; with a
# mask, we repeat the heads, which costs a copy. The cache is written in place.


# %% tags=["torch"]
def fused(q, k, v, mask=None):
    """Attention with shared keys: ``b h q d, b g k d, b g k d -> b h q d``."""
    n = part_size(q.shape[1], k.shape[1])  # query heads in a group
    if mask is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=n > 1)
    k, v = (x.repeat_interleave(n, dim=1) for x in (k, v))  # for the fused kernels
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def keep(cache, k, v, start):
    """All keys and values so far, ``b g s d``, and the cache with the new ones."""
    stop = start + k.shape[2]
    for kept, new in zip(cache, (k, v), strict=True):
        kept[:, :, start:stop] = new  # in place: nothing is copied
    return tuple(kept[:, :, :stop] for kept in cache), cache


# %% [markdown] tags=["shared"]
# With these, the attention of today is a class of thirty lines. The norm of queries and
# keys (`qk_norm`: Qwen3, Gemma 3) bounds their dot products, which otherwise grow in
# long trainings of large models until the softmax saturates ([Dehghani et al.
# 2023](https://arxiv.org/abs/2302.05442)).


# %% tags=["torch"]
class GroupedAttention(nn.Module):
    """Causal attention whose query heads share keys: ``b s m -> b s m``."""

    def __init__(
        self, m, n_heads, n_kv_heads=None, d=None, *, bias=False, qk_norm=False,
        base=10000.0, eps=1e-6,
    ):  # fmt: skip
        super().__init__()
        n_kv_heads, d = n_kv_heads or n_heads, d or part_size(m, n_heads)
        part_size(n_heads, n_kv_heads)  # query heads that share keys and values
        part_size(d, 2 if base else 1)  # pairs for the rotation
        self.n_kv_heads, self.d, self.base = n_kv_heads, d, base
        sizes = n_heads * d, n_kv_heads * d, n_kv_heads * d
        self.q, self.k, self.v = (projection(m, size, bias) for size in sizes)
        self.out = projection(n_heads * d, m, bias)
        self.q_norm = nn.RMSNorm(d, eps=eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(d, eps=eps) if qk_norm else None

    def project(self, x, positions):
        q, k, v = (split_heads(layer(x), self.d) for layer in (self.q, self.k, self.v))
        q, k = (self.q_norm(q), self.k_norm(k)) if self.q_norm else (q, k)
        if self.base:
            q, k = (rotary_halves(part, positions, self.base) for part in (q, k))
        return q, k, v

    def forward(self, x, positions, mask=None, cache=None, start=0):
        q, k, v = self.project(x, positions)
        if cache is not None:
            (k, v), cache = keep(cache, k, v, start)
        return self.out(merge_heads(fused(q, k, v, mask))), cache


# %% tags=["shared", "check"]
# Checked: with repeated keys and values, it is the attention of the first chapter
q, k, v = (
    floats(rng.normal(size=(2, n, 7, 4))) for n in (6, 2, 2)
)  # b h s d, b g s d, b g s d
repeated = (floats(np.repeat(as_numpy(part), 3, axis=1)) for part in (k, v))
with full_float32():
    wanted, _ = attention(q, *repeated, is_causal=True)
    found = fused(q, k, v)
np.testing.assert_allclose(as_numpy(found), as_numpy(wanted), atol=1e-5)

# %% [markdown] tags=["shared"]
# ## The whole model
#
# A block, and a stack of blocks, with options for GPT-2. What is not shown yet has an
# extra below: `placed` gives the positions of new tokens, counted from `cache["start"]`
# on, and a mask if there is padding or a cache; `MLP` is GPT-2's net,
# `MixtureOfExperts` a third one. `ModernLM` is a name of this book.


# %% tags=["torch"]
class ModernBlock(nn.Module):
    """Attention, then a feed-forward net, each after a norm: ``b s m -> b s m``."""

    def __init__(
        self, m, f, *, norm="rms", eps=1e-6, ffn="swiglu", n_experts=4, n_active=2,
        **options,
    ):  # fmt: skip
        super().__init__()
        nets = {"swiglu": SwiGLU, "mlp": MLP, "experts": MixtureOfExperts}
        experts = (n_experts, n_active) if ffn == "experts" else ()
        self.norm1, self.norm2 = make_norm(m, norm, eps), make_norm(m, norm, eps)
        self.attention = GroupedAttention(m, eps=eps, **options)
        self.ffn = nets[ffn](m, f, *experts)

    def forward(self, x, *placing):
        values, cache = self.attention(self.norm1(x), *placing)
        x = x + values
        return x + self.ffn(self.norm2(x)), cache


# %% tags=["torch"]
class ModernLM(nn.Module):
    """Logits of the next token at every position: ``b s -> b s c``."""

    def __init__(
        self, n_tokens, m, *, n_blocks, max_length, positions="rotary", tied=True,
        norm="rms", eps=1e-6, **options,
    ):  # fmt: skip
        super().__init__()
        learned, self.max_length = positions == "learned", max_length
        options |= {"norm": norm, "eps": eps} | ({"base": None} if learned else {})
        self.embed = embedding_table(n_tokens, m, m**-0.5)
        self.positions = embedding_table(max_length, m, 0.02) if learned else None
        self.blocks = nn.ModuleList(ModernBlock(m, **options) for _ in range(n_blocks))
        self.norm = make_norm(m, norm, eps)
        self.output = None if tied else projection(m, n_tokens)

    def forward(self, tokens, first=None, cache=None):
        check_tokens(tokens, self.max_length)
        positions, mask = placed(tokens, first, cache)
        start = cache["start"] if cache else 0
        kept = [*cache["blocks"]] if cache else [None] * len(self.blocks)
        x = self.embed(tokens.clamp(min=0))  # b n m
        x = x + self.positions(positions) if self.positions else x
        for i, block in enumerate(self.blocks):
            x, kept[i] = block(x, positions, mask, kept[i], start)
        x = self.norm(x)
        logits = self.output(x) if self.output else linear(x, self.embed.weight)
        new = {"start": start + tokens.shape[1], "blocks": kept}
        return (logits, cache | new) if cache else logits


# %% tags=["shared", "check"]
# Checked: nothing sees what comes later, in the block of today and in GPT-2's
small = {"n_tokens": 31, "m": 24, "n_blocks": 2, "n_heads": 4, "f": 40}
small |= {"max_length": 32}
changed = rng.integers(31, size=(2, 12))
changed[1, :8] = changed[0, :8]  # two rows that differ from token 8 on
kinds = {"n_kv_heads": 2, "qk_norm": True}, {"positions": "learned", "ffn": "mlp"}
for kind in kinds:
    with full_float32():
        one = build(ModernLM, seed=3, **small, **kind)
        first, second = as_numpy(forward(one, integers(changed)))  # each s c
    np.testing.assert_allclose(first[:8], second[:8], atol=1e-5)
    assert np.abs(first - second)[8:].max() > 0.1

# %% [markdown] tags=["shared"]
# ## At this size, rotary positions bring the whole gain
#
# Two models, with GPT-2's block and with that of today, train on the text, tokens,
# batches and updates of the chapter on the model that writes. What the shared keys and
# values save goes into $f = 3m$, as in Qwen3. Each number in a matrix costs a
# token two FLOPs, a product and a sum. The cache keeps a key and a value of $d$ numbers
# for each block and key–value head: $2 \cdot n_\text{blocks} \cdot g \cdot d$.

# %% tags=["shared", "experiment"]
# Experiment: both models learn the text of the chapter on the model that writes
settings = Text()
texts = text.load()  # Python's standard library: train and test
pairs = BytePairs.learn(texts["train"], settings.n_tokens)
tokens = {name: pairs.encode(part) for name, part in texts.items()}
windows = text.random_windows(tokens["train"], settings)  # n s+1
held_out = text.windows(tokens["test"], settings.length)  # n s+1
common = {"n_tokens": len(pairs), "m": 96, "n_blocks": 2, "n_heads": 4}
common |= {"max_length": settings.length}
today = common | {"f": 288, "n_kv_heads": 2}
old = common | {"f": 384, "norm": "layer", "ffn": "mlp", "bias": True}
old |= {"positions": "learned"}
models, bits = {}, {}
for name, sizes in (("GPT-2's block", old), ("the block of today", today)):
    one = models[name] = build(ModernLM, seed=settings.seed, **sizes)
    given = {"batches": in_order(settings)}
    given |= {"folder": runs_folder(f"today_{framework}_{sizes['f']}")}
    fit(one, next_token, (windows,), settings, **given)
    loss = evaluate(one, next_token, (held_out,), batch_size=len(held_out))["loss"]
    bits[name] = text.bits_per_character(loss, tokens["test"], texts["test"])

# %% tags=["shared", "say"]
best = min(ngram_bits(texts["train"], texts["test"], 6))
lines, per_token = [["best n-gram", "", "", "", f"{best:.2f}"]], []
for name, one in models.items():
    found = to_arrays(one).items()  # the embedding also makes the logits: one matrix
    matrices = [x.size for n, x in found if x.ndim == 2 and n != "positions.weight"]
    held = empty_cache(one, integers([0]), 64)["blocks"]
    per_token.append(sum(part.nbytes for kv in held for part in kv) // 64)
    counts = count_parameters(one), 2 * sum(matrices), per_token[-1]
    lines.append([name, *(f"{n:,}" for n in counts), f"{bits[name]:.2f}"])
head = ["model", "parameters", "FLOPs in matrices", "cache, bytes a token"]
say(table([*head, "bits per character, held out"], *lines))
old_bits, new_bits = bits.values()
say(
    f"After {settings.updates} updates at a peak rate of {settings.learning_rate:g}, "
    f"not tuned for either, both need {word('fewer', [new_bits, old_bits], best)} bits "
    "than the best n-gram; the block of today with "
    f"{per_token[1] / per_token[0]:.0%} of the cache."
)

# %% tags=["shared", "check"]
# Checked: ahead of all n-grams, today's block no worse; sizes and bytes by formula
assert max(new_bits, old_bits) < best
assert new_bits < old_bits + 0.03  # loose: seeds differ by 0.01
assert per_token == [2 * 2 * 4 * 24 * 4, 2 * 2 * 2 * 24 * 4]  # float32: four bytes
n_old, n_new = (count_parameters(each) for each in models.values())
assert abs(n_new / n_old - 1) < 0.03

# %% [markdown] tags=["shared"]
# One run of each is an anecdote. Recorded runs, four blocks deep, with five seeds, add
# the changes one by one:

# %% tags=["shared", "say"]
(record,) = recorded(f"block-seeds-{framework}")
steps = record["figures"]
lines = [
    [f"{'and ' * (i > 1)}{name}", f"{one['parameters']:,}",
     f"{np.mean(one['bits']):.3f}", f"{min(one['bits']):.3f} to {max(one['bits']):.3f}"]
    for i, (name, one) in enumerate(steps.items())
]  # fmt: skip
say(table(["with", "parameters", "bits per character, mean", "five seeds"], *lines))
start, rotated, *others = (np.array(one["bits"]) for one in steps.values())
gain = start - rotated
moves = [each.mean() - rotated.mean() for each in others]
say(
    f"Rotary positions bring {gain.min():.2f} to {gain.max():.2f} bits, with every "
    f"seed. What follows moves the mean by {min(moves):+.3f} to {max(moves):+.3f}; the "
    "step with shared keys costs most. (Measured on a CPU, in "
    "`benchmarks/results`, with $f = 256$. Why models of two blocks gain "
    f"{word('less', [old_bits - new_bits], gain)}, we have not found out.)"
)

# %% tags=["shared", "check"]
# Checked: in both frameworks, with every seed, rotary positions bring most
for side in ("jax", "torch"):
    (record,) = recorded(f"block-seeds-{side}")
    start, rotated, *others = (
        np.array(one["bits"]) for one in record["figures"].values()
    )
    moves = [each.mean() - rotated.mean() for each in others]
    assert all((start - each > 0.03).all() for each in (rotated, *others))
    pays = [(b < a).all() for a, b in pairwise([rotated, *others])]
    assert pays == [False, False, False, True]  # the last: q-k norm
    assert (start - rotated > 2 * np.abs(moves).max()).all()
    assert np.argmax(moves) == [*steps].index("no biases, two key-value heads") - 2

# %% [markdown] tags=["shared"]
# Of the others, the norm of queries and keys alone pays in bits here, with every seed.
# RMSNorm and missing biases buy simplicity, grouped queries memory; SwiGLU was ahead at
# 220 million parameters (Shazeer).

# %% [markdown] tags=["shared"]
# ## A cache that forgets the offset is silently wrong
#
# With a cache, token 40 arrives alone, and must be rotated as token 40. Suppose the
# code counts positions from the first token that it is given, so that it is rotated as
# token 0. All shapes fit. We give the trained model 40 tokens of 128 held-out texts,
# and then the next, as if it stood at position 0, or at 40:


# %% tags=["torch", "experiment"]
# Experiment: bits for token 41 of held-out texts, as if it stood at some position
@torch.no_grad()
def bits_at(model, position):
    rows = integers(held_out[:128, :42])  # b s
    first = integers(np.zeros(128))
    _, cache = forward(model, rows[:, :40], cache=empty_cache(model, first, 41))
    _, mask = placed(rows[:, 40:41], cache=cache)
    x, positions = model.embed(rows[:, 40:41]), integers([[position]])
    for block, kept in zip(model.blocks, cache["blocks"], strict=True):
        x, _ = block(x, positions, mask, kept, 40)
    logits = linear(model.norm(x), model.embed.weight)[:, 0]  # b c
    loss = nn.functional.cross_entropy(logits, rows[:, 41])
    return float(loss) / np.log(2), as_numpy(logits)


# %% tags=["shared", "say"]
with full_float32():
    model = models["the block of today"]
    whole = as_numpy(forward(model, integers(held_out[:128, :41])))[:, 40]
    (wrong, off), (right, fine) = bits_at(model, 0), bits_at(model, 40)
gaps = [np.abs(logits - whole).max() for logits in (off, fine)]
lines = [[0, f"{wrong:.2f}"], [40, f"{right:.2f}"]]
say(table(["rotated as at position", "bits for the next token"], *lines))
say(
    f"At position 0 the model needs {word('more', wrong, right)} bits, and nothing "
    "says so: no error, no warning. The test that finds it is one line: *the logits "
    f"with a cache equal those without*. Here they differ by up to {gaps[0]:.1f} at "
    f"position 0, and by {gaps[1]:.0e} at 40."
)

# %% tags=["shared", "check"]
# Checked: the loss, the logits; a cache in three parts, and padding on the left
assert wrong > right + 0.3  # seen: 0.8 and more
assert gaps[1] < 1e-3 < 0.5 < gaps[0]
model = build(ModernLM, seed=settings.seed, **today)
two = np.array([tokens["test"][:40], tokens["test"][60:100]])
first = integers([0, 17])
with full_float32():
    alone = as_numpy(forward(model, integers(two[1:, 17:])))
    padded = as_numpy(forward(model, integers(two), first=first))
    parts, cache = [], empty_cache(model, first, 40)
    for part in (slice(0, 30), slice(30, 31), slice(31, 40)):
        logits, cache = forward(model, integers(two[:, part]), cache=cache)
        parts.append(as_numpy(logits))
np.testing.assert_allclose(padded[1:, 17:], alone, atol=1e-4)
np.testing.assert_allclose(np.concatenate(parts, 1)[1, 17:], alone[0], atol=1e-4)
np.testing.assert_allclose(np.concatenate(parts, 1)[0], padded[0], atol=1e-4)

# %% [markdown] tags=["shared"]
# ## Somebody else's weights load by renaming
#
# A published checkpoint is a folder: `config.json` with the sizes, `tokenizer.json`,
# and `model.safetensors` with arrays by name, for large models in several files, the
# **shards**. If our code computes the same, loading is three steps: rename, compare all
# shapes, copy. The book ships four tiny models with random weights.

# %% tags=["shared"]
NAMES = {  # theirs: ours, in this order
    "transformer.": "", "model.": "", "embed_tokens.": "embed.", "layers.": "blocks.",
    "self_attn.o_proj": "attention.out", "self_attn.": "attention.",
    "input_layernorm": "norm1", "post_attention_layernorm": "norm2",
    "block_sparse_moe.": "ffn.", "mlp.": "ffn.", "ffn.gate.": "ffn.router.",
    "_proj.": ".", "w1.": "gate.", "w3.": "up.", "w2.": "down.", "lm_head.": "output.",
}  # fmt: skip

# %% [markdown] tags=["torch"]
# In `published`, `arguments_of` translates the configuration, `our_names` renames (in
# an extra). PyTorch's `Linear` keeps outputs × inputs, as most published arrays are;
# GPT-2's are inputs × outputs, and are transposed.


# %% tags=["torch"]
def load_pretrained(folder_or_name, dtype=torch.float32):
    """A ``ModernLM`` with published weights and its tokenizer; a folder or a name."""
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    model = build(ModernLM, **published.arguments_of(config)).to(dtype)
    tensors = checkpoints.read_tensors(folder, "pt")
    found = published.our_names(tensors, config, in_out=False)
    checkpoints.check_tensors(found, model.state_dict())
    tokenizer = checkpoints.read_tokenizer(folder, model.embed.num_embeddings)
    model.load_state_dict(found)
    return model.eval(), tokenizer


# %% tags=["shared", "say"]
lines, gaps = [], {}
for name in ("gpt2", "llama", "qwen3", "mixtral"):
    theirs = safetensors.numpy.load_file(
        checkpoints.TINY / name / "expected.safetensors"
    )
    each, _ = load_pretrained(checkpoints.TINY / name)
    with full_float32():
        ours = as_numpy(forward(each, integers(theirs["tokens"])))
    gaps[name] = np.abs(ours - theirs["logits"]).max() / np.abs(theirs["logits"]).max()
    lines.append([name, f"{count_parameters(each):,}", f"{gaps[name]:.0e}"])
say(
    table(
        [
            "architecture",
            "parameters",
            "difference to Hugging Face's, of the largest logit",
        ],
        *lines,
    )
)

# %% tags=["shared", "check"]
# Checked: the logits of Hugging Face's classes, stored beside each model, to 1e-5
assert max(gaps.values()) < 1e-5

# %% [markdown] tags=["shared"]
# Equality to rounding is the only test that counts: a swapped gate, a wrong pairing or
# another $\epsilon$ gives logits that look like logits. (How to compare a real model,
# an extra says.)
#
# `load_pretrained` reads `gpt2`, `llama` (without scaled rotation), `qwen3` and
# `mixtral`, and refuses all others, such as Gemma 3 and Llama 3.1. It computes in
# float32, or in the `dtype` that it is given; bfloat16 halves the memory, once loaded.
# Real models write until an end token, and are sampled, as in the chapter on the model
# that writes.
#
# The same cells load a real model. With internet, `make data
# MODEL=HuggingFaceTB/SmolLM2-135M` (or `openai-community/gpt2`, `Qwen/Qwen3-0.6B`)
# fetches it, and with the variable `MODEL` set so (in Colab, `os.environ["MODEL"]` in
# the first cell) the page uses it from here on. Without it, a tiny Llama with
# random weights writes nonsense.

# %% tags=["shared"]
model, tokenizer = load_pretrained(checkpoints.chosen("llama"))
prompt = "def add(a, b"
ids = tokenizer.encode(prompt).ids
new = as_numpy(generate_greedily(model, [ids], 20))[0]
print(f"{prompt}│{tokenizer.decode(new.tolist())}")

# %% [markdown] tags=["shared"]
# **Exercise 2, by formula.** Llama 3 8B has 32 blocks, 8 key–value heads of 128
# features, and computes in bfloat16. How large is the cache of one text of 8,192
# tokens? And with a key–value head for each of its 32 query heads?

# %% tags=["shared", "answer"]
sizes = [2 * 32 * g * 128 * 2 * 8192 / 2**30 for g in (8, 32)]
say(
    f"{sizes[0]:.0f} GiB, instead of {sizes[1]:.0f} GiB: two arrays, 32 blocks, 8 (or "
    "32) heads, 128 features, two bytes, 8,192 tokens. The weights take 15 GiB, so "
    "fifteen such texts fill as much memory as the model."
)
assert sizes == [1, 4]

# %% [markdown] tags=["shared"]
# **Exercise 3, find the line.** `our_names` reads `published.NAMES`. Somebody writes
# `published.NAMES |= {"w1.": "up.", "w3.": "gate."}` before a Mixtral is loaded. All
# shapes fit, nothing is missing. What does the model compute, and which of the tests on
# this page notices? Try it.

# %% tags=["shared", "answer"]
published.NAMES |= {"w1.": "up.", "w3.": "gate."}
folder = checkpoints.TINY / "mixtral"
each, _ = load_pretrained(folder)
published.NAMES |= NAMES  # as it was
theirs = safetensors.numpy.load_file(folder / "expected.safetensors")
ours = as_numpy(forward(each, integers(theirs["tokens"])))
gap = np.abs(ours - theirs["logits"]).max()
say(
    f"The gate is swapped with what it opens: $x W_\\text{{gate}} \\odot "
    f"\\mathrm{{silu}}(x W_\\text{{up}})$. The logits are off by up to {gap:.1f}. "
    "Shapes cannot tell, and a cache that agrees with no cache cannot. Only the "
    "comparison with their logits notices."
)
assert gap > 0.01

# %% [markdown] tags=["shared"]
# ## In your own code
#
# All cells of the model stand in one file, `helpers/jax/today.py` or
# `helpers/torch/today.py`; its first lines name the few helpers that go with it.
# `python scripts/train.py --task language --block today --data my.txt` trains the block
# on your text.

# %% [markdown] tags=["shared"]
# ## Extra: Where tokens stand, and greedy texts
#
# With a cache, new tokens stand after those that are kept. And in a batch, texts differ
# in length: for writing they are padded on the *left*, and row $b$ begins in column
# `first[b]`, which has position 0. `placed` turns both into positions and a mask.


# %% tags=["torch"]
def placed(tokens, first=None, cache=None):
    """Positions ``b n`` of new tokens, and the columns each sees: ``b 1 n s``."""
    count = partial(torch.arange, device=tokens.device)
    start, n = cache["start"] if cache else 0, tokens.shape[1]
    if first is None and cache is None:
        return count(n)[None], None
    first = (cache["first"] if cache else first)[:, None]  # b 1
    new, seen = start + count(n), count(start + n)  # n, s
    mask = (seen >= first[..., None]) & (seen <= new[:, None])  # b n s
    return (new - first).clamp(min=0), (mask | (seen == new[:, None]))[:, None]


# %% tags=["torch"]
def empty_cache(model, first, length):
    """Key-value cache for ``length`` columns; row ``b`` begins in ``first[b]``."""
    layer, weight = model.blocks[0].attention, model.embed.weight
    shape = len(first), layer.n_kv_heads, length, layer.d  # b g s d
    blocks = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in model.blocks]
    return {"start": 0, "first": first, "blocks": blocks}


# %% [markdown] tags=["torch"]
# Writing is a Python loop; the first pass fills the cache with the prompts.


# %% tags=["torch"]
@torch.no_grad()
def continue_greedily(model, tokens, first, length):
    """The prompts in one pass, then token by token: ``b length``."""
    cache, texts = empty_cache(model, first, tokens.shape[1] + length), []
    for _ in range(length):
        logits, cache = model(tokens, cache=cache)
        tokens = logits[:, -1:].argmax(dim=-1)  # b 1
        texts.append(tokens)
    return torch.cat(texts, dim=1)  # b length


# %% tags=["torch"]
def generate_greedily(model, prompts, length):
    """Continue texts, each with the most probable token: ``b length``."""
    rows = check_prompts(model, prompts, length)
    device, longest = model.embed.weight.device, max(map(len, rows))
    first = torch.tensor([longest - len(row) for row in rows], device=device)  # b
    tokens = [[0] * (longest - len(row)) + row for row in rows]
    tokens = torch.tensor(tokens, device=device)  # b s
    return continue_greedily(model, tokens, first, length)


# %% tags=["shared", "check"]
# Checked: padded or alone, the greedy text is the same; positions and masks by hand
prompts = [[5, 17, 2], [7, 3, 11, 13, 1, 2, 19]]
for kind in kinds:
    with full_float32():
        one = build(ModernLM, seed=3, **small, **kind)
        both, alone = (generate_greedily(one, prompts[:n], 9) for n in (2, 1))
    np.testing.assert_array_equal(as_numpy(both)[:1], as_numpy(alone))
positions, seen = placed(integers(np.zeros((2, 3))), integers([0, 2]))
np.testing.assert_array_equal(as_numpy(positions), [[0, 1, 2], [0, 0, 0]])
np.testing.assert_array_equal(as_numpy(seen)[:, 0], [np.tri(3), np.eye(3)])
held = empty_cache(one, integers([0, 2]), 5)["blocks"]
assert len(held) == 2 and held[1][0].shape == (2, 4, 5, 6)  # b g s d

# %% [markdown] tags=["shared"]
# ## Extra: GPT-2's parts, and the names in `transformers`
#
# Small parts of both blocks: sizes, heads, the norm, a linear layer; and GPT-2's
# feed-forward net with two matrices and biases, and the tables of embeddings.


# %% tags=["torch"]
def part_size(m, n_parts):
    """Size of each of ``n_parts`` equal parts of ``m`` features or heads."""
    if n_parts < 1 or m % n_parts:
        raise ValueError(f"{m} does not split into {n_parts} equal parts")
    return m // n_parts


def split_heads(x, d):
    """Heads of ``d`` features each: ``b s hd -> b h s d``."""
    return x.unflatten(-1, (-1, d)).transpose(1, 2)


# %% tags=["torch"]
def make_norm(m, norm="rms", eps=1e-6):
    """Layer that normalises ``m`` features: RMSNorm, or LayerNorm as in GPT-2."""
    return {"rms": nn.RMSNorm, "layer": nn.LayerNorm}[norm](m, eps=eps)


def projection(n_in, n_out, bias=False):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in."""
    layer = nn.Linear(n_in, n_out, bias=bias)  # PyTorch draws its weights like that
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


# %% tags=["torch"]
class MLP(nn.Module):
    """Feed-forward net of GPT-2, with biases: ``... m -> ... m``."""

    def __init__(self, m, f):
        super().__init__()
        self.up, self.down = projection(m, f, bias=True), projection(f, m, bias=True)

    def forward(self, x):
        return self.down(gelu(self.up(x), approximate="tanh"))


def embedding_table(n, m, std):
    """Embedding ``n m`` with normal entries."""
    table = nn.Embedding(n, m)
    nn.init.normal_(table.weight, std=std)
    return table


# %% [markdown] tags=["shared"]
# GPT-2 has queries, keys and values in one array, which is cut apart. `TABLES` are
# arrays in old files that are not learned.

# %% tags=["shared"]
NAMES_OF_GPT2 = {
    "transformer.": "", "wte.": "embed.", "wpe.": "positions.", "h.": "blocks.",
    "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out", "ln_1": "norm1",
    "ln_2": "norm2", "ln_f": "norm", "mlp.c_fc": "ffn.up", "mlp.c_proj": "ffn.down",
    "lm_head.": "output.",
}  # fmt: skip
TABLES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # not learned


# %% tags=["shared"]
def our_names(tensors, config, in_out):
    """Published weights under our names; matrices inputs × outputs if ``in_out``."""
    gpt2, found = config["model_type"] == "gpt2", {}
    kept = {name: x for name, x in tensors.items() if not name.endswith(TABLES)}
    for name, x in kept.items():
        for old, new in (NAMES_OF_GPT2 if gpt2 else NAMES).items():
            name = name.replace(old, new)
        if "qkv" in name:
            size = x.shape[-1] // 3
            for n, part in enumerate("qkv"):
                found[name.replace("qkv", part)] = x[..., n * size : (n + 1) * size]
        else:
            found[name] = x
    if config.get("tie_word_embeddings", gpt2):
        found.pop("output.weight", None)  # a copy of the embedding, if there is one
    for name, x in found.items():
        stored = gpt2 and name != "output.weight"  # as inputs × outputs
        linear = x.ndim == 2 and not name.startswith(("embed.", "positions."))
        found[name] = x.T if linear and stored != in_out else x
    return found


# %% tags=["shared", "check"]
# Checked: norm, net and tables of GPT-2 by formula; each of its arrays has a name
z = rng.normal(size=(5, 6)).astype(np.float32)
assert part_size(12, 3) == 4
assert split_heads(floats(z[None]), 2).shape == (1, 3, 5, 2)  # b s hd -> b h s d
normed = as_numpy(build(make_norm, 6, "layer")(floats(z)))
np.testing.assert_allclose(normed.mean(axis=-1), 0, atol=1e-5)
words = to_arrays(build(embedding_table, 500, 8, 0.02, seed=0))["weight"]
assert words.shape == (500, 8) and abs(words.std() - 0.02) < 0.002  # loose: random
net = build(MLP, 6, 24, seed=0)
arrays = to_arrays(net)
inner = z @ arrays["up.weight"] + arrays["up.bias"]
inner = inner / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
wanted = inner @ arrays["down.weight"] + arrays["down.bias"]
with full_float32():
    found = as_numpy(net(floats(z)))
np.testing.assert_allclose(found, wanted, atol=1e-5)
gpt2, _ = load_pretrained(checkpoints.TINY / "gpt2")
found = checkpoints.read_tensors(checkpoints.TINY / "gpt2", "numpy")
named = our_names(found, {"model_type": "gpt2"}, in_out=True)
assert {*named} == {*to_arrays(gpt2)}

# %% [markdown] tags=["shared"]
# The same in the code of `transformers`, and a comparison with it, in PyTorch:
#
# | here | `transformers` |
# |---|---|
# | `rotary_halves` | `apply_rotary_pos_emb` with `rotate_half` |
# | `fused` | `repeat_kv`, and `sdpa_attention_forward` |
# | `positions` | `position_ids` |
# | `cache` | `past_key_values`, a `DynamicCache` |
# | `first` | `attention_mask`, 0 at the padding |
#
# ```python
# from transformers import AutoModelForCausalLM
#
# theirs = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
# logits = theirs(torch.tensor([ids])).logits  # b s c: ours, within `full_float32()`
# ```

# %% [markdown] tags=["shared"]
# ## Extra: The attention of the loaded model
#
# Choose a block, a head and a token. With a tiny model, weights are random.


# %% tags=["torch", "experiment"]
# Experiment: attention maps, block by block
def maps_of(model, tokens):
    """Attention maps of every block: ``b s -> l b h s s``."""
    positions, _ = placed(tokens)
    x, maps = model.embed(tokens), []
    x = x + model.positions(positions) if model.positions else x
    for block in model.blocks:
        q, k, v = block.attention.project(block.norm1(x), positions)
        n = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(n, dim=1) for part in (k, v))
        maps.append(as_numpy(attention(q, k, v, is_causal=True)[1]))
        x, _ = block(x, positions)
    return np.stack(maps)


maps = maps_of(model, integers([ids]))

# %% tags=["shared", "figure"]
shown = [tokenizer.decode([i]).replace(" ", "␣") or "␣" for i in ids]
viewer.attention(
    maps[:, 0], shown, query=len(ids) - 1,
    about="Attention maps of a published model: rows are the tokens that look",
)  # fmt: skip

# %% tags=["shared", "check"]
# Checked: rows sum to one and see nothing that comes later
np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-4)
assert (np.triu(np.ones(maps.shape[-2:]), 1) * maps == 0).all()

# %% [markdown] tags=["shared"]
# ## Extra: A mixture of experts adds parameters, not work
#
# A **mixture of experts** ([Shazeer et al. 2017](https://arxiv.org/abs/1701.06538);
# Mixtral, [Jiang et al. 2024](https://arxiv.org/abs/2401.04088)) has several
# feed-forward nets. A linear layer, the **router**, gives each token a probability of
# each expert; the two most probable ones compute, and their outputs are added, weighted
# by these probabilities, rescaled to sum to one. So a token passes through 2 experts,
# while Mixtral has 8.

# %% mystnb={"image": {"alt": "One token goes into the router, which chooses two of four experts. Experts 1 and 3 compute, and their outputs, times 0.7 and times 0.3, are added; experts 0 and 2 are idle."}} tags=["shared", "figure"]
drawing("experts")

# %% [markdown] tags=["torch"]
# Eager code can pick the tokens of each expert, and computes only what was chosen.


# %% tags=["torch"]
class MixtureOfExperts(nn.Module):
    """Each token uses the ``n_active`` best of ``n_experts``: ``... m -> ... m``."""

    def __init__(self, m, f, n_experts, n_active):
        super().__init__()
        if not 1 <= n_active <= n_experts:
            raise ValueError(f"{n_active} of {n_experts} experts cannot be active")
        self.n_active = n_active
        self.router = projection(m, n_experts)
        self.experts = nn.ModuleList([SwiGLU(m, f) for _ in range(n_experts)])

    def route(self, x):
        p = self.router(x).float().softmax(dim=-1)  # ... e
        weights, chosen = p.topk(self.n_active, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), chosen, p

    def forward(self, x):
        weights, chosen, _ = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            *rows, slot = torch.where(chosen == e)  # the tokens that chose it
            share = weights[(*rows, slot)][:, None].to(x.dtype)
            out[tuple(rows)] += share * expert(x[tuple(rows)])
        return out


# %% [markdown] tags=["shared"]
# An expert that is chosen learns, so it gets better, so it is chosen again: the others
# idle. The **balancing loss** ([Fedus et al. 2021](https://arxiv.org/abs/2101.03961))
# multiplies, for each of $n$ experts, the share of choices that it got and its mean
# probability, and is $n$ times the sum: $n \sum_e \text{share}_e\, \overline{p}_e$. It
# is 1 when all get the same. The shares have no gradient; through the probabilities, it
# pushes down those of busy experts.


# %% tags=["torch"]
def balancing_loss(moe, x):
    """Share of the choices times mean probability, summed: ``b m`` to a number."""
    _, chosen, p = moe.route(x)
    share = nn.functional.one_hot(chosen, p.shape[-1]).float().mean(dim=(0, 1))  # e
    return p.shape[-1] * (share * p.mean(dim=0)).sum()


# %% [markdown] tags=["shared"]
# We train one mixture alone, to compute the sine of its inputs, without this loss and
# with 0.1 of it added. As in a real model, all inputs share a direction.


# %% tags=["torch", "experiment"]
# Experiment: how a mixture of experts is trained alone
def trained_mixture(moe, x, y, weight):
    """The mixture after one update with each batch: ``n b m``."""
    optimizer = torch.optim.Adam(moe.parameters(), lr=3e-3)
    for inputs, labels in zip(x, y, strict=True):
        loss = (moe(inputs) - labels).square().mean()
        loss = loss + weight * balancing_loss(moe, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return moe


# %% tags=["shared", "experiment"]
# Experiment: the load of each expert, with and without the balancing loss, five seeds
loads = {0.0: [], 0.1: []}
for weight, seed in product(loads, range(5)):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(158, 256, 16)) + 2 * draw.normal(size=16)  # n b m
    x, y = floats(x), floats(np.sin(2 * np.roll(x, 1, axis=-1)))
    moe = build(MixtureOfExperts, 16, 24, 4, 2, seed=seed)
    moe = trained_mixture(moe, x[:150], y[:150], weight)
    chosen = as_numpy(moe.route(x[150:])[1])
    shares = np.bincount(chosen.ravel(), minlength=4) / chosen.size
    loads[weight].append(np.sort(shares)[::-1])  # the busiest first

# %% tags=["shared", "say"]
lines = [
    ["with" if weight else "without", *(f"{share:.0%}" for share in np.mean(found, 0))]
    for weight, found in loads.items()
]
say(
    table(["balancing loss", "busiest expert", "second", "third", "least busy"], *lines)
)
idle, busy = (np.mean(found, axis=0)[-1] for found in loads.values())
say(
    f"Means of five seeds. Without the loss, the least busy expert gets {idle:.0%} of "
    f"the choices; with it, {word('more', busy, idle)}: {busy:.0%}, and 25 % is even."
)

# %% tags=["shared", "check"]
# Checked: more even with the loss; 1 when all are equal; active and all parameters
even, uneven = (np.array(loads[weight]) for weight in (0.1, 0.0))
assert even[:, -1].mean() > uneven[:, -1].mean() + 0.05
moe = build(MixtureOfExperts, 6, 16, 4, 2, seed=0)
one = count_parameters(build(SwiGLU, 6, 16))
assert count_parameters(moe) == 4 * one + 6 * 4
x = rng.normal(size=(50, 6)).astype(np.float32)
with full_float32():
    weights, chosen, p = (as_numpy(part) for part in moe.route(floats(x)))
    outs = np.stack([as_numpy(expert(floats(x))) for expert in moe.experts])  # e b m
    found = as_numpy(moe(floats(x)))
kept = np.take_along_axis(p, chosen, axis=-1)
np.testing.assert_allclose(weights, kept / kept.sum(-1, keepdims=True), rtol=1e-5)
picked = outs[chosen, np.arange(50)[:, None]]  # b 2 m
wanted = (weights[..., None] * picked).sum(axis=1)
np.testing.assert_allclose(found, wanted, atol=1e-5)
from_arrays(moe, to_arrays(moe) | {"router.weight": np.zeros((6, 4))})
equal = as_numpy(balancing_loss(moe, floats(x)))
np.testing.assert_allclose(equal, 1, rtol=1e-5)

# %% [markdown] tags=["shared"]
# ## Extra: What else is different
#
# * **Windows.** In five blocks of six, Gemma 3 lets a token see only the last 1,024, so
#   most of its cache stops growing. Mistral 7B has windows of 4,096 in all blocks
#   ([Jiang et al. 2023](https://arxiv.org/abs/2310.06825)).
# * **Training.** AdamW with $\beta_2 = 0.95$; a warm-up, a long constant rate, and a
#   short decay ([Hu et al. 2024](https://arxiv.org/abs/2404.06395)); for matrices also
#   Muon ([Jordan et al. 2024](https://kellerjordan.github.io/posts/muon/)), whose steps
#   have equal size in all directions.
# * **Longer contexts.** Llama 3.1 and later stretch the slow pairs of the rotation.

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Two parts of the block of today. `check` tries each on random arrays, and says whether
# it is right, or what is wrong.


# %% tags=["shared", "your-turn"]
def my_rotary_offset(x, positions, base):
    """Rotate feature i together with i + d/2: ``b h s d, b s -> b h s d``.

    Pair i of a token at position p turns by ``p / base ** (2 i / d)``. Each row of the
    batch has positions of its own, and they need not begin at 0.
    """
    ...


check("today.rotary_offset", my_rotary_offset)


# %% tags=["shared", "your-turn"]
def my_grouped(q, k, v):
    """Attention without a mask: ``b h s d, b g k d, b g k d -> b h s d``.

    Neighbouring query heads share a key–value head: with 4 query heads and 2 key–value
    heads, query heads 0 and 1 look through keys 0, and 2 and 3 through keys 1.
    """
    ...


check("today.grouped", my_grouped)


# %% tags=["torch", "answer"]
def my_rotary_offset(x, positions, base):
    half = x.shape[-1] // 2
    speeds = base ** (-torch.arange(half, device=x.device) / half)  # d/2
    angle = positions[:, None, :, None] * speeds  # b 1 s d/2
    first, second = x.chunk(2, dim=-1)  # b h s d/2
    cos, sin = angle.cos(), angle.sin()
    turned = first * cos - second * sin, first * sin + second * cos
    return torch.cat(turned, dim=-1)


def my_grouped(q, k, v):
    n = q.shape[1] // k.shape[1]  # query heads in a group
    k, v = (each.repeat_interleave(n, dim=1) for each in (k, v))  # b h k d
    return attention(q, k, v)[0]


assert check("today.rotary_offset", my_rotary_offset)
assert check("today.grouped", my_grouped)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** A model has 32 query heads and 8 key–value heads. How does it compare with one
# that has 8 of each, with the same size of a head?
#
# <details><summary>Its cache is equally large.</summary>
#
# **Right.** Only keys and values are kept, and both have 8 heads of them. The query
# heads cost parameters and products, but no cache.
#
# </details>
# <details><summary>Its cache is four times as large.</summary>
#
# **No.** True if each query head had its own keys and values. Four query heads share
# them here.
#
# </details>
# <details><summary>It computes the same, because four heads look alike.</summary>
#
# **No.** They look through the same keys, but each with its own query, so they can look
# at four different places.
#
# </details>
#
# **2.** You load a checkpoint that pairs feature $i$ with $i + d/2$ into code that
# pairs neighbours. What happens?
#
# <details><summary>Nothing: which features form a pair is only a name.</summary>
#
# **No.** True before training. But the weights of queries and keys were learned for
# these pairs and their speeds. (Permuting their rows would mend it.)
#
# </details>
# <details><summary>An error, because the shapes differ.</summary>
#
# **No.** All shapes are equal, and this is what makes it hard to find.
#
# </details>
# <details><summary>From the second token on, the logits are wrong.</summary>
#
# **Right.** At position 0 nothing is rotated, so the first token is right. From then on
# each pair is turned by the angle of another.
#
# </details>
#
# **3.** Of a model's $f$, you know $f = 8m/3$. What do you guess about its feed-forward
# net?
#
# <details><summary>It is smaller than the usual one, to save parameters.</summary>
#
# **No.** Tempting, since $4m$ was usual. But with three matrices in place of two, the
# number of parameters is the same.
#
# </details>
# <details><summary>It is gated, with three matrices.</summary>
#
# **Right.** $3 \cdot m \cdot \frac83 m = 8m^2 = 2 \cdot m \cdot 4m$.
#
# </details>
# <details><summary>It has three layers, one after the other.</summary>
#
# **No.** Three matrices, but two of them side by side: gate and up get the same input.
#
# </details>
#
# **4.** Mixtral has 47 billion parameters, and uses 13 billion for a token. What does
# it save, compared with a dense model of 47 billion?
#
# <details><summary>Memory for the weights.</summary>
#
# **No.** The next token may choose any other expert, so all weights have to be there.
#
# </details>
# <details><summary>Products.</summary>
#
# **Right.** In training and in writing. A token passes through two experts of eight.
# Attention and embedding are computed in full, hence 13 and not a quarter of 47.
#
# </details>
# <details><summary>Memory for the cache.</summary>
#
# **No.** The cache belongs to the attention, which has no experts.
#
# </details>
#
# **5.** Cache and no cache give equal logits. What may still be wrong with a loaded
# model?
#
# <details><summary>Nothing: the test compares all logits.</summary>
#
# **No.** It compares your code with itself. What is wrong in both ways stays unseen.
#
# </details>
# <details><summary>The offset of the rotation.</summary>
#
# **No.** This is what the test finds: without a cache, positions count from the first
# token; with one they must go on.
#
# </details>
# <details><summary>A swapped gate.</summary>
#
# **Right.** Or another ε, or the wrong pairs. Both ways compute with the same mistake.
# Only numbers from elsewhere can tell: the logits of the code that the weights were
# trained with.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * The order of parts is that of 2019. RMSNorm, rotary positions, SwiGLU, grouped
#   queries and experts change what each part computes.
# * In our small model rotary positions bring the whole gain. Grouped queries shrink the
#   cache, and experts add parameters.
# * A cache must know at which position it continues. Test it: equal logits with and
#   without.
# * Published weights load by renaming, once your code computes the same. Compare logits
#   with theirs; shapes prove nothing.

# %% [markdown] tags=["torch"]
# Next comes [start from a trained model, in PyTorch](finetune_torch.ipynb):
# pretraining, and a task learned from few labels.
