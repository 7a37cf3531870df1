"""Detect that a rank of this node hangs or is suspended: what it does has not changed for too long.

For jobs in which no rank is free to collect heartbeats. Each rank notes what it does in memory that the ranks
of its node share, and every rank has a thread that reads all of these notes. So a rank is also detected if no
thread of it gets to run, as long as the node has another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from hpcbal.cluster.roles import RankInfo
from hpcbal.telemetry.host.processes import process_is_suspended

POLL_INTERVAL_S = 0.5
LONGEST_NAP_S = 5.0
"""A longer pause between two looks means that this process was stopped, perhaps with the whole job."""
MAX_SHOWN = 4


class SilenceDetector:
    """Finds ranks whose activity has not changed for `timeout_s`.

    Args:
        ranks: the ranks of this node, this one included.
        timeout_s: longest silence allowed, in seconds.
        waiting: the activity of a rank that waits for others: it may last, unless the rank is suspended.
        where: the directory of the ranks' logs, for the message.
    """

    def __init__(self, ranks: Sequence[RankInfo], timeout_s: float, waiting: str, where: str) -> None:
        self._ranks = {info.rank: info for info in ranks}
        self._timeout_s = timeout_s
        self._waiting = waiting
        self._where = where
        self._seen: dict[int, tuple[str, float]] = {}
        self._looked_s: float | None = None

    def look(self, doing: dict[int, str], now_s: float) -> str | None:
        """What is wrong, or None.

        Args:
            doing: the activity of each rank.
            now_s: monotonic seconds.
        """
        nap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if nap_s > LONGEST_NAP_S:
            self._seen = {rank: (text, since_s + nap_s) for rank, (text, since_s) in self._seen.items()}
        for rank, text in doing.items():
            if rank not in self._seen or self._seen[rank][0] != text or self._waits(rank, text):
                self._seen[rank] = (text, now_s)
        silent_s = {rank: now_s - since_s for rank, (_, since_s) in self._seen.items()}
        longest_s = max(silent_s.values(), default=0.0)
        if longest_s <= self._timeout_s:
            return None
        silent = sorted(rank for rank, each_s in silent_s.items() if each_s > self._timeout_s / 2)
        shown = ", ".join(
            f"rank {rank} on host {self._ranks[rank].host} (last seen {doing[rank] or 'starting'}"
            f"{self._state(rank)})"
            for rank in silent[:MAX_SHOWN]
        )
        more = f" and {len(silent) - MAX_SHOWN} more" if len(silent) > MAX_SHOWN else ""
        return (
            f"no sign of life for {longest_s:.0f} s (stall_timeout_s: {self._timeout_s:g}) of {shown}{more}; "
            f"stack traces are in {self._where}. The job ends here, and nothing is written"
        )

    def _waits(self, rank: int, text: str) -> bool:
        return text == self._waiting and not self._state(rank)

    def _state(self, rank: int) -> str:
        return ", suspended" if process_is_suspended(self._ranks[rank].pid) else ""


class SilenceWatchdog:
    """A thread that looks for silent ranks; see `SilenceDetector`.

    Args:
        ranks, timeout_s, waiting, where: see there.
        activity_of: returns what a rank does.
        on_silence: called once, from the thread, with the message; must end the process.
    """

    def __init__(
        self,
        ranks: Sequence[RankInfo],
        activity_of: Callable[[int], str],
        on_silence: Callable[[str], None],
        timeout_s: float,
        waiting: str,
        where: str,
    ) -> None:
        self._numbers = [info.rank for info in ranks]
        self._activity_of = activity_of
        self._on_silence = on_silence
        self._detector = SilenceDetector(ranks, timeout_s, waiting, where)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="silence-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_INTERVAL_S):
            doing = {rank: self._activity_of(rank) for rank in self._numbers}
            message = self._detector.look(doing, time.monotonic())
            if message is not None and not self._stopped.is_set():
                self._on_silence(message)
                return
