"""Masked language modelling: which tokens are hidden, and what is asked there."""

import numpy as np


def mask_tokens(tokens, n_tokens, mask_token, rng, share=0.15, special=()):
    """Inputs and labels of masked language modelling: integers ``b s`` -> twice ``b s``.

    Each token is asked for with probability ``share``: there the label is the token,
    elsewhere -1. Of those asked for, 80 % become ``mask_token``, 10 % a random token
    below ``n_tokens``, 10 % stay. Never asked for: padding, which is negative, and
    ``special`` tokens, such as those of a published vocabulary at its ends.

    Source: Devlin et al. 2019, sec. 3.1.
    """
    first, way = rng.random((2, *tokens.shape))
    asked = (first < share) & (tokens >= 0) & ~np.isin(tokens, special)
    others = rng.integers(n_tokens, size=tokens.shape)
    changed = np.select([way < 0.8, way < 0.9], [mask_token, others], tokens)
    inputs, labels = np.where(asked, changed, tokens), np.where(asked, tokens, -1)
    return inputs.astype(tokens.dtype), labels.astype(tokens.dtype)
