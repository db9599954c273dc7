"""One adapter per framework, so that each test is written once and runs on both.

A side has ``models``, the module ``helpers.jax`` or ``helpers.torch``, and
a few verbs: ``tensor`` and ``mask`` convert NumPy data, ``build`` makes a module,
``attend_and_back`` and ``model_grads`` differentiate. Results go back through
``helpers.engine.shapes.as_numpy``.

Below them are the frameworks' own modules, with the signatures
of ``helpers.reference``: NumPy in, NumPy out, and True in a mask means "may look".
"""

import os
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

from helpers import jax as model_jax
from helpers import torch as model_torch
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays, to_arrays

jax.config.update("jax_default_matmul_precision", "float32")  # on a GPU too
# Hundreds of shapes run once each: compile them fast. The pages, which check themselves
# against the same reference, run fully optimised.
jax.config.update("jax_disable_most_optimizations", True)


class Side:
    """What both have in common."""

    def build(self, name, *sizes, seed=0, **options):
        """A module of ``models``, by the function that the pages build it with."""
        kind = getattr(self.models, name)
        return self.models.build(kind, *sizes, seed=seed, **options)


class Jax(Side):
    """What a test needs from JAX and Flax NNX."""

    name, models = "jax", model_jax

    def tensor(self, x, dtype="float32"):
        return jnp.asarray(np.asarray(x).astype(jnp.dtype(dtype)))

    def mask(self, mask):
        return None if mask is None else jnp.asarray(mask)

    def attend(self, q, k, v, mask=None):
        """``attention``, compiled: for many shapes that is quicker than op by op."""
        return compiled_attention(q, k, v, mask)

    def attend_and_back(self, q, k, v, mask=None):
        """Outputs, weights, and the gradients of ``loss_of_attention`` in q, k, v."""
        grads, pair = compiled_gradient(q, k, v, mask)
        return *pair, *grads

    def model_grads(self, model, loss, x, *others, **options):
        """Gradients of ``loss(model(x, …))``: by neutral name, and in ``x``."""
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def scalar(params, x):
            return loss(nnx.merge(graph, params, rest)(x, *others, **options))

        in_params, in_x = jax.jit(jax.grad(scalar, (0, 1)))(params, x)
        return to_arrays(nnx.merge(graph, in_params, rest)), as_numpy(in_x)

    def no_nan(self):
        """A context in which JAX stops at the first NaN, op by op."""
        stack = ExitStack()
        stack.enter_context(jax.disable_jit())
        stack.enter_context(jax.debug_nans(True))
        return stack

    def dropouts(self, model):
        """Every dropout of the model, by its place in it."""
        parts = nnx.iter_graph(model)
        return {
            ".".join(map(str, path)): part
            for path, part in parts
            if isinstance(part, nnx.Dropout)
        }

    def rates(self, model):
        """The rate of every dropout of the model, by its place in it."""
        return {path: drop.rate for path, drop in self.dropouts(model).items()}

    def modes(self, model):
        """Whether each dropout of the model is on."""
        return [not drop.deterministic for drop in self.dropouts(model).values()]

    def drawn_next(self, model, x):
        """What the next call would give, without using up the model's randomness."""
        return as_numpy(nnx.clone(model)(x))

    def parameters(self, model):
        return jax.tree.leaves(nnx.state(model, nnx.Param))

    def in_dtype(self, model, dtype):
        """The model with every parameter in a dtype."""
        cast = jax.tree.map(lambda x: x.astype(dtype), nnx.state(model, nnx.Param))
        nnx.update(model, cast)
        return model

    def computing_in(self, model, dtype):
        """A context in which the layers of a float32 model compute in a dtype."""
        for _, part in nnx.iter_graph(model):
            if isinstance(part, nnx.Module) and hasattr(part, "param_dtype"):
                part.dtype = jnp.dtype(dtype)
        return nullcontext()


