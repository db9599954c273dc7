"""What pages about training define: decay, rates, dropout; and the file for ONNX."""

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
MODELS = {  # sizes; both have learned positions
    "Predictor": ((3, 8, 7), {"positions": "learned", "max_length": 5}),
    "LanguageModel": ((17, 8), {"positions": "learned", "max_length": 5}),
}
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


def after_an_update_with_zeros(side, model):
    """All weights by name, from 1, after one step with gradients of 0."""
    optimizer = of_page(side, "reverse", "usual_optimizer")(model, total=20)
    if side == "torch":
        for weight in model.parameters():
            torch.nn.init.ones_(weight)
            weight.grad = torch.zeros_like(weight)
        optimizer[0].step()
        return {name: x.detach() for name, x in model.named_parameters()}
    weights = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(jnp.ones_like, weights))
    optimizer.update(model, jax.tree.map(jnp.zeros_like, weights))
    found, _ = jax.tree.flatten_with_path(nnx.state(model, nnx.Param))
    return {jax.tree_util.keystr(path): x for path, x in found}


@pytest.mark.parametrize("name", MODELS)
def test_the_matrices_of_layers_and_embeddings_decay_and_nothing_else(name):
    """In both frameworks as many weights; of matrices only tables of positions stay."""
    decayed, (sizes, options) = [], MODELS[name]
    for side in pages.SIDES:
        model = made(side, getattr(ROOM[side], name), *sizes, **options)
        weights = after_an_update_with_zeros(side, model)
        small = {k for k, x in weights.items() if (x < 1).all()}
        stay = {k for k, x in weights.items() if x.ndim > 1} - small
        assert all(weights[k].ndim > 1 for k in small), small
        assert len(stay) == 1 and "table" in stay.pop(), stay
        decayed.append(sum(math.prod(weights[k].shape) for k in small))
    assert decayed[0] == decayed[1]


@pytest.mark.parametrize("total", [2, 19, 100])
def test_the_rates_in_pytorch_are_those_of_optax(total):
    """Five per cent of warm-up, then a cosine."""
    usual = of_page("torch", "reverse", "usual_optimizer")
    optimizer, scheduler = usual(torch.nn.Linear(1, 1), total, 2.0)
    w = max(1, total // 20)
    rates = optax.warmup_cosine_decay_schedule(2.0 / w, 2.0, w - 1, total)
    for step in range(total):
        rate = optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(float(rates(step)), abs=1e-6)  # in float32
        optimizer.step()
        scheduler.step()


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


@by_side
def test_the_loop_of_warmup_draws_new_masks(side):
    """In one call, and from call to call; the rate is 0, so that only masks differ."""
    train = of_page(side, "warmup", "train")
    model = made(side, ROOM[side].Predictor, 3, 8, 7, dropout=0.5)
    model.train()
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    x, labels, rows = tensors(
        side, x, np.ones((4, 5), int), np.tile(np.arange(4), (6, 1))
    )
    rates = tensors(side, np.zeros(6, np.float32))[0]
    losses = [*train(model, (x, labels), rows, rates).tolist()]
    losses += train(model, (x, labels), rows, rates).tolist()
    assert len({*losses}) == 12 and all(map(math.isfinite, losses))


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
