"""A language model in one file.

    python model_jax.py my.txt   trains on a text of your own, and writes
    python model_jax.py my.txt --coordinator HOST:PORT --processes 2 …

A second call with the same --folder goes on after the last checkpoint.
Needs cloudpickle, flax, jax, numpy, optax, orbax. From a book that builds it:
https://github.com/example/transformers-side-by-side

Shapes: b batch, s position, q and k position of a query and of a key, h head, d size
of one head, m size of the model, f hidden size of the feed-forward net, c tokens.
In a mask, True means "may look".

Copyright (c) 2026 The authors of "Transformers, side by side"
SPDX-License-Identifier: MIT
"""

import argparse
import math
from functools import cache, partial, singledispatch
from pathlib import Path

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

# ---- the shared part ----


def checked_prompts(model, prompts, length, temperature=1.0, top_k=None, top_p=None):
    """Prompts as lists of tokens, if the model knows them and has room to go on."""
    if not getattr(model, "causal", True):
        raise ValueError("expected a causal model, got one that sees what comes after")
    rows = [[int(token) for token in prompt] for prompt in prompts]
    lengths, n_tokens = [len(row) for row in rows], model.embed.num_embeddings
    if length < 1 or min(lengths) < 1 or max(lengths) + length > model.max_length:
        raise ValueError(
            f"expected prompts of 1 to {model.max_length - length} tokens, since "
            f"max_length = {model.max_length} and length = {length}, got {lengths}"
        )
    if not all(0 <= token < n_tokens for row in rows for token in row):
        raise ValueError(f"expected tokens from 0 to {n_tokens - 1}, got {rows}")
    whole = top_k is None or (hasattr(top_k, "__index__") and top_k >= 1)
    if not (temperature >= 1e-6 and whole and (top_p is None or 0 < top_p <= 1)):
        raise ValueError(
            "expected a temperature of 1e-6 or more, a whole top_k of 1 or more, and "
            f"0 < top_p <= 1, got {temperature}, {top_k}, {top_p}; top_k=1 is greedy"
        )
    return rows


def check_room(cache, n):
    """Raise an error if ``n`` more positions do not fit; compiled, they become NaN."""
    start, length = cache["start"], cache["blocks"][0][0].shape[2]
    if isinstance(start, int) and start + n > length:
        raise ValueError(f"expected a cache of {start + n} columns, got {length}")


# ---- notebooks/frameworks_jax.ipynb ----


def tensor(x):
    """An array of NumPy on the device: float32, int32, uint8 or bool."""
    return jnp.asarray(x)


# ---- notebooks/attention_jax.ipynb ----


def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)


