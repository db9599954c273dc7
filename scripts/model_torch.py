"""A language model in one file.

    python model_torch.py my.txt   trains on a text of your own, and writes
    torchrun --nproc-per-node 2 model_torch.py my.txt

A second call with the same --folder goes on after the last checkpoint.
Needs torch. From a book that builds it:
https://github.com/example/transformers-side-by-side

Shapes: b batch, s position, q and k position of a query and of a key, h head, d size
of one head, m size of the model, f hidden size of the feed-forward net, c tokens.
In a mask, True means "may look".

Copyright (c) 2026 The authors of "Transformers, side by side"
SPDX-License-Identifier: MIT
"""

import argparse
import math
import os
from contextlib import contextmanager
from functools import singledispatch
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

# ---- the shared part ----


def checked_prompts(model, prompts, length, temperature=1.0, top_k=None, top_p=None):
    """Prompts as lists of tokens, if the model knows them and has room to go on."""
    if not getattr(model, "causal", True):
        raise ValueError("expected a causal model, got one that sees what comes after")
    rows = [[int(token) for token in prompt] for prompt in prompts]
    lengths, n_tokens = [len(row) for row in rows], model.embed.num_embeddings
    if length < 1 or min(lengths) < 1 or max(lengths) + length > model.max_length:
        raise ValueError(
            f"expected prompts of 1 to {model.max_length - length} tokens, since "
            f"max_length = {model.max_length} and length = {length}, got {lengths}"
        )
    if not all(0 <= token < n_tokens for row in rows for token in row):
        raise ValueError(f"expected tokens from 0 to {n_tokens - 1}, got {rows}")
    whole = top_k is None or (hasattr(top_k, "__index__") and top_k >= 1)
    if not (temperature >= 1e-6 and whole and (top_p is None or 0 < top_p <= 1)):
        raise ValueError(
            "expected a temperature of 1e-6 or more, a whole top_k of 1 or more, and "
            f"0 < top_p <= 1, got {temperature}, {top_k}, {top_p}; top_k=1 is greedy"
        )
    return rows


def check_room(cache, n):
    """Raise an error if ``n`` more positions do not fit; compiled, they become NaN."""
    start, length = cache["start"], cache["blocks"][0][0].shape[2]
    if isinstance(start, int) and start + n > length:
        raise ValueError(f"expected a cache of {start + n} columns, got {length}")


# ---- notebooks/frameworks_torch.ipynb ----


device = "cuda" if torch.cuda.is_available() else "cpu"


def tensor(x):
    """An array of NumPy on the device: float32, int64, uint8 or bool."""
    x = torch.as_tensor(x, device=device)
    if x.is_floating_point():
        return x.float()
    return x if x.dtype in (torch.bool, torch.uint8) else x.long()


# ---- notebooks/attention_torch.ipynb ----


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


# ---- notebooks/encoder_torch.ipynb ----


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


# ---- notebooks/positions_torch.ipynb ----


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    omega = 10000 ** (-torch.arange(0, m, 2, dtype=torch.float64) / m)  # m/2
    angle = torch.arange(length)[:, None] * omega  # s m/2
    pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)  # s m/2 2
    return pairs.flatten(1)[:, :m]  # s m; an odd m ends on a sine


def check_length(x, table):
    """Raise an error if a sequence ``b s m`` is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


class SinusoidalPositions(nn.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length):
        super().__init__()
        table = sinusoidal_positions(max_length, m).float()  # s m
        self.register_buffer("table", table, persistent=False)

    def forward(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].to(x.dtype)


class LearnedPositions(nn.Module):
    """Adds a learned vector to each of ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length):
        super().__init__()
        table = torch.randn(max_length, m)  # s m
        self.table = nn.Parameter(0.02 * table)  # small, as in BERT

    def forward(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].to(x.dtype)


