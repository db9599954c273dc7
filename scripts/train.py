"""Train a model of the book: on one device, on all of a machine, or on several hosts.

    python scripts/train.py --framework jax --task language --data my.txt
    torchrun --nproc-per-node gpu -- scripts/train.py --framework torch --task language
    torchrun --nnodes 2 --nproc-per-node gpu --rdzv-backend c10d \\
        --rdzv-endpoint FIRST:29500 -- scripts/train.py --framework torch --task vision
    python scripts/train.py --framework jax --task vision \\
        --coordinator FIRST:29500 --processes 2 --process 0

(Without the --, torchrun would take --m for an option of its own.)

JAX uses all devices that a process sees; on several hosts, start one process on each,
with --coordinator, or with --coordinator auto where SLURM, Kubernetes or Open MPI has
started them. A run that was stopped goes on after its last epoch when the same command
is given again. The weights can be loaded on the pages; those of a language model come
with its vocabulary, for helpers.jax.load_language_model and its twin in helpers.torch,
whether it has the block of GPT-2 or, with --block today, that of today.

    python scripts/train.py --framework torch --task language --data my.txt \\
        --from weights_0a1b2c3d.safetensors --learning-rate 1e-3 --adapter-rank 4

goes on from a language model that was trained like this: with its vocabulary, block and
sizes. With --adapter-rank its weights are frozen, and what is saved are adapters alone,
for load_adapter of helpers.jax and helpers.torch; without, all weights are trained.
On a CPU, PyTorch takes a thread for each core. For small models, and cores that others
use, try one: OMP_NUM_THREADS=1.
"""

import argparse
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from datetime import timedelta
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

import numpy as np
from tqdm import tqdm

import tasks
from helpers.engine import adapters, processes
from helpers.engine.fingerprint import digest
from helpers.engine.language_models import describe
from helpers.engine.runs import runs_folder
from helpers.engine.weights import (
    count_parameters,
    from_arrays,
    save_weights,
    to_arrays,
)


class Parser(argparse.ArgumentParser):
    """Errors are one sentence; below torchrun, it is torchrun that says it."""

    def error(self, message):
        """End with the sentence instead of all options."""
        self.exit(2, f"{self.prog}: {message} (--help explains all options)\n")

    def exit(self, status=0, message=None):
        """End this process."""
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if path and status in (1, 2):
            leave_to_torchrun(message, path)
            message = None
        super().exit(status, message)


