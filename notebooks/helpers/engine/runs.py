"""A training in a folder: resumed after a kill, reloaded when finished, in TensorBoard.

The frameworks do the updates (``training`` in their rooms); what both share is here.
A run is kept in ``folder/<digest>``: one checkpoint, replaced as a whole after every
epoch, an event file for TensorBoard with the same history, and ``about.json``, which
says what the run is. The digest covers settings, data, batches, initial weights, and the
code of loss and model: an edited model is never served from an old run.
"""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from tqdm import tqdm

from helpers.engine.checks import check_batches, check_fit, expect
from helpers.engine.fingerprint import code, digest
from helpers.engine.weights import from_arrays, to_arrays, write_atomically

UPDATES = "loss", "accuracy", "learning_rate", "grad_norm"
EPOCHS = "validation_loss", "validation_accuracy", "seconds"
TITLE = "a training of helpers.engine.runs"
CURE = "move it away, or pass retrain=True to replace it"
NOTHING = {name: np.zeros(0) for name in (*UPDATES, *EPOCHS)}


def runs_folder(name):
    """Where the runs ``name`` are kept: below ``$RUNS_FOLDER``, by default ``runs``."""
    return Path(os.environ.get("RUNS_FOLDER", "runs")) / name


def describe(modules, loss_fn, settings, data, validation, batches, augment=None):
    """Everything that identifies a run but its initial weights: short texts by name."""
    return {
        # a precision of float32 goes without saying
        **{k: repr(x) for k, x in asdict(settings).items() if x != "float32"},
        "model": code(*modules),
        "loss function": code(loss_fn),
        "data": digest({str(place): x for place, x in enumerate(data)}),
        "validation data": digest({str(i): x for i, x in enumerate(validation or ())}),
        "batches": digest({"first": batches(0)}),
        **({"augmentation": code(augment)} if augment else {}),
    }


def fit(
    make_trainer, model, modules, loss_fn, data, settings, *, batches, augment,
    validation, **options,
):  # fmt: skip
    """What ``fit`` of both frameworks does, with their trainer and modules.

    Parameters
    ----------
    model : flax.nnx.Module or torch.nn.Module
        Changed in place: with ``validation`` it ends with the weights of the epoch that
        had the highest accuracy there, without it with the last ones; and in evaluation
        mode, dropout off. The data are moved to the device of its parameters.
    loss_fn : function ``(model, *batch) -> (loss, {"accuracy": …})``
        ``loss_fn.check_labels``, if there is one, checks the data before any work;
        ``loss_fn.weigh(*batch)`` counts the terms that each example adds to the mean.
    data, validation : tuples of NumPy arrays
        A batch is the same rows of each; validation is after every epoch.
    settings : helpers.engine.settings.Settings
        ``precision`` is of products in updates; losses and validation are in float32.
    batches : function from the epoch to an integer array ``n b …``, optional
        Rows of the data for each update; by default ``sequences.shuffled(settings)``.
    augment : function ``(uniforms, *batch) -> batch``, optional
        Changes every training batch, on the device: ``uniforms`` are eight numbers in
        [0, 1) for each example, ``b 8``, the same in both frameworks.
    folder : str or path, optional
        Keep the run below this folder, under its digest: a finished run is reloaded, an
        interrupted one is resumed. Initial weights belong to the digest, so a model that
        has been trained starts another run.
    retrain, bar : whether to train again, also when the run is finished; to show a bar
    report : function of the history, called after every epoch, optional

    Returns
    -------
    dict of str to float64 array
        Of updates ``loss``, ``accuracy``, ``learning_rate``, ``grad_norm`` before
        clipping; of epochs ``validation_loss``, ``validation_accuracy``, ``seconds``.

    Raises
    ------
    ValueError
        Before any work, if the arguments contradict each other, the checkpoint of the
        run is damaged, or processes do not divide a batch evenly or differ.
    FloatingPointError
        If a loss or a gradient is no longer finite.
    """
    check_fit(model, modules, loss_fn, data, settings, batches, validation)

    def checked(epoch):
        return check_batches(batches(epoch), settings, len(data[0]))

    about = describe(modules, loss_fn, settings, data, validation, checked, augment)
    trainer = make_trainer(model, loss_fn, data, settings, validation, augment)
    return train(trainer, settings, checked, about, **options)