def rotary(x, offset=0):
    """Rotate pairs of features; row 0 has position ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    i = torch.arange(0, d, 2, dtype=torch.float32, device=x.device)
    positions = offset + torch.arange(s, dtype=torch.float32, device=x.device)
    angle = positions[:, None] * 10000.0 ** (-i / d)  # s d/2
    sin, cos = angle.sin(), angle.cos()
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = [even * cos - odd * sin, even * sin + odd * cos]
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)  # ... s d


class RotaryAttention(MultiHeadAttention):
    """Attention whose queries and keys are rotated: ``b s m -> b s m, b h s s``."""

    def project(self, x, offset=0):
        q, k, v = super().project(x)  # each b h s d
        return rotary(q, offset), rotary(k, offset), v


POSITIONS = {  # the codes that are added, and the attention of every block
    "sinusoidal": (SinusoidalPositions, MultiHeadAttention),
    "learned": (LearnedPositions, MultiHeadAttention),
    "rotary": (None, RotaryAttention),
    "none": (None, MultiHeadAttention),
}


# ---- notebooks/reverse_torch.ipynb ----


def make_optimizer(model, settings):
    """AdamW, which decays matrices only, and the scheduler of its learning rate."""
    matrices = [param for param in model.parameters() if param.ndim > 1]
    others = [param for param in model.parameters() if param.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)

    def part_of_peak(step):
        return settings.schedule(step, settings.warmup, settings.updates)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, part_of_peak)


def update(model, optimizer, scheduler, loss_fn, batch, max_grad_norm):
    """One update, in place: the loss, its metrics and the norm of the gradient."""
    loss, metrics = loss_fn(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    scheduler.step()
    numbers = {"loss": loss, **metrics, "grad_norm": norm}
    return {name: torch.as_tensor(x).detach() for name, x in numbers.items()}


# ---- notebooks/decoder_torch.ipynb ----


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
    check_room(cache, tokens.shape[1])
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
    rows = checked_prompts(model, prompts, length, **knobs)
    longest = max(map(len, rows))
    first = tensor([longest - len(row) for row in rows])  # b
    tokens = tensor([[0] * (longest - len(row)) + row for row in rows])  # b s
    with without_dropout(model):
        return continue_texts(model, tokens, first, length, end, seed, **knobs)


# ---- a call ----


SIZES = {
    "n_blocks": 2, "n_heads": 4, "f": 256, "max_length": 128, "positions": "rotary",
    "norm_first": True, "activation": "gelu",
}  # fmt: skip


def arguments():
    """What a call may say."""
    parser = argparse.ArgumentParser(description="Train a language model on a text.")
    parser.add_argument("text", nargs="?", default=__file__, help="a file in UTF-8")
    parser.add_argument("--folder", default="run", help="of checkpoints")
    usual = {"updates": 100, "learning-rate": 3e-3, "weight-decay": 0.1}
    for name, value in {**usual, "batch-size": 8}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--prompt", help="by default how the text begins")
    return parser


def read_text(parser, options, n):
    """The number of each character of the text, all numbers by name, the prompt."""
    try:
        text = Path(options.text).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"expected a text in UTF-8: {error}")
    prompt, length = options.prompt or text[:16], SIZES["max_length"]
    if unknown := set(prompt) - set(text):
        parser.error(f"the text has no {sorted(unknown)}, which the prompt has")
    if len(text) <= length or options.batch_size % n:
        parser.error(
            f"expected a text of more than {length} characters and a batch that {n} "
            f"devices share, got {len(text)}, {options.batch_size}"
        )
    numbers = {character: n for n, character in enumerate(sorted(set(text)))}
    return [numbers[character] for character in text], numbers, prompt


def write_on(model, prompt, numbers):
    """Print the prompt and what the model writes after it."""
    written = generate(model, [[numbers[x] for x in prompt]], 100, temperature=0.8)
    print(prompt + "".join([*numbers][n] for n in written[0].tolist()))


# ---- training ----


def batch_of(tokens, length, batch_size, update, rank, n_processes):
    """The share of a process in the windows of an update: ``b s+1``."""
    draw = torch.Generator().manual_seed(update)
    start = torch.randint(len(tokens) - length, (batch_size, 1), generator=draw)
    start = start[rank::n_processes].to(tokens.device)
    return tokens[start + torch.arange(length + 1, device=tokens.device)]


def save(path, parts):
    """Write a checkpoint, whole or not at all: the old one stays until then."""
    draft = path.with_suffix(f".{os.getpid()}.draft")  # two may write at once
    torch.save(parts, draft)
    draft.replace(path)


def train(model, tokens, characters, options, path, rank, n_processes):
    """Train from the last checkpoint on, with a share of every batch."""
    options.warmup, options.schedule = 1, lambda *_: 1.0  # the same rate for all
    (optimizer, scheduler), done = make_optimizer(model, options), 0
    if path.exists():
        kept = torch.load(path, map_location=tokens.device, weights_only=True)
        if kept.get("characters") != characters:
            raise SystemExit(f"{path.parent} is of another text: name another --folder")
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["update"]
        print(f"goes on after update {done}")
    parallel = DistributedDataParallel(model) if n_processes > 1 else model
    for step in range(done + 1, options.updates + 1):
        given = model.max_length, options.batch_size, step, rank, n_processes
        found = update(
            parallel, optimizer, scheduler, next_token, [batch_of(tokens, *given)], 1.0
        )
        if step == 1 or step % 10 == 0:  # seldom: a GPU waits while it is printed
            loss = found["loss"] / n_processes
            if n_processes > 1:
                distributed.all_reduce(loss)
            if rank == 0:
                print(f"update {step:4}: loss {loss.item():.3f}")
        if rank == 0 and (step % 100 == 0 or step == options.updates):
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(path, {**parts, "update": step, "characters": characters})


def main():
    """Train a model on the characters of a text file, and let it write."""
    options = (parser := arguments()).parse_args()
    rank = int(os.environ.get("RANK", 0))
    n_processes = int(os.environ.get("WORLD_SIZE", 1))
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    device = device if torch.cuda.is_available() else "cpu"
    if n_processes > 1:
        distributed.init_process_group("nccl" if device != "cpu" else "gloo")
    tokens, numbers, prompt = read_text(parser, options, n_processes)
    tokens = torch.tensor(tokens, device=device)
    torch.manual_seed(0)
    model = LanguageModel(len(numbers), 64, **SIZES).to(device)
    path = Path(options.folder, "checkpoint.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    train(model, tokens, "".join(numbers), options, path, rank, n_processes)
    if rank == 0:
        write_on(model, prompt, numbers)
    if n_processes > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
