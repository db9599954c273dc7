"""``fit`` and ``evaluate`` in PyTorch: data on the device, no waiting in the loop."""

from functools import partial

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from helpers.data.sequences import draw_chances, shuffled
from helpers.engine import runs
from helpers.engine.checks import (
    check_batches,
    check_data,
    check_fit,
    check_labels,
    check_shares,
    check_sizes,
)
from helpers.engine.processes import Processes, Several


def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of a model that puts out logits.

    Parameters
    ----------
    model : callable ``… i -> … c``
    inputs : array ``… i``
    labels : integer array ``…``
        The right one of the ``c`` classes.

    Returns
    -------
    tuple of a number and a dict
        The loss, and ``accuracy`` by name.
    """
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    return loss, {"accuracy": (logits.argmax(-1) == labels).float().mean()}


def odd_one_out(model, x):
    """Cross-entropy and accuracy of finding the odd one, which stands last.

    Parameters
    ----------
    model : callable ``b s i -> b s 1``
        One logit per element; the softmax goes over the set.
    x : array ``b s i``
        Sets.

    Returns
    -------
    tuple of a number and a dict
        The loss, and ``accuracy`` by name.
    """
    logits = model(x).squeeze(-1)  # b s
    log_p = torch.log_softmax(logits, dim=-1)
    last = x.shape[1] - 1
    accuracy = (logits.argmax(-1) == last).float().mean()
    return -log_p[:, last].mean(), {"accuracy": accuracy}


def next_token(model, *batch):
    """Mean cross-entropy and accuracy of predicting each token from those before it.

    Parameters
    ----------
    model : callable ``b s -> b s c``, or with a source ``b k, b s -> b s c``
        Puts out logits of the next token at every position.
    *batch : integer arrays
        The last one has the texts, ``b s + 1``: all tokens but the last are the input,
        all but the first the labels. Padding is -1, and counts in neither number. What
        comes before, such as the source of a translation, goes to the model as it is.

    Returns
    -------
    tuple of a number and a dict
        The loss in nats per token, and ``accuracy`` by name.
    """
    *given, tokens = batch
    labels = tokens[:, 1:]  # b s
    logits = model(*given, tokens[:, :-1])  # b s c
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=-1
    )
    real = labels >= 0
    hits = logits.argmax(-1) == labels  # never where there is padding
    return loss, {"accuracy": hits.sum() / real.sum()}


def fit(
    model, loss_fn, data, settings, *, batches=None, augment=None, validation=None,
    folder=None, retrain=False, bar=True,
):  # fmt: skip
    """Train a model with Adam, and leave it with its best weights.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place: with ``validation`` it ends with the weights of the epoch that
        had the highest accuracy there, without it with the last ones. The data are
        moved to the device of its parameters.
    loss_fn : function ``(model, *batch) -> (loss, {"accuracy": …})``
        If it is called ``cross_entropy`` or ``next_token``, labels or tokens are
        checked, too.
    data : tuple of NumPy arrays
        A batch is the same rows of each.
    settings : helpers.engine.settings.Settings
    batches : function from the epoch to an integer array ``n b …``, optional
        Rows of the data for each update; by default ``sequences.shuffled(settings)``.
    augment : function ``(chances, *batch) -> batch``, optional
        Changes every training batch, on the device: ``chances`` are eight numbers in
        [0, 1) for each example, ``b 8``, the same in both frameworks.
    validation : tuple of NumPy arrays, optional
        Examples to measure loss and accuracy on after every epoch.
    folder : str or path, optional
        Keep the run below this folder, under its digest (``helpers.engine.runs``): a finished
        run is reloaded, an interrupted one is resumed.
    retrain : bool
        Train from the initial weights, also when the run is finished.
    bar : bool
        Show a progress bar.

    Where ``torch.distributed`` has joined several processes, all of them call this
    function with the same arguments. Each trains on its part of every batch, and ends
    with the same weights and the same history; the first one writes. Without dropout
    the losses are those of a single process.

    Returns
    -------
    dict of str to float64 array
        ``loss``, ``accuracy``, ``learning_rate``, ``grad_norm`` (before clipping) of
        every update; ``validation_loss``, ``validation_accuracy``, ``seconds`` of every
        epoch.

    Raises
    ------
    ValueError
        Before any work: if model, data, batches, settings or folder contradict each
        other, the checkpoint of the run is damaged, or several processes do not divide
        a batch evenly or were given different things.
    FloatingPointError
        If a loss or a gradient is no longer finite.
    """
    given = batches or shuffled(settings)
    check_fit(model, loss_fn, data, settings, given, validation)

    def batches(epoch):
        return check_batches(given(epoch), settings, len(data[0]))

    about = runs.describe(
        model.modules(), loss_fn, settings, data, validation, batches, augment
    )
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        trainer = Trainer(model, loss_fn, data, settings, validation, augment)
        options = {"folder": folder, "retrain": retrain, "bar": bar}
        return runs.train(trainer, settings, batches, about, **options)


def evaluate(model, loss_fn, data, *, batch_size=1000):
    """Mean loss and accuracy with dropout off.

    Parameters
    ----------
    model : torch.nn.Module
        Stays in the mode it is in, and where it is.
    loss_fn : function ``(model, *batch) -> (loss, {"accuracy": …})``
    data : tuple of NumPy arrays
    batch_size : int
        Examples at a time: a matter of memory, not of the result.

    Returns
    -------
    dict of str to float
        ``loss`` and ``accuracy``.

    Raises
    ------
    ValueError
        If the data do not fit the model or each other, or ``batch_size`` is invalid.
    """
    check_sizes(batch_size=batch_size)
    check_data(data)
    check_labels(model, loss_fn, data)
    return score(model, loss_fn, on_device(data, model), batch_size)


def on_device(data, model):
    """NumPy arrays as tensors where the model is: integers as int64, others float32.

    Pictures of ``uint8`` (four axes) stay as they are: the model makes floats of them.
    """
    device = next(model.parameters()).device
    tensors = [torch.tensor(np.ascontiguousarray(x), device=device) for x in data]
    tensors = [x.float() if x.is_floating_point() else x for x in tensors]
    whole = torch.uint8, torch.int8, torch.int16, torch.int32
    return [x.long() if x.dtype in whole and x.ndim < 4 else x for x in tensors]


class Joined(Several):
    """The processes of ``torch.distributed``."""

    def __init__(self):
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def all(self, x):
        """The values of ``x`` in all processes: a list."""
        distributed.all_gather_object(found := [None] * self.size, x)
        return found


def over_processes(x):
    """Mean of a tensor over the processes that train together, in each of them."""
    if distributed.is_initialized():
        distributed.all_reduce(x := x.clone())
        x /= distributed.get_world_size()
    return x


class Trainer:
    """A model, its optimizer and its data; trains an epoch at a time."""

    def __init__(self, model, loss_fn, data, settings, validation, augment):
        self.model, self.loss_fn, self.settings = model, loss_fn, settings
        self.augment = augment
        self.data = on_device(data, model)
        self.validation = validation and on_device(validation, model)
        self.optimizer, self.parallel = make_optimizer(model), model
        self.processes = Processes()
        if distributed.is_initialized():
            self.processes = Joined()
            self.parallel = DistributedDataParallel(model)
        check_shares(settings, self.processes.size)

    def epoch(self, number, batches):
        """Loss, accuracy and gradient norm of every update of an epoch: arrays."""
        rank, size = self.processes.rank, self.processes.size
        seeds = [self.settings.seed, number, rank][: 3 if rank else 2]
        seed = np.random.SeedSequence(seeds).generate_state(1)
        torch.manual_seed(int(seed[0]))  # dropout: other masks in every epoch
        self.model.train()
        device, chances = self.data[0].device, None
        if self.augment:
            chances = draw_chances(self.settings, number, batches)
            chances = np.split(chances, size, axis=1)[rank]
            chances = torch.tensor(chances, device=device)
        shares = shares_of(self.loss_fn, self.data, batches, size)[rank]
        batches = np.split(batches, size, axis=1)[rank]
        batches = torch.tensor(batches, device=device).long()
        first = number * len(batches)
        history = run_epoch(
            self.parallel, self.optimizer, self.data, batches,
            self.settings.learning_rates[first : first + len(batches)].tolist(),
            loss_fn=self.loss_fn, max_grad_norm=self.settings.max_grad_norm,
            augment=self.augment, chances=chances, shares=shares,
        )  # fmt: skip
        return {name: x.cpu().numpy().astype(np.float64) for name, x in history.items()}

    def score(self):
        """Loss and accuracy on the validation data, or NaN if there is none."""
        if self.validation is None:
            return {"loss": np.nan, "accuracy": np.nan}
        return score(self.model, self.loss_fn, self.validation, 1000)

    def state(self):
        """All that the next epoch depends on: weights and Adam's averages, as arrays."""
        tensors = {f"model/{k}": x for k, x in self.model.state_dict().items()}
        for place, averages in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam/{place}/{k}": x for k, x in averages.items()}
        return {name: x.cpu().numpy().copy() for name, x in tensors.items()}

    def restore(self, arrays):
        """Go on from such a state."""
        tensors = {name: torch.as_tensor(x) for name, x in arrays.items()}
        self.model.load_state_dict(runs.part(tensors, "model"))
        state = {}
        for name, x in runs.part(tensors, "adam").items():
            place, key = name.split("/")
            state.setdefault(int(place), {})[key] = x
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})


