"""The usual training in PyTorch: a loader, and one Python call after the other."""

import torch
import torch._dynamo  # the first optimiser would load it; imports are not timed
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.usual import Log, loaders
from helpers.schedules import SCHEDULES


class Training:
    """What a tutorial calls a trainer module."""

    def __init__(self, name, model, loss, data, settings, folder):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model, self.loss, self.settings = model.to(self.device), loss, settings
        torch.manual_seed(settings.seed)
        self.batches, self.validation = loaders(name, settings, data)
        self.optimiser = torch.optim.Adam(model.parameters(), lr=settings.rate)
        schedule = SCHEDULES[settings.schedule]
        sizes = {"warmup": settings.warmup, "total": settings.updates}
        self.schedule = LambdaLR(self.optimiser, lambda step: schedule(step, **sizes))
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
        """Bring a batch to the device."""
        return [x.to(self.device) for x in batch]

    def update(self, batch):
        """One update: forward, backward, clip, Adam."""
        loss, accuracy = self.loss(self.model, *batch)
        self.optimiser.zero_grad()
        loss.backward()
        clip = self.settings.clip
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimiser.step()
        rate = self.schedule.get_last_lr()[0]
        self.schedule.step()
        return loss, accuracy, rate, norm

    def write(self, step, loss, accuracy, rate, norm):
        """Log an update."""
        numbers = {"loss": loss.item(), "accuracy": accuracy.item()}
        self.log.write("train", step, **numbers, rate=rate, gradient_norm=norm.item())

    @torch.no_grad()
    def evaluate(self):
        """Mean loss and accuracy on the validation data."""
        self.model.eval()
        total, n = torch.zeros(2), 0
        for batch in self.validation:
            numbers = self.loss(self.model, *self.move(batch))
            total += len(batch[0]) * torch.stack(numbers).cpu()
            n += len(batch[0])
        return (total / n).tolist()
