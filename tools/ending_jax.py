"""A language model in one file.

    python model_jax.py my.txt   trains on a text of your own, and writes
    python model_jax.py my.txt --coordinator HOST:PORT --processes 2 …

A second call with the same --folder goes on after the last checkpoint.
"""

from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def batch_of(tokens, length, batch_size, update, sharding):
    """Windows of a text, ``b s+1``, by the update's number, shared by the devices."""
    draw, rank = np.random.default_rng(update), jax.process_index()
    start = draw.integers(len(tokens) - length, size=(batch_size, 1))
    mine = np.split(start, jax.process_count())[rank]
    windows = tokens[mine + np.arange(length + 1)]
    return jax.make_array_from_process_local_data(sharding, windows)


def train(model, tokens, characters, options):
    """Train from the last checkpoint on, on all devices of all processes."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    whole, shared = (NamedSharding(mesh, PartitionSpec(*x)) for x in [(), ("data",)])
    adamw = make_optimizer(1.0, options.weight_decay)
    optimizer = nnx.Optimizer(model, adamw, wrt=nnx.Param)
    parts, learned = (model, optimizer), nnx.Not(nnx.RngState)
    nnx.update(parts, jax.device_put(nnx.state(parts, learned), whole))
    folder, about = Path(options.folder).resolve(), {"characters": characters}
    given = {"options": ocp.CheckpointManagerOptions(2), "metadata": about}
    with ocp.CheckpointManager(folder, **given) as kept:  # a first call's metadata stay
        if kept.metadata().custom_metadata != about:
            raise SystemExit(f"{folder} is of another text: name another --folder")
        if done := kept.latest_step() or 0:
            now = ocp.args.StandardRestore(nnx.state(parts, learned))
            nnx.update(parts, kept.restore(done, args=now))
            print(f"goes on after update {done}")
        for step in range(done + 1, options.updates + 1):
            given = model.max_length, options.batch_size, step, shared
            batch, rate = [batch_of(tokens, *given)], options.learning_rate
            found = update(model, optimizer, next_token, batch, rate)
            if jax.process_index() == 0 and (step == 1 or step % 10 == 0):
                print(f"update {step:4}: loss {found['loss']:.3f}")
            if step % 100 == 0 or step == options.updates:
                kept.save(step, args=ocp.args.StandardSave(nnx.state(parts, learned)))
                kept.wait_until_finished()


def main():
    """Train a model on the characters of a text file, and let it write."""
    parser = arguments()
    parser.add_argument("--coordinator", help="host:port of the first of several")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0, help="the number of this one")
    options = parser.parse_args()
    if where := options.coordinator:
        jax.distributed.initialize(where, options.processes, options.process)
    tokens, numbers, prompt = read_text(parser, options, jax.device_count())
    model = LanguageModel(len(numbers), 64, **SIZES, rngs=nnx.Rngs(0))
    train(model, np.array(tokens, np.int32), "".join(numbers), options)
    if jax.process_index() == 0:
        write_on(model, prompt, numbers)


if __name__ == "__main__":
    main()
