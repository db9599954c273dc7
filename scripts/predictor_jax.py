"""A Transformer that predicts something about sequences of your own, in one file.

    python predictor_jax.py my.txt --target labels     one for each symbol
    python predictor_jax.py my.txt --target number     for each sequence; or: label
    python predictor_jax.py new.txt --predict          after any of these

A line of the file is a sequence: targets, a tab, symbols, with spaces between them; in
``new.txt``, symbols only. A tenth of the lines chooses the best epoch.
Needs cloudpickle, flax, jax, numpy, optax, tqdm. From a book that builds it:
https://github.com/example/transformers-side-by-side

Shapes: b batch, s position, q and k position of a query and of a key, h head, d size
of one head, m size of the model, f hidden size of the feed-forward net, c tokens.
In a mask, True means "may look".

Copyright (c) 2026 The authors of "Transformers, side by side"
SPDX-License-Identifier: MIT
"""

import argparse
import math
import time
from dataclasses import dataclass
from functools import cache, partial
from math import cos, pi
from pathlib import Path

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

# ---- the shared part ----


def checked(model, data):
    """The arrays of NumPy in ``data``, in the form that both frameworks take.

    Whole numbers in the last one are labels or tokens: the model knows how many.
    """
    arrays = [np.asarray(x) for x in data]
    sizes, kinds = {x.shape[:1] for x in arrays}, {x.dtype.kind for x in arrays}
    masked = any(map(np.ma.isMaskedArray, data))
    if masked or len(sizes) > 1 or sizes & {(), (0,)} or kinds - {*"biuf"}:
        pairs = zip(data, arrays, strict=True)
        got = ", ".join(f"{type(x).__name__} {y.dtype} {y.shape}" for x, y in pairs)
        raise ValueError(f"expected arrays of numbers with as many rows, got {got}")
    model, y = getattr(model, "target", getattr(model, "trunk", model)), arrays[-1]
    layer = getattr(model, "output", None) or getattr(model, "embed", None)
    n = getattr(layer, "out_features", getattr(layer, "num_embeddings", 1))
    if y.dtype.kind in "iu" and n > 1 and not -1 <= y.min() <= y.max() < n:
        at = tuple(np.argwhere((y < -1) | (y >= n))[0])
        raise ValueError(f"expected labels below {n}, got {y[at]} in row {at[0]}")
    whole = [*arrays[:-1], y.astype(np.int32) if y.dtype.kind in "iu" else y]
    return [np.ascontiguousarray(x, x.dtype.newbyteorder("=")) for x in whole]


def suspect(arrays):
    """What in these arrays may have made a loss that is not finite, in words."""
    for n, x in enumerate(arrays):
        values = x.reshape(len(x), -1)
        finite = np.isfinite(values).all(axis=1)
        empty = ~values.any(axis=1) & (x.dtype == bool) & (x.ndim > 1)
        if not finite.all():
            return f"row {finite.argmin()} of array {n} is not finite"
        if empty.any():
            return f"row {empty.argmax()} of array {n} has nothing that is real"
    return "do labels count from 0? A lower rate, a longer warm-up or clipping help"


def check_finite(numbers, first, arrays, place="update"):
    """Stop at the first update, or batch, that has a number which is not finite."""
    for at, row in enumerate(zip(*numbers.values(), strict=True)):
        for name, x in zip(numbers, row, strict=True):
            if not np.isfinite(x):
                where = f"at {place} {first + at} the {name} is {x:.4g}"
                raise FloatingPointError(f"{where}: {suspect(arrays)}")


def as_columns(rows):
    """A float64 array for each name, the loss first; a row has numbers by name."""
    names = sorted(rows[0], key=lambda name: "loss" not in name)
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


def shuffled(settings):
    """Batches of an epoch: a function from the epoch to an int32 array ``n b``.

    The order depends only on the settings' seed and the epoch.
    """

    def batches(epoch):
        rng = np.random.default_rng([settings.seed, epoch])
        order = rng.permutation(settings.n_train).astype(np.int32)
        n = settings.updates_per_epoch
        return order[: n * settings.batch_size].reshape(n, settings.batch_size)

    return batches


