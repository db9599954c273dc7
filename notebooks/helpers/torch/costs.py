"""Written by `make sync` from notebooks/costs_torch.py."""

import torch

__all__ = "activations kept_arrays".split()


def kept_arrays(function, *args):
    """What the forward pass of ``function(*args)`` keeps, by address."""
    kept = {}

    def keep(x):
        kept.setdefault(x.data_ptr(), x)  # the same memory counts once
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        function(*args)
    return kept


def activations(model, function, *args):
    """Tensors that ``function(model, *args)`` keeps, except the parameters."""
    parameters = {p.data_ptr() for p in model.parameters()}
    kept = kept_arrays(function, model, *args)
    return [a for address, a in kept.items() if address not in parameters]
