"""The trainings of the chapters by name: settings, model, data and loss of each.

Data are imported where they are made.
"""

import json
import os
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module

from helpers.engine import settings as known
from helpers.engine.checks import choose, expect
from helpers.engine.language_models import describe
from helpers.engine.set_settings import Digits, Sets
from helpers.engine.weights import load_weights
from helpers.schedules import SCHEDULES

TASKS = {  # its settings, and what data of one's own are, if it takes them
    "reverse": (known.Reverse, None),
    "anomaly": (Digits, "digits, cifar100, cifar10, or a folder of photos"),
    "language": (known.Text, "a text file in UTF-8"),
    "translation": (known.Dates, None),
    "vision": (known.Pictures, "digits, cifar10, or a folder of photos"),
}


@dataclass(frozen=True, kw_only=True)
class Modern(known.Text):
    """Chapter *today*: the same with the block of today, pre-norm, without dropout."""

    f: int = 288  # 3 m: about as many parameters as GPT-2's block
    positions: str = "rotary"  # or "learned"
    n_kv_heads: int = 2
    qk_norm: bool = False

    def __post_init__(self):
        super().__post_init__()
        shared = [n for n in range(1, 1 + self.n_heads) if self.n_heads % n == 0]
        options = {"positions": ["rotary", "learned"], "n_kv_heads": shared}
        for name, values in (options | {"dropout": [0], "norm_first": [True]}).items():
            if (found := getattr(self, name)) not in values:
                what = f"{name} to be one of {values} in the block of today"
                raise ValueError(f"expected {what}, got {found!r}")

    @property
    def model(self):
        """Arguments of ``ModernLM`` by name."""
        names = "n_tokens m n_blocks n_heads n_kv_heads f qk_norm positions tied"
        found = {name: getattr(self, name) for name in names.split()}
        return found | {"max_length": self.length}


BLOCKS = {"gpt2": known.Text, "today": Modern}  # of the language model


MEANINGS = {  # of the settings, for --help
    "n_train": "examples in an epoch",
    "batch_size": "examples in an update, of all devices together",
    "epochs": "passes through the examples",
    "learning_rate": "peak learning rate of Adam",
    "warmup": "updates over which the learning rate rises",
    "schedule": f"of the learning rate: {', '.join(SCHEDULES)}",
    "max_grad_norm": "gradients longer than this are shortened to it; inf: none",
    "precision": f"of matrix products in training: {', '.join(known.PRECISIONS)}; "
    "weights and losses stay float32",
    "seed": "of the initial weights, the order of the batches, and dropout",
    "n_blocks": "blocks of the model",
    "m": "size of the model, a multiple of the heads",
    "n_heads": "attention heads of a block",
    "n_kv_heads": "heads of keys and values, which divide the attention heads",
    "qk_norm": "whether queries and keys are normalised",
    "f": "hidden size of the feed-forward net",
    "dropout": "share of the outputs of each layer that are dropped in training",
    "input_dropout": "share of the inputs that are dropped in training",
    "norm_first": "true: pre-norm; false: post-norm, as in Vaswani et al. 2017",
    "positions": ", ".join(known.POSITIONS),
    "tied": "whether the output layer has the weights of the embedding",
    "shared": "whether source and target have one embedding",
    "length": "of a sequence or of a window of text, in tokens",
    "max_length": "longest text, in tokens",
    "n_symbols": "different symbols of a sequence",
    "n_tokens": "size of the vocabulary: all characters, and merged pairs if it is "
    "larger",
    "n_characters": "size of the vocabulary",
    "n_classes": "classes of the data",
    "n_features": "numbers that describe an element",
    "n_unseen": "classes that training does not see",
    "n_validation": "validation examples",
    "n_test": "test examples",
    "set_size": "elements of a set, with the odd one",
    "least_accuracy": "what the chapter promises; the training does not use it",
    "least_gain": "what the chapter promises over its baseline; not used here",
    "image_size": "side of a picture in pixels",
    "n_channels": "numbers of a pixel",
    "patch": "side of a patch in pixels",
    "pool": "token: a class token is read; mean: the mean of the patches",
}


@dataclass(frozen=True)
class Task:
    """What ``fit`` and ``evaluate`` need besides a model.

    ``model`` and ``loss`` are names in ``helpers.jax`` and ``helpers.torch``;
    ``data`` has tuples of arrays for ``train``, ``test`` and perhaps ``validation``;
    ``batches`` as ``fit`` takes them; ``moves`` are options of ``augment``; ``notes``
    are texts for the metadata of the weights. ``start`` is a file of weights to begin
    with; ``adapter`` are ``rank``, ``alpha`` and ``names`` as ``add_lora`` takes them,
    if adapters are trained in place of the weights.
    """

    settings: known.Settings
    model: str
    loss: str
    data: dict
    batches: object = None
    moves: dict = field(default_factory=dict)
    notes: dict = field(default_factory=dict)
    start: str | None = None
    adapter: dict = field(default_factory=dict)

    def build(self, side):
        """The model as training begins; one of PyTorch is on the CPU."""
        models, seed = import_module(f"helpers.{side}"), self.settings.seed
        kind = getattr(models, self.model)
        model = models.build(kind, seed=seed, **self.settings.model)
        if self.start:
            load_weights(model, self.start)
        if self.adapter:
            models.build(models.add_lora, model, seed=seed, **self.adapter)
        return model

    def options(self, side):
        """Batches, augmentation and validation data, as ``fit`` takes them."""
        augment = import_module(f"helpers.{side}").augment
        moves = partial(augment, **self.moves) if self.moves else None
        given = {"batches": self.batches, "augment": moves}
        return given | {"validation": self.data.get("validation")}


