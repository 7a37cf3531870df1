"""Let the ranks of a node watch each other: a death ends the job and is reported once."""

from __future__ import annotations

import time
from pathlib import Path

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.ending import JobEnd, write_last_words
from hpcbal.runtime.health.watchdog import PeerWatchdog
from hpcbal.telemetry.host.processes import process_is_gone
from hpcbal.telemetry.views.read_status import note_death

SPEAKER_GRACE_S = 1.0
"""How long the other ranks of a node wait for the lowest one to report a death."""


def watch_peers(rank: int, roles: Roles, end: JobEnd, start: StartFile, status: Path) -> PeerWatchdog:
    """Start to watch the other ranks of this node.

    The lowest living rank reports a death. If `hpcbal run` started the ranks, it reports the death instead,
    so each death is reported once even if no rank has the time for it.

    Args:
        rank: this rank.
        roles: the roles of all ranks.
        end: ends the job.
        start: the start file, which `hpcbal run` reads.
        status: path of the run's status, to which the reason is added.
    """
    me = roles.ranks[rank]
    peers = [info for info in roles.ranks if info.node == me.node and info.rank != me.rank]

    places = [info.rank for info in roles.ranks if info.node == me.node]

    def end_job(message: str) -> None:
        lower = [peer for peer in peers if peer.rank < me.rank and not process_is_gone(peer.pid)]
        if end.announced() or lower:
            time.sleep(SPEAKER_GRACE_S)  # another rank reports the reason; abort even if it cannot
        else:
            words = start.read().last_words or message  # what the dead rank has said itself, if anything
            if not start.leave_last_words(message):
                write_last_words(message)
            note_death(status, words)
        end.abort(int(ExitCode.INTERNAL_ERROR))

    watchdog = PeerWatchdog(
        me, peers, roles.role_of, lambda peer: end.activity_of(places.index(peer)), end_job
    )
    watchdog.start()
    if rank == SCHEDULER_RANK:
        start.add(is_watched=True)
    return watchdog
