"""The chapter *A model that writes* builds this: a language model."""

import math

import torch
from torch import nn
from torch.nn.functional import linear

from helpers.torch.attention import fused_attention, merge_heads
from helpers.torch.encoder import Encoder, without_dropout
from helpers.torch.positions import POSITIONS

__all__ = [
    "LanguageModel",
    "advance",
    "advance_block",
    "attend_and_keep",
    "check_tokens",
    "checked_prompts",
    "continue_texts",
    "embedding",
    "generate",
    "new_cache",
    "next_token",
    "next_token_probabilities",
    "unembedding",
]


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
        kind, options["attention"] = POSITIONS[positions]
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


def next_token(model, *batch):
    """Mean cross-entropy and accuracy of predicting each token from those before it.

    The last array of the batch has the texts, ``b s + 1``: all tokens but the last are
    the input, all but the first the labels. Padding is -1, and counts in neither number.
    What comes before, such as the source of a translation, goes to the model as it is.
    """
    *given, tokens = batch
    labels = tokens[:, 1:]  # b s
    logits = model(*given, tokens[:, :-1])  # b s c
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1
    )
    real = labels >= 0
    hits = logits.argmax(-1) == labels  # never where there is padding
    return loss, {"accuracy": hits.sum() / real.sum(), "count": real.sum()}


def attend_and_keep(layer, x, cache, start, mask):
    """Attention to all positions so far: ``b n m``, and the cache with the new ones."""
    q, *new = layer.project(x, offset=start)  # b h n d
    stop = start + x.shape[1]
    for kept, part in zip(cache, new, strict=True):
        kept[:, :, start:stop] = part  # in place: nothing is copied
    k, v = (kept[:, :, :stop] for kept in cache)
    return layer.out(merge_heads(fused_attention(q, k, v, mask))), cache


def new_cache(model, first, length, context=None, context_mask=None):
    """Key-value cache of a ``LanguageModel``, allocated for ``length`` columns, empty.

    Row ``b`` begins in column ``first[b]``: shorter prompts are padded on the left.
    ``start`` is the number of columns in use; ``blocks`` has the keys and values
    ``b h s d`` of each block, in the dtype that the model computes them in, ``context``
    those of a context ``b k m``, ``b h k d``, computed here, once, or None.
    """
    blocks = model.decoder.blocks
    x = model.embed(0 * first[:1, None])  # any token: one key shows shape and dtype
    x = blocks[0].norm1(x) if blocks[0].norm_first else x
    (key,) = blocks[0].attention.project(x, "k")  # 1 h 1 d
    shape = len(first), key.shape[1], length, key.shape[3]  # b h s d
    crossing = context is not None
    context = [
        tuple(b.cross.project(context, "kv")) if crossing else None for b in blocks
    ]
    return {
        "start": 0, "first": first, "context": context, "context_mask": context_mask,
        "blocks": [(key.new_zeros(shape), key.new_zeros(shape)) for _ in blocks],
    }  # fmt: skip


def advance_block(block, x, cache, start, mask, context, context_mask):
    """A block on new positions: ``b n m``, and its cache with them in it."""

    def pre(norm, x):
        return norm(x) if block.norm_first else x

    def post(norm, x):
        return x if block.norm_first else norm(x)

    args = pre(block.norm1, x), cache, start, mask
    values, cache = attend_and_keep(block.attention, *args)
    x = post(block.norm1, x + values)
    if context:
        (q,) = block.cross.project(pre(block.cross_norm, x), "q")  # b h n d
        found = merge_heads(fused_attention(q, *context, context_mask))
        x = post(block.cross_norm, x + block.cross.out(found))
    return post(block.norm2, x + block.ffn(pre(block.norm2, x))), cache


def advance(model, tokens, cache):
    """Logits of the next tokens, ``b n -> b n c``, and the cache with their positions.

    Equal to those of the model without a cache and without dropout, at the work of
    ``n`` positions. The cache must have room for them.
    """
    stop = cache["start"] + tokens.shape[1]
    seen = torch.arange(stop, device=tokens.device)  # s
    columns = seen[cache["start"] :]  # n
    first = cache["first"][:, None]  # b 1
    mask = (seen >= first[..., None]) & (seen <= columns[:, None])  # b n s
    x = model.embed(tokens.clamp(min=0))  # b n m
    if model.positions:  # counted from the first token of the row
        x = x + model.positions.table[(columns - first).clamp(min=0)].to(x.dtype)
    blocks, given = [], {"start": cache["start"], "mask": mask[:, None]}
    given["context_mask"] = cache["context_mask"]
    for n, block in enumerate(model.decoder.blocks):
        kept, context = cache["blocks"][n], cache["context"][n]
        x, kept = advance_block(block, x, kept, context=context, **given)
        blocks.append(kept)
    x = model.decoder.norm(x) if model.decoder.norm else x
    return model.logits(x), cache | {"start": stop, "blocks": blocks}


