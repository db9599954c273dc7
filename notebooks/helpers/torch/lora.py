"""The chapter *Start from a trained model* builds these: adapters and a classifier."""

import torch
from torch import nn

from helpers.engine import adapters
from helpers.engine.checks import expect
from helpers.engine.weights import from_arrays, to_arrays
from helpers.torch.today import projection


class LoRALinear(nn.Module):
    """A linear layer and one of low rank beside it: ``... i -> ... o``.

    ``x W + x A B · alpha / rank``, where B begins as zeros (Hu et al. 2021, sec. 4.1).
    """

    def __init__(self, base, rank, alpha):
        super().__init__()
        if rank < 1:
            raise ValueError(f"expected a rank of at least 1, got {rank}")
        n_out, n_in = base.weight.shape
        self.base, self.scale = base, alpha / rank
        where = {"device": base.weight.device, "dtype": torch.float32}
        self.lora_a = nn.Parameter(torch.empty(n_in, rank, **where))
        self.lora_b = nn.Parameter(torch.zeros(rank, n_out, **where))
        nn.init.uniform_(self.lora_a, -(n_in**-0.5), n_in**-0.5)

    def forward(self, x):
        change = x.float() @ self.lora_a @ self.lora_b
        return self.base(x) + (self.scale * change).to(x.dtype)

    def merge(self):
        """The linear layer with the adapter added to its weights."""
        with torch.no_grad():
            self.base.weight += self.scale * (self.lora_a @ self.lora_b).T
        return self.base


def find_layers(model, kind):
    """Pairs of a module and the name of a layer of this kind in it."""
    return [
        (module, name) for module in model.modules()
        for name, layer in module.named_children() if isinstance(layer, kind)
    ]  # fmt: skip


def add_lora(model, rank, alpha, names=("q", "v")):
    """Give the linear layers of these names an adapter each, in place: the model."""
    found = find_layers(model, nn.Linear)
    known = sorted({name for _, name in found})
    if missing := sorted({*names}.difference(known)):
        raise ValueError(f"expected layers among {known}, got {missing}")
    for module, name in found:
        if name in names:
            setattr(module, name, LoRALinear(getattr(module, name), rank, alpha))
    return model


def find_adapters(model):
    """Pairs of a module and the name of a layer with an adapter, of this file or a page."""
    found = find_layers(model, nn.Module)
    return [place for place in found if hasattr(getattr(*place), "lora_a")]


def merge_lora(model):
    """Add all adapters to the weights beside them, in place: the model as it was."""
    for module, name in find_adapters(model):
        setattr(module, name, getattr(module, name).merge())
    return model


def train_only(model, *names):
    """Options for ``fit``: parameters without one of these names in their path freeze."""
    paths = {path: {*path.split(".")} for path, _ in model.named_parameters()}
    known = sorted(set().union(*paths.values()))
    if missing := sorted({*names}.difference(known)):
        raise ValueError(f"expected names among {known}, got {missing}")
    for path, param in model.named_parameters():
        param.requires_grad_(not paths[path].isdisjoint(names))
    return {}  # the model says it all


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
    add_lora(model, **about)
    from_arrays(model, to_arrays(model) | arrays)
    return model


class TextClassifier(nn.Module):
    """A language model with another output layer: texts ``b s`` to classes ``b c``.

    The logits are those at the last token. Padding is -1, and stands at the end.
    """

    def __init__(self, trunk, n_classes):
        super().__init__()
        self.trunk = trunk
        trunk.output = projection(trunk.embed.embedding_dim, n_classes, bias=True)

    def forward(self, tokens):
        last = (tokens >= 0).sum(dim=1) - 1  # b
        return self.trunk(tokens)[torch.arange(len(tokens)), last]  # b c
