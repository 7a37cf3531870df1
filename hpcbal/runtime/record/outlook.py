"""Report the predicted time of a start, and compare it with the actual time."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.simulator import RemainingRun
from hpcbal.telemetry.files.utc import duration_text
from hpcbal.telemetry.views.status import PredictionStatus
from hpcbal.telemetry.views.table import count_text


@dataclass(frozen=True, slots=True)
class Outlook:
    """A prediction on the clock of this process.

    Attributes:
        asked_s: time of the state that the prediction starts from, monotonic seconds.
        prediction: what was left then, if every DNN trains to its max_epochs.
    """

    asked_s: float
    prediction: RemainingRun

    def remaining_s(self, now_s: float) -> float:
        """Predicted seconds left at `now_s`; 0 if the prediction is overdue."""
        return max(0.0, self.asked_s + self.prediction.remaining_s - now_s)

    def line(self) -> str:
        """The prediction as a line for the user."""
        seconds, rounds = self.prediction.remaining_s, self.prediction.num_rounds
        return (
            f"predicted: {duration_text(seconds)} left in {count_text(rounds, 'round')}, "
            "if every DNN trains to its max_epochs"
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """Predicted and actual seconds of one start; the prediction is that of its first round."""

    predicted_s: float
    actual_s: float

    def line(self) -> str:
        """The comparison as a line for the user."""
        return (
            f"predicted {duration_text(self.predicted_s)} for max_epochs, "
            f"took {duration_text(self.actual_s)} (predicted / actual {self.predicted_s / self.actual_s:.2f})"
        )


class Outlooks:
    """The first and the latest prediction of one start; all times are on the clock of `Outlook.asked_s`.

    Args:
        started_s: when this start began, monotonic seconds.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._first: Outlook | None = None
        self._latest: Outlook | None = None

    def add(self, outlook: Outlook) -> bool:
        """Add a prediction; True if it is the first."""
        self._latest = outlook
        if self._first is not None:
            return False
        self._first = outlook
        return True

    def wall_time_s(self, outlook: Outlook) -> float:
        """Seconds that `outlook` predicts for the whole start, from beginning to end."""
        return outlook.asked_s - self._started_s + outlook.prediction.remaining_s

    def status(self, now_s: float, *, finished: bool) -> PredictionStatus | None:
        """The latest prediction, for status.json; None if there is none yet."""
        if self._latest is None:
            return None
        return {
            "wall_time_s": self.wall_time_s(self._latest),
            "remaining_s": 0.0 if finished else self._latest.remaining_s(now_s),
        }

    def compare(self, ended_s: float) -> Compared | None:
        """Compare the first prediction with the end of this start; None if nothing was predicted."""
        if self._first is None:
            return None
        return Compared(self.wall_time_s(self._first), ended_s - self._started_s)
