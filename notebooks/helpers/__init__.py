"""What several pages need; the rooms ``jax`` and ``torch`` are written by the pages."""

from helpers.exercises import check
from helpers.redefined import ByCode
from helpers.settings import Settings
from helpers.weights import as_numpy, count_parameters, from_arrays, to_arrays
