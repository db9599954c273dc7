"""A language model in one file.

    python model_torch.py my.txt   trains on a text of your own, and writes
    torchrun --nproc-per-node 2 model_torch.py my.txt

A second call with the same --folder goes on after the last checkpoint.
"""

import os
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def batch_of(tokens, length, batch_size, update, rank, n_processes):
    """The share of a process in the windows of an update: ``b s+1``."""
    draw = torch.Generator().manual_seed(update)
    start = torch.randint(len(tokens) - length, (batch_size, 1), generator=draw)
    start = start[rank::n_processes].to(tokens.device)
    return tokens[start + torch.arange(length + 1, device=tokens.device)]


def save(path, parts):
    """Write a checkpoint, whole or not at all: the old one stays until then."""
    draft = path.with_suffix(f".{os.getpid()}.draft")  # two may write at once
    torch.save(parts, draft)
    draft.replace(path)


def train(model, tokens, characters, options, path, rank, n_processes):
    """Train from the last checkpoint on, with a share of every batch."""
    options.warmup, options.schedule = 1, lambda *_: 1.0  # the same rate for all
    (optimizer, scheduler), done = make_optimizer(model, options), 0
    if path.exists():
        kept = torch.load(path, map_location=tokens.device, weights_only=True)
        if kept.get("characters") != characters:
            raise SystemExit(f"{path.parent} is of another text: name another --folder")
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["update"]
        print(f"goes on after update {done}")
    parallel = DistributedDataParallel(model) if n_processes > 1 else model
    for step in range(done + 1, options.updates + 1):
        given = model.max_length, options.batch_size, step, rank, n_processes
        found = update(
            parallel, optimizer, scheduler, next_token, [batch_of(tokens, *given)], 1.0
        )
        if step == 1 or step % 10 == 0:  # seldom: a GPU waits while it is printed
            loss = found["loss"] / n_processes
            if n_processes > 1:
                distributed.all_reduce(loss)
            if rank == 0:
                print(f"update {step:4}: loss {loss.item():.3f}")
        if rank == 0 and (step % 100 == 0 or step == options.updates):
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(path, {**parts, "update": step, "characters": characters})


def main():
    """Train a model on the characters of a text file, and let it write."""
    options = (parser := arguments()).parse_args()
    rank = int(os.environ.get("RANK", 0))
    n_processes = int(os.environ.get("WORLD_SIZE", 1))
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    device = device if torch.cuda.is_available() else "cpu"
    if n_processes > 1:
        distributed.init_process_group("nccl" if device != "cpu" else "gloo")
    tokens, numbers, prompt = read_text(parser, options, n_processes)
    tokens = torch.tensor(tokens, device=device)
    torch.manual_seed(0)
    model = LanguageModel(len(numbers), 64, **SIZES).to(device)
    path = Path(options.folder, "checkpoint.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    train(model, tokens, "".join(numbers), options, path, rank, n_processes)
    if rank == 0:
        write_on(model, prompt, numbers)
    if n_processes > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