def shares_of(loss_fn, data, batches, size):
    """How much the part of each process counts in a batch: lists ``n``, or None.

    As much as the others, but for ``next_token``, a mean over tokens that are real.
    """
    if size == 1 or getattr(loss_fn, "__name__", "") != "next_token":
        return [None] * size
    real = (data[-1][:, 1:] >= 0).sum(dim=1).cpu().numpy()[batches]  # n b
    parts = np.stack(np.split(real, size, axis=1)).sum(axis=-1)  # processes n
    return (parts / parts.mean(axis=0)).tolist()


def in_part(loss_fn, share, model, *batch):
    """Loss and accuracy of a part of a batch, times its share."""
    loss, metrics = loss_fn(model, *batch)
    return share * loss, {name: share * x for name, x in metrics.items()}


def make_optimizer(model):
    """Adam that updates all weights in one call; each update sets its learning rate."""
    return torch.optim.Adam(model.parameters(), fused=True)


def update(model, optimizer, batch, learning_rate, *, loss_fn, max_grad_norm):
    """One update: changes the weights and Adam's averages in place."""
    loss, metrics = loss_fn(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.param_groups[0]["lr"] = learning_rate
    optimizer.step()
    return torch.stack([loss.detach(), metrics["accuracy"].detach(), grad_norm])


def run_epoch(
    model, optimizer, data, batches, learning_rates, *, loss_fn, max_grad_norm,
    augment=None, chances=None, shares=None,
):  # fmt: skip
    """All updates of an epoch, without waiting for the device."""
    history = []
    for place, learning_rate in enumerate(learning_rates):
        batch = [x[batches[place]] for x in data]
        batch = augment(chances[place], *batch) if augment else batch
        mine = partial(in_part, loss_fn, shares[place]) if shares else loss_fn
        fixed = {"loss_fn": mine, "max_grad_norm": max_grad_norm}
        history.append(update(model, optimizer, batch, learning_rate, **fixed))
    columns = over_processes(torch.stack(history)).T
    return dict(zip(("loss", "accuracy", "grad_norm"), columns, strict=True))


@torch.no_grad()
def score(model, loss_fn, data, batch_size):
    """Mean loss and accuracy with dropout off; the last batch may be smaller."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    total = 0
    try:
        for batch in zip(*(x.split(batch_size) for x in data), strict=True):
            loss, metrics = loss_fn(model, *batch)
            total += len(batch[0]) * torch.stack([loss, metrics["accuracy"]]).double()
    finally:
        for part, was_training in modes:
            part.training = was_training
    loss, accuracy = (total / len(data[0])).tolist()
    return {"loss": loss, "accuracy": accuracy}
