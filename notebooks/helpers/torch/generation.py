"""The chapter *A model that writes* builds this: sampling, with a key-value cache."""

import torch

from helpers.engine.arguments import check_kind, check_prompts, check_sampling
from helpers.torch.attention import fused_attention, merge_heads
from helpers.torch.positions import without_dropout


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


def generate(
    model, prompts, length, *, temperature=1.0, top_k=None, top_p=None, end=None, seed=0
):
    """Continue a batch of texts, token by token: integers ``b length``.

    Prompts have at least one token each, and may differ in length. ``temperature``,
    ``top_k`` and ``top_p`` are those of ``next_token_probabilities``. With ``top_k=1``,
    greedy, a row is what the model writes for its prompt alone; drawn rows depend on
    the whole batch. After ``end`` come only ``end``; a model in training mode stays so.
    """
    rows = check_prompts(check_kind(model, torch.nn.Module), prompts, length, end)
    check_sampling(temperature, top_k, top_p)
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