def draw_uniforms(settings, epoch, batches):
    """Eight numbers in [0, 1) an example, by seed and epoch: float32 ``n b 8``."""
    rng = np.random.default_rng([settings.seed, epoch, 8])
    return rng.random((*np.shape(batches)[:2], 8), dtype=np.float32)


def batches_of(epoch, arrays, settings, tensor, batches=None, augment=None):
    """The batches of an epoch, one after the other, as a framework's arrays.

    ``batches(epoch)`` gives the rows of every update, ``n b``: without it, all in a new
    order. ``augment(uniforms, *batch)`` changes a batch by chance: ``uniforms`` are
    eight random numbers from 0 to 1 for each example, ``b 8``.
    """
    index = (batches or shuffled(settings))(epoch)  # n b
    uniforms = draw_uniforms(settings, epoch, index)  # n b 8
    for rows, numbers in zip(index, uniforms, strict=True):
        batch = [tensor(x[rows]) for x in arrays]
        yield augment(tensor(numbers), *batch) if augment else batch


class ByCode:
    """A function that equals another if their code does: a static argument of ``jit``.

    ``jit`` compiles once for equal static arguments, and does not look at what a
    function calls. Here the code of the function and of ``parts`` counts, with all that
    they use of the notebook.
    """

    def __init__(self, function, *parts):
        self.function, self.code = function, cloudpickle.dumps((function, parts))

    def __call__(self, *args):
        return self.function(*args)

    def __eq__(self, other):
        return isinstance(other, ByCode) and self.code == other.code

    def __hash__(self):
        return hash(self.code)


def warmup_cosine(step, warmup, total):
    """Linear rise to 1 at ``step = warmup - 1``, then half a cosine down to 0.

    Source: rise from Vaswani et al. 2017, sec. 5.3; fall from Loshchilov & Hutter 2017,
    eq. 5, which ``optax.warmup_cosine_decay_schedule`` joins in the same way.
    """
    top = warmup - 1
    fall = max(0, step - top) / (total - top)
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + cos(pi * fall))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of ``fit``; ``dataclasses.replace`` makes variants."""

    n_train: int  # examples in an epoch; an incomplete last batch is left out
    batch_size: int
    epochs: int
    learning_rate: float  # the peak
    warmup: int = 1  # updates over which the rate rises
    schedule: object = warmup_cosine  # (step, warmup, total) -> part of the peak
    weight_decay: float = 0.0  # of matrices
    max_grad_norm: float = 1.0  # longer gradients are shortened to it
    seed: int = 42  # of the order of the batches, and of dropout

    def __post_init__(self):
        if self.batch_size > self.n_train:
            most = f"at most n_train = {self.n_train}"
            raise ValueError(f"expected a batch_size of {most}, got {self.batch_size}")
        if not 1 <= self.warmup < max(2, self.updates):
            most = f"{self.updates - 1} updates"
            raise ValueError(f"expected a warmup of 1 to {most}, got {self.warmup}")

    @property
    def updates_per_epoch(self):
        """Whole batches in an epoch."""
        return self.n_train // self.batch_size

    @property
    def updates(self):
        """Updates of the whole training."""
        return self.epochs * self.updates_per_epoch

    @property
    def learning_rates(self):
        """Learning rate of every update: float32 array ``updates``."""
        steps, given = range(self.updates), (self.warmup, self.updates)
        parts = np.array([self.schedule(step, *given) for step in steps])
        return (self.learning_rate * parts).astype(np.float32)

    def seed_of(self, epoch):
        """A seed for what an epoch draws by chance, whatever came before it."""
        return int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])


# ---- notebooks/frameworks_jax.ipynb ----


def tensor(x):
    """An array of NumPy on the device: float32, int32, uint8 or bool."""
    return jnp.asarray(x)


# ---- notebooks/attention_jax.ipynb ----


def masked_softmax(scores, mask=None):
    """Softmax over the visible keys, or zeros without any: ``... q k -> ... q k``."""
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)


UNIFORM = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def dense(n_in, n_out, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: entries within ±1/√n_in, zero biases."""
    return nnx.Linear(n_in, n_out, kernel_init=UNIFORM, rngs=rngs)


