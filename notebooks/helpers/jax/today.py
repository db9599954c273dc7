"""The chapter *The Transformer of today* builds these: block, model, cache, weights."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.data import checkpoints, published
from helpers.jax.attention import UNIFORM, framework_attention, merge_heads
from helpers.jax.decoder import check_tokens, checked_prompts

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


def projection(n_in, n_out, bias=False, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases."""
    return nnx.Linear(n_in, n_out, use_bias=bias, kernel_init=UNIFORM, rngs=rngs)


def rotary_halves(x, positions, base=10000.0):
    """Rotate feature i together with i + d/2, by position: ``b h s d, b s -> b h s d``.

    Source: Su et al. 2021, sec. 3.4.2; pairs as in Llama.
    """
    half = part_size(x.shape[-1], 2)
    steps = jnp.arange(half, dtype=jnp.float32) / half
    angle = positions[:, None, :, None] * base**-steps  # b 1 s d/2, in float32
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)  # b h s d/2
    turned = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)  # b h s d


def split_heads(x, d):
    """Heads of ``d`` features each: ``b s hd -> b h s d``."""
    return x.reshape(*x.shape[:2], -1, d).swapaxes(1, 2)


def fused(q, k, v, mask=None):
    """Attention whose query heads share keys: ``b h q d, b g k d, b g k d -> b h q d``.

    Without a mask it is causal; a mask ``b 1 q k`` is True where a query may look.
    """
    part_size(q.shape[1], k.shape[1])  # JAX's function takes the fewer heads as such
    return framework_attention(q, k, v, mask, is_causal=mask is None)


def keep(cache, k, v, start):
    """All keys and values so far, ``b g s d``: the new ones are written to the cache."""
    write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=2)
    cache = tuple(write(old, new) for old, new in zip(cache, (k, v), strict=True))
    return cache, cache  # of full length: the mask hides what is not yet written


class GroupedAttention(nnx.Module):
    """Causal attention whose query heads share keys and values: ``b s m -> b s m``.

    ``n_kv_heads`` divides ``n_heads``; a head has ``d`` features. With ``qk_norm``,
    queries and keys are normalised; with a ``base``, rotated (Ainslie et al. 2023).
    """

    def __init__(
        self, m, n_heads, n_kv_heads=None, d=None, *, bias=False, qk_norm=False,
        base=10000.0, eps=1e-6, rngs,
    ):  # fmt: skip
        n_kv_heads, d = n_kv_heads or n_heads, d or part_size(m, n_heads)
        part_size(n_heads, n_kv_heads)  # query heads that share keys and values
        part_size(d, 2 if base else 1)  # pairs for the rotation
        self.n_kv_heads, self.d, self.base = n_kv_heads, d, base
        sizes = n_heads * d, n_kv_heads * d, n_kv_heads * d
        self.q, self.k, self.v = (projection(m, n, bias, rngs=rngs) for n in sizes)
        self.out = projection(n_heads * d, m, bias, rngs=rngs)
        self.q_norm = make_norm(d, eps=eps, rngs=rngs) if qk_norm else None
        self.k_norm = make_norm(d, eps=eps, rngs=rngs) if qk_norm else None

    def project(self, x, positions):
        """Queries ``b h s d``, keys and values ``b g s d``."""
        q, k, v = (split_heads(layer(x), self.d) for layer in (self.q, self.k, self.v))
        q, k = (self.q_norm(q), self.k_norm(k)) if self.q_norm else (q, k)
        if self.base:
            q, k = (rotary_halves(part, positions, self.base) for part in (q, k))
        return q, k, v

    def __call__(self, x, positions, mask=None, cache=None, start=0):
        """Outputs and the cache, which gets the new keys and values from ``start`` on."""
        q, k, v = self.project(x, positions)
        if cache is not None:
            (k, v), cache = keep(cache, k, v, start)
        return self.out(merge_heads(fused(q, k, v, mask))), cache


class SwiGLU(nnx.Module):
    """Gated feed-forward net (Shazeer 2020, eq. 6): ``... m -> ... m``."""

    def __init__(self, m, f, *, rngs):
        self.gate, self.up = projection(m, f, rngs=rngs), projection(m, f, rngs=rngs)
        self.down = projection(f, m, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class MLP(nnx.Module):
    """Feed-forward net of GPT-2, with biases: ``... m -> ... m``."""

    def __init__(self, m, f, *, rngs):
        self.up = projection(m, f, bias=True, rngs=rngs)
        self.down = projection(f, m, bias=True, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x), approximate=True))  # by tanh