def train(trainer, settings, batches, about, *, folder, retrain, bar, report):
    """Train all epochs, from the start or from the last checkpoint; the history.

    ``trainer`` is the ``Trainer`` of a framework. After an error the model has its
    initial weights again, so that the same call resumes the run.
    """
    group = trainer.group
    about = about | {"initial weights": digest(to_arrays(trainer.model))}
    group.check_same(about | {"folder": str(folder is None), "retrain": str(retrain)})

    def opened():  # both are None without a folder
        run = None if folder is None else Run(folder, about)
        return run, (None if run is None or retrain else run.load())

    run, found = group.broadcast(opened)
    run = run if group.rank == 0 else None
    start = trainer.state()
    state, best, history = found or (start, None, NOTHING)
    done, bar = len(history["seconds"]), bar and group.rank == 0
    if run and done:
        news = f"goes on after epoch {done} of {settings.epochs}"
        if done == settings.epochs:
            news = "is finished and reloaded; retrain=True (--retrain) trains it again"
        print(run, news)
    if done < settings.epochs:
        trainer.restore(state)
    given = trainer, settings, batches, run, best, history, bar, report
    try:
        best, history = train_epochs(*given)
    except BaseException:
        if group.size == 1:  # elsewhere the other processes may be gone
            trainer.restore(start)
        raise
    finally:
        if run and run.events:
            run.events.close()
    from_arrays(trainer.model, best)
    trainer.model.eval()
    return history


def train_epochs(trainer, settings, batches, run, best, history, bar, report):
    """Train the epochs that are left; the best weights and the history."""
    n, rates = settings.updates_per_epoch, settings.learning_rates
    first = len(history["seconds"])
    options = {"unit": "update", "leave": False}  # TQDM_DISABLE=1 turns it off
    options |= {} if bar and first < settings.epochs else {"disable": True}
    with tqdm(total=settings.updates, initial=first * n, **options) as shown:
        for epoch in range(first, settings.epochs):
            started = time.perf_counter()
            news = trainer.epoch(epoch, batches(epoch))
            news["learning_rate"] = rates[epoch * n : (epoch + 1) * n]
            check_finite(news, epoch * n)
            scores = trainer.score() or {"loss": np.nan, "accuracy": np.nan}
            news |= {f"validation_{k}": x for k, x in scores.items()}
            news["seconds"] = time.perf_counter() - started
            if best is None or is_better(news, history):
                best = to_arrays(trainer.model)
            history = {name: np.append(history[name], news[name]) for name in history}
            if run:
                run.write(trainer.state(), best, history, n)
            text, share = f"loss {news['loss'][-1]:.4f}", news["validation_accuracy"]
            text += "" if np.isnan(share) else f", validation {share:.2%}"
            shown.set_postfix_str(text)
            shown.update(n)
            if report:
                report(history)
    return best, history


def is_better(news, history):
    """Higher validation accuracy; if equal, lower loss. Without validation, always."""
    if np.isnan(news["validation_accuracy"]):
        return True
    losses, accuracies = history["validation_loss"], history["validation_accuracy"]
    before = zip(accuracies, -losses, strict=True)
    return (news["validation_accuracy"], -news["validation_loss"]) > max(before)


def count_terms(loss_fn, batch):
    """How many terms the mean of a batch is over: examples, unless the loss says."""
    weigh = getattr(loss_fn, "weigh", None)
    return weigh(*batch).sum() if weigh else len(batch[0])


