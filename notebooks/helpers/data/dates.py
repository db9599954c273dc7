"""Dates in many written forms and in ISO's: seeded NumPy data to translate."""

from datetime import date, timedelta
from string import Formatter

import numpy as np

from helpers.engine.checks import check_sizes, choose

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
    "dots": "{d}.{m}.{yy:02}",
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


def write(day, form):
    """A date in one of ``FORMS`` or ``UNSEEN``: ``"the 3rd of March 1997"``."""
    template = choose(form, FORMS | UNSEEN, "form")
    month, weekday = MONTHS[day.month - 1], DAYS[day.weekday()]
    teen = day.day in (11, 12, 13)
    th = "th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    return template.format(
        d=day.day, m=day.month, y=day.year, yy=day.year % 100, th=th, month=month,
        mon=month[:3], weekday=weekday,
    )  # fmt: skip


PARTS = "year 1", "year 2", "year 3", "year 4", "month", "day", "weekday", "rest"


def parts(day, form):
    """For each character of a written date, which of ``PARTS`` it belongs to: list."""
    month, weekday = MONTHS[day.month - 1], DAYS[day.weekday()]
    texts = {"month": month, "mon": month[:3], "m": str(day.month), "th": "th"}
    texts |= {"d": str(day.day), "weekday": weekday}
    names = {"month": "month", "mon": "month", "m": "month", "d": "day", "th": "rest"}
    found = []
    for between, field, *_ in Formatter().parse(choose(form, FORMS | UNSEEN, "form")):
        found += ["rest"] * len(between)
        if field in ("y", "yy"):
            found += PARTS[:4] if field == "y" else PARTS[2:4]
        elif field:
            found += [names.get(field, field)] * len(texts[field])
    return found


def encode(texts, *, target=False):
    """Characters as tokens, ``b s``, padded with -1; targets between BEGIN and END."""
    numbers = {c: n for n, c in enumerate(CHARACTERS, start=2)}
    rows = []
    for text in texts:
        if unknown := [c for c in text if c not in numbers]:
            raise ValueError(f"unknown character {unknown[0]!r} in {text!r}")
        row = [numbers[c] for c in text]
        rows.append([BEGIN, *row, END] if target else row)
    check_sizes(**{"characters of a text": min(map(len, rows), default=0)})
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


def split(settings):
    """The days from 1950 to 2049 in three parts, none in two of them: lists by name."""
    n_days = (LAST - FIRST).days + 1
    order = np.random.default_rng(settings.seed).permutation(n_days)
    days = [FIRST + timedelta(days=int(n)) for n in order]
    a, b = settings.n_test, settings.n_test + settings.n_validation
    return {"train": days[b:], "validation": days[a:b], "test": days[:a]}


def load(settings):
    """By part, sources int32 ``b k`` and targets int32 ``b s``.

    Each example is a day in a form, drawn by the seed of the settings. For training there
    are ``epochs·n_train``, to be used with ``batches=sequences.in_order(settings)``.
    """
    days, data = split(settings), {}
    for place, (name, those) in enumerate(days.items()):
        rng = np.random.default_rng([settings.seed, place])
        if name == "train":
            n = settings.epochs * settings.n_train
            those = [those[k] for k in rng.integers(len(those), size=n)]
        forms = rng.choice([*FORMS], size=len(those))
        data[name] = pairs(those, forms)
    return data


def pairs(days, forms):
    """Sources and targets of days in given forms: ``b k, b s``."""
    sources = [write(day, form) for day, form in zip(days, forms, strict=True)]
    return encode(sources), encode([day.isoformat() for day in days], target=True)