def merge_heads(values):
    """The outputs of all heads side by side: ``b h q d -> b q m``."""
    b, h, q, d = values.shape
    return values.swapaxes(1, 2).reshape(b, q, h * d)


def split_heads(x, d):
    """Heads of ``d`` features each: ``b s hd -> b h s d``."""
    return x.reshape(*x.shape[:2], -1, d).swapaxes(1, 2)


def check_causal(q, k):
    """The number of queries, which is that of the keys: else, who would see whom?"""
    n, n_keys = q.shape[-2], k.shape[-2]
    if n != n_keys:
        what = "as many queries as keys under a causal mask"
        raise ValueError(f"expected {what}, got {n} and {n_keys}; give a mask instead")
    return n


def full_mask(mask, q, k, is_causal):
    """The mask to use, or None: the given one and, if asked for, the causal one."""
    if mask is not None and (mask.dtype != bool or mask.ndim not in (2, q.ndim)):
        what = f"2 or {q.ndim} axes, got {tuple(mask.shape)}"
        raise ValueError(f"expected a boolean mask of {what}")
    if not is_causal:
        return mask
    n = check_causal(q, k)  # as many keys as queries
    past = jnp.tri(n, dtype=bool)  # q k: the lower triangle
    return past if mask is None else past & mask


def attention(q, k, v, mask=None, *, is_causal=False):  # new
    """Weighted mean of values: ``... q d, ... k d, ... k e -> ... q e, ... q k``.

    A boolean mask, ``q k`` or with all axes of the weights, is True where a query may
    look. Hidden keys and values must be finite: 0 · NaN is NaN.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2)  # ... q k
    weights = masked_softmax(scores, full_mask(mask, q, k, is_causal))  # new
    return weights @ v, weights


def fused_attention(q, k, v, mask=None, *, is_causal=False):
    """The outputs of ``attention``, from arrays with four axes, here ``b h s d``."""
    if q.dtype not in (jnp.float32, jnp.bfloat16):  # JAX's function is made for these
        return attention(q, k, v, mask, is_causal=is_causal)[0]
    arrays = [x.swapaxes(1, 2) for x in (q, k, v)]  # b s h d
    function = jax.nn.dot_product_attention
    if mask is None and (not is_causal or q.shape[2] == k.shape[2]):
        return function(*arrays, is_causal=is_causal).swapaxes(1, 2)
    mask = full_mask(mask, q, k, is_causal)
    seen = mask.any(axis=-1, keepdims=True)
    out = function(*arrays, mask=mask | ~seen)  # a row that hides all would be wrong
    return jnp.where(seen, out.swapaxes(1, 2), 0)


def attend(layer, q, k, v, mask=None, *, is_causal=False, return_weights=False):
    """Output of a layer, and its weights if they are asked for, else None."""
    if not return_weights:
        values = fused_attention(q, k, v, mask, is_causal=is_causal)
        return layer.out(merge_heads(values)), None
    values, weights = attention(q, k, v, mask, is_causal=is_causal)
    return layer.out(merge_heads(values)), weights


class MultiHeadAttention(nnx.Module):
    """Attention in several heads: ``b s m -> b s m, b h s s``."""

    def __init__(self, m, n_heads, *, rngs):
        if m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def project(self, x):
        """Queries, keys and values of every head: each ``b h s d``."""
        d = x.shape[-1] // self.n_heads
        return [split_heads(part, d) for part in jnp.split(self.qkv(x), 3, axis=-1)]

    def __call__(self, x, mask=None, **options):  # new: those of `attend`
        return attend(self, *self.project(x), mask, **options)  # new


# ---- notebooks/encoder_jax.ipynb ----


ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}


layer_norm = partial(nnx.LayerNorm, epsilon=1e-5, use_fast_variance=False)


class FeedForward(nnx.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``."""

    def __init__(self, m, f, *, dropout=0.0, activation="relu", rngs):
        self.activation = ACTIVATIONS[activation]
        self.linear1 = dense(m, f, rngs=rngs)
        self.linear2 = dense(f, m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class EncoderBlock(nnx.Module):
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
        rngs,
    ):
        self.norm_first = norm_first  # new
        self.attention = attention(m, n_heads, rngs=rngs)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation, rngs=rngs)
        self.norm1 = layer_norm(m, rngs=rngs)
        self.norm2 = layer_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)  # new

    def __call__(self, x, mask=None, **options):
        if self.norm_first:  # new
            values, weights = self.attention(self.norm1(x), mask, **options)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask, **options)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


