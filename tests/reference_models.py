"""Whole models in NumPy float64, made of the parts of ``helpers.reference``.

Both frameworks and the playground's JavaScript are compared with them.
"""

import numpy as np

from helpers.reference import (
    attention,
    dense,
    encoder,
    encoder_block,
    inside,
    normalise,
    relu,
    sinusoidal_positions,
)


def rotated(x, base=10_000.0):
    """Features i and i + d/2 as one complex number, turned by position: ``… s d``.

    Source: Su et al. 2021, sec. 3.4.2; pairs as in Llama.
    """
    first, second = np.split(x, 2, axis=-1)
    d, places = x.shape[-1], np.arange(x.shape[-2])[:, None]
    turn = np.exp(1j * places / base ** (np.arange(0, d, 2) / d))  # s d/2
    turned = (first + 1j * second) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def grouped_attention(x, params, n_heads):
    """Causal attention whose query heads share keys: ``b s m -> b s m, b h s s``.

    Source: Ainslie et al. 2023.
    """
    d = params["q.weight"].shape[1] // n_heads
    q, k, v = (x @ params[f"{name}.weight"] for name in "qkv")
    q, k, v = (y.reshape(*y.shape[:2], -1, d).swapaxes(1, 2) for y in (q, k, v))
    k, v = (np.repeat(y, n_heads // y.shape[1], axis=1) for y in (rotated(k), v))
    mask = np.tri(x.shape[1], dtype=bool)
    values, weights = attention(rotated(q), k, v, mask)  # b h s d
    joined = values.swapaxes(1, 2).reshape(*x.shape[:2], -1)
    return joined @ params["out.weight"], weights


def swiglu(x, params):
    """Gated feed-forward net (Shazeer 2020, eq. 6): ``… m -> … m``."""
    gate, up = x @ params["gate.weight"], x @ params["up.weight"]
    return (gate / (1 + np.exp(-gate)) * up) @ params["down.weight"]


def predictor(x, params, n_blocks, n_heads):
    """The model of the reverse task, without dropout: ``b s i -> b s c, l b h s s``."""
    x = dense(np.asarray(x, dtype=np.float64), params, "embed")
    x = x + sinusoidal_positions(*x.shape[1:])
    x, maps = encoder(x, inside(params, "encoder."), n_blocks, n_heads)
    x = relu(normalise(dense(x, params, "hidden"), params, "hidden_norm"))
    return dense(x, params, "output"), maps


def embedded(tokens, params):
    """Vectors of tokens and positions, learned or sinusoidal: ``b s -> b s m``."""
    x = params["embed.weight"][tokens].astype(np.float64)
    table = params.get("positions.table", sinusoidal_positions(*x.shape[1:]))
    return x + table[: x.shape[1]]


def language_model(tokens, params, n_blocks, n_heads, context, norm_first=False):
    """Logits of the next token, tied: ``b s -> b s t, l b h s s, l b h s k``."""
    x, maps, causal = embedded(tokens, params), [], np.tri(tokens.shape[1], dtype=bool)
    options = {"norm_first": norm_first, "context": context}
    for block in range(n_blocks):
        own = inside(params, f"decoder.blocks.{block}.")
        x, *weights = encoder_block(x, own, n_heads, causal, **options)
        maps.append(weights)
    if norm_first:
        x = normalise(x, params, "decoder.norm")
    weights, cross = (np.stack(each) for each in zip(*maps, strict=True))
    return x @ params["embed.weight"].T, weights, cross


def translator(source, target, params, n_blocks, n_heads, norm_first=False):
    """Logits of the target for a source without padding: ``b k, b s -> b s t, …``.

    The two share one embedding; the maps are those of ``language_model``.
    """
    own = inside(params, "target.")
    shared = params | {"embed.weight": own["embed.weight"]}
    encoder_params, options = inside(params, "encoder."), {"norm_first": norm_first}
    x = embedded(source, shared)
    context, _ = encoder(x, encoder_params, n_blocks, n_heads, **options)
    return language_model(target, own, n_blocks, n_heads, context, **options)


def modern_lm(tokens, params, n_blocks, n_heads):
    """Logits of the block of today, tied: ``b s -> b s t, l b h s s``."""
    params = {name: array.astype(np.float64) for name, array in params.items()}
    x, maps, rms = params["embed.weight"][tokens], [], ("rms", 1e-6)
    for block in range(n_blocks):
        own = inside(params, f"blocks.{block}.")
        seen = normalise(x, own, "norm1", *rms)
        values, weights = grouped_attention(seen, inside(own, "attention."), n_heads)
        x = x + values
        x = x + swiglu(normalise(x, own, "norm2", *rms), inside(own, "ffn."))
        maps.append(weights)
    x = normalise(x, params, "norm", *rms)
    return x @ params["embed.weight"].T, np.stack(maps)


def vision_transformer(images, params, patch, n_blocks, n_heads):
    """The model of pictures, with a class token: ``b y x i -> b c, l b h s s``.

    Source: Dosovitskiy et al. 2021, sec. 3.1.
    """
    b, height, width, i = images.shape
    grid = b, height // patch, patch, width // patch, patch, i
    rows = images.reshape(grid).swapaxes(2, 3).reshape(b, -1, patch * patch * i)
    x = dense(rows, params, "embed")  # b n m
    token = np.broadcast_to(params["token"], (b, 1, x.shape[2]))
    x = np.concatenate([token, x], axis=1) + params["positions.table"]  # b s m
    options = {"activation": "gelu", "norm_first": True}
    x, maps = encoder(x, inside(params, "encoder."), n_blocks, n_heads, **options)
    return dense(x[:, 0], params, "output"), maps
