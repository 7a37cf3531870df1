"""Predict how long the run will last, with the simulator, in the background of the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from hpcbal.control import Ensemble
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.runtime.record.outlook import Outlook
from hpcbal.simulator import Costs, PassModel, RemainingRun, predict, too_long

log = logging.getLogger(__name__)


PAUSE = 20.0
"""After a prediction, the next one waits this many times as long as it took: at most 5 % of a core."""


class Forecast:
    """Makes predictions in the background; neither the scheduler nor the end of the run waits for them.

    Args:
        spec: the shared stream.
        clock: monotonic seconds, for tests.
    """

    def __init__(self, spec: StreamSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec = spec
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
        specs, cluster, _, _, _ = ensemble.origin
        settings = ensemble.settings  # as if the schedule of now were kept to the end
        if too_long(specs) is not None:
            return
        resume, rates = ensemble.resume_state(), ensemble.rates
        passes = passes_of(self._spec, ensemble.state.preprocessing_samples_per_s)
        costs = Costs(start_s=start_s or {})
        question = partial(predict, specs, cluster, settings, rates, passes, costs=costs, resume=resume)
        answer: Future[RemainingRun | None] = Future()
        # A daemon thread, unlike an executor's: a large prediction must not delay the end of the run.
        threading.Thread(target=_answer, args=(question, answer), name="forecast", daemon=True).start()
        self._asked = (asked_s, answer)

    def take(self) -> Outlook | None:
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
        return None if prediction is None else Outlook(asked_s, prediction)


def passes_of(spec: StreamSpec, preprocessing_samples_per_s: float | None = None) -> PassModel:
    """Model of a pass of this stream; the last argument is the rate of one preprocessor, if known."""
    return PassModel(
        num_train=spec.num_train,
        num_validation=spec.num_positions - spec.num_train,
        ring_samples=spec.num_slots * spec.block_samples,
        preprocessing_samples_per_s=preprocessing_samples_per_s,
    )


def _answer(question: Callable[[], RemainingRun | None], answer: Future[RemainingRun | None]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:
        answer.set_exception(error)
