"""The classes as they were built on the JAX pages, for later pages."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def check_shapes(q, k, v):
    """Raise an error unless the inputs are ``... q d, ... k d, ... k e``.

    Raises
    ------
    ValueError
        If the shapes contradict each other, or if there are no features.
    """
    d = q.shape[-1]
    if d == 0 or d != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"expected ... q d, ... k d, ... k e, got {shapes}")


def check_mask(mask, shape):
    """Raise an error unless a mask is boolean and fits the attention weights.

    Parameters
    ----------
    mask : boolean array ``q k``, or with as many axes as the weights
        True means "may look". An axis of size 1 broadcasts. Three axes for weights
        ``b h q k`` would be ambiguous: one mask per sequence, or one per head?
    shape : tuple of int
        Shape of the weights, ``... q k``.

    Raises
    ------
    TypeError
        If the mask is no boolean array of this framework.
    ValueError
        If it has another number of axes, or does not broadcast to the weights.
    """
    dtype = getattr(mask, "dtype", type(mask).__name__)
    if dtype != jnp.bool_:
        raise TypeError(f"expected a mask of dtype bool, got {dtype}")
    sizes = zip(mask.shape[::-1], shape[::-1], strict=False)  # from the last axis on
    fits = all(size in (1, full) for size, full in sizes)
    if mask.ndim not in (2, len(shape)) or not fits:
        raise ValueError(
            f"expected a mask of 2 or {len(shape)} axes that broadcasts to the weights "
            f"{tuple(shape)}, got {tuple(mask.shape)}"
        )


def masked_softmax(scores, mask=None):
    """Softmax over the keys that a mask leaves visible.

    Parameters
    ----------
    scores : array ``... q k``
    mask : boolean array ``q k``, or with as many axes as the scores, optional
        True means "may look".

    Returns
    -------
    array ``... q k``
        Rows that sum to 1, or to 0 where a query may look nowhere.

    Raises
    ------
    TypeError, ValueError
        As ``check_mask``.
    """
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    check_mask(mask, scores.shape)
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)


def attention(q, k, v, mask=None):
    """Weighted mean of the values, with weights from the scaled dot products.

    Parameters
    ----------
    q, k, v : arrays ``... q d``, ``... k d``, ``... k e``
        The leading axes are the same for all three.
    mask : boolean array ``q k``, or with as many axes as the weights, optional
        True means "may look". Hidden keys and values must be finite: 0 · NaN is NaN.

    Returns
    -------
    tuple of arrays ``... q e``, ``... q k``
        Outputs and weights, both zero for a query that may look nowhere.

    Raises
    ------
    TypeError, ValueError
        As ``check_shapes`` and ``check_mask``.

    Source: Vaswani et al. 2017, eq. 1.
    """
    check_shapes(q, k, v)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])  # ... q k
    weights = masked_softmax(scores, mask)
    return weights @ v, weights


def build(kind, *sizes, seed=0, **options):
    """Make a layer whose random numbers come from ``seed``."""
    return kind(*sizes, rngs=nnx.Rngs(seed), **options)


def dense(n_in, n_out, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases.

    Source: Glorot & Bengio 2010, eq. 1, and ``torch.nn.Linear``.
    """
    uniform = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
    return nnx.Linear(n_in, n_out, kernel_init=uniform, rngs=rngs)


def check_input(x, size):
    """Raise an error unless an input is ``b s size``.

    Raises
    ------
    ValueError
        If it has another number of axes or of features.
    """
    if x.ndim != 3 or x.shape[-1] != size:
        raise ValueError(f"expected an input b s {size}, got shape {tuple(x.shape)}")


class MultiHeadAttention(nnx.Module):
    """Attention in several heads: ``b q m -> b q m, b h q k``.

    Parameters
    ----------
    m : int
        Size of the model, a multiple of ``n_heads``.
    n_heads : int
    rngs : nnx.Rngs

    Raises
    ------
    ValueError
        If ``m`` is not divisible by ``n_heads``; when called, if an input is not
        ``b s m``.

    Source: Vaswani et al. 2017, sec. 3.2.2.
    """

    def __init__(self, m, n_heads, *, rngs):
        if n_heads < 1 or m % n_heads:
            raise ValueError(f"m = {m} is not divisible by n_heads = {n_heads}")
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m, rngs=rngs)
        self.out = dense(m, m, rngs=rngs)

    def project(self, x):
        """Queries, keys and values of every head: ``b s m -> 3 b h s d``."""
        check_input(x, self.qkv.in_features)
        b, s, m = x.shape
        stacked = self.qkv(x).reshape(b, s, 3, self.n_heads, m // self.n_heads)
        return stacked.transpose(2, 0, 3, 1, 4)

    def __call__(self, x, mask=None, context=None):
        """Outputs ``b q m`` and weights ``b h q k``.

        Parameters
        ----------
        x : array ``b q m``
            Makes the queries, and without ``context`` also the keys and values.
        mask : boolean array ``q k`` or ``b h q k``, optional
        context : array ``b k m``, optional
            Makes the keys and values instead, as in cross-attention.
        """
        q, k, v = self.project(x)  # each b h s d
        if context is not None:
            _, k, v = self.project(context)  # b h k d
        values, weights = attention(q, k, v, mask)
        joined = values.swapaxes(1, 2).reshape(x.shape)  # b q m
        return self.out(joined), weights


ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=False)}
EXACT = {"epsilon": 1e-5, "use_fast_variance": False}
NORMS = {"layer": partial(nnx.LayerNorm, **EXACT), "rms": partial(nnx.RMSNorm, **EXACT)}


