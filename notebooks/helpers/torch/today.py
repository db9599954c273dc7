"""The chapter *The Transformer of today* builds these: block, model, cache, weights."""

from functools import partial

import torch
from torch import nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention, silu

from helpers.data import checkpoints, published
from helpers.torch.attention import merge_heads
from helpers.torch.decoder import check_tokens, checked_prompts

__all__ = [
    "MLP",
    "GroupedAttention",
    "MixtureOfExperts",
    "ModernBlock",
    "ModernLM",
    "SwiGLU",
    "continue_greedily",
    "embedding_table",
    "empty_cache",
    "fused",
    "generate_greedily",
    "keep",
    "load_pretrained",
    "make_norm",
    "part_size",
    "placed",
    "projection",
    "rotary_halves",
    "split_heads",
]


def part_size(m, n_parts):
    """Size of each of ``n_parts`` equal parts of ``m`` features or heads."""
    if n_parts < 1 or m % n_parts:
        raise ValueError(f"{m} does not split into {n_parts} equal parts")
    return m // n_parts


def projection(n_in, n_out, bias=False):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases."""
    layer = nn.Linear(n_in, n_out, bias=bias)  # PyTorch draws its weights like that
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def rotary_halves(x, positions, base=10000.0):
    """Rotate feature i together with i + d/2, by position: ``b h s d, b s -> b h s d``.

    Source: Su et al. 2021, sec. 3.4.2; pairs as in Llama.
    """
    half = part_size(x.shape[-1], 2)
    steps = torch.arange(half, dtype=torch.float32, device=x.device) / half
    angle = positions[:, None, :, None] * base**-steps  # b 1 s d/2, in float32
    sin, cos = angle.sin(), angle.cos()
    first, second = x.float().chunk(2, dim=-1)  # b h s d/2
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, dim=-1).to(x.dtype)  # b h s d


def split_heads(x, d):
    """Heads of ``d`` features each: ``b s hd -> b h s d``."""
    return x.unflatten(-1, (-1, d)).transpose(1, 2)


def fused(q, k, v, mask=None):
    """Attention whose query heads share keys: ``b h q d, b g k d, b g k d -> b h q d``.

    Without a mask it is causal; a mask ``b 1 q k`` is True where a query may look.
    """
    n = part_size(q.shape[1], k.shape[1])  # query heads in a group
    if mask is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=n > 1)
    k, v = (x.repeat_interleave(n, dim=1) for x in (k, v))  # for the fused kernels
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def keep(cache, k, v, start):
    """All keys and values so far, ``b g s d``: the new ones are written to the cache."""
    stop = start + k.shape[2]
    for kept, new in zip(cache, (k, v), strict=True):
        kept[:, :, start:stop] = new  # in place: nothing is copied
    return tuple(kept[:, :, :stop] for kept in cache), cache


class GroupedAttention(nn.Module):
    """Causal attention whose query heads share keys and values: ``b s m -> b s m``.

    ``n_kv_heads`` divides ``n_heads``; a head has ``d`` features. With ``qk_norm``,
    queries and keys are normalised; with a ``base``, rotated (Ainslie et al. 2023).
    """

    def __init__(
        self, m, n_heads, n_kv_heads=None, d=None, *, bias=False, qk_norm=False,
        base=10000.0, eps=1e-6,
    ):  # fmt: skip
        super().__init__()
        n_kv_heads, d = n_kv_heads or n_heads, d or part_size(m, n_heads)
        part_size(n_heads, n_kv_heads)  # query heads that share keys and values
        part_size(d, 2 if base else 1)  # pairs for the rotation
        self.n_kv_heads, self.d, self.base = n_kv_heads, d, base
        sizes = n_heads * d, n_kv_heads * d, n_kv_heads * d
        self.q, self.k, self.v = (projection(m, size, bias) for size in sizes)
        self.out = projection(n_heads * d, m, bias)
        self.q_norm = nn.RMSNorm(d, eps=eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(d, eps=eps) if qk_norm else None

    def project(self, x, positions):
        """Queries ``b h s d``, keys and values ``b g s d``."""
        q, k, v = (split_heads(layer(x), self.d) for layer in (self.q, self.k, self.v))
        q, k = (self.q_norm(q), self.k_norm(k)) if self.q_norm else (q, k)
        if self.base:
            q, k = (rotary_halves(part, positions, self.base) for part in (q, k))
        return q, k, v

    def forward(self, x, positions, mask=None, cache=None, start=0):
        """Outputs and the cache, which gets the new keys and values from ``start`` on."""
        q, k, v = self.project(x, positions)
        if cache is not None:
            (k, v), cache = keep(cache, k, v, start)
        return self.out(merge_heads(fused(q, k, v, mask))), cache


class SwiGLU(nn.Module):
    """Gated feed-forward net (Shazeer 2020, eq. 6): ``... m -> ... m``."""

    def __init__(self, m, f):
        super().__init__()
        self.gate, self.up = projection(m, f), projection(m, f)
        self.down = projection(f, m)

    def forward(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))


class MLP(nn.Module):
    """Feed-forward net of GPT-2, with biases: ``... m -> ... m``."""

    def __init__(self, m, f):
        super().__init__()
        self.up, self.down = projection(m, f, bias=True), projection(f, m, bias=True)

    def forward(self, x):
        return self.down(gelu(self.up(x), approximate="tanh"))


class MixtureOfExperts(nn.Module):
    """The ``n_active`` best of ``n_experts`` (Jiang et al. 2024): ``... m -> ... m``."""

    def __init__(self, m, f, n_experts, n_active):
        super().__init__()
        if not 1 <= n_active <= n_experts:
            raise ValueError(f"{n_active} of {n_experts} experts cannot be active")
        self.n_active = n_active
        self.router = projection(m, n_experts)
        self.experts = nn.ModuleList([SwiGLU(m, f) for _ in range(n_experts)])

    def route(self, x):
        """Weights and numbers of the chosen experts, and all probabilities ``... e``."""
        p = self.router(x).float().softmax(dim=-1)  # ... e
        weights, chosen = p.topk(self.n_active, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), chosen, p

    def forward(self, x):
        weights, chosen, _ = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            *rows, slot = torch.where(chosen == e)  # the tokens that chose it
            share = weights[(*rows, slot)][:, None].to(x.dtype)
            out[tuple(rows)] += share * expert(x[tuple(rows)])
        return out


def make_norm(m, norm="rms", eps=1e-6):
    """Layer that normalises ``m`` features: RMSNorm, or LayerNorm as in GPT-2."""
    return {"rms": nn.RMSNorm, "layer": nn.LayerNorm}[norm](m, eps=eps)


class ModernBlock(nn.Module):
    """Attention, then a feed-forward net, each after a norm: ``b s m -> b s m``.

    ``norm`` is "rms" or "layer", ``ffn`` "swiglu", "mlp" or "experts".
    """

    def __init__(
        self, m, f, *, norm="rms", eps=1e-6, ffn="swiglu", n_experts=4, n_active=2,
        **options,
    ):  # fmt: skip
        super().__init__()
        nets = {"swiglu": SwiGLU, "mlp": MLP, "experts": MixtureOfExperts}
        experts = (n_experts, n_active) if ffn == "experts" else ()
        self.norm1, self.norm2 = make_norm(m, norm, eps), make_norm(m, norm, eps)
        self.attention = GroupedAttention(m, eps=eps, **options)
        self.ffn = nets[ffn](m, f, *experts)

    def forward(self, x, *placing):
        values, cache = self.attention(self.norm1(x), *placing)
        x = x + values
        return x + self.ffn(self.norm2(x)), cache


def placed(tokens, first=None, cache=None):
    """Positions ``b n`` of new tokens ``b n``, and which columns each sees: ``b 1 n s``.

    Row ``b`` begins in column ``first[b]``; padding before it sees itself alone. The
    mask is None, for the causal one, without padding and cache.
    """
    count = partial(torch.arange, device=tokens.device)
    start, n = cache["start"] if cache else 0, tokens.shape[1]
    if first is None and cache is None:
        return count(n)[None], None
    first = (cache["first"] if cache else first)[:, None]  # b 1
    new, seen = start + count(n), count(start + n)  # n, s
    mask = (seen >= first[..., None]) & (seen <= new[:, None])  # b n s
    return (new - first).clamp(min=0), (mask | (seen == new[:, None]))[:, None]


def embedding_table(n, m, std):
    """Embedding ``n m`` with normal entries."""
    table = nn.Embedding(n, m)
    nn.init.normal_(table.weight, std=std)
    return table


class ModernLM(nn.Module):
    """Logits of the next token at every position: ``b s -> b s c``.

    With the block of today, or GPT-2's: ``positions`` are "rotary" or "learned"; if
    ``tied``, the embedding also makes the logits. The ``options`` are those of ``ModernBlock``.
    """

    def __init__(
        self, n_tokens, m, *, n_blocks, max_length, positions="rotary", tied=True,
        norm="rms", eps=1e-6, **options,
    ):  # fmt: skip
        super().__init__()
        learned, self.max_length = positions == "learned", max_length
        options |= {"norm": norm, "eps": eps} | ({"base": None} if learned else {})
        self.embed = embedding_table(n_tokens, m, m**-0.5)
        self.positions = embedding_table(max_length, m, 0.02) if learned else None
        self.blocks = nn.ModuleList(ModernBlock(m, **options) for _ in range(n_blocks))
        self.norm = make_norm(m, norm, eps)
        self.output = None if tied else projection(m, n_tokens)

    def forward(self, tokens, first=None, cache=None):
        """Logits ``b s c``; with a cache, which has its own ``first``, also the cache.

        Row ``b`` begins in column ``first[b]``. Padding at its end needs nothing.
        """
        check_tokens(tokens, self.max_length)
        positions, mask = placed(tokens, first, cache)
        start = cache["start"] if cache else 0
        kept = [*cache["blocks"]] if cache else [None] * len(self.blocks)
        x = self.embed(tokens.clamp(min=0))  # b n m
        x = x + self.positions(positions) if self.positions else x
        for i, block in enumerate(self.blocks):
            x, kept[i] = block(x, positions, mask, kept[i], start)
        x = self.norm(x)
        logits = self.output(x) if self.output else linear(x, self.embed.weight)
        new = {"start": start + tokens.shape[1], "blocks": kept}
        return (logits, cache | new) if cache else logits


def empty_cache(model, first, length):
    """Key-value cache for ``length`` columns; row ``b`` begins in ``first[b]``."""
    layer, weight = model.blocks[0].attention, model.embed.weight
    shape = len(first), layer.n_kv_heads, length, layer.d  # b g s d
    blocks = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in model.blocks]
    return {"start": 0, "first": first, "blocks": blocks}


def generate_greedily(model, prompts, length):
    """Continue rows of tokens by the most probable ones: integers ``b length``."""
    rows = checked_prompts(model, prompts, length)
    device, longest = model.embed.weight.device, max(map(len, rows))
    first = torch.tensor([longest - len(row) for row in rows], device=device)  # b
    tokens = [[0] * (longest - len(row)) + row for row in rows]
    tokens = torch.tensor(tokens, device=device)  # b s
    return continue_greedily(model, tokens, first, length)


@torch.no_grad()
def continue_greedily(model, tokens, first, length):
    """The loop of ``generate_greedily``: the prompts in one pass, then token by token."""
    cache, texts = empty_cache(model, first, tokens.shape[1] + length), []
    for _ in range(length):
        logits, cache = model(tokens, cache=cache)
        tokens = logits[:, -1:].argmax(dim=-1)  # b 1
        texts.append(tokens)
    return torch.cat(texts, dim=1)  # b length


def load_pretrained(folder_or_name, dtype=torch.float32):
    """A ``ModernLM`` with published weights of a ``dtype``, and its tokenizer.

    From a folder in Hugging Face's format, or the name of a model on the hub: GPT-2,
    Llama, Qwen3 or Mixtral. What does not fit raises an error, and nothing is loaded.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    model = ModernLM(**published.arguments_of(config)).to(dtype)
    tensors = checkpoints.read_tensors(folder, "pt")
    found = published.our_names(tensors, config, in_out=False)
    checkpoints.check_tensors(found, model.state_dict())
    tokenizer = checkpoints.read_tokenizer(folder, model.embed.num_embeddings)
    model.load_state_dict(found)
    return model.eval(), tokenizer
