"""Bad input gets one clear sentence with both values, the same on both sides."""

import re
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import pytest

from helpers.engine.settings import Sequences
from sides import jax_side, on_both_sides, torch_side

B, H, Q, K, D, F = 2, 3, 5, 7, 11, 13
M = H * D


def attend(mask, shape=(B, H, Q, K), raw=False):
    """A call of ``attention`` with weights of a shape; a raw mask is not converted."""

    def call(side):
        *lead, q, k = shape
        x = [side.tensor(np.ones((*lead, n, D))) for n in (q, k, k)]
        side.models.attention(*x, mask if raw else side.mask(mask))

    return call


def attend_shapes(*shapes):
    """A call of ``attention`` with queries, keys and values of these shapes."""
    ones = [np.ones(shape) for shape in shapes]
    return lambda side: side.models.attention(*map(side.tensor, ones))


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


def run(make, *shape, mask=None, context=None):
    """A call that makes a module and runs it on ones of a shape."""

    def call(side):
        inputs = {}
        if mask is not None:
            inputs["mask"] = side.mask(mask)
        if context is not None:
            inputs["context"] = side.tensor(np.ones(context))
        make(side)(side.tensor(np.ones(shape)), **inputs)

    return call


DTYPE = "expected a mask of dtype bool, got {}"
SHAPE = "expected a mask of 2 or {} axes that broadcasts to the weights {}, got {}"
QKV = "expected ... q d, ... k d, ... k e, got {}, {}, {}"
INPUT = "expected an input b s {}, got shape {}"
LENGTH = "{} positions, but the table has max_length = {}"
DROPOUT = "{} {} is not in [0, 1)"
NORM = "norm {!r} is not in ['layer', 'rms']"
ACTIVATION = "activation {!r} is not in ['relu', 'gelu']"
POSITIONS = "positions {!r} is not in ['sinusoidal', 'learned', 'rotary', 'none']"
HEADS = "m = {} is not divisible by n_heads = {}"
BLOCKS = "expected at least one block, got n_blocks = {}"


@dataclass(frozen=True)
class Bad:
    """A call, and what it must say."""

    name: str
    call: object
    message: str
    kind: type = ValueError


W = (B, H, Q, K)
HEADED = build("MultiHeadAttention", M, H)
BLOCK = build("EncoderBlock", M, H, F)
CASES = [
    Bad("heads", build("MultiHeadAttention", 30, 4), HEADS.format(30, 4)),
    Bad("heads-stack", build("Encoder", 2, 5, 7, F), HEADS.format(5, 7)),
    Bad("blocks", build("Encoder", 0, M, H, F), BLOCKS.format(0)),
    # queries, keys and values that contradict each other
    Bad("one-key", attend_shapes((Q, D), (1, D), (K, D)),
        QKV.format((Q, D), (1, D), (K, D))),
    Bad("features", attend_shapes((Q, D), (K, 1), (K, D)),
        QKV.format((Q, D), (K, 1), (K, D))),
    Bad("no-features", attend_shapes((Q, 0), (K, 0), (K, D)),
        QKV.format((Q, 0), (K, 0), (K, D))),
    # masks of a wrong shape, one for each number of axes
    Bad("mask-2-turned", attend(ones(K, Q)), SHAPE.format(4, W, (K, Q))),
    Bad("mask-2-b-k", attend(ones(B, K)), SHAPE.format(4, W, (B, K))),
    Bad("mask-3", attend(ones(B, Q, K)), SHAPE.format(4, W, (B, Q, K))),
    Bad("mask-3-both", attend(ones(Q, Q, K), (Q, Q, Q, K)),
        SHAPE.format(4, (Q, Q, Q, K), (Q, Q, K))),
    Bad("mask-4-turned", attend(ones(H, B, Q, K)), SHAPE.format(4, W, (H, B, Q, K))),
    Bad("mask-5", attend(ones(1, 1, 1, Q, K)), SHAPE.format(4, W, (1, 1, 1, Q, K))),
    Bad("mask-3-on-2", attend(ones(1, Q, K), W[2:]),
        SHAPE.format(2, W[2:], (1, Q, K))),
    Bad("mask-all", run(predictor(), B, Q, 2, mask=ones(Q, K)),
        SHAPE.format(4, (B, H, Q, Q), (Q, K))),
    # inputs with another number of axes or of features
    Bad("axes-2", run(HEADED, Q, M), INPUT.format(M, (Q, M))),
    Bad("features-block", run(BLOCK, B, Q, D), INPUT.format(M, (B, Q, D))),
    Bad("features-context", run(HEADED, B, Q, M, context=(B, K, D)),
        INPUT.format(M, (B, K, D))),
    Bad("axes-2-all", run(predictor(), Q, 2), INPUT.format(2, (Q, 2))),
    Bad("features-all", run(predictor(), B, Q, 3), INPUT.format(2, (B, Q, 3))),
    # sequences longer than the table
    Bad("long-sinusoidal", run(build("SinusoidalPositions", M, 7), B, 8, M),
        LENGTH.format(8, 7)),
    Bad("long-learned", run(build("LearnedPositions", M, 7), B, 11, M),
        LENGTH.format(11, 7)),
    Bad("long-all-learned", run(predictor(max_length=5, positions="learned"), B, 7, 2),
        LENGTH.format(7, 5)),
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
    Bad(
        f"mask-{name}", attend(mask, raw=name[-1] == "t"), DTYPE.format(name), TypeError
    )
    for name, mask in {
        "int32": ones(Q, K, dtype="int32"),
        "float32": ones(Q, K, dtype="float32"),
        "list": [[True] * K] * Q,
    }.items()
]
CASES += [
    Bad(f"dropout-{where}-{rate}", call(rate), DROPOUT.format(name, rate))
    for rate in (-0.1, 1, float("nan"))
    for where, name, call in [
        ("net", "dropout", lambda rate: build("FeedForward", M, F, dropout=rate)),
        ("all", "dropout", lambda rate: predictor(dropout=rate)),
        ("input", "input_dropout", lambda rate: predictor(input_dropout=rate)),
    ]
]
CASES += [
    Bad(f"{option}-{where}-{value}", call(**{option: value}), message.format(value))
    for option, value, message in [
        ("norm", "batch", NORM),
        ("activation", "tanh", ACTIVATION),
    ]
    for where, call in {
        "block": lambda **options: build("EncoderBlock", M, H, F, **options),
        "all": predictor,
    }.items()
]
CASES += [
    Bad("positions", predictor(positions="relative"), POSITIONS.format("relative"))
]


