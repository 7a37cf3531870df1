"""Choose the least number of preprocessors that keeps the trainers supplied."""

from __future__ import annotations

import math

from hpcbal.errors import PolicyError


def num_preprocessors(
    demand_samples_per_s: float, samples_per_s_per_preprocessor: float, available: int
) -> int:
    """The least number of preprocessors that meets the demand, or all of them if that is not enough.

    Preprocessors are ranks that share only the stream, so n of them make n times as many samples as one.

    Args:
        demand_samples_per_s: >= 0. The groups of a round read one stream together, so it needs to be only as
            fast as its fastest reader.
        samples_per_s_per_preprocessor: rate of one rank, busy time only, > 0.
        available: preprocessor ranks of the allocation, >= 1.

    Returns: 1..available; the least n with n * samples_per_s_per_preprocessor >= demand, if there is one.
    Raises: PolicyError: if an argument is out of range.
    Source: [FLEET] App. B.3, which does not say whether its demand counts sharing; its pipeline shares.
        Deviation: one measured rate times n; the paper measures one preprocessor on 1, 2, 4, ... 32 cores and
        says that the measurements vary little.
    """
    if not (math.isfinite(demand_samples_per_s) and demand_samples_per_s >= 0):
        raise PolicyError(f"demand: got {demand_samples_per_s!r} samples/s, allowed: finite and not negative")
    if not (math.isfinite(samples_per_s_per_preprocessor) and samples_per_s_per_preprocessor > 0):
        raise PolicyError(
            f"rate of one preprocessor: got {samples_per_s_per_preprocessor!r} samples/s, allowed: above 0"
        )
    if available < 1:
        raise PolicyError(f"preprocessors available: got {available}, allowed: 1 or more")
    if available * samples_per_s_per_preprocessor <= demand_samples_per_s:
        return available
    number = max(1, math.ceil(demand_samples_per_s / samples_per_s_per_preprocessor))
    # The rounded quotient may be off by one in either direction.
    if number > 1 and (number - 1) * samples_per_s_per_preprocessor >= demand_samples_per_s:
        number -= 1
    if number * samples_per_s_per_preprocessor < demand_samples_per_s:
        number += 1
    return min(number, available)
