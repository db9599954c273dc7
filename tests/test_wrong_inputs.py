"""Wrong inputs: one table, to which both frameworks give the same answer.

A row has where the input comes in, what is wrong with it, a call on one side, and what
the error says. ``folder`` is an empty one. Rows of files come last.
"""

from pathlib import Path

import pytest

from sides import definitions, draw, jax_side, torch_side


def attention(side, q, k, mask=None, **options):
    """Call attention with weights, on arrays of NumPy."""
    q, k = side.tensor(q), side.tensor(k)
    return side.models.attention(q, k, k, mask, **options)


def load_adapter(side, folder, rank, alpha, layers=("up",)):
    """Of this rank and alpha, into a model whose adapters have 2 and 5."""
    page, net = definitions(f"finetune_{side.name}"), side.build("SwiGLU", 7, 5)
    page.save_adapter(side.build(page.add_lora, net, rank, alpha, ("up",)), folder)
    model = side.build(page.add_lora, side.build("SwiGLU", 7, 5), 2, 5, layers)
    page.load_adapter(model, folder)


ROWS = [
    (
        "attention, fewer queries than keys under a causal mask",
        lambda side, folder: attention(side, draw(3, 4), draw(5, 4), is_causal=True),
        "expected as many queries as keys under a causal mask, got 3 and 5",
    ),
    (
        "an adapter of another rank",
        lambda side, folder: load_adapter(side, folder, 3, 5),
        "expected r = 2, got 3",
    ),
    (
        "an adapter of another alpha",
        lambda side, folder: load_adapter(side, folder, 2, 7),
        "expected lora_alpha = 5, got 7",
    ),
    (
        "an adapter for a model without one",
        lambda side, folder: load_adapter(side, folder, 2, 5, layers=()),
        "expected adapters of one rank and one alpha, got []",
    ),
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
