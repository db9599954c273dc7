"""The classes as they were built on the PyTorch pages, for later pages."""

import math
from functools import partial

import torch
from torch import nn

from helpers.checks import check_dropout, check_length, check_sizes, choose, head_size
from helpers.reference import sinusoidal_positions
from helpers.shapes import expand_mask


def masked_softmax(scores, mask=None):
    """Softmax over the keys that a mask leaves visible.

    Parameters
    ----------
    scores : array ``... q k``
    mask : boolean array ``q k``, ``b q k`` or ``b h q k``, optional
        True means "may look".

    Returns
    -------
    array ``... q k``
        Rows that sum to 1, or to 0 where the query sees nothing.

    Raises
    ------
    TypeError, ValueError
        If the mask is not boolean or does not fit the scores.
    """
    if mask is None:
        return torch.softmax(scores, dim=-1)
    mask = expand_mask(mask, scores.shape)
    lowest = torch.finfo(scores.dtype).min
    weights = torch.softmax(torch.where(mask, scores, lowest), dim=-1)
    return torch.where(mask, weights, 0)


def attention(q, k, v, mask=None):
    """Weighted mean of the values, with weights from the scaled dot products.

    Parameters
    ----------
    q, k, v : arrays ``... q d``, ``... k d``, ``... k e``
        The leading axes are the same for all three.
    mask : boolean array ``q k``, ``b q k`` or ``b h q k``, optional
        True means "may look". What is hidden must be finite.

    Returns
    -------
    tuple of arrays ``... q e``, ``... q k``
        Outputs and weights. A query that sees nothing gets zeros.

    Raises
    ------
    TypeError, ValueError
        If the mask is not boolean or does not fit the weights.

    Source: Vaswani et al. 2017, eq. 1.
    """
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(q.shape[-1])
    weights = masked_softmax(scores, mask)  # ... q k
    return torch.einsum("...qk,...ke->...qe", weights, v), weights


def build(kind, *sizes, seed=0, **options):
    """Make a layer whose random numbers come from ``seed``."""
    torch.manual_seed(seed)
    with torch.device("cpu"):  # the same numbers on every device
        layer = kind(*sizes, **options)
    return layer.to(torch.get_default_device())


def dense(n_in, n_out):
    """Linear layer ``... n_in -> ... n_out`` with Xavier-uniform weights, zero biases.

    Source: Glorot & Bengio 2010, eq. 16.
    """
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class MultiHeadAttention(nn.Module):
    """Self-attention in several heads: ``b s m -> b s m, b h s s``.

    Parameters
    ----------
    m : int
        Size of the model, a multiple of ``n_heads``.
    n_heads : int

    Raises
    ------
    ValueError
        If ``m`` does not split into ``n_heads`` heads.

    Source: Vaswani et al. 2017, sec. 3.2.2.
    """

    def __init__(self, m, n_heads):
        super().__init__()
        self.d = head_size(m, n_heads)
        self.n_heads = n_heads
        self.qkv = dense(m, 3 * m)
        self.out = dense(m, m)

    def forward(self, x, mask=None):
        b, s, m = x.shape
        stacked = self.qkv(x).reshape(b, s, 3, self.n_heads, self.d)
        q, k, v = torch.einsum("bsnhd->nbhsd", stacked)  # each b h s d
        values, weights = attention(q, k, v, mask)
        joined = torch.einsum("bhsd->bshd", values).reshape(b, s, m)
        return self.out(joined), weights


ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}
NORMS = {
    "layer": partial(nn.LayerNorm, eps=1e-5),
    "rms": partial(nn.RMSNorm, eps=1e-5),
}


