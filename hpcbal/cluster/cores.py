"""The cores that a process may use: by its affinity, and by the quotas of its control groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.cluster.cgroup import ControlGroup, own_control_group


@dataclass(frozen=True, slots=True)
class Quota:
    """Processor time that a control group may use, as a container or a batch system sets it.

    Attributes:
        group: name of the group on this machine; processes with the same one share the quota.
        cores: cores' worth of time, above 0.
    """

    group: str
    cores: float


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of one process.

    Attributes:
        mask: numbers of the cores, from its affinity.
        quota: the tightest quota on its way to the root of the control groups; None: there is none.
    """

    mask: frozenset[int]
    quota: Quota | None = None

    @classmethod
    def of_this_process(cls) -> Cores:
        """Ask the kernel."""
        return cls(frozenset(os.sched_getaffinity(0)), cpu_quota(own_control_group()))


def num_usable(processes: Sequence[Cores]) -> int:
    """Return the number of cores that processes of one machine may use together, at least 1.

    Args:
        processes: the cores of each.
    """
    together = len(frozenset[int]().union(*(cores.mask for cores in processes)))
    quotas = {cores.quota.group: cores.quota.cores for cores in processes if cores.quota is not None}
    if all(cores.quota is not None for cores in processes):
        together = min(together, int(sum(quotas.values())))
    return max(1, together)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return num_usable([Cores.of_this_process()])


def cpu_quota(group: ControlGroup) -> Quota | None:
    """Return the tightest quota of a control group; None if there is none.

    Args:
        group: its limits.
    """
    if group.cpu_limit is None or group.cpu_used is None:
        return None
    status = group.cpu_used.parent.stat()
    return Quota(f"{status.st_dev}:{status.st_ino}", group.cpu_limit)
