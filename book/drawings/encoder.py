"""Drawing of the chapter *The encoder block*."""

from canvas import drawing


@drawing(352)
@drawing(352, "pre-norm-block", norm_first=True)
def encoder_block(canvas, norm_first=False):
    """Attention and feed-forward net, each with its residual and its norm."""
    x, w = 130, 122
    canvas.text(x, 12, "x", "name")
    above = x, 22
    for name, note, kind, sizes, norm in (
        ("attention", "several heads", "attention", "", "norm1"),
        ("ffn", "each position alone", "dense", "m → f → m", "norm2"),
    ):
        y = above[1]
        canvas.shape(x, y + 9, "b s m")
        fork = x, y + 18
        if norm_first:
            above = canvas.below(above, x, y + 34, w, 24, norm, kind="norm").bottom
            y += 40
        box = canvas.below(above, x, y + 34, w, 46, name, note, kind, sizes)
        if name == "attention":
            canvas.mask_and("weights", "b h q k", box)
        plus = canvas.plus(x, y + 102)
        canvas.line(box.bottom, plus.top)
        canvas.residual(fork, plus)
        above = plus.bottom
        if not norm_first:
            above = canvas.below(above, x, y + 126, w, 24, norm, kind="norm").bottom
    canvas.shape(x, above[1] + 9, "b s m")
    canvas.line(above, (x, above[1] + 24))
