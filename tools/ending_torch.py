"""Training on a text of one's own: the end of ``scripts/model_torch.py``."""

import argparse
import os
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from helpers.torch.decoder import LanguageModel, generate
from helpers.torch.reverse import make_optimizer


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
    optimizer, done = make_optimizer(model, options)[0], 0
    if path.exists():
        kept = torch.load(path, map_location=tokens.device, weights_only=True)
        if kept.get("characters") != characters:
            raise SystemExit(f"{path.parent} is of another text: name another --folder")
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["update"]
        print(f"goes on after update {done}")
    parallel = DistributedDataParallel(model) if n_processes > 1 else model
    given = options.batch_size, rank, n_processes
    for update in range(done + 1, options.updates + 1):
        batch = batch_of(tokens, model.max_length, given[0], update, *given[1:])
        logits = parallel(batch[:, :-1])  # b s c
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update == 1 or update % 10 == 0:  # seldom: a GPU waits while it is printed
            loss = loss.detach() / n_processes
            if n_processes > 1:
                distributed.all_reduce(loss)
            if rank == 0:
                print(f"update {update:4}: loss {loss.item():.3f}")
        if rank == 0 and (update % 100 == 0 or update == options.updates):
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(path, {**parts, "update": update, "characters": characters})


def main():
    """Train a model on the characters of a text file, and let it write."""
    parser = argparse.ArgumentParser(description="Train a language model on a text.")
    parser.add_argument("text", nargs="?", default=__file__, help="a file in UTF-8")
    parser.add_argument("--folder", default="run", help="of checkpoints")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8, help="of all processes")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--prompt", help="by default how the text begins")
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", 0))
    n_processes = int(os.environ.get("WORLD_SIZE", 1))
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    device = device if torch.cuda.is_available() else "cpu"
    if n_processes > 1:
        distributed.init_process_group("nccl" if device != "cpu" else "gloo")

    try:
        text = Path(options.text).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"expected a text in UTF-8: {error}")
    characters = "".join(sorted(set(text)))
    prompt = options.prompt or text[:16]
    if unknown := set(prompt) - set(text):
        parser.error(f"the text has no {sorted(unknown)}, which the prompt has")
    numbers = {character: n for n, character in enumerate(characters)}
    tokens = torch.tensor([numbers[character] for character in text], device=device)
    torch.manual_seed(0)
    sizes = {"n_blocks": 2, "n_heads": 4, "f": 256, "max_length": 128}
    choices = {"positions": "rotary", "norm_first": True, "activation": "gelu"}
    model = LanguageModel(len(characters), 64, **sizes, **choices).to(device)
    if len(text) <= model.max_length or options.batch_size % n_processes:
        parser.error(
            f"expected a text of more than {model.max_length} characters and a batch "
            f"that {n_processes} processes share, got {len(text)}, {options.batch_size}"
        )
    path = Path(options.folder, "checkpoint.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    train(model, tokens, characters, options, path, rank, n_processes)
    if rank == 0:
        written = generate(model, [[numbers[c] for c in prompt]], 100, temperature=0.8)
        print(prompt + "".join(characters[n] for n in written[0].tolist()))
    if n_processes > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