class MixtureOfExperts(nnx.Module):
    """The ``n_active`` best of ``n_experts`` (Jiang et al. 2024): ``... m -> ... m``."""

    def __init__(self, m, f, n_experts, n_active, *, rngs):
        if not 1 <= n_active <= n_experts:
            raise ValueError(f"{n_active} of {n_experts} experts cannot be active")
        self.n_active = n_active
        self.router = projection(m, n_experts, rngs=rngs)
        self.experts = nnx.data([SwiGLU(m, f, rngs=rngs) for _ in range(n_experts)])

    def route(self, x):
        """Weights and numbers of the chosen experts, and all probabilities ``... e``."""
        p = jax.nn.softmax(self.router(x).astype(jnp.float32), axis=-1)  # ... e
        weights, chosen = jax.lax.top_k(p, self.n_active)
        return weights / weights.sum(axis=-1, keepdims=True), chosen, p

    def __call__(self, x):
        weights, chosen, _ = self.route(x)
        out = jnp.zeros_like(x)
        # All experts compute all tokens; jax.lax.ragged_dot does only what was chosen.
        for e, expert in enumerate(self.experts):
            share = jnp.where(chosen == e, weights, 0).sum(axis=-1, keepdims=True)
            out += share.astype(x.dtype) * expert(x)
        return out


def make_norm(m, norm="rms", eps=1e-6, *, rngs):
    """Layer that normalises ``m`` features: RMSNorm, or LayerNorm as in GPT-2."""
    kind = {"rms": nnx.RMSNorm, "layer": nnx.LayerNorm}[norm]
    return kind(m, epsilon=eps, use_fast_variance=False, rngs=rngs)


class ModernBlock(nnx.Module):
    """Attention, then a feed-forward net, each after a norm: ``b s m -> b s m``.

    ``norm`` is "rms" or "layer", ``ffn`` "swiglu", "mlp" or "experts".
    """

    def __init__(
        self, m, f, *, norm="rms", eps=1e-6, ffn="swiglu", n_experts=4, n_active=2,
        rngs, **options,
    ):  # fmt: skip
        nets = {"swiglu": SwiGLU, "mlp": MLP, "experts": MixtureOfExperts}
        experts = (n_experts, n_active) if ffn == "experts" else ()
        self.norm1, self.norm2 = (make_norm(m, norm, eps, rngs=rngs) for _ in range(2))
        self.attention = GroupedAttention(m, eps=eps, rngs=rngs, **options)
        self.ffn = nets[ffn](m, f, *experts, rngs=rngs)

    def __call__(self, x, *placing):
        values, cache = self.attention(self.norm1(x), *placing)
        x = x + values
        return x + self.ffn(self.norm2(x)), cache


def placed(tokens, first=None, cache=None):
    """Positions ``b n`` of new tokens ``b n``, and which columns each sees: ``b 1 n s``.

    Row ``b`` begins in column ``first[b]``; padding before it sees itself alone. The
    mask is None, for the causal one, without padding and cache.
    """
    start, n = cache["start"] if cache else 0, tokens.shape[1]
    if first is None and cache is None:
        return jnp.arange(n)[None], None
    first = (cache["first"] if cache else first)[:, None]  # b 1
    length = cache["blocks"][0][0].shape[2] if cache else n  # s, also the empty ones
    new, seen = start + jnp.arange(n), jnp.arange(length)  # n, s
    mask = (seen >= first[..., None]) & (seen <= new[:, None])  # b n s
    return jnp.maximum(new - first, 0), (mask | (seen == new[:, None]))[:, None]


def embedding_table(n, m, std, *, rngs):
    """Embedding ``n m`` with normal entries."""
    table = nnx.Embed(n, m, embedding_init=nnx.initializers.normal(std), rngs=rngs)
    table.dtype = None  # that of its weights, whatever is loaded into it
    return table


