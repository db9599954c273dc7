"""``fit`` and ``evaluate`` in PyTorch: no Python per example, no copies in the loop."""

from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.optim.adam import adam

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
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    return loss, {"accuracy": (logits.argmax(-1) == labels).float().mean()}


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
    log_p = torch.log_softmax(logits, dim=-1)
    last = x.shape[1] - 1
    accuracy = (logits.argmax(-1) == last).float().mean()
    return -log_p[:, last].mean(), {"accuracy": accuracy}


def fit(
    model, loss_fn, data, settings, *, batches=None, validation=None, folder=None,
    retrain=False, device=None, bar=True,
):  # fmt: skip
    """Train a model with Adam, and leave it with its best weights.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place, and moved to the device: with ``validation`` it ends with the
        weights of the epoch that had the highest accuracy there, without it with the
        last ones.
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
    about = runs.describe("torch", model, loss_fn, data, settings, batches, validation)
    with own_random_numbers():
        trainer = Trainer(model, loss_fn, data, settings, validation, device)
        options = {"folder": folder, "retrain": retrain, "bar": bar}
        return runs.train(trainer, settings, batches, about, **options)


def evaluate(model, loss_fn, data, *, batch_size=1000, device=None):
    """Mean loss and accuracy with dropout off.

    Parameters
    ----------
    model : torch.nn.Module
        Stays in the mode it is in, and is moved to the device.
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
    device = find_device(device)
    return score(model.to(device), loss_fn, on_device(data, device), batch_size)


def find_device(name=None):
    """A PyTorch device: "cpu", "gpu", or by default the best there is.

    Raises
    ------
    ValueError
        If there is no such device here.
    """
    found = {"cpu": torch.device("cpu")}
    if torch.cuda.is_available():
        found["gpu"] = torch.device("cuda")
    return choose(name, found, "device") if name else [*found.values()][-1]


def on_device(data, device):
    """NumPy arrays as tensors: whole numbers with 64 bits, as labels, others with 32."""
    tensors = [torch.tensor(np.ascontiguousarray(x), device=device) for x in data]
    tensors = [x.float() if x.is_floating_point() else x for x in tensors]
    whole = torch.uint8, torch.int8, torch.int16, torch.int32
    return [x.long() if x.dtype in whole else x for x in tensors]


@contextmanager
def own_random_numbers():
    """Give PyTorch's global generators back as they were."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        yield


class Trainer:
    """One training on one device, an epoch at a time.

    All parameters lie in one vector, all gradients in another, so that clipping and Adam
    are a few operations instead of a few for each parameter.
    """

    def __init__(self, model, loss_fn, data, settings, validation, device):
        self.model, self.loss_fn, self.settings = model.to(device), loss_fn, settings
        self.data = on_device(data, device)
        self.validation = validation and on_device(validation, device)
        self.weights, self.gradient = as_vectors(model)
        self.mean, self.square = torch.zeros_like(self.weights).repeat(2, 1)
        self.step, self.rate = torch.zeros(2, device=device)  # updates so far; rate
        self.replay = None

    def epoch(self, batches, rates):
        """Do the updates of an epoch; their history as arrays."""
        torch.manual_seed(self.settings.seed + int(self.step))  # for dropout
        self.model.train()
        device = self.weights.device
        batches = torch.as_tensor(batches, device=device).long()
        rates = torch.as_tensor(rates, device=device)
        history = torch.empty(len(rates), len(runs.UPDATES), device=device)
        if device.type == "cuda" and self.replay is None:
            self.capture(batches[0])
        for place in range(len(rates)):
            self.rate.copy_(rates[place])
            history[place] = self.one_update(batches[place])
        columns = history.T.cpu().numpy().astype(np.float64)
        return dict(zip(runs.UPDATES, columns, strict=True))

    def one_update(self, index):
        """One update: directly, or on a GPU as a replay of the captured one."""
        if self.replay is None:
            return self.update(index)
        self.index.copy_(index)
        self.replay()
        return self.result

    def update(self, index):
        """Loss, gradient, clipping, Adam; returns what the history has of it."""
        loss, metrics = self.loss_fn(self.model, *(x[index] for x in self.data))
        self.gradient.zero_()
        loss.backward()
        norm = torch.linalg.vector_norm(self.gradient)
        self.gradient *= (self.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1)
        adam(
            [self.weights], [self.gradient], [self.mean], [self.square], [], [self.step],
            lr=self.rate, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0,
            amsgrad=False, maximize=False, fused=True, capturable=self.weights.is_cuda,
        )  # fmt: skip
        return torch.stack([loss, metrics["accuracy"], self.rate, norm]).detach()

    def capture(self, index):
        """Record one update as a CUDA graph: replayed, it needs no Python per kernel.

        Recording needs a few real updates first; what they changed is put back.
        """
        tensors = self.weights, self.mean, self.square, self.step
        kept = [x.clone() for x in tensors]
        self.index = index.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.update(self.index)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.result = self.update(self.index)
        for tensor, old in zip(tensors, kept, strict=True):
            tensor.copy_(old)
        self.replay = graph.replay

    def score(self):
        """Loss and accuracy on the validation data, or NaN if there is none."""
        if self.validation is None:
            return {"loss": np.nan, "accuracy": np.nan}
        return score(self.model, self.loss_fn, self.validation, 1000)

    def state(self):
        """All that the next update depends on, as arrays."""
        names = "weights", "mean", "square", "step"
        return {name: getattr(self, name).cpu().numpy() for name in names}

    def restore(self, arrays):
        """Go on from such a state."""
        for name, array in arrays.items():
            getattr(self, name).copy_(torch.as_tensor(array))


def as_vectors(model):
    """Move all parameters of a model into one vector, and their gradients to another.

    Returns
    -------
    tuple of two tensors
        Parameters and gradients of the model are views of them from now on.
    """
    params = list(model.parameters())
    weights = torch.cat([param.detach().reshape(-1) for param in params])
    gradient = torch.zeros_like(weights)
    sizes = [param.numel() for param in params]
    parts = zip(params, weights.split(sizes), gradient.split(sizes), strict=True)
    for param, values, slope in parts:
        param.data, param.grad = values.view_as(param), slope.view_as(param)
    return weights, gradient


@torch.no_grad()
def score(model, loss_fn, data, batch_size):
    """Mean loss and accuracy; the last batch may be smaller."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    n = len(data[0])
    total = torch.zeros(2, dtype=torch.float64, device=data[0].device)
    try:
        for start in range(0, n, batch_size):
            part = [x[start : start + batch_size] for x in data]
            loss, metrics = loss_fn(model, *part)
            total += len(part[0]) * torch.stack([loss, metrics["accuracy"]])
    finally:
        for part, was_training in modes:
            part.training = was_training
    return dict(zip(("loss", "accuracy"), (total / n).tolist(), strict=True))
