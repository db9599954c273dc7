"""Language models with their vocabulary, in one file that both frameworks read."""

import json

import safetensors

from helpers.data.byte_pairs import BytePairs
from helpers.engine.weights import load_weights


def describe(path, blocks):
    """Block, sizes and vocabulary of a model, from the metadata of a file of weights.

    A file without a block has that of GPT-2; ``blocks`` are those that are known.
    """
    try:
        with safetensors.safe_open(path, "numpy") as file:
            found = file.metadata() or {}
        sizes, tokens = json.loads(found["model"]), BytePairs.from_metadata(found)
        block = {name: name for name in blocks}[found.get("block", "gpt2")]
    except (KeyError, safetensors.SafetensorError) as error:
        what = f"{path} to be a language model that scripts/train.py has saved"
        raise ValueError(f"expected {what}, got {error!r}") from error
    return block, sizes, tokens


def read_language_model(build, kinds, path):
    """A model and its vocabulary, from a file; ``kinds`` are the classes by block."""
    block, sizes, tokens = describe(path, kinds)
    load_weights(model := build(kinds[block], **sizes), path)
    model.eval()
    return model, tokens
