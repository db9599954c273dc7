"""Written by `make sync` from notebooks/reverse_torch.py."""

import math
import time
from copy import deepcopy

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from helpers.data import checks
from helpers.data.sequences import draw_uniforms, shuffled
from helpers.torch.encoder import without_dropout
from helpers.torch.frameworks import tensor

__all__ = "as_columns augmented evaluate fit make_optimizer score update".split()


def make_optimizer(model, settings):
    """AdamW, which decays matrices only, and the scheduler of its learning rate."""
    matrices = [param for param in model.parameters() if param.ndim > 1]
    others = [param for param in model.parameters() if param.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)

    def part_of_peak(step):
        return settings.schedule(step, settings.warmup, settings.updates)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, part_of_peak)


def update(model, optimizer, scheduler, loss_fn, batch, max_grad_norm):
    """One update, in place: the loss, its metrics and the norm of the gradient."""
    loss, metrics = loss_fn(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    scheduler.step()
    numbers = {"loss": loss, **metrics, "grad_norm": norm}
    return {name: torch.as_tensor(x).detach() for name, x in numbers.items()}


def as_columns(rows):
    """A float64 array for each name, the loss first; a row has numbers by name."""
    names = sorted(rows[0], key=lambda name: "loss" not in name)
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


@torch.inference_mode()
def score(model, loss_fn, batch):
    """Loss and metrics of a batch; ``"count"``: over how many terms they are means."""
    loss, metrics = loss_fn(model, *batch)
    return {"loss": loss, "count": len(batch[0]), **metrics}


def evaluate(model, loss_fn, data, batch_size=1000):
    """Mean loss and metrics on arrays of NumPy, with dropout off: by name, a number.

    A batch counts by its examples, or by a ``"count"`` among the metrics of the loss.
    """
    arrays, rows = checks.checked(model, data), []
    n_batches = math.ceil(len(arrays[0]) / batch_size)
    with without_dropout(model):
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
    rates = settings.learning_rates.reshape(settings.epochs, -1)
    model.train()  # dropout on
    optimizer, scheduler = make_optimizer(model, settings)
    given = optimizer, scheduler, train_loss
    updates, epochs, top, kept = [], [], None, None
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, found, index = time.perf_counter(), [], batches(epoch)
        uniforms = draw_uniforms(settings, epoch, index)  # n b 8
        seed = np.random.SeedSequence([settings.seed, epoch]).generate_state(1)
        with torch.random.fork_rng(range(torch.cuda.is_available())):  # for us alone
            torch.manual_seed(int(seed[0]))  # other dropout in every epoch
            for n, rows in enumerate(index):
                batch = [tensor(x[rows]) for x in arrays]
                batch = [tensor(uniforms[n]), *batch] if augment else batch
                found.append(update(model, *given, batch, settings.max_grad_norm))
        checks.check_finite(as_columns(found), len(updates), arrays)
        for rate, row in zip(rates[epoch], found, strict=True):
            updates.append(row | {"learning_rate": rate})
        scores = {}
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            chosen = -scores["loss"] if best == "loss" else scores[best]
            if top is None or (chosen, -scores["loss"]) > top:
                top, kept = (chosen, -scores["loss"]), deepcopy(model.state_dict())
        scores = {f"validation_{name}": x for name, x in scores.items()}
        epochs.append(scores | {"seconds": time.perf_counter() - start})
    if kept:
        model.load_state_dict(kept)
    model.eval()
    return as_columns(updates) | as_columns(epochs)
