"""Published checkpoints in Hugging Face's format: a folder, or a name on the hub."""

import json
import os
import warnings
from pathlib import Path

from safetensors import safe_open
from tokenizers import Tokenizer

TINY = Path(__file__).with_name("tiny")  # written by tools/tiny_models.py
ROOT = Path(__file__).parents[3]
WEIGHTS = "model.safetensors", "model-*-of-*.safetensors"  # one file, or shards


def chosen(default):
    """``$MODEL``, or the folder of a tiny one: "gpt2", "llama", "qwen3", "mixtral"."""
    return os.environ.get("MODEL") or str(TINY / default)


def find_folder(folder_or_name):
    """Folder of a checkpoint: from here, from the repository's top, or of the hub."""
    name = str(folder_or_name)
    for folder in (Path(name).expanduser(), ROOT / name):
        if folder.is_dir():
            return folder.resolve()
    with warnings.catch_warnings():  # what a page says on stderr stops the book
        warnings.simplefilter("ignore")  # tqdm misses widgets
        from huggingface_hub import snapshot_download, utils

        utils.logging.set_verbosity_error()
        utils.disable_progress_bars()
        wanted = ["config.json", "tokenizer.json", *WEIGHTS]  # never pickled weights
        return Path(snapshot_download(name, allow_patterns=wanted))


def read_config(folder):
    """The settings in a checkpoint's ``config.json``."""
    return json.loads((folder / "config.json").read_text("utf-8"))


def read_tensors(folder, framework):
    """All tensors by name, of ``framework`` "pt" or "flax"."""
    found = sorted(path.name for path in folder.iterdir())
    paths = sorted(folder.glob(WEIGHTS[0])) or sorted(folder.glob(WEIGHTS[1]))
    if not paths:
        raise FileNotFoundError(
            f"expected model.safetensors in {folder}, got {', '.join(found)}; pickled "
            "weights are never read"
        )
    tensors = {}
    for path in paths:
        with safe_open(path, framework=framework) as file:
            names = file.keys()
            tensors |= {name: file.get_tensor(name) for name in names}
    return tensors


def check_tensors(found, expected):
    """Raise ValueError unless tensors by name are those expected, with their shapes."""
    for name in sorted(expected.keys() | found.keys()):
        wanted, got = (
            tuple(each[name].shape) if name in each else "no such tensor"
            for each in (expected, found)
        )
        if wanted != got:
            raise ValueError(f"{name}: expected {wanted}, got {got}")


def read_tokenizer(folder, n_tokens):
    """The tokenizer; ValueError if it has more tokens than the model."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if (n := tokenizer.get_vocab_size()) > n_tokens:
        raise ValueError(f"expected at most {n_tokens} tokens in {folder}, got {n}")
    return tokenizer
