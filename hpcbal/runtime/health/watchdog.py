"""Detect that a rank on this node has died or is silent, report which one, and end the job.

A dataset or model may close descriptors that it has not opened. MPI then fails, or spins for ever, and
neither its abort nor a launcher reaches the rank. This thread needs no open descriptor, and no MPI.

A rank that is killed (kill -9, out of memory) leaves the others waiting in a collective. Launchers differ in
how soon and how clearly they react, so every rank watches the processes of its node's other ranks itself.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from hpcbal.cluster.roles import SCHEDULER_RANK, RankInfo
from hpcbal.errors import ExitCode
from hpcbal.processes import say
from hpcbal.runtime.handoff.rank_process import Activity, seen
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.handoff.supervision import TRAINING, Sentences
from hpcbal.runtime.health.ending import JobEnd, write_last_words
from hpcbal.runtime.health.silence import SilenceWatchdog
from hpcbal.telemetry.host.processes import process_is_gone, process_is_suspended

LIFELINE_INTERVAL_S = 0.2


class Lifeline:
    """A thread that ends this process in such a case.

    Args:
        rank: rank of this process, if known.
        start: the start file; without one, a launcher of the site has started the rank.
        activity: what the rank does, for the message.
        sentences: of the verb.
    """

    def __init__(
        self, rank: int | None, start: StartFile, activity: Activity, sentences: Sentences = TRAINING
    ) -> None:
        self._who = f"{'a rank' if rank is None else f'rank {rank}'} on {socket.gethostname()}"
        self._start, self._activity, self._sentences = start, activity, sentences
        self._starter_pid = start.read().starter_pid
        self._exit = os._exit  # of the system: `own_exit_code` replaces it
        self._canary = os.open(os.devnull, os.O_RDWR)
        self._device = os.fstat(self._canary).st_rdev
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def _watch(self) -> None:
        orphaned_s: float | None = None
        while orphaned_s is None or time.monotonic() - orphaned_s < self._sentences.orphaned_s:
            time.sleep(LIFELINE_INTERVAL_S)
            if self._is_cut():
                self._report()
                break
            if orphaned_s is None and self._starter_pid is not None and process_is_gone(self._starter_pid):
                orphaned_s = time.monotonic()
                for stream in (1, 2):  # nobody reads it, and mpirun would keep it in memory
                    os.dup2(self._canary, stream)
        self._exit(int(ExitCode.INTERNAL_ERROR))

    def _is_cut(self) -> bool:
        """Whether the first descriptor of this process was closed, and others with it."""
        try:
            return os.fstat(self._canary).st_rdev != self._device
        except OSError:
            return True

    def _report(self) -> None:
        text = (
            f"{self._who}{seen(self._activity)}: code of the user closed file descriptors that it had not "
            "opened (for example with os.closerange), and MPI cannot work without them; the job ends here. "
            f"Close only what your code has opened. {self._sentences.again}"
        )
        if not self._start.leave_last_words(text):
            say(f"hpcbal: {text}")
        self._start.hint(abort_code=int(ExitCode.INTERNAL_ERROR))


# Open MPI gives the other ranks about a second between TERM and KILL, so poll more often than that.
POLL_INTERVAL_S = 0.2


class PeerWatchdog:
    """A thread that watches the processes of the ranks on this node.

    Args:
        me: this rank.
        peers: the other ranks of this node; ranks whose pid is not visible (another pid namespace) are
            ignored.
        role_of: returns the role of a rank, for the message.
        activity_of: returns what a rank did last, for the message.
        on_death: called once, from the thread, with the message; must end the process.
        again: what to do next, for the message; a sentence.
    """

    def __init__(
        self,
        me: RankInfo,
        peers: Sequence[RankInfo],
        role_of: Callable[[int], str],
        activity_of: Callable[[int], str],
        on_death: Callable[[str], None],
        again: str = TRAINING.again,
    ) -> None:
        self._me = me
        self._peers = [peer for peer in peers if not process_is_gone(peer.pid)]
        self._role_of = role_of
        self._activity_of = activity_of
        self._on_death = on_death
        self._again = again
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="peer-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; call this after all ranks have agreed to leave."""
        self._stopped = True

    def _watch(self) -> None:
        while not self._stopped:
            time.sleep(POLL_INTERVAL_S)
            dead = [peer for peer in self._peers if process_is_gone(peer.pid)]
            if dead and not self._stopped:
                self._on_death(self._describe(dead))
                return

    def _describe(self, dead: Sequence[RankInfo]) -> str:
        names = ", ".join(
            f"rank {peer.rank} ({self._role_of(peer.rank)}, pid {peer.pid}) on host {peer.host}"
            f"{seen(self._activity_of(peer.rank))}"
            for peer in dead
        )
        return (
            f"{names} died without an error message: killed by a signal (kill -9, or the out-of-memory "
            "killer: see dmesg), crashed, or ended by code of the user (such as _exit in C); the job ends "
            f"here. {self._again}"
        )


SPEAKER_GRACE_S = 1.0
"""How long the other ranks of a node wait for the lowest one to report a death."""


class PeerWatch:
    """Watches the ranks of this rank's node.

    The lowest rank that is neither dead nor suspended reports. If `hpcbal` started the ranks, it reports
    instead, so each death is reported once even if no rank has the time for it.

    Args:
        rank: this rank.
        ranks: all ranks.
        role_of: returns the role of a rank, for the message.
        end: ends the job.
        start: the start file, which `hpcbal run` reads.
        note: called with the reason before the job ends.
        again: what to do after a death, for the message; a sentence.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[RankInfo],
        role_of: Callable[[int], str],
        end: JobEnd,
        start: StartFile,
        note: Callable[[str], None] = lambda words: None,
        again: str = TRAINING.again,
    ) -> None:
        self._me = ranks[rank]
        self._node = [info for info in ranks if info.node == self._me.node]
        self._peers = [info for info in self._node if info.rank != rank]
        self._end, self._start, self._note = end, start, note
        self._deaths = PeerWatchdog(
            self._me,
            self._peers,
            role_of,
            self._activity_of,
            lambda message: self._end_job(message, ExitCode.INTERNAL_ERROR),
            again,
        )
        self._silences: SilenceWatchdog | None = None
        self._deaths.start()
        if rank == SCHEDULER_RANK:
            start.add(is_watched=True)

    def watch_silence(self, timeout_s: float, waiting: str, where: str) -> None:
        """Also end the job if a rank of this node does the same for so long; see `SilenceWatchdog`."""
        self._silences = SilenceWatchdog(
            self._node,
            self._activity_of,
            lambda message: self._end_job(message, ExitCode.STALLED),
            timeout_s,
            waiting,
            where,
        )
        self._silences.start()

    def stop(self) -> None:
        """Stop watching; call this after all ranks have agreed to leave."""
        self._deaths.stop()
        if self._silences is not None:
            self._silences.stop()

    def _activity_of(self, rank: int) -> str:
        return self._end.activity_of([info.rank for info in self._node].index(rank))

    def _end_job(self, message: str, code: ExitCode) -> None:
        me = self._me.rank
        lower = [peer for peer in self._peers if peer.rank < me and _runs(peer.pid)]
        if self._end.announced() or lower:
            time.sleep(SPEAKER_GRACE_S)  # another rank reports the reason; abort even if it cannot
        else:
            words = (
                self._start.read().last_words or message
            )  # what the dead rank has said itself, if anything
            if not self._start.leave_last_words(message):
                write_last_words(message)
            self._note(words)
        self._end.abort(int(code))


def _runs(pid: int) -> bool:
    return not process_is_gone(pid) and not process_is_suspended(pid)
