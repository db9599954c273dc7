"""Written by `make sync` from notebooks/decoder_jax.py."""

from functools import singledispatch

import cloudpickle
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from helpers.data import checks
from helpers.jax.attention import attend, fused_attention, merge_heads
from helpers.jax.encoder import Encoder, without_dropout
from helpers.jax.frameworks import tensor
from helpers.jax.positions import POSITIONS, RotaryAttention

__all__ = (
    "FROM_INPUTS LanguageModel NORMAL advance advance_block "
    "attend_and_keep check_tokens continue_texts embedding generate "
    "new_cache next_token next_token_probabilities unembedding"
).split()


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
    rows = checks.checked_prompts(model, prompts, length, **knobs)
    longest = max(map(len, rows))
    first = tensor([longest - len(row) for row in rows])  # b
    tokens = tensor([[0] * (longest - len(row)) + row for row in rows])  # b s
    quiet = without_dropout(model)
    code = cloudpickle.dumps(nnx.graphdef(model))
    return continue_texts(quiet, tokens, first, length, end, seed, code, **knobs)