class Encoder(nnx.Module):
    """A stack of blocks: ``b s m -> b s m``, on demand with maps ``l b h s s``."""

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, rngs, **options):
        options = {"norm_first": norm_first, "rngs": rngs, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        self.norm = layer_norm(m, rngs=rngs) if norm_first else None

    def __call__(self, x, mask=None, *, return_maps=False, **options):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask, return_weights=return_maps, **options)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, jnp.stack(maps)) if return_maps else x


def without_dropout(model):
    """A copy of the model with dropout off."""
    quiet = nnx.clone(model)
    quiet.eval()
    return quiet


# ---- notebooks/positions_jax.ipynb ----


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    omega = 10000 ** (-np.arange(0, m, 2) / m)  # m/2
    angle = np.arange(length)[:, None] * omega  # s m/2
    pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)  # s m/2 2
    return pairs.reshape(length, -1)[:, :m]  # s m; an odd m ends on a sine


def check_length(x, table):
    """Raise an error if a sequence ``b s m`` is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


class SinusoidalPositions(nnx.Module):
    """Adds a sine and cosine code to ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs=None):
        table = sinusoidal_positions(max_length, m)  # s m
        self.table = nnx.Variable(jnp.asarray(table, dtype=jnp.float32))

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


class LearnedPositions(nnx.Module):
    """Adds a learned vector to each of ``max_length`` positions: ``b s m -> b s m``."""

    def __init__(self, m, max_length, *, rngs):
        table = jax.random.normal(rngs.params(), (max_length, m))  # s m
        self.table = nnx.Param(0.02 * table)  # small, as in BERT

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


def rotary(x, offset=0):
    """Rotate pairs of features; row 0 has position ``offset``: ``... s d``.

    Source: Su et al. 2021, sec. 3.4.2.
    """
    s, d = x.shape[-2:]
    if d % 2:
        raise ValueError(f"expected pairs of features, got d = {d}")
    positions = offset + jnp.arange(s)
    angle = positions[:, None] * 10000.0 ** (-jnp.arange(0, d, 2) / d)  # s d/2
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    even, odd = x[..., 0::2], x[..., 1::2]  # ... s d/2
    pairs = [even * cos - odd * sin, even * sin + odd * cos]
    return jnp.stack(pairs, axis=-1).reshape(x.shape).astype(x.dtype)  # ... s d


class RotaryAttention(MultiHeadAttention):
    """Attention whose queries and keys are rotated: ``b s m -> b s m, b h s s``."""

    def project(self, x, offset=0):
        q, k, v = super().project(x)  # each b h s d
        return rotary(q, offset), rotary(k, offset), v


def visible(mask, real):
    """A mask that also hides the padding, where ``real`` ``b s`` is False."""
    if real is None:
        return mask
    padding = real[:, None, None]  # b 1 1 k
    return padding if mask is None else mask & padding


def pooled(x, real, pool):
    """Every vector, the mean of the real ones, or the first: ``b s m -> b m``."""
    if pool not in (None, "mean", "first"):
        raise ValueError(f"expected pool None, 'mean' or 'first', got {pool!r}")
    if pool == "mean":
        real = jnp.ones_like(x[..., 0]) if real is None else real
        return (x * real[..., None]).sum(1) / real.sum(1, keepdims=True)
    return x[:, 0] if pool == "first" else x


Embedding = partial(nnx.Embed, embedding_init=nnx.initializers.normal(1.0))


POSITIONS = {  # the codes that are added, and the attention of every block
    "sinusoidal": (SinusoidalPositions, MultiHeadAttention),
    "learned": (LearnedPositions, MultiHeadAttention),
    "rotary": (None, RotaryAttention),
    "none": (None, MultiHeadAttention),
}


