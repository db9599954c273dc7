"""Written by `make sync` from notebooks/today_torch.py."""

import torch
from torch import nn

from helpers.data import checkpoints, checks
from helpers.torch.attention import check_causal, merge_heads, split_heads
from helpers.torch.decoder import advance, check_tokens, new_cache
from helpers.torch.frameworks import device

__all__ = (
    "GroupedAttention MLP MixtureOfExperts ModernBlock ModernLM SwiGLU "
    "advance_modern embedded fused keep load_pretrained logits_of lookup "
    "make_norm new_modern_cache placed project projection rotary_halves "
    "rotation run_blocks"
).split()


def make_norm(m, norm="rms", eps=1e-6):
    """Layer that normalises ``m`` features: RMSNorm, or LayerNorm as in GPT-2."""
    kind = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}[norm]
    return kind(m, eps=eps)


def rotation(positions, d, base=10000.0):
    """Sine and cosine of each angle: ``b s -> b 1 s d/2``, twice."""
    half = checks.part_size(d, 2)
    steps = torch.arange(half, dtype=torch.float32, device=positions.device) / half
    angle = positions[:, None, :, None] * base**-steps  # b 1 s d/2, in float32
    return angle.sin(), angle.cos()


def rotary_halves(x, sin, cos):
    """Rotate feature i together with i + d/2, by their angle: ``b h s d -> b h s d``.

    Source: Su et al. 2021, sec. 3.4.2; pairs as in Llama.
    """
    first, second = x.float().chunk(2, dim=-1)  # b h s d/2
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(turned, dim=-1).to(x.dtype)  # b h s d


def projection(n_in, n_out, bias=False):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases."""
    layer = nn.Linear(n_in, n_out, bias=bias)  # PyTorch draws its weights like that
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Feed-forward net of GPT-2, with biases: ``... m -> ... m``."""

    def __init__(self, m, f):
        super().__init__()
        self.up, self.down = projection(m, f, bias=True), projection(f, m, bias=True)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x), approximate="tanh"))


class SwiGLU(nn.Module):
    """Gated feed-forward net (Shazeer 2020, eq. 6): ``... m -> ... m``."""

    def __init__(self, m, f):
        super().__init__()
        self.gate, self.up = projection(m, f), projection(m, f)
        self.down = projection(f, m)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def fused(q, k, v, mask=None):
    """Attention whose query heads share keys: ``b h q d, b g k d, b g k d -> b h q d``.

    Without a mask it is causal; a mask ``b 1 q k`` is True where a query may look.
    """
    n = checks.part_size(q.shape[1], k.shape[1])  # query heads in a group
    if mask is None:
        check_causal(q, k)
    attend = nn.functional.scaled_dot_product_attention
    return attend(q, k, v, mask, is_causal=mask is None, enable_gqa=n > 1)


def keep(cache, k, v, start):
    """All keys and values so far, ``b g s d``, and the cache with the new ones."""
    stop = start + k.shape[2]
    for kept, new in zip(cache, (k, v), strict=True):
        kept[:, :, start:stop] = new  # in place: nothing is copied
    return [kept[:, :, :stop] for kept in cache], cache


def project(layer, x, turn=None):
    """Queries ``b h s d``, keys and values ``b g s d``, normed and rotated."""
    q, k, v = [split_heads(part(x), layer.d) for part in (layer.q, layer.k, layer.v)]
    if layer.q_norm:
        q, k = layer.q_norm(q), layer.k_norm(k)
    if turn:  # sine and cosine of the angles
        q, k = rotary_halves(q, *turn), rotary_halves(k, *turn)
    return q, k, v


