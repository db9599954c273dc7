"""Drawing of the chapter *Pictures as sequences*."""

from canvas import Box, drawing, tint
from helpers.show.plots import BLUE, EDGE, ORANGE


@drawing(474)
def vision_transformer(canvas):
    """Beside the predictor; new are the patches, the token, and its way out."""
    x, w, cell = 178, 88, 10
    boxes = predictor_column(canvas)
    for y, h in ((22, 103), (170, 28), (326, 46)):
        canvas.frame(Box(88, y, 156, h), EDGE, 0.14)
        canvas.text(235, y + h / 2, "new", weight="bold", rotation=-90, va="center")
    canvas.text(x - 4, 10, "vision Transformer", weight="bold")
    seven = [tint(EDGE, 0.9 if ink else 0.03) for ink in (1, 1, 1, 0, 0, 1, 0, 1, 0)]
    picture = canvas.cells(x - 18, 28, [seven[i : i + 3] for i in (0, 3, 6)], 12)
    canvas.label(x - 56, 38, "images", "b y x i")
    box = canvas.below(picture.bottom, x, 76, w, 22, "cut_patches")
    row = canvas.cells(x - 45, 110, [seven], cell)  # the patches as a sequence
    canvas.line(box.bottom, row.top)
    canvas.shape(x, 133, "b n (p p i)", size=8)

    twins = {"embed": canvas.below(row.bottom, x, 142, w, 22, "embed", kind="dense")}
    row = canvas.cells(x - 45, 179, [[tint(BLUE, 0.5)] * 9], cell)
    canvas.line(twins["embed"].bottom, row.top)
    token = canvas.cells(x - 55, 179, [[ORANGE]], cell)
    canvas.text(token.x - 4, 184, "token", "name", size=9, ha="right")
    above = row.bottom
    for name, note, y, h, kind in (
        ("positions", "learned", 214, 36, "positions"),
        ("encoder", "pre-norm, GELU", 270, 42, "attention"),
    ):
        canvas.shape(x, y - 8, "b s m", size=8)
        twins[name] = canvas.below(above, x, y, w, h, name, note, kind)
        above = twins[name].bottom
    rest = canvas.cells(x - 45, 335, [[tint(EDGE, 0.1)] * 9], cell)
    canvas.line(above, rest.top)
    first = canvas.cells(x - 55, 335, [[ORANGE]], cell)
    canvas.text(first.bottom[0] + 6, 361, "x[:, 0]", "name", size=9, ha="left")
    turn = (first.bottom[0], 384), (x, 384)
    twins["output"] = canvas.box(x, 422, w, 22, "output", kind="output")
    canvas.line(first.bottom, *turn, twins["output"].top)
    canvas.shape(x, 402, "b m", size=8)
    canvas.line(twins["output"].bottom, (x, 462))
    canvas.shape(x, 454, "b c", size=8)
    for name, twin in twins.items():
        canvas.line(boxes[name].right, twin.left, head=False, dashed=True)


def predictor_column(canvas):
    """The predictor in a narrow column; its boxes by their names."""
    x, above, boxes = 42, (42, 126), {}
    canvas.text(x, 10, "predictor", weight="bold")
    canvas.text(x, 118, "x", "name")
    canvas.shape(x, 133, "b s i", size=8)
    for y, h, name, kind in (
        (142, 22, "embed", "dense"),
        (214, 36, "positions", "positions"),
        (270, 42, "encoder", "attention"),
        (326, 22, "hidden", "dense"),
        (358, 22, "hidden_norm", "norm"),
        (390, 22, "relu", "plain"),
        (422, 22, "output", "output"),
    ):
        boxes[name] = canvas.below(above, x, y, 78, h, name, kind=kind)
        above = boxes[name].bottom
    canvas.shape(x, 454, "b s c", size=8)
    canvas.line(above, (x, 462))
    return boxes
