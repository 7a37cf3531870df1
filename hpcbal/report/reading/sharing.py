"""Which jobs shared which machines when, and how busy these were, from the lines of a ledger."""

from __future__ import annotations

from hpcbal.report.model import MachineReport, SharingReport
from hpcbal.telemetry.ledger import JobsGroupedLine, Line, MachinesUsedLine, RunFinishedLine, RunStartedLine


class SharingReplay:
    """The facts on groups of jobs from the lines read so far.

    Attributes:
        machines: use of each machine in the last start that has recorded it, in the order of the ranks.
    """

    def __init__(self) -> None:
        self.machines: tuple[MachineReport, ...] = ()
        self._over: list[SharingReport] = []
        self._open: dict[tuple[tuple[str, ...], tuple[int, ...]], SharingReport] = {}

    def take(self, now_s: float, line: Line) -> None:
        """Process the next line, `now_s` seconds of running after the first start."""
        match line:
            case RunStartedLine() | RunFinishedLine():
                self._end(now_s, keep=set())
            case JobsGroupedLine(groups):
                self._end(now_s, keep={(group.jobs, group.machines) for group in groups})
                for group in groups:
                    new = SharingReport(group.jobs, group.machines, now_s, now_s, group.predicted_s)
                    self._open.setdefault((group.jobs, group.machines), new)
            case MachinesUsedLine(ranks, cpu, network, memory, _):
                rows = sorted(zip(ranks, cpu, network, memory, strict=True))
                self.machines = tuple(MachineReport(*row) for row in rows)

    def groups(self, end_s: float) -> tuple[SharingReport, ...]:
        """All groups by their start; those that have not ended last until `end_s`."""
        self._end(end_s, keep=set())
        return tuple(sorted(self._over, key=lambda group: (group.start_s, group.machines)))

    def _end(self, now_s: float, keep: set[tuple[tuple[str, ...], tuple[int, ...]]]) -> None:
        for key in [key for key in self._open if key not in keep]:
            group = self._open.pop(key)
            self._over.append(
                SharingReport(group.jobs, group.machines, group.start_s, now_s, group.predicted_s)
            )
