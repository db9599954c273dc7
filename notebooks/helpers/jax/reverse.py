"""Written by `make sync` from notebooks/reverse_jax.py."""

import math
import time
from functools import partial

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tensorboard.summary import Writer
from tqdm import tqdm

from helpers.data import checks
from helpers.data.sequences import draw_uniforms, shuffled
from helpers.jax.encoder import without_dropout
from helpers.jax.frameworks import tensor

__all__ = "evaluate fit make_optimizer record score train_batches update".split()


def make_optimizer(learning_rate, max_grad_norm, weight_decay):
    """Clipping, then AdamW that decays matrices only."""

    def decays(path, param):
        """True for the matrices of layers and embeddings, False for all others."""
        *_, name = (key.key for key in path if hasattr(key, "key"))
        return name in ("kernel", "embedding", "weight") and param.ndim > 1

    mask = partial(jax.tree.map_with_path, decays)
    adamw = optax.adamw(learning_rate, weight_decay=weight_decay, mask=mask)
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), adamw)


def update(state, batch, optimizer, graph, loss_fn, wrt):
    """One update: the new state; its loss, accuracy and norm of the gradient, ``3``."""
    params, rest, opt_state = state

    def flat_product(x, w, _, **options):
        out = jax.lax.dot(x.reshape(-1, x.shape[-1]), w, **options)
        return out.reshape(*x.shape[:-1], w.shape[-1])

    def objective(params):
        model = nnx.merge(graph, params, rest, copy=True)
        for _, layer in nnx.iter_graph(model):
            if isinstance(layer, nnx.Linear):
                layer.dot_general = flat_product
        loss, metrics = loss_fn(model, *batch)
        return loss, (metrics["accuracy"], nnx.split(model, wrt, ...)[2])

    gradient = jax.value_and_grad(objective, has_aux=True)
    (loss, (accuracy, rest)), grads = gradient(params)
    steps, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, steps)
    numbers = jnp.stack([loss, accuracy, optax.tree.norm(grads)])
    return (params, rest, opt_state), numbers


@partial(jax.jit, static_argnames="fixed")
def train_batches(state, rates, batches, fixed):
    """One update for each batch: the new state, and three numbers of each, ``n 3``.

    Of a batch the first array is for ``augment``.
    """
    graph, loss_fn, augment, wrt, *limits, _ = fixed

    def step(state, given):
        rate, (uniforms, *batch) = given
        batch = augment(uniforms, *batch) if augment else batch
        optimizer = make_optimizer(rate, *limits)
        return update(state, batch, optimizer, graph, loss_fn, wrt)

    return jax.lax.scan(step, state, (rates, batches))


@partial(jax.jit, static_argnames=("graph", "loss_fn", "code"))
def score(state, batch, graph, loss_fn, code):
    """Loss and accuracy of a batch, and over how many terms they are means: ``3``."""
    loss, metrics = loss_fn(nnx.merge(graph, state), *batch)
    return jnp.stack([loss, metrics["accuracy"], metrics.get("count", len(batch[0]))])


def evaluate(model, loss_fn, data, batch_size=1000):
    """Mean loss and accuracy on arrays of NumPy, with dropout off: two numbers.

    A batch counts by its examples, or by a ``"count"`` among the metrics of the loss.
    """
    arrays = checks.checked(model, data)
    graph, state = nnx.split(without_dropout(model))
    code = cloudpickle.dumps((graph, loss_fn))  # what a cell may define anew
    rows, n_batches = [], math.ceil(len(arrays[0]) / batch_size)
    for part in np.array_split(np.arange(len(arrays[0])), n_batches):
        batch = [tensor(x[part]) for x in arrays]
        rows.append(score(state, batch, graph, loss_fn, code))
    loss, accuracy, count = np.array(jax.device_get(rows), dtype=float).T
    means = {"loss": loss, "accuracy": accuracy}
    checks.check_finite(means, 0, arrays, "batch")
    return {name: np.average(x, weights=count).item() for name, x in means.items()}


def record(history, news, writer=None):
    """Append the numbers of an epoch to a history, and to what TensorBoard reads."""
    for name, values in news.items():
        column = history.setdefault(name, [])
        for value in np.atleast_1d(values).tolist():
            if writer:
                writer.add_scalar(name, value, len(column))
            column.append(value)
    if writer:
        writer.flush()


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
    """Train a model in place: its history, and the model with its best weights.

    Parameters
    ----------
    loss_fn : function ``(model, *batch) -> (loss, {"accuracy": …})``
    data, validation : tuples of NumPy arrays
        A batch is the same rows of each. Validation data, tried after each epoch,
        choose the weights that are kept; without them these are the last ones.
    batches : function from the epoch to the rows of every update, ``n b``, or shuffled
    augment : function ``(uniforms, *batch) -> batch``
        Changes every batch; ``uniforms`` are eight random numbers an example, ``b 8``.
    folder : str or path, where TensorBoard finds the history
    wrt : filter of what is trained, as in ``nnx.Optimizer``; the rest is frozen

    Returns
    -------
    dict of str to float64 array
        Of updates ``loss``, ``accuracy``, ``grad_norm`` before clipping and
        ``learning_rate``; of epochs ``validation_loss``, ``validation_accuracy`` and
        ``seconds``.

    Raises
    ------
    ValueError, FloatingPointError
        Where the data do not fit; if a loss or a gradient is not finite.
    """
    best, kept, batches = (-math.inf, 0), None, batches or shuffled(settings)
    arrays, *_ = [checks.checked(model, x) for x in (data, validation) if x]
    model.train()  # dropout on
    graph, params, rest = nnx.split(model, wrt, ...)
    limits = settings.max_grad_norm, settings.weight_decay
    code = cloudpickle.dumps((graph, loss_fn, augment))  # cells may define it anew
    fixed = (graph, loss_fn, augment, wrt, *limits, code)
    rates, history = settings.learning_rates.reshape(settings.epochs, -1), {}
    state = params, rest, make_optimizer(0.0, *limits).init(params)
    writer = Writer(str(folder)) if folder else None
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, index = time.perf_counter(), batches(epoch).astype(int)
        if not 0 <= index.min() <= index.max() < len(arrays[0]):  # JAX would not say
            raise IndexError(f"expected rows below {len(arrays[0])}, got {index.max()}")
        uniforms, numbers = draw_uniforms(settings, epoch, index), []  # n b 8
        size = math.gcd(len(index), 10)  # compiled once, however many there are
        for part in np.split(np.arange(len(index)), len(index) // size):
            drawn = [uniforms[part], *(x[index[part]] for x in arrays)]  # size b …
            state, found = train_batches(state, rates[epoch, part], drawn, fixed)
            numbers.append(found)
        losses, accuracies, norms = np.concatenate(numbers).T  # waits for the device
        news = {"loss": losses, "accuracy": accuracies, "grad_norm": norms}
        checks.check_finite(news, epoch * len(index), arrays)
        news["learning_rate"] = rates[epoch]
        nnx.update(model, *state[:2])  # the weights, and all that is not trained
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            news |= {f"validation_{name}": x for name, x in scores.items()}
            if (scores["accuracy"], -scores["loss"]) > best:
                best, kept = (scores["accuracy"], -scores["loss"]), state[:2]
        record(history, news | {"seconds": time.perf_counter() - start}, writer)
    if kept:
        nnx.update(model, *kept)
    model.eval()
    return {name: np.array(values) for name, values in history.items()}
