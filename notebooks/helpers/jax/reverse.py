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
from helpers.data.sequences import batches_of
from helpers.jax.encoder import without_dropout
from helpers.jax.frameworks import tensor

__all__ = "evaluate fit make_optimizer score update".split()


@cache
def make_optimizer(max_grad_norm, weight_decay):
    """Clipping, then AdamW that decays matrices only; updates bring their ``rate``."""

    def is_matrix(params):
        return jax.tree.map(lambda param: param.ndim > 1, params)

    def times_rate(steps, state, params=None, *, rate):
        return jax.tree.map(lambda step: rate * step, steps), state

    return optax.chain(  # first to last
        optax.clip_by_global_norm(max_grad_norm),
        optax.adamw(1.0, weight_decay=weight_decay, mask=is_matrix),
        optax.GradientTransformationExtraArgs(optax.init_empty_state, times_rate),
    )


@partial(nnx.jit, static_argnums=2)
def update(model, optimizer, loss_fn, batch, rate):
    """One update, in place: the loss, its metrics and the norm of the gradient."""
    trained = nnx.DiffState(0, optimizer.wrt)
    gradient = nnx.value_and_grad(loss_fn, argnums=trained, has_aux=True)
    (loss, metrics), grads = gradient(model, *batch)
    optimizer.update(model, grads, rate=rate)
    return {"loss": loss, **metrics, "grad_norm": optax.tree.norm(grads)}


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
    means = checks.as_columns(rows)
    count = means.pop("count")
    checks.check_finite(means, 0, arrays, "batch")
    return {name: np.average(x, weights=count).item() for name, x in means.items()}


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
    """Train a model in place, and keep its best weights; return what was measured.

    ``data`` and ``validation`` are tuples of NumPy arrays. The best epoch is that with
    the lowest validation loss, or the highest metric ``best``. For later chapters:
    ``batches`` and ``augment``, see ``batches_of``, and what is trained, ``wrt``.
    Returned are arrays by name: of updates ``loss``, metrics, ``grad_norm`` (before
    clipping) and ``learning_rate``; of epochs ``validation_loss`` …, and ``seconds``.
    """
    arrays = checks.checked(model, data)
    checks.checked(model, validation or data)
    source = arrays, settings, tensor, batches, augment
    rates = settings.learning_rates.reshape(settings.epochs, -1)
    adamw = make_optimizer(settings.max_grad_norm, settings.weight_decay)
    optimizer = nnx.Optimizer(model, adamw, wrt=wrt)
    step = nnx.cached_partial(update, model, optimizer)
    this_loss = ByCode(loss_fn, nnx.graphdef(model))
    model.train()  # dropout on
    updates, epochs, top, kept = [], [], (), None
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, found = time.perf_counter(), []
        for batch, rate in zip(batches_of(epoch, *source), rates[epoch], strict=True):
            found.append(step(this_loss, batch, rate) | {"learning_rate": rate})
        checks.check_finite(checks.as_columns(found), len(updates), arrays)
        updates += found
        scores = {}
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            higher = scores | {"loss": -scores["loss"]}  # the higher, the better
            rank = (higher[best], higher["loss"])  # of equal metrics, the lower loss
            if rank > top:
                top, kept = rank, nnx.clone(model)
        scores = {f"validation_{name}": x for name, x in scores.items()}
        epochs.append(scores | {"seconds": time.perf_counter() - start})
    if kept:
        nnx.update(model, nnx.state(kept))
    model.eval()
    return checks.as_columns(updates) | checks.as_columns(epochs)
