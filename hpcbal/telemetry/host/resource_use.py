"""Watch how much CPU and memory others leave to this process, at no cost to its steps."""

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

from hpcbal.telemetry.host.cgroup import ControlGroup, own_control_group

log = logging.getLogger(__name__)

INTERVAL_S = 0.075
MAX_INTERVAL_S = 0.5
LOOKS_PER_READ = 16
"""Where reads are seconds apart, as with slow steps, looks are rarer, and come in the second half only."""
WINDOW_LOOKS = 2
"""A share is that of the last two intervals: the kernel counts in ticks of 10 ms, less would be rounding."""
LOOKS_PER_COST = 500
"""Looking takes at most one 500th of the time, however many cores the kernel lists."""


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Shares from 0 to 1; None where they cannot be told.

    Attributes:
        cpu_share: of the cores that this process may use, the part that others left to it in the last moment,
            whether it used it or not.
        memory_share: of the memory that it may use, the part that is in use by anybody.
    """

    cpu_share: float | None
    memory_share: float | None


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds so far: on the clock, and of CPU by core (number), by this process and its control group."""

    clock_s: float
    busy_s: Mapping[int, float]
    own_s: float
    group_s: float | None


class ResourceProbe:
    """Looks every 0.075 s, in a thread of its own; `read` tells what was seen last.

    What others take counts, not what this process takes: its own use follows its batches, and tells nothing
    of the speed to come. It is the last 0.15 s that are told, not the whole of the last step: a load that
    came in the middle of a step has slowed that step by a half, but will slow all of the next one. Work of
    low priority counts as well: it need not yield to other sessions and control groups.

    A look costs 60 microseconds and more. Where `read` is called less often than every 1.2 s, there are
    fewer: one in each 16th of the time from one read to the next (but one in 0.5 s at least), and none in its
    first half, when the ranks of a host wait for each other and need its cores. What is told is then the last
    eighth, or second. The time to the next read is taken to be the shorter one of the last two. Without
    psutil, nothing is told.

    Args:
        group: limits of containers; None: looked up.
        in_background: False: somebody calls `look` instead of the thread.

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
        """The newest shares; both None at first, the CPU's until there are two looks."""
        now_s = time.monotonic()
        if self._read_s is not None:
            self._gaps_s.append(now_s - self._read_s)
            step_s = min(self._gaps_s)  # one of two may be a pause, for validation or another network
            self._interval_s = interval_of(step_s)
            self._calm_until_s = now_s + (step_s / 2 if self._interval_s > INTERVAL_S else 0.0)
        self._read_s = now_s
        return self._use

    def look(self) -> None:
        """Look now."""
        if self._psutil is None:
            return
        now = self._read_times(self._psutil)
        cpu_share = self._share(self._times[0], now) if self._times else None
        self._times.append(now)
        self._use = ResourceUse(cpu_share, self._memory(self._psutil))

    def close(self) -> None:
        """Look no more."""
        self._ended.set()

    def _keep_looking(self) -> None:
        wait_s = 0.0
        while not self._ended.wait(wait_s):
            if (calm_s := self._calm_s()) > 0.0:
                wait_s = min(calm_s, MAX_INTERVAL_S)  # quicker steps may begin meanwhile
                continue
            began_s = time.thread_time()
            try:
                self.look()
            except Exception:  # a system that psutil does not understand must not leave old shares standing
                self._use = ResourceUse(None, None)
                log.warning("use of CPU and memory cannot be told any more", exc_info=True)
                return
            wait_s = max(self._interval_s, LOOKS_PER_COST * (time.thread_time() - began_s))

    def _calm_s(self) -> float:
        """Seconds for which the next look is put off: after a read, where they are far apart."""
        return max(0.0, self._calm_until_s - time.monotonic())

    def _read_times(self, psutil: ModuleType) -> _Times:
        cores = psutil.cpu_times(percpu=True)
        # Without the last two: guests' time is in `user` already.
        busy = [sum(core[:8]) - core.idle - core.iowait for core in cores]
        if len(busy) != len(self._cores):  # at first, and when some have been switched on or off
            self._cores = listed_cores(psutil.PROCFS_PATH)
        now_s, own_s, group_s = time.monotonic(), time.process_time(), self._group.cpu_seconds()
        return _Times(now_s, dict(zip(self._cores, busy, strict=False)), own_s, group_s)

    def _share(self, before: _Times, now: _Times) -> float | None:
        """What others have left, of the cores or of the control group's quota, whichever is less.

        None where not all cores that this process may use are listed: some containers number theirs anew.
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
        """The host's memory in use, or of what the control group allows, whichever is more."""
        host = psutil.virtual_memory()
        in_use = 1.0 - float(host.available) / float(host.total)
        return min(max(in_use, self._group.memory_share(), 0.0), 1.0)


def interval_of(read_interval_s: float) -> float:
    """Seconds between looks where reads are so many seconds apart."""
    return min(max(INTERVAL_S, read_interval_s / LOOKS_PER_READ), MAX_INTERVAL_S)


def listed_cores(procfs: str) -> tuple[int, ...]:
    """Numbers of the cores in the order in which the kernel, and so psutil, lists their times.

    Cores that are switched off (as POWER's with less than all their threads) are not listed; psutil does not
    tell which those are.
    """
    with open(f"{procfs}/stat", encoding="ascii") as lines:
        names = [line.split(maxsplit=1)[0] for line in lines if line.startswith("cpu")]
    return tuple(int(name.removeprefix("cpu")) for name in names if name != "cpu")


def _psutil() -> ModuleType | None:
    try:
        return importlib.import_module("psutil")
    except ImportError:
        return None
