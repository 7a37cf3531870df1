"""Detect ranks that hang or are suspended, and readers that block.

For jobs in which no rank is free to collect heartbeats. Each rank notes what it does in memory that the ranks
of its node share, and every rank has a thread that reads all of these notes. So a rank is also detected if no
thread of it gets to run, as long as the node has another one.
"""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hpcbal.cluster.roles import SCHEDULER_RANK, RankInfo, Roles
from hpcbal.comm.channel import Message
from hpcbal.errors import ExitCode, HpcbalError
from hpcbal.runtime.wire.protocol import WRITING, Heartbeat
from hpcbal.telemetry.files.atomic_file import own_file
from hpcbal.telemetry.host.processes import process_is_suspended

log = logging.getLogger(__name__)


LOOKS_PER_LIMIT = 4


class Reader(Protocol):
    """What is watched; `hpcbal.data.source.SampleSource` is one.

    Attributes:
        reading: id of the sample that is being read, and `time.monotonic` when the read began; None between
            two reads.
    """

    reading: tuple[int, float] | None

    def where(self, sample_id: int) -> str:
        """What people call a sample, such as a file name."""


class ReadWatch:
    """Finds reads that last too long; any thread may ask.

    Args:
        reader: the source of samples.
        limit_s: longest time that a read may take without a report.
    """

    def __init__(self, reader: Reader, limit_s: float) -> None:
        self.limit_s = limit_s
        self._reader = reader
        self._found: tuple[int, float] | None = None

    def is_blocked(self) -> bool:
        """Whether the read that goes on now has lasted longer than the limit."""
        reading = self._reader.reading
        return reading is not None and time.monotonic() - reading[1] > self.limit_s

    def news(self) -> str | None:
        """Text about such a read, once for each; otherwise None. Also writes it to the log."""
        reading = self._reader.reading
        if reading is None or reading is self._found or not self.is_blocked():
            return None
        self._found = reading
        text = f"blocked in reading sample {reading[0]} ({self._reader.where(reading[0])})"
        log.warning("%s for %.1f s", text, time.monotonic() - reading[1])
        return text


