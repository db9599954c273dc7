"""Masked language modelling: which tokens are hidden, and what is asked there."""

import numpy as np

from helpers.engine.checks import expect


def mask_tokens(tokens, n_tokens, mask_token, rng, share=0.15):
    """Inputs and labels of masked language modelling: integers ``b s`` -> twice ``b s``.

    Each token is asked for with probability ``share``: there the label is the token,
    elsewhere -1. Of those asked for, 80 % become ``mask_token``, 10 % a random token
    below ``n_tokens``, 10 % stay. Padding, which is negative, is never asked for.

    Source: Devlin et al. 2019, sec. 3.1.
    """
    tokens = np.asarray(tokens)
    expect(tokens.dtype.kind in "iu", "tokens as whole numbers", tokens.dtype)
    expect(0 < share <= 1, "a share in (0, 1]", share)
    largest = tokens.max(initial=-1)
    expect(largest < n_tokens, f"tokens below n_tokens = {n_tokens}", largest)
    wanted = f"a mask_token that is none of the {n_tokens} tokens"
    expect(mask_token >= n_tokens, wanted, mask_token)
    asked, way = rng.random((2, *tokens.shape))
    asked = (asked < share) & (tokens >= 0)
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
    found = [f"{x.dtype} {x.shape}" for x in data]
    expect(valid, f"inputs and labels b s of whole numbers as {what}", found)
    low, high, n = np.min(data), np.max(data), model.embed.num_embeddings
    wanted = f"tokens from 0 to {n - 1}, or -1, in the {what}"
    expect(low >= -1 and high < n, wanted, f"{low} to {high}")
    real, asked = data[0] >= 0, data[1] >= 0
    valid = asked.any() and (real | ~asked).all()
    expect(valid, f"some labels, none at padding, in the {what}", asked[real].sum())
