"""Training on the characters of a text: the end of ``model_torch.py``."""

import sys
from pathlib import Path

import torch
from torch import nn

from helpers.torch import LanguageModel, build, generate


def make_optimizer(model, learning_rate):
    """AdamW, with weight decay on the matrices of the layers and the embedding only."""
    decay, keep = [], []
    for name, param in model.named_parameters():
        is_matrix = name.endswith("weight") and param.ndim > 1
        (decay if is_matrix else keep).append(param)
    groups = [{"params": decay}, {"params": keep, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, learning_rate, betas=(0.9, 0.95), weight_decay=0.1)


def update(model, optimizer, tokens):
    """One step on windows of text, ``b s+1``: the loss before it."""
    logits = model(tokens[:, :-1])  # b s c
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train(model, tokens, *, n_updates=100, batch_size=8, learning_rate=3e-3):
    """Train on random windows of a text, which is one long row of tokens."""
    optimizer = make_optimizer(model, learning_rate)
    window = torch.arange(model.max_length + 1, device=tokens.device)
    for n in range(1, n_updates + 1):
        last = len(tokens) - model.max_length
        start = torch.randint(last, (batch_size, 1), device=tokens.device)
        loss = update(model, optimizer, tokens[start + window])
        if n == 1 or n % 10 == 0:  # seldom: a GPU has to wait while it is printed
            print(f"update {n:4}: loss {loss.item():.3f}")


def main(path=__file__):
    """Train a small model on the characters of a text file, and let it write."""
    text = Path(path).read_text(encoding="utf-8")
    characters = sorted(set(text))
    numbers = {character: n for n, character in enumerate(characters)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.tensor([numbers[character] for character in text], device=device)
    model = build(
        LanguageModel, len(characters), 64, n_blocks=2, n_heads=4, f=256,
        max_length=128, positions="rotary", norm="rms", norm_first=True,
        activation="gelu",
    ).to(device)  # fmt: skip
    if len(text) <= model.max_length:
        sys.exit(f"expected a text of more than {model.max_length} characters")
    train(model, tokens)
    prompt = text[:16]
    written = generate(model, [[numbers[c] for c in prompt]], 112, temperature=0.8)
    print(prompt + "".join(characters[n] for n in written[0].tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
