"""The chapter *A model that writes* builds this: a language model."""

import math
from functools import partial

import torch
from torch import nn
from torch.nn.functional import linear

from helpers.torch.attention import build
from helpers.torch.encoder import Encoder, pick
from helpers.torch.positions import POSITIONS


def embedding(n_tokens, m):
    """Table with a vector for each token, ``c m``: normal, standard deviation 1/√m."""
    table = nn.Embedding(n_tokens, m)
    nn.init.normal_(table.weight, std=m**-0.5)
    return table


def unembedding(m, n_tokens):
    """Linear layer without a bias, whose weights start as those of ``embedding``."""
    layer = nn.Linear(m, n_tokens, bias=False)
    nn.init.normal_(layer.weight, std=m**-0.5)
    return layer


def check_tokens(tokens, longest=math.inf):
    """Raise an error unless tokens are an integer array ``b s``, short enough."""
    kinds = torch.int32, torch.int64
    if tokens.ndim != 2 or tokens.dtype not in kinds:
        raise ValueError(
            f"expected tokens b s of whole numbers, got {tokens.dtype} "
            f"{tuple(tokens.shape)}"
        )
    if tokens.shape[1] > longest:
        raise ValueError(f"{tokens.shape[1]} positions, but max_length = {longest}")


class LanguageModel(nn.Module):
    """Logits of the next token at every position: ``b s -> b s c``.

    Positions, of ``POSITIONS``, are ``max_length`` at most. If ``tied``, logits are
    products with the embedding, ``x Eᵀ`` (Press & Wolf 2017); otherwise of a layer of
    its own, without a bias. Unless ``causal``, it sees what it predicts, and padding.
    The ``stack`` is an ``Encoder``, or the ``Decoder`` of a ``Translator``, which also
    looks at a context; the rest is as in ``Encoder``.

    Source: Radford et al. 2018, sec. 3.1.
    """

    def __init__(
        self, n_tokens, m, *, n_blocks, n_heads, f, max_length, positions="learned",
        tied=True, causal=True, stack=Encoder, **options,
    ):  # fmt: skip
        super().__init__()
        if max_length < 1:
            raise ValueError(f"expected max_length of at least 1, got {max_length}")
        kind, options["attention"] = pick(POSITIONS, positions, "positions")
        self.max_length, self.causal = max_length, causal
        self.embed = embedding(n_tokens, m)
        self.positions = kind(m, max_length) if kind else None
        self.decoder = stack(n_blocks, m, n_heads, f, **options)
        self.output = None if tied else unembedding(m, n_tokens)

    def logits(self, x):
        """Logits of every token: ``b s m -> b s c``."""
        return self.output(x) if self.output else linear(x, self.embed.weight)

    def forward(self, tokens, mask=None, *context, return_maps=False):
        """Logits ``b s c``; with ``return_maps`` also the maps of the stack.

        A negative token is padding. At the end of a row it needs no mask: no real
        position looks there. A mask, ``q k`` or ``b h q k``, is in force besides the
        causal one. ``context`` is a context and its mask, as in ``Decoder``.
        """
        check_tokens(tokens, self.max_length)
        x = self.embed(tokens.clamp(min=0))  # b s m
        x = self.positions(x) if self.positions else x
        options = {"is_causal": self.causal, "return_maps": return_maps}
        out = self.decoder(x, mask, *context, **options)
        return (self.logits(out[0]), *out[1:]) if return_maps else self.logits(out)


def load_language_model(path, device="cpu"):
    """A model and its vocabulary, from a file that ``scripts/train.py`` wrote.

    A ``LanguageModel``, or after ``--block today`` a ``ModernLM``: it writes with
    ``generate_greedily``, since ``generate`` does not take it.
    """
    from helpers.engine.language_models import read_language_model  # pages need none
    from helpers.torch.today import ModernLM  # which imports this file

    kinds = {"gpt2": LanguageModel, "today": ModernLM}
    return read_language_model(partial(build, device=device), kinds, path)
