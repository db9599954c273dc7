"""Blocks, stacks and the predictor are what the formulas say, in both frameworks.

All sizes differ, and all are prime but ``m = h·d``: no transposition can hide.
"""

import math
from importlib import import_module
from unittest.mock import Mock

import numpy as np
import pytest

import reference_models
from helpers import reference
from helpers.engine.shapes import as_numpy, check_shape
from helpers.engine.weights import from_arrays, to_arrays
from sides import (
    draw,
    draw_mask,
    fill,
    jax_side,
    on_both_sides,
    torch_encoder_layer,
    torch_side,
)

B, L, H, D, S, F, I, C = 3, 2, 5, 7, 11, 13, 17, 19  # noqa: E741
M = H * D
LENGTHS = np.array([11, 7, 2])
PADDING = np.arange(S) < LENGTHS[:, None]  # b s: a place that holds something
OPTIONS = [
    {"norm_first": norm_first, "activation": activation, "norm": norm}
    for norm_first in (False, True)
    for activation in ("relu", "gelu")
    for norm in ("layer", "rms")
]

MIXED = [OPTIONS[n] for n in (0, 3, 5, 6)]  # every choice twice


def name_of(options):
    """``pre-gelu-rms`` and so on, for the ids of tests."""
    place = "pre" if options["norm_first"] else "post"
    return "-".join(
        [place, *(options[k] for k in ("activation", "norm") if k in options)]
    )


def build_block(side, seed=0, **options):
    """A block and its parameters, each with a value of its own."""
    model = side.build("EncoderBlock", M, H, F, **options)
    return model, fill(model, seed)


def build_encoder(side, seed=0, **options):
    """A stack of ``L`` blocks and its parameters."""
    model = side.build("Encoder", L, M, H, F, **options)
    return model, fill(model, seed)


def build_predictor(side, seed=0, **options):
    """A predictor with ``L`` blocks and its parameters."""
    options = {"n_blocks": L, "n_heads": H, "f": F, "max_length": 23, **options}
    model = side.build("Predictor", I, M, C, **options)
    return model, fill(model, seed)


def draw_input(features=M, seed=9):
    """A batch of sequences, float32."""
    return draw(B, S, features, seed=seed).astype(np.float32)


def assert_close(got, expected, atol=1e-5):
    """Equal to ``atol`` for numbers around 1."""
    np.testing.assert_allclose(as_numpy(got), as_numpy(expected), atol=atol, rtol=0)


# Equal to the reference


@on_both_sides
@pytest.mark.parametrize("options", OPTIONS, ids=name_of)
def test_a_block_equals_the_reference(side, options):
    """Norm after or before, ReLU or GELU, layer norm or RMS norm; some rows blind."""
    model, params = build_block(side, **options)
    x, mask = draw_input(), draw_mask(B, H, S, S, empty_rows=True)
    out, weights = model(side.tensor(x), side.mask(mask), return_weights=True)
    expected = reference.encoder_block(x, params, H, mask, **options)
    check_shape(weights, "b h s s", b=B, h=H, s=S)
    assert_close(out, expected[0])
    assert_close(weights, expected[1])


@on_both_sides
@pytest.mark.parametrize("options", MIXED, ids=name_of)
def test_a_stack_equals_the_reference_block_by_block(side, options):
    """Each block on the output of the one before; pre-norm ends with one more norm."""
    model, params = build_encoder(side, **options)
    x, mask = draw_input(), draw_mask(B, 1, S, S)
    out, maps = model(side.tensor(x), side.mask(mask), return_maps=True)
    expected = reference.encoder(x, params, L, H, mask, **options)
    check_shape(maps, "l b h s s", l=L, b=B, h=H, s=S)
    assert ("norm.weight" in params) == options["norm_first"]
    assert_close(out, expected[0])
    assert_close(maps, expected[1])


@on_both_sides
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_the_predictor_equals_the_reference(side, norm_first):
    """Linear, positions, encoder, linear, norm, ReLU, linear."""
    model, params = build_predictor(side, norm_first=norm_first)
    x, mask = draw_input(I), PADDING[:, None, None]
    out, maps = model(side.tensor(x), side.mask(mask), return_maps=True)
    expected = reference_models.predictor(x, params, L, H, mask, norm_first=norm_first)
    check_shape(out, "b s c", b=B, s=S, c=C)
    assert_close(out, expected[0])
    assert_close(maps, expected[1])


