"""The chapter *A model that reads both sides* builds this: BERT, and its weights."""

from functools import partial

import jax.numpy as jnp
import optax
from flax import nnx

from helpers.data import checkpoints, published_masked
from helpers.jax.attention import dense
from helpers.jax.decoder import check_tokens, embedding
from helpers.jax.encoder import ACTIVATIONS, Encoder
from helpers.jax.positions import LearnedPositions
from helpers.weights import from_arrays

__all__ = [
    "MaskedLM",
    "load_bert",
    "masked_token",
]


class MaskedLM(nnx.Module):
    """Logits of the token at every position, which sees all of them: ``b s -> b s c``.

    BERT; ``options`` are those of ``Encoder``. ALBERT (Lan et al. 2020) embeds in
    ``n_embed`` features, and passes one ``shared`` block ``n_blocks`` times.

    Source: Devlin et al. 2019, sec. 3, and its code: post-norm, GELU, tied output.
    """

    def __init__(
        self, n_tokens, m, *, n_blocks, n_heads, f, max_length, n_segments=2,
        n_embed=None, shared=False, eps=1e-12, rngs, **options,
    ):  # fmt: skip
        e, self.max_length = n_embed or m, max_length
        norm = partial(nnx.LayerNorm, epsilon=eps, use_fast_variance=False, rngs=rngs)
        self.embed = embedding(n_tokens, e, rngs=rngs)
        self.positions = LearnedPositions(e, max_length, rngs=rngs)
        self.segments = embedding(n_segments, e, rngs=rngs)
        self.embed_norm = norm(e)
        self.widen = dense(e, m, rngs=rngs) if n_embed else None
        options |= {"activation": "gelu", "rngs": rngs}
        self.encoder = Encoder(1 if shared else n_blocks, m, n_heads, f, **options)
        for block in self.encoder.blocks:
            block.norm1.epsilon = block.norm2.epsilon = eps
        if shared:  # the same object in every place of the stack
            self.encoder.blocks = nnx.data([*self.encoder.blocks] * n_blocks)
        self.hidden = dense(m, e, rngs=rngs)
        self.hidden_norm = norm(e)
        self.bias = nnx.Param(jnp.zeros(n_tokens))

    def encode(self, tokens, real=None, segments=None, *, return_maps=False):
        """One vector per position, ``b s m``; options are those of a call."""
        check_tokens(tokens, self.max_length)
        real = tokens >= 0 if real is None else real
        segments = jnp.zeros_like(tokens) if segments is None else segments
        shapes = tokens.shape, real.shape, segments.shape
        if len({*shapes}) > 1:
            raise ValueError(f"expected tokens, real, segments b s, got {shapes}")
        x = self.positions(self.embed(jnp.maximum(tokens, 0)))  # b s e
        x = self.embed_norm(x + self.segments(segments))
        x = self.widen(x) if self.widen else x  # b s m
        return self.encoder(x, real[:, None, None], return_maps=return_maps)

    def logits(self, x):
        """Logits of every token: ``b s m -> b s c``."""
        x = self.hidden_norm(ACTIVATIONS["gelu"](self.hidden(x)))  # b s e
        return self.embed.attend(x) + self.bias

    def __call__(self, tokens, real=None, segments=None, *, return_maps=False):
        """Logits ``b s c``; with ``return_maps`` also the maps ``l b h s s``.

        Nobody looks where ``real``, boolean ``b s``, is False: by default at negative
        tokens; of other tokenizers, pass the attention mask. ``segments``: ``b s``.
        """
        out = self.encode(tokens, real, segments, return_maps=return_maps)
        return (self.logits(out[0]), out[1]) if return_maps else self.logits(out)


def load_bert(folder_or_name):
    """A ``MaskedLM`` with published weights of BERT or ALBERT, and its tokenizer.

    From a folder in Hugging Face's format, or a name on the hub; without dropout.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    model = MaskedLM(**published_masked.arguments_of(config), rngs=nnx.Rngs(0))
    tokenizer = checkpoints.read_tokenizer(folder, config["vocab_size"])
    tensors = checkpoints.read_tensors(folder, "flax")
    from_arrays(model, published_masked.our_names(tensors))
    return model, tokenizer


def masked_token(model, inputs, labels):
    """Mean cross-entropy, accuracy where ``mask_tokens`` asks: labels ``b s``, else -1."""
    logits, asked = model(inputs), labels >= 0  # b s c, b s
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, jnp.maximum(labels, 0)
    )  # b s
    n = jnp.maximum(asked.sum(), 1)  # a batch may ask for nothing
    hits = (logits.argmax(-1) == labels).sum()
    return losses.sum(where=asked) / n, {"accuracy": hits / n, "count": asked.sum()}
