"""What callers ask of a model, checked before any work, in either framework."""

from operator import index


def expect(valid, what, got):
    """Raise ValueError, with what was expected and what came, unless it is valid."""
    if not valid:
        raise ValueError(f"expected {what}, got {got}")


def check_kind(model, kind):
    """The model, if it is one of this framework."""
    expect(isinstance(model, kind), f"a model of {kind}", type(model))
    return model


def check_prompts(model, prompts, length, end=None):
    """The prompts as lists of whole numbers, if the model can continue them."""
    try:
        rows = [[index(token) for token in prompt] for prompt in prompts]
    except TypeError:
        what = "prompts b s of whole numbers, as [[1, 2]]"
        raise ValueError(f"expected {what}, got {prompts!r:.80}") from None
    sizes = [len(row) for row in rows]
    got = f"prompts of {sizes} tokens and length = {length}"
    valid = length >= 1 and rows and min(sizes)
    expect(valid, "prompts of at least one token and length >= 1", got)
    if max(sizes) + length > model.max_length:
        raise ValueError(
            f"a prompt of {max(sizes)} tokens and length = {length} need "
            f"{max(sizes) + length} positions, but max_length = {model.max_length}"
        )
    n_tokens = model.embed.num_embeddings
    unknown = [t for row in rows for t in row if not 0 <= t < n_tokens]
    expect(not unknown, f"tokens from 0 to {n_tokens - 1}", next(iter(unknown), None))
    valid = end is None or 0 <= end < n_tokens
    expect(valid, f"end from 0 to {n_tokens - 1}", end)
    return rows


def check_sampling(temperature, top_k, top_p):
    """Raise ValueError unless ``next_token_probabilities`` can draw like that."""
    expect(temperature > 0, "temperature above 0", temperature)
    expect(top_k is None or top_k >= 1, "top_k of at least 1", top_k)
    expect(top_p is None or 0 < top_p <= 1, "top_p in (0, 1]", top_p)


def check_search(model, source, length, begin, end, width):
    """Raise ValueError unless a ``Translator`` can translate a source like that."""
    embed = model.embed or model.target.embed
    n_target, longest = model.target.embed.num_embeddings, model.target.max_length
    shape, n_source = tuple(source.shape), embed.num_embeddings
    expect(
        min(length, width) >= 1 and max(length, shape[1]) <= longest,
        f"length and width of at least 1 and at most max_length = {longest} positions",
        f"length = {length}, width = {width} and a source of shape {shape}",
    )
    low, high = source.min(), source.max()
    valid = low >= -1 and high < n_source and (source >= 0).any(1).all()
    what = f"source tokens below {n_source}, or -1 for padding, one or more in each row"
    expect(valid, what, f"{low} to {high}")
    valid = begin != end and min(begin, end) >= 0 and max(begin, end) < n_target
    expect(valid, f"begin ≠ end below {n_target}", f"{begin}, {end}")
