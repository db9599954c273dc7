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

# %% [markdown] tags=["jax"]
# This page uses **JAX** with Flax NNX. The same page in PyTorch:
# [today_torch](today_torch.ipynb). Before it comes [a model that reads and writes, in
# JAX](translation_jax.ipynb).

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

from helpers import Settings, as_numpy, check, count_parameters, to_arrays, weights
from helpers.data import byte_pairs, checkpoints, checks, sequences, text
from helpers.jax import evaluate, fit, merge_heads, next_token, split_heads, tensor
from helpers.jax.attention import UNIFORM, attention, check_causal
from helpers.jax.decoder import advance, check_tokens, generate, new_cache
from helpers.show import drawing, plots, recorded, say, table, viewer

plots.use_style()
framework = "jax"
# All digits of float32: JAX's default on recent GPUs is TF32, with 11 significant bits.
jax.config.update("jax_default_matmul_precision", "highest")

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


# %% tags=["jax"]
def rms_norm(x, scale, eps=1e-6):
    """Divide by the root of the mean square of the features: ``... m -> ... m``."""
    wide = x.astype(jnp.float32)  # squares in 16 bits lose digits
    mean_square = (wide * wide).mean(axis=-1, keepdims=True)
    return (wide / jnp.sqrt(mean_square + eps)).astype(x.dtype) * scale


# %% tags=["shared"]
x = tensor([1.0, 5.0, 7.0])  # the mean square is (1 + 25 + 49) / 3 = 25, its root 5
print(as_numpy(rms_norm(x, 1.0)).round(3))

# %% [markdown] tags=["shared"]
# What is gained? No mean to compute, and half of the parameters of a norm, with similar
# results in the paper. As before, only the direction of a vector counts,
# not its size. The model takes the framework's own layer:


# %% tags=["jax", "export"]
def make_norm(m, norm="rms", eps=1e-6, *, rngs):
    """Layer that normalises ``m`` features: RMSNorm, or LayerNorm as in GPT-2."""
    kind = {"rms": nnx.RMSNorm, "layer": nnx.LayerNorm}[norm]
    return kind(m, epsilon=eps, use_fast_variance=False, rngs=rngs)


# %% tags=["shared", "check"]
# Checked: three numbers by hand, and the size of a vector is lost
for times in (1, 1000):
    normed = as_numpy(rms_norm(times * x, 1.0))
    np.testing.assert_allclose(normed, [0.2, 1, 1.4], rtol=1e-6)

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


# %% tags=["jax", "export"]
def rotation(positions, d, base=10000.0):
    """Sine and cosine of each angle: ``b s -> b 1 s d/2``, twice."""
    half = checks.part_size(d, 2)
    steps = jnp.arange(half, dtype=jnp.float32) / half
    angle = positions[:, None, :, None] * base**-steps  # b 1 s d/2, in float32
    return jnp.sin(angle), jnp.cos(angle)


# %% tags=["jax", "export"]
def rotary_halves(x, sin, cos):
    """Rotate feature i together with i + d/2, by their angle: ``b h s d -> b h s d``.

    Source: Su et al. 2021, sec. 3.4.2; pairs as in Llama.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)  # b h s d/2
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)  # b h s d


# %% tags=["shared"]
rng = np.random.default_rng(0)
q = tensor(rng.normal(size=(1, 1, 1, 8)))  # b h s d
k = tensor(rng.normal(size=(1, 1, 1, 8)))


def dot(i, j):
    """Product of the query at position i with the key at position j."""
    turned_q = rotary_halves(q, *rotation(tensor([[i]]), 8))
    turned_k = rotary_halves(k, *rotation(tensor([[j]]), 8))
    return float((turned_q * turned_k).sum())


pairs = [(7, 4), (1007, 1004), (7, 5)]
dots = [dot(i, j) for i, j in pairs]

# %% tags=["shared", "say"]
lines = [(i, j, i - j, f"{x:.4f}") for (i, j), x in zip(pairs, dots, strict=True)]
say(table(["position of q", "position of k", "distance", "dot product"], *lines))

# %% [markdown] tags=["shared"]
# The angles are computed in float32, whatever the model computes in. A bfloat16 has
# eight significant bits: position 1,001 would be rounded to 1,000, and its fastest
# pair be off by a radian. Their sine and cosine are the same for queries and keys, in
# every block: computed once, they serve the whole model.

# %% tags=["shared", "check"]
# Checked: only the distance counts, and lengths stay
assert abs(dots[0] - dots[1]) < 1e-3 < abs(dots[0] - dots[2])
turned = rotary_halves(q, *rotation(tensor([[5]]), 8))
lengths = [np.linalg.norm(as_numpy(x)) for x in (q, turned)]
np.testing.assert_allclose(*lengths, rtol=1e-5)

# %% [markdown] tags=["shared"]
# ## SwiGLU multiplies two projections
#
# The old net has one nonlinearity between two matrices. Its biases, and nearly all
# others, have gone as well: they are few, and most models drop them.


# %% tags=["jax", "export"]
def projection(n_in, n_out, bias=False, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases."""
    return nnx.Linear(n_in, n_out, use_bias=bias, kernel_init=UNIFORM, rngs=rngs)