class Torch(Side):
    """What a test needs from PyTorch."""

    name, models = "torch", model_torch

    def tensor(self, x, dtype="float32"):
        return torch.tensor(np.asarray(x)).to(getattr(torch, dtype))

    def mask(self, mask):
        return None if mask is None else torch.tensor(mask)

    def attend(self, q, k, v, mask=None):
        """``attention`` as it stands."""
        return model_torch.attention(q, k, v, mask)

    def attend_and_back(self, q, k, v, mask=None):
        """Outputs, weights, and the gradients of ``loss_of_attention`` in q, k, v."""
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        pair = model_torch.attention(*leaves, mask)
        return *pair, *torch.autograd.grad(loss_of_attention(*pair), leaves)

    def model_grads(self, model, loss, x, *others, **options):
        """Gradients of ``loss(model(x, …))``: by neutral name, and in ``x``."""
        x = x.detach().clone().requires_grad_()
        params = list(model.parameters())
        value = loss(model(x, *others, **options))
        *in_params, in_x = torch.autograd.grad(value, [*params, x])
        values = [param.detach().clone() for param in params]
        try:
            set_parameters(params, in_params)
            return to_arrays(model), as_numpy(in_x)
        finally:
            set_parameters(params, values)

    def no_nan(self):
        """A context in which PyTorch stops at the first NaN of a backward pass."""
        return torch.autograd.set_detect_anomaly(True)

    def rates(self, model):
        """The rate of every dropout of the model, by its place in it."""
        parts = model.named_modules()
        return {path: part.p for path, part in parts if isinstance(part, nn.Dropout)}

    def modes(self, model):
        """Whether each dropout of the model is on."""
        return [m.training for m in model.modules() if isinstance(m, nn.Dropout)]

    def drawn_next(self, model, x):
        """What the next call would give, without using up PyTorch's randomness."""
        with torch.random.fork_rng(devices=[]):
            return as_numpy(model(x))

    def parameters(self, model):
        return list(model.parameters())

    def in_dtype(self, model, dtype):
        """The model with every parameter in a dtype."""
        for param in model.parameters():
            param.data = param.data.to(getattr(torch, dtype))
        return model

    def computing_in(self, model, dtype):
        """A context in which the layers of a float32 model compute in a dtype."""
        return torch.autocast("cpu", getattr(torch, dtype))


def loss_of_attention(out, weights):
    """A number that hangs on every output and every weight."""
    return (out * out).sum() + (weights * weights).sum()


def loss_and_attention(q, k, v, mask):
    """The loss, and the pair it was made of."""
    pair = model_jax.attention(q, k, v, mask)
    return loss_of_attention(*pair), pair


compiled_attention = jax.jit(model_jax.attention)
compiled_gradient = jax.jit(jax.grad(loss_and_attention, (0, 1, 2), has_aux=True))


@torch.no_grad()
def set_parameters(params, values):
    """Write one tensor into each parameter."""
    for param, value in zip(params, values, strict=True):
        param.copy_(value)


jax_side, torch_side = Jax(), Torch()
on_both_sides = pytest.mark.parametrize(
    "side", [jax_side, torch_side], ids=lambda s: s.name
)


def draw(*shape, seed=0, scale=1.0):
    """Normal numbers, the same for the same seed."""
    return np.random.default_rng(seed).normal(scale=scale, size=shape)


def draw_mask(*shape, seed=0, empty_rows=False):
    """A random mask; each row sees a key, or the first row sees none."""
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < 0.5
    seen = rng.integers(shape[-1], size=shape[:-1])
    np.put_along_axis(mask, seen[..., None], True, axis=-1)
    if empty_rows:
        mask[..., 0, :] = False
    return mask


def fill(model, seed=0):
    """Give every parameter a value of its own, biases and norms too; return them.

    The zero biases and unit norms of a new model would hide a term that is left out.
    """
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, old in sorted(to_arrays(model).items()):
        scale = len(old) ** -0.5 if old.ndim == 2 else 0.3
        middle = old if "norm" in name else 0
        arrays[name] = rng.normal(middle, scale, old.shape).astype(np.float32)
    from_arrays(model, arrays)
    return arrays


def four_axes(mask):
    """``q k`` or ``b h q k`` as ``b h q k``, with axes of size 1."""
    return mask if mask.ndim == 4 else mask[None, None]


