"""Choose how DNNs are put into rounds: paradigm, delta and alpha, by predicted makespans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.policies import Delta

AUTO = "auto"
"""The value of `schedule.paradigm` that leaves the choice to hpcbal."""

LEAST_GAIN = 0.05
"""A choice is kept unless another schedule is predicted to take this share of the remaining time less."""

LEAST_OVER, LEAST_OVER_OF_MANY, MANY = 0.1, 0.5, 100
"""A choice is made again when this share of its DNNs is over; the second holds for more than `MANY` DNNs.
Their choices take about a second each, in which no group trains."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A way to form rounds and to end them.

    Attributes:
        paradigm: one of `paradigms.PARADIGM_NAMES`.
        delta: see `ScheduleSettings`; None with a paradigm that has no delta.
        alpha: see `ScheduleSettings`; None with a paradigm that has no alpha.
    """

    paradigm: str
    delta: Delta | None = None
    alpha: float | None = None

    def __str__(self) -> str:
        """For people: `global, delta 35%, alpha 0.8`."""
        delta = "" if self.delta is None else f", delta {self.delta}"
        alpha = "" if self.alpha is None else f", alpha {self.alpha:g}"
        return f"{self.paradigm}{delta}{alpha}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a schedule would lead to, from now to the end of the run.

    Attributes:
        schedule: the schedule, kept to the end.
        remaining_s: predicted seconds; at least as many if `is_cut`.
        num_rounds: rounds until then; with `independent` one per DNN.
        is_cut: whether the prediction was given up, because the schedule already took longer than another.
    """

    schedule: Schedule
    remaining_s: float
    num_rounds: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule, and why it was chosen.

    Attributes:
        schedule: holds until the next choice.
        predictions: of all candidates, in their order.
        previous: the schedule before; None at the first choice of a run.
        preprocessing_samples_per_s: rate of one preprocessor that the predictions used; None: preprocessing
            was no limit. Later choices use the same value, so that they do not depend on measurements of a
            running machine.
        num_dnns: number of DNNs that were not over at the choice; None: not known. See `is_due`.
        basis: identifies what the choice was made for: all DNNs of the run and the epochs that they may have,
            the candidates, the limit of GPUs, and the nodes. A resumed run drops a choice with another basis.
            None: not known.
    """

    schedule: Schedule
    predictions: tuple[Prediction, ...]
    previous: Schedule | None = None
    preprocessing_samples_per_s: float | None = None
    num_dnns: int | None = None
    basis: str | None = None

    def is_due(self, num_dnns: int) -> bool:
        """Whether to choose again, with this number of DNNs that are not over.

        It is due if `LEAST_OVER` of the DNNs are over since, at least one. So the number of choices grows
        with the logarithm of the number of DNNs, not with the number of rounds.
        """
        if self.num_dnns is None:
            return True
        num_over = self.num_dnns - num_dnns
        least = LEAST_OVER_OF_MANY if self.num_dnns > MANY else LEAST_OVER
        return num_over < 0 or num_over >= max(1, int(least * self.num_dnns))

    @property
    def prediction(self) -> Prediction:
        """The prediction of the chosen schedule."""
        return next(p for p in self.predictions if p.schedule == self.schedule)

    def best_by_paradigm(self) -> tuple[Prediction, ...]:
        """The shortest prediction of each paradigm; the chosen schedule comes first, the others by time."""
        best = {self.schedule.paradigm: self.prediction}
        for prediction in sorted(self.predictions, key=_cost):
            best.setdefault(prediction.schedule.paradigm, prediction)
        first, *others = best.values()
        return (first, *sorted(others, key=lambda p: (p.remaining_s, p.num_rounds)))


def choose(
    predictions: Sequence[Prediction],
    current: Schedule | None = None,
    preprocessing_samples_per_s: float | None = None,
    num_dnns: int | None = None,
    basis: str | None = None,
) -> Choice:
    """Choose the schedule with the shortest prediction.

    Ties go to fewer rounds, then to the first in order. The current schedule stays unless another one takes
    at least `LEAST_GAIN` less: predictions are not exact, and a change of schedule moves DNNs.

    Args:
        predictions: at least one, with different schedules; not all may be cut.
        current: the schedule until now; None: there is none. It has no effect if it is no candidate.
        preprocessing_samples_per_s, num_dnns, basis: see `Choice`.
    """
    best = min(predictions, key=_cost)  # cut ones come last
    kept = next((p for p in predictions if p.schedule == current and not p.is_cut), None)
    if kept is not None and best.remaining_s > (1.0 - LEAST_GAIN) * kept.remaining_s:
        best = kept
    return Choice(best.schedule, tuple(predictions), current, preprocessing_samples_per_s, num_dnns, basis)


def _cost(prediction: Prediction) -> tuple[bool, float, int]:
    return prediction.is_cut, prediction.remaining_s, prediction.num_rounds
