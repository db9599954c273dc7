"""The chapter *The reverse task* builds these: the training loop, and evaluation."""

import time
from collections import defaultdict
from copy import deepcopy

import numpy as np
import torch
from tensorboard.summary import Writer
from torch import nn
from tqdm import tqdm

from helpers.data.sequences import draw_uniforms, shuffled
from helpers.torch.encoder import without_dropout
from helpers.torch.frameworks import tensor

__all__ = [
    "append",
    "check_finite",
    "evaluate",
    "fit",
    "make_optimizer",
    "update",
    "weighted_means",
]


def make_optimizer(model, settings):
    """AdamW that decays matrices only, and the scheduler of its learning rate."""
    decay, keep = [], []
    for name, param in model.named_parameters():
        is_matrix = name.endswith("weight") and param.ndim > 1
        (decay if is_matrix else keep).append(param)
    groups = [
        {"params": decay, "weight_decay": settings.weight_decay},
        {"params": keep, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, fused=True)
    rates = [*settings.learning_rates.tolist(), 0.0]  # the last: after the training
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates.__getitem__)


def update(model, optimizer, scheduler, loss_fn, batch, max_grad_norm):
    """One update, in place: its loss, accuracy and norm of the gradient, ``3``."""
    loss, metrics = loss_fn(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    scheduler.step()
    return torch.stack([loss.detach(), metrics["accuracy"], norm])


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


def evaluate(model, loss_fn, data, batch_size=1000):
    """Mean loss and accuracy on arrays of NumPy, with dropout off: two numbers.

    A batch counts by its examples, or by a ``"count"`` among the loss function's metrics.
    """
    rows = []
    with without_dropout(model), torch.inference_mode():
        for batch in zip(*(tensor(x).split(batch_size) for x in data), strict=True):
            loss, metrics = loss_fn(model, *batch)
            n = metrics.get("count", tensor(len(batch[0])))
            rows.append(torch.stack([loss, metrics["accuracy"], n]))
    return weighted_means(torch.stack(rows).tolist())  # waits for the device once


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
    optimizer, scheduler = make_optimizer(model, settings)
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        found, start, index = [], time.perf_counter(), batches(epoch)
        uniforms = tensor(draw_uniforms(settings, epoch, index))  # n b 8
        seed = np.random.SeedSequence([settings.seed, epoch]).generate_state(1)
        torch.manual_seed(int(seed[0]))  # other dropout in every epoch
        model.train()
        for rows, chance in zip(tensor(index), uniforms, strict=True):
            batch = [x[rows] for x in arrays]
            batch = augment(chance, *batch) if augment else batch
            given = model, optimizer, scheduler, loss_fn, batch, settings.max_grad_norm
            found.append(update(*given))
        columns = torch.stack(found).T.cpu().numpy()  # waits for the device once
        news = dict(zip(("loss", "accuracy", "grad_norm"), columns, strict=True))
        first = epoch * len(found)
        check_finite(news, first)
        news["learning_rate"] = settings.learning_rates[first : first + len(found)]
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            news |= {f"validation_{name}": score for name, score in scores.items()}
            if (scores["accuracy"], -scores["loss"]) > best:
                best = scores["accuracy"], -scores["loss"]
                kept = deepcopy(model.state_dict())
        append(history, news | {"seconds": time.perf_counter() - start}, writer)
    if kept:
        model.load_state_dict(kept)
    model.eval()
    return {name: np.array(values) for name, values in history.items()}
