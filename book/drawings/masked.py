"""Drawings of the chapter *A model that reads both sides*."""

from canvas import drawing
from helpers.show.plots import BLUE, ORANGE


@drawing(200)
def two_questions(canvas):
    """The next token is guessed from the left, a masked one from both sides."""
    places = [34, 94, 154, 214]
    for top, title, words, asked in (
        (0, "next_token", ("the", "bank", "of"), 3),
        (104, "masked_token", ("the", "[MASK]", "of", "rivers"), 1),
    ):
        canvas.text(6, top + 8, title, "name", ha="left")
        answer = canvas.box(places[asked], top + 22, 52, 22, "", "?", "attention")
        for i, (x, one) in enumerate(zip(places, words, strict=False)):
            box = canvas.box(x, top + 68, 52, 22, "", one)
            end = answer.at(0.5 + 0.14 * (i - asked), 1)
            canvas.line(box.top, end, colour=ORANGE if i == asked else BLUE)
