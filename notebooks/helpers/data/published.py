"""What published language models call their sizes and their weights."""

KINDS = "gpt2", "llama", "qwen3", "mixtral"
NAMES = {  # theirs: ours, in this order
    "transformer.": "", "model.": "", "embed_tokens.": "embed.", "layers.": "blocks.",
    "self_attn.o_proj": "attention.out", "self_attn.": "attention.",
    "input_layernorm": "norm1", "post_attention_layernorm": "norm2",
    "block_sparse_moe.": "ffn.", "mlp.": "ffn.", "ffn.gate.": "ffn.router.",
    "_proj.": ".", "w1.": "gate.", "w3.": "up.", "w2.": "down.", "lm_head.": "output.",
}  # fmt: skip
NAMES_OF_GPT2 = {
    "transformer.": "", "wte.": "embed.", "wpe.": "positions.", "h.": "blocks.",
    "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out", "ln_1": "norm1",
    "ln_2": "norm2", "ln_f": "norm", "mlp.c_fc": "ffn.up", "mlp.c_proj": "ffn.down",
    "lm_head.": "output.",
}  # fmt: skip
TABLES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # not learned


def arguments_of(config):
    """Arguments of ``ModernLM`` for a configuration; ValueError for what it has not."""
    kind = config.get("model_type")
    gpt2 = kind == "gpt2"
    activation = config.get("activation_function" if gpt2 else "hidden_act")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    for what, found, known in (
        ("model_type", kind, KINDS),
        ("activation", activation, ("gelu_new" if gpt2 else "silu",)),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), ("default",)),
        ("sliding_window", config.get("sliding_window"), (None,)),
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
        "max_length": config["max_position_embeddings"], "base": base,
        "bias": config.get("attention_bias", False), "eps": config["rms_norm_eps"],
        "tied": config.get("tie_word_embeddings", False),
    }  # fmt: skip


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
        found.pop("output.weight", None)  # a copy of the embedding, if there is one
    for name, x in found.items():
        stored = gpt2 and name != "output.weight"  # as inputs × outputs
        linear = x.ndim == 2 and not name.startswith(("embed.", "positions."))
        found[name] = x.T if linear and stored != in_out else x
    return found
