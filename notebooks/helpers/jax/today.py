"""Written by `make sync` from notebooks/today_jax.py."""

import jax
import jax.numpy as jnp
from flax import nnx

from helpers import weights
from helpers.data import checkpoints, checks
from helpers.jax.attention import UNIFORM, check_causal, merge_heads, split_heads
from helpers.jax.decoder import advance, check_tokens, new_cache

__all__ = (
    "GroupedAttention MLP MixtureOfExperts ModernBlock ModernLM STANDARD "
    "SwiGLU advance_modern embedded fused keep load_pretrained logits_of "
    "lookup make_norm new_modern_cache placed project projection "
    "rotary_halves rotation run_blocks"
).split()


def make_norm(m, norm="rms", eps=1e-6, *, rngs):
    """Layer that normalises ``m`` features: RMSNorm, or LayerNorm as in GPT-2."""
    kind = {"rms": nnx.RMSNorm, "layer": nnx.LayerNorm}[norm]
    return kind(m, epsilon=eps, use_fast_variance=False, rngs=rngs)


def rotation(positions, d, base=10000.0):
    """Sine and cosine of each angle: ``b s -> b 1 s d/2``, twice."""
    half = checks.part_size(d, 2)
    steps = jnp.arange(half, dtype=jnp.float32) / half
    angle = positions[:, None, :, None] * base**-steps  # b 1 s d/2, in float32
    return jnp.sin(angle), jnp.cos(angle)


def rotary_halves(x, sin, cos):
    """Rotate feature i together with i + d/2, by their angle: ``b h s d -> b h s d``.

    Source: Su et al. 2021, sec. 3.4.2; pairs as in Llama.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)  # b h s d/2
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)  # b h s d


def projection(n_in, n_out, bias=False, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases."""
    return nnx.Linear(n_in, n_out, use_bias=bias, kernel_init=UNIFORM, rngs=rngs)


class MLP(nnx.Module):
    """Feed-forward net of GPT-2, with biases: ``... m -> ... m``."""

    def __init__(self, m, f, *, rngs):
        self.up = projection(m, f, bias=True, rngs=rngs)
        self.down = projection(f, m, bias=True, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x), approximate=True))  # by tanh


class SwiGLU(nnx.Module):
    """Gated feed-forward net (Shazeer 2020, eq. 6): ``... m -> ... m``."""

    def __init__(self, m, f, *, rngs):
        self.gate, self.up = projection(m, f, rngs=rngs), projection(m, f, rngs=rngs)
        self.down = projection(f, m, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


def fused(q, k, v, mask=None):
    """Attention whose query heads share keys: ``b h q d, b g k d, b g k d -> b h q d``.

    Without a mask it is causal; a mask ``b 1 q k`` is True where a query may look.
    """
    checks.part_size(q.shape[1], k.shape[1])  # JAX's function takes the fewer heads
    if mask is None:
        check_causal(q, k)
    # cuDNN's kernel wants half precision, even lengths and a recent GPU of NVIDIA
    half = q.dtype in (jnp.bfloat16, jnp.float16) and q.shape[3] in range(8, 129, 8)
    even = q.shape[2] % 2 == k.shape[2] % 2 == 0
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    ampere = capability[:1].isdigit() and float(capability) >= 8  # AMD's: "gfx942"
    kernel, dtype = "cudnn" if half and even and ampere else "xla", q.dtype
    q, k, v = [x.swapaxes(1, 2) for x in (q, k, v)]  # b s h d
    if jax.default_backend() == "cpu":  # where XLA lacks some products of halves
        q, k, v = [x.astype(jnp.float32) for x in (q, k, v)]
    options = {"mask": mask, "is_causal": mask is None, "implementation": kernel}
    out = jax.nn.dot_product_attention(q, k, v, **options)
    return out.swapaxes(1, 2).astype(dtype)


def keep(cache, k, v, start):
    """All keys and values so far, ``b g s d``, and the cache with the new ones."""
    write = jax.lax.dynamic_update_slice_in_dim
    k = jnp.where(start + k.shape[2] <= cache[0].shape[2], k, jnp.nan)  # does it fit?
    cache = (write(cache[0], k, start, axis=2), write(cache[1], v, start, axis=2))
    return cache, cache  # of full length: the mask hides what is not yet written


def project(layer, x, turn=None):
    """Queries ``b h s d``, keys and values ``b g s d``, normed and rotated."""
    q, k, v = [split_heads(part(x), layer.d) for part in (layer.q, layer.k, layer.v)]
    if layer.q_norm:
        q, k = layer.q_norm(q), layer.k_norm(k)
    if turn:  # sine and cosine of the angles
        q, k = rotary_halves(q, *turn), rotary_halves(k, *turn)
    return q, k, v


class GroupedAttention(nnx.Module):
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
        *,
        rngs,
    ):
        self.n_kv_heads, self.base = n_kv_heads or n_heads, base
        self.d = d or checks.part_size(m, n_heads)
        n_q, n_kv = n_heads * self.d, self.n_kv_heads * self.d
        self.q = projection(m, n_q, bias, rngs=rngs)
        self.k = projection(m, n_kv, bias, rngs=rngs)
        self.v = projection(m, n_kv, bias, rngs=rngs)
        self.out = projection(n_q, m, bias, rngs=rngs)
        self.q_norm = make_norm(self.d, eps=eps, rngs=rngs) if qk_norm else None
        self.k_norm = make_norm(self.d, eps=eps, rngs=rngs) if qk_norm else None

    def __call__(self, x, turn=None, mask=None, cache=None, start=0):
        q, k, v = project(self, x, turn)
        if cache is not None:
            (k, v), cache = keep(cache, k, v, start)
        return self.out(merge_heads(fused(q, k, v, mask))), cache


