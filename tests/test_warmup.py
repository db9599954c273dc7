"""*Warm-up*: the page's loop, schedules, Adam and clipping are the frameworks' own."""

from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np
import optax
import pytest
import torch
from torch.optim import lr_scheduler
from transformers import get_cosine_schedule_with_warmup

from helpers import as_numpy, settings
from helpers.data.sequences import reverse_data, shuffled
from sides import assert_close, definitions, draw, jax_side, on_both_sides, torch_side

SIZES = {"n_inputs": 10, "m": 8, "n_outputs": 10, "n_blocks": 2, "n_heads": 2, "f": 6}
SMALL = settings.Settings(
    n_train=64, batch_size=8, epochs=3, learning_rate=3e-3, warmup=5
)


page = cache(lambda side: definitions(f"warmup_{side.name}"))


def train(side, model, n=24, **options):
    """Losses of one run on sequences of three digits, on the batches of ``fit``."""
    data = reverse_data(64, 3)["train"]
    batches = np.concatenate([shuffled(SMALL)(epoch) for epoch in range(3)])[:n]
    schedule = partial(page(side).warmup_cosine, warmup=5, total=24)
    return page(side).train(model, data, batches, schedule, peak=3e-3, **options)


@on_both_sides
@pytest.mark.parametrize("clip", [np.inf, 0.1])
def test_the_loop_does_what_fit_does(side, clip):
    fitted = side.build("Predictor", **SIZES)
    clipped = replace(SMALL, max_grad_norm=clip)
    args = side.models.cross_entropy, reverse_data(64, 3)["train"], clipped
    expected = side.models.fit(fitted, *args)["loss"]
    found = train(side, side.build("Predictor", **SIZES), clip=clip)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert found.shape == expected.shape == (24,)
    assert found[-1] < found[0]


@on_both_sides
def test_the_loop_clips_and_decays(side):
    """A gradient far below Adam's ε moves nothing; decay alone can empty a weight."""
    model, x = side.build("Predictor", **SIZES), side.tensor(draw(4, 10))
    for decay, part in ((0.0, 1), (5 / 3e-3, 0)):  # the first rate is 3e-3 / 5
        before = as_numpy(model.embed(x))
        train(side, model, n=1, clip=1e-14, decay=decay)
        assert_close(model.embed(x), part * before, atol=1e-6)


@on_both_sides
def test_the_loop_draws_new_masks_of_dropout(side):
    """The rate is 0, and the batch the same, so that only masks differ."""
    model = side.build("Predictor", **SIZES, dropout=0.5)
    model.train()
    data = reverse_data(8, 3)["train"]
    rows = np.tile(np.arange(8), (16, 1))
    losses = page(side).train(model, data, rows, lambda t: 1.0, peak=0.0)
    assert len({*losses.tolist()}) == 16


@on_both_sides
def test_outputs_of_each_block_are_those_of_the_encoder(side):
    model = side.build("Predictor", **SIZES)
    x = side.tensor(draw(4, 5, 10))
    outputs = page(side).block_outputs(model, x)
    assert outputs.shape == (2, 4, 5, 8)
    expected = model.encoder(model.positions(model.embed(x)))
    assert_close(outputs[-1], expected)


@on_both_sides
@pytest.mark.parametrize(("warmup", "total"), [(1, 2), (1, 30), (7, 30), (29, 30)])
def test_schedules_of_the_page_are_those_of_the_settings(side, warmup, total):
    for name in ("warmup_cosine", "inverse_square_root"):
        ours, theirs = getattr(page(side), name), getattr(settings, name)
        for step in range(total):
            expected = theirs(step, warmup, total)
            assert ours(step, warmup, total) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("warmup", "total"), [(1, 2), (2, 30), (7, 30), (29, 30)])
def test_schedulers_of_pytorch_and_hugging_face_are_that_of_the_page(warmup, total):
    """As PyTorch's page calls them; Hugging Face's begins one update before, at 0."""
    w, schedule = warmup, page(torch_side).warmup_cosine
    expected = [schedule(t, w, total) for t in range(total)]
    optimizer, rates = torch.optim.SGD([torch.zeros(1)], lr=1.0), []
    later = get_cosine_schedule_with_warmup(optimizer, w, total + 1).lr_lambdas[0]
    assert [later(t) for t in range(total + 1)] == pytest.approx([0, *expected])
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    rise = lr_scheduler.LinearLR(optimizer, 1 / w, total_iters=w - 1)
    fall = lr_scheduler.CosineAnnealingLR(optimizer, total + 1 - w)
    scheduler = lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[w - 1])
    for _ in expected:
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected)


def framework_steps(side, grads):
    """Steps of the framework's Adam at rate 1: ``t n -> t n``."""
    if side is jax_side:
        adam, steps = optax.adam(1.0), []
        state = adam.init(grads[0])
        for grad in grads:
            step, state = adam.update(grad, state)
            steps.append(-step)
        return np.array(steps)
    weight, weights = torch.nn.Parameter(torch.zeros(grads.shape[1])), []
    adam = torch.optim.Adam([weight], lr=1.0)
    for weight.grad in torch.tensor(grads):
        adam.step()
        weights.append(as_numpy(weight).copy())
    return -np.diff(weights, axis=0, prepend=0)


@on_both_sides
@pytest.mark.parametrize("scale", [1, 1e-6])
def test_adam_of_the_framework_takes_the_steps_of_the_page(side, scale):
    grads = scale * draw(40, 23)
    ours = page(side).adam_steps(grads.astype(float))
    assert_close(framework_steps(side, grads), ours, atol=1e-3)
    assert_close(ours[0], grads[0] / (abs(grads[0]) + 1e-8), atol=1e-6)


@on_both_sides
@pytest.mark.parametrize("scale", [0.01, 10])
def test_clipping_is_that_of_the_framework(side, scale):
    grads = [scale * draw(2, 3, seed=1), scale * draw(5, seed=2)]
    ours = page(side).clip_by_global_norm(grads, 1.0)
    if side is jax_side:
        arrays = [jax.numpy.asarray(g) for g in grads]
        theirs, _ = optax.clip_by_global_norm(1.0).update(arrays, None)
    else:
        params = [torch.nn.Parameter(torch.zeros(g.shape)) for g in grads]
        for param, g in zip(params, grads, strict=True):
            param.grad = torch.tensor(g)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        theirs = [param.grad for param in params]
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b)
    assert np.sqrt(sum((g**2).sum() for g in ours)) <= 1 + 1e-6