class Predictor(nnx.Module):
    """From ids ``b s`` or features ``b s i`` to ``b s c``, or pooled to ``b c``."""

    def __init__(
        self,
        n_inputs,
        m,
        n_outputs,
        ids=False,
        pool=None,  # or "mean", "first"
        positions="sinusoidal",
        max_length=512,
        *,
        rngs,
        **options,  # of the encoder: n_blocks, n_heads, f
    ):
        added, attention = POSITIONS[positions]
        self.pool = pool
        self.embed = (Embedding if ids else dense)(n_inputs, m, rngs=rngs)
        self.positions = added(m, max_length, rngs=rngs) if added else None
        self.encoder = Encoder(m=m, attention=attention, rngs=rngs, **options)
        self.hidden, self.hidden_norm = dense(m, m, rngs=rngs), layer_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(options.get("dropout", 0.0), rngs=rngs)
        self.output = dense(m, n_outputs, rngs=rngs)

    def __call__(self, x, mask=None, *, real=None, return_maps=False):
        x = self.positions(self.embed(x)) if self.positions else self.embed(x)  # 1, 2
        out = self.encoder(x, visible(mask, real), return_maps=return_maps)  # 3
        x, maps = out if return_maps else (out, None)
        x = self.hidden(pooled(x, real, self.pool))  # 4: b s m, or b m
        x = self.output(self.dropout(jax.nn.relu(self.hidden_norm(x))))  # 5
        return (x, maps) if return_maps else x


# ---- notebooks/reverse_jax.ipynb ----


@cache
def make_optimizer(max_grad_norm, weight_decay):
    """Clipping, then AdamW that decays matrices only; updates bring their ``rate``."""

    def is_matrix(params):
        return jax.tree.map(lambda param: param.ndim > 1, params)

    def times_rate(steps, state, params=None, *, rate):
        return jax.tree.map(lambda step: rate * step, steps), state

    return optax.chain(  # first to last
        optax.clip_by_global_norm(max_grad_norm),
        optax.adamw(1.0, weight_decay=weight_decay, mask=is_matrix),
        optax.GradientTransformationExtraArgs(optax.init_empty_state, times_rate),
    )


@partial(nnx.jit, static_argnums=2)
def update(model, optimizer, loss_fn, batch, rate):
    """One update, in place: the loss, its metrics and the norm of the gradient."""
    trained = nnx.DiffState(0, optimizer.wrt)
    gradient = nnx.value_and_grad(loss_fn, argnums=trained, has_aux=True)
    (loss, metrics), grads = gradient(model, *batch)
    optimizer.update(model, grads, rate=rate)
    return {"loss": loss, **metrics, "grad_norm": optax.tree.norm(grads)}


@partial(nnx.jit, static_argnums=1)
def score(model, loss_fn, batch):
    """Loss and metrics of a batch; ``"count"``: over how many terms they are means."""
    loss, metrics = loss_fn(model, *batch)
    return {"loss": loss, "count": len(batch[0]), **metrics}


def evaluate(model, loss_fn, data, batch_size=1000):
    """Mean loss and metrics on arrays of NumPy, with dropout off: by name, a number.

    A batch counts by its examples, or by a ``"count"`` among the metrics of the loss.
    """
    arrays, rows = checked(model, data), []
    model, loss_fn = without_dropout(model), ByCode(loss_fn, nnx.graphdef(model))
    n_batches = math.ceil(len(arrays[0]) / batch_size)
    for part in np.array_split(np.arange(len(arrays[0])), n_batches):
        batch = [tensor(x[part]) for x in arrays]
        rows.append(score(model, loss_fn, batch))
    means = as_columns(rows)
    count = means.pop("count")
    check_finite(means, 0, arrays, "batch")
    return {name: np.average(x, weights=count).item() for name, x in means.items()}


