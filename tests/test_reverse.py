"""The loop of *The reverse task*, beside the plain way of each framework."""

import sys
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
from hypothesis import given
from hypothesis import strategies as st

from helpers import settings as schedules
from helpers.data.sequences import draw_uniforms, reverse_data, shuffled
from helpers.settings import Settings
from helpers.weights import as_numpy, from_arrays, to_arrays
from sides import (
    assert_close,
    definitions,
    draw,
    fill,
    jax_side,
    on_both_sides,
    torch_side,
)

SIZES = {"n_inputs": 5, "m": 6, "n_outputs": 5, "n_blocks": 1, "n_heads": 2, "f": 10}
SMALL = Settings(
    n_train=50, batch_size=8, epochs=5, learning_rate=0.01, warmup=4, max_grad_norm=0.3
)
DATA = reverse_data(50, 3, n_symbols=5, n_validation=23, n_test=1)
ONES = (np.ones((20, 1), np.float32),)
ROWS = Settings(
    n_train=5,
    batch_size=1,
    epochs=4,
    learning_rate=0.2,
    schedule=schedules.warmup_constant,
    max_grad_norm=inf,
)


def train(side, settings=SMALL, seed=0, dropout=0.0, **options):
    """Train a new predictor; return it and its history."""
    model = side.build("Predictor", seed=seed, dropout=dropout, **SIZES)
    args = side.models.cross_entropy, DATA["train"], settings
    return model, side.models.fit(model, *args, **options)


# A model with one weight, which is its loss


class JaxWeight(nnx.Module):
    def __init__(self, rngs):
        self.w = nnx.Param(jnp.float32(0.05))


class TorchWeight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(0.05))


def weight(side):
    return side.build({"jax": JaxWeight, "torch": TorchWeight}[side.name])


def slope(model, x):
    """The weight times the mean of the data; accurate near a weight of -1."""
    w = model.w[...]
    return (w * x).mean(), {"accuracy": -2 - abs(w + 1)}  # as of a forecast


def one_row_each(epoch):
    """Update ``u`` of the training takes row ``u`` of the data."""
    return np.arange(5 * epoch, 5 * epoch + 5, dtype=np.int32)[:, None]


def fit_weight(side, data=ONES, settings=ROWS, loss=slope, **options):
    """The trained weight, and the history."""
    model, options = weight(side), {"batches": one_row_each} | options
    history = side.models.fit(model, loss, data, settings, **options)
    return to_arrays(model)["w"].item(), history


# Updates


def train_with_torch(plain, settings):
    """``torch.optim.AdamW`` and ``clip_grad_norm_``, one parameter at a time."""
    x, y = map(torch_side.tensor, DATA["train"])
    params, found = dict(plain.named_parameters()), []
    decay = [p for name, p in params.items() if "weight" in name and p.ndim > 1]
    rest = [p for p in params.values() if all(p is not d for d in decay)]
    groups = [{"params": decay}, {"params": rest, "weight_decay": 0}]
    adam = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    for epoch in range(settings.epochs):
        for rows in torch.tensor(shuffled(settings)(epoch)):
            for group in adam.param_groups:
                group["lr"] = float(settings.learning_rates[len(found)])
            adam.zero_grad()
            logits = plain(x[rows]).permute(0, 2, 1)
            loss = torch.nn.functional.cross_entropy(logits, y[rows])
            loss.backward()
            clip = torch.nn.utils.clip_grad_norm_
            norm = clip(plain.parameters(), settings.max_grad_norm)
            adam.step()
            found.append([loss.item(), norm.item()])
    return found