def run_python(code):
    """What a fresh interpreter prints, one that finds the helpers and nothing else."""
    notebooks = Path(model_jax.__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"PYTHONPATH": str(notebooks)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def torch_attention(q, k, v, mask=None):
    """``F.scaled_dot_product_attention``; its weights are its output for unit ``v``."""
    q, k, v = (torch.tensor(x) for x in (q, k, v))
    mask = None if mask is None else torch.tensor(four_axes(mask))
    unit = torch.eye(k.shape[-2], dtype=k.dtype).expand(*k.shape[:-1], -1)
    own = nn.functional.scaled_dot_product_attention
    return tuple(own(q, k, x, attn_mask=mask).numpy() for x in (v, unit))


def jax_attention(q, k, v, mask=None):
    """``jax.nn.dot_product_attention``: axes ``b s h d``, ``v`` as wide as ``k``."""
    wide = [np.swapaxes(x, 1, 2).astype(np.float32) for x in (q, k, v)]
    narrow = wide[2].shape[-1]
    wide[2] = np.pad(wide[2], [(0, 0)] * 3 + [(0, wide[1].shape[-1] - narrow)])
    mask = None if mask is None else jnp.asarray(four_axes(mask))
    out = jax.nn.dot_product_attention(*map(jnp.asarray, wide), mask=mask)
    return np.swapaxes(out, 1, 2)[..., :narrow], None


def hidden_for_torch(mask, b, h, q, k):
    """A mask for ``nn.MultiheadAttention``: ``b·h q k``, and True means "hidden"."""
    if mask is None:
        return None
    mask = np.broadcast_to(four_axes(mask), (b, h, q, k))
    return torch.tensor(~mask.reshape(b * h, q, k))


def torch_multi_head_attention(
    x, params, n_heads, mask=None, context=None, dtype="float32"
):
    """``nn.MultiheadAttention`` with our weights: ``b q m -> b q m, b h q k``."""
    context = x if context is None else context
    b, q, m = x.shape
    own = nn.MultiheadAttention(m, n_heads, batch_first=True)
    own = own.to(getattr(torch, dtype))
    set_parameters(
        [own.in_proj_weight, own.in_proj_bias, own.out_proj.weight, own.out_proj.bias],
        [torch.tensor(params[name].T) for name in dense_names("qkv", "out")],
    )
    x, keys = (torch.tensor(y).to(getattr(torch, dtype)) for y in (x, context))
    hidden = hidden_for_torch(mask, b, n_heads, q, keys.shape[1])
    with torch.no_grad():
        pair = own(x, keys, keys, attn_mask=hidden, average_attn_weights=False)
    return tuple(y.numpy() for y in pair)


def nnx_multi_head_attention(x, params, n_heads, mask=None, context=None):
    """``nnx.MultiHeadAttention`` with our weights: ``b q m -> b q m, b h q k``."""
    m, d = x.shape[-1], x.shape[-1] // n_heads
    own = nnx.MultiHeadAttention(n_heads, m, decode=False, rngs=nnx.Rngs(0))
    kernels = params["qkv.weight"].reshape(m, 3, n_heads, d).swapaxes(0, 1)
    biases = params["qkv.bias"].reshape(3, n_heads, d)
    layers = own.query, own.key, own.value
    for layer, kernel, bias in zip(layers, kernels, biases, strict=True):
        layer.kernel[...], layer.bias[...] = jnp.asarray(kernel), jnp.asarray(bias)
    own.out.kernel[...] = jnp.asarray(params["out.weight"].reshape(n_heads, d, m))
    own.out.bias[...] = jnp.asarray(params["out.bias"])
    mask = None if mask is None else jnp.asarray(four_axes(mask))
    call = {"mask": mask, "sow_weights": True}
    inputs = [jnp.asarray(y) for y in (x, context) if y is not None]
    if hasattr(nnx, "capture"):  # flax 0.12
        out, seen = nnx.capture(own, nnx.Intermediate)(*inputs, **call)
    else:
        out = own(*inputs, **call)
        seen = nnx.pop(own, nnx.Intermediate)
    (weights,) = jax.tree.leaves(seen)
    return np.asarray(out), np.asarray(weights)


def torch_encoder_layer(
    x, params, n_heads, mask=None, activation="relu", norm_first=False, dtype="float32"
):
    """``nn.TransformerEncoderLayer`` with our weights: ``b s m -> b s m``."""
    b, s, m = x.shape
    own = nn.TransformerEncoderLayer(
        m, n_heads, params["ffn.linear1.bias"].size, dropout=0.3, activation=activation,
        norm_first=norm_first, batch_first=True, dtype=getattr(torch, dtype),
    ).eval()  # fmt: skip
    names = dense_names("attention.qkv", "attention.out", "ffn.linear1", "ffn.linear2")
    names += dense_names("norm1", "norm2")
    values = [torch.tensor(params[name].T) for name in names]
    set_parameters(list(own.parameters()), values)
    x = torch.tensor(x).to(getattr(torch, dtype)).requires_grad_()  # no fast path
    return own(x, src_mask=hidden_for_torch(mask, b, n_heads, s, s)).detach().numpy()


def torch_decoder_layer(
    x, context, params, n_heads, mask=None, context_mask=None, activation="relu",
    norm_first=False,
):  # fmt: skip
    """``nn.TransformerDecoderLayer`` with our weights: ``b s m, b k m -> b s m``."""
    b, s, m = x.shape
    own = nn.TransformerDecoderLayer(
        m, n_heads, params["ffn.linear1.bias"].size, dropout=0.3, activation=activation,
        norm_first=norm_first, batch_first=True,
    ).eval()  # fmt: skip
    names = dense_names(
        "attention.qkv", "attention.out", "cross.qkv", "cross.out", "ffn.linear1",
        "ffn.linear2", "norm1", "cross_norm", "norm2",
    )  # fmt: skip
    values = [torch.tensor(params[name].T) for name in names]
    set_parameters(list(own.parameters()), values)
    hidden = hidden_for_torch(mask, b, n_heads, s, s)
    context_hidden = hidden_for_torch(context_mask, b, n_heads, s, context.shape[1])
    with torch.no_grad():
        return own(
            torch.tensor(x), torch.tensor(context), tgt_mask=hidden,
            memory_mask=context_hidden,
        ).numpy()  # fmt: skip


def dense_names(*layers):
    """The two parameters of each layer, in the order in which PyTorch lists them."""
    return [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