class MLP(nnx.Module):
    """Feed-forward net of GPT-2, with biases: ``... m -> ... m``."""

    def __init__(self, m, f, *, rngs):
        self.up = projection(m, f, bias=True, rngs=rngs)
        self.down = projection(f, m, bias=True, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x), approximate=True))  # by tanh


# %% [markdown] tags=["shared"]
# **SwiGLU** ([Shazeer 2020](https://arxiv.org/abs/2002.05202)) has a third matrix: one
# projection, after $\mathrm{silu}(z) = z / (1 + e^{-z})$, is the *gate* that multiplies
# the other, feature by feature:
#
# $$\mathrm{SwiGLU}(x) = \bigl(\mathrm{silu}(x W_\text{gate}) \odot x W_\text{up}\bigr)
# W_\text{down}.$$
#
# At −2, 0 and 3, silu gives −0.24, 0 and 2.86: nearly shut, shut, open. Since
# $3mf$ parameters should be as many as the $8m^2$ of before, Shazeer takes $f = \frac83
# m$ in place of $4m$; the models in the table spend more. Why it helps? Shazeer: "We
# offer no explanation".


# %% tags=["jax", "export"]
class SwiGLU(nnx.Module):
    """Gated feed-forward net (Shazeer 2020, eq. 6): ``... m -> ... m``."""

    def __init__(self, m, f, *, rngs):
        self.gate, self.up = projection(m, f, rngs=rngs), projection(m, f, rngs=rngs)
        self.down = projection(f, m, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


# %% [markdown] tags=["shared"]
# **Exercise 1, equal parameters.** The model that writes has $m = 96$ and $f = 384$.
# Which $f$ gives a `SwiGLU` as many parameters, biases aside? Count them with
# `count_parameters`.

# %% tags=["jax", "answer"]
f = 2 * 384 // 3
gated = count_parameters(SwiGLU(96, f, rngs=nnx.Rngs(0)))
plain = count_parameters(MLP(96, 384, rngs=nnx.Rngs(0))) - 384 - 96  # biases aside
say(f"{f:,}: {gated:,} parameters in three matrices, instead of {plain:,} in two.")
assert gated == plain

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

# %% [markdown] tags=["jax"]
# `jax.nn.dot_product_attention` takes fewer heads of keys and values as they are. The
# shape of the cache must not change between steps, so it has all its columns from the
# beginning, and a mask hides those that are still empty. Beyond its end, JAX writes
# over the last columns: what does not fit becomes NaN.


# %% tags=["jax", "export"]
def fused(q, k, v, mask=None):
    """Attention whose query heads share keys: ``b h q d, b g k d, b g k d -> b h q d``.

    Without a mask it is causal; a mask ``b 1 q k`` is True where a query may look.
    """
    checks.part_size(q.shape[1], k.shape[1])  # JAX's function takes the fewer heads
    if mask is None:
        check_causal(q, k)
    # cuDNN's kernel wants half precision, even lengths and a recent GPU of NVIDIA
    half = q.dtype in (jnp.bfloat16, jnp.float16) and q.shape[3] in range(8, 129, 8)
    even = q.shape[2] % 2 == k.shape[2] % 2 == 0
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    ampere = capability[:1].isdigit() and float(capability) >= 8  # AMD's: "gfx942"
    kernel, dtype = "cudnn" if half and even and ampere else "xla", q.dtype
    q, k, v = [x.swapaxes(1, 2) for x in (q, k, v)]  # b s h d
    if jax.default_backend() == "cpu":  # where XLA lacks some products of halves
        q, k, v = [x.astype(jnp.float32) for x in (q, k, v)]
    options = {"mask": mask, "is_causal": mask is None, "implementation": kernel}
    out = jax.nn.dot_product_attention(q, k, v, **options)
    return out.swapaxes(1, 2).astype(dtype)


# %% tags=["jax", "export"]
def keep(cache, k, v, start):
    """All keys and values so far, ``b g s d``, and the cache with the new ones."""
    write = jax.lax.dynamic_update_slice_in_dim
    k = jnp.where(start + k.shape[2] <= cache[0].shape[2], k, jnp.nan)  # does it fit?
    cache = (write(cache[0], k, start, axis=2), write(cache[1], v, start, axis=2))
    return cache, cache  # of full length: the mask hides what is not yet written


# %% [markdown] tags=["shared"]
# With these, the attention of today is a class of thirty lines. The norm of queries and
# keys (`qk_norm`: Qwen3, Gemma 3) bounds their dot products, which otherwise grow in
# long trainings of large models until the softmax saturates ([Dehghani et al.
# 2023](https://arxiv.org/abs/2302.05442)). Without a `base`, nothing is rotated: GPT-2.


# %% tags=["jax", "export"]
def project(layer, x, turn=None):
    """Queries ``b h s d``, keys and values ``b g s d``, normed and rotated."""
    q, k, v = [split_heads(part(x), layer.d) for part in (layer.q, layer.k, layer.v)]
    if layer.q_norm:
        q, k = layer.q_norm(q), layer.k_norm(k)
    if turn:  # sine and cosine of the angles
        q, k = rotary_halves(q, *turn), rotary_halves(k, *turn)
    return q, k, v


# %% tags=["jax", "export"]
class GroupedAttention(nnx.Module):
    """Causal attention whose query heads share keys and values: ``b s m -> b s m``."""

    def __init__(
        self,
        m,
        n_heads,
        n_kv_heads=None,
        d=None,
        bias=False,
        qk_norm=False,
        base=10000.0,
        eps=1e-6,
        *,
        rngs,
    ):
        self.n_kv_heads, self.base = n_kv_heads or n_heads, base
        self.d = d or checks.part_size(m, n_heads)
        n_q, n_kv = n_heads * self.d, self.n_kv_heads * self.d
        self.q = projection(m, n_q, bias, rngs=rngs)
        self.k = projection(m, n_kv, bias, rngs=rngs)
        self.v = projection(m, n_kv, bias, rngs=rngs)
        self.out = projection(n_q, m, bias, rngs=rngs)
        self.q_norm = make_norm(self.d, eps=eps, rngs=rngs) if qk_norm else None
        self.k_norm = make_norm(self.d, eps=eps, rngs=rngs) if qk_norm else None

    def __call__(self, x, turn=None, mask=None, cache=None, start=0):
        q, k, v = project(self, x, turn)
        if cache is not None:
            (k, v), cache = keep(cache, k, v, start)
        return self.out(merge_heads(fused(q, k, v, mask))), cache


# %% tags=["shared", "check"]
# Checked: with repeated keys and values, it is the attention of the first chapter
q, k, v = [rng.normal(size=(2, n, 7, 4)) for n in (6, 2, 2)]  # b h s d, b g s d
found = fused(tensor(q), tensor(k), tensor(v))
repeated = [tensor(np.repeat(part, 3, axis=1)) for part in (k, v)]
wanted, _ = attention(tensor(q), *repeated, is_causal=True)
np.testing.assert_allclose(as_numpy(found), as_numpy(wanted), atol=1e-5)

# %% [markdown] tags=["shared"]
# ## The whole model
#
# A block, and a stack of blocks, with options for GPT-2. Its net may also be a *mixture
# of experts*: a router sends each token through a few of several nets. An extra below
# explains and trains it.

# %% [markdown] tags=["jax"]
# Compiled code has fixed shapes: here every expert computes all tokens. What saves is
# `jax.lax.ragged_dot`, on tokens sorted by expert.


# %% tags=["jax", "export"]
class MixtureOfExperts(nnx.Module):
    """The best ``n_active`` of ``n_experts`` (Jiang et al. 2024): ``… m -> … m``."""

    def __init__(self, m, f, n_experts, n_active, *, rngs):
        if not 1 <= n_active <= n_experts:
            raise ValueError(f"{n_active} of {n_experts} experts cannot be active")
        self.n_active = n_active
        self.router = projection(m, n_experts, rngs=rngs)
        self.experts = nnx.data([SwiGLU(m, f, rngs=rngs) for _ in range(n_experts)])

    def route(self, x):
        """Weights and numbers of the chosen experts; all probabilities ``... e``."""
        p = jax.nn.softmax(self.router(x).astype(jnp.float32), axis=-1)  # ... e
        weights, chosen = jax.lax.top_k(p, self.n_active)
        return weights / weights.sum(axis=-1, keepdims=True), chosen, p

    def __call__(self, x):
        weights, chosen, _ = self.route(x)
        out = jnp.zeros_like(x)
        for e, expert in enumerate(self.experts):  # each computes all tokens
            share = jnp.where(chosen == e, weights, 0).sum(axis=-1, keepdims=True)
            out += share.astype(x.dtype) * expert(x)
        return out


# %% tags=["jax", "export"]
class ModernBlock(nnx.Module):
    """Attention, then a feed-forward net, each after a norm: ``b s m -> b s m``."""

    def __init__(
        self,
        m,
        f,
        norm="rms",
        eps=1e-6,
        ffn="swiglu",
        n_experts=4,
        n_active=2,
        *,
        rngs,
        **options,
    ):
        self.norm1 = make_norm(m, norm, eps, rngs=rngs)
        self.norm2 = make_norm(m, norm, eps, rngs=rngs)
        self.attention = GroupedAttention(m, eps=eps, rngs=rngs, **options)
        kind = {"swiglu": SwiGLU, "mlp": MLP, "experts": MixtureOfExperts}[ffn]
        experts = (n_experts, n_active) if ffn == "experts" else ()
        self.ffn = kind(m, f, *experts, rngs=rngs)

    def __call__(self, x, turn=None, mask=None, cache=None, start=0):
        values, cache = self.attention(self.norm1(x), turn, mask, cache, start)
        x = x + values
        return x + self.ffn(self.norm2(x)), cache


# %% [markdown] tags=["shared"]
# With a cache, new tokens stand after those that are kept. And in a batch, texts differ
# in length: for writing they are padded on the *left*, and row $b$ begins in column
# `first[b]`, which has position 0. `placed` turns both into positions and a mask.


# %% tags=["jax", "export"]
def placed(tokens, first=None, cache=None):
    """Positions ``b n`` of new tokens ``b n``, and the columns each sees: ``b 1 n s``.

    Row ``b`` begins in column ``first[b]``; padding before it sees itself alone. The
    mask is None, for the causal one, without padding and cache.
    """
    start, n = cache["start"] if cache else 0, tokens.shape[1]
    new = start + jnp.arange(n)  # n
    if first is None and cache is None:
        return new[None], None
    if cache:
        checks.check_room(cache, n)
    first = (cache["first"] if cache else first)[:, None]  # b 1
    length = cache["blocks"][0][0].shape[2] if cache else n  # also the empty ones
    seen = jnp.arange(length)  # s
    mask = (seen >= first[..., None]) & (seen <= new[:, None])  # b n s
    mask = mask | (seen == new[:, None])
    return jnp.maximum(new - first, 0), mask[:, None]


# %% tags=["jax", "export"]
STANDARD = nnx.initializers.normal(1.0)  # one object: equal models share programs


def lookup(n, m, std, *, rngs):
    """Embedding ``n m`` with normal entries."""
    table = nnx.Embed(n, m, embedding_init=STANDARD, rngs=rngs)
    table.embedding[...] *= std
    table.dtype = None  # that of its weights, whatever is loaded into it
    return table


def embedded(model, tokens, positions):
    """Vectors of tokens, with learned positions if the model has them: ``b n m``."""
    x = model.embed(jnp.maximum(tokens, 0))  # padding, -1, has no row
    return x + model.positions(positions) if model.positions else x


def logits_of(model, x):
    """Logits of what comes out of the last block: ``b n m -> b n c``."""
    x = model.norm(x)
    return model.output(x) if model.output else model.embed.attend(x)  # or tied


# %% tags=["jax", "export"]
def run_blocks(blocks, x, positions, mask=None, cache=None):
    """The blocks, ``b n m -> b n m``, and the cache with the keys of new tokens."""
    layer = blocks[0].attention
    turn = rotation(positions, layer.d, layer.base) if layer.base else None
    start, kept = cache["start"] if cache else 0, []
    blocks_before = cache["blocks"] if cache else [None] * len(blocks)
    for block, old in zip(blocks, blocks_before, strict=True):
        x, new = block(x, turn, mask, old, start)
        kept.append(new)
    return x, cache and {**cache, "start": start + x.shape[1], "blocks": kept}


# %% [markdown] tags=["shared"]
# In the model all meets. If it is `tied`, the embedding also makes the logits. The
# `rest` are options of `ModernBlock` and `GroupedAttention`. `ModernLM` is a name of
# this book.


# %% tags=["jax", "export"]
class ModernLM(nnx.Module):
    """Logits of the next token at every position: ``b s -> b s c``."""

    def __init__(
        self,
        n_tokens,
        m,
        n_blocks,
        max_length,
        rngs,
        positions="rotary",
        tied=True,
        **rest,
    ):
        self.max_length, learned = max_length, {"rotary": 0, "learned": 1}[positions]
        rest |= {"base": None} if learned else {}  # nothing is rotated
        self.embed = lookup(n_tokens, m, m**-0.5, rngs=rngs)
        self.positions = lookup(max_length, m, 0.02, rngs=rngs) if learned else None
        blocks = [ModernBlock(m, rngs=rngs, **rest) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        norm, eps = rest.get("norm", "rms"), rest.get("eps", 1e-6)
        self.norm = make_norm(m, norm, eps, rngs=rngs)
        self.output = None if tied else projection(m, n_tokens, rngs=rngs)

    def __call__(self, tokens, first=None, cache=None):
        check_tokens(tokens, self.max_length)
        positions, mask = placed(tokens, first, cache)
        x = embedded(self, tokens, positions)  # b n m
        x, cache = run_blocks(self.blocks, x, positions, mask, cache)
        logits = logits_of(self, x)
        return (logits, cache) if cache else logits


# %% [markdown] tags=["shared"]
# With two functions registered for its class, `generate` writes with this model, too.
# The cache has fewer heads, the $g$ of keys and values.


# %% tags=["jax", "export"]
@new_cache.register
def new_modern_cache(model: ModernLM, first, length):
    """Key-value cache for ``length`` columns; row ``b`` begins in ``first[b]``."""
    if length > model.max_length:
        raise ValueError(f"{length} positions, but max_length = {model.max_length}")
    layer, dtype = model.blocks[0].attention, model.embed.embedding.dtype
    empty = jnp.zeros((len(first), layer.n_kv_heads, length, layer.d), dtype)
    blocks = [(empty, empty) for _ in model.blocks]  # b g s d
    return {"start": 0, "first": first, "blocks": blocks}


@advance.register
def advance_modern(model: ModernLM, tokens, cache):
    """Logits after new tokens, ``b n -> b n c``, and the cache with them in it."""
    return model(tokens, cache=cache)


# %% [markdown] tags=["jax"]
# Compiled, `forward` computes; with weights drawn by a seed, `new_model` makes a model.


# %% tags=["jax"]
@nnx.jit
def forward(model, tokens, first=None, cache=None):
    """What the model computes, compiled once for each shape."""
    return model(tokens, first, cache)


# %% tags=["jax"]
def new_model(seed=0, **sizes):
    return ModernLM(**sizes, rngs=nnx.Rngs(seed))


# %% [markdown] tags=["shared"]
# ## At this size, rotary positions bring the whole gain
#
# Two models, with GPT-2's block and with that of today: what the shared keys and values
# save goes into $f = 3m$, as in Qwen3. Each number in a matrix costs a token two FLOPs,
# a product and a sum. The cache keeps a key and a value of $d$ numbers for each block
# and key–value head: $2 \cdot n_\text{blocks} \cdot g \cdot d$.
#
# The second trains here, on the text, tokens, batches and updates of the chapter on the
# model that writes. (GPT-2's block trained there.)

# %% tags=["shared"]
settings = Settings(
    n_train=16 * 65, batch_size=16, epochs=10, learning_rate=6e-3, warmup=60
)
texts = text.load()  # Python's standard library: train and test
pairs = byte_pairs.BytePairs.learn(texts["train"], 97 + 512)
tokens = {part: pairs.encode(string) for part, string in texts.items()}
windows = text.random_windows(tokens["train"], 64, settings)  # n s+1
held_out = text.windows(tokens["test"], 64)  # n s+1

# %% tags=["shared"]
common = {
    "n_tokens": len(pairs),
    "m": 96,
    "n_blocks": 2,
    "n_heads": 4,
    "max_length": 64,
}
gpt2 = {"f": 384, "norm": "layer", "ffn": "mlp", "bias": True, "positions": "learned"}
today = {"f": 288, "n_kv_heads": 2}
models = {
    "GPT-2's block": new_model(seed=42, **common, **gpt2),
    "the block of today": new_model(seed=42, **common, **today),
}
model, in_order = models["the block of today"], sequences.in_order(settings)
fit(model, next_token, (windows,), settings, batches=in_order)
loss = evaluate(model, next_token, (held_out,), batch_size=len(held_out))["loss"]
bits = text.bits_per_character(loss, tokens["test"], texts["test"])

# %% tags=["shared"]
best = min(text.ngram_bits(texts["train"], texts["test"], 6))
lines, per_token = [], []
for name, one in models.items():
    arrays = to_arrays(one)  # the embedding also makes the logits: one matrix
    arrays.pop("positions.weight", None)
    in_matrices = 2 * sum(x.size for x in arrays.values() if x.ndim == 2)
    kept = new_cache(one, tensor([0]), 64)["blocks"]
    per_token.append(sum(k.nbytes + v.nbytes for k, v in kept) // 64)
    numbers = [count_parameters(one), in_matrices, per_token[-1]]
    lines.append([name, *(f"{n:,}" for n in numbers)])
head = ["model", "parameters", "FLOPs in matrices", "cache, bytes a token"]
share = per_token[1] / per_token[0]

# %% tags=["shared", "say"]
say(table(head, *lines))
say(
    f"With {share:.0%} of the cache, the block of today needs {bits:.2f} bits per "
    f"held-out character after {settings.updates} updates; the best n-gram {best:.2f}."
)

# %% tags=["shared", "check"]
# Checked: ahead of all n-grams; equal sizes, bytes by formula
assert bits < best - 0.1  # seeds differ by 0.01
assert per_token == [2 * 2 * 4 * 24 * 4, 2 * 2 * 2 * 24 * 4]  # float32: four bytes
sizes = [count_parameters(one) for one in models.values()]
assert abs(sizes[1] / sizes[0] - 1) < 0.03

# %% [markdown] tags=["shared"]
# One run is an anecdote, and says nothing of GPT-2's block. Recorded runs, four blocks
# deep, with five seeds, add the changes one by one:

# %% tags=["shared"]
(record,) = recorded(f"block-seeds-{framework}")
lines, steps = [], []
for name, one in record["figures"].items():
    found = np.array(one["bits"])  # one for each seed
    spread = f"{found.min():.3f} to {found.max():.3f}"
    name = f"and {name}" if len(steps) > 1 else name
    lines.append([name, f"{one['parameters']:,}", f"{found.mean():.3f}", spread])
    steps.append(found)
gain = steps[0] - steps[1]
moves = [found.mean() - steps[1].mean() for found in steps[2:]]

# %% tags=["shared", "say"]
say(table(["with", "parameters", "bits per character, mean", "five seeds"], *lines))
say(
    f"Rotary positions bring {gain.min():.2f} to {gain.max():.2f} bits, with every "
    f"seed. What follows moves the mean by {min(moves):+.3f} to {max(moves):+.3f}."
)

# %% tags=["shared", "check"]
# Checked: in both frameworks, rotary positions bring most
for side in ("jax", "torch"):
    (record,) = recorded(f"block-seeds-{side}")
    start, rotated, *others = [np.array(x["bits"]) for x in record["figures"].values()]
    moves = [found.mean() - rotated.mean() for found in others]
    assert (start - rotated > 2 * np.abs(moves).max()).all() and np.argmax(moves) == 2
    pays = (np.diff([rotated, *others], axis=0) < 0).all(axis=1).tolist()
    assert pays == [False, False, False, True]

# %% [markdown] tags=["shared"]
# The step with shared keys costs most. Of the others, the norm of queries and keys
# alone pays in bits here, with every seed. RMSNorm and missing biases buy simplicity,
# grouped queries memory; SwiGLU was ahead at 220 million parameters (Shazeer). These
# runs, with $f = 256$, were measured on a CPU, and stand in `benchmarks/results`. Does
# it hold with two blocks? Train `models["GPT-2's block"]` as well, and compare.

# %% [markdown] tags=["shared"]
# ## A cache that forgets the offset is silently wrong
#
# With a cache, token 40 arrives alone, and must be rotated as token 40. Suppose the
# code counts positions from the first token that it is given, so that it is rotated as
# token 0. All shapes fit. We give the trained model 40 tokens of 128 held-out texts,
# and then the next, as if it stood at position 0, or at 40:


# %% tags=["jax"]
@nnx.jit
def forward_at(model, tokens, positions, cache):
    """``forward`` with a cache, as if tokens stood at other positions: ``b n c``."""
    _, mask = placed(tokens, cache=cache)
    x = embedded(model, tokens, positions)  # b n m
    x, _ = run_blocks(model.blocks, x, positions, mask, cache)
    return logits_of(model, x)


# %% tags=["shared"]
def logits_at(model, position):
    """Logits after token 40 of 128 texts, as if it stood at some position: ``b c``."""
    rows = tensor(held_out[:128, :41])  # b s
    cache = new_cache(model, tensor(np.zeros(128, dtype=int)), 41)
    cache = forward(model, rows[:, :40], cache=cache)[1]
    positions = tensor(np.full((128, 1), position))
    return as_numpy(forward_at(model, rows[:, 40:], positions, cache))[:, 0]


lines, gaps = [], []
whole = as_numpy(forward(model, tensor(held_out[:128, :41])))[:, 40]  # b c
for position in (0, 40):
    found = logits_at(model, position)
    nats = text.nats(found[:, None], held_out[:128, 40:42])
    lines.append([position, f"{nats.mean() / np.log(2):.2f}"])
    gaps.append(np.abs(found - whole).max())

# %% tags=["shared", "say"]
say(table(["rotated as at position", "bits for the next token"], *lines))
say(
    "At 0 the model needs more bits, and nothing says so: no error, no warning. The "
    "test that finds it is one line: *the logits with a cache equal those without*. "
    f"They differ by up to {gaps[0]:.1f} at position 0, and by {gaps[1]:.0e} at 40."
)

# %% tags=["shared", "check"]
# Checked: with the wrong offset, more bits and other logits; with the right one, equal
assert float(lines[0][1]) > float(lines[1][1]) + 0.3
assert gaps[1] < 1e-3 < 0.5 < gaps[0]
right = whole[np.arange(128), held_out[:128, 41]]  # logits of the next tokens
expected = (np.logaddexp.reduce(whole, axis=1) - right).mean() / np.log(2)
assert abs(float(lines[1][1]) - expected) < 0.01

# %% [markdown] tags=["shared"]
# ## Somebody else's weights load by renaming
#
# A published checkpoint is a folder: `config.json` with the sizes, `tokenizer.json`,
# and `model.safetensors` with arrays by name, for large models in several files, the
# **shards**. If our code computes the same, loading is three steps: rename, compare all
# shapes, copy. The book ships four tiny models with random weights. These parts of
# their names change, one after the other:

# %% tags=["shared"]
for theirs, ours in checkpoints.NAMES.items():
    print(f"{theirs:26} {ours}")

# %% [markdown] tags=["jax"]
# In `checkpoints`, `arguments_of` translates the configuration, `our_names` renames (in
# an extra). A `kernel` of Flax is inputs × outputs, as GPT-2's arrays are; those of all
# others come from PyTorch's `Linear`, outputs × inputs, and are transposed.


# %% tags=["jax", "export"]
def load_pretrained(folder_or_name, dtype=jnp.float32):
    """A ``ModernLM`` with published weights of a ``dtype``, and its tokenizer.

    From a folder in Hugging Face's format, or the name of a model on the hub: GPT-2,
    Llama, Qwen3 or Mixtral. What does not fit raises an error, and nothing is loaded.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    arguments = checkpoints.arguments_of(config)
    # Only shapes: drawing weights that are then replaced would take time.
    empty = nnx.eval_shape(lambda: ModernLM(**arguments, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(empty)
    shapes = {name: param for name, param, _ in weights.parameters(empty)}
    tensors = checkpoints.read_tensors(folder, "np")
    found = checkpoints.our_names(tensors, config, in_out=True)
    checkpoints.check_tensors(found, shapes)
    tokenizer = checkpoints.read_tokenizer(folder, arguments["n_tokens"])
    arrays = [jnp.asarray(found[name], dtype) for name in shapes]
    return nnx.merge(graph, jax.tree.structure(state).unflatten(arrays)), tokenizer


# %% tags=["shared"]
from safetensors.numpy import load_file


def compare(name):
    """Parameters of a tiny model, and how far its logits are from Hugging Face's."""
    model, _ = load_pretrained(checkpoints.TINY / name)
    theirs = load_file(checkpoints.TINY / name / "expected.safetensors")
    ours = as_numpy(forward(model, tensor(theirs["tokens"])))
    gap = np.abs(ours - theirs["logits"]).max() / np.abs(theirs["logits"]).max()
    return count_parameters(model), gap


found = {name: compare(name) for name in ("gpt2", "llama", "qwen3", "mixtral")}

# %% tags=["shared", "say"]
lines = [[name, f"{count:,}", f"{gap:.0e}"] for name, (count, gap) in found.items()]
what = "difference to Hugging Face's, of the largest logit"
say(table(["architecture", "parameters", what], *lines))

# %% tags=["shared", "check"]
# Checked: the logits of Hugging Face's classes, stored beside each model, to 1e-5
assert max(gap for _, gap in found.values()) < 1e-5

# %% [markdown] tags=["shared"]
# Equality to rounding is the only test that counts: a swapped gate, a wrong pairing or
# another $\epsilon$ gives logits that look like logits. (How to compare a real model,
# an extra says.)
#
# `generate`, of the chapter on the model that writes, sends the prompts through the
# model in one pass, which fills the cache; then comes one token after the other.
# `top_k=1` leaves the most probable one.
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
new = as_numpy(generate(model, [ids], 20, top_k=1))[0]
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
# **Exercise 3, find the line.** `our_names` reads `checkpoints.NAMES`. Somebody writes
# `checkpoints.NAMES |= {"w1.": "up.", "w3.": "gate."}` before a Mixtral is loaded. All
# shapes fit, nothing is missing. What does the model compute, and which of the tests on
# this page notices? Try it.

# %% tags=["shared", "answer"]
checkpoints.NAMES |= {"w1.": "up.", "w3.": "gate."}
_, gap = compare("mixtral")
checkpoints.NAMES |= {"w1.": "gate.", "w3.": "up."}  # as it was
say(
    "The gate is swapped with what it opens: $x W_\\text{gate} \\odot "
    "\\mathrm{silu}(x W_\\text{up})$. The logits are off by up to "
    f"{gap:.0%} of the largest. Shapes cannot tell, and a cache that agrees with no "
    "cache cannot. Only the comparison with their logits notices."
)
assert gap > 0.01

# %% [markdown] tags=["shared"]
# ## In your own code
#
# All cells of the model stand in one file, `helpers/jax/today.py` or
# `helpers/torch/today.py`, which is written from this page; its first lines name the
# few helpers that go with it.

# %% [markdown] tags=["shared"]
# ## Extra: GPT-2's names, and those in `transformers`
#
# GPT-2 has queries, keys and values in one array, which is cut apart. `TABLES` are
# arrays in old files that are not learned.

# %% tags=["shared"]
import inspect

for theirs, ours in checkpoints.NAMES_OF_GPT2.items():
    print(f"{theirs:26} {ours}")
print("TABLES =", *checkpoints.TABLES)
print(inspect.getsource(checkpoints.our_names))

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
# logits = theirs(torch.tensor([ids])).logits  # b s c: ours, but for rounding
# ```

# %% [markdown] tags=["shared"]
# ## Extra: The attention of the loaded model
#
# Choose a block, a head and a token. With a tiny model, weights are random.


# %% tags=["jax"]
@nnx.jit
def maps_of(model, tokens):
    """Attention maps of every block: ``b s -> l b h s s``."""
    positions, mask = placed(tokens)
    x, maps = embedded(model, tokens, positions), []
    layer = model.blocks[0].attention
    turn = rotation(positions, layer.d, layer.base) if layer.base else None
    for block in model.blocks:
        q, k, v = project(block.attention, block.norm1(x), turn)
        n = q.shape[1] // k.shape[1]
        repeated = [jnp.repeat(part, n, axis=1) for part in (k, v)]
        maps.append(attention(q, *repeated, is_causal=True)[1])
        x, _ = block(x, turn, mask)
    return jnp.stack(maps)


maps = as_numpy(maps_of(model, tensor([ids])))

# %% tags=["shared", "figure"]
shown = [tokenizer.decode([i]).replace(" ", "␣") or "␣" for i in ids]
about = "Attention maps of a published model: rows are the tokens that look"
viewer.attention(maps[:, 0], shown, query=len(ids) - 1, about=about)

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

# %% [markdown] tags=["shared"]
# An expert that is chosen learns, so it gets better, so it is chosen again: the others
# idle. The **balancing loss** ([Fedus et al. 2021](https://arxiv.org/abs/2101.03961))
# multiplies, for each of $n$ experts, the share of choices that it got and its mean
# probability, and is $n$ times the sum: $n \sum_e \text{share}_e\, \overline{p}_e$. It
# is 1 when all get the same. The shares have no gradient; through the probabilities, it
# pushes down those of busy experts.


# %% tags=["jax"]
def balancing_loss(moe, x):
    """Share of the choices times mean probability, summed: ``... m`` to a number."""
    _, chosen, p = moe.route(x.reshape(-1, x.shape[-1]))  # all tokens of all texts
    share = jax.nn.one_hot(chosen, p.shape[-1]).mean(axis=(0, 1))  # e
    return p.shape[-1] * (share * p.mean(axis=0)).sum()


# %% [markdown] tags=["shared"]
# We train one mixture alone, to compute the sine of its inputs, without this loss and
# with 0.1 of it added. As in a real model, all inputs share a direction.

# %% tags=["jax"]
import optax


def new_mixture(seed):
    return MixtureOfExperts(16, 24, 4, 2, rngs=nnx.Rngs(seed))


@nnx.jit  # once for the whole training
def trained_mixture(moe, x, y, weight):
    """The mixture after one update with each batch: ``n b m``."""
    optimizer = nnx.Optimizer(moe, optax.adam(3e-3), wrt=nnx.Param)
    graph, state = nnx.split((moe, optimizer))

    def loss_fn(moe, x, y):
        return ((moe(x) - y) ** 2).mean() + weight * balancing_loss(moe, x)

    def step(state, batch):
        moe, optimizer = nnx.merge(graph, state)
        optimizer.update(moe, nnx.grad(loss_fn)(moe, *batch))
        return nnx.state((moe, optimizer)), None

    state, _ = jax.lax.scan(step, state, (x, y))
    return nnx.merge(graph, state)[0]


# %% tags=["shared", "experiment"]
# Experiment: the load of each expert, with and without the balancing loss, five seeds
loads, lines = {0.0: [], 0.1: []}, []
for weight, rows in loads.items():
    for seed in range(5):
        draw = np.random.default_rng(seed)
        x = draw.normal(size=(158, 256, 16)) + 2 * draw.normal(size=16)  # n b m
        y = np.sin(2 * np.roll(x, 1, axis=-1))
        moe = new_mixture(seed)
        moe = trained_mixture(moe, tensor(x[:150]), tensor(y[:150]), weight)
        chosen = as_numpy(moe.route(tensor(x[150:]))[1])
        shares = np.bincount(chosen.ravel(), minlength=4) / chosen.size
        rows.append(np.sort(shares)[::-1])  # the busiest first
    means = [f"{share:.0%}" for share in np.mean(rows, axis=0)]
    lines.append(["with" if weight else "without", *means])
idle, busy = [np.mean(rows, axis=0)[-1] for rows in loads.values()]
head = ["balancing loss", "busiest expert", "second", "third", "least busy"]

# %% tags=["shared", "say"]
say(table(head, *lines))
say(
    f"Means of five seeds. Without the loss, the least busy expert gets {idle:.0%} of "
    f"the choices; with it, more: {busy:.0%}, and 25 % is even."
)

# %% tags=["shared", "check"]
# Checked: with the balancing loss, the least busy expert gets more
assert busy > idle + 0.05

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


# %% tags=["jax", "answer"]
def my_rotary_offset(x, positions, base):
    half = x.shape[-1] // 2
    speeds = base ** (-jnp.arange(half) / half)  # d/2
    angle = positions[:, None, :, None] * speeds  # b 1 s d/2
    first, second = jnp.split(x, 2, axis=-1)  # b h s d/2
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return jnp.concatenate(turned, axis=-1)


def my_grouped(q, k, v):
    n = q.shape[1] // k.shape[1]  # query heads in a group
    k, v = [jnp.repeat(part, n, axis=1) for part in (k, v)]  # b h k d
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

# %% [markdown] tags=["jax"]
# Next comes [start from a trained model, in JAX](finetune_jax.ipynb):
# pretraining, and a task learned from few labels.
