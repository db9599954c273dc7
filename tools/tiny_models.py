"""Make the tiny checkpoints anew that the chapter *The Transformer of today* reads.

    python tools/tiny_models.py [FOLDER]        by default notebooks/helpers/data/tiny

Four random models, made with `transformers`, in the form in which real ones are
published, each with tokens and the logits that `transformers` computes of them. Tests
make theirs with ``random_model``.
"""

import json
import sys
from copy import deepcopy
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models

TINY = Path(__file__).resolve().parents[1] / "notebooks" / "helpers" / "data" / "tiny"
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


def main(folder=TINY):
    """Write all four folders."""
    for seed, kind in enumerate(CONFIGS):
        write(Path(folder) / kind, kind, seed)


def write(folder, kind, seed):
    """One checkpoint with its tokenizer, and what `transformers` computes with it."""
    model = random_model(kind, seed)
    if kind == "llama":
        model = model.bfloat16()
    shards = {"max_shard_size": "40KB"} if kind == "mixtral" else {}
    model.save_pretrained(folder, **shards)
    (folder / "generation_config.json").unlink()
    as_published(folder, kind)
    tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = torch.randint(N_TOKENS, (2, 13))
    with torch.inference_mode():
        logits = model(tokens).logits
    save_file({"tokens": tokens, "logits": logits}, folder / "expected.safetensors")


def as_published(folder, kind):
    """Give a folder the peculiarities of the files that are on the hub.

    GPT-2's tensors have no prefix, and its masks are among them; Llama's configuration
    has the base of its rotary positions on top, as all had before transformers 5;
    Qwen3's file has the output, although it is the embedding.
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


def tokenizer():
    """One token for each character, in the format of `tokenizers`."""
    vocabulary = {c: n for n, c in enumerate([*CHARACTERS, END])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=END))
    made.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    made.decoder = decoders.Fuse()
    return made


if __name__ == "__main__":
    main(*sys.argv[1:])
