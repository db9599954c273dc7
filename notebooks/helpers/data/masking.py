"""Masked language modelling: which tokens are hidden, and what is asked there."""

import numpy as np

from helpers.engine.checks import expect


def mask_tokens(tokens, n_tokens, mask_token, rng, share=0.15, special=()):
    """Inputs and labels of masked language modelling: integers ``b s`` -> twice ``b s``.

    Each token is asked for with probability ``share``: there the label is the token,
    elsewhere -1. Of those asked for, 80 % become ``mask_token``, 10 % a random token
    below ``n_tokens``, 10 % stay. Never asked for: padding, which is negative, and
    ``special`` tokens, such as those of a published vocabulary at its ends.

    Source: Devlin et al. 2019, sec. 3.1.
    """
    tokens, largest = np.asarray(tokens), np.max(tokens, initial=-1)
    expect(tokens.dtype.kind in "iu", "tokens as whole numbers", tokens.dtype)
    expect(0 < share <= 1, "a share in (0, 1]", share)
    expect(largest < n_tokens, f"tokens below n_tokens = {n_tokens}", largest)
    expect(mask_token >= 0, "mask_token >= 0: -1 is padding", mask_token)
    first, way = rng.random((2, *tokens.shape))
    asked = (first < share) & (tokens >= 0) & ~np.isin(tokens, special)
    others = rng.integers(n_tokens, size=tokens.shape)
    changed = np.select([way < 0.8, way < 0.9], [mask_token, others], tokens)
    inputs, labels = np.where(asked, changed, tokens), np.where(asked, tokens, -1)
    return inputs.astype(tokens.dtype), labels.astype(tokens.dtype)


def count_asked(inputs, labels):
    """How many tokens of each text are asked for: what ``masked_token`` is a mean of."""
    return (labels >= 0).sum(1)


def check_masked(model, data, what):
    """Check inputs and labels ``b s`` that a model knows; -1: padding, not asked for."""
    kinds = [(x.shape, x.ndim, x.dtype.kind in "iu") for x in data]
    valid = len(data) == 2 and kinds == [(data[0].shape, 2, True)] * 2
    kinds = [f"{x.dtype} {x.shape}" for x in data]
    expect(valid, f"inputs and labels b s of whole numbers as {what}", kinds)
    low, high, n = np.min(data), np.max(data), model.embed.num_embeddings
    expect(-1 <= low <= high < n, f"{what} below {n}, or -1", f"{low} to {high}")
    asked, at = (data[1] >= 0).sum(), ((data[1] >= 0) & (data[0] < 0)).sum()
    wanted = f"labels in the {what}, but none at padding"
    expect(asked > at == 0, wanted, f"{asked}, {at} of them at padding")