class GroupedAttention(nn.Module):
    """Causal attention whose query heads share keys and values: ``b s m -> b s m``."""

    def __init__(
        self,
        m,
        n_heads,
        n_kv_heads=None,
        d=None,
        bias=False,
        qk_norm=False,
        base=10000.0,
        eps=1e-6,
    ):
        super().__init__()
        self.n_kv_heads, self.base = n_kv_heads or n_heads, base
        self.d = d or checks.part_size(m, n_heads)
        n_q, n_kv = n_heads * self.d, self.n_kv_heads * self.d
        self.q = projection(m, n_q, bias)
        self.k = projection(m, n_kv, bias)
        self.v = projection(m, n_kv, bias)
        self.out = projection(n_q, m, bias)
        self.q_norm = make_norm(self.d, eps=eps) if qk_norm else None
        self.k_norm = make_norm(self.d, eps=eps) if qk_norm else None

    def forward(self, x, turn=None, mask=None, cache=None, start=0):
        q, k, v = project(self, x, turn)
        if cache is not None:
            (k, v), cache = keep(cache, k, v, start)
        return self.out(merge_heads(fused(q, k, v, mask))), cache


class MixtureOfExperts(nn.Module):
    """The best ``n_active`` of ``n_experts`` (Jiang et al. 2024): ``… m -> … m``."""

    def __init__(self, m, f, n_experts, n_active):
        super().__init__()
        if not 1 <= n_active <= n_experts:
            raise ValueError(f"{n_active} of {n_experts} experts cannot be active")
        self.n_active = n_active
        self.router = projection(m, n_experts)
        self.experts = nn.ModuleList([SwiGLU(m, f) for _ in range(n_experts)])

    def route(self, x):
        """Weights and numbers of the chosen experts; all probabilities ``... e``."""
        p = self.router(x).float().softmax(dim=-1)  # ... e
        weights, chosen = p.topk(self.n_active, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), chosen, p

    def forward(self, x):
        tokens = x.flatten(0, -2)  # n m: of all texts
        weights, chosen, _ = self.route(tokens)
        out = torch.zeros_like(tokens)
        for e, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == e)  # the tokens that chose it
            share = weights[rows, slot, None].to(x.dtype)
            out.index_add_(0, rows, share * expert(tokens[rows]))
        return out.view_as(x)


class ModernBlock(nn.Module):
    """Attention, then a feed-forward net, each after a norm: ``b s m -> b s m``."""

    def __init__(
        self,
        m,
        f,
        norm="rms",
        eps=1e-6,
        ffn="swiglu",
        n_experts=4,
        n_active=2,
        **options,
    ):
        super().__init__()
        self.norm1 = make_norm(m, norm, eps)
        self.norm2 = make_norm(m, norm, eps)
        self.attention = GroupedAttention(m, eps=eps, **options)
        kind = {"swiglu": SwiGLU, "mlp": MLP, "experts": MixtureOfExperts}[ffn]
        experts = (n_experts, n_active) if ffn == "experts" else ()
        self.ffn = kind(m, f, *experts)

    def forward(self, x, turn=None, mask=None, cache=None, start=0):
        values, cache = self.attention(self.norm1(x), turn, mask, cache, start)
        x = x + values
        return x + self.ffn(self.norm2(x)), cache


def placed(tokens, first=None, cache=None):
    """Positions ``b n`` of new tokens ``b n``, and the columns each sees: ``b 1 n s``.

    Row ``b`` begins in column ``first[b]``; padding before it sees itself alone. The
    mask is None, for the causal one, without padding and cache.
    """
    start, n = cache["start"] if cache else 0, tokens.shape[1]
    seen = torch.arange(start + n, device=tokens.device)  # s
    new = seen[start:]  # n
    if first is None and cache is None:
        return new[None], None
    if cache:
        checks.check_room(cache, n)
    first = (cache["first"] if cache else first)[:, None]  # b 1
    mask = (seen >= first[..., None]) & (seen <= new[:, None])  # b n s
    mask = mask | (seen == new[:, None])
    return (new - first).clamp(min=0), mask[:, None]


def lookup(n, m, std):
    """Embedding ``n m`` with normal entries."""
    table = nn.Embedding(n, m)
    nn.init.normal_(table.weight, std=std)
    return table


