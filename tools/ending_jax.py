"""Training on a text of one's own: the end of ``scripts/model_jax.py``."""

import argparse
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from helpers.jax.decoder import LanguageModel, generate
from helpers.jax.reverse import make_optimizer


def batch_of(tokens, length, batch_size, update, sharding):
    """Windows of a text, ``b s+1``, by the update's number, shared by the devices."""
    draw, rank = np.random.default_rng(update), jax.process_index()
    start = draw.integers(len(tokens) - length, size=(batch_size, 1))
    mine = np.split(start, jax.process_count())[rank]
    windows = tokens[mine + np.arange(length + 1)]
    return jax.make_array_from_process_local_data(sharding, windows)


@partial(jax.jit, static_argnames="graph", donate_argnames="state")
def step(state, rest, batch, rate, *, graph):
    """One update on windows ``b s+1``: the new state, and the loss before it."""
    model, optimizer = nnx.merge(graph, state, rest)

    def loss_fn(model):
        logits = model(batch[:, :-1])  # b s c
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:])
        return losses.mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads, rate=rate)
    return nnx.split((model, optimizer), nnx.RngState, ...)[2], loss


def train(model, tokens, characters, options):
    """Train from the last checkpoint on, on all devices of all processes."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    shared = NamedSharding(mesh, PartitionSpec("data"))
    adamw = make_optimizer(1.0, options.weight_decay)
    optimizer = nnx.Optimizer(model, adamw, wrt=nnx.Param)
    graph, rest, state = nnx.split((model, optimizer), nnx.RngState, ...)
    state = jax.device_put(state, everywhere)
    folder, done = Path(options.folder).resolve(), 0
    given = {"options": ocp.CheckpointManagerOptions(2)}
    given["metadata"] = {"characters": characters}  # those of the first call stay
    with ocp.CheckpointManager(folder, **given) as kept:
        if kept.metadata().custom_metadata != given["metadata"]:
            raise SystemExit(f"{folder} is of another text: name another --folder")
        if kept.latest_step() is not None:
            done = kept.latest_step()
            state = kept.restore(done, args=ocp.args.StandardRestore(state))
            print(f"goes on after update {done}")
        for update in range(done + 1, options.updates + 1):
            given = model.max_length, options.batch_size, update, shared
            batch = batch_of(tokens, *given)
            rate = options.learning_rate
            state, loss = step(state, rest, batch, rate, graph=graph)
            if jax.process_index() == 0 and (update == 1 or update % 10 == 0):
                print(f"update {update:4}: loss {loss:.3f}")
            if update % 100 == 0 or update == options.updates:
                kept.save(update, args=ocp.args.StandardSave(state))
                kept.wait_until_finished()
    nnx.update((model, optimizer), state)


def main():
    """Train a model on the characters of a text file, and let it write."""
    parser = argparse.ArgumentParser(description="Train a language model on a text.")
    parser.add_argument("text", nargs="?", default=__file__, help="a file in UTF-8")
    parser.add_argument("--folder", default="run", help="of checkpoints")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8, help="of all processes")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--prompt", help="by default how the text begins")
    parser.add_argument("--coordinator", help="host:port of the first of several")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0, help="the number of this one")
    options = parser.parse_args()
    if options.coordinator:
        given = options.coordinator, options.processes, options.process
        jax.distributed.initialize(*given)

    try:
        text = Path(options.text).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"expected a text in UTF-8: {error}")
    characters = "".join(sorted(set(text)))
    prompt = options.prompt or text[:16]
    if unknown := set(prompt) - set(text):
        parser.error(f"the text has no {sorted(unknown)}, which the prompt has")
    numbers = {character: n for n, character in enumerate(characters)}
    tokens = np.array([numbers[character] for character in text], np.int32)
    sizes = {"n_blocks": 2, "n_heads": 4, "f": 256, "max_length": 128}
    choices = {"positions": "rotary", "norm_first": True, "activation": "gelu"}
    model = LanguageModel(len(characters), 64, **sizes, **choices, rngs=nnx.Rngs(0))
    n, length = jax.device_count(), model.max_length
    if len(text) <= length or options.batch_size % n:
        parser.error(
            f"expected a text of more than {length} characters and a batch that "
            f"{n} devices share, got {len(text)}, {options.batch_size}"
        )
    train(model, tokens, characters, options)
    if jax.process_index() == 0:
        written = generate(model, [[numbers[c] for c in prompt]], 100, temperature=0.8)
        print(prompt + "".join(characters[n] for n in written[0].tolist()))


if __name__ == "__main__":
    main()
