"""Tiny random models of `transformers`, and what they and ours compute.

``cases`` has the logits of each case and twenty tokens, ``by_theirs`` and ``by_ours``
compute them. The four checkpoints of *The Transformer of today* are written by

    PYTHONPATH=notebooks python tests/hugging_face.py notebooks/helpers/data/tiny
"""

import inspect
import json
import shutil
import sys
from copy import deepcopy
from pathlib import Path

import jax
import numpy as np
import torch
import transformers
from flax import nnx
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models

from helpers.data.checkpoints import TINY
from helpers.weights import as_numpy
from sides import jax_side

END = "<|endoftext|>"  # also for unknown characters, as in GPT-2
CHARACTERS = ["\n", *map(chr, range(32, 127))]
N_TOKENS = len(CHARACTERS) + 1  # 97
STD = 0.3  # of all weights: logits must differ clearly
USUAL = {
    "vocab_size": N_TOKENS, "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "bos_token_id": N_TOKENS - 1, "eos_token_id": N_TOKENS - 1,
}  # fmt: skip
CONFIGS = {  # what differs from the defaults, so that no default is right by chance
    "gpt2": {
        "vocab_size": N_TOKENS, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_inner": 68,
        "n_positions": 32, "layer_norm_epsilon": 2e-3,
        "bos_token_id": N_TOKENS - 1, "eos_token_id": N_TOKENS - 1,
    },
    "llama": USUAL | {
        "intermediate_size": 56, "rms_norm_eps": 3e-3, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    },
    "qwen3": USUAL | {
        "intermediate_size": 40, "rms_norm_eps": 1e-3, "tie_word_embeddings": True,
        "head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "mixtral": USUAL | {
        "intermediate_size": 20, "rms_norm_eps": 5e-3, "tie_word_embeddings": False,
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 2e4},
    },
}  # fmt: skip


def random_model(kind, seed=0, **options):
    """A model of a kind; ``options`` change its configuration."""
    transformers.utils.logging.disable_progress_bar()
    settings = deepcopy(CONFIGS[kind]) | options
    config = transformers.AutoConfig.for_model(kind, **settings)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, x in model.named_parameters():
            one = x.ndim == 1 and name.endswith("weight")  # of a norm
            x.normal_(std=STD).add_(float(one))
    return model


B, S, LENGTH = 3, 11, 20
TOKENS = np.random.default_rng(0).integers(N_TOKENS, size=(B, S), dtype=np.int32)
LENGTHS = np.array([11, 7, 5])
RIGHT = np.arange(S) < LENGTHS[:, None]  # b s: the rest is padding
LEFT = RIGHT[:, ::-1]
SHIFTED = np.stack([np.roll(*each) for each in zip(TOKENS, S - LENGTHS, strict=True)])


def make(kind, folder, *, dtype="float32", shard="1GB", **options):
    """Save a random model of a kind in a folder; return it as read from there."""
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

    return cases(run, advance, write, transformers.DynamicCache(config=model.config))


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
        return side.models.generate(model, rows, LENGTH, top_k=1)

    def advance(tokens, cache):
        return call(side.tensor(tokens), None, cache)

    cache = side.models.new_cache(model, zeros, S)
    return cases(run, advance, write, cache)


def difference(found, expected):
    """The largest, relative to the largest logit."""
    return np.abs(found - expected).max() / np.abs(expected).max()


def write(folder, kind, seed):
    """One checkpoint with its tokenizer, and what `transformers` computes with it."""
    model = random_model(kind, seed)
    model = model.bfloat16() if kind == "llama" else model
    model.save_pretrained(folder, max_shard_size="40KB" if kind == "mixtral" else "1GB")
    (folder / "generation_config.json").unlink()
    as_published(folder, kind)
    vocabulary = {c: n for n, c in enumerate([*CHARACTERS, END])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=END))
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    given = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **given).eval()
    tokens = torch.randint(N_TOKENS, (2, 13))
    with torch.inference_mode():
        logits = model(tokens).logits
    save_file({"tokens": tokens, "logits": logits}, folder / "expected.safetensors")


def as_published(folder, kind):
    """What files on the hub have: GPT-2's no prefix, and its masks; Llama's the base of
    its positions on top, as before transformers 5; Qwen3's the output, a tied one, too.
    """
    path, file = folder / "config.json", folder / "model.safetensors"
    config = json.loads(path.read_text("utf-8"))
    del config["transformers_version"]
    tensors = load_file(file) if file.exists() else {}
    if kind == "gpt2":
        tensors = {name.removeprefix("transformer."): x for name, x in tensors.items()}
        n = config["n_positions"]
        mask = torch.ones(n, n).tril()[None, None]
        tensors |= {f"h.{i}.attn.bias": mask.clone() for i in range(config["n_layer"])}
    elif kind == "llama":
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config |= {"rope_scaling": None, "torch_dtype": config.pop("dtype")}
        del config["head_dim"]  # m / n_heads
    elif kind == "qwen3":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    if tensors:
        save_file(tensors, file, metadata={"format": "pt"})
    text = json.dumps(config, indent=2, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    for seed, kind in enumerate(CONFIGS):
        write(Path(sys.argv[1]) / kind, kind, seed)
