"""The policy that each `schedule.paradigm` stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.config import JobsConfig
from hpcbal.errors import InputError
from hpcbal.paramserver.coscheduling.fixed import FixedGroups, Isolated, RandomGroups
from hpcbal.paramserver.coscheduling.harmony import Harmony
from hpcbal.paramserver.coscheduling.profiling import measured_iteration_s
from hpcbal.paramserver.coscheduling.scheduler import GroupingPolicy, Sharing
from hpcbal.policies.grouping.groups import JobGroup, JobLoad
from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit
from hpcbal.runtime.jobs.job import Start
from hpcbal.telemetry.views.table import count_text


def policy_of(config: JobsConfig, num_machines: int) -> GroupingPolicy:
    """The policy of a run.

    Raises:
        InputError: if fixed groups need more machines than there are.
    """
    plan, limit = config.schedule, limit_of(config)
    if plan.paradigm == "isolated":
        return Isolated(limit, len(config.jobs))
    if plan.paradigm == "naive":
        if plan.groups is None:
            return RandomGroups(config.seed, limit)
        if (problem := plan.groups_problem(num_machines)) is not None:
            raise InputError(problem)
        return FixedGroups([JobGroup(group.jobs, group.machines) for group in plan.groups], limit)
    return Harmony(plan.min_gain, limit)


def limit_of(config: JobsConfig) -> MemoryLimit:
    """The memory of each machine, and what jobs may have on disk."""
    return MemoryLimit(config.memory_per_node, config.spill.fixed_alpha)


def check_fits(config: JobsConfig, job: str, memory: JobMemory, num_machines: int) -> None:
    """Check that a job fits on some number of machines: otherwise it would wait for ever.

    Raises:
        InputError: it does not.
    """
    limit, most = limit_of(config), most_machines_of(config, job, num_machines)
    if limit.limit_bytes is None or limit.least_machines(memory, most) is not None:
        return
    need = min(limit.least_of(memory, count) for count in range(1, most + 1))
    alpha = config.spill.fixed_alpha
    spilled = (
        "" if alpha == 0.0 else f" with {'all' if alpha is None else f'{alpha:.0%}'} of its samples on disk"
    )
    raise InputError(
        f"memory_per_node: got {limit.limit_bytes:,} bytes, but {job} needs about {need:,.0f} on each of "
        f"{count_text(most, 'machine')}{spilled}; allow more memory, use more machines, or lower mini_batch"
    )


def most_machines_of(config: JobsConfig, job: str, num_machines: int) -> int:
    """The most machines that a job of a run can get."""
    for group in config.schedule.groups or ():
        if job in group.jobs:
            return group.machines
    return num_machines


class FormedGroups:
    """The groups of now.

    Attributes:
        groups: jobs that share machines; some may still be on their way.
    """

    def __init__(self) -> None:
        self.groups: tuple[Sharing, ...] = ()
        self._predicted: dict[Sharing, float | None] = {}
        self._since: dict[Sharing, dict[int, int]] = {}  # by number of a start: iterations measured before

    def become(
        self, groups: Sequence[Sharing], loads: Mapping[str, JobLoad], running: Mapping[str, Start]
    ) -> None:
        """Groups are now these; what was predicted of one that stays remains."""
        self.groups = tuple(groups)
        self._predicted = {
            group: group.predicted_s(loads) if (known := self._predicted.get(group)) is None else known
            for group in groups
        }
        self._since = {
            group: self._since.get(group, {each.number: each.meter.num_periods for each in running.values()})
            for group in groups
        }

    def predicted_s(self, group: Sharing) -> float | None:
        """Seconds of an iteration of a group of now ([PS] Eq. 4.1); None: a job has not been measured."""
        return self._predicted[group]

    def measured_s(self, group: Sharing, running: Mapping[str, Start]) -> float | None:
        """See `measured_iteration_s`, since the group was formed; None: a job is not on its machines."""
        starts = [running.get(name) for name in group.jobs]
        if any(start is None or start.ranks != group.machines for start in starts):
            return None
        since = self._since[group]
        return measured_iteration_s(
            (start.meter, since.get(start.number, 0)) for start in starts if start is not None
        )