@contextmanager
def watched(watch: ReadWatch, report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` from a thread for each read that lasts too long, while this thread reads."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(watch.limit_s / LOOKS_PER_LIMIT):
            if (text := watch.news()) is not None:
                report(text)

    thread = threading.Thread(target=look, name="read-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


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


HEARTBEAT_INTERVAL_S = 5.0
BEATS_PER_TIMEOUT = 5
STALL_NAP_S = 5.0
MAX_STALLED_SHOWN = 4
LOOK_INTERVAL_S = 1.0
"""Longest time between two looks at the clocks while messages keep coming."""
STOP_SILENCES, LEAST_STOP_S, MOST_STOP_S = 2.0, 10.0, 60.0
"""A run that is to stop waits for a silent rank this many times as long as any rank has been silent before;
at least and at most so many seconds."""
_AGAIN = "run the same command again to resume from the last checkpoints"


class StalledError(HpcbalError):
    """A rank has been silent for too long."""

    exit_code = ExitCode.STALLED


class HeldUpError(StalledError):
    """A rank has been silent for too long in a run that is to stop."""

    exit_code = ExitCode.RUN_AGAIN


def heartbeat_interval_s(timeout_s: float) -> float:
    """Seconds between two heartbeats of a rank."""
    return min(HEARTBEAT_INTERVAL_S, timeout_s / BEATS_PER_TIMEOUT)


class StallDetector:
    """Raises when a rank is silent for `timeout_s`; all ranks send heartbeats while their loops run.

    The ranks of a group wait for each other, so when one hangs, all of them fall silent at about the same
    time. The error names all of them with their last activity, and each writes a stack trace into its log
    (`HangTrace`).

    Args:
        timeout_s: longest silence allowed, in seconds.
        roles: the roles of all ranks.
        logs: the directory of the ranks' logs, for the message.
        clock: monotonic seconds, for tests.
    """

    def __init__(
        self, timeout_s: float, roles: Roles, logs: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s = timeout_s
        self._roles = roles
        self._logs = logs
        self._clock = clock
        self._checked_s = now = clock()
        self._heard_s = {info.rank: now for info in roles.ranks if info.rank != SCHEDULER_RANK}
        self._doing = dict.fromkeys(self._heard_s, "starting")
        self._longest_s = 0.0  # that a rank was silent before it was heard of again
        self._is_stopping = False

    def hasten(self) -> None:
        """Wait for silent ranks no longer than `STOP_SILENCES` says from now on: the run is to stop.

        Ranks that write a checkpoint keep their time, and the others wait for them.
        """
        self._is_stopping = True

    def heard_of(self, rank: int, message: Message) -> None:
        """Record that `rank` has sent `message`."""
        now = self._clock()
        if not self._doing[rank].startswith(WRITING):
            self._longest_s = max(self._longest_s, now - self._heard_s[rank])
        self._heard_s[rank] = now
        if isinstance(message, Heartbeat):
            self._doing[rank] = message.doing

    def is_due(self) -> bool:
        """Whether it is time to check, and to look at the other clocks, even if messages are waiting."""
        return self._clock() - self._checked_s >= LOOK_INTERVAL_S

    def check(self) -> None:
        """Check for silent ranks; call this often: when no message is waiting, or when it `is_due`.

        Raises:
            StalledError: if a rank has been silent for too long; a `HeldUpError` in a run that is to stop.
        """
        now = self._clock()
        nap_s, self._checked_s = now - self._checked_s, now
        if nap_s > STALL_NAP_S:  # this process was itself stopped, perhaps with the whole job
            self._heard_s = {rank: heard_s + nap_s for rank, heard_s in self._heard_s.items()}
        silent_s = now - min(self._heard_s.values(), default=now)
        if silent_s > self._timeout_s:
            raise StalledError(
                f"no sign of life for {silent_s:.0f} s (stall_timeout_s: {self._timeout_s:g}) of "
                f"{self._describe(self._timeout_s, now)}; their stack traces are in "
                f"{self._logs}/rank-NNN.log. The job ends here; {_AGAIN}"
            )
        limit_s = min(MOST_STOP_S, max(LEAST_STOP_S, STOP_SILENCES * self._longest_s))
        is_writing = any(doing.startswith(WRITING) for doing in self._doing.values())
        if self._is_stopping and silent_s > limit_s and not is_writing:
            raise HeldUpError(
                f"the run is to stop, but there is no sign of life for {silent_s:.0f} s of "
                f"{self._describe(limit_s, now)}; the job ends here; {_AGAIN}"
            )

    def _describe(self, limit_s: float, now: float) -> str:
        """Name the ranks that have been silent for at least half the limit."""
        suspects = [rank for rank, heard_s in self._heard_s.items() if now - heard_s > limit_s / 2]
        silent = sorted(suspects, key=self._heard_s.__getitem__)
        shown = ", ".join(
            f"rank {rank} on host {self._roles.ranks[rank].host} (last seen {self._doing[rank]})"
            for rank in silent[:MAX_STALLED_SHOWN]
        )
        more = f" and {len(silent) - MAX_STALLED_SHOWN} more" if len(silent) > MAX_STALLED_SHOWN else ""
        return f"{shown}{more}"


class HangTrace:
    """Writes the stacks of a rank's threads into its log, shortly before the scheduler calls it stalled.

    A Python thread writes them, so no other thread changes its stack meanwhile. Python's own timer
    (`faulthandler.dump_traceback_later`) reads stacks while they change, and ends the process with a
    segmentation fault if one thread hangs while another works. The price: nothing is written while code in C
    holds the interpreter's lock.

    Args:
        log_path: path of the rank's log.
        timeout_s: the value of `stall_timeout_s`.
    """

    def __init__(self, log_path: Path, timeout_s: float) -> None:
        self._file = open(log_path, "a", encoding="utf-8", opener=own_file)  # noqa: SIM115 - closed by `close`
        self._delay_s = 0.8 * timeout_s
        self._due_s: float | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="hang-trace", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Restart the countdown, because the rank is alive."""
        self._set(time.monotonic() + self._delay_s)

    def pause(self) -> None:
        """Stop the countdown until `renew`, because the rank waits for others."""
        self._set(None)

    def close(self) -> None:
        """Stop the thread; nothing is written afterwards."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        self._file.close()

    def _set(self, due_s: float | None) -> None:
        with self._changed:
            was_idle, self._due_s = self._due_s is None, due_s
            if was_idle:
                self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                left_s = None if self._due_s is None else self._due_s - time.monotonic()
                if left_s is None or left_s > 0.0:
                    self._changed.wait(left_s)
                else:
                    self._due_s = None
                    faulthandler.dump_traceback(self._file)
