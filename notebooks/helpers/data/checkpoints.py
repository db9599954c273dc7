"""Published checkpoints in Hugging Face's format: a folder, or a name on the hub.

What is called ``..._of_bert`` belongs to BERT and ALBERT, the rest to language models.
"""

import json
import os
import warnings
from pathlib import Path

import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

from helpers.weights import as_numpy

TINY = Path(__file__).with_name("tiny")  # written by tests/hugging_face.py
ROOT = Path(__file__).parents[3]
WEIGHTS = "model.safetensors", "model-*-of-*.safetensors"  # one file, or shards
KINDS = "gpt2", "llama", "qwen3", "mixtral"
TABLES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # not learned
KNOWN = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
ASSUMED = KNOWN["ASSUMED"]  # by `transformers`, where `config.json` is silent
NAMES, NAMES_OF_GPT2 = KNOWN["NAMES"], KNOWN["NAMES_OF_GPT2"]  # theirs: ours, in order
NAMES_OF_BERT = KNOWN["NAMES_OF_BERT"]
UNUSED_OF_BERT = (  # the other heads, and copies
    "pooler.", "seq_relationship.", "sop_classifier.", "decoder.", "position_ids"
)  # fmt: skip


def chosen(default):
    """``$MODEL``, or the folder of a tiny one: "gpt2", "llama", "qwen3", "mixtral"."""
    return os.environ.get("MODEL") or str(TINY / default)


def find_folder(folder_or_name):
    """Folder of a checkpoint: from here, from the repository's top, or of the hub."""
    name = str(folder_or_name)
    for folder in (Path(name).expanduser(), ROOT / name):
        if folder.is_dir():
            return folder.resolve()
    with warnings.catch_warnings():  # what a page says on stderr stops the book
        warnings.simplefilter("ignore")  # tqdm misses widgets
        from huggingface_hub import snapshot_download, utils

        utils.logging.set_verbosity_error()
        utils.disable_progress_bars()
        wanted = ["config.json", "tokenizer.json", *WEIGHTS]  # never pickled weights
        return Path(snapshot_download(name, allow_patterns=wanted))


def read_config(folder):
    """The settings in ``config.json``, and what their architecture assumes."""
    found = json.loads((folder / "config.json").read_text("utf-8"))
    given = {name: value for name, value in found.items() if value is not None}
    return ASSUMED.get(given.get("model_type"), {}) | given


def read_tensors(folder, framework):
    """All tensors by name, of ``framework`` "pt" or "np"."""
    found = sorted(path.name for path in folder.iterdir())
    paths = sorted(folder.glob(WEIGHTS[0])) or sorted(folder.glob(WEIGHTS[1]))
    if not paths:
        raise FileNotFoundError(
            f"expected model.safetensors in {folder}, got {', '.join(found)}; pickled "
            "weights are never read"
        )
    tensors = {}
    for path in paths:
        with safe_open(path, framework=framework) as file:
            names = file.keys()
            tensors |= {name: file.get_tensor(name) for name in names}
    return tensors


def check_tensors(found, expected):
    """Raise ValueError unless tensors by name are those expected, with their shapes."""
    for name in sorted(expected.keys() | found.keys()):
        wanted, got = (
            tuple(each[name].shape) if name in each else "no such tensor"
            for each in (expected, found)
        )
        if wanted != got:
            raise ValueError(f"{name}: expected {wanted}, got {got}")
        check_floats(name, found[name])


def check_floats(name, x):
    """Raise ValueError for a tensor of whole numbers, such as weights in eight bits."""
    if "float" not in str(x.dtype):
        got = str(x.dtype).removeprefix("torch.")
        raise ValueError(f"{name}: expected floats, got {got}")