@on_both_sides
@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_bad_input_raises_one_sentence_with_both_values(side, bad):
    """The same words in both frameworks: what was expected, and what came."""
    with pytest.raises(bad.kind) as caught:
        bad.call(side)
    assert str(caught.value).replace("torch.", "") == bad.message
    assert caught.value.__cause__ is None


@on_both_sides
def test_a_mask_of_the_other_framework_raises_an_error(side):
    """By its dtype; a NumPy mask is one of JAX's own kinds, and none of PyTorch's."""
    masks = {
        "jax": torch_side.mask(ones(Q, K)), "torch": jax_side.mask(ones(Q, K))
    }  # fmt: skip
    expected = {
        "jax": "expected a mask of dtype bool, got torch.bool",
        "torch": "expected a mask of dtype torch.bool, got bool",
    }
    with pytest.raises(TypeError, match=re.escape(expected[side.name])):
        attend(masks[side.name], raw=True)(side)


@on_both_sides
@pytest.mark.parametrize(
    "call",
    [
        attend(ones(Q, K)),
        attend(ones(B, 1, 1, K)),
        attend(ones(1, K), shape=(Q, K)),
        attend(ones(B, Q, K), shape=(B, Q, K)),
        build("MultiHeadAttention", 30, 5),
        run(predictor(max_length=7), B, 7, 2),
        run(predictor(max_length=7, positions="learned"), B, 7, 2),
        run(predictor(max_length=7, positions="none"), B, 11, 2),
        predictor(dropout=0, input_dropout=0.999),
        predictor(norm="rms", activation="gelu"),
    ],
    ids=[
        "mask-2", "mask-4", "mask-2-on-2", "mask-3-on-3", "heads",
        "longest-sinusoidal", "longest-learned", "no table", "dropout", "names",
    ],
)  # fmt: skip
def test_boundary_values_are_accepted(side, call):
    """The checks stop at what they name: the neighbours of bad input pass."""
    call(side)


# Models, prompts and data that are none


OTHER = {"jax": torch_side, "torch": jax_side}
SMALL = Sequences(
    n_symbols=2, length=Q, n_train=B, batch_size=B, epochs=2, learning_rate=1e-3,
    warmup=1, m=M, n_heads=H, f=F,
)  # fmt: skip
X, Y = np.ones((B, Q, 2), np.float32), np.ones((B, Q), np.int32)


def language_model(side, **options):
    sizes = {"n_blocks": 1, "n_heads": H, "f": F, "max_length": Q}
    return side.build("LanguageModel", 50, M, **sizes | options)


def train(side, call, model, loss, data, **options):
    """``fit`` or ``evaluate`` of a side."""
    training = import_module(f"helpers.{side.name}.training")
    settings = [SMALL] * (call == "fit")
    return getattr(training, call)(
        model, getattr(training, loss), data, *settings, **options
    )


@on_both_sides
@pytest.mark.parametrize(
    "prompts", [[[1.5]], [1, 2], ["ab"], 3, np.ones(3), [[1, 2], 3]], ids=str
)
def test_prompts_are_lists_of_whole_numbers(side, prompts):
    """Floats are not cut off, and a flat prompt is no batch of prompts."""
    message = f"expected prompts b s of whole numbers, as [[1, 2]], got {prompts!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        side.models.generate(language_model(side), prompts, 2)


