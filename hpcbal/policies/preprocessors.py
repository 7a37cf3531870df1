"""Choose the least number of preprocessors that keeps the trainers supplied."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hpcbal.errors import PolicyError


def demand(rates_samples_per_s: Iterable[float], num_consumers: int, shared: bool = True) -> float:
    """Most samples per second that any `num_consumers` of the DNNs need at the same time.

    Shared preprocessing makes a sample once for all DNNs. They read one stream together, so it needs to be
    only as fast as its fastest reader: the largest rate. Without sharing, every DNN has its own samples made,
    and the worst choice of M DNNs needs the sum of the M largest rates.

    Args:
        rates_samples_per_s: rate of each DNN, finite and >= 0; on one slot each for [FLEET]'s demand of the
            whole ensemble, or a flotilla's own rates, which extra slots may have raised above that.
        num_consumers: DNNs that train at the same time, >= 1; [FLEET] uses the number of slots M.
        shared: whether one stream feeds all DNNs.

    Returns: samples/s, >= 0.
    Raises: PolicyError: if there are no rates, or an argument is out of range.
    Source: [FLEET] App. B.3. The paper does not say whether it counts sharing; its pipeline shares.
    """
    rates = sorted(rates_samples_per_s, reverse=True)
    if not rates or num_consumers < 1:
        raise PolicyError(
            f"demand of {num_consumers} of {len(rates)} DNNs was requested; allowed: 1 or more of 1 or more"
        )
    for rate in rates:
        if not (math.isfinite(rate) and rate >= 0):
            raise PolicyError(f"rate of a DNN: got {rate!r} samples/s, allowed: finite and not negative")
    return float(rates[0]) if shared else math.fsum(rates[:num_consumers])


def num_preprocessors(
    demand_samples_per_s: float, samples_per_s_per_preprocessor: float, available: int
) -> int:
    """The least number of preprocessors that meets the demand, or all of them if that is not enough.

    Preprocessors are ranks that share only the stream, so n of them make n times as many samples as one.

    Args:
        demand_samples_per_s: see `demand`, >= 0.
        samples_per_s_per_preprocessor: rate of one rank, busy time only, > 0.
        available: preprocessor ranks of the allocation, >= 1.

    Returns: 1..available; the least n with n * samples_per_s_per_preprocessor >= demand, if there is one.
    Raises: PolicyError: if an argument is out of range.
    Source: [FLEET] App. B.3. Deviation: one measured rate times n; the paper measures one preprocessor on
        1, 2, 4, ... 32 cores and says that the measurements vary little.
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
