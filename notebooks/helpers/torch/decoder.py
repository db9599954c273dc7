"""Written by `make sync` from notebooks/decoder_torch.py."""

from functools import singledispatch

import torch
from torch import nn

from helpers.data import checks
from helpers.torch.attention import attend, fused_attention, merge_heads
from helpers.torch.encoder import Encoder, without_dropout
from helpers.torch.frameworks import tensor
from helpers.torch.positions import POSITIONS, RotaryAttention

__all__ = (
    "LanguageModel advance advance_block attend_and_keep check_tokens "
    "continue_texts embedding generate new_cache next_token "
    "next_token_probabilities unembedding"
).split()


def embedding(n_tokens, m):
    """Table with a vector for each token, ``c m``: normal, standard deviation 1/√m."""
    table = nn.Embedding(n_tokens, m)
    nn.init.normal_(table.weight, std=m**-0.5)
    return table


def next_token(model, *batch):
    """Mean cross-entropy and accuracy of predicting each token from those before it."""
    *given, tokens = batch  # given: empty here; a source, in translation
    labels = tokens[:, 1:]  # b s
    logits = model(*given, tokens[:, :-1]).float()  # b s c
    total = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"
    )
    n_real = (labels >= 0).sum()
    hits = logits.argmax(-1) == labels  # never where there is padding
    n = n_real.clamp(min=1)  # a batch of padding alone has the loss 0, and counts 0
    return total / n, {"accuracy": hits.sum() / n, "count": n_real}


def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """Probabilities that the next token is drawn with: ``... c -> ... c``."""
    logits = logits.float()
    highest = logits.amax(dim=-1, keepdim=True)  # subtracted: a tiny τ is safe
    p = torch.softmax((logits - highest) / temperature, dim=-1)
    if top_k is not None:
        least = p.topk(min(top_k, p.shape[-1])).values[..., -1:]
        more, equal = p > least, p == least
        left = top_k - more.sum(dim=-1, keepdim=True)  # places for equal ones
        p = torch.where(more | equal & (equal.cumsum(dim=-1) <= left), p, 0)
        p = p / p.sum(dim=-1, keepdim=True)
    if top_p is not None and top_p < 1:
        ranked, order = p.sort(dim=-1, descending=True, stable=True)
        before = ranked.cumsum(dim=-1) - ranked  # what the more probable ones have
        kept = torch.where(before < top_p, ranked, 0)
        p = torch.zeros_like(p).scatter_(-1, order, kept)  # each in its place again
        p = p / p.sum(dim=-1, keepdim=True)
    return p


def unembedding(m, n_tokens):
    """Linear layer without a bias, whose weights start as those of ``embedding``."""
    layer = nn.Linear(m, n_tokens, bias=False)
    nn.init.normal_(layer.weight, std=m**-0.5)
    return layer


def check_tokens(tokens, longest=float("inf")):
    """Raise an error unless tokens are an integer array ``b s``, short enough."""
    whole = tokens.dtype in (torch.int32, torch.int64)
    if tokens.ndim != 2 or not whole:
        got = f"{tuple(tokens.shape)} of {'whole' if whole else 'other'} ones"
        raise ValueError(f"expected tokens b s of whole numbers, got {got}")
    if tokens.shape[1] > longest:
        raise ValueError(f"{tokens.shape[1]} positions, but max_length = {longest}")


class LanguageModel(nn.Module):
    """Logits of the next token at every position: ``b s -> b s c``."""

    def __init__(
        self,
        n_tokens,
        m,
        *,
        max_length,
        positions="learned",
        tied=True,
        causal=True,
        stack=Encoder,
        **options,
    ):
        super().__init__()
        kind, attention = POSITIONS[positions]
        self.max_length, self.causal = max_length, causal
        self.embed = embedding(n_tokens, m)
        self.positions = kind(m, max_length) if kind else None
        self.decoder = stack(m=m, attention=attention, **options)
        self.output = None if tied else unembedding(m, n_tokens)

    def logits(self, x):
        return self.output(x) if self.output else x @ self.embed.weight.T

    def forward(self, tokens, mask=None, *context, return_maps=False):
        check_tokens(tokens, self.max_length)
        x = self.embed(tokens.clamp(min=0))  # b s m; padding, -1, has no row
        x = self.positions(x) if self.positions else x
        options = {"is_causal": self.causal, "return_maps": return_maps}
        out = self.decoder(x, mask, *context, **options)
        return (self.logits(out[0]), *out[1:]) if return_maps else self.logits(out)


