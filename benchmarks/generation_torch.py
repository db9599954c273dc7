"""Ways to generate in PyTorch: ``(model, prompts, length) -> b length``."""

import torch

from helpers.torch import generate, next_token_probabilities

GREEDY = 1e-9  # temperature: only the most probable token is left, and nothing sorted


def book(model, prompts, length):
    """``generate``, which keeps keys and values in a cache."""
    return generate(model, prompts, length, temperature=GREEDY)


@torch.no_grad()
def without_cache(model, prompts, length):
    """The whole text through the model again for each token."""
    tokens = torch.as_tensor(prompts, device=model.embed.weight.device)  # b s
    for _ in range(length):
        p = next_token_probabilities(model(tokens)[:, -1], GREEDY)
        tokens = torch.cat([tokens, torch.multinomial(p, 1)], dim=1)
    return tokens[:, -length:]


WAYS = {"book": book, "without cache": without_cache}
