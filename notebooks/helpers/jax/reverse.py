"""The chapter *The reverse task* builds these: the training loop, and evaluation."""

import time
from collections import defaultdict
from functools import partial

import jax
import numpy as np
import optax
from flax import nnx
from tensorboard.summary import Writer
from tqdm import tqdm

from helpers.data.sequences import draw_uniforms, shuffled
from helpers.jax.encoder import without_dropout
from helpers.jax.frameworks import tensor

__all__ = [
    "append",
    "check_finite",
    "evaluate",
    "fit",
    "make_optimizer",
    "score",
    "train_epoch",
    "weighted_means",
]


def make_optimizer(rates, max_grad_norm, weight_decay):
    """Clipping, then AdamW that decays matrices only; ``rates`` has one an update."""

    def decays(params):
        """True for kernels and embeddings, False for all others."""
        names = jax.tree.map_with_path(lambda path, _: str(path), params)
        return jax.tree.map(lambda name: "kernel" in name or "embedding" in name, names)

    adamw = optax.adamw(
        lambda count: rates[count], weight_decay=weight_decay, mask=decays
    )
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), adamw)


@partial(jax.jit, static_argnums=range(5, 11))
def train_epoch(
    state,
    data,
    batches,
    uniforms,
    rates,
    graph,
    loss_fn,
    max_grad_norm,
    weight_decay,
    augment,
    wrt,
):
    """All updates of an epoch, as one ``scan``: the new state, and three numbers each."""
    optimizer = make_optimizer(rates, max_grad_norm, weight_decay)

    def update(state, given):
        """One update: its loss, accuracy and norm of the gradient."""
        params, rest, opt_state = state
        rows, chance = given
        batch = [x[rows] for x in data]
        batch = augment(chance, *batch) if augment else batch

        def objective(params):
            model = nnx.merge(graph, params, rest, copy=True)
            loss, metrics = loss_fn(model, *batch)
            return loss, (metrics["accuracy"], nnx.split(model, wrt, ...)[2])

        gradient = jax.value_and_grad(objective, has_aux=True)
        (loss, (accuracy, rest)), grads = gradient(params)
        steps, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, steps)
        found = {
            "loss": loss,
            "accuracy": accuracy,
            "grad_norm": optax.tree.norm(grads),
        }
        return (params, rest, opt_state), found

    return jax.lax.scan(update, state, (batches, uniforms))


def check_finite(news, first):
    """Stop at the first update whose loss or gradient is not a finite number."""
    finite = np.isfinite(news["loss"]) & np.isfinite(news["grad_norm"])
    if not finite.all():
        at = int(np.argmin(finite))
        raise FloatingPointError(
            f"at update {first + at} the loss is {news['loss'][at]:.4g}, the norm of "
            f"the gradient {news['grad_norm'][at]:.4g}: are the inputs finite and the "
            "labels in range? A lower learning rate, a longer warm-up or clipping help"
        )


def append(history, news, writer=None):
    """Append the numbers of an epoch to a history; a writer has them for TensorBoard."""
    for name, values in news.items():
        for value in np.atleast_1d(values).tolist():
            if writer:
                writer.add_scalar(name, value, len(history[name]))
            history[name].append(value)


def weighted_means(rows):
    """Mean loss and accuracy of batches: each row has both, and how many they count."""
    losses, accuracies, counts = np.array(rows, dtype=float).T
    loss = np.average(losses, weights=counts).item()
    return {"loss": loss, "accuracy": np.average(accuracies, weights=counts).item()}


@partial(jax.jit, static_argnames=("graph", "loss_fn"))
def score(state, batch, *, graph, loss_fn):
    """Loss and accuracy of one batch, and how many terms they are means over."""
    loss, metrics = loss_fn(nnx.merge(graph, state), *batch)
    return loss, metrics["accuracy"], metrics.get("count", len(batch[0]))


def evaluate(model, loss_fn, data, batch_size=1000):
    """Mean loss and accuracy on arrays of NumPy, with dropout off: two numbers.

    A batch counts by its examples, or by a ``"count"`` among the loss function's metrics.
    """
    graph, state = nnx.split(without_dropout(model))
    data, rows = [tensor(x) for x in data], []
    for start in range(0, len(data[0]), batch_size):
        batch = [x[start : start + batch_size] for x in data]
        rows.append(score(state, batch, graph=graph, loss_fn=loss_fn))
    return weighted_means(jax.device_get(rows))  # waits for the device once


def fit(
    model,
    loss_fn,
    data,
    settings,
    *,
    validation=None,
    batches=None,
    augment=None,
    folder=None,
    wrt=nnx.Param,
):
    """Train a model in place: the history, and the model with its best weights.

    Parameters
    ----------
    loss_fn : function ``(model, *batch) -> (loss, {"accuracy": …})``
    data, validation : tuples of NumPy arrays
        A batch is the same rows of each. Validation data, tried after every epoch, choose
        the weights that are kept; without them these are the last ones.
    batches : function from the epoch to the rows of every update, ``n b``
        By default all rows, shuffled.
    augment : function ``(uniforms, *batch) -> batch``
        Changes every batch; ``uniforms`` are eight random numbers an example, ``b 8``.
    folder : str or path
        Where TensorBoard finds the history.
    wrt : filter
        What is trained, as in ``nnx.Optimizer``; the rest is frozen.

    Returns
    -------
    dict of str to float64 array
        Of updates ``loss``, ``accuracy``, ``learning_rate``, and ``grad_norm`` before
        clipping; of epochs ``validation_loss``, ``validation_accuracy``, ``seconds``.

    Raises
    ------
    FloatingPointError
        If a loss or a gradient is not finite. The model keeps its last weights.
    """
    history, best, kept = defaultdict(list), (-1, 0), None
    writer = Writer(str(folder)) if folder else None
    arrays, batches = [tensor(x) for x in data], batches or shuffled(settings)
    model.train()
    graph, params, rest = nnx.split(model, wrt, ...)
    rates = tensor(settings.learning_rates)
    limits = settings.max_grad_norm, settings.weight_decay
    state = params, rest, make_optimizer(rates, *limits).init(params)
    fixed = graph, loss_fn, *limits, augment, wrt
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, index = time.perf_counter(), batches(epoch)
        if not 0 <= index.min() <= index.max() < len(arrays[0]):  # JAX would not say
            raise IndexError(f"expected rows below {len(arrays[0])}, got {index.max()}")
        uniforms = tensor(draw_uniforms(settings, epoch, index))  # n b 8
        given = state, arrays, tensor(index), uniforms, rates
        state, found = train_epoch(*given, *fixed)
        news = {name: np.asarray(x) for name, x in found.items()}
        first = epoch * len(index)
        check_finite(news, first)
        news["learning_rate"] = settings.learning_rates[first : first + len(index)]
        nnx.update(model, *state[:2])
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            news |= {f"validation_{name}": score for name, score in scores.items()}
            if (scores["accuracy"], -scores["loss"]) > best:
                best, kept = (scores["accuracy"], -scores["loss"]), state[:2]
        append(history, news | {"seconds": time.perf_counter() - start}, writer)
    if kept:
        nnx.update(model, *kept)
    model.eval()
    return {name: np.array(values) for name, values in history.items()}
