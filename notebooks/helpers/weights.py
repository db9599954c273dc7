"""One safetensors file that both frameworks read and write.

Names of parameters belong to neither framework: the path of attributes joined by dots,
ending in ``weight`` or ``bias``. Dense matrices are stored ``in out``, as in ``x W``;
PyTorch keeps them ``out in``, so they are transposed on its side.
"""

import math
import os
import sys
from pathlib import Path

import numpy as np
import safetensors.numpy

NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def as_numpy(x):
    """Copy an array of any framework, or a nested list, to NumPy; bfloat16 as float32."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    x = np.asarray(x).copy()  # np.array warns of tensors
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def parameters(model, statistics=True):
    """Neutral name, array, and whether it is transposed: of each parameter, once.

    And of the statistics that layers such as BatchNorm keep, unless told otherwise.
    """
    torch, seen = sys.modules.get("torch"), set()
    if torch is not None and isinstance(model, torch.nn.Module):
        for path, module in sorted(model.named_modules()):
            found = dict(module.named_parameters(path, recurse=False))
            if statistics:
                forgotten = module._non_persistent_buffers_set | {"num_batches_tracked"}
                for name, x in module.named_buffers(recurse=False):
                    if name not in forgotten:
                        found[f"{path}.{name.removeprefix('running_')}".lstrip(".")] = x
            for name, x in found.items():
                dense = isinstance(module, torch.nn.Linear) and x.ndim == 2
                if id(x) not in seen:
                    yield name, x, dense
                seen.add(id(x))
    else:
        from flax import nnx

        kinds = nnx.Any(nnx.Param, nnx.BatchStat) if statistics else nnx.Param
        for path, param in nnx.to_flat_state(nnx.state(model, kinds)):
            *parents, leaf = map(str, path)
            yield ".".join([*parents, NAMES.get(leaf, leaf)]), param, False


def to_arrays(model):
    """Copy the parameters of a model of either framework to NumPy, by neutral name."""
    arrays = {}
    for name, param, transposed in parameters(model):
        array = as_numpy(param if hasattr(param, "detach") else param[...])
        arrays[name] = np.ascontiguousarray(array.T) if transposed else array
    return arrays


def count_parameters(model):
    """How many numbers a model of either framework learns."""
    return sum(math.prod(x.shape) for _, x, _ in parameters(model, statistics=False))


def from_arrays(model, arrays):
    """Set every parameter of a model of either framework, or none.

    The model keeps its dtypes and its devices; ``arrays`` are as ``to_arrays`` returns
    them. If a name is missing or unknown, a shape differs, or a number is not finite in
    the dtype of the model: ValueError.
    """
    places = {name: place for name, *place in parameters(model)}
    if differ := sorted({*places} ^ {*arrays}):
        known = "unknown" if differ[0] in arrays else "missing"
        raise ValueError(f"these weights are of another model: {differ[0]} is {known}")
    ready = {name: converted(name, arrays[name], *places[name]) for name in places}
    for name, (param, _) in places.items():
        if hasattr(param, "detach"):
            with sys.modules["torch"].no_grad():
                param.copy_(ready[name])
        else:
            import jax

            old = param[...]  # one that is bound to no device stays so
            place = old.sharding if old.committed else None
            param[...] = jax.device_put(ready[name], place)


def converted(name, array, param, transposed):
    """An array as its parameter needs it, checked."""
    array = as_numpy(array)
    array = array.T if transposed else array
    if array.shape != tuple(param.shape):
        shapes = f"{array.shape}, expected {tuple(param.shape)}"
        raise ValueError(f"these weights are of another model: {name} has {shapes}")
    if hasattr(param, "detach"):
        found = sys.modules["torch"].tensor(array, dtype=param.dtype)
    else:
        with np.errstate(over="ignore"):  # what overflows is found below
            found = array.astype(param[...].dtype)
    if not np.isfinite(as_numpy(found)).all():
        raise ValueError(f"expected finite numbers in {name}, as {found.dtype}")
    return found


def write_atomically(path, data):
    """Write bytes to a file, whole or not at all: the old file stays until then."""
    draft = Path(f"{path}.{os.getpid()}.draft")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def save_weights(model, path, metadata=None):
    """Write the parameters of a model, and texts by name, to a safetensors file."""
    write_atomically(path, safetensors.numpy.save(to_arrays(model), metadata))


def load_weights(model, path):
    """Read all parameters of a model from a safetensors file, or none.

    A file that is damaged, or of another model, raises an error that names it.
    """
    try:
        from_arrays(model, safetensors.numpy.load(Path(path).read_bytes()))
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
