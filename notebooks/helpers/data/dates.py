"""Dates in many written forms and in ISO's: seeded NumPy data to translate."""

from datetime import date, timedelta

import numpy as np

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August",
    "September", "October", "November", "December",
)  # fmt: skip
DAYS = "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"
FIRST, LAST = date(1950, 1, 1), date(2049, 12, 31)  # two digits of a year tell which
FORMS = {
    "of": "the {d}{th} of {month} {y}",
    "ordinal": "{month} {d}{th}, {y}",
    "short": "{mon} {d}, {y}",
    "weekday": "{weekday}, {d} {month} {y}",
    "dashes": "{d}-{mon}-{y}",
    "dots": "{d}.{m}.{yy}",
    "slashes": "{m}/{d}/{y}",
}
UNSEEN = {
    "year first": "{y}, {month} {d}",
    "year before day": "{month} {y}, the {d}{th}",
}
BEGIN, END = 0, 1  # tokens before the first character of a text, and after the last
CHARACTERS = sorted(
    set("".join(MONTHS + DAYS)) | set("0123456789 ,./-") | set("the of st nd rd th")
)
N_TOKENS = 2 + len(CHARACTERS)


def fields(day):
    """What a form is filled with, texts by name: ``{"d": "3", "th": "rd", …}``."""
    month, year = MONTHS[day.month - 1], f"{day.year}"
    teen = day.day in (11, 12, 13)
    th = "th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    found = {"d": f"{day.day}", "th": th, "m": f"{day.month}", "y": year}
    found |= {"yy": year[-2:], "month": month, "mon": month[:3]}
    return found | {"weekday": DAYS[day.weekday()]}


def write(day, form):
    """A date in one of ``FORMS`` or ``UNSEEN``: ``"the 3rd of March 1997"``."""
    return (FORMS | UNSEEN)[form].format(**fields(day))


def encode(texts, *, target=False):
    """Characters as tokens, ``b s``, padded with -1; targets between BEGIN and END."""
    rows = [[2 + CHARACTERS.index(c) for c in text] for text in texts]
    rows = [[BEGIN, *row, END] for row in rows] if target else rows
    out = np.full((len(rows), max(map(len, rows))), -1, dtype=np.int32)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out


def decode(tokens):
    """The texts of token rows ``b s``, each up to its first ``END``: list of str."""
    texts = []
    for row in np.asarray(tokens).tolist():
        row = row[: row.index(END)] if END in row else row
        texts.append("".join(CHARACTERS[token - 2] for token in row if token > END))
    return texts


def split(seed=42, n_validation=512, n_test=2000):
    """The days from 1950 to 2049 in three parts, none in two of them: lists by name."""
    order = np.random.default_rng(seed).permutation((LAST - FIRST).days + 1)
    days = [FIRST + timedelta(days=int(n)) for n in order]
    rest = days[n_test:]
    parts = {"train": rest[n_validation:], "validation": rest[:n_validation]}
    return parts | {"test": days[:n_test]}


def load(n_train, seed=42, **sizes):
    """By part, sources int32 ``b k`` and targets int32 ``b s``; sizes as of ``split``.

    Each example is a day in a random form; training days are drawn ``n_train`` times.
    """
    data = {}
    for place, (name, days) in enumerate(split(seed, **sizes).items()):
        rng = np.random.default_rng([seed, place])
        if name == "train":
            days = [days[n] for n in rng.integers(len(days), size=n_train)]
        forms = rng.choice([*FORMS], size=len(days))
        sources = [write(day, form) for day, form in zip(days, forms, strict=True)]
        targets = encode([day.isoformat() for day in days], target=True)
        data[name] = encode(sources), targets
    return data
