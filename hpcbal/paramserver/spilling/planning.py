"""Blocks of one machine's jobs on its disk: planned when a job comes, then moved step by step."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hpcbal.paramserver.spilling.disk import LocalDisk, SpillError
from hpcbal.policies.grouping.memory import (
    RESERVE,
    JobMemory,
    SpillableJob,
    SpillClimber,
    blocks_on_disk,
    next_to_spill,
    returns,
)

log = logging.getLogger(__name__)

TURNS_OF_A_STEP = 3
"""Turns of every job between two steps of the climber; the first one is not measured."""

GUESSED_BYTES_PER_S = 500e6
"""Assumed speed of a disk that has not been read yet."""


class Memory(Protocol):
    """The account of a machine's memory."""

    limit_bytes: int | None
    lately_bytes: int

    @property
    def num_bytes(self) -> int: ...


class Spilled(Protocol):
    """The data blocks of a job on the machine, see `SpilledSamples`."""

    wanted_on_disk: int | None
    stop_s: float
    read_s: float
    compute_s: float
    num_turns: int

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_on_disk(self) -> int: ...

    @property
    def block_bytes(self) -> float: ...

    def put_on_disk(self) -> None: ...


@dataclass(slots=True)
class _Counts:
    """Totals of a job at the last look, and when that was."""

    at_s: float
    turns: int = 0
    read_s: float = 0.0
    stop_s: float = 0.0
    compute_s: float = 0.0


@dataclass(slots=True)
class _Member:
    """A job on the machine.

    Attributes:
        samples: its data blocks.
        memory: what it needs, as estimated; machines: of the job. steps: of an epoch.
        since: see `_Counts`.
        period_s: of an iteration, as last measured; None: not yet.
    """

    samples: Spilled
    memory: JobMemory
    machines: int
    steps: int
    since: _Counts = field(default_factory=lambda: _Counts(time.monotonic()))
    period_s: float | None = None

    def state(self, job: str, bytes_per_s: float, period_s: float) -> SpillableJob:
        """Return what the job reads and computes, as measured since the last look, or else as estimated.

        Args:
            job: its name.
            bytes_per_s: of the disk, for the estimate.
            period_s: of an iteration, if that of the job is not known.
        """
        samples, since = self.samples, self.since
        turns, on_disk = samples.num_turns - since.turns, samples.num_on_disk
        read_s = samples.block_bytes / self.steps / bytes_per_s
        if turns and on_disk and samples.read_s > since.read_s:
            read_s = (samples.read_s - since.read_s) / turns / on_disk
        return SpillableJob(
            job,
            samples.num_blocks,
            on_disk,
            samples.block_bytes,
            read_s,
            (samples.compute_s - since.compute_s) / turns / max(1, samples.num_blocks) if turns else None,
            (samples.stop_s - since.stop_s) / turns if turns else 0.0,
            self.period_s or period_s,
        )

    def note_period(self) -> None:
        """Find its period since the last look, if it has taken a turn."""
        if turns := self.samples.num_turns - self.since.turns:
            self.period_s = (time.monotonic() - self.since.at_s) / turns

    def look(self) -> None:
        """Measure anew from now on."""
        samples, now_s = self.samples, time.monotonic()
        self.since = _Counts(now_s, samples.num_turns, samples.read_s, samples.stop_s, samples.compute_s)