class MixtureOfExperts(nnx.Module):
    """The best ``n_active`` of ``n_experts`` (Jiang et al. 2024): ``… m -> … m``."""

    def __init__(self, m, f, n_experts, n_active, *, rngs):
        if not 1 <= n_active <= n_experts:
            raise ValueError(f"{n_active} of {n_experts} experts cannot be active")
        self.n_active = n_active
        self.router = projection(m, n_experts, rngs=rngs)
        self.experts = nnx.data([SwiGLU(m, f, rngs=rngs) for _ in range(n_experts)])

    def route(self, x):
        """Weights and numbers of the chosen experts; all probabilities ``... e``."""
        p = jax.nn.softmax(self.router(x).astype(jnp.float32), axis=-1)  # ... e
        weights, chosen = jax.lax.top_k(p, self.n_active)
        return weights / weights.sum(axis=-1, keepdims=True), chosen, p

    def __call__(self, x):
        weights, chosen, _ = self.route(x)
        out = jnp.zeros_like(x)
        for e, expert in enumerate(self.experts):  # each computes all tokens
            share = jnp.where(chosen == e, weights, 0).sum(axis=-1, keepdims=True)
            out += share.astype(x.dtype) * expert(x)
        return out


class ModernBlock(nnx.Module):
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
        *,
        rngs,
        **options,
    ):
        self.norm1 = make_norm(m, norm, eps, rngs=rngs)
        self.norm2 = make_norm(m, norm, eps, rngs=rngs)
        self.attention = GroupedAttention(m, eps=eps, rngs=rngs, **options)
        kind = {"swiglu": SwiGLU, "mlp": MLP, "experts": MixtureOfExperts}[ffn]
        experts = (n_experts, n_active) if ffn == "experts" else ()
        self.ffn = kind(m, f, *experts, rngs=rngs)

    def __call__(self, x, turn=None, mask=None, cache=None, start=0):
        values, cache = self.attention(self.norm1(x), turn, mask, cache, start)
        x = x + values
        return x + self.ffn(self.norm2(x)), cache