def train_with_optax(plain, settings):
    """``optax.adamw`` with a schedule; clipping by hand, step by step."""
    x, y = DATA["train"]
    rates = jnp.asarray(settings.learning_rates)
    graph, params, rest = nnx.split(plain, nnx.Param, ...)
    is_matrix = jax.tree.map(lambda p: p.ndim > 1, params)
    options = {"weight_decay": settings.weight_decay, "mask": is_matrix}
    adam = optax.adamw(lambda count: rates[count], **options)
    moments, found = adam.init(params), []

    @jax.jit
    def step(params, moments, x, y):
        def objective(params):
            logits = nnx.merge(graph, params, rest)(x)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return each.mean()

        loss, grads = jax.value_and_grad(objective)(params)
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
        part = jnp.minimum(1, settings.max_grad_norm / norm)
        grads = jax.tree.map(lambda g: part * g, grads)
        steps, moments = adam.update(grads, moments, params)
        return optax.apply_updates(params, steps), moments, loss, norm

    for epoch in range(settings.epochs):
        for rows in shuffled(settings)(epoch):
            params, moments, *numbers = step(params, moments, x[rows], y[rows])
            found.append([number.item() for number in numbers])
    nnx.update(plain, params)
    return found


@on_both_sides
@pytest.mark.parametrize(("clip", "decay"), [(0.3, 0.0), (inf, 0.5)])
def test_updates_are_those_of_the_optimizer_of_the_framework(side, clip, decay):
    """Same losses and gradient norms, and weights to 1e-5; clipping was at work.

    The bias of the keys has no gradient but rounding, which Adam enlarges: left out.
    """
    settings = replace(SMALL, max_grad_norm=clip, weight_decay=decay)
    model, history = train(side, settings)
    plain = side.build("Predictor", **SIZES)
    usual = {"jax": train_with_optax, "torch": train_with_torch}[side.name]
    losses, norms = np.array(usual(plain, settings)).T
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(history["grad_norm"], norms, rtol=1e-4)
    assert settings.updates == len(losses) == 30
    assert (norms > 0.3).mean() > 0.5
    arrays, expected = to_arrays(model), to_arrays(plain)
    for name in expected:
        got, want = arrays[name], expected[name]
        if name.endswith("qkv.bias"):
            got, want = np.delete([got, want], slice(6, 12), axis=1)
        assert_close(got, want, what=name)


@on_both_sides
@pytest.mark.parametrize("name", ["Predictor", "LanguageModel", "Recurrent"])
def test_matrices_decay_and_nothing_else(side, name):
    """With gradients of 0, decay alone changes weights: tables, too."""
    learned = {"positions": "learned", "max_length": 3}
    if name == "Predictor":
        model, data = side.build(name, **SIZES, **learned), DATA["train"][:1]
    elif name == "Recurrent":
        kind = definitions(f"reverse_{side.name}").Recurrent
        model, data = side.build(kind, 5, 6, 7), DATA["train"][:1]
    else:
        sizes = {"n_blocks": 1, "n_heads": 2, "f": 10, **learned}
        model, data = side.build(name, 5, 6, **sizes), DATA["train"][1:]
    model.embedding_norm = side.build("make_norm", 6, "layer")  # by kind, not by name
    model.kernel_net = side.build("projection", 6, 3, True)
    before = fill(model)

    def nothing(model, x):
        ones = side.tensor(np.ones((2, 6), np.float32))
        out = model.kernel_net(model.embedding_norm(ones))
        loss = 0 * (model(x).mean() + out.mean())
        return loss, {"accuracy": loss}

    settings = replace(SMALL, weight_decay=0.5)
    side.models.fit(model, nothing, data, settings)
    part = np.prod(1 - 0.5 * settings.learning_rates)
    for name, array in to_arrays(model).items():
        assert_close(array, before[name] * (part if array.ndim == 2 else 1), what=name)


@on_both_sides
def test_learning_rates_follow_the_schedule(side):
    """With a gradient of 1 at every update, Adam moves a weight by the very rate."""
    settings = replace(ROWS, warmup=9, schedule=schedules.inverse_square_root)
    _, history = fit_weight(side, settings=settings)
    np.testing.assert_array_equal(history["learning_rate"], settings.learning_rates)
    assert_close(-np.diff(history["loss"]), settings.learning_rates[:-1])
    assert_close(history["grad_norm"], np.ones(20))


