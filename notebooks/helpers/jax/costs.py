"""Written by `make sync` from notebooks/costs_jax.py."""

import jax
from flax import nnx

__all__ = "activations kept_arrays".split()


def kept_arrays(function, *args):
    """What the forward pass of ``function(*args)`` keeps, but its arguments: a dict."""
    kept = {}

    def forward(args):
        _, backward = jax.vjp(function, *args)  # a pytree
        given = {id(a) for a in jax.tree.leaves(args)}
        arrays = {id(a): a for a in jax.tree.leaves(backward)}  # each one once
        kept.update({i: a for i, a in arrays.items() if i not in given})
        return 0

    jax.eval_shape(forward, args)  # runs Python with shapes in place of numbers
    return kept


def activations(model, function, *args):
    """Arrays that ``function(model, *args)`` keeps, except the parameters."""
    structure, params, rest = nnx.split(model, nnx.Param, ...)

    def of_params(params):
        return function(nnx.merge(structure, params, rest, copy=True), *args)

    return [*kept_arrays(of_params, params).values()]
