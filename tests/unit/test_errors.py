"""Bad input gets one clear sentence with both values, the same on both sides."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

from sides import on_both_sides

B, H, Q, K, D, F = 2, 3, 5, 7, 11, 13
M = H * D


def attend(mask, shape=(B, H, Q, K), raw=False):
    """A call of ``attention`` with weights of a shape; a raw mask is not converted."""

    def call(side):
        *lead, q, k = shape
        x = [side.tensor(np.ones((*lead, n, D))) for n in (q, k, k)]
        side.models.attention(*x, mask if raw else side.mask(mask))

    return call


def ones(*shape, dtype=bool):
    """A mask that hides nothing, if its dtype is right."""
    return np.ones(shape, dtype)


def build(name, *sizes, **options):
    """A call that makes a module."""
    return lambda side: side.build(name, *sizes, **options)


def predictor(**options):
    """A call that makes a predictor of good sizes, but for what is given."""
    sizes = {"n_inputs": 2, "m": M, "n_outputs": 5, "n_blocks": 1, "n_heads": H, "f": F}
    sizes |= options
    first = [sizes.pop(name) for name in ("n_inputs", "m", "n_outputs")]
    return build("Predictor", *first, **sizes)


def run(make, *shape, **masks):
    """A call that makes a module and runs it on a batch of sequences."""

    def call(side):
        tensors = {name: side.mask(mask) for name, mask in masks.items()}
        make(side)(side.tensor(np.ones(shape)), **tensors)

    return call


HINT = "if 1 means 'may look', pass mask == 1; if -inf means 'hidden', mask == 0"
DTYPE = "expected a mask of dtype bool where True means 'may look', got {}: " + HINT
SHAPE = (
    "expected a mask q k, b q k or b h q k that fits weights of shape {}, "
    "got a mask of shape {}"
)
SIZE = "expected {} to be a whole number >= 1, got {}"
RATE = "expected a dropout rate in [0, 1), got {}"
LENGTH = (
    "the sequence has {} positions, the table only {}: "
    "build the model with a larger max_length"
)
NORM = "unknown norm {!r}: expected one of 'layer', 'rms'"
ACTIVATION = "unknown activation {!r}: expected one of 'relu', 'gelu'"
POSITIONS = (
    "unknown kind of positions {!r}: expected one of 'sinusoidal', 'learned', 'none'"
)
HEADS = "m = {} does not split into {} heads ({} % {} = {})"


@dataclass(frozen=True)
class Bad:
    """A call, and what it must say."""

    name: str
    call: object
    message: str
    kind: type = ValueError


W = (B, H, Q, K)
CASES = [
    Bad("heads", build("MultiHeadAttention", 30, 4), HEADS.format(30, 4, 30, 4, 2)),
    Bad("heads-block", build("EncoderBlock", 31, 5, F), HEADS.format(31, 5, 31, 5, 1)),
    Bad("heads-stack", build("Encoder", 2, 5, 7, F), HEADS.format(5, 7, 5, 7, 5)),
    Bad("heads-all", predictor(n_heads=2), HEADS.format(33, 2, 33, 2, 1)),
    # masks of a wrong shape, one for each number of axes
    Bad("mask-0", attend(ones()), SHAPE.format(W, ())),
    Bad("mask-1", attend(ones(K)), SHAPE.format(W, (K,))),
    Bad("mask-2-turned", attend(ones(K, Q)), SHAPE.format(W, (K, Q))),
    Bad("mask-2-short", attend(ones(Q, K - 1)), SHAPE.format(W, (Q, K - 1))),
    Bad("mask-2-b-k", attend(ones(B, K)), SHAPE.format(W, (B, K))),
    Bad("mask-3-batch", attend(ones(B + 1, Q, K)), SHAPE.format(W, (B + 1, Q, K))),
    Bad("mask-3-heads", attend(ones(H, Q, K)), SHAPE.format(W, (H, Q, K))),
    Bad("mask-3-keys", attend(ones(B, Q, Q)), SHAPE.format(W, (B, Q, Q))),
    Bad("mask-4-turned", attend(ones(H, B, Q, K)), SHAPE.format(W, (H, B, Q, K))),
    Bad("mask-4-keys", attend(ones(B, H, K, Q)), SHAPE.format(W, (B, H, K, Q))),
    Bad("mask-5", attend(ones(1, 1, 1, Q, K)), SHAPE.format(W, (1, 1, 1, Q, K))),
    Bad("mask-3-on-2", attend(ones(1, Q, K), W[2:]), SHAPE.format(W[2:], (1, Q, K))),
    Bad("mask-4-on-3", attend(ones(1, 1, Q, K), (B, Q, K)),
        SHAPE.format((B, Q, K), (1, 1, Q, K))),
    Bad("mask-all", run(predictor(), B, Q, 2, mask=ones(Q, K)),
        SHAPE.format((B, H, Q, Q), (Q, K))),
    # sequences longer than the table
    Bad("long-sinusoidal", run(build("SinusoidalPositions", M, 7), B, 8, M),
        LENGTH.format(8, 7)),
    Bad("long-learned", run(build("LearnedPositions", M, 7), B, 11, M),
        LENGTH.format(11, 7)),
    Bad("long-all", run(predictor(max_length=5), B, 7, 2), LENGTH.format(7, 5)),
    Bad("long-all-learned", run(predictor(max_length=5, positions="learned"), B, 7, 2),
        LENGTH.format(7, 5)),
    Bad("long-default", run(predictor(), 1, 513, 2), LENGTH.format(513, 512)),
]  # fmt: skip
CASES += [
    Bad(
        "mask-int-all",
        run(predictor(), B, Q, 2, mask=ones(Q, Q, dtype="int32")),
        DTYPE.format("int32"),
        TypeError,
    )
]
CASES += [
    Bad(f"mask-{name}", attend(mask, raw=name[0] == "a"), DTYPE.format(name), TypeError)
    for name, mask in {
        "int32": ones(Q, K, dtype="int32"),
        "uint8": ones(Q, K, dtype="uint8"),
        "float32": ones(Q, K, dtype="float32"),
        "a Python list": [[True] * K] * Q,
        "a Python bool": True,
    }.items()
]
CASES += [
    Bad(f"dropout-{where}-{rate}", call(rate), RATE.format(rate))
    for rate in (-0.1, 1, 1.0, 1.5, float("nan"))
    for where, call in {
        "net": lambda rate: build("FeedForward", M, F, dropout=rate),
        "block": lambda rate: build("EncoderBlock", M, H, F, dropout=rate),
        "stack": lambda rate: build("Encoder", 1, M, H, F, dropout=rate),
        "all": lambda rate: predictor(dropout=rate),
        "input": lambda rate: predictor(input_dropout=rate),
    }.items()
]
CASES += [
    Bad(f"{option}-{where}-{value}", call(**{option: value}), message.format(value))
    for option, value, message in [
        ("norm", "batch", NORM),
        ("norm", "Layer", NORM),
        ("norm", None, NORM),
        ("activation", "tanh", ACTIVATION),
        ("activation", "", ACTIVATION),
    ]
    for where, call in {
        "block": lambda **options: build("EncoderBlock", M, H, F, **options),
        "stack": lambda **options: build("Encoder", 1, M, H, F, **options),
        "all": predictor,
    }.items()
]
CASES += [
    Bad(f"positions-{value}", predictor(positions=value), POSITIONS.format(value))
    for value in ("rotary", None)
]
CASES += [
    Bad(
        f"{option}-{value}",
        predictor(**{option: value}),
        SIZE.format(option, repr(value)),
    )
    for option in (
        "n_inputs",
        "m",
        "n_outputs",
        "n_blocks",
        "n_heads",
        "f",
        "max_length",
    )
    for value in (0, -3, 2.0, "8", None, True)
]
CASES += [
    Bad("size-heads-m", build("MultiHeadAttention", 0, 1), SIZE.format("m", 0)),
    Bad("size-heads-n", build("MultiHeadAttention", M, 0), SIZE.format("n_heads", 0)),
    Bad("size-net", build("FeedForward", M, -1), SIZE.format("f", -1)),
    Bad("size-stack", build("Encoder", 0, M, H, F), SIZE.format("n_blocks", 0)),
    Bad("size-sines", build("SinusoidalPositions", M, 0), SIZE.format("max_length", 0)),
    Bad("size-learned", build("LearnedPositions", 1.5, 9), SIZE.format("m", 1.5)),
]


@on_both_sides
@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_bad_input_gets_one_sentence_with_both_values(side, bad):
    """The very same words in both frameworks: what was expected, and what came."""
    with pytest.raises(bad.kind, match=f"^{re.escape(bad.message)}$") as caught:
        bad.call(side)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


@on_both_sides
@pytest.mark.parametrize(
    "call",
    [
        attend(ones(Q, K)),
        attend(ones(B, 1, K)),
        attend(ones(1, K), shape=(Q, K)),
        build("MultiHeadAttention", 30, 5),
        run(predictor(max_length=7), B, 7, 2),
        run(predictor(max_length=7, positions="learned"), B, 7, 2),
        run(predictor(max_length=7, positions="none"), B, 11, 2),
        predictor(dropout=0, input_dropout=0.999),
        predictor(norm="rms", activation="gelu"),
    ],
    ids=[
        "mask-2", "mask-3", "mask-2-on-2", "heads", "longest-sinusoidal",
        "longest-learned", "no table", "rates", "names",
    ],
)  # fmt: skip
def test_what_is_just_good_enough_is_taken(side, call):
    """The checks stop at what they name: the neighbours of bad input pass."""
    call(side)
