"""Decoder, language model and translator are what the formulas say, in both frameworks.

All sizes differ, and all are prime but ``m = h·d``: no transposition can hide.
"""

import json
import math
import re

import numpy as np
import pytest

import reference_models
from helpers.data.byte_pairs import BytePairs
from helpers.engine.settings import Dates, Settings, Text
from helpers.engine.shapes import as_numpy, check_shape
from helpers.engine.weights import from_arrays, load_weights, save_weights, to_arrays
from helpers.jax import training as train_jax
from helpers.torch import training as train_torch
from sides import (
    draw,
    fill,
    jax_side,
    on_both_sides,
    torch_decoder_layer,
    torch_side,
)

B, L, H, D, S, K, F, T, U, N = 3, 2, 5, 7, 11, 17, 13, 19, 23, 29  # N: max_length
M = H * D
CAUSAL = np.tri(S, dtype=bool)
LENGTHS, SOURCE_LENGTHS = np.array([11, 7, 2]), np.array([5, 17, 1])
PADDING = np.arange(S) < LENGTHS[:, None]  # b s: a place that holds something
SOURCE_PADDING = np.arange(K) < SOURCE_LENGTHS[:, None]  # b k
PLACES = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
KINDS = ["LanguageModel", "Translator"]


def draw_tokens(*shape, n=T, seed=3, padding=None):
    """Whole numbers below ``n``; -1 where there is padding."""
    tokens = np.random.default_rng(seed).integers(n, size=shape, dtype=np.int32)
    return tokens if padding is None else np.where(padding, tokens, -1).astype(np.int32)


def build_model(side, kind="LanguageModel", seed=0, **options):
    """A model with ``L`` blocks and its parameters, each with a value of its own."""
    options = {"n_blocks": L, "n_heads": H, "f": F, "max_length": N, **options}
    sizes = {"LanguageModel": (T, M), "Translator": (U, T, M)}[kind]
    model = side.build(kind, *sizes, **options)
    return model, fill(model, seed)


def inputs_of(side, kind, *, padding=True):
    """Tokens for a model: of the target, and for a translator first of the source."""
    own = draw_tokens(B, S, padding=PADDING if padding else None)
    source = draw_tokens(B, K, n=U, seed=4, padding=SOURCE_PADDING)
    given = [own] if kind == "LanguageModel" else [source, own]
    return [side.tensor(x, "int32") for x in given]


def by_torch(kind, *given, **options):
    """The logits of PyTorch for the same weights, of shapes that JAX would compile for.

    That both have the same logits is shown below, by one file of weights.
    """
    model, _ = build_model(torch_side, kind, **options)
    return as_numpy(model(*(torch_side.tensor(as_numpy(x), "int32") for x in given)))


def assert_close(got, expected, atol=1e-5, message=""):
    """Equal to ``atol`` for numbers around 1."""
    got, expected = as_numpy(got), as_numpy(expected)
    np.testing.assert_allclose(got, expected, atol=atol, rtol=0, err_msg=message)


# Equal to PyTorch's own


@on_both_sides
@PLACES
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("kind", ["causal", "padding", "both"])
def test_a_block_equals_the_decoder_layer_of_pytorch(
    side, norm_first, activation, kind
):
    """``nn.TransformerDecoderLayer`` with copied weights, and a longer context."""
    options = {"norm_first": norm_first, "activation": activation}
    model = side.build("DecoderBlock", M, H, F, **options)
    params = fill(model)
    x, context = (draw(B, n, M, seed=n).astype(np.float32) for n in (S, K))
    mask = {"causal": CAUSAL, "padding": PADDING[:, None, None]}
    mask = mask.get(kind, CAUSAL & PADDING[:, None, None])
    context_mask = None if kind == "causal" else SOURCE_PADDING[:, None, None]
    own, given = side.mask(mask), side.mask(context_mask)
    out, weights, cross = model(side.tensor(x), own, side.tensor(context), given)
    assert weights is None and cross is None, "nobody asked for them"
    expected = torch_decoder_layer(
        x, context, params, H, mask, context_mask, activation, norm_first
    )
    assert_close(out, expected)


