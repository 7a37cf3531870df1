"""The least number of preprocessors that meets the demand."""

from __future__ import annotations

import math

import pytest

from hpcbal.errors import PolicyError
from hpcbal.policies.preprocessors import num_preprocessors


@pytest.mark.parametrize(
    ("wanted", "each", "available", "number"),
    [
        (176.0, 50.0, 8, 4),
        (200.0, 50.0, 8, 4),
        (200.1, 50.0, 8, 5),
        (0.0, 50.0, 8, 1),
        (1e9, 50.0, 8, 8),
        (1e300, 1e-300, 8, 8),
        (0.3, 0.1, 8, 3),
    ],
)
def test_the_least_number_that_is_enough(wanted: float, each: float, available: int, number: int) -> None:
    assert num_preprocessors(wanted, each, available) == number


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(PolicyError, match="demand: got nan"):
        num_preprocessors(math.nan, 1.0, 1)
    with pytest.raises(PolicyError, match="demand: got -1"):
        num_preprocessors(-1.0, 1.0, 1)
    with pytest.raises(PolicyError, match=r"one preprocessor: got 0\.0"):
        num_preprocessors(1.0, 0.0, 1)
    with pytest.raises(PolicyError, match="available: got 0"):
        num_preprocessors(1.0, 1.0, 0)
