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


# One object for all layers: models of the same sizes are then compiled only once.
UNIFORM = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def dense(n_in, n_out, *, rngs):
    """Linear layer ``... n_in -> ... n_out``: weights within ±1/√n_in, zero biases.

    Source: Glorot & Bengio 2010, eq. 1, and ``torch.nn.Linear``.
    """
    return nnx.Linear(n_in, n_out, kernel_init=UNIFORM, rngs=rngs)


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


class DecoderBlock(EncoderBlock):
    """Encoder block with cross-attention to a context between its two branches.

    ``b s m, b k m -> b s m, b h s s, b h s k``.

    Parameters
    ----------
    m, n_heads, f : int
        As in ``EncoderBlock``.
    rngs : nnx.Rngs
    **options
        ``dropout``, ``activation``, ``norm`` and ``norm_first`` of ``EncoderBlock``.

    Raises
    ------
    ValueError
        As ``EncoderBlock``.

    Source: Vaswani et al. 2017, sec. 3.1.
    """

    def __init__(self, m, n_heads, f, *, rngs, **options):
        super().__init__(m, n_heads, f, rngs=rngs, **options)
        self.cross = MultiHeadAttention(m, n_heads, rngs=rngs)
        self.cross_norm = NORMS[options.get("norm", "layer")](m, rngs=rngs)

    def __call__(self, x, mask, context, context_mask=None):
        """Outputs ``b s m``, weights ``b h s s``, cross weights ``b h s k``.

        Parameters
        ----------
        x : array ``b s m``
        mask : boolean array ``q k`` or ``b h q k``, or None
        context : array ``b k m``
            What cross-attention looks at.
        context_mask : boolean array ``q k`` or ``b h q k``, optional
            Which places of the context are visible.
        """
        if self.norm_first:
            values, weights = self.attention(self.norm1(x), mask)
            x = x + self.dropout(values)
            found, cross = self.cross(self.cross_norm(x), context_mask, context)
            x = x + self.dropout(found)
            return x + self.dropout(self.ffn(self.norm2(x))), weights, cross
        values, weights = self.attention(x, mask)
        x = self.norm1(x + self.dropout(values))
        found, cross = self.cross(x, context_mask, context)
        x = self.cross_norm(x + self.dropout(found))
        return self.norm2(x + self.dropout(self.ffn(x))), weights, cross