@on_both_sides
@PLACES
def test_the_stack_of_a_language_model_is_a_causal_encoder(side, norm_first):
    """The same parameters, by the same names, give the same bits."""
    model, params = build_model(side, norm_first=norm_first)
    encoder = side.build("Encoder", L, M, H, F, norm_first=norm_first)
    of_stack = {
        name.removeprefix("decoder."): value
        for name, value in params.items()
        if name.startswith("decoder.")
    }
    from_arrays(encoder, of_stack)
    assert set(to_arrays(encoder)) == set(of_stack)
    (tokens,) = inputs_of(side, "LanguageModel", padding=False)
    x = model.positions(model.embed(tokens))
    out, maps = encoder(x, side.mask(CAUSAL), return_maps=True)
    for got, expected in zip(
        model(tokens, return_maps=True), (model.logits(out), maps), strict=True
    ):
        np.testing.assert_array_equal(as_numpy(got), as_numpy(expected))


@on_both_sides
@PLACES
def test_a_block_that_finds_nothing_is_an_encoder_block(side, norm_first):
    """Cross-attention whose output is zero adds nothing, before a norm of its own."""
    ours = side.build("DecoderBlock", M, H, F, norm_first=norm_first)
    params = fill(ours)
    params |= {n: 0 * params[n] for n in ("cross.out.weight", "cross.out.bias")}
    from_arrays(ours, params)
    theirs = side.build("EncoderBlock", M, H, F, norm_first=norm_first)
    own = {n: x for n, x in params.items() if not n.startswith("cross")}
    from_arrays(theirs, own)
    x, context = side.tensor(draw(B, S, M)), side.tensor(draw(B, K, M))
    asked = {"return_weights": True}
    out, weights, cross = ours(x, side.mask(CAUSAL), context, **asked)
    check_shape(cross, "b h q k", b=B, h=H, q=S, k=K)
    expected = theirs(x, side.mask(CAUSAL), **asked)
    np.testing.assert_array_equal(as_numpy(weights), as_numpy(expected[1]))
    if norm_first:
        np.testing.assert_array_equal(as_numpy(out), as_numpy(expected[0]))
    else:  # post-norm: the norm of cross-attention acts all the same
        assert np.abs(as_numpy(out) - as_numpy(expected[0])).max() > 0.1


@on_both_sides
@PLACES
def test_cross_maps_are_those_of_the_context(side, norm_first):
    """Rows sum to 1 over the visible places; hidden ones get nothing."""
    model = side.build("Decoder", L, M, H, F, norm_first=norm_first)
    params = fill(model)
    assert ("norm.weight" in params) == norm_first
    x, context = side.tensor(draw(B, S, M)), side.tensor(draw(B, K, M))
    mask = side.mask(SOURCE_PADDING[:, None, None])
    out, maps, cross = model(x, side.mask(CAUSAL), context, mask, return_maps=True)
    check_shape(maps, "l b h q k", l=L, b=B, h=H, q=S, k=S)
    check_shape(cross, "l b h q k", l=L, b=B, h=H, q=S, k=K)
    assert_close(as_numpy(cross).sum(-1), np.ones((L, B, H, S)))
    hidden = np.broadcast_to(~SOURCE_PADDING[:, None, None], cross.shape)
    assert (as_numpy(cross)[hidden] == 0).all()
    assert (as_numpy(maps)[..., ~CAUSAL] == 0).all()
    alone = model(x, side.mask(CAUSAL), context, mask)  # the framework's attention
    assert_close(as_numpy(out), as_numpy(alone))


@on_both_sides
@PLACES
def test_a_translator_equals_the_reference(side, norm_first):
    """Logits, and the maps of its decoder block by block; no padding."""
    options = {"norm_first": norm_first, "shared": True, "n_blocks": L, "n_heads": H}
    model = side.build("Translator", T, T, M, f=F, max_length=N, **options)
    params, given = fill(model), (draw_tokens(B, K), draw_tokens(B, S, seed=5))
    inputs = [side.tensor(x, "int32") for x in given]
    logits, (_, maps, cross) = model(*inputs, return_maps=True)
    expected = reference_models.translator(*given, params, L, H, norm_first)
    for got, want in zip((logits, maps, cross), expected, strict=True):
        assert_close(got, want)


