"""The cores that a process may use: by its affinity, and by the quotas of its control groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


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
        return cls(frozenset(os.sched_getaffinity(0)), cpu_quota())


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


def cpu_quota(root: Path = Path("/")) -> Quota | None:
    """Return the tightest quota of processor time of this process; None if there is none.

    Version 2 of control groups has it in `cpu.max`, version 1 in `cpu.cfs_quota_us`. Each group from that of
    the process to the root counts.

    Args:
        root: of the file system.
    """
    found: list[Quota] = []
    for line in _text_of(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup" / name for name in ("cpu", "cpu,cpuacct", controllers)]
        else:
            continue
        for mount in mounts:
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder == mount.parent:
                    break
                cores = _cores_of(folder)
                if cores is not None:
                    status = folder.stat()
                    found.append(Quota(f"{status.st_dev}:{status.st_ino}", cores))
    return min(found, key=lambda quota: quota.cores, default=None)


def _cores_of(folder: Path) -> float | None:
    """The quota of one group, in cores."""
    both = _text_of(folder / "cpu.max").split()
    if not both:
        both = [_text_of(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if len(both) != 2 or not all(word.isdigit() for word in both):  # "max", or -1 in version 1: no quota
        return None
    quota_us, period_us = int(both[0]), int(both[1])
    return quota_us / period_us if quota_us and period_us else None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
