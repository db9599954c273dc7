"""Where the time of some updates goes: ``python -m benchmarks.run --profile``.

PyTorch: the ten most expensive operators of each way. JAX: the parts of the usual way,
one waiting for the other, and the first (compiled) and second epoch of ``fit``.
"""

import tempfile
import time
from collections import Counter

from benchmarks.measure import WAYS, Case, arguments


def operators(train, count=10):
    """The operators that take most time themselves: ``(name, calls, share)``."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + on_gpu]
    with profile(activities=kinds) as profiler:
        train()
    name = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    events = sorted(profiler.key_averages(), key=lambda e: -getattr(e, name))
    total = sum(getattr(event, name) for event in events)
    return [(e.key, e.count, getattr(e, name) / total) for e in events[:count]]


def clocked(parts, name, function):
    """The same function, whose seconds are added to ``parts[name]``; waits for it."""
    import jax

    def call(*args):
        began = time.perf_counter()
        result = jax.block_until_ready(function(*args))
        parts[name] += time.perf_counter() - began
        return result

    return call


class ClockedLoader:
    """A loader whose seconds are added to ``parts``."""

    def __init__(self, parts, loader):
        self.parts, self.loader = parts, loader

    def __iter__(self):
        batches = iter(self.loader)
        following = clocked(self.parts, "loading", lambda: next(batches, None))
        while (batch := following()) is not None:
            yield batch


def parts_of_usual(training):
    """Seconds of each part of the usual way; the first step compiles."""
    parts = Counter()
    step = training.update

    def first(*args):
        training.update = clocked(parts, "steps after", step)
        return clocked(parts, "first step", step)(*args)

    training.update = first
    training.batches = ClockedLoader(parts, training.batches)
    training.move = clocked(parts, "transfer", training.move)
    training.write = clocked(parts, "log", training.write)
    training.evaluate = clocked(parts, "validation", training.evaluate)
    training.fit()
    return parts


def parts_of_fit(case):
    """Seconds of the first and the second epoch of ``fit``, without files."""
    from helpers.sequences import shuffled

    loss, data, options = case.arguments()
    settings, batches = case.settings, options.get("batches", shuffled(case.settings))
    args = case.model, loss, data, settings, options["validation"]
    trainer = case.trainer.Trainer(*args, case.trainer.find_device())
    parts, rates = Counter(), settings.learning_rates[: settings.updates_per_epoch]
    rows = clocked(parts, "drawing batches", batches)(0)
    clocked(parts, "compile and run", trainer.epoch)(rows, rates)
    clocked(parts, "run", trainer.epoch)(rows, rates)
    clocked(parts, "first validation", trainer.score)()
    clocked(parts, "validation", trainer.score)()
    return parts


def profile_jax(given, way, folder):
    """Lines of a table."""
    case = Case(given.task, given.framework, given.updates)
    n = case.settings.updates
    parts = parts_of_usual(case.usual(folder)()) if way == "usual" else None
    parts = parts or parts_of_fit(case)
    yield f"{n} updates | s | ms/update"
    for name, seconds in parts.items():
        yield f"{name} | {seconds:.3f} | {1000 * seconds / n:.2f}"


def profile_torch(given, way, folder):
    """Lines of a table."""
    case = Case(given.task, given.framework, given.updates)
    yield f"{case.settings.updates} updates | calls | share"
    for name, count, share in operators(case.train(way, folder)):
        yield f"{name} | {count} | {share:.1%}"


if __name__ == "__main__":
    given = arguments()
    lines = {"jax": profile_jax, "torch": profile_torch}[given.framework]
    for way in WAYS:
        print(f"\n{given.task}, {given.framework}, {way}\n")
        with tempfile.TemporaryDirectory() as folder:
            head, *rest = lines(given, way, folder)
        print(f"| {head} |\n| --- | ---: | ---: |")
        print("\n".join(f"| {line} |" for line in rest))
