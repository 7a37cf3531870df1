"""The states of a DNN and of the ensemble, and the legal transitions."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class DnnState(enum.StrEnum):
    """Where a DNN is in its life."""

    PENDING = "pending"  # nothing has been done for it yet
    PROFILING = "profiling"  # a group is timing it
    WAITING = "waiting"  # may be put into the next round
    RUNNING = "running"  # a group trains it, or waits with it at the end of a pass
    LEAVING = "leaving"  # its group was asked to write a checkpoint and leave
    SUSPENDED = "suspended"  # stopped inside a round; continues where it stopped
    DONE = "done"  # converged, and the checkpoint is on disk
    PRUNED = "pruned"  # stopped early because others are better, and the checkpoint is on disk
    STOPPED = "stopped"  # ended by the user; the checkpoint is on disk, if it has trained at all
    FAILED = "failed"  # cannot continue


class Phase(enum.StrEnum):
    """The phase of the ensemble as a whole."""

    NEW = "new"
    PROFILING = "profiling"
    CHOOSING = "choosing"
    ROUND = "round"
    FINISHED = "finished"


class Leaving(enum.StrEnum):
    """Why a group will leave its slots."""

    CONVERGED = "converged"
    PAUSED = "paused"  # until others have results
    PRUNED = "pruned"
    STOPPED = "stopped"  # the user asked for it
    REGROUP = "regroup"
    SUSPENDED = "suspended"  # stopped at its next step, maybe inside a pass
    FAILED = "failed"


STATE_WHEN_SAVED: Mapping[Leaving, DnnState] = {
    Leaving.CONVERGED: DnnState.DONE,
    Leaving.PRUNED: DnnState.PRUNED,
    Leaving.STOPPED: DnnState.STOPPED,
}
"""The state of a DNN once the checkpoint for leaving is on disk, where that ends it."""

STATE_WHEN_LEFT: Mapping[Leaving | None, DnnState] = {
    None: DnnState.WAITING,  # of a profiling wave
    Leaving.PAUSED: DnnState.WAITING,
    Leaving.REGROUP: DnnState.WAITING,
    Leaving.SUSPENDED: DnnState.SUSPENDED,
}
"""The state of a live DNN once its group has left."""


TRANSITIONS: Mapping[DnnState, frozenset[DnnState]] = {
    DnnState.PENDING: frozenset({DnnState.WAITING, DnnState.FAILED}),
    DnnState.PROFILING: frozenset({DnnState.WAITING, DnnState.FAILED}),
    # waiting -> done: a resume finds a whole checkpoint whose history meets the stop rule.
    # waiting -> pruned, stopped: the results of others, or the user, decided about it while it waited.
    DnnState.WAITING: frozenset(
        {
            DnnState.PROFILING,
            DnnState.RUNNING,
            DnnState.DONE,
            DnnState.PRUNED,
            DnnState.STOPPED,
            DnnState.FAILED,
        }
    ),
    DnnState.RUNNING: frozenset({DnnState.LEAVING, DnnState.FAILED}),
    DnnState.LEAVING: frozenset(
        {
            DnnState.WAITING,
            DnnState.SUSPENDED,
            DnnState.DONE,
            DnnState.PRUNED,
            DnnState.STOPPED,
            DnnState.FAILED,
        }
    ),
    DnnState.SUSPENDED: frozenset({DnnState.WAITING, DnnState.FAILED}),
    DnnState.DONE: frozenset(),
    DnnState.PRUNED: frozenset(),
    DnnState.STOPPED: frozenset(),
    DnnState.FAILED: frozenset(),
}

TERMINAL = frozenset({DnnState.DONE, DnnState.PRUNED, DnnState.STOPPED, DnnState.FAILED})
"""States that no event and no resume changes."""

WITH_GROUP = frozenset({DnnState.PROFILING, DnnState.RUNNING, DnnState.LEAVING})
"""States in which a DNN must hold slots; a DNN in a terminal state may hold some until its group has left."""
