"""How products are computed: all of float32, bfloat16, or in a form quick on a CPU."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

# Context for comparisons. The default is TF32 on a GPU: factors of 11 significant bits.
full_float32 = partial(jax.default_matmul_precision, "highest")


def for_training(model, precision="float32"):
    """A copy of the model that computes as training does.

    On a CPU its linear layers use ``flat_product``. With "bfloat16" all but ``output``
    are as if built with ``dtype=bfloat16, param_dtype=float32``: gradients arrive in
    float32. Norms, embeddings, logits and the residual stream stay in float32.
    """
    model = nnx.clone(model)
    first = jnp.asarray(jax.tree.leaves(nnx.state(model, nnx.Param))[0])
    on_cpu = all(device.platform == "cpu" for device in first.devices())
    for path, layer in nnx.iter_graph(model):
        if isinstance(layer, nnx.Linear):
            if on_cpu and layer.dot_general is jax.lax.dot_general:
                layer.dot_general = flat_product
            if precision == "bfloat16" and "output" not in path:
                layer.dtype = jnp.bfloat16
    return model


def flat_product(x, w, _, **options):
    """Product ``... i, i o -> ... o`` of two matrices, with options of ``jax.lax.dot``.

    On CPUs, XLA computes the gradients of this form faster.
    """
    out = jax.lax.dot(x.reshape(-1, x.shape[-1]), w, **options)
    return out.reshape(*x.shape[:-1], w.shape[-1])