UNIFORM = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def dense(n_in, n_out, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: entries within ±1/√n_in, zero biases."""
    return nnx.Linear(n_in, n_out, kernel_init=UNIFORM, rngs=rngs)


def merge_heads(values):
    """The outputs of all heads side by side: ``b h q d -> b q m``."""
    b, h, q, d = values.shape
    return values.swapaxes(1, 2).reshape(b, q, h * d)


def split_heads(x, d):
    """Heads of ``d`` features each: ``b s hd -> b h s d``."""
    return x.reshape(*x.shape[:2], -1, d).swapaxes(1, 2)


def check_causal(q, k):
    """The number of queries, which is that of the keys: else, who would see whom?"""
    n, n_keys = q.shape[-2], k.shape[-2]
    if n != n_keys:
        what = "as many queries as keys under a causal mask"
        raise ValueError(f"expected {what}, got {n} and {n_keys}; give a mask instead")
    return n


def full_mask(mask, q, k, is_causal):
    """The mask to use, or None: the given one and, if asked for, the causal one."""
    if mask is not None and (mask.dtype != bool or mask.ndim not in (2, q.ndim)):
        what = f"2 or {q.ndim} axes, got {tuple(mask.shape)}"
        raise ValueError(f"expected a boolean mask of {what}")
    if not is_causal:
        return mask
    n = check_causal(q, k)  # as many keys as queries
    past = jnp.tri(n, dtype=bool)  # q k: the lower triangle
    return past if mask is None else past & mask


def attention(q, k, v, mask=None, *, is_causal=False):  # new
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``.

    A boolean mask, ``q k`` or with all axes of the weights, is True where a query may
    look. Hidden keys and values must be finite: 0 · NaN is NaN.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2)  # ... q k
    weights = masked_softmax(scores, full_mask(mask, q, k, is_causal))  # new
    return weights @ v, weights


def fused_attention(q, k, v, mask=None, *, is_causal=False):
    """The outputs of ``attention``, from arrays with four axes, here ``b h s d``."""
    if q.dtype not in (jnp.float32, jnp.bfloat16):  # JAX's function is made for these
        return attention(q, k, v, mask, is_causal=is_causal)[0]
    arrays = [x.swapaxes(1, 2) for x in (q, k, v)]  # b s h d
    function = jax.nn.dot_product_attention
    if mask is None and (not is_causal or q.shape[2] == k.shape[2]):
        return function(*arrays, is_causal=is_causal).swapaxes(1, 2)
    mask = full_mask(mask, q, k, is_causal)
    seen = mask.any(axis=-1, keepdims=True)
    out = function(*arrays, mask=mask | ~seen)  # a row that hides all would be wrong
    return jnp.where(seen, out.swapaxes(1, 2), 0)


def attend(layer, q, k, v, mask=None, *, is_causal=False, return_weights=False):
    """Output of a layer, and its weights if they are asked for, else None."""
    if not return_weights:
        values = fused_attention(q, k, v, mask, is_causal=is_causal)
        return layer.out(merge_heads(values)), None
    values, weights = attention(q, k, v, mask, is_causal=is_causal)
    return layer.out(merge_heads(values)), weights


class MultiHeadAttention(nnx.Module):
    """Attention in several heads: ``b s m -> b s m, b h s s``."""

    def __init__(self, m, n_heads, *, rngs):
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def project(self, x):
        """Queries, keys and values of every head: each ``b h s d``."""
        d = x.shape[-1] // self.n_heads
        return [split_heads(part, d) for part in jnp.split(self.qkv(x), 3, axis=-1)]

    def __call__(self, x, mask=None, **options):  # new: those of `attend`
        return attend(self, *self.project(x), mask, **options)  # new


# ---- notebooks/encoder_jax.ipynb ----


ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}


layer_norm = partial(nnx.LayerNorm, epsilon=1e-5, use_fast_variance=False)


class FeedForward(nnx.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``."""

    def __init__(self, m, f, *, dropout=0.0, activation="relu", rngs):
        self.activation = ACTIVATIONS[activation]
        self.linear1 = dense(m, f, rngs=rngs)
        self.linear2 = dense(f, m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class EncoderBlock(nnx.Module):
    """Attention, then feed-forward, each with residual and norm: ``b s m -> b s m``."""

    def __init__(
        self,
        m,
        n_heads,
        f,
        *,
        dropout=0.0,  # new
        norm_first=False,  # new
        activation="relu",  # new
        attention=MultiHeadAttention,  # new
        rngs,
    ):
        self.norm_first = norm_first  # new
        self.attention = attention(m, n_heads, rngs=rngs)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation, rngs=rngs)
        self.norm1 = layer_norm(m, rngs=rngs)
        self.norm2 = layer_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)  # new

    def __call__(self, x, mask=None, **options):
        if self.norm_first:  # new
            values, weights = self.attention(self.norm1(x), mask, **options)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask, **options)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


class Encoder(nnx.Module):
    """A stack of blocks: ``b s m -> b s m``, on demand with maps ``l b h s s``."""

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, rngs, **options):
        options = {"norm_first": norm_first, "rngs": rngs, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        self.norm = layer_norm(m, rngs=rngs) if norm_first else None

    def __call__(self, x, mask=None, *, return_maps=False, **options):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask, return_weights=return_maps, **options)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, jnp.stack(maps)) if return_maps else x


def without_dropout(model):
    """A copy of the model with dropout off."""
    quiet = nnx.clone(model)
    quiet.eval()
    return quiet


# ---- notebooks/positions_jax.ipynb ----


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    omega = 10000 ** (-np.arange(0, m, 2) / m)  # m/2
    angle = np.arange(length)[:, None] * omega  # s m/2
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)  # s m/2 2
    return pairs.reshape(length, -1)[:, :m]  # s m; an odd m ends on a sine


