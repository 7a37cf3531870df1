"""The policy that each `schedule.paradigm` stands for."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hpcbal.config import JobsConfig
from hpcbal.errors import InputError
from hpcbal.paramserver.sharing.fixed import FixedGroups
from hpcbal.paramserver.sharing.harmony import Harmony
from hpcbal.paramserver.sharing.isolated import Isolated
from hpcbal.paramserver.sharing.scheduler import GroupingPolicy
from hpcbal.policies.grouping import Group


def policy_of(config: JobsConfig, num_machines: int) -> GroupingPolicy:
    """The policy of a run.

    Raises:
        InputError: if fixed groups need more machines than there are.
    """
    plan = config.schedule
    if plan.paradigm == "isolated":
        return Isolated()
    if plan.paradigm == "naive":
        if plan.groups is None:
            return FixedGroups(random_groups([job.name for job in config.jobs], num_machines, config.seed))
        wanted = sum(group.machines for group in plan.groups)
        if wanted > num_machines:
            raise InputError(
                f"schedule.groups: got groups of {wanted} machines, but the run has {num_machines}; lower "
                "their machines, or start more ranks"
            )
        return FixedGroups([Group(group.jobs, group.machines) for group in plan.groups])
    return Harmony(plan.min_gain)


def random_groups(jobs: Sequence[str], machines: int, seed: int) -> list[Group]:
    """Any number of groups with any jobs, at least one each, and even shares of the machines."""
    rng = random.Random(seed)
    order = rng.sample(jobs, len(jobs))
    count = rng.randint(1, min(len(jobs), machines))
    return [
        Group(tuple(order[index::count]), machines // count + (index < machines % count))
        for index in range(count)
    ]
