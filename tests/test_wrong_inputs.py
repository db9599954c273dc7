"""Wrong inputs: one table, to which both frameworks give the same answer.

A row has where the input comes in, what is wrong with it, a call on one side, and what
the error says. ``folder`` is an empty one. Rows of files come last.
"""

from pathlib import Path

import pytest

from helpers.data import text
from sides import definitions, draw, jax_side, torch_side


def attention(side, q, k, mask=None, **options):
    """Call attention with weights, on arrays of NumPy."""
    q, k = side.tensor(q), side.tensor(k)
    return side.models.attention(q, k, k, mask, **options)


def of_data(side):
    return definitions(f"data_{side.name}")


def table(side, folder, lines, encoding="utf-8"):
    """The numbers of a CSV file with these lines, by the functions of *data*."""
    (folder / "own.csv").write_bytes(lines.encode(encoding, "replace"))
    page = of_data(side)
    return page.numeric(page.read_csv(folder / "own.csv"))


CELLS = "12 %|1,5|$3|€ 5|1.234,56 EUR|1,000|1 000|2024-01-05|05.01.2024|Jan 5, 2024|"
CELLS += "5-Mar-24|12:30|5 kg|(5.00)|−5|<0.5|1/2|1e999|inf|３|0x1F|2024-01-05T10:30Z"
FILES = [
    (f"id\tash\n1\t2.5\n2\t{x}\n", f"row 3, column 'ash': expected a number, got {x!r}")
    for x in CELLS.split("|")
] + [
    ("a,b\n1,2\n1,2,3\n", "Expected 2 fields in line 3, saw 3"),
    ("a,b\n1,2,3\n4,5,6\n", "expected a name for each column"),
]
ENCODINGS = "latin-1", "cp1251", "shift_jis", "gbk", "utf-16"
LABELS = {
    ("a", None): "row 1: expected a label, got none",
    ("a", "b", ""): "row 2: expected a label, got none",
    (1.0, float("nan")): "row 1: expected a label, got none",
    (2, 2): "expected two classes or more, got [2]",
}

ROWS = [
    (
        "attention, fewer queries than keys under a causal mask",
        lambda side, folder: attention(side, draw(3, 4), draw(5, 4), is_causal=True),
        "expected as many queries as keys under a causal mask, got 3 and 5",
    ),
    # Files
    *[(x, lambda *at, x=x: table(*at, x), said) for x, said in FILES],
    *[(e, lambda *at, e=e: table(*at, "é ы", e), "expected UTF-8") for e in ENCODINGS],
    ("no text", lambda *_: text.load("no.txt"), "expected no.txt in"),
    *[
        (f"{x}", lambda side, _, x=x: of_data(side).class_numbers(x), said)
        for x, said in LABELS.items()
    ],
]


@pytest.mark.parametrize(
    ("call", "said"), [pytest.param(*row[1:], id=row[0]) for row in ROWS]
)
def test_both_frameworks_say_the_same(call, said, tmp_path):
    """One sentence, with what was expected and what came; of the same kind of error."""
    errors = []
    for side in (jax_side, torch_side):
        with pytest.raises(Exception) as caught:
            call(side, Path(tmp_path))
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]
    assert said in errors[0][1]
    assert len(errors[0][1].splitlines()) == 1