def attend_and_keep(layer, x, cache, start, mask):
    """Attention to all positions so far: ``b n m``, and the cache with the new ones."""
    rotates = isinstance(layer, RotaryAttention)  # and needs to know where x begins
    q, k, v = layer.project(x, start) if rotates else layer.project(x)  # b h n d
    keys, values = cache  # b h s d
    stop = start + x.shape[1]
    keys[:, :, start:stop] = k  # in place: nothing is copied
    values[:, :, start:stop] = v
    out = fused_attention(q, keys[:, :, :stop], values[:, :, :stop], mask)
    return layer.out(merge_heads(out)), cache


def advance_block(block, x, cache, start, mask, context):
    """A block on new positions: ``b n m``, and its cache with them in it."""

    def before(norm, x):
        return norm(x) if block.norm_first else x

    def after(norm, x):
        return x if block.norm_first else norm(x)

    normed = before(block.norm1, x)
    found, cache = attend_and_keep(block.attention, normed, cache, start, mask)
    x = after(block.norm1, x + found)
    if context:  # keys, values and their mask
        q = block.cross.queries(before(block.cross_norm, x))  # b h n d
        found, _ = attend(block.cross, q, *context)
        x = after(block.cross_norm, x + found)
    return after(block.norm2, x + block.ffn(before(block.norm2, x))), cache


@singledispatch
def new_cache(model, first, length, context=None, context_mask=None):
    """Empty key-value cache of ``length`` columns; row ``b`` begins in ``first[b]``."""
    if length > model.max_length:
        raise ValueError(f"{length} positions, but max_length = {model.max_length}")
    blocks, table = model.decoder.blocks, model.embed.weight
    n_heads = blocks[0].attention.n_heads
    shape = (len(first), n_heads, length, table.shape[1] // n_heads)  # b h s d
    kept = [(table.new_zeros(shape), table.new_zeros(shape)) for _ in blocks]
    contexts = [None] * len(blocks)
    if context is not None:
        contexts = [(*b.cross.keys_values(context), context_mask) for b in blocks]
    return {"start": 0, "first": first, "blocks": kept, "contexts": contexts}


@singledispatch
def advance(model, tokens, cache):
    """Logits after new tokens, ``b n -> b n c``, and the cache with them in it."""
    checks.check_room(cache, tokens.shape[1])
    start, stop = cache["start"], cache["start"] + tokens.shape[1]
    seen = torch.arange(stop, device=tokens.device)  # s
    columns, first = seen[start:], cache["first"][:, None]  # n, b 1
    mask = (seen >= first[..., None]) & (seen <= columns[:, None])  # b n s
    x = model.embed(tokens.clamp(min=0))  # b n m
    if model.positions:  # counted from the first token of the row
        x = x + model.positions.table[(columns - first).clamp(min=0)].to(x.dtype)
    kept = []
    for n, block in enumerate(model.decoder.blocks):
        x, new = advance_block(
            block, x, cache["blocks"][n], start, mask[:, None], cache["contexts"][n]
        )
        kept.append(new)
    x = model.decoder.norm(x) if model.decoder.norm else x
    return model.logits(x), cache | {"start": stop, "blocks": kept}


@torch.no_grad()
def continue_texts(model, tokens, first, length, end, seed, **knobs):
    """The prompts in one pass, then a token at a time: ``b s -> b length``."""
    cache = new_cache(model, first, tokens.shape[1] + length)
    rng, texts = torch.Generator(tokens.device).manual_seed(seed), []
    done = torch.zeros_like(first, dtype=torch.bool)  # b
    for _ in range(length):
        logits, cache = advance(model, tokens, cache)
        p = next_token_probabilities(logits[:, -1], **knobs)  # b c
        drawn = torch.multinomial(p, 1, generator=rng)[:, 0]  # b
        texts.append(torch.where(done, end, drawn))
        done = done | (texts[-1] == end)
        if done.all():
            break
        tokens = texts[-1][:, None]  # b 1
    left = length - len(texts)  # after all have ended
    return nn.functional.pad(torch.stack(texts, dim=1), (0, left), value=end)


def generate(model, prompts, length, *, end=-1, seed=0, **knobs):
    """Continue each prompt, a list of tokens, by ``length`` tokens: ``b length``.

    The ``knobs`` are those of ``next_token_probabilities``: ``top_k=1`` is greedy. Once
    ``end`` is drawn, only ``end`` follows. A model in training mode stays so.
    """
    rows = checks.checked_prompts(model, prompts, length, **knobs)
    longest = max(map(len, rows))
    first = tensor([longest - len(row) for row in rows])  # b
    tokens = tensor([[0] * (longest - len(row)) + row for row in rows])  # b s
    with without_dropout(model):
        return continue_texts(model, tokens, first, length, end, seed, **knobs)
