"""``fit`` and ``evaluate`` in PyTorch: data on the device, no waiting in the loop."""

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from helpers.data.sequences import count_tokens, draw_uniforms, shuffled
from helpers.engine import checks, runs
from helpers.engine.arguments import check_kind
from helpers.engine.processes import ProcessGroup
from helpers.engine.shapes import with_integers
from helpers.torch.compute import for_training
from helpers.torch.positions import without_dropout


def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of logits ``… c`` for labels ``…``."""
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    return loss, {"accuracy": (logits.argmax(-1) == labels).float().mean()}


def odd_one_out(model, x):
    """Cross-entropy and accuracy of finding the odd one, which stands last.

    The model gives one logit per element, ``b s i -> b s 1``; the softmax goes over the
    set.
    """
    logits = model(x).squeeze(-1)  # b s
    log_p = torch.log_softmax(logits.float(), dim=-1)
    last = x.shape[1] - 1
    accuracy = (logits.argmax(-1) == last).float().mean()
    return -log_p[:, last].mean(), {"accuracy": accuracy}


def next_token(model, *batch):
    """Mean cross-entropy and accuracy of predicting each token from those before it.

    The last array of the batch has the texts, ``b s + 1``: all tokens but the last are
    the input, all but the first the labels. Padding is -1, and counts in neither number.
    What comes before, such as the source of a translation, goes to the model as it is.
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


cross_entropy.check_labels = checks.check_classes
next_token.check_labels = checks.check_texts
next_token.weigh = count_tokens


def fit(
    model, loss_fn, data, settings, *, batches=None, augment=None, validation=None,
    folder=None, retrain=False, bar=True, report=None,
):  # fmt: skip
    """Train a model with Adam, and leave it with its best weights: the history.

    Arguments, history and errors are those of ``helpers.engine.runs.fit``. Parameters
    with ``requires_grad`` False are frozen.

    Where ``torch.distributed`` has joined several processes, all of them call this
    function with the same arguments. Each trains on its part of every batch, and ends
    with the same weights and the same history; the first one writes. Without dropout
    the losses are those of a single process, to rounding, which grows.
    """
    check_kind(model, nn.Module)
    parts = [*model.modules()]
    parts += [name for name, x in model.named_parameters() if not x.requires_grad]
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        return runs.fit(
            Trainer, model, parts, loss_fn, data, settings,
            batches=batches or shuffled(settings), augment=augment,
            validation=validation, folder=folder, retrain=retrain, bar=bar, report=report,
        )  # fmt: skip


def evaluate(model, loss_fn, data, *, batch_size=1000):
    """Mean loss and accuracy with dropout off: a dictionary of two numbers.

    The model stays in its mode and place; ``batch_size`` is a matter of memory, since a
    batch counts as many times as ``loss_fn.weigh`` says.
    """
    checks.check_sizes(batch_size=batch_size)
    checks.check_examples(check_kind(model, nn.Module), loss_fn, data)
    return score(model, loss_fn, on_device(data, model), batch_size)


def on_device(data, model):
    """Data as tensors where the model is: int64 and float32; uint8 pictures stay."""
    device = next(model.parameters()).device
    arrays = [np.ascontiguousarray(with_integers(x, np.int64)) for x in data]
    tensors = [torch.tensor(x, device=device) for x in arrays]
    return [x.float() if x.is_floating_point() else x for x in tensors]


