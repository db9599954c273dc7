"""Positions: the formula of 2017, rotary positions, a learned table; the predictor."""

import math
import re

import jax
import numpy as np
import pytest
from flax import nnx

from helpers.reference import sinusoidal_positions
from helpers.show import DRAWINGS
from helpers.weights import as_numpy, from_arrays, to_arrays
from sides import assert_close, draw, fill, jax_side, on_both_sides, torch_side

B, S, LONGEST = 2, 11, 37
SIZES = {"n_blocks": 2, "n_heads": 2, "f": 7}
each_kind = pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary", "none"])


def table_of(side, kind, m):
    """The table that a kind of positions adds, seen as what it makes of zeros."""
    zeros = side.tensor(np.zeros((1, LONGEST, m), np.float32))
    return as_numpy(side.build(kind, m, LONGEST)(zeros))[0]


@pytest.mark.parametrize("m", [48, 23])
def test_sines_and_cosines_are_those_of_the_formula(m):
    """Source: Vaswani et al. 2017, sec. 3.5; an odd ``m`` ends on a sine."""

    def formula(pos, i):
        return (math.cos if i % 2 else math.sin)(pos / 10000 ** ((i - i % 2) / m))

    expected = [[formula(pos, i) for i in range(m)] for pos in range(LONGEST)]
    np.testing.assert_allclose(sinusoidal_positions(LONGEST, m), expected, atol=1e-12)
    for side in (jax_side, torch_side):
        assert_close(table_of(side, "SinusoidalPositions", m), expected, 1e-6)


@on_both_sides
@pytest.mark.parametrize("kind", ["SinusoidalPositions", "LearnedPositions"])
def test_positions_are_added_from_the_start_of_the_table(side, kind):
    """A shorter sequence gets the first rows."""
    x, table = draw(B, S, 23), table_of(side, kind, 23)
    model = side.build(kind, 23, LONGEST)
    assert table.std() > 0.01
    assert_close(model(side.tensor(x)), x + table[:S], 1e-6)


@on_both_sides
def test_a_learned_table_is_small_and_only_rows_that_are_read_learn(side):
    model = side.build("LearnedPositions", 23, LONGEST)
    (table,) = to_arrays(model).values()
    assert table.shape == (LONGEST, 23)
    assert table.std() == pytest.approx(0.02, rel=0.1)
    grads = side.grads(model, lambda out: out.sum(), side.tensor(draw(B, S, 23)))
    np.testing.assert_array_equal(grads["table"][:S], B)
    np.testing.assert_array_equal(grads["table"][S:], 0)


@on_both_sides
def test_only_a_learned_table_is_a_parameter(side):
    models = {
        kind: to_arrays(side.build("Predictor", 5, 24, 2, positions=kind, **SIZES))
        for kind in side.models.POSITIONS
    }
    extra = {kind: {*arrays} - {*models["none"]} for kind, arrays in models.items()}
    assert extra.pop("learned") == {"positions.table"}
    assert not any(extra.values())


@on_both_sides
@pytest.mark.parametrize(("d", "offset"), [(2, 5), (14, 301)])
def test_rotary_multiplies_complex_numbers_by_the_phase_of_a_position(side, d, offset):
    """Source: Su et al. 2021, sec. 3.4.2: pair ``i`` turns by ``p / 10000^(2i/d)``."""
    x = draw(B, 3, S, d)
    angles = (offset + np.arange(S))[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)  # b h s d/2
    expected = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    atol = 1e-5 * (1 + offset / 10)
    assert_close(side.models.rotary(side.tensor(x), offset), expected, atol)


@on_both_sides
def test_rotary_computes_in_float32_and_needs_pairs(side):
    """At position 300 an angle in half precision would be off by a radian."""
    x = side.tensor(draw(S, 14), "bfloat16")
    found = side.models.rotary(x, 300)
    assert "bfloat16" in str(found.dtype)
    exact = as_numpy(side.models.rotary(side.tensor(as_numpy(x)), 300))
    np.testing.assert_allclose(as_numpy(found), exact, atol=1e-7, rtol=1.01 * 2**-8)


@on_both_sides
def test_rotary_layers_rotate_queries_and_keys_alone(side):
    """Never the values."""
    layer, x = side.build("RotaryAttention", 12, 3), side.tensor(draw(B, S, 12))
    plain = side.build("MultiHeadAttention", 12, 3).project(x)
    whole = layer.project(x, offset=5)
    for i, part in enumerate("qkv"):
        rotated = plain[i] if part == "v" else side.models.rotary(plain[i], 5)
        assert_close(whole[i], rotated, 1e-6, part)


@on_both_sides
def test_a_rotary_layer_sees_distances_only(side):
    """Moved by some positions it gives the same outputs; if queries alone move, not."""
    layer, x = side.build("RotaryAttention", 24, 2), side.tensor(draw(1, S, 24))
    q, k, v = layer.project(x)
    moved = layer.project(x, offset=13)
    ours = as_numpy(side.models.attention(q, k, v)[0])
    assert_close(side.models.attention(*moved)[0], ours)
    mixed = as_numpy(side.models.attention(moved[0], k, v)[0])
    assert np.abs(mixed - ours).max() > 1e-3


