"""Milliseconds of an update on 1 to 4 processes of a machine: strong, weak scaling.

    python -m benchmarks.scaling --framework torch

Each process has one thread, on a core of its own as long as there are cores. Strong:
128 texts in all, as evenly as they go; weak: 64 texts for each process.
"""

import argparse
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

import numpy as np

from benchmarks import measure, run
from helpers.engine import jobs

SIZES = {"n_blocks": 4, "n_heads": 4, "f": 1024, "max_length": 32}
N_TOKENS, M, LENGTH = 128, 256, 33
STRONG, WEAK = 128, 64  # texts in all, texts for each process
UPDATES = 7  # the first two warm up
PROCESSES = 1, 2, 3, 4
COLUMNS = "scaling", "processes", "texts", "ms per update", "(range)"


def texts(n):
    """Made-up tokens ``n s+1``."""
    return np.random.default_rng(0).integers(N_TOKENS, size=(n, LENGTH), dtype=np.int32)


def pin(rank, n):
    """A core of its own for each process, if there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    if n <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})


def timed(update):
    """Seconds of each update but the first two."""
    seconds = []
    for _ in range(UPDATES):
        start = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - start)
    return seconds[2:]


def torch_process(n, batch):
    """Seconds of updates with ``batch`` texts in this process; bytes of a gradient."""
    pin(int(os.environ["RANK"]), n)
    import torch

    from helpers.torch import LanguageModel, build, next_token

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = build(LanguageModel, N_TOKENS, M, **SIZES)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())
    tokens = torch.as_tensor(texts(batch), dtype=torch.long)

    def update():
        loss, _ = next_token(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    seconds = timed(update)
    torch.distributed.destroy_process_group()
    return seconds, sum(p.nbytes for p in model.parameters())


def jax_process(rank, port, n, batch):
    """Seconds of updates with ``batch`` texts in this process; bytes of a gradient."""
    pin(rank, n)
    import jax
    import optax
    from flax import nnx
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from helpers.jax import LanguageModel, build, next_token, on_all_devices

    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(f"localhost:{port}", n, rank)
    model = build(LanguageModel, N_TOKENS, M, **SIZES)
    on_all_devices(model)
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    mesh = jax.make_mesh((jax.device_count(),), ("d",), (AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("d"))
    tokens = jax.make_array_from_process_local_data(rows, texts(batch))

    @nnx.jit
    def step(model, optimizer, tokens):
        loss, grads = nnx.value_and_grad(lambda m: next_token(m, tokens)[0])(model)
        optimizer.update(model, grads)
        return loss

    def update():
        step(model, optimizer, tokens).block_until_ready()

    params = jax.tree.leaves(nnx.state(model, nnx.Param))
    return timed(update), sum(x.nbytes for x in params)


def measured(framework, scaling, n):
    """One line of the record, and the bytes of a gradient."""
    each = STRONG // n if scaling == "strong" else WEAK
    if framework == "torch":
        found = jobs.torchrun(torch_process, n, n, each)
    else:
        found = jobs.together(jax_process, n, jobs.free_port(), n, each)
    seconds, n_bytes = found[0]
    line = {"scaling": scaling, "processes": n, "batch": n * each}
    line |= {"milliseconds": 1e3 * median(seconds)}
    return line | {"range": [1e3 * min(seconds), 1e3 * max(seconds)]}, n_bytes


def report(record):
    """The record as Markdown."""
    lines = [
        [one["scaling"], f"{one['processes']}", f"{one['batch']}",
         f"{one['milliseconds']:.0f}",
         "{:.0f} to {:.0f}".format(*one["range"])]
        for one in record["rows"]
    ]  # fmt: skip
    facts = record["about"] | {"sizes": record["sizes"], "cores": record["cores"]}
    facts |= {"bytes of a gradient": f"{record['gradient_bytes']:,}"}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"{facts}\n\n{run.table(COLUMNS, lines)}\n"


def main():
    """Measure all, and write both files."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--framework", choices=measure.FRAMEWORKS, required=True)
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    given = parser.parse_args()
    rows = []
    for scaling in ("strong", "weak"):
        for n in PROCESSES:
            line, n_bytes = measured(given.framework, scaling, n)
            rows.append(line)
            print(json.dumps(line), flush=True)
    about = {"device": run.processor(), **run.machine([{"fit": {"device": None}}])}
    about |= {"framework": given.framework, "date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": "scaling", "about": about, "rows": rows, "sizes": SIZES}
    record |= {"cores": len(os.sched_getaffinity(0)), "gradient_bytes": n_bytes}
    named = SimpleNamespace(
        output=given.output, task="scaling", framework=given.framework
    )
    print(*run.write(named, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
