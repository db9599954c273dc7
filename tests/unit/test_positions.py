"""Positions: the formula of 2017, what follows from it, and a learned table instead."""

import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers.engine.shapes import as_numpy
from helpers.engine.weights import save_weights, to_arrays
from helpers.reference import sinusoidal_positions
from sides import draw, on_both_sides

B, S, LONGEST = 2, 11, 37
even_and_odd = pytest.mark.parametrize("m", [48, 23, 2, 1])


def table_of(side, m, length=LONGEST):
    """The table that a side adds, seen as what it makes of zeros."""
    zeros = side.tensor(np.zeros((1, length, m)))
    return as_numpy(side.build("SinusoidalPositions", m, length)(zeros))[0]


def formula(pos, i, m):
    """Feature ``i`` of position ``pos``, as in Vaswani et al. 2017, sec. 3.5."""
    if i % 2 == 0:
        return math.sin(pos / 10000 ** (i / m))
    return math.cos(pos / 10000 ** ((i - 1) / m))


@even_and_odd
def test_the_reference_is_the_formula(m):
    """Number by number, for even and odd ``m``."""
    expected = [[formula(pos, i, m) for i in range(m)] for pos in range(LONGEST)]
    found = sinusoidal_positions(LONGEST, m)
    assert found.shape == (LONGEST, m)
    np.testing.assert_allclose(found, expected, atol=1e-12, rtol=0)


@on_both_sides
@even_and_odd
def test_both_sides_add_the_table_of_the_reference(side, m):
    """To 1e-6, at every position up to the longest."""
    found = table_of(side, m)
    np.testing.assert_allclose(found, sinusoidal_positions(LONGEST, m), atol=1e-6)


@on_both_sides
@pytest.mark.parametrize("kind", ["SinusoidalPositions", "LearnedPositions"])
def test_positions_are_added_to_each_sequence_from_the_start(side, kind):
    """A shorter sequence gets the first rows of the table, each of a batch the same."""
    m = 23
    model = side.build(kind, m, LONGEST)
    x = draw(B, S, m).astype(np.float32)
    table = as_numpy(model(side.tensor(np.zeros((1, LONGEST, m)))))[0]
    assert np.abs(table).max() > 0
    out = as_numpy(model(side.tensor(x)))
    np.testing.assert_allclose(out, x + table[:S], atol=1e-6)


@on_both_sides
def test_a_learned_table_has_one_number_per_position_and_feature(side):
    """``max_length · m`` parameters, small and not all alike at the start."""
    m = 23
    model = side.build("LearnedPositions", m, LONGEST)
    (name,), (table,) = zip(*to_arrays(model).items(), strict=True)
    assert (name, table.shape) == ("table", (LONGEST, m))
    assert sum(math.prod(p.shape) for p in side.parameters(model)) == LONGEST * m
    assert table.std() == pytest.approx(0.02, rel=0.1)
    assert abs(table.mean()) < 0.005


@on_both_sides
def test_a_learned_table_learns(side):
    """Its gradient counts how often a position occurs; behind the end that is 0."""
    m = 23
    model = side.build("LearnedPositions", m, LONGEST)
    x = side.tensor(draw(B, S, m))
    grads, _ = side.model_grads(model, lambda out: out.sum(), x)
    np.testing.assert_array_equal(grads["table"][:S], B)
    np.testing.assert_array_equal(grads["table"][S:], 0)


@on_both_sides
def test_the_sinusoidal_table_is_no_parameter(side, tmp_path):
    """It is not trained, and no file of weights carries it."""
    assert side.parameters(side.build("SinusoidalPositions", 24, LONGEST)) == []
    sizes = {"n_blocks": 1, "n_heads": 1, "f": 7, "max_length": LONGEST}
    models = {
        kind: side.build("Predictor", 5, 24, 2, positions=kind, **sizes)
        for kind in ("sinusoidal", "learned", "rotary", "none")
    }
    names = {}
    for kind, model in models.items():
        save_weights(model, tmp_path / kind)
        names[kind] = set(load_file(tmp_path / kind))
    assert names["sinusoidal"] == names["rotary"] == names["none"]
    assert names["learned"] - names["none"] == {"positions.table"}


@on_both_sides
@pytest.mark.parametrize("offset", [0, 5, 301])
@pytest.mark.parametrize("d", [2, 14])
def test_rotary_multiplies_complex_numbers_by_the_phase_of_a_position(side, offset, d):
    """Source: Su et al. 2021, sec. 3.4.2: pair ``i`` turns by ``p / 10000^(2i/d)``."""
    x = draw(B, 3, S, d)
    angles = (offset + np.arange(S))[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)  # b h s d/2
    found = as_numpy(side.models.rotary(side.tensor(x), offset))
    expected = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    np.testing.assert_allclose(found, expected, atol=1e-5 * (1 + offset / 10), rtol=0)


@on_both_sides
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rotary_computes_in_float32_and_keeps_the_dtype(side, dtype):
    """At position 300 an angle in half precision would be off by a radian."""
    x = side.tensor(draw(S, 14), dtype)
    found = side.models.rotary(x, 300)
    assert str(found.dtype).removeprefix("torch.") == dtype
    exact = as_numpy(side.models.rotary(side.tensor(as_numpy(x)), 300))
    epsilon = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 0}[dtype]
    found = as_numpy(found).astype(np.float32)
    np.testing.assert_allclose(found, exact, atol=1e-7, rtol=1.01 * epsilon)


@on_both_sides
def test_an_odd_number_of_features_has_no_pairs(side):
    with pytest.raises(ValueError, match="pairs of features, got d = 7"):
        side.models.rotary(side.tensor(draw(S, 7)))


@on_both_sides
def test_a_rotary_model_sees_distances_only(side):
    """Moved by some positions, a layer gives the same outputs; without, it does not."""
    layer = side.build("RotaryAttention", 24, 2)
    x = side.tensor(draw(1, S, 24))
    q, k, v = layer.project(x)
    moved = layer.project(x, offset=13)
    ours = as_numpy(side.models.attention(q, k, v)[0])
    np.testing.assert_allclose(
        as_numpy(side.models.attention(*moved)[0]), ours, atol=1e-5
    )
    mixed = as_numpy(side.models.attention(moved[0], k, v)[0])
    assert np.abs(mixed - ours).max() > 1e-3


@on_both_sides
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_model_keeps_its_dtype(side, positions, dtype):
    """Outputs and maps of a model in half precision are not turned into float32."""
    sizes = {"n_blocks": 1, "n_heads": 2, "f": 7, "positions": positions}
    model = side.in_dtype(side.build("Predictor", 5, 24, 2, **sizes), dtype)
    pair = model(side.tensor(draw(B, S, 5), dtype), return_maps=True)
    assert {str(x.dtype).removeprefix("torch.") for x in pair} == {dtype}
