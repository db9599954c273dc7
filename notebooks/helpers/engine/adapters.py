"""One safetensors file for what was trained beside a frozen model, in both frameworks."""

import hashlib
import json

import numpy as np
import safetensors
import safetensors.numpy

from helpers.engine.checks import expect
from helpers.engine.weights import parameters, to_arrays, write_atomically

LORA = "lora_a", "lora_b"


def check_names(model, names):
    """Raise ValueError unless each name is in the path of a parameter."""
    known = {part for name, *_ in parameters(model) for part in name.split(".")}
    known, missing = sorted(filter(str.isidentifier, known)), {*names} - known
    expect(not missing, f"names among {', '.join(known)}", ", ".join(sorted(missing)))


def parts(model, names):
    """Arrays with one of these names in their path, and those of the frozen rest."""
    chosen, rest = {}, {}
    for name, x in to_arrays(model).items():
        if {*names}.isdisjoint(name.split(".")):
            rest[name.replace(".base.", ".")] = x
        else:
            chosen[name] = x
    return chosen, rest


def fingerprint(arrays):
    """SHA-256 of arrays by name."""
    return hashlib.sha256(safetensors.numpy.save(arrays)).hexdigest()


def write_adapter(path, model, about, others):
    """Write adapters and ``others``, names of layers that were trained, too.

    ``about`` are arguments of ``add_lora``; the file says which weights it stands on.
    """
    check_names(model, others)
    chosen, rest = parts(model, (*LORA, *others))
    notes = {"adapter": json.dumps([about, others]), "trunk": fingerprint(rest)}
    write_atomically(path, safetensors.numpy.save(chosen, notes))


def shapes_in(chosen, rest, names, rank, **_):
    """Shapes by name of what a file has for the layers of these names, and others."""
    shapes = {name: x.shape for name, x in chosen.items() if not name.endswith(LORA)}
    for name, x in rest.items():
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and layer.rpartition(".")[2] in names:
            shapes[f"{layer}.lora_a"] = len(x), rank
            shapes[f"{layer}.lora_b"] = rank, x.shape[-1]
    return shapes


def read_adapter(model, path):
    """Arguments of ``add_lora``, and the arrays, of a file that fits this model."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            notes = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        (about, others), trunk = json.loads(notes["adapter"]), notes["trunk"]
    except (KeyError, ValueError, safetensors.SafetensorError) as error:
        what = f"{path} to be an adapter of save_adapter"
        raise ValueError(f"expected {what}, got {error!r}") from error
    chosen, rest = parts(model, (*LORA, *others))
    found = fingerprint(rest)
    wanted = f"a model with the weights {trunk[:8]} that {path} was trained on"
    expect(found == trunk, wanted, found[:8])
    fits = shapes_in(chosen, rest, **about)
    for name in sorted(fits.keys() | arrays.keys()):
        wanted = fits.get(name, "no such array")
        got = arrays[name].shape if name in arrays else "none"
        expect(wanted == got, f"{name} in {path}: {wanted}", got)
        finite = np.isfinite(arrays[name])
        got = f"{finite.size - finite.sum()} that are not"
        expect(finite.all(), f"finite numbers in {name} in {path}", got)
    return about, arrays
