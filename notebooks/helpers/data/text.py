"""Text that every machine has, in parts and in windows of tokens.

The text is the source of Python's standard library, as the running Python has it. Your
own text is a file: by path, or by the environment variable ``TEXT_FILE``.
"""

import math
import os
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np

from helpers.data.byte_pairs import ASCII

TRAINING = (  # modules that Python 3.11 to 3.13 have, under the same names
    "argparse", "ast", "bdb", "calendar", "codecs", "collections/__init__",
    "configparser", "contextlib", "dataclasses", "difflib", "doctest", "enum",
    "http/client", "imaplib", "inspect", "ipaddress", "logging/__init__", "mailbox",
    "os", "pdb", "pickle", "smtplib", "ssl", "subprocess", "tarfile", "threading",
    "typing", "unittest/case", "unittest/mock", "urllib/request",
)  # fmt: skip
HELD_OUT = (
    "plistlib", "queue", "random", "selectors", "tempfile", "textwrap", "timeit",
    "tokenize",
)  # fmt: skip
PRETRAINED = Path(__file__).with_name("pretrained.safetensors")  # book/model-card.md


def load(path=None):
    """Text for training and text that is held out, ``train`` and ``test``.

    Of a file of your own in UTF-8 the last tenth is held out. By default it is the one
    that ``$TEXT_FILE`` names, and else modules of Python's standard library.
    """
    if path := path or os.environ.get("TEXT_FILE"):
        text = read(path)
        stop = len(text) * 9 // 10
        return {"train": text[:stop], "test": text[stop:]}
    parts = {"train": TRAINING, "test": HELD_OUT}
    return {name: "".join(map(module, names)) for name, names in parts.items()}


def place(path):
    """Where a file or folder is that somebody names: from here, or one folder above."""
    paths = [Path(folder, Path(path).expanduser()) for folder in (".", "..")]
    for found in paths:  # a page runs in notebooks/, and its reader stands above it
        if found.exists():
            return found
    raise FileNotFoundError(f"expected {path} in {Path.cwd()} or above it, got nothing")


def read(path):
    """A text in UTF-8, with a byte order mark or without; else ValueError."""
    try:
        return place(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x} at place {error.start}"
        raise ValueError(f"expected UTF-8 in {path}, got {byte}") from None


def module(name):
    """Source of a module of the standard library, without what is not ASCII."""
    path = Path(sysconfig.get_path("stdlib")) / f"{name}.py"
    return "".join(c for c in path.read_text(encoding="utf-8") if c in ASCII)


def windows(tokens, length):
    """A text cut into rows for ``evaluate``: ``n length + 1``.

    Each row begins with the last token of the row before, so that every token but the
    first is predicted once. What does not fill a row is left out.
    """
    n = (len(tokens) - 1) // length
    if n < 1:
        raise ValueError(f"expected at least {length + 1} tokens, got {len(tokens)}")
    return tokens[np.arange(n)[:, None] * length + np.arange(length + 1)]


def random_windows(tokens, length, settings):
    """Rows from random places of a text, for every update of a training.

    An int32 array ``epochs·n_train length + 1``, to be used with
    ``batches=sequences.in_order(settings)``.
    """
    windows(tokens[: length + 1], length)  # there is one
    rng = np.random.default_rng(settings.seed)
    n = settings.epochs * settings.n_train
    starts = rng.integers(len(tokens) - length, size=n)
    return tokens[starts[:, None] + np.arange(length + 1)]


def nats(logits, tokens):
    """Loss of each next token, -ln p: ``b s c, b s+1 -> b s``, as NumPy arrays."""
    logits = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    right = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return np.log(np.exp(logits).sum(axis=-1)) - right


def bits_per_character(loss, tokens, text):
    """A loss in nats per token as bits per character, for any vocabulary."""
    return loss / math.log(2) * len(tokens) / len(text)


def ngram_bits(train, test, order):
    """Bits per character of the n-grams of 1 to ``order``: interpolated Witten-Bell.

    The probability after n - 1 characters is a mean of what was seen after them and of
    the next shorter context's, which counts more, the more characters have followed.

    Source: Chen & Goodman 1998, sec. 2.4; Witten & Bell 1991, method C.
    """
    p, bits = np.full(len(test), 1 / len({*train, *test})), []
    for n in range(order):  # characters before the last one
        grams = Counter(train[i : i + n + 1] for i in range(len(train) - n))
        totals, kinds = Counter(), Counter(gram[:-1] for gram in grams)
        for gram, count in grams.items():
            totals[gram[:-1]] += count
        for last in range(n, len(test)):
            gram = test[last - n : last + 1]
            if total := totals[gram[:-1]]:
                kind = kinds[gram[:-1]]
                p[last] = (grams[gram] + kind * p[last]) / (total + kind)
        bits.append(-np.log2(p).mean())
    return bits