@on_both_sides
@pytest.mark.parametrize("options", OPTIONS[::2], ids=name_of)
@pytest.mark.parametrize("shape", [None, (S, S), (B, 1, 1, S), (B, H, S, S)], ids=str)
def test_a_block_equals_the_encoder_layer_of_pytorch(side, options, shape):
    """``nn.TransformerEncoderLayer`` with copied weights; it only has layer norm.

    Every row sees a key: for one that sees none, PyTorch's attention has given NaN or
    zeros, by version and path.
    """
    model, params = build_block(side, **options)
    x, mask = draw_input(), shape and draw_mask(*shape)
    del (own := dict(options))["norm"]
    out, _ = model(side.tensor(x), side.mask(mask))
    assert_close(out, torch_encoder_layer(x, params, H, mask, **own))


# Equal to each other


@pytest.mark.parametrize("kind", ["stack", "predictor"])
@pytest.mark.parametrize("options", MIXED, ids=name_of)
def test_both_frameworks_agree_for_the_same_weights(kind, options):
    """Outputs, maps and gradients: in every parameter and in the input.

    The loss is scaled so that gradients are of the order of 1.
    """
    build, features, outputs = {
        "stack": (build_encoder, M, M),
        "predictor": (build_predictor, I, C),
    }[kind]
    if kind == "predictor":
        options = {"positions": "learned", **options}
    jax_model, arrays = build(jax_side, **options)
    torch_model, _ = build(torch_side, seed=1, **options)
    from_arrays(torch_model, arrays)
    x = draw_input(features)
    probes = draw(B, S, outputs) / math.sqrt(x.size), draw(L, B, H, S, S)
    ours = everything(jax_side, jax_model, x, probes)
    theirs = everything(torch_side, torch_model, x, probes)
    assert set(ours) == {"outputs", "maps", "input"} | set(to_arrays(torch_model))
    for name, value in ours.items():
        assert np.abs(value).max() > 0.01, f"{name} should not be nothing"
        np.testing.assert_allclose(value, theirs[name], atol=1e-5, rtol=0, err_msg=name)


def everything(side, model, x, probes):
    """Outputs, maps, and gradients of their sum weighted by the probes, by name."""
    x, mask = side.tensor(x), side.mask(PADDING[:, None, None])
    probes = [side.tensor(probe) for probe in probes]

    def loss(pair):
        out, maps = pair
        return (out * probes[0]).sum() + (maps * probes[1]).sum()

    out, maps = model(x, mask, return_maps=True)
    in_params, in_x = side.model_grads(model, loss, x, mask, return_maps=True)
    return {"outputs": as_numpy(out), "maps": as_numpy(maps), "input": in_x} | in_params


# Masks


@on_both_sides
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("size", [1e4, -1e15])
def test_padded_positions_have_no_effect_in_any_layer(side, norm_first, size):
    """What stands in the padding reaches no visible output and no visible map.

    Rows of padded queries are garbage themselves and belong to nobody; but not even
    they look at a hidden key.
    """
    model, _ = build_predictor(side, norm_first=norm_first)
    mask, x = side.mask(PADDING[:, None, None]), draw_input(I)
    dirty = np.where(PADDING[:, :, None], x, np.float32(size))
    out, maps = map(as_numpy, model(side.tensor(x), mask, return_maps=True))
    dirty = side.tensor(dirty)
    out_dirty, maps_dirty = map(as_numpy, model(dirty, mask, return_maps=True))
    assert_close(out_dirty[PADDING], out[PADDING], atol=1e-6)
    for layer in range(L):
        for b, length in enumerate(LENGTHS):
            clean, other = maps[layer, b, :, :length], maps_dirty[layer, b, :, :length]
            np.testing.assert_allclose(other, clean, atol=1e-6, rtol=0)
            assert (maps_dirty[layer, b, :, :, length:] == 0).all()
    seen_by_all = model(dirty)
    assert np.abs(as_numpy(seen_by_all) - out)[PADDING].max() > 0.1, (
        "no mask, no shelter"
    )


@on_both_sides
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("size", [1e4, -1e15])
def test_future_positions_have_no_effect_behind_a_causal_mask(side, norm_first, size):
    """Through two layers, an output depends on its own position and those before it."""
    model, _ = build_predictor(side, norm_first=norm_first)
    causal, x, start = np.tri(S, dtype=bool), draw_input(I), 5
    other = x.copy()
    other[:, start:] = size
    out = model(side.tensor(x), side.mask(causal))
    out_other = model(side.tensor(other), side.mask(causal))
    differs = np.abs(as_numpy(out) - as_numpy(out_other)).max(axis=(0, 2))
    assert (differs[:start] <= 1e-6).all()
    assert (differs[start:] > 0.01).all()


