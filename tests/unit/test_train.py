"""``fit`` and ``evaluate``: what the plain way of each framework does; twins agree."""

import re
from dataclasses import replace
from functools import partial
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

from helpers.data.sequences import draw_uniforms, reverse_data, shuffled
from helpers.engine import runs
from helpers.engine.settings import Reverse, Sequences, Settings
from helpers.engine.weights import from_arrays, to_arrays
from helpers.jax import training as train_jax
from helpers.schedules import SCHEDULES
from helpers.torch import training as train_torch
from sides import jax_side, on_both_sides, torch_side

TRAIN = {"jax": train_jax, "torch": train_torch}
SMALL = Sequences(
    n_train=50, batch_size=8, epochs=5, learning_rate=0.01, warmup=4, max_grad_norm=0.3,
    n_symbols=5, length=3, n_validation=23, n_test=1, m=6, n_heads=2, f=10,
)  # fmt: skip
DATA = reverse_data(SMALL)


def fit(side, model, loss, data, settings, **options):
    """``fit`` of a side, without a bar."""
    options = {"bar": False, **options}
    return TRAIN[side.name].fit(model, loss, data, settings, **options)


def predictor(side, settings=SMALL, **options):
    return side.build("Predictor", **settings.model | options)


def train(side, settings=SMALL, **options):
    """Train a new predictor; return it and its history."""
    model = predictor(side, settings)
    loss = TRAIN[side.name].cross_entropy
    return model, fit(side, model, loss, DATA["train"], settings, **options)


# A model with one weight, which is its loss


class JaxWeight(nnx.Module):
    def __init__(self, start):
        self.w = nnx.Param(jnp.float32(start))


class TorchWeight(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(float(start)))


def weight(side, start=0.0):
    return {"jax": JaxWeight, "torch": TorchWeight}[side.name](start)


def value(model):
    return to_arrays(model)["w"].item()


def slope(model, x):
    """The weight times the mean of the data; accurate near a weight of -1."""
    w = model.w[...]
    return (w * x).mean(), {"accuracy": 1 - abs(w + 1)}


def one_row_each(epoch):
    """Update ``u`` of the training takes row ``u`` of the data."""
    return np.arange(5 * epoch, 5 * epoch + 5, dtype=np.int32)[:, None]


ROWS = Settings(
    n_train=5, batch_size=1, epochs=4, learning_rate=0.1, warmup=2,
    schedule="warmup_constant", max_grad_norm=inf,
)  # fmt: skip


# The updates


