"""The context of one rank of a running job: its role, its config, and how it reports."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.comm.channel import Channel
from hpcbal.config import EnsembleConfig, RunConfig
from hpcbal.runtime.health.ending import StopFlag
from hpcbal.runtime.health.liveness import Liveness
from hpcbal.runtime.health.silence import Reader, ReadWatch, StallDetector, heartbeat_interval_s, watched
from hpcbal.runtime.wire.protocol import Heartbeat, StopRequest, TimelinePart
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.streams.slices import SliceRecorder


@dataclass
class LiveRank:
    """The parts of every rank, whatever the kind of run: who it is, and how it reports.

    Attributes:
        config: the validated configuration, equal on all ranks.
        output: the run's directory.
        roles: the roles of all ranks.
        channel: sends and receives control messages.
        stop: signals that this rank has received.
        liveness: what this rank shows of its life.
        slices: records this rank's slices for the timeline.
        reads: watches the reads of another thread of this rank; None if there is no such thread.
    """

    config: RunConfig
    output: Path
    roles: Roles
    channel: Channel
    stop: StopFlag
    slices: SliceRecorder
    liveness: Liveness = field(default_factory=Liveness)
    reads: ReadWatch | None = None
    _last_heartbeat_s: float = field(default=0.0)

    @property
    def rank(self) -> int:
        return self.channel.rank

    def is_ending(self) -> bool:
        """Whether a rank of this node ends the job because of an error."""
        return self.liveness.is_ending()

    def stall_detector(self) -> StallDetector:
        """Make what detects silent ranks; for the scheduler."""
        logs = RunDirectory(self.output).logs
        return StallDetector(self.config.stall_timeout_s, self.roles, logs, self.liveness.note)

    def keep_in_touch(self, doing: str) -> None:
        """Report a signal to the scheduler at once, send a heartbeat every few seconds, and note `doing`.

        Call this at least once a second. Before work that cannot call it, call `announce`.
        """
        reason = self.stop.take()
        if reason is not None and not self.is_ending():  # mpirun sends TERM when a rank has aborted
            self.channel.send(SCHEDULER_RANK, StopRequest(f"{reason} at rank {self.rank}"))
        if self.reads is not None and self.reads.is_blocked():
            if (text := self.reads.news()) is not None:
                self.announce(text)  # the last sign of life until the read is over
        elif time.monotonic() - self._last_heartbeat_s > self.heartbeat_interval_s:
            self.announce(doing)
        else:
            self.liveness.note(doing)
        if slices := self.slices.take_due():
            self.channel.send(SCHEDULER_RANK, TimelinePart(slices))

    @property
    def heartbeat_interval_s(self) -> float:
        return heartbeat_interval_s(self.config.stall_timeout_s)

    def reading(self, source: Reader) -> AbstractContextManager[None]:
        """While this thread reads samples of `source`: report a read that blocks, from another thread."""

        def report(text: str) -> None:
            if self.channel.sends_from_threads:  # otherwise only the log names the sample
                self.announce(text)

        return watched(ReadWatch(source, self.heartbeat_interval_s), report)

    def send_slices(self) -> None:
        """Send the recorded slices; called when a group leaves or a stream ends."""
        if slices := self.slices.take():
            self.channel.send(SCHEDULER_RANK, TimelinePart(slices))

    def announce(self, doing: str) -> None:
        """Report to the scheduler that this rank starts work that may take long."""
        self._last_heartbeat_s = time.monotonic()
        self.liveness.note(doing)
        self.channel.send(SCHEDULER_RANK, Heartbeat(doing))


@dataclass
class RankContext(LiveRank):
    """The context of a rank of an ensemble, with any role; `RankData` has the data that it holds."""

    config: EnsembleConfig

    @classmethod
    def of(cls, rank: LiveRank, config: EnsembleConfig) -> RankContext:
        """The context of a rank of an ensemble with this configuration."""
        known = {each.name: getattr(rank, each.name) for each in fields(rank) if each.init}
        return cls(**{**known, "config": config})

    def dnn_directory(self, dnn_id: str) -> Path:
        return self.output / "dnns" / dnn_id
