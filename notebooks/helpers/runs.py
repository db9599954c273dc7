"""A training in a folder: resumed after a kill, found when finished, seen in TensorBoard.

The frameworks do the updates (``train_jax``, ``train_torch``); what both need around them
stands here. A folder holds one checkpoint, which is replaced as a whole after every
epoch, and an event file for TensorBoard, which has the same history.
"""

import hashlib
import inspect
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from tqdm import tqdm

from helpers.weights import from_arrays, to_arrays, write_whole

UPDATES = "loss", "accuracy", "learning_rate", "grad_norm"
EPOCHS = "validation_loss", "validation_accuracy", "seconds"
TITLE = "a training of helpers.runs"


def runs_folder(name):
    """Where the run ``name`` is kept: below ``$RUNS_FOLDER``, by default ``runs``."""
    return Path(os.environ.get("RUNS_FOLDER", "runs")) / name


def train(trainer, settings, batches, about, *, folder=None, retrain=False, bar=True):
    """Go through all epochs, from the start or from where the folder's run stands.

    Parameters
    ----------
    trainer : object
        ``trainer.model``; ``epoch(batches, rates) -> dict`` of arrays named as in
        ``UPDATES``; ``score() -> (loss, accuracy)`` or None; ``state() -> dict`` of
        arrays; ``restore(arrays)``.
    settings : helpers.settings.Settings
    batches : function from the epoch to an integer array ``n b …``
    about : dict
        What makes this run this run; a checkpoint that says otherwise is refused.
    folder : str or path, optional
        Without one nothing is written.
    retrain : bool
        Begin anew, whatever the folder holds.
    bar : bool
        Show a progress bar.

    Returns
    -------
    dict of str to float64 array
        What happened at every update (``UPDATES``) and in every epoch (``EPOCHS``).

    Raises
    ------
    ValueError
        If the checkpoint in the folder is damaged, or of another run.
    FloatingPointError
        If a loss or a gradient is no longer finite.
    """
    path = None if folder is None else Path(folder) / "checkpoint.safetensors"
    history = {name: np.zeros(0) for name in (*UPDATES, *EPOCHS)}
    best, events = None, Events(folder)
    if path and path.exists() and not retrain:
        arrays = read_checkpoint(path, about)
        history = part(arrays, "history")
        best = part(arrays, "best")
        if len(history["seconds"]) < settings.epochs:
            trainer.restore(part(arrays, "state"))
    elif path:
        path.parent.mkdir(parents=True, exist_ok=True)
    n, rates = settings.updates_per_epoch, settings.learning_rates
    first = len(history["seconds"])
    with progress(settings, first * n, bar and first < settings.epochs) as shown:
        for epoch in range(first, settings.epochs):
            started = time.perf_counter()
            news = trainer.epoch(batches(epoch), rates[epoch * n : (epoch + 1) * n])
            check_finite(news, epoch * n)
            news |= {f"validation_{k}": x for k, x in trainer.score().items()}
            news["seconds"] = time.perf_counter() - started
            if best is None or is_better(news, history):
                best = to_arrays(trainer.model)
            history = {k: np.append(v, news[k]) for k, v in history.items()}
            if path:
                events.write(history, n)  # first: a finished run is not touched again
                write_checkpoint(path, about, trainer.state(), best, history)
            shown.set_postfix_str(summary(history))
            shown.update(n)
    from_arrays(trainer.model, best)
    return history


def is_better(news, history):
    """Higher validation accuracy; if equal, lower loss. Without validation, always."""
    if np.isnan(news["validation_accuracy"]):
        return True
    before = zip(
        history["validation_accuracy"], -history["validation_loss"], strict=True
    )
    return (news["validation_accuracy"], -news["validation_loss"]) > max(before)


def check_finite(news, first):
    """Stop at the first loss or gradient that is not a finite number.

    Raises
    ------
    FloatingPointError
        Naming the update, its rate and its gradient norm.
    """
    finite = np.isfinite(news["loss"]) & np.isfinite(news["grad_norm"])
    if not finite.all():
        at = int(np.argmin(finite))
        loss, rate, norm = (news[k][at] for k in ("loss", "learning_rate", "grad_norm"))
        raise FloatingPointError(
            f"the loss is {loss:.4g} at update {first + at}: rate {rate:.4g}, "
            f"gradient norm {norm:.4g}; a lower rate, a longer warm-up or clipping may "
            "help"
        )


def progress(settings, done, show):
    """A bar on stderr that vanishes at the end; ``TQDM_DISABLE=1`` turns it off."""
    options = {} if show else {"disable": True}
    return tqdm(
        total=settings.updates, initial=done, unit="update", leave=False, **options
    )