def leave_to_torchrun(message, path):
    """Hand an error to torchrun, which writes it below its own traceback.

    If all processes of a machine fail, only the first one does: torchrun ends those
    that wait here.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(5)
    extra = {"timestamp": str(int(time.time()))}
    error = {"message": {"message": message.strip(), "extraInfo": extra}}
    Path(path).write_text(json.dumps(error), encoding="utf-8")


def arguments():
    """Of the command line: what to do, and the settings that were given."""
    first = Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--task")
    first.add_argument("--block")
    first.add_argument("--from", dest="start")
    found = first.parse_known_args()[0]
    if found.start and found.task == "language":
        try:
            found.block = describe(found.start, tasks.BLOCKS)[0]
        except (ValueError, OSError) as error:
            first.error(error)
    kinds = kinds_of(found.task, found.block)
    parser = make_parser(found.task, kinds)
    if len(sys.argv) == 1:
        parser.print_help()
        parser.exit()
    given = parser.parse_args()
    check_meeting(given, parser)
    check_start(given, parser)
    names = {"block", "start"} | {one.name for one in fields(kinds[0])}
    changes = {key: value for key, value in vars(given).items() if key in names}
    if rank := given.adapter_rank:
        changes["adapter"] = {
            "rank": rank, "alpha": given.adapter_alpha or 2.0 * rank,
            "names": (given.adapter_layers or "q,v").split(","),
        }  # fmt: skip
    return given, changes, parser


def kinds_of(name, block):
    """Settings of a task with a block, or of all of them if there is no such task."""
    if name == "language":
        return [tasks.BLOCKS.get(block, tasks.BLOCKS["gpt2"])]
    found = [tasks.TASKS[name]] if name in tasks.TASKS else tasks.TASKS.values()
    return [kind for kind, _ in found] + [tasks.BLOCKS["today"]] * (len(found) > 1)


def make_parser(name, kinds):
    """Options of all tasks, and the settings of some ``kinds``."""
    parser = Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    own = "; ".join(
        f"{task}: {what}" for task, (_, what) in tasks.TASKS.items() if what
    )
    add = parser.add_argument
    add("--framework", choices=("jax", "torch"), required=True)
    add("--task", choices=tasks.TASKS, required=True)
    add("--data", help=f"of your own ({own})")
    add("--runs", type=Path, help="folder to keep the run below (runs/TASK_FRAMEWORK)")
    add("--weights", type=Path, help="file for the trained weights, which replaces one "
        "of that name (by default each run has its own: weights_DIGEST.safetensors "
        "below --runs, with a digest of its settings and its data)")  # fmt: skip
    add("--half", action="store_true", help="save weights with two bytes a number")
    add("--retrain", action="store_true", help="also if it is finished")
    add("--limit", type=positive, default=300, metavar="SECONDS",
        help="to wait for other processes (default: 300)")  # fmt: skip
    jax = parser.add_argument_group("JAX")
    jax.add_argument("--cpu-devices", type=positive, help="CPU devices to pretend")
    jax.add_argument("--coordinator", help="HOST:PORT of the first process, or auto")
    jax.add_argument("--processes", type=positive, help="how many there are")
    jax.add_argument("--process", type=int, help="which one this is, from 0")
    start = parser.add_argument_group("start from a trained language model")
    start.add_argument("--from", dest="start", metavar="FILE",
        help="weights that --task language has saved: block, sizes and vocabulary are "
        "those of the file; a lower --learning-rate may help")  # fmt: skip
    start.add_argument("--adapter-rank", type=positive, metavar="RANK",
        help="train adapters of low rank (LoRA), and save them alone: --weights is "
        "their file (by default adapter_DIGEST.safetensors)")  # fmt: skip
    start.add_argument("--adapter-alpha", type=above_zero, metavar="ALPHA",
        help="their outputs are times ALPHA/RANK (default: 2 RANK)")  # fmt: skip
    start.add_argument("--adapter-layers", metavar="NAMES",
        help="linear layers that get one, by name (default: q,v)")  # fmt: skip
    title = f"settings of {name}" if len(kinds) == 1 else "settings of the tasks"
    settings = parser.add_argument_group(
        title,
        "With data of your own, sizes follow from them."
        if len(kinds) == 1 else "Add --task NAME for its own, and their defaults.",
    )  # fmt: skip
    if name == "language" or len(kinds) > 1:
        settings.add_argument("--block", choices=tasks.BLOCKS,
            help="of the language model: gpt2, as in the chapter A model that writes; "
            "today: rotary positions, RMSNorm, SwiGLU, grouped queries, no biases, "
            "no dropout (default: gpt2)")  # fmt: skip
    found = {one.name: one for kind in kinds for one in fields(kind)}
    found.pop("source", None)
    for one in found.values():
        default = f" (default: {one.default})" if len(kinds) == 1 else ""
        settings.add_argument(
            f"--{one.name.replace('_', '-')}", default=argparse.SUPPRESS,
            type=truth if one.type is bool else one.type, metavar=one.name.upper(),
            help=f"{tasks.MEANINGS[one.name]}{default}",
        )  # fmt: skip
    return parser


def check_meeting(given, parser):
    """End with a sentence unless processes can meet as the options say."""
    known = given.coordinator, given.processes, given.process
    if given.framework == "torch" and {*known, given.cpu_devices} != {None}:
        parser.error(
            "--coordinator, --processes, --process and --cpu-devices are for JAX; "
            "torchrun starts processes of PyTorch, as the first lines of --help show"
        )
    host, _, port = (given.coordinator or "").rpartition(":")
    if given.coordinator in (None, "auto"):
        if known[1:] != (None, None):
            parser.error(
                "expected --coordinator HOST:PORT with --processes and --process"
            )
    elif not host or not port.isdecimal():
        parser.error(
            f"expected --coordinator HOST:PORT, or auto, got {given.coordinator!r}"
        )
    elif None in known:
        parser.error(
            "expected --processes and --process, too, with --coordinator HOST:PORT"
        )
    elif not 0 <= given.process < given.processes:
        parser.error(
            f"expected --process from 0 to {given.processes - 1} with --processes "
            f"{given.processes}, got {given.process}"
        )


def check_start(given, parser):
    """End with a sentence unless the options of a start agree with each other."""
    if given.start and given.task != "language":
        parser.error(f"expected --task language with --from, got {given.task}")
    named = [f"--adapter-{k}" for k in ("rank", "alpha", "layers")
             if getattr(given, f"adapter_{k}") is not None]  # fmt: skip
    if named and not given.start:
        parser.error(f"expected --from FILE with {named[0]}, whose weights are frozen")
    if named and given.adapter_rank is None:
        parser.error(f"expected --adapter-rank, too, with {named[0]}")
    if named and given.half:
        parser.error("expected --half or --adapter-rank, got both")
    path = given.weights
    if given.start and path and path.exists() and path.samefile(given.start):
        parser.error(f"expected --weights other than --from, got {path} for both")


def above_zero(text):
    """A finite number above 0."""
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")


def positive(text):
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"expected a whole number above 0, got {text!r}"
        )
    return int(text)


def truth(text):
    """True or False."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")
    return text.lower() == "true"


