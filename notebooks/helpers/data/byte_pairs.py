"""Byte-pair encoding: a vocabulary that is learned from a text."""

import json
import re
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np

ASCII = "\t\n" + "".join(map(chr, range(32, 127)))
# No byte pair reaches across two pieces. They are short: DNA is one word.
PIECE = re.compile(r"\n {0,100}| ?\w{1,50}| ?[^\w\s]{1,100}|\s")
SPELLED = re.compile(r"\\u\{([0-9a-f]{1,5}|10[0-9a-f]{4})\}")


class BytePairs:
    """A vocabulary of characters and frequent strings: byte-pair encoding.

    The characters of ``alphabet`` are the first tokens. Each of ``merges``, a pair of
    int, joins two tokens to the next new one; the earlier comes first. Any other
    character is spelled in ASCII, é as ``\\u{e9}``, and decoding undoes it.

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
        """Join the most frequent pair of neighbours until there are ``n_tokens``.

        ``alphabet`` has characters besides those of the text. Of others than ASCII, the
        most frequent ones get a token, in half of the places at most. Pairs are counted
        in the first three million characters.
        """
        counts = Counter(text)
        alphabet = set(alphabet) | {c for c in counts if c.isascii()}
        others = [c for c, _ in counts.most_common() if c not in alphabet]
        alphabet |= {*others[: max(0, n_tokens - len(alphabet)) // 2]}
        alphabet = "".join(sorted(alphabet))
        if n_tokens < len(alphabet):
            raise ValueError(f"{len(alphabet)} characters, but n_tokens = {n_tokens}")
        pieces = Counter(PIECE.findall(text[:3_000_000]))
        words = [*map(cls(alphabet).encode_piece, pieces)]
        counts = [*pieces.values()]
        return cls(alphabet, frequent_pairs(words, counts, n_tokens, len(alphabet)))

    @property
    def metadata(self):
        """Alphabet and merges as texts, for the metadata of a file of weights."""
        merges = json.dumps([*map(list, self.merges)])
        return {"alphabet": "".join(self.numbers), "merges": merges}

    @classmethod
    def from_metadata(cls, metadata):
        """The vocabulary that ``metadata`` describes."""
        return cls(metadata["alphabet"], json.loads(metadata["merges"]))

    def encode(self, text):
        """Tokens of a text: int32 array."""
        text = text.replace("\\u{", "\\u{5c}u{")  # it has not been spelled
        known = {piece: self.encode_piece(piece) for piece in set(PIECE.findall(text))}
        tokens = [token for piece in PIECE.findall(text) for token in known[piece]]
        return np.array(tokens, dtype=np.int32)

    def encode_piece(self, piece):
        """Apply the merges to a piece, the earliest first; ValueError without ASCII."""
        unknown = {ord(c): f"\\u{{{ord(c):x}}}" for c in piece if c not in self.numbers}
        spelled = piece.translate(unknown)
        if missing := set(spelled) - self.numbers.keys():
            raise ValueError(f"unknown character {min(missing)!r}: expected ASCII, too")
        word = [self.numbers[c] for c in spelled]
        while known := [pair for pair in pairwise(word) if pair in self.merges]:
            pair = min(known, key=self.merges.get)
            word = merged(word, pair, self.merges[pair])
        return word

    def decode(self, tokens):
        """The text that tokens stand for; negative ones are padding."""
        text = "".join(self.tokens[int(token)] for token in tokens if token >= 0)
        return SPELLED.sub(lambda found: chr(int(found[1], 16)), text)


def merged(word, pair, new):
    """A list of tokens with every such pair of neighbours as one new token."""
    out, n = [], 0
    while n < len(word):
        found = word[n] == pair[0] and n + 1 < len(word) and word[n + 1] == pair[1]
        out.append(new if found else word[n])
        n += 1 + found
    return out


def frequent_pairs(words, counts, n_tokens, first):
    """Pairs to merge, the most frequent first; changes the words."""
    totals, places = Counter(), defaultdict(set)  # of each pair: how often, and where
    for n, word in enumerate(words):
        for pair in pairwise(word):
            totals[pair] += counts[n]
            places[pair].add(n)
    merges = []
    for new in range(first, n_tokens):
        best = max(totals, key=lambda pair: (totals[pair], pair), default=None)
        if best is None or totals[best] < 2:
            raise ValueError(f"this text has pairs for {new} tokens, not {n_tokens}")
        merges.append(best)
        for n in places.pop(best):  # only words that contain the pair
            for pair in pairwise(words[n]):
                totals[pair] -= counts[n]
            words[n] = merged(words[n], best, new)
            for pair in pairwise(words[n]):
                totals[pair] += counts[n]
                places[pair].add(n)
        del totals[best]
    return merges