class FeedForward(nn.Module):
    """Two linear layers, the same for every position: ``b s m -> b s m``.

    Parameters
    ----------
    m, f : int
        Sizes of the model and of the hidden layer.
    dropout : float
        Rate after the activation, in [0, 1).
    activation : {"relu", "gelu"}

    Raises
    ------
    ValueError
        If the rate or the name is not one of those.

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(self, m, f, *, dropout=0.0, activation="relu"):
        super().__init__()
        check_sizes(m=m, f=f)
        self.activation = choose(activation, ACTIVATIONS, "activation")
        self.linear1 = dense(m, f)
        self.linear2 = dense(f, m)
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class EncoderBlock(nn.Module):
    """Attention, then feed-forward, each with residual and norm.

    ``b s m -> b s m, b h s s``.

    Parameters
    ----------
    m, n_heads, f : int
        Sizes of the model and of the feed-forward net, number of heads.
    dropout : float
        Rate on both branches and inside the feed-forward net, in [0, 1).
    activation : {"relu", "gelu"}
    norm : {"layer", "rms"}
    norm_first : bool
        Norm before each branch (Xiong et al. 2020) instead of after each sum.

    Raises
    ------
    ValueError
        If the sizes do not split, or a rate or name is not one of those.

    Source: Vaswani et al. 2017, sec. 3.1.
    """

    def __init__(
        self, m, n_heads, f, *, dropout=0.0, activation="relu", norm="layer",
        norm_first=False,
    ):  # fmt: skip
        super().__init__()
        make_norm = choose(norm, NORMS, "norm")
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(m, n_heads)
        self.ffn = FeedForward(m, f, dropout=dropout, activation=activation)
        self.norm1 = make_norm(m)
        self.norm2 = make_norm(m)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        if self.norm_first:
            values, weights = self.attention(self.norm1(x), mask)
            x = x + self.dropout(values)
            return x + self.dropout(self.ffn(self.norm2(x))), weights
        values, weights = self.attention(x, mask)
        x = self.norm1(x + self.dropout(values))
        return self.norm2(x + self.dropout(self.ffn(x))), weights


class Encoder(nn.Module):
    """A stack of blocks: ``b s m -> b s m, l b h s s``, ``l`` counting the layers.

    Parameters
    ----------
    n_blocks, m, n_heads, f : int
    norm_first : bool
        Also puts one more norm at the end of the stack.
    **options
        ``dropout``, ``activation`` and ``norm`` of every block.

    Raises
    ------
    ValueError
        If ``n_blocks`` is below 1, or as ``EncoderBlock``.
    """

    def __init__(self, n_blocks, m, n_heads, f, *, norm_first=False, **options):
        super().__init__()
        check_sizes(n_blocks=n_blocks)
        options = {"norm_first": norm_first, **options}
        blocks = [EncoderBlock(m, n_heads, f, **options) for _ in range(n_blocks)]
        self.blocks = nn.ModuleList(blocks)
        make_norm = NORMS[options.get("norm", "layer")]
        self.norm = make_norm(m) if norm_first else None

    def forward(self, x, mask=None):
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask)
            maps.append(weights)
        return self.norm(x) if self.norm else x, torch.stack(maps)


class SinusoidalPositions(nn.Module):
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

    def __init__(self, m, max_length):
        super().__init__()
        check_sizes(m=m, max_length=max_length)
        self.max_length = max_length
        table = sinusoidal_positions(max_length, m)  # s m
        table = torch.as_tensor(table, dtype=torch.float32)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x):
        check_length(x.shape[1], self.max_length)
        return x + self.table[: x.shape[1]]


class LearnedPositions(nn.Module):
    """Adds a learned vector for each position: ``b s m -> b s m``.

    Parameters
    ----------
    m, max_length : int
        Size of the model, length of the table.

    Raises
    ------
    ValueError
        When called with more than ``max_length`` positions.
    """

    def __init__(self, m, max_length):
        super().__init__()
        check_sizes(m=m, max_length=max_length)
        self.max_length = max_length
        table = torch.randn(max_length, m)  # s m
        self.table = nn.Parameter(0.02 * table)

    def forward(self, x):
        check_length(x.shape[1], self.max_length)
        return x + self.table[: x.shape[1]]


class Predictor(nn.Module):
    """One output vector per element: ``b s i -> b s c, l b h s s``.

    Parameters
    ----------
    n_inputs, m, n_outputs : int
        Features of an element, size of the model, outputs per element.
    n_blocks, n_heads, f : int
        As in ``Encoder``.
    input_dropout : float
        Rate on the input features, in [0, 1).
    positions : {"sinusoidal", "learned", "none"}
    max_length : int
        Length of the table of positions.
    **options
        ``dropout``, ``activation``, ``norm`` and ``norm_first`` of the encoder.

    Raises
    ------
    ValueError
        If a size, a rate or a name makes no sense, or, when called, if the sequence is
        longer than the table of positions.
    """

    def __init__(
        self, n_inputs, m, n_outputs, *, n_blocks, n_heads, f, input_dropout=0.0,
        positions="sinusoidal", max_length=512, **options,
    ):  # fmt: skip
        super().__init__()
        check_sizes(n_inputs=n_inputs, m=m, n_outputs=n_outputs, max_length=max_length)
        tables = {
            "sinusoidal": lambda: SinusoidalPositions(m, max_length),
            "learned": lambda: LearnedPositions(m, max_length),
            "none": lambda: None,
        }
        self.input_dropout = nn.Dropout(check_dropout(input_dropout))
        self.embed = dense(n_inputs, m)
        self.positions = choose(positions, tables, "kind of positions")()
        self.encoder = Encoder(n_blocks, m, n_heads, f, **options)
        self.hidden = dense(m, m)
        self.hidden_norm = NORMS["layer"](m)
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        self.output = dense(m, n_outputs)

    def forward(self, x, mask=None):
        x = self.embed(self.input_dropout(x))  # b s m
        x = self.positions(x) if self.positions else x
        x, maps = self.encoder(x, mask)
        x = self.dropout(torch.relu(self.hidden_norm(self.hidden(x))))
        return self.output(x), maps  # b s c


def attention_maps(model, x, mask=None):
    """Outputs and attention maps of one forward pass with dropout off.

    Parameters
    ----------
    model : Encoder or Predictor
        Stays as it is, in training mode or not.
    x : array ``b s m`` or ``b s i``
    mask : boolean array ``q k``, ``b q k`` or ``b h q k``, optional

    Returns
    -------
    tuple of arrays ``b s m`` or ``b s c``, ``l b h q k``
    """
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return model(x, mask)
    finally:
        for part, was_training in modes:
            part.training = was_training