@on_both_sides
def test_a_layer_norm_is_exact_far_from_zero(side):
    """Its variance is not the difference of two large squares."""
    model, params = build_block(side)
    x = (1000 + draw(B, S, M)).astype(np.float32)
    expected = reference.normalise(x.astype(np.float64), params, "norm1")
    np.testing.assert_allclose(
        as_numpy(model.norm1(side.tensor(x))), expected, atol=0.01
    )


# Order


@on_both_sides
@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
def test_order_matters_only_with_positions(side, positions):
    """Without them, permuting the inputs permutes outputs and maps in the same way."""
    model, _ = build_predictor(side, positions=positions)
    x, order = draw_input(I), np.random.default_rng(3).permutation(S)
    out, maps = map(as_numpy, model(side.tensor(x), return_maps=True))
    got = [*map(as_numpy, model(side.tensor(x[:, order]), return_maps=True))]
    if positions == "none":
        assert_close(got[0], out[:, order])
        assert_close(got[1], maps[..., order, :][..., order])
        assert np.abs(out[:, order] - out).max() > 0.1, "the outputs do change places"
    else:
        assert np.abs(got[0] - out[:, order]).max() > 0.1


# Maps and dropout

DROPPING = {"dropout": 0.5, "input_dropout": 0.5}
DROPOUTS = "dropout", "ffn.dropout"  # of a block


@on_both_sides
def test_dropout_is_active_in_training_only(side):
    """Two calls differ in training mode; in evaluation they equal a model without."""
    model, _ = build_predictor(side, **DROPPING)
    still, _ = build_predictor(side)
    x = side.tensor(draw_input(I))
    model.train()
    first, second = (as_numpy(model(x)) for _ in range(2))
    assert np.abs(first - second).max() > 0.1
    model.eval()
    np.testing.assert_array_equal(as_numpy(model(x)), as_numpy(still(x)))


def assert_two_calls_differ(call):
    """Chance is at work in what a call gives."""
    first, second = (as_numpy(call()) for _ in range(2))
    assert np.abs(first - second).max() > 0.1


@on_both_sides
def test_every_dropout_of_a_model_has_its_rate(side):
    """On the input, in and around the nets of all blocks, and before the output."""
    model, _ = build_predictor(side, dropout=0.3, input_dropout=0.2)
    inside = [f"encoder.blocks.{n}.{place}" for n in range(L) for place in DROPOUTS]
    expected = dict.fromkeys([*inside, "dropout"], 0.3) | {"input_dropout": 0.2}
    assert side.rates(model) == expected


@on_both_sides
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(
    ("name", "silent"),
    [
        ("EncoderBlock", ["ffn.linear2.weight", "ffn.linear2.bias"]),
        ("EncoderBlock", ["attention.out", "ffn.linear2.weight"]),
        ("FeedForward", []),
        ("Predictor", ["attention.out", "ffn.linear2"]),
    ],
    ids=["attention branch", "net branch", "in the net", "before the output"],
)
def test_every_dropout_layer_is_active_in_training(side, name, silent, norm_first):
    """With every other place silenced by weights of zero, two calls still differ."""
    options = {"dropout": 0.5}
    if name != "FeedForward":
        options["norm_first"] = norm_first
    if name == "Predictor":
        options |= {"n_blocks": L, "n_heads": H, "f": F}
    sizes = {"EncoderBlock": (M, H, F), "FeedForward": (M, F), "Predictor": (M, M, M)}
    model = side.build(name, *sizes[name], **options)
    arrays = fill(model)
    quiet = [param for param in arrays if any(part in param for part in silent)]
    from_arrays(model, arrays | {param: 0 * arrays[param] for param in quiet})
    x = side.tensor(draw_input())
    pair = name == "EncoderBlock"
    assert_two_calls_differ(lambda: model(x)[0] if pair else model(x))


@on_both_sides
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_dropout_in_the_net_is_between_activation_and_second_layer(side, activation):
    """Each activation is dropped or doubled; the second layer only adds its bias.

    Every place has a mask of its own: their inputs are the same.
    """
    model = side.build("FeedForward", M, M, dropout=0.5, activation=activation)
    arrays = fill(model) | {"linear2.weight": np.eye(M, dtype=np.float32)}
    from_arrays(model, arrays)
    same = np.broadcast_to(draw_input()[0, 0], (B, S, M))
    x, bias = side.tensor(same), arrays["linear2.bias"]
    model.eval()
    hidden = as_numpy(model(x)) - bias
    model.train()
    found = as_numpy(model(x)) - bias
    dropped = np.abs(found) < 1e-5
    kept = np.where(dropped, 0, 2 * hidden)
    np.testing.assert_allclose(found, kept, atol=1e-5, err_msg="dropout is elsewhere")
    share = dropped[np.abs(hidden) > 0.01].mean(axis=-1)
    assert 0.3 < share < 0.7
    assert len(np.unique(dropped.reshape(-1, M), axis=0)) == B * S, "a mask is shared"