class Decoder(nnx.Module):
    """A stack of decoder blocks: ``b s m, b k m -> b s m``.

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
        blocks = [DecoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nnx.data(blocks)
        make_norm = NORMS[options.get("norm", "layer")]
        self.norm = make_norm(m, rngs=rngs) if norm_first else None

    def __call__(self, x, mask, context, context_mask=None, *, return_maps=False):
        """Outputs ``b s m``; with ``return_maps`` also ``l b h s s``, ``l b h s k``.

        Parameters
        ----------
        x : array ``b s m``
        mask, context, context_mask : arrays
            As in ``DecoderBlock``, the same for every block.
        return_maps : bool
            Return the attention weights of all blocks, too, and those of
            cross-attention.
        """
        maps, cross_maps = [], []
        for block in self.blocks:
            x, weights, cross = block(x, mask, context, context_mask)
            maps.append(weights)
            cross_maps.append(cross)
        x = self.norm(x) if self.norm else x
        return (x, jnp.stack(maps), jnp.stack(cross_maps)) if return_maps else x


def embedding(n_tokens, m, *, rngs):
    """Table with a vector for each token, ``c m``: normal, standard deviation 1/√m.

    A vector has length 1, and logits against the same table a size of about 1.
    """
    normal = nnx.initializers.normal(m**-0.5)
    return nnx.Embed(n_tokens, m, embedding_init=normal, rngs=rngs)


def unembedding(m, n_tokens, *, rngs):
    """Linear layer without a bias, whose weights start as those of ``embedding``."""
    normal = nnx.initializers.normal(m**-0.5)
    return nnx.Linear(m, n_tokens, use_bias=False, kernel_init=normal, rngs=rngs)


def causal_mask(tokens):
    """Each position may look at itself and before: ``b s -> q k``."""
    return jnp.tri(tokens.shape[1], dtype=bool)


def check_tokens(tokens, longest=math.inf):
    """Raise an error unless tokens are an integer array ``b s``, short enough."""
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"expected tokens b s of whole numbers, got {tokens.dtype} "
            f"{tuple(tokens.shape)}"
        )
    if tokens.shape[1] > longest:
        raise ValueError(f"{tokens.shape[1]} positions, but max_length = {longest}")


class LanguageModel(nnx.Module):
    """Logits of the next token at every position: ``b s -> b s c``.

    Parameters
    ----------
    n_tokens, m : int
        Size of the vocabulary, size of the model.
    n_blocks, n_heads, f : int
        As in ``Encoder``.
    max_length : int
        Positions that the model can have.
    positions : {"learned", "sinusoidal", "none"}
    tied : bool
        The logits are products with the vectors of the embedding, ``x Eᵀ`` (Press &
        Wolf 2017); otherwise of a layer of its own, also without a bias.
    causal : bool
        No position looks at a later one. Without it, the model sees what it is to
        predict.
    stack : class
        ``Encoder``, or ``Decoder`` for the second half of a ``Translator``, which also
        looks at a context.
    rngs : nnx.Rngs
    **options
        ``dropout``, ``activation``, ``norm`` and ``norm_first`` of the blocks.

    Raises
    ------
    ValueError
        If ``positions`` is none of those, or as ``Encoder``; when called, if the input
        is no integer array ``b s``, or longer than ``max_length``.

    Source: Radford et al. 2018, sec. 3.1.
    """

    def __init__(
        self, n_tokens, m, *, n_blocks, n_heads, f, max_length, positions="learned",
        tied=True, causal=True, stack=Encoder, rngs, **options,
    ):  # fmt: skip
        kind = pick(POSITIONS, positions, "positions")
        self.max_length, self.causal = max_length, causal
        self.embed = embedding(n_tokens, m, rngs=rngs)
        self.positions = kind(m, max_length, rngs=rngs) if kind else None
        self.decoder = stack(n_blocks, m, n_heads, f, rngs=rngs, **options)
        self.output = None if tied else unembedding(m, n_tokens, rngs=rngs)

    def logits(self, x):
        """Logits of every token: ``b s m -> b s c``."""
        return self.output(x) if self.output else x @ self.embed.embedding[...].T

    def __call__(self, tokens, mask=None, *context, return_maps=False):
        """Logits ``b s c``; with ``return_maps`` also the maps of the stack.

        Parameters
        ----------
        tokens : integer array ``b s``
            A negative number is padding. At the end of a row it needs no mask: no real
            position looks there.
        mask : boolean array ``q k`` or ``b h q k``, optional
            In force besides the causal mask.
        *context
            Context and its mask, if there are any, as in ``Decoder``.
        return_maps : bool
            As in the stack.
        """
        check_tokens(tokens, self.max_length)
        if self.causal:
            past = causal_mask(tokens)  # q k
            mask = past if mask is None else mask & past
        x = self.embed(jnp.maximum(tokens, 0))  # b s m
        x = self.positions(x) if self.positions else x
        out = self.decoder(x, mask, *context, return_maps=return_maps)
        return (self.logits(out[0]), *out[1:]) if return_maps else self.logits(out)


def check_shared(shared, n_source, n_target):
    """Raise an error if vocabularies that are to be one differ in size."""
    if shared and n_source != n_target:
        raise ValueError(
            f"expected one vocabulary, got n_source = {n_source} and n_target = "
            f"{n_target}"
        )


class Translator(nnx.Module):
    """Reads a source, writes a target: ``b k, b s -> b s c``.

    Parameters
    ----------
    n_source, n_target, m : int
        Sizes of the two vocabularies, size of the model.
    max_length : int
        Positions of the source, and of the target.
    positions : {"learned", "sinusoidal", "none"}
    shared : bool
        The two vocabularies are one, with one embedding.
    tied : bool
        As in ``LanguageModel``.
    rngs : nnx.Rngs
    **sizes
        Of the encoder as of the decoder: ``n_blocks``, ``n_heads``, ``f``, and maybe
        ``dropout``, ``activation``, ``norm`` and ``norm_first``.

    Raises
    ------
    ValueError
        If vocabularies that are ``shared`` differ in size, or as ``LanguageModel``.

    Source: Vaswani et al. 2017, sec. 3.
    """

    def __init__(
        self, n_source, n_target, m, *, max_length, positions="learned", shared=False,
        tied=True, rngs, **sizes,
    ):  # fmt: skip
        check_shared(shared, n_source, n_target)
        sizes, kind = sizes | {"rngs": rngs}, POSITIONS.get(positions)
        options = {"max_length": max_length, "positions": positions, "tied": tied}
        self.target = LanguageModel(n_target, m, stack=Decoder, **options, **sizes)
        self.embed = None if shared else embedding(n_source, m, rngs=rngs)
        self.positions = kind(m, max_length, rngs=rngs) if kind else None
        self.encoder = Encoder(m=m, **sizes)

    def read(self, source, *, return_maps=False):
        """The encoded source ``b k m``, its mask ``b 1 1 k``, its maps or None."""
        check_tokens(source)
        mask = (source >= 0)[:, None, None]  # b 1 1 k
        embed = self.embed or self.target.embed
        x = embed(jnp.maximum(source, 0))  # b k m
        x = self.positions(x) if self.positions else x
        out = self.encoder(x, mask, return_maps=return_maps)
        return (out[0], mask, out[1]) if return_maps else (out, mask, None)

    def __call__(self, source, target, *, return_maps=False):
        """Logits ``b s c``; with ``return_maps`` also three arrays of maps.

        Parameters
        ----------
        source : integer array ``b k``
            A negative number is padding, and hidden.
        target : integer array ``b s``
            Padding at the end of a row needs no mask: no real position looks there.
        return_maps : bool
            Return the weights of the encoder ``l b h k k``, of the decoder ``l b h s s``
            and of its cross-attention ``l b h s k``, too.
        """
        context, mask, maps = self.read(source, return_maps=return_maps)
        out = self.target(target, None, context, mask, return_maps=return_maps)
        return (out[0], (maps, *out[1:])) if return_maps else out


def attend(layer, q, k, v, mask=None):
    """Outputs of a ``MultiHeadAttention`` for given ``q``, ``k``, ``v``: ``b q m``."""
    values, _ = attention(q, k, v, mask)  # b h q d
    joined = values.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)  # b q m
    return layer.out(joined)


def attend_and_keep(layer, x, cache, start, mask):
    """Attention to all positions so far: ``b n m``, and the cache with the new ones."""
    q, *new = layer.project(x)  # b h n d
    write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=2)
    cache = tuple(write(old, part) for old, part in zip(cache, new, strict=True))
    return attend(layer, q, *cache, mask), cache


def new_cache(model, first, length, context=None, context_mask=None):
    """Key-value cache of a ``LanguageModel``, allocated for all columns, still empty.

    Parameters
    ----------
    model : LanguageModel
    first : integer array ``b``
        Column of the first token of each row: shorter prompts are padded on the left.
    length : int
        Columns to allocate.
    context, context_mask : arrays ``b k m``, ``b 1 1 k``, optional
        Of cross-attention, whose keys and values are computed here, once.

    Returns
    -------
    dict
        ``start`` (columns in use), ``first``, ``blocks`` (for each block, keys and
        values ``b h s d``), ``context`` (likewise ``b h k d``, or None) and
        ``context_mask``.
    """
    blocks = model.decoder.blocks
    n_heads, m = blocks[0].attention.n_heads, model.embed.features
    shape = len(first), n_heads, length, m // n_heads  # b h s d
    empty = jnp.zeros(shape, model.embed.embedding.dtype)
    crossing = context is not None
    context = [
        tuple(b.cross.project(context)[1:]) if crossing else None for b in blocks
    ]
    return {
        "start": jnp.int32(0), "first": first, "blocks": [(empty, empty)] * len(blocks),
        "context": context, "context_mask": context_mask,
    }  # fmt: skip


def attend_to_known(layer, x, known, mask=None):
    """Attention to keys and values that are known: ``b n m``."""
    q, *_ = layer.project(x)  # b h n d
    return attend(layer, q, *known, mask)


def advance_block(block, x, cache, start, mask, context, context_mask):
    """A block on new positions: ``b n m``, and its cache with them in it."""
    args = cache, start, mask
    if block.norm_first:
        values, cache = attend_and_keep(block.attention, block.norm1(x), *args)
        x = x + values
        if context:
            x = x + attend_to_known(
                block.cross, block.cross_norm(x), context, context_mask
            )
        return x + block.ffn(block.norm2(x)), cache
    values, cache = attend_and_keep(block.attention, x, *args)
    x = block.norm1(x + values)
    if context:
        found = attend_to_known(block.cross, x, context, context_mask)
        x = block.cross_norm(x + found)
    return block.norm2(x + block.ffn(x)), cache


def advance(model, tokens, cache):
    """Logits of the next tokens of each row, ``b n -> b n c``, from a key-value cache.

    Equal to those of the model without a cache and without dropout, at the work of
    ``n`` positions. The cache must have room for them.

    Parameters
    ----------
    model : LanguageModel
    tokens : integer array ``b n``
    cache : dict
        As ``new_cache`` makes it.

    Returns
    -------
    tuple of array ``b n c`` and dict
        Logits, and the cache with the new positions in it.
    """
    columns = cache["start"] + jnp.arange(tokens.shape[1])  # n
    seen = jnp.arange(cache["blocks"][0][0].shape[2])  # s
    first = cache["first"][:, None]  # b 1
    mask = (seen >= first[..., None]) & (seen <= columns[:, None])  # b n s
    x = model.embed(jnp.maximum(tokens, 0))  # b n m
    if model.positions:  # counted from the first token of the row
        x = x + model.positions.table[jnp.maximum(columns - first, 0)]
    blocks, given = [], {"start": cache["start"], "mask": mask[:, None]}
    given["context_mask"] = cache["context_mask"]
    for n, block in enumerate(model.decoder.blocks):
        kept, context = cache["blocks"][n], cache["context"][n]
        x, kept = advance_block(block, x, kept, context=context, **given)
        blocks.append(kept)
    x = model.decoder.norm(x) if model.decoder.norm else x
    new = {"start": cache["start"] + tokens.shape[1], "blocks": blocks}
    return model.logits(x), cache | new


def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """Probabilities that the next token is drawn with: ``... c -> ... c``.

    Parameters
    ----------
    logits : array ``... c``
    temperature : float
        Divides the logits: below 1 the most probable tokens gain, above 1 they lose.
    top_k : int, optional
        Only the ``top_k`` most probable tokens (Fan et al. 2018).
    top_p : float, optional
        Of those, only the fewest most probable ones that have ``top_p`` of the
        probability together (Holtzman et al. 2020).

    Returns
    -------
    array ``... c``
        Among equals, the token with the lower number counts as more probable.
    """
    highest = logits.max(axis=-1, keepdims=True)
    p = jax.nn.softmax((logits - highest) / temperature, axis=-1)
    if top_k is None and top_p is None:
        return p
    order = jnp.argsort(-p, axis=-1, stable=True)  # the most probable first
    p = jnp.take_along_axis(p, order, axis=-1)
    if top_k is not None:
        p = jnp.where(jnp.arange(p.shape[-1]) < top_k, p, 0)
        p = p / p.sum(axis=-1, keepdims=True)
    if top_p is not None:
        before = jnp.cumsum(p, axis=-1) - p  # what the more probable ones have
        p = jnp.where(before < top_p, p, 0)
        p = p / p.sum(axis=-1, keepdims=True)
    return jnp.take_along_axis(p, jnp.argsort(order, axis=-1), axis=-1)


def check_prompts(model, prompts, length, end=None):
    """The prompts as lists of whole numbers, if the model can continue them.

    Raises
    ------
    ValueError
        If there is no prompt, one is empty or too long, or has an unknown token, or
        ``end`` is one.
    """
    rows = [[int(token) for token in prompt] for prompt in prompts]
    sizes = [len(row) for row in rows]
    if length < 1 or not rows or not min(sizes):
        raise ValueError(
            f"expected prompts of at least one token and length >= 1, got prompts of "
            f"{sizes} tokens and length = {length}"
        )
    if max(sizes) + length > model.max_length:
        raise ValueError(
            f"a prompt of {max(sizes)} tokens and length = {length} need "
            f"{max(sizes) + length} positions, but max_length = {model.max_length}"
        )
    n_tokens = model.embed.num_embeddings
    if unknown := [t for row in rows for t in row if not 0 <= t < n_tokens]:
        raise ValueError(f"expected tokens from 0 to {n_tokens - 1}, got {unknown[0]}")
    if end is not None and not 0 <= end < n_tokens:
        raise ValueError(f"expected end from 0 to {n_tokens - 1}, got {end}")
    return rows


def check_sampling(temperature, top_k, top_p):
    """Raise an error unless tokens can be drawn like that.

    Raises
    ------
    ValueError
        If ``temperature`` is not above 0, ``top_k`` below 1, or ``top_p`` not in (0, 1].
    """
    if not temperature > 0:
        raise ValueError(f"expected temperature above 0, got {temperature}")
    if top_k is not None and not top_k >= 1:
        raise ValueError(f"expected top_k of at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"expected top_p in (0, 1], got {top_p}")


def generate(
    model, prompts, length, *, temperature=1.0, top_k=None, top_p=None, end=None, seed=0
):
    """Continue a batch of texts, token by token: one compiled loop.

    Parameters
    ----------
    model : LanguageModel
        Stays as it is, in training mode or not.
    prompts : sequences of int
        One for each text, at least one token each; they may differ in length.
    length : int
        New tokens of each text.
    temperature, top_k, top_p
        As in ``next_token_probabilities``; ``top_k=1`` is greedy.
    end : int, optional
        Token that ends a text: all after it are ``end``, too.
    seed : int

    Returns
    -------
    integer array ``b length``
        Each row is what the model would write for that prompt alone.

    Raises
    ------
    ValueError
        Before any work, as ``check_prompts`` and ``check_sampling``.
    """
    rows = check_prompts(model, prompts, length, end)
    check_sampling(temperature, top_k, top_p)
    longest = max(map(len, rows))
    first = jnp.array([longest - len(row) for row in rows])  # b
    tokens = jnp.array([[0] * (longest - len(row)) + row for row in rows])  # b s
    keys = jax.random.split(jax.random.key(seed), length)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    options = None if top_k == 1 else options  # greedy: nothing to sort or to draw
    quiet = nnx.clone(model)
    quiet.eval()
    graph, state = nnx.split(quiet)
    end = -1 if end is None else end
    return continue_texts(state, tokens, first, keys, end, options, graph=graph)


@partial(jax.jit, static_argnames="graph")
def continue_texts(state, tokens, first, keys, end, options, *, graph):
    """The loop of ``generate``: the prompts in one pass, then a token at a time."""
    model = nnx.merge(graph, state)
    cache = new_cache(model, first, tokens.shape[1] + len(keys))
    logits, cache = advance(model, tokens, cache)

    def step(carry, key):
        logits, done, cache = carry  # b c, b
        if options is None:
            chosen = logits.argmax(-1)  # b
        else:
            p = next_token_probabilities(logits, **options)
            chosen = jax.random.categorical(key, jnp.log(p))  # b
        new = jnp.where(done, end, chosen)
        logits, cache = advance(model, new[:, None], cache)
        return (logits[:, -1], done | (new == end), cache), new

    start = logits[:, -1], jnp.zeros(len(tokens), bool), cache
    return jax.lax.scan(step, start, keys)[1].T  # b length


def check_search(model, source, length, begin, end, width):
    """Raise an error unless a ``Translator`` can translate a source like that.

    Raises
    ------
    ValueError
        If a size is too large or too small, or a token unknown.
    """
    embed = model.embed or model.target.embed
    n_target, longest = model.target.embed.num_embeddings, model.target.max_length
    if min(length, width) < 1 or max(length, source.shape[1]) > longest:
        raise ValueError(
            f"expected length and width of at least 1 and at most max_length = "
            f"{longest} positions, got length = {length}, width = {width} and a source "
            f"of shape {tuple(source.shape)}"
        )
    if not (source >= 0).any(axis=1).all() or source.max() >= embed.num_embeddings:
        raise ValueError(
            f"expected source tokens below {embed.num_embeddings}, and one or more in "
            f"each row, got tokens up to {source.max()}"
        )
    if begin == end or not 0 <= min(begin, end) <= max(begin, end) < n_target:
        raise ValueError(
            f"expected two tokens below {n_target}, got begin = {begin}, end = {end}"
        )


def translate(model, source, length, *, begin, end, width=1):
    """Translate by beam search: a width of 1 is greedy.

    Parameters
    ----------
    model : Translator
        Stays as it is, in training mode or not.
    source : integer array ``b k``
        A negative number is padding.
    length : int
        Largest number of new tokens.
    begin, end : int
        Tokens of the target vocabulary before its first token and after its last.
    width : int
        Beams: unfinished translations that are kept at each step.

    Returns
    -------
    tuple of arrays ``b length``, ``b``
        The best translation found, filled up with ``end``, and its log-probability.

    Raises
    ------
    ValueError
        Before any work, as ``check_search``.
    """
    check_tokens(source)
    check_search(model, source, length, begin, end, width)
    quiet = nnx.clone(model)
    quiet.eval()
    graph, state = nnx.split(quiet)
    fixed = {"graph": graph, "length": length, "width": width}
    return search_beams(state, jnp.asarray(source), begin, end, **fixed)


def take_rows(cache, rows):
    """The cache with some of its rows, in another order, or several times."""
    start, rest = cache["start"], cache | {"start": None}
    return jax.tree.map(lambda x: x[rows], rest) | {"start": start}


def first_beams(model, source, begin, length, width):
    """Beams before the first step: tokens, log-probabilities, texts and the cache.

    Row ``b·width + w`` of the cache belongs to beam ``w`` of source ``b``.
    """
    b = len(source)
    context, mask, _ = model.read(source)  # once for all steps
    last = jnp.full((b, width), begin)  # b w
    # all beams are equal still: only the first one counts
    total = jnp.full((b, width), -jnp.inf).at[:, 0].set(0)  # b w
    cache = new_cache(model.target, jnp.zeros(b, jnp.int32), length, context, mask)
    cache = take_rows(cache, jnp.repeat(jnp.arange(b), width))
    return last, total, jnp.zeros((b, width, length), jnp.int32), cache


def best_continuations(log_p, last, total, end):
    """The most probable of all continuations: totals, beams and tokens, each ``b w``.

    Parameters
    ----------
    log_p : array ``b w c``
        Of every next token of every beam.
    last, total : arrays ``b w``
        Last token of each beam, and its log-probability so far. A beam that has ended
        is continued by ``end`` only, with probability 1.
    end : int
    """
    b, width, n_tokens = log_p.shape
    only_end = jnp.where(jnp.arange(n_tokens) == end, 0, -jnp.inf)  # c
    log_p = jnp.where((last == end)[..., None], only_end, log_p)
    totals = (total[..., None] + log_p).reshape(b, -1)  # b w·c
    total, best = jax.lax.top_k(totals, width)
    return total, best // n_tokens, best % n_tokens


@partial(jax.jit, static_argnames=("graph", "length", "width"))
def search_beams(state, source, begin, end, *, graph, length, width):
    """The loop of ``translate``: each step keeps the best continuations."""
    model, rows = nnx.merge(graph, state), jnp.arange(len(source))[:, None]  # b 1

    def step(beams, place):
        last, total, texts, cache = beams
        logits, cache = advance(model.target, last.reshape(-1, 1), cache)
        log_p = jax.nn.log_softmax(logits).reshape(*last.shape, -1)  # b w c
        total, beam, last = best_continuations(log_p, last, total, end)  # each b w
        texts = jnp.take_along_axis(texts, beam[..., None], axis=1)  # b w s
        texts = texts.at[:, :, place].set(last)
        cache = take_rows(cache, (rows * width + beam).ravel())
        return (last, total, texts, cache), None

    start = first_beams(model, source, begin, length, width)
    (_, total, texts, _), _ = jax.lax.scan(step, start, jnp.arange(length))
    return texts[:, 0], total[:, 0]


def cut_patches(images, patch):
    """Cut pictures into patches, row by row: ``b y x i -> b n (p p i)``.

    Parameters
    ----------
    images : array ``b y x i``
    patch : int
        Height and width ``p`` of a patch, in pixels.

    Raises
    ------
    ValueError
        If there are other axes, or height or width is no multiple of ``patch``.

    Source: Dosovitskiy et al. 2021, sec. 3.1.
    """
    if images.ndim != 4 or images.shape[1] % patch or images.shape[2] % patch:
        raise ValueError(
            f"expected pictures b y x i whose sides are multiples of patch = {patch}, "
            f"got shape {tuple(images.shape)}"
        )
    b, y, x, i = images.shape
    cut = images.reshape(b, y // patch, patch, x // patch, patch, i)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, patch * patch * i)


POOLS = {"token": 1, "mean": 0}  # elements in front of the patches


class VisionTransformer(nnx.Module):
    """One output vector for each picture: ``b y x i -> b c``.

    Parameters
    ----------
    image_size, n_channels, m, n_outputs : int
        Sides of a square picture in pixels, channels of a pixel, size of the model,
        outputs.
    patch : int
        Sides of a patch in pixels.
    n_blocks, n_heads, f : int
        As in ``Encoder``.
    pool : {"token", "mean"}
        Whether the output comes from a learned token that is put before the patches,
        or from the mean over the patches.
    positions : {"learned", "sinusoidal", "none"}
    rngs : nnx.Rngs
    **options
        Of the encoder: ``dropout`` (also after the positions), ``norm``, and, unlike
        there by default, ``activation="gelu"`` and ``norm_first=True``.

    Raises
    ------
    ValueError
        If ``patch`` does not divide ``image_size``, ``pool`` or ``positions`` is none of
        those, or as ``Encoder``; when called, if the pictures are of another size.
    TypeError
        When called with whole numbers other than ``uint8``.

    Source: Dosovitskiy et al. 2021, sec. 3.1.
    """

    def __init__(
        self, image_size, n_channels, m, n_outputs, *, patch, n_blocks, n_heads, f,
        pool="token", positions="learned", rngs, **options,
    ):  # fmt: skip
        kind, front = pick(POSITIONS, positions, "positions"), pick(POOLS, pool, "pool")
        length = front + count_patches(image_size, patch)
        self.shape, self.patch = (image_size, image_size, n_channels), patch
        self.embed = dense(patch * patch * n_channels, m, rngs=rngs)
        token = 0.02 * jax.random.normal(rngs.params(), (1, front, m))
        self.token = nnx.Param(token) if front else None
        self.positions = kind(m, length, rngs=rngs) if kind else None
        self.dropout = nnx.Dropout(options.get("dropout", 0.0), rngs=rngs)
        options = {"activation": "gelu", "norm_first": True, **options}
        self.encoder = Encoder(n_blocks, m, n_heads, f, rngs=rngs, **options)
        self.output = dense(m, n_outputs, rngs=rngs)

    def __call__(self, images, mask=None, *, return_maps=False):
        """Outputs ``b c``; with ``return_maps`` the pair of them and ``l b h s s``.

        Pictures ``b y x i`` are floats, or ``uint8``, which is divided by 255. With a
        token ``s`` counts it first, then the patches row by row; ``mask`` is that of
        ``Encoder``.
        """
        images = check_images(images, self.shape)
        x = self.embed(cut_patches(images, self.patch))  # b n m
        if self.token is not None:
            token = jnp.broadcast_to(self.token[...], (len(x), 1, x.shape[-1]))
            x = jnp.concatenate([token, x], axis=1)  # b s m
        x = self.dropout(self.positions(x) if self.positions else x)
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = x[:, 0] if self.token is not None else x.mean(axis=1)  # b m
        return (self.output(x), maps) if return_maps else self.output(x)


def count_patches(image_size, patch):
    """Number of patches of a square picture: ``(image_size / patch)²``.

    Raises
    ------
    ValueError
        If it cannot be cut into whole patches, with both sizes.
    """
    if not 1 <= patch <= image_size or image_size % patch:
        raise ValueError(
            f"image_size = {image_size} is not divisible by patch = {patch}"
        )
    return (image_size // patch) ** 2


def check_images(images, shape):
    """The pictures as floats, if they have the shape that a model was made for.

    Raises
    ------
    ValueError
        If their shape is not ``b`` and ``shape``.
    TypeError
        If they are whole numbers other than ``uint8``.
    """
    if tuple(images.shape[1:]) != shape:
        raise ValueError(
            f"expected pictures of shape b {' '.join(map(str, shape))}, got "
            f"{tuple(images.shape)}"
        )
    if images.dtype == jnp.uint8:
        return images / 255
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise TypeError(f"expected pictures of floats or uint8, got {images.dtype}")
    return images


def move_pictures(images, angles, shifts):
    """Turn pictures about their middle, then shift them; black comes in from outside.

    ``b y x i -> b y x i``, with linear interpolation between the four nearest pixels.

    Parameters
    ----------
    images : array ``b y x i`` of floats
    angles : array ``b``
        In radians; positive turns from the down axis to the right one.
    shifts : array ``b 2``
        In pixels, down and to the right.
    """
    b, height, width, _ = images.shape
    middle = (height - 1) / 2, (width - 1) / 2
    rows = jnp.arange(height) - middle[0] - shifts[:, :1]  # b y
    columns = jnp.arange(width) - middle[1] - shifts[:, 1:]  # b x
    cos, sin = jnp.cos(angles)[:, None, None], jnp.sin(angles)[:, None, None]
    down = cos * rows[:, :, None] + sin * columns[:, None] + middle[0]  # b y x
    right = cos * columns[:, None] - sin * rows[:, :, None] + middle[1]
    moved, each = 0, jnp.arange(b)[:, None, None]
    for y in (jnp.floor(down), jnp.floor(down) + 1):
        for x in (jnp.floor(right), jnp.floor(right) + 1):
            share = (1 - jnp.abs(down - y)) * (1 - jnp.abs(right - x))
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            place = jnp.clip(y, 0, height - 1), jnp.clip(x, 0, width - 1)
            pixels = images[each, *(at.astype(int) for at in place)]  # b y x i
            moved = moved + (share * inside)[..., None] * pixels
    return moved


def augment(chances, images, labels, *, degrees=0, pixels=0, flip=False):
    """Pictures turned, shifted and mirrored by chance: ``b y x i -> b y x i``.

    Parameters
    ----------
    chances : array ``b 8``
        Numbers in [0, 1), four of which are used.
    images : array ``b y x i`` of floats or ``uint8``
    labels : array ``b``
        Returned as they are.
    degrees, pixels : float
        Largest angle, and largest shift down and to the right, both ways.
    flip : bool
        Mirror every second picture, left to right.
    """
    images = images / 255 if images.dtype == jnp.uint8 else images
    if flip:
        mirrored = (chances[:, 3] < 0.5)[:, None, None, None]
        images = jnp.where(mirrored, images[:, :, ::-1], images)
    if not (degrees or pixels):
        return images, labels
    angles = (2 * chances[:, 0] - 1) * math.radians(degrees)
    return move_pictures(images, angles, (2 * chances[:, 1:3] - 1) * pixels), labels


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
