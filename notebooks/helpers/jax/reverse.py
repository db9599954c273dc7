"""Written by `make sync` from notebooks/reverse_jax.py."""

import math
import time
from functools import cache, partial

import jax
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

from helpers import ByCode
from helpers.data import checks
from helpers.data.sequences import draw_uniforms, shuffled
from helpers.jax.encoder import without_dropout
from helpers.jax.frameworks import tensor

__all__ = "as_columns augmented evaluate fit make_optimizer score update".split()


@cache
def make_optimizer(max_grad_norm, weight_decay):
    """Clipping, then AdamW that decays matrices only; updates bring their ``rate``."""

    def is_matrix(params):
        return jax.tree.map(lambda param: param.ndim > 1, params)

    def times_rate(steps, state, params=None, *, rate):
        return jax.tree.map(lambda step: rate * step, steps), state

    clip = optax.clip_by_global_norm(max_grad_norm)
    adamw = optax.adamw(1.0, weight_decay=weight_decay, mask=is_matrix)
    empty = optax.init_empty_state
    scale = optax.GradientTransformationExtraArgs(empty, times_rate)
    return optax.chain(clip, adamw, scale)


@partial(nnx.jit, static_argnums=2)
def update(model, optimizer, loss_fn, batch, rate):
    """One update, in place: the loss, its metrics and the norm of the gradient."""
    trained = nnx.DiffState(0, optimizer.wrt)
    gradient = nnx.value_and_grad(loss_fn, argnums=trained, has_aux=True)
    (loss, metrics), grads = gradient(model, *batch)
    optimizer.update(model, grads, rate=rate)
    return {"loss": loss, **metrics, "grad_norm": optax.tree.norm(grads)}


def as_columns(rows):
    """A float64 array for each name, the loss first; a row has numbers by name."""
    names = sorted(rows[0], key=lambda name: "loss" not in name)
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


@partial(nnx.jit, static_argnums=1)
def score(model, loss_fn, batch):
    """Loss and metrics of a batch; ``"count"``: over how many terms they are means."""
    loss, metrics = loss_fn(model, *batch)
    return {"loss": loss, "count": len(batch[0]), **metrics}


def evaluate(model, loss_fn, data, batch_size=1000):
    """Mean loss and metrics on arrays of NumPy, with dropout off: by name, a number.

    A batch counts by its examples, or by a ``"count"`` among the metrics of the loss.
    """
    arrays, rows = checks.checked(model, data), []
    model, loss_fn = without_dropout(model), ByCode(loss_fn, nnx.graphdef(model))
    n_batches = math.ceil(len(arrays[0]) / batch_size)
    for part in np.array_split(np.arange(len(arrays[0])), n_batches):
        batch = [tensor(x[part]) for x in arrays]
        rows.append(score(model, loss_fn, batch))
    means = as_columns(rows)
    count = means.pop("count")
    checks.check_finite(means, 0, arrays, "batch")
    return {name: np.average(x, weights=count).item() for name, x in means.items()}


def augmented(loss_fn, augment):
    """The loss of a changed batch, whose first array is for ``augment``."""

    def loss_of_augmented(model, uniforms, *batch):
        return loss_fn(model, *augment(uniforms, *batch))

    return loss_of_augmented


def fit(
    model,
    loss_fn,
    data,
    settings,
    *,
    validation=None,
    best="loss",
    batches=None,
    augment=None,
    wrt=nnx.Param,
):
    """Train a model in place: its history, and the model with its best weights.

    Parameters
    ----------
    loss_fn : function ``(model, *batch) -> (loss, metrics)``
    data, validation : tuples of NumPy arrays
        A batch is the same rows of each. Validation data, tried after each epoch,
        choose the weights that are kept; without them these are the last ones.
    best : "loss", whose lowest value chooses, or a metric, whose highest does
    batches : function from the epoch to the rows of every update, ``n b``, or shuffled
    augment : function ``(uniforms, *batch) -> batch``
        Changes every batch; ``uniforms`` are eight random numbers an example, ``b 8``.
    wrt : filter of what is trained, as in ``nnx.Optimizer``; the rest is frozen

    Returns
    -------
    dict of str to float64 array
        Of updates ``loss``, metrics, ``grad_norm`` before clipping, ``learning_rate``;
        of epochs ``validation_loss``, ``validation_`` and a metric, ``seconds``.

    Raises
    ------
    ValueError, FloatingPointError
        Where the data do not fit; if a loss or a gradient is not finite.
    """
    arrays, *_ = [checks.checked(model, x) for x in (data, validation) if x]
    batches = batches or shuffled(settings)
    train_loss = augmented(loss_fn, augment) if augment else loss_fn
    train_loss = ByCode(train_loss, nnx.graphdef(model))
    rates = settings.learning_rates.reshape(settings.epochs, -1)
    model.train()  # dropout on
    adamw = make_optimizer(settings.max_grad_norm, settings.weight_decay)
    optimizer = nnx.Optimizer(model, adamw, wrt=wrt)
    step = nnx.cached_partial(update, model, optimizer)
    updates, epochs, top, kept = [], [], None, None
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, found, index = time.perf_counter(), [], batches(epoch)
        uniforms = draw_uniforms(settings, epoch, index)  # n b 8
        for n, (rows, rate) in enumerate(zip(index, rates[epoch], strict=True)):
            batch = [tensor(x[rows]) for x in arrays]
            batch = [tensor(uniforms[n]), *batch] if augment else batch
            found.append(step(train_loss, batch, rate) | {"learning_rate": rate})
        checks.check_finite(as_columns(found), len(updates), arrays)
        updates += found
        scores = {}
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            chosen = -scores["loss"] if best == "loss" else scores[best]
            if top is None or (chosen, -scores["loss"]) > top:
                top, kept = (chosen, -scores["loss"]), nnx.clone(model)
        scores = {f"validation_{name}": x for name, x in scores.items()}
        epochs.append(scores | {"seconds": time.perf_counter() - start})
    if kept:
        nnx.update(model, nnx.state(kept))
    model.eval()
    return as_columns(updates) | as_columns(epochs)
