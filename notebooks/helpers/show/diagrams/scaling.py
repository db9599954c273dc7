"""Drawing of the chapter *More than one device*."""

from helpers.show.diagrams.canvas import Box, Canvas
from helpers.show.plots import BLUE, HIDDEN, ORANGE


def ways_to_share():
    """Who holds what on four devices: full squares are held, dashed parts are not."""
    canvas = Canvas(264)
    rows = [  # what all four hold: parts of the weights, parts of the batch
        ("data parallel", range(4), None, "gradients travel"),
        ("sharded weights", None, None, "gradients and weights travel"),
        ("tensor parallel", None, range(4), "activations travel"),
    ]
    for place, (name, weights, batch, travels) in enumerate(rows):
        y = 12 + 82 * place
        canvas.text(8, y, name, ha="left", weight="bold")
        canvas.text(240, y, travels, ha="right", size=8)
        for device in range(4):
            x = 10 + 60 * device
            for left, held, colour in ((0, weights, BLUE), (27, batch, ORANGE)):
                for part in range(4):
                    mine = part in (held or [device])
                    cell = Box(x + left, y + 12 + 11 * part, 22, 9)
                    canvas.frame(cell, colour if mine else HIDDEN)
            canvas.text(x + 24, y + 63, f"device {device}", size=8)
    canvas.text(8, 254, "model", "name", size=8.5, colour=BLUE, ha="left")
    canvas.text(40, 254, "with its gradients and averages,", ha="left", size=8)
    canvas.text(176, 254, "batch", "name", size=8.5, colour=ORANGE, ha="left")
    return canvas.fig