def fit(
    model,
    loss_fn,
    data,
    settings,
    *,
    validation=None,
    best="loss",
    batches=None,
    augment=None,
    wrt=nnx.Param,
):
    """Train a model in place, and keep its best weights; return what was measured.

    ``data`` and ``validation`` are tuples of NumPy arrays. The best epoch is that with
    the lowest validation loss, or the highest metric ``best``. For later chapters:
    ``batches`` and ``augment``, see ``batches_of``, and what is trained, ``wrt``.
    Returned are arrays by name: of updates ``loss``, metrics, ``grad_norm`` (before
    clipping) and ``learning_rate``; of epochs ``validation_loss`` …, and ``seconds``.
    """
    arrays = checked(model, data)
    checked(model, validation or data)
    source = arrays, settings, tensor, batches, augment
    rates = settings.learning_rates.reshape(settings.epochs, -1)
    adamw = make_optimizer(settings.max_grad_norm, settings.weight_decay)
    optimizer = nnx.Optimizer(model, adamw, wrt=wrt)
    step = nnx.cached_partial(update, model, optimizer)
    this_loss = ByCode(loss_fn, nnx.graphdef(model))
    model.train()  # dropout on
    updates, epochs, top, kept = [], [], (), None
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, found = time.perf_counter(), []
        for batch, rate in zip(batches_of(epoch, *source), rates[epoch], strict=True):
            found.append(step(this_loss, batch, rate) | {"learning_rate": rate})
        check_finite(as_columns(found), len(updates), arrays)
        updates += found
        scores = {}
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            higher = scores | {"loss": -scores["loss"]}  # the higher, the better
            rank = (higher[best], higher["loss"])  # of equal metrics, the lower loss
            if rank > top:
                top, kept = rank, nnx.clone(model)
        scores = {f"validation_{name}": x for name, x in scores.items()}
        epochs.append(scores | {"seconds": time.perf_counter() - start})
    if kept:
        nnx.update(model, nnx.state(kept))
    model.eval()
    return as_columns(updates) | as_columns(epochs)


# ---- notebooks/data_jax.ipynb ----


def number_loss(model, x, real, y):
    """Mean squared error of one number for each sequence, ``b``."""
    return ((model(x, real=real)[:, 0] - y.reshape(-1)) ** 2).mean(), {}


def read_rows(path, kind):
    """Targets and symbols of each line, ``targets TAB symbols``: lists of lists."""
    targets, rows = [], []
    for line in Path(path).read_text("utf-8-sig").splitlines():
        parts = [part.split() for part in line.split("\t")]
        n = len(parts[-1]) if kind == "labels" else 1
        if len(parts) != 2 or not len(parts[0]) == n >= 1 or not parts[1]:
            what = "a label for each symbol" if kind == "labels" else f"a {kind}"
            got = f"symbols, got {line[:60]!r}"
            raise ValueError(f"{path}: expected lines of {what}, a tab, and {got}")
        targets.append(parts[0])
        rows.append(parts[1])
    return targets, rows


def numbered(rows, numbers, other=0):
    """The number of each entry ``b s``, ``other`` at the padding; what is real."""
    real = np.arange(max(map(len, rows))) < np.array([[len(row)] for row in rows])
    ids = np.full(real.shape, other, np.int32)
    ids[real] = [numbers.get(x, other) for row in rows for x in row]
    return ids, real


def to_keep(targets, rows, kind, n_train):
    """What a model needs beside its weights: its kind, symbols, labels and scale."""
    known = rows[:n_train], targets  # which labels there are is part of the question
    symbols, labels = [sorted({x for row in y for x in row}) for y in known]
    kept = {"kind": kind, "symbols": {x: n for n, x in enumerate(symbols, 1)}}
    if kind == "number":
        y = np.array(targets[:n_train], float)
        return kept | {"mean": y.mean().item(), "deviation": y.std().item()}
    return kept | {"labels": {x: n for n, x in enumerate(labels)}}


def as_batch(targets, rows, kept):
    """Arrays for the loss: ids and what is real ``b s``, targets ``b`` or ``b s``."""
    batch = numbered(rows, kept["symbols"])
    if kept["kind"] == "number":
        y = (np.array(targets, float)[:, 0] - kept["mean"]) / kept["deviation"]
        return *batch, y.astype(np.float32)
    y, _ = numbered(targets, kept["labels"], other=-1)
    return *batch, y if kept["kind"] == "labels" else y[:, 0]


def label_loss(model, ids, real, labels):
    """Cross-entropy and accuracy of labels ``b``, or ``b s`` with -1 at the padding."""
    logits, known = model(ids, real=real), labels >= 0
    hits = (logits.argmax(-1) == labels) & known
    log_p = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(log_p, jnp.maximum(labels, 0)[..., None], axis=-1)
    n = known.sum()
    metrics = {"accuracy": hits.sum() / n, "count": n}
    return jnp.where(known, losses[..., 0], 0).sum() / n, metrics


