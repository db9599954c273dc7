"""Shapes are checked by named axes; arrays of any framework become NumPy arrays."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from helpers.engine.shapes import as_numpy, check_shape

B, H, Q, K = 2, 3, 5, 7
MAKERS = {"numpy": np.zeros, "jax": jnp.zeros, "torch": torch.zeros}
in_each = pytest.mark.parametrize("zeros", MAKERS.values(), ids=MAKERS.keys())


@in_each
def test_every_axis_comes_back_with_its_size(zeros):
    """Whether its size was given or not; axes of one name come back once."""
    sizes = check_shape(zeros((B, H, Q, K)), "b h q k", h=H)
    assert sizes == {"b": B, "h": H, "q": Q, "k": K}
    assert check_shape(zeros((B, Q, Q)), "b s s", s=Q) == {"b": B, "s": Q}
    assert check_shape(zeros(()), "") == {}


@in_each
@pytest.mark.parametrize(
    ("shape", "axes", "sizes", "message"),
    [
        (
            (B, H, Q, K), "b h q k", {"h": 4},
            "axis 'h' (number 1 of 'b h q k'): expected 4, got 3; shape (2, 3, 5, 7)",
        ),
        (
            (B, Q, K), "b s s", {},
            "axis 's' (number 2 of 'b s s'): expected 5, got 7; shape (2, 5, 7)",
        ),
        (
            (B, Q, K), "b h q k", {},
            "expected axes b h q k, got shape (2, 5, 7)",
        ),
        ((B, Q), "b q", {"h": H}, "no axis 'h' in 'b q'"),
    ],
    ids=["size", "repeated", "too few axes", "unknown"],
)  # fmt: skip
def test_a_wrong_shape_raises_an_error_with_both_sizes(
    zeros, shape, axes, sizes, message
):
    """It names the axis and the shape; the same words for every framework."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_shape(zeros(shape), axes, **sizes)


NUMBERS = [1.5, -2.0]
ARRAYS = {
    "numpy": (np.array(NUMBERS), "float64"),
    "jax": (jnp.array(NUMBERS), "float32"),
    "jax-bfloat16": (jnp.array(NUMBERS, jnp.bfloat16), "float32"),
    "torch": (torch.tensor(NUMBERS), "float32"),
    "torch-bfloat16": (torch.tensor(NUMBERS).bfloat16(), "float32"),
    "torch-float16": (torch.tensor(NUMBERS).half(), "float16"),
    "in a graph": (torch.tensor(NUMBERS, requires_grad=True) * 1, "float32"),
    "list": (NUMBERS, "float64"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_any_framework_are_copied_to_numpy(kind):
    """Same numbers; a bfloat16 arrives as float32; writing into it changes nothing."""
    x, dtype = ARRAYS[kind]
    array = as_numpy(x)
    assert type(array) is np.ndarray
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, [1.5, -2.0])
    array[:] = 0
    np.testing.assert_array_equal(as_numpy(x), [1.5, -2.0])


@pytest.mark.parametrize("convert", [np.array, jnp.array, torch.tensor])
def test_masks_and_whole_numbers_keep_their_dtype(convert):
    """A mask stays boolean, an index stays whole."""
    assert as_numpy(convert([[True, False]])).tolist() == [[True, False]]
    assert as_numpy(convert([1, 2])).dtype.kind == "i"
