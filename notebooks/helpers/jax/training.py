"""``fit`` and ``evaluate`` in JAX: an epoch is one compiled loop on the device."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.experimental.multihost_utils import broadcast_one_to_all
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from helpers.data.sequences import count_tokens, draw_uniforms, shuffled
from helpers.engine import checks, runs
from helpers.engine.arguments import check_kind
from helpers.engine.processes import ProcessGroup
from helpers.engine.shapes import with_integers
from helpers.jax.compute import for_training
from helpers.jax.positions import without_dropout


def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of logits ``… c`` for labels ``…``."""
    logits = model(inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


def odd_one_out(model, x):
    """Cross-entropy and accuracy of finding the odd one, which stands last.

    The model gives one logit per element, ``b s i -> b s 1``; the softmax goes over the
    set.
    """
    logits = model(x).squeeze(-1)  # b s
    log_p = jax.nn.log_softmax(logits, axis=-1)
    last = x.shape[1] - 1
    return -log_p[:, last].mean(), {"accuracy": (logits.argmax(-1) == last).mean()}


def next_token(model, *batch):
    """Mean cross-entropy and accuracy of predicting each token from those before it.

    The last array of the batch has the texts, ``b s + 1``: all tokens but the last are
    the input, all but the first the labels. Padding is -1, and counts in neither number.
    What comes before, such as the source of a translation, goes to the model as it is.
    """
    *given, tokens = batch
    labels = tokens[:, 1:]  # b s
    logits = model(*given, tokens[:, :-1])  # b s c
    real = labels >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, jnp.maximum(labels, 0)
    )  # b s
    hits = logits.argmax(-1) == labels  # never where there is padding
    loss = jnp.where(real, losses, 0).sum() / real.sum()
    return loss, {"accuracy": hits.sum() / real.sum()}


cross_entropy.check_labels = checks.check_classes
next_token.check_labels = checks.check_texts
next_token.weigh = count_tokens


def fit(
    model, loss_fn, data, settings, *, batches=None, augment=None, validation=None,
    folder=None, retrain=False, bar=True, report=None, wrt=nnx.Param,
):  # fmt: skip
    """Train a model with Adam, and leave it with its best weights: the history.

    Arguments, history and errors are those of ``helpers.engine.runs.fit``. ``wrt`` is a
    filter of what is trained, as in ``nnx.Optimizer``; the rest is frozen.

    Where the model is on several devices (``on_all_devices``), each trains on its part
    of every batch; where ``jax.distributed`` has joined several processes, all of them
    call this function with the same arguments, and the first one writes. The losses are
    those of a single device, to rounding, which grows.
    """
    check_kind(model, nnx.Module)
    parts = [part for _, part in nnx.iter_graph(model) if isinstance(part, nnx.Module)]
    parts += [wrt] if wrt is not nnx.Param else []
    return runs.fit(
        partial(Trainer, wrt=wrt), model, parts, loss_fn, data, settings,
        batches=batches or shuffled(settings), augment=augment,
        validation=validation, folder=folder, retrain=retrain, bar=bar, report=report,
    )  # fmt: skip


def evaluate(model, loss_fn, data, *, batch_size=1000):
    """Mean loss and accuracy with dropout off: a dictionary of two numbers.

    The model stays in its mode and place; ``batch_size`` is a matter of memory, since a
    batch counts as many times as ``loss_fn.weigh`` says.
    """
    checks.check_sizes(batch_size=batch_size)
    checks.check_examples(check_kind(model, nnx.Module), loss_fn, data)
    return score(model, loss_fn, on_device(data, model), batch_size)


