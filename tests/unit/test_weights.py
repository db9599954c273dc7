"""One file of weights serves both frameworks, and a bad file changes nothing."""

import json
import os
import re
import sys
from base64 import b64decode
from functools import partial

import numpy as np
import pytest
import safetensors.torch
import torch
from flax import nnx
from safetensors.numpy import load, load_file, save, save_file
from trainee import Draft

from helpers.engine import weights
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import (
    count_parameters,
    download_link,
    from_arrays,
    load_weights,
    save_weights,
    to_arrays,
    write_atomically,
)
from sides import draw, fill, jax_side, on_both_sides, run_python, torch_side

M, H, F, I, C = 15, 3, 11, 7, 5  # noqa: E741
SIZES = {"n_blocks": 2, "n_heads": H, "f": F, "max_length": 13}
EVERYTHING = {"positions": "learned", "norm_first": True, **SIZES}


def build(side, seed=0, **options):
    """A predictor with every kind of parameter, each with a value of its own."""
    model = side.build("Predictor", I, M, C, **{**EVERYTHING, **options})
    return model, fill(model, seed)


def assert_arrays_equal(got, expected):
    """Same names, and each array the same to the last bit."""
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        np.testing.assert_array_equal(got[name], value, err_msg=name)


# Names and layout


def test_both_sides_have_the_same_names_and_shapes():
    """The path of attributes, then ``weight`` or ``bias``: no word of a framework."""
    ours, theirs = (build(side)[1] for side in (jax_side, torch_side))
    shapes = [{n: x.shape for n, x in params.items()} for params in (ours, theirs)]
    assert shapes[0] == shapes[1]
    inner = ["attention.qkv", "attention.out", "ffn.linear1", "ffn.linear2"]
    inner += ["norm1", "norm2"]
    layers = [f"encoder.blocks.{n}.{layer}" for n in range(2) for layer in inner]
    layers += ["embed", "encoder.norm", "hidden", "hidden_norm", "output"]
    names = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert set(ours) == names | {"positions.table"}
    assert shapes[0]["embed.weight"] == (I, M), "dense matrices are stored in out"


@on_both_sides
def test_parameters_are_counted(side):
    model, params = build(side)
    assert count_parameters(model) == sum(array.size for array in params.values())


@on_both_sides
def test_arrays_are_copies(side):
    """Writing into them does not write into the model, nor the other way."""
    model, params = build(side)
    taken = to_arrays(model)
    for array in taken.values():
        array[...] = 0
    assert_arrays_equal(to_arrays(model), params)
    given = {name: array.copy() for name, array in params.items()}
    from_arrays(model, given)
    for array in given.values():
        array[...] = 0
    assert_arrays_equal(to_arrays(model), params)


# Round trips

from_each = pytest.mark.parametrize(
    "source", [jax_side, torch_side], ids=lambda s: s.name
)
to_each = pytest.mark.parametrize(
    "target", [jax_side, torch_side], ids=lambda s: s.name
)


@from_each
@to_each
def test_weights_go_through_a_file_unchanged(source, target, tmp_path):
    """All four ways: same names, same bits, and the same outputs in the other model."""
    model, params = build(source)
    (other, before), (copy, _) = build(target, seed=1), build(target, seed=2)
    assert all((before[name] != params[name]).any() for name in params)
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    from_arrays(copy, to_arrays(model))
    for found in other, copy, model:
        assert_arrays_equal(to_arrays(found), params)
    x = draw(2, 3, I).astype(np.float32)
    outputs = [
        side.models.attention_maps(one, side.tensor(x))
        for side, one in [(source, model), (target, other)]
    ]
    for a, b in zip(*outputs, strict=True):
        np.testing.assert_allclose(as_numpy(a), as_numpy(b), atol=1e-5)


