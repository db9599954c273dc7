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
is given again. The weights can be loaded on the pages.
"""

import argparse
import importlib
import os
import sys
import threading
from dataclasses import asdict, fields
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

import tasks
from helpers.engine import processes
from helpers.engine.fingerprint import digest
from helpers.engine.runs import runs_folder
from helpers.engine.weights import count_parameters, save_weights, to_arrays


def arguments():
    """Of the command line: what to do, and the settings that were given."""
    form = argparse.RawDescriptionHelpFormatter
    first = argparse.ArgumentParser(
        description=__doc__, formatter_class=form, add_help=False, allow_abbrev=False
    )
    first.add_argument("--framework", choices=("jax", "torch"), required=True)
    first.add_argument("--task", choices=tasks.TASKS, required=True)
    first.add_argument("--data", help="of your own: a text file, or a source of photos")
    first.add_argument("--runs", type=Path, help="folder to keep the run below")
    first.add_argument("--weights", type=Path, help="file for the trained weights")
    first.add_argument("--retrain", action="store_true", help="also if it is finished")
    first.add_argument("--limit", type=positive, default=300, metavar="SECONDS",
                       help="to wait for other processes (default: 300)")  # fmt: skip
    jax = first.add_argument_group("JAX")
    jax.add_argument("--cpu-devices", type=positive, help="CPU devices to pretend")
    jax.add_argument("--coordinator", help="HOST:PORT of the first process, or auto")
    jax.add_argument("--processes", type=positive, help="how many there are")
    jax.add_argument("--process", type=int, help="which one this is, from 0")
    name = first.parse_known_args(without_help())[0].task
    parser = argparse.ArgumentParser(
        parents=[first], description=__doc__, formatter_class=form, allow_abbrev=False
    )
    settings = parser.add_argument_group(f"settings of {name}")
    for one in fields(tasks.TASKS[name][0]):
        if one.name != "source":
            kind = truth if one.type is bool else one.type
            settings.add_argument(
                f"--{one.name.replace('_', '-')}", type=kind, metavar=one.name.upper(),
                default=argparse.SUPPRESS, help=f"default: {one.default}",
            )  # fmt: skip
    given = parser.parse_args()
    alone = given.coordinator in (None, "auto")
    if alone != (given.processes is None and given.process is None):
        parser.error(
            "expected --processes and --process, too, with --coordinator HOST:PORT"
        )
    names = {one.name for one in fields(tasks.TASKS[name][0])}
    changes = {key: value for key, value in vars(given).items() if key in names}
    return given, changes, parser


def without_help():
    """The arguments, without the wish for help, which comes when the task is known."""
    return [x for x in sys.argv[1:] if x not in ("-h", "--help")]


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


def join_torch(given):
    """Join the processes of torchrun, if there are any, each with a device."""
    torch = importlib.import_module("torch")
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        place = int(os.environ.get("LOCAL_RANK", 0))
        torch.cuda.set_device(place)
        torch.set_default_device(f"cuda:{place}")
    if "WORLD_SIZE" not in os.environ:
        return processes.ProcessGroup()
    limit = timedelta(seconds=given.limit)
    backend = "nccl" if on_gpu else "gloo"
    torch.distributed.init_process_group(backend, timeout=limit)
    return importlib.import_module("helpers.torch.training").Distributed()


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
        late.start()
        jax.distributed.initialize(**known, initialization_timeout=given.limit + 60)
        late.cancel()
    if jax.process_count() == 1:
        return processes.ProcessGroup()
    return importlib.import_module("helpers.jax.training").Distributed()


def stop(message):
    """End this process, from any thread, with a sentence."""
    print(f"train.py: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def train(given, changes, together):
    """Train, test, and keep the weights; returns what to say."""
    side = given.framework
    training = importlib.import_module(f"helpers.{side}.training")
    task = together.each(lambda: tasks.load(given.task, given.data, **changes))
    model, loss = task.build(side), getattr(training, task.loss)
    about = {name: repr(value) for name, value in asdict(task.settings).items()}
    about |= {
        f"{name} data": digest(dict(enumerate(x))) for name, x in task.data.items()
    }
    together.check_same(about | {"initial weights": digest(to_arrays(model))})
    if side == "jax":
        training.on_all_devices(model)
    folder = given.runs or runs_folder(f"{given.task}_{side}")
    history = training.fit(
        model, loss, task.data["train"], task.settings, **task.options(side),
        folder=folder, retrain=given.retrain,
    )  # fmt: skip
    found = training.evaluate(model, loss, task.data["test"])
    path = given.weights or Path(folder) / "weights.safetensors"
    together.broadcast(lambda: save_weights(model, path))
    return (
        f"{count_parameters(model):,} parameters, {task.settings.updates:,} updates in "
        f"{history['seconds'].sum():.0f} s: test loss {found['loss']:.4f}, "
        f"accuracy {found['accuracy']:.2%}\n{path}"
    )


def main():
    """Join the others, train, and let the first process report."""
    given, changes, parser = arguments()
    try:
        together = {"jax": join_jax, "torch": join_torch}[given.framework](given)
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
