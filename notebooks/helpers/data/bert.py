"""What published BERTs and ALBERTs call their sizes and their weights."""

import numpy as np

from helpers.weights import as_numpy

NAMES = {  # theirs: ours, in this order
    "albert.": "", "bert.": "", "cls.": "", "gamma": "weight", "beta": "bias",
    "embeddings.LayerNorm": "embed_norm", "embeddings.word_embeddings": "embed",
    "embeddings.position_embeddings.weight": "positions.table",
    "embeddings.token_type_embeddings": "segments", ".self.": ".",
    "encoder.embedding_hidden_mapping_in": "widen", "encoder.layer.": "encoder.blocks.",
    "encoder.albert_layer_groups.0.albert_layers.": "encoder.blocks.",
    "attention.output.": "attention.", "attention.dense": "attention.out",
    "attention.LayerNorm": "norm1", "full_layer_layer_norm": "norm2",
    "output.LayerNorm": "norm2", "intermediate.dense": "ffn.linear1",
    "ffn_output": "ffn.linear2", "output.dense": "ffn.linear2",
    "ffn.weight": "ffn.linear1.weight", "ffn.bias": "ffn.linear1.bias",
    "query": "q", "key": "k", "value": "v", "transform.": "", "predictions.b": "b",
    "predictions.dense": "hidden", "predictions.LayerNorm": "hidden_norm",
}  # fmt: skip
UNUSED = (  # the other heads, and copies
    "pooler.", "seq_relationship.", "sop_classifier.", "decoder.", "position_ids"
)  # fmt: skip


def arguments_of(config):
    """Arguments of ``MaskedLM`` for a configuration; ValueError for what it has not."""
    albert = config.get("model_type") == "albert"
    for what, known in {
        "model_type": ("bert", "albert"), "hidden_act": ("gelu",),
        "num_hidden_groups": (1, None), "inner_group_num": (1, None),
        "tie_word_embeddings": (True, None),
    }.items():  # fmt: skip
        if (found := config.get(what)) not in known:
            raise ValueError(f"expected {what} of {known}, got {found!r}")
    return {
        "n_tokens": config["vocab_size"], "m": config["hidden_size"],
        "n_blocks": config["num_hidden_layers"], "f": config["intermediate_size"],
        "n_heads": config["num_attention_heads"], "eps": config["layer_norm_eps"],
        "max_length": config["max_position_embeddings"], "shared": albert,
        "n_segments": config["type_vocab_size"],
        "n_embed": config["embedding_size"] if albert else None,
    }  # fmt: skip


def our_names(tensors):
    """Published weights as NumPy arrays under our names, for ``from_arrays``."""
    found = {}
    for name, x in tensors.items():
        if not any(part in name for part in UNUSED):
            for old, new in NAMES.items():
                name = name.replace(old, new)
            table = name.startswith(("embed.", "segments.", "positions."))
            found[name] = as_numpy(x) if table else as_numpy(x).T
    for name in [name for name in found if ".q." in name]:
        three = [name.replace(".q.", f".{part}.") for part in "qkv"]
        if {*three} <= found.keys():
            stacked = np.concatenate([found.pop(part) for part in three], axis=-1)
            found[name.replace(".q.", ".qkv.")] = stacked
    return found