@on_both_sides
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rates_follow_the_schedule(side, schedule):
    """With a gradient of 1 at every update, Adam moves a weight by the very rate."""
    settings = replace(
        ROWS, n_train=20, epochs=3, learning_rate=0.01, warmup=9, schedule=schedule
    )
    history = fit(side, weight(side), slope, (np.ones((20, 1), np.float32),), settings)
    np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)
    np.testing.assert_allclose(
        -np.diff(history["loss"]), settings.learning_rates[:-1], rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(history["grad_norm"], 1, rtol=1e-6)


def train_with_torch(settings):
    """``torch.optim.Adam`` and ``clip_grad_norm_``, one parameter at a time."""
    plain, x, y = predictor(torch_side), *map(torch.tensor, DATA["train"])
    adam, found = torch.optim.Adam(plain.parameters()), []
    for epoch in range(settings.epochs):
        for index in torch.tensor(shuffled(settings)(epoch)):
            adam.param_groups[0]["lr"] = float(settings.learning_rates[len(found)])
            adam.zero_grad()
            logits = plain(x[index]).permute(0, 2, 1)
            loss = torch.nn.functional.cross_entropy(logits, y[index].long())
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(
                plain.parameters(), settings.max_grad_norm
            )
            adam.step()
            found.append([loss.item(), norm.item()])
    return plain, found


def train_with_optax(settings):
    """``optax.chain(clip_by_global_norm, adam)`` with a schedule, step by step."""
    plain, (x, y) = predictor(jax_side), DATA["train"]
    rates = jnp.asarray(settings.learning_rates)
    clip = optax.clip_by_global_norm(settings.max_grad_norm)
    adam = optax.chain(clip, optax.adam(lambda count: rates[count]))
    graph, params, rest = nnx.split(plain, nnx.Param, ...)
    moments = adam.init(params)

    @jax.jit
    def step(params, moments, x, y):
        def objective(params):
            logits = nnx.merge(graph, params, rest)(x)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return each.mean()

        loss, gradient = jax.value_and_grad(objective)(params)
        steps, moments = adam.update(gradient, moments)
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
        return optax.apply_updates(params, steps), moments, loss, norm

    found = []
    for epoch in range(settings.epochs):
        for index in shuffled(settings)(epoch):
            params, moments, *numbers = step(params, moments, x[index], y[index])
            found.append([number.item() for number in numbers])
    nnx.update(plain, params)
    return plain, found


@on_both_sides
@pytest.mark.parametrize("clip", [0.3, inf])
def test_updates_are_those_of_the_optimizer_of_the_framework(side, clip):
    """Same losses and gradient norms, and weights to 1e-5; clipping was at work.

    The bias of the keys has no gradient but rounding, which Adam enlarges: left out.
    """
    settings = replace(SMALL, max_grad_norm=clip)
    model, history = train(side, settings)
    usual = {"jax": train_with_optax, "torch": train_with_torch}[side.name]
    plain, found = usual(settings)
    losses, norms = np.array(found).T
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(history["grad_norm"], norms, rtol=1e-4)
    assert settings.updates == len(losses) == 30
    assert (norms > 0.3).mean() > 0.5
    arrays, expected = to_arrays(model), to_arrays(plain)
    for name in expected:
        got, want = arrays[name], expected[name]
        if name.endswith("qkv.bias"):
            got, want = np.delete([got, want], slice(6, 12), axis=1)
        np.testing.assert_allclose(got, want, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_both_frameworks_have_the_same_losses():
    """The reverse task from the same weights, on the same batches: the same losses.

    For 50 updates, in which rounding changes them by about 1e-5; later ones magnify it.
    """
    sizes = {"n_train": 25 * 128, "epochs": 2, "warmup": 10}
    settings = replace(Reverse(), **sizes, learning_rate=1e-3)
    data, models = reverse_data(settings), {}
    for side in (jax_side, torch_side):
        models[side] = predictor(side, settings)
    from_arrays(models[torch_side], to_arrays(models[jax_side]))
    ours, theirs = (
        fit(side, model, TRAIN[side.name].cross_entropy, data["train"], settings)
        for side, model in models.items()
    )
    assert len(ours["loss"]) == 50
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-3)
    assert ours["loss"][-1] < 0.99 * ours["loss"][0]


@on_both_sides
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_dropout_draws_new_masks_in_every_update(side, dropout):
    """At a learning rate near 0, on one batch again and again, only they differ."""
    still = replace(SMALL, dropout=dropout, learning_rate=1e-30, epochs=2)
    same = np.broadcast_to(np.arange(8), (6, 8))
    _, history = train(side, still, batches=lambda _: same)
    losses = history["loss"]
    assert len(set(losses)) == (12 if dropout else 1)


def one_number(place, chances, x):
    """An augmentation that puts one of the random numbers of a row in its place."""
    return (0 * x + chances[:, place, None],)


@on_both_sides
def test_each_update_is_augmented_by_the_numbers_of_its_epoch(side):
    """The gradient of ``slope`` is the mean of the augmented rows."""
    settings = replace(ROWS, n_train=20, batch_size=4, epochs=3)
    data, options = (np.ones((20, 1), np.float32),), {"augment": partial(one_number, 0)}
    history = fit(side, weight(side), slope, data, settings, **options)
    drawn = [draw_uniforms(settings, n, shuffled(settings)(n)) for n in range(3)]
    expected = np.concatenate(drawn)[..., 0].mean(axis=1)  # an update
    assert len(np.unique(expected)) == 15
    others = "an epoch is augmented by other random numbers than its own"
    np.testing.assert_allclose(
        history["grad_norm"], expected, rtol=1e-5, err_msg=others
    )


@on_both_sides
def test_another_augmentation_is_another_run(side, tmp_path):
    """And the same one is reloaded."""
    settings = replace(ROWS, n_train=20, batch_size=4, epochs=1)
    args, found = (slope, (np.ones((20, 1), np.float32),), settings), []
    for how in (None, partial(one_number, 0), partial(one_number, 1)):
        for _ in range(2):
            fit(side, weight(side), *args, augment=how, folder=tmp_path)
            found.append(len(list(tmp_path.iterdir())))
    assert found == [1, 1, 2, 2, 3, 3]


@on_both_sides
def test_validation_numbers_are_those_of_the_validation_data(side):
    """Of the weights after each epoch, without dropout: not of the training data."""
    dropped = replace(SMALL, dropout=0.4)
    model, history = train(side, dropped, validation=DATA["validation"])
    np.testing.assert_array_equal(history["loss"], train(side, dropped)[1]["loss"])
    train_of = TRAIN[side.name]
    data = train_of.cross_entropy, DATA["validation"]  # in batches as ``fit`` takes
    found = train_of.evaluate(model, *data, batch_size=dropped.batch_size)
    assert found["accuracy"] == history["validation_accuracy"].max()
    ties = history["validation_accuracy"] == found["accuracy"]
    np.testing.assert_allclose(
        found["loss"], history["validation_loss"][ties].min(), rtol=1e-6
    )


@on_both_sides
def test_build_uses_its_seed(side):
    """The function of the pages itself: three seeds are three starts, each its own."""
    starts = [
        to_arrays(side.models.build(side.models.Predictor, seed=seed, **SMALL.model))
        for seed in (0, 1, 2, 0)
    ]
    for name, first in starts[0].items():
        np.testing.assert_array_equal(first, starts[3][name])
        if first.ndim == 2:
            rows = {start[name].tobytes() for start in starts}
            assert len(rows) == 3, name


# The history, and the best weights


@on_both_sides
def test_the_history_has_every_update_and_every_epoch(side):
    """As float64; without validation, its columns say that there is none."""
    for validation in (None, DATA["validation"]):
        _, history = train(side, validation=validation)
        assert list(history) == [*runs.UPDATES, *runs.EPOCHS]
        for name, column in history.items():
            assert type(column) is np.ndarray
            assert column.dtype == np.float64
            assert len(column) == (30 if name in runs.UPDATES else 5)
            missing = validation is None and "validation" in name
            assert np.isnan(column).all() if missing else np.isfinite(column).all()
        assert (history["seconds"] > 0).all()


@on_both_sides
def test_the_weights_with_the_highest_accuracy_are_kept(side):
    """The weight falls past -1, where it is right, and goes on: -0.95 was the best."""
    ones = (np.ones((20, 1), np.float32),)
    settings = replace(ROWS, learning_rate=0.2, warmup=1)
    model = weight(side, 0.05)
    history = fit(
        side, model, slope, ones, settings, batches=one_row_each, validation=ones
    )
    accuracy = 1 - abs(np.array([-0.95, -1.95, -2.95, -3.95]) + 1)
    np.testing.assert_allclose(history["validation_accuracy"], accuracy, atol=1e-4)
    np.testing.assert_allclose(value(model), -0.95, atol=1e-4)
    last = weight(side, 0.05)
    fit(side, last, slope, ones, settings, batches=one_row_each)
    np.testing.assert_allclose(value(last), -3.95, atol=1e-4)


@on_both_sides
def test_a_resumed_training_keeps_the_best_weights_of_before(side, tmp_path):
    """The best epoch is the first, and the training stops in the third."""
    ones = (np.ones((20, 1), np.float32),)
    settings = replace(ROWS, learning_rate=0.2, warmup=1)

    def stopped(epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        return one_row_each(epoch)

    options = {"validation": ones, "folder": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        fit(side, weight(side, 0.05), slope, ones, settings, batches=stopped, **options)
    model, options["batches"] = weight(side, 0.05), one_row_each
    history = fit(side, model, slope, ones, settings, **options)
    assert history["validation_accuracy"].argmax() == 0
    forgotten = "the best weights of before the stop are forgotten"
    np.testing.assert_allclose(value(model), -0.95, atol=1e-4, err_msg=forgotten)


def constant_accuracy(model, x):
    """A loss that is the weight times the mean of the data."""
    loss = (model.w[...] * x).mean()
    return loss, {"accuracy": 0 * loss + 0.5}


@on_both_sides
@pytest.mark.parametrize(("scale", "best"), [(1, -2.0), (-1, -0.5), (0, -0.5)])
def test_ties_in_accuracy_are_broken_by_loss_then_by_epoch(side, scale, best):
    """The validation loss falls with the weight, rises, or is always 0."""
    ones = np.ones((20, 1), np.float32)
    model = weight(side)
    options = {"batches": one_row_each, "validation": (scale * ones,)}
    fit(side, model, constant_accuracy, (ones,), replace(ROWS, warmup=1), **options)
    np.testing.assert_allclose(value(model), best, atol=1e-4)


# Losses that are NaN or infinite


def over_root(model, x):
    """The weight over the root of the data: NaN below 0, infinite at 0."""
    return (model.w[...] * x**-0.5).mean(), {"accuracy": 0 * model.w[...]}


@on_both_sides
@pytest.mark.parametrize(
    ("bad", "said", "norm"), [(-1, "nan", "nan"), (0, "-inf", "inf")]
)
def test_a_loss_that_is_nan_or_infinite_stops_the_training(
    side, bad, said, norm, tmp_path
):
    """At a known update; the epochs before it are kept, and the cause can be mended."""
    x = np.ones((20, 1), np.float32)
    settings = replace(ROWS, learning_rate=0.25, warmup=4)
    options = {"batches": one_row_each, "folder": tmp_path}
    x[13] = bad
    sentence = (
        f"the loss is {said} at update 13: learning rate 0.25, gradient norm {norm}; "
        "a lower learning rate, a longer warm-up or clipping may help"
    )
    with pytest.raises(FloatingPointError, match=f"^{re.escape(sentence)}$"):
        fit(side, weight(side), over_root, (x,), settings, **options)
    (path,) = tmp_path.glob("*/checkpoint*")
    kept = path.read_bytes()
    with pytest.raises(FloatingPointError, match=f"^{re.escape(sentence)}$"):
        fit(side, weight(side), over_root, (x,), settings, **options)
    assert path.read_bytes() == kept
    kinds = sorted(p.name.split(".")[0] for p in path.parent.iterdir())
    assert kinds == ["about", "checkpoint", "events"]


# evaluate


@on_both_sides
def test_evaluate_is_the_mean_over_all_examples(side):
    """Worked out by hand from all at once, whatever the size of the batches."""
    model, _ = train(side, replace(SMALL, dropout=0.3))
    model.train()
    x, y = DATA["validation"]
    logits = side.models.attention_maps(model, side.tensor(x))[0]
    logits = np.asarray(logits.tolist(), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(log_p, y[..., None], -1).mean()
    accuracy = (logits.argmax(-1) == y).mean()
    modes, train_of = side.modes(model), TRAIN[side.name]
    assert any(modes)
    loss_fn = train_of.cross_entropy
    for batch_size in (1000, 10):
        found = train_of.evaluate(model, loss_fn, (x, y), batch_size=batch_size)
        assert list(found) == ["loss", "accuracy"]
        assert [type(number) for number in found.values()] == [float, float]
        np.testing.assert_allclose([*found.values()], [loss, accuracy], rtol=1e-5)
    assert side.modes(model) == modes


def padded_texts(n=70, length=9):
    """Texts ``b s`` of 7 tokens, between 2 and all of them real, the rest -1."""
    rng = np.random.default_rng(3)
    texts = rng.integers(7, size=(n, length), dtype=np.int32)
    real = np.arange(length) < rng.integers(2, length + 1, size=n)[:, None]
    return np.where(real, texts, -1)


def language_model(side):
    sizes = {"n_blocks": 1, "n_heads": 2, "f": 11, "max_length": 9}
    return side.build("LanguageModel", 7, 6, **sizes)


@on_both_sides
def test_padding_makes_no_batch_count_for_more_than_its_tokens(side):
    """The mean over all tokens at once, whatever the size of the batches."""
    train_of, model, texts = TRAIN[side.name], language_model(side), padded_texts()
    expected = [*train_of.evaluate(model, train_of.next_token, (texts,)).values()]
    each = [
        [*train_of.evaluate(model, train_of.next_token, (text[None],)).values()]
        for text in texts[:5]
    ]
    by_hand = np.average(each, axis=0, weights=(texts[:5, 1:] >= 0).sum(axis=1))
    found = train_of.evaluate(model, train_of.next_token, (texts[:5],))
    np.testing.assert_allclose([*found.values()], by_hand, rtol=1e-6)
    for size in (1, 8, 16, 64):
        found = train_of.evaluate(model, train_of.next_token, (texts,), batch_size=size)
        np.testing.assert_allclose(
            [*found.values()], expected, rtol=1e-6, err_msg=f"batch size {size}"
        )


WHOLE = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@on_both_sides
@pytest.mark.parametrize("dtype", WHOLE)
def test_labels_and_tokens_may_be_of_any_integer_dtype(side, dtype):
    """The same numbers as with int32, also where ``fit`` reads them."""
    train_of, (x, y) = TRAIN[side.name], DATA["validation"]
    texts = np.abs(padded_texts())
    cases = [
        (predictor(side), train_of.cross_entropy, (x, y)),
        (language_model(side), train_of.next_token, (texts,)),
    ]
    for model, loss_fn, data in cases:
        *given, last = data
        found = train_of.evaluate(model, loss_fn, (*given, last.astype(dtype)))
        assert found == train_of.evaluate(model, loss_fn, data)
    settings, (x, y) = replace(SMALL, epochs=1), DATA["train"]
    args = predictor(side), train_of.cross_entropy, (x, y.astype(dtype)), settings
    assert fit(side, *args)["loss"][-1] == train(side, settings)[1]["loss"][-1]


def test_evaluate_builds_no_gradients():
    """In PyTorch, where a graph would hold every activation of a large batch."""
    recorded = []

    def loss_fn(model, x, y):
        loss, metrics = train_torch.cross_entropy(model, x, y)
        recorded.append(loss.requires_grad)
        return loss, metrics

    model = predictor(torch_side)
    train_torch.evaluate(model, loss_fn, DATA["validation"])
    assert recorded == [False]
    fit(torch_side, model, loss_fn, DATA["train"], SMALL)
    assert len(recorded) > 1
    assert all(recorded[1:])


@on_both_sides
def test_the_odd_one_is_the_class_of_a_set(side):
    """Cross-entropy over the elements, worked out by hand; the last one is right."""
    x = np.random.default_rng(9).normal(size=(60, 5, 7)).astype(np.float32)
    sizes = {"n_blocks": 1, "n_heads": 1, "f": 6, "positions": "none"}
    model = side.build("Predictor", 7, 4, 1, **sizes)
    logits = side.models.attention_maps(model, side.tensor(x))[0]
    p = np.exp(np.asarray(logits.tolist(), np.float64)[..., 0])
    p /= p.sum(axis=1, keepdims=True)
    found = TRAIN[side.name].evaluate(model, TRAIN[side.name].odd_one_out, (x,))
    expected = -np.log(p[:, -1]).mean(), (p.argmax(axis=1) == 4).mean()
    np.testing.assert_allclose([*found.values()], expected, rtol=1e-5)
    chosen = np.bincount(p.argmax(axis=1), minlength=5).tolist()
    assert 0 < expected[1] < 1
    assert chosen.count(chosen[4]) == 1, "another place would give the same accuracy"


@on_both_sides
def test_evaluate_keeps_mode_and_random_state_even_when_it_fails(side):
    """Some parts training, some not: each as it was."""
    model = predictor(side, dropout=0.3, input_dropout=0.2)
    model.eval()
    model.encoder.train()
    modes, x = side.modes(model), side.tensor(DATA["validation"][0])
    assert any(modes)
    assert not all(modes)
    before = side.drawn_next(model, x)
    train_of = TRAIN[side.name]
    train_of.evaluate(model, train_of.cross_entropy, DATA["validation"])
    with pytest.raises(ZeroDivisionError):
        train_of.evaluate(model, lambda *_: 1 / 0, DATA["validation"])
    assert side.modes(model) == modes
    np.testing.assert_array_equal(side.drawn_next(model, x), before)


# Bad input


X, Y = DATA["train"]
INDEX = shuffled(SMALL)(0)
LENGTHS = "expected equally long arrays of {}, not empty, got {} examples"
BATCHES = "expected batches n b … of whole numbers with n, b = (6, 8), got {} {}"
LABELS = "expected labels from 0 to 4 for 5 classes, got {} to {} in the {}"
KIND = "expected the labels of the {} to be whole numbers of shape {}, got {} {}"
FINITE = "expected the data to be finite, got {} in example 7 of array 0"


def with_one(x, place, value):
    """A copy with another value at one place."""
    x = x.copy()
    x[place] = value
    return x


def settings_with(name, value, found):
    """Settings that contradict the model, and the sentence that says so."""
    return {"settings": replace(SMALL, **{name: value})}, (
        f"expected a model with {name} = {value!r}, as the settings say, got one with "
        f"{name} = {found!r}"
    )


BAD_FITS = {
    "lengths": ({"data": (X, Y[:-1])}, LENGTHS.format("data", [50, 49])),
    "no rows": ({"data": (X[:0], Y[:0])}, LENGTHS.format("data", [0, 0])),
    "validation": (
        {"validation": (X, Y[1:])}, LENGTHS.format("validation data", [50, 49])
    ),
    "too few rows": (
        {"data": (X[:40], Y[:40])},
        f"expected rows from 0 to 39, got {INDEX.min()} to {INDEX.max()}",
    ),
    "below 0": (
        {"batches": lambda _: INDEX - 1},
        f"expected rows from 0 to 49, got {INDEX.min() - 1} to {INDEX.max() - 1}",
    ),
    "turned": ({"batches": lambda _: INDEX.T}, BATCHES.format("int32", (8, 6))),
    "a mask": ({"batches": lambda _: INDEX > 0}, BATCHES.format("bool", (6, 8))),
    "label -1": ({"data": (X, with_one(Y, 3, -1))}, LABELS.format(-1, 4, "data")),
    "label c": ({"data": (X, with_one(Y, 3, 5))}, LABELS.format(0, 5, "data")),
    "label of validation": (
        {"validation": (X, with_one(Y, 3, -100))},
        LABELS.format(-100, 4, "validation data"),
    ),
    "label shape": (
        {"data": (X, Y[:, :1])}, KIND.format("data", (50, 3), "int32", (50, 1))
    ),
    "label floats": (
        {"data": (X, Y.astype(np.float32))},
        KIND.format("data", (50, 3), "float32", (50, 3)),
    ),
    "NaN": ({"data": (with_one(X, (7, 1, 2), np.nan), Y)}, FINITE.format("nan")),
    "infinite": ({"data": (with_one(X, (7, 1, 2), -np.inf), Y)}, FINITE.format("-inf")),
    "length": (
        {"data": (X[:, :2], Y[:, :2])},
        "expected examples of shape (3, 5), as the settings say, got (2, 5)",
    ),
    "heads": settings_with("n_heads", 3, 2),
    "norm": settings_with("norm_first", True, False),
    "dropout": settings_with("dropout", 0.5, 0.0),
}  # fmt: skip


@on_both_sides
@pytest.mark.parametrize(("options", "message"), BAD_FITS.values(), ids=BAD_FITS)
def test_bad_input_raises_an_error_before_any_work(
    side, options, message, tmp_path, monkeypatch
):
    """The same sentence on both sides; no update, no file, the model as it was."""
    trainer = TRAIN[side.name].Trainer
    monkeypatch.setattr(
        trainer, "epoch", lambda *_: pytest.fail("an epoch was trained")
    )
    model = predictor(side)
    before, options = to_arrays(model), {"data": DATA["train"], **options}
    loss, data = TRAIN[side.name].cross_entropy, options.pop("data")
    settings = options.pop("settings", SMALL)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fit(side, model, loss, data, settings, folder=tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())
    for name, array in to_arrays(model).items():
        np.testing.assert_array_equal(array, before[name])


@on_both_sides
def test_batches_of_a_later_epoch_are_checked_too(side, tmp_path):
    """JAX would take the last row instead, without a word. The first epoch is kept."""

    def batches(epoch):
        return shuffled(SMALL)(epoch) + 50 * (epoch == 1)

    with pytest.raises(ValueError, match=r"^expected rows from 0 to 49, got 5"):
        train(side, batches=batches, folder=tmp_path)
    assert len(list(tmp_path.glob("*/checkpoint.safetensors"))) == 1


@on_both_sides
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "expected batch_size to be a whole number >= 1, got 0"),
        ({"data": (X, with_one(Y, 3, 5))}, LABELS.format(0, 5, "data")),
        ({"data": (X, Y[:-2])}, LENGTHS.format("data", [50, 48])),
    ],
    ids=["batch size", "label", "lengths"],
)
def test_evaluate_raises_an_error_for_bad_input(side, options, message):
    loss = TRAIN[side.name].cross_entropy
    options = {"data": DATA["train"], **options}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        TRAIN[side.name].evaluate(predictor(side), loss, **options)


# What fit leaves behind


@on_both_sides
def test_a_model_ends_in_evaluation_mode_trained_or_reloaded(side, tmp_path):
    settings = replace(SMALL, epochs=1, dropout=0.3)
    for how in ("trained", "reloaded"):
        model = predictor(side, settings)
        model.train()
        loss = TRAIN[side.name].cross_entropy
        fit(side, model, loss, DATA["train"], settings, folder=tmp_path)
        assert not any(side.modes(model)), f"{how}, and dropout is on"


@on_both_sides
def test_fit_keeps_the_global_random_state(side):
    """PyTorch's and NumPy's global generators go on as if nothing had been trained."""
    settings = replace(SMALL, dropout=0.3)
    models = [predictor(side, settings) for _ in range(2)]
    loss = TRAIN[side.name].cross_entropy
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    state = np.random.get_state()[1].copy()
    fit(side, models[0], loss, DATA["train"], settings, validation=DATA["validation"])
    with pytest.raises(FloatingPointError):
        hopeless = replace(settings, learning_rate=1e30, warmup=1, max_grad_norm=inf)
        fit(side, models[1], loss, DATA["train"], hopeless)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


@on_both_sides
def test_the_data_are_not_changed_and_may_be_of_any_layout_and_precision(side):
    """Read-only, reversed, float64: the same numbers give the same training."""
    x, y = (array.copy() for array in DATA["train"])
    expected = train(side)[1]["loss"]
    views = x[::-1].astype(np.float64)[::-1], np.asfortranarray(y.astype(np.int64))
    for view in views:
        view.flags.writeable = False
    loss = TRAIN[side.name].cross_entropy
    model = predictor(side)
    found = fit(side, model, loss, views, SMALL, validation=views)["loss"]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(views[0], x)
    np.testing.assert_array_equal(views[1], y)


class MaskedSlope:
    """A loss that is no function, and expects a mask to stay a mask."""

    def __call__(self, model, x, seen):
        assert str(seen.dtype).endswith("bool")
        loss = (model.w[...] * x * seen).mean()
        return loss, {"accuracy": 0 * loss}


@on_both_sides
def test_data_may_hold_masks_and_a_loss_may_be_any_callable(side):
    x = np.ones((20, 2), np.float32)
    args = weight(side), MaskedSlope(), (x, x > 0), replace(ROWS, warmup=1)
    history = fit(side, *args, batches=one_row_each)
    np.testing.assert_allclose(history["grad_norm"], 1, rtol=1e-6)