@on_both_sides
def test_input_dropout_acts_on_the_features_and_not_on_their_embedding(side):
    """Where the embedding ignores its input, two calls in training are equal."""
    options = {"n_blocks": L, "n_heads": H, "f": F, "input_dropout": 0.5}
    model = side.build("Predictor", I, M, C, **options)
    arrays, x = fill(model), side.tensor(draw_input(I))
    assert_two_calls_differ(lambda: model(x))
    from_arrays(model, arrays | {"embed.weight": 0 * arrays["embed.weight"]})
    np.testing.assert_array_equal(*(as_numpy(model(x)) for _ in range(2)))


@on_both_sides
@pytest.mark.parametrize("kind", ["stack", "predictor"])
def test_the_maps_are_those_of_a_model_without_dropout(side, kind):
    """``attention_maps`` twice, in training mode: equal, and equal to rate 0."""
    build = build_encoder if kind == "stack" else build_predictor
    model, _ = build(side, **{"dropout": 0.5} if kind == "stack" else DROPPING)
    still, _ = build(side)
    x = side.tensor(draw_input(M if kind == "stack" else I))
    mask = side.mask(PADDING[:, None, None])
    model.train()
    first, second = (side.models.attention_maps(model, x, mask) for _ in range(2))
    rest = still(x, mask, return_maps=True)
    for a, b, expected in zip(first, second, rest, strict=True):
        np.testing.assert_array_equal(as_numpy(a), as_numpy(b))
        np.testing.assert_array_equal(as_numpy(a), as_numpy(expected))
    assert_close(first[0], as_numpy(still(x, mask)))


@on_both_sides
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_attention_maps_leaves_the_model_as_it_was(side, mode):
    """Modes of all parts, weights, and the randomness to come; also if it fails."""
    model, params = build_predictor(side, **DROPPING)
    getattr(model, mode)()
    model.encoder.train()
    x, modes = side.tensor(draw_input(I)), side.modes(model)
    assert len(modes) == 2 + 2 * L
    assert set(modes) == {True, mode == "train"}
    coming = side.drawn_next(model, x)
    side.models.attention_maps(model, x)
    with pytest.raises(ValueError, match="mask"):
        side.models.attention_maps(model, x, side.mask(draw_mask(S, S + 1)))
    assert side.modes(model) == modes
    np.testing.assert_array_equal(side.drawn_next(model, x), coming)
    for name, value in to_arrays(model).items():
        np.testing.assert_array_equal(value, params[name], err_msg=name)


@on_both_sides
def test_maps_are_stacked_only_on_request(side, monkeypatch):
    """A training step must not pay for what it throws away."""
    model, _ = build_predictor(side)
    framework = {"jax": "jnp", "torch": "torch"}[side.name]
    stack = Mock(side_effect=AssertionError("maps were stacked"))
    file = import_module(f"{side.models.__name__}.encoder")
    monkeypatch.setattr(getattr(file, framework), "stack", stack)
    x = side.tensor(draw_input(I))
    check_shape(model(x), "b s c", b=B, s=S, c=C)
    with pytest.raises(AssertionError, match="maps were stacked"):
        model(x, return_maps=True)


# A new model


@on_both_sides
def test_new_linear_layers_are_uniform_with_zero_biases(side):
    """All of them, within ``1 / √n_in`` and filling that range."""
    arrays = to_arrays(side.build("Predictor", I, M, C, n_blocks=L, n_heads=H, f=F))
    dense = [n for n in arrays if n.endswith("weight") and arrays[n].ndim == 2]
    assert len(dense) == 3 + 4 * L
    for name in dense:
        bound = 1 / math.sqrt(arrays[name].shape[0])
        largest = np.abs(arrays[name]).max()
        assert 0.95 * bound < largest <= bound, name
        assert arrays[name].std() == pytest.approx(bound / math.sqrt(3), rel=0.1), name
        assert (arrays[name.replace("weight", "bias")] == 0).all(), name
    start = "encoder.blocks.{}.attention.qkv.weight"
    assert np.abs(arrays[start.format(0)] - arrays[start.format(1)]).max() > 0.01