class ModernLM(nnx.Module):
    """Logits of the next token at every position: ``b s -> b s c``.

    With the block of today, or GPT-2's: ``positions`` are "rotary" or "learned"; if
    ``tied``, the embedding also makes the logits. The ``options`` are those of ``ModernBlock``.
    """

    def __init__(
        self, n_tokens, m, *, n_blocks, max_length, positions="rotary", tied=True,
        norm="rms", eps=1e-6, rngs, **options,
    ):  # fmt: skip
        learned, self.max_length = positions == "learned", max_length
        options |= {"norm": norm, "eps": eps} | ({"base": None} if learned else {})
        table = partial(embedding_table, rngs=rngs)
        self.embed = table(n_tokens, m, m**-0.5)
        self.positions = table(max_length, m, 0.02) if learned else None
        blocks = [ModernBlock(m, rngs=rngs, **options) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        self.norm = make_norm(m, norm, eps, rngs=rngs)
        self.output = None if tied else projection(m, n_tokens, rngs=rngs)

    def __call__(self, tokens, first=None, cache=None):
        """Logits ``b s c``; with a cache, which has its own ``first``, also the cache.

        Row ``b`` begins in column ``first[b]``. Padding at its end needs nothing.
        """
        check_tokens(tokens, self.max_length)
        positions, mask = placed(tokens, first, cache)
        start = cache["start"] if cache else 0
        kept = [*cache["blocks"]] if cache else [None] * len(self.blocks)
        x = self.embed(jnp.maximum(tokens, 0))  # b n m
        x = x + self.positions(positions) if self.positions else x
        for i, block in enumerate(self.blocks):
            x, kept[i] = block(x, positions, mask, kept[i], start)
        x = self.norm(x)
        logits = self.output(x) if self.output else self.embed.attend(x)
        new = {"start": start + tokens.shape[1], "blocks": kept}
        return (logits, cache | new) if cache else logits


def empty_cache(model, first, length):
    """Key-value cache for ``length`` columns; row ``b`` begins in ``first[b]``."""
    layer, dtype = model.blocks[0].attention, model.embed.embedding.dtype
    empty = jnp.zeros((len(first), layer.n_kv_heads, length, layer.d), dtype)
    blocks = [(empty, empty)] * len(model.blocks)  # b g s d
    return {"start": jnp.int32(0), "first": first, "blocks": blocks}


def generate_greedily(model, prompts, length):
    """Continue rows of tokens by the most probable ones: integers ``b length``."""
    rows = checked_prompts(model, prompts, length)
    longest = max(map(len, rows))
    first = jnp.array([longest - len(row) for row in rows])  # b
    tokens = jnp.array([[0] * (longest - len(row)) + row for row in rows])  # b s
    graph, state = nnx.split(model)
    return continue_greedily(state, tokens, first, graph=graph, length=length)


@partial(jax.jit, static_argnames=("graph", "length"))
def continue_greedily(state, tokens, first, *, graph, length):
    """The loop of ``generate_greedily``: the prompts in one pass, then token by token."""
    model = nnx.merge(graph, state)
    cache = empty_cache(model, first, tokens.shape[1] + length)
    logits, cache = model(tokens, cache=cache)

    def step(carry, _):
        new, cache = carry  # b
        logits, cache = model(new[:, None], cache=cache)
        return (logits[:, -1].argmax(axis=-1), cache), new

    start = logits[:, -1].argmax(axis=-1), cache
    return jax.lax.scan(step, start, length=length)[1].T  # b length


def load_pretrained(folder_or_name, dtype=jnp.float32):
    """A ``ModernLM`` with published weights of a ``dtype``, and its tokenizer.

    From a folder in Hugging Face's format, or the name of a model on the hub: GPT-2,
    Llama, Qwen3 or Mixtral. What does not fit raises an error, and nothing is loaded.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    model, params = ModernLM(**published.arguments_of(config), rngs=nnx.Rngs(0)), {}
    nnx.update(model, jax.tree.map(lambda x: x.astype(dtype), nnx.state(model)))
    tensors = checkpoints.read_tensors(folder, "flax")
    found = published.our_names(tensors, config, in_out=True)
    for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        *parents, leaf = map(str, path)  # a kernel, scale, embedding or bias
        params[".".join([*parents, "bias" if leaf == "bias" else "weight"])] = param
    checkpoints.check_tensors(found, params)
    tokenizer = checkpoints.read_tokenizer(folder, model.embed.num_embeddings)
    for name, param in params.items():
        param[...] = found[name].astype(dtype)
    return model, tokenizer
