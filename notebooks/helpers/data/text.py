"""Text that every machine has, and byte pairs.

The text is the source of Python's standard library, as the running Python has it. Your
own text is a file: by path, or by the environment variable ``TEXT_FILE``.
"""

import json
import math
import os
import re
import sysconfig
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from helpers.engine.checks import check_sizes

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
ASCII = "\t\n" + "".join(map(chr, range(32, 127)))
PIECE = re.compile(r"\n *| ?\w+| ?[^\w\s]+|\s")  # no byte pair reaches across two


def load(path=None):
    """Text for training and text that is held out, ``train`` and ``test``.

    Of a file of your own in UTF-8 the last tenth is held out. By default it is the one
    that ``$TEXT_FILE`` names, and else modules of Python's standard library.
    """
    if path := path or os.environ.get("TEXT_FILE"):
        text = read(path)
        if len(text) < 20_000:
            raise ValueError(
                f"expected a text of at least 20,000 characters, got {len(text):,} in "
                f"{path}"
            )
        stop = len(text) * 9 // 10
        return {"train": text[:stop], "test": text[stop:]}
    parts = {"train": TRAINING, "test": HELD_OUT}
    return {name: "".join(map(module, names)) for name, names in parts.items()}


def read(path):
    """A text file; errors say what is wrong with it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read the text {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"expected {path} to be text in UTF-8, got byte {error.object[error.start]:#x} "
            f"at place {error.start:,}"
        ) from error


def module(name):
    """Source of a module of the standard library, without what is not ASCII."""
    path = Path(sysconfig.get_path("stdlib")) / f"{name}.py"
    return "".join(c for c in read(path) if c in ASCII)


class BytePairs:
    """A vocabulary of characters and frequent strings: byte-pair encoding.

    Parameters
    ----------
    alphabet : str
        Characters, which are the first tokens.
    merges : sequence of pairs of int
        Each joins two tokens to the next new one. The earlier comes first.

    Source: Sennrich et al. 2016, sec. 3.2; Gage 1994.
    """

    def __init__(self, alphabet, merges=()):
        self.tokens = list(alphabet)
        for left, right in merges:
            self.tokens.append(self.tokens[left] + self.tokens[right])
        self.numbers = {character: n for n, character in enumerate(alphabet)}
        self.merges = {tuple(pair): len(alphabet) + n for n, pair in enumerate(merges)}

    def __len__(self):
        return len(self.tokens)

    @classmethod
    def learn(cls, text, n_tokens, alphabet=ASCII):
        """Join the most frequent pair of neighbours, again and again.

        ``n_tokens`` is the size of the vocabulary that is to come out; ``alphabet`` has
        characters to know besides those of the text.
        """
        alphabet = "".join(sorted(set(text) | set(alphabet)))
        if len(alphabet) > n_tokens:
            raise ValueError(
                f"expected n_tokens of at least {len(alphabet)}, as many as there are "
                f"characters, got {n_tokens}"
            )
        places = {c: n for n, c in enumerate(alphabet)}
        pieces = Counter(PIECE.findall(text))
        words = [[places[c] for c in piece] for piece in pieces]
        merges = frequent_pairs(words, [*pieces.values()], n_tokens, len(alphabet))
        return cls(alphabet, merges)

    @property
    def metadata(self):
        """Alphabet and merges as texts, for the metadata of a file of weights."""
        return {
            "alphabet": "".join(self.numbers),
            "merges": json.dumps([*map(list, self.merges)]),
        }

    @classmethod
    def from_metadata(cls, metadata):
        """The vocabulary that ``metadata`` describes."""
        return cls(metadata["alphabet"], json.loads(metadata["merges"]))

    def encode(self, text):
        """Tokens of a text: int32 array; ValueError for an unknown character."""
        known = {piece: self.encode_piece(piece) for piece in set(PIECE.findall(text))}
        tokens = [token for piece in PIECE.findall(text) for token in known[piece]]
        return np.array(tokens, dtype=np.int32)

    def encode_piece(self, piece):
        """Apply the merges to a piece, the earliest first."""
        try:
            word = [self.numbers[c] for c in piece]
        except KeyError as error:
            character = error.args[0]
            raise ValueError(
                f"unknown character {character!r} (U+{ord(character):04X}): expected "
                f"one of the {len(self.numbers)} that the vocabulary was learned with"
            ) from None
        while len(word) > 1:
            known = [p for p in pairwise(word) if p in self.merges]
            if not known:
                break
            pair = min(known, key=self.merges.get)
            word = merged(word, pair, self.merges[pair])
        return word

    def decode(self, tokens):
        """The text that tokens stand for; negative ones are padding."""
        tokens = [int(token) for token in tokens]
        if unknown := [token for token in tokens if token >= len(self)]:
            raise ValueError(f"expected tokens below {len(self)}, got {unknown[0]}")
        return "".join(self.tokens[token] for token in tokens if token >= 0)


def merged(word, pair, new):
    """A list of tokens with every such pair of neighbours as one new token."""
    out, n = [], 0
    while n < len(word):
        found = word[n] == pair[0] and n + 1 < len(word) and word[n + 1] == pair[1]
        out.append(new if found else word[n])
        n += 1 + found
    return out


def frequent_pairs(words, counts, n_tokens, first):
    """Pairs to merge, the most frequent first; changes the words.

    Only words that contain a pair are looked at again when it is merged.
    """
    totals, places = Counter(), defaultdict(set)  # of each pair: how often, and where
    for n, word in enumerate(words):
        for pair in pairwise(word):
            totals[pair] += counts[n]
            places[pair].add(n)
    merges = []
    for new in range(first, n_tokens):
        best = max(totals, key=lambda pair: (totals[pair], pair), default=None)
        if best is None or totals[best] < 2:
            raise ValueError(
                f"expected a longer text: it has frequent pairs for {new} tokens, not "
                f"for n_tokens = {n_tokens}"
            )
        merges.append(best)
        for n in places.pop(best):
            for pair in pairwise(words[n]):
                totals[pair] -= counts[n]
            words[n] = merged(words[n], best, new)
            for pair in pairwise(words[n]):
                totals[pair] += counts[n]
                places[pair].add(n)
        del totals[best]
    return merges


def windows(tokens, length):
    """A text cut into rows for ``evaluate``: ``n length + 1``.

    Each row begins with the last token of the row before, so that every token but the
    first is predicted once. What does not fill a row is left out.
    """
    check_sizes(length=length)
    n = (len(tokens) - 1) // length
    if n < 1:
        raise ValueError(
            f"expected at least {length + 1} tokens, got a text of {len(tokens)}"
        )
    return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[
        : n * length : length
    ].copy()


def random_windows(tokens, settings):
    """Rows from random places of a text, for every update of a training.

    An int32 array ``epochs·n_train length + 1``, to be used with
    ``batches=sequences.in_order(settings)``.
    """
    length, n = settings.length, settings.epochs * settings.n_train
    check_sizes(**{"tokens beyond a window": len(tokens) - length})
    rng = np.random.default_rng(settings.seed)
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
