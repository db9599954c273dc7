"""``train_memory_*``: what a forward pass keeps, where it can be counted by hand."""

import jax.numpy as jnp
import pytest
import torch
from flax import nnx
from torch import nn

from helpers import jax as model_jax
from helpers import torch as model_torch
from helpers.jax import memory as train_memory_jax
from helpers.torch import memory as train_memory_torch

SIDES = {
    "jax": (train_memory_jax, jnp, lambda: model_jax.build(nnx.Linear, 3, 5)),
    "torch": (train_memory_torch, torch, lambda: model_torch.build(nn.Linear, 3, 5)),
}


@pytest.fixture(params=SIDES)
def side(request):
    return SIDES[request.param]


def test_the_bytes_are_those_of_the_inputs_and_of_one_result(side):
    """The exponential is kept for its own gradient: a fourth array of this size."""
    memory, framework, _ = side
    x = framework.ones((2, 3, 5))
    kept = memory.kept_bytes(lambda q, k, v: framework.exp(q), x)
    assert kept == 4 * 30 * 4


def test_parameters_are_no_activations(side):
    memory, framework, build = side
    x = framework.ones((7, 3))
    kept = memory.activations(build(), lambda model, x: framework.exp(model(x)), x)
    shapes = sorted(tuple(a.shape) for a in kept)
    assert (7, 5) in shapes and (3, 5) not in shapes and (5, 3) not in shapes
