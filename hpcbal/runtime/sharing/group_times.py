"""How long the iterations of groups are: predicted, and measured while their jobs were together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.paramserver.sharing.placing import Sharing
from hpcbal.paramserver.sharing.profiling import WINDOW
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
            group: self._since.get(group, {job.start: job.meter.num_measured for job in running.values()})
            for group in groups
        }

    def predicted_s(self, group: Sharing) -> float | None:
        """Seconds of an iteration of a group of now ([PS] Eq. 4.1); None: a job has not been measured."""
        return self._predicted[group]

    def measured_s(self, group: Sharing, running: Mapping[str, RunningJob]) -> float | None:
        """Seconds from one iteration to the next of the slowest job, mean of the last `WINDOW`.

        None: a job has had fewer of them since the group was formed.
        """
        periods = []
        for name in group.jobs:
            job = running.get(name)
            if job is None or job.machines != group.machines:
                return None
            before = self._since[group].get(job.start, 0)
            average = job.meter.average
            if average is None or job.meter.num_measured - before < WINDOW:
                return None
            periods.append(average.period_s)
        return max(periods)
