"""Written by `make sync` from notebooks/frameworks_torch.py."""

import torch
from torch import nn

__all__ = "cross_entropy device tensor".split()


device = "cuda" if torch.cuda.is_available() else "cpu"


def tensor(x):
    """An array of NumPy on the device: float32, int64, uint8 or bool."""
    x = torch.as_tensor(x, device=device)
    if x.is_floating_point():
        return x.float()
    return x if x.dtype in (torch.bool, torch.uint8) else x.long()


def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of logits ``… c`` for labels ``…``."""
    if labels.dtype.is_floating_point or labels.dtype == torch.bool:
        got = str(labels.dtype).removeprefix("torch.")
        raise TypeError(f"expected whole numbers as labels, got {got}")
    logits = model(inputs).float()
    if labels.shape != logits.shape[:-1]:
        got = f"labels {(*labels.shape,)} for logits {(*logits.shape,)}"
        raise ValueError(f"expected one label for each row of logits, got {got}")
    known = (labels >= 0) & (labels < logits.shape[-1])
    rows, right = logits.flatten(0, -2), labels.where(known, 0).flatten().long()
    loss = nn.functional.cross_entropy(rows, right).where(known.all(), torch.nan)
    return loss, {"accuracy": (logits.argmax(-1) == labels).float().mean()}
