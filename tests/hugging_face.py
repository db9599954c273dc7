"""Tiny random models of `transformers`, and what they and ours compute.

``cases`` has the logits of each case and twenty tokens; ``by_theirs`` and ``by_ours``
compute them, ``difference`` compares. The sizes are those of ``tools/tiny_models.py``.
"""

import inspect
import shutil

import jax
import numpy as np
import torch
from flax import nnx

from helpers.weights import as_numpy
from sides import definitions, jax_side
from tiny_models import N_TOKENS, TINY, random_model

B, S, LENGTH = 3, 11, 20
TOKENS = np.random.default_rng(0).integers(N_TOKENS, size=(B, S), dtype=np.int32)
LENGTHS = np.array([11, 7, 5])
RIGHT = np.arange(S) < LENGTHS[:, None]  # b s: the rest is padding
LEFT = RIGHT[:, ::-1]
SHIFTED = np.stack(
    [np.roll(row, S - n) for row, n in zip(TOKENS, LENGTHS, strict=True)]
)


def make(kind, folder, *, dtype="float32", shard="1GB", **options):
    """Save a random model of a kind in a folder; return it as read from there."""
    import transformers

    transformers.logging.set_verbosity_error()
    options = {"bos_token_id": None, "eos_token_id": None} | options  # it goes on
    model = random_model(kind, **options)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    shutil.copy(TINY / kind / "tokenizer.json", folder)
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, dtype=torch.float32).eval()


def cases(run, advance, write, cache=None):
    """Logits by case, ``b s c`` or those of real tokens ``n c``, and twenty tokens.

    ``run`` computes whole rows under a mask of real tokens, or None; ``advance`` the
    next column, with a cache; ``write`` continues rows padded on the left.
    """
    columns = []
    for n in range(S):
        logits, cache = advance(TOKENS[:, n : n + 1], cache)
        columns.append(as_numpy(logits))
    return {
        "forward": as_numpy(run(TOKENS, None)),
        "cache": np.concatenate(columns, axis=1),
        "left padding": as_numpy(run(SHIFTED, LEFT))[LEFT],
        "right padding": as_numpy(run(TOKENS, RIGHT))[RIGHT],
        "tokens": as_numpy(write()),
    }


def whole(x):
    """Whole numbers as PyTorch's embeddings take them."""
    return torch.tensor(np.asarray(x, dtype=np.int64))


@torch.no_grad()
def by_theirs(model):
    """The cases, by a class of `transformers`."""
    from transformers import DynamicCache

    given = inspect.signature(model.forward).parameters
    named = "cache" if "cache" in given else "past_key_values"  # as before 5.24

    def run(tokens, mask):
        if mask is None:
            return model(whole(tokens)).logits
        places = whole((mask.cumsum(axis=1) - 1).clip(0))
        options = {"attention_mask": whole(mask), "position_ids": places}
        return model(whole(tokens), **options).logits

    def advance(tokens, cache):
        return model(whole(tokens), use_cache=True, **{named: cache}).logits, cache

    def write():
        options = {"attention_mask": whole(LEFT), "pad_token_id": 0}
        options |= {"max_new_tokens": LENGTH, "do_sample": False}
        return model.generate(whole(SHIFTED), **options)[:, S:]

    return cases(run, advance, write, DynamicCache(config=model.config))


def callable_of(side, model):
    """The model as a function of tokens and ``first`` or a cache; JAX's is compiled."""
    if side is not jax_side:
        return torch.no_grad()(model)
    graph, state = nnx.split(model)
    forward = jax.jit(lambda state, *args: nnx.merge(graph, state)(*args))
    return lambda *args: forward(state, *args)


def by_ours(side, model):
    """The cases, by a ``ModernLM``. Padding on the right needs nothing."""
    call, zeros = callable_of(side, model), side.tensor(np.zeros(B, np.int32))

    def run(tokens, mask):
        on_the_left = mask is not None and not mask[:, 0].all()
        first = (mask.argmax(axis=1).astype(np.int32),) if on_the_left else ()
        return call(side.tensor(tokens), *(side.tensor(x) for x in first))

    def write():
        rows = [row[mask].tolist() for row, mask in zip(TOKENS, RIGHT, strict=True)]
        return definitions(f"today_{side.name}").generate_greedily(model, rows, LENGTH)

    def advance(tokens, cache):
        return call(side.tensor(tokens), None, cache)

    return cases(
        run,
        advance,
        write,
        definitions(f"today_{side.name}").empty_cache(model, zeros, S),
    )


def difference(found, expected):
    """The largest, relative to the largest logit."""
    return np.abs(found - expected).max() / np.abs(expected).max()