def embedded(model, tokens, positions):
    """Vectors of tokens, with learned positions if the model has them: ``b n m``."""
    x = model.embed(tokens.clamp(min=0))  # padding, -1, has no row
    return x + model.positions(positions) if model.positions else x


def logits_of(model, x):
    """Logits of what comes out of the last block: ``b n m -> b n c``."""
    x = model.norm(x)
    return model.output(x) if model.output else x @ model.embed.weight.T  # or tied


def run_blocks(blocks, x, positions, mask=None, cache=None):
    """The blocks, ``b n m -> b n m``, and the cache with the keys of new tokens."""
    layer = blocks[0].attention
    turn = rotation(positions, layer.d, layer.base) if layer.base else None
    start, kept = cache["start"] if cache else 0, []
    blocks_before = cache["blocks"] if cache else [None] * len(blocks)
    for block, old in zip(blocks, blocks_before, strict=True):
        x, new = block(x, turn, mask, old, start)
        kept.append(new)
    return x, cache and {**cache, "start": start + x.shape[1], "blocks": kept}


class ModernLM(nn.Module):
    """Logits of the next token at every position: ``b s -> b s c``."""

    def __init__(
        self, n_tokens, m, n_blocks, max_length, positions="rotary", tied=True, **rest
    ):
        super().__init__()
        self.max_length, learned = max_length, {"rotary": 0, "learned": 1}[positions]
        rest |= {"base": None} if learned else {}  # nothing is rotated
        self.embed = lookup(n_tokens, m, m**-0.5)
        self.positions = lookup(max_length, m, 0.02) if learned else None
        blocks = [ModernBlock(m, **rest) for _ in range(n_blocks)]
        self.blocks = nn.ModuleList(blocks)
        norm, eps = rest.get("norm", "rms"), rest.get("eps", 1e-6)
        self.norm = make_norm(m, norm, eps)
        self.output = None if tied else projection(m, n_tokens)

    def forward(self, tokens, first=None, cache=None):
        check_tokens(tokens, self.max_length)
        positions, mask = placed(tokens, first, cache)
        x = embedded(self, tokens, positions)  # b n m
        x, cache = run_blocks(self.blocks, x, positions, mask, cache)
        logits = logits_of(self, x)
        return (logits, cache) if cache else logits


@new_cache.register
def new_modern_cache(model: ModernLM, first, length):
    """Key-value cache for ``length`` columns; row ``b`` begins in ``first[b]``."""
    if length > model.max_length:
        raise ValueError(f"{length} positions, but max_length = {model.max_length}")
    layer, weight = model.blocks[0].attention, model.embed.weight
    shape = (len(first), layer.n_kv_heads, length, layer.d)  # b g s d
    blocks = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in model.blocks]
    return {"start": 0, "first": first, "blocks": blocks}


@advance.register
def advance_modern(model: ModernLM, tokens, cache):
    """Logits after new tokens, ``b n -> b n c``, and the cache with them in it."""
    return model(tokens, cache=cache)


def load_pretrained(folder_or_name, dtype=torch.float32):
    """A ``ModernLM`` with published weights of a ``dtype``, and its tokenizer.

    From a folder in Hugging Face's format, or the name of a model on the hub: GPT-2,
    Llama, Qwen3 or Mixtral. What does not fit raises an error, and nothing is loaded.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    with torch.device("meta"):  # shapes only: no weights are drawn
        model = ModernLM(**checkpoints.arguments_of(config))
    tensors = checkpoints.read_tensors(folder, "pt")
    found = checkpoints.our_names(tensors, config, in_out=False)
    checkpoints.check_tensors(found, model.state_dict())
    tokenizer = checkpoints.read_tokenizer(folder, model.embed.num_embeddings)
    found = {name: x.to(device, dtype).contiguous() for name, x in found.items()}
    model.load_state_dict(found, assign=True)
    return model.eval(), tokenizer