def check_length(x, table):
    """Raise an error if a sequence ``b s m`` is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


class SinusoidalPositions(nnx.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs=None):
        table = sinusoidal_positions(max_length, m)  # s m
        self.table = nnx.Variable(jnp.asarray(table, dtype=jnp.float32))

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


class LearnedPositions(nnx.Module):
    """Adds a learned vector to each of ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs):
        table = jax.random.normal(rngs.params(), (max_length, m))  # s m
        self.table = nnx.Param(0.02 * table)  # small, as in BERT

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


def rotary(x, offset=0):
    """Rotate pairs of features; row 0 has position ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    positions = offset + jnp.arange(s)
    angle = positions[:, None] * 10000.0 ** (-jnp.arange(0, d, 2) / d)  # s d/2
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = [even * cos - odd * sin, even * sin + odd * cos]
    return jnp.stack(pairs, axis=-1).reshape(x.shape).astype(x.dtype)  # ... s d


class RotaryAttention(MultiHeadAttention):
    """Attention whose queries and keys are rotated: ``b s m -> b s m, b h s s``."""

    def project(self, x, offset=0):
        q, k, v = super().project(x)  # each b h s d
        return rotary(q, offset), rotary(k, offset), v


POSITIONS = {  # the codes that are added, and the attention of every block
    "sinusoidal": (SinusoidalPositions, MultiHeadAttention),
    "learned": (LearnedPositions, MultiHeadAttention),
    "rotary": (None, RotaryAttention),
    "none": (None, MultiHeadAttention),
}


# ---- notebooks/reverse_jax.ipynb ----


@cache
def make_optimizer(max_grad_norm, weight_decay):
    """Clipping, then AdamW that decays matrices only; updates bring their ``rate``."""

    def is_matrix(params):
        return jax.tree.map(lambda param: param.ndim > 1, params)

    def times_rate(steps, state, params=None, *, rate):
        return jax.tree.map(lambda step: rate * step, steps), state

    return optax.chain(  # first to last
        optax.clip_by_global_norm(max_grad_norm),
        optax.adamw(1.0, weight_decay=weight_decay, mask=is_matrix),
        optax.GradientTransformationExtraArgs(optax.init_empty_state, times_rate),
    )


@partial(nnx.jit, static_argnums=2)
def update(model, optimizer, loss_fn, batch, rate):
    """One update, in place: the loss, its metrics and the norm of the gradient."""
    trained = nnx.DiffState(0, optimizer.wrt)
    gradient = nnx.value_and_grad(loss_fn, argnums=trained, has_aux=True)
    (loss, metrics), grads = gradient(model, *batch)
    optimizer.update(model, grads, rate=rate)
    return {"loss": loss, **metrics, "grad_norm": optax.tree.norm(grads)}


# ---- notebooks/decoder_jax.ipynb ----


NORMAL = nnx.initializers.variance_scaling(1.0, "fan_out", "normal")


def embedding(n_tokens, m, *, rngs):
    """Table with a vector for each token, ``c m``: normal, standard deviation 1/√m."""
    return nnx.Embed(n_tokens, m, embedding_init=NORMAL, rngs=rngs)


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


@singledispatch
def advance(model, tokens, cache):
    """Logits after new tokens, ``b n -> b n c``, and the cache with them in it."""
    check_room(cache, tokens.shape[1])
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


def generate(model, prompts, length, *, end=-1, seed=0, **knobs):
    """Continue each prompt, a list of tokens, by ``length`` tokens: ``b length``.

    The ``knobs`` are those of ``next_token_probabilities``: ``top_k=1`` is greedy. Once
    ``end`` is drawn, only ``end`` follows. A model in training mode stays so.
    """
    rows = checked_prompts(model, prompts, length, **knobs)
    longest = max(map(len, rows))
    first = tensor([longest - len(row) for row in rows])  # b
    tokens = tensor([[0] * (longest - len(row)) + row for row in rows])  # b s
    quiet = without_dropout(model)
    code = cloudpickle.dumps(nnx.graphdef(model))
    return continue_texts(quiet, tokens, first, length, end, seed, code, **knobs)


# ---- a call ----


SIZES = {
    "n_blocks": 2, "n_heads": 4, "f": 256, "max_length": 128, "positions": "rotary",
    "norm_first": True, "activation": "gelu",
}  # fmt: skip


def arguments():
    """What a call may say."""
    parser = argparse.ArgumentParser(description="Train a language model on a text.")
    parser.add_argument("text", nargs="?", default=__file__, help="a file in UTF-8")
    parser.add_argument("--folder", default="run", help="of checkpoints")
    usual = {"updates": 100, "learning-rate": 3e-3, "weight-decay": 0.1}
    for name, value in {**usual, "batch-size": 8}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--prompt", help="by default how the text begins")
    return parser


def read_text(parser, options, n):
    """The number of each character of the text, all numbers by name, the prompt."""
    try:
        text = Path(options.text).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"expected a text in UTF-8: {error}")
    prompt, length = options.prompt or text[:16], SIZES["max_length"]
    if unknown := set(prompt) - set(text):
        parser.error(f"the text has no {sorted(unknown)}, which the prompt has")
    if len(text) <= length or options.batch_size % n:
        parser.error(
            f"expected a text of more than {length} characters and a batch that {n} "
            f"devices share, got {len(text)}, {options.batch_size}"
        )
    numbers = {character: n for n, character in enumerate(sorted(set(text)))}
    return [numbers[character] for character in text], numbers, prompt


def write_on(model, prompt, numbers):
    """Print the prompt and what the model writes after it."""
    written = generate(model, [[numbers[x] for x in prompt]], 100, temperature=0.8)
    print(prompt + "".join([*numbers][n] for n in written[0].tolist()))


# ---- training ----


def batch_of(tokens, length, batch_size, update, sharding):
    """Windows of a text, ``b s+1``, by the update's number, shared by the devices."""
    draw, rank = np.random.default_rng(update), jax.process_index()
    start = draw.integers(len(tokens) - length, size=(batch_size, 1))
    mine = np.split(start, jax.process_count())[rank]
    windows = tokens[mine + np.arange(length + 1)]
    return jax.make_array_from_process_local_data(sharding, windows)