def test_both_frameworks_have_the_same_losses():
    """From the same weights, on the same batches, with clipping and decay.

    For 50 updates, in which rounding changes them by about 1e-5; later ones magnify it.
    """
    settings = replace(SMALL, n_train=1600, batch_size=32, epochs=1, weight_decay=0.1)
    data, models = reverse_data(1600, 3, n_symbols=5)["train"], []
    for side in (jax_side, torch_side):
        models.append(side.build("Predictor", **SIZES))
    from_arrays(models[1], to_arrays(models[0]))
    found = [
        side.models.fit(model, side.models.cross_entropy, data, settings)["loss"]
        for side, model in zip((jax_side, torch_side), models, strict=True)
    ]
    assert len(found[0]) == 50
    np.testing.assert_allclose(*found, rtol=1e-3)
    assert found[0][-1] < 0.9 * found[0][0]


@on_both_sides
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_dropout_draws_new_masks_in_every_update(side, dropout):
    """At a learning rate near 0, on one batch again and again, only they differ."""
    still = replace(SMALL, learning_rate=1e-30, epochs=2)
    same = np.tile(np.arange(8), (6, 1))
    _, history = train(side, still, dropout=dropout, batches=lambda _: same)
    assert len({*history["loss"]}) == (12 if dropout else 1)


@on_both_sides
def test_each_update_is_augmented_by_the_numbers_of_its_epoch(side):
    """The gradient of ``slope`` is the mean of the augmented rows."""
    settings = replace(ROWS, n_train=20, batch_size=4, epochs=3)
    options = {"augment": lambda chances, x: (0 * x + chances[:, 0, None],)}
    _, history = fit_weight(side, settings=settings, batches=None, **options)
    drawn = [draw_uniforms(settings, n, shuffled(settings)(n)) for n in range(3)]
    expected = np.concatenate(drawn)[..., 0].mean(axis=1)  # an update
    assert len(np.unique(expected)) == 15
    np.testing.assert_allclose(history["grad_norm"], expected, rtol=1e-5)


@on_both_sides
def test_frozen_parameters_stay(side):
    """``wrt`` in JAX, ``requires_grad`` in PyTorch; decay leaves them alone, too."""
    model = side.build("Predictor", **SIZES)
    before, options = to_arrays(model), {}
    if side is jax_side:
        options["wrt"] = nnx.All(nnx.Param, nnx.PathContains("output"))
    else:
        model.requires_grad_(False)
        model.output.requires_grad_(True)
    settings = replace(SMALL, weight_decay=0.5)
    args = side.models.cross_entropy, DATA["train"], settings
    side.models.fit(model, *args, **options)
    for name, array in to_arrays(model).items():
        assert (array == before[name]).all() != name.startswith("output"), name