@contextmanager
def join_torch(given):
    """Join the processes of torchrun, if there are any, each with a device; leave."""
    torch = importlib.import_module("torch")
    backend, device = "gloo", None
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        backend = "nccl"
    if "WORLD_SIZE" not in os.environ:
        yield processes.ProcessGroup()
        return
    limit = timedelta(seconds=given.limit)
    torch.distributed.init_process_group(backend, timeout=limit, device_id=device)
    try:
        yield importlib.import_module("helpers.torch.training").Distributed()
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def join_jax(given):
    """Join the processes that a coordinator knows, if one was named."""
    jax = importlib.import_module("jax")
    if given.cpu_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", given.cpu_devices)
    if given.coordinator:
        known = {} if given.coordinator == "auto" else {
            "coordinator_address": given.coordinator,
            "num_processes": given.processes, "process_id": given.process,
        }  # fmt: skip
        message = (
            f"expected {given.processes or 'all'} processes to meet at "
            f"{given.coordinator} within {given.limit} seconds, but one is missing"
        )
        late = threading.Timer(given.limit, stop, [message])  # JAX would abort
        late.daemon = True
        late.start()
        usual = signal.signal(signal.SIGINT, signal.default_int_handler)
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())  # written to although JAX waits in C++
        threading.Thread(target=stop_if_asked, args=[reader], daemon=True).start()
        try:
            jax.distributed.initialize(**known, initialization_timeout=given.limit + 60)
        except ValueError as error:
            if known:
                raise
            raise ValueError(
                "expected SLURM, Kubernetes or Open MPI to have started this process, "
                "with --coordinator auto; else name the first one: HOST:PORT"
            ) from error
        finally:
            late.cancel()
            signal.set_wakeup_fd(-1)
            writer.close()
            signal.signal(signal.SIGINT, usual)
    if jax.process_count() == 1:
        yield processes.ProcessGroup()
    else:
        yield importlib.import_module("helpers.jax.training").Distributed()


def stop_if_asked(reader):
    """Ctrl-C while JAX waits, where Python cannot raise KeyboardInterrupt."""
    if signal.SIGINT in reader.recv(1):
        stop("interrupted while it waited for other processes", 130)


def stop(message, status=1):
    """End this process, from any thread, with a sentence."""
    print(f"train.py: {message}", file=sys.stderr, flush=True)
    os._exit(status)


def in_each(together, make):
    """What a function returns in this process, if it raises in none.

    What it raises elsewhere is a ValueError with the host and the process.
    """
    result, error = processes.result_or_error(make)
    found = together.all_gather((socket.gethostname(), error and f"{error}"))
    if error is not None:
        raise error
    for rank, (name, problem) in enumerate(found):
        if problem:
            raise ValueError(f"process {rank} on {name} failed: {problem}")
    return result