def summary(history):
    """The latest numbers, for the bar."""
    text = f"loss {history['loss'][-1]:.4f}"
    accuracy = history["validation_accuracy"][-1]
    return text if np.isnan(accuracy) else f"{text}, validation {accuracy:.2%}"


def describe(framework, model, loss, data, settings, batches, validation=None):
    """What makes a run this run, as short texts by name.

    The settings one by one, and digests of the initial weights, the loss function, the
    data, and the batches of the first epoch.
    """
    try:
        source = inspect.getsource(loss)
    except (OSError, TypeError):  # typed into a shell that keeps no source; no function
        source = getattr(loss, "__qualname__", type(loss).__qualname__)
    about = {"framework": framework}
    about |= {name: repr(value) for name, value in asdict(settings).items()}
    return about | {
        "initial weights": digest(to_arrays(model)),
        "loss function": digest(in_bytes({"source": source})),
        "data": digest({str(place): x for place, x in enumerate(data)}),
        "validation data": digest({str(i): x for i, x in enumerate(validation or ())}),
        "batches": digest({"first": batches(0)}),
    }


def digest(arrays):
    """A hash of names, shapes, dtypes and contents of some arrays."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.shape} {array.dtype}".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def in_bytes(texts):
    """Texts by name as arrays, for ``digest``."""
    return {k: np.frombuffer(v.encode(), np.uint8) for k, v in texts.items()}


def part(arrays, prefix):
    """The arrays whose name begins with a prefix, without it."""
    start = f"{prefix}/"
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def write_checkpoint(path, about, state, best, history):
    """One safetensors file with all of a run in it; replaces the last one as a whole."""
    parts = {"state": state, "best": best, "history": history}
    arrays = {f"{k}/{name}": x for k, v in parts.items() for name, x in v.items()}
    arrays = {name: np.array(x, order="C") for name, x in arrays.items()}
    notes = {"title": TITLE, "about": json.dumps(about)}
    notes["digest"] = digest(arrays | in_bytes(notes))
    for draft in path.parent.glob(f"{path.name}.*.draft"):
        draft.unlink()  # of a process that was killed while it wrote
    write_whole(path, safetensors.numpy.save(arrays, metadata=notes))


def read_checkpoint(path, about):
    """The arrays of a checkpoint, if it is whole and of this very run.

    Raises
    ------
    ValueError
        One sentence that names the file, what is wrong with it and what to do.
    """
    cure = "move it away, or pass retrain=True to replace it"
    try:
        with safetensors.safe_open(path, "numpy") as file:
            notes = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): {cure}") from error
    if notes.get("title") != TITLE:
        raise ValueError(f"{path} is not {TITLE}: {cure}")
    if notes.pop("digest", None) != digest(arrays | in_bytes(notes)):
        raise ValueError(f"{path} is damaged (its contents have changed): {cure}")
    found = json.loads(notes["about"])
    for name in sorted({*found, *about}, key=[*about, *found].index):
        theirs, ours = (d.get(name, "nothing") for d in (found, about))
        if theirs != ours:
            raise ValueError(
                f"{path} is of another run: its {name} is {theirs}, here it is {ours}: "
                f"{cure}"
            )
    return arrays


class Events:
    """Writes a history to a TensorBoard event file in ``folder``.

    A resumed run writes all of it again, and removes the older files: so the events are
    those of the checkpoint, whenever the process was killed.
    """

    def __init__(self, folder):
        self.folder = folder and Path(folder)
        self.file = None
        self.done = 0

    def write(self, history, n):
        """Add the epochs of ``n`` updates that are not written yet."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        now = time.time()
        if self.file is None:
            for old in self.folder.glob("events.out.tfevents.*"):
                old.unlink()
            self.file = self.folder / f"events.out.tfevents.{int(now)}.{os.getpid()}"
            self.file.touch()
        with self.file.open("ab") as file:
            writer = RecordWriter(file)
            if not self.done:
                header = Event(wall_time=now, file_version="brain.Event:2")
                writer.write(header.SerializeToString())
            for step, values in events(history, n, self.done):
                scalars = [
                    Summary.Value(tag=k, simple_value=v) for k, v in values.items()
                ]
                event = Event(wall_time=now, step=step, summary=Summary(value=scalars))
                writer.write(event.SerializeToString())
        self.done = len(history["seconds"])


def events(history, n, first):
    """``(update, {tag: number})`` of the epochs from ``first`` on."""
    for step in range(first * n, len(history["loss"])):
        yield step, {f"train/{name}": history[name][step] for name in UPDATES}
    for epoch in range(first, len(history["seconds"])):
        values = {
            name.replace("_", "/"): history[name][epoch]
            for name in EPOCHS
            if not np.isnan(history[name][epoch])
        }
        yield (epoch + 1) * n - 1, values
