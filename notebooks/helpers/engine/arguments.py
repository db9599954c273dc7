"""What callers ask of a model, checked before any work, in either framework."""

from operator import index


def check_kind(model, kind):
    """The model, if it is one of this framework."""
    if not isinstance(model, kind):
        raise ValueError(f"expected a model of {kind}, got {type(model)}")
    return model


def check_prompts(model, prompts, length, end=None):
    """The prompts as lists of whole numbers, if the model can continue them."""
    try:
        rows = [[index(token) for token in prompt] for prompt in prompts]
    except TypeError:
        what = "prompts b s of whole numbers, as [[1, 2]]"
        raise ValueError(f"expected {what}, got {prompts!r:.80}") from None
    sizes = [len(row) for row in rows]
    if length < 1 or not rows or not min(sizes):
        raise ValueError(
            f"expected prompts of at least one token and length >= 1, got prompts of "
            f"{sizes} tokens and length = {length}"
        )
    if max(sizes) + length > model.max_length:
        raise ValueError(
            f"a prompt of {max(sizes)} tokens and length = {length} need "
            f"{max(sizes) + length} positions, but max_length = {model.max_length}"
        )
    n_tokens = model.embed.num_embeddings
    if unknown := [t for row in rows for t in row if not 0 <= t < n_tokens]:
        raise ValueError(f"expected tokens from 0 to {n_tokens - 1}, got {unknown[0]}")
    if end is not None and not 0 <= end < n_tokens:
        raise ValueError(f"expected end from 0 to {n_tokens - 1}, got {end}")
    return rows


def check_sampling(temperature, top_k, top_p):
    """Raise ValueError unless ``next_token_probabilities`` can draw like that."""
    if not temperature > 0:
        raise ValueError(f"expected temperature above 0, got {temperature}")
    if top_k is not None and not top_k >= 1:
        raise ValueError(f"expected top_k of at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"expected top_p in (0, 1], got {top_p}")


def check_search(model, source, length, begin, end, width):
    """Raise ValueError unless a ``Translator`` can translate a source like that."""
    embed = model.embed or model.target.embed
    n_target, longest = model.target.embed.num_embeddings, model.target.max_length
    if min(length, width) < 1 or max(length, source.shape[1]) > longest:
        raise ValueError(
            f"expected length and width of at least 1 and at most max_length = "
            f"{longest} positions, got length = {length}, width = {width} and a source "
            f"of shape {tuple(source.shape)}"
        )
    known = -1 <= source.min() <= source.max() < embed.num_embeddings
    if not (source >= 0).any(1).all() or not known:
        raise ValueError(
            f"expected source tokens below {embed.num_embeddings}, or -1 for padding, "
            f"one or more in each row, got {source.min()} to {source.max()}"
        )
    if begin == end or not 0 <= min(begin, end) <= max(begin, end) < n_target:
        raise ValueError(f"expected begin ≠ end below {n_target}, got {begin}, {end}")
