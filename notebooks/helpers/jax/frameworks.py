"""Written by `make sync` from notebooks/frameworks_jax.py."""

import jax.numpy as jnp
import optax

__all__ = "cross_entropy tensor".split()


def tensor(x):
    """An array of NumPy on the device: float32, int32, uint8 or bool."""
    return jnp.asarray(x)


def cross_entropy(model, inputs, labels):
    """Mean cross-entropy and accuracy of logits ``… c`` for labels ``…``."""
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"expected whole numbers as labels, got {labels.dtype}")
    logits = model(inputs).astype(jnp.float32)
    if labels.shape != logits.shape[:-1]:
        got = f"labels {(*labels.shape,)} for logits {(*logits.shape,)}"
        raise ValueError(f"expected one label for each row of logits, got {got}")
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    known = (labels >= 0) & (labels < logits.shape[-1])
    loss = jnp.where(known, losses, jnp.nan).mean()
    return loss, {"accuracy": (logits.argmax(-1) == labels).mean()}
