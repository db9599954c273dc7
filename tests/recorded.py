"""The numbers that every model of the book computes, recorded in ``recorded.json``.

Weights and inputs are drawn by NumPy, so that one record holds both frameworks to the
same numbers, whatever becomes of the code. After a change that is meant to change them:

    python tests/recorded.py

writes the record anew, by PyTorch.
"""

import json
import sys
import zlib
from importlib import import_module
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # pytest finds it by its settings
    sys.path.insert(0, str(ROOT / "notebooks"))

from helpers.weights import as_numpy, from_arrays, to_arrays  # noqa: E402
from sides import definitions  # noqa: E402

RECORD = ROOT / "tests" / "recorded.json"
ON_PAGES = {  # what stands on a page alone: chapter by name
    "Translator": "translation",
    "VisionTransformer": "vision",
    "TextClassifier": "finetune",
    "add_lora": "finetune",
    "MaskedLM": "masked",
}

B, S, K = 2, 7, 5
M, H, F, L, T, C = 30, 3, 37, 2, 19, 11  # primes where they can be
SIZES = {"n_blocks": L, "n_heads": H, "f": F}
TEXTS = SIZES | {"max_length": 13}
TODAY = {"n_blocks": L, "n_heads": 6, "f": F, "max_length": 13}
KINDS = {  # of ModernLM, as the configurations of published models make them
    "gpt2": {"norm": "layer", "ffn": "mlp", "positions": "learned", "bias": True},
    "llama": {"n_kv_heads": 2, "d": 10, "base": 5e4, "tied": False, "eps": 2e-3},
    "qwen3": {"n_kv_heads": 3, "d": 14, "qk_norm": True, "base": 1e6},
    "mixtral": {
        "n_kv_heads": 2, "d": 6, "tied": False, "ffn": "experts", "n_experts": 5,
        "n_active": 2,
    },
}  # fmt: skip


def draw(*shape, seed=0):
    """Normal numbers, float32."""
    return np.random.default_rng([*shape, seed]).normal(size=shape).astype(np.float32)


PADDED = np.arange(S) < np.array([[S], [4]])  # b s: True where an element is real
MASK = PADDED[:, None, None]  # b 1 1 k
TOKENS = np.random.default_rng(0).integers(T, size=(B, S), dtype=np.int32)
TEXT = np.where(PADDED, TOKENS, -1)
CAUSAL = np.tri(S, dtype=bool)

MODELS = {  # name: kind, sizes, options, inputs
    "attention": ("MultiHeadAttention", (M, H), {}, (draw(B, S, M), MASK)),
    "attention, causal": ("MultiHeadAttention", (M, H), {}, (draw(B, S, M), CAUSAL)),
    "attention, cross": (
        "MultiHeadAttention", (M, H), {}, (draw(B, S, M), None, draw(B, K, M)),
    ),
    "block, post-norm": ("EncoderBlock", (M, H, F), {}, (draw(B, S, M), MASK)),
    "block, pre-norm": (
        "EncoderBlock", (M, H, F), {"norm_first": True, "activation": "gelu"},
        (draw(B, S, M), MASK),
    ),
    "encoder": ("Encoder", (L, M, H, F), {"norm_first": True}, (draw(B, S, M), MASK)),
    **{
        f"predictor, {name}": (
            "Predictor", (4, M, 3), SIZES | {"positions": name}, (draw(B, S, 4), MASK),
        )
        for name in ("none", "sinusoidal", "learned", "rotary")
    },
    "sequence classifier": (
        "SequenceClassifier", (4, M, C), TEXTS, (draw(B, S, 4), PADDED),
    ),
    "vision, token": (
        "VisionTransformer", (8, 3, M, C), SIZES | {"patch": 2}, (draw(B, 8, 8, 3),),
    ),
    "language model": ("LanguageModel", (T, M), TEXTS | {"norm_first": True}, (TEXT,)),
    "language model, rotary": (
        "LanguageModel", (T, M), TEXTS | {"positions": "rotary", "tied": False},
        (TEXT,),
    ),
    "translator": ("Translator", (T, M), TEXTS, (TEXT, TEXT)),
    "translator, pre-norm": (
        "Translator", (T, M), TEXTS | {"norm_first": True}, (TEXT, TOKENS[:, :K]),
    ),
    **{
        f"today, {name}": ("ModernLM", (T, M), TODAY | options, (TEXT,))
        for name, options in KINDS.items()
    },
    "bert": ("MaskedLM", (T, M), TEXTS, (TEXT,)),
    "albert": ("MaskedLM", (T, M), TEXTS | {"n_embed": 13, "shared": True}, (TEXT,)),
    "text classifier with adapters": ("TextClassifier", (C,), {}, (TEXT,)),
}  # fmt: skip


def definition(side, name):
    """A class or function of the helpers, or of the page that it stands on."""
    if name in ON_PAGES:
        return getattr(definitions(f"{ON_PAGES[name]}_{side}"), name)
    return getattr(import_module(f"helpers.{side}"), name)


def new(side, kind, *sizes, **options):
    """A module, made in the way of its framework."""
    if side == "jax":
        from flax import nnx

        options["rngs"] = nnx.Rngs(0)
    return definition(side, kind)(*sizes, **options)


def text_classifier(side, n_classes):
    """A Llama with an output for classes, and adapters of queries and values."""
    trunk = new(side, "ModernLM", T, M, **TODAY | KINDS["llama"])
    return new(side, "add_lora", new(side, "TextClassifier", trunk, n_classes), 2, 3.0)


def filled(model):
    """The model with drawn numbers for weights: norms around 1, no bias of 0.

    What is drawn for a weight depends on its name alone.
    """
    arrays = to_arrays(model)
    for name, old in arrays.items():
        x = draw(*old.shape, seed=zlib.crc32(name.encode()))
        norm = "norm" in name and name.endswith("weight")
        arrays[name] = norm + x * (len(old) ** -0.5 if old.ndim == 2 else 0.3)
    from_arrays(model, arrays)
    return model


def computed(side, name):
    """What a model computes in float32: shape, first numbers, two sums over all."""
    kind, sizes, options, inputs = MODELS[name]
    if kind == "TextClassifier":
        model = filled(text_classifier(side, *sizes))
    else:
        model = filled(new(side, kind, *sizes, **options))
    model.eval()
    if side == "torch":
        import torch

        with torch.no_grad():
            out = model(*(x if x is None else torch.tensor(x) for x in inputs))
    else:
        import jax

        with jax.default_matmul_precision("float32"):
            out = model(*inputs)
    out = as_numpy(out[0] if isinstance(out, tuple) else out)
    flat = np.where(PADDED[..., None], out, 0) if out.shape[:2] == (B, S) else out
    flat = flat.astype(np.float64).ravel()  # positions of padding count nowhere
    numbers = [*flat[:5], np.abs(flat).mean(), flat @ np.cos(np.arange(flat.size))]
    return {"shape": list(out.shape), "numbers": [float(f"{x:.7g}") for x in numbers]}


if __name__ == "__main__":
    lines = [f'"{name}": {json.dumps(computed("torch", name))}' for name in MODELS]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