def test_both_sides_write_the_same_file(tmp_path):
    """Byte for byte, and with nothing in it but the arrays."""
    (ours, params), (theirs, _) = build(jax_side), build(torch_side, seed=1)
    from_arrays(theirs, params)
    save_weights(ours, tmp_path / "a")
    save_weights(theirs, str(tmp_path / "b"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert_arrays_equal(dict(sorted(load_file(tmp_path / "a").items())), params)


def halved(model):
    """The model in bfloat16."""
    if isinstance(model, torch.nn.Module):
        return model.bfloat16()
    for _, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        param.set_value(param[...].astype("bfloat16"))
    return model


@on_both_sides
def test_a_model_keeps_its_dtype(side):
    """float64 is rounded to the model's dtype; bfloat16 comes out as float32."""
    model, params = build(side)
    wide = {name: x.astype(np.float64) + 1e-12 for name, x in params.items()}
    from_arrays(model, wide)
    assert_arrays_equal(to_arrays(model), params)
    model = halved(model)
    from_arrays(model, wide)
    for name, found in to_arrays(model).items():
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, params[name], rtol=2**-8)
        assert (found.view(np.uint32) & 0xFFFF == 0).all(), "the model was bfloat16"


@on_both_sides
def test_a_bfloat16_file_is_read(side, tmp_path):
    """safetensors' own NumPy reader does not know this dtype."""
    model, params = build(side)
    half = {name: torch.tensor(x).bfloat16() for name, x in params.items()}
    safetensors.torch.save_file(half, tmp_path / "half")
    load_weights(model, tmp_path / "half")
    assert_arrays_equal(
        to_arrays(model), {k: x.float().numpy() for k, x in half.items()}
    )


# Weights of another project

THEIRS = {"qkv": "self_attn.in_proj", "out": "self_attn.out_proj"}
PLACES = {f"attention.{ours}": theirs for ours, theirs in THEIRS.items()}
PLACES |= {f"ffn.linear{n}": f"linear{n}" for n in (1, 2)}
PLACES |= {f"norm{n}": f"norm{n}" for n in (1, 2)}


@on_both_sides
def test_a_checkpoint_of_another_project_is_renamed_and_transposed(side, tmp_path):
    """As the docstring of ``weights`` says: Lightning's file, PyTorch's own layer."""
    torch.manual_seed(0)
    own = torch.nn.TransformerEncoderLayer(
        M, H, F, dropout=0.0, batch_first=True
    ).eval()
    state = {f"net.{name}": x for name, x in own.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "last.ckpt")

    found = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    arrays = {}
    for ours, theirs in PLACES.items():
        joined = "_" if theirs.endswith("in_proj") else "."
        for kind in ("weight", "bias"):
            array = as_numpy(found[f"net.{theirs}{joined}{kind}"])
            arrays[f"{ours}.{kind}"] = array.T
    block = side.build("EncoderBlock", M, H, F)
    from_arrays(block, arrays)
    x = draw(2, 5, M).astype(np.float32)
    with torch.no_grad():
        expected = own(torch.from_numpy(x))
    out, _ = block(side.tensor(x))
    np.testing.assert_allclose(as_numpy(out), expected, atol=1e-5)


# Written whole or not at all


def no_space(*_, **__):
    """A full disk."""
    raise OSError(28, "No space left on device")


def interrupted(*_, **__):
    """Somebody presses Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "name", "failure"),
    [
        (os, "replace", no_space),
        (os, "replace", interrupted),
        (os, "fsync", no_space),
        (os, "fsync", interrupted),
        (weights, "open", partial(Draft, no_space)),
    ],
    ids=["replace", "replace-ctrl-c", "fsync", "fsync-ctrl-c", "write"],
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    place, name, failure, tmp_path, monkeypatch
):
    path = tmp_path / "model.safetensors"
    write_atomically(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(place, name, failure, raising=False)
        with pytest.raises((OSError, KeyboardInterrupt)) as caught:
            write_atomically(path, b"the new one")
    if caught.type is not KeyboardInterrupt:
        assert f"'{path}'" in str(caught.value), "a full disk must say where"
    assert [(p, p.read_bytes()) for p in tmp_path.iterdir()] == [(path, b"old")]


# Read whole or not at all


def error_of(model, path):
    """The error that a file raises, in one line; the model must be as it was."""
    before = {name: value.tobytes() for name, value in to_arrays(model).items()}
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_weights(model, path)
    after = {name: value.tobytes() for name, value in to_arrays(model).items()}
    assert after == before, "the model must be bit for bit as it was"
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return caught.type, message


@on_both_sides
def test_a_damaged_file_raises_an_error(side, tmp_path):
    """Cut off anywhere, or of something else; the whole file is read."""
    model, _ = build(side, seed=1)
    whole = save(build(side)[1])
    header = 8 + int.from_bytes(whole[:8], "little")
    cuts = [0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1]
    cuts += [(header + len(whole)) // 2, len(whole) - 4, len(whole) - 1]
    others = [b"\0" * 5000, b"PK\x03\x04 as torch.save" * 50, b"<!doctype html>" * 50]
    path = tmp_path / "damaged.safetensors"
    for data in [*(whole[:cut] for cut in cuts), *others]:
        path.write_bytes(data)
        kind, message = error_of(model, path)
        assert kind is ValueError, len(data)
        assert "is not a complete safetensors file of weights" in message, len(data)
    path.write_bytes(whole)
    load_weights(model, path)
    for path in tmp_path / "nothing.safetensors", tmp_path:
        kind, message = error_of(model, path)
        assert kind is FileNotFoundError
        assert message == f"no weights file at {path}"


OTHERS = {  # None removes an array
    "missing": ({"hidden.bias": None}, "1 names missing (hidden.bias), 0 unknown ()"),
    "renamed": (
        {"embed.weight": None, "embed.kernel": np.ones(2)},
        "1 names missing (embed.weight), 1 unknown (embed.kernel)",
    ),
    "out in": (
        {"embed.weight": np.ones((M, I))},
        f"embed.weight has shape ({M}, {I}), expected ({I}, {M})",
    ),
    "another axis": (
        {"output.bias": np.zeros((1, C))},
        f"output.bias has shape (1, {C}), expected ({C},)",
    ),
}


@on_both_sides
@pytest.mark.parametrize("case", OTHERS)
def test_a_file_of_another_model_raises_an_error(side, case, tmp_path):
    """The message says which parameter, and both shapes or what is missing."""
    model, _ = build(side, seed=1)
    path, (changes, message) = tmp_path / "other.safetensors", OTHERS[case]
    arrays = build(side)[1] | changes
    save_file({name: x for name, x in arrays.items() if x is not None}, path)
    expected = f"{path}: these weights are of another model: {message}"
    assert error_of(model, path) == (ValueError, expected)


NUMBERS = {
    "nan": (np.nan, "1 that are not, or not as {}: the first is nan"),
    "inf": (-np.inf, "1 that are not, or not as {}: the first is -inf"),
    "overflow": (1e39, "1 that are not, or not as {}: the first is 1e+39"),
    "complex": (1j, "complex128"),
    "text": ("a", "<U32"),
}


@on_both_sides
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", NUMBERS)
def test_a_number_that_is_not_finite_raises_an_error(side, half, case):
    """Before anything is changed, though all other arrays are good."""
    model, params = build(side)
    model = halved(model) if half else model
    before = to_arrays(model)
    number, said = NUMBERS[case]
    arrays = {name: 2.0 * x for name, x in params.items()}
    bad = arrays["output.weight"].astype(np.result_type(np.float64, type(number)))
    bad[2, 3] = number
    with pytest.raises(ValueError, match=r"numbers in output\.weight, got") as caught:
        from_arrays(model, arrays | {"output.weight": bad})
    assert said.format("bfloat16" if half else "float32") in str(caught.value)
    assert_arrays_equal(to_arrays(model), before)


def test_a_file_of_whole_numbers_raises_an_error(tmp_path):
    model, params = build(torch_side)
    save_file(params | {"output.bias": np.zeros(C, np.int64)}, tmp_path / "whole")
    _, message = error_of(model, tmp_path / "whole")
    assert message.endswith("expected output.bias as F64, F32, F16 or BF16, got I64")


# Each side without the other

LOADED = "print(sorted({'flax', 'jax', 'torch'} & set(sys.modules)))"
IN_TORCH = """
from helpers.torch import FeedForward
model = FeedForward(15, 11)
check = lambda: True
"""
IN_JAX = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
from flax import nnx
from helpers.jax import FeedForward
second = jax.devices("cpu")[1]
with jax.default_device(second):
    model = FeedForward(15, 11, rngs=nnx.Rngs(0))
check = lambda: model.linear1.kernel[...].devices() == {second}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("writer", "there", "loaded"),
    [(jax_side, IN_TORCH, ["torch"]), (torch_side, IN_JAX, ["flax", "jax"])],
    ids=["jax-torch", "torch-jax"],
)
def test_a_process_with_one_framework_reads_and_writes_files_of_the_other(
    writer, there, loaded, tmp_path
):
    """The same bytes, without the other framework, and each array on its device."""
    given, back = tmp_path / "given.safetensors", tmp_path / "back.safetensors"
    model = writer.build("FeedForward", M, F)
    fill(model)
    save_weights(model, given)
    said = run_python(
        f"import sys; from helpers.engine import weights\n{there}\nassert check()\n"
        f"weights.load_weights(model, {str(given)!r}); assert check()\n"
        f"weights.save_weights(model, {str(back)!r}); {LOADED}"
    )
    assert said == str(loaded)
    assert back.read_bytes() == given.read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_file_of_weights_is_as_readable_as_any_new_file(tmp_path):
    """What others may read follows the umask, not the way the file was written."""
    model, _ = build(jax_side)
    save_weights(model, tmp_path / "weights.safetensors")
    (tmp_path / "other").touch()
    modes = [path.stat().st_mode for path in sorted(tmp_path.iterdir())]
    assert modes[0] == modes[1]


# Links that contain the weights


@on_both_sides
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("notebook", [False, True])
def test_a_link_contains_the_weights_and_what_is_said_about_them(
    side, half, notebook, monkeypatch
):
    """Shown by a notebook; a plain script, perhaps without IPython, gets the text."""
    display = pytest.importorskip("IPython.display") if notebook else None
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    model, params = build(side)
    said = {"alphabet": "\n ab<ö", "merges": "[[0, 1]]"}
    link = download_link(model, "a & b.safetensors", half=half, metadata=said)
    link = link.data if notebook else link
    data = b64decode(re.search(r'base64,([^"]*)"', link)[1])
    dtype = np.float16 if half else np.float32
    assert_arrays_equal(load(data), {n: x.astype(dtype) for n, x in params.items()})
    size = int.from_bytes(data[:8], "little")
    assert json.loads(data[8 : 8 + size])["__metadata__"] == said
    assert 'download="a &amp; b.safetensors"' in link
    assert link.endswith(f"({len(data) / 1024:.0f} KiB)")


@on_both_sides
def test_a_number_too_large_for_half_precision_raises_an_error(side):
    model, params = build(side)
    params["output.bias"][2] = -1e5
    from_arrays(model, params)
    with pytest.raises(ValueError, match=r"up to 65,504 in output\.bias .* got 1e\+05"):
        download_link(model, "x.safetensors", half=True)
    download_link(model, "x.safetensors")