class MachineSpill:
    """Keeps the memory of a machine's jobs below its limit; its caller holds the machine's lock.

    Args:
        memory: of the machine.
        disk: of the machine.
        alpha: share of its data blocks that every job has on disk; None: as many as it takes.
    """

    def __init__(self, memory: Memory, disk: LocalDisk, alpha: float | None = None) -> None:
        self.disk, self._memory, self._alpha = disk, memory, alpha
        self._members: dict[str, _Member] = {}
        self._climber = SpillClimber()
        self._is_measuring = self._is_full = False
        self._returning: Mapping[str, int] = {}  # once others have made room

    @property
    def _adapts(self) -> bool:
        return self._alpha is None and self._memory.limit_bytes is not None

    def add(self, job: str, samples: Spilled, memory: JobMemory, machines: int, steps: int) -> None:
        """A job comes, whose blocks follow.

        Args:
            job: its name.
            samples: its blocks on this machine.
            memory: what it needs, as estimated.
            machines: on which it runs.
            steps: of an epoch.
        """
        self._members[job] = _Member(samples, memory, machines, steps)
        self._climber.forget()

    def remove(self, job: str) -> None:
        """A job has left: others take the memory of its blocks at once."""
        member = self._members.pop(job, None)
        if member is None:
            return
        self._climber.forget()
        self._returning = {}
        if self._adapts:
            samples = member.samples
            freed = (samples.num_blocks - samples.num_on_disk) * samples.block_bytes
            self._bring_about(returns(self._states(), self._free_bytes + freed))
        self._look_again()

    def plan(self, job: str, num_blocks: int) -> int:
        """How many of the blocks of a job that comes go to disk at once; others make room for the rest.

        Raises:
            SpillError: the disk is full.
        """
        if self._alpha is not None:
            return math.ceil(self._alpha * num_blocks)
        limit = self._memory.limit_bytes
        if limit is None or not num_blocks:
            return 0
        memory, machines = self._members[job].memory, self._members[job].machines
        others = [state for state in self._states() if state.job != job]
        block_bytes = max(1.0, memory.block_bytes)
        read_s = block_bytes / self._members[job].steps / self._bytes_per_s
        mine = SpillableJob(job, num_blocks, 0, block_bytes, read_s)
        taken = max(self._memory.num_bytes, self._memory.lately_bytes) - (1 - RESERVE) * limit
        taken += memory.fixed_on(machines) + num_blocks * block_bytes
        found = blocks_on_disk([*others, mine], taken)
        if found[job]:
            found = blocks_on_disk([*others, mine], taken + memory.reading_on(machines))
        for other in others:
            for _ in range(found[other.job] - other.on_disk):
                self._members[other.job].samples.put_on_disk()
        return found[job]

    def relieve(self, num_bytes: int) -> None:
        """Give so many bytes of samples back, or as many as there are and the disk takes.

        Who needs more than that fails by its own account of memory, and not the machine's other jobs.
        """
        if not self._adapts:
            return
        until_bytes = self._memory.num_bytes - num_bytes
        while self._memory.num_bytes > until_bytes and (job := next_to_spill(self._states())) is not None:
            self._climber.overruled()
            try:
                self._members[job.job].samples.put_on_disk()
            except SpillError as error:
                if not self._is_full:
                    log.warning("samples of job %s stay in memory: %s", job.job, error)
                self._is_full = True
                return

    def note_turn(self) -> None:
        """A job has taken a turn: if all have taken enough of them, take the next step."""
        if not self._adapts:
            return
        members = self._members.values()
        if any(each.samples.wanted_on_disk is not None for each in members):
            self._look_again()  # blocks are on their way
            return
        if self._returning:
            self._bring_about(self._returning)
            self._look_again()
            return
        turns = [each.samples.num_turns - each.since.turns for each in members]
        if not self._is_measuring:
            if all(turns):
                self._look()
                self._is_measuring = True
            return
        if any(count < TURNS_OF_A_STEP - 1 for count in turns):
            return
        self._bring_about(self._climber.step(self._states(), self._free_bytes))
        self._look_again()

    @property
    def _free_bytes(self) -> float:
        """Bytes that were free at the last look."""
        limit = self._memory.limit_bytes
        return math.inf if limit is None else (1 - RESERVE) * limit - self._memory.lately_bytes

    def _bring_about(self, change: Mapping[str, int]) -> None:
        """Blocks go to disk between two turns of their jobs, and then others come back."""
        goes = {job: count for job, count in change.items() if count > 0}
        self._returning = {job: count for job, count in change.items() if count < 0} if goes else {}
        for job, count in (goes or change).items():
            samples = self._members[job].samples
            samples.wanted_on_disk = min(samples.num_blocks, max(0, samples.num_on_disk + count))

    def _look_again(self) -> None:
        """Forget the measurements, which no longer hold, and look again."""
        self._is_measuring = False
        self._look()

    def _look(self) -> None:
        self._memory.lately_bytes = self._memory.num_bytes
        for each in self._members.values():
            each.look()

    @property
    def _bytes_per_s(self) -> float:
        return self.disk.bytes_per_s or GUESSED_BYTES_PER_S

    def _states(self) -> list[SpillableJob]:
        for each in self._members.values():
            each.note_period()
        known = [each.period_s for each in self._members.values() if each.period_s is not None]
        period_s = statistics.mean(known) if known else 1.0
        return [each.state(job, self._bytes_per_s, period_s) for job, each in self._members.items()]