def pick(options, name, what):
    """The option of this name; an unknown name raises an error with all names."""
    if name not in options:
        raise ValueError(f"{what} {name!r} is not in {list(options)}")
    return options[name]


def check_rate(rate, what):
    """The rate of a dropout, if it is one."""
    if not 0 <= rate < 1:
        raise ValueError(f"{what} {rate} is not in [0, 1)")
    return rate


class FeedForward(nnx.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``.

    Parameters
    ----------
    m, f : int
        Sizes of the model and of the hidden layer.
    dropout : float
        Dropout after the activation, in [0, 1).
    activation : {"relu", "gelu"}
    rngs : nnx.Rngs

    Raises
    ------
    ValueError
        If ``dropout`` or ``activation`` is none of those.

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(self, m, f, *, dropout=0.0, activation="relu", rngs):
        self.activation = pick(ACTIVATIONS, activation, "activation")
        self.linear1 = dense(m, f, rngs=rngs)
        self.linear2 = dense(f, m, rngs=rngs)
        self.dropout = nnx.Dropout(check_rate(dropout, "dropout"), rngs=rngs)

    def __call__(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class EncoderBlock(nnx.Module):
    """Attention, then feed-forward, each with residual and norm.

    ``b s m -> b s m, b h s s``.

    Parameters
    ----------
    m, n_heads, f : int
        Sizes of the model and of the feed-forward net, number of heads.
    dropout : float
        Dropout on both branches and inside the feed-forward net, in [0, 1).
    activation : {"relu", "gelu"}
    norm : {"layer", "rms"}
    norm_first : bool
        Norm before each branch (Xiong et al. 2020) instead of after each sum.
    rngs : nnx.Rngs

    Raises
    ------
    ValueError
        If ``m`` is not divisible by ``n_heads``, or ``dropout``, ``activation`` or
        ``norm`` is none of those.

    Source: Vaswani et al. 2017, sec. 3.1.
    """

    def __init__(
        self, m, n_heads, f, *, dropout=0.0, activation="relu", norm="layer",
        norm_first=False, rngs,
    ):  # fmt: skip
        make_norm = pick(NORMS, norm, "norm")
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(m, n_heads, rngs=rngs)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation, rngs=rngs)
        self.norm1 = make_norm(m, rngs=rngs)
        self.norm2 = make_norm(m, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x, mask=None):
        if self.norm_first:
            values, weights = self.attention(self.norm1(x), mask)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


class Encoder(nnx.Module):
    """A stack of blocks: ``b s m -> b s m``, with ``return_maps`` also ``l b h s s``.

    Parameters
    ----------
    n_blocks, m, n_heads, f : int
    norm_first : bool
        Also puts one more norm at the end of the stack.
    rngs : nnx.Rngs
    **options
        ``dropout``, ``activation`` and ``norm`` of every block.

    Raises
    ------
    ValueError
        If ``n_blocks`` is below 1, or as ``EncoderBlock``.
    """

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, rngs, **options):
        if n_blocks < 1:
            raise ValueError(f"expected at least one block, got n_blocks = {n_blocks}")
        options = {"norm_first": norm_first, "rngs": rngs, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        make_norm = NORMS[options.get("norm", "layer")]
        self.norm = make_norm(m, rngs=rngs) if norm_first else None

    def __call__(self, x, mask=None, *, return_maps=False):
        """Outputs ``b s m``; with ``return_maps`` the pair of them and ``l b h s s``.

        Parameters
        ----------
        x : array ``b s m``
        mask : boolean array ``q k`` or ``b h q k``, optional
            In force in every block. What it hides changes nothing that is visible, as
            long as no square of it overflows on the way, which holds for entries up to
            1e15 in float32; beyond, it may arrive as 0 · NaN.
        return_maps : bool
            Return the attention weights of all blocks, too.
        """
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask)
            maps.append(weights)
        x = self.norm(x) if self.norm else x
        return (x, jnp.stack(maps)) if return_maps else x


