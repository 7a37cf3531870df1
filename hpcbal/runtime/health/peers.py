"""Let the ranks of a node watch each other: a death or a silence ends the job and is reported once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hpcbal.cluster.roles import SCHEDULER_RANK, RankInfo
from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.sentences import TRAINING
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.ending import JobEnd, write_last_words
from hpcbal.runtime.health.silence import SilenceWatchdog
from hpcbal.runtime.health.watchdog import PeerWatchdog
from hpcbal.telemetry.host.processes import process_is_gone, process_is_suspended

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
