"""Greedy generation in every way, in one process; prints JSON.

python -m benchmarks.generation --framework jax --place 0
"""

import argparse
import importlib
import json
import time
from dataclasses import replace

import numpy as np

from benchmarks.measure import FRAMEWORKS, device
from helpers.engine.settings import Text
from helpers.engine.shapes import as_numpy

# Untied: an untrained tied model repeats its last token, whatever came before.
CHAPTER = replace(Text(), n_blocks=4, tied=False)
LARGER = replace(CHAPTER, length=512, n_blocks=6, m=192, n_heads=6, f=768)
CASES = {  # settings, texts, tokens of a prompt, new tokens
    "chapter, 1": (CHAPTER, 1, 32, 32), "chapter, 16": (CHAPTER, 16, 32, 32),
    "larger, 1": (LARGER, 1, 480, 32), "larger, 16": (LARGER, 16, 480, 32),
}  # fmt: skip
LEAST = 1  # second that the timed calls of a way take together


def measure(framework, place=0, length=None):
    """Of each way, by case: seconds per new token, and of the first call.

    A trial has prompts of ``length`` tokens, as many new ones, and is timed once.

    Raises
    ------
    AssertionError
        If a way does not generate the same tokens as ``generate``.
    """
    ways = importlib.import_module(f"benchmarks.generation_{framework}").WAYS
    found = {way: {"first": {}, "seconds": {}} for way in ways}
    for case, (settings, n, *sizes) in CASES.items():
        prompt, new = [length or size for size in sizes]
        model = untrained(framework, settings)
        draw = np.random.default_rng(settings.seed)
        prompts = draw.integers(settings.n_tokens, size=(n, prompt), dtype=np.int32)
        texts = {}
        for way, generate in ways.items():
            seconds, texts[way] = timed(generate, model, prompts, new)
            found[way]["first"][case] = seconds
            np.testing.assert_array_equal(texts[way], texts["book"], f"{case}: {way}")
        for way in list(ways)[:: 1 if place % 2 == 0 else -1]:
            least = 0 if length else LEAST
            seconds = shortest(least, ways[way], model, prompts, new)
            found[way]["seconds"][case] = seconds / new
    return {way: {**found[way], "device": device(framework)} for way in ways}


def untrained(framework, settings):
    """The language model of the settings, on the GPU if there is one."""
    models = importlib.import_module(f"helpers.{framework}")
    model = models.build(models.LanguageModel, seed=settings.seed, **settings.model)
    gpu = framework == "torch" and device(framework)  # JAX needs no telling
    return model.to("cuda") if gpu else model


def timed(function, *args):
    """Seconds until a result is there, and the result."""
    began = time.perf_counter()
    result = as_numpy(function(*args))
    return time.perf_counter() - began, result


def shortest(least, function, *args):
    """Seconds of the fastest of so many calls that together they take at least some."""
    seconds = [timed(function, *args)[0]]
    while sum(seconds) < least:
        seconds.append(timed(function, *args)[0])
    return min(seconds)


def arguments():
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=FRAMEWORKS, required=True)
    parser.add_argument("--place", type=int, default=0, help="of the pair")
    parser.add_argument("--length", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(measure(**vars(arguments()))))
