"""Drawing of the chapter *The reverse task*."""

from canvas import drawing
from helpers.show.plots import EDGE, ORANGE

DIGITS = "6182640951980113"  # the first sequence of the test data


@drawing(206)
def reversal(canvas):
    """Sixteen digits, and a line of attention from each to the output that needs it."""
    place = [11.5 + 15 * i for i in range(16)]
    for x, digit, label in zip(place, DIGITS, reversed(DIGITS), strict=True):
        canvas.text(x, 9, digit, "name")
        canvas.text(x, 198, label, "name")
    canvas.box(124, 20, 240, 24, "embed, positions", kind="dense")
    for q in reversed(range(16)):  # output 0 last, on top
        colour = EDGE if q else ORANGE
        canvas.line((place[15 - q], 47), (place[q], 157), colour=colour)
    canvas.text(42, 102, "attention", "name", colour=ORANGE)
    canvas.box(124, 160, 240, 24, "ffn, output", kind="output")