def test_jax_compiles_an_update_once_for_equal_shapes():
    """Whatever the seed, the rate and the weights, and in every epoch."""
    options, compiled = {"validation": DATA["validation"]}, []
    train(jax_side, **options)

    def listen(event, *_, **__):
        compiled.extend([event] * event.endswith("backend_compile_duration"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    train(jax_side, replace(SMALL, seed=7, learning_rate=0.02, warmup=9), 1, **options)
    assert not compiled
    train(jax_side, replace(SMALL, batch_size=5), **options)
    assert compiled, "it listens"


# The history, and the best weights


@on_both_sides
def test_the_history_has_every_update_and_every_epoch(side):
    """As float64; without validation, it has none of its numbers."""
    updates = ["loss", "accuracy", "grad_norm", "learning_rate"]
    tried = ["validation_loss", "validation_accuracy"]
    for validation in (None, DATA["validation"]):
        _, history = train(side, validation=validation)
        assert [*history] == [*updates, *(tried if validation else []), "seconds"]
        for name, column in history.items():
            assert column.dtype == np.float64
            assert len(column) == (30 if name in updates else 5)
            assert np.isfinite(column).all()
        assert (history["seconds"] > 0).all()


@on_both_sides
def test_validation_numbers_are_those_of_the_validation_data(side):
    """Of the weights after each epoch, without dropout, in batches as ``fit`` takes."""
    options = {"dropout": 0.4, "validation": DATA["validation"]}
    model, history = train(side, **options)
    plain = train(side, dropout=0.4)[1]["loss"]
    np.testing.assert_array_equal(history["loss"], plain)
    args = side.models.cross_entropy, DATA["validation"]
    found = side.models.evaluate(model, *args, batch_size=8)
    assert found["accuracy"] == history["validation_accuracy"].max()
    ties = history["validation_accuracy"] == found["accuracy"]
    np.testing.assert_allclose(found["loss"], history["validation_loss"][ties].min())


@on_both_sides
def test_the_weights_with_the_highest_accuracy_are_kept(side):
    """The weight falls past -1, where it is right, and goes on: -0.95 was the best."""
    kept, history = fit_weight(side, validation=ONES, best="accuracy")
    accuracy = -2 - abs(np.array([-0.95, -1.95, -2.95, -3.95]) + 1)
    assert_close(history["validation_accuracy"], accuracy, atol=1e-4)
    assert_close(kept, -0.95, atol=1e-4)
    assert_close(fit_weight(side)[0], -3.95, atol=1e-4)


@on_both_sides
def test_statistics_of_the_best_epoch_are_kept_too(side):
    """What a BatchNorm makes of ones falls in each epoch: the first is the best."""
    kind = nnx.BatchNorm if side is jax_side else torch.nn.BatchNorm1d
    model, settings = side.build(kind, 1), replace(ROWS, n_train=20, batch_size=4)

    def own_mean(model, x):
        out = model(x).mean()
        return 0 * out, {"accuracy": out}

    options = {"validation": ONES, "best": "accuracy"}
    history = side.models.fit(model, own_mean, ONES, settings, **options)
    found = history["validation_accuracy"]
    assert (np.diff(found) < 0).all()
    assert_close(model(side.tensor(ONES[0])), found[0])


@on_both_sides
@pytest.mark.parametrize(("scale", "best"), [(1, -3.95), (-1, -0.95), (0, -0.95)])
def test_ties_in_accuracy_are_broken_by_loss_then_by_epoch(side, scale, best):
    """The validation loss falls with the weight, rises, or is always 0."""

    def always_half(model, x):
        loss = (model.w[...] * x).mean()
        return loss, {"accuracy": 0 * loss + 0.5}

    validation = (scale * ONES[0],)
    options = {"validation": validation, "best": "accuracy"}
    kept, _ = fit_weight(side, loss=always_half, **options)
    assert_close(kept, best, atol=1e-4)


# What a reader does wrong, and what fit leaves behind


@on_both_sides
@pytest.mark.parametrize(("bad", "said"), [(-1, "nan"), (0, "-inf")])
def test_a_loss_that_is_nan_or_infinite_stops_the_training(side, bad, said):
    """At a known update."""
    x = np.ones((20, 1), np.float32)
    x[13] = bad

    def over_root(model, x):
        return (model.w[...] * x**-0.5).mean(), {"accuracy": 0 * model.w[...]}

    with pytest.raises(FloatingPointError, match=f"at update 13 the loss is {said}"):
        fit_weight(side, (x,), loss=over_root)


@on_both_sides
def test_a_model_ends_in_evaluation_mode_and_data_stay(side):
    before = [x.copy() for x in DATA["train"]]
    model = side.build("Predictor", **SIZES, dropout=0.3)
    state, one_epoch = torch.get_rng_state(), replace(SMALL, epochs=1)
    side.models.fit(model, side.models.cross_entropy, DATA["train"], one_epoch)
    assert torch.equal(torch.get_rng_state(), state), "a reader draws from it, too"
    x = side.tensor(DATA["validation"][0])
    np.testing.assert_array_equal(as_numpy(model(x)), as_numpy(model(x)))
    for x, old in zip(DATA["train"], before, strict=True):
        np.testing.assert_array_equal(x, old)


CELL = """
def scaled(x):
    return {} * alpha * x
"""
LOSS = """
def loss(model, x):
    value = (scaled(x) * model.w[...]).mean()
    return value, {"accuracy": 0 * value}
"""


@on_both_sides
def test_what_a_cell_defines_anew_is_used(side):
    """A number, or a function that the loss calls: JAX would run what it compiled."""
    notebook, found = vars(sys.modules["__main__"]), []
    exec(LOSS, notebook)
    for factor, notebook["alpha"] in ((1, 0.1), (1, 0.9), (5, 0.1)):
        exec(CELL.format(factor), notebook)
        loss = side.models.evaluate(weight(side), notebook["loss"], ONES)["loss"]
        found.append([loss, fit_weight(side, loss=notebook["loss"])[1]["loss"][0]])
    np.testing.assert_allclose(found, np.outer([1, 9, 5], found[0]), rtol=1e-5)


# evaluate


@on_both_sides
def test_evaluate_is_the_mean_over_all_examples(side):
    """Worked out by hand from all at once, whatever the size of the batches."""
    model, _ = train(side, dropout=0.3)
    model.train()
    x, y = DATA["validation"]
    logits = as_numpy(side.models.attention_maps(model, side.tensor(x))[0])
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(log_p, y[..., None], -1).mean()
    accuracy = (logits.argmax(-1) == y).mean()
    for batch_size in (1000, 10):
        args = side.models.cross_entropy, (x, y)
        found = side.models.evaluate(model, *args, batch_size=batch_size)
        assert [*found] == ["loss", "accuracy"]
        assert_close([*found.values()], [loss, accuracy])


@on_both_sides
def test_a_batch_counts_by_the_count_of_its_loss(side):
    """As padded sequences do: the loss of *Any length* has the real positions."""
    page = definitions(f"reverse_{side.name}")
    digits = np.random.default_rng(0).integers(10, size=(70, 9))
    lengths = np.random.default_rng(1).integers(10, size=70)  # 0 has no weight
    data = page.padded(digits, lengths)
    model = side.build("Predictor", **SIZES | {"n_inputs": 19, "n_outputs": 10})
    evaluate = partial(side.models.evaluate, model, page.padded_loss)
    expected = [*evaluate(data).values()]
    for size in (8, 1):
        assert_close([*evaluate(data, batch_size=size).values()], expected, atol=1e-6)
    inputs, real, labels = data
    noise = np.where(real[..., None], inputs, draw(70, 9, 19))
    other = noise, real, np.where(real, labels, 9 - labels)
    assert_close([*evaluate(other).values()], expected, atol=1e-6)


def test_evaluate_builds_no_gradients():
    """In PyTorch, where a graph would hold every activation of a large batch."""
    recorded = []

    def loss_fn(model, x, y):
        loss, metrics = torch_side.models.cross_entropy(model, x, y)
        recorded.append(loss.requires_grad)
        return loss, metrics

    model = torch_side.build("Predictor", **SIZES)
    torch_side.models.evaluate(model, loss_fn, DATA["validation"])
    assert recorded == [False]


@on_both_sides
def test_a_one_way_gru_knows_no_later_symbol(side):
    """Of the page: the framework's own cell, in the order of the positions."""
    model = definitions(f"reverse_{side.name}").new_recurrent(seed=3)
    x = draw(4, 6, 10)
    changed = x.copy()
    changed[:, 4] += 1
    old, new = (as_numpy(model(side.tensor(one))) for one in (x, changed))
    assert_close(new[:, :4], old[:, :4], atol=1e-6)
    assert (abs(new - old).max(axis=(0, 2))[4:] > 1e-3).all()


# Settings, data and batches


def test_schedules_equal_values_computed_by_hand():
    """Two updates of rise in six."""
    falls = [(1 + np.cos(np.pi * t / 5)) / 2 for t in range(1, 5)]
    expected = {
        schedules.warmup_constant: [0.5, 1, 1, 1, 1, 1],
        schedules.warmup_cosine: [0.5, 1, *falls],
        schedules.inverse_square_root: [0.5, 1, *(np.sqrt(2 / t) for t in range(3, 7))],
    }
    for schedule, values in expected.items():
        found = [schedule(step, 2, 6) for step in range(6)]
        np.testing.assert_allclose(found, values, rtol=1e-12)
        settings = replace(ROWS, n_train=1, epochs=6, warmup=2, schedule=schedule)
        assert settings.learning_rates.dtype == np.float32
        np.testing.assert_allclose(settings.learning_rates, 0.2 * np.array(values))


@pytest.mark.parametrize("total", [2, 19, 100])
def test_warmup_cosine_equals_that_of_optax(total):
    w = max(1, total // 20)
    theirs = optax.warmup_cosine_decay_schedule(1 / w, 1, w - 1, total)
    ours = [schedules.warmup_cosine(step, w, total) for step in range(total)]
    assert_close(ours, theirs(np.arange(total)), atol=1e-6)
    assert min(ours) > 0


def test_labels_are_the_sequences_from_their_end():
    """Inputs are the same symbols as rows with a single 1; no part has another's."""
    data = reverse_data(2000, 16, n_test=2000)
    for (x, labels), n in zip(data.values(), (2000, 1000, 2000), strict=True):
        assert x.shape == (n, 16, 10)
        assert (x.dtype, labels.dtype) == (np.float32, np.int32)
        assert {*np.unique(x)} == {0, 1}
        assert (x.sum(-1) == 1).all()
        np.testing.assert_array_equal(x.argmax(-1), labels[:, ::-1])
    sets = [{row.tobytes() for row in labels} for _, labels in data.values()]
    assert len(set.union(*sets)) == 5000
    again = reverse_data(2000, 16, n_test=2000)["test"]
    np.testing.assert_array_equal(again[1], data["test"][1])
    other = reverse_data(2000, 16, n_test=2000, seed=7)["test"]
    assert (other[1] != data["test"][1]).any()


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9), st.integers(0, 99))
def test_an_epoch_takes_no_example_twice(n_train, batch_size, epoch, seed):
    """Whole batches; what does not fill one is left out."""
    sizes = {"n_train": n_train, "batch_size": min(batch_size, n_train), "seed": seed}
    settings = replace(SMALL, **sizes, warmup=1)
    index = shuffled(settings)(epoch)
    assert index.shape == (settings.updates_per_epoch, settings.batch_size)
    assert len(np.unique(index)) == index.size
    assert 0 <= index.min() <= index.max() < n_train


def test_batches_and_random_numbers_follow_from_seed_and_epoch_alone():
    """Whichever epochs came before; others in each epoch, and for another seed."""
    forwards, backwards, other = map(shuffled, (SMALL, SMALL, replace(SMALL, seed=43)))
    there = [forwards(epoch) for epoch in range(5)]
    back = [backwards(epoch) for epoch in reversed(range(5))][::-1]
    np.testing.assert_array_equal(there, back)
    assert len({index.tobytes() for index in there}) == 5, "two epochs are alike"
    assert (there[0] != other(0)).any()
    uniforms = [draw_uniforms(SMALL, epoch, there[0]) for epoch in (0, 1, 0)]
    np.testing.assert_array_equal(uniforms[0], uniforms[2])
    assert not np.isin(uniforms[0], uniforms[1]).any(), "two epochs are augmented alike"
    assert uniforms[0].shape == (6, 8, 8)
    assert 0 <= uniforms[0].min() < 0.05 and 0.95 < uniforms[0].max() < 1
