"""What *When training fails* defines: losses with dropout; and the file for ONNX."""

import math
import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.utils.checkpoint import checkpoint

import pages
from helpers import jax as in_jax
from helpers import torch as in_torch

ROOM = {"jax": in_jax, "torch": in_torch}
SIZES = {"n_blocks": 1, "n_heads": 2, "f": 11}
by_side = pytest.mark.parametrize("side", pages.SIDES)


def of_page(side, chapter, *names):
    """Definitions of a page, as a reader copies them."""
    found = {"jax": jax, "jnp": jnp, "nnx": nnx, "optax": optax, "partial": partial}
    if side == "torch":
        found = {"torch": torch, "nn": torch.nn, "math": math, "checkpoint": checkpoint}
    found |= {
        x: getattr(ROOM[side], x) for x in ("cross_entropy", "SequenceClassifier")
    }
    for name in names:
        path = pages.NOTEBOOKS / f"{chapter}_{side}.py"
        exec(pages.definition(path, name), found)
    return found[names[-1]]


def made(side, kind, *sizes, **options):
    random = {"rngs": nnx.Rngs(0)} if side == "jax" else {}
    return kind(*sizes, **SIZES, **options, **random)


def tensors(side, *arrays):
    return [jnp.array(x) if side == "jax" else torch.tensor(x) for x in arrays]


@by_side
@pytest.mark.parametrize("loss", ["class_loss", "half_loss"])
def test_each_call_of_a_loss_draws_a_new_dropout_mask(side, loss):
    """Also with recomputation, and with products in half precision."""
    kind = of_page(side, "debugging", "Recomputed")
    model = made(side, kind, 3, 8, 7, max_length=5, dropout=0.5)
    model.train()
    loss_fn = of_page(side, "debugging", "class_loss", loss)
    loss_fn = nnx.jit(loss_fn) if side == "jax" else loss_fn
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    batch = tensors(side, x, np.ones((4, 5), bool), np.arange(4))
    losses = [loss_fn(model, *batch)[0].item() for _ in range(6)]
    assert len({*losses}) == 6, "the same masks in several calls"


ONNX = """
import sys
import numpy as np, onnxruntime, torch
sys.path.insert(0, {notebooks!r})
from helpers.torch import SequenceClassifier

def batch(n):
    x, real = torch.randn(n, 7, 5), torch.ones(n, 7, dtype=torch.bool)
    real[1, 3:] = False
    return x, real

sizes = {{"n_blocks": 2, "n_heads": 3, "f": 11, "max_length": 7}}
model = SequenceClassifier(5, 12, 4, **sizes).eval()
rows = {{0: torch.export.Dim("b")}}
shapes = {{"x": rows, "real": rows}}
program = torch.export.export(model, batch(2), dynamic_shapes=shapes)
{line}
x, real = batch(3)
session = onnxruntime.InferenceSession("reader.onnx")
(found,) = session.run(None, {{"x": x.numpy(), "real": real.numpy()}})
np.testing.assert_allclose(found, model(x, real).detach(), atol=1e-5)
"""


def test_the_line_for_onnx_writes_a_file_with_the_same_numbers(tmp_path):
    """On a padded batch of another size; Colab has no ONNX, so the page cannot."""
    cells = pages.read_py(pages.NOTEBOOKS / "debugging_torch.py")
    text = "\n".join(cell.source for cell in cells if cell.kind == "markdown")
    (line,) = re.findall(r"```python\n(.*onnx.*)\n```", text)
    source = ONNX.format(notebooks=str(pages.NOTEBOOKS), line=line)
    run = [sys.executable, "-I", "-c", source]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
