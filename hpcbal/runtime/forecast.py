"""How long the run will last: the simulator, asked by the run itself, beside its work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hpcbal.control import Ensemble
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.simulator import Costs, PassModel, Prediction, predict

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is predicted, on the clock of this process.

    Attributes:
        asked_s: when the state was that the prediction starts from, monotonic seconds.
        prediction: of what was left then, if every DNN trains to its max_epochs.
    """

    asked_s: float
    prediction: Prediction

    def remaining_s(self, now_s: float) -> float:
        """Of the prediction what is left; 0 when it is overdue."""
        return max(0.0, self.asked_s + self.prediction.remaining_s - now_s)


class Forecast:
    """Asks again whenever a round begins; answers come later, and the scheduler never waits for one.

    Args:
        spec: of the shared stream.
        clock: monotonic seconds, for tests.

    Attributes:
        first: the prediction of this start's first round; None if there was none.
        latest: the newest one.
    """

    def __init__(self, spec: StreamSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec = spec
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "forecast")
        self._asked: tuple[float, Future[Prediction | None]] | None = None
        self.first: Outlook | None = None
        self.latest: Outlook | None = None

    def ask(self, ensemble: Ensemble, start_s: float | None = None) -> None:
        """Predict from the state of this moment, unless the last question is still open.

        Args:
            start_s: what it takes to start a network on a rank where it was not before; None: not known.
        """
        if self._asked is not None:
            return
        specs, cluster, settings, _, _ = ensemble.origin
        resume, rates = ensemble.resume_state(), ensemble.rates
        passes = PassModel(
            num_train=self._spec.num_train,
            num_validation=self._spec.num_positions - self._spec.num_train,
            ring_samples=self._spec.num_slots * self._spec.block_samples,
            preprocessing_samples_per_s=ensemble.state.preprocessing_samples_per_s,
        )
        costs = Costs(build_s=start_s or 0.0, load_s=start_s or 0.0)
        work = self._thread.submit(
            predict, specs, cluster, settings, rates, passes, costs=costs, resume=resume
        )
        self._asked = (self._clock(), work)

    def take(self) -> Outlook | None:
        """A new answer, once; None if there is none."""
        if self._asked is None or not self._asked[1].done():
            return None
        asked_s, work = self._asked
        self._asked = None
        error = work.exception()
        if error is not None:  # a wrong forecast must not end a right run
            log.error("the run could not be predicted", exc_info=error)
            return None
        prediction = work.result()
        if prediction is None:
            return None
        self.latest = Outlook(asked_s, prediction)
        self.first = self.first or self.latest
        return self.latest

    def close(self) -> None:
        """Give up what is still open."""
        self._thread.shutdown(wait=False, cancel_futures=True)
