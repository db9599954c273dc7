"""One file of weights serves both frameworks, and a bad file changes nothing."""

import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.numpy import load_file, save_file

from helpers.weights import (
    as_numpy,
    count_parameters,
    from_arrays,
    load_weights,
    save_weights,
    to_arrays,
    write_atomically,
)
from sides import draw, fill, jax_side, on_both_sides, torch_side

SIDES = jax_side, torch_side
CROSSWISE = pytest.mark.parametrize(
    ("source", "target"),
    [pytest.param(a, b, id=f"{a.name}-{b.name}") for a in SIDES for b in SIDES],
)
SIZES = {"n_blocks": 2, "n_heads": 3, "f": 11, "max_length": 13}


def build(side, seed=0):
    """A predictor with every kind of parameter, each with a value of its own."""
    options = {"positions": "learned", "norm_first": True, **SIZES}
    model = side.build("Predictor", 7, 15, 5, **options)
    return model, fill(model, seed)


def assert_equal(got, expected):
    """Same names, and each array the same to the last bit."""
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_names_and_shapes_belong_to_neither_framework():
    ours, theirs = (build(side)[1] for side in (jax_side, torch_side))
    shapes = [{n: x.shape for n, x in params.items()} for params in (ours, theirs)]
    assert shapes[0] == shapes[1]
    assert shapes[0]["embed.weight"] == (7, 15), "dense matrices are stored in out"
    assert {"encoder.blocks.1.attention.qkv.bias", "positions.table"} <= shapes[
        0
    ].keys()


@on_both_sides
def test_arrays_are_copies_and_counted(side):
    model, params = build(side)
    for array in to_arrays(model).values():
        array[...] = 0
    assert_equal(to_arrays(model), params)
    assert count_parameters(model) == sum(array.size for array in params.values())


def test_a_matrix_that_two_layers_share_is_one_parameter():
    for side, name in ((jax_side, "kernel"), (torch_side, "weight")):
        net = side.build("SwiGLU", 7, 5)
        setattr(net.up, name, getattr(net.gate, name))
        assert to_arrays(net).keys() == {"down.weight", "gate.weight"}
        assert count_parameters(net) == 70


@CROSSWISE
def test_statistics_go_through_a_file_but_are_not_counted(source, target, tmp_path):
    """Those of a BatchNorm: its outputs are the same in the other framework."""
    kinds, outputs = {"jax": nnx.BatchNorm, "torch": torch.nn.BatchNorm1d}, []
    one, other = (side.build(kinds[side.name], 7) for side in (source, target))
    names = ["bias", "mean", "var", "weight"]
    from_arrays(one, {name: draw(7, seed=i) ** 2 for i, name in enumerate(names)})
    save_weights(one, tmp_path / "a")
    load_weights(other, tmp_path / "a")
    for side, model in ((source, one), (target, other)):
        model.eval()
        outputs.append(as_numpy(model(side.tensor(draw(5, 7, seed=9)))))
    np.testing.assert_allclose(*outputs, atol=1e-5)
    assert count_parameters(one) == 14


def test_pytorch_knows_that_weights_have_changed():
    layer = torch_side.build("projection", 7, 5)
    loss = layer.weight.square().sum()
    from_arrays(layer, to_arrays(layer))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@CROSSWISE
def test_weights_go_through_a_file_unchanged(source, target, tmp_path):
    """All four ways: the same bits, and the same outputs in the other model."""
    (model, params), (other, _) = build(source), build(target, seed=1)
    save_weights(model, tmp_path / "a")
    load_weights(other, tmp_path / "a")
    assert_equal(to_arrays(other), params)
    assert_equal(load_file(tmp_path / "a"), params)
    x, outputs = draw(2, 3, 7).astype(np.float32), []
    for side, one in ((source, model), (target, other)):
        outputs.append(as_numpy(side.models.attention_maps(one, side.tensor(x))[0]))
    np.testing.assert_allclose(*outputs, atol=1e-5)


@on_both_sides
def test_a_model_keeps_its_dtype(side):
    """float64 is rounded to bfloat16, which comes out as float32."""
    if side is torch_side:
        model = torch.nn.Linear(3, 5).bfloat16()
    else:
        model = nnx.Linear(3, 5, param_dtype="bfloat16", rngs=nnx.Rngs(0))
    arrays = {"weight": draw(3, 5), "bias": draw(5, seed=1)}
    from_arrays(model, arrays)
    for name, x in to_arrays(model).items():
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, arrays[name], rtol=2**-8)
    param = model.weight if side is torch_side else model.kernel[...]
    assert "bfloat16" in str(param.dtype)


def changed(params, kind):
    """Arrays that do not fit the model, and what the error says."""
    some = "hidden.bias"
    if kind == "missing":
        return {k: x for k, x in params.items() if k != some}, f"{some} is missing"
    if kind == "unknown":
        return {**params, "extra": np.zeros(2)}, "extra is unknown"
    if kind == "shape":
        return {**params, some: np.zeros(3)}, f"{some} has"
    wrong = np.full(15, np.nan if kind == "NaN" else 1e300)
    return {**params, some: wrong}, f"expected finite numbers in {some}"


@pytest.mark.parametrize("kind", ["missing", "unknown", "shape", "NaN", "large"])
@on_both_sides
def test_arrays_of_another_model_change_nothing(side, kind):
    model, params = build(side)
    arrays, says = changed(params, kind)
    with pytest.raises(ValueError, match=says):
        from_arrays(model, {k: x + 1 if k == "a" else x for k, x in arrays.items()})
    assert_equal(to_arrays(model), params)


@on_both_sides
def test_a_damaged_file_changes_nothing(side, tmp_path):
    model, params = build(side)
    save_file({k: x + 1 for k, x in params.items()}, tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:-5])
    with pytest.raises(ValueError, match="cut: "):
        load_weights(model, tmp_path / "cut")
    assert_equal(to_arrays(model), params)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    write_atomically(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "a", 5)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
