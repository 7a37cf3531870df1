"""What every rank of a running job holds: its place, its channel, its config."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mpi4py import MPI

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.config import RunConfig
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.runtime.channel import Channel
from hpcbal.runtime.protocol import Heartbeat, StopRequest
from hpcbal.runtime.signals import StopFlag

HEARTBEAT_INTERVAL_S = 5.0


@dataclass
class RankContext:
    """The surroundings of a role.

    Attributes:
        config: the validated configuration, equal on all ranks.
        output: the run's directory.
        roles: who does what.
        channel: control messages.
        stream_spec: the shape of the shared stream, fixed for the run.
        num_classes: of the dataset.
        data_fingerprint: names the data and preprocessing; checkpoints carry it.
        ring: this node's ring.
        stop: signals that this rank has got.
    """

    config: RunConfig
    output: Path
    roles: Roles
    channel: Channel
    stream_spec: StreamSpec
    num_classes: int
    data_fingerprint: str
    ring: NodeRing
    stop: StopFlag
    world: MPI.Intracomm
    _last_heartbeat_s: float = field(default=0.0)
    _clock: Callable[[], float] = time.monotonic

    @property
    def rank(self) -> int:
        return self.channel.rank

    def dnn_directory(self, dnn_id: str) -> Path:
        return self.output / "dnns" / dnn_id

    def keep_in_touch(self, doing: str) -> None:
        """Tell the scheduler of a signal at once, and every few seconds that this rank lives."""
        reason = self.stop.take()
        if reason is not None:
            self.channel.send(SCHEDULER_RANK, StopRequest(f"{reason} at rank {self.rank}"))
        now = self._clock()
        if now - self._last_heartbeat_s > HEARTBEAT_INTERVAL_S:
            self._last_heartbeat_s = now
            self.channel.send(SCHEDULER_RANK, Heartbeat(doing))
