"""Choose how DNNs are put into rounds: paradigm, delta and alpha, by predicted makespans."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.events.ensemble import Prediction, Schedule, ScheduleChosen, cost_of

AUTO = "auto"
"""The value of `schedule.paradigm` that leaves the choice to hpcbal."""

LEAST_GAIN = 0.05
"""A choice is kept unless another schedule is predicted to take this share of the remaining time less."""


def choose(
    predictions: Sequence[Prediction],
    current: Schedule | None = None,
    preprocessing_samples_per_s: float | None = None,
    num_dnns: int | None = None,
    basis: str | None = None,
) -> ScheduleChosen:
    """Choose the schedule with the shortest prediction.

    Ties go to fewer rounds, then to the first in order. The current schedule stays unless another one takes
    at least `LEAST_GAIN` less: predictions are not exact, and a change of schedule moves DNNs.

    Args:
        predictions: at least one, with different schedules; not all may be cut.
        current: the schedule until now; None: there is none. It has no effect if it is no candidate.
        preprocessing_samples_per_s, num_dnns, basis: see `ScheduleChosen`.
    """
    best = min(predictions, key=cost_of)  # cut ones come last
    kept = next((p for p in predictions if p.schedule == current and not p.is_cut), None)
    if kept is not None and best.remaining_s > (1.0 - LEAST_GAIN) * kept.remaining_s:
        best = kept
    return ScheduleChosen(
        best.schedule, tuple(predictions), current, preprocessing_samples_per_s, num_dnns, basis
    )
