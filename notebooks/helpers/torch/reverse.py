"""Written by `make sync` from notebooks/reverse_torch.py."""

import math
import time

import numpy as np
import torch
from tensorboard.summary import Writer
from torch import nn
from tqdm import tqdm

from helpers.data import checks
from helpers.data.sequences import draw_uniforms, shuffled
from helpers.torch.encoder import without_dropout
from helpers.torch.frameworks import tensor

__all__ = "evaluate fit make_optimizer record score train_batches update".split()


def make_optimizer(model, settings):
    """AdamW that decays matrices only, and the scheduler of its learning rate."""
    decay, keep = [], []
    for name, param in model.named_parameters():
        is_weight = name.rpartition(".")[2].startswith(("weight", "kernel"))
        (decay if is_weight and param.ndim > 1 else keep).append(param)
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
    return torch.stack([loss, metrics["accuracy"], norm]).detach()


def train_batches(model, optimizer, scheduler, loss_fn, batches, max_grad_norm):
    """One update for each batch: three numbers of each, ``n 3``."""
    model.train()  # dropout on
    found = []
    for batch in batches:
        numbers = update(model, optimizer, scheduler, loss_fn, batch, max_grad_norm)
        found.append(numbers)
    return torch.stack(found)


def score(model, loss_fn, batch):
    """Loss and accuracy of a batch, and over how many terms they are means: ``3``."""
    loss, metrics = loss_fn(model, *batch)
    count = metrics.get("count", tensor(len(batch[0])))
    return torch.stack([loss, metrics["accuracy"], count])


def evaluate(model, loss_fn, data, batch_size=1000):
    """Mean loss and accuracy on arrays of NumPy, with dropout off: two numbers.

    A batch counts by its examples, or by a ``"count"`` among the metrics of the loss.
    """
    arrays, rows = checks.checked(model, data), []
    n_batches = math.ceil(len(arrays[0]) / batch_size)
    with without_dropout(model), torch.inference_mode():
        for part in np.array_split(np.arange(len(arrays[0])), n_batches):
            batch = [tensor(x[part]) for x in arrays]
            rows.append(score(model, loss_fn, batch))
    loss, accuracy, count = torch.stack(rows).double().T.cpu().numpy()
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
    tensors = [tensor(x) for x in arrays]
    optimizer, scheduler = make_optimizer(model, settings)
    rates, history = settings.learning_rates.reshape(settings.epochs, -1), {}
    writer = Writer(str(folder)) if folder else None
    for epoch in tqdm(range(settings.epochs), unit="epoch", leave=False):
        start, index = time.perf_counter(), batches(epoch).astype(int)
        if not 0 <= index.min() <= index.max() < len(arrays[0]):
            raise IndexError(f"expected rows below {len(arrays[0])}, got {index.max()}")
        drawn = ([x[rows] for x in tensors] for rows in tensor(index))
        if augment:
            uniforms = tensor(draw_uniforms(settings, epoch, index))  # n b 8
            drawn = (augment(u, *b) for u, b in zip(uniforms, drawn, strict=True))
        seed = np.random.SeedSequence([settings.seed, epoch]).generate_state(1)
        given = optimizer, scheduler, loss_fn, drawn, settings.max_grad_norm
        with torch.random.fork_rng(range(torch.cuda.is_available())):  # for us alone
            torch.manual_seed(int(seed[0]))  # other dropout in every epoch
            numbers = train_batches(model, *given)
        losses, accuracies, norms = numbers.T.cpu().numpy()  # waits for the device once
        news = {"loss": losses, "accuracy": accuracies, "grad_norm": norms}
        checks.check_finite(news, epoch * len(index), arrays)
        news["learning_rate"] = rates[epoch]
        if validation:
            scores = evaluate(model, loss_fn, validation, settings.batch_size)
            news |= {f"validation_{name}": x for name, x in scores.items()}
            if (scores["accuracy"], -scores["loss"]) > best:
                best = scores["accuracy"], -scores["loss"]
                kept = {name: x.clone() for name, x in model.state_dict().items()}
        record(history, news | {"seconds": time.perf_counter() - start}, writer)
    if kept:
        model.load_state_dict(kept)
    model.eval()
    return {name: np.array(values) for name, values in history.items()}
