"""What every rank of a running job holds: its place, its channel, its config."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.comm.channel import Channel
from hpcbal.config import EnsembleConfig
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.runtime.health.signals import StopFlag
from hpcbal.runtime.health.stalling import HangTrace, heartbeat_interval_s
from hpcbal.runtime.wire.protocol import Heartbeat, StopRequest, TimelinePart
from hpcbal.telemetry.streams.slices import SliceRecorder


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
        is_ending: whether a rank of this node has announced that it ends the job.
        hang_trace: tells in the log where this rank stands when it hangs.
        slices: what this rank did when, for the timeline.
    """

    config: EnsembleConfig
    output: Path
    roles: Roles
    channel: Channel
    stream_spec: StreamSpec
    num_classes: int
    data_fingerprint: str
    ring: NodeRing
    stop: StopFlag
    hang_trace: HangTrace
    is_ending: Callable[[], bool]
    slices: SliceRecorder
    _last_heartbeat_s: float = field(default=0.0)

    @property
    def rank(self) -> int:
        return self.channel.rank

    @property
    def max_broken(self) -> float:
        """Broken samples that a run may have; with more the scheduler ends it (`too_many_bad`)."""
        return self.config.data.max_bad_fraction * self.stream_spec.num_positions

    def dnn_directory(self, dnn_id: str) -> Path:
        return self.output / "dnns" / dnn_id

    def keep_in_touch(self, doing: str) -> None:
        """Tell the scheduler of a signal at once, and every few seconds that this rank lives.

        To be called at least every second or so, but by what cannot: then `announce` what is to come.
        """
        reason = self.stop.take()
        if reason is not None and not self.is_ending():  # mpirun sends TERM when a rank has aborted
            self.channel.send(SCHEDULER_RANK, StopRequest(f"{reason} at rank {self.rank}"))
        if time.monotonic() - self._last_heartbeat_s > heartbeat_interval_s(self.config.stall_timeout_s):
            self.announce(doing)
        if slices := self.slices.take_due():
            self.channel.send(SCHEDULER_RANK, TimelinePart(slices))

    def send_slices(self) -> None:
        """Send what the timeline has not got yet; when a group leaves or a stream ends."""
        if slices := self.slices.take():
            self.channel.send(SCHEDULER_RANK, TimelinePart(slices))

    def announce(self, doing: str) -> None:
        """Tell the scheduler what this rank begins now, which may take long."""
        self._last_heartbeat_s = time.monotonic()
        self.hang_trace.renew()
        self.channel.send(SCHEDULER_RANK, Heartbeat(doing))
