"""Training on the characters of a text: the end of ``model_jax.py``."""

import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx

from helpers.jax import LanguageModel, build, generate


def make_optimizer(model, learning_rate):
    """AdamW, with weight decay on the matrices of the layers and the embedding only."""

    def decays(params):
        names = jax.tree.map_with_path(lambda path, _: str(path), params)
        return jax.tree.map(lambda name: "kernel" in name or "embedding" in name, names)

    adamw = optax.adamw(learning_rate, b2=0.95, weight_decay=0.1, mask=decays)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), adamw)
    return nnx.Optimizer(model, clipped, wrt=nnx.Param)


@partial(jax.jit, static_argnames="graph", donate_argnames="state")
def update(state, tokens, *, graph):
    """One step on windows of text, ``b s+1``: the new state, and the loss before it."""
    model, optimizer = nnx.merge(graph, state)

    def loss_fn(model):
        logits = model(tokens[:, :-1])  # b s c
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), loss


def train(model, tokens, *, n_updates=100, batch_size=8, learning_rate=3e-3):
    """Train on random windows of a text, which is one long row of tokens."""
    optimizer = make_optimizer(model, learning_rate)
    graph, state = nnx.split((model, optimizer))
    window, rng = np.arange(model.max_length + 1), np.random.default_rng(0)
    for n in range(1, n_updates + 1):
        start = rng.integers(len(tokens) - model.max_length, size=(batch_size, 1))
        state, loss = update(state, tokens[start + window], graph=graph)
        if n == 1 or n % 10 == 0:  # seldom: the device has to wait while it is printed
            print(f"update {n:4}: loss {loss:.3f}")
    nnx.update((model, optimizer), state)


def main(path=__file__):
    """Train a small model on the characters of a text file, and let it write."""
    text = Path(path).read_text(encoding="utf-8")
    characters = sorted(set(text))
    numbers = {character: n for n, character in enumerate(characters)}
    tokens = np.array([numbers[character] for character in text], np.int32)
    model = build(
        LanguageModel, len(characters), 64, n_blocks=2, n_heads=4, f=256,
        max_length=128, positions="rotary", norm="rms", norm_first=True,
        activation="gelu",
    )  # fmt: skip
    if len(text) <= model.max_length:
        sys.exit(f"expected a text of more than {model.max_length} characters")
    train(model, tokens)
    prompt = text[:16]
    written = generate(model, [[numbers[c] for c in prompt]], 112, temperature=0.8)
    print(prompt + "".join(characters[n] for n in written[0].tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
