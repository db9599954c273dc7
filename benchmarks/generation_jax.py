"""Ways to generate in JAX: ``(model, prompts, length) -> b length``."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.jax import advance, generate, new_cache, next_token_probabilities

GREEDY = 1e-9  # temperature: only the most probable token is left, and nothing sorted


def book(model, prompts, length):
    """``generate``: one compiled loop, with keys and values in a cache."""
    return generate(model, prompts, length, temperature=GREEDY)


def draw(key, logits):
    """The next tokens as ``generate`` draws them: ``b t -> b``."""
    p = next_token_probabilities(logits, GREEDY)
    return jax.random.categorical(key, jnp.log(p))


def without_cache(model, prompts, length):
    """The whole text through the model again for each token, in one compiled loop."""
    graph, state = nnx.split(model)
    keys = jax.random.split(jax.random.key(0), length)
    return all_again(state, jnp.asarray(prompts), keys, graph=graph)


@partial(jax.jit, static_argnames="graph")
def all_again(state, tokens, keys, *, graph):
    """The loop of ``without_cache``; no position sees the zeros after it."""
    model, (_, s), n = nnx.merge(graph, state), tokens.shape, len(keys)

    def step(tokens, given):
        place, key = given
        new = draw(key, model(tokens)[:, place - 1])  # b
        return tokens.at[:, place].set(new), new

    tokens = jnp.pad(tokens, ((0, 0), (0, n)))  # b s+n
    return jax.lax.scan(step, tokens, (s + jnp.arange(n), keys))[1].T


def python_loop(model, prompts, length):
    """With the cache, one call of a compiled step per token."""
    graph, state = nnx.split(model)
    tokens, texts, key = jnp.asarray(prompts), [], jax.random.key(0)
    first = jnp.zeros(len(tokens), int)
    cache = new_cache(model, first, tokens.shape[1] + length)
    cache = jax.tree.map(jnp.copy, cache)  # no array twice, for they are given away
    for _ in range(length):
        tokens, key, cache = one_step(state, tokens, key, cache, graph=graph)
        texts.append(tokens)
    return jnp.concatenate(texts, axis=1)


@partial(jax.jit, static_argnames="graph", donate_argnames="cache")
def one_step(state, tokens, key, cache, *, graph):
    """The next tokens, ``b n -> b 1``, in the memory of the given cache."""
    key, now = jax.random.split(key)
    logits, cache = advance(nnx.merge(graph, state), tokens, cache)
    return draw(now, logits[:, -1])[:, None], key, cache


WAYS = {"book": book, "without cache": without_cache, "Python loop": python_loop}