def train(given, changes, together):
    """Train, test, and keep the weights; returns what to say."""
    side = given.framework
    training = importlib.import_module(f"helpers.{side}.training")
    task = in_each(together, lambda: tasks.load(given.task, given.data, **changes))
    model = in_each(together, lambda: task.build(side))
    loss, options = getattr(training, task.loss), task.options(side)
    about = {name: repr(value) for name, value in asdict(task.settings).items()}
    about |= {
        f"{name} data": digest(dict(enumerate(x))) for name, x in task.data.items()
    }
    about |= {"initial weights": digest(to_arrays(model))}
    about |= {"adapter": repr(task.adapter)} if task.adapter else {}
    about |= {"half": "True"} if given.half else {}
    together.check_same(about)
    if side == "jax":
        training.on_all_devices(model)
    elif training.torch.cuda.is_available():
        model.cuda()  # the device that join_torch has chosen
    folder = given.runs or runs_folder(f"{given.task}_{side}")
    kind = "adapter" if task.adapter else "weights"
    path = given.weights or Path(folder) / f"{kind}_{digest(about)[:8]}.safetensors"
    together.broadcast(lambda: given.weights and check_writable(path))

    def measure():
        size = task.settings.batch_size  # where training fits, so does this
        return training.evaluate(model, loss, task.data["test"], batch_size=size)

    models, n = importlib.import_module(f"helpers.{side}"), count_parameters(model)
    size = f"{n:,} parameters"
    if task.adapter:
        options |= models.train_only(model, *adapters.LORA)
        few = sum(x.size for x in adapters.parts(model, adapters.LORA)[0].values())
        size = f"{few:,} of {size}"
    history = training.fit(
        model, loss, task.data["train"], task.settings, **options,
        folder=folder, retrain=given.retrain,
        report=partial(tell, task.settings, measure, together.rank == 0),
    )  # fmt: skip
    notes = {"settings": json.dumps(asdict(task.settings)), **task.notes}

    def save():
        if task.adapter:
            models.save_adapter(model, path)
        else:
            save_weights(model, path, notes, half=given.half)

    together.broadcast(save)
    if given.half:  # what is measured is what was saved
        arrays = to_arrays(model)
        from_arrays(model, {name: x.astype(np.float16) for name, x in arrays.items()})
    found = measure()
    return (
        f"{size}, {task.settings.updates:,} updates in "
        f"{history['seconds'].sum():.0f} s: test loss {found['loss']:.4f}, "
        f"accuracy {found['accuracy']:.2%}\n{path}"
    )


def check_writable(path):
    """Raise ValueError unless a file can be written there."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"expected --weights in a folder to write in, got {path}")


def tell(settings, measure, is_first, history):
    """Print a line for an epoch, with the test loss if there is no validation.

    That of the last epoch comes when its weights are saved.
    """
    epoch, name = len(history["seconds"]), "validation"
    found = {key: history[f"validation_{key}"][-1] for key in ("loss", "accuracy")}
    if np.isnan(found["loss"]):
        if epoch == settings.epochs:
            return
        name, found = "test", measure()
    if is_first:
        loss = history["loss"][-settings.updates_per_epoch :].mean()
        tqdm.write(
            f"epoch {epoch} of {settings.epochs}: loss {loss:.4f}, "
            f"{name} loss {found['loss']:.4f}, accuracy {found['accuracy']:.2%}"
        )
        sys.stdout.flush()


def main():
    """Join the others, train, and let the first process report."""
    given, changes, parser = arguments()
    try:
        join = {"jax": join_jax, "torch": join_torch}[given.framework]
        with join(given) as together:
            said = train(given, changes, together)
    except (ValueError, OSError, RuntimeError, FloatingPointError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        after = "the same command goes on after the last finished epoch"
        parser.exit(130, f"{parser.prog}: interrupted; {after}\n")
    if together.rank == 0:
        print(said)


if __name__ == "__main__":
    main()
