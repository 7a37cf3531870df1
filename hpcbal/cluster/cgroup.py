"""The limits of this process: memory and CPU time of its control group, and the cores that it may use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60  # version 1 writes "no limit" as a number close to 2**63


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The tightest limits, and the files that hold the use; None if nothing is limited.

    Attributes:
        memory_limit_bytes: most memory that the group may use.
        memory_used: file with the number of bytes in use.
        cpu_limit: most CPU seconds per second.
        cpu_used: file with the line `usage_usec N`, the CPU time used so far.
    """

    memory_limit_bytes: int | None = None
    memory_used: Path | None = None
    cpu_limit: float | None = None
    cpu_used: Path | None = None

    def memory_share(self) -> float:
        """Fraction of the allowed memory in use, 0 to 1; 0 if nothing is limited or can be read.

        Inactive file pages do not count as used, because the kernel can reclaim them.
        """
        if self.memory_used is None or not self.memory_limit_bytes:
            return 0.0
        used = _number(self.memory_used)
        if used is None:
            return 0.0
        idle = _entry(self.memory_used.with_name("memory.stat"), "inactive_file") or 0
        return min(max(used - idle, 0) / self.memory_limit_bytes, 1.0)

    def memory_left_bytes(self) -> int | None:
        """Bytes that the group may still use; None if nothing is limited or can be read.

        No file pages count as used: the kernel reclaims them all before it ends a process.
        """
        if self.memory_used is None or self.memory_limit_bytes is None:
            return None
        used = _number(self.memory_used)
        if used is None:
            return None
        statistics = self.memory_used.with_name("memory.stat")
        files = (_entry(statistics, "inactive_file") or 0) + (_entry(statistics, "active_file") or 0)
        return max(0, self.memory_limit_bytes - max(0, used - files))

    def cpu_seconds(self) -> float | None:
        """CPU time that all processes of the group have used so far; None if nothing is limited."""
        if self.cpu_used is None:
            return None
        used_us = _entry(self.cpu_used, "usage_usec")
        return None if used_us is None else used_us * 1e-6


def own_control_group(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> ControlGroup:
    """The tightest limits from this process's group up to the root; of equal ones the uppermost.

    Both versions of control groups are read; version 1 has no file of the CPU time used. Missing files, as on
    other systems than Linux or in a container that hides them, mean that there is no limit.

    Args:
        root: where control groups are mounted.
        membership: the file that lists this process's groups.
    """
    memory: tuple[int, Path] | None = None
    cpu: tuple[float, Path] | None = None
    for line in _text(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v1 = controllers != ""
        if "cpu" in controllers.split(","):
            for folder in _upwards(root / "cpu", path):
                quota = _quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
                if quota is not None and (cpu is None or quota < cpu[0]):
                    cpu = (quota, folder / "cpu.stat")
        if is_v1 and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if is_v1 else root
        limit_name, used_name = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_v1 else ("memory.max", "memory.current")
        )
        for folder in _upwards(top, path):
            limit = _number(folder / limit_name)
            if limit is not None and limit < NO_LIMIT_BYTES and (memory is None or limit <= memory[0]):
                memory = (limit, folder / used_name)
            quota = None if is_v1 else _quota(folder / "cpu.max")
            if quota is not None and (cpu is None or quota < cpu[0]):
                cpu = (quota, folder / "cpu.stat")
    return ControlGroup(*(memory or (None, None)), *(cpu or (None, None)))


def _upwards(top: Path, path: str) -> list[Path]:
    """The folders of a group and of its parents; in a container, only the top folder may exist."""
    folder = top / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == top or top in parent.parents)]


def _quota(*paths: Path) -> float | None:
    """CPU seconds per second, from a quota and its period in one file or two; None for `max` and -1."""
    words = " ".join(map(_text, paths)).split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _entry(path: Path, wanted: str) -> int | None:
    """The number in the line `wanted N` of a file."""
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == wanted and value.isdigit():
            return int(value)
    return None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """The content of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


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
