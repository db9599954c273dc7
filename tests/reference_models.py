"""Whole models in NumPy float64, made of the parts of ``helpers.reference``.

Both frameworks and the JavaScript of the playground are compared with them. Parameters
and options are as there.
"""

import numpy as np

from helpers.reference import (
    dense,
    encoder,
    encoder_block,
    grouped_attention,
    inside,
    normalise,
    relu,
    sinusoidal_positions,
    swiglu,
)


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
