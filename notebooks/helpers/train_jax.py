"""``fit`` and ``evaluate`` in JAX: an epoch is one compiled loop on the device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from helpers import runs
from helpers.checks import check_batches, check_data, check_sizes, choose
from helpers.sequences import shuffled


def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of a model that puts out logits.

    Parameters
    ----------
    model : callable ``… i -> … c, anything``
    inputs : array ``… i``
    labels : integer array ``…``
        The right one of the ``c`` classes.

    Returns
    -------
    tuple of a number and a dict
        The loss, and ``accuracy`` by name.
    """
    logits, _ = model(inputs)
    log_p = jax.nn.log_softmax(logits)
    right = jnp.take_along_axis(log_p, labels[..., None], axis=-1)
    return -right.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


def odd_one_out(model, x):
    """Cross-entropy and accuracy of finding the odd one, which stands last.

    Parameters
    ----------
    model : callable ``b s i -> b s 1, anything``
        One logit per element; the softmax goes over the set.
    x : array ``b s i``
        Sets.

    Returns
    -------
    tuple of a number and a dict
        The loss, and ``accuracy`` by name.
    """
    logits = model(x)[0].squeeze(-1)  # b s
    log_p = jax.nn.log_softmax(logits, axis=-1)
    last = x.shape[1] - 1
    return -log_p[:, last].mean(), {"accuracy": (logits.argmax(-1) == last).mean()}


def fit(
    model, loss_fn, data, settings, *, batches=None, validation=None, folder=None,
    retrain=False, device=None, bar=True,
):  # fmt: skip
    """Train a model with Adam, and leave it with its best weights.

    Parameters
    ----------
    model : flax.nnx.Module
        Changed in place: with ``validation`` it ends with the weights of the epoch that
        had the highest accuracy there, without it with the last ones.
    loss_fn : function ``(model, *batch) -> (loss, {"accuracy": …})``
    data : tuple of NumPy arrays
        A batch is the same rows of each; they are brought to the device once.
    settings : helpers.settings.Settings
    batches : function from the epoch to an integer array ``n b …``, optional
        Rows of the data for each update; by default ``sequences.shuffled(settings)``.
    validation : tuple of NumPy arrays, optional
        Examples to measure loss and accuracy on after every epoch.
    folder : str or path, optional
        Keep the run here: a finished one is loaded, an interrupted one goes on.
    retrain : bool
        Train from the start, whatever the folder holds.
    device : {"cpu", "gpu"}, optional
        The GPU by default, if there is one.
    bar : bool
        Show a progress bar.

    Returns
    -------
    dict of str to float64 array
        ``loss``, ``accuracy``, ``learning_rate``, ``grad_norm`` (before clipping) of every
        update; ``validation_loss``, ``validation_accuracy``, ``seconds`` of every epoch.

    Raises
    ------
    ValueError
        Before any work: if data, batches, settings or device do not fit, or the
        checkpoint in the folder is damaged or of another run.
    FloatingPointError
        If a loss or a gradient is no longer finite.
    """
    device = find_device(device)
    rows, given = check_data(data), batches or shuffled(settings)

    def batches(epoch):
        return check_batches(given(epoch), settings, rows)

    batches(0)
    if validation is not None:
        check_data(validation, "validation data")
    about = runs.describe("jax", model, loss_fn, data, settings, batches, validation)
    trainer = Trainer(model, loss_fn, data, settings, validation, device)
    options = {"folder": folder, "retrain": retrain, "bar": bar}
    return runs.train(trainer, settings, batches, about, **options)


def evaluate(model, loss_fn, data, *, batch_size=1000, device=None):
    """Mean loss and accuracy with dropout off.

    Parameters
    ----------
    model : flax.nnx.Module
        Stays as it is, in training mode or not.
    loss_fn : function ``(model, *batch) -> (loss, {"accuracy": …})``
    data : tuple of NumPy arrays
    batch_size : int
        Examples at a time: a matter of memory, not of the result.
    device : {"cpu", "gpu"}, optional

    Returns
    -------
    dict of str to float
        ``loss`` and ``accuracy``.

    Raises
    ------
    ValueError
        If the arrays differ in length, or ``batch_size`` or ``device`` make no sense.
    """
    check_data(data)
    check_sizes(batch_size=batch_size)
    return score(
        model, loss_fn, jax.device_put(tuple(data), find_device(device)), batch_size
    )


def find_device(name=None):
    """A JAX device: "cpu", "gpu", or by default the best there is.

    Raises
    ------
    ValueError
        If there is no such device here.
    """
    found = {"cpu": jax.devices("cpu")[0]}
    if jax.default_backend() != "cpu":
        found["gpu"] = jax.devices()[0]
    return choose(name, found, "device") if name else [*found.values()][-1]


