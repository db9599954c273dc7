"""Right solutions of the exercises in other styles, in JAX; twin of styles_torch."""

import math

import jax
import jax.numpy as jnp
import optax
from flax import nnx


def masked_by_the_framework(q, k, v, mask):
    e = v.shape[-1]  # the function takes values of the size of keys
    v = jnp.pad(v, ((0, 0), (0, 0), (0, k.shape[-1] - e)))
    q, k, v = q[:, :, None], k[:, :, None], v[:, :, None]
    seen = None if mask is None else mask[:, None]
    out = jax.nn.dot_product_attention(q, k, v, mask=seen)[:, :, 0, :e]
    return out if mask is None else out * mask.any(-1)[..., None]


def masked_by_einsum(q, k, v, mask):
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / math.sqrt(q.shape[-1])
    mask = jnp.ones(scores.shape, bool) if mask is None else mask
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9)) * mask
    return jnp.einsum("bqk,bke->bqe", weights, v)


def masked_by_loops(q, k, v, mask):
    rows = []
    for b in range(len(q)):
        for i in range(q.shape[1]):
            seen = slice(None) if mask is None else mask[b, i]
            scores = k[b][seen] @ q[b, i] * q.shape[-1] ** -0.5
            rows.append(jax.nn.softmax(scores) @ v[b][seen])
    return jnp.stack(rows).reshape(*q.shape[:2], -1)


def heads_by_the_framework(x, qkv, out, n_heads):
    b, s, m = x.shape
    q, k, v = (x @ qkv).reshape(b, s, 3, n_heads, -1).transpose(2, 0, 1, 3, 4)
    return jax.nn.dot_product_attention(q, k, v).reshape(b, s, m) @ out


def heads_by_slices(x, qkv, out, n_heads):
    q, k, v = jnp.split(x @ qkv, 3, axis=-1)
    d, parts = x.shape[-1] // n_heads, []
    for h in range(n_heads):
        one = slice(h * d, (h + 1) * d)
        scores = q[..., one] @ k[..., one].mT / d**0.5
        parts.append(nnx.softmax(scores) @ v[..., one])
    return jnp.concatenate(parts, axis=-1) @ out


def layer_norm_by_the_framework(x, scale, bias):
    return jax.nn.standardize(x, axis=-1, epsilon=1e-5) * scale + bias


def layer_norm_by_a_module(x, scale, bias):
    layer = nnx.LayerNorm(x.shape[-1], epsilon=1e-5, rngs=nnx.Rngs(0))
    graph, state = nnx.split(layer)
    for name, new in (("scale", scale), ("bias", bias)):
        state[name] = state[name].replace(new)
    return nnx.merge(graph, state)(x)


@jax.jit
def layer_norm_by_var(x, scale, bias):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias


def sinusoidal_by_slices(length, m):
    out, place = jnp.zeros((length, m)), jnp.arange(length)[:, None]
    angle = place * jnp.exp(jnp.arange(0, m, 2) * -math.log(10000) / m)
    return out.at[:, 0::2].set(jnp.sin(angle)).at[:, 1::2].set(jnp.cos(angle))


