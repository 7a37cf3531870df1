"""Forecast and measured throughput of an asynchronous parameter-server job, from the lines of a ledger."""

from __future__ import annotations

import math

from hpcbal.report.model import RateComparison
from hpcbal.telemetry.ledger import (
    JobEpochLine,
    Line,
    ReconfiguredLine,
    RunStartedLine,
    ThroughputForecastLine,
)


class ForecastReplay:
    """Compares the last forecast with the epochs after it.

    The first epoch of a start is left out, since it includes the start. Epochs count until the job is
    reconfigured: the forecast is of the workers and servers with which it began.
    """

    def __init__(self) -> None:
        self._forecast: ThroughputForecastLine | None = None
        self._is_over = False
        self._num_epochs = 0
        self._samples = 0
        self._seconds = 0.0

    def take(self, line: Line) -> None:
        """Process the next line."""
        match line:
            case ThroughputForecastLine():
                self._forecast, self._is_over = line, False
                self._num_epochs, self._samples, self._seconds = 0, 0, 0.0
            case RunStartedLine() | ReconfiguredLine():
                self._is_over = True
            case JobEpochLine() if self._forecast is not None and not self._is_over:
                self._num_epochs += 1
                if self._num_epochs > 1 and not math.isnan(line.seconds):
                    self._samples += sum(worker.samples for worker in line.workers)
                    self._seconds += line.seconds

    def rates(self) -> tuple[RateComparison, ...]:
        """The comparison; empty without a forecast, or before a second epoch."""
        found = self._forecast
        if found is None or not self._seconds > 0.0:
            return ()
        num_slots = found.num_workers + found.num_servers
        return (RateComparison(found.job, num_slots, found.samples_per_s, self._samples / self._seconds),)
