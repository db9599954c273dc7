"""One safetensors file for what was trained beside a frozen model, in both frameworks."""

import hashlib
import json

import safetensors
import safetensors.numpy

from helpers.engine.checks import expect
from helpers.engine.weights import to_arrays, write_atomically

LORA = "lora_a", "lora_b"


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
    chosen, rest = parts(model, (*LORA, *others))
    notes = {"adapter": json.dumps([about, others]), "trunk": fingerprint(rest)}
    write_atomically(path, safetensors.numpy.save(chosen, notes))


def read_adapter(model, path):
    """Arguments of ``add_lora``, and the arrays, of a file that fits this model."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            notes = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about, others = json.loads(notes["adapter"])
    except (KeyError, safetensors.SafetensorError) as error:
        what = f"{path} to be an adapter of save_adapter"
        raise ValueError(f"expected {what}, got {error!r}") from error
    found = fingerprint(parts(model, (*LORA, *others))[1])
    wanted = f"a model with the weights {notes['trunk'][:8]} that {path} was trained on"
    expect(found == notes["trunk"], wanted, found[:8])
    return about, arrays
