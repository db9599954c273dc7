"""Memory and time of attention by length: written out against the framework's own.

    python -m benchmarks.attention --framework torch

A language model makes an update, and an evaluation, of a batch of texts. Each number is
from a process of its own. Only who computes attention differs.
"""

import argparse
import importlib
import json
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

import numpy as np

from benchmarks import measure, run

SIZES = {"n_blocks": 4, "n_heads": 4, "f": 1024}
N_TOKENS, M, TEXTS = 128, 256, 4
LENGTHS = 64, 128, 256, 512, 1024, 2048
WAYS, WORKS = ("written out", "framework's own"), ("update", "evaluation")
REPEATS = 4  # the first one warms up
COLUMNS = (
    "work", "length", *(f"{way}, {unit}" for unit in ("MiB", "ms") for way in WAYS),
    "MiB, ratio", "ms, ratio",
)  # fmt: skip


def model_of(framework, way, length):
    """The model, whose attention is computed in one of the ways."""
    models = importlib.import_module(f"helpers.{framework}")
    if way == "written out":
        file = importlib.import_module(f"helpers.{framework}.attention")
        file.fused_attention = lambda *args, **options: file.attention(
            *args, **options
        )[0]
    return models.build(models.LanguageModel, N_TOKENS, M, max_length=length, **SIZES)


def torch_work(way, work, length, tokens):
    """A function that does the work once, and the MiB that it adds to the process."""
    import torch

    from helpers.torch import make_optimizer, next_token

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model_of("torch", way, length).to(device)
    tokens = torch.as_tensor(tokens, device=device)
    optimizer = make_optimizer(model)

    def update():
        optimizer.zero_grad()
        next_token(model, tokens)[0].backward()
        optimizer.step()

    @torch.inference_mode()
    def evaluation():
        next_token(model, tokens)[0].item()

    def peak():
        if device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return measure.peak_mib()

    before = peak()
    return {"update": update, "evaluation": evaluation}[work], lambda: peak() - before


def jax_work(way, work, length, tokens):
    """The same; the memory is what XLA has planned for the compiled work."""
    import jax
    import optax
    from flax import nnx

    from helpers.jax import next_token

    model = model_of("jax", way, length)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adam(1e-3)

    def loss_of(params):
        return next_token(nnx.merge(graph, params, rest), tokens)[0]

    def update(params, opt_state):
        steps, opt_state = optimizer.update(jax.grad(loss_of)(params), opt_state)
        return optax.apply_updates(params, steps), opt_state

    given = (params, optimizer.init(params)) if work == "update" else (params,)
    function = {"update": update, "evaluation": loss_of}[work]
    compiled = jax.jit(function).lower(*given).compile()
    planned = compiled.memory_analysis().temp_size_in_bytes / 2**20
    return lambda: jax.block_until_ready(compiled(*given)), lambda: planned


def one(framework, way, work, length):
    """MiB and milliseconds of one kind of work, in this process."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(N_TOKENS, size=(TEXTS, length + 1))
    make = {"torch": torch_work, "jax": jax_work}[framework]
    function, peak = make(way, work, length, tokens)
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return {"mib": peak(), "ms": 1e3 * min(seconds[1:])}


def report(record):
    """The record as Markdown."""
    lines = []
    for work in WORKS:
        for length in LENGTHS:
            found = [record["measured"][f"{way}, {work}, {length}"] for way in WAYS]
            cells = [f"{each[unit]:.0f}" for unit in ("mib", "ms") for each in found]
            ratios = [
                f"{found[0][unit] / max(found[1][unit], 1e-3):.2f}"
                for unit in ("mib", "ms")
            ]
            lines.append([work, f"{length}", *cells, *ratios])
    facts = record["about"] | {"sizes": record["sizes"], "texts": TEXTS}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"{run.table(COLUMNS, lines)}\n\n{facts}\n"


def main():
    """Measure all, each in a process of its own, and write both files."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--framework", choices=measure.FRAMEWORKS, required=True)
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    parser.add_argument("--one", nargs=3, help="way, work and length, in this process")
    given = parser.parse_args()
    if given.one:
        way, work, length = given.one
        print(json.dumps(one(given.framework, way, work, int(length))))
        return
    measured = {}
    for length in LENGTHS:
        for work in WORKS:
            for way in WAYS:
                found = run.child(
                    "attention",
                    "--one",
                    way,
                    work,
                    f"{length}",
                    framework=given.framework,
                )
                measured[f"{way}, {work}, {length}"] = json.loads(
                    found.splitlines()[-1]
                )
                print(way, work, length, found, flush=True)
    about = run.machine([{"one": {"device": measure.device(given.framework)}}])
    about |= {"framework": given.framework, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"about": about, "sizes": SIZES | {"m": M}, "measured": measured}
    named = SimpleNamespace(
        output=given.output, task="attention", framework=given.framework
    )
    print(*run.write(named, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