class Distributed(ProcessGroup):
    """The processes of ``torch.distributed``."""

    def __init__(self):
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def value_in(self, rank, x):
        """The value of ``x`` in one process, in every process."""
        distributed.broadcast_object_list(found := [x], src=rank)
        return found[0]


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
        self.group = ProcessGroup()
        if distributed.is_initialized():
            self.group = Distributed()
            self.parallel = DistributedDataParallel(model, broadcast_buffers=False)
        self.parallel = for_training(self.parallel, self.data[0].device, settings)
        checks.check_shares(settings, self.group.size)

    def epoch(self, number, batches):
        """Loss, accuracy and gradient norm of every update of an epoch: arrays."""
        rank, size = self.group.rank, self.group.size
        seeds = [self.settings.seed, number, rank][: 3 if rank else 2]
        seed = np.random.SeedSequence(seeds).generate_state(1)
        torch.manual_seed(int(seed[0]))  # dropout: other masks in every epoch
        self.model.train()
        device, uniforms = self.data[0].device, None
        if self.augment:
            uniforms = draw_uniforms(self.settings, number, batches)
            uniforms = torch.tensor(np.split(uniforms, size, 1)[rank], device=device)
        weights = loss_weights(self.loss_fn, self.data, batches, size)[rank].tolist()
        batches = np.split(batches, size, axis=1)[rank]
        batches = torch.tensor(batches, device=device).long()
        first, half = number * len(batches), self.settings.precision == "bfloat16"
        in_precision = torch.autocast(device.type, torch.bfloat16, enabled=half)
        history = run_epoch(
            self.parallel, self.optimizer, self.data, batches,
            self.settings.learning_rates[first : first + len(batches)].tolist(),
            loss_fn=in_precision(self.loss_fn),
            max_grad_norm=self.settings.max_grad_norm,
            augment=self.augment, uniforms=uniforms, weights=weights,
        )  # fmt: skip
        return {name: x.cpu().numpy().astype(np.float64) for name, x in history.items()}

    def score(self):
        """Loss and accuracy on the validation data, if there are any."""
        data = self.validation
        return data and score(self.model, self.loss_fn, data, self.settings.batch_size)

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


def loss_weights(loss_fn, data, batches, size):
    """Weights ``processes n`` of the parts of every batch: their mean is its loss.

    If ``loss_fn.weigh`` does not say how many terms it adds, each example counts alike.
    """
    if size == 1 or not hasattr(loss_fn, "weigh"):
        return np.ones((size, len(batches)))
    terms = loss_fn.weigh(*data).cpu().numpy()[batches]  # n b
    parts = np.stack(np.split(terms, size, axis=1)).sum(axis=-1)  # processes n
    return parts / parts.mean(axis=0)


def make_optimizer(model):
    """Adam that updates all weights in one call; each update sets its learning rate."""
    return torch.optim.Adam(model.parameters(), fused=True)


def update(model, optimizer, batch, learning_rate, weight, *, loss_fn, max_grad_norm):
    """One update: changes the weights and Adam's averages in place."""
    loss, metrics = loss_fn(model, *batch)
    loss, accuracy = weight * loss, weight * metrics["accuracy"]
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return torch.stack([loss.detach(), accuracy.detach(), grad_norm])


def run_epoch(
    model, optimizer, data, batches, learning_rates, *, loss_fn, max_grad_norm,
    weights, augment=None, uniforms=None,
):  # fmt: skip
    """All updates of an epoch, without waiting for the device."""
    history, fixed = [], {"loss_fn": loss_fn, "max_grad_norm": max_grad_norm}
    for place, given in enumerate(zip(learning_rates, weights, strict=True)):
        batch = [x[batches[place]] for x in data]
        batch = augment(uniforms[place], *batch) if augment else batch
        history.append(update(model, optimizer, batch, *given, **fixed))
    columns = over_processes(torch.stack(history)).T
    return dict(zip(("loss", "accuracy", "grad_norm"), columns, strict=True))


def score(model, loss_fn, data, batch_size):
    """Mean loss and accuracy with dropout off; the last batch may be smaller."""
    rows = []
    with without_dropout(model), torch.inference_mode():
        for batch in zip(*(x.split(batch_size) for x in data), strict=True):
            loss, metrics = loss_fn(model, *batch)
            n = torch.as_tensor(runs.count_terms(loss_fn, batch), device=loss.device)
            found = loss, metrics["accuracy"], n
            rows.append(torch.stack([x.float() for x in found]))
    return runs.weighted_mean(torch.stack(rows).tolist())  # waits for the device once
