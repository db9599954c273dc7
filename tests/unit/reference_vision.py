"""The vision Transformer in NumPy float64, made of ``helpers.reference``."""

import numpy as np

from helpers import reference


def vision_transformer(
    images, params, patch, n_blocks, n_heads, *, return_maps=False, **options
):
    """The model of pictures, without dropout: ``b y x i -> b c``; maps ``l b h s s``.

    A class token and learned positions are taken if the parameters have them, else the
    mean over the patches and sinusoidal positions; ``options`` are those of
    ``encoder_block``.

    Source: Dosovitskiy et al. 2021, sec. 3.1.
    """
    rows = [
        [
            image[y : y + patch, x : x + patch].ravel()
            for y in range(0, images.shape[1], patch)
            for x in range(0, images.shape[2], patch)
        ]
        for image in np.asarray(images, dtype=np.float64)
    ]
    x = reference.dense(np.array(rows), params, "embed")  # b n m
    if "token" in params:
        token = np.broadcast_to(params["token"], (len(x), 1, x.shape[2]))
        x = np.concatenate([token, x], axis=1)  # b s m
    x = x + params.get("positions.table", reference.sinusoidal_positions(*x.shape[1:]))
    options = {"activation": "gelu", "norm_first": True, **options}
    x, maps = reference.encoder(
        x, reference.inside(params, "encoder."), n_blocks, n_heads, **options
    )
    x = reference.dense(
        x[:, 0] if "token" in params else x.mean(axis=1), params, "output"
    )
    return (x, maps) if return_maps else x
