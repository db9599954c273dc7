"""Written by `make sync` from notebooks/encoder_torch.py."""

from contextlib import contextmanager

import torch
from torch import nn

from helpers.torch.attention import MultiHeadAttention, dense

__all__ = (
    "ACTIVATIONS Encoder EncoderBlock FeedForward attention_maps without_dropout"
).split()


ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}


class FeedForward(nn.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``."""

    def __init__(self, m, f, *, dropout=0.0, activation="relu"):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.linear1 = dense(m, f)
        self.linear2 = dense(f, m)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class EncoderBlock(nn.Module):
    """Attention, then feed-forward, each with residual and norm: ``b s m -> b s m``."""

    def __init__(
        self,
        m,
        n_heads,
        f,
        *,
        dropout=0.0,  # new
        norm_first=False,  # new
        activation="relu",  # new
        attention=MultiHeadAttention,  # new
    ):
        super().__init__()
        self.norm_first = norm_first  # new
        self.attention = attention(m, n_heads)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation)
        self.norm1 = nn.LayerNorm(m)
        self.norm2 = nn.LayerNorm(m)
        self.dropout = nn.Dropout(dropout)  # new

    def forward(self, x, mask=None, **options):
        if self.norm_first:  # new
            values, weights = self.attention(self.norm1(x), mask, **options)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask, **options)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


class Encoder(nn.Module):
    """A stack of blocks: ``b s m -> b s m``, on demand with maps ``l b h s s``."""

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, **options):
        super().__init__()
        options = {"norm_first": norm_first, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(m) if norm_first else None

    def forward(self, x, mask=None, *, return_maps=False, **options):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask, return_weights=return_maps, **options)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, torch.stack(maps)) if return_maps else x


@contextmanager
def without_dropout(model):
    """The model with dropout off; then each module gets its old mode back."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def attention_maps(model, x, mask=None):
    """Outputs, and maps ``l b h q k``, of one forward pass with dropout off."""
    with without_dropout(model), torch.no_grad():
        return model(x, mask, return_maps=True)
