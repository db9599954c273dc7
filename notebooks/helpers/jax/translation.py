"""The chapter *A model that reads and writes* builds these: decoder, beam search."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.engine.arguments import check_kind, check_search
from helpers.jax.attention import MultiHeadAttention
from helpers.jax.decoder import LanguageModel, check_tokens, embedding
from helpers.jax.encoder import NORMS, Encoder, EncoderBlock
from helpers.jax.generation import advance, new_cache
from helpers.jax.positions import POSITIONS, without_dropout


class DecoderBlock(EncoderBlock):
    """Encoder block with cross-attention to a context between its two branches.

    ``b s m, b k m -> b s m, b h s s, b h s k``; it is built as ``EncoderBlock``.

    Source: Vaswani et al. 2017, sec. 3.1.
    """

    def __init__(self, m, n_heads, f, *, rngs, **options):
        super().__init__(m, n_heads, f, rngs=rngs, **options)
        self.cross = MultiHeadAttention(m, n_heads, rngs=rngs)
        self.cross_norm = NORMS[options.get("norm", "layer")](m, rngs=rngs)

    def __call__(
        self, x, mask, context, context_mask=None, *, is_causal=False, **asked
    ):
        """Outputs ``b s m``, weights ``b h s s``, cross weights ``b h s k``.

        The masks, ``q k`` or ``b h q k``, say which positions of ``x`` and which places
        of the context are visible. Weights are None unless ``return_weights=True``.
        """
        own = {"is_causal": is_causal, **asked}
        if self.norm_first:
            values, weights = self.attention(self.norm1(x), mask, **own)
            x = x + self.dropout(values)
            query = self.cross_norm(x)
            found, cross = self.cross(query, context_mask, context, **asked)
            x = x + self.dropout(found)
            return x + self.dropout(self.ffn(self.norm2(x))), weights, cross
        values, weights = self.attention(x, mask, **own)
        x = self.norm1(x + self.dropout(values))
        found, cross = self.cross(x, context_mask, context, **asked)
        x = self.cross_norm(x + self.dropout(found))
        return self.norm2(x + self.dropout(self.ffn(x))), weights, cross


class Decoder(Encoder):
    """A stack of decoder blocks, built as ``Encoder``: ``b s m, b k m -> b s m``."""

    block = DecoderBlock

    def __call__(
        self, x, mask, context, context_mask=None, *, is_causal=False, return_maps=False
    ):
        """Outputs ``b s m``; with ``return_maps`` also ``l b h s s``, ``l b h s k``."""
        options = {"is_causal": is_causal, "return_weights": return_maps}
        maps, cross_maps = [], []
        for block in self.blocks:
            x, weights, cross = block(x, mask, context, context_mask, **options)
            maps.append(weights)
            cross_maps.append(cross)
        x = self.norm(x) if self.norm else x
        return (x, jnp.stack(maps), jnp.stack(cross_maps)) if return_maps else x


def check_shared(shared, n_source, n_target):
    """Raise an error if vocabularies that are to be one differ in size."""
    if shared and n_source != n_target:
        got = f"n_source = {n_source} and n_target = {n_target}"
        raise ValueError(f"expected one vocabulary, got {got}")


class Translator(nnx.Module):
    """Reads a source, writes a target: ``b k, b s -> b s c``.

    Source and target have at most ``max_length`` positions. If ``shared``, the two
    vocabularies are one, with one embedding. ``positions`` and ``tied`` are those of
    ``LanguageModel``; ``sizes``, of encoder and decoder, are ``n_blocks``, ``n_heads``,
    ``f``, and maybe ``dropout``, ``activation``, ``norm`` and ``norm_first``.

    Source: Vaswani et al. 2017, sec. 3.
    """

    def __init__(
        self, n_source, n_target, m, *, max_length, positions="learned", shared=False,
        tied=True, rngs, **sizes,
    ):  # fmt: skip
        check_shared(shared, n_source, n_target)
        sizes["rngs"] = rngs
        options = {"max_length": max_length, "positions": positions, "tied": tied}
        self.target = LanguageModel(n_target, m, stack=Decoder, **options, **sizes)
        kind, sizes["attention"] = POSITIONS[positions]
        self.embed = None if shared else embedding(n_source, m, rngs=rngs)
        self.positions = kind(m, max_length, rngs=rngs) if kind else None
        self.encoder = Encoder(m=m, **sizes)

    def read(self, source, *, return_maps=False):
        """The encoded source ``b k m``, its mask ``b 1 1 k``, its maps or None."""
        check_tokens(source)
        mask = (source >= 0)[:, None, None]  # b 1 1 k
        embed = self.embed or self.target.embed
        x = embed(jnp.maximum(source, 0))  # b k m
        x = self.positions(x) if self.positions else x
        out = self.encoder(x, mask, return_maps=return_maps)
        return (out[0], mask, out[1]) if return_maps else (out, mask, None)

    def __call__(self, source, target, *, return_maps=False):
        """Logits ``b s c``; with ``return_maps`` also three arrays of maps.

        A negative token is padding, and hidden in the source; at the end of a target it
        needs no mask. The maps are those of the encoder ``l b h k k``, of the decoder
        ``l b h s s`` and of its cross-attention ``l b h s k``.
        """
        context, mask, maps = self.read(source, return_maps=return_maps)
        out = self.target(target, None, context, mask, return_maps=return_maps)
        return (out[0], (maps, *out[1:])) if return_maps else out


def translate(model, source, length, *, begin, end, width=1):
    """Translate ``b k`` by beam search: tokens ``b length``, log-probabilities ``b``.

    Padding of the source is -1. ``begin`` and ``end`` are the tokens before a
    translation and after it; ``end`` fills it up. At each step ``width`` beams,
    unfinished translations, are kept; a width of 1 is greedy. The model keeps its mode.
    """
    check_tokens(source)
    check_search(check_kind(model, nnx.Module), source, length, begin, end, width)
    graph, state = nnx.split(without_dropout(model))
    fixed = {"graph": graph, "length": length, "width": width}
    return search_beams(state, jnp.asarray(source), begin, end, **fixed)


def first_beams(model, source, begin, length, width):
    """First beams: tokens, log-probabilities, texts, cache with rows ``b·width + w``."""
    context, mask, _ = model.read(source)  # once for all steps
    last = jnp.full((len(source), width), begin)  # b w
    # all beams are equal still: only the first one counts
    total = jnp.full(last.shape, -jnp.inf).at[:, 0].set(0)  # b w
    context, mask = (jnp.repeat(x, width, axis=0) for x in (context, mask))
    cache = new_cache(model.target, 0 * last.ravel(), length, context, mask)
    return last, total, jnp.zeros((*last.shape, length), jnp.int32), cache


def best_continuations(log_p, last, total, end):
    """The most probable of all continuations: totals, beams and tokens, each ``b w``.

    ``log_p``, ``b w c``, is of every next token. A beam that has ended goes on with
    ``end`` only, with probability 1.
    """
    b, width, n_tokens = log_p.shape
    only_end = jnp.where(jnp.arange(n_tokens) == end, 0, -jnp.inf)  # c
    log_p = jnp.where((last == end)[..., None], only_end, log_p)
    totals = (total[..., None] + log_p).reshape(b, -1)  # b w·c
    total, best = jax.lax.top_k(totals, width)
    return total, best // n_tokens, best % n_tokens


@partial(jax.jit, static_argnames=("graph", "length", "width"))
def search_beams(state, source, begin, end, *, graph, length, width):
    """The loop of ``translate``: each step keeps the best continuations."""
    model, rows = nnx.merge(graph, state), jnp.arange(len(source))[:, None]  # b 1

    def step(beams, place):
        last, total, texts, cache = beams
        logits, cache = advance(model.target, last.reshape(-1, 1), cache)
        log_p = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(*last.shape, -1)
        total, beam, last = best_continuations(log_p, last, total, end)  # each b w
        texts = jnp.take_along_axis(texts, beam[..., None], axis=1)  # b w s
        texts = texts.at[:, :, place].set(last)
        kept = (rows * width + beam).ravel()  # all else is the same for all beams
        cache["blocks"] = jax.tree.map(lambda x: x[kept], cache["blocks"])
        return (last, total, texts, cache), None

    start = first_beams(model, source, begin, length, width)
    (_, total, texts, _), _ = jax.lax.scan(step, start, jnp.arange(length))
    return texts[:, 0], total[:, 0]
