"""Published checkpoints in Hugging Face's format: find them, download them, read them."""

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

import huggingface_hub as hub
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from helpers.data.photos import located

TINY = Path(__file__).with_name("tiny")  # written by tools/tiny_models.py
CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"  # of shards


def chosen(default):
    """``$MODEL``, or the folder of a tiny one: "gpt2", "llama", "qwen3", "mixtral"."""
    return os.environ.get("MODEL") or str(TINY / default)


def find_folder(folder_or_name, *, progress=False):
    """Folder of a checkpoint; ``owner/name`` is the hub's, or its cache's if complete."""
    folder, name = located(folder_or_name), str(folder_or_name)
    if folder.is_dir():
        weight_files(folder)
        return folder
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise ValueError(f"expected a folder, or owner/name on the hub, got {name!r}")
    with suppress(OSError, TypeError, ValueError):  # not there, or not complete
        folder = Path(hub.try_to_load_from_cache(name, CONFIG)).parent
        weight_files(folder)
        return folder
    return fetch(name, progress)


def fetch(name, progress):
    """Download to the hub's cache; the configuration, which marks the folder, last."""
    hub.utils.logging.set_verbosity_error()
    (hub.utils.enable_progress_bars if progress else hub.utils.disable_progress_bars)()
    info = ask(name, hub.HfApi().model_info, files_metadata=True, timeout=10)
    listed = {file.rfilename: file for file in info.siblings}
    shards = [f for f in listed if re.fullmatch(r"model-\d+-of-\d+\.safetensors", f)]
    files = *([INDEX, *shards] if shards else [WEIGHTS]), TOKENIZER, CONFIG
    require(files, listed, f"the hub's {name}")
    for file in files:
        revision = None if file == CONFIG else info.sha
        path = Path(ask(name, hub.hf_hub_download, filename=file, revision=revision))
        verify(path, listed[file])
    return path.parent


def ask(name, call, **options):
    """What the hub client returns; each of its errors as one sentence."""
    try:
        return call(name, **options)
    except hub.errors.GatedRepoError:
        why = "it is gated: accept its terms on the hub, then `hf auth login`"
    except hub.errors.RepositoryNotFoundError:
        why = "the hub has no such model, or it is private"
    except Exception as error:  # of requests or httpx, by the client's version
        first = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        why = f"{first}; where there is internet, `make data MODEL={name}` does it"
    raise OSError(f"{name} is not in the cache and could not be downloaded: {why}")


def verify(path, listed):
    """Compare a file's checksum with the one that the hub lists; remove a wrong file."""
    sha = hashlib.sha256() if listed.lfs else hashlib.sha1(b"blob %d\0" % listed.size)
    with path.open("rb") as file:
        got = hashlib.file_digest(file, lambda: sha).hexdigest()
    if got != (expected := listed.lfs.sha256 if listed.lfs else listed.blob_id):
        path.resolve().unlink()  # in the cache, where path is a link to it
        path.unlink(missing_ok=True)
        raise OSError(f"expected checksum {expected} of {path}, got {got}: try again")


def require(wanted, files, where):
    """Raise FileNotFoundError unless all wanted names are among those of the files."""
    for file in wanted:
        if file not in files:
            unsafe = [f for f in files if f.endswith((".bin", ".pt", ".pth", ".ckpt"))]
            pickled = file == WEIGHTS and unsafe and f"pickled {unsafe[0]}, never read"
            got = pickled or ", ".join(sorted(files)[:9]) or "no file"
            raise FileNotFoundError(f"expected {file} in {where}, got {got}")


def weight_files(folder):
    """Files of weights, and tensors by the index, if all of a checkpoint is there."""
    files, places = [path.name for path in folder.iterdir() if path.exists()], {}
    if WEIGHTS not in files and INDEX in files:
        places = dict(read_config(folder, INDEX).get("weight_map") or {})
    shards = sorted({*map(str, places.values())}) or [WEIGHTS]
    require((CONFIG, *shards, TOKENIZER), files, folder)
    return shards, places


class Config(dict):
    """Settings by name; ValueError, not KeyError, for one that is missing."""

    def __missing__(self, name):
        raise ValueError(f"expected {name} in {CONFIG}, got no such setting")


def read_config(folder, file=CONFIG):
    """The ``Config`` in a file of a checkpoint; ValueError if there is none."""
    try:
        return Config(json.loads((folder / file).read_text("utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected a dictionary in {folder / file}: {error}") from None


def read_tensors(folder, framework):
    """All tensors by name, of ``framework`` "pt" or "flax"; ValueError for damage."""
    (shards, places), found = weight_files(folder), {}
    for path in (folder / file for file in shards):
        try:
            with safe_open(path, framework=framework) as file:
                found |= {name: file.get_tensor(name) for name in [*file.keys()]}
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    if odd := places and found.keys() ^ places.keys():
        raise ValueError(f"{INDEX} and the shards in {folder} differ: {min(odd)}")
    return found


def check_tensors(found, expected):
    """Raise ValueError unless tensors by name are those expected, with their shapes."""
    shapes = [{n: tuple(x.shape) for n, x in d.items()} for d in (expected, found)]
    for name in sorted(expected.keys() | found.keys()):
        wanted, got = (each.get(name, "no such tensor") for each in shapes)
        if wanted != got:
            raise ValueError(f"{name}: expected {wanted}, got {got}")


def read_tokenizer(folder, n_tokens=None):
    """The tokenizer; ValueError if it is damaged or has more than ``n_tokens`` tokens."""
    try:
        found = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # it has no class of its own
        raise ValueError(f"cannot read {folder / TOKENIZER}: {error}") from None
    if n_tokens and (n := found.get_vocab_size()) > n_tokens:
        raise ValueError(f"expected at most {n_tokens} tokens in {folder}, got {n}")
    return found
