"""What a tutorial has around its loop, for both frameworks.

Examples one by one, loaders that collect them, and a log of every update.
"""

import numpy as np
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torch.utils.tensorboard import SummaryWriter

from benchmarks import tasks

WORKERS = 2  # processes that read photos


class Reversals(Dataset):
    """A sequence of integers, and the same from its end."""

    def __init__(self, sequences):
        self.sequences = sequences

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        x = self.sequences[index]
        return x, np.flip(x, axis=0).copy()


class Sets(Dataset):
    """A set drawn around the row ``index``, and the place of that row in it."""

    def __init__(self, features, settings):
        self.features, self.settings = features, settings
        self.per_class = len(features) // settings.n_classes
        self.rng = np.random.default_rng(settings.seed)

    def __len__(self):
        return self.settings.n_train

    def draw(self, odd):
        """Rows of another class than that of ``odd``."""
        n_classes = self.settings.n_classes
        other = self.rng.integers(n_classes - 1)
        other += other >= odd % n_classes
        n = self.settings.set_size - 1
        places = self.rng.choice(self.per_class, size=n, replace=False)
        return other + n_classes * places

    def __getitem__(self, index):
        rows = np.append(self.draw(index), index)
        return self.features[rows], np.int64(len(rows) - 1)


class FixedSets(Dataset):
    """Sets that were drawn before, for validation."""

    def __init__(self, features, rows):
        self.features, self.rows = features, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        rows = self.rows[index]
        return self.features[rows], np.int64(len(rows) - 1)


class Windows(Dataset):
    """A window of a text and one token more; the next begins ``step`` tokens later."""

    def __init__(self, tokens, length, step=1):
        self.tokens, self.length, self.step = tokens, length, step

    def __len__(self):
        return (len(self.tokens) - self.length - 1) // self.step + 1

    def __getitem__(self, index):
        start = index * self.step
        return (self.tokens[start : start + self.length + 1],)


def photos(folder, settings, last):
    """Files of photos, cropped and flipped by chance; for validation as they are."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    size, pixels = settings.image_size, tasks.MOVES["pixels"]
    moves = v2.RandomCrop(size, padding=pixels), v2.RandomHorizontalFlip()
    train, validation = (folder / part for part in tasks.PARTS)
    yield ImageFolder(train, v2.Compose([*moves, *last]))
    yield ImageFolder(validation, v2.Compose(last))


def to_array(photo):
    """The last transform of a photo: from 0 to 1; for JAX."""
    return np.asarray(photo, np.float32) / 255


def stack(examples):
    """Collect examples to NumPy arrays; for JAX, which workers need not load."""
    return tuple(map(np.stack, zip(*examples, strict=True)))


def loaders(name, settings, data, last=(), **options):
    """One loader for training and one for validation; ``last`` ends with arrays."""
    order = {"shuffle": True}
    if name == "reverse":
        train, validation = map(Reversals, data)
    elif name == "vision":
        train, validation = photos(data, settings, last)
        options |= {"num_workers": WORKERS, "persistent_workers": True}
    elif name == "text":
        train = Windows(data[0], settings.length)
        validation = Windows(data[1], settings.length, step=settings.length)
        n = settings.n_train
        order = {"sampler": RandomSampler(train, replacement=True, num_samples=n)}
    else:
        train = Sets(data[0], settings)
        validation = FixedSets(data[1], tasks.validation_sets(settings))
    size = settings.batch_size
    return (
        DataLoader(train, size, drop_last=True, **order, **options),
        DataLoader(validation, size, **options),
    )


class Log:
    """Event files, and the same numbers as lists."""

    def __init__(self, folder):
        self.writer = SummaryWriter(folder)
        self.history = {}

    def write(self, kind, step, **numbers):
        """One point of each curve."""
        for name, number in numbers.items():
            self.writer.add_scalar(f"{kind}/{name}", number, step)
            key = name if kind == "train" else f"{kind}_{name}"
            self.history.setdefault(key, []).append(number)
