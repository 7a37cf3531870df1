"""Round proportional shares to whole samples without losing or inventing one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcbal.errors import PolicyError

_BISECTIONS = 200  # enough to bisect any interval of doubles that shares can span
_LEAST_WEIGHT = 1e-12  # of the largest weight; below it a worker's share of any batch is 0


def apportion(
    num_samples: int,
    weights: Sequence[float],
    minima: Sequence[int] | None = None,
    maxima: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Whole numbers in proportion to `weights`, within limits, with an exact sum.

    Shares beyond a limit are set to the limit, and the others share the rest in proportion. Then shares are
    cut to whole samples. Leftover samples go to the largest remainders; ties go to the larger weight, then to
    the lower index. So with equal limits a larger weight never gets fewer samples.

    Args:
        num_samples: samples to share out, >= 0.
        weights: one per worker, finite and >= 0; all zero counts as all equal.
        minima: fewest samples of each worker, >= 0; None: 0.
        maxima: most samples of each worker; None: no limit.

    Returns: one count per worker, with sum `num_samples`.
    Raises: PolicyError: a weight is out of range, or the limits cannot be kept.
    Source: [LBBSP] Alg. 1, lines 5 and 6. The paper does not say how it rounds.
    """
    count = len(weights)
    lows = [0] * count if minima is None else list(minima)
    highs = [num_samples] * count if maxima is None else [min(most, num_samples) for most in maxima]
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise PolicyError(f"weights: got {list(weights)}, allowed: finite and not negative")
    fits = all(low <= high for low, high in zip(lows, highs, strict=True))
    if not (count and fits and sum(lows) <= num_samples <= sum(highs)):
        raise PolicyError(
            f"cannot share {num_samples} samples out to {count} workers with minima {lows} and maxima {highs}"
        )
    largest = max(weights)
    # Divided by the largest weight, because sums and products of huge doubles would overflow.
    scaled = [weight / largest for weight in weights] if largest > 0 else [1.0] * count
    scaled = [weight if weight >= _LEAST_WEIGHT else 0.0 for weight in scaled]
    shares = _limited_shares(num_samples, scaled, lows, highs)
    counts = [
        min(max(math.floor(share), low), high) for share, low, high in zip(shares, lows, highs, strict=True)
    ]
    order = sorted(range(count), key=lambda i: (counts[i] - shares[i], -weights[i], i))
    _hand_out(num_samples - sum(counts), counts, order, highs, 1)
    _hand_out(sum(counts) - num_samples, counts, order[::-1], lows, -1)
    return tuple(counts)


def scale_shares(num_samples: int, batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """Shares of a step with fewer samples than the global batch, in the proportions of a full step.

    Args:
        num_samples: of the step, 0 <= num_samples <= sum(batch_sizes).
        batch_sizes: shares of a full step, as decided by a policy.

    Returns: counts that sum to `num_samples`, none above its full size.
    Raises: PolicyError: the step holds more samples than a full one.
    """
    return apportion(num_samples, batch_sizes, maxima=batch_sizes)


def _limited_shares(
    num_samples: int, weights: Sequence[float], lows: Sequence[int], highs: Sequence[int]
) -> list[float]:
    """Real shares clip(level * weight, low, high) with the level at which they sum to `num_samples`.

    Found by bisection, because the sum grows with the level. Workers of weight 0 stay at their minimum. If
    the maxima of the others leave samples over, rounding hands these out.
    """
    least = min((weight for weight in weights if weight > 0), default=1.0)
    low_level, high_level = 0.0, 2.0 * num_samples / least

    def shares_at(level: float) -> list[float]:
        return [
            min(max(level * weight, low), high)
            for weight, low, high in zip(weights, lows, highs, strict=True)
        ]

    free = sum(weights)
    exact = num_samples / free  # if no limit applies, exact up to rounding
    if all(low <= exact * weight <= high for weight, low, high in zip(weights, lows, highs, strict=True)):
        return shares_at(exact)
    for _ in range(_BISECTIONS):
        level = (low_level + high_level) / 2
        if level in (low_level, high_level):
            break
        if math.fsum(shares_at(level)) < num_samples:
            low_level = level
        else:
            high_level = level
    return shares_at(high_level)


def _hand_out(number: int, counts: list[int], order: Sequence[int], bounds: Sequence[int], sign: int) -> None:
    """Add `sign` to `number` counts in `order`, repeatedly from its start, and move none beyond its bound."""
    while number > 0:
        open_ = [i for i in order if counts[i] != bounds[i]]
        # Several turns at once: many samples may be left, and few workers can take them.
        turns = min(min(abs(bounds[i] - counts[i]) for i in open_), number // len(open_))
        for i in open_:
            counts[i] += sign * turns
        number -= turns * len(open_)
        if turns == 0:
            for i in open_[:number]:
                counts[i] += sign
            return
