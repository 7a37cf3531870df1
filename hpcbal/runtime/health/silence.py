"""Detect ranks that hang or are suspended, and readers that block.

The scheduler hears of all other ranks by messages. The ranks of a node read each other's notes in memory that
they share: so the scheduler is watched too, and so are ranks of which none is free to collect messages.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from hpcbal.cluster.roles import SCHEDULER_RANK, RankInfo, Roles
from hpcbal.comm.channel import Message
from hpcbal.errors import ExitCode, HpcbalError
from hpcbal.runtime.handoff.leftovers import TRAINING, Sentences
from hpcbal.runtime.wire.protocol import WRITING, Heartbeat
from hpcbal.telemetry.files.atomic_file import own_file
from hpcbal.telemetry.resources.processes import process_is_suspended

log = logging.getLogger(__name__)


LOOKS_PER_LIMIT = 4


class Reader(Protocol):
    """A reader to watch; `hpcbal.data.source.PreprocessedSamples` is one.

    Attributes:
        reading: id of the sample that is being read, and `time.monotonic` when the read began; None between
            two reads.
    """

    reading: tuple[int, float] | None

    def where(self, sample_id: int) -> str:
        """Return people's name for a sample, such as a file name."""


BLOCKED = "blocked in reading"
"""How a note begins of a rank whose read lasts long: it is no sign of life."""


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
        text = f"{BLOCKED} sample {reading[0]} ({self._reader.where(reading[0])})"
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


NAP_S = 5.0
"""A longer pause between two looks means that this process was stopped, perhaps with the whole job."""
MAX_SHOWN = 4


class Silences:
    """Since when each rank has shown no sign of life, and what it did then.

    Args:
        ranks: the ranks.
        now_s: monotonic seconds, here and below.

    Attributes:
        doing: what each rank did last.
    """

    def __init__(self, ranks: Sequence[RankInfo], now_s: float) -> None:
        self._hosts = {info.rank: info.host for info in ranks}
        self._heard_s = dict.fromkeys(self._hosts, now_s)
        self._looked_s = now_s
        self.doing = dict.fromkeys(self._hosts, "starting")

    def heard_of(self, rank: int, now_s: float) -> None:
        """Record a sign of life."""
        self._heard_s[rank] = now_s

    def look(self, now_s: float) -> None:
        """Look at the clock, often: time in which this process itself was stopped does not count."""
        nap_s, self._looked_s = now_s - self._looked_s, now_s
        if nap_s > NAP_S:
            self._heard_s = {rank: heard_s + nap_s for rank, heard_s in self._heard_s.items()}

    def of(self, rank: int, now_s: float) -> float:
        """Seconds that this rank has been silent."""
        return now_s - self._heard_s[rank]

    def longest_s(self, now_s: float) -> float:
        """Seconds that the most silent rank has been silent."""
        return now_s - min(self._heard_s.values(), default=now_s)

    def suspects(self, limit_s: float, now_s: float) -> list[int]:
        """The ranks that have been silent for more than half the limit, the longest silence first."""
        suspects = [rank for rank in self._heard_s if self.of(rank, now_s) > limit_s / 2]
        return sorted(suspects, key=self._heard_s.__getitem__)

    def describe(self, ranks: Sequence[int], suspended: Collection[int] = ()) -> str:
        """Name ranks with what they did last, and say which of them are suspended."""
        shown = ", ".join(
            f"rank {rank} on host {self._hosts[rank]} (last seen {self.doing[rank]}"
            f"{', suspended' if rank in suspended else ''})"
            for rank in ranks[:MAX_SHOWN]
        )
        return f"{shown} and {len(ranks) - MAX_SHOWN} more" if len(ranks) > MAX_SHOWN else shown


def _stalled(silent_s: float, timeout_s: float, who: str, logs: Path, sentences: Sentences) -> str:
    return (
        f"no sign of life for {silent_s:.0f} s (stall_timeout_s: {timeout_s:g}) of {who}; "
        f"their stack traces are in {logs}/rank-NNN.log. The job ends here; {_in_a_sentence(sentences.again)}"
    )


def _in_a_sentence(text: str) -> str:
    return text[0].lower() + text[1:]


WAITING = "waiting for other ranks"
"""The note of a rank that waits; it may last as long as the work of the others."""


