"""*Warm-up*: the page's loop, schedules, Adam and clipping are the frameworks' own."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import optax
import pytest
import torch

from helpers import settings
from helpers.data.sequences import reverse_data, shuffled
from sides import assert_close, definitions, draw, jax_side, on_both_sides

SIZES = {"n_inputs": 10, "m": 8, "n_outputs": 10, "n_blocks": 2, "n_heads": 2, "f": 6}
SMALL = settings.Settings(
    n_train=64, batch_size=8, epochs=3, learning_rate=3e-3, warmup=5
)


@cache
def page(side):
    """The definitions of the page; in JAX without its option for XLA.

    Jaxlib 0.10.1 computes something else where this option meets flags of the tests.
    """
    found = definitions(f"warmup_{side.name}")
    if side is jax_side:
        plain = found.updates_at.__wrapped__
        found.updates_at = jax.jit(plain, static_argnames="graph")
    return found


def train(side, model, rates=SMALL.learning_rates):
    """Losses of one run on sequences of three digits, on the batches of ``fit``."""
    data = [side.tensor(x) for x in reverse_data(64, 3)["train"]]
    batches = np.concatenate([shuffled(SMALL)(epoch) for epoch in range(3)])
    return page(side).train(model, data, batches[: len(rates)], rates)


@on_both_sides
def test_the_loop_does_what_fit_does(side):
    """But for the second average, whose first steps are those of any β₂."""
    fitted = side.build("Predictor", **SIZES)
    never = replace(SMALL, max_grad_norm=np.inf)
    args = side.models.cross_entropy, reverse_data(64, 3)["train"], never
    expected = side.models.fit(fitted, *args)["loss"]
    found = train(side, side.build("Predictor", **SIZES))
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-4)
    assert found.shape == expected.shape == (24,)
    assert found[-1] < found[0]


@on_both_sides
def test_the_loop_draws_new_masks_of_dropout(side):
    """The rate is 0, and the batch the same, so that only masks differ."""
    model = side.build("Predictor", **SIZES, dropout=0.5)
    model.train()
    data = [side.tensor(x) for x in reverse_data(8, 3)["train"]]
    rows, rates = np.tile(np.arange(8), (16, 1)), np.zeros(16, "float32")
    losses = page(side).train(model, data, rows, rates)
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


@on_both_sides
@pytest.mark.parametrize("scale", [1, 1e-6])
def test_adam_of_the_framework_takes_the_steps_of_the_page(side, scale):
    grads = scale * draw(40, 23)
    ours = page(side).adam_steps(grads.astype(float))
    assert_close(page(side).framework_steps(side.tensor(grads)), ours, atol=1e-3)
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
    norm = np.sqrt(sum((g**2).sum() for g in ours))
    assert norm <= 1 + 1e-6


@on_both_sides
def test_gradients_of_each_block_are_those_of_the_whole_stack(side):
    """Of each block's last matrix, whatever its norms."""
    x, probe = draw(2, 4, 5, 64)
    for norm_first in (False, True):
        encoder = page(side).new_encoder(3, 2, norm_first)
        found = page(side).layer_gradients(encoder, x, probe)

        def loss(out):
            return (out * side.tensor(probe)).sum()

        grads = side.grads(encoder, loss, side.tensor(x))
        names = [f"blocks.{n}.ffn.linear2.weight" for n in range(2)]
        expected = [np.linalg.norm(grads[name]) for name in names]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
