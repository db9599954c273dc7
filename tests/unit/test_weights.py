"""One file of weights serves both frameworks, and a bad file changes nothing."""

import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

from helpers import weights
from helpers.shapes import as_numpy
from helpers.weights import (
    copy_weights,
    from_arrays,
    load_weights,
    save_weights,
    to_arrays,
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


@on_both_sides
def test_dense_matrices_are_in_out(side):
    """``x @ W + b`` is what the layer does, with ``W`` as it is stored."""
    model = side.build("FeedForward", M, F)
    arrays = fill(model)
    assert arrays["linear1.weight"].shape == (M, F)
    assert arrays["linear2.weight"].shape == (F, M)
    x = draw(2, 3, M).astype(np.float32)
    expected = x @ arrays["linear1.weight"] + arrays["linear1.bias"]
    found = as_numpy(model.linear1(side.tensor(x)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


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
    other, before = build(target, seed=1)
    assert all((before[name] != params[name]).any() for name in params)
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    assert_arrays_equal(to_arrays(other), params)
    x = draw(2, 3, I).astype(np.float32)
    outputs = [
        side.models.attention_maps(one, side.tensor(x))
        for side, one in [(source, model), (target, other)]
    ]
    for a, b in zip(*outputs, strict=True):
        np.testing.assert_allclose(as_numpy(a), as_numpy(b), atol=1e-5)


@from_each
@to_each
def test_weights_are_copied_unchanged(source, target):
    """``copy_weights`` does the same without a file, and leaves the source alone."""
    (model, params), (other, _) = build(source), build(target, seed=1)
    copy_weights(model, other)
    assert_arrays_equal(to_arrays(other), params)
    assert_arrays_equal(to_arrays(model), params)


def test_both_sides_write_the_same_file(tmp_path):
    """Byte for byte, and with nothing in it but the arrays."""
    (ours, params), (theirs, _) = build(jax_side), build(torch_side, seed=1)
    copy_weights(ours, theirs)
    save_weights(ours, tmp_path / "a")
    save_weights(theirs, str(tmp_path / "b"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert_arrays_equal(dict(sorted(load_file(tmp_path / "a").items())), params)


@on_both_sides
def test_a_model_keeps_its_dtype(side, tmp_path):
    """Numbers in float64 are rounded to the float32 of the model."""
    model, params = build(side)
    wide = {name: x.astype(np.float64) + 1e-12 for name, x in params.items()}
    from_arrays(model, wide)
    assert_arrays_equal(to_arrays(model), params)


# Written whole or not at all


def no_space(*_, **__):
    """A full disk."""
    raise OSError(28, "No space left on device")


def interrupted(*_, **__):
    """Somebody presses Ctrl-C."""
    raise KeyboardInterrupt


class HalfWritten:
    """A file that takes half of what it is given and then fails."""

    def __init__(self, path, mode):
        self.file = path.open(mode)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        no_space()


@on_both_sides
@pytest.mark.parametrize("old", [True, False], ids=["over an old file", "new"])
@pytest.mark.parametrize(
    ("place", "name", "failure"),
    [
        (os, "replace", no_space),
        (os, "replace", interrupted),
        (os, "fsync", no_space),
        (os, "fsync", interrupted),
        (weights, "open", HalfWritten),
    ],
    ids=["replace", "replace-ctrl-c", "fsync", "fsync-ctrl-c", "write"],
)
def test_a_write_that_fails_leaves_the_old_file_and_no_litter(
    side, old, place, name, failure, tmp_path, monkeypatch
):
    """Whichever step fails, what was there is there, and nothing else is."""
    path = tmp_path / "model.safetensors"
    (one, params), (other, _) = build(side), build(side, seed=1)
    if old:
        save_weights(one, path)
    kept = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert len(kept) == old
    with monkeypatch.context() as patch:
        patch.setattr(place, name, failure, raising=False)
        with pytest.raises((OSError, KeyboardInterrupt)):
            save_weights(other, path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == kept
    save_weights(one, path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert set(load_file(path)) == set(params)


# Read whole or refused


def refusal(model, path):
    """The sentence with which a file is refused; the model must be as it was."""
    before = {name: value.tobytes() for name, value in to_arrays(model).items()}
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_weights(model, path)
    after = {name: value.tobytes() for name, value in to_arrays(model).items()}
    assert after == before, "a refused file must leave the model bit for bit as it was"
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return caught.type, message


@on_both_sides
def test_a_file_cut_off_anywhere_is_refused(side, tmp_path):
    """Empty, in the length, in the header, at its end, in the data, one byte short."""
    model, _ = build(side, seed=1)
    whole = save(build(side)[1])
    header = 8 + int.from_bytes(whole[:8], "little")
    cuts = [0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1]
    path = tmp_path / "cut.safetensors"
    for cut in [*cuts, (header + len(whole)) // 2, len(whole) - 4, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        kind, message = refusal(model, path)
        assert kind is ValueError, cut
        assert "is not a complete safetensors file of weights" in message, cut
    path.write_bytes(whole)
    load_weights(model, path)


@on_both_sides
@pytest.mark.parametrize(
    "data",
    [
        np.random.default_rng(0).bytes(5000),
        b"\0" * 5000,
        b"PK\x03\x04 an archive, as torch.save writes them" * 50,
        b"<!doctype html><title>404</title>" * 50,
        b"\x02\0\0\0\0\0\0\0{}" + b"rest",
    ],
    ids=["noise", "zeros", "archive", "web page", "rest"],
)  # fmt: skip
def test_a_file_of_something_else_is_refused(side, data, tmp_path):
    """What a broken download or another program may leave under that name."""
    path = tmp_path / "garbage.safetensors"
    path.write_bytes(data)
    kind, message = refusal(build(side)[0], path)
    assert kind is ValueError
    assert "is not a complete safetensors file of weights" in message


@on_both_sides
def test_a_file_that_is_not_there_is_refused(side, tmp_path):
    """Nor is a folder a file."""
    model, _ = build(side)
    for path in tmp_path / "nothing.safetensors", tmp_path:
        kind, message = refusal(model, path)
        assert kind is FileNotFoundError
        assert message == f"no weights file at {path}"


ONE = np.ones(1, np.float32)


def without(params, name):
    """All parameters but one."""
    return {key: value for key, value in params.items() if key != name}


@on_both_sides
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda params: without(params, "hidden.bias"),
            "1 names missing (hidden.bias), 0 unknown ()",
        ),
        (
            lambda params: params | {"cls.weight": ONE},
            "0 names missing (), 1 unknown (cls.weight)",
        ),
        (
            lambda params: (
                without(params, "embed.weight") | {"embed.kernel": np.ones(2)}
            ),
            "1 names missing (embed.weight), 1 unknown (embed.kernel)",
        ),
        (
            lambda params: params | {"embed.weight": params["embed.weight"].T.copy()},
            f"embed.weight has shape ({M}, {I}), expected ({I}, {M})",
        ),
        (
            lambda params: params | {"positions.table": params["positions.table"][:-1]},
            f"positions.table has shape (12, {M}), expected (13, {M})",
        ),
        (
            lambda params: params | {"output.bias": np.zeros((1, C), np.float32)},
            f"output.bias has shape (1, {C}), expected ({C},)",
        ),
    ],
    ids=["missing", "unknown", "renamed", "out-in", "shorter", "another axis"],
)
def test_a_file_of_another_model_is_refused(side, change, said, tmp_path):
    """The sentence says which parameter, and both shapes or what is missing."""
    model, _ = build(side, seed=1)
    path = tmp_path / "other.safetensors"
    save_file(change(build(side)[1]), path)
    kind, message = refusal(model, path)
    assert kind is ValueError
    assert message == f"{path}: these weights are of another model: {said}"


@from_each
@to_each
@pytest.mark.parametrize(
    "options",
    [{"n_blocks": 3}, {"norm": "rms"}, {"positions": "none"}, {"f": F + 2}],
    ids=str,
)
def test_a_model_of_other_options_is_refused(source, target, options, tmp_path):
    """Another depth, norm, width or no positions: refused in all four directions."""
    save_weights(build(source, **options)[0], tmp_path / "model")
    model, params = build(target, seed=1)
    _, message = refusal(model, tmp_path / "model")
    assert "these weights are of another model" in message
    with pytest.raises(ValueError, match="these weights are of another model"):
        copy_weights(build(source, **options)[0], model)
    assert_arrays_equal(to_arrays(model), params)


# Each side without the other

LOADED = "print(sorted({'flax', 'jax', 'torch'} & set(sys.modules)))"


def test_what_belongs_to_neither_framework_loads_neither():
    """The reference leans on nothing that it is there to check."""
    modules = "checks, plots, reference, shapes, weights"
    assert run_python(f"import sys; from helpers import {modules}; {LOADED}") == "[]"


@pytest.mark.parametrize(
    ("writer", "reader", "build_there", "loaded"),
    [
        (
            jax_side,
            "model_torch",
            "model_torch.FeedForward(15, 11)",
            "['torch']",
        ),
        (
            torch_side,
            "model_jax",
            "model_jax.FeedForward(15, 11, rngs=model_jax.nnx.Rngs(0))",
            "['flax', 'jax']",
        ),
    ],
    ids=["jax-torch", "torch-jax"],
)
def test_a_process_with_one_framework_reads_and_writes_files_of_the_other(
    writer, reader, build_there, loaded, tmp_path
):
    """It reads the file, writes the same bytes, and never loads the other framework."""
    given, back = tmp_path / "given.safetensors", tmp_path / "back.safetensors"
    model = writer.build("FeedForward", M, F)
    fill(model)
    save_weights(model, given)
    said = run_python(
        f"import sys; from helpers import weights, {reader}; model = {build_there};"
        f"weights.load_weights(model, {str(given)!r});"
        f"weights.save_weights(model, {str(back)!r}); {LOADED}"
    )
    assert said == loaded
    assert back.read_bytes() == given.read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_file_of_weights_is_as_readable_as_any_new_file(tmp_path):
    """What others may read follows the umask, not the way the file was written."""
    model, _ = build(jax_side)
    save_weights(model, tmp_path / "weights.safetensors")
    (tmp_path / "other").touch()
    modes = [path.stat().st_mode for path in sorted(tmp_path.iterdir())]
    assert modes[0] == modes[1]


def test_half_precision_comes_out_as_float32_from_pytorch():
    """NumPy has no bfloat16; every bfloat16 number is a float32 number."""
    model, expected = build(torch_side)
    got = to_arrays(model.bfloat16())
    for name, values in expected.items():
        assert got[name].dtype == np.float32
        np.testing.assert_allclose(got[name], values, rtol=2**-8)