def on_all_devices(model):
    """Put a model, the same in all processes, on every device: ``fit`` shares batches."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    place = NamedSharding(mesh, PartitionSpec())
    nnx.update(model, jax.tree.map(lambda x: on_mesh(x, place), nnx.state(model)))


def put(x, array, place):
    """NumPy numbers as what ``x`` is, an array or a random key, at a sharding."""
    new = jax.device_put(array, place)
    return jax.random.wrap_key_data(new) if is_key(x) else new


def on_mesh(x, place):
    """An array on several devices, whose values every process has."""
    return put(x, np.asarray(raw(x)), place)


def place_of(model):
    """Where the model is: the sharding of its first parameter."""
    return jnp.asarray(jax.tree.leaves(nnx.state(model, nnx.Param))[0]).sharding


def on_device(data, model):
    """Data as JAX arrays where the model is: int32 and float32; uint8 pictures stay."""
    arrays = tuple(with_integers(x, np.int32) for x in data)
    return jax.device_put(arrays, place_of(model))


class Distributed(ProcessGroup):
    """The processes of ``jax.distributed``."""

    def __init__(self):
        self.rank, self.size = jax.process_index(), jax.process_count()

    def value_in(self, rank, x):
        """The value of ``x`` in one process, in every process."""
        send = partial(broadcast_one_to_all, is_source=rank == self.rank)
        size = send(np.array(len(data := pickle.dumps(x))))
        data = np.frombuffer(data.ljust(size)[:size], np.uint8)  # as long everywhere
        return pickle.loads(send(data).tobytes())


class Trainer:
    """A model, its optimizer's state and its data; trains an epoch at a time."""

    def __init__(self, model, loss_fn, data, settings, validation, augment, wrt):
        self.model, self.loss_fn, self.settings = model, loss_fn, settings
        self.augment, self.wrt = augment, wrt
        self.data = on_device(data, model)
        self.validation = validation and on_device(validation, model)
        self.group, self.mesh = ProcessGroup(), None
        if jax.process_count() > 1:
            self.group = Distributed()
        if isinstance(place := place_of(model), NamedSharding):
            self.mesh = place.mesh
        checks.check_shares(settings, place.num_devices)
        model.train()
        copy = for_training(model, settings.precision)
        self.graph, *arrays = nnx.split(copy, wrt, ...)
        rates = settings.learning_rates
        optimizer = make_optimizer(rates, settings.max_grad_norm)
        params, rest = jax.tree.map(jnp.copy, arrays)  # those of the model stay its own
        self.carry = params, optimizer.init(params), rest
        if self.mesh:
            self.carry = jax.tree.map(lambda x: on_mesh(x, place), self.carry)

    def epoch(self, number, batches):
        """Loss, accuracy and gradient norm of every update of an epoch: arrays."""
        uniforms = self.augment and draw_uniforms(self.settings, number, batches)
        self.carry, history = run_epoch(
            self.carry, self.data, batches, uniforms, self.settings.learning_rates,
            graph=self.graph, loss_fn=self.loss_fn, augment=self.augment,
            max_grad_norm=self.settings.max_grad_norm, mesh=self.mesh, wrt=self.wrt,
        )  # fmt: skip
        self.write_model()
        return {name: np.asarray(x, np.float64) for name, x in history.items()}

    def write_model(self):
        """Copy the trained weights, and the state of dropout, to the model."""
        params, _, rest = self.carry  # the next epoch overwrites these arrays
        nnx.update(self.model, *jax.tree.map(jnp.copy, (params, rest)))

    def score(self):
        """Loss and accuracy on the validation data, if there are any."""
        data = self.validation
        return data and score(self.model, self.loss_fn, data, self.settings.batch_size)

    def state(self):
        """All that the next epoch depends on: weights, Adam, dropout, as arrays."""
        leaves = enumerate(jax.tree.leaves(self.carry))
        return {f"{place:04d}": np.array(raw(leaf)) for place, leaf in leaves}

    def restore(self, arrays):
        """Go on from such a state."""
        leaves, tree = jax.tree.flatten(self.carry)
        new = [arrays[name] for name in sorted(arrays)]
        pairs = zip(leaves, new, strict=True)
        leaves = [put(x, array, jnp.asarray(x).sharding) for x, array in pairs]
        self.carry = jax.tree.unflatten(tree, leaves)
        self.write_model()


def is_key(x):
    """Is this a typed random key?"""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def raw(x):
    """An array as it is, a random key as its numbers."""
    return jax.random.key_data(x) if is_key(x) else x


def make_optimizer(learning_rates, max_grad_norm):
    """Clip by the global norm, then Adam with the learning rate of each update."""
    clip = optax.clip_by_global_norm(max_grad_norm)
    return optax.chain(clip, optax.adam(lambda count: learning_rates[count]))


def update(carry, batch, *, optimizer, graph, loss_fn, wrt=nnx.Param):
    """One update: new weights, new state of Adam, new state of dropout."""
    params, opt_state, rest = carry

    def objective(params):
        model = nnx.merge(graph, params, rest, copy=True)
        loss, metrics = loss_fn(model, *batch)
        return loss, (metrics, nnx.split(model, wrt, ...)[2])

    loss_and_grads = jax.value_and_grad(objective, has_aux=True)
    (loss, (metrics, rest)), grads = loss_and_grads(params)
    steps, opt_state = optimizer.update(grads, opt_state, params)
    params = optax.apply_updates(params, steps)
    history = {"loss": loss, "accuracy": metrics["accuracy"]}
    history["grad_norm"] = optax.tree.norm(grads)
    return (params, opt_state, rest), history


@partial(
    jax.jit, donate_argnames="carry",
    static_argnames=("graph", "loss_fn", "augment", "max_grad_norm", "mesh", "wrt"),
)  # fmt: skip
def run_epoch(
    carry, data, batches, uniforms, learning_rates, *, graph, loss_fn, augment,
    max_grad_norm, mesh=None, wrt=nnx.Param,
):  # fmt: skip
    """All updates of an epoch as one ``scan``; it overwrites the arrays of ``carry``.

    On a mesh, each device gets its part of every batch; XLA adds the gradients up.
    """
    optimizer = make_optimizer(learning_rates, max_grad_norm)
    fixed = {"optimizer": optimizer, "graph": graph, "loss_fn": loss_fn, "wrt": wrt}

    def step(carry, given):
        index, uniform = given
        batch = [x[index] for x in data]
        if mesh:
            place = NamedSharding(mesh, PartitionSpec("data"))
            batch = jax.lax.with_sharding_constraint(batch, place)
        batch = augment(uniform, *batch) if augment else batch
        return update(carry, batch, **fixed)

    found = jax.lax.scan(step, carry, (batches, uniforms))
    everywhere = mesh and NamedSharding(mesh, PartitionSpec())
    return jax.lax.with_sharding_constraint(found, everywhere) if mesh else found


def score(model, loss_fn, data, batch_size):
    """Mean loss and accuracy with dropout off; the last batch may be smaller."""
    graph, state = nnx.split(without_dropout(model))
    rows = []
    for start in range(0, len(data[0]), batch_size):
        batch = tuple(x[start : start + batch_size] for x in data)
        rows.append(run_batch(state, batch, graph=graph, loss_fn=loss_fn))
    return runs.weighted_mean(jax.device_get(rows))  # waits for the device once


@partial(jax.jit, static_argnames=("graph", "loss_fn"))
def run_batch(state, batch, *, graph, loss_fn):
    """Loss and accuracy of one batch, and how many terms they are means over."""
    loss, metrics = loss_fn(nnx.merge(graph, state), *batch)
    return loss, metrics["accuracy"], runs.count_terms(loss_fn, batch)
