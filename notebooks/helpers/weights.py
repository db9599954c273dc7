"""One safetensors file that both frameworks read and write.

Parameters get names that neither framework owns: the path of attributes joined by dots,
ending in ``weight`` or ``bias``. Dense matrices are stored ``in out``, as in ``x W``;
PyTorch keeps them ``out in``, so they are transposed on its side.
"""

import os
import sys
from base64 import b64encode
from html import escape
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from helpers.shapes import as_numpy

NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def is_torch(model):
    """Whether ``model`` is a PyTorch module, asked without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def to_arrays(model):
    """Copy the parameters of a model of either framework to NumPy.

    Parameters
    ----------
    model : torch.nn.Module or flax.nnx.Module

    Returns
    -------
    dict of str to numpy.ndarray
        Neutral names; dense matrices ``in out``.
    """
    return {name: np.array(get(), order="C") for name, (get, _) in slots(model).items()}


def from_arrays(model, arrays):
    """Set every parameter of a model of either framework, or none.

    Parameters
    ----------
    model : torch.nn.Module or flax.nnx.Module
        Changed in place; keeps its dtypes and its device.
    arrays : dict of str to array
        As ``to_arrays`` returns it.

    Raises
    ------
    ValueError
        If a name is missing or unknown, or a shape differs. The model is then as before.
    """
    places = slots(model)
    missing = sorted(set(places) - set(arrays))
    unknown = sorted(set(arrays) - set(places))
    if missing or unknown:
        raise ValueError(
            f"these weights are of another model: {len(missing)} names missing "
            f"({', '.join(missing[:3])}), {len(unknown)} unknown "
            f"({', '.join(unknown[:3])})"
        )
    for name, (get, _) in places.items():
        expected, got = get().shape, arrays[name].shape
        if expected != got:
            raise ValueError(
                f"these weights are of another model: {name} has shape {got}, "
                f"expected {expected}"
            )
    for name, (_, put) in places.items():
        put(arrays[name])


def copy_weights(source, target):
    """Copy all parameters from one model to another, across frameworks or within one.

    Raises
    ------
    ValueError
        If the two models differ in a name or a shape.
    """
    from_arrays(target, to_arrays(source))


def save_weights(model, path):
    """Write the parameters to a safetensors file, whole or not at all.

    Parameters
    ----------
    model : torch.nn.Module or flax.nnx.Module
    path : str or path
        A file that stands there is replaced once the new one is complete.
    """
    write_whole(path, safetensors.numpy.save(to_arrays(model)))


class Html(str):
    """Text that Jupyter shows as HTML, and a plain script as text."""

    def _repr_html_(self):
        return str(self)


def download_link(model, name):
    """The parameters of a model as a link that a page can show; it holds the whole file.

    Parameters
    ----------
    model : torch.nn.Module or flax.nnx.Module
        A small one: the page gets longer by four bytes for three of the file.
    name : str
        What the file will be called.

    Returns
    -------
    Html
        Text that Jupyter shows as HTML.
    """
    data = safetensors.numpy.save(to_arrays(model))
    address = f"data:application/octet-stream;base64,{b64encode(data).decode()}"
    return Html(
        f'<a download="{escape(name)}" href="{address}">{escape(name)}</a> '
        f"({len(data) / 1024:.0f} KiB)"
    )


def write_whole(path, data):
    """Write bytes to a file, whole or not at all.

    Parameters
    ----------
    path : str or path
        A file that stands there is replaced once the new one is complete.
    data : bytes
    """
    path = Path(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def load_weights(model, path):
    """Read the parameters of a model from a safetensors file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is truncated, not safetensors, or of another model. The model is then
        as before.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no weights file at {path}")
    try:
        arrays = safetensors.numpy.load(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} is not a complete safetensors file of weights: {error}"
        ) from error
    try:
        from_arrays(model, arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def slots(model):
    """Where each parameter lives: neutral name to a reader and a writer."""
    return torch_slots(model) if is_torch(model) else nnx_slots(model)


def torch_slots(model):
    """Reader and writer of each parameter of a ``torch.nn.Module``."""
    import torch

    def slot(param, turn):
        def get():
            array = as_numpy(param)
            return array.T if turn else array

        def put(array):
            array = array.T if turn else array
            with torch.no_grad():
                param.copy_(torch.from_numpy(np.array(array, order="C")))

        return get, put

    places = {}
    for path, module in model.named_modules():
        turn = isinstance(module, torch.nn.Linear)
        for name, param in module.named_parameters(path, recurse=False):
            places[name] = slot(param, turn and param.ndim == 2)
    return places


def nnx_slots(model):
    """Reader and writer of each ``nnx.Param`` of a ``flax.nnx.Module``."""
    import jax.numpy as jnp
    from flax import nnx

    def slot(param):
        def get():
            return np.asarray(param[...])

        def put(array):
            param[...] = jnp.array(array, dtype=param[...].dtype)

        return get, put

    places = {}
    for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        *parents, leaf = map(str, path)
        places[".".join([*parents, NAMES.get(leaf, leaf)])] = slot(param)
    return places
