"""Written by `make sync` from notebooks/masked_torch.py."""

import torch
from torch import nn

from helpers.data import bert, checkpoints
from helpers.torch.attention import dense
from helpers.torch.decoder import embedding
from helpers.torch.encoder import Encoder
from helpers.torch.positions import LearnedPositions
from helpers.weights import from_arrays

__all__ = "BertEncoder MaskedLM load_bert masked_token".split()


def masked_token(model, inputs, labels):
    """Mean cross-entropy and accuracy of the tokens that are asked for."""
    logits, asked = model(inputs), labels >= 0  # b s c, b s
    n = asked.sum().clamp(min=1)  # a batch may ask for nothing
    losses = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"
    )
    hits = (logits.argmax(-1) == labels).sum()
    return losses / n, {"accuracy": hits / n, "count": asked.sum()}


class BertEncoder(nn.Module):
    """Embeddings and encoder of BERT, or of ALBERT: ``n_embed``, and ``shared``."""

    def __init__(
        self,
        n_tokens,
        m,
        *,
        n_blocks,
        max_length,
        n_segments=2,
        n_embed=None,
        shared=False,
        eps=1e-12,
        **options,
    ):
        super().__init__()
        e, self.max_length = n_embed or m, max_length
        self.embed = embedding(n_tokens, e)
        self.positions = LearnedPositions(e, max_length)
        self.segments = embedding(n_segments, e)
        self.embed_norm = nn.LayerNorm(e, eps=eps)
        self.widen = dense(e, m) if n_embed else None
        n = 1 if shared else n_blocks
        self.encoder = Encoder(n, m, activation="gelu", **options)
        for block in self.encoder.blocks:
            block.norm1.eps = block.norm2.eps = eps
        if shared:  # the same object in every place of the stack
            self.encoder.blocks = nn.ModuleList([*self.encoder.blocks] * n_blocks)


class MaskedLM(BertEncoder):
    """Logits of the token at every position, which sees all of them: ``b s -> b s c``.

    Nobody looks where ``real`` is False, by default at -1; ``segments``: ``b s``.
    """

    def __init__(self, n_tokens, m, *, n_embed=None, eps=1e-12, **options):
        super().__init__(n_tokens, m, n_embed=n_embed, eps=eps, **options)
        e = n_embed or m
        self.hidden, self.hidden_norm = dense(m, e), nn.LayerNorm(e, eps=eps)
        self.bias = nn.Parameter(torch.zeros(n_tokens))

    def encode(self, tokens, real=None, segments=None, *, return_maps=False):
        real = tokens >= 0 if real is None else real
        segments = torch.zeros_like(tokens) if segments is None else segments
        x = self.positions(self.embed(tokens.clamp(min=0)))  # b s e
        x = self.embed_norm(x + self.segments(segments))
        x = self.widen(x) if self.widen else x  # b s m
        return self.encoder(x, real[:, None, None], return_maps=return_maps)

    def logits(self, x):
        x = self.hidden_norm(nn.functional.gelu(self.hidden(x)))  # b s e
        return nn.functional.linear(x, self.embed.weight, self.bias)

    def forward(self, tokens, real=None, segments=None, *, return_maps=False):
        out = self.encode(tokens, real, segments, return_maps=return_maps)
        return (self.logits(out[0]), out[1]) if return_maps else self.logits(out)


def load_bert(folder_or_name):
    """A ``MaskedLM`` with published weights of BERT or ALBERT, and its tokenizer.

    From a folder in Hugging Face's format, or a name on the hub; without dropout.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    model = MaskedLM(**bert.arguments_of(config))
    tokenizer = checkpoints.read_tokenizer(folder, config["vocab_size"])
    from_arrays(model, bert.our_names(checkpoints.read_tensors(folder, "pt")))
    return model.eval(), tokenizer