def train(model, tokens, characters, options):
    """Train from the last checkpoint on, on all devices of all processes."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    whole, shared = (NamedSharding(mesh, PartitionSpec(*x)) for x in [(), ("data",)])
    adamw = make_optimizer(1.0, options.weight_decay)
    optimizer = nnx.Optimizer(model, adamw, wrt=nnx.Param)
    parts, learned = (model, optimizer), nnx.Not(nnx.RngState)
    nnx.update(parts, jax.device_put(nnx.state(parts, learned), whole))
    folder, about = Path(options.folder).resolve(), {"characters": characters}
    given = {"options": ocp.CheckpointManagerOptions(2), "metadata": about}
    with ocp.CheckpointManager(folder, **given) as kept:  # a first call's metadata stay
        if kept.metadata().custom_metadata != about:
            raise SystemExit(f"{folder} is of another text: name another --folder")
        if done := kept.latest_step() or 0:
            now = ocp.args.StandardRestore(nnx.state(parts, learned))
            nnx.update(parts, kept.restore(done, args=now))
            print(f"goes on after update {done}")
        for step in range(done + 1, options.updates + 1):
            given = model.max_length, options.batch_size, step, shared
            batch, rate = [batch_of(tokens, *given)], options.learning_rate
            found = update(model, optimizer, next_token, batch, rate)
            if jax.process_index() == 0 and (step == 1 or step % 10 == 0):
                print(f"update {step:4}: loss {found['loss']:.3f}")
            if step % 100 == 0 or step == options.updates:
                kept.save(step, args=ocp.args.StandardSave(nnx.state(parts, learned)))
                kept.wait_until_finished()


def main():
    """Train a model on the characters of a text file, and let it write."""
    parser = arguments()
    parser.add_argument("--coordinator", help="host:port of the first of several")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0, help="the number of this one")
    options = parser.parse_args()
    if where := options.coordinator:
        jax.distributed.initialize(where, options.processes, options.process)
    tokens, numbers, prompt = read_text(parser, options, jax.device_count())
    model = LanguageModel(len(numbers), 64, **SIZES, rngs=nnx.Rngs(0))
    train(model, np.array(tokens, np.int32), "".join(numbers), options)
    if jax.process_index() == 0:
        write_on(model, prompt, numbers)


if __name__ == "__main__":
    main()
