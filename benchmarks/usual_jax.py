"""The usual training in JAX: a loader, and one call of a compiled step per batch."""

import jax
import numpy as np
import optax
from flax import nnx

from benchmarks.usual import Log, loaders, stack, to_array


def warmup_cosine(settings):
    """The schedule of the settings as Optax writes it."""
    assert settings.schedule == "warmup_cosine", settings.schedule
    start, top = settings.learning_rate / settings.warmup, settings.warmup - 1
    return optax.warmup_cosine_decay_schedule(
        start, settings.learning_rate, warmup_steps=top, decay_steps=settings.updates
    )


class Training:
    """What a tutorial calls a trainer module."""

    def __init__(self, name, model, loss_fn, data, settings, folder):
        self.loss_fn, self.settings = loss_fn, settings
        np.random.seed(settings.seed)
        options = {"collate_fn": stack}
        if name == "vision":  # JAX has threads, which forked workers would not have
            options["multiprocessing_context"] = "forkserver"
        self.batches, self.validation = loaders(
            name, settings, data, [to_array], **options
        )
        self.schedule = warmup_cosine(settings)
        clip = optax.clip_by_global_norm(settings.max_grad_norm)
        self.optimizer = optax.chain(clip, optax.adam(self.schedule))
        model.eval()
        self.quiet = nnx.split(model, nnx.Param, ...)[0]
        model.train()
        self.graph, *self.state = nnx.split(model, nnx.Param, ...)
        self.opt_state = self.optimizer.init(self.state[0])
        self.step = jax.jit(self.one_step)
        self.score = jax.jit(self.one_score)
        self.log = Log(folder)

    def fit(self):
        """All epochs; the history of the log."""
        step = 0
        for _ in range(self.settings.epochs):
            for batch in self.batches:
                self.write(step, *self.update(self.move(batch), step))
                step += 1
            loss, accuracy = self.evaluate()
            self.log.write("validation", step, loss=loss, accuracy=accuracy)
        self.log.writer.close()
        return self.log.history

    def move(self, batch):
        """Move a batch to the device."""
        return jax.device_put(batch)

    def update(self, batch, step):
        """One update."""
        self.state, self.opt_state, numbers = self.step(
            self.state, self.opt_state, batch, step
        )
        return numbers

    def one_step(self, state, opt_state, batch, step):
        """Forward, backward, clip, Adam; compiled."""
        params, rest = state

        def objective(params):
            model = nnx.merge(self.graph, params, rest, copy=True)
            loss, metrics = self.loss_fn(model, *batch)
            return loss, (metrics, nnx.split(model, nnx.Param, ...)[2])

        loss_and_grads = jax.value_and_grad(objective, has_aux=True)
        (loss, (metrics, rest)), grads = loss_and_grads(params)
        steps, opt_state = self.optimizer.update(grads, opt_state, params)
        numbers = loss, metrics, self.schedule(step), optax.tree.norm(grads)
        return [optax.apply_updates(params, steps), rest], opt_state, numbers

    def write(self, step, loss, metrics, rate, norm):
        """Log an update."""
        numbers = {"loss": float(loss), "accuracy": float(metrics["accuracy"])}
        rates = {"learning_rate": float(rate), "grad_norm": float(norm)}
        self.log.write("train", step, **numbers, **rates)

    def one_score(self, state, batch):
        """Loss and accuracy of a batch without dropout; compiled."""
        return self.loss_fn(nnx.merge(self.quiet, *state), *batch)

    def evaluate(self):
        """Mean loss and accuracy on the validation data."""
        total, n = np.zeros(2), 0
        for batch in self.validation:
            loss, metrics = self.score(self.state, self.move(batch))
            total += len(batch[0]) * np.array([loss, metrics["accuracy"]])
            n += len(batch[0])
        return (total / n).tolist()
