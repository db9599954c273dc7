"""Right solutions of the exercises in other styles, in PyTorch; twin of styles_jax."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def masked_by_the_framework(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def masked_by_einsum(q, k, v, mask):
    scores = torch.einsum("bqd,bkd->bqk", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    weights = scores.softmax(-1)
    weights = weights if mask is None else weights.masked_fill(~mask, 0)
    return torch.einsum("bqk,bke->bqe", weights, v)


def masked_by_loops(q, k, v, mask):
    rows = []
    for b in range(len(q)):
        for i in range(q.shape[1]):
            seen = slice(None) if mask is None else mask[b, i]
            weights = torch.softmax(k[b][seen] @ q[b, i] * q.shape[-1] ** -0.5, 0)
            rows.append(weights @ v[b][seen])
    return torch.stack(rows).reshape(*q.shape[:2], -1)


def heads_by_the_framework(x, qkv, out, n_heads):
    layer = nn.MultiheadAttention(x.shape[-1], n_heads, bias=False, batch_first=True)
    weights = {"in_proj_weight": qkv.T, "out_proj.weight": out.T}
    return torch.func.functional_call(layer, weights, (x, x, x))[0]


def heads_by_slices(x, qkv, out, n_heads):
    q, k, v = (x @ qkv).chunk(3, dim=-1)
    d, parts = x.shape[-1] // n_heads, []
    for h in range(n_heads):
        one = slice(h * d, (h + 1) * d)
        scores = q[..., one] @ k[..., one].mT / d**0.5
        parts.append(scores.softmax(-1) @ v[..., one])
    return torch.cat(parts, dim=-1) @ out


def layer_norm_by_the_framework(x, scale, bias):
    return F.layer_norm(x, x.shape[-1:], scale, bias, eps=1e-5)


def layer_norm_by_a_module(x, scale, bias):
    weights = {"weight": scale, "bias": bias}
    return torch.func.functional_call(nn.LayerNorm(x.shape[-1]), weights, x)


def layer_norm_by_var(x, scale, bias):
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * scale + bias


def sinusoidal_by_slices(length, m):
    out, place = torch.zeros(length, m), torch.arange(length)[:, None]
    angle = place * torch.exp(torch.arange(0, m, 2) * -math.log(10000) / m)
    out[:, 0::2], out[:, 1::2] = angle.sin(), angle.cos()
    return out


def sinusoidal_by_loops(length, m):
    def entry(s, i):
        angle = s / 10000 ** (i // 2 * 2 / m)
        return math.cos(angle) if i % 2 else math.sin(angle)

    return torch.tensor([[entry(s, i) for i in range(m)] for s in range(length)])


def rotary_by_complex_numbers(x, offset):
    s, d = x.shape[-2:]
    speed = 10000 ** (-torch.arange(0, d, 2) / d)
    angle = torch.outer(torch.arange(offset, offset + s), speed)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], d // 2, 2))
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def rotary_by_a_turned_copy(x, offset):
    s, d = x.shape[-2:]
    speed = 10000 ** (-torch.arange(0, d, 2) / d)
    angle = (torch.arange(s)[:, None] + offset) * speed
    angle = angle.repeat_interleave(2, dim=-1)
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * angle.cos() + turned * angle.sin()


def cross_entropy_by_the_framework(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def cross_entropy_by_gather(logits, labels):
    log_p = logits.log_softmax(-1)
    return -log_p.gather(-1, labels[..., None]).mean()


def training_step_by_autograd(w, x, y, learning_rate, max_norm):
    w = w.clone().requires_grad_()
    F.mse_loss(x @ w, y).backward()
    nn.utils.clip_grad_norm_([w], max_norm)
    return (w - learning_rate * w.grad).detach()


def training_step_by_an_optimizer(w, x, y, learning_rate, max_norm):
    w = nn.Parameter(w.clone())
    optimizer = torch.optim.SGD([w], lr=learning_rate)
    ((x @ w - y) ** 2).mean().backward()
    nn.utils.clip_grad_norm_([w], max_norm)
    optimizer.step()
    return w


def adam_by_the_framework(gradient, mean, square, t, learning_rate):
    w = nn.Parameter(torch.zeros_like(gradient))
    optimizer = torch.optim.Adam([w], lr=learning_rate)
    w.grad = gradient
    step = torch.tensor(t - 1.0)
    optimizer.state[w] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
    optimizer.state[w] = {k: x.clone() for k, x in optimizer.state[w].items()}
    optimizer.step()
    return w, optimizer.state[w]["exp_avg"], optimizer.state[w]["exp_avg_sq"]


def adam_by_lerp(gradient, mean, square, t, learning_rate):
    mean, square = mean.lerp(gradient, 0.1), square.lerp(gradient**2, 0.001)
    root = (square / (1 - 0.999**t)).sqrt() + 1e-8
    return -learning_rate / (1 - 0.9**t) * mean / root, mean, square


def loss_by_the_framework(logits):
    return F.cross_entropy(logits, torch.full((len(logits),), logits.shape[1] - 1))


def loss_by_logsumexp(logits):
    return (logits.logsumexp(-1) - logits[:, -1]).mean()


def from_the_others_by_loops(x):
    rows = []
    for one in x:
        others = [torch.cat([one[:i], one[i + 1 :]]) for i in range(len(one))]
        rows.append([(one[i] - o.mean(0)).norm() for i, o in enumerate(others)])
    return torch.stack([torch.stack(row) for row in rows])


def from_the_others_by_the_mean(x):
    s = x.shape[1]
    return torch.linalg.vector_norm(x - x.mean(1, keepdim=True), dim=-1) * s / (s - 1)


def patches_by_unfold(images, patch):
    cut = F.unfold(images.permute(0, 3, 1, 2), patch, stride=patch)
    b, _, n = cut.shape
    cut = cut.reshape(b, images.shape[-1], patch * patch, n)
    return cut.permute(0, 3, 2, 1).flatten(2)


def patches_by_loops(images, patch):
    _, height, width, _ = images.shape
    return torch.stack(
        [
            images[:, y : y + patch, x : x + patch].flatten(1)
            for y in range(0, height, patch)
            for x in range(0, width, patch)
        ],
        dim=1,
    )


def tokens_by_pad(patches, w, class_token, table):
    x = F.pad(F.linear(patches, w.T), (0, 0, 1, 0))
    first = torch.zeros_like(table)
    first[0] = class_token
    return x + first + table


def tokens_by_expand(patches, w, class_token, table):
    first = class_token.expand(len(patches), 1, -1)
    return torch.cat([first, torch.einsum("bni,im->bnm", patches, w)], 1) + table


def top_p_by_scatter(p, top_p):
    ranked, order = torch.sort(p, descending=True)
    gone = ranked.cumsum(-1) - ranked >= top_p
    gone = torch.zeros_like(gone).scatter(-1, order, gone)
    return torch.softmax(p.log().masked_fill(gone, -math.inf), -1)


def top_p_by_loops(p, top_p):
    out = torch.zeros_like(p)
    for row, kept in zip(p, out, strict=True):
        total = 0.0
        for c in row.argsort(descending=True):
            kept[c], total = row[c], total + row[c].item()
            if total >= top_p:
                break
    return out / out.sum(-1, keepdim=True)


def cached_step_by_the_framework(q, k, v, keys, values):
    keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
    return F.scaled_dot_product_attention(q, keys, values), keys, values


def cached_step_by_slots(q, k, v, keys, values):
    b, h, n, d = keys.shape
    keys, values = (
        torch.cat([x, x.new_zeros(b, h, 1, d)], 2).index_copy(2, torch.tensor([n]), new)
        for x, new in ((keys, k), (values, v))
    )
    scores = torch.einsum("bhqd,bhkd->bhqk", q, keys) * d**-0.5
    return [torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), values), keys, values]


def masks_by_tril(source, target, pad):
    s = target.shape[1]
    causal = torch.ones(s, s, dtype=torch.bool).tril()
    return causal & (target != pad)[:, None, None], (source != pad)[:, None, None]


def masks_by_loops(source, target, pad):
    b, s = target.shape
    own = torch.zeros(b, 1, s, s, dtype=torch.bool)
    for q in range(s):
        own[:, 0, q, : q + 1] = target[:, : q + 1] != pad
    return own, source.ne(pad).unsqueeze(1).unsqueeze(2)


def beam_step_by_topk(scores, log_p, width):
    total, best = (scores[..., None] + log_p).flatten(1).topk(width)
    c = log_p.shape[-1]
    return total, torch.div(best, c, rounding_mode="floor"), best.remainder(c)


def beam_step_by_loops(scores, log_p, width):
    rows = []
    for score, row in zip(scores, log_p, strict=True):
        places = torch.cartesian_prod(*map(torch.arange, row.shape))
        found = [(score[w] + row[w, c], w, c) for w, c in places]
        rows.append(sorted(found, key=lambda one: -one[0])[:width])
    columns = [[[one[i] for one in row] for row in rows] for i in range(3)]
    return [torch.tensor(column) for column in columns]


def masked_mean_by_loops(x, real):
    return torch.stack([one[kept].mean(0) for one, kept in zip(x, real, strict=True)])


def masked_mean_by_nan(x, real):
    return x.masked_fill(~real[..., None], math.nan).nanmean(1)


def accumulate_by_chunks(gradient, x, y, n):
    parts = zip(x.chunk(n), y.chunk(n), strict=True)
    return sum(gradient(*part) * len(part[0]) for part in parts) / len(x)


def accumulate_by_strides(gradient, x, y, n):
    total = torch.zeros(x.shape[1])
    for i in range(n):
        total += gradient(x[i::n], y[i::n]) * len(x[i::n]) / len(x)
    return total


def rotary_offset_by_complex_numbers(x, positions, base):
    half = x.shape[-1] // 2
    angle = positions[..., None] * base ** (-torch.arange(half) / half)
    turned = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angle)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


def rotary_offset_by_a_turned_copy(x, positions, base):
    half = x.shape[-1] // 2
    speeds = torch.exp(-math.log(base) / half * torch.arange(half)).repeat(2)
    angle = torch.einsum("bs,d->bsd", positions.float(), speeds).unsqueeze(1)
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * angle.cos() + turned * angle.sin()


def grouped_by_the_framework(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def grouped_by_repeating(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def grouped_by_loops(q, k, v):
    n, heads = q.shape[1] // k.shape[1], []
    for h in range(q.shape[1]):
        scores = torch.einsum("bqd,bkd->bqk", q[:, h], k[:, h // n])
        heads.append((scores / math.sqrt(q.shape[-1])).softmax(-1) @ v[:, h // n])
    return torch.stack(heads, dim=1)
