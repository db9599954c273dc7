"""One safetensors file that both frameworks read and write.

Names of parameters belong to neither framework: the path of attributes joined by dots,
ending in ``weight`` or ``bias``. Dense matrices are stored ``in out``, as in ``x W``;
PyTorch keeps them ``out in``, so they are transposed on its side.

Weights of another project are renamed, and transposed if PyTorch stores them ``out in``:

    found = torch.load("last.ckpt", weights_only=True)["state_dict"]  # Lightning
    arrays = {new: as_numpy(found[old]) for new, old in names.items()}
    arrays["output.weight"] = arrays["output.weight"].T
    from_arrays(model, arrays)  # names what is missing, unknown or of another shape

Flax's are ``in out``, nested: ``msgpack_restore``, then ``flatten_dict(found, sep=".")``.
"""

import os
import sys
from base64 import b64encode
from html import escape
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from helpers.engine.checks import expect
from helpers.engine.shapes import as_numpy

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def is_torch(model):
    """Whether ``model`` is a PyTorch module, asked without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def to_arrays(model):
    """Copy the parameters of a model of either framework to NumPy, by neutral name."""
    found = parameters(model)
    return {name: np.array(values(*place), order="C") for name, *place in found}


def count_parameters(model):
    """How many numbers a model of either framework learns."""
    return sum(array.size for array in to_arrays(model).values())


def from_arrays(model, arrays):
    """Set every parameter of a model of either framework, or none.

    The model keeps its dtypes and its devices; ``arrays`` are as ``to_arrays`` returns
    them, real numbers of any dtype. If a name is missing or unknown, a shape differs, or
    a number is complex, not finite, or too large for the model's dtype: ValueError.
    """
    places = {name: place for name, *place in parameters(model)}
    missing, unknown = sorted({*places} - {*arrays}), sorted({*arrays} - {*places})
    if missing or unknown:
        names = f"{len(missing)} names missing ({', '.join(missing[:3])})"
        names += f", {len(unknown)} unknown ({', '.join(unknown[:3])})"
        raise ValueError(f"these weights are of another model: {names}")
    ready = {name: converted(name, arrays[name], *places[name]) for name in places}
    for name, (param, _) in places.items():
        if is_torch(model):
            param.data.copy_(ready[name])
        else:
            import jax

            param[...] = jax.device_put(ready[name], param[...].sharding)


def parameters(model):
    """Neutral name, parameter, and whether it is transposed: of each parameter."""
    if is_torch(model):
        from torch.nn import Linear

        for path, module in model.named_modules():
            for name, param in module.named_parameters(path, recurse=False):
                yield name, param, isinstance(module, Linear) and param.ndim == 2
    else:
        from flax import nnx

        for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
            *parents, leaf = map(str, path)
            yield ".".join([*parents, NAMES.get(leaf, leaf)]), param, False


def values(x, transposed):
    """A parameter, or what is to become one, as a NumPy array ``in out``."""
    array = as_numpy(x if hasattr(x, "detach") else x[...])
    return array.T if transposed else array


def converted(name, array, param, transposed):
    """An array as its parameter needs it, checked."""
    array, shape = as_numpy(array), values(param, transposed).shape
    if array.shape != shape:
        differs = f"{name} has shape {array.shape}, expected {shape}"
        raise ValueError(f"these weights are of another model: {differs}")
    expect(array.dtype.kind in "fiu", f"real numbers in {name}", array.dtype)
    if hasattr(param, "detach"):
        turned = np.array(array.T if transposed else array, order="C")
        ready = sys.modules["torch"].from_numpy(turned).to(param.dtype)
    else:
        with np.errstate(over="ignore"):  # what overflows is found below
            ready = array.astype(param[...].dtype)
    bad = array[~np.isfinite(values(ready, transposed))]
    if bad.size:
        dtype = str(ready.dtype).removeprefix("torch.")
        got = f"{bad.size} that are not, or not as {dtype}: the first is {bad[0]}"
        raise ValueError(f"expected finite numbers in {name}, got {got}")
    return ready


def save_weights(model, path, metadata=None, *, half=False):
    """Write what ``packed`` makes of a model to a safetensors file."""
    write_atomically(path, packed(model, metadata, half=half))


def packed(model, metadata=None, *, half=False):
    """The parameters of a model, and texts by name, as bytes of a safetensors file.

    With ``half``, a number has two bytes; one too large for them is a ValueError.
    """
    arrays = to_arrays(model)
    for key, x in arrays.items() if half else ():
        high = np.abs(x).max(initial=0)
        expect(not high > 65_504, f"up to 65,504 in {key} for half", f"{high:.3g}")
        arrays[key] = x.astype(np.float16)
    return safetensors.numpy.save(arrays, metadata)


def download_link(model, name, *, half=False, metadata=None):
    """A link to download what ``packed`` makes of a model; it contains the whole file."""
    HTML = getattr(sys.modules.get("IPython.display"), "HTML", str)  # text in a script
    data = packed(model, metadata, half=half)
    address = f"data:application/octet-stream;base64,{b64encode(data).decode()}"
    return HTML(
        f'<a download="{escape(name)}" href="{address}">{escape(name)}</a> '
        f"({len(data) / 1024:.0f} KiB)"
    )


def write_atomically(path, data):
    """Write bytes to a file, whole or not at all: the old file stays until then."""
    path = Path(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk gives no path
            error.filename = error.filename or str(path)
        raise


def load_weights(model, path):
    """Read the parameters of a model from a safetensors file; all of them, or none.

    An error says whether it is missing, damaged, not safetensors, or of another model.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no weights file at {path}")
    try:
        arrays = dict(map(decoded, safetensors.deserialize(path.read_bytes())))
        from_arrays(model, arrays)
    except safetensors.SafetensorError as error:
        what = "is not a complete safetensors file of weights"
        raise ValueError(f"{path} {what}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def decoded(entry):
    """Name and array of an entry of a safetensors file."""
    name, found = entry
    kind, data = found["dtype"], found["data"]
    if kind == "BF16":  # the upper half of a float32
        array = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        expect(kind in DTYPES, f"{name} as {', '.join(DTYPES)} or BF16", kind)
        array = np.frombuffer(data, DTYPES[kind])
    return name, array.reshape(found["shape"])