@on_both_sides
def test_every_norm_of_a_decoder_is_of_the_chosen_kind(side):
    """That of cross-attention and the last one, too: RMS norm has no bias."""
    options = {"norm": "rms", "norm_first": True}
    names = to_arrays(side.build("Decoder", L, M, H, F, **options))
    norms = {name for name in names if "norm" in name}
    each = "norm1", "norm2", "cross_norm"
    inside = {f"blocks.{n}.{norm}.weight" for n in range(L) for norm in each}
    assert norms == inside | {"norm.weight"}


# Equal to each other

OPTIONS = [
    ("LanguageModel", {"norm_first": True}),
    ("LanguageModel", {"tied": False, "norm": "rms", "activation": "gelu"}),
    ("LanguageModel", {"positions": "sinusoidal", "causal": False}),
    ("LanguageModel", {"positions": "none", "norm_first": True}),
    ("Translator", {"norm_first": True}),
    ("Translator", {"tied": False, "positions": "sinusoidal", "norm": "rms"}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=str)
def test_both_frameworks_agree_for_the_same_weights(kind, options, tmp_path):
    """By one file of weights: logits, and maps of every kind."""
    found = {}
    file = tmp_path / "weights.safetensors"
    for seed, side in enumerate((jax_side, torch_side)):
        model, _ = build_model(side, kind, seed, **options)
        load_weights(model, file) if seed else save_weights(model, file)
        inputs = inputs_of(side, kind)
        logits, maps = model(*inputs, return_maps=True)
        assert_close(as_numpy(model(*inputs)), as_numpy(logits))
        found[side] = [logits, *(maps if kind == "Translator" else [maps])]
        found[side, "names"] = set(to_arrays(model))
    assert found[jax_side, "names"] == found[torch_side, "names"]
    shapes = {"LanguageModel": [S], "Translator": [K, S, K]}[kind]
    check_shape(found[jax_side][0], "b s c", b=B, s=S, c=T)
    assert [x.shape[-1] for x in found[jax_side][1:]] == shapes
    for ours, theirs in zip(found[jax_side], found[torch_side], strict=True):
        assert np.abs(as_numpy(ours)).max() > 0.1
        assert_close(ours, theirs)


def test_a_shared_embedding_is_one_parameter_in_both_frameworks():
    """Of source and target: no name of its own, and the same logits."""
    options = {"n_blocks": L, "n_heads": H, "f": F, "max_length": N, "shared": True}
    ours, theirs = (
        side.build("Translator", T, T, M, **options) for side in (jax_side, torch_side)
    )
    params = fill(ours)
    from_arrays(theirs, params)
    assert "embed.weight" not in params
    assert params["target.embed.weight"].shape == (T, M)
    x, y = draw_tokens(B, K, padding=SOURCE_PADDING), draw_tokens(B, S, seed=5)
    logits = ours(*(jax_side.tensor(a, "int32") for a in (x, y)))
    assert_close(logits, theirs(*(torch_side.tensor(a, "int32") for a in (x, y))))
    with pytest.raises(
        ValueError, match="one vocabulary, got n_source = 23 and n_target = 19"
    ):
        jax_side.build("Translator", U, T, M, **options)


# Order


@on_both_sides
@PLACES
@pytest.mark.parametrize("kind", KINDS)
def test_logits_before_a_changed_token_keep_their_bits(side, kind, norm_first):
    """Through all blocks, and also of the target of a translator."""
    model, _ = build_model(side, kind, norm_first=norm_first)
    *source, tokens = inputs_of(side, kind, padding=False)
    before = as_numpy(model(*source, tokens))
    for changed in range(S):
        other = as_numpy(tokens)
        other[:, changed] = (other[:, changed] + 1) % T
        after = as_numpy(model(*source, side.tensor(other, "int32")))
        np.testing.assert_array_equal(after[:, :changed], before[:, :changed])
        assert (np.abs(after - before)[:, changed:].max(axis=(0, 2)) > 1e-3).all()


@on_both_sides
def test_without_the_causal_mask_the_past_sees_the_future(side):
    model, _ = build_model(side, causal=False)
    tokens = draw_tokens(B, S)
    other = tokens.copy()
    other[:, -1] = (other[:, -1] + 1) % T
    before, after = (as_numpy(model(side.tensor(x, "int32"))) for x in (tokens, other))
    assert (np.abs(after - before).max(axis=(0, 2)) > 1e-3).all()


@on_both_sides
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_predicts_what_a_pass_for_each_prefix_predicts(side, kind):
    """Teacher forcing: ``s`` predictions at the price of one."""
    model, _ = build_model(side, kind, norm_first=True)
    *source, tokens = inputs_of(side, kind, padding=False)
    at_once = as_numpy(model(*source, tokens))
    for s in (1, 4, S - 1):
        alone = by_torch(kind, *source, tokens[:, :s], norm_first=True)
        assert_close(at_once[:, s - 1], alone[:, -1])


@on_both_sides
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_logits_of_real_positions(side, kind):
    """Rows alone, without padding: the same logits."""
    model, _ = build_model(side, kind)
    inputs = inputs_of(side, kind)
    logits = as_numpy(model(*inputs))
    for row in range(B):
        alone = [as_numpy(x)[row : row + 1] for x in inputs]
        alone = by_torch(kind, *(x[:, x[0] >= 0] for x in alone))
        assert_close(logits[row, PADDING[row]], alone[0])


@on_both_sides
def test_a_mask_works_besides_the_causal_one(side):
    """What it hides has no effect on the rest, and the future has none either."""
    model, _ = build_model(side)
    tokens, hidden = draw_tokens(B, S), np.arange(S) != 4
    other = tokens.copy()
    other[:, 4] = (other[:, 4] + 1) % T
    mask = side.mask(np.broadcast_to(hidden, (S, S)))
    before, after = (
        as_numpy(model(side.tensor(x, "int32"), mask)) for x in (tokens, other)
    )
    np.testing.assert_array_equal(after[:, hidden], before[:, hidden])
    _, maps = model(side.tensor(tokens, "int32"), mask, return_maps=True)
    assert (as_numpy(maps)[..., ~(CAUSAL & hidden)] == 0).all()


# Embeddings


@on_both_sides
@pytest.mark.parametrize("tied", [True, False])
def test_tied_logits_are_products_with_the_embedding(side, tied):
    """Changing one row of the table changes its token's logits, tied or not."""
    model, params = build_model(side, tied=tied, norm_first=True)
    assert ("output.weight" in params) != tied
    assert "output.bias" not in params
    x = side.tensor(draw(B, S, M))
    table = params["embed.weight"].T if tied else params["output.weight"]
    assert_close(model.logits(x), as_numpy(x) @ table)


@on_both_sides
def test_the_embedding_is_one_hot_times_a_matrix(side):
    model, params = build_model(side)
    tokens = draw_tokens(B, S)
    expected = np.eye(T, dtype=np.float32)[tokens] @ params["embed.weight"]
    assert_close(model.embed(side.tensor(tokens, "int32")), expected, atol=1e-6)


@on_both_sides
@PLACES
@pytest.mark.parametrize("tied", [True, False])
def test_a_new_model_is_not_much_worse_than_guessing(side, tied, norm_first):
    """Its loss is ``ln c`` and about 1/2: its logits have a standard deviation of 1.

    Tied and post-norm, a vector is still much like its token's: it predicts itself.
    """
    options = {"n_blocks": 4, "n_heads": 4, "f": 64, "max_length": 61, "tied": tied}
    model = side.build("LanguageModel", 211, 64, norm_first=norm_first, **options)
    tokens = draw_tokens(7, 61, n=211)
    logits = as_numpy(model(side.tensor(tokens, "int32")))[:, :-1].astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(log_p, tokens[:, 1:, None], -1).mean()
    itself = tied and not norm_first
    assert math.log(211) < loss < math.log(211) + (2.5 if itself else 1)
    assert logits.std() == pytest.approx(1, rel=0.2)
    again = (logits.argmax(-1) == tokens[:, :-1]).mean()
    assert (again > 0.9) == itself
    for name in ["embed.weight"] + ["output.weight"] * (not tied):
        assert np.std(to_arrays(model)[name]) == pytest.approx(1 / 8, rel=0.05)


@on_both_sides
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_reaches_every_block(side, kind):
    model, _ = build_model(side, kind, dropout=0.3)
    assert set(side.rates(model).values()) == {0.3}
    inputs = inputs_of(side, kind)
    model.train()
    first, second = (as_numpy(model(*inputs)) for _ in range(2))
    assert np.abs(first - second).max() > 0.1
    still, _ = build_model(side, kind)
    quiet, *_ = side.models.attention_maps(model, *inputs)
    assert_close(as_numpy(quiet), as_numpy(still(*inputs)))


BRANCHES = {  # and what silences the others; without noise inside the net
    "attention": ("cross.out", "ffn.linear2"),
    "cross": ("attention.out", "ffn.linear2"),
    "ffn": ("attention.out", "cross.out", "ffn.linear2.weight"),
}


@on_both_sides
@PLACES
@pytest.mark.parametrize("branch", BRANCHES)
def test_each_branch_of_a_block_has_dropout(side, norm_first, branch):
    """With the other two silenced by weights of zero, two calls in training differ.

    So do all places of one call, though their inputs are the same.
    """
    model = side.build("DecoderBlock", M, H, F, norm_first=norm_first, dropout=0.5)
    params = fill(model)
    silent = BRANCHES[branch]
    quiet = {n: 0 * x for n, x in params.items() if n.startswith(silent)}
    from_arrays(model, params | quiet)
    model.train()
    same = np.broadcast_to(draw(M), (B, S, M)), np.broadcast_to(draw(M), (B, K, M))
    x, context = map(side.tensor, same)
    first, second = (as_numpy(model(x, None, context)[0]) for _ in range(2))
    assert np.abs(first - second).max() > 0.1, f"no dropout on the branch {branch}"
    places = np.unique(first.reshape(-1, M).round(3), axis=0)
    assert len(places) == B * S, f"some places share a mask on the branch {branch}"


# Bad input

SIZES = {"n_blocks": L, "n_heads": H, "f": F, "max_length": N}
BAD_MODELS = [
    ({"n_blocks": 0}, "expected at least one block, got n_blocks = 0"),
    ({"n_heads": 4}, "m = 35 is not divisible by n_heads = 4"),
    ({"norm": "batch"}, "norm 'batch' is not in ['layer', 'rms']"),
    ({"dropout": 1.0}, "dropout 1.0 is not in [0, 1)"),
    (
        {"positions": "relative"},
        "positions 'relative' is not in ['sinusoidal', 'learned', 'rotary', 'none']",
    ),
]


@on_both_sides
@pytest.mark.parametrize(("change", "message"), BAD_MODELS, ids=str)
@pytest.mark.parametrize(
    ("kind", "sizes"), [*zip(KINDS, [(T, M), (U, T, M)], strict=True)]
)
def test_an_invalid_option_raises_an_error(side, kind, sizes, change, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        side.build(kind, *sizes, **SIZES | change)


@on_both_sides
@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((B, S, 1), "int32", r"tokens b s of whole numbers, got .*int32 \(3, 11, 1\)"),
        ((B, S), "float32", r"tokens b s of whole numbers, got .*float32 \(3, 11\)"),
        ((B, N + 1), "int32", "30 positions, but .*max_length = 29"),
    ],
)
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_invalid_tokens_raise_an_error(side, shape, dtype, message, positions):
    model, _ = build_model(side, positions=positions)
    with pytest.raises(ValueError, match=message):
        model(side.tensor(np.ones(shape), dtype))


