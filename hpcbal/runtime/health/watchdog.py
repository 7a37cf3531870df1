"""Detect that a rank on this node has died, report which one, and end the job.

A rank that is killed (kill -9, out of memory) leaves the others waiting in a collective. Launchers differ in
how soon and how clearly they react, so every rank watches the processes of its node's other ranks itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from hpcbal.cluster.roles import RankInfo
from hpcbal.runtime.handoff.activity import seen
from hpcbal.runtime.handoff.sentences import TRAINING
from hpcbal.telemetry.host.processes import process_is_gone

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
