"""Ends that come by the clock: the walltime, and a rank that has fallen silent."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.config import RunConfig
from hpcbal.errors import ExitCode, HpcbalError
from hpcbal.runtime.protocol import Heartbeat, Message

WALLTIME_MARGIN_S = 60.0


class StalledError(HpcbalError):
    """A rank has not been heard of for too long."""

    exit_code = ExitCode.STALLED


class WalltimeLimit:
    """Asks once for a clean stop, a margin before the allocation ends.

    Args:
        end_s: when the allocation ends, in seconds of the Unix epoch; None: never.
        margin_s: what a clean stop may take.
    """

    def __init__(self, end_s: float | None, margin_s: float = WALLTIME_MARGIN_S) -> None:
        self._stop_at_s = None if end_s is None else end_s - margin_s

    @classmethod
    def from_config(cls, config: RunConfig, environ: Mapping[str, str] = os.environ) -> WalltimeLimit:
        """From `walltime` (counted from now), else from what Slurm says of the job's end."""
        if config.walltime is not None:
            return cls(time.time() + config.walltime, min(WALLTIME_MARGIN_S, config.walltime / 4))
        end = environ.get("SLURM_JOB_END_TIME", "")
        return cls(float(end) if end.isdigit() else None)

    def reached(self) -> str | None:
        """The reason for stopping, the first time after the moment has come."""
        if self._stop_at_s is None or time.time() < self._stop_at_s:
            return None
        self._stop_at_s = None
        return "the walltime is nearly over"


class StallDetector:
    """Raises when a rank is silent for `timeout_s`; all ranks send heartbeats while their loops turn."""

    def __init__(self, timeout_s: float, roles: Roles) -> None:
        self._timeout_s = timeout_s
        self._roles = roles
        now = time.monotonic()
        self._heard_s = {info.rank: now for info in roles.ranks if info.rank != SCHEDULER_RANK}
        self._doing = dict.fromkeys(self._heard_s, "starting")

    def heard_of(self, rank: int, message: Message) -> None:
        self._heard_s[rank] = time.monotonic()
        if isinstance(message, Heartbeat):
            self._doing[rank] = message.doing

    def check(self) -> None:
        """Look at the most silent rank.

        Raises:
            StalledError: it has been silent for too long.
        """
        rank, heard_s = min(self._heard_s.items(), key=lambda entry: entry[1])
        silent_s = time.monotonic() - heard_s
        if silent_s > self._timeout_s:
            raise StalledError(
                f"rank {rank} on host {self._roles.ranks[rank].host} has been silent for {silent_s:.0f} s "
                f"(stall_timeout_s: {self._timeout_s:g}); it was last seen {self._doing[rank]}. The job ends "
                "here; start the same command again to go on from the last checkpoints"
            )
