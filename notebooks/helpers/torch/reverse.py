"""Written by `make sync` from notebooks/reverse_torch.py."""

import math
import time
from copy import deepcopy

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from helpers.data import checks
from helpers.data.sequences import batches_of
from helpers.torch.encoder import without_dropout
from helpers.torch.frameworks import tensor

__all__ = "evaluate fit make_optimizer score update".split()


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
    means = checks.as_columns(rows)
    count = means.pop("count")
    checks.check_finite(means, 0, arrays, "batch")
    return {name: np.average(x, weights=count).item() for name, x in means.items()}


@torch.random.fork_rng(range(torch.cuda.is_available()))
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
    """Train a model in place, and keep its best weights; return what was measured.

    ``data`` and ``validation`` are tuples of NumPy arrays. The best epoch is that with
    the lowest validation loss, or the highest metric ``best``. For later chapters:
    ``batches`` and ``augment``, see ``batches_of``.
    Returned are arrays by name: of updates ``loss``, metrics, ``grad_norm`` (before
    clipping) and ``learning_rate``; of epochs ``validation_loss`` …, and ``seconds``.
    """
    arrays = checks.checked(model, data)
    checks.checked(model, validation or data)
    source = arrays, settings, tensor, batches, augment
    rates = settings.learning_rates.reshape(settings.epochs, -1)  # for the history
    optimizer, scheduler = make_optimizer(model, settings)
    clip = settings.max_grad_norm
    model.train()  # dropout on
    updates, epochs, top, kept = [], [], (), None
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, found = time.perf_counter(), []
        torch.manual_seed(settings.seed_of(epoch))  # of dropout
        for batch, rate in zip(batches_of(epoch, *source), rates[epoch], strict=True):
            numbers = update(model, optimizer, scheduler, loss_fn, batch, clip)
            found.append(numbers | {"learning_rate": rate})
        checks.check_finite(checks.as_columns(found), len(updates), arrays)
        updates += found
        scores = {}
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            higher = scores | {"loss": -scores["loss"]}  # the higher, the better
            rank = (higher[best], higher["loss"])  # of equal metrics, the lower loss
            if rank > top:
                top, kept = rank, deepcopy(model.state_dict())
        scores = {f"validation_{name}": x for name, x in scores.items()}
        epochs.append(scores | {"seconds": time.perf_counter() - start})
    if kept:
        model.load_state_dict(kept)
    model.eval()
    return checks.as_columns(updates) | checks.as_columns(epochs)