def placed(tokens, first=None, cache=None):
    """Positions ``b n`` of new tokens ``b n``, and the columns each sees: ``b 1 n s``.

    Row ``b`` begins in column ``first[b]``; padding before it sees itself alone. The
    mask is None, for the causal one, without padding and cache.
    """
    start, n = cache["start"] if cache else 0, tokens.shape[1]
    new = start + jnp.arange(n)  # n
    if first is None and cache is None:
        return new[None], None
    if cache:
        checks.check_room(cache, n)
    first = (cache["first"] if cache else first)[:, None]  # b 1
    length = cache["blocks"][0][0].shape[2] if cache else n  # also the empty ones
    seen = jnp.arange(length)  # s
    mask = (seen >= first[..., None]) & (seen <= new[:, None])  # b n s
    mask = mask | (seen == new[:, None])
    return jnp.maximum(new - first, 0), mask[:, None]


STANDARD = nnx.initializers.normal(1.0)  # one object: equal models share programs


def lookup(n, m, std, *, rngs):
    """Embedding ``n m`` with normal entries."""
    table = nnx.Embed(n, m, embedding_init=STANDARD, rngs=rngs)
    table.embedding[...] *= std
    table.dtype = None  # that of its weights, whatever is loaded into it
    return table


def embedded(model, tokens, positions):
    """Vectors of tokens, with learned positions if the model has them: ``b n m``."""
    x = model.embed(jnp.maximum(tokens, 0))  # padding, -1, has no row
    return x + model.positions(positions) if model.positions else x


def logits_of(model, x):
    """Logits of what comes out of the last block: ``b n m -> b n c``."""
    x = model.norm(x)
    return model.output(x) if model.output else model.embed.attend(x)  # or tied


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


class ModernLM(nnx.Module):
    """Logits of the next token at every position: ``b s -> b s c``."""

    def __init__(
        self,
        n_tokens,
        m,
        n_blocks,
        max_length,
        rngs,
        positions="rotary",
        tied=True,
        **rest,
    ):
        self.max_length, learned = max_length, {"rotary": 0, "learned": 1}[positions]
        rest |= {"base": None} if learned else {}  # nothing is rotated
        self.embed = lookup(n_tokens, m, m**-0.5, rngs=rngs)
        self.positions = lookup(max_length, m, 0.02, rngs=rngs) if learned else None
        blocks = [ModernBlock(m, rngs=rngs, **rest) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        norm, eps = rest.get("norm", "rms"), rest.get("eps", 1e-6)
        self.norm = make_norm(m, norm, eps, rngs=rngs)
        self.output = None if tied else projection(m, n_tokens, rngs=rngs)

    def __call__(self, tokens, first=None, cache=None):
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
    layer, dtype = model.blocks[0].attention, model.embed.embedding.dtype
    empty = jnp.zeros((len(first), layer.n_kv_heads, length, layer.d), dtype)
    blocks = [(empty, empty) for _ in model.blocks]  # b g s d
    return {"start": 0, "first": first, "blocks": blocks}


@advance.register
def advance_modern(model: ModernLM, tokens, cache):
    """Logits after new tokens, ``b n -> b n c``, and the cache with them in it."""
    return model(tokens, cache=cache)


def load_pretrained(folder_or_name, dtype=jnp.float32):
    """A ``ModernLM`` with published weights of a ``dtype``, and its tokenizer.

    From a folder in Hugging Face's format, or the name of a model on the hub: GPT-2,
    Llama, Qwen3 or Mixtral. What does not fit raises an error, and nothing is loaded.
    """
    folder = checkpoints.find_folder(folder_or_name)
    config = checkpoints.read_config(folder)
    arguments = checkpoints.arguments_of(config)
    # Only shapes: drawing weights that are then replaced would take time.
    empty = nnx.eval_shape(lambda: ModernLM(**arguments, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(empty)
    shapes = {name: param for name, param, _ in weights.parameters(empty)}
    tensors = checkpoints.read_tensors(folder, "np")
    found = checkpoints.our_names(tensors, config, in_out=True)
    checkpoints.check_tensors(found, shapes)
    tokenizer = checkpoints.read_tokenizer(folder, arguments["n_tokens"])
    arrays = [jnp.asarray(found[name], dtype) for name in shapes]
    return nnx.merge(graph, jax.tree.structure(state).unflatten(arrays)), tokenizer