def sinusoidal_positions(length, m):
    """Sine on the even features, cosine on the odd ones: ``s m``, in float64.

    Source: Vaswani et al. 2017, sec. 3.5.
    """
    i = np.arange(m)
    angle = np.arange(length)[:, None] / 10000 ** ((i - i % 2) / m)  # s m
    return np.where(i % 2 == 0, np.sin(angle), np.cos(angle))


def check_length(x, table):
    """Raise an error if a sequence is longer than the table of positions."""
    s, longest = x.shape[1], table.shape[0]
    if s > longest:
        raise ValueError(f"{s} positions, but the table has max_length = {longest}")


class SinusoidalPositions(nnx.Module):
    """Adds the sine and cosine code of each position: ``b s m -> b s m``.

    Parameters
    ----------
    m, max_length : int
        Size of the model, length of the table.

    Raises
    ------
    ValueError
        When called with more than ``max_length`` positions.

    Source: Vaswani et al. 2017, sec. 3.5.
    """

    def __init__(self, m, max_length, *, rngs=None):
        table = sinusoidal_positions(max_length, m)  # s m
        self.table = jnp.asarray(table, dtype=jnp.float32)

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]].astype(x.dtype)


class LearnedPositions(nnx.Module):
    """Adds a learned vector for each position: ``b s m -> b s m``.

    Parameters
    ----------
    m, max_length : int
        Size of the model, length of the table.
    rngs : nnx.Rngs

    Raises
    ------
    ValueError
        When called with more than ``max_length`` positions.
    """

    def __init__(self, m, max_length, *, rngs):
        table = jax.random.normal(rngs.params(), (max_length, m))  # s m
        self.table = nnx.Param(0.02 * table)

    def __call__(self, x):
        check_length(x, self.table)
        return x + self.table[: x.shape[1]]


POSITIONS = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
    "none": None,
}


class Predictor(nnx.Module):
    """One output vector per element: ``b s i -> b s c``.

    Parameters
    ----------
    n_inputs, m, n_outputs : int
        Features of an element, size of the model, outputs per element.
    n_blocks, n_heads, f : int
        As in ``Encoder``.
    input_dropout : float
        Dropout on the input features, in [0, 1).
    positions : {"sinusoidal", "learned", "none"}
    max_length : int
        Length of the table of positions.
    rngs : nnx.Rngs
    **options
        ``dropout``, ``activation``, ``norm`` and ``norm_first`` of the encoder.

    Raises
    ------
    ValueError
        If ``positions`` or ``input_dropout`` is none of those, or as ``Encoder``; when
        called, if the input is not ``b s i``, or longer than the table of positions.
    """

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, input_dropout=0.0,
        positions="sinusoidal", max_length=512, rngs, **options,
    ):  # fmt: skip
        kind = pick(POSITIONS, positions, "positions")
        input_dropout = check_rate(input_dropout, "input_dropout")
        self.input_dropout = nnx.Dropout(input_dropout, rngs=rngs)
        self.embed = dense(n_inputs, m, rngs=rngs)
        self.positions = kind(m, max_length, rngs=rngs) if kind else None
        self.encoder = Encoder(n_blocks, m, n_heads, f, rngs=rngs, **options)
        self.hidden = dense(m, m, rngs=rngs)
        self.hidden_norm = NORMS["layer"](m, rngs=rngs)
        self.dropout = nnx.Dropout(options.get("dropout", 0.0), rngs=rngs)
        self.output = dense(m, n_outputs, rngs=rngs)

    def __call__(self, x, mask=None, *, return_maps=False):
        """Outputs ``b s c``; with ``return_maps`` the pair of them and ``l b h s s``.

        ``mask`` and ``return_maps`` are those of ``Encoder``.
        """
        check_input(x, self.embed.in_features)
        x = self.embed(self.input_dropout(x))  # b s m
        x = self.positions(x) if self.positions else x
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = self.dropout(jax.nn.relu(self.hidden_norm(self.hidden(x))))
        return (self.output(x), maps) if return_maps else self.output(x)  # b s c


def attention_maps(model, x, mask=None):
    """Outputs and attention maps of one forward pass with dropout off.

    Parameters
    ----------
    model : Encoder or Predictor
        Stays as it is, in training mode or not.
    x : array ``b s m`` or ``b s i``
    mask : boolean array ``q k`` or ``b h q k``, optional

    Returns
    -------
    tuple of arrays ``b s m`` or ``b s c``, ``l b h q k``
    """
    quiet = nnx.clone(model)
    quiet.eval()
    return quiet(x, mask, return_maps=True)
