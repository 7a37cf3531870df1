"""How much memory jobs need, and how much of their samples goes to disk ([PS] Sec. 4.3.3).

The share of a job's blocks on disk is the paper's alpha. A block on disk is read in every iteration, so
blocks that give back most memory for the time of reading go to disk first. Up to a bound, reading takes no
longer than computing what is in memory, so the job need not wait for it. Blocks beyond the bound go to disk
only if memory still does not suffice.

How the paper is read here (docs/adr/0022): it bounds alpha, and does not say which job of a group gives way.
"Hill-climbing" names neither step nor aim. A step here brings blocks back to memory, or chooses anew as if
none were on disk. The aim is the share of time for which jobs wait for blocks, then
that for which the disk reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

BLOCKS_AT_ONCE = 2
"""Blocks that a job has whole in memory to read from disk: one and its rearranged copy, or the next one."""

RESERVE = 0.03
"""Share of a machine's memory that is left free if it can be: what comes in messages is not known before."""


@dataclass(frozen=True, slots=True)
class JobMemory:
    """The memory of a job, as far as it is known before the job runs.

    Attributes:
        input_bytes: of all samples and the app's state of them, over all machines.
        model_bytes: of all parameters, over all machines.
        step_bytes: of the rows and updates of a step, over all machines.
        work_bytes: of dense tables, updates and messages, on each machine.
        data_blocks, parameter_blocks: into which samples and parameters are cut, >= 1; shares of machines are
            whole blocks. None: any shares.
        batch_bytes: of the samples of a step, over all machines.
    """

    input_bytes: float = 0.0
    model_bytes: float = 0.0
    step_bytes: float = 0.0
    work_bytes: float = 0.0
    data_blocks: int | None = None
    parameter_blocks: int | None = None
    batch_bytes: float = 0.0

    def on(self, machines: int, alpha: float = 0.0) -> float:
        """Bytes on that one of so many machines that needs most.

        Args:
            machines: >= 1.
            alpha: share of the data blocks that is on disk, 0 to 1. A job with blocks on disk needs room to
                read ahead, and to rearrange a block.
        """
        samples = self.input_bytes * _largest_share(self.data_blocks, machines)
        if alpha:
            samples = min(samples, samples * (1 - alpha) + self.reading_on(machines))
        return samples + self.fixed_on(machines)

    def fixed_on(self, machines: int) -> float:
        """Bytes on each of so many machines that are not of samples which wait for their turn."""
        parameters = _largest_share(self.parameter_blocks, machines)
        return (
            self.model_bytes * parameters + (self.step_bytes + self.batch_bytes) / machines + self.work_bytes
        )

    def reading_on(self, machines: int) -> float:
        """Bytes on each of so many machines that a job takes to read from disk."""
        return self.batch_bytes / machines + BLOCKS_AT_ONCE * self.block_bytes

    @property
    def block_bytes(self) -> float:
        """Bytes of a data block; 0 if their number is not known."""
        return self.input_bytes / self.data_blocks if self.data_blocks else 0.0


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The memory of every machine, and the share of data blocks that is on disk.

    Attributes:
        limit_bytes: of a machine; None: as much as anybody needs.
        alpha: share of its data blocks that every job has on disk; None: as large a share as it takes.
    """

    limit_bytes: float | None = None
    alpha: float | None = 0.0

    def holds(self, jobs: Iterable[JobMemory], machines: int) -> bool:
        """Whether jobs fit on the same machines together."""
        return (
            self.limit_bytes is None or sum(self.least_of(job, machines) for job in jobs) <= self.limit_bytes
        )

    def leaves_reserve(self, num_bytes: float) -> bool:
        """Whether jobs that take so many bytes of a machine leave the reserve free."""
        return self.limit_bytes is None or num_bytes <= (1 - RESERVE) * self.limit_bytes

    def least_of(self, job: JobMemory, machines: int) -> float:
        """Bytes that a job takes at least on each of so many machines."""
        return job.on(machines, 1.0 if self.alpha is None else self.alpha)

    def usual_of(self, job: JobMemory, machines: int) -> float:
        """Bytes that a job takes on each of so many machines if it is not short of memory."""
        return job.on(machines, self.alpha or 0.0)

    def least_machines(self, job: JobMemory, most: int) -> int | None:
        """The fewest machines on which a job fits alone; None: it does not fit on `most`, which is >= 1."""
        return next((count for count in range(1, most + 1) if self.holds([job], count)), None)


def _largest_share(blocks: int | None, machines: int) -> float:
    return 1 / machines if blocks is None else -(-blocks // machines) / blocks


WORSE = 1.05
"""A step is taken back if jobs then wait longer than ever since the climber began, by this factor."""

MUCH_CHEAPER = 0.8
"""The choice is made anew if reading then takes at most this share of what it took."""


@dataclass(frozen=True, slots=True)
class SpillableJob:
    """The data blocks of a job on one machine.

    Attributes:
        job: its name.
        blocks: on the machine, >= 0.
        on_disk: of them, 0 to `blocks`.
        block_bytes: of memory that a block takes, > 0.
        read_s: seconds to read what an iteration needs of one block on disk, >= 0.
        compute_s: seconds that computing takes in an iteration for one block, >= 0; None: not known.
        stop_s: seconds of an iteration for which the job waits for its blocks on disk, >= 0.
        period_s: seconds from one iteration to the next, > 0. Jobs of a group have the same one if they take
            turns with each other.
    """

    job: str
    blocks: int
    on_disk: int
    block_bytes: float
    read_s: float
    compute_s: float | None = None
    stop_s: float = 0.0
    period_s: float = 1.0

    @property
    def most_without_stop(self) -> int:
        """Blocks on disk for which the job need not wait: T_compute (B - 1) >= T_read (B_disk - 1).

        Source: [PS] Sec. 4.3.3.
        """
        if self.compute_s is None or not self.read_s:
            return self.blocks
        bound = 1 + math.floor(self.compute_s * max(0, self.blocks - 1) / self.read_s)
        return min(self.blocks, bound)

    @property
    def cost(self) -> float:
        """Share of time that the disk reads, for each byte of memory that is given back."""
        return self.read_share / self.block_bytes

    @property
    def read_share(self) -> float:
        """Share of time that the disk reads, for each block on disk."""
        return self.read_s / self.period_s

    @property
    def stop_share(self) -> float:
        """Share of time for which the job waits for its blocks on disk."""
        return self.stop_s / self.period_s


def next_to_spill(jobs: Sequence[SpillableJob]) -> SpillableJob | None:
    """The job whose next block goes to disk; None: nothing is left in memory.

    Jobs below their bound come first, then those for which reading costs least, then those with the smallest
    share on disk.
    """
    able = [job for job in jobs if job.on_disk < job.blocks]
    if not able:
        return None
    return min(
        able,
        key=lambda job: (job.on_disk >= job.most_without_stop, job.cost, job.on_disk / job.blocks, job.job),
    )


def blocks_on_disk(jobs: Sequence[SpillableJob], excess_bytes: float) -> dict[str, int]:
    """How many blocks of each job are on disk once so many bytes have been given back, or all that there are.

    Block by block, as `next_to_spill` says: reading costs least if all blocks have the same size, nearly so
    otherwise.

    Args:
        jobs: of one machine, with unique names.
        excess_bytes: that are to be given back beyond what is on disk already; nothing is done if <= 0.
    """
    now = {job.job: job for job in jobs}
    while excess_bytes > 0 and (job := next_to_spill(list(now.values()))) is not None:
        now[job.job] = replace(job, on_disk=job.on_disk + 1)
        excess_bytes -= job.block_bytes
    return {name: job.on_disk for name, job in now.items()}


@dataclass(slots=True)
class SpillClimber:
    """Moves alpha of the jobs of one machine step by step to where they wait and read least.

    `step` is called with new measurements after every change. It takes a step back if that made jobs wait
    longer or left too little memory, and does not try it again until jobs come or go.
    """

    _last: dict[str, int] | None = None  # the step before
    _least_stop: float = math.inf  # share of time for which all jobs have waited
    _barred: set[tuple[tuple[str, int], ...]] = field(default_factory=set)

    def forget(self) -> None:
        """Jobs have come or gone: what was measured no longer holds."""
        self._last, self._least_stop, self._barred = None, math.inf, set()

    def overruled(self) -> None:
        """Blocks had to go to disk for want of room: the step before is not tried again."""
        if self._last is not None:
            self._barred.add(_key(self._last))
            self._last = None

    def step(self, jobs: Sequence[SpillableJob], free_bytes: float) -> Mapping[str, int]:
        """By job, blocks to put on disk or, if negative, to bring back; empty: no step is better.

        Args:
            jobs: as measured since the last step.
            free_bytes: of the machine's memory that were free all the time; negative: so many were missing.
        """
        stop = sum(job.stop_share for job in jobs)
        last, self._last = self._last, None
        is_worse = stop > self._least_stop * WORSE + 1e-9
        self._least_stop = min(self._least_stop, stop)
        if last is not None and (is_worse or free_bytes < 0):
            self._barred.add(_key(last))
            back = {job: -count for job, count in last.items()}
            if _fits(jobs, back, free_bytes):
                return back
        if free_bytes < 0:
            wanted = blocks_on_disk(jobs, -free_bytes)
            return {job.job: wanted[job.job] - job.on_disk for job in jobs if wanted[job.job] != job.on_disk}
        for found in (returns(jobs, free_bytes), *_chosen_anew(jobs)):
            if found and _key(found) not in self._barred and _fits(jobs, found, free_bytes):
                self._last = found
                return found
        return {}


def _fits(jobs: Sequence[SpillableJob], change: Mapping[str, int], free_bytes: float) -> bool:
    for job in jobs:
        count = change.get(job.job, 0)
        if not 0 <= job.on_disk + count <= job.blocks:
            return False
        free_bytes += count * job.block_bytes
    return free_bytes >= 0


def returns(jobs: Sequence[SpillableJob], free_bytes: float) -> dict[str, int]:
    """Blocks that come back to free memory, as negative numbers by job; empty: none fits.

    Jobs come first that wait longest for a byte, then those whose reading costs most.

    Args:
        jobs: of a machine.
        free_bytes: of its memory.
    """
    able = [job for job in jobs if job.on_disk]
    order = sorted(
        able, key=lambda job: (-job.stop_share / (job.on_disk * job.block_bytes), -job.cost, job.job)
    )
    found = {}
    for job in order:
        count = min(job.on_disk, int(free_bytes / job.block_bytes))
        if count > 0:
            found[job.job] = -count
            free_bytes -= count * job.block_bytes
    return found


def _chosen_anew(jobs: Sequence[SpillableJob]) -> list[dict[str, int]]:
    """The choice that measurements suggest, if reading then takes much less."""
    spilled_bytes = sum(job.on_disk * job.block_bytes for job in jobs)
    wanted = blocks_on_disk([replace(job, on_disk=0) for job in jobs], spilled_bytes)
    before = sum(job.on_disk * job.read_share for job in jobs)
    if sum(wanted[job.job] * job.read_share for job in jobs) > before * MUCH_CHEAPER:
        return []
    return [{job.job: wanted[job.job] - job.on_disk for job in jobs if wanted[job.job] != job.on_disk}]


def _key(change: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(change.items()))
