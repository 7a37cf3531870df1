"""Choose schedules beside the scheduler's work: rank 0 serves the other ranks meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace

from hpcbal.control import Ensemble
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.events.ensemble import ChooseSchedule, ScheduleChosen
from hpcbal.runtime.record.forecast import passes_of
from hpcbal.simulator import ASSUMED_COSTS, Outset, choose_schedule


class ScheduleChooser:
    """Answers one question of the state machine at a time, from a thread.

    The answer depends only on the state of the ensemble, never on how long it took.

    Args:
        spec: the shared stream.
        choose: finds the answer; replaced by tests.
    """

    def __init__(
        self, spec: StreamSpec, choose: Callable[[Outset, ChooseSchedule], ScheduleChosen] = choose_schedule
    ) -> None:
        self._spec = spec
        self._choose = choose
        self._answer: Future[ScheduleChosen] | None = None

    def ask(self, asked: ChooseSchedule, ensemble: Ensemble, start_s: Mapping[str, float]) -> None:
        """Start to look for the answer.

        Args:
            start_s: seconds that it takes to start a DNN on a rank that does not hold it yet, by DNN, if
                known.
        """
        outset = Outset.of(ensemble, passes_of(self._spec), replace(ASSUMED_COSTS, start_s=start_s))
        answer: Future[ScheduleChosen] = Future()

        def look() -> None:
            try:
                answer.set_result(self._choose(outset, asked))
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=look, name="schedule-chooser", daemon=True).start()
        self._answer = answer

    def take(self) -> ScheduleChosen | None:
        """Return the answer once it is found; None before, and after it was taken.

        Raises:
            HpcbalError: if the search has failed.
        """
        if self._answer is None or not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        return answer.result()
