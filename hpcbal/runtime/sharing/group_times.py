"""How long the iterations of groups are: predicted, and measured while their jobs were together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.paramserver.sharing.placing import Sharing
from hpcbal.paramserver.sharing.profiling import measured_iteration_s
from hpcbal.policies.grouping import JobLoad
from hpcbal.runtime.sharing.running_job import RunningJob


class GroupTimes:
    """The groups of now.

    Attributes:
        groups: jobs that share machines; some may still be on their way.
    """

    def __init__(self) -> None:
        self.groups: tuple[Sharing, ...] = ()
        self._predicted: dict[Sharing, float | None] = {}
        self._since: dict[Sharing, dict[int, int]] = {}  # by start of a job: iterations measured before

    def become(
        self, groups: Sequence[Sharing], loads: Mapping[str, JobLoad], running: Mapping[str, RunningJob]
    ) -> None:
        """Groups are now these; what was predicted of one that stays remains."""
        self.groups = tuple(groups)
        self._predicted = {
            group: group.predicted_s(loads) if (known := self._predicted.get(group)) is None else known
            for group in groups
        }
        self._since = {
            group: self._since.get(group, {job.start: job.meter.num_periods for job in running.values()})
            for group in groups
        }

    def predicted_s(self, group: Sharing) -> float | None:
        """Seconds of an iteration of a group of now ([PS] Eq. 4.1); None: a job has not been measured."""
        return self._predicted[group]

    def measured_s(self, group: Sharing, running: Mapping[str, RunningJob]) -> float | None:
        """See `measured_iteration_s`, since the group was formed; None: a job is not on its machines."""
        jobs = [running.get(name) for name in group.jobs]
        if any(job is None or job.machines != group.machines for job in jobs):
            return None
        since = self._since[group]
        return measured_iteration_s((job.meter, since.get(job.start, 0)) for job in jobs if job is not None)
