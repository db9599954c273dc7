"""The chapter *Attention* builds these: attention, its masks, several heads."""

import math

import torch
from torch import nn


def check_shapes(q, k, v):
    """Raise ValueError unless the inputs are ``... q d, ... k d, ... k e``."""
    d = q.shape[-1]
    if d == 0 or d != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"expected ... q d, ... k d, ... k e, got {shapes}")


def check_mask(mask, shape):
    """Raise an error unless a mask is boolean and fits weights of a shape ``... q k``.

    A mask has two axes, or as many as the weights; those of size 1 broadcast. Three for
    weights ``b h q k`` would be ambiguous: one mask per sequence, or one per head?
    """
    dtype = getattr(mask, "dtype", type(mask).__name__)
    if dtype != torch.bool:
        raise TypeError(f"expected a mask of dtype torch.bool, got {dtype}")
    sizes = zip(mask.shape[::-1], shape[::-1], strict=False)  # from the last axis on
    fits = all(size in (1, full) for size, full in sizes)
    if mask.ndim not in (2, len(shape)) or not fits:
        raise ValueError(
            f"expected a mask of 2 or {len(shape)} axes that broadcasts to the weights "
            f"{tuple(shape)}, got {tuple(mask.shape)}"
        )


def masked_softmax(scores, mask=None):
    """Softmax over the visible keys: ``... q k -> ... q k``.

    The mask is boolean, ``q k`` or with as many axes as the scores; True means "may
    look". Rows sum to 1, or to 0 where a query may look nowhere.
    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    check_mask(mask, scores.shape)
    scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    return torch.where(mask, torch.softmax(scores, dim=-1), 0)


def attention(q, k, v, mask=None):
    """Weighted mean of the values, with weights from the scaled dot products.

    ``q``, ``k``, ``v`` are ``... q d``, ``... k d``, ``... k e`` with the same leading
    axes; outputs are ``... q e``, weights ``... q k``, both zero for a query that may
    look nowhere. A boolean mask, ``q k`` or with as many axes as the weights, is True
    where a query may look. Hidden keys and values must be finite: 0 · NaN is NaN.

    Source: Vaswani et al. 2017, eq. 1.
    """
    check_shapes(q, k, v)
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)  # ... q k
    weights = masked_softmax(scores, mask)
    return weights @ v, weights


def build(kind, *sizes, seed=0, device="cpu", **options):
    """Make a layer on a device; its random numbers come from ``seed``."""
    torch.manual_seed(seed)
    return kind(*sizes, **options).to(device)  # drawn on the CPU: equal everywhere


def dense(n_in, n_out):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases.

    Source: Glorot & Bengio 2010, eq. 1, and ``torch.nn.Linear``.
    """
    layer, bound = nn.Linear(n_in, n_out), 1 / math.sqrt(n_in)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer


def check_input(x, size):
    """Raise ValueError unless an input is ``b s size``."""
    if x.ndim != 3 or x.shape[-1] != size:
        raise ValueError(f"expected an input b s {size}, got shape {tuple(x.shape)}")


class MultiHeadAttention(nn.Module):
    """Attention in several heads: ``b q m -> b q m, b h q k``.

    The size ``m`` of the model is a multiple of ``n_heads``.

    Source: Vaswani et al. 2017, sec. 3.2.2.
    """

    def __init__(self, m, n_heads):
        super().__init__()
        if n_heads < 1 or m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m)
        self.out = dense(m, m)

    def project(self, x, offset=0):  # for layers that know positions
        """Queries, keys and values of every head: ``b s m -> 3 b h s d``."""
        check_input(x, self.qkv.in_features)
        b, s, m = x.shape
        stacked = self.qkv(x).reshape(b, s, 3, self.n_heads, m // self.n_heads)
        return stacked.permute(2, 0, 3, 1, 4)

    def forward(self, x, mask=None, context=None):
        """Outputs ``b q m`` and weights ``b h q k``.

        The mask is boolean, ``q k`` or ``b h q k``. Keys and values come from ``x``
        ``b q m``, or from a ``context`` ``b k m``, as in cross-attention.
        """
        q, k, v = self.project(x)  # each b h s d
        if context is not None:
            _, k, v = self.project(context)  # b h k d
        values, weights = attention(q, k, v, mask)
        joined = values.transpose(1, 2).reshape(x.shape)  # b q m
        return self.out(joined), weights
