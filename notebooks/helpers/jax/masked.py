"""Written by `make sync` from notebooks/masked_jax.py."""

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.data import bert, checkpoints
from helpers.jax.attention import dense
from helpers.jax.decoder import embedding
from helpers.jax.encoder import Encoder
from helpers.jax.positions import LearnedPositions
from helpers.weights import from_arrays

__all__ = "BertEncoder MaskedLM load_bert masked_token".split()


def masked_token(model, inputs, labels):
    """Mean cross-entropy and accuracy of the tokens that are asked for."""
    logits, asked = model(inputs), labels >= 0  # b s c, b s
    n = jnp.maximum(asked.sum(), 1)  # a batch may ask for nothing
    there = jnp.maximum(labels, 0)[..., None]
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), there, axis=-1)[..., 0]
    hits = (logits.argmax(-1) == labels).sum()
    return -log_p.sum(where=asked) / n, {"accuracy": hits / n, "count": asked.sum()}


class BertEncoder(nnx.Module):
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
        rngs,
        **options,
    ):
        e, self.max_length = n_embed or m, max_length
        self.embed = embedding(n_tokens, e, rngs=rngs)
        self.positions = LearnedPositions(e, max_length, rngs=rngs)
        self.segments = embedding(n_segments, e, rngs=rngs)
        self.embed_norm = nnx.LayerNorm(
            e, epsilon=eps, use_fast_variance=False, rngs=rngs
        )
        self.widen = dense(e, m, rngs=rngs) if n_embed else None
        n = 1 if shared else n_blocks
        self.encoder = Encoder(n, m, activation="gelu", rngs=rngs, **options)
        for block in self.encoder.blocks:
            block.norm1.epsilon = block.norm2.epsilon = eps
        if shared:  # the same object in every place of the stack
            self.encoder.blocks = nnx.data([*self.encoder.blocks] * n_blocks)


class MaskedLM(BertEncoder):
    """Logits of the token at every position, which sees all of them: ``b s -> b s c``.

    Nobody looks where ``real`` is False, by default at -1; ``segments``: ``b s``.
    """

    def __init__(self, n_tokens, m, *, n_embed=None, eps=1e-12, rngs, **options):
        super().__init__(n_tokens, m, n_embed=n_embed, eps=eps, rngs=rngs, **options)
        e = n_embed or m
        self.hidden = dense(m, e, rngs=rngs)
        self.hidden_norm = nnx.LayerNorm(
            e, epsilon=eps, use_fast_variance=False, rngs=rngs
        )
        self.bias = nnx.Param(jnp.zeros(n_tokens))

    def encode(self, tokens, real=None, segments=None, *, return_maps=False):
        real = tokens >= 0 if real is None else real
        segments = jnp.zeros_like(tokens) if segments is None else segments
        x = self.positions(self.embed(jnp.maximum(tokens, 0)))  # b s e
        x = self.embed_norm(x + self.segments(segments))
        x = self.widen(x) if self.widen else x  # b s m
        return self.encoder(x, real[:, None, None], return_maps=return_maps)

    def logits(self, x):
        x = self.hidden_norm(jax.nn.gelu(self.hidden(x), approximate=False))  # b s e
        return self.embed.attend(x) + self.bias

    def __call__(self, tokens, real=None, segments=None, *, return_maps=False):
        out = self.encode(tokens, real, segments, return_maps=return_maps)
        return (self.logits(out[0]), out[1]) if return_maps else self.logits(out)


def load_bert(folder_or_name):
    """A ``MaskedLM`` with published weights of BERT or ALBERT, and its tokenizer.

    From a folder in Hugging Face's format, or a name on the hub; without dropout.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    model = MaskedLM(**bert.arguments_of(config), rngs=nnx.Rngs(0))
    tokenizer = checkpoints.read_tokenizer(folder, config["vocab_size"])
    from_arrays(model, bert.our_names(checkpoints.read_tensors(folder, "flax")))
    return model, tokenizer
