"""Measure how much CPU and memory other processes leave to this one, without slowing its steps."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from hpcbal.cluster.cgroup import ControlGroup, own_control_group

log = logging.getLogger(__name__)

INTERVAL_S = 0.075
MAX_INTERVAL_S = 0.5
LOOKS_PER_READ = 16
"""If reads are seconds apart, as with slow steps, looks are rarer and come only in the second half."""
WINDOW_LOOKS = 2
"""A share covers the last two intervals: the kernel counts in ticks of 10 ms, so one would round too much."""
LOOKS_PER_COST = 500
"""Looks take at most 1/500 of the time, regardless of the number of cores."""


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Shares from 0 to 1; None if they cannot be measured.

    Attributes:
        cpu_share: the part of this process's cores that others have left to it recently, whether it used
            them or not.
        memory_share: the part of the memory that this process may use that is in use by any process.
    """

    cpu_share: float | None
    memory_share: float | None


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds so far: of the clock, and of CPU time by core, by this process and by its control group."""

    clock_s: float
    busy_s: Mapping[int, float]
    own_s: float
    group_s: float | None


class ResourceProbe:
    """Looks every 0.075 s, in its own thread; `read` returns the latest result.

    Only the use by other processes counts: this process's own use follows its batches and does not predict
    its speed. The result covers the last 0.15 s, not the whole last step: a load that began in the middle of
    a step affects half of that step, but all of the next one. Low-priority work counts too, because it need
    not yield to other sessions and control groups.

    A look takes at least 60 microseconds. If `read` is called less often than every 1.2 s, there are fewer
    looks: one per 1/16 of the time between two reads (but at least one per 0.5 s), and none in the first half
    of that time, when the ranks of a host wait for each other and need its cores. The result then covers the
    last 1/8 of that time, or the last second. The time to the next read is estimated as the shorter of the
    last two. Without psutil, nothing is measured.

    Args:
        group: the limits of the control group; None reads them from the system.
        in_background: whether a thread calls `look`; otherwise the caller does.

    Source: [LBBSP] Sec. 3.2.2, Sec. 4 (CPU and memory by psutil).
    """

    def __init__(self, group: ControlGroup | None = None, *, in_background: bool = True) -> None:
        self._psutil = _psutil()
        self._group = own_control_group() if group is None else group
        self._times: deque[_Times] = deque(maxlen=WINDOW_LOOKS)
        self._cores: tuple[int, ...] = ()
        self._use = ResourceUse(None, None)
        self._interval_s = INTERVAL_S
        self._read_s: float | None = None
        self._gaps_s: deque[float] = deque(maxlen=2)  # between reads
        self._calm_until_s = 0.0
        self._ended = threading.Event()
        if in_background and self._psutil is not None:
            threading.Thread(target=self._keep_looking, name="resources", daemon=True).start()

    def read(self) -> ResourceUse:
        """The latest shares; both are None before the first look, and the CPU's before the second."""
        now_s = time.monotonic()
        if self._read_s is not None:
            self._gaps_s.append(now_s - self._read_s)
            step_s = min(self._gaps_s)  # one of the two may include validation or another network
            self._interval_s = interval_of(step_s)
            self._calm_until_s = now_s + (step_s / 2 if self._interval_s > INTERVAL_S else 0.0)
        self._read_s = now_s
        return self._use

    def look(self) -> None:
        """Measure now."""
        if self._psutil is None:
            return
        now = self._read_times(self._psutil)
        cpu_share = self._share(self._times[0], now) if self._times else None
        self._times.append(now)
        self._use = ResourceUse(cpu_share, self._memory(self._psutil))

    def close(self) -> None:
        """Stop the thread."""
        self._ended.set()

    def _keep_looking(self) -> None:
        wait_s = 0.0
        while not self._ended.wait(wait_s):
            if (calm_s := self._calm_s()) > 0.0:
                wait_s = min(calm_s, MAX_INTERVAL_S)  # faster steps may begin meanwhile
                continue
            began_s = time.thread_time()
            try:
                self.look()
            except Exception:  # if psutil fails on this system, the old shares must not stay in use
                self._use = ResourceUse(None, None)
                log.warning("CPU and memory use can no longer be measured", exc_info=True)
                return
            wait_s = max(self._interval_s, LOOKS_PER_COST * (time.thread_time() - began_s))

    def _calm_s(self) -> float:
        """Seconds by which the next look is delayed: after a read, if reads are far apart."""
        return max(0.0, self._calm_until_s - time.monotonic())

    def _read_times(self, psutil: ModuleType) -> _Times:
        cores = psutil.cpu_times(percpu=True)
        # Without the last two fields: guest time is included in `user`.
        busy = [sum(core[:8]) - core.idle - core.iowait for core in cores]
        if len(busy) != len(self._cores):  # at first, and after cores were switched on or off
            self._cores = listed_cores(psutil.PROCFS_PATH)
        now_s, own_s, group_s = time.monotonic(), time.process_time(), self._group.cpu_seconds()
        return _Times(now_s, dict(zip(self._cores, busy, strict=False)), own_s, group_s)

    def _share(self, before: _Times, now: _Times) -> float | None:
        """The share that others have left of the cores or of the control group's quota, whichever is less.

        None if not all cores that this process may use are listed: some containers renumber their cores.
        """
        seconds, own_s = now.clock_s - before.clock_s, now.own_s - before.own_s
        cores = os.sched_getaffinity(0)
        if not cores <= now.busy_s.keys() & before.busy_s.keys() or seconds <= 0.0:
            return None
        limit = min(float(len(cores)), self._group.cpu_limit or float(len(cores)))
        others_s = max(0.0, sum(now.busy_s[core] - before.busy_s[core] for core in cores) - own_s)
        left = (len(cores) * seconds - others_s) / (limit * seconds)
        if now.group_s is not None and before.group_s is not None:
            group_others_s = max(0.0, now.group_s - before.group_s - own_s)
            left = min(left, 1.0 - group_others_s / (limit * seconds))
        return min(max(left, 0.0), 1.0)

    def _memory(self, psutil: ModuleType) -> float:
        """The share in use of the host's memory or of the control group's limit, whichever is more."""
        host = psutil.virtual_memory()
        in_use = 1.0 - float(host.available) / float(host.total)
        return min(max(in_use, self._group.memory_share(), 0.0), 1.0)


def interval_of(read_interval_s: float) -> float:
    """Seconds between looks, given the seconds between reads."""
    return min(max(INTERVAL_S, read_interval_s / LOOKS_PER_READ), MAX_INTERVAL_S)


def listed_cores(procfs: str) -> tuple[int, ...]:
    """Indices of the cores, in the order in which the kernel and therefore psutil lists their times.

    Cores that are switched off (for example on POWER with fewer threads per core) are not listed; psutil does
    not report which ones.
    """
    with open(f"{procfs}/stat", encoding="ascii") as lines:
        names = [line.split(maxsplit=1)[0] for line in lines if line.startswith("cpu")]
    return tuple(int(name.removeprefix("cpu")) for name in names if name != "cpu")


def _psutil() -> ModuleType | None:
    try:
        return importlib.import_module("psutil")
    except ImportError:
        return None
