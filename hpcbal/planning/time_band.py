"""How far runs may take longer or shorter than predicted, from what earlier runs took."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from hpcbal.planning.calibration import EarlierRun
from hpcbal.telemetry.views.table import count_text

SHARE = Fraction(9, 10)
"""Share of the runs that a band is to hold."""

LEAST_RUNS = 9
"""The fewest earlier runs from which a band with this share follows."""

MOST_RUNS = 100
"""Only so many latest runs count: older ones may be of another machine or another version."""

WIDE = 2.0
"""Without enough earlier runs, the band is from 1/WIDE to WIDE of the prediction."""

ASSUMED_STARTUP_S = 30.0
"""The start of the ranks takes so long where no earlier run has measured one."""


def conformal_range(residuals: Sequence[float], share: Fraction = SHARE) -> tuple[float, float] | None:
    """Return a range that holds the next residual with probability `share` or more.

    This holds whatever their distribution is, if the next one is exchangeable with these: each rank of the
    last one among n + 1 values is equally likely. Between the order statistics a and b there are b - a of
    n + 1 ranks, and ceil((n + 1) * share) are needed. If that leaves a rank below and a rank above, the range
    is between two residuals, and the larger tail is the lower one. Otherwise it is symmetric about 0, up to
    that order statistic of the absolute residuals.

    Args:
        residuals: of earlier runs, in any order.
        share: above 0, below 1.

    Returns: its lower and its upper end; None if there are too few residuals for any finite range.

    Source: split conformal prediction (Papadopoulos et al., 2002; Lei et al., J. Am. Stat. Assoc. 113, 2018).
    """
    count = len(residuals)
    needed = math.ceil((count + 1) * share)
    if needed > count:
        return None
    left_out = count + 1 - needed
    if left_out < 2:
        widest = sorted(map(abs, residuals))[needed - 1]
        return -widest, widest
    ordered = sorted(residuals)
    below = (left_out + 1) // 2
    return ordered[below - 1], ordered[below - 1 + needed]


@dataclass(frozen=True, slots=True)
class TimeBand:
    """How long a run takes, from the command to its end, over all its starts, without time in queues.

    Attributes:
        low_s, high_s: nine of ten runs are expected to end in between.
        median_s: half of the runs are expected to be shorter.
        startup_s: the part of it before the first job trains; median of earlier runs, or an assumption.
        num_runs: earlier runs that the band follows from; 0: it is an assumption.
        why: where it comes from; text for users.
    """

    low_s: float
    median_s: float
    high_s: float
    startup_s: float
    num_runs: int
    why: str

    @property
    def title(self) -> str:
        """Return the words for users in front of it: only earlier runs make it more than an assumption."""
        return "nine of ten runs" if self.num_runs else "assumed"

    @property
    def width(self) -> float:
        """Return the width of the band, as a share of its median."""
        return (self.high_s - self.low_s) / self.median_s if self.median_s > 0.0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "share": float(SHARE), "is_calibrated": self.num_runs > 0}


def time_band(predicted_s: float, runs: Sequence[EarlierRun], *, has_begun: bool = False) -> TimeBand:
    """Return the band of a run of which `predicted_s` was predicted, without its start.

    Args:
        predicted_s: seconds, above 0.
        runs: earlier runs of the same kind, the latest last.
        has_begun: whether the start is over, and `predicted_s` is what is left. The band then takes it that
            what is left deviates from its prediction as whole runs did.
    """
    latest = runs[-MOST_RUNS:]
    startup_s = usual_startup_s(latest)
    expected_s = predicted_s if has_begun else predicted_s + startup_s
    residuals = [math.log(run.active_s / (run.predicted_s + startup_s)) for run in latest]
    found = conformal_range(residuals)
    if found is None:
        why = f"half to twice the prediction, because there {_too_few(len(latest))}"
        return TimeBand(expected_s / WIDE, expected_s, expected_s * WIDE, startup_s, 0, why)
    low_s, high_s = (expected_s * math.exp(each) for each in found)
    median_s = expected_s * math.exp(statistics.median(residuals))
    why = f"from {count_text(len(latest), 'earlier run')} of this kind"
    return TimeBand(low_s, min(max(low_s, median_s), high_s), high_s, startup_s, len(latest), why)


def usual_startup_s(runs: Sequence[EarlierRun]) -> float:
    """Return the seconds from the command to the first work of the ranks: the median of the latest runs.

    Args:
        runs: earlier runs of the same kind, the latest last; without any it is an assumption.
    """
    latest = runs[-MOST_RUNS:]
    return statistics.median(run.startup_s for run in latest) if latest else ASSUMED_STARTUP_S


def _too_few(count: int) -> str:
    if not count:
        return "are no earlier runs of this kind"
    verb = "is" if count == 1 else "are"
    return f"{verb} only {count_text(count, 'earlier run')} of this kind, and a band needs {LEAST_RUNS}"