def read_tokenizer(folder, n_tokens):
    """The tokenizer; ValueError if it has more tokens than the model."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if (n := tokenizer.get_vocab_size()) > n_tokens:
        raise ValueError(f"expected at most {n_tokens} tokens in {folder}, got {n}")
    return tokenizer


def arguments_of(config):
    """Arguments of ``ModernLM`` for a configuration; ValueError for what it has not."""
    kind = config.get("model_type")
    gpt2 = kind == "gpt2"
    activation = config.get("activation_function" if gpt2 else "hidden_act")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for what, found, known in (
        ("model_type", kind, KINDS),
        ("activation", activation, ("gelu_new" if gpt2 else "silu",)),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), ("default",)),
        ("sliding_window", config.get("sliding_window"), (None,)),
        ("scale_attn_weights", config.get("scale_attn_weights", True), (True,)),
        ("layer scaling", config.get("scale_attn_by_inverse_layer_idx"), (None, False)),
    ):
        if found not in known:
            raise ValueError(f"expected {what} of {known}, got {found!r}")
    if gpt2:
        m = config["n_embd"]
        return {
            "n_tokens": config["vocab_size"], "m": m, "n_blocks": config["n_layer"],
            "n_heads": config["n_head"], "f": config.get("n_inner") or 4 * m,
            "max_length": config["n_positions"], "norm": "layer", "ffn": "mlp",
            "positions": "learned", "bias": True, "eps": config["layer_norm_epsilon"],
            "tied": config.get("tie_word_embeddings", True),
        }  # fmt: skip
    experts = {} if kind != "mixtral" else {
        "n_experts": config["num_local_experts"],
        "n_active": config["num_experts_per_tok"], "ffn": "experts",
    }  # fmt: skip
    return experts | {
        "n_tokens": config["vocab_size"], "m": config["hidden_size"],
        "n_blocks": config["num_hidden_layers"], "f": config["intermediate_size"],
        "n_heads": config["num_attention_heads"], "d": config.get("head_dim"),
        "n_kv_heads": config.get("num_key_value_heads"), "qk_norm": kind == "qwen3",
        "max_length": config["max_position_embeddings"],
        "base": rope.get("rope_theta") or config["rope_theta"],
        "bias": config.get("attention_bias", False), "eps": config["rms_norm_eps"],
        "tied": config.get("tie_word_embeddings", False),
    }  # fmt: skip


def check_copy(head, table):
    """Raise ValueError if a file has an output layer that should be the embedding."""
    if head is not None and not np.array_equal(as_numpy(head), as_numpy(table)):
        raise ValueError("expected tied weights, got an output layer of its own")


def our_names(tensors, config, in_out):
    """Published weights under our names; matrices inputs × outputs if ``in_out``."""
    gpt2, found = config["model_type"] == "gpt2", {}
    kept = {name: x for name, x in tensors.items() if not name.endswith(TABLES)}
    for name, x in kept.items():
        for old, new in (NAMES_OF_GPT2 if gpt2 else NAMES).items():
            name = name.replace(old, new)
        if "qkv" in name:
            size = x.shape[-1] // 3
            for n, part in enumerate("qkv"):
                found[name.replace("qkv", part)] = x[..., n * size : (n + 1) * size]
        else:
            found[name] = x
    if config.get("tie_word_embeddings", gpt2):
        check_copy(found.pop("output.weight", None), found.get("embed.weight"))
    for name, x in found.items():
        stored = gpt2 and name != "output.weight"  # as inputs × outputs
        linear = x.ndim == 2 and not name.startswith(("embed.", "positions."))
        found[name] = x.T if linear and stored != in_out else x
    return found


def arguments_of_bert(config):
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


def our_names_of_bert(tensors):
    """Published weights as NumPy arrays under our names, for ``from_arrays``."""
    found = {}
    for name, x in tensors.items():
        if name.endswith(".decoder.weight"):
            end = "embeddings.word_embeddings.weight"
            check_copy(x, *(table for n, table in tensors.items() if n.endswith(end)))
        if not any(part in name for part in UNUSED_OF_BERT):
            for old, new in NAMES_OF_BERT.items():
                name = name.replace(old, new)
            check_floats(name, x)
            table = name.startswith(("embed.", "segments.", "positions."))
            found[name] = as_numpy(x) if table else as_numpy(x).T
    for name in [name for name in found if ".q." in name]:
        three = [name.replace(".q.", f".{part}.") for part in "qkv"]
        if {*three} <= found.keys():
            stacked = np.concatenate([found.pop(part) for part in three], axis=-1)
            found[name.replace(".q.", ".qkv.")] = stacked
    return found
