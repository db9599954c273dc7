"""Greedy generation with and without a cache, in one process; prints JSON.

python -m benchmarks.generation --framework jax
"""

import argparse
import json
import time
from importlib import import_module

import numpy as np

from helpers.weights import as_numpy

SMALL = {"n_tokens": 609, "m": 96, "n_blocks": 4, "n_heads": 4, "f": 384}
LARGE = {"n_tokens": 609, "m": 192, "n_blocks": 6, "n_heads": 6, "f": 768}
CASES = {  # sizes, longest text, texts, tokens of a prompt, new tokens
    "chapter, 1": (SMALL, 64, 1, 32, 32),
    "chapter, 16": (SMALL, 64, 16, 32, 32),
    "larger, 1": (LARGE, 512, 1, 480, 32),
    "larger, 16": (LARGE, 512, 16, 480, 32),
}


def model_of(framework, sizes, longest):
    """An untrained model. Untied: a tied one repeats its last token for ever."""
    room = import_module(f"helpers.{framework}")
    options = {**sizes, "max_length": longest, "norm_first": True, "tied": False}
    if framework == "torch":
        import_module("torch").manual_seed(0)
        return room.LanguageModel(**options).to(room.device).eval()
    model = room.LanguageModel(**options, rngs=import_module("flax.nnx").Rngs(0))
    model.eval()
    return model


def without_cache_torch(model, prompts, length):
    """The whole text through the model again for each token."""
    import torch

    tokens = torch.as_tensor(prompts, device=model.embed.weight.device)  # b s
    with torch.no_grad():
        for _ in range(length):
            new = model(tokens)[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, new], dim=1)
    return tokens[:, -length:]


def without_cache_jax(model, prompts, length):
    """The same, compiled for one length: later places are padding."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    graph, state = nnx.split(model)

    @jax.jit
    def logits(state, tokens, place):
        return nnx.merge(graph, state)(tokens)[:, place]  # b c

    tokens = jnp.pad(jnp.asarray(prompts), ((0, 0), (0, length)))
    for place in range(prompts.shape[1] - 1, prompts.shape[1] + length - 1):
        new = logits(state, tokens, place).argmax(-1)
        tokens = tokens.at[:, place + 1].set(new)
    return tokens[:, -length:]


def measure(framework, length=None):
    """Of both ways, by case: seconds per new token, and of the first call."""
    room, found = import_module(f"helpers.{framework}"), {}
    slow = without_cache_torch if framework == "torch" else without_cache_jax
    ways = {
        "book": lambda *given: room.generate(*given, top_k=1),
        "without cache": slow,
    }
    for case, (sizes, longest, n, prompt, new) in CASES.items():
        prompt, new = length or prompt, length or new
        model, draw = model_of(framework, sizes, longest), np.random.default_rng(0)
        prompts = draw.integers(609, size=(n, prompt))
        first, texts = {}, {}
        for way, generate in ways.items():
            began = time.perf_counter()
            texts[way] = as_numpy(generate(model, prompts, new))
            first[way] = time.perf_counter() - began
        np.testing.assert_array_equal(texts["book"], texts["without cache"], case)
        for way, generate in ways.items():
            seconds = []
            while sum(seconds) < (0 if length else 1) or not seconds:
                began = time.perf_counter()
                as_numpy(generate(model, prompts, new))
                seconds.append(time.perf_counter() - began)
            numbers = {"seconds": min(seconds) / new, "first": first[way]}
            found.setdefault(way, {})[case] = numbers
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=["jax", "torch"], required=True)
    parser.add_argument("--length", type=int, help="of prompts and texts: a trial")
    print(json.dumps(measure(**vars(parser.parse_args()))))