@each_kind
def test_the_predictors_of_both_frameworks_agree(kind):
    """Outputs, maps and gradients with the same weights, and padding that is hidden."""
    x, mask, arrays, found = draw(B, S, 5), np.ones((B, 1, 1, S), bool), {}, []
    mask[1, ..., 7:] = False
    for side in (jax_side, torch_side):
        model = side.build("Predictor", 5, 12, 3, positions=kind, **SIZES)
        arrays = arrays or fill(model)
        from_arrays(model, arrays)
        given = side.tensor(x), side.mask(mask)
        out, maps = side.models.attention_maps(model, *given)
        grads = side.grads(model, lambda out: (out**2).mean(), *given)
        found.append({"out": as_numpy(out), "maps": as_numpy(maps), **grads})
        whole = side.tensor((9 * x).astype(int))  # whole numbers are features, too
        found[-1]["of whole numbers"] = as_numpy(model(whole))
    one, other = found
    assert one["maps"].shape == (2, B, 2, S, S)
    assert {*one} == {*other} > {*arrays}
    for name, array in one.items():
        assert_close(other[name], array, 1e-4, name)


@on_both_sides
@each_kind
def test_without_positions_and_only_then_order_has_no_effect(side, kind):
    """Shuffled inputs give outputs that are shuffled in the same way."""
    model = side.build("Predictor", 5, 12, 3, positions=kind, **SIZES)
    fill(model)
    x, order = draw(B, S, 5), np.random.default_rng(7).permutation(S)
    out = as_numpy(side.models.attention_maps(model, side.tensor(x))[0])
    shuffled = side.models.attention_maps(model, side.tensor(x[:, order]))[0]
    moved = np.abs(as_numpy(shuffled) - out[:, order]).max()
    assert moved < 1e-5 if kind == "none" else moved > 0.01


def test_jax_builds_a_model_with_sinusoids_under_jit():
    """And by its shapes alone: the table is part of the state."""

    def make():
        return jax_side.build("Predictor", 5, 12, 3, **SIZES)

    x, empty = jax_side.tensor(draw(2, 7, 5)), nnx.eval_shape(make)
    assert_close(nnx.jit(make)()(x), make()(x))
    assert len(jax.tree.leaves(empty)) == len(jax.tree.leaves(make()))


@on_both_sides
def test_dropout_is_in_every_branch_and_before_the_output(side):
    model = side.build("Predictor", 5, 12, 3, **SIZES, dropout=0.4)
    found = side.rates(model)
    assert found.pop("dropout") == 0.4
    assert len(found) == 4 and {*found.values()} == {0.4}  # two in each block


@on_both_sides
@pytest.mark.parametrize("pool", ["mean", "first", None])
@pytest.mark.parametrize("ids", [False, True])
def test_padding_changes_no_output_and_is_in_no_mean(side, ids, pool):
    """A padded sequence has the outputs that it has alone, of ids and of features."""
    model = side.build("Predictor", 5, 12, 3, ids=ids, pool=pool, **SIZES)
    x = np.random.default_rng(0).integers(5, size=(B, S)) if ids else draw(B, S, 5)
    real = np.arange(S) < np.array([[S], [7]])
    out = as_numpy(model(side.tensor(x), real=side.tensor(real)))
    assert out.shape == ((B, S, 3) if pool is None else (B, 3))
    alone = as_numpy(model(side.tensor(x[1:, :7])))[0]
    assert_close(out[1][:7] if pool is None else out[1], alone)
    causal = side.tensor(np.tri(S, dtype=bool))
    both = model(side.tensor(x), causal, real=side.tensor(real))
    cut = model(side.tensor(x[1:, :7]), side.tensor(np.tri(7, dtype=bool)))
    assert_close(as_numpy(both)[1][:7] if pool is None else both[1], as_numpy(cut)[0])


@on_both_sides
def test_ids_and_one_hot_features_give_the_same_outputs(side):
    """A linear layer of one-hot vectors is a table; the mean is over all elements."""
    ids = np.random.default_rng(0).integers(5, size=(B, S))
    found, arrays = [], {}
    for kind, x in ((True, ids), (False, np.eye(5)[ids])):
        model = side.build("Predictor", 5, 12, 3, ids=kind, pool="mean", **SIZES)
        arrays = arrays | {"embed.bias": np.zeros(12)} if arrays else to_arrays(model)
        from_arrays(model, arrays)
        found.append(as_numpy(model(side.tensor(x))))
    assert_close(*found)
    every = side.build("Predictor", 5, 12, 3, **SIZES)
    from_arrays(every, arrays)
    vectors = as_numpy(every.encoder(every.positions(every.embed(side.tensor(x)))))
    hidden = every.hidden(side.tensor(vectors.mean(axis=1)))
    relu = np.maximum(as_numpy(every.hidden_norm(hidden)), 0)
    assert_close(every.output(side.tensor(relu)), found[0])


@on_both_sides
def test_the_walk_through_shows_the_numbers_of_the_model(side):
    model = side.build("Predictor", 5, 4, 2, ids=True, n_blocks=2, n_heads=2, f=16)
    ids = side.tensor(np.array([[3, 1, 3]]))
    placed = model.positions(x := model.embed(ids))
    stages = x, placed, model.encoder(placed), model(ids)
    expected = np.concatenate([as_numpy(stage).ravel() for stage in stages])
    svg = (DRAWINGS / f"walk-through-{side.name}.svg").read_text("utf-8")
    drawn = re.findall(r"<!-- (-?\d\.\d) -->", svg.replace("−", "-"))
    np.testing.assert_allclose(np.array(drawn, float), expected, atol=0.06)
