"""How products are computed: with all of float32, or compiled for a GPU."""

from contextlib import nullcontext

import torch

full_float32 = nullcontext  # for comparisons: PyTorch's default, also on a GPU
LONG = 5_000  # updates; compiling takes longer than a short training


def for_training(model, device, settings):
    """The model itself, or on a GPU, for a long training, compiled with its weights."""
    pays = device.type == "cuda" and settings.updates >= LONG
    return torch.compile(model) if pays else model
