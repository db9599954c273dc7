"""Written by `make sync` from notebooks/attention_torch.py."""

import math

import torch
from torch import nn

__all__ = (
    "CrossAttention MultiHeadAttention attend attention check_causal "
    "dense full_mask fused_attention masked_softmax merge_heads "
    "split_heads"
).split()


def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return torch.softmax(scores, dim=-1)
    scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    return torch.where(mask, torch.softmax(scores, dim=-1), 0)


def dense(n_in, n_out):
    """Linear layer ``... n_in -> ... n_out``: entries within ±1/√n_in, zero biases."""
    layer, bound = nn.Linear(n_in, n_out), 1 / math.sqrt(n_in)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer


def merge_heads(values):
    """The outputs of all heads side by side: ``b h q d -> b q m``."""
    return values.transpose(1, 2).flatten(2)


def split_heads(x, d):
    """Heads of ``d`` features each: ``b s hd -> b h s d``."""
    return x.unflatten(-1, (-1, d)).transpose(1, 2)


def check_causal(q, k):
    """The number of queries, which is that of the keys: else, who would see whom?"""
    n, n_keys = q.shape[-2], k.shape[-2]
    if n != n_keys:
        what = "as many queries as keys under a causal mask"
        raise ValueError(f"expected {what}, got {n} and {n_keys}; give a mask instead")
    return n


def full_mask(mask, q, k, is_causal):
    """The mask to use, or None: the given one and, if asked for, the causal one."""
    mask = None if mask is None else torch.as_tensor(mask, device=q.device)
    if mask is not None and not (mask.dtype == torch.bool and mask.ndim in (2, q.ndim)):
        what = f"2 or {q.ndim} axes, got {tuple(mask.shape)}"
        raise ValueError(f"expected a boolean mask of {what}")
    if not is_causal:
        return mask
    n = check_causal(q, k)  # as many keys as queries
    past = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()  # q k
    return past if mask is None else past & mask


def attention(q, k, v, mask=None, *, is_causal=False):  # new
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``.

    A boolean mask, ``q k`` or with all axes of the weights, is True where a query may
    look. Hidden keys and values must be finite: 0 · NaN is NaN.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)  # ... q k
    weights = masked_softmax(scores, full_mask(mask, q, k, is_causal))  # new
    return weights @ v, weights


def fused_attention(q, k, v, mask=None, *, is_causal=False):
    """The outputs of ``attention``, from arrays with four axes, here ``b h s d``."""
    function = nn.functional.scaled_dot_product_attention
    if mask is None and (not is_causal or q.shape[2] == k.shape[2]):
        return function(q, k, v, is_causal=is_causal)
    mask = full_mask(mask, q, k, is_causal)
    seen = mask.any(dim=-1, keepdim=True)
    out = function(q, k, v, mask | ~seen)  # no row hides all: versions differ
    return torch.where(seen, out, 0)


def attend(layer, q, k, v, mask=None, *, is_causal=False, return_weights=False):
    """Output of a layer, and its weights if they are asked for, else None."""
    if not return_weights:
        values = fused_attention(q, k, v, mask, is_causal=is_causal)
        return layer.out(merge_heads(values)), None
    values, weights = attention(q, k, v, mask, is_causal=is_causal)
    return layer.out(merge_heads(values)), weights


class MultiHeadAttention(nn.Module):
    """Attention in several heads: ``b s m -> b s m, b h s s``."""

    def __init__(self, m, n_heads):
        super().__init__()
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m)
        self.out = dense(m, m)

    def project(self, x):
        """Queries, keys and values of every head: each ``b h s d``."""
        d = x.shape[-1] // self.n_heads
        return [split_heads(part, d) for part in self.qkv(x).chunk(3, dim=-1)]

    def forward(self, x, mask=None, **options):  # new: those of `attend`
        return attend(self, *self.project(x), mask, **options)  # new


class CrossAttention(nn.Module):
    """Attention to a context: ``b q m, b k m -> b q m, b h q k``."""

    def __init__(self, m, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.kv, self.out = dense(m, m), dense(m, 2 * m), dense(m, m)

    def queries(self, x):
        """Of every head: ``b q m -> b h q d``."""
        return split_heads(self.q(x), x.shape[-1] // self.n_heads)

    def keys_values(self, context):
        """Of every head: ``b k m``, each to ``b h k d``."""
        d = context.shape[-1] // self.n_heads
        return [split_heads(part, d) for part in self.kv(context).chunk(2, dim=-1)]

    def forward(self, x, context, mask=None, **options):
        q = self.queries(x)
        k, v = self.keys_values(context)
        return attend(self, q, k, v, mask, **options)
