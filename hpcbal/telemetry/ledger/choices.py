"""Lines about schedules: which one was chosen, and slots that it leaves idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Facts, Line


@dataclass(frozen=True, slots=True)
class ScheduleFacts(Facts):
    """A schedule.

    Attributes:
        paradigm: as in `schedule.paradigm`.
        delta_samples_per_s: delta in samples/s; null if it is a share, or the paradigm has none.
        delta_share: delta as a share of the reference rate; null if it is in samples/s, or there is none.
        alpha: as in `schedule.alpha`; null if the paradigm has none.
    """

    paradigm: str
    delta_samples_per_s: float | None
    delta_share: float | None
    alpha: float | None

    def __str__(self) -> str:
        """For people: `global, delta 35%, alpha 0.8`."""
        parts = [self.paradigm]
        if self.delta_samples_per_s is not None:
            parts.append(f"delta {self.delta_samples_per_s:g} samples/s")
        if self.delta_share is not None:
            parts.append(f"delta {100.0 * self.delta_share:g}%")
        if self.alpha is not None:
            parts.append(f"alpha {self.alpha:g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class PredictionFacts(Facts):
    """What a schedule would have led to.

    Attributes:
        schedule: the schedule.
        remaining_s: predicted time until the run ends; at least as long if `cut`.
        num_rounds: predicted number of rounds until then.
        cut: whether the prediction was given up, because another schedule is faster.
    """

    schedule: ScheduleFacts
    remaining_s: float
    num_rounds: int
    cut: bool


@dataclass(frozen=True, slots=True)
class SlotsIdleLine(Line):
    """Written when a round leaves slots idle although DNNs wait; once for each reason in a round.

    Attributes:
        round_index: index of the round.
        num_idle: number of idle slots.
        waiting: DNNs that wait for a later round.
        why: the rule that keeps them waiting; text for users.
        change: what would change it; text for users.
    """

    event: ClassVar[str] = "slots-idle"
    round_index: int
    num_idle: int
    waiting: tuple[str, ...]
    why: str
    change: str


@dataclass(frozen=True, slots=True)
class ScheduleChosenLine(Line):
    """Written when a schedule has been chosen, before the round that it forms.

    Attributes:
        schedule: the schedule until the next such line.
        predictions: what was predicted for each candidate that was tried.
        previous: the schedule before; null at the first choice of a run.
        preprocessing_samples_per_s: rate of one preprocessor that the predictions used; null if none.
        num_dnns: number of DNNs that were not over; the next choice depends on it. Null if it is not known.
        basis: identifies the DNNs, candidates, limits and nodes that the choice was made for; a resumed run
            drops a choice with another one. Null if it is not known.
    """

    event: ClassVar[str] = "schedule-chosen"
    schedule: ScheduleFacts
    predictions: tuple[PredictionFacts, ...]
    previous: ScheduleFacts | None
    preprocessing_samples_per_s: float | None
    num_dnns: int | None = None
    basis: str | None = None