def load(name, source=None, block=None, start=None, adapter=None, **changes):
    """A task with its data.

    ``source`` are data of one's own, for the tasks that take them; ``block`` is that of
    the language model; ``changes`` are settings that differ from those of the chapter,
    or from what follows from such data. A language model may begin with the weights of
    a file, ``start``, which has its block, sizes and vocabulary; with an ``adapter``,
    as in ``Task``, they are frozen.
    """
    kind, wanted = choose(name, TASKS, "task")
    expect(name == "language" or not start, "the task language with weights", name)
    expect(start or not adapter, "weights to train adapters for", "none")
    if source and not wanted:
        raise ValueError(f"the task {name} makes its own data, got {source!r}")
    if name == "vision" and source not in (None, "digits"):
        from helpers.data import pictures

        parts, _ = pictures.load(source, changes.get("seed", known.Settings.seed))
        return of(known.Pictures.for_data(parts, **changes), source)
    if name == "anomaly":
        from helpers.data import sets

        return of(replace(sets.settings_for(source or "digits", "any"), **changes))
    if name == "language":
        pairs = None
        if start:
            block, pairs, changes = begin_with(start, block, changes)
        kind, first, resize = choose(block or "gpt2", BLOCKS, "block"), {}, None
        if source or os.environ.get("TEXT_FILE"):
            first = {"n_train": changes.get("batch_size", kind.batch_size), "warmup": 1}
            resize = partial(sizes_for, changes=changes)
        settings = kind(**first | changes)  # checked at once
        task = language(settings, source, resize, pairs)
        return replace(task, start=start, adapter=adapter or {})
    return of(kind(**changes), source)


def begin_with(path, block, changes):
    """Block, vocabulary and settings of the model of a file, and other ``changes``.

    A block or a setting that contradicts the file is a ValueError.
    """
    found, sizes, pairs = describe(path, BLOCKS)
    sizes = {"length" if k == "max_length" else k: x for k, x in sizes.items()}
    names = {one.name for one in fields(BLOCKS[found])}
    got = ", ".join(sorted(sizes.keys() - names))
    expect(not got, f"settings of the block {found} in {path}", got)
    for name, value in {"block": found, **sizes}.items():
        given = {"block": block or found, **changes}.get(name, value)
        expect(given == value, f"{name} = {value}, as {path} says", given)
    return found, pairs, changes | sizes


def sizes_for(n, settings, changes, updates=650):
    """Settings for ``n`` tokens of your own: an epoch is one pass through them.

    Epochs are chosen for about ``updates``, one at least and 100 at most.
    """
    sizes = {"n_train": max(settings.batch_size, n // settings.length)} | changes
    per_epoch = sizes["n_train"] // settings.batch_size
    sizes = {"epochs": min(100, -(-updates // per_epoch))} | sizes
    warmup = max(1, min(60, sizes["epochs"] * per_epoch // 10))
    return replace(settings, **{"warmup": warmup} | sizes)


def of(settings, source=None):
    """The task of settings that are complete."""
    kinds = {known.Pictures: vision, Sets: odd_one, known.Text: language}
    kinds |= {known.Dates: translation, known.Settings: reverse}
    make = next(make for kind, make in kinds.items() if isinstance(settings, kind))
    return make(settings, source)


def reverse(settings, _):
    """Sequences to be written from their end."""
    from helpers.data.sequences import reverse_data

    return Task(settings, "Predictor", "cross_entropy", reverse_data(settings))


def translation(settings, _):
    """Written dates, and the same days in ISO's form."""
    from helpers.data import dates, sequences

    order = sequences.in_order(settings)
    return Task(settings, "Translator", "next_token", dates.load(settings), order)


def language(settings, source, resize=None, pairs=None):
    """A language model of a text, in byte pairs; without any, they are learned from it.

    Pairs are those of the training part, characters those of the whole text.
    """
    from helpers.data import sequences, text
    from helpers.data.byte_pairs import ASCII, BytePairs

    texts = text.load(source)
    if pairs is None:
        characters = ASCII + texts["test"]
        pairs = BytePairs.learn(texts["train"], settings.n_tokens, characters)
    tokens = {name: pairs.encode(part) for name, part in texts.items()}
    if resize:
        settings = resize(len(tokens["train"]), settings)
    data = {
        "train": (text.random_windows(tokens["train"], settings),),
        "test": (text.windows(tokens["test"], settings.length),),
    }
    order = sequences.in_order(settings)
    today = isinstance(settings, Modern)
    model, block = ("ModernLM", "today") if today else ("LanguageModel", "gpt2")
    notes = pairs.metadata | {"model": json.dumps(settings.model), "block": block}
    return Task(settings, model, "next_token", data, order, notes=notes)


def odd_one(settings, _):
    """Sets with an odd one out of the images that the settings name."""
    from helpers.data import sets

    parts, _ = sets.load(settings)
    data = {"train": (parts["train"].features,)}
    sizes = {"validation": settings.n_validation, "test": settings.n_test}
    for seed, (name, n) in enumerate(sizes.items(), start=1):
        part = parts[name]
        rows = sets.fixed(part.labels, settings.set_size, n, seed)
        data[name] = (part.features[rows],)
    batches = sets.drawn(parts["train"].labels, settings)
    return Task(settings, "Predictor", "odd_one_out", data, batches)


def vision(settings, source):
    """Pictures with labels: digits are turned and shifted, photos mirrored."""
    from helpers.data import pictures

    parts, _ = pictures.load(source or "digits", settings.seed)
    parts["train"] = tuple(x[: settings.n_train] for x in parts["train"])
    is_digits = source in (None, "digits")
    moves = {"degrees": 12, "pixels": 1} if is_digits else {"flip": True}
    return Task(settings, "VisionTransformer", "cross_entropy", parts, moves=moves)