def weighted_mean(rows):
    """Mean loss and accuracy of batches: each has both, and the number of terms."""
    loss, accuracy, n = np.array(rows, np.float64).T
    loss, accuracy = (np.average(x, weights=n).item() for x in (loss, accuracy))
    return {"loss": loss, "accuracy": accuracy}


def check_finite(news, first):
    """Raise FloatingPointError at the first loss or gradient that is not finite."""
    finite = np.isfinite(news["loss"]) & np.isfinite(news["grad_norm"])
    if not finite.all():
        at = int(np.argmin(finite))
        loss, rate, norm = (news[k][at] for k in ("loss", "learning_rate", "grad_norm"))
        raise FloatingPointError(
            f"the loss is {loss:.4g} at update {first + at}: learning rate {rate:.4g}, "
            f"gradient norm {norm:.4g}; a lower learning rate, a longer warm-up or "
            "clipping may help"
        )


class Run:
    """The folder of a run: its checkpoint and its events."""

    def __init__(self, folder, about):
        expect(os.fspath(folder), "folder to be the path of a folder", "''")
        self.folder = Path(folder) / digest(about)[:16]
        self.path = self.folder / "checkpoint.safetensors"
        self.about, self.events = about, None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / "about.json").exists():
                text = json.dumps(about, indent=1)
                write_atomically(self.folder / "about.json", text.encode())
        except OSError as error:
            why = f"{error.strerror} ({error.filename})"
            raise ValueError(f"cannot keep a run in {folder}: {why}") from error
        if self.path.is_dir():
            raise ValueError(f"{self.path} is a folder, expected a file: {CURE}")

    def __str__(self):
        written = time.localtime(self.path.stat().st_mtime)
        date = time.strftime("%Y-%m-%d %H:%M", written)
        return f"run {self.folder.parent.name}/{self.folder.name} of {date}"

    def load(self):
        """State, best weights and history, or None if nothing has been trained yet."""
        if not self.path.exists():
            return None
        arrays = read_checkpoint(self.path, self.about)
        return tuple(part(arrays, name) for name in ("state", "best", "history"))

    def write(self, state, best, history, n):
        """Write the events of an epoch of ``n`` updates, then the checkpoint."""
        self.write_events(history, n)  # first: a finished run is not touched again
        write_checkpoint(self.path, self.about, state, best, history)

    def write_events(self, history, n):
        """Write the latest epoch for TensorBoard; at first, all epochs until now.

        Without the files of earlier processes, the events are those of the checkpoint.
        """
        first = len(history["seconds"]) - 1
        if self.events is None:
            from tensorboard.summary import Writer  # takes a moment

            for old in self.folder.glob("events.out.tfevents.*"):
                old.unlink()
            self.events, first = Writer(str(self.folder)), 0
        for name in UPDATES:
            for step in range(first * n, len(history[name])):
                self.events.add_scalar(f"train/{name}", history[name][step], step)
        for name in EPOCHS:
            for epoch, x in list(enumerate(history[name]))[first:]:
                if not np.isnan(x):
                    step = (epoch + 1) * n - 1
                    self.events.add_scalar(name.replace("_", "/"), x, step)
        self.events.flush()


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
    notes["digest"] = digest(arrays | notes)
    for draft in path.parent.glob("*.draft"):
        draft.unlink()  # of a process that was killed while it wrote
    write_atomically(path, safetensors.numpy.save(arrays, metadata=notes))


def read_checkpoint(path, about):
    """The arrays of a checkpoint; ValueError if it is damaged or of another run."""
    try:
        with safetensors.safe_open(path, "numpy") as file:
            notes = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): {CURE}") from error
    if notes.get("title") != TITLE:
        raise ValueError(f"{path} is not {TITLE}: {CURE}")
    if notes.pop("digest", None) != digest(arrays | notes):
        raise ValueError(f"{path} is damaged (its contents have changed): {CURE}")
    if json.loads(notes["about"]) != about:
        raise ValueError(f"{path} is of another run: {CURE}")
    return arrays
