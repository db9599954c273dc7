"""Every model computes, in both frameworks, what it computed when it was recorded."""

import json

import numpy as np
import pytest

from recorded import MODELS, RECORD, computed


@pytest.mark.parametrize("side", ["jax", "torch"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_is_recorded(name, side):
    """To 1e-4 of the mean size of an output; sums over all, too."""
    expected, found = json.loads(RECORD.read_text())[name], computed(side, name)
    assert found["shape"] == expected["shape"]
    mean = expected["numbers"][5]
    np.testing.assert_allclose(found["numbers"], expected["numbers"], 1e-4, 1e-4 * mean)
