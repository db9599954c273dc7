"""The usual training in PyTorch: a loader, and one Python call after the other."""

import torch
import torch._dynamo  # the first optimiser would load it; imports are not timed
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.usual import Log, loaders
from helpers.schedules import SCHEDULES


def to_tensor():
    """The last transforms of a photo: channels first, from 0 to 1."""
    from torchvision.transforms import v2

    return v2.ToImage(), v2.ToDtype(torch.float32, scale=True)


class Training:
    """What a tutorial calls a trainer module."""

    def __init__(self, name, model, loss_fn, data, settings, folder):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model, self.loss_fn = model.to(self.device), loss_fn
        self.settings = settings
        torch.manual_seed(settings.seed)
        self.batches, self.validation = loaders(name, settings, data, to_tensor())
        self.optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
        schedule = SCHEDULES[settings.schedule]
        sizes = {"warmup": settings.warmup, "total": settings.updates}
        self.schedule = LambdaLR(self.optimizer, lambda step: schedule(step, **sizes))
        self.log = Log(folder)

    def fit(self):
        """All epochs; the history of the log."""
        step = 0
        for _ in range(self.settings.epochs):
            self.model.train()
            for batch in self.batches:
                self.write(step, *self.update(self.move(batch)))
                step += 1
            loss, accuracy = self.evaluate()
            self.log.write("validation", step, loss=loss, accuracy=accuracy)
        self.log.writer.close()
        return self.log.history

    def move(self, batch):
        """Move a batch to the device."""
        return [x.to(self.device) for x in batch]

    def update(self, batch):
        """One update: forward, backward, clip, Adam."""
        loss, metrics = self.loss_fn(self.model, *batch)
        self.optimizer.zero_grad()
        loss.backward()
        clip = self.settings.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        rate = self.schedule.get_last_lr()[0]
        self.schedule.step()
        return loss, metrics, rate, norm

    def write(self, step, loss, metrics, rate, norm):
        """Log an update."""
        numbers = {"loss": loss.item(), "accuracy": metrics["accuracy"].item()}
        rates = {"learning_rate": rate, "grad_norm": norm.item()}
        self.log.write("train", step, **numbers, **rates)

    @torch.no_grad()
    def evaluate(self):
        """Mean loss and accuracy on the validation data."""
        self.model.eval()
        total, n = torch.zeros(2), 0
        for batch in self.validation:
            loss, metrics = self.loss_fn(self.model, *self.move(batch))
            both = torch.stack([loss, metrics["accuracy"]])
            total += len(batch[0]) * both.cpu()
            n += len(batch[0])
        return (total / n).tolist()
