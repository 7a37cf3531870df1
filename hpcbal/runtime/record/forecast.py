"""Predict how long the run will last, report that, and compare it with the actual time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from hpcbal.control.ensemble import Ensemble
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.run import RemainingRun, predict, too_long
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.status import PredictionStatus
from hpcbal.telemetry.views.table import count_text

log = logging.getLogger(__name__)


MOST_NEXT = 8
"""So many DNNs that begin next are shown."""

PAUSE = 20.0
"""After a prediction, the next one waits this many times as long as it took: at most 5 % of a core."""


class Forecaster:
    """Makes predictions in the background; neither the scheduler nor the end of the run waits for them.

    Args:
        spec: the shared stream.
        hit_rate: see `RankData`.
        clock: monotonic seconds, for tests.
    """

    def __init__(
        self, spec: StreamSpec, hit_rate: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._passes = passes_of(spec, hit_rate)
        self._clock = clock
        self._pause_until_s = -1.0
        self._asked: tuple[float, Future[RemainingRun | None]] | None = None

    def ask(self, ensemble: Ensemble, start_s: Mapping[str, float] | None = None) -> None:
        """Start a prediction from the current state, unless one is running or has just ended.

        Runs of very many epochs are not predicted: that would take a core from the run for too long.

        Args:
            start_s: seconds that it takes to start a DNN on a rank that does not hold it yet, by DNN, if
                known.
        """
        asked_s = self._clock()
        if self._asked is not None or asked_s < self._pause_until_s:
            return
        specs, cluster = ensemble.specs, ensemble.cluster
        settings = ensemble.settings  # as if the schedule of now were kept to the end
        if too_long(specs) is not None:
            return
        resume, rates = ensemble.resume_state(), ensemble.rates
        made = ensemble.state.preprocessing_samples_per_s
        passes = replace(self._passes, preprocessing_samples_per_s=made)
        costs = Costs(start_s=start_s or {})
        question = partial(predict, specs, cluster, settings, rates, passes, costs=costs, resume=resume)
        answer: Future[RemainingRun | None] = Future()
        # A daemon thread, unlike an executor's: a large prediction must not delay the end of the run.
        threading.Thread(target=_answer, args=(question, answer), name="forecast", daemon=True).start()
        self._asked = (asked_s, answer)

    def take(self) -> RunPrediction | None:
        """Return a new prediction, once; None if there is none."""
        if self._asked is None or not self._asked[1].done():
            return None
        asked_s, work = self._asked
        self._asked = None
        now_s = self._clock()
        self._pause_until_s = now_s + PAUSE * (now_s - asked_s)
        error = work.exception()
        if error is not None:  # a failed prediction must not end the run
            log.error("the time left could not be predicted; the run is not affected", exc_info=error)
            return None
        prediction = work.result()
        return None if prediction is None else RunPrediction(asked_s, prediction)


def passes_of(spec: StreamSpec, hit_rate: float = 0.0) -> PassModel:
    """Model of a pass of this stream, before the rate of preprocessing is known."""
    return PassModel(
        num_train=spec.num_train,
        num_validation=spec.num_positions - spec.num_train,
        ring_samples=spec.num_cells * spec.block_samples,
        hit_rate=hit_rate,
    )


def _answer(question: Callable[[], RemainingRun | None], answer: Future[RemainingRun | None]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:
        answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class RunPrediction:
    """A prediction on the clock of this process.

    Attributes:
        asked_s: time of the state that the prediction starts from, monotonic seconds.
        left: what was left then, if every DNN trains to its max_epochs.
    """

    asked_s: float
    left: RemainingRun

    def remaining_s(self, now_s: float) -> float:
        """Predicted seconds left at `now_s`; 0 if the prediction is overdue."""
        return max(0.0, self.asked_s + self.left.remaining_s - now_s)

    def next_s(self, now_s: float, waiting: Iterable[str]) -> dict[str, float]:
        """Return the seconds at `now_s` until some DNNs begin: the first MOST_NEXT, in that order."""
        start_s = self.left.start_s
        order = sorted((start_s[name], index, name) for index, name in enumerate(waiting) if name in start_s)
        return {name: max(0.0, round(self.asked_s + s - now_s, 1)) for s, _, name in order[:MOST_NEXT]}

    def line(self) -> str:
        """The prediction as a line for the user."""
        seconds, rounds = self.left.remaining_s, self.left.num_rounds
        in_rounds = f" in {count_text(rounds, 'round')}" if rounds else ""
        return f"predicted: {duration_text(seconds)} left{in_rounds}, if every DNN trains to its max_epochs"


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


class RunPredictions:
    """The first and the latest prediction of one start; times are on the clock of `RunPrediction.asked_s`.

    Args:
        started_s: when this start began, monotonic seconds.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._first: RunPrediction | None = None
        self._latest: RunPrediction | None = None

    def add(self, prediction: RunPrediction) -> bool:
        """Add a prediction; True if it is the first."""
        self._latest = prediction
        if self._first is not None:
            return False
        self._first = prediction
        return True

    def wall_time_s(self, prediction: RunPrediction) -> float:
        """Seconds that `prediction` predicts for the whole start, from beginning to end."""
        return prediction.asked_s - self._started_s + prediction.left.remaining_s

    def status(self, now_s: float, waiting: Iterable[str] = (), *, finished: bool) -> PredictionStatus | None:
        """Return the latest prediction, for status.json; None if there is none yet.

        Args:
            waiting: DNNs that have no slots.
        """
        if self._latest is None:
            return None
        status: PredictionStatus = {
            "wall_time_s": self.wall_time_s(self._latest),
            "remaining_s": 0.0 if finished else self._latest.remaining_s(now_s),
        }
        if next_s := self._latest.next_s(now_s, waiting):
            status["next_s"] = next_s
        return status

    def compare(self, ended_s: float) -> Compared | None:
        """Compare the first prediction with the end of this start; None if nothing was predicted."""
        if self._first is None:
            return None
        return Compared(self.wall_time_s(self._first), ended_s - self._started_s)