def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """Probabilities that the next token is drawn with: ``... c -> ... c``.

    The temperature divides the logits: below 1 the most probable tokens gain, above 1
    they lose. Then only the ``top_k`` most probable tokens (Fan et al. 2018) are left,
    and of those the fewest most probable ones that have ``top_p`` of the probability
    together (Holtzman et al. 2020). Among equals, the lower token counts as more
    probable.
    """
    highest = logits.amax(dim=-1, keepdim=True)
    p = torch.softmax((logits - highest).float() / temperature, dim=-1)
    if top_k is not None:
        least = p.topk(min(top_k, p.shape[-1])).values[..., -1:]
        more, equal = p > least, p == least
        left = top_k - more.sum(dim=-1, keepdim=True)  # places for equal ones
        p = torch.where(more | equal & (equal.cumsum(dim=-1) <= left), p, 0)
        p = p / p.sum(dim=-1, keepdim=True)
    if top_p is not None:
        p, order = p.sort(dim=-1, descending=True, stable=True)  # probable ones first
        before = p.cumsum(dim=-1) - p  # what the more probable ones have
        p = torch.where(before < top_p, p, 0).gather(-1, order.argsort(dim=-1))
        p = p / p.sum(dim=-1, keepdim=True)
    return p


def checked_prompts(model, prompts, length):
    """Prompts as lists of tokens, if the model knows them and has room to go on."""
    rows = [[int(token) for token in prompt] for prompt in prompts]
    sizes, n_tokens = [len(row) for row in rows], model.embed.num_embeddings
    if min(sizes) < 1 or max(sizes) + length > model.max_length:
        raise ValueError(
            f"expected prompts of 1 to {model.max_length - length} tokens, since "
            f"max_length = {model.max_length} and length = {length}, got {sizes}"
        )
    if not all(0 <= token < n_tokens for row in rows for token in row):
        raise ValueError(f"expected tokens from 0 to {n_tokens - 1}, got {rows}")
    return rows


def generate(
    model, prompts, length, *, temperature=1.0, top_k=None, top_p=None, end=None, seed=0
):
    """Continue a batch of texts, token by token: integers ``b length``.

    Prompts have at least one token each, and may differ in length. ``temperature``,
    ``top_k`` and ``top_p`` are those of ``next_token_probabilities``. With ``top_k=1``,
    greedy, a row is what the model writes for its prompt alone; drawn rows depend on
    the whole batch. After ``end`` come only ``end``; a model in training mode stays so.
    """
    rows = checked_prompts(model, prompts, length)
    longest = max(map(len, rows))
    device = model.embed.weight.device
    first = torch.tensor([longest - len(row) for row in rows], device=device)  # b
    tokens = [[0] * (longest - len(row)) + row for row in rows]
    tokens = torch.tensor(tokens, device=device)  # b s
    chance = torch.Generator(device).manual_seed(seed)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    options = None if top_k == 1 else options  # greedy: nothing to sort or to draw
    end = -1 if end is None else end
    args = model, tokens, first, length, chance, end, options
    with without_dropout(model), torch.no_grad():
        return continue_texts(*args)


def continue_texts(model, tokens, first, length, chance, end, options):
    """The loop of ``generate``: the prompts in one pass, then a token at a time."""
    cache = new_cache(model, first, tokens.shape[1] + length)
    logits, cache = advance(model, tokens, cache)
    texts, done = [], torch.zeros_like(first, dtype=torch.bool)
    for _ in range(length):
        if options is None:
            chosen = logits[:, -1].argmax(-1)  # b
        else:
            p = next_token_probabilities(logits[:, -1], **options)
            chosen = (p / torch.empty_like(p).exponential_(generator=chance)).argmax(-1)
        texts.append(torch.where(done, end, chosen))
        done = done | (texts[-1] == end)
        logits, cache = advance(model, texts[-1][:, None], cache)
    return torch.stack(texts, dim=1)  # b length