@on_both_sides
def test_a_context_is_needed_exactly_where_blocks_look_at_one(side):
    """In a stack, and in the language model that has it."""
    x, context = side.tensor(draw(B, S, M)), side.tensor(draw(B, K, M))
    alone = side.build("Encoder", L, M, H, F)
    with pytest.raises(TypeError, match="from 2 to 3 positional arguments but 4"):
        alone(x, None, context)
    crossing = side.build("Decoder", L, M, H, F)
    with pytest.raises(TypeError, match=r"missing 1 required .* argument: 'context'"):
        crossing(x, None)
    tokens = side.tensor(draw_tokens(B, S), "int32")
    model, _ = build_model(side)
    with pytest.raises(TypeError, match="from 2 to 3 positional arguments but 4"):
        model(tokens, None, context)
    translator, _ = build_model(side, "Translator")
    with pytest.raises(TypeError, match=r"missing 1 required .* argument: 'context'"):
        translator.target(tokens)


# Training

TRAIN = {"jax": train_jax, "torch": train_torch}
SMALL = Settings(n_train=23, batch_size=5, epochs=3, learning_rate=0.01, warmup=2)


def training_data(kind, n=23):
    """Texts with padding at their end, and for a translator sources."""
    lengths = np.random.default_rng(1).integers(2, S + 1, size=(n, 1))
    texts = draw_tokens(n, S, padding=np.arange(S) < lengths)
    source = draw_tokens(n, K, n=U, seed=4, padding=np.arange(K) < lengths + 1)
    return (texts,) if kind == "LanguageModel" else (source, texts)


