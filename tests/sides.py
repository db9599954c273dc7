"""One adapter a framework, so that a test is written once and runs on both.

A side has ``models`` (``helpers.jax`` or ``helpers.torch``), and verbs: ``build`` makes
a module (of a class, or its name), ``tensor`` and ``mask`` convert NumPy arrays,
``grads`` differentiates. ``definitions`` has what stands on a page alone.
"""

import ast
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import jupytext
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

from helpers import jax as models_jax
from helpers import torch as models_torch
from helpers.weights import as_numpy, from_arrays, parameters, to_arrays

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
FOLDED = {"check", "experiment", "figure", "say", "answer", "your-turn"}
DEFINITIONS = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef

jax.config.update("jax_default_matmul_precision", "highest")  # on a GPU too
# Hundreds of shapes run once each: compile them fast. The pages, which check themselves
# against the same reference, run fully optimised.
jax.config.update("jax_disable_most_optimizations", True)


class Jax:
    """What a test needs from JAX and Flax NNX."""

    name, models = "jax", models_jax

    def build(self, kind, *sizes, seed=0, **options):
        kind = getattr(self.models, kind) if isinstance(kind, str) else kind
        return kind(*sizes, rngs=nnx.Rngs(seed), **options)

    def tensor(self, x, dtype=None):
        return jnp.asarray(np.asarray(x), dtype)

    def mask(self, mask):
        return None if mask is None else jnp.asarray(mask)

    def grads(self, model, loss, x, *others, **options):
        """Of ``loss(model(x, …))``: by neutral name, and in a float "input"."""
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def scalar(params, x):
            return loss(nnx.merge(graph, params, rest)(x, *others, **options))

        if not jnp.issubdtype(x.dtype, jnp.floating):
            in_params = jax.jit(jax.grad(scalar))(params, x)
            return to_arrays(nnx.merge(graph, in_params, rest))
        in_params, in_x = jax.jit(jax.grad(scalar, (0, 1)))(params, x)
        return to_arrays(nnx.merge(graph, in_params, rest)) | {"input": as_numpy(in_x)}

    def rates(self, model):
        """The rate of every dropout of the model, by its place in it."""
        parts = {".".join(map(str, path)): x for path, x in nnx.iter_graph(model)}
        return {p: x.rate for p, x in parts.items() if isinstance(x, nnx.Dropout)}


class Torch:
    """What a test needs from PyTorch."""

    name, models = "torch", models_torch

    def build(self, kind, *sizes, seed=0, **options):
        kind = getattr(self.models, kind) if isinstance(kind, str) else kind
        torch.manual_seed(seed)
        return kind(*sizes, **options).to(self.models.device)

    def tensor(self, x, dtype=None):
        x = self.models.tensor(np.array(x))
        return x if dtype is None else x.to(getattr(torch, dtype))

    def mask(self, mask):
        return None if mask is None else self.tensor(mask)

    def grads(self, model, loss, x, *others, **options):
        """Of ``loss(model(x, …))``: by neutral name, and in a float "input"."""
        x = x.detach().clone().requires_grad_(x.is_floating_point())
        model.zero_grad()
        loss(model(x, *others, **options)).backward()
        found = {
            name: as_numpy(param.grad.T if transposed else param.grad)
            for name, param, transposed in parameters(model)
        }
        return found | {"input": as_numpy(x.grad)} if x.requires_grad else found

    def rates(self, model):
        """The rate of every dropout of the model, by its place in it."""
        parts = model.named_modules()
        return {path: part.p for path, part in parts if isinstance(part, nn.Dropout)}


jax_side, torch_side = Jax(), Torch()
on_both_sides = pytest.mark.parametrize(
    "side", [jax_side, torch_side], ids=lambda side: side.name
)


@cache
def definitions(page):
    """A module of what the open cells of a page define, as ``"vision_jax"``, in order.

    A constant that needs a number which the page computes is left out.
    """
    found = ModuleType(page)
    for cell in jupytext.read(NOTEBOOKS / f"{page}.py").cells:
        tags = {*cell.metadata.get("tags", ())}
        if cell.cell_type != "code" or tags & FOLDED:
            continue
        for node in ast.parse(cell.source).body:
            names = [getattr(x, "id", "") for x in getattr(node, "targets", ())]
            constant = names and (tags & {"setup", "export"} or names[0].isupper())
            if isinstance(node, DEFINITIONS) or constant:
                code = compile(ast.Module([node], []), f"{page}.py", "exec")
                with suppress(NameError):
                    exec(code, vars(found))
    return found


def draw(*shape, seed=0, scale=1.0):
    """Normal numbers, the same for the same seed, in float32."""
    x = np.random.default_rng(seed).normal(scale=scale, size=shape)
    return x.astype(np.float32)


def draw_mask(*shape, seed=0, empty_rows=False):
    """A random mask; each row sees a key, or the first row sees none."""
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < 0.5
    seen = rng.integers(shape[-1], size=shape[:-1])
    np.put_along_axis(mask, seen[..., None], True, axis=-1)
    if empty_rows:
        mask[..., 0, :] = False
    return mask


def fill(model, seed=0):
    """Give every parameter a value of its own, biases and norms too; return them.

    The zero biases and unit norms of a new model would hide a term that is left out.
    """
    rng, arrays = np.random.default_rng(seed), {}
    for name, old in sorted(to_arrays(model).items()):
        scale = len(old) ** -0.5 if old.ndim == 2 else 0.3
        middle = old if "norm" in name else 0
        arrays[name] = rng.normal(middle, scale, old.shape).astype(np.float32)
    from_arrays(model, arrays)
    return arrays


def assert_close(got, expected, atol=1e-5, what=""):
    """Equal up to ``atol``, for numbers around 1; a failure says what of."""
    got, expected = as_numpy(got), as_numpy(expected)
    np.testing.assert_allclose(got, expected, atol=atol, rtol=0, err_msg=what)


def stacked(arrays, path=""):
    """Parameters in which ``q`` and ``kv`` of a cross-attention are one ``qkv``."""
    found = dict(arrays)
    for kind in ("weight", "bias") if f"{path}kv.weight" in arrays else ():
        parts = [found.pop(f"{path}{part}.{kind}") for part in ("q", "kv")]
        found[f"{path}qkv.{kind}"] = np.concatenate(parts, axis=-1)
    return found


def with_weights(layer, params, *names):
    """PyTorch's own layer, in float64, with our arrays as its weights and biases."""
    both = [f"{name}.{kind}" for name in names for kind in ("weight", "bias")]
    layer = layer.double().eval()
    for param, name in zip(layer.parameters(), both, strict=True):
        param.data = torch.tensor(params[name].T, dtype=torch.float64)
    return layer


def run_python(code):
    """What a fresh interpreter prints, one that finds the helpers and nothing else."""
    command, env = [sys.executable, "-W", "error", "-c", code], {**os.environ}
    env["PYTHONPATH"] = str(NOTEBOOKS)
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()
