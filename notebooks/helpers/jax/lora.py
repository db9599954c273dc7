"""The chapter *Start from a trained model* builds these: adapters and a classifier."""

import jax.numpy as jnp
from flax import nnx

from helpers.engine import adapters
from helpers.engine.checks import expect
from helpers.engine.weights import from_arrays, to_arrays
from helpers.jax.attention import UNIFORM
from helpers.jax.today import projection


class LoRALinear(nnx.Module):
    """A linear layer and one of low rank beside it: ``... i -> ... o``.

    ``x W + x A B · alpha / rank``, where B begins as zeros (Hu et al. 2021, sec. 4.1).
    """

    def __init__(self, base, rank, alpha, *, rngs):
        if rank < 1:
            raise ValueError(f"expected a rank of at least 1, got {rank}")
        n_in, n_out = base.kernel.shape
        self.base, self.scale = base, alpha / rank
        self.lora_a = nnx.LoRAParam(UNIFORM(rngs.params(), (n_in, rank)))
        self.lora_b = nnx.LoRAParam(jnp.zeros((rank, n_out)))

    def __call__(self, x):
        change = x.astype(jnp.float32) @ self.lora_a[...] @ self.lora_b[...]
        return self.base(x) + (self.scale * change).astype(x.dtype)

    def merge(self):
        """The linear layer with the adapter added to its weights."""
        change = self.scale * self.lora_a[...] @ self.lora_b[...]
        self.base.kernel[...] += change.astype(self.base.kernel.dtype)
        return self.base


def find_layers(model, kind):
    """Pairs of a module and the name of a layer of this kind in it."""
    return [
        (module, name) for _, module in nnx.iter_graph(model)
        if isinstance(module, nnx.Module)
        for name, layer in vars(module).items() if isinstance(layer, kind)
    ]  # fmt: skip


def add_lora(model, rank, alpha, names=("q", "v"), *, rngs):
    """Give the linear layers of these names an adapter each, in place: the model."""
    found = find_layers(model, nnx.Linear)
    known = sorted({name for _, name in found})
    if missing := sorted({*names}.difference(known)):
        raise ValueError(f"expected layers among {known}, got {missing}")
    for module, name in found:
        if name in names:
            layer = LoRALinear(getattr(module, name), rank, alpha, rngs=rngs)
            setattr(module, name, layer)
    return model


def find_adapters(model):
    """Pairs of a module and the name of a layer with an adapter, of this file or a page."""
    found = find_layers(model, nnx.Module)
    return [place for place in found if hasattr(getattr(*place), "lora_a")]


def merge_lora(model):
    """Add all adapters to the weights beside them, in place: the model as it was."""
    for module, name in find_adapters(model):
        setattr(module, name, getattr(module, name).merge())
    return model


def train_only(model, *names):
    """Options for ``fit``: parameters without one of these names in their path freeze."""
    paths = (path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param)))
    known = sorted(set().union(*(map(str, path) for path in paths)))
    if missing := sorted({*names}.difference(known)):
        raise ValueError(f"expected names among {known}, got {missing}")
    return {"wrt": nnx.All(nnx.Param, nnx.Any(*map(nnx.PathContains, names)))}


def save_adapter(model, path, *others):
    """Write the adapters of a model, and layers named ``others``, for both frameworks."""
    found = find_adapters(model)
    layers, names = [getattr(*place) for place in found], {name for _, name in found}
    kinds = sorted({(layer.lora_a.shape[1], layer.scale) for layer in layers})
    expect(len(kinds) == 1, "adapters of one rank and scale", kinds or "none")
    ((rank, scale),) = kinds
    about = {"rank": rank, "alpha": scale * rank, "names": sorted(names)}
    adapters.write_adapter(path, model, about, others)


def load_adapter(model, path):
    """Put the adapters of a file in place of those that a model has: the model.

    The weights beside them must be those the file was trained on, or nothing changes.
    """
    about, arrays = adapters.read_adapter(model, path)
    for module, name in find_adapters(model):
        setattr(module, name, getattr(module, name).base)
    add_lora(model, **about, rngs=nnx.Rngs(0))
    from_arrays(model, to_arrays(model) | arrays)
    return model


class TextClassifier(nnx.Module):
    """A language model with another output layer: texts ``b s`` to classes ``b c``.

    The logits are those at the last token. Padding is -1, and stands at the end.
    """

    def __init__(self, trunk, n_classes, *, rngs):
        self.trunk = trunk
        output = projection(trunk.embed.features, n_classes, bias=True, rngs=rngs)
        trunk.output = nnx.data(output)  # in a tied model, it was None

    def __call__(self, tokens):
        last = (tokens >= 0).sum(axis=1) - 1  # b
        return self.trunk(tokens)[jnp.arange(len(tokens)), last]  # b c
