"""Written by `make sync` from notebooks/attention_torch.py."""

import math

import torch
from torch import nn

from helpers.data import checks

__all__ = (
    "MultiHeadAttention attention check_mask dense framework_attention "
    "fused_attention linear_parts masked_softmax merge_heads with_causal"
).split()


def check_mask(mask, scores):
    """Raise an error unless a mask is boolean, with two axes or as many as the scores.

    Three axes for scores ``b h q k`` are ambiguous: one mask a sequence, or a head?
    """
    if mask.dtype != torch.bool:
        raise TypeError("expected a boolean mask, got one of numbers")
    if mask.ndim not in (2, scores.ndim):
        axes = f"2 or {scores.ndim} axes, got {tuple(mask.shape)}"
        raise ValueError(f"expected a mask of {axes}")


def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return torch.softmax(scores, dim=-1)
    mask = torch.as_tensor(mask, device=scores.device)
    check_mask(mask, scores)
    scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    return torch.where(mask, torch.softmax(scores, dim=-1), 0)


def with_causal(mask, q, k):
    """A mask under which positions also see only themselves and what comes before."""
    checks.check_causal(q, k)
    past = torch.ones(q.shape[-2], k.shape[-2], device=q.device).tril().bool()
    return past if mask is None else past & torch.as_tensor(mask, device=q.device)


def attention(q, k, v, mask=None, *, is_causal=False):
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``.

    A boolean mask, ``q k`` or with all axes of the weights, is True where a query may
    look. Hidden keys and values must be finite: 0 · NaN is NaN.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)  # ... q k
    mask = with_causal(mask, q, k) if is_causal else mask
    weights = masked_softmax(scores, mask)
    return weights @ v, weights


def dense(n_in, n_out):
    """Linear layer ``... n_in -> ... n_out``: entries within ±1/√n_in, zero biases."""
    layer, bound = nn.Linear(n_in, n_out), 1 / math.sqrt(n_in)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.zeros_(layer.bias)
    return layer


def merge_heads(values):
    """The outputs of all heads side by side: ``b h q d -> b q m``."""
    return values.transpose(1, 2).flatten(2)


def framework_attention(q, k, v, mask=None, *, is_causal=False):
    """PyTorch's function, which chooses a kernel: ``b h q d, …, … -> b h q d``."""
    attend = nn.functional.scaled_dot_product_attention
    return attend(q, k, v, attn_mask=mask, is_causal=is_causal)


def fused_attention(q, k, v, mask=None, *, is_causal=False):
    """The outputs of ``attention``, from arrays with four axes, here ``b h s d``."""
    if mask is None:  # the causal mask as a flag: kernels then skip what it hides
        if is_causal:
            checks.check_causal(q, k)
        return framework_attention(q, k, v, is_causal=is_causal)
    mask = torch.as_tensor(mask, device=q.device)
    mask = with_causal(mask, q, k) if is_causal else mask
    check_mask(mask, q)
    seen = mask.any(dim=-1, keepdim=True)  # where a query sees nothing, it sees all
    return torch.where(seen, framework_attention(q, k, v, mask | ~seen), 0)


def linear_parts(layer, x, parts="qkv"):
    """Of the stacked outputs of a layer only some ``parts``: ``b s m -> b s nm``."""
    if parts == "qkv":
        return layer(x)
    first, m = "qkv".index(parts), layer.in_features
    rows = slice(first * m, (first + len(parts)) * m)
    return nn.functional.linear(x, layer.weight[rows], layer.bias[rows])


class MultiHeadAttention(nn.Module):
    """Attention in several heads: ``b q m -> b q m, b h q k``.

    Keys and values come from a ``context``, ``b k m``; without one, from ``x``.
    """

    def __init__(self, m, n_heads):
        super().__init__()
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m)
        self.out = dense(m, m)

    def project(self, x, parts="qkv", offset=0):  # new
        """Queries, keys and values of every head, or some of them: ``n b h s d``."""
        stacked = linear_parts(self.qkv, x, parts)  # b s nm
        b, s, m = x.shape
        stacked = stacked.reshape(b, s, len(parts), self.n_heads, m // self.n_heads)
        return stacked.permute(2, 0, 3, 1, 4)

    def forward(
        self, x, mask=None, context=None, *, is_causal=False, return_weights=False
    ):  # new
        if context is None:
            q, k, v = self.project(x)  # each b h s d
        else:  # new
            (q,), (k, v) = self.project(x, "q"), self.project(context, "kv")
        if return_weights:
            values, weights = attention(q, k, v, mask, is_causal=is_causal)
        else:  # new
            values = fused_attention(q, k, v, mask, is_causal=is_causal)
        return self.out(merge_heads(values)), weights if return_weights else None