class Note(NamedTuple):
    """The last note of a rank.

    Attributes:
        beats: how often it has noted something; each time is a sign of life.
        doing: what it does; empty if it has not said.
    """

    beats: int
    doing: str


class Silence(NamedTuple):
    """The ranks that are silent, and a sentence that names them."""

    ranks: Collection[int]
    sentence: str


class NoteWatch:
    """Finds ranks of a node that have noted nothing for `timeout_s`.

    A rank that waits for others, or has noted nothing yet, is silent only while it is suspended.

    Args:
        ranks: the ranks.
        timeout_s: longest silence allowed, in seconds.
        logs: the directory of the ranks' logs, for the message.
        now_s: monotonic seconds.
        sentences: of the verb.
    """

    def __init__(
        self,
        ranks: Sequence[RankInfo],
        timeout_s: float,
        logs: Path,
        now_s: float,
        sentences: Sentences = TRAINING,
    ) -> None:
        self._pids = {info.rank: info.pid for info in ranks}
        self._timeout_s, self._logs, self._sentences = timeout_s, logs, sentences
        self._silences = Silences(ranks, now_s)
        self._seen: dict[int, Note] = {}

    def look(self, notes: Mapping[int, Note], now_s: float) -> Silence | None:
        """Return what is wrong, or None.

        Args:
            notes: the last note of each rank.
            now_s: monotonic seconds.
        """
        silences = self._silences
        silences.look(now_s)
        for rank, note in notes.items():
            if note != self._seen.get(rank) or self._waits(rank, note, now_s):
                self._seen[rank] = note
                silences.heard_of(rank, now_s)
                silences.doing[rank] = note.doing or "starting"
        silent_s = silences.longest_s(now_s)
        if silent_s <= self._timeout_s:
            return None
        ranks = silences.suspects(self._timeout_s, now_s)
        who = silences.describe(ranks, [rank for rank in ranks if process_is_suspended(self._pids[rank])])
        return Silence(ranks, _stalled(silent_s, self._timeout_s, who, self._logs, self._sentences))

    def _waits(self, rank: int, note: Note, now_s: float) -> bool:
        """Whether the rank waits and is not suspended; a look into /proc from time to time will do."""
        is_due = self._silences.of(rank, now_s) > self._timeout_s / LOOKS_PER_LIMIT
        return is_due and note.doing in ("", WAITING) and not process_is_suspended(self._pids[rank])


HEARTBEAT_INTERVAL_S = 2.5
BEATS_PER_TIMEOUT = 5
LOOK_INTERVAL_S = 1.0
"""Longest time between two looks at the clocks while messages keep coming."""
STOP_SILENCES, LEAST_STOP_S, MOST_STOP_S = 2.0, 6.0, 60.0
"""A run that is to stop waits for a silent rank this many times as long as any rank has been silent before;
at least and at most so many seconds. The least, and a second or two in which the launcher ends the ranks, are
less than 10 s."""
HURRIED = tuple(f"signal {number.name}" for number in (signal.SIGTERM, signal.SIGINT))
"""How the reasons of a stop begin that waits for the least time: who sends these signals may kill what is
still there after 10 s. Other signals, and the walltime, come as early as the user wants."""


class StalledError(HpcbalError):
    """A rank has been silent for too long."""

    exit_code = ExitCode.STALLED


class HeldUpError(StalledError):
    """A rank has been silent for too long in a run that is to stop."""

    exit_code = ExitCode.RUN_AGAIN

    @classmethod
    def of(cls, who: str, silent_s: float, sentences: Sentences = TRAINING) -> HeldUpError:
        """Return the error about those that have been silent for so long."""
        return cls(
            f"the run is to stop, but there is no sign of life for {silent_s:.0f} s of {who}; "
            f"the job ends here; {_in_a_sentence(sentences.again)}"
        )


def stop_limit_s(reason: str, longest_s: float) -> float:
    """Return for how long a run that is to stop waits for somebody silent.

    Args:
        reason: why it is to stop.
        longest_s: the longest silence before.
    """
    if reason.startswith(HURRIED):
        return LEAST_STOP_S
    return min(MOST_STOP_S, max(LEAST_STOP_S, STOP_SILENCES * longest_s))


def heartbeat_interval_s(timeout_s: float) -> float:
    """Seconds between two heartbeats of a rank."""
    return min(HEARTBEAT_INTERVAL_S, timeout_s / BEATS_PER_TIMEOUT)