def sinusoidal_by_loops(length, m):
    def entry(s, i):
        angle = s / 10000 ** (i // 2 * 2 / m)
        return math.cos(angle) if i % 2 else math.sin(angle)

    return jnp.array([[entry(s, i) for i in range(m)] for s in range(length)])


def rotary_by_complex_numbers(x, offset):
    s, d = x.shape[-2:]
    speed = 10000.0 ** (-jnp.arange(0, d, 2) / d)
    angle = jnp.outer(jnp.arange(offset, offset + s), speed)
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * jnp.exp(1j * angle)
    return jnp.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def rotary_by_a_turned_copy(x, offset):
    s, d = x.shape[-2:]
    speed = 10000.0 ** (-jnp.arange(0, d, 2) / d)
    angle = (jnp.arange(s)[:, None] + offset) * speed
    angle = jnp.repeat(angle, 2, axis=-1)
    turned = jnp.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    return x * jnp.cos(angle) + turned * jnp.sin(angle)


def cross_entropy_by_the_framework(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def cross_entropy_by_gather(logits, labels):
    log_p = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_p, labels[..., None], axis=-1).mean()


def training_step_by_autograd(w, x, y, learning_rate, max_norm):
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    norm = jnp.linalg.norm(gradient)
    return w - learning_rate * gradient * jnp.minimum(1, max_norm / norm)


def training_step_by_an_optimizer(w, x, y, learning_rate, max_norm):
    clip = optax.clip_by_global_norm(max_norm)
    optimizer = optax.chain(clip, optax.sgd(learning_rate))
    gradient = jax.grad(lambda w: optax.l2_loss(x @ w, y).mean() * 2)(w)
    return optax.apply_updates(w, optimizer.update(gradient, optimizer.init(w))[0])


def adam_by_the_framework(gradient, mean, square, t, learning_rate):
    optimizer = optax.adam(learning_rate)
    state, *rest = optimizer.init(gradient)
    state = state._replace(count=jnp.array(t - 1), mu=mean, nu=square)
    update, (state, *_) = optimizer.update(gradient, (state, *rest))
    return update, state.mu, state.nu


def adam_by_lerp(gradient, mean, square, t, learning_rate):
    mean += 0.1 * (gradient - mean)
    square += 0.001 * (gradient**2 - square)
    root = jnp.sqrt(square / (1 - 0.999**t)) + 1e-8
    return -learning_rate / (1 - 0.9**t) * mean / root, mean, square


def loss_by_the_framework(logits):
    labels = jnp.full(len(logits), logits.shape[1] - 1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def loss_by_logsumexp(logits):
    return (jax.nn.logsumexp(logits, axis=-1) - logits[:, -1]).mean()


def from_the_others_by_loops(x):
    def distances(one):
        others = [jnp.delete(one, i, axis=0) for i in range(len(one))]
        return [jnp.linalg.norm(one[i] - o.mean(0)) for i, o in enumerate(others)]

    return jnp.array([distances(one) for one in x])


def from_the_others_by_the_mean(x):
    s = x.shape[1]
    return jnp.linalg.norm(x - x.mean(1, keepdims=True), axis=-1) * s / (s - 1)


def patches_by_unfold(images, patch):
    axes = ("NHWC", "OIHW", "NHWC")
    cut = jax.lax.conv_general_dilated_patches(
        images, (patch, patch), (patch, patch), "VALID", dimension_numbers=axes
    )
    b, y, x, _ = cut.shape
    cut = cut.reshape(b, y * x, images.shape[-1], patch * patch)
    return cut.swapaxes(2, 3).reshape(b, y * x, -1)


def patches_by_loops(images, patch):
    b, height, width, _ = images.shape
    return jnp.stack(
        [
            images[:, y : y + patch, x : x + patch].reshape(b, -1)
            for y in range(0, height, patch)
            for x in range(0, width, patch)
        ],
        axis=1,
    )


def tokens_by_pad(patches, w, class_token, table):
    x = jnp.pad(jnp.dot(patches, w), ((0, 0), (1, 0), (0, 0)))
    return (x + table).at[:, 0].add(class_token)


def tokens_by_expand(patches, w, class_token, table):
    first = jnp.broadcast_to(class_token, (len(patches), 1, len(class_token)))
    x = jnp.einsum("bni,im->bnm", patches, w)
    return jnp.concatenate([first, x], axis=1) + table


def top_p_by_scatter(p, top_p):
    order = jnp.argsort(p, descending=True)
    ranked = jnp.take_along_axis(p, order, -1)
    n = jnp.sum(jnp.cumsum(ranked, -1) - ranked < top_p, -1, keepdims=True)
    least = jnp.take_along_axis(ranked, n - 1, -1)
    return jax.nn.softmax(jnp.where(p >= least, jnp.log(p), -jnp.inf), axis=-1)


def top_p_by_loops(p, top_p):
    out = jnp.zeros_like(p)
    for i, row in enumerate(p):
        total = 0.0
        for c in jnp.argsort(-row):
            out, total = out.at[i, c].set(row[c]), total + row[c].item()
            if total >= top_p:
                break
    return out / out.sum(-1, keepdims=True)


def cached_step_by_the_framework(q, k, v, keys, values):
    keys, values = jnp.concatenate([keys, k], 2), jnp.concatenate([values, v], 2)
    q, seen, read = (x.swapaxes(1, 2) for x in (q, keys, values))
    return jax.nn.dot_product_attention(q, seen, read).swapaxes(1, 2), keys, values


def cached_step_by_slots(q, k, v, keys, values):
    n, d = keys.shape[2:]
    room = ((0, 0), (0, 0), (0, 1), (0, 0))
    keys = jnp.pad(keys, room).at[:, :, n].set(k[:, :, 0])
    values = jax.lax.dynamic_update_slice(jnp.pad(values, room), v, (0, 0, n, 0))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, keys) * d**-0.5
    return [jnp.einsum("bhqk,bhkd->bhqd", nnx.softmax(scores), values), keys, values]


def masks_by_tril(source, target, pad):
    causal = jnp.tri(target.shape[1], dtype=bool)
    return causal & (target != pad)[:, None, None], (source != pad)[:, None, None]


def masks_by_loops(source, target, pad):
    b, s = target.shape
    own = jnp.zeros((b, 1, s, s), dtype=bool)
    for q in range(s):
        own = own.at[:, 0, q, : q + 1].set(target[:, : q + 1] != pad)
    return own, jnp.not_equal(source, pad)[:, None, None]


def beam_step_by_topk(scores, log_p, width):
    total = (scores[..., None] + log_p).reshape(len(scores), -1)
    total, best = jax.lax.top_k(total, width)
    return total, *jnp.divmod(best, log_p.shape[-1])


def beam_step_by_loops(scores, log_p, width):
    def best(score, row):
        total = score[:, None] + row
        order = jnp.argsort(total.ravel(), descending=True)[:width]
        beam, token = jnp.unravel_index(order, total.shape)
        return total[beam, token], beam, token

    rows = [best(*pair) for pair in zip(scores, log_p, strict=True)]
    return tuple(jnp.stack(part) for part in zip(*rows, strict=True))


def masked_mean_by_loops(x, real):
    return jnp.stack([one[kept].mean(0) for one, kept in zip(x, real, strict=True)])


def masked_mean_by_nan(x, real):
    return x.mean(1, where=real[..., None])


def accumulate_by_chunks(gradient, x, y, n):
    total = jnp.zeros(x.shape[1])
    parts = zip(jnp.array_split(x, n), jnp.array_split(y, n), strict=True)
    for rows, labels in parts:
        total = total + gradient(rows, labels) * len(rows) / len(x)
    return total


def accumulate_by_strides(gradient, x, y, n):
    return sum(gradient(x[i::n], y[i::n]) * len(x[i::n]) for i in range(n)) / len(x)


def rotary_offset_by_complex_numbers(x, positions, base):
    half = x.shape[-1] // 2
    angle = positions[..., None] * base ** (-jnp.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * jnp.exp(1j * angle)[:, None]
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


def rotary_offset_by_a_turned_copy(x, positions, base):
    half = x.shape[-1] // 2
    speeds = jnp.tile(jnp.exp(-math.log(base) / half * jnp.arange(half)), 2)
    angle = jnp.einsum("bs,d->bsd", positions, speeds)[:, None]
    turned = jnp.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * jnp.cos(angle) + turned * jnp.sin(angle)


def grouped_by_the_framework(q, k, v):
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v).swapaxes(1, 2)


def grouped_by_repeating(q, k, v):
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    return nnx.softmax(q @ k.mT * q.shape[-1] ** -0.5) @ v


def grouped_by_loops(q, k, v):
    n, heads = q.shape[1] // k.shape[1], []
    for h in range(q.shape[1]):
        scores = jnp.einsum("bqd,bkd->bqk", q[:, h], k[:, h // n])
        heads.append(jax.nn.softmax(scores / math.sqrt(q.shape[-1])) @ v[:, h // n])
    return jnp.stack(heads, axis=1)
