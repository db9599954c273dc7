"""The usual training in JAX: a loader, and one call of a compiled step per batch."""

import jax
import numpy as np
import optax
from flax import nnx

from benchmarks.usual import Log, loaders


def stack(examples):
    """Collect examples to NumPy arrays."""
    return tuple(map(np.stack, zip(*examples, strict=True)))


def warmup_cosine(settings):
    """The schedule of the settings as Optax writes it."""
    assert settings.schedule == "warmup_cosine", settings.schedule
    start, top = settings.rate / settings.warmup, settings.warmup - 1
    return optax.warmup_cosine_decay_schedule(
        start, settings.rate, warmup_steps=top, decay_steps=settings.updates
    )


class Training:
    """What a tutorial calls a trainer module."""

    def __init__(self, name, model, loss, data, settings, folder):
        self.loss, self.settings = loss, settings
        np.random.seed(settings.seed)
        self.batches, self.validation = loaders(name, settings, data, collate_fn=stack)
        self.schedule = warmup_cosine(settings)
        clip = optax.clip_by_global_norm(settings.clip)
        self.optimiser = optax.chain(clip, optax.adam(self.schedule))
        model.eval()
        self.quiet = nnx.split(model, nnx.Param, ...)[0]
        model.train()
        self.graph, *self.state = nnx.split(model, nnx.Param, ...)
        self.moments = self.optimiser.init(self.state[0])
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
        """Bring a batch to the device."""
        return jax.device_put(batch)

    def update(self, batch, step):
        """One update."""
        self.state, self.moments, numbers = self.step(
            self.state, self.moments, batch, step
        )
        return numbers

    def one_step(self, state, moments, batch, step):
        """Forward, backward, clip, Adam; compiled."""
        params, rest = state

        def objective(params):
            model = nnx.merge(self.graph, params, rest, copy=True)
            loss, accuracy = self.loss(model, *batch)
            return loss, (accuracy, nnx.split(model, nnx.Param, ...)[2])

        grad = jax.value_and_grad(objective, has_aux=True)
        (loss, (accuracy, rest)), gradient = grad(params)
        steps, moments = self.optimiser.update(gradient, moments, params)
        numbers = loss, accuracy, self.schedule(step), optax.tree.norm(gradient)
        return [optax.apply_updates(params, steps), rest], moments, numbers

    def write(self, step, loss, accuracy, rate, norm):
        """Log an update."""
        numbers = {"loss": float(loss), "accuracy": float(accuracy)}
        rates = {"rate": float(rate), "gradient_norm": float(norm)}
        self.log.write("train", step, **numbers, **rates)

    def one_score(self, state, batch):
        """Loss and accuracy of a batch without dropout; compiled."""
        return self.loss(nnx.merge(self.quiet, *state), *batch)

    def evaluate(self):
        """Mean loss and accuracy on the validation data."""
        total, n = np.zeros(2), 0
        for batch in self.validation:
            total += len(batch[0]) * np.array(self.score(self.state, self.move(batch)))
            n += len(batch[0])
        return (total / n).tolist()