class StallDetector:
    """Raises when a rank is silent for `timeout_s`; all ranks send heartbeats while their loops run.

    The ranks of a group wait for each other, so when one hangs, all of them fall silent at about the same
    time. The error names all of them with their last activity, and each writes a stack trace into its log
    (`HangTrace`).

    Whoever checks is the scheduler, and alive: each check is noted for the ranks of its own node.

    Args:
        timeout_s: longest silence allowed, in seconds.
        roles: the roles of all ranks.
        logs: the directory of the ranks' logs, for the message.
        note: called with what the scheduler does.
        clock: monotonic seconds, for tests.
        sentences: of the verb.
    """

    def __init__(
        self,
        timeout_s: float,
        roles: Roles,
        logs: Path,
        note: Callable[[str], None] = lambda doing: None,
        clock: Callable[[], float] = time.monotonic,
        sentences: Sentences = TRAINING,
    ) -> None:
        self._timeout_s, self._logs, self._note, self._clock = timeout_s, logs, note, clock
        self._sentences = sentences
        self._checked_s = clock()
        others = [info for info in roles.ranks if info.rank != SCHEDULER_RANK]
        self._silences = Silences(others, self._checked_s)
        self._longest_s = 0.0  # that a rank was silent before it was heard of again
        self._stop: tuple[str, float] | None = None  # why and when the run was asked to stop

    def hasten(self, reason: str) -> None:
        """Wait for silent ranks no longer than `stop_limit_s` says from now on: the run is to stop.

        Ranks that write a checkpoint keep their time, and the others wait for them.
        """
        self._stop = reason, self._clock()

    def heard_of(self, rank: int, message: Message) -> None:
        """Record that `rank` has sent `message`."""
        now, silences = self._clock(), self._silences
        doing = message.doing if isinstance(message, Heartbeat) else None
        if doing is not None and doing.startswith(BLOCKED):
            silences.doing[rank] = doing
            return
        if not silences.doing[rank].startswith(WRITING):
            self._longest_s = max(self._longest_s, silences.of(rank, now))
        silences.heard_of(rank, now)
        if doing is not None:
            silences.doing[rank] = doing

    def is_due(self) -> bool:
        """Whether it is time to check, and to look at the other clocks, even if messages are waiting."""
        return self._clock() - self._checked_s >= LOOK_INTERVAL_S

    def check(self) -> None:
        """Check for silent ranks; call this often: when no message is waiting, or when it `is_due`.

        Raises:
            StalledError: if a rank has been silent for too long; a `HeldUpError` in a run that is to stop.
        """
        self._note("scheduling")
        self._checked_s = now = self._clock()
        silences = self._silences
        silences.look(now)
        silent_s = silences.longest_s(now)
        if silent_s > self._timeout_s:
            who = silences.describe(silences.suspects(self._timeout_s, now))
            raise StalledError(_stalled(silent_s, self._timeout_s, who, self._logs, self._sentences))
        if self._stop is None or any(doing.startswith(WRITING) for doing in silences.doing.values()):
            return
        reason, asked_s = self._stop
        limit_s = stop_limit_s(reason, self._longest_s)
        if min(silent_s, now - asked_s) > limit_s:
            who = silences.describe(silences.suspects(limit_s, now))
            raise HeldUpError.of(who, silent_s, self._sentences)


class HangTrace:
    """Writes the stacks of a rank's threads into its log, shortly before others call it stalled.

    A Python thread calls `look`, so no other thread changes its stack meanwhile. Python's own timer
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
        self._due_s = math.inf
        self._writing = threading.Lock()

    def renew(self) -> None:
        """Restart the countdown, because the rank is alive."""
        self._due_s = time.monotonic() + self._delay_s

    def pause(self) -> None:
        """Stop the countdown until `renew`, because the rank waits for others."""
        self._due_s = math.inf

    def left_s(self) -> float:
        """Seconds until the countdown ends."""
        return max(0.0, self._due_s - time.monotonic())

    def look(self) -> None:
        """Write the stacks, once, if the countdown has ended."""
        if self.left_s() == 0.0:
            with self._writing:
                if not self._file.closed:
                    faulthandler.dump_traceback(self._file)
                self.pause()

    def close(self) -> None:
        """Write nothing from now on."""
        with self._writing:
            self._file.close()
