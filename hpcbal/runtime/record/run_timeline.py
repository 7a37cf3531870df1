"""Write the run's timeline: the slices of all ranks, with the scheduler's own decisions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.telemetry.streams.slices import Slice, SliceRecorder
from hpcbal.telemetry.streams.timeline import TimelineFile

SHOWN_DECISION_S = 5e-4
"""The timeline shows decisions that take longer than this."""


class RunTimeline:
    """Writes slices into the timeline's file, on the tracks of their ranks and nodes.

    Args:
        path: path of the file.
        max_bytes: the value of `timeline.max_bytes`; 0 disables the timeline.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._own = SliceRecorder(SCHEDULER_RANK, enabled=max_bytes > 0)
        self._file = TimelineFile(path, max_bytes)
        self._node_of_rank: Sequence[int] = (0,)
        self._rank_of_gpu: Sequence[int] = ()

    def name_tracks(self, roles: Roles) -> None:
        """Name each rank's track after its role; called at each start, because roles may change."""
        self._node_of_rank, self._rank_of_gpu = roles.node_of_rank, roles.trainer_ranks
        for info in roles.ranks:
            node = f"node {info.node} ({info.host})"
            self._file.name_track(info.rank, info.node, node, roles.title_of(info.rank))

    def add_decision(self, began_s: float, seconds: float) -> None:
        """Add a decision of the state machine, if it took long enough to show."""
        if seconds > SHOWN_DECISION_S:
            self._own.add("decide", began_s, began_s + seconds)

    def add(self, rank: int, slices: Sequence[Slice]) -> None:
        """Add slices of a rank."""
        self._file.add(rank, self._node_of_rank[rank], slices)

    def mark(self, gpu: int, what: Slice) -> None:
        """Add a mark to a GPU's track."""
        self.add(self._rank_of_gpu[gpu], [what])

    def flush(self) -> None:
        """Write what has been added."""
        self.add(SCHEDULER_RANK, self._own.take())
        self._file.flush()

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        self._file.close()
