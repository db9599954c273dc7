"""One training, in a process of its own so that compilation counts; prints JSON.

    python -m benchmarks.training --task reverse --framework jax --way fit

The usual way is that of a tutorial: a data set that gives one example, a loader that
collects them, one update a call, four numbers to a log after each of them. Both ways
have the same model, the same weights, settings and number of updates.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from dataclasses import replace
from importlib import import_module

import numpy as np
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter

from helpers.data import text
from helpers.data.byte_pairs import BytePairs
from helpers.data.sequences import in_order, one_hot, reverse_data
from helpers.settings import Settings

REVERSE = Settings(
    n_train=50_000, batch_size=128, epochs=4, learning_rate=1e-3, warmup=50
)
LANGUAGE = Settings(
    n_train=16 * 65, batch_size=16, epochs=10, learning_rate=6e-3, warmup=60
)
LENGTH, N_TOKENS = 64, 97 + 512
SIZES = {
    "reverse": {
        "n_inputs": 10, "m": 32, "n_outputs": 10, "n_blocks": 1, "n_heads": 1, "f": 64
    },
    "language": {
        "n_tokens": N_TOKENS, "m": 96, "n_blocks": 4, "n_heads": 4, "f": 384,
        "max_length": LENGTH, "norm_first": True,
    },
}  # fmt: skip


class Reversals(Dataset):
    """A sequence of integers, made one-hot, and the same from its end."""

    def __init__(self, sequences):
        self.sequences = sequences

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        x = self.sequences[index]
        return one_hot(x, 10), x[::-1].copy()


class Windows(Dataset):
    """A window of a text, and one token more."""

    def __init__(self, tokens, n):
        self.tokens, self.n = tokens, n

    def __len__(self):
        return self.n

    def __getitem__(self, _):
        start = np.random.randint(len(self.tokens) - LENGTH)
        return (self.tokens[start : start + LENGTH + 1],)


def data_of(task, settings):
    """Arrays of training and validation, options of ``fit``, and the usual data set."""
    if task == "reverse":
        data = reverse_data(settings.n_train, 16)
        usual = Reversals(data["train"][0].argmax(-1).astype(np.int32))
        return data["train"], data["validation"], {}, usual
    texts = text.load()
    pairs = BytePairs.learn(texts["train"], N_TOKENS)
    tokens, held_out = (pairs.encode(texts[part]) for part in ("train", "test"))
    draw = np.random.default_rng(settings.seed)
    starts = draw.integers(
        len(tokens) - LENGTH, size=settings.epochs * settings.n_train
    )
    rows = np.asarray(tokens)[starts[:, None] + np.arange(LENGTH + 1)]
    validation = text.windows(held_out[: 100 * LENGTH + 1], LENGTH)
    usual = Windows(np.asarray(tokens), settings.n_train)
    return (rows,), (validation,), {"batches": in_order(settings)}, usual


def model_of(task, framework):
    """The model of a task, untrained, and its loss function."""
    room = import_module(f"helpers.{framework}")
    kind = room.Predictor if task == "reverse" else room.LanguageModel
    loss_fn = room.cross_entropy if task == "reverse" else room.next_token
    if framework == "torch":
        import_module("torch").manual_seed(0)
        return kind(**SIZES[task]).to(room.device), loss_fn
    keys = import_module("flax.nnx").Rngs(0)
    return kind(**SIZES[task], rngs=keys), loss_fn


def usual_torch(model, loss_fn, settings):
    """A function that makes one update of the usual training in PyTorch."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    rates = [*settings.learning_rates.tolist(), 0.0]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates.__getitem__)
    device = next(model.parameters()).device
    model.train()

    def update(batch):
        batch = [torch.as_tensor(x, device=device) for x in batch]
        batch = [x if x.is_floating_point() else x.long() for x in batch]
        loss, metrics = loss_fn(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        limit = settings.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        rate = schedule.get_last_lr()[0]
        schedule.step()
        return loss.item(), metrics["accuracy"].item(), rate, norm.item()

    return update


def usual_jax(model, loss_fn, settings):
    """A function that makes one update of the usual training in JAX."""
    import optax
    from flax import nnx

    top, peak = settings.warmup - 1, settings.learning_rate
    rates = optax.warmup_cosine_decay_schedule(
        peak / settings.warmup, peak, warmup_steps=top, decay_steps=settings.updates
    )
    clip = optax.clip_by_global_norm(settings.max_grad_norm)
    chain = optax.chain(clip, optax.adam(rates))
    optimizer, steps = nnx.Optimizer(model, chain, wrt=nnx.Param), iter(range(10**9))
    model.train()

    @nnx.jit
    def step(model, optimizer, batch):
        gradient = nnx.value_and_grad(loss_fn, has_aux=True)
        (loss, metrics), grads = gradient(model, *batch)
        optimizer.update(model, grads)
        return loss, metrics["accuracy"], optax.tree.norm(grads)

    def update(batch):
        loss, accuracy, norm = step(model, optimizer, batch)
        return float(loss), float(accuracy), float(rates(next(steps))), float(norm)

    return update


def collect(examples):
    """Examples as a batch of NumPy arrays."""
    return tuple(map(np.stack, zip(*examples, strict=True)))


def measure(task, framework, way, updates=None):
    """Seconds of a training, and what came out of it."""
    settings = REVERSE if task == "reverse" else LANGUAGE
    if updates:
        n = updates * settings.batch_size
        warmup = min(settings.warmup, max(1, updates // 2))
        settings = replace(settings, n_train=n, epochs=1, warmup=warmup)
    model, loss_fn = model_of(task, framework)
    train, validation, options, examples = data_of(task, settings)
    evaluate = import_module(f"helpers.{framework}").evaluate
    with tempfile.TemporaryDirectory() as folder:
        log, began = SummaryWriter(folder), time.perf_counter()
        if way == "fit":
            fit = import_module(f"helpers.{framework}").fit
            history = fit(
                model, loss_fn, train, settings, validation=validation, **options
            )
            losses = history["loss"].tolist()
            for name in ("loss", "accuracy", "learning_rate", "grad_norm"):
                for i, number in enumerate(history[name]):
                    log.add_scalar(f"train/{name}", number, i)
        else:
            make = usual_torch if framework == "torch" else usual_jax
            update, losses = make(model, loss_fn, settings), []
            sizes = {"batch_size": settings.batch_size, "drop_last": True}
            loader = DataLoader(examples, shuffle=True, collate_fn=collect, **sizes)
            for _ in range(settings.epochs):
                for batch in loader:
                    numbers = update(batch)
                    names = "loss", "accuracy", "learning_rate", "grad_norm"
                    for name, number in zip(names, numbers, strict=True):
                        log.add_scalar(f"train/{name}", number, len(losses))
                    losses.append(numbers[0])
                evaluate(model, loss_fn, validation)
        log.close()
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds,
        "updates": len(losses),
        "loss": float(np.mean(losses[-100:])),
        "validation_accuracy": evaluate(model, loss_fn, validation)["accuracy"],
        "peak_mib": peak / (2**20 if sys.platform == "darwin" else 2**10),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=SIZES, required=True)
    parser.add_argument("--framework", choices=["jax", "torch"], required=True)
    parser.add_argument("--way", choices=["usual", "fit"], default="fit")
    parser.add_argument("--updates", type=int)
    print(json.dumps(measure(**vars(parser.parse_args()))))