class Trainer:
    """One training on one device, an epoch at a time."""

    def __init__(self, model, loss_fn, data, settings, validation, device):
        self.model, self.loss_fn, self.settings = model, loss_fn, settings
        model.train()
        self.graph, params, rest = nnx.split(model, nnx.Param, ...)
        opt_state = optimizer(settings.learning_rate, settings.max_grad_norm).init(
            params
        )
        self.carry = jax.device_put((params, opt_state, rest), device)
        self.data = jax.device_put(tuple(data), device)
        self.device = device
        self.validation = validation and jax.device_put(tuple(validation), device)

    def epoch(self, batches, rates):
        """Do the updates of an epoch; their history as arrays."""
        given = jax.device_put((batches, rates), self.device)
        fixed = {
            "graph": self.graph,
            "loss_fn": self.loss_fn,
            "max_grad_norm": self.settings.max_grad_norm,
        }
        self.carry, history = run_epoch(self.carry, self.data, *given, **fixed)
        self.write_model()
        return {name: np.asarray(x, np.float64) for name, x in history.items()}

    def write_model(self):
        """Bring the trained numbers into the model."""
        nnx.update(self.model, self.carry[0], self.carry[2])

    def score(self):
        """Loss and accuracy on the validation data, or NaN if there is none."""
        if self.validation is None:
            return {"loss": np.nan, "accuracy": np.nan}
        return score(self.model, self.loss_fn, self.validation, 1000)

    def state(self):
        """All that the next update depends on, as arrays."""
        leaves = enumerate(jax.tree.leaves(self.carry))
        return {f"{place:04d}": np.asarray(raw(leaf)) for place, leaf in leaves}

    def restore(self, arrays):
        """Go on from such a state."""
        leaves, tree = jax.tree.flatten(self.carry)
        new = [jnp.asarray(arrays[name]) for name in sorted(arrays)]
        pairs = zip(leaves, new, strict=True)
        leaves = [jax.random.wrap_key_data(b) if is_key(a) else b for a, b in pairs]
        self.carry = jax.device_put(jax.tree.unflatten(tree, leaves), self.device)
        self.write_model()


def is_key(x):
    """Is this a typed random key?"""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def raw(x):
    """An array as it is, a random key as its numbers."""
    return jax.random.key_data(x) if is_key(x) else x


def optimizer(rate, max_grad_norm):
    """Clipping by the global norm, then Adam."""
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(rate))


@partial(jax.jit, static_argnames=("graph", "loss_fn", "max_grad_norm"))
def run_epoch(carry, data, batches, rates, *, graph, loss_fn, max_grad_norm):
    """All updates of an epoch as one ``scan``: no Python, no copies in between."""

    def update(carry, given):
        params, opt_state, rest = carry
        index, rate = given

        def objective(params):
            model = nnx.merge(graph, params, rest, copy=True)
            loss, metrics = loss_fn(model, *(x[index] for x in data))
            return loss, (metrics, nnx.split(model, nnx.Param, ...)[2])

        loss_and_grads = jax.value_and_grad(objective, has_aux=True)
        (loss, (metrics, rest)), grads = loss_and_grads(params)
        step = optimizer(rate, max_grad_norm)
        steps, opt_state = step.update(grads, opt_state)
        params = optax.apply_updates(params, steps)
        norm = optax.tree.norm(grads)
        history = {"loss": loss, **metrics, "learning_rate": rate}
        return (params, opt_state, rest), history | {"grad_norm": norm}

    return jax.lax.scan(update, carry, (batches, rates))


def score(model, loss_fn, data, batch_size):
    """Mean loss and accuracy; the last batch may be smaller."""
    quiet = nnx.clone(model)
    quiet.eval()
    graph, state = nnx.split(quiet)
    n = len(data[0])
    total = np.zeros(2)
    for start in range(0, n, batch_size):
        part = tuple(x[start : start + batch_size] for x in data)
        loss, metrics = run_batch(state, part, graph=graph, loss_fn=loss_fn)
        total += len(part[0]) * np.array([loss, metrics["accuracy"]], dtype=np.float64)
    return dict(zip(("loss", "accuracy"), (total / n).tolist(), strict=True))


@partial(jax.jit, static_argnames=("graph", "loss_fn"))
def run_batch(state, data, *, graph, loss_fn):
    """Loss and accuracy of one batch."""
    return loss_fn(nnx.merge(graph, state), *data)
