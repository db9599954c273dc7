"""What compilation costs and gains: seconds to the first gradient, then milliseconds.

    python -m benchmarks.compilation --framework torch

A child process, whose compiler has kept nothing, measures each way. Run it on a quiet
machine.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

import numpy as np

from benchmarks import measure, run

SIZES = {"n_inputs": 128, "m": 128, "n_outputs": 4, "n_blocks": 2, "n_heads": 4}
SIZES |= {"f": 512, "max_length": 128}
BATCH, CALLS = 16, 20
WAYS = "operation by operation", "compiled"


def inputs():
    """Made-up sequences ``b s i`` and classes ``b s``."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((BATCH, 128, 128), np.float32)
    return x, draw.integers(SIZES["n_outputs"], size=(BATCH, 128))


def torch_gradient(compiled):
    """A function that computes the loss's gradient and waits for it."""
    torch = importlib.import_module("torch")
    models = importlib.import_module("helpers.torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = models.build(models.Predictor, **SIZES).to(device)
    x, labels = (torch.as_tensor(a, device=device) for a in inputs())

    def loss():
        logits = model(x).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, labels.flatten())

    loss = torch.compile(loss) if compiled else loss

    def gradient():
        found = torch.autograd.grad(loss(), list(model.parameters()))
        return found[0].cpu()  # waits for a GPU

    return gradient


def jax_gradient(compiled):
    """A function that computes the loss's gradient and waits for it."""
    jax, nnx = (importlib.import_module(name) for name in ("jax", "flax.nnx"))
    optax = importlib.import_module("optax")
    models = importlib.import_module("helpers.jax")
    model = models.build(models.Predictor, **SIZES)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    x, labels = map(jax.numpy.asarray, inputs())

    def loss(params):
        logits = nnx.merge(graph, params, rest)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    gradient = jax.jit(jax.grad(loss)) if compiled else jax.grad(loss)
    return lambda: jax.block_until_ready(gradient(params))


def measured(framework, compiled):
    """Seconds of the first call, median milliseconds of the later ones."""
    gradient = {"torch": torch_gradient, "jax": jax_gradient}[framework](compiled)
    times = []
    for _ in range(1 + CALLS):
        start = time.perf_counter()
        gradient()
        times.append(time.perf_counter() - start)
    return {"first_s": times[0], "later_ms": 1e3 * median(times[1:])}


def child(framework, way):
    """Measured in a process of its own, with empty caches of compiled code."""
    command = [sys.executable, "-m", "benchmarks.compilation", "--way", way]
    with tempfile.TemporaryDirectory() as empty:
        caches = {"TORCHINDUCTOR_CACHE_DIR": empty, "TRITON_CACHE_DIR": empty}
        done = subprocess.run(
            [*command, "--framework", framework], cwd=run.ROOT, check=True,
            env=os.environ | caches, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def report(record):
    """The record as Markdown."""
    columns = "gradient", "first call (s)", "later calls (ms)"
    lines = [
        [way, f"{one['first_s']:.2f}", f"{one['later_ms']:.1f}"]
        for way, one in record["ways"].items()
    ]
    facts = record["about"] | {"sizes": record["sizes"], "batch": record["batch"]}
    facts = "\n".join(f"* {name}: {value}" for name, value in facts.items())
    return f"{facts}\n\n{run.table(columns, lines)}\n"


def main():
    """Measure both ways, and write both files; with ``--way``, print one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=measure.FRAMEWORKS, required=True)
    parser.add_argument("--way", choices=WAYS, help="only this one, printed as JSON")
    parser.add_argument("--output", type=Path, default=run.ROOT / "benchmarks/results")
    given = parser.parse_args()
    if given.way:
        found = measured(given.framework, given.way == WAYS[1])
        print(json.dumps(found | {"device": measure.device(given.framework)}))
        return
    ways = {way: child(given.framework, way) for way in WAYS}
    about = run.machine([{"fit": ways[WAYS[0]]}]) | {"framework": given.framework}
    about |= {"date": f"{datetime.now():%Y-%m-%d %H:%M}"}
    record = {"task": "compilation", "about": about, "sizes": SIZES, "batch": BATCH}
    record |= {"ways": ways}
    named = SimpleNamespace(
        output=given.output, task="compilation", framework=given.framework
    )
    print(*run.write(named, report(record), record), sep="\n")


if __name__ == "__main__":
    main()
