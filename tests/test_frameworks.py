"""Two frameworks: arrays, the loss and the first training loop, in both of them."""

import numpy as np
import pytest
import torch

from helpers.weights import as_numpy, from_arrays
from sides import definitions, draw, jax_side, on_both_sides, torch_side

LOSSES = {  # and the page of each
    "cross_entropy": "frameworks", "next_token": "decoder", "padded_loss": "reverse",
    "masked_token": "masked", "odd_one_out": "anomaly",
}  # fmt: skip


@on_both_sides
def test_arrays_keep_their_kind(side):
    kinds = {"float64": "float32", "int32": "int", "uint8": "uint8", "bool": "bool"}
    for given, kind in kinds.items():
        x = side.models.tensor(np.ones(3, given))
        assert kind in str(x.dtype), given


@on_both_sides
def test_cross_entropy_is_minus_the_logarithm_of_the_right_class(side):
    logits, labels = 3 * draw(5, 7, 3), np.arange(35).reshape(5, 7) % 3
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(p, labels[..., None], -1)).mean()
    tensors = side.models.tensor(logits), side.models.tensor(labels)
    loss, metrics = side.models.cross_entropy(lambda x: x, *tensors)
    np.testing.assert_allclose(float(loss), expected, rtol=1e-5)
    right = (logits.argmax(-1) == labels).mean()
    np.testing.assert_allclose(float(metrics["accuracy"]), right, rtol=1e-6)


@on_both_sides
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_computed_in_float32(side, name):
    """Of logits in bfloat16 as of the same numbers in float32, to the last bit."""
    tokens = side.tensor(np.arange(40).reshape(5, 8) % 3)
    labels, c = tokens[:, 1:], 1 if name == "odd_one_out" else 3
    given = {"next_token": (tokens,), "odd_one_out": (labels,)}.get(name, (labels,) * 2)
    if name == "padded_loss":
        given = labels, labels >= 0, labels
    half = side.tensor(9 * draw(5, 7, c), "bfloat16")
    loss_fn = getattr(definitions(f"{LOSSES[name]}_{side.name}"), name)
    found, _ = loss_fn(lambda *_: half, *given)
    expected, _ = loss_fn(lambda *_: side.tensor(as_numpy(half)), *given)
    assert "float32" in str(found.dtype) and float(found) == float(expected)


def adam(w, x, y, batches, rate):
    """Losses of Adam on a classifier of two dense layers, in float64, by hand."""
    mean = {k: 0 * a for k, a in w.items()}
    square, losses = {k: 0 * a for k, a in w.items()}, []
    for t, rows in enumerate(batches, start=1):
        hidden = np.maximum(x[rows] @ w["hidden.weight"] + w["hidden.bias"], 0)
        logits = hidden @ w["output.weight"] + w["output.bias"]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        losses.append(-np.log(p[np.arange(len(rows)), y[rows]]).mean())
        by_logits = (p - np.eye(p.shape[1])[y[rows]]) / len(rows)
        by_hidden = by_logits @ w["output.weight"].T * (hidden > 0)
        by_weights = x[rows].T @ by_hidden, by_hidden.sum(0)
        grads = *by_weights, hidden.T @ by_logits, by_logits.sum(0)
        for k, g in zip(w, grads, strict=True):
            mean[k] += 0.1 * (g - mean[k])
            square[k] += 0.001 * (g**2 - square[k])
            root = np.sqrt(square[k] / (1 - 0.999**t)) + 1e-8
            w[k] = w[k] - rate * mean[k] / (1 - 0.9**t) / root
    return losses


@on_both_sides
def test_the_loop_of_the_page_is_adam(side):
    """Forty losses, beside those of gradients and averages written by hand."""
    page = definitions(f"frameworks_{side.name}")
    names = "hidden.weight", "hidden.bias", "output.weight", "output.bias"
    shapes = (7, 11), (11,), (11, 3), (3,)
    arrays = [draw(*shape, seed=i, scale=0.5) for i, shape in enumerate(shapes)]
    initial = dict(zip(names, arrays, strict=True))
    x, y = draw(13, 7, seed=5), np.arange(13) % 3
    batches = np.random.default_rng(0).integers(13, size=(40, 5))
    model = side.build(page.Classifier, 7, 11, 3)
    from_arrays(model, initial)
    losses = as_numpy(page.train(model, *map(side.tensor, (x, y, batches)), 0.01))
    np.testing.assert_allclose(losses, adam(initial, x, y, batches, 0.01), rtol=1e-3)


def test_dropout_is_off_in_predict():
    """Both pages: the same outputs twice, and PyTorch records no graph."""
    for side in (jax_side, torch_side):
        page = definitions(f"frameworks_{side.name}")
        model = page.new_model()
        if side is torch_side:
            layers = torch.nn.Sequential(model, torch.nn.Dropout(0.5))
        else:
            nnx = page.nnx
            layers = nnx.Sequential(model, nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
        twice = [page.predict(layers, draw(5, 64)) for _ in range(2)]
        np.testing.assert_array_equal(*twice)
