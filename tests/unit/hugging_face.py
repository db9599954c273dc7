"""Tiny random models of `transformers`, and what they and ours compute.

Sizes are primes where the architecture lets them, so no transposition can hide.
``cases`` has the logits of each case and twenty tokens; ``by_theirs`` and ``by_ours``
compute them, ``difference`` compares.
"""

import inspect
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from helpers.data.checkpoints import TINY
from helpers.engine.shapes import as_numpy
from sides import jax_side

N_TOKENS, B, S, LENGTH = 101, 3, 11, 20  # 97 of the tokens have a text
USUAL = {
    "vocab_size": N_TOKENS, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 43,
    "rms_norm_eps": 2e-3, "bos_token_id": None, "eos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
    "tie_word_embeddings": False, "initializer_range": 0.3,
}  # fmt: skip
CONFIGS = {
    "gpt2": {
        "vocab_size": N_TOKENS, "n_layer": 2, "n_head": 3, "n_embd": 33, "n_inner": 37,
        "n_positions": 43, "layer_norm_epsilon": 2e-3, "initializer_range": 0.3,
        "bos_token_id": None, "eos_token_id": None,
    },
    "llama": USUAL | {"hidden_size": 42, "intermediate_size": 41},
    "qwen3": USUAL | {
        "hidden_size": 31, "intermediate_size": 47, "head_dim": 14,
        "num_key_value_heads": 3, "tie_word_embeddings": True,
    },
    "mixtral": USUAL | {
        "hidden_size": 36, "intermediate_size": 20, "num_local_experts": 5,
        "num_experts_per_tok": 2, "sliding_window": None,  # its kernel: multiples of 4
    },
}  # fmt: skip
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
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind] | options)
    torch.manual_seed(0)
    auto = transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.ndim == 1:  # else norms would have weights 1, and all biases 0
                x.normal_(float("norm" in name or "ln_" in name), 0.3)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    shutil.copy(TINY / kind / "tokenizer.json", folder)
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


def tokens_of(side, x):
    """Tokens, or numbers of columns, as a side takes them."""
    return jnp.asarray(x) if side is jax_side else whole(x)


def by_ours(side, model):
    """The cases, by a ``ModernLM``. Padding on the right needs nothing."""
    call, zeros = callable_of(side, model), tokens_of(side, np.zeros(B, np.int32))

    def run(tokens, mask):
        on_the_left = mask is not None and not mask[:, 0].all()
        first = (mask.argmax(axis=1).astype(np.int32),) if on_the_left else ()
        return call(tokens_of(side, tokens), *(tokens_of(side, x) for x in first))

    def write():
        rows = [row[mask].tolist() for row, mask in zip(TOKENS, RIGHT, strict=True)]
        return side.models.generate_greedily(model, rows, LENGTH)

    def advance(tokens, cache):
        return call(tokens_of(side, tokens), None, cache)

    return cases(run, advance, write, side.models.empty_cache(model, zeros, S))


def difference(found, expected):
    """The largest, relative to the largest logit."""
    return np.abs(found - expected).max() / np.abs(expected).max()