def new_predictor(kept):
    """An untrained model for a kind of target; choose your own sizes here."""
    options = {"n_blocks": 2, "n_heads": 4, "f": 256, "dropout": 0.1, "ids": True}
    options |= {"positions": "rotary", "norm_first": True, "activation": "gelu"}
    options |= {"pool": None if kept["kind"] == "labels" else "mean"}
    n_symbols, n_outputs = 1 + len(kept["symbols"]), len(kept.get("labels", [0]))
    return Predictor(n_symbols, 64, n_outputs, **options, rngs=nnx.Rngs(0))


def save(path, model, kept):
    """Write a model, whole or not at all: the old file stays until then."""
    import json

    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    arrays = {".".join(map(str, name)): np.asarray(x[...]) for name, x in state}
    draft = Path(f"{path}.draft")
    with draft.open("wb") as file:
        np.savez(file, kept=json.dumps(kept), **arrays)
    draft.replace(path)


def load(path):
    """The model of a file, and what was kept with it."""
    import json

    found = np.load(path)
    kept = json.loads(str(found["kept"]))
    model = new_predictor(kept)
    for name, x in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        x[...] = jnp.asarray(found[".".join(map(str, name))])
    model.eval()
    return model, kept


def predict(model, kept, rows):
    """For each row of symbols a number, a label, or its labels."""
    ids, real = numbered(rows, kept["symbols"])
    outputs = np.asarray(model(tensor(ids), real=tensor(real)))
    if kept["kind"] == "number":
        return (kept["mean"] + kept["deviation"] * outputs[:, 0]).tolist()
    labels = np.array([*kept["labels"]])[outputs.argmax(-1)]
    if kept["kind"] == "label":
        return labels.tolist()
    return [" ".join(row[there]) for row, there in zip(labels, real, strict=True)]


def learn(path, kind, *, batch_size, epochs, learning_rate):
    """Train on a file: the model, what to keep with it, its scores in validation."""
    lines = [*zip(*read_rows(path, kind), strict=True)]
    n_train = len(lines) - max(1, len(lines) // 10)
    order = np.random.default_rng(0).permutation(len(lines))
    targets, rows = zip(*(lines[i] for i in order), strict=True)
    kept = to_keep(targets, rows, kind, n_train)
    parts = slice(n_train), slice(n_train, None)
    batch = as_batch(targets, rows, kept)
    train, validation = [[x[part] for x in batch] for part in parts]
    sizes = {"n_train": n_train, "batch_size": batch_size, "epochs": epochs}
    warmup = max(1, epochs * (n_train // batch_size) // 20)
    options = {"learning_rate": learning_rate, "warmup": warmup, "weight_decay": 0.1}
    model = new_predictor(kept)
    loss_fn, best = label_loss, "accuracy"
    if kind == "number":
        loss_fn, best = number_loss, "loss"
    settings = Settings(**sizes, **options)
    fit(model, loss_fn, train, settings, validation=validation, best=best)
    return model, kept, evaluate(model, loss_fn, validation)


# ---- training ----


def main():
    """Train on the file, or predict what its lines have."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", help="in UTF-8; a line: targets, a tab, symbols")
    parser.add_argument("--target", choices=["labels", "label", "number"])
    parser.add_argument("--predict", action="store_true", help="lines have symbols")
    parser.add_argument("--folder", type=Path, default="run", help="of the model")
    for name, usual in {"epochs": 20, "batch-size": 32, "learning-rate": 1e-3}.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    given = vars(parser.parse_args())
    file, kind, predicts, folder = (given.pop(name) for name in [*given][:4])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if kind:
            model, kept, scores = learn(file, kind, **given)
            save(folder / "model", model, kept)
            print("validation:", *(f"{name} {x:.3f}" for name, x in scores.items()))
        if predicts:
            lines = map(str.split, Path(file).read_text("utf-8-sig").splitlines())
            print(*predict(*load(folder / "model"), [*lines]), sep="\n")
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
