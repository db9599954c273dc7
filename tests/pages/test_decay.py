"""The usual optimiser of *reverse* decays the same weights in both frameworks.

By the names of the weights file, with gradients of 0, after which only what decays has
changed.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

import pages
from helpers.engine.weights import from_arrays, to_arrays
from helpers.schedules import warmup_cosine
from sides import jax_side, torch_side

SIZES = {"n_blocks": 1, "n_heads": 2, "f": 11}
LEARNED = {"positions": "learned", "max_length": 5}
MODELS = {
    "Predictor": ((3, 8, 7), SIZES | LEARNED | {"norm": "rms"}),
    "LanguageModel": ((17, 8), SIZES | LEARNED | {"tied": False}),
    "Translator": ((13, 17, 8), SIZES | LEARNED),
    "VisionTransformer": ((6, 1, 8, 7), SIZES | {"patch": 3, "pool": "token"}),
}
OF_PAGE = {
    "jax": {"jax": jax, "nnx": nnx, "optax": optax},
    "torch": {"torch": torch, "math": math},
}


def optimizer_of(side):
    """``usual_optimizer`` of a page."""
    found = dict(OF_PAGE[side.name])
    path = pages.NOTEBOOKS / f"reverse_{side.name}.py"
    exec(pages.definition(path, "usual_optimizer"), found)
    return found["usual_optimizer"]


def update_with_zeros(side, model):
    """One update by the usual optimiser, with gradients of 0."""
    if side is torch_side:
        optimizer, _ = optimizer_of(side)(model, total=20)
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        optimizer.step()
    else:
        optimizer = optimizer_of(side)(model, total=20)
        zeros = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
        optimizer.update(model, zeros)


def decaying(side, name):
    """Names of the weights that decay; all start at 1."""
    sizes, options = MODELS[name]
    model = side.build(name, *sizes, **options)
    from_arrays(model, {k: np.ones_like(x) for k, x in to_arrays(model).items()})
    update_with_zeros(side, model)
    return {k for k, x in to_arrays(model).items() if (x < 1).all()}


@pytest.mark.parametrize("name", MODELS)
def test_the_matrices_of_layers_and_embeddings_decay_and_nothing_else(name):
    sizes, options = MODELS[name]
    arrays = to_arrays(torch_side.build(name, *sizes, **options))
    expected = {k for k, x in arrays.items() if x.ndim > 1 and k.endswith("weight")}
    others = {k for k, x in arrays.items() if x.ndim > 1} - expected
    assert {k.rpartition(".")[2] for k in others} in ({"table"}, {"table", "token"})
    for side in (jax_side, torch_side):
        assert decaying(side, name) == expected, f"another set in {side.name}"


@pytest.mark.parametrize("total", [2, 19, 20, 100])
def test_the_rate_rises_over_a_twentieth_and_falls_along_a_cosine(total):
    """In PyTorch; JAX has this schedule from Optax."""
    optimizer, scheduler = optimizer_of(torch_side)(torch.nn.Linear(1, 1), total, 2.0)
    for step in range(total):
        expected = warmup_cosine(step, warmup=max(1, total // 20), total=total)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(2.0 * expected)
        optimizer.step()
        scheduler.step()