@on_both_sides
def test_prompts_may_be_arrays_of_any_framework(side):
    arrays = [each.tensor([[1, 2]], "int32") for each in OTHER.values()]
    found = [
        side.models.generate(language_model(side), prompts, 2, top_k=1).tolist()
        for prompts in ([[1, 2]], np.array([[1, 2]]), *arrays)
    ]
    assert found == [found[0]] * 4


@on_both_sides
@pytest.mark.parametrize("call", ["fit", "evaluate"])
@pytest.mark.parametrize("token", [77, -7])
def test_a_token_that_the_model_lacks_raises_an_error(side, call, token):
    """In JAX the forward pass would go on, with NaN or as if it were padding."""
    model, tokens = language_model(side), np.full((B, Q), token)
    message = "expected tokens from 0 to 49, or -1 for padding, got "
    with pytest.raises(ValueError, match=f"^{message}{token} to {token} in the data$"):
        train(side, call, model, "next_token", (tokens,))
    with pytest.raises(ValueError, match=f"^expected tokens from 0 to 49, got {token}"):
        side.models.generate(model, tokens[:, :2], 1)


@on_both_sides
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_raise_an_error(side, size):
    with pytest.raises(ValueError, match=f"^expected f of at least 1, got {size}$"):
        side.build("FeedForward", M, size)
    with pytest.raises(ValueError, match=f"^expected max_length .* 1, got {size}$"):
        language_model(side, max_length=size, positions="none")


def call_with_other_model(side, call):
    """A function of a side with a model of the other framework."""
    if call in ("fit", "evaluate"):
        model = predictor()(OTHER[side.name])
        return train(side, call, model, "cross_entropy", (X, Y))
    if call == "generate":
        return side.models.generate(language_model(OTHER[side.name]), [[1]], 2)
    sizes = {"n_blocks": 1, "n_heads": H, "f": F, "max_length": Q}
    model = OTHER[side.name].build("Translator", 50, 50, M, **sizes)
    source = side.tensor([[1, 2]], "int32")
    return side.models.translate(model, source, 2, begin=0, end=1)


@on_both_sides
@pytest.mark.parametrize("call", ["fit", "evaluate", "generate", "translate"])
def test_a_model_of_the_other_framework_raises_an_error(side, call):
    ours = {"jax": r"flax\.nnx\S*", "torch": r"torch\.nn\S*"}[side.name]
    theirs = rf"helpers\.{OTHER[side.name].name}\.\S+"
    message = f"^expected a model of <class '{ours}Module'>, got <class '{theirs}'>$"
    with pytest.raises(ValueError, match=message):
        call_with_other_model(side, call)


@on_both_sides
@pytest.mark.parametrize("other", [False, True], ids=["own", "other"])
@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_data_are_a_tuple_of_numpy_arrays(side, call, other):
    """No tensors, no lists, no array without its tuple; validation data, too."""
    model, framework = predictor()(side), OTHER[side.name] if other else side
    tensors = framework.tensor(X), framework.tensor(Y, "int32")
    start = "expected the data as tuple of NumPy arrays, got "
    for data, got in [
        (tensors, f"[{type(tensors[0])}, {type(tensors[1])}]"),
        (X, "<class 'numpy.ndarray'>"),
        ({"x": X, "y": Y}, "<class 'dict'>"),
        ((X.tolist(), Y), "[<class 'list'>, <class 'numpy.ndarray'>]"),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(start + got)}$"):
            train(side, call, model, "cross_entropy", data)
    with pytest.raises(ValueError, match=r"^expected inputs and labels as .*, got 1$"):
        train(side, call, model, "cross_entropy", (X,))
    if call == "fit":
        start = start.replace("the data", "the validation data")
        with pytest.raises(ValueError, match=f"^{start}<class 'numpy.ndarray'>$"):
            train(side, call, model, "cross_entropy", (X, Y), validation=X)


@pytest.mark.parametrize(
    "make",
    [
        lambda side: (predictor()(side), X),
        lambda side: (HEADED(side), np.ones((B, Q, M))),
        lambda side: (language_model(side), Y),
        lambda side: (side.build("VisionTransformer", 4, 1, M, 5, patch=2, n_blocks=1,
                                 n_heads=H, f=F), np.ones((B, 4, 4, 1)))],
    ids=["predictor", "attention", "language model", "vision"],
)  # fmt: skip
def test_a_tensor_of_pytorch_does_not_pass_through_a_model_in_jax(make):
    """JAX would convert it without a word; PyTorch itself refuses JAX's arrays."""
    model, x = make(jax_side)
    with pytest.raises((TypeError, ValueError), match=r"^expected .*, got .*torch\."):
        model(torch_side.tensor(x, x.dtype.name))
    for good in (x, jax_side.tensor(x, x.dtype.name)):
        model(good)
