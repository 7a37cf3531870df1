"""Which job was on which machines when, from the lines of a ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpcbal.telemetry.ledger.line import Line
from hpcbal.telemetry.ledger.paramserver import JobDoneLine, JobFailedLine
from hpcbal.telemetry.ledger.run import RunFinishedLine, RunStartedLine
from hpcbal.telemetry.ledger.sharing import JobPlacedLine, JobRestedLine


@dataclass(frozen=True, slots=True)
class Stay:
    """A job was on machines for a while.

    Attributes:
        job: name of the job.
        machines: ranks of the machines.
        start_s, end_s: from when until when, on the time axis of who reads the lines.
    """

    job: str
    machines: tuple[int, ...]
    start_s: float
    end_s: float


class JobStays:
    """Collects stays from the lines read so far.

    Attributes:
        over: stays that have ended, in the order of their ends.
    """

    def __init__(self) -> None:
        self.over: list[Stay] = []
        self._here: dict[str, tuple[float, tuple[int, ...]]] = {}  # by job: since when, and where

    def take(self, now_s: float, line: Line) -> None:
        """Process the next line, at `now_s`; a start of the run comes when the one before has ended."""
        match line:
            case RunStartedLine() | RunFinishedLine():
                self.close(now_s)
            case JobPlacedLine(job, machines):
                self._leave(now_s, [job])
                self._here[job] = now_s, machines
            case JobRestedLine(job) | JobDoneLine(job) | JobFailedLine(job):
                self._leave(now_s, [job])

    def close(self, now_s: float) -> None:
        """All jobs leave."""
        self._leave(now_s, list(self._here))

    def cost_by_job(self) -> dict[str, tuple[float, float]]:
        """(seconds on machines, machine-seconds) of each job, of stays that are over."""
        found: dict[str, tuple[float, float]] = {}
        for stay in self.over:
            seconds, machine_s = found.get(stay.job, (0.0, 0.0))
            length_s = stay.end_s - stay.start_s
            found[stay.job] = seconds + length_s, machine_s + length_s * len(stay.machines)
        return found

    def _leave(self, now_s: float, jobs: Iterable[str]) -> None:
        for job in jobs:
            if job in self._here:
                since_s, machines = self._here.pop(job)
                self.over.append(Stay(job, machines, since_s, now_s))