@on_both_sides
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_over_real_tokens(side, kind):
    """Worked out token by token; padding counts in neither loss nor accuracy."""
    model, _ = build_model(side, kind)
    batch = [side.tensor(x, "int32") for x in training_data(kind)]
    if side.name == "torch":
        batch = [x.long() for x in batch]
    texts = as_numpy(batch[-1])
    logits = as_numpy(model(*batch[:-1], batch[-1][:, :-1])).astype(np.float64)
    log_p, hits = [], []
    for row, place in np.argwhere(texts[:, 1:] >= 0):
        scores, label = logits[row, place], texts[row, place + 1]
        log_p.append(scores[label] - np.log(np.exp(scores).sum()))
        hits.append(scores.argmax() == label)
    loss, metrics = TRAIN[side.name].next_token(model, *batch)
    assert as_numpy(loss) == pytest.approx(-np.mean(log_p), abs=1e-5)
    assert as_numpy(metrics["accuracy"]) == pytest.approx(np.mean(hits), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_both_frameworks_train_to_the_same_losses(kind):
    """By ``fit``, from the same weights, on the same batches."""
    found, arrays = {}, None
    for side in (jax_side, torch_side):
        model, params = build_model(side, kind, norm_first=True)
        arrays = arrays or params
        from_arrays(model, arrays)
        args = model, TRAIN[side.name].next_token, training_data(kind), SMALL
        validation = training_data(kind, n=7)
        found[side] = TRAIN[side.name].fit(*args, validation=validation, bar=False)
    ours, theirs = found[jax_side], found[torch_side]
    for name in ("loss", "accuracy", "grad_norm", "validation_loss"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, err_msg=name)
    assert ours["loss"][-1] < ours["loss"][0]


BAD_TEXTS = [
    (
        "float",
        "expected texts b s of whole numbers in the data, two or more each",
    ),
    ("flat", "expected texts b s of whole numbers in the data, two or more each"),
    ("long", "expected at most 30 tokens for this model, got 31 in the data"),
    (
        "unknown",
        "expected tokens from 0 to 18, or -1 for padding, got -1 to 19 in ",
    ),
    ("negative", "expected tokens from 0 to 18, or -1 for padding, got -2 to 18 in "),
    ("left", "expected two tokens or more and padding only at the end, got [-1, "),
    ("hole", "expected two tokens or more and padding only at the end, got ["),
    ("short", "expected two tokens or more and padding only at the end, got ["),
]


@on_both_sides
@pytest.mark.parametrize(("what", "message"), BAD_TEXTS)
def test_texts_that_no_model_can_be_trained_on_raise_an_error(side, what, message):
    """Before any update, and in ``evaluate``."""
    model, _ = build_model(side)
    (texts,) = training_data("LanguageModel")
    changed = {
        "float": lambda: texts.astype(np.float32),
        "flat": lambda: texts[:, 0],
        "long": lambda: draw_tokens(23, N + 2),
        "unknown": lambda: np.where(texts == 18, 19, texts),
        "negative": lambda: np.where(texts == -1, -2, texts),
        "left": lambda: texts[:, ::-1],
        "hole": lambda: np.where(np.arange(S) == 3, -1, draw_tokens(23, S)),
        "short": lambda: np.where(np.arange(S) < 1, texts, -1),
    }[what]()
    for call, more in (("fit", [SMALL]), ("evaluate", [])):
        train = TRAIN[side.name]
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            getattr(train, call)(model, train.next_token, (changed,), *more)


@on_both_sides
def test_a_translator_needs_source_and_target(side):
    """Sources have tokens of their own vocabulary; a missing array is an error."""
    model, _ = build_model(side, "Translator")
    train, (source, texts) = TRAIN[side.name], training_data("Translator")
    with pytest.raises(
        ValueError, match="from 0 to 22, or -1 for padding, got -1 to 23"
    ):
        wrong = np.where(source == 22, 23, source)
        train.fit(model, train.next_token, (wrong, texts), SMALL)
    with pytest.raises(ValueError, match="expected 2 arrays of texts, got 1"):
        train.fit(model, train.next_token, (texts,), SMALL)


@on_both_sides
@pytest.mark.parametrize(
    ("kind", "settings", "change"),
    [
        ("LanguageModel", Text(m=8, n_heads=2, f=11, n_blocks=1), {"max_length": 63}),
        ("Translator", Dates(m=8, n_heads=2, f=11, n_blocks=1), {"norm_first": False}),
    ],
    ids=str,
)
def test_a_model_of_other_sizes_than_the_settings_raises_an_error(
    side, kind, settings, change
):
    """Before any work, with both values; a model of the right sizes does not."""
    train = TRAIN[side.name]
    ((name, got),) = change.items()
    other = side.build(kind, **settings.model | change)
    expected = settings.model[name]
    message = f"with {name} = {expected!r}, as the settings say, got one with {name} = "
    with pytest.raises(ValueError, match=f"{re.escape(message)}'?{got}"):
        train.fit(other, train.next_token, (np.zeros((1, 1)),), settings)


@on_both_sides
@pytest.mark.parametrize("merges", [[], [(0, 1), (3, 2)]], ids=["characters", "pairs"])
def test_a_language_model_is_loaded_with_its_vocabulary(side, merges, tmp_path):
    """By the file alone; without a vocabulary or settings it is refused."""
    pairs, path = BytePairs("ab’", merges), tmp_path / "model.safetensors"
    sizes = {"n_tokens": len(pairs), "m": 6, "n_blocks": 1, "n_heads": 3, "f": 7}
    sizes |= {"max_length": 5, "dropout": 0.5}
    model = side.models.build(side.models.LanguageModel, seed=3, **sizes)
    notes = pairs.metadata | {"model": json.dumps(sizes)}
    save_weights(model, path, notes)
    other, tokens = side.models.load_language_model(path)
    assert tokens.tokens == pairs.tokens and tokens.merges == pairs.merges
    ours, theirs = to_arrays(model), to_arrays(other)
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    assert not any(side.modes(other)), "dropout is on"
    for name in notes:
        save_weights(model, path, {k: x for k, x in notes.items() if k != name})
        with pytest.raises(ValueError, match=f"that scripts/train.py has .*{name}"):
            side.models.load_language_model(path)
    save_weights(model, path, notes | {"block": "other"})
    with pytest.raises(ValueError, match=r"that scripts/train.py has .*other"):
        side.models.load_language_model(path)
    save_weights(model, path)
    with pytest.raises(ValueError, match="to be a language model that scripts/train"):
        side.models.load_language_model(path)
