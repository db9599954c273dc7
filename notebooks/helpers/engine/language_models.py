"""Language models with their vocabulary, in one file that both frameworks read."""

import json

import safetensors

from helpers.data.byte_pairs import BytePairs
from helpers.engine.weights import load_weights


def read_language_model(build, kinds, path):
    """A model and its vocabulary, as the metadata of a file of weights describe them.

    ``kinds`` are the classes by block; a file without a block has that of GPT-2.
    """
    try:
        with safetensors.safe_open(path, "numpy") as file:
            found = file.metadata() or {}
        sizes, tokens = json.loads(found["model"]), BytePairs.from_metadata(found)
        kind = kinds[found.get("block", "gpt2")]
    except (KeyError, safetensors.SafetensorError) as error:
        what = f"{path} to be a language model that scripts/train.py has saved"
        raise ValueError(f"expected {what}, got {error!r}") from error
    load_weights(model := build(kind, **sizes), path)
    model.eval()
    return model, tokens
